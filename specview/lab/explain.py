"""Why a lane is as fast as it is: its measured time taken apart, beside what the formulas say.

Everything is in plain rounds (a one-row target pass and what belongs to it). A round that gives T tokens and costs
C plain rounds makes the lane S = T / C times as fast as plain decoding. With C = 1 + d + s + o (drafting, the verify
surplus v(k) - 1, the surplus of the rest) the way from plain to S has exact, order-free steps: it gains T - 1 and
pays S d, S s and S o, since T - S (d + s + o) = S.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any, Literal

from specview.decoding import theory
from specview.decoding.ledger import Round, depths
from specview.decoding.metrics import Metrics, draft_full_words, fold
from specview.decoding.speedup import Speedup, speedup
from specview.decoding.verification import RULES
from specview.drafting.plain import is_baseline
from specview.drafting.registry import METHODS
from specview.lab.advice import Measured
from specview.lab.measured import MeasuredCosts, Source, measured_costs

LOW_DRAFT_ACCEPTANCE = 0.4
HIGH_DRAFT_SHARE = 0.2
HIGH_OTHER_SHARE = 0.1
FEW_ROUNDS = 16
"""Rounds, of the lane's with a draft and of plain's, under which the figures are too uncertain to act upon."""
SMALL_LOSS = 0.05
"""Of the speedup: a largest loss under this is not worth a complaint."""
NEAR = 0.05
"""How far measured tokens per pass may lie from the formula's before the explanation speaks of it."""

StepName = Literal["plain", "tokens", "draft", "verify", "other", "uneven", "net"]
Loss = Literal["draft", "verify", "other", "uneven"]
BannerKind = Literal[
    "slower", "draft-acceptance", "draft-share", "lossy", "other-large", "few-rounds", "check-mode", "no-plain",
    "draft-full",
]


@dataclass(frozen=True, slots=True)
class Step:
    """One bar of a waterfall: from `before` to `after`, in times plain; plain and net stand on the ground."""

    name: StepName
    label: str
    before: float
    after: float

    @property
    def change(self) -> float:
        """What this step adds (a cost is negative); the height of the bar for plain and net."""
        return self.after - self.before


LABELS: Mapping[StepName, str] = {
    "plain": "plain",
    "tokens": "tokens per pass",
    "draft": "drafting",
    "verify": "verify surplus",
    "other": "other time",
    "uneven": "uneven rounds",
    "net": "speedup",
}


@dataclass(frozen=True, slots=True)
class Waterfall:
    """The way from plain (1) to the speedup, in times plain.

    tokens is T, emitted tokens a round; draft, verify and other are what a round pays above a plain one, in plain
    rounds; net the speedup. What the medians of the phases leave unsaid (slow rounds) is `uneven`: of one round it is 0.
    """

    tokens: float
    draft: float
    verify: float
    other: float
    net: float

    @property
    def cost(self) -> float:
        """A round in plain rounds, by its phases."""
        return 1 + self.draft + self.verify + self.other

    @property
    def uneven(self) -> float:
        """Speedup beyond (or short of) tokens / cost."""
        return self.net - self.tokens / self.cost

    @property
    def steps(self) -> tuple[Step, ...]:
        """The bars in order; each begins where the one before ends, the last ends at net."""
        even = self.tokens / self.cost
        changes: list[tuple[StepName, float]] = [
            ("tokens", self.tokens - 1),
            ("draft", -even * self.draft),
            ("verify", -even * self.verify),
            ("other", -even * self.other),
            ("uneven", self.uneven),
        ]
        found, at = [Step("plain", LABELS["plain"], 0.0, 1.0)], 1.0
        for name, change in changes:
            found.append(Step(name, LABELS[name], at, at + change))
            at += change
        return (*found, Step("net", LABELS["net"], 0.0, self.net))

    @property
    def losses(self) -> dict[Loss, float]:
        """What each step takes from the speedup, in times plain; negative where it gives."""
        even = self.tokens / self.cost
        return {
            "draft": even * self.draft,
            "verify": even * self.verify,
            "other": even * self.other,
            "uneven": -self.uneven,
        }

    def as_dict(self) -> dict[str, Any]:
        """The figures and the steps by name."""
        return {
            **asdict(self),
            "cost": self.cost,
            "steps": [{**asdict(step), "change": step.change} for step in self.steps],
        }


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a formula says the speedup is; formula in signs, parts what it rests on in words."""

    name: str
    speedup: float
    formula: str
    parts: str
    measured: bool = False


@dataclass(frozen=True, slots=True)
class LengthPoint:
    """One draft length and the speedup that it would have by this lane's costs.

    by_formula takes one alpha for every position. by_positions cuts the lane's own drafts, so it has the acceptance of
    each position, and goes on from the last with alpha; of drafters that guess from the text alone it walks along this
    text, as acceptance that comes in stretches gives short drafts more. None where lengths vary. source is the pass's.
    limit scales both where the same costs make too much of the lane itself; measured is of a lane that drafts so.
    """

    k: int
    by_formula: float
    by_positions: float | None
    source: Source
    limit: float = 1.0
    measured: float | None = None

    @property
    def predicted(self) -> float:
        """The better founded of the two predictions, limited."""
        return (self.by_formula if self.by_positions is None else self.by_positions) * self.limit

    @property
    def speedup(self) -> float:
        """As measured, else as predicted."""
        return self.predicted if self.measured is None else self.measured


@dataclass(frozen=True, slots=True)
class RuleOfThumb:
    """alpha k, as guides quote it for the speedup, beside the right formula; words say what it gets wrong here."""

    value: float
    expected_tokens: float
    cost: float
    right: float
    words: str


@dataclass(frozen=True, slots=True)
class Banner:
    """Something that the reader must know; the kind tells banners apart when one is dismissed, short is it in a few words."""

    kind: BannerKind
    short: str
    text: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """A lane's explanation; what cannot be known is None.

    shape           chain (one draft length), varying (lengths differ from round to round), tree, or none (no drafts)
    k               the draft length of a chain, the mean of the others (over rounds, empty ones too)
    rows            rows of the verifying pass, on average
    alpha           accepted / judged
    c, v            a drafted token and the verifying pass, in one-row passes (medians of the rounds)
    plain_source    where a plain round's time comes from: plain lane, own one-row rounds, calibration, or '' (unknown)
    break_even_tokens   tokens per pass at which this lane's rounds just pay;  break_even_alpha that of the formula
    best_k          the length to use, 0 for plain: the lane's own unless another is told apart from all that was measured
                    beside it; None where the lengths vary and no fixed one is
    best_k_formula  the length with the highest prediction by one alpha for all positions
    best_k_note     what they rest on;  lengths the whole curve;  as_good those that are not told apart from the best
    main_loss       the step that takes the most
    """

    shape: Literal["chain", "varying", "tree", "none"]
    sentence: str
    banners: tuple[Banner, ...]
    rounds: int
    k: float | None = None
    rows: float | None = None
    alpha: float | None = None
    tokens_per_pass: float | None = None
    c: float | None = None
    v: float | None = None
    v_source: Source | None = None
    plain_source: str = ""
    measured_speedup: float | None = None
    speedup_spread: tuple[float, float] | None = None
    waterfall: Waterfall | None = None
    main_loss: Loss | None = None
    predictions: tuple[Prediction, ...] = ()
    break_even_tokens: float | None = None
    break_even_alpha: float | None = None
    best_k: int | None = None
    best_k_speedup: float | None = None
    best_k_formula: int | None = None
    best_k_note: str = ""
    as_good: tuple[int, ...] = ()
    lengths: tuple[LengthPoint, ...] = ()
    rule_of_thumb: RuleOfThumb | None = None
    notes: tuple[str, ...] = ()
    costs: MeasuredCosts | None = None

    @property
    def best_words(self) -> str:
        """The length to use with its speedup, or those that are not told apart; '' where there is none."""
        if self.best_k is None:
            return ""
        best = f"k {self.best_k}, {self.best_k_speedup:.2f} times plain" if self.best_k and self.best_k_speedup is not None else "plain"
        if not self.as_good:
            return best
        return f"not told apart: {best}; {', '.join('plain' if not k else f'k {k}' for k in self.as_good)}"

    def as_dict(self) -> dict[str, Any]:
        """The figures by name, as they stand in files."""
        found = {
            name: getattr(self, name)
            for name in self.__dataclass_fields__
            if name not in ("waterfall", "costs", "predictions", "lengths", "banners", "rule_of_thumb")
        }
        costs = self.costs
        return {
            **found,
            "banners": [asdict(banner) for banner in self.banners],
            "waterfall": None if self.waterfall is None else self.waterfall.as_dict(),
            "predictions": [asdict(one) for one in self.predictions],
            "lengths": [asdict(one) for one in self.lengths],
            "rule_of_thumb": None if self.rule_of_thumb is None else asdict(self.rule_of_thumb),
            "costs": None
            if costs is None
            else {
                "pass_s": {str(rows): seconds for rows, seconds in costs.passes.items()},
                "pass_source": {str(rows): costs.source(rows) for rows in costs.passes},
                "draft_start_s": costs.draft_start_s,
                "draft_step_s": costs.draft_step_s,
                "other_s": costs.other_s,
                "plain_other_s": costs.plain_other_s,
                "plain_round_s": costs.plain_round_s,
            },
        }


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
    others      the same of the race's lanes together (`what_if.passes_of`), which stand before the calibration's
    metrics     the lane's figures where they are there already;  faster  its speedup, with its spread over repeats
    beside      speedups of the race's other lanes that draft alike, by their k (`advice.measured_beside`)
    """
    settings = settings or {}
    if metrics is None:
        metrics = fold(rounds)
    baseline = is_baseline(settings) or (bool(rounds) and not metrics.proposed and not plain)
    if not rounds:
        return Explanation("none", "No rounds yet: run a race.", (), 0)
    costs = measured_costs(rounds, plain, {**(calibrated or {}), **(others or {})})
    if baseline:
        return _plain(rounds, metrics, costs)
    return _Lane(rounds, plain, settings, metrics, costs, bool(calibrated), faster, beside or {}).explanation()


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


def _plain(rounds: Sequence[Round], metrics: Metrics, costs: MeasuredCosts | None) -> Explanation:
    speed = metrics.decode_tokens_per_s
    words = f" at {speed:.1f} tokens/s" if speed else ""
    return Explanation(
        "none",
        f"Plain decoding is the baseline: every target pass gives one token{words}.",
        (),
        len(rounds),
        tokens_per_pass=metrics.tokens_per_target_pass,
        costs=costs,
    )


class _Lane:
    """The parts of one lane's explanation, from its rounds and costs."""

    def __init__(
        self,
        rounds: Sequence[Round],
        plain: Sequence[Round],
        settings: Mapping[str, Any],
        metrics: Metrics,
        costs: MeasuredCosts | None,
        calibrated: bool,
        faster: Speedup | None,
        beside: Mapping[int, Speedup],
    ) -> None:
        self.rounds, self.plain, self.settings = rounds, plain, settings
        self.metrics, self.costs, self.calibrated = metrics, costs, calibrated
        self.drafting = [round_ for round_ in rounds if round_.k]
        self.k = _steady_k(rounds)
        trees = any(round_.parents is not None for round_ in rounds)
        self.shape: Literal["chain", "varying", "tree", "none"] = (
            "none" if not self.drafting else "tree" if trees else "chain" if self.k is not None else "varying"
        )
        self.alpha = metrics.acceptance_rate
        self.faster = faster or speedup(rounds, plain)
        self.measured = None if self.faster is None else self.faster.value
        self.beside = Measured(self.faster, None, beside)
        at = self.body()
        self.rows = sum(round_.rows for round_ in at) / len(at)
        self.riders = round(sum(len(round_.riders) for round_ in at) / len(at))

    def body(self) -> Sequence[Round]:
        """The rounds of a chain's own length; of other lanes all."""
        return [round_ for round_ in self.rounds if round_.k == self.k] if self.shape == "chain" else self.rounds

    def explanation(self) -> Explanation:
        """Put the parts together."""
        costs, metrics = self.costs, self.metrics
        fall = self.waterfall() if costs is not None else None
        if fall is not None:
            self.beside = replace(self.beside, model=fall.tokens / fall.cost)
        lengths = self.lengths()
        best, as_good = self.best(lengths)
        best_formula = max(lengths, key=lambda point: point.by_formula) if lengths else None
        main = self.main_loss(fall)
        at = self.body()
        c = v = break_tokens = break_alpha = None
        if costs is not None and self.drafting:
            drafted = [round_ for round_ in at if round_.k]
            c = sum(map(_median_by_length(drafted), drafted)) / sum(_depth(round_) for round_ in drafted)
            c /= costs.plain_pass_s
            v = sum(costs.pass_s(round_.rows) for round_ in at) / len(at) / costs.plain_pass_s
            if fall is not None:
                break_tokens = fall.cost
            if self.shape in ("chain", "varying"):
                break_alpha = theory.break_even([round_.k for round_ in at], self.round_cost(at))
        mean_k = self.k if self.shape == "chain" else (metrics.proposed / len(self.rounds) if self.drafting else None)
        found = Explanation(
            self.shape,
            "",
            (),
            len(self.rounds),
            k=mean_k,
            rows=self.rows,
            alpha=self.alpha,
            tokens_per_pass=metrics.tokens_per_target_pass,
            c=c,
            v=v,
            v_source=None if costs is None or self.shape != "chain" else costs.source(round(self.rows)),
            plain_source=self.plain_source(),
            measured_speedup=self.measured,
            speedup_spread=None if self.faster is None else self.faster.spread,
            waterfall=fall,
            main_loss=main,
            predictions=self.predictions(),
            break_even_tokens=break_tokens,
            break_even_alpha=break_alpha,
            best_k=None if best is None else best.k,
            best_k_speedup=None if best is None else best.speedup,
            best_k_formula=None if best_formula is None else best_formula.k,
            best_k_note=self.best_note(lengths),
            as_good=as_good,
            lengths=lengths,
            rule_of_thumb=self.rule_of_thumb(),
            costs=costs,
        )
        told = replace(found, sentence=self.sentence(found), banners=self.banners(found))
        return replace(told, notes=self.notes(told))

    # -- the waterfall ---------------------------------------------------------------------------

    def waterfall(self) -> Waterfall | None:
        """The lane's own, of median phases and mean tokens over the time in which both lanes ran."""
        costs = self.costs
        assert costs is not None
        rounds = self.rounds
        if self.plain:
            both = min(rounds[-1].t, self.plain[-1].t) * (1 + 1e-9)
            rounds = [round_ for index, round_ in enumerate(rounds) if not index or round_.t <= both]
        unit = costs.plain_round_s
        if unit <= 0:
            return None
        count = len(rounds)
        tokens = sum(len(round_.emitted) for round_ in rounds) / count
        draft = sum(map(_median_by_length(rounds), rounds)) / count / unit
        verify = sum(map(_median_by(rounds, lambda r: r.rows, lambda r: r.verify_s), rounds)) / count
        other = sum(map(_median_by(rounds, lambda r: r.k > 0, lambda r: r.other_s), rounds)) / count
        verify, other = (verify - costs.plain_pass_s) / unit, (other - costs.plain_other_s) / unit
        cost = 1 + draft + verify + other
        if cost <= 0:
            return None
        return Waterfall(tokens, draft, verify, other, tokens / cost if self.measured is None else self.measured)

    @staticmethod
    def main_loss(fall: Waterfall | None) -> Loss | None:
        """The step that takes the most; None where nothing takes anything."""
        if fall is None:
            return None
        name, loss = max(fall.losses.items(), key=lambda item: item[1])
        return name if loss > 0 else None

    def plain_source(self) -> str:
        """Where a plain round's time comes from."""
        if self.costs is None:
            return ""
        if self.plain:
            return "plain lane"
        return "own one-row rounds" if 1 in self.costs.measured else "calibration"

    # -- formulas --------------------------------------------------------------------------------

    def round_cost(self, rounds: Sequence[Round]) -> float:
        """What these rounds cost on average by the median costs, in plain rounds."""
        costs = self.costs
        assert costs is not None
        total = sum(costs.draft_s(round_.k) + costs.pass_s(round_.rows) + costs.other_s for round_ in rounds)
        return total / len(rounds) / costs.plain_round_s

    def predictions(self) -> tuple[Prediction, ...]:
        """The closed form with c alone, with c and v(k), with all a round's time; then the measurement."""
        costs, alpha = self.costs, self.alpha
        found: list[Prediction] = []
        if costs is not None and alpha is not None and self.shape in ("chain", "varying"):
            figures = self.metrics
            if figures.predicted_speedup is None or figures.predicted_speedup_measured_verify is None:
                figures = fold(self.rounds, plain_step_s=costs.plain_pass_s)
            at = self.body()
            tokens = sum(theory.expected_tokens(alpha, round_.k) for round_ in at) / len(at)
            if figures.predicted_speedup is not None and figures.predicted_speedup_measured_verify is not None:
                found += [
                    Prediction("c alone", figures.predicted_speedup, "(1 - α^(k+1)) / (1 - α) / (k c + 1)",
                               f"α {alpha:.3f} and c {figures.draft_cost:.3f} measured in this lane; "
                               "a verifying pass is taken to cost one plain pass"),
                    Prediction("c and v(k)", figures.predicted_speedup_measured_verify,
                               "(1 - α^(k+1)) / (1 - α) / (k c + v(k))",
                               f"and v(k) {figures.verify_cost:.2f}: {self.v_words()}"),
                ]  # fmt: skip
            found.append(
                Prediction("c, v(k) and other time", tokens / self.round_cost(at),
                           "(1 - α^(k+1)) / (1 - α) x plain round / (draft + pass + other)",
                           "and the rest of a round, measured in both lanes")
            )  # fmt: skip
        if self.measured is not None:
            found.append(
                Prediction("measured", self.measured, "tok/s / plain's, over the time both ran",
                           f"{len(self.rounds)} rounds beside {len(self.plain)} plain ones", True)
            )  # fmt: skip
        return tuple(found)

    def v_words(self) -> str:
        """Where v(k) comes from."""
        assert self.costs is not None
        counts = Counter(round_.rows for round_ in self.rounds)
        own = [rows for rows in counts if rows in self.costs.measured]
        if len(own) == len(counts):
            return f"measured in this lane's passes of {_several(sorted(own))} rows"
        return f"passes of {_several(sorted(own))} rows measured here, the others calibrated" if own else "calibrated"

    def lengths(self) -> tuple[LengthPoint, ...]:
        """Predicted speedup of k = 0 (plain) to the longest whose pass is known or lies between known ones."""
        costs, alpha = self.costs, self.alpha
        if costs is None or alpha is None or self.shape not in ("chain", "varying") or costs.plain_round_s <= 0:
            return ()
        limit = max(costs.passes) - self.riders - 1
        tokens = self.position_tokens(limit)
        measured = {k: one.value for k, one in self.beside.beside.items()}
        if self.shape == "chain" and self.k is not None and self.measured is not None:
            measured[self.k] = self.measured
        found = [LengthPoint(0, 1.0, 1.0 if tokens else None, costs.source(1))]
        for k in range(1, limit + 1):
            rows = k + 1 + self.riders
            cost = (costs.draft_s(k) + costs.pass_s(rows) + costs.other_s) / costs.plain_round_s
            known = tokens[k] / cost if tokens else None
            formula = theory.expected_tokens(alpha, k) / cost
            found.append(LengthPoint(k, formula, known, costs.source(rows), self.beside.limit, measured.get(k)))
        return tuple(found)

    def best(self, lengths: Sequence[LengthPoint]) -> tuple[LengthPoint | None, tuple[int, ...]]:
        """The length to use, and those that are not told apart from it."""
        own = next((point for point in lengths if point.k == self.k), None)
        if self.faster is None:
            return max(lengths, key=lambda point: point.speedup, default=None), ()

        def least(point: LengthPoint) -> float:
            one = self.beside.beside.get(point.k)
            return point.predicted if one is None else one.value if one.low is None else one.low

        better = [point for point in lengths if point is not own and self.beside.told_apart(least(point), point.k)]
        best = max(better, key=lambda point: point.speedup, default=own)
        low = self.faster.value if self.faster.low is None else self.faster.low
        near = () if better else tuple(point.k for point in lengths if point is not own and point.speedup >= low)
        return best, near

    def position_tokens(self, limit: int) -> list[float]:
        """Tokens per pass by k up to `limit`: 1 + the chance of 1, 2, ... k tokens accepted.

        Up to the lane's own k as its drafts would have been cut, then on by alpha; along the text where guesses are its.
        """
        if self.shape != "chain" or self.k is None or self.alpha is None:
            return []
        method = METHODS.get(str(self.settings.get("method")))
        if method is not None and (method.follows_text or method.copies):  # where a draft began (hardly) matters
            marks = _marks(self.rounds, self.alpha, self.settings.get("rule") in ("greedy", "match"))
            return [len(marks) / _walk(marks, length) for length in range(max(limit, self.k) + 1)]
        at = [round_.accepted for round_ in self.rounds if round_.k == self.k]
        tokens, survives = [1.0], 1.0
        for place in range(1, max(limit, self.k) + 1):
            survives = sum(n >= place for n in at) / len(at) if place <= self.k else survives * self.alpha
            tokens.append(tokens[-1] + survives)
        return tokens

    def best_note(self, lengths: Sequence[LengthPoint]) -> str:
        """What the best k rests on."""
        if not lengths or self.costs is None:
            return ""
        sources = Counter(
            "from other lanes" if point.source == "calibrated" and not self.calibrated else point.source
            for point in lengths[1:]
        )
        words = f"of k 1 to {lengths[-1].k}: passes {', '.join(f'{n} {source}' for source, n in sources.items())}"
        drafts = len({_depth(round_) for round_ in self.drafting})
        if drafts == 1:
            words += "; only one draft length was timed, other lengths are taken as proportional"
        if self.shape == "chain" and self.k is not None and lengths[-1].k > self.k:
            words += f"; beyond k {self.k} acceptance is taken to go on at α"
        if not self.calibrated and sources.get("interpolated"):
            words += "; measure v(k) to be sure"
        return words

    def rule_of_thumb(self) -> RuleOfThumb | None:
        """alpha k beside the formula; only of chains of one length."""
        if self.shape != "chain" or self.k is None or self.alpha is None or self.costs is None:
            return None
        alpha, k = self.alpha, self.k
        tokens, cost = theory.expected_tokens(alpha, k), self.round_cost(self.body())
        words = (
            f"α k = {alpha:.2f} x {k} = {alpha * k:.2f}. It counts drafted tokens behind a rejection as well: of {k} only "
            f"{tokens - 1:.2f} are expected to stand. It leaves out the target's own token, which makes {tokens:.2f}; and "
            f"it takes a round to cost one plain step, where it costs {cost:.2f}: {tokens:.2f} / {cost:.2f} = "
            f"{tokens / cost:.2f} times plain."
        )
        return RuleOfThumb(alpha * k, tokens, cost, tokens / cost, words)

    # -- words -----------------------------------------------------------------------------------

    def sentence(self, found: Explanation) -> str:
        """One sentence: what takes the most, and what would be better."""
        if not self.drafting:
            why = draft_full_words(self.metrics.draft_full_at, self.metrics.draft_context)
            return f"Nothing was drafted in {len(self.rounds)} rounds, so this lane ran as plain decoding does. {why}".rstrip()
        if self.costs is None:
            return "There is neither a plain lane nor a one-row pass here, so nothing says what drafting is worth."
        fall = found.waterfall
        if fall is None:
            return "The rounds took no time that could be measured, so nothing says what drafting is worth."
        if self.settings.get("check_mode"):
            rate = "" if found.alpha is None else f" at acceptance rate {found.alpha:.2f}"
            return f"Recorded in check mode, whose times say nothing: what stands is {fall.tokens:.2f} tokens per target pass{rate}."
        return f"{self.cause(found, fall)}; {self.advice(found, fall)}."

    def cause(self, found: Explanation, fall: Waterfall) -> str:
        """Name the largest loss."""
        assert self.costs is not None
        tokens = f"{round(self.rows)} tokens" if self.shape == "chain" else f"{self.rows:.1f} tokens on average"
        loss = fall.losses.get(found.main_loss, 0.0) if found.main_loss is not None else 0.0
        if loss < SMALL_LOSS * fall.net:
            return f"Little is lost here: a round costs {fall.cost:.2f} plain rounds and gives {fall.tokens:.2f} tokens"
        if found.main_loss == "verify":
            v = found.v if found.v is not None else 1.0
            return f"Verifying {tokens} costs {_digits(v)} plain passes here"
        if found.main_loss == "draft":
            drafted = sum(round_.k for round_ in self.drafting) / len(self.drafting)
            k = f"{self.k}" if self.k is not None else f"{drafted:.1f}"
            cost = fall.draft * self.costs.plain_round_s / self.costs.plain_pass_s
            dear = f", while verifying costs {_digits(found.v)}" if found.v is not None else ""
            return f"Drafting {k} token{'' if k == '1' else 's'} costs {_digits(cost)} plain passes here{dear}"
        if found.main_loss == "other":
            cost = fall.other * self.costs.plain_round_s / self.costs.plain_pass_s
            return f"What is neither drafting nor a target pass costs {_digits(cost)} plain passes a round more than in plain decoding"
        slow = 1 - fall.net / (fall.tokens / fall.cost)
        return f"Slow rounds take {100 * slow:.0f}% of the speedup here: the machine was busy, or some passes are dearer"

    def advice(self, found: Explanation, fall: Waterfall) -> str:
        """Say what would be better, as far as the formulas can."""
        needs = f"its rounds must give {fall.cost:.2f} tokens to break even and give {fall.tokens:.2f}"
        if self.shape == "tree":
            return needs
        if found.alpha is None or not found.lengths:
            return "nothing was judged, so nothing says which k is best"
        if fall.tokens <= fall.cost and found.measured_speedup is not None and found.measured_speedup > 1:
            return "its rounds' times vary too much to say which k is best"  # by the medians plain wins, measured it does not
        at = f"at acceptance rate {found.alpha:.2f}"
        if self.shape == "chain" and self.faster is None and bool(found.best_k) != bool(found.best_k_formula):
            pays = next(point for point in found.lengths if point.k == (found.best_k or found.best_k_formula))
            speed = pays.by_positions if found.best_k else pays.by_formula
            each = f"k {pays.k} would run at {speed:.2f} times plain" if found.best_k else "no k pays"
            one = "no k pays" if found.best_k else f"k {pays.k} would run at {speed:.2f} times plain"
            return f"by its acceptance at each position {each}, by one rate of {found.alpha:.2f} {one}: what-if replays it"
        if self.shape == "varying":
            best = f"a fixed k of {found.best_k} would be best" if found.best_k else "no fixed k would pay"
            if found.best_k is None:
                return f"{needs}; by the formula {at} no fixed k is told apart from it"
            return f"{needs}; by the formula {at} {best}"
        if not found.best_k:
            return f"{at} no k pays, plain decoding is the fastest"
        if found.best_k == self.k and self.faster is not None and self.faster.spread is None:
            return f"{at} so few rounds tell no other k apart from it"
        if found.best_k == self.k and found.as_good:
            others = ["plain" if not k else f"k {k}" for k in found.as_good]
            return f"{at}, k {self.k} is not told apart from {_listed(others)}"
        if found.best_k == self.k:
            only = " of those whose cost is known" if found.best_k == found.lengths[-1].k else ""
            return f"{at}, k {self.k} is the best here{only}"
        return f"{at} the best k is {found.best_k}"

    def banners(self, found: Explanation) -> tuple[Banner, ...]:
        """What the reader must know, the gravest first."""
        told: list[Banner] = []
        metrics = self.metrics
        rule = self.settings.get("rule")
        if self.faster is not None and self.faster.slower:
            times = f"{self.faster.value:.2f}"
            told.append(Banner("slower", f"{times}x: slower than plain", f"Slower than plain decoding: {times} times its speed."))
        if not RULES.get(str(rule), True):
            told.append(Banner("lossy", "lossy rule", f"The rule {rule} is lossy: the output may differ from the target's own, so its speed "
                                        "is not that of an exact method."))  # fmt: skip
        if metrics.draft_acceptance is not None and metrics.draft_acceptance < LOW_DRAFT_ACCEPTANCE:
            told.append(Banner("draft-acceptance", f"draft acceptance {100 * metrics.draft_acceptance:.0f}%", f"Draft acceptance is {100 * metrics.draft_acceptance:.0f}%: of "
                               f"{metrics.proposed} drafted tokens {metrics.accepted} were kept. Shorter drafts waste less."))  # fmt: skip
        if metrics.draft_share is not None and metrics.draft_share > HIGH_DRAFT_SHARE:
            told.append(Banner("draft-share", f"drafting {100 * metrics.draft_share:.0f}% of the time", f"Drafting takes {100 * metrics.draft_share:.0f}% of the time. A smaller draft, "
                                              "or one that copies, may gain more."))  # fmt: skip
        if metrics.draft_full_at is not None:
            told.append(Banner("draft-full", "draft context full", draft_full_words(metrics.draft_full_at, metrics.draft_context)))
        fall = found.waterfall
        if fall is not None and fall.other / fall.cost > HIGH_OTHER_SHARE:
            told.append(Banner("other-large", f"other time {100 * fall.other / fall.cost:.0f}%", f"{100 * fall.other / fall.cost:.0f}% of the time is neither drafting nor target "
                                              "passes, beyond what plain decoding has: bookkeeping of the drafter, or sampling."))  # fmt: skip
        if self.settings.get("check_mode"):
            told.append(Banner("check-mode", "check mode", "Check mode pads one-row passes: times and speedups say nothing."))
        if self.drafting and not self.plain:
            told.append(Banner("no-plain", "no plain lane", "There is no plain lane to compare with: the speedup is modelled, not measured."
                               if self.costs is not None else "There is no plain lane to compare with."))  # fmt: skip
        few = min(len(self.drafting), len(self.plain)) if self.plain else len(self.drafting)
        if self.drafting and few < FEW_ROUNDS:
            told.append(Banner("few-rounds", f"only {few} rounds", f"Only {few} rounds to go by: the figures may still change much. Ask for more tokens."))  # fmt: skip
        return tuple(told)

    def notes(self, found: Explanation) -> tuple[str, ...]:
        """What the formulas cannot say of this lane."""
        told: list[str] = []
        if self.shape == "tree":
            told.append("Drafts are trees: α counts trials of siblings, and no closed form holds. Only the measurement speaks.")
        if self.shape == "varying":
            lengths = Counter(round_.k for round_ in self.rounds)
            told.append(
                f"Draft lengths vary from {min(lengths)} to {max(lengths)}: the formulas average over them, and take α "
                "to be the same at every length, which a lane that chooses its lengths need not have."
            )
        if self.riders:
            told.append(f"{self.riders} more tokens ride in every pass without being proposed: their rows are in the pass's cost.")
        expected = self.metrics.expected_tokens
        got = self.metrics.tokens_per_target_pass
        if self.shape in ("chain", "varying") and expected is not None and got and abs(got / expected - 1) > NEAR:
            more = "more" if got > expected else "fewer"
            told.append(
                f"{got:.2f} tokens came per pass, {more} than the formula's {expected:.2f} for one α at every position: "
                f"{self.position_words()}"
            )
        if found.costs is not None and self.drafting:
            told += [doubt] if (doubt := found.costs.doubt({point.k + 1 + self.riders for point in found.lengths})) else []
        if found.plain_source and found.plain_source != "plain lane":
            told.append(f"The cost of a plain step is from the {found.plain_source}.")
        return tuple(told)

    def position_words(self) -> str:
        """How acceptance differs along the draft, in numbers."""
        rates = [rate for rate in self.metrics.position_acceptance_conditional if rate is not None]
        if len(rates) < 2:
            return "acceptance is not the same in every round."
        return f"acceptance is {rates[0]:.2f} at the first drafted token and {max(rates[1:]):.2f} at a later one."


def _marks(rounds: Sequence[Round], alpha: float, guesses: bool) -> list[bool]:
    """Whether the drafter guesses each token of the output right; what no draft and no recorded guess tells, by alpha."""
    output: list[int] = []
    marks: list[bool | None] = []
    for round_ in rounds:
        for back, guess in enumerate(reversed(round_.guesses if guesses else ())):
            place = len(output) - 1 - back
            if place >= 0 and marks[place] is None:
                marks[place] = guess.id == output[place]
        emitted = round_.emitted
        marks += [True] * round_.accepted
        if len(emitted) > round_.accepted:
            marks.append(False if round_.k > round_.accepted else None)
        output += emitted
    found, share = [], 0.5
    for mark in marks:
        share += alpha if mark is None else 0.0
        found.append(share >= 1 if mark is None else mark)
        share -= mark is None and share >= 1
    return found


def _walk(marks: Sequence[bool], k: int) -> int:
    """Rounds of drafts of k over an output whose tokens are guessed right or wrong."""
    place = rounds = 0
    while place < len(marks):
        end = min(place + k, len(marks))
        while place < end and marks[place]:
            place += 1
        place += 1  # the target's own
        rounds += 1
    return rounds


def _steady_k(rounds: Sequence[Round]) -> int | None:
    """The one draft length of a lane; None where lengths vary. The end of a run, where few tokens are left, is left out."""
    lengths = [round_.k for round_ in rounds]
    longest = max(lengths, default=0)
    while lengths and lengths[-1] < longest:
        lengths.pop()
    if not longest:
        return None
    usual, count = Counter(lengths).most_common(1)[0]
    return usual if usual == longest and count >= 0.9 * len(lengths) else None


def _depth(round_: Round) -> int:
    """Drafted tokens of a chain, the longest path of a tree."""
    return round_.k if round_.parents is None else max(depths(round_.parents), default=-1) + 1


def _median_by(rounds: Sequence[Round], key: Any, value: Any) -> Any:
    """A function from a round to the median of `value` over the rounds that share its `key`."""
    groups: dict[Any, list[float]] = {}
    for round_ in rounds:
        groups.setdefault(key(round_), []).append(value(round_))
    medians = {name: median(values) for name, values in groups.items()}
    return lambda round_: medians[key(round_)]


def _median_by_length(rounds: Sequence[Round]) -> Any:
    """A function from a round to the median draft time of its drafter and length."""
    return _median_by(rounds, lambda r: (r.drafter, r.k), lambda r: r.draft_s)


def _listed(words: Sequence[str]) -> str:
    """The first words in a row; of many how many more there are."""
    if len(words) > 3:
        return f"{', '.join(words[:2])} and {len(words) - 2} more"
    return " and ".join(", ".join(words).rsplit(", ", 1))


def signed(change: float) -> str:
    """A step's change in two decimals with its sign; what rounds to nothing has none."""
    return f"{change:+.2f}" if abs(change) >= 0.005 else "0.00"


def _digits(value: float) -> str:
    return f"{value:.2f}" if value < 0.095 or 0.95 < value < 1.05 else f"{value:.1f}"


def _several(values: Sequence[int]) -> str:
    if len(values) > 3 and list(values) == list(range(values[0], values[-1] + 1)):
        return f"{values[0]} to {values[-1]}"
    return ", ".join(map(str, values))
