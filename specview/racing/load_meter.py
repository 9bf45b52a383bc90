"""How much of the processor other programs took while a race ran."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psutil

BUSY_SHARE = 0.15


class LoadMeter:
    """Measures from its making on: the share of all cores' time spent outside this process."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._begin = self._times()

    def _times(self) -> tuple[float, float, float]:
        """CPU seconds since boot: all, busy, and this process's own."""
        times = psutil.cpu_times()._asdict()
        guest = times.get("guest", 0.0) + times.get("guest_nice", 0.0)  # already in user and nice
        total = sum(times.values()) - guest
        idle = times["idle"] + times.get("iowait", 0.0)
        own = self._process.cpu_times()
        return total, total - idle, own.user + own.system

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """What other programs do meanwhile (a race waits for its viewer) takes nothing from the race."""
        before = self._times()
        yield
        total, busy, own = (begin + now - then for begin, now, then in zip(self._begin, self._times(), before, strict=True))
        self._begin = total, busy, own

    def others_share(self) -> float | None:
        """Share (0..1) of the machine's processor time that other programs used; None if too short."""
        total, busy, own = (now - then for now, then in zip(self._times(), self._begin, strict=True))
        if total < 0.5:
            return None
        return min(1.0, max(0.0, (busy - own) / total))

    def busy_text(self) -> str:
        """A sentence for the user when others took a good part; empty otherwise."""
        share = self.others_share()
        if share is None or share < BUSY_SHARE:
            return ""
        return (
            f"The machine was busy: others used {share:.0%} of the processor, so speeds are too low."
        )
