"""The methods: one line here, one file beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from specview.decoding.costs import Costs
from specview.decoding.interfaces import Drafter, Engine, Session
from specview.drafting import draft_model, prompt_lookup
from specview.drafting.base import ModelFreeDrafter
from specview.drafting.options import Option, Value, overlay, resolve
from specview.errors import UsageError

Family = Literal["baseline", "draft model", "n-gram", "self", "combined"]


@dataclass(frozen=True, slots=True)
class DrafterContext:
    """What a lane can give a drafter.

    max_length is the longest context in tokens, drafts included; vocab_size the width of the target's
    logit rows; rule the lane's resolved rule. target and session are the lane's own (early exit drafts
    with them). costs is what passes cost here. memory outlives the run, one for each target: what a
    drafter keeps there under its own name it finds again in the next run of a session that ties its runs.
    """

    options: Mapping[str, Value]
    max_length: int
    vocab_size: int
    draft_engine: Engine | None = None
    target: Engine | None = None
    session: Session | None = None
    rule: str = "greedy"
    costs: Costs = field(default_factory=Costs)
    memory: dict[str, Any] = field(default_factory=dict)

    def member(self, name: str) -> Drafter:
        """Make the drafter of a member of this combined method, with the options given for it."""
        method = METHODS[name]
        assert method.make is not None
        prefix = f"{name}."
        own = {key.removeprefix(prefix): value for key, value in self.options.items() if key.startswith(prefix)}
        return method.make(replace(self, options=own or resolve(method.options, {}, name)))


@dataclass(frozen=True, slots=True)
class MethodInfo:
    """A method as the window and the command line offer it. `make` is None for plain decoding.

    default_k gives the draft length where the user named none; None leaves it to the engine. presets
    are named sets of option values: an option called `preset` chooses one. combines says that the option
    `members` names other methods, whose own options are taken as "member.option". needs_costs asks for a
    calibration of the target's passes. pass_rows gives the most tokens of one pass beyond the first for
    (options, k); branches the most leaves of a draft tree. problem gives the reason why the method
    cannot draft on this target, or None.
    """

    name: str
    label: str
    description: str
    make: Callable[[DrafterContext], Drafter] | None
    options: tuple[Option, ...] = ()
    needs_draft_model: bool = False
    family: Family = "n-gram"
    default_k: Callable[[Mapping[str, Value]], int] | None = None
    presets: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    combines: bool = False
    needs_costs: bool = False
    pass_rows: Callable[[Mapping[str, Value], int], int] | None = None
    branches: Callable[[Mapping[str, Value]], int] | None = None
    problem: Callable[[Engine], str | None] | None = None

    @classmethod
    def of(cls, drafter: type[ModelFreeDrafter], description: str, **more: Any) -> MethodInfo:
        """Describe a drafter class whose name, options and constructor say the rest."""
        return cls(
            name=drafter.name,
            label=more.pop("label", drafter.name.replace("-", " ")),
            description=description,
            make=lambda context: drafter(context.options),
            options=drafter.OPTIONS,
            **more,
        )

    @property
    def drafts(self) -> bool:
        """Whether the method drafts at all."""
        return self.make is not None

    def members(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """The members that a combined method's options name, in order; () for others."""
        if not self.combines:
            return ()
        default = next(option.default for option in self.options if option.name == "members")
        return tuple(str(options.get("members", default)).split("+"))

    def needs_draft(self, options: Mapping[str, Any]) -> bool:
        """Whether this method, or a member of it, drafts with a model."""
        return self.needs_draft_model or any(
            METHODS[name].needs_draft_model for name in self.members(options) if name in METHODS
        )

    def resolve(self, given: Mapping[str, Any]) -> dict[str, Value]:
        """Every option's value: the given one, checked, else the preset's, else the default.

        Raises UsageError on an unknown name or a value that does not fit.
        """
        members = self.members(given)
        for name in members:
            if name not in METHODS or METHODS[name].combines or not METHODS[name].drafts:
                known = ", ".join(m.name for m in METHODS.values() if m.drafts and not m.combines)
                raise UsageError(f"{self.name} cannot combine {name!r}.", f"Methods it combines: {known}.")
            if members.count(name) > 1:
                raise UsageError(f"{self.name} names {name} twice.", "Name each method once.")
        own = {key: value for key, value in given.items() if not members or "." not in key}
        values = resolve(self.options, overlay(self.options, self.presets, own), self.name)
        for name in members:
            prefix = f"{name}."
            theirs = {key.removeprefix(prefix): given[key] for key in given if key.startswith(prefix)}
            values |= {prefix + key: value for key, value in METHODS[name].resolve(theirs).items()}
        for key in given:
            if key not in values:
                raise UsageError(f"{self.name} has no option {key!r}.", f"Its options: {', '.join(values)}.")
        return values


METHODS: dict[str, MethodInfo] = {
    method.name: method
    for method in (
        MethodInfo(
            "plain", "plain", "The target alone, one token a pass: the measured baseline.", None, family="baseline"
        ),
        MethodInfo(
            "draft-model",
            "draft model",
            "A small model of the same tokenizer drafts; Leviathan 2023, Chen 2023.",
            draft_model.make,
            needs_draft_model=True,
            family="draft model",
        ),
        MethodInfo(
            "prompt-lookup",
            "prompt lookup",
            "Copies what followed the same n-gram earlier in the text; no second model (Saxena 2023).",
            prompt_lookup.make,
            prompt_lookup.OPTIONS,
        ),
    )
}
