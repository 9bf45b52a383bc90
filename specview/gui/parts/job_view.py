"""What views of a long piece of work share: Run, Stop, a bar, words, and the job on the engine thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QDialog, QLabel, QProgressBar, QPushButton, QSizePolicy, QWidget

from specview.errors import SpecviewError
from specview.gui.link.controller import Controller
from specview.gui.link.job import Job, JobEnded, JobProgress, Work
from specview.gui.parts import layout, theme
from specview.gui.parts.pages import PageContext
from specview.gui.parts.widgets import (
    ElidedLabel,
    Field,
    NumberEdit,
    enable_in_turn,
    label,
    set_kind,
    set_tip,
)
from specview.gui.state.display_text import visible
from specview.settings.run import RunSettings

Setting = TypeVar("Setting", bound=QWidget)
Edit = TypeVar("Edit", bound=NumberEdit)


def show_progress(bar: QProgressBar, fraction: float | None) -> None:
    """Show how far work is, 0..1; None for work that cannot tell."""
    bar.setRange(0, 0 if fraction is None else 1000)
    bar.setValue(0 if fraction is None else round(1000 * min(max(fraction, 0.0), 1.0)))


class JobView:
    """Mixed into a widget: it calls `make_job`, lays out `run`, `stop` and `progress`, then calls `follow_job`.

    What it does is in `work`; what the work told and its result come to `take`, its end to `ended`.
    """

    job_name = ""
    run_text = "Run"
    run_tip = ""
    stop_tip = "Stop and keep what there is (Esc)"
    bar_name = "Progress"
    first_words = "Starting…"

    def make_job(self, controller: Controller) -> None:
        """Make the job, its buttons and its bar."""
        self.controller = controller
        self.job = Job(controller, self.job_name)
        self.run = QPushButton(self.run_text)
        self.run.setProperty("kind", "primary")
        set_tip(self.run, self.run_tip)
        self.run.clicked.connect(lambda: self.start())
        self.stop = QPushButton("Stop")
        set_tip(self.stop, self.stop_tip)
        self.stop.clicked.connect(self.ask_stop)
        self.progress = QProgressBar()
        self.progress.setTextVisible(False)
        self.progress.setRange(0, 1000)
        self.progress.setAccessibleName(self.bar_name)

    def follow_job(self) -> None:
        """Follow the job and the engine; called once all is built."""
        self.job.progressed.connect(self.progressed)
        self.job.told.connect(self.take)
        self.job.ended.connect(self._job_ended)
        self.controller.state_changed.connect(self.show_state)
        self.show_state()

    # -- what a view does ----------------------------------------------------------------------------

    def work(self) -> tuple[Work, RunSettings | None] | None:
        """What Run does on the engine thread, and with which models; raises SpecviewError, one line.

        None where it was not to be, which has been said.
        """
        raise NotImplementedError

    def take(self, found: Any) -> None:
        """Show what the work told, or its result."""

    def ended(self, end: JobEnded) -> None:
        """It is over, its result was taken."""

    def complain(self, text: str, kind: str = "error") -> None:
        """Say in one line why there is nothing; kind is 'error' or 'warning'."""
        raise NotImplementedError

    def progressed(self, news: JobProgress) -> None:
        """Show how far it is."""
        show_progress(self.progress, news.fraction)

    # -- running ---------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether this view's job is under way."""
        return self.job.running

    def start(self) -> None:
        """Run it, on the engine thread; a line says why not."""
        if self.controller.busy_with:
            self.complain(self.controller.busy_words, "warning")
            return
        try:
            wanted = self.work()
        except SpecviewError as error:
            self.complain(str(error))
            return
        if wanted is not None:
            self.progress.setRange(0, 0)
            self.progressed(JobProgress(self.first_words))
            self.job.start(*wanted)
            self.show_state()

    def ask_stop(self) -> None:
        """Stop, keeping what there is."""
        self.job.stop()
        self.show_state()

    def _job_ended(self, end: JobEnded) -> None:
        show_progress(self.progress, 0.0)
        if end.result is not None:
            self.take(end.result)
        elif end.message:
            self.complain(end.message)
        self.ended(end)
        self.show_state()

    def show_state(self) -> None:
        """Say by the buttons what can be done."""
        enable_in_turn(self.run, self.stop, not self.running, self.job.can_stop)


class LabPanel(JobView, QWidget):
    """Settings, Run and Stop in a row, and a sentence: what a lab's view is made of.

    A subclass makes its settings with `field`, `edit` and `number`, lays out what is beneath them (`lay_out`) and draws.
    `edits` are the fields whose text is remembered, by the names it is remembered under.
    """

    stopped_words = "Stopped."

    def __init__(self, context: PageContext) -> None:
        QWidget.__init__(self)
        self.context = context
        self.make_job(context.controller)
        self.edits: dict[str, NumberEdit] = {}
        self._fields: list[Field] = []
        self.status = ElidedLabel("", "small")
        self.verdict = label("")
        self.verdict.setWordWrap(True)
        self.verdict.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.verdict.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.verdict.setAccessibleName("Verdict")

    def field(self, caption: str, widget: Setting, tip: str = "") -> Setting:
        """Add a setting under a caption."""
        self._fields.append(Field(caption, widget, tip))
        return widget

    def edit(self, key: str, caption: str, edit: Edit, tip: str) -> Edit:
        """Add a setting whose text is remembered under `key`."""
        self.edits[key] = edit
        return self.field(caption, edit, tip)

    def number(
        self, key: str, value: float, tip: str, *, caption: str = "", name: str = "", whole: bool = True, minimum: float = 0,
        **more: Any,
    ) -> NumberEdit:  # fmt: skip
        """Add a number that is remembered; caption and name are the key's words where not given. See NumberEdit."""
        caption = caption or key.replace("_", " ")
        return self.edit(key, caption, NumberEdit(name or caption, value, whole=whole, minimum=minimum, **more), tip)

    def lay_out(self, *items: layout.Item) -> None:
        """Put the settings, Run, Stop and progress above the items, and follow the job, the engine and the theme."""
        going = QWidget()
        layout.column(1, self.status, self.progress, on=going)
        buttons = Field(" ", self.run), Field(" ", self.stop)
        layout.column(
            layout.row(*self._fields, *buttons, (going, 1), gap=theme.px(10)), *items, on=self, gap=theme.px(5),
            margins=(theme.px(12), theme.px(6), theme.px(12), theme.px(8))
        )
        self.follow_job()
        theme.signals.changed.connect(self.draw)
        self.draw()

    def say(self, text: str) -> None:
        """Show what was found, in words; nothing takes no room."""
        self.verdict.setText(text)
        self.verdict.setVisible(bool(text))

    def complain(self, text: str, kind: str = "error") -> None:
        self.context.show_message(text, kind)

    def draw(self) -> None:
        """Draw what is shown anew."""
        raise NotImplementedError

    def progressed(self, news: JobProgress) -> None:
        super().progressed(news)
        self.status.set_full(news.text)

    def ended(self, end: JobEnded) -> None:
        self.status.set_full(self.stopped_words if end.stopped else "")

    def show_state(self) -> None:
        """Say by the buttons what can be done: nothing, while anything runs."""
        busy = self.controller.busy_with
        set_tip(self.run, f"Wait: {busy} is under way" if busy else self.run_tip)
        enable_in_turn(self.run, self.stop, not busy, self.job.can_stop)
        self.progress.setVisible(self.running)

    def kept(self) -> dict[str, Any]:
        """What is remembered."""
        return {key: edit.text() for key, edit in self.edits.items()}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Take what `kept` returned, field by field, where it fits."""
        for key, edit in self.edits.items():
            text = kept.get(key)
            if isinstance(text, str) and text:
                before = edit.text()
                edit.setText(text)
                if edit.problem():
                    edit.setText(before)


class JobDialog(JobView, QDialog):
    """A window beside the main one: setup on top, then progress, words, results (`body`) and buttons.

    Closing it leaves the work running; the status bar shows how far it is, and opening the window again shows its results.
    """

    stop_tip = "Stop within one round, and keep what there is"

    def __init__(self, controller: Controller, title: str, parent: QWidget) -> None:
        QDialog.__init__(self, parent)
        self.setWindowTitle(title)
        self.setModal(False)
        self.make_job(controller)
        self.setup = layout.column(gap=theme.px(8))
        self.body = layout.column(gap=theme.px(8))
        self.words: QLabel = label("", "muted")
        self.words.setWordWrap(True)
        self.words.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.words.setAlignment(Qt.AlignmentFlag.AlignTop | Qt.AlignmentFlag.AlignLeft)
        self.words.setMinimumHeight(self.words.fontMetrics().lineSpacing() * 2 + theme.px(4))
        self.close_button = self.button("Close", "Close this window; what runs goes on, and is here when it is opened again")
        self.close_button.clicked.connect(self.hide)
        for button in (self.run, self.stop):
            button.setAutoDefault(False)
        self.buttons = layout.row(1, self.close_button)
        layout.column(
            self.setup, layout.row((self.progress, 1), self.stop, self.run), self.words, (self.body, 1),
            self.buttons, on=self, gap=theme.px(8),
            margins=(theme.px(16), theme.px(14), theme.px(16), theme.px(12))
        )

    def button(self, text: str, tip: str) -> QPushButton:
        """Make a button that Enter in a field does not press: it must not begin minutes of work."""
        made = QPushButton(text)
        made.setAutoDefault(False)
        set_tip(made, tip)
        return made

    def refresh(self) -> None:
        """The state changed: enable what can be used."""

    def say(self, text: str, kind: str = "muted") -> None:
        """Show words under the progress bar; kind as of labels."""
        set_kind(self.words, kind)
        self.words.setText(visible(text))

    def complain(self, text: str, kind: str = "error") -> None:
        self.say(text, kind)

    def progressed(self, news: JobProgress) -> None:
        super().progressed(news)
        self.say(news.text)

    def ended(self, end: JobEnded) -> None:
        if end.result is None and not end.message:
            self.say("Stopped before there was anything to show.", "warning")

    def show_state(self) -> None:
        super().show_state()
        self.refresh()
