"""What an exactness test of a real pair found: results, the verdict in sentences, and the JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from specview.errors import UsageError
from specview.lab.exact_statistics import POWER, SIGNIFICANCE, p_text
from specview.racing.settings import RunSettings
from specview.settings.events import Equality

SAMPLES = 2_000
MIN_SAMPLES, MAX_SAMPLES = 100, 1_000_000
TOKENS = 3
MIN_TOKENS, MAX_TOKENS = 2, 8
GREEDY_TOKENS = 64
MAX_GREEDY_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class PairSettings:
    """How much is tested: continuations of each sampler, their tokens, and the greedy run's."""

    samples: int = SAMPLES
    tokens: int = TOKENS
    greedy_tokens: int = GREEDY_TOKENS

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        if not MIN_SAMPLES <= self.samples <= MAX_SAMPLES:
            raise UsageError(f"samples is {self.samples}.", f"Use {MIN_SAMPLES} to {MAX_SAMPLES:,} continuations.")
        if not MIN_TOKENS <= self.tokens <= MAX_TOKENS:
            raise UsageError(
                f"tokens is {self.tokens}.",
                f"Use {MIN_TOKENS} to {MAX_TOKENS}: a continuation of one token drafts nothing.",
            )
        if not 1 <= self.greedy_tokens <= MAX_GREEDY_TOKENS:
            raise UsageError(f"greedy tokens is {self.greedy_tokens}.", f"Use 1 to {MAX_GREEDY_TOKENS}.")


@dataclass(frozen=True, slots=True)
class DepthTest:
    """Two samples compared over their first `depth` tokens.

    cells are outcomes (rare ones pooled with their siblings); permutation_p and bound are of the total variation: the
    share of random dealings as far apart, and what 99 in 100 of them stay under. least_caught is the smallest total
    variation over the cells that the chi-square test would have caught.
    """

    depth: int
    cells: int
    tv: float
    chi2_p: float | None
    permutation_p: float | None
    bound: float | None
    least_caught: float | None


@dataclass(frozen=True, slots=True)
class Bias:
    """A lossy rule's total variation: by its closed form, and as sampled.

    closed is from the cached p and q: the mean of max(0, r/p - 1) over plain continuations, r the rule's own exact
    probability of each; measured is the difference of how often the two samplers give a continuation that the rule
    favours (r > p), whose expectation is that very total variation. error is the standard error of their difference,
    and p says how well they agree. first_token is the exact figure of the first token alone.
    """

    first_token: float
    closed: float
    measured: float
    error: float
    p: float

    @property
    def agrees(self) -> bool:
        """Whether the sampled bias is the closed form's."""
        return self.p > SIGNIFICANCE


@dataclass(frozen=True, slots=True)
class RuleResult:
    """One rule's continuations against plain decoding's."""

    name: str
    lossy: bool
    samples: int
    tests: tuple[DepthTest, ...]
    judged: int
    accepted: int
    emitted: int
    rounds: int
    bias: Bias | None = None

    @property
    def differs(self) -> bool | None:
        """Whether the chi-square tests found a difference, over all depths together; None where none could be made."""
        p = self.p
        return None if p is None else p <= SIGNIFICANCE

    @property
    def p(self) -> float | None:
        """The smallest p of the tests, times their number (Bonferroni)."""
        found = [test.chi2_p for test in self.tests if test.chi2_p is not None]
        return min(1.0, min(found) * len(self.tests)) if found else None

    @property
    def least_caught(self) -> float | None:
        """The smallest total variation, over the first token, that would have been caught."""
        return self.tests[0].least_caught if self.tests else None

    @property
    def holds(self) -> bool:
        """Whether it came out as it should: exact rules without a difference, lossy ones by their closed form."""
        if self.lossy:
            return self.bias is None or self.bias.agrees
        return self.differs is not True

    @property
    def words(self) -> str:
        """The verdict in words."""
        if self.differs is None:
            return "too few continuations to test"
        p = f"p {p_text(self.p)}" + (f" over {len(self.tests)} depths" if len(self.tests) > 1 else "")
        if not self.lossy:
            return f"DIFFERS from plain decoding ({p})" if self.differs else f"no difference from plain found ({p})"
        text = f"lossy, and caught ({p})" if self.differs else f"lossy, not caught ({p}, not under {SIGNIFICANCE:g})"
        if self.bias is not None:
            agreement = "agreeing with" if self.bias.agrees else "NOT agreeing with"
            text += f"; bias {self.bias.measured:.3f} measured, {agreement} its closed form {self.bias.closed:.3f}"
        return text


@dataclass(frozen=True, slots=True)
class Drift:
    """How far the target's rows are apart between passes of one row and of several, over `prefixes` prefixes.

    mean_tv weighs the decision distributions by how often the prefixes were visited; bound is that times the tokens of
    a continuation: no more than this can whole continuations be apart. first_tv is that of the first token.
    """

    prefixes: int
    first_tv: float
    mean_tv: float
    max_tv: float
    bound: float
    max_logit: float
    argmax_flips: int

    @property
    def identical(self) -> bool:
        """Whether the rows have the same bits."""
        return self.max_logit == 0.0


@dataclass(frozen=True, slots=True)
class FirstToken:
    """One likely first token: exact p and q, and each sampler's share."""

    id: int
    text: str
    p: float
    q: float | None
    shares: Mapping[str, float]


@dataclass(slots=True)
class PairResult:
    """The experiment as far as it went."""

    settings: RunSettings
    asked: PairSettings
    rule: str
    facts: dict[str, Any] = field(default_factory=dict)
    prompt_ids: tuple[int, ...] = ()
    samples: int = 0
    rules: dict[str, RuleResult] = field(default_factory=dict)
    no_bias: str = ""
    drift: Drift | None = None
    greedy: Equality | None = None
    first: tuple[FirstToken, ...] = ()
    cached: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    stopped: bool = False
    phase: str = ""

    @property
    def holds(self) -> bool:
        """Whether all came out as it should: what is exact without a difference, lossy rules by their closed form.

        In check mode greedy decoding must equal plain's, and the kernels' rows each other.
        """
        greedy = self.greedy is None or self.greedy.equal or not self.settings.check_mode
        same = self.drift is None or self.drift.identical or not self.settings.check_mode
        return greedy and same and all(one.holds for one in self.rules.values())

    @property
    def conclusive(self) -> bool:
        """Whether the test is known to catch a wrong rule here: it caught the naive one."""
        control = self.rules.get("naive")
        return control is not None and control.differs is True

    @property
    def sentences(self) -> list[str]:
        """The verdict: rule, control, kernels, greedy, each in a sentence."""
        return pair_sentences(self)


def pair_sentences(result: PairResult) -> list[str]:
    """What the experiment says: rule, control, kernels and greedy, a sentence each."""
    found: list[str] = []
    mode = "in check mode" if result.settings.check_mode else "on rows of several-row passes"
    for name, one in result.rules.items():
        if one.lossy:
            continue
        least = one.least_caught
        text = f"Rule {name}, {mode}: {one.words}, {one.samples:,} continuations of {result.asked.tokens} tokens"
        if least is not None:
            text += f"; a bias of total variation {least:.3f} or more in the first token would have been caught"
        found.append(text + ".")
    for name, one in result.rules.items():
        if one.lossy:
            text = f"Control {name}: {one.words}."
            if one.differs is False and name == "naive":
                text += " The test is too weak here: use more continuations, or a prompt with a more open answer."
            found.append(text)
    if result.no_bias and result.rules:
        found.append(f"No closed form of the lossy rules' bias: {result.no_bias}.")
    drift = result.drift
    if drift is not None and drift.identical:
        found.append(f"Kernels: rows of one-row and several-row passes have the same bits ({drift.prefixes} prefixes).")
    elif drift is not None:
        text = (
            f"Kernels: one-row and several-row passes are apart by total variation {drift.mean_tv:.2g} a token on "
            f"average (at most {drift.max_tv:.2g} of {drift.prefixes} prefixes), whatever the rule"
        )
        text += ": in check mode they must not be." if result.settings.check_mode else "; check mode has none of it."
        found.append(text)
    if result.greedy is not None:
        found.append(greedy_sentence(result.greedy, check_mode=result.settings.check_mode))
    return found or ["Nothing was tested."]


def greedy_sentence(greedy: Equality, *, check_mode: bool) -> str:
    """What the token-for-token check says."""
    if greedy.equal:
        return f"Greedy: all {greedy.compared:,} tokens equal plain decoding's."
    text = f"Greedy: differs from plain decoding at token {(greedy.first_difference or 0) + 1}"
    if greedy.logit_margin is not None:
        text += f", where plain's best two logits were {greedy.logit_margin:.3f} apart"
    if greedy.kernel_margin is not None:
        within = greedy.logit_margin is not None and greedy.logit_margin <= greedy.kernel_margin
        text += f" and kernels drift by up to {greedy.kernel_margin:.3f}"
        text += " (a tie that the kernels explain)" if within else " (more than the kernels explain)"
    return text + (": in check mode it must not." if check_mode else ".")


def pair_document(result: PairResult) -> dict[str, Any]:
    """The experiment as a JSON document."""
    settings, lane = result.settings, result.settings.lanes[1]
    return {
        "pair": {
            "run": {**result.facts, **settings.flat(lane), "rule": result.rule},
            "prompt": settings.prompt,
            "prompt_tokens": len(result.prompt_ids),
            "samples": result.samples,
            "asked": result.asked.samples,
            "tokens": result.asked.tokens,
            "check_mode": settings.check_mode,
            "rules": {name: _rule_json(one) for name, one in result.rules.items()},
            "no_closed_form": result.no_bias or None,
            "kernels": None if result.drift is None else _fields(result.drift) | {"identical": result.drift.identical},
            "greedy": None if result.greedy is None else _fields(result.greedy),
            "first_tokens": [
                {"id": one.id, "text": one.text, "p": one.p, "q": one.q, "shares": dict(one.shares)}
                for one in result.first
            ],
            "cache": dict(result.cached),
            "significance": SIGNIFICANCE,
            "power": POWER,
        },
        "stopped": result.stopped,
        "holds": result.holds,
        "conclusive": result.conclusive,
        "verdict": " ".join(result.sentences),
        "seconds": result.seconds,
    }


def _rule_json(one: RuleResult) -> dict[str, Any]:
    bias = one.bias
    return {
        "lossy": one.lossy,
        "samples": one.samples,
        "differs": one.differs,
        "p": one.p,
        "least_tv_caught": one.least_caught,
        "acceptance_rate": one.accepted / one.judged if one.judged else None,
        "tokens_per_target_pass": one.emitted / one.rounds if one.rounds else None,
        "tests": [_fields(test) for test in one.tests],
        "bias": None if bias is None else _fields(bias) | {"agrees": bias.agrees},
        "verdict": one.words,
    }


def _fields(one: Any) -> dict[str, Any]:
    return {item.name: getattr(one, item.name) for item in fields(one)}
