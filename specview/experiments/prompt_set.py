"""A set of prompts, each one a race: acceptance and speed by request and by workload, with their spread.

Repeats go round the whole set before any prompt comes again, so that a noisy moment slows all alike, and a stop keeps
what is done. A request that cannot run (a prompt too long for the context) is told in one line, and the rest go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from specview.decoding.metrics import Metrics, percentile
from specview.decoding.speedup import Speedup, median_speedup, pooled
from specview.drafting.lanes import flat_settings
from specview.experiments.runner import Clock, Pace, RaceFailed, Runner, SeriesProgress, lane_keys
from specview.files.documents import speedup_to_json
from specview.files.figures import METRICS, columns
from specview.files.report import Block, Report, Table, Text
from specview.files.schema import Json, plain
from specview.files.tables import Column, Row
from specview.racing.compare import CompareResult, median_metrics
from specview.racing.pool import ModelPool, ShouldStop
from specview.racing.resolve import checked_run
from specview.racing.workloads import Prompt, Workload
from specview.settings.events import Event
from specview.settings.run import RunSettings

ALL = "all"
"""The group of every request."""
NO_WORKLOAD = "unnamed"
"""The group of prompts that name no workload."""
MOST_PRINTED = 60
"""Requests beyond which a terminal shows the workloads alone."""

SPREAD_WORDS = "each request counts once; pooled figures count each token once"


@dataclass(frozen=True, slots=True)
class Spread:
    """How a figure lies over requests, each counted once: quartiles by linear interpolation."""

    count: int
    least: float
    quartile_1: float
    median: float
    quartile_3: float
    greatest: float


def spread_of(values: Iterable[float | None]) -> Spread | None:
    """The spread of those that are there; None of nothing."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    low, middle, high = (percentile(known, percent) or 0.0 for percent in (25, 50, 75))
    return Spread(len(known), min(known), low, middle, high, max(known))


@dataclass(frozen=True, slots=True)
class LaneOutcome:
    """One lane in one request: its figures in the repeats that did not fail, and its ratios to plain beside it.

    error is one line where a repeat failed; runs is empty where all did, ratios of plain itself.
    """

    name: str
    runs: tuple[Metrics, ...] = ()
    ratios: tuple[Speedup, ...] = ()
    end: str = ""
    error: str = ""

    @property
    def metrics(self) -> Metrics | None:
        """Medians over the repeats; None where all failed."""
        return median_metrics(list(self.runs)) if self.runs else None

    @property
    def speedup(self) -> Speedup | None:
        """That of the median repeat."""
        return median_speedup(self.ratios)


@dataclass(frozen=True, slots=True)
class RequestResult:
    """One prompt of the set: its place (1-based), its lanes (plain first), or the line that says why it did not run.

    settings are those of its race, to be opened as one.
    """

    number: int
    prompt: Prompt
    settings: RunSettings
    prompt_tokens: int | None = None
    lanes: tuple[LaneOutcome, ...] = ()
    error: str = ""

    @property
    def name(self) -> str:
        """What it is called: its own name, else the beginning of its text."""
        words = " ".join(self.prompt.text.split())
        return self.prompt.name or (words if len(words) <= 40 else f"{words[:39].rstrip()}…")

    @property
    def workload(self) -> str:
        """The group it belongs to."""
        return self.prompt.workload or NO_WORKLOAD

    @property
    def label(self) -> str:
        """Its number and name."""
        return f"request {self.number} ({self.name})"

    @property
    def facts(self) -> Json:
        """What it is, as rows and documents say it."""
        return {
            "request": self.number, "name": self.name, "workload": self.workload, "prompt_tokens": self.prompt_tokens,
            "seed": self.settings.sampling.seed,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """One lane over the requests of a workload (`all`: over every one).

    Spreads count each request once. pooled_acceptance is accepted / judged over all tokens of all repeats; pooled_speedup
    is the lane's tok/s over plain's, each of all its tokens in all their time: long answers weigh more.
    slowest and fastest are the numbers of requests.
    """

    workload: str
    lane: str
    requests: int
    failed: int
    speedup: Spread | None
    acceptance: Spread | None
    tokens_per_pass: Spread | None
    pooled_acceptance: float | None
    pooled_speedup: float | None
    slower: int
    slowest: int | None
    fastest: int | None

    @property
    def row(self) -> Row:
        """A row of SUMMARY_COLUMNS: a spread's figures under its name and theirs."""
        found: dict[str, Any] = {}
        for key, value in asdict(self).items():
            if key in ("speedup", "acceptance", "tokens_per_pass"):
                found |= {f"{key}_{name}": figure for name, figure in (value or {}).items()}
            else:
                found[key] = value
        return found


@dataclass(frozen=True, slots=True)
class PromptSetResult:
    """What a set gave so far. end: done, or stopped. busy says that other programs took the machine meanwhile."""

    name: str
    sha256: str
    prompts: int
    settings: RunSettings
    repeats: int = 1
    requests: tuple[RequestResult, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    end: Literal["done", "stopped"] = "done"
    busy: str = ""

    @property
    def lane_names(self) -> tuple[str, ...]:
        """The lanes, plain first, as the requests that ran name them."""
        return next((tuple(lane.name for lane in one.lanes) for one in self.requests if one.lanes), ())

    @property
    def workloads(self) -> tuple[str, ...]:
        """The groups, in the order of the file."""
        return tuple(dict.fromkeys(one.workload for one in self.requests))

    @property
    def failures(self) -> list[RequestResult]:
        """The requests that did not run."""
        return [one for one in self.requests if one.error]

    def request(self, number: int | None) -> RequestResult | None:
        """The request of this number."""
        return next((one for one in self.requests if one.number == number), None)

    def summary(self) -> list[GroupFigures]:
        """Figures by workload and drafting lane; the whole set last where it has several workloads."""
        groups = self.workloads if len(self.workloads) == 1 else (*self.workloads, ALL)
        return [self.group(group, index) for group in groups for index in range(1, len(self.lane_names))]

    def group(self, workload: str, index: int) -> GroupFigures:
        """The figures of one lane over a workload."""
        members = [one for one in self.requests if workload in (ALL, one.workload)]
        ran = [one for one in members if not one.error and index < len(one.lanes) and one.lanes[index].runs]
        lanes = [one.lanes[index] for one in ran]
        metrics = [found for lane in lanes if (found := lane.metrics) is not None]
        speeds = sorted(
            ((lane.speedup.value, one.number) for one, lane in zip(ran, lanes, strict=True) if lane.speedup is not None),
            key=lambda pair: pair[0],
        )
        runs = [run for lane in lanes for run in lane.runs]
        ratios = [ratio for lane in lanes for ratio in lane.ratios]
        judged = sum(run.judged for run in runs)
        return GroupFigures(
            workload=workload,
            lane=self.lane_names[index],
            requests=len(ran),
            failed=len(members) - len(ran),
            speedup=spread_of(speed for speed, _ in speeds),
            acceptance=spread_of(one.acceptance_rate for one in metrics),
            tokens_per_pass=spread_of(one.tokens_per_target_pass for one in metrics),
            pooled_acceptance=sum(run.accepted for run in runs) / judged if judged else None,
            pooled_speedup=pooled(ratios),
            slower=sum(speed < 1 for speed, _ in speeds),
            slowest=speeds[0][1] if speeds else None,
            fastest=speeds[-1][1] if speeds else None,
        )

    def notable(self) -> Mapping[str, tuple[RequestResult, RequestResult]]:
        """By drafting lane the slowest and the fastest request of the whole set."""
        found: dict[str, tuple[RequestResult, RequestResult]] = {}
        for index, name in enumerate(self.lane_names[1:], 1):
            figures = self.group(ALL, index)
            slowest, fastest = self.request(figures.slowest), self.request(figures.fastest)
            if slowest is not None and fastest is not None:
                found[name] = slowest, fastest
        return found

    @property
    def sentences(self) -> list[str]:
        """What was run, and what was slowest and fastest."""
        ran = sum(not one.error for one in self.requests)
        repeats = f", up to {self.repeats} repeats" if self.repeats > 1 else ""
        stopped = ", stopped" if self.end == "stopped" else ""
        found = [f"{self.name}: {ran} of {self.prompts} requests{repeats}{stopped}; medians with quartiles, {SPREAD_WORDS}."]
        for lane, (slowest, fastest) in self.notable().items():
            if slowest is not fastest:
                found.append(f"{lane}: slowest {slowest.label}, fastest {fastest.label}.")
        return found

    def with_request(self, request: RequestResult) -> PromptSetResult:
        """With a request in its place, over what an earlier repeat left there."""
        by_number = {one.number: one for one in self.requests} | {request.number: request}
        return replace(self, requests=tuple(by_number[number] for number in sorted(by_number)))


def run_prompt_set(
    settings: RunSettings,
    prompts: Workload,
    repeats: int = 1,
    models: ModelPool | None = None,
    on_news: Callable[[PromptSetResult | SeriesProgress], None] = lambda news: None,
    should_stop: ShouldStop = lambda: False,
    *,
    on_event: Callable[[Event, str], None] = lambda event, part: None,
    clock: Clock = time.perf_counter,
) -> PromptSetResult:
    """Race the lanes of `settings` on every prompt, `repeats` times round the set, each race with a seed of its own.

    A prompt that follows another goes on from plain's answer to that in the same repeat. on_news hears how far it is, and
    after every race of the result so far; on_event of each race's events, with the words for which part of the set it is:
    of its beginning with the turns before the prompt, without which no trace shows what was run. Raises SpecviewError
    where the run cannot work for any prompt: bad settings, a target that does not load.
    """
    settings = checked_run(settings)
    result = PromptSetResult(prompts.name, prompts.sha256, len(prompts.prompts), settings, repeats)
    asked = [request_settings(settings, prompt, place) for place, prompt in enumerate(prompts.prompts)]
    runs: dict[int, list[CompareResult]] = {}
    failed: dict[int, str] = {}
    pace = Pace(on_news, repeats * len(asked), settings.max_tokens * len(settings.lanes), clock)
    part = ""

    def take(event: Event) -> None:
        pace.take(event)
        on_event(event, part)

    keys = [key for lane in settings.lanes for key in lane_keys(settings, lane)]
    with Runner(settings, prompts.prompts, models, keys=keys, should_stop=should_stop, on_event=take, clock=clock) as runner:
        for repeat in range(repeats):
            for place, prompt in enumerate(prompts.prompts):
                if place in failed:
                    pace.done += 1
                    continue
                if should_stop():
                    return replace(result, end="stopped")
                part = f"request {place + 1} of {len(asked)}" + (f", repeat {repeat + 1} of {repeats}" if repeats > 1 else "")
                pace.begin(part.capitalize())
                own = runs.setdefault(place, [])
                try:
                    if prompt.follows and place - 1 in failed:
                        raise RaceFailed("the turn before it did not run.")
                    asked[place] = runner.with_turns(place, asked.__getitem__, repeat)
                    again = replace(asked[place], sampling=settings.sampling.part(prompt=place, repeat=repeat))
                    found = runner.race(again)
                except RaceFailed as error:
                    failed[place] = str(error)
                else:
                    if found.end == "stopped":
                        if not own and any(lane.record.rounds for lane in found.lanes):
                            # half a race is more than nothing, and says that it was stopped
                            result = result.with_request(_request(place, prompt, asked[place], [found]))
                        return replace(result, end="stopped")
                    own.append(found)
                    runner.turns.heard(place, found.lanes[0].record.text, repeat)
                    result = replace(result, facts=result.facts or found.facts, busy=found.busy or result.busy)
                result = result.with_request(_request(place, prompt, asked[place], own, failed.get(place, "")))
                on_news(result)
                pace.end()
    return result


def request_settings(settings: RunSettings, prompt: Prompt, place: int = 0) -> RunSettings:
    """The settings of one prompt's first race; place counts the prompts of the set from 0."""
    return replace(
        settings, prompt=prompt.text, system=prompt.system, history=prompt.history, branch=None, workload=None,
        sampling=settings.sampling.part(prompt=place),
    )  # fmt: skip


def _request(
    place: int, prompt: Prompt, settings: RunSettings, runs: Sequence[CompareResult], error: str = ""
) -> RequestResult:
    if not runs:
        return RequestResult(place + 1, prompt, settings, error=error)
    lanes = []
    for own in zip(*(run.lanes for run in runs), strict=True):
        good = tuple(lane.metrics for lane in own if not lane.error)
        # Plain that failed was cut short: so was the time that a ratio to it is over.
        ratios = tuple(
            lane.speedup for run, lane in zip(runs, own, strict=True)
            if not lane.error and not run.lanes[0].error and lane.speedup is not None
        )  # fmt: skip
        at, trouble = next(((at, lane.error) for at, lane in enumerate(own, 1) if lane.error), (0, ""))
        if trouble and good:
            trouble = f"repeat {at} of {len(own)} failed and is in no figure: {trouble}"
        lanes.append(LaneOutcome(own[0].record.name, good, ratios, str(own[-1].record.end or ""), trouble))
    # Without a plain lane there is nothing to compare with: the request did not run.
    if not error and lanes and not lanes[0].runs:
        error = lanes[0].error
    return RequestResult(place + 1, prompt, settings, len(runs[0].prompt_ids), tuple(lanes), error)


# -- tables, the report and the document -----------------------------------------------------------------

_ALPHA = "Acceptance rate (alpha): accepted / judged."
_SPEEDUP = (
    "Decode tokens per second over plain's in the same race, where they are not alike in length or speed over the time both were running; "
    "where it was repeated that of the repeat with the median ratio."
)

REQUEST_COLUMNS = (
    Column("request", "request", "Its line's place in the set.", 0),
    Column("name", "name", "Its own name, or the beginning of its prompt."),
    Column("workload", "workload", "What its line calls workload or kind."),
    Column("lane", "lane"),
    Column("prompt_tokens", "prompt tokens", "Tokens of the rendered prompt.", 0),
    Column("emitted", "tokens", "Tokens emitted, EOS included.", 0),
    Column("tokens_per_s", "tok/s", "Decode tokens per second, prefill excluded; of a lane beside plain what its speedup is made of.", 2),
    Column("plain_tokens_per_s", "plain tok/s", "Plain's that it is held against.", 2),
    Column("speedup", "speedup", _SPEEDUP, 2, unit="x"),
    METRICS["acceptance_rate"].column(title="alpha"),
    *columns("draft_acceptance", "tokens_per_target_pass"),
    Column("seed", "seed", "Of its first race: a run of this prompt with it draws the same random numbers.", 0),
    Column("end", "end", "How the lane ended."),
    Column("error", "trouble", "Why it did not run."),
)
"""A row per request and lane."""

_BY_REQUEST = "Over requests, each counted once."
SUMMARY_COLUMNS = (
    Column("workload", "workload", "The group of requests; all is the whole set."),
    Column("lane", "lane"),
    Column("requests", "requests", "Those that ran.", 0),
    Column("failed", "failed", "Those that did not.", 0),
    Column("speedup_median", "speedup", f"{_SPEEDUP} Median. {_BY_REQUEST}", 2, unit="x", spread=("speedup_quartile_1", "speedup_quartile_3")),
    Column("speedup_quartile_1", "quartile 1", f"First quartile of the speedup. {_BY_REQUEST}", 2),
    Column("speedup_quartile_3", "quartile 3", f"Third quartile of the speedup. {_BY_REQUEST}", 2),
    Column("speedup_least", "least", f"Least speedup. {_BY_REQUEST}", 2),
    Column("speedup_greatest", "greatest", f"Greatest speedup. {_BY_REQUEST}", 2),
    Column("pooled_speedup", "pooled", "All the lane's tokens a second over all of plain's: each token counts once.", 2, unit="x"),
    Column("slower", "slower than plain", "Requests with a speedup below 1.", 0),
    Column("acceptance_median", "alpha", f"{_ALPHA} Median. {_BY_REQUEST}", 3, spread=("acceptance_quartile_1", "acceptance_quartile_3")),
    Column("acceptance_least", "least alpha", f"{_ALPHA} Least. {_BY_REQUEST}", 3),
    Column("acceptance_greatest", "greatest alpha", f"{_ALPHA} Greatest. {_BY_REQUEST}", 3),
    Column("pooled_acceptance", "pooled alpha", "Accepted / judged over all tokens of the group.", 3),
    Column("tokens_per_pass_median", "tok/pass", f"Emitted / target passes. Median. {_BY_REQUEST}", 2),
    Column("slowest", "slowest", "The request with the least speedup.", 0),
    Column("fastest", "fastest", "The request with the greatest speedup.", 0),
)
"""A row per workload and drafting lane."""


def request_rows(result: PromptSetResult) -> list[Row]:
    """Rows of REQUEST_COLUMNS; a request that did not run has one row."""
    rows: list[Row] = []
    for one in result.requests:
        if not one.lanes:
            rows.append({**one.facts, "error": one.error})
        for lane in one.lanes:
            metrics, faster = lane.metrics, lane.speedup
            figures = {} if metrics is None else metrics.as_dict()
            own = {column.key: figures[column.key] for column in REQUEST_COLUMNS if column.key in figures}
            told: dict[str, Any] = {"lane": lane.name, "end": lane.end, "error": lane.error or one.error}
            if faster is not None:
                told |= {"speedup": faster.value, **faster.as_dict()}
            else:
                told["tokens_per_s"] = figures.get("decode_tokens_per_s")
            rows.append({**one.facts, **own, **told})
    return rows


def prompt_set_tables(result: PromptSetResult | None = None) -> tuple[Table, Table]:
    """The requests, and the workloads; without rows where there is no result yet."""
    rows, groups = ([], []) if result is None else (request_rows(result), [group.row for group in result.summary()])
    return (
        Table(
            REQUEST_COLUMNS, rows, name="requests", hidden=("draft_acceptance", "prompt_tokens"),
            printed=("request", "name", "workload", "lane", "tokens_per_s", "plain_tokens_per_s", "speedup", "acceptance_rate",
                     "tokens_per_target_pass", "error"),
        ),
        Table(
            SUMMARY_COLUMNS, groups, name="workloads",
            hidden=("acceptance_least", "acceptance_greatest", "speedup_least", "speedup_greatest", "failed"),
            printed=("workload", "lane", "requests", "failed", "speedup_median", "speedup_least", "speedup_greatest", "pooled_speedup",
                     "slower", "acceptance_median", "pooled_acceptance", "tokens_per_pass_median"),
        ),
    )  # fmt: skip


def prompt_set_report(result: PromptSetResult) -> Report:
    """The requests, the workloads, and in words what was run, what was slowest and fastest, and what failed."""
    blocks: list[Block] = [*prompt_set_tables(result), *map(Text, result.sentences)]
    blocks += [Text(f"{one.label}: {one.error}", "bad") for one in result.failures]
    blocks += [
        Text(f"{one.label}, lane {lane.name}: {lane.error}", "bad")
        for one in result.requests if not one.error
        for lane in one.lanes if lane.error
    ]  # fmt: skip
    notes = (result.facts.get("target_left_out"), result.facts.get("target_weights_note"), result.busy)
    blocks += [Text(note, "note") for note in notes if isinstance(note, str) and note]
    return Report("Prompt set", blocks, prompt_set_document(result))


def printed_report(report: Report, result: PromptSetResult) -> Report:
    """The report for a terminal: of a long set without its requests, which files hold."""
    if len(result.requests) <= MOST_PRINTED:
        return report
    words = Text(f"{len(result.requests)} requests: --csv, --markdown or --json hold each.", "note")
    return replace(report, blocks=[words, *report.blocks[1:]])


def prompt_set_document(result: PromptSetResult) -> Json:
    """The set's figures as a JSON document.

    Keys: `set` {name, sha256, prompts, repeats, end, weighting}; `run`, the settings and facts; `summary`, a row per workload
    and lane with the numbers of its slowest and fastest requests; `requests`, each with its lanes' metrics.
    """
    settings = result.settings
    flat = flat_settings(settings, settings.lanes[0])
    shared = {key: value for key, value in flat.items() if key not in ("method", "draft", "draft_engine", "k", "policy", "rule")}
    return {
        "set": {
            **{key: getattr(result, key) for key in ("name", "sha256", "prompts", "repeats", "end")},
            "weighting": SPREAD_WORDS,
        },
        "run": plain({**shared, **result.facts}),
        "lanes": [plain({"name": lane.label, **flat_settings(settings, lane)}) for lane in settings.lanes],
        "summary": [plain(group.row) for group in result.summary()],
        "requests": [
            {
                **one.facts,
                "prompt": one.prompt.text,
                "system": one.prompt.system,
                "error": one.error or None,
                "lanes": [_lane_json(lane) for lane in one.lanes],
            }
            for one in result.requests
        ],
    }


def _lane_json(lane: LaneOutcome) -> Json:
    metrics = lane.metrics
    return {
        "name": lane.name,
        **speedup_to_json(lane.speedup),
        "speedups": plain([one.value for one in lane.ratios]),
        "end": lane.end,
        "error": lane.error or None,
        "metrics": None if metrics is None else plain(metrics.as_dict()),
    }
