"""Metrics of a table of rounds. One name, one denominator (DESIGN section 6).

A figure that does not exist (nothing judged, no baseline) is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from specview.decoding import theory
from specview.decoding.round_table import PHASES, Rounds, RoundTable, table_of
from specview.late import late

if TYPE_CHECKING:
    import numpy as np
else:
    np = late("numpy")


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
    predictions need the plain lane of the same race. server has what a serving engine itself counted for a lane of its own:
    drafts, drafted, accepted, generated, where they come from, whether other requests are counted with it.
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
    server: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The figures by name."""
        return asdict(self)


def fold(rounds: Rounds, prefill_s: float | None = None, plain_step_s: float | None = None) -> Metrics:
    """The figures of rounds; plain_step_s (the plain lane's) brings costs and predictions."""
    table = table_of(rounds, prefill_s)
    if not len(table):
        return _nothing(table.prefill_s)
    count, emitted = len(table), table.emitted
    proposed, judged, accepted = (int(table[name].sum()) for name in ("k", "judged", "accepted"))
    draft_rounds = int((table["k"] > 0).sum())
    phases = {name: table.total(name) for name in PHASES}
    decode_s = sum(phases.values())
    seconds, ends = table["seconds"], table["t"]
    gaps = np.sort(seconds[1:]).tolist()
    held, tried = table.by_depth()
    alpha = _ratio(accepted, judged)
    prefill_s = table.prefill_s
    shares: dict[str, Any] = {name.replace("_s", "_share"): _ratio(spent, decode_s) for name, spent in phases.items()}
    full_at, context = table.draft_full or (None, None)
    return Metrics(
        rounds=count,
        proposed=proposed,
        judged=judged,
        accepted=accepted,
        ignored=proposed - judged,
        emitted=emitted,
        acceptance_rate=alpha,
        draft_acceptance=_ratio(accepted, proposed),
        tokens_per_target_pass=_ratio(emitted, count),
        mean_accepted_length=1 + accepted / draft_rounds if draft_rounds else None,
        position_acceptance=tuple(count / draft_rounds for count in held),
        position_acceptance_conditional=tuple(map(_ratio, held, tried)),
        decode_tokens_per_s=_ratio(emitted, decode_s),
        total_s=None if prefill_s is None else prefill_s + decode_s,
        ttft_s=prefill_s + float(seconds[0]) if prefill_s is not None and count else None,
        itl_p50_s=percentile(gaps, 50),
        itl_p95_s=percentile(gaps, 95),
        tpot_s=_ratio(float(ends[-1] - ends[0]), emitted - 1) if emitted > 1 and count > 1 else None,
        mean_k=_ratio(proposed, draft_rounds),
        distinct_4grams=_ratio(table.distinct_4grams, emitted - 3) if emitted > 3 else None,
        by_drafter=_by_drafter(table),
        draft_full_at=full_at,
        draft_context=context,
        **shares,
        **_costs(table, alpha, plain_step_s),
    )


def _nothing(prefill_s: float | None) -> Metrics:
    """The figures before the first round."""
    figures: dict[str, Any] = {one.name: None for one in fields(Metrics) if one.default is one.default_factory is MISSING}
    figures |= dict.fromkeys(("rounds", "proposed", "judged", "accepted", "ignored", "emitted"), 0)
    figures |= {"position_acceptance": (), "position_acceptance_conditional": (), "total_s": prefill_s}
    return Metrics(**figures)


def share_figures(rounds: int, proposed: int, judged: int, accepted: int, draft_s: float, draft_rounds: int) -> dict[str, float | None]:
    """A drafter's part in a lane, as it stands in files; share is of the lane's rounds with a draft."""
    return {
        "rounds": rounds,
        "share": _ratio(rounds, draft_rounds),
        "proposed": proposed,
        "judged": judged,
        "accepted": accepted,
        "acceptance_rate": _ratio(accepted, judged),
        "draft_acceptance": _ratio(accepted, proposed),
        "draft_s": draft_s,
    }


def _by_drafter(table: RoundTable) -> dict[str, dict[str, float | None]]:
    drafts = table["k"] > 0
    names = np.array(table.drafters, dtype=object)
    found = {}
    for name in sorted(set(names[drafts])):
        own = drafts & (names == name)
        proposed, judged, accepted = (int(table[column][own].sum()) for column in ("k", "judged", "accepted"))
        draft_s = float(np.cumsum(table["draft_s"][own])[-1])
        found[name] = share_figures(int(own.sum()), proposed, judged, accepted, draft_s, int(drafts.sum()))
    return found


def _costs(table: RoundTable, alpha: float | None, plain_step_s: float | None) -> dict[str, Any]:
    proposed = int(table["k"].sum())
    found: dict[str, Any] = {}
    mean_k = proposed / len(table) if len(table) else 0.0
    if alpha is not None and not table.trees:  # the formula is of chains
        found["expected_tokens"] = theory.expected_tokens(alpha, mean_k)
    if not plain_step_s or not proposed or not table.total("verify_s"):  # 0: a server's times, whose passes are not told apart
        return found
    c = found["draft_cost"] = table.total("draft_s") / proposed / plain_step_s
    passes = sum(count * typical for count, typical in table.passes().values())
    v = found["verify_cost"] = passes / len(table) / plain_step_s
    if alpha is not None and not table.trees:
        found["predicted_speedup"] = theory.speedup(alpha, mean_k, c)
        found["predicted_speedup_measured_verify"] = theory.speedup(alpha, mean_k, c, v)
    return found


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
