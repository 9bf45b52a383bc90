"""Settings that came with a file: a recorded run, a sweep. Whoever wrote the file chose them, not the user.

What only says how to decode is taken as it stands. Text that names a file to read or write is left out, trust in a
model's own code is never taken over, and models are named, so that the user can be asked: a path may be another
machine's, and an id of the Hub is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from specview.drafting.registry import METHODS
from specview.racing.settings import BUNDLED, LaneSettings, RunSettings
from specview.settings.options import HEAD, Option


def harmless(settings: RunSettings) -> RunSettings:
    """The settings without trust, and without options of the lanes that may name a file. They need not be checked yet."""
    return replace(settings, trust_remote_code=False, lanes=tuple(map(harmless_lane, settings.lanes)))


def harmless_lane(lane: LaneSettings) -> LaneSettings:
    """The lane without options that may name a file."""
    left_out = files_named(lane)
    return replace(lane, options={key: value for key, value in lane.options.items() if key not in left_out})


def files_named(lane: LaneSettings) -> dict[str, str]:
    """The options of a lane that `harmless` leaves out, with their values."""
    declared = _declared(lane).items()
    return {
        key: str(lane.options[key]) for key, option in declared if key in lane.options and not option.is_harmless(lane.options[key])
    }


def models_named(settings: RunSettings) -> dict[str, str]:
    """What these settings would load besides what comes with specview: name -> what as, in a few words."""
    found: dict[str, list[str]] = {}
    if settings.target != BUNDLED:
        found.setdefault(settings.target, []).append("target")
    for lane in settings.lanes:
        if lane.draft != BUNDLED and (lane.needs_draft or lane.heads):
            found.setdefault(lane.draft, []).append(f"draft of {lane.label}")
        for key in _heads(lane):
            if (name := lane.options.get(key)) and name != BUNDLED:
                found.setdefault(str(name), []).append(f"head of {lane.label}")
    return {name: ", ".join(dict.fromkeys(roles)) for name, roles in found.items()}


def with_known_models(settings: RunSettings, known: Callable[[str], bool], own: RunSettings) -> RunSettings:
    """The settings with every model that is not known given up: the target for the user's own, others for the bundled."""
    lanes = []
    for lane in settings.lanes:
        heads = {key: "" for key in _heads(lane) if not _usable(str(lane.options.get(key) or BUNDLED), known)}
        draft = lane.draft if _usable(lane.draft, known) else BUNDLED
        lanes.append(replace(lane, draft=draft, options={**lane.options, **heads}))
    shared: dict[str, Any] = {}
    if not _usable(settings.target, known):
        names = ("engine", "target", "trust_remote_code", "device", "dtype")
        shared = {name: getattr(own, name) for name in names}
    return replace(settings, lanes=tuple(lanes), **shared)


def _usable(name: str, known: Callable[[str], bool]) -> bool:
    return name == BUNDLED or known(name)


def _heads(lane: LaneSettings) -> list[str]:
    return [key for key, option in _declared(lane).items() if option.name == HEAD.name]


def _declared(lane: LaneSettings) -> Mapping[str, Option]:
    method = METHODS.get(lane.method)
    return {} if method is None else method.declared(lane.options)
