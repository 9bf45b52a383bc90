"""What rounds cost here, in seconds: measured once, then learned from the rounds themselves."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median

from specview.decoding.ledger import Round

RECENT = 9  # rounds that a running median is over: four outliers in a row do not move it
_SHRINK = 3.0  # rounds that the calibration counts for against the rounds of one row count
_LARGEST = 0.5  # of the natural log: what one row count may differ from the calibration's shape
UNKNOWN_STEP = 0.1  # of a plain pass: a drafted token, before a model's first draft was timed


class Costs:
    """Seconds of a target pass by its rows, of a drafter's draft by its length, and of the rest of a round.

    The length of a tree is that of its longest path.

    pass_s: {rows: seconds}, a calibration's medians. It gives the shape; the lane's own rounds move it as
    a whole (a busier machine, a longer context) and each row count by itself (another cache, another
    kernel). Without a calibration the rounds' own medians take its place. Everything learned is a median of
    recent rounds, so a hiccup of seconds changes nothing.
    """

    def __init__(self, pass_s: Mapping[int, float] | None = None) -> None:
        self.calibrated = {rows: seconds for rows, seconds in sorted((pass_s or {}).items()) if seconds > 0}
        self._drift: deque[float] = deque(maxlen=RECENT)
        self._own: dict[int, deque[float]] = {}
        self._drafts: dict[str, dict[int, deque[float]]] = {}
        self._others: deque[float] = deque(maxlen=RECENT)
        self._factor = 0.0
        self._lines: dict[str, tuple[float, float]] = {}
        self._shape: list[float] = []

    def copy(self) -> Costs:
        """The same calibration with nothing learned: each lane learns for itself."""
        return Costs(self.calibrated)

    def pass_s(self, rows: int) -> float | None:
        """Seconds of a target pass of `rows` rows, interpolated; None while nothing is known."""
        if not self.calibrated:
            known = {count: median(times) for count, times in sorted(self._own.items())}
            return interpolate(known, rows) if known else None
        shape = interpolate(self.calibrated, rows)
        return shape * math.exp(self._factor + self._offset(rows))

    def draft_s(self, drafter: str, k: int) -> float | None:
        """Seconds that this drafter takes to draft k tokens; None while nothing is known."""
        if not k:
            return 0.0
        if drafter not in self._drafts:
            return None
        start, each = self._line_of(drafter)
        return start + each * k

    def other_s(self) -> float:
        """Seconds of a round that are neither draft nor pass (0 while nothing is known)."""
        return median(self._others) if self._others else 0.0

    def rounds_s(self, drafter: str, most: int, extra: float = 0.0, copies: bool = False) -> list[float]:
        """Seconds of a whole round that drafts 0 to `most` tokens; where no pass is known, each takes 1.

        extra is the rows beside the last token and the draft's length: a tree's other nodes, riders. A drafter
        that was not timed yet is taken to copy, at no cost, or to run a model.
        """
        other = self.other_s()
        passes = self._passes(most + 1 + math.ceil(extra))
        plain = passes[0] + other
        start, each = 0.0, 0.0 if copies else UNKNOWN_STEP * passes[0]
        if drafter in self._drafts:
            start, each = self._line_of(drafter)
        if not extra:
            return [plain, *(passes[k] + other + start + each * k for k in range(1, most + 1))]
        low, part = int(extra), extra - int(extra)
        rows = [passes[k + low] * (1 - part) + passes[min(k + low + 1, len(passes) - 1)] * part for k in range(most + 1)]
        return [plain, *(rows[k] + other + start + each * k for k in range(1, most + 1))]

    def observe(self, round_: Round) -> None:
        """Learn from a finished round."""
        if round_.verify_s > 0:
            self._observe_pass(round_.rows, round_.verify_s)
        self._others.append(round_.other_s)
        if round_.k:
            by_k = self._drafts.setdefault(round_.drafter, {})
            by_k.setdefault(round_.longest, deque(maxlen=RECENT)).append(round_.draft_s)
            self._lines.pop(round_.drafter, None)

    def _line_of(self, drafter: str) -> tuple[float, float]:
        if drafter not in self._lines:
            self._lines[drafter] = line_through(self._drafts[drafter])
        return self._lines[drafter]

    def _passes(self, most: int) -> list[float]:
        """Seconds of passes of 1 to `most` rows."""
        if not self.calibrated:
            known = [self.pass_s(rows) for rows in range(1, most + 1)]
            return [1.0 if seconds is None else seconds for seconds in known]
        while len(self._shape) < most:
            self._shape.append(interpolate(self.calibrated, len(self._shape) + 1))
        factor = math.exp(self._factor)
        passes = [seconds * factor for seconds in self._shape[:most]]
        for rows in self._own:
            if rows <= most:
                passes[rows - 1] *= math.exp(self._offset(rows))
        return passes

    def _observe_pass(self, rows: int, seconds: float) -> None:
        own = self._own.setdefault(rows, deque(maxlen=RECENT))
        if not self.calibrated:
            own.append(seconds)
            return
        ratio = math.log(seconds / interpolate(self.calibrated, rows))
        self._drift.append(ratio - self._offset(rows))
        # The calibration counts as two rounds: a hiccup in the first is no drift.
        self._factor = median([*self._drift, 0.0, 0.0] if len(self._drift) < RECENT else self._drift)
        own.append(ratio - self._factor)

    def _offset(self, rows: int) -> float:
        """Natural log by which this row count's own rounds differ from the moved shape."""
        own = self._own.get(rows)
        if not own:
            return 0.0
        weight = len(own) / (len(own) + _SHRINK)
        return weight * min(max(median(own), -_LARGEST), _LARGEST)


def interpolate(known: Mapping[int, float], rows: int) -> float:
    """Seconds at `rows` between the measured counts (in rising order); beyond the last by its slope."""
    at: Sequence[int] = list(known)
    place = bisect_left(at, rows)
    if place < len(at) and at[place] == rows:
        return known[rows]
    if place == 0:
        return known[at[0]]
    if place == len(at):
        if len(at) == 1:
            return known[at[0]]
        low = at[max(0, len(at) - 4)]  # a slope over several counts: that of the last two is noise
        slope = max(0.0, (known[at[-1]] - known[low]) / (at[-1] - low))
        return known[at[-1]] + slope * (rows - at[-1])
    low, high = at[place - 1], at[place]
    return known[low] + (known[high] - known[low]) * (rows - low) / (high - low)


def line_through(by_k: Mapping[int, Sequence[float]]) -> tuple[float, float]:
    """Start and slope, neither negative, of draft time over tokens: least squares of the medians by length.

    One length alone is taken as proportional.
    """
    points = [(k, median(times), len(times)) for k, times in by_k.items()]
    points.append((0, 0.0, 0))  # what keeps one length alone proportional
    weights = [count + 0.25 for _, _, count in points]
    total = sum(weights)
    mean_k = sum(w * k for w, (k, _, _) in zip(weights, points, strict=True)) / total
    mean_s = sum(w * s for w, (_, s, _) in zip(weights, points, strict=True)) / total
    over = sum(w * (k - mean_k) * (s - mean_s) for w, (k, s, _) in zip(weights, points, strict=True))
    spread = sum(w * (k - mean_k) ** 2 for w, (k, _, _) in zip(weights, points, strict=True))
    slope = max(0.0, over / spread)
    return max(0.0, mean_s - slope * mean_k), slope
