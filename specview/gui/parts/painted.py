"""Widgets that paint themselves: one base for painter, tool tips and size, and the strokes that they share."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QHelpEvent, QPainter, QPaintEvent, QPen, QTextLayout
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from specview.gui.parts import theme
from specview.gui.state.display_text import tooltip, visible

LEFT = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextSingleLine)
RIGHT = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextSingleLine)
CENTRE = int(Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextSingleLine)
DOTS, DASHES = (1.0, 1.4), (1.5, 2.0)
"""Of a corrected token's line; of an ignored one's box."""


class Painted(QWidget):
    """As high as `high` says and as wide as there is room; `paint` paints it, `tip_at` is its tool tip at a point."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def paint(self, painter: QPainter, region: QRect) -> None:
        """Paint what the region needs."""

    def high(self) -> int:
        """Height, pixels."""
        return theme.px(21)

    def tip_at(self, at: QPointF) -> str | None:
        """The tool tip at a point, '' for none; None leaves it to the widget's own."""
        return None

    def sizeHint(self) -> QSize:
        return QSize(theme.px(220), self.high())

    def minimumSizeHint(self) -> QSize:
        return QSize(10, self.sizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        self.paint(painter, event.rect())

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            words = self.tip_at(QPointF(event.pos()))
            if words is not None:
                QToolTip.showText(event.globalPos(), tooltip(words), self)
                return True
        return super().event(event)

    def changed(self) -> None:
        """Another content: lay out and paint anew."""
        self.updateGeometry()
        self.update()


def ink(tone: str) -> QColor:
    """The colour of words in a tone, or of a token in a state."""
    now = theme.current()
    return QColor({
        "accepted": now.accepted, "good": now.accepted, "rejected": now.rejected, "corrected": now.corrected,
        "bonus": now.bonus, "warning": now.warning, "bad": now.error, "muted": now.muted, "neutral": now.muted,
        "ignored": now.muted, "faint": now.faint, "border": now.border,
        "focus": now.focus,
    }.get(tone, now.ink))  # fmt: skip


def pen(colour: QColor, width: float, dash: tuple[float, ...] = ()) -> QPen:
    """A pen, dashed if it is to be."""
    made = QPen(colour, width)
    if dash:
        made.setDashPattern(list(dash))
    return made


def words(painter: QPainter, at: QPointF, text: str, font: QFont, colour: QColor) -> None:
    """Draw a text, its baseline at a point."""
    painter.setFont(font)
    painter.setPen(colour)
    painter.drawText(at, text)


def words_in(painter: QPainter, area: QRectF, text: str, font: QFont, colour: QColor, flags: int = LEFT) -> None:
    """Draw a text in an area."""
    painter.setFont(font)
    painter.setPen(colour)
    painter.drawText(area, flags, text)


def wrapped(text: str, font: QFont, width: float, most: int = 99) -> list[str]:
    """Break a text into lines that fit a width, `most` of them: the last one is cut where there is more."""
    laid = QTextLayout(visible(" ".join(text.split())), font)
    laid.beginLayout()
    lines: list[str] = []
    while len(lines) < most and (line := laid.createLine()).isValid():
        line.setLineWidth(max(1.0, width))
        start = line.textStart()
        end = start + line.textLength() if len(lines) < most - 1 else len(laid.text())
        lines.append(laid.text()[start:end].rstrip())
    laid.endLayout()
    if lines:
        lines[-1] = QFontMetricsF(font).elidedText(lines[-1], Qt.TextElideMode.ElideRight, width)
    return lines


def box(painter: QPainter, area: QRectF, outline: QPen | None, fill: QColor | None, radius: float = 3) -> None:
    """Draw a box with round corners."""
    painter.setPen(Qt.PenStyle.NoPen if outline is None else outline)
    painter.setBrush(Qt.BrushStyle.NoBrush if fill is None else fill)
    painter.drawRoundedRect(area, radius, radius)


def strike(painter: QPainter, x: float, width: float, baseline: float, metrics: QFontMetricsF, colour: QColor) -> None:
    """Strike a text through."""
    painter.setPen(QPen(colour, 1.2))
    y = baseline - metrics.xHeight() / 2
    painter.drawLine(QPointF(x, y), QPointF(x + width, y))


def baseline(metrics: QFontMetricsF, middle: float) -> float:
    """Where a text's baseline is whose middle is to be at a height."""
    return middle + (metrics.ascent() - metrics.descent()) / 2
