"""What passes cost here, in seconds: measured once, then learned from the rounds themselves."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from specview.decoding.ledger import Round


class Costs:
    """Seconds of a target pass by its rows, and of a drafter's draft by its tokens.

    pass_s: {rows: seconds}, a calibration's medians; may be empty, then rounds alone tell.
    """

    def __init__(self, pass_s: Mapping[int, float] | None = None) -> None:
        self.calibrated = dict(sorted((pass_s or {}).items()))

    def pass_s(self, rows: int) -> float | None:
        """Seconds of a target pass of `rows` rows, interpolated; None while nothing is known."""
        known = self.calibrated
        if not known:
            return None
        at = list(known)
        place = bisect_left(at, rows)
        if place == 0:
            return known[at[0]]
        if place == len(at):
            return known[at[-1]] * rows / at[-1]
        low, high = at[place - 1], at[place]
        return known[low] + (known[high] - known[low]) * (rows - low) / (high - low)

    def draft_s(self, drafter: str, k: int) -> float | None:
        """Seconds that this drafter takes to draft k tokens; None while nothing is known."""
        return None

    def observe(self, round_: Round) -> None:
        """Learn from a finished round."""
