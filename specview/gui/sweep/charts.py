"""The plots of a sweep: speedup over k with its prediction, a map, and acceptance by position, workload and along the output."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from specview.decoding.speedup import EIGHTHS
from specview.experiments.sweep_curves import Point, Series, SeriesKey
from specview.experiments.sweep_results import SweepResults
from specview.files.figures import number, times
from specview.gui.parts import layout, theme
from specview.gui.parts.charts import Chart
from specview.gui.parts.widgets import Choice, label, set_tip

MOST_CURVES = 8
_FURTHER_COLOURS = ("accepted", "corrected", "bonus", "rejected")
"""Of the curves beyond the four hues of lanes; their shapes come round again, so that each pair is one curve's."""

DIMENSIONS = {"group": "workload", "lane": "method", "temperature": "temperature"}
PREDICTED = "predicted (modelled)"
BEST = "best k"
UNCONDITIONAL = "of all rounds with a draft"


class SweepCharts(QWidget):
    """Plots of one sweep's results; one dimension of its grid is compared, the others are fixed.

    signals: cell(number): a point of a curve or a cell of the map was clicked.
    """

    cell = Signal(int)

    def __init__(self) -> None:
        super().__init__()
        self.results: SweepResults | None = None
        self._values: dict[str, list[str]] = {name: [] for name in DIMENSIONS}
        self._map: list[list[int | None]] = []
        self._points: dict[str, list[int]] = {}
        self.compare = Choice(tuple((name, f"{words}s") for name, words in DIMENSIONS.items()))
        self.fixed = {name: Choice() for name in DIMENSIONS}
        self.words = label("", "small")
        self.words.setWordWrap(True)
        self.speedup = Chart(
            "Speedup over k", "measured with least to greatest, dashed: predicted",
            "Decode tok/s / plain's in the same race: median of the repeats, bars from the least to the greatest.\n"
            "Predicted: modelled, (1 - α^(k+1)) / ((1 - α)(k c + v(k) + other)) with one α per curve, pooled over k and "
            "repeats, and draft and verify costs as measured.\nA click on a point sets that cell up as a race.",
            x="drafted tokens a round, k", y="speedup, × plain",
        )  # fmt: skip
        self.map = Chart(
            "Map of speedups", "× plain", "Median speedup of each cell: below 1 (orange) plain is faster.\n"
            "A click on a cell sets it up as a race.", x="drafted tokens a round, k", y="temperature", zero=False,
        )  # fmt: skip
        self.positions = Chart(
            "Acceptance by position", "solid: accepted / judged there",
            "At the largest k of each curve. Conditional (solid): accepted at position i / judged at i.\n"
            "Unconditional (dashed): accepted at i / rounds with a draft.",
            x="position in the draft", y="acceptance",
        )  # fmt: skip
        self.content = Chart(
            "α by workload", "accepted / judged", "Acceptance rate α over all k and repeats of a workload.",
            x="workload", y="acceptance α",
        )  # fmt: skip
        self.along = Chart(
            "α along the output", "by eighth", "Accepted / judged in each eighth of the output, over all k and "
            "repeats: a text that settles down, or begins to repeat itself, shows here.",
            x="place in the output, %", y="acceptance α",
        )  # fmt: skip
        self.charts = self.speedup, self.map, self.positions, self.content, self.along
        for chart in (self.positions, self.content, self.along):
            chart.set_range(y=(0.0, 1.15 if chart is self.content else 1.05))  # room for the words above a bar of 1
        self._lay_out()
        self.compare.currentIndexChanged.connect(lambda _: self._chosen())
        self.speedup.picked.connect(self._picked)
        self.map.cell_picked.connect(self._map_picked)
        self._chosen()

    def _lay_out(self) -> None:
        set_tip(self.compare, "What the curves differ by; the rest is chosen beside it")
        self.compare.setAccessibleName("Compare")
        for name, choice in self.fixed.items():
            choice.setAccessibleName(DIMENSIONS[name])
            choice.setSizeAdjustPolicy(Choice.SizeAdjustPolicy.AdjustToContents)
            choice.currentIndexChanged.connect(lambda _: self.refresh())
        gap = theme.px(8)
        layout.column(
            layout.row(label("Compare", "small"), self.compare, *self.fixed.values(), 1, gap=gap), self.words,
            (layout.row((self.speedup, 3), (self.map, 2), gap=gap), 5),
            (layout.row((self.positions, 1), (self.content, 1), (self.along, 1), gap=gap), 4), on=self, gap=theme.px(6)
        )

    # -- what is shown -------------------------------------------------------------------------

    def show_results(self, results: SweepResults | None) -> None:
        """Show another sweep's results."""
        self.results = results
        self._values = _values(results)
        for name, choice in self.fixed.items():
            choice.blockSignals(True)
            choice.set_items(tuple((str(place), text) for place, text in enumerate(self._values[name])))
            choice.setCurrentIndex(0 if self._values[name] else -1)
            choice.blockSignals(False)
        self.compare.blockSignals(True)
        self.compare.set_value(next((name for name in DIMENSIONS if len(self._values[name]) > 1), "group"))
        self.compare.blockSignals(False)
        self._chosen()

    def _chosen(self) -> None:
        for name, choice in self.fixed.items():
            choice.setVisible(name != self.compare.value() and len(self._values[name]) > 1)
        self.refresh()

    def refresh(self) -> None:
        """Draw what the results hold now."""
        results = self.results
        for chart in self.charts:
            chart.clear()
        if results is None or not results.runs:
            for chart in self.charts:
                chart.say("Run a sweep, or open one." if results is None else "Nothing is measured yet.")
            self.words.setText("")
            return
        compared = self.compare.value() or "group"
        keys = [self._key(results, compared, place) for place in range(len(self._values[compared]))]
        curves = dict(zip(self._values[compared], map(results.series, keys[:MOST_CURVES]), strict=False))
        self._draw_speedup(results, curves)
        self._draw_map(results)
        self._draw_positions(results, curves)
        self._draw_content(results)
        self._draw_along(results, curves)
        sentences = [series.sentence() for series in curves.values() if series.points]
        if len(keys) > MOST_CURVES:
            sentences.append(f"{len(keys) - MOST_CURVES} more curves are not drawn: fix another dimension.")
        self.words.setText("   ".join(sentences[:4]))
        self.words.setToolTip("")
        set_tip(self.words, "\n".join(sentences))

    def _key(self, results: SweepResults, name: str, place: int, **other: int) -> SeriesKey:
        """The curve at a place of one dimension, of the others at what is fixed or given."""
        at = {one: max(0, choice.currentIndex()) for one, choice in self.fixed.items()} | other | {name: place}
        return SeriesKey(at["lane"], self._values["group"][at["group"]], results.grid.temperatures[at["temperature"]])

    # -- drawing -------------------------------------------------------------------------------

    def _draw_speedup(self, results: SweepResults, curves: dict[str, Series]) -> None:
        chart, self._points = self.speedup, {}
        drawn = {name: series for name, series in curves.items() if series.points}
        chart.say("" if drawn else "Nothing is measured yet for these curves.")
        if not drawn:
            return
        for place, (name, series) in enumerate(curves.items()):
            points, told = series.points, series.predicted
            if not points:
                continue
            self._points[name] = [self._cell_number(results, series.key, point.k) for point in points]
            chart.curve(
                name, [point.k for point in points], [point.speedup for point in points], **_looks(place), points=True,
                low=[point.low for point in points], high=[point.high for point in points], spread="bars",
                tips=[_point_words(name, point, series) for point in points],
            )  # fmt: skip
            if told:
                chart.curve(
                    f"{name}, predicted", [one.k for one in told], [one.speedup for one in told], **_looks(place), dashed=True,
                    in_key=False, tips=[f"{name}, k {one.k}: predicted {times(one.speedup)}, {times(one.c_alone)} by c alone" for one in told],
                )  # fmt: skip
        if any(series.predicted for series in drawn.values()):
            chart.curve(PREDICTED, [], [], colour="muted", dashed=True)
        best = [(series, point) for series in drawn.values() if (point := series.best) is not None]
        chart.curve(
            BEST, [point.k for _, point in best], [point.speedup for _, point in best], colour="ink", line=False, points=True,
            tips=[series.sentence() for series, _ in best],
        )  # fmt: skip
        self._points[BEST] = [self._cell_number(results, series.key, point.k) for series, point in best]
        chart.mark("plain", y=1.0, text="plain")
        _whole_ticks(chart, [point.k for series in drawn.values() for point in series.points])

    def _draw_map(self, results: SweepResults) -> None:
        over = "temperature" if len(self._values["temperature"]) > 1 else self.compare.value() or "group"
        rows = self._values[over]
        keys = [self._key(results, over, place) for place in range(len(rows))]
        found = [{point.k: point.speedup for point in results.series(key).points} for key in keys]
        ks = sorted({k for row in found for k in row})
        self._map = [[self._cell_number(results, key, k) if k in row else None for k in ks] for key, row in zip(keys, found, strict=True)]
        self.map.say("" if ks else "Nothing is measured yet for this map.")
        if not ks:
            return
        self.map.name_axes(y=DIMENSIONS[over])
        self.map.headline.set_formula(f"× plain, over k and {DIMENSIONS[over]}")
        self.map.heat(range(len(ks)), range(len(rows)), [[row.get(k, math.nan) for k in ks] for row in found], centre=1.0)
        self.map.ticks("x", [(place, str(k)) for place, k in enumerate(ks)])
        self.map.ticks("y", [(place, _short(text)) for place, text in enumerate(rows)])

    def _draw_positions(self, results: SweepResults, curves: dict[str, Series]) -> None:
        chart, longest = self.positions, 0
        for place, (name, series) in enumerate(curves.items()):
            if not series.points:
                continue
            k = series.points[-1].k
            found = results.positions(series.key, k)
            longest = max(longest, len(found))
            at = range(1, len(found) + 1)
            for own, dashed, figures, of in (
                (name, False, [judged for _, judged in found], "of those judged"),
                (f"{name}, all rounds", True, [drafted for drafted, _ in found], "of all rounds with a draft"),
            ):
                tips = [f"{name}, k {k}, position {i}: {number(figure)} {of}" for i, figure in zip(at, figures, strict=True)]
                chart.curve(own, at, _gaps(figures), **_looks(place), points=not dashed, dashed=dashed, in_key=not dashed, tips=tips)
        if longest:
            chart.curve(UNCONDITIONAL, [], [], colour="muted", dashed=True)
            _whole_ticks(chart, range(1, longest + 1))
        chart.say("" if longest else "Nothing was drafted yet.")

    def _draw_content(self, results: SweepResults) -> None:
        groups = self._values["group"]
        several = self.compare.value() == "lane"
        lanes = list(range(len(results.grid.lanes)))[:4] if several else [max(0, self.fixed["lane"].currentIndex())]
        width, drawn = 0.8 / len(lanes), False
        for place, lane in enumerate(lanes):
            alphas = [results.series(self._key(results, "group", group, lane=lane)).alpha for group in range(len(groups))]
            if all(alpha is None for alpha in alphas):
                continue
            drawn = True
            name = results.grid.lane_name(lane)
            self.content.bars(
                name, [group + (place - (len(lanes) - 1) / 2) * width for group in range(len(groups))], _gaps(alphas),
                width=width * 0.9, texts=["" if alpha is None else f"{alpha:.2f}" for alpha in alphas], lane=1 + place,
                tips=[f"{name}, {group}: α {number(alpha)}" for group, alpha in zip(groups, alphas, strict=True)],
            )  # fmt: skip
        self.content.ticks("x", [(place, _short(group)) for place, group in enumerate(groups)])
        self.content.say("" if drawn else "Nothing was judged yet.")

    def _draw_along(self, results: SweepResults, curves: dict[str, Series]) -> None:
        drawn = False
        centres = [100 * (place + 0.5) / EIGHTHS for place in range(EIGHTHS)]
        for place, (name, series) in enumerate(curves.items()):
            found = results.along(series.key)
            if any(alpha is not None for alpha in found):
                drawn = True
                tips = [f"{name}, eighth {i}: α {number(alpha)}" for i, alpha in enumerate(found, 1)]
                self.along.curve(name, centres, _gaps(found), **_looks(place), points=True, tips=tips)
        self.along.ticks("x", [(value, str(value)) for value in (0, 25, 50, 75, 100)])
        self.along.say("" if drawn else "Nothing was judged yet.")

    # -- clicks --------------------------------------------------------------------------------

    def _cell_number(self, results: SweepResults, key: SeriesKey, k: int) -> int:
        cells = results.cells_of(key)
        return next((cell for cell in cells if any(run.k == k for run in results.of_cells(cell))), cells[0]).number

    def _picked(self, name: str, index: int) -> None:
        cells = self._points.get(name, [])
        if index < len(cells):
            self.cell.emit(cells[index])

    def _map_picked(self, row: int, column: int) -> None:
        if row < len(self._map) and column < len(self._map[row]) and (cell := self._map[row][column]) is not None:
            self.cell.emit(cell)


def _values(results: SweepResults | None) -> dict[str, list[str]]:
    """The values of each dimension, in words."""
    if results is None:
        return {name: [] for name in DIMENSIONS}
    grid = results.grid
    return {
        "group": list(dict.fromkeys(prompt.group for prompt in grid.prompts)),
        "lane": [grid.lane_name(lane) for lane in range(len(grid.lanes))],
        "temperature": [f"T {value:g}" for value in grid.temperatures],
    }


def _looks(place: int) -> dict[str, Any]:
    """Colour and shape of a curve: the four hues of lanes, then four more."""
    return {"lane": 1 + place % 4, "colour": None if place < 4 else _FURTHER_COLOURS[place - 4]}


def _whole_ticks(chart: Chart, values: Sequence[int]) -> None:
    """Ticks at whole numbers, not too many."""
    if not values:
        return
    low, high = min(values), max(values)
    step = max(1, math.ceil((high - low) / 12))
    chart.ticks("x", [(value, str(value)) for value in range(low, high + 1, step)])


def _point_words(name: str, point: Point, series: Series) -> str:
    words = f"{name}, k {point.k}: {times(point.speedup)}"
    if point.low != point.high:
        words += f" ({point.low:.2f}–{point.high:.2f})"
    told = series.at(point.k)
    return words if told is None else f"{words}, predicted {times(told.speedup)}"


def _gaps(values: Iterable[float | None]) -> list[float]:
    """Figures to draw: a gap where there is none."""
    return [math.nan if value is None else value for value in values]


def _short(text: str) -> str:
    return text if len(text) <= 14 else f"{text[:13]}…"
