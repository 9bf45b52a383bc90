"""How each token state looks; the token view and the legend draw with the same strokes.

accepted: a tint. corrected: a tint, dotted underline. bonus: a tint, solid underline. plain: bare.
rejected: small, struck through. ignored: small, faint, in a dotted box, not struck. drafted, not judged yet: a dashed
outline. given, before the output: muted, a thin underline. Drafts that are only counted: a small raised number. So each
state has a mark of its own besides its colour.
"""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QLineF, QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontInfo, QFontMetricsF, QPainter, QPen

from specview.gui.parts import theme

TOKEN_PX = 14
"""Size of a lane's text, pixels before the user's scale."""
COUNT_SHARE = 0.7
"""Size of a count ("+2"), of the text's."""
AIR = 0.5
"""What the space between two words has besides, in cells."""


@dataclass(frozen=True, slots=True)
class TokenStyle:
    """Colours and strokes of one state."""

    ink: QColor
    tint: QColor | None = None
    underline: QPen | None = None
    strike: QPen | None = None
    box: QPen | None = None


class TokenStyles:
    """Fonts and strokes of the present theme for a size of text; make a new one when the theme changes."""

    def __init__(self, size: float = TOKEN_PX) -> None:
        now = theme.current()
        self.theme = now
        self.font, self.ghost_font, self.count_font = (plain_font(size * share) for share in (1, 0.87, COUNT_SHARE))
        self.metrics, self.ghost_metrics, self.count_metrics = (
            QFontMetricsF(font) for font in (self.font, self.ghost_font, self.count_font)
        )
        self.cell, self.ghost_cell, self.count_cell = (
            metrics.horizontalAdvance("n" * 64) / 64 for metrics in (self.metrics, self.ghost_metrics, self.count_metrics)
        )
        self.airy_font = QFont(self.font)
        self.airy_font.setWordSpacing(AIR * self.cell)
        pixels = QFontInfo(self.font).pixelSize()
        self.line_height = round(max(self.metrics.height() * 1.36, pixels * 1.8))
        self.baseline = (self.line_height - self.metrics.height()) / 2 + self.metrics.ascent()
        self.count_rise = self.metrics.ascent() - self.count_metrics.ascent()
        self.pad = pixels * 0.2
        """How far a tint reaches past its word where there is room."""
        self._chip = round(max(self.metrics.height() * 1.1, pixels * 1.4))
        self._round = pixels * 0.24
        stroke = max(1.0, pixels * 0.1)
        ink = QColor(now.ink)
        dots = _pen(now.corrected, stroke * 1.15)
        dots.setDashPattern([1.0, 1.4])
        outline, dashes = _pen(now.faint, 1.0), _pen(now.muted, max(1.0, stroke * 0.8))
        outline.setDashPattern([1.5, 2.0])
        dashes.setDashPattern([4.0, 3.0])
        self.styles: dict[str, TokenStyle] = {
            "accepted": TokenStyle(ink, QColor(now.accepted_tint)),
            "corrected": TokenStyle(ink, QColor(now.corrected_tint), underline=dots),
            "bonus": TokenStyle(ink, QColor(now.bonus_tint), underline=_pen(now.bonus, stroke)),
            "plain": TokenStyle(ink),
            "given": TokenStyle(QColor(now.muted), underline=_pen(now.faint, 1.0)),
            "rejected": TokenStyle(QColor(now.rejected), strike=_pen(now.rejected, max(1.0, stroke * 0.85))),
            "ignored": TokenStyle(QColor(now.faint), box=outline),
            "drafted": TokenStyle(ink, box=dashes),
        }
        self.faint = QColor(now.faint)

    def measure(self, text: str, ghost: bool) -> float:
        """Width of a text in pixels."""
        return (self.ghost_metrics if ghost else self.metrics).horizontalAdvance(text)

    def chip(self, x: float, top: float, width: float) -> QRectF:
        """The box of a token whose part of a line begins at x."""
        return QRectF(x, top + (self.line_height - self._chip) / 2, max(width, 2.0), self._chip)

    def paint_under(self, painter: QPainter, kind: str, x: float, top: float, width: float) -> None:
        """Draw what goes behind a token's text: x, top and width of its part of one line."""
        style, box = self.styles[kind], self.chip(x, top, width)
        if style.tint is not None:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(style.tint)
            painter.drawRoundedRect(box, self._round, self._round)
        if style.underline is not None:
            painter.setPen(style.underline)
            y, inset = box.bottom() - style.underline.widthF() / 2, self._round * 0.4
            painter.drawLine(QLineF(box.left() + inset, y, box.right() - inset, y))
        if style.box is not None:
            painter.setPen(style.box)
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(box.adjusted(0.5, 0.5, -0.5, -0.5), self._round, self._round)

    def paint_over(self, painter: QPainter, kind: str, x: float, top: float, width: float) -> None:
        """Draw what goes over a token's text."""
        style = self.styles[kind]
        if style.strike is not None:
            painter.setPen(style.strike)
            y = top + self.baseline - self.ghost_metrics.xHeight() * 0.5
            painter.drawLine(QLineF(x + 0.5, y, x + width - 0.5, y))

    def paint_sample(self, painter: QPainter, kind: str, x: float, top: float, text: str) -> float:
        """Draw a word in a state's look; return its width."""
        ghost = kind in ("rejected", "ignored")
        width = self.measure(text, ghost) + 2 * self.pad
        self.paint_under(painter, kind, x, top, width)
        painter.setFont(self.ghost_font if ghost else self.font)
        painter.setPen(self.styles[kind].ink)
        painter.drawText(QPointF(x + self.pad, top + self.baseline), text)
        self.paint_over(painter, kind, x, top, width)
        return width

    def paint_count(self, painter: QPainter, x: float, top: float, text: str) -> None:
        """Draw how many drafts were thrown away."""
        painter.setFont(self.count_font)
        painter.setPen(self.styles["rejected"].ink)
        painter.drawText(QPointF(x, top + self.baseline - self.count_rise), text)


def _pen(colour: str, width: float) -> QPen:
    pen = QPen(QColor(colour), width)
    pen.setCapStyle(Qt.PenCapStyle.FlatCap)
    return pen


def plain_font(size: float) -> QFont:
    """Return the fixed-width font without ligatures: '->' is two characters, often two tokens."""
    font = theme.mono_font(size)
    for tag in ("liga", "calt", "clig", "dlig"):
        font.setFeature(QFont.Tag(tag), 0)
    return font
