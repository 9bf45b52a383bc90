"""A training beside the window's own work: its dialog, its button, and what is said and asked because of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from PySide6.QtCore import QObject

from specview.gui.link.background import Background
from specview.gui.parts.pages import RACE, Tabs
from specview.gui.parts.questions import ask
from specview.gui.race.foreign_models import SetupWindow
from specview.gui.shell.lane_setup import LaneSetup
from specview.gui.shell.status_strip import TrainingButton
from specview.gui.state.setup_words import model_name
from specview.settings.run import LaneSettings

if TYPE_CHECKING:
    from specview.gui.train.dialog import TrainDialog
    from specview.gui.train.process import TrainingRun


class TrainingWindow(SetupWindow, Protocol):
    """The window as the training sees it."""

    lanes: LaneSetup
    tabs: Tabs


class Training(QObject):
    """Owns the training's process and its dialog: both are made, and their modules read, when they are first asked for."""

    def __init__(self, window: TrainingWindow, files: Background) -> None:
        super().__init__(window.page)
        self._window, self._files = window, files
        self._run: TrainingRun | None = None
        self.button = TrainingButton()
        self.dialog: TrainDialog | None = None
        self._ran = False
        self.button.clicked.connect(self.show)

    @property
    def run(self) -> TrainingRun:
        """The process."""
        if self._run is None:
            from specview.gui.train.process import TrainingRun

            self._run = TrainingRun(self)
            self._run.changed.connect(self._changed)
            self.button.follow(self._run)
        return self._run

    @property
    def running(self) -> bool:
        """Whether something is trained now."""
        return self._run is not None and self._run.running

    def show(self) -> None:
        """Open the dialog."""
        if self.dialog is None:
            from specview.gui.train.dialog import TrainDialog

            self.dialog = TrainDialog(self.run, self._target, self._files, self._window.page.window())
            self.dialog.use_asked.connect(self.use)
            self._window.setup.changed.connect(self.dialog.refresh_target)
        self.dialog.show()
        self.dialog.raise_()
        self.dialog.activateWindow()

    def _target(self) -> tuple[str, str, str]:
        picker = self._window.setup.target
        return picker.engine, picker.target, model_name(picker.target)

    def use(self, method: str, folder: str) -> None:
        """Add a lane that drafts with what was trained."""
        if self._window.lanes.take(LaneSettings(method=method, draft=folder)):
            self._window.tabs.open(RACE)
            self._window.library.scan()

    def warn(self) -> None:
        """Say what a race's times suffer from, where one is timed beside a training."""
        if self.running and self._window.controller.racing:
            from specview.gui.train.dialog import BESIDE

            self._window.show_message(f"A training runs beside this race. {BESIDE}", "warning")

    def _changed(self) -> None:
        if self.running != self._ran:
            self._ran = self.running
            self.warn()

    def may_close(self) -> bool:
        """Ask what becomes of a training that runs; False where the window is to stay."""
        if not self.running:
            return True
        answer = self.ask()
        if answer == "stop" and self.run.state != "stopping":
            self.run.stop()
        if answer:
            self.run.leave()
        return bool(answer)

    def ask(self) -> str:
        """Ask whether to stop a training that runs ('stop'), leave it running ('leave') or stay ('')."""
        return ask(
            self._window.page.window(), "A training is running", "A training is running.",
            {"stop": "Stop and keep state", "leave": "Leave it running"},
            "Stop it and keep its state (the same settings go on from there later), or leave it running without the window?",
        )  # fmt: skip
