"""The window's menus under one button, each entry declared once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from PySide6.QtCore import QPoint
from PySide6.QtGui import QAction, QActionGroup, QKeySequence
from PySide6.QtWidgets import QMainWindow, QMenu, QToolButton

from specview.gui.parts.widgets import set_tip


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


class MenuButton(QToolButton):
    """☰: opens all menus, as submenus; F10 does too. On macOS they stand in the system's bar besides."""

    def __init__(self) -> None:
        super().__init__()
        self.setText("☰")
        self.setProperty("kind", "flat")
        self.setAccessibleName("Menu")
        set_tip(self, "All menus (F10)")
        self.menus = QMenu(self)
        self.menus.setAccessibleName("Menu")
        self.clicked.connect(self.open)

    def open(self) -> None:
        """Open the menus, the first one chosen, so that the arrow keys go on from it."""
        under = QPoint(self.width() - self.menus.sizeHint().width(), self.height() + 4)
        self.menus.popup(self.mapToGlobal(under))
        self.menus.setActiveAction(self.menus.actions()[0])

    def fill(self, window: QMainWindow, menus: Mapping[str, Sequence[Entry | None]]) -> dict[str, QAction]:
        """Make the menus of a window; return the named entries' actions."""
        named: dict[str, QAction] = {}
        groups: dict[str, QActionGroup] = {}
        for title, entries in menus.items():
            menu = self.menus.addMenu(title)
            if sys.platform == "darwin":
                window.menuBar().addMenu(menu)
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
                window.addAction(action)  # its keys work with the menus closed, and with this button hidden
                if entry.name:
                    named[entry.name] = action
        return named
