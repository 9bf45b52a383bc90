"""`medusa`: heads on the target's last hidden state guess several tokens ahead, each its own place.

Cai et al. 2024 (arXiv 2401.10774). A chain takes one token of each head; a tree takes the likeliest few of each, by
a list of paths (Medusa's `medusa_choices`). The tree's candidates are point masses, so that `greedy` and `rejection`
are exact; Medusa's own rule, `typical`, is not.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specview.decoding.interfaces import Proceed
from specview.decoding.ledger import EMPTY_DRAFT, Array, Draft
from specview.drafting.base import not_finite
from specview.drafting.draft_tree import PATHS_TEXT, FixedTree, fixed_tree, likeliest, read_paths
from specview.drafting.feature_head import LastHidden, problem
from specview.drafting.method import Chain, DrafterContext, MethodInfo
from specview.errors import UsageError
from specview.settings.options import Option, Value

if TYPE_CHECKING:
    from specview.heads.loaded import LoadedHead

_CHILDREN: Mapping[str, Mapping[tuple[int, ...], int]] = {
    # Seven rows with the last token's: on a CPU they cost less than two passes.
    "small": {(): 3, (0,): 2, (0, 0): 1},
    # The tree of Medusa's release for four heads: 63 nodes, 10, 28, 23 and 2 at depths 1 to 4.
    "mc_sim_7b_63": {
        (): 10,
        (0,): 10, (1,): 7, (2,): 3, (3,): 2, (4,): 1, (5,): 1, (6,): 1, (7,): 1, (8,): 1, (9,): 1,
        (0, 0): 10, (0, 1): 3, (0, 2): 2, (0, 3): 1, (0, 4): 1, (0, 5): 1, (0, 6): 1, (0, 7): 1,
        (1, 0): 2, (2, 0): 1,
        (0, 0, 0): 2,
    },
}  # fmt: skip
"""Trees by name: for each node with children how many it has, the likeliest ones."""

_MOST_BYTES = 1 << 16
"""Of a file of paths: those of the largest tree take a few thousand."""

OPTIONS = (
    Option(
        "tree",
        "chain",
        "What is drafted: chain (one token of each head), or fixed (the likeliest few of each, as a tree of a fixed "
        "shape that one pass verifies).",
        choices=("chain", "fixed"),
        label="shape",
    ),
    Option(
        "choices",
        "small",
        "Which fixed tree: small (6 nodes, 3 deep, for a CPU), mc_sim_7b_63 (Medusa's 63 nodes, 4 deep, for a GPU), a "
        "JSON file of paths, or the paths themselves as [[0],[1],[0,0]] or 0 1 0.0 (Medusa: medusa_choices). Place d of "
        "a path is a rank among the likeliest tokens of head d, from 0. Nodes deeper than there are heads are left out.",
        label="places",
        needs=("tree", "fixed"),
        harmless="|".join((*map(re.escape, _CHILDREN), PATHS_TEXT)),
    ),
)


class Medusa(LastHidden):
    """Drafts a chain, or a tree.

    In a chain each token is drawn from its head's own distribution, which is its q; in a tree siblings are
    point masses.
    """

    name = "medusa"
    whose = "Medusa's heads"

    def __init__(self, head: LoadedHead, max_length: int, tree: FixedTree | None = None) -> None:
        super().__init__(head, max_length)
        self._longest = int(head.module.shape.heads)
        if tree is not None:
            self._longest = min(self._longest, tree.levels)
        self._shape = tree

    def propose(self, context: Sequence[int], budget: int, proceed: Proceed | None = None) -> Draft:
        """Draft up to `budget` tokens in a row after `context`; of a tree as many in its longest path."""
        room = self._room(context, budget)
        depth = min(budget, self._longest, room)
        if depth <= 0:
            return EMPTY_DRAFT
        rows = self._logits(depth)
        if self._shape is not None:
            return self._over_target(self._tree(self._shape.cut(depth, room), rows, proceed))
        places = iter(rows)

        def step(token: int | None) -> tuple[Array, Array]:
            row = next(places)
            return row, row

        return self._over_target(self.chain(step, context, depth, proceed))

    def _logits(self, depth: int) -> Any:
        """Logits [depth, ids] of the first heads, of the ids that they give."""
        states = self._head.module(self._hidden, depth)
        logits = self._head.module.logits(states)
        return self._head.project(states[:, 0]) if logits is None else logits[:, 0]

    def _tree(self, tree: FixedTree, rows: Array, proceed: Proceed | None) -> Draft:
        """The tree from the heads' logits [depth, ids]."""
        ids, values = likeliest(rows[: tree.levels], 1 + max(rank for path in tree.paths for rank in path))
        if not all(math.isfinite(best[0]) for best in values):
            raise not_finite(self.whose)
        places: dict[tuple[int, ...], int] = {}
        confidences: list[float] = []
        for level, values_here in enumerate(values, start=1):
            begin = len(places)
            for path in tree.paths:
                value = values_here[path[-1]] if path[-1] < len(values_here) else -math.inf
                # A head may have fewer tokens to say than the tree has places.
                if len(path) == level and value > -math.inf and (level == 1 or path[:-1] in places):
                    places[path] = len(places)
                    confidences.append(math.exp(min(value, 0.0)))
            if len(places) == begin or (proceed is not None and not proceed(max(confidences[begin:]))):
                break
        return Draft(
            tokens=tuple(ids[len(path) - 1][path[-1]] for path in places),
            parents=tuple(places.get(path[:-1], -1) for path in places),
            confidences=tuple(confidences),
            drafter=self.name,
            raw_logits=tuple(rows[len(path) - 1] for path in places),
            siblings="point-mass",
        )


def tree_of(choices: str) -> FixedTree:
    """The tree that the option `choices` names. Raises UsageError where it names none."""
    children = _CHILDREN.get(choices)
    if children is not None:
        return fixed_tree([(*path, rank) for path, count in children.items() for rank in range(count)])
    text = choices.strip()
    if text and text[0] in "[0123456789":
        return read_paths(text)
    try:
        file = Path(os.path.expanduser(text))
        small = file.is_file() and file.stat().st_size <= _MOST_BYTES
        paths = file.read_text(encoding="utf-8") if small else None
    except (OSError, ValueError, RuntimeError):
        paths = None
    if paths is None:
        raise UsageError(
            f"medusa's tree {choices[:200]!r} is no known one, and no file of paths that can be read.",
            f"Use {', '.join(_CHILDREN)}, a JSON file of paths, or the paths themselves: 0 1 0.0.",
        )
    return read_paths(paths, str(file))


def shape_of(options: Mapping[str, Value]) -> FixedTree | Chain:
    """The tree that the options ask for, else a chain: of two tokens, as the third head is seldom right.

    Raises UsageError where a tree is asked for and `choices` names none.
    """
    return tree_of(str(options["choices"])) if options["tree"] == "fixed" else Chain(2)


def make(context: DrafterContext) -> Medusa:
    """Make the drafter; raises SpecviewError where the lane has no heads."""
    head = context.head(Medusa.name, "trained heads", "Name their folder with --draft.")
    shape = shape_of(context.options)
    return Medusa(head, context.max_length, None if isinstance(shape, Chain) else shape)


METHOD = MethodInfo(
    "medusa",
    "Medusa",
    "Heads on the target's last hidden state guess several tokens ahead, as a chain or a tree (Cai et al. 2024). "
    "Exact with greedy, rejection or match; Medusa's own rule, typical, is lossy.",
    make,
    OPTIONS,
    head="medusa",
    family="trained head",
    shape=shape_of,
    published_tree={"choices": "mc_sim_7b_63"},
    problem=problem,
    check=shape_of,
    place=1,
)
