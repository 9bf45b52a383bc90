"""Why a lane is as fast as it is: its measured time taken apart beside what the formulas say, and put into words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from specview.decoding.ledger import Round
from specview.decoding.metrics import Metrics, draft_full_words, fold
from specview.decoding.round_table import table_of
from specview.decoding.speedup import Speedup, speedup
from specview.decoding.verification import is_lossy
from specview.drafting.plain import is_baseline
from specview.lab.explain_figures import LaneFigures
from specview.lab.explanation import Banner, BannerKind, Explanation, Waterfall, length_words
from specview.lab.measured import (
    HasRounds,
    MeasuredCosts,
    has_whole_passes,
    measured_beside,
    measured_costs,
    passes_of,
)

LOW_DRAFT_ACCEPTANCE = 0.4
HIGH_DRAFT_SHARE = 0.2
HIGH_OTHER_SHARE = 0.1
FEW_ROUNDS = 16
"""Rounds, of the lane's with a draft and of plain's, under which the figures are too uncertain to act upon."""
SMALL_LOSS = 0.05
"""Of the speedup: a largest loss under this is not worth a complaint."""
NEAR = 0.05
"""How far measured tokens per pass may lie from the formula's before the explanation speaks of it."""

Lane = TypeVar("Lane", bound=HasRounds)


def explain_lane(
    lane: Lane,
    race: Sequence[Lane],
    plain: Lane | None,
    faster: Callable[[Lane], Speedup | None],
    *,
    calibrated: Mapping[int, float] | None = None,
    metrics: Metrics | None = None,
) -> Explanation:
    """Explain a lane beside the others of its race; faster gives a lane's speedup over plain. See `explain`."""
    others = passes_of(race) if has_whole_passes(lane.settings) else {}
    alike = measured_beside(lane.settings, [(one.settings, faster(one)) for one in race if one is not lane])
    beside = () if plain is None or plain is lane else plain.rounds
    return explain(lane.rounds, beside, lane.settings, calibrated=calibrated, others=others, metrics=metrics,
                   faster=faster(lane), beside=alike)  # fmt: skip


def explain(
    rounds: Sequence[Round],
    plain: Sequence[Round] = (),
    settings: Mapping[str, Any] | None = None,
    *,
    calibrated: Mapping[int, float] | None = None,
    others: Mapping[int, float] | None = None,
    metrics: Metrics | None = None,
    faster: Speedup | None = None,
    beside: Mapping[int, Speedup] | None = None,
) -> Explanation:
    """Explain a lane from its rounds, its race's plain lane and, where there is one, a calibration of passes.

    rounds      the lane's;  plain those of plain decoding in the same race, () where there were none
    settings    the lane's flat settings (rule, method, check_mode are looked at)
    calibrated  {rows: seconds} of target passes measured here
    others      the same of the race's lanes together (`passes_of`), which stand before the calibration's
    metrics     the lane's figures where they are there already;  faster  its speedup, with its spread over repeats
    beside      speedups of the race's other lanes that draft alike, by their k (`measured_beside`)
    """
    settings = settings or {}
    if not rounds:
        return Explanation("none", "No rounds yet: run a race.", (), 0)
    table, base = table_of(rounds), table_of(plain)  # each round is folded once
    metrics = metrics or fold(table)
    costs = measured_costs(table, base, {**(calibrated or {}), **(others or {})})
    if is_baseline(settings) or not (metrics.proposed or plain):
        speed = metrics.decode_tokens_per_s
        sentence = f"Plain decoding is the baseline: every target pass gives one token{f' at {speed:.1f} tokens/s' if speed else ''}."
        return Explanation("none", sentence, (), len(rounds), tokens_per_pass=metrics.tokens_per_target_pass, costs=costs)
    lane = LaneFigures(rounds, plain, settings, metrics, costs, bool(calibrated), faster or speedup(table, base), beside or {})
    found = lane.explanation()
    return replace(found, sentence=_sentence(lane, found), banners=_banners(lane, found), notes=_notes(lane, found))


def per_round(rounds: Sequence[Round], costs: MeasuredCosts) -> tuple[Waterfall | None, ...]:
    """One waterfall a round, beside the median plain round; None for a round that took no time."""
    unit = costs.plain_round_s
    found: list[Waterfall | None] = []
    for round_ in rounds:
        if round_.seconds <= 0 or unit <= 0:
            found.append(None)
            continue
        tokens = len(round_.emitted)
        draft = round_.draft_s / unit
        verify = (round_.verify_s - costs.plain_pass_s) / unit
        other = (round_.other_s - costs.plain_other_s) / unit
        found.append(Waterfall(tokens, draft, verify, other, tokens / (1 + draft + verify + other)))
    return tuple(found)


# -- words ------------------------------------------------------------------------------------------------


def _sentence(lane: LaneFigures, found: Explanation) -> str:
    """One sentence: what takes the most, and what would be better."""
    if not lane.drafting:
        why = draft_full_words(lane.metrics.draft_full_at, lane.metrics.draft_context)
        return f"Nothing was drafted in {len(lane.rounds)} rounds, so this lane ran as plain decoding does. {why}".rstrip()
    if lane.costs is None:
        return "There is neither a plain lane nor a one-row pass here, so nothing says what drafting is worth."
    fall = found.waterfall
    if fall is None:
        return "The rounds took no time that could be measured, so nothing says what drafting is worth."
    if lane.settings.get("check_mode"):
        rate = "" if found.alpha is None else f" at acceptance rate {found.alpha:.2f}"
        return f"Recorded in check mode, whose times say nothing: what stands is {fall.tokens:.2f} tokens per target pass{rate}."
    return f"{_cause(lane, found, fall, lane.costs)}; {_advice(lane, found, fall)}."


def _cause(lane: LaneFigures, found: Explanation, fall: Waterfall, costs: MeasuredCosts) -> str:
    """Name the largest loss."""
    passes = costs.plain_round_s / costs.plain_pass_s  # plain passes in a plain round
    if found.main_loss is None or fall.losses[found.main_loss] < SMALL_LOSS * fall.net:
        return f"Little is lost here: a round costs {fall.cost:.2f} plain rounds and gives {fall.tokens:.2f} tokens"
    if found.main_loss == "verify":
        tokens = f"{round(lane.rows)} tokens" if lane.shape == "chain" else f"{lane.rows:.1f} tokens on average"
        return f"Verifying {tokens} costs {_digits(1.0 if found.v is None else found.v)} plain passes here"
    if found.main_loss == "draft":
        k = f"{lane.k}" if lane.k is not None else f"{lane.metrics.proposed / len(lane.drafting):.1f}"
        verify = f", while verifying costs {_digits(found.v)}" if found.v is not None else ""
        return f"Drafting {k} token{'' if k == '1' else 's'} costs {_digits(fall.draft * passes)} plain passes here{verify}"
    if found.main_loss == "other":
        cost = _digits(fall.other * passes)
        return f"What is neither drafting nor a target pass costs {cost} plain passes a round more than in plain decoding"
    slow = 1 - fall.net / (fall.tokens / fall.cost)
    return f"Slow rounds take {100 * slow:.0f}% of the speedup here: the machine was busy, or some passes cost more"


def _advice(lane: LaneFigures, found: Explanation, fall: Waterfall) -> str:
    """Say what would be better, as far as the formulas can."""
    needs = f"its rounds must give {fall.cost:.2f} tokens to break even and give {fall.tokens:.2f}"
    if lane.shape == "tree":
        return needs
    if found.alpha is None or not found.lengths:
        return "nothing was judged, so nothing says which k is best"
    if fall.tokens <= fall.cost and found.measured_speedup is not None and found.measured_speedup > 1:
        return "its rounds' times vary too much to say which k is best"  # by the medians plain wins, measured it does not
    at = f"at acceptance rate {found.alpha:.2f}"
    if lane.shape == "chain" and lane.faster is None and bool(found.best_k) != bool(found.best_k_formula):
        pays = next(point for point in found.lengths if point.k == (found.best_k or found.best_k_formula))
        runs = f"k {pays.k} would run at {pays.by_positions if found.best_k else pays.by_formula:.2f} times plain"
        each, one = (runs, "no k pays") if found.best_k else ("no k pays", runs)
        return f"by its acceptance at each position {each}, by one rate of {found.alpha:.2f} {one}: what-if replays it"
    if lane.shape == "varying":
        best = (
            "no fixed k is clearly better" if found.best_k is None
            else f"a fixed k of {found.best_k} would be best" if found.best_k else "no fixed k would pay"
        )  # fmt: skip
        return f"{needs}; by the formula {at} {best}"
    if not found.best_k:
        return f"{at} no k pays, plain decoding is the fastest"
    if found.best_k != lane.k:
        return f"{at} the best k is {found.best_k}"
    if lane.faster is not None and lane.faster.spread is None:
        return f"{at} there are too few rounds to say that another k is better"
    if found.as_good:
        return f"{at}, k {lane.k} is not clearly better than {_listed([length_words(k) for k in found.as_good])}"
    return f"{at}, k {lane.k} is the best here{' of those whose cost is known' if found.best_k == found.lengths[-1].k else ''}"


def _banners(lane: LaneFigures, found: Explanation) -> tuple[Banner, ...]:
    """What the reader must know, the gravest first."""
    told: list[Banner] = []
    metrics, rule, fall = lane.metrics, lane.settings.get("rule"), found.waterfall

    def tell(kind: BannerKind, short: str, text: str) -> None:
        told.append(Banner(kind, short, text))

    if lane.faster is not None and lane.faster.slower:
        times = f"{lane.faster.value:.2f}"
        tell("slower", f"{times}x: slower than plain", f"Slower than plain decoding: {times} times its speed.")
    if is_lossy(rule):
        tell("lossy", "lossy rule", f"The rule {rule} is lossy: the output may differ from the target's own, so its speed is not that "
             "of an exact method.")  # fmt: skip
    if metrics.draft_acceptance is not None and metrics.draft_acceptance < LOW_DRAFT_ACCEPTANCE:
        share = f"{100 * metrics.draft_acceptance:.0f}%"
        tell("draft-acceptance", f"draft acceptance {share}", f"Draft acceptance is {share}: of {metrics.proposed} drafted tokens "
             f"{metrics.accepted} were kept. Shorter drafts waste less.")  # fmt: skip
    if metrics.draft_share is not None and metrics.draft_share > HIGH_DRAFT_SHARE:
        share = f"{100 * metrics.draft_share:.0f}% of the time"
        tell("draft-share", f"drafting {share}", f"Drafting takes {share}. A smaller draft, or one that copies, may gain more.")
    if metrics.draft_full_at is not None:
        tell("draft-full", "draft context full", draft_full_words(metrics.draft_full_at, metrics.draft_context))
    if fall is not None and fall.other / fall.cost > HIGH_OTHER_SHARE:
        share = f"{100 * fall.other / fall.cost:.0f}%"
        tell("other-large", f"other time {share}", f"{share} of the time is neither drafting nor target passes, beyond what plain "
             "decoding has: bookkeeping of the drafter, or sampling.")  # fmt: skip
    if lane.settings.get("check_mode"):
        tell("check-mode", "check mode", "Check mode pads one-row passes: times and speedups say nothing.")
    if lane.drafting and not lane.plain:
        modelled = ": the speedup is modelled, not measured." if lane.costs is not None else "."
        tell("no-plain", "no plain lane", f"There is no plain lane to compare with{modelled}")
    few = min(len(lane.drafting), len(lane.plain) or len(lane.drafting))
    if lane.drafting and few < FEW_ROUNDS:
        rounds = "1 round" if few == 1 else f"{few} rounds"
        tell("few-rounds", f"only {rounds}", f"Only {rounds} to go by: the figures may still change much. Ask for more tokens.")
    return tuple(told)


def _notes(lane: LaneFigures, found: Explanation) -> tuple[str, ...]:
    """What the formulas cannot say of this lane."""
    told: list[str] = []
    if lane.shape == "tree":
        told.append("Drafts are trees: α counts trials of siblings, and no closed form holds. Only the measurement speaks.")
    if lane.shape == "varying":
        lengths = [round_.k for round_ in lane.rounds]
        told.append(
            f"Draft lengths vary from {min(lengths)} to {max(lengths)}: the formulas average over them, and take α "
            "to be the same at every length, which a lane that chooses its lengths need not have."
        )
    if lane.riders:
        told.append(f"{lane.riders} more tokens ride in every pass without being proposed: their rows are in the pass's cost.")
    expected, got = lane.metrics.expected_tokens, lane.metrics.tokens_per_target_pass
    if lane.chains and expected is not None and got and abs(got / expected - 1) > NEAR:
        rates = [rate for rate in lane.metrics.position_acceptance_conditional if rate is not None]
        told.append(
            f"{got:.2f} tokens came per pass, {'more' if got > expected else 'fewer'} than the formula's {expected:.2f} for one α at "
            "every position: "
            + ("acceptance is not the same in every round." if len(rates) < 2
               else f"acceptance is {rates[0]:.2f} at the first drafted token and {max(rates[1:]):.2f} at a later one.")
        )  # fmt: skip
    if found.costs is not None and lane.drafting:
        told += filter(None, [found.costs.doubt({point.k + 1 + lane.riders for point in found.lengths})])
    if found.plain_source not in ("", "plain lane"):
        told.append(f"The cost of a plain step is from the {found.plain_source}.")
    return tuple(told)


def _listed(words: Sequence[str]) -> str:
    """The first words in a row; of many how many more there are."""
    if len(words) > 3:
        return f"{', '.join(words[:2])} and {len(words) - 2} more"
    return " and ".join(", ".join(words).rsplit(", ", 1))


def _digits(value: float) -> str:
    return f"{value:.2f}" if value < 0.095 or 0.95 < value < 1.05 else f"{value:.1f}"
