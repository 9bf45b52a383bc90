"""Writing to a terminal: model text made safe, token colours, tables, a progress line."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from specview.decoding.ledger import Round

_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
_GHOST_MARKS = str.maketrans({"\n": "⏎", "\t": "⇥"})

_RESET = "\x1b[0m"
# Okabe and Ito's colours, as in the window; each state has a mark of its own besides its colour.
_STYLES = {
    "accepted": "\x1b[38;2;47;191;143m",
    "corrected": "\x1b[3;38;2;240;163;60m",  # italic
    "bonus": "\x1b[4;38;2;98;176;238m",  # underlined
    "rejected": "\x1b[9;38;2;214;133;180m",  # struck through
    "plain": "",
}


def safe_text(text: str) -> str:
    """Return `text` without control characters other than newline and tab.

    A model, a file name or a template must not drive the terminal (escape sequences are C0 and C1).
    """
    return text.translate(_CONTROLS).encode("utf-8", "replace").decode("utf-8")


def wants_colour(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that shows colours and the user has not set NO_COLOR."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    if sys.platform == "win32" and not os.environ.get("WT_SESSION"):
        return False
    return is_terminal(stream)


def is_terminal(stream: TextIO) -> bool:
    """Whether a person watches this stream."""
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # replaced or closed
        return False


def paint(text: str, state: str) -> str:
    """Return `text` in the colour and mark of a token state."""
    style = _STYLES[state]
    return f"{style}{text}{_RESET}" if style and text else text


def round_text(round_: Round, *, colour: bool) -> str:
    """Return what a round adds to the output; with `colour`, states painted and the rejected token shown."""
    parts: list[str] = []
    for token in round_.drafted:
        if token.verdict == "accepted":
            text = safe_text(token.text)
            parts.append(paint(text, "accepted") if colour else text)
        elif token.verdict == "rejected" and colour:
            parts.append(paint(safe_text(token.text).translate(_GHOST_MARKS), "rejected"))
    if round_.final is not None:
        text = safe_text(round_.final.text)
        parts.append(paint(text, round_.final.kind) if colour else text)
    return "".join(parts)


def legend() -> str:
    """Return one line that shows what the colours and marks mean."""
    return "  ".join(paint(state, state) for state in ("accepted", "corrected", "bonus", "rejected"))


def table(rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Return rows as aligned columns, the first row being the heading; the first `left` are left-aligned.

    Cells are made safe: names and settings may come from somebody else's file.
    """
    rows = [[_line(cell) for cell in row] for row in rows]
    widths = [max(_width(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = []
        for column, cell in enumerate(row):
            padding = " " * (widths[column] - _width(cell))
            cells.append(cell + padding if column < left else padding + cell)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def _line(text: str) -> str:
    return safe_text(text).replace("\n", " ").replace("\t", " ")


def figure(value: float | None, digits: int = 2, unit: str = "") -> str:
    """Return a number for people; a dash for a figure that does not exist."""
    return "-" if value is None else f"{value:,.{digits}f}{unit}"


def pairs(values: Mapping[str, str]) -> str:
    """Return names and values as two aligned columns, made safe as in `table`."""
    values = {_line(name): safe_text(value) for name, value in values.items()}
    width = max((_width(name) for name in values), default=0)
    return "".join(f"{name}{' ' * (width - _width(name))}  {value}\n" for name, value in values.items())


class ProgressLine:
    """One line on standard error that is rewritten in place; silent when no person watches."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._on = is_terminal(stream) and os.environ.get("TERM") != "dumb"
        self._shown = ""

    def show(self, text: str, fraction: float | None = None) -> None:
        """Show what is under way."""
        if not self._on:
            return
        line = safe_text(text).replace("\n", " ")
        if fraction is not None:
            line += f" {100 * fraction:.0f}%"
        line = line[:100]
        if line != self._shown:
            self._stream.write(f"\r\x1b[K{line}")
            self._stream.flush()
            self._shown = line

    def clear(self) -> None:
        """Take the line away before other output."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = ""


def write_document(text: str) -> None:
    """Write a document to standard output in UTF-8, whatever the terminal's own encoding."""
    buffer: Any = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        sys.stdout.write(text)
    else:
        sys.stdout.flush()
        buffer.write(text.encode("utf-8"))
    sys.stdout.flush()


def _width(text: str) -> int:
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )
