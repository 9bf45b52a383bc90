"""The guided tour: eight steps, each a sentence or two and a picture that moves, on a recorded run."""

from __future__ import annotations

import time
from collections.abc import Callable

from PySide6.QtCore import QRect, QRectF, Qt
from PySide6.QtGui import QColor, QHideEvent, QKeySequence, QPainter, QShortcut, QShowEvent
from PySide6.QtWidgets import QDialog, QPushButton, QSizePolicy, QWidget

from specview.gui.link.background import Background
from specview.gui.link.pace import every
from specview.gui.parts import layout, theme
from specview.gui.parts.painted import CENTRE, Painted, box, ink, words_in
from specview.gui.parts.widgets import button, label
from specview.gui.tour import story
from specview.gui.tour.figures import FIGURES, HOLD_S, Figure

FRAME_MS = 33


class Picture(Painted):
    """Plays a figure over and over while it is seen."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.figure: Figure | None = None
        self.words = "Reading the recorded run…"
        self._clock, self._began = clock, 0.0
        self._timer = every(self, FRAME_MS, self.update)

    def show_figure(self, figure: Figure | None, words: str = "") -> None:
        """Play this one from its start; without one say why."""
        self.figure, self.words, self._began = figure, words, self._clock()
        self.setAccessibleName(f"Picture: {words if figure is None else figure.said}")
        self.update()

    @property
    def seconds(self) -> float:
        """The figure's own time."""
        length = HOLD_S + (0.0 if self.figure is None else self.figure.length)
        return (self._clock() - self._began) % length

    def high(self) -> int:
        return theme.px(330)

    def paint(self, painter: QPainter, region: QRect) -> None:
        area = QRectF(self.rect())
        box(painter, area, None, QColor(theme.current().ground), theme.px(8))
        if self.figure is None:
            words_in(painter, area, self.words, theme.ui_font(), ink("muted"), CENTRE)
            return
        side, room = theme.px(18), theme.px(760)
        spare = max(0.0, (area.width() - room) / 2 - side) * 0.5
        high = max(0.0, (area.height() - theme.px(290)) / 2 - side)
        self.figure.paint(painter, area.adjusted(side + spare, side + high, -side - spare, -side - high), self.seconds)

    def showEvent(self, event: QShowEvent) -> None:
        self._timer.start()
        super().showEvent(event)

    def hideEvent(self, event: QHideEvent) -> None:
        self._timer.stop()
        super().hideEvent(event)


class Dots(Painted):
    """How far the tour is: a dot a step."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 0
        self.setAccessibleName("Progress of the tour")

    def set_at(self, at: int) -> None:
        """Mark a step."""
        self.at = at
        self.setAccessibleDescription(f"{at + 1} of {len(story.STEPS)}")
        self.update()

    def paint(self, painter: QPainter, region: QRect) -> None:
        size, gap = theme.px(8), theme.px(16)
        for place in range(len(story.STEPS)):
            grown = size * 1.3 if place == self.at else size
            area = QRectF(place * gap + size - grown / 2, (self.height() - grown) / 2, grown, grown)
            box(painter, area, None, ink("ink" if place == self.at else "muted" if place < self.at else "border"), grown / 2)


class TourDialog(QDialog):
    """Shows the steps; Right and Left go on and back, Escape ends."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWindowTitle("Guided tour")
        self.run: story.TourRun | None = None
        self.at = 0
        self._work = Background(self, "specview-tour")
        self.title = label("", "title")
        self.title.setFont(theme.ui_font(18, bold=True))
        self.count, self.dots = label("", "muted"), Dots()
        self.picture = Picture()
        self.words = label("")
        self.words.setWordWrap(True)
        self.words.setTextFormat(Qt.TextFormat.PlainText)
        self.words.setAlignment(Qt.AlignmentFlag.AlignTop)
        self.back = button(QPushButton, "Back", "The step before (Left)", self._back)
        self.next = button(QPushButton, "Next", "The next step (Right)", self._on, kind="primary")
        self.end = button(QPushButton, "Close", "End the tour (Esc)", self.close)
        self.next.setDefault(True)
        for keys, slot in (("Right", self._on), ("PgDown", self._on), ("Left", self._back), ("PgUp", self._back)):
            QShortcut(QKeySequence(keys), self).activated.connect(slot)  # before buttons take arrows for themselves
        layout.column(
            layout.row((self.title, 1), self.count), (self.picture, 1), self.words,
            layout.row((self.dots, 1), self.back, self.next, self.end, gap=8), on=self, gap=12, margins=(20, 16, 20, 16),
        )  # fmt: skip
        theme.signals.changed.connect(self._restyle)
        self._restyle()
        self.resize(theme.px(880), theme.px(530))
        self._work.do(story.load, self.show_run, otherwise=lambda line: self.picture.show_figure(None, line))
        self.finished.connect(lambda _: self._work.close())
        self.go(0)
        self.next.setFocus()

    def _restyle(self) -> None:
        self.title.setFont(theme.ui_font(18, bold=True))
        self.words.setFont(theme.ui_font(15))
        self.words.setMinimumHeight(round(self.words.fontMetrics().lineSpacing() * 3.2))
        self.picture.changed()

    def show_run(self, run: story.TourRun) -> None:
        """Tell the steps on this run."""
        self.run = run
        self.go(self.at)

    def go(self, at: int) -> None:
        """Show a step."""
        self.at = at = min(max(at, 0), len(story.STEPS) - 1)
        step, run = story.STEPS[at], self.run
        self.title.setText(step.title)
        self.count.setText(f"{at + 1} of {len(story.STEPS)}")
        self.dots.set_at(at)
        if run is not None:
            self.words.setText(step.words(run))
            self.picture.show_figure(FIGURES[step.picture](run))
        self.back.setEnabled(at > 0)
        self.next.setText("Done" if at == len(story.STEPS) - 1 else "Next")
        self.setAccessibleDescription(f"{step.title}: {self.words.text()}")

    def _on(self) -> None:
        if self.at == len(story.STEPS) - 1:
            self.close()
        else:
            self.go(self.at + 1)

    def _back(self) -> None:
        self.go(self.at - 1)
