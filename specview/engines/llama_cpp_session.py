"""One sequence in llama.cpp: a context of its own over the model's shared weights."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from specview.decoding.interfaces import Forward, OnChunk
from specview.engines.llama_cpp_library import forget_errors, last_error, llama
from specview.errors import SpecviewError

if TYPE_CHECKING:
    from specview.engines.llama_cpp_engine import LlamaCppEngine

PASS_TOKENS = 256
"""Most tokens of one llama.cpp pass, and those between two chances to stop a prefill."""

PASS_ROWS = 96
"""Most logit rows of one pass; it sizes a buffer of PASS_ROWS x vocab floats."""

CHECKED_PASS_TOKENS = 32
"""Most tokens of one pass in check mode: from 64 on, llama.cpp's attention takes another kernel."""


class LlamaCppSession:
    """A sequence with its own KV cache, for up to max_length tokens (interfaces.Session).

    The context owns its KV cache and nothing else of size: weights are the engine's. Logits are
    copied out of the context, whose buffer the next pass overwrites: rows stay true for as long as
    they are held (a draft's rows outlive several passes of its session).
    """

    def __init__(self, engine: LlamaCppEngine, max_length: int) -> None:
        self._lib = lib = llama()
        self._engine = engine
        self._check_mode = engine.check_mode
        self._vocab_size = engine.vocab_size
        self.max_length = max_length
        self.length = 0
        cells = max_length + 1 if engine.check_mode else max_length  # room for the throw-away token
        width = min(CHECKED_PASS_TOKENS if engine.check_mode else PASS_TOKENS, cells)
        rows = min(PASS_ROWS, width)
        params = lib.llama_context_default_params()
        params.n_ctx = cells
        params.n_batch = params.n_ubatch = width
        params.n_seq_max = 1
        params.n_outputs_max = rows
        params.n_threads = params.n_threads_batch = engine.threads
        params.swa_full = True  # a sliding window's cache keeps every cell, so that rollback finds them
        params.no_perf = True
        params.offload_kqv = engine.gpu_layers != 0
        forget_errors()
        context = lib.llama_init_from_model(engine.model_pointer, params)
        if not context:
            raise SpecviewError(
                f"llama.cpp could not make a cache for {max_length:,} tokens: {last_error()}.",
                "Ask for fewer tokens, or free memory.",
            )
        self._context: Any = context
        engine.contexts.add(context)
        self._release = weakref.finalize(self, engine.contexts.free, context)
        self._memory = lib.llama_get_memory(context)
        if not self._memory:
            self.close()
            raise SpecviewError(f"{engine.model_name} does not generate text.", "Choose a text-generating model.")
        self._width = width
        self._rows = rows
        # One batch for all passes: llama.cpp reads these arrays in place.
        self._tokens = np.zeros(width, dtype=np.int32)
        self._positions = np.arange(cells + width, dtype=np.int32)
        self._one = np.ones(width, dtype=np.int32)
        self._sequence = np.zeros(1, dtype=np.int32)
        self._sequences = np.full(width, self._sequence.ctypes.data, dtype=np.uintp)
        self._output = np.ones(width, dtype=np.int8)
        self._no_output = np.zeros(width, dtype=np.int8)
        self._batch = batch = lib.llama_batch()
        batch.token = _pointer(self._tokens, ctypes.c_int32)
        batch.n_seq_id = _pointer(self._one, ctypes.c_int32)
        batch.seq_id = ctypes.cast(self._sequences.ctypes.data, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32)))
        self._output_pointer = _pointer(self._output, ctypes.c_int8)
        self._no_output_pointer = _pointer(self._no_output, ctypes.c_int8)
        self._positions_address = self._positions.ctypes.data

    def prefill(self, tokens: Sequence[int], on_chunk: OnChunk | None = None) -> None:
        """Feed tokens without logits, in chunks; when `on_chunk` raises, what was fed stays."""
        self._need_room(len(tokens))
        total = len(tokens)
        for start in range(0, total, self._width):
            chunk = tokens[start : start + self._width]
            self._pass(chunk, None)
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
        """Feed a chain of tokens after the cache's end; logits float32 [n, vocab], copied.

        In check mode a single token is fed with a throw-away neighbour, so that it is computed by the
        kernels for several rows.
        """
        if parents is not None and list(parents) != list(range(-1, len(tokens) - 1)):
            raise ValueError("a llama.cpp session takes chains")
        if features:
            raise ValueError("a llama.cpp session gives no features")
        count = len(tokens)
        self._need_room(count)
        logits = np.empty((count, self._vocab_size), dtype=np.float32)
        if count <= self._rows:
            self._pass(tokens, logits)
        else:
            for start in range(0, count, self._rows):
                end = min(start + self._rows, count)
                self._pass(tokens[start:end], logits[start:end])
        return Forward(logits)

    def keep(self, path: Sequence[int]) -> None:
        """Of the last forward's tokens keep those of a path from the root, by index, in order."""
        raise NotImplementedError

    def truncate(self, length: int) -> None:
        """Roll back to the first `length` tokens: their cells are kept, the later ones are freed."""
        self._need_open()
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate {self.length} tokens to {length}")
        if length < self.length:
            self._remove(length)
            self.length = length

    def synchronize(self) -> None:
        """Wait for the device, so that a clock read after it is true."""
        self._need_open()
        self._lib.llama_synchronize(self._context)

    def close(self) -> None:
        """Free the cache; the session cannot be used afterwards."""
        self._release()
        self._context = None

    def _need_open(self) -> None:
        if self._context not in self._engine.contexts:
            raise ValueError("the session is closed")

    def _need_room(self, count: int) -> None:
        self._need_open()
        if self.length + count > self.max_length:
            raise SpecviewError(
                f"{self.length + count:,} tokens do not fit into a cache of {self.max_length:,}.",
                "Use a shorter prompt or fewer tokens.",
            )

    def _pass(self, tokens: Sequence[int], logits: Any | None) -> None:
        """Feed tokens in one pass and copy their logits out, where a place for them is given."""
        count = fed = len(tokens)
        self._tokens[:count] = tokens
        if self._check_mode and count == 1:
            # The neighbour asks for logits too, or the last layer would still see a single row.
            self._tokens[1] = self._tokens[0]
            fed = 2
        batch = self._batch
        batch.n_tokens = fed
        batch.pos = ctypes.cast(self._positions_address + 4 * self.length, _INT32_POINTER)
        batch.logits = self._no_output_pointer if logits is None else self._output_pointer
        result = self._lib.llama_decode(self._context, batch)
        if result != 0:
            # What the failed pass left in the cache must not be seen by the next one.
            self._lib.llama_memory_seq_rm(self._memory, 0, self.length, -1)
            raise SpecviewError(
                f"llama.cpp could not run a pass of {fed} tokens (code {result}): {last_error()}.",
                "Try again with a shorter prompt or fewer GPU layers.",
            )
        if logits is not None:
            source = self._lib.llama_get_logits(self._context)  # waits for the device
            ctypes.memmove(logits.ctypes.data, source, logits.nbytes)
        if fed > count:
            self._remove(self.length + count)
        self.length += count

    def _remove(self, length: int) -> None:
        if not self._lib.llama_memory_seq_rm(self._memory, 0, length, -1):
            raise SpecviewError(
                f"{self._engine.model_name} cannot roll its cache back.", "Use plain decoding or another model."
            )


_INT32_POINTER = ctypes.POINTER(ctypes.c_int32)


def _pointer(array: Any, kind: Any) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(kind))
