"""Rotary frequencies of a head, from the config of its layer, without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from specview.errors import SpecviewError
from specview.heads.layouts import real_number

DEFAULT_THETA = 10000.0


def frequencies(config: Mapping[str, Any], width: int, folder: Any) -> tuple[float, ...]:
    """Radians per position [width / 2] of a head of `width`.

    config has `rope_theta` and `rope_scaling` (transformers 4) or `rope_parameters` (5), which take precedence as in
    transformers: what rope_scaling says stands in place of rope_parameters, and a theta in either before one beside it.
    The scalings are transformers' `linear` and `llama3` (modeling_rope_utils.py). Raises SpecviewError for another scaling, and for a
    number that is none above 0.
    """
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    scaling: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    theta = real_number(_having(config, scaling, "rope_theta"), "rope_theta", folder, DEFAULT_THETA)
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    key = "partial_rotary_factor"
    share = real_number(_having(config, scaling, key), key, folder, 1.0)
    if share != 1.0:
        raise SpecviewError(
            f"{folder} turns only {share:g} of each attention head, which is not read here.", "Choose another head."
        )
    bare = tuple(theta ** (-2 * i / width) for i in range(width // 2))
    if kind in ("default", "mrope"):
        return bare
    if kind == "linear":
        factor = real_number(scaling, "factor", folder)
        return tuple(f / factor for f in bare)
    if kind == "llama3":
        keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        numbers = tuple(real_number(scaling, key, folder) for key in keys)
        if numbers[1] >= numbers[2]:
            raise SpecviewError(
                f"the config.json of {folder} has a low_freq_factor that is not below its high_freq_factor.",
                "Download the head again.",
            )
        return tuple(_llama3(f, *numbers) for f in bare)
    raise SpecviewError(f"{folder} scales its rotary positions by {kind[:60]}, which is not read here.", "Choose another head.")


def _having(config: Mapping[str, Any], scaling: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Which of the two says a key; the scaling goes first."""
    return config if scaling.get(key) is None else scaling


def _llama3(frequency: float, factor: float, low: float, high: float, context: float) -> float:
    """Llama 3.1's scaling: long waves are slowed by `factor`, short ones stay, those between are mixed.

    low and high are turns in `context` positions, the length that the model was first trained on.
    """
    turns = context * frequency / (2 * math.pi)
    if turns < low:
        return frequency / factor
    if turns > high:
        return frequency
    smooth = (turns - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency
