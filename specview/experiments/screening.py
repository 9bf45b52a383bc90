"""What a method is worth at each draft length, predicted before any race of it: cheap figures that say what to race.

A method that runs a model drafts in one short race with a length that moves (the `heuristic` policy); its acceptance by
position and the costs measured there give the speedup at every length. A method that copies needs no model: what it
would have drafted is replayed on the text that plain decoding wrote. These are predictions, and say so: the race decides.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from specview.decoding.ledger import EMPTY_DRAFT, DraftedToken, FinalKind, FinalToken, Round, Verdict
from specview.decoding.round_table import RoundTable
from specview.decoding.sampling import SamplingParams
from specview.drafting.method import DrafterContext
from specview.drafting.registry import METHODS
from specview.experiments.arms import Candidate
from specview.lab.measured import MeasuredCosts, measured_costs
from specview.racing.compare import LaneResult
from specview.settings.run import LaneSettings

PROBE_K = 4
"""Drafted tokens that a screening race begins with."""
_SHRINK = 2.0  # trials that the overall acceptance counts for at each position


@dataclass(frozen=True, slots=True)
class Replay:
    """What a copying method would have drafted along a text: per length, rounds that the text takes and their lengths.

    tokens is the text's length; copied how many of its tokens were drafted right; draft_s the mean seconds of one search.
    """

    tokens: int
    rounds: Mapping[int, Mapping[int, int]]
    copied: Mapping[int, int]
    draft_s: float

    def seconds(self, k: int, costs: MeasuredCosts) -> float:
        """Seconds of the text's rounds at this draft length, by measured pass costs."""
        return sum(
            count * (costs.pass_s(length + 1) + costs.plain_other_s + self.draft_s)
            for length, count in self.rounds[k].items()
        )


def replay_copies(
    lane: LaneSettings,
    lengths: Sequence[int],
    prompt: Sequence[int],
    output: Sequence[int],
    vocab_size: int,
    should_stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
) -> Replay | None:
    """Replay a copying method at each of `lengths` along a text; None where should_stop said so.

    A drafter starts anew for each length and is asked at each round's beginning, as in the loop; it is told what the
    round accepted.
    """
    method = METHODS[lane.method]
    assert method.make is not None
    counts: dict[int, dict[int, int]] = {}
    copied: dict[int, int] = {}
    spent, asked = 0.0, 0
    for k in lengths:
        context = DrafterContext(lane.options or method.resolve({}), len(prompt) + len(output) + k + 1, vocab_size)
        drafter = method.make(context)
        written = list(prompt)
        drafter.start(list(prompt), SamplingParams())
        found: dict[int, int] = {}
        right = at = index = 0
        while at < len(output):
            if should_stop():
                return None
            budget = min(k, len(output) - at - 1)
            begin = clock()
            draft = drafter.propose(written, budget) if budget else EMPTY_DRAFT
            spent += clock() - begin
            asked += 1
            held = 0
            while held < len(draft) and draft.tokens[held] == output[at + held]:
                held += 1
            emitted = list(output[at : at + held + 1])
            drafter.observe(_told(index, draft.tokens, held, emitted), {})
            found[len(draft)] = found.get(len(draft), 0) + 1
            written += emitted
            right += held
            at += len(emitted)
            index += 1
        counts[k], copied[k] = found, right
    return Replay(len(output), counts, copied, spent / asked if asked else 0.0)


def _told(index: int, drafted: Sequence[int], held: int, emitted: Sequence[int]) -> Round:
    """The round that a copying drafter would have been told of."""
    tokens = []
    for place, token in enumerate(drafted):
        verdict: Verdict = "accepted" if place < held else "rejected" if place == held else "ignored"
        tokens.append(DraftedToken(token, verdict))
    kind: FinalKind = "plain" if not drafted else "bonus" if held == len(drafted) else "corrected"
    final = FinalToken(emitted[-1], kind) if len(emitted) > held else None
    return Round(index, 0.0, 0.0, 0.0, 0.0, drafted=tuple(tokens), final=final)


def predicted_copies(replays: Iterable[tuple[Replay, MeasuredCosts]], lengths: Sequence[int]) -> dict[int, float]:
    """Predicted speedup at each length over the texts together: plain's seconds over the rounds' seconds."""
    pairs = list(replays)
    plain = sum(replay.tokens * costs.plain_round_s for replay, costs in pairs)
    return {k: plain / seconds for k in lengths if (seconds := sum(replay.seconds(k, costs) for replay, costs in pairs))}


@dataclass(frozen=True, slots=True)
class Positions:
    """Acceptance by position of a drafter's rounds (a tree's depth): accepted and judged, and rounds without a draft."""

    accepted: tuple[int, ...]
    judged: tuple[int, ...]
    empty: int
    rounds: int

    def tokens(self, k: int) -> float:
        """Expected tokens of a pass that verifies a draft of k; beyond what was seen, at the last positions' rate.

        Each position leans on the overall acceptance by a few trials, so that one lucky draft does not settle it.
        """
        judged = sum(self.judged)
        alpha = sum(self.accepted) / judged if judged else 0.0
        reach, total = 1.0, 1.0
        for place in range(k):
            if place < len(self.judged):
                rate = (self.accepted[place] + _SHRINK * alpha) / (self.judged[place] + _SHRINK)
            else:
                rate = alpha
            reach *= rate
            total += reach
        share = 1 - self.empty / self.rounds if self.rounds else 0.0
        return share * total + (1 - share)


def positions_of(rounds: Sequence[Round], skip: int = 1) -> Positions:
    """Count a lane's rounds; the first `skip` are left out, since a drafter that reads features has none yet."""
    table = RoundTable(rounds[skip:] if len(rounds) > skip + 3 else rounds)
    accepted, judged = table.by_depth(siblings=False)
    return Positions(tuple(accepted), tuple(judged), int((table["k"] == 0).sum()), len(table))


def predicted_model(positions: Positions, costs: MeasuredCosts, lengths: Sequence[int], most: int | None = None) -> dict[int, float]:
    """Predicted speedup of a chain of each length, from acceptance by position and measured costs; most caps a draft."""
    found = {}
    for k in lengths:
        drafted = min(k, most) if most else k
        found[k] = costs.speedup(positions.tokens(drafted), drafted)
    return found


class Probe:
    """The short races of one candidate that runs a model: what its rounds cost and give."""

    def __init__(self, candidate: Candidate) -> None:
        self.candidate = candidate
        self.rounds: list[Round] = []
        self.plain: list[Round] = []
        self.counted: list[Positions] = []
        self.speedups: list[float] = []
        self.cap: int | None = None  # the longest draft that it can give, where it gave less than it was asked for
        self.error = ""

    @property
    def lane(self) -> LaneSettings:
        """The lane that tries the candidate: its length moves between few and many, where it has one."""
        one = self.candidate
        return replace(one.lane, k=PROBE_K, policy="heuristic") if one.lengths else one.lane

    def add(self, lane: LaneResult, base: LaneResult) -> None:
        """Take a race in."""
        if lane.error:
            self.error = lane.error
            return
        self.cap = self.cap or longest_draft(lane.record.rounds)
        self.rounds += lane.record.rounds
        self.plain += base.record.rounds
        self.counted.append(positions_of(lane.record.rounds))
        if lane.speedup is not None:
            self.speedups.append(lane.speedup.value)

    def costs(self, pass_s: Mapping[int, float]) -> MeasuredCosts | None:
        """Costs of all its rounds; None where it has none."""
        return measured_costs(self.rounds, self.plain, pass_s) if self.rounds else None

    def predicted(self, costs: MeasuredCosts) -> dict[int, float]:
        """Predicted speedups by length, of a method that says itself how long it drafts what was seen, under 0."""
        if not self.candidate.lengths:
            return {0: fmean(self.speedups)} if self.speedups else {}
        accepted, judged = (
            tuple(map(sum, itertools.zip_longest(*rows, fillvalue=0)))
            for rows in ([one.accepted for one in self.counted], [one.judged for one in self.counted])
        )
        empty, rounds = (sum(counts) for counts in zip(*((one.empty, one.rounds) for one in self.counted), strict=True))
        positions = Positions(accepted, judged, empty, rounds)
        return predicted_model(positions, costs, self.candidate.lengths, self.cap)


def longest_draft(rounds: Sequence[Round]) -> int | None:
    """The longest draft of a drafter that gives no more (a head with few steps), seen where it was asked for more."""
    drafted = [round_ for round_ in rounds if round_.k]
    if drafted and drafted[0].k < PROBE_K:
        return drafted[0].k
    for before, after in itertools.pairwise(rounds[:-2]):
        # `heuristic` asks for two more after a draft that was accepted in full.
        if before.k and before.accepted == before.k and 0 < after.k <= before.k:
            return after.k
    return None
