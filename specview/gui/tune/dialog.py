"""Tune: which method, draft length and policy are fastest here, found within a time budget; one of them into the race."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QGuiApplication
from PySide6.QtWidgets import (
    QFileDialog,
    QMenu,
    QPushButton,
    QScrollArea,
    QSplitter,
    QToolButton,
    QWidget,
)

from specview.drafting.lanes import heads_of, needs_draft
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError, UsageError
from specview.experiments.guide import guide
from specview.experiments.tune_result import RANKING_COLUMNS, ArmResult, TuneResult, ranking_rows, told_lanes
from specview.experiments.tuning import DEFAULT_SECONDS, TuneProgress, tune
from specview.gui.link.job import JobEnded, ShouldStop, Tell, Work
from specview.gui.parts import layout, theme
from specview.gui.parts.charts import Chart
from specview.gui.parts.job_view import JobDialog
from specview.gui.parts.pages import RACE, PageContext
from specview.gui.parts.results_table import ResultsTable
from specview.gui.parts.widgets import Choice, ElidedLabel, Field, NumberEdit, label
from specview.gui.state.display_text import brief, visible
from specview.racing import workloads
from specview.racing.intervals import interval_of
from specview.racing.workloads import Prompt, Workload
from specview.settings.run import BUNDLED, RunSettings

THIS, KIND, FILE = "prompt", "workload", "file"
_MOST_NAMED = 12  # lanes that the chart names
_TICK_CHARACTERS = 100  # beneath a chart of the usual width
_TICK_LINES = 3


class TuneDialog(JobDialog):
    """Sets tuning up, runs it and shows its ranking; the lane to use goes into the race."""

    job_name = "tuning"
    run_text = "Tune"
    bar_name = "Progress of the tuning"
    first_words = "Loading the target…"

    def __init__(self, context: PageContext, parent: QWidget) -> None:
        super().__init__(context.controller, "Tune: the fastest method here", parent)
        self.context = context
        self.result_shown: TuneResult | None = None
        self._file: Workload | None = None
        self.use = self.button("Use it in the race", "Add the selected lane to the race, with this k and policy")
        self.copy = self.button("Copy as --lane", "Copy the selected lane as the command line takes it")
        self._make_setup()
        self._make_body()
        self.buttons.insertWidget(0, self.use)
        self.buttons.insertWidget(1, self.copy)
        self.use.clicked.connect(self.use_lane)
        self.copy.clicked.connect(self.copy_lane)
        self.resize(theme.px(1080), theme.px(700))
        self.say(
            "Cheap predictions first, then races of the promising lanes beside plain, and last the chosen one anew: "
            "only these last races make the interval. Where plain decoding wins, it says so."
        )
        self.follow_job()

    # -- making ----------------------------------------------------------------------------------

    def _make_setup(self) -> None:
        self.source = Choice(((THIS, "the prompt in the window"), (KIND, "all prompts of a workload"), (FILE, "a prompt file…")))
        self.kind = Choice(tuple((name, name) for name in workloads.list_workloads()))
        self.file_button = QPushButton("Choose…")
        self.file_button.setAutoDefault(False)
        self.minutes = NumberEdit("minutes", DEFAULT_SECONDS / 60, minimum=0.1, maximum=24 * 60)
        self.methods_button = QToolButton()
        self.methods_button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.methods_menu = QMenu(self.methods_button)
        self.methods_button.setMenu(self.methods_menu)
        self.method_actions: dict[str, QAction] = {}
        family = ""
        for method in METHODS.values():
            if not method.drafts:
                continue
            if method.family != family:
                family = method.family
                self.methods_menu.addSection(family)
            action = self.methods_menu.addAction(method.label)
            action.setCheckable(True)
            action.setChecked(True)
            action.setToolTip(method.description)
            action.toggled.connect(self._name_methods)
            self.method_actions[method.name] = action
        self._name_methods()
        self.kind_field = Field("workload", self.kind)
        self.file_field = Field("file", self.file_button)
        row = layout.row(
            Field("tune for", self.source, "What is decoded: with several prompts, some are kept back to confirm on"),
            self.kind_field, self.file_field,
            Field("minutes", self.minutes, "The time budget, loading included; it is kept within one race"),
            Field("methods", self.methods_button, "What may be tried; those that cannot run here are listed with the reason"),
            1, gap=theme.px(10)
        )
        self.setup.addLayout(row)
        self.source.currentIndexChanged.connect(self._show_source)
        self.file_button.clicked.connect(self.choose_file)
        self._show_source()

    def _make_body(self) -> None:
        self.table = ResultsTable(RANKING_COLUMNS, identity="lane", name="ranking")
        self.chart = Chart(
            "Speedup of each lane", "geometric mean over races, with its 95% interval",
            "Of the confirmed lane from fresh races; of the others from those that they were chosen by, which flatter.",
            x="place in the ranking", y="times plain",
        )  # fmt: skip
        self.advice = label("", "small")
        self.advice.setWordWrap(True)
        self.advice.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.advice.setAlignment(Qt.AlignmentFlag.AlignTop)
        area = QScrollArea()
        area.setWidgetResizable(True)
        area.setAccessibleName("Decision guide")
        holder = QWidget()
        layout.column(
            label("Which families to try, by what was measured here", "title"), (self.advice, 1), on=holder,
            margins=(theme.px(10), theme.px(8), theme.px(10), theme.px(8))
        )
        area.setWidget(holder)
        self.why = ElidedLabel("", "small")
        top = QWidget()
        layout.column((self.table, 1), self.why, on=top, gap=theme.px(4))
        below = QSplitter(Qt.Orientation.Horizontal)
        below.addWidget(self.chart)
        below.addWidget(area)
        below.setStretchFactor(0, 1)
        below.setStretchFactor(1, 1)
        whole = QSplitter(Qt.Orientation.Vertical)
        whole.addWidget(top)
        whole.addWidget(below)
        whole.setStretchFactor(0, 3)
        whole.setStretchFactor(1, 2)
        whole.setSizes([theme.px(270), theme.px(240)])
        self.body.addWidget(whole, 1)
        self.chart.say("Nothing was tuned yet.")
        self.advice.setText("The guide comes with the first results.")
        self.table.selected.connect(lambda _: self.refresh())
        self.table.activated.connect(lambda _: self.use_lane())
        self.chart.picked.connect(lambda _, index: self.table.select(index))

    # -- setting up ------------------------------------------------------------------------------

    def _show_source(self) -> None:
        chosen = self.source.value()
        self.kind_field.setVisible(chosen == KIND)
        self.file_field.setVisible(chosen == FILE)

    def _name_methods(self) -> None:
        chosen = sum(action.isChecked() for action in self.method_actions.values())
        total = len(self.method_actions)
        self.methods_button.setText(f"{'all' if chosen == total else f'{chosen} of {total}'} ▾")

    def choose_file(self) -> None:
        """Ask for a prompt file."""
        path, _ = QFileDialog.getOpenFileName(self, "Prompts to tune for", "", "JSON Lines (*.jsonl);;All files (*)")
        if path:
            self.take_file(path)

    def take_file(self, path: str) -> None:
        """Take the prompts of a file; a line says what is wrong with it."""
        try:
            self._file = workloads.load_prompts_file(path)
        except SpecviewError as error:
            self.say(str(error), "error")
            return
        count = len(self._file.prompts)
        self.file_button.setText(visible(f"{self._file.name} ({count} {'prompt' if count == 1 else 'prompts'})"))
        self.source.set_value(FILE)
        self.say(f"{self._file.name}: {count} prompts.")

    def prompts(self, settings: RunSettings) -> Workload:
        """What is tuned for; raises UsageError."""
        chosen = self.source.value()
        if chosen == KIND:
            found = workloads.load(self.kind.value())
            return replace(found, prompts=tuple(replace(one, workload=found.name) for one in found.prompts))
        if chosen == FILE:
            if self._file is None:
                raise UsageError("No prompt file is chosen.", "Choose one, or tune for the prompt in the window.")
            return self._file
        if settings.chat and not settings.prompt.strip():
            raise UsageError("The prompt is empty.", "Type one, or choose a workload.")
        one = Prompt(settings.prompt, settings.system, history=settings.history, workload=settings.workload or "")
        return Workload("prompt", (one,), workloads.content_sha256((one,)))

    def work(self) -> tuple[Work, RunSettings | None]:
        """Tune."""
        settings = self.context.run_settings()
        prompts, seconds = self.prompts(settings), 60.0 * self.minutes.value()
        names = [name for name, action in self.method_actions.items() if action.isChecked()]
        if not names:
            raise UsageError("No method is chosen.", "Tick at least one.")
        drafts = tuple(dict.fromkeys(
            ref for lane in settings.lanes for ref in (*((lane.draft,) if needs_draft(lane) else ()),
                                                       *(choice.ref for choice in heads_of(lane).values()))
            if ref != BUNDLED
        ))  # fmt: skip
        methods = () if len(names) == len(self.method_actions) else tuple(names)

        def work(pool: Any, tell: Tell, should_stop: ShouldStop) -> TuneResult:
            def progress(news: TuneProgress) -> None:
                best = f". Best so far: {news.best}, {news.best_speedup:.2f} times plain" if news.best_speedup else ""
                tell.progress(f"{news.text}{best}", news.fraction)

            return tune(
                settings, prompts, seconds, methods=methods, drafts=drafts, models=pool, on_progress=progress,
                on_result=lambda found: tell(found.snapshot()), should_stop=should_stop,
            )  # fmt: skip

        return work, settings

    # -- results ---------------------------------------------------------------------------------

    def take(self, found: Any) -> None:
        self._show(found)

    def ended(self, end: JobEnded) -> None:
        super().ended(end)
        result = end.result
        if result is None:
            return
        if result.winner is not None:
            for place, row in enumerate(self.table.rows):
                if row["lane"] == result.winner.name:
                    self.table.select(place)
        notes = list(result.failures)
        if result.races and result.tokens < result.settings.max_tokens:
            notes.append(f"Races of {result.tokens} tokens, not {result.settings.max_tokens}: the budget is short for more.")
        if result.busy:
            notes.append(result.busy)
        kind = "" if result.verdict == "faster" else "warning"
        self.say(" ".join([result.sentence, *notes]), kind)

    def _show(self, result: TuneResult) -> None:
        self.result_shown = result
        names = {arm.name for arm in told_lanes(result)}
        rows = [{**row, "place": place} for place, row in enumerate((row for row in ranking_rows(result) if row["lane"] in names), 1)]
        self.table.set_rows(rows)
        self._show_chart([arm for arm in result.ranking if arm.name in names and arm.worth is not None])
        lines = [line.text for line in guide(result)]
        if result.unusable:
            lines += [f"{one.method}: {one.reason}" for one in result.unusable]
        self.advice.setText("\n\n".join(visible(line) for line in lines) or "The guide comes with the first results.")
        self.refresh()

    def _show_chart(self, arms: list[ArmResult]) -> None:
        self.chart.clear()
        arms = arms[:_MOST_NAMED]
        self.chart.say("" if arms else "Nothing was raced yet.")
        if not arms:
            return
        groups: dict[str, list[int]] = {}
        for place, arm in enumerate(arms):
            key = "raced anew" if arm.fresh else "while choosing" if arm.speedups else "predicted only"
            groups.setdefault(key, []).append(place)
        looks = {"raced anew": ("accepted", 0), "while choosing": ("bonus", 1), "predicted only": ("muted", 2)}
        for name, places in groups.items():
            found = [interval_of(arms[at].fresh) or arms[at].chosen_by for at in places]
            y = [arms[at].worth or 0.0 for at in places]
            low = [one.low if one is not None and one.low is not None else value for one, value in zip(found, y, strict=True)]
            high = [one.high if one is not None and one.high is not None else value for one, value in zip(found, y, strict=True)]
            self.chart.curve(
                name, [at + 1 for at in places], y, colour=looks[name][0], lane=looks[name][1], line=False, points=True,
                low=low, high=high, spread="bars", tips=[f"{arms[at].name}: {arms[at].worth:.2f} times plain" for at in places],
            )  # fmt: skip
        most = max(arm.worth or 0.0 for arm in arms)
        self.chart.set_range(x=(0.4, len(arms) + 0.6), y=(0.0, 1.5 * max(most, 1.0)))  # a wide interval must not flatten all
        self.chart.mark("plain", y=1.0, text="plain")
        room = max(8, _TICK_CHARACTERS // len(arms))
        self.chart.ticks("x", [
            (at, "\n".join([str(at), *(brief(visible(part.removeprefix("policy=")), room) for part in arm.name.split(",")[:_TICK_LINES])]))
            for at, arm in enumerate(arms, 1)
        ])  # fmt: skip

    def chosen(self) -> ArmResult | None:
        """The selected lane, else the one to use."""
        result = self.result_shown
        if result is None:
            return None
        places = self.table.selected_rows()
        if places:
            name = self.table.rows[places[0]]["lane"]
            return next((arm for arm in result.arms if arm.name == name), None)
        return result.best

    def refresh(self) -> None:
        """Name and enable what can be used."""
        chosen = self.chosen() if self.result_shown is not None else None
        self.use.setEnabled(chosen is not None and not self.running)
        self.copy.setEnabled(chosen is not None)
        self.why.set_full("" if chosen is None else visible(f"{chosen.name}: {chosen.why}."))
        self.use.setText("Use it in the race" if chosen is None else f"Use {chosen.name[:60]}")

    def use_lane(self) -> None:
        """Put the chosen lane into the race."""
        chosen = self.chosen()
        if chosen is None or self.running:
            return
        if self.context.add_lane(chosen.lane):
            self.context.goto(RACE)
            self.say(f"{chosen.name} is a lane of the race now.")

    def copy_lane(self) -> None:
        """Put the chosen lane's text on the clipboard."""
        chosen = self.chosen()
        if chosen is not None:
            QGuiApplication.clipboard().setText(f'--lane "{chosen.name}"')
            self.say(f"Copied: --lane {chosen.name}")
