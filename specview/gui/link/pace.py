"""How often something is done: timers made in one line, and what may take no more than a share of the time."""

from __future__ import annotations

import time
from collections.abc import Callable

from PySide6.QtCore import QObject, QTimer


class Throttle:
    """Lets something through at most every `seconds`: ten times a second, where nothing else is said."""

    def __init__(self, seconds: float = 0.1, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._next = float("-inf")

    def __call__(self) -> bool:
        """Whether it is time again."""
        now = self._clock()
        if now < self._next:
            return False
        self._next = now + self._seconds
        return True


class Later(QTimer):
    """Calls `slot` once, some milliseconds after it was asked.

    `start()` puts off what was asked before (typing that pauses), `ask()` does not (redraws). With a share the calls
    take no more of the Qt thread's time than that: one that took long is followed by a long rest.
    """

    def __init__(self, owner: QObject, milliseconds: int, slot: Callable[[], object], share: float = 1.0) -> None:
        super().__init__(owner)
        self._least_ms, self._slot, self._share = milliseconds, slot, share
        self.setSingleShot(True)
        self.setInterval(milliseconds)
        self.timeout.connect(self._call)

    def ask(self) -> None:
        """Call it when the time has come; asked again before that, it is called once."""
        if not self.isActive():
            self.start()

    def _call(self) -> None:
        begin = time.perf_counter()
        self._slot()
        spent_ms = 1000 * (time.perf_counter() - begin)
        self.setInterval(max(self._least_ms, round(spent_ms * (1 / self._share - 1))))


def every(owner: QObject, milliseconds: int, slot: Callable[[], object]) -> QTimer:
    """Return a timer, not yet started, that calls slot again and again."""
    timer = QTimer(owner)
    timer.setInterval(milliseconds)
    timer.timeout.connect(slot)
    return timer
