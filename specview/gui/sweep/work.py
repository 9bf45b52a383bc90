"""A sweep as a job of the engine thread, and the sweeps in the data folder, read on a thread of their own. No widgets."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specview.errors import SpecviewError
from specview.experiments.runner import SeriesProgress
from specview.experiments.sweep import News, estimate, grid_words, is_long, run_sweep
from specview.experiments.sweep_file import SweepFile, new_path, read_sweep
from specview.experiments.sweep_grid import Grid
from specview.experiments.sweep_results import SweepResults
from specview.files.folders import data_folder
from specview.gui.link.job import ShouldStop, Tell, Work

log = logging.getLogger(__name__)

NEWEST = 12
"""Sweeps of the data folder that are offered."""


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What is to be run: a grid into a new file, or what the file at path still lacks.

    yes: it is run however long it takes. trust: in code that comes with its target. words: how long it takes, where that
    was too long to be run without a yes.
    """

    grid: Grid
    path: Path | None = None
    yes: bool = False
    trust: bool = False
    words: str = ""


@dataclass(frozen=True, slots=True)
class SweepShown:
    """A sweep that begins, or one of the data folder: its file, and what is in it, or in one line why it cannot be read."""

    path: Path
    results: SweepResults | None
    trouble: str = ""

    @property
    def words(self) -> str:
        """Its place in a menu."""
        if self.results is None:
            return f"{self.path.stem} · cannot be read"
        grid = self.results.grid
        lanes = dict.fromkeys(grid.lane_name(lane) for lane in range(len(grid.lanes)))
        groups = dict.fromkeys(prompt.group for prompt in grid.prompts)
        cut = [words if len(words) <= 40 else f"{words[:39]}…" for words in (", ".join(lanes), ", ".join(groups))]
        return " · ".join([self.path.stem, *cut, f"{len(self.results.runs)} of {self.results.total} races"])

    @property
    def unfinished(self) -> bool:
        """Whether races are still to be run."""
        return self.results is not None and len(self.results.runs) < self.results.total


def sweep_work(plan: SweepPlan) -> Work:
    """The job that runs a plan. Its result is the SweepResults, or the plan with words where it is to be asked about first."""

    def work(pool: Any, tell: Tell, should_stop: ShouldStop) -> SweepResults | SweepPlan:
        with ExitStack() as stack:
            file, grid, races = None, plan.grid, plan.grid.run_count
            if plan.path is not None:
                file = stack.enter_context(SweepFile.resume(plan.path, trust=plan.trust))
                grid, races = file.results.grid, len(file.results.pending(failed=True))
            if races:
                known = estimate(grid, pool, should_stop, tell.progress)
                tell(known)
                if not plan.yes and is_long(grid, known, races):
                    return SweepPlan(grid, plan.path, True, plan.trust, grid_words(grid, known, races))
            if file is None:
                file = stack.enter_context(SweepFile.begin(new_path(), grid))
            tell(SweepShown(file.path, file.results.copy()))

            def pass_on(news: News) -> None:
                if isinstance(news, SeriesProgress):
                    tell.progress(news.words, news.fraction)
                else:
                    tell(news)

            run_sweep(file, pool, pass_on, should_stop)
            return file.results.copy()

    return work


def newest_sweeps(besides: Path | None = None) -> list[SweepShown]:
    """The newest sweeps of the data folder, the newest first, then `besides` where that is another file.

    Reads files: not for the Qt thread.
    """
    folder = data_folder("sweeps")
    try:
        paths = sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime, reverse=True)[:NEWEST]
    except OSError as error:
        log.warning("the sweeps in %s cannot be listed: %s", folder, error)
        paths = []
    if besides is not None and besides not in paths and besides.is_file():
        paths.append(besides)
    found = []
    for path in paths:
        try:
            found.append(folded(path))
        except SpecviewError as error:
            found.append(SweepShown(path, None, str(error)))
    return found


def folded(path: Path) -> SweepShown:
    """A sweep with its rows made: of ten thousand cells that takes a second or two. Raises SpecviewError."""
    results = read_sweep(path)
    results.rows()
    return SweepShown(path, results)
