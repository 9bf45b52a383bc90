"""One lane as a room sees it: its name, one huge number, its speed, a bar in its colour, big tokens."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QFrame

from specview.files.figures import MISSING
from specview.gui.lanes.marks import lane_colour
from specview.gui.lanes.token_view import TokenView
from specview.gui.parts import layout, theme
from specview.gui.parts.lane_markers import paint_marker
from specview.gui.parts.painted import Painted, box, ink, pen, words
from specview.gui.present.sizes import LINE, NAME, NUMBER, PAD, Sizes
from specview.gui.state import lane_words, present_words
from specview.gui.state.display_text import visible
from specview.gui.state.view_model import LaneModel, RaceModel

USUAL = "8.8×"
"""The room that a number has in any case, so that nothing jumps."""
EDGE_PX, GAP_PX = 2, 6
_RIGHT_END = Qt.TextElideMode.ElideRight


class Head(Painted):
    """Name, number, speed and bar. Two lines of it are one beside the other where there is room (`stacked` where not)."""

    def __init__(self, index: int, sizes: Sizes) -> None:
        super().__init__()
        self.index, self.sizes = index, sizes
        self.stacked = False
        self.name, self.number, self.muted, self.line, self.fraction = "", MISSING, True, "", 0.0

    def show_words(self, name: str, number: str, muted: bool, line: str) -> None:
        """Show these; paints only where they are new."""
        if (name, number, muted, line) != (self.name, self.number, self.muted, self.line):
            self.name, self.number, self.muted, self.line = name, number, muted, line
            said = "none yet" if number == MISSING else number
            self.setAccessibleName(", ".join(filter(None, (name, f"speedup {said}", line))))
            self.update(0, 0, self.width(), round(self._bar().top()) - 1)

    def show_fraction(self, fraction: float) -> None:
        """Show how far the lane is."""
        if fraction != self.fraction:
            self.fraction = fraction
            self.update(self._bar().toAlignedRect())

    def fit(self, sizes: Sizes, stacked: bool) -> None:
        """Take other sizes."""
        self.sizes, self.stacked = sizes, stacked
        self.changed()

    # -- measures ----------------------------------------------------------------------------------

    @property
    def number_px(self) -> int:
        """Size of the number: smaller where the lane is narrow."""
        size, room, widest = self.sizes.px(NUMBER), self.width() - 2 * self.sizes.px(PAD), self._widest()
        return size if widest <= room or room <= 0 else max(self.sizes.px(NAME), int(size * room / widest))

    def wants(self) -> float:
        """Width at which name and widest number fit beside each other."""
        name = QFontMetricsF(self.sizes.font(NAME, bold=True))
        return name.horizontalAdvance(visible(self.name)) + 2 * self.sizes.px(NAME) + self._widest() + 2 * self.sizes.px(PAD)

    def _widest(self) -> float:
        metrics = QFontMetricsF(self.sizes.font(NUMBER, bold=True))
        return max(metrics.horizontalAdvance(text) for text in (USUAL, self.number))

    def _levels(self) -> tuple[float, float, float]:
        """Baselines of number, name and line."""
        sizes = self.sizes
        number = sizes.px(PAD) + sizes.px(NUMBER) * 0.74
        name = number + (sizes.px(NAME) * 1.35 if self.stacked else 0)
        return number, name, name + sizes.px(LINE) * 1.4

    def _bar(self) -> QRectF:
        sizes = self.sizes
        high = max(3, sizes.px(0.0065))
        return QRectF(sizes.px(PAD), self._levels()[2] + sizes.px(0.014), self.width() - 2 * sizes.px(PAD), high)

    def high(self) -> int:
        return round(self._bar().bottom() + self.sizes.px(0.016))

    def sizeHint(self) -> QSize:
        return QSize(10, self.high())

    # -- painting ----------------------------------------------------------------------------------

    def paint(self, painter: QPainter, region: QRect) -> None:
        sizes, pad = self.sizes, self.sizes.px(PAD)
        colour, bar = lane_colour(self.index), self._bar()
        box(painter, bar, None, ink("border"), bar.height() / 2)
        if self.fraction > 0:
            done = QRectF(bar)
            done.setWidth(max(bar.height(), bar.width() * self.fraction))
            box(painter, done, None, colour, bar.height() / 2)
        if region.bottom() < bar.top() or region.top() < bar.top():
            self._paint_words(painter, sizes, pad, colour)

    def _paint_words(self, painter: QPainter, sizes: Sizes, pad: int, colour: QColor) -> None:
        number_level, name_level, line_level = self._levels()
        number_font = sizes.font(NUMBER, bold=True)
        number_font.setPixelSize(self.number_px)
        width = QFontMetricsF(number_font).horizontalAdvance(self.number)
        if self.number != MISSING:  # a room has no use for a dash of that size
            words(painter, QPointF(self.width() - pad - width, number_level), self.number, number_font,
                  ink("muted") if self.muted else colour)  # fmt: skip
        name_font, line_font = sizes.font(NAME, bold=True), sizes.font(LINE)
        name_metrics, mark = QFontMetricsF(name_font), sizes.px(0.013)
        paint_marker(painter, self.index, QPointF(pad + mark / 2, name_level - name_metrics.xHeight() / 2), mark)
        left = pad + mark * 1.8
        room = self.width() - pad - left - (0 if self.stacked else width + mark)
        name = name_metrics.elidedText(visible(self.name), _RIGHT_END, max(room, 0))
        words(painter, QPointF(left, name_level), name, name_font, ink("ink"))
        line = QFontMetricsF(line_font).elidedText(self.line, _RIGHT_END, self.width() - 2 * pad)
        words(painter, QPointF(pad, line_level), line, line_font, ink("muted"))


class PresentLane(QFrame):
    """A lane of the race, painted anew only where it changed."""

    def __init__(self, race: RaceModel, index: int, sizes: Sizes) -> None:
        super().__init__()
        self.setProperty("kind", "panel")
        self.race, self.index = race, index
        self._shown = -1, -1
        self._winner = False
        self.head = Head(index, sizes)
        self.view = TokenView(self.lane, size=sizes.token)
        self.view.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # keys are the presentation's
        self.view.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.view.viewport().unsetCursor()
        for part in (self.head, self.view):
            part.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.setMouseTracking(True)
        self._whole = layout.column(self.head, (self.view, 1), on=self, gap=GAP_PX, margins=EDGE_PX)
        self.refresh()
        self.refresh_figures()

    @property
    def lane(self) -> LaneModel:
        """The lane shown."""
        return self.race.lanes[self.index]

    def fit(self, sizes: Sizes, stacked: bool) -> None:
        """Take other sizes."""
        self.head.fit(sizes, stacked)
        self.view.set_size(sizes.token)
        self._keep_lines_whole()

    def _keep_lines_whole(self) -> None:
        """Let the text, scrolled to its end, begin with a whole line."""
        room = self.contentsRect().height() - self.head.high() - GAP_PX - 2 * EDGE_PX
        spare = max(room - self.view.lines.pad, 0) % self.view.lines.pitch
        self._whole.setContentsMargins(EDGE_PX, EDGE_PX, EDGE_PX, EDGE_PX + spare)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._keep_lines_whole()

    def refresh(self) -> None:
        """Show new tokens, and how far the lane is."""
        lane = self.lane
        if self.view.lane is not lane:
            self.view.set_lane(lane)
            self.view.name()
            self._shown = -1, -1
        if (lane.generation, lane.version) != self._shown:
            self._shown = lane.generation, lane.version
            self.view.refresh()
            self.head.show_fraction(lane_words.progress(lane)[0] or 0.0)
            if not lane.rounds or lane.state == "ended":
                self.refresh_figures()  # what is said before the first round, and at the end, does not wait

    def refresh_figures(self) -> None:
        """Show the figures as they stand."""
        lane, race = self.lane, self.race
        metrics = race.metrics(lane)
        shown = lane_words.headline(lane, race, metrics)
        self.head.show_words(lane_words.title(lane), shown.text, shown.muted, present_words.line(lane, race, metrics))
        self.setAccessibleName(f"Lane {lane_words.title(lane)}")
        won = lane_words.winner(race) is lane
        if won != self._winner:
            self._winner = won
            self.setAccessibleDescription("The fastest lane" if won else "")
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Besides its frame a line under the head, and round the fastest lane an edge in its colour."""
        super().paintEvent(event)
        painter, now = QPainter(self), theme.current()
        under = self.head.geometry().bottom() + 1
        painter.fillRect(1, under, self.width() - 2, 1, QColor(now.border))
        if self._winner:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            box(painter, QRectF(self.rect()).adjusted(1, 1, -1, -1), pen(lane_colour(self.index), 2), None, 7)
