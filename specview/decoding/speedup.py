"""Speedup: the one place where a lane is held against plain decoding (DESIGN section 6).

It is what the two tok/s that are shown divide to: each lane's own, over its whole run. But lanes take turns only while both
run; the longer one's rest is alone with whatever the machine does then, and a longer text costs more a token. Where the two
ended at different lengths, or the rest drifted, both rates are over the time in which both were running, and whoever shows
them says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specview.decoding.metrics import percentile
from specview.decoding.round_table import Rounds, table_of

EIGHTHS = 8
DRIFT = 0.05
"""Of a lane's tok/s: as far as its rest may be from the time in which both ran (what DESIGN section 7 allows a race)."""
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
            "whole": self.whole,
        }

    @classmethod
    def from_dict(
        cls, over: Mapping[str, Any], spread: Sequence[float | None] | None = None, repeats: int = 1
    ) -> Speedup:
        """Of what `as_dict` gave, with the spread that stands beside it in files."""
        low, high = spread or (None, None)
        plain_seconds = over["plain_seconds"] if over.get("whole") else None  # earlier files have neither
        return cls(over["tokens"], over["plain_tokens"], over["seconds"], low, high, repeats, plain_seconds)

    @classmethod
    def recorded(
        cls,
        value: float | None,
        spread: Sequence[float] | None,
        lane: Mapping[str, Any],
        plain: Mapping[str, Any],
    ) -> Speedup | None:
        """A speedup of a file that kept no rounds, from the figures of both lanes.

        Where `value` is not the ratio of their tok/s it is that in the shared time, which ends with the first to end. None
        where the file has no such figures.
        """
        tokens, plain_tokens = (_figure(one.get("emitted")) for one in (lane, plain))
        rate, plain_rate = (_figure(one.get("decode_tokens_per_s")) for one in (lane, plain))
        value = _figure(value)
        if min(value, tokens, plain_tokens, rate, plain_rate) <= 0:
            return None
        low, high = spread or (None, None)
        if tokens == plain_tokens and math.isclose(value, rate / plain_rate, rel_tol=1e-4):  # files have seven digits
            found = cls(tokens, plain_tokens, tokens / rate, low, high, plain_seconds=value * tokens / rate)
        elif tokens / rate <= plain_tokens / plain_rate:
            found = cls(tokens, tokens / value, tokens / rate, low, high)
        else:
            found = cls(plain_tokens * value, plain_tokens, plain_tokens / plain_rate, low, high)
        return found if low is None or high is None else found._within(low, high)

    def _within(self, low: float, high: float) -> Speedup:
        """With this spread, stretched to hold the value."""
        return replace(self, low=min(low, self.value), high=max(high, self.value))


def speedup(lane: Rounds, plain: Rounds, running: int = 0) -> Speedup | None:
    """A lane's speedup; None while one of the two has no round, or where rounds took no time.

    running  how many of the two are not at their end: while one runs, it may yet give as many tokens as the other
    """
    lane, plain = table_of(lane), table_of(plain)
    both = min(lane.end_s, plain.end_s)
    if not 0 < both <= max(lane.end_s, plain.end_s) < math.inf:
        return None
    edges = [both * index / EIGHTHS for index in range(EIGHTHS + 1)]
    ours, theirs = lane.tokens_at(edges), plain.tokens_at(edges)
    if not ours[-1] or not theirs[-1]:
        return None
    found = shared = Speedup(ours[-1], theirs[-1], both)
    seconds, plain_seconds = lane.total("seconds"), plain.total("seconds")
    if min(seconds, plain_seconds) > 0 and (running or lane.emitted == plain.emitted):
        whole = Speedup(lane.emitted, plain.emitted, seconds, plain_seconds=plain_seconds)
        if running > 1 or abs(whole.value / shared.value - 1) <= DRIFT:
            found = whole
    if min(one.rounds_until(both * (1 + 1e-9)) for one in (lane, plain)) < LEAST_ROUNDS:
        return found
    gained = [[end - begin for begin, end in zip(tokens, tokens[1:], strict=False)] for tokens in (ours, theirs)]
    if any(tokens <= 0 for tokens in gained[1]):
        return found  # rounds that took no time
    ratios = [gain / base for gain, base in zip(*gained, strict=True)]
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
