"""The methods: one line here, one file beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from specview.decoding.costs import Costs
from specview.decoding.interfaces import Drafter, Engine, Session
from specview.drafting import (
    auto,
    cascade,
    draft_model,
    eagle,
    early_exit,
    last_hidden,
    lookahead,
    medusa,
    mlp_speculator,
    mtp,
    ngram_map,
    ngram_mod,
    ngram_simple,
    p_eagle,
    pard,
    prompt_lookup,
    suffix,
)
from specview.drafting.base import ModelFreeDrafter
from specview.errors import UsageError
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
    from specview.heads.loading import LoadedHead

Family = Literal["baseline", "draft model", "trained head", "n-gram", "self", "combined"]


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

    def member(self, name: str) -> Drafter:
        """Make the drafter of a member of this combined method, with the options given for it."""
        method = METHODS[name]
        assert method.make is not None
        own = options_of(self.options, name)
        return method.make(replace(self, options=own or resolve(method.options, {}, name)))


@dataclass(frozen=True, slots=True)
class MethodInfo:
    """A method as the window and the command line offer it. `make` is None for plain decoding.

    default_k gives the draft length where the user named none; None leaves it to policy and engine. presets
    are named sets of option values: an option called `preset` chooses one. head names the kind of trained head
    (specview.heads.layouts) that the method drafts with; the lane's `draft` then says which, or its option `head`,
    which every such method has without naming it. combines says that the option
    `members` names other methods, whose own options are taken as "member.option". needs_costs asks for a
    calibration of the target's passes. pass_rows gives the most tokens of one pass beyond the first for
    (options, k); branches the most leaves of a draft tree. problem gives the reason why the method
    cannot draft on this target, or None. check raises UsageError where option values do not fit together.
    """

    name: str
    label: str
    description: str
    make: Callable[[DrafterContext], Drafter] | None
    options: tuple[Option, ...] = ()
    needs_draft_model: bool = False
    head: str | None = None
    family: Family = "n-gram"
    default_k: Callable[[Mapping[str, Value]], int | None] | None = None
    presets: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    combines: bool = False
    needs_costs: bool = False
    pass_rows: Callable[[Mapping[str, Value], int], int] | None = None
    branches: Callable[[Mapping[str, Value]], int] | None = None
    problem: Callable[[Engine], str | None] | None = None
    check: Callable[[Mapping[str, Value]], None] | None = None

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


def _each(options: Mapping[str, Value]) -> list[tuple[MethodInfo, dict[str, Value]]]:
    """The members that a combined method's resolved options name, with each one's own options."""
    return [(METHODS[name], options_of(options, name)) for name in members_of(options)]


def _longest_default(options: Mapping[str, Value]) -> int:
    """The longest default draft among the members; few tokens where none has one of its own."""
    given = [method.default_k(own) for method, own in _each(options) if method.default_k is not None]
    return max((length for length in given if length is not None), default=4)


def _most_rows(options: Mapping[str, Value], k: int) -> int:
    """Most tokens of one pass beyond the first, over the members."""
    return max(k, *(method.pass_rows(own, k) for method, own in _each(options) if method.pass_rows is not None), 0)


def _most_branches(options: Mapping[str, Value]) -> int:
    """Most leaves of a draft tree, over the members."""
    return max((method.branches(own) for method, own in _each(options) if method.branches is not None), default=1)


METHODS: dict[str, MethodInfo] = {
    method.name: method
    for method in (
        MethodInfo(
            "plain", "plain", "The target alone, one token a pass: the measured baseline.", None, family="baseline"
        ),
        MethodInfo(
            "draft-model",
            "draft model",
            "A small model drafts; Leviathan 2023, Chen 2023. One with another tokenizer drafts by re-encoding or "
            "over the shared vocabulary.",
            draft_model.make,
            draft_model.OPTIONS,
            needs_draft_model=True,
            family="draft model",
        ),
        MethodInfo(
            "pard",
            "PARD",
            "A small model trained for it drafts all tokens in one pass, through mask tokens (arXiv 2504.18583).",
            pard.make,
            pard.OPTIONS,
            needs_draft_model=True,
            family="draft model",
        ),
        MethodInfo(
            "prompt-lookup",
            "prompt lookup",
            "Copies what followed the same n-gram earlier in the text; no second model (Saxena 2023).",
            prompt_lookup.make,
            prompt_lookup.OPTIONS,
            check=prompt_lookup.check,
        ),
        MethodInfo(
            "ngram-simple",
            "n-gram simple",
            "Copies a long run after the last n-gram of the same n tokens (llama.cpp ngram-simple).",
            ngram_simple.make,
            ngram_simple.OPTIONS,
            presets=ngram_simple.PRESETS,
            default_k=ngram_simple.default_k,
        ),
        MethodInfo(
            "ngram-map-k",
            "n-gram map k",
            "Keeps n-grams that recurred in a hash map, and how much of each one's last draft held "
            "(llama.cpp ngram-map-k).",
            ngram_map.make_k,
            ngram_map.K_OPTIONS,
            presets=ngram_map.PRESETS,
            default_k=ngram_map.default_k,
        ),
        MethodInfo(
            "ngram-map-k4v",
            "n-gram map k4v",
            "Keeps up to four continuations of each n-gram and drafts when one of them dominates "
            "(llama.cpp ngram-map-k4v).",
            ngram_map.make_k4v,
            ngram_map.K4V_OPTIONS,
            presets=ngram_map.PRESETS,
            default_k=ngram_map.default_k,
        ),
        MethodInfo(
            "ngram-mod",
            "n-gram mod",
            "A rolling hash of the last tokens names the next one, in a table of 16 MB; long drafts or none "
            "(llama.cpp ngram-mod).",
            ngram_mod.make,
            ngram_mod.OPTIONS,
            presets=ngram_mod.PRESETS,
            default_k=ngram_mod.default_k,
            check=ngram_mod.check,
        ),
        MethodInfo(
            "suffix",
            "suffix",
            "Suffix trees over this text and earlier runs; the longer the match, the longer the draft "
            "(SuffixDecoding, arXiv 2411.04975).",
            suffix.make,
            suffix.OPTIONS,
            default_k=suffix.default_k,
        ),
        MethodInfo(
            "lookahead",
            "lookahead",
            "Guesses n-grams by Jacobi iteration in the same pass that verifies them; no draft model "
            "(Fu et al. 2024).",
            lookahead.make,
            lookahead.OPTIONS,
            family="self",
            default_k=lookahead.default_k,
            pass_rows=lookahead.pass_rows,
            branches=lookahead.branches,
            problem=lookahead.problem,
        ),
        MethodInfo(
            "early-exit",
            "early exit",
            "The target's own first layers draft, on the cache that verifies (LayerSkip, arXiv 2404.16710).",
            early_exit.make,
            early_exit.OPTIONS,
            family="self",
            problem=early_exit.problem,
        ),
        MethodInfo(
            "medusa",
            "Medusa",
            "Heads on the target's last hidden state guess several tokens ahead, as a chain or a tree (Cai et al. 2024). "
            "Exact with greedy, rejection or match; Medusa's own rule, typical, is lossy.",
            medusa.make,
            medusa.OPTIONS,
            head="medusa",
            family="trained head",
            default_k=medusa.default_k,
            pass_rows=medusa.pass_rows,
            branches=medusa.branches,
            problem=last_hidden.problem,
            check=medusa.check,
        ),
        MethodInfo(
            "mlp-speculator",
            "MLP speculator",
            "A small recurrent network goes on from the target's last hidden state (IBM, arXiv 2404.19124; Arctic).",
            mlp_speculator.make,
            head="mlp-speculator",
            family="trained head",
            problem=last_hidden.problem,
        ),
        MethodInfo(
            "mtp",
            "MTP",
            "The target's own next-token-prediction modules, inside its checkpoint (DeepSeek-V3, GLM-4.5, Qwen3-Next, "
            "MiMo).",
            mtp.make,
            mtp.OPTIONS,
            head="mtp",
            family="trained head",
            problem=last_hidden.problem,
        ),
        MethodInfo(
            "eagle",
            "EAGLE",
            "A one-layer head drafts from the target's last hidden state, a chain or a fixed tree (Li et al. 2024, "
            "arXiv 2401.15077).",
            eagle.make_eagle,
            eagle.EAGLE_OPTIONS,
            head="eagle",
            family="trained head",
            default_k=eagle.default_k,
            pass_rows=eagle.pass_rows,
            branches=eagle.branches,
            problem=last_hidden.problem,
            check=eagle.check,
        ),
        MethodInfo(
            "eagle2",
            "EAGLE-2",
            "EAGLE's heads draft a tree that grows where they are surest (Li et al. 2024, arXiv 2406.16858).",
            eagle.make_eagle2,
            eagle.EAGLE2_OPTIONS,
            head="eagle",
            family="trained head",
            default_k=eagle.default_k,
            presets=eagle.EAGLE2_PRESETS,
            pass_rows=eagle.pass_rows,
            branches=eagle.branches,
            problem=last_hidden.problem,
        ),
        MethodInfo(
            "eagle3",
            "EAGLE-3",
            "A head drafts from hidden states of a low, a middle and a high layer, with a vocabulary of its own; a "
            "chain or a dynamic tree (Li et al. 2025, arXiv 2503.01840).",
            eagle.make_eagle3,
            eagle.EAGLE3_OPTIONS,
            head="eagle3",
            family="trained head",
            default_k=eagle.default_k,
            presets=eagle.EAGLE3_PRESETS,
            pass_rows=eagle.pass_rows,
            branches=eagle.branches,
            problem=last_hidden.problem,
        ),
        MethodInfo(
            "p-eagle",
            "P-EAGLE",
            "An EAGLE-3 head that drafts all its tokens in one pass, through rows with a mask token.",
            p_eagle.make,
            head="p-eagle",
            family="trained head",
            problem=last_hidden.problem,
        ),
        MethodInfo(
            "cascade",
            "cascade",
            "Several drafters in order: the first with a proposal drafts.",
            cascade.make,
            cascade.OPTIONS,
            family="combined",
            combines=True,
            default_k=_longest_default,
            pass_rows=_most_rows,
            branches=_most_branches,
        ),
        MethodInfo(
            "auto",
            "auto",
            "Picks drafter and length for every round from what each has earned on this text so far.",
            auto.make,
            auto.OPTIONS,
            family="combined",
            combines=True,
            needs_costs=True,
            default_k=auto.default_k,
            pass_rows=_most_rows,
            branches=_most_branches,
        ),
    )
}
