"""Rounds over a text that is already written: the real rule, drafter and length policy, and no model.

What the target says at every place is the text itself, so that a draft holds as far as it agrees with it. This is
the loop of decoding/loop.py with the text in the target's place and measured costs in the clock's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specview.decoding.costs import Costs
from specview.decoding.interfaces import Drafter, LengthPolicy
from specview.decoding.ledger import EMPTY_DRAFT, Draft, DraftedToken, FinalToken, Round, RunRecord, depths
from specview.decoding.sampling import SamplingParams
from specview.decoding.verification import DecisionRows, verify
from specview.lab.measured import MeasuredCosts

OnPosition = Callable[[int, int], None]
"""Called with (output tokens done, in all); raises Stopped to stop."""

NO_TOKEN = -1
"""Stands for an id that no token of the text has."""

_GREEDY = SamplingParams()


@dataclass(frozen=True, slots=True)
class FixedText:
    """A recorded text: prompt and output ids.

    limit is the number of output tokens at which the run would have ended, had the text not done so before; ended
    says that the text did, with its last token.
    """

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    limit: int
    ended: bool

    @property
    def end_ids(self) -> frozenset[int]:
        """The id that ended the text, if one did."""
        return frozenset(self.output[-1:]) if self.ended else frozenset()


def text_of(record: RunRecord) -> FixedText:
    """The text of a recorded lane; one that was stopped is taken to end where it was."""
    output = tuple(record.token_ids)
    ended = record.end == "eos"
    asked = record.settings.get("max_tokens")
    limit = max(len(output), int(asked)) if ended and isinstance(asked, int) else len(output)
    return FixedText(tuple(record.prompt_ids), output, limit, ended)


class _TextRows(DecisionRows):
    """The target's rows of a pass at `position`, as far as the draft goes along with the text."""

    def __init__(self, text: FixedText, position: int, draft: Draft) -> None:
        super().__init__(None, _GREEDY)
        self._text, self._position = text, position
        self._depths: Sequence[int] = range(len(draft)) if draft.parents is None else depths(draft.parents)

    def argmax(self, row: int) -> int:
        """The text's token there; none beyond its end."""
        at = self._position + (self._depths[row - 1] + 1 if row else 0)
        return self._text.output[at] if at < len(self._text.output) else NO_TOKEN


def replay(
    text: FixedText,
    drafter: Drafter | None,
    policy: LengthPolicy,
    costs: MeasuredCosts | None = None,
    learned: Costs | None = None,
    tell: OnPosition = lambda done, total: None,
) -> list[Round]:
    """The rounds that would have written the text, timed by `costs` (0 without).

    The drafter has had its `start`, the policy too. learned is what the policy, or the drafter, chooses by.
    """
    context = list(text.prompt)
    total = len(text.output)
    rounds: list[Round] = []
    position, t = 0, 0.0
    while position < total:
        tell(position, total)
        budget = min(policy.budget(), text.limit - position - 1)
        draft = EMPTY_DRAFT
        if drafter is not None and budget > 0:
            draft = drafter.propose(context, budget, policy.proceed)
        decision = verify("greedy", _TextRows(text, position, draft), draft, _no_draw, position, text.end_ids)
        emitted = [draft.tokens[index] for index in decision.path]
        final = None
        if decision.final is not None:
            final = FinalToken(id=decision.final[0], kind=decision.final[1], p=1.0)
            emitted.append(final.id)
        draft_s, verify_s, other_s = _seconds(draft, costs)
        round_ = Round(
            index=len(rounds),
            t=t + draft_s + verify_s + other_s,
            draft_s=draft_s,
            verify_s=verify_s,
            other_s=other_s,
            drafter=draft.drafter,
            parents=draft.parents,
            drafted=tuple(
                DraftedToken(
                    id=trial.id,
                    verdict=trial.verdict,
                    accept=trial.accept,
                    confidence=draft.confidences[index] if draft.confidences else None,
                )
                for index, trial in enumerate(decision.trials)
            ),
            final=final,
        )
        t = round_.t
        position += len(emitted)
        context += emitted
        if drafter is not None:
            drafter.observe(round_, {})
        policy.observe(round_)
        if learned is not None:
            learned.observe(round_)
        rounds.append(round_)
    tell(total, total)
    return rounds


def _seconds(draft: Draft, costs: MeasuredCosts | None) -> tuple[float, float, float]:
    """Draft, pass and the rest of a round."""
    if costs is None:
        return 0.0, 0.0, 0.0
    longest = len(draft) if draft.parents is None else max(depths(draft.parents), default=-1) + 1
    return costs.draft_s(longest), costs.pass_s(1 + len(draft) + len(draft.riders)), costs.other_s


def _no_draw(*args: object) -> float:
    raise AssertionError("a text that is written needs no draw")
