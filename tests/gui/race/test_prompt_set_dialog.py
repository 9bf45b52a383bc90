"""The prompt-set dialog: pick, run, tables, charts with spread, requests opened as races."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from PySide6.QtWidgets import QWidget

from specview.errors import SpecviewError
from specview.experiments.prompt_set import run_prompt_set
from specview.experiments.runner import SeriesProgress
from specview.gui.link.job import JobEnded
from specview.gui.race import prompt_set_dialog as module
from specview.library.library import RunLibrary
from specview.racing.pool import ModelPool
from specview.racing.workloads import Prompt, Workload
from specview.settings.run import LaneSettings, RunSettings
from tests.gui.shell_fake import FakeBackend
from tests.racing.world import DRAFTED, LOOKUP, World

PROMPTS = Workload(
    "mine.jsonl",
    (
        Prompt("bcdbcdbcd", name="first", workload="copy"),
        Prompt("abcde", name="second", workload="talk"),
        Prompt("bbbcccbbb", name="third", workload="copy"),
        Prompt("b" * 90, name="long", workload="talk"),
    ),
    "0123",
)


@pytest.fixture(scope="module")
def result():
    """A real set on fake engines; its last prompt does not fit."""
    with pytest.MonkeyPatch.context() as patch:
        world = World(patch, context_length=64)
        settings = RunSettings(prompt="b", max_tokens=20, chat=False, observe="off", lanes=(LaneSettings(), DRAFTED, LOOKUP))
        return run_prompt_set(settings, PROMPTS, clock=world.clock)


@pytest.fixture
def asked(monkeypatch, result):
    calls: list = []
    waits: list = []

    def fake(settings, prompts, repeats, models, on_news, should_stop, *, on_event):
        calls.append((settings, prompts, repeats))
        on_news(SeriesProgress(1, 4, "Request 2 of 4"))
        on_news(result)
        while waits and not should_stop():
            pass
        return result

    monkeypatch.setattr(module, "run_prompt_set", fake)
    monkeypatch.setattr(FakeBackend, "pool", property(lambda self: ModelPool()))
    return {"calls": calls, "waits": waits}


@pytest.fixture
def dialog(desk, asked, qtbot):
    parent = QWidget()
    qtbot.addWidget(parent)
    made = module.PromptSetDialog(desk.context, parent)
    made.show()
    yield made  # and the parent lives on


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": one.text, "kind": one.workload}) for one in PROMPTS.prompts))
    return path


def run(qtbot, dialog, file):
    dialog.source.take_file(str(file))
    dialog.run.click()
    qtbot.waitUntil(lambda: not dialog.running and dialog.result_shown is not None, timeout=5000)


def test_it_runs_the_windows_lanes_on_every_prompt(window, asked, qtbot, file, result):
    window.show_prompt_set()
    dialog = window.job_dialogs["prompt set"]
    dialog.repeats.set_value(3)
    run(qtbot, dialog, file)
    ((settings, prompts, repeats),) = asked["calls"]
    assert settings.lanes == window.run_settings().lanes and repeats == 3
    assert [prompt.text for prompt in prompts.prompts] == [prompt.text for prompt in PROMPTS.prompts]
    assert len(dialog.requests.rows) == 3 * 3 + 1 and len(dialog.summary.rows) == 6
    words = dialog.words.text()
    assert "3 of 4 requests" in words and "each request counts once" in words
    assert "1 did not run; the first, long: the prompt has 90 tokens" in words
    dialog.open_slowest.click()
    settings = window.run_settings()
    assert settings.prompt == result.notable()["draft-model"][0].prompt.text
    assert [lane.method for lane in settings.lanes] == ["plain", "draft-model", "prompt-lookup"]
    assert settings.chat is False and settings.observe == "full"
    assert window.tabs.current == "Race" and not window.controller.racing


def test_the_files_that_people_have_are_named_and_taken(dialog, tmp_path):
    for format_ in ("JSON array", "messages", "turns", "question", "conversations"):
        assert format_ in dialog.words.text()
    path = tmp_path / "mt_bench.json"
    path.write_text(json.dumps([{"turns": ["one", "two"]}, {"question": "three"}]))
    dialog.source.take_file(str(path))
    assert [(prompt.text, prompt.follows) for prompt in dialog.source.file.prompts] == [("one", False), ("two", True), ("three", False)]
    path.write_text('[\n{"turns": ["one"]},\n{"turns": 4}]')
    dialog.source.take_file(str(path))
    assert "mt_bench.json, line 3: turns is no list of turns" in dialog.words.text()


def test_charts_show_requests_and_quartiles(dialog, result):
    dialog.job.ended.emit(JobEnded(0, "", result))
    for chart, values in ((dialog.speedup, "speedup"), (dialog.acceptance, "acceptance")):
        assert {"draft-model", "prompt-lookup", "draft-model, requests"} <= set(chart.names)
        x, y = chart.values("draft-model")
        groups = {one.workload: getattr(one, values) for one in result.summary() if one.lane == "draft-model"}
        assert [round(place) for place in x] == [0, 1]
        assert list(y) == pytest.approx([groups["copy"].median, groups["talk"].median])
    x, y = dialog.speedup.values("draft-model, requests")
    assert sorted(y) == pytest.approx(sorted(one.lanes[1].speedup.value for one in result.requests if one.lanes))


def test_a_dot_selects_its_request(dialog, result):
    dialog.job.ended.emit(JobEnded(0, "", result))
    dialog.tabs.setCurrentIndex(1)
    dialog.speedup.picked.emit("prompt-lookup, requests", 1)
    assert dialog.tabs.currentWidget() is dialog.requests
    (place,) = dialog.requests.selected_rows()
    row = dialog.requests.rows[place]
    numbers = [one.number for one in result.requests if one.lanes]
    assert (row["request"], row["lane"]) == (numbers[1], "prompt-lookup")


def test_any_request_opens_and_the_extremes_follow_the_selected_lane(desk, dialog, result):
    dialog.job.ended.emit(JobEnded(0, "", result))
    assert not dialog.open_chosen.isEnabled()
    place = next(at for at, row in enumerate(dialog.requests.rows) if row["name"] == "third" and row["lane"] == "prompt-lookup")
    dialog.requests.select(place)
    assert dialog.open_chosen.isEnabled()
    for button in (dialog.open_slowest, dialog.open_fastest, dialog.open_chosen):
        button.click()
    dialog.requests.activated.emit(place)
    slowest, fastest = (one.prompt.text for one in result.notable()["prompt-lookup"])
    assert [race.prompt for race in desk.races] == [slowest, fastest, "bbbcccbbb", "bbbcccbbb"]


def test_a_stop_keeps_what_there_is(dialog, asked, qtbot, file):
    asked["waits"].append(1)
    dialog.source.take_file(str(file))
    dialog.run.click()
    qtbot.waitUntil(lambda: bool(dialog.requests.rows), timeout=5000)  # while it runs
    assert dialog.running and not dialog.open_slowest.isEnabled()
    dialog.stop.click()
    qtbot.waitUntil(lambda: not dialog.running, timeout=5000)
    assert dialog.requests.rows and dialog.open_slowest.isEnabled()


def test_what_cannot_work_is_one_line_and_a_built_in_workload_does(desk, dialog, asked, file, qtbot):
    dialog.run.click()
    assert "No prompt file is chosen" in dialog.words.text()
    file.write_text('{"prompt": "x"}\n{"prompt": ""}\n')
    dialog.source.take_file(str(file))
    assert "mine.jsonl, line 2: the prompt is empty" in dialog.words.text()
    file.write_text('{"prompt": "x"}\n')
    dialog.source.take_file(str(file))
    dialog.repeats.setText("0")
    dialog.run.click()
    assert "repeats is 0" in dialog.words.text()
    dialog.repeats.set_value(1)
    lanes = desk.settings.lanes
    desk.settings = replace(desk.settings, lanes=lanes[:1])
    dialog.run.click()
    assert "no lane beside plain" in dialog.words.text()
    assert not asked["calls"]
    desk.settings = replace(desk.settings, lanes=lanes)
    dialog.source.source.set_value("workload")
    dialog.source.kind.set_value("repeat")
    dialog.run.click()
    qtbot.waitUntil(lambda: not dialog.running and bool(asked["calls"]), timeout=5000)
    assert {prompt.workload for prompt in asked["calls"][0][1].prompts} == {"repeat"}


def test_a_failure_is_its_line(dialog, asked, qtbot, file, monkeypatch):
    def broken(*given, **more):
        raise SpecviewError("there is no such model.", "Choose another.")

    monkeypatch.setattr(module, "run_prompt_set", broken)
    dialog.source.take_file(str(file))
    dialog.run.click()
    qtbot.waitUntil(lambda: "no such model" in dialog.words.text(), timeout=5000)


def test_a_set_in_which_nothing_ran(dialog, monkeypatch):
    world = World(monkeypatch, context_length=64)
    settings = RunSettings(prompt="b", max_tokens=8, chat=False, observe="off", lanes=(LaneSettings(), LOOKUP))
    only = Workload("long.jsonl", PROMPTS.prompts[3:], "0")
    dialog.job.ended.emit(JobEnded(0, "", run_prompt_set(settings, only, clock=world.clock)))
    assert "1 did not run" in dialog.words.text()
    assert not dialog.open_slowest.isEnabled() and len(dialog.requests.rows) == 1


@pytest.mark.parametrize("keeps", [True, False])
def test_its_races_are_kept_like_others_unless_they_are_not_to_be(dialog, asked, qtbot, file, monkeypatch, keeps):
    world = World(monkeypatch, context_length=64)
    monkeypatch.setattr(
        module,
        "run_prompt_set",
        lambda settings, *given, **more: run_prompt_set(
            replace(settings, chat=False, max_tokens=8, lanes=(LaneSettings(), LOOKUP)), *given, clock=world.clock, **more
        ),
    )
    library = RunLibrary()
    library.set_keeps(keeps)
    before = {entry.id for entry in library.scan()}
    run(qtbot, dialog, file)
    kept = [entry for entry in library.scan() if entry.id not in before]
    # The fourth prompt does not fit.
    assert sorted(entry.part for entry in kept) == ([f"request {n} of 4" for n in (1, 2, 3)] if keeps else [])
    assert {entry.source for entry in kept} <= {"window"}


def test_races_that_cannot_be_kept_are_told(dialog, asked, qtbot, file, monkeypatch):
    def keep(settings, on_trouble):
        on_trouble("this run is not kept: the disk is full.")

    monkeypatch.setattr(module, "keep_in_library", keep)
    run(qtbot, dialog, file)
    qtbot.waitUntil(lambda: "the disk is full" in dialog.words.text())
