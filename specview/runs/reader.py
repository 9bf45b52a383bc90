"""Reading a trace file back: whole ones, interrupted ones, and one clear line for broken ones."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from specview.decoding.ledger import End, RunRecord
from specview.errors import SpecviewError
from specview.runs.files import os_reason
from specview.runs.schema import TRACE_SCHEMA, SchemaError, round_from_json


@dataclass(slots=True)
class Trace:
    """A trace in memory.

    records are the lanes in the file's order, metrics their end lines' figures (None for a lane
    without one). `cut` says that the last line was incomplete and is left out.
    """

    run: dict[str, Any]
    prompt_text: str
    prompt_ids: tuple[int, ...]
    records: list[RunRecord] = field(default_factory=list)
    metrics: list[dict[str, Any] | None] = field(default_factory=list)
    cut: bool = False


def read_trace(path: str | Path) -> Trace:
    """Read a trace file.

    A missing end line or a last line cut short is no error. Raises SpecviewError, with the line
    number, for a file that cannot be read, is no trace, has another schema or a bad line.
    """
    name = str(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise SpecviewError(
            f"cannot read the trace {name!r}: {os_reason(error)}.", "Check the file's name."
        ) from None
    lines = data.split(b"\n")  # never splitlines(): texts may hold other line separators
    last = lines.pop()  # b"" after a whole last line
    if not lines and not last:
        raise SpecviewError(f"the trace {name!r} is empty.", "Choose a file written with --trace.")
    cut = False
    values: list[Any] = []
    for index, line in enumerate([*lines, last] if last else lines, start=1):
        try:
            values.append(json.loads(line.decode("utf-8")))
        except ValueError:
            if index > len(lines) and index > 1:  # the unfinished last line of an interrupted run
                cut = True
                break
            raise _bad(name, index, "it is not JSON") from None
    trace = _header(name, values[0])
    trace.cut = cut
    for index, value in enumerate(values[1:], start=2):
        try:
            _take(trace, value)
        except SchemaError as error:
            raise _bad(name, index, str(error)) from None
    return trace


def _bad(name: str, line: int, why: str) -> SpecviewError:
    return SpecviewError(f"line {line} of the trace {name!r} is wrong: {why}.", "Record it again with --trace.")


def _header(name: str, value: Any) -> Trace:
    schema = value.get("schema") if isinstance(value, dict) else None
    if not isinstance(schema, str) or not schema.startswith("specview.trace/"):
        raise SpecviewError(
            f"line 1 of {name!r} is not the header of a specview trace.", "Choose a file written with --trace."
        )
    if schema != TRACE_SCHEMA:
        raise SpecviewError(
            f"line 1 of the trace {name!r} says schema {schema!r}, and this specview reads {TRACE_SCHEMA!r}.",
            "Use the specview that wrote it, or a newer one.",
        )
    try:
        return _parse_header(value)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _bad(name, 1, "the header lacks run, prompt or lanes") from None


def _parse_header(value: dict[str, Any]) -> Trace:
    prompt = value["prompt"]
    ids = tuple(int(token) for token in prompt["token_ids"])
    trace = Trace(run=dict(value["run"]), prompt_text=str(prompt["text"]), prompt_ids=ids)
    for lane in value["lanes"]:
        prefill_s = lane.get("prefill_s")
        trace.records.append(
            RunRecord(
                name=str(lane["name"]),
                settings=dict(lane["settings"]),
                prompt_ids=ids,
                prefill_s=0.0 if prefill_s is None else float(prefill_s),
            )
        )
        trace.metrics.append(None)
    return trace


def _take(trace: Trace, value: Any) -> None:
    lane = value.get("lane") if isinstance(value, dict) else None
    if not isinstance(lane, int) or isinstance(lane, bool) or not 0 <= lane < len(trace.records):
        raise SchemaError(f"lane is {lane!r}, and the header names {len(trace.records)} lanes")
    record = trace.records[lane]
    if "end" in value:
        if value["end"] not in get_args(End):
            raise SchemaError(f"end is {value['end']!r}")
        metrics = value.get("metrics")
        if metrics is not None and not isinstance(metrics, dict):
            raise SchemaError("metrics is not an object")
        record.end = value["end"]
        trace.metrics[lane] = metrics
        return
    _, round_ = round_from_json(value)
    if round_.index != len(record.rounds):
        raise SchemaError(f"round {round_.index} of lane {lane} comes after {len(record.rounds)} rounds")
    record.rounds.append(round_)
    record.end = None  # continued past an earlier end
