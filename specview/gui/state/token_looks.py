"""What is shown of tokens besides their text: drafts that were thrown away, blanks as marks, states with their colours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

GhostMode = Literal["count", "first", "all"]
"""Drafts that were thrown away: a small "+2"; the first rejected one and "+1"; every one of them."""
GHOST_MODES: tuple[GhostMode, ...] = get_args(GhostMode)
MODE_WORDS: dict[GhostMode, str] = {"count": "a count, +2", "first": "the first one", "all": "all of them"}
SWITCHED = ("accepted", "corrected", "bonus", "rejected")
"""States whose look can be switched off."""


@dataclass(frozen=True, slots=True)
class TokenLooks:
    """ghosts: how thrown-away drafts are shown; whitespace: blanks are drawn as marks; off: states that look like plain text,
    of rejected (and ignored) drafts: that are not shown at all.
    """

    ghosts: GhostMode = "count"
    whitespace: bool = False
    off: frozenset[str] = frozenset()


def ghost_mode(found: Any) -> GhostMode:
    """The mode that was kept, whatever it is: older versions kept a bool."""
    return next((mode for mode in GHOST_MODES if mode == found), "count")


def next_mode(mode: GhostMode) -> GhostMode:
    """The mode after this one, in turn."""
    return GHOST_MODES[(GHOST_MODES.index(mode) + 1) % len(GHOST_MODES)]
