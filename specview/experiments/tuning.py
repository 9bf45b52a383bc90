"""Which method, draft length and policy are fastest here, on this prompt or set of prompts, within a time budget.

Screening: what each method is worth at each length, predicted from one short race of it or from a replay (`screening`).
Choosing: the promising lanes race beside plain, up to four at a time, all on the same prompts; the slower half goes after
each heat, and the last few race on. Confirming: the chosen lane races beside plain anew, on prompts that were not used
for choosing where there are enough. Only these fresh speedups make the interval that is reported: the speed that a lane
was chosen by is flattered by the choice.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, TypeVar

from specview.drafting.lanes import checked_lane, heads_of, needs_draft
from specview.drafting.plain import BASELINE
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError, Stopped, UsageError
from specview.experiments.arms import (
    COPIED_K,
    Candidate,
    Unusable,
    candidates,
    combined,
    variants_of_policy,
)
from specview.experiments.prompt_set import ALL, NO_WORKLOAD, request_settings
from specview.experiments.runner import Clock, Runner, lane_keys
from specview.experiments.screening import Probe, Replay, predicted_copies, replay_copies
from specview.experiments.tune_result import ArmResult, Over, TuneResult
from specview.lab.measured import MeasuredCosts, measured_costs
from specview.racing.compare import CompareResult, LaneResult
from specview.racing.intervals import LEAST, clearly_below, interval_of
from specview.racing.load_meter import LoadMeter
from specview.racing.pool import ModelPool, ShouldStop
from specview.racing.race import tokenize_prompt
from specview.racing.resolve import checked_run
from specview.racing.workloads import Prompt, Workload
from specview.settings.events import Event, Progress, RaceStarted
from specview.settings.run import BUNDLED, MAX_LANES, LaneSettings, RunSettings

LEAST_SECONDS = 5.0
MOST_SECONDS = 24 * 3600.0
DEFAULT_SECONDS = 180.0
LEAST_TOKENS = 16
"""Output tokens under which a race says nothing."""
PROBE_TOKENS = 48
SCREEN_SHARE = 0.3
"""Of the budget: what calibrating and screening may take."""
CHOOSE_SHARE = 0.62
"""Of the budget: when choosing ends and the chosen lane is measured anew."""
LEAST_TO_SPLIT = 8
LEAST_HELD_OUT = 5
MOST_ARMS = 12
NEAR_BEST = 0.75
"""Of the best prediction: a lane below it is not raced, unless there would be none of its family."""
GOOD = 0.85
"""Of the best prediction: a method above it races at its second best length and under other policies too."""
MOST_FINALS = 12
MOST_FRESH = 16
_TOGETHER = MAX_LANES - 1
_T = TypeVar("_T")
_SLACK = 1.15  # races take somewhat longer than their rounds: prefill, looking, the loop around them


@dataclass(frozen=True, slots=True)
class TuneProgress:
    """What is being tried, the share of the budget that is spent, and the best lane so far with its speedup."""

    text: str
    fraction: float
    best: str = ""
    best_speedup: float | None = None

    @property
    def words(self) -> str:
        """All of it but the share, in one line."""
        return f"{self.text}. Best so far: {self.best}, {self.best_speedup:.2f} times plain" if self.best_speedup else self.text


def tune(
    settings: RunSettings,
    prompts: Workload,
    seconds: float = DEFAULT_SECONDS,
    *,
    methods: Sequence[str] = (),
    drafts: Sequence[str] = (),
    rule: str = "auto",
    models: ModelPool | None = None,
    on_progress: Callable[[TuneProgress], None] = lambda news: None,
    on_result: Callable[[TuneResult], None] = lambda result: None,
    should_stop: ShouldStop = lambda: False,
    clock: Clock = time.perf_counter,
) -> TuneResult:
    """Find the fastest lane for these prompts on this target within `seconds`, loading included.

    The lanes of `settings` do not matter; methods limits what is tried, drafts are models or heads to try beside or in
    place of the bundled ones, rule is every lane's. on_result hears of the result after every race. A stop keeps what there is. Raises
    SpecviewError where nothing can run (the target does not load, every prompt is too long), UsageError on settings.
    """
    check_seconds(seconds)
    if settings.check_mode:
        raise UsageError("check mode pads passes, so its times mean nothing.", "Leave out --check-mode.")
    base = checked_run(replace(settings, lanes=(LaneSettings(),), baseline=True, observe="off"))
    checked_lane(LaneSettings(rule=rule), base.sampling)
    search = _Search(base, prompts, seconds, methods, drafts, rule, on_progress, on_result, should_stop, clock)
    with Runner(
        base, prompts.prompts, models, should_stop=search.stop, on_event=search.listen, clock=clock
    ) as search.runner:
        return search.run()


def check_seconds(seconds: float) -> None:
    """Raise UsageError for a time budget that is none."""
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise UsageError(
            f"the time budget is {seconds:g} s.", f"Use {LEAST_SECONDS:g} seconds to {MOST_SECONDS / 3600:g} hours."
        )


def split_prompts(prompts: Sequence[Prompt]) -> tuple[list[int], list[int], Over]:
    """Places of the prompts to choose by and to confirm on, workloads taking turns in both.

    Eight and more are split, five at least to confirm on: an interval over fewer is too wide to tell anything. Fewer
    serve for both, and the interval is over fresh repeats of them.
    """
    by_workload: dict[str, list[int]] = {}
    for place, prompt in enumerate(prompts):
        by_workload.setdefault(prompt.workload, []).append(place)
    turns = [place for row in itertools.zip_longest(*by_workload.values()) for place in row if place is not None]
    if len(turns) < LEAST_TO_SPLIT:
        return turns, turns, "repeats"
    held_out = max(LEAST_HELD_OUT, len(turns) // 2)
    return turns[: len(turns) - held_out], turns[len(turns) - held_out :], "prompts"


@dataclass
class _Search:
    """One tuning."""

    settings: RunSettings
    prompts: Workload
    seconds: float
    methods: Sequence[str]
    drafts: Sequence[str]
    rule: str
    on_progress: Callable[[TuneProgress], None]
    on_result: Callable[[TuneResult], None]
    asked_to_stop: ShouldStop
    clock: Clock
    runner: Runner = field(init=False)
    lane_s: float = 0.0  # of all lanes' races so far, and their tokens: what a race will take
    lane_tokens: float = 0.0
    pass_s: dict[int, float] = field(default_factory=dict)
    plain_texts: dict[int, tuple[tuple[int, ...], tuple[int, ...], MeasuredCosts]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.begin = self.started = self.clock()
        self.deadline = self.cut_at = self.begin + self.seconds
        self.tokens = self.settings.max_tokens
        self.result = TuneResult(self.settings, self.prompts, self.seconds, tokens=self.tokens)
        self.raced = itertools.count()

    # -- the whole -----------------------------------------------------------------------------

    def run(self) -> TuneResult:
        """Do all of it; time and a stop end it where it is."""
        meter = LoadMeter()
        result = self.result
        choose, confirm, result.over = split_prompts(self.prompts.prompts)
        try:
            self.search(choose, confirm)
        except Stopped:
            if self.asked_to_stop():  # else the time is up
                result.end = "stopped"
        except SpecviewError as error:
            if not result.races:
                raise
            result.failures.append(str(error))  # what was measured stands
        result.judge()
        result.spent_s = self.clock() - self.begin
        result.busy = meter.busy_text()
        self.on_result(result)
        return result

    def search(self, choose: list[int], confirm: list[int]) -> None:
        """The stages in order."""
        result, pool = self.result, self.runner.pool
        self.say("Loading the target")
        # Loading is not cut short: what it converts or downloads serves the next try.
        target = pool.get(self.runner.target, lambda text, fraction: self.say(text or "Loading the target"), self.asked_to_stop)
        found, result.unusable = candidates(self.settings, target, self.methods, self.drafts, self.rule)
        if not found and not any(METHODS[name].combines for name in self.methods):
            return
        self.runner.lease.add(key for candidate in found for key in lane_keys(self.settings, candidate.lane))
        self.calibrate(self.fitting_prompts(target, choose, confirm))
        result.chosen_on = [self.name_of(place) for place in choose]
        predictions = self.predict(self.probe(found, choose), target.vocab_size)
        finalists = self.choose(self.plan(self.arms(predictions)), choose)
        if finalists:
            result.winner = max(finalists, key=lambda arm: arm.worth or 0.0)
            self.confirm(result.winner, confirm)

    def fitting_prompts(self, target: Any, *lists: list[int]) -> list[int]:
        """Take the prompts that do not fit out of the lists, a line for each; the ids of the first that does."""
        first: list[int] = []
        turns = self.runner.turns
        for place in dict.fromkeys(itertools.chain(*lists)):
            history = turns.history(place, self.race_of, lambda turn: "", "fits")
            try:
                ids = tokenize_prompt(replace(self.race_of(place), history=history), target)
                answers = turns.before(place) * self.settings.max_tokens
                if answers and len(ids) + answers >= target.context_length:
                    raise SpecviewError(
                        f"the conversation may take {len(ids) + answers} tokens and {target.model_name} takes "
                        f"{target.context_length}.",
                        "Ask for fewer tokens, or choose a model with a longer context.",
                    )
            except SpecviewError as error:
                self.result.failures.append(f"{self.name_of(place)}: {error}")
                for places in lists:
                    if place in places:
                        places.remove(place)
                continue
            first = first or ids
        if not first:
            raise SpecviewError(f"no prompt can run. The first: {self.result.failures[0]}")
        for places in lists:
            if not places:
                places += next(other for other in lists if other)
                self.result.over = "repeats"
        return first

    # -- time ----------------------------------------------------------------------------------

    def stop(self) -> bool:
        """Whether to end what runs: the user's stop, or the budget's end; a race that counts may outlast it by itself."""
        return self.asked_to_stop() or self.clock() > self.cut_at

    def check(self) -> None:
        """Raise Stopped where it is over."""
        if self.asked_to_stop() or self.clock() >= self.deadline:
            raise Stopped

    def left(self, share: float = 1.0) -> float:
        """Seconds left until that share of the budget is spent."""
        return self.begin + share * self.seconds - self.clock()

    def race_s(self, lanes: int, tokens: int) -> float:
        """Seconds that a race of plain and `lanes` others will take, as far as known."""
        token_s = self.lane_s / self.lane_tokens if self.lane_tokens else self.pass_s.get(1, 0.0)
        return (lanes + 1) * tokens * token_s * _SLACK

    def say(self, text: str) -> None:
        """Tell what is being tried."""
        best = max((arm for arm in self.result.arms if arm.speedups), key=lambda arm: arm.worth or 0.0, default=None)
        spent = min(max((self.clock() - self.begin) / self.seconds, 0.0), 1.0)
        self.on_progress(TuneProgress(text, spent, best.name if best else "", best.worth if best else None))

    # -- screening -----------------------------------------------------------------------------

    def calibrate(self, prompt_ids: Sequence[int]) -> None:
        """Measure the target's passes by their rows: the costs that predictions stand on."""
        self.say("Measuring the target's passes")

        def tell(fraction: float) -> None:
            if self.stop():
                raise Stopped

        rows = max(COPIED_K) + 1 if self.seconds >= 30 else 9
        known = self.runner.pool.measure_passes(self.runner.target, prompt_ids, rows, tell, self.clock)
        self.pass_s = dict(known)
        self.result.plain_pass_s = known[1]
        costs = MeasuredCosts(dict(sorted(known.items())))
        self.result.v = {k: costs.v(k) for k in (1, 2, 3, 4, 6, 8, 16) if k + 1 <= max(known)}

    def probe(self, found: Sequence[Candidate], choose: Sequence[int]) -> list[Probe]:
        """One short race of every candidate that runs a model, its length moving, and more while there is time."""
        probes = [Probe(one) for one in found]
        models = sorted((probe for probe in probes if not probe.candidate.copies), key=lambda probe: probe.candidate.seldom_pays)
        groups = [models[at : at + _TOGETHER] for at in range(0, len(models), _TOGETHER)] or [[]]
        share = 0.25 * self.seconds / len(groups)
        tokens = min(self.settings.max_tokens, PROBE_TOKENS, max(LEAST_TOKENS, int(share / max(self.race_s(_TOGETHER, 1), 1e-9))))
        for turn, place in enumerate(choose):
            if turn and self.left(SCREEN_SHARE) < len(groups) * self.race_s(_TOGETHER, tokens):
                break
            for group in groups:
                group = [probe for probe in group if not probe.error]
                if turn and not group and models:
                    continue
                race_s = self.race_s(len(group), tokens)
                if not turn and group and group[0] is not models[0] and self.left(SCREEN_SHARE * 1.5) < race_s:
                    continue  # the likelier ones were tried: the time left is for races
                if group and group[0].rounds and self.left(CHOOSE_SHARE) < race_s:
                    break
                self.check()
                names = ", ".join(dict.fromkeys(probe.candidate.method.name for probe in group)) or BASELINE
                text = f"Trying {names} on {self.name_of(place)}"
                base, *others = self.race([probe.lane for probe in group], place, tokens, text, counts=False).lanes
                for probe, lane in zip(group, others, strict=True):
                    probe.add(lane, base)
        self.result.unusable += [Unusable(probe.candidate.method.name, probe.error) for probe in probes if probe.error]
        return [probe for probe in probes if not probe.error]

    def predict(self, probes: Sequence[Probe], vocab_size: int) -> list[tuple[Candidate, dict[int, float]]]:
        """Predicted speedups by length of every candidate that runs; of one without lengths under 0."""
        predictions = []
        for probe in probes:
            self.check()
            one = probe.candidate
            if one.copies:
                predictions.append((one, self.predict_copies(one, vocab_size)))
                continue
            costs = probe.costs(self.pass_s)
            if costs is None:
                self.result.untried.append(one.method.name)
                continue
            if one.method.head or needs_draft(one.lane) or one.method.shares_passes:
                self.result.c.setdefault(one.method.name, costs.c_at(2))
            predictions.append((one, probe.predicted(costs)))
        return predictions

    def predict_copies(self, one: Candidate, vocab_size: int) -> dict[int, float]:
        """Replay a copying method on plain's texts."""
        self.say(f"Replaying {one.method.name} on the text")
        replays: list[tuple[Replay, MeasuredCosts]] = []
        by_workload: dict[str, list[Replay]] = {}
        for place, (prompt, output, costs) in self.plain_texts.items():
            replay = replay_copies(one.lane, one.lengths, prompt, output, vocab_size, self.stop, self.clock)
            if replay is None:
                raise Stopped
            replays.append((replay, costs))
            by_workload.setdefault(self.workload_of(place), []).append(replay)
        if replays and not any(length for replay, _ in replays for rounds in replay.rounds.values() for length in rounds):
            self.result.idle.append(one.method.name)
        for workload, own in by_workload.items():
            tokens = sum(replay.tokens for replay in own)
            if tokens:
                share = sum(replay.copied[max(one.lengths)] for replay in own) / tokens
                self.result.copied.setdefault(workload, {})[one.method.name] = share
        return predicted_copies(replays, one.lengths) if replays else {}

    # -- choosing ------------------------------------------------------------------------------

    def arms(self, predictions: Sequence[tuple[Candidate, dict[int, float]]]) -> list[ArmResult]:
        """The lanes that race: of each promising method its best lengths and policies, and combinations of the best."""
        by_best = sorted(predictions, key=lambda pair: -max(pair[1].values(), default=0.0))
        every: list[ArmResult] = []
        leading: list[ArmResult] = []
        policies: list[ArmResult] = []
        seconds: list[ArmResult] = []
        families: set[str] = set()
        top = max((max(found.values()) for _, found in by_best if found), default=0.0)
        for candidate, found in by_best:
            own = [
                ArmResult(replace(candidate.lane, k=k or candidate.lane.k), value)
                for k, value in sorted(found.items(), key=lambda item: -item[1])
            ]
            every += own
            if not own or candidate.method.name in self.result.idle:
                continue
            best = own[0].predicted or 0.0
            new_family = candidate.method.family not in families
            families.add(candidate.method.family)
            if best < NEAR_BEST * top and not new_family:
                continue
            leading.append(own[0])
            if best >= GOOD * top:
                seconds += own[1 : 3 if best == top else 2]
                lanes = variants_of_policy(candidate, own[0].lane.k) if own[0].lane.k else []
                policies += [ArmResult(checked_lane(lane, self.settings.sampling)) for lane in lanes]
        names = list(dict.fromkeys(candidate.method.name for candidate, _ in by_best))
        names.sort(key=lambda name: name in self.result.idle)
        model = next((one.lane.draft for one, _ in by_best if needs_draft(one.lane) or heads_of(one.lane)), BUNDLED)
        mixed = [ArmResult(one.lane) for one in combined(names, self.settings, self.methods, model, self.rule)]
        # Combinations and policies have no prediction: they go by their method's, behind the best of each.
        racing = _distinct([*leading, *mixed[:1], *policies[:1], *seconds[:1], *mixed[1:], *policies[1:], *seconds[1:]])
        self.result.arms = _distinct([*every, *racing, *policies])
        by_name = {arm.name: arm for arm in self.result.arms}
        return [by_name[arm.name] for arm in racing[:MOST_ARMS]]

    def plan(self, arms: list[ArmResult]) -> list[ArmResult]:
        """Settle how many lanes race, and the races' length: the whole output, or less where the budget is short."""
        one_token = self.race_s(0, 1)
        wanted = min(self.settings.max_tokens, 2 * LEAST_TOKENS)
        for count in sorted({len(arms), *range(_TOGETHER, len(arms), _TOGETHER), min(2, len(arms))}, reverse=True):
            heats = 1.5 * (count + math.ceil(count / _TOGETHER))
            lane_races = heats + 3 * (min(count, _TOGETHER) + 1) + 2 * 2 * LEAST
            fits = int(self.left() / (lane_races * one_token)) if one_token else self.settings.max_tokens
            arms = arms[:count]
            if fits >= wanted:
                break
        self.tokens = self.result.tokens = min(self.settings.max_tokens, max(LEAST_TOKENS, fits))
        return arms

    def choose(self, arms: list[ArmResult], places: Sequence[int]) -> list[ArmResult]:
        """Race the arms, the slower half going after every heat; returns those left, all raced on the same prompts."""
        alive = list(arms)
        turns = itertools.cycle(places)
        workloads = len({self.workload_of(place) for place in places})
        finals = 0
        while alive:
            groups = _groups(alive)
            heat_s = sum(self.race_s(len(group), self.tokens) for group in groups)
            done = 0
            for _ in range(workloads):
                first = not any(arm.speedups for arm in alive)
                if self.left(CHOOSE_SHARE) < heat_s and not (first and self.left() > heat_s):
                    break
                self.heat(alive, groups, next(turns))
                done += 1
                alive = [arm for arm in alive if not arm.error]
                groups = _groups(alive)
            if not done:
                break
            finals += len(alive) <= _TOGETHER
            alive = self.kept(alive)
            for arm in alive if len(alive) <= _TOGETHER else ():
                arm.stage = "final"
            if len(alive) == 1 or finals >= MOST_FINALS:
                break
        if alive and not any(arm.speedups for arm in alive):
            # Not even a heat of all fits: as many of the most promising race as do, one in any case.
            self.tokens = self.result.tokens = LEAST_TOKENS
            fits = [count for count in range(1, _TOGETHER + 1) if self.race_s(count, LEAST_TOKENS) < self.left() / 2]
            alive = alive[: max(fits, default=1)]
            self.heat(alive, [alive], next(turns))
        return [arm for arm in alive if arm.speedups and not arm.error]

    def heat(self, alive: Sequence[ArmResult], groups: Sequence[Sequence[ArmResult]], place: int) -> None:
        """Race all arms on one prompt: counts for choosing only where every group was raced."""
        found: dict[int, float] = {}
        for group in groups:
            self.check()
            names = ", ".join(arm.name for arm in group)
            outcome = self.race([arm.lane for arm in group], place, self.tokens, f"Racing {names} on {self.name_of(place)}")
            base, *lanes = outcome.lanes
            for arm, lane in zip(group, lanes, strict=True):
                speedup = self.count(arm, lane, base, place)
                if speedup is None:
                    arm.stage = "failed"
                else:
                    found[id(arm)] = speedup
        for arm in alive:
            if id(arm) in found:
                arm.speedups.append(found[id(arm)])
                arm.stage = "raced"
        self.result.lead()
        self.on_result(self.result)

    def count(self, arm: ArmResult, lane: LaneResult, base: LaneResult, place: int) -> float | None:
        """Keep what a race showed of an arm; its speedup, None where it failed and its error says why."""
        if lane.error or lane.speedup is None:
            arm.error = lane.error or "it gave no token"
            return None
        arm.add(lane.metrics, base.metrics)
        self.result.observe(self.workload_of(place), arm, lane.speedup.value, lane.metrics)
        return lane.speedup.value

    def kept(self, alive: list[ArmResult]) -> list[ArmResult]:
        """Of more than four the faster half, at least four; of these all but the clearly slower."""
        ordered = sorted(alive, key=lambda arm: -(arm.worth or 0.0))
        if len(ordered) > _TOGETHER:
            return ordered[: max(_TOGETHER, math.ceil(len(ordered) / 2))]
        best = ordered[0]
        return [best, *(arm for arm in ordered[1:] if not clearly_below(arm.speedups, best.speedups))]

    # -- confirming ----------------------------------------------------------------------------

    def confirm(self, arm: ArmResult, places: Sequence[int]) -> None:
        """Race the chosen lane anew: how often is settled before, by the time that is left."""
        result = self.result
        prompts = result.over == "prompts"
        wanted = self.blocks(places)
        result.confirmed_on = list(dict.fromkeys(self.name_of(place) for block in wanted for place in block))
        values: dict[int, list[float]] = {}
        for count, block in enumerate(wanted):
            own: list[float] = []
            for place in block:
                self.check()
                text = f"Confirming {arm.name}: {count + 1} of {len(wanted)} on {self.name_of(place)}"
                base, lane = self.race([arm.lane], place, self.tokens, text).lanes
                speedup = self.count(arm, lane, base, place)
                if speedup is None:
                    return
                own.append(speedup)
            # A prompt that comes again is no second prompt: its repeats are one value.
            values.setdefault(block[0] if prompts else count, []).append(_geometric(own))
            arm.fresh = [_geometric(again) for again in values.values()]
            result.interval = interval_of(arm.fresh)
            result.judge()
            self.on_result(result)

    def blocks(self, places: Sequence[int]) -> list[list[int]]:
        """The prompts that each fresh value is over, as many as there is time for; settles the races' length too."""
        prompts = self.result.over == "prompts"
        blocks: list[list[int]] = [[place] for place in places]
        if not prompts and self.left() >= LEAST * len(places) * self.race_s(1, self.tokens):
            blocks = [list(places)]  # else there is no room to go round them all thrice: every race is a repeat
        one = self.race_s(1, self.tokens) * sum(map(len, blocks)) / len(blocks)
        fits = int(self.left() / one) if one else MOST_FRESH
        if fits < LEAST:  # shorter races, rather than no interval
            shorter = int(self.tokens * self.left() / (LEAST * one)) if one else 0
            if shorter >= LEAST_TOKENS:
                self.tokens, fits = shorter, LEAST
                self.result.tokens = min(self.result.tokens, shorter)
        if not prompts:
            return (blocks * MOST_FRESH)[: min(fits, MOST_FRESH)]
        wanted = blocks * max(1, min(fits, MOST_FRESH) // len(blocks))
        return wanted[: max(fits, 0)] if fits < len(blocks) else wanted

    # -- one race ------------------------------------------------------------------------------

    def race(
        self, lanes: Sequence[LaneSettings], place: int, tokens: int, text: str, *, counts: bool = True
    ) -> CompareResult:
        """Race plain and these lanes on a prompt; raises Stopped where the time is over before it ended.

        counts: what it shows is worth something by itself, so one under way when the budget ends may go on.
        """
        self.say(text)
        settings = replace(
            self.runner.with_turns(place, self.race_of),
            sampling=self.settings.sampling.part(prompt=place, repeat=next(self.raced)),
            max_tokens=tokens,
            lanes=(LaneSettings(), *(replace(lane, name=f"{at} {lane.method}") for at, lane in enumerate(lanes, 1))),
        )
        self.cut_at = self.deadline + (self.race_s(len(lanes), tokens) if counts else 0.0)
        try:
            outcome = self.runner.race(settings)
        finally:
            self.cut_at = self.deadline
        if outcome.end == "stopped":
            raise Stopped
        base = outcome.lanes[0]
        if base.error:
            raise SpecviewError(base.error)
        self.result.races += 1
        self.result.facts = self.result.facts or {
            key: value for key, value in outcome.facts.items() if not key.startswith("draft_")
        }
        own_s = sum(
            lane.record.prefill_s + sum(round_.seconds + round_.observe_s for round_ in lane.record.rounds)
            for lane in outcome.lanes
        )
        # The first race of a model warms it up: that is no part of the next.
        self.lane_s += max(own_s, self.clock() - self.started) if self.result.races > 2 else own_s
        self.lane_tokens += sum(len(lane.record.token_ids) for lane in outcome.lanes)
        if place not in self.plain_texts:
            costs = measured_costs(base.record.rounds, base.record.rounds, self.pass_s)
            if costs is not None:
                self.plain_texts[place] = (outcome.prompt_ids, tuple(base.record.token_ids), costs)
        return outcome

    def race_of(self, place: int) -> RunSettings:
        """What the races of a prompt have in common."""
        return request_settings(self.settings, self.prompts.prompts[place], place)

    def listen(self, event: Event) -> None:
        """Pass on what takes long before a race: loading."""
        if isinstance(event, RaceStarted):
            self.started = self.clock()
        elif isinstance(event, Progress) and (event.phase == "convert" or event.text.startswith("Loading")):
            self.say(event.text)

    def name_of(self, place: int) -> str:
        """What a prompt is called."""
        several = f"prompt {place + 1}" if len(self.prompts.prompts) > 1 else "the prompt"
        return self.prompts.prompts[place].name or several

    def workload_of(self, place: int) -> str:
        """The group of a prompt."""
        return self.prompts.prompts[place].workload or (NO_WORKLOAD if len(self.prompts.prompts) > 1 else ALL)


def _geometric(values: Sequence[float]) -> float:
    return math.exp(fmean(map(math.log, values)))


def _groups(items: Sequence[_T]) -> list[list[_T]]:
    """As few groups as a race of four lanes allows, of even size."""
    count = math.ceil(len(items) / _TOGETHER)
    return [list(items[at::count]) for at in range(count)]


def _distinct(arms: Sequence[ArmResult]) -> list[ArmResult]:
    """The arms, each lane once."""
    found: dict[str, ArmResult] = {}
    for arm in arms:
        found.setdefault(arm.name, arm)
    return list(found.values())
