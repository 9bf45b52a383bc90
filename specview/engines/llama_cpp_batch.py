"""Several sequences in one llama_decode, to measure what sharing a device costs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from specview.engines.batch import Probe, least_s
from specview.engines.llama_cpp_context import Batch, Context, LlamaCppModel, pass_error
from specview.engines.llama_cpp_library import llama
from specview.engines.llama_cpp_session import PASS_TOKENS, keeps_scores, pass_tokens

_CELLS = 256  # llama.cpp rounds a sequence's cells up to this
_MEND = "Measure fewer sequences or a shorter context."


class LlamaCppBatch(Probe):
    """B sequences in a context of their own (interfaces.BatchProbe).

    Each sequence has cells of its own (no unified cache, where attention would scan the others'), attention is
    that of the engine's sessions (LlamaCppSession says when it is flash attention), and a pass is one llama_decode
    with logits for every token.
    """

    def __init__(self, engine: LlamaCppModel, sequences: int, context: int, rows: int) -> None:
        width = pass_width(engine, sequences, context, rows)
        super().__init__(sequences, context + rows, width)
        self._lib = lib = llama()
        self._engine = engine
        plain = keeps_scores(engine, self._max_length)
        settings = {"flash_attn_type": lib.LLAMA_FLASH_ATTN_TYPE_DISABLED} if plain else {}
        self._context = Context(
            engine,
            sequences * -(-self._max_length // _CELLS) * _CELLS,
            width,
            f"a cache for {sequences} sequences of {self._max_length:,} tokens",
            _MEND,
            n_seq_max=sequences,
            kv_unified=False,
            n_outputs_max=sequences * rows,
            **settings,
        )
        self.how = f"one llama_decode, cells of its own for each sequence, {'plain' if plain else 'flash'} attention"
        embedding = engine.tensors.get("token_embd.weight")
        apart = embedding if embedding is not None and "output.weight" in engine.tensors else None
        self.product_weights = lib.llama_model_n_params(engine.model_pointer) - (apart.elements if apart else 0)
        self.read_bytes = engine.weight_bytes - (apart.n_bytes if apart else 0)
        self._batch = Batch(width, np.arange(sequences, dtype=np.int32))

    def _empty(self) -> None:
        self._context.require_open("probe")
        self._lib.llama_memory_clear(self._context.memory, False)

    def _feed(self, tokens: Sequence[int]) -> None:
        self._decode([tokens], None)

    def _share(self) -> None:
        for sequence in range(1, self.sequences):
            self._lib.llama_memory_seq_cp(self._context.memory, 0, sequence, -1, -1)

    def _pass(self, tokens: Sequence[Sequence[int]]) -> Any:
        self._context.require_open("probe")
        logits = np.empty((self.sequences, len(tokens[0]), self._engine.vocab_size), dtype=np.float32)
        self._decode(tokens, logits)
        return logits

    def _cut(self, length: int) -> None:
        self._context.require_open("probe")
        for sequence in range(self.sequences):
            self._context.remove(length, sequence)

    def synchronize(self) -> None:
        """Wait for the device, so that a clock read after it is true."""
        self._context.require_open("probe")
        self._context.synchronize()

    def product_rate(self) -> tuple[float, str]:
        """Measure a wide pass of one sequence without logits: operations per second (two per weight and row), and how.

        Attention's products are not counted, and of the last layer llama.cpp leaves out what only logits would need:
        a few percent each, in opposite directions.
        """
        rows = min(PASS_TOKENS, self._engine.context_length, self._chunk, self._max_length)
        head = self._engine.vocab_size * self._engine.hidden_size
        self.length = 0

        def run() -> None:
            self._empty()
            self._feed([0] * rows)
            self.synchronize()

        seconds = least_s(run)
        self._empty()
        return 2 * (self.product_weights - head) * rows / seconds, f"llama.cpp's own pass of {rows} rows without the head"

    def read_rate(self) -> tuple[float, str] | None:
        """None: llama.cpp offers no such measurement."""
        return None

    def close(self) -> None:
        """Free the sequences."""
        self._context.close()

    def _decode(self, tokens: Sequence[Sequence[int]], logits: Any | None) -> None:
        """Run one pass over the first len(tokens) sequences, from `length` on."""
        each, fed = len(tokens[0]), len(tokens) * len(tokens[0])
        batch = self._batch
        batch.tokens[:fed] = np.asarray(tokens, dtype=np.int32).reshape(-1)
        batch.positions[:fed] = np.tile(np.arange(self.length, self.length + each, dtype=np.int32), len(tokens))
        batch.sequences[:fed] = np.repeat(batch.addresses(np.arange(len(tokens))), each)
        batch.output[:fed] = logits is not None
        batch.raw.n_tokens = fed
        result = self._lib.llama_decode(self._context.pointer, batch.raw)
        if result != 0:
            raise pass_error(fed, result, _MEND)
        if logits is not None:
            source = self._lib.llama_get_logits(self._context.pointer)  # waits for the device
            ctypes.memmove(logits.ctypes.data, source, logits.nbytes)


def pass_width(engine: LlamaCppModel, sequences: int, context: int, rows: int) -> int:
    """Most tokens of one pass of such a probe."""
    return max(sequences * rows, pass_tokens(engine, context + rows))
