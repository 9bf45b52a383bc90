"""Tune: which method, draft length and policy are fastest here, found within a time budget; one of them into the race."""

from __future__ import annotations

from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QGuiApplication
from PySide6.QtWidgets import QWidget

from specview.drafting.lanes import flat_settings, heads_of, needs_draft
from specview.drafting.registry import METHODS
from specview.errors import UsageError
from specview.experiments.guide import guide_sections
from specview.experiments.tune_result import RANKING_COLUMNS, ArmResult, TuneResult, ranking_rows
from specview.experiments.tuning import DEFAULT_SECONDS, TuneProgress, tune
from specview.files.report import Report, Text
from specview.gui.link.job import JobEnded, ShouldStop, Tell, Work
from specview.gui.parts import layout, theme
from specview.gui.parts.charts import Chart
from specview.gui.parts.job_view import JobDialog
from specview.gui.parts.pages import RACE, PageContext
from specview.gui.parts.prompt_source import PromptSource
from specview.gui.parts.report_view import ReportView
from specview.gui.parts.results_table import ResultsTable
from specview.gui.parts.serve_dialog import ServeDialog
from specview.gui.parts.widgets import ElidedLabel, Field, NumberEdit, menu_button
from specview.gui.state.display_text import brief, visible
from specview.settings.run import BUNDLED, RunSettings

_MOST_NAMED = 12  # lanes that the chart names
_TICK_CHARACTERS = 100  # beneath a chart of the usual width
_TICK_LINES = 3
_LOOKS = {"raced anew": ("accepted", 0), "while choosing": ("bonus", 1), "predicted only": ("muted", 2)}
"""Colour and shape of a lane's point, by where its speedup comes from."""


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
        self.use = self.button("Use it in the race", "Add the selected lane to the race, with this k and policy")
        self.copy = self.button("Copy as --lane", "Copy the selected lane as the command line takes it")
        self.serve = self.button("Command for a server…", "What starts a serving engine with the selected lane")
        self._make_setup()
        self._make_body()
        self.buttons.insertWidget(0, self.use)
        self.buttons.insertWidget(1, self.copy)
        self.buttons.insertWidget(2, self.serve)
        self.use.clicked.connect(self.use_lane)
        self.copy.clicked.connect(self.copy_lane)
        self.serve.clicked.connect(self.serve_lane)
        self.resize(theme.px(1080), theme.px(700))
        self.say(
            "Cheap predictions first, then races of the promising lanes beside plain, and last the chosen one anew: "
            "only these last races make the interval. Where plain decoding wins, it says so."
        )
        self.follow_job()

    # -- making ----------------------------------------------------------------------------------

    def _make_setup(self) -> None:
        self.source = PromptSource(
            "tune for", ("prompt", "workload", "file"), "What is decoded: with several prompts, some are kept back to confirm on"
        )
        self.source.said.connect(self.say)
        self.minutes = NumberEdit("minutes", DEFAULT_SECONDS / 60, minimum=0.1, maximum=24 * 60)
        self.methods_button, self.methods_menu = menu_button("")
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
        self.setup.addLayout(layout.row(
            self.source,
            Field("minutes", self.minutes, "The time budget, loading included; it is kept within one race"),
            Field("methods", self.methods_button, "What may be tried; those that cannot run here are listed with the reason"),
            1, gap=theme.px(10)
        ))  # fmt: skip

    def _make_body(self) -> None:
        self.table = ResultsTable(RANKING_COLUMNS, identity="lane", name="ranking")
        self.chart = Chart(
            "Speedup of each lane", "geometric mean over races, with its 95% interval",
            "Of the confirmed lane from fresh races; of the others from those that they were chosen by, which flatter.",
            x="place in the ranking", y="times plain",
        )  # fmt: skip
        self.advice = ReportView("Decision guide")
        self.why = ElidedLabel("", "small")
        top = QWidget()
        layout.column((self.table, 1), self.why, on=top, gap=theme.px(4))
        below = layout.split(Qt.Orientation.Horizontal, (self.chart, 1, theme.px(540)), (self.advice, 1, theme.px(540)))
        self.body.addWidget(layout.split(Qt.Orientation.Vertical, (top, 3, theme.px(270)), (below, 2, theme.px(240))), 1)
        self.chart.say("Nothing was tuned yet.")
        self.advice.show_report(Report("", [Text("The guide comes with the first results.")]))
        self.table.selected.connect(lambda _: self.refresh())
        self.table.activated.connect(lambda _: self.use_lane())
        self.chart.picked.connect(lambda _, index: self.table.select(index))

    def _name_methods(self) -> None:
        chosen = sum(action.isChecked() for action in self.method_actions.values())
        total = len(self.method_actions)
        self.methods_button.setText(f"{'all' if chosen == total else f'{chosen} of {total}'} ▾")

    def work(self) -> tuple[Work, RunSettings | None]:
        """Tune."""
        settings = self.context.run_settings()
        prompts, seconds = self.source.prompts(settings), 60.0 * self.minutes.value()
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
                tell.progress(news.words, news.fraction)

            return tune(
                settings, prompts, seconds, methods=methods, drafts=drafts, models=pool, on_progress=progress,
                on_result=lambda found: tell(found.snapshot()), should_stop=should_stop,
            )  # fmt: skip

        return work, settings

    # -- results ---------------------------------------------------------------------------------

    def take(self, result: TuneResult) -> None:
        """Show what was found by now."""
        self.result_shown = result
        self.table.set_rows(ranking_rows(result.told))
        self._show_chart([arm for arm in result.told if arm.worth is not None][:_MOST_NAMED])
        self.advice.show_report(Report("", guide_sections(result)))
        self.refresh()

    def ended(self, end: JobEnded) -> None:
        super().ended(end)
        result: TuneResult | None = end.result
        if result is None:
            return
        if result.winner is not None:
            for place, row in enumerate(self.table.rows):
                if row["lane"] == result.winner.name:
                    self.table.select(place)
        kind = "" if result.verdict == "faster" else "warning"
        self.say(" ".join([result.sentence, *result.failures, *result.notes]), kind)

    def _show_chart(self, arms: list[ArmResult]) -> None:
        self.chart.clear()
        self.chart.say("" if arms else "Nothing was raced yet.")
        if not arms:
            return
        groups: dict[str, list[tuple[int, ArmResult]]] = {}
        for place, arm in enumerate(arms, 1):
            key = "raced anew" if arm.fresh else "while choosing" if arm.speedups else "predicted only"
            groups.setdefault(key, []).append((place, arm))
        for name, own in groups.items():
            worth = [arm.worth or 0.0 for _, arm in own]
            ends = [(found.low, found.high) if (found := arm.measured) is not None else (None, None) for _, arm in own]
            low, high = ([value if one is None else one for one, value in zip(side, worth, strict=True)] for side in zip(*ends, strict=True))
            colour, lane = _LOOKS[name]
            self.chart.curve(
                name, [at for at, _ in own], worth, colour=colour, lane=lane, line=False, points=True, low=low, high=high,
                spread="bars", tips=[f"{arm.name}: {arm.worth:.2f} times plain" for _, arm in own],
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
        self.serve.setEnabled(chosen is not None)
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

    def serve_lane(self) -> None:
        """Show what starts a serving engine with the chosen lane."""
        chosen = self.chosen()
        if chosen is not None:
            ServeDialog(chosen.name, flat_settings(self.context.run_settings(), chosen.lane), self).open()
