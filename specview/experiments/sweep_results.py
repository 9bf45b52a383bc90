"""What a sweep found: its races folded into rows of a table, curves over k with their prediction, and the best k.

Measured: speedups (each against the plain lane of its own race), acceptance, and the costs of passes and drafts.
Modelled: the prediction, which takes one alpha for a whole workload, pooled over all k, and the closed form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from statistics import median
from typing import Any

from specview.decoding import theory
from specview.decoding.costs import line_through
from specview.decoding.ledger import Round, depths
from specview.decoding.speedup import EIGHTHS, Speedup, median_speedup
from specview.experiments.sweep_grid import Cell, Grid
from specview.files.schema import Json, plain
from specview.files.tables import Column
from specview.lab.measured import MeasuredCosts
from specview.library.exporters import equality_words, is_lossy

Count = tuple[int, int]
"""(accepted, judged)."""

_POOLED = (
    ("acceptance_rate", "accepted", "judged"),
    ("draft_acceptance", "accepted", "proposed"),
    ("tokens_per_target_pass", "emitted", "rounds"),
)


@dataclass(frozen=True, slots=True)
class CellRun:
    """One race of a cell.

    seconds    of the clock on the wall, loading left out
    k          drafted tokens a round as the lane resolved them;  seed  that of its random numbers
    metrics, plain  figures of the lane and of the plain lane beside it, under the names of files
    spread     the middle half of the speedup over eighths of the run
    costs      what passes and drafts cost in it (`MeasuredCosts`), passes counted in pass_counts by their rows
    positions  (accepted, judged) by position in the draft (by depth in trees);  eighths  by eighth of the output
    error      one line where the lane failed: all else is then None or empty
    """

    cell: int
    repeat: int
    seconds: float = 0.0
    k: int | None = None
    rule: str = ""
    metrics: Mapping[str, Any] | None = None
    plain: Mapping[str, Any] | None = None
    speedup: float | None = None
    spread: tuple[float, float] | None = None
    equality: Mapping[str, Any] | None = None
    costs: Mapping[str, Any] | None = None
    pass_counts: Mapping[int, int] = field(default_factory=dict)
    positions: tuple[Count, ...] = ()
    eighths: tuple[Count, ...] = ()
    draft_rounds: int = 0
    seed: int | None = None
    busy: str = ""
    error: str = ""

    def to_json(self) -> Json:
        """As it stands in a sweep file."""
        return plain(asdict(self))

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> CellRun:
        """Of a line of a sweep file; raises TypeError, KeyError or ValueError where it is none."""
        known = {item.name for item in fields(cls)}
        taken = {key: value for key, value in found.items() if key in known}
        for key in ("cell", "repeat"):
            if isinstance(taken[key], bool) or not isinstance(taken[key], int):
                raise TypeError(f"{key} is {taken[key]!r}")
        for key in ("positions", "eighths"):
            taken[key] = tuple((int(hit), int(tried)) for hit, tried in taken.get(key, ()))
        taken["pass_counts"] = {int(rows): int(count) for rows, count in (taken.get("pass_counts") or {}).items()}
        if taken.get("spread") is not None:
            low, high = taken["spread"]
            taken["spread"] = float(low), float(high)
        for key in ("metrics", "plain", "costs", "equality"):
            if taken.get(key) is not None and not isinstance(taken[key], Mapping):
                raise TypeError(f"{key} is no object")
        return cls(**taken)

    @property
    def faster(self) -> Speedup | None:
        """The speedup with what it is the ratio of; None where the lane or plain gave nothing."""
        return Speedup.recorded(self.speedup, self.spread, self.metrics or {}, self.plain or {})

    @property
    def plain_tokens_per_s(self) -> float | None:
        """Decode tok/s of the plain lane over all its rounds."""
        return (self.plain or {}).get("decode_tokens_per_s")


def positions_of(rounds: Iterable[Round]) -> tuple[Count, ...]:
    """(accepted, judged) by position in the draft, by depth in trees."""
    counts: list[list[int]] = []
    for round_ in rounds:
        at = range(round_.k) if round_.parents is None else depths(round_.parents)
        for depth, token in zip(at, round_.drafted, strict=True):
            while len(counts) <= depth:
                counts.append([0, 0])
            counts[depth][0] += token.verdict == "accepted"
            counts[depth][1] += token.verdict != "ignored"
    return tuple((hit, tried) for hit, tried in counts)


def eighths_of(rounds: Sequence[Round]) -> tuple[Count, ...]:
    """(accepted, judged) by eighth of the output: a judged token counts where it stands or would have stood."""
    total = sum(len(round_.emitted) for round_ in rounds)
    counts = [[0, 0] for _ in range(EIGHTHS)]
    done = 0
    for round_ in rounds:
        at = range(round_.k) if round_.parents is None else depths(round_.parents)
        for depth, token in zip(at, round_.drafted, strict=True):
            if token.verdict != "ignored":
                place = counts[min(EIGHTHS - 1, EIGHTHS * (done + depth) // total)]
                place[0] += token.verdict == "accepted"
                place[1] += 1
        done += len(round_.emitted)
    return tuple((hit, tried) for hit, tried in counts)


def costs_to_json(costs: MeasuredCosts | None) -> Json | None:
    """The costs of one race as they stand in a sweep file; None where no one-row pass was timed."""
    if costs is None:
        return None
    passes = {str(rows): seconds for rows, seconds in costs.passes.items()}
    lines = {name: getattr(costs, name) for name in _COST_NAMES}
    return plain({"passes": passes, **lines})


_COST_NAMES = ("draft_start_s", "draft_step_s", "other_s", "plain_other_s")


@dataclass(frozen=True, slots=True)
class SeriesKey:
    """What one curve over k is of: a lane of the grid, a group of prompts (a workload), a temperature."""

    lane: int
    group: str
    temperature: float


@dataclass(frozen=True, slots=True)
class Point:
    """Speedup at one k: that of the race with the median ratio, the least and the greatest (of one, its middle half)."""

    k: int
    speedup: float
    low: float
    high: float
    races: int


@dataclass(frozen=True, slots=True)
class Predicted:
    """The closed form at one k, and the same with c alone (verifying taken to cost a plain pass)."""

    k: int
    speedup: float
    c_alone: float


@dataclass(frozen=True, slots=True)
class Series:
    """One curve over k.

    alpha is accepted / judged over all k and repeats; costs are in plain passes (a pass of one row is 1), medians over
    the same races. predicted is empty for drafts that are no chains and for lengths a policy chooses: the closed form
    is of neither.
    """

    key: SeriesKey
    name: str
    points: tuple[Point, ...]
    alpha: float | None
    costs: MeasuredCosts | None
    predicted: tuple[Predicted, ...]

    @property
    def best(self) -> Point | None:
        """The point with the highest median speedup; of equals the smallest k."""
        return max(self.points, key=lambda point: (round(point.speedup, 9), -point.k), default=None)

    @property
    def plain_wins(self) -> bool:
        """Whether plain decoding is told apart from every k as the faster."""
        return self.best is not None and self.best.speedup <= 1 and (self.best.high < 1 or self.best.low == self.best.high)

    @property
    def best_predicted(self) -> Predicted | None:
        """The k that the closed form calls fastest."""
        return max(self.predicted, key=lambda one: (one.speedup, -one.k), default=None)

    def as_good(self) -> list[int]:
        """Other k whose interval meets the best k's: the measurement does not tell them apart."""
        best = self.best
        if best is None:
            return []
        return [point.k for point in self.points if point is not best and point.high >= best.low]

    def limited(self, told: Predicted) -> float:
        """A prediction, scaled down where the closed form makes too much of the best k that was measured."""
        best = self.best
        same = next((one.speedup for one in self.predicted if best is not None and one.k == best.k), 0.0)
        return told.speedup if best is None or not same else told.speedup * min(1.0, best.speedup / same)

    def sentence(self) -> str:
        """What the curve says, in one line; no prediction stands over what was measured."""
        best = self.best
        if best is None:
            return f"{self.name}: nothing measured."
        value = f"{best.speedup:.2f}x"
        if best.low != best.high:
            value += f" ({best.low:.2f}-{best.high:.2f})"
        elif best.races == 1:
            value += " (one race, too short for a spread)"
        if self.plain_wins:
            words = f"{self.name}: plain wins, the best k is {best.k} at {value}"
        else:
            words = f"{self.name}: best k {best.k}, {value}"
            if best.low <= 1:
                words += ", not told apart from plain"
            others = self.as_good()
            if others:
                words += f"; k {', '.join(map(str, others))} not told apart from it"
        told = self.best_predicted
        if told is not None:
            raced = next((point for point in self.points if point.k == told.k), None)
            if told.speedup <= 1 and best.speedup <= 1:
                words += f"; the closed form finds k {told.k} no faster than plain either, {told.speedup:.2f}x"
            elif raced is best:
                words += f"; the closed form says k {told.k} too, {told.speedup:.2f}x"
            elif raced is not None:
                words += f"; the closed form puts k {told.k} first, {told.speedup:.2f}x, where {raced.speedup:.2f}x was measured"
            elif self.limited(told) > best.high:
                words += f"; k {told.k}, which was not raced, is predicted at {self.limited(told):.2f}x"
        return f"{words}."


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
    def to_do(self) -> bool:
        """Whether races are left, those that failed among them."""
        return len(self.runs) < self.total or any(run.error for run in self.runs.values())

    @property
    def failures(self) -> list[CellRun]:
        """The races that failed."""
        return [run for run in self.runs.values() if run.error]

    def of_cell(self, cell: Cell) -> list[CellRun]:
        """A cell's races that did not fail, by repeat."""
        found = [self.runs.get((cell.number, repeat)) for repeat in range(self.grid.repeats)]
        return [run for run in found if run is not None and not run.error]

    def plain_tokens_per_s(self) -> float | None:
        """Median decode tok/s of the plain lanes."""
        rates = [rate for run in self.runs.values() if (rate := run.plain_tokens_per_s)]
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

    def series(self, key: SeriesKey) -> Series:
        """One curve, with its prediction."""
        if key not in self._series:
            self._series[key] = self._fold(key)
        return self._series[key]

    def _fold(self, key: SeriesKey) -> Series:
        by_k: dict[int, list[CellRun]] = {}
        for cell in self.cells_of(key):
            for run in self.of_cell(cell):
                if run.k is not None:
                    by_k.setdefault(run.k, []).append(run)
        by_k = dict(sorted(by_k.items()))
        runs = [run for found in by_k.values() for run in found]
        alpha = _share(runs, "accepted", "judged")
        costs = pooled_costs(runs)
        lane = self.grid.lanes[key.lane]
        chains = all((run.metrics or {}).get("expected_tokens") is not None for run in runs if run.draft_rounds)
        predicted: tuple[Predicted, ...] = ()
        if alpha is not None and costs is not None and chains and lane.policy == "constant":
            predicted = tuple(_predict(by_k, alpha, costs))
        points = [point for k, found in by_k.items() if (point := _point(k, found)) is not None]
        return Series(key, self.series_name(key), tuple(points), alpha, costs, predicted)

    def all_series(self) -> list[Series]:
        """Every curve that has a race."""
        return [series for key in self.curves() if (series := self.series(key)).points]

    def cells_of(self, key: SeriesKey) -> list[Cell]:
        """The cells of one curve."""
        return self._cells_of[key]

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

    # -- acceptance ----------------------------------------------------------------------------

    def positions(self, key: SeriesKey, k: int) -> list[tuple[float | None, float | None]]:
        """(unconditional, conditional) acceptance by position at one k of a curve.

        Unconditional: accepted there / rounds with a draft; conditional: accepted / judged there. None where nothing
        was judged.
        """
        runs = [run for cell in self.cells_of(key) for run in self.of_cell(cell) if run.k == k]
        rounds = sum(run.draft_rounds for run in runs)
        return [
            (hit / rounds if rounds else None, hit / tried if tried else None)
            for hit, tried in pooled_counts([run.positions for run in runs])
        ]

    def along(self, key: SeriesKey) -> list[float | None]:
        """Acceptance rate by eighth of the output, over all k of a curve."""
        runs = [run for cell in self.cells_of(key) for run in self.of_cell(cell)]
        return [hit / tried if tried else None for hit, tried in pooled_counts([run.eighths for run in runs])]

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
        runs = self.of_cell(cell)
        faster = median_speedup(run.faster for run in runs)
        k = runs[0].k if runs else cell.k
        told = next((one for one in series.predicted if one.k == k), None)
        equalities = [run.equality for run in runs if run.equality is not None]
        unequal = next((one for one in equalities if not one.get("equal")), None)
        row: Json = {
            "cell": cell.number,
            "lane": self.grid.lane_name(cell.lane),
            "method": lane.method,
            "draft": lane.drafts_named,
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
            **{name: _median([(run.metrics or {}).get(name) for run in runs]) for name in METRIC_NAMES},
            **{name: _share(runs, above, below) for name, above, below in _POOLED},
            "position_acceptance": None,
            "position_acceptance_conditional": None,
            "acceptance_by_eighth": None,
            "equal_to_plain": equality_words(unequal or equalities[0]) if equalities else None,
            "note": self._note(cell, series, runs, k),
        }
        counts = pooled_counts([run.positions for run in runs])
        rounds = sum(run.draft_rounds for run in runs)
        if counts and rounds:
            row["position_acceptance"] = [hit / rounds for hit, _ in counts]
            row["position_acceptance_conditional"] = [hit / tried if tried else None for hit, tried in counts]
            eighths = pooled_counts([run.eighths for run in runs])
            row["acceptance_by_eighth"] = [hit / tried if tried else None for hit, tried in eighths]
        return row

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
        failed = [
            found.error for repeat in range(self.grid.repeats)
            if (found := self.runs.get((cell.number, repeat))) is not None and found.error
        ]  # fmt: skip
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


def pooled_counts(counts: Sequence[Sequence[Count]]) -> list[Count]:
    """Sums place by place; shorter ones have nothing further on."""
    longest = max(map(len, counts), default=0)
    return [
        (sum(one[place][0] for one in counts if place < len(one)), sum(one[place][1] for one in counts if place < len(one)))
        for place in range(longest)
    ]


def pooled_costs(runs: Sequence[CellRun]) -> MeasuredCosts | None:
    """Costs of many races in units of each one's own plain pass: medians, so that a slow hour does not tilt them.

    A pass counts by how many rounds had its rows; None where no race timed a one-row pass.
    """
    ratios: dict[int, list[tuple[float, int]]] = {}
    drafts: dict[int, list[float]] = {}
    others: list[float] = []
    plain_others: list[float] = []
    for run in runs:
        costs = _costs_of(run)
        if costs is None:
            continue
        unit = costs.plain_pass_s
        for rows, seconds in costs.passes.items():
            ratios.setdefault(rows, []).append((seconds / unit, run.pass_counts.get(rows, 1)))
        length = round((run.metrics or {}).get("mean_k") or 0)
        if length:
            drafts.setdefault(length, []).append(costs.draft_s(length) / unit)
        others.append(costs.other_s / unit)
        plain_others.append(costs.plain_other_s / unit)
    if not others:
        return None
    start, step = line_through(drafts) if drafts else (0.0, 0.0)
    passes = {rows: _weighted_median(found) for rows, found in sorted(ratios.items())}
    return MeasuredCosts(
        passes={**passes, 1: 1.0},
        measured=frozenset(passes),
        draft_start_s=start,
        draft_step_s=step,
        other_s=median(others),
        plain_other_s=median(plain_others),
    )


def _costs_of(run: CellRun) -> MeasuredCosts | None:
    if not run.costs:
        return None
    passes = {int(rows): seconds for rows, seconds in run.costs["passes"].items()}
    if not passes.get(1):
        return None
    own = {name: run.costs.get(name) or 0.0 for name in _COST_NAMES}
    return MeasuredCosts(dict(sorted(passes.items())), frozenset(passes), **own)


def _predict(by_k: Mapping[int, Sequence[CellRun]], alpha: float, costs: MeasuredCosts) -> Iterable[Predicted]:
    """The closed form at every k from the least to the greatest measured.

    The share of rounds that have a draft, and how much of k a draft has on average, are measured too (drafters that
    copy often have none; the token limit cuts the last ones), and interpolated between the measured k.
    """
    shares: dict[int, float] = {}
    lengths: dict[int, float] = {}
    for k, runs in by_k.items():
        rounds = sum((run.metrics or {}).get("rounds") or 0 for run in runs)
        drafted = sum(run.draft_rounds for run in runs)
        proposed = sum((run.metrics or {}).get("proposed") or 0 for run in runs)
        if rounds:
            shares[k] = drafted / rounds
            lengths[k] = proposed / drafted / k if drafted else 0.0
    for k in range(min(shares, default=1), max(shares, default=0) + 1):
        share, length = _between(shares, k), k * _between(lengths, k)
        tokens = 1 + share * (theory.expected_tokens(alpha, length) - 1)
        draft_s = costs.draft_start_s + costs.draft_step_s * length if length else 0.0
        low = int(length)
        part = length - low
        pass_s = costs.pass_s(low + 1) * (1 - part) + (costs.pass_s(low + 2) * part if part else 0.0)
        round_s = share * (draft_s + pass_s) + (1 - share) * costs.pass_s(1) + costs.other_s
        yield Predicted(k, tokens * costs.plain_round_s / round_s, tokens / (1 + share * draft_s))


def _between(known: Mapping[int, float], at: int) -> float:
    """Linear interpolation within the known range."""
    if at in known:
        return known[at]
    low, high = max(k for k in known if k < at), min(k for k in known if k > at)
    return known[low] + (known[high] - known[low]) * (at - low) / (high - low)


def _point(k: int, runs: Sequence[CellRun]) -> Point | None:
    faster = median_speedup(run.faster for run in runs)
    if faster is None:
        return None
    low, high = faster.spread or (faster.value, faster.value)
    return Point(k, faster.value, low, high, sum(run.speedup is not None for run in runs))


def _share(runs: Sequence[CellRun], above: str, below: str) -> float | None:
    sums = [sum((run.metrics or {}).get(name) or 0 for run in runs) for name in (above, below)]
    return sums[0] / sums[1] if sums[1] else None


def _median(values: Sequence[Any]) -> Any:
    """Median of those that exist; counts stay whole."""
    there = sorted(value for value in values if value is not None)
    if not there:
        return None
    return there[(len(there) - 1) // 2] if isinstance(there[0], int) else median(there)


def _weighted_median(values: Sequence[tuple[float, int]]) -> float:
    """The value in the middle of the weights; where it falls between two, half way, as of two repeats."""
    ordered = sorted(values)
    total, passed = sum(weight for _, weight in ordered), 0
    for place, (value, weight) in enumerate(ordered):
        passed += weight
        if 2 * passed > total:
            return value
        if 2 * passed == total and place + 1 < len(ordered):
            return (value + ordered[place + 1][0]) / 2
    return ordered[-1][0]


COLUMNS: tuple[Column, ...] = (
    Column("lane", "lane", "The method, or the name you gave it"),
    Column("workload", "workload", "What the prompt comes from; figures are pooled by it"),
    Column("prompt", "prompt", "The prompt within a set"),
    Column("temperature", "T", "Temperature: 0 is greedy", 2),
    Column("k", "k", "Drafted tokens a round", 0),
    Column("speedup", "speedup", "tok/s / plain tok/s, of the repeat with the median ratio", 2, 1.0, "×"),
    Column("speedup_low", "least", "The least of the repeats; of one repeat the lower quartile of its eighths, or the speedup where that is less", 2, 1.0, "×"),
    Column("speedup_high", "greatest", "The greatest of the repeats; of one repeat the upper quartile of its eighths, or the speedup where that is more", 2, 1.0, "×"),
    Column("predicted", "predicted", "Modelled: (1 - α^(k+1)) / ((1 - α)(k c + v(k) + other)) with α pooled over k, "
           "c and v(k) measured", 2, 1.0, "×"),
    Column("predicted_c_alone", "pred. c alone", "Modelled: the same with v(k) taken as 1 (Leviathan 2023, theorem 3.8)", 2, 1.0, "×"),
    Column("note", "note", "Best k of its curve; plain wins: no k of the curve is faster than plain"),
    Column("tokens_per_s", "tok/s", "Decode tok/s over the time in which the lane and plain were both running", 2),
    Column("plain_tokens_per_s", "plain tok/s", "The same of the plain lane beside it", 2),
    Column("decode_tokens_per_s", "tok/s, all", "Emitted tokens / sum of round times: over all the lane's rounds", 2),
    Column("tokens_per_target_pass", "tok/pass", "Emitted tokens / target passes", 2),
    Column("acceptance_rate", "α", "Acceptance rate α = accepted / judged, over all repeats", 3),
    Column("draft_acceptance", "acc./proposed", "Draft acceptance = accepted / proposed, over all repeats", 3),
    Column("mean_accepted_length", "mean length", "1 + accepted / rounds with a draft", 2),
    Column("draft_cost", "c", "Draft cost: a draft step / a plain target step", 3),
    Column("verify_cost", "v(k)", "Verify cost: a (k+1)-row target pass / a one-row pass", 2),
    Column("draft_share", "draft", "Draft time / decode time", 0, 100.0, "%"),
    Column("verify_share", "verify", "Target pass time / decode time", 0, 100.0, "%"),
    Column("other_share", "other", "Time outside both / decode time", 0, 100.0, "%"),
    Column("expected_tokens", "expected", "(1 - α^(k+1)) / (1 - α) with this cell's own α", 2),
    Column("predicted_speedup", "own pred. c", "(1 - α^(k+1)) / ((1 - α)(k c + 1)) with this cell's own α and c", 2, 1.0, "×"),
    Column("predicted_speedup_measured_verify", "own pred. v", "The same with this cell's own v(k) in place of 1", 2, 1.0, "×"),
    Column("ttft_s", "first token", "Prefill + first round", 1, 1000.0, " ms"),
    Column("itl_p50_s", "gap p50", "Median gap between bursts of tokens", 1, 1000.0, " ms"),
    Column("itl_p95_s", "gap p95", "95th percentile of the gaps", 1, 1000.0, " ms"),
    Column("tpot_s", "per token", "(last - first arrival) / (tokens - 1)", 1, 1000.0, " ms"),
    Column("total_s", "total", "Prefill + all rounds", 2, 1.0, " s"),
    Column("rounds", "rounds", "Target passes", 0),
    Column("proposed", "proposed", "Drafted tokens", 0),
    Column("judged", "judged", "Drafted tokens up to and with the first rejection of each round", 0),
    Column("accepted", "accepted", "Drafted tokens that the target kept", 0),
    Column("ignored", "ignored", "Proposed - judged", 0),
    Column("emitted", "emitted", "Output tokens", 0),
    Column("mean_k", "mean k", "Proposed / rounds with a draft", 2),
    Column("distinct_4grams", "distinct", "Share of distinct ones among the output's 4-grams: a text that loops has few", 2),
    Column("position_acceptance", "by position", "Accepted at position i / rounds with a draft"),
    Column("position_acceptance_conditional", "by pos., cond.", "Accepted at position i / judged there"),
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
"""The columns that are shown at first."""

METRIC_NAMES = (
    "decode_tokens_per_s", "mean_accepted_length", "draft_cost", "verify_cost", "draft_share", "verify_share",
    "other_share", "expected_tokens", "predicted_speedup", "predicted_speedup_measured_verify", "ttft_s", "itl_p50_s",
    "itl_p95_s", "tpot_s", "total_s", "rounds", "proposed", "judged", "accepted", "ignored", "emitted", "mean_k",
    "distinct_4grams",
)  # fmt: skip
