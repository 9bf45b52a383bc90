"""One sequence over a torch model: its length, chunked prefill, forward, rollback, check mode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from specview.decoding.interfaces import Forward, OnChunk
from specview.errors import SpecviewError

PREFILL_CHUNK = 256
CHECK_ROWS = 8
"""Rows of every check-mode pass: with one number of rows, one kernel computes every logit."""
CHECK_BLOCK = 512
"""Check mode shows attention whole blocks of so many keys (the block of torch's CPU attention)."""


class SequenceCache(Protocol):
    """A sequence's keys and values."""

    def keep(self, path: Sequence[int]) -> None:
        """Of the last forward's tokens keep those of a path from the root, by index, in order."""
        raise NotImplementedError

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens: a pointer move."""
        ...


class Runner(Protocol):
    """A loaded model's forward pass over a cache."""

    device: torch.device
    vocab_size: int

    def new_cache(self, max_length: int) -> Any:
        """Make an empty SequenceCache for up to max_length tokens."""
        ...

    def run(
        self, tokens: Sequence[int], start: int, cache: Any, *, logits: bool, features: Sequence[Any] = ()
    ) -> tuple[torch.Tensor | None, dict[Any, torch.Tensor]]:
        """Run tokens after the `start` that the cache holds.

        Returns float logits [n, vocab], or None without `logits`, and the features asked for.
        """
        ...


class TransformersSession:
    """One sequence: its own KV cache over the engine's weights (interfaces.Session)."""

    def __init__(self, runner: Runner, max_length: int, *, check_mode: bool = False) -> None:
        self.length = 0
        self._runner: Runner | None = runner
        self._max_length = max_length
        self._check_mode = check_mode
        self._cache: Any = runner.new_cache(max_length)

    def prefill(self, tokens: Sequence[int], on_chunk: OnChunk | None = None) -> None:
        """Feed tokens without logits, in chunks; what `on_chunk` raises leaves the session usable."""
        runner = self._open(len(tokens))
        total = len(tokens)
        for begin in range(0, total, PREFILL_CHUNK):
            chunk = tokens[begin : begin + PREFILL_CHUNK]
            runner.run(chunk, self.length, self._cache, logits=False)
            self.length += len(chunk)
            if on_chunk is not None:
                self.synchronize()
                on_chunk(begin + len(chunk), total)

    def forward(
        self, tokens: Sequence[int], parents: Sequence[int] | None = None, features: Sequence[Any] = ()
    ) -> Forward:
        """Feed tokens after the cache's end; return logits [n, vocab] and the features by layer.

        A feature is asked for by "last" (after the final norm) or by a number n (after n layers).
        Raises SpecviewError for a tree (`parents`), which this engine does not verify.
        """
        if parents is not None and any(parent != index - 1 for index, parent in enumerate(parents)):
            raise SpecviewError("The transformers engine verifies chains, not trees.", "Use a chain drafter.")
        if not tokens:
            raise ValueError("forward needs at least one token")
        runner = self._open(len(tokens))
        if self._check_mode:
            return self._forward_checked(runner, tokens, features)
        logits, layers = runner.run(tokens, self.length, self._cache, logits=True, features=features)
        self.length += len(tokens)
        return Forward(logits, layers)

    def _forward_checked(self, runner: Runner, tokens: Sequence[int], features: Sequence[Any]) -> Forward:
        logits: list[torch.Tensor] = []
        layers: dict[Any, list[torch.Tensor]] = {}
        for begin in range(0, len(tokens), CHECK_ROWS):
            chunk = list(tokens[begin : begin + CHECK_ROWS])
            padded = chunk + [chunk[-1]] * (CHECK_ROWS - len(chunk))
            rows, given = runner.run(padded, self.length, self._cache, logits=True, features=features)
            assert rows is not None
            self.length += len(chunk)
            self._cache.truncate(self.length)
            logits.append(rows[: len(chunk)])
            for layer, values in given.items():
                layers.setdefault(layer, []).append(values[: len(chunk)])
        return Forward(torch.cat(logits), {layer: torch.cat(parts) for layer, parts in layers.items()})

    def truncate(self, length: int) -> None:
        """Roll back to the first `length` tokens: a pointer move, no copy."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate {self.length} tokens to {length}")
        self._cache.truncate(length)
        self.length = length

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
        self.length = 0

    def _open(self, added: int) -> Runner:
        if self._runner is None:
            raise ValueError("the session is closed")
        if self.length + added > self._max_length:
            raise SpecviewError(
                f"{self.length + added} tokens do not fit the {self._max_length} this sequence was made for.",
                "Shorten the prompt or lower max tokens.",
            )
        return self._runner
