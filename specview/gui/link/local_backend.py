"""The engine thread's real backend: the model pool and races on this machine.

Imported on the engine thread, so that no model library is loaded before the window is up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from specview.decoding.interfaces import Declared
from specview.drafting.registry import METHODS
from specview.errors import Stopped
from specview.models.catalog import resolve
from specview.racing.pool import ModelPool, engine_keys, target_key
from specview.racing.race import Race, tokenize_prompt
from specview.settings.events import Phase, Progress
from specview.settings.run import RunSettings

LARGEST_PRELOAD = 2_000_000_000
"""Bytes of weights that are loaded without being asked for."""


class LocalBackend:
    """Models loaded here, kept between runs while nothing about them changed."""

    def __init__(self) -> None:
        self._pool = ModelPool()

    def preload(
        self,
        settings: RunSettings,
        run_id: int,
        emit: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> None:
        """Load the target and the drafts of `settings`; raises Stopped or a SpecviewError.

        What would have to be fetched first, or is large, waits for Run.
        """
        for key in engine_keys(settings):
            if should_stop():
                raise Stopped
            ref = resolve(key.loading.target, key.loading.engine, key.role)
            if ref.path is None or (ref.size_bytes or 0) > LARGEST_PRELOAD:
                continue

            phase: Phase = "load" if key.role == "target" else "load-draft"

            def tell(text: str, fraction: float | None, phase: Phase = phase) -> None:
                emit(Progress(run_id, phase, text, fraction))

            self._pool.get(key, tell, should_stop)

    def start(self, settings: RunSettings, run_id: int) -> Race:
        """Make a race over the pool."""
        return Race(settings, run_id, self._pool)

    def count_tokens(self, settings: RunSettings) -> int | None:
        """Count the prompt as the race would feed it; None while the target is not loaded."""
        key = target_key(settings)
        if key not in self._pool:
            return None
        return len(tokenize_prompt(settings, self._pool.get(key)))

    def target_facts(self, settings: RunSettings) -> tuple[str, Mapping[str, str], Declared] | None:
        """Device of the loaded target, method -> why it cannot draft with it, and what its files declare; None while
        it is not loaded."""
        key = target_key(settings)
        if key not in self._pool:
            return None
        engine = self._pool.get(key)
        problems: dict[str, str] = {}
        for name, info in METHODS.items():
            reason = engine.rollback_problem if info.drafts else None
            if reason is None and info.problem is not None:
                reason = info.problem(engine)
            if reason:
                problems[name] = reason
        return engine.device, problems, engine.tokenizer.declared

    @property
    def pool(self) -> ModelPool:
        """The loaded models."""
        return self._pool

    def close(self) -> None:
        """Free all models."""
        self._pool.close()
