"""What the views of the exactness lab share: an experiment, and its result so far, shown ten times a second."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import fields, replace
from typing import Any

from specview.files.report import MARKS
from specview.gui.link.job import ShouldStop, Tell, Work
from specview.gui.link.pace import Throttle
from specview.gui.parts.charts import Chart
from specview.gui.parts.job_view import LabPanel
from specview.settings.run import RunSettings

Experiment = Callable[[Any, Callable[[Any, str, float | None], None], ShouldStop], Any]
"""Called with the pool of models, with what takes the result so far, words and the fraction done, and with should_stop."""


class ExactnessPanel(LabPanel):
    """Settings, an experiment, its verdict; `found` is what is shown."""

    found: Any = None
    empty = ""
    """Words before there is a verdict."""

    def experiment(self) -> tuple[Experiment, RunSettings | None]:
        """What Run does, and with which models; raises SpecviewError, one line."""
        raise NotImplementedError

    def work(self) -> tuple[Work, RunSettings | None]:
        """Run the experiment; snapshots go to the window."""
        run, settings = self.experiment()

        def work(pool: Any, tell: Tell, should_stop: ShouldStop) -> Any:
            due = Throttle()

            def on_part(part: Any, text: str, fraction: float | None) -> None:
                if due():
                    tell.progress(text, fraction)
                    tell(snapshot(part))

            return run(pool, on_part, should_stop)

        return work, settings

    def take(self, found: Any) -> None:
        """Show a result, finished or not."""
        if found.samples:
            self.found = found
            self.draw()

    def draw(self) -> None:
        """Say the verdict."""
        self.say(self.empty if self.found is None else MARKS[self.found.verdict.tone] + self.found.verdict.text)


def snapshot(result: Any) -> Any:
    """A copy of a result that stays as it is while the run goes on."""
    held = {item.name: getattr(result, item.name) for item in fields(result)}
    return replace(result, **{name: copy(value) for name, value in held.items() if isinstance(value, (dict, list))})


def begin(chart: Chart, words: str) -> bool:
    """Take what was drawn away; with words, which stand in place of a plot, there is nothing to draw."""
    chart.clear()
    chart.say(words)
    return not words
