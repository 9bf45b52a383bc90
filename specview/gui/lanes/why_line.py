"""The line in a lane's panel that says, once the run is over, why the lane was slower than plain."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QAbstractButton, QSizePolicy

from specview.gui.parts import theme
from specview.gui.parts.painted import RIGHT, box, ink, pen, words, words_in, wrapped
from specview.gui.parts.widgets import set_tip
from specview.gui.state.view_model import LaneModel, RaceModel

MOST_LINES = 2
_FONT = 11
_MORE = "Why ›"


class WhyLine(QAbstractButton):
    """Hidden but for a lane that has ended slower than plain; `asked` when it is pressed."""

    asked = Signal()

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.sentence = ""
        self.lines: list[str] = []
        self._scale = scale
        self._looked: tuple[object, ...] = ()
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setAttribute(Qt.WidgetAttribute.WA_Hover)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.clicked.connect(self.asked)
        self.hide()

    def show_lane(self, lane: LaneModel, race: RaceModel) -> None:
        """Explain the lane where it ended slower than plain; what has not changed is not looked at again."""
        plain, faster = race.baseline, race.speedup(lane)
        slower = faster is not None and faster.slower and plain is not None and lane.state == "ended" and bool(lane.rounds)
        looked = (id(lane), lane.generation, lane.version, slower)
        if looked == self._looked:
            return
        self._looked = looked
        if slower:
            from specview.lab.explain import explain_lane

            self.sentence = explain_lane(lane, race.lanes, plain, race.speedup).sentence
            set_tip(self, f"Slower than plain. {self.sentence}\nOpens the tab Why for this lane.")
            self.setAccessibleName(f"Why is {lane.name} slower than plain?")
            self.fit()
        self.setVisible(slower)

    def fit(self) -> None:
        """Break the sentence at the present width and font."""
        font = theme.ui_font(_FONT * self._scale)
        self.lines = wrapped(self.sentence, font, self.width() - self._pad * 2 - self._more, MOST_LINES)
        self.setFixedHeight(round(max(1, len(self.lines)) * QFontMetricsF(font).height()))
        self.update()

    @property
    def _pad(self) -> int:
        return theme.px(6 * self._scale)

    @property
    def _more(self) -> float:
        return QFontMetricsF(theme.ui_font(_FONT * self._scale)).horizontalAdvance(_MORE) + self._pad

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self.fit()

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, now = QPainter(self), theme.current()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        font, edge = theme.ui_font(_FONT * self._scale), QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5)
        metrics = QFontMetricsF(font)
        box(painter, edge, pen(QColor(now.focus), 1) if self.hasFocus() else None, QColor(now.field), 5)
        pitch = self.height() / max(1, len(self.lines))
        top = (pitch - metrics.height()) / 2 + metrics.ascent()
        for row, text in enumerate(self.lines):
            words(painter, QPointF(self._pad, top + row * pitch), text, font, ink("warning"))
        place = edge.adjusted(0, 0, -self._pad, 0)
        words_in(painter, place, _MORE, font, ink("" if self.underMouse() or self.hasFocus() else "muted"), RIGHT)
