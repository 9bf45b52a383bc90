"""The tour's eight steps in words, and the rounds of a recorded run that they are told on. Plain Python: no Qt.

Every number that is said or drawn is a recorded one, or follows from recorded ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from specview.decoding.ledger import DraftedToken, Round
from specview.errors import SpecviewError
from specview.files.figures import milliseconds, percent, rate, times
from specview.files.reader import read_trace
from specview.gui.link.open_run import recorded_race
from specview.gui.state.view_model import LaneModel, RaceModel
from specview.models.assets import asset_path

RUN = "tour/run.jsonl"
SHOWN_BARS, LEAST_SHOWN = 5, 0.001


class Bars(NamedTuple):
    """One token's probabilities where a guess was rejected: p and q, of which accepting gives min(p, q)."""

    text: str
    p: float
    q: float

    @property
    def kept(self) -> float:
        """What accepting gives."""
        return min(self.p, self.q)

    @property
    def left(self) -> float:
        """What correcting gives."""
        return max(0.0, self.p - self.q)


@dataclass(frozen=True, slots=True)
class TourRun:
    """A recorded race of plain decoding, a draft that pays and one that does not.

    judged: a round in which a guess was accepted, the next rejected and one ignored; before: the lane's tokens ahead of
    it. full: a round with a bonus, full_before likewise. bars: of the rejected guess's place.
    """

    race: RaceModel
    plain: LaneModel
    good: LaneModel
    bad: LaneModel
    judged: Round
    before: tuple[str, ...]
    full: Round
    full_before: tuple[str, ...]
    bars: tuple[Bars, ...]

    @property
    def rejected(self) -> DraftedToken:
        """The guess that was rejected."""
        return _rejected(self.judged)


def load(path: Path | None = None) -> TourRun:
    """Read the bundled run, off the Qt thread; raises SpecviewError, one line."""
    race = recorded_race(read_trace(path or asset_path(RUN)))
    plain = race.baseline
    others = sorted(((speed.value, lane) for lane in race.lanes if (speed := race.speedup(lane)) is not None), key=lambda one: one[0])
    if plain is None or len(others) < 2:
        raise SpecviewError("The tour's run lacks its lanes.", "Install specview again.")
    bad, good = others[0][1], others[-1][1]
    judged, full = _find(good, _told_of_rejection), _find(good, _told_of_bonus)
    bars = _bars(_rejected(good.rounds[judged]))
    return TourRun(race, plain, good, bad, good.rounds[judged], _texts(good, judged), good.rounds[full], _texts(good, full), bars)


def _rejected(round_: Round) -> DraftedToken:
    return next(token for token in round_.drafted if token.verdict == "rejected")


def _told_of_rejection(round_: Round) -> float:
    """How well a rejection can be told on a round: one accepted, one rejected (of some p, so that there is a bar), one ignored."""
    verdicts = [token.verdict for token in round_.drafted]
    able = round_.parents is None and verdicts[:1] == ["accepted"] and {"rejected", "ignored"} <= set(verdicts)
    if not able or round_.final is None:
        return 0.0
    told = _rejected(round_)
    return (told.p or 0.0) * (1.0 if any(char.isalpha() for char in told.text) else 0.2)  # a word is read more easily than a sign


def _told_of_bonus(round_: Round) -> float:
    """How well a bonus can be told: where the words can be seen."""
    if round_.parents is not None or round_.final is None or round_.final.kind != "bonus":
        return 0.0
    return 1.0 + sum(not text.isspace() for text in (*(token.text for token in round_.drafted), round_.final.text))


def _find(lane: LaneModel, fits: Callable[[Round], float]) -> int:
    """The round on which something is told best."""
    best, found = max(((fits(round_), -index) for index, round_ in enumerate(lane.rounds)), default=(0.0, 0))
    if best <= 0:
        raise SpecviewError("The tour's run lacks a round that it is told on.", "Install specview again.")
    return -found


def _texts(lane: LaneModel, index: int) -> tuple[str, ...]:
    return tuple(token.text for token in lane.tokens if token.position is not None and token.round_index < index)


def _bars(rejected: DraftedToken) -> tuple[Bars, ...]:
    """The likeliest tokens at the place of a rejected guess, as far as both p and q are recorded.

    The ledger has the heaviest tokens of the residual too: (p - q) / z, z being the rejected share; where a token is not
    among the drafter's likeliest its q follows from that.
    """
    p_of = {token: (text, p) for token, text, p in rejected.p_top}
    q_of = {token: (text, q) for token, text, q in rejected.q_top}
    left = {token: share for token, _, share in rejected.residual_top}
    both = [(p_of[token][1] - q_of[token][1], left[token]) for token in left if token in p_of and token in q_of]
    shares = [gap / share for gap, share in both if share > 0 and gap > 0]
    found = []
    for token, (text, p) in p_of.items():
        if token in q_of:
            found.append(Bars(text, p, q_of[token][1]))
        elif token in left and shares:
            found.append(Bars(text, p, max(0.0, p - left[token] * shares[0])))
    if rejected.id not in p_of and rejected.p is not None and rejected.q is not None:
        found.append(Bars(rejected.text, rejected.p, rejected.q))
    found = [bars for bars in found if max(bars.p, bars.q) >= LEAST_SHOWN]
    return tuple(sorted(found, key=lambda bars: -max(bars.p, bars.q))[:SHOWN_BARS])


# -- the steps -----------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A step: its title, its words on a run, and which picture stands by it."""

    title: str
    words: Callable[[TourRun], str]
    picture: str


def _mean(lane: LaneModel, name: str) -> float:
    return float(lane.table[name].mean())


def round_time(lane: LaneModel) -> float:
    """Mean time of a round, seconds."""
    return sum(_mean(lane, name) for name in ("draft_s", "verify_s", "other_s"))


def _plain(run: TourRun) -> str:
    return (
        "The target model reads everything so far and gives one token. Then it reads that too, and gives the next one. "
        f"Every token costs a whole pass: here {milliseconds(round_time(run.plain))} on average over the whole run."
    )


def _draft(run: TourRun) -> str:
    return (
        f"A small, fast drafter (here {run.good.name}) guesses the next {run.judged.k} tokens, one after the other. It may be "
        "wrong. With each guess it says q, the probability that it gave it."
    )


def _verify(run: TourRun) -> str:
    return (
        f"The target looks at all {run.judged.k} guesses in one pass, and says at each place what probability it gives them "
        f"itself: p. Here such a pass took {milliseconds(_mean(run.good, 'verify_s'))} on average, a pass for a single token "
        f"{milliseconds(_mean(run.plain, 'verify_s'))}, what is done between passes not counted."
    )


def _judge(run: TourRun) -> str:
    gained = len(run.judged.emitted)
    return (
        "The guesses are judged from the left. At the first rejection judging ends: what follows is ignored, for it was guessed "
        f"after a token that is not there. The target's own token takes that place. {gained} tokens came of one pass."
    )


def _rule(run: TourRun) -> str:
    return (
        "A guess is accepted with probability min(1, p / q): always where the target finds it at least as likely as the drafter "
        "did, the more rarely the more the drafter overrated it. A number u is drawn; under the bar's end the guess stays."
    )


def _residual(run: TourRun) -> str:
    return (
        "In place of a rejected guess a token is drawn from what is left of p: max(0, p − q), made to sum to 1. Accepting gives "
        "each token min(p, q), correcting the rest of p. Together that is p: the text is distributed as the target's own."
    )


def _bonus(run: TourRun) -> str:
    return (
        f"Where every guess is accepted, the same pass has already said what comes after them. So {run.full.k} right guesses give "
        f"{len(run.full.emitted)} tokens: one more for free."
    )


def _cost(run: TourRun) -> str:
    bad, good = run.race.metrics(run.bad), run.race.metrics(run.good)
    slow, fast = run.race.speedup(run.bad), run.race.speedup(run.good)
    assert slow is not None and fast is not None
    return (
        f"A round costs its drafting and verifying, whatever comes of it. {run.good.name}: {good.tokens_per_target_pass:.1f} tokens "
        f"in {milliseconds(round_time(run.good))}, {times(fast.value)} plain's speed. {run.bad.name}: {percent(bad.draft_acceptance)} "
        f"of its drafts were of use, {bad.tokens_per_target_pass:.1f} tokens in {milliseconds(round_time(run.bad))}, "
        f"{times(slow.value)}: slower than no draft at all."
    )


STEPS: tuple[Step, ...] = (
    Step("One token a pass", _plain, "plain"),
    Step("A draft guesses ahead", _draft, "draft"),
    Step("One pass verifies all guesses", _verify, "verify"),
    Step("The first rejection ends it", _judge, "judge"),
    Step("The rule: min(1, p / q)", _rule, "rule"),
    Step("Why the text stays the target's own", _residual, "residual"),
    Step("All accepted: one more for free", _bonus, "bonus"),
    Step("Why a bad draft loses", _cost, "cost"),
)


def speed_text(run: TourRun, lane: LaneModel) -> str:
    """A lane's speed: '7.05 tok/s, 1.81×'."""
    speedup = run.race.speedup(lane)
    speed = run.race.metrics(lane).decode_tokens_per_s if speedup is None else speedup.tokens_per_s
    return f"{rate(speed)} tok/s" + ("" if speedup is None else f", {times(speedup.value)}")
