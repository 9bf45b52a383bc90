"""A sweep's races folded into curves over k: measured speedups, the closed form's prediction, and the best k.

Measured: speedups (each against the plain lane of its own race), acceptance, and the costs of passes and drafts.
Modelled: the prediction, which takes one alpha for a whole workload, pooled over all k, and the closed form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import msgspec

from specview.decoding import theory
from specview.decoding.costs import line_through
from specview.decoding.speedup import Speedup, median_speedup
from specview.files.schema import Json, plain
from specview.lab.measured import MeasuredCosts

Count = tuple[int, int]
"""(accepted, judged)."""


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
        """Of a line of a sweep file; raises ValueError where it is none."""
        return msgspec.convert(found, cls, str_keys=True)

    @property
    def faster(self) -> Speedup | None:
        """The speedup with what it is the ratio of; None where the lane or plain gave nothing."""
        return Speedup.recorded(self.speedup, self.spread, self.metrics or {}, self.plain or {})

    def figure(self, name: str) -> Any:
        """A figure of the lane; None where there is none."""
        return (self.metrics or {}).get(name)

    @property
    def measured(self) -> MeasuredCosts | None:
        """What passes and drafts cost in it; None where no one-row pass was timed."""
        passes = {int(rows): seconds for rows, seconds in (self.costs or {}).get("passes", {}).items()}
        if self.costs is None or not passes.get(1):
            return None
        own = {name: self.costs.get(name) or 0.0 for name in _COST_NAMES}
        return MeasuredCosts(dict(sorted(passes.items())), frozenset(passes), **own)


_COST_NAMES = ("draft_start_s", "draft_step_s", "other_s", "plain_other_s")


def costs_to_json(costs: MeasuredCosts | None) -> Json | None:
    """The costs of one race as they stand in a sweep file; None where no one-row pass was timed."""
    if costs is None:
        return None
    passes = {str(rows): seconds for rows, seconds in costs.passes.items()}
    return plain({"passes": passes, **{name: getattr(costs, name) for name in _COST_NAMES}})


def position_rates(runs: Sequence[CellRun]) -> list[tuple[float | None, float | None]]:
    """(unconditional, conditional) acceptance by position over some races.

    Unconditional: accepted there / rounds with a draft; conditional: accepted / judged there. None of nothing.
    """
    rounds = sum(run.draft_rounds for run in runs)
    return [
        (hit / rounds if rounds else None, hit / tried if tried else None)
        for hit, tried in pooled_counts([run.positions for run in runs])
    ]


def eighth_rates(runs: Sequence[CellRun]) -> list[float | None]:
    """Acceptance rate by eighth of the output over some races."""
    return [hit / tried if tried else None for hit, tried in pooled_counts([run.eighths for run in runs])]


def pooled_counts(counts: Sequence[Sequence[Count]]) -> list[Count]:
    """Sums place by place; shorter ones have nothing further on."""
    places = range(max(map(len, counts), default=0))
    there = [[one[place] for one in counts if place < len(one)] for place in places]
    return [(sum(hit for hit, _ in found), sum(tried for _, tried in found)) for found in there]


def share(runs: Iterable[CellRun], above: str, below: str) -> float | None:
    """The sum of one figure over that of another; None over nothing."""
    pairs = [(run.figure(above) or 0, run.figure(below) or 0) for run in runs]
    total = sum(under for _, under in pairs)
    return sum(over for over, _ in pairs) / total if total else None


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

    def at(self, k: int | None) -> Predicted | None:
        """The prediction at one k."""
        return next((one for one in self.predicted if one.k == k), None)

    def as_good(self) -> list[int]:
        """Other k whose interval meets the best k's: the measurement does not tell them apart."""
        best = self.best
        if best is None:
            return []
        return [point.k for point in self.points if point is not best and point.high >= best.low]

    def limited(self, told: Predicted) -> float:
        """A prediction, scaled down where the closed form makes too much of the best k that was measured."""
        best = self.best
        same = None if best is None else self.at(best.k)
        return told.speedup if best is None or same is None or not same.speedup else told.speedup * min(1.0, best.speedup / same.speedup)

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


def fold_series(key: SeriesKey, name: str, runs: Iterable[CellRun], policy: str) -> Series:
    """The curve of some races that did not fail; policy is how their lane chooses lengths."""
    by_k: dict[int, list[CellRun]] = {}
    for run in runs:
        if run.k is not None:
            by_k.setdefault(run.k, []).append(run)
    by_k = dict(sorted(by_k.items()))
    known = [run for found in by_k.values() for run in found]
    alpha, costs = share(known, "accepted", "judged"), pooled_costs(known)
    chains = all(run.figure("expected_tokens") is not None for run in known if run.draft_rounds)
    predicted: tuple[Predicted, ...] = ()
    if alpha is not None and costs is not None and chains and policy == "constant":
        predicted = tuple(_predict(by_k, alpha, costs))
    points = []
    for k, found in by_k.items():
        faster = median_speedup(run.faster for run in found)
        if faster is not None:
            low, high = faster.spread or (faster.value, faster.value)
            points.append(Point(k, faster.value, low, high, sum(run.speedup is not None for run in found)))
    return Series(key, name, tuple(points), alpha, costs, predicted)


def pooled_costs(runs: Sequence[CellRun]) -> MeasuredCosts | None:
    """Costs of many races in units of each one's own plain pass: medians, so that a slow hour does not tilt them.

    A pass counts by how many rounds had its rows; None where no race timed a one-row pass.
    """
    ratios: dict[int, list[tuple[float, int]]] = {}
    drafts: dict[int, list[float]] = {}
    others: list[float] = []
    plain_others: list[float] = []
    for run in runs:
        costs = run.measured
        if costs is None:
            continue
        unit = costs.plain_pass_s
        for rows, seconds in costs.passes.items():
            ratios.setdefault(rows, []).append((seconds / unit, run.pass_counts.get(rows, 1)))
        length = round(run.figure("mean_k") or 0)
        if length:
            drafts.setdefault(length, []).append(costs.draft_s(length) / unit)
        others.append(costs.other_s / unit)
        plain_others.append(costs.plain_other_s / unit)
    if not others:
        return None
    start, step = line_through(drafts) if drafts else (0.0, 0.0)
    passes = {rows: _weighted_median(found) for rows, found in sorted(ratios.items())}
    return MeasuredCosts({**passes, 1: 1.0}, frozenset(passes), start, step, median(others), median(plain_others))


def _predict(by_k: Mapping[int, Sequence[CellRun]], alpha: float, costs: MeasuredCosts) -> Iterable[Predicted]:
    """The closed form at every k from the least to the greatest measured.

    The share of rounds that have a draft, and how much of k a draft has on average, are measured too (drafters that
    copy often have none; the token limit cuts the last ones), and interpolated between the measured k.
    """
    import numpy as np

    known: dict[int, tuple[float, float]] = {}
    for k, runs in by_k.items():
        rounds = sum(run.figure("rounds") or 0 for run in runs)
        drafted = sum(run.draft_rounds for run in runs)
        proposed = sum(run.figure("proposed") or 0 for run in runs)
        if rounds:
            known[k] = drafted / rounds, proposed / drafted / k if drafted else 0.0
    shares, lengths = zip(*known.values(), strict=True) if known else ((), ())
    for k in range(min(known, default=1), max(known, default=0) + 1):
        drafting, length = (float(np.interp(k, list(known), figures)) for figures in (shares, lengths))
        length *= k
        tokens = 1 + drafting * (theory.expected_tokens(alpha, length) - 1)
        draft_s = costs.draft_start_s + costs.draft_step_s * length if length else 0.0
        low = int(length)
        part = length - low
        pass_s = costs.pass_s(low + 1) * (1 - part) + (costs.pass_s(low + 2) * part if part else 0.0)
        round_s = drafting * (draft_s + pass_s) + (1 - drafting) * costs.pass_s(1) + costs.other_s
        yield Predicted(k, tokens * costs.plain_round_s / round_s, tokens / (1 + drafting * draft_s))


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
