"""The Sweep tab: from the form to races, stop and resume, plots and exports; over made-up engines."""

from __future__ import annotations

import errno
import gc
import json
import os
from dataclasses import replace

import numpy as np
import pytest
from PySide6.QtCore import QEvent, QObject, QPointF, Qt, QTimer, Signal
from PySide6.QtWidgets import QFileDialog

from specview.errors import SpecviewError
from specview.experiments.sweep_file import SweepFile, read_sweep
from specview.experiments.sweep_grid import Grid, GridPrompt
from specview.gui.parts import theme
from specview.gui.parts.pages import PageContext
from specview.gui.parts.selection import Selection
from specview.gui.shell import app as application
from specview.gui.sweep import work as sweep_work
from specview.gui.sweep.form import GridForm
from specview.gui.sweep.page import SweepPage
from specview.gui.sweep.work import NeedsYes, newest_sweeps
from specview.racing.pool import ModelPool
from specview.racing.resolve import models_named
from specview.settings.run import LaneSettings, RunSettings
from tests.experiments.test_sweep import made
from tests.gui.shell_fake import FakeBackend
from tests.racing.world import World

WAIT_MS = 30_000


@pytest.fixture
def world(monkeypatch, tmp_path):
    """Made-up engines behind the window's engine thread, and a data folder of the test's own."""
    monkeypatch.setenv("SPECVIEW_DATA", str(tmp_path / "data"))
    world = World(monkeypatch)
    pool = ModelPool()
    monkeypatch.setattr(FakeBackend, "pool", property(lambda self: pool))
    yield world
    pool.close()


@pytest.fixture
def page(world, make_window, qtbot):
    """The tab in front, its folder read, its form a small grid of raw prompts."""
    window = make_window()
    window.setup.show_settings(replace(window.run_settings(), chat=False, prompt="bcdbc", workload=None, system=""), "auto")
    window.tabs.open("Sweep")
    page = window.tabs.page("Sweep")
    qtbot.waitUntil(lambda: not page.reader.busy, timeout=WAIT_MS)
    qtbot.waitUntil(lambda: not window.controller.busy_with, timeout=WAIT_MS)
    page.form.ks.setText("1..3")
    page.form.repeats.set_value(2)
    page.form.max_tokens.set_value(16)
    page.form.prompts.tick(["prompt of the race"])
    page.form.lanes.tick(["draft-model"])
    page.ask = lambda what: pytest.fail(f"asked about {what}")
    return page


class FakeController(QObject):
    """What the page asks of the controller, where nothing is run."""

    state_changed = Signal()
    busy_with = busy_words = ""


@pytest.fixture
def bare(world, qapp):
    """The page alone, without a window around it."""
    settings = RunSettings(prompt="bcdbc", chat=False, lanes=(LaneSettings(), LaneSettings("prompt-lookup")))
    context = PageContext(FakeController(), Selection(), lambda: settings, print, print, bool, print, bool)
    application.make_app([])
    if theme.current() is not theme.DARK or not qapp.styleSheet():
        theme.apply(qapp, "dark", 1.0)
    page = SweepPage(context)
    page.resize(1280, 720)
    page.form.show_settings(settings)
    page.form.prompts.tick(["prompt of the race"])
    page.show()
    yield page
    page.close()
    page.deleteLater()
    # Now, not when an event loop next runs: every page that is alive slows down a change of theme.
    qapp.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
    gc.collect()


def test_the_keyboard_goes_from_run_to_stop_and_back(page, qtbot):
    page.window().activateWindow()
    page.run.setFocus()
    page.run.click()
    assert page.running and page.stop.hasFocus()
    qtbot.waitUntil(lambda: not page.running, timeout=WAIT_MS)
    assert page.run.hasFocus()


def run_to_end(page, qtbot):
    page.run.click()
    assert page.running
    qtbot.waitUntil(lambda: not page.running, timeout=WAIT_MS)
    qtbot.waitUntil(lambda: not page.context.controller.busy_with, timeout=WAIT_MS)


def by_hand(page, *, temperatures=(0.0, 0.7), groups=("story", "extract"), lanes=("draft-model",), speedup=lambda k, repeat: 1.5 - 0.1 * k):
    prompts = tuple(GridPrompt(group, f"about {group}") for group in groups)
    grid = Grid(RunSettings(max_tokens=16), tuple(map(LaneSettings, lanes)), (1, 2, 4, 8), temperatures, prompts, 2).checked()
    results = made(grid, speedup)
    page.show_sweep(results, None)
    for chart in page.charts.charts:
        chart.redraw()
    return results


def test_a_grid_is_run_and_its_figures_are_shown(page, qtbot, tmp_path):
    run_to_end(page, qtbot)
    assert len(page.results.runs) == page.results.total == 6
    assert page.words.full.startswith("Done: 6 races")
    assert page.progress.value() == page.progress.maximum()
    assert [row["k"] for row in page.table.rows] == [1, 2, 3]
    assert all(row["speedup"] > 0 for row in page.table.rows)
    assert "prompt of the race" in page.charts.speedup.names
    assert page.path.parent == tmp_path / "data" / "sweeps"
    assert len(read_sweep(page.path).runs) == 6
    assert page.results.facts[0]["target_model_name"] == "fake-target"
    assert not page.resume.isEnabled() and page.run.isEnabled() and page.export.isEnabled()


def test_stop_keeps_the_finished_races_and_resume_goes_on(page, qtbot):
    page.form.repeats.set_value(15)
    page.run.click()
    qtbot.waitUntil(lambda: page.results is not None and len(page.results.runs) >= 3, timeout=WAIT_MS)
    assert page.stop.isEnabled() and not page.run.isEnabled()
    page.stop.click()
    assert not page.stop.isEnabled()
    qtbot.waitUntil(lambda: not page.running and not page.context.controller.busy_with, timeout=WAIT_MS)
    done = len(page.results.runs)
    assert 3 <= done < 45
    assert len(read_sweep(page.path).runs) == done
    assert f"Stopped after {done} of 45 races" in page.words.full
    assert page.resume.isEnabled()
    path = page.path
    page.resume.click()
    qtbot.waitUntil(lambda: not page.running, timeout=4 * WAIT_MS)
    assert page.path == path
    assert len(page.results.runs) == len(read_sweep(path).runs) == 45
    assert not page.resume.isEnabled()


def test_progress_names_the_cell_and_the_time_left(page, qtbot):
    said = []
    page.job.told.connect(lambda _: said.append((page.progress.value(), page.words.full)))
    run_to_end(page, qtbot)
    assert any("k 2" in words and "repeat 2 of 2" in words for _, words in said)
    values = [value for value, words in said if " of 6 races" in words]
    assert values == sorted(values) and values[-1] == 1000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda form: form.ks.setText(""), "the grid is empty: no k"),
        (lambda form: form.ks.setText("nan"), "k is 'nan'"),
        (lambda form: form.temperatures.setText("nan"), "temperature is 'nan'"),
        (lambda form: form.prompts.tick([]), "the grid is empty: no prompt"),
        (lambda form: form.lanes.tick([]), "the grid is empty: no lane drafts"),
        (lambda form: form.repeats.setText("0"), "repeats is 0"),
        (lambda form: form.max_tokens.setText("x"), "max tokens is 'x'"),
    ],
)
def test_an_empty_or_broken_grid_is_one_line_and_runs_nothing(bare, world, change, words):
    change(bare.form)
    assert words in bare.estimate.text()
    bare.run.click()
    assert words in bare.banner.message and "\n" not in bare.banner.message
    assert not bare.running and world.loads == []


def test_ten_thousand_cells_ask_first_with_an_estimate(page, qtbot, world):
    asked = []
    page.ask = lambda what: asked.append(what) or False
    page.form.ks.setText("1..50")
    page.form.temperatures.setText("0..1.99:0.01")
    page.form.repeats.set_value(1)
    assert "10,000 cells" in page.estimate.text()
    run_to_end(page, qtbot)  # the first time, plain decoding is timed for it
    (what,) = asked
    assert isinstance(what, NeedsYes) and what.words.startswith("10,000 cells, one race each, about ")
    assert page.results is None and newest_sweeps() == []
    assert "about" in page.estimate.text() and "plain tok/s" in page.estimate.text()
    page.run.click()  # now the rate is known: asked at once
    assert len(asked) == 2 and not page.running


def test_yes_runs_it(page, qtbot, monkeypatch):
    monkeypatch.setattr("specview.experiments.sweep.ASK_RUNS", 2)
    asked = []
    page.ask = lambda what: asked.append(what) or True
    page.run.click()
    qtbot.waitUntil(lambda: page.results is not None and not page.running, timeout=WAIT_MS)
    assert len(asked) == 1 and len(page.results.runs) == 6


@pytest.mark.parametrize("answer", ["Run it", "Cancel"])
def test_the_question_says_how_long(bare, qapp, answer):
    said = []

    def press():
        box = qapp.activeModalWidget()
        said.append(box.text())
        next(button for button in box.buttons() if button.text().replace("&", "") == answer).click()

    QTimer.singleShot(0, press)
    assert bare.ask(NeedsYes(bare.form.grid(), None, "8 cells, about 2 h")) == (answer == "Run it")
    assert said == ["8 cells, about 2 h.\nIt can be stopped and resumed at any time."]


def test_a_target_that_cannot_be_loaded_is_one_line(page, qtbot, world):
    def broken():
        raise SpecviewError("There is no file x.", "Check the path.")

    world.models["target", "bundled"] = broken
    run_to_end(page, qtbot)
    assert page.banner.message == "There is no file x. Check the path."
    assert page.run.isEnabled() and newest_sweeps() == []


def test_a_cell_that_fails_is_told_and_the_others_run(page, qtbot, world):
    def broken():
        raise SpecviewError("draft.gguf is cut short.", "Download it again.")

    world.models["draft", "bundled"] = broken
    page.form.lanes.tick(["draft-model", "prompt-lookup"])
    run_to_end(page, qtbot)
    assert "6 failed: draft.gguf is cut short" in page.words.full
    notes = [row["note"] for row in page.table.rows]
    assert sum(note.startswith("failed: ") for note in notes) == 3
    assert page.resume.isEnabled(), "what failed can be raced once more"


def test_a_busy_engine_is_said(bare, monkeypatch):
    monkeypatch.setattr(type(bare.context.controller), "busy_with", "a race")
    monkeypatch.setattr(type(bare.context.controller), "busy_words", "The engine is busy with a race.")
    bare.start()
    assert "busy with a race" in bare.banner.message and not bare.running


def test_an_unfinished_sweep_is_offered_when_the_tab_opens(world, make_window, qtbot):
    grid = Grid(RunSettings(max_tokens=8, chat=False), (LaneSettings("draft-model"),), (1, 2), (0.0,), (GridPrompt("g", "bcdbc"),), 1).checked()
    path = sweep_work.new_path()
    with SweepFile.begin(path, grid) as file:
        file.add(made(grid, lambda k, repeat: 1.2).runs[0, 0])
    window = make_window()
    window.tabs.open("Sweep")
    page = window.tabs.page("Sweep")
    qtbot.waitUntil(lambda: page.results is not None, timeout=WAIT_MS)
    assert "not finished: 1 of 2 races" in page.banner.message
    qtbot.waitUntil(lambda: page.resume.isEnabled(), timeout=WAIT_MS)
    page.resume.click()
    qtbot.waitUntil(lambda: not page.running, timeout=WAIT_MS)
    assert len(read_sweep(path).runs) == 2


def test_what_was_shown_is_shown_again_after_a_restart(page, qtbot, make_window):
    run_to_end(page, qtbot)
    page.form.ks.setText("1,2,5")
    window = page.window()
    path = page.path
    window.close()
    again = make_window()
    again.tabs.open("Sweep")
    other = again.tabs.page("Sweep")
    qtbot.waitUntil(lambda: other.results is not None, timeout=WAIT_MS)
    assert other.path == path and len(other.results.runs) == 6
    assert other.form.ks.text() == "1,2,5"
    assert other.form.lanes.texts() == ["draft-model"]


def test_a_sweep_that_lies_elsewhere_is_shown_again_too(bare, qtbot, tmp_path):
    grid = Grid(RunSettings(max_tokens=20), (LaneSettings("draft-model"),), (2, 3), (0.0,), (GridPrompt("story", "x"),), 1).checked()
    path = tmp_path / "mine.jsonl"
    with SweepFile.begin(path, grid) as file:
        for run in made(grid, lambda k, repeat: 1.0 + k / 10).runs.values():
            file.add(run)
    with SweepFile.begin(sweep_work.new_path(), grid):
        pass  # one of the data folder that is not finished
    bare.form.ks.setText("1,7")
    bare.restore({"path": str(path)})
    bare.opened()
    assert bare.kept()["path"] == str(path)
    qtbot.waitUntil(lambda: bare.results is not None, timeout=WAIT_MS)
    assert bare.path == path and not bare.banner.message
    assert bare.form.ks.text() == "1,7"  # the form is what it was, not the sweep's
    assert bare.kept()["path"] == str(path)


def test_a_sweep_that_is_gone_is_not_shown_again(bare, qtbot, tmp_path):
    bare.restore({"path": str(tmp_path / "gone.jsonl")})
    bare.opened()
    qtbot.waitUntil(lambda: not bare.reader.busy, timeout=WAIT_MS)
    assert bare.results is None and not bare.banner.message


def test_opening_a_file_that_is_no_sweep_is_one_line(bare, qtbot, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text("hello")
    bare.open_file(path)
    qtbot.waitUntil(lambda: bool(bare.banner.message), timeout=WAIT_MS)
    assert "is no sweep" in bare.banner.message and bare.results is None


def test_an_earlier_sweep_opens_and_fills_the_form(bare, qtbot, tmp_path):
    grid = Grid(RunSettings(max_tokens=20), (LaneSettings("draft-model"),), (2, 3), (0.0, 0.5), (GridPrompt("story", "x"),), 4).checked()
    path = tmp_path / "mine.jsonl"
    with SweepFile.begin(path, grid) as file:
        for run in made(grid, lambda k, repeat: 1.0 + k / 10).runs.values():
            file.add(run)
    bare.open_file(path)
    qtbot.waitUntil(lambda: bare.results is not None, timeout=WAIT_MS)
    assert (bare.form.ks.text(), bare.form.temperatures.text()) == ("2,3", "0,0.5")
    assert (bare.form.repeats.value(), bare.form.max_tokens.value()) == (4, 20)
    assert bare.form.prompts.texts() == ["story"]
    assert "mine" in bare.name.full


def test_models_that_an_opened_sweep_names_are_asked_about_before_it_goes_on(bare, qtbot, tmp_path):
    lanes = (LaneSettings("draft-model", draft="owner/draft"), LaneSettings("suffix", options={"store": "/any/path"}))
    grid = Grid(RunSettings(target="owner/name"), lanes, (2, 3), (0.0,), (GridPrompt("story", "x"),), 1).checked()
    path = tmp_path / "theirs.jsonl"
    with SweepFile.begin(path, grid):
        pass
    asked = []
    bare.context.confirm_models = lambda settings: asked.append(models_named(settings))
    bare.open_file(path)
    qtbot.waitUntil(lambda: bare.results is not None, timeout=WAIT_MS)
    assert bare.results.grid.lanes[1].options["store"] == ""
    bare.go_on()
    assert asked == [{"owner/name": "target", "owner/draft": "draft of draft-model"}] and not bare.running


# -- plots ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dark", "light"])
def test_every_plot_has_axes_units_and_a_key(bare, qapp, name):
    by_hand(bare)
    theme.apply(qapp, name)
    charts = bare.charts
    for chart in charts.charts:
        chart.redraw()
        assert chart.x_name and chart.y_name
        assert chart.plot.getAxis("bottom").labelText and chart.plot.getAxis("left").labelText
        assert chart._stack.currentWidget() is chart.plot
    assert "× plain" in charts.speedup.y_name
    for chart in (charts.speedup, charts.positions, charts.along):
        assert {"story", "extract"} <= {entry.name for entry in chart.key.entries}
    assert {"predicted (modelled)", "best k"} <= {entry.name for entry in charts.speedup.key.entries}
    measured = next(entry for entry in charts.speedup.key.entries if entry.name == "story")
    predicted = next(entry for entry in charts.speedup.key.entries if entry.name == "predicted (modelled)")
    assert not measured.dashed and predicted.dashed, "line style tells them apart besides the words"


def test_the_curves_are_the_results(bare):
    results = by_hand(bare, speedup=lambda k, repeat: 1.5 - 0.1 * k + 0.02 * repeat)
    x, y = bare.charts.speedup.values("story")
    assert list(x) == [1, 2, 4, 8]
    assert list(y) == pytest.approx([1.4, 1.3, 1.1, 0.7])  # of two repeats the lower
    drawn = bare.charts.speedup.picture.series["story"]
    assert list(drawn.low) == pytest.approx([1.4, 1.3, 1.1, 0.7]) and list(drawn.high) == pytest.approx([1.42, 1.32, 1.12, 0.72])
    series = results.series(results.curves()[0])
    x, y = bare.charts.speedup.values("story, predicted")
    assert list(x) == list(range(1, 9)) and list(y) == [one.speedup for one in series.predicted]
    assert list(bare.charts.speedup.values("best k")[0]) == [1, 1]
    assert "best k 1" in bare.charts.words.text()


def test_plain_wins_is_said(bare):
    by_hand(bare, speedup=lambda k, repeat: 0.9 - 0.01 * k)
    assert bare.charts.words.text().count("plain wins") == 2
    assert [row["note"] for row in bare.table.rows].count("plain wins") == 4


def test_the_map_is_over_k_and_temperature_where_there_are_several(bare):
    by_hand(bare)
    heat = bare.charts.map.picture.heat
    assert heat.z.shape == (2, 4)
    assert bare.charts.map.y_name == "temperature"
    assert heat.centre == 1.0
    assert np.allclose(heat.z[0], [1.4, 1.3, 1.1, 0.7])
    by_hand(bare, temperatures=(0.0,))
    assert bare.charts.map.y_name == "workload" and bare.charts.map.picture.heat.z.shape == (2, 4)


def test_what_is_compared_can_be_chosen(bare):
    by_hand(bare, lanes=("draft-model", "prompt-lookup"))
    charts = bare.charts
    charts.compare.set_value("temperature")
    assert {"T 0", "T 0.7"} <= set(charts.speedup.names) and "story" not in charts.speedup.names
    charts.compare.set_value("lane")
    assert {"draft-model", "prompt-lookup"} <= set(charts.speedup.names)
    assert {"draft-model", "prompt-lookup"} == set(charts.content.names)
    charts.fixed["group"].setCurrentIndex(1)
    assert {"draft-model", "prompt-lookup"} <= set(charts.speedup.names)


def test_more_curves_than_can_be_told_apart_are_said(bare):
    by_hand(bare, groups=tuple(f"w{i}" for i in range(11)), temperatures=(0.0,))
    measured = [name for name in bare.charts.speedup.names if name.startswith("w") and "predicted" not in name]
    assert len(measured) == 8
    looks = {(s.lane, s.as_drawn()) for s in (bare.charts.speedup.picture.series[name] for name in measured)}
    assert len(looks) == 8
    assert "3 more curves" in bare.charts.words.accessibleDescription()


def test_a_sweep_under_way_draws_what_there_is(bare):
    results = by_hand(bare)
    part = type(results)(results.grid)
    bare.show_sweep(part, None)
    assert bare.charts.speedup._words.text() == "Nothing is measured yet."
    part.add(results.runs[0, 0])
    bare._redraw()
    assert list(bare.charts.speedup.values("story")[0]) == [1]
    assert bare.table.rows[0]["speedup"] is not None and bare.table.rows[1]["speedup"] is None


# -- cells as races ------------------------------------------------------------------------------


def test_a_point_a_cell_and_a_row_open_as_a_race(bare, qtbot):
    results = by_hand(bare)
    opened = []
    bare.context.open_race = opened.append
    bare.charts.speedup.picked.emit("extract", 2)
    bare.charts.map.cell_picked.emit(1, 3)
    bare.table.select(5)
    assert bare.as_race.isEnabled()
    bare.as_race.click()
    bare.table.view.setFocus()
    qtbot.keyClick(bare.table.view, Qt.Key.Key_Return)
    assert [(race.prompt, race.lanes[1].k, race.sampling.temperature) for race in opened] == [
        ("about extract", 4, 0.0),
        ("about story", 8, 0.7),
        *[(f"about {bare.results.grid.prompts[results.cells[5].prompt].group}", results.cells[5].k, results.cells[5].temperature)] * 2,
    ]
    assert all(race.lanes[0].method == "plain" and race.observe == "full" for race in opened)


def test_a_real_click_on_the_map_opens_its_cell(bare, qtbot):
    by_hand(bare)
    opened = []
    bare.charts.cell.connect(opened.append)
    chart = bare.charts.map
    chart.redraw()
    view = chart.plot.getPlotItem().getViewBox()
    where = view.mapViewToScene(QPointF(2, 1))
    assert chart.heat_cell(where) == (1, 2)
    assert chart.heat_cell(view.mapViewToScene(QPointF(-3, 0))) is None
    chart.cell_picked.emit(*chart.heat_cell(where))
    cell = bare.results.cells[opened[0]]
    assert (cell.k, cell.temperature) == (4, 0.7)


def test_opening_a_cell_shows_it_in_the_race_tab(page):
    by_hand(page)
    window = page.window()
    page.open_cell(2)
    assert window.tabs.current == "Race"
    settings = window.run_settings()
    assert settings.prompt == "about story" and settings.lanes[1].k == 4


# -- exports -------------------------------------------------------------------------------------


def test_every_format_is_exported(bare, tmp_path, monkeypatch):
    by_hand(bare)
    bare._fill_export_menu()
    texts = [action.text() for action in bare.export_menu.actions()]
    assert texts[:4] == ["Table as CSV…", "Table as Markdown…", "Table as JSON…", "Whole sweep as JSON…"]
    for name, place in (("t.csv", 0), ("t.md", 1), ("t.json", 2), ("s.json", 3)):
        monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_, name=name, **__: (str(tmp_path / name), ""))
        bare.export_menu.actions()[place].trigger()
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 17
    assert json.loads((tmp_path / "s.json").read_text())["schema"] == "specview.sweep/1"
    assert (tmp_path / "t.md").read_text().startswith("| lane |")
    for chart in bare.charts.charts:
        for ending, begin in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("csv", b"series")):
            path = tmp_path / f"plot.{ending}"
            assert bare.save_plot(chart, path)
            assert path.read_bytes().startswith(begin)
            path.unlink()
    assert chart.title in [action.text() for action in bare.export_menu.actions()]


def test_a_full_disk_leaves_the_old_files(bare, tmp_path, monkeypatch):
    by_hand(bare)

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    paths = {name: tmp_path / name for name in ("s.json", "p.png", "p.svg", "t.csv")}
    for path in paths.values():
        path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    assert not bare.save_json(paths["s.json"])
    assert "no space left" in bare.banner.message
    assert not bare.save_plot(bare.charts.speedup, paths["p.png"])
    assert not bare.save_plot(bare.charts.map, paths["p.svg"])
    assert not bare.table.export_to("csv", paths["t.csv"])
    assert {path.read_bytes() for path in paths.values()} == {b"old"}
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == sorted(paths)


# -- the form ------------------------------------------------------------------------------------


def test_the_race_s_lanes_come_first_and_take_the_grid_s_k(page):
    window = page.window()
    window.lane_settings = [LaneSettings(), LaneSettings("draft-model", k=7, rule="match")]
    window._lanes_edited()
    page.opened()
    page.form.lanes.tick([page.form.lanes.item(0).text()])
    grid = page.form.grid()
    assert [(lane.method, lane.rule, lane.k) for lane in grid.lanes] == [("draft-model", "match", None)]


def test_the_form_comes_back_as_it_was(bare, qtbot):
    bare.form.lanes.tick(["prompt-lookup · as in the race", "suffix"])
    bare.form.ks.setText("2..9:2")
    kept = json.loads(json.dumps(bare.form.kept()))
    other = GridForm()
    qtbot.addWidget(other)
    other.restore(kept)
    other.show_settings(bare.context.run_settings())
    assert other.kept() == kept
    other.restore({"k": 3, "lanes": "x", "prompts": [None], "repeats": []})
    assert other.ks.text() == "2..9:2"


def test_a_file_of_prompts_joins_the_list(bare, tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a", "workload": "w"}\n{"prompt": "b"}\n')
    assert bare.form.add_file(str(path)) == ""
    bare.form.prompts.tick(["mine.jsonl (2 prompts)"])
    assert [prompt.group for prompt in bare.form.grid().prompts] == ["w", "mine.jsonl"]
    path.write_text("{")
    assert "not JSON" in bare.form.add_file(str(path))


def test_every_control_has_a_name_and_takes_the_keyboard(bare):
    for widget in (bare.run, bare.stop, bare.resume, bare.open, bare.export, bare.as_race, bare.form.ks, bare.form.temperatures,
                   bare.form.prompts, bare.form.lanes, bare.form.repeats, bare.form.file, bare.charts.compare):  # fmt: skip
        assert widget.focusPolicy() & Qt.FocusPolicy.TabFocus
        assert widget.accessibleName() or getattr(widget, "text", str)()


def test_in_a_low_window_the_plots_scroll_and_are_not_crushed(bare, qtbot):
    bare.resize(940, 420)
    qtbot.wait(30)
    assert all(chart.height() >= theme.px(130) for chart in bare.charts.charts if chart.isVisible())
