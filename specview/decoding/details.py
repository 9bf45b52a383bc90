"""Deep figures of a lane: a fold over rounds, beside the single figures of `metrics`.

What lengths were accepted, how tokens arrive (a round's tokens come together), how sure the target was where it
accepted, how acceptance runs along the output, and where each round's time went.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import sqrt
from typing import Any

from specview.decoding.ledger import Round, depths
from specview.decoding.metrics import percentile

ENTROPY_EDGES = (0.0, 0.05, 0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Lower edges of the bins of the target's entropy, nats; the last one is open above."""
POSITION_BIN = 16
"""Output tokens in the narrowest bin of acceptance along the output."""
MOST_POSITION_BINS = 32


@dataclass(frozen=True, slots=True)
class Bin:
    """Trials whose x lies in [low, high) (high None: no upper end), and how many were accepted."""

    low: float
    high: float | None
    judged: int
    accepted: int

    @property
    def rate(self) -> float | None:
        """Accepted / judged; None of nothing."""
        return self.accepted / self.judged if self.judged else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Wilson's 95% interval of the rate; None of nothing."""
        return wilson(self.accepted, self.judged)


@dataclass(frozen=True, slots=True)
class RoundSpan:
    """When a round ran on the lane's clock, seconds since the end of prefill, and what its phases took."""

    index: int
    start_s: float
    draft_s: float
    verify_s: float
    other_s: float
    k: int
    accepted: int
    emitted: int

    @property
    def seconds(self) -> float:
        """The whole round."""
        return self.draft_s + self.verify_s + self.other_s


@dataclass(frozen=True, slots=True)
class Details:
    """Deep figures of a lane.

    accepted_lengths  {accepted tokens: rounds} over the rounds with a draft;  empty_drafts the other rounds
    bursts            {tokens that arrived together: rounds}
    gaps_s            seconds between one burst and the next, in order (the first burst has none)
    gap_p50_s, gap_p95_s, gap_max_s   of those;  together_share  share of the inter-token gaps that are zero, since
                      both tokens came in one burst
    prefill_s, first_round_s, ttft_s  time to first token = prefill + first round; None where prefill is not known
    entropy           trials by the entropy of the target's distribution, nats;  entropy_known  how many trials had
                      theirs recorded, of `judged`: the observer does so at level `full` only
    along             trials by output position
    timeline          one span a round
    """

    accepted_lengths: Mapping[int, int]
    empty_drafts: int
    bursts: Mapping[int, int]
    gaps_s: tuple[float, ...]
    gap_p50_s: float | None
    gap_p95_s: float | None
    gap_max_s: float | None
    together_share: float | None
    prefill_s: float | None
    first_round_s: float | None
    ttft_s: float | None
    judged: int
    entropy_known: int
    entropy: tuple[Bin, ...]
    along: tuple[Bin, ...]
    timeline: tuple[RoundSpan, ...] = field(default=(), repr=False)

    @property
    def entropy_note(self) -> str:
        """Why there is no entropy, or that some trials lack theirs; '' where all have it."""
        if not self.judged:
            return "Nothing was judged."
        if not self.entropy_known:
            return "Entropies were not recorded: they need the full observer (--observe full, or Look closely: full)."
        if self.entropy_known < self.judged:
            return f"Entropies of {self.entropy_known} of {self.judged} trials were recorded."
        return ""

    def as_dict(self) -> dict[str, Any]:
        """The figures by name, as they stand in files; bins carry their rate and its interval."""
        found = asdict(self)
        for name in ("entropy", "along"):
            found[name] = [
                {**asdict(one), "rate": one.rate, "interval": one.interval} for one in getattr(self, name)
            ]
        return {**found, "entropy_note": self.entropy_note}


class DetailsFold:
    """Details of the rounds added so far; adding a round costs the same however many there were."""

    def __init__(self, prefill_s: float | None = None) -> None:
        self.prefill_s = prefill_s
        self.rounds = 0
        self._accepted: Counter[int] = Counter()
        self._bursts: Counter[int] = Counter()
        self._empty = 0
        self._emitted = 0
        self._judged = 0
        self._spans: list[RoundSpan] = []
        self._entropy = [[0, 0] for _ in ENTROPY_EDGES]
        self._along: list[list[int]] = []

    def add(self, round_: Round) -> None:
        """Fold one round in."""
        k, accepted, emitted = round_.k, round_.accepted, len(round_.emitted)
        self.rounds += 1
        if k:
            self._accepted[accepted] += 1
        else:
            self._empty += 1
        self._bursts[emitted] += 1
        self._spans.append(
            RoundSpan(
                round_.index,
                max(0.0, round_.t - round_.seconds),
                round_.draft_s,
                round_.verify_s,
                round_.other_s,
                k,
                accepted,
                emitted,
            )
        )
        at: Sequence[int] = range(k) if round_.parents is None else depths(round_.parents)
        for depth, token in zip(at, round_.drafted, strict=True):
            if token.verdict == "ignored":
                continue
            hit = token.verdict == "accepted"
            self._judged += 1
            place = (self._emitted + depth) // POSITION_BIN
            while len(self._along) <= place:
                self._along.append([0, 0])
            self._along[place][0] += 1
            self._along[place][1] += hit
            if token.entropy is not None:
                own = self._entropy[_bin_of(token.entropy)]
                own[0] += 1
                own[1] += hit
        self._emitted += emitted

    def details(self) -> Details:
        """The figures so far."""
        gaps = tuple(span.seconds for span in self._spans[1:])
        first = self._spans[0].seconds if self._spans else None
        together = self._emitted - sum(count for size, count in self._bursts.items() if size)
        return Details(
            accepted_lengths=dict(sorted(self._accepted.items())),
            empty_drafts=self._empty,
            bursts=dict(sorted(self._bursts.items())),
            gaps_s=gaps,
            gap_p50_s=percentile(gaps, 50),
            gap_p95_s=percentile(gaps, 95),
            gap_max_s=max(gaps, default=None),
            together_share=together / (self._emitted - 1) if self._emitted > 1 else None,
            prefill_s=self.prefill_s,
            first_round_s=first,
            ttft_s=None if self.prefill_s is None or first is None else self.prefill_s + first,
            judged=self._judged,
            entropy_known=sum(judged for judged, _ in self._entropy),
            entropy=tuple(
                Bin(low, high, judged, accepted)
                for low, high, (judged, accepted) in zip(
                    ENTROPY_EDGES, (*ENTROPY_EDGES[1:], None), self._entropy, strict=True
                )
            ),
            along=self._positions(),
            timeline=tuple(self._spans),
        )

    def _positions(self) -> tuple[Bin, ...]:
        """Acceptance along the output, in bins wide enough that there are not too many."""
        together = max(1, -(-len(self._along) // MOST_POSITION_BINS))
        width = POSITION_BIN * together
        found = []
        for start in range(0, len(self._along), together):
            part = self._along[start : start + together]
            low = start * POSITION_BIN
            found.append(Bin(low, low + width, sum(judged for judged, _ in part), sum(hit for _, hit in part)))
        return tuple(found)


def details_of(rounds: Iterable[Round], prefill_s: float | None = None) -> Details:
    """Details of finished rounds."""
    folded = DetailsFold(prefill_s)
    for round_ in rounds:
        folded.add(round_)
    return folded.details()


def wilson(hits: int, trials: int, z: float = 1.96) -> tuple[float, float] | None:
    """Wilson's interval (1927) of a rate; None of no trials. z 1.96 is 95%."""
    if not trials:
        return None
    rate, square = hits / trials, z * z / trials
    middle = rate + square / 2
    half = z * sqrt(rate * (1 - rate) / trials + square / (4 * trials))
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))


def _bin_of(entropy: float) -> int:
    """The entropy bin's place; what rounding left below 0 falls into the first."""
    place = 0
    while place + 1 < len(ENTROPY_EDGES) and entropy >= ENTROPY_EDGES[place + 1]:
        place += 1
    return place
