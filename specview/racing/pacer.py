"""A race at its viewer's pace: slowed, paused, or a round at a time, and drawn in turns with its rounds.

The waiting is between rounds, off every lane's clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

TURN_S = 0.05
"""A drawing that takes longer goes on beside the race."""


class Pacer:
    """Shared by the thread that races, which calls `wait` before each round, and the one that shows the race."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._paused = False
        self._speed = 1.0
        self._rounds = 0  # that a paused race may still run
        self._asked = self._given = False
        self.on_turn: Callable[[], object] = lambda: None  # called on the racing thread: the turn that was asked for is here
        self._let_go = clock()
        self._waiting_since: float | None = None
        self._waited_s = 0.0

    # -- the thread that shows -------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Whether the race stands, but for the rounds it was given."""
        return self._paused

    @property
    def speed(self) -> float:
        """Of the machine's own speed: 1 does not wait."""
        return self._speed

    @property
    def waited_s(self) -> float:
        """Seconds waited so far in this race, those of a wait under way too."""
        with self._changed:
            since = self._waiting_since
            return self._waited_s + (0.0 if since is None else self._clock() - since)

    def pause(self) -> None:
        """Stand before the next round."""
        self._set(True, self._speed, 0)

    def go_on(self) -> None:
        """Run on."""
        self._set(False, self._speed, 0)

    def step(self, rounds: int = 1) -> None:
        """Run so many rounds more, then stand."""
        self._set(True, self._speed, self._rounds + rounds)

    def set_speed(self, speed: float) -> None:
        """Take 1 / speed times as long for each round; above 1 there is nothing to gain."""
        self._set(self._paused, min(speed, 1.0), self._rounds)

    def reset(self) -> None:
        """A race begins: at full speed."""
        self._set(False, 1.0, 0)
        with self._changed:
            self._waited_s, self._asked = 0.0, False

    def ask_turn(self) -> None:
        """Let the race stand after its next round until `end_turn`."""
        self._asked = True

    def end_turn(self) -> None:
        """The race goes on."""
        with self._changed:
            self._given = False
            self._changed.notify_all()

    def wake(self) -> None:
        """Let one that waits look at its stop flag."""
        with self._changed:
            self._changed.notify_all()

    def _set(self, paused: bool, speed: float, rounds: int) -> None:
        with self._changed:
            if speed != self._speed:
                self._let_go = self._clock()  # what was run before this counts for no wait
            self._paused, self._speed, self._rounds = paused, speed, rounds
            self._changed.notify_all()

    # -- the thread that races -------------------------------------------------------------------

    @property
    def holds(self) -> bool:
        """Whether the next round may have to wait."""
        return self._asked or self._paused or self._speed < 1.0

    def wait(self, should_stop: Callable[[], bool]) -> None:
        """Wait until the next round may begin, or until a stop."""
        with self._changed:
            begin = self._waiting_since = self._clock()
            took = begin - self._let_go
            if self._asked:
                self._asked, self._given = False, True
                self.on_turn()
                self._changed.wait_for(lambda: not self._given, TURN_S)
            while not should_stop():
                if self._paused:
                    if self._rounds:
                        self._rounds -= 1
                        break
                    self._changed.wait()
                    continue
                left = took * (1 / self._speed - 1) - (self._clock() - begin)
                if left <= 0:
                    break
                self._changed.wait(left)
            self._let_go = self._clock()
            self._waiting_since = None
            self._waited_s += self._let_go - begin
