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
from specview.gui.theory.explorer import ASSUMPTION, MODES, Point, TheoryPanel
from specview.lab.calibrate import MOST_K
from specview.lab.theory_points import lane_passes, point_of
from specview.settings.run import MAX_K, LaneSettings

VIEWS = ("Theory", "Concurrency")
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
        views = Scrolled(self.theory, 570, 960), Scrolled(self.concurrency, 500, 960)
        self.set_views("Views of the theory", dict(zip(VIEWS, views, strict=True)))
        self.theory.measure_asked.connect(self.measure_v)
        self._measuring.progressed.connect(self._progressed)
        self._measuring.ended.connect(self._measured)
        self.controller.number_tick.connect(self._tick)
        self.controller.lanes_changed.connect(self._lanes_changed)
        self.controller.state_changed.connect(self._lanes_changed)

    def view_changed(self, place: int) -> None:
        """Show a view, and the setup bar where it matters."""
        super().view_changed(place)
        self.needs_setup = place == 1  # the target and the prompt that are measured
        self.setup_wanted.emit()

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
        """Which view, and where the explorer stands."""
        point = self.theory.point
        return {
            "view": self.views.currentIndex(),
            "point": {name: getattr(point, name) for name in ("alpha", "k", "c", "mode", "value", "per_row")},
            "table": self.theory.which.value(),
            "concurrency": self.concurrency.kept(),
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Take what fits of it."""
        view, stood = kept.get("view"), kept.get("point")
        if isinstance(view, int) and 0 <= view < len(VIEWS):
            self.views.setCurrentIndex(view)
        if isinstance(stood, Mapping):
            self.theory.set_point(_point(stood))
        if isinstance(kept.get("table"), str):
            self.theory.which.set_value(str(kept["table"]))
        if isinstance(kept.get("concurrency"), Mapping):
            self.concurrency.restore(kept["concurrency"])


def _point(kept: Mapping[str, Any]) -> Point:
    """Where the explorer stood, figure by figure where it fits."""
    point = Point()
    for name, low, high in (("alpha", 0.0, 1.0), ("c", 0.0, 1000.0), ("value", 0.01, 1000.0), ("per_row", 0.01, 1000.0)):
        value = kept.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high:
            setattr(point, name, float(value))
    k = kept.get("k")
    if isinstance(k, int) and not isinstance(k, bool) and 1 <= k <= MAX_K:
        point.k = k
    if kept.get("mode") in {mode for mode, _ in MODES[:2]}:  # measured costs are those of a race, and not kept
        point.mode = kept["mode"]
    return point
