"""The rows of a results table: in which order they are shown and which, by sort and filter, without a widget."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QObject, QPersistentModelIndex, Qt, Signal

from specview.files.tables import Column, Row, is_absent
from specview.gui.state.display_text import tooltip, visible

Index = QModelIndex | QPersistentModelIndex
Test = Callable[[int], bool]
Search = Callable[[str], Collection[Any]]
"""Gives the identities of the rows in which a word occurs, besides those that show it."""

_COMPARISON = re.compile(r"(.+?)(<=|>=|!=|=|<|>)(.*)", re.DOTALL)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


class ResultsModel(QAbstractTableModel):
    """Rows (mappings) under columns, some of them shown in some order.

    Shown places are the model's rows; a source index is a row's place in `rows`. `about_to_reorder` and
    `reordered` stand around a change of which rows are shown, for a view that keeps its selection and place.
    """

    about_to_reorder = Signal()
    reordered = Signal()

    def __init__(
        self, columns: Sequence[Column], identity: str | None = None, parent: QObject | None = None, search: Search | None = None
    ) -> None:
        super().__init__(parent)
        self._search = search
        self.columns = tuple(columns)
        self.rows: list[Row] = []
        self._identity = identity
        self._shown: list[int] = []  # source indices, in the order shown
        self._texts: list[str | None] = []  # what the filter looks in, made when first needed
        self._filter = ""
        self._tests: list[Test] = []
        self._sort_column = -1
        self._descending = False

    # -- rows ----------------------------------------------------------------------------------

    def set_rows(self, rows: Iterable[Row]) -> None:
        """Show these rows; where they continue or amend those before, only what changed is touched."""
        new = list(rows)
        if self._search is not None:
            self._tests = [self._test(word) for word in self._filter.split()]
        if self._moved(new):
            self.about_to_reorder.emit()
            self.beginResetModel()
            self.rows, self._texts = new, [None] * len(new)
            self._shown = self._ordered(range(len(new)))
            self.endResetModel()
            self.reordered.emit()
            return
        common = len(self.rows)
        changed = [place for place in range(common) if new[place] is not self.rows[place] and new[place] != self.rows[place]]
        self.rows = new
        for place in changed:
            self._texts[place] = None
        self._texts += [None] * (len(new) - common)
        added = self._kept(range(common, len(new)))
        if added:
            start = len(self._shown)
            self.beginInsertRows(QModelIndex(), start, start + len(added) - 1)
            self._shown += added
            self.endInsertRows()
        if changed:
            self.dataChanged.emit(self.index(0, 0), self.index(len(self._shown) - 1, len(self.columns) - 1))
        if (changed and (self._tests or self._sort_column >= 0)) or (added and self._sort_column >= 0):
            self._reorder()

    def _moved(self, new: Sequence[Row]) -> bool:
        """Whether rows went away or are other ones, so that places mean something else."""
        if len(new) < len(self.rows) or not self.rows:
            return True
        key = self._identity
        return key is not None and any(old.get(key) != row.get(key) for old, row in zip(self.rows, new, strict=False))

    def source(self, shown: int) -> int:
        """The source index of a shown place."""
        return self._shown[shown]

    def place(self, source: int) -> int | None:
        """Where a source index is shown; None where the filter hides it."""
        return self._shown.index(source) if source in self._shown else None

    @property
    def shown_rows(self) -> list[Row]:
        """The rows that the filter leaves, in the order shown."""
        return [self.rows[source] for source in self._shown]

    # -- order ---------------------------------------------------------------------------------

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        """Sort by a column: figures as numbers, absent ones last either way; column -1 is the order given."""
        self._sort_column, self._descending = column, order == Qt.SortOrder.DescendingOrder
        self._reorder()

    @property
    def sorted_by(self) -> tuple[int, bool]:
        """The column sorted by (-1: as given), and whether the greatest comes first."""
        return self._sort_column, self._descending

    def set_filter(self, text: str) -> None:
        """Show only rows in which every word occurs; `k=3` or `alpha>0.5` compares a column, named by key or title."""
        if text == self._filter:
            return
        self._filter = text
        self._tests = [self._test(word) for word in text.split()]
        self._reorder()

    def _reorder(self) -> None:
        shown = self._ordered(range(len(self.rows)))
        if shown == self._shown:
            return
        self.about_to_reorder.emit()
        if len(shown) == len(self._shown) and set(shown) == set(self._shown):
            self.layoutAboutToBeChanged.emit()
            before = self.persistentIndexList()
            sources = [(self._shown[index.row()], index.column()) for index in before]
            self._shown = shown
            places = {source: place for place, source in enumerate(shown)}
            self.changePersistentIndexList(before, [self.index(places[source], column) for source, column in sources])
            self.layoutChanged.emit()
        else:
            self.beginResetModel()
            self._shown = shown
            self.endResetModel()
        self.reordered.emit()

    def _ordered(self, sources: Iterable[int]) -> list[int]:
        kept = self._kept(sources)
        if self._sort_column < 0:
            return kept
        key = self.columns[self._sort_column].key
        there = [source for source in kept if not is_absent(self.rows[source].get(key))]
        absent = [source for source in kept if is_absent(self.rows[source].get(key))]
        there.sort(key=lambda source: sort_key(self.rows[source].get(key)), reverse=self._descending)
        return there + absent

    def _kept(self, sources: Iterable[int]) -> list[int]:
        return [source for source in sources if all(test(source) for test in self._tests)]

    def _test(self, word: str) -> Test:
        found = _COMPARISON.fullmatch(word)
        column = self._column_named(found[1]) if found else None
        if found is None or column is None:
            wanted, found_by = word.casefold(), () if self._search is None else self._search(word)
            return lambda source: wanted in self._text_of(source) or self.rows[source].get(self._identity or "") in found_by
        compare, key, wanted_text = _COMPARE[found[2]], column.key, found[3].casefold()
        try:
            number = float(found[3])
        except ValueError:
            return lambda source: (
                not is_absent(self.rows[source].get(key))
                and compare(column.shown(self.rows[source].get(key)).casefold(), wanted_text)
            )

        def compares(source: int) -> bool:
            value = self.rows[source].get(key)
            return isinstance(value, (int, float)) and not is_absent(value) and compare(value * column.scale, number)

        return compares

    def _column_named(self, name: str) -> Column | None:
        wanted = name.casefold()
        names = [(column.key.casefold(), "".join(column.title.casefold().split()), column) for column in self.columns]
        return next((column for key, title, column in names if wanted in (key, title)), None)

    def _text_of(self, source: int) -> str:
        text = self._texts[source]
        if text is None:
            row = self.rows[source]
            text = "\n".join(column.shown(row.get(column.key)) for column in self.columns).casefold()
            self._texts[source] = text
        return text

    # -- what Qt asks --------------------------------------------------------------------------

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own signature
        return 0 if parent.isValid() else len(self._shown)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - Qt's own signature
        return 0 if parent.isValid() else len(self.columns)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        column = self.columns[index.column()]
        if role == Qt.ItemDataRole.TextAlignmentRole:
            side = Qt.AlignmentFlag.AlignRight if column.numeric else Qt.AlignmentFlag.AlignLeft
            return side | Qt.AlignmentFlag.AlignVCenter
        if role not in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.ToolTipRole):
            return None
        shown = column.shown(self.rows[self._shown[index.row()]].get(column.key))
        if role == Qt.ItemDataRole.DisplayRole:
            return visible(shown)
        return None if column.numeric else tooltip(shown)

    def headerData(
        self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole
    ) -> Any:
        if orientation != Qt.Orientation.Horizontal or not 0 <= section < len(self.columns):
            return None
        column = self.columns[section]
        if role == Qt.ItemDataRole.DisplayRole:
            return column.title
        if role == Qt.ItemDataRole.ToolTipRole:
            return tooltip(f"{column.title}: {column.tip}" if column.tip else column.title)
        if role == Qt.ItemDataRole.TextAlignmentRole:
            side = Qt.AlignmentFlag.AlignRight if column.numeric else Qt.AlignmentFlag.AlignLeft
            return side | Qt.AlignmentFlag.AlignVCenter
        return None


def sort_key(value: Any) -> tuple[int, float, str]:
    """What a value is sorted by: numbers by size before texts by their letters."""
    if isinstance(value, (int, float)):
        return 0, float(value), ""
    if isinstance(value, (list, tuple)):
        return 1, 0.0, " ".join(map(str, value))
    if isinstance(value, Mapping):
        return 1, 0.0, str(sorted(value.items()))
    return 1, 0.0, str(value).casefold()
