"""The menu of methods: every method one click away, by family, with the reason where one cannot run.

What is offered, how it is called and what it says comes from the registry alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from PySide6.QtCore import QElapsedTimer, Qt, Signal
from PySide6.QtGui import QAction, QKeyEvent, QMouseEvent
from PySide6.QtWidgets import QApplication, QLabel, QMenu, QWidget, QWidgetAction

from specview.drafting.registry import METHODS
from specview.gui.link.head_checks import needs_choice
from specview.gui.parts import theme
from specview.gui.parts.widgets import label
from specview.gui.state.display_text import tooltip
from specview.settings.options import INSIDE

FAMILIES = {"draft model": "Draft model", "trained head": "Trained head", "n-gram": "N-gram: no second model", "self": "The target itself",
            "combined": "Combined"}
_NOT_HERE = "\nNot here: "
_INSIDE = "The modules ship inside the target, or in a folder: the editor opens, to choose."
_NO_HEAD = "No head for it is bundled: the editor opens, to choose one."


def by_family(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Group method names by family, families in the registry's order, known ones first."""
    groups: dict[str, list[str]] = {family: [] for family in FAMILIES}
    for name in names:
        groups.setdefault(METHODS[name].family, []).append(name)
    return [(family, found) for family, found in groups.items() if found]


def add_methods(
    menu: QMenu, names: Iterable[str], problems: Mapping[str, str], chosen: Callable[[str], Any], *, asks: bool = False
) -> list[QAction]:
    """Put methods into a menu, grouped; those with a problem are disabled and say it. Returns the actions.

    asks: a method whose head has to be chosen first opens the editor, and says so.
    """
    made: list[QAction] = []
    for family, found in by_family(names):
        if made:
            menu.addSeparator()
        heading = QWidgetAction(menu)
        text = label(FAMILIES.get(family, family), "small")
        text.setContentsMargins(10, 4, 10, 2)
        heading.setDefaultWidget(text)
        heading.setEnabled(False)
        menu.addAction(heading)
        for name in found:
            info = METHODS[name]
            ask = asks and needs_choice(name)
            action = menu.addAction(info.label.replace("&", "&&") + ("…" if ask else ""))
            action.setData(name)
            problem = problems.get(name, "")
            action.setEnabled(not problem)
            about = f"{info.description} {_INSIDE if info.head == INSIDE else _NO_HEAD}" if ask else info.description
            words = about if not problem else f"{about}{_NOT_HERE}{problem}"
            action.setToolTip(tooltip(words))
            action.setWhatsThis(words)
            action.triggered.connect(lambda _=False, name=name: chosen(name))
            made.append(action)
    return made


class LaneMenu(QMenu):
    """What the + Lane button opens: `method_chosen` with a method's name, `editor_asked` for the form first."""

    method_chosen = Signal(str)
    editor_asked = Signal()

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setToolTipsVisible(True)
        self.setAccessibleName("Add a lane")
        self._methods: list[QAction] = []
        self.editor = QAction("Set up before adding…", self)
        self._words: QLabel | None = None
        self._typed = ""
        self._since = QElapsedTimer()
        self._since.start()
        self.hovered.connect(self._describe)

    def fill(self, problems: Mapping[str, str]) -> None:
        """List all methods that draft."""
        self.clear()
        drafting = [name for name, info in METHODS.items() if info.drafts]
        self._methods = add_methods(self, drafting, problems, self.method_chosen.emit, asks=True)
        self.addSeparator()
        self.editor = self.addAction("Set up before adding…")
        words = "Choose method, draft, length and options in the editor first."
        self.editor.setToolTip(tooltip(words))
        self.editor.setWhatsThis(words)
        self.editor.triggered.connect(lambda _=False: self.editor_asked.emit())
        self.addSeparator()
        # The chosen line's words, for who moves over the menu with the keyboard and sees no tool tip.
        self._words = label("", "small")
        self._words.setWordWrap(True)
        self._words.setContentsMargins(10, 2, 10, 4)
        self._words.setFixedSize(theme.px(310), self._words.fontMetrics().lineSpacing() * 6)
        self._words.setAlignment(Qt.AlignmentFlag.AlignTop | Qt.AlignmentFlag.AlignLeft)
        footer = QWidgetAction(self)
        footer.setDefaultWidget(self._words)
        footer.setEnabled(False)
        self.addAction(footer)

    def _describe(self, action: QAction) -> None:
        """Say in words what the chosen line is, or why it cannot be chosen."""
        if self._words is not None:
            words, mark, reason = action.whatsThis().partition(_NOT_HERE)
            self._words.setText(f"{mark.strip()} {reason}" if reason else words)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """Describe lines that cannot be chosen too: Qt does not count them as hovered."""
        super().mouseMoveEvent(event)
        action = self.actionAt(event.position().toPoint())
        if action in self._methods and not action.isEnabled():
            self._describe(action)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Go to the method whose name begins with what is typed, as in a list."""
        text = event.text().casefold()
        if not text.isprintable() or not text.strip() or event.modifiers() & ~Qt.KeyboardModifier.ShiftModifier:
            self._typed = ""
            super().keyPressEvent(event)
            return
        if self._since.hasExpired(QApplication.keyboardInputInterval() * 3):
            self._typed = ""
        self._since.restart()
        self._typed += text
        able = [action for action in self.actions() if action.isEnabled() and action.text()]
        found = next((action for action in able if action.text().casefold().startswith(self._typed)), None)
        if found is not None:
            self.setActiveAction(found)

    def actions_by_name(self) -> dict[str, QAction]:
        """The methods' actions by method name."""
        return {str(action.data()): action for action in self._methods}

    def open_under(self, anchor: QWidget) -> None:
        """Open beneath a button, the first method that can run chosen, so that the arrow keys go on from it."""
        self.popup(anchor.mapToGlobal(anchor.rect().bottomLeft()))
        first = next((action for action in self._methods if action.isEnabled()), None)
        if first is not None:
            self.setActiveAction(first)
            self._describe(first)


def known_problems(engine: str) -> Mapping[str, str]:
    """Method -> why it cannot draft on this engine, as far as that is known before a model is loaded."""
    if engine != "llama.cpp":
        return {}
    from specview.engines.llama_cpp_engine import LlamaCppEngine

    unloaded: Any = LlamaCppEngine  # the class itself says what holds for every model
    found: dict[str, str] = {}
    for name, info in METHODS.items():
        if info.problem is None:
            continue
        try:
            reason = info.problem(unloaded)
        except (AttributeError, TypeError):  # it asks for what only a loaded model knows
            continue
        if reason:
            found[name] = reason
    return found
