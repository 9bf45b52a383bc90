"""Opening recorded runs: files are read and folded on a short-lived thread, the window takes what is ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import Signal

from specview.errors import SpecviewError
from specview.files.reader import Trace, read_trace
from specview.gui.link.background import Background
from specview.gui.state.view_model import RaceModel
from specview.racing.resolve import checked_run
from specview.settings.branch import known_branch
from specview.settings.events import LaneEnded, LanePrefilled, LaneRound, RaceEnded
from specview.settings.run import MAX_LANES, RunSettings

if TYPE_CHECKING:
    from specview.library.beside import Beside


@dataclass(frozen=True, slots=True)
class Pick:
    """A trace to open: its file, what it is called, and which of its lanes (None for all)."""

    path: Path
    name: str = ""
    lanes: tuple[int, ...] | None = None

    @property
    def title(self) -> str:
        """What it is called."""
        return self.name or self.path.stem


def pick_of(run: str) -> Pick:
    """The run that a branch names as its parent; raises SpecviewError where it is gone."""
    from specview.library.library import SUFFIX, runs_folder

    kept = runs_folder() / f"{run}{SUFFIX}"
    for path in (kept, Path(run)):
        if path.is_file():
            return Pick(path)
    raise SpecviewError(f"the run {run} is not in the runs library any more.", "It may be in the trash (Runs).")


@dataclass(slots=True)
class Opened:
    """a recorded run, or several compared, ready to be shown.

    settings are those of the only (or first) run, None where this specview knows no such ones, and `problem` then
    says why. words say on one line what is on screen, remarks what its user must know of it.
    """

    picks: tuple[Pick, ...]
    race: RaceModel
    words: str
    remarks: tuple[str, ...] = ()
    settings: RunSettings | None = None
    problem: str = ""
    traces: list[Trace] = field(default_factory=list)

    @property
    def beside(self) -> bool:
        """Whether lanes of several runs are compared."""
        return len(self.picks) > 1


def recorded_race(trace: Trace, lanes: int = MAX_LANES) -> RaceModel:
    """Return what a live race would have left on screen, its first `lanes` lanes."""
    from specview.library import replay

    race = RaceModel()
    for event in replay.events(trace, 0):
        if isinstance(event, (LanePrefilled, LaneRound, LaneEnded)) and event.lane >= lanes:
            continue
        race.apply(event)
    del race.lanes[lanes:]
    return race


def beside_race(lanes: Sequence[Beside]) -> RaceModel:
    """Return lanes of several runs as one race: the first is the baseline, others carry what keeps them from it."""
    races: dict[int, RaceModel] = {}
    race = RaceModel()
    for one in lanes:
        if one.run not in races:
            races[one.run] = recorded_race(one.trace, len(one.trace.records))
        lane = races[one.run].lanes[one.lane]
        lane.name, lane.differs = one.name, one.differs
        if one.run:  # its own run's speedup is to another plain lane
            lane.final_speedup, lane.past_speedups, lane._counted = None, [], False
        race.lanes.append(lane)
    first = races[lanes[0].run]
    race.prompt_text, race.prompt_ids, race.facts = first.prompt_text, first.prompt_ids, first.facts
    race.state, race.ended = "ended", RaceEnded(0, "done")
    return race


def open_picks(picks: Sequence[Pick], traces: Sequence[Trace]) -> Opened:
    """Fold traces that were read; raises SpecviewError where there is nothing to show."""
    first = traces[0]
    settings, problem = _settings(first)
    if len(picks) == 1 and picks[0].lanes is None:
        race = recorded_race(first)
        remarks = _remarks(first)
        left = len(first.records) - MAX_LANES
        if left > 0:
            remarks.append(f"{left} more lanes are in the file, and {MAX_LANES} fit here")
        if problem:
            remarks.append(problem)
        return Opened(tuple(picks), race, _words(picks[0], first), tuple(remarks), settings, problem, list(traces))
    from specview.library.beside import difference, lay_beside

    numbered = [(str(place), trace, pick.lanes) for place, (pick, trace) in enumerate(zip(picks, traces, strict=True), 1)]
    laid = lay_beside(numbered)
    shown = laid[:MAX_LANES]
    remarks = [remark for trace in traces for remark in _remarks(trace)]
    if len(laid) > len(shown):
        remarks.append(f"{len(laid) - len(shown)} lanes are left out: {MAX_LANES} fit. Choose lanes in the Runs tab")
    others = [str(place + 1) for place, trace in enumerate(traces) if difference(first, trace)]
    if others:
        remarks.append(f"not comparable with run 1, so without a speedup: {', '.join(others)}")
    words = "; ".join(f"{place}: {pick.title}" for place, pick in enumerate(picks, 1)) if len(picks) > 1 else picks[0].title
    return Opened(tuple(picks), beside_race(shown), words, tuple(dict.fromkeys(remarks)), settings, problem, list(traces))


def _settings(trace: Trace) -> tuple[RunSettings | None, str]:
    """The run's settings as a race takes them (with a plain lane), or why there are none."""
    from specview.library.repeat import settings_of_trace

    try:
        settings = settings_of_trace(trace)
        return checked_run(replace(settings, baseline=True)), ""
    except SpecviewError as error:
        return None, f"its settings cannot be taken over: {error}"


def _remarks(trace: Trace) -> list[str]:
    remarks = []
    unfinished = [record.name for record in trace.records if record.end is None]
    if trace.cut or unfinished:
        remarks.append("the recording ends early (its program was interrupted, or it is still running)")
    if isinstance(trace.race.get("busy"), str) and trace.race["busy"]:
        remarks.append(trace.race["busy"])
    rounds = [round_ for record in trace.records for round_ in record.rounds]
    tokens = (token for round_ in rounds for token in (*round_.drafted, round_.final))
    if rounds and not any(token.text for token in tokens if token is not None):
        remarks.append("it was recorded without texts (--observe off)")
    return remarks


def _words(pick: Pick, trace: Trace) -> str:
    run = trace.run
    recorded, branch = run.get("recorded_at"), known_branch(run)
    parts = [
        pick.title,
        branch.words if branch is not None else "",
        str(recorded)[:16].replace("T", " ") if isinstance(recorded, str) else "",
        *(str(run[key]) for key in ("target_model_name", "engine", "device") if isinstance(run.get(key), str)),
    ]
    return " · ".join(part for part in parts if part)


class RunOpener(Background):
    """Reads traces off the Qt thread, a new wish in place of one under way; `opened` has what was Opened."""

    opened = Signal(object)

    def open(self, picks: Sequence[Pick]) -> None:
        """Read these traces; what comes of it is told by a signal."""
        wanted = list(picks)
        self.only(lambda: _read_all(wanted, self.tell), self.opened.emit)


def _read_all(picks: Sequence[Pick], tell: Callable[[str, float], None]) -> Opened:
    """Read and fold traces; raises SpecviewError, one line, and Stopped from tell."""
    traces: list[Trace] = []
    for place, pick in enumerate(picks):

        def tell_part(part: float, place: int = place) -> None:
            tell("", (place + part) / len(picks))

        traces.append(read_trace(pick.path, tell_part))
    return open_picks(picks, traces)
