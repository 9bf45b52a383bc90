"""The tuning dialog: set up, run on the engine thread, stop, ranking, guide, and the lane into the race."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QWidget

from specview.drafting.registry import METHODS
from specview.errors import SpecviewError
from specview.experiments.tuning import TuneProgress, tune
from specview.gui.link.job import Job, JobEnded
from specview.gui.parts.serve_dialog import ServeDialog
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


class Asked(list):
    """What `tune` was asked; it tells one snapshot and gives the result, or waits for a stop."""

    waits = False

    def fake(self, result):
        def tuned(settings, prompts, seconds, *, methods, drafts, models, on_progress, on_result, should_stop):
            self.append({"settings": settings, "prompts": prompts, "seconds": seconds, "methods": methods, "drafts": drafts})
            on_progress(TuneProgress("Racing suffix,k=4", 0.4, "suffix,k=4", 1.4))
            on_result(result)
            while self.waits and not should_stop():
                pass
            return result

        return tuned


@pytest.fixture
def asked(monkeypatch, result):
    made = Asked()
    monkeypatch.setattr(module, "tune", made.fake(result))
    monkeypatch.setattr(FakeBackend, "pool", property(lambda self: ModelPool()))
    return made


@pytest.fixture
def dialog(desk, asked, qtbot):
    parent = QWidget()
    qtbot.addWidget(parent)
    made = module.TuneDialog(desk.context, parent)
    made.show()
    yield made  # and the parent lives on


def finished(qtbot, dialog):
    qtbot.waitUntil(lambda: not dialog.running and dialog.result_shown is not None, timeout=5000)


def tuned(qtbot, dialog):
    dialog.run.click()
    finished(qtbot, dialog)


def test_the_menu_opens_it_once_and_its_lane_goes_into_the_race(window, asked, qtbot, result):
    window.show_tuning()
    dialog = window.job_dialogs["tune"]
    window.show_tuning()
    assert window.job_dialogs["tune"] is dialog and dialog.isVisible()
    tuned(qtbot, dialog)
    before = len(window.lane_settings)
    assert dialog.use.text() == f"Use {result.winner.name[:60]}"
    dialog.use.click()
    assert len(window.lane_settings) == before + 1
    lane, won = window.lane_settings[-1], result.winner.lane
    assert (lane.method, lane.k, lane.policy) == (won.method, won.k, won.policy)
    assert window.tabs.current == "Race" and window.run_settings()
    while len(window.lane_settings) < 5:
        assert window.lanes.take(LaneSettings("suffix", name=f"s{len(window.lane_settings)}"))
    dialog.use.click()
    assert len(window.lane_settings) == 5 and "All lanes are taken" in window.banner.message


def test_it_tunes_for_the_prompt_in_the_window(desk, dialog, asked, qtbot, result):
    dialog.minutes.set_value(2)
    tuned(qtbot, dialog)
    (call,) = asked
    assert call["seconds"] == 120 and call["methods"] == ()
    assert call["prompts"].prompts[0].text == desk.settings.prompt
    names = [arm.name for arm in result.told]
    assert [row["lane"] for row in dialog.table.rows] == names
    assert [row["place"] for row in dialog.table.rows] == list(range(1, len(names) + 1))
    assert result.sentence.split(":")[0] in dialog.words.text()
    assert dialog.chosen().name == result.winner.name, "the winner is selected"
    assert result.winner.why.split(",")[0] in dialog.why.full
    x, y = dialog.chart.values("raced anew")
    assert list(x) == [1] and y[0] == pytest.approx(result.interval.mean)
    shown = [arm for arm in result.told if arm.worth is not None]
    ticks = dialog.chart.picture.ticks["x"]
    assert len(ticks) == len(shown) > 1
    for (at, text), arm in zip(ticks, shown, strict=True):
        lines = text.split("\n")
        assert lines[0] == str(at) and arm.lane.method.startswith(lines[1].partition("…")[0])
    advice = " ".join(dialog.advice.texts)
    assert "verifying costs" in advice and "eagle: eagle has no bundled head" in advice


def test_progress_says_what_is_tried_and_a_stop_keeps_what_there_is(dialog, asked, qtbot):
    asked.waits = True
    dialog.run.click()
    qtbot.waitUntil(lambda: "Best so far: suffix,k=4, 1.40 times plain" in dialog.words.text(), timeout=5000)
    assert dialog.progress.value() == 400
    assert dialog.stop.isEnabled() and not dialog.run.isEnabled() and not dialog.use.isEnabled()
    qtbot.waitUntil(lambda: bool(dialog.table.rows), timeout=5000)  # the ranking so far
    dialog.stop.click()
    finished(qtbot, dialog)
    assert dialog.run.isEnabled() and not dialog.stop.isEnabled()


def test_another_lane_of_the_ranking_can_be_used_or_copied(desk, dialog, qtbot):
    tuned(qtbot, dialog)
    dialog.table.select(1)
    name = dialog.table.rows[1]["lane"]
    assert dialog.use.text() == f"Use {name}"
    dialog.copy.click()
    assert QGuiApplication.clipboard().text() == f'--lane "{name}"'
    dialog.serve.click()
    (asked,) = dialog.findChildren(ServeDialog)
    assert name in asked.windowTitle()
    asked.reject()
    dialog.table.activated.emit(1)
    assert desk.lanes[-1].method == name.split(",")[0] and desk.tabs == ["Race"]
    desk.full = True
    dialog.use.click()
    assert len(desk.lanes) == 1


def test_where_plain_wins_no_lane_is_proposed(dialog, result):
    lost = result.snapshot()
    lost.verdict, lost.interval = "plain", Interval(0.8, 0.7, 0.9, 5)
    dialog.job.ended.emit(JobEnded(0, "", lost))
    assert "Plain decoding wins" in dialog.words.text()
    dialog.table.view.clearSelection()
    assert dialog.chosen() is None and not dialog.use.isEnabled()


def test_a_workload_or_a_file_may_be_tuned_for(dialog, asked, qtbot, tmp_path):
    source = dialog.source
    source.source.set_value("workload")
    source.kind.set_value("story")
    assert source.kind_field.isVisibleTo(dialog) and not source.file_field.isVisibleTo(dialog)
    tuned(qtbot, dialog)
    assert {prompt.workload for prompt in asked[-1]["prompts"].prompts} == {"story"}
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": text}) for text in ("one", "two")))
    source.take_file(str(file))
    assert source.source.value() == "file" and "2 prompts" in source.file_button.text()
    dialog.run.click()
    qtbot.waitUntil(lambda: len(asked) == 2 and not dialog.running, timeout=5000)
    assert [prompt.text for prompt in asked[-1]["prompts"].prompts] == ["one", "two"]
    file.write_text('{"prompt": "x"}\nnothing\n')
    source.take_file(str(file))
    assert "mine.jsonl, line 2: it is not JSON" in dialog.words.text()


def test_drafts_of_the_windows_lanes_and_the_methods_that_are_ticked_are_tried(desk, dialog, asked, qtbot):
    own = LaneSettings("draft-model", draft="/models/mine", name="mine"), LaneSettings("eagle3", draft="/heads/mine")
    desk.settings = replace(desk.settings, lanes=(LaneSettings(), *own))
    assert set(dialog.method_actions) == {name for name, method in METHODS.items() if method.drafts}
    for name, action in dialog.method_actions.items():
        action.setChecked(name in ("suffix", "draft-model"))
    assert dialog.methods_button.text().startswith("2 of")
    tuned(qtbot, dialog)
    assert asked[-1]["drafts"] == ("/models/mine", "/heads/mine")
    assert set(asked[-1]["methods"]) == {"suffix", "draft-model"}


def test_what_cannot_work_is_one_line(desk, dialog, asked, qtbot):
    other = Job(desk.controller, "a sweep")
    other.start(lambda pool, tell, should_stop: wait(should_stop))
    dialog.run.click()
    assert not dialog.running and "The engine is busy with a sweep." in dialog.words.text()
    other.stop()
    qtbot.waitUntil(lambda: not desk.controller.busy_with, timeout=5000)
    actions = dialog.method_actions.values()
    for spoil, line in (
        (lambda: dialog.minutes.setText("0"), "minutes is 0"),
        (lambda: dialog.minutes.setText("soon"), "minutes is 'soon'"),
        (lambda: dialog.minutes.set_value(1) or [action.setChecked(False) for action in actions], "No method is chosen"),
        (lambda: setattr(desk, "settings", replace(desk.settings, prompt="   ")), "prompt is empty"),
        (lambda: dialog.source.source.set_value("file"), "No prompt file is chosen"),
    ):
        spoil()
        dialog.run.click()
        assert not dialog.running and not asked
        assert line in dialog.words.text() and dialog.words.property("kind") == "error"


def wait(should_stop):
    while not should_stop():
        pass


def test_a_failure_is_its_line(dialog, qtbot, monkeypatch):
    def broken(*given, **options):
        raise SpecviewError("there is no such model.", "Choose another.")

    monkeypatch.setattr(module, "tune", broken)
    dialog.run.click()
    qtbot.waitUntil(lambda: "no such model" in dialog.words.text(), timeout=5000)
    assert not dialog.running and dialog.run.isEnabled()


def test_closing_it_leaves_the_tuning_running(desk, dialog, asked, qtbot):
    asked.waits = True
    dialog.run.click()
    qtbot.waitUntil(lambda: bool(asked), timeout=5000)
    dialog.close_button.click()
    assert not dialog.isVisible() and desk.controller.busy_with == "tuning"
    asked.waits = False
    finished(qtbot, dialog)
    dialog.show()
    assert dialog.table.rows


def test_enter_in_a_field_starts_nothing_and_escape_hides(dialog, asked, qtbot):
    dialog.table.filter.setFocus()
    qtbot.keyClick(dialog.table.filter, Qt.Key.Key_Return)
    qtbot.keyClick(dialog.minutes, Qt.Key.Key_Return)
    assert not dialog.running and not asked
    qtbot.keyClick(dialog, Qt.Key.Key_Escape)
    assert not dialog.isVisible()
