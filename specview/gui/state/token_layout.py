"""Lines of coloured tokens: an incremental layout that only ever touches the last line.

Plain Python; the widget hands in how wide a text is. A line is a list of fragments, each a piece of
one token. Words wrap at spaces where they can and anywhere where they must; ghosts (drafts that are
not part of the output) are never broken into the words around them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from specview.gui.state.display_text import is_plain, symbol
from specview.gui.state.view_model import ViewToken

TAB_CELLS = 4
FragmentKind = Literal["word", "space", "newline", "tab", "empty", "ghost"]

_PIECES = re.compile(r"\n|\t| +|[^\n\t ]+")
_STRONG = re.compile("[LR]")
_ONE_WORD = re.compile(r"( ?)([\x21-\x7e]+)\Z")


class Fragment(NamedTuple):
    """A piece of a token on one line.

    x and width are pixels; text is what is drawn (may be empty); start and length say which of the
    token's characters it stands for. edges and rtl are of a line that was set by directions (token_bidi): the x of
    each character's beginning and of the last one's end, and whether it runs to the left.
    """

    token: int
    x: float
    width: float
    text: str
    start: int
    length: int
    kind: FragmentKind
    edges: tuple[float, ...] = ()
    rtl: bool = False

    @property
    def atomic(self) -> bool:
        """Whether it is selected as a whole, because what is drawn is not what it stands for."""
        return len(self.text) != self.length or self.kind == "ghost"


class TokenLayout:
    """Places tokens on lines of a given width.

    measure(text, ghost) is the width of a text in pixels; cell and ghost_cell are those of one
    printable ASCII character.
    """

    def __init__(
        self, measure: Callable[[str, bool], float], cell: float, ghost_cell: float, width: float,
        *, ghosts: bool = True, marks: bool = False,
    ) -> None:
        self.measure = measure
        self.cell = cell
        self.ghost_cell = ghost_cell
        self.width = max(width, 4 * cell)
        self.ghosts = ghosts
        self.marks = marks
        self.lines: list[list[Fragment]] = [[]]
        self.first_line: list[int] = []
        self.paragraphs: list[int] = [0]  # per line, the line that its paragraph begins with
        self.right_to_left: set[int] = set()  # paragraphs, by their first line, whose first strong character says so
        self._strong = False  # whether this paragraph had one
        self._x = 0.0
        self._break = 0

    def __len__(self) -> int:
        return len(self.first_line)

    def append(self, tokens: Iterable[ViewToken]) -> int:
        """Place tokens after the others; return the first line that changed."""
        changed = len(self.lines) - 1
        if not self._strong:  # what comes may turn the whole paragraph
            changed = self.paragraphs[changed]
        for token in tokens:
            index = len(self.first_line)
            if token.position is None and not self.ghosts:
                self.first_line.append(-1)
                continue
            self.first_line.append(len(self.lines) - 1)
            if token.position is None:
                self._ghost(index, token.text)
                continue
            if match := _ONE_WORD.match(token.text):  # the common case, worth its own path
                space, word = match.groups()
                if space:
                    self._spaces(index, 0, 1)
                self._strong = self._strong or any(map(str.isalpha, word))
                self._word(index, word, len(space), len(word) * self.cell)
                continue
            if not token.text:
                self._place(index, "", 0, 0, self.cell * 0.5, "empty")
                continue
            for piece in _PIECES.finditer(token.text):
                self._piece(index, piece.group(), piece.start())
        return changed

    def fragments_of(self, token: int) -> list[tuple[int, Fragment]]:
        """Return (line, fragment) of a token, in order; nothing where it is hidden."""
        line = self.first_line[token] if 0 <= token < len(self.first_line) else -1
        found: list[tuple[int, Fragment]] = []
        while 0 <= line < len(self.lines):
            here = [(line, fragment) for fragment in self.lines[line] if fragment.token == token]
            found += here
            if found and (not here or self.lines[line][-1].token != token):
                break
            line += 1
        return found

    def hit(self, line: int, x: float) -> Fragment | None:
        """Return the fragment at x on a line, the nearest one where x is beside them all."""
        return nearest(self.lines[line], x) if 0 <= line < len(self.lines) else None

    # -- pieces -----------------------------------------------------------------------------------

    def _piece(self, token: int, piece: str, start: int) -> None:
        if piece == "\n":
            self._place(token, "↵" if self.marks else "", start, 1, self.cell, "newline")
            self._new_line()
            self.paragraphs[-1], self._strong = len(self.lines) - 1, False
        elif piece == "\t":
            if self._x + self.cell > self.width:
                self._new_line()
            step = TAB_CELLS * self.cell
            stop = (int(self._x / step + 1e-6) + 1) * step
            self._place(token, "⇥" if self.marks else "", start, 1, stop - self._x, "tab")
            self._break = len(self.lines[-1])
        elif piece[0] == " ":
            self._spaces(token, start, len(piece))
        elif is_plain(piece):
            self._strong = self._strong or any(map(str.isalpha, piece))
            self._word(token, piece, start, len(piece) * self.cell)
        else:
            self._unusual(token, piece, start)

    def _unusual(self, token: int, word: str, start: int) -> None:
        """Place a word with characters outside ASCII; stand-ins of several characters stand alone."""
        if not self._strong and (strong := _STRONG.search("".join(map(_direction, word)))):
            self._strong = True
            if strong.group() == "R":
                self.right_to_left.add(self.paragraphs[-1])
        run, run_start = "", start
        for offset, char in enumerate(word):
            shown = symbol(char)
            if len(shown) == 1:
                run += shown
                continue
            if run:
                self._word(token, run, run_start, self.measure(run, False))
            self._word(token, shown, start + offset, self.measure(shown, False), length=1)
            run, run_start = "", start + offset + 1
        if run:
            self._word(token, run, run_start, self.measure(run, False))

    def _spaces(self, token: int, start: int, count: int) -> None:
        """Place spaces; one may hang over the edge, more go on with the next line."""
        while count:
            room = max(int((self.width + self.cell - self._x) / self.cell + 1e-6), 0)
            take = min(count, room)
            if take:
                self._place(token, " " * take, start, take, take * self.cell, "space")
                self._break = len(self.lines[-1])
                start, count = start + take, count - take
            if count:
                self._new_line()

    def _ghost(self, token: int, text: str) -> None:
        """Place a draft that is not part of the output: on one line, with a little air around it."""
        shown = "".join(symbol(char) for char in text)
        lead = len(shown) - len(shown.lstrip(" "))
        if lead == len(shown):
            shown, lead = "␣" * min(lead, 8), 0
        word = shown[lead:]
        self._break = len(self.lines[-1])
        if lead:
            self._spaces_of_ghost(token, lead)
        width = (len(word) * self.ghost_cell if is_plain(word) else self.measure(word, True)) + 0.4 * self.cell
        if not word:
            width = 0.6 * self.cell
        self._word(token, word, lead, width, length=len(text) - lead, kind="ghost")
        self._break = len(self.lines[-1])

    def _spaces_of_ghost(self, token: int, count: int) -> None:
        if self._x == 0:
            return  # a ghost at the start of a line needs no gap, and would look like an indent
        width = min(count, 4) * self.ghost_cell
        self._place(token, " " * min(count, 4), 0, count, width, "space")

    def _word(
        self, token: int, word: str, start: int, width: float, *, length: int | None = None,
        kind: FragmentKind = "word",
    ) -> None:
        line = self.lines[-1]
        if self._x + width > self.width and line:
            # A break at 0 is the start of this line: there is nothing to take along.
            if self._break > 0:
                self._wrap_tail()
            elif kind == "ghost" or width <= self.cell * 2:
                self._new_line()
        if self._x + width <= self.width or length is not None or len(word) < 2:
            self._place(token, word, start, len(word) if length is None else length, width, kind)
            return
        self._split_word(token, word, start)

    def _split_word(self, token: int, word: str, start: int) -> None:
        """Break a word that no line can hold wherever it must."""
        for cluster_start, cluster in clusters(word):
            width = len(cluster) * self.cell if is_plain(cluster) else self.measure(cluster, False)
            line = self.lines[-1]
            if self._x + width > self.width and line:
                self._new_line()
                line = self.lines[-1]
            last = line[-1] if line else None
            if last is not None and last.token == token and last.kind == "word" and not last.atomic \
                    and last.start + last.length == start + cluster_start:
                line[-1] = last._replace(
                    width=last.width + width, text=last.text + cluster, length=last.length + len(cluster)
                )
                self._x += width
            else:
                self._place(token, cluster, start + cluster_start, len(cluster), width, "word")

    # -- lines ------------------------------------------------------------------------------------

    def _place(self, token: int, text: str, start: int, length: int, width: float, kind: FragmentKind) -> None:
        line = self.lines[-1]
        if start == 0 and (not line or line[-1].token != token) or self.first_line[token] < 0:
            self.first_line[token] = len(self.lines) - 1
        line.append(Fragment(token, self._x, width, text, start, length, kind))
        self._x += width

    def _new_line(self) -> None:
        self.lines.append([])
        self.paragraphs.append(self.paragraphs[-1])
        self._x = 0.0
        self._break = 0

    def _wrap_tail(self) -> None:
        """Start a new line with what stands after the last place where this one may break."""
        line = self.lines[-1]
        tail = line[self._break:]
        del line[self._break:]
        self._new_line()
        number, fresh = len(self.lines) - 1, self.lines[-1]
        left_behind = line[-1].token if line else -1
        for fragment in tail:
            fresh.append(fragment._replace(x=self._x))
            self._x += fragment.width
            if fragment.token != left_behind:
                self.first_line[fragment.token] = number


def nearest(row: list[Fragment], x: float) -> Fragment | None:
    """The fragment at x of a row from left to right, the nearest one where x is beside them all; None of nothing."""
    place = bisect_right(row, x, key=lambda fragment: fragment.x) - 1
    return row[max(place, 0)] if row else None


def turns(row: list[Fragment]) -> bool:
    """Whether a line has a character that runs to the left."""
    return any(not is_plain(fragment.text) and "R" in map(_direction, fragment.text) for fragment in row)


def _direction(char: str) -> str:
    """L or R for a character with a direction of its own, else a dot."""
    import unicodedata

    found = unicodedata.bidirectional(char)
    return "R" if found in ("R", "AL") else "L" if found == "L" else "."


def clusters(text: str) -> list[tuple[int, str]]:
    """Split into (offset, what a reader takes for one character): marks and joiners stay with their base."""
    if is_plain(text):
        return list(enumerate(text))
    import unicodedata

    found: list[tuple[int, str]] = []
    for offset, char in enumerate(text):
        code = ord(char)
        joins = (
            unicodedata.combining(char) or code in (0x200C, 0x200D) or 0xFE00 <= code <= 0xFE0F
            or 0x1F3FB <= code <= 0x1F3FF or unicodedata.category(char) in ("Mn", "Mc", "Me")
            or (found and found[-1][1][-1] == "\u200d")
        )
        if joins and found:
            found[-1] = (found[-1][0], found[-1][1] + char)
        else:
            found.append((offset, char))
    return found
