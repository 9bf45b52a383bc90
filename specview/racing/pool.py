"""Loaded engines and heads, kept from run to run while they are what the run asks for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self

from specview.decoding.interfaces import Engine
from specview.drafting.lanes import HeadChoice, needs_draft
from specview.models.heads import load_head
from specview.models.loading import load_engine
from specview.racing.calibration import OnCount, measure_passes
from specview.settings.run import Loading, RunSettings, to_json

if TYPE_CHECKING:
    from specview.heads.loaded import LoadedHead

OnProgress = Callable[[str, float | None], None]
ShouldStop = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class EngineKey:
    """What makes a loaded engine the one asked for."""

    role: Literal["target", "draft"]
    loading: Loading


@dataclass(frozen=True, slots=True)
class HeadKey:
    """What makes a loaded head the one asked for: which, how it is read, and the target that it is loaded for."""

    choice: HeadChoice
    target: EngineKey


def target_key(settings: RunSettings) -> EngineKey:
    """The key of a run's target."""
    return EngineKey("target", settings.loading)


def draft_key(settings: RunSettings, draft: str, engine: str | None) -> EngineKey:
    """The key of a lane's draft. Remote code is never trusted for a draft the user did not tick."""
    own = replace(settings.loading, target=draft, engine=engine or settings.engine, context=None, trust_remote_code=False)
    return EngineKey("draft", own)


def engine_keys(settings: RunSettings) -> list[EngineKey]:
    """The models that a run loads, its heads aside: the target, then each distinct draft."""
    drafts = (draft_key(settings, lane.draft, lane.draft_engine) for lane in settings.lanes if needs_draft(lane))
    return list(dict.fromkeys((target_key(settings), *drafts)))


class Lease:
    """Models that somebody stands on: none of them is freed before it is closed."""

    def __init__(self, leases: list[Lease], keys: Iterable[EngineKey | HeadKey]) -> None:
        self.keys = set(keys)
        self._leases = leases
        leases.append(self)

    def add(self, keys: Iterable[EngineKey | HeadKey]) -> None:
        """Hold these too; they need not be loaded yet."""
        self.keys |= set(keys)

    def close(self) -> None:
        """Let all of them go. They stay loaded until other work needs none of them."""
        if self in self._leases:
            self._leases.remove(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ModelPool:
    """Owns engines, and the heads that draft for them. Use it on one thread."""

    def __init__(self) -> None:
        self._leases: list[Lease] = []
        self._engines: dict[EngineKey, Engine] = {}
        self._heads: dict[HeadKey, LoadedHead] = {}
        self.warm: set[EngineKey] = set()
        self.warm_heads: set[tuple[HeadKey, str]] = set()  # with the weights that they draft with
        self.kernel_margins: dict[Hashable, float] = {}
        self._pass_s: dict[EngineKey, dict[int, float]] = {}
        self._memories: dict[EngineKey, dict[str, Any]] = {}

    def __contains__(self, key: EngineKey | HeadKey) -> bool:
        return key in self._engines or key in self._heads

    def get(
        self, key: EngineKey, progress: OnProgress | None = None, should_stop: ShouldStop | None = None
    ) -> Engine:
        """The engine of this key, loaded now if it is not there.

        Raises SpecviewError where it cannot be loaded and Stopped where should_stop said so.
        """
        if key not in self._engines:
            how = to_json(key.loading)
            self._engines[key] = load_engine(
                how.pop("target"), role=key.role, progress=progress, should_stop=should_stop, **how
            )
        return self._engines[key]

    def head(
        self, key: HeadKey, progress: OnProgress | None = None, should_stop: ShouldStop | None = None
    ) -> LoadedHead:
        """The head of this key, loaded now if it is not there; its target must be loaded.

        Raises SpecviewError where it cannot be loaded or does not fit, and Stopped where should_stop said so.
        """
        if key not in self._heads:
            choice = key.choice
            self._heads[key] = load_head(
                choice.kind,
                choice.ref,
                self._engines[key.target],
                dict(choice.answers),
                progress=progress,
                should_stop=should_stop,
            )
        return self._heads[key]

    def lease(self, keys: Iterable[EngineKey | HeadKey] = ()) -> Lease:
        """Hold these, loaded or not, until the lease is closed."""
        return Lease(self._leases, keys)

    @property
    def held(self) -> set[EngineKey | HeadKey]:
        """What is in some lease."""
        return {key for lease in self._leases for key in lease.keys}

    def pass_s(self, key: EngineKey) -> Mapping[int, float]:
        """Seconds of this target's passes by rows, as far as they were measured."""
        return self._pass_s.get(key, {})

    def measure_passes(
        self, key: EngineKey, prompt_ids: Sequence[int], rows: int, on_count: OnCount, clock: Callable[[], float],
        *, afresh: bool = False, **how: Any,
    ) -> Mapping[int, float]:
        """Measure what is not known yet of them (afresh: all), keep it and return it; see `calibration.measure_passes`."""
        known = {} if afresh else self.pass_s(key)
        found = self._pass_s[key] = measure_passes(self._engines[key], prompt_ids, rows, known, on_count, clock, **how)
        return found

    def memory(self, key: EngineKey) -> dict[str, Any]:
        """What drafters of this target keep from run to run where the user ties runs together."""
        return self._memories.setdefault(key, {})

    def keep_only(self, keys: set[EngineKey | HeadKey]) -> None:
        """Free every engine and head that is neither among `keys` nor held, and the heads of a target that goes."""
        keys = keys | self.held
        for head in [head for head in self._heads if head not in keys or head.target not in keys]:
            del self._heads[head]
            self.warm_heads = {warm for warm in self.warm_heads if warm[0] != head}
        for key in [key for key in self._engines if key not in keys]:
            self._engines.pop(key).close()
            self.warm.discard(key)

    def close(self) -> None:
        """Free all engines, whoever holds them."""
        self._leases.clear()
        self.keep_only(set())
