"""Rounds over a text that is already written: the real loop, rule, drafter and length policy, and no model.

What the target says at every place is the text itself, so that a draft holds as far as it agrees with it; in the clock's
place stand measured costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specview.decoding.costs import Costs
from specview.decoding.interfaces import Drafter, Forward, LengthPolicy, Proceed
from specview.decoding.ledger import Array, Draft, Round, RunRecord, depths
from specview.decoding.loop import Sequence as Lane
from specview.decoding.loop import decode
from specview.decoding.sampling import SamplingParams
from specview.decoding.verification import DecisionRows
from specview.drafting.base import BaseDrafter
from specview.lab.measured import MeasuredCosts

OnPosition = Callable[[int, int], None]
"""Called with (output tokens done, in all); raises Stopped to stop."""

NO_TOKEN = -1
"""Stands for an id that no token of the text has."""


def never(done: int, total: int) -> None:
    """Tell nobody."""


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


def text_of(record: RunRecord) -> FixedText:
    """The text of a recorded lane; one that was stopped is taken to end where it was."""
    output = tuple(record.token_ids)
    ended = record.end == "eos"
    asked = record.settings.get("max_tokens")
    limit = max(len(output), int(asked)) if ended and isinstance(asked, int) else len(output)
    return FixedText(tuple(record.prompt_ids), output, limit, ended)


class _TextRows(DecisionRows):
    """Rows of which only the target's choice is known: in the place of logits stand ids."""

    def argmax(self, row: int) -> int:
        """The text's token there."""
        return int(self.logits[row])


class _Written(BaseDrafter):
    """The text as a session, and the clock that its passes move; it stands around the drafter too, whose drafts take time."""

    def __init__(self, text: FixedText, drafter: Drafter, costs: MeasuredCosts | None) -> None:
        self.text, self.drafter, self.costs = text, drafter, costs
        self.length = self._before = len(text.prompt) - 1
        self.now = 0.0
        self.name, self.exact_q = drafter.name, drafter.exact_q
        self.feature_layers = drafter.feature_layers

    def observe(self, round_: Round, features: Mapping[Any, Array]) -> None:
        """As the drafter does."""
        self.drafter.observe(round_, features)

    def clock(self) -> float:
        """Seconds so far."""
        return self.now

    def propose(self, context: Sequence[int], budget: int, proceed: Proceed | None = None) -> Draft:
        """Draft, in the time that a draft of that length takes."""
        draft = self.drafter.propose(context, budget, proceed)
        if self.costs is not None:
            self.now += self.costs.draft_s(draft.longest)
        return draft

    def forward(self, tokens: Sequence[int], parents: Sequence[int] | None = None, features: Sequence[Any] = ()) -> Forward:
        """The text's token after each of these, as far as they go along with it; none beyond its end."""
        output, position = self.text.output, self.length + 1 - len(self.text.prompt)
        places = [position + depth for depth in (range(len(tokens)) if parents is None else depths(parents))]
        self._before = self.length
        self.length += len(tokens)
        if self.costs is not None:
            self.now += self.costs.pass_s(len(tokens))
        return Forward([output[place] if place < len(output) else NO_TOKEN for place in places])

    def truncate(self, length: int) -> None:
        """Roll back: what is neither draft nor pass falls here."""
        self.length = length
        self.now += self.costs.other_s if self.costs is not None else 0.0

    def keep(self, path: Sequence[int]) -> None:
        """Keep a path of the tree."""
        self.truncate(self._before + len(path))

    def synchronize(self) -> None:
        """Nothing is under way."""


def replay(
    text: FixedText,
    drafter: Drafter,
    policy: LengthPolicy,
    costs: MeasuredCosts | None = None,
    learned: Costs | None = None,
    tell: OnPosition = never,
) -> list[Round]:
    """The rounds that would have written the text, timed by `costs` (0 without).

    The drafter has had its `start`, the policy too. learned is what the policy, or the drafter, chooses by.
    """
    written: Any = _Written(text, drafter, costs)
    lane = Lane(list(text.prompt))
    rounds: list[Round] = []
    tell(0, len(text.output))
    for round_ in decode(
        written, lane, rule="greedy", sampling=SamplingParams(), max_tokens=text.limit, drafter=written, policy=policy,
        eos_ids=text.output[-1:] if text.ended else (), clock=written.clock, rows=_TextRows,
    ):  # fmt: skip
        rounds.append(round_)
        if learned is not None:
            learned.observe(round_)
        tell(len(lane.output), len(text.output))
    return rounds
