"""The window over a made-up backend: run, stop, close in every phase; lanes, messages, keys, files."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QLabel

from specview.gui.link.job import Job
from specview.gui.shell.app import first_settings
from specview.settings.events import LaneRound, Progress
from specview.settings.run import LaneSettings
from tests.gui.shell_fake import ran, round_of, wait_state

# -- first start ----------------------------------------------------------------------------------


def test_first_start_is_one_key_from_a_result(window, qtbot, script):
    assert window.setup.target.target == "bundled"
    assert window.setup.prompt.toPlainText().strip()
    assert [lane.method for lane in window.lane_settings] == ["plain", "draft-model", "eagle3"]
    assert [panel.lane.name for panel in window.page.panels] == ["plain", "draft-model", "eagle3"]
    assert window.controller.state == "ready"
    assert window.setup.run.text() == "Run"
    qtbot.keyClick(window.setup.prompt, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    wait_state(qtbot, window, "ended")
    race = window.controller.race
    assert [len(lane.rounds) for lane in race.lanes] == [script.rounds] * 3
    assert "\n" not in window.setup.prompt.toPlainText()[-1:]
    assert window.banner.message == ""
    assert "faster than plain decoding" in window.page.headline.said.sentence


def test_nothing_heavy_is_read_before_the_window_is_shown():
    import subprocess
    import sys

    heavy = {"torch", "transformers", "llama_cpp", "pyqtgraph", "scipy", "psutil", "numpy", "sqlite3", "specview.models.catalog",
             "specview.models.heads", "specview.library.library", "specview.racing.pool", "specview.lab.explain",
             "specview.gui.lanes.editor", "specview.gui.train.dialog", "specview.gui.race.branch_dialog"}  # fmt: skip
    code = (
        "import sys; from specview.gui.shell import app, main_window; "
        f"bad = {heavy!r} & set(sys.modules); "
        "sys.exit(f'imported: {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_preload_shows_its_phase_and_can_be_stopped(make_window, qtbot, script):
    script.preload_s = 20
    window = make_window(preload=True)
    qtbot.waitUntil(lambda: "SmolLM2" in window.page.headline.said.text)
    assert window.controller.state == "preloading"
    assert window.page.headline.waiting and window.page.headline.fraction is not None
    assert window.setup.run.text() == "Run" and window.actions_by_name["stop"].isEnabled()
    qtbot.keyClick(window, Qt.Key.Key_Escape)
    wait_state(qtbot, window, "ready")
    assert not window.controller.preloaded


def test_run_during_preload_waits_for_the_same_models(make_window, qtbot, script):
    script.preload_s = 0.5
    window = make_window(preload=True)
    window.run()
    wait_state(qtbot, window, "ended")
    assert script.log[0] == "preload"
    assert window.controller.preloaded


def test_run_with_other_models_stops_the_preload(make_window, qtbot, script):
    script.preload_s = 10
    window = make_window(preload=True)
    qtbot.waitUntil(lambda: script.log == ["preload"])
    window.setup.field("dtype").set_value("bfloat16")
    window.run()
    wait_state(qtbot, window, "ended")


# -- stop and close in every phase --------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["loading", "prefill", "running"])
def test_stop_in_every_phase(window, qtbot, script, phase):
    setattr(script, {"loading": "load_s", "prefill": "prefill_s", "running": "round_s"}[phase],
            0.02 if phase == "running" else 30.0)
    script.rounds = 90
    window.run()
    wait_state(qtbot, window, phase)
    if phase == "running":
        qtbot.waitUntil(lambda: len(window.controller.race.lanes[2].rounds) > 2)
    assert window.setup.run.text() == "Stop"
    window.setup.run.click()
    wait_state(qtbot, window, "ended", timeout=3000)
    assert window.setup.run.text() == "Run"
    race = window.controller.race
    assert race.ended is not None
    assert race.ended.end == "stopped"
    assert "Stopped" in window.page.headline.said.sentence
    if phase == "running":
        assert all(lane.rounds and lane.text for lane in race.lanes)
        assert window.controller.can_continue
        assert window.page.conversation.more.isEnabled()
    else:
        assert not window.controller.can_continue


@pytest.mark.parametrize("phase", ["ready", "preloading", "loading", "prefill", "running", "stopping", "ended"])
def test_close_in_every_phase(make_window, qtbot, script, phase):
    script.rounds = 200 if phase != "ended" else 3
    script.round_s = 0.005
    script.preload_s = 30 if phase == "preloading" else 0.01
    script.load_s = 30 if phase == "loading" else 0.02
    script.prefill_s = 30 if phase == "prefill" else 0.02
    window = make_window(preload=phase == "preloading")
    if phase not in ("ready", "preloading"):
        window.run()
    if phase == "stopping":
        wait_state(qtbot, window, "running")
        window.controller.stop()
    elif phase == "preloading":
        qtbot.waitUntil(lambda: script.log == ["preload"])
    else:
        wait_state(qtbot, window, phase)
    if phase == "running":
        qtbot.waitUntil(lambda: script.emitted_rounds > 5)
    window.close()
    assert window.thread_ended
    assert not any(thread.name == "specview-engine" for thread in threading.enumerate())
    kept = sum(len(lane.rounds) for lane in window.controller.race.lanes)
    assert kept == script.emitted_rounds
    assert window.store.path.is_file()


def test_closing_waits_no_longer_than_it_should_and_says_so(make_window, qtbot, script, monkeypatch):
    from specview.gui.shell import main_window

    monkeypatch.setattr(main_window, "CLOSE_TIMEOUT_S", 0.1)
    script.ignore_stop_s, script.rounds = 1.0, 2
    window = make_window()
    window.run()
    qtbot.waitUntil(lambda: 0 < script.emitted_rounds < script.log.count("deaf"))
    window.close()
    assert not window.thread_ended
    assert window.controller.engine.close(5)


# -- events ---------------------------------------------------------------------------------------------


def test_a_run_ends_rests_and_is_replaced_by_the_next(window, qtbot, script):
    race, controller = ran(qtbot, window), window.controller
    first, before = race.run_id, [len(lane.rounds) for lane in race.lanes]
    assert script.threads == {"specview-engine"}, "models are never touched on the Qt thread"
    qtbot.waitUntil(lambda: not controller.redraws.timers["text"].isActive(), timeout=3000)
    assert not any(timer.isActive() for timer in controller.redraws.timers.values())
    controller._take([LaneRound(first - 1, 0, round_of()), Progress(first - 1, "load", "stale")])
    assert [len(lane.rounds) for lane in race.lanes] == before and controller.progress is None
    controller._take([LaneRound(first, 0, round_of())])
    assert len(race.lanes[0].rounds) == before[0] + 1
    script.rounds = 5
    race = ran(qtbot, window)
    assert race.run_id > first and [len(lane.rounds) for lane in race.lanes] == [5, 5, 5]
    assert f"close {first}" in script.log


def test_continue_and_follow_up(window, qtbot, script):
    race = ran(qtbot, window)
    run_id, before = race.run_id, len(race.lanes[0].rounds)
    window.page.conversation.more.click()
    wait_state(qtbot, window, "running", "loading")
    wait_state(qtbot, window, "ended")
    assert race.run_id == run_id
    assert len(race.lanes[0].rounds) == before + script.rounds
    assert "continue" in script.log[-1]
    prompt = window.setup.prompt.toPlainText()
    window.page.conversation.line.setText("and why?")
    qtbot.keyClick(window.page.conversation.line, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: window.controller.race.run_id > run_id)
    wait_state(qtbot, window, "ended")
    assert window.page.conversation.line.text() == ""
    assert window.setup.prompt.toPlainText() == "and why?"
    assert "turn 2" in window.setup.tokens.text()
    assert window.setup.history[0]["content"] == prompt
    # the conversation is part of the next run, until another prompt is chosen
    assert len(window.run_settings().history) == 2
    window.setup.set_prompt("new", None)
    assert window.run_settings().history == ()


def test_a_later_turn_draws_by_a_seed_of_its_own_which_running_it_again_keeps(window, qtbot):
    window.setup.field("temperature").set_value(0.8)
    window.setup.field("seed").set_value(5)
    ran(qtbot, window)
    sampling = window.run_settings().sampling
    assert sampling.seed == 5
    for turn in (1, 2):
        window.next_turn("and why?")
        qtbot.waitUntil(lambda turn=turn: len(window.setup.history) == 2 * turn)
        wait_state(qtbot, window, "ended")
        assert window.controller.settings.sampling == sampling.later(turn)
        assert window.run_settings().sampling == sampling.later(turn)
    opened = window.run_settings()  # as of a recorded turn: its seed stands in the field, and goes on from there
    window.setup.show_settings(opened, "auto")
    assert window.setup.field("seed").value() == sampling.later(2).seed and window.run_settings().sampling == sampling.later(2)
    window.setup.show_settings(replace(opened, history=(), sampling=sampling), "auto")
    assert window.run_settings().sampling.seed == 5


def test_the_first_race_tells_how_long_its_prompt_is(window, qtbot, script):
    script.count, script.round_s = None, 0.05
    window.run()
    wait_state(qtbot, window, "running")
    qtbot.waitUntil(lambda: window.setup.tokens.text() == "131 tokens")
    window.controller.stop()
    wait_state(qtbot, window, "ended")


def test_after_a_follow_up_the_tokens_are_those_of_the_whole_conversation(window, qtbot):
    ran(qtbot, window)
    window.page.conversation.line.setText("and why?")
    qtbot.keyClick(window.page.conversation.line, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: len(window.setup.history) == 2)
    asked = window.controller._count_settings
    assert (asked.prompt, asked.history) == ("and why?", window.setup.history)
    wait_state(qtbot, window, "ended")
    qtbot.waitUntil(lambda: window.setup.tokens.text() == "131 tokens · turn 2")
    assert window.controller._count_settings.history == window.setup.history


def test_nothing_goes_on_while_a_job_runs(window, qtbot, script):
    race = ran(qtbot, window)
    controller, run_id, line = window.controller, race.run_id, window.page.conversation.line
    line.setText("and why?")
    ended = []
    job = Job(controller, "sweep")
    job.ended.connect(lambda end: ended.append((end.job, end.stopped)))

    def work(pool, tell, should_stop):
        while not should_stop():
            time.sleep(0.002)
        return "part"

    job.start(work)
    assert not controller.can_continue and not controller.can_follow_up
    assert not window.page.conversation.more.isEnabled() and not window.page.conversation.send.isEnabled() and not line.isEnabled()
    assert not window.actions_by_name["continue"].isEnabled()
    window.continue_run()
    window.next_turn(line.text())
    assert "busy with sweep" in window.banner.message
    assert race.run_id == run_id and controller.job == "sweep" and not ended
    controller.stop()
    qtbot.waitUntil(lambda: controller.can_follow_up and controller.can_continue, timeout=5000)
    assert ended == [("sweep", True)] and line.text() == "and why?" and line.isEnabled()
    assert window.page.conversation.more.isEnabled() and window.actions_by_name["continue"].isEnabled()
    window.next_turn(line.text())
    assert race.run_id > run_id and line.text() == "and why?", "the text stays until the turn has begun"
    wait_state(qtbot, window, "ended")
    assert line.text() == "" and "turn 2" in window.setup.tokens.text()


def test_raw_runs_take_no_follow_up(window, qtbot):
    window.setup.panel.chat.set_value("raw")
    ran(qtbot, window)
    assert not window.page.conversation.line.isEnabled()
    assert "chat" in window.page.conversation.line.placeholderText()


# -- messages -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.field("temperature").setText("-1"), "temperature is -1. Use 0 (greedy) to 1e30."),
        (lambda s: s.field("temperature").setText("warm"), "temperature is 'warm'. Use a number."),
        (lambda s: s.field("temperature").setText("nan"), "temperature is nan. Use a number."),
        (lambda s: s.field("temperature").setText(""), "temperature is empty. Use a number."),
        (lambda s: s.field("max_tokens").setText("0"), "max tokens is 0. Use"),
        (lambda s: s.field("max_tokens").setText("1.5"), "max tokens is '1.5'. Use a whole number."),
        (lambda s: s.field("seed").setText("-3"), "seed is -3."),
        (lambda s: s.field("top_p").setText("0"), "top-p is 0. Use a value above 0"),
        (lambda s: s.field("threads").setText("0"), "threads is 0."),
        (lambda s: (s.rule.set_value("greedy"), s.field("temperature").setText("1")), "the greedy rule needs temperature 0"),
    ],
)
def test_bad_settings_say_what_is_wrong(window, qtbot, script, change, words):
    change(window.setup)
    window.run()
    assert words in window.banner.message
    assert "\n" not in window.banner.message
    assert script.log == []
    assert not window.controller.racing
    field = window.setup.invalid_field()
    if field is not None:
        assert field.hasFocus()
    window.setup.show_settings(first_settings(), "auto")  # once it is corrected, what was said of it goes
    window.setup.changed.emit()
    assert window.banner.message == ""


def test_a_failed_load_keeps_the_lanes_and_says_why(window, qtbot, script):
    race = ran(qtbot, window)
    texts = [lane.text for lane in race.lanes]
    script.fail_load = "model.gguf is <b>cut</b> short. Download it again."
    ran(qtbot, window)
    assert window.banner.message == script.fail_load
    assert "failed" in window.page.headline.said.sentence and window.page.headline.said.tone == "bad"
    assert [lane.text for lane in race.lanes] == texts
    assert not window.controller.can_continue
    # plain text, whatever is in it
    assert all(found.textFormat() == Qt.TextFormat.PlainText for found in window.banner.findChildren(QLabel))
    assert script.fail_load not in window.page.headline.said.text and script.fail_load in window.page.headline.detail  # said once
    window.banner._close.click()
    assert window.banner.message == ""
    script.fail_load = ""
    ran(qtbot, window)
    assert window.banner.message == ""


def test_a_crash_of_the_backend_is_one_line(window, qtbot, script):
    script.crash = "boom\nbang"
    ran(qtbot, window)
    assert "boom bang" in window.banner.message
    script.crash = ""
    ran(qtbot, window)
    assert window.controller.race.ended.end == "done"


def test_one_lane_may_fail(window, qtbot, script):
    script.fail_lane = 1
    race = ran(qtbot, window)
    assert race.lanes[1].end == "error"
    assert "tokenizer" in race.lanes[1].error
    assert race.lanes[0].rounds
    assert race.lanes[2].rounds
    assert window.banner.message == ""


def test_a_missing_engine_is_said_where_it_is_chosen(window, qtbot):
    window.library.close()
    reason = "the llama.cpp engine needs llama_cpp, which is not installed here. Run pip install."
    window.library.found = replace(window.library.found, engines=(("transformers", ""), ("llama.cpp", reason)))
    window.library.changed.emit()
    picker = window.setup.target
    assert not picker._engines["llama.cpp"].isEnabled()
    assert picker._reasons["llama.cpp"].text() == reason
    assert not picker._reasons["llama.cpp"].isHidden()
    picker.set_values("llama.cpp", "bundled")
    window.run()
    assert window.banner.message == reason


def test_the_event_loop_never_waits_for_the_engine(window, qtbot, script):
    """With rounds as fast as a real race's, the window takes events and draws without long gaps."""
    script.rounds, script.round_s = 120, 0.004
    window.run()
    wait_state(qtbot, window, "running")
    busy, gaps = time.thread_time(), []
    began = time.perf_counter()
    while window.controller.state == "running" and time.perf_counter() - began < 10:
        before = time.thread_time()
        QApplication.processEvents()
        gaps.append(time.thread_time() - before)
        time.sleep(0.002)
    # The thread's own processor time: what others do on this machine does not count.
    assert max(gaps) < 0.25
    assert sorted(gaps)[int(len(gaps) * 0.95)] < 0.05
    assert (time.thread_time() - busy) / (time.perf_counter() - began) < 0.6


def test_live_share_of_real_time(window, qtbot, script, monkeypatch):
    from specview.gui.link import controller

    monkeypatch.setattr(controller, "LIVE_AFTER_S", 0.05)
    script.rounds, script.round_s = 60, 0.01
    window.run()
    wait_state(qtbot, window, "running")
    headline = window.page.headline
    qtbot.waitUntil(lambda: "real time, lanes take turns" in headline.said.rest)
    assert headline.said.sentence.startswith("Round ")
    wait_state(qtbot, window, "ended")
    assert "0.34× real time" in headline.detail and "rounds: plain 60" in headline.detail
    kind = type(window.controller)
    for share, shown in ((0.001, ""), (0.02, "0.02× real time")):  # no clock has moved yet; one has
        monkeypatch.setattr(kind, "real_time_fraction", property(lambda _, share=share: share))
        headline.refresh()
        assert shown in headline.detail and bool(shown) == ("real time" in headline.detail)
    assert "2 threads" in window.machine.text()


def test_a_busy_machine_is_said(window, qtbot, monkeypatch):
    race = ran(qtbot, window)
    race.ended = replace(race.ended, busy="The machine is busy: others use it.")
    window.page.headline.refresh()
    assert window.page.headline.said.rest.startswith("The machine is busy: others use it · ")
    window.run()
    wait_state(qtbot, window, "ended")
    assert "busy" not in window.page.headline.said.text


def test_follow_up_takes_what_is_set_now(window, qtbot, script):
    ran(qtbot, window)
    window.setup.field("max_tokens").set_value(33)
    window.lanes.remove(2)
    window.next_turn("go on")
    wait_state(qtbot, window, "ended")
    assert window.controller.settings.max_tokens == 33
    assert window.controller.settings.prompt == "go on"
    assert len(window.controller.race.lanes) == 2
    window.setup._fill_workloads()
    window.setup.menu.actions()[0].trigger()
    assert window.run_settings().history == ()
    window.setup.field("temperature").setText("x")
    window.next_turn("again")
    assert "temperature" in window.banner.message


def test_preload_leaves_what_must_be_fetched(monkeypatch):
    from specview.gui.link import local_backend
    from specview.models import catalog

    asked = []

    class Pool:
        def get(self, key, tell, should_stop):
            asked.append(key.loading.target)
            tell("loading", 0.5)

    told = []
    backend = local_backend.LocalBackend()
    monkeypatch.setattr(backend, "_pool", Pool())
    found = {
        "owner/name": catalog.ModelRef("owner/name", "hub", None, "name", "hub", ("transformers",)),
        "/big": catalog.ModelRef("/big", "folder", Path("/big"), "big", "path", ("transformers",), size_bytes=10**11),
        "/small": catalog.ModelRef("/small", "folder", Path("/small"), "small", "path", ("transformers",)),
    }
    monkeypatch.setattr(local_backend, "resolve", lambda spec, engine, role: found[spec])
    for target in found:
        settings = replace(first_settings(), target=target, lanes=(LaneSettings(),))
        backend.preload(settings, 1, told.append, lambda: False)
    assert asked == ["/small"]
    assert [event.phase for event in told] == ["load"]


def test_numbers_too_large_for_a_float_are_said_in_one_line(window):
    field = window.setup.field("max_tokens")
    field.setText("9" * 400)
    assert "Use a value from 1 to 1,000,000" in field.problem() and len(field.problem()) < 120
    window.run()
    assert "max tokens" in window.banner.message and not window.controller.racing
    window.setup.field("seed").setText("-1")
    assert "e+" not in window.setup.field("seed").problem()
