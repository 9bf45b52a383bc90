"""The chart that all pages share: what is drawn, picked, dragged and saved."""

from __future__ import annotations

import csv
import io
import math
import os
from xml.etree import ElementTree

import numpy as np
import pyqtgraph as pg
import pytest
from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QImage

from specview.errors import SpecviewError
from specview.gui.parts.charts import Chart


@pytest.fixture
def chart(qtbot, qapp):
    made = Chart("Speedup over k", x="k (tokens)", y="speedup (×)", zero=False)
    qtbot.addWidget(made)
    made.resize(420, 300)
    made.show()
    made.curve("eagle3", [1, 2, 3, 4], [1.1, 1.3, 1.2, None], lane=1, points=True, low=[1, 1.2, 1.1, None],
               high=[1.2, 1.4, 1.3, None])  # fmt: skip
    made.redraw()
    return made


def place(chart: Chart, x: float, y: float) -> QPointF:
    return chart.plot.getPlotItem().getViewBox().mapViewToScene(QPointF(x, y))


def test_the_nearest_point_is_found_where_it_is_drawn(chart):
    assert chart.nearest(place(chart, 2, 1.3)) == ("eagle3", 1)
    assert chart.nearest(place(chart, 3.02, 1.21)) == ("eagle3", 2)
    assert chart.nearest(QPointF(-500, -500)) is None


def test_arrow_keys_go_through_points_and_enter_picks(chart, qtbot):
    chart.curve("other", [1, 2], [1.0, 1.0], lane=2)
    chart.redraw()
    for key in (Qt.Key.Key_Right, Qt.Key.Key_Right):
        qtbot.keyClick(chart, key)
    assert "2" in chart.readout.full and "1.3" in chart.readout.full
    with qtbot.waitSignal(chart.picked) as heard:
        qtbot.keyClick(chart, Qt.Key.Key_Return)
    assert heard.args == ["eagle3", 1]
    qtbot.keyClick(chart, Qt.Key.Key_Down)
    assert chart.readout.full.startswith("other")


def test_a_series_given_again_replaces_the_first_and_a_gap_stays_a_gap(chart):
    chart.curve("eagle3", [1], [2.0], lane=1)
    x, y = chart.values("eagle3")
    assert list(x) == [1] and list(y) == [2.0]
    chart.curve("gap", [1, 2, 3], [1.0, math.nan, 3.0])
    assert np.isnan(chart.values("gap")[1][1])
    with pytest.raises(ValueError, match="2 x and 1 y"):
        chart.curve("wrong", [1, 2], [1.0])
    chart.remove("gap")
    assert chart.names == ["eagle3"]


def test_a_handle_tells_where_it_is_dragged_to_and_stays_in_bounds(chart, qtbot):
    chart.handle("alpha", x=2.0, text="α", bounds=(1.0, 3.0))
    chart.redraw()
    heard = []
    chart.moved.connect(lambda name, value: heard.append((name, value)))
    chart._lines["alpha"].setValue(2.5)
    chart._lines["alpha"].setValue(9.0)
    assert heard[0] == ("alpha", 2.5) and heard[-1] == ("alpha", 3.0)


def test_logarithmic_axes_leave_out_what_has_no_logarithm(qtbot, qapp):
    chart = Chart("tv", log_x=True, log_y=True)
    qtbot.addWidget(chart)
    chart.curve("rejection", [0, 10, 1000], [0.5, 0.1, 0.01])
    chart.redraw()
    (low, high), _ = chart.plot.getPlotItem().getViewBox().viewRange()
    assert low < 1 < 3 < high


def test_empty_series_and_one_value_draw_without_complaint(qtbot, qapp):
    chart = Chart("nothing yet")
    qtbot.addWidget(chart)
    chart.curve("empty", [], [])
    chart.curve("one", [3], [5.0])
    chart.bars("none", [], [])
    chart.bars("bad", [1.0], [math.nan])
    chart.heat([1], [1], [[math.nan]])
    chart.mark("m", y=2.0, text="<b>not HTML</b>")
    chart.redraw()
    chart.say("Run something.")
    chart.say("")


@pytest.mark.parametrize("theme_name", ["dark", "light"])
def test_it_is_saved_as_picture_drawing_and_values(chart, tmp_path, theme_name, qapp):
    from specview.gui.parts import theme

    theme.apply(qapp, theme_name)
    for ending in ("png", "svg", "csv"):
        chart.save(tmp_path / f"a.{ending}")
    image = QImage(str(tmp_path / "a.png"))
    assert image.width() == 2 * chart.width() and image.height() == 2 * chart.height()
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")
    rows = list(csv.reader(io.StringIO((tmp_path / "a.csv").read_text(encoding="utf-8"))))
    assert rows[0] == ["series", "k (tokens)", "speedup (×)", "low", "high"]
    assert rows[2] == ["eagle3", "2", "1.3", "1.2", "1.4"]
    assert rows[4] == ["eagle3", "4", "", "", ""]
    theme.apply(qapp, "dark")


def test_text_in_a_table_is_never_a_formula(chart):
    chart.curve("=cmd()", [1], [1.0])
    assert "\n'=cmd()," in chart.csv()


def test_a_place_that_cannot_be_written_leaves_the_old_file(chart, tmp_path, monkeypatch):
    old = tmp_path / "a.csv"
    old.write_text("old")
    with pytest.raises(SpecviewError, match="cannot be saved as"):
        chart.save(tmp_path / "a.gif")
    with pytest.raises(SpecviewError, match="cannot write"):
        chart.save(tmp_path / "no" / "a.csv")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SpecviewError, match="no space left"):
        chart.save(old)
    assert old.read_text() == "old" and os.listdir(tmp_path) == ["a.csv"]


def test_words_stand_above_bars_and_none_where_there_is_no_bar(qtbot):
    chart = Chart("Waterfall", x="step", y="times plain")
    qtbot.addWidget(chart)
    chart.bars("steps", [0, 1, 2], [1.0, -0.5, math.nan], bottom=[0.0, 1.0, 0.0], texts=["1.00", "-0.50", "never"])
    chart.redraw()
    words = {item.toPlainText(): item.pos() for item in chart.plot.getPlotItem().items if hasattr(item, "toPlainText")}
    assert set(words) == {"1.00", "-0.50"}
    assert words["-0.50"].y() == 1.0  # the upper end of a bar that goes down


def _words(chart: Chart) -> list:
    """The words of level marks, as rectangles of the scene."""
    lines = [item for item in chart.plot.getPlotItem().items if getattr(item, "label", None) is not None]
    return [line.label.mapRectToScene(line.label.boundingRect()) for line in lines if line.angle == 0]


def test_words_of_level_marks_stand_clear_of_each_other_and_of_curves(chart, qapp):
    chart.resize(620, 240)
    chart.curve("eagle3", [1, 2, 3, 4], [1.26, 1.19, 1.18, 1.17], lane=1, points=True)
    chart.mark("a", y=1.66, text="oracle: method 1.66×")
    chart.mark("b", y=1.60, text="oracle: length 1.60×")
    chart.mark("plain", y=1.1, text="plain")
    chart.redraw()
    qapp.processEvents()
    a, b, plain = _words(chart)
    assert not a.intersects(b)
    for x in np.linspace(1, 4, 40):
        assert not plain.contains(place(chart, x, float(np.interp(x, [1, 2, 3, 4], [1.26, 1.19, 1.18, 1.17]))))


def test_words_at_the_ends_of_curves_give_way_to_each_other(qtbot, qapp):
    chart = Chart("Speedup", x="k", y="times plain")
    qtbot.addWidget(chart)
    chart.resize(420, 300)
    x = np.linspace(0, 10, 41)
    for name, level in (("α 0.5", 1.0), ("α 0.6", 1.04), ("α 0.7", 2.0)):
        chart.curve(name, x, level + 0 * x, end=name)
    chart.redraw()
    words = [item for item in chart.plot.getPlotItem().items if hasattr(item, "textItem")]
    at = [item.pos() for item in words]
    assert len(at) == 3 and at[0].x() == 10 and at[2].x() == 10
    assert at[1].x() < 9  # beside the first, whose line is too near


def test_the_axis_names_stand_in_the_middle_from_the_start(chart, qapp):
    qapp.processEvents()
    axis = chart.plot.getAxis("bottom")
    middle = axis.label.pos().x() + axis.label.boundingRect().width() / 2
    assert abs(middle - axis.size().width() / 2) < 3


def test_lines_that_only_connect_are_not_pointed_at(chart, qtbot):
    chart.curve("level", [2.0, 2.2], [1.3, 1.3], in_key=False, quiet=True)
    chart.redraw()
    assert chart.nearest(place(chart, 2.2, 1.3)) == ("eagle3", 1)
    qtbot.keyClick(chart, Qt.Key.Key_Right)
    qtbot.keyClick(chart, Qt.Key.Key_Down)
    assert chart.readout.full.startswith("eagle3")


def test_values_are_written_into_cells_only_where_they_fit(qtbot, qapp):
    chart = Chart("Map", x="k", y="T")
    qtbot.addWidget(chart)
    chart.heat(range(8), range(2), np.full((2, 8), 1.25), centre=1.0)
    chart.resize(520, 200)
    chart.show()

    def values() -> int:
        qtbot.wait(30)
        return sum(hasattr(item, "textItem") for item in chart.plot.getPlotItem().items)

    assert values() == 16
    chart.resize(240, 200)
    assert values() == 0
    chart.resize(520, 200)
    assert values() == 16


def test_words_of_level_marks_stand_beside_bars(qtbot, qapp):
    chart = Chart("Rounds", x="round", y="tokens")
    qtbot.addWidget(chart)
    chart.resize(620, 240)
    chart.show()
    chart.bars("speed", range(10), [0.4] * 4 + [3.0] * 6, width=0.9)
    chart.mark("plain", y=1.0, text="plain")
    chart.redraw()
    qapp.processEvents()
    (words,) = _words(chart)
    assert words.right() < place(chart, 3.5, 1.0).x()


def test_the_key_of_a_heat_map_says_its_least_and_greatest_value(qtbot, qapp):
    chart = Chart("Map")
    qtbot.addWidget(chart)
    chart.heat([1, 2], [1, 2], [[0.5, 1.0], [2.0, math.nan]], centre=1.0, form=lambda value: f"{value:g}x")
    chart.redraw()
    entry = chart.key.entries[0]
    assert entry.name == "0.5x to 2x"
    assert len(set(entry.ramp)) == len(entry.ramp) > 4
    assert entry.ramp[-1] == "#388cd6"  # the farthest from the centre
    chart.heat([1, 2], [1], [[1.0, 1.0]], centre=1.0)
    chart.redraw()
    assert not chart.key.entries  # a single colour says nothing


def test_what_stands_above_bars_and_lines_is_seen_whole(chart, qtbot):
    """Words above the highest bar stay inside at any height; words of two levels close by do not lie on each other."""
    chart.remove("eagle3")
    chart.bars("rounds", [0, 1, 2], [40.0, 12.0, 21.0], texts=["40", "12", "21"])
    for height in (300, 160, 130, 220):
        chart.resize(420, height)
        qtbot.waitUntil(lambda: not chart._dirty)
        view = chart.plot.getPlotItem().getViewBox()
        free = view.mapViewToScene(QPointF(0, view.viewRange()[1][1])).y()
        words = next(item for item in chart.plot.getPlotItem().items if isinstance(item, pg.TextItem) and item.toPlainText() == "40")
        assert words.mapRectToScene(words.boundingRect()).top() >= free - 1
    chart.remove("rounds")
    chart.curve("by k", [1, 2], [1.3, 1.3], points=True)
    chart.mark("one", y=1.71, text="oracle: method 1.71×")
    chart.mark("two", y=1.53, text="oracle: length 1.53×")
    chart.set_range(y=(0.0, 2.02))
    chart.resize(600, 170)
    chart.redraw()
    labels = [item.label for item in chart.plot.getPlotItem().items if isinstance(item, pg.InfiniteLine) and item.label]
    one, two = (label.mapRectToScene(label.boundingRect().adjusted(4, 4, -4, -4)) for label in labels)  # without its margin
    assert not one.intersects(two)
