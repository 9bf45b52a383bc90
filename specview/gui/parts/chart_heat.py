"""A chart's heat map: a grid of values as colours around a neutral one, with the values written in where they fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyqtgraph as pg
from numpy.typing import NDArray
from PySide6.QtCore import QPointF, QRectF
from PySide6.QtGui import QColor, QFontMetricsF

from specview.gui.parts import theme
from specview.gui.parts.chart_key import KeyEntry

Numbers = NDArray[np.float64]
CELLS_WITH_VALUES = 160
_ABOVE, _BELOW = np.array([56.0, 140.0, 214.0]), np.array([222.0, 132.0, 50.0])
_KEY_STEPS = 9


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

    def outline(self) -> QRectF:
        """The map's outline in the plot's numbers."""
        (x0, x1), (y0, y1) = ((float(a[0]), float(b[0])) for a, b in (edges(self.x), edges(self.y)))
        return QRectF(x0, y0, x1 - x0, y1 - y0)

    def cell(self, point: QPointF) -> tuple[int, int] | None:
        """The (row, column) at a point of the plot; None outside the map and where it has no value."""
        if not self.z.size:
            return None
        outline = self.outline()
        column = math.floor((point.x() - outline.x()) / outline.width() * len(self.x))
        row = math.floor((point.y() - outline.y()) / outline.height() * len(self.y))
        inside = 0 <= column < len(self.x) and 0 <= row < len(self.y)
        return (row, column) if inside and math.isfinite(self.z[row, column]) else None

    def draw(self, item: Any) -> None:
        """Draw into a pyqtgraph PlotItem."""
        known = self.known
        if not len(known):
            return
        rgb = self._colours(self.z)
        rgb[~np.isfinite(self.z)] = _rgb(theme.current().panel)
        rgba = np.concatenate([rgb, np.full((*self.z.shape, 1), 255.0)], axis=2).astype(np.uint8)
        image = pg.ImageItem(rgba, axisOrder="row-major", levels=(0, 255))
        outline = self.outline()
        image.setRect(outline)
        item.addItem(image, ignoreBounds=True)
        if self.z.size > CELLS_WITH_VALUES or not self._values_fit(item.getViewBox().sceneBoundingRect(), known):
            return  # the readout says them
        bright = (rgb @ [0.299, 0.587, 0.114]) > 125
        xs = np.linspace(outline.left(), outline.right(), 2 * len(self.x) + 1)[1::2]
        ys = np.linspace(outline.top(), outline.bottom(), 2 * len(self.y) + 1)[1::2]
        for row, column in zip(*np.nonzero(np.isfinite(self.z)), strict=True):
            colour = "#101318" if bright[row, column] else "#f4f5f8"
            text = pg.TextItem(self.form(float(self.z[row, column])), color=colour, anchor=(0.5, 0.5))
            text.setFont(theme.ui_font(10))
            text.setPos(xs[column], ys[row])
            item.addItem(text, ignoreBounds=True)

    def key_entry(self) -> KeyEntry | None:
        """The colours from the least value to the greatest; None where there are no two values."""
        known = self.known
        if not len(known) or known.min() == known.max():
            return None
        low, high = float(known.min()), float(known.max())
        colours = self._colours(np.linspace(low, high, _KEY_STEPS)).astype(int)
        ramp = tuple("#" + "".join(f"{part:02x}" for part in colour) for colour in colours)
        return KeyEntry(f"{self.form(low)} to {self.form(high)}", ramp[-1], ramp=ramp)

    def _values_fit(self, area: QRectF, known: Numbers) -> bool:
        """Whether a cell has room for its value."""
        metrics = QFontMetricsF(theme.ui_font(10))
        longest = max(metrics.horizontalAdvance(self.form(float(value))) for value in known)
        wide = area.width() >= len(self.x) * (longest + theme.px(3))
        return wide and area.height() >= len(self.y) * metrics.height()

    def _colours(self, values: Numbers) -> Numbers:
        """RGB [..., 3] of values, 0 to 255."""
        known = self.known
        low, high = float(known.min()), float(known.max())
        middle = low if self.centre is None else self.centre
        reach = max(abs(high - middle), abs(middle - low), 1e-12)
        share = np.clip(np.nan_to_num((values - middle) / reach), -1, 1)[..., None]
        part = np.abs(share)
        mixed: Numbers = _rgb(theme.current().field) * (1 - part) + np.where(share >= 0, _ABOVE, _BELOW) * part
        return mixed


def edges(centres: Numbers) -> tuple[Numbers, Numbers]:
    """The outer edges of cells around evenly spaced centres, as two arrays of one."""
    step = float(centres[1] - centres[0]) if len(centres) > 1 else 1.0
    return centres[:1] - step / 2, centres[-1:] + step / 2


def _rgb(colour: str) -> Numbers:
    made = QColor(colour)
    return np.array([made.red(), made.green(), made.blue()], dtype=np.float64)
