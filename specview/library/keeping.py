"""Keeping a run in the library while it happens: a file is made at its first round and written line by line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from specview.errors import SpecviewError
from specview.files.writer import TraceRecorder, TraceWriter
from specview.library.library import RunLibrary
from specview.settings.events import Event, LaneRound, RaceEnded, RaceStarted


class RunKeeper(TraceRecorder):
    """Takes a race's events and keeps them as a run of the library; a race without a round leaves no file.

    It works between rounds, off the lanes' clocks, like whoever else listens to the race. What goes wrong (a full
    disk, a folder that cannot be made) is told once to `on_trouble`, and the race goes on unkept. Each RaceStarted
    begins a file of its own; rounds that come after a race's end (it is continued) go on in its file.
    """

    def __init__(
        self,
        library: RunLibrary | None = None,
        facts: Mapping[str, Any] | None = None,
        on_trouble: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`facts` stand in the file's header beside the race's own: source, history, part."""
        super().__init__(None, facts)
        self.path: Path | None = None
        self._library = library or RunLibrary()
        self._on_trouble = on_trouble
        self._given_up = False

    def take(self, event: Event) -> None:
        """Keep what `event` adds."""
        if isinstance(event, RaceStarted):
            self.close()
            self.path = self._writer = None
        elif isinstance(event, LaneRound) and self._started is not None and not self._given_up:
            if self._writer is None:
                self._open()
            elif not self._writer.writing:
                self._writer.reopen()
        if self._given_up or (self._writer is None and isinstance(event, (LaneRound, RaceEnded))):
            return
        super().take(event)
        if isinstance(event, RaceEnded):
            self.close()

    def close(self) -> None:
        """Close the file; rounds that come later open it again."""
        if self._writer is not None:
            self._writer.close()

    def _open(self) -> None:
        try:
            path = self._library.new_path()
            self._writer = TraceWriter(path, on_trouble=self._trouble)
        except SpecviewError as error:
            self._trouble(f"this run is not kept: {error}")
            return
        self.path = path
        self.facts["recorded_at"] = datetime.now().astimezone().isoformat(timespec="milliseconds")

    def _trouble(self, line: str) -> None:
        self._given_up = True
        self._on_trouble(line)
