"""One lane on screen: name, settings, figures, verdict, streaming text, state.

Its figures are those of files/figures.METRICS that `_HEAD` names; a new one is one entry there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PySide6.QtCore import QPointF, QRect, QSize, Qt, Signal
from PySide6.QtGui import QKeyEvent, QPainter, QResizeEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QSizePolicy, QToolButton, QWidget

from specview.decoding.metrics import Metrics
from specview.files.figures import METRICS, times
from specview.gui.lanes.marks import Badge, ChipRow, FigureCell, ProgressLine, StateLine
from specview.gui.lanes.token_view import TokenView
from specview.gui.lanes.tree_view import TreePanel
from specview.gui.lanes.why_line import WhyLine
from specview.gui.link.pace import Later
from specview.gui.parts import layout, theme
from specview.gui.parts.lane_markers import paint_marker
from specview.gui.parts.painted import Painted
from specview.gui.parts.widgets import button
from specview.gui.state import figures, lane_words
from specview.gui.state.display_text import visible
from specview.gui.state.view_model import LaneModel, RaceModel

_SHORT_PANEL = 300
_LOW_PANEL = 215
_HEAD = {
    "decode_tokens_per_s": "888.8", "tokens_per_target_pass": "88.88", "acceptance_rate": "0.88", "speedup": "88.88×",
}  # fmt: skip
"""The figures of a lane's head -> the widest that one is."""
_LOW_HEAD = ("decode_tokens_per_s", "speedup")
"""Those that stay where the panel is narrow and low."""


class Dot(Painted):
    """The lane's colour and shape, as in the plots."""

    def __init__(self, colour_index: int) -> None:
        super().__init__()
        self.colour_index = colour_index
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        return QSize(theme.px(12), theme.px(12))

    def paint(self, painter: QPainter, region: QRect) -> None:
        paint_marker(painter, self.colour_index, QPointF(self.width() / 2, self.height() / 2), theme.px(10))


class LanePanel(QFrame):
    """A lane of the race.

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

    def __init__(self, race: RaceModel, index: int, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "panel")
        self.race = race
        self.index = index
        self._version = -1
        self._settings: Mapping[str, Any] | None = None
        self._editable = True
        self._dot = Dot(index)
        self._name = button(QToolButton, "", "Change this lane", self.edit_requested, kind="flat")
        self._left, self._right, self._remove = (
            button(QToolButton, text, tip, slot, kind="flat", name=tip.partition(" (")[0])
            for text, tip, slot in (
                ("‹", "Move this lane left (Alt+Left)", lambda: self.move_requested.emit(-1)),
                ("›", "Move this lane right (Alt+Right)", lambda: self.move_requested.emit(1)),
                ("×", "Remove this lane (Alt+Delete)", lambda: self.remove_requested.emit()),
            )
        )
        self._chips = ChipRow()
        self._badge = Badge()
        self._cells = {name: FigureCell(METRICS[name].label, widest) for name, widest in _HEAD.items()}
        self._figures = QGridLayout()
        self._columns = 0, False
        self._members: tuple[str, ...] = ()
        self._shares = StateLine()
        self._shares.hide()
        self.why = WhyLine()
        self.why.asked.connect(self.why_requested)
        self._line = ProgressLine()
        self.view = TokenView(self.lane)
        self._state = StateLine()
        self._copy = button(QToolButton, "copy", "Copy this lane's output", self.view.copy_all, kind="caption")
        self.tree: TreePanel | None = None  # made when it is first asked for
        self._tree_button = button(QToolButton, "tree", "Draft tree of each round, live (Ctrl+D)", self.toggle_tree,
                                   kind="caption", name="Live draft tree")  # fmt: skip
        self._tree_button.setCheckable(True)
        self._late = Later(self, 0, self._show_notes)  # once the layout has given the cells their widths
        self._figures.setContentsMargins(0, 0, 0, 0)
        self._figures.setHorizontalSpacing(theme.px(6))
        self._figures.setVerticalSpacing(2)
        self._head = layout.column(
            layout.row(self._dot, self._name, 1, self._left, self._right, self._remove, gap=0), self._chips,
            self._figures, self._shares, self._badge, self.why
        )
        self._foot = layout.row((self._state, 1))
        self._foot.addSpacing(theme.px(6))
        self._foot.addWidget(self._tree_button)
        self._foot.addWidget(self._copy)
        self._whole = layout.column(self._head, self._line, (self.view, 2), self._foot, on=self, gap=0, margins=1)
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
        self._dot.colour_index = index
        self._dot.update()
        if self.view.lane is not self.lane:
            self.view.set_lane(self.lane)
        self._version = -1
        self.refresh()
        self.refresh_figures()
        self.refresh_tree()

    def set_editable(self, editable: bool) -> None:
        """Allow or forbid changes of the lane (not while a race runs)."""
        self._editable = editable
        self._restate_buttons()

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
        self._tree_button.setChecked(shown)
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
        if lane.version == self._version:
            return False
        self._version = lane.version
        self.view.refresh()
        self._refresh_state()
        return True

    def _refresh_state(self) -> None:
        lane = self.lane
        name = visible(lane.name).replace("&", "&&") + ("" if lane.plain else " ▾")
        if name != self._name.text():
            self._name.setText(name)
            self._name.setAccessibleName(lane.name if lane.plain else f"Change lane {lane.name}")
            self._name.setToolTip("The baseline: it has nothing to set" if lane.plain else "Change this lane")
            self.setAccessibleName(f"Lane {lane.name}")
            self._copy.setAccessibleName(f"Copy the output of {lane.name}")
            self.view.name()
        if lane.settings is not self._settings:
            self._settings = lane.settings
            self._chips.set_marks(lane_words.chips(lane.settings))
            self._members = lane_words.members(lane.settings)
            self._arrange()
            self._show_shares(self.race.metrics(lane))
        self._badge.set_mark(lane_words.badge(lane))
        state = lane_words.state(lane)
        self._line.set_progress(lane.state in ("loading", "prefill"), lane.progress)
        self.view.set_placeholder(lane_words.placeholder(lane))
        self._state.set_mark(state)
        for cell in self._cells.values():
            cell.set_faded(lane.stale)
        count = f"{lane.emitted} tokens" if lane.emitted != 1 else "1 token"
        self._state.set_count(count if lane.rounds else "")
        self._copy.setEnabled(bool(lane.rounds))

    def refresh_figures(self) -> None:
        """Show the figures as they stand (about twice a second: text must stay readable)."""
        lane, race = self.lane, self.race
        metrics, told, speedup = race.metrics(lane), lane_words.lossy(lane.settings), race.speedup(lane)
        self.why.show_lane(lane, race)
        self._show_shares(metrics)
        details = figures.details(metrics)
        for name in _HEAD:
            if name == "speedup":  # which says what it is held against
                continue
            figure = METRICS[name]
            value = figures.shown_rate(speedup, metrics) if name == "decode_tokens_per_s" else getattr(metrics, name)
            self._cells[name].set_value(figure.text(value), tip=_joined(figure.tooltip(details.get(name, "")), told))
        figure, cell = METRICS["speedup"], self._cells["speedup"]
        if lane.differs:
            tip = figure.tooltip(f"Not comparable: {lane.differs}.")
            cell.set_value(figure.text(None), label=figure.label, tip=tip)
        elif lane.plain and lane is race.baseline:
            tip = figure.tooltip("This lane is plain decoding itself.")
            cell.set_value(figure.text(1.0 if lane.rounds else None), label=figure.label, tip=tip)
        else:
            predicted = metrics.predicted_speedup_measured_verify
            label = f"{figure.label}, {lane_words.LOSSY}" if told else figure.label
            label = label if speedup is None else f"{label} · {figures.beside(speedup)}"
            label = label if predicted is None else f"{label} · pred. {times(predicted)}"
            cell.set_value(
                figure.text(None if speedup is None else speedup.value), label=label, remark=figures.spread(speedup),
                tip=_joined(figure.tooltip(figures.speedup_details(speedup, metrics)), told),
            )
        self._show_notes(metrics)

    def _show_shares(self, metrics: Metrics) -> None:
        """Show what each member of a combined method drafted."""
        if self._members:
            self._shares.set_mark(lane_words.shares(self._members, metrics))

    def _show_notes(self, metrics: Metrics | None = None) -> None:
        """Show beside the badge what the figures have no room for, and how near the oracle the lane came."""
        if self.index >= len(self.race.lanes):
            return  # the lane has gone, and this panel is about to
        speedup = self._cells["speedup"]
        oracle = lane_words.oracle(metrics or self.race.metrics(self.lane))
        self._badge.set_notes(
            [*oracle, *speedup.left_out()], speedup.accessibleDescription(), leading=bool(oracle)
        )

    # -- shape --------------------------------------------------------------------------------------

    def _restate_buttons(self) -> None:
        plain, movable = self.lane.plain, self._editable and not self.lane.plain
        # In a narrow panel the name needs the room; Alt+Left and Alt+Right still move the lane.
        name_width = self._name.sizeHint().width() + self._dot.sizeHint().width() + theme.px(22)
        roomy = self.width() >= name_width + 3 * theme.px(22) + 2 * theme.px(12)
        self._tree_button.setVisible(not plain)
        for one, shown in (
            (self._name, True), (self._remove, not plain), (self._left, roomy and not plain and self.index > 1),
            (self._right, roomy and not plain and self.index < len(self.race.lanes) - 1),
        ):  # fmt: skip
            one.setEnabled(movable)
            one.setVisible(shown)

    def _restyle(self) -> None:
        side = theme.px(12)
        self._head.setContentsMargins(side, theme.px(7), side - 4, theme.px(8))
        self._head.setSpacing(theme.px(5))
        self.view.setMinimumHeight(theme.px(48))  # or Qt's own least height crushes the figures where the why line shows too
        self._foot.setContentsMargins(side, theme.px(2), theme.px(7), theme.px(3))
        self._name.setFont(theme.ui_font(14, bold=True))
        for small in (self._copy, self._tree_button):
            small.setFixedHeight(theme.px(19))
        for square in (self._left, self._right, self._remove):
            square.setFixedSize(theme.px(22), theme.px(24))
        self._name.setFixedHeight(theme.px(24))  # lanes with and without buttons stay level
        for part in (self._chips, self._badge, self._shares, self._state, *self._cells.values()):
            part.changed()
        self._columns = 0, False
        self._arrange()
        self._restate_buttons()

    def _arrange(self) -> None:
        """Put the figures in one row, or in two columns where the panel is narrow; only some where it is low too."""
        cells, every = list(self._cells.values()), len(self._cells)
        widths = [cell.natural_width() for cell in cells]
        room = self.width() - 2 * theme.px(12)
        columns = every if room >= sum(widths) + (every - 1) * self._figures.horizontalSpacing() else 2
        low = columns == 2 and self.height() < theme.px(_LOW_PANEL)
        if (columns, low) != self._columns:
            self._columns = columns, low
            for cell in cells:
                self._figures.removeWidget(cell)
            shown = [self._cells[name] for name in _LOW_HEAD] if low else cells
            for cell in cells:
                cell.setVisible(cell in shown)
            for place, cell in enumerate(shown):
                self._figures.addWidget(cell, place // columns, place % columns)
            for column in range(every):
                self._figures.setColumnStretch(column, 0)
                self._figures.setColumnMinimumWidth(column, 0)
            for column in range(columns):
                fixed = max(widths[column::columns])
                last = column == columns - 1
                self._figures.setColumnMinimumWidth(column, 0 if last else fixed)
                self._figures.setColumnStretch(column, int(last))
        roomy = self.height() >= theme.px(_SHORT_PANEL)
        self._chips.setVisible(roomy)
        self._shares.setVisible(roomy and bool(self._members))
        self._restate_buttons()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._arrange()
        if event.size().width() != event.oldSize().width():
            self._late.start()

    def sizeHint(self) -> QSize:
        """The same for every lane, so that lanes share the width evenly."""
        return QSize(theme.px(300), theme.px(420))

    def minimumSizeHint(self) -> QSize:
        """Narrow enough for five side by side."""
        return QSize(theme.px(150), theme.px(170))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Move or remove the lane from the keyboard."""
        alt = event.modifiers() == Qt.KeyboardModifier.AltModifier and self._editable and not self.lane.plain
        if alt and event.key() == Qt.Key.Key_Left and self.index > 1:
            self.move_requested.emit(-1)
        elif alt and event.key() == Qt.Key.Key_Right and self.index < len(self.race.lanes) - 1:
            self.move_requested.emit(1)
        elif alt and event.key() == Qt.Key.Key_Delete:
            self.remove_requested.emit()
        else:
            super().keyPressEvent(event)


def _joined(*parts: str) -> str:
    return "\n".join(part for part in parts if part)
