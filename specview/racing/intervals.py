"""95% intervals of a mean speedup over a few repeats: Student's t on logarithms.

A speedup is a ratio, and what disturbs it multiplies: its logarithm is near normal, and the interval never reaches
below zero. The mean is geometric, so that 2 and 1/2 average to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

LEVEL = 0.95
LEAST = 3
"""Repeats under which there is no interval: from two its width is chance."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A geometric mean speedup with its 95% interval over `count` repeats; low and high None where they are too few."""

    mean: float
    low: float | None
    high: float | None
    count: int

    @property
    def against_plain(self) -> Literal["faster", "slower", "same"]:
        """What it says; same where it holds 1, or where there is none."""
        if self.low is None or self.high is None:
            return "same"
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "same"

    def apart(self, other: Interval) -> bool:
        """Whether the two do not meet; never where one of them is missing."""
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return False
        return self.low > other.high or self.high < other.low

    @property
    def words(self) -> str:
        """As in "1.42 (1.38 to 1.46)"."""
        if self.low is None or self.high is None:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f})"


def interval_of(speedups: Sequence[float]) -> Interval | None:
    """The mean of positive speedups and its interval; None of nothing."""
    from scipy.special import stdtrit

    logs = [math.log(value) for value in speedups]
    if not logs:
        return None
    mean = fmean(logs)
    if len(logs) < LEAST:
        return Interval(math.exp(mean), None, None, len(logs))
    half = float(stdtrit(len(logs) - 1, (1 + LEVEL) / 2)) * stdev(logs) / math.sqrt(len(logs))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))


def clearly_below(values: Sequence[float], best: Sequence[float], errors: float = 3.0) -> bool:
    """Whether paired speedups lie under the best's by more than that many standard errors, over at least four pairs."""
    gaps = [math.log(one) - math.log(other) for one, other in zip(values, best, strict=True)]
    if len(gaps) < 4:
        return False
    mean, error = fmean(gaps), stdev(gaps) / math.sqrt(len(gaps))
    return mean < 0 and mean < -errors * error
