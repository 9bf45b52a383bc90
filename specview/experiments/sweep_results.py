"""What a sweep found: its races by cell, the rows of its table, its document, and what a view says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from statistics import median
from typing import Any

from specview.decoding.metrics import Metrics
from specview.decoding.speedup import median_speedup
from specview.decoding.verification import is_lossy
from specview.drafting.lanes import drafts_named
from specview.experiments.sweep_curves import (
    CellRun,
    Series,
    SeriesKey,
    eighth_rates,
    fold_series,
    position_rates,
    share,
)
from specview.experiments.sweep_grid import Cell, Grid
from specview.files.figures import METRICS, columns
from specview.files.report import Block, Report, Table, Text
from specview.files.schema import Json, plain
from specview.files.tables import Column
from specview.library.exporters import equality_words

_POOLED = (
    ("acceptance_rate", "accepted", "judged"),
    ("draft_acceptance", "accepted", "proposed"),
    ("tokens_per_target_pass", "emitted", "rounds"),
)


@dataclass
class SweepResults:
    """A sweep's grid, the facts of its lanes' first races, and the races so far, by (cell, repeat).

    trouble: what was found wrong with its file, '' where nothing was. made: when it began (ISO 8601).
    """

    grid: Grid
    facts: dict[int, Json] = field(default_factory=dict)
    runs: dict[tuple[int, int], CellRun] = field(default_factory=dict)
    made: str = ""
    trouble: str = ""

    def __post_init__(self) -> None:
        self.cells: list[Cell] = list(self.grid.cells())
        self._cells_of: dict[SeriesKey, list[Cell]] = {}
        for cell in self.cells:
            self._cells_of.setdefault(self._key(cell), []).append(cell)
        self._series: dict[SeriesKey, Series] = {}  # as long as no race is added to them
        self._rows: dict[SeriesKey, list[Json]] = {}

    def copy(self) -> SweepResults:
        """The same races in an object of its own, for another thread."""
        return SweepResults(self.grid, dict(self.facts), dict(self.runs), self.made, self.trouble)

    def add(self, run: CellRun) -> None:
        """Take a race in; it stands in place of an earlier one of its cell and repeat."""
        if not (0 <= run.cell < len(self.cells) and 0 <= run.repeat < self.grid.repeats):
            raise ValueError(f"there is no cell {run.cell} with repeat {run.repeat} in the grid")
        self.runs[run.cell, run.repeat] = run
        key = self._key(self.cells[run.cell])
        self._series.pop(key, None)
        self._rows.pop(key, None)

    @property
    def total(self) -> int:
        """Races of the whole grid."""
        return len(self.cells) * self.grid.repeats

    def pending(self, *, failed: bool = False) -> list[tuple[Cell, int]]:
        """What is still to be raced, repeat 1 of all cells first; failed: those that failed once more, too."""
        return [
            (cell, repeat)
            for repeat in range(self.grid.repeats)
            for cell in self.cells
            if (found := self.runs.get((cell.number, repeat))) is None or (failed and found.error)
        ]

    @property
    def failures(self) -> list[CellRun]:
        """The races that failed."""
        return [run for run in self.runs.values() if run.error]

    @property
    def to_do(self) -> bool:
        """Whether races are left, those that failed among them."""
        return len(self.runs) < self.total or bool(self.failures)

    def of_cells(self, *cells: Cell) -> list[CellRun]:
        """The races of some cells that did not fail, by repeat."""
        keys = ((cell.number, repeat) for cell in cells for repeat in range(self.grid.repeats))
        return [run for key in keys if (run := self.runs.get(key)) is not None and not run.error]

    def plain_tokens_per_s(self) -> float | None:
        """Median decode tok/s of the plain lanes."""
        rates = [rate for run in self.runs.values() if (rate := (run.plain or {}).get("decode_tokens_per_s"))]
        return median(rates) if rates else None

    def words(self, cell: Cell) -> str:
        """A cell in words."""
        prompt = self.grid.prompts[cell.prompt]
        parts = [self.grid.lane_name(cell.lane), *([f"k {cell.k}"] if cell.k is not None else [])]
        parts += [prompt.group if not prompt.name or prompt.bundled else f"{prompt.group} {prompt.name}"]
        return ", ".join([*parts, f"temperature {cell.temperature:g}"])

    # -- curves --------------------------------------------------------------------------------

    def curves(self) -> list[SeriesKey]:
        """All curves, in the grid's order."""
        return list(self._cells_of)

    def cells_of(self, key: SeriesKey) -> list[Cell]:
        """The cells of one curve."""
        return self._cells_of[key]

    def series(self, key: SeriesKey) -> Series:
        """One curve, with its prediction."""
        if key not in self._series:
            policy = self.grid.lanes[key.lane].policy
            self._series[key] = fold_series(key, self.series_name(key), self.of_cells(*self.cells_of(key)), policy)
        return self._series[key]

    def all_series(self) -> list[Series]:
        """Every curve that has a race."""
        return [series for key in self.curves() if (series := self.series(key)).points]

    def series_name(self, key: SeriesKey) -> str:
        """A curve's name: what sets it apart from the others of this grid."""
        parts = [self.grid.lane_name(key.lane)]
        if len({prompt.group for prompt in self.grid.prompts}) > 1 or len(self.grid.lanes) == 1:
            parts.append(key.group)
        if len(self.grid.temperatures) > 1:
            parts.append(f"T {key.temperature:g}")
        return " · ".join(parts)

    def _key(self, cell: Cell) -> SeriesKey:
        return SeriesKey(cell.lane, self.grid.prompts[cell.prompt].group, cell.temperature)

    def positions(self, key: SeriesKey, k: int) -> list[tuple[float | None, float | None]]:
        """(unconditional, conditional) acceptance by position at one k of a curve."""
        return position_rates([run for run in self.of_cells(*self.cells_of(key)) if run.k == k])

    def along(self, key: SeriesKey) -> list[float | None]:
        """Acceptance rate by eighth of the output, over all k of a curve."""
        return eighth_rates(self.of_cells(*self.cells_of(key)))

    # -- the table -----------------------------------------------------------------------------

    def rows(self) -> list[Json]:
        """A row per cell, under the keys of COLUMNS: medians over repeats, acceptances pooled over them."""
        rows: list[Json] = [{}] * len(self.cells)
        for key, cells in self._cells_of.items():
            if key not in self._rows:
                self._rows[key] = [self._row(cell, self.series(key)) for cell in cells]
            for cell, row in zip(cells, self._rows[key], strict=True):
                rows[cell.number] = row
        return rows

    def _row(self, cell: Cell, series: Series) -> Json:
        lane, prompt = self.grid.lanes[cell.lane], self.grid.prompts[cell.prompt]
        runs = self.of_cells(cell)
        faster = median_speedup(run.faster for run in runs)
        k = runs[0].k if runs else cell.k
        told = series.at(k)
        equalities = [run.equality for run in runs if run.equality is not None]
        unequal = next((one for one in equalities if not one.get("equal")), None)
        rates = position_rates(runs) if any(run.draft_rounds for run in runs) else []
        return {
            "cell": cell.number,
            "lane": self.grid.lane_name(cell.lane),
            "method": lane.method,
            "draft": drafts_named(lane),
            "k": k,
            "policy": lane.policy,
            "rule": runs[0].rule if runs else lane.rule,
            "temperature": cell.temperature,
            "workload": prompt.group,
            "prompt": prompt.name,
            "repeats": len(runs),
            "speedup": faster.value if faster else None,
            "speedup_low": faster.low if faster else None,
            "speedup_high": faster.high if faster else None,
            "predicted": told.speedup if told else None,
            "predicted_c_alone": told.c_alone if told else None,
            "tokens_per_s": faster.tokens_per_s if faster else None,
            "plain_tokens_per_s": faster.plain_tokens_per_s if faster else None,
            **{name: _median([run.figure(name) for run in runs]) for name in METRIC_NAMES},
            **{name: share(runs, above, below) for name, above, below in _POOLED},
            "position_acceptance": [one for one, _ in rates] or None,
            "position_acceptance_conditional": [one for _, one in rates] or None,
            "acceptance_by_eighth": eighth_rates(runs) if rates else None,
            "equal_to_plain": equality_words(unequal or equalities[0]) if equalities else None,
            "note": self._note(cell, series, runs, k),
        }

    def _note(self, cell: Cell, series: Series, runs: Sequence[CellRun], k: int | None) -> str:
        """Best k of its curve, plain wins, lossy, or why the cell has no figures."""
        words = []
        best = series.best
        if best is not None and best.k == k and runs:
            several = len({other.prompt for other in self.cells_of(series.key)}) > 1
            over = f" over all {series.key.group}" if several else ""  # of one prompt the row may say another thing
            words.append(("plain wins" if series.plain_wins else "best k") + over)
        if runs and is_lossy(runs[0].rule):
            words.append("lossy rule")
        if any(run.metrics is not None and not run.metrics.get("proposed") for run in runs):
            words.append("nothing drafted")
        all_runs = (self.runs.get((cell.number, repeat)) for repeat in range(self.grid.repeats))
        failed = [run.error for run in all_runs if run is not None and run.error]
        if failed:
            words.append(f"failed{f' in {len(failed)} of {self.grid.repeats}' if runs else ''}: {failed[0]}")
        return "; ".join(words)

    def document(self) -> Json:
        """The sweep as one JSON document: grid, facts, rows, curves with best k and prediction, every race."""
        return {
            "schema": "specview.sweep/1",
            "made": self.made,
            "grid": self.grid.to_json(),
            "facts": {self.grid.lane_name(lane): plain(facts) for lane, facts in sorted(self.facts.items())},
            "done": len(self.runs),
            "total": self.total,
            "rows": plain(self.rows()),
            "series": [self._series_document(series) for series in self.all_series()],
            "races": [run.to_json() for _, run in sorted(self.runs.items())],
        }

    def _series_document(self, series: Series) -> Json:
        best, costs = series.best, series.costs
        return plain(
            {
                "name": series.name,
                "lane": self.grid.lane_name(series.key.lane),
                "workload": series.key.group,
                "temperature": series.key.temperature,
                "points": [asdict(point) for point in series.points],
                "best_k": best.k if best else None,
                "plain_wins": series.plain_wins,
                "sentence": series.sentence(),
                "acceptance_by_eighth": self.along(series.key),
                "alpha": series.alpha,
                "draft_cost": costs.c if costs else None,
                "verify_cost": {str(one.k): costs.v(one.k) for one in series.predicted} if costs else None,
                "predicted": [asdict(one) for one in series.predicted],
                "predicted_is": "modelled: alpha pooled over k and repeats; draft and verify costs measured",
            }
        )


def _median(values: Sequence[Any]) -> Any:
    """Median of those that exist; counts stay whole."""
    there = sorted(value for value in values if value is not None)
    if not there:
        return None
    return there[(len(there) - 1) // 2] if isinstance(there[0], int) else median(there)


def sweep_report(results: SweepResults) -> Report:
    """A line per cell, the best k of every curve marked, what each curve says, and what the figures are."""
    grid = results.grid
    names = ["prompt"] if any(prompt.name and not prompt.bundled for prompt in grid.prompts) else []
    printed = ("lane", "workload", *names, "temperature", "k", "speedup", "predicted", "predicted_c_alone", "tokens_per_s",
               "plain_tokens_per_s", "tokens_per_target_pass", "acceptance_rate", "draft_cost", "verify_cost",
               "equal_to_plain", "note")  # fmt: skip
    blocks: list[Block] = [Table(COLUMNS, results.rows(), name="sweep", identity="cell", hidden=HIDDEN, printed=printed)]
    blocks += [Text(series.sentence()) for series in results.all_series()]
    spread = "behind it the middle half of the run's eighths"
    if grid.repeats > 1:
        spread = "that of the repeat with the median ratio, with least and greatest; each against plain in its own race"
    blocks.append(Text(f"Speedup: tok/s / plain, of runs of other lengths or speeds over the time both were running; {spread}.", "note"))
    blocks.append(Text("predicted: modelled, one α per curve pooled over k, c and v(k) as measured; c alone: v(k) taken as 1.", "note"))
    if grid.settings.check_mode:
        blocks.append(Text("Check mode pads one-row passes: the outputs are comparable, the times are not.", "note"))
    busy = [run.busy for run in results.runs.values() if run.busy]
    if busy:
        words = f"In {len(busy)} of {len(results.runs)} races the machine was busy; the last: {busy[-1]}"
        blocks.append(Text(words, "warning"))
    return Report("Sweep", blocks, results.document())


COLUMNS: tuple[Column, ...] = (
    Column("lane", "lane", "The method, or the name you gave it"),
    Column("workload", "workload", "What the prompt comes from; figures are pooled by it"),
    Column("prompt", "prompt", "The prompt within a set"),
    Column("temperature", "T", "Temperature: 0 is greedy", 2),
    Column("k", "k", "Drafted tokens a round", 0),
    Column("speedup", "speedup", "tok/s / plain tok/s, of the repeat with the median ratio", 2, 1.0, "×",
           ("speedup_low", "speedup_high")),
    Column("speedup_low", "least", "The least of the repeats; of one repeat the lower quartile of its eighths, or the speedup where that is less", 2, 1.0, "×"),
    Column("speedup_high", "greatest", "The greatest of the repeats; of one repeat the upper quartile of its eighths, or the speedup where that is more", 2, 1.0, "×"),
    Column("predicted", "predicted", "Modelled: (1 - α^(k+1)) / ((1 - α)(k c + v(k) + other)) with α pooled over k, "
           "c and v(k) measured", 2, 1.0, "×"),
    Column("predicted_c_alone", "pred. c alone", "Modelled: the same with v(k) taken as 1 (Leviathan 2023, theorem 3.8)", 2, 1.0, "×"),
    Column("note", "note", "Best k of its curve; plain wins: no k of the curve is faster than plain"),
    Column("tokens_per_s", "tok/s", "Decode tok/s that the speedup is made of; of runs of other lengths or speeds over the time in which the lane and plain were both running", 2),
    Column("plain_tokens_per_s", "plain tok/s", "The same of the plain lane beside it", 2),
    METRICS["decode_tokens_per_s"].column(title="tok/s, all"),
    *columns("tokens_per_target_pass", "acceptance_rate", "draft_acceptance", "mean_accepted_length", "draft_cost", "verify_cost",
             "draft_share", "verify_share", "other_share", "expected_tokens"),
    METRICS["predicted_speedup"].column(title="own pred. c"),
    METRICS["predicted_speedup_measured_verify"].column(title="own pred. v"),
    *columns("ttft_s", "itl_p50_s", "itl_p95_s", "tpot_s"),
    METRICS["total_s"].column(digits=2, scale=1.0, unit=" s"),
    *columns("rounds", "proposed", "judged", "accepted", "ignored", "emitted", "mean_k"),
    METRICS["distinct_4grams"].column(digits=2, scale=1.0, unit=""),
    *columns("position_acceptance", "position_acceptance_conditional"),
    Column("acceptance_by_eighth", "by eighth", "Acceptance rate by eighth of the output"),
    Column("equal_to_plain", "equal to plain", "Greedy output against plain's, token for token"),
    Column("repeats", "repeats", "Races that did not fail", 0),
    Column("method", "method", "What drafts"),
    Column("draft", "draft", "The draft model or head"),
    Column("rule", "rule", "Acceptance rule as resolved"),
    Column("policy", "policy", "How draft lengths are chosen"),
)  # fmt: skip
"""The columns of a sweep's table; the keys are those of `SweepResults.rows`."""

FEW = ("lane", "workload", "temperature", "k", "speedup", "speedup_low", "speedup_high", "predicted", "note",
       "tokens_per_s", "plain_tokens_per_s", "tokens_per_target_pass", "acceptance_rate", "draft_cost",
       "verify_cost", "equal_to_plain", "repeats")  # fmt: skip
"""The columns that a window shows at first."""
HIDDEN = tuple(column.key for column in COLUMNS if column.key not in FEW)

_MEDIANS = {item.name for item in fields(Metrics)} - {name for name, _, _ in _POOLED}
METRIC_NAMES = tuple(column.key for column in COLUMNS if column.key in _MEDIANS and not column.key.startswith("position_"))
"""Figures of which a row has the median over repeats."""
