"""`cascade`: an ordered list of drafters; the first that has a proposal drafts.

The usual order is from cheap to dear: an n-gram method that is silent most of the time, then a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specview.decoding.interfaces import Drafter, DrawsByPosition, OnChunk, OwnContext
from specview.decoding.ledger import EMPTY_DRAFT, Array, Draft, Round
from specview.decoding.sampling import SamplingParams
from specview.drafting.method import METHODS, DrafterContext, MethodInfo
from specview.settings.options import Option, Value, members_of, options_of

OPTIONS = (
    Option(
        "members",
        "suffix+draft-model",
        "Methods joined by +, in order: in every round the first with a proposal drafts. Options of a member are "
        "given as member.option (llama.cpp takes such a list too: --spec-type ngram-simple,draft-simple).",
        label="members",
        harmless="[a-z0-9+-]*",
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


class Combined:
    """Several drafters on one sequence. Every member is told of every round, whoever drafted it."""

    name = ""

    def __init__(self, members: Sequence[Drafter]) -> None:
        self.members = tuple(members)
        self.exact_q = all(member.exact_q for member in self.members)
        layers = [layer for member in self.members for layer in member.feature_layers]
        self.feature_layers: tuple[Any, ...] = tuple(dict.fromkeys(layers))
        layers = [layer for member in self.members for layer in member.prompt_layers]
        self.prompt_layers: tuple[Any, ...] = tuple(dict.fromkeys(layers))
        self.written = 0
        self._own_contexts = [member for member in self.members if isinstance(member, OwnContext)]

    @property
    def full_context(self) -> int:
        """That of a member that drafts nothing any more because its own context is full; else 0."""
        return max((member.full_context for member in self._own_contexts), default=0)

    def start(
        self, prompt_tokens: Sequence[int], sampling: SamplingParams, on_chunk: OnChunk | None = None
    ) -> None:
        """Give every member the prompt."""
        for member in self.members:
            if isinstance(member, DrawsByPosition):
                member.written = self.written
            member.start(prompt_tokens, sampling, on_chunk)

    def learn_prompt(self, features: Mapping[Any, Array]) -> None:
        """Give the prompt's features to the members that asked for some."""
        for member in self.members:
            if member.prompt_layers:
                member.learn_prompt(features)

    def propose(
        self, context: Sequence[int], budget: int, proceed: Callable[[float], bool] | None = None
    ) -> Draft:
        """Draft up to `budget` tokens."""
        raise NotImplementedError

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

    def propose(
        self, context: Sequence[int], budget: int, proceed: Callable[[float], bool] | None = None
    ) -> Draft:
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


def _each(options: Mapping[str, Value]) -> list[tuple[MethodInfo, dict[str, Value]]]:
    """The members that a combined method's resolved options name, with each one's own options."""
    return [(METHODS[name], options_of(options, name)) for name in members_of(options)]


def longest_default(options: Mapping[str, Value]) -> int:
    """The longest default draft among the members; few tokens where none has one of its own."""
    given = [method.default_k(own) for method, own in _each(options) if method.default_k is not None]
    return max((length for length in given if length is not None), default=4)


def most_rows(options: Mapping[str, Value], k: int) -> int:
    """Most tokens of one pass beyond the first, over the members."""
    return max(k, *(method.pass_rows(own, k) for method, own in _each(options) if method.pass_rows is not None), 0)


def most_branches(options: Mapping[str, Value]) -> int:
    """Most leaves of a draft tree, over the members."""
    return max((method.branches(own) for method, own in _each(options) if method.branches is not None), default=1)


METHOD = MethodInfo(
    "cascade",
    "cascade",
    "Several drafters in order: the first with a proposal drafts.",
    make,
    OPTIONS,
    family="combined",
    combines=True,
    members_among=lambda copying, running: [*copying[:1], *running[:1]],
    default_k=longest_default,
    pass_rows=most_rows,
    branches=most_branches,
    place=1,
)
