"""What a lane's settings come to, its method asked: what it drafts with, what it takes, its options filled in, its flat form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from specview.decoding.sampling import SamplingParams
from specview.decoding.verification import resolve_rule
from specview.drafting.policies import POLICIES
from specview.drafting.registry import DEFAULT_METHOD, METHODS
from specview.drafting.served import METHOD, URL
from specview.errors import SpecviewError, UsageError
from specview.fields import Option, check, values_of
from specview.settings.options import ANSWERS, HEAD, options_of, resolve
from specview.settings.run import (
    BUNDLED,
    LaneSettings,
    RunSettings,
    from_json,
    run_from_json,
)


@dataclass(frozen=True, slots=True)
class HeadChoice:
    """A head that a lane drafts with: its kind, what names it, and how the user says to read it (option, value)."""

    kind: str
    ref: str
    answers: tuple[tuple[str, str], ...] = ()


def needs_draft(lane: LaneSettings) -> bool:
    """Whether the method, or a member of it, drafts with a model of its own."""
    method = METHODS.get(lane.method)
    return method is not None and method.needs_draft(lane.options)


def takes(lane: LaneSettings) -> frozenset[str]:
    """Which of k, policy, rule, draft and draft_engine say something of the method."""
    method = METHODS.get(lane.method)
    if method is None or not method.drafts:
        return frozenset()
    draft = {"draft", "draft_engine"} if needs_draft(lane) else {"draft"} if method.heads(lane.options) else set()
    return frozenset({"k", "policy", "rule", *draft})


def heads_of(lane: LaneSettings) -> dict[str, HeadChoice]:
    """The head of the method, and of each member that drafts with one, by method name."""
    method = METHODS.get(lane.method)
    if method is None:
        return {}
    usual = BUNDLED if needs_draft(lane) else lane.draft
    found = {}
    for name, kind in method.heads(lane.options).items():
        own = dict(lane.options) if name == lane.method else options_of(lane.options, name)
        answers = {key: str(own[key]) for key in ANSWERS if own.get(key, "auto") != "auto"}
        found[name] = HeadChoice(kind, str(own.get(HEAD.name) or usual), tuple(sorted(answers.items())))
    return found


def draft_refs(lane: LaneSettings) -> dict[str, str]:
    """What the lane drafts with, as it was named, by the member that drafts with it."""
    named = {name: choice.ref for name, choice in heads_of(lane).items()}
    return {DEFAULT_METHOD: lane.draft} | named if needs_draft(lane) else named


def drafts_named(lane: LaneSettings) -> str | None:
    """What the lane drafts with in one line; by member where several draft with weights of their own."""
    named = draft_refs(lane)
    if len(named) > 1:
        return ", ".join(f"{name}: {ref}" for name, ref in named.items())
    return next(iter(named.values()), None)


def needs_costs(lane: LaneSettings) -> bool:
    """Whether the method or the length policy asks for a calibration of the target's passes."""
    method = METHODS[lane.method]
    return method.needs_costs or (method.drafts and POLICIES[lane.policy].needs_costs)


def default_k(lane: LaneSettings, device: str) -> tuple[int | None, str]:
    """(drafted tokens a round where the user named none, whose default that is); None while the device is not known.

    The method's own default, the policy's, or few: verifying rows is dear on a CPU.
    """
    method, policy = METHODS[lane.method], POLICIES[lane.policy]
    own = method.drafted(lane.options).levels
    if own or policy.default_k:
        return own or policy.default_k, f"the default of {method.label if own else policy.label}"
    return (None if not device else 2 if device == "cpu" else 4), "2 on a CPU, where verifying rows is dear, else 4"


def options_declared(lane: LaneSettings) -> Mapping[str, Option]:
    """Every option that the lane's method takes, those of its members as "member.option"."""
    method = METHODS.get(lane.method)
    return {} if method is None else method.declared(lane.options)


def checked_lane(lane: LaneSettings, sampling: SamplingParams) -> LaneSettings:
    """The lane with options filled in; raises UsageError where it cannot work."""
    method = METHODS.get(lane.method)
    if method is None:
        raise UsageError(f"there is no method {lane.method!r}.", f"Methods: {', '.join(METHODS)}.")
    check(lane)
    if any("\ud800" <= char <= "\udfff" for char in lane.name):
        raise UsageError("the name of a lane is not UTF-8 text.", "Set a UTF-8 locale.")
    resolve_rule(lane.rule, sampling)
    policy = POLICIES.get(lane.policy)
    if policy is None:
        raise UsageError(f"there is no length policy {lane.policy!r}.", f"Policies: {', '.join(POLICIES)}.")
    policy_options = resolve(policy.options, lane.policy_options, lane.policy)
    return replace(lane, options=method.resolve(lane.options), policy_options=policy_options)


# -- as they stand in files ---------------------------------------------------------------------------------------


def flat_settings(run: RunSettings, lane: LaneSettings) -> dict[str, Any]:
    """All settings of one lane as flat keys; draft_ref is the lane's own draft where `draft` names several."""
    drafts = METHODS[lane.method].drafts
    shared = {
        one.name: (value or None) if one.repeated else value  # earlier versions read a null, and no list
        for record in (run, run.sampling)
        for one, value in values_of(record)
        if one.in_files
    }
    return {
        **shared,
        "method": lane.method,
        "draft": drafts_named(lane),
        "draft_ref": lane.draft if len(draft_refs(lane)) > 1 else None,
        "draft_engine": lane.draft_engine or run.engine if needs_draft(lane) else None,
        "k": lane.k if drafts else None,
        "policy": lane.policy if drafts else None,
        "rule": resolve_rule(lane.rule, run.sampling),
        **{f"policy_{key}": value for key, value in lane.policy_options.items()},
        **{f"option_{key}": value for key, value in lane.options.items()},
    }


def run_of_flat(flats: Mapping[str, Mapping[str, Any]]) -> RunSettings:
    """The settings that flat ones of lanes (by name, the run's from the first) say, not checked: `flat_settings` the other way.

    Whoever wrote them: what is left open is as by default. Raises TypeError or SpecviewError where they cannot be read.
    """
    known = {key: value for key, value in next(iter(flats.values())).items() if value is not None}
    run = run_from_json({**known, "sampling": known})
    lanes = tuple(_lane_of_flat(name, own, run) for name, own in flats.items())
    return replace(run, lanes=lanes, baseline=lanes[0].plain)


def _lane_of_flat(name: str, flat: Mapping[str, Any], run: RunSettings) -> LaneSettings:
    method = METHOD.name if f"option_{URL.name}" in flat else flat.get("method")  # a server's may stand as the baseline
    if method not in METHODS:
        raise SpecviewError(f"there is no method {method!r:.60} in this specview.")
    known = {key: value for key, value in flat.items() if value is not None}
    draft = known.get("draft_ref") or _first_draft(str(known.get("draft", BUNDLED)))
    policy = known.get("policy", LaneSettings().policy)
    own = {
        **known,
        "name": "" if name == method else name,
        "draft": draft,
        "policy_options": _prefixed(known, "policy_") if policy in POLICIES else {},
        "options": _prefixed(known, "option_"),
    }
    lane = from_json(LaneSettings, own)
    engine = None if lane.draft_engine == run.engine else lane.draft_engine
    return replace(lane, draft_engine=engine, rule="auto" if lane.rule == resolve_rule("auto", run.sampling) else lane.rule)


def _first_draft(named: str) -> str:
    """The draft of a lane whose file has no draft_ref (as earlier versions wrote them): the first of those in the words."""
    names = "|".join(map(re.escape, METHODS))
    found = re.match(rf"(?:{names}): (.*?)(?:, (?:{names}): |$)", named, re.DOTALL)
    return found[1] if found else named


def _prefixed(flat: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in flat.items() if key.startswith(prefix)}
