"""Charts of the pages beside the race: curves with spread, bars, heat maps, marks and draggable handles in our looks.

Import this late (a page's module does): pyqtgraph takes half a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyqtgraph as pg
from numpy.typing import ArrayLike, NDArray
from PySide6.QtCore import QPointF, QSize, Qt, QTimer, Signal
from PySide6.QtGui import (
    QColor,
    QContextMenuEvent,
    QFocusEvent,
    QFontMetricsF,
    QKeyEvent,
    QMouseEvent,
    QPainterPath,
    QResizeEvent,
    QTransform,
    QWheelEvent,
)
from PySide6.QtWidgets import (
    QFileDialog,
    QFrame,
    QMenu,
    QSizePolicy,
    QStackedLayout,
    QToolButton,
    QWidget,
)

from specview.errors import SpecviewError
from specview.files.atomic import OutputFile
from specview.files.tables import Column, table_csv
from specview.gui.parts import layout, theme
from specview.gui.parts.chart_files import as_png, as_svg
from specview.gui.parts.chart_heat import Heat, edges
from specview.gui.parts.chart_key import ChartKey, KeyEntry
from specview.gui.parts.lane_markers import DASHES, marker
from specview.gui.parts.plots import Headline
from specview.gui.parts.widgets import ElidedLabel, label
from specview.gui.state.display_text import tooltip, visible

Numbers = NDArray[np.float64]
Kind = Literal["curve", "bars"]
_NEAR_PX = 40
_WORDS_WIDE, _WORDS_TALL = 0.12, 0.15
"""What a few words take of a plot, generously: of its width, of its height."""


@dataclass(slots=True)
class _Series:
    """One curve or one set of bars, as given."""

    kind: Kind
    x: Numbers
    y: Numbers
    lane: int | None = None
    colour: str | None = None
    line: bool = True
    dashed: bool = False
    points: bool = False
    low: Numbers | None = None
    high: Numbers | None = None
    spread: Literal["band", "bars"] = "band"
    bottom: Numbers | None = None
    width: float = 0.8
    colours: tuple[str, ...] | None = None
    tips: tuple[str, ...] | None = None
    texts: tuple[str, ...] | None = None
    in_key: bool = True
    width_px: float = 1.6
    shape: int = 0  # of its points: a lane's
    end: str = ""  # written at its right end
    quiet: bool = False  # a part of the drawing that has nothing to say: not pointed at

    def as_drawn(self) -> str:
        """The colour, '#rrggbb'."""
        now = theme.current()
        if self.colour is not None:
            return str(getattr(now, self.colour, self.colour))
        return now.lane_colors[(self.lane or 0) % len(now.lane_colors)]


@dataclass(slots=True)
class _Mark:
    """A line across the chart with a few words: a best k, a break-even. axis 0: at an x, 1: at a y."""

    axis: int
    value: float
    text: str
    colour: str
    at: float | None = None


@dataclass(slots=True)
class _Handle:
    """A line that can be dragged; axis as for a mark."""

    axis: int
    value: float
    text: str
    low: float
    high: float


class _Plot(pg.PlotWidget):
    """The plot proper; mouse and wheel belong to the chart and the page."""

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        event.ignore()


class Chart(QFrame):
    """A card with a title, its formula, a key and a plot.

    x, y        names of the axes, with units
    log_x, log_y  logarithmic axes (values at or below 0 are left out)
    zero        the y axis starts at 0 (not on a logarithmic one)

    Series are named; giving one again replaces it. `picked(name, index)`: a point or bar was clicked, or chosen with
    the arrow keys and Enter; `cell_picked(row, column)`: a cell of the heat map was clicked. `moved(name, value)`: a handle is being dragged, `released(name)`: it was let go. Under the pointer and with the arrow keys
    the nearest point's values stand beside the title.
    """

    picked = Signal(str, int)
    cell_picked = Signal(int, int)
    moved = Signal(str, float)
    released = Signal(str)

    def __init__(
        self,
        title: str,
        formula: str = "",
        tip: str = "",
        *,
        x: str = "",
        y: str = "",
        log_x: bool = False,
        log_y: bool = False,
        zero: bool = True,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setProperty("kind", "panel")
        self.title, self.x_name, self.y_name = title, x, y
        self._log = (log_x, log_y)
        self._zero = zero
        self._series: dict[str, _Series] = {}
        self._marks: dict[str, _Mark] = {}
        self._handles: dict[str, _Handle] = {}
        self._heat: Heat | None = None
        self._ticks: dict[str, list[tuple[float, str]]] = {}
        self._fixed: dict[str, tuple[float, float]] = {}
        self._lines: dict[str, Any] = {}
        self._cursor: tuple[str, int] | None = None
        self._ring: Any = None
        self._dirty = False
        self.headline = Headline(title, formula)
        if tip:
            self.headline.setToolTip(tooltip(tip))
        self.readout = ElidedLabel("", "small")
        self.readout.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.key = ChartKey()
        self.menu_button = QToolButton()
        self.menu_button.setText("⋯")
        self.menu_button.setProperty("kind", "caption")
        self.menu_button.setToolTip("Save this plot, or its values")
        self.menu_button.setAccessibleName(f"Save the plot {title}")
        self.menu_button.clicked.connect(
            lambda: self.save_menu().exec(self.menu_button.mapToGlobal(self.menu_button.rect().bottomLeft()))
        )
        self.plot = _Plot()
        self._words = label("", "muted")
        self._words.setWordWrap(True)
        self._words.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._lay_out()
        # One redraw for all that is given in one turn of the event loop.
        self._later = QTimer(self)
        self._later.setSingleShot(True)
        self._later.setInterval(0)
        self._later.timeout.connect(self.redraw)
        theme.signals.changed.connect(self._restyle)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.plot.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.plot.viewport().setMouseTracking(True)
        self.plot.scene().sigMouseMoved.connect(self._hovered)
        self.plot.scene().sigMouseClicked.connect(self._clicked)
        self.setAccessibleName(f"{title}: {y} over {x}" if x and y else title)
        self._restyle()

    def _lay_out(self) -> None:
        self.readout.hide()
        holder = QWidget()
        self._stack = QStackedLayout(holder)
        self._stack.addWidget(self.plot)
        self._stack.addWidget(self._words)
        layout.column(
            layout.row((self.headline, 3), (self.readout, 2), self.menu_button, gap=theme.px(6)), self.key,
            (holder, 1), on=self, gap=theme.px(2), margins=(theme.px(9), theme.px(5), theme.px(7), theme.px(4))
        )
        self.plot.setFrameShape(QFrame.Shape.NoFrame)
        self.plot.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Ignored)
        item = self.plot.getPlotItem()
        item.setMenuEnabled(False)
        item.hideButtons()
        item.getViewBox().setMouseEnabled(x=False, y=False)
        item.getViewBox().disableAutoRange()

    def minimumSizeHint(self) -> QSize:
        """Room for axes and a curve."""
        return QSize(theme.px(180), theme.px(130))

    def sizeHint(self) -> QSize:
        return QSize(theme.px(360), theme.px(240))

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Words have another room then."""
        super().resizeEvent(event)
        if self._heat is not None or self._has_texts() or any(mark.axis == 1 and mark.text for mark in self._marks.values()):
            self._change()

    def _has_texts(self) -> bool:
        return any(s.texts for s in self._series.values())

    # -- data ------------------------------------------------------------------------------------------------

    def curve(
        self,
        name: str,
        x: ArrayLike,
        y: ArrayLike,
        *,
        lane: int | None = None,
        colour: str | None = None,
        line: bool = True,
        dashed: bool = False,
        points: bool = False,
        low: ArrayLike | None = None,
        high: ArrayLike | None = None,
        spread: Literal["band", "bars"] = "band",
        tips: Sequence[str] | None = None,
        in_key: bool = True,
        width_px: float = 1.6,
        shape: int | None = None,
        end: str = "",
        quiet: bool = False,
    ) -> None:
        """Draw a curve (line), its points (points), or both; NaN leaves a gap.

        lane gives a lane's colour and shape (0 plain, 1 to 4); colour is one of the theme's names ('accepted', 'muted', ...)
        or '#rrggbb'. Modelled curves are dashed, measured ones solid. low and high are drawn as a band or as bars. tips:
        per point, what the readout says instead of x and y. shape: a lane's shape for points that have a colour of their own.
        end: a few signs written at the curve's right end, which the key may then leave out (in_key). quiet: it connects
        other things, and is not pointed at.
        """
        made = _Series("curve", _array(x), _array(y), lane, colour, line, dashed, points)
        made.low, made.high = (None if v is None else _array(v) for v in (low, high))
        made.spread, made.in_key, made.width_px = spread, in_key, width_px
        made.tips = None if tips is None else tuple(tips)
        made.shape = (lane or 0) if shape is None else shape
        made.end, made.quiet = end, quiet
        if len(made.x) != len(made.y):
            raise ValueError(f"{name}: {len(made.x)} x and {len(made.y)} y")
        self._put(name, made)

    def bars(
        self,
        name: str,
        x: ArrayLike,
        height: ArrayLike,
        *,
        bottom: ArrayLike | None = None,
        width: float = 0.8,
        lane: int | None = None,
        colour: str | None = None,
        colours: Sequence[str] | None = None,
        tips: Sequence[str] | None = None,
        texts: Sequence[str] | None = None,
        in_key: bool = True,
    ) -> None:
        """Draw bars at x, from bottom (0) by height, which may be negative; colours: one per bar instead of one for all.

        texts: a few signs written above each bar.
        """
        made = _Series("bars", _array(x), _array(height), lane, colour, width=width, in_key=in_key)
        made.bottom = None if bottom is None else _array(bottom)
        made.colours = None if colours is None else tuple(colours)
        made.tips = None if tips is None else tuple(tips)
        made.texts = None if texts is None else tuple(texts)
        self._put(name, made)

    def heat(
        self,
        x: ArrayLike,
        y: ArrayLike,
        z: ArrayLike,
        *,
        centre: float | None = None,
        form: Callable[[float], str] = lambda value: f"{value:.2f}",
    ) -> None:
        """Draw z [len(y), len(x)] as a heat map, values written into the cells where they are few.

        centre: the value with the neutral colour (1 for a speedup: below it orange, above it blue).
        """
        self._heat = Heat(_array(x), _array(y), np.asarray(z, dtype=np.float64), centre, form)
        self._change()

    def mark(
        self, name: str, *, x: float | None = None, y: float | None = None, text: str = "", colour: str = "muted",
        at: float | None = None,
    ) -> None:  # fmt: skip
        """Draw a dotted line across at x or at y, with words; at: how far along it they stand, 0 to 1."""
        self._marks[name] = _Mark(*_place(x, y), text, colour, at)
        self._change()

    def handle(
        self, name: str, *, x: float | None = None, y: float | None = None, text: str = "", bounds: tuple[float, float]
    ) -> None:
        """Draw a line at x or y that can be dragged within bounds; `moved` tells where it is."""
        self._handles[name] = _Handle(*_place(x, y), text, *bounds)
        self._change()

    def ticks(self, axis: Literal["x", "y"], ticks: Sequence[tuple[float, str]]) -> None:
        """Name the places of an axis; none brings back numbers."""
        self._ticks[axis] = list(ticks)
        self._change()

    def set_range(self, *, x: tuple[float, float] | None = None, y: tuple[float, float] | None = None) -> None:
        """Fix the ranges; None follows the data."""
        self._fixed = {name: value for name, value in (("x", x), ("y", y)) if value is not None}
        self._change()

    def name_axes(self, x: str | None = None, y: str | None = None) -> None:
        """Rename the axes."""
        self.x_name, self.y_name = self.x_name if x is None else x, self.y_name if y is None else y
        self._change()

    def remove(self, name: str) -> None:
        """Take a series, mark or handle away."""
        self._series.pop(name, None)
        self._marks.pop(name, None)
        self._handles.pop(name, None)
        self._change()

    def clear(self) -> None:
        """Take everything away but the axes."""
        self._series.clear()
        self._marks.clear()
        self._handles.clear()
        self._heat, self._cursor = None, None
        self._ticks.clear()
        self._change()

    def say(self, text: str) -> None:
        """Show words in place of the plot; '' shows the plot."""
        self._words.setText(visible(text) if text else "")
        self._stack.setCurrentWidget(self._words if text else self.plot)
        self.key.setVisible(not text)

    @property
    def names(self) -> list[str]:
        """The series' names."""
        return list(self._series)

    def values(self, name: str) -> tuple[Numbers, Numbers]:
        """A series' x and y as given."""
        return self._series[name].x, self._series[name].y

    def _put(self, name: str, made: _Series) -> None:
        self._series[name] = made
        self._change()

    def _change(self) -> None:
        self._dirty = True
        self._later.start()

    # -- drawing ---------------------------------------------------------------------------------------------

    def _restyle(self) -> None:
        now = theme.current()
        self.plot.setBackground(QColor(now.panel))
        for side in ("left", "bottom"):
            axis = self.plot.getAxis(side)
            axis.setPen(pg.mkPen(QColor(now.border)))
            axis.setTextPen(pg.mkPen(QColor(now.muted)))
            axis.setTickFont(theme.ui_font(10))
            axis.setStyle(tickLength=3, tickTextOffset=4, hideOverlappingLabels=True, maxTickLevel=0)
            axis.enableAutoSIPrefix(False)
        self.plot.getAxis("left").setWidth(theme.px(52 if self.y_name else 36))
        self.headline.updateGeometry()
        self.headline.update()
        self.key.arrange()
        self._change()

    def _at(self, axis: int, values: Numbers) -> Numbers:
        """Values in the plot's own coordinates."""
        if not self._log[axis]:
            return values
        out = np.full(len(values), np.nan)
        np.log10(values, out=out, where=values > 0)
        return out

    def _one(self, axis: int, value: float) -> float:
        return float(self._at(axis, np.array([value]))[0])

    def redraw(self) -> None:
        """Draw all anew; done by itself after every change."""
        self._later.stop()
        self._dirty = False
        now = theme.current()
        item = self.plot.getPlotItem()
        item.clear()
        self._ring = None
        self._lines = {}
        low, high = self._ranges()
        item.getViewBox().setRange(xRange=(low[0], high[0]), yRange=(low[1], high[1]), padding=0, disableAutoRange=True)
        for place, (side, name) in enumerate((("bottom", self.x_name), ("left", self.y_name))):
            axis = self.plot.getAxis(side)
            axis.setLogMode(x=self._log[0], y=self._log[1])
            if name:
                # No ranges: even switched off, pyqtgraph scales an axis below 1 by a thousand when it is restyled.
                axis.setLabel(name, siPrefixEnableRanges=(), **{"color": now.muted, "font-size": f"{theme.px(10)}px"})
                axis.resizeEvent()  # centres the name, which pyqtgraph does only when the axis gets another size
            ticks = self._ticks.get("xy"[place])
            if side == "left":
                axis.setWidth(self._left_width([text for _, text in ticks or ()]))
            else:
                lines = max((text.count("\n") for _, text in ticks or ()), default=0)
                axis.setHeight(theme.px((34 if self.x_name else 20) + 14 * lines))
            axis.setTicks([[(self._one(place, value), text) for value, text in ticks]] if ticks else None)
        item.showGrid(x=False, y=self._heat is None, alpha=0.18)
        if self._heat is not None:
            self._heat.draw(item)
        ends: list[tuple[float, float]] = []
        for series in self._series.values():
            (self._draw_bars if series.kind == "bars" else self._draw_curve)(item, series)
            if series.end:
                self._draw_end(item, series, ends)
        taken: list[tuple[float, float]] = []
        for mark in self._marks.values():
            self._draw_mark(item, mark, taken)
        for name, handle in self._handles.items():
            self._draw_handle(item, name, handle)
        self.key.show_entries(self._key_entries())
        if self._cursor is not None:
            self._show_cursor(*self._cursor)

    def _key_entries(self) -> list[KeyEntry]:
        entries = [
            KeyEntry(name, s.as_drawn(), s.line, s.dashed, s.kind == "bars", s.shape if s.points else -1)
            for name, s in self._series.items()
            if s.in_key
        ]
        if len(entries) == 1 and not any(s.dashed for s in self._series.values()):
            entries = []  # the title says what it is
        colours = self._heat.key_entry() if self._heat is not None else None
        return [*([colours] if colours else []), *entries]

    def _left_width(self, texts: Sequence[str]) -> float:
        """Room for the axis's name and its ticks' names."""
        metrics = QFontMetricsF(theme.ui_font(10))
        longest = max((metrics.horizontalAdvance(text) for text in texts), default=0.0)
        return max(theme.px(52 if self.y_name else 36), longest + theme.px(30 if self.y_name else 12))

    def _ranges(self) -> tuple[tuple[float, float], tuple[float, float]]:
        xs: list[Numbers] = []
        ys: list[Numbers] = [] if self._log[1] or not self._zero or self._heat is not None else [np.zeros(1)]
        for s in self._series.values():
            half = s.width / 2 if s.kind == "bars" else 0.0
            xs += [self._at(0, s.x - half), self._at(0, s.x + half)]
            bottom = s.bottom if s.bottom is not None else np.zeros(len(s.y))
            if s.kind == "bars":
                ys += [self._at(1, bottom), self._at(1, bottom + s.y)]
            else:
                ys.append(self._at(1, s.y))
                ys += [self._at(1, edge) for edge in (s.low, s.high) if edge is not None]
        across = [(mark.axis, mark.value) for mark in self._marks.values()]
        for axis, value in across + [(handle.axis, handle.value) for handle in self._handles.values()]:
            (xs, ys)[axis].append(self._at(axis, np.array([value])))
        if self._heat is not None:
            xs += [self._at(0, edge) for edge in edges(self._heat.x)]
            ys += [self._at(1, edge) for edge in edges(self._heat.y)]
        lows, highs = [], []
        for place, found in enumerate((xs, ys)):
            fixed = self._fixed.get("xy"[place])
            if fixed is not None:
                low, high = (self._one(place, value) for value in fixed)
            else:
                known = np.concatenate([part[np.isfinite(part)] for part in found]) if found else np.zeros(0)
                low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
                if high <= low:
                    low, high = (low - 0.5, high + 0.5) if low or self._log[place] else (0.0, 1.0)
                if self._heat is None:
                    room = high - low
                    texts = theme.px(24) / max(self.plot.getPlotItem().getViewBox().height(), 1.0)
                    above = (0.16, min(texts / (1 - min(texts, 0.5)), 1.0)) if place == 1 and self._has_texts() else (0.0,)
                    high += room * max((0.03, 0.09)[place], *above)
                    low -= room * (0.03 if place == 0 or self._log[1] or low < 0 or not self._zero else 0.02)
            lows.append(low)
            highs.append(high)
        return (lows[0], lows[1]), (highs[0], highs[1])

    def _draw_curve(self, item: Any, s: _Series) -> None:
        colour = QColor(s.as_drawn())
        x, y = self._at(0, s.x), self._at(1, s.y)
        if s.low is not None and s.high is not None:
            low, high = self._at(1, s.low), self._at(1, s.high)
            ok = np.isfinite(x) & np.isfinite(low) & np.isfinite(high)
            if s.spread == "band" and ok.sum() > 1:
                path = QPainterPath()
                corners = [*zip(x[ok], high[ok], strict=True), *zip(x[ok][::-1], low[ok][::-1], strict=True)]
                path.moveTo(*map(float, corners[0]))
                for corner in corners[1:]:
                    path.lineTo(*map(float, corner))
                path.closeSubpath()
                fill = QColor(colour)
                fill.setAlpha(45)
                shape = pg.QtWidgets.QGraphicsPathItem(path)
                shape.setPen(pg.mkPen(None))
                shape.setBrush(pg.mkBrush(fill))
                item.addItem(shape, ignoreBounds=True)
            elif ok.any():
                middle = np.where(np.isfinite(y), y, (low + high) / 2)
                item.addItem(
                    pg.ErrorBarItem(x=x[ok], y=middle[ok], top=(high - middle)[ok], bottom=(middle - low)[ok],
                                    beam=0.0, pen=pg.mkPen(colour, width=1.2)),
                    ignoreBounds=True,
                )  # fmt: skip
        if s.line and len(x) > 1:
            pen = pg.mkPen(colour, width=s.width_px)
            if s.dashed:
                pen.setDashPattern([5.0, 4.0])
            elif s.lane and DASHES[s.lane % len(DASHES)]:
                pen.setDashPattern(list(DASHES[s.lane % len(DASHES)]))
            item.addItem(pg.PlotCurveItem(x, y, pen=pen, connect="finite", antialias=True), ignoreBounds=True)
        if s.points or len(x) == 1:
            ok = np.isfinite(x) & np.isfinite(y)
            item.addItem(
                pg.ScatterPlotItem(x=x[ok], y=y[ok], symbol=_symbol(s.shape), size=theme.px(9), brush=pg.mkBrush(colour),
                                   pen=pg.mkPen(QColor(theme.current().panel), width=1)),
                ignoreBounds=True,
            )  # fmt: skip

    def _draw_end(self, item: Any, s: _Series, taken: list[tuple[float, float]]) -> None:
        """Write a curve's name at its right end, further left where another's stands already."""
        x, y = self._at(0, s.x), self._at(1, s.y)
        inside = np.flatnonzero(np.isfinite(x) & np.isfinite(y) & self._in_view(x, y))
        if not len(inside):
            return
        (x0, x1), (y0, y1) = self.plot.getPlotItem().getViewBox().viewRange()
        places = [(float(x[i]), float(y[i])) for i in inside[::-1]]
        free = (
            place for place in places
            if all(abs(place[0] - a) > _WORDS_WIDE * (x1 - x0) or abs(place[1] - b) > _WORDS_TALL * (y1 - y0) for a, b in taken)
        )  # fmt: skip
        place = next(free, places[0])
        taken.append(place)
        words = pg.TextItem(visible(s.end), color=QColor(s.as_drawn()), anchor=(1.0, 1.0))
        words.setFont(theme.ui_font(10))
        words.setPos(*place)
        item.addItem(words, ignoreBounds=True)

    def _in_view(self, x: Numbers, y: Numbers) -> NDArray[np.bool_]:
        (x0, x1), (y0, y1) = self.plot.getPlotItem().getViewBox().viewRange()
        return (x >= x0) & (x <= x1) & (y >= y0) & (y <= y1)

    def _draw_bars(self, item: Any, s: _Series) -> None:
        bottom = s.bottom if s.bottom is not None else np.zeros(len(s.y))
        ok = np.isfinite(s.x) & np.isfinite(s.y) & np.isfinite(bottom)
        if not ok.any():
            return
        now = theme.current()
        each = [str(getattr(now, c, c)) for c in s.colours] if s.colours is not None else [s.as_drawn()] * len(s.x)
        brushes = [pg.mkBrush(QColor(c)) for c, good in zip(each, ok, strict=True) if good]
        item.addItem(
            pg.BarGraphItem(x=s.x[ok], y0=bottom[ok], height=s.y[ok], width=s.width, brushes=brushes,
                            pen=pg.mkPen(QColor(now.panel), width=0.5)),
            ignoreBounds=True,
        )  # fmt: skip
        for text, x, top in zip(s.texts or (), s.x, np.maximum(bottom, bottom + s.y), strict=False):
            if text and math.isfinite(x) and math.isfinite(top):
                words = pg.TextItem(visible(text), color=QColor(now.ink), anchor=(0.5, 1.0))
                words.setFont(theme.ui_font(10.5))
                words.setPos(x, top)
                item.addItem(words, ignoreBounds=True)

    def _words_at(self, mark: _Mark, taken: list[tuple[float, float]]) -> tuple[float, bool]:
        """Where the words of a level mark stand along it, 0 to 1, and whether above: clear of others' and of curves."""
        view = self.plot.getPlotItem().getViewBox()
        (x0, x1), (y0, y1) = view.viewRange()
        share = min(max(_WORDS_TALL, theme.px(18) / max(view.sceneBoundingRect().height(), 1.0)), 0.4)
        level, tall = self._one(1, mark.value), share * (y1 - y0)
        half = (_WORDS_WIDE / 2 + 0.008 * len(mark.text)) * (x1 - x0) / 2
        drawn = [s for s in self._series.values() if len(s.x)]
        spots = [(at, above, clear) for clear in (True, False) for above in (True, False) for at in (0.8, 0.5, 0.2)]
        for at, above, clear in spots:  # over a curve rather than over other words
            middle = x0 + at * (x1 - x0)
            low, high = (level, level + tall) if above else (level - tall, level)
            if low < y0 or high > y1 or any(abs(at - a) < 0.25 and low < b + tall / 2 and high > b - tall / 2 for a, b in taken):
                continue
            if not (clear and any(self._crosses(s, (middle - half, middle + half), (low, high)) for s in drawn)):
                taken.append((at, (low + high) / 2))
                return at, above
        taken.append((0.8, level + tall / 2))
        return 0.8, True

    def _crosses(self, s: _Series, x: tuple[float, float], y: tuple[float, float]) -> bool:
        """Whether a curve, a point of it, or a bar comes into a box of the plot."""
        if s.kind == "bars":
            begin = s.bottom if s.bottom is not None else np.zeros(len(s.y))
            low, high = self._at(1, np.minimum(begin, begin + s.y)), self._at(1, np.maximum(begin, begin + s.y))
            across = (s.x - s.width / 2 <= x[1]) & (s.x + s.width / 2 >= x[0])
            return bool((across & (low < y[1]) & (high > y[0])).any())
        px, py = self._at(0, s.x), self._at(1, s.y)
        known = np.isfinite(px) & np.isfinite(py)
        px, py = px[known], py[known]
        hit = (px >= x[0]) & (px <= x[1]) & (py >= y[0]) & (py <= y[1])
        if hit.any() or not s.line or len(px) < 2:
            return bool(hit.any())
        order = np.argsort(px)
        along = np.linspace(max(x[0], float(px.min())), min(x[1], float(px.max())), 9)
        between = np.interp(along, px[order], py[order])
        return bool(along[0] <= along[-1] and ((between >= y[0]) & (between <= y[1])).any())

    def _draw_mark(self, item: Any, mark: _Mark, taken: list[tuple[float, float]]) -> None:
        now = theme.current()
        colour = QColor(str(getattr(now, mark.colour, mark.colour)))
        upright = mark.axis == 0
        place = self._one(mark.axis, mark.value)
        if not math.isfinite(place):
            return
        pen = pg.mkPen(colour, width=1.2)
        pen.setDashPattern([2.0, 3.0])
        at, above = (mark.at or 0.94, True)
        if not upright and mark.text and mark.at is None:
            at, above = self._words_at(mark, taken)
        level = (0.5, 1.0 if above else 0.0)
        line = pg.InfiniteLine(
            pos=place, angle=90 if upright else 0, movable=False, pen=pen, label=visible(mark.text) or None,
            labelOpts={"position": at, "color": colour, "movable": False,
                       "anchors": [(0, 0.5), (1, 0.5)] if upright else [level, level]},
        )  # fmt: skip
        if mark.text:
            line.label.setFont(theme.ui_font(10.5))
        item.addItem(line, ignoreBounds=True)

    def _draw_handle(self, item: Any, name: str, handle: _Handle) -> None:
        now = theme.current()
        axis, upright = handle.axis, handle.axis == 0
        line = pg.InfiniteLine(
            pos=self._one(axis, handle.value), angle=90 if upright else 0, movable=True,
            bounds=[self._one(axis, handle.low), self._one(axis, handle.high)],
            pen=pg.mkPen(QColor(now.focus), width=2), hoverPen=pg.mkPen(QColor(now.ink), width=3),
            label=visible(handle.text) or None,
            labelOpts={"position": 0.06 if upright else 0.12, "color": QColor(now.focus), "movable": False,
                       "anchors": [(0, 0.5), (1, 0.5)] if upright else [(0.5, 1), (0.5, 1)]},
        )  # fmt: skip
        if handle.text:
            line.label.setFont(theme.ui_font(10.5, bold=True))
        line.setCursor(Qt.CursorShape.SizeHorCursor if upright else Qt.CursorShape.SizeVerCursor)
        line.sigPositionChanged.connect(lambda _, name=name: self._dragged(name))
        line.sigPositionChangeFinished.connect(lambda _, name=name: self.released.emit(name))
        self._lines[name] = line
        item.addItem(line, ignoreBounds=True)

    def _dragged(self, name: str) -> None:
        handle, line = self._handles[name], self._lines[name]
        handle.value = float(10 ** line.value() if self._log[handle.axis] else line.value())
        self.moved.emit(name, handle.value)

    def is_dragging(self) -> bool:
        """Whether a handle is being dragged now: do not move it from outside meanwhile."""
        return any(line.moving for line in self._lines.values())

    # -- pointing and keys -----------------------------------------------------------------------------------

    def _pixels(self, name: str) -> NDArray[np.float64]:
        """A series' points in scene pixels, [n, 2]."""
        s = self._series[name]
        y = s.y if s.kind == "curve" else s.y + (s.bottom if s.bottom is not None else 0.0)
        view = self.plot.getPlotItem().getViewBox()
        (x0, x1), (y0, y1) = view.viewRange()
        area = view.sceneBoundingRect()
        px = area.left() + (self._at(0, s.x) - x0) / (x1 - x0) * area.width()
        py = area.bottom() - (self._at(1, y) - y0) / (y1 - y0) * area.height()
        return np.column_stack([px, py])

    def nearest(self, where: QPointF) -> tuple[str, int] | None:
        """The point nearest to a place of the scene, (series, index); None where none is near."""
        best: tuple[float, str, int] | None = None
        for name, s in self._series.items():
            if s.quiet or not len(s.x):
                continue
            dx, dy = (self._pixels(name) - (where.x(), where.y())).T
            far = np.hypot(dx, dy)
            if s.kind == "bars":  # the bar that is pointed at, wherever on its height
                view = self.plot.getPlotItem().getViewBox()
                x = view.mapSceneToView(where).x()
                far = np.where(np.abs(s.x - x) <= s.width / 2, np.minimum(far, _NEAR_PX - 1), far)
            if not np.isfinite(far).any():
                continue
            index = int(np.nanargmin(far))
            if far[index] <= _NEAR_PX and (best is None or far[index] < best[0]):
                best = float(far[index]), name, index
        return None if best is None else (best[1], best[2])

    def _hovered(self, where: QPointF) -> None:
        found = self.nearest(where) if self.plot.sceneBoundingRect().contains(where) else None
        if found != self._cursor:
            self._cursor = found
            self._show_cursor(*found) if found is not None else self._hide_cursor()
        if found is None and self._heat is not None:
            self._read_out(self._heat_words(where))

    def _read_out(self, words: str) -> None:
        """Say what is under the pointer; with nothing to say, the title has the whole line."""
        self.readout.set_full(words)
        self.readout.setVisible(bool(words))

    def heat_cell(self, where: QPointF) -> tuple[int, int] | None:
        """The heat map's (row, column) at a place of the scene; None outside it and where it has no value."""
        heat = self._heat
        return None if heat is None else heat.cell(self.plot.getPlotItem().getViewBox().mapSceneToView(where))

    def _heat_words(self, where: QPointF) -> str:
        heat, found = self._heat, self.heat_cell(where)
        if heat is None or found is None:
            return ""
        row, column = found
        names = [
            next((text for value, text in self._ticks.get(axis, ()) if value == place), _short(place))
            for axis, place in (("x", heat.x[column]), ("y", heat.y[row]))
        ]
        return f"{names[0]}, {names[1]}: {heat.form(float(heat.z[row, column]))}"

    def _clicked(self, event: Any) -> None:
        if event.button() != Qt.MouseButton.LeftButton:
            return
        found = self.nearest(event.scenePos())
        if found is not None:
            self._cursor = found
            self._show_cursor(*found)
            self.picked.emit(*found)
        elif (cell := self.heat_cell(event.scenePos())) is not None:
            self.cell_picked.emit(*cell)

    def _hide_cursor(self) -> None:
        self._read_out("")
        if self._ring is not None:
            self._ring.setData([], [])

    def point_at(self, name: str, index: int) -> None:
        """Put the cursor on a point, as if pointed at; a place that does not exist takes it away."""
        self._cursor = (name, index) if name in self._series and 0 <= index < len(self._series[name].x) else None
        self._show_cursor(*self._cursor) if self._cursor is not None else self._hide_cursor()

    def _show_cursor(self, name: str, index: int) -> None:
        s = self._series.get(name)
        if s is None or not 0 <= index < len(s.x):
            self._cursor = None
            self._hide_cursor()
            return
        if s.tips is not None and index < len(s.tips):
            words = s.tips[index]
        else:
            words = f"{name} · {_short(s.x[index])}: {_short(s.y[index])}"
        self._read_out(visible(words))
        if self._ring is None:
            self._ring = pg.ScatterPlotItem(
                size=theme.px(14), pen=pg.mkPen(QColor(theme.current().focus), width=2), brush=None
            )
            self.plot.getPlotItem().addItem(self._ring, ignoreBounds=True)
        y = s.y[index] + (s.bottom[index] if s.bottom is not None else 0.0)
        self._ring.setData([self._one(0, s.x[index])], [self._one(1, float(y))])

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Left and Right go through the points, Up and Down through the series, Enter picks."""
        key = event.key()
        names = [name for name, s in self._series.items() if len(s.x) and not s.quiet]
        if not names or key not in (Qt.Key.Key_Left, Qt.Key.Key_Right, Qt.Key.Key_Up, Qt.Key.Key_Down,
                                    Qt.Key.Key_Return, Qt.Key.Key_Enter):  # fmt: skip
            super().keyPressEvent(event)
            return
        name, index = self._cursor if self._cursor is not None else (names[0], -1)
        if key in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            if index >= 0:
                self.picked.emit(name, index)
            return
        if key in (Qt.Key.Key_Up, Qt.Key.Key_Down):
            name = names[(names.index(name) + (1 if key == Qt.Key.Key_Down else -1)) % len(names)]
            index = max(index, 0)
        else:
            index += 1 if key == Qt.Key.Key_Right else -1
        self.point_at(name, min(max(index, 0), len(self._series[name].x) - 1))

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.setProperty("selected", "true")
        self.style().polish(self)

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.setProperty("selected", "false")
        self.style().polish(self)

    def leaveEvent(self, event: Any) -> None:
        """Forget the point when the pointer goes."""
        super().leaveEvent(event)
        if not self.hasFocus():
            self._cursor = None
            self._hide_cursor()

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        self.save_menu().exec(event.globalPos())

    # -- saving ----------------------------------------------------------------------------------------------

    def save_menu(self) -> QMenu:
        """The menu that saves the plot."""
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        for ending, text in (("png", "Save as PNG…"), ("svg", "Save as SVG…"), ("csv", "Save its values as CSV…")):
            menu.addAction(text).triggered.connect(lambda _=False, ending=ending: self._ask_and_save(ending))
        return menu

    def _ask_and_save(self, ending: str) -> None:
        start = "".join(c if c.isalnum() else "-" for c in self.title.lower()).strip("-")
        name, _ = QFileDialog.getSaveFileName(self, "Save the plot", f"{start}.{ending}", f"*.{ending}")
        if name:
            try:
                self.save(name if Path(name).suffix else f"{name}.{ending}")
            except SpecviewError as error:
                self._read_out(str(error))
                self.readout.setToolTip(tooltip(str(error)))

    def save(self, path: str | Path) -> None:
        """Write the plot as .png, .svg or .csv by the name's ending; raises SpecviewError, the old file intact."""
        ending = Path(path).suffix.lower()
        forms: dict[str, Callable[[], bytes]] = {
            ".png": lambda: as_png(self),
            ".svg": lambda: as_svg(self, self.title),
            ".csv": lambda: self.csv().encode("utf-8"),
        }
        if ending not in forms:
            raise SpecviewError(f"a plot cannot be saved as {ending or 'a file without an ending'!r}.",
                                "Use .png, .svg or .csv.")  # fmt: skip
        if self._dirty:
            self.redraw()
        self.point_at("", -1)
        self.menu_button.hide()
        try:
            data = forms[ending]()
        finally:
            self.menu_button.show()
        with OutputFile(path, "plot") as file:
            file.write(data)

    def csv(self) -> str:
        """All values: series, x, y and, where there is one, the spread."""
        names = ("series", self.x_name or "x", self.y_name or "y", "low", "high")
        rows: list[tuple[Any, ...]] = []
        for name, s in self._series.items():
            none = [None] * len(s.x)
            low, high = (none if edge is None else edge for edge in (s.low, s.high))
            rows += [(name, *values) for values in zip(s.x, s.y, low, high, strict=True)]
        if self._heat is not None:
            for level, line in zip(self._heat.y, self._heat.z, strict=True):
                rows += [("heat map", place, level, value, None) for place, value in zip(self._heat.x, line, strict=True)]
        return table_csv([Column(name, name, "") for name in names], [dict(zip(names, map(_whole, row), strict=True)) for row in rows])

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Take the keyboard."""
        self.setFocus(Qt.FocusReason.MouseFocusReason)
        super().mousePressEvent(event)


def _place(x: float | None, y: float | None) -> tuple[int, float]:
    if (x is None) == (y is None):
        raise ValueError("give x or y")
    return (0, x) if x is not None else (1, float(y or 0.0))


def _array(values: ArrayLike) -> Numbers:
    return np.array([math.nan if v is None else v for v in np.asarray(values, dtype=object).ravel()], dtype=np.float64)


def _symbol(lane: int) -> QPainterPath:
    return QTransform.fromScale(1.0, 1.0).map(marker(lane))


def _whole(value: Any) -> Any:
    """A whole number without its point."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _short(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    return f"{value:.0f}" if abs(value - round(value)) < 1e-9 and abs(value) < 1e6 else f"{value:.3g}"


__all__ = ["Chart", "Kind", "Numbers"]
