"""A chart's key: each series' line, band or bar with its name; it takes as many lines as it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from specview.gui.parts import theme
from specview.gui.parts.lane_markers import marker
from specview.gui.state.display_text import visible

MOST_LINES = 3


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """How a series is drawn: its colour; line, dashed line, bar or only points; a lane's shape or -1 for none.

    ramp: colours side by side instead, of a heat map from its least value to its greatest.
    """

    name: str
    colour: str
    line: bool = True
    dashed: bool = False
    bar: bool = False
    shape: int = -1
    ramp: tuple[str, ...] = ()


class ChartKey(QWidget):
    """Paints the entries left to right, in lines."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.entries: tuple[KeyEntry, ...] = ()
        self._places: list[QPointF] = []
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def show_entries(self, entries: Sequence[KeyEntry]) -> None:
        """Show these series."""
        if tuple(entries) != self.entries:
            self.entries = tuple(entries)
            self.setAccessibleName("Key: " + ", ".join(entry.name for entry in entries))
            self.arrange()

    def arrange(self) -> None:
        """Place the entries for the present width and font."""
        metrics = QFontMetricsF(theme.ui_font(10.5))
        x, line, places = 0.0, 0, []
        room = max(self.width(), theme.px(60))
        for entry in self.entries:
            width = theme.px(22) + metrics.horizontalAdvance(visible(entry.name)) + theme.px(12)
            if x and x + width - theme.px(12) > room and line < MOST_LINES - 1:
                x, line = 0.0, line + 1
            places.append(QPointF(x, line * theme.px(16)))
            x += width
        self._places = places
        self.setFixedHeight((line + 1) * theme.px(16) if self.entries else 0)
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(theme.px(60), self.height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.arrange()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        font = theme.ui_font(10.5)
        painter.setFont(font)
        metrics = QFontMetricsF(font)
        height, sample = theme.px(16), theme.px(16)
        baseline = (height + metrics.ascent() - metrics.descent()) / 2
        for entry, place in zip(self.entries, self._places, strict=True):
            colour = QColor(entry.colour)
            middle = place.y() + height / 2
            if entry.ramp:
                step = sample / len(entry.ramp)
                for index, part in enumerate(entry.ramp):
                    painter.fillRect(QRectF(place.x() + index * step, middle - 4, step + 0.5, 8), QColor(part))
            elif entry.bar:
                painter.fillRect(QRectF(place.x() + 2, middle - 4, sample - 4, 8), colour)
            elif entry.line:
                pen = QPen(colour, 2)
                if entry.dashed:
                    pen.setStyle(Qt.PenStyle.DashLine)
                painter.setPen(pen)
                painter.drawLine(QPointF(place.x(), middle), QPointF(place.x() + sample, middle))
            if entry.shape >= 0:
                painter.save()
                painter.translate(QPointF(place.x() + sample / 2, middle))
                painter.scale(theme.px(8), theme.px(8))
                painter.setPen(Qt.PenStyle.NoPen)
                painter.setBrush(colour)
                painter.drawPath(marker(entry.shape))
                painter.restore()
            painter.setPen(QColor(theme.current().ink))
            left = place.x() + theme.px(22)
            name = metrics.elidedText(visible(entry.name), Qt.TextElideMode.ElideRight, max(self.width() - left, 0))
            painter.drawText(QPointF(left, place.y() + baseline), name)
