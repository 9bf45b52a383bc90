"""What target passes cost here: measured by whichever page asks for it, known to all."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from specview.gui.link.job import Job, JobEnded, ShouldStop, Tell
from specview.gui.parts.pages import PageContext
from specview.settings.run import RunSettings

MEASURE = "measuring v(k)"
"""The job's name."""


class PassMeasuring(Job):
    """A page's job that measures a target's passes; `known` has what any page measured, by `target_of`: {rows: seconds}."""

    def __init__(self, context: PageContext) -> None:
        super().__init__(context.controller, MEASURE)
        self.known: dict[Hashable, Mapping[int, float]] = context.extra.setdefault("passes", {})
        self.target: Hashable = ()

    def measure(self, settings: RunSettings, target: Hashable, k: int, *, afresh: bool) -> None:
        """Measure those of the settings' target, named by `target_of`, for drafts of up to k tokens at least."""

        def work(pool: Any, tell: Tell, should_stop: ShouldStop) -> Mapping[int, float]:
            from specview.lab.calibrate import calibrate_passes

            return calibrate_passes(pool, settings, k, tell=tell.progress, should_stop=should_stop, afresh=afresh)

        self.target = target
        self.start(work, settings)

    def hear(self, news: object) -> None:
        """Keep the result, then pass it on."""
        if isinstance(news, JobEnded) and news.result:
            self.known[self.target] = news.result
        super().hear(news)
