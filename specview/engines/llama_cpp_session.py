"""One sequence in llama.cpp: a context of its own over the model's shared weights."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from specview.engines.llama_cpp_context import INT32_POINTER, Batch, Context, LlamaCppModel, pass_error
from specview.engines.llama_cpp_features import NO_NODES, GraphWatch, layer_inputs
from specview.engines.llama_cpp_library import forget_errors, last_error, llama, pointer
from specview.engines.session import Fed, Rows, SequenceSession, require_features
from specview.engines.tree import Tree, shared_length
from specview.errors import SpecviewError

PASS_TOKENS = 256
"""Most tokens of one llama.cpp pass, and those between two chances to stop a prefill."""

PASS_ROWS = 96
"""Most logit rows of one pass; it sizes a buffer of PASS_ROWS x vocab floats."""

CHECKED_PASS_TOKENS = 32
"""Most tokens of one pass in check mode: from 64 on, llama.cpp's attention takes another kernel."""

SCORES_BYTES = 512 << 20
"""Most memory for attention scores, where a pass keeps them all: cells x tokens x heads floats."""


class LlamaCppSession(SequenceSession):
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

    In check mode a single token is fed with a throw-away neighbour, so that it is computed by the kernels for several rows.

    Features cost nothing until some are asked for. The last hidden state then comes with the logits. Inner
    layers' are kept by llama.cpp where the model's architecture can (llama_cpp_features.layer_inputs); else, when
    they are first wanted, the context is made anew with a callback on its graph (GraphWatch), its
    cells copied.
    """

    _join = staticmethod(np.concatenate)

    def __init__(self, engine: LlamaCppModel, max_length: int, branches: int = 1) -> None:
        super().__init__(max_length, engine.check_mode)
        self._lib = llama()
        self._engine = engine
        self._vocab_size = engine.vocab_size
        self.branches = branches
        sequences = 1 if engine.check_mode else min(branches, max_length)
        self._cells = cells = max_length + 1 if engine.check_mode else max_length  # room for the throw-away token
        self._width = width = pass_tokens(engine, cells)
        self._rows = min(PASS_ROWS, width)
        self._watch: GraphWatch | None = None
        self._gives_last = False  # whether the context keeps last hidden states
        self._kept: set[int] = set()  # layers whose input it keeps
        # Sequence ids: the trunk first. A token's are a run of these.
        self._order = np.arange(sequences, dtype=np.int32)
        self._held = [0] * sequences  # per sequence the tokens of the context that it holds
        self._open_context()
        # One batch for all chains, one for all trees.
        self._batch = Batch(width, self._order)
        self._positions = np.arange(cells + width, dtype=np.int32)
        self._positions_address = self._positions.ctypes.data
        self._batch.output[:] = 1
        self._no_output = np.zeros(width, dtype=np.int8)
        self._output_pointer = pointer(self._batch.output, ctypes.c_int8)
        self._no_output_pointer = pointer(self._no_output, ctypes.c_int8)
        self._tree_batch = Batch(self._rows, self._order)
        self._tree_batch.output[:] = 1

    @property
    def context_pointer(self) -> Any:
        """The `llama_context *`, as it is now."""
        return self._context.pointer

    def _open_context(self) -> None:
        """Make the llama.cpp context, with the callback where there is a watch."""
        engine, sequences = self._engine, len(self._order)
        settings: dict[str, Any] = {
            "n_seq_max": sequences,
            "n_outputs_max": max(self._rows, sequences),  # llama.cpp wants a row for every sequence
        }
        if sequences > 1:
            settings["kv_unified"] = True  # one pool of cells, which sequences share
        if keeps_scores(engine, self._cells):
            settings["flash_attn_type"] = self._lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        if self._watch is not None:
            settings["cb_eval"] = self._watch.callback
        what = f"a cache for {self.max_length:,} tokens"
        self._context = Context(engine, self._cells, self._width, what, "Ask for fewer tokens, or free memory.", **settings)
        if not self._context.memory:
            self.close()
            raise SpecviewError(f"{engine.model_name} does not generate text.", "Choose a text-generating model.")

    def watch_graph(self) -> GraphWatch:
        """Return the callback on the graph; where there is none yet, the context is made anew with one."""
        if self._watch is None:
            state = self._read_state() if self.length else None
            self._context.close()
            self._watch = GraphWatch(self._engine.hidden_size)
            self._gives_last = False
            self._kept = set()
            self._open_context()
            if state is not None and not self._lib.llama_state_set_data(self._context.pointer, state, len(state)):
                self.close()
                raise SpecviewError(
                    f"llama.cpp could not copy a cache of {self.length:,} tokens: {last_error()}.",
                    "Ask for features from the first pass on, or free memory.",
                )
        return self._watch

    def _read_state(self) -> Any:
        """The context's cells, as llama.cpp saves them."""
        size = self._lib.llama_state_get_size(self._context.pointer)
        state = (ctypes.c_uint8 * size)()
        forget_errors()
        self._lib.llama_state_get_data(self._context.pointer, state, size)
        return state

    def synchronize(self) -> None:
        """Wait for the device, so that a clock read after it is true."""
        self._need_open()
        self._context.synchronize()

    def abandon(self) -> None:
        """Leave the context to a thread that will never come out of it: it is not freed."""
        self._context.abandon()

    def close(self) -> None:
        """Free the cache; the session cannot be used afterwards."""
        self._context.close()

    def _need_open(self) -> None:
        self._context.require_open("session")

    def _prepare(self, features: Sequence[Any]) -> int:
        engine = self._engine
        if not features:
            return self._width
        require_features(features, engine.layers, engine.features_problem)
        inner = {feature for feature in features if feature != "last"} - self._kept
        if inner and self._watch is None:
            calls = layer_inputs() if engine.keeps_layer_inputs and engine.layers not in inner else None
            if calls is None:
                self.watch_graph()
            else:
                for layer in inner:
                    calls.set(self._context.pointer, layer, True)
                self._kept |= inner
        return self._rows if self._needs_outputs(features) else self._width

    def _needs_outputs(self, features: Sequence[Any]) -> bool:
        """Whether a prefill's rows are output rows: what is behind the last layer is computed for those only."""
        return "last" in features or self._engine.layers in features

    def _empty_features(self, features: Sequence[Any], count: int) -> dict[Any, Any]:
        """Places for features of `count` tokens, float32 [count, hidden] each."""
        size = (count, self._engine.hidden_size)
        return {feature: np.empty(size, dtype=np.float32) for feature in features}

    def _feed(self, tokens: Sequence[int], features: Sequence[Any]) -> Mapping[Any, Any]:
        found = self._empty_features(features, len(tokens))
        self._pass(tokens, None, found, self._needs_outputs(features))
        return found

    def _chain(self, tokens: Sequence[int], features: Sequence[Any]) -> Rows:
        """Feed a chain to the trunk, in passes of at most so many rows as the buffer holds."""
        count = len(tokens)
        logits = np.empty((count, self._vocab_size), dtype=np.float32)
        found = self._empty_features(features, count)
        if count <= self._rows:
            self._pass(tokens, logits, found, True)
        else:
            for start in range(0, count, self._rows):
                end = min(start + self._rows, count)
                self._pass(tokens[start:end], logits[start:end], _rows_of(found, start, end), True)
        return logits, found

    def _pass(self, tokens: Sequence[int], logits: Any | None, found: Mapping[Any, Any], outputs: bool) -> None:
        """Feed a chain in one pass and copy its logits out, where a place for them is given, and features.

        outputs: all rows go through the end of the last layer, the final norm and the head.
        """
        count = fed = len(tokens)
        batch = self._batch
        batch.tokens[:count] = tokens
        if self._check_mode and count == 1:
            # The neighbour asks for logits too, or the last layer would still see a single row.
            batch.tokens[1] = batch.tokens[0]
            fed = 2
        raw = batch.raw
        raw.n_tokens = fed
        raw.pos = ctypes.cast(self._positions_address + 4 * self.length, INT32_POINTER)
        raw.logits = self._output_pointer if outputs else self._no_output_pointer
        self._decode(raw, fed, logits, found)
        if fed > count:
            self._remove(self.length + count)
        self.length += count
        self._held[self._order[0]] = self.length

    def _require_tree(self, tree: Tree) -> None:
        if len(tree.branches) > self.branches:
            raise SpecviewError(
                f"A draft tree of {len(tree.branches)} leaves does not fit a cache made for {self.branches}.",
                "Draft fewer branches.",
            )

    def _whole_tree(self, tokens: Sequence[int], tree: Tree, features: Sequence[Any]) -> Rows:
        """Feed a tree, each branch as a sequence, in passes of at most so many rows as the buffer holds."""
        trunk = int(self._order[0])
        for sequence in self._order[1 : len(tree.branches)].tolist():
            if self._held[sequence] < self.length:
                self._lib.llama_memory_seq_cp(self._context.memory, trunk, sequence, self._held[sequence], self.length)
                self._held[sequence] = self.length
        count = len(tokens)
        logits = np.empty((count, self._vocab_size), dtype=np.float32)
        found = self._empty_features(features, count)
        positions = np.asarray(tree.depths, dtype=np.int32) + self.length
        batch = self._tree_batch
        first, through = tree.spans
        addresses = batch.addresses(first)
        try:
            for start in range(0, count, self._rows):
                end = min(start + self._rows, count)
                fed = end - start
                batch.tokens[:fed] = tokens[start:end]
                batch.positions[:fed] = positions[start:end]
                batch.counts[:fed] = through[start:end]
                batch.sequences[:fed] = addresses[start:end]
                batch.raw.n_tokens = fed
                self._decode(batch.raw, fed, logits[start:end], _rows_of(found, start, end))
        except SpecviewError:
            self._remove(self.length)
            raise
        return logits, found

    def _keep(self, fed: Fed, path: tuple[int, ...]) -> None:
        length, tree = fed.start + len(path), fed.tree
        if tree is None:
            self._cut(length)
            return
        if len(path) < tree.height:
            self._remove(length)
        self.length = length
        chosen = tree.spans[0][path[-1]] if path else 0
        order, held = self._order, self._held
        for branch, nodes in enumerate(tree.branches):
            shared = shared_length(nodes, path)
            sequence = int(order[branch])
            if shared < len(path):
                self._remove(fed.start + shared, sequence)
            held[sequence] = fed.start + shared
        order[0], order[chosen] = order[chosen], order[0]

    def _feed_again(self, tokens: Sequence[int]) -> None:
        for start in range(0, len(tokens), self._width):
            self._pass(tokens[start : start + self._width], None, {}, False)

    def _decode(self, batch: Any, fed: int, logits: Any | None, found: Mapping[Any, Any]) -> None:
        """Run a batch; copy the first rows of its logits out, where a place for them is given, and features."""
        context = self._context.pointer
        last = found.get("last") if found else None
        if self._gives_last != (last is not None):
            self._gives_last = last is not None
            self._lib.llama_set_embeddings(context, self._gives_last)
        watch = self._watch
        if watch is not None and found:
            nodes = self._engine.stream_nodes
            watch.want({nodes[feature]: rows for feature, rows in found.items() if feature != "last"}, fed)
        result = self._lib.llama_decode(context, batch)
        missing = watch.finish() if watch is not None else ()
        if result != 0 or missing:
            # What the failed pass left in the cache must not be seen by the next one.
            self._remove(self.length)
            if missing:
                raise SpecviewError(f"This model gives no features: {NO_NODES}.", "Choose another drafting method.")
            raise pass_error(fed, result, "Try again with a shorter prompt or fewer GPU layers.")
        if logits is not None:
            source = self._lib.llama_get_logits(context)  # waits for the device
            ctypes.memmove(logits.ctypes.data, source, logits.nbytes)
        if last is not None:
            source = self._lib.llama_get_embeddings(context)
            ctypes.memmove(last.ctypes.data, source, last.nbytes)
        if found and watch is None:
            calls = layer_inputs()
            for feature, rows in found.items():
                if feature != "last":
                    assert calls is not None
                    ctypes.memmove(rows.ctypes.data, calls.get(context, feature), rows.nbytes)

    def _cut(self, length: int) -> None:
        if length < self.length:
            self._remove(length)
            self.length = length
            self._held = [min(held, length) for held in self._held]

    def _remove(self, length: int, sequence: int | None = None) -> None:
        """Free the cells from position `length` on, of one sequence or of all."""
        if sequence is None:
            sequence = -1 if len(self._held) > 1 else 0
        self._context.remove(length, sequence)


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


def _rows_of(found: Mapping[Any, Any], start: int, end: int) -> dict[Any, Any]:
    """Views of some rows of each feature."""
    return {feature: rows[start:end] for feature, rows in found.items()}
