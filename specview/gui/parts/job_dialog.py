"""A window beside the main one for work that takes minutes: it runs on the engine thread and can be stopped.

Closing it leaves the work running; the status bar shows how far it is, and opening the window again shows its results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QDialog, QProgressBar, QPushButton, QWidget

from specview.errors import SpecviewError
from specview.gui.link.engine_thread import JobEnded, JobNews, JobProgress
from specview.gui.parts import layout, theme
from specview.gui.parts.pages import PageContext
from specview.gui.parts.widgets import enable_in_turn, label, set_kind, set_tip
from specview.gui.state.display_text import visible
from specview.racing.settings import RunSettings

Work = Callable[[Any, Callable[[Any], None], Callable[[], bool]], Any]


class JobDialog(QDialog):
    """Setup on top, then progress, results and buttons; `body` is the results' layout.

    Subclasses fill `setup` and `body`, start with `begin`, and take in what comes in `show_news` and `show_result`.
    """

    def __init__(self, context: PageContext, job: str, title: str, begin_text: str, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle(title)
        self.setModal(False)
        self.context = context
        self.job = job
        self._run_id = -1
        self.setup = layout.column(gap=theme.px(8))
        self.body = layout.column(gap=theme.px(8))
        self.words = label("", "muted")
        self.words.setWordWrap(True)
        self.words.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.words.setAlignment(Qt.AlignmentFlag.AlignTop | Qt.AlignmentFlag.AlignLeft)
        self.words.setMinimumHeight(self.words.fontMetrics().lineSpacing() * 2 + theme.px(4))
        self.progress = QProgressBar()
        self.progress.setTextVisible(False)
        self.progress.setRange(0, 1000)
        self.progress.setAccessibleName(f"Progress of the {job}")
        self.start = QPushButton(begin_text)
        self.start.setProperty("kind", "primary")
        self.stop = QPushButton("Stop")
        self.close_button = QPushButton("Close")
        set_tip(self.stop, "Stop within one round, and keep what there is")
        set_tip(self.close_button, "Close this window; what runs goes on, and is here when it is opened again")
        for button in (self.start, self.stop, self.close_button):
            button.setAutoDefault(False)  # Enter in a field must not begin minutes of work
        self.buttons = layout.row(1)
        layout.column(
            self.setup, layout.row((self.progress, 1), self.stop, self.start), self.words, (self.body, 1),
            self.buttons, on=self, gap=theme.px(8),
            margins=(theme.px(16), theme.px(14), theme.px(16), theme.px(12))
        )
        self.start.clicked.connect(self.begin_asked)
        self.stop.clicked.connect(self.ask_stop)
        self.close_button.clicked.connect(self.hide)
        controller = context.controller
        controller.job_news.connect(self._on_news)
        controller.job_ended.connect(self._on_end)
        controller.state_changed.connect(self.show_state)

    @property
    def running(self) -> bool:
        """Whether its work is under way."""
        return self._run_id >= 0

    # -- what a subclass does --------------------------------------------------------------------

    def begin_asked(self) -> None:
        """The start button was pressed: check what was set, and `begin`."""
        raise NotImplementedError

    def show_news(self, news: Any) -> None:
        """Take in what the work told beside its progress."""

    def show_result(self, result: Any, stopped: bool) -> None:
        """Take in the result."""

    def refresh(self) -> None:
        """The state changed: enable what can be used."""

    # -- running ---------------------------------------------------------------------------------

    def begin(self, work: Work, settings: RunSettings, words: str) -> bool:
        """Start the work where nothing else runs; a line says why not."""
        busy = self.context.controller.busy_words
        if busy:
            self.say(busy, "warning")
            return False

        self.say(words, "muted")
        self.progress.setRange(0, 0)
        self._run_id = self.context.controller.start_job(self.job, work, settings)
        self.show_state()
        return True

    def ask_stop(self) -> None:
        """Stop, keeping what there is."""
        if self.running:
            self.context.controller.stop()
            self.stop.setEnabled(False)

    def say(self, text: str, kind: str) -> None:
        """Show words under the progress bar; kind as of labels."""
        set_kind(self.words, kind)
        self.words.setText(visible(text))

    def settings(self) -> RunSettings | None:
        """The settings as the setup bar shows them; None, with a line, where they cannot work."""
        try:
            return self.context.run_settings()
        except SpecviewError as error:
            self.say(str(error), "error")
            return None

    def _on_news(self, event: JobNews) -> None:
        if event.run_id != self._run_id:
            return
        news = event.news
        if not isinstance(news, JobProgress):
            self.show_news(news)
            return
        if news.fraction is None:
            self.progress.setRange(0, 0)
        else:
            self.progress.setRange(0, 1000)
            self.progress.setValue(round(1000 * min(max(news.fraction, 0.0), 1.0)))
        self.say(news.text, "muted")

    def _on_end(self, event: JobEnded) -> None:
        if event.run_id != self._run_id:
            return
        self._run_id = -1
        self.progress.setRange(0, 1000)
        self.progress.setValue(0)
        if event.message:
            self.say(event.message, "error")
        elif event.result is None:
            self.say("Stopped before there was anything to show.", "warning")
        else:
            self.show_result(event.result, event.stopped)
        self.show_state()

    def show_state(self) -> None:
        """Enable what can be pressed; a subclass calls it once it is made."""
        enable_in_turn(self.start, self.stop, not self.running, self.running and self.context.controller.can_stop)
        self.refresh()
