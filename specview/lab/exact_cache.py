"""Engines that compute each prefix once, for thousands of short continuations of one prompt.

A `CachedEngine` stands before a loaded engine. Its sessions answer every pass with rows kept by prefix, and run the
real model only where a prefix is new. The product's own lanes, loop, rules and drafters run on them unchanged.

Every row comes from one kind of pass, so that a prefix has one row whoever asks: passes of two rows or more, a
single token padded with a throw-away one (as in the engines' check mode), or, with `single`, passes of one row. Rows
of draft trees are those of their branches. A chain's rows are computed when they are read: those after a rejected
token never are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from specview.decoding.interfaces import Engine, Forward, OnChunk, OnFeatures, Session
from specview.decoding.ledger import Array
from specview.decoding.sampling import as_like

CACHE_BYTES = 512 << 20

Tokens = tuple[int, ...]


@dataclass(slots=True)
class CacheStatistics:
    """What a cache did: rows asked for and computed, passes of the model, rows dropped for want of room."""

    asked: int = 0
    computed: int = 0
    passes: int = 0
    dropped: int = 0


class CachedEngine:
    """An engine whose sessions answer from rows kept by prefix; all else is the engine's own."""

    def __init__(
        self,
        engine: Engine,
        *,
        single: bool = False,
        max_bytes: int = CACHE_BYTES,
        on_pass: Callable[[], None] = lambda: None,
    ) -> None:
        """single: one row a pass. on_pass is called before each pass of the model, and raises Stopped to stop."""
        self.engine = engine
        self.single = single
        self.statistics = CacheStatistics()
        self._on_pass = on_pass
        self._max_bytes = max_bytes
        self._bytes = 0
        self._rows: OrderedDict[Tokens, dict[Any, Array]] = OrderedDict()  # by prefix; each its logits, features, ...
        self._prefills: dict[tuple[Tokens, tuple[Any, ...]], list[tuple[int, int] | dict[Any, Array]]] = {}
        self._real: Session | None = None
        self._room = 0
        self._held: list[int] = []  # tokens that the real session holds

    def __getattr__(self, name: str) -> Any:
        """Everything else is the engine's own."""
        return getattr(self.engine, name)

    def new_session(self, max_length: int, branches: int = 1) -> CachedSession:
        """Make a session; all share one cache, and one real session beneath it."""
        room = min(self.engine.context_length, max_length + 1)  # one more for the throw-away token
        if self._real is None or room > self._room:
            if self._real is not None:
                self._real.close()
            self._real, self._held, self._room = self.engine.new_session(room), [], room
        return CachedSession(self)

    def close(self) -> None:
        """Free the real session and the rows; the engine stays."""
        if self._real is not None:
            self._real.close()
        self._real, self._held, self._room, self._bytes = None, [], 0, 0
        self._rows.clear()
        self._prefills.clear()

    # -- rows ----------------------------------------------------------------------------------------

    def prefill(
        self, tokens: Tokens, features: tuple[Any, ...], on_chunk: OnChunk | None, on_features: OnFeatures | None
    ) -> None:
        """Fill the real session with the prompt, once; features are kept and given again."""
        key = (tokens, features)
        if key not in self._prefills:
            told: list[tuple[int, int] | dict[Any, Array]] = []

            def take(chunk: Mapping[Any, Array]) -> None:
                told.append({layer: _copied(rows) for layer, rows in chunk.items()})

            def pass_on(done: int, total: int) -> None:
                told.append((done, total))
                self._on_pass()

            self._truncate(0)
            self._fill(tokens, pass_on, features, take if features else None)
            self._prefills[key] = told
        for one in self._prefills[key]:
            if isinstance(one, dict):
                if on_features is not None:
                    on_features(one)
            elif on_chunk is not None:
                on_chunk(*one)

    def rows(
        self, context: Tokens, root: int, chain: Sequence[int], features: Sequence[Any] = ()
    ) -> list[dict[Any, Array]]:
        """Rows of a chain fed after `context`, whose first `root` tokens are the prompt that was prefilled.

        One mapping per token: "logits" float32 numpy [vocab], and the features asked for, by layer.
        """

        def compute() -> list[dict[Any, Array]]:
            left = self._align(context, root)
            return self._feed([*left, *chain], features)[len(left) :]

        return self._cached([context + tuple(chain[: place + 1]) for place in range(len(chain))], {"logits", *features}, compute)

    def exit_rows(
        self, context: Tokens, root: int, pending: Sequence[int], tokens: Sequence[int], layer: int
    ) -> list[Array]:
        """Early-exit rows [vocab] of `tokens`, fed after the context and the pending ones."""
        fed = [*pending, *tokens]
        kind = ("exit", layer)

        def compute() -> list[dict[Any, Array]]:
            left = self._align(context, root)
            if left:
                self._feed(left)
            self._pass()
            real: Any = self._real
            found = real.forward_exit(fed, layer)
            real.truncate(len(self._held))
            return [{kind: _as_numpy(found[place])} for place in range(len(pending), len(fed))]

        prefixes = [context + tuple(fed[: place + 1]) for place in range(len(pending), len(fed))]
        return [row[kind] for row in self._cached(prefixes, {kind}, compute)]

    def _cached(
        self, prefixes: Sequence[Tokens], kinds: set[Any], compute: Callable[[], list[dict[Any, Array]]]
    ) -> list[dict[Any, Array]]:
        """The rows of these kinds of each prefix; all are computed where one is missing, and those that are new kept."""
        self.statistics.asked += len(prefixes)
        missing = sum(not kinds <= self._rows.get(prefix, {}).keys() for prefix in prefixes)
        if missing:
            self.statistics.computed += missing
            for prefix, row in zip(prefixes, compute(), strict=True):
                known = self._rows.setdefault(prefix, {})
                fresh = {kind: values for kind, values in row.items() if kind not in known}
                known.update(fresh)
                self._bytes += sum(values.nbytes for values in fresh.values())
        found = [self._rows[prefix] for prefix in prefixes]
        for prefix in prefixes:
            self._rows.move_to_end(prefix)
        while self._bytes > self._max_bytes and len(self._rows) > 1:  # drop those that were asked for longest ago
            _, row = self._rows.popitem(last=False)
            self._bytes -= sum(values.nbytes for values in row.values())
            self.statistics.dropped += 1
        return found

    def _feed(self, tokens: Sequence[int], features: Sequence[Any] = ()) -> list[dict[Any, Array]]:
        """Run the model over tokens after what it holds; their rows."""
        real: Any = self._real
        given = []
        for part in [[token] for token in tokens] if self.single else [list(tokens)]:
            padding = [part[-1]] if not self.single and len(part) == 1 and len(self._held) + 1 < self._room else []
            self._pass()
            forward = real.forward([*part, *padding], None, tuple(features))
            if padding:
                real.truncate(len(self._held) + len(part))
            self._held += part
            for place in range(len(part)):
                row = {"logits": _as_numpy(forward.logits[place])}
                given.append(row | {layer: _copied(forward.features[layer][place]) for layer in features})
        return given

    def _align(self, context: Tokens, root: int) -> Tokens:
        """Roll the real session back to a beginning of `context`, prompt included; return what it then lacks."""
        shared = 0
        most = min(len(context), len(self._held))
        if tuple(self._held[:most]) == context[:most]:
            shared = most
        else:
            while self._held[shared] == context[shared]:
                shared += 1
        self._truncate(shared)
        if shared < root:
            self._fill(context[shared:root], lambda done, total: self._on_pass())
        return context[len(self._held) :]

    def _fill(self, tokens: Tokens, *more: Any) -> None:
        """Prefill the real session on; what was stopped halfway is taken back."""
        real: Any = self._real
        try:
            real.prefill(tokens, *more)
        except BaseException:
            real.truncate(len(self._held))
            raise
        self._held += tokens

    def _truncate(self, length: int) -> None:
        if length < len(self._held):
            assert self._real is not None
            self._real.truncate(length)
            del self._held[length:]

    def _pass(self) -> None:
        self._on_pass()
        self.statistics.passes += 1


class ChainRows:
    """Logit rows [places, vocab] of a chain, each fetched when it is read."""

    def __init__(
        self, engine: CachedEngine, context: Tokens, root: int, chain: Sequence[int], places: Sequence[int]
    ) -> None:
        self._engine, self._context, self._root = engine, context, root
        self._chain, self._places = tuple(chain), places

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, and the width of each."""
        return len(self._places), self._engine.engine.vocab_size

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int | slice) -> Any:
        """One row as a numpy array, or some of them, still to be fetched."""
        if isinstance(index, slice):
            return ChainRows(self._engine, self._context, self._root, self._chain, self._places[index])
        place = self._places[index]
        before = self._context + self._chain[:place]
        row: Array = self._engine.rows(before, self._root, [self._chain[place]])[0]["logits"]
        return row

    def __iter__(self) -> Iterator[Array]:
        return (self[place] for place in range(len(self)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(list(self), dtype=dtype)


class CachedSession:
    """A sequence over a CachedEngine (interfaces.Session, and EarlyExitSession where the engine's is one)."""

    def __init__(self, engine: CachedEngine) -> None:
        self._engine = engine
        self._tokens: list[int] = []
        self._root = 0
        self._base = 0
        self._paths: list[list[int]] | None = None  # of the last tree: each node's tokens from the root on
        self._pending: list[int] = []

    @property
    def length(self) -> int:
        """Tokens that it holds."""
        return len(self._tokens)

    def prefill(
        self,
        tokens: Sequence[int],
        on_chunk: OnChunk | None = None,
        features: Sequence[Any] = (),
        on_features: OnFeatures | None = None,
    ) -> None:
        """Feed the prompt."""
        self._tokens += tokens
        self._root = len(self._tokens)
        self._engine.prefill(tuple(self._tokens), tuple(features), on_chunk, on_features)

    def forward(
        self, tokens: Sequence[int], parents: Sequence[int] | None = None, features: Sequence[Any] = ()
    ) -> Forward:
        """Feed a chain or a tree; a tree's rows are those of its branches as chains."""
        self._pending = []
        context = tuple(self._tokens)
        self._base = len(context)
        if parents is None and not features:
            self._paths = None
            self._tokens += tokens
            return Forward(ChainRows(self._engine, context, self._root, tokens, range(len(tokens))))
        if parents is None:
            rows = self._engine.rows(context, self._root, tokens, features)
            self._paths = None
        else:
            self._paths = []
            for token, parent in zip(tokens, parents, strict=True):
                self._paths.append([*(self._paths[parent] if parent >= 0 else []), token])
            inner = set(parents)
            for node, path in enumerate(self._paths):
                if node not in inner:  # a leaf: its branch in one pass
                    self._engine.rows(context, self._root, path, features)
            rows = [self._engine.rows(context, self._root, path, features)[-1] for path in self._paths]
        self._tokens += tokens
        return Forward(
            np.stack([row["logits"] for row in rows]),
            {layer: _stacked([row[layer] for row in rows]) for layer in features},
        )

    def forward_exit(self, tokens: Sequence[int], layer: int) -> Array:
        """Logits of the first layers; see interfaces.EarlyExitSession."""
        rows = self._engine.exit_rows(tuple(self._tokens), self._root, self._pending, tokens, layer)
        self._pending += tokens
        return np.stack(rows)

    def keep(self, path: Sequence[int]) -> None:
        """Keep a path of the last tree."""
        assert self._paths is not None
        kept = self._paths[path[-1]] if path else []
        self._tokens = self._tokens[: self._base] + kept
        self._paths, self._pending = None, []

    def truncate(self, length: int) -> None:
        """Roll back."""
        assert 0 <= length <= len(self._tokens)
        del self._tokens[length:]
        self._paths, self._pending = None, []

    def synchronize(self) -> None:
        """Rows are here already."""

    def close(self) -> None:
        """The cache outlives its sessions."""


def _as_numpy(row: Array) -> Array:
    return np.array(as_like(row, np.empty(0)), dtype=np.float32)


def _copied(rows: Array) -> Array:
    """Features that stay true when the engine's next pass overwrites its own."""
    return array_namespace(rows).asarray(rows, copy=True)


def _stacked(rows: Sequence[Array]) -> Array:
    return array_namespace(rows[0]).stack(list(rows))
