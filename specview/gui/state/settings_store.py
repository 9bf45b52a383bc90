"""What the window remembers between starts: one small JSON file in the user's config folder.

A file that is missing, broken or from another version is ignored and the defaults stand. The tick to
trust a model's own code and the conversation so far are never kept.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specview.decoding.verification import resolve_rule
from specview.disk import write_whole
from specview.errors import SpecviewError, UsageError
from specview.gui.state.token_looks import SWITCHED, GhostMode, TokenLooks, ghost_mode, next_mode
from specview.racing.resolve import checked_run
from specview.settings.run import RunSettings, from_json, run_from_json, run_to_json

log = logging.getLogger(__name__)

VERSION = 1


def config_folder() -> Path:
    """Return the config folder: SPECVIEW_CONFIG where it is set, else the platform's."""
    if given := os.environ.get("SPECVIEW_CONFIG"):
        return Path(given)
    import platformdirs

    return Path(platformdirs.user_config_dir("specview", appauthor=False))


@dataclass(slots=True)
class WindowState:
    """How the window looks: geometry as Qt's own bytes (hex), splitters, theme, font and views.

    ghosts, uncoloured and whitespace are `TokenLooks`; linked: lanes scroll together.
    rule is the acceptance rule of the lanes that have none of their own; inspector that it was asked
    for and stands open; third_plot what the third plot shows ('speed', 'time', 'k', 'mean-k'). trees names the lanes whose live draft tree is open (RacePage.tree_key).
    tour_answered: the guided tour was taken, or not wanted. pages is what each tab wants remembered, by title.
    """

    geometry: str = ""
    splitters: dict[str, list[int]] = field(default_factory=dict)
    theme: str = "system"
    font_scale: float = 1.0
    ghosts: GhostMode = "count"
    uncoloured: list[str] = field(default_factory=list)
    whitespace: bool = False
    linked: bool = True
    inspector: bool = False
    rule: str = "auto"
    plots: bool = True
    third_plot: str = "speed"
    tour_answered: bool = False
    trees: list[str] = field(default_factory=list)
    pages: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def tokens(self) -> TokenLooks:
        """How tokens look."""
        return TokenLooks(self.ghosts, self.whitespace, frozenset(self.uncoloured) & frozenset(SWITCHED))

    def switch_tokens(self, state: str = "", on: bool = True) -> None:
        """Switch the look of a state of tokens on or off; without one, go on to the next way of showing thrown-away drafts."""
        if state:
            self.uncoloured = sorted(set(self.uncoloured) - {state} if on else {*self.uncoloured, state})
        else:
            self.ghosts = next_mode(self.ghosts)


@dataclass(slots=True)
class Remembered:
    """The last run's settings (None on the first start) and the window's looks."""

    run: RunSettings | None = None
    window: WindowState = field(default_factory=WindowState)


def _checked(run: RunSettings) -> RunSettings:
    """The settings checked; a lane's rule that does not fit the temperature, which the window lets stand until Run, is `auto`."""
    lanes = []
    for lane in run.lanes:
        try:
            resolve_rule(lane.rule, run.sampling)
        except UsageError:
            lane = replace(lane, rule="auto")
        lanes.append(lane)
    return checked_run(replace(run, lanes=tuple(lanes)))


class SettingsStore:
    """Reads and writes window.json."""

    def __init__(self, folder: Path | None = None) -> None:
        self.path = (folder or config_folder()) / "window.json"

    def load(self) -> Remembered:
        """Return what was kept; defaults for whatever is missing or does not fit."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            if not isinstance(found, dict) or found.get("version") != VERSION:
                return Remembered()
        except FileNotFoundError:
            return Remembered()
        except (OSError, ValueError, RecursionError) as error:
            log.warning("ignoring %s: %s", self.path, error)
            return Remembered()
        try:
            looks = found.get("window")
            if isinstance(looks, dict) and "ghosts" in looks:
                looks["ghosts"] = ghost_mode(looks["ghosts"])
            window = from_json(WindowState, looks)
        except (TypeError, ValueError):
            window = WindowState()
        try:
            run = _checked(run_from_json(found["run"])) if found.get("run") else None
        except (SpecviewError, TypeError, ValueError, AttributeError) as error:
            log.warning("ignoring the settings in %s: %s", self.path, error)
            run = None
        return Remembered(run, window)

    def save(self, kept: Remembered) -> bool:
        """Write atomically; False (and a line in the log) where that is not possible."""
        found = {
            "version": VERSION,
            "window": dataclasses.asdict(kept.window),
            "run": run_to_json(kept.run) if kept.run else None,
        }
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(self.path, json.dumps(found, indent=1).encode("utf-8"), private=True)  # the prompt is in it
        except (OSError, UnicodeError) as error:
            log.warning("the window's settings were not kept: %s", error)
            return False
        return True
