"""Lines of coloured tokens: an incremental layout that only ever touches the last line.

Plain Python; the widget hands in how wide a text is. A line is a list of fragments, each a piece of
one token. Words wrap at spaces where they can and anywhere where they must, but not right after the
blanks that a line begins with: its indentation stays with its text. Ghosts (drafts that are not part of
the output) are never broken into the words around them. Drafts that were thrown away can be a count
("+2") before the token that the target gave in their place. Of the round under way all is shown.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from specview.gui.state.display_text import is_plain, symbol
from specview.gui.state.token_looks import GhostMode
from specview.gui.state.view_model import FINAL, ViewToken

TAB_CELLS = 4
FragmentKind = Literal["word", "space", "newline", "tab", "empty", "ghost", "count"]

_PIECES = re.compile(r"\n|\t| +|[^\n\t ]+")
_STRONG = re.compile("[LR]")
_ONE_WORD = re.compile(r"( ?)([\x21-\x7e]+)\Z")
_BLANK = ("space", "tab")
_TRAILING = " ↵␣"  # what may be cut from the end of a draft for want of room
_STOP_EVERY = 64


class Fragment(NamedTuple):
    """A piece of a token on one line.

    x and width are pixels; text is what is drawn (may be empty); start and length say which of the
    token's characters it stands for. A count is of the first draft that it counts. edges and rtl are of a line that was
    set by directions (token_bidi): the x of each character's beginning and of the last one's end, and whether it runs
    to the left.
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


class _Stop(NamedTuple):
    """The layout after so many tokens, to go back to: its last line, and what the next token depends on."""

    tokens: int
    lines: int
    row: tuple[Fragment, ...]
    first_lines: tuple[int, ...]  # of the row's fragments
    counts: int
    x: float
    wrap: int
    strong: bool
    held: tuple[int, ...]
    first_of: int


class TokenLayout:
    """Places tokens on lines of a given width.

    measure(text, ghost) is the width of a text in pixels; cell, ghost_cell and count_cell are those of one
    printable ASCII character of the text, of a ghost and of a count; air is what the space between two words has besides.
    ghosts: how drafts that were thrown away are shown, "none" of them.
    """

    def __init__(
        self, measure: Callable[[str, bool], float], cell: float, ghost_cell: float, width: float,
        *, count_cell: float = 0.0, air: float = 0.0, ghosts: GhostMode | Literal["none"] = "all", marks: bool = False,
    ) -> None:
        self.measure = measure
        self.cell, self.ghost_cell, self.count_cell = cell, ghost_cell, count_cell or 0.7 * cell
        self.air = air
        self.width = max(width, 4 * cell)
        self.ghosts = ghosts
        self.marks = marks
        self.tokens: list[ViewToken] = []
        self.settled = 0  # of the tokens, how many stand for good
        self.lines: list[list[Fragment]] = [[]]
        self.first_line: list[int] = []  # per token; -1 of one that is hidden
        self.counts: dict[int, list[int]] = {}  # the drafts that a count stands for, by the first of them, which holds it
        self.paragraphs: list[int] = [0]  # per line, the line that its paragraph begins with
        self.right_to_left: set[int] = set()  # paragraphs, by their first line, whose first strong character says so
        self._positions: list[int] = []  # of the output's tokens, and which they are
        self._outputs: list[int] = []
        self._strong = False  # whether this paragraph had one
        self._x = 0.0
        self._break = 0
        self._held: list[int] = []  # drafts thrown away in the round at the end, not yet shown
        self._first_of = -1  # the round whose first rejected draft was shown
        self._ending = False  # whether a count stands at the end for want of a final token
        self._stops = [self._stop()]

    def __len__(self) -> int:
        return len(self.tokens)

    def show(self, tokens: Sequence[ViewToken], settled: int | None = None, most: int = 10**9) -> int:
        """Show these tokens, the first `settled` of them (or all) for good, in place of those that did not stand for good.

        About `most` are placed in one call, to the end of a round; then the last ones are missing. Returns the first line
        that changed.
        """
        good = len(tokens) if settled is None else min(settled, len(tokens))
        keep = min(self.settled, good)
        changed = self.truncate(keep)
        stop = min(good, keep + most)
        while keep < stop < good and tokens[stop].round_index == tokens[stop - 1].round_index:
            stop += 1  # the drafts of a round wait for its final token
        changed = min(changed, self.append(tokens[keep:stop]))
        if good == stop and good < len(tokens):
            self._lay(tokens[good:])
        return changed

    def append(self, tokens: Iterable[ViewToken]) -> int:
        """Place tokens for good after the others, which stand for good; return the first line that changed."""
        tokens = list(tokens)
        changed = self._changes()
        if not tokens:
            return changed
        if self._ending:
            first = next(iter(reversed(self.counts)))
            again = self.tokens[first:]
            changed = min(changed, self._back(first))
            tokens = [*again, *tokens]
        self.settled = len(self.tokens) + len(tokens)
        self._lay(tokens)
        self._end()
        return changed

    def truncate(self, count: int) -> int:
        """Take back all tokens but the first ones, which are placed as if no other had been; return the first line that changed."""
        if count >= len(self.tokens):
            return self._changes()
        under_way = self.tokens[min(self.settled, count) : count]
        changed = self._back(min(self.settled, count))
        self._end()
        self._lay(under_way)
        return changed

    def _back(self, count: int) -> int:
        """Go back to so many tokens that stand for good, without a count at the end; return the first line that changed."""
        place = bisect_right(self._stops, count, key=lambda stop: stop.tokens) - 1
        stop = self._stops[place]
        again = self.tokens[stop.tokens : count]
        del self._stops[place + 1 :], self.tokens[stop.tokens :], self.first_line[stop.tokens :]
        del self.lines[stop.lines :], self.paragraphs[stop.lines :]
        self.lines[-1] = list(stop.row)
        for fragment, line in zip(stop.row, stop.first_lines, strict=True):
            self.first_line[fragment.token] = line
        while len(self.counts) > stop.counts:
            self.counts.popitem()
        for held in stop.held:
            self.first_line[held] = -1
        self._x, self._break, self._strong = stop.x, stop.wrap, stop.strong
        self._held, self._first_of, self._ending = list(stop.held), stop.first_of, False
        paragraph = self.paragraphs[-1]
        self.right_to_left = {one for one in self.right_to_left if one < paragraph or (one == paragraph and stop.strong)}
        outputs = bisect_left(self._outputs, stop.tokens)
        del self._outputs[outputs:], self._positions[outputs:]
        changed = self._changes()
        self.settled = count
        self._lay(again)
        return changed

    def _changes(self) -> int:
        """The first line that what is placed next may change."""
        line = len(self.lines) - 1
        return line if self._strong else self.paragraphs[line]  # what comes may turn the whole paragraph

    def _end(self) -> None:
        """Show what is held at the end of all that stands for good."""
        if self._held:
            self._count()
            self._ending = True

    def _lay(self, tokens: Iterable[ViewToken]) -> None:
        kept = self.ghosts in ("count", "first")
        for token in tokens:
            index = len(self.tokens)
            if index % _STOP_EVERY == 0 and self._stops[-1].tokens < index < self.settled:
                self._stops.append(self._stop())
            if self._held and token.round_index != self.tokens[self._held[0]].round_index:
                self._count()  # that round had no final token
            self.tokens.append(token)
            self.first_line.append(-1)
            if token.position is None and token.kind not in ("drafted", "given"):
                if self.ghosts == "none":
                    continue
                if kept and index < self.settled and not self._shown_first(token):
                    self._held.append(index)
                    continue
                self.first_line[index] = len(self.lines) - 1
                self._ghost(index, token.text)
                continue
            self.first_line[index] = len(self.lines) - 1
            if token.position is not None:
                self._outputs.append(index)
                self._positions.append(token.position)
            match = _ONE_WORD.match(token.text)
            if match:  # the common case, worth its own path
                space, word = match.groups()
                if space:
                    self._spaces(index, 0, 1)
                if self._held and token.token_index == FINAL:
                    self._count()
                self._strong = self._strong or any(map(str.isalpha, word))
                self._word(index, word, len(space), len(word) * self.cell)
            elif token.kind == "drafted":
                self._draft(index, token.text)
            else:
                self._output(index, token)

    def _stop(self) -> _Stop:
        row = self.lines[-1]
        return _Stop(
            len(self.tokens), len(self.lines), tuple(row), tuple(self.first_line[fragment.token] for fragment in row),
            len(self.counts), self._x, self._break, self._strong, tuple(self._held), self._first_of,
        )  # fmt: skip

    # -- finding ----------------------------------------------------------------------------------

    def holder(self, token: int) -> int | None:
        """The token that stands for this one: itself, the one that has the count it is in, None where it is hidden."""
        if not 0 <= token < len(self.tokens):
            return None
        if self.first_line[token] >= 0:
            return token
        own = self.tokens[token].round_index
        for first in range(token, -1, -1):
            if self.tokens[first].round_index != own:
                break
            if token in self.counts.get(first, ()):
                return first
        return None

    def at_position(self, position: int) -> int | None:
        """The token at a position of the output."""
        place = bisect_left(self._positions, position)
        found = place < len(self._positions) and self._positions[place] == position
        return self._outputs[place] if found else None

    def position_at(self, token: int) -> int | None:
        """The position of a token, of a draft that was not kept that of the next one that was; None at the end."""
        place = bisect_left(self._outputs, token)
        return self._positions[place] if place < len(self._outputs) else None

    @property
    def positions(self) -> int:
        """How many positions of the output are placed."""
        return self._positions[-1] + 1 if self._positions else 0

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

    def _output(self, index: int, token: ViewToken) -> None:
        """Place a token of the output that is more than a word."""
        counted = bool(self._held) and token.token_index == FINAL
        pieces = list(_PIECES.finditer(token.text))
        for place, piece in enumerate(pieces):
            if counted and (piece.group()[0] != " " or len(pieces) == 1):
                self._count()
                counted = False
            self._piece(index, piece.group(), piece.start())
            if place == 0 and len(pieces) > 1 and counted:
                self._count()
                counted = False
        if not pieces:
            if counted:
                self._count()
            self._place(index, "", 0, 0, self.cell * 0.5, "empty")

    def _draft(self, index: int, text: str) -> None:
        """Place a draft that is not judged yet: as wide as it would stand in the output, but its newlines and the blanks
        at its end stay on one line, as many as it has room for.
        """
        shown = "".join(symbol(char) for char in text)
        lead = len(shown) - len(shown.lstrip(" "))
        if lead and lead < len(shown):
            self._spaces(index, 0, lead)
        word = shown[lead:] or "␣" * min(lead, 8)
        self._direct(word)
        start = lead if lead < len(shown) else 0
        solid = word.rstrip(_TRAILING)
        width = self.measure(solid, False) if solid else 0.0
        self._room(width)
        if self._x + width > self.width:
            self._unusual(index, text[start:], start)
            return
        width = self.measure(word, False) if word else 0.5 * self.cell
        over = self._x + width - self.width - self.cell  # one may hang over the edge, as in the output
        if over > 0 and len(word) > len(solid):
            word = word[: max(len(word) - math.ceil(over / self.cell), len(solid) + 1)]
            width = self.measure(word, False)
        self._place(index, word, start, len(text) - start, width, "word")

    def _shown_first(self, token: ViewToken) -> bool:
        """Whether a draft is the first rejected one of its round, and is to be shown."""
        if self.ghosts != "first" or token.kind != "rejected" or self._first_of == token.round_index:
            return False
        self._first_of = token.round_index
        return True

    def _count(self) -> None:
        """Place the count of the drafts thrown away; it stays with the word that comes after it."""
        held, self._held = self._held, []
        text = f"+{sum(self.tokens[one].folded or 1 for one in held)}"
        self.counts[held[0]] = held
        self.first_line[held[0]] = len(self.lines) - 1
        self._word(held[0], text, 0, (len(text) + 0.5) * self.count_cell, length=0, kind="count")

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
            self._place(token, "⇥" if self.marks else "", start, 1, min(stop - self._x, max(self.width - self._x, self.cell)), "tab")
            self._may_break()
        elif piece[0] == " ":
            self._spaces(token, start, len(piece))
        elif is_plain(piece):
            self._strong = self._strong or any(map(str.isalpha, piece))
            self._word(token, piece, start, len(piece) * self.cell)
        else:
            self._unusual(token, piece, start)

    def _unusual(self, token: int, word: str, start: int) -> None:
        """Place a word with characters outside ASCII; stand-ins of several characters stand alone."""
        self._direct(word)
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

    def _direct(self, word: str) -> None:
        """Take the paragraph's direction from a word, if nothing before it had one."""
        if not self._strong and (strong := _STRONG.search("".join(map(_direction, word)))):
            self._strong = True
            if strong.group() == "R":
                self.right_to_left.add(self.paragraphs[-1])

    def _spaces(self, token: int, start: int, count: int) -> None:
        """Place spaces; one may hang over the edge, more go on with the next line."""
        line = self.lines[-1]
        if count == 1 and line and line[-1].kind not in ("space", "tab"):  # between two words
            self._place(token, " ", start, 1, self.cell + self.air, "space")
            self._break = len(line)
            return
        while count:
            room = max(int((self.width + self.cell - self._x) / self.cell + 1e-6), 0)
            take = min(count, room)
            if take:
                self._place(token, " " * take, start, take, take * self.cell, "space")
                self._may_break()
                start, count = start + take, count - take
            if count:
                self._new_line()

    def _ghost(self, token: int, text: str) -> None:
        """Place a draft that is not part of the output: on one line, with a little air around it."""
        shown = "".join(symbol(char) for char in text)
        lead = len(shown) - len(shown.lstrip(" "))
        if lead == len(shown):
            shown, lead = "␣" * min(lead, 8), 0
        word = self._cut(shown[lead:])
        width = self._ghost_width(word) if word else 0.6 * self.cell
        gap = min(lead, 4)
        self._may_break()
        self._room(gap * self.ghost_cell + width, True)
        if gap and self._x > 0:  # at the start of a line it needs no gap, which would look like an indent
            self._place(token, " " * gap, 0, gap, gap * self.ghost_cell, "space")
        self._place(token, word, lead, len(text) - lead, width, "ghost")
        self._break = len(self.lines[-1])

    def _ghost_width(self, word: str) -> float:
        return (len(word) * self.ghost_cell if is_plain(word) else self.measure(word, True)) + 0.4 * self.cell

    def _cut(self, word: str) -> str:
        """As much of a ghost as a line has room for; all of it is in its tool tip and in the inspector."""
        if self._ghost_width(word) <= self.width:
            return word
        pieces = [cluster for _, cluster in clusters(word)]
        fit = bisect_left(range(len(pieces)), True, key=lambda count: self._ghost_width("".join(pieces[:count]) + "…") > self.width)
        return "".join(pieces[: max(fit - 1, 1)]) + "…"

    def _word(
        self, token: int, word: str, start: int, width: float, *, length: int | None = None,
        kind: FragmentKind = "word",
    ) -> None:
        self._room(width, length is not None)
        if self._x + width <= self.width or length is not None or len(word) < 2:
            self._place(token, word, start, len(word) if length is None else length, width, kind)
            return
        self._split_word(token, word, start)

    def _room(self, width: float, whole: bool = False) -> None:
        """Go on with a new line where a word of this width has no room and the line can end before it.

        whole: it cannot be broken.
        """
        line = self.lines[-1]
        if self._x + width <= self.width or not line:
            return
        # A break at 0 is the start of this line: there is nothing to take along.
        if self._break > 0:
            self._wrap_tail()
        elif whole or width <= self.cell * 2 or (width <= self.width and line[0].kind in _BLANK and _has_text(line)):
            self._new_line()

    def _may_break(self) -> None:
        """Let the line break here, if more than its indentation would stay behind."""
        line = self.lines[-1]
        if any(fragment.kind not in _BLANK for fragment in line):
            self._break = len(line)

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


def _has_text(row: list[Fragment]) -> bool:
    """Whether a line has more than blanks and counts."""
    return any(fragment.kind not in _BLANK and fragment.kind != "count" for fragment in row)


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
