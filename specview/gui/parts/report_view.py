"""A Report in the window: texts, names with values, and tables, one under the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtGui import QFocusEvent, QKeyEvent
from PySide6.QtWidgets import QFrame, QGridLayout, QLabel, QScrollArea, QSizePolicy, QWidget

from specview.files.report import MARKS, Block, Figures, Report, Section, Table, Text, Tone
from specview.gui.parts import layout, theme
from specview.gui.parts.results_table import ResultsTable
from specview.gui.parts.widgets import label, set_kind
from specview.gui.state.display_text import tooltip, visible

_KINDS: dict[Tone, str] = {"note": "small", "warning": "warning", "bad": "error"}


class ReportView(QScrollArea):
    """Shows a report, with figures as names and values, and scrolls where there is no room.

    A report of the same shape is taken up by the widgets that are there: what is scrolled to and selected stays.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setAccessibleName(name)
        inner = self._inner = QFrame()
        inner.setProperty("kind", "panel")
        self.setWidget(inner)
        self._column = layout.column(1, on=inner, gap=theme.px(8), margins=(theme.px(10), theme.px(8), theme.px(10), theme.px(8)))
        self._parts: list[tuple[Any, _Part]] = []

    @property
    def tables(self) -> list[ResultsTable]:
        """The tables, from top to bottom."""
        return [part.table for _, part in self._parts if isinstance(part, _Rows)]

    @property
    def texts(self) -> list[str]:
        """What is said, from top to bottom, headings too."""
        return [part.words.text() for _, part in self._parts if isinstance(part, _Words)]

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Home and End besides the arrows and pages that Qt knows."""
        bar, key = self.verticalScrollBar(), event.key()
        if key in (Qt.Key.Key_Home, Qt.Key.Key_End):
            bar.setValue(bar.minimum() if key == Qt.Key.Key_Home else bar.maximum())
        else:
            super().keyPressEvent(event)

    def focusInEvent(self, event: QFocusEvent) -> None:
        """Show that the keyboard is here."""
        super().focusInEvent(event)
        set_kind(self._inner, "true", "selected")

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        set_kind(self._inner, "false", "selected")

    def show_report(self, report: Report) -> None:
        """Show it; the title is the page's."""
        spare, parts = self._parts, []
        for place, block in enumerate(_flat(report.blocks)):
            shape = _shape(block)
            found = next((one for one in spare if one[0] == shape), None)
            if found is None:
                found = shape, _MADE[type(block)](block)
            else:
                spare.remove(found)
            self._column.insertWidget(place, found[1], int(isinstance(block, Table)))
            found[1].show_block(block)
            parts.append(found)
        for _, part in spare:
            self._column.removeWidget(part)
            part.hide()
            part.deleteLater()
        self._parts = parts


def _flat(blocks: Sequence[Block]) -> Iterator[Block]:
    """The blocks with those of sections among them: a section without blocks is its heading."""
    for block in blocks:
        if isinstance(block, Section):
            yield Section(block.title, ())
            yield from _flat(block.blocks)
        else:
            yield block


def _shape(block: Block) -> Any:
    """What a widget is made for: of a table its columns."""
    return (type(block), block.name, *block.columns) if isinstance(block, Table) else type(block)


class _Part(QWidget):
    """One block's widget."""

    def show_block(self, block: Any) -> None:
        """Show it."""
        raise NotImplementedError


class _Words(_Part):
    """A paragraph or a heading."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.words = label("")
        self.words.setWordWrap(True)
        self.words.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.words.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
        layout.column(self.words, on=self)

    def show_block(self, block: Any) -> None:
        mark, kind, text = ("", "title", block.title) if isinstance(block, Section) else (
            MARKS[block.tone], _KINDS.get(block.tone, ""), block.text)  # fmt: skip
        set_kind(self.words, kind)
        self.words.setText(mark + "\n".join(map(visible, text.split("\n"))))


class _Values(_Part):
    """Figures: names and values in two columns, with their tips."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setColumnStretch(1, 1)
        self._grid.setVerticalSpacing(theme.px(3))
        self._grid.setHorizontalSpacing(theme.px(10))
        self._cells: list[tuple[QLabel, QLabel]] = []

    def show_block(self, block: Any) -> None:
        figures = block.figures
        while len(self._cells) < len(figures):
            name, value = label("", "muted"), label("")
            value.setWordWrap(True)
            self._grid.addWidget(name, len(self._cells), 0, Qt.AlignmentFlag.AlignTop)
            self._grid.addWidget(value, len(self._cells), 1)
            self._cells.append((name, value))
        for place, cells in enumerate(self._cells):
            shown = place < len(figures)
            for cell, text in zip(cells, (figures[place].title, figures[place].text) if shown else ("", ""), strict=True):
                cell.setVisible(shown)
                cell.setText(visible(text))
                cell.setToolTip(tooltip(figures[place].tip) if shown else "")


class _Rows(_Part):
    """A table."""

    def __init__(self, block: Table) -> None:
        super().__init__()
        self.table = ResultsTable(block.columns, identity=block.identity, hidden=block.hidden, name=block.name)
        self._title = label("", "muted")
        layout.column(self._title, (self.table, 1), on=self, gap=theme.px(3))

    def show_block(self, block: Any) -> None:
        self._title.setText(visible(block.title))
        self._title.setVisible(bool(block.title))
        self.table.set_rows(block.rows)


_MADE: dict[type, Callable[[Any], _Part]] = {Text: _Words, Section: _Words, Figures: _Values, Table: _Rows}
