"""The chart that all pages share: what is drawn, picked, dragged and saved."""

from __future__ import annotations

import csv
import io
import math
import os
from xml.etree import ElementTree

import numpy as np
import pytest
from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QGuiApplication, QImage

from specview.errors import SpecviewError
from specview.gui.parts import theme
from specview.gui.parts.charts import Chart


@pytest.fixture
def make(qtbot, qapp):
    """Make a chart on screen."""

    def made(title="Chart", size=(420, 300), **options):
        chart = Chart(title, **options)
        qtbot.addWidget(chart)
        chart.resize(*size)
        chart.show()
        return chart

    return made


@pytest.fixture
def chart(make):
    made = make("Speedup over k", x="k (tokens)", y="speedup (×)", zero=False)
    made.curve("eagle3", [1, 2, 3, 4], [1.1, 1.3, 1.2, None], lane=1, points=True, low=[1, 1.2, 1.1, None],
               high=[1.2, 1.4, 1.3, None])  # fmt: skip
    made.redraw()
    return made


def place(chart: Chart, x: float, y: float) -> QPointF:
    return chart.plot.view.mapViewToScene(QPointF(x, y))


def words(chart: Chart) -> dict[str, QRectF]:
    """What is written into the plot, with its place in pixels."""
    chart.redraw()
    chart.grab()
    return dict(chart.plot.drawing.words)


def test_the_nearest_point_is_found_where_it_is_drawn(chart):
    assert chart.nearest(place(chart, 2, 1.3)) == ("eagle3", 1)
    assert chart.nearest(place(chart, 3.02, 1.21)) == ("eagle3", 2)
    assert chart.nearest(QPointF(-500, -500)) is None
    chart._hovered(place(chart, 2, 1.3))
    assert chart.readout.full == "eagle3 · 2: 1.3" and chart.readout.isVisible()
    chart._hovered(QPointF(-500, -500))
    assert not chart.readout.isVisible()


def test_arrow_keys_go_through_points_and_enter_picks(chart, qtbot):
    chart.curve("other", [1, 2], [1.0, 1.0], lane=2)
    chart.curve("level", [2.0, 2.2], [1.3, 1.3], in_key=False, quiet=True)  # only connects: is not pointed at
    chart.redraw()
    assert chart.nearest(place(chart, 2.2, 1.3)) == ("eagle3", 1)
    for key in (Qt.Key.Key_Right, Qt.Key.Key_Right):
        qtbot.keyClick(chart, key)
    assert "2" in chart.readout.full and "1.3" in chart.readout.full
    with qtbot.waitSignal(chart.picked) as heard:
        qtbot.keyClick(chart, Qt.Key.Key_Return)
    assert heard.args == ["eagle3", 1]
    for name in ("other", "eagle3"):
        qtbot.keyClick(chart, Qt.Key.Key_Down)
        assert chart.readout.full.startswith(name)


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


def test_a_handle_tells_where_it_is_dragged_to_and_stays_in_bounds(chart):
    chart.handle("alpha", x=2.0, text="α", bounds=(1.0, 3.0))
    chart.redraw()
    heard = []
    chart.moved.connect(lambda name, value: heard.append((name, value)))
    chart.plot.lines["alpha"].setValue(2.5)
    chart.plot.lines["alpha"].setValue(9.0)
    assert heard[0] == ("alpha", 2.5) and heard[-1] == ("alpha", 3.0)
    chart.clear()
    chart.redraw()
    assert not chart.plot.lines


def test_logarithmic_axes_leave_out_what_has_no_logarithm(make):
    chart = make(log_x=True, log_y=True)
    chart.curve("rejection", [0, 10, 1000], [0.5, 0.1, 0.01])
    chart.redraw()
    (low, high), _ = chart.plot.view.viewRange()
    assert low < 1 < 3 < high


def test_ranges_of_a_live_chart_grow_in_steps_and_start_anew(make):
    chart = make(live=True, floor=2.0)
    chart.attach()
    tops = []
    for reach in (0.5, 11, 12, 14, 70, 3):
        chart.curve("lane", [0, reach], [0, reach])
        chart.redraw()
        (_, across), (_, up) = chart.plot.view.viewRange()
        tops.append((round(across / 1.02, 2), round(up / 1.08, 2)))
    assert tops == [(1, 2), (15, 15), (15, 15), (15, 15), (80, 80), (80, 80)]
    chart.clear()
    chart.redraw()
    assert chart.plot.view.viewRange()[1][1] == pytest.approx(2 * 1.08)


def test_empty_series_and_one_value_draw_without_complaint(make):
    chart = make("nothing yet")
    chart.curve("empty", [], [])
    chart.curve("one", [3], [5.0])
    chart.bars("none", [], [])
    chart.bars("bad", [1.0], [math.nan])
    chart.heat([1], [1], [[math.nan]])
    chart.mark("m", y=2.0, text="<b>not HTML</b>")
    assert "<b>not HTML</b>" in words(chart)
    chart.say("Run something.")
    assert chart.said == "Run something."
    chart.say("")
    assert chart.said == ""


@pytest.mark.parametrize("theme_name", ["dark", "light"])
def test_it_is_saved_as_picture_drawing_and_values(chart, tmp_path, theme_name, qapp):
    theme.apply(qapp, theme_name)
    for ending in ("png", "svg", "csv"):
        chart.save(tmp_path / f"a.{ending}")
    image = QImage(str(tmp_path / "a.png"))
    assert image.width() == 2 * chart.width() and image.height() == 2 * chart.height()
    colours = {image.pixelColor(x, y).name() for x in range(0, image.width(), 2) for y in range(0, image.height(), 2)}
    assert {theme.current().panel, theme.current().lane_colors[1]} <= colours
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")
    rows = list(csv.reader(io.StringIO((tmp_path / "a.csv").read_text(encoding="utf-8"))))
    assert rows[0] == ["series", "k (tokens)", "speedup (×)", "low", "high"]
    assert rows[2] == ["eagle3", "2", "1.3", "1.2", "1.4"]
    assert rows[4] == ["eagle3", "4", "", "", ""]
    *_, copy = chart.save_menu().actions()
    copy.trigger()
    assert QGuiApplication.clipboard().image().size() == image.size()
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


# -- words in the plot -----------------------------------------------------------------------------------


def test_words_stand_above_bars_and_none_where_there_is_no_bar(make):
    chart = make(x="step", y="times plain")
    chart.bars("steps", [0, 1, 2], [1.0, -0.5, math.nan], bottom=[0.0, 1.0, 0.0], texts=["1.00", "-0.50", "never"])
    written = words(chart)
    assert set(written) == {"1.00", "-0.50"}
    assert written["-0.50"].bottom() == pytest.approx(place(chart, 1, 1.0).y(), abs=2)  # the upper end of one that goes down


@pytest.mark.parametrize("height", [300, 160, 130, 220])
def test_words_above_the_highest_bar_are_seen_whole(make, height):
    chart = make(size=(420, height))
    chart.bars("rounds", [0, 1, 2], [40.0, 12.0, 21.0], texts=["40", "12", "21"])
    assert words(chart)["40"].top() >= chart.plot.drawing._area.top() - 1


@pytest.mark.parametrize("size", [(620, 240), (600, 170)])
def test_words_of_level_marks_stand_clear_of_each_other_and_of_curves(chart, size):
    chart.resize(*size)
    x, y = [1, 2, 3, 4], [1.26, 1.19, 1.18, 1.17]
    chart.curve("eagle3", x, y, lane=1, points=True)
    chart.mark("a", y=1.66, text="oracle: method 1.66×")
    chart.mark("b", y=1.60, text="oracle: length 1.60×")
    chart.mark("plain", y=1.1, text="plain")
    written = words(chart)
    assert not written["oracle: method 1.66×"].intersects(written["oracle: length 1.60×"])
    for at in np.linspace(1, 4, 40):
        assert not written["plain"].contains(place(chart, at, float(np.interp(at, x, y))))


def test_words_of_level_marks_stand_beside_bars(make):
    chart = make(size=(620, 240), x="round", y="tokens")
    chart.bars("speed", range(10), [0.4] * 4 + [3.0] * 6, width=0.9)
    chart.mark("plain", y=1.0, text="plain")
    assert words(chart)["plain"].right() < place(chart, 3.55, 1.0).x()


def test_words_at_the_ends_of_curves_give_way_to_each_other(make):
    chart = make(x="k", y="times plain")
    x = np.linspace(0, 10, 41)
    for name, level in (("α 0.5", 1.0), ("α 0.6", 1.04), ("α 0.7", 2.0)):
        chart.curve(name, x, level + 0 * x, end=name)
    first, second, third = words(chart).values()
    assert first.right() == third.right() and second.right() <= first.left()


def test_the_axis_names_stand_in_the_middle_from_the_start(chart, qapp):
    qapp.processEvents()
    axis = chart.plot.getAxis("bottom")
    middle = axis.label.pos().x() + axis.label.boundingRect().width() / 2
    assert abs(middle - axis.size().width() / 2) < 3


# -- heat maps -------------------------------------------------------------------------------------------


def test_values_are_written_into_cells_only_where_they_fit(make):
    chart = make(x="k", y="T")
    chart.heat(range(8), range(2), np.arange(16).reshape(2, 8) / 10, centre=1.0)
    for width, count in ((520, 16), (240, 0), (520, 16)):
        chart.resize(width, 200)
        assert len(words(chart)) == count
    assert words(chart)["0.00"].bottom() > words(chart)["0.80"].bottom()  # the first row is at the bottom


def test_the_key_of_a_heat_map_says_its_least_and_greatest_value(make):
    chart = make()
    chart.heat([1, 2], [1, 2], [[0.5, 1.0], [2.0, math.nan]], centre=1.0, form=lambda value: f"{value:g}x")
    chart.redraw()
    entry = chart.key.entries[0]
    assert entry.name == "0.5x to 2x"
    assert len(set(entry.ramp)) == len(entry.ramp) > 4
    assert entry.ramp[-1] == "#388cd6"  # the farthest from the centre
    assert chart.heat_cell(place(chart, 1, 2)) == (1, 0) and chart.heat_cell(place(chart, 2, 2)) is None
    chart.heat([1, 2], [1], [[1.0, 1.0]], centre=1.0)
    chart.redraw()
    assert not chart.key.entries  # a single colour says nothing
