"""What a view says, whoever shows it: sections of texts, figures and tables, rendered for Qt, a terminal, Markdown or JSON.

A lab or an experiment builds the Report of its result; commands and pages render it and compute nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from specview.files.tables import (
    Column,
    Row,
    markdown_code,
    markdown_rows,
    markdown_text,
    table_csv,
    table_markdown,
)

Tone = Literal["normal", "note", "code", "good", "warning", "bad"]
"""How a text is meant: a note is small print, code is kept as it stands; the others have a mark besides their colour."""

MARKS: Mapping[Tone, str] = {"normal": "", "note": "", "code": "", "good": "✓ ", "warning": "! ", "bad": "✕ "}


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph. It is data: a renderer makes it safe and breaks its lines."""

    text: str
    tone: Tone = "normal"


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure as it is shown: what it is called, its value with unit and spread, and what it means."""

    title: str
    text: str
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one thing, one under the other."""

    figures: Sequence[Figure]

    @classmethod
    def of(cls, columns: Sequence[Column], row: Row) -> Figures:
        """One row's figures."""
        return cls([Figure(column.title, column.cell(row), column.tip) for column in columns])


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns.

    identity  the key of what a row is: a window's selection follows it
    hidden    keys of columns that a window does not show at first
    printed   keys of the columns that a terminal and Markdown show, in order; all where it is empty
    name      stands in the names of exported files
    """

    columns: Sequence[Column]
    rows: Sequence[Row]
    title: str = ""
    name: str = "results"
    identity: str | None = None
    hidden: tuple[str, ...] = ()
    printed: tuple[str, ...] = ()

    @property
    def printed_columns(self) -> list[Column]:
        """The columns that a terminal and Markdown show."""
        by_key = {column.key: column for column in self.columns}
        return [by_key[key] for key in self.printed or by_key]


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a heading."""

    title: str
    blocks: Sequence[Block]


Block = Text | Figures | Table | Section


@dataclass(frozen=True, slots=True)
class Report:
    """What a view says. data is the same for programs: the JSON document."""

    title: str
    blocks: Sequence[Block]
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def csv(self) -> str:
        """The first table, with every column."""
        table = next(block for block in self.blocks if isinstance(block, Table))
        return table_csv(table.columns, table.rows)


def report_markdown(report: Report) -> str:
    """The report as Markdown: all text in it is data, never markup."""
    return _markdown(Section(report.title, report.blocks), 1).strip() + "\n"


def _markdown(block: Block, level: int) -> str:
    if isinstance(block, Text):
        text = markdown_code(block.text) if block.tone == "code" else markdown_text(block.text)
        return f"{MARKS[block.tone]}{text}\n\n"
    if isinstance(block, Figures):
        return markdown_rows(("figure", "value"), [(one.title, one.text) for one in block.figures], {1}) + "\n"
    if isinstance(block, Table):
        title = f"**{markdown_text(block.title)}**\n\n" if block.title else ""
        return f"{title}{table_markdown(block.printed_columns, block.rows)}\n"
    heading = f"{'#' * level} {markdown_text(block.title)}\n\n" if block.title else ""
    return heading + "".join(_markdown(inner, level + 1) for inner in block.blocks)
