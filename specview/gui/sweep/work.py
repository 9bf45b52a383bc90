"""A sweep as a job of the engine thread, and the sweeps in the data folder, read on a thread of their own. No widgets."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specview.errors import SpecviewError
from specview.experiments.runner import SeriesProgress
from specview.experiments.sweep import estimate, grid_words, is_long, run_sweep
from specview.experiments.sweep_curves import CellRun
from specview.experiments.sweep_file import SweepFile, new_path, read_sweep
from specview.experiments.sweep_grid import Grid
from specview.experiments.sweep_results import SweepResults
from specview.files.folders import data_folder
from specview.gui.link.job import ShouldStop, Tell, Work

log = logging.getLogger(__name__)

JOB = "sweep"
"""The job's name."""
NEWEST = 12
"""Sweeps of the data folder that are offered."""


@dataclass(frozen=True, slots=True)
class SweepBegun:
    """Races begin: the file, and a copy of what is in it."""

    path: Path
    results: SweepResults


@dataclass(frozen=True, slots=True)
class NeedsYes:
    """The sweep was not run: it is long, and nobody said yes yet."""

    grid: Grid
    path: Path | None
    words: str


def sweep_work(grid: Grid, path: Path | None, yes: bool, trust: bool = False) -> Work:
    """The job that runs a grid into a new file (path None), or goes on with the file at path.

    Its result is the SweepResults, or NeedsYes where it asks first.
    """

    def work(pool: Any, tell: Tell, should_stop: ShouldStop) -> Any:
        file = None
        try:
            if path is not None:
                file = SweepFile.resume(path)
                if trust:
                    file.results.grid = replace(
                        file.results.grid, settings=replace(file.results.grid.settings, trust_remote_code=True)
                    )
            own = grid if file is None else file.results.grid
            races = own.run_count if file is None else len(file.results.pending(failed=True))
            if races:
                known = estimate(own, pool, should_stop, tell.progress)
                tell(known)
                if not yes and is_long(own, known, races):
                    return NeedsYes(own, path, grid_words(own, known, races))
            if file is None:
                file = SweepFile.begin(new_path(), own)
            tell(SweepBegun(file.path, file.results.copy()))

            def pass_on(news: SeriesProgress | CellRun) -> None:
                tell(news)
                if isinstance(news, SeriesProgress):
                    tell.progress(f"sweep {news.done}/{news.total}: {news.text}", news.fraction)

            run_sweep(file, pool, pass_on, should_stop)
            return file.results.copy()
        finally:
            if file is not None:
                file.close()

    return work


@dataclass(frozen=True, slots=True)
class FoundSweep:
    """A sweep of the data folder: its results, or in one line why it cannot be read."""

    path: Path
    results: SweepResults | None
    trouble: str = ""

    @property
    def words(self) -> str:
        """Its place in a menu."""
        if self.results is None:
            return f"{self.path.stem} · cannot be read"
        grid = self.results.grid
        lanes = ", ".join(dict.fromkeys(grid.lane_name(lane) for lane in range(len(grid.lanes))))
        groups = ", ".join(dict.fromkeys(prompt.group for prompt in grid.prompts))
        state = f"{len(self.results.runs)} of {self.results.total} races"
        return f"{self.path.stem} · {_cut(lanes)} · {_cut(groups)} · {state}"

    @property
    def unfinished(self) -> bool:
        """Whether races are still to be run."""
        return self.results is not None and len(self.results.runs) < self.results.total


def newest_sweeps(besides: Path | None = None) -> list[FoundSweep]:
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
            results = read_sweep(path)
            results.rows()  # made here, so that showing it is quick
            found.append(FoundSweep(path, results))
        except SpecviewError as error:
            found.append(FoundSweep(path, None, str(error)))
    return found


def _cut(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"
