"""From settings to the concurrency figures: record an acceptance where none is given, load, measure, join."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from specview.drafting.registry import DEFAULT_METHOD
from specview.errors import SpecviewError, Stopped
from specview.lab.batch_times import BATCHES, CONTEXT, REPEATS, SECONDS, measure_batches, require_plan
from specview.lab.concurrency import Acceptance, Concurrency, combine, lane_acceptance
from specview.racing.compare import compare
from specview.racing.pool import ModelPool, OnProgress, ShouldStop, draft_key, target_key
from specview.racing.race import tokenize_prompt
from specview.racing.settings import BUNDLED, LaneSettings, RunSettings
from specview.settings.events import Event, LaneRound, Progress

RACE_TOKENS = 96
"""Output tokens of the race that records an acceptance where none is given."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure.

    settings     target, engine, device, prompt: the context's tokens are the prompt's
    acceptance   of a run, or a number; None races plain and the draft model on the prompt first
    draft        the draft model whose passes are timed, "" for none; draft_engine None is the target's
    """

    settings: RunSettings
    batches: tuple[int, ...] = BATCHES
    ks: tuple[int, ...] = (0, 2, 4)
    context: int = CONTEXT
    acceptance: Acceptance | None = None
    draft: str = BUNDLED
    draft_engine: str | None = None
    repeats: int = REPEATS
    seconds: float = SECONDS
    notes: tuple[str, ...] = field(default=())


def run_concurrency(
    plan: Plan, pool: ModelPool, should_stop: ShouldStop = lambda: False, on_progress: OnProgress = lambda text, fraction: None
) -> Concurrency:
    """Do all of it on the calling thread; the models stay in the pool.

    Raises SpecviewError, one line, where it cannot be, and Stopped where it was stopped before there was anything.
    """
    require_plan(plan.batches, plan.ks, plan.context)
    acceptance = plan.acceptance
    if acceptance is None:
        acceptance = _raced(plan, pool, should_stop, on_progress)
    settings = plan.settings.checked()
    target = pool.get(target_key(settings), on_progress, should_stop)
    notes = list(plan.notes)
    draft = None
    if plan.draft:
        try:
            draft = pool.get(draft_key(settings, plan.draft, plan.draft_engine), on_progress, should_stop)
        except SpecviewError as error:
            if acceptance.draft_cost is None:
                raise
            notes.append(f"The draft model's passes are modelled: {error}")
    ran = acceptance.run
    if ran.get("engine") not in (None, settings.engine) or ran.get("target") not in (None, settings.target):
        notes.append(
            f"The acceptance is of a run in {ran.get('engine')} with target {ran.get('target')}; the passes are not."
        )
    times = measure_batches(
        target,
        tokenize_prompt(settings, target),
        plan.batches,
        plan.ks,
        plan.context,
        draft=draft,
        repeats=plan.repeats,
        seconds=plan.seconds,
        should_stop=should_stop,
        on_progress=on_progress,
    )
    return combine(replace(times, skipped=(*notes, *times.skipped)), acceptance)


def _raced(plan: Plan, pool: ModelPool, should_stop: ShouldStop, on_progress: Callable[[str, float | None], None]) -> Acceptance:
    """Race plain and the draft model on the prompt, and take what was accepted."""
    longest = max(plan.ks) or 1
    lane = LaneSettings(DEFAULT_METHOD, draft=plan.draft or BUNDLED, draft_engine=plan.draft_engine, k=longest)
    settings = replace(
        plan.settings, lanes=(lane,), baseline=True, observe="off", max_tokens=min(plan.settings.max_tokens, RACE_TOKENS)
    ).checked()
    emitted, wanted = 0, settings.max_tokens * len(settings.lanes)

    def listen(event: Event) -> None:
        nonlocal emitted
        if isinstance(event, Progress):
            on_progress(event.text, event.fraction)
        elif isinstance(event, LaneRound):
            emitted += len(event.round.emitted)
            on_progress("Recording an acceptance", min(1.0, emitted / wanted))

    result = compare(settings, 1, pool, listen, should_stop, oracles=False)
    if result.end == "stopped":
        raise Stopped
    for one in result.lanes:
        if one.error:
            raise SpecviewError(f"lane {one.record.name}: {one.error}")
    plain, drafted = result.lanes[0].record, result.lanes[-1].record
    return lane_acceptance(drafted.name, drafted.settings, drafted.rounds, plain.rounds)
