"""The painted parts of a lane's panel: marker, number, line of figures, bar, small lines of words.

Painted rather than labelled: they never ask for a new layout when a number changes, so nothing jumps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from PySide6.QtCore import QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QPainter, QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QWidget

from specview.files.figures import MISSING
from specview.gui.parts import theme
from specview.gui.parts.lane_markers import paint_marker
from specview.gui.parts.painted import Painted, box, ink, words, words_in, wrapped
from specview.gui.state.display_text import tooltip, visible
from specview.gui.state.lane_words import BigFigure, Mark, Piece

SMALL, LINE = 11, 12
_GAP = " · "
_RIGHT_END = Qt.TextElideMode.ElideRight


class Scaled(Painted):
    """Its sizes are the theme's times `scale`: 1 in a window, more where it is shown to a room."""

    scale = 1.0

    def px(self, size: float) -> int:
        """A length at this scale."""
        return theme.px(size * self.scale)

    def font_of(self, size: float, *, bold: bool = False) -> QFont:
        """The interface font at this scale."""
        return theme.ui_font(size * self.scale, bold=bold)


def lane_colour(index: int) -> QColor:
    """A lane's colour, as in the plots."""
    colours = theme.current().lane_colors
    return QColor(colours[index % len(colours)])


class Dot(Scaled):
    """The lane's colour and shape, as in the plots."""

    def __init__(self, colour_index: int) -> None:
        super().__init__()
        self.colour_index = colour_index
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        return QSize(self.px(12), self.px(12))

    def paint(self, painter: QPainter, region: QRect) -> None:
        paint_marker(painter, self.colour_index, QPointF(self.width() / 2, self.height() / 2), self.px(10))


class BigNumber(Scaled):
    """A lane's speedup in the lane's colour, at the right; small beside it its spread where there is room, and "lossy".

    Where there is no figure yet there is nothing: a lone dash in a corner would pass for a button.
    """

    WIDEST = "88.8×"

    def __init__(self, colour_index: int) -> None:
        super().__init__()
        self.colour_index = colour_index
        self.size_px = 34.0
        self.shown = BigFigure(MISSING, muted=True)

    def set_shown(self, shown: BigFigure) -> None:
        """Show this number."""
        if shown != self.shown:
            self.shown = shown
            said = "none yet" if shown.text == MISSING else shown.text
            self.setAccessibleName(" ".join(filter(None, ("speedup", said, shown.spread, "lossy" if shown.lossy else ""))))
            self.setToolTip(tooltip(shown.tip))
            self.setAccessibleDescription(shown.tip)
            self.update()

    def _font(self) -> QFont:
        return self.font_of(self.size_px, bold=True)

    def least_width(self) -> int:
        """Room for the widest number, and the word where it is lossy."""
        words_ = QFontMetricsF(self.font_of(SMALL)).horizontalAdvance("lossy") + self.px(6) if self.shown.lossy else 0
        return round(QFontMetricsF(self._font()).horizontalAdvance(self.WIDEST) + words_)

    def high(self) -> int:
        return round(QFontMetricsF(self._font()).capHeight() * 1.3)

    def beside(self) -> list[tuple[str, str]]:
        """What stands beside the number at the present width, from the right: (words, tone)."""
        small = QFontMetricsF(self.font_of(SMALL))
        room = self.width() - QFontMetricsF(self._font()).horizontalAdvance(self.shown.text)
        shown = []
        for text, tone in (("lossy" if self.shown.lossy else "", "warning"), (self.shown.spread, "muted")):
            wide = small.horizontalAdvance(text) + self.px(6)
            if text and wide <= room:
                shown.append((text, tone))
                room -= wide
        return shown

    def paint(self, painter: QPainter, region: QRect) -> None:
        small, font = self.font_of(SMALL), self._font()
        metrics = QFontMetricsF(font)
        baseline = (self.height() + metrics.capHeight()) / 2
        text = "" if self.shown.text == MISSING else self.shown.text
        x = self.width() - metrics.horizontalAdvance(text)
        colour = ink("muted") if self.shown.muted else lane_colour(self.colour_index)
        words(painter, QPointF(x, baseline), text, font, colour)
        for text, tone in self.beside():
            x -= QFontMetricsF(small).horizontalAdvance(text) + self.px(6)
            words(painter, QPointF(x, baseline), text, small, ink(tone))


class _Placed(NamedTuple):
    piece: Piece
    brief: bool
    area: QRectF
    first: bool  # of its row


class FigureLine(Scaled):
    """A lane's figures in one line, or two in a narrow panel: figures bold, words muted, the verdict at the right.

    A figure keeps the room that its widest value in this run took. Where room is short words are shortened first, then
    figures go, from the end; all of them are in the tool tip. The verdict is cut last.
    """

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.pieces: tuple[Piece, ...] = ()
        self.rows = 1
        self.faded = False
        self._slots: dict[str, str] = {}
        self._cache: list[_Placed] | None = None

    def reset(self) -> None:
        """Forget how wide figures were: another run."""
        self._slots = {}
        self.changed()

    def set_rows(self, rows: int) -> None:
        """Take so many lines."""
        if rows != self.rows:
            self.rows = rows
            self.changed()

    def set_pieces(self, pieces: Sequence[Piece], *, faded: bool = False) -> None:
        """Show these; faded ones are of a run before."""
        if (tuple(pieces), faded) == (self.pieces, self.faded):
            return
        self.pieces, self.faded = tuple(pieces), faded
        for piece in self.pieces:
            wide = "".join("8" if char.isdigit() else char for char in piece.value)
            if piece.tone is None and len(wide) > len(self._slots.get(piece.name, "")):
                self._slots[piece.name] = wide
        self.setAccessibleName(_GAP.join(piece.text() for piece in self.pieces))
        self.setAccessibleDescription("\n\n".join(piece.tip for piece in self.pieces))
        self._cache = None
        self.update()

    def changed(self) -> None:
        self._cache = None
        super().changed()

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._cache = None
        super().resizeEvent(event)

    def high(self) -> int:
        return self.rows * self._row_height()

    def shown_text(self) -> str:
        """What is painted at the present width."""
        return _GAP.join(one.piece.text(one.brief) for one in self._placed())

    def tip_at(self, at: QPointF) -> str:
        found = next((one.piece.tip for one in self._placed() if one.area.contains(at)), None)
        return "\n".join(piece.text() for piece in self.pieces) if found is None else found

    # -- layout ------------------------------------------------------------------------------------

    def _row_height(self) -> int:
        return round(QFontMetricsF(self.font_of(LINE)).height())

    def _parts(self, piece: Piece, brief: bool) -> list[tuple[str, bool, float]]:
        """(words, bold, the room they take) of a piece."""
        usual, strong = QFontMetricsF(self.font_of(LINE)), QFontMetricsF(self.font_of(LINE, bold=True))
        space = usual.horizontalAdvance(" ")
        if piece.tone is not None:
            text = visible(piece.text(brief))
            return [(text, False, usual.horizontalAdvance(text))]
        after = piece.short if brief and piece.short is not None else piece.after
        slot = max(strong.horizontalAdvance(self._slots.get(piece.name, "")), strong.horizontalAdvance(piece.value))
        return [
            *([(piece.before, False, usual.horizontalAdvance(piece.before) + space)] if piece.before else []),
            (piece.value, True, slot + (space if after else 0)),
            *([(after, False, usual.horizontalAdvance(after))] if after else []),
        ]

    def _tries(self) -> list[list[tuple[Piece, bool]]]:
        """What may be shown, the fullest first: pieces, each whole or brief."""
        figures = [piece for piece in self.pieces if piece.tone is None]
        verdicts = [piece for piece in self.pieces if piece.tone is not None]
        brief: set[str] = set()
        found = [[(piece, False) for piece in self.pieces]]
        for piece in (*reversed(figures[1:]), *verdicts, *figures[:1]):
            if piece.short is not None and piece.text(True) != piece.text():
                brief.add(piece.name)
                found.append([(one, one.name in brief) for one in self.pieces])
        for count in range(len(figures) - 1, 0, -1):
            found.append([(one, one.name in brief) for one in (*figures[:count], *verdicts)])
        return found

    def _placed(self) -> list[_Placed]:
        if self._cache is None:
            tries = self._tries()
            self._cache = next(
                (made for shown in tries if (made := self._place(shown)) is not None), self._place(tries[-1], cut=True) or []
            )
        return self._cache

    def _place(self, shown: Sequence[tuple[Piece, bool]], cut: bool = False) -> list[_Placed] | None:
        """Lay these out; None where they do not fit (cut: the last one is cut then)."""
        gap, high = QFontMetricsF(self.font_of(LINE)).horizontalAdvance(_GAP), self._row_height()
        made: list[_Placed] = []
        x, row = 0.0, 0
        for piece, brief in shown:
            wide = sum(part[2] for part in self._parts(piece, brief))
            before = gap if x else 0.0
            if x and x + before + wide > self.width() and not (cut and row == self.rows - 1):
                x, before, row = 0.0, 0.0, row + 1
            if not cut and (row >= self.rows or x + before + wide > self.width()):
                return None
            left = max(x + before, self.width() - wide) if piece.tone is not None else x + before
            made.append(_Placed(piece, brief, QRectF(left, row * high, max(0.0, min(wide, self.width() - left)), high), not x))
            x = left + wide
        return made

    def paint(self, painter: QPainter, region: QRect) -> None:
        usual, strong = self.font_of(LINE), self.font_of(LINE, bold=True)
        metrics = QFontMetricsF(usual)
        gap = metrics.horizontalAdvance(_GAP)
        for piece, brief, area, first in self._placed():
            x, baseline = area.left(), area.top() + metrics.ascent()
            if not first and piece.tone is None:
                words(painter, QPointF(x - gap, baseline), _GAP, usual, ink("muted"))
            for text, bold, wide in self._parts(piece, brief):
                tone = piece.tone or ("ink" if bold and not self.faded and text != MISSING else "muted")
                room = min(wide, self.width() - x)
                shown = QFontMetricsF(strong if bold else usual).elidedText(text, _RIGHT_END, room + 0.5)
                words(painter, QPointF(x, baseline), shown, strong if bold else usual, ink(tone))
                x += wide


class LaneBar(Scaled):
    """How far a lane is, in its colour: tokens of its limit, before that its loading or prefill."""

    def __init__(self, colour_index: int) -> None:
        super().__init__()
        self.colour_index = colour_index
        self.fraction: float | None = 0.0
        self.setAccessibleName("Progress")

    def set_progress(self, fraction: float | None) -> None:
        """Show a fraction 0..1, or None for unknown."""
        if fraction != self.fraction:
            self.fraction = fraction
            self.update()

    def set_words(self, text: str) -> None:
        """Say it in words."""
        if text != self.accessibleDescription():
            self.setToolTip(tooltip(text))
            self.setAccessibleDescription(text)

    def high(self) -> int:
        return self.px(4)

    def paint(self, painter: QPainter, region: QRect) -> None:
        area = QRectF(self.rect())
        box(painter, area, None, ink("border"), area.height() / 2)
        part = 0.33 if self.fraction is None else min(max(self.fraction, 0.0), 1.0)
        if part > 0:
            area.setWidth(max(area.height(), area.width() * part))
            box(painter, area, None, lane_colour(self.colour_index), area.height() / 2)


class StateLine(Scaled):
    """Words in one small line, cut where there is no room."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.mark = Mark("")

    def set_mark(self, mark: Mark) -> None:
        """Show these words."""
        if mark != self.mark:
            self.mark = mark
            self.setToolTip(tooltip(mark.tip))
            self.setAccessibleName(mark.text)
            self.update()

    def high(self) -> int:
        return round(QFontMetricsF(self.font_of(SMALL)).height()) + 2

    def paint(self, painter: QPainter, region: QRect) -> None:
        font = self.font_of(SMALL)
        shown = QFontMetricsF(font).elidedText(visible(self.mark.text), _RIGHT_END, self.width())
        words_in(painter, QRectF(self.rect()), shown, font, ink(self.mark.tone))


class Notice(Scaled):
    """What has to be said of a lane, in full: as many lines as it takes, and none where there is nothing to say."""

    MOST = 14

    def __init__(self) -> None:
        super().__init__()
        self.mark = Mark("")
        self.lines: list[str] = []
        self.hide()

    def set_mark(self, mark: Mark) -> None:
        """Say this."""
        if mark != self.mark:
            self.mark = mark
            self.setToolTip(tooltip("\n".join(dict.fromkeys((mark.text, mark.tip)))))
            self.setAccessibleName(mark.text)
            self.setAccessibleDescription(mark.tip)
            self._wrap()
            self.setVisible(bool(mark.text))

    def changed(self) -> None:
        self._wrap()
        super().changed()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self._wrap()

    def _wrap(self) -> None:
        self.lines = wrapped(self.mark.text, self.font_of(LINE), self.width(), self.MOST)
        self.setFixedHeight(max(1, self.high()))
        self.update()

    def high(self) -> int:
        return round(len(self.lines) * QFontMetricsF(self.font_of(LINE)).lineSpacing()) + self.px(4)

    def paint(self, painter: QPainter, region: QRect) -> None:
        font = self.font_of(LINE)
        metrics = QFontMetricsF(font)
        for row, text in enumerate(self.lines):
            words(painter, QPointF(0, row * metrics.lineSpacing() + metrics.ascent()), text, font, ink(self.mark.tone))
