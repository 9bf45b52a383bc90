"""The window's menus, each entry declared once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from PySide6.QtGui import QAction, QActionGroup, QKeySequence
from PySide6.QtWidgets import QMainWindow


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry: its text, what it does, its keys (several with '; ' between them).

    name: by which the window finds it. on: it can be ticked, and is or is not at first. group: of those with one group
    just one is ticked.
    """

    text: str
    do: Callable[[], object]
    keys: str = ""
    name: str = ""
    on: bool | None = None
    group: str = ""


LINE = None
"""A line between entries."""


def fill(window: QMainWindow, menus: Mapping[str, Sequence[Entry | None]]) -> dict[str, QAction]:
    """Make the menus of a window; return the named entries' actions."""
    named: dict[str, QAction] = {}
    groups: dict[str, QActionGroup] = {}
    for title, entries in menus.items():
        menu = window.menuBar().addMenu(title)
        for entry in entries:
            if entry is None:
                menu.addSeparator()
                continue
            action = menu.addAction(entry.text)
            if entry.keys:
                action.setShortcuts(QKeySequence.listFromString(entry.keys))
            if entry.on is not None:
                action.setCheckable(True)
                action.setChecked(entry.on)
            if entry.group:
                groups.setdefault(entry.group, QActionGroup(window)).addAction(action)
            action.triggered.connect(lambda _=False, do=entry.do: do())
            if entry.name:
                named[entry.name] = action
    return named
