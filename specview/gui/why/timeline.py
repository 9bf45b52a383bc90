"""A timeline of rounds: draft, verify and other as bars in rows of their own on a time axis; a click picks a round."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from PySide6.QtCore import QPointF, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFontMetricsF, QKeyEvent, QMouseEvent, QPainter, QPen, QResizeEvent
from PySide6.QtWidgets import QFrame, QScrollBar, QSizePolicy, QToolButton, QWidget

from specview.decoding.details import RoundSpan
from specview.files.figures import milliseconds
from specview.gui.parts import layout, theme
from specview.gui.parts.chart_key import Headline
from specview.gui.parts.painted import Painted, baseline, ink
from specview.gui.parts.widgets import ElidedLabel, button
from specview.gui.state.display_text import tooltip

ROWS = ("draft", "verify", "other")
ROUNDS_AT_FIRST = 40
MOST_ROUNDS = 400
_SCALE = 1000
"""Steps of the scroll bar in a second."""


def span_words(span: RoundSpan) -> str:
    """One round in words."""
    drafted = f"{span.accepted} of {span.k} drafted tokens accepted" if span.k else "no draft"
    return (
        f"round {span.index}: {milliseconds(span.seconds)} from {span.start_s:.3f} s (draft {milliseconds(span.draft_s)}, verify "
        f"{milliseconds(span.verify_s)}, other {milliseconds(span.other_s)}); {drafted}, {span.emitted} emitted"
    )


class _Bars(Painted):
    """The bars of the rounds within [start_s, start_s + length_s]."""

    picked = Signal(int)

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.spans: Sequence[RoundSpan] = ()
        self.starts: list[float] = []
        self.start_s, self.length_s = 0.0, 1.0
        self.selected = -1
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Expanding)
        self.setAccessibleName("Timeline of rounds; Left and Right choose a round")

    def high(self) -> int:
        return theme.px(110)

    def minimumSizeHint(self) -> QSize:
        return QSize(theme.px(120), theme.px(84))

    def tip_at(self, at: QPointF) -> str:
        place = self.round_at(at.x())
        return span_words(self.spans[place]) if place >= 0 else ""

    def _left(self) -> float:
        metrics = QFontMetricsF(theme.ui_font(10.5))
        return max(metrics.horizontalAdvance(name) for name in (*ROWS, "tokens")) + theme.px(8)

    def _x(self, seconds: float) -> float:
        left = self._left()
        return left + (seconds - self.start_s) / self.length_s * (self.width() - left)

    def round_at(self, x: float) -> int:
        """The place of the round at a pixel, -1 for none."""
        left = self._left()
        if not self.spans or x < left:
            return -1
        at = self.start_s + (x - left) / max(1.0, self.width() - left) * self.length_s
        place = bisect_right(self.starts, at) - 1
        return place if place >= 0 and at <= self.spans[place].start_s + self.spans[place].seconds else -1

    def paint(self, painter: QPainter, region: QRect) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        focus, font = QColor(theme.current().focus), theme.ui_font(10.5)
        painter.setFont(font)
        metrics = QFontMetricsF(font)
        left, line = self._left(), metrics.height()
        bottom = self.height() - line - theme.px(4)
        row = (bottom - line) / len(ROWS)
        painter.setPen(ink("muted"))
        painter.drawText(QPointF(0, metrics.ascent()), "tokens")
        for place, name in enumerate(ROWS):
            painter.drawText(QPointF(0, baseline(metrics, line + row * (place + 0.5))), name)
        self._paint_axis(painter, metrics, left, bottom)
        painter.setClipRect(QRectF(left, 0, self.width() - left, self.height()))
        for place in range(max(0, bisect_right(self.starts, self.start_s) - 1), len(self.spans)):
            span = self.spans[place]
            if span.start_s > self.start_s + self.length_s:
                break
            x0, x1 = self._x(span.start_s), self._x(span.start_s + span.seconds)
            if place == self.selected:
                painter.fillRect(QRectF(x0, 0, max(2.0, x1 - x0), bottom), ink("border"))
                painter.setPen(QPen(focus, 1.5))
                painter.drawRect(QRectF(x0, 0.5, max(2.0, x1 - x0), bottom - 1))
            self._paint_phases(painter, span, line, row)
            text = str(span.emitted)
            if metrics.horizontalAdvance(text) + 2 <= x1 - x0:
                painter.setPen(ink("accepted" if span.accepted else "muted"))
                painter.drawText(QPointF((x0 + x1 - metrics.horizontalAdvance(text)) / 2, metrics.ascent()), text)
        if self.hasFocus():
            painter.setClipping(False)
            painter.setPen(QPen(focus, 1))
            painter.drawRect(self.rect().adjusted(0, 0, -1, -1))

    def _paint_phases(self, painter: QPainter, span: RoundSpan, top: float, row: float) -> None:
        at = span.start_s
        for place, seconds in enumerate((span.draft_s, span.verify_s, span.other_s)):
            x0, x1 = self._x(at), self._x(at + seconds)
            at += seconds
            if seconds > 0:
                wide = x1 - x0 - (1 if x1 - x0 > 4 else 0)  # so that rounds that follow at once can be told apart
                bar = QRectF(x0, top + place * row + row * 0.14, max(1.0, wide), row * 0.72)
                painter.fillRect(bar, QColor(theme.current().phases[place]))

    def _paint_axis(self, painter: QPainter, metrics: QFontMetricsF, left: float, bottom: float) -> None:
        painter.setPen(ink("border"))
        painter.drawLine(QPointF(left, bottom), QPointF(self.width(), bottom))
        step = _nice(self.length_s / max(2.0, (self.width() - left) / theme.px(90)))
        digits = max(0, len(f"{step:.6f}".rstrip("0").partition(".")[2]))
        edge = 0.0
        for count in range(int(self.start_s / step), int((self.start_s + self.length_s) / step) + 1):
            x, text = self._x(count * step), f"{count * step:.{digits}f} s"
            wide = metrics.horizontalAdvance(text)
            if x < left or x - wide / 2 < edge or x + wide / 2 > self.width():
                continue
            painter.setPen(ink("border"))
            painter.drawLine(QPointF(x, bottom), QPointF(x, bottom + 3))
            painter.setPen(ink("muted"))
            painter.drawText(QPointF(x - wide / 2, bottom + theme.px(3) + metrics.ascent()), text)
            edge = x + wide / 2 + theme.px(6)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        place = self.round_at(event.position().x())
        if event.button() == Qt.MouseButton.LeftButton and place >= 0:
            self.picked.emit(place)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        last = len(self.spans) - 1
        steps = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1}
        key = Qt.Key(event.key())
        if key in steps and last >= 0:
            self.picked.emit(min(max(self.selected + steps[key], 0), last))
        elif key == Qt.Key.Key_Home and last >= 0:
            self.picked.emit(0)
        elif key == Qt.Key.Key_End and last >= 0:
            self.picked.emit(last)
        else:
            super().keyPressEvent(event)


class RoundTimeline(QFrame):
    """The bars with a title, a scroll bar over the run and buttons for the scale; `picked(round)` on a click or a key.

    It follows the newest round while it stands at the end.
    """

    picked = Signal(int)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "panel")
        self.bars = _Bars(self)
        self.along = QScrollBar(Qt.Orientation.Horizontal)
        self.along.setRange(0, 0)
        self.along.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.words = ElidedLabel("", "small")
        self.words.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self._shown = ROUNDS_AT_FIRST
        self._follow = True
        headline = Headline("Timeline of rounds", "seconds of the lane's clock")
        headline.setToolTip(tooltip("Each round's draft, target pass and rest on the lane's own clock, which starts at the "
                                    "end of prefill. Above: the tokens that the round emitted."))  # fmt: skip
        self.wider, self.closer = (
            button(QToolButton, text, tip, lambda _=False, factor=factor: self.zoom(factor), kind="caption", name=tip)
            for text, tip, factor in (("−", "Show more rounds", 2.0), ("+", "Show fewer rounds", 0.5))
        )
        layout.column(
            layout.row((headline, 2), (self.words, 3), self.wider, self.closer, gap=theme.px(6)), (self.bars, 1),
            self.along, on=self, gap=theme.px(2), margins=(theme.px(9), theme.px(5), theme.px(7), theme.px(4))
        )
        self.bars.picked.connect(self.picked)
        self.along.valueChanged.connect(self._scrolled)
        theme.signals.changed.connect(self.bars.update)

    def show_spans(self, spans: Sequence[RoundSpan]) -> None:
        """Show these rounds; the part that is looked at stays, or follows the end."""
        bars = self.bars
        bars.spans = spans
        bars.starts = [span.start_s for span in spans]
        self._fit()

    def select(self, place: int) -> None:
        """Mark a round and bring it into view; -1 marks none."""
        bars = self.bars
        bars.selected = place if 0 <= place < len(bars.spans) else -1
        if bars.selected >= 0:
            span = bars.spans[bars.selected]
            self.words.set_full(span_words(span))
            if not bars.start_s <= span.start_s <= bars.start_s + bars.length_s - span.seconds:
                self.along.setValue(round(_SCALE * (span.start_s - bars.length_s / 2)))
        else:
            self.words.set_full("")
        bars.update()

    def zoom(self, factor: float) -> None:
        """Show factor times as many rounds."""
        self._shown = round(min(max(self._shown * factor, 5), MOST_ROUNDS))
        self._fit()
        if self.bars.selected >= 0:
            self.select(self.bars.selected)

    def _fit(self) -> None:
        bars = self.bars
        total = bars.spans[-1].start_s + bars.spans[-1].seconds if bars.spans else 1.0
        mean = total / max(1, len(bars.spans))
        bars.length_s = max(min(total, mean * self._shown), 1e-6)
        self.along.blockSignals(True)
        self.along.setRange(0, max(0, round(_SCALE * (total - bars.length_s))))
        self.along.setPageStep(max(1, round(_SCALE * bars.length_s)))
        self.along.setSingleStep(max(1, round(_SCALE * mean)))
        if self._follow:
            self.along.setValue(self.along.maximum())
        self.along.blockSignals(False)
        self.along.setEnabled(self.along.maximum() > 0)
        bars.start_s = self.along.value() / _SCALE
        bars.update()

    def _scrolled(self, value: int) -> None:
        self._follow = value >= self.along.maximum()
        self.bars.start_s = value / _SCALE
        self.bars.update()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()


def _nice(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** max(-6, math.floor(math.log10(value)))
    return next((power * step for step in (1, 2, 5) if power * step >= value), power * 10)
