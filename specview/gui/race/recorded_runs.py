"""What ties recorded runs to the window: opening them, the line that says so, their settings, going back to live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QFileDialog, QFrame, QPushButton, QSizePolicy, QWidget

from specview.gui.link.open_run import Opened, Pick, RunOpener
from specview.gui.parts import layout
from specview.gui.parts.pages import RACE
from specview.gui.parts.widgets import ElidedLabel, button, label, set_tip
from specview.gui.race.foreign_models import SetupWindow
from specview.gui.state.display_text import visible


class RecordedBar(QWidget):
    """Shown while a recorded run is on screen or being read; closed asks for the live race, take_over for its settings."""

    closed = Signal()
    take_over = Signal()

    def __init__(self) -> None:
        super().__init__()
        frame = QFrame()
        frame.setObjectName("banner")
        frame.setProperty("kind", "note")
        self.setAccessibleName("Recorded run")
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self._mark = label("", "title")
        self._words = ElidedLabel()
        self._remarks = ElidedLabel("", "warning")
        self.take = button(QPushButton, "Take over its settings", "", self.take_over, kind="flat")
        self.close_button = button(QPushButton, "", "", self.closed, kind="flat")
        self._row = layout.row(
            self._mark, (self._words, 1), (self._remarks, 1), self.take, self.close_button, on=frame, gap=12, margins=(12, 1, 6, 1)
        )
        layout.column(frame, on=self, margins=(10, 6, 10, 0))
        self.hide()

    def show_run(self, opened: Opened | None) -> None:
        """Say what is on screen; None hides the line."""
        self.setVisible(opened is not None)
        if opened is None:
            return
        what = "Recorded runs compared" if opened.beside else "Recorded run"
        self._mark.setText(f"◷ {what}")
        self._words.set_full(visible(opened.words))
        self._say(opened.remarks)
        able = opened.settings is not None and not opened.beside
        set_tip(self.take, "Set the race up as this run was: target, prompt, sampling and lanes" if able
                else opened.problem or "Several runs are compared: open one alone to take over its settings")  # fmt: skip
        self.take.setEnabled(able)
        self.take.show()
        self._name_close("Close", "Take the recorded run off the screen and bring the live race back; it stays where it is kept")

    def show_progress(self, name: str, fraction: float) -> None:
        """Say how far a file is read."""
        self._mark.setText("◷ Opening")
        self._words.set_full(visible(f"{name}: {fraction:.0%}"))
        self._say(())
        self.take.hide()
        self._name_close("Stop", "Read on no further")
        self.show()

    def _name_close(self, words: str, tip: str) -> None:
        if self.close_button.text() != words:
            self.close_button.setText(words)
            set_tip(self.close_button, tip)

    def _say(self, remarks: tuple[str, ...]) -> None:
        text = ". ".join(remark[:1].upper() + remark[1:] for remark in remarks)
        self._remarks.set_full(visible(text))
        self._remarks.setVisible(bool(text))
        for part in (self._words, self._remarks):  # each has of the room what it needs of both
            self._row.setStretchFactor(part, part.fontMetrics().horizontalAdvance(part.full) + 1)

    @property
    def words(self) -> str:
        """All that is said."""
        return f"{self._mark.text()} {self._words.full} {self._remarks.full}".strip()


class RecordedRuns(QObject):
    """Opens recorded runs in a window's race page."""

    def __init__(self, window: SetupWindow, open_page: Callable[[str], None]) -> None:
        super().__init__(window.page)
        self._window = window
        self._open_page = open_page
        self._controller = window.controller
        self.opener = RunOpener(self, "specview-open")
        self.bar = RecordedBar()
        rows = window.page.layout()
        assert rows is not None
        rows.insertWidget(0, self.bar)  # type: ignore[attr-defined]
        self._opening = ""
        self.opener.opened.connect(self._show)
        self.opener.failed.connect(self._failed)
        self.opener.progressed.connect(lambda _, fraction: self.bar.show_progress(self._opening, fraction))
        self.opener.changed.connect(self._read)
        self.bar.closed.connect(self._close_or_stop)
        self.bar.take_over.connect(self.take_over)
        self._controller.recorded_changed.connect(self._changed)

    # -- opening -------------------------------------------------------------------------------

    def ask(self) -> None:
        """Ask for a trace file, or several, and open it."""
        from specview.library.library import runs_folder

        folder = runs_folder()
        start = str(folder) if folder.is_dir() else ""
        names, _ = QFileDialog.getOpenFileNames(
            self._window.page.window(), "Open a trace", start, "Traces (*.jsonl);;All files (*)"
        )
        if names:
            self.open([Pick(Path(name)) for name in names])

    def open(self, picks: Sequence[Pick]) -> None:
        """Open a recorded run, or several compared; refused while a race runs."""
        if self._controller.racing:
            self._window.show_message("A race is running. Stop it before opening a recorded run.", "warning")
            return
        self._window.clear_message()
        self._opening = ", ".join(pick.title for pick in picks)
        self.opener.open(picks)

    def close_run(self) -> None:
        """Take the recorded run off the screen: the live race is back."""
        self._controller.close_recorded()

    def take_over(self) -> None:
        """Set the race up as the recorded run was; it stays on screen, and Run repeats it."""
        opened, window = self._controller.recorded, self._window
        if opened is None or opened.settings is None:
            return
        with self._controller.keeping_recorded():
            window.take_settings(opened.settings)
        words = window.foreign.words
        window.show_message(f"The race is set up as this run was.{f' {words}.' if words else ''}", "warning" if words else "note")

    def _close_or_stop(self) -> None:
        if self.opener.busy:
            self.opener.drop()
        else:
            self.close_run()

    def shut(self) -> None:
        """The window closes."""
        self.opener.close()

    def _show(self, opened: Opened) -> None:
        if self._controller.racing:  # it was started meanwhile
            self._window.show_message("A race has started: the recorded run was not opened.", "warning")
            return
        self._open_page(RACE)
        self._controller.show_recorded(opened.race, opened)

    def _failed(self, line: str) -> None:
        self._window.show_message(line)

    def _read(self) -> None:
        if not self.opener.busy:  # nothing is read any more
            self.bar.show_run(self._controller.recorded)

    def _changed(self) -> None:
        """Follow what is on screen: a recorded run or a live race."""
        if not self.opener.busy:
            self.bar.show_run(self._controller.recorded)
