"""Several sequences in one pass of a torch model, to measure what sharing a device costs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from specview.decoding.interfaces import OnChunk
from specview.engines.transformers_llama import LlamaRunner
from specview.engines.transformers_session import PREFILL_CHUNK
from specview.errors import SpecviewError

_WIDE_ROWS = 256  # of a pass whose products no longer wait for memory
_REPEATS = 3
_READ_BYTES = 512 << 20


class TransformersBatch:
    """B sequences over one runner (interfaces.BatchProbe).

    A Llama shape runs through the engine's own forward: one product per weight over all sequences' rows,
    attention sequence by sequence in one batched product. Any other model runs through transformers' forward
    over a cache with a batch dimension.
    """

    def __init__(self, runner: Any, sequences: int, max_length: int, weight_bytes: int) -> None:
        self.sequences = sequences
        self.length = 0  # tokens that each holds
        self._runner = runner
        self._max_length = max_length
        self._cache: Any = None
        own = isinstance(runner, LlamaRunner)
        self.how = (
            "specview's own forward, one product per weight over the rows of all sequences"
            if own
            else "transformers' own forward over a batched cache"
        )
        if own:
            shape = runner.shape
            attention = (2 * shape.heads + 2 * shape.kv_heads) * shape.width * shape.hidden
            self._layer_weights = shape.layers * (attention + 3 * shape.hidden * shape.intermediate)
            self.product_weights = self._layer_weights + shape.hidden * shape.vocab
            self.read_bytes: int = runner.product_bytes
        else:
            self.product_weights = runner.product_weights
            self._layer_weights = self.product_weights - runner.hidden_size * runner.vocab_size
            self.read_bytes = runner.product_bytes or weight_bytes

    def fill(self, tokens: Sequence[int], on_chunk: OnChunk | None = None) -> None:
        """Give every sequence these tokens: one sequence is prefilled, then copied."""
        self._need_room(len(tokens))
        self._cache = None
        try:
            cache, total = self._runner.new_cache(self._max_length), len(tokens)
            for begin in range(0, total, PREFILL_CHUNK):
                chunk = tokens[begin : begin + PREFILL_CHUNK]
                self._runner.run(chunk, begin, cache, logits=False)
                if on_chunk is not None:
                    self.synchronize()
                    on_chunk(begin + len(chunk), total)
            self._cache = cache if self.sequences == 1 else cache.repeated(self.sequences)
        except torch.OutOfMemoryError:
            raise self._too_large() from None
        self.length = total

    def forward(self, tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """Feed n tokens to each sequence in one pass; return float logits [sequences, n, vocab]."""
        each = len(tokens[0])
        self._need_room(self.length + each)
        if len(tokens) != self.sequences or any(len(row) != each for row in tokens):
            raise ValueError(f"a pass takes as many tokens of each of {self.sequences} sequences")
        if self._cache is None:
            raise ValueError("fill comes first")
        logits: torch.Tensor
        try:
            if self.sequences == 1:  # what a session runs
                rows, _ = self._runner.run(tokens[0], self.length, self._cache, logits=True)
                logits = rows.unsqueeze(0)
            else:
                logits = self._runner.run_batch(tokens, self.length, self._cache)
        except torch.OutOfMemoryError:
            raise self._too_large() from None
        self.length += each
        return logits

    def truncate(self, length: int) -> None:
        """Roll every sequence back to its first `length` tokens: a pointer move."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate {self.length} tokens to {length}")
        if self._cache is not None:
            self._cache.truncate(length)
        self.length = length

    def synchronize(self) -> None:
        """Wait for the device, so that a clock read after it is true."""
        kind = self._runner.device.type
        if kind == "cuda":
            torch.cuda.synchronize(self._runner.device)
        elif kind == "mps":
            torch.mps.synchronize()

    def product_rate(self) -> tuple[float, str]:
        """Measure matrix products of many rows: operations per second (two per weight and row), and how."""
        rows = min(_WIDE_ROWS, self._max_length) if not isinstance(self._runner, LlamaRunner) else _WIDE_ROWS

        def run() -> None:
            if isinstance(self._runner, LlamaRunner):
                self._runner.products(rows)
            else:
                self._runner.run([0] * rows, 0, self._runner.new_cache(rows), logits=False)
            self.synchronize()

        how = "the model's own matrix products" if isinstance(self._runner, LlamaRunner) else "a pass without the head"
        return 2 * self._layer_weights * rows / _least_s(run), f"{how}, {rows} rows"

    def read_rate(self) -> tuple[float, str] | None:
        """Measure a large copy on a GPU, in bytes per second read and written; None on a CPU."""
        device = self._runner.device
        if device.type == "cpu":
            return None
        source = torch.zeros(_READ_BYTES, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)

        def run() -> None:
            target.copy_(source)
            self.synchronize()

        return 2 * _READ_BYTES / _least_s(run), f"a copy of {_READ_BYTES >> 20} MiB on {device}"

    def close(self) -> None:
        """Free the sequences."""
        self._cache = None
        self.length = 0

    def _too_large(self) -> SpecviewError:
        return SpecviewError(
            f"{self.sequences} sequences of {self._max_length:,} tokens do not fit the memory of {self._runner.device}.",
            "Measure fewer sequences or a shorter context.",
        )

    def _need_room(self, length: int) -> None:
        if length > self._max_length:
            raise ValueError(f"{length} tokens do not fit the {self._max_length} this probe was made for")


def _least_s(run: Any) -> float:
    """The least seconds of a few runs after a first: a bound is what the machine can do at best."""
    run()
    best = float("inf")
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    return best
