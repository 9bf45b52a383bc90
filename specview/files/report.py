"""What a view says, whoever shows it: sections of texts, figures and tables, rendered for Qt, a terminal, Markdown or JSON.

A lab or an experiment builds the Report of its result; commands and pages render it and compute nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from specview.files.tables import Column, Row, markdown_rows, markdown_text, table_markdown

Tone = Literal["normal", "note", "good", "warning", "bad"]
"""How a text is meant: a note is small print; the others have a mark besides their colour."""

MARKS: Mapping[Tone, str] = {"normal": "", "note": "", "good": "✓ ", "warning": "! ", "bad": "✕ "}


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph. It is data: a renderer makes it safe and breaks its lines."""

    text: str
    tone: Tone = "normal"


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one thing, one under the other: name, value with its unit, what it means."""

    columns: Sequence[Column]
    row: Row

    @property
    def shown(self) -> list[tuple[str, str]]:
        """Title and value of each figure, for people."""
        return [(column.title, column.shown(self.row.get(column.key))) for column in self.columns]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns. identity: the key of what a row is; hidden: keys of columns that a window does not show at first."""

    columns: Sequence[Column]
    rows: Sequence[Row]
    title: str = ""
    name: str = "results"
    identity: str | None = None
    hidden: tuple[str, ...] = ()


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


def report_markdown(report: Report) -> str:
    """The report as Markdown: all text in it is data, never markup."""
    return _markdown(Section(report.title, report.blocks), 1).strip() + "\n"


def _markdown(block: Block, level: int) -> str:
    if isinstance(block, Text):
        return f"{MARKS[block.tone]}{markdown_text(block.text)}\n\n"
    if isinstance(block, Figures):
        return markdown_rows(("figure", "value"), block.shown, {1}) + "\n"
    if isinstance(block, Table):
        title = f"**{markdown_text(block.title)}**\n\n" if block.title else ""
        return f"{title}{table_markdown(block.columns, block.rows)}\n"
    heading = f"{'#' * level} {markdown_text(block.title)}\n\n" if block.title else ""
    return heading + "".join(_markdown(inner, level + 1) for inner in block.blocks)
