"""Result documents: what `run --json` and `compare --json` hold (DESIGN section 8)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specview.decoding.ledger import RunRecord
from specview.files.schema import Json, number, plain, round_to_json

if TYPE_CHECKING:
    from specview.decoding.speedup import Speedup
    from specview.racing.compare import CompareResult, LaneResult
    from specview.settings.events import Equality


def metrics_to_json(metrics: Any) -> Json | None:
    """Return a Metrics (or its mapping) under the names of DESIGN section 6; None for None."""
    if metrics is None:
        return None
    if isinstance(metrics, Mapping):
        return {str(key): plain(value) for key, value in metrics.items()}
    return {field.name: plain(getattr(metrics, field.name)) for field in dataclasses.fields(metrics)}


def run_document(
    record: RunRecord,
    facts: Mapping[str, Any],
    metrics: Any,
    *,
    lane: int = 0,
    prompt: str | None = None,
    rounds: bool = True,
) -> Json:
    """Return one lane's run as a document.

    Keys: `name`; `run`, all settings as flat keys with the facts of the machine, the versions and
    the file hashes (a fact says what a setting left open, such as the device); `output` {text,
    token_ids, end}; `metrics`; `rounds`, as in a trace, unless they are not wanted; and `prefill_s`,
    which total_s and ttft_s contain and the rounds do not.
    """
    known = lane_facts(facts, lane)
    run = {**known, **{key: value for key, value in record.settings.items() if value is not None or key not in known}}
    if known.get("device"):
        run["device"] = known["device"]  # where the target is, which --device need not be (llama.cpp)
    if prompt is not None:
        run["prompt"] = prompt
    run["prompt_tokens"] = len(record.prompt_ids)
    document = {
        "name": record.name,
        "run": plain(run),
        "output": _output(record),
        "prefill_s": number(record.prefill_s),
        "metrics": metrics_to_json(metrics),
    }
    if rounds:
        document["rounds"] = [round_to_json(lane, round_) for round_ in record.rounds]
    return document


def lane_facts(facts: Mapping[str, Any], lane: int) -> Json:
    """Return a race's facts as one lane has them: its own `draft_<lane>_x` as `draft_x`, `server_<lane>_x` likewise, no other lane's."""
    own: Json = {}
    for key, value in facts.items():
        match = re.fullmatch(r"(draft|server)_(\d+)_(.+)", key)
        if match is None:
            own[key] = value
        elif int(match[2]) == lane:
            own[f"{match[1]}_{match[3]}"] = value
    return own


def speedup_to_json(found: Speedup | None) -> Json:
    """Return `speedup`, `speedup_spread` and `speedup_over`, what it is the ratio of; all None for None."""
    return {
        "speedup": None if found is None else number(found.value),
        "speedup_spread": None if found is None else plain(found.spread),
        "speedup_over": None if found is None else plain(found.as_dict()),
    }


def equality_to_json(equality: Equality | None) -> Json | None:
    """Return `equal_to_plain`; None where the lane is plain itself or not greedy."""
    if equality is None:
        return None
    return {
        "equal": equality.equal,
        "first_difference": equality.first_difference,
        "logit_margin": number(equality.logit_margin),
        "kernel_margin": number(equality.kernel_margin),
    }


def compare_document(result: CompareResult) -> Json:
    """Return a compare as a document: `lanes`, the plain one first.

    A lane is a `run_document` with `speedup`, `speedup_spread` ([least, greatest] over repeats; of one, the middle half
    of the run's eighths, stretched to the speedup), `speedup_over` (tokens_per_s and plain_tokens_per_s, whose ratio it
    is, tokens, plain_tokens, seconds and plain_seconds: of the `whole` runs, or where the two ended at different lengths or the
    longer one's rest drifted of the time in which both were running) and `equal_to_plain`. With repeats, `repeats` lists each one's {metrics, rounds, output, prefill_s, seed},
    `metrics` holds the medians and the rest is that of the median repeat.
    """
    return {
        "lanes": [
            _lane(lane, index, result.facts, result.prompt_text) for index, lane in enumerate(result.lanes)
        ],
    }


def _lane(lane: LaneResult, index: int, facts: Mapping[str, Any], prompt: str | None) -> Json:
    document = run_document(lane.record, facts, lane.metrics, lane=index, prompt=prompt)
    document |= speedup_to_json(lane.speedup)
    document["equal_to_plain"] = equality_to_json(lane.equality)
    if lane.error:
        document["error"] = lane.error
    if len(lane.repeats) > 1:
        document["repeats"] = [
            {
                "metrics": metrics_to_json(metrics),
                "rounds": [round_to_json(index, round_) for round_ in record.rounds],
                "output": _output(record),
                "prefill_s": number(record.prefill_s),
                "seed": record.settings.get("seed"),
            }
            for record, metrics in lane.repeats
        ]
    return document


def _output(record: RunRecord) -> Json:
    return {"text": record.text, "token_ids": record.token_ids, "end": record.end}
