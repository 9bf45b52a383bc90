"""Reading a trace file back: whole ones, interrupted ones, and one clear line for broken ones."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from msgspec import Meta, Struct, ValidationError, convert

from specview.decoding.ledger import RunRecord, end_kind
from specview.errors import SpecviewError, Stopped
from specview.fields import declared
from specview.files.atomic import os_reason
from specview.files.schema import TRACE_SCHEMA, SchemaError, Seen, round_from_json
from specview.reading import open_regular
from specview.settings.run import LaneSettings, shared_settings

MAX_BYTES = 256 << 20
"""Of a whole trace: as rounds it takes two to seven times as much memory."""
MAX_LINE_BYTES = 16 << 20
MAX_LINE_MEMORY = 64 << 20
"""What the values of one line may take, estimated before they are made: "[]," is 3 bytes in a file and 64 in memory."""
MAX_TRACE_LANES = 64
_CHUNK = 64 << 10
_SMALL_LINE = 1 << 20
_TELL_EVERY = 128 << 10
_MEND = "Choose a file written with --trace, or one of the runs library."

Keep = Literal["all", "figures", "nothing"]
"""Of the rounds of a trace: all, all but the lists of likely tokens (the bulk of what was observed in full, and for those
who look at one token), or nothing once they are checked."""
Tell = Callable[[float], None]
"""Called with the fraction that is read, 0..1."""


@dataclass(slots=True)
class Trace:
    """A trace in memory.

    records are the lanes in the file's order, metrics their end lines' figures (None for a lane
    without one), ends what else their end lines say (error, speedup, speedup_spread, equal_to_plain; empty
    where there is none), lane_facts what else the header says of them (kv_bytes, draft_weight_bytes), race how
    the whole race ended (end, real_time_fraction, busy). `cut` says that the last line was incomplete and is
    left out.
    """

    run: dict[str, Any]
    prompt_text: str
    prompt_ids: tuple[int, ...]
    records: list[RunRecord] = field(default_factory=list)
    metrics: list[dict[str, Any] | None] = field(default_factory=list)
    cut: bool = False
    ends: list[dict[str, Any]] = field(default_factory=list)
    lane_facts: list[dict[str, Any]] = field(default_factory=list)
    race: dict[str, Any] = field(default_factory=dict)


def read_trace(
    path: str | Path,
    tell: Tell = lambda fraction: None,
    should_stop: Callable[[], bool] = lambda: False,
    *,
    keep: Keep = "all",
) -> Trace:
    """Read a trace file, line by line, and `keep` what is wanted of its rounds.

    A missing end line or a last line cut short is no error. Raises SpecviewError, with the line
    number, for a file that cannot be read, is no trace, has another schema or a bad line; Stopped.
    """
    name = str(path)
    try:
        with open_regular(path) as file, _no_collector():
            size = os.fstat(file.fileno()).st_size
            first, complete = first_line(file, name)
            if size > MAX_BYTES:
                raise SpecviewError(
                    f"the trace {name!r} has {size / 1e6:,.0f} MB, and up to {MAX_BYTES / 1e6:,.0f} MB are read.",
                    "Record fewer rounds, or with --observe light.",
                )
            trace = parse_header(first, name)
            done = told = len(first) + complete
            file.seek(done)
            counts = [0] * len(trace.records)
            seen: Seen = {}
            for number, line in enumerate(_lines(file, name), start=2):
                done += len(line)
                if done - told >= _TELL_EVERY:
                    told = done
                    tell(min(1.0, done / size))
                    if should_stop():
                        raise Stopped
                try:
                    value = _loads(line)
                except (ValueError, RecursionError):
                    if not line.endswith(b"\n"):  # the unfinished last line of an interrupted run
                        trace.cut = True
                        break
                    raise _bad(name, number, "it is not JSON") from None
                except MemoryError:
                    raise _bad(name, number, "its values would fill the memory") from None
                try:
                    _take(trace, value, counts, seen, keep)
                except SchemaError as error:
                    raise _bad(name, number, str(error)) from None
    except OSError as error:
        raise cannot_read(name, error) from None
    except MemoryError:
        raise SpecviewError(f"there is not enough memory for the trace {name!r}.", "Close other programs.") from None
    tell(1.0)
    return trace


def _lines(file: BinaryIO, name: str) -> Iterator[bytes]:
    """The lines from here on, each with its end; raises SpecviewError for one that is too long for a round."""
    number = 2
    while line := file.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            raise _bad(name, number, f"it is longer than {MAX_LINE_BYTES >> 20} MB")
        yield line
        number += 1


def _loads(line: bytes) -> Any:
    """The JSON value of a line; raises ValueError, RecursionError, or MemoryError where it would take too much."""
    if len(line) > _SMALL_LINE:
        weight = 232 * line.count(b"{") + 64 * line.count(b"[") + 40 * line.count(b",")
        if weight > MAX_LINE_MEMORY:
            raise MemoryError
    return json.loads(line.decode("utf-8"))


def cannot_read(name: str, error: OSError) -> SpecviewError:
    """Return the one line for a trace that cannot be opened."""
    return SpecviewError(f"cannot read the trace {name!r}: {os_reason(error)}.", "Check the file's name.")


def first_line(file: BinaryIO, name: str) -> tuple[bytes, bool]:
    """Return (the first line without its end, whether it had one); foreign files are refused after few bytes.

    Raises SpecviewError for an empty file and for one whose first line cannot be a header.
    """
    data = file.read(_CHUNK)
    if not data:
        raise SpecviewError(f"the trace {name!r} is empty.", _MEND)
    if not data.lstrip().startswith(b"{"):
        raise no_trace(name)
    parts = [data]
    size = len(data)
    while b"\n" not in parts[-1]:
        data = file.read(_CHUNK)
        if not data:
            break
        parts.append(data)
        size += len(data)
        if size > MAX_LINE_BYTES:
            raise no_trace(name)
    line, newline, _ = b"".join(parts).partition(b"\n")
    return line, bool(newline)


def no_trace(name: str) -> SpecviewError:
    """Return the one line for a file that is something else."""
    return SpecviewError(f"line 1 of {name!r} is not the header of a specview trace.", _MEND)


def _bad(name: str, line: int, why: str) -> SpecviewError:
    return SpecviewError(f"line {line} of the trace {name!r} is wrong: {why}.", "Record it again with --trace.")


def parse_header(line: bytes, name: str) -> Trace:
    """Return the trace of a first line, without rounds; raise SpecviewError, one line, where it is no header."""
    try:
        value = _loads(line)
    except (ValueError, RecursionError, MemoryError):
        raise no_trace(name) from None
    schema = value.get("schema") if isinstance(value, dict) else None
    if not isinstance(schema, str) or not schema.startswith("specview.trace/"):
        raise no_trace(name)
    if schema != TRACE_SCHEMA:
        raise SpecviewError(
            f"line 1 of the trace {name!r} says schema {schema!r:.60}, and this specview reads {TRACE_SCHEMA!r}.",
            "Use the specview that wrote it, or a newer one.",
        )
    try:
        header = convert(value, _Header)
        trace = Trace(header.run, header.prompt.text, header.prompt.token_ids)
        for lane in header.lanes:
            settings = _settings(lane.settings, lane.name)
            trace.records.append(RunRecord(lane.name, settings, trace.prompt_ids, prefill_s=lane.prefill_s or 0.0))
            facts = {"kv_bytes": lane.kv_bytes, "draft_weight_bytes": lane.draft_weight_bytes}
            trace.lane_facts.append({key: fact for key, fact in facts.items() if type(fact) is int})
    except SchemaError as error:
        raise _bad(name, 1, str(error)) from None
    except ValidationError:
        raise _bad(name, 1, "the header lacks run, prompt or lanes") from None
    if not trace.records:
        raise _bad(name, 1, "the header names no lanes")
    if len(trace.records) > MAX_TRACE_LANES:
        raise _bad(name, 1, f"the header names {len(trace.records)} lanes, and up to {MAX_TRACE_LANES} are read")
    trace.metrics, trace.ends = [None for _ in trace.records], [{} for _ in trace.records]
    return trace


class _Prompt(Struct):
    text: str
    token_ids: tuple[int, ...]


class _Lane(Struct):
    name: str
    settings: dict[str, Any]
    prefill_s: Annotated[float, Meta(ge=-1e300, le=1e300)] | None = None
    kv_bytes: Any = None
    draft_weight_bytes: Any = None


class _Header(Struct):
    run: dict[str, Any]
    prompt: _Prompt
    lanes: list[_Lane]


_KNOWN = {**shared_settings(), **declared(LaneSettings)}
"""Settings that this specview knows; those of options and policies may be any single value."""


def _settings(found: Any, name: str) -> dict[str, Any]:
    """A lane's settings; raises SchemaError where one is of another kind than it can be."""
    settings = dict(found)
    settings.setdefault("method", name)  # other programs' traces may name the lane alone
    for key, value in settings.items():
        if key == "method":
            fits = type(value) is str
        else:
            fits = value is None or (_KNOWN[key].accepts(value) if key in _KNOWN else type(value) in (str, int, float, bool))
        if not fits:
            raise SchemaError(f"{key} of lane {name!r:.60} is {value!r:.60}")
        if isinstance(value, (int, float)) and not abs(value) < 1e300:
            raise SchemaError(f"{key} of lane {name!r:.60} is {value!r:.60}")
    return settings


def _take(trace: Trace, value: Any, counts: list[int], seen: Seen, keep: Keep) -> None:
    """Add what a line says; counts are the rounds of each lane so far, kept or not."""
    lane = value.get("lane") if isinstance(value, dict) else None
    if not isinstance(lane, int) or isinstance(lane, bool) or not 0 <= lane < len(trace.records):
        raise SchemaError(f"lane is {lane!r:.60}, and the header names {len(trace.records)} lanes")
    record = trace.records[lane]
    if "end" in value:
        if not isinstance(value["end"], str) or not end_kind(value["end"]):
            raise SchemaError(f"end is {value['end']!r:.60}")
        metrics = value.get("metrics")
        if metrics is not None and not isinstance(metrics, dict):
            raise SchemaError("metrics is not an object")
        record.end = value["end"]
        record.error = value["error"] if isinstance(value.get("error"), str) else ""
        trace.metrics[lane] = metrics
        trace.ends[lane] = {key: item for key, item in value.items() if key not in ("lane", "end", "metrics", "race")}
        if isinstance(value.get("race"), dict):
            trace.race = value["race"]
        return
    _, round_ = round_from_json(value, seen, likely=keep == "all")
    if round_.index != counts[lane]:
        raise SchemaError(f"round {round_.index} of lane {lane} comes after {counts[lane]} rounds")
    counts[lane] += 1
    if keep != "nothing":
        record.rounds.append(round_)
    record.end, record.error = None, ""  # continued past an earlier end
    trace.metrics[lane], trace.ends[lane], trace.race = None, {}, {}


@contextmanager
def _no_collector() -> Iterator[None]:
    """Hold back the cycle collector: nothing read here is a cycle, and it would look at all of it again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
