"""`eagle`, `eagle2`, `eagle3`: a small head drafts from the target's own hidden states.

EAGLE (Li et al. 2024, arXiv 2401.15077) drafts a chain or a fixed tree from the last hidden state; EAGLE-2
(2406.16858) the tree that its confidence asks for, with the same heads; EAGLE-3 (2503.01840) fuses hidden
states of a low, a middle and a high layer and has an output vocabulary of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from specview.decoding.interfaces import Proceed
from specview.decoding.ledger import Array, Draft
from specview.drafting.draft_tree import (
    DEEPEST,
    MOST_NODES,
    PATHS,
    SIBLINGS,
    FixedTree,
    Growth,
    fill,
    grow,
    read_paths,
    spread_tree,
)
from specview.drafting.feature_head import FeatureDrafter, head_of, problem, weights_of
from specview.drafting.method import Chain, DrafterContext, MethodInfo
from specview.settings.options import Option, Value

if TYPE_CHECKING:
    from specview.heads.loaded import LoadedHead
    from specview.heads.running import HeadRun

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


class Eagle(FeatureDrafter):
    """Drafts a chain or a tree with the head's own steps.

    Of a chain, q is exactly the distribution that each token was sampled from. A tree's tokens are point
    masses, or drawn without replacement where `sampled` says so: then a dynamic tree's limits make a fixed one.
    """

    def __init__(
        self, name: str, head: LoadedHead, layers: Sequence[Any], max_length: int, shape: Shape, sampled: bool,
        weights: str = "auto",
    ) -> None:  # fmt: skip
        super().__init__(name, head, layers, max_length, weights)
        self.shape = shape
        self._sampled = sampled

    def _draft(
        self, run: HeadRun, context: Sequence[int], budget: int, room: int, proceed: Proceed | None
    ) -> Draft:
        run.feed(context, len(context) - 1)
        shape = self.shape
        if isinstance(shape, Chain):

            def step(token: int | None) -> tuple[Array, Array]:
                row = run.first() if token is None else run.step(self._target_id(token))
                return row, row

            return self._over_target(self.chain(step, context, min(budget, room), proceed))

        def level(tokens: Sequence[int], parents: Sequence[int]) -> Array:
            return run.level([self._target_id(token) for token in tokens], parents)

        sampling = self._sampling if self._sampled and not self._sampling.greedy else None
        if isinstance(shape, Growth):
            limits = Growth(min(shape.levels, budget), shape.width, min(shape.most, room))
            if sampling is None:
                return self._drawn(grow(run.first(), level, limits, self.whose, proceed))
            shape = spread_tree(limits.levels, limits.width, limits.rows)
        tree = shape.cut(budget, room)
        return self._drawn(fill(tree, run.first(), level, self.whose, sampling, self.position(context), proceed))


def make(method: str, context: DrafterContext) -> Eagle:
    """Make the drafter of one of the methods; raises SpecviewError where it has no head that fits."""
    head = head_of(context, method)
    layers = head.facts.aux_layers or ("last",)
    sampled = context.options[SIBLINGS.name] == "sampled"
    return Eagle(method, head, layers, context.max_length, shape_of(context.options), sampled, weights_of(context, head))


def _method(name: str, label: str, description: str, options: tuple[Option, ...], place: int, **more: Any) -> MethodInfo:
    more = {"head": name, **more}
    return MethodInfo(
        name, label, description, partial(make, name), options, family="trained head", shape=shape_of, problem=problem, place=place, **more
    )


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
