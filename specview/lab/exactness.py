"""The toy proof: every sampler's distribution over all outcomes, by closed form and by sampling.

A correct sampler's total variation falls along the 1/sqrt(N) line and its chi-square p values are spread over
0..1; a biased one's stops at its bias, and its p goes to 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from specview.decoding import theory
from specview.decoding.verification import RULES
from specview.errors import UsageError
from specview.lab.exact_statistics import (
    POWER,
    SIGNIFICANCE,
    Counts,
    Floats,
    chance_of_refusal,
    expected_variation,
    goodness_of_fit,
    least_caught,
    sampled_variation,
    uniform_p,
    variation_bound,
)
from specview.lab.toy import (
    SAMPLERS,
    Rates,
    RuleRows,
    Tally,
    Toy,
    ToySampler,
    ToySettings,
    agreement_per_context,
    alpha_per_context,
    exact_rates,
    make_toy,
    overlap_per_context,
    random_numbers,
    rule_distribution,
    rule_rows,
    target_distribution,
    total_variation,
)

ShouldStop = Callable[[], bool]

SAMPLES = 400_000
MIN_SAMPLES, MAX_SAMPLES = 100, 10_000_000
MAX_SEEDS = 2_000
SEED_SAMPLES = 20_000
"""Samples of one seed in the many-seed view."""

POINTS_PER_DECADE = 8
CHUNK = 10_000
"""Samples between two looks at the stop flag: a few milliseconds."""

RATE_CHAINS, RATE_ROUNDS = 4_000, 25
"""Endless runs, and rounds of each, that measure alpha and tokens per pass."""

Outcome = Literal["no difference", "differs", "caught", "not caught", "untested"]
"""What a test says: of samplers that should be exact the first two, of lossy ones the next two."""


@dataclass(frozen=True, slots=True)
class ClosedForms:
    """What is known of the toy without sampling.

    rows per rule; target [outcomes]; own [outcomes] per sampler; bias per sampler is the total variation between the two. overlap and
    agreement are per context sum min(p, q) and sum p q; alphas per sampler and context; rates of endless runs.
    """

    rows: Mapping[str, RuleRows]
    target: Floats
    own: Mapping[str, Floats]
    bias: Mapping[str, float]
    overlap: Floats
    agreement: Floats
    alphas: Mapping[str, Floats]
    rates: Mapping[str, Rates]


def closed_forms(toy: Toy) -> ClosedForms:
    """Enumerate everything: all outcomes of all samplers, and their rates."""
    target = target_distribution(toy)
    known: dict[str, RuleRows] = {}
    own: dict[str, Floats] = {}
    alphas: dict[str, Floats] = {}
    rates: dict[str, Rates] = {}
    for name in SAMPLERS:
        if name == "plain":
            own[name] = target
            continue
        known[name] = rows = rule_rows(name, toy.target, toy.draft)
        own[name] = rule_distribution(toy, rows)
        alphas[name] = alpha_per_context(rows)
        rates[name] = exact_rates(rows, toy.settings.k)
    return ClosedForms(
        rows=known,
        target=target,
        own=own,
        bias={name: total_variation(found, target) for name, found in own.items()},
        overlap=overlap_per_context(toy),
        agreement=agreement_per_context(toy),
        alphas=alphas,
        rates=rates,
    )


def is_lossy(sampler: str) -> bool:
    """Whether a sampler's rule does not leave the target's distribution as it is."""
    return not RULES.get(sampler, True)


@dataclass(frozen=True, slots=True)
class Point:
    """One sampler at one number of samples."""

    samples: int
    tv: float
    chi2_p: float | None


@dataclass(frozen=True, slots=True)
class SamplerResult:
    """One sampler's samples against the target, and against its own closed form.

    bias is its exact total variation to the target; own_p the chi-square p against its own exact distribution; alpha
    and tokens_per_pass are measured over endless runs, the exact ones beside them (None of plain decoding). chance is
    how often the test at this number of samples refuses a sampler with this bias.
    """

    name: str
    lossy: bool
    samples: int
    tv: float
    chi2_p: float | None
    freedom: int
    bound: float
    bias: float
    own_p: float | None
    chance: float | None
    alpha: float | None
    exact_alpha: float | None
    tokens_per_pass: float | None
    exact_tokens_per_pass: float | None
    context_alphas: tuple[float | None, ...]
    outcome: Outcome

    @property
    def holds(self) -> bool:
        """Whether it came out as it should: exact ones without a difference, biased ones as their closed form says."""
        agrees = self.own_p is None or self.own_p > SIGNIFICANCE
        return self.outcome != "differs" and agrees

    @property
    def words(self) -> str:
        """The verdict in words."""
        if self.outcome == "untested":
            return "too few samples to test"
        if self.outcome == "no difference":
            return "no difference from the target found"
        if self.outcome == "differs":
            return "DIFFERS from the target: this sampler is wrong"
        how = f"its exact bias is {self.bias:.4f}"
        if self.own_p is not None and self.own_p <= SIGNIFICANCE:
            how += ", and the samples do NOT follow its closed form"
        if self.outcome == "caught":
            return f"lossy, and caught: {how}"
        return f"lossy, not caught: {how}, too little for so few samples"


@dataclass(frozen=True, slots=True)
class SeedResult:
    """One sampler's chi-square p over many seeds; spread is the p of their being uniform on 0..1."""

    name: str
    lossy: bool
    p_values: tuple[float, ...]
    spread: float | None

    @property
    def holds(self) -> bool:
        """Whether an exact sampler's p values are spread over 0..1; of a lossy one nothing is asked."""
        return self.lossy or self.spread is None or self.spread > SIGNIFICANCE

    @property
    def refused(self) -> int:
        """How many seeds the test refuses."""
        return sum(p <= SIGNIFICANCE for p in self.p_values)


@dataclass(slots=True)
class ToyResult:
    """The toy experiment as far as it went; `curves` per sampler, `line` the 1/sqrt(N) line at the same numbers."""

    settings: ToySettings
    seed: int
    asked: int
    exact: ClosedForms
    curves: dict[str, list[Point]] = field(default_factory=dict)
    line: list[tuple[int, float]] = field(default_factory=list)
    samplers: dict[str, SamplerResult] = field(default_factory=dict)
    seeds: dict[str, SeedResult] = field(default_factory=dict)
    seed_samples: int = SEED_SAMPLES
    seconds: float = 0.0
    stopped: bool = False

    @property
    def samples(self) -> int:
        """Samples that every sampler has."""
        return min((one.samples for one in self.samplers.values()), default=0)

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the test of plain decoding."""
        plain = self.samplers.get("plain")
        return 0 if plain is None else plain.freedom

    @property
    def least_caught(self) -> float | None:
        """The smallest total variation that the test would have caught, whatever its shape."""
        return least_caught(self.freedom, self.samples) if self.samplers else None

    @property
    def holds(self) -> bool:
        """Whether every sampler came out as it should: exact ones without a difference, all by their closed forms."""
        return all(one.holds for one in self.samplers.values()) and all(one.holds for one in self.seeds.values())

    @property
    def conclusive(self) -> bool:
        """Whether the test is known to catch a wrong rule here: it caught the naive one."""
        return "naive" in self.samplers and self.samplers["naive"].outcome == "caught"

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        return toy_sentence(self)


OnPart = Callable[[ToyResult], None]


def check_samples(samples: int) -> None:
    """Refuse a number of samples that cannot be run."""
    if not MIN_SAMPLES <= samples <= MAX_SAMPLES:
        raise UsageError(f"samples is {samples}.", f"Use {MIN_SAMPLES} to {MAX_SAMPLES:,}.")


def check_seeds(seeds: int) -> None:
    """Refuse a number of seeds that cannot be run; 0 leaves the many-seed view out."""
    if not 0 <= seeds <= MAX_SEEDS or 0 < seeds < 5:
        raise UsageError(f"seeds is {seeds}.", f"Use 5 to {MAX_SEEDS:,}, or 0 for none.")


def checkpoints(samples: int) -> list[int]:
    """Numbers of samples, evenly spaced on a log axis, up to `samples`."""
    count = max(2, round(POINTS_PER_DECADE * np.log10(samples / MIN_SAMPLES)) + 1)
    return sorted({round(value) for value in np.geomspace(MIN_SAMPLES, samples, count).tolist()} | {samples})


def run_toy(
    settings: ToySettings | None = None,
    samples: int = SAMPLES,
    seed: int = 0,
    seeds: int = 0,
    on_part: OnPart | None = None,
    should_stop: ShouldStop = lambda: False,
) -> ToyResult:
    """Sample with all samplers in step, and, with `seeds`, again from that many seeds.

    on_part is called after every number of samples on the way with the result so far (the same object, growing).
    A stop keeps what there is.
    """
    check_samples(samples)
    check_seeds(seeds)
    began = time.monotonic()
    toy = make_toy(settings)
    exact = closed_forms(toy)
    result = ToyResult(toy.settings, seed, samples, exact)
    samplers = {name: ToySampler(toy, name, exact.rows["rejection" if name == "plain" else name]) for name in SAMPLERS}
    rngs = {name: np.random.default_rng([seed, index]) for index, name in enumerate(SAMPLERS)}
    counts: dict[str, Counts] = {name: np.zeros(toy.settings.outcomes, dtype=np.int64) for name in SAMPLERS}
    tallies = {name: Tally.empty(toy.vocab) for name in SAMPLERS}
    rates = {
        name: sampler.run_rounds(exact.rates[name].starts, RATE_CHAINS, RATE_ROUNDS, np.random.default_rng([seed, 7, i]))
        for i, (name, sampler) in enumerate(samplers.items())
        if name in exact.rates
    }
    done = 0
    for point in checkpoints(samples):
        for name in SAMPLERS:
            left = point - done
            while left > 0 and not result.stopped:
                size = min(left, CHUNK)
                found = samplers[name].outcomes(size, random_numbers(rngs[name]), tallies[name])
                counts[name] += np.bincount(found, minlength=toy.settings.outcomes)
                left -= size
                result.stopped = should_stop()
        if result.stopped:  # the samplers are no longer in step: this point is left out
            break
        done = point
        result.line.append((done, expected_variation(exact.target, done)))
        for name in SAMPLERS:
            p, freedom = goodness_of_fit(counts[name], exact.target)
            tv = sampled_variation(counts[name], exact.target)
            result.curves.setdefault(name, []).append(Point(done, tv, p))
            result.samplers[name] = _result(name, counts[name], tv, p, freedom, exact, tallies[name], rates.get(name))
        result.seconds = time.monotonic() - began
        if on_part is not None:
            on_part(result)
    if not result.stopped:
        _run_seeds(result, toy, samplers, seed, seeds, on_part, should_stop)
    result.seconds = time.monotonic() - began
    return result


def _result(
    name: str,
    counts: Counts,
    tv: float,
    p: float | None,
    freedom: int,
    exact: ClosedForms,
    tally: Tally,
    rates: Tally | None,
) -> SamplerResult:
    own = exact.own[name]
    samples = int(counts.sum())
    lossy = is_lossy(name)
    bound = variation_bound(exact.target, samples)
    differs = p is not None and (p <= SIGNIFICANCE or tv > bound)
    outcome: Outcome
    if p is None:
        outcome = "untested"
    elif lossy:
        outcome = "caught" if differs else "not caught"
    else:
        outcome = "differs" if differs else "no difference"
    known = exact.rates.get(name)
    return SamplerResult(
        name=name,
        lossy=lossy,
        samples=samples,
        tv=tv,
        chi2_p=p,
        freedom=freedom,
        bound=bound,
        bias=exact.bias[name],
        own_p=goodness_of_fit(counts, own)[0],
        chance=_chance(own, exact.target, samples, freedom) if lossy and freedom else None,
        alpha=float(rates.accepted.sum() / rates.judged.sum()) if rates is not None else None,
        exact_alpha=known.alpha if known is not None else None,
        tokens_per_pass=rates.emitted / rates.rounds if rates is not None else None,
        exact_tokens_per_pass=known.tokens_per_pass if known is not None else None,
        context_alphas=tuple(
            float(kept / judged) if judged else None
            for kept, judged in zip(tally.accepted.tolist(), tally.judged.tolist(), strict=True)
        ),
        outcome=outcome,
    )


def _chance(own: Floats, target: Floats, samples: int, freedom: int) -> float:
    """How often Pearson's test refuses samples of `own` as the target's (non-central chi-square)."""
    known = target > 0
    shift = samples * float(np.sum((own[known] - target[known]) ** 2 / target[known]))
    if shift > 1e4 + 20 * freedom:  # beyond any doubt, and beyond what the series is good for
        return 1.0
    return chance_of_refusal(freedom, shift)


def _run_seeds(
    result: ToyResult,
    toy: Toy,
    samplers: Mapping[str, ToySampler],
    seed: int,
    seeds: int,
    on_part: OnPart | None,
    should_stop: ShouldStop,
) -> None:
    found: dict[str, list[float]] = {name: [] for name in SAMPLERS}
    for number in range(seeds):
        for index, name in enumerate(SAMPLERS):
            rng = np.random.default_rng([seed, 11, number, index])
            counts = np.zeros(toy.settings.outcomes, dtype=np.int64)
            for start in range(0, result.seed_samples, CHUNK):
                size = min(CHUNK, result.seed_samples - start)
                counts += np.bincount(samplers[name].outcomes(size, random_numbers(rng)), minlength=len(counts))
                if should_stop():
                    result.stopped = True
                    return
            p, _ = goodness_of_fit(counts, result.exact.target)
            if p is not None:
                found[name].append(p)
            result.seeds[name] = seed_result(name, found[name])
        if on_part is not None:
            on_part(result)


def seed_result(name: str, p_values: Sequence[float]) -> SeedResult:
    """A sampler's p values and whether they are uniform."""
    return SeedResult(name, is_lossy(name), tuple(p_values), uniform_p(p_values))


def toy_sentence(result: ToyResult) -> str:
    """What the experiment says, in one sentence."""
    if not result.samplers:
        return "Nothing was tested."
    exact = [one for one in result.samplers.values() if not one.lossy]
    wrong = [one.name for one in exact if not one.holds]
    wrong += [one.name for one in result.seeds.values() if not one.holds and one.name not in wrong]
    tested = f"{result.samples:,} samples of {result.settings.outcomes:,} outcomes"
    cells = result.freedom + 1
    if 1 < cells < result.settings.outcomes:
        tested += f" ({cells:,} cells: rare ones are pooled)"
    if wrong:
        return f"In {tested}, {', '.join(wrong)} differs from the target: this build is NOT exact."
    least = result.least_caught
    names = ", ".join(one.name for one in exact)
    caught = [one.name for one in result.samplers.values() if one.outcome == "caught"]
    missed = [one.name for one in result.samplers.values() if one.outcome == "not caught"]
    text = f"In {tested}, {names} show no difference from the target"
    if least is not None:
        text += f"; a bias of total variation {least:.4f} or more over them, whatever its shape, would have been caught"
    if caught:
        text += f"; lossy {', '.join(caught)} {'was' if len(caught) == 1 else 'were'} caught"
    astray = [one.name for one in result.samplers.values() if one.lossy and not one.holds]
    if astray:
        text += f"; {', '.join(astray)} do NOT follow their closed form: this build is wrong"
    if missed:
        text += f"; lossy {', '.join(missed)} {'was' if len(missed) == 1 else 'were'} not caught: use more samples"
    return text + "."


def toy_document(result: ToyResult) -> dict[str, Any]:
    """The experiment as a JSON document; `samplers` and `exact` are keyed by sampler."""
    exact = result.exact
    settings = result.settings
    rejection = exact.rates["rejection"]
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
        "exact": {
            "alpha_per_context": exact.overlap.tolist(),
            "match_per_context": exact.agreement.tolist(),
            "naive_tv": exact.bias["naive"],
            "typical_tv": exact.bias["typical"],
            "tv": dict(exact.bias),
            "alpha": {name: rates.alpha for name, rates in exact.rates.items()},
            "tokens_per_pass": {name: rates.tokens_per_pass for name, rates in exact.rates.items()},
            "formula_tokens_per_pass": theory.expected_tokens(rejection.alpha, settings.k),
        },
        "samplers": {name: _sampler_json(one) for name, one in result.samplers.items()},
        "least_tv_caught": result.least_caught,
        "significance": SIGNIFICANCE,
        "power": POWER,
        "convergence": {
            "samples": [samples for samples, _ in result.line],
            "expected_tv": [tv for _, tv in result.line],
            "tv": {name: [point.tv for point in points] for name, points in result.curves.items()},
            "chi2_p": {name: [point.chi2_p for point in points] for name, points in result.curves.items()},
        },
        "seeds": {
            name: {
                "p_values": list(one.p_values),
                "uniform_p": one.spread,
                "refused": one.refused,
                "samples": result.seed_samples,
            }
            for name, one in result.seeds.items()
        }
        or None,
        "holds": result.holds,
        "conclusive": result.conclusive,
        "verdict": result.sentence,
        "seconds": result.seconds,
    }


def _sampler_json(one: SamplerResult) -> dict[str, Any]:
    return {
        "tv": one.tv,
        "chi2_p": one.chi2_p,
        "lossy": one.lossy,
        "samples": one.samples,
        "tv_bound": one.bound,
        "exact_tv": one.bias,
        "own_chi2_p": one.own_p,
        "power": one.chance,
        "alpha": one.alpha,
        "exact_alpha": one.exact_alpha,
        "alpha_per_context": list(one.context_alphas),
        "tokens_per_pass": one.tokens_per_pass,
        "exact_tokens_per_pass": one.exact_tokens_per_pass,
        "outcome": one.outcome,
        "verdict": one.words,
    }
