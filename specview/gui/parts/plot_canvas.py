"""One pyqtgraph plot in our looks. Imported late: pyqtgraph takes half a second (see plots.py)."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QLineF, QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QMouseEvent, QPainter, QPaintEvent, QPen, QResizeEvent, QWheelEvent
from PySide6.QtWidgets import QFrame, QSizePolicy, QStyleOptionGraphicsItem, QWidget

from specview.gui.parts import theme
from specview.gui.parts.lane_markers import lane_pen, paint_marker
from specview.gui.parts.plot_data import Bars, Curve, step_up, thinned


class Drawing(pg.GraphicsObject):
    """Grid, curves and bars of one plot in one item.

    pyqtgraph's own curve, scatter, bar and grid items cost 27 ms a refresh for four plots with five
    lanes; one item that maps whole arrays to pixels costs a tenth of it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.curves: dict[int, tuple[Curve, Curve]] = {}
        self.bars: Bars | None = None
        self.grid: list[float] = []

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
        now = theme.current()
        view = painter.transform()
        area = view.mapRect(QRectF(self.viewRect()))
        painter.save()
        painter.resetTransform()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)
        painter.setPen(QPen(QColor(now.border), 1))
        for value in self.grid:
            level = round(value * view.m22() + view.dy())
            painter.drawLine(QLineF(area.left(), level, area.right(), level))
        if self.bars is not None:
            self._paint_bars(painter, self.bars, view.m11(), view.dx(), view.m22(), view.dy())
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, True)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        width = pen_width()
        ends: list[tuple[int, QPointF]] = []
        for lane, (x, y) in self.curves.items():
            px, py = x * view.m11() + view.dx(), y * view.m22() + view.dy()
            painter.setPen(lane_pen(lane, width))
            painter.drawPath(pg.arrayToQPath(px, py, connect="finite"))
            known = np.flatnonzero(np.isfinite(py))
            if len(known):
                ends.append((lane, QPointF(px[known[-1]], py[known[-1]])))
        for lane, point in ends:
            paint_marker(painter, lane, point, theme.px(7))
        painter.restore()

    @staticmethod
    def _paint_bars(painter: QPainter, bars: Bars, sx: float, dx: float, sy: float, dy: float) -> None:
        left, right = bars.left * sx + dx, bars.right * sx + dx
        gap = np.minimum((right - left) * 0.15, 1.5)
        below = np.zeros(len(left))
        draft, verify, other = theme.current().phases
        for phase, colour in ((bars.verify, verify), (bars.draft, draft), (bars.other, other)):
            fill = QColor(colour)
            top = below + phase
            y0, y1 = below * sy + dy, top * sy + dy
            for x0, x1, low, high in zip(left + gap, right - gap, y0, y1, strict=True):
                painter.fillRect(QRectF(x0, high, x1 - x0, low - high), fill)
            below = top


def pen_width() -> float:
    """Return the width of curves: 1, which is drawn three times faster than 2, unless all is scaled up."""
    return 1.0 if theme.font_scale() < 1.5 else 1.6


class Canvas(pg.PlotWidget):
    """A plot that cannot be dragged, whose ranges grow in steps and never shrink within a run."""

    def __init__(self, y_floor: float | None = None, parent: QWidget | None = None) -> None:
        """y_floor: the smallest top of the y axis; None grows with the data alone."""
        super().__init__(parent)
        self._y_floor = y_floor
        self._x_top = self._y_top = 0.0
        self._x_name = ""
        self.paint_s = 0.0
        self.drawing = Drawing()
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Ignored)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        item = self.getPlotItem()
        item.setMenuEnabled(False)
        item.hideButtons()
        item.getViewBox().setMouseEnabled(x=False, y=False)
        item.setContentsMargins(0, 2, 4, 0)
        item.addItem(self.drawing, ignoreBounds=True)
        self.restyle()
        self.reset()

    # -- looks ---------------------------------------------------------------------------------------

    def restyle(self) -> None:
        """Take the present theme and font size."""
        now = theme.current()
        self.setBackground(QColor(now.panel))
        font = theme.ui_font(10)
        for side in ("left", "bottom"):
            axis = self.getAxis(side)
            axis.setPen(pg.mkPen(QColor(now.border)))
            axis.setTextPen(pg.mkPen(QColor(now.muted)))
            axis.setTickFont(font)
            axis.setStyle(
                tickLength=0, autoExpandTextSpace=False, tickTextOffset=4, hideOverlappingLabels=side == "bottom",
                maxTickLevel=0,
            )
        self.getAxis("left").setStyle(tickTextWidth=theme.px(24))
        self.getAxis("left").setWidth(theme.px(30))
        self.getAxis("bottom").setStyle(tickTextHeight=theme.px(13))
        self.getAxis("bottom").setHeight(theme.px(30))
        self.getAxis("bottom").setTickDensity(0.6)
        name, self._x_name = self._x_name, ""
        if name:
            self.name_x(name)
        self.drawing.update()

    def name_x(self, name: str) -> None:
        """Name the x axis, with its unit."""
        if name != self._x_name:
            self._x_name = name
            axis = self.getAxis("bottom")
            axis.enableAutoSIPrefix(False)
            axis.setLabel(name, **{"color": theme.current().muted, "font-size": f"{theme.px(10)}px"})

    # -- data ----------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Empty the plot and start the ranges anew."""
        self.drawing.curves.clear()
        self.drawing.bars = None
        self._x_top = self._y_top = 0.0
        self._grow(1.0, self._y_floor or 1.0)
        self.drawing.update()

    def _grow(self, x: float, y: float) -> None:
        """Widen the ranges to hold x and y."""
        if self._y_floor is not None:
            y = max(y, self._y_floor)
        if x <= self._x_top and y <= self._y_top:
            return
        self._x_top = max(self._x_top, step_up(x))
        self._y_top = max(self._y_top, step_up(y))
        low, high = -0.03 * self._y_top, self._y_top * 1.08
        self.getPlotItem().getViewBox().setRange(
            # A little more than the data: labels of the outermost ticks are left out at the very edge.
            xRange=(0, self._x_top * 1.02), yRange=(low, high), padding=0, disableAutoRange=True
        )
        self._set_grid()

    def _set_grid(self) -> None:
        low, high = self.getPlotItem().getViewBox().viewRange()[1]
        levels = self.getAxis("left").tickValues(low, high, max(self.height() - theme.px(32), 20))
        self.drawing.grid = list(levels[0][1]) if levels else []

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Follow the ticks, which depend on the height."""
        super().resizeEvent(event)
        if hasattr(self, "drawing"):
            self._set_grid()

    def show_curve(self, lane: int, x: Curve, y: Curve, *, whole: bool = False) -> None:
        """Draw a lane's curve; NaN leaves a gap. `whole` draws every point: they are few already."""
        if not whole:
            x, y = thinned(x, y)
        self.drawing.curves[lane] = (x, y)
        known = y[np.isfinite(y)]
        if len(known):
            self._grow(float(x[-1]), float(known.max()))
        self.drawing.update()

    def show_bars(self, data: Bars) -> None:
        """Draw stacked bars of draft, verify and other time."""
        if len(data.left):
            self.drawing.bars = data
            self._grow(float(data.right[-1]), float((data.draft + data.verify + data.other).max()))
            self.drawing.update()

    def drawn(self) -> Mapping[int, tuple[Curve, Curve]]:
        """Return the curves as drawn, by lane."""
        return self.drawing.curves

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paint, and count the processor time it takes: see `PlotStrip.refresh`."""
        start = time.thread_time()
        super().paintEvent(event)
        self.paint_s += time.thread_time() - start

    # -- the mouse belongs to the page ------------------------------------------------------------

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Leave the wheel to what is around."""
        event.ignore()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Do nothing: the plot is not dragged."""
        event.ignore()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """Do nothing."""
        event.ignore()
