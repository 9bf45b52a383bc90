"""What a run accepted, and what it paid beside passes: stated, of a trace's lane, or recorded in a short race."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from specview.decoding.ledger import Round
from specview.decoding.metrics import fold
from specview.drafting.plain import baseline_of
from specview.drafting.registry import DEFAULT_METHOD, METHODS
from specview.errors import SpecviewError, Stopped, require
from specview.lab.measured import measured_costs
from specview.racing.compare import compare
from specview.racing.pool import ModelPool, OnProgress, ShouldStop
from specview.racing.resolve import checked_run
from specview.settings.events import Event, LaneRound, Progress
from specview.settings.run import LaneSettings, RunSettings

Scaling = Literal["pass", "sequence"]
"""How a draft cost grows with B: a model's with its passes, a copying drafter's with every sequence."""

RACE_TOKENS = 96
"""Output tokens of the race that records an acceptance where none is given."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What a run accepted, and what it paid beside passes.

    alpha         accepted / judged
    by_position   accepted at position i / judged at i, where a run measured it; () is the closed form with alpha alone
    draft_cost    c: a draft step in plain steps; None is unknown (then only a measured draft model has a cost)
    scaling       how that cost grows with B
    other_s, plain_other_s  the rest of a round of one sequence, seconds
    run           how it was run, where a run it was: engine, target; and draft, draft_engine of a draft model
    """

    name: str
    alpha: float
    by_position: tuple[float, ...] = ()
    k: int | None = None
    draft_cost: float | None = None
    scaling: Scaling = "pass"
    other_s: float = 0.0
    plain_other_s: float = 0.0
    run: Mapping[str, Any] = field(default_factory=dict)

    def tokens(self, k: int) -> float:
        """Expected tokens of a round that drafts k: 1 + a1 + a1 a2 + ... over the positions' own acceptances.

        Beyond the measured positions, or without any, alpha stands for them (Leviathan et al. 2023, equation 1).
        """
        total, reached = 1.0, 1.0
        for place in range(k):
            reached *= self.by_position[place] if place < len(self.by_position) else self.alpha
            total += reached
        return total

    def measured_to(self, k: int) -> bool:
        """Whether the run itself tried every position of a draft of k."""
        return 0 < k <= len(self.by_position)

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON values."""
        names = {"alpha": "acceptance_rate", "by_position": "position_acceptance_conditional", "scaling": "draft_cost_grows_with"}
        return {names.get(name, name): value for name, value in asdict(self).items()}


def stated_acceptance(alpha: float, draft_cost: float | None) -> Acceptance:
    """An acceptance given as a number; raises UsageError where it is none."""
    require(0 <= alpha <= 1, f"acceptance is {alpha}.", "Use a number from 0 to 1.")
    require(draft_cost is None or 0 <= draft_cost < math.inf, f"draft cost is {draft_cost}.", "Use 0 or more, in plain steps.")
    return Acceptance(f"acceptance {alpha:g}, as given", alpha, draft_cost=draft_cost)


def lane_acceptance(
    name: str, settings: Mapping[str, Any], rounds: Sequence[Round], plain: Sequence[Round] = ()
) -> Acceptance:
    """The acceptance of a run's lane, with its costs where the race's plain lane is there.

    Raises SpecviewError, one line, for a lane that says nothing about batches: plain, a tree, lookahead's riders, or
    nothing judged.
    """
    if any(round_.parents is not None or round_.riders for round_ in rounds):
        raise SpecviewError(f"lane {name} verifies trees, whose rows are not k + 1.", "Choose a lane that drafts chains.")
    figures = fold(rounds)
    if figures.acceptance_rate is None:
        raise SpecviewError(f"lane {name} drafted nothing, so it has no acceptance.", "Choose a lane that drafts.")
    tried: list[float] = []
    for value in figures.position_acceptance_conditional:
        if value is None:
            break
        tried.append(value)
    method = METHODS.get(str(settings.get("method")))
    copies = method is not None and method.copies
    costs = measured_costs(rounds, plain)
    longest = round(figures.mean_k or 1)
    keys = ("engine", "target", "method", *(("draft", "draft_engine") if steps_draft_model(settings) else ()))
    return Acceptance(
        name=name,
        alpha=figures.acceptance_rate,
        by_position=tuple(tried),
        k=max(round_.k for round_ in rounds),
        draft_cost=None if costs is None else costs.c_at(max(1, longest)),
        scaling="sequence" if copies else "pass",
        other_s=0.0 if costs is None else costs.other_s,
        plain_other_s=0.0 if costs is None else costs.plain_other_s,
        run={key: settings.get(key) for key in keys},
    )


def steps_draft_model(ran: Mapping[str, Any]) -> bool:
    """Whether what ran (the default method, where that is not said) drafts token by token with a draft model."""
    method = METHODS.get(str(ran.get("method", DEFAULT_METHOD)))
    return method is not None and method.steps_draft_model


def trace_acceptance(path: str | Path, lane: str | None = None) -> Acceptance:
    """The acceptance of a trace's lane: the named one, or the first that drafted a chain.

    Raises SpecviewError, one line, where the file is no trace or has no such lane.
    """
    from specview.files.reader import read_trace

    records = read_trace(path, keep="figures").records
    plain = baseline_of(records)
    baseline = plain.rounds if plain is not None else ()
    chosen = [record for record in records if record is not plain and (lane is None or record.name == lane)]
    if not chosen:
        names = ", ".join(record.name for record in records if record is not plain) or "none"
        what = "no lane that drafts" if lane is None else f"no lane {lane!r}"
        raise SpecviewError(f"the trace {str(path)!r} has {what}.", f"Its drafting lanes: {names}.")
    refused: SpecviewError | None = None
    for record in chosen:
        try:
            return lane_acceptance(record.name, record.settings, record.rounds, baseline)
        except SpecviewError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def raced_acceptance(
    settings: RunSettings, lane: LaneSettings, pool: ModelPool, should_stop: ShouldStop, on_progress: OnProgress
) -> Acceptance:
    """Race plain decoding and the lane on the prompt, and take what was accepted.

    Raises SpecviewError, one line, where it fails, and Stopped.
    """
    tokens = min(settings.max_tokens, RACE_TOKENS)
    settings = checked_run(replace(settings, lanes=(lane,), baseline=True, observe="off", max_tokens=tokens))
    emitted, wanted = 0, tokens * len(settings.lanes)

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
