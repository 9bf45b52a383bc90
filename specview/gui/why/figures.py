"""All figures of the race's lanes in a table: a row for each of DESIGN section 6, with its formula."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication, QKeySequence, QShortcut
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableWidget, QTableWidgetItem

from specview.decoding.metrics import Metrics
from specview.files.figures import METRICS, MISSING
from specview.gui.state import figures, lane_words
from specview.gui.state.display_text import brief, clipboard, tooltip, visible
from specview.gui.state.view_model import LaneModel, RaceModel


def cell(name: str, race: RaceModel, lane: LaneModel, metrics: Metrics) -> str:
    """A metric of a lane as text."""
    metric = METRICS[name]
    if name == "decode_tokens_per_s":
        return metric.text(figures.shown_rate(race.speedup(lane), metrics))
    if name == "plain_tokens_per_s":
        found = race.speedup(lane)
        return figures.beside(found) or metric.text(None if found is None else found.plain_tokens_per_s)
    if name == "speedup":
        if lane.plain:
            return MISSING
        found = race.speedup(lane)
        spread = figures.spread(found)
        value = metric.text(None if found is None else found.value)
        return f"{value} ({spread})" if spread else value
    memory = {"weights": race.facts.get("target_weight_bytes"), "draft_weights": lane.draft_weight_bytes, "kv_cache": lane.kv_bytes}
    if name in memory:
        held = memory[name]
        return metric.text(held if isinstance(held, (int, float)) else None)
    return metric.text(getattr(metrics, name))


class FigureTable(QTableWidget):
    """Figures down, lanes across, the formula last; Ctrl+C copies what is selected, or all."""

    def __init__(self) -> None:
        super().__init__(len(METRICS), 2)
        self.setAccessibleName("All figures")
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setWordWrap(False)
        self.setShowGrid(False)
        self.setTabKeyNavigation(False)
        self.verticalHeader().hide()
        self._names: list[str] = []
        copy = QShortcut(QKeySequence(QKeySequence.StandardKey.Copy), self)
        copy.setContext(Qt.ShortcutContext.WidgetShortcut)
        copy.activated.connect(self.copy)

    def show_race(self, race: RaceModel) -> None:
        """Show every lane's figures; what did not change is left alone."""
        names = [f"{lane.name}, {lane_words.LOSSY}" if lane_words.lossy(lane.settings) else lane.name for lane in race.lanes]
        last = len(names) + 1
        if names != self._names:
            self._names = names
            self.clearContents()
            self.setColumnCount(last + 1)
            self.setHorizontalHeaderLabels(["figure", *(brief(visible(name), 36) for name in names), "formula"])
            header = self.horizontalHeader()
            header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
            header.setSectionResizeMode(last, QHeaderView.ResizeMode.Stretch)
            header.setMinimumSectionSize(70)
            for place, name in enumerate(METRICS):
                self._put(place, 0, METRICS[name].title, name, left=True)
                self._put(place, last, METRICS[name].formula, name, left=True)
        for column, lane in enumerate(race.lanes, start=1):
            metrics = race.metrics(lane)
            for place, name in enumerate(METRICS):
                self._put(place, column, cell(name, race, lane, metrics), name)

    def _put(self, row: int, column: int, text: str, name: str, *, left: bool = False) -> None:
        item = self.item(row, column)
        if item is None:
            item = QTableWidgetItem()
            side = Qt.AlignmentFlag.AlignLeft if left else Qt.AlignmentFlag.AlignRight
            item.setTextAlignment(side | Qt.AlignmentFlag.AlignVCenter)
            item.setToolTip(tooltip(METRICS[name].tooltip()))
            self.setItem(row, column, item)
        if item.text() != text:
            item.setText(text)

    def text(self) -> str:
        """The selected cells, or all, as tab-separated text with names."""
        chosen = self.selectedIndexes()
        alone = len(chosen) < 2
        rows = list(range(self.rowCount())) if alone else sorted({index.row() for index in chosen})
        columns = list(range(self.columnCount())) if alone else sorted({0, *(index.column() for index in chosen)})
        heads = ["figure", *(visible(name) for name in self._names), "formula"]
        lines = ["\t".join(heads[column] for column in columns if column < len(heads))]
        for row in rows:
            cells = [self.item(row, column) for column in columns]
            lines.append("\t".join(item.text() if item is not None else "" for item in cells))
        return "\n".join(lines)

    def copy(self) -> None:
        """Put the selected cells, or all, on the clipboard."""
        QGuiApplication.clipboard().setText(clipboard(self.text()))
