"""Run settings as JSON values, and back: what the window remembers and what files of results hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from specview.decoding.sampling import SamplingParams
from specview.decoding.verification import resolve_rule
from specview.errors import UsageError
from specview.racing.settings import LaneSettings, RunSettings

LONGEST_PROMPT = 200_000
_NEVER_KEPT = ("trust_remote_code", "history", "lanes", "sampling")


def run_to_json(run: RunSettings) -> dict[str, Any]:
    """Return the settings as JSON values, without what is never kept."""
    flat = {f.name: getattr(run, f.name) for f in fields(run) if f.name not in _NEVER_KEPT}
    if len(run.prompt) > LONGEST_PROMPT:
        flat["prompt"] = ""
    lanes = [{f.name: getattr(lane, f.name) for f in fields(lane)} for lane in run.lanes]
    for lane in lanes:
        lane["options"], lane["policy_options"] = dict(lane["options"]), dict(lane["policy_options"])
    return {**flat, "sampling": dataclasses.asdict(run.sampling), "lanes": lanes}


def run_from_json(found: Mapping[str, Any]) -> RunSettings:
    """Return checked settings; raises TypeError or a SpecviewError where they do not fit.

    A lane's rule that does not fit the temperature, which the window lets stand until Run, becomes `auto`.
    """
    sampling = typed(SamplingParams(), found["sampling"])
    lanes = tuple(_with_rule(typed(LaneSettings(), lane), sampling) for lane in found["lanes"])
    run = typed(RunSettings(), {k: v for k, v in found.items() if k not in _NEVER_KEPT})
    return replace(run, sampling=sampling, lanes=lanes).checked()


def _with_rule(lane: LaneSettings, sampling: SamplingParams) -> LaneSettings:
    try:
        resolve_rule(lane.rule, sampling)
    except UsageError:
        return replace(lane, rule="auto")
    return lane


# Fields that may be None, with the type they otherwise have.
_OPTIONAL: dict[str, type] = {"device": str, "dtype": str, "threads": int, "context": int, "workload": str, "chat_template": str,
                              "draft_engine": str, "k": int}


def typed(default: Any, found: Any) -> Any:
    """Return `default` with the known keys of `found`; raises TypeError on a value of another type."""
    if not isinstance(found, Mapping):
        raise TypeError(f"expected an object, found {type(found).__name__}")
    taken: dict[str, Any] = {}
    for item in fields(default):
        if item.name not in found:
            continue
        value, standing = found[item.name], getattr(default, item.name)
        wanted = _OPTIONAL.get(item.name, type(standing))
        if value is None and item.name in _OPTIONAL:
            taken[item.name] = None
            continue
        if wanted is float and type(value) is int:
            value = float(value)
        if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
            raise TypeError(f"{item.name} is {value!r}")
        taken[item.name] = value
    return replace(default, **taken)
