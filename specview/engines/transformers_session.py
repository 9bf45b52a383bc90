"""One sequence over a torch model: its length, chunked prefill, forward, rollback, check mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Protocol

import torch

from specview.decoding.interfaces import Forward, OnChunk, OnFeatures
from specview.engines.features import require_features
from specview.engines.transformers_tree import Tree, read_tree
from specview.errors import SpecviewError

PREFILL_CHUNK = 256
CHECK_ROWS = 8
"""Rows of every check-mode pass: with one number of rows, one kernel computes every logit."""
CHECK_BLOCK = 512
"""Check mode shows attention whole blocks of so many keys (the block of torch's CPU attention)."""


class SequenceCache(Protocol):
    """A sequence's keys and values."""

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens: a pointer move."""
        ...

    def keep(self, start: int, path: Sequence[int]) -> None:
        """Keep the first `start` tokens and, of those after them, a path's, by index: moved together."""
        ...


class Runner(Protocol):
    """A loaded model's forward pass over a cache."""

    device: torch.device
    vocab_size: int
    tree_problem: str | None  # why a pass cannot verify a tree, or None
    exit_layers: int  # layers, of which the pass can be left early; 0 where it cannot
    exit_problem: str | None  # why it cannot, or None
    hidden_size: int
    layers: int
    features_problem: str | None  # why it gives no features, or None

    def new_cache(self, max_length: int) -> Any:
        """Make an empty SequenceCache for up to max_length tokens."""
        ...

    def run(
        self,
        tokens: Sequence[int],
        start: int,
        cache: Any,
        *,
        logits: bool,
        features: Sequence[Any] = (),
        tree: Tree | None = None,
    ) -> tuple[torch.Tensor | None, dict[Any, torch.Tensor]]:
        """Run tokens after the `start` that the cache holds; a tree says who sees whom of them.

        Returns float logits [n, vocab], or None without `logits`, and the features asked for.
        """
        ...

    def embed(self, ids: Sequence[int]) -> torch.Tensor:
        """The embedding's rows of some ids, [n, hidden], as the first layer gets them."""
        ...

    def project(self, hidden: torch.Tensor) -> torch.Tensor:
        """Float logits [n, vocab] of the head alone, of normed hidden states [n, hidden]."""
        ...


class ExitRunner(Runner, Protocol):
    """A forward pass that can be left after some layers and taken up there (exit_layers > 0)."""

    def run_lower(
        self, tokens: Sequence[int], start: int, cache: Any, layer: int, *, logits: bool
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Run tokens through the first `layer` layers, writing those layers' keys and values.

        Returns float logits [n, vocab] of the final norm and head, or None without `logits`, and the
        hidden states [n, hidden].
        """
        ...

    def run_upper(
        self, hidden: torch.Tensor, start: int, cache: Any, layer: int, features: Sequence[Any] = ()
    ) -> tuple[torch.Tensor, dict[Any, torch.Tensor]]:
        """Run hidden states [n, hidden] after `layer` layers through the others.

        Returns logits [n, vocab] and the features asked for, none of them of an earlier layer.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Pending:
    """Tokens after the cache's end that have gone through the first `layer` layers; hidden is [n, hidden]."""

    tokens: tuple[int, ...]
    layer: int
    hidden: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Fed:
    """The last forward: the length before it, its tokens, its tree, and what the cache holds of it.

    in_place is the path whose keys and values follow one another in the cache, where check mode ran the
    tree as chains; None where all tokens lie there in order.
    """

    start: int
    tokens: tuple[int, ...]
    tree: Tree | None
    in_place: tuple[int, ...] | None = None


class TransformersSession:
    """One sequence: its own KV cache over the engine's weights (interfaces.Session, EarlyExitSession).

    Check mode computes every logit in passes of CHECK_ROWS padded rows, so that it has the same bits
    however tokens are grouped; a tree is then computed as chains, from which `keep` leaves what a chain
    of the path's tokens would. It is for exactness, never timed.
    """

    def __init__(self, runner: Runner, max_length: int, *, check_mode: bool = False) -> None:
        self.length = 0
        self._runner: Runner | None = runner
        self._max_length = max_length
        self._check_mode = check_mode
        self._cache: Any = runner.new_cache(max_length)
        self._fed: _Fed | None = None
        self._pending: _Pending | None = None

    def prefill(
        self,
        tokens: Sequence[int],
        on_chunk: OnChunk | None = None,
        features: Sequence[Any] = (),
        on_features: OnFeatures | None = None,
    ) -> None:
        """Feed tokens without logits, in chunks; what a callback raises leaves the session usable.

        on_features gets each chunk's features by layer, [tokens, hidden], before on_chunk is called.
        """
        runner = self._open(len(tokens))
        self._require_features(runner, features)
        self._drop_pending()
        self._fed = None
        total = len(tokens)
        for begin in range(0, total, PREFILL_CHUNK):
            chunk = tokens[begin : begin + PREFILL_CHUNK]
            _, found = runner.run(chunk, self.length, self._cache, logits=False, features=features)
            self.length += len(chunk)
            if features and on_features is not None:
                on_features(found)
            if on_chunk is not None:
                self.synchronize()
                on_chunk(begin + len(chunk), total)

    def forward(
        self, tokens: Sequence[int], parents: Sequence[int] | None = None, features: Sequence[Any] = ()
    ) -> Forward:
        """Feed tokens after the cache's end; return logits [n, vocab] and the features by layer.

        parents make a tree of them (interfaces.Session), verified in this one pass. A feature is asked
        for by "last" (after the final norm) or by a number n (after n layers). Raises SpecviewError for
        a tree that this model cannot take.
        """
        if not tokens:
            raise ValueError("forward needs at least one token")
        tree = read_tree(parents, len(tokens))
        runner = self._open(len(tokens))
        self._require_features(runner, features)
        if tree is not None and not self._check_mode and runner.tree_problem is not None:
            raise tree_error(runner.tree_problem)
        pending, self._fed = self._pending, None
        start, in_place = self.length, None
        if tree is None and pending is not None and _takes_up(pending, tokens, features):
            logits, layers = self._take_up(pending, tokens, features)
        else:
            self._drop_pending()
            if not self._check_mode:
                rows, layers = runner.run(
                    tokens, start, self._cache, logits=True, features=features, tree=tree
                )
                assert rows is not None
                logits = rows
            elif tree is None:
                logits, layers = self._run_checked(tokens, start, features)
            else:
                logits, layers, in_place = self._run_tree_checked(tokens, tree, features)
        self._pending = None
        self._fed = _Fed(start, tuple(tokens), tree, in_place)
        self.length = start + len(tokens)
        return Forward(logits, layers)

    def forward_exit(self, tokens: Sequence[int], layer: int) -> torch.Tensor:
        """Feed tokens after the pending ones through the first `layer` layers (interfaces.EarlyExitSession).

        Returns logits [n, vocab] of the final norm and head over that layer's output. Self-speculation of
        LayerSkip (Elhoushi et al. 2024, arXiv 2404.16710): the keys and values of these layers and the
        hidden states serve the verifying `forward` too. Raises SpecviewError where the model cannot be
        left after that layer.
        """
        if not tokens:
            raise ValueError("forward_exit needs at least one token")
        runner = self._open(len(tokens) + (len(self._pending.tokens) if self._pending is not None else 0))
        if not runner.exit_layers:
            raise SpecviewError(
                f"This model cannot be left early: {runner.exit_problem}.", "Choose another drafting method."
            )
        if not 1 <= layer < runner.exit_layers:
            raise SpecviewError(
                f"Exit layer {layer} is out of range.",
                f"This model has {runner.exit_layers} layers: use 1 to {runner.exit_layers - 1}.",
            )
        given, before, done = len(tokens), self._pending, 0
        if before is not None and before.layer == layer:
            done = len(before.tokens)
        elif before is not None:  # what is pending starts again from the embedding
            tokens, before = [*before.tokens, *tokens], None
            self._drop_pending()
        logits, hidden = self._run_lower(tokens, self.length + done, layer, logits=True)
        assert logits is not None
        if before is not None:
            tokens = [*before.tokens, *tokens]
            hidden = torch.cat([before.hidden, hidden])
        self._pending = _Pending(tuple(tokens), layer, hidden)
        return logits[-given:]

    def keep(self, path: Sequence[int]) -> None:
        """Of the last forward's tokens keep those of a path from the root, by index; drop the rest.

        Raises ValueError where they are no path, or where no forward came before.
        """
        fed = self._fed
        if fed is None:
            raise ValueError("keep follows a forward")
        parents = fed.tree.parents if fed.tree is not None else range(-1, len(fed.tokens) - 1)
        before = -1
        for index in path:
            if not 0 <= index < len(fed.tokens) or parents[index] != before:
                raise ValueError(f"{list(path)} is no path from the root")
            before = index
        self._drop_pending()
        self._fed = None
        self.length = fed.start + len(path)
        if fed.in_place is None:
            self._cache.keep(fed.start, path)
            return
        # Check mode: what the path shares with the chain in place stays, the rest is run again.
        pairs = zip(path, fed.in_place, strict=False)
        shared = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        self._cache.truncate(fed.start + shared)
        if shared < len(path):
            self._run_checked([fed.tokens[index] for index in path[shared:]], fed.start + shared, ())

    def truncate(self, length: int) -> None:
        """Roll back to the first `length` tokens: a pointer move, no copy."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate {self.length} tokens to {length}")
        fed = self._fed
        if fed is not None and fed.tree is not None and length > fed.start:
            raise ValueError(f"a tree is cut by keep, or truncated to the {fed.start} tokens before it")
        self._fed = None
        self._pending = None
        self._cache.truncate(length)
        self.length = length

    def _require_features(self, runner: Runner, features: Sequence[Any]) -> None:
        if features:
            require_features(features, runner.layers, runner.features_problem)

    def _drop_pending(self) -> None:
        if self._pending is not None:
            self._pending = None
            self._cache.truncate(self.length)

    def _run_checked(
        self, tokens: Sequence[int], start: int, features: Sequence[Any]
    ) -> tuple[torch.Tensor, dict[Any, torch.Tensor]]:
        """Run a chain in padded passes; see CHECK_ROWS."""
        runner, cache = self._runner, self._cache
        assert runner is not None

        def run(chunk: Any, at: int) -> tuple[torch.Tensor, dict[Any, torch.Tensor]]:
            rows, given = runner.run(chunk, at, cache, logits=True, features=features)
            assert rows is not None
            return rows, given

        return self._padded(list(tokens), start, run)

    def _padded(
        self,
        rows: Any,
        start: int,
        run: Callable[[Any, int], tuple[torch.Tensor, dict[Any, torch.Tensor]]],
    ) -> tuple[torch.Tensor, dict[Any, torch.Tensor]]:
        """Call run(CHECK_ROWS of the rows, the position of their first) until all have run.

        rows are token ids or hidden states; the last of them fill up a pass, and are forgotten.
        """
        logits: list[torch.Tensor] = []
        layers: dict[Any, list[torch.Tensor]] = {}
        for begin in range(0, len(rows), CHECK_ROWS):
            chunk = rows[begin : begin + CHECK_ROWS]
            count = len(chunk)
            if isinstance(chunk, torch.Tensor):
                padded: Any = torch.cat([chunk, chunk[-1:].expand(CHECK_ROWS - count, -1)])
            else:
                padded = chunk + [chunk[-1]] * (CHECK_ROWS - count)
            given, extra = run(padded, start + begin)
            self._cache.truncate(start + begin + count)
            logits.append(given[:count])
            for layer, values in extra.items():
                layers.setdefault(layer, []).append(values[:count])
        return torch.cat(logits), {layer: torch.cat(parts) for layer, parts in layers.items()}

    def _run_tree_checked(
        self, tokens: Sequence[int], tree: Tree, features: Sequence[Any]
    ) -> tuple[torch.Tensor, dict[Any, torch.Tensor], tuple[int, ...]]:
        """Run a tree as chains; return its rows in the tokens' order, and the path left in the cache."""
        order: list[int] = []
        path: list[int] = []
        logits: list[torch.Tensor] = []
        layers: dict[Any, list[torch.Tensor]] = {}
        for chain in tree.chains():
            depth = tree.depths[chain[0]]
            path[depth:] = chain
            self._cache.truncate(self.length + depth)
            rows, given = self._run_checked([tokens[index] for index in chain], self.length + depth, features)
            order += chain
            logits.append(rows)
            for layer, values in given.items():
                layers.setdefault(layer, []).append(values)
        back = torch.tensor(order).argsort().to(logits[0].device)
        found = {layer: torch.cat(parts)[back] for layer, parts in layers.items()}
        return torch.cat(logits)[back], found, tuple(path)

    def _run_lower(
        self, tokens: Sequence[int], start: int, layer: int, *, logits: bool
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Run tokens through the first layers; return logits, where asked for, and hidden states."""
        runner: Any = self._runner
        if not self._check_mode:
            rows, hidden = runner.run_lower(tokens, start, self._cache, layer, logits=logits)
            return rows, hidden

        def run(chunk: Any, at: int) -> tuple[torch.Tensor, dict[Any, torch.Tensor]]:
            rows, hidden = runner.run_lower(chunk, at, self._cache, layer, logits=True)
            return rows, {layer: hidden}

        rows, found = self._padded(list(tokens), start, run)
        return rows, found[layer]

    def _take_up(
        self, pending: _Pending, tokens: Sequence[int], features: Sequence[Any]
    ) -> tuple[torch.Tensor, dict[Any, torch.Tensor]]:
        """Run pending tokens and those after them: the latter through the first layers, all through the rest."""
        runner: Any = self._runner
        done, layer, hidden = len(pending.tokens), pending.layer, pending.hidden
        if done < len(tokens):
            _, rest = self._run_lower(tokens[done:], self.length + done, layer, logits=False)
            hidden = torch.cat([hidden, rest])

        def run(chunk: Any, at: int) -> tuple[torch.Tensor, dict[Any, torch.Tensor]]:
            rows, given = runner.run_upper(chunk, at, self._cache, layer, features)
            return rows, given

        return self._padded(hidden, self.length, run) if self._check_mode else run(hidden, self.length)

    def synchronize(self) -> None:
        """Wait for the device, so that a clock read after it is true."""
        if self._runner is None:
            return
        kind = self._runner.device.type
        if kind == "cuda":
            torch.cuda.synchronize(self._runner.device)
        elif kind == "mps":
            torch.mps.synchronize()

    def close(self) -> None:
        """Free the cache."""
        self._cache = None
        self._runner = None
        self._fed = self._pending = None
        self.length = 0

    def _open(self, added: int) -> Runner:
        if self._runner is None:
            raise ValueError("the session is closed")
        if self._fed is not None and self._fed.tree is not None:
            raise ValueError("after a tree comes keep, or truncate to the tokens before it")
        if self.length + added > self._max_length:
            raise SpecviewError(
                f"{self.length + added} tokens do not fit the {self._max_length} this sequence was made for.",
                "Shorten the prompt or lower max tokens.",
            )
        return self._runner


def tree_error(problem: str) -> SpecviewError:
    """A model that cannot verify a tree in one pass."""
    return SpecviewError(
        f"This model cannot verify draft trees: {problem}.", "Use a method that drafts chains."
    )


def _takes_up(pending: _Pending, tokens: Sequence[int], features: Sequence[Any]) -> bool:
    """Whether a forward begins with the pending tokens and asks for nothing of the layers behind them."""
    return tuple(tokens[: len(pending.tokens)]) == pending.tokens and all(
        feature == "last" or feature >= pending.layer for feature in features
    )
