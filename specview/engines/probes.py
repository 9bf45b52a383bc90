"""What every engine asks before it makes a batch probe."""

from __future__ import annotations

from typing import Any

from specview.errors import SpecviewError, UsageError


def require_probe(engine: Any, length: int) -> None:
    """Raise SpecviewError where this engine's passes cannot be measured over sequences of `length` tokens."""
    if engine.check_mode:
        raise UsageError("check mode is not for timing.", "Leave it off to measure passes.")
    if engine.rollback_problem is not None:
        raise SpecviewError(
            f"{engine.model_name} cannot be measured here: {engine.rollback_problem.rstrip('.')}.", "Choose another model."
        )
    if length > engine.context_length:
        raise UsageError(
            f"{length:,} tokens do not fit the context of {engine.model_name} ({engine.context_length:,}).",
            "Use a shorter context.",
        )
