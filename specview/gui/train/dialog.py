"""The training dialog: what to train, how it goes, and its result as a lane. Not modal: races go on beside it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QCloseEvent, QShowEvent
from PySide6.QtWidgets import (
    QDialog,
    QFileDialog,
    QFormLayout,
    QLineEdit,
    QProgressBar,
    QPushButton,
    QScrollArea,
    QWidget,
)

from specview.drafting.registry import methods_for
from specview.errors import SpecviewError, UsageError
from specview.files.figures import number, probability
from specview.gui.link.background import Background
from specview.gui.link.head_checks import heads_folder
from specview.gui.link.pace import Later
from specview.gui.parts import layout, theme
from specview.gui.parts.charts import Chart
from specview.gui.parts.plot_data import thinned
from specview.gui.parts.questions import ask
from specview.gui.parts.widgets import Choice, ElidedLabel, NumberEdit, label, set_kind, set_tip
from specview.gui.train.process import State, TrainingRun
from specview.models.cache import size_words
from specview.models.catalog import path_of
from specview.training.asked import KINDS, TrainSettings, same_run
from specview.training.work import WorkFolder, remove, work_folders

SOURCES = (("", "built-in prompts"), ("prompts", "my prompts (a file)"), ("text", "my text (a file)"))
SOURCE_TIPS = {
    "": "The target itself answers prompts that come with specview: the head learns what it will have to draft.",
    "prompts": "The target answers your prompts: a text file with one a line, or JSON lines.",
    "text": "Your own text as it is, a UTF-8 file; nothing is written by the target.",
}
BESIDE = "They share the processor: this race's times are slower than they would be alone."
END_AFTER_S = 20.0
"""How long a child may take to stop before the button offers to end it."""


class TrainDialog(QDialog):
    """Starts, shows and stops one training run.

    use_asked(method, folder): the result is to be a lane. `target_of` gives (engine, target, name) as the window has
    them now; `files` looks at what earlier trainings keep in the cache.
    """

    use_asked = Signal(str, str)

    def __init__(
        self, run: TrainingRun, target_of: Callable[[], tuple[str, str, str]], files: Background,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setWindowTitle("Train a drafter")
        self.setModal(False)
        self.run = run
        self._target_of = target_of
        self._files = files
        self._kept: list[WorkFolder] = []
        self._target = ""
        self._out_is_ours = True
        self._work_filled = ""
        self.kind = Choice(tuple((name, title) for name, (title, _) in KINDS.items()))
        self.target = ElidedLabel("", "", Qt.TextElideMode.ElideMiddle)
        self.target_note = label("", "small")
        self.target_note.setWordWrap(True)
        self.source = Choice(SOURCES)
        self.file = QLineEdit()
        self.file.setAcceptDrops(False)
        self.file.setAccessibleName("Data file")
        self.file_button = QPushButton("File…")
        self.minutes = NumberEdit("minutes", 60, minimum=1, maximum=43_200, step=10, digits=7)
        self.budget = NumberEdit("feature budget", 4, minimum=0.01, maximum=10_000, step=1, digits=7)
        self.out = QLineEdit()
        self.out.setAcceptDrops(False)
        self.out_button = QPushButton("Folder…")
        self.work = QLineEdit()
        self.work.setAcceptDrops(False)
        self.work.setPlaceholderText("in the cache, named by these settings")
        self.work_button = QPushButton("Folder…")
        self.kept = ElidedLabel("", "small")
        self.remove_button = QPushButton("Remove…")
        self.about = label("", "small")
        self.about.setWordWrap(True)
        self.state = ElidedLabel("", "")
        self.figures = ElidedLabel("", "small")
        self.problem = label("", "error")
        self.problem.setWordWrap(True)
        self.bar = QProgressBar()
        self.bar.setTextVisible(False)
        self.bar.setRange(0, 1000)
        self.bar.setAccessibleName("Progress of the training")
        self.loss = Chart("Loss", "training, by step", "What training lowers; which loss depends on the kind of drafter.",
                          x="step", live=True)  # fmt: skip
        self.alpha = Chart("Held-out α", "accepted / judged, by step", "Acceptance on texts that are not trained on, at k "
                           "drafted tokens, greedy: what the drafter will be worth.", x="step", live=True, floor=1.0)  # fmt: skip
        self.stop = QPushButton("Stop")
        self.start = QPushButton("Start")
        self.start.setProperty("kind", "primary")
        self.use = QPushButton("Use in a lane")
        self.hide_button = QPushButton("Close")
        set_tip(self.stop, "Stop after the step under way; the state is kept, and Resume goes on from it")
        set_tip(self.use, "Add a lane that drafts with the result")
        set_tip(self.hide_button, "Close this dialog; a training that runs goes on")
        self._lay_out()
        self._connect()
        self._kind_changed()
        self._show()

    # -- layout ------------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        form = QFormLayout()
        form.setVerticalSpacing(6)
        form.setHorizontalSpacing(14)
        form.setFieldGrowthPolicy(QFormLayout.FieldGrowthPolicy.AllNonFixedFieldsGrow)
        numbers = QWidget()
        row = layout.row(self.minutes, label("minutes in all"), on=numbers, gap=8)
        row.addSpacing(18)
        row.addWidget(self.budget)
        row.addWidget(label("GB of disk for features"))
        row.addStretch(1)
        self._file_row = _beside(self.file, self.file_button)
        self._kept_row = _beside(self.kept, self.remove_button)
        set_tip(self.remove_button, "Remove the data of earlier trainings; what they trained stays")
        for caption, widget, tip in (
            ("Drafter", self.kind, ""),
            ("", self.about, ""),
            ("Target", self.target, ""),
            ("", self.target_note, ""),
            ("Data", self.source, ""),
            ("File", self._file_row, ""),
            ("Budget", numbers, ""),
            ("Result", _beside(self.out, self.out_button), "Where the finished drafter goes, with its model card"),
            ("Work folder", _beside(self.work, self.work_button),
             "Data and state while it trains. A run with the same settings goes on there: choose it to resume one."),
            ("", self._kept_row, ""),
        ):
            title = label(caption)
            form.addRow(title, widget)
            inner = {"Drafter": self.kind, "Data": self.source, "File": self.file, "Budget": self.minutes,
                     "Result": self.out, "Work folder": self.work}.get(caption)
            if inner is not None:
                title.setBuddy(inner)
                if not inner.accessibleName():
                    inner.setAccessibleName(caption)
            if tip and inner is not None:
                set_tip(inner, tip)
        set_tip(self.minutes, "Time for data and training together, 1 or more; the hour gives a first usable head for "
                "a small target")
        set_tip(self.budget, "The target's hidden states are kept on disk while it trains, this much at most")
        self.remove_button.setAccessibleName("Remove the data of earlier trainings")
        for button, what in ((self.file_button, "data file"), (self.out_button, "result folder"),
                             (self.work_button, "work folder")):
            button.setAccessibleName(f"Choose the {what}")
        self._form = form
        form.setRowVisible(self._kept_row, False)
        body = QWidget()
        body.setObjectName("scrolled")
        inside = layout.column(form, on=body, gap=9)
        inside.addSpacing(4)
        inside.addWidget(self.state)
        inside.addWidget(self.bar)
        inside.addWidget(self.figures)
        inside.addLayout(layout.row((self.loss, 1), (self.alpha, 1), gap=10), 1)
        self._body = body
        self.body_scroll = QScrollArea()
        self.body_scroll.setWidgetResizable(True)
        self.body_scroll.setFrameShape(QScrollArea.Shape.NoFrame)
        self.body_scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.body_scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.body_scroll.setWidget(body)
        layout.column(
            (self.body_scroll, 1), self.problem, layout.row(self.stop, 1, self.hide_button, self.use, self.start),
            on=self, gap=9, margins=(18, 16, 18, 14)
        )
        self.problem.setMinimumHeight(self.problem.fontMetrics().lineSpacing() * 2)
        self.problem.setAlignment(Qt.AlignmentFlag.AlignTop | Qt.AlignmentFlag.AlignLeft)
        self.about.setMinimumHeight(self.about.fontMetrics().lineSpacing())
        for chart in (self.loss, self.alpha):
            chart.attach()
            chart.setMinimumHeight(theme.px(150))
        self._fit()
        layout.tab_order(
            self.kind, self.source, self.file, self.file_button, self.minutes, self.budget, self.out, self.out_button, self.work,
            self.work_button, self.remove_button, self.stop, self.hide_button, self.use, self.start,
        )
        for button in (self.stop, self.hide_button, self.use, self.start, self.file_button, self.out_button,
                       self.work_button, self.remove_button):
            button.setAutoDefault(False)  # Enter in a field must not start hours of work

    def _fit(self) -> None:
        """Take the room that all of it needs, as far as the screen has it; beyond that the body scrolls."""
        room = self.screen().availableGeometry()
        bar = self.body_scroll.verticalScrollBar().sizeHint().width()
        self.body_scroll.setMinimumWidth(min(self._body.minimumSizeHint().width() + bar, room.width() - theme.px(40)))
        rest = self.problem.minimumHeight() + self.start.sizeHint().height() + theme.px(50)
        height = max(theme.px(660), self._body.minimumSizeHint().height() + rest)
        self.resize(min(theme.px(640), room.width()), min(height, room.height() - theme.px(40)))

    def _connect(self) -> None:
        self.kind.currentIndexChanged.connect(self._kind_changed)
        self.source.currentIndexChanged.connect(self._source_changed)
        self.out.textEdited.connect(self._out_edited)
        for edit in (self.file, self.work, self.out):
            edit.textChanged.connect(lambda: self._show())
        for edit in (self.minutes, self.budget):
            edit.edited.connect(lambda: self._show())
        self.file_button.clicked.connect(self._choose_file)
        self.out_button.clicked.connect(lambda: self._choose_folder(self.out, "The result's folder"))
        self.work_button.clicked.connect(lambda: self._choose_folder(self.work, "Work folder"))
        self.start.clicked.connect(self.begin)
        self.stop.clicked.connect(self.run.stop)
        self.hide_button.clicked.connect(self.close)
        self.use.clicked.connect(self._use)
        self.remove_button.clicked.connect(self.remove_kept)
        self.run.changed.connect(self._show)
        self.run.ended.connect(self._look_at_kept)
        self._late_stop = Later(self, round(END_AFTER_S * 1e3), lambda: self._show())
        theme.signals.changed.connect(self._restyle)
        self._source_changed()

    def showEvent(self, event: QShowEvent) -> None:
        """Take the window's target as it is now, and make the plots once the dialog is on screen."""
        super().showEvent(event)
        self.refresh_target()
        self._look_at_kept()

    # -- settings ----------------------------------------------------------------------------------

    def refresh_target(self) -> None:
        """Show the target that the window has now; one under training stays."""
        if self.run.running:
            return
        engine, self._target, name = self._target_of()
        self.target.set_full(name)
        self.target_note.setText(
            "Trained with transformers over the same weights; the result drafts in llama.cpp too."
            if engine == "llama.cpp" else ""
        )
        self._form.setRowVisible(self.target_note, bool(self.target_note.text()))
        self._name_out()
        self._show()

    def request(self) -> TrainSettings:
        """What is asked for; raises UsageError where it cannot work."""
        asked = self._asked(float(self.minutes.value()), float(self.budget.value()))
        if not self.out.text().strip():
            raise UsageError("no folder for the result is named.", "Choose one.")
        if self.source.value():
            file = asked.prompts or asked.text
            if file is None:
                raise UsageError("no data file is named.", "Choose one, or take the built-in prompts.")
            if not file.is_file():
                raise UsageError(f"there is no file {self.file.text().strip()}.", "Check the path.")
        return asked.checked()

    def _asked(self, minutes: float, budget: float) -> TrainSettings:
        """What the fields say, fit or not."""
        out, file, work = (path_of(text) if (text := line.text().strip()) else None for line in (self.out, self.file, self.work))
        source = self.source.value()
        return TrainSettings(
            kind=self.kind.value(), target=self._target, out=out or Path(), minutes=minutes, feature_budget_gb=budget,
            work=work, prompts=file if source == "prompts" else None, text=file if source == "text" else None,
        )  # fmt: skip

    def begin(self) -> None:
        """Start the training, or go on with it."""
        try:
            request = self.request()
        except SpecviewError as error:
            self._say(str(error))
            return
        self.run.start(request)

    def _kind_changed(self) -> None:
        about = KINDS[self.kind.value()][1]
        self.about.setText(f"{about[0].upper()}{about[1:]}.")
        self._name_out()
        self._show()

    def _source_changed(self) -> None:
        source = self.source.value()
        set_tip(self.source, SOURCE_TIPS[source])
        self._form.setRowVisible(self._file_row, bool(source))
        self._show()

    def _name_out(self) -> None:
        """Name a folder for the result, unless the user has."""
        if self._out_is_ours and self._target:
            name = f"{self.kind.value()}-{_plain_name(self._target)}"
            place, count = heads_folder() / name, 2
            while place.exists():
                place, count = heads_folder() / f"{name}-{count}", count + 1
            self.out.setText(str(place))

    def _out_edited(self) -> None:
        self._out_is_ours = not self.out.text().strip()

    def _choose_file(self) -> None:
        path, _ = QFileDialog.getOpenFileName(self, "Data for training", "", "Text (*.txt *.md *.jsonl *.json);;All files (*)")
        if path:
            self.file.setText(path)

    def _choose_folder(self, line: QLineEdit, title: str) -> None:
        path = QFileDialog.getExistingDirectory(self, title)
        if path:
            line.setText(path)
            if line is self.out:
                self._out_is_ours = False

    def _use(self) -> None:
        request = self.run.request
        if request is not None and self.run.folder:
            self.use_asked.emit(methods_for(request.kind)[0], self.run.folder)

    # -- what earlier trainings keep ---------------------------------------------------------------

    def _look_at_kept(self) -> None:
        self._files.do(work_folders, self._show_kept, "trainings")

    def _show_kept(self, found: list[WorkFolder]) -> None:
        self._kept = found
        size = size_words(sum(folder.size_bytes for folder in found))
        self.kept.set_full(f"Earlier trainings keep {size} in the cache.")
        self._form.setRowVisible(self._kept_row, bool(found))
        self.remove_button.setEnabled(True)

    def remove_kept(self) -> None:
        """Ask, and remove the data of earlier trainings from the cache."""
        found = self._kept
        words = f"Remove the data of {len(found)} training{'' if len(found) == 1 else 's'} from the cache?"
        more = "What they trained stays. One that was stopped cannot go on then; one that runs keeps its data."
        if ask(self, "Data of trainings", words, {"remove": "Remove"}, more, careful=True):
            self.remove_button.setEnabled(False)
            self._files.do(lambda: [remove(folder) for folder in found], lambda _: self._removed(), otherwise=self._not_removed)

    def _removed(self) -> None:
        self._look_at_kept()
        self._show()

    def _not_removed(self, line: str) -> None:
        self._removed()
        self._say(line)

    # -- what is shown -----------------------------------------------------------------------------

    def _say(self, text: str, kind: str = "error") -> None:
        set_kind(self.problem, kind)
        self.problem.setText(text)

    def _show(self) -> None:
        run = self.run
        busy = run.running
        for widget in (self.kind, self.source, self.file, self.file_button, self.minutes, self.budget, self.out,
                       self.out_button, self.work, self.work_button):
            widget.setEnabled(not busy)
        same = run.request is not None and same_run(run.request, self._asked(0, 0))
        work = self.work.text().strip()
        if same and run.state == "stopped" and run.work and not work:
            self._work_filled = run.work
            self.work.setText(run.work)
        elif not same and not busy and work and work == self._work_filled:
            self._work_filled = ""
            self.work.clear()
        words = state_words(run)
        self.state.set_full(words)
        if busy and run.fraction is None:
            self.bar.setRange(0, 0)
        else:
            self.bar.setRange(0, 1000)
            self.bar.setValue(round(1000 * (run.fraction or 0.0)))
        self.figures.set_full(figure_words(run))
        problem, request = "", None
        if not busy:
            try:
                request = self.request()
            except SpecviewError as error:
                problem = str(error)
        if problem:
            self._say(problem)
        elif run.state == "failed":  # an old failure stands only while the same would be tried again
            self._say(run.message if request == run.request else "")
        elif run.message and (busy or same):
            self._say(run.message, "warning")
        else:
            self._say("")
        waited = 0.0 if run.stop_asked_at is None else time.monotonic() - run.stop_asked_at
        late = run.state == "stopping" and waited >= END_AFTER_S
        if run.state == "stopping" and not late and not self._late_stop.isActive():
            self._late_stop.start()
        self.stop.setText("End it now" if late else "Stop")
        self.stop.setEnabled(run.state == "running" or late)
        kept = _has_job(self.work.text())
        if run.state in ("stopped", "failed") and same and not self.work.text().strip():
            kept = run.step is not None  # in the cache, under a name of these settings
        self.start.setText("Resume" if kept and not busy else "Start")
        self.start.setEnabled(not busy and not problem)
        self.use.setEnabled(run.state == "done" and bool(run.folder))
        self._draw()

    def _draw(self) -> None:
        run = self.run
        for chart, curves, decimals in (
            (self.loss, {"loss": run.loss} if run.loss.x else {}, 3),
            (self.alpha, {f"k {k}": curve for k, curve in run.held_out.items()}, 2),
        ):
            chart.say("" if curves else "Fills as it trains")
            if not curves:
                chart.clear()
            for lane, (name, curve) in enumerate(curves.items(), start=1):
                x, y = curve.x, curve.y
                if len(x) == 1:  # one point is no line
                    x, y = [0.0 if x[0] else -1.0, *x], [y[0], *y]
                points = thinned(np.array(x, dtype=float), np.array(y, dtype=float))
                chart.curve(name, *points, lane=lane, head=True, width_px=1.0, value=number(curve.y[-1], decimals))

    def _restyle(self) -> None:
        for chart in (self.loss, self.alpha):
            chart.setMinimumHeight(theme.px(150))

    def closeEvent(self, event: QCloseEvent) -> None:
        """Hide: a training that runs goes on."""
        event.accept()


def _beside(line: QWidget, button: QPushButton) -> QWidget:
    holder = QWidget()
    layout.row((line, 1), button, on=holder)
    return holder


def _has_job(folder: str) -> bool:
    """Whether a work folder holds a run to go on with."""
    text = folder.strip()
    try:
        return bool(text) and (path_of(text) / "job.json").is_file()
    except OSError:
        return False


def _plain_name(target: str) -> str:
    name = target.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1].removesuffix(".gguf")
    name = "smollm2-135m" if name == "bundled" else name
    return "".join(char if char.isalnum() or char in "-_." else "-" for char in name)[:60]


def duration(seconds: float) -> str:
    """Write a time that is left: '40 s', '12 min', '3 h 05 min'."""
    if not math.isfinite(seconds):
        return ""
    if seconds < 90:
        return f"{max(seconds, 0):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def state_words(run: TrainingRun) -> str:
    """What the training is doing, how far it is and how long it takes yet."""
    words: dict[State, str] = {
        "idle": "Nothing is trained yet.",
        "running": run.stage or "Starting",
        "stopping": "Stopping after the step under way; the state is kept",
        "stopped": "Stopped; Resume goes on from here." if run.work or run.step is not None else "Stopped.",
        "done": f"Done: {run.folder}",
        "failed": "Ended before it was done.",
    }
    said = words[run.state]
    if run.state == "running":
        said += f" · {run.fraction:.0%}" if run.fraction is not None else "…"
        if run.left_s is not None:
            said += f" · {duration(run.left_s)} left"
    return said


def figure_words(run: TrainingRun) -> str:
    """The figures of the last step and the last held-out measurement."""
    parts = []
    if run.step is not None:
        parts.append(f"step {run.step}")
    if run.loss.y:
        parts.append(f"loss {number(run.loss.y[-1], 3)}")
    if run.agreement is not None:
        parts.append(f"agreement with the target {probability(run.agreement)}")
    if run.tokens_per_pass:
        k, value = list(run.tokens_per_pass.items())[-1]
        parts.append(f"held-out tokens per target pass {number(value)} at k {k}")
    return " · ".join(parts)
