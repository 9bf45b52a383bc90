"""The file that holds the race on screen: the recorded run's, the kept run's, or one written for the export."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QObject

from specview.gui.link.background import Background
from specview.gui.link.controller import Controller
from specview.gui.link.messages import RunKept
from specview.gui.state.view_model import LaneModel, RaceModel
from specview.settings.events import Event, LaneEnded, LanePrefilled, LaneRound, RaceEnded, RaceStarted

NOTHING = "There is no finished race to export yet."
RUNNING = "A race is running: it can be exported once it has ended."
COMPARED = "Runs are compared, which is no race to export: open one of them alone, or export their data in the Runs tab."


@dataclass(frozen=True, slots=True)
class Held:
    """A race's file, for `specview export`; temporary says that it is the export's own."""

    ref: str
    temporary: Path | None = None

    def drop(self) -> None:
        """Remove a temporary file."""
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)


class Source(QObject):
    """Knows the file of the race on screen; a race that was not kept is written when it is asked for."""

    def __init__(self, controller: Controller, parent: QObject) -> None:
        super().__init__(parent)
        self._controller = controller
        self._kept: tuple[int, Path] | None = None
        self._whole: tuple[int, list[Event]] | None = None  # a race as it ended: one that is played again shows less
        self.work = Background(self, "specview-export")
        controller.run_kept.connect(self._heard)
        controller.state_changed.connect(self._follow)

    @property
    def why_not(self) -> str:
        """Why nothing can be exported now, in one line; '' where it can."""
        controller = self._controller
        if controller.racing:
            return RUNNING
        if controller.recorded is not None:
            return COMPARED if controller.recorded.beside else ""
        ran = any(lane.rounds or lane.under_way for lane in controller.race.lanes)
        return "" if ran and (self._path() or self._whole is not None) else NOTHING

    @property
    def name(self) -> str:
        """What a file of this race is called, without an ending."""
        controller = self._controller
        if controller.recorded is not None:
            words = controller.recorded.picks[0].title
        else:
            settings = controller.ran or controller.settings
            words = "" if settings is None else settings.workload or " ".join(settings.prompt.split()[:5])
        return re.sub(r"[^\w-]+", "-", words.lower()).strip("-")[:40].strip("-") or "race"

    def get(self, then: Callable[[Held], None]) -> None:
        """Call then(the file), at once or when it is written; nothing where there is none."""
        path = self._path()
        if path is not None:
            from specview.library.library import runs_folder

            kept = path.parent == runs_folder()
            then(Held(path.name.removesuffix(".jsonl") if kept else str(path)))
        elif self._whole is not None and not self.why_not:
            events, name = self._whole[1], self.name
            self.work.only(lambda: _write(events, name), then)

    def close(self) -> None:
        """The window closes."""
        self.work.close()

    def _path(self) -> Path | None:
        controller = self._controller
        if controller.recorded is not None:
            return Path(controller.recorded.picks[0].path)
        if self._kept is not None and self._kept[0] == controller.race.run_id and self._kept[1].is_file():
            return self._kept[1]
        return None

    def _heard(self, event: RunKept) -> None:
        self._kept = None if event.path is None else (event.run_id, event.path)

    def _follow(self) -> None:
        """Hold on to a race that has ended: its rounds are, and stay, what they are."""
        race = self._controller.race
        if self._controller.racing or self._controller.recorded is not None or race.ended is None:
            return
        if race.lanes and all(lane.under_way is None and lane.state in ("ended", "idle") for lane in race.lanes):
            self._whole = race.run_id, list(_events(race))


def _events(race: RaceModel) -> Iterator[Event]:
    """What a race told, lane after lane."""
    run, lanes = race.run_id, race.lanes
    yield RaceStarted(run, race.prompt_ids, race.prompt_text, tuple(lane.name for lane in lanes), tuple(lane.settings for lane in lanes), race.facts)
    for index, lane in enumerate(lanes):
        yield LanePrefilled(run, index, lane.prefill_s or 0.0, lane.kv_bytes, lane.draft_weight_bytes)
    for index, lane in enumerate(lanes):
        yield from (LaneRound(run, index, round_) for round_ in lane.rounds)
    for index, lane in enumerate(lanes):
        yield from _end(run, index, lane)
    yield race.ended or RaceEnded(run, "stopped")


def _end(run: int, index: int, lane: LaneModel) -> Iterator[Event]:
    if lane.end is not None:
        yield LaneEnded(run, index, lane.end, lane.metrics(), lane.error, lane.final_speedup, lane.equality)


def _write(events: list[Event], name: str) -> Held:
    """On the thread: the race as a trace in a folder of its own."""
    from specview.files.writer import TraceRecorder, TraceWriter

    folder = Path(tempfile.mkdtemp(prefix="specview-export-"))
    troubles: list[str] = []
    try:
        path = folder / f"{name}.jsonl"
        with TraceWriter(path, on_trouble=troubles.append) as writer:
            recorder = TraceRecorder(writer)
            for event in events:
                recorder.take(event)
        if troubles:
            from specview.errors import SpecviewError

            raise SpecviewError(troubles[0], "Free some space in the folder for temporary files.")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Held(str(path), folder)
