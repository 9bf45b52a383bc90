"""Writing to a terminal: text made safe, token colours, Reports and tables by rich, a progress line.

rich is imported where it is first needed: `specview --help` does without.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from specview.decoding.ledger import Round
from specview.files.report import MARKS, Block, Figures, Report, Section, Table, Text, Tone
from specview.files.tables import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
_GHOST_MARKS = str.maketrans({"\n": "⏎", "\t": "⇥"})
_UNLIMITED = 10_000
"""Columns where no terminal sets a width."""
_NARROWEST = 12
"""Columns of a cell of words that is folded."""
_EVERY_S = 0.1
"""Between two pictures of the same progress."""

_RESET = "\x1b[0m"
# Okabe and Ito's colours, as in the window; each state has a mark of its own besides its colour.
_STYLES = {
    "accepted": "\x1b[38;2;47;191;143m",
    "corrected": "\x1b[3;38;2;240;163;60m",  # italic
    "bonus": "\x1b[4;38;2;98;176;238m",  # underlined
    "rejected": "\x1b[9;38;2;214;133;180m",  # struck through
    "plain": "",
    "given": "\x1b[2m",  # dim
}
_TONES: Mapping[Tone, str] = {
    "normal": "", "note": "dim", "code": "", "good": "#2fbf8f", "warning": "#f0a33c", "bad": "bold #d685b4"
}  # fmt: skip


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


# -- reports and tables ---------------------------------------------------------------------------------


def print_report(report: Report) -> None:
    """Print a report on standard output, as wide as the terminal; a pipe gets tables at their full width."""
    here = is_terminal(sys.stdout)
    width = _console(sys.stdout, None, colour=False).width if here else None
    sys.stdout.write(report_text(report, width=width, colour=wants_colour(sys.stdout)))


def report_text(report: Report, *, width: int | None = None, colour: bool = False) -> str:
    """Return the report for a terminal of so many columns (None: any); all text in it is data, never markup or an escape."""
    console = _console(io.StringIO(), width or _UNLIMITED, colour=colour)
    _print(console, Section(report.title, report.blocks), 0)
    lines = console.file.getvalue().split("\n")  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in lines)


def _print(console: Console, block: Block, depth: int) -> None:
    from rich.padding import Padding
    from rich.text import Text as Words

    def put(words: Any, indent: int = depth) -> None:
        console.print(Padding(words, (0, 0, 0, 2 * max(0, indent)), expand=False), crop=False)

    def put_grid(lines: Iterable[Sequence[str]], **more: Any) -> None:
        grid = _grid(lines, **more)
        width = console.width
        if sum(column.min_width + 2 for column in grid.columns) - 2 + 2 * depth > width:
            console.width = _UNLIMITED  # rich would leave out columns and cut figures: let the terminal break its lines
        put(grid)
        console.width = width

    if isinstance(block, Text):
        words = Words(MARKS[block.tone] + printable(block.text), _TONES[block.tone])
        if block.tone == "code":
            console.print(words, soft_wrap=True)  # it can be copied whole
        else:
            put(words)
    elif isinstance(block, Figures):
        put_grid([(one.title, one.text) for one in block.figures], head=False)
    elif isinstance(block, Table):
        if block.title:
            put(Words(printable(block.title), "bold"))
        columns = block.printed_columns
        right = {place for place, column in enumerate(columns) if column.numeric}
        head = [column.title for column in columns]
        lines = ([column.cell(row) for column in columns] for row in block.rows)
        put_grid([head, *lines] if any(head) else lines, right=right, head=any(head))
    else:
        if block.title:
            put(Words(printable(block.title), "bold"), depth - 1)
            if not depth:
                console.print()
        before: Block | None = None
        for inner in block.blocks:
            if before is not None and not (isinstance(before, Text) and isinstance(inner, Text)):
                console.print()
            _print(console, inner, depth + (isinstance(inner, Section) and bool(inner.title)))
            before = inner


def _grid(lines: Iterable[Sequence[str]], *, right: Iterable[int] = (), head: bool = True) -> Any:
    """Cells in columns: those of words are folded where the terminal is narrow, those of figures are always whole."""
    from rich.cells import cell_len
    from rich.table import Table as Grid
    from rich.text import Text as Words

    lines = [[_line(cell) for cell in line] for line in lines]
    grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=head, header_style="bold")
    right = set(right)
    for place in range(max(map(len, lines), default=0)):
        figures = place in right
        whole = max(cell_len(line[place]) for line in lines if place < len(line))
        grid.add_column(
            Words(lines[0][place]) if head else "", justify="right" if figures else "left", no_wrap=figures,
            min_width=max(1, whole if figures else min(whole, _NARROWEST)), overflow="fold",  # rich takes an empty column for nothing
        )  # fmt: skip
    for line in lines[int(head):]:
        grid.add_row(*map(Words, line))
    return grid


def _console(stream: TextIO, width: int | None, *, colour: bool) -> Console:
    from rich.console import Console

    return Console(
        file=stream, width=width, color_system="truecolor" if colour else None, force_terminal=colour or None, markup=False,
        emoji=False, highlight=False, legacy_windows=False,
    )  # fmt: skip


def _line(text: str) -> str:
    return printable(text).replace("\n", " ").replace("\t", " ")


class ProgressLine:
    """One line on standard error that is drawn in place; silent when no person watches."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._on = is_terminal(stream) and os.environ.get("TERM") != "dumb"
        self._bar: Progress | None = None
        self._shown, self._next = "", 0.0

    def show(self, text: str, fraction: float | None = None) -> None:
        """Show what is under way."""
        now = time.monotonic()
        if not self._on or (text == self._shown and now < self._next):
            return
        self._shown, self._next = text, now + _EVERY_S
        if self._bar is None:
            self._bar = self._begin()
        total = None if fraction is None else 1.0
        self._bar.update(self._bar.task_ids[0], description=_line(text)[:100], total=total, completed=fraction or 0.0)
        self._bar.refresh()

    def _begin(self) -> Progress:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        columns = TextColumn("{task.description}", markup=False), BarColumn(20), TaskProgressColumn()
        console = _console(self._stream, None, colour=wants_colour(self._stream))
        # No thread of its own: it is drawn when it is told something, between the rounds of what is measured.
        bar = Progress(*columns, console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False)
        bar.add_task("", total=None)
        bar.start()
        return bar

    def clear(self) -> None:
        """Take the line away before other output."""
        if self._bar is not None:
            self._bar.stop()
            self._bar, self._shown = None, ""


def write_document(text: str) -> None:
    """Write a document to standard output in UTF-8, whatever the terminal's own encoding."""
    buffer: Any = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        sys.stdout.write(text)
    else:
        sys.stdout.flush()
        buffer.write(text.encode("utf-8"))
    sys.stdout.flush()
