"""Several sequences in one pass, to measure what sharing a device costs: what the probes of both engines do alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from specview.decoding.interfaces import OnChunk
from specview.engines.session import require_context
from specview.errors import SpecviewError, UsageError

_REPEATS = 3


def require_probe(engine: Any, length: int) -> None:
    """Raise SpecviewError where an engine's passes cannot be measured over sequences of `length` tokens."""
    if engine.check_mode:
        raise UsageError("check mode is not for timing.", "Leave it off to measure passes.")
    if engine.rollback_problem is not None:
        raise SpecviewError(
            f"{engine.model_name} cannot be measured here: {engine.rollback_problem.rstrip('.')}.", "Choose another model."
        )
    require_context(engine, length, "Use a shorter context.", UsageError)


class Probe:
    """B sequences of up to max_length tokens (interfaces.BatchProbe); a subclass runs the passes."""

    def __init__(self, sequences: int, max_length: int, chunk: int) -> None:
        self.sequences = sequences
        self.length = 0  # tokens that each holds
        self._max_length = max_length
        self._chunk = chunk

    def _empty(self) -> None:
        """Forget what the sequences hold."""
        raise NotImplementedError

    def _feed(self, tokens: Sequence[int]) -> None:
        """Feed the first sequence some tokens, without logits."""
        raise NotImplementedError

    def _share(self) -> None:
        """Give the other sequences a copy of what the first one holds."""
        raise NotImplementedError

    def _pass(self, tokens: Sequence[Sequence[int]]) -> Any:
        """Feed every sequence as many tokens; return their logits."""
        raise NotImplementedError

    def _cut(self, length: int) -> None:
        """Roll every sequence's cache back."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait for the device, so that a clock read after it is true."""
        raise NotImplementedError

    def fill(self, tokens: Sequence[int], on_chunk: OnChunk | None = None) -> None:
        """Give every sequence these tokens: the first one is prefilled, the others get a copy."""
        self._need_room(len(tokens))
        self.length = 0
        self._empty()
        for begin in range(0, len(tokens), self._chunk):
            chunk = tokens[begin : begin + self._chunk]
            self._feed(chunk)
            self.length = begin + len(chunk)
            if on_chunk is not None:
                self.synchronize()
                on_chunk(self.length, len(tokens))
        self._share()
        self.synchronize()

    def forward(self, tokens: Sequence[Sequence[int]]) -> Any:
        """Feed n tokens to each sequence in one pass; return float32 logits [sequences, n, vocab]."""
        each = len(tokens[0])
        self._need_room(self.length + each)
        if len(tokens) != self.sequences or any(len(row) != each for row in tokens):
            raise ValueError(f"a pass takes as many tokens of each of {self.sequences} sequences")
        logits = self._pass(tokens)
        self.length += each
        return logits

    def truncate(self, length: int) -> None:
        """Roll every sequence back to its first `length` tokens."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate {self.length} tokens to {length}")
        self._cut(length)
        self.length = length

    def _need_room(self, length: int) -> None:
        if length > self._max_length:
            raise ValueError(f"{length} tokens do not fit the {self._max_length} this probe was made for")


def least_s(run: Callable[[], object]) -> float:
    """The least seconds of a few runs after a first: a bound is what the machine can do at best."""
    run()
    best = float("inf")
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
    return best
