"""The closed forms as tables, and measured lanes as points among them: alpha, k, c, v, what they predict, what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specview.decoding import theory
from specview.decoding.ledger import Round
from specview.decoding.metrics import Metrics, fold
from specview.decoding.round_table import RoundTable
from specview.decoding.speedup import Speedup, speedup
from specview.files.report import Block, Report, Table, Text
from specview.files.schema import plain
from specview.files.tables import Column
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


ASSUMED = "every drafted token is accepted with the same chance alpha, whatever came before it (i.i.d.)"
SOURCE = "Leviathan et al. 2023, arXiv 2211.17192, equation 1 and theorem 3.8"
_LANE_COLUMNS = (
    Column("name", "lane"),
    Column("alpha", "alpha", "", 3),
    Column("k", "k", "", 2),
    Column("c", "c", "", 3),
    Column("v", "v", "", 2),
    Column("predicted_by_c", "predicted by c", "", 2),
    Column("predicted", "by c and v", "", 2),
    Column("measured", "measured", "", 2),
)


def theory_report(
    alphas: Sequence[float], ks: Sequence[int], costs: Sequence[float], v: theory.V, words: str, lanes: Sequence[LanePoint],
    longest: int,
) -> Report:  # fmt: skip
    """The tables for these acceptances, draft lengths and draft costs, and the document, unrounded.

    v and words are the verify cost and what it rests on; the best k is sought up to `longest`.
    """
    document: dict[str, Any] = {
        "name": "theory",
        "source": SOURCE,
        "assumption": ASSUMED,
        "alpha": list(alphas),
        "k": list(ks),
        "verify_cost": {"words": words, "v": [v(k) for k in ks]},
        "expected_tokens": [[theory.expected_tokens(alpha, k) for k in ks] for alpha in alphas],
        "rule_of_thumb_error": [[theory.rule_of_thumb_error(alpha, k) for k in ks] for alpha in alphas],
        "tables": [{
            "c": c,
            "speedup": theory.table(c, alphas, ks, v),
            "best_k_of": [0, longest],
            "best_k": [theory.best_k(alpha, c, v, longest) for alpha in alphas],
            "break_even_alpha": [theory.break_even_alpha(k, c, v(k)) for k in ks],
        } for c in costs],
        "lanes": [lane.as_dict() for lane in lanes],
    }  # fmt: skip
    columns = [Column("alpha", "alpha"), *(Column(f"k{k}", f"k {k}", "", 2) for k in ks)]

    def rows(grid: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
        return [{"alpha": f"{alpha:g}"} | {f"k{k}": value for k, value in zip(ks, row, strict=True)}
                for alpha, row in zip(alphas, grid, strict=True)]  # fmt: skip

    blocks: list[Block] = [
        Table(columns, rows(document["expected_tokens"]), "expected tokens per target pass: (1 - alpha^(k+1)) / (1 - alpha)"),
        Table(columns, rows(document["rule_of_thumb_error"]),
              "alpha * k, often quoted for accepted tokens, is too high by (tokens behind a rejection do not count)"),
    ]  # fmt: skip
    for one in document["tables"]:
        found = [row | {"best": best or "plain"} for row, best in zip(rows(one["speedup"]), one["best_k"], strict=True)]
        even = {f"k{k}": "never" if at is None else at for k, at in zip(ks, one["break_even_alpha"], strict=True)}
        title = f"speedup at c {one['c']:g}: expected tokens / (k c + v(k)); {words}"
        best = Column("best", "best k", f"Of 0 (plain) to {longest}, whatever the columns", 0)
        blocks.append(Table([*columns, best], [*found, {"alpha": "even at", "best": " "} | even], title))
    if lanes:
        blocks.append(Table(_LANE_COLUMNS, document["lanes"], "measured lanes"))
    if costs:
        blocks.append(Text(f"best k: of 0 (plain) to {longest}, whatever the columns", "note"))
    return Report("", [*blocks, Text(f"assumed: {ASSUMED}; {SOURCE}", "note")], plain(document))
