"""What was measured here: what rounds cost, in seconds (where c and v(k) of explanations and predictions come from), and speedups.

No prediction is told over a measurement that lies beside it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal, Protocol

from specview.decoding.costs import interpolate, line_through
from specview.decoding.ledger import Round
from specview.decoding.round_table import Rounds, RoundTable, table_of
from specview.decoding.speedup import Speedup
from specview.drafting.registry import METHODS

ENOUGH = 3
"""Rounds of one row count from which on their median stands before a calibration's."""

SHORTER = 0.1
"""By what share a pass of several rows may be timed shorter than a plain one before that is spoken of."""

Source = Literal["measured", "calibrated", "interpolated", "extrapolated"]
"""Where the cost of a pass comes from: the lanes' own rounds, a calibration, between two known counts, beyond them."""


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """Medians over a run, seconds.

    passes       target pass by its rows (1 is a plain step's): measured in the lanes, else calibrated
    measured     the row counts that the lanes themselves measured; the others are calibrated or interpolated
    draft_start_s, draft_step_s  a draft of k tokens takes start + k step
    other_s      the rest of a speculative round;  plain_other_s  of a plain round
    """

    passes: Mapping[int, float]
    measured: frozenset[int] = field(default_factory=frozenset)
    draft_start_s: float = 0.0
    draft_step_s: float = 0.0
    other_s: float = 0.0
    plain_other_s: float = 0.0

    @property
    def plain_pass_s(self) -> float:
        """A one-row target pass."""
        return self.pass_s(1)

    @property
    def plain_round_s(self) -> float:
        """A plain round: what one token costs without speculation."""
        return self.pass_s(1) + self.plain_other_s

    @property
    def c(self) -> float:
        """Draft cost: one draft step / one plain target pass. A draft's start is not in it."""
        return self.draft_step_s / self.plain_pass_s

    def c_at(self, k: int) -> float:
        """Draft cost per token of a draft of k, its start shared out: k c_at(k) is the draft's whole time."""
        return self.draft_s(k) / (k * self.plain_pass_s) if k else self.c

    def pass_s(self, rows: int) -> float:
        """A target pass of `rows` rows, interpolated between the known counts."""
        return interpolate(self.passes, rows)

    def source(self, rows: int) -> Source:
        """Where `pass_s(rows)` comes from."""
        if rows in self.passes:
            return "measured" if rows in self.measured else "calibrated"
        return "interpolated" if min(self.passes) < rows < max(self.passes) else "extrapolated"

    def v(self, k: int) -> float:
        """Verify cost: a pass of k + 1 rows / a pass of one row."""
        return self.pass_s(k + 1) / self.plain_pass_s

    def doubt(self, counts: Iterable[int]) -> str:
        """A line on passes of these row counts that were timed shorter than a plain one; '' where none was."""
        short = sorted(rows for rows in counts if rows > 1 and self.pass_s(rows) < (1 - SHORTER) * self.plain_pass_s)
        if not short:
            return ""
        rows = min(short, key=self.pass_s)
        return (
            f"A pass of {rows} rows comes to {self.pass_s(rows) / self.plain_pass_s:.2f} plain passes here, and more rows "
            "do not take less time: the machine was busy at times, and what rests on it is too good."
        )

    def draft_s(self, k: int) -> float:
        """Drafting k tokens; 0 for an empty draft."""
        return self.draft_start_s + k * self.draft_step_s if k else 0.0

    def round_s(self, k: int) -> float:
        """A whole round that drafts a chain of k tokens; an empty draft's is a plain pass in this lane."""
        return self.draft_s(k) + self.pass_s(k + 1) + self.other_s

    def as_dict(self) -> dict[str, Any]:
        """The costs by name, as they stand in files."""
        return {
            "pass_s": {str(rows): seconds for rows, seconds in self.passes.items()},
            "pass_source": {str(rows): self.source(rows) for rows in self.passes},
            "measured_rows": sorted(self.measured),
            "draft_start_s": self.draft_start_s,
            "draft_step_s": self.draft_step_s,
            "other_s": self.other_s,
            "plain_other_s": self.plain_other_s,
            "plain_round_s": self.plain_round_s,
        }

    def speedup(self, tokens: float, k: int) -> float:
        """Speedup over plain decoding of rounds that draft k and emit `tokens` on average, by these costs."""
        return tokens * self.plain_round_s / self.round_s(k)


def measured_costs(
    rounds: Rounds,
    plain: Rounds = (),
    calibrated: Mapping[int, float] | None = None,
    drafter: str | None = None,
) -> MeasuredCosts | None:
    """Costs of a lane's rounds beside its race's plain lane; None where no one-row pass is known.

    calibrated ({rows: seconds}, `racing.calibration`) gives the row counts that no round had; it is scaled to the
    lanes' own passes (median ratio over the counts that both know), since the machine may have sped up or slowed down
    between. A count that fewer than ENOUGH rounds had (the limit's last one) keeps its calibration, and without one is left out
    where two others are known. A run's first two rounds are left out
    where there are more than eight: caches and clocks settle in them.
    drafter: only the drafts of this one (a cascade's member).
    """
    lane, baseline = table_of(rounds), table_of(plain)
    ours, theirs = ({rows: [s for s in times if s > 0] for rows, times in one.pass_times(_first(one)).items()} for one in (lane, baseline))
    by_rows = {rows: ours.get(rows, []) + theirs.get(rows, []) for rows in sorted(ours.keys() | theirs.keys())}
    if theirs.get(1):  # of one-row passes the plain lane's count: a drafting lane has few, and they come after others
        by_rows[1] = theirs[1]
    own = {rows: median(times) for rows, times in by_rows.items() if times}
    known = {rows: seconds for rows, seconds in sorted((calibrated or {}).items()) if seconds > 0}
    both = {rows: own[rows] / known[rows] for rows in own if rows in known}
    sure = [ratio for rows, ratio in both.items() if len(by_rows[rows]) >= ENOUGH]
    scale = median(sure or both.values()) if both else 1.0
    plain_alone = 1 not in known  # then even one plain pass is all there is to compare with
    steady = {
        rows: seconds
        for rows, seconds in own.items()
        if len(by_rows[rows]) >= ENOUGH or (rows == 1 and plain_alone)
    }
    if len(steady.keys() | known.keys()) >= 2:
        own = steady
    passes = dict(sorted(({rows: seconds * scale for rows, seconds in known.items()} | own).items()))
    if 1 not in passes:
        return None
    drafts = lane.draft_times(drafter, _first(lane))
    start, step = line_through(drafts) if drafts else (0.0, 0.0)
    other_s = _other_s(lane) if len(lane) else 0.0
    return MeasuredCosts(
        passes=passes,
        measured=frozenset(own),
        draft_start_s=start,
        draft_step_s=step,
        other_s=other_s,
        plain_other_s=_other_s(baseline) if len(baseline) else other_s,
    )


def _first(table: RoundTable) -> int:
    """The first round that is counted."""
    return 2 if len(table) > 8 else 0


def _other_s(table: RoundTable) -> float:
    return median(table["other_s"][_first(table) :].tolist())


class HasRounds(Protocol):
    """A lane: a record of one, or the window's own."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Flat settings, the method among them."""

    @property
    def rounds(self) -> Sequence[Round]:
        """Its rounds so far."""


def has_whole_passes(settings: Mapping[str, Any]) -> bool:
    """Whether a lane's target passes take as long as other methods': not where they take up what its draft computed."""
    method = METHODS.get(str(settings.get("method")))
    return method is None or not method.shares_passes


def passes_of(records: Iterable[HasRounds]) -> dict[int, float]:
    """Median seconds of a target pass by its rows, over all lanes of a race whose passes are whole ones.

    A count that fewer than three rounds had is left out, and so is what a lane had only once: mostly its last pass,
    cut by the limit, when other lanes have ended and a machine may be less busy.
    """
    times: dict[int, list[float]] = {}
    for record in records:
        if not has_whole_passes(record.settings):
            continue
        counts = Counter(round_.rows for round_ in record.rounds)
        for round_ in record.rounds:
            if round_.verify_s > 0 and counts[round_.rows] > 1:
                times.setdefault(round_.rows, []).append(round_.verify_s)
    return {rows: median(seconds) for rows, seconds in sorted(times.items()) if len(seconds) >= ENOUGH}


# -- measurements beside predictions ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements that lie beside a lane's predictions.

    own     the lane's speedup, None where there is no plain lane: predictions then stand alone
    model   what the costs that predict make of the lane's own rounds
    beside  speedups of lanes of the same race that draft alike, by their k
    """

    own: Speedup | None = None
    model: float | None = None
    beside: Mapping[int, Speedup] = field(default_factory=dict)

    @property
    def limit(self) -> float:
        """What predictions are multiplied by: where the costs make too much of the lane itself, they do of others."""
        return 1.0 if self.own is None or not self.model else min(1.0, self.own.value / self.model)

    def told_apart(self, least: float, k: int | None = None) -> bool:
        """Whether a speedup of at least this lies above every measured interval but that of k itself."""
        found = ([] if self.own is None else [self.own]) + [one for length, one in self.beside.items() if length != k]
        return all(least > (math.inf if one.high is None else one.high) for one in found)


def measured_beside(settings: Mapping[str, Any], lanes: Iterable[tuple[Mapping[str, Any], Speedup | None]]) -> dict[int, Speedup]:
    """Speedups by k of the lanes that draft as one with these settings does but for their k, one fixed for all rounds."""
    own = {key: value for key, value in settings.items() if key != "k"}
    return {
        other["k"]: faster
        for other, faster in lanes
        if faster is not None and isinstance(other.get("k"), int) and other["k"] != settings.get("k")
        and other.get("policy") in (None, "constant") and {key: value for key, value in other.items() if key != "k"} == own
    }  # fmt: skip
