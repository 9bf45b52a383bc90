"""The tuning dialog: set up, run on the engine thread, stop, ranking, guide, and the lane into the race."""

from __future__ import annotations

import json

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication

from specview.drafting.registry import METHODS
from specview.errors import SpecviewError
from specview.experiments.tuning import TuneProgress, tune
from specview.gui.link.job import JobEnded
from specview.gui.tune import dialog as module
from specview.racing.intervals import Interval
from specview.racing.pool import ModelPool
from specview.racing.workloads import Prompt, Workload
from specview.settings.run import LaneSettings, RunSettings
from tests.gui.shell_fake import FakeBackend
from tests.racing.world import World


@pytest.fixture(scope="module")
def result():
    """A real tuning of fake engines; its clock is its own."""
    with pytest.MonkeyPatch.context() as patch:
        world = World(patch, row_cost=0.05)
        settings = RunSettings(prompt="b", max_tokens=32, chat=False, observe="off")
        prompts = Workload("prompt", (Prompt("bcdbcdbcdbcd"),), "0")
        methods = ("draft-model", "prompt-lookup", "suffix", "eagle")
        return tune(settings, prompts, 1500.0, methods=methods, clock=world.clock)


@pytest.fixture
def asked(monkeypatch, result):
    """What `tune` was asked; it tells one snapshot and gives the result, or waits for a stop."""
    calls: list = []

    def fake(settings, prompts, seconds, *, methods, drafts, models, on_progress, on_result, should_stop):
        calls.append({"settings": settings, "prompts": prompts, "seconds": seconds, "methods": methods, "drafts": drafts})
        on_progress(TuneProgress("Racing suffix,k=4", 0.4, "suffix,k=4", 1.4))
        on_result(result)
        while calls[-1].get("wait") or waits:
            if should_stop():
                break
        return result

    waits: list = []
    fake_state = {"calls": calls, "waits": waits}
    monkeypatch.setattr(module, "tune", fake)
    monkeypatch.setattr(FakeBackend, "pool", property(lambda self: ModelPool()))
    return fake_state


@pytest.fixture
def dialog(window, asked):
    window.show_tuning()
    return window.job_dialogs["tune"]


def finished(qtbot, dialog):
    qtbot.waitUntil(lambda: not dialog.running and dialog.result_shown is not None, timeout=5000)


def test_the_button_and_the_menu_open_it_once(window, asked, qtbot):
    qtbot.mouseClick(window.setup.tune, Qt.MouseButton.LeftButton)
    first = window.job_dialogs["tune"]
    window.show_tuning()
    assert window.job_dialogs["tune"] is first and first.isVisible()


def test_it_tunes_for_the_prompt_in_the_window(window, dialog, asked, qtbot, result):
    dialog.minutes.set_value(2)
    dialog.run.click()
    finished(qtbot, dialog)
    (call,) = asked["calls"]
    assert call["seconds"] == 120 and call["methods"] == ()
    assert call["prompts"].prompts[0].text == window.run_settings().prompt
    names = [arm.name for arm in result.told]
    assert [row["lane"] for row in dialog.table.rows] == names
    assert [row["place"] for row in dialog.table.rows] == list(range(1, len(names) + 1))
    assert result.sentence.split(":")[0] in dialog.words.text()
    assert dialog.chosen().name == result.winner.name, "the winner is selected"
    assert result.winner.why.split(",")[0] in dialog.why.full
    assert "raced anew" in dialog.chart.names
    x, y = dialog.chart.values("raced anew")
    assert list(x) == [1] and y[0] == pytest.approx(result.interval.mean)
    advice = " ".join(dialog.advice.texts)
    assert "verifying costs" in advice and "eagle: eagle has no bundled head" in advice


def test_the_chart_names_its_lanes(dialog, asked, qtbot, result):
    dialog.run.click()
    finished(qtbot, dialog)
    ticks = dialog.chart.picture.ticks["x"]
    shown = [arm for arm in result.told if arm.worth is not None]
    assert len(ticks) == len(shown) > 1
    for (at, text), arm in zip(ticks, shown, strict=True):
        lines = text.split("\n")
        assert lines[0] == str(at) and arm.lane.method.startswith(lines[1].partition("…")[0])


def test_progress_says_what_is_tried_and_the_best(dialog, asked, qtbot):
    asked["waits"].append(1)
    dialog.run.click()
    qtbot.waitUntil(lambda: "Best so far: suffix,k=4, 1.40 times plain" in dialog.words.text(), timeout=5000)
    assert dialog.progress.value() == 400
    assert dialog.stop.isEnabled() and not dialog.run.isEnabled() and not dialog.use.isEnabled()
    qtbot.waitUntil(lambda: bool(dialog.table.rows), timeout=5000)  # the ranking so far
    dialog.stop.click()
    finished(qtbot, dialog)
    assert dialog.run.isEnabled() and not dialog.stop.isEnabled()


def test_use_it_adds_the_lane_and_goes_to_the_race(window, dialog, asked, qtbot, result):
    dialog.run.click()
    finished(qtbot, dialog)
    before = len(window.lane_settings)
    assert dialog.use.text() == f"Use {result.winner.name[:60]}"
    dialog.use.click()
    assert len(window.lane_settings) == before + 1
    lane = window.lane_settings[-1]
    assert (lane.method, lane.k, lane.policy) == (result.winner.lane.method, result.winner.lane.k, result.winner.lane.policy)
    assert window.tabs.current == "Race"
    assert window.run_settings()


def test_another_lane_of_the_ranking_can_be_used_or_copied(window, dialog, asked, qtbot):
    dialog.run.click()
    finished(qtbot, dialog)
    dialog.table.select(1)
    name = dialog.table.rows[1]["lane"]
    assert dialog.use.text() == f"Use {name}"
    dialog.copy.click()
    assert QGuiApplication.clipboard().text() == f'--lane "{name}"'
    dialog.table.activated.emit(1)
    assert window.lane_settings[-1].method == name.split(",")[0]


def test_where_plain_wins_no_lane_is_proposed(dialog, result):
    lost = result.snapshot()
    lost.verdict, lost.interval = "plain", Interval(0.8, 0.7, 0.9, 5)
    dialog.job.ended.emit(JobEnded(0, "", lost))
    assert "Plain decoding wins" in dialog.words.text()
    dialog.table.view.clearSelection()
    assert dialog.chosen() is None and not dialog.use.isEnabled()


def test_a_workload_or_a_file_may_be_tuned_for(dialog, asked, qtbot, tmp_path):
    dialog.source.source.set_value("workload")
    dialog.source.kind.set_value("story")
    assert dialog.source.kind_field.isVisibleTo(dialog) and not dialog.source.file_field.isVisibleTo(dialog)
    dialog.run.click()
    finished(qtbot, dialog)
    assert {prompt.workload for prompt in asked["calls"][-1]["prompts"].prompts} == {"story"}
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": text}) for text in ("one", "two")))
    dialog.source.take_file(str(file))
    assert dialog.source.source.value() == "file" and "2 prompts" in dialog.source.file_button.text()
    dialog.run.click()
    qtbot.waitUntil(lambda: len(asked["calls"]) == 2 and not dialog.running, timeout=5000)
    assert [prompt.text for prompt in asked["calls"][-1]["prompts"].prompts] == ["one", "two"]


def test_drafts_of_the_windows_lanes_are_tried(window, dialog, asked, qtbot):
    window.lanes.take(LaneSettings("draft-model", draft="/models/mine", name="mine"))
    window.lanes.take(LaneSettings("eagle3", draft="/heads/mine"))
    dialog.run.click()
    finished(qtbot, dialog)
    assert asked["calls"][-1]["drafts"] == ("/models/mine", "/heads/mine")


def test_methods_can_be_left_out(dialog, asked, qtbot):
    assert set(dialog.method_actions) == {name for name, method in METHODS.items() if method.drafts}
    for name, action in dialog.method_actions.items():
        action.setChecked(name in ("suffix", "draft-model"))
    assert dialog.methods_button.text().startswith("2 of")
    dialog.run.click()
    finished(qtbot, dialog)
    assert set(asked["calls"][-1]["methods"]) == {"suffix", "draft-model"}


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda dialog: dialog.minutes.setText("0"), "minutes is 0"),
        (lambda dialog: dialog.minutes.setText("soon"), "minutes is 'soon'"),
        (lambda dialog: dialog.source.source.set_value("file"), "No prompt file is chosen"),
        (lambda dialog: [action.setChecked(False) for action in dialog.method_actions.values()], "No method is chosen"),
        (lambda dialog: dialog.parent().setup.set_prompt("   "), "prompt is empty"),
    ],
)
def test_what_cannot_work_is_one_line(dialog, asked, spoil, line):
    spoil(dialog)
    dialog.run.click()
    assert not dialog.running and not asked["calls"]
    assert line in dialog.words.text() and dialog.words.property("kind") == "error"


def test_a_bad_file_is_told_with_its_line(dialog, tmp_path):
    file = tmp_path / "bad.jsonl"
    file.write_text('{"prompt": "x"}\nnothing\n')
    dialog.source.take_file(str(file))
    assert "bad.jsonl, line 2: it is not JSON" in dialog.words.text()


def test_a_failure_is_its_line(dialog, asked, qtbot, monkeypatch):
    def broken(*given, **options):
        raise SpecviewError("there is no such model.", "Choose another.")

    monkeypatch.setattr(module, "tune", broken)
    dialog.run.click()
    qtbot.waitUntil(lambda: "no such model" in dialog.words.text(), timeout=5000)
    assert not dialog.running and dialog.run.isEnabled()


def test_it_waits_for_a_race_that_runs(window, dialog, asked, qtbot, script):
    script.round_s = 0.01
    window.setup.run.click()
    qtbot.waitUntil(lambda: window.controller.racing, timeout=5000)
    dialog.run.click()
    assert not dialog.running and "The engine is busy with a race." in dialog.words.text()
    window.controller.stop()
    qtbot.waitUntil(lambda: not window.controller.racing, timeout=5000)


def test_closing_it_leaves_the_tuning_running(window, dialog, asked, qtbot):
    asked["waits"].append(1)
    dialog.run.click()
    qtbot.waitUntil(lambda: bool(asked["calls"]), timeout=5000)
    dialog.close_button.click()
    assert not dialog.isVisible() and window.controller.busy_with == "tuning"
    asked["waits"].clear()
    finished(qtbot, dialog)
    window.show_tuning()
    assert dialog.isVisible() and dialog.table.rows


def test_lanes_are_full(window, dialog, result):
    while len(window.lane_settings) < 5:
        assert window.lanes.take(LaneSettings("suffix", name=f"s{len(window.lane_settings)}"))
    dialog.job.ended.emit(JobEnded(0, "", result))
    dialog.use.click()
    assert len(window.lane_settings) == 5 and "All lanes are taken" in window.banner.message


def test_enter_in_a_field_starts_nothing_and_escape_hides(dialog, asked, qtbot):
    dialog.table.filter.setFocus()
    qtbot.keyClick(dialog.table.filter, Qt.Key.Key_Return)
    qtbot.keyClick(dialog.minutes, Qt.Key.Key_Return)
    assert not dialog.running and not asked["calls"]
    qtbot.keyClick(dialog, Qt.Key.Key_Escape)
    assert not dialog.isVisible()
