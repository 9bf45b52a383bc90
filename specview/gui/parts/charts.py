"""The one chart of the window: curves with spread, bars, heat maps, marks and draggable handles in our looks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from PySide6.QtCore import QBuffer, QByteArray, QIODevice, QPointF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QContextMenuEvent,
    QFocusEvent,
    QGuiApplication,
    QImage,
    QImageWriter,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QResizeEvent,
)
from PySide6.QtWidgets import QFileDialog, QFrame, QGraphicsView, QMenu, QStackedLayout, QToolButton, QWidget

from specview.errors import SpecviewError
from specview.files.atomic import OutputFile
from specview.gui.link.pace import Later
from specview.gui.parts import layout, theme
from specview.gui.parts.chart_data import Handle, Heat, Mark, Numbers, Picture, Series, array, short
from specview.gui.parts.chart_key import ChartKey, Headline, KeyEntry
from specview.gui.parts.widgets import ElidedLabel, button, label, set_kind
from specview.gui.state.display_text import tooltip, visible
from specview.late import late

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

    from specview.gui.parts.chart_plot import Plot
else:
    np = late("numpy")

SCALE = 2
"""Pixels of a PNG per pixel of the screen."""
_NEAR_PX = 40
_KEY_STEPS = 9


class Chart(QFrame):
    """A card with a title, its formula, a key and a plot.

    x, y        names of the axes, with units
    log_x, log_y  logarithmic axes (values at or below 0 are left out)
    zero        the y axis starts at 0 (not on a logarithmic one)
    live        it is low, and drawn while races run: its ranges grow in steps, up to `floor` at least on the y axis, and never
                shrink until `clear`; its key has values. Its plot is made by `attach`, once pyqtgraph was imported.

    Series are named; giving one again replaces it. `picked(name, index)`: a point or bar was clicked, or chosen with the
    arrow keys and Enter; `cell_picked(row, column)`: a cell of the heat map was clicked. `moved(name, value)`: a handle is
    being dragged, `released(name)`: it was let go. Under the pointer and with the arrow keys the nearest point's values
    stand beside the title.
    """

    picked = Signal(str, int)
    cell_picked = Signal(int, int)
    moved = Signal(str, float)
    released = Signal(str)

    def __init__(
        self, title: str, formula: str = "", tip: str = "", *, x: str = "", y: str = "", log_x: bool = False,
        log_y: bool = False, zero: bool = True, live: bool = False, floor: float = 0.0, parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setProperty("kind", "panel")
        self.title = title
        self.picture = Picture((log_x, log_y), zero, live, floor, names=(x, y))
        self.picture.clear()
        self.plot: Plot | None = None
        self._dirty = False
        self.headline = Headline(title, formula, live)
        self.headline.setToolTip(tooltip(tip))
        self.readout = ElidedLabel("", "small")
        self.readout.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.readout.hide()
        self.key = ChartKey(live)
        self.menu_button = button(QToolButton, "⋯", kind="caption", name=f"Save the plot {title}", slot=lambda: (
            self.save_menu().exec(self.menu_button.mapToGlobal(self.menu_button.rect().bottomLeft()))
        ))  # fmt: skip
        self.menu_button.setToolTip("Save this plot, or its values")
        if live:
            self.menu_button.hide()  # its menu is on the right button alone
        self.menu_button.clicked.connect(
            lambda: self.save_menu().exec(self.menu_button.mapToGlobal(self.menu_button.rect().bottomLeft()))
        )
        self._words = label("Fills as rounds come" if live else "", "small" if live else "muted")
        self._words.setWordWrap(True)
        self._words.setAlignment(Qt.AlignmentFlag.AlignCenter)
        holder = QWidget()
        self._stack = QStackedLayout(holder)
        self._stack.addWidget(self._words)
        # A live chart is low: its key stands beside the title.
        beside = [(self.key, 1)] if live else []
        self.head = layout.row((self.headline, 0 if live else 3), *beside, (self.readout, 2), self.menu_button, gap=theme.px(6))
        below = [] if live else [self.key]
        self._column = layout.column(self.head, *below, (holder, 1), on=self, gap=0 if live else theme.px(2))
        self.more_actions: Callable[[QMenu], object] = lambda menu: None
        # One redraw for all that is given in one turn of the event loop.
        self._later = Later(self, 0, self.redraw)
        theme.signals.changed.connect(self._restyle)
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setAccessibleName(f"{title}: {y} over {x}" if x and y else f"{title}: {formula}" if live else title)
        if not live:
            self.attach()
        self._restyle()

    def attach(self) -> None:
        """Make the plot, where there is none yet; pyqtgraph is imported for it."""
        if self.plot is not None:
            return
        from specview.gui.parts.chart_plot import Plot

        self.plot = Plot(self.picture, self.moved.emit, self.released.emit)
        self._stack.addWidget(self.plot)
        self.plot.scene().sigMouseMoved.connect(self._hovered)
        self.plot.scene().sigMouseClicked.connect(self._clicked)
        self.say(self._words.text())
        self._change()

    def minimumSizeHint(self) -> QSize:
        """Room for axes and a curve."""
        return QSize(theme.px(60), theme.px(60)) if self.picture.live else QSize(theme.px(180), theme.px(130))

    def sizeHint(self) -> QSize:
        return QSize(theme.px(360), theme.px(240))

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Words above bars, and ticks, have another room then."""
        super().resizeEvent(event)
        self.give_room()
        self._change()

    def give_room(self) -> None:
        """Tell a live key what its row has left when the title and what stands beside it have their room."""
        beside = [item.widget() for place in range(self.head.count()) if (item := self.head.itemAt(place)) is not None]
        taken = [one for one in beside if one is not None and not one.isHidden() and one not in (self.key, self.readout)]
        widths = (one.minimumSizeHint().width() if one is self.headline else one.sizeHint().width() for one in taken)
        margins = self._column.contentsMargins()
        self.key.claim(self.width() - margins.left() - margins.right() - sum(widths) - self.head.spacing() * (len(taken) + 1))

    # -- data ------------------------------------------------------------------------------------

    @property
    def x_name(self) -> str:
        """The x axis's name."""
        return self.picture.names[0]

    @property
    def y_name(self) -> str:
        """The y axis's name."""
        return self.picture.names[1]

    def curve(
        self, name: str, x: ArrayLike, y: ArrayLike, *, low: ArrayLike | None = None, high: ArrayLike | None = None,
        shape: int | None = None, **looks: Any,
    ) -> None:
        """Draw a curve (line), its points (points), or both; NaN leaves a gap. Looks are those of `Series`."""
        made = Series(False, array(x), array(y), **looks)
        made.low, made.high = (None if edge is None else array(edge) for edge in (low, high))
        made.shape = (made.lane or 0) if shape is None else shape
        if len(made.x) != len(made.y):
            raise ValueError(f"{name}: {len(made.x)} x and {len(made.y)} y")
        self._put(name, made)

    def bars(self, name: str, x: ArrayLike, height: ArrayLike, *, bottom: ArrayLike | None = None, **looks: Any) -> None:
        """Draw bars at x, from bottom (0) by height, which may be negative. Looks are those of `Series`."""
        made = Series(True, array(x), array(height), **looks)
        made.bottom = None if bottom is None else array(bottom)
        self._put(name, made)

    def _put(self, name: str, made: Series) -> None:
        before = self.picture.series.get(name)
        if before is not None and not made.value:
            made.value = before.value
        self.picture.series[name] = made
        self._change()

    def heat(
        self, x: ArrayLike, y: ArrayLike, z: ArrayLike, *, centre: float | None = None,
        form: Callable[[float], str] = lambda value: f"{value:.2f}",
    ) -> None:
        """Draw z [len(y), len(x)] as a heat map, values written into the cells where they fit.

        centre: the value with the neutral colour (1 for a speedup: below it orange, above it blue).
        """
        self.picture.heat = Heat(array(x), array(y), np.asarray(z, dtype=np.float64), centre, form)
        self._change()

    def mark(
        self, name: str, *, x: float | None = None, y: float | None = None, text: str = "", colour: str = "muted",
        at: float | None = None,
    ) -> None:  # fmt: skip
        """Draw a dotted line across at x or at y, with words; at: how far along it they stand, 0 to 1."""
        self.picture.marks[name] = Mark(*_place(x, y), text, colour, at)
        self._change()

    def handle(
        self, name: str, *, x: float | None = None, y: float | None = None, text: str = "", bounds: tuple[float, float]
    ) -> None:
        """Draw a line at x or y that can be dragged within bounds; `moved` tells where it is."""
        self.picture.handles[name] = Handle(*_place(x, y), text, *bounds)
        self._change()

    def is_dragging(self) -> bool:
        """Whether a handle is being dragged now: do not move it from outside meanwhile."""
        return self.plot is not None and any(line.moving for line in self.plot.lines.values())

    def ticks(self, axis: Literal["x", "y"], ticks: Sequence[tuple[float, str]]) -> None:
        """Name the places of an axis; none brings back numbers."""
        self.picture.ticks[axis] = list(ticks)
        self._change()

    def set_range(self, *, x: tuple[float, float] | None = None, y: tuple[float, float] | None = None) -> None:
        """Fix the ranges; None follows the data."""
        self.picture.fixed = {name: value for name, value in (("x", x), ("y", y)) if value is not None}
        self._change()

    def name_axes(self, x: str | None = None, y: str | None = None) -> None:
        """Rename the axes."""
        self.picture.names = self.x_name if x is None else x, self.y_name if y is None else y
        self._change()

    def set_values(self, values: Mapping[str, str]) -> None:
        """Say the series' last figures in the key."""
        for name, value in values.items():
            if name in self.picture.series:
                self.picture.series[name].value = value
        self.key.show_entries(self._key_entries())

    def remove(self, name: str) -> None:
        """Take a series, mark or handle away."""
        self.picture.series.pop(name, None)
        self.picture.marks.pop(name, None)
        self.picture.handles.pop(name, None)
        self._change()

    def clear(self) -> None:
        """Take everything away but the axes."""
        self.picture.clear()
        self._change()

    def begin(self, why: str = "") -> bool:
        """Draw anew: nothing yet, or `why` in words where there is nothing to draw. Whether there is."""
        self.clear()
        self.say(why)
        return not why

    def say(self, text: str) -> None:
        """Show words in place of the plot; '' shows the plot."""
        if text:
            self._words.setText(visible(text))
        self._stack.setCurrentWidget(self._words if text or self.plot is None else self.plot)
        self.key.setVisible(self.picture.live or not text)

    @property
    def said(self) -> str:
        """What stands in place of the plot, '' where that is shown."""
        return self._words.text() if self._stack.currentWidget() is self._words else ""

    @property
    def names(self) -> list[str]:
        """The series' names."""
        return list(self.picture.series)

    def values(self, name: str) -> tuple[Numbers, Numbers]:
        """A series' x and y as given."""
        return self.picture.series[name].x, self.picture.series[name].y

    # -- drawing ---------------------------------------------------------------------------------

    def _change(self) -> None:
        self._dirty = True
        self._later.ask()

    def redraw(self) -> None:
        """Draw all anew; done by itself after every change."""
        self._later.stop()
        self._dirty = False
        self.key.show_entries(self._key_entries())
        if self.plot is not None:
            self.plot.show_all()
            self._read_out()

    def _restyle(self) -> None:
        self._column.setContentsMargins(theme.px(9), theme.px(5), theme.px(7), theme.px(3 if self.picture.live else 4))
        if self.plot is not None:
            self.plot.restyle()
        self.headline.changed()
        self.key.arrange()
        self._change()

    def _key_entries(self) -> list[KeyEntry]:
        heat, series = self.picture.heat, self.picture.series
        entries = [
            KeyEntry(s.title or name, s.as_drawn(), s.line and not s.bars and not s.head, s.dashed, s.bars,
                     (s.lane or 0) if s.head else s.shape if s.points else -1, value=s.value)
            for name, s in series.items() if s.in_key
        ]  # fmt: skip
        if len(entries) == 1 and not self.picture.live and not any(s.dashed for s in series.values()):
            entries = []  # the title says what it is
        if heat is not None and len(heat.known) and heat.known.min() < heat.known.max():
            low, high = float(heat.known.min()), float(heat.known.max())
            ramp = heat.colours(np.linspace(low, high, _KEY_STEPS)).astype(int)
            names = tuple("#" + "".join(f"{part:02x}" for part in colour) for colour in ramp)
            entries.insert(0, KeyEntry(f"{heat.form(low)} to {heat.form(high)}", names[-1], ramp=names))
        return entries

    # -- pointing and keys -----------------------------------------------------------------------

    def nearest(self, where: QPointF) -> tuple[str, int] | None:
        """The point nearest to a place of the scene, (series, index); None where none is near."""
        best: tuple[float, str, int] | None = None
        for name, s in self.picture.series.items():
            if self.plot is None or s.quiet or not len(s.x):
                continue
            far = np.hypot(*(self.plot.to_scene(s) - (where.x(), where.y())).T)
            if s.bars:  # the bar that is pointed at, wherever on its height
                x = self.plot.view.mapSceneToView(where).x()
                far = np.where(np.abs(s.x - x) <= s.width / 2, np.minimum(far, _NEAR_PX - 1), far)
            if np.isfinite(far).any():
                index = int(np.nanargmin(far))
                if far[index] <= _NEAR_PX and (best is None or far[index] < best[0]):
                    best = float(far[index]), name, index
        return None if best is None else (best[1], best[2])

    def heat_cell(self, where: QPointF) -> tuple[int, int] | None:
        """The heat map's (row, column) at a place of the scene; None outside it and where it has no value."""
        heat = self.picture.heat
        if heat is None or self.plot is None:
            return None
        at = self.plot.view.mapSceneToView(where)
        return heat.cell(at.x(), at.y())

    def point_at(self, name: str, index: int) -> None:
        """Put the cursor on a point, as if pointed at; a place that does not exist takes it away."""
        self.picture.cursor = name, index
        self._read_out()

    def _hovered(self, where: QPointF) -> None:
        assert self.plot is not None
        found = self.nearest(where) if self.plot.sceneBoundingRect().contains(where) else None
        if found != self.picture.cursor or (found is None and self.picture.heat is not None):
            self.picture.cursor = found
            self._read_out("" if found is not None else self._heat_words(where))

    def _clicked(self, event: Any) -> None:
        if event.button() != Qt.MouseButton.LeftButton:
            return
        found = self.nearest(event.scenePos())
        if found is not None:
            self.point_at(*found)
            self.picked.emit(*found)
        elif (cell := self.heat_cell(event.scenePos())) is not None:
            self.cell_picked.emit(*cell)

    def _read_out(self, words: str = "") -> None:
        """Say what is under the cursor, else these words; with nothing to say, the title has the whole line."""
        s = self.picture.pointed()
        if s is not None and self.picture.cursor is not None:
            words = s.words(*self.picture.cursor)
        self.readout.set_full(visible(words))
        self.readout.setVisible(bool(words))
        if self.picture.live:
            self.key.setVisible(not words)
        if self.plot is not None:
            self.plot.drawing.update()

    def _heat_words(self, where: QPointF) -> str:
        heat, found = self.picture.heat, self.heat_cell(where)
        if heat is None or found is None:
            return ""
        row, column = found
        names = [
            next((text for value, text in self.picture.ticks.get(axis, ()) if value == place), short(place))
            for axis, place in (("x", heat.x[column]), ("y", heat.y[row]))
        ]
        return f"{names[0]}, {names[1]}: {heat.form(float(heat.z[row, column]))}"

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Left and Right go through the points, Up and Down through the series, Enter picks."""
        key, series = event.key(), self.picture.series
        names = [name for name, s in series.items() if len(s.x) and not s.quiet]
        steps = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1, Qt.Key.Key_Up: -1, Qt.Key.Key_Down: 1}
        name, index = self.picture.cursor or (names[0] if names else "", -1)
        if names and key in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            if index >= 0:
                self.picked.emit(name, index)
        elif names and key in steps:
            step = steps[Qt.Key(key)]
            if key in (Qt.Key.Key_Up, Qt.Key.Key_Down):
                name, index = names[(names.index(name) + step) % len(names)], max(index, 0)
            else:
                index += step
            self.point_at(name, min(max(index, 0), len(series[name].x) - 1))
        else:
            super().keyPressEvent(event)

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        set_kind(self, "true", "selected")

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        set_kind(self, "false", "selected")

    def leaveEvent(self, event: Any) -> None:
        """Forget the point when the pointer goes."""
        super().leaveEvent(event)
        if not self.hasFocus():
            self.point_at("", -1)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Take the keyboard."""
        self.setFocus(Qt.FocusReason.MouseFocusReason)
        super().mousePressEvent(event)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        self.save_menu().exec(event.globalPos())

    # -- saving ----------------------------------------------------------------------------------

    def save_menu(self) -> QMenu:
        """The menu that saves the plot."""
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        for ending, text in (("png", "Save as PNG…"), ("svg", "Save as SVG…"), ("csv", "Save its values as CSV…")):
            menu.addAction(text).triggered.connect(lambda _=False, ending=ending: self._ask_and_save(ending))
        copy = menu.addAction("Copy as a picture")
        copy.triggered.connect(lambda: QGuiApplication.clipboard().setImage(self._image()))
        self.more_actions(menu)
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
            ".png": self._png, ".svg": lambda: svg_of(self, self.title), ".csv": lambda: self.csv().encode("utf-8"),
        }  # fmt: skip
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
            self.menu_button.setVisible(not self.picture.live)
        with OutputFile(path, "plot") as file:
            file.write(data)

    def csv(self) -> str:
        """All values: series, x, y and, where there is one, the spread."""
        return self.picture.csv()

    def _image(self) -> QImage:
        """The chart as it looks, of twice its size."""
        image = QImage(self.size() * SCALE, QImage.Format.Format_RGB32)
        image.setDevicePixelRatio(SCALE)
        image.fill(QColor(theme.current().panel))
        self.render(image)
        return image

    def _png(self) -> bytes:
        data, buffer = _buffer()
        QImageWriter(buffer, QByteArray(b"png")).write(self._image())
        return bytes(data.data())


def svg_of(widget: QWidget, title: str) -> bytes:
    """A chart, or charts in a widget, as a drawing."""
    from PySide6.QtSvg import QSvgGenerator

    for view in widget.findChildren(QGraphicsView):
        view.setCacheMode(QGraphicsView.CacheModeFlag.CacheNone)  # its ground would be drawn as a picture
    data, buffer = _buffer()
    made = QSvgGenerator()
    made.setOutputDevice(buffer)
    made.setSize(widget.size())
    made.setResolution(96)  # a pixel is a pixel
    made.setViewBox(widget.rect())
    made.setTitle(title)
    painter = QPainter(made)
    try:
        painter.fillRect(widget.rect(), QColor(theme.current().panel))
        widget.render(painter, widget.rect().topLeft())
    finally:
        painter.end()
    return bytes(data.data())


def _buffer() -> tuple[QByteArray, QBuffer]:
    data = QByteArray()
    buffer = QBuffer(data)
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    return data, buffer


def _place(x: float | None, y: float | None) -> tuple[int, float]:
    if (x is None) == (y is None):
        raise ValueError("give x or y")
    return (0, x) if x is not None else (1, float(y or 0.0))


__all__ = ["Chart", "Numbers", "svg_of"]
