"""Metrics: a fold over rounds. One name, one denominator (DESIGN section 6).

A figure that does not exist (nothing judged, no baseline) is None.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from specview.decoding import theory
from specview.decoding.ledger import Round, depths


@dataclass(frozen=True, slots=True)
class Metrics:
    """All figures of a lane, named as in files; seconds and plain ratios.

    acceptance_rate is accepted / judged (alpha); draft_acceptance accepted / proposed;
    tokens_per_target_pass emitted / rounds; mean_accepted_length 1 + accepted / rounds with a draft;
    position_acceptance[i] rounds with more than i accepted / rounds with a draft, the conditional one
    accepted at i / judged at i (in trees i is a depth). mean_k is proposed / rounds with a draft.
    distinct_4grams is the share of distinct ones among the output's 4-grams: a text that loops has few,
    and flatters drafters that copy. by_drafter has per drafter that drafted (a cascade's members) its
    rounds, share of the drafts, and its own counts and acceptances. oracle_share is the
    time of an oracle that always picks the right member and length over that of this lane's rounds, both by
    the lane's measured costs. draft_full_at is the output token from which on a drafter's own context, of draft_context
    tokens, was full and it drafted nothing. Shares are of decode
    time. draft_cost (c), verify_cost (v) and the
    predictions need the plain lane of the same race.
    """

    rounds: int
    proposed: int
    judged: int
    accepted: int
    ignored: int
    emitted: int
    acceptance_rate: float | None
    draft_acceptance: float | None
    tokens_per_target_pass: float | None
    mean_accepted_length: float | None
    position_acceptance: tuple[float, ...]
    position_acceptance_conditional: tuple[float | None, ...]
    decode_tokens_per_s: float | None
    total_s: float | None
    ttft_s: float | None
    itl_p50_s: float | None
    itl_p95_s: float | None
    tpot_s: float | None
    draft_share: float | None
    verify_share: float | None
    other_share: float | None
    draft_cost: float | None = None
    verify_cost: float | None = None
    expected_tokens: float | None = None
    predicted_speedup: float | None = None
    predicted_speedup_measured_verify: float | None = None
    mean_k: float | None = None
    distinct_4grams: float | None = None
    by_drafter: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    oracle_share: float | None = None
    draft_full_at: int | None = None
    draft_context: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """The figures by name."""
        return asdict(self)


@dataclass(slots=True)
class DrafterShare:
    """One drafter's part in a lane."""

    rounds: int = 0
    proposed: int = 0
    judged: int = 0
    accepted: int = 0
    draft_s: float = 0.0

    def add(self, round_: Round) -> None:
        """Count a round that this drafter drafted."""
        self.rounds += 1
        self.proposed += round_.k
        self.judged += round_.judged
        self.accepted += round_.accepted
        self.draft_s += round_.draft_s

    def figures(self, draft_rounds: int) -> dict[str, float | None]:
        """The figures as they stand in files; share is of the lane's rounds with a draft."""
        return {
            "rounds": self.rounds,
            "share": _ratio(self.rounds, draft_rounds),
            "proposed": self.proposed,
            "judged": self.judged,
            "accepted": self.accepted,
            "acceptance_rate": _ratio(self.accepted, self.judged),
            "draft_acceptance": _ratio(self.accepted, self.proposed),
            "draft_s": self.draft_s,
        }


class Arrivals:
    """Output tokens over a lane's clock; adding a round costs the same however many there were."""

    def __init__(self, rounds: Iterable[Round] = ()) -> None:
        self.seconds: list[float] = []
        self.tokens: list[int] = []
        for round_ in rounds:
            self.add(round_)

    def add(self, round_: Round) -> None:
        """Append one finished round."""
        self.seconds.append(round_.t)
        self.tokens.append(len(round_.emitted) + (self.tokens[-1] if self.tokens else 0))

    @property
    def end_s(self) -> float:
        """The lane's clock, seconds since the end of prefill."""
        return self.seconds[-1] if self.seconds else 0.0

    def rounds_until(self, seconds: float) -> int:
        """Rounds that had ended by then."""
        return bisect_right(self.seconds, seconds)

    def at(self, seconds: float) -> float:
        """Tokens by then, those of a round spread evenly over its time."""
        place = bisect_left(self.seconds, seconds)
        if place == len(self.seconds):
            return float(self.tokens[-1]) if self.tokens else 0.0
        before, done = (self.seconds[place - 1], self.tokens[place - 1]) if place else (0.0, 0)
        until, total = self.seconds[place], self.tokens[place]
        return done + (total - done) * (seconds - before) / (until - before) if until > before else float(done)


class MetricsFold:
    """Metrics of the rounds added so far; adding a round costs the same however many there were."""

    def __init__(self, prefill_s: float | None = None) -> None:
        self.prefill_s = prefill_s
        self.rounds = self.proposed = self.judged = self.accepted = self.emitted = 0
        self.draft_rounds = 0
        self.draft_s = self.verify_s = self.other_s = 0.0
        self.times: list[float] = []
        self.arrivals = Arrivals()
        self._verify_by_rows: dict[int, list[float]] = {}
        self.by_drafter: dict[str, DrafterShare] = {}
        self._trees = False
        self._tail: tuple[int, ...] = ()
        self._4grams: set[tuple[int, ...]] = set()
        self._accepted_at: list[int] = []
        self._judged_at: list[int] = []
        self.draft_full: tuple[int, int] | None = None  # Metrics.draft_full_at and draft_context

    def add(self, round_: Round) -> None:
        """Fold one round in."""
        k, judged, accepted, emitted = round_.k, round_.judged, round_.accepted, len(round_.emitted)
        if round_.full_context and self.draft_full is None:
            self.draft_full = self.emitted, round_.full_context
        self.rounds += 1
        self.proposed += k
        self.judged += judged
        self.accepted += accepted
        self.emitted += emitted
        self.draft_rounds += k > 0
        self.draft_s += round_.draft_s
        self.verify_s += round_.verify_s
        self.other_s += round_.other_s
        self.times.append(round_.seconds)
        self.arrivals.add(round_)
        self._verify_by_rows.setdefault(round_.rows, []).append(round_.verify_s)
        if k:
            self.by_drafter.setdefault(round_.drafter, DrafterShare()).add(round_)
        at = range(k) if round_.parents is None else depths(round_.parents)
        grow = max(at, default=-1) + 1 - len(self._accepted_at)
        if grow > 0:
            self._accepted_at += [0] * grow
            self._judged_at += [0] * grow
        for depth, token in zip(at, round_.drafted, strict=True):
            self._judged_at[depth] += token.verdict != "ignored"
            self._accepted_at[depth] += token.verdict == "accepted"
        self._trees = self._trees or round_.parents is not None
        self._count_4grams(round_.emitted)

    def _count_4grams(self, emitted: tuple[int, ...]) -> None:
        for token in emitted:
            self._tail = (*self._tail[-3:], token)
            if len(self._tail) == 4:
                self._4grams.add(self._tail)

    @property
    def decode_s(self) -> float:
        """Time of all rounds on the lane's clock, seconds."""
        return self.draft_s + self.verify_s + self.other_s

    def plain_step_s(self) -> float | None:
        """Median time of a one-row target pass, seconds; None where there was none."""
        times = self._verify_by_rows.get(1)
        return median(times) if times else None

    def verify_times(self) -> dict[int, float]:
        """Median time of the target pass by its rows beyond the first (k of a chain), seconds."""
        return {rows - 1: median(times) for rows, times in sorted(self._verify_by_rows.items())}

    def metrics(self, plain_step_s: float | None = None) -> Metrics:
        """The figures so far; plain_step_s (the plain lane's) brings costs and predictions."""
        alpha = _ratio(self.accepted, self.judged)
        gaps = self.times[1:]
        seconds = self.arrivals.seconds
        decode_s = self.decode_s
        return Metrics(
            rounds=self.rounds,
            proposed=self.proposed,
            judged=self.judged,
            accepted=self.accepted,
            ignored=self.proposed - self.judged,
            emitted=self.emitted,
            acceptance_rate=alpha,
            draft_acceptance=_ratio(self.accepted, self.proposed),
            tokens_per_target_pass=_ratio(self.emitted, self.rounds),
            mean_accepted_length=1 + self.accepted / self.draft_rounds if self.draft_rounds else None,
            position_acceptance=tuple(n / self.draft_rounds for n in self._accepted_at),
            position_acceptance_conditional=tuple(
                _ratio(hit, tried) for hit, tried in zip(self._accepted_at, self._judged_at, strict=True)
            ),
            decode_tokens_per_s=_ratio(self.emitted, decode_s),
            total_s=None if self.prefill_s is None else self.prefill_s + decode_s,
            ttft_s=self.prefill_s + self.times[0] if self.prefill_s is not None and self.times else None,
            itl_p50_s=percentile(gaps, 50),
            itl_p95_s=percentile(gaps, 95),
            tpot_s=_ratio(seconds[-1] - seconds[0], self.emitted - 1) if self.emitted > 1 and self.rounds > 1 else None,
            draft_share=_ratio(self.draft_s, decode_s),
            verify_share=_ratio(self.verify_s, decode_s),
            other_share=_ratio(self.other_s, decode_s),
            mean_k=_ratio(self.proposed, self.draft_rounds),
            distinct_4grams=_ratio(len(self._4grams), self.emitted - 3) if self.emitted > 3 else None,
            by_drafter={
                name: share.figures(self.draft_rounds) for name, share in sorted(self.by_drafter.items())
            },
            draft_full_at=self.draft_full[0] if self.draft_full else None,
            draft_context=self.draft_full[1] if self.draft_full else None,
            **self._costs(alpha, plain_step_s),
        )

    def _costs(self, alpha: float | None, plain_step_s: float | None) -> dict[str, float | None]:
        expected = None
        if alpha is not None and not self._trees:  # the formula is of chains
            expected = theory.expected_tokens(alpha, self.proposed / self.rounds)
        if not plain_step_s or not self.proposed:  # 0: a file whose passes took no time
            return {"expected_tokens": expected}
        mean_k = self.proposed / self.rounds
        c = self.draft_s / self.proposed / plain_step_s
        by_k = self.verify_times()
        v = sum(len(self._verify_by_rows[k + 1]) * time for k, time in by_k.items()) / self.rounds / plain_step_s
        if expected is None or alpha is None:
            return {"expected_tokens": expected, "draft_cost": c, "verify_cost": v}
        return {
            "expected_tokens": expected,
            "draft_cost": c,
            "verify_cost": v,
            "predicted_speedup": theory.speedup(alpha, mean_k, c),
            "predicted_speedup_measured_verify": theory.speedup(alpha, mean_k, c, v),
        }


def fold(
    rounds: Iterable[Round], prefill_s: float | None = None, plain_step_s: float | None = None
) -> Metrics:
    """Metrics of finished rounds."""
    folded = MetricsFold(prefill_s)
    for round_ in rounds:
        folded.add(round_)
    return folded.metrics(plain_step_s)


def draft_full_words(at: int | None, context: int | None) -> str:
    """Say where and why a draft went silent (Metrics.draft_full_at and draft_context); '' where none did."""
    if at is None or context is None:
        return ""
    where = f"from output token {at + 1} on" if at else "from the start"
    return f"The draft's own context of {context:,} tokens is full: {where} it drafts nothing."


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The percentile by linear interpolation; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None
