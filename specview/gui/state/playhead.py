"""The moment of a finished race that is on screen. Plain Python: no Qt.

Every lane runs on its own clock, as if it ran alone. At a moment a lane shows the rounds that were over by then, and of
the one under way what its stage says. The lanes' objects stay: views go on with what they hold.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from specview.decoding.ledger import End, Round
from specview.decoding.phases import Stage, stages
from specview.decoding.round_table import RoundTable
from specview.gui.state import lane_words
from specview.gui.state.view_model import LaneModel, UnderWay, ViewToken, view_tokens

_WHOLE = ("state", "progress_text", "progress", "end", "error", "rounds", "tokens", "table", "final_metrics", "final_speedup",
          "equality")  # fmt: skip
"""What of a lane is another at another moment."""
_GOING_ON = {"state": "running", "end": None, "error": "", "progress_text": "", "progress": None, "final_metrics": None,
             "final_speedup": None}  # fmt: skip
"""What it is as long as its rounds are not over."""
_JUDGED_LATER: dict[str, Any] = {"p": None, "accept": None, "u": None, "margin": None, "draw": None, "threshold": None, "p_top": (),
                 "residual_top": (), "entropy": None, "verdict": "ignored"}  # fmt: skip
"""What is not known yet of a token that was drafted."""


class Track:
    """One lane at a moment: `count` whole rounds, and `done` stages of the one after them."""

    def __init__(self, lane: LaneModel) -> None:
        self.lane = lane
        self.whole: dict[str, Any] = {name: getattr(lane, name) for name in _WHOLE}
        self.rounds: Sequence[Round] = lane.rounds
        self.ends = list(accumulate(lane.table["t"].tolist(), max))  # a file's clock may fall: then it stands
        self.count, self.done = len(self.ends), 0
        self._stages: tuple[int, tuple[Stage, ...]] = -1, ()
        self._shown = -1, 0
        lane.rounds, lane.tokens = list(lane.rounds), list(lane.tokens)

    @property
    def over(self) -> bool:
        """Whether all rounds are."""
        return self.count == len(self.ends)

    def stages(self, index: int) -> tuple[Stage, ...]:
        """The stages of a round."""
        if self._stages[0] != index:
            self._stages = index, stages(self.rounds[index])
        return self._stages[1]

    def _moment(self, count: int, done: int) -> float:
        """When stage number `done` (from 1) of round `count` is there."""
        made = self.stages(count)
        if done == len(made):
            return self.ends[count]
        return min(max(made[done - 1].t, self.ends[count - 1] if count else 0.0), self.ends[count])

    @property
    def last(self) -> float:
        """When what came last is there; below 0 where nothing has come."""
        if self.done:
            return self._moment(self.count, self.done)
        return self.ends[self.count - 1] if self.count else -1.0

    @property
    def next(self) -> float:
        """When the next stage is there; only where not all rounds are over."""
        return self._moment(self.count, self.done + 1)

    @property
    def stage(self) -> Stage | None:
        """The stage that came last."""
        if self.done:
            return self.stages(self.count)[self.done - 1]
        return self.stages(self.count - 1)[-1] if self.count else None

    def seek(self, seconds: float) -> None:
        """Go to a time of the lane's clock."""
        self.count, self.done = bisect_right(self.ends, seconds), 0
        if not self.over:
            while self.done + 1 < len(self.stages(self.count)) and self.next <= seconds:
                self.done += 1

    def forward(self) -> None:
        """Go on by one stage."""
        self.done += 1
        if self.done == len(self.stages(self.count)):
            self.count, self.done = self.count + 1, 0

    def back(self) -> None:
        """Go back by one stage."""
        if not self.done:
            self.count -= 1
            self.done = len(self.stages(self.count))
        self.done -= 1

    def show(self) -> None:
        """Let the lane show the moment."""
        if (self.count, self.done) == self._shown:
            return
        lane, whole, starts = self.lane, self.whole, self.lane._starts
        tokens: list[ViewToken] = whole["tokens"]
        settled = starts[self.count] if self.count < len(starts) else len(tokens)
        del lane.tokens[min(lane.settled, settled):]
        lane.tokens += tokens[len(lane.tokens):settled]
        del lane.rounds[self.count:]
        lane.rounds += self.rounds[len(lane.rounds):self.count]
        if self._shown[0] != self.count:
            table: RoundTable = whole["table"]
            lane.table = table.until(self.count)
        lane.under_way = self._under_way()
        if lane.under_way is not None:
            stage = lane.under_way.stage
            lane.tokens += view_tokens(self.rounds[self.count], self.count, lane.emitted, stage.states, stage.final)
        for name, value in _GOING_ON.items():
            setattr(lane, name, whole[name] if self.over else value)
        lane.equality = None  # is told at the end of the race
        lane.version += 1
        self._shown = self.count, self.done

    def _under_way(self) -> UnderWay | None:
        if not self.done:
            return None
        stage, round_ = self.stages(self.count)[self.done - 1], self.rounds[self.count]
        drafted = tuple(
            token if state not in ("unseen", "drafted") else replace(token, **_JUDGED_LATER)
            for token, state in zip(round_.drafted, stage.states, strict=True)
        )
        return UnderWay(replace(round_, drafted=drafted, final=round_.final if stage.final else None), stage)

    def restore(self) -> None:
        """Make the lane what it is in the end."""
        for name, value in self.whole.items():
            setattr(self.lane, name, value)
        self.lane.under_way = None
        self.lane.version += 1


class Playhead:
    """Plays with the lanes of a finished race. At the end (`seconds` == `length`) they are as they were."""

    def __init__(self, lanes: Iterable[LaneModel]) -> None:
        self.lanes = list(lanes)
        self.length = max((lane.table["t"].max(initial=0.0).item() for lane in self.lanes if len(lane.table)), default=0.0)
        self.seconds = self.length
        self._tracks: list[Track] = []  # empty at the end
        self._spoken: Track | None = None  # the lane in which something came last
        self.quiet = False  # it goes too fast for words

    @property
    def at_end(self) -> bool:
        """Whether the race is the finished one."""
        return not self._tracks

    def end_of(self, lane: LaneModel) -> End | None:
        """How a lane ended, at whatever moment it is shown."""
        return next((track.whole["end"] for track in self._tracks if track.lane is lane), lane.end)

    @property
    def words(self) -> str:
        """What came last, in which lane: one plain sentence; '' at the end and at the start, and where it is `quiet`."""
        track = self._spoken
        stage = None if track is None else track.stage
        return "" if track is None or stage is None or self.quiet else f"{lane_words.title(track.lane)}: {stage.words}"

    @property
    def next_s(self) -> float | None:
        """When something comes next; None at the end."""
        return min((track.next for track in self._tracks if not track.over), default=None)

    def seek(self, seconds: float) -> None:
        """Show the race at this time of the lanes' clocks."""
        seconds = min(max(seconds, 0.0), self.length)
        if seconds >= self.length:
            self.to_end()
            return
        self._begin()
        for track in self._tracks:
            track.seek(seconds)
        self._show(seconds)

    def step_phase(self, by: int) -> None:
        """Go to the next thing that happens in any lane, or back to the one before."""
        self._begin()
        for _ in range(abs(by)):
            if by > 0:
                left = [track for track in self._tracks if not track.over]
                if not left:
                    break
                track = min(left, key=lambda one: one.next)
                moment = track.next
                track.forward()
                self._spoken = track
                self.seconds = max(self.seconds, moment)
            else:
                gone = [track for track in self._tracks if track.last >= 0]
                if not gone:
                    break
                max(reversed(gone), key=lambda one: one.last).back()
                self.seconds = max(0.0, *(track.last for track in self._tracks))
        if all(track.over for track in self._tracks):
            self.to_end()
        else:
            self._show(self.seconds)

    def step_round(self, by: int) -> None:
        """Go to where the next round of any lane is over, or back to where one before was."""
        for _ in range(abs(by)):
            ends = [end for track in self._around(by) for end in track]
            self.seek(min(ends, default=self.length) if by > 0 else max(ends, default=0.0))

    def page(self, by: int) -> None:
        """Go on or back by a round of the lane that leads."""
        for _ in range(abs(by)):
            self._begin()
            leader = max(self._tracks, key=lambda track: (track.lane.emitted, not track.over))
            ends = self._neighbours(leader, by)
            self.seek(ends[0] if ends else self.length if by > 0 else 0.0)

    def _around(self, by: int) -> list[list[float]]:
        self._begin()
        return [self._neighbours(track, by) for track in self._tracks]

    def _neighbours(self, track: Track, by: int) -> list[float]:
        """Where the next round of a lane is over, or the one before was."""
        place = bisect_right(track.ends, self.seconds)
        if by > 0:
            return track.ends[place:place + 1]
        while place and track.ends[place - 1] >= self.seconds:
            place -= 1
        return track.ends[place - 1:place] if place else []

    def to_end(self) -> None:
        """Make the race the finished one again."""
        tracks, self._tracks, self.seconds, self._spoken = self._tracks, [], self.length, None
        for track in tracks:
            track.restore()

    def _begin(self) -> None:
        if not self._tracks:
            self._tracks = [Track(lane) for lane in self.lanes]

    def _show(self, seconds: float) -> None:
        self.seconds = seconds
        gone = [track for track in self._tracks if track.last >= 0]
        if self._spoken is None or self._spoken not in gone or self._spoken.last < max(track.last for track in gone):
            self._spoken = max(gone, key=lambda track: track.last, default=None)
        for track in self._tracks:
            track.show()
