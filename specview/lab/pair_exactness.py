"""Whether a real target's speculative output is still the target's: thousands of short continuations of a prompt.

Rule and kernels are judged apart. The rule: continuations by the product's own lanes, over rows that are computed
once per prefix (exact_cache), so that plain and speculative decoding see the same numbers and only the rule can
differ. The kernels: how far the target's rows are apart between passes of one row and of several, which no rule can
mend. The naive rule goes along as a control that must be caught, and greedy decoding is compared token for token.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from specview.decoding.ledger import Array
from specview.decoding.sampling import SamplingParams, probabilities
from specview.decoding.verification import (
    RULES,
    resolve_rule,
)
from specview.drafting import universal
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError, Stopped, UsageError
from specview.lab.exact_cache import CachedEngine
from specview.lab.exact_statistics import (
    Floats,
    normal_tails,
)
from specview.lab.pair_results import (
    MIN_SAMPLES,
    Bias,
    Drift,
    FirstToken,
    PairResult,
    PairSettings,
    RuleResult,
)
from specview.lab.pair_statistics import (
    FIRST_PERMUTATIONS,
    PERMUTATIONS,
    Outcome,
    accepts,
    compare_depth,
    first_token_bias,
)
from specview.racing.lane import Lane
from specview.racing.pool import ModelPool
from specview.racing.race import Race
from specview.racing.settings import LaneSettings, RunSettings
from specview.settings.events import Event, Failed, LaneEnded, Progress, RaceEnded, RaceStarted

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
    return tuple(dict.fromkeys(["plain", rule, *(["rejection"] if not RULES[rule] else []), "naive", "typical"]))


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
    experiment = _Experiment(settings.checked(), pair or PairSettings(), pool, on_part, should_stop)
    try:
        return experiment.run()
    finally:
        if models is None:
            pool.close()


class _Experiment:
    """The parts of a run, in the order in which they are done."""

    def __init__(
        self,
        settings: RunSettings,
        pair: PairSettings,
        pool: ModelPool,
        on_part: OnPart,
        should_stop: ShouldStop,
    ) -> None:
        if len(settings.lanes) != 2:
            raise UsageError(f"{len(settings.lanes) - 1} lanes to test.", "Name one method beside plain decoding.")
        self.settings, self.pair, self.pool = settings, pair, pool
        self.on_part, self.should_stop = on_part, should_stop
        self.lane = settings.lanes[1]
        self.rule = resolve_rule(self.lane.rule, settings.sampling)
        self.result = PairResult(settings, pair, self.rule)
        self.began = time.monotonic()
        self.told = -math.inf
        self.done = 0.0

    def run(self) -> PairResult:
        """Do all of it."""
        result = self.result
        race = Race(self._greedy_settings(), 0, self.pool)
        try:
            self._greedy(race)
            if not result.stopped and not self.settings.sampling.greedy:
                self._sampled(race)
        finally:
            race.close()
        result.seconds = time.monotonic() - self.began
        return result

    def _tell(self, text: str, fraction: float | None = None, force: bool = False) -> None:
        """Stop where that is wanted; tell how far it is, now and then."""
        if self.should_stop():
            raise Stopped
        now = time.monotonic()
        if force or now - self.told >= UPDATE_S:
            self.told = now
            self.result.phase = text
            self.result.seconds = now - self.began
            self.on_part(self.result, text, fraction)

    # -- greedy, token for token ---------------------------------------------------------------------

    def _greedy_settings(self) -> RunSettings:
        lanes = (LaneSettings(), replace(self.lane, rule="auto"))
        sampling = SamplingParams(temperature=0.0, seed=self.settings.sampling.seed)
        return replace(
            self.settings, lanes=lanes, sampling=sampling, max_tokens=self.pair.greedy_tokens, observe="light"
        )

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
            now = time.monotonic()
            if now - self.told >= UPDATE_S:
                self.told = now
                text = event.text if isinstance(event, Progress) else "Greedy, token for token"
                result.phase = text
                self.on_part(result, text, event.fraction if isinstance(event, Progress) else None)

        race.run(listen, self.should_stop)
        if failed:
            raise SpecviewError(failed[0].message, usage=failed[0].usage)
        for index in sorted(ends):
            if ends[index].end == "error":
                raise SpecviewError(f"lane {race.lanes[index].record.name}: {ends[index].error}")
        if 1 in ends:
            result.greedy = ends[1].equality

    # -- sampled -----------------------------------------------------------------------------------------

    def _sampled(self, race: Race) -> None:
        result = self.result
        ready = race.lanes[1]

        def on_pass() -> None:
            self._tell("Continuations", self.done)

        target = CachedEngine(ready.target, on_pass=on_pass)
        draft = CachedEngine(ready.draft, on_pass=on_pass) if ready.draft is not None else None
        single = CachedEngine(ready.target, single=True, on_pass=on_pass)
        try:
            work = _Continuations(self, ready, target, draft)
            try:
                work.run()
            except Stopped:
                result.stopped = True
            work.report(final=True)
            if not result.stopped:
                try:
                    self._tell("Closed forms", None, force=True)
                    work.biases()
                    self._tell("Kernels: one row against several", None, force=True)
                    result.drift = self._drift(work, target, single)
                except Stopped:
                    result.stopped = True
            result.cached = work.cached(single)
        finally:
            for engine in (target, draft, single):
                if engine is not None:
                    engine.close()

    def _drift(self, work: _Continuations, target: CachedEngine, single: CachedEngine) -> Drift | None:
        """Compare the rows of the most visited prefixes with those of one-row passes."""
        visits: Counter[Outcome] = Counter()
        ends = work.ends
        for outcome, count in work.outcomes["plain"].items():
            for depth in range(self.pair.tokens):
                if depth <= len(outcome) and not (depth and outcome[depth - 1] in ends):
                    visits[outcome[:depth]] += count
        single.new_session(work.capacity)
        chosen = visits.most_common(DRIFT_PREFIXES)
        total = sum(count for _, count in chosen)
        if not total:
            return None
        mean = largest = logit = first = 0.0
        flips = 0
        for number, (prefix, count) in enumerate(sorted(chosen)):
            self.done = number / len(chosen)
            several, one = work.logits(target, prefix), work.logits(single, prefix)
            both = np.isfinite(several) & np.isfinite(one)
            logit = max(logit, float(np.abs(several[both].astype(np.float64) - one[both]).max()))
            sampling = self.settings.sampling
            p, other = _wide(probabilities(several, sampling)), _wide(probabilities(one, sampling))
            apart = float(np.abs(p - other).sum()) / 2
            first = apart if not prefix else first
            mean += count * apart / total
            largest = max(largest, apart)
            flips += int(np.argmax(several) != np.argmax(one))
        bound = min(1.0, mean * self.pair.tokens)
        return Drift(len(chosen), first, mean, largest, bound, logit, flips)


@dataclass(slots=True)
class Drawn:
    """Drafted tokens judged and accepted, tokens emitted, rounds."""

    judged: int = 0
    accepted: int = 0
    emitted: int = 0
    rounds: int = 0

    def add(self, other: Drawn) -> None:
        """Count another's too."""
        self.judged += other.judged
        self.accepted += other.accepted
        self.emitted += other.emitted
        self.rounds += other.rounds


class _Continuations:
    """Draws continuations by the product's own lanes over cached engines, and compares them."""

    def __init__(
        self, experiment: _Experiment, ready: Lane, target: CachedEngine, draft: CachedEngine | None
    ) -> None:
        self.experiment = experiment
        self.result = experiment.result
        self.settings, self.pair = experiment.settings, experiment.pair
        self.ready, self.target, self.draft = ready, target, draft
        self.ends = ready.target.eos_ids
        self.prompt = list(ready.record.prompt_ids)
        self.k = ready.k
        self.names = samplers_of(experiment.rule)
        self.size = 0  # continuations that every sampler has
        self.outcomes: dict[str, Counter[Outcome]] = {name: Counter() for name in self.names}
        self.counts: dict[str, Drawn] = {name: Drawn() for name in self.names}
        self.capacity = min(ready.target.context_length, len(self.prompt) + 2 * self.pair.tokens + ready.pass_rows + 1)
        self._memo: dict[tuple[str, Outcome], Any] = {}

    # -- drawing -----------------------------------------------------------------------------------------

    def run(self) -> None:
        """One continuation of each sampler in turn, so that a stop leaves them equal."""
        states = {
            name: int(np.random.SeedSequence([self.settings.sampling.seed, 5, index]).generate_state(1, np.uint64)[0])
            for index, name in enumerate(self.names)
        }
        report_at = time.monotonic() + REPORT_S
        for number in range(self.pair.samples):
            drawn = {name: self._continue(name, (states[name] + number) % 2**63) for name in self.names}
            for name, (outcome, counts) in drawn.items():
                self.outcomes[name][outcome] += 1
                self.counts[name].add(counts)
            self.result.samples = self.size = number + 1
            self.experiment.done = (number + 1) / self.pair.samples
            begun = time.monotonic()
            if begun >= report_at:
                self.report(final=False)
                # comparing takes its share of the time, and no more
                report_at = time.monotonic() + max(REPORT_S, 9 * (time.monotonic() - begun))
            self.experiment._tell("Continuations", self.experiment.done)

    def _continue(self, name: str, seed: int) -> tuple[Outcome, Drawn]:
        """One continuation by a lane of the product's own."""
        plain = name == "plain"
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
        lane = Lane(
            chosen, run, self.prompt, target, draft, costs=self.ready.costs, heads={} if plain else self.ready.heads
        )
        counts = Drawn()
        try:
            lane.prefill(self.pair.tokens)
            while (round_ := lane.step()) is not None:
                counts.add(Drawn(round_.judged, round_.accepted, len(round_.emitted), 1))
        finally:
            lane.close()
        return tuple(lane.sequence.output), counts

    # -- comparing ---------------------------------------------------------------------------------------

    def report(self, final: bool) -> None:
        """Compare what there is; the permutations wait for the end, and are few after a stop."""
        size = self.size
        if size < MIN_SAMPLES // 2:
            return
        plain = self.outcomes["plain"]
        seed = self.settings.sampling.seed
        most = FIRST_PERMUTATIONS if self.result.stopped else PERMUTATIONS
        for index, name in enumerate(self.names[1:]):
            rng = np.random.default_rng([seed, 13, index]) if final else None
            other, depths = self.outcomes[name], self.pair.tokens
            tests = tuple(compare_depth(plain, other, depth, depths, rng, most) for depth in range(1, depths + 1))
            counts, known = self.counts[name], self.result.rules.get(name)
            self.result.rules[name] = RuleResult(
                name, not RULES[name], size, tests, counts.judged, counts.accepted, counts.emitted, counts.rounds,
                known.bias if known is not None else None,
            )  # fmt: skip
        self.result.first = self._first_tokens()
        self.result.cached = self.cached(None)

    def _first_tokens(self) -> tuple[FirstToken, ...]:
        p = self.p(())
        q = self.q(()) if self.has_closed_form else None
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
                {name: found[token] / self.size for name, found in firsts.items()},
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

    # -- closed forms --------------------------------------------------------------------------------------

    @property
    def has_closed_form(self) -> bool:
        """Whether q is known for every prefix: a draft model with the target's tokenizer."""
        return self.no_closed_form == ""

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

    def logits(self, engine: CachedEngine, prefix: Outcome) -> Array:
        """The logit row [vocab] after the prompt and a prefix."""
        root = len(self.prompt) - 1
        context = (*self.prompt, *prefix)
        return engine.rows(context[:-1], root, [context[-1]])[0]["logits"]

    def p(self, prefix: Outcome) -> Floats:
        """The target's decision distribution after a prefix."""
        return _wide(probabilities(self.logits(self.target, prefix), self.settings.sampling))

    def q(self, prefix: Outcome) -> Floats:
        """The draft's decision distribution after a prefix, in the target's width."""
        assert self.draft is not None
        width = self.ready.target.vocab_size
        row = self.logits(self.draft, prefix)[:width]
        found = _wide(probabilities(row, self.settings.sampling))
        return np.concatenate([found, np.zeros(width - len(found))]) if len(found) < width else found

    def biases(self) -> None:
        """Find the lossy rules' biases by their closed forms, and hold the samples against them."""
        self.result.no_bias = self.no_closed_form
        if self.result.no_bias:
            return
        self._step_rows({outcome for found in self.outcomes.values() for outcome in found})
        plain = list(self.outcomes["plain"])
        weights = np.array([self.outcomes["plain"][outcome] for outcome in plain]) / self.size
        for name in self.names[1:]:
            if RULES[name]:
                continue
            ratios = np.array([self.ratio(name, outcome) for outcome in plain])
            own = sum(count for outcome, count in self.outcomes[name].items() if self.ratio(name, outcome) > 1)
            favoured, share = ratios > 1, own / self.size
            measured = float(share - weights @ favoured)
            closed = float(weights @ np.maximum(ratios - 1, 0))
            weighed = np.where(favoured, ratios, 0.0)
            spread = float(weights @ weighed**2) - float(weights @ weighed) ** 2
            error = math.sqrt(max(share * (1 - share) + spread, 0.0) / self.size)
            away = measured - closed
            p = normal_tails(away / error) if error > 0 else float(abs(away) < 1e-9)
            first = first_token_bias(name, self.p(()), self.q(()))
            self.result.rules[name] = replace(
                self.result.rules[name], bias=Bias(first, closed, measured, error, p)
            )

    def _step_rows(self, outcomes: Iterable[Outcome]) -> None:
        """Keep of each prefix what the closed forms need: scalars, so that rows may be dropped."""
        lossy = [name for name in self.names[1:] if not RULES[name]]
        wanted: dict[Outcome, set[int]] = {}
        for outcome in outcomes:
            for depth, token in enumerate(outcome):
                wanted.setdefault(outcome[:depth], set()).add(token)
        for number, (prefix, tokens) in enumerate(sorted(wanted.items())):
            self.experiment.done = number / len(wanted)
            self.experiment._tell("Closed forms", self.experiment.done)
            p = self.p(prefix)
            drafts = len(prefix) < self.pair.tokens - 1  # the last token is never drafted
            q = self.q(prefix) if drafts else None
            cases: dict[str, tuple[float, dict[int, float]]] = {}
            if q is not None:
                for name in lossy:
                    kept = q * accepts(name, p, q)
                    cases[name] = (1 - float(kept.sum()), {token: float(kept[token]) for token in tokens})
            self._memo["step", prefix] = ({token: float(p[token]) for token in tokens}, cases)

    def ratio(self, name: str, outcome: Outcome) -> float:
        """The rule's exact probability of a continuation over the target's: enumerated along its prefixes.

        weights[left] is the chance, over p's, of having come so far with `left` tokens of the draft still to be judged.
        A refused token is replaced by a draw from p itself (both lossy rules), a kept draft ends in a bonus token.
        """
        total = self.pair.tokens
        weights = {min(self.k, total - 1): 1.0}
        for depth, token in enumerate(outcome):
            p, cases = self._memo["step", outcome[:depth]]
            after: dict[int, float] = {}
            begin = min(self.k, total - (depth + 1) - 1)  # drafted in a round that begins after this token
            for left, weight in weights.items():
                if left <= 0:
                    after[begin] = after.get(begin, 0.0) + weight
                    continue
                refused, kept = cases[name]
                after[left - 1] = after.get(left - 1, 0.0) + weight * kept[token] / p[token]
                after[begin] = after.get(begin, 0.0) + weight * refused
            weights = after
        return sum(weights.values())


def _wide(row: Array) -> Floats:
    """A distribution in float64 that sums to 1 there too."""
    found = np.asarray(row, dtype=np.float64)
    return found / found.sum()
