"""The legend: what the colours of tokens mean, in words; a press switches a state's look on and off."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QFontMetricsF, QPainter, QPaintEvent
from PySide6.QtWidgets import QAbstractButton, QSizePolicy, QWidget

from specview.gui.parts import layout, painted, theme
from specview.gui.parts.token_paint import TokenStyles
from specview.gui.parts.widgets import set_tip
from specview.gui.state.round_words import STATES
from specview.gui.state.view_model import TokenKind

TOLD: dict[TokenKind, str] = {
    "accepted": "accepted: the draft was right", "corrected": "corrected: the target's own token",
    "bonus": "bonus: one more for free", "rejected": "drafts thrown away",
}  # fmt: skip
"""The states in a few words each, for who sees them for the first time."""
COUNT = "+2"
LEGEND_PX = 12


class StateChip(QAbstractButton):
    """One state in its own look; pressed in while it is shown so."""

    def __init__(self, kind: TokenKind, words: str, size: float) -> None:
        super().__init__()
        self.kind, self._words, self._size = kind, words, size
        self.setText(f"{COUNT} {words}" if kind == "rejected" else words)
        self.setAccessibleName(f"{kind} tokens")
        self.setCheckable(True)
        self.setChecked(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
        self.toggled.connect(self._tell)
        theme.signals.changed.connect(self._restyle)
        self._restyle()
        self._tell(True)

    def set_size(self, size: float) -> None:
        """Another size of the words, pixels before the user's scale."""
        self._size = size
        self._restyle()

    def _restyle(self) -> None:
        self._font, self._styles = theme.ui_font(self._size), TokenStyles(self._size)
        self._metrics = QFontMetricsF(self._font)
        self.updateGeometry()
        self.update()

    def _tell(self, on: bool) -> None:
        if self.kind == "rejected":
            meaning = "Drafts that the target rejected, or that were never judged after a rejection: how many of a round, before the token in their place."
            state = "They are shown: press to hide them" if on else "They are hidden: press to show them"
        else:
            meaning = STATES[self.kind].meaning
            state = "It is coloured: press to show it as plain text" if on else "It is shown as plain text: press to colour it"
        set_tip(self, f"{meaning}\n{state}")

    def _count_width(self) -> float:
        return self._styles.count_metrics.horizontalAdvance(COUNT) + 0.4 * self._styles.count_cell if self.kind == "rejected" else 0.0

    def sizeHint(self) -> QSize:
        """All words."""
        wide = self._count_width() + self._metrics.horizontalAdvance(self._words) + 2 * self._styles.pad
        return QSize(round(wide) + 7, self._styles.line_height + 2)

    def minimumSizeHint(self) -> QSize:
        """A few letters."""
        wide = self._count_width() + self._metrics.horizontalAdvance("acc…") + 2 * self._styles.pad
        return QSize(min(round(wide) + 7, self.sizeHint().width()), self.sizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, styles, on = QPainter(self), self._styles, self.isChecked()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        top, left, count = (self.height() - styles.line_height) / 2, 2.0, self._count_width()
        box = styles.chip(left, top, self.width() - 2 * left)
        if on and self.kind != "rejected":
            styles.paint_under(painter, self.kind, left, top, self.width() - 2 * left)
        elif not on:
            painted.box(painter, box.adjusted(0.5, 0.5, -0.5, -0.5), painted.pen(painted.ink("border"), 1), None)
        if count:
            ink = styles.styles["rejected"].ink if on else painted.ink("faint")
            at = QPointF(left + styles.pad, top + styles.baseline - styles.count_rise)
            painted.words(painter, at, COUNT, styles.count_font, ink)
        room = self.width() - 2 * left - 2 * styles.pad - count
        words = self._metrics.elidedText(self._words, Qt.TextElideMode.ElideRight, room + 0.5)
        ink = painted.ink("faint") if not on else painted.ink("ink" if self.kind != "rejected" else "muted")
        painted.words_in(painter, QRectF(left + styles.pad + count, top, room + 1, styles.line_height), words, self._font, ink)
        if not on:
            painted.strike(painter, box.left() + styles.pad, box.width() - 2 * styles.pad,
                           painted.baseline(self._metrics, self.height() / 2), self._metrics, painted.ink("faint"))  # fmt: skip
        if self.hasFocus():
            painted.box(painter, box.adjusted(-1.5, -1.5, 1.5, 1.5), painted.pen(painted.ink("focus"), 1.6), None, 4)


class Legend(QWidget):
    """The states of tokens in one line, each a button; switched(state, on): one was pressed.

    told: each with its meaning in a few words; size: pixels of the words before the user's scale.
    """

    switched = Signal(str, bool)

    def __init__(self, parent: QWidget | None = None, *, told: bool = False, size: float = LEGEND_PX) -> None:
        super().__init__(parent)
        self.setAccessibleName("Legend: what the colours of tokens mean")
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        names: tuple[TokenKind, ...] = ("accepted", "corrected", "bonus", "rejected")
        self.chips = {kind: StateChip(kind, TOLD[kind] if told else kind, size) for kind in names}
        layout.row(1, *self.chips.values(), on=self, gap=4)
        for kind, chip in self.chips.items():
            chip.clicked.connect(lambda on, kind=kind: self.switched.emit(kind, on))

    def set_off(self, off: frozenset[str]) -> None:
        """Show which states are switched off."""
        for kind, chip in self.chips.items():
            chip.setChecked(kind not in off)

    def set_size(self, size: float) -> None:
        """Another size of the words, pixels before the user's scale."""
        for chip in self.chips.values():
            chip.set_size(size)
