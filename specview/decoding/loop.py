"""The draft-verify loop. Plain decoding is the same loop with an empty draft.

A round: the drafter proposes x_1..x_k after the context (a chain or a tree); one target pass over the
last context token and the draft gives k + 1 rows; the rule keeps a prefix (a path) of the draft and adds
one token of the target's own; the cache is rolled back to what was kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, field, replace
from typing import Any

from specview.decoding.interfaces import Drafter, LengthPolicy, Session
from specview.decoding.ledger import EMPTY_DRAFT, Draft, DraftedToken, End, FinalToken, Round
from specview.decoding.observation import Observer
from specview.decoding.sampling import Penalties, Purpose, SamplingParams, uniform
from specview.decoding.stopping import Stops
from specview.decoding.verification import Decision, DecisionRows, NotFiniteError, Trial, verify
from specview.errors import SpecviewError


@dataclass(slots=True)
class Sequence:
    """A lane's tokens: the prompt and the output so far; grows as rounds are made.

    clock is the lane's own time in seconds since the end of prefill.
    """

    prompt: list[int]
    output: list[int] = field(default_factory=list)
    clock: float = 0.0
    rounds: int = 0

    @property
    def context(self) -> list[int]:
        """All tokens so far."""
        return self.prompt + self.output


def decode(
    session: Session,
    sequence: Sequence,
    *,
    rule: str,
    sampling: SamplingParams,
    max_tokens: int,
    drafter: Drafter | None = None,
    policy: LengthPolicy | None = None,
    eos_ids: Collection[int] = frozenset(),
    stops: Stops | None = None,
    observer: Observer | None = None,
    model_name: str = "the target",
    clock: Callable[[], float] = time.perf_counter,
    rows: type[DecisionRows] = DecisionRows,
) -> Generator[Round, None, End]:
    """Yield rounds until EOS, a stop string or max_tokens more tokens; return which it was.

    The session holds every context token but the last (prefill), and does so again after each
    round. rows reads what the session's passes give. Raises SpecviewError where the target's logits are not finite.
    """
    observer = observer or Observer()
    context = sequence.context
    limit = len(sequence.output) + max_tokens
    penalties = Penalties(sampling, len(sequence.prompt)) if sampling.penalised else None

    if drafter is not None:
        drafter.watched = observer.level != "off"

    def random(position: int, purpose: Purpose, index: int = 0) -> float:
        return uniform(sampling.seed, position, purpose, index)

    while len(sequence.output) < limit:
        position = len(sequence.output)
        start = clock()
        # The pass always adds one token of its own, so a draft of (left - 1) fills the limit exactly.
        # In a tree the budget is the longest path.
        budget = limit - position - 1
        draft = EMPTY_DRAFT
        if drafter is not None and policy is not None:
            budget = min(policy.budget(), budget)
            if budget > 0:
                draft = drafter.propose(context, budget, policy.proceed)
        drafted_at = clock()
        parents = _pass_parents(draft)
        forward = session.forward(
            [context[-1], *draft.tokens, *draft.riders],
            parents,
            drafter.feature_layers if drafter is not None else (),
        )
        session.synchronize()
        verified_at = clock()
        features = forward.features
        logits = forward.logits
        if draft.riders:
            logits, ridden = logits[: 1 + len(draft)], logits[1 + len(draft) :]
            features = {**features, "riders": ridden}
        if penalties is not None:
            penalties.follow(context)
            logits = penalties.rows(logits, [[], *_paths(draft)])
        target = rows(logits, sampling)
        try:
            decision = verify(rule, target, draft, random, position, eos_ids)
        except NotFiniteError as error:
            raise _not_finite(model_name, position + _ahead(draft, error.row)) from None
        emitted = [draft.tokens[index] for index in decision.path]
        if decision.final is not None:
            emitted.append(decision.final[0])
        kept = None if stops is None else stops.kept(emitted)
        if kept is not None:
            emitted, decision = emitted[:kept], _cut(decision, draft, kept)
        if parents is None:
            session.truncate(len(context) + len(decision.path))
        else:
            session.keep([0, *(1 + index for index in decision.path)])
        judged_at = clock()

        try:
            drafted, final = observer.entries(rule, decision, target, draft)
        except NotFiniteError as error:  # a row that decided nothing, but is shown
            raise _not_finite(model_name, position + _ahead(draft, error.row)) from None
        last = kept is not None or emitted[-1] in eos_ids or position + len(emitted) >= limit
        if stops is not None and last:
            drafted, final = _with_text(drafted, final, decision.path, stops.release())
        # The rows caught up with have no penalties on them: they do not say what would have been drafted.
        guesses = observer.guesses(draft, sampling, position) if draft.caught_up and penalties is None else ()
        observed_at = clock()
        timings: dict[str, Any] = {
            "draft_s": drafted_at - start,
            "verify_s": verified_at - drafted_at,
            "other_s": judged_at - verified_at,
        }
        sequence.clock += judged_at - start
        round_ = Round(
            index=sequence.rounds,
            t=sequence.clock,
            **timings,
            observe_s=observed_at - judged_at,
            drafter=draft.drafter,
            parents=draft.parents,
            drafted=drafted,
            final=final,
            riders=observer.riders(draft) if draft.riders else (),
            guesses=guesses,
            full_context=drafter.full_context if drafter is not None else 0,
        )
        sequence.rounds += 1
        sequence.output += emitted
        context += emitted
        if drafter is not None and policy is not None:
            # What the drafter learns from a round is part of the method: on the clock.
            begin = clock()
            drafter.observe(round_, features)
            policy.observe(round_)
            learned = clock() - begin
            sequence.clock += learned
            round_ = replace(round_, t=sequence.clock, other_s=round_.other_s + learned)
        yield round_
        if kept is not None and stops is not None:
            return stops.end
        if emitted and emitted[-1] in eos_ids:
            return "eos"
    return "limit"


def _cut(decision: Decision, draft: Draft, kept: int) -> Decision:
    """The decision with the first `kept` tokens alone: as after an accepted EOS, the rest of the draft was not tried."""
    if kept > len(decision.path):
        return decision
    path = decision.path[:kept]
    tried = {-1, *path[:-1]}
    parents = draft.parents if draft.parents is not None else range(-1, len(draft) - 1)
    trials = [
        trial if parent in tried else Trial(trial.id, "ignored", q=trial.q)
        for trial, parent in zip(decision.trials, parents, strict=True)
    ]
    return Decision(trials, None, path)


def _with_text(
    drafted: tuple[DraftedToken, ...], final: FinalToken | None, path: list[int], text: str
) -> tuple[tuple[DraftedToken, ...], FinalToken | None]:
    """The entries of a round with more text at their last token."""
    if final is not None:
        return drafted, replace(final, text=final.text + text)
    end = path[-1]
    return (*drafted[:end], replace(drafted[end], text=drafted[end].text + text), *drafted[end + 1 :]), None


def _pass_parents(draft: Draft) -> list[int] | None:
    """Parents of the pass's tokens (the last context token, the draft, the riders); None for a chain."""
    if draft.parents is None and not draft.riders:
        return None
    count = len(draft)
    parents = draft.parents if draft.parents is not None else range(-1, count - 1)
    return [-1, *(1 + parent for parent in parents), *(1 + count + parent if parent >= 0 else 0 for parent in draft.rider_parents)]


def _paths(draft: Draft) -> list[list[int]]:
    """Per drafted token the tokens that lead from the context to it, itself among them."""
    found: list[list[int]] = []
    for token, parent in zip(draft.tokens, draft.parents or range(-1, len(draft) - 1), strict=True):
        found.append([*(found[parent] if parent >= 0 else ()), token])
    return found


def _ahead(draft: Draft, row: int) -> int:
    """How many tokens after the context the token comes that a row of the pass decides."""
    return draft.depths[row - 1] + 1 if row else 0


def _not_finite(model_name: str, position: int) -> SpecviewError:
    return SpecviewError(
        f"{model_name} gave logits that are not finite (NaN or infinite) at output token {position}.",
        "Try another dtype (float32), or check the model file.",
    )
