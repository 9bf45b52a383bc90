"""Models that the settings of a file name (a recorded run, a sweep): none is looked for before the user has said yes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from PySide6.QtWidgets import QApplication

from specview.gui.link.controller import Controller
from specview.gui.link.library import Library
from specview.gui.parts.questions import ask
from specview.gui.race.page import RacePage
from specview.gui.race.setup_bar import SetupBar
from specview.gui.state.display_text import brief, visible
from specview.racing.resolve import harmless, models_named, with_known_models
from specview.settings.run import LaneSettings, RunSettings

_SHOWN = 100


class SetupWindow(Protocol):
    """The window as what brings settings into its setup sees it."""

    controller: Controller
    library: Library
    setup: SetupBar
    page: RacePage
    lane_settings: list[LaneSettings]
    foreign: ForeignModels

    def own_settings(self) -> RunSettings:
        """The settings as shown, or as last shown without a fault."""

    def run_settings(self) -> RunSettings:
        """The checked settings as shown; raises UsageError."""

    def take_settings(self, settings: RunSettings) -> None:
        """Take settings into the setup bar and the lanes, but for models that are not known."""

    def show_setup(self, settings: RunSettings, rule: str) -> None:
        """Show settings in the setup bar and the lanes; `rule` is the one of lanes that have none of their own."""

    def show_lanes(self) -> None:
        """Let the panels show the lanes as set."""

    def show_message(self, text: str, kind: str = "error") -> None:
        """Show a line over the page."""

    def clear_message(self) -> None:
        """Take the line away."""


class ForeignModels:
    """Keeps models that a file named out of a window's setup until they are confirmed; Run asks.

    Known are the models of the setup itself, those found on this machine, and those confirmed in this session.
    """

    def __init__(self, window: SetupWindow) -> None:
        self._window = window
        self._confirmed: set[str] = set()
        self._named: RunSettings | None = None
        self._shown: tuple[str, Sequence[LaneSettings]] = "", ()

    def take(self, settings: RunSettings) -> RunSettings:
        """The settings as they may stand in the setup: unknown models give way to the user's target and the bundled ones."""
        own, known = self._window.own_settings(), self._known()
        return with_known_models(harmless(settings), known.__contains__, own)

    def withhold(self, settings: RunSettings, shown: RunSettings) -> None:
        """These settings were asked for and `shown` stand in the setup: what is not known there waits for Run."""
        unknown = self._unknown(settings)
        self._named = harmless(settings) if unknown else None
        self._shown = shown.target, list(shown.lanes)

    @property
    def words(self) -> str:
        """What the user must know of the models that wait; '' where none do."""
        named = ", ".join(f"{brief(name, _SHOWN)} ({brief(role, _SHOWN)})" for name, role in self.waiting.items())
        return f"Run asks first about models that the file names: {named}" if named else ""

    @property
    def waiting(self) -> dict[str, str]:
        """The models that the setup's settings were asked with and are not known: name -> what as."""
        window = self._window
        if self._named is None or self._shown != (window.setup.target.target, window.lane_settings):
            return {}  # another target or other lanes were chosen since
        return self._unknown(self._named)

    def settle(self) -> bool:
        """Before a run: ask about the models that wait; False where nothing is to be run."""
        if not (waiting := self.waiting):
            return True
        answer = self._ask(waiting, {"use": "Use them", "own": "Run with mine"})
        named, self._named = self._named, None if answer else self._named
        if answer == "use" and named is not None:
            self._confirmed |= set(waiting)
            now = self._window.own_settings()
            models = {name: getattr(named, name) for name in ("engine", "target", "device", "dtype")}
            taken = replace(now, **models, trust_remote_code=False, lanes=named.lanes)
            self._window.show_setup(taken, self._window.setup.rule.value() or "auto")
        return bool(answer)

    def confirm(self, settings: RunSettings) -> bool:
        """Whether these settings may be run: their models are known, or the user says yes now."""
        unknown = self._unknown(settings)
        if unknown and self._ask(unknown, {"use": "Use them"}):
            self._confirmed |= set(unknown)
            return True
        return not unknown

    def _known(self) -> set[str]:
        found = self._window.library.found
        there = {model.ref for model in found.models} | {head.ref for head in found.heads}
        return there | set(models_named(self._window.own_settings())) | self._confirmed

    def _unknown(self, settings: RunSettings) -> dict[str, str]:
        known = self._known()
        return {name: role for name, role in models_named(settings).items() if name not in known}

    def _ask(self, named: dict[str, str], answers: dict[str, str]) -> str:
        lines = "\n".join(f"{visible(brief(name, _SHOWN))}  ({visible(brief(role, _SHOWN))})" for name, role in named.items())
        text = f"The file names models that were not chosen here:\n\n{lines}\n\nUse them? An id of the Hub is downloaded."
        over = QApplication.activeWindow() or self._window.page.window()  # a presentation covers the window
        return ask(over, "Models that a file names", text, answers, careful=True)
