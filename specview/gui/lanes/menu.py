"""The menus of methods: every method one click away, by family, with the reason where one cannot run.

What is offered, how it is called and what it says comes from the registry alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import (
    QCoreApplication,
    QModelIndex,
    QPersistentModelIndex,
    QPointF,
    QRectF,
    QSize,
    Qt,
    Signal,
)
from PySide6.QtGui import QAction, QColor, QFontMetricsF, QKeyEvent, QPainter, QShowEvent
from PySide6.QtWidgets import (
    QFrame,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QMenu,
    QPushButton,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QWidget,
    QWidgetAction,
)

from specview.drafting.registry import METHODS
from specview.gui.link.head_checks import needs_choice
from specview.gui.parts import layout, theme
from specview.gui.parts.painted import box, ink, words
from specview.gui.parts.widgets import Popover, button, label
from specview.gui.state.display_text import tooltip
from specview.settings.options import INSIDE

FAMILIES = {"draft model": "Draft model", "trained head": "Trained head", "n-gram": "N-gram: no second model", "self": "The target itself",
            "combined": "Combined"}
RECOMMENDED = "Fits this target"
_NOT_HERE = "Not here: "
_INSIDE = "The modules ship inside the target, or in a folder: the editor opens, to choose."
_NO_HEAD = "No head for it is bundled: the editor opens, to choose one."
_WIDE_PX, _MOST_PX = 470, 430
_ENTER = (Qt.Key.Key_Return, Qt.Key.Key_Enter)
_MOVES = (Qt.Key.Key_Up, Qt.Key.Key_Down, Qt.Key.Key_PageUp, Qt.Key.Key_PageDown)


def by_family(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Group method names by family, families in the registry's order, known ones first."""
    groups: dict[str, list[str]] = {family: [] for family in FAMILIES}
    for name in names:
        groups.setdefault(METHODS[name].family, []).append(name)
    return [(family, found) for family, found in groups.items() if found]


def add_methods(menu: QMenu, names: Iterable[str], problems: Mapping[str, str], chosen: Callable[[str], Any]) -> list[QAction]:
    """Put methods into a menu, grouped; those with a problem are disabled and say it. Returns the actions."""
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
            action = menu.addAction(info.label.replace("&", "&&"))
            action.setData(name)
            problem = problems.get(name, "")
            action.setEnabled(not problem)
            action.setToolTip(tooltip(info.description if not problem else f"{info.description}\n{_NOT_HERE}{problem}"))
            action.triggered.connect(lambda _=False, name=name: chosen(name))
            made.append(action)
    return made


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the menu: a method, or (no name) the heading of those after it; first: one that is recommended."""

    name: str
    title: str
    note: str = ""
    problem: str = ""
    family: str = ""
    first: bool = False

    @property
    def words(self) -> str:
        """All that is said of it."""
        return f"{_NOT_HERE}{self.problem}" if self.problem else self.note

    @property
    def brief(self) -> str:
        """The same in a line: without what comes in brackets, and after the first clause."""
        return self.words if self.problem else re.split(r"; | \(|\. ", self.note, maxsplit=1)[0].rstrip(".")

    def has(self, typed: str, anywhere: bool = True) -> bool:
        """Whether each word typed is in its names, or anywhere in what it says."""
        names = f"{self.name} {self.title}"
        text = f"{names} {self.family} {self.note}" if anywhere else names
        return all(word in text.casefold() for word in typed.casefold().split())


def rows_of(problems: Mapping[str, str], recommended: Sequence[str] = ()) -> list[Row]:
    """Every method that drafts: first what is recommended, then the others by family."""

    def row(name: str) -> Row:
        info = METHODS[name]
        ask = needs_choice(name)
        about = f"{info.description} {_INSIDE if info.head == INSIDE else _NO_HEAD}" if ask else info.description
        return Row(name, f"{info.label}{'…' if ask else ''}", about, problems.get(name, ""), info.family, name in recommended)

    rest = by_family(name for name, info in METHODS.items() if info.drafts and name not in recommended)
    groups = [(RECOMMENDED, list(recommended)), *((FAMILIES.get(family, family), names) for family, names in rest)]
    return [one for heading, names in groups if names for one in (Row("", heading), *map(row, names))]


class LaneMenu(Popover):
    """What the + Lane button opens: type to filter, Enter takes the first that is left.

    Signals: method_chosen with a method's name, editor_asked for the form first, tuning_asked for what finds the fastest.
    """

    method_chosen = Signal(str)
    editor_asked = Signal()
    tuning_asked = Signal()

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAccessibleName("Add a lane")
        self.rows: list[Row] = []
        self.filter = QLineEdit()
        self.filter.setPlaceholderText("Add a lane: type to find a method")
        self.filter.setAccessibleName("Find a method")
        self.filter.setClearButtonEnabled(True)
        self.list = QListWidget()
        self.list.setAccessibleName("Methods")
        self.list.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # what is typed goes to the filter, whatever was clicked
        self.list.setFrameShape(QFrame.Shape.NoFrame)
        self.list.setMouseTracking(True)
        self.list.setUniformItemSizes(False)
        self.list.setItemDelegate(_RowPainter(self.list))
        self.about = label("", "small")
        self.about.setWordWrap(True)
        self.about.setAlignment(Qt.AlignmentFlag.AlignTop | Qt.AlignmentFlag.AlignLeft)
        self.editor = button(QPushButton, "Set up before adding…", "Choose method, draft, length and options in the editor first",
                             lambda: self._leave(self.editor_asked), kind="flat")  # fmt: skip
        self.tune = button(QPushButton, "Tune: find the fastest here…", "Measures methods and draft lengths on this prompt",
                           lambda: self._leave(self.tuning_asked), kind="flat")  # fmt: skip
        self.column.setContentsMargins(8, 8, 8, 6)
        self.column.setSpacing(6)
        for part in (self.filter, self.list, self.about):
            self.column.addWidget(part)
        self.column.addLayout(layout.row(self.editor, 1, self.tune, gap=8))
        self.filter.textChanged.connect(self._show_rows)
        self.list.currentRowChanged.connect(self._describe)
        self.list.itemEntered.connect(self.list.setCurrentItem)
        self.list.itemClicked.connect(lambda item: self._take(self.list.row(item)))

    def fill(self, problems: Mapping[str, str], recommended: Sequence[str] = ()) -> None:
        """List all methods that draft, these first."""
        self.rows = rows_of(problems, recommended)
        self.filter.clear()
        self._show_rows()

    def shown(self) -> list[Row]:
        """The lines that the filter leaves, in order."""
        return [self.list.item(place).data(Qt.ItemDataRole.UserRole) for place in range(self.list.count())]

    @property
    def current(self) -> Row | None:
        """The line that Enter takes."""
        item = self.list.currentItem()
        return None if item is None else item.data(Qt.ItemDataRole.UserRole)

    def choose(self, name: str) -> None:
        """Take a method, as a click on its line does."""
        self._take(next(place for place, row in enumerate(self.shown()) if row.name == name))

    def _show_rows(self) -> None:
        typed = self.filter.text()
        left = [row for row in self.rows if row.name and row.has(typed)]
        named = [row for row in left if row.has(typed, anywhere=False)]
        self.list.blockSignals(True)
        self.list.clear()
        heading: Row | None = None
        for row in self.rows:
            if not row.name:
                heading = row
                continue
            if row not in left:
                continue
            if heading is not None:
                self._add(heading)
                heading = None
            self._add(row)
        able = [row for row in (*named, *left) if not row.problem]
        shown = self.shown()
        self.list.blockSignals(False)
        self.list.setCurrentRow(shown.index(able[0]) if able else next((at for at, row in enumerate(shown) if row.name), -1))
        self._describe()

    def _add(self, row: Row) -> None:
        item = QListWidgetItem(row.title)
        item.setData(Qt.ItemDataRole.UserRole, row)
        if row.name:
            item.setData(Qt.ItemDataRole.AccessibleDescriptionRole, row.words)
            item.setToolTip(tooltip("\n".join(dict.fromkeys((row.note, row.words)))))
        else:
            item.setFlags(Qt.ItemFlag.NoItemFlags)
        self.list.addItem(item)

    def _describe(self) -> None:
        """Say what the line is, or why it cannot be chosen: its own note is one line."""
        row = self.current
        text = row.words if row is not None else "No method has that in its name or description."
        self.about.setText(text)
        self.filter.setAccessibleDescription(f"{row.title}: {text}" if row is not None else text)

    def _take(self, place: int) -> None:
        item = self.list.item(place)
        row: Row | None = None if item is None else item.data(Qt.ItemDataRole.UserRole)
        if row is not None and row.name and not row.problem:
            self.hide()
            self.method_chosen.emit(row.name)

    def _leave(self, signal: Any) -> None:
        self.hide()
        signal.emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Move in the list from the filter; Enter takes its line, Escape empties the filter first."""
        if event.key() in _MOVES:
            QCoreApplication.sendEvent(self.list, event)
        elif event.key() in _ENTER and self.filter.hasFocus():
            self._take(self.list.currentRow())
        elif event.key() == Qt.Key.Key_Escape and self.filter.text():
            self.filter.clear()
        else:
            super().keyPressEvent(event)

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.filter.setFocus()

    def sizeHint(self) -> QSize:
        """Room for the list, up to a height that leaves the window in sight, and for three lines of words."""
        self.about.setFixedHeight(3 * self.about.fontMetrics().lineSpacing() + 2)
        high = sum(self.list.sizeHintForRow(place) for place in range(self.list.count())) + 2
        self.list.setFixedHeight(min(high, theme.px(_MOST_PX)))
        return QSize(theme.px(_WIDE_PX), super().sizeHint().height())


class _RowPainter(QStyledItemDelegate):
    """Paints a line: its title, and muted what it is, beneath it where it is recommended."""

    def sizeHint(self, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex) -> QSize:
        row: Row = index.data(Qt.ItemDataRole.UserRole)
        return QSize(10, theme.px(40 if row.first else 24))

    def paint(self, painter: QPainter, option: Any, index: QModelIndex | QPersistentModelIndex) -> None:
        row: Row = index.data(Qt.ItemDataRole.UserRole)
        area, now = QRectF(option.rect), theme.current()
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        small, usual = theme.ui_font(11), theme.ui_font(bold=row.first)
        left, right = area.left() + theme.px(8), area.right() - theme.px(6)
        if not row.name:
            words(painter, QPointF(left, area.bottom() - theme.px(6)), row.title, small, ink("muted"))
            painter.restore()
            return
        chosen = bool(option.state & QStyle.StateFlag.State_Selected)
        if chosen:
            box(painter, area.adjusted(1, 1, -1, -1), None, QColor(now.border if row.problem else now.accent), 5)
        on_accent = QColor(now.accent_ink) if chosen and not row.problem else None
        title = on_accent or (QColor(now.faint) if row.problem else ink("ink"))
        note = on_accent or (ink("warning") if row.problem else ink("muted"))
        metrics, notes = QFontMetricsF(usual), QFontMetricsF(small)
        if row.first:
            at, beneath = area.top() + theme.px(16), QPointF(left, area.top() + theme.px(32))
        else:
            at = area.top() + (area.height() + metrics.capHeight()) / 2
            beneath = QPointF(max(left + theme.px(122), left + metrics.horizontalAdvance(row.title) + theme.px(10)), at)
        words(painter, QPointF(left, at), row.title, usual, title)
        shown = notes.elidedText(row.brief, Qt.TextElideMode.ElideRight, right - beneath.x())
        words(painter, beneath, shown, small, note)
        painter.restore()


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
        if isinstance(reason, str):  # a property is what only a loaded model knows, too
            found[name] = reason
    return found
