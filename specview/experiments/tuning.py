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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, TypeVar

from specview.decoding.ledger import Round
from specview.decoding.metrics import Metrics
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
from specview.experiments.screening import (
    Positions,
    Replay,
    positions_of,
    predicted_copies,
    predicted_model,
    replay_copies,
)
from specview.experiments.tune_result import ArmResult, Observation, Over, TuneResult
from specview.lab.measured import MeasuredCosts, measured_costs
from specview.racing.calibration import measure_passes
from specview.racing.compare import CompareResult, compare
from specview.racing.intervals import LEAST, clearly_below, interval_of
from specview.racing.load_meter import LoadMeter
from specview.racing.pool import EngineKey, HeadKey, ModelPool, ShouldStop, draft_key, target_key
from specview.racing.race import tokenize_prompt
from specview.racing.resolve import checked_run
from specview.racing.turns import Turns
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
_PROBE_K = 4
_SLACK = 1.15  # races take somewhat longer than their rounds: prefill, looking, the loop around them

@dataclass(frozen=True, slots=True)
class TuneProgress:
    """What is being tried, the share of the budget that is spent, and the best lane so far with its speedup."""

    text: str
    fraction: float
    best: str = ""
    best_speedup: float | None = None


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
    clock: Callable[[], float] = time.perf_counter,
) -> TuneResult:
    """Find the fastest lane for these prompts on this target within `seconds`, loading included.

    The lanes of `settings` do not matter; methods limits what is tried, drafts are models or heads to try beside or in
    place of the bundled ones, rule is every lane's. on_result hears of the result after every race. A stop keeps what there is. Raises
    SpecviewError where nothing can run (the target does not load, every prompt is too long), UsageError on settings.
    """
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise UsageError(f"the time budget is {seconds:g} s.", f"Use {LEAST_SECONDS:g} s to {MOST_SECONDS / 3600:g} h.")
    if settings.check_mode:
        raise UsageError("check mode pads passes, so its times mean nothing.", "Leave out --check-mode.")
    base = checked_run(replace(settings, lanes=(LaneSettings(),), baseline=True, observe="off"))
    checked_lane(LaneSettings(rule=rule), base.sampling)
    pool = models or ModelPool()
    search = _Search(base, prompts, seconds, pool, on_progress, on_result, should_stop, clock)
    try:
        return search.run(methods, drafts, rule)
    finally:
        search.lease.close()
        if models is None:
            pool.close()


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


class _TimeUp(Exception):
    """The budget is spent."""


class _Search:
    """One tuning."""

    def __init__(
        self,
        settings: RunSettings,
        prompts: Workload,
        seconds: float,
        pool: ModelPool,
        on_progress: Callable[[TuneProgress], None],
        on_result: Callable[[TuneResult], None],
        should_stop: ShouldStop,
        clock: Callable[[], float],
    ) -> None:
        self.settings = settings
        self.prompts = prompts.prompts
        self.turns = Turns(prompts.prompts, settings)
        self.pool = pool
        self.lease = pool.lease()
        self.on_progress, self.on_result = on_progress, on_result
        self.asked_to_stop = should_stop
        self.clock = clock
        self.begin = clock()
        self.deadline = self.begin + seconds
        self.result = TuneResult(settings, prompts, seconds, tokens=settings.max_tokens)
        self.cut_at = self.deadline
        self.started = self.begin
        self.lane_s = self.lane_tokens = 0.0
        self.pass_s: dict[int, float] = {}
        self.bad_prompts: set[int] = set()
        self.plain_texts: dict[int, tuple[tuple[int, ...], tuple[int, ...], MeasuredCosts]] = {}
        self.tokens = settings.max_tokens
        self.raced = itertools.count()

    # -- the whole -----------------------------------------------------------------------------

    def run(self, methods: Sequence[str], drafts: Sequence[str], rule: str) -> TuneResult:
        """Do all of it; time and a stop end it where it is."""
        meter = LoadMeter()
        result = self.result
        choose, confirm, result.over = split_prompts(self.prompts)
        try:
            self.search(choose, confirm, methods, drafts, rule)
        except _TimeUp:
            pass
        except Stopped:
            if self.asked_to_stop():
                result.end = "stopped"
        except SpecviewError as error:
            if not result.races:
                raise
            result.failures.append(str(error))  # what was measured stands
        self.judge()
        result.spent_s = self.clock() - self.begin
        result.busy = meter.busy_text()
        self.on_result(result)
        return result

    def search(
        self, choose: list[int], confirm: list[int], methods: Sequence[str], drafts: Sequence[str], rule: str
    ) -> None:
        """The stages in order."""
        result = self.result
        self.say("Loading the target")
        key = target_key(self.settings)
        self.lease.add([key])
        # Loading is not cut short: what it converts or downloads serves the next try.
        target = self.pool.get(key, lambda text, fraction: self.say(text or "Loading the target"), self.asked_to_stop)
        found, result.unusable = candidates(self.settings, target, methods, drafts, rule)
        if not found and not any(METHODS[name].combines for name in methods):
            return
        self.lease.add(one for candidate in found for one in self.keys(candidate.lane))
        first = self.fitting_prompts(target, choose, confirm)
        self.calibrate(target, first)
        result.chosen_on = [self.name_of(place) for place in choose]
        if not choose:
            raise SpecviewError(result.failures[0] if result.failures else "there is no prompt to choose by.")
        probed = self.probe(found, choose)
        predictions = self.predict(probed, target.vocab_size, choose)
        arms = self.arms(predictions, methods, rule)
        finalists = self.choose(self.plan(arms), choose)
        if finalists:
            result.winner = max(finalists, key=lambda arm: arm.worth or 0.0)
            self.confirm(result.winner, confirm or choose)

    def keys(self, lane: LaneSettings) -> list[EngineKey | HeadKey]:
        """What a lane loads besides the target."""
        found: list[EngineKey | HeadKey] = [HeadKey(choice, target_key(self.settings)) for choice in heads_of(lane).values()]
        if needs_draft(lane):
            found.append(draft_key(self.settings, lane.draft, lane.draft_engine))
        return found

    def fitting_prompts(self, target: Any, *lists: list[int]) -> list[int]:
        """Take the prompts that do not fit out of the lists, a line for each; the ids of the first that does."""
        first: list[int] = []
        for place in dict.fromkeys(itertools.chain(*lists)):
            history = self.turns.history(place, self.race_of, lambda turn: "", "fits")
            settings = replace(self.race_of(place), history=history)
            try:
                ids = tokenize_prompt(settings, target)
                answers = self.turns.before(place) * self.settings.max_tokens
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
        """Raise where it is over."""
        if self.asked_to_stop():
            raise Stopped
        if self.clock() >= self.deadline:
            raise _TimeUp

    def left(self, share: float = 1.0) -> float:
        """Seconds left until that share of the budget is spent."""
        return self.begin + share * self.result.seconds - self.clock()

    def race_s(self, lanes: int, tokens: int) -> float:
        """Seconds that a race of plain and `lanes` others will take, as far as known."""
        if not self.lane_tokens:
            return (lanes + 1) * tokens * self.pass_s.get(1, 0.0) * _SLACK
        return (lanes + 1) * tokens * self.lane_s / self.lane_tokens * _SLACK

    def say(self, text: str) -> None:
        """Tell what is being tried."""
        best = max((arm for arm in self.result.arms if arm.speedups), key=lambda arm: arm.worth or 0.0, default=None)
        spent = (self.clock() - self.begin) / self.result.seconds
        self.on_progress(
            TuneProgress(text, min(max(spent, 0.0), 1.0), best.name if best else "", best.worth if best else None)
        )

    # -- screening -----------------------------------------------------------------------------

    def calibrate(self, target: Any, prompt_ids: Sequence[int]) -> None:
        """Measure the target's passes by their rows: the costs that predictions stand on."""
        self.say("Measuring the target's passes")

        def tell(fraction: float) -> None:
            if self.stop():
                raise Stopped

        known = self.pool.pass_seconds.setdefault(target_key(self.settings), {})
        rows = max(COPIED_K) + 1 if self.result.seconds >= 30 else 9
        known |= measure_passes(target, prompt_ids, rows, known, tell, self.clock)
        self.pass_s = dict(known)
        self.result.plain_pass_s = known[1]
        costs = MeasuredCosts(dict(sorted(known.items())))
        self.result.v = {k: costs.v(k) for k in (1, 2, 3, 4, 6, 8, 16) if k + 1 <= max(known)}

    def probe(self, found: Sequence[Candidate], choose: Sequence[int]) -> dict[int, _Probe]:
        """One short race of every candidate that runs a model, its length moving; by the candidate's place."""
        probes = {id(one): _Probe(one) for one in found}
        models = sorted((one for one in found if not one.copies), key=_seldom)
        groups = [models[at : at + _TOGETHER] for at in range(0, len(models), _TOGETHER)] or [[]]
        share = 0.25 * self.result.seconds / len(groups)
        tokens = min(self.settings.max_tokens, PROBE_TOKENS, max(LEAST_TOKENS, int(share / max(self.race_s(_TOGETHER, 1), 1e-9))))
        for turn, place in enumerate(choose):
            if turn and self.left(SCREEN_SHARE) < len(groups) * self.race_s(_TOGETHER, tokens):
                break
            for group in groups:
                group = [one for one in group if not probes[id(one)].error]
                if turn and not group and models:
                    continue
                short = self.left(SCREEN_SHARE * 1.5) < self.race_s(len(group), tokens)
                if not turn and group and group[0] is not models[0] and short:
                    continue  # the likelier ones were tried: the time left is for races
                if group and probes[id(group[0])].rounds is not None and self.left(CHOOSE_SHARE) < self.race_s(len(group), tokens):
                    break
                self.check()
                lanes = [self.probe_lane(one) for one in group]
                names = ", ".join(dict.fromkeys(one.method.name for one in group)) or BASELINE
                outcome = self.race(lanes, place, tokens, f"Trying {names} on {self.name_of(place)}", counts=False)
                if outcome is None:
                    break
                for one, lane in zip(group, outcome.lanes[1:], strict=True):
                    probes[id(one)].add(place, lane, outcome.lanes[0])
        for probe in probes.values():
            if probe.error:
                self.result.unusable.append(Unusable(probe.candidate.method.name, probe.error))
        return {at: probe for at, probe in probes.items() if not probe.error}

    def probe_lane(self, candidate: Candidate) -> LaneSettings:
        """The lane that tries a candidate: its length moves between few and many, where it has one."""
        if not candidate.lengths:
            return candidate.lane
        return replace(candidate.lane, k=_PROBE_K, policy="heuristic")

    def predict(self, probed: Mapping[int, _Probe], vocab_size: int, choose: Sequence[int]) -> list[tuple[Candidate, dict[int, float]]]:
        """Predicted speedups by length of every candidate that runs; of one without lengths under 0."""
        predictions = []
        for probe in probed.values():
            self.check()
            one = probe.candidate
            if one.copies:
                predictions.append((one, self.predict_copies(one, vocab_size)))
                continue
            costs = probe.costs(self.pass_s)
            if not probe.rounds or costs is None:
                self.result.untried.append(one.method.name)
                continue
            if one.method.head or needs_draft(one.lane) or one.method.shares_passes:
                self.result.c.setdefault(one.method.name, costs.c_at(2))
            if one.lengths:
                predictions.append((one, predicted_model(probe.positions(), costs, one.lengths, probe.cap)))
            else:
                predictions.append((one, {0: fmean(probe.speedups)} if probe.speedups else {}))
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
                longest = max(one.lengths)
                share = sum(replay.copied[longest] for replay in own) / tokens
                self.result.copied.setdefault(workload, {})[one.method.name] = share
        return predicted_copies(replays, one.lengths) if replays else {}

    # -- choosing ------------------------------------------------------------------------------

    def arms(
        self, predictions: Sequence[tuple[Candidate, dict[int, float]]], methods: Sequence[str], rule: str
    ) -> list[ArmResult]:
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
        mixed = [ArmResult(one.lane) for one in combined(names, self.settings, methods, model, rule)]
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
                done += self.heat(alive, groups, next(turns))
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

    def heat(self, alive: Sequence[ArmResult], groups: Sequence[Sequence[ArmResult]], place: int) -> bool:
        """Race all arms on one prompt; counts for choosing only where every group was raced."""
        found: dict[int, float] = {}
        for group in groups:
            self.check()
            names = ", ".join(arm.name for arm in group)
            outcome = self.race([arm.lane for arm in group], place, self.tokens, f"Racing {names} on {self.name_of(place)}")
            if outcome is None:
                return False
            base = outcome.lanes[0]
            for arm, lane in zip(group, outcome.lanes[1:], strict=True):
                if lane.error or lane.speedup is None:
                    arm.error, arm.stage = lane.error or "it gave no token", "failed"
                    continue
                found[id(arm)] = lane.speedup.value
                arm.add(lane.metrics, base.metrics)
                self.observe(place, arm, lane.speedup.value, lane.metrics)
        for arm in alive:
            if id(arm) in found:
                arm.speedups.append(found[id(arm)])
                arm.stage = "raced"
        self.lead()
        self.on_result(self.result)
        return True

    def lead(self) -> None:
        """Note the best so far: a stop keeps it."""
        raced = [arm for arm in self.result.arms if arm.speedups and not arm.error]
        most = max((len(arm.speedups) for arm in raced), default=0)
        longest = [arm for arm in raced if len(arm.speedups) == most]
        self.result.winner = max(longest, key=lambda arm: arm.worth or 0.0, default=None)
        self.result.verdict = "undecided" if longest else "nothing"

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
        blocks: list[list[int]] = [[place] for place in places] if self.result.over == "prompts" else [list(places)]
        if self.result.over == "repeats" and self.left() < LEAST * len(places) * self.race_s(1, self.tokens):
            blocks = [[place] for place in places]  # no room to go round them all thrice: every race is a repeat
        each = sum(len(block) for block in blocks) / len(blocks)
        one = self.race_s(1, self.tokens) * each
        fits = int(self.left() / one) if one else MOST_FRESH
        if fits < LEAST:  # shorter races, rather than no interval
            shorter = int(self.tokens * self.left() / (LEAST * one)) if one else 0
            if shorter >= LEAST_TOKENS:
                self.tokens, fits = shorter, LEAST
                self.result.tokens = min(self.result.tokens, shorter)
        if self.result.over == "prompts":
            wanted = blocks * max(1, min(fits, MOST_FRESH) // len(blocks))
            wanted = wanted[: max(fits, 0)] if fits < len(blocks) else wanted
        else:
            wanted = (blocks * MOST_FRESH)[: min(fits, MOST_FRESH)]
        self.result.confirmed_on = list(dict.fromkeys(self.name_of(place) for block in wanted for place in block))
        values: dict[int, list[float]] = {}
        for count, block in enumerate(wanted):
            own: list[float] = []
            for place in block:
                self.check()
                outcome = self.race([arm.lane], place, self.tokens, f"Confirming {arm.name}: {count + 1} of {len(wanted)} on {self.name_of(place)}")
                if outcome is None:
                    return
                lane = outcome.lanes[1]
                if lane.error or lane.speedup is None:
                    arm.error = lane.error or "it gave no token"
                    return
                own.append(lane.speedup.value)
                arm.add(lane.metrics, outcome.lanes[0].metrics)
                self.observe(place, arm, lane.speedup.value, lane.metrics)
            # A prompt that comes again is no second prompt: its repeats are one value.
            key = block[0] if self.result.over == "prompts" else count
            values.setdefault(key, []).append(math.exp(fmean(math.log(value) for value in own)))
            arm.fresh = [math.exp(fmean(math.log(value) for value in again)) for again in values.values()]
            self.result.interval = interval_of(arm.fresh)
            self.judge()
            self.on_result(self.result)

    def judge(self) -> None:
        """Say what the fresh races show."""
        found, arm = self.result.interval, self.result.winner
        if arm is None:
            self.result.verdict = "nothing"
        elif found is None or found.low is None:
            self.result.verdict = "undecided"
        else:
            arm.stage = "confirmed"
            below = found.high is not None and found.high < 1
            self.result.verdict = "faster" if found.low > 1 else "plain" if below else "unclear"

    # -- one race ------------------------------------------------------------------------------

    def race(
        self, lanes: Sequence[LaneSettings], place: int, tokens: int, text: str, *, counts: bool = True
    ) -> CompareResult | None:
        """Race plain and these lanes on a prompt; None where the time is over before it ended.

        counts: what it shows is worth something by itself, so one under way when the budget ends may go on.
        """
        self.say(text)
        settings = replace(
            self.race_of(place),
            history=self.turns.history(place, self.race_of, self.answer),
            sampling=self.settings.sampling.part(prompt=place, repeat=next(self.raced)),
            max_tokens=tokens,
            lanes=(LaneSettings(), *(replace(lane, name=f"{at} {lane.method}") for at, lane in enumerate(lanes, 1))),
        )
        self.cut_at = self.deadline + (self.race_s(len(lanes), tokens) if counts else 0.0)
        try:
            outcome = self.compared(settings)
        finally:
            self.cut_at = self.deadline
        base = outcome.lanes[0]
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

    def compared(self, settings: RunSettings) -> CompareResult:
        """Race these settings to their end; raises Stopped, _TimeUp, or SpecviewError where plain fails."""
        outcome = compare(settings, 1, self.pool, self.listen, self.stop, clock=self.clock, oracles=False)
        if outcome.end == "stopped":
            if self.asked_to_stop():
                raise Stopped
            raise _TimeUp
        if outcome.lanes[0].error:
            raise SpecviewError(outcome.lanes[0].error)
        return outcome

    def race_of(self, place: int) -> RunSettings:
        """What the races of a prompt have in common."""
        return request_settings(self.settings, self.prompts[place], place)

    def answer(self, turn: RunSettings) -> str:
        """Plain's answer to a turn that a later one goes on from."""
        return self.compared(turn).lanes[0].record.text

    def listen(self, event: Event) -> None:
        """Pass on what takes long before a race: loading."""
        if isinstance(event, RaceStarted):
            self.started = self.clock()
        elif isinstance(event, Progress) and (event.phase == "convert" or event.text.startswith("Loading")):
            self.say(event.text)

    def observe(self, place: int, arm: ArmResult, speedup: float, metrics: Metrics) -> None:
        """Keep what a race showed, for the guide."""
        self.result.observations.append(
            Observation(
                self.workload_of(place),
                arm.lane.method,
                arm.name,
                speedup,
                metrics.acceptance_rate,
                metrics.tokens_per_target_pass,
            )
        )

    def name_of(self, place: int) -> str:
        """What a prompt is called."""
        prompt = self.prompts[place]
        if prompt.name:
            return prompt.name
        return "the prompt" if len(self.prompts) == 1 else f"prompt {place + 1}"

    def workload_of(self, place: int) -> str:
        """The group of a prompt."""
        return self.prompts[place].workload or (NO_WORKLOAD if len(self.prompts) > 1 else ALL)


class _Probe:
    """The short races of one candidate."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.rounds: list[Round] | None = None
        self.plain: list[Round] = []
        self.counted: list[Positions] = []
        self.speedups: list[float] = []
        self.cap: int | None = None  # the longest draft that it can give, where it gave less than it was asked for
        self.error = ""

    def add(self, place: int, lane: Any, base: Any) -> None:
        """Take a race in."""
        if lane.error:
            self.error = lane.error
            return
        self.cap = self.cap or _cap(lane.record.rounds)
        self.rounds = [*(self.rounds or []), *lane.record.rounds]
        self.plain += base.record.rounds
        self.counted.append(positions_of(lane.record.rounds))
        if lane.speedup is not None:
            self.speedups.append(lane.speedup.value)

    def costs(self, pass_s: Mapping[int, float]) -> MeasuredCosts | None:
        """Costs of all its rounds."""
        return measured_costs(self.rounds or [], self.plain, pass_s)

    def positions(self) -> Positions:
        """Acceptance by position over all its races."""
        longest = max((len(one.judged) for one in self.counted), default=0)

        def total(values: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
            return tuple(sum(row[at] for row in values if at < len(row)) for at in range(longest))

        return Positions(
            total([one.accepted for one in self.counted]),
            total([one.judged for one in self.counted]),
            sum(one.empty for one in self.counted),
            sum(one.rounds for one in self.counted),
        )


def _groups(items: Sequence[_T]) -> list[list[_T]]:
    """As few groups as a race of four lanes allows, of even size."""
    count = math.ceil(len(items) / _TOGETHER)
    return [list(items[at::count]) for at in range(count)]


def _seldom(candidate: Candidate) -> bool:
    """Whether a method seldom pays on a model that was not trained for it: such are tried last."""
    small_tree = candidate.tree and not candidate.method.always_tree and candidate.lane.options.get("preset") != "gpu"
    return candidate.method.seldom_pays or small_tree


def _cap(rounds: Sequence[Round]) -> int | None:
    """The longest draft of a drafter that gives no more (a head with few steps), seen where it was asked for more."""
    drafted = [round_ for round_ in rounds if round_.k]
    if drafted and drafted[0].k < _PROBE_K:
        return drafted[0].k
    for before, after in itertools.pairwise(rounds[:-2]):
        # `heuristic` asks for two more after a draft that was accepted in full.
        if before.k and before.accepted == before.k and 0 < after.k <= before.k:
            return after.k
    return None


def _distinct(arms: Sequence[ArmResult]) -> list[ArmResult]:
    """The arms, each lane once."""
    found: dict[str, ArmResult] = {}
    for arm in arms:
        found.setdefault(arm.name, arm)
    return list(found.values())
