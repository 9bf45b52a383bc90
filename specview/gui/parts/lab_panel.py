"""What views that measure something share: settings, Run, Stop, progress, and a job on the engine thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHBoxLayout, QProgressBar, QPushButton, QSizePolicy, QWidget

from specview.errors import SpecviewError
from specview.gui.link.engine_thread import JobEnded, JobNews, JobProgress
from specview.gui.parts import layout, theme
from specview.gui.parts.pages import PageContext
from specview.gui.parts.widgets import ElidedLabel, Field, enable_in_turn, label, set_tip
from specview.racing.settings import RunSettings

Tell = Callable[[Any], None]
Work = Callable[[Any, Tell, Callable[[], bool]], Any]

UPDATE_S = 0.1
"""Seconds between two pictures of a running job: ten a second."""


class Throttle:
    """Lets something through at most so often."""

    def __init__(self, seconds: float = UPDATE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._next = float("-inf")

    def __call__(self) -> bool:
        """Whether it is time again."""
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True


class LabPanel(QWidget):
    """Settings, Run and Stop, a sentence; a subclass fills in what is set, what is done and what is drawn."""

    job = ""
    run_tip = ""
    stop_tip = "Stop and keep what there is (Esc)"
    stopped_words = "Stopped."
    edits: tuple[str, ...] = ()
    """The fields whose text is remembered, by their attributes' names."""

    def __init__(self, context: PageContext) -> None:
        super().__init__()
        self.context = context
        self.controller = context.controller
        self._runs: set[int] = set()
        self.run = QPushButton("Run")
        self.run.setProperty("kind", "primary")
        self.run.clicked.connect(self.start)
        self.stop = QPushButton("Stop")
        set_tip(self.stop, self.stop_tip)
        self.stop.clicked.connect(self.controller.stop)
        self.progress = QProgressBar()
        self.progress.setTextVisible(False)
        self.progress.setAccessibleName("Progress")
        self.status = ElidedLabel("", "small")
        self.verdict = label("")
        self.verdict.setWordWrap(True)
        self.verdict.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.verdict.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.verdict.setAccessibleName("Verdict")

    def connect_job(self) -> None:
        """Follow the controller; called once all is built."""
        self.controller.job_news.connect(self._job_news)
        self.controller.job_ended.connect(self._job_ended)
        self.controller.state_changed.connect(self.show_state)
        theme.signals.changed.connect(self.draw)
        self.show_state()
        self.draw()

    def settings_row(self, *fields: QWidget) -> QHBoxLayout:
        """The fields, Run and Stop in a row, progress at its end."""
        going = QWidget()
        layout.column(1, self.status, self.progress, on=going)
        return layout.row(*fields, Field(" ", self.run), Field(" ", self.stop), (going, 1), gap=theme.px(10))

    def say(self, text: str) -> None:
        """Show what was found, in words; nothing takes no room."""
        self.verdict.setText(text)
        self.verdict.setVisible(bool(text))

    def kept(self) -> dict[str, Any]:
        """What is remembered."""
        return {name: getattr(self, name).text() for name in self.edits}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Take what `kept` returned, field by field, where it fits."""
        for name in self.edits:
            text, edit = kept.get(name), getattr(self, name)
            if isinstance(text, str) and text:
                before = edit.text()
                edit.setText(text)
                if edit.problem():
                    edit.setText(before)

    # -- what a subclass does ------------------------------------------------------------------------

    def work(self) -> tuple[Work, RunSettings | None]:
        """What Run does on the engine thread, and with which models; raises SpecviewError, one line."""
        raise NotImplementedError

    def take(self, found: Any) -> None:
        """Show a result, finished or not."""
        raise NotImplementedError

    def draw(self) -> None:
        """Draw what is shown anew."""
        raise NotImplementedError

    # -- the job ---------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether this view's job is under way."""
        return bool(self._runs)

    def start(self) -> None:
        """Run it, on the engine thread."""
        if self.controller.busy_with:
            self.context.show_message(self.controller.busy_words, "warning")
            return
        try:
            work, settings = self.work()
        except SpecviewError as error:
            self.context.show_message(str(error))
            return
        self._runs.add(self.controller.start_job(self.job, work, settings))
        self.status.set_full("Starting…")
        self.show_state()

    def _job_news(self, news: JobNews) -> None:
        if news.run_id not in self._runs:
            return
        if isinstance(news.news, JobProgress):
            part = news.news.fraction
            self.progress.setRange(0, 0 if part is None else 1000)
            self.progress.setValue(0 if part is None else round(1000 * part))
            self.status.set_full(news.news.text)
        else:
            self.take(news.news)

    def _job_ended(self, ended: JobEnded) -> None:
        if ended.run_id not in self._runs:
            return
        self._runs.discard(ended.run_id)
        if ended.result is not None:
            self.take(ended.result)
        elif ended.message:
            self.context.show_message(ended.message)
        self.status.set_full(self.stopped_words if ended.stopped else "")
        self.show_state()

    def show_state(self) -> None:
        """Say by the buttons what can be done."""
        busy = self.controller.busy_with
        set_tip(self.run, f"Wait: {busy} is under way" if busy else self.run_tip)
        enable_in_turn(self.run, self.stop, not busy, self.running)
        self.progress.setVisible(self.running)
