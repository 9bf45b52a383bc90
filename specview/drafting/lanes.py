"""What a lane's settings come to, its method asked: what it drafts with, what it takes, its options filled in, its flat form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from specview.decoding.sampling import SamplingParams
from specview.decoding.verification import resolve_rule
from specview.drafting.policies import POLICIES
from specview.drafting.registry import DEFAULT_METHOD, METHODS
from specview.errors import UsageError
from specview.fields import Option, check
from specview.settings.options import ANSWERS, HEAD, options_of, resolve
from specview.settings.run import BUNDLED, LaneSettings, RunSettings, shared_settings


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
    resolve_rule(lane.rule, sampling)
    policy = POLICIES.get(lane.policy)
    if policy is None:
        raise UsageError(f"there is no length policy {lane.policy!r}.", f"Policies: {', '.join(POLICIES)}.")
    policy_options = resolve(policy.options, lane.policy_options, lane.policy)
    return replace(lane, options=method.resolve(lane.options), policy_options=policy_options)


def flat_settings(run: RunSettings, lane: LaneSettings) -> dict[str, Any]:
    """All settings of one lane as flat keys, as they stand in files."""
    drafts = METHODS[lane.method].drafts
    owners = (run, run.sampling)
    shared = {name: next(getattr(one, name) for one in owners if hasattr(one, name)) for name in shared_settings(in_files=True)}
    return {
        **shared,
        "method": lane.method,
        "draft": drafts_named(lane),
        "draft_engine": lane.draft_engine or run.engine if needs_draft(lane) else None,
        "k": lane.k if drafts else None,
        "policy": lane.policy if drafts else None,
        "rule": resolve_rule(lane.rule, run.sampling),
        **{f"policy_{key}": value for key, value in lane.policy_options.items()},
        **{f"option_{key}": value for key, value in lane.options.items()},
    }
