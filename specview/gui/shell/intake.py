"""Files and folders that come into the window, dropped or opened: models, heads, prompts, recorded runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from PySide6.QtWidgets import QFileDialog

from specview.gui.link.background import Background
from specview.gui.link.head_checks import FoundHead, head_in
from specview.gui.link.open_run import Pick
from specview.gui.parts.questions import ask
from specview.gui.race.foreign_models import SetupWindow
from specview.gui.shell.lane_setup import LaneSetup
from specview.gui.state.setup_words import model_name
from specview.reading import read_text

LARGEST_PROMPT_FILE = 4_000_000


class Intake:
    """Uses what is dropped on a window, or opened as its prompt."""

    def __init__(
        self, window: SetupWindow, lanes: LaneSetup, files: Background, open_runs: Callable[[Sequence[Pick]], None]
    ) -> None:
        self._window, self._lanes, self._files, self._open_runs = window, lanes, files, open_runs

    def take_all(self, paths: Sequence[Path]) -> None:
        """Use what was dropped: several recorded runs, or the first file or folder."""
        if len(paths) > 1 and all(path.suffix.lower() == ".jsonl" for path in paths):
            self._open_runs([Pick(path) for path in paths])
        elif paths:
            self.take(paths[0])

    def take(self, path: Path) -> None:
        """Use a file or folder: a model as target or draft, a head as a lane, a text as the prompt."""
        if self._window.controller.racing:
            self._window.show_message("A race is running. Stop it before changing models or the prompt.", "warning")
            return
        if path.suffix.lower() == ".jsonl" and not path.is_dir():
            self._open_runs([Pick(path)])
        elif path.suffix.lower() in (".txt", ".md"):
            self.take_prompt(path)
        elif path.is_dir():
            self._files.do(lambda: head_in(path), lambda head: self._take_folder(path, head))
        elif path.suffix.lower() == ".gguf":
            self._take_model(path)
        else:
            self._window.show_message(
                f"{path.name} is neither a model nor a text. Drop a .gguf file, a folder of a model or a head, a .txt file or a .jsonl trace.",
                "warning",
            )

    def _take_folder(self, path: Path, head: FoundHead | None) -> None:
        if self._window.controller.racing:
            return  # one began while the folder was read
        if head is not None:
            self._lanes.take_head(head)
        else:
            self._take_model(path)

    def _take_model(self, path: Path) -> None:
        role = self.ask_role(path)
        if role == "target":
            self._window.setup.target.choose(str(path))
        elif role == "draft":
            self._lanes.take_draft(str(path))

    def ask_role(self, path: Path) -> str:
        """Ask whether a model is to be the target or a draft; '' when neither."""
        text = f"Use {model_name(str(path))} as the target, or as a draft model?"
        return ask(self._window.page.window(), "Use this model", text, {"target": "Target", "draft": "Draft"})

    def open_prompt(self) -> None:
        """Ask for a text file, and take it as the prompt."""
        path, _ = QFileDialog.getOpenFileName(
            self._window.page.window(), "Open a prompt", "", "Text (*.txt *.md);;All files (*)"
        )
        if path:
            self.take_prompt(Path(path))

    def take_prompt(self, path: Path) -> None:
        """Put a text file's content into the prompt box."""
        try:
            self._window.setup.set_prompt(read_text(path, LARGEST_PROMPT_FILE))
        except OSError as error:
            self._window.show_message(f"{path.name} cannot be read: {error.strerror or error}.")
        except UnicodeDecodeError:
            self._window.show_message(f"{path.name} is not UTF-8 text. Save it as UTF-8 text first.")
        except ValueError:
            self._window.show_message(f"{path.name} is larger than 4 MB. Choose a shorter text.")
