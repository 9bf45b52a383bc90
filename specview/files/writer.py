"""Writing a trace file while a race runs: one line per round, each on disk before the next."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specview.decoding.ledger import End, Round
from specview.disk import Closing
from specview.files.atomic import cannot_write, os_reason, refuse_held
from specview.files.documents import equality_to_json, metrics_to_json, speedup_to_json
from specview.files.schema import TRACE_SCHEMA, Json, dumps, number, plain, round_to_json
from specview.settings.events import Event, LaneEnded, LanePrefilled, LaneRound, RaceEnded, RaceStarted


def trace_header(
    run: Mapping[str, Any],
    prompt_text: str,
    prompt_ids: Sequence[int],
    lanes: Sequence[tuple[str, Mapping[str, Any], float | None]],
    lane_facts: Mapping[int, Mapping[str, Any]] | None = None,
) -> Json:
    """Return a trace's first line; `lanes` are (name, settings, prefill_s), lane_facts what else is known of each."""
    known = lane_facts or {}
    return {
        "schema": TRACE_SCHEMA,
        "run": plain(run),
        "prompt": {"text": prompt_text, "token_ids": list(prompt_ids)},
        "lanes": [
            {"name": name, "settings": plain(settings), "prefill_s": number(prefill_s), **plain(known.get(index, {}))}
            for index, (name, settings, prefill_s) in enumerate(lanes)
        ],
    }


class TraceWriter(Closing):
    """A trace file being written.

    The file is opened when this is made (SpecviewError says at once that it cannot be), emptied at the
    header, and removed again if nothing was ever written to a file that is new. An OSError while
    tracing (a full disk) calls `on_trouble` with one line, once, cuts the half-written line off and
    ends the trace; the run goes on.
    """

    def __init__(
        self,
        path: str | Path,
        header: Mapping[str, Any] | None = None,
        on_trouble: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.path = Path(path)
        self._on_trouble = on_trouble
        self._length = 0
        self._troubled = False
        self._fd: int | None = None
        self._new = not self.path.exists()
        refuse_held(path, "trace", own="a recorded run")
        try:
            mode = 0o666 & self.path.parent.stat().st_mode  # the prompt in it is no more open than its folder
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0), mode)
        except OSError as error:
            raise cannot_write(path, "trace", error) from None
        if header is not None:
            self.begin(header)

    @property
    def writing(self) -> bool:
        """Whether lines still reach the file."""
        return self._fd is not None

    def begin(self, header: Mapping[str, Any]) -> None:
        """Write the first line, over whatever the file held."""
        if self._fd is None:
            return
        try:
            os.ftruncate(self._fd, 0)
        except OSError:
            pass  # a pipe or a device: nothing to empty
        self._line(header)

    def round(self, lane: int, round_: Round) -> None:
        """Write one finished round."""
        self._line(round_to_json(lane, round_))

    def end(self, lane: int, end: End, metrics: Any, more: Mapping[str, Any] | None = None) -> None:
        """Write a lane's end line; a lane that is continued gets another one later. `more`: further keys."""
        self._line({"lane": lane, "end": end, "metrics": metrics_to_json(metrics), **(more or {})})

    def reopen(self) -> None:
        """Go on at the end of a file that was closed; one that is gone, or ended in trouble, stays closed."""
        if self._fd is not None or self._troubled or not self._length:
            return
        try:
            fd = os.open(self.path, os.O_WRONLY | getattr(os, "O_BINARY", 0))
        except OSError:
            return  # deleted meanwhile: its user does not want it
        self._length = os.lseek(fd, 0, os.SEEK_END)
        self._fd = fd

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)
        if self._new and self._length == 0 and self.path.is_file() and self.path.stat().st_size == 0:
            self.path.unlink(missing_ok=True)

    def _line(self, value: Mapping[str, Any]) -> None:
        if self._fd is None:
            return
        data = (dumps(value) + "\n").encode("utf-8")
        done = 0
        try:
            while done < len(data):
                done += os.write(self._fd, data[done:])
        except OSError as error:
            self._give_up(error)
            return
        self._length += len(data)

    def _give_up(self, error: OSError) -> None:
        assert self._fd is not None
        fd, self._fd = self._fd, None
        self._troubled = True
        try:
            os.ftruncate(fd, self._length)
        except OSError:
            pass  # not a regular file: the reader forgives a cut last line
        try:
            os.close(fd)
        except OSError:
            pass  # some file systems report the full disk here again
        self._on_trouble(
            f"the trace {str(self.path)!r} stops here: {os_reason(error)}. The run goes on; "
            "free some space for the next one."
        )


class TraceRecorder:
    """Writes the events of a race to a TraceWriter.

    The header needs every lane's prefill time, so it is held back until the first round or end. End
    lines wait for the end of the race, when their figures are whole.
    """

    def __init__(self, writer: TraceWriter | None, facts: Mapping[str, Any] | None = None) -> None:
        """`facts` stand beside those of the race itself. A subclass may open the writer later."""
        self.facts = dict(facts or {})
        self._writer = writer
        self._started: RaceStarted | None = None
        self._prefilled: dict[int, LanePrefilled] = {}
        self._ended: dict[int, LaneEnded] = {}
        self._begun = False

    def take(self, event: Event) -> None:
        """Write what `event` adds to the trace."""
        if isinstance(event, RaceStarted):
            self._started, self._prefilled, self._ended, self._begun = event, {}, {}, False
        elif isinstance(event, LanePrefilled):
            self._prefilled[event.lane] = event
        elif isinstance(event, LaneEnded):
            self._ended[event.lane] = event
        elif isinstance(event, LaneRound):
            self._begin().round(event.lane, event.round)
        elif isinstance(event, RaceEnded):
            writer = self._begin()
            race = {"end": event.end, "real_time_fraction": number(event.real_time_fraction), "busy": event.busy}
            for place, (lane, ended) in enumerate(sorted(self._ended.items())):
                more = {"race": race} if place == 0 else {}
                writer.end(lane, ended.end, ended.metrics, _beyond_metrics(ended) | more)
            self._ended = {}

    def _begin(self) -> TraceWriter:
        """The writer, which has the header."""
        assert self._writer is not None
        if self._begun or self._started is None:
            return self._writer
        self._begun = True
        started, told = self._started, self._prefilled
        named = enumerate(zip(started.lane_names, started.lane_settings, strict=True))
        lanes = [(name, settings, told[lane].prefill_s if lane in told else None) for lane, (name, settings) in named]
        known = {
            lane: {key: value for key in ("kv_bytes", "draft_weight_bytes") if (value := getattr(event, key))}
            for lane, event in told.items()
        }
        facts = {**started.facts, **self.facts}
        self._writer.begin(trace_header(facts, started.prompt_text, started.prompt_ids, lanes, known))
        return self._writer


def _beyond_metrics(ended: LaneEnded) -> Json:
    """What an end line says besides the figures of its own lane: against plain, and what went wrong."""
    found: Json = {
        **speedup_to_json(ended.speedup),
        "equal_to_plain": equality_to_json(ended.equality),
    }
    return found | ({"error": ended.error} if ended.error else {})
