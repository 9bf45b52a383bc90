"""Deep figures of a lane's table of rounds, beside the single figures of `metrics`: what Why's Details and explain show.

What lengths were accepted, how tokens arrive (a round's tokens come together), how sure the target was where it
accepted, how acceptance runs along the output, and where each round's time went.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import sqrt
from typing import Any

import numpy as np

from specview.decoding.metrics import percentile
from specview.decoding.round_table import PHASES, Column, Rounds, RoundTable, table_of

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


def details_of(rounds: Rounds, prefill_s: float | None = None) -> Details:
    """Details of rounds."""
    table = table_of(rounds, prefill_s)
    phases = [table[name].tolist() for name in PHASES]
    starts = np.maximum(0.0, table["t"] - table["seconds"]).tolist()
    index, k, accepted, emitted = (table[name].tolist() for name in ("index", "k", "accepted", "emitted"))
    gaps = tuple(table["seconds"].tolist()[1:])
    first = float(table["seconds"][0]) if len(table) else None
    bursts = Counter(emitted)
    together = table.emitted - sum(count for size, count in bursts.items() if size)
    entropy, held = table.trial("entropy"), table.trial("accepted")
    known = ~np.isnan(entropy)
    # What rounding left below 0 falls into the first.
    places = np.maximum(np.searchsorted(ENTROPY_EDGES, entropy[known], side="right") - 1, 0)
    return Details(
        accepted_lengths=dict(sorted(Counter(hits for hits, size in zip(accepted, k, strict=True) if size).items())),
        empty_drafts=k.count(0),
        bursts=dict(sorted(bursts.items())),
        gaps_s=gaps,
        gap_p50_s=percentile(gaps, 50),
        gap_p95_s=percentile(gaps, 95),
        gap_max_s=max(gaps, default=None),
        together_share=together / (table.emitted - 1) if table.emitted > 1 else None,
        prefill_s=table.prefill_s,
        first_round_s=first,
        ttft_s=None if table.prefill_s is None or first is None else table.prefill_s + first,
        judged=len(entropy),
        entropy_known=int(known.sum()),
        entropy=_bins(places, held[known], (*ENTROPY_EDGES, None)),
        along=_along(table),
        timeline=tuple(map(RoundSpan, index, starts, *phases, k, accepted, emitted)),
    )


def _along(table: RoundTable) -> tuple[Bin, ...]:
    """Acceptance along the output, in bins wide enough that there are not too many."""
    position = table.trial("position")
    most = int(position.max(initial=-1)) // POSITION_BIN + 1
    width = POSITION_BIN * max(1, -(-most // MOST_POSITION_BINS))
    edges = [width * place for place in range(-(-most * POSITION_BIN // width) + 1)]
    return _bins(position // width, table.trial("accepted"), edges)


def _bins(places: Column, held: Column, edges: Sequence[float | None]) -> tuple[Bin, ...]:
    """Bins between the edges: per trial its bin, and 1 where it was accepted."""
    count = len(edges) - 1
    judged = np.bincount(places, minlength=count).tolist()
    accepted = np.bincount(places[held > 0], minlength=count).tolist()
    return tuple(map(Bin, edges[:-1], edges[1:], judged, accepted))  # type: ignore[arg-type]


def wilson(hits: int, trials: int, z: float = 1.96) -> tuple[float, float] | None:
    """Wilson's interval (1927) of a rate; None of no trials. z 1.96 is 95%."""
    if not trials:
        return None
    rate, square = hits / trials, z * z / trials
    middle = rate + square / 2
    half = z * sqrt(rate * (1 - rate) / trials + square / (4 * trials))
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))

