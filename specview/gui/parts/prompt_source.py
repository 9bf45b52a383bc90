"""The choice of prompts that a dialog works on: the window's own, built-in ones, or those of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFileDialog, QPushButton, QWidget

from specview.errors import SpecviewError, UsageError
from specview.gui.parts import layout, theme
from specview.gui.parts.widgets import Choice, Field, set_tip
from specview.gui.state.display_text import visible
from specview.racing import workloads
from specview.racing.workloads import Prompt, Workload
from specview.settings.run import RunSettings

Source = Literal["prompt", "workload", "file"]
_WORDS = {"prompt": "the prompt in the window", "workload": "built-in prompts", "file": "a prompt file…"}


class PromptSource(QWidget):
    """Where the prompts come from. signals: said(words, kind) what came of choosing a file."""

    said = Signal(str, str)

    def __init__(self, caption: str, sources: Sequence[Source], tip: str = "") -> None:
        super().__init__()
        self.file: Workload | None = None
        self.source = Choice(tuple((one, _WORDS[one]) for one in sources))
        self.kind = Choice(tuple((name, name) for name in workloads.list_workloads()))
        self.file_button = QPushButton("Choose…")
        self.file_button.setAutoDefault(False)
        set_tip(self.file_button, f"{workloads.FORMATS}. Several turns run as a conversation.")
        self.kind_field, self.file_field = Field("workload", self.kind), Field("file", self.file_button)
        layout.row(Field(caption, self.source, tip), self.kind_field, self.file_field, on=self, gap=theme.px(10))
        self.source.currentIndexChanged.connect(self._show_source)
        self.file_button.clicked.connect(self.choose_file)
        self._show_source()

    def _show_source(self) -> None:
        self.kind_field.setVisible(self.source.value() == "workload")
        self.file_field.setVisible(self.source.value() == "file")

    def choose_file(self) -> None:
        """Ask for a prompt file."""
        path, _ = QFileDialog.getOpenFileName(self, "A set of prompts", "", "Prompts (*.jsonl *.json);;All files (*)")
        if path:
            self.take_file(path)

    def take_file(self, path: str) -> None:
        """Take the prompts of a file; what is wrong with it is said, by its line number."""
        try:
            self.file = workloads.load_prompts_file(path)
        except SpecviewError as error:
            self.said.emit(str(error), "error")
            return
        count = len(self.file.prompts)
        words = f"{self.file.name} ({count} {'prompt' if count == 1 else 'prompts'})"
        self.file_button.setText(visible(words))
        self.source.set_value("file")
        self.said.emit(f"{words}.", "muted")

    def prompts(self, settings: RunSettings) -> Workload:
        """What is chosen, settings being the window's; raises UsageError, one line, where there is nothing."""
        chosen = self.source.value()
        if chosen == "workload":
            found = workloads.load(self.kind.value())
            return replace(found, prompts=tuple(replace(one, workload=found.name) for one in found.prompts))
        if chosen == "file":
            if self.file is None:
                raise UsageError("No prompt file is chosen.", "Choose one, or take other prompts.")
            return self.file
        if settings.chat and not settings.prompt.strip():
            raise UsageError("The prompt is empty.", "Type one, or choose a workload.")
        one = Prompt(settings.prompt, settings.system, history=settings.history, workload=settings.workload or "")
        return Workload("prompt", (one,), workloads.content_sha256((one,)))
