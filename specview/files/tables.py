"""Tables of any figures as files: CSV for a spreadsheet, JSON for a program, Markdown for a note."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from specview.files.schema import dumps, plain

ABSENT = "-"
"""How a figure that does not exist is shown."""

Row = Mapping[str, Any]
Format = Literal["csv", "json", "markdown"]

_SPACE_STARTS = ("\t", "\n")
# Also after what another program may take for a cell's end: which it is, its user chooses.
_FORMULA = re.compile(r"(?:^|(?<=[;,\t\n]))(?=[=+\-@＝＋－＠])(?![+-](?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?:[;,\t\n]|$))")
_CONTROLS = {
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: "\u2421",
    **dict.fromkeys(range(0x80, 0xA0), "\ufffd"),
    **{code: f"‹{code:04X}›" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))},  # would turn the line around
}
_MARKS = re.compile(r"[\\`*{}\[\]<>!~&$]|(?<![^\W_])_|_(?![^\W_])|^[#+-](?=[\s#])")
_LINKS = re.compile(r"://|\bwww\.|@", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Column:
    """One column: the key of a row's value, its title and what it means.

    digits: decimals of a number as it is shown; None for text (a number in it is then shown as it stands). What is
    shown is value x scale with `unit` behind it (0.012 s as "12.0 ms": scale 1000, unit " ms"), or what `form` makes
    of it; CSV and JSON keep the bare value under `key`. spread: the keys of the row's least and greatest, which `cell` shows behind the value.
    """

    key: str
    title: str
    tip: str = ""
    digits: int | None = None
    scale: float = 1.0
    unit: str = ""
    spread: tuple[str, str] | None = None
    form: Callable[[Any], str] | None = None

    @property
    def numeric(self) -> bool:
        """Whether it holds figures: they are right-aligned, and sorted as numbers."""
        return self.digits is not None

    def shown(self, value: Any) -> str:
        """The value for people: rounded, yes or no, a dash where there is none."""
        if is_absent(value):
            return ABSENT
        if isinstance(value, bool):
            return "yes" if value else "no"
        if self.form is not None:
            return self.form(value)
        if isinstance(value, (int, float)) and self.digits is not None:
            return f"{value * self.scale:,.{self.digits}f}{self.unit}"
        return _text(value)

    def cell(self, row: Row) -> str:
        """The row's value for people, its spread behind it where there is one; under no title what is absent is empty."""
        text = self.shown(row.get(self.key))
        if self.spread is None or text == ABSENT:
            return "" if text == ABSENT and not self.title else text
        ends = [replace(self, unit="").shown(row.get(key)) for key in self.spread]
        return text if ABSENT in ends or ends[0] == ends[1] else f"{text} ({'-'.join(ends)})"


def is_absent(value: Any) -> bool:
    """Whether there is no such figure: None, NaN, an infinity, an empty text."""
    return value is None or value == "" or (isinstance(value, float) and not math.isfinite(value))


def table_csv(columns: Sequence[Column], rows: Iterable[Row]) -> str:
    """Rows as CSV under the columns' keys; an absent figure is an empty cell.

    Text that a spreadsheet would take for a formula (it starts with = + - @, a tab or a line break, or goes on so
    behind a separator) gets an apostrophe there: it is data, whoever wrote it. Numbers stay numbers, seven
    significant digits; control characters are shown, not sent.
    """
    lines = ([_csv_cell(row.get(column.key)) for column in columns] for row in rows)
    return csv_text([[column.key for column in columns], *lines])


def csv_text(lines: Iterable[Sequence[Any]]) -> str:
    """Lines of cells as CSV, of what may be pieces of a text: they keep a line break at their start.

    Else text is made safe as table_csv says; halves of surrogate pairs become question marks.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    for line in lines:
        writer.writerow([_no_formula(cell) if isinstance(cell, str) else cell for cell in line])
    return out.getvalue()


def table_json(columns: Sequence[Column], rows: Iterable[Row]) -> str:
    """Rows as a JSON document: `columns` [{key, title, tip}], `rows` [{key: value}]; an absent figure is null."""
    document = {
        "columns": [{"key": column.key, "title": column.title, "tip": column.tip} for column in columns],
        "rows": [{column.key: plain(row.get(column.key)) for column in columns} for row in rows],
    }
    return dumps(document, indent=1) + "\n"


def table_markdown(columns: Sequence[Column], rows: Iterable[Row]) -> str:
    """Rows as a Markdown table under the columns' titles, figures as they are shown; an absent one is a dash."""
    lines = [[column.cell(row) for column in columns] for row in rows]
    return markdown_rows([column.title for column in columns], lines, {at for at, one in enumerate(columns) if one.numeric})


def table_text(format_: Format, columns: Sequence[Column], rows: Iterable[Row]) -> str:
    """The table in one of the formats."""
    make = {"csv": table_csv, "json": table_json, "markdown": table_markdown}[format_]
    return make(columns, rows)


def tab_separated(columns: Sequence[Column], rows: Iterable[Row], *, heading: bool = True) -> str:
    """Rows for the clipboard: a line each, tabs between cells, as a spreadsheet pastes them; bare values as in CSV."""
    lines = [[column.title for column in columns]] if heading else []
    lines += [[str(_csv_cell(row.get(column.key))) for column in columns] for row in rows]
    return "".join("\t".join(" ".join(cell.split()) for cell in line) + "\n" for line in lines)


def _csv_cell(value: Any) -> Any:
    if is_absent(value):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return plain(value)
    text = _no_formula(_text(value))
    return f"'{text}" if text.startswith(_SPACE_STARTS) else text


def _no_formula(text: str) -> str:
    text = text.replace("\0", "").replace("\r\n", "\n").replace("\r", "\n")
    return _FORMULA.sub("'", printable(text))


def _text(value: Any) -> str:
    """A value that is no single figure, as text: a list's members with blanks between, a mapping as JSON."""
    if isinstance(value, (list, tuple)):
        return " ".join(ABSENT if is_absent(item) else str(plain(item)) for item in value)
    if isinstance(value, Mapping):
        return dumps(plain(value))
    return str(plain(value))


def printable(text: str) -> str:
    """Text of which no character drives a terminal: control characters but newline and tab stand as their pictures.

    Halves of surrogate pairs become question marks: all of it can be written as UTF-8.
    """
    return text.translate(_CONTROLS).encode("utf-8", "replace").decode("utf-8")


def markdown_text(text: str) -> str:
    """Data for one line of Markdown: it stays what it is, never markup, HTML, an image or a link."""
    text = " ".join(printable(text).split())
    if _LINKS.search(text):  # what is made a link, or a mention of somebody, without any mark: only code is safe
        return markdown_code(text)
    return _MARKS.sub(r"\\\g<0>", text)


def markdown_code(text: str) -> str:
    """Data for one line of Markdown, as code."""
    return "`" + " ".join(printable(text).split()).replace("`", "'") + "`"


def markdown_block(text: str, language: str = "text") -> str:
    """Data as a block of code: its fence is longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}\n"


def markdown_rows(head: Sequence[str], rows: Iterable[Sequence[str]], right: Container[int] = ()) -> str:
    """A Markdown table of data; `right` are the columns that are aligned to the right."""
    rule = ["---:" if at in right else "---" for at in range(len(head))]
    lines = [map(_markdown_cell, head), rule, *(map(_markdown_cell, row) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _markdown_cell(text: str) -> str:
    return markdown_text(text).replace("|", "\\|")
