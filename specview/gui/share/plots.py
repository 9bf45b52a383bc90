"""A race's plots as SVG: acceptance rate, tokens per target pass, speed, and the time of each round of every drafting lane."""

from __future__ import annotations

import re
from collections.abc import Mapping

from PySide6.QtWidgets import QWidget

from specview.files.figures import METRICS
from specview.gui.parts import layout
from specview.gui.parts.charts import Chart, svg_of
from specview.gui.parts.plot_data import PlotOptions, bars, curve, last, thinned
from specview.gui.parts.plots import CURVES, PHASES, X_NAMES
from specview.gui.state import lane_words
from specview.gui.state.display_text import visible
from specview.gui.state.view_model import LaneModel, RaceModel

WIDE, HIGH = 620, 340
"""Pixels of one plot."""
_OVER = PlotOptions()


def plots_svg(race: RaceModel) -> Mapping[str, bytes]:
    """Every plot by its file's name; under '' all of them in one drawing."""
    charts = {_file_name(chart.title): chart for chart in plots(race)}
    sheet = QWidget()
    across = 2 if len(charts) > 1 else 1
    layout.grid(charts.values(), across, on=sheet, gap=8, shares=(1, 1))
    sheet.resize(across * WIDE, -(-len(charts) // across) * HIGH)
    sheet.ensurePolished()
    sheet.grab()  # lays everything out
    for chart in charts.values():
        chart.menu_button.hide()
        chart.redraw()
    drawn = {name: svg_of(chart, chart.title) for name, chart in charts.items()}
    return {**drawn, "": svg_of(sheet, "Plots of a race")}


def plots(race: RaceModel) -> list[Chart]:
    """The charts, each with its data."""
    made = []
    for name, title, formula, floor in CURVES:
        chart = Chart(title, formula, x=X_NAMES["position"], y=formula)
        for index, lane in enumerate(race.lanes):
            if len(lane.table) and not (name == "acceptance_rate" and lane.plain):
                x, y = thinned(*curve(lane, name, _OVER))
                lossy = f" {lane_words.LOSSY}" if lane_words.lossy(lane.settings) else ""
                value = f"{METRICS[name].text(last(y))}{lossy}"
                chart.curve(str(index), x, y, title=visible(lane_words.title(lane)), lane=index, head=True, width_px=1.8, value=value)
        if floor and chart.names:
            top = max(max(chart.values(one)[1]) for one in chart.names)
            chart.set_range(y=(0.0, max(floor, top * 1.05)))
        made.append(chart)
    return [*made, *(_phases(lane) for lane in race.lanes if not lane.plain and len(lane.table))]


def _phases(lane: LaneModel) -> Chart:
    data = bars(lane, _OVER)
    each = "" if data.rounds == 1 else f", bars of {data.rounds} rounds"
    chart = Chart(f"Time per round, {visible(lane_words.title(lane))}", f"ms{each}", x=X_NAMES["position"], y="ms")
    below = 0.0 * data.left
    for name, place in PHASES:
        height = getattr(data, name)
        chart.bars(name, (data.left + data.right) / 2, height, bottom=below, width=data.right - data.left, colour=f"phase {place}")
        below = below + height
    return chart


def _file_name(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") + ".svg"
