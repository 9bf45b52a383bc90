"""Rotary frequencies of a head, from the config of its layer, without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from specview.errors import SpecviewError

DEFAULT_THETA = 10000.0


def frequencies(config: Mapping[str, Any], width: int, folder: Any) -> tuple[float, ...]:
    """Radians per position [width / 2] of a head of `width`.

    config has `rope_theta` and `rope_scaling` (transformers 4) or `rope_parameters` (5); the scalings are
    transformers' `linear` and `llama3` (modeling_rope_utils.py). Raises SpecviewError for another scaling.
    """
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaling: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    theta = float(config.get("rope_theta") or scaling.get("rope_theta") or DEFAULT_THETA)
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    share = float(config.get("partial_rotary_factor") or scaling.get("partial_rotary_factor") or 1.0)
    if share != 1.0:
        raise SpecviewError(f"{folder} turns only {share:g} of each attention head, which is not read here.")
    bare = tuple(theta ** (-2 * i / width) for i in range(width // 2))
    if kind in ("default", "mrope"):
        return bare
    if kind == "linear":
        return tuple(f / float(scaling["factor"]) for f in bare)
    if kind == "llama3":
        return tuple(_llama3(f, scaling) for f in bare)
    raise SpecviewError(f"{folder} scales its rotary positions by {kind}, which is not read here.", "Choose another head.")


def _llama3(frequency: float, scaling: Mapping[str, Any]) -> float:
    """Llama 3.1's scaling: long waves are slowed by `factor`, short ones stay, those between are mixed."""
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    turns = float(scaling["original_max_position_embeddings"]) * frequency / (2 * math.pi)
    if turns < low:
        return frequency / factor
    if turns > high:
        return frequency
    smooth = (turns - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency
