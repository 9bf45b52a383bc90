"""What the plots show, in numbers: curves per lane, round times in bars, ranges that grow in steps.

No Qt and no pyqtgraph: what a plot draws can be tested against the metrics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from specview.decoding.round_table import PHASES, RoundTable
from specview.gui.state.view_model import LaneModel
from specview.late import late

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = late("numpy")

Curve: TypeAlias = "NDArray[np.float64]"
CurveName = Literal["acceptance_rate", "tokens_per_target_pass", "decode_tokens_per_s", "draft_length"]
Over = Literal["position", "seconds"]
MAX_POINTS = 320
MAX_BARS = 64

_RATES: dict[CurveName, tuple[str, str]] = {
    "acceptance_rate": ("accepted", "judged"),
    "tokens_per_target_pass": ("emitted", "rounds"),
    "decode_tokens_per_s": ("emitted", "seconds"),
    "draft_length": ("k", "rounds"),  # a round without a draft counts as 0
}
"""What each curve is: a column's sum over another's."""


@dataclass(frozen=True, slots=True)
class PlotOptions:
    """Over what the plots run, and whether rates are running (window None) or over the last rounds."""

    over: Over = "position"
    window: int | None = None


def curve(lane: LaneModel, name: CurveName, options: PlotOptions) -> tuple[Curve, Curve]:
    """Return x and y, one point per round; y is NaN where the figure does not exist."""
    return x_of(lane, options), lane.table.rate(*_RATES[name], options.window)


def phases_ms(table: RoundTable) -> list[Curve]:
    """Draft, verify and other time of each round, milliseconds."""
    return [table[name] * 1e3 for name in PHASES]


def steps(lane: LaneModel, options: PlotOptions) -> tuple[Curve, Curve]:
    """Return the draft length of each round as a step curve: flat over the round, then up or down.

    Where rounds are many, one of several is drawn.
    """
    x, k = thinned(x_of(lane, options), lane.table["k"].astype(np.float64))
    if not len(x):
        return x, k
    return np.repeat(np.r_[0.0, x], 2)[1:-1], np.repeat(k, 2)


def x_of(lane: LaneModel, options: PlotOptions) -> Curve:
    """Return where each round stands: output tokens after it, or the lane's clock."""
    return lane.table.sums("emitted").astype(np.float64) if options.over == "position" else lane.table["t"]


def thinned(x: Curve, y: Curve, points: int = MAX_POINTS) -> tuple[Curve, Curve]:
    """Keep at most about `points` of the rounds, evenly, the last one among them."""
    if len(x) <= points:
        return x, y
    stride = math.ceil(len(x) / points)
    # Counted from the first point, so that points already drawn stay where they are.
    keep = np.arange(0, len(x), stride)
    if keep[-1] != len(x) - 1:
        keep = np.append(keep, len(x) - 1)
    return x[keep], y[keep]


def last(y: Curve) -> float | None:
    """Return the last value that exists."""
    if len(y) and math.isfinite(y[-1]):
        return float(y[-1])
    known = y[np.isfinite(y)]
    return float(known[-1]) if len(known) else None


@dataclass(frozen=True, slots=True)
class Bars:
    """Stacked bars: left and right edge, then draft, verify and other milliseconds, each [bars].

    Each bar is the mean of `rounds` rounds.
    """

    left: Curve
    right: Curve
    draft: Curve
    verify: Curve
    other: Curve
    rounds: int


def bars(lane: LaneModel, options: PlotOptions, most: int = MAX_BARS) -> Bars:
    """Return the time of each round in its phases, means of several rounds where there are many."""
    x = x_of(lane, options)
    group = max(1, 2 ** math.ceil(math.log2(len(x) / most))) if len(x) else 1
    starts = np.arange(0, len(x), group)
    edges = np.r_[0.0, x]
    counts = np.diff(np.r_[starts, len(x)]) if len(x) else np.zeros(0)
    draft, verify, other = (
        np.add.reduceat(phase, starts) / counts if len(x) else np.zeros(0) for phase in phases_ms(lane.table)
    )
    right = edges[np.minimum(starts + group, len(x))] if len(x) else np.zeros(0)
    return Bars(edges[starts], right, draft, verify, other, group)


_STEPS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


def step_up(value: float) -> float:
    """Return the next round number at or above `value`: axes that grow by these do not twitch."""
    if not math.isfinite(value) or value <= 0:
        return 1.0
    scale = 10.0 ** math.floor(math.log10(value))
    return next((step * scale for step in _STEPS if step * scale >= value * (1 - 1e-9)), 10 * scale)
