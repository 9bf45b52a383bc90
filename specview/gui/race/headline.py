"""The row over the lanes: one sentence on the race with the rest beside it, a thin line of progress, room for the legend."""

from __future__ import annotations

import math

from PySide6.QtCore import QPointF, QRect, QSize, Qt
from PySide6.QtGui import QAccessible, QAccessibleAnnouncementEvent, QColor, QFontMetricsF, QPainter
from PySide6.QtWidgets import QSizePolicy, QWidget

from specview.files.verdict import Verdict
from specview.gui.link.controller import RESTING, Controller
from specview.gui.parts import layout, theme
from specview.gui.parts.painted import Painted, baseline, ink, words
from specview.gui.state.display_text import visible
from specview.gui.state.race_words import Situation, detail, headline, waiting

UNKNOWN = 0.33
"""The part of the line that is filled while nothing tells how far work is."""
_COLOURED = ("warning", "bad")
"""Tones in which what stands beside the sentence is coloured; its words say the same."""
_GAP, _SIZE, _SHARE = 8, 14, 0.62
_BETWEEN = " · "


class Sentence(Painted):
    """A bold sentence and muted words beside it, whole parts of them where there is no room for all; the tool tip has all."""

    def __init__(self) -> None:
        super().__init__()
        self.said = Verdict("")
        self.detail = ""  # the tool tip's alone
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setAccessibleName("Race")

    def say(self, said: Verdict) -> None:
        """Show a verdict."""
        if said != self.said:
            self.said = said
            self.setAccessibleName(f"Race: {said.text}" if said.text else "Race")
            self.changed()

    def high(self) -> int:
        return theme.px(24)

    def sizeHint(self) -> QSize:
        return QSize(theme.px(400), self.high())

    def minimumSizeHint(self) -> QSize:
        """Of the row the sentence has what it needs, before what stands at the right; up to most of it."""
        needed = QFontMetricsF(theme.ui_font(_SIZE, bold=True)).horizontalAdvance(visible(self.said.sentence))
        row = self.parentWidget()
        return QSize(min(math.ceil(needed) + 1, round(_SHARE * row.width())) if row is not None else 10, self.high())

    def tip_at(self, at: QPointF) -> str:
        return "\n".join(filter(None, (self.said.sentence, self.said.rest, self.detail)))

    def paint(self, painter: QPainter, region: QRect) -> None:
        bold, small = theme.ui_font(_SIZE, bold=True), theme.ui_font(12)
        metrics, room = QFontMetricsF(bold), float(self.width())
        sentence = metrics.elidedText(visible(self.said.sentence), Qt.TextElideMode.ElideRight, room)
        level = baseline(metrics, self.height() / 2)
        words(painter, QPointF(0, level), sentence, bold, QColor(theme.current().ink))
        left = metrics.horizontalAdvance(sentence) + theme.px(_GAP)
        metrics = QFontMetricsF(small)
        if self.said.rest and room - left > metrics.horizontalAdvance("…") * 4:
            rest = fitting(visible(self.said.rest), metrics, room - left)
            words(painter, QPointF(left, level), rest, small, ink(self.said.tone if self.said.tone in _COLOURED else "muted"))


def fitting(text: str, metrics: QFontMetricsF, room: float) -> str:
    """As many of a text's parts as there is room for, the first ones; of the first one as much."""
    parts = text.split(_BETWEEN)
    for count in range(len(parts), 0, -1):
        shown = _BETWEEN.join((*parts[:count], *(("…",) if count < len(parts) else ())))
        if metrics.horizontalAdvance(shown) <= room:
            return shown
    return metrics.elidedText(text, Qt.TextElideMode.ElideRight, room)


class Headline(QWidget):
    """Follows a race: what is loaded and how far, who leads, who won; tells screen readers of its beginning and its end.

    `row` holds the sentence; what stands at its right is added there.
    """

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self.sentence = Sentence()
        self.fraction: float | None = None
        self.waiting = False
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self.row = layout.row((self.sentence, 1), on=self, gap=theme.px(12), margins=(12, 2, 12, 4))
        self._racing = False
        controller.state_changed.connect(self.refresh)
        controller.lanes_changed.connect(self.refresh)
        controller.number_tick.connect(self.refresh)
        controller.text_tick.connect(self._on_text)
        self.refresh()

    @property
    def said(self) -> Verdict:
        """What is said now."""
        return self.sentence.said

    @property
    def detail(self) -> str:
        """What the tool tip says besides."""
        return self.sentence.detail

    def refresh(self) -> None:
        """Say what goes on now."""
        controller, now = self._controller, self._situation()
        self.sentence.detail = detail(controller.race, now)
        self.sentence.say(headline(controller.race, now))
        self._show_progress(now)
        if controller.racing != self._racing and (controller.racing or controller.state in RESTING):
            self._racing = controller.racing
            self.announce(f"The race has begun. {self.said.text}" if self._racing else self.said.text)

    def announce(self, text: str) -> None:
        """Let a screen reader say something."""
        if text and QAccessible.isActive():
            QAccessible.updateAccessibility(QAccessibleAnnouncementEvent(self, text))

    def _on_text(self) -> None:
        """Follow what loads; the rest has time until the next refresh."""
        if waiting(now := self._situation()):
            self.sentence.say(headline(self._controller.race, now))
            self._show_progress(now)

    def _situation(self) -> Situation:
        controller = self._controller
        return Situation(
            controller.state, controller.job, controller.outcome, controller.progress, controller.real_time_fraction,
            controller.recorded is not None, controller.stale, controller.preloaded, controller.race_running,
            controller.paused, controller.moment,
        )

    def _show_progress(self, now: Situation) -> None:
        shown = waiting(now), None if now.progress is None else now.progress.fraction
        if shown != (self.waiting, self.fraction):
            self.waiting, self.fraction = shown
            self.update()

    def paintEvent(self, event: object) -> None:
        """Paint how far work is, along the bottom."""
        if self.waiting:
            part = UNKNOWN if self.fraction is None else min(max(self.fraction, 0.0), 1.0)
            thick, side = theme.px(2), 12
            painter = QPainter(self)
            top, room = self.height() - thick, self.width() - 2 * side
            painter.fillRect(side, top, room, thick, QColor(theme.current().border))
            painter.fillRect(side, top, round(room * part), thick, QColor(theme.current().focus))
