"""A lane's rounds as columns: the one fold of the ledger that every figure, plot and table reads."""

from __future__ import annotations

import copy
import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from specview.decoding.ledger import Round
from specview.late import late

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = late("numpy")

Column: TypeAlias = "NDArray[np.float64]"
"""One number per round, or per trial."""

_ROUNDS: Mapping[str, str] = {
    "index": "q", "t": "d", "draft_s": "d", "verify_s": "d", "other_s": "d",
    "rows": "q", "k": "q", "depth": "q", "judged": "q", "accepted": "q", "emitted": "q",
}  # fmt: skip
_TRIALS: Mapping[str, str] = {"round": "q", "depth": "q", "position": "q", "accepted": "q", "entropy": "d"}
PHASES = ("draft_s", "verify_s", "other_s")


class RoundTable:
    """Rounds in order; adding one costs its drafted tokens, however many rounds there were.

    table[name] is a column [rounds]: index; t, the lane's clock at its end, and the phases draft_s, verify_s, other_s,
    seconds; rows of the target pass; k drafted, depth of the longest path, judged, accepted, emitted.
    trial(name) is a column [trials] over the judged tokens: the round, the depth in the draft, the output position that
    it has or was tried for, accepted (0 or 1), entropy of the target's distribution (nats; NaN where it was not recorded).
    drafters names who drafted each round; draft_full is (output tokens before it, length) where a drafter's own context
    was full; trees says that some draft was no chain.
    """

    def __init__(self, rounds: Iterable[Round] = (), prefill_s: float | None = None) -> None:
        self.prefill_s = prefill_s
        self.drafters: list[str] = []
        self.trees = False
        self.draft_full: tuple[int, int] | None = None
        self.emitted = 0
        self._rounds = {name: array(kind) for name, kind in _ROUNDS.items()}
        self._trials = {name: array(kind) for name, kind in _TRIALS.items()}
        self._judged = 0
        self._first_tree = self._first_full = math.inf  # rounds
        self._tail: list[int] = []
        self._4grams: set[tuple[int, ...]] = set()
        self._distinct = array("q")  # 4-grams by the end of each round
        for round_ in rounds:
            self.add(round_)

    def __len__(self) -> int:
        return len(self.drafters)

    def add(self, round_: Round) -> None:
        """Append one finished round; not to a part (`until`)."""
        assert len(self) == len(self._distinct)
        depths, emitted, judged = round_.depths, [], 0
        for depth, token in zip(depths, round_.drafted, strict=True):
            if token.verdict == "ignored":
                continue
            held = token.verdict == "accepted"
            if held:
                emitted.append(token.id)
            if round_.inferred:
                continue
            entropy = math.nan if token.entropy is None else token.entropy
            _append(self._trials, (len(self), depth, self.emitted + depth, held, entropy))
            judged += 1
        accepted = len(emitted)
        k, depth = round_.k, max(depths, default=-1) + 1
        if round_.inferred:
            k = depth = accepted = 0
        if round_.final is not None:
            emitted.append(round_.final.id)
        counts = (round_.rows, k, depth, judged, accepted, len(emitted))
        _append(self._rounds, (round_.index, round_.t, round_.draft_s, round_.verify_s, round_.other_s, *counts))
        if round_.full_context and self.draft_full is None:
            self.draft_full, self._first_full = (self.emitted, round_.full_context), len(self)
        if round_.parents is not None and not self.trees:
            self.trees, self._first_tree = True, len(self)
        self._judged += judged
        self.drafters.append(round_.drafter)
        self.emitted += len(emitted)
        self._tail += emitted
        self._4grams.update(zip(self._tail, self._tail[1:], self._tail[2:], self._tail[3:], strict=False))
        del self._tail[:-3]
        self._distinct.append(len(self._4grams))

    def until(self, rounds: int) -> RoundTable:
        """The first rounds as a table of their own. What they hold is shared: nothing is added to it."""
        part = copy.copy(self)
        part.drafters = self.drafters[:rounds]
        part.emitted, part._judged = int(self["emitted"][:rounds].sum()), int(self["judged"][:rounds].sum())
        part.trees, part.draft_full = self._first_tree < rounds, self.draft_full if self._first_full < rounds else None
        return part

    def __getitem__(self, name: str) -> Column:
        if name == "seconds":
            return self["draft_s"] + self["verify_s"] + self["other_s"]
        return np.array(memoryview(self._rounds[name])[:len(self)])

    def trial(self, name: str) -> Column:
        """A column over the judged tokens, in order."""
        return np.array(memoryview(self._trials[name])[:self._judged])

    # -- sums ------------------------------------------------------------------------------------

    def sums(self, name: str) -> Column:
        """Running sums [rounds] of a column; `rounds` counts them."""
        if name == "rounds":
            return np.arange(1.0, len(self) + 1)
        if name == "seconds":
            return self.sums("draft_s") + self.sums("verify_s") + self.sums("other_s")
        return np.cumsum(self[name])

    def total(self, name: str) -> float:
        """The sum of a column."""
        return self.sums(name)[-1].item() if len(self) else 0

    def rate(self, top: str, bottom: str, window: int | None = None) -> Column:
        """Sum over sum [rounds], running or over the last `window` rounds; NaN where the lower one is 0."""
        above, below = (self.sums(name).astype(np.float64) for name in (top, bottom))
        if window is not None and window < len(self):
            for sums in (above, below):
                sums[window:] -= sums[:-window].copy()
        return np.divide(above, below, out=np.full(len(self), np.nan), where=below > 0)

    # -- by kind ---------------------------------------------------------------------------------

    def by_depth(self, siblings: bool = True) -> tuple[list[int], list[int]]:
        """Accepted and judged tokens by their depth in the draft, as deep as any draft was.

        siblings False counts those of one round and depth as one trial.
        """
        depth, held = self.trial("depth"), self.trial("accepted") > 0
        tried = depth if siblings else np.unique(np.stack([depth, self.trial("round")]), axis=1)[0]
        return _counted(depth[held], tried, int(self["depth"].max(initial=0)))

    def by_part(self, parts: int) -> tuple[list[int], list[int]]:
        """Accepted and judged tokens by part of the output: a token counts where it stands or would have stood."""
        place = np.minimum(parts - 1, parts * self.trial("position") // max(self.emitted, 1))
        return _counted(place[self.trial("accepted") > 0], place, parts)

    def pass_times(self, first: int = 0) -> dict[int, list[float]]:
        """Seconds of the target's passes by their rows, from round `first` on."""
        return _grouped(self["rows"][first:], self["verify_s"][first:])

    def draft_times(self, drafter: str | None = None, first: int = 0) -> dict[int, list[float]]:
        """Seconds of the drafts by their longest path, from round `first` on; of one drafter where it is named."""
        own = self["k"] > 0
        own[:first] = False
        if drafter is not None:
            own &= np.array([name == drafter for name in self.drafters], dtype=bool)
        return _grouped(self["depth"][own], self["draft_s"][own])

    def plain_step_s(self) -> float | None:
        """Median time of a one-row target pass, seconds; None where there was none."""
        return self.passes().get(1, (0, None))[1]

    def passes(self) -> dict[int, tuple[int, float]]:
        """Of the target's passes by their rows: how many there were, and their median time, seconds."""
        if not len(self):
            return {}
        rows, seconds = self["rows"], self["verify_s"]
        kinds = sorted(set(rows.tolist()))
        return {count: (int((rows == count).sum()), float(np.median(seconds[rows == count]))) for count in kinds}

    @property
    def distinct_4grams(self) -> int:
        """How many different runs of four tokens the output has."""
        return self._distinct[len(self) - 1] if len(self) else 0

    # -- arrivals --------------------------------------------------------------------------------

    @property
    def end_s(self) -> float:
        """The lane's clock, seconds since the end of prefill."""
        return self._rounds["t"][len(self) - 1] if len(self) else 0.0

    def rounds_until(self, seconds: float) -> int:
        """Rounds that had ended by then."""
        return int(np.searchsorted(self["t"], seconds, side="right"))

    def tokens_at(self, seconds: Sequence[float]) -> list[float]:
        """Output tokens by each time, those of a round spread evenly over its time."""
        ends, tokens = np.r_[0.0, self["t"]], np.r_[0, self.sums("emitted")]
        found = []
        for moment in seconds:
            place = int(np.searchsorted(ends[1:], moment)) + 1
            if place == len(ends):
                found.append(float(tokens[-1]))
                continue
            before, done = float(ends[place - 1]), int(tokens[place - 1])
            until, total = float(ends[place]), int(tokens[place])
            found.append(done + (total - done) * (moment - before) / (until - before) if until > before else float(done))
        return found


Rounds = Iterable[Round] | RoundTable
"""Rounds in order, or their table."""


def table_of(rounds: Rounds, prefill_s: float | None = None) -> RoundTable:
    """The table of these rounds; one that is there already is taken as it is."""
    return rounds if isinstance(rounds, RoundTable) else RoundTable(rounds, prefill_s)


def _append(columns: Mapping[str, array[Any]], row: Sequence[float]) -> None:
    for column, value in zip(columns.values(), row, strict=True):
        column.append(value)


def _counted(accepted: Column, judged: Column, places: int) -> tuple[list[int], list[int]]:
    return np.bincount(accepted, minlength=places).tolist(), np.bincount(judged, minlength=places).tolist()


def _grouped(keys: Column, values: Column) -> dict[int, list[float]]:
    """The values that share a key, by rising key."""
    return {int(key): values[keys == key].tolist() for key in sorted(set(keys.tolist()))}
