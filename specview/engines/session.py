"""What the sessions of both engines do alike: lengths, chunks of a prefill, what may follow a tree, check mode's trees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specview.decoding.interfaces import Forward, OnChunk, OnFeatures
from specview.engines.tree import Tree, read_tree, shared_length
from specview.errors import SpecviewError

Rows = tuple[Any, dict[Any, Any]]
"""Logits [n, vocab], and features by layer, [n, hidden] each."""


def require_features(features: Sequence[Any], layers: int, problem: str | None) -> None:
    """Raise SpecviewError unless all are "last" or a number from 0 to `layers`, and there is no `problem`."""
    for feature in features:
        number = isinstance(feature, int) and not isinstance(feature, bool)
        if feature != "last" and not (number and 0 <= feature <= layers):
            raise SpecviewError(
                f"There are no features {feature!r} of this model.",
                f"Its features are 0 to {layers} (after so many layers) and 'last' (after the final norm).",
            )
    if features and problem is not None:
        raise SpecviewError(f"This model gives no features: {problem}.", "Choose another drafting method.")


def require_context(
    engine: Any, length: int, mend: str = "Use a shorter prompt or fewer tokens.", kind: type[SpecviewError] = SpecviewError
) -> None:
    """Raise SpecviewError where `length` tokens are more than a model's context."""
    if length > engine.context_length:
        cause = f"{length:,} tokens do not fit the context of {engine.model_name} ({engine.context_length:,})."
        raise kind(cause, mend)


@dataclass(frozen=True, slots=True)
class Fed:
    """The last forward: the length before it, its tokens and its tree (None: a chain).

    in_place is the branch whose keys and values follow one another in the cache, where check mode ran the tree as
    chains; None where all tokens are there in order.
    """

    start: int
    tokens: tuple[int, ...]
    tree: Tree | None
    in_place: tuple[int, ...] | None = None

    def require_path(self, path: Sequence[int]) -> tuple[int, ...]:
        """Return the path as a tuple; raises ValueError where it is none from the root."""
        parents = self.tree.parents if self.tree is not None else range(-1, len(self.tokens) - 1)
        at = -1
        for index in path:
            if not 0 <= index < len(self.tokens) or parents[index] != at:
                raise ValueError(f"{list(path)} is no path from the root of the last pass")
            at = index
        return tuple(path)


class SequenceSession:
    """One sequence with a cache of its own, for up to max_length tokens (interfaces.Session).

    A subclass feeds chains and whole trees, and rolls its cache back. In check mode a tree is computed as chains, branch
    after branch, rolled back between: each token's logits are bit for bit those of a chain of its path, and `keep` leaves
    the cache as that chain does.
    """

    _join: Callable[[Sequence[Any]], Any]
    """Rows of several passes as one array."""

    def __init__(self, max_length: int, check_mode: bool) -> None:
        self.length = 0
        self.max_length = max_length
        self._check_mode = check_mode
        self._fed: Fed | None = None

    # -- what a subclass says ------------------------------------------------------------------------------

    def _need_open(self) -> None:
        """Raise ValueError where the session is closed."""
        raise NotImplementedError

    def _prepare(self, features: Sequence[Any]) -> int:
        """See that these features can be given, raise SpecviewError where not; return how many tokens a prefill feeds at once."""
        raise NotImplementedError

    def _feed(self, tokens: Sequence[int], features: Sequence[Any]) -> Mapping[Any, Any]:
        """Feed a chunk of a prefill, without logits; return its features."""
        raise NotImplementedError

    def _chain(self, tokens: Sequence[int], features: Sequence[Any]) -> Rows:
        """Feed a chain after the cache's end; length grows by it."""
        raise NotImplementedError

    def _whole_tree(self, tokens: Sequence[int], tree: Tree, features: Sequence[Any]) -> Rows:
        """Feed a tree after the cache's end in one pass; length stays."""
        raise NotImplementedError

    def _require_tree(self, tree: Tree) -> None:
        """Raise SpecviewError where this session cannot take a tree."""

    def _cut(self, length: int) -> None:
        """Roll the cache back to its first `length` tokens, and set the length."""
        raise NotImplementedError

    def _keep(self, fed: Fed, path: tuple[int, ...]) -> None:
        """Keep a path of the last pass, all of whose tokens are in the cache, and set the length."""
        raise NotImplementedError

    def _feed_again(self, tokens: Sequence[int]) -> None:
        """Feed a chain as check mode does, for its keys and values alone."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait for the device, so that a clock read after it is true."""
        raise NotImplementedError

    # -- interfaces.Session --------------------------------------------------------------------------------

    def prefill(
        self,
        tokens: Sequence[int],
        on_chunk: OnChunk | None = None,
        features: Sequence[Any] = (),
        on_features: OnFeatures | None = None,
    ) -> None:
        """Feed tokens without logits, in chunks; when a callback raises, what was fed stays.

        on_features gets each chunk's features by layer, float [tokens, hidden], before on_chunk is called.
        """
        self._need_room(len(tokens))
        width = self._prepare(features)
        self._fed = None
        total = len(tokens)
        for begin in range(0, total, width):
            chunk = tokens[begin : begin + width]
            found = self._feed(chunk, features)
            if features and on_features is not None:
                on_features(found)
            if on_chunk is not None:
                self.synchronize()
                on_chunk(begin + len(chunk), total)
        self.synchronize()

    def forward(
        self, tokens: Sequence[int], parents: Sequence[int] | None = None, features: Sequence[Any] = ()
    ) -> Forward:
        """Feed tokens after the cache's end; return logits [n, vocab] and the features by layer.

        parents make a tree of them (interfaces.Session), verified in this one pass. A feature is asked
        for by "last" (after the final norm) or by a number n (after n layers). Raises SpecviewError where the
        cache is full, or for a tree or features that cannot be had.
        """
        if not tokens:
            raise ValueError("forward needs at least one token")
        tree = read_tree(parents, len(tokens))
        self._need_room(len(tokens))
        if features:
            self._prepare(features)
        if tree is not None:
            self._require_tree(tree)
        start, self._fed, in_place = self.length, None, None
        if tree is None:
            logits, found = self._chain(tokens, features)
        elif self._check_mode:
            logits, found, in_place = self._branch_by_branch(tokens, tree, features)
        else:
            logits, found = self._whole_tree(tokens, tree, features)
        self.length = start + len(tokens)
        self._fed = Fed(start, tuple(tokens), tree, in_place)
        return Forward(logits, found)

    def keep(self, path: Sequence[int]) -> None:
        """Of the last forward's tokens keep those of a path from the root, by index; drop the rest.

        Raises ValueError where they are no path, or where no forward came before.
        """
        self._need_open()
        fed = self._fed
        if fed is None:
            raise ValueError("keep follows a forward: there is no last pass to keep a path of")
        kept = fed.require_path(path)
        self._fed = None
        if fed.in_place is None:
            self._keep(fed, kept)
            return
        # What the path shares with the branch in place stays, the rest is fed again.
        shared = shared_length(fed.in_place, kept)
        self.length = fed.start + len(fed.in_place)
        self._cut(fed.start + shared)
        if shared < len(kept):
            self._feed_again([fed.tokens[index] for index in kept[shared:]])

    def truncate(self, length: int) -> None:
        """Roll back to the first `length` tokens: a pointer move, no copy."""
        self._need_open()
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate {self.length} tokens to {length}")
        if self._fed is not None and self._fed.tree is not None and length > self._fed.start:
            raise ValueError(self._after_tree(self._fed))
        self._fed = None
        self._cut(length)

    def _need_room(self, added: int) -> None:
        self._need_open()
        if self._fed is not None and self._fed.tree is not None:
            raise ValueError(self._after_tree(self._fed))
        if self.length + added > self.max_length:
            raise SpecviewError(
                f"{self.length + added:,} tokens do not fit into a cache of {self.max_length:,}.",
                "Use a shorter prompt or fewer tokens.",
            )

    @staticmethod
    def _after_tree(fed: Fed) -> str:
        return f"after a tree only keep, or truncate to {fed.start} or less, may follow"

    def _branch_by_branch(
        self, tokens: Sequence[int], tree: Tree, features: Sequence[Any]
    ) -> tuple[Any, dict[Any, Any], tuple[int, ...]]:
        """Feed a tree as chains; return its rows in the tokens' order, and the branch left in the cache."""
        start, order = self.length, [index for chain in tree.chains for index in chain]
        parts: list[Any] = []
        layers: dict[Any, list[Any]] = {layer: [] for layer in features}
        try:
            for chain in tree.chains:
                self._cut(start + tree.depths[chain[0]])
                rows, given = self._chain([tokens[index] for index in chain], features)
                parts.append(rows)
                for layer, values in given.items():
                    layers[layer].append(values)
        except SpecviewError:
            self._cut(start)
            raise
        back = sorted(range(len(order)), key=order.__getitem__)
        join = type(self)._join
        return join(parts)[back], {layer: join(values)[back] for layer, values in layers.items()}, tree.branches[-1]
