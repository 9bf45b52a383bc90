"""`auto`: picks the drafter and the length of each round from what each has earned so far on this text.

For every member and length it predicts tokens per second: the expected tokens, from the member's running
acceptance on this text, over the measured time of draft, pass and the rest. The best is drafted, or nothing
where plain decoding is best.

A member that copies (the n-gram family) proposes at no real cost, so all of them do in every round; what they
proposed is compared with the text that came, whoever drafted it, so that each is judged on every token. A
member that drafts with a model is judged by its own drafts alone. It is retried now and then where it would pay by
the measured costs if it were accepted as often as may yet be hoped, and while retries have cost next to nothing.

The choice depends on the text so far, on past rounds and clocks, and on proposals that are point masses; never on a
number that the next draft is drawn by. So what is exact for the members stays exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specview.decoding.costs import Costs
from specview.decoding.interfaces import Drafter, OnChunk, Proceed
from specview.decoding.ledger import EMPTY_DRAFT, Array, Draft, Round
from specview.decoding.sampling import SamplingParams
from specview.drafting import cascade
from specview.drafting.acceptance import (
    COPIES,
    UNKNOWN,
    Acceptance,
    GoOn,
    Matches,
    fastest,
    learn_round,
    refused,
)
from specview.drafting.base import going_on
from specview.drafting.cascade import Combined, Several, copying, make_members, members_option
from specview.drafting.method import DrafterContext, MethodInfo
from specview.drafting.suffix import Suffix
from specview.settings.options import Value

DEFAULT_K = 48
FIRST_PAUSE = 4  # rounds before a member that drafts with a model is retried
LONGEST_PAUSE = 64
TRIALS = 0.01  # of the time so far: what retries may have lost when another begins
FADES = 0.99  # a round, of what was learned of a member that did not draft in it

OPTIONS = (
    members_option(
        "prompt-lookup+suffix+draft-model",
        "among which each round picks. Options of a member are given as member.option. Where none "
        "are named, a head takes the draft model's place: the one that the lane's draft names, or in transformers "
        "the bundled EAGLE-3 head of the bundled target.",
    ),
)


@dataclass(slots=True)
class Standing:
    """A member and what it has earned.

    copies says that its proposals are point masses at no real cost; then `proposed` is its last one, which
    began at place `begin` of the context and has been compared up to `compared`.
    """

    drafter: Drafter
    copies: bool
    acceptance: Acceptance
    proposed: Draft = EMPTY_DRAFT
    begin: int = 0
    compared: int = 0
    extra: float = 0.0  # rows of a pass beside the last token and the draft's length
    asks: bool = False  # whether it asks, token by token, to go on
    pause: int = FIRST_PAUSE
    idle: int = 0

    @property
    def name(self) -> str:
        """The member's name, as it stands in the ledger."""
        return self.drafter.name

    def compare(self, context: Sequence[int]) -> None:
        """Learn how the last proposal compares with what has been written since."""
        draft = self.proposed
        until = min(len(draft), len(context) - self.begin)
        while self.compared < until:
            place = self.compared
            held = draft.tokens[place] == context[self.begin + place]
            confidence = draft.confidences[place] if place < len(draft.confidences) else None
            self.acceptance.learn(confidence, held)
            self.compared += 1
            if not held:
                self.proposed = EMPTY_DRAFT
                return

    def propose(self, context: Sequence[int], budget: int, matches: Matches) -> Draft:
        """The proposal of a member that copies, remembered for the next comparison.

        Its run is the match that it goes on from; where the text has none, what has held so far.
        """
        self.compare(context)
        draft = self.drafter.propose(context, budget)
        if draft:
            self.proposed, self.begin, self.compared = draft, len(context), 0
            self.acceptance.run = matches.length(context, draft.tokens[0]) or self.acceptance.run
        return draft


class Auto(Combined):
    """Drafts with the member, and to the length, that is predicted to give the most tokens per second.

    copying names the members that propose point masses at no real cost.
    """

    name = "auto"

    def __init__(self, members: Sequence[Drafter], copying: Sequence[bool], costs: Costs | None = None) -> None:
        super().__init__(members)
        self._costs = costs or Costs()
        self._copying = tuple(copying)
        self._stand()

    def _stand(self) -> None:
        self._matches = Matches()
        self._spent_s = self._lost_s = 0.0
        self._fair_s: float | None = None
        self.standings = [
            Standing(member, copies, Acceptance(COPIES if copies else UNKNOWN))
            for member, copies in zip(self.members, self._copying, strict=True)
        ]

    def start(
        self, prompt_tokens: Sequence[int], sampling: SamplingParams, on_chunk: OnChunk | None = None
    ) -> None:
        """Give every member the prompt, and begin with nothing earned."""
        self._stand()
        super().start(prompt_tokens, sampling, on_chunk)

    def propose(self, context: Sequence[int], budget: int, proceed: Proceed | None = None) -> Draft:
        """Draft what is predicted to be fastest; nothing where plain decoding is."""
        self._matches.extend(context)
        plain_speed = 1 / self._costs.rounds_s("", 0)[0]
        best, best_draft, best_length, best_speed = None, EMPTY_DRAFT, 0, plain_speed
        models: list[tuple[Standing, list[float]]] = []
        for standing in self.standings:
            if standing.copies:
                draft = standing.propose(context, budget, self._matches)
                if not draft:
                    continue
                reaches = standing.acceptance.reaches(len(draft), draft.confidences)
                length, speed = fastest(reaches, self._costs.rounds_s(standing.name, len(draft), copies=True))
                if speed > best_speed:
                    best, best_draft, best_length, best_speed = standing, draft, length, speed
            else:
                models.append((standing, self._costs.rounds_s(standing.name, budget, standing.extra)))
        model, model_length, retry = None, 0, False
        may_try = self._lost_s <= TRIALS * self._spent_s
        for standing, times in models:
            length, speed = fastest(standing.acceptance.reaches(budget), times)
            if speed > best_speed:
                model, model_length, best_speed = standing, length, speed
        for standing, times in models:
            # What would not pay here even if it were accepted as often as may be hoped is not tried again.
            if may_try and standing is not model and standing.idle >= standing.pause:
                length, hoped = fastest(standing.acceptance.hopes(budget), times)
                if hoped > best_speed:
                    model, model_length, retry = standing, length, True
                    break
        self._fair_s = 1 / best_speed if retry else None
        if model is not None:
            draft = self._draft_with(model, context, budget, model_length, best_speed, proceed, retry)
            if draft or draft.riders:
                return draft
        if best is None:
            return EMPTY_DRAFT
        return shortened(best_draft, best_length, proceed)

    def _draft_with(
        self,
        standing: Standing,
        context: Sequence[int],
        budget: int,
        length: int,
        speed: float,
        proceed: Proceed | None,
        retry: bool,
    ) -> Draft:
        """Let a model draft; where it says how sure it is, the length is settled while it drafts."""
        times = self._costs.rounds_s(standing.name, budget, standing.extra)
        go_on = GoOn(standing.acceptance, times, speed)
        if standing.asks and not retry:
            length = budget

        def both(confidence: float) -> bool:
            return go_on(confidence) and (proceed is None or proceed(confidence))

        draft = standing.drafter.propose(context, length, both)
        standing.asks = go_on.asked
        return draft

    def observe(self, round_: Round, features: Mapping[Any, Array]) -> None:
        """Tell every member, and learn what those that draft with a model have earned."""
        super().observe(round_, features)
        self._spent_s += round_.seconds
        if self._fair_s is not None:
            self._lost_s += max(0.0, round_.seconds - len(round_.emitted) * self._fair_s)
        for standing in self.standings:
            if standing.copies:
                continue
            if round_.rows > 1 and round_.drafter == standing.name:
                standing.extra += (round_.rows - 1 - round_.longest - standing.extra) / 2
                learn_round(standing.acceptance, round_)
                failed = standing.idle and refused(round_) is not None
                standing.pause = min(2 * standing.pause, LONGEST_PAUSE) if failed else FIRST_PAUSE
                standing.idle = 0
            else:
                standing.idle += 1
                standing.acceptance.fade(FADES)


def shortened(draft: Draft, length: int, proceed: Proceed | None = None) -> Draft:
    """The first `length` tokens of a draft, or fewer where `proceed` ends it."""
    if proceed is not None and draft.confidences:
        length = going_on(draft.confidences[:length], proceed)
    return replace(
        draft,
        tokens=draft.tokens[:length],
        parents=None if draft.parents is None else draft.parents[:length],
        q=None if draft.q is None else draft.q[:length],
        confidences=draft.confidences[:length],
        raw_logits=None if draft.raw_logits is None else draft.raw_logits[:length],
    )


def make(context: DrafterContext) -> Auto:
    """Make the drafter."""
    return Auto(make_members(context), copying(context.options), context.costs)


def shape_of(options: Mapping[str, Value]) -> Several:
    """As the members draft; a round may pick up to DEFAULT_K tokens."""
    return replace(cascade.shape_of(options), levels=DEFAULT_K)


def members_among(copying: Sequence[str], running: Sequence[str]) -> list[str]:
    """The best that copies, suffix where it does, and the best that runs a model."""
    return list(dict.fromkeys([*copying[:1], *(name for name in copying if name == Suffix.name), *running[:1]]))


METHOD = MethodInfo(
    "auto",
    "auto",
    "Picks drafter and length for every round from what each has earned on this text so far.",
    make,
    OPTIONS,
    family="combined",
    combines=True,
    needs_costs=True,
    head_for_model=True,
    members_among=members_among,
    shape=shape_of,
    place=2,
)
