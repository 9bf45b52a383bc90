"""Advice on draft lengths, held against what was measured: no prediction is told over a measurement that lies beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specview.decoding.speedup import Speedup


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements that lie beside a lane's predictions.

    own     the lane's speedup, None where there is no plain lane: predictions then stand alone
    model   what the costs that predict make of the lane's own rounds
    beside  speedups of lanes of the same race that draft alike, by their k
    """

    own: Speedup | None = None
    model: float | None = None
    beside: Mapping[int, Speedup] = field(default_factory=dict)

    @property
    def limit(self) -> float:
        """What predictions are multiplied by: where the costs make too much of the lane itself, they do of others."""
        return 1.0 if self.own is None or not self.model else min(1.0, self.own.value / self.model)

    def told_apart(self, least: float, k: int | None = None) -> bool:
        """Whether a speedup of at least this lies above every measured interval but that of k itself."""
        found = ([] if self.own is None else [self.own]) + [one for length, one in self.beside.items() if length != k]
        return all(least > (math.inf if one.high is None else one.high) for one in found)


def measured_beside(settings: Mapping[str, Any], lanes: Iterable[tuple[Mapping[str, Any], Speedup | None]]) -> dict[int, Speedup]:
    """Speedups by k of the lanes that draft as one with these settings does but for their k, one fixed for all rounds."""
    own = {key: value for key, value in settings.items() if key != "k"}
    return {
        other["k"]: faster
        for other, faster in lanes
        if faster is not None and isinstance(other.get("k"), int) and other["k"] != settings.get("k")
        and other.get("policy") in (None, "constant") and {key: value for key, value in other.items() if key != "k"} == own
    }  # fmt: skip
