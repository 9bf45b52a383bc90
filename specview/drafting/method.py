"""What a method is: what it declares of itself, and what a lane gives the drafter it makes.

The entry of each method stands in its own file beside this one; registry.py collects them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from specview.decoding.costs import Costs
from specview.decoding.interfaces import Drafter, Engine, Session
from specview.drafting.base import ModelFreeDrafter
from specview.errors import SpecviewError, UsageError
from specview.settings.options import (
    HEAD,
    HEAD_OPTIONS,
    Option,
    Value,
    members_of,
    options_of,
    overlay,
    resolve,
)

if TYPE_CHECKING:
    from specview.heads.loaded import LoadedHead

LONGEST_DRAFT = 64
"""What a round may draft at most (settings.MAX_K)."""

Family = Literal["baseline", "draft model", "n-gram", "self", "trained head", "combined", "served"]

METHODS: dict[str, MethodInfo] = {}
"""Every method by its name, in the order they are shown: registry.py, which everybody reads it from, fills it."""


@dataclass(frozen=True, slots=True)
class DrafterContext:
    """What a lane can give a drafter.

    max_length is the longest context in tokens, drafts included; vocab_size the width of the target's
    logit rows; rule the lane's resolved rule. target and session are the lane's own (early exit drafts
    with them). costs is what passes cost here. memory outlives the run, one for each target: what a
    drafter keeps there under its own name it finds again in the next run of a session that ties its runs.
    heads holds the loaded head of every method here that drafts with one, by the method's name.
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
    heads: Mapping[str, LoadedHead] = field(default_factory=dict)

    def head(self, method: str, needs: str, mend: str) -> LoadedHead:
        """The loaded head of a method; raises SpecviewError, in these words, where there is none."""
        if method not in self.heads:
            raise SpecviewError(f"{method} needs {needs}.", mend)
        return self.heads[method]

    def member(self, name: str) -> Drafter:
        """Make the drafter of a member of this combined method, with the options given for it."""
        method = METHODS[name]
        assert method.make is not None
        own = options_of(self.options, name)
        return method.make(replace(self, options=own or resolve(method.options, {}, name)))


class Shape(Protocol):
    """What a method drafts in a round: a chain or a tree."""

    @property
    def levels(self) -> int | None:
        """The longest path, which is k where the user named none; None leaves k to policy and engine."""

    @property
    def leaves(self) -> int:
        """Most leaves."""

    def rows_at(self, k: int) -> int:
        """Most tokens of a pass beyond the first, with drafts of up to k in a row."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Drafts in a row."""

    levels: int | None = None
    leaves: int = 1

    def rows_at(self, k: int) -> int:
        """The draft."""
        return k


@dataclass(frozen=True, slots=True)
class MethodInfo:
    """A method as the window and the command line offer it. `make` is None for plain decoding.

    shape gives what options make a round draft, where that is no bare chain; longest is the option that holds the longest
    draft, as llama.cpp and vLLM have them, which is k where the user named none. presets are named sets of option values: an option called `preset` chooses one. head names the kind of trained head
    (specview.heads.layouts) that the method drafts with; the lane's `draft` then says which, or its option `head`,
    which every such method has without naming it. combines says that the option
    `members` names other methods, whose own options are taken as "member.option". needs_costs asks for a
    calibration of the target's passes. problem gives the reason why the method
    cannot draft on this target, or None. check raises UsageError where option values do not fit together.

    Of its drafts: follows_text says that a guess at a place hangs on the text before it alone, wherever the draft
    began; one_pass that one pass drafts all tokens, and takes as long whatever their number; learns_lengths that a
    copying method learns from how its drafts fared, so that asked at every place it would say other things;
    shares_passes that the target's verifying passes take up what its draft computed, and are shorter than whole ones;
    rides_passes that it guesses within the target's passes, whose window says how long it drafts; always_tree that
    it drafts trees whatever its options. published_tree are the options of the tree it was published with, beside
    `tree`. trained names what `specview train` makes for it where that is no head. seldom_pays: on a model that was
    not trained for it. head_for_model: where `members` is left alone, the lane's head takes the draft model's place.
    served: a serving engine decodes, and all that is here is its address, the option `url`.
    members_among chooses members from what copies and what runs a model, the best first. place is where it stands
    in its family.
    """

    name: str
    label: str
    description: str
    make: Callable[[DrafterContext], Drafter] | None
    options: tuple[Option, ...] = ()
    needs_draft_model: bool = False
    head: str | None = None
    family: Family = "n-gram"
    shape: Callable[[Mapping[str, Value]], Shape] | None = None
    longest: str = ""
    presets: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    combines: bool = False
    needs_costs: bool = False
    problem: Callable[[Engine], str | None] | None = None
    check: Callable[[Mapping[str, Value]], object] | None = None
    follows_text: bool = False
    one_pass: bool = False
    learns_lengths: bool = False
    shares_passes: bool = False
    rides_passes: bool = False
    always_tree: bool = False
    published_tree: Mapping[str, Value] = field(default_factory=dict)
    trained: str | None = None
    seldom_pays: bool = False
    head_for_model: bool = False
    served: bool = False
    members_among: Callable[[Sequence[str], Sequence[str]], list[str]] | None = None
    place: int = 99

    def __post_init__(self) -> None:
        if self.head is not None:
            options = (*self.options, *HEAD_OPTIONS.get(self.head, (HEAD,)))
            object.__setattr__(self, "options", options)

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

    @property
    def copies(self) -> bool:
        """Whether it proposes point masses at no real cost, and can be run again on a text without a model."""
        return self.family == "n-gram"

    @property
    def steps_draft_model(self) -> bool:
        """Whether a draft model of its own drafts token by token: its q is known after every text."""
        return self.needs_draft_model and not self.one_pass

    def drafted(self, options: Mapping[str, Value]) -> Shape:
        """What a round drafts with these options; raises UsageError where they name a tree that cannot be."""
        if self.shape is not None:
            return self.shape(options)
        return Chain(min(int(options.get(self.longest, 0) or next(o.default for o in self.options if o.name == self.longest)), LONGEST_DRAFT) if self.longest else None)

    def members(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """The members that a combined method's options name, in order; () for others."""
        if not self.combines:
            return ()
        default = next(option.default for option in self.options if option.name == "members")
        return members_of({"members": default, **options})

    def declared(self, options: Mapping[str, Any]) -> dict[str, Option]:
        """Every option that this method takes with these, those of its members as "member.option"."""
        found = {option.name: option for option in self.options}
        for name in self.members(options):
            if name in METHODS:
                found |= {f"{name}.{option.name}": option for option in METHODS[name].options}
        return found

    def needs_draft(self, options: Mapping[str, Any]) -> bool:
        """Whether this method, or a member of it, drafts with a model."""
        return self.needs_draft_model or any(
            METHODS[name].needs_draft_model for name in self.members(options) if name in METHODS
        )

    def heads(self, options: Mapping[str, Any]) -> dict[str, str]:
        """The kind of head of this method, and of each member that drafts with one, by method name."""
        names = (self.name, *self.members(options))
        return {name: METHODS[name].head or "" for name in names if name in METHODS and METHODS[name].head}

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
        if self.check is not None:
            self.check(values)
        for name in members:
            theirs = METHODS[name].resolve(options_of(given, name))
            values |= {f"{name}.{key}": value for key, value in theirs.items()}
        for key in given:
            if key not in values:
                raise UsageError(f"{self.name} has no option {key!r}.", f"Its options: {', '.join(values)}.")
        return values
