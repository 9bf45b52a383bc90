"""A run's chat as messages, whoever renders it."""

from __future__ import annotations

from collections.abc import Mapping

from specview.errors import UsageError
from specview.settings.run import RunSettings


def messages_of(settings: RunSettings) -> list[Mapping[str, str]]:
    """System text, the conversation so far and the prompt. Raises UsageError for an empty prompt."""
    if not settings.prompt.strip():
        raise UsageError("the prompt is empty.", "Type one, or choose a workload.")
    system = [{"role": "system", "content": settings.system}] if settings.system else []
    return [*system, *settings.history, {"role": "user", "content": settings.prompt}]
