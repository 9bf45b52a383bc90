"""How likely drafted tokens are to be accepted, learned while a text is written.

Two estimates, mixed by how well each has predicted so far. One is a hazard: the chance that the next
drafted token holds after n have held in a row, over the drafts of several rounds; a copied passage goes on
the more surely the longer it has gone on. The other takes the drafter's own confidence and learns what that
is worth. Old trials count less and less, so that both follow the text.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from specview.decoding.ledger import DraftedToken, Round

RUNS = (0, 1, 2, 3, 4, 6, 9, 13, 19, 28, 41)
"""The shortest run of each bucket of the hazard."""

SURENESS = (0.0, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97)
"""The lowest confidence of each bucket of the calibration."""

_BUCKET_OF_RUN = [bisect_right(RUNS, run) - 1 for run in range(RUNS[-1] + 1)]
_MIDDLES = [(low + high) / 2 for low, high in zip(SURENESS, (*SURENESS[1:], 1.0), strict=True)]

UNKNOWN = (0.5, 0.67, 0.79, 0.86, 0.91, 0.94, 0.96, 0.97, 0.98, 0.99, 0.99)
"""Acceptance expected by bucket of RUNS before anything is known of the drafter or the text."""

COPIES = (0.2, 0.2, 0.55, 0.7, 0.85, 0.87, 0.9, 0.9, 0.95, 0.98, 0.98)
"""That of a copy, the run being the length of the match: all n-gram methods, over the bundled workloads."""

WEIGHT = 4.0  # trials that the expected acceptance counts for
LEAN = 0.7  # how far a bucket goes along where its neighbour differs from what was expected
KEEP = 0.96  # what a trial counts for after the next one in its bucket
SURE_WEIGHT = 4.0  # trials that a confidence itself counts for
SURE_KEEP = 0.95
LOSS_KEEP = 0.95
FIRST_LEAD = 1.0  # nats by which confidence is taken to predict better than the run, before either has
LOOKED_AT = 4  # places of a pair of tokens
LONGEST_MATCH = 24
HOPE = 1.5  # standard deviations above what is estimated that an acceptance may yet turn out to be
NEGLIGIBLE = 0.01  # a chance beyond which no further look is taken


class Acceptance:
    """A running estimate for one drafter on one text.

    run is the number of its tokens that have held in a row, up to the end of the text so far.
    """

    def __init__(self, prior: Sequence[float] = UNKNOWN) -> None:
        self.run = 0
        self._prior = [math.log(chance / (1 - chance)) for chance in prior]
        self._held = [0.0] * len(RUNS)
        self._tried = [0.0] * len(RUNS)
        self._sure_held = [0.0] * len(SURENESS)
        self._sure_tried = [0.0] * len(SURENESS)
        self._lead = FIRST_LEAD  # how much better confidence predicts than the run does, nats
        self._rates: list[float] | None = None

    def rates(self) -> list[float]:
        """Acceptance by bucket of RUNS; where one has few trials it differs from its prior as the one before does."""
        if self._rates is None:
            rates: list[float] = []
            apart = 0.0  # of the bucket before from its prior, in log odds
            for expected, held, tried in zip(self._prior, self._held, self._tried, strict=True):
                prior = 1 / (1 + math.exp(-expected - LEAN * apart))
                rate = (held + WEIGHT * prior) / (tried + WEIGHT)
                apart = math.log(rate / (1 - rate)) - expected
                rates.append(rate)
            self._rates = rates
        return self._rates

    def after(self, run: int) -> float:
        """The chance that a token holds after `run` in a row have."""
        return self.rates()[_bucket(run)]

    def hopes(self, length: int) -> list[float]:
        """As `reaches`, of the acceptance that may be hoped for: the less was tried, the higher above the estimate."""
        rates = self.rates()
        reached, hopes = 1.0, []
        for place in range(length):
            bucket = _bucket(self.run + place)
            rate = rates[bucket]
            reached *= min(1.0, rate + HOPE * math.sqrt(rate * (1 - rate) / (self._tried[bucket] + WEIGHT + 1)))
            hopes.append(reached)
        return hopes

    def sure(self, confidence: float) -> float:
        """What a confidence has been worth."""
        bucket = bisect_right(SURENESS, confidence) - 1
        held, tried = self._sure_held[bucket], self._sure_tried[bucket]
        return (held + SURE_WEIGHT * _MIDDLES[bucket]) / (tried + SURE_WEIGHT)

    @property
    def trust(self) -> float:
        """What the drafter's confidence counts for in an estimate, 0 to 1; the run counts for the rest."""
        return 1 / (1 + math.exp(-self._lead))

    def chance(self, run: int, confidence: float | None) -> float:
        """The chance that a drafted token holds, given the run before it and the drafter's confidence."""
        hazard = self.after(run)
        if confidence is None:
            return hazard
        return self.trust * self.sure(confidence) + (1 - self.trust) * hazard

    def reaches(self, length: int, confidences: Sequence[float | None] = ()) -> list[float]:
        """Per place of a draft of `length` tokens the chance that it and all before it hold.

        It ends where that has become negligible.
        """
        rates, trust = self.rates(), self.trust
        reached, reaches = 1.0, []
        for place in range(length):
            chance = rates[_bucket(self.run + place)]
            confidence = confidences[place] if place < len(confidences) else None
            if confidence is not None:
                chance = trust * self.sure(confidence) + (1 - trust) * chance
            reached *= chance
            reaches.append(reached)
            if reached < NEGLIGIBLE:
                break
        return reaches

    def learn(self, confidence: float | None, held: bool) -> None:
        """Take in one trial: the token after the present run."""
        bucket = _bucket(self.run)
        if confidence is not None:
            self._learn_confidence(confidence, held)
        self._held[bucket] = KEEP * self._held[bucket] + held
        self._tried[bucket] = KEEP * self._tried[bucket] + 1
        self._rates = None
        self.run = self.run + 1 if held else 0

    def _learn_confidence(self, confidence: float, held: bool) -> None:
        by_sure, by_run = self.sure(confidence), self.after(self.run)
        gain = math.log(by_sure / by_run if held else (1 - by_sure) / (1 - by_run))
        self._lead = LOSS_KEEP * self._lead + gain
        bucket = bisect_right(SURENESS, confidence) - 1
        self._sure_held[bucket] = SURE_KEEP * self._sure_held[bucket] + held
        self._sure_tried[bucket] = SURE_KEEP * self._sure_tried[bucket] + 1

    def fade(self, keep: float) -> None:
        """Let what was learned count for less, towards what is expected of an unknown text."""
        for counts in (self._held, self._tried, self._sure_held, self._sure_tried):
            counts[:] = [count * keep for count in counts]
        self._lead *= keep
        self._rates = None


class Matches:
    """How many tokens at the end of the text stood before a token elsewhere, earlier in the text."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], list[int]] = {}
        self._indexed = 1

    def extend(self, context: Sequence[int]) -> None:
        """Index the pairs of tokens that are new since the last call."""
        begin = self._indexed - 1
        new = context[begin:]
        for offset in range(len(new) - 1):
            self._places.setdefault((new[offset], new[offset + 1]), []).append(begin + offset)
        self._indexed = max(self._indexed, len(context))

    def length(self, context: Sequence[int], token: int) -> int:
        """The longest match that `token` follows, among the latest places of the last token and it; at most 24."""
        tail = context[-LONGEST_MATCH:][::-1]
        longest = 0
        for place in reversed(self._places.get((tail[0], token), ())[-LOOKED_AT:]):
            length = 1
            while length < len(tail) and length <= place and context[place - length] == tail[length]:
                length += 1
            longest = max(longest, length)
            if length == LONGEST_MATCH:
                break
        return longest


def fastest(reaches: Sequence[float], times: Sequence[float]) -> tuple[int, float]:
    """The draft length, 1 or more, with the most expected tokens per second, and that speed.

    reaches[i] is the chance that place i holds, times[k] the seconds of a round that drafts k.

    Tokens over seconds of this one round is the right thing to maximise, not the gain over the run's average
    speed: what is easy to draft comes in passages of the text, which are the same whatever is chosen, and a
    passage takes least time when every round within it is the fastest.
    """
    expected, best, speed = 1.0, 1, 0.0
    for length, reached in enumerate(reaches, start=1):
        expected += reached
        if expected > speed * times[length]:
            best, speed = length, expected / times[length]
    return best, speed


class GoOn:
    """Asked with the confidence of each drafted token: whether some number of further ones is worth its time.

    speed is the tokens per second that the round is expected to reach. asked tells whether the drafter asked.
    """

    def __init__(self, acceptance: Acceptance, times: Sequence[float], speed: float) -> None:
        self._acceptance, self._times, self._speed = acceptance, times, speed
        self.asked = False
        self._drafted = 0
        self._reached = 1.0

    def __call__(self, confidence: float) -> bool:
        """Whether to draft on after a token of this confidence."""
        self.asked = True
        acceptance, times = self._acceptance, self._times
        self._reached *= acceptance.chance(acceptance.run + self._drafted, confidence)
        self._drafted = drafted = self._drafted + 1
        reached, gained = self._reached, 0.0
        for place in range(drafted, len(times) - 1):
            reached *= acceptance.after(acceptance.run + place)
            gained += reached
            if gained > self._speed * (times[place + 1] - times[drafted]):
                return True
            if reached < NEGLIGIBLE:
                break
        return False


def refused(round_: Round) -> DraftedToken | None:
    """The token that was refused where the accepted path ends, of siblings the first; None where all of a path was accepted."""
    end = round_.accepted
    tried = zip(round_.depths, round_.drafted, strict=True)
    return next((token for depth, token in tried if depth == end and token.verdict == "rejected"), None)


def learn_round(acceptance: Acceptance, round_: Round) -> None:
    """Take in the trials of one round: of a tree the accepted path, and where it ended."""
    for token in round_.drafted:
        if token.verdict == "accepted":
            acceptance.learn(token.confidence, True)
    if (last := refused(round_)) is not None:
        acceptance.learn(last.confidence, False)


def _bucket(run: int) -> int:
    return _BUCKET_OF_RUN[min(run, RUNS[-1])]
