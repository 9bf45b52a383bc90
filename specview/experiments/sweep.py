"""A sweep: the races of a grid, repeats in round-robin order, so that a noisy neighbour slows all cells alike.

Every cell runs as a race with a plain lane of its own beside it. Models stay loaded from cell to cell; each race is in
the sweep's file before the next begins, so that a stop or a crash loses one race at most.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

from specview.decoding.round_table import RoundTable
from specview.decoding.speedup import EIGHTHS
from specview.errors import SpecviewError, Stopped
from specview.experiments.runner import (
    Clock,
    ModelKey,
    Pace,
    RaceFailed,
    Runner,
    SeriesProgress,
    duration,
    lane_keys,
)
from specview.experiments.sweep_curves import CellRun, costs_to_json
from specview.experiments.sweep_file import SweepFile
from specview.experiments.sweep_grid import Cell, Grid
from specview.experiments.sweep_results import SweepResults
from specview.files.documents import equality_to_json, lane_facts, metrics_to_json
from specview.lab.measured import measured_costs
from specview.racing.compare import CompareResult
from specview.racing.pool import ModelPool, ShouldStop
from specview.settings.events import Event, Progress, RaceStarted
from specview.settings.run import MAX_LANES, LaneSettings, RunSettings

PROBE_TOKENS = 12
ASK_RUNS = 1000
"""Races beyond which a sweep asks first."""
ASK_SECONDS = 3600.0
"""Estimated time beyond which a sweep asks first."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """How fast plain decoding is here, from a short run of it: what a grid will take follows."""

    plain_tokens_per_s: float
    prefill_s: float = 0.0

    def seconds(self, grid: Grid, races: int | None = None) -> float:
        """Estimated time of so many of a grid's races, else of all: two prefills each, both lanes as slow as plain.

        A lane that gains ends sooner, so does a text that ends early; loading is not in it.
        """
        race_s = 2 * (self.prefill_s + grid.settings.max_tokens / self.plain_tokens_per_s)
        return race_s * (grid.run_count if races is None else races)


def grid_words(grid: Grid, known: Estimate | None, races: int | None = None) -> str:
    """How many cells and races a grid has, how many are left where not all are, and what they take at a known rate."""
    cells = f"{grid.cell_count:,} {'cell' if grid.cell_count == 1 else 'cells'}"
    words = f"{cells} × {grid.repeats} = {grid.run_count:,} races" if grid.repeats > 1 else f"{cells}, one race each"
    if races is not None and races < grid.run_count:
        words += f", {races:,} left"
    if known is None:
        return f"{words}; the time is measured at the start"
    return f"{words}, about {duration(known.seconds(grid, races))} at {known.plain_tokens_per_s:.1f} plain tok/s"


def is_long(grid: Grid, known: Estimate, races: int) -> bool:
    """Whether so many races are asked about before they are run."""
    return races > ASK_RUNS or known.seconds(grid, races) > ASK_SECONDS


News = SeriesProgress | CellRun


def run_sweep(
    file: SweepFile,
    pool: ModelPool,
    on_news: Callable[[News], None] = lambda news: None,
    should_stop: ShouldStop = lambda: False,
    clock: Clock = time.perf_counter,
) -> SweepResults:
    """Race what the file lacks, and what failed before, once more; return the results, whole or up to the stop.

    Raises SpecviewError where nothing can be measured any more: the target cannot be loaded, the weights are not those
    of the races in the file, the disk is full. What was measured stays in the file.
    """
    results, grid = file.results, file.results.grid
    todo = results.pending(failed=True)
    timed = [run.seconds for run in results.runs.values() if not run.error and run.seconds > 0]
    tokens = 2 * grid.settings.max_tokens
    pace = Pace(on_news, results.total, tokens, clock, done=results.total - len(todo), seconds=timed)
    with Runner(
        grid.settings, grid.prompts, pool, keys=_keys(grid), should_stop=should_stop, on_event=pace.take, clock=clock
    ) as runner:
        for cell, repeat in todo:
            if should_stop():
                break
            words = results.words(cell)
            pace.begin(f"{words} (repeat {repeat + 1} of {grid.repeats})" if grid.repeats > 1 else words)
            try:
                run = file.add(_race(runner, file, cell, repeat, pace))
            except Stopped:  # half a race is no measurement
                break
            on_news(run)
            pace.end(counts=not run.error)
    return results


def _race(runner: Runner, file: SweepFile, cell: Cell, repeat: int, pace: Pace) -> CellRun:
    """One race of a cell; raises Stopped, and SpecviewError where no other can run either."""
    grid = file.results.grid
    answers = (cell.temperature, repeat)
    refusal: list[SpecviewError] = []

    def race_of(place: int) -> RunSettings:
        return grid.race(replace(cell, prompt=place), repeat, grid.lane_name(cell.lane))

    def check(event: Event) -> None:
        if isinstance(event, RaceStarted):
            try:
                file.check_facts(cell.lane, lane_facts(event.facts, 1))
            except SpecviewError as error:
                refusal.append(error)
                raise

    trouble = "an earlier turn: "
    try:
        settings = runner.with_turns(cell.prompt, race_of, answers)
        trouble = ""
        found = runner.race(settings, check)
    except RaceFailed as error:
        if refusal:
            raise refusal[0] from None
        return CellRun(cell.number, repeat, error=f"{trouble}{error}")
    if found.end == "stopped":
        raise Stopped
    if not found.lanes[0].error:
        runner.turns.heard(cell.prompt, found.lanes[0].record.text, answers)
    return _cell_run(found, cell, repeat, settings.sampling.seed, pace.seconds)


def _cell_run(found: CompareResult, cell: Cell, repeat: int, seed: int, seconds: float) -> CellRun:
    plain, lane = found.lanes
    for one, name in ((lane, ""), (plain, "plain: ")):
        if one.record.end == "error":
            return CellRun(cell.number, repeat, error=f"{name}{one.error or 'it ended by an error'}")
    table, base = RoundTable(lane.record.rounds), RoundTable(plain.record.rounds)
    return CellRun(
        cell=cell.number,
        repeat=repeat,
        seconds=seconds,
        k=lane.record.settings.get("k"),
        seed=seed,
        rule=str(lane.record.settings.get("rule") or ""),
        metrics=metrics_to_json(lane.metrics),
        plain=metrics_to_json(plain.metrics),
        speedup=lane.speedup.value if lane.speedup is not None else None,
        spread=lane.speedup.spread if lane.speedup is not None else None,
        equality=equality_to_json(lane.equality),
        costs=costs_to_json(measured_costs(table, base)),
        pass_counts=dict(Counter([*base["rows"].tolist(), *table["rows"].tolist()])),
        positions=tuple(zip(*table.by_depth(), strict=True)),
        eighths=tuple(zip(*table.by_part(EIGHTHS), strict=True)),
        draft_rounds=int((table["k"] > 0).sum()),
        busy=found.busy,
    )


def estimate(
    grid: Grid, pool: ModelPool, should_stop: ShouldStop = lambda: False, on_text: Callable[[str], None] = lambda text: None,
    clock: Clock = time.perf_counter,
) -> Estimate:  # fmt: skip
    """How fast plain decoding is for this grid: a few tokens after its longest prompt that runs are timed.

    Raises SpecviewError where the target cannot run, Stopped where should_stop said so.
    """

    def listen(event: Event) -> None:
        if isinstance(event, Progress):
            on_text(event.text)

    first: SpecviewError | None = None
    tokens = min(grid.settings.max_tokens, PROBE_TOKENS)
    with Runner(  # what the sweep is about to use stays loaded
        grid.settings, grid.prompts, pool, keys=_keys(grid), should_stop=should_stop, on_event=listen, clock=clock
    ) as runner:
        for place in sorted(range(len(grid.prompts)), key=lambda place: -len(grid.prompts[place].text)):
            settings = grid.race(Cell(0, 0, grid.lanes[0].k or 1, 0.0, place))
            try:
                found = runner.race(replace(settings, lanes=(LaneSettings(),), max_tokens=tokens))
            except RaceFailed as error:
                first = first or error
                continue
            if found.end == "stopped":
                raise Stopped
            plain = found.lanes[0]
            steps = [round_.seconds for round_ in plain.record.rounds]
            step_s = median(steps[2:] or steps) if steps else 0.0
            if step_s > 0 and not plain.error:
                return Estimate(1 / step_s, plain.record.prefill_s)
            why = plain.error or "plain decoding could not be timed: it wrote nothing."
            first = first or SpecviewError(why, "" if plain.error else "Use another prompt.")
    raise first or SpecviewError("there is no prompt.")


def _keys(grid: Grid) -> list[ModelKey]:
    """What stays loaded over the whole sweep besides the target: the lanes' drafts, where they are not too many."""
    if len(grid.lanes) >= MAX_LANES:
        return []
    return [key for lane in grid.lanes for key in lane_keys(grid.settings, lane)]
