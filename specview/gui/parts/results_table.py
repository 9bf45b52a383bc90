"""A table of results: it sorts by number, filters, copies and exports (CSV, JSON, Markdown), and may grow while it is looked at."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PySide6.QtCore import QEvent, QItemSelection, QItemSelectionModel, QObject, Qt, Signal
from PySide6.QtGui import QGuiApplication, QKeyEvent, QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFileDialog,
    QHeaderView,
    QLineEdit,
    QTableView,
    QWidget,
)

from specview.errors import SpecviewError
from specview.files.atomic import OutputFile
from specview.files.tables import Column, Format, Row, tab_separated, table_text
from specview.gui.parts import layout, theme
from specview.gui.parts.results_model import ResultsModel, Search
from specview.gui.parts.widgets import Banner, label, menu_button, set_tip
from specview.gui.state.display_text import clipboard

FORMATS: Mapping[Format, tuple[str, str, str]] = {
    "csv": ("CSV", ".csv", "CSV (*.csv)"),
    "json": ("JSON", ".json", "JSON (*.json)"),
    "markdown": ("Markdown", ".md", "Markdown (*.md)"),
}
"""The formats of an export: name, the file's ending, the dialog's filter."""

WIDEST = 320  # pixels that a column gets by itself before the user drags it


class ResultsTable(QWidget):
    """Rows under columns, with a filter field, a choice of columns and an export menu.

    identity is the key of what a row is (a file's name, a cell's number): selection follows it where rows are
    removed or come in another order. hidden are the keys of columns that are not shown at first. name stands in
    the names of exported files. search finds rows by words that they do not show.

    signals: activated(index) on Enter or a double click, selected(indices) when the selection changed; indices are
    places in `rows`, whatever is filtered or sorted.
    """

    activated = Signal(int)
    selected = Signal(list)

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        identity: str | None = None,
        hidden: Collection[str] = (),
        name: str = "results",
        search: Search | None = None,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._name = name
        self._kept: tuple[list[int] | list[Any], int | Any, int, int] = ([], -1, 0, 0)
        self._identity = identity
        self._fitted = False
        self._model = ResultsModel(columns, identity, self, search)
        self.filter = QLineEdit()
        self.filter.setClearButtonEnabled(True)
        self.filter.setPlaceholderText("Filter: words, or k=3, or alpha>0.5")
        self.filter.setAccessibleName(f"Filter of the {name}")
        set_tip(self.filter, "Shows the rows that hold every word. A column's name with <, <=, =, !=, >= or > and a value compares.")
        self.count = label("", "small")
        columns_button, self.columns_menu = menu_button("Columns ▾", "Which columns are shown")
        self.export_button, self.export_menu = menu_button(
            "Export ▾", "Writes the rows that the filter leaves, in the order shown; CSV and JSON hold every column"
        )
        self.buttons = columns_button, self.export_button
        self.view = self._make_view(name)
        self.banner = Banner()
        layout.column(
            layout.row((self.filter, 1), self.count, columns_button, self.export_button, gap=8), self.banner,
            (self.view, 1), on=self, gap=6
        )
        self._fill_menus(hidden)
        self._connect()
        self._say_count()

    # -- what a page uses ----------------------------------------------------------------------

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns, hidden ones too."""
        return self._model.columns

    @property
    def rows(self) -> list[Row]:
        """All rows, as given."""
        return self._model.rows

    @property
    def shown_rows(self) -> list[Row]:
        """The rows that the filter leaves, in the order shown."""
        return self._model.shown_rows

    def set_rows(self, rows: Iterable[Row]) -> None:
        """Show these rows. Selection, sort, filter and scroll stay; rows may be added while the table is looked at."""
        self._model.set_rows(rows)
        if self._model.rows and not self._fitted:
            self._fit_columns()
        self._say_count()

    def selected_rows(self) -> list[int]:
        """Places in `rows` of the selected rows, from top to bottom as shown."""
        chosen = sorted(index.row() for index in self.view.selectionModel().selectedRows())
        return [self._model.source(place) for place in chosen]

    def select(self, index: int) -> None:
        """Select the row at this place of `rows` and bring it into view; nothing where the filter hides it."""
        place = self._model.place(index)
        if place is not None:
            # Not selectRow: with Shift or Ctrl held that takes other rows along.
            row, flags = self._model.index(place, 0), QItemSelectionModel.SelectionFlag
            model = self.view.selectionModel()
            model.setCurrentIndex(row, flags.NoUpdate)
            model.select(row, flags.ClearAndSelect | flags.Rows)
            self.view.scrollTo(row)

    def kept(self) -> dict[str, Any]:
        """What is worth remembering: sort, hidden columns."""
        column, descending = self._model.sorted_by
        return {
            "sort": self.columns[column].key if column >= 0 else "",
            "descending": descending,
            "hidden": [key for key, action in self._actions.items() if not action.isChecked()],
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Take up what `kept` gave; whatever does not fit is left out."""
        hidden = kept.get("hidden")
        if isinstance(hidden, list):
            for key, action in self._actions.items():
                action.setChecked(key not in hidden)
        keys = [column.key for column in self.columns]
        if kept.get("sort") in keys:
            order = Qt.SortOrder.DescendingOrder if kept.get("descending") else Qt.SortOrder.AscendingOrder
            self.view.sortByColumn(keys.index(kept["sort"]), order)

    # -- copying and exporting -----------------------------------------------------------------

    def copy(self) -> None:
        """Put the selected rows (else all that are shown) on the clipboard, tabs between cells."""
        rows = [self.rows[index] for index in self.selected_rows()] or self.shown_rows
        QGuiApplication.clipboard().setText(clipboard(tab_separated(self._visible_columns(), rows)))
        self.count.setText(f"{len(rows):,} {'row' if len(rows) == 1 else 'rows'} copied")

    def export(self, format_: Format) -> None:
        """Ask where to, and write the rows shown; a failure is one line in the table."""
        name, ending, kinds = FORMATS[format_]
        path, _ = QFileDialog.getSaveFileName(self, f"Export as {name}", f"{self._name}{ending}", f"{kinds};;All files (*)")
        if path:
            self.export_to(format_, path if Path(path).suffix else f"{path}{ending}")

    def export_to(self, format_: Format, path: str | Path) -> bool:
        """Write the rows shown to `path`; an earlier file stays as it was where that fails. Whether it worked."""
        columns = self._visible_columns() if format_ == "markdown" else self.columns
        rows = self.shown_rows
        try:
            with OutputFile(path, "table") as file:
                file.write(table_text(format_, columns, rows))
        except SpecviewError as error:
            self.banner.show_message(str(error))
            return False
        self.banner.clear()
        self.count.setText(f"{len(rows):,} rows written to {Path(path).name}")
        return True

    # -- making --------------------------------------------------------------------------------

    def _make_view(self, name: str) -> QTableView:
        view = QTableView()
        view.setModel(self._model)
        view.setAccessibleName(name[:1].upper() + name[1:])
        view.setShowGrid(False)
        view.setTabKeyNavigation(False)
        view.setWordWrap(False)
        view.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        view.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        view.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        view.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        view.verticalHeader().hide()
        header = view.horizontalHeader()
        header.setHighlightSections(False)
        header.setTextElideMode(Qt.TextElideMode.ElideRight)  # or a figure's title is cut at its beginning
        header.setSectionsMovable(True)
        header.setSectionsClickable(True)
        header.setSortIndicatorClearable(True)
        header.setSortIndicator(-1, Qt.SortOrder.AscendingOrder)
        header.setResizeContentsPrecision(100)
        header.setSectionResizeMode(QHeaderView.ResizeMode.Interactive)
        view.setSortingEnabled(True)
        return view

    def _fill_menus(self, hidden: Collection[str]) -> None:
        self._actions = {}
        for place, column in enumerate(self.columns):
            action = self.columns_menu.addAction(column.title or column.key)
            action.setCheckable(True)
            action.setChecked(column.key not in hidden)
            action.setToolTip(column.tip)
            action.toggled.connect(lambda shown, place=place: self.view.setColumnHidden(place, not shown))
            self.view.setColumnHidden(place, column.key in hidden)
            self._actions[column.key] = action
        for format_, (name, _, _) in FORMATS.items():
            action = self.export_menu.addAction(f"{name}…")
            action.triggered.connect(lambda _=False, format_=format_: self.export(format_))
        self.export_menu.addSeparator()
        self.export_menu.addAction("Copy", self.copy)

    def _connect(self) -> None:
        self.view.installEventFilter(self)
        self.filter.textChanged.connect(self._on_filter)
        self.view.activated.connect(lambda index: self.activated.emit(self._model.source(index.row())))
        self.view.selectionModel().selectionChanged.connect(lambda *_: self._on_selection())
        self._model.about_to_reorder.connect(self._keep_place)
        self._model.reordered.connect(self._restore_place)
        shortcut = QShortcut(QKeySequence(QKeySequence.StandardKey.Copy), self.view)
        shortcut.setContext(Qt.ShortcutContext.WidgetShortcut)
        shortcut.activated.connect(self.copy)
        theme.signals.changed.connect(self._fit_rows)
        self._fit_rows()

    def _visible_columns(self) -> list[Column]:
        header = self.view.horizontalHeader()
        places = sorted(range(len(self.columns)), key=header.visualIndex)
        return [self.columns[place] for place in places if not self.view.isColumnHidden(place)]

    # -- keeping the place ---------------------------------------------------------------------

    def _on_filter(self, text: str) -> None:
        self._model.set_filter(text)
        self._say_count()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """With no row selected an arrow key begins at the row that the keyboard is on, not at the one after it."""
        if event.type() == QEvent.Type.KeyPress and isinstance(event, QKeyEvent) and watched is self.view \
                and event.key() in (Qt.Key.Key_Down, Qt.Key.Key_Up) and self._model.rowCount() and not self.selected_rows():
            self.select(self._model.source(max(self.view.currentIndex().row(), 0)))
            return True
        return super().eventFilter(watched, event)

    def _on_selection(self) -> None:
        self.selected.emit(self.selected_rows())

    def _what(self, index: int) -> Any:
        """What a row is, across a change of the rows."""
        return index if self._identity is None else self.rows[index].get(self._identity)

    def _keep_place(self) -> None:
        current = self.view.currentIndex()
        held = self._what(self._model.source(current.row())) if current.isValid() else None
        chosen = [self._what(index) for index in self.selected_rows()]
        bars = self.view.verticalScrollBar().value(), self.view.horizontalScrollBar().value()
        self._kept = chosen, held, *bars

    def _restore_place(self) -> None:
        chosen, held, down, across = self._kept
        if chosen != [self._what(index) for index in self.selected_rows()]:
            wanted = set(chosen)
            places = [place for place, row in enumerate(self._shown_what()) if row in wanted]
            selection = QItemSelection()
            last = len(self.columns) - 1
            for place in places:
                selection.select(self._model.index(place, 0), self._model.index(place, last))
            model = self.view.selectionModel()
            here = next((place for place, row in enumerate(self._shown_what()) if row == held), None)
            if here is not None and held is not None:
                model.setCurrentIndex(self._model.index(here, 0), QItemSelectionModel.SelectionFlag.NoUpdate)
            model.select(selection, QItemSelectionModel.SelectionFlag.ClearAndSelect)
        self.view.verticalScrollBar().setValue(down)
        self.view.horizontalScrollBar().setValue(across)

    def _shown_what(self) -> list[Any]:
        return [self._what(self._model.source(place)) for place in range(self._model.rowCount())]

    # -- looks ---------------------------------------------------------------------------------

    def _say_count(self) -> None:
        shown, total = self._model.rowCount(), len(self.rows)
        words = "row" if total == 1 else "rows"
        self.count.setText(f"{total:,} {words}" if shown == total else f"{shown:,} of {total:,} {words}")

    def _fit_rows(self) -> None:
        self.view.verticalHeader().setDefaultSectionSize(theme.px(24))
        if self._model.rows:
            self._fit_columns()

    def _fit_columns(self) -> None:
        self._fitted = True
        header = self.view.horizontalHeader()
        header.ensurePolished()  # its font is the style sheet's
        self.view.resizeColumnsToContents()
        for place in range(len(self.columns)):
            header.resizeSection(place, min(header.sectionSize(place) + theme.px(10), theme.px(WIDEST)))
