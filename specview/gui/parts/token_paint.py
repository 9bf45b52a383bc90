"""How each token state looks; the token view and the legend draw with the same strokes.

accepted: a tint. corrected: a tint, dotted underline. bonus: a tint, solid underline. plain: bare.
rejected: small, struck through. ignored: small, faint, in a dotted box, not struck. So each state has a
mark of its own besides its colour.
"""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import QLineF, QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter, QPen

from specview.gui.parts import theme


@dataclass(frozen=True, slots=True)
class TokenStyle:
    """Colours and strokes of one state."""

    ink: QColor
    tint: QColor | None = None
    underline: QPen | None = None
    strike: QPen | None = None
    box: QPen | None = None


class TokenStyles:
    """Fonts and strokes of the present theme; make a new one when the theme changes."""

    def __init__(self, size: float = theme.BASE_PX) -> None:
        now = theme.current()
        self.theme = now
        self.font = plain_font(size)
        self.ghost_font = plain_font(size * 0.87)
        self.metrics = QFontMetricsF(self.font)
        self.ghost_metrics = QFontMetricsF(self.ghost_font)
        self.cell = self.metrics.horizontalAdvance("n" * 64) / 64
        self.ghost_cell = self.ghost_metrics.horizontalAdvance("n" * 64) / 64
        self.line_height = round(self.metrics.height() * 1.28)
        self.baseline = (self.line_height - self.metrics.height()) / 2 + self.metrics.ascent()
        stroke = max(1.0, theme.font_scale() * 1.3)
        ink = QColor(now.ink)
        dots = _pen(now.corrected, stroke * 1.15)
        dots.setDashPattern([1.0, 1.4])
        outline = _pen(now.faint, 1.0)
        outline.setDashPattern([1.5, 2.0])
        self.styles: dict[str, TokenStyle] = {
            "accepted": TokenStyle(ink, QColor(now.accepted_tint)),
            "corrected": TokenStyle(ink, QColor(now.corrected_tint), underline=dots),
            "bonus": TokenStyle(ink, QColor(now.bonus_tint), underline=_pen(now.bonus, stroke)),
            "plain": TokenStyle(ink),
            "rejected": TokenStyle(QColor(now.rejected), strike=_pen(now.rejected, max(1.0, stroke * 0.85))),
            "ignored": TokenStyle(QColor(now.faint), box=outline),
            "drafted": TokenStyle(QColor(now.muted), box=outline),
        }
        self.faint = QColor(now.faint)

    def measure(self, text: str, ghost: bool) -> float:
        """Width of a text in pixels."""
        return (self.ghost_metrics if ghost else self.metrics).horizontalAdvance(text)

    def paint_under(self, painter: QPainter, kind: str, x: float, top: float, width: float) -> None:
        """Draw what goes behind a token's text: x, top and width of its part of one line."""
        style = self.styles[kind]
        height = self.line_height
        box = QRectF(x + 0.5, top + 2.0, max(width - 1.0, 2.0), height - 4.0)
        if style.tint is not None:
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(style.tint)
            painter.drawRoundedRect(box, 2.5, 2.5)
        if style.underline is not None:
            painter.setPen(style.underline)
            y = box.bottom() - style.underline.widthF() / 2
            painter.drawLine(QLineF(box.left() + 0.5, y, box.right() - 0.5, y))
        if style.box is not None:
            painter.setPen(style.box)
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(box.adjusted(0.5, 1.5, -0.5, -1.5), 2.5, 2.5)

    def paint_over(self, painter: QPainter, kind: str, x: float, top: float, width: float) -> None:
        """Draw what goes over a token's text."""
        style = self.styles[kind]
        if style.strike is not None:
            painter.setPen(style.strike)
            y = top + self.baseline - self.ghost_metrics.xHeight() * 0.5
            painter.drawLine(QLineF(x + 0.5, y, x + width - 0.5, y))

    def paint_sample(self, painter: QPainter, kind: str, x: float, top: float, text: str) -> float:
        """Draw a word in a state's look, for legends; return its width."""
        ghost = kind in ("rejected", "ignored")
        width = self.measure(text, ghost) + 0.4 * self.cell
        self.paint_under(painter, kind, x, top, width)
        painter.setFont(self.ghost_font if ghost else self.font)
        painter.setPen(self.styles[kind].ink)
        painter.drawText(QPointF(x + 0.2 * self.cell, top + self.baseline), text)
        self.paint_over(painter, kind, x, top, width)
        return width


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
