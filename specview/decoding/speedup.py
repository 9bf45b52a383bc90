"""Speedup: the one place where a lane is held against plain decoding (DESIGN section 6).

It is what the two tok/s that are shown divide to: each lane's own, over its whole run. Only where both have ended and gave
different numbers of tokens would that compare short texts with long ones: then both rates are over the time in which both
were running, and whoever shows it says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specview.decoding.metrics import percentile
from specview.decoding.round_table import Rounds, table_of

EIGHTHS = 8
LEAST_ROUNDS = 2 * EIGHTHS
"""Rounds of either lane under which there is no spread: its eighths would hold one round or none."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """A lane's decode tok/s over plain's.

    tokens, plain_tokens  what each gave in its `seconds` and `plain_seconds`: the whole runs, or where plain_seconds is None
    the first `seconds` of both, in which both were running (a round under way in part)
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
    plain_seconds: float | None = None

    @property
    def whole(self) -> bool:
        """Whether both rates are those of whole runs; else they are over the time in which both were running."""
        return self.plain_seconds is not None

    @property
    def value(self) -> float:
        """Times plain."""
        return self.tokens_per_s / self.plain_tokens_per_s

    @property
    def slower(self) -> bool:
        """Whether it is told apart from plain, below it, in the two decimals that are shown: nothing is both 1.00x and slower."""
        return round(self.value if self.high is None else self.high, 2) < 1

    @property
    def tokens_per_s(self) -> float:
        """The lane's decode tok/s, as it is shown beside the speedup."""
        return self.tokens / self.seconds

    @property
    def plain_tokens_per_s(self) -> float:
        """Plain's decode tok/s that it is held against."""
        return self.plain_tokens / (self.seconds if self.plain_seconds is None else self.plain_seconds)

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
            "plain_seconds": self.seconds if self.plain_seconds is None else self.plain_seconds,
        }

    @classmethod
    def from_dict(
        cls, over: Mapping[str, Any], spread: Sequence[float | None] | None = None, repeats: int = 1
    ) -> Speedup:
        """Of what `as_dict` gave, with the spread that stands beside it in files."""
        low, high = spread or (None, None)
        seconds, plain_seconds = over["seconds"], over.get("plain_seconds", over["seconds"])
        alike = plain_seconds == seconds and over["tokens"] != over["plain_tokens"]
        return cls(over["tokens"], over["plain_tokens"], seconds, low, high, repeats, None if alike else plain_seconds)

    @classmethod
    def recorded(
        cls,
        value: float | None,
        spread: Sequence[float] | None,
        lane: Mapping[str, Any],
        plain: Mapping[str, Any],
    ) -> Speedup | None:
        """A speedup of a file that kept no rounds, from the figures of both lanes.

        Of runs of the same length it is the ratio of their tok/s; else the shared time ends with the first to end, and
        `value` is the ratio in it. None where the file has no such figures.
        """
        tokens, plain_tokens = (_figure(one.get("emitted")) for one in (lane, plain))
        rate, plain_rate = (_figure(one.get("decode_tokens_per_s")) for one in (lane, plain))
        value = _figure(value)
        if min(value, tokens, plain_tokens, rate, plain_rate) <= 0:
            return None
        low, high = spread or (None, None)
        if tokens == plain_tokens:
            found = cls(tokens, plain_tokens, tokens / rate, low, high, plain_seconds=plain_tokens / plain_rate)
        elif tokens / rate <= plain_tokens / plain_rate:
            found = cls(tokens, tokens / value, tokens / rate, low, high)
        else:
            found = cls(plain_tokens * value, plain_tokens, plain_tokens / plain_rate, low, high)
        return found if low is None or high is None else found._within(low, high)

    def _within(self, low: float, high: float) -> Speedup:
        """With this spread, stretched to hold the value."""
        return replace(self, low=min(low, self.value), high=max(high, self.value))


def speedup(lane: Rounds, plain: Rounds, ended: bool = True) -> Speedup | None:
    """A lane's speedup; None while one of the two has no round, or where rounds took no time.

    ended  whether both have ended: while one still runs, different numbers of tokens do not tell runs of different length
    """
    lane, plain = table_of(lane), table_of(plain)
    both = min(lane.end_s, plain.end_s)
    if not 0 < both <= max(lane.end_s, plain.end_s) < math.inf:
        return None
    if not ended or lane.emitted == plain.emitted:
        found = Speedup(lane.emitted, plain.emitted, lane.total("seconds"), plain_seconds=plain.total("seconds"))
        # Each eighth of the one's tokens beside the same eighth of the other's.
        each = [np.diff(table.seconds_at(np.linspace(0, table.emitted, EIGHTHS + 1))) for table in (plain, lane)]
        scale = lane.emitted / plain.emitted if plain.emitted else 0.0
        rounds = min(len(lane), len(plain))
    else:
        edges = np.linspace(0, both, EIGHTHS + 1).tolist()
        ours, theirs = lane.tokens_at(edges), plain.tokens_at(edges)
        found = Speedup(ours[-1], theirs[-1], both)
        each, scale = [np.diff(ours), np.diff(theirs)], 1.0
        rounds = min(one.rounds_until(both * (1 + 1e-9)) for one in (lane, plain))
    if not found.tokens or not found.plain_tokens or found.seconds <= 0 or found.plain_seconds == 0:
        return None
    if rounds < LEAST_ROUNDS or (each[1] <= 0).any():  # or rounds that took no time
        return found
    ratios = (scale * each[0] / each[1]).tolist()
    low, high = percentile(ratios, 25), percentile(ratios, 75)
    assert low is not None and high is not None
    return found._within(low, high)


def median_speedup(repeats: Iterable[Speedup | None]) -> Speedup | None:
    """The repeat with the median ratio, with the least and the greatest; None of nothing.

    Of an even number the lower of the two in the middle: a repeat's own, whose tok/s stand beside it.
    """
    known = sorted((one for one in repeats if one is not None), key=lambda one: one.value)
    return known[(len(known) - 1) // 2].beside(known) if known else None


def pooled(found: Sequence[Speedup]) -> float | None:
    """All the lanes' tokens a second over all of plain's; None of nothing."""
    if not found:
        return None
    tokens, seconds = math.fsum(one.tokens for one in found), math.fsum(one.seconds for one in found)
    plain_tokens = math.fsum(one.plain_tokens for one in found)
    plain_seconds = math.fsum(one.seconds if one.plain_seconds is None else one.plain_seconds for one in found)
    return tokens / seconds / (plain_tokens / plain_seconds)


def _figure(value: Any) -> float:
    """A file's figure; 0 for what is none."""
    return float(value) if isinstance(value, (int, float)) and 0 < value < 1e300 else 0.0
