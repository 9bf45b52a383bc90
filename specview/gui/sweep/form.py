"""The editor of a sweep's grid: draft lengths, temperatures, prompts, methods, repeats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from PySide6.QtCore import QModelIndex, QPersistentModelIndex, Qt, Signal
from PySide6.QtGui import QColor, QPainter, QPen, QShowEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFileDialog,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QPushButton,
    QStyle,
    QStyledItemDelegate,
    QStyleOptionViewItem,
    QWidget,
)

from specview.drafting.registry import DEFAULT_METHOD, METHODS
from specview.errors import SpecviewError, UsageError
from specview.experiments.sweep_grid import (
    MAX_REPEATS,
    Grid,
    GridPrompt,
    grid_prompts,
    parse_ks,
    parse_temperatures,
    prompts_of_set,
)
from specview.gui.parts import layout, theme
from specview.gui.parts.widgets import Field, NumberEdit, label, set_kind, set_tip
from specview.gui.state.display_text import tooltip
from specview.racing import workloads
from specview.settings.run import LaneSettings, RunSettings

PROMPT_OF_THE_RACE = "prompt of the race"


class _Boxes(QStyledItemDelegate):
    """Draws the boxes' outlines, so that they can be seen in both themes."""

    def paint(self, painter: QPainter, option: QStyleOptionViewItem, index: QModelIndex | QPersistentModelIndex) -> None:
        super().paint(painter, option, index)
        own = QStyleOptionViewItem(option)
        self.initStyleOption(own, index)
        widget = own.widget
        box = widget.style().subElementRect(QStyle.SubElement.SE_ItemViewItemCheckIndicator, own, widget)
        painter.save()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QPen(QColor(theme.current().muted), 1.2))
        painter.drawRoundedRect(box.adjusted(0, 0, -1, -1), 3, 3)
        painter.restore()


class Ticks(QListWidget):
    """Things to be ticked; Space ticks the current one."""

    ticked = Signal()

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setAccessibleName(name)
        self.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setTextElideMode(Qt.TextElideMode.ElideRight)
        self.setItemDelegate(_Boxes(self))
        self.itemChanged.connect(lambda _: self.ticked.emit())

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self.doItemsLayout()  # items made before the style sheet came have its height only now

    def add(self, text: str, value: Any, on: bool = False, tip: str = "") -> None:
        """Add a thing at the end."""
        item = QListWidgetItem(text)
        item.setData(Qt.ItemDataRole.UserRole, value)
        item.setFlags(Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsSelectable | Qt.ItemFlag.ItemIsUserCheckable)
        item.setCheckState(Qt.CheckState.Checked if on else Qt.CheckState.Unchecked)
        if tip:
            item.setToolTip(tooltip(tip))
        self.addItem(item)

    def texts(self) -> list[str]:
        """What is ticked, by text."""
        return [item.text() for item in self._ticked()]

    def values(self) -> list[Any]:
        """What is ticked."""
        return [item.data(Qt.ItemDataRole.UserRole) for item in self._ticked()]

    def tick(self, texts: Sequence[str]) -> None:
        """Tick exactly these."""
        self.blockSignals(True)
        for item in self._items():
            item.setCheckState(Qt.CheckState.Checked if item.text() in texts else Qt.CheckState.Unchecked)
        self.blockSignals(False)
        self.ticked.emit()

    def _items(self) -> list[QListWidgetItem]:
        return [self.item(place) for place in range(self.count())]

    def _ticked(self) -> list[QListWidgetItem]:
        return [item for item in self._items() if item.checkState() == Qt.CheckState.Checked]


class GridForm(QWidget):
    """Everything of a grid but what the race's bar holds: target, engine, seed, filters. `changed` fires on every edit."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._settings: RunSettings | None = None
        self._own_lanes: tuple[LaneSettings, ...] = ()
        self._remembered: list[str] = []  # lanes of the race that were ticked, until the race's lanes are known
        self.trouble = label("", "small warning")
        self.trouble.setWordWrap(True)
        self.trouble.hide()
        self.ks, self.temperatures = QLineEdit("1..8"), QLineEdit("0")
        self.repeats = NumberEdit("repeats", 3, whole=True, minimum=1, maximum=MAX_REPEATS, digits=4)
        self.max_tokens = NumberEdit("max tokens", 64, whole=True, minimum=1, maximum=1_000_000, step=16, digits=6)
        self.prompts, self.lanes = Ticks("Workloads"), Ticks("Methods")
        self._lines: dict[str, QLineEdit] = {
            "k": self.ks, "temperatures": self.temperatures, "repeats": self.repeats, "max_tokens": self.max_tokens
        }  # fmt: skip
        self._ticks = {"prompts": self.prompts, "lanes": self.lanes}
        self.file = QPushButton("File…")
        self.file.setProperty("kind", "flat")
        set_tip(self.file, "A set of prompts of your own (JSON Lines): each prompt is a cell, grouped by its workload")
        for kind in workloads.list_workloads():
            self.prompts.add(kind, kind, kind == workloads.DEFAULT, workloads.KINDS.get(kind.removesuffix("-pt"), ""))
        self.prompts.add(PROMPT_OF_THE_RACE, None, False, "The prompt of the Race tab")
        self._fill_lanes(())
        first = layout.row(
            (Field("Draft lengths k", self.ks, "1..8, or 1..16:3 for steps of 3, or 1,2,4"), 1),
            (Field("Temperatures", self.temperatures, "0 is greedy; 0,0.7 or 0..1:0.25"), 1), gap=theme.px(8)
        )
        second = layout.row(
            Field("Repeats", self.repeats, "All cells once, then all again: a noisy moment hits all alike"),
            Field("Max tokens", self.max_tokens, "Output tokens of every race"), 1, gap=theme.px(8)
        )
        layout.column(
            self.trouble, first, second, layout.row(label("Workloads", "small"), 1, self.file), (self.prompts, 3),
            label("Methods (plain runs beside each)", "small"), (self.lanes, 3), on=self, gap=theme.px(6)
        )
        for line in self._lines.values():
            line.textChanged.connect(lambda _: self._edited())
        for ticks in self._ticks.values():
            ticks.ticked.connect(self._edited)
        self.file.clicked.connect(self._choose_file)

    # -- what it holds -------------------------------------------------------------------------

    def show_settings(self, settings: RunSettings | None) -> None:
        """Take what the race's bar and lanes say now; its lanes stand first among the methods."""
        self._settings = settings
        if settings is None:  # the page's line says why
            return
        own = tuple(lane for lane in settings.lanes if not lane.plain)
        if own != self._own_lanes:
            self._fill_lanes(own)
        self._remembered = []
        self._edited()

    def _tell(self, trouble: str) -> None:
        self.trouble.setText(trouble)
        self.trouble.setVisible(bool(trouble))

    def _fill_lanes(self, own: tuple[LaneSettings, ...]) -> None:
        before = {*self.lanes.texts(), *self._remembered}
        first = not self.lanes.count()
        texts: list[str] = []
        self.lanes.blockSignals(True)
        self.lanes.clear()
        for lane in own:
            text = f"{lane.label} · as in the race" if lane.label not in texts else f"{lane.label} ({len(texts) + 1}) · as in the race"
            texts.append(lane.label)
            rule = "" if lane.rule == "auto" else f", rule {lane.rule}"
            self.lanes.add(text, lane, text in before, f"{lane.method}, {lane.policy}{rule}, with the lane's own options; k is the grid's")
        for name, method in METHODS.items():
            if method.drafts and not method.heads({}) and not method.combines and (not method.needs_draft_model or method.steps_draft_model):
                on = name in before or (first and name == DEFAULT_METHOD)
                self.lanes.add(name, LaneSettings(name), on, method.description)
        self.lanes.blockSignals(False)
        self._own_lanes = own

    def grid(self) -> Grid:
        """The checked grid; raises SpecviewError, one line, where it cannot run."""
        if self._settings is None:
            raise UsageError("the race's settings do not fit together.", "Mend them in the Race tab.")
        chosen = self.lanes.values()
        lanes = tuple(replace(lane, k=None) for lane in chosen)
        settings = replace(
            self._settings, max_tokens=self.max_tokens.value(), lanes=(), prompt="", system="", history=(), workload=None
        )
        return Grid(
            settings, lanes, parse_ks(self.ks.text()), parse_temperatures(self.temperatures.text()), self._prompts(),
            self.repeats.value(),
        ).checked()  # fmt: skip

    def _prompts(self) -> tuple[GridPrompt, ...]:
        assert self._settings is not None
        found: list[GridPrompt] = []
        for prompts in self.prompts.values():
            race = self._settings
            if prompts is None:
                if race.chat and not race.prompt.strip():
                    raise UsageError("the prompt of the race is empty.", "Type one in the Race tab, or tick a workload.")
                prompts = [GridPrompt(PROMPT_OF_THE_RACE, race.prompt, race.system, "", race.history)]
            found += grid_prompts([prompts]) if isinstance(prompts, str) else prompts
        return tuple(found)

    def show_grid(self, grid: Grid) -> None:
        """Show the numbers of a sweep that was opened; its prompts and lanes where the lists have them."""
        self.ks.setText(_numbers(grid.ks))
        self.temperatures.setText(",".join(f"{value:g}" for value in grid.temperatures))
        self.repeats.set_value(grid.repeats)
        self.max_tokens.set_value(grid.settings.max_tokens)
        self.prompts.tick([prompt.group for prompt in grid.prompts])
        self.lanes.tick([lane.label for lane in grid.lanes])

    def kept(self) -> dict[str, Any]:
        """The form's values, to be remembered."""
        return {key: line.text() for key, line in self._lines.items()} | {key: ticks.texts() for key, ticks in self._ticks.items()}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Take up what `kept` gave, whatever of it fits."""
        for key, line in self._lines.items():
            if isinstance(kept.get(key), str) and len(kept[key]) < 1000:
                line.setText(kept[key])
        for key, ticks in self._ticks.items():
            if isinstance(kept.get(key), list):
                ticks.tick([str(text) for text in kept[key]])
        if isinstance(kept.get("lanes"), list):
            self._remembered = [str(text) for text in kept["lanes"]]

    # -- editing -------------------------------------------------------------------------------

    def _edited(self) -> None:
        for line, read in ((self.ks, parse_ks), (self.temperatures, parse_temperatures)):
            try:
                read(line.text())
                problem = ""
            except UsageError as error:
                problem = str(error)
            set_kind(line, "true" if problem else "false", "invalid")
            line.setToolTip(tooltip(problem or line.accessibleDescription()))
        self.changed.emit()

    def _choose_file(self) -> None:
        path, _ = QFileDialog.getOpenFileName(self, "Open a set of prompts", "", "Prompts (*.jsonl *.json);;All files (*)")
        if path:
            self.add_file(path)

    def add_file(self, path: str) -> str:
        """Add a file of prompts, ticked; return its one line of trouble, '' where it was read."""
        try:
            loaded = workloads.load_prompts_file(path)
        except SpecviewError as error:
            self._tell(str(error))
            return str(error)
        self._tell("")
        words = f"{loaded.name} ({len(loaded.prompts)} prompts)"
        if not self.prompts.findItems(words, Qt.MatchFlag.MatchExactly):
            self.prompts.add(words, prompts_of_set(loaded), True, path)
        self._edited()
        return ""


def _numbers(values: Sequence[int]) -> str:
    """1,2,3,4 as 1..4."""
    if len(values) > 2 and list(values) == list(range(values[0], values[-1] + 1)):
        return f"{values[0]}..{values[-1]}"
    return ",".join(map(str, values))
