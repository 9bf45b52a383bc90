"""Races in series over models that stay loaded: what a sweep, a prompt set, tuning and the exit scan stand on.

Which race comes next is the caller's choice. Here is what each of them needs: models on a lease, the turns before its
prompt, a stop within a round, one race's trouble kept from the others, and how far the whole is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from specview.disk import Closing
from specview.drafting.lanes import heads_of, needs_draft
from specview.errors import SpecviewError, Stopped
from specview.racing.compare import CompareResult, compare
from specview.racing.pool import EngineKey, HeadKey, ModelPool, ShouldStop, draft_key, target_key
from specview.racing.turns import Turn, Turns
from specview.settings.events import Event, LaneRound, Progress, RaceEnded, RaceStarted
from specview.settings.run import LaneSettings, RunSettings

Clock = Callable[[], float]
Listen = Callable[[Event], None]
ModelKey = EngineKey | HeadKey


class RaceFailed(SpecviewError):
    """One race cannot run; the target is loaded, so that others may."""


@dataclass(frozen=True, slots=True)
class SeriesProgress:
    """How far a series is: races done of all, what runs now in words, the estimated time left (None: not known yet)."""

    done: int
    total: int
    text: str
    left_s: float | None = None
    part: float = 0.0

    @property
    def fraction(self) -> float:
        """Share of all races done, the one under way in part."""
        return (self.done + min(self.part, 1.0)) / self.total if self.total else 1.0

    @property
    def words(self) -> str:
        """All of it in one line."""
        left = f" · {duration(self.left_s)} left" if self.left_s else ""
        return f"{self.done} of {self.total} races{left} · {self.text}"


class Pace:
    """Turns the events of a series' races into progress, at most a hundred times a race.

    The time left is that of the mean race so far: where repeats go round, the mean is over all alike.
    """

    def __init__(
        self, tell: Callable[[SeriesProgress], None], total: int, tokens: int, clock: Clock, *, done: int = 0,
        seconds: Iterable[float] = (),
    ) -> None:  # fmt: skip
        """tokens: what all lanes of a race write; done and seconds: races of an earlier go, and what some of them took."""
        self.total, self.done = total, done
        self.seconds = 0.0  # of the last race, loading left out
        self._tell, self._tokens, self._clock = tell, tokens, clock
        known = list(seconds)
        self._spent_s, self._races = sum(known), len(known)
        self._words = ""
        self._began = 0.0
        self._emitted, self._percent = 0, 0

    def begin(self, words: str) -> None:
        """The race that these words name is next."""
        self._words = words
        self._emitted, self._percent = 0, -1
        self._say(words)

    def take(self, event: Event) -> None:
        """Something happened in the race under way."""
        if isinstance(event, RaceStarted):
            self._began, self._emitted = self._clock(), 0
        elif isinstance(event, RaceEnded):
            self.seconds = self._clock() - self._began
        elif isinstance(event, Progress) and event.phase not in ("prefill", "tokenize"):
            self._say(f"{self._words} · {event.text}")
        elif isinstance(event, LaneRound):
            self._emitted += len(event.round.emitted)
            percent = 100 * self._emitted // self._tokens
            if percent != self._percent:
                self._percent = percent
                self._say(self._words, min(0.99, percent / 100))

    def end(self, *, counts: bool = True) -> None:
        """The race is over; counts: it took as long as others will."""
        self.done += 1
        if counts and self.seconds > 0:
            self._spent_s += self.seconds
            self._races += 1
        self._say(self._words)

    def _say(self, text: str, part: float = 0.0) -> None:
        left = (self.total - self.done - part) * self._spent_s / self._races if self._races else None
        self._tell(SeriesProgress(self.done, self.total, text, left, part))


class Runner(Closing):
    """Runs races one after the other, on the thread that owns the models; as a context it holds their lease.

    settings  what the races share: target, engine, sampling;  prompts  those they are of, conversations among them
    keys      models that stay loaded besides the target
    on_event  hears of every race, those of earlier turns too
    """

    def __init__(
        self, settings: RunSettings, prompts: Sequence[Turn], models: ModelPool | None = None, *,
        keys: Iterable[ModelKey] = (), should_stop: ShouldStop = lambda: False, on_event: Listen = lambda event: None,
        clock: Clock = time.perf_counter,
    ) -> None:  # fmt: skip
        self.turns = Turns(prompts, settings)
        self.target = target_key(settings)
        self.pool = models or ModelPool()
        self.lease = self.pool.lease([self.target, *keys])
        self._owns_pool = models is None
        self._should_stop, self._on_event, self._clock = should_stop, on_event, clock

    def race(self, settings: RunSettings, listen: Listen | None = None) -> CompareResult:
        """Race once. Raises RaceFailed where this race cannot run, SpecviewError where none can: no target is loaded."""

        def take(event: Event) -> None:
            self._on_event(event)
            if listen is not None:
                listen(event)

        try:
            return compare(settings, 1, self.pool, take, self._should_stop, clock=self._clock, oracles=False)
        except SpecviewError as error:
            if self.target not in self.pool:
                raise
            raise RaceFailed(error.cause, error.mend, usage=error.usage) from None

    def with_turns(self, place: int, race_of: Callable[[int], RunSettings], key: Hashable = None) -> RunSettings:
        """The settings of a prompt's race, the turns before it in its history; plain answers what was not heard yet.

        key tells apart runs that share no answers (repeats, temperatures). Raises as `race`, and Stopped.
        """
        return replace(race_of(place), history=self.turns.history(place, race_of, self._answer, key))

    def _answer(self, turn: RunSettings) -> str:
        found = self.race(turn)
        if found.end == "stopped":
            raise Stopped
        if found.lanes[0].error:
            raise RaceFailed(found.lanes[0].error)
        return found.lanes[0].record.text

    def close(self) -> None:
        """Let the models go; those of nobody else are freed."""
        self.lease.close()
        if self._owns_pool:
            self.pool.close()


def lane_keys(settings: RunSettings, lane: LaneSettings) -> list[ModelKey]:
    """What a lane loads besides the target."""
    found: list[ModelKey] = [HeadKey(choice, target_key(settings)) for choice in heads_of(lane).values()]
    if needs_draft(lane):
        found.append(draft_key(settings, lane.draft, lane.draft_engine))
    return found


def duration(seconds: float) -> str:
    """A length of time for people: "40 s", "12 min", "3 h 20 min"."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 120:
        return f"{minutes} min"
    hours = minutes // 60
    if hours >= 48:
        return f"{hours / 24:.0f} days"
    return f"{hours} h {minutes % 60} min" if minutes % 60 else f"{hours} h"
