"""The figures of one lane's explanation, from its rounds and costs: waterfall, predictions, draft lengths.

Its histograms and bins are in decoding/details.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

from specview.decoding import theory
from specview.decoding.ledger import Round
from specview.decoding.metrics import Metrics, fold
from specview.decoding.speedup import Speedup
from specview.drafting.registry import METHODS
from specview.lab.explanation import Explanation, LengthPoint, Prediction, RuleOfThumb, Shape, Waterfall
from specview.lab.measured import Measured, MeasuredCosts


@dataclass
class LaneFigures:
    """A lane that is explained: its rounds (one at least), those of plain decoding beside it, and what they cost.

    calibrated says that passes were measured by themselves; faster is its speedup, beside those of lanes that draft alike.
    """

    rounds: Sequence[Round]
    plain: Sequence[Round]
    settings: Mapping[str, Any]
    metrics: Metrics
    costs: MeasuredCosts | None
    calibrated: bool
    faster: Speedup | None
    beside: Mapping[int, Speedup]
    shape: Shape = field(init=False)

    def __post_init__(self) -> None:
        self.drafting = [round_ for round_ in self.rounds if round_.k]
        self.k = _steady_k(self.rounds)
        trees = any(round_.parents is not None for round_ in self.rounds)
        self.shape = "none" if not self.drafting else "tree" if trees else "chain" if self.k is not None else "varying"
        self.chains = self.shape in ("chain", "varying")
        self.alpha = self.metrics.acceptance_rate
        self.measured = None if self.faster is None else self.faster.value
        # The rounds of a chain's own length; of other lanes all.
        self.body = [round_ for round_ in self.rounds if round_.k == self.k] if self.shape == "chain" else self.rounds
        self.rows = fmean(round_.rows for round_ in self.body)
        self.riders = round(fmean(len(round_.riders) for round_ in self.body))
        self.waterfall = self._waterfall()
        fall = self.waterfall
        self.advice = Measured(self.faster, None if fall is None else fall.tokens / fall.cost, self.beside)

    def explanation(self) -> Explanation:
        """All figures; the words are to come."""
        costs, fall, at = self.costs, self.waterfall, self.body
        lengths = self._lengths()
        best, as_good = self._best(lengths)
        by_formula = max(lengths, key=lambda point: point.by_formula, default=None)
        main, loss = max(fall.losses.items(), key=lambda item: item[1]) if fall is not None else (None, 0.0)
        found = Explanation(
            self.shape, "", (), len(self.rounds),
            k=self.k if self.shape == "chain" else self.metrics.proposed / len(self.rounds) if self.drafting else None,
            rows=self.rows, alpha=self.alpha, tokens_per_pass=self.metrics.tokens_per_target_pass,
            plain_source=self._plain_source(),
            measured_speedup=self.measured, speedup_spread=None if self.faster is None else self.faster.spread,
            waterfall=fall, main_loss=main if loss > 0 else None, predictions=self._predictions(),
            best_k=None if best is None else best.k, best_k_speedup=None if best is None else best.speedup,
            best_k_formula=None if by_formula is None else by_formula.k, best_k_note=self._best_note(lengths),
            as_good=as_good, lengths=lengths, rule_of_thumb=self._rule_of_thumb(), costs=costs,
        )  # fmt: skip
        if costs is None:
            return found
        found = replace(found, v_source=costs.source(round(self.rows)) if self.shape == "chain" else None)
        if not self.drafting:
            return found
        drafted = [round_ for round_ in at if round_.k]
        each = sum(map(_median_draft(drafted), drafted)) / sum(round_.longest for round_ in drafted)
        return replace(
            found,
            c=each / costs.plain_pass_s,
            v=fmean(costs.pass_s(round_.rows) for round_ in at) / costs.plain_pass_s,
            break_even_tokens=None if fall is None else fall.cost,
            break_even_alpha=theory.break_even([round_.k for round_ in at], self._round_cost(at)) if self.chains else None,
        )

    def _waterfall(self) -> Waterfall | None:
        """The lane's own, of median phases and mean tokens over the time in which both lanes ran."""
        costs, rounds = self.costs, self.rounds
        if costs is None or costs.plain_round_s <= 0:
            return None
        if self.plain:
            both = min(rounds[-1].t, self.plain[-1].t) * (1 + 1e-9)
            rounds = [round_ for index, round_ in enumerate(rounds) if not index or round_.t <= both]
        unit = costs.plain_round_s
        tokens = fmean(len(round_.emitted) for round_ in rounds)
        draft = fmean(map(_median_draft(rounds), rounds)) / unit
        verify = fmean(map(_medians(rounds, lambda r: r.rows, lambda r: r.verify_s), rounds))
        other = fmean(map(_medians(rounds, lambda r: r.k > 0, lambda r: r.other_s), rounds))
        verify, other = (verify - costs.plain_pass_s) / unit, (other - costs.plain_other_s) / unit
        cost = 1 + draft + verify + other
        if cost <= 0:
            return None
        return Waterfall(tokens, draft, verify, other, tokens / cost if self.measured is None else self.measured)

    def _plain_source(self) -> str:
        if self.costs is None:
            return ""
        return "plain lane" if self.plain else "own one-row rounds" if 1 in self.costs.measured else "calibration"

    def _round_cost(self, rounds: Sequence[Round]) -> float:
        """What these rounds cost on average by the median costs, in plain rounds."""
        costs = self.costs
        assert costs is not None
        return fmean(costs.draft_s(one.k) + costs.pass_s(one.rows) + costs.other_s for one in rounds) / costs.plain_round_s

    def _predictions(self) -> tuple[Prediction, ...]:
        """The closed form with c alone, with c and v(k), with all a round's time; then the measurement."""
        costs, alpha = self.costs, self.alpha
        found: list[Prediction] = []
        if costs is not None and alpha is not None and self.chains:
            figures = self.metrics
            if figures.predicted_speedup is None or figures.predicted_speedup_measured_verify is None:
                figures = fold(self.rounds, plain_step_s=costs.plain_pass_s)
            if figures.predicted_speedup is not None and figures.predicted_speedup_measured_verify is not None:
                found += [
                    Prediction("c alone", figures.predicted_speedup, "(1 - α^(k+1)) / (1 - α) / (k c + 1)",
                               f"α {alpha:.3f} and c {figures.draft_cost:.3f} measured in this lane; "
                               "a verifying pass is taken to cost one plain pass"),
                    Prediction("c and v(k)", figures.predicted_speedup_measured_verify,
                               "(1 - α^(k+1)) / (1 - α) / (k c + v(k))",
                               f"and v(k) {figures.verify_cost:.2f}: {self._v_words()}"),
                ]  # fmt: skip
            tokens = fmean(theory.expected_tokens(alpha, round_.k) for round_ in self.body)
            found.append(
                Prediction("c, v(k) and other time", tokens / self._round_cost(self.body),
                           "(1 - α^(k+1)) / (1 - α) x plain round / (draft + pass + other)",
                           "and the rest of a round, measured in both lanes")
            )  # fmt: skip
        if self.measured is not None:
            found.append(
                Prediction("measured", self.measured, "tok/s / plain's",
                           f"{len(self.rounds)} rounds beside {len(self.plain)} plain ones", True)
            )  # fmt: skip
        return tuple(found)

    def _v_words(self) -> str:
        """Where v(k) comes from."""
        assert self.costs is not None
        counts = {round_.rows for round_ in self.rounds}
        own = sorted(counts & self.costs.measured)
        if len(own) == len(counts):
            return f"measured in this lane's passes of {_several(own)} rows"
        return f"passes of {_several(own)} rows measured here, the others calibrated" if own else "calibrated"

    # -- draft lengths ---------------------------------------------------------------------------

    def _lengths(self) -> tuple[LengthPoint, ...]:
        """Predicted speedup of k = 0 (plain) to the longest whose pass is known or lies between known ones."""
        costs, alpha = self.costs, self.alpha
        if costs is None or alpha is None or not self.chains or costs.plain_round_s <= 0:
            return ()
        limit = max(costs.passes) - self.riders - 1
        tokens = self._position_tokens(limit)
        measured = {k: one.value for k, one in self.beside.items()}
        if self.k is not None and self.measured is not None:
            measured[self.k] = self.measured
        found = [LengthPoint(0, 1.0, 1.0 if tokens else None, costs.source(1))]
        for k in range(1, limit + 1):
            rows = k + 1 + self.riders
            cost = (costs.draft_s(k) + costs.pass_s(rows) + costs.other_s) / costs.plain_round_s
            known = tokens[k] / cost if tokens else None
            formula = theory.expected_tokens(alpha, k) / cost
            found.append(LengthPoint(k, formula, known, costs.source(rows), self.advice.limit, measured.get(k)))
        return tuple(found)

    def _best(self, lengths: Sequence[LengthPoint]) -> tuple[LengthPoint | None, tuple[int, ...]]:
        """The length to use, and those that are not told apart from it."""
        own = next((point for point in lengths if point.k == self.k), None)
        if self.faster is None:
            return max(lengths, key=lambda point: point.speedup, default=None), ()

        def least(point: LengthPoint) -> float:
            one = self.beside.get(point.k)
            return point.predicted if one is None else one.value if one.low is None else one.low

        better = [point for point in lengths if point is not own and self.advice.told_apart(least(point), point.k)]
        best = max(better, key=lambda point: point.speedup, default=own)
        low = self.faster.value if self.faster.low is None else self.faster.low
        near = () if better else tuple(point.k for point in lengths if point is not own and point.speedup >= low)
        return best, near

    def _position_tokens(self, limit: int) -> list[float]:
        """Tokens per pass by k up to `limit`: 1 + the chance of 1, 2, ... k tokens accepted.

        Up to the lane's own k as its drafts would have been cut, then on by alpha; along the text where guesses are its.
        """
        if self.k is None or self.shape != "chain" or self.alpha is None:
            return []
        most = max(limit, self.k)
        method = METHODS.get(str(self.settings.get("method")))
        if method is not None and (method.follows_text or method.copies):  # where a draft began (hardly) matters
            marks = _marks(self.rounds, self.alpha, self.settings.get("rule") in ("greedy", "match"))
            return [len(marks) / _walk(marks, length) for length in range(most + 1)]
        tokens, survives = [1.0], 1.0
        for place in range(1, most + 1):
            survives = fmean(one.accepted >= place for one in self.body) if place <= self.k else survives * self.alpha
            tokens.append(tokens[-1] + survives)
        return tokens

    def _best_note(self, lengths: Sequence[LengthPoint]) -> str:
        """What the best k rests on."""
        if not lengths:
            return ""
        sources = Counter(
            "from other lanes" if point.source == "calibrated" and not self.calibrated else point.source for point in lengths[1:]
        )
        words = f"of k 1 to {lengths[-1].k}: passes {', '.join(f'{n} {source}' for source, n in sources.items())}"
        if len({round_.longest for round_ in self.drafting}) == 1:
            words += "; only one draft length was timed, other lengths are taken as proportional"
        if self.shape == "chain" and self.k is not None and lengths[-1].k > self.k:
            words += f"; beyond k {self.k} acceptance is taken to go on at α"
        return words + ("; measure v(k) to be sure" if not self.calibrated and sources.get("interpolated") else "")

    def _rule_of_thumb(self) -> RuleOfThumb | None:
        """alpha k beside the formula; only of chains of one length."""
        if self.shape != "chain" or self.k is None or self.alpha is None or self.costs is None:
            return None
        alpha, k = self.alpha, self.k
        tokens, cost = theory.expected_tokens(alpha, k), self._round_cost(self.body)
        words = (
            f"α k = {alpha:.2f} x {k} = {alpha * k:.2f}. It counts drafted tokens behind a rejection as well: of {k} only "
            f"{tokens - 1:.2f} are expected to stand. It leaves out the target's own token, which makes {tokens:.2f}; and "
            f"it takes a round to cost one plain step, where it costs {cost:.2f}: {tokens:.2f} / {cost:.2f} = "
            f"{tokens / cost:.2f} times plain."
        )
        return RuleOfThumb(alpha * k, tokens, cost, tokens / cost, words)


def _marks(rounds: Sequence[Round], alpha: float, guesses: bool) -> list[bool]:
    """Whether the drafter guesses each token of the output right; what no draft and no recorded guess tells, by alpha."""
    output: list[int] = []
    marks: list[bool | None] = []
    for round_ in rounds:
        for back, guess in enumerate(reversed(round_.guesses if guesses else ()), start=1):
            place = len(output) - back
            if place >= 0 and marks[place] is None:
                marks[place] = guess.id == output[place]
        marks += [True] * round_.accepted
        if len(round_.emitted) > round_.accepted:
            marks.append(False if round_.k > round_.accepted else None)
        output += round_.emitted
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
    longest = max(lengths)
    while lengths[-1] < longest:
        lengths.pop()
    return longest if longest and lengths.count(longest) >= 0.9 * len(lengths) else None


def _medians(
    rounds: Sequence[Round], key: Callable[[Round], Hashable], value: Callable[[Round], float]
) -> Callable[[Round], float]:
    """A function from a round to the median of `value` over the rounds that share its `key`."""
    groups: dict[Hashable, list[float]] = {}
    for round_ in rounds:
        groups.setdefault(key(round_), []).append(value(round_))
    medians = {name: median(values) for name, values in groups.items()}
    return lambda round_: medians[key(round_)]


def _median_draft(rounds: Sequence[Round]) -> Callable[[Round], float]:
    """The same of draft times, over rounds of one drafter and length."""
    return _medians(rounds, lambda r: (r.drafter, r.k), lambda r: r.draft_s)


def _several(values: Sequence[int]) -> str:
    if len(values) > 3 and list(values) == list(range(values[0], values[-1] + 1)):
        return f"{values[0]} to {values[-1]}"
    return ", ".join(map(str, values))
