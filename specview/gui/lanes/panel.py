"""One lane on screen: its name, one big number, one line of figures, a bar, then the streaming text.

Its words are those of state/lane_words; a figure more is one entry there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFontMetricsF, QKeyEvent, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QFrame, QToolButton, QWidget

from specview.decoding.metrics import Metrics
from specview.gui.lanes.marks import BigNumber, Dot, FigureLine, LaneBar, Notice, StateLine, lane_colour
from specview.gui.lanes.token_view import TokenView
from specview.gui.lanes.tree_view import TreePanel
from specview.gui.lanes.why_line import WhyLine
from specview.gui.parts import layout, theme
from specview.gui.parts.painted import box, pen
from specview.gui.parts.widgets import button, menu_button, set_tip
from specview.gui.state import lane_words
from specview.gui.state.display_text import visible
from specview.gui.state.view_model import LaneModel, RaceModel

LOW_PX, NARROW_PX, WIDE_PX = 230, 330, 340
"""Of a panel: below the first height its head takes less, below the width two lines; from the last on there is room for more."""
_NUMBER, _LOW_NUMBER = 32, 19


class LanePanel(QFrame):
    """A lane of the race; scale: its sizes, times the theme's; number_px: its big number's.

    Signals: edit_requested (the name was pressed), remove_requested, move_requested(-1 or 1), token_selected (in
    the text or in the tree), token_chosen (clicked, or Enter), tree_toggled: the live draft tree was opened or closed here.
    """

    edit_requested = Signal()
    remove_requested = Signal()
    move_requested = Signal(int)
    token_selected = Signal(int, int)
    token_chosen = Signal(int, int)
    tree_toggled = Signal(bool)
    why_requested = Signal()

    def __init__(self, race: RaceModel, index: int, parent: QWidget | None = None, *, scale: float = 1.0, number_px: float = _NUMBER) -> None:
        super().__init__(parent)
        self.setProperty("kind", "panel")
        self.race = race
        self.index = index
        self.scale, self.number_px = scale, number_px
        self.winner = False
        self._shown: tuple[int, int] = (-1, -1)
        self._editable = True
        self._named: tuple[str, Mapping[str, Any]] | None = None
        self._members: tuple[str, ...] = ()
        self._dot = Dot(index)
        self._name = button(QToolButton, "", "", self.edit_requested, kind="flat")
        self._more, self.menu = menu_button("⋯", "Change, move or remove this lane; copy its output; its draft tree")
        self._more.setProperty("kind", "flat")
        self.menu.aboutToShow.connect(self._fill_menu)
        self.number = BigNumber(index)
        self.line = FigureLine()
        self.bar = LaneBar(index)
        self.why = WhyLine(scale)
        self.why.asked.connect(self.why_requested)
        self.view = TokenView(self.lane)
        self.shares = StateLine()
        self.notice = Notice()
        self.tree: TreePanel | None = None  # made when it is first asked for
        for part in (self._dot, self.number, self.line, self.bar, self.shares, self.notice):
            part.scale = scale
        self._title = layout.row(self._dot, self._name, self._more, (self.number, 1), gap=0)
        self._head = layout.column(self._title, self.line, self.bar, self.why)
        self._foot = layout.column(self.shares, self.notice, gap=2)
        self._whole = layout.column(self._head, (self.view, 2), self._foot, on=self, gap=0, margins=1)
        self.view.token_selected.connect(self.token_selected)
        self.view.token_chosen.connect(self.token_chosen)
        self.view.token_selected.connect(self._pin_tree)
        theme.signals.changed.connect(self._restyle)
        self._restyle()
        self.refresh()
        self.refresh_figures()

    # -- what is shown ----------------------------------------------------------------------------

    @property
    def lane(self) -> LaneModel:
        """The lane shown."""
        return self.race.lanes[self.index]

    def set_index(self, index: int) -> None:
        """Show another lane of the race (after lanes moved or changed)."""
        self.index = index
        for part in (self._dot, self.number, self.bar):
            part.colour_index = index
            part.update()
        if self.view.lane is not self.lane:
            self.view.set_lane(self.lane)
        self._shown = -1, -1
        self.refresh()
        self.refresh_figures()
        self.refresh_tree()

    def set_editable(self, editable: bool) -> None:
        """Allow or forbid changes of the lane (not while a race runs)."""
        self._editable = editable
        self._name.setEnabled(self._movable)

    @property
    def _movable(self) -> bool:
        return self._editable and not self.lane.plain

    # -- the draft tree ------------------------------------------------------------------------------

    @property
    def tree_shown(self) -> bool:
        """Whether the live draft tree is open."""
        return self.tree is not None and not self.tree.isHidden()

    def set_tree(self, shown: bool) -> None:
        """Open or close the live draft tree beneath the text; a plain lane has none."""
        shown = shown and not self.lane.plain
        if shown and self.tree is None:
            self.tree = TreePanel()
            self._whole.insertWidget(self._whole.indexOf(self.view) + 1, self.tree, 3)
            self.tree.node_selected.connect(self.token_selected)
            self.setTabOrder(self.view, self.tree.view)
            self.setTabOrder(self.tree.view, self.tree.size_button)
            self.setTabOrder(self.tree.size_button, self.tree.live)
        if self.tree is not None:
            self.tree.setVisible(shown)
        self.refresh_tree()

    def toggle_tree(self) -> None:
        """Open the live draft tree, or close it."""
        if not self.lane.plain:
            self.set_tree(not self.tree_shown)
            self.tree_toggled.emit(self.tree_shown)

    def refresh_tree(self) -> bool:
        """Show the newest round's tree (at most 10 times a second); True when the picture changed."""
        return self.tree is not None and self.tree_shown and self.tree.follow(self.lane, self._one_row_s)

    def _pin_tree(self, round_index: int, token_index: int) -> None:
        if self.tree is not None and self.tree_shown:
            self.tree.pin(self.lane, round_index, token_index, self._one_row_s)

    def _one_row_s(self) -> float | None:
        """What a one-row pass takes here: in the plain lane, else in this lane's own rounds."""
        plain = self.race.baseline
        own = plain.table.plain_step_s() if plain is not None else None
        return own if own is not None else self.lane.table.plain_step_s()

    def refresh(self) -> bool:
        """Show new tokens and the lane's state (about 30 times a second); True when anything changed."""
        lane = self.lane
        if self.view.lane is not lane:
            self.view.set_lane(lane)
        if (lane.generation, lane.version) == self._shown:
            return False
        if lane.generation != self._shown[0]:
            self.line.reset()
        self._shown = lane.generation, lane.version
        self.view.refresh()
        self._refresh_state()
        return True

    def _refresh_state(self) -> None:
        lane = self.lane
        if self._named != (lane.name, lane.settings):
            self._named = lane.name, lane.settings
            name = lane_words.title(lane)
            self._name.setAccessibleName(name)
            words = "The baseline: it has nothing to set." if lane.plain else "Press to change this lane."
            set_tip(self._name, f"{lane.name}\n{lane_words.about(lane.settings)}\n{words}")
            self._name.setEnabled(self._movable)
            self._more.setAccessibleName(f"More of {name}")
            self.setAccessibleName(f"Lane {lane.name}")
            self.view.name()
            self._members = lane_words.members(lane.settings)
            self._arrange()
            self._show_members(self.race.metrics(lane))
        self.bar.set_progress(lane_words.progress(lane)[0])
        self.view.set_placeholder(lane_words.placeholder(lane))
        self.notice.set_mark(lane_words.notice(lane))

    def refresh_figures(self) -> None:
        """Show the figures as they stand (about twice a second: text must stay readable)."""
        if self.index >= len(self.race.lanes):
            return  # the lane has gone, and this panel is about to
        lane, race = self.lane, self.race
        metrics = race.metrics(lane)
        self.number.set_shown(lane_words.headline(lane, race, metrics))
        self.line.set_pieces(lane_words.line(lane, race, metrics), faded=lane.stale)
        self.bar.set_words(lane_words.progress(lane)[1])
        self.why.show_lane(lane, race)
        self._show_members(metrics)
        won = lane_words.winner(race) is lane and not lane.stale
        if won != self.winner:
            self.winner = won
            self.setAccessibleDescription("The fastest lane" if won else "")
            self.update()

    def _show_members(self, metrics: Metrics) -> None:
        """Show what each member of a combined method drafted."""
        if self._members:
            self.shares.set_mark(lane_words.shares(self._members, metrics))

    # -- the menu ------------------------------------------------------------------------------------

    def _fill_menu(self) -> None:
        """What can be done with the lane, now; keys that work without the menu stand beside it."""
        menu, lane, last = self.menu, self.lane, len(self.race.lanes) - 1
        menu.clear()
        if not lane.plain:
            for text, able, slot in (
                ("Change…", True, self.edit_requested.emit),
                ("Move left\tAlt+Left", self.index > 1, lambda: self.move_requested.emit(-1)),
                ("Move right\tAlt+Right", self.index < last, lambda: self.move_requested.emit(1)),
                ("Remove\tAlt+Delete", True, self.remove_requested.emit),
            ):
                action = menu.addAction(text)
                action.setEnabled(able and self._movable)
                action.triggered.connect(lambda _=False, slot=slot: slot())
            menu.addSeparator()
        copy = menu.addAction("Copy output", self.view.copy_all)
        copy.setEnabled(bool(lane.rounds))
        menu.addAction("Command for a server…", self._show_command).setEnabled(bool(lane.settings))
        if not lane.plain:
            tree = menu.addAction("Live draft tree\tCtrl+D", self.toggle_tree)
            tree.setCheckable(True)
            tree.setChecked(self.tree_shown)
        if not self.why.isHidden():
            menu.addAction("Why is it slower?", self.why_requested.emit)

    def _show_command(self) -> None:
        # Much is read for it: not before it is asked for.
        from specview.gui.parts.serve_dialog import ServeDialog

        ServeDialog(self.lane.name, self.lane.settings, self.window()).open()

    # -- shape --------------------------------------------------------------------------------------

    def _px(self, size: float) -> int:
        return theme.px(size * self.scale)

    def _restyle(self) -> None:
        side = self._px(14)
        self._foot.setContentsMargins(side, 0, side, 0)
        self._more.setFixedSize(self._px(24), self._px(22))
        self.view.setMinimumHeight(theme.px(48))  # or Qt's own least height crushes the figures where the why line shows too
        self.why.fit()
        for part in (self._dot, self.number, self.line, self.bar, self.shares, self.notice):
            part.changed()
        self._arrange()

    def _arrange(self) -> None:
        """Less of a head in a low panel, its line in two where it is narrow; the name takes what the number leaves."""
        low = self.height() < self._px(LOW_PX)
        top, gap, end = (3, 2, 3) if low else (5, 3, 5)
        narrow = self.width() < self._px(NARROW_PX)
        side = self._px(10 if narrow else 14)
        self._head.setContentsMargins(side, self._px(top), side, self._px(end))
        self._head.setSpacing(self._px(gap))
        self.number.size_px = _LOW_NUMBER if low else self.number_px * (0.75 if narrow else 1)  # or names such as prompt lookup are cut
        self.number.changed()
        self.line.set_rows(2 if narrow and not low else 1)
        room = self.width() - 2 - 2 * side - self._dot.sizeHint().width() - self._more.width() - self.number.least_width()
        room -= 2 * theme.px(5) + 7  # of the button's own
        name = visible(self._name.accessibleName())
        for size in (13, 12, 11) if narrow else (14, 13, 12):  # the name is whole before it is large
            metrics = QFontMetricsF(font := theme.ui_font(size * self.scale, bold=True))
            if metrics.horizontalAdvance(name) <= room:
                break
        self._name.setFont(font)
        shown = metrics.elidedText(name, Qt.TextElideMode.ElideRight, max(room, self._px(24)))
        self._name.setText(shown.replace("&", "&&"))
        self._name.setFixedWidth(round(metrics.horizontalAdvance(shown)) + 2 * theme.px(5) + 6)
        self.shares.setVisible(bool(self._members) and not low and self.width() >= self._px(WIDE_PX))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Besides its frame a line under the head, and round the fastest lane an edge in its colour."""
        super().paintEvent(event)
        painter, now = QPainter(self), theme.current()
        top = self._head.geometry().bottom() + 1
        painter.fillRect(1, top - 1, self.width() - 2, 1, QColor(now.border))
        if self.winner:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            box(painter, QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5), pen(lane_colour(self.index), 1.4), None, 7)

    def sizeHint(self) -> QSize:
        """The same for every lane, so that lanes share the width evenly."""
        return QSize(self._px(300), self._px(420))

    def minimumSizeHint(self) -> QSize:
        """Narrow enough for five side by side."""
        return QSize(self._px(150), self._px(170))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Move or remove the lane from the keyboard."""
        alt = event.modifiers() == Qt.KeyboardModifier.AltModifier and self._movable
        if alt and event.key() == Qt.Key.Key_Left and self.index > 1:
            self.move_requested.emit(-1)
        elif alt and event.key() == Qt.Key.Key_Right and self.index < len(self.race.lanes) - 1:
            self.move_requested.emit(1)
        elif alt and event.key() == Qt.Key.Key_Delete:
            self.remove_requested.emit()
        else:
            super().keyPressEvent(event)
