"""What this machine offers, found in the background: models, trained heads, engines, workloads.

A scan runs on a short-lived thread of its own; the window takes the result on the Qt thread when
`changed` fires, and shows the bundled pair until then. Engines and workloads come first. Models are
looked for once nothing loads: that needs the hub library, and two threads that import one package at
the same time can get it half made.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

from specview.errors import SpecviewError
from specview.gui.link.background import Background
from specview.gui.link.head_checks import FoundHead, find_heads
from specview.settings.run import ENGINES

if TYPE_CHECKING:
    from specview.models.catalog import ModelRef

log = logging.getLogger(__name__)

MODEL_FILES = "GGUF models (*.gguf);;All files (*)"
"""What a dialog that asks for a model's file offers."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model that can be chosen: what goes into the settings, its name and a line about it."""

    ref: str
    name: str
    detail: str
    engines: tuple[str, ...] = ENGINES
    draft: bool = False


@dataclass(frozen=True, slots=True)
class FoundWorkload:
    """A prompt that comes with specview."""

    name: str
    label: str
    prompt: str
    system: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """One scan's result; engines: name -> why it cannot be used, '' where it can."""

    models: tuple[FoundModel, ...] = ()
    engines: tuple[tuple[str, str], ...] = tuple((name, "") for name in ENGINES)
    workloads: tuple[FoundWorkload, ...] = ()
    heads: tuple[FoundHead, ...] = ()


class Library(QObject):
    """Holds the last scan's result."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.found = Found()
        self._work = Background(self)

    @property
    def scanning(self) -> bool:
        """Whether a scan is under way."""
        return self._work.busy

    def engine_problem(self, engine: str) -> str:
        """Say why an engine cannot be used here; '' when it can."""
        return dict(self.found.engines).get(engine, "")

    def scan(self, models: bool = True) -> None:
        """Look in the background for engines and workloads, and with `models` for models too."""
        if models or not self.scanning:
            self._work.do(lambda: scan(self.found, models), self._take, "scan")

    def _take(self, found: Found) -> None:
        self.found = found
        self.changed.emit()

    def close(self, timeout_s: float = 2.0) -> None:
        """Wait briefly for a scan under way."""
        self._work.close(timeout_s)


def scan(known: Found, models: bool) -> Found:
    """Look for engines, workloads and, if asked, models and heads; what cannot be told is left out and logged."""
    return Found(
        tuple(_models()) if models else known.models,
        tuple(_engines()),
        tuple(workloads()),
        tuple(_heads()) if models else known.heads,
    )


def _engines() -> list[tuple[str, str]]:
    from specview.models.loading import engine_available

    found: list[tuple[str, str]] = []
    for name in ENGINES:
        try:
            reason = engine_available(name) or ""
        except Exception as error:
            log.exception("looking for the engine %s failed", name)
            reason = " ".join(f"{name} cannot be used: {error}".split())
        found.append((name, reason))
    return found


def _models() -> list[FoundModel]:
    from specview.models.catalog import list_models

    try:
        refs = list_models()
    except Exception:
        log.exception("looking for models failed")
        return []
    return [
        FoundModel(ref.spec, ref.name, describe(ref), ref.engines, ref.role == "draft")
        for ref in refs
        if ref.origin != "bundled" or ref.role == "target"
    ]


def _heads() -> list[FoundHead]:
    try:
        return find_heads()
    except Exception:
        log.exception("looking for trained heads failed")
        return []


def describe(ref: ModelRef) -> str:
    """A line about a model: architecture, size, where it was found."""
    size = f"{ref.size_bytes / 1e9:.2f} GB" if ref.size_bytes else ""
    place = ref.origin if ref.origin != "found" or ref.path is None else str(ref.path.parent)
    return " · ".join(part for part in (ref.architecture, size, place) if part)


def workloads() -> list[FoundWorkload]:
    """Read the prompts that come with specview (small files); those that cannot be read are left out."""
    from specview.racing.workloads import list_workloads

    found: list[FoundWorkload] = []
    for name in list_workloads():
        made = default_workload(name)
        if made is not None:
            found.append(made)
    return found


def default_workload(name: str) -> FoundWorkload | None:
    """Read one workload's first prompt, None where it is missing or broken."""
    from specview.racing.workloads import load

    try:
        made = load(name)
    except (SpecviewError, OSError) as error:
        log.warning("workload %s: %s", name, error)
        return None
    return FoundWorkload(made.name, made.label, made.prompt, made.system)
