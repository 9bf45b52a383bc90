"""95% intervals of a mean speedup over a few repeats: Student's t on logarithms.

A speedup is a ratio, and what disturbs it multiplies: its logarithm is near normal, and the interval never reaches
below zero. The mean is geometric, so that 2 and 1/2 average to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

LEVEL = 0.95
LEAST = 3
"""Repeats under which there is no interval: from two its width is chance."""

_T95 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Interval:
    """A geometric mean speedup with its 95% interval over `count` repeats; low and high None where they are too few."""

    mean: float
    low: float | None
    high: float | None
    count: int

    @property
    def words(self) -> str:
        """As in "1.42 (1.38 to 1.46)"."""
        if self.low is None or self.high is None:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f})"


def t95(freedom: int) -> float:
    """The 97.5% quantile of Student's t with that many degrees of freedom (beyond 30 by Cornish and Fisher)."""
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    z = 1.959963985
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def interval_of(speedups: Sequence[float]) -> Interval | None:
    """The mean of positive speedups and its interval; None of nothing."""
    logs = [math.log(value) for value in speedups]
    if not logs:
        return None
    mean = fmean(logs)
    if len(logs) < LEAST:
        return Interval(math.exp(mean), None, None, len(logs))
    half = t95(len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))


def clearly_below(values: Sequence[float], best: Sequence[float], errors: float = 3.0) -> bool:
    """Whether paired speedups lie under the best's by more than that many standard errors, over at least four pairs."""
    gaps = [math.log(one) - math.log(other) for one, other in zip(values, best, strict=True)]
    if len(gaps) < 4:
        return False
    mean, error = fmean(gaps), stdev(gaps) / math.sqrt(len(gaps))
    return mean < 0 and mean < -errors * error
