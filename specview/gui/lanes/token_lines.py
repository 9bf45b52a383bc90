"""The laid-out text of one lane: where its tokens stand, what stands at a point, and how lines are painted.

Coordinates are pixels of the whole text, padding included, however far it is scrolled. Only what is new is laid out,
only the lines asked for are painted.
"""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRect, QRectF
from PySide6.QtGui import QColor, QPainter, QTextCharFormat

from specview.gui.lanes.token_bidi import VisualLine
from specview.gui.parts import painted, theme
from specview.gui.parts.token_paint import TokenStyles
from specview.gui.state.display_text import is_plain
from specview.gui.state.token_layout import Fragment, TokenLayout, clusters, nearest, turns
from specview.gui.state.view_model import LaneModel

PADDING_PX = 12
Place = tuple[int, int]
"""A place in the text: (token, character)."""
Bounds = tuple[Place, Place]
"""Of a selection: its first place, and the one after its last."""


class TokenLines:
    """The lines of a lane's tokens in a width, in the present theme and font size."""

    def __init__(self, lane: LaneModel, width: int, *, ghosts: bool, marks: bool) -> None:
        self._lane, self._marks = lane, marks
        self.pad = theme.px(PADDING_PX)
        self.styles = styles = TokenStyles()
        self._visuals: dict[int, tuple[int, Fragment | None, VisualLine | None]] = {}
        cache: dict[tuple[str, bool], float] = {}

        def measure(text: str, ghost: bool) -> float:
            found = cache.get((text, ghost))
            if found is None:
                found = cache[text, ghost] = styles.measure(text, ghost)
            return found

        room = width - 2 * self.pad - styles.cell
        self.layout = TokenLayout(measure, styles.cell, styles.ghost_cell, room, ghosts=ghosts, marks=marks)

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
        row, layout = self.layout.lines[line], self.layout
        rtl = layout.paragraphs[line] in layout.right_to_left
        key = (2 * len(row) + rtl, row[-1] if row else None)
        kept = self._visuals.get(line)
        if kept is not None and kept[:2] == key:
            return kept[2]
        made = VisualLine(row, self.styles, rtl, layout.width, self._format_of) if row and (rtl or turns(row)) else None
        self._visuals[line] = (*key, made)
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
        return next((row[0].token for row in self.layout.lines[max(line, 0):] if row), None)

    def edge(self, token: int, end: int) -> int | None:
        """The first (end 0) or last (-1) token in a token's line."""
        line = self.layout.first_line[token]
        row = self.layout.lines[line] if line >= 0 else []
        return row[end].token if row else None

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
        hit = nearest(self.row(target), fragment.x + fragment.width / 2)
        return None if hit is None else hit.token

    # -- points -----------------------------------------------------------------------------------

    def token_at(self, x: float, y: float) -> int | None:
        """The token under a point."""
        line, x = int(y - self.pad) // self.pitch, x - self.pad
        if not 0 <= line < len(self.layout.lines):
            return None
        found = nearest(self.row(line), x)
        return found.token if found is not None and found.x <= x <= found.x + found.width else None

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

    def paint(
        self, painter: QPainter, region: QRect, bounds: Bounds | None, current: int | None, hovered: int | None
    ) -> None:
        """Paint the lines that a region needs; bounds are those of the selection."""
        first = max((region.top() - self.pad) // self.pitch, 0)
        last = min((region.bottom() - self.pad) // self.pitch, len(self.layout.lines) - 1)
        for line in range(first, last + 1):
            self._paint_line(painter, line, bounds, current, hovered)

    def _paint_line(
        self, painter: QPainter, line: int, bounds: Bounds | None, current: int | None, hovered: int | None
    ) -> None:
        row, visual, top = self.row(line), self.visual(line), self.top(line)
        tokens, styles = self._lane.tokens, self.styles
        spans = self._spans(row)
        for token, x, width in spans:
            if tokens[token].kind != "plain":
                styles.paint_under(painter, tokens[token].kind, x + self.pad, top, width)
        if bounds is not None:
            self._paint_selection(painter, row, top, bounds)
        if visual is None:
            self._paint_text(painter, row, top)
        else:
            visual.draw(painter, self.pad, top + styles.baseline)
        for token, x, width in spans:
            if tokens[token].kind == "rejected":
                styles.paint_over(painter, "rejected", x + self.pad, top, width)
            if token in (current, hovered):
                box = QRectF(x + self.pad - 1, top + 0.5, max(width, styles.cell * 0.5) + 2, self.pitch - 1)
                ink, wide = ("ink", 1.8) if token == current else ("muted", 1.0)
                painted.box(painter, box, painted.pen(painted.ink(ink), wide), None)

    def _spans(self, row: list[Fragment]) -> list[tuple[int, float, float]]:
        """Return (token, x, width) of what to tint: leading spaces only in marks mode or on their own."""
        spans: list[tuple[int, float, float]] = []
        held: tuple[int, float, float] | None = None
        for fragment in row:
            token, x, width = fragment.token, fragment.x, fragment.width
            part = fragment.length < len(self._lane.tokens[token].text)
            space = fragment.kind == "space" and not self._marks and part
            if fragment.rtl and space:
                continue  # the space before the word stands after it here
            if spans and spans[-1][0] == token:
                spans[-1] = (token, spans[-1][1], x + width - spans[-1][1])
                held = None
            elif space:
                held = (token, x, width)
            else:
                if held is not None and held[0] == token and fragment.kind not in ("word", "ghost"):
                    x, width = held[1], width + held[2]
                spans.append((token, x, width))
                held = None
        return spans

    def _paint_text(self, painter: QPainter, row: list[Fragment], top: int) -> None:
        """Draw a line's text, neighbouring output tokens in one call."""
        styles, tokens = self.styles, self._lane.tokens
        ink, y = styles.styles["plain"].ink, top + styles.baseline
        painter.setFont(styles.font)
        painter.setPen(ink)
        run, run_x = "", 0.0
        special: list[Fragment] = []
        for fragment in row:
            if fragment.kind in ("word", "space") and is_plain(fragment.text) \
                    and tokens[fragment.token].position is not None and not (self._marks and fragment.kind == "space"):
                if not run:
                    run_x = fragment.x
                run += fragment.text
                continue
            if run.strip():
                painter.drawText(QPointF(run_x + self.pad, y), run)
            run = ""
            special.append(fragment)
        if run.strip():
            painter.drawText(QPointF(run_x + self.pad, y), run)
        for fragment in special:
            at = QPointF(fragment.x + self.pad, y)
            if fragment.kind == "ghost":
                faint = styles.styles[tokens[fragment.token].kind].ink
                painted.words(painter, at + QPointF(0.2 * styles.cell, 0), fragment.text, styles.ghost_font, faint)
            elif fragment.kind == "word":
                painted.words(painter, at, fragment.text, styles.font, ink)
            elif self._marks and fragment.text:
                text = "·" * len(fragment.text) if fragment.kind == "space" else fragment.text
                painted.words(painter, at, text, styles.font, styles.faint)

    def _format_of(self, fragment: Fragment) -> QTextCharFormat | None:
        """Font and colour of a ghost or a mark in a line that is set by its directions; None of plain text."""
        ghost = fragment.kind == "ghost"
        if not ghost and (fragment.kind == "word" or not self._marks):
            return None
        styles, form = self.styles, QTextCharFormat()
        form.setFont(styles.ghost_font if ghost else styles.font)
        form.setForeground(styles.styles[self._lane.tokens[fragment.token].kind].ink if ghost else styles.faint)
        return form

    def _paint_selection(self, painter: QPainter, row: list[Fragment], top: int, bounds: Bounds) -> None:
        colour = QColor(self.styles.theme.accent)
        colour.setAlpha(110)
        low, high = bounds
        for fragment in row:
            token, start, stop = fragment.token, fragment.start, fragment.start + fragment.length
            if self._lane.tokens[token].ghost or not low[0] <= token <= high[0]:
                continue
            start = max(start, low[1]) if token == low[0] else start
            stop = min(stop, high[1]) if token == high[0] else stop
            if start < stop:
                left, right = (self._edge_x(fragment, char - fragment.start) for char in (start, stop))
                painter.fillRect(QRectF(min(left, right) + self.pad, top, abs(right - left), self.pitch), colour)
