"""Test helper: a speedup of a given value, as a race tells it."""

from __future__ import annotations

from specview.decoding.speedup import Speedup


def times(value: float, low: float | None = None, high: float | None = None) -> Speedup:
    """`value` times plain, which gave ten tokens in a second."""
    return Speedup(10 * value, 10.0, 1.0, low, high)
