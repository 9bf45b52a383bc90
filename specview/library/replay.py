"""A trace as what a live race would have told: events, figures, documents. No model is needed.

What the file's end lines say is taken as recorded; what they lack (a run that was interrupted, an older file)
is folded from its rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, Literal

from specview.decoding.ledger import Round
from specview.decoding.metrics import Metrics, fold, share_figures
from specview.decoding.round_table import RoundTable
from specview.decoding.speedup import Speedup, speedup
from specview.drafting.plain import is_baseline
from specview.files.documents import equality_to_json, run_document, speedup_to_json
from specview.files.reader import Trace
from specview.files.schema import Json
from specview.racing.equality import compare_records
from specview.settings.events import (
    Equality,
    Event,
    LaneEnded,
    LanePrefilled,
    LaneRound,
    RaceEnded,
    RaceStarted,
)

_COUNTS = ("rounds", "proposed", "judged", "accepted", "ignored", "emitted")
_SERIES = ("position_acceptance", "position_acceptance_conditional")


def baseline_index(trace: Trace) -> int | None:
    """The lane that is plain decoding, the baseline; None where the run had none."""
    return next((i for i, record in enumerate(trace.records) if is_baseline(record.settings)), None)


def baseline_rounds(trace: Trace) -> Sequence[Round]:
    """The plain lane's rounds; empty where the run had none."""
    index = baseline_index(trace)
    return () if index is None else trace.records[index].rounds


def recorded_metrics(figures: Mapping[str, Any] | None) -> Metrics | None:
    """Return an end line's figures as Metrics; None where they are not there or not such figures."""
    if figures is None:
        return None
    taken: dict[str, Any] = {}
    for item in fields(Metrics):
        value = figures.get(item.name)
        if item.name in _COUNTS:
            if type(value) is not int or value < 0:
                return None
        elif item.name in _SERIES:
            if not isinstance(value, list) or not all(one is None or _is_real(one) for one in value):
                return None
            value = tuple(value)
        elif item.name == "by_drafter":
            value = _by_drafter(value)
        elif item.name == "server":
            value = _server(value)
        elif value is not None and not _is_real(value):
            return None
        if value is None and item.default is MISSING and item.default_factory is MISSING and item.name not in figures:
            return None  # cut down by another program
        taken[item.name] = value
    return Metrics(**taken)


def _by_drafter(value: Any) -> dict[str, dict[str, float | None]]:
    """The shares of a combined lane's members; those that lack a figure are left out."""
    if not isinstance(value, dict):
        return {}
    wanted = share_figures(0, 0, 0, 0, 0.0, 0)
    return {
        name: {key: shares[key] for key in wanted}
        for name, shares in value.items()
        if isinstance(shares, dict)
        and all(key in shares and (_is_real(shares[key]) or (shares[key] is None and one is None)) for key, one in wanted.items())
    }


def _server(value: Any) -> dict[str, Any]:
    """What a serving engine counted: numbers, words and lists of words by name; anything else is left out."""
    if not isinstance(value, dict):
        return {}
    return {
        str(key): one
        for key, one in value.items()
        if one is None or isinstance(one, (bool, str)) or _is_real(one) or (isinstance(one, list) and all(isinstance(word, str) for word in one))
    }


def _is_real(value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def plain_step_s(trace: Trace) -> float | None:
    """Median time of the plain lane's one-row passes, seconds; None without such a lane."""
    return RoundTable(baseline_rounds(trace)).plain_step_s()


def lane_end(trace: Trace, index: int, run_id: int = 0, step_s: float | None = None) -> LaneEnded | None:
    """Return how a lane ended, with its figures; None for a lane that the recording leaves unfinished.

    step_s is `plain_step_s(trace)`, needed where the figures were not recorded.
    """
    record, more = trace.records[index], trace.ends[index]
    if record.end is None:
        return None
    metrics = recorded_metrics(trace.metrics[index]) or fold(record.rounds, record.prefill_s, step_s)
    return LaneEnded(run_id, index, record.end, metrics, record.error, *_against_plain(trace, index, more))


def _against_plain(
    trace: Trace, index: int, more: Mapping[str, Any]
) -> tuple[Speedup | None, Equality | None]:
    """Speedup, from the rounds, and equality: as recorded, else from them too."""
    base = baseline_index(trace)
    if base is None or base == index:
        return None, None
    lane, reference = trace.records[index], trace.records[base]
    faster = speedup(lane.rounds, reference.rounds)
    if "equal_to_plain" not in more:
        return faster, compare_records(lane, reference)
    found = more["equal_to_plain"]
    equality = None
    if isinstance(found, dict) and isinstance(found.get("equal"), bool):
        first = found.get("first_difference")
        equality = Equality(
            found["equal"],
            min(len(lane.token_ids), len(reference.token_ids)),
            first if type(first) is int else None,
            *(found[key] if _is_real(found.get(key)) else None for key in ("logit_margin", "kernel_margin")),
        )
    return faster, equality


def race_end(trace: Trace, run_id: int = 0) -> RaceEnded:
    """Return how the race ended; 'stopped' where the recording leaves lanes unfinished."""
    end: Literal["done", "stopped", "error"] = "done" if all(one.end for one in trace.records) else "stopped"
    found = trace.race.get("end")
    if found in ("done", "stopped", "error"):
        end = found
    fraction, busy = trace.race.get("real_time_fraction"), trace.race.get("busy")
    return RaceEnded(run_id, end, fraction if _is_real(fraction) else None, busy if isinstance(busy, str) else "")


def race_started(trace: Trace, run_id: int = 0) -> RaceStarted:
    """Return a race's first event."""
    return RaceStarted(
        run_id,
        trace.prompt_ids,
        trace.prompt_text,
        tuple(record.name for record in trace.records),
        tuple(record.settings for record in trace.records),
        trace.run,
    )


def events(trace: Trace, run_id: int = 0) -> Iterator[Event]:
    """Tell a recorded race as it was told when it ran, lane after lane."""
    yield race_started(trace, run_id)
    for index, (record, facts) in enumerate(zip(trace.records, trace.lane_facts, strict=True)):
        if record.rounds or record.prefill_s:
            yield LanePrefilled(
                run_id, index, record.prefill_s, facts.get("kv_bytes", 0), facts.get("draft_weight_bytes", 0)
            )
    for index, record in enumerate(trace.records):
        for round_ in record.rounds:
            yield LaneRound(run_id, index, round_)
    yield from ends(trace, run_id)


def ends(trace: Trace, run_id: int = 0) -> Iterator[Event]:
    """Tell how the lanes and the race ended."""
    step_s = plain_step_s(trace)
    for index in range(len(trace.records)):
        ended = lane_end(trace, index, run_id, step_s)
        if ended is not None:
            yield ended
    yield race_end(trace, run_id)


def trace_document(trace: Trace, *, rounds: bool = False) -> Json:
    """Return a trace as a document: `lanes` as `compare --json` has them, figures as recorded or folded.

    Their `rounds` are the bulk of it, and for files alone.
    """
    step_s = plain_step_s(trace)
    lanes: list[Json] = []
    for index, record in enumerate(trace.records):
        ended = lane_end(trace, index, 0, step_s)
        if ended is not None:
            metrics = ended.metrics
        else:
            metrics = fold(record.rounds, record.prefill_s, None if index == baseline_index(trace) else step_s)
        document = run_document(record, trace.run, metrics, lane=index, prompt=trace.prompt_text, rounds=rounds)
        if ended is not None:
            faster, equality = ended.speedup, ended.equality
        else:
            faster, equality = _against_plain(trace, index, {})
        document |= speedup_to_json(faster)
        document["equal_to_plain"] = equality_to_json(equality)
        if record.error:
            document["error"] = record.error
        lanes.append(document)
    return {"lanes": lanes}
