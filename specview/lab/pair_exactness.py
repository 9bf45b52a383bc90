"""Whether a real target's speculative output is still the target's: thousands of short continuations of a prompt.

Rule and kernels are judged apart. The rule: continuations by the product's own lanes, over rows that are computed
once per prefix (exact_cache), so that plain and speculative decoding see the same numbers and only the rule can
differ. The kernels: how far the target's rows are apart between passes of one row and of several, which no rule can
mend. The naive rule goes along as a control that must be caught, and greedy decoding is compared token for token.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import numpy as np

from specview.decoding.ledger import Array
from specview.decoding.sampling import Penalties, SamplingParams, probabilities
from specview.decoding.verification import TYPICAL_DELTA, TYPICAL_EPSILON, entropy_of, is_lossy, resolve_rule
from specview.drafting import universal
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError, Stopped, require
from specview.lab import exact_statistics as statistics
from specview.lab.exact_cache import CachedEngine
from specview.lab.pair_results import (
    MIN_SAMPLES,
    Bias,
    Drift,
    FirstToken,
    PairResult,
    PairSettings,
    RuleResult,
)
from specview.racing.lane import Lane
from specview.racing.pool import ModelPool
from specview.racing.race import Race
from specview.racing.resolve import checked_run
from specview.settings.events import Event, Failed, LaneEnded, Progress, RaceEnded, RaceStarted
from specview.settings.run import LaneSettings, RunSettings

ShouldStop = Callable[[], bool]
OnPart = Callable[[PairResult, str, float | None], None]
"""Called with the result so far, what is under way in words, and the fraction done."""

DRIFT_PREFIXES = 64
"""Prefixes whose rows are computed again one by one, the most visited first."""
BARS = 12
"""First tokens shown by name."""
UPDATE_S, REPORT_S = 0.1, 1.0
"""Seconds between two tellings, and between two comparisons of what there is so far."""


def samplers_of(rule: str) -> tuple[str, ...]:
    """The samplers that are run: plain decoding, the lane's rule, and the two lossy ones as controls."""
    return tuple(dict.fromkeys(["plain", rule, *(["rejection"] if is_lossy(rule) else []), "naive", "typical"]))


def accepts(name: str, p: statistics.Floats, q: statistics.Floats) -> statistics.Floats:
    """The chance [vocab] that a lossy rule keeps each drafted token: Leviathan's ratio, or Medusa's threshold."""
    if name == "typical":
        threshold = min(TYPICAL_EPSILON, TYPICAL_DELTA * math.exp(-entropy_of(p)))
        return (p > threshold).astype(np.float64)
    return np.minimum(1.0, np.divide(p, q, out=(p > 0).astype(np.float64), where=q > 0))


def first_token_bias(name: str, p: statistics.Floats, q: statistics.Floats) -> float:
    """Exact total variation between p and a lossy rule's first token: half of sum |q a + (1 - sum q a) p - p|."""
    kept = q * accepts(name, p, q)
    return float(np.abs(kept - float(kept.sum()) * p).sum()) / 2


def run_pair(
    settings: RunSettings,
    pair: PairSettings | None = None,
    models: ModelPool | None = None,
    on_part: OnPart = lambda result, text, fraction: None,
    should_stop: ShouldStop = lambda: False,
) -> PairResult:
    """Test the second lane of `settings` (the first is plain decoding) on its prompt.

    At temperature 0 the greedy check is all there is. on_part is called at most ten times a second, with the same
    object each time. A stop keeps what there is; raises SpecviewError where the models cannot be run.
    """
    pool = models or ModelPool()
    try:
        return _Experiment(checked_run(settings), pair or PairSettings(), pool, on_part, should_stop).run()
    finally:
        if models is None:
            pool.close()


class _Experiment:
    """The parts of a run, in the order in which they are done."""

    def __init__(
        self, settings: RunSettings, pair: PairSettings, pool: ModelPool, on_part: OnPart, should_stop: ShouldStop
    ) -> None:
        require(len(settings.lanes) == 2, f"{len(settings.lanes) - 1} lanes to test.", "Name one method beside plain decoding.")
        self.settings, self.pair, self.pool = settings, pair, pool
        self.on_part, self.should_stop = on_part, should_stop
        self.lane = settings.lanes[1]
        self.result = PairResult(settings, pair, resolve_rule(self.lane.rule, settings.sampling))
        self.began = time.monotonic()
        self.told = -math.inf
        self.done = 0.0

    def run(self) -> PairResult:
        """Do all of it."""
        result = self.result
        greedy = replace(
            self.settings,
            lanes=(LaneSettings(), replace(self.lane, rule="auto")),
            sampling=SamplingParams(temperature=0.0, seed=self.settings.sampling.seed),
            max_tokens=self.pair.greedy_tokens,
            observe="light",
        )
        with closing(Race(greedy, 0, self.pool)) as race:
            self._greedy(race)
            if not result.stopped and not self.settings.sampling.greedy:
                lane = race.lanes[1]
                assert isinstance(lane, Lane)
                self._sampled(lane)
        result.seconds = time.monotonic() - self.began
        return result

    def show(self, text: str, fraction: float | None = None, force: bool = False) -> None:
        """Say how far it is, now and then."""
        now = time.monotonic()
        if force or now - self.told >= UPDATE_S:
            self.told = now
            self.result.seconds = now - self.began
            self.on_part(self.result, text, fraction)

    def tell(self, text: str, fraction: float | None = None, force: bool = False) -> None:
        """Stop where that is wanted; say how far it is."""
        if self.should_stop():
            raise Stopped
        self.show(text, fraction, force)

    def _greedy(self, race: Race) -> None:
        """Race plain and the lane at temperature 0: loads the models, and compares token for token."""
        result = self.result
        failed: list[Failed] = []
        ends: dict[int, LaneEnded] = {}

        def listen(event: Event) -> None:
            if isinstance(event, Failed):
                failed.append(event)
            elif isinstance(event, LaneEnded):
                ends[event.lane] = event
            elif isinstance(event, RaceStarted):
                result.facts, result.prompt_ids = dict(event.facts), event.prompt_ids
            elif isinstance(event, RaceEnded):
                result.stopped = event.end == "stopped"
            if isinstance(event, Progress):
                self.show(event.text, event.fraction)
            else:
                self.show("Greedy, token for token")

        race.run(listen, self.should_stop)
        if failed:
            raise SpecviewError(failed[0].message, usage=failed[0].usage)
        for index in sorted(ends):
            if ends[index].end == "error":
                raise SpecviewError(f"lane {race.lanes[index].record.name}: {ends[index].error}")
        if 1 in ends:
            result.greedy = ends[1].equality

    def _sampled(self, ready: Lane) -> None:
        """Draw continuations over cached rows, compare them, and then the rows themselves."""

        def on_pass() -> None:
            self.tell("Continuations", self.done)

        with ExitStack() as stack:
            target, single, draft = (
                None if engine is None else stack.enter_context(closing(CachedEngine(engine, single=one, on_pass=on_pass)))
                for engine, one in ((ready.target, False), (ready.target, True), (ready.draft, False))
            )
            assert target is not None and single is not None
            work = _Continuations(self, ready, target, draft)
            try:
                work.run()
            except Stopped:
                self.result.stopped = True
            work.report(final=True)
            if not self.result.stopped:
                try:
                    self.tell("Closed forms", force=True)
                    work.biases()
                    self.tell("Kernels: one row against several", force=True)
                    self.result.drift = work.drift(single)
                except Stopped:
                    self.result.stopped = True
            self.result.cached = work.cached(single)


class _Continuations:
    """Draws continuations by the product's own lanes over cached engines, and compares them."""

    def __init__(
        self, experiment: _Experiment, ready: Lane, target: CachedEngine, draft: CachedEngine | None
    ) -> None:
        self.experiment = experiment
        self.result = experiment.result
        self.settings, self.pair = experiment.settings, experiment.pair
        self.ready, self.target, self.draft = ready, target, draft
        self.prompt = tuple(ready.record.prompt_ids)
        self.names = samplers_of(self.result.rule)
        self.lossy = [name for name in self.names if is_lossy(name)]
        self.outcomes: dict[str, Counter[statistics.Continuation]] = {name: Counter() for name in self.names}
        self.counts: dict[str, Counter[str]] = {name: Counter() for name in self.names}
        self._steps: dict[statistics.Continuation, tuple[dict[int, float], dict[str, tuple[float, dict[int, float]]]]] = {}

    # -- drawing -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """One continuation of each sampler in turn, so that a stop leaves them equal."""
        seed = self.settings.sampling.seed
        states = {
            name: int(np.random.SeedSequence([seed, 5, index]).generate_state(1, np.uint64)[0])
            for index, name in enumerate(self.names)
        }
        report_at = time.monotonic() + REPORT_S
        for number in range(self.pair.samples):
            drawn = {name: self._continue(name, (states[name] + number) % 2**63) for name in self.names}
            for name, (outcome, counts) in drawn.items():
                self.outcomes[name][outcome] += 1
                self.counts[name].update(counts)
            self.result.samples = number + 1
            self.experiment.done = (number + 1) / self.pair.samples
            begun = time.monotonic()
            if begun >= report_at:
                self.report(final=False)
                # comparing takes its share of the time, and no more
                report_at = time.monotonic() + max(REPORT_S, 9 * (time.monotonic() - begun))
            self.experiment.tell("Continuations", self.experiment.done)

    def _continue(self, name: str, seed: int) -> tuple[statistics.Continuation, Counter[str]]:
        """One continuation by a lane of the product's own; tokens judged, accepted and emitted, and rounds."""
        plain, ready = name == "plain", self.ready
        chosen = LaneSettings() if plain else replace(self.experiment.lane, rule=name)
        run = replace(
            self.settings,
            lanes=(chosen,),
            sampling=replace(self.settings.sampling, seed=seed),
            max_tokens=self.pair.tokens,
            observe="off",
        )
        target: Any = self.target
        draft: Any = None if plain else self.draft
        heads = {} if plain else ready.heads
        counts: Counter[str] = Counter()
        with closing(Lane(chosen, run, list(self.prompt), target, draft, costs=ready.costs, heads=heads)) as lane:
            lane.prefill(self.pair.tokens)
            while (round_ := lane.step()) is not None:
                counts.update(judged=round_.judged, accepted=round_.accepted, emitted=len(round_.emitted), rounds=1)
        return tuple(lane.sequence.output), counts

    # -- comparing ---------------------------------------------------------------------------------------

    def report(self, final: bool) -> None:
        """Compare what there is; the permutations wait for the end, and are few after a stop."""
        result, depths = self.result, self.pair.tokens
        if result.samples < MIN_SAMPLES // 2:
            return
        most = statistics.FIRST_PERMUTATIONS if result.stopped else statistics.PERMUTATIONS
        for index, name in enumerate(self.names[1:]):
            rng = np.random.default_rng([self.settings.sampling.seed, 13, index]) if final else None
            tests = tuple(
                statistics.compare_depth(self.outcomes["plain"], self.outcomes[name], depth, depths, rng, most)
                for depth in range(1, depths + 1)
            )
            judged, accepted, emitted, rounds = (self.counts[name][what] for what in ("judged", "accepted", "emitted", "rounds"))
            result.rules[name] = RuleResult(name, result.samples, tests, judged, accepted, emitted, rounds)
        result.first = self._first_tokens()
        result.cached = self.cached(None)

    def _first_tokens(self) -> tuple[FirstToken, ...]:
        p = self.p(())
        q = None if self.no_closed_form else self.q(())
        # the likeliest of either model, by p: what q alone gives shows what the rule has to take away
        weight = p if q is None else p + q
        shown = [token for token in np.argsort(-weight)[:BARS].tolist() if weight[token] > 0]
        shown.sort(key=lambda token: -float(p[token]))
        firsts: dict[str, Counter[int]] = {name: Counter() for name in self.names}
        for name, found in self.outcomes.items():
            for outcome, count in found.items():
                firsts[name][outcome[0]] += count
        text = self.ready.target.tokenizer.token_text
        return tuple(
            FirstToken(
                token,
                text(token),
                float(p[token]),
                float(q[token]) if q is not None else None,
                {name: found[token] / self.result.samples for name, found in firsts.items()},
            )
            for token in shown
        )

    def cached(self, single: CachedEngine | None) -> dict[str, Any]:
        """What was computed, and how often it was used."""
        found: dict[str, Any] = {}
        for name, engine in (("target", self.target), ("draft", self.draft), ("one_row", single)):
            if engine is not None:
                one = engine.statistics
                found |= {f"{name}_rows_asked": one.asked, f"{name}_rows_computed": one.computed}
                found |= {f"{name}_passes": one.passes, f"{name}_rows_dropped": one.dropped}
        return found

    # -- rows --------------------------------------------------------------------------------------------

    def logits(self, engine: CachedEngine, prefix: statistics.Continuation) -> Array:
        """The logit row [vocab] after the prompt and a prefix."""
        context = (*self.prompt, *prefix)
        row = engine.rows(context[:-1], len(self.prompt) - 1, [context[-1]])[0]["logits"]
        if not self.settings.sampling.penalised:
            return row
        penalties = Penalties(self.settings.sampling, len(self.prompt))
        penalties.follow(context)
        return penalties.rows(row[None], [[]])[0]

    def decided(self, row: Array) -> statistics.Floats:
        """The decision distribution [vocab] of a logit row, in float64 that sums to 1 there too."""
        found = np.asarray(probabilities(row, self.settings.sampling), dtype=np.float64)
        return found / found.sum()

    def p(self, prefix: statistics.Continuation) -> statistics.Floats:
        """The target's decision distribution after a prefix."""
        return self.decided(self.logits(self.target, prefix))

    def q(self, prefix: statistics.Continuation) -> statistics.Floats:
        """The draft's decision distribution after a prefix, in the target's width."""
        assert self.draft is not None
        width = self.ready.target.vocab_size
        found = self.decided(self.logits(self.draft, prefix)[:width])
        return np.pad(found, (0, width - len(found)))

    def drift(self, single: CachedEngine) -> Drift | None:
        """Compare the rows of the most visited prefixes with those of one-row passes."""
        visits: Counter[statistics.Continuation] = Counter()
        ends = self.ready.target.eos_ids
        for outcome, count in self.outcomes["plain"].items():
            for depth in range(self.pair.tokens):
                if depth <= len(outcome) and not (depth and outcome[depth - 1] in ends):
                    visits[outcome[:depth]] += count
        rows = len(self.prompt) + 2 * self.pair.tokens + self.ready.pass_rows + 1
        single.new_session(min(self.ready.target.context_length, rows))
        chosen = visits.most_common(DRIFT_PREFIXES)
        if not chosen:
            return None
        apart: dict[statistics.Continuation, float] = {}
        logit, flips = 0.0, 0
        for number, (prefix, _) in enumerate(sorted(chosen)):
            self.experiment.done = number / len(chosen)
            several, one = self.logits(self.target, prefix), self.logits(single, prefix)
            both = np.isfinite(several) & np.isfinite(one)
            logit = max(logit, float(np.abs(several[both].astype(np.float64) - one[both]).max()))
            flips += int(np.argmax(several) != np.argmax(one))
            apart[prefix] = statistics.total_variation(self.decided(several), self.decided(one))
        mean = sum(count * apart[prefix] for prefix, count in chosen) / sum(count for _, count in chosen)
        bound = min(1.0, mean * self.pair.tokens)
        return Drift(len(chosen), apart.get((), 0.0), mean, max(apart.values()), bound, logit, flips)

    # -- closed forms --------------------------------------------------------------------------------------

    @property
    def no_closed_form(self) -> str:
        """Why there is no closed form of the lossy rules' bias, or ''."""
        lane = self.experiment.lane
        if not METHODS[lane.method].steps_draft_model or self.draft is None:
            return f"the closed form needs q of every prefix, which {lane.method} does not give"
        if lane.policy != "constant":
            return f"the closed form needs drafts of constant length, and the policy is {lane.policy}"
        asked = str(lane.options.get("vocabulary", "auto"))
        target: Any = self.target
        draft: Any = self.draft
        if universal.approach(asked, "rejection", target, draft) != "same":
            return "the closed form needs a draft with the target's tokenizer"
        return ""

    def biases(self) -> None:
        """Find the lossy rules' biases by their closed forms, and hold the samples against them."""
        self.result.no_bias = self.no_closed_form
        if self.result.no_bias:
            return
        self.keep_steps({outcome for found in self.outcomes.values() for outcome in found})
        plain, size = self.outcomes["plain"], self.result.samples
        weights = np.array(list(plain.values())) / size
        for name in self.lossy:
            ratios = np.array([self.ratio(name, outcome) for outcome in plain])
            own = sum(count for outcome, count in self.outcomes[name].items() if self.ratio(name, outcome) > 1)
            favoured, share = ratios > 1, own / size
            measured = float(share - weights @ favoured)
            closed = float(weights @ np.maximum(ratios - 1, 0))
            weighed = np.where(favoured, ratios, 0.0)
            spread = float(weights @ weighed**2) - float(weights @ weighed) ** 2
            error = math.sqrt(max(share * (1 - share) + spread, 0.0) / size)
            away = abs(measured - closed)
            p = math.erfc(away / error / math.sqrt(2)) if error > 0 else float(away < 1e-9)  # two-sided, of a normal value
            first = first_token_bias(name, self.p(()), self.q(()))
            bias = Bias(first, closed, measured, error, p)
            self.result.rules[name] = replace(self.result.rules[name], bias=bias)

    def keep_steps(self, outcomes: Iterable[statistics.Continuation]) -> None:
        """Keep of each prefix what the closed forms need: scalars, so that rows may be dropped."""
        wanted: dict[statistics.Continuation, set[int]] = {}
        for outcome in outcomes:
            for depth, token in enumerate(outcome):
                wanted.setdefault(outcome[:depth], set()).add(token)
        for number, (prefix, tokens) in enumerate(sorted(wanted.items())):
            self.experiment.done = number / len(wanted)
            self.experiment.tell("Closed forms", self.experiment.done)
            p = self.p(prefix)
            cases: dict[str, tuple[float, dict[int, float]]] = {}
            if len(prefix) < self.pair.tokens - 1:  # the last token is never drafted
                q = self.q(prefix)
                for name in self.lossy:
                    kept = q * accepts(name, p, q)
                    cases[name] = (1 - float(kept.sum()), {token: float(kept[token]) for token in tokens})
            self._steps[prefix] = ({token: float(p[token]) for token in tokens}, cases)

    def ratio(self, name: str, outcome: statistics.Continuation) -> float:
        """The rule's exact probability of a continuation over the target's: enumerated along its prefixes.

        weights[left] is the chance, over p's, of having come so far with `left` tokens of the draft still to be judged.
        A refused token is replaced by a draw from p itself (both lossy rules), a kept draft ends in a bonus token.
        """
        k, total = self.ready.k, self.pair.tokens
        weights = {min(k, total - 1): 1.0}
        for depth, token in enumerate(outcome):
            p, cases = self._steps[outcome[:depth]]
            after: dict[int, float] = defaultdict(float)
            begin = min(k, total - (depth + 1) - 1)  # drafted in a round that begins after this token
            for left, weight in weights.items():
                if left <= 0:
                    after[begin] += weight
                    continue
                refused, kept = cases[name]
                after[left - 1] += weight * kept[token] / p[token]
                after[begin] += weight * refused
            weights = after
        return sum(weights.values())
