"""What an exactness test of a real pair found: results, the verdict in sentences, the report and the JSON document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from specview.decoding.sampling import sampling_words
from specview.decoding.verification import is_lossy
from specview.drafting.lanes import flat_settings
from specview.errors import require
from specview.files.report import Block, Report, Table, Text, Tone
from specview.files.schema import plain
from specview.files.tables import Column
from specview.lab import exact_statistics as statistics
from specview.settings.events import Equality
from specview.settings.run import RunSettings

SAMPLES = 2_000
MIN_SAMPLES, MAX_SAMPLES = 100, 1_000_000
TOKENS = 3
MIN_TOKENS, MAX_TOKENS = 2, 8
GREEDY_TOKENS = 64
MAX_GREEDY_TOKENS = 4096
_PRINTED_FIRSTS = 8


@dataclass(frozen=True, slots=True)
class PairSettings:
    """How much is tested: continuations of each sampler, their tokens, and the greedy run's."""

    samples: int = SAMPLES
    tokens: int = TOKENS
    greedy_tokens: int = GREEDY_TOKENS

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        require(MIN_SAMPLES <= self.samples <= MAX_SAMPLES, f"samples is {self.samples}.",
                f"Use {MIN_SAMPLES} to {MAX_SAMPLES:,} continuations.")  # fmt: skip
        require(MIN_TOKENS <= self.tokens <= MAX_TOKENS, f"tokens is {self.tokens}.",
                f"Use {MIN_TOKENS} to {MAX_TOKENS}: a continuation of one token drafts nothing.")  # fmt: skip
        require(1 <= self.greedy_tokens <= MAX_GREEDY_TOKENS, f"greedy tokens is {self.greedy_tokens}.",
                f"Use 1 to {MAX_GREEDY_TOKENS}.")  # fmt: skip


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
        return not statistics.refused(self.p)


@dataclass(frozen=True, slots=True)
class RuleResult:
    """One rule's continuations against plain decoding's."""

    name: str
    samples: int
    tests: tuple[statistics.DepthTest, ...]
    judged: int
    accepted: int
    emitted: int
    rounds: int
    bias: Bias | None = None

    @property
    def lossy(self) -> bool:
        """Whether the rule does not claim to be exact."""
        return is_lossy(self.name)

    @property
    def p(self) -> float | None:
        """The smallest p of the tests, times their number (Bonferroni)."""
        found = [test.chi2_p for test in self.tests if test.chi2_p is not None]
        return min(1.0, min(found) * len(self.tests)) if found else None

    @property
    def differs(self) -> bool | None:
        """Whether the chi-square tests found a difference, over all depths together; None where none could be made."""
        return None if self.p is None else statistics.refused(self.p)

    @property
    def least_caught(self) -> float | None:
        """The smallest total variation, over the first token, that would have been caught."""
        return self.tests[0].least_caught if self.tests else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / judged tokens of all its continuations."""
        return self.accepted / self.judged if self.judged else None

    @property
    def holds(self) -> bool:
        """Whether it came out as it should: exact rules without a difference, lossy ones by their closed form."""
        if self.lossy:
            return self.bias is None or self.bias.agrees
        return self.differs is not True

    @property
    def tone(self) -> Tone:
        """How it came out: a lossy rule is to be caught, any other not."""
        return "bad" if not self.holds else "good" if self.differs is self.lossy else "warning"

    @property
    def words(self) -> str:
        """The verdict in words."""
        if self.differs is None:
            return "too few continuations to test"
        p = f"p {statistics.p_text(self.p)}" + (f" over {len(self.tests)} depths" if len(self.tests) > 1 else "")
        if not self.lossy:
            return f"DIFFERS from plain decoding ({p})" if self.differs else f"no difference from plain found ({p})"
        text = f"lossy, and caught ({p})" if self.differs else f"lossy, not caught ({p}, not under {statistics.SIGNIFICANCE:g})"
        if self.bias is not None:
            agreement = "agreeing with" if self.bias.agrees else "NOT agreeing with"
            text += f"; bias {self.bias.measured:.3f} measured, {agreement} its closed form {self.bias.closed:.3f}"
        return text

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {
            "lossy": self.lossy,
            "samples": self.samples,
            "differs": self.differs,
            "p": self.p,
            "least_tv_caught": self.least_caught,
            "acceptance_rate": self.acceptance_rate,
            "tokens_per_target_pass": self.emitted / self.rounds if self.rounds else None,
            "tests": [asdict(test) for test in self.tests],
            "bias": None if self.bias is None else asdict(self.bias) | {"agrees": self.bias.agrees},
            "verdict": self.words,
        }


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
    def findings(self) -> list[tuple[str, Text]]:
        """The verdict, a sentence each: "Rule", "Control", "Kernels" and "Greedy", as far as they are known."""
        found: list[tuple[str, Text]] = []
        check_mode = self.settings.check_mode
        mode = "in check mode" if check_mode else "on rows of several-row passes"
        for name, one in self.rules.items():
            if not one.lossy:
                text = f"Rule {name}, {mode}: {one.words}, {one.samples:,} continuations of {self.asked.tokens} tokens"
                if one.least_caught is not None:
                    text += f"; a bias of total variation {one.least_caught:.3f} or more in the first token would have been caught"
                found.append(("Rule", Text(f"{text}.", one.tone)))
        running = self.samples < self.asked.samples and not self.stopped
        for name, one in self.rules.items():
            if one.lossy:
                text = f"Control {name}: {one.words}{' so far' if running and not one.differs else ''}."
                if one.differs is False and name == "naive" and not running:
                    text += " The test is too weak here: use more continuations, or a prompt with a more open answer."
                found.append(("Control", Text(text, one.tone)))
        if self.no_bias and self.rules:
            found.append(("", Text(f"No closed form of the lossy rules' bias: {self.no_bias}.", "note")))
        fault: Tone = "bad" if check_mode else "warning"  # outside of check mode it is to be expected
        drift = self.drift
        if drift is not None and drift.identical:
            text = f"Kernels: rows of one-row and several-row passes have the same bits ({drift.prefixes} prefixes)."
            found.append(("Kernels", Text(text, "good")))
        elif drift is not None:
            text = (
                f"Kernels: one-row and several-row passes are apart by total variation {drift.mean_tv:.2g} a token on "
                f"average (at most {drift.max_tv:.2g} of {drift.prefixes} prefixes), whatever the rule"
            )
            text += ": in check mode they must not be." if check_mode else "; check mode has none of it."
            found.append(("Kernels", Text(text, fault)))
        if self.greedy is not None:
            text = greedy_sentence(self.greedy, check_mode=check_mode)
            found.append(("Greedy", Text(text, "good" if self.greedy.equal else fault)))
        return found or [("", Text("Nothing was tested."))]

    @property
    def sentences(self) -> list[str]:
        """The verdict: rule, control, kernels, greedy, each in a sentence."""
        return [text.text for _, text in self.findings]


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
    settings, drift = result.settings, result.drift
    return {
        "pair": {
            "run": {**result.facts, **flat_settings(settings, settings.lanes[1]), "rule": result.rule},
            "prompt": settings.prompt,
            "prompt_tokens": len(result.prompt_ids),
            "samples": result.samples,
            "asked": result.asked.samples,
            "tokens": result.asked.tokens,
            "check_mode": settings.check_mode,
            "rules": {name: one.as_dict() for name, one in result.rules.items()},
            "no_closed_form": result.no_bias or None,
            "kernels": None if drift is None else asdict(drift) | {"identical": drift.identical},
            "greedy": None if result.greedy is None else asdict(result.greedy),
            "first_tokens": [asdict(one) for one in result.first],
            "cache": dict(result.cached),
            "significance": statistics.SIGNIFICANCE,
            "power": statistics.POWER,
        },
        "stopped": result.stopped,
        "holds": result.holds,
        "conclusive": result.conclusive,
        "verdict": " ".join(result.sentences),
        "seconds": result.seconds,
    }


COLUMNS = (
    Column("rule", "rule"),
    Column("depth", "first tokens", "Compared over so many tokens", 0),
    Column("cells", "cells", "Outcomes told apart; rare ones are put together with their siblings", 0),
    Column("tv", "TV", "Total variation between this rule's sample and plain decoding's, over the cells", 4),
    Column("bound", "bound", "What two samples of one distribution stay under 99 times in 100, by dealing them anew", 4),
    Column("permutation_p", "permutation p", "Share of such dealings that are as far apart", 3, form=statistics.p_text),
    Column("chi2_p", "χ² p", "Of both samples having one distribution", 3, form=statistics.p_text),
    Column("least_caught", "would catch",
           f"The smallest total variation that the chi-square test would have caught, {10 * statistics.POWER:.0f} times in 10", 4),
    Column("acceptance_rate", "α", "Accepted / judged tokens of all the rule's continuations", 3),
)  # fmt: skip
"""Of one rule and depth."""


def rows_of(result: PairResult) -> list[dict[str, Any]]:
    """A row under `COLUMNS` for each rule and depth."""
    return [
        {"rule": statistics.labelled(name), "acceptance_rate": one.acceptance_rate, **asdict(test)}
        for name, one in result.rules.items()
        for test in one.tests
    ]


def cached_words(result: PairResult) -> str:
    """How far what was computed once per prefix went."""
    cached = result.cached
    words = (
        f"Computed once per prefix: {cached['target_rows_computed']:,} rows of the target in "
        f"{cached['target_passes']:,} passes answered {cached['target_rows_asked']:,} questions"
    )
    if "draft_passes" in cached:
        words += (
            f"; {cached['draft_rows_computed']:,} of the draft in {cached['draft_passes']:,} passes "
            f"{cached['draft_rows_asked']:,}"
        )
    return f"{words}."


def pair_report(result: PairResult) -> Report:
    """The experiment for people, and its document."""
    settings, sampling = result.settings, result.settings.sampling
    about = (
        f"Pair: {result.facts.get('target_model_name') or settings.target} with {settings.lanes[1].label}, "
        f"{settings.engine}, {'check mode, ' if settings.check_mode else ''}{sampling_words(asdict(sampling))}; prompt of "
        f"{len(result.prompt_ids)} tokens; {result.seconds:.1f} s"
    )
    blocks: list[Block] = [Text(about)]
    if result.rules:
        note = (
            "TV: total variation from plain decoding's sample; bound: what two samples of one distribution stay under 99 "
            "times in 100 (permutations); would catch: the smallest total variation that the chi-square test would have "
            f"caught {10 * statistics.POWER:.0f} times in 10. Rare outcomes are pooled into cells."
        )
        blocks += [Table(COLUMNS, rows_of(result), name="pair-exactness"), Text(note, "note")]
    if result.first:
        columns = [Column("text", "first token"), Column("p", "p", "", 3), Column("q", "q", "", 3),
                   *(Column(name, f"{name}, share", "", 3) for name in result.first[0].shares)]  # fmt: skip
        rows = [{**asdict(one), **one.shares, "text": repr(one.text)} for one in result.first[:_PRINTED_FIRSTS]]
        blocks.append(Table(columns, rows, name="first-tokens"))
    if result.cached:
        blocks.append(Text(cached_words(result), "note"))
    blocks += [Text("Stopped early.", "warning")] if result.stopped else []
    return Report("", [*blocks, *(text for _, text in result.findings)], plain(pair_document(result)))
