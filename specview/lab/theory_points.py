"""A measured lane as a point among the closed forms: its alpha, k, c, v, what they predict and what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specview.decoding import theory
from specview.decoding.ledger import Round
from specview.decoding.metrics import Metrics, fold
from specview.decoding.round_table import RoundTable
from specview.decoding.speedup import Speedup, speedup
from specview.lab.measured import measured_costs


@dataclass(frozen=True, slots=True)
class LanePoint:
    """k is the mean over all rounds (a round without a draft counts as 0); c and v are None without a plain lane."""

    name: str
    alpha: float
    k: float
    c: float | None
    v: float | None
    measured: float | None

    @property
    def predicted(self) -> float | None:
        """Theorem 3.8 with c and v."""
        return None if self.c is None or self.v is None else theory.speedup(self.alpha, self.k, self.c, self.v)

    @property
    def predicted_by_c(self) -> float | None:
        """Theorem 3.8 with c alone."""
        return None if self.c is None else theory.speedup(self.alpha, self.k, self.c)

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {**asdict(self), "predicted": self.predicted, "predicted_by_c": self.predicted_by_c}


def lane_point(name: str, rounds: Sequence[Round], plain: Sequence[Round] = ()) -> LanePoint | None:
    """The point of a lane that drafted chains; None of others: the closed forms are of chains."""
    if any(round_.parents is not None or round_.riders for round_ in rounds):
        return None
    table, baseline = RoundTable(rounds), RoundTable(plain)
    return point_of(name, fold(table, plain_step_s=baseline.plain_step_s()), speedup(table, baseline))


def point_of(name: str, figures: Metrics, measured: Speedup | None) -> LanePoint | None:
    """The point of a lane's figures; None where it judged nothing or drafted trees (no expected tokens)."""
    if figures.acceptance_rate is None or figures.expected_tokens is None:
        return None
    k = figures.proposed / figures.rounds
    value = None if measured is None else measured.value
    return LanePoint(name, figures.acceptance_rate, k, figures.draft_cost, figures.verify_cost, value)


def lane_passes(lanes: Sequence[Sequence[Round]], plain: Sequence[Round]) -> Mapping[int, float] | None:
    """Seconds of the target's passes by rows, as the lanes of one race measured them; None without a one-row pass."""
    costs = measured_costs([round_ for lane in lanes for round_ in lane], plain)
    return None if costs is None else {rows: costs.passes[rows] for rows in sorted(costs.measured | {1})}
