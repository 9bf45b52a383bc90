"""What a race tells its viewer. Every event carries the id of its run; drop those of a stale one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from specview.decoding.ledger import End, Round
from specview.decoding.metrics import Metrics
from specview.decoding.speedup import Speedup

Phase = Literal["import", "load", "convert", "load-draft", "warm-up", "tokenize", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Something long is under way; fraction 0..1, or None when it cannot be known.

    lane is the lane it belongs to, None for the whole run. text says it in words.
    """

    run_id: int
    phase: Phase
    text: str
    fraction: float | None = None
    lane: int | None = None


@dataclass(frozen=True, slots=True)
class RaceStarted:
    """Models are loaded and the prompt is tokenized; lanes begin.

    facts: flat facts for the window and files (model names, device, dtype, threads, versions,
    file hashes, weight_bytes, context_length, ...).
    """

    run_id: int
    prompt_ids: tuple[int, ...]
    prompt_text: str
    lane_names: tuple[str, ...]
    lane_settings: tuple[Mapping[str, Any], ...]
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LanePrefilled:
    """A lane's prompt is in its caches; its clock starts at 0."""

    run_id: int
    lane: int
    prefill_s: float
    kv_bytes: int = 0
    draft_weight_bytes: int = 0


@dataclass(frozen=True, slots=True)
class LaneRound:
    """A lane finished a round."""

    run_id: int
    lane: int
    round: Round


@dataclass(frozen=True, slots=True)
class Equality:
    """How a greedy lane's output compares with plain decoding's.

    first_difference is an output position (0-based); logit_margin is plain's top-1 minus top-2 logit
    there; kernel_margin is the largest drift between one-row and many-row logits measured for this
    model file, None where it was not measured.
    """

    equal: bool
    compared: int
    first_difference: int | None = None
    logit_margin: float | None = None
    kernel_margin: float | None = None


@dataclass(frozen=True, slots=True)
class LaneEnded:
    """A lane will give no more rounds (until continued).

    Comes once when the lane ends, and once more, with all figures, when the race does: speedup and
    equality need the plain lane's end.
    """

    run_id: int
    lane: int
    end: End
    metrics: Metrics
    error: str = ""
    speedup: Speedup | None = None
    equality: Equality | None = None


@dataclass(frozen=True, slots=True)
class RaceEnded:
    """All lanes ended, or the race was stopped."""

    run_id: int
    end: Literal["done", "stopped", "error"]
    real_time_fraction: float | None = None
    busy: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The run failed before or outside its lanes: one line that names cause and mend.

    usage marks settings that cannot work (exit code 2 on the command line).
    """

    run_id: int
    message: str
    usage: bool = False


Event = Progress | RaceStarted | LanePrefilled | LaneRound | LaneEnded | RaceEnded | Failed
