"""The legend of token states, drawn with the token view's own strokes."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRect, QSize
from PySide6.QtGui import QPainter
from PySide6.QtWidgets import QSizePolicy, QWidget

from specview.gui.parts import theme
from specview.gui.parts.painted import Painted
from specview.gui.parts.token_paint import TokenStyles
from specview.gui.state.round_words import STATES
from specview.gui.state.view_model import GHOSTS, TokenKind


class Legend(Painted):
    """One line: each state's name in its own look."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._styles = TokenStyles(11)
        self._places: list[tuple[float, float, str]] = []
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.setAccessibleName("Legend: " + "; ".join(f"{kind}: {state.meaning}" for kind, state in STATES.items()))
        theme.signals.changed.connect(self._restyle)

    def _restyle(self) -> None:
        self._styles = TokenStyles(11)
        self.changed()

    def _width(self, kind: TokenKind) -> float:
        return self._styles.measure(kind, kind in GHOSTS) + 0.4 * self._styles.cell

    def _gap(self) -> float:
        return self._styles.cell * 1.6

    def sizeHint(self) -> QSize:
        """Wide enough for all states."""
        width = sum(map(self._width, STATES)) + self._gap() * (len(STATES) - 1)
        return QSize(round(width) + 4, self._styles.line_height)

    def minimumSizeHint(self) -> QSize:
        """It may be cut at the right."""
        return QSize(self._styles.line_height * 4, self._styles.line_height)

    def paint(self, painter: QPainter, region: QRect) -> None:
        """Paint the states that fit."""
        x, self._places = 1.0, []
        for kind, state in STATES.items():
            if x + self._width(kind) > self.width():
                break
            width = self._styles.paint_sample(painter, kind, x, (self.height() - self._styles.line_height) / 2, kind)
            self._places.append((x, x + width, state.meaning))
            x += width + self._gap()

    def tip_at(self, at: QPointF) -> str:
        return next((words for left, right, words in self._places if left <= at.x() <= right), "")
