"""What a recorded drafter would have guessed where its rounds began elsewhere, as far as a trace can tell.

A draft model that drafts from the text alone says one thing of every place of the text, wherever a draft began:
what it says given the true tokens before. A trace has that of every place that was judged, and of the others from
the pass that caught up with them (Round.guesses). Heads that go on from their own states say other things at other
depths: of those a trace has the recorded drafts, the first token of others, and else an approximation.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from specview.decoding.interfaces import Proceed
from specview.decoding.ledger import EMPTY_DRAFT, Draft, Round
from specview.drafting.base import BaseDrafter
from specview.lab.measured import MeasuredCosts
from specview.lab.what_if_replay import NO_TOKEN, FixedText

Answer = Literal["low", "high", "middle"]
"""How to answer what a trace does not say: all wrong, all right, or by the drafter's record."""


class Place(NamedTuple):
    """A drafted token: its id, whether it holds, how sure the drafter was (None: not recorded)."""

    id: int
    right: bool
    confidence: float | None


@dataclass(slots=True)
class GuessTable:
    """All that a lane's rounds say of its drafter.

    follows_text  the drafter says one thing of every place, wherever its draft began
    by_place      output position -> what was drafted there, given the true tokens before
    first         output position -> the first token of a draft that begins there
    chains        output position -> the whole draft that began there
    tails         output position of a wrong token -> how sure the drafter was of those drafted after it
    longest       the most tokens that it can draft at all; None where nothing says so
    last          the output position from which on it drafts nothing (its context is full)
    alpha         share of the judged tokens that held
    """

    text: FixedText
    follows_text: bool
    by_place: dict[int, Place] = field(default_factory=dict)
    first: dict[int, Place] = field(default_factory=dict)
    chains: dict[int, tuple[Place, ...]] = field(default_factory=dict)
    tails: dict[int, tuple[float | None, ...]] = field(default_factory=dict)
    longest: int | None = None
    last: int | None = None
    alpha: float = 0.0
    sure: dict[str, list[float]] = field(default_factory=lambda: {"right": [], "wrong": [], "tail": []})

    @property
    def knows_confidence(self) -> bool:
        """Whether the trace says how sure the drafter was."""
        return bool(self.sure["right"] or self.sure["wrong"])

    def most(self, position: int, budget: int) -> int:
        """How many tokens a draft from there may have."""
        if self.longest is not None:
            budget = min(budget, self.longest)
        if self.last is not None:
            budget = min(budget, self.last - position)
        if position in self.chains and not self.chains[position]:
            return 0  # the drafter had nothing to draft from
        return max(0, budget)

    def known(self, start: int, depth: int) -> Place | None:
        """What stood, or would have stood, at this depth of a draft from `start`, all before it right."""
        at = start + depth
        chain = self.chains.get(start)
        if chain is not None and depth < len(chain):
            return chain[depth]
        if self.follows_text:
            return self.by_place.get(at)
        return self.first.get(at) if depth == 0 else None

    def reach(self, start: int, budget: int) -> tuple[int, int]:
        """The least and the most tokens that can hold of a draft of up to `budget` tokens from `start`."""
        budget = min(self.most(start, budget), len(self.text.output) - start)
        least: int | None = None
        for depth in range(budget):
            place = self.known(start, depth)
            if place is None:
                least = depth if least is None else least
                if not self.follows_text:
                    return least, budget
            elif not place.right:
                return (depth if least is None else least), depth
        return (budget if least is None else least), budget


def table_of(
    text: FixedText, rounds: Sequence[Round], *, follows_text: bool, fixed: bool, k: int | None, constant: bool
) -> GuessTable:
    """Read the rounds of a lane that drafted chains.

    fixed  what a guess is worth shows by comparing it with the text (greedy, match); else only a trial does
    k, constant  the lane's draft length, and whether it was always asked for
    """
    table = GuessTable(text, follows_text)
    position = judged = accepted = 0
    ends: list[tuple[int, int, int]] = []  # per round with room for a draft: start, drafted, asked for
    for round_ in rounds:
        for back, guess in enumerate(reversed(round_.guesses), start=1):
            at = position - back
            if at >= 0 and fixed:
                place = Place(guess.id, guess.id == text.output[at], guess.confidence)
                table.first.setdefault(at, place)
                table.by_place.setdefault(at, place)
        chain: list[Place] = []
        for depth, token in enumerate(round_.drafted):
            at = position + depth
            chain.append(Place(token.id, token.verdict == "accepted", token.confidence))
            if token.verdict != "ignored" and at < len(text.output):
                table.by_place[at] = chain[-1]
                judged += 1
                accepted += token.verdict == "accepted"
                if token.confidence is not None:
                    table.sure["right" if chain[-1].right else "wrong"].append(token.confidence)
            if token.verdict == "rejected":
                table.tails[at] = tuple(later.confidence for later in round_.drafted[depth + 1 :])
                table.sure["tail"] += [sure for sure in table.tails[at] if sure is not None]
        if chain:
            table.chains[position] = tuple(chain)
            table.first[position] = chain[0]
        room = text.limit - position - 1
        if constant and k and room > 0:
            ends.append((position, len(chain), min(k, room)))
        position += len(round_.emitted)
    table.alpha = accepted / judged if judged else 0.0
    _find_limits(table, ends)
    return table


def _find_limits(table: GuessTable, ends: Sequence[tuple[int, int, int]]) -> None:
    """Where the drafter drafted less than it was asked to, always: what it can draft at most, or up to where."""
    longest = max((drafted for _, drafted, _ in ends), default=0)
    short = [(start, drafted) for start, drafted, asked in ends if drafted < asked]
    if longest and any(asked > longest for _, _, asked in ends):
        table.longest = longest
        short = [(start, drafted) for start, drafted, asked in ends if drafted < min(asked, longest)]
    for start, drafted in short:
        if all(other + count <= start + drafted for other, count, _ in ends if other >= start):
            table.last = start + drafted
            return
        if not drafted:
            table.chains[start] = ()


class RecordedDrafter(BaseDrafter):
    """Stands for a lane's drafter: drafts what it would have drafted, as far as the table can tell.

    doubts counts answers that the trace does not give of whether a token holds, unsure those of how sure the drafter
    was, where that was asked.
    """

    def __init__(self, table: GuessTable, answer: Answer = "middle", seed: int = 0, name: str = "recorded") -> None:
        self.name = name
        self.doubts = self.unsure = 0
        self._table = table
        self._answer = answer
        self._random = random.Random(seed)
        self._invented: dict[int, Place] = {}  # one answer a place, where the drafter says one thing of it

    def propose(self, context: Sequence[int], budget: int, proceed: Proceed | None = None) -> Draft:
        """Draft as the recorded drafter would have."""
        table = self._table
        output = table.text.output
        start = len(context) - len(table.text.prompt)
        asked = proceed is not None and table.knows_confidence
        tokens: list[int] = []
        confidences: list[float | None] = []
        wrong_at: int | None = None
        for depth in range(table.most(start, budget)):
            at = start + depth
            if wrong_at is None and at < len(output):
                place = self._place(start, depth)
                tokens.append(output[at] if place.right else place.id if place.id != output[at] else NO_TOKEN)
                confidence = place.confidence
                if confidence is None and asked:
                    self.unsure += 1
                    confidence = self._sureness("right" if place.right else "wrong")
                wrong_at = None if place.right else at
            else:
                tokens.append(NO_TOKEN)
                confidence = self._tail(start, at, wrong_at) if asked else None
            confidences.append(confidence)
            if asked and proceed is not None and confidence is not None and not proceed(confidence):
                break
        if not tokens:
            return EMPTY_DRAFT
        known = tuple(confidences) if table.knows_confidence else ()
        return Draft(tokens=tuple(tokens), confidences=known, drafter=self.name)

    def _place(self, start: int, depth: int) -> Place:
        table, at = self._table, start + depth
        place = table.known(start, depth)
        if place is not None:
            return place
        self.doubts += 1
        if self._answer == "low":
            return Place(NO_TOKEN, False, 1.0)
        if self._answer == "high":
            return Place(NO_TOKEN, True, 1.0)
        if at in table.by_place:  # from another depth
            return table.by_place[at]
        if at not in self._invented:
            right = self._random.random() < table.alpha
            self._invented[at] = Place(NO_TOKEN, right, None)
        return self._invented[at]

    def _tail(self, start: int, at: int, wrong_at: int | None) -> float:
        """How sure the drafter would have been of a token that comes after a wrong one, or after the end."""
        chain = self._table.chains.get(start, ())
        found: float | None = None
        if at - start < len(chain):
            found = chain[at - start].confidence
        elif wrong_at is not None and self._table.follows_text:
            tail = self._table.tails.get(wrong_at, ())
            found = tail[at - wrong_at - 1] if at - wrong_at - 1 < len(tail) else None
        if found is not None:
            return found
        self.unsure += 1
        return self._sureness("tail")

    def _sureness(self, kind: str) -> float:
        """As much as the drafter was elsewhere; at the extremes the draft goes on, or ends after what is wrong."""
        if self._answer != "middle":
            return 0.0 if kind == "tail" and self._answer == "high" else 1.0
        recorded = self._table.sure[kind] or self._table.sure["wrong"] or self._table.sure["right"]
        return self._random.choice(recorded) if recorded else 0.5


def length_bounds(
    table: GuessTable, k: int, costs: MeasuredCosts | None
) -> tuple[tuple[float, float], tuple[float, float] | None]:
    """The fewest and most rounds that drafts of k tokens can have taken, and the least and most seconds.

    Whatever the trace leaves open at a place is chosen anew for every place (dynamic programming), so that the true
    run lies within. Where nothing is open both ends are the true ones.
    """
    total, limit = len(table.text.output), table.text.limit
    fewest, most, fastest, slowest = ([0.0] * (total + 1) for _ in range(4))
    for start in range(total - 1, -1, -1):
        budget = min(k, limit - start - 1)
        drafted = table.most(start, budget)
        least, reach = table.reach(start, budget)
        seconds = 0.0 if costs is None else costs.round_s(drafted)
        next_ones = [min(start + held + 1, total) for held in range(least, reach + 1)]
        for ends, own, choose in ((fewest, 1.0, min), (most, 1.0, max), (fastest, seconds, min), (slowest, seconds, max)):
            ends[start] = own + choose(ends[at] for at in next_ones)
    return (fewest[0], most[0]), None if costs is None else (fastest[0], slowest[0])
