"""A race painted large: its title, every lane's one big number and its tokens, what the colours mean.

Everything is laid out on a sheet 720 high, whatever the picture's size, in the present theme at the scale SCALE.
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QImage, QPainter

from specview.files.verdict import verdict
from specview.gui.lanes.token_lines import Pointed, TokenLines
from specview.gui.parts import painted, theme
from specview.gui.parts.lane_markers import paint_marker
from specview.gui.state import lane_words
from specview.gui.state.display_text import visible
from specview.gui.state.playhead import Playhead
from specview.gui.state.race_words import standing
from specview.gui.state.token_looks import TokenLooks
from specview.gui.state.view_model import LaneModel, RaceModel

SHEET = 720
SCALE = 1.4
"""Of the theme: a token's text is then 18 of the sheet's 720 high, small print 16."""
_TEXT = 13
_MARGIN, _GAP, _TOP, _HEAD, _FOOT = 22, 14, 60, 112, 52
_NARROW = 250
_SPEEDS = {1 / 8: "an eighth of true speed", 1 / 4: "a quarter of true speed", 1 / 2: "half speed", 1.0: "true speed"}
LEGEND = (
    ("accepted", "accepted: the draft was right"), ("corrected", "corrected: the target's own token"),
    ("bonus", "bonus: one more for free"), ("thrown", "drafts thrown away"),
)  # fmt: skip
"""Each state with what it means, in a few words."""


class Frames:
    """Pictures of a finished race at any moment; the theme must be applied, its scale SCALE.

    title stands at the top; without one the sentence that says who won takes its place at the end.
    """

    def __init__(self, race: RaceModel, size: QSize, *, title: str = "", name: str = "", speed: float = 1.0) -> None:
        self._race, self._size, self._title, self._name = race, size, title, name
        self._pace = _SPEEDS.get(speed, f"{speed:g} times true speed")
        self._playhead = Playhead(race.lanes)
        self._most = max((lane.emitted for lane in race.lanes), default=0) or 1
        self._said = verdict([standing(race, lane) for lane in race.lanes])
        self._winner = lane_words.winner(race)
        self._lines: dict[int, TokenLines] = {}  # laid out so far
        self._scale = size.height() / SHEET
        self._sheet = QRectF(0, 0, size.width() / self._scale, SHEET)

    @property
    def length(self) -> float:
        """How long the race takes on the lanes' own clocks, seconds."""
        return self._playhead.length

    def at(self, seconds: float) -> QImage:
        """The picture at a moment; from the end on with the figures of the end."""
        self._playhead.seek(seconds)
        image = QImage(self._size, QImage.Format.Format_RGB888)
        image.fill(QColor(theme.current().ground))
        painter = QPainter(image)
        try:
            painter.setRenderHints(QPainter.RenderHint.Antialiasing | QPainter.RenderHint.TextAntialiasing)
            painter.scale(self._scale, self._scale)
            self._paint(painter)
        finally:
            painter.end()  # before the image goes, whatever stopped it
        return image

    def restore(self) -> None:
        """Let the race be the finished one again."""
        self._playhead.to_end()

    # -- painting ------------------------------------------------------------------------------------

    def _paint(self, painter: QPainter) -> None:
        sheet, lanes = self._sheet, self._race.lanes
        self._paint_title(painter, QRectF(_MARGIN, 12, sheet.width() - 2 * _MARGIN, _TOP - 20))
        wide = (sheet.width() - 2 * _MARGIN - _GAP * (len(lanes) - 1)) / max(len(lanes), 1)
        for place, lane in enumerate(lanes):
            card = QRectF(_MARGIN + place * (wide + _GAP), _TOP, wide, sheet.height() - _TOP - _FOOT)
            self._paint_lane(painter, card, place, lane)
        self._paint_legend(painter, QRectF(_MARGIN, sheet.height() - _FOOT, sheet.width() - 2 * _MARGIN, _FOOT))

    def _paint_title(self, painter: QPainter, area: QRectF) -> None:
        head, now = self._playhead, theme.current()
        if head.at_end:
            first, second = self._said.sentence, self._said.rest
            if self._title:
                first, second = self._title, first
        else:
            first, second = self._title or self._name, f"{head.seconds:.1f} of {head.length:.1f} s · {self._pace}"
        taken = _one_line(painter, area, first, font(20, bold=True), QColor(now.ink))
        area.setLeft(area.left() + taken + 14)
        _one_line(painter, area, second, font(16), QColor(now.muted))

    def _paint_lane(self, painter: QPainter, card: QRectF, place: int, lane: LaneModel) -> None:
        now, race = theme.current(), self._race
        tint = QColor(now.lane_colors[place % len(now.lane_colors)])
        edge = now.accepted if self._playhead.at_end and lane is self._winner else now.border
        painted.box(painter, card.adjusted(0.5, 0.5, -0.5, -0.5), painted.pen(QColor(edge), 1.5), QColor(now.panel), 10)
        area = card.adjusted(18, 0, -18, 0)
        metrics = race.metrics(lane)
        narrow = area.width() < _NARROW  # then the name has a line of its own
        head = lane_words.headline(lane, race, metrics)
        big, large = head.text, font(32 if narrow else 46, bold=True)
        room = area.width() - 20 if narrow else area.width() - QFontMetricsF(large).horizontalAdvance(big) - 34
        number = QRectF(area.left(), card.top() + (32 if narrow else 8), area.width(), 36 if narrow else 58)
        painted.words_in(painter, number, big, large, tint, painted.RIGHT)
        name = QRectF(area.left() + 20, card.top() + (8 if narrow else 30), room, 28)
        paint_marker(painter, place, QPointF(area.left() + 6, name.center().y()), 12, tint)
        _one_line(painter, name, lane_words.title(lane), font(18, bold=True), QColor(now.ink))
        line = QRectF(area.left(), card.top() + 66, area.width(), 24)
        pieces = lane_words.line(lane, race, metrics)
        if head.lossy:  # it is said wherever the figures are
            pieces = tuple(piece for piece in pieces if piece.tone is None)
            line.setLeft(line.left() + _one_line(painter, line, f"{lane_words.LOSSY} · ", font(16), QColor(now.warning)))
        _one_line(painter, line, _fitting(pieces, line.width()), font(16), QColor(now.muted))
        bar = QRectF(area.left(), card.top() + 96, area.width(), 5)
        painted.box(painter, bar, None, QColor(now.border), 2.5)
        if lane.emitted:
            painted.box(painter, QRectF(bar.topLeft(), QPointF(bar.left() + bar.width() * lane.emitted / self._most, bar.bottom())), None, tint, 2.5)
        painter.setPen(painted.pen(QColor(now.border), 1))
        painter.drawLine(QPointF(card.left() + 1, card.top() + _HEAD), QPointF(card.right() - 1, card.top() + _HEAD))
        self._paint_text(painter, card.adjusted(2, _HEAD + 2, -2, -4), place, lane)

    def _paint_text(self, painter: QPainter, area: QRectF, place: int, lane: LaneModel) -> None:
        """The newest lines that there is room for."""
        lines = self._lines.get(place)
        if lines is None:
            lines = self._lines[place] = TokenLines(int(area.width()), TokenLooks(), _TEXT)
        lines.show(lane)
        over = max(0, lines.height - int(area.height()))
        painter.save()
        painter.setClipRect(area)
        painter.translate(area.topLeft() - QPointF(0, over))
        lines.paint(painter, QRect(0, over, int(area.width()), int(area.height())), None, Pointed())
        painter.restore()

    def _paint_legend(self, painter: QPainter, area: QRectF) -> None:
        from specview.gui.parts.token_paint import TokenStyles

        styles, x, middle = TokenStyles(16 / SCALE), area.left(), area.center().y()
        for kind, text in LEGEND:
            if kind == "thrown":
                mark, small = QRectF(x, middle - 22, 40, 26), font(12)
                painted.words_in(painter, mark, "+2", small, QColor(theme.current().rejected))
                x += QFontMetricsF(small).horizontalAdvance("+2") + 5
                x += _one_line(painter, QRectF(x, middle - 14, area.right() - x, 28), text, font(16), QColor(theme.current().muted))
                continue
            wide = QFontMetricsF(font(16)).horizontalAdvance(text) + 10
            if x + wide > area.right():
                return
            styles.paint_under(painter, kind, x, middle - styles.line_height / 2, wide)
            painted.words_in(painter, QRectF(x + 5, middle - 14, wide, 28), text, font(16), QColor(theme.current().ink))
            x += wide + 16


def font(size: float, *, bold: bool = False) -> QFont:
    """The interface font at so many of the sheet's units."""
    return theme.ui_font(size / theme.font_scale(), bold=bold)


def _one_line(painter: QPainter, area: QRectF, text: str, face: QFont, colour: QColor) -> float:
    """Draw a text in one line, cut where it does not fit; return its width."""
    metrics = QFontMetricsF(face)
    shown = metrics.elidedText(visible(text), Qt.TextElideMode.ElideRight, max(area.width(), 0))
    painted.words_in(painter, area, shown, face, colour)
    return metrics.horizontalAdvance(shown)


def _fitting(pieces: Sequence[lane_words.Piece], room: float) -> str:
    """A lane's line, in fewer words and without its last parts where there is no room."""
    metrics, text = QFontMetricsF(font(16)), ""
    for brief, count in ((False, len(pieces)), *((True, count) for count in range(len(pieces), 0, -1))):
        text = " · ".join(piece.text(brief) for piece in pieces[:count])
        if metrics.horizontalAdvance(visible(text)) <= room:
            break
    return text
