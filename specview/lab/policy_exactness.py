"""The toy through the product's own loop: every length policy, `auto` and `cascade`, under each rule that claims exactness.

Runs are long, so that policies come into all their states, and on a clock that moves with what is drafted, so that
what they learn from times hangs on tokens that were not judged, as it does on a machine. A run is cut into sequences
of the toy's length, which are compared with the target's exact distribution after the token before each. Apart from
that the first token of each round behind one that left tokens unjudged is compared: those are what must tell nothing.
A policy of this lab's own looks at such tokens as hard as it can; it is exact all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specview.decoding.costs import Costs
from specview.decoding.interfaces import Forward, LengthPolicy
from specview.decoding.ledger import Round
from specview.decoding.loop import Sequence as TokenSequence
from specview.decoding.loop import decode
from specview.decoding.sampling import SamplingParams
from specview.decoding.verification import RULES
from specview.drafting.method import DrafterContext
from specview.drafting.policies import POLICIES, Constant
from specview.drafting.registry import DEFAULT_METHOD, METHODS
from specview.lab.exact_statistics import (
    SIGNIFICANCE,
    Counts,
    expected_variation,
    goodness_of_fit,
    sampled_variation,
    variation_bound,
)
from specview.lab.exactness import check_samples
from specview.lab.toy import BOS, Floats, Toy, ToySettings, logits_of, make_toy, target_distribution
from specview.settings.options import resolve

SAMPLES = 4_000
RUN = 64  # sequences of a run
COMBINED = tuple(sorted(name for name, method in METHODS.items() if method.combines))
NOSY = "nosy"
"""The lab's own policy: drafts on where the first token behind a refusal was one of the first half, else not."""

EXACT_RULES = tuple(rule for rule, exact in RULES.items() if exact and rule != "greedy")
CONTROL = ("naive", "constant")
"""A rule that is wrong, which the test must catch."""

# One-row passes take 1. Drafting pays now and then, so that what learns from times drafts now and then.
_PASS, _ROW, _STEP = 0.55, 0.45, 0.1
_TOUCHY: dict[str, dict[str, Any]] = {
    "confidence": {"threshold": 0.2},
    "off-below": {"threshold": 0.3, "window": 1, "retry": 1},
    "adaptive": {"retry": 1},
}
"""Options under which a policy's lengths vary here, and leave tokens unjudged."""

ShouldStop = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """A rule with a length policy (or a combined method): its sequences against the target.

    behind_p is the chi-square p of the first tokens of `behind` rounds that followed unjudged tokens; line the total
    variation that so many true samples show on average.
    """

    rule: str
    policy: str
    samples: int
    tv: float
    line: float
    bound: float
    chi2_p: float | None
    behind: int
    behind_p: float | None
    tokens_per_pass: float

    @property
    def lossy(self) -> bool:
        """Whether the rule does not claim to be exact."""
        return not RULES[self.rule]

    @property
    def differs(self) -> bool:
        """Whether the samples are not the target's."""
        refused = any(p is not None and p <= SIGNIFICANCE for p in (self.chi2_p, self.behind_p))
        return refused or self.tv > self.bound

    @property
    def words(self) -> str:
        """The verdict in words."""
        if self.chi2_p is None:
            return "too few samples to test"
        if self.lossy:
            return "lossy, and caught" if self.differs else "lossy, not caught: too few samples"
        return "DIFFERS from the target" if self.differs else "no difference from the target found"


@dataclass(slots=True)
class PoliciesResult:
    """All of them as far as the experiment went, the control last."""

    settings: ToySettings
    seed: int
    asked: int
    cases: list[PolicyResult] = field(default_factory=list)
    seconds: float = 0.0
    stopped: bool = False

    @property
    def samples(self) -> int:
        """Sequences that every one has."""
        return min((one.samples for one in self.cases), default=0)

    @property
    def holds(self) -> bool:
        """Whether none that claims to be exact differs from the target."""
        return not any(one.differs for one in self.cases if not one.lossy)

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        exact = [one for one in self.cases if not one.lossy]
        wrong = [f"{one.rule} with {one.policy}" for one in exact if one.differs]
        tested = f"In {self.samples:,} sequences each"
        if wrong:
            return f"{tested}, {', '.join(wrong)} differs from the target: this build is NOT exact."
        control = next((one for one in self.cases if one.lossy), None)
        text = f"{tested}, {len(exact)} pairs of a rule and a length policy or method show no difference from the target"
        if control is not None:
            text += f"; {control.rule} with {control.policy}, the control, was {'' if control.differs else 'NOT '}caught"
        return f"{text}."


OnCase = Callable[[PoliciesResult, str, float], None]
"""Called with the result so far, what is under way in words, and the fraction of all that is done."""


def cases() -> list[tuple[str, str]]:
    """Rule and policy (or combined method) of all that is tested, the control last."""
    return [(rule, name) for rule in EXACT_RULES for name in (*POLICIES, *COMBINED, NOSY)] + [CONTROL]


def run_policies(
    settings: ToySettings | None = None,
    samples: int = SAMPLES,
    seed: int = 0,
    on_case: OnCase = lambda result, text, fraction: None,
    should_stop: ShouldStop = lambda: False,
    chosen: Sequence[tuple[str, str]] = (),
) -> PoliciesResult:
    """Draw at least `samples` sequences of each case by the product's loop, and compare them.

    chosen: rules and policies, all where it is empty. A stop keeps what is whole.
    """
    check_samples(samples)
    toy = make_toy(settings)
    result = PoliciesResult(toy.settings, seed, samples)
    began = time.monotonic()
    chosen = chosen or cases()
    for index, (rule, name) in enumerate(chosen):
        work = _Case(toy, rule, name)
        state = int(np.random.SeedSequence([seed, 17, index]).generate_state(1, np.uint64)[0])
        while work.samples < samples:
            on_case(result, f"{rule} with {name}", (index + work.samples / samples) / len(chosen))
            if should_stop():
                result.stopped = True
                return result
            work.run((state + work.runs) % 2**63)
        result.cases.append(work.result())
        result.seconds = time.monotonic() - began
    return result


class _Nosy(Constant):
    """See NOSY."""

    def __init__(self, vocab: int) -> None:
        super().__init__({})
        self._vocab = vocab
        self._on = True

    def budget(self) -> int:
        """All or nothing."""
        return self._k if self._on else 0

    def observe(self, round_: Round) -> None:
        """Look at what nobody may learn from."""
        first = next((token.id for token in round_.drafted if token.verdict == "ignored"), 0)
        self._on = first < self._vocab / 2


class _Clock:
    """A clock that moves by what is done."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class _TableSession:
    """A sequence of a model that is a table of logits [last token, next]; each row and pass takes its time."""

    def __init__(self, rows: Floats, clock: _Clock, pass_s: float, row_s: float) -> None:
        self._rows, self._clock, self._pass_s, self._row_s = rows, clock, pass_s, row_s
        self.length = 0

    def prefill(self, tokens: Sequence[int], *_: Any) -> None:
        self.length = len(tokens)

    def forward(self, tokens: Sequence[int], parents: Any = None, features: Any = ()) -> Forward:
        self.length += len(tokens)
        self._clock.now += self._pass_s + self._row_s * len(tokens)
        return Forward(self._rows[list(tokens)])

    def truncate(self, length: int) -> None:
        self.length = length

    def synchronize(self) -> None:
        pass

    def close(self) -> None:
        pass


class _TableEngine:
    """What a draft model is made of."""

    def __init__(self, rows: Floats, clock: _Clock, context_length: int) -> None:
        self._rows, self._clock = rows, clock
        self.vocab_size = rows.shape[1]
        self.context_length = context_length

    def new_session(self, max_length: int) -> _TableSession:
        return _TableSession(self._rows, self._clock, _STEP, 0.0)


class _Case:
    """One rule and policy: draws runs and counts."""

    def __init__(self, toy: Toy, rule: str, name: str) -> None:
        self.toy, self.rule, self.name = toy, rule, name
        self.runs = self.samples = 0
        self._length = RUN * toy.length
        self._clock = _Clock()
        self._target = logits_of(toy.target)
        self._engine: Any = _TableEngine(logits_of(toy.draft), self._clock, self._length + toy.settings.k + 2)
        self._counts: Counts = np.zeros((toy.vocab, toy.settings.outcomes), dtype=np.int64)
        self._behind: Counts = np.zeros((toy.vocab, toy.vocab), dtype=np.int64)
        self._rounds = 0
        self._weights = toy.vocab ** np.arange(toy.length - 1, -1, -1)

    def run(self, seed: int) -> None:
        """One run of `RUN` sequences, counted."""
        sampling = SamplingParams(temperature=1.0, seed=seed)
        costs = Costs({rows: _PASS + _ROW * rows for rows in range(1, self.toy.settings.k + 2)})
        method = METHODS[self.name if self.name in COMBINED else DEFAULT_METHOD]
        assert method.make is not None
        context = DrafterContext(
            method.resolve({}), self._engine.context_length, self.toy.vocab, self._engine, rule=self.rule, costs=costs
        )
        drafter = method.make(context)
        kind = POLICIES.get(self.name, POLICIES["constant"])
        policy: LengthPolicy = kind.make(resolve(kind.options, _TOUCHY.get(kind.name, {}), kind.name), costs)
        if self.name == NOSY:
            policy = _Nosy(self.toy.vocab)
        policy.start(self.toy.settings.k)
        drafter.start([BOS], sampling)
        sequence = TokenSequence([BOS])
        target: Any = _TableSession(self._target, self._clock, _PASS, _ROW)
        last: int | None = None
        for round_ in decode(
            target,
            sequence,
            rule=self.rule,
            sampling=sampling,
            max_tokens=self._length,
            drafter=drafter,
            policy=policy,
            clock=self._clock,
        ):
            costs.observe(round_)
            if last is not None:
                self._behind[last, round_.emitted[0]] += 1
            last = round_.emitted[-1] if round_.judged < round_.k else None
            self._rounds += 1
        drafter.close()
        tokens = np.array(sequence.output).reshape(RUN, self.toy.length)
        before = np.concatenate([[BOS], tokens[:-1, -1]])
        np.add.at(self._counts, (before, tokens @ self._weights), 1)
        self.runs += 1
        self.samples += RUN

    def result(self) -> PolicyResult:
        """What the runs so far say."""
        expected = np.stack([target_distribution(self.toy, start) for start in range(self.toy.vocab)])
        p = (expected * (self._counts.sum(axis=1, keepdims=True) / self.samples)).ravel()
        counts, behind = self._counts.ravel(), int(self._behind.sum())
        first = self.toy.target * (self._behind.sum(axis=1, keepdims=True) / max(behind, 1))
        return PolicyResult(
            self.rule,
            self.name,
            self.samples,
            tv=sampled_variation(counts, p),
            line=expected_variation(p, self.samples),
            bound=variation_bound(p, self.samples),
            chi2_p=goodness_of_fit(counts, p)[0],
            behind=behind,
            behind_p=goodness_of_fit(self._behind.ravel(), first.ravel())[0],
            tokens_per_pass=self.samples * self.toy.length / self._rounds,
        )


def policies_document(result: PoliciesResult) -> dict[str, Any]:
    """The experiment as a JSON document."""
    settings = result.settings
    return {
        "samples": result.samples,
        "asked": result.asked,
        "stopped": result.stopped,
        "seed": result.seed,
        "toy": {
            "vocab": settings.vocab,
            "length": settings.length,
            "k": settings.k,
            "model_seed": settings.model_seed,
            "outcomes": settings.outcomes,
        },
        "cases": [
            {
                "rule": one.rule,
                "policy": one.policy,
                "lossy": one.lossy,
                "samples": one.samples,
                "tv": one.tv,
                "expected_tv": one.line,
                "tv_bound": one.bound,
                "chi2_p": one.chi2_p,
                "behind_unjudged": one.behind,
                "behind_unjudged_p": one.behind_p,
                "tokens_per_pass": one.tokens_per_pass,
                "differs": one.differs,
                "verdict": one.words,
            }
            for one in result.cases
        ],
        "significance": SIGNIFICANCE,
        "holds": result.holds,
        "verdict": result.sentence,
        "seconds": result.seconds,
    }
