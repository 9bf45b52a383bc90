"""Draft trees: EAGLE-2's dynamic one, and trees whose shape is fixed beforehand.

A dynamic tree (Li et al. 2024, arXiv 2406.16858) grows where the head is surest, by the values of the tokens
in it, so its tokens must be point masses. A fixed one (Medusa's choices, Cai et al. 2024, arXiv 2401.10774)
has its shape whatever the tokens are, so its siblings may also be drawn from the head's own distribution.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from array_api_compat import array_namespace, is_torch_array

from specview.decoding.ledger import Array
from specview.decoding.sampling import SamplingParams, draw, probabilities, softmax, top_entries, uniform
from specview.drafting.base import not_finite
from specview.errors import UsageError
from specview.settings.options import Option

MOST_NODES = 255
"""Drafted tokens of one tree: llama.cpp verifies trees of up to 256 leaves."""
DEEPEST = 64

Level = Callable[[Sequence[int], Sequence[int]], Array]
"""Feeds drafted tokens, each after an earlier row of the draft (-1: the context's last), and gives the logits
[n, vocab] of what follows each. Rows are numbered as they are fed."""

Proceed = Callable[[float], bool]

PATHS_TEXT = r"[\[\]0-9., \n]*"
"""A regular expression of paths as they are written out."""
PATHS = Option(
    "paths",
    "",
    'Places of a fixed tree, as lists of ranks: [[0],[1],[0,0]], or 0 1 0.0, are the likeliest two tokens and the likeliest one '
    "after the first of them (Medusa: medusa_choices; EAGLE-1: tree_choices). Empty is a small tree.",
    label="places",
    needs=("tree", "fixed"),
    harmless=PATHS_TEXT,
)
SIBLINGS = Option(
    "siblings",
    "top",
    "Above temperature 0, what the children of one token are: top (the likeliest, judged as sure tokens) or sampled "
    "(drawn without replacement from the head's own distribution, in a tree of a fixed shape). Both are exact.",
    choices=("top", "sampled"),
    label="siblings",
)


@dataclass(slots=True)
class Drawn:
    """A tree as it was drafted, in the head's own vocabulary.

    parents are indices, -1 for the context's last token. confidences are the head's own probabilities; made_by
    gives per token the logit row that it was chosen from, q the distribution it was drawn from (None: a point
    mass).
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    made_by: list[Array] = field(default_factory=list)
    q: list[Array | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """Whether every token follows the one before it."""
        return self.parents == list(range(-1, len(self.parents) - 1))

    def add(self, token: int, parent: int, confidence: float, made_by: Array, q: Array | None = None) -> int:
        """Add a token; return its index."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.confidences.append(confidence)
        self.made_by.append(made_by)
        self.q.append(q)
        return len(self.tokens) - 1


def likeliest(rows: Array, count: int) -> tuple[list[list[int]], list[list[float]]]:
    """The `count` likeliest ids of each row of logits [n, vocab], in descending order, and their log probabilities."""
    count = min(count, rows.shape[-1])
    if is_torch_array(rows):
        rows = rows.float() if rows.element_size() < 4 else rows
        found = rows.topk(count, dim=-1)
        values = found.values - rows.logsumexp(-1, keepdim=True)
        return found.indices.tolist(), values.tolist()
    xp = array_namespace(rows)
    top = xp.max(rows, axis=-1, keepdims=True)
    total = (top + xp.log(xp.sum(xp.exp(rows - top), axis=-1, keepdims=True)))[:, 0].tolist()
    ids, values = [], []
    for row, whole in zip(rows, total, strict=True):
        at, logits = top_entries(row, count)
        ids.append(at)
        values.append([logit - whole for logit in logits])
    return ids, values


# -- the dynamic tree ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Growth:
    """The limits of a dynamic tree: levels is its longest path, width the children looked at, most its tokens.

    EAGLE-2 calls width top_k; its depth is levels - 1 and its total_token most + 1.
    """

    levels: int
    width: int
    most: int

    @property
    def rows(self) -> int:
        """Most tokens of the tree, of those that it is chosen from."""
        return min(self.most, self.width + max(0, self.levels - 1) * self.width**2)

    def rows_at(self, k: int) -> int:
        """Most tokens of the tree where its paths have at most k."""
        return replace(self, levels=min(self.levels, k)).rows

    @property
    def leaves(self) -> int:
        """Most leaves of the tree: a token has at most `width` children."""
        beyond = max(0, self.rows - self.width)
        return max(1, self.rows - -(-beyond // self.width))


def grow(first: Array, level: Level, limits: Growth, whose: str, proceed: Proceed | None = None) -> Drawn:
    """Draft EAGLE-2's tree from the logits [vocab] of what follows the context.

    Of each level the `width` tokens of the likeliest paths are fed, and each gets `width` children; of all
    these, the `most` of the likeliest paths are drafted. `proceed` is asked after each level with the head's
    probability of that level's likeliest path's token. Raises SpecviewError where logits are not finite.
    """
    drawn, paths = Drawn(), [0.0]  # log probability of the path to each token; the context's last
    frontier, rows, fed = [-1], first[None], {-1: -1}
    for depth in range(limits.levels):
        ids, values = likeliest(rows, limits.width)
        new: list[int] = []
        for at, parent in enumerate(frontier):
            if not math.isfinite(values[at][0]):
                raise not_finite(whose)
            for token, value in zip(ids[at], values[at], strict=True):
                if value == -math.inf:
                    break  # the head has fewer tokens to say
                value = min(value, 0.0)
                new.append(drawn.add(token, parent, math.exp(value), rows[at]))
                paths.append(paths[parent + 1] + value)
        frontier = sorted(new, key=lambda node: (-paths[node + 1], node))[: limits.width]
        going_on = proceed is None or proceed(drawn.confidences[frontier[0]])
        if not going_on or depth == limits.levels - 1:
            break
        rows = level([drawn.tokens[node] for node in frontier], [fed[drawn.parents[node]] for node in frontier])
        for node in frontier:
            fed[node] = len(fed) - 1
    # A path is never likelier than its beginning, and the earlier token wins a tie: ancestors come along.
    best = sorted(range(len(drawn)), key=lambda node: (-paths[node + 1], node))[: limits.most]
    kept, places = Drawn(), {-1: -1}
    for node in sorted(best):
        places[node] = kept.add(
            drawn.tokens[node], places[drawn.parents[node]], drawn.confidences[node], drawn.made_by[node], drawn.q[node]
        )
    return kept


# -- fixed trees ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FixedTree:
    """A tree's shape: every place is a path of ranks from the root, its beginnings among them.

    paths are in order of depth, then of ranks.
    """

    paths: tuple[tuple[int, ...], ...]

    @property
    def levels(self) -> int:
        """The longest path."""
        return len(self.paths[-1]) if self.paths else 0

    @property
    def leaves(self) -> int:
        """Places that nothing follows."""
        return len(self.paths) - len({path[:-1] for path in self.paths} - {()})

    def rows_at(self, k: int) -> int:
        """Places on paths of at most k tokens."""
        return sum(len(path) <= k for path in self.paths)

    def cut(self, levels: int, most: int) -> FixedTree:
        """The part with paths of at most `levels` tokens, and at most `most` places: the first ones."""
        if levels >= self.levels and most >= len(self.paths):
            return self
        return FixedTree(tuple(path for path in self.paths if len(path) <= levels)[:most])

    def children(self) -> dict[tuple[int, ...], list[int]]:
        """Per place (() is the root) the ranks of its children."""
        found: dict[tuple[int, ...], list[int]] = {}
        for path in self.paths:
            found.setdefault(path[:-1], []).append(path[-1])
        return found


def fixed_tree(paths: Sequence[Sequence[int]]) -> FixedTree:
    """The tree with these places, and those that lie on the way to them."""
    closed = {tuple(path[: end + 1]) for path in paths for end in range(len(path))}
    return FixedTree(tuple(sorted(closed, key=lambda path: (len(path), path))))


RANKS = (0.45, 0.15, 0.08, 0.05)
"""Chance that the token of each rank is the target's, of a middling head; further ranks halve it."""


@lru_cache(maxsize=64)
def spread_tree(levels: int, width: int, most: int) -> FixedTree:
    """The tree of `most` places that accepts most tokens where the chance of a token depends on its rank alone."""
    chances = [*RANKS[:width]]
    while len(chances) < width:
        chances.append(chances[-1] / 2)
    chosen: list[tuple[int, ...]] = []
    open_: list[tuple[float, int, tuple[int, ...]]] = [(-1.0, 0, ())]
    while open_ and len(chosen) <= most:
        chance, _, path = best = min(open_)
        open_.remove(best)
        chosen.append(path)
        if len(path) < levels:
            open_ += [(chance * one, len(path) + 1, (*path, rank)) for rank, one in enumerate(chances)]
    return fixed_tree(chosen[1:])


@lru_cache(maxsize=64)
def read_paths(text: str, source: str = "") -> FixedTree:
    """Read a fixed tree from a list of paths, as JSON or as 0 1 0.0.

    source names the file that the text is from, which is not quoted then. Raises UsageError where it is none, or a
    larger tree than a pass may verify.
    """
    text = text.strip()
    dotted = [path.split(".") for path in text.split()]
    try:
        if all(rank.isascii() and rank.isdecimal() for path in dotted for rank in path):
            paths: Any = [[int(rank) for rank in path] for path in dotted]
        else:
            paths = json.loads(text)
        fits = isinstance(paths, list) and bool(paths)
        fits = fits and all(
            isinstance(path, list) and path and all(type(rank) is int and 0 <= rank < 1000 for rank in path)
            for path in paths
        )
    except (ValueError, RecursionError):
        fits = False
    if not fits:
        raise UsageError(
            f"{source} holds no paths of a tree." if source else f"{text[:60]!r} are no paths of a tree.",
            "Write a list of lists of ranks from 0 on, such as [[0],[1],[0,0]] or 0 1 0.0.",
        )
    tree = fixed_tree(paths)
    if len(tree.paths) > MOST_NODES or tree.levels > DEEPEST:
        raise UsageError(
            f"a draft tree of {len(tree.paths)} tokens and {tree.levels} levels is too large.",
            f"Use up to {MOST_NODES} tokens on paths of up to {DEEPEST}.",
        )
    return tree


def fill(
    tree: FixedTree,
    first: Array,
    level: Level,
    whose: str,
    sampling: SamplingParams | None = None,
    position: int = 0,
    proceed: Proceed | None = None,
) -> Drawn:
    """Draft a tree of a fixed shape from the logits [vocab] of what follows the context.

    Children are the tokens of their ranks; with `sampling` they are drawn without replacement, by the stream of
    the round that begins at the output position `position`, and have q. A child that the head has no token for is
    left out. `proceed` is asked after each level with the highest probability in it. Raises
    SpecviewError where logits are not finite.
    """
    drawn = Drawn()
    below = tree.children()
    places: list[tuple[tuple[int, ...], int]] = [((), -1)]  # places with children, and their tokens
    fed, rows = {-1: -1}, first[None]
    for depth in range(tree.levels):
        if depth:
            rows = level(
                [drawn.tokens[node] for _, node in places], [fed[drawn.parents[node]] for _, node in places]
            )
            for _, node in places:
                fed[node] = len(fed) - 1
        following: list[tuple[tuple[int, ...], int]] = []
        begin = len(drawn)
        ranked = [below[path] for path, _ in places]
        if sampling is None:
            ids, values = likeliest(rows, max(map(max, ranked)) + 1)
        for at, (path, node) in enumerate(places):
            if sampling is None:
                if not math.isfinite(values[at][0]):
                    raise not_finite(whose)
                found: list[Any] = [
                    (rank, ids[at][rank], math.exp(min(values[at][rank], 0.0)), None)
                    for rank in ranked[at]
                    if rank < len(ids[at]) and values[at][rank] > -math.inf
                ]
            else:
                found = _draw_children(rows[at], ranked[at], whose, sampling, position, len(drawn))
            for rank, token, confidence, q in found:
                child = drawn.add(token, node, confidence, rows[at], q)
                if (*path, rank) in below:
                    following.append(((*path, rank), child))
        places = following
        if not places or (proceed is not None and not proceed(max(drawn.confidences[begin:]))):
            break
    return drawn


def _draw_children(
    row: Array, ranks: Sequence[int], whose: str, sampling: SamplingParams, position: int, before: int
) -> list[tuple[int, int, float, Array]]:
    """(rank, token, the head's own probability, q [vocab]) of children drawn without replacement from one row of logits.

    position is where the round begins, before the number of its draws so far.
    """
    try:
        q = probabilities(row, sampling)
    except ValueError:
        raise not_finite(whose) from None
    left = array_namespace(q).asarray(q, copy=True)
    own = softmax(row)
    found = []
    for number, rank in enumerate(ranks):
        if number and not float(array_namespace(left).sum(left)) > 0:
            break
        token = draw(left, uniform(sampling.seed, position, "draft", before + number))
        found.append((rank, token, float(own[token]), q))
        left[token] = 0.0
    return found
