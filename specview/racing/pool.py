"""Loaded engines, kept from run to run while they are what the run asks for."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal

from specview.decoding.interfaces import Engine
from specview.models.loading import load_engine
from specview.racing.settings import RunSettings

OnProgress = Callable[[str, float | None], None]
ShouldStop = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class EngineKey:
    """What makes a loaded engine the one asked for."""

    role: Literal["target", "draft"]
    ref: str
    engine: str
    device: str | None
    dtype: str | None
    threads: int | None
    gpu_layers: int
    context: int | None
    check_mode: bool
    trust_remote_code: bool


def target_key(settings: RunSettings) -> EngineKey:
    """The key of a run's target."""
    return EngineKey(
        "target",
        settings.target,
        settings.engine,
        settings.device,
        settings.dtype,
        settings.threads,
        settings.gpu_layers,
        settings.context,
        settings.check_mode,
        settings.trust_remote_code,
    )


def draft_key(settings: RunSettings, draft: str, engine: str | None) -> EngineKey:
    """The key of a lane's draft. Remote code is never trusted for a draft the user did not tick."""
    return EngineKey(
        "draft",
        draft,
        engine or settings.engine,
        settings.device,
        settings.dtype,
        settings.threads,
        settings.gpu_layers,
        None,
        settings.check_mode,
        False,
    )


class ModelPool:
    """Owns engines. Use it on one thread."""

    def __init__(self) -> None:
        self._engines: dict[EngineKey, Engine] = {}
        self.warm: set[EngineKey] = set()
        self.kernel_margins: dict[Hashable, float] = {}
        self.pass_seconds: dict[EngineKey, dict[int, float]] = {}  # by rows, as calibrated
        self._memories: dict[EngineKey, dict[str, Any]] = {}

    def __contains__(self, key: EngineKey) -> bool:
        return key in self._engines

    def get(
        self, key: EngineKey, progress: OnProgress | None = None, should_stop: ShouldStop | None = None
    ) -> Engine:
        """The engine of this key, loaded now if it is not there.

        Raises SpecviewError where it cannot be loaded and Stopped where should_stop said so.
        """
        if key not in self._engines:
            self._engines[key] = load_engine(
                key.ref,
                key.engine,
                device=key.device,
                dtype=key.dtype,
                threads=key.threads,
                gpu_layers=key.gpu_layers,
                context=key.context,
                check_mode=key.check_mode,
                trust_remote_code=key.trust_remote_code,
                role=key.role,
                progress=progress,
                should_stop=should_stop,
            )
        return self._engines[key]

    def memory(self, key: EngineKey) -> dict[str, Any]:
        """What drafters of this target keep from run to run where the user ties runs together."""
        return self._memories.setdefault(key, {})

    def keep_only(self, keys: set[EngineKey]) -> None:
        """Free every engine that is not among `keys`."""
        for key in [key for key in self._engines if key not in keys]:
            self._engines.pop(key).close()
            self.warm.discard(key)

    def close(self) -> None:
        """Free all engines."""
        self.keep_only(set())
