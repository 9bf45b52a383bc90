"""The plots of a sweep: speedup over k with its prediction, a map, and acceptance by position, workload and along the output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QWidget

from specview.decoding.speedup import EIGHTHS
from specview.experiments.sweep_curves import Point, Series, SeriesKey
from specview.experiments.sweep_results import SweepResults
from specview.gui.parts import layout, theme
from specview.gui.parts.charts import Chart
from specview.gui.parts.widgets import Choice, label, set_tip

MOST_CURVES = 8
_FURTHER_COLOURS = ("accepted", "corrected", "bonus", "rejected")
"""Of the curves beyond the four hues of lanes; their shapes come round again, so that each pair is one curve's."""

DIMENSIONS = (("group", "workloads"), ("lane", "methods"), ("temperature", "temperatures"))
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
        self._keys: list[SeriesKey] = []
        self._names: list[str] = []
        self._map: list[list[int | None]] = []
        self._points: dict[str, list[int]] = {}
        self.compare = Choice(DIMENSIONS)
        self.fixed = {name: Choice() for name, _ in DIMENSIONS}
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
        for chart in (self.positions, self.content, self.along):
            chart.set_range(y=(0.0, 1.15 if chart is self.content else 1.05))  # room for the words above a bar of 1
        self._lay_out()
        self.compare.currentIndexChanged.connect(lambda _: self._chosen())
        for choice in self.fixed.values():
            choice.currentIndexChanged.connect(lambda _: self.refresh())
        self.speedup.picked.connect(self._picked)
        self.map.cell_picked.connect(self._map_picked)
        self._chosen()

    @property
    def charts(self) -> tuple[Chart, ...]:
        """All plots."""
        return self.speedup, self.map, self.positions, self.content, self.along

    def _lay_out(self) -> None:
        set_tip(self.compare, "What the curves differ by; the rest is chosen beside it")
        self.compare.setAccessibleName("Compare")
        choosers = layout.row(label("Compare", "small"), self.compare, gap=theme.px(8))
        for name, words in DIMENSIONS:
            self.fixed[name].setAccessibleName(words.removesuffix("s"))
            self.fixed[name].setSizeAdjustPolicy(Choice.SizeAdjustPolicy.AdjustToContents)
            choosers.addWidget(self.fixed[name])
        choosers.addStretch(1)
        top = layout.row((self.speedup, 3), (self.map, 2), gap=theme.px(8))
        bottom = layout.row((self.positions, 1), (self.content, 1), (self.along, 1), gap=theme.px(8))
        layout.column(choosers, self.words, (top, 5), (bottom, 4), on=self, gap=theme.px(6))

    # -- what is shown -------------------------------------------------------------------------

    def show_results(self, results: SweepResults | None) -> None:
        """Show another sweep's results."""
        self.results = results
        values = _values(results)
        for name, choice in self.fixed.items():
            choice.blockSignals(True)
            words = [f"T {text}" if name == "temperature" else text for text in values[name]]
            choice.set_items(tuple((str(place), text) for place, text in enumerate(words)))
            choice.setCurrentIndex(0 if values[name] else -1)
            choice.blockSignals(False)
        several = [name for name, _ in DIMENSIONS if len(values[name]) > 1]
        self.compare.blockSignals(True)
        self.compare.set_value(several[0] if several else "group")
        self.compare.blockSignals(False)
        self._chosen()

    def _chosen(self) -> None:
        values = _values(self.results)
        for name, choice in self.fixed.items():
            choice.setVisible(name != self.compare.value() and len(values[name]) > 1)
        self.refresh()

    def refresh(self) -> None:
        """Draw what the results hold now."""
        results = self.results
        for chart in self.charts:
            chart.clear()
        if results is None or not results.runs:
            why = "Nothing is measured yet." if results is not None else "Run a sweep, or open one."
            for chart in self.charts:
                chart.say(why)
            self.words.setText("")
            return
        self._keys, self._names, left = self._curves(results)
        curves = [results.series(key) for key in self._keys]
        self._draw_speedup(results, curves)
        self._draw_map(results)
        self._draw_positions(results, curves)
        self._draw_content(results)
        self._draw_along(results, curves)
        sentences = [series.sentence() for series in curves if series.points]
        if left:
            sentences.append(f"{left} more curves are not drawn: fix another dimension.")
        self.words.setText("   ".join(sentences[:4]))
        self.words.setToolTip("")
        set_tip(self.words, "\n".join(sentences))

    def _fixed(self, name: str) -> int:
        return max(0, self.fixed[name].currentIndex())

    def _key(self, results: SweepResults, lane: int, group: int, temperature: int) -> SeriesKey:
        groups = _values(results)["group"]
        return SeriesKey(
            min(lane, len(results.grid.lanes) - 1),
            groups[min(group, len(groups) - 1)],
            results.grid.temperatures[min(temperature, len(results.grid.temperatures) - 1)],
        )

    def _curves(self, results: SweepResults) -> tuple[list[SeriesKey], list[str], int]:
        """The curves to be drawn, their names, and how many more there were."""
        values = _values(results)
        compared = self.compare.value() or "group"
        places = {name: self._fixed(name) for name, _ in DIMENSIONS}
        keys, names = [], []
        for place, text in enumerate(values[compared]):
            at = places | {compared: place}
            keys.append(self._key(results, at["lane"], at["group"], at["temperature"]))
            names.append(f"T {text}" if compared == "temperature" else text)
        return keys[:MOST_CURVES], names[:MOST_CURVES], max(0, len(keys) - MOST_CURVES)

    # -- drawing -------------------------------------------------------------------------------

    def _draw_speedup(self, results: SweepResults, curves: Sequence[Series]) -> None:
        chart = self.speedup
        drawn = [series for series in curves if series.points]
        self._points = {}
        if not drawn:
            chart.say("Nothing is measured yet for these curves.")
            return
        chart.say("")
        for place, (name, series) in enumerate(zip(self._names, curves, strict=True)):
            if not series.points:
                continue
            told = {one.k: one.speedup for one in series.predicted}
            self._points[name] = [self._cell_number(results, series.key, point.k) for point in series.points]
            chart.curve(
                name, [point.k for point in series.points], [point.speedup for point in series.points],
                **_looks(place), points=True, low=[point.low for point in series.points],
                high=[point.high for point in series.points], spread="bars",
                tips=[_point_words(name, point, told.get(point.k)) for point in series.points],
            )  # fmt: skip
            if series.predicted:
                chart.curve(
                    f"{name}, predicted", [one.k for one in series.predicted], [one.speedup for one in series.predicted],
                    **_looks(place), dashed=True, in_key=False,
                    tips=[f"{name}, k {one.k}: predicted {one.speedup:.2f}×, {one.c_alone:.2f}× by c alone" for one in series.predicted],
                )  # fmt: skip
        if any(series.predicted for series in drawn):
            chart.curve(PREDICTED, [], [], colour="muted", dashed=True)
        best = [(series, point) for series in drawn if (point := series.best) is not None]
        chart.curve(
            BEST, [point.k for _, point in best], [point.speedup for _, point in best], colour="ink", line=False, points=True,
            tips=[series.sentence() for series, _ in best],
        )  # fmt: skip
        self._points[BEST] = [self._cell_number(results, series.key, point.k) for series, point in best]
        chart.mark("plain", y=1.0, text="plain")
        _whole_ticks(chart, [point.k for series in drawn for point in series.points])

    def _draw_map(self, results: SweepResults) -> None:
        values = _values(results)
        over = "temperature" if len(values["temperature"]) > 1 else self.compare.value() or "group"
        rows = values[over]
        places = {name: self._fixed(name) for name, _ in DIMENSIONS}
        keys = []
        for place in range(len(rows)):
            at = places | {over: place}
            keys.append(self._key(results, at["lane"], at["group"], at["temperature"]))
        points = [{point.k: point for point in results.series(key).points} for key in keys]
        ks = sorted({k for found in points for k in found})
        self._map = []
        if not ks:
            self.map.say("Nothing is measured yet for this map.")
            return
        self.map.say("")
        self._map = [[self._cell_number(results, key, k) if k in found else None for k in ks] for key, found in zip(keys, points, strict=True)]
        words = {"temperature": "temperature", "group": "workload", "lane": "method"}[over]
        self.map.name_axes(y=words)
        self.map.headline.set_formula(f"× plain, over k and {words}")
        self.map.heat(
            range(len(ks)), range(len(rows)),
            [[found[k].speedup if k in found else math.nan for k in ks] for found in points], centre=1.0,
        )  # fmt: skip
        self.map.ticks("x", [(place, str(k)) for place, k in enumerate(ks)])
        self.map.ticks("y", [(place, _short(text)) for place, text in enumerate(rows)])

    def _draw_positions(self, results: SweepResults, curves: Sequence[Series]) -> None:
        chart, longest = self.positions, 0
        for place, (name, series) in enumerate(zip(self._names, curves, strict=True)):
            if not series.points:
                continue
            k = series.points[-1].k
            found = results.positions(series.key, k)
            longest = max(longest, len(found))
            at = range(1, len(found) + 1)
            chart.curve(name, at, _gaps([both[1] for both in found]), **_looks(place), points=True,
                        tips=[f"{name}, k {k}, position {i}: {_figure(both[1])} of those judged" for i, both in zip(at, found, strict=True)])  # fmt: skip
            chart.curve(f"{name}, all rounds", at, _gaps([both[0] for both in found]), **_looks(place), dashed=True, in_key=False,
                        tips=[f"{name}, k {k}, position {i}: {_figure(both[0])} of all rounds with a draft" for i, both in zip(at, found, strict=True)])  # fmt: skip
        if longest:
            chart.curve(UNCONDITIONAL, [], [], colour="muted", dashed=True)
            _whole_ticks(chart, range(1, longest + 1))
        chart.say("" if longest else "Nothing was drafted yet.")

    def _draw_content(self, results: SweepResults) -> None:
        groups = _values(results)["group"]
        lanes = list(range(len(results.grid.lanes)))[:4] if self.compare.value() == "lane" else [self._fixed("lane")]
        width, any_drawn = 0.8 / len(lanes), False
        for place, lane in enumerate(lanes):
            keys = [self._key(results, lane, group, self._fixed("temperature")) for group in range(len(groups))]
            alphas = [results.series(key).alpha for key in keys]
            if all(alpha is None for alpha in alphas):
                continue
            any_drawn = True
            name = results.grid.lane_name(lane)
            self.content.bars(
                name, [group + (place - (len(lanes) - 1) / 2) * width for group in range(len(groups))],
                _gaps(alphas),
                width=width * 0.9, texts=["" if alpha is None else f"{alpha:.2f}" for alpha in alphas], lane=1 + place,
                tips=[f"{name}, {group}: α {_figure(alpha)}" for group, alpha in zip(groups, alphas, strict=True)],
            )  # fmt: skip
        self.content.ticks("x", [(place, _short(group)) for place, group in enumerate(groups)])
        self.content.say("" if any_drawn else "Nothing was judged yet.")

    def _draw_along(self, results: SweepResults, curves: Sequence[Series]) -> None:
        drawn = False
        centres = [100 * (place + 0.5) / EIGHTHS for place in range(EIGHTHS)]
        for place, (name, series) in enumerate(zip(self._names, curves, strict=True)):
            found = results.along(series.key)
            if any(alpha is not None for alpha in found):
                drawn = True
                self.along.curve(name, centres, _gaps(found), **_looks(place), points=True,
                                 tips=[f"{name}, eighth {i + 1}: α {_figure(alpha)}" for i, alpha in enumerate(found)])  # fmt: skip
        self.along.ticks("x", [(value, str(value)) for value in (0, 25, 50, 75, 100)])
        self.along.say("" if drawn else "Nothing was judged yet.")

    # -- clicks --------------------------------------------------------------------------------

    def _cell_number(self, results: SweepResults, key: SeriesKey, k: int) -> int:
        cells = results.cells_of(key)
        found = [cell for cell in cells if any(run.k == k for run in results.of_cells(cell))]
        return (found or cells)[0].number

    def _picked(self, name: str, index: int) -> None:
        cells = self._points.get(name.removesuffix(", predicted"), [])
        if name in self._points and index < len(cells):
            self.cell.emit(cells[index])

    def _map_picked(self, row: int, column: int) -> None:
        if row < len(self._map) and column < len(self._map[row]):
            number = self._map[row][column]
            if number is not None:
                self.cell.emit(number)


def _values(results: SweepResults | None) -> dict[str, list[str]]:
    """The values of each dimension, in words."""
    if results is None:
        return {name: [] for name, _ in DIMENSIONS}
    grid = results.grid
    return {
        "group": list(dict.fromkeys(prompt.group for prompt in grid.prompts)),
        "lane": [grid.lane_name(lane) for lane in range(len(grid.lanes))],
        "temperature": [f"{value:g}" for value in grid.temperatures],
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


def _point_words(name: str, point: Point, told: float | None) -> str:
    words = f"{name}, k {point.k}: {point.speedup:.2f}×"
    if point.low != point.high:
        words += f" ({point.low:.2f}–{point.high:.2f})"
    return words if told is None else f"{words}, predicted {told:.2f}×"


def _gaps(values: Sequence[float | None]) -> list[float]:
    """Figures to draw: a gap where there is none."""
    return [math.nan if value is None else value for value in values]


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _short(text: str) -> str:
    return text if len(text) <= 14 else f"{text[:13]}…"
