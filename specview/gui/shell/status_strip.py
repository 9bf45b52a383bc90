"""What stands at the end of the row of tabs: a training under way, and what the program takes of the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from PySide6.QtWidgets import QLabel, QToolButton

from specview.gui.link.controller import Controller, State
from specview.gui.link.pace import every
from specview.gui.parts.widgets import set_tip

if TYPE_CHECKING:
    from specview.gui.train.process import TrainingRun

MEMORY_MS = 2000


class TrainingButton(QToolButton):
    """What is trained beside the window's own work; hidden while there is nothing to say."""

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "caption")
        self.setAccessibleName("Training")
        set_tip(self, "Show the training (Ctrl+T)")
        self.hide()

    def follow(self, training: TrainingRun) -> None:
        """Say how this training goes."""
        training.changed.connect(lambda: self._show(training))

    def _show(self, training: TrainingRun) -> None:
        kind = training.request.kind if training.request is not None else ""
        percent = "" if training.fraction is None else f" {training.fraction:.0%}"
        words = {"running": f"training {kind}{percent}", "stopping": f"stopping {kind}",
                 "done": f"{kind} trained", "failed": f"training {kind} failed", "stopped": f"{kind} stopped"}
        text = words.get(training.state, "")
        if text != self.text():
            self.setText(text)
            self.setVisible(bool(text))


_DOING: Mapping[State, str] = {
    "preloading": "loading", "loading": "loading", "prefill": "reading the prompt", "running": "racing", "stopping": "stopping",
}  # fmt: skip


class MachineLabel(QLabel):
    """What goes on, whichever tab is in front; processor threads of the target, and memory of this program."""

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self._controller = controller
        self.setProperty("kind", "small")
        set_tip(self, "What goes on; processor threads of the target, and memory of this program")
        every(self, MEMORY_MS, self.refresh).start()
        controller.state_changed.connect(self.refresh)

    def refresh(self) -> None:
        """Say all as it is now."""
        import psutil

        threads = self._controller.race.facts.get("threads")
        memory = psutil.Process().memory_info().rss / 1e9
        state = self._controller.state
        doing = self._controller.job if state == "working" else _DOING.get(state, "")
        parts = [f"● {doing}" if doing else "", f"{threads} thread{'s' if threads != 1 else ''}" if threads else ""]
        text = " · ".join(filter(None, [*parts, f"{memory:.1f} GB"]))
        if text != self.text():
            self.setText(text)
            self.setAccessibleName(f"Machine: {text}")
