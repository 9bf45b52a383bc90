"""The laid-out text of one lane: where its tokens stand, what stands at a point, and how lines are painted.

Coordinates are pixels of the whole text, padding included, however far it is scrolled. Only what is new is laid out,
only the lines asked for are painted.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import pairwise

from PySide6.QtCore import QPointF, QRect, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPolygonF, QTextCharFormat

from specview.gui.lanes.token_bidi import VisualLine
from specview.gui.parts import painted, theme
from specview.gui.parts.token_paint import AIR, TOKEN_PX, TokenStyles
from specview.gui.state.display_text import is_plain
from specview.gui.state.token_layout import Fragment, TokenLayout, clusters, nearest, turns
from specview.gui.state.token_looks import TokenLooks
from specview.gui.state.view_model import LaneModel

PADDING_PX = 12
SLICE_S = 0.003
"""Processor time that a view takes to lay out a part of a long text; more goes on when the window has had its turn."""
AT_ONCE = 400
"""Up to so many tokens are laid out in one go."""
_CHUNK = 64
Place = tuple[int, int]
"""A place in the text: (token, character)."""
Bounds = tuple[Place, Place]
"""Of a selection: its first place, and the one after its last."""
_Span = tuple[int, float, float, bool]  # token, x, width, whether it is a count


@dataclass(frozen=True, slots=True)
class Pointed:
    """Tokens that are pointed out: under the cursor, under the pointer, the one another lane's cursor is on, and the first
    that differs from plain's.
    """

    current: int | None = None
    hovered: int | None = None
    echo: int | None = None
    differs: int | None = None


class TokenLines:
    """The lines of a lane's tokens in a width, in the present theme and font size; size is that of the text in pixels."""

    def __init__(self, width: int, looks: TokenLooks, size: float = TOKEN_PX) -> None:
        self.looks, self._marks = looks, looks.whitespace
        self.pad = theme.px(PADDING_PX * max(size / TOKEN_PX, 1.0))
        self.styles = styles = TokenStyles(size)
        self._visuals: dict[int, VisualLine | None] = {}
        cache: dict[tuple[str, bool], float] = {}

        def measure(text: str, ghost: bool) -> float:
            found = cache.get((text, ghost))
            if found is None:
                found = cache[text, ghost] = styles.measure(text, ghost)
            return found

        room = width - 2 * self.pad - styles.cell
        self.layout = TokenLayout(
            measure, styles.cell, styles.ghost_cell, room, count_cell=styles.count_cell, air=AIR * styles.cell,
            ghosts="none" if "rejected" in looks.off else looks.ghosts, marks=looks.whitespace,
        )  # fmt: skip

    def show(self, lane: LaneModel, seconds: float = math.inf) -> int:
        """Take in what the lane gained or lost, for so long; return the first line that changed."""
        layout, tokens, settled = self.layout, lane.tokens, lane.settled
        if math.isinf(seconds):
            changed = layout.show(tokens, settled)
        else:
            end = time.thread_time() + seconds
            changed = layout.show(tokens, settled, _CHUNK)
            while layout.settled < settled and time.thread_time() < end:
                changed = min(changed, layout.show(tokens, settled, _CHUNK))
        for line in [line for line in self._visuals if line >= changed]:
            del self._visuals[line]
        return changed

    def slice_s(self, lane: LaneModel) -> float:
        """How long to lay out in one go: a part of what is much."""
        return SLICE_S if lane.settled - self.layout.settled > AT_ONCE else math.inf

    @property
    def pitch(self) -> int:
        """Height of a line."""
        return self.styles.line_height

    @property
    def height(self) -> int:
        """Height of the whole text."""
        return len(self.layout.lines) * self.pitch + 2 * self.pad

    def top(self, line: int) -> int:
        """Where a line begins."""
        return self.pad + line * self.pitch

    # -- lines ------------------------------------------------------------------------------------

    def visual(self, line: int) -> VisualLine | None:
        """A line set by its directions; None where all of it runs to the right."""
        if line in self._visuals:
            return self._visuals[line]
        row, layout = self.layout.lines[line], self.layout
        rtl = layout.paragraphs[line] in layout.right_to_left
        made = VisualLine(row, self.styles, rtl, layout.width, self._format_of, self._marks) if row and (rtl or turns(row)) else None
        self._visuals[line] = made
        return made

    def row(self, line: int) -> list[Fragment]:
        """A line's pieces from left to right."""
        visual = self.visual(line)
        return self.layout.lines[line] if visual is None else visual.row

    def runs_left(self, token: int) -> bool:
        """Whether a token's paragraph runs to the left."""
        return self.layout.paragraphs[self.layout.first_line[token]] in self.layout.right_to_left

    def from_line(self, line: int) -> int | None:
        """The first token in this line or below it."""
        lines = self.layout.lines
        return next((piece.token for row in lines[max(line, 0) :] for piece in row if self._pointable(piece.token)), None)

    def _position_from(self, line: int) -> int:
        """The first position of the output that begins in this line or below it; the one after the last where there is none."""
        lines, tokens = self.layout.lines, self.layout.tokens
        for place in range(max(line, 0), len(lines)):
            for fragment in lines[place]:
                position = tokens[fragment.token].position
                if position is not None and self.layout.first_line[fragment.token] == place:
                    return position
        return self.layout.positions

    def position_at(self, y: int) -> float:
        """The position of the output that begins in the line at a height, with the part of that line that is above it."""
        line, above = divmod(max(y - self.pad, 0), self.pitch)
        here = self._position_from(line)
        return here + above / self.pitch * (self._position_from(line + 1) - here)

    def height_of(self, position: float) -> int | None:
        """The height at which `position_at` gives this; None of what is not there."""
        token = self.layout.at_position(int(position))
        if token is None:
            return None
        line = self.layout.first_line[token]
        here, below = self._position_from(line), self._position_from(line + 1)
        return self.top(line) + round((position - here) / max(below - here, 1) * self.pitch)

    def text(self, bounds: Bounds) -> str:
        """A part of the output, without ghosts."""
        (first, start), (last, stop) = bounds
        parts = []
        for index in range(first, min(last + 1, len(self.layout))):
            token = self.layout.tokens[index]
            if token.position is not None or token.kind == "given":
                parts.append(token.text[start if index == first else 0 : stop if index == last else None])
        return "".join(parts)

    def shown_from(self, token: int, step: int) -> int | None:
        """The next token that is shown, in one direction."""
        token += step
        while 0 <= token < len(self.layout):
            if self.layout.first_line[token] >= 0 and self._pointable(token):
                return token
            token += step
        return None

    def _pointable(self, token: int) -> bool:
        """Whether a token can be pointed at: what was given cannot."""
        return self.layout.tokens[token].kind != "given"

    def edge(self, token: int, end: int) -> int | None:
        """The first (end 0) or last (-1) token in a token's line."""
        line = self.layout.first_line[token]
        row = [piece.token for piece in self.layout.lines[line] if self._pointable(piece.token)] if line >= 0 else []
        return row[end] if row else None

    def beneath(self, token: int, lines: int) -> int | None:
        """The token so many lines down (up, if below 0) nearest to this one's middle; itself where it goes on there."""
        found = self.layout.fragments_of(token)
        if not found:
            return None
        line, fragment = found[0] if lines < 0 else found[-1]
        pieces = [piece for piece in self.row(line) if piece.token == token] or [fragment]
        fragment = next((piece for piece in pieces if piece.kind != "space"), pieces[0])
        target = min(max(line + lines, 0), len(self.layout.lines) - 1)
        while 0 <= target < len(self.layout.lines) and not self.layout.lines[target]:
            target += 1 if lines > 0 else -1
        if target == line or not 0 <= target < len(self.layout.lines):
            return None
        hit = nearest([piece for piece in self.row(target) if self._pointable(piece.token)], fragment.x + fragment.width / 2)
        return None if hit is None else hit.token

    def moved(self, here: int | None, key: Qt.Key, whole: bool, page: int, top: int | None) -> tuple[int | None] | None:
        """Where an arrow, a page key, Home or End takes the cursor, in a tuple; None for any other key.

        whole: to the end of the text. page: lines of a page. top: where to begin if the cursor is nowhere.
        """
        keys = Qt.Key
        lines = {keys.Key_Down: 1, keys.Key_Up: -1, keys.Key_PageDown: page, keys.Key_PageUp: -page}.get(key)
        step = {keys.Key_Right: 1, keys.Key_Left: -1}.get(key)
        if key == keys.Key_Home:
            return (self.shown_from(-1, 1) if whole or here is None else self.edge(here, 0),)
        if key == keys.Key_End:
            return (self.shown_from(len(self.layout), -1) if whole or here is None else self.edge(here, -1),)
        if step is None and lines is None:
            return None
        if here is None:
            return (top,)
        if step is not None:
            return (self.shown_from(here, -step if self.runs_left(here) else step),)
        assert lines is not None
        target = self.beneath(here, lines)
        if target == here:  # it goes over several lines
            target = self.shown_from(here, 1 if lines > 0 else -1)
        return (target,)

    def area_of(self, token: int) -> QRect:
        """Where a token's first piece stands; empty where it is hidden."""
        found = self.layout.fragments_of(token)
        if not found:
            return QRect()
        line = found[0][0]
        piece = next((one for one in self.row(line) if one.token == token and one.kind != "space"), found[0][1])
        return QRect(round(self.pad + piece.x), self.top(line), max(round(piece.width), 1), self.pitch)

    # -- points -----------------------------------------------------------------------------------

    def token_at(self, x: float, y: float) -> int | None:
        """The token under a point."""
        line, x = int(y - self.pad) // self.pitch, x - self.pad
        if not 0 <= line < len(self.layout.lines):
            return None
        found = nearest(self.row(line), x)
        there = found is not None and found.x <= x <= found.x + found.width and self._pointable(found.token)
        return found.token if found is not None and there else None

    def place_at(self, x: float, y: float) -> Place | None:
        """The place in the text that is nearest to a point."""
        line, x = min(max(int(y - self.pad) // self.pitch, 0), len(self.layout.lines) - 1), x - self.pad
        while line > 0 and not self.layout.lines[line]:
            line -= 1
            x = 10**6
        fragment = nearest(self.row(line), x)
        if fragment is None:
            return None
        if fragment.atomic:
            return fragment.token, fragment.start + (fragment.length if x - fragment.x > fragment.width / 2 else 0)
        if not fragment.edges and is_plain(fragment.text):
            chars = round((x - fragment.x) / self.styles.cell)
        else:
            stops = [offset for offset, _ in clusters(fragment.text)] + [len(fragment.text)]
            chars = min(stops, key=lambda stop: abs(self._edge_x(fragment, stop) - x))
        return fragment.token, fragment.start + min(max(chars, 0), fragment.length)

    def _edge_x(self, fragment: Fragment, inside: int) -> float:
        """The x of a character within a fragment."""
        if fragment.edges:
            return fragment.edges[min(max(inside, 0), len(fragment.edges) - 1)]
        if inside <= 0:
            return fragment.x
        if inside >= fragment.length or fragment.atomic:
            return fragment.x + fragment.width
        if is_plain(fragment.text):
            return fragment.x + inside * self.styles.cell
        return fragment.x + self.styles.measure(fragment.text[:inside], False)

    # -- painting ---------------------------------------------------------------------------------

    def paint(self, painter: QPainter, region: QRect, bounds: Bounds | None, pointed: Pointed) -> None:
        """Paint the lines that a region needs; bounds are those of the selection."""
        first = max((region.top() - self.pad) // self.pitch, 0)
        last = min((region.bottom() - self.pad) // self.pitch, len(self.layout.lines) - 1)
        for line in range(first, last + 1):
            self._paint_line(painter, line, bounds, pointed)

    def _paint_line(self, painter: QPainter, line: int, bounds: Bounds | None, pointed: Pointed) -> None:
        row, visual, top = self.row(line), self.visual(line), self.top(line)
        tokens, styles, off = self.layout.tokens, self.styles, self.looks.off
        spans = self._spans(row)
        chips = self._chips(spans)
        for (token, _, _, count), (x, width) in zip(spans, chips, strict=True):
            kind = tokens[token].kind
            if kind != "plain" and kind not in off and not count:
                styles.paint_under(painter, kind, x + self.pad, top, width)
        if bounds is not None:
            self._paint_selection(painter, row, top, bounds)
        if visual is None:
            self._paint_text(painter, row, top)
        else:
            visual.draw(painter, self.pad, top + styles.baseline)
        for (token, inner, wide, count), (x, width) in zip(spans, chips, strict=True):
            if tokens[token].kind == "rejected" and not count:
                styles.paint_over(painter, "rejected", inner + self.pad, top, wide)
            outline = (
                ("ink", 1.8) if token == pointed.current else ("muted", 1.0) if token == pointed.hovered
                else ("focus", 1.4) if token == pointed.echo else None
            )  # fmt: skip
            box = styles.chip(x + self.pad, top, width)
            if outline is not None:
                colour = QColor(styles.theme.focus) if outline[0] == "focus" else painted.ink(outline[0])
                painted.box(painter, box.adjusted(-1, -1, 1, 1), painted.pen(colour, outline[1]), None)
            if token == pointed.differs:
                self._paint_difference(painter, box.left(), box.top())

    def _paint_difference(self, painter: QPainter, x: float, y: float) -> None:
        """A small wedge over a token's first corner: here the text leaves plain's."""
        size = self.styles.pad * 1.8
        painter.setPen(QColor(self.styles.theme.panel))
        painter.setBrush(QColor(self.styles.theme.warning))
        painter.drawPolygon(QPolygonF([QPointF(x - size / 2, y - size), QPointF(x + size, y - size), QPointF(x + size / 4, y + size / 3)]))

    def _spans(self, row: list[Fragment]) -> list[_Span]:
        """What to tint of a line: leading spaces only in marks mode or on their own."""
        spans: list[_Span] = []
        held: _Span | None = None
        for fragment in row:
            token, x, width, count = fragment.token, fragment.x, fragment.width, fragment.kind == "count"
            part = fragment.length < len(self.layout.tokens[token].text)
            space = fragment.kind == "space" and not self._marks and part
            if fragment.rtl and space:
                continue  # the space before the word stands after it here
            if count:
                width -= 0.5 * self.styles.count_cell
            if spans and spans[-1][0] == token:
                spans[-1] = (token, spans[-1][1], x + width - spans[-1][1], count)
                held = None
            elif space:
                held = (token, x, width, False)
            else:
                if held is not None and held[0] == token and fragment.kind not in ("word", "ghost"):
                    x, width = held[1], width + held[2]
                spans.append((token, x, width, count))
                held = None
        return spans

    def _chips(self, spans: list[_Span]) -> list[tuple[float, float]]:
        """x and width of the boxes around spans: past the word where there is room, a hair apart where there is none."""
        if not spans:
            return []
        pad = self.styles.pad
        gaps = [pad + 1.0]
        for (_, x, width, before), (_, after_x, _, after) in pairwise(spans):
            gap = after_x - x - width  # a count needs no box, its neighbour has the gap
            gaps.append(gap if before or after else gap / 2)
        gaps.append(pad + 1.0)
        found = []
        for place, (_, x, width, _) in enumerate(spans):
            left, right = (min(pad, max(gap - 0.75, -0.5)) for gap in gaps[place : place + 2])
            found.append((x - left, width + left + right))
        return found

    def _paint_text(self, painter: QPainter, row: list[Fragment], top: int) -> None:
        """Draw a line's text, the pieces of a word in one call."""
        styles, tokens = self.styles, self.layout.tokens
        ink, y = styles.styles["plain"].ink, top + styles.baseline
        painter.setFont(styles.font)
        painter.setPen(ink)
        run, run_x = "", 0.0
        special: list[Fragment] = []
        for fragment in row:
            if fragment.kind == "word" and is_plain(fragment.text) and self._pointable(fragment.token):
                if not run:
                    run_x = fragment.x
                run += fragment.text
                continue
            if run:
                painter.drawText(QPointF(run_x + self.pad, y), run)
            run = ""
            special.append(fragment)
        if run:
            painter.drawText(QPointF(run_x + self.pad, y), run)
        for fragment in special:
            at = QPointF(fragment.x + self.pad, y)
            if fragment.kind == "ghost":
                faint = styles.styles[tokens[fragment.token].kind].ink
                painted.words(painter, at + QPointF(0.2 * styles.cell, 0), fragment.text, styles.ghost_font, faint)
            elif fragment.kind == "count":
                styles.paint_count(painter, at.x(), top, fragment.text)
            elif fragment.kind == "word":
                own = ink if self._pointable(fragment.token) else styles.styles["given"].ink
                painted.words(painter, at, fragment.text, styles.font, own)
            elif self._marks and fragment.text:
                text = "·" * len(fragment.text) if fragment.kind == "space" else fragment.text
                painted.words(painter, at, text, styles.font, styles.faint)

    def _format_of(self, fragment: Fragment) -> QTextCharFormat | None:
        """Font and colour of a ghost, a count or a mark, in a line that is set by its directions; None of plain text."""
        styles, kind, form = self.styles, fragment.kind, QTextCharFormat()
        if kind in ("ghost", "count"):
            form.setFont(styles.ghost_font if kind == "ghost" else styles.font)
            form.setForeground(styles.styles["rejected" if kind == "count" else self.layout.tokens[fragment.token].kind].ink)
            if kind == "count":
                form.setVerticalAlignment(QTextCharFormat.VerticalAlignment.AlignSuperScript)  # which makes it smaller too
        elif kind == "space" and not self._marks and fragment.width > styles.cell * len(fragment.text) + 0.5:
            form.setFont(styles.airy_font)
        elif kind == "word" and not self._pointable(fragment.token):
            form.setFont(styles.font)
            form.setForeground(styles.styles["given"].ink)
        elif kind == "word" or not self._marks:
            return None
        else:
            form.setFont(styles.font)
            form.setForeground(styles.faint)
        return form

    def _paint_selection(self, painter: QPainter, row: list[Fragment], top: int, bounds: Bounds) -> None:
        colour = QColor(self.styles.theme.accent)
        colour.setAlpha(110)
        low, high = bounds
        for fragment in row:
            token, start, stop = fragment.token, fragment.start, fragment.start + fragment.length
            if self.layout.tokens[token].ghost or not low[0] <= token <= high[0]:
                continue
            start = max(start, low[1]) if token == low[0] else start
            stop = min(stop, high[1]) if token == high[0] else stop
            if start < stop:
                left, right = (self._edge_x(fragment, char - fragment.start) for char in (start, stop))
                painter.fillRect(QRectF(min(left, right) + self.pad, top, abs(right - left), self.pitch), colour)
