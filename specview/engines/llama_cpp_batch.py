"""Several sequences in one llama_decode, to measure what sharing a device costs."""

from __future__ import annotations

import ctypes
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from specview.decoding.interfaces import OnChunk
from specview.engines.llama_cpp_library import forget_errors, last_error, llama, pointer
from specview.engines.llama_cpp_model import LlamaCppModel
from specview.engines.llama_cpp_session import PASS_TOKENS, keeps_scores, pass_tokens
from specview.errors import SpecviewError

_CELLS = 256  # llama.cpp rounds a sequence's cells up to this
_REPEATS = 3


class LlamaCppBatch:
    """B sequences in a context of their own (interfaces.BatchProbe).

    Each sequence has cells of its own (no unified cache, where attention would scan the others'), attention is
    that of the engine's sessions (LlamaCppSession says when it is flash attention), and a pass is one llama_decode
    with logits for every token.
    """

    def __init__(self, engine: LlamaCppModel, sequences: int, context: int, rows: int) -> None:
        self._lib = lib = llama()
        self._engine = engine
        self.sequences = sequences
        self.length = 0
        self._max_length = context + rows
        self._width = width = pass_width(engine, sequences, context, rows)
        plain = keeps_scores(engine, self._max_length)
        params = lib.llama_context_default_params()
        params.n_ctx = sequences * -(-self._max_length // _CELLS) * _CELLS
        params.n_batch = params.n_ubatch = width
        params.n_seq_max = sequences
        params.kv_unified = False
        params.n_outputs_max = sequences * rows
        params.n_threads = params.n_threads_batch = engine.threads
        params.swa_full = True
        params.no_perf = True
        params.offload_kqv = engine.gpu_layers != 0
        if plain:
            params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        forget_errors()
        context_pointer = lib.llama_init_from_model(engine.model_pointer, params)
        if not context_pointer:
            raise SpecviewError(
                f"llama.cpp could not make a cache for {sequences} sequences of {self._max_length:,} tokens: "
                f"{last_error()}.",
                "Measure fewer sequences or a shorter context.",
            )
        self._context: Any = context_pointer
        engine.contexts.add(context_pointer)
        self._release = weakref.finalize(self, engine.contexts.free, context_pointer)
        self._memory = lib.llama_get_memory(context_pointer)
        self.how = f"one llama_decode, cells of its own for each sequence, {'plain' if plain else 'flash'} attention"
        embedding = engine.tensors.get("token_embd.weight")
        apart = embedding if embedding is not None and "output.weight" in engine.tensors else None
        self.product_weights = lib.llama_model_n_params(engine.model_pointer) - (apart.elements if apart else 0)
        self.read_bytes = engine.weight_bytes - (apart.n_bytes if apart else 0)
        self._batch = batch = lib.llama_batch()
        self._tokens = np.zeros(width, dtype=np.int32)
        self._positions = np.zeros(width, dtype=np.int32)
        self._one = np.ones(width, dtype=np.int32)
        self._ids = np.arange(sequences, dtype=np.int32)
        self._sequence_pointers = np.zeros(width, dtype=np.uintp)
        self._output = np.zeros(width, dtype=np.int8)
        batch.token = pointer(self._tokens, ctypes.c_int32)
        batch.pos = pointer(self._positions, ctypes.c_int32)
        batch.n_seq_id = pointer(self._one, ctypes.c_int32)
        batch.seq_id = ctypes.cast(self._sequence_pointers.ctypes.data, ctypes.POINTER(ctypes.POINTER(ctypes.c_int32)))
        batch.logits = pointer(self._output, ctypes.c_int8)

    def fill(self, tokens: Sequence[int], on_chunk: OnChunk | None = None) -> None:
        """Give every sequence these tokens: the first one is prefilled, the others get a copy of its cells."""
        self._need_room(len(tokens))
        self._need_open()
        self._lib.llama_memory_clear(self._memory, False)
        self.length = 0
        total = len(tokens)
        for begin in range(0, total, self._width):
            chunk = tokens[begin : begin + self._width]
            self._decode([chunk], None)
            self.length = begin + len(chunk)
            if on_chunk is not None:
                self.synchronize()
                on_chunk(self.length, total)
        for sequence in range(1, self.sequences):
            self._lib.llama_memory_seq_cp(self._memory, 0, sequence, -1, -1)
        self.synchronize()

    def forward(self, tokens: Sequence[Sequence[int]]) -> Any:
        """Feed n tokens to each sequence in one pass; return float32 logits [sequences, n, vocab], copied."""
        each = len(tokens[0])
        self._need_room(self.length + each)
        self._need_open()
        if len(tokens) != self.sequences or any(len(row) != each for row in tokens):
            raise ValueError(f"a pass takes as many tokens of each of {self.sequences} sequences")
        logits = np.empty((self.sequences, each, self._engine.vocab_size), dtype=np.float32)
        self._decode(tokens, logits)
        self.length += each
        return logits

    def truncate(self, length: int) -> None:
        """Roll every sequence back to its first `length` tokens."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate {self.length} tokens to {length}")
        self._need_open()
        for sequence in range(self.sequences):
            if not self._lib.llama_memory_seq_rm(self._memory, sequence, length, -1):
                raise SpecviewError(f"{self._engine.model_name} cannot roll its cache back.", "Choose another model.")
        self.length = length

    def synchronize(self) -> None:
        """Wait for the device, so that a clock read after it is true."""
        self._need_open()
        self._lib.llama_synchronize(self._context)

    def product_rate(self) -> tuple[float, str]:
        """Measure a wide pass of one sequence without logits: operations per second (two per weight and row), and how.

        Attention's products are not counted, and of the last layer llama.cpp leaves out what only logits would need:
        a few percent each, in opposite directions.
        """
        rows = min(PASS_TOKENS, self._engine.context_length, self._width, self._max_length)
        head = self._engine.vocab_size * self._engine.hidden_size
        best = float("inf")
        for repeat in range(1 + _REPEATS):
            self._lib.llama_memory_clear(self._memory, False)
            self.length = 0
            begin = time.perf_counter()
            self._decode([[0] * rows], None)
            self.synchronize()
            best = min(best, time.perf_counter() - begin) if repeat else best
        self._lib.llama_memory_clear(self._memory, False)
        return 2 * (self.product_weights - head) * rows / best, f"llama.cpp's own pass of {rows} rows without the head"

    def read_rate(self) -> tuple[float, str] | None:
        """None: llama.cpp offers no such measurement."""
        return None

    def close(self) -> None:
        """Free the sequences."""
        self._release()
        self._context = None

    def _decode(self, tokens: Sequence[Sequence[int]], logits: Any | None) -> None:
        """Run one pass over the first len(tokens) sequences, from `length` on."""
        each, fed = len(tokens[0]), len(tokens) * len(tokens[0])
        self._tokens[:fed] = np.asarray(tokens, dtype=np.int32).reshape(-1)
        self._positions[:fed] = np.tile(np.arange(self.length, self.length + each, dtype=np.int32), len(tokens))
        addresses = self._ids.ctypes.data + self._ids.itemsize * np.arange(len(tokens), dtype=np.uintp)
        self._sequence_pointers[:fed] = np.repeat(addresses, each)
        self._output[:fed] = logits is not None
        self._batch.n_tokens = fed
        result = self._lib.llama_decode(self._context, self._batch)
        if result != 0:
            raise SpecviewError(
                f"llama.cpp could not run a pass of {fed} tokens (code {result}): {last_error()}.",
                "Measure fewer sequences or a shorter context.",
            )
        if logits is not None:
            source = self._lib.llama_get_logits(self._context)  # waits for the device
            ctypes.memmove(logits.ctypes.data, source, logits.nbytes)

    def _need_open(self) -> None:
        if self._context not in self._engine.contexts:
            raise ValueError("the probe is closed")

    def _need_room(self, length: int) -> None:
        if length > self._max_length:
            raise ValueError(f"{length} tokens do not fit the {self._max_length} this probe was made for")


def pass_width(engine: LlamaCppModel, sequences: int, context: int, rows: int) -> int:
    """Most tokens of one pass of such a probe."""
    return max(sequences * rows, pass_tokens(engine, context + rows))
