"""The draft-verify loop. Plain decoding is the same loop with an empty draft.

A round: the drafter proposes x_1..x_k after the context; one target pass over the last context
token and the draft gives k + 1 rows; the rule keeps a prefix of the draft and adds one token of the
target's own; the cache is rolled back to what was kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, field, replace

from specview.decoding.interfaces import Drafter, LengthPolicy, Session
from specview.decoding.ledger import EMPTY_DRAFT, End, Round
from specview.decoding.observation import Observer
from specview.decoding.sampling import SamplingParams, uniform
from specview.decoding.verification import DecisionRows, NotFiniteError, verify
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
    observer: Observer | None = None,
    model_name: str = "the target",
    clock: Callable[[], float] = time.perf_counter,
) -> Generator[Round, None, End]:
    """Yield rounds until EOS or max_tokens more tokens; return which of the two it was.

    The session holds every context token but the last (prefill), and does so again after each
    round. Raises SpecviewError where the target's logits are not finite.
    """
    observer = observer or Observer()
    context = sequence.context
    limit = len(sequence.output) + max_tokens

    def random(position: int, purpose: str) -> float:
        return uniform(sampling.seed, position, purpose)  # type: ignore[arg-type]

    while len(sequence.output) < limit:
        position = len(sequence.output)
        start = clock()
        # The pass always adds one token of its own, so a draft of (left - 1) fills the limit exactly.
        budget = limit - position - 1
        draft = EMPTY_DRAFT
        if drafter is not None and policy is not None:
            budget = min(policy.budget(), budget)
            if budget > 0:
                draft = drafter.propose(context, budget, policy.proceed)
        drafted_at = clock()
        forward = session.forward(
            [context[-1], *draft.tokens], draft.parents, drafter.feature_layers if drafter is not None else ()
        )
        session.synchronize()
        verified_at = clock()
        rows = DecisionRows(forward.logits, sampling)
        try:
            decision = verify(rule, rows, draft, random, position, eos_ids)
        except NotFiniteError as error:
            raise _not_finite(model_name, position + error.row) from None
        emitted = [trial.id for trial in decision.trials if trial.verdict == "accepted"]
        session.truncate(len(context) + len(emitted))
        if decision.final is not None:
            emitted.append(decision.final[0])
        judged_at = clock()

        try:
            drafted, final = observer.entries(rule, decision, rows, draft)
        except NotFiniteError as error:  # a row that decided nothing, but is shown
            raise _not_finite(model_name, position + error.row) from None
        observed_at = clock()
        timings = {
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
        )
        sequence.rounds += 1
        sequence.output += emitted
        context += emitted
        if drafter is not None and policy is not None:
            # What the drafter learns from a round is part of the method: on the clock.
            begin = clock()
            drafter.observe(round_, forward.features)
            policy.observe(round_)
            learned = clock() - begin
            sequence.clock += learned
            round_ = replace(round_, t=sequence.clock, other_s=round_.other_s + learned)
        yield round_
        if emitted and emitted[-1] in eos_ids:
            return "eos"
    return "limit"


def _not_finite(model_name: str, position: int) -> SpecviewError:
    return SpecviewError(
        f"{model_name} gave logits that are not finite (NaN or infinite) at output token {position}.",
        "Try another dtype (float32), or check the model file.",
    )
