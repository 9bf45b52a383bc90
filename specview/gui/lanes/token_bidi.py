"""A line with right-to-left text, as Qt lays it out: letters joined across tokens, runs in the order they are read.

The layout of tokens breaks lines and knows nothing of directions. This takes one of its lines and gives the same
pieces where they stand to the eye; a piece that falls apart (Latin within Hebrew) becomes several.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QFont, QFontInfo, QPainter, QTextCharFormat, QTextLayout, QTextLine, QTextOption

from specview.gui.parts.token_paint import TokenStyles
from specview.gui.state.token_layout import Fragment

_THIN = "\u2009"
_Box = tuple[float, float, bool]  # left, right, whether it runs to the left


class VisualLine:
    """Pieces from left to right (`row`), each with the x of its characters' edges; drawn by `draw`."""

    def __init__(
        self, row: list[Fragment], styles: TokenStyles, right_to_left: bool, width: float,
        format_of: Callable[[Fragment], QTextCharFormat | None], marks: bool,
    ) -> None:
        """`width` is what a right-to-left line is set flush with; format_of gives font and colour of a piece that is no
        plain text: a change of format parts a ligature. marks: blanks are drawn as marks.
        """
        self._styles, self._right_to_left = styles, right_to_left
        self._text = ""
        self._formats: list[tuple[int, int, QTextCharFormat]] = []  # in UTF-16 units of the text, as are places
        places: list[tuple[int, int]] = []
        thin = _thin(styles)
        for fragment in row:
            form = format_of(fragment)
            drawn = _drawn(fragment, styles, marks)
            places.append((_units(self._text), _units(drawn)))
            if form is not None:
                self._formats.append((*places[-1], form))
            self._formats += [(places[-1][0] + at, 1, thin) for at in range(len(drawn)) if drawn[at] == _THIN]
            self._text += drawn
        layout, line = self._set()
        boxes = _boxes(line, _units(self._text))
        self._x = width - max((right for _, right, _ in boxes), default=0.0)
        if not right_to_left:
            self._x = -min((left for left, _, _ in boxes), default=0.0)
        boxes = [(left + self._x, right + self._x, rtl) for left, right, rtl in boxes]
        del line, layout
        pieces: list[Fragment] = []
        for fragment, (begin, length) in zip(row, places, strict=True):
            pieces += _pieces(fragment, boxes[begin : begin + length])
        self.row = sorted(pieces, key=lambda piece: piece.x)

    def draw(self, painter: QPainter, x: float, baseline: float) -> None:
        """Draw the text with its line's left edge at x."""
        layout, line = self._set()
        painter.setPen(self._styles.styles["plain"].ink)
        layout.draw(painter, QPointF(x + self._x, baseline - line.ascent()))
        del line

    def glyphs(self) -> list[int]:
        """The glyphs, run by run: joined letters have others than the same letters apart."""
        layout, line = self._set()
        found = [glyph for run in line.glyphRuns() for glyph in run.glyphIndexes()]
        del line, layout
        return found

    def _set(self) -> tuple[QTextLayout, QTextLine]:
        """The text set in one line. Not kept: a line is only good as long as its layout."""
        option = QTextOption()
        option.setWrapMode(QTextOption.WrapMode.NoWrap)
        ways = Qt.LayoutDirection
        option.setTextDirection(ways.RightToLeft if self._right_to_left else ways.LeftToRight)
        option.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignAbsolute)
        option.setFlags(QTextOption.Flag.IncludeTrailingSpaces)
        formats = []
        for begin, length, form in self._formats:
            part = QTextLayout.FormatRange()
            part.start, part.length, part.format = begin, length, form
            formats.append(part)
        layout = QTextLayout(self._text, self._styles.font)
        layout.setTextOption(option)
        layout.setFormats(formats)
        layout.beginLayout()
        line = layout.createLine()
        line.setLineWidth(1e6)
        layout.endLayout()
        return layout, line


def _thin(styles: TokenStyles) -> QTextCharFormat:
    """A thin space as wide as the layout reckons around a ghost: a fixed-width font gives it a whole cell."""
    font, form = QFont(styles.font), QTextCharFormat()
    share = 0.2 * styles.cell / max(styles.measure(_THIN, False), 1.0)
    font.setPixelSize(max(1, int(QFontInfo(font).pixelSize() * share)))
    form.setFont(font)
    return form


def _units(text: str) -> int:
    """Length as Qt counts it."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _boxes(line: QTextLine, length: int) -> list[_Box]:
    """Where each UTF-16 unit of a line stands; those that share a glyph (a ligature, a letter and its mark) share its width."""
    origins: list[tuple[float, bool] | None] = []
    for at in range(length):
        runs = line.glyphRuns(at, 1)
        places = runs[0].positions() if runs else []
        origins.append((round(places[0].x(), 3), runs[0].isRightToLeft()) if places else None)
    cuts = [at for at in range(length) if not at or (origins[at] != origins[at - 1] and origins[at] is not None)]
    found: list[_Box] = []
    for begin, end in pairwise([*cuts, length]):
        runs = line.glyphRuns(begin, end - begin)
        area, rtl = (runs[0].boundingRect(), runs[0].isRightToLeft()) if runs else (None, False)
        left, width = (area.left(), area.width()) if area is not None else (found[-1][1] if found else 0.0, 0.0)
        each = width / (end - begin)
        for place in range(end - begin):
            here = left + each * (end - begin - 1 - place if rtl else place)
            found.append((here, here + each, rtl))
    return found


def _pieces(fragment: Fragment, boxes: list[_Box]) -> list[Fragment]:
    """A piece of the line as it stands to the eye: cut where the direction turns, if what is drawn is its own characters."""
    if not boxes:
        return []
    if fragment.atomic or not fragment.text:
        left, right = min(box[0] for box in boxes), max(box[1] for box in boxes)
        rtl = boxes[0][2]
        return [fragment._replace(x=left, width=right - left, edges=(right, left) if rtl else (left, right), rtl=rtl)]
    chars: list[_Box] = []
    at = 0
    for char in fragment.text:
        own = boxes[at : at + 1 + (ord(char) > 0xFFFF)]
        chars.append((min(box[0] for box in own), max(box[1] for box in own), own[0][2]))
        at += len(own)
    found, begin = [], 0
    for end in range(1, len(chars) + 1):
        if end < len(chars) and chars[end][2] == chars[begin][2] and _touch(chars[end - 1], chars[end]):
            continue
        part, rtl = chars[begin:end], chars[begin][2]
        left, right = min(box[0] for box in part), max(box[1] for box in part)
        starts = [box[1] if rtl else box[0] for box in part]
        found.append(fragment._replace(
            x=left, width=right - left, text=fragment.text[begin:end], start=fragment.start + begin, length=end - begin,
            edges=(*starts, left if rtl else right), rtl=rtl,
        ))  # fmt: skip
        begin = end
    return found


def _touch(before: _Box, after: _Box) -> bool:
    """Whether the second character stands right after the first in their direction."""
    return abs(before[0] - after[1] if after[2] else after[0] - before[1]) < 1.0


def _drawn(fragment: Fragment, styles: TokenStyles, marks: bool) -> str:
    """What stands for a piece in the line's text: blanks for what has a width and no letters."""
    if fragment.kind == "count":
        return f"\u2066{fragment.text}\u2069"  # isolated: a plus sign and a number turn round among right-to-left letters
    if fragment.kind == "ghost":  # isolated too: its blanks must stay beside it
        return f"\u2068{_THIN}{fragment.text}{_THIN}\u2069"
    if fragment.kind == "space" and marks:
        return "·" * len(fragment.text)
    if fragment.kind == "tab":
        return fragment.text.ljust(max(1, round(fragment.width / styles.cell)))
    if fragment.kind in ("empty", "newline"):
        return fragment.text or (_THIN if fragment.kind == "empty" else " ")
    return fragment.text
