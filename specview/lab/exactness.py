"""The toy proof: every sampler's distribution over all outcomes, by closed form and by sampling.

A correct sampler's total variation falls along the 1/sqrt(N) line and its chi-square p values are spread over
0..1; a biased one's stops at its bias, and its p goes to 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from specview.decoding import theory
from specview.decoding.verification import is_lossy
from specview.errors import Stopped, require
from specview.files.report import Block, Report, Table, Text
from specview.files.schema import plain
from specview.files.tables import Column
from specview.lab import exact_statistics as statistics
from specview.lab import toy as toys

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


@dataclass(frozen=True, slots=True)
class ClosedForms:
    """What is known of the toy without sampling.

    rows per rule; target [outcomes]; own [outcomes] per sampler; bias per sampler is the total variation between the
    two. alphas per sampler and context: of rejection sum min(p, q), of match sum p q; rates of endless runs.
    """

    rows: Mapping[str, toys.RuleRows]
    target: statistics.Floats
    own: Mapping[str, statistics.Floats]
    bias: Mapping[str, float]
    alphas: Mapping[str, statistics.Floats]
    rates: Mapping[str, toys.Rates]


def closed_forms(toy: toys.Toy) -> ClosedForms:
    """Enumerate everything: all outcomes of all samplers, and their rates."""
    target = toys.target_distribution(toy)
    rows = {name: toys.rule_rows(name, toy.target, toy.draft) for name in toys.SAMPLERS if name != "plain"}
    own = {"plain": target} | {name: toys.rule_distribution(toy, one) for name, one in rows.items()}
    return ClosedForms(
        rows=rows,
        target=target,
        own=own,
        bias={name: statistics.total_variation(found, target) for name, found in own.items()},
        alphas={name: toys.alpha_per_context(one) for name, one in rows.items()},
        rates={name: toys.exact_rates(one, toy.settings.k) for name, one in rows.items()},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerResult(statistics.Fit):
    """One sampler's samples against the target, and against its own closed form.

    exact_tv is its exact total variation to the target; own_chi2_p the chi-square p against its own exact
    distribution; alpha and tokens_per_pass are measured over endless runs, the exact ones beside them (None of plain
    decoding). power is how often the test at this number of samples refuses a lossy sampler with this bias.
    """

    exact_tv: float
    own_chi2_p: float | None
    power: float | None
    alpha: float | None
    exact_alpha: float | None
    alpha_per_context: tuple[float | None, ...]
    tokens_per_pass: float | None
    exact_tokens_per_pass: float | None

    @property
    def holds(self) -> bool:
        """Whether it came out as it should: exact ones without a difference, biased ones as their closed form says."""
        return self.outcome != "differs" and not statistics.refused(self.own_chi2_p)

    @property
    def detail(self) -> str:
        """What a verdict rests on."""
        if self.outcome == "differs":
            return ": this sampler is wrong"
        if self.outcome not in ("caught", "not caught"):
            return ""
        how = f": its exact bias is {self.exact_tv:.4f}"
        how += ", and the samples do NOT follow its closed form" if statistics.refused(self.own_chi2_p) else ""
        return how + (", too little for so few samples" if self.outcome == "not caught" else "")

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON values."""
        found = asdict(self) | {"lossy": self.lossy, "outcome": self.outcome, "verdict": self.words}
        found["alpha_per_context"] = list(self.alpha_per_context)
        return {key: value for key, value in found.items() if key not in ("rule", "expected_tv", "freedom")}


@dataclass(frozen=True, slots=True)
class SeedResult:
    """One sampler's chi-square p over many seeds; uniform_p is the p of their being uniform on 0..1."""

    rule: str
    p_values: tuple[float, ...]
    uniform_p: float | None

    @classmethod
    def of(cls, rule: str, p_values: Sequence[float]) -> SeedResult:
        """A sampler's p values and whether they are uniform."""
        return cls(rule, tuple(p_values), statistics.uniform_p(p_values))

    @property
    def holds(self) -> bool:
        """Whether an exact sampler's p values are spread over 0..1; of a lossy one nothing is asked."""
        return is_lossy(self.rule) or not statistics.refused(self.uniform_p)

    @property
    def refused(self) -> int:
        """How many seeds the test refuses."""
        return sum(map(statistics.refused, self.p_values))

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {"p_values": list(self.p_values), "uniform_p": self.uniform_p, "refused": self.refused}

    @property
    def words(self) -> str:
        """The verdict in words."""
        if is_lossy(self.rule):
            return "lossy: p values near 0" if self.refused else "lossy"
        return "spread over 0..1" if self.holds else "NOT spread over 0..1"


@dataclass(slots=True)
class ToyResult:
    """The toy experiment as far as it went; `curves` per sampler, each at the same numbers of samples."""

    settings: toys.ToySettings
    seed: int
    asked: int
    exact: ClosedForms
    curves: dict[str, tuple[statistics.Fit, ...]] = field(default_factory=dict)
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
    def line(self) -> list[tuple[int, float]]:
        """Numbers of samples, and what an exact sampler's total variation is there on average: the 1/sqrt(N) line."""
        return [(point.samples, point.expected_tv) for point in self.curves.get("plain", ())]

    @property
    def freedom(self) -> int:
        """Degrees of freedom of the test of plain decoding."""
        return self.samplers["plain"].freedom if self.samplers else 0

    @property
    def least_caught(self) -> float | None:
        """The smallest total variation that the test would have caught, whatever its shape."""
        return statistics.least_caught(self.freedom, self.samples)

    @property
    def holds(self) -> bool:
        """Whether every sampler came out as it should: exact ones without a difference, all by their closed forms."""
        return all(one.holds for one in self._all)

    @property
    def _all(self) -> list[SamplerResult | SeedResult]:
        return [*self.samplers.values(), *self.seeds.values()]

    @property
    def conclusive(self) -> bool:
        """Whether the test is known to catch a wrong rule here: it caught the naive one."""
        return "naive" in self.samplers and self.samplers["naive"].outcome == "caught"

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        if not self.samplers:
            return "Nothing was tested."
        found = self.samplers.values()
        wrong = [one.rule for one in self._all if not is_lossy(one.rule) and not one.holds]
        tested = f"{self.samples:,} samples of {self.settings.outcomes:,} outcomes"
        if 0 < self.freedom < self.settings.outcomes - 1:
            tested += f" ({self.freedom + 1:,} cells: rare ones are pooled)"
        if wrong:
            return f"In {tested}, {_names(dict.fromkeys(wrong))} differs from the target: this build is NOT exact."
        text = f"In {tested}, {_names(one.rule for one in found if not one.lossy)} show no difference from the target"
        least = self.least_caught
        if least is not None:
            text += f"; a bias of total variation {least:.4f} or more over them, whatever its shape, would have been caught"
        astray = [one.rule for one in found if not one.holds]
        for outcome, more in (("caught", ""), ("not caught", ": use more samples")):
            lossy = [one.rule for one in found if one.outcome == outcome]
            if lossy:
                text += f"; lossy {_names(lossy)} {'was' if len(lossy) == 1 else 'were'} {outcome}{more}"
            if astray and outcome == "caught":
                text += f"; {_names(astray)} do NOT follow their closed form: this build is wrong"
        return text + "."

    @property
    def verdict(self) -> Text:
        """The sentence, and how it is meant."""
        return statistics.verdict(self.sentence, self.holds, self.conclusive, self.stopped)


def _names(names: Iterable[str]) -> str:
    return ", ".join(names)


OnPart = Callable[[ToyResult, str, float], None]
"""Called with the result so far (the same object, growing), what is done in words, and the fraction of it."""


def check_samples(samples: int) -> None:
    """Refuse a number of samples that cannot be run."""
    require(MIN_SAMPLES <= samples <= MAX_SAMPLES, f"samples is {samples}.", f"Use {MIN_SAMPLES} to {MAX_SAMPLES:,}.")


def check_seeds(seeds: int) -> None:
    """Refuse a number of seeds that cannot be run; 0 leaves the many-seed view out."""
    require(seeds == 0 or 5 <= seeds <= MAX_SEEDS, f"seeds is {seeds}.", f"Use 5 to {MAX_SEEDS:,}, or 0 for none.")


def checkpoints(samples: int) -> list[int]:
    """Numbers of samples, evenly spaced on a log axis, up to `samples`."""
    count = max(2, round(POINTS_PER_DECADE * np.log10(samples / MIN_SAMPLES)) + 1)
    return sorted({round(value) for value in np.geomspace(MIN_SAMPLES, samples, count).tolist()} | {samples})


def run_toy(
    settings: toys.ToySettings | None = None,
    samples: int = SAMPLES,
    seed: int = 0,
    seeds: int = 0,
    on_part: OnPart = lambda result, text, fraction: None,
    should_stop: ShouldStop = lambda: False,
) -> ToyResult:
    """Sample with all samplers in step, and, with `seeds`, again from that many seeds. A stop keeps what there is."""
    check_samples(samples)
    check_seeds(seeds)
    began = time.monotonic()
    toy = toys.make_toy(settings)
    exact = closed_forms(toy)
    result = ToyResult(toy.settings, seed, samples, exact)
    samplers = {name: toys.ToySampler(toy, name, exact.rows["rejection" if name == "plain" else name]) for name in toys.SAMPLERS}
    rates = {
        name: sampler.run_rounds(exact.rates[name].starts, RATE_CHAINS, RATE_ROUNDS, np.random.default_rng([seed, 7, index]))
        for index, (name, sampler) in enumerate(samplers.items())
        if name in exact.rates
    }

    def draw(name: str, count: int, rng: np.random.Generator, tally: toys.Tally | None = None) -> statistics.Counts:
        """Counts [outcomes] of so many sequences; raises Stopped."""
        counts = np.zeros(toy.settings.outcomes, dtype=np.int64)
        for start in range(0, count, CHUNK):
            found = samplers[name].outcomes(min(CHUNK, count - start), toys.random_numbers(rng), tally)
            counts += np.bincount(found, minlength=len(counts))
            if should_stop():
                raise Stopped
        return counts

    rngs = [np.random.default_rng([seed, index]) for index in range(len(toys.SAMPLERS))]
    counts = {name: np.zeros(toy.settings.outcomes, dtype=np.int64) for name in toys.SAMPLERS}
    tallies = {name: toys.Tally.empty(toy.vocab) for name in toys.SAMPLERS}
    p_values: dict[str, list[float]] = {name: [] for name in toys.SAMPLERS}
    done = 0
    try:
        for point in checkpoints(samples):
            for name, rng in zip(toys.SAMPLERS, rngs, strict=True):
                counts[name] += draw(name, point - done, rng, tallies[name])
            done = point  # all are in step; where it was stopped before, the point is left out
            for name in toys.SAMPLERS:
                found = _tested(name, counts[name], exact, tallies[name], rates.get(name))
                result.samplers[name] = found
                result.curves[name] = (*result.curves.get(name, ()), found)
            result.seconds = time.monotonic() - began
            on_part(result, f"{done:,} of {samples:,} samples", done / samples)
        for number in range(seeds):
            for index, name in enumerate(toys.SAMPLERS):
                drawn = draw(name, result.seed_samples, np.random.default_rng([seed, 11, number, index]))
                p, _ = statistics.goodness_of_fit(drawn, exact.target)
                p_values[name] += [] if p is None else [p]
                result.seeds[name] = SeedResult.of(name, p_values[name])
            on_part(result, f"Seed {number + 1} of {seeds}", (number + 1) / seeds)
    except Stopped:
        result.stopped = True
    result.seconds = time.monotonic() - began
    return result


def _tested(name: str, counts: statistics.Counts, exact: ClosedForms, tally: toys.Tally, rates: toys.Tally | None) -> SamplerResult:
    """What a sampler's counts [outcomes] say; tally is of its sequences, rates of endless runs."""
    own, target, known = exact.own[name], exact.target, exact.rates.get(name)
    found = SamplerResult.of(
        name,
        counts,
        target,
        exact_tv=exact.bias[name],
        own_chi2_p=statistics.goodness_of_fit(counts, own)[0],
        power=None,
        alpha=float(rates.accepted.sum() / rates.judged.sum()) if rates is not None else None,
        exact_alpha=known.alpha if known is not None else None,
        alpha_per_context=tuple(
            kept / judged if judged else None
            for kept, judged in zip(tally.accepted.tolist(), tally.judged.tolist(), strict=True)
        ),
        tokens_per_pass=rates.emitted / rates.rounds if rates is not None else None,
        exact_tokens_per_pass=known.tokens_per_pass if known is not None else None,
    )
    if not found.lossy or not found.freedom:
        return found
    possible = target > 0
    apart = (own[possible] - target[possible]) ** 2 / target[possible]
    shift = found.samples * float(np.sum(apart))  # the statistic's non-centrality
    # beyond any doubt, and beyond what the series is good for
    sure = shift > 1e4 + 20 * found.freedom
    return replace(found, power=1.0 if sure else statistics.chance_of_refusal(found.freedom, shift))


def toy_document(result: ToyResult) -> dict[str, Any]:
    """The experiment as a JSON document; `samplers` and `exact` are keyed by sampler."""
    exact, rates = result.exact, result.exact.rates
    return {
        "samples": result.samples,
        "asked": result.asked,
        "stopped": result.stopped,
        "seed": result.seed,
        "toy": result.settings.as_dict(),
        "exact": {
            "alpha_per_context": exact.alphas["rejection"].tolist(),
            "match_per_context": exact.alphas["match"].tolist(),
            "naive_tv": exact.bias["naive"],
            "typical_tv": exact.bias["typical"],
            "tv": dict(exact.bias),
            "alpha": {name: one.alpha for name, one in rates.items()},
            "tokens_per_pass": {name: one.tokens_per_pass for name, one in rates.items()},
            "formula_tokens_per_pass": theory.expected_tokens(rates["rejection"].alpha, result.settings.k),
        },
        "samplers": {name: one.as_dict() for name, one in result.samplers.items()},
        "least_tv_caught": result.least_caught,
        "significance": statistics.SIGNIFICANCE,
        "power": statistics.POWER,
        "convergence": {
            "samples": [samples for samples, _ in result.line],
            "expected_tv": [tv for _, tv in result.line],
            "tv": {name: [point.tv for point in points] for name, points in result.curves.items()},
            "chi2_p": {name: [point.chi2_p for point in points] for name, points in result.curves.items()},
        },
        "seeds": {name: one.as_dict() | {"samples": result.seed_samples} for name, one in result.seeds.items()} or None,
        "holds": result.holds,
        "conclusive": result.conclusive,
        "verdict": result.sentence,
        "seconds": result.seconds,
    }


COLUMNS = (
    Column("sampler", "sampler"),
    Column("verdict", "verdict"),
    Column("tv", "TV", statistics.TV_TIP, 4),
    Column("exact_tv", "exact bias", "The sampler's own exact distribution against the target's, enumerated over all outcomes", 4),
    Column("chi2_p", "χ² p", statistics.CHI2_TIP, 3, form=statistics.p_text),
    Column("own_chi2_p", "own χ² p", "Chi-square p of the samples following the sampler's own closed form", 3, form=statistics.p_text),
    Column("alpha", "α", "Accepted / judged, measured over endless runs", 3),
    Column("exact_alpha", "α exact", "The same by closed form, weighed by how often each context comes about", 3),
    Column("tokens_per_pass", "tok/pass", "Emitted / target passes, measured over endless runs", 3),
    Column("exact_tokens_per_pass", "exact", "The same by closed form", 3),
)
"""Of one sampler."""

_SEED_COLUMNS = (
    Column("sampler", "sampler"),
    Column("verdict", "verdict"),
    Column("seeds", "seeds", "", 0),
    Column("low", "p below 0.05", "", 0),
    Column("refused", "refused", "", 0),
    Column("uniform_p", "p of being uniform", "", 3, form=statistics.p_text),
)


def rows_of(result: ToyResult) -> list[dict[str, Any]]:
    """A row under `COLUMNS` for each sampler."""
    return [one.as_dict() | {"sampler": statistics.labelled(name)} for name, one in result.samplers.items()]


def toy_report(result: ToyResult) -> Report:
    """The experiment for people, and its document."""
    settings, samples = result.settings, result.samples
    blocks: list[Block] = [
        Text(f"Toy: {settings.vocab} tokens, length {settings.length} ({settings.outcomes:,} outcomes), k {settings.k}, "
             f"model seed {settings.model_seed}; {samples:,} samples each, {result.seconds:.1f} s"),
        Table(COLUMNS, rows_of(result), name="toy-proof", identity="sampler"),
    ]  # fmt: skip
    if result.samplers:
        alphas = ", ".join(f"{value:.3f}" for value in result.exact.alphas["rejection"].tolist()[:16])
        more = ", .." if settings.vocab > 16 else ""
        line = f"An exact sampler's total variation at {samples:,} samples is {result.line[-1][1]:.4f} on average, the 1/√N line."
        blocks += [Text(line, "note"), Text(f"α per context, Σ min(p, q): {alphas}{more}.", "note")]
    if result.seeds:
        rows = [{"sampler": statistics.labelled(name), "seeds": len(one.p_values), "low": sum(p < 0.05 for p in one.p_values),
                 "refused": one.refused, "uniform_p": one.uniform_p, "verdict": one.words}
                for name, one in result.seeds.items()]  # fmt: skip
        blocks.append(Table(_SEED_COLUMNS, rows, f"Chi-square p over seeds, {result.seed_samples:,} samples each"))
    return Report("", [*blocks, result.verdict], plain(toy_document(result)))
