"""The members of a combined method: an ordered list, and the options of the one that is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import (
    QListWidget,
    QMenu,
    QPushButton,
    QSizePolicy,
    QWidget,
)

from specview.drafting.registry import METHODS
from specview.gui.lanes.menu import add_methods
from specview.gui.lanes.option_form import OptionForm
from specview.gui.link.head_checks import has_bundled, no_head
from specview.gui.parts import layout, theme
from specview.gui.parts.widgets import ElidedLabel, set_tip
from specview.settings.options import HEAD, INSIDE, Value

JOIN = "+"


def eligible() -> list[str]:
    """The methods that a combined one can have as members."""
    return [name for name, info in METHODS.items() if info.drafts and not info.combines]


class _List(QListWidget):
    """A list whose chosen line moves with Alt+Up and Alt+Down and goes with Delete."""

    move_asked = Signal(int)
    remove_asked = Signal()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        alt = bool(event.modifiers() & Qt.KeyboardModifier.AltModifier)
        if alt and event.key() in (Qt.Key.Key_Up, Qt.Key.Key_Down):
            self.move_asked.emit(-1 if event.key() == Qt.Key.Key_Up else 1)
        elif event.key() in (Qt.Key.Key_Delete, Qt.Key.Key_Backspace):
            self.remove_asked.emit()
        else:
            super().keyPressEvent(event)


class MembersEditor(QWidget):
    """Edits which methods are combined, in which order and with which options; `changed` on every edit."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._names: list[str] = []
        self._kept: dict[str, Mapping[str, Any]] = {}
        self._shown: str | None = None  # None: the form does not stand for what is chosen
        self._problems: Mapping[str, str] = {}
        self.list = _List()
        self.list.setAccessibleName("Members, in order")
        self.list.setMinimumWidth(theme.px(120))
        self.list.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        set_tip(self.list, "Members in order. Alt+Up and Alt+Down move the chosen one, Delete removes it.")
        self.add = QPushButton("Add ▾")
        self.menu = QMenu(self.add)
        self.menu.setToolTipsVisible(True)
        self.menu.aboutToShow.connect(self._fill_menu)
        self.add.setMenu(self.menu)
        self.remove = QPushButton("Remove")
        self.up, self.down = QPushButton("Up"), QPushButton("Down")
        set_tip(self.add, "Add a member at the end")
        set_tip(self.remove, "Remove the chosen member (Delete)")
        set_tip(self.up, "Move the chosen member up (Alt+Up)")
        set_tip(self.down, "Move the chosen member down (Alt+Down)")
        self.title = ElidedLabel("", "small")
        self.form = OptionForm()
        row = layout.row(
            (self.list, 1, Qt.AlignmentFlag.AlignTop),
            layout.column(self.add, self.remove, self.up, self.down, 1, gap=4)
        )
        layout.column(row, self.title, self.form, on=self, gap=6)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
        self.list.currentRowChanged.connect(self._show_member)
        self.list.move_asked.connect(self.move_member)
        self.list.remove_asked.connect(self.remove_current)
        self.remove.clicked.connect(self.remove_current)
        self.up.clicked.connect(lambda: self.move_member(-1))
        self.down.clicked.connect(lambda: self.move_member(1))
        self.form.changed.connect(self.changed)
        theme.signals.changed.connect(self._fit)
        self._fit()

    def _fit(self) -> None:
        self.list.setFixedHeight(theme.px(132))

    def fill(self, names: Sequence[str], given: Mapping[str, Any], problems: Mapping[str, str]) -> None:
        """Show these members; `given` has their options as 'member.option', `problems` why some cannot run."""
        self._problems = problems
        self._kept = {}
        for key, value in given.items():
            member, dot, own = key.partition(".")
            if dot:
                self._kept[member] = {**self._kept.get(member, {}), own: value}
        self._names = [name for name in names if name]
        self._shown = None
        self._fill_list(0)

    def names(self) -> list[str]:
        """The members in order."""
        return list(self._names)

    def joined(self) -> str:
        """The members as the option `members` takes them."""
        return JOIN.join(self._names)

    def values(self) -> dict[str, Value]:
        """Every member's options as 'member.option'; raises UsageError where one shown does not fit."""
        found: dict[str, Value] = {}
        for name in self._names:
            own = self.form.values() if name == self._shown else self._kept.get(name, {})
            found |= {f"{name}.{key}": value for key, value in own.items()}
        return found

    def held(self) -> dict[str, Value]:
        """Every member's options as 'member.option', with the text of those that do not fit."""
        self._keep()
        return {f"{name}.{key}": value for name in self._names for key, value in self._kept.get(name, {}).items()}

    def head_problem(self) -> str:
        """Why a member has no head to draft with; '' where all have."""
        for name in self._names:
            info = METHODS.get(name)
            if info is None or info.head in (None, INSIDE):
                continue
            held = self.form.held() if name == self._shown else self._kept.get(name, {})
            if not held.get(HEAD.name) and not has_bundled(str(info.head)):
                return no_head(str(info.head), info.label)
        return ""

    def head_refusal(self) -> str:
        """Why the shown member's head cannot draft, once its files have told that; '' else."""
        return self.form.head_refusal() if self._shown in self._names else ""

    def focus_order(self) -> list[QWidget]:
        """What takes the keyboard, in order."""
        return [self.list, self.add, self.remove, self.up, self.down, *self.form.fields()]

    # -- edits -------------------------------------------------------------------------------------

    def add_member(self, name: str) -> None:
        """Put a method at the end."""
        if name not in self._names:
            self._names.append(name)
            self._fill_list(len(self._names) - 1)
            self.changed.emit()

    def remove_current(self) -> None:
        """Take the chosen member out; its options are remembered."""
        row = self.list.currentRow()
        if 0 <= row < len(self._names):
            self._keep()
            del self._names[row]
            self._shown = None
            self._fill_list(min(row, len(self._names) - 1))
            self.changed.emit()

    def move_member(self, step: int) -> None:
        """Move the chosen member by `step` places."""
        row = self.list.currentRow()
        to = row + step
        if 0 <= row < len(self._names) and 0 <= to < len(self._names):
            self._names.insert(to, self._names.pop(row))
            self._fill_list(to)
            self.changed.emit()

    # -- what is shown -----------------------------------------------------------------------------

    def _fill_menu(self) -> None:
        self.menu.clear()
        free = [name for name in eligible() if name not in self._names]
        add_methods(self.menu, free, self._problems, self.add_member)
        if not free:
            self.menu.addAction("all methods are in").setEnabled(False)

    def _fill_list(self, row: int) -> None:
        self.list.blockSignals(True)
        self.list.clear()
        for place, name in enumerate(self._names, start=1):
            info = METHODS.get(name)
            self.list.addItem(f"{place}  {name if info is None else info.label}")
            if info is not None:
                self.list.item(place - 1).setToolTip(_tip(info.description))
        self.list.setCurrentRow(row)
        self.list.blockSignals(False)
        self._show_member()

    def _show_member(self) -> None:
        row = self.list.currentRow()
        name = self._names[row] if 0 <= row < len(self._names) else ""
        if name != self._shown:
            self._keep()
            self._shown = name
            info = METHODS.get(name)
            options = info.options if info is not None else ()
            presets, head = (info.presets, info.head) if info is not None else ({}, None)
            self.form.fill(options, self._kept.get(name, {}), presets, head=head)
            if info is None:
                self.title.set_full("" if not name else f"there is no method {name}")
            elif options:
                self.title.set_full(f"Options of {info.label}:")
            else:
                self.title.set_full(f"{info.label} has no options of its own. {info.description}")
            self.changed.emit()
        self.remove.setEnabled(bool(name))
        self.up.setEnabled(row > 0)
        self.down.setEnabled(0 <= row < len(self._names) - 1)

    def _keep(self) -> None:
        """Remember what the form holds, values that do not fit too, while another member is shown."""
        if self._shown:
            self._kept[self._shown] = self.form.held()


def _tip(text: str) -> str:
    from specview.gui.state.display_text import tooltip

    return tooltip(text)
