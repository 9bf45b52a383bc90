"""Several sequences in one pass of a torch model, to measure what sharing a device costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from specview.decoding.interfaces import OnChunk
from specview.engines.batch import Probe, least_s
from specview.engines.transformers_llama import LlamaRunner
from specview.engines.transformers_session import PREFILL_CHUNK, wait_for
from specview.errors import SpecviewError

_WIDE_ROWS = 256  # of a pass whose products no longer wait for memory
_READ_BYTES = 512 << 20


class TransformersBatch(Probe):
    """B sequences over one runner (interfaces.BatchProbe).

    A Llama shape runs through the engine's own forward: one product per weight over all sequences' rows,
    attention sequence by sequence in one batched product. Any other model runs through transformers' forward
    over a cache with a batch dimension.
    """

    def __init__(self, runner: Any, sequences: int, max_length: int, weight_bytes: int) -> None:
        super().__init__(sequences, max_length, PREFILL_CHUNK)
        self._runner = runner
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
        """Give every sequence these tokens: the first one is prefilled, the others get a copy."""
        with self._out_of_memory():
            super().fill(tokens, on_chunk)

    def _empty(self) -> None:
        self._cache = None
        self._cache = self._runner.new_cache(self._max_length)

    def _feed(self, tokens: Sequence[int]) -> None:
        self._runner.run(tokens, self.length, self._cache, logits=False)

    def _share(self) -> None:
        if self.sequences > 1:
            self._cache = self._cache.repeated(self.sequences)

    def _pass(self, tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        if self._cache is None:
            raise ValueError("fill comes first")
        logits: torch.Tensor
        with self._out_of_memory():
            if self.sequences == 1:  # what a session runs
                rows, _ = self._runner.run(tokens[0], self.length, self._cache, logits=True)
                logits = rows.unsqueeze(0)
            else:
                logits = self._runner.run_batch(tokens, self.length, self._cache)
        return logits

    def _cut(self, length: int) -> None:
        if self._cache is not None:
            self._cache.truncate(length)

    def synchronize(self) -> None:
        """Wait for the device, so that a clock read after it is true."""
        wait_for(self._runner.device)

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
        return 2 * self._layer_weights * rows / least_s(run), f"{how}, {rows} rows"

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

        return 2 * _READ_BYTES / least_s(run), f"a copy of {_READ_BYTES >> 20} MiB on {device}"

    def close(self) -> None:
        """Free the sequences."""
        self._cache = None
        self.length = 0

    @contextmanager
    def _out_of_memory(self) -> Iterator[None]:
        """Say in one line that the sequences do not fit."""
        try:
            yield
        except torch.OutOfMemoryError:
            self._cache = None
            raise SpecviewError(
                f"{self.sequences} sequences of {self._max_length:,} tokens do not fit the memory of {self._runner.device}.",
                "Measure fewer sequences or a shorter context.",
            ) from None
