"""A sweep: the races of a grid, repeats in round-robin order, so that a noisy neighbour slows all cells alike.

Every cell runs as a race with a plain lane of its own beside it. Models stay loaded from cell to cell; each race is in
the sweep's file before the next begins, so that a stop or a crash loses one race at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from specview.errors import SpecviewError, Stopped
from specview.experiments.sweep_file import SweepFile
from specview.experiments.sweep_grid import Cell, Grid
from specview.experiments.sweep_results import CellRun, SweepResults, costs_to_json, eighths_of, positions_of
from specview.files.documents import equality_to_json, lane_facts, metrics_to_json
from specview.lab.measured import measured_costs
from specview.racing.compare import compare
from specview.racing.pool import HeadKey, ModelPool, ShouldStop, draft_key, target_key
from specview.racing.race import Race, one_line
from specview.racing.settings import MAX_LANES, LaneSettings, RunSettings
from specview.racing.turns import Turns
from specview.settings.events import Event, Failed, LaneEnded, LaneRound, Progress, RaceEnded, RaceStarted

Clock = Callable[[], float]
PROBE_TOKENS = 12


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """How far a sweep is: races done of all, what runs now in words, the estimated time left (None: not known yet)."""

    done: int
    total: int
    text: str
    left_s: float | None = None
    part: float = 0.0

    @property
    def fraction(self) -> float:
        """Share of all races done, the one under way in part."""
        return (self.done + min(self.part, 1.0)) / self.total if self.total else 1.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a grid will take, from a short run of plain decoding here: seconds in all, and what they come from."""

    seconds: float
    plain_tokens_per_s: float
    prefill_s: float


News = SweepProgress | CellRun
OnNews = Callable[[News], None]


def run_sweep(
    file: SweepFile,
    pool: ModelPool,
    on_news: OnNews = lambda news: None,
    should_stop: ShouldStop = lambda: False,
    clock: Clock = time.perf_counter,
) -> SweepResults:
    """Race what the file lacks, and what failed before, once more; return the results, whole or up to the stop.

    Raises SpecviewError where nothing can be measured any more: the target cannot be loaded, the weights are not those
    of the races in the file, the disk is full. What was measured stays in the file.
    """
    results = file.results
    grid = results.grid
    todo = results.pending(failed=True)
    turns = Turns(grid.prompts, grid.settings)
    timer = _Timer(results)
    with pool.lease(_keys(grid)):
        for place, (cell, repeat) in enumerate(todo):
            if should_stop():
                break
            teller = _Teller(on_news, results, cell, repeat, len(todo) - place, timer)
            run = _race(file, grid, cell, repeat, turns, pool, teller, should_stop, clock)
            if run is None:
                break
            run = file.add(run)
            timer.add(run)
            on_news(run)
            teller.done()
    return results


def estimate(
    grid: Grid, pool: ModelPool, should_stop: ShouldStop = lambda: False, on_text: Callable[[str], None] = lambda text: None,
    clock: Clock = time.perf_counter,
) -> Estimate:  # fmt: skip
    """What the grid will take here: a few plain tokens after its longest prompt that runs are timed.

    Raises SpecviewError where the target cannot run, Stopped where should_stop said so.
    """
    by_length = sorted(range(len(grid.prompts)), key=lambda place: -len(grid.prompts[place].text))
    first: SpecviewError | None = None
    with pool.lease(_keys(grid)):  # what the sweep is about to use stays loaded
        for place in by_length:
            settings = grid.race(Cell(0, 0, grid.lanes[0].k or 1, 0.0, place))
            settings = replace(
                settings, lanes=(LaneSettings(),), max_tokens=min(grid.settings.max_tokens, PROBE_TOKENS)
            )
            try:
                return _probe(settings, grid, pool, should_stop, on_text, clock)
            except SpecviewError as error:
                first = first or error
                if target_key(settings) not in pool:
                    raise
    raise first or SpecviewError("there is no prompt.")


def _probe(
    settings: RunSettings, grid: Grid, pool: ModelPool, should_stop: ShouldStop, on_text: Callable[[str], None], clock: Clock
) -> Estimate:  # fmt: skip
    """The estimate from one prompt; raises SpecviewError where it cannot run."""
    trouble: list[str] = []

    def listen(event: Event) -> None:
        if isinstance(event, Failed):
            trouble.append(event.message)
        elif isinstance(event, Progress):
            on_text(event.text)

    race = Race(settings, 0, pool, clock, oracles=False)
    try:
        race.run(listen, should_stop)
        if trouble:
            raise SpecviewError(trouble[0])
        if should_stop():
            raise Stopped
        record = race.records[0]
    finally:
        race.close()
    if record.error:
        raise SpecviewError(record.error)
    steps = [round_.seconds for round_ in record.rounds]
    step_s = median(steps[2:] or steps) if steps else 0.0
    if step_s <= 0:
        raise SpecviewError("plain decoding could not be timed: it wrote nothing.", "Use another prompt.")
    return Estimate(grid.seconds(1 / step_s, record.prefill_s), 1 / step_s, record.prefill_s)


def duration(seconds: float) -> str:
    """A length of time for people: "40 s", "12 min", "3 h 20 min"."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours = minutes // 60
    if hours >= 48:
        return f"{hours / 24:.0f} days"
    return f"{hours} h {minutes % 60} min" if minutes % 60 else f"{hours} h"


class _Timer:
    """What a race takes: the mean of all so far. Repeats go round, so that it is over all cells alike."""

    def __init__(self, results: SweepResults) -> None:
        self._seconds, self._races = 0.0, 0
        for run in results.runs.values():
            self.add(run)

    def add(self, run: CellRun) -> None:
        if not run.error and run.seconds > 0:
            self._seconds += run.seconds
            self._races += 1

    def left(self, todo: int) -> float | None:
        """Seconds for so many races; None before the first."""
        return todo * self._seconds / self._races if self._races else None


class _Teller:
    """Turns a race's events into the sweep's progress, at most a hundred times a race."""

    def __init__(
        self, on_news: OnNews, results: SweepResults, cell: Cell, repeat: int, todo: int, timer: _Timer
    ) -> None:
        self._on_news, self._todo, self._timer, self._results = on_news, todo, timer, results
        self._total = results.total
        words = results.words(cell)
        self.words = f"{words} (repeat {repeat + 1} of {results.grid.repeats})" if results.grid.repeats > 1 else words
        self._wanted = 2 * results.grid.settings.max_tokens
        self._emitted = 0
        self._shown = -1
        self._tell(self.words)

    def take(self, event: Event) -> None:
        if isinstance(event, Progress) and event.phase not in ("prefill", "tokenize"):
            self._tell(f"{self.words} · {event.text}")
        elif isinstance(event, LaneRound):
            self._emitted += len(event.round.emitted)
            percent = 100 * self._emitted // self._wanted
            if percent != self._shown:
                self._shown = percent
                self._tell(self.words, min(0.99, percent / 100))

    def done(self) -> None:
        self._todo -= 1
        self._tell(self.words)

    def _tell(self, text: str, part: float = 0.0) -> None:
        left = self._timer.left(self._todo)
        if left is not None and self._todo:
            left *= (self._todo - part) / self._todo
        self._on_news(SweepProgress(self._total - self._todo, self._total, text, left, part))


def _keys(grid: Grid) -> set[Any]:
    """What stays loaded over the whole sweep: the target, and the lanes' drafts where they are not too many."""
    target = target_key(grid.settings)
    keys: set[Any] = {target}
    if len(grid.lanes) < MAX_LANES:
        for lane in grid.lanes:
            if lane.needs_draft:
                keys.add(draft_key(grid.settings, lane.draft, lane.draft_engine))
            keys |= {HeadKey(choice, target) for choice in lane.heads.values()}
    return keys


def _race(
    file: SweepFile, grid: Grid, cell: Cell, repeat: int, turns: Turns, pool: ModelPool, teller: _Teller,
    should_stop: ShouldStop, clock: Clock,
) -> CellRun | None:  # fmt: skip
    """One race of a cell; None where it was stopped: half a race is no measurement."""
    settings = grid.race(cell, repeat, grid.lane_name(cell.lane))
    answers = (cell.temperature, repeat)

    def ask(turn: RunSettings) -> str:
        found = compare(turn, 1, pool, teller.take, should_stop, clock=clock, oracles=False)
        if found.end == "stopped":
            raise Stopped
        if found.lanes[0].error:
            raise SpecviewError(found.lanes[0].error)
        return found.lanes[0].record.text

    try:
        history = turns.history(cell.prompt, lambda at: grid.race(replace(cell, prompt=at), repeat), ask, answers)
        settings = replace(settings, history=history)
    except Stopped:
        return None
    except SpecviewError as error:
        if target_key(settings) not in pool:
            raise
        return CellRun(cell.number, repeat, error=f"an earlier turn: {error}")
    ends: dict[int, LaneEnded] = {}
    failed: list[Failed] = []
    refusal: list[SpecviewError] = []
    last: list[RaceEnded] = []
    begin = [clock()]

    def listen(event: Event) -> None:
        if isinstance(event, RaceStarted):
            begin[0] = clock()
            try:
                file.check_facts(cell.lane, lane_facts(event.facts, 1))
            except SpecviewError as error:
                refusal.append(error)
        elif isinstance(event, LaneEnded):
            ends[event.lane] = event
        elif isinstance(event, Failed):
            failed.append(event)
        elif isinstance(event, RaceEnded):
            last.append(event)
        teller.take(event)

    race = Race(settings, 0, pool, clock, oracles=False)
    try:
        race.run(listen, lambda: bool(refusal) or should_stop())
        if refusal:
            raise refusal[0]
        if failed:
            if target_key(settings) not in pool:
                raise SpecviewError(failed[0].message, usage=failed[0].usage)
            return CellRun(cell.number, repeat, error=failed[0].message)
        if last[0].end == "stopped":
            return None
        if not race.records[0].error:
            turns.heard(cell.prompt, race.records[0].text, answers)
        return _result(race, settings, cell, repeat, ends, clock() - begin[0], last[0].busy)
    finally:
        try:
            race.close()
        except Exception as error:  # noqa: BLE001 - a cell's caches that cannot be freed are no reason to lose the rest
            teller.words += f" ({one_line(error)})"


def _result(
    race: Race, settings: RunSettings, cell: Cell, repeat: int, ends: dict[int, LaneEnded], seconds: float, busy: str
) -> CellRun:
    for index, name in ((1, ""), (0, "plain: ")):
        if index in ends and ends[index].end == "error":
            return CellRun(cell.number, repeat, error=f"{name}{ends[index].error or 'it ended by an error'}")
    plain_record, record = race.records[0], race.records[1]
    end = ends[1]
    counts: dict[int, int] = {}
    for round_ in (*plain_record.rounds, *record.rounds):
        counts[round_.rows] = counts.get(round_.rows, 0) + 1
    return CellRun(
        cell=cell.number,
        repeat=repeat,
        seconds=seconds,
        k=record.settings.get("k"),
        seed=settings.sampling.seed,
        rule=str(record.settings.get("rule") or ""),
        metrics=metrics_to_json(end.metrics),
        plain=metrics_to_json(ends[0].metrics),
        speedup=end.speedup.value if end.speedup is not None else None,
        spread=end.speedup.spread if end.speedup is not None else None,
        equality=equality_to_json(end.equality),
        costs=costs_to_json(measured_costs(record.rounds, plain_record.rounds)),
        pass_counts=counts,
        positions=positions_of(record.rounds),
        eighths=eighths_of(record.rounds),
        draft_rounds=sum(round_.k > 0 for round_ in record.rounds),
        busy=busy,
    )
