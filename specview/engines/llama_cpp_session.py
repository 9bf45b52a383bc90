"""One sequence in llama.cpp: a context of its own over the model's shared weights."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specview.decoding.interfaces import Forward, OnChunk, OnFeatures
from specview.engines.features import require_features
from specview.engines.llama_cpp_features import NO_NODES, GraphWatch
from specview.engines.llama_cpp_layer_inputs import layer_inputs
from specview.engines.llama_cpp_library import forget_errors, last_error, llama, pointer
from specview.engines.llama_cpp_model import LlamaCppModel
from specview.engines.llama_cpp_tree import TokenTree, shared_length, token_tree
from specview.errors import SpecviewError

PASS_TOKENS = 256
"""Most tokens of one llama.cpp pass, and those between two chances to stop a prefill."""

PASS_ROWS = 96
"""Most logit rows of one pass; it sizes a buffer of PASS_ROWS x vocab floats."""

CHECKED_PASS_TOKENS = 32
"""Most tokens of one pass in check mode: from 64 on, llama.cpp's attention takes another kernel."""

SCORES_BYTES = 512 << 20
"""Most memory for attention scores, where a pass keeps them all: cells x tokens x heads floats."""


class LlamaCppSession:
    """A sequence with its own KV cache, for up to max_length tokens (interfaces.Session).

    The context owns its KV cache and nothing else of size: weights are the engine's. Logits are
    copied out of the context, whose buffer the next pass overwrites: rows stay true for as long as
    they are held (a draft's rows outlive several passes of its session).

    A draft tree of up to `branches` leaves is one pass. Every root-to-leaf branch is a llama.cpp
    sequence of its own in one unified cache, where a cell belongs to any number of sequences: a token
    of the tree to all branches through it. One sequence, the trunk, holds the whole context; chains feed
    it alone, so they cost what they do without branches. The others hold a beginning of it and are
    brought up to the trunk when a tree needs them. `keep` makes the branch of the kept path the trunk:
    no cell is moved or copied, rejected ones are freed, and their places are filled by later passes.

    On a CPU flash attention is off: llama.cpp's takes the rows of a pass one after the other, so that
    verifying 4 tokens after 1,000 costs 2.5 times what it does with plain products (measured: SmolLM2-135M
    Q4_1, 2 threads; 74 against 30 ms, and one row 24 against 15). It stays on in check mode, where its rows
    have the same bits in passes of any width, and where the scores would not fit SCORES_BYTES.

    In check mode a tree is computed by the passes of chains, branch after branch, rolled back between:
    each token's logits are bit for bit those of a chain of its path, and `keep` leaves the cache as that
    chain does.

    Features cost nothing until some are asked for. The last hidden state then comes with the logits. Inner
    layers' are kept by llama.cpp where the model's architecture can (llama_cpp_layer_inputs); else, when
    they are first wanted, the context is made anew with a callback on its graph (llama_cpp_features), its
    cells copied.
    """

    def __init__(self, engine: LlamaCppModel, max_length: int, branches: int = 1) -> None:
        self._lib = lib = llama()
        self._engine = engine
        self._check_mode = engine.check_mode
        self._vocab_size = engine.vocab_size
        self.max_length = max_length
        self.branches = branches
        self.length = 0
        sequences = 1 if engine.check_mode else min(branches, max_length)
        cells = max_length + 1 if engine.check_mode else max_length  # room for the throw-away token
        self._width = width = pass_tokens(engine, cells)
        self._rows = rows = min(PASS_ROWS, width)
        self._plain_attention = keeps_scores(engine, cells)
        self._sequence_count = sequences
        self._cells = cells
        self._watch: GraphWatch | None = None
        self._gives_last = False  # whether the context keeps last hidden states
        self._kept: set[int] = set()  # layers whose input it keeps
        self._open_context()
        # One batch for all passes: llama.cpp reads these arrays in place.
        self._tokens = np.zeros(width, dtype=np.int32)
        self._positions = np.arange(cells + width, dtype=np.int32)
        self._one = np.ones(width, dtype=np.int32)
        # Sequence ids: the trunk first. A token's are a run of these.
        self._order = np.arange(sequences, dtype=np.int32)
        self._sequences = np.full(width, self._order.ctypes.data, dtype=np.uintp)
        self._output = np.ones(width, dtype=np.int8)
        self._no_output = np.zeros(width, dtype=np.int8)
        self._batch = batch = lib.llama_batch()
        batch.token = pointer(self._tokens, ctypes.c_int32)
        self._one_pointer = batch.n_seq_id = pointer(self._one, ctypes.c_int32)
        self._trunk_pointer = batch.seq_id = ctypes.cast(self._sequences.ctypes.data, _INT32_POINTERS)
        self._output_pointer = pointer(self._output, ctypes.c_int8)
        self._no_output_pointer = pointer(self._no_output, ctypes.c_int8)
        self._positions_address = self._positions.ctypes.data
        # Likewise for trees.
        self._tree_positions = np.zeros(rows, dtype=np.int32)
        self._tree_counts = np.zeros(rows, dtype=np.int32)
        self._tree_sequences = np.zeros(rows, dtype=np.uintp)
        self._held = [0] * sequences  # per sequence the tokens of the context that it holds
        self._last: _LastPass | None = None

    @property
    def context_pointer(self) -> Any:
        """The `llama_context *`, as it is now."""
        return self._context

    def _open_context(self) -> None:
        """Make the llama.cpp context, with the callback where there is a watch."""
        lib, engine = self._lib, self._engine
        width, rows, sequences = self._width, self._rows, self._sequence_count
        params = lib.llama_context_default_params()
        params.n_ctx = self._cells
        params.n_batch = params.n_ubatch = width
        params.n_seq_max = sequences
        if sequences > 1:
            params.kv_unified = True  # one pool of cells, which sequences share
        params.n_outputs_max = max(rows, sequences)  # llama.cpp wants a row for every sequence
        params.n_threads = params.n_threads_batch = engine.threads
        params.swa_full = True  # a sliding window's cache keeps every cell, so that rollback finds them
        params.no_perf = True
        params.offload_kqv = engine.gpu_layers != 0
        if self._plain_attention:
            params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        if self._watch is not None:
            params.cb_eval = self._watch.callback
        forget_errors()
        context = lib.llama_init_from_model(engine.model_pointer, params)
        if not context:
            raise SpecviewError(
                f"llama.cpp could not make a cache for {self.max_length:,} tokens: {last_error()}.",
                "Ask for fewer tokens, or free memory.",
            )
        self._context: Any = context
        engine.contexts.add(context)
        self._release = weakref.finalize(self, engine.contexts.free, context)
        self._memory = lib.llama_get_memory(context)
        if not self._memory:
            self.close()
            raise SpecviewError(f"{engine.model_name} does not generate text.", "Choose a text-generating model.")

    def watch_graph(self) -> GraphWatch:
        """Return the callback on the graph; where there is none yet, the context is made anew with one."""
        if self._watch is None:
            state = self._read_state() if self.length else None
            self._release()
            self._watch = GraphWatch(self._engine.hidden_size)
            self._gives_last = False
            self._kept = set()
            self._open_context()
            if state is not None and not self._lib.llama_state_set_data(self._context, state, len(state)):
                self.close()
                raise SpecviewError(
                    f"llama.cpp could not copy a cache of {self.length:,} tokens: {last_error()}.",
                    "Ask for features from the first pass on, or free memory.",
                )
        return self._watch

    def _read_state(self) -> Any:
        """The context's cells, as llama.cpp saves them."""
        size = self._lib.llama_state_get_size(self._context)
        state = (ctypes.c_uint8 * size)()
        forget_errors()
        self._lib.llama_state_get_data(self._context, state, size)
        return state

    def prefill(
        self,
        tokens: Sequence[int],
        on_chunk: OnChunk | None = None,
        features: Sequence[Any] = (),
        on_features: OnFeatures | None = None,
    ) -> None:
        """Feed tokens without logits, in chunks; when a callback raises, what was fed stays.

        on_features gets each chunk's features by layer, float32 [tokens, hidden], before on_chunk is called.
        """
        self._need_room(len(tokens))
        self._prepare_features(features)
        self._last = None
        total = len(tokens)
        # What lies behind the last layer is computed for output rows only, and llama.cpp has room for so many.
        outputs = "last" in features or self._engine.layers in features
        width = self._rows if outputs else self._width
        for start in range(0, total, width):
            chunk = tokens[start : start + width]
            found = self._empty_features(features, len(chunk))
            self._pass(chunk, None, found, outputs)
            if features and on_features is not None:
                on_features(found)
            if on_chunk is not None:
                self.synchronize()
                on_chunk(start + len(chunk), total)
        self.synchronize()

    def forward(
        self,
        tokens: Sequence[int],
        parents: Sequence[int] | None = None,
        features: Sequence[Any] = (),
    ) -> Forward:
        """Feed tokens after the cache's end, a chain or a tree.

        Logits are float32 [n, vocab], features float32 [n, hidden], all copied.

        More than PASS_ROWS tokens take several passes of llama.cpp. In check mode a single token is fed
        with a throw-away neighbour, so that it is computed by the kernels for several rows. Raises
        SpecviewError where the cache is full or the tree has more leaves than the session has branches.
        """
        if parents is not None and len(parents) != len(tokens):
            raise ValueError(f"{len(parents)} parents for {len(tokens)} tokens")
        tree = None if parents is None else token_tree(tuple(parents))
        count = len(tokens)
        self._need_room(count)
        if features:
            self._prepare_features(features)
        base = self.length
        logits = np.empty((count, self._vocab_size), dtype=np.float32)
        found = self._empty_features(features, count)
        if tree is None or tree.is_chain:
            self._last = None
            self._chain(tokens, logits, found)
            self._last = _LastPass(base, count, None)
            return Forward(logits, found)
        if len(tree.branches) > self.branches:
            raise SpecviewError(
                f"A draft tree of {len(tree.branches)} leaves does not fit a cache made for {self.branches}.",
                "Draft fewer branches.",
            )
        last = _LastPass(base, count, tree)
        self._last = None
        try:
            if self._check_mode:
                self._branch_by_branch(last, tokens, logits, found)
            else:
                self._tree(tree, tokens, logits, found)
        except SpecviewError:
            self.length = base
            self._remove(base)
            raise
        self.length = base + count
        self._last = last
        return Forward(logits, found)

    def keep(self, path: Sequence[int]) -> None:
        """Of the last forward's tokens keep those of a path from the root, by index, in order.

        The rest are dropped; length is that before the forward plus len(path). Raises ValueError where
        path is none, or no forward went before.
        """
        self._need_open()
        last = self._last
        if last is None:
            raise ValueError("there is no last pass to keep a path of")
        tree = last.tree
        if tree is None:
            if list(path) != list(range(len(path))) or len(path) > last.count:
                raise ValueError(f"{list(path)} is not a path from the root of the last pass")
            self.truncate(last.base + len(path))
            return
        kept = tree.require_path(path)
        self._last = None
        if self._check_mode:
            shared = shared_length(last.cached, kept)
            self.length = last.base + len(last.cached)
            self._cut(last.base + shared)
            for start in range(shared, len(kept), self._width):
                self._pass([last.tokens[index] for index in kept[start : start + self._width]], None, {}, False)
            return
        length = last.base + len(kept)
        if len(kept) < tree.height:
            self._remove(length)
        self.length = length
        chosen = tree.first[kept[-1]] if kept else 0
        order, held = self._order, self._held
        for branch, nodes in enumerate(tree.branches):
            shared = shared_length(nodes, kept)
            sequence = int(order[branch])
            if shared < len(kept):
                self._remove(last.base + shared, sequence)
            held[sequence] = last.base + shared
        order[0], order[chosen] = order[chosen], order[0]

    def truncate(self, length: int) -> None:
        """Roll back to the first `length` tokens: their cells are kept, the later ones are freed."""
        self._need_open()
        last = self._last
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate {self.length} tokens to {length}")
        if last is not None and last.tree is not None and length > last.base:
            raise ValueError(f"after a tree only keep, or truncate to {last.base} or less, may follow")
        self._last = None
        self._cut(length)

    def synchronize(self) -> None:
        """Wait for the device, so that a clock read after it is true."""
        self._need_open()
        self._lib.llama_synchronize(self._context)

    def abandon(self) -> None:
        """Leave the context to a thread that will never come out of it: it is not freed."""
        self._release.detach()
        self._engine.contexts.forget(self._context)
        self._context = None

    def close(self) -> None:
        """Free the cache; the session cannot be used afterwards."""
        self._release()
        self._context = None

    def _need_open(self) -> None:
        if self._context not in self._engine.contexts:
            raise ValueError("the session is closed")

    def _need_room(self, count: int) -> None:
        self._need_open()
        if self._last is not None and self._last.tree is not None:
            raise ValueError(f"after a tree only keep, or truncate to {self._last.base} or less, may follow")
        if self.length + count > self.max_length:
            raise SpecviewError(
                f"{self.length + count:,} tokens do not fit into a cache of {self.max_length:,}.",
                "Use a shorter prompt or fewer tokens.",
            )

    def _prepare_features(self, features: Sequence[Any]) -> None:
        """See that the context can give these; raises SpecviewError where it cannot."""
        if not features:
            return
        require_features(features, self._engine.layers, self._engine.features_problem)
        inner = {feature for feature in features if feature != "last"} - self._kept
        if not inner or self._watch is not None:
            return
        calls = layer_inputs() if self._engine.keeps_layer_inputs and self._engine.layers not in inner else None
        if calls is None:
            self.watch_graph()
            return
        for layer in inner:
            calls.set(self._context, layer, True)
        self._kept |= inner

    def _empty_features(self, features: Sequence[Any], count: int) -> dict[Any, Any]:
        """Places for features of `count` tokens, float32 [count, hidden] each."""
        size = (count, self._engine.hidden_size)
        return {feature: np.empty(size, dtype=np.float32) for feature in features}

    def _chain(self, tokens: Sequence[int], logits: Any, found: Mapping[Any, Any]) -> None:
        """Feed a chain to the trunk, in passes of at most so many rows as the buffer holds."""
        count = len(tokens)
        if count <= self._rows:
            self._pass(tokens, logits, found, True)
        else:
            for start in range(0, count, self._rows):
                end = min(start + self._rows, count)
                self._pass(tokens[start:end], logits[start:end], _rows_of(found, start, end), True)

    def _pass(
        self, tokens: Sequence[int], logits: Any | None, found: Mapping[Any, Any], outputs: bool
    ) -> None:
        """Feed a chain in one pass and copy its logits out, where a place for them is given, and features.

        outputs: all rows go through the end of the last layer, the final norm and the head.
        """
        count = fed = len(tokens)
        self._tokens[:count] = tokens
        if self._check_mode and count == 1:
            # The neighbour asks for logits too, or the last layer would still see a single row.
            self._tokens[1] = self._tokens[0]
            fed = 2
        batch = self._batch
        batch.n_tokens = fed
        batch.pos = ctypes.cast(self._positions_address + 4 * self.length, _INT32_POINTER)
        batch.logits = self._output_pointer if outputs else self._no_output_pointer
        self._decode(fed, logits, found)
        if fed > count:
            self._remove(self.length + count)
        self.length += count
        self._held[self._order[0]] = self.length

    def _tree(
        self, tree: TokenTree, tokens: Sequence[int], logits: Any, found: Mapping[Any, Any]
    ) -> None:
        """Feed a tree, each branch as a sequence, in passes of at most so many rows as the buffer holds."""
        used = len(tree.branches)
        trunk = int(self._order[0])
        for sequence in self._order[1:used].tolist():
            if self._held[sequence] < self.length:
                self._lib.llama_memory_seq_cp(self._memory, trunk, sequence, self._held[sequence], self.length)
                self._held[sequence] = self.length
        count = len(tokens)
        positions = np.asarray(tree.depths, dtype=np.int32) + self.length
        addresses = self._order.ctypes.data + self._order.itemsize * np.asarray(tree.first, dtype=np.uintp)
        batch = self._batch
        for start in range(0, count, self._rows):
            end = min(start + self._rows, count)
            fed = end - start
            self._tokens[:fed] = tokens[start:end]
            self._tree_positions[:fed] = positions[start:end]
            self._tree_counts[:fed] = tree.count[start:end]
            self._tree_sequences[:fed] = addresses[start:end]
            batch.n_tokens = fed
            batch.pos = pointer(self._tree_positions, ctypes.c_int32)
            batch.n_seq_id = pointer(self._tree_counts, ctypes.c_int32)
            batch.seq_id = ctypes.cast(self._tree_sequences.ctypes.data, _INT32_POINTERS)
            batch.logits = self._output_pointer
            try:
                self._decode(fed, logits[start:end], _rows_of(found, start, end))
            finally:
                batch.n_seq_id = self._one_pointer
                batch.seq_id = self._trunk_pointer

    def _branch_by_branch(
        self, last: _LastPass, tokens: Sequence[int], logits: Any, found: Mapping[Any, Any]
    ) -> None:
        """Feed a tree as chains: each branch from where it leaves the one before it."""
        assert last.tree is not None
        last.tokens = list(tokens)
        for branch in last.tree.branches:
            shared = shared_length(last.cached, branch)
            self._cut(last.base + shared)
            new = list(branch[shared:])
            rows = np.empty((len(new), self._vocab_size), dtype=np.float32)
            given = self._empty_features(tuple(found), len(new))
            self._chain([tokens[index] for index in new], rows, given)
            logits[new] = rows
            for feature, values in given.items():
                found[feature][new] = values
            last.cached = branch

    def _decode(self, fed: int, logits: Any | None, found: Mapping[Any, Any]) -> None:
        """Run the batch; copy the first rows of its logits out, where a place for them is given, and features."""
        last = found.get("last") if found else None
        if self._gives_last != (last is not None):
            self._gives_last = last is not None
            self._lib.llama_set_embeddings(self._context, self._gives_last)
        watch = self._watch
        if watch is not None and found:
            nodes = self._engine.stream_nodes
            watch.want({nodes[feature]: rows for feature, rows in found.items() if feature != "last"}, fed)
        result = self._lib.llama_decode(self._context, self._batch)
        missing = watch.finish() if watch is not None else ()
        if result != 0 or missing:
            # What the failed pass left in the cache must not be seen by the next one.
            self._remove(self.length)
            if missing:
                raise SpecviewError(f"This model gives no features: {NO_NODES}.", "Choose another drafting method.")
            raise SpecviewError(
                f"llama.cpp could not run a pass of {fed} tokens (code {result}): {last_error()}.",
                "Try again with a shorter prompt or fewer GPU layers.",
            )
        if logits is not None:
            source = self._lib.llama_get_logits(self._context)  # waits for the device
            ctypes.memmove(logits.ctypes.data, source, logits.nbytes)
        if last is not None:
            source = self._lib.llama_get_embeddings(self._context)
            ctypes.memmove(last.ctypes.data, source, last.nbytes)
        if found and watch is None:
            calls = layer_inputs()
            for feature, rows in found.items():
                if feature != "last":
                    assert calls is not None
                    ctypes.memmove(rows.ctypes.data, calls.get(self._context, feature), rows.nbytes)

    def _cut(self, length: int) -> None:
        """Roll the context back to its first `length` tokens."""
        if length < self.length:
            self._remove(length)
            self.length = length
            self._held = [min(held, length) for held in self._held]

    def _remove(self, length: int, sequence: int | None = None) -> None:
        """Free the cells from position `length` on, of one sequence or of all."""
        if sequence is None:
            sequence = -1 if len(self._held) > 1 else 0
        if not self._lib.llama_memory_seq_rm(self._memory, sequence, length, -1):
            raise SpecviewError(
                f"{self._engine.model_name} cannot roll its cache back.", "Use plain decoding or another model."
            )


def keeps_scores(engine: LlamaCppModel, cells: int) -> bool:
    """Whether attention over so many cells is by plain products, whose scores are kept."""
    fit = PASS_ROWS * score_bytes(engine, cells) <= SCORES_BYTES
    return fit and not engine.check_mode and not engine.gpu_layers


def score_bytes(engine: LlamaCppModel, cells: int) -> int:
    """Bytes of attention scores per token of a pass."""
    return 4 * cells * engine.heads


def pass_tokens(engine: LlamaCppModel, cells: int) -> int:
    """Most tokens of one pass over so many cells."""
    if engine.check_mode:
        return min(CHECKED_PASS_TOKENS, cells)
    most = PASS_TOKENS
    if keeps_scores(engine, cells):
        most = max(PASS_ROWS, min(most, SCORES_BYTES // score_bytes(engine, cells)))
    return min(most, cells)


@dataclass(slots=True)
class _LastPass:
    """What `keep` must know of the last forward: length before it, its tokens, its tree (None: a chain).

    In check mode the tokens' ids, and the branch whose cells are in the cache.
    """

    base: int
    count: int
    tree: TokenTree | None
    tokens: list[int] = field(default_factory=list)
    cached: tuple[int, ...] = ()


_INT32_POINTER = ctypes.POINTER(ctypes.c_int32)
_INT32_POINTERS = ctypes.POINTER(_INT32_POINTER)


def _rows_of(found: Mapping[Any, Any], start: int, end: int) -> dict[Any, Any]:
    """Views of some rows of each feature."""
    return {feature: rows[start:end] for feature, rows in found.items()}
