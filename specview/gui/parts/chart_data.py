"""What a chart shows, in numbers: series, marks, handles, a heat map, and the ranges that hold them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from specview.files.tables import Column, table_csv
from specview.gui.parts import theme
from specview.gui.parts.plot_data import step_up
from specview.late import late

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray
else:
    np = late("numpy")

Numbers: TypeAlias = "NDArray[np.float64]"
Span = tuple[float, float]
_ABOVE, _BELOW = (56.0, 140.0, 214.0), (222.0, 132.0, 50.0)


@dataclass(slots=True)
class Series:
    """One curve or one set of bars, and how it looks.

    lane             a lane's colour and shape (0 plain, 1 to 4)
    colour           one of the theme's names ('accepted', 'muted', ...), 'phase 0' to 'phase 2', or '#rrggbb'
    line, points     what is drawn of a curve; modelled curves are `dashed`, measured ones solid
    head             a lane's shape at the last point, and in the key in place of a line
    low, high        the spread, as a 'band' or as 'bars'
    bottom, width    where bars begin (0), and how wide they are: one for all, or each
    colours, texts   of bars: a colour for each, a few signs written above each
    tips             per point, what the readout says in place of x and y
    title            what it is called where that is not its name
    value            stands behind its title in the key
    end              a few signs written at a curve's right end, which the key may then leave out (in_key)
    shape            a lane's shape, for points that have a colour of their own
    quiet            it connects other things, and is not pointed at
    """

    bars: bool
    x: Numbers
    y: Numbers
    lane: int | None = None
    colour: str | None = None
    line: bool = True
    dashed: bool = False
    points: bool = False
    head: bool = False
    low: Numbers | None = None
    high: Numbers | None = None
    spread: Literal["band", "bars"] = "band"
    bottom: Numbers | None = None
    width: float | Numbers = 0.8
    colours: Sequence[str] | None = None
    texts: Sequence[str] | None = None
    tips: Sequence[str] | None = None
    title: str = ""
    value: str = ""
    end: str = ""
    in_key: bool = True
    width_px: float = 1.6
    shape: int = 0
    quiet: bool = False

    def as_drawn(self) -> str:
        """The colour, '#rrggbb'."""
        lanes = theme.current().lane_colors
        return lanes[(self.lane or 0) % len(lanes)] if self.colour is None else theme.colour(self.colour)

    @property
    def base(self) -> Numbers:
        """Where bars begin."""
        return np.zeros(len(self.y)) if self.bottom is None else self.bottom

    @property
    def tip(self) -> Numbers:
        """Where each point or bar is pointed at."""
        return self.base + self.y if self.bars else self.y

    def words(self, name: str, index: int) -> str:
        """What the readout says of a point."""
        if self.tips is not None and index < len(self.tips):
            return self.tips[index]
        return f"{self.title or name} · {short(self.x[index])}: {short(self.y[index])}"


@dataclass(slots=True)
class Mark:
    """A dotted line across the chart with a few words: a best k, a break-even. axis 0: at an x, 1: at a y."""

    axis: int
    value: float
    text: str
    colour: str
    at: float | None = None


@dataclass(slots=True)
class Handle:
    """A line that can be dragged; axis as for a mark."""

    axis: int
    value: float
    text: str
    low: float
    high: float


@dataclass(slots=True)
class Heat:
    """z [rows, columns] at x (columns) and y (rows), NaN where there is no value.

    centre: the value with the neutral colour: below it orange, above it blue; without one the least has it.
    """

    x: Numbers
    y: Numbers
    z: Numbers
    centre: float | None
    form: Callable[[float], str]

    @property
    def known(self) -> Numbers:
        """The values that there are."""
        return self.z[np.isfinite(self.z)]

    def cell(self, x: float, y: float) -> tuple[int, int] | None:
        """The (row, column) at a place of the plot; None outside the map and where it has no value."""
        if not self.z.size:
            return None
        (x0, x1), (y0, y1) = edges(self.x), edges(self.y)
        column, row = math.floor((x - x0) / (x1 - x0) * len(self.x)), math.floor((y - y0) / (y1 - y0) * len(self.y))
        inside = 0 <= column < len(self.x) and 0 <= row < len(self.y)
        return (row, column) if inside and math.isfinite(self.z[row, column]) else None

    def colours(self, values: Numbers) -> Numbers:
        """RGB [..., 3] of values, 0 to 255."""
        known = self.known
        low, high = float(known.min()), float(known.max())
        middle = low if self.centre is None else self.centre
        reach = max(abs(high - middle), abs(middle - low), 1e-12)
        share = np.clip(np.nan_to_num((values - middle) / reach), -1, 1)[..., None]
        part = np.abs(share)
        mixed: Numbers = rgb(theme.current().field) * (1 - part) + np.where(share >= 0, _ABOVE, _BELOW) * part
        return mixed


@dataclass(slots=True)
class Picture:
    """All of a chart.

    log: which axes are logarithmic (values at or below 0 are left out). zero: the y axis starts at 0. live: ranges start
    at 0, grow in steps and never shrink until `clear`; floor is then the smallest top of the y axis.
    """

    log: tuple[bool, bool] = (False, False)
    zero: bool = True
    live: bool = False
    floor: float = 0.0
    series: dict[str, Series] = field(default_factory=dict)
    marks: dict[str, Mark] = field(default_factory=dict)
    handles: dict[str, Handle] = field(default_factory=dict)
    heat: Heat | None = None
    ticks: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    fixed: dict[str, Span] = field(default_factory=dict)
    cursor: tuple[str, int] | None = None
    names: tuple[str, str] = ("", "")
    tops: list[float] = field(default_factory=lambda: [1.0, 1.0])

    def clear(self) -> None:
        """Take everything away but the axes."""
        for held in (self.series, self.marks, self.handles, self.ticks):
            held.clear()
        self.heat = self.cursor = None
        self.tops = [1.0, self.floor or 1.0]

    @property
    def has_texts(self) -> bool:
        """Whether something is written above bars."""
        return any(s.texts for s in self.series.values())

    def at(self, axis: int, values: Numbers) -> Numbers:
        """Values in the plot's own coordinates."""
        if not self.log[axis]:
            return values
        out = np.full(len(values), np.nan)
        np.log10(values, out=out, where=values > 0)
        return out

    def one(self, axis: int, value: float) -> float:
        """A value in the plot's own coordinates."""
        return float(self.at(axis, np.array([value]))[0])

    def pointed(self) -> Series | None:
        """The series under the cursor; a cursor on a point that has gone is taken away."""
        s = self.series.get(self.cursor[0]) if self.cursor is not None else None
        if s is None or self.cursor is None or not 0 <= self.cursor[1] < len(s.x):
            self.cursor = None
            return None
        return s

    def ranges(self, above: float) -> tuple[Span, Span]:
        """The ranges of both axes in the plot's own coordinates; above: what words above bars take of the height."""
        xs: list[Numbers] = []
        ys: list[Numbers] = [] if self.log[1] or not self.zero or self.heat is not None else [np.zeros(1)]
        for s in self.series.values():
            half = s.width / 2 if s.bars else 0.0
            xs += [self.at(0, s.x - half), self.at(0, s.x + half)]
            sides = (s.base, s.tip) if s.bars else (s.y, s.low, s.high)
            ys += [self.at(1, edge) for edge in sides if edge is not None]
        lines: list[Mark | Handle] = [*self.marks.values(), *self.handles.values()]
        for line in lines:
            (xs, ys)[line.axis].append(self.at(line.axis, np.array([line.value])))
        if self.heat is not None:
            xs.append(np.array(edges(self.heat.x)))
            ys.append(np.array(edges(self.heat.y)))
        return self._range(0, xs, 0.0), self._range(1, ys, above)

    def _range(self, axis: int, found: list[Numbers], above: float) -> Span:
        fixed = self.fixed.get("xy"[axis])
        if fixed is not None:
            return self.one(axis, fixed[0]), self.one(axis, fixed[1])
        known = np.concatenate([part[np.isfinite(part)] for part in found]) if found else np.zeros(0)
        low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
        if self.live:
            top = self.tops[axis] = max(self.tops[axis], step_up(high) if high > self.tops[axis] else 0.0)
            # A little more than the data: labels of the outermost ticks are left out at the very edge.
            return (-0.03 * top, 1.08 * top) if axis else (0.0, 1.02 * top)
        if high <= low:
            low, high = (low - 0.5, high + 0.5) if low or self.log[axis] else (0.0, 1.0)
        if self.heat is not None:
            return low, high
        room = high - low
        below = 0.03 if axis == 0 or self.log[1] or low < 0 or not self.zero else 0.02
        beyond = 0.09 if axis else 0.03
        if axis and self.has_texts:
            beyond = max(0.16, min(above / (1 - min(above, 0.5)), 1.0))
        return low - room * below, high + room * beyond

    def csv(self) -> str:
        """All values: series, x, y and, where there is one, the spread."""
        names = ("series", self.names[0] or "x", self.names[1] or "y", "low", "high")
        rows: list[tuple[Any, ...]] = []
        for name, s in self.series.items():
            low, high = ([None] * len(s.x) if edge is None else edge for edge in (s.low, s.high))
            rows += [(s.title or name, *values) for values in zip(s.x, s.y, low, high, strict=True)]
        if self.heat is not None:
            for level, line in zip(self.heat.y, self.heat.z, strict=True):
                rows += [("heat map", x, level, value, None) for x, value in zip(self.heat.x, line, strict=True)]
        columns = [Column(name, name, "") for name in names]
        return table_csv(columns, [dict(zip(names, map(_whole, row), strict=True)) for row in rows])


def edges(centres: Numbers) -> Span:
    """The outer edges of cells around evenly spaced centres."""
    step = float(centres[1] - centres[0]) if len(centres) > 1 else 1.0
    return (float(centres[0]) - step / 2, float(centres[-1]) + step / 2) if len(centres) else (0.0, 1.0)


def rgb(colour: str) -> Numbers:
    """Red, green and blue of '#rrggbb', 0 to 255."""
    return np.array(list(bytes.fromhex(colour[1:])), dtype=np.float64)


def array(values: ArrayLike) -> Numbers:
    """Numbers, NaN for what is None."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        return values.astype(np.float64).ravel()
    return np.array([math.nan if v is None else v for v in np.asarray(values, dtype=object).ravel()], dtype=np.float64)


def short(value: float) -> str:
    """A number in a few signs."""
    if not math.isfinite(value):
        return "–"
    return f"{value:.0f}" if abs(value - round(value)) < 1e-9 and abs(value) < 1e6 else f"{value:.3g}"


def _whole(value: Any) -> Any:
    """A whole number without its point."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
