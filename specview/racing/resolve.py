"""Settings made ready to run: members named, options filled in, lanes in order; and those that came with a file.

Of a file (a recorded run, a sweep) whoever wrote it chose the settings, not the user. What only says how to decode is taken
as it stands. Text that names a file to read or write is left out, trust in a model's own code is never taken over, and
models are named, so that the user can be asked: a path may be another machine's, and an id of the Hub is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from specview.decoding.verification import idle_rule_note
from specview.drafting.lanes import checked_lane, heads_of, needs_draft, options_declared
from specview.drafting.registry import METHODS, methods_for
from specview.drafting.served import METHOD, URL
from specview.errors import SpecviewError, UsageError, require
from specview.fields import check, values_of
from specview.remote import keys
from specview.remote.address import is_address
from specview.settings.options import HEAD
from specview.settings.run import BUNDLED, MAX_LANES, LaneSettings, RunSettings

BUNDLED_HEAD = "eagle3"
"""The kind of head that is the strongest of what is bundled to draft for the bundled target."""


def checked_run(run: RunSettings) -> RunSettings:
    """The settings with every lane's options filled in, plain decoding first.

    Raises UsageError, one line, where they cannot work.
    """
    check(run)
    lanes = [checked_lane(with_members(without_secret(lane), run.target, run.engine), run.sampling) for lane in run.lanes]
    if is_address(run.target):
        return replace(run, target=keys.take(run.target), lanes=_served(lanes))
    if run.baseline and (not lanes or not lanes[0].plain):
        baseline = next((lane for lane in lanes if lane.plain), LaneSettings())
        lanes = [baseline, *[lane for lane in lanes if lane is not baseline]]
    if len(lanes) > MAX_LANES:
        raise UsageError(f"{len(lanes)} lanes.", f"A race takes plain and up to {MAX_LANES - 1} others.")
    return replace(run, lanes=tuple(lanes))


def is_served(lane: LaneSettings) -> bool:
    """Whether a server decodes this lane, and nothing here."""
    method = METHODS.get(lane.method)
    return method is not None and method.served


def without_secret(lane: LaneSettings) -> LaneSettings:
    """The lane with what is secret taken out of its server's address, and remembered for this process alone."""
    url = str(lane.options.get(URL.name) or "") if is_served(lane) else ""
    return replace(lane, options={**lane.options, URL.name: keys.take(url)}) if url else lane


def served_lanes(target: str) -> tuple[LaneSettings, ...]:
    """The lane of a run whose target is a server's address."""
    return (LaneSettings(METHOD.name, options={URL.name: target}),)


def _served(lanes: Sequence[LaneSettings]) -> tuple[LaneSettings, ...]:
    """The lanes of a run whose target is a server. Raises UsageError for one that would decode here."""
    for lane in lanes:
        if not is_served(lane) and not lane.plain:
            raise UsageError(f"{lane.label} drafts here, and the target is a server.", "Give a model as --target, and the server as a lane: \"server,url=...\".")
    kept = tuple(lane for lane in lanes if is_served(lane))
    require(bool(kept), "the target is a server, and no lane here is decoded by one.", "specview run and compare take a server; elsewhere give a model.")
    require(len(kept) <= MAX_LANES, f"{len(kept)} lanes of servers.", f"A race takes {MAX_LANES} at most.")
    return kept


def with_members(lane: LaneSettings, target: str, engine: str) -> LaneSettings:
    """The lane with its members named, where the method names none: what copies, and the strongest drafter there is.

    That is the head that `draft` names, the bundled one for the bundled target, or else the draft model. In llama.cpp
    the bundled head is left out: it has every pass give features, and a second row costs nearly as much as the first.
    """
    method = METHODS.get(lane.method)
    if method is None or not method.head_for_model or "members" in lane.options:
        return lane
    from specview.models.heads import find_head, named_head, read_head
    from specview.models.loading import engine_available

    kind: str | None = None
    try:
        if lane.draft != BUNDLED:
            folder = named_head(lane.draft)
            kind = read_head(folder).kind if folder is not None else None
        elif target == BUNDLED and engine == "transformers" and engine_available(engine) is None:
            kind = BUNDLED_HEAD if find_head(BUNDLED_HEAD, BUNDLED) is not None else None
    except SpecviewError:
        pass  # no head that can be read: the lane says so where it was named
    head = methods_for(kind)[0] if kind is not None else ""
    members = [head if head and METHODS[name].needs_draft_model else name for name in method.members({})]
    return replace(lane, options={"members": "+".join(members), **lane.options})


def idle_notes(run: RunSettings) -> tuple[str, ...]:
    """What is set and makes no difference in a run, a line each."""
    rules = dict.fromkeys(lane.rule for lane in run.lanes if METHODS[lane.method].drafts)
    found = [note for rule in rules if (note := idle_rule_note(rule, run.sampling))]
    filters = any(value != one.default for one, value in values_of(run.sampling) if one.form == "Filters")
    if run.sampling.greedy and filters:
        found.append("At temperature 0 the filters top-k, top-p and min-p make no difference.")
    if not run.chat and run.system:
        found.append("The raw form has no system turn: the system text is left out.")
    if not run.chat and run.history:
        found.append("The raw form has no turns: the conversation so far is left out.")
    return tuple(found)


# -- of a file --------------------------------------------------------------------------------------------------


def harmless(settings: RunSettings) -> RunSettings:
    """The settings without trust, and without options of the lanes that may name a file. They need not be checked yet."""
    return replace(settings, trust_remote_code=False, lanes=tuple(map(harmless_lane, settings.lanes)))


def harmless_lane(lane: LaneSettings) -> LaneSettings:
    """The lane without options that may name a file."""
    left_out = files_named(lane)
    return replace(lane, options={key: value for key, value in lane.options.items() if key not in left_out})


def files_named(lane: LaneSettings) -> dict[str, str]:
    """The options of a lane that `harmless` leaves out, with their values."""
    declared = options_declared(lane).items()
    return {
        key: str(lane.options[key]) for key, option in declared if key in lane.options and not option.is_harmless(lane.options[key])
    }


def models_named(settings: RunSettings) -> dict[str, str]:
    """What these settings would load besides what comes with specview: name -> what as, in a few words."""
    found: dict[str, list[str]] = {}
    if settings.target != BUNDLED:
        found.setdefault(settings.target, []).append("target")
    for lane in settings.lanes:
        if lane.draft != BUNDLED and (needs_draft(lane) or heads_of(lane)):
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
        shared = {name: getattr(own, name) for name in ("engine", "target", "trust_remote_code", "device", "dtype")} | {"branch": None}
    return replace(settings, lanes=tuple(lanes), **shared)


def _usable(name: str, known: Callable[[str], bool]) -> bool:
    return name == BUNDLED or known(name)


def _heads(lane: LaneSettings) -> list[str]:
    return [key for key, option in options_declared(lane).items() if option.name == HEAD.name]
