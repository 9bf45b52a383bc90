"""The oracle: how fast a combined lane could have been, had it always picked the right member and length.

After the lane has ended each member drafts anew at every position of the text that was written, and a
dynamic programme over the positions finds the fastest schedule under the lane's own measured costs. It needs
a text that does not depend on what is drafted: greedy decoding, or `match`. Under `rejection` above
temperature 0 another draft would have led to another text, and there is no such figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace

from specview.decoding.costs import Costs
from specview.decoding.interfaces import Drafter
from specview.decoding.ledger import EMPTY_DRAFT, Array, Draft, FinalToken, Round
from specview.decoding.sampling import SamplingParams
from specview.drafting.method import DrafterContext
from specview.drafting.registry import METHODS
from specview.racing.lane import Lane

OnPosition = Callable[[int, int], None]
"""Called with (positions done, in all); raises Stopped to stop."""

Reach = tuple[int, int]
"""How many tokens a member drafts at a position, at most, and how many of those hold."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the oracle does at a position: `drafter` drafts `length` tokens ("" and 0: plain)."""

    position: int
    drafter: str
    length: int


@dataclass(frozen=True, slots=True)
class Oracle:
    """The fastest schedule: its seconds, its speed, and its rounds; own_seconds are the lane's own rounds'.

    All seconds are by the lane's measured costs, so that a noisy clock cannot set one above the other.
    """

    seconds: float
    own_seconds: float
    tokens_per_s: float
    schedule: tuple[Choice, ...]


def oracle_of(lane: Lane, on_position: OnPosition | None = None) -> Oracle | None:
    """The oracle of a finished combined lane; None where there is none.

    That is: another method, no output, a text that depends on its drafts, or a member that drafts with the
    target's own passes (family "self"), which cannot be run anew without them.
    """
    method = METHODS[lane.settings.method]
    output = lane.record.token_ids
    members = method.members(lane.settings.options)
    if not members or not output or lane.record.end in (None, "error"):
        return None
    if not lane.run.sampling.greedy and lane.rule != "match":
        return None
    if any(METHODS[name].family == "self" for name in members):
        return None
    prompt = list(lane.record.prompt_ids)
    # A policy may draft beyond the lane's k (heuristic does): so may the oracle.
    k = max([lane.k, *(round_.k for round_ in lane.record.rounds)])
    context = lane.drafter_context(len(prompt) + len(output) + max(k, lane.pass_rows) + 1)
    found: dict[str, list[Reach]] = {}
    for index, name in enumerate(members):
        done = index * len(output)

        def tell(position: int, done: int = done) -> None:
            if on_position is not None:
                on_position(done + position, len(members) * len(output))

        found[name] = member_accepts(context, name, prompt, output, k, lane.run.sampling, tell, given=len(lane.run.given_ids))
    schedule, seconds = fastest_schedule(found, len(output), k, lane.costs)
    times = {name: _times(lane.costs, name, k) for name in members}
    plain = lane.costs.rounds_s("", 0)[0]
    own = sum(times[round_.drafter][round_.k] if round_.k else plain for round_ in lane.record.rounds)
    return Oracle(seconds, own, len(output) / seconds, schedule) if seconds > 0 else None


def _times(costs: Costs, name: str, k: int) -> list[float]:
    """Seconds of a round in which this member drafts 0 to k tokens."""
    return costs.rounds_s(name, k, copies=METHODS[name].copies)


def member_accepts(
    context: DrafterContext,
    name: str,
    prompt: list[int],
    output: Sequence[int],
    k: int,
    sampling: SamplingParams,
    tell: Callable[[int], None] = lambda position: None,
    given: int = 0,
) -> list[Reach]:
    """Per output position what this member would have drafted there; of the prompt so many of the last tokens are output."""
    drafter = context.member(name)
    drafter.written = given
    copies = METHODS[name].copies
    try:
        drafter.start(prompt, sampling, lambda done, total: tell(0))
        if METHODS[name].head is not None:
            return _accepts_of_head(context, drafter, prompt, output, k, tell)
        return accepts(drafter, copies, prompt, output, k, tell)
    finally:
        if not copies:  # closing a copying one would hand this text to the next run a second time
            drafter.close()


def accepts(
    drafter: Drafter,
    copies: bool,
    prompt: list[int],
    output: Sequence[int],
    k: int,
    tell: Callable[[int], None] = lambda position: None,
) -> list[Reach]:
    """Per output position how far a draft of up to k tokens goes, and how much of it holds.

    A model drafts one token at every position: as it drafts token by token, from the text and a stream keyed by
    position, a longer draft holds as long as these do. So it makes one step a position, whatever k is.
    """
    written = list(prompt)
    found: list[Reach] = []
    for position, token in enumerate(output):
        tell(position)
        most = min(k, len(output) - position - 1)
        draft = drafter.propose(written, most if copies else 1) if most else EMPTY_DRAFT
        held = _held(draft, output[position:])
        found.append((len(draft) if copies or not draft else most, min(held, most)))
        written.append(token)
    if not copies:
        for position in range(len(found) - 2, -1, -1):
            proposed, held = found[position]
            found[position] = (proposed, min(held * (1 + found[position + 1][1]), proposed))
    return found


def _accepts_of_head(
    context: DrafterContext,
    drafter: Drafter,
    prompt: list[int],
    output: Sequence[int],
    k: int,
    tell: Callable[[int], None],
) -> list[Reach]:
    """As `accepts`, for a drafter that reads the target's features: one prefill of the whole text gives them all.

    It drafts up to k tokens at every position, for its later steps read its own states, and hears of each token of
    the text as of a plain round.
    """
    assert context.target is not None
    layers = tuple(dict.fromkeys((*drafter.prompt_layers, *drafter.feature_layers)))
    parts: list[Mapping[Any, Array]] = []
    session = context.target.new_session(len(prompt) + len(output))
    try:
        session.prefill([*prompt, *output], lambda done, total: tell(0), layers, parts.append)
    finally:
        session.close()
    rows = {layer: array_namespace(parts[0][layer]).concat([part[layer] for part in parts]) for layer in layers}
    if drafter.prompt_layers and len(prompt) > 1:
        drafter.learn_prompt({layer: rows[layer][: len(prompt) - 1] for layer in drafter.prompt_layers})
    written = list(prompt)
    found: list[Reach] = []
    for position, token in enumerate(output):
        tell(position)
        most = min(k, len(output) - position - 1)
        draft = drafter.propose(written, most) if most else EMPTY_DRAFT
        found.append((min(draft.longest, most), min(_held(draft, output[position:]), most)))
        at = len(written) - 1
        plain = Round(position, 0.0, 0.0, 0.0, 0.0, final=FinalToken(token, "plain"))
        drafter.observe(plain, {layer: rows[layer][at : at + 1] for layer in drafter.feature_layers})
        written.append(token)
    return found


def _held(draft: Draft, text: Sequence[int]) -> int:
    """The longest path of a draft that the text goes along."""
    depths: list[int] = []  # per node the length of its path where the text goes along it, else 0
    for index, token in enumerate(draft.tokens):
        parent = index - 1 if draft.parents is None else draft.parents[index]
        before = depths[parent] if parent >= 0 else 0
        follows = (parent < 0 or before > 0) and before < len(text) and text[before] == token
        depths.append(before + 1 if follows else 0)
    return max(depths, default=0)


def fastest_schedule(
    reaches: Mapping[str, Sequence[Reach]], tokens: int, k: int, costs: Costs
) -> tuple[tuple[Choice, ...], float]:
    """The schedule of rounds that writes `tokens` tokens in the least time, and that time in seconds.

    A round that drafts `length` tokens emits those of them that hold, and one more. More than hold are drafted
    only where a longer pass takes less time.
    """
    times = {name: _times(costs, name, k) for name in reaches}
    return fastest_by_times(reaches, tokens, times, costs.rounds_s("", 0)[0])


def fastest_by_times(
    reaches: Mapping[str, Sequence[Reach]], tokens: int, times: Mapping[str, Sequence[float]], plain: float
) -> tuple[tuple[Choice, ...], float]:
    """As `fastest_schedule`; times has per drafter the seconds of a round that drafts 0, 1, 2, ... tokens."""
    best: list[tuple[float, str, int]] = [(0.0, "", 0)] * (tokens + 1)
    for position in range(tokens - 1, -1, -1):
        options = [(plain + best[position + 1][0], "", 0)]
        for name, by_position in reaches.items():
            proposed, held = by_position[position]
            options += [
                (times[name][length] + best[position + min(length, held) + 1][0], name, length)
                for length in range(1, proposed + 1)
            ]
        best[position] = min(options)
    schedule: list[Choice] = []
    position = 0
    while position < tokens:
        _, name, length = best[position]
        schedule.append(Choice(position, name, length))
        position += 1 + (min(length, reaches[name][position][1]) if length else 0)
    return tuple(schedule), best[0][0]
