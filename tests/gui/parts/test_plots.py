"""Plots: what is drawn is what the metrics say; options, steps, empty states."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from specview.decoding.ledger import DraftedToken, FinalToken, Round
from specview.decoding.metrics import fold
from specview.gui.parts import theme
from specview.gui.parts.charts import Chart
from specview.gui.parts.plot_data import MAX_POINTS, PlotOptions, bars, curve, step_up, steps, thinned
from specview.gui.parts.plots import PlotStrip
from specview.gui.state import lane_words
from specview.gui.state.view_model import LaneModel, RaceModel
from specview.settings.events import RaceStarted
from tests.gui.views_data import filled_lane, make_race, make_rounds, stream


@pytest.fixture
def strip(qtbot: QtBot) -> PlotStrip:
    """A strip of plots over a started race."""
    race = make_race(3)
    made = PlotStrip(race)
    qtbot.addWidget(made)
    made.resize(1100, 220)
    made.load()
    with qtbot.waitExposed(made):
        made.show()
    return made


def drawn(card: Chart) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """What is drawn of each lane."""
    return {int(name): card.values(name) for name in card.names}


def key(card: Chart) -> dict[str, str]:
    """What the key says of each lane."""
    return {entry.name: entry.value for entry in card.key.entries}


def test_curves_are_the_metrics_of_every_prefix(strip: PlotStrip) -> None:
    stream(strip.race, 2.0)
    assert strip.refresh(now=True) and not strip.refresh(now=True)
    for index, lane in enumerate(strip.race.lanes):
        for name in ("acceptance_rate", "tokens_per_target_pass", "decode_tokens_per_s"):
            curves = drawn(strip.cards[name])
            if name == "acceptance_rate" and lane.plain:
                assert index not in curves
                continue
            x, y = curves[index]
            for place in (0, len(lane.rounds) // 2, len(lane.rounds) - 1):
                part = fold(lane.rounds[: place + 1])
                assert x[place] == part.emitted
                assert y[place] == pytest.approx(getattr(part, name))
    assert key(strip.cards["acceptance_rate"])["draft model"] == f"{fold(strip.race.lanes[1].rounds).acceptance_rate:.2f}"


def test_bars_are_the_phases_of_the_chosen_lane(strip: PlotStrip) -> None:
    stream(strip.race, 5.0)
    strip.set_third("time")
    for lane in (strip.race.lanes[1], strip.race.lanes[2]):
        strip.select_lane(lane)
        shown = bars(lane, strip.options)
        series = strip.phases.picture.series
        assert list(series) == ["verify", "draft", "other"]
        counts = np.minimum(shown.rounds, len(lane.rounds) - shown.rounds * np.arange(len(shown.left)))
        total = (sum(s.y for s in series.values()) * counts).sum() / 1e3
        assert total == pytest.approx(sum(r.seconds for r in lane.rounds))
        top = series["other"]
        assert (top.tip == sum(s.y for s in series.values())).all()
        assert (top.x + top.width / 2)[-1] == lane.emitted and (top.x - top.width / 2)[0] == 0
        assert len(top.x) <= 64
        assert lane_words.title(lane) in strip._chooser().text()


def test_options_change_axis_and_window(strip: PlotStrip) -> None:
    stream(strip.race, 3.0)
    strip.set_options(over="seconds", window=8)
    strip.refresh(now=True)
    lane = strip.race.lanes[1]
    card = strip.cards["acceptance_rate"]
    x, y = drawn(card)[1]
    assert x[-1] == lane.rounds[-1].t
    assert y[-1] == pytest.approx(fold(lane.rounds[-8:]).acceptance_rate)
    assert card.x_name == "lane seconds (s)"
    menu = card.save_menu()
    assert [action.text() for action in menu.actions() if action.isChecked()] == ["All plots over lane seconds", "Rates of the last 8 rounds"]
    next(action for action in menu.actions() if action.text().startswith("Running rates")).trigger()
    assert strip.options == PlotOptions("seconds", None)
    assert any("PNG" in action.text() for action in menu.actions()) and card.contextMenuPolicy() != Qt.ContextMenuPolicy.NoContextMenu


def test_ranges_grow_in_steps_and_start_anew_with_a_run(strip: PlotStrip) -> None:
    card = strip.cards["decode_tokens_per_s"]
    tops = []
    for seconds in np.arange(0.2, 4.0, 0.2):
        race = make_race(3)
        stream(race, float(seconds))
        strip.race.lanes[:] = strip.race.lanes  # the same lanes grow
        for lane, grown in zip(strip.race.lanes, race.lanes, strict=True):
            for round_ in grown.rounds[len(lane.rounds):]:
                lane.add(round_)
        strip.refresh(now=True)
        card.redraw()
        tops.append(card.picture.tops[0])
    assert tops == sorted(tops) and len(set(tops)) <= 10
    strip.race.apply(RaceStarted(2, (1,), "p", ("plain",), ({"method": "plain"},)))
    strip.refresh(now=True)
    assert not card.names and card.picture.tops[0] == 1.0
    assert strip.cards["acceptance_rate"].said == "Fills as rounds come"


def test_drawing_is_put_off_but_never_lost(strip: PlotStrip, qtbot: QtBot) -> None:
    """Within its rest a refresh draws nothing; a little later all is there, key and curves."""
    stream(strip.race, 0.5)
    assert strip.refresh(now=True)
    strip._rest_until = float("inf")
    for round_ in filled_lane(5).rounds:
        strip.race.lanes[1].add(round_)
    assert not strip.refresh()
    strip._rest_until = 0.0
    lane = strip.race.lanes[1]
    assert strip.refresh()
    card = strip.cards["acceptance_rate"]
    assert len(drawn(card)[1][0]) == len(lane.rounds)
    wanted = f"{fold(lane.rounds).acceptance_rate:.2f}"
    qtbot.waitUntil(lambda: key(card)["draft model"] == wanted, timeout=3000)


def test_plain_alone_has_no_acceptance(qtbot: QtBot) -> None:
    race = make_race(1)
    made = PlotStrip(race)
    qtbot.addWidget(made)
    made.load()
    stream(race, 1.0)
    made.refresh(now=True)
    assert made.cards["acceptance_rate"].said and not made.cards["decode_tokens_per_s"].said


def test_empty_race_and_late_import(qtbot: QtBot) -> None:
    race = RaceModel()
    made = PlotStrip(race)
    qtbot.addWidget(made)
    made.refresh()
    with qtbot.waitExposed(made):
        made.show()
    qtbot.waitUntil(lambda: made.loaded, timeout=20_000)
    assert not made.refresh()
    made.grab()


def test_modules_do_not_import_pyqtgraph_early() -> None:
    import subprocess

    code = "import sys, specview.gui.parts.plots, specview.gui.lanes.panel, specview.gui.race.inspector, specview.gui.race.legend\n" \
           "print([m for m in ('pyqtgraph', 'torch', 'transformers', 'llama_cpp') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@given(st.floats(1e-6, 1e9))
def test_steps(value: float) -> None:
    assert value * (1 - 1e-9) <= step_up(value) <= 2 * value * (1 + 1e-9)


def test_thinning_keeps_the_ends() -> None:
    """Thinned curves keep order, first and last point, and points that were drawn before."""
    x = np.arange(5000.0)
    thin_x, thin_y = thinned(x, x * 2)
    assert len(thin_x) <= MAX_POINTS + 1
    assert thin_x[0] == 0 and thin_x[-1] == 4999 and (thin_y == thin_x * 2).all()
    lane = LaneModel()
    x, y = curve(lane, "acceptance_rate", PlotOptions())
    assert len(x) == len(y) == 0 and len(bars(lane, PlotOptions()).left) == 0
    long = bars(filled_lane(2000), PlotOptions())
    assert len(long.left) <= 64 and long.rounds == 32


def test_both_themes_are_drawn(strip: PlotStrip, qtbot: QtBot) -> None:
    app = QApplication.instance()
    assert isinstance(app, QApplication)
    stream(strip.race, 2.0)
    strip.set_third("time")
    strip.refresh(now=True)
    try:
        for name, scale in (("light", 1.0), ("dark", 2.0), ("light", 0.8)):
            theme.apply(app, name, scale)
            strip.resize(round(1100 * scale), round(220 * scale))
            qtbot.wait(20)
            image = strip.grab().toImage()
            ratio = image.devicePixelRatio()
            corner = strip.cards["acceptance_rate"].geometry().center()
            assert image.pixelColor(round(corner.x() * ratio), round((corner.y() + 5) * ratio)).isValid()
            colours = {image.pixelColor(x, y).name() for x in range(0, image.width(), 2) for y in range(image.height())}
            assert theme.current().panel in colours
            assert theme.current().lane_colors[1] in colours
            assert theme.current().phases[1] in colours
    finally:
        theme.apply(app, "dark", 1.0)


def test_the_drawing_follows_the_view_when_the_ranges_have_grown(strip: PlotStrip) -> None:
    """The view's rectangle is not the one of the first, empty plot; the grid goes with it."""
    card = strip.cards["decode_tokens_per_s"]
    card.grab()  # paints once: pyqtgraph keeps the rectangle of the empty plot
    stream(strip.race, 5.0)
    strip.refresh(now=True)
    card.redraw()
    card.grab()
    left, right = card.plot.view.viewRange()[0]
    assert right > 5 and card.plot.drawing.levels
    assert card.plot.drawing.viewRect().right() == pytest.approx(right)
    assert card.plot.drawing.boundingRect().width() == pytest.approx(right - left)


def test_values_of_the_last_rounds_are_shown_though_nothing_new_comes(strip: PlotStrip, qtbot: QtBot) -> None:
    """A tick without news leaves alone the timer that shows the last values."""
    stream(strip.race, 1.0)
    strip.refresh(now=True)
    stream(strip.race, 3.0)
    strip._rest_until = 0.0
    strip.refresh()  # curves are drawn, values wait
    strip._rest_until = 0.0
    assert not strip.refresh()
    expected = f"{fold(strip.race.lanes[1].rounds).acceptance_rate:.2f}"
    qtbot.waitUntil(lambda: key(strip.cards["acceptance_rate"])["draft model"] == expected)


def test_values_at_the_end_of_a_race_are_those_of_its_end(strip: PlotStrip) -> None:
    """Curves drew the last rounds before the lanes ended, and the next tick found nothing new."""
    strip.asked_again = lambda: True  # a race is under way
    stream(strip.race, 1.0)
    strip.refresh(now=True)
    stream(strip.race, 3.0)
    strip._rest_until = 0.0
    strip.refresh()
    for lane in strip.race.lanes:
        lane.state = "ended"
    strip.refresh()
    assert key(strip.cards["acceptance_rate"])["draft model"] == f"{fold(strip.race.lanes[1].rounds).acceptance_rate:.2f}"


# -- draft length ------------------------------------------------------------------------------------


def changing_lane(race: RaceModel, index: int, lengths: list[int]) -> LaneModel:
    """A lane whose rounds draft these lengths."""
    lane = race.lanes[index]
    for place, k in enumerate(lengths):
        (made,) = make_rounds(1, k, seed=place)
        lane.add(replace(made, index=place, t=0.1 * (place + 1)))
    return lane


def test_draft_length_is_a_step_curve_of_every_round(strip: PlotStrip, qtbot: QtBot) -> None:
    lengths = [4, 6, 0, 2, 0, 8]
    lane = changing_lane(strip.race, 1, lengths)
    changing_lane(strip.race, 0, [0, 0])
    strip.refresh(now=True)
    speed = strip.cards["decode_tokens_per_s"]
    assert not strip.lengths.names and speed.isVisible() and not strip.phases.isVisible()
    with qtbot.waitSignal(strip.third_changed):
        strip.set_third("k")
    assert strip.lengths.isVisible() and not strip.phases.isVisible() and not speed.isVisible()
    assert set(drawn(strip.lengths)) == {1}
    x, y = drawn(strip.lengths)[1]
    edges = [0.0, *lane.table.sums("emitted")]
    assert list(x) == [edge for pair in zip(edges, edges[1:], strict=False) for edge in pair]
    assert list(y) == [k for k in lengths for _ in range(2)]
    assert key(strip.lengths) == {"draft model": "8"}
    # it goes on as rounds come
    changing_lane(strip.race, 2, [3])
    strip.refresh(now=True)
    assert set(drawn(strip.lengths)) == {1, 2}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 12))
def test_mean_draft_length_counts_rounds_without_a_draft(lengths: list[int], window: int) -> None:
    lane = LaneModel()
    for place, k in enumerate(lengths):
        drafted = tuple(DraftedToken(1, "ignored") for _ in range(k))
        lane.add(Round(place, 0.1 * place, 0, 0.1, 0, drafted=drafted, final=FinalToken(1, "plain")))
    means = {count: curve(lane, "draft_length", PlotOptions(window=count))[1] for count in (None, window)}
    assert list(lane.table["k"]) == lengths
    for place in range(len(lengths)):
        assert means[None][place] == pytest.approx(np.mean(lengths[: place + 1]))
        assert means[window][place] == pytest.approx(np.mean(lengths[max(0, place + 1 - window): place + 1]))


def test_mean_draft_length_follows_the_window(strip: PlotStrip) -> None:
    lengths = [4, 6, 0, 2, 0, 8, 8, 8, 8, 8, 8]
    changing_lane(strip.race, 1, lengths)
    strip.set_third("mean-k")
    assert drawn(strip.lengths)[1][1][-1] == pytest.approx(np.mean(lengths))
    assert strip.lengths.headline.formula == "drafted / rounds"
    strip.set_options(window=8)
    assert drawn(strip.lengths)[1][1][-1] == pytest.approx(np.mean(lengths[-8:]))
    strip.set_third("time")
    assert strip.phases.isVisible() and not strip.lengths.isVisible()


def test_third_plot_is_chosen_with_the_keyboard(strip: PlotStrip, qtbot: QtBot) -> None:
    chooser = strip._chooser()
    assert chooser.focusPolicy() & Qt.FocusPolicy.TabFocus and "time per round" in chooser.text()
    chooser.setFocus()
    def choose(place: int) -> list[bool]:
        menu = strip._chooser().menu()
        menu.aboutToShow.emit()
        ticked = [action.isChecked() for action in menu.actions() if action.isCheckable()]
        menu.actions()[place].trigger()
        return ticked

    assert choose(0) == [True, False, False, False] and strip.third == "speed"
    assert choose(2) == [True, False, False, False]
    assert strip.third == "k" and strip._chooser() is not chooser and strip._chooser().hasFocus()
    assert choose(2) == [False, False, True, False]
    assert "speed" in strip._chooser().text() and "Draft length" in strip._chooser().accessibleName()
    strip.set_third("nonsense")
    assert strip.third == "k"
    choose(1)  # time per round: whose?
    assert choose(7)[4:] == [False, True, False] and strip._phase_lane() is strip.race.lanes[2]


def test_a_long_run_of_draft_lengths_is_thinned(strip: PlotStrip) -> None:
    lane = strip.race.lanes[1]
    for place in range(3000):
        drafted = (DraftedToken(1, "ignored"),) * (place % 7)
        lane.add(Round(place, 0.1 * (place + 1), 0, 0.1, 0, drafted=drafted, final=FinalToken(1, "plain")))
    x, y = steps(lane, PlotOptions())
    assert len(x) == len(y) <= 2 * (MAX_POINTS + 1)
    assert x[0] == 0 and x[-1] == lane.emitted and y[-1] == 2999 % 7
    assert (np.diff(x) >= 0).all()


def test_draft_lengths_of_an_empty_race(qtbot: QtBot) -> None:
    made = PlotStrip(make_race(1))
    qtbot.addWidget(made)
    made.set_third("k")
    made.load()
    made.refresh(now=True)
    assert made.lengths.said == "No lane drafts"
    assert len(steps(LaneModel(), PlotOptions())[0]) == 0


def test_a_long_lane_name_leaves_the_title_its_room(strip: PlotStrip, qtbot: QtBot) -> None:
    strip.race.lanes[1].name = "a lane with a very long name indeed"
    stream(strip.race, 0.5)
    strip.set_third("time")
    strip.resize(800, 200)
    strip.refresh(now=True)
    chooser = strip._chooser()
    qtbot.waitUntil(lambda: "…" in chooser.text())
    qtbot.waitUntil(lambda: chooser.width() >= chooser.sizeHint().width())
    qtbot.waitUntil(lambda: strip.phases.headline.width() >= strip.phases.headline.title_width())
    assert "very long name" in chooser.accessibleName()


def test_a_point_under_the_cursor_is_read_in_place_of_the_figures(strip: PlotStrip, qtbot: QtBot) -> None:
    stream(strip.race, 1.0)
    strip.refresh(now=True)
    card = strip.cards["acceptance_rate"]
    assert card.key.isVisible() and not card.readout.isVisible()
    card.setFocus()
    qtbot.keyClick(card, Qt.Key.Key_Right)
    assert "draft model" in card.readout.full and card.readout.isVisible() and not card.key.isVisible()
    card.point_at("", -1)
    assert card.key.isVisible() and not card.readout.isVisible()


def test_the_axis_name_stands_under_its_numbers_from_the_first_picture_on(qtbot: QtBot) -> None:
    race = make_race(3)
    strip = PlotStrip(race)
    qtbot.addWidget(strip)
    strip.resize(1100, 140)
    with qtbot.waitExposed(strip):
        strip.show()
    stream(race, 1.0)
    strip.load()
    strip.refresh(now=True)
    card = strip.cards["tokens_per_target_pass"]
    card.redraw()
    axis = card.plot.getAxis("bottom")
    assert axis.size().height() == axis.minimumHeight() > 0
    assert axis.label.pos().y() + axis.label.boundingRect().height() > axis.size().height()
