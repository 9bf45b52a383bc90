"""A set of prompts, each one a race of the window's lanes: figures by request and by workload, any of them opened as a race."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QFileDialog,
    QPushButton,
    QSplitter,
    QTabWidget,
    QWidget,
)

from specview.errors import SpecviewError, UsageError
from specview.experiments.prompt_set import (
    ALL,
    REQUEST_COLUMNS,
    SPREAD_WORDS,
    SUMMARY_COLUMNS,
    GroupFigures,
    PromptSetResult,
    RequestResult,
    Spread,
    about_set,
    notable,
    request_rows,
    run_prompt_set,
    summary_rows,
)
from specview.gui.link.engine_thread import keep_in_library
from specview.gui.link.job import JobEnded, ShouldStop, Tell, Work
from specview.gui.parts import layout, theme
from specview.gui.parts.charts import Chart
from specview.gui.parts.job_view import JobDialog
from specview.gui.parts.pages import PageContext
from specview.gui.parts.results_table import ResultsTable
from specview.gui.parts.widgets import Choice, Field, NumberEdit, label, set_tip
from specview.gui.state.display_text import visible
from specview.library.keeping import SetParts
from specview.racing import workloads
from specview.racing.workloads import Workload
from specview.settings.events import Event, LaneRound, Progress, RaceStarted
from specview.settings.run import RunSettings

FILE, KIND = "file", "workload"
MOST_REPEATS = 1000
_HIDDEN = ("draft_acceptance", "prompt_tokens")
_HIDDEN_SUMMARY = ("acceptance_least", "acceptance_greatest", "speedup_least", "speedup_greatest", "failed")
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
        self.prompts: Workload | None = None
        self._not_kept = ""
        self.open_chosen = self.button("Open as a race", "Take the selected request's prompt and lanes into the race")
        self.open_slowest = self.button(
            "Open the slowest", "The request with the least speedup of the selected lane, else of the first")
        self.open_fastest = self.button(
            "Open the fastest", "The request with the greatest speedup of the selected lane, else of the first")
        self._make_setup()
        self._make_body()
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

    # -- making ----------------------------------------------------------------------------------

    def _make_setup(self) -> None:
        self.source = Choice(((FILE, "a prompt file…"), (KIND, "a workload that comes along")))
        self.kind = Choice(tuple((name, name) for name in workloads.list_workloads()))
        self.file_button = QPushButton("Choose…")
        self.file_button.setAutoDefault(False)
        set_tip(self.file_button, f"{workloads.FORMATS}. Several turns run as a conversation.")
        self.repeats = NumberEdit("repeats", 1, whole=True, minimum=1, maximum=MOST_REPEATS)
        self.kind_field, self.file_field = Field("workload", self.kind), Field("file", self.file_button)
        self.lanes_label = label("", "small")
        row = layout.row(
            Field("prompts", self.source), self.kind_field, self.file_field,
            Field("repeats", self.repeats, "How often to go round the whole set; speedups are medians"),
            (self.lanes_label, 1, Qt.AlignmentFlag.AlignBottom), gap=theme.px(10)
        )
        self.setup.addLayout(row)
        self.source.currentIndexChanged.connect(self._show_source)
        self.file_button.clicked.connect(self.choose_file)
        self._show_source()

    def _make_body(self) -> None:
        self.requests = ResultsTable(REQUEST_COLUMNS, hidden=_HIDDEN, name="requests")
        self.summary = ResultsTable(SUMMARY_COLUMNS, hidden=_HIDDEN_SUMMARY, name="workloads")
        self.tabs = QTabWidget()
        self.tabs.addTab(self.requests, "Requests")
        self.tabs.addTab(self.summary, "Workloads")
        self.tabs.setAccessibleName("Tables")
        self.tabs.tabBar().setAccessibleName("Tables")
        self.speedup = Chart(
            "Speedup by workload", "decode tok/s / plain's; median and quartiles over requests",
            f"Grey marks are requests, the coloured one their median with the quartiles; {SPREAD_WORDS}.",
            x="workload", y="times plain",
        )  # fmt: skip
        self.acceptance = Chart(
            "Acceptance by workload", "alpha = accepted / judged; median and quartiles over requests",
            f"Grey marks are requests, the coloured one their median with the quartiles; {SPREAD_WORDS}.",
            x="workload", y="alpha",
        )  # fmt: skip
        for chart in (self.speedup, self.acceptance):
            chart.say("Nothing ran yet.")
            chart.picked.connect(lambda name, index, chart=chart: self._picked(name, index))
        below = QWidget()
        layout.row((self.speedup, 1), (self.acceptance, 1), on=below, gap=theme.px(8))
        whole = QSplitter(Qt.Orientation.Vertical)
        whole.addWidget(self.tabs)
        whole.addWidget(below)
        whole.setStretchFactor(0, 1)
        whole.setStretchFactor(1, 1)
        whole.setSizes([theme.px(280), theme.px(230)])
        self.body.addWidget(whole, 1)
        self._dots: dict[str, list[int]] = {}
        self.requests.selected.connect(lambda _: self.refresh())
        self.requests.activated.connect(lambda _: self.open_selected())

    # -- setting up ------------------------------------------------------------------------------

    def _show_source(self) -> None:
        self.kind_field.setVisible(self.source.value() == KIND)
        self.file_field.setVisible(self.source.value() == FILE)

    def choose_file(self) -> None:
        """Ask for a prompt file."""
        path, _ = QFileDialog.getOpenFileName(self, "A set of prompts", "", "Prompts (*.jsonl *.json);;All files (*)")
        if path:
            self.take_file(path)

    def take_file(self, path: str) -> None:
        """Take the prompts of a file; a line says what is wrong with it, by its line number."""
        try:
            self.prompts = workloads.load_prompts_file(path)
        except SpecviewError as error:
            self.say(str(error), "error")
            return
        count = len(self.prompts.prompts)
        words = f"{self.prompts.name} ({count} {'prompt' if count == 1 else 'prompts'})"
        self.file_button.setText(visible(words))
        self.source.set_value(FILE)
        self.say(f"{words}.")

    def work(self) -> tuple[Work, RunSettings | None]:
        """Run the set."""
        settings, prompts = self.context.run_settings(), self.prompts
        if self.source.value() == KIND:
            found = workloads.load(self.kind.value())
            prompts = replace(found, prompts=tuple(replace(one, workload=found.name) for one in found.prompts))
        if prompts is None:
            raise UsageError("No prompt file is chosen.", "Choose one, or a workload.")
        repeats = self.repeats.value()
        if len(settings.lanes) < 2:
            raise UsageError("The race has no lane beside plain.", "Add one with + Lane, so that there is something to compare.")
        # Kept as a race would be, or not: what is observed of it is kept.
        settings = replace(settings, observe="off" if settings.observe == "off" else "light", history=())
        chosen: Workload = prompts

        def work(pool: Any, tell: Tell, should_stop: ShouldStop) -> PromptSetResult:
            teller = _Teller(tell, settings.max_tokens * len(settings.lanes), repeats * len(chosen.prompts))
            keeper = keep_in_library(settings, lambda line: tell(NotKept(line)))
            parts = SetParts(chosen.prompts, repeats)

            def take(event: Event) -> None:
                teller.event(event)
                if keeper is not None:
                    keeper.facts["part"] = parts.part
                    keeper.take(parts.told(event))

            try:
                return run_prompt_set(
                    settings, chosen, repeats, pool, take, teller.after, should_stop, on_begin=parts.begin
                )
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
        result = end.result
        if result is None:
            return
        words = [f"{about_set(result)}; {SPREAD_WORDS}."]
        for lane, (slowest, fastest) in notable(result).items():
            if slowest is not fastest:
                words.append(f"{lane}: slowest {slowest.name}, fastest {fastest.name}.")
        failures = result.failures
        if failures:
            words.append(f"{len(failures)} did not run; the first, {failures[0].name}: {failures[0].error}")
        words += [line for line in (result.busy, self._not_kept) if line]
        self.say(" ".join(words), "warning" if failures or result.busy or self._not_kept or end.stopped else "")

    def _show(self, result: PromptSetResult) -> None:
        self.result_shown = result
        self.requests.set_rows(request_rows(result))
        self.summary.set_rows(summary_rows(result))
        groups = [group for group in result.workloads if group]
        self._dots = {}
        self._draw(self.speedup, result, groups, lambda group: group.speedup,
                   lambda lane: None if lane.speedup is None else lane.speedup.value)  # fmt: skip
        self.speedup.mark("plain", y=1.0, text="plain")
        self._draw(
            self.acceptance, result, groups, lambda group: group.acceptance,
            lambda lane: None if lane.metrics is None else lane.metrics.acceptance_rate,
        )  # fmt: skip
        self.refresh()

    def _draw(
        self,
        chart: Chart,
        result: PromptSetResult,
        groups: list[str],
        spread: Callable[[GroupFigures], Spread | None],
        value: Callable[[Any], float | None],
    ) -> None:
        chart.clear()
        summary = [one for one in result.summary() if one.workload != ALL or ALL in groups]
        lanes = result.lane_names[1:]
        drawn = False
        for index, lane in enumerate(lanes, 1):
            shift = _OFFSET * (index - (len(lanes) + 1) / 2)
            own = [(groups.index(one.workload), found) for one in summary if one.lane == lane and (found := spread(one)) is not None]
            dots = [
                (groups.index(one.workload) + shift, figure, one)
                for one in result.requests
                if not one.error and index < len(one.lanes) and (figure := value(one.lanes[index])) is not None
            ]
            if not own:
                continue
            drawn = True
            chart.curve(
                f"{lane}, requests", [x for x, _, _ in dots], [y for _, y, _ in dots], lane=index, colour="muted", line=False, points=True, in_key=False,
                tips=[f"{one.number} {one.name}: {lane} {y:.2f}" for _, y, one in dots],
            )  # fmt: skip
            self._dots[f"{lane}, requests"] = [one.number for _, _, one in dots]
            chart.curve(
                lane, [at + shift for at, _ in own], [found.median for _, found in own], lane=index, line=False, points=True,
                low=[found.low for _, found in own], high=[found.high for _, found in own], spread="bars",
                tips=[f"{groups[at]}: {lane} median {found.median:.2f}, quartiles {found.low:.2f} to {found.high:.2f}, {found.count} requests"
                      for at, found in own],
            )  # fmt: skip
        chart.say("" if drawn else "No request has this figure yet.")
        chart.ticks("x", [(at, group) for at, group in enumerate(groups)])
        chart.set_range(x=(-0.6, max(len(groups), 1) - 0.4), y=(0.0, 1.05) if chart is self.acceptance else None)

    def _picked(self, name: str, index: int) -> None:
        """A dot was picked: select its request."""
        numbers = self._dots.get(name)
        if numbers is None or index >= len(numbers):
            return
        lane = name.removesuffix(", requests")
        for place, row in enumerate(self.requests.rows):
            if row["request"] == numbers[index] and row.get("lane") == lane:
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
        if self.result_shown is None:
            return
        found = notable(self.result_shown)
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
        """Enable what can be used, and say which lanes would run."""
        idle = not self.running
        ready = self.result_shown is not None and idle
        self.open_chosen.setEnabled(ready and self._selected()[0] is not None)
        pairs = bool(self.result_shown is not None and notable(self.result_shown))
        self.open_slowest.setEnabled(ready and pairs)
        self.open_fastest.setEnabled(ready and pairs)

    def showEvent(self, event: Any) -> None:
        """Say which lanes the window has now."""
        super().showEvent(event)
        try:
            lanes = self.context.run_settings().lanes
        except SpecviewError:
            return
        self.lanes_label.setText(visible(f"lanes: {', '.join(lane.label for lane in lanes)}"))


class _Teller:
    """Turns a set's events into progress."""

    def __init__(self, tell: Tell, wanted: int, total: int) -> None:
        self.tell, self.wanted, self.total = tell, wanted, total
        self.done = self.emitted = 0
        self.told = -1

    def event(self, event: Event) -> None:
        """Something happened in the race under way."""
        if isinstance(event, RaceStarted):
            self.emitted = 0
        elif isinstance(event, LaneRound):
            self.emitted += len(event.round.emitted)
            part = (self.done + min(1.0, self.emitted / self.wanted)) / self.total
            if round(200 * part) != self.told:  # news for the eye, not for every round
                self.told = round(200 * part)
                self.tell.progress(f"Race {self.done + 1} of {self.total}", part)
        elif isinstance(event, Progress) and event.text.startswith("Loading"):
            self.tell.progress(event.text, event.fraction)

    def after(self, result: PromptSetResult, done: int, total: int) -> None:
        """A race is over."""
        self.done, self.total = done, total
        self.tell(replace(result, requests=list(result.requests)))
        self.tell.progress(f"Race {min(done + 1, total)} of {total}", done / total)


__all__ = ["PromptSetDialog"]
