"""The Sweep tab: from the form to races, stop and resume, plots and exports; over made-up engines."""

from __future__ import annotations

import errno
import json
import os
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from PySide6.QtCore import QEvent, QPointF, Qt, QTimer
from PySide6.QtWidgets import QFileDialog

from specview.errors import SpecviewError
from specview.experiments.sweep_file import SweepFile, new_path, read_sweep
from specview.experiments.sweep_grid import Grid, GridPrompt
from specview.gui.link.controller import Controller
from specview.gui.link.engine_thread import EngineThread
from specview.gui.link.job import Job
from specview.gui.parts import theme
from specview.gui.parts.pages import PageContext
from specview.gui.parts.selection import Selection
from specview.gui.sweep.form import GridForm
from specview.gui.sweep.page import SweepPage
from specview.gui.sweep.work import SweepPlan, newest_sweeps
from specview.racing.resolve import models_named
from specview.settings.run import LaneSettings, RunSettings
from tests.experiments.test_sweep import broken, made
from tests.gui.shell_fake import FakeBackend, Script, dress

WAIT_MS = 30_000
LANES = (LaneSettings(), LaneSettings("prompt-lookup"))
DRAFTED = (LaneSettings("draft-model"),)


@pytest.fixture
def settings() -> list[RunSettings]:
    """What the race's bar and lanes say; a test may put other settings there."""
    return [RunSettings(prompt="bcdbc", chat=False, lanes=LANES)]


@contextmanager
def shown_page(qapp, script, settings):
    """The page over a controller and an engine thread, without the rest of the window; its form a small grid."""
    controller = Controller(EngineThread(lambda: FakeBackend(script)))
    context = PageContext(controller, Selection(), lambda: settings[0], print, print, bool, print, lambda settings: True)
    dress(qapp)
    page = SweepPage(context)
    page.resize(1280, 720)
    page.form.show_settings(settings[0])
    page.form.ks.setText("1..3")
    page.form.repeats.set_value(2)
    page.form.max_tokens.set_value(16)
    page.form.prompts.tick(["prompt of the race"])
    page.form.lanes.tick(["draft-model"])
    page.ask = lambda plan: pytest.fail(f"asked about {plan}")
    page.show()
    controller.engine.start()
    yield page
    controller.close(5.0)
    page.reader.close()
    page.close()
    page.deleteLater()
    # Now, not when an event loop next runs: every page that is alive slows down a change of theme.
    qapp.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)


@pytest.fixture
def page(world, qapp, script, settings):
    """A page of the test's own."""
    with shown_page(qapp, script, settings) as made:
        yield made


@pytest.fixture(scope="module")
def drawn(qapp):
    """One page for all tests that only look at what it shows of results made by hand."""
    with shown_page(qapp, Script(), [RunSettings(prompt="bcdbc", chat=False, lanes=LANES)]) as made:
        yield made


def ended(page, qtbot):
    qtbot.waitUntil(lambda: not page.running and not page.controller.busy_with, timeout=WAIT_MS)


def run_to_end(page, qtbot):
    page.run.click()
    assert page.running
    ended(page, qtbot)


def grid_of(*groups, lanes=DRAFTED, ks=(1, 2, 4, 8), temperatures=(0.0,), repeats=2, **shared):
    prompts = tuple(GridPrompt(group, f"about {group}") for group in groups or ("story",))
    return Grid(RunSettings(**{"max_tokens": 16, **shared}), lanes, ks, temperatures, prompts, repeats).checked()


def written(path, grid, races=None):
    """A sweep's file with so many of its races, made by hand."""
    with SweepFile.begin(path, grid) as file:
        for run in list(made(grid, lambda k, repeat: 1.0 + k / 10).runs.values())[:races]:
            file.add(run)
    return path


def by_hand(page, *, temperatures=(0.0, 0.7), groups=("story", "extract"), lanes=("draft-model",), speedup=lambda k, repeat: 1.5 - 0.1 * k):
    results = made(grid_of(*groups, lanes=tuple(map(LaneSettings, lanes)), temperatures=temperatures), speedup)
    page.show_sweep(results, None)
    for chart in page.charts.charts:
        chart.redraw()
    return results


def test_a_grid_is_run_and_its_figures_are_shown(page, qtbot, tmp_path):
    said = []
    page.job.progressed.connect(lambda _: said.append((page.progress.value(), page.words.full)))
    page.window().activateWindow()
    page.run.setFocus()
    page.run.click()
    assert page.running and page.stop.hasFocus(), "the keyboard goes from Run to Stop and back"
    ended(page, qtbot)
    assert page.run.hasFocus()
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
    assert any("k 2" in words and "repeat 2 of 2" in words for _, words in said)
    values = [value for value, words in said if " of 6 races" in words]
    assert values == sorted(values) and values[-1] == 1000


def test_stop_keeps_the_finished_races_and_resume_goes_on(page, qtbot):
    page.form.repeats.set_value(15)
    page.run.click()
    qtbot.waitUntil(lambda: page.results is not None and len(page.results.runs) >= 3, timeout=WAIT_MS)
    assert page.stop.isEnabled() and not page.run.isEnabled()
    page.stop.click()
    assert not page.stop.isEnabled()
    ended(page, qtbot)
    done, path = len(page.results.runs), page.path
    assert 3 <= done < 45 and len(read_sweep(path).runs) == done
    assert f"Stopped after {done} of 45 races" in page.words.full
    page.resume.click()
    ended(page, qtbot)
    assert page.path == path and not page.resume.isEnabled()
    assert len(page.results.runs) == len(read_sweep(path).runs) == 45


def test_an_empty_or_broken_grid_is_one_line_and_runs_nothing(page, world):
    form = page.form
    good = form.kept()
    for change, words in (
        (lambda: form.ks.setText(""), "the grid is empty: no k"),
        (lambda: form.ks.setText("nan"), "k is 'nan'"),
        (lambda: form.temperatures.setText("nan"), "temperature is 'nan'"),
        (lambda: form.prompts.tick([]), "the grid is empty: no prompt"),
        (lambda: form.lanes.tick([]), "the grid is empty: no lane drafts"),
        (lambda: form.repeats.setText("0"), "repeats is 0"),
        (lambda: form.max_tokens.setText("x"), "max tokens is 'x'"),
    ):
        change()
        assert words in page.estimate.text()
        page.run.click()
        assert words in page.banner.message and "\n" not in page.banner.message
        form.restore(good)
    assert not page.running and world.loads == []


def test_ten_thousand_cells_ask_first_with_an_estimate(page, qtbot):
    asked = []
    page.ask = lambda plan: asked.append(plan) or False
    page.form.ks.setText("1..50")
    page.form.temperatures.setText("0..1.99:0.01")
    page.form.repeats.set_value(1)
    assert "10,000 cells" in page.estimate.text()
    run_to_end(page, qtbot)  # the first time, plain decoding is timed for it
    (plan,) = asked
    assert plan.words.startswith("10,000 cells, one race each, about ")
    assert page.results is None and newest_sweeps() == []
    assert plan.words == page.estimate.text() and "plain tok/s" in plan.words
    page.run.click()  # now the rate is known: asked at once
    assert len(asked) == 2 and not page.running


def test_yes_runs_it(page, qtbot, monkeypatch):
    monkeypatch.setattr("specview.experiments.sweep.ASK_RUNS", 2)
    asked = []
    page.ask = lambda plan: asked.append(plan) or True
    page.run.click()
    qtbot.waitUntil(lambda: page.results is not None and not page.running, timeout=WAIT_MS)
    assert len(asked) == 1 and len(page.results.runs) == 6


@pytest.mark.parametrize("answer", ["Run it", "Cancel"])
def test_the_question_says_how_long(page, qapp, answer):
    said = []

    def press():
        box = qapp.activeModalWidget()
        said.append(box.text())
        next(button for button in box.buttons() if button.text().replace("&", "") == answer).click()

    QTimer.singleShot(0, press)
    assert SweepPage.ask(page, SweepPlan(page.form.grid(), words="8 cells, about 2 h")) == (answer == "Run it")
    assert said == ["8 cells, about 2 h.\nIt can be stopped and resumed at any time."]


def test_a_target_that_cannot_be_loaded_is_one_line_and_a_cell_that_fails_leaves_the_others(page, qtbot, world):
    target = world.models["target", "bundled"]
    world.models["target", "bundled"] = broken("There is no file x.", "Check the path.")
    run_to_end(page, qtbot)
    assert page.banner.message == "There is no file x. Check the path."
    assert page.run.isEnabled() and newest_sweeps() == []
    world.models["target", "bundled"] = target
    world.models["draft", "bundled"] = broken("draft.gguf is cut short.", "Download it again.")
    page.form.lanes.tick(["draft-model", "prompt-lookup"])
    run_to_end(page, qtbot)
    assert "6 failed: draft.gguf is cut short" in page.words.full
    assert sum(row["note"].startswith("failed: ") for row in page.table.rows) == 3
    assert page.resume.isEnabled(), "what failed can be raced once more"


def test_a_busy_engine_is_said(page, qtbot):
    other = Job(page.controller, "tuning")
    other.start(lambda pool, tell, should_stop: until(should_stop))
    page.start()
    assert "busy with tuning" in page.banner.message and not page.running
    other.stop()
    ended(page, qtbot)


def until(should_stop):
    while not should_stop():
        pass


def test_an_unfinished_sweep_is_offered_when_the_tab_opens(page, qtbot):
    path = written(new_path(), grid_of(ks=(1, 2), repeats=1, max_tokens=8, chat=False), 1)
    page.opened()
    qtbot.waitUntil(lambda: page.results is not None, timeout=WAIT_MS)
    assert "not finished: 1 of 2 races" in page.banner.message
    page.resume.click()
    ended(page, qtbot)
    assert len(read_sweep(path).runs) == 2


def test_what_was_shown_is_shown_again_after_a_restart(world, make_window, qtbot):
    path = written(new_path(), grid_of(ks=(1, 2)))
    pages = []
    for _ in range(2):
        window = make_window()
        window.tabs.open("Sweep")
        pages.append(window.tabs.page("Sweep"))
        qtbot.waitUntil(lambda: not pages[-1].reader.busy, timeout=WAIT_MS)
        if len(pages) == 1:
            pages[0].open_file(path)
            qtbot.waitUntil(lambda: pages[0].results is not None, timeout=WAIT_MS)
            pages[0].form.ks.setText("1,2,5")
            pages[0].form.lanes.tick(["draft-model"])
            by_hand(pages[0])
            pages[0].path = path
            pages[0].open_cell(2)
            assert window.tabs.current == "Race"
            run = window.run_settings()
            assert run.prompt == "about story" and run.lanes[1].k == 4
            window.close()
    again = pages[1]
    qtbot.waitUntil(lambda: again.results is not None, timeout=WAIT_MS)
    assert again.path == path and len(again.results.runs) == 4
    assert again.form.ks.text() == "1,2,5" and again.form.lanes.texts() == ["draft-model"]


def test_a_sweep_that_lies_elsewhere_is_shown_again_too(page, qtbot, tmp_path):
    path = written(tmp_path / "mine.jsonl", grid_of(ks=(2, 3)))
    written(new_path(), grid_of(ks=(2, 3)), 0)  # one of the data folder that is not finished
    page.form.ks.setText("1,7")
    page.restore({"path": str(path)})
    page.opened()
    assert page.kept()["path"] == str(path)
    qtbot.waitUntil(lambda: page.results is not None, timeout=WAIT_MS)
    assert page.path == path and not page.banner.message
    assert page.form.ks.text() == "1,7"  # the form is what it was, not the sweep's
    assert page.kept()["path"] == str(path)


def test_a_sweep_that_is_gone_is_not_shown_again_and_a_file_that_is_none_is_one_line(page, qtbot, tmp_path):
    page.restore({"path": str(tmp_path / "gone.jsonl")})
    page.opened()
    qtbot.waitUntil(lambda: not page.reader.busy, timeout=WAIT_MS)
    assert page.results is None and not page.banner.message
    path = tmp_path / "x.jsonl"
    path.write_text("hello")
    page.open_file(path)
    qtbot.waitUntil(lambda: bool(page.banner.message), timeout=WAIT_MS)
    assert "is no sweep" in page.banner.message and page.results is None


def test_an_earlier_sweep_opens_and_fills_the_form(page, qtbot, tmp_path):
    page.open_file(written(tmp_path / "mine.jsonl", grid_of(ks=(2, 3), temperatures=(0.0, 0.5), repeats=4, max_tokens=20)))
    qtbot.waitUntil(lambda: page.results is not None, timeout=WAIT_MS)
    assert (page.form.ks.text(), page.form.temperatures.text()) == ("2,3", "0,0.5")
    assert (page.form.repeats.value(), page.form.max_tokens.value()) == (4, 20)
    assert page.form.prompts.texts() == ["story"]
    assert "mine" in page.name.full


def test_models_that_an_opened_sweep_names_are_asked_about_before_it_goes_on(page, qtbot, tmp_path):
    lanes = (LaneSettings("draft-model", draft="owner/draft"), LaneSettings("suffix", options={"store": "/any/path"}))
    asked = []
    page.context.confirm_models = lambda settings: asked.append(models_named(settings))
    page.open_file(written(tmp_path / "theirs.jsonl", grid_of(lanes=lanes, target="owner/name"), 0))
    qtbot.waitUntil(lambda: page.results is not None, timeout=WAIT_MS)
    assert page.results.grid.lanes[1].options["store"] == ""
    page.go_on()
    assert asked == [{"owner/name": "target", "owner/draft": "draft of draft-model"}] and not page.running


# -- plots ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dark", "light"])
def test_every_plot_has_axes_units_and_a_key(drawn, qapp, name):
    by_hand(drawn)
    theme.apply(qapp, name)
    charts = drawn.charts
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


def test_the_curves_are_the_results(drawn):
    results = by_hand(drawn, speedup=lambda k, repeat: 1.5 - 0.1 * k + 0.02 * repeat)
    x, y = drawn.charts.speedup.values("story")
    assert list(x) == [1, 2, 4, 8]
    assert list(y) == pytest.approx([1.4, 1.3, 1.1, 0.7])  # of two repeats the lower
    curve = drawn.charts.speedup.picture.series["story"]
    assert list(curve.low) == pytest.approx([1.4, 1.3, 1.1, 0.7]) and list(curve.high) == pytest.approx([1.42, 1.32, 1.12, 0.72])
    series = results.series(results.curves()[0])
    x, y = drawn.charts.speedup.values("story, predicted")
    assert list(x) == list(range(1, 9)) and list(y) == [one.speedup for one in series.predicted]
    assert list(drawn.charts.speedup.values("best k")[0]) == [1, 1]
    assert "best k 1" in drawn.charts.words.text()


def test_plain_wins_is_said(drawn):
    by_hand(drawn, speedup=lambda k, repeat: 0.9 - 0.01 * k)
    assert drawn.charts.words.text().count("plain wins") == 2
    assert [row["note"] for row in drawn.table.rows].count("plain wins") == 4


def test_the_map_is_over_k_and_temperature_where_there_are_several(drawn):
    by_hand(drawn)
    heat = drawn.charts.map.picture.heat
    assert heat.z.shape == (2, 4)
    assert drawn.charts.map.y_name == "temperature"
    assert heat.centre == 1.0
    assert np.allclose(heat.z[0], [1.4, 1.3, 1.1, 0.7])
    by_hand(drawn, temperatures=(0.0,))
    assert drawn.charts.map.y_name == "workload" and drawn.charts.map.picture.heat.z.shape == (2, 4)


def test_what_is_compared_can_be_chosen(drawn):
    by_hand(drawn, lanes=("draft-model", "prompt-lookup"))
    charts = drawn.charts
    charts.compare.set_value("temperature")
    assert {"T 0", "T 0.7"} <= set(charts.speedup.names) and "story" not in charts.speedup.names
    charts.compare.set_value("lane")
    assert {"draft-model", "prompt-lookup"} <= set(charts.speedup.names)
    assert {"draft-model", "prompt-lookup"} == set(charts.content.names)
    charts.fixed["group"].setCurrentIndex(1)
    assert {"draft-model", "prompt-lookup"} <= set(charts.speedup.names)


def test_more_curves_than_can_be_told_apart_are_said(drawn):
    by_hand(drawn, groups=tuple(f"w{i}" for i in range(11)), temperatures=(0.0,))
    measured = [name for name in drawn.charts.speedup.names if name.startswith("w") and "predicted" not in name]
    assert len(measured) == 8
    looks = {(s.lane, s.as_drawn()) for s in (drawn.charts.speedup.picture.series[name] for name in measured)}
    assert len(looks) == 8
    assert "3 more curves" in drawn.charts.words.accessibleDescription()


def test_a_sweep_under_way_draws_what_there_is(drawn):
    results = by_hand(drawn)
    part = type(results)(results.grid)
    drawn.show_sweep(part, None)
    assert drawn.charts.speedup._words.text() == "Nothing is measured yet."
    part.add(results.runs[0, 0])
    drawn._redraw()
    assert list(drawn.charts.speedup.values("story")[0]) == [1]
    assert drawn.table.rows[0]["speedup"] is not None and drawn.table.rows[1]["speedup"] is None


# -- cells as races ------------------------------------------------------------------------------


def test_a_point_a_cell_and_a_row_open_as_a_race(drawn, qtbot):
    results = by_hand(drawn)
    opened = []
    drawn.context.open_race = opened.append
    drawn.charts.speedup.picked.emit("extract", 2)
    drawn.charts.map.cell_picked.emit(1, 3)
    drawn.table.select(5)
    assert drawn.as_race.isEnabled()
    drawn.as_race.click()
    drawn.table.view.setFocus()
    qtbot.keyClick(drawn.table.view, Qt.Key.Key_Return)
    assert [(race.prompt, race.lanes[1].k, race.sampling.temperature) for race in opened] == [
        ("about extract", 4, 0.0),
        ("about story", 8, 0.7),
        *[(f"about {drawn.results.grid.prompts[results.cells[5].prompt].group}", results.cells[5].k, results.cells[5].temperature)] * 2,
    ]
    assert all(race.lanes[0].method == "plain" and race.observe == "full" for race in opened)


def test_a_real_click_on_the_map_opens_its_cell(drawn, qtbot):
    by_hand(drawn)
    opened = []
    drawn.charts.cell.connect(opened.append)
    chart = drawn.charts.map
    chart.redraw()
    view = chart.plot.getPlotItem().getViewBox()
    where = view.mapViewToScene(QPointF(2, 1))
    assert chart.heat_cell(where) == (1, 2)
    assert chart.heat_cell(view.mapViewToScene(QPointF(-3, 0))) is None
    chart.cell_picked.emit(*chart.heat_cell(where))
    cell = drawn.results.cells[opened[0]]
    assert (cell.k, cell.temperature) == (4, 0.7)


# -- exports -------------------------------------------------------------------------------------


def test_every_format_is_exported(drawn, tmp_path, monkeypatch):
    by_hand(drawn)
    drawn._fill_export_menu()
    texts = [action.text() for action in drawn.export_menu.actions()]
    assert texts[:4] == ["Table as CSV…", "Table as Markdown…", "Table as JSON…", "Whole sweep as JSON…"]
    for name, place in (("t.csv", 0), ("t.md", 1), ("t.json", 2), ("s.json", 3)):
        monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_, name=name, **__: (str(tmp_path / name), ""))
        drawn.export_menu.actions()[place].trigger()
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 17
    assert json.loads((tmp_path / "s.json").read_text())["schema"] == "specview.sweep/1"
    assert (tmp_path / "t.md").read_text().startswith("| lane |")
    for chart in drawn.charts.charts:
        for ending, begin in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("csv", b"series")):
            path = tmp_path / f"plot.{ending}"
            chart.save(path)
            assert path.read_bytes().startswith(begin)
            path.unlink()
    assert chart.title in [action.text() for action in drawn.export_menu.actions()]


def test_a_full_disk_leaves_the_old_files(drawn, tmp_path, monkeypatch):
    by_hand(drawn)

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    paths = {name: tmp_path / name for name in ("s.json", "p.png", "p.svg", "t.csv")}
    for path in paths.values():
        path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    assert not drawn.save_json(paths["s.json"])
    assert "no space left" in drawn.banner.message
    for chart, name in ((drawn.charts.speedup, "p.png"), (drawn.charts.map, "p.svg")):
        with pytest.raises(SpecviewError, match="no space left"):
            chart.save(paths[name])
    assert not drawn.table.export_to("csv", paths["t.csv"])
    assert {path.read_bytes() for path in paths.values()} == {b"old"}
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == sorted(paths)


# -- the form ------------------------------------------------------------------------------------


def test_the_race_s_lanes_come_first_and_take_the_grid_s_k(page, settings):
    settings[0] = replace(settings[0], lanes=(LaneSettings(), LaneSettings("draft-model", k=7, rule="match")))
    page.opened()
    page.form.lanes.tick([page.form.lanes.item(0).text()])
    grid = page.form.grid()
    assert [(lane.method, lane.rule, lane.k) for lane in grid.lanes] == [("draft-model", "match", None)]


def test_the_form_comes_back_as_it_was(page, qtbot):
    page.form.lanes.tick(["prompt-lookup · as in the race", "suffix"])
    page.form.ks.setText("2..9:2")
    kept = json.loads(json.dumps(page.form.kept()))
    other = GridForm()
    qtbot.addWidget(other)
    other.restore(kept)
    other.show_settings(page.context.run_settings())
    assert other.kept() == kept
    other.restore({"k": 3, "lanes": "x", "prompts": [None], "repeats": []})
    assert other.ks.text() == "2..9:2"


def test_a_file_of_prompts_joins_the_list(page, tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "a", "workload": "w"}\n{"prompt": "b"}\n')
    assert page.form.add_file(str(path)) == ""
    page.form.prompts.tick(["mine.jsonl (2 prompts)"])
    assert [prompt.group for prompt in page.form.grid().prompts] == ["w", "mine.jsonl"]
    path.write_text("{")
    assert "not JSON" in page.form.add_file(str(path))


def test_every_control_has_a_name_and_takes_the_keyboard(drawn):
    for widget in (drawn.run, drawn.stop, drawn.resume, drawn.open, drawn.export, drawn.as_race, drawn.form.ks, drawn.form.temperatures,
                   drawn.form.prompts, drawn.form.lanes, drawn.form.repeats, drawn.form.file, drawn.charts.compare):  # fmt: skip
        assert widget.focusPolicy() & Qt.FocusPolicy.TabFocus
        assert widget.accessibleName() or getattr(widget, "text", str)()


def test_in_a_low_window_the_plots_scroll_and_are_not_crushed(drawn, qtbot):
    drawn.resize(940, 420)
    qtbot.wait(30)
    assert all(chart.height() >= theme.px(130) for chart in drawn.charts.charts if chart.isVisible())
