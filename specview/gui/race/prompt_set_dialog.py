"""A set of prompts, each one a race of the window's lanes: figures by request and by workload, any of them opened as a race."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QTabWidget, QWidget

from specview.errors import SpecviewError, UsageError
from specview.experiments.prompt_set import (
    ALL,
    SPREAD_WORDS,
    GroupFigures,
    LaneOutcome,
    PromptSetResult,
    RequestResult,
    Spread,
    prompt_set_tables,
    run_prompt_set,
)
from specview.experiments.runner import SeriesProgress
from specview.gui.link.engine_thread import keep_in_library
from specview.gui.link.job import JobEnded, ShouldStop, Tell, Work
from specview.gui.parts import layout, theme
from specview.gui.parts.charts import Chart
from specview.gui.parts.job_view import JobDialog
from specview.gui.parts.pages import PageContext
from specview.gui.parts.prompt_source import PromptSource
from specview.gui.parts.results_table import ResultsTable
from specview.gui.parts.widgets import Field, NumberEdit, label
from specview.gui.state.display_text import visible
from specview.racing import workloads
from specview.settings.events import Event
from specview.settings.run import RunSettings

MOST_REPEATS = 1000
_OFFSET = 0.16  # between the lanes of one workload


@dataclass(frozen=True, slots=True)
class NotKept:
    """Why the races are not kept in the library, or not all of them."""

    line: str


class PromptSetDialog(JobDialog):
    """Picks a set, races it and shows what came of it."""

    job_name = "prompt set"
    bar_name = "Progress of the prompt set"
    first_words = "Loading the models…"

    def __init__(self, context: PageContext, parent: QWidget) -> None:
        super().__init__(context.controller, "Run a prompt set", parent)
        self.context = context
        self.result_shown: PromptSetResult | None = None
        self._not_kept = ""
        self._dots: dict[str, list[int]] = {}
        self.open_chosen = self.button("Open as a race", "Take the selected request's prompt and lanes into the race")
        self.open_slowest = self.button(
            "Open the slowest", "The request with the least speedup of the selected lane, else of the first")
        self.open_fastest = self.button(
            "Open the fastest", "The request with the greatest speedup of the selected lane, else of the first")
        self._lay_out()
        self.open_chosen.clicked.connect(self.open_selected)
        self.open_slowest.clicked.connect(lambda: self.open_extreme(0))
        self.open_fastest.clicked.connect(lambda: self.open_extreme(1))
        for place, button in enumerate((self.open_chosen, self.open_slowest, self.open_fastest)):
            self.buttons.insertWidget(place, button)
        self.resize(theme.px(1080), theme.px(700))
        self.say(
            f"Every prompt becomes a race of the lanes that the window has, plain beside them. A file holds {workloads.FORMATS}; "
            "several turns run as a conversation."
        )
        self.follow_job()

    def _lay_out(self) -> None:
        self.source = PromptSource("prompts", ("file", "workload"))
        self.source.said.connect(self.say)
        self.repeats = NumberEdit("repeats", 1, whole=True, minimum=1, maximum=MOST_REPEATS)
        self.lanes_label = label("", "small")
        self.setup.addLayout(layout.row(
            self.source, Field("repeats", self.repeats, "How often to go round the whole set; speedups are medians"),
            (self.lanes_label, 1, Qt.AlignmentFlag.AlignBottom), gap=theme.px(10)
        ))  # fmt: skip
        self.requests, self.summary = (
            ResultsTable(table.columns, hidden=table.hidden, name=table.name) for table in prompt_set_tables()
        )
        self.tabs = QTabWidget()
        self.tabs.addTab(self.requests, "Requests")
        self.tabs.addTab(self.summary, "Workloads")
        self.tabs.setAccessibleName("Tables")
        self.tabs.tabBar().setAccessibleName("Tables")
        tip = f"Grey marks are requests, the coloured one their median with the quartiles; {SPREAD_WORDS}."
        over = "median and quartiles over requests"
        self.speedup = Chart("Speedup by workload", f"decode tok/s / plain's; {over}", tip, x="workload", y="times plain")
        self.acceptance = Chart("Acceptance by workload", f"alpha = accepted / judged; {over}", tip, x="workload", y="alpha")
        for chart in (self.speedup, self.acceptance):
            chart.say("Nothing ran yet.")
            chart.picked.connect(self._picked)
        below = QWidget()
        layout.row((self.speedup, 1), (self.acceptance, 1), on=below, gap=theme.px(8))
        self.body.addWidget(layout.split(Qt.Orientation.Vertical, (self.tabs, 1, theme.px(280)), (below, 1, theme.px(230))), 1)
        self.requests.selected.connect(lambda _: self.refresh())
        self.requests.activated.connect(lambda _: self.open_selected())

    def work(self) -> tuple[Work, RunSettings | None]:
        """Run the set."""
        settings = self.context.run_settings()
        prompts, repeats = self.source.prompts(settings), self.repeats.value()
        if len(settings.lanes) < 2:
            raise UsageError("The race has no lane beside plain.", "Add one with + Lane, so that there is something to compare.")
        # Kept as a race would be, or not: what is observed of it is kept.
        settings = replace(settings, observe="off" if settings.observe == "off" else "light", history=())

        def work(pool: Any, tell: Tell, should_stop: ShouldStop) -> PromptSetResult:
            keeper = keep_in_library(settings, lambda line: tell(NotKept(line)))

            def show(news: PromptSetResult | SeriesProgress) -> None:
                if isinstance(news, SeriesProgress):
                    tell.progress(news.words, news.fraction)
                else:
                    tell(news)

            def keep(event: Event, part: str) -> None:
                if keeper is not None:
                    keeper.facts["part"] = part
                    keeper.take(event)

            try:
                return run_prompt_set(settings, prompts, repeats, pool, show, should_stop, on_event=keep)
            finally:
                if keeper is not None:
                    keeper.close()

        self._not_kept = ""
        return work, settings

    # -- results ---------------------------------------------------------------------------------

    def take(self, found: Any) -> None:
        if isinstance(found, NotKept):
            self._not_kept = found.line
        else:
            self._show(found)

    def ended(self, end: JobEnded) -> None:
        super().ended(end)
        result: PromptSetResult | None = end.result
        if result is None:
            return
        words, failures = result.sentences, result.failures
        if failures:
            words.append(f"{len(failures)} did not run; the first, {failures[0].name}: {failures[0].error}")
        words += [line for line in (result.busy, self._not_kept) if line]
        self.say(" ".join(words), "warning" if failures or result.busy or self._not_kept or end.stopped else "")

    def _show(self, result: PromptSetResult) -> None:
        self.result_shown = result
        for shown, table in zip((self.requests, self.summary), prompt_set_tables(result), strict=True):
            shown.set_rows(table.rows)
        self._dots = {}
        self._draw(self.speedup, result, lambda group: group.speedup,
                   lambda lane: None if lane.speedup is None else lane.speedup.value)  # fmt: skip
        self.speedup.mark("plain", y=1.0, text="plain")
        self._draw(self.acceptance, result, lambda group: group.acceptance,
                   lambda lane: None if lane.metrics is None else lane.metrics.acceptance_rate)  # fmt: skip
        self.refresh()

    def _draw(
        self, chart: Chart, result: PromptSetResult, spread: Callable[[GroupFigures], Spread | None],
        value: Callable[[LaneOutcome], float | None],
    ) -> None:  # fmt: skip
        chart.clear()
        groups, lanes = list(result.workloads), result.lane_names[1:]
        summary = [one for one in result.summary() if one.workload != ALL or ALL in groups]
        drawn = False
        for index, lane in enumerate(lanes, 1):
            shift = _OFFSET * (index - (len(lanes) + 1) / 2)
            own = [(groups.index(one.workload), found) for one in summary if one.lane == lane and (found := spread(one)) is not None]
            if not own:
                continue
            drawn = True
            dots = [
                (groups.index(one.workload) + shift, figure, one)
                for one in result.requests
                if not one.error and index < len(one.lanes) and (figure := value(one.lanes[index])) is not None
            ]
            chart.curve(
                f"{lane}, requests", [x for x, _, _ in dots], [y for _, y, _ in dots], lane=index, colour="muted", line=False, points=True, in_key=False,
                tips=[f"{one.number} {one.name}: {lane} {y:.2f}" for _, y, one in dots],
            )  # fmt: skip
            self._dots[f"{lane}, requests"] = [one.number for _, _, one in dots]
            chart.curve(
                lane, [at + shift for at, _ in own], [found.median for _, found in own], lane=index, line=False, points=True,
                low=[found.quartile_1 for _, found in own], high=[found.quartile_3 for _, found in own], spread="bars",
                tips=[f"{groups[at]}: {lane} median {found.median:.2f}, quartiles {found.quartile_1:.2f} to {found.quartile_3:.2f}, {found.count} requests"
                      for at, found in own],
            )  # fmt: skip
        chart.say("" if drawn else "No request has this figure yet.")
        chart.ticks("x", [(at, group) for at, group in enumerate(groups)])
        chart.set_range(x=(-0.6, max(len(groups), 1) - 0.4), y=(0.0, 1.05) if chart is self.acceptance else None)

    def _picked(self, name: str, index: int) -> None:
        """A dot was picked: select its request."""
        numbers = self._dots.get(name, [])
        wanted = (numbers[index], name.removesuffix(", requests")) if index < len(numbers) else None
        for place, row in enumerate(self.requests.rows):
            if (row["request"], row.get("lane")) == wanted:
                self.tabs.setCurrentWidget(self.requests)
                self.requests.select(place)
                return

    # -- opening ---------------------------------------------------------------------------------

    def _selected(self) -> tuple[RequestResult | None, str]:
        """The selected request and lane."""
        places = self.requests.selected_rows()
        if self.result_shown is None or not places:
            return None, ""
        row = self.requests.rows[places[0]]
        return self.result_shown.request(row["request"]), str(row.get("lane") or "")

    def open_selected(self) -> None:
        """Take the selected request into the race."""
        request, _ = self._selected()
        if request is not None:
            self._open(request)

    def open_extreme(self, which: int) -> None:
        """Take the slowest (0) or the fastest (1) request into the race."""
        found = {} if self.result_shown is None else self.result_shown.notable()
        _, lane = self._selected()
        pair = found.get(lane) or next(iter(found.values()), None)
        if pair is not None:
            self._open(pair[which])

    def _open(self, request: RequestResult) -> None:
        if self.context.controller.busy_with:
            self.say(self.context.controller.busy_words, "warning")
            return
        self.context.open_race(replace(request.settings, observe="full"))
        self.say(f"{request.name} is in the window now: press Run there.")

    def refresh(self) -> None:
        """Enable what can be used."""
        ready = self.result_shown is not None and not self.running
        self.open_chosen.setEnabled(ready and self._selected()[0] is not None)
        pairs = self.result_shown is not None and bool(self.result_shown.notable())
        for button in (self.open_slowest, self.open_fastest):
            button.setEnabled(ready and pairs)

    def showEvent(self, event: Any) -> None:
        """Say which lanes the window has now."""
        super().showEvent(event)
        try:
            lanes = self.context.run_settings().lanes
        except SpecviewError:
            return
        self.lanes_label.setText(visible(f"lanes: {', '.join(lane.label for lane in lanes)}"))


__all__ = ["PromptSetDialog"]
