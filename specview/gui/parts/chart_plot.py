"""A chart's plot: pyqtgraph's axes and handles around one item that draws everything else in pixels.

Imported late, pyqtgraph takes half a second: see `Chart.attach`. pyqtgraph's own curve, scatter, bar and text items cost
27 ms a refresh for four plots with five lanes; one item that maps whole arrays to pixels costs a tenth of it, and knows
where words stand.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtCore import QLineF, QPointF, QRectF, Qt
from PySide6.QtGui import (
    QColor,
    QContextMenuEvent,
    QFontMetricsF,
    QImage,
    QPainter,
    QPaintEvent,
    QPen,
    QPolygonF,
    QWheelEvent,
)
from PySide6.QtWidgets import QFrame, QSizePolicy, QStyleOptionGraphicsItem, QWidget

from specview.gui.parts import theme
from specview.gui.parts.chart_data import Heat, Mark, Numbers, Picture, Series, edges, rgb
from specview.gui.parts.lane_markers import DASHES, paint_marker
from specview.gui.state.display_text import visible

CELLS_WITH_VALUES = 160


class Drawing(pg.GraphicsObject):
    """Grid, heat map, series, marks and cursor; `words` are those written last, each with its place in pixels."""

    def __init__(self, picture: Picture) -> None:
        super().__init__()
        self.picture = picture
        self.levels: list[float] = []  # of the grid
        self.words: list[tuple[str, QRectF]] = []
        self._scales = ((1.0, 0.0), (1.0, 0.0))
        self._area = QRectF()

    def boundingRect(self) -> QRectF:
        """The whole view."""
        return QRectF(self.viewRect())

    def viewTransformChanged(self) -> None:
        """Follow the view's range."""
        super().viewTransformChanged()  # forgets the view's old rectangle
        self.prepareGeometryChange()
        self.update()

    def paint(self, painter: QPainter, option: QStyleOptionGraphicsItem, widget: QWidget | None = None) -> None:
        """Draw in pixels."""
        picture, view = self.picture, painter.transform()
        self._scales = (view.m11(), view.dx()), (view.m22(), view.dy())
        self._area = area = view.mapRect(QRectF(self.viewRect()))
        self.words = []
        painter.save()
        painter.resetTransform()
        painter.setPen(QPen(QColor(theme.current().border), 1))
        for level in () if picture.heat is not None else self.levels:
            y = round(level * view.m22() + view.dy())
            painter.drawLine(QLineF(area.left(), y, area.right(), y))
        if picture.heat is not None and len(picture.heat.known):
            self._heat(painter, picture.heat)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
        for s in picture.series.values():
            (self._bars if s.bars else self._curve)(painter, s)
        for s in picture.series.values():  # above all lines
            self._heads(painter, s)
        for s in picture.series.values():
            if s.end:
                self._end(painter, s)
        for mark in picture.marks.values():
            self._mark(painter, mark)
        under = picture.pointed()
        if under is not None and picture.cursor is not None:
            index = picture.cursor[1]
            at = self._px(0, under.x)[index], self._px(1, under.tip)[index]
            if math.isfinite(sum(at)):
                painter.setPen(QPen(QColor(theme.current().focus), 2))
                painter.setBrush(Qt.BrushStyle.NoBrush)
                painter.drawEllipse(QPointF(*at), theme.px(7), theme.px(7))
        painter.restore()

    def _px(self, axis: int, values: Numbers) -> Numbers:
        scale, offset = self._scales[axis]
        pixels: Numbers = self.picture.at(axis, values) * scale + offset
        return pixels

    # -- series ----------------------------------------------------------------------------------

    def _curve(self, painter: QPainter, s: Series) -> None:
        colour, x, y = QColor(s.as_drawn()), self._px(0, s.x), self._px(1, s.y)
        if s.low is not None and s.high is not None:
            low, high = self._px(1, s.low), self._px(1, s.high)
            ok = np.isfinite(x) & np.isfinite(low) & np.isfinite(high)
            if s.spread == "band" and ok.sum() > 1:
                fill = QColor(colour)
                fill.setAlpha(45)
                painter.setPen(Qt.PenStyle.NoPen)
                painter.setBrush(fill)
                painter.drawPolygon(QPolygonF([QPointF(a, b) for a, b in (
                    *zip(x[ok], high[ok], strict=True), *zip(x[ok][::-1], low[ok][::-1], strict=True)
                )]))  # fmt: skip
            else:
                painter.setPen(QPen(colour, 1.2))
                painter.drawLines([QLineF(a, b, a, c) for a, b, c in zip(x[ok], low[ok], high[ok], strict=True)])
        if s.line and len(x) > 1:
            pen = QPen(colour, s.width_px)
            dashes = (5.0, 4.0) if s.dashed else DASHES[(s.lane or 0) % len(DASHES)] if s.lane or s.head else ()
            if dashes:
                pen.setDashPattern(list(dashes))
            painter.setPen(pen)
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawPath(pg.arrayToQPath(x, y, connect="finite"))

    def _heads(self, painter: QPainter, s: Series) -> None:
        """A curve's points, or the shape at its last one."""
        if s.bars or not (s.points or s.head or len(s.x) == 1):
            return
        x, y = self._px(0, s.x), self._px(1, s.y)
        known = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
        edge, colour = QColor(theme.current().panel), QColor(s.as_drawn())
        shape = (s.lane or 0) if s.head else s.shape
        for place in known[-1:] if s.head else known:
            at = QPointF(x[place], y[place])
            if not s.head:
                paint_marker(painter, shape, at, theme.px(9) + 2, edge)  # a rim, so that points on lines are told apart
            paint_marker(painter, shape, at, theme.px(7 if s.head else 9), colour)

    def _bars(self, painter: QPainter, s: Series) -> None:
        half = s.width / 2
        left, right = self._px(0, s.x - half), self._px(0, s.x + half)
        gap = np.minimum((right - left) * 0.08, 1.0)
        begin, end = self._px(1, s.base), self._px(1, s.tip)
        each = [QColor(theme.colour(name)) for name in s.colours or [s.as_drawn()] * len(left)]
        texts = s.texts or [""] * len(left)
        for x0, x1, y0, y1, fill, text in zip(left + gap, right - gap, begin, end, each, texts, strict=True):
            if math.isfinite(x0 + y0 + y1):
                painter.fillRect(QRectF(x0, min(y0, y1), x1 - x0, abs(y1 - y0)), fill)
                if text:
                    box = self._box(text, QPointF((x0 + x1) / 2, min(y0, y1)), 0.5, 1.0)
                    self._write(painter, text, box, "ink")

    def _heat(self, painter: QPainter, heat: Heat) -> None:
        known = np.isfinite(heat.z)
        colours = heat.colours(heat.z)
        colours[~known] = rgb(theme.current().panel)
        cells = np.ascontiguousarray(colours[::-1].astype(np.uint8))  # an image begins at its top
        rows, columns = heat.z.shape
        image = QImage(cells.data, columns, rows, 3 * columns, QImage.Format.Format_RGB888)
        (x0, x1), (y0, y1) = (self._px(axis, np.array(edges(at))) for axis, at in enumerate((heat.x, heat.y)))
        area = QRectF(QPointF(x0, y1), QPointF(x1, y0))
        painter.setRenderHint(QPainter.RenderHint.SmoothPixmapTransform, False)
        painter.drawImage(area, image)
        metrics = QFontMetricsF(theme.ui_font(10))
        longest = max(metrics.horizontalAdvance(heat.form(float(value))) for value in heat.known)
        fits = area.width() >= columns * (longest + theme.px(3)) and area.height() >= rows * metrics.height()
        if heat.z.size > CELLS_WITH_VALUES or not fits:
            return  # the readout says them
        bright = (colours @ [0.299, 0.587, 0.114]) > 125
        for row, column in zip(*np.nonzero(known), strict=True):
            text = heat.form(float(heat.z[row, column]))
            at = QPointF(x0 + (column + 0.5) * (x1 - x0) / columns, y0 + (row + 0.5) * (y1 - y0) / rows)
            ink = "#101318" if bright[row, column] else "#f4f5f8"
            self._write(painter, text, self._box(text, at, 0.5, 0.5), ink, 10)

    # -- words -----------------------------------------------------------------------------------

    def _box(self, text: str, at: QPointF, across: float, down: float) -> QRectF:
        """The room of words; across and down: where in it the point lies, 0 to 1 from its left and its top."""
        metrics = QFontMetricsF(theme.ui_font(10.5))
        wide, high = metrics.horizontalAdvance(visible(text)) + theme.px(4), metrics.height()
        return QRectF(at.x() - across * wide, at.y() - down * high, wide, high)

    def _write(self, painter: QPainter, text: str, box: QRectF, colour: str, size: float = 10.5) -> None:
        painter.setFont(theme.ui_font(size))
        painter.setPen(QColor(theme.colour(colour)))
        painter.drawText(box, Qt.AlignmentFlag.AlignCenter, visible(text))
        self.words.append((text, box))

    def _free(self, box: QRectF) -> bool:
        """Whether no words stand there."""
        return not any(box.intersects(taken) for _, taken in self.words)

    def _end(self, painter: QPainter, s: Series) -> None:
        """Write a curve's name at its right end, further left where another's stands already."""
        x, y = self._px(0, s.x), self._px(1, s.y)
        inside = [QPointF(a, b) for a, b in zip(x[::-1], y[::-1], strict=True)
                  if math.isfinite(a + b) and self._area.adjusted(-1, -1, 1, 1).contains(QPointF(a, b))]  # fmt: skip
        boxes = [self._box(s.end, at, 1.0, 1.0) for at in inside]
        if boxes:
            self._write(painter, s.end, next(filter(self._free, boxes), boxes[0]), s.as_drawn())

    def _mark(self, painter: QPainter, mark: Mark) -> None:
        axis, area = mark.axis, self._area
        place = float(self._px(axis, np.array([mark.value]))[0])
        if not math.isfinite(place):
            return
        pen = QPen(QColor(theme.colour(mark.colour)), 1.2)
        pen.setDashPattern([2.0, 3.0])
        painter.setPen(pen)
        if axis == 0:
            painter.drawLine(QLineF(place, area.top(), place, area.bottom()))
            level = area.bottom() - (mark.at or 0.94) * area.height()
            box = self._box(mark.text, QPointF(place + theme.px(3), level), 0.0, 0.5)
            if box.right() > area.right():
                box.moveRight(place - theme.px(3))
        else:
            painter.drawLine(QLineF(area.left(), place, area.right(), place))
            box = self._beside(mark, place)
        if mark.text:
            self._write(painter, mark.text, box, mark.colour)

    def _beside(self, mark: Mark, level: float) -> QRectF:
        """Where the words of a level mark stand: above or below it, clear of other words and, if possible, of curves."""
        def box(at: float, down: float) -> QRectF:
            return self._box(mark.text, QPointF(self._area.left() + at * self._area.width(), level), 0.5, down)

        if mark.at is not None:
            return box(mark.at, 1.0)
        spots = [box(at, down) for down in (1.0, 0.0) for at in (0.8, 0.5, 0.2)]
        room = self._area.adjusted(-1e6, -1, 1e6, 1)
        free = [one for one in spots if room.contains(one) and self._free(one)]
        drawn = [s for s in self.picture.series.values() if len(s.x)]
        clear = (one for one in free if not any(self._crosses(s, one) for s in drawn))
        return next(clear, (free or spots)[0])  # over a curve rather than over other words

    def _crosses(self, s: Series, box: QRectF) -> bool:
        """Whether a curve, a point of it, or a bar comes into a box."""
        if s.bars:
            begin, end, half = self._px(1, s.base), self._px(1, s.tip), s.width / 2
            across = (self._px(0, s.x - half) <= box.right()) & (self._px(0, s.x + half) >= box.left())
            return bool((across & (np.minimum(begin, end) < box.bottom()) & (np.maximum(begin, end) > box.top())).any())
        x, y = self._px(0, s.x), self._px(1, s.y)
        known = np.isfinite(x) & np.isfinite(y)
        x, y = x[known], y[known]
        if s.line and len(x) > 1:
            order = np.argsort(x)
            along = np.linspace(max(box.left(), float(x.min())), min(box.right(), float(x.max())), 9)
            between = np.interp(along, x[order], y[order])
            if along[0] <= along[-1] and ((between >= box.top()) & (between <= box.bottom())).any():
                return True
        return bool(((x >= box.left()) & (x <= box.right()) & (y >= box.top()) & (y <= box.bottom())).any())


class Plot(pg.PlotWidget):
    """Axes around a drawing, and lines that can be dragged. Mouse and wheel belong to the chart and the page.

    moved(handle's name, value) and released(name) are called while a handle is dragged and when it is let go.
    """

    def __init__(
        self, picture: Picture, moved: Callable[[str, float], None], released: Callable[[str], None]
    ) -> None:
        super().__init__()
        self.picture, self._moved, self._released = picture, moved, released
        self.lines: dict[str, pg.InfiniteLine] = {}
        self.paint_s = 0.0  # processor time that painting took so far
        self.drawing = Drawing(picture)
        self._room: tuple[object, ...] = ()  # for which the grid is
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Ignored)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.viewport().setMouseTracking(True)
        item = self.getPlotItem()
        item.setMenuEnabled(False)
        item.hideButtons()
        self.view = item.getViewBox()
        self.view.setMouseEnabled(x=False, y=False)
        self.view.disableAutoRange()
        item.addItem(self.drawing, ignoreBounds=True)
        self.restyle()

    def restyle(self) -> None:
        """Take the present theme and font size."""
        now = theme.current()
        self.setBackground(QColor(now.panel))
        for side in ("left", "bottom"):
            axis = self.getAxis(side)
            axis.setPen(pg.mkPen(QColor(now.border)))
            axis.setTextPen(pg.mkPen(QColor(now.muted)))
            axis.setTickFont(theme.ui_font(10))
            axis.setStyle(tickLength=3, tickTextOffset=4, hideOverlappingLabels=True, maxTickLevel=0)
            axis.enableAutoSIPrefix(False)
        if self.picture.live:  # they are small
            self.getAxis("bottom").setTickDensity(0.6)
            self.getAxis("bottom").setStyle(tickLength=0)
            self.getAxis("left").setStyle(tickLength=0, hideOverlappingLabels=False)
        self._axes: dict[str, tuple[str, list[tuple[float, str]]]] = {}  # as they are shown

    def show_all(self) -> None:
        """Draw the picture anew: ranges, axes, handles, and the drawing when it is next painted."""
        picture = self.picture
        above = theme.px(24) / max(self.view.height(), 1.0)
        x, y = picture.ranges(above)
        if [list(x), list(y)] != self.view.viewRange():
            self.view.setRange(xRange=x, yRange=y, padding=0, disableAutoRange=True)
        for place, side in enumerate(("bottom", "left")):
            self._show_axis(place, side)
        ticks = picture.ticks.get("y")
        room = y, self.height(), tuple(ticks or ())
        if room != self._room:
            self._room = room
            levels = self.getAxis("left").tickValues(*y, max(self.height() - theme.px(32), 20))
            named = [picture.one(1, value) for value, _ in ticks or ()]
            self.drawing.levels = named or (list(levels[0][1]) if levels else [])
        for side in ("bottom", "left"):
            if picture.names[side == "left"] and not picture.live:
                self.getAxis(side).resizeEvent()  # centres the name: pyqtgraph does when the axis gets another size
        self._show_handles()
        self.drawing.update()

    def _show_axis(self, place: int, side: str) -> None:
        picture, axis, name = self.picture, self.getAxis(side), self.picture.names[place]
        ticks = picture.ticks.get("xy"[place])
        if self._axes.get(side) == (name, ticks or []):
            return  # each change lets pyqtgraph lay out and paint the axis anew
        self._axes[side] = name, list(ticks or ())
        axis.setLogMode(x=picture.log[0], y=picture.log[1])
        # No ranges: even switched off, pyqtgraph scales an axis below 1 by a thousand when it is restyled.
        style = {"color": theme.current().muted, "font-size": f"{theme.px(10)}px"}
        axis.setLabel(name, siPrefixEnableRanges=(), **style) if name else axis.showLabel(False)
        if side == "left":
            axis.setWidth(self._left_width([text for _, text in ticks or ()]))
        else:
            lines = max((text.count("\n") for _, text in ticks or ()), default=0)
            axis.setHeight(theme.px((30 if name and picture.live else 34 if name else 20) + 14 * lines))
        axis.setTicks([[(picture.one(place, value), text) for value, text in ticks]] if ticks else None)
        self.getPlotItem().layout.activate()  # now, or the name stands elsewhere in the first picture

    def _left_width(self, texts: Sequence[str]) -> float:
        """Room for the axis's name and its ticks' names."""
        metrics = QFontMetricsF(theme.ui_font(10))
        longest = max((metrics.horizontalAdvance(text) for text in texts), default=0.0)
        named = bool(self.picture.names[1])
        return max(theme.px(30 if self.picture.live else 52 if named else 36), longest + theme.px(30 if named else 12))

    def _show_handles(self) -> None:
        handles = self.picture.handles
        for name in [name for name in self.lines if name not in handles]:
            self.getPlotItem().removeItem(self.lines.pop(name))
        for name, handle in handles.items():
            line = self.lines.get(name) or self._make_handle(name, handle.axis == 0, handle.text)
            line.setPen(pg.mkPen(QColor(theme.current().focus), width=2))
            line.setHoverPen(pg.mkPen(QColor(theme.current().ink), width=3))
            if handle.text:
                line.label.setFormat(visible(handle.text))
                line.label.setColor(QColor(theme.current().focus))
                line.label.setFont(theme.ui_font(10.5, bold=True))
            if not line.moving:
                line.blockSignals(True)
                line.setBounds([self.picture.one(handle.axis, bound) for bound in (handle.low, handle.high)])
                line.setValue(self.picture.one(handle.axis, handle.value))
                line.blockSignals(False)

    def _make_handle(self, name: str, upright: bool, text: str) -> pg.InfiniteLine:
        line = pg.InfiniteLine(
            angle=90 if upright else 0, movable=True, label=visible(text) or None,
            labelOpts={"position": 0.06 if upright else 0.12, "movable": False,
                       "anchors": [(0, 0.5), (1, 0.5)] if upright else [(0.5, 1), (0.5, 1)]},
        )  # fmt: skip
        line.setCursor(Qt.CursorShape.SizeHorCursor if upright else Qt.CursorShape.SizeVerCursor)
        line.sigPositionChanged.connect(lambda _: self._dragged(name))
        line.sigPositionChangeFinished.connect(lambda _: self._released(name))
        self.lines[name] = line
        self.getPlotItem().addItem(line, ignoreBounds=True)
        return line

    def _dragged(self, name: str) -> None:
        handle, value = self.picture.handles[name], self.lines[name].value()
        handle.value = float(10**value if self.picture.log[handle.axis] else value)
        self._moved(name, handle.value)

    def to_scene(self, s: Series) -> NDArray[np.float64]:
        """A series' points in pixels of the scene, [n, 2]."""
        (x0, x1), (y0, y1) = self.view.viewRange()
        area = self.view.sceneBoundingRect()
        across = area.left() + (self.picture.at(0, s.x) - x0) / (x1 - x0) * area.width()
        down = area.bottom() - (self.picture.at(1, s.tip) - y0) / (y1 - y0) * area.height()
        return np.column_stack([across, down])

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paint, and count the processor time it takes: see `PlotStrip.refresh`."""
        start = time.thread_time()
        super().paintEvent(event)
        self.paint_s += time.thread_time() - start

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        event.ignore()
