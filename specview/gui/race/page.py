"""The race page: the sentence on the race, lane panels side by side, the line for the next turn, plots, a row for controls."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import QEvent, QObject, QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QScrollArea, QWidget

from specview.gui.lanes.linking import Links
from specview.gui.lanes.panel import LanePanel
from specview.gui.link.controller import Controller
from specview.gui.parts import layout, theme
from specview.gui.parts.plots import PlotStrip
from specview.gui.parts.selection import Selection
from specview.gui.race.conversation import Conversation
from specview.gui.race.headline import Headline
from specview.gui.race.inspector import Inspector
from specview.gui.race.legend import Legend
from specview.gui.race.transport import Transport, TransportBar
from specview.gui.share.button import ExportButton
from specview.gui.state.token_looks import TokenLooks
from specview.gui.state.view_model import FINAL, LaneModel

MIN_LANE_PX = 230
INSPECTOR_PX, PLOTS_PX, FOOT_PX = 290, 140, 31
FOLD_WIDTH_PX, FOLD_HEIGHT_PX = 1000, 480
"""Below these the inspector and the plots fold by themselves, unless they were asked for."""


class RacePage(QWidget):
    """Builds panels for the lanes of the controller's race and passes their wishes on.

    transport  plays a finished race, and holds back one under way
    foot  the row at the bottom, for what plays, exports and presents a race
    branch_requested(lane, round, token, alternative or None): a token is to be another one, and the race goes on from there
    """

    edit_lane = Signal(int)
    remove_lane = Signal(int)
    move_lane = Signal(int, int)
    lane_selected = Signal(object)
    folded = Signal()
    trees_changed = Signal()
    why_requested = Signal(int)
    branch_requested = Signal(int, int, int, object)
    panels_changed = Signal()

    def __init__(self, controller: Controller, selection: Selection | None = None) -> None:
        super().__init__()
        self._controller = controller
        self.selection = selection or Selection(self)
        self.panels: list[LanePanel] = []
        self.looks, self.links = TokenLooks(), Links(self)
        self.trees: set[str] = set()
        self._selected: LaneModel | None = None
        self._seen: list[tuple[LaneModel, int]] = []  # the lanes on screen, each with its run
        self._wished = {"inspector": False, "plots": True}
        self._forced: set[str] = set()
        self._resting = False

        self.lanes = QWidget()
        self.lanes.setObjectName("scrolled")
        self._row = layout.row(on=self.lanes, gap=10, margins=(10, 0, 10, 1))
        self.lane_scroll = QScrollArea()
        self.lane_scroll.setWidgetResizable(True)
        self.lane_scroll.setFrameShape(QFrame.Shape.NoFrame)
        self.lane_scroll.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.lane_scroll.setWidget(self.lanes)
        self.lane_scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)

        self.conversation = Conversation(controller)
        self.legend = Legend()
        self.headline = Headline(controller)
        self.headline.row.addWidget(self.legend)
        self.plots = PlotStrip(controller.race)
        self.plots.asked_again = lambda: controller.racing
        self.inspector = Inspector()
        self.inspector.branch_requested.connect(self._branch)
        self.export = ExportButton(controller)
        controller.lanes_changed.connect(self.rebuild)  # the panels first: what else follows may lay the page out
        self.transport = Transport(controller, self)
        self._lay_out()
        self.conversation.left.connect(lambda: self.panels and self.panels[0].view.setFocus())
        self.selection.round_selected.connect(self._select_round)
        controller.text_tick.connect(self._on_text)
        controller.number_tick.connect(self._on_numbers)
        controller.plot_tick.connect(self._on_plots)
        controller.state_changed.connect(self.refresh_actions)
        theme.signals.changed.connect(self._fit)
        self.rebuild()
        self.refresh_actions()

    # -- layout ----------------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        upper = QWidget()
        layout.column((self.lane_scroll, 1), self.conversation, on=upper, gap=2)
        lower = QWidget()
        layout.row(self.plots, on=lower, margins=(10, 0, 10, 4))
        self.plot_holder = lower
        self.rows = layout.split(Qt.Orientation.Vertical, (upper, 1, 520), (lower, 0, PLOTS_PX))
        side = QFrame()
        side.setProperty("kind", "side")
        layout.column(self.inspector, on=side)
        side.hide()
        self.side = side
        self.columns = layout.split(Qt.Orientation.Horizontal, (self.rows, 1, 1100), (side, 0, INSPECTOR_PX))
        self.columns.installEventFilter(self)
        holder = self._foot_holder = QWidget()
        self.foot = layout.row((TransportBar(self.transport), 1), on=holder, gap=8, margins=(10, 0, 10, 2))
        self.foot.addWidget(self.export, 0, Qt.AlignmentFlag.AlignRight)
        layout.column(self.headline, (self.columns, 1), holder, on=self, gap=0)

    def sizeHint(self) -> QSize:
        """Room for three lanes."""
        return QSize(theme.px(1200), theme.px(700))

    # -- folding ---------------------------------------------------------------------------------------

    def wish(self, inspector: bool, plots: bool, asked: str = "") -> None:
        """Show or fold the inspector and the plots; `asked` names the one asked for now: no room folds it."""
        wished = {"inspector": inspector, "plots": plots}
        for part, on in wished.items():
            if on and part == asked:
                self._forced.add(part)
            elif not on:
                self._forced.discard(part)
        self._wished = wished
        self._fold()
        if asked and wished[asked]:
            # Its edge may have been dragged shut before.
            splitter, size = (self.columns, INSPECTOR_PX) if asked == "inspector" else (self.rows, PLOTS_PX)
            first, *second = splitter.sizes()
            if second == [0] and first > 0:
                splitter.setSizes([max(1, first - size), size])

    def open_inspector(self, lane: int | None = None) -> None:
        """Open the inspector, on this lane where one is named."""
        if lane is not None and 0 <= lane < len(self.panels):
            self.select(self.panels[lane].lane)
        self.wish(True, self._wished["plots"], "inspector")

    def close_inspector(self) -> bool:
        """Close the inspector, the keyboard back to the text; False where it is closed."""
        if not self.shown("inspector"):
            return False
        inside = self.side.isAncestorOf(self.focusWidget()) if self.focusWidget() is not None else False
        self.wish(False, self._wished["plots"])
        if inside:
            self.focus_selected()
        return True

    def shown(self, part: str) -> bool:
        """Whether the inspector or the plots are shown."""
        return not (self.side if part == "inspector" else self.plot_holder).isHidden()

    def _fold(self) -> None:
        room = {"inspector": self.width() >= theme.px(FOLD_WIDTH_PX), "plots": self.height() >= theme.px(FOLD_HEIGHT_PX)}
        before = self.shown("inspector"), self.shown("plots")
        for part, holder in (("inspector", self.side), ("plots", self.plot_holder)):
            if room[part]:
                self._forced.discard(part)
            holder.setVisible(self._wished[part] and (room[part] or part in self._forced))
        self._place_side()
        if (self.shown("inspector"), self.shown("plots")) != before:
            self._on_plots()
            self.folded.emit()

    @property
    def overlaid(self) -> bool:
        """Whether the inspector lies over the page, for the lanes would have to scroll beside it."""
        return self.side.parentWidget() is self

    def _place_side(self) -> None:
        """Put the inspector beside the lanes, or over that end of the page where it covers less of the lane looked at."""
        side, least, wide = self.side, self.lanes.minimumWidth(), theme.px(INSPECTOR_PX)
        over = least <= self.width() < least + wide + self.columns.handleWidth()
        if over is not self.overlaid:
            shown, held = not side.isHidden(), self.focusWidget()
            if over:
                side.setParent(self)
            else:
                self.columns.addWidget(side)
                self.columns.setStretchFactor(1, 0)
                self.columns.setSizes([max(1, self.width() - wide), wide])
            side.setVisible(shown)
            if held is not None and side.isAncestorOf(held):
                held.setFocus()
        if over:
            area = self.columns.geometry()
            x = area.right() + 1 - wide
            panel = next((one for one in self.panels if one.lane is self._selected), None)
            if panel is not None:
                begin = panel.mapTo(self, panel.rect().topLeft()).x()
                if begin + panel.width() - x > max(0, area.left() + wide - begin):  # more of it would be covered here than there
                    x = area.left()
            side.setGeometry(x, area.top(), wide, area.height())
            side.raise_()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Play the race by the window's keys that nothing took which has the keyboard."""
        if watched is self.columns:
            if event.type() in (QEvent.Type.Resize, QEvent.Type.Move):
                self._place_side()
            return False
        if isinstance(event, QKeyEvent) and event.type() == QEvent.Type.KeyPress and self.isVisible():
            return self.transport.take_key(event)
        return super().eventFilter(watched, event)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.window().installEventFilter(self)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fold()

    # -- panels -----------------------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Make the panels agree with the race's lanes; panels of lanes that stay are kept."""
        lanes = self._controller.race.lanes
        seen = [(lane, lane.generation) for lane in lanes]
        if seen != self._seen:  # the end of a race tells of its lanes too, and they are the same
            self._seen = seen
            self.selection.clear()
        while len(self.panels) > len(lanes):
            panel = self.panels.pop()
            self._row.removeWidget(panel)
            panel.hide()
            panel.deleteLater()
        while len(self.panels) < len(lanes):
            panel = self._make(len(self.panels))
            self.panels.append(panel)
            self._row.addWidget(panel, 1)
        for index, panel in enumerate(self.panels):
            panel.set_index(index)
        layout.tab_order(*layout.stops(self.legend, *self.panels, self.inspector))  # panels are made last and stand before all below
        self._show_trees()
        if all(lane is not self._selected for lane in lanes):
            self.select(next((lane for lane in lanes if not lane.plain), lanes[0] if lanes else None))
        self._fit()
        self.panels_changed.emit()
        self.inspector.keep_to(lanes)
        self._on_text()
        self._on_numbers()
        self._on_plots()

    def _fit(self) -> None:
        """Keep room for every lane's figures, whatever the font: beyond it the lanes scroll."""
        self._foot_holder.setFixedHeight(theme.px(FOOT_PX) + 2)
        self.lanes.setMinimumWidth(len(self.panels) * (theme.px(MIN_LANE_PX) + 10) + 10)
        self._place_side()

    def _make(self, index: int) -> LanePanel:
        panel = LanePanel(self._controller.race, index)
        panel.view.set_looks(self.looks)
        panel.view.branch_requested.connect(
            lambda round_, token, other: self.branch_requested.emit(panel.index, round_, token, other)
        )
        self.links.link(panel.view)
        panel.set_editable(not self._controller.racing and self._controller.recorded is None)
        panel.edit_requested.connect(lambda: self.edit_lane.emit(panel.index))
        panel.remove_requested.connect(lambda: self.remove_lane.emit(panel.index))
        panel.move_requested.connect(lambda step: self.move_lane.emit(panel.index, step))
        panel.why_requested.connect(lambda: self.why_requested.emit(panel.index))
        panel.tree_toggled.connect(lambda on: self._tree_toggled(panel.index, on))
        panel.token_selected.connect(lambda round_, token: self._token_selected(panel, round_, token))
        panel.token_chosen.connect(lambda round_, token: self._token_chosen(panel, round_, token))
        panel.view.token_hovered.connect(lambda round_, token: self._show_token(panel.lane, round_, token, passing=True))
        return panel

    def select(self, lane: LaneModel | None) -> None:
        """Take a lane as the one whose costs and round times are shown."""
        self._selected = lane
        self.plots.select_lane(lane)
        if self.overlaid:
            self._place_side()
        self.lane_selected.emit(lane)

    @property
    def selected(self) -> LaneModel | None:
        """The lane whose costs and round times are shown."""
        return self._selected

    def focus_lane(self, index: int) -> None:
        """Put the keyboard on a lane's text."""
        if 0 <= index < len(self.panels):
            panel = self.panels[index]
            self.lane_scroll.ensureWidgetVisible(panel)
            panel.view.setFocus()
            self.select(panel.lane)

    def focus_selected(self) -> None:
        """Put the keyboard on the text of the lane looked at."""
        self.focus_lane(next((panel.index for panel in self.panels if panel.lane is self._selected), 0))

    def focus_follow_up(self) -> None:
        """Put the keyboard on the line for the next turn, where there is one."""
        if not self.conversation.isHidden():
            self.conversation.line.setFocus()

    def _token_chosen(self, panel: LanePanel, round_index: int, token_index: int) -> None:
        self.open_inspector()
        self._show_token(panel.lane, round_index, token_index)

    def _token_selected(self, panel: LanePanel, round_index: int, token_index: int) -> None:
        self._show_token(panel.lane, round_index, token_index)
        self.selection.select(panel.index, round_index, self)

    def _branch(self, round_index: int, token_index: int, other: int | None) -> None:
        lane = next((panel.index for panel in self.panels if panel.lane is self.inspector.lane), None)
        if lane is not None:
            self.branch_requested.emit(lane, round_index, token_index, other)

    def _select_round(self, lane: int, round_index: int, source: object) -> None:
        """Show a round that was picked in another view: its first drafted token, or its final one."""
        if source is self or not 0 <= lane < len(self.panels):
            return
        panel = self.panels[lane]
        if 0 <= round_index < len(panel.lane.rounds):
            token = 0 if panel.lane.rounds[round_index].drafted else FINAL
            panel.view.select_token(round_index, token)
            self._show_token(panel.lane, round_index, token)

    def _show_token(self, lane: LaneModel, round_index: int, token_index: int, passing: bool = False) -> None:
        """Show a token in the inspector; passing: the pointer only goes over it."""
        if lane is not self._selected and not passing:
            self.select(lane)
        if not self.side.isHidden():
            self.inspector.show_token(lane, round_index, token_index, passing)

    def show_looks(self, looks: TokenLooks) -> None:
        """Show thrown-away drafts, blanks and states in this way."""
        self.looks = looks
        self.legend.set_off(looks.off)
        for panel in self.panels:
            panel.view.set_looks(looks)

    # -- live draft trees --------------------------------------------------------------------------------

    def set_trees(self, keys: Iterable[str]) -> None:
        """Open the live draft trees of these lanes, by `tree_key`."""
        self.trees = set(keys)
        self._show_trees()

    def toggle_tree(self, index: int) -> None:
        """Open or close a lane's live draft tree."""
        if 0 <= index < len(self.panels):
            self.panels[index].toggle_tree()

    def tree_key(self, index: int) -> str:
        """What a lane's open tree is remembered by: its method, and which of its lanes it is."""
        lanes = self._controller.race.lanes
        method = lanes[index].method
        earlier = sum(lane.method == method for lane in lanes[:index])
        return f"{method} {earlier + 1}" if earlier else method

    def _show_trees(self) -> None:
        for panel in self.panels:
            shown = self.tree_key(panel.index) in self.trees and not panel.lane.plain
            if shown != panel.tree_shown:
                panel.set_tree(shown)

    def _tree_toggled(self, index: int, on: bool) -> None:
        key = self.tree_key(index)
        self.trees = self.trees | {key} if on else self.trees - {key}
        self.trees_changed.emit()

    # -- clocks -------------------------------------------------------------------------------------------

    def rest(self, on: bool) -> None:
        """Draw nothing while nobody sees the page (a presentation is before it); afterwards look at the race anew."""
        self._resting = on
        if not on:
            for tick in (self._on_text, self._on_numbers, self._on_plots):
                tick()

    def _on_text(self) -> None:
        if self._resting:
            return
        for panel in self.panels:
            panel.refresh()
        if not self.side.isHidden():
            self.inspector.follow()

    def _on_numbers(self) -> None:
        if self._resting:
            return
        for panel in self.panels:
            panel.refresh_figures()
        self.links.mark_differences(self._controller.race.baseline)

    def _on_plots(self) -> None:
        if self._resting:
            return
        for panel in self.panels:
            panel.refresh_tree()
        if not self.plot_holder.isHidden():
            self.plots.refresh()

    # -- actions -------------------------------------------------------------------------------------------

    def refresh_actions(self) -> None:
        """Let lanes be changed where they can be now."""
        for panel in self.panels:
            panel.set_editable(not self._controller.racing and self._controller.recorded is None)
