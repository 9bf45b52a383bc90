"""When the window draws: text, plots and figures each at a pace of its own, while a race runs in the race's pauses.

A decode uses every core and waits for its slowest thread, so a drawing that takes 7% of a core took 12% of a lane's
speed. Lanes and drawing take turns instead: the race stands between two rounds, off every lane's clock, until what is
due has been painted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from PySide6.QtCore import QCoreApplication, QEvent, QObject, QTimer, Signal

from specview.gui.link.pace import Later, every
from specview.racing.pacer import Pacer

TEXT_MS, PLOT_MS, NUMBER_MS = 33, 100, 500
DRAWING_SHARE = 0.025
"""Of the machine's processor time: what the Qt thread may take from a race before it draws less often."""
SLOWEST = 2.5
"""Redraws are put off by this factor at most: text 12 times a second, plots 4 times."""
PATIENCE_S = 0.2
"""A round that takes longer is not waited for: nothing new comes of it, and little is drawn."""
AFTER_PAINTING = -2
"""A priority below that of Qt's own paint requests."""


class Redraws(QObject):
    """Calls `draw[kind]` when that is due: text, plots, figures. Figures and plots are drawn in a race only."""

    _given = Signal()

    def __init__(self, owner: QObject, pacer: Pacer, in_rounds: Callable[[], bool], draw: Mapping[str, Callable[[], object]]) -> None:
        super().__init__(owner)
        self._pacer, self._in_rounds, self._draw = pacer, in_rounds, draw
        self._due: dict[str, float] = {}  # kind -> since when
        self._pace_mark: tuple[float, float] | None = None
        self._slower = 1.0
        self._timers = {
            kind: every(self, milliseconds, lambda kind=kind: self._ask(kind))  # type: ignore[misc]
            for kind, milliseconds in (("text", TEXT_MS), ("plots", PLOT_MS), ("figures", NUMBER_MS))
        }
        self._settled = Later(self, 0, self._painted_next)  # behind what the drawing itself put off to the next moment
        self._given.connect(self._take_turn)
        pacer.on_turn = self._given.emit

    def begin(self, race: bool) -> None:
        """Something is under way: a race, or what has only words."""
        self._pace_mark = None
        for timer in self._timers.values() if race else (self._timers["text"],):
            timer.start()

    def end(self, race_only: bool) -> None:
        """The race is over, or everything is."""
        for kind, timer in self._timers.items():
            if kind != "text" or not race_only:
                timer.stop()

    @property
    def timers(self) -> Mapping[str, QTimer]:
        """By kind."""
        return self._timers

    def _ask(self, kind: str) -> None:
        if kind == "figures":
            self._keep_pace()
        if not self._in_rounds() or self._pacer.paused:
            self._draw[kind]()
            return
        now = time.perf_counter()
        if now - self._due.setdefault(kind, now) > PATIENCE_S:
            self._draw_due()
        else:
            self._pacer.ask_turn()

    def _draw_due(self) -> None:
        due, self._due = self._due, {}
        for kind, draw in self._draw.items():
            if kind in due:
                draw()

    def _take_turn(self) -> None:
        try:
            self._draw_due()
        finally:
            self._settled.start()

    def _painted_next(self) -> None:
        QCoreApplication.postEvent(self, QEvent(QEvent.Type.User), AFTER_PAINTING)

    def customEvent(self, event: QEvent) -> None:
        """All is painted: the race goes on."""
        self._pacer.end_turn()

    def _keep_pace(self) -> None:
        """Measure what drawing takes, and draw less often where that is more than its share."""
        mark = time.perf_counter(), time.thread_time()
        before, self._pace_mark = self._pace_mark, mark
        if before is None or mark[0] - before[0] < 0.8 * NUMBER_MS / 1e3:
            return
        share = (mark[1] - before[1]) / (mark[0] - before[0]) / (os.cpu_count() or 1)
        if share > DRAWING_SHARE:
            self._slower = min(self._slower * 1.3, SLOWEST)
        elif share < 0.6 * DRAWING_SHARE:
            self._slower = max(self._slower / 1.15, 1.0)
        for kind, milliseconds in (("text", TEXT_MS), ("plots", PLOT_MS)):
            self._timers[kind].setInterval(round(milliseconds * self._slower))
