"""`cascade`: an ordered list of drafters; the first that has a proposal drafts.

The usual order is from cheap to dear: an n-gram method that is silent most of the time, then a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specview.decoding.interfaces import Drafter, OnChunk, Proceed
from specview.decoding.ledger import EMPTY_DRAFT, Array, Draft, Round
from specview.decoding.sampling import SamplingParams
from specview.drafting.base import BaseDrafter
from specview.drafting.method import METHODS, DrafterContext, MethodInfo, Shape
from specview.settings.options import Option, Value, members_of, options_of


def members_option(default: str, says: str) -> Option:
    """The option that names a combined method's members."""
    return Option("members", default, f"Methods joined by +, {says}", label="members", harmless="[a-z0-9+-]*")


OPTIONS = (
    members_option(
        "suffix+draft-model",
        "in order: in every round the first with a proposal drafts. Options of a member are "
        "given as member.option (llama.cpp takes such a list too: --spec-type ngram-simple,draft-simple).",
    ),
    Option(
        "model_k",
        2,
        "Longest draft of a member that runs a model; the n-gram methods draft up to k "
        "(llama.cpp: --spec-draft-n-max beside its n-gram sizes).",
        1,
        64,
        label="k of a model",
    ),
)


class Combined(BaseDrafter):
    """Several drafters on one sequence. Every member is told of every round, whoever drafted it."""

    def __init__(self, members: Sequence[Drafter]) -> None:
        self.members = tuple(members)
        self.exact_q = all(member.exact_q for member in self.members)
        self.feature_layers = tuple(dict.fromkeys(layer for member in self.members for layer in member.feature_layers))
        self.prompt_layers = tuple(dict.fromkeys(layer for member in self.members for layer in member.prompt_layers))

    @property
    def full_context(self) -> int:  # type: ignore[override]
        """That of a member that drafts nothing any more because its own context is full; else 0."""
        return max((member.full_context for member in self.members), default=0)

    def start(
        self, prompt_tokens: Sequence[int], sampling: SamplingParams, on_chunk: OnChunk | None = None
    ) -> None:
        """Give every member the prompt."""
        for member in self.members:
            member.written = self.written
            member.start(prompt_tokens, sampling, on_chunk)

    def learn_prompt(self, features: Mapping[Any, Array]) -> None:
        """Give the prompt's features to the members that asked for some."""
        for member in self.members:
            if member.prompt_layers:
                member.learn_prompt(features)

    def observe(self, round_: Round, features: Mapping[Any, Array]) -> None:
        """Tell every member what became of the round; `round_.drafter` says whose draft it was."""
        for member in self.members:
            member.observe(round_, features)

    def close(self) -> None:
        """Close every member."""
        for member in self.members:
            member.close()


class Cascade(Combined):
    """The first member with a proposal drafts; longest gives the longest draft of each member, if it has one."""

    name = "cascade"

    def __init__(self, members: Sequence[Drafter], longest: Sequence[int | None] = ()) -> None:
        super().__init__(members)
        self._longest = tuple(longest) or (None,) * len(self.members)

    def propose(self, context: Sequence[int], budget: int, proceed: Proceed | None = None) -> Draft:
        """Return the first proposal, under its member's name; nothing where no member has one."""
        for member, longest in zip(self.members, self._longest, strict=True):
            draft = member.propose(context, budget if longest is None else min(budget, longest), proceed)
            if draft or draft.riders:
                return draft
        return EMPTY_DRAFT


def make_members(context: DrafterContext) -> list[Drafter]:
    """Make the drafters that the option `members` names; close those made where one cannot be."""
    made: list[Drafter] = []
    try:
        for name in members_of(context.options):
            made.append(context.member(name))
    except BaseException:
        for member in made:
            member.close()
        raise
    return made


def make(context: DrafterContext) -> Cascade:
    """Make the drafter."""
    model_k = int(context.options["model_k"])
    return Cascade(make_members(context), [None if copies else model_k for copies in copying(context.options)])


def copying(options: Mapping[str, Value]) -> list[bool]:
    """Per member whether it is of the n-gram family: point masses, proposed at no real cost."""
    return [METHODS[name].copies for name in members_of(options)]


@dataclass(frozen=True, slots=True)
class Several:
    """What members draft, one at a time; levels is the longest default draft among them, few where none has one of its own."""

    shapes: tuple[Shape, ...]
    levels: int

    @property
    def leaves(self) -> int:
        """Most leaves of a member's draft."""
        return max(shape.leaves for shape in self.shapes)

    def rows_at(self, k: int) -> int:
        """Most tokens of a member's pass beyond the first."""
        return max(k, *(shape.rows_at(k) for shape in self.shapes))


def shape_of(options: Mapping[str, Value]) -> Several:
    """What the members that a combined method's resolved options name may draft."""
    shapes = tuple(METHODS[name].drafted(options_of(options, name)) for name in members_of(options))
    return Several(shapes, max((shape.levels for shape in shapes if shape.levels is not None), default=4))


METHOD = MethodInfo(
    "cascade",
    "cascade",
    "Several drafters in order: the first with a proposal drafts.",
    make,
    OPTIONS,
    family="combined",
    combines=True,
    members_among=lambda copying, running: [*copying[:1], *running[:1]],
    shape=shape_of,
    place=1,
)
