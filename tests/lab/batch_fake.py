"""A fake engine with batch probes whose passes cost what a formula says, on a fake clock; and traces of given rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specview.decoding.ledger import Round
from specview.errors import SpecviewError
from specview.files.schema import dumps, round_to_json
from tests.decoding.toy import FakeClock, FakeEngine, TableModel


def write_lanes(path: Path, lanes: dict[str, tuple[dict[str, Any], Sequence[Round]]]) -> Path:
    """Write a trace of lanes, name -> (settings, rounds)."""
    header = {
        "schema": "specview.trace/1",
        "run": {},
        "prompt": {"text": "", "token_ids": [1]},
        "lanes": [{"name": name, "settings": settings, "prefill_s": 0.1} for name, (settings, _) in lanes.items()],
    }
    lines = [round_to_json(place, one) for place, (_, rounds) in enumerate(lanes.values()) for one in rounds]
    path.write_text("".join(dumps(line) + "\n" for line in (header, *lines)), encoding="utf-8")
    return path


class FakeProbe:
    how = "a formula"
    product_weights = 1000
    read_bytes = 4000

    def __init__(self, engine: BatchEngine, sequences: int, context: int, rows: int) -> None:
        self.engine, self.sequences = engine, sequences
        self.length, self.room, self.open = 0, context + rows, True
        self.fed: list[list[list[int]]] = []

    def fill(self, tokens: Any, on_chunk: Any = None) -> None:
        assert self.open and all(0 <= token < self.engine.vocab_size for token in tokens)
        self.length = len(tokens)
        if on_chunk is not None:
            on_chunk(len(tokens), len(tokens))

    def forward(self, tokens: Any) -> np.ndarray:
        assert self.open and len(tokens) == self.sequences
        assert all(0 <= token < self.engine.vocab_size for row in tokens for token in row)
        each = len(tokens[0])
        assert self.length + each <= self.room
        self.fed.append(tokens)
        cell = (self.sequences, each)
        seconds = self.engine.seconds(*cell)
        # A pass of another shape than the one before pays extra, as llama.cpp does: it must not be timed.
        self.engine.clock.now += seconds if self.engine.last == cell else 10 * seconds
        self.engine.last = cell
        self.engine.passes.append(cell)
        self.length += each
        return np.zeros((self.sequences, each, 4))

    def truncate(self, length: int) -> None:
        self.length = length

    def synchronize(self) -> None:
        assert self.open

    def product_rate(self) -> tuple[float, str]:
        return 2e6, "products"

    def read_rate(self) -> tuple[float, str]:
        return 4e6, "reading"

    def close(self) -> None:
        self.open = False


class BatchEngine(FakeEngine):
    """seconds(sequences, rows) is what a pass takes; bytes_each what a sequence needs."""

    device = "fake"

    def __init__(self, seconds: Callable[[int, int], float], clock: FakeClock, bytes_each: int = 1, most: int = 999,
                 vocab: int = 6) -> None:  # fmt: skip
        super().__init__(TableModel(vocab), vocab, clock=clock)
        self.seconds, self.bytes_each, self.most = seconds, bytes_each, most
        self.passes: list[tuple[int, int]] = []
        self.probes: list[FakeProbe] = []
        self.last: tuple[int, int] | None = None

    def batch_probe(self, sequences: int, context: int, rows: int) -> FakeProbe:
        if sequences > self.most:
            raise SpecviewError(f"{sequences} sequences are too many.", "Measure fewer.")
        self.probes.append(FakeProbe(self, sequences, context, rows))
        return self.probes[-1]

    def batch_bytes(self, sequences: int, context: int, rows: int) -> int:
        return self.bytes_each * sequences * (context + rows)

    def kv_bytes(self, length: int) -> int:
        return 8 * length
