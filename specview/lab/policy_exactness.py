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
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from specview.decoding.costs import Costs
from specview.decoding.interfaces import Forward, LengthPolicy
from specview.decoding.ledger import Round
from specview.decoding.loop import Sequence as TokenSequence
from specview.decoding.loop import decode
from specview.decoding.sampling import SamplingParams
from specview.decoding.verification import RULES, is_lossy
from specview.drafting.method import DrafterContext
from specview.drafting.policies import POLICIES, Constant
from specview.drafting.registry import DEFAULT_METHOD, METHODS
from specview.files.report import Report, Table, Text
from specview.files.schema import plain
from specview.files.tables import Column
from specview.lab import exact_statistics as statistics
from specview.lab.exactness import ShouldStop, check_samples
from specview.lab.toy import BOS, Toy, ToySettings, logits_of, make_toy, target_distribution
from specview.settings.options import resolve

SAMPLES = 4_000
RUN = 64  # sequences of a run
COMBINED = tuple(sorted(name for name, method in METHODS.items() if method.combines))
NOSY = "nosy"
"""The lab's own policy: drafts on where the first token behind a refusal was one of the first half, else not."""

EXACT_RULES = tuple(rule for rule in RULES if not is_lossy(rule) and rule != "greedy")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult(statistics.Fit):
    """A rule with a length policy (or a combined method): its sequences against the target.

    behind_unjudged_p is the chi-square p of the first tokens of as many rounds that followed unjudged tokens.
    """

    policy: str
    behind_unjudged: int
    behind_unjudged_p: float | None
    tokens_per_pass: float

    @property
    def differs(self) -> bool:
        """Whether the samples, or what followed unjudged tokens, are not the target's."""
        return any(map(statistics.refused, (self.chi2_p, self.behind_unjudged_p))) or self.tv > self.tv_bound

    @property
    def detail(self) -> str:
        """What a verdict rests on."""
        return ": too few samples" if self.outcome == "not caught" else ""

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON values."""
        found = asdict(self) | {"lossy": self.lossy, "differs": self.differs, "verdict": self.words}
        return {key: value for key, value in found.items() if key != "freedom"}


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
        text = f"{tested}, {len(exact)} pairs of a rule and a length policy or method show no difference from the target"
        for control in self.cases:
            if control.lossy:
                text += f"; {control.rule} with {control.policy}, the control, was {'' if control.differs else 'NOT '}caught"
        return f"{text}."

    @property
    def verdict(self) -> Text:
        """The sentence, and how it is meant."""
        caught = any(one.lossy and one.differs for one in self.cases)
        return statistics.verdict(self.sentence, self.holds, caught, self.stopped)


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
            work.run((state + work.samples // RUN) % 2**63)
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

    def __init__(self, rows: statistics.Floats, clock: _Clock, pass_s: float, row_s: float) -> None:
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

    def __init__(self, rows: statistics.Floats, clock: _Clock, context_length: int) -> None:
        self._rows, self._clock = rows, clock
        self.vocab_size = rows.shape[1]
        self.context_length = context_length

    def new_session(self, max_length: int) -> _TableSession:
        return _TableSession(self._rows, self._clock, _STEP, 0.0)


class _Case:
    """One rule and policy: draws runs and counts."""

    def __init__(self, toy: Toy, rule: str, name: str) -> None:
        self.toy, self.rule, self.name = toy, rule, name
        self.samples = self.rounds = 0
        self.length = RUN * toy.length
        self.clock = _Clock()
        self.counts = np.zeros((toy.vocab, toy.settings.outcomes), dtype=np.int64)
        self.behind = np.zeros((toy.vocab, toy.vocab), dtype=np.int64)

    def run(self, seed: int) -> None:
        """One run of `RUN` sequences, counted by the token before each."""
        toy, k = self.toy, self.toy.settings.k
        sampling = SamplingParams(temperature=1.0, seed=seed)
        costs = Costs({rows: _PASS + _ROW * rows for rows in range(1, k + 2)})
        method = METHODS[self.name if self.name in COMBINED else DEFAULT_METHOD]
        assert method.make is not None
        draft: Any = _TableEngine(logits_of(toy.draft), self.clock, self.length + k + 2)
        drafter = method.make(
            DrafterContext(method.resolve({}), draft.context_length, toy.vocab, draft, rule=self.rule, costs=costs)
        )
        kind = POLICIES.get(self.name, POLICIES["constant"])
        policy: LengthPolicy = kind.make(resolve(kind.options, _TOUCHY.get(kind.name, {}), kind.name), costs)
        if self.name == NOSY:
            policy = _Nosy(toy.vocab)
        policy.start(k)
        drafter.start([BOS], sampling)
        sequence = TokenSequence([BOS])
        target: Any = _TableSession(logits_of(toy.target), self.clock, _PASS, _ROW)
        last: int | None = None
        for round_ in decode(
            target, sequence, rule=self.rule, sampling=sampling, max_tokens=self.length, drafter=drafter, policy=policy,
            clock=self.clock,
        ):  # fmt: skip
            costs.observe(round_)
            if last is not None:
                self.behind[last, round_.emitted[0]] += 1
            last = round_.emitted[-1] if round_.judged < round_.k else None
            self.rounds += 1
        drafter.close()
        tokens = np.array(sequence.output).reshape(RUN, toy.length)
        before = np.concatenate([[BOS], tokens[:-1, -1]])
        np.add.at(self.counts, (before, toy.numbers_of(tokens)), 1)
        self.samples += RUN

    def result(self) -> PolicyResult:
        """What the runs so far say: both tables of counts against the target's, row by row after the token before."""
        toy, behind = self.toy, int(self.behind.sum())
        outcomes = np.stack([target_distribution(toy, start) for start in range(toy.vocab)])
        p = outcomes * (self.counts.sum(axis=1, keepdims=True) / self.samples)
        first = toy.target * (self.behind.sum(axis=1, keepdims=True) / max(behind, 1))
        return PolicyResult.of(
            self.rule,
            self.counts.ravel(),
            p.ravel(),
            policy=self.name,
            behind_unjudged=behind,
            behind_unjudged_p=statistics.goodness_of_fit(self.behind.ravel(), first.ravel())[0],
            tokens_per_pass=self.samples * toy.length / self.rounds,
        )


COLUMNS = (
    Column("case", "rule and policy", f"auto and cascade are methods; {NOSY} is no policy of the program's: it looks at unjudged "
                                      "tokens as hard as it can"),
    Column("verdict", "verdict"),
    Column("tv", "TV", statistics.TV_TIP, 4),
    Column("expected_tv", "1/√N line", "What as many true samples show on average", 4),
    Column("chi2_p", "χ² p", statistics.CHI2_TIP, 3, form=statistics.p_text),
    Column("behind_unjudged", "behind unjudged", "Rounds after one that left drafted tokens unjudged", 0),
    Column("behind_unjudged_p", "their χ² p", "Of the first tokens of those rounds being the target's", 3, form=statistics.p_text),
    Column("tokens_per_pass", "tok/pass", "Emitted / target passes", 2),
)  # fmt: skip
"""Of one rule with one policy."""


def rows_of(result: PoliciesResult) -> list[dict[str, Any]]:
    """A row under `COLUMNS` for each case."""
    return [one.as_dict() | {"case": f"{statistics.labelled(one.rule)}, {one.policy}"} for one in result.cases]


def policies_report(result: PoliciesResult) -> Report:
    """The experiment for people, and its document."""
    settings = result.settings
    about = (
        f"Toy: {settings.vocab} tokens, length {settings.length}, k {settings.k}, model seed {settings.model_seed}, by the "
        f"program's own loop; {result.samples:,} sequences each, {result.seconds:.1f} s"
    )
    note = (
        "behind unjudged: rounds after one that left drafted tokens unjudged, and the p of their first tokens being the "
        f"target's. {NOSY} is no policy of the program's: it looks at such tokens as hard as it can."
    )
    table = Table(COLUMNS, rows_of(result), name="policies-proof", identity="case")
    return Report("", [Text(about), table, Text(note, "note"), result.verdict],
                  plain(policies_document(result)))  # fmt: skip


def policies_document(result: PoliciesResult) -> dict[str, Any]:
    """The experiment as a JSON document."""
    return {
        "samples": result.samples,
        "asked": result.asked,
        "stopped": result.stopped,
        "seed": result.seed,
        "toy": result.settings.as_dict(),
        "cases": [one.as_dict() for one in result.cases],
        "significance": statistics.SIGNIFICANCE,
        "holds": result.holds,
        "verdict": result.sentence,
        "seconds": result.seconds,
    }
