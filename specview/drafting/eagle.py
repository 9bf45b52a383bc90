"""`eagle`, `eagle2`, `eagle3`, `p-eagle`: a small head drafts from the target's own hidden states.

EAGLE (Li et al. 2024, arXiv 2401.15077) drafts a chain or a fixed tree from the last hidden state; EAGLE-2
(2406.16858) the tree that its confidence asks for, with the same heads; EAGLE-3 (2503.01840) fuses hidden
states of a low, a middle and a high layer and has an output vocabulary of its own.

`p-eagle` (P-EAGLE, as in `speculators` and vLLM) drafts all tokens in one pass: behind the context's last row come rows
with a mask token and a learned vector in the features' place, one for every further token. What a pass costs hardly
depends on k, and later tokens are drafted without knowing the earlier ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from specview.decoding.interfaces import OnChunk, Proceed
from specview.decoding.ledger import EMPTY_DRAFT, Array, Draft, Round
from specview.drafting.draft_tree import (
    DEEPEST,
    MOST_NODES,
    PATHS,
    SIBLINGS,
    Drawn,
    FixedTree,
    Growth,
    fill,
    grow,
    read_paths,
    spread_tree,
)
from specview.drafting.feature_head import LAST, HeadDrafter, LazyRows, accepted_rows, problem
from specview.drafting.method import Chain, DrafterContext, MethodInfo
from specview.errors import SpecviewError, UsageError
from specview.settings.options import WEIGHTS, Option, Value

if TYPE_CHECKING:
    from specview.heads.loaded import LoadedHead
    from specview.heads.running import HeadRun

MOST_WAITING = 64
"""Rows of the context that wait for the next draft; more are fed as they come."""

_CPU: Mapping[str, Value] = {"depth": 2, "top_k": 3, "total_tokens": 6}
_GPU: Mapping[str, Value] = {"depth": 5, "top_k": 10, "total_tokens": 60}

_LIMITS = (
    Option(
        "depth",
        _CPU["depth"],
        "How often the tree grows after its first tokens: its longest path is depth + 1, or k if that is less "
        "(EAGLE: depth, 5 in the paper's release, 7 in its code now).",
        0,
        DEEPEST - 1,
        label="depth",
        needs=("tree", "dynamic"),
    ),
    Option(
        "top_k",
        _CPU["top_k"],
        "Tokens that are fed in each growth, and the children that each of them gets (EAGLE: top_k, 10).",
        1,
        64,
        label="children",
        needs=("tree", "dynamic"),
    ),
    Option(
        "total_tokens",
        _CPU["total_tokens"],
        "Rows of a pass, the context's last token among them: the tokens of the likeliest paths are verified "
        "(EAGLE: total_token, 59 or 60). Rows are dear on a CPU.",
        2,
        MOST_NODES + 1,
        label="tokens of a pass",
        needs=("tree", "dynamic"),
    ),
)


def _preset(choices: str) -> Option:
    return Option("preset", "cpu", choices, choices=("cpu", "gpu"), label="preset")


EAGLE_OPTIONS = (
    Option(
        "tree",
        "chain",
        "What is drafted: chain, or fixed (a tree of the places given; EAGLE-1's own, with tree_choices).",
        choices=("chain", "fixed"),
        label="shape",
    ),
    PATHS,
    SIBLINGS,
)
EAGLE2_OPTIONS = (
    _preset("cpu: a small tree, as rows of a pass are dear there; gpu: EAGLE-2's own limits."),
    *_LIMITS,
    SIBLINGS,
)
EAGLE3_OPTIONS = (
    _preset("cpu: a chain, as rows of a pass are dear there; gpu: a dynamic tree with EAGLE's own limits."),
    Option(
        "tree",
        "chain",
        "What is drafted: chain, or dynamic (EAGLE-2's tree, which grows where the head is surest).",
        choices=("chain", "dynamic"),
        label="shape",
    ),
    *_LIMITS,
    SIBLINGS,
)

Shape = Growth | FixedTree | Chain
"""A dynamic tree's limits, a fixed tree, or a chain, whose length is the engine's to say."""

SMALL_TREE = spread_tree(3, 3, 7)
"""The fixed tree where the user gave no places."""


def shape_of(options: Mapping[str, Value]) -> Shape:
    """What the options ask to draft. Raises UsageError where they name a tree that cannot be."""
    if "depth" in options:
        if options.get("tree") == "chain":
            return Chain()
        most = int(options["total_tokens"]) - 1
        return Growth(int(options["depth"]) + 1, int(options["top_k"]), most)
    if options["tree"] == "chain":
        return Chain()
    text = str(options[PATHS.name])
    return read_paths(text) if text else SMALL_TREE


class Eagle(HeadDrafter):
    """Drafts a chain or a tree with the head's own steps, or a chain in one pass.

    Of a chain, q is exactly the distribution that each token was sampled from. A tree's tokens are point
    masses, or drawn without replacement where `sampled` says so: then a dynamic tree's limits make a fixed one.
    feature_layers are what the head reads: features of the prompt come chunk by chunk, those of a round with its
    outcome, whoever drafted it. Rows of the context that are new since the last draft are fed with that draft's first
    step. A drafter that lacks the features of some position, because the target's session gave none, drafts nothing.
    """

    def __init__(
        self, name: str, head: LoadedHead, max_length: int, shape: Shape, *,
        sampled: bool = False, parallel: bool = False, weights: str = "auto",
    ) -> None:  # fmt: skip
        super().__init__(head, max_length)
        self.name, self.whose = name, f"the {name} head"
        self.feature_layers = self.prompt_layers = tuple(head.facts.aux_layers or (LAST,))
        self.shape = shape
        self._sampled, self._parallel, self._weights = sampled, parallel, weights
        self._tokens: list[int] = []  # the context
        self._run: HeadRun | None = None

    def begin(self, prompt: Sequence[int], on_chunk: OnChunk | None) -> None:
        """Begin a run with an empty cache; the prompt's features come later."""
        from specview.heads.running import HeadRun

        self._tokens = list(prompt)
        self._run = HeadRun(self._head, self.feature_layers, self._weights)

    def learn_prompt(self, features: Mapping[Any, Array]) -> None:
        """Feed the head the prompt's next tokens; the last row waits for the first draft."""
        run = self._run
        assert run is not None
        if all(layer in features for layer in self.feature_layers):
            run.add(features)
            run.feed(self._tokens, min(run.known, len(self._tokens) - 1) - 1)

    def propose(self, context: Sequence[int], budget: int, proceed: Proceed | None = None) -> Draft:
        """Draft after `context`: paths of up to `budget` tokens."""
        run, end = self._run, len(context) - 1
        room = self._max_length - len(context)  # of the pass; the last token has its place already
        if run is None or budget <= 0 or room <= 0 or end < 1 or run.known < end:
            return EMPTY_DRAFT
        draft = self._draft(run, context, budget, room, proceed)
        if not self.watched or not run.behind:
            return draft
        rows = cache(run.rows_behind)
        return replace(draft, caught_up=LazyRows(range(run.behind), lambda place: rows()[place]))

    def observe(self, round_: Round, features: Mapping[Any, Array]) -> None:
        """Take the features of the context's last token and of the tokens accepted after it."""
        run, emitted = self._run, round_.emitted
        if run is None:
            return
        if run.known == len(self._tokens) - 1 and all(layer in features for layer in self.feature_layers):
            # After an accepted end of text there is no final token, and the last position leads nowhere.
            run.add(features, accepted_rows(round_)[: len(emitted)])
        self._tokens += emitted
        if run.known - run.length > MOST_WAITING:
            run.feed(self._tokens, run.known - 1)

    def close(self) -> None:
        """Free the head's cache; the head itself is shared."""
        self._run = None

    def _draft(
        self, run: HeadRun, context: Sequence[int], budget: int, room: int, proceed: Proceed | None
    ) -> Draft:
        """Draft paths of up to `budget` tokens, at most `room` tokens in all; the features are there."""
        end, shape = len(context) - 1, self.shape
        if isinstance(shape, Chain):
            budget = min(budget, room)
            # No token of one pass depends on another one, which the acceptance rule does not ask for.
            rows = iter(run.parallel(context, end, budget)) if self._parallel else None
            if rows is None:
                run.feed(context, end)

            def step(token: int | None) -> tuple[Array, Array]:
                if rows is not None:
                    row = next(rows)
                else:
                    row = run.first() if token is None else run.step(self.target_id(token))
                return row, row

            return self._over_target(self.chain(step, context, budget, proceed))
        run.feed(context, end)

        paths: list[list[int]] = []  # of the tokens fed, in order

        def level(tokens: Sequence[int], parents: Sequence[int]) -> Array:
            below = [[*(paths[parent] if parent >= 0 else ()), token] for token, parent in zip(tokens, parents, strict=True)]
            paths.extend(below)
            return self.penalised(run.level([self.target_id(token) for token in tokens], parents), context, below)

        first = self.penalised(run.first()[None], context, [[]])[0]
        sampling = self._sampling if self._sampled and not self._sampling.greedy else None
        if isinstance(shape, Growth):
            limits = Growth(min(shape.levels, budget), shape.width, min(shape.most, room))
            if sampling is None:
                return self._drawn(grow(first, level, limits, self.whose, proceed))
            shape = spread_tree(limits.levels, limits.width, limits.rows)
        tree = shape.cut(budget, room)
        return self._drawn(fill(tree, first, level, self.whose, sampling, self.position(context), proceed))

    def _drawn(self, drawn: Drawn) -> Draft:
        """A tree in the target's vocabulary."""
        point_masses = all(q is None for q in drawn.q)
        return self._over_target(
            Draft(
                tokens=tuple(drawn.tokens),
                parents=None if drawn.is_chain else tuple(drawn.parents),
                q=None if point_masses else drawn.q,
                confidences=tuple(drawn.confidences),
                drafter=self.name,
                raw_logits=drawn.made_by,
                siblings="point-mass" if point_masses else "without-replacement",
            )
        )


def head_of(context: DrafterContext, method: str) -> LoadedHead:
    """The loaded head of a method that reads features of some layers.

    Raises SpecviewError where there is none, or where it cannot draft for the target.
    """
    head = context.head(method, "a trained head", "Name one with --draft or the option head: a folder or a hub id.")
    facts, target = head.facts, context.target
    needed = max((layer for layer in facts.aux_layers if isinstance(layer, int)), default=0)
    if target is not None and not (
        target.hidden_size == facts.hidden_size and needed <= target.layers
    ):
        raise SpecviewError(
            f"the head {facts.folder.name} reads features of {facts.hidden_size} numbers after {needed} layers; "
            f"{target.model_name} has {target.hidden_size}, and {target.layers} layers.",
            "Choose a head that was trained for this target.",
        )
    ids = getattr(head.module, "target_ids", None)
    if ids is not None and int(ids.max()) >= context.vocab_size:
        raise SpecviewError(
            f"the head {facts.folder.name} drafts token {int(ids.max())}, and the target has {context.vocab_size}.",
            "Choose a head that was trained for this target.",
        )
    return head


def weights_of(context: DrafterContext, head: LoadedHead) -> str:
    """What the option `weights` says; raises UsageError where it asks for 8-bit ones and the head's device has none."""
    from specview.heads.fast import takes_int8

    asked = str(context.options.get(WEIGHTS.name, WEIGHTS.default))
    if asked == "int8" and not takes_int8(head.device, head.dtype):
        here = "this one is not quick at them" if head.device.type == "cpu" else f"the head runs on {head.device}"
        raise UsageError(
            f"weights is int8, which takes a CPU that is quick at 8-bit weights, and {here}.", "Use auto or stored."
        )
    return asked


def make(method: str, parallel: bool, context: DrafterContext) -> Eagle:
    """Make the drafter of one of the methods; raises SpecviewError where it has no head that fits."""
    head, options = head_of(context, method), context.options
    shape = Chain() if parallel else shape_of(options)
    sampled = options.get(SIBLINGS.name) == "sampled"
    return Eagle(
        method, head, context.max_length, shape, sampled=sampled, parallel=parallel, weights=weights_of(context, head)
    )


def _method(name: str, label: str, description: str, options: tuple[Option, ...], place: int, **more: Any) -> MethodInfo:
    parallel = bool(more.get("one_pass"))
    common = {"head": name, "family": "trained head", "shape": None if parallel else shape_of, "problem": problem, "place": place}
    return MethodInfo(name, label, description, partial(make, name, parallel), options, **{**common, **more})


EAGLE = _method(
    "eagle",
    "EAGLE",
    "A one-layer head drafts from the target's last hidden state, a chain or a fixed tree (Li et al. 2024, "
    "arXiv 2401.15077).",
    EAGLE_OPTIONS,
    place=4,
    check=shape_of,
)

EAGLE2 = _method(
    "eagle2",
    "EAGLE-2",
    "EAGLE's heads draft a tree that grows where they are surest (Li et al. 2024, arXiv 2406.16858).",
    EAGLE2_OPTIONS,
    place=5,
    head="eagle",
    presets={"cpu": _CPU, "gpu": _GPU},
    always_tree=True,
)

EAGLE3 = _method(
    "eagle3",
    "EAGLE-3",
    "A head drafts from hidden states of a low, a middle and a high layer, with a vocabulary of its own; a "
    "chain or a dynamic tree (Li et al. 2025, arXiv 2503.01840).",
    EAGLE3_OPTIONS,
    place=6,
    presets={"cpu": {"tree": "chain", **_CPU}, "gpu": {"tree": "dynamic", **_GPU}},
)

P_EAGLE = _method(
    "p-eagle",
    "P-EAGLE",
    "An EAGLE-3 head that drafts all its tokens in one pass, through rows with a mask token.",
    (),
    place=7,
    one_pass=True,
)
