"""The roofline: what a target pass takes at least here, by reading its weights or by computing its products.

A pass reads every weight once, however many rows it has, and multiplies every row by all of them (Williams et al.
2009, doi 10.1145/1498765.1498785). Both rates are measured on this machine; the line drawn from them is a model,
for it leaves out attention's products, the small operations between the products, and what the caches keep.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from specview.decoding.interfaces import BatchProbe, Engine

Bound = Literal["memory", "compute"]

_LEAST_BYTES, _MOST_BYTES = 64 << 20, 1 << 30  # of the array that is read
_REPEATS = 5


@dataclass(frozen=True, slots=True)
class Roofline:
    """The two bounds of a pass.

    read_bytes       weights that a pass reads;  kv_bytes  what one sequence's context adds to that
    product_weights  numbers that every row is multiplied by: two operations each
    bytes_per_s, operations_per_s  as measured, and how; None where that cannot be measured here
    """

    read_bytes: int
    product_weights: int
    kv_bytes: int
    bytes_per_s: float | None
    bytes_how: str
    operations_per_s: float | None
    operations_how: str

    def memory_s(self, sequences: int = 0) -> float | None:
        """Seconds to read the weights, and the caches of so many sequences."""
        if not self.bytes_per_s:
            return None
        return (self.read_bytes + sequences * self.kv_bytes) / self.bytes_per_s

    def compute_s(self, rows: float) -> float | None:
        """Seconds of the products of so many rows, over all sequences."""
        if not self.operations_per_s:
            return None
        return 2 * self.product_weights * rows / self.operations_per_s

    def pass_s(self, sequences: int, rows: int) -> float | None:
        """The least seconds of a pass of `rows` rows of each of so many sequences: the larger bound."""
        memory, compute = self.memory_s(sequences), self.compute_s(sequences * rows)
        return None if memory is None or compute is None else max(memory, compute)

    def bound(self, sequences: int, rows: int) -> Bound | None:
        """Which of the two bounds rules that pass."""
        memory, compute = self.memory_s(sequences), self.compute_s(sequences * rows)
        if memory is None or compute is None:
            return None
        return "memory" if memory >= compute else "compute"

    @property
    def ridge_rows(self) -> float | None:
        """Rows from which on products take longer than reading the weights."""
        if not self.bytes_per_s or not self.operations_per_s:
            return None
        return self.read_bytes / self.bytes_per_s * self.operations_per_s / (2 * self.product_weights)

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON values; the two rates are measured, the rest follows from them."""
        return {
            "read_bytes": self.read_bytes,
            "product_weights": self.product_weights,
            "kv_bytes_per_sequence": self.kv_bytes,
            "bytes_per_s": {"value": self.bytes_per_s, "source": "measured", "how": self.bytes_how},
            "operations_per_s": {"value": self.operations_per_s, "source": "measured", "how": self.operations_how},
            "ridge_rows": {"value": self.ridge_rows, "source": "modelled"},
        }


def measure_roofline(engine: Engine, probe: BatchProbe, context: int) -> Roofline:
    """Measure both rates for this engine's model; context is the tokens that each sequence holds.

    A CPU's memory is read by numpy, in as many threads as the engine has; the array is as large as the weights, so
    that weights which fit a cache are timed as that.
    """
    on_cpu = engine.device == "cpu"
    reading = measure_reading(probe.read_bytes, getattr(engine, "threads", None) or 1) if on_cpu else probe.read_rate()
    products = probe.product_rate()
    return Roofline(
        read_bytes=probe.read_bytes,
        product_weights=probe.product_weights,
        kv_bytes=engine.kv_bytes(context),
        bytes_per_s=None if reading is None else reading[0],
        bytes_how=f"not measured on {engine.device}" if reading is None else reading[1],
        operations_per_s=products[0],
        operations_how=products[1],
    )


def measure_reading(
    nbytes: int, threads: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, str]:
    """Read an array of about so many bytes in `threads` threads; bytes per second at best, and how.

    The size is kept between 64 MiB and 1 GiB, and within a quarter of the memory at hand.
    """
    import psutil

    size = min(max(nbytes, _LEAST_BYTES), _MOST_BYTES, max(_LEAST_BYTES, psutil.virtual_memory().available // 4))
    numbers = np.ones(size // 4, dtype=np.float32)
    parts = np.array_split(numbers, threads)
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_REPEATS):
            begin = clock()
            list(pool.map(np.maximum.reduce, parts))  # reads every number; numpy lets go of the interpreter's lock
            best = min(best, clock() - begin)
    how = f"{size >> 20} MiB read in {threads} thread{'s' if threads > 1 else ''}"
    return numbers.nbytes / max(best, 1e-9), how
