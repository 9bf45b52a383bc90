"""A chart's words above the plot: its title with the formula, and its key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPen, QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from specview.gui.parts import theme
from specview.gui.parts.lane_markers import paint_marker
from specview.gui.parts.painted import Painted, baseline, words
from specview.gui.state.display_text import tooltip, visible

MOST_LINES = 3


class Headline(Painted):
    """A plot's title and formula; where there is no room the formula goes first. A narrow one is no wider than its words."""

    def __init__(self, title: str, formula: str, narrow: bool = False, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.title, self.formula, self._narrow = title, formula, narrow
        if narrow:
            self.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)

    def set_formula(self, formula: str) -> None:
        """Change the words beside the title."""
        if formula != self.formula:
            self.formula = formula
            self.changed()

    def high(self) -> int:
        return theme.px(18)

    def sizeHint(self) -> QSize:
        if not self._narrow:
            return QSize(60, self.high())
        formula = QFontMetricsF(theme.ui_font(10.5)).horizontalAdvance(self.formula)
        return QSize(self.title_width() + math.ceil(formula) + theme.px(8), self.high())

    def minimumSizeHint(self) -> QSize:
        return QSize(self.title_width() if self._narrow else 10, self.high())

    def title_width(self) -> int:
        """The width of the title alone."""
        return math.ceil(QFontMetricsF(theme.ui_font(12, bold=True)).horizontalAdvance(self.title)) + 1

    def paint(self, painter: QPainter, region: QRect) -> None:
        now = theme.current()
        bold, small = theme.ui_font(12, bold=True), theme.ui_font(10.5)
        metrics = QFontMetricsF(bold)
        level = baseline(metrics, self.height() / 2)
        title = metrics.elidedText(self.title, Qt.TextElideMode.ElideRight, self.width())
        words(painter, QPointF(0, level), title, bold, QColor(now.ink))
        left = metrics.horizontalAdvance(title) + theme.px(7)
        if left + QFontMetricsF(small).horizontalAdvance(self.formula) <= self.width():
            words(painter, QPointF(left, level), self.formula, small, QColor(now.muted))


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """How a series is drawn: its colour; line, dashed line, bar or only points; a lane's shape or -1 for none.

    value: its last figure, which stays where there is no room for names. ramp: colours side by side instead, of a heat
    map from its least value to its greatest.
    """

    name: str
    colour: str
    line: bool = True
    dashed: bool = False
    bar: bool = False
    shape: int = -1
    ramp: tuple[str, ...] = ()
    value: str = ""

    @property
    def words(self) -> str:
        """The name with the value."""
        return f"{visible(self.name)} {self.value}".rstrip()

    def sample(self) -> int:
        """Width of what stands before the name, pixels."""
        return theme.px(8 if self.value or not (self.line or self.bar or self.ramp) else 16)

    def paint(self, painter: QPainter, x: float, middle: float) -> None:
        """Paint what stands before the name."""
        colour, wide = QColor(self.colour), self.sample()
        if self.ramp:
            step = wide / len(self.ramp)
            for index, part in enumerate(self.ramp):
                painter.fillRect(QRectF(x + index * step, middle - 4, step + 0.5, 8), QColor(part))
        elif self.bar:
            painter.fillRect(QRectF(x, middle - 4, min(wide, theme.px(12)), 8), colour)
        elif self.line:
            pen = QPen(colour, 2)
            if self.dashed:
                pen.setStyle(Qt.PenStyle.DashLine)
            painter.setPen(pen)
            painter.drawLine(QPointF(x, middle), QPointF(x + wide, middle))
        if self.shape >= 0:
            paint_marker(painter, self.shape, QPointF(x + wide / 2, middle), theme.px(8), colour)


class ChartKey(Painted):
    """Each series' line, band or bar with its name, from left to right, in as many lines as it needs.

    With values (`live`) it keeps to one line, and names go where there is no room for them; left_out says how many entries
    have none even so ("+1" stands there, the tool tip has all).
    """

    def __init__(self, live: bool = False, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.entries: tuple[KeyEntry, ...] = ()
        self._live = live
        self._least, self._room = 10, 10_000
        if live:
            self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self._placed: list[tuple[QPointF, str]] = []
        self.left_out = 0
        self.arrange()

    def show_entries(self, entries: Sequence[KeyEntry]) -> None:
        """Show these series."""
        if tuple(entries) != self.entries:
            self.entries = tuple(entries)
            self.setAccessibleName("Key: " + ", ".join(entry.words for entry in entries))
            self.setToolTip(tooltip("\n".join(entry.words for entry in entries if entry.value)))
            self.arrange()
            self.claim()

    def high(self) -> int:
        return self.maximumHeight()

    def sizeHint(self) -> QSize:
        return QSize(theme.px(60), self.height())

    def minimumSizeHint(self) -> QSize:
        """Of a live key the figures' width: what stands beside it gives way."""
        return QSize(self._least if self._live else 10, self.height())

    def claim(self, room: int | None = None) -> None:
        """Ask for what a live key's figures need, in steps: digits that change move nothing. room: there is no more."""
        self._room = self._room if room is None else room
        step = theme.px(12)
        needed = step * math.ceil(self._across([entry.value for entry in self.entries], theme.px(5)) / step)
        least = max(min(needed, self._room), 0)
        if self._live and least != self._least:
            self._least = least
            self.updateGeometry()

    def _widths(self, texts: Sequence[str]) -> list[float]:
        metrics = QFontMetricsF(theme.ui_font(10.5))
        return [entry.sample() + theme.px(6) + metrics.horizontalAdvance(text)
                for entry, text in zip(self.entries, texts, strict=True)]  # fmt: skip

    def _across(self, texts: Sequence[str], gap: int) -> float:
        return sum(self._widths(texts)) + gap * max(len(texts) - 1, 0)

    def arrange(self) -> None:
        """Place the entries for the present width and font."""
        room, gap, high = max(self.width(), theme.px(60)), theme.px(12), theme.px(16)
        texts = [entry.words for entry in self.entries]
        if self._live and self._across(texts, gap) > room:
            texts = [entry.value for entry in self.entries]
            gap = theme.px(5)
        x, line, self._placed = 0.0, 0, []
        for text, width in zip(texts, self._widths(texts), strict=True):
            if x and x + width > room and line < (0 if self._live else MOST_LINES - 1):
                x, line = 0.0, line + 1
            self._placed.append((QPointF(x, line * high), text))
            x += width + gap
        self._leave_out(texts)
        if self._live and self.width() > x - gap > 0:  # at the right end
            self._placed = [(place + QPointF(self.width() - x + gap, 0), text) for place, text in self._placed]
        self.setFixedHeight((line + 1) * high if self.entries or self._live else 0)
        self.update()

    def _leave_out(self, texts: Sequence[str]) -> None:
        """Count the entries that a live key has no room for, with room for the count itself: a figure is never cut."""
        self.left_out = 0
        if not self._live:
            return
        ends = [place.x() + width for (place, _), width in zip(self._placed, self._widths(texts), strict=True)]
        metrics, shown = QFontMetricsF(theme.ui_font(10.5)), len(ends)
        while shown and ends[shown - 1] + (metrics.horizontalAdvance(f"+{self.left_out}") + theme.px(5) if self.left_out else 0) > self.width() + 1:
            shown -= 1
            self.left_out += 1

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.arrange()

    def paint(self, painter: QPainter, region: QRect) -> None:
        font = theme.ui_font(10.5)
        ink = QColor(theme.current().muted if self._live else theme.current().ink)
        metrics = QFontMetricsF(font)
        shown = len(self.entries) - self.left_out
        if self.left_out:
            more, high = f"+{self.left_out}", theme.px(16)
            words(painter, QPointF(self.width() - metrics.horizontalAdvance(more), baseline(metrics, high / 2)), more, font, ink)
        for entry, (place, text) in zip(self.entries[:shown], self._placed, strict=False):
            middle, left = place.y() + theme.px(16) / 2, place.x() + entry.sample() + theme.px(6)
            if left > self.width():
                break
            entry.paint(painter, place.x(), middle)
            cut = metrics.elidedText(text, Qt.TextElideMode.ElideRight, self.width() - left + 1)
            words(painter, QPointF(left, baseline(metrics, middle)), cut, font, ink)
