"""The legend of token states, drawn with the token view's own strokes."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QSize
from PySide6.QtGui import QHelpEvent, QPainter, QPaintEvent
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from specview.gui.parts import theme
from specview.gui.parts.token_paint import TokenStyles
from specview.gui.state.display_text import tooltip
from specview.gui.state.view_model import TokenKind

ENTRIES: tuple[tuple[TokenKind, str], ...] = (
    ("accepted", "A drafted token that the rule accepted."),
    ("corrected", "The target's token in place of the first rejected draft."),
    ("bonus", "All drafts were accepted: one more token from the last row of the same target pass."),
    ("rejected", "A drafted token that the rule rejected; not part of the output."),
    ("ignored", "A draft after the first rejection: never judged, not part of the output."),
    ("plain", "A target token of a round without a draft."),
)


class Legend(QWidget):
    """One line: each state's name in its own look."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._styles = TokenStyles(11)
        self._places: list[tuple[float, float, str]] = []
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.setAccessibleName("Legend: " + "; ".join(f"{kind}: {words}" for kind, words in ENTRIES))
        theme.signals.changed.connect(self._restyle)

    def _restyle(self) -> None:
        self._styles = TokenStyles(11)
        self.updateGeometry()
        self.update()

    def _gap(self) -> float:
        return self._styles.cell * 1.6

    def sizeHint(self) -> QSize:
        """Wide enough for all states."""
        styles = self._styles
        width = sum(
            styles.measure(kind, kind in ("rejected", "ignored")) + 0.4 * styles.cell for kind, _ in ENTRIES
        )
        return QSize(round(width + self._gap() * (len(ENTRIES) - 1)) + 4, styles.line_height)

    def minimumSizeHint(self) -> QSize:
        """It may be cut at the right."""
        return QSize(self._styles.line_height * 4, self._styles.line_height)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paint the states that fit."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        top = (self.height() - self._styles.line_height) / 2
        x = 1.0
        self._places = []
        for kind, words in ENTRIES:
            ghost = kind in ("rejected", "ignored")
            if x + self._styles.measure(kind, ghost) + 0.4 * self._styles.cell > self.width():
                break
            width = self._styles.paint_sample(painter, kind, x, top, kind)
            self._places.append((x, x + width, words))
            x += width + self._gap()

    def event(self, event: QEvent) -> bool:
        """Say what a state means."""
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            x = event.pos().x()
            words = next((words for left, right, words in self._places if left <= x <= right), "")
            QToolTip.showText(event.globalPos(), tooltip(words), self)
            return True
        return super().event(event)
