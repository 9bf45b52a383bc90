"""The output step that follows a head's product in some models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

_CLOSE = 0.1  # of the logits' spread: quantized products differ from exact ones by a few hundredths


@dataclass(frozen=True, slots=True)
class OutputStep:
    """What a model does to its head's products: cap * tanh(scale * product / cap); no cap where it is 0."""

    scale: float = 1.0
    cap: float = 0.0

    def __call__(self, products: Any) -> Any:
        """Apply it to an array or a tensor."""
        if self.scale != 1.0:
            products = products * self.scale
        if self.cap:
            products = products / self.cap
            tanh = np.tanh(products) if isinstance(products, np.ndarray) else products.tanh()
            products = tanh * self.cap
        return products


def output_step(
    products: np.ndarray, logits: np.ndarray, scales: Sequence[float], caps: Sequence[float]
) -> OutputStep | None:
    """Find the step that leads from a head's products to a model's logits, both [n, vocab].

    Tried are a scale of 1, those given and their inverses (models differ in whether they multiply or
    divide), each with and without the caps given. None where none of them does.
    """
    tried = [1.0] + [value for scale in scales if scale for value in (scale, 1 / scale)]
    steps = [OutputStep(scale, cap) for cap in (*caps, 0.0) for scale in tried]
    errors = [float(np.abs(step(products) - logits).mean()) for step in steps]
    best = int(np.argmin(errors))
    return steps[best] if errors[best] <= _CLOSE * float(logits.std()) else None
