"""The phases of one round in the order in which they happened: draft, target pass, each judgement, the final token.

Replay, presentation and the exported page all show a round by these. The ledger keeps three times of a round; within
the draft its tokens (a tree's levels) are spread evenly over draft_s, and what the rule decided over other_s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from specview.decoding.ledger import DraftedToken, Round, Verdict

StageName = Literal["draft", "verify", "accepted", "rejected", "ignored", "corrected", "bonus", "plain"]
TokenState = Literal["unseen", "drafted", "accepted", "rejected", "ignored"]
"""What is known of a drafted token: nothing, that it was proposed, or what became of it."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One moment of a round, and how things stand from then on.

    t is on the lane's own clock, seconds; later stages never have an earlier one, some have the same. states has one entry
    per drafted token, changed the indices of those that are new or judged in this stage. final: whether the round's final
    token is there. words is one plain sentence.
    """

    name: StageName
    t: float
    states: tuple[TokenState, ...]
    changed: tuple[int, ...]
    final: bool
    words: str


def stages(round_: Round) -> tuple[Stage, ...]:
    """The phases of a round, a chain or a tree, under any rule; the last one is at the round's own t."""
    return tuple(_stages(round_))


def _stages(round_: Round) -> Iterator[Stage]:
    begin = latest = round_.t - round_.seconds
    states: list[TokenState] = ["unseen"] * round_.k

    def stage(name: StageName, t: float, words: str, changed: Sequence[int] = (), final: bool = False) -> Stage:
        nonlocal latest
        latest = min(max(t, latest), round_.t)
        for place in changed:
            states[place] = _STATE.get(name, "drafted")
        return Stage(name, latest, tuple(states), tuple(changed), final, words)

    levels = _levels(round_)
    for number, level in enumerate(levels, 1):
        yield stage("draft", begin + round_.draft_s * number / len(levels), _draft_words(round_, number, len(levels), len(level)), level)
    judged, ignored = _judged(round_), [place for place, token in enumerate(round_.drafted) if token.verdict == "ignored"]
    left = len(judged) + bool(ignored) + (round_.final is not None)
    verified = begin + round_.draft_s
    yield stage("verify", verified if left else round_.t, _verify_words(round_))
    verified += round_.verify_s
    step, number = (round_.t - verified) / max(left, 1), 0

    def moment() -> float:
        nonlocal number
        number += 1
        return round_.t if number == left else verified + number * step

    for place in judged:
        token = round_.drafted[place]
        yield stage(token.verdict, moment(), f"{_which(round_, place)} is {token.verdict}{_reason(token)}", (place,))
    if ignored:
        yield stage("ignored", moment(), _ignored_words(round_, len(ignored)), ignored)
    if round_.final is not None:
        yield stage(round_.final.kind, moment(), _FINAL_WORDS[round_.final.kind], final=True)


_STATE: dict[StageName, TokenState] = {"accepted": "accepted", "rejected": "rejected", "ignored": "ignored"}
_FINAL_WORDS: dict[StageName, str] = {
    "corrected": "the target puts a token of its own in the place of the rejected one",
    "bonus": "the whole draft was accepted: the same pass gives one token more",
    "plain": "the target's own next token",
}


def _levels(round_: Round) -> list[list[int]]:
    """What appears together: one token of a chain, the tokens of one depth of a tree."""
    depths = list(round_.depths)
    return [[place for place, depth in enumerate(depths) if depth == level] for level in range(round_.longest)]


def _judged(round_: Round) -> list[int]:
    """The tokens that the rule tried, in its order: the children of the last accepted one in turn, from the root on."""
    parents = round_.parents if round_.parents is not None else range(-1, round_.k - 1)
    children: dict[int, list[int]] = {}
    for place, parent in enumerate(parents):
        if round_.drafted[place].verdict != "ignored":
            children.setdefault(parent, []).append(place)
    order: list[int] = []
    node: int | None = -1
    while node is not None:
        tried = children.pop(node, [])
        order += tried
        node = next((place for place in tried if round_.drafted[place].verdict == "accepted"), None)
    return order + sorted(place for rest in children.values() for place in rest)  # a file may hold what no rule gives


# -- words ---------------------------------------------------------------------------------------------------


def _count(count: int, what: str = "token") -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _draft_words(round_: Round, number: int, levels: int, width: int) -> str:
    if round_.parents is None:
        return f"the drafter proposes token {number} of {levels}"
    return f"the drafter proposes level {number} of {levels}: {_count(width)}"


def _verify_words(round_: Round) -> str:
    if round_.k:
        return f"the target verifies {_count(round_.k, 'drafted token')} in one pass"
    return "the target computes the next token in one pass"


def _which(round_: Round, place: int) -> str:
    if round_.parents is None:
        return f"token {place + 1}"
    return f"node {place + 1}, at level {round_.depths[place] + 1},"


def _reason(token: DraftedToken) -> str:
    """Why it was, as far as the ledger says: what its rule compared."""
    held: Verdict = token.verdict
    if token.threshold is not None and token.p is not None:
        return f": its p {token.p:.2g} is {'above' if held == 'accepted' else 'not above'} the threshold {token.threshold:.2g}"
    if token.u is not None and token.accept is not None:
        return f": {token.u:.2g} was drawn, under {token.accept:.2g} it is kept"
    if token.draw is not None:
        return ": the target drew it too" if held == "accepted" else ": the target drew another"
    if token.accept is None:
        return ""
    return ": it is the target's likeliest" if held == "accepted" else ": another is the target's likeliest"


def _ignored_words(round_: Round, count: int) -> str:
    where = "off the path that was judged" if round_.parents is not None else "after it"
    return f"{_count(count, 'drafted token')} {where} {'is' if count == 1 else 'are'} not judged"
