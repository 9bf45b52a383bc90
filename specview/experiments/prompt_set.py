"""A set of prompts, each one a race: acceptance and speed by request and by workload, with their spread.

Repeats go round the whole set before any prompt comes again, so that a noisy moment slows all alike, and a stop keeps
what is done. A request that cannot run (a prompt too long for the context) is told in one line, and the rest go on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from specview.decoding.metrics import Metrics, percentile
from specview.decoding.speedup import Speedup, median_speedup
from specview.drafting.lanes import flat_settings
from specview.errors import SpecviewError
from specview.files.documents import speedup_to_json
from specview.files.figures import METRICS, columns
from specview.files.schema import Json, plain
from specview.files.tables import Column, Row, table_csv, table_markdown
from specview.racing.compare import CompareResult, compare, median_metrics
from specview.racing.pool import ModelPool, ShouldStop, target_key
from specview.racing.resolve import checked_run
from specview.racing.turns import History, Turns
from specview.racing.workloads import Prompt, Workload
from specview.settings.events import Event
from specview.settings.run import RunSettings

ALL = "all"
"""The group of every request."""
NO_WORKLOAD = "unnamed"
"""The group of prompts that name no workload."""

SPREAD_WORDS = "each request counts once; pooled figures count each token once"


@dataclass(frozen=True, slots=True)
class Spread:
    """How a figure lies over requests, each counted once: quartiles by linear interpolation."""

    count: int
    least: float
    low: float
    median: float
    high: float
    greatest: float

    def as_dict(self) -> dict[str, float]:
        """As in files."""
        return {
            "count": self.count,
            "least": self.least,
            "quartile_1": self.low,
            "median": self.median,
            "quartile_3": self.high,
            "greatest": self.greatest,
        }


def spread_of(values: Iterable[float | None]) -> Spread | None:
    """The spread of those that are there; None of nothing."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    low, middle, high = (percentile(known, percent) for percent in (25, 50, 75))
    assert low is not None and middle is not None and high is not None
    return Spread(len(known), min(known), low, middle, high, max(known))


@dataclass(frozen=True, slots=True)
class Sums:
    """Counts over repeats: what pooled figures are made of, which medians do not add up to.

    tokens and plain_tokens are those of the time in which lane and plain were both running.
    """

    accepted: int = 0
    judged: int = 0
    tokens: float = 0.0
    plain_tokens: float = 0.0

    @classmethod
    def over(cls, all_metrics: Sequence[Metrics], speedups: Sequence[Speedup]) -> Sums:
        """The sums over some repeats' figures."""
        return cls(
            sum(one.accepted for one in all_metrics),
            sum(one.judged for one in all_metrics),
            math.fsum(one.tokens for one in speedups),
            math.fsum(one.plain_tokens for one in speedups),
        )


@dataclass(frozen=True, slots=True)
class LaneOutcome:
    """One lane in one request: medians over its repeats; speedup is that of the median repeat, None of plain itself.

    speedups are all repeats' ratios. sums are over the same repeats, those that did not fail. error is one line where one did; metrics is None where all did.
    """

    name: str
    metrics: Metrics | None
    speedup: Speedup | None = None
    speedups: tuple[float, ...] = ()
    end: str = ""
    error: str = ""
    sums: Sums = Sums()


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
    repeats: int = 0
    error: str = ""

    @property
    def name(self) -> str:
        """What it is called: its own name, else the beginning of its text."""
        return self.prompt.name or _beginning(self.prompt.text)

    @property
    def workload(self) -> str:
        """The group it belongs to."""
        return self.prompt.workload or NO_WORKLOAD


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """One lane over the requests of a workload (`all`: over every one).

    Spreads count each request once. pooled_acceptance is accepted / judged over all tokens of all repeats; pooled_speedup
    is the lane's tokens over plain's, both in all the time in which both were running: long answers weigh more.
    """

    workload: str
    lane: str
    requests: int
    failed: int
    speedup: Spread | None
    acceptance: Spread | None
    tokens_per_pass: Spread | None
    tokens_per_s: Spread | None
    pooled_acceptance: float | None
    pooled_speedup: float | None
    slower: int
    slowest: int | None
    fastest: int | None


@dataclass(slots=True)
class PromptSetResult:
    """What a set gave so far. end: done, or stopped. busy says that other programs took the machine meanwhile."""

    name: str
    sha256: str
    prompts: int
    settings: RunSettings
    repeats: int = 1
    requests: list[RequestResult] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
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

    def request(self, place: int) -> RequestResult | None:
        """The request of this number."""
        return next((one for one in self.requests if one.number == place), None)

    def summary(self) -> list[GroupFigures]:
        """Figures by workload and drafting lane; the whole set last where it has several workloads."""
        groups: list[str] = list(self.workloads)
        if len(groups) != 1:
            groups.append(ALL)
        found = []
        for group in groups:
            members = [one for one in self.requests if group in (ALL, one.workload)]
            found += [_group(group, index, name, members) for index, name in enumerate(self.lane_names) if index]
        return found


def run_prompt_set(
    settings: RunSettings,
    prompts: Workload,
    repeats: int = 1,
    models: ModelPool | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    on_request: Callable[[PromptSetResult, int, int], None] = lambda result, done, total: None,
    should_stop: ShouldStop = lambda: False,
    *,
    on_begin: Callable[[int, int, History], None] = lambda number, repeat, history: None,
    clock: Callable[[], float] = time.perf_counter,
) -> PromptSetResult:
    """Race the lanes of `settings` on every prompt, `repeats` times round the set, each race with a seed of its own.

    A prompt that follows another goes on from plain's answer to that in the same repeat. on_begin hears of every race
    before it begins: the request's number and the repeat, both from 1, and the turns before its prompt; on_request of
    the result so far after it, with races done and in all. Raises SpecviewError where the run cannot work for any prompt:
    bad settings, a target that does not load.
    """
    settings = checked_run(settings)
    result = PromptSetResult(prompts.name, prompts.sha256, len(prompts.prompts), settings, repeats)
    pool = models or ModelPool()
    asked = [request_settings(settings, prompt, place) for place, prompt in enumerate(prompts.prompts)]
    turns = Turns(prompts.prompts, settings)
    runs: dict[int, list[CompareResult]] = {}
    failed: dict[int, str] = {}
    total = repeats * len(asked)
    done = 0
    try:
        for repeat in range(repeats):
            for place, one in enumerate(asked):
                if place in failed:
                    done += 1
                    continue
                if should_stop():
                    result.end = "stopped"
                    return result
                if prompts.prompts[place].follows and place - 1 in failed:
                    failed[place] = "the turn before it did not run."
                    done += 1
                    _put(result, _request(place, prompts.prompts[place], one, runs.get(place, []), failed[place]))
                    on_request(result, done, total)
                    continue
                one = asked[place] = replace(one, history=turns.history(place, asked.__getitem__, _unheard, repeat))
                on_begin(place + 1, repeat + 1, one.history)
                again = replace(one, sampling=settings.sampling.part(prompt=place, repeat=repeat))
                try:
                    found = compare(again, 1, pool, on_event, should_stop, clock=clock, oracles=False)
                except SpecviewError as error:
                    if target_key(settings) not in pool:
                        raise
                    failed[place] = str(error)
                else:
                    if found.end == "stopped":
                        if not runs.get(place) and any(lane.record.rounds for lane in found.lanes):
                            runs[place] = [found]  # half a race is more than nothing, and says that it was stopped
                            _put(result, _request(place, prompts.prompts[place], one, runs[place]))
                        result.end = "stopped"
                        return result
                    runs.setdefault(place, []).append(found)
                    turns.heard(place, found.lanes[0].record.text, repeat)
                    result.facts = result.facts or found.facts
                    result.busy = found.busy or result.busy
                done += 1
                _put(result, _request(place, prompts.prompts[place], one, runs.get(place, []), failed.get(place, "")))
                on_request(result, done, total)
    finally:
        if models is None:
            pool.close()
    return result


def _unheard(settings: RunSettings) -> str:
    raise AssertionError("the turns of a set are raced in order")


def request_settings(settings: RunSettings, prompt: Prompt, place: int = 0) -> RunSettings:
    """The settings of one prompt's first race; place counts the prompts of the set from 0."""
    return replace(
        settings, prompt=prompt.text, system=prompt.system, history=prompt.history, workload=None,
        sampling=settings.sampling.part(prompt=place),
    )  # fmt: skip


def _put(result: PromptSetResult, request: RequestResult) -> None:
    """Put a request in its place, over what an earlier repeat left there."""
    by_number = {one.number: one for one in result.requests} | {request.number: request}
    result.requests = [by_number[place] for place in sorted(by_number)]


def _request(
    place: int, prompt: Prompt, settings: RunSettings, runs: Sequence[CompareResult], error: str = ""
) -> RequestResult:
    if not runs:
        return RequestResult(place + 1, prompt, settings, error=error)
    lanes = []
    for index in range(len(runs[0].lanes)):
        own = [run.lanes[index] for run in runs]
        good = [lane.metrics for lane in own if not lane.error]
        # Plain that failed was cut short: so was the time that a ratio to it is over.
        ratios = tuple(
            lane.speedup for run, lane in zip(runs, own, strict=True)
            if not lane.error and not run.lanes[0].error and lane.speedup is not None
        )  # fmt: skip
        at, trouble = next(((at, lane.error) for at, lane in enumerate(own, 1) if lane.error), (0, ""))
        if trouble and good:
            trouble = f"repeat {at} of {len(own)} failed and is in no figure: {trouble}"
        lanes.append(
            LaneOutcome(
                own[0].record.name,
                median_metrics(good) if good else None,
                median_speedup(ratios),
                tuple(one.value for one in ratios),
                str(own[-1].record.end or ""),
                trouble,
                Sums.over(good, ratios),
            )
        )
    # Without a plain lane there is nothing to compare with: the request did not run.
    if not error and lanes and lanes[0].metrics is None:
        error = lanes[0].error
    return RequestResult(place + 1, prompt, settings, len(runs[0].prompt_ids), tuple(lanes), len(runs), error)


def _group(group: str, index: int, name: str, members: Sequence[RequestResult]) -> GroupFigures:
    ran = [(one, one.lanes[index]) for one in members if index < len(one.lanes) and not one.error]
    good = [(one, lane) for one, lane in ran if lane.metrics is not None]
    metrics = [lane.metrics for _, lane in good if lane.metrics is not None]
    with_speed = sorted(
        ((lane.speedup.value, one.number) for one, lane in good if lane.speedup is not None),
        key=lambda pair: pair[0],
    )
    tokens, plain_tokens = (math.fsum(getattr(lane.sums, key) for _, lane in good) for key in ("tokens", "plain_tokens"))
    judged = sum(lane.sums.judged for _, lane in good)
    accepted = sum(lane.sums.accepted for _, lane in good)
    return GroupFigures(
        workload=group,
        lane=name,
        requests=len(good),
        failed=len(members) - len(good),
        speedup=spread_of(speed for speed, _ in with_speed),
        acceptance=spread_of(one.acceptance_rate for one in metrics),
        tokens_per_pass=spread_of(one.tokens_per_target_pass for one in metrics),
        tokens_per_s=spread_of(one.decode_tokens_per_s for one in metrics),
        pooled_acceptance=accepted / judged if judged else None,
        pooled_speedup=tokens / plain_tokens if plain_tokens else None,
        slower=sum(speed < 1 for speed, _ in with_speed),
        slowest=with_speed[0][1] if with_speed else None,
        fastest=with_speed[-1][1] if with_speed else None,
    )


# -- tables and files --------------------------------------------------------------------------------

_ALPHA = "Acceptance rate (alpha): accepted / judged."
_SPEEDUP = (
    "Decode tokens per second over plain's in the same race, over the time both were running; where it was repeated that of the "
    "repeat with the median ratio."
)

REQUEST_COLUMNS = (
    Column("request", "request", "Its line's place in the set.", 0),
    Column("name", "name", "Its own name, or the beginning of its prompt."),
    Column("workload", "workload", "What its line calls workload or kind."),
    Column("lane", "lane"),
    Column("prompt_tokens", "prompt tokens", "Tokens of the rendered prompt.", 0),
    Column("emitted", "tokens", "Tokens emitted, EOS included.", 0),
    Column("tokens_per_s", "tok/s", "Decode tokens per second, prefill excluded; of a lane beside plain over the time both were running.", 2),
    Column("plain_tokens_per_s", "plain tok/s", "Plain's over the same time.", 2),
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
    Column("speedup_median", "speedup", f"{_SPEEDUP} Median. {_BY_REQUEST}", 2, unit="x"),
    Column("speedup_quartile_1", "quartile 1", f"First quartile of the speedup. {_BY_REQUEST}", 2),
    Column("speedup_quartile_3", "quartile 3", f"Third quartile of the speedup. {_BY_REQUEST}", 2),
    Column("speedup_least", "least", f"Least speedup. {_BY_REQUEST}", 2),
    Column("speedup_greatest", "greatest", f"Greatest speedup. {_BY_REQUEST}", 2),
    Column("pooled_speedup", "pooled", "Lane's tokens over plain's in all the time both were running: each token counts once.", 2, unit="x"),
    Column("slower", "slower than plain", "Requests with a speedup below 1.", 0),
    Column("acceptance_median", "alpha", f"{_ALPHA} Median. {_BY_REQUEST}", 3),
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
        about = {
            "request": one.number, "name": one.name, "workload": one.workload, "prompt_tokens": one.prompt_tokens,
            "seed": one.settings.sampling.seed,
        }  # fmt: skip
        if not one.lanes:
            rows.append({**about, "error": one.error})
        for lane in one.lanes:
            figures = {} if lane.metrics is None else lane.metrics.as_dict()
            own = {column.key: figures.get(column.key) for column in REQUEST_COLUMNS if column.key in figures}
            told: dict[str, Any] = {"lane": lane.name, "end": lane.end, "error": lane.error or one.error}
            if lane.speedup is not None:
                told |= {"speedup": lane.speedup.value, **lane.speedup.as_dict()}
            else:
                told["tokens_per_s"] = figures.get("decode_tokens_per_s")
            rows.append({**about, **own, **told})
    return rows


def summary_rows(result: PromptSetResult) -> list[Row]:
    """Rows of SUMMARY_COLUMNS."""
    rows: list[Row] = []
    for group in result.summary():
        row: dict[str, Any] = {
            key: getattr(group, key)
            for key in (
                "workload", "lane", "requests", "failed", "pooled_speedup", "pooled_acceptance", "slower", "slowest", "fastest",
            )
        }  # fmt: skip
        for key in ("speedup", "acceptance", "tokens_per_pass"):
            spread: Spread | None = getattr(group, key)
            row |= {f"{key}_{name}": value for name, value in (spread.as_dict() if spread is not None else {}).items()}
        rows.append(row)
    return rows


def prompt_set_csv(result: PromptSetResult) -> str:
    """A row per request and lane."""
    return table_csv(REQUEST_COLUMNS, request_rows(result))


def prompt_set_markdown(result: PromptSetResult) -> str:
    """The summary, then the requests."""
    return (
        f"{about_set(result)}; {SPREAD_WORDS}.\n\n"
        + table_markdown(SUMMARY_COLUMNS, summary_rows(result))
        + "\n"
        + table_markdown(REQUEST_COLUMNS, request_rows(result))
    )


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
            "name": result.name,
            "sha256": result.sha256,
            "prompts": result.prompts,
            "repeats": result.repeats,
            "end": result.end,
            "weighting": SPREAD_WORDS,
        },
        "run": plain({**shared, **result.facts}),
        "lanes": [plain({"name": lane.label, **flat_settings(settings, lane)}) for lane in settings.lanes],
        "summary": [plain(dict(row)) for row in summary_rows(result)],
        "requests": [
            {
                "request": one.number,
                "name": one.name,
                "workload": one.workload,
                "prompt": one.prompt.text,
                "system": one.prompt.system,
                "prompt_tokens": one.prompt_tokens,
                "seed": one.settings.sampling.seed,
                "error": one.error or None,
                "lanes": [_lane_json(lane) for lane in one.lanes],
            }
            for one in result.requests
        ],
    }


def _lane_json(lane: LaneOutcome) -> Json:
    return {
        "name": lane.name,
        **speedup_to_json(lane.speedup),
        "speedups": plain(lane.speedups),
        "end": lane.end,
        "error": lane.error or None,
        "metrics": None if lane.metrics is None else plain(lane.metrics.as_dict()),
    }


def about_set(result: PromptSetResult) -> str:
    """Say in a few words what was run."""
    ran = sum(not one.error for one in result.requests)
    words = f"{result.name}: {ran} of {result.prompts} requests"
    if result.repeats > 1:
        words += f", up to {result.repeats} repeats"
    if result.end == "stopped":
        words += ", stopped"
    return words


def notable(result: PromptSetResult) -> Mapping[str, tuple[RequestResult, RequestResult]]:
    """By drafting lane the slowest and the fastest request of the whole set."""
    found: dict[str, tuple[RequestResult, RequestResult]] = {}
    for index, name in enumerate(result.lane_names):
        if not index:
            continue
        figures = _group(ALL, index, name, result.requests)
        slowest = result.request(figures.slowest) if figures.slowest is not None else None
        fastest = result.request(figures.fastest) if figures.fastest is not None else None
        if slowest is not None and fastest is not None:
            found[name] = (slowest, fastest)
    return found


def _beginning(text: str, length: int = 40) -> str:
    words = " ".join(text.split())
    return words if len(words) <= length else f"{words[: length - 1].rstrip()}…"
