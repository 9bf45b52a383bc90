"""Speedup: the one place where a lane is held against plain decoding (DESIGN section 6)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specview.decoding.metrics import percentile
from specview.decoding.round_table import Rounds, table_of

EIGHTHS = 8
LEAST_ROUNDS = 2 * EIGHTHS
"""Rounds of either lane under which there is no spread: its eighths would hold one round or none."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """A lane's decode tok/s over plain's, both over the first `seconds`, in which both were running.

    tokens, plain_tokens  what each gave by then (a round under way in part)
    low, high  the spread, which holds the value: of one run the middle half of its eighths, stretched to the whole run
    where a burst leaves that outside; of several the least and the greatest. None where there are too few rounds.
    repeats  the runs that the spread is over
    """

    tokens: float
    plain_tokens: float
    seconds: float
    low: float | None = None
    high: float | None = None
    repeats: int = 1

    @property
    def value(self) -> float:
        """Times plain."""
        return self.tokens / self.plain_tokens

    @property
    def slower(self) -> bool:
        """Whether it is told apart from plain, below it, in the two decimals that are shown: nothing is both 1.00x and slower."""
        return round(self.value if self.high is None else self.high, 2) < 1

    @property
    def tokens_per_s(self) -> float:
        """The lane's decode tok/s over the shared time."""
        return self.tokens / self.seconds

    @property
    def plain_tokens_per_s(self) -> float:
        """Plain's decode tok/s over the shared time."""
        return self.plain_tokens / self.seconds

    @property
    def spread(self) -> tuple[float, float] | None:
        """(low, high); None where there is none."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def over(self) -> str:
        """What the spread is over."""
        return f"least and greatest of {self.repeats} runs" if self.repeats > 1 else "middle half of its eighths"

    def beside(self, repeats: Sequence[Speedup]) -> Speedup:
        """This run's with the spread over all its repeats, itself among them."""
        if len(repeats) < 2:
            return self
        ratios = [one.value for one in repeats]
        return replace(self, low=min(ratios), high=max(ratios), repeats=len(ratios))

    def as_dict(self) -> dict[str, Any]:
        """What the ratio is of, as it stands in files beside `speedup` and `speedup_spread`."""
        return {
            "tokens_per_s": self.tokens_per_s,
            "plain_tokens_per_s": self.plain_tokens_per_s,
            "tokens": self.tokens,
            "plain_tokens": self.plain_tokens,
            "seconds": self.seconds,
        }

    @classmethod
    def recorded(
        cls,
        value: float | None,
        spread: Sequence[float] | None,
        lane: Mapping[str, Any],
        plain: Mapping[str, Any],
    ) -> Speedup | None:
        """A speedup of a file that kept no rounds, from the figures of both lanes: the shared time ends with the first.

        None where the file has no such figures.
        """
        tokens, plain_tokens = (_figure(one.get("emitted")) for one in (lane, plain))
        rate, plain_rate = (_figure(one.get("decode_tokens_per_s")) for one in (lane, plain))
        value = _figure(value)
        if min(value, tokens, plain_tokens, rate, plain_rate) <= 0:
            return None
        low, high = spread or (None, None)
        if low is not None and high is not None:
            low, high = min(low, value), max(high, value)
        if tokens / rate <= plain_tokens / plain_rate:
            return cls(tokens, tokens / value, tokens / rate, low, high)
        return cls(plain_tokens * value, plain_tokens, plain_tokens / plain_rate, low, high)


def speedup(lane: Rounds, plain: Rounds) -> Speedup | None:
    """A lane's speedup so far; None while one of the two has no round, or where rounds took no time."""
    lane, plain = table_of(lane), table_of(plain)
    both = min(lane.end_s, plain.end_s)
    if not 0 < both < math.inf:
        return None
    edges = [both * index / EIGHTHS for index in range(EIGHTHS + 1)]
    ours, theirs = lane.tokens_at(edges), plain.tokens_at(edges)
    found = Speedup(ours[-1], theirs[-1], both)
    if not found.tokens or not found.plain_tokens:
        return None
    if min(one.rounds_until(both * (1 + 1e-9)) for one in (lane, plain)) < LEAST_ROUNDS:
        return found
    gained = [[end - begin for begin, end in zip(tokens, tokens[1:], strict=False)] for tokens in (ours, theirs)]
    if any(tokens <= 0 for tokens in gained[1]):
        return found  # rounds that took no time
    ratios = [gain / base for gain, base in zip(*gained, strict=True)]
    low, high = percentile(ratios, 25), percentile(ratios, 75)
    assert low is not None and high is not None
    return replace(found, low=min(low, found.value), high=max(high, found.value))


def median_speedup(repeats: Iterable[Speedup | None]) -> Speedup | None:
    """The repeat with the median ratio, with the least and the greatest; None of nothing.

    Of an even number the lower of the two in the middle: a repeat's own, whose tok/s stand beside it.
    """
    known = sorted((one for one in repeats if one is not None), key=lambda one: one.value)
    return known[(len(known) - 1) // 2].beside(known) if known else None


def _figure(value: Any) -> float:
    """A file's figure; 0 for what is none."""
    return float(value) if isinstance(value, (int, float)) and 0 < value < 1e300 else 0.0
