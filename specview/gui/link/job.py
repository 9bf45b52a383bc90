"""One view's long piece of work on the engine thread: started, followed, stopped."""

from __future__ import annotations

from typing import Protocol

from PySide6.QtCore import QObject, Signal

from specview.gui.link.messages import JobEnded, JobProgress, ShouldStop, Tell, Work
from specview.settings.run import RunSettings


class Engine(Protocol):
    """What a job asks of the controller."""

    @property
    def busy_words(self) -> str:
        """One line that says why nothing can be started now; '' where it can."""

    @property
    def can_stop(self) -> bool:
        """Whether what is under way was not asked to stop yet."""

    def start_job(self, job: Job, work: Work, settings: RunSettings | None) -> None:
        """Do work on the engine thread; `job.hear` is told."""

    def stop(self) -> None:
        """Stop what is under way."""


class Job(QObject):
    """One run at a time of work that a view asks for; `name` is what the status bar calls it: "sweep", "tuning", ...

    signals: progressed(JobProgress), told(whatever else the work told), ended(JobEnded)
    """

    progressed = Signal(object)
    told = Signal(object)
    ended = Signal(object)

    def __init__(self, controller: Engine, name: str) -> None:
        super().__init__()  # without a parent: it is heard of to its end, whatever becomes of the view
        self.name = name
        self._controller = controller
        self.running = False

    def start(self, work: Work, settings: RunSettings | None = None) -> str:
        """Do work(pool, tell, should_stop) on the engine thread; say in one line why not where that is busy, else ''.

        Afterwards the window knows what the target of `settings` says of itself, if they are given.
        """
        busy = self._controller.busy_words
        if not busy:
            self.running = True
            self._controller.start_job(self, work, settings)
        return busy

    @property
    def can_stop(self) -> bool:
        """Whether it runs and was not asked to stop."""
        return self.running and self._controller.can_stop

    def stop(self) -> None:
        """Ask it to stop, within one round; it may keep what it has."""
        if self.running:
            self._controller.stop()

    def hear(self, news: object) -> None:
        """Pass on what the controller heard of it."""
        if isinstance(news, JobEnded):
            self.running = False
            self.ended.emit(news)
        elif isinstance(news, JobProgress):
            self.progressed.emit(news)
        else:
            self.told.emit(news)


__all__ = ["Job", "JobEnded", "JobProgress", "ShouldStop", "Tell", "Work"]
