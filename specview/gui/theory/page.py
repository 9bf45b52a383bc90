"""The Theory tab: the closed forms to play with, and what sharing the device does to them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from specview.drafting.lanes import flat_settings
from specview.errors import SpecviewError
from specview.gui.link.job import JobEnded, JobProgress
from specview.gui.parts.pages import PageContext, ViewsPage
from specview.gui.parts.pass_times import PassMeasuring
from specview.gui.parts.widgets import Scrolled
from specview.gui.state.view_model import target_of
from specview.gui.theory.concurrency import ConcurrencyPanel
from specview.gui.theory.explorer import ASSUMPTION, TheoryPanel
from specview.lab.calibrate import MOST_K
from specview.lab.theory_points import lane_passes, point_of
from specview.settings.run import LaneSettings

_SHARE = 0.05
"""Of the Qt thread's time: what following a running race may take."""


class TheoryPage(ViewsPage):
    """Two views: the theory explorer with the race's lanes on it, and concurrency."""

    def __init__(self, context: PageContext) -> None:
        super().__init__(context)
        self.controller = context.controller
        self._open = False
        self._shown: Any = None
        self._measuring = PassMeasuring(context)
        self._rest_until = 0.0
        self.theory = TheoryPanel()
        self.concurrency = ConcurrencyPanel(context)
        views = {"Theory": Scrolled(self.theory, 570, 960), "Concurrency": Scrolled(self.concurrency, 500, 960)}
        self.set_views("Views of the theory", views, {"concurrency": self.concurrency})
        self.theory.measure_asked.connect(self.measure_v)
        self._measuring.progressed.connect(self._progressed)
        self._measuring.ended.connect(self._measured)
        self.controller.number_tick.connect(self._tick)
        self.controller.lanes_changed.connect(self._lanes_changed)
        self.controller.state_changed.connect(self._lanes_changed)

    def opened(self) -> None:
        """Show the race's lanes as they stand."""
        self._open = True
        self.refresh()

    def left(self) -> None:
        """Stop following the race."""
        self._open = False

    def refresh(self) -> None:
        """Put the measured lanes on the charts, where they changed."""
        race = self.controller.race
        state = tuple((id(lane), lane.generation, lane.version) for lane in race.lanes)
        if state == self._shown:
            return
        self._shown = state
        lanes = []
        for place, lane in enumerate(race.lanes):
            if lane.plain or not lane.rounds:
                continue
            point = point_of(lane.name, race.metrics(lane), race.speedup(lane))
            if point is not None:
                lanes.append((place, point))
        plain = race.baseline
        passes: Mapping[int, float] | None = None
        ran = target_of(plain.settings) if plain is not None and plain.settings else self._measuring.target
        if known := self._measuring.known.get(ran):
            passes = known
        elif plain is not None and plain.rounds and not self.controller.racing:
            beside = [lane.rounds for lane in race.lanes if lane is not plain and not lane.differs]
            passes = lane_passes(beside, plain.rounds)
        elif self.controller.racing:
            passes = self.theory.point.passes
        self.theory.show_lanes(lanes, passes)
        self.concurrency.show_lanes()

    def measure_v(self) -> None:
        """Time the target's passes on the engine thread: v(k) of this machine."""
        controller = self.controller
        if controller.busy_with:
            self.context.show_message(controller.busy_words, "warning")
            return
        try:
            settings = self.context.run_settings()
        except SpecviewError as error:
            self.context.show_message(str(error))
            return

        self._measuring.measure(settings, target_of(flat_settings(settings, LaneSettings())), MOST_K, afresh=False)
        self.theory.assumption.set_full("Measuring the target's passes…")

    def _progressed(self, news: JobProgress) -> None:
        self.theory.assumption.set_full(news.words)

    def _measured(self, ended: JobEnded) -> None:
        self.theory.assumption.set_full(ASSUMPTION)
        if ended.result:
            self._shown = None
            self.refresh()
            self.theory.show_measured()
        elif ended.message:
            self.context.show_message(ended.message)

    def _lanes_changed(self) -> None:
        if self._open:
            self.refresh()

    def _tick(self) -> None:
        if self._open and (time.perf_counter() >= self._rest_until or not self.controller.racing):
            begin = time.perf_counter()
            self.refresh()
            spent = time.perf_counter() - begin
            self._rest_until = begin + spent + spent / _SHARE

    def kept(self) -> dict[str, Any]:
        return super().kept() | self.theory.kept()

    def restore(self, kept: Mapping[str, Any]) -> None:
        super().restore(kept)
        self.theory.restore(kept)
