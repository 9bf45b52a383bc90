"""The window over a made-up backend: run, stop, close in every phase; lanes, messages, keys, files."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from PySide6.QtCore import QMimeData, QPointF, Qt, QUrl
from PySide6.QtGui import QDropEvent, QGuiApplication, QKeySequence
from PySide6.QtWidgets import QAbstractButton, QApplication, QLabel, QWidget

from specview.gui.link.job import Job
from specview.gui.parts import theme
from specview.gui.shell.app import first_settings
from specview.gui.shell.help_dialogs import SHORTCUTS
from specview.gui.shell.status_strip import count_text
from specview.settings.events import LaneRound, Progress
from specview.settings.run import LaneSettings
from tests.gui.shell_fake import round_of


def wait_state(qtbot, window, *states, timeout=10_000):
    qtbot.waitUntil(lambda: window.controller.state in states, timeout=timeout)


def ran(qtbot, window):
    window.run()
    wait_state(qtbot, window, "ended")
    return window.controller.race


# -- first start ----------------------------------------------------------------------------------


def test_first_start_is_one_key_from_a_result(window, qtbot, script):
    assert window.setup.target.target == "bundled"
    assert window.setup.prompt.toPlainText().strip()
    assert [lane.method for lane in window.lane_settings] == ["plain", "draft-model", "prompt-lookup"]
    assert [panel.lane.name for panel in window.page.panels] == ["plain", "draft-model", "prompt-lookup"]
    assert window.controller.state == "ready"
    assert not window.setup.stop.isEnabled()
    qtbot.keyClick(window.setup.prompt, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    wait_state(qtbot, window, "ended")
    race = window.controller.race
    assert [len(lane.rounds) for lane in race.lanes] == [script.rounds] * 3
    assert "\n" not in window.setup.prompt.toPlainText()[-1:]
    assert window.banner.message == ""
    assert "20" in window.status.detail.full


@pytest.mark.parametrize(("threads", "words"), [(1, "1 thread · "), (2, "2 threads · ")])
def test_the_status_bar_counts_threads_in_words(window, threads, words):
    window.controller.race.facts["threads"] = threads
    window.status._show_machine()
    assert window.status.machine.text().startswith(words)


def test_a_long_lane_name_does_not_push_the_status_bar_out_of_the_window(make_window, qtbot):
    name = "a lane with an exceedingly long name, longer than anybody should call it"
    window = make_window(first=replace(first_settings(), lanes=(LaneSettings(), LaneSettings("draft-model", name=name))))
    window.run()
    wait_state(qtbot, window, "ended")
    window.status.select(window.controller.race.lanes[1])
    assert window.status.costs.text().startswith("a lane with an e…call it: v(")


def test_models_are_never_touched_on_the_qt_thread(window, qtbot, script):
    ran(qtbot, window)
    assert script.threads == {"specview-engine"}


def test_no_model_library_before_the_window_is_shown():
    import subprocess
    import sys

    code = (
        "import sys; from specview.gui.shell import app, main_window; "
        "bad = {'torch', 'transformers', 'llama_cpp', 'pyqtgraph', 'scipy'} & set(sys.modules); "
        "sys.exit(f'imported: {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_preload_shows_its_phase_and_can_be_stopped(make_window, qtbot, script):
    script.preload_s = 20
    window = make_window(preload=True)
    qtbot.waitUntil(lambda: "SmolLM2" in window.status.detail.full)
    assert window.controller.state == "preloading"
    assert not window.status.progress.isHidden()
    assert window.setup.stop.isEnabled()
    assert window.setup.run.isEnabled()
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
    script.preload_s = 30
    window = make_window(preload=True)
    qtbot.waitUntil(lambda: script.log == ["preload"])
    window.setup.field("dtype").set_value("bfloat16")
    window.run()
    wait_state(qtbot, window, "ended", timeout=5000)


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
    assert not window.setup.run.isEnabled()
    window.setup.stop.click()
    wait_state(qtbot, window, "ended", timeout=3000)
    assert window.setup.run.isEnabled()
    race = window.controller.race
    assert race.ended is not None
    assert race.ended.end == "stopped"
    assert "stopped" in window.status.state.text()
    if phase == "running":
        assert all(lane.rounds and lane.text for lane in race.lanes)
        assert window.controller.can_continue
        assert window.page.more.isEnabled()
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
    qtbot.waitUntil(lambda: bool(window.controller.race.lanes[0].rounds))
    window.close()
    assert not window.thread_ended
    assert window.controller.engine.close(5)


# -- events ---------------------------------------------------------------------------------------------


def test_stale_events_are_dropped(window, qtbot):
    race = ran(qtbot, window)
    before = [len(lane.rounds) for lane in race.lanes]
    window.controller._take([LaneRound(race.run_id - 1, 0, round_of()), Progress(race.run_id - 1, "load", "old")])
    assert [len(lane.rounds) for lane in race.lanes] == before
    assert window.controller.progress is None
    window.controller._take([LaneRound(race.run_id, 0, round_of())])
    assert len(race.lanes[0].rounds) == before[0] + 1


def test_a_second_run_replaces_the_first(window, qtbot, script):
    first = ran(qtbot, window).run_id
    script.rounds = 5
    race = ran(qtbot, window)
    assert race.run_id > first
    assert [len(lane.rounds) for lane in race.lanes] == [5, 5, 5]
    assert f"close {first}" in script.log


def test_timers_rest_when_nothing_runs(window, qtbot):
    ran(qtbot, window)
    controller = window.controller
    qtbot.waitUntil(lambda: not controller._text_timer.isActive(), timeout=3000)
    assert not controller._plot_timer.isActive()
    assert not controller._number_timer.isActive()


def test_continue_and_follow_up(window, qtbot, script):
    race = ran(qtbot, window)
    run_id, before = race.run_id, len(race.lanes[0].rounds)
    window.page.more.click()
    wait_state(qtbot, window, "running", "loading")
    wait_state(qtbot, window, "ended")
    assert race.run_id == run_id
    assert len(race.lanes[0].rounds) == before + script.rounds
    assert "continue" in script.log[-1]
    prompt = window.setup.prompt.toPlainText()
    window.page.follow_up.setText("and why?")
    qtbot.keyClick(window.page.follow_up, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: window.controller.race.run_id > run_id)
    wait_state(qtbot, window, "ended")
    assert window.page.follow_up.text() == ""
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


def test_after_a_follow_up_the_tokens_are_those_of_the_whole_conversation(window, qtbot):
    ran(qtbot, window)
    window.page.follow_up.setText("and why?")
    qtbot.keyClick(window.page.follow_up, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: len(window.setup.history) == 2)
    asked = window.controller._count_settings
    assert (asked.prompt, asked.history) == ("and why?", window.setup.history)
    wait_state(qtbot, window, "ended")
    qtbot.waitUntil(lambda: window.setup.tokens.text() == "131 tokens · turn 2")
    assert window.controller._count_settings.history == window.setup.history


def test_nothing_goes_on_while_a_job_runs(window, qtbot, script):
    race = ran(qtbot, window)
    controller, run_id, line = window.controller, race.run_id, window.page.follow_up
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
    assert not window.page.more.isEnabled() and not window.page.send.isEnabled() and not line.isEnabled()
    assert not window.actions_by_name["continue"].isEnabled()
    window.continue_run()
    window.next_turn(line.text())
    assert "busy with sweep" in window.banner.message
    assert race.run_id == run_id and controller.job == "sweep" and not ended
    controller.stop()
    qtbot.waitUntil(lambda: controller.can_follow_up and controller.can_continue, timeout=5000)
    assert ended == [("sweep", True)] and line.text() == "and why?" and line.isEnabled()
    assert window.page.more.isEnabled() and window.actions_by_name["continue"].isEnabled()
    window.next_turn(line.text())
    assert race.run_id > run_id and line.text() == "and why?", "the text stays until the turn has begun"
    wait_state(qtbot, window, "ended")
    assert line.text() == "" and "turn 2" in window.setup.tokens.text()


def test_raw_runs_take_no_follow_up(window, qtbot):
    window.setup.panel.chat.set_value("raw")
    ran(qtbot, window)
    assert not window.page.follow_up.isEnabled()
    assert "chat" in window.page.follow_up.placeholderText()


# -- messages -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.field("temperature").setText("-1"), "temperature is -1. Use 0 or more."),
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


def test_a_failed_load_keeps_the_lanes_and_says_why(window, qtbot, script):
    race = ran(qtbot, window)
    texts = [lane.text for lane in race.lanes]
    script.fail_load = "model.gguf is <b>cut</b> short. Download it again."
    ran(qtbot, window)
    assert window.banner.message == script.fail_load
    assert "failed" in window.status.state.text()
    assert [lane.text for lane in race.lanes] == texts
    assert not window.controller.can_continue
    # plain text, whatever is in it
    assert all(found.textFormat() == Qt.TextFormat.PlainText for found in window.banner.findChildren(QLabel))
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


# -- lanes -------------------------------------------------------------------------------------------------------


def test_lanes_move_and_go_but_plain_stays(window, qtbot):
    race = ran(qtbot, window)
    lookup = race.lanes[2]
    window.page.panels[2].move_requested.emit(-1)
    assert [lane.name for lane in race.lanes] == ["plain", "prompt-lookup", "draft-model"]
    assert race.lanes[1] is lookup
    assert lookup.rounds
    assert not window.controller.can_continue
    window.lanes.move(1, -1)
    window.lanes.remove(0)
    assert [lane.name for lane in race.lanes] == ["plain", "prompt-lookup", "draft-model"]
    window.page.panels[1].remove_requested.emit()
    assert [panel.lane.name for panel in window.page.panels] == ["plain", "draft-model"]
    ran(qtbot, window)
    assert [len(lane.rounds) > 0 for lane in race.lanes] == [True, True]


def test_editing_the_prompt_keeps_what_the_lanes_hold(window, qtbot):
    race = ran(qtbot, window)
    texts = [lane.text for lane in race.lanes]
    window.setup.prompt.setPlainText("another prompt")
    window.setup.field("temperature").set_value(0.8)
    assert [lane.text for lane in race.lanes] == texts
    assert window.controller.can_continue


def test_no_more_than_five_lanes(make_window, qtbot, monkeypatch):
    first = first_settings()
    window = make_window(first=replace(first, lanes=(*first.lanes, LaneSettings("prompt-lookup", k=3))))
    monkeypatch.setattr(window.lanes, "ask", lambda lane, title: replace(lane, k=5))
    assert window.setup.add_lane.isEnabled()
    window.lanes.set_up()
    assert len(window.page.panels) == 5
    assert not window.setup.add_lane.isEnabled()
    assert "remove one" in window.setup.add_lane.accessibleDescription()
    window.lanes.set_up()
    window.lanes.open_menu()
    assert not window.lane_menu.isVisible()
    window.lanes.add_method("prompt-lookup")
    assert len(window.lane_settings) == 5
    ran(qtbot, window)
    assert len(window.controller.race.lanes) == 5


def test_lanes_cannot_change_while_a_race_runs(window, qtbot, script):
    script.rounds, script.round_s = 60, 0.02
    window.run()
    wait_state(qtbot, window, "running")
    window.lanes.remove(1)
    window.lanes.move(1, 1)
    window.lanes.open_menu()
    assert not window.lane_menu.isVisible()
    window.lanes.add_method("prompt-lookup")
    window.lanes.set_up()
    window.lanes.edit(1)
    assert [lane.method for lane in window.lane_settings] == ["plain", "draft-model", "prompt-lookup"]
    window.controller.stop()
    wait_state(qtbot, window, "ended")


def test_a_lanes_rule_follows_the_race_unless_it_has_its_own(window):
    window.setup.field("temperature").set_value(0.8)
    window.setup.rule.set_value("match")
    window.lane_settings[2] = replace(window.lane_settings[2], rule="typical")
    rules = [lane.rule for lane in window.run_settings().lanes]
    assert rules == ["match", "match", "typical"]


# -- prompt and tokens -----------------------------------------------------------------------------------------------


def test_tokens_are_counted_when_the_prompt_rests(window, qtbot, script):
    qtbot.waitUntil(lambda: window.setup.tokens.text() == "131 tokens")
    script.count = 7
    window.setup.prompt.setPlainText("short")
    assert window.setup.tokens.text() == "… tokens"
    qtbot.waitUntil(lambda: window.setup.tokens.text() == "7 tokens")
    script.count = None
    window.setup.prompt.setPlainText("not loaded")
    qtbot.wait(600)
    assert window.setup.tokens.text() == "… tokens"


def test_workloads_fill_the_prompt(window, qtbot):
    qtbot.waitUntil(lambda: len(window.library.found.workloads) >= 12)
    labels = [action.text() for action in window.setup.menu.actions()]
    assert any("Portuguese" in text for text in labels)
    extract = next(w for w in window.library.found.workloads if w.name == "extract")
    action = next(a for a in window.setup.menu.actions() if a.text() == extract.label)
    action.trigger()
    assert window.setup.prompt.toPlainText() == extract.prompt
    assert window.run_settings().workload == "extract"
    assert "extract" in window.setup.caption.text()
    window.setup.prompt.appendPlainText("more")
    assert window.run_settings().workload is None


# -- files --------------------------------------------------------------------------------------------------------------


def drop(window, path: Path) -> None:
    data = QMimeData()
    data.setUrls([QUrl.fromLocalFile(str(path))])
    event = QDropEvent(
        QPointF(50, 50), Qt.DropAction.CopyAction, data, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier
    )
    window.dropEvent(event)


def test_dropped_files(window, qtbot, tmp_path, monkeypatch):
    text = tmp_path / "prompt.txt"
    text.write_text("Olá\n<i>x</i>", encoding="utf-8")
    drop(window, text)
    assert window.setup.prompt.toPlainText() == "Olá\n<i>x</i>"
    model = tmp_path / "a model & more.gguf"
    model.write_bytes(b"GGUF")
    monkeypatch.setattr(window.intake, "ask_role", lambda path: "target")
    drop(window, model)
    assert window.setup.target.target == str(model)
    assert "a model && more" in window.setup.target.text()
    monkeypatch.setattr(window.intake, "ask_role", lambda path: "draft")
    drop(window, model)
    assert window.lane_settings[1].draft == str(model)
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.setattr(window.intake, "ask_role", lambda path: "target")
    drop(window, folder)
    qtbot.waitUntil(lambda: window.setup.target.target == str(folder), timeout=20_000)
    assert window.setup.target.engine == "transformers"
    monkeypatch.setattr(window.intake, "ask_role", lambda path: "")
    drop(window, model)
    assert window.setup.target.target == str(folder)
    picture = tmp_path / "x.png"
    picture.write_bytes(b"\x89PNG")
    drop(window, picture)
    assert "x.png is neither" in window.banner.message
    broken = tmp_path / "bad.txt"
    broken.write_bytes(b"\xff\xfe\x00")
    drop(window, broken)
    assert "UTF-8" in window.banner.message
    window.intake.take_prompt(tmp_path / "missing.txt")
    assert "missing.txt cannot be read" in window.banner.message
    os.mkfifo(tmp_path / "pipe.txt")
    drop(window, tmp_path / "pipe.txt")
    assert "pipe.txt cannot be read: it is a pipe or a device" in window.banner.message


def test_copy_takes_the_text_without_ghosts(window, qtbot):
    race = ran(qtbot, window)
    window.page.focus_lane(1)
    window.lanes.copy()
    assert QGuiApplication.clipboard().text() == race.lanes[1].text


# -- keyboard and looks -----------------------------------------------------------------------------------------------------


def test_everything_is_reached_by_tab(window, qtbot):
    ran(qtbot, window)
    window.setup.target.setFocus()
    reached: list[QWidget] = []
    for _ in range(200):
        widget = QApplication.focusWidget()
        assert widget is not None
        if widget in reached:
            break
        reached.append(widget)
        window.focusNextChild()
    wanted = [
        window.setup.target, window.setup.caption, window.setup.prompt, window.setup.field("temperature"), window.setup.rule,
        window.setup.field("max_tokens"), window.setup.field("seed"), window.setup.more, window.setup.add_lane, window.setup.run,
        window.page.follow_up, window.page.more, *(panel.view for panel in window.page.panels),
    ]
    missing = [widget.accessibleName() or repr(widget) for widget in wanted if widget not in reached]
    assert not missing
    unnamed = [
        type(w).__name__ for w in reached
        if not (w.accessibleName() or (isinstance(w, QAbstractButton) and w.text()))
    ]
    assert not unnamed


def test_shortcuts_are_unambiguous(window):
    seen: dict[str, str] = {}
    for menu in window.menuBar().actions():
        for action in menu.menu().actions():
            for keys in action.shortcuts():
                text = keys.toString(QKeySequence.SequenceFormat.PortableText)
                assert text not in seen, f"{text}: {seen[text]} and {action.text()}"
                seen[text] = action.text()
    assert {"Ctrl+Return", "F5", "Esc", "Ctrl+I", "Ctrl++", "Ctrl+0"} <= set(seen)


def test_no_shortcut_is_a_text_fields_own(window):
    """On X11 and on macOS a line of text takes these before any action: Ctrl+U empties it, Ctrl+E goes to its end."""
    taken = {"Ctrl+A", "Ctrl+C", "Ctrl+E", "Ctrl+K", "Ctrl+U", "Ctrl+V", "Ctrl+X", "Ctrl+Z", "Ctrl+Shift+Z"}
    keys = {
        key.toString(QKeySequence.SequenceFormat.PortableText): action.text()
        for menu in window.menuBar().actions() for action in menu.menu().actions() for key in action.shortcuts()
    }  # fmt: skip
    assert not taken & set(keys), [keys[key] for key in taken & set(keys)]
    told = "\n".join(words for _, words in SHORTCUTS)
    for title, key in (("&Edit lane…", "Ctrl+Shift+L"), ("&Follow-up line", "Ctrl+Shift+M")):
        assert keys[key] == title and key in told


def test_follow_up_and_edit_keys_work_in_a_field(window, qtbot, monkeypatch):
    ran(qtbot, window)
    both = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier
    edited = []
    monkeypatch.setattr(window, "edit_lane", edited.append)
    for field in (window.setup.field("seed"), window.setup.prompt, window.page.follow_up):
        window.activateWindow()
        field.setFocus()
        qtbot.waitUntil(field.hasFocus, timeout=5000)
        qtbot.keyClick(field, Qt.Key.Key_L, both)
        assert edited.pop() == 1 and not edited, "the lane selected: the first that drafts"
        qtbot.keyClick(field, Qt.Key.Key_M, both)
        assert window.focusWidget() is window.page.follow_up
    assert window.setup.field("seed").text() == "0" and window.page.follow_up.text() == ""


def test_focus_can_be_seen(window):
    sheet = QApplication.instance().styleSheet()
    for kind in ("QPushButton:focus", "QLineEdit:focus", "QComboBox:focus", "QToolButton:focus", "QPlainTextEdit:focus"):
        assert kind in sheet


def test_themes_and_fonts_switch_live(window, qtbot):
    ran(qtbot, window)
    window._set_theme("light")
    assert theme.current().name == "light"
    for direction in (1, 1, -1, 0, -1, -1, -1, -1):
        window._zoom(direction)
    assert theme.font_scale() == theme.SCALES[0]
    window._zoom(0)
    assert theme.font_scale() == 1.0
    window._set_theme("dark")
    ran(qtbot, window)


@pytest.mark.parametrize(("width", "height", "inspector", "plots"),
                         [(1440, 900, True, True), (1280, 800, True, True), (800, 600, False, False)])
def test_small_windows_fold_what_has_no_room(window, qtbot, width, height, inspector, plots):
    window.resize(width, height)
    qtbot.wait(20)
    assert (window.width(), window.height()) == (width, height)
    assert window.page.shown("inspector") == inspector
    assert window.page.shown("plots") == plots
    assert window.actions_by_name["inspector"].isChecked() == inspector
    # asked for, it is there whatever the room
    if not inspector:
        window.actions_by_name["inspector"].trigger()
        assert window.page.shown("inspector")
    window.actions_by_name["inspector"].trigger() if window.page.shown("inspector") else None
    assert not window.page.shown("inspector")


@pytest.mark.parametrize(("asked", "other"), [("plots", "inspector"), ("inspector", "plots")])
def test_in_a_small_window_only_what_was_asked_for_opens(window, qtbot, asked, other):
    window.resize(640, 420)
    qtbot.waitUntil(lambda: not window.page.shown("plots") and not window.page.shown("inspector"))
    window.actions_by_name["ghosts"].trigger()
    assert not window.page.shown(asked) and not window.page.shown(other)
    getattr(window, asked).trigger()
    assert window.page.shown(asked) and getattr(window, asked).isChecked()
    assert not window.page.shown(other) and not getattr(window, other).isChecked()
    getattr(window, other).trigger()
    assert window.page.shown(asked) and window.page.shown(other)
    getattr(window, asked).trigger()
    assert not window.page.shown(asked) and window.page.shown(other)


@pytest.mark.parametrize(("part", "splitter"), [("plots", "rows"), ("inspector", "columns")])
def test_a_part_dragged_shut_opens_when_asked_for(window, qtbot, part, splitter):
    edge = getattr(window.page, splitter)
    qtbot.waitUntil(lambda: all(edge.sizes()))
    whole = sum(edge.sizes())
    edge.setSizes([whole - 260, 260])
    held = edge.sizes()
    getattr(window, part).trigger()
    getattr(window, part).trigger()
    qtbot.waitUntil(lambda: edge.sizes() == held)  # folded and shown: as it was
    edge.setSizes([whole, 0])
    qtbot.waitUntil(lambda: edge.sizes()[1] == 0)
    getattr(window, part).trigger()
    getattr(window, part).trigger()
    qtbot.waitUntil(lambda: edge.sizes()[1] >= 150)


@pytest.mark.parametrize(("count", "text"), [(0, "0"), (4.0, "4"), (3.26, "3.3"), (9.98, "10"), (15.4, "15"),
                                             (123.4, "123"), (1e6, "1000000")])
def test_mean_draft_lengths_read_as_numbers(count, text):
    assert count_text(count) == text


def test_nothing_jumps_while_figures_change(window, qtbot, script):
    script.rounds, script.round_s = 60, 0.004
    window.run()
    wait_state(qtbot, window, "running")
    qtbot.waitUntil(lambda: script.emitted_rounds > 10)
    places = [panel.geometry() for panel in window.page.panels]
    bar = window.setup.geometry()
    fields = [w.geometry() for w in (window.setup.target, window.setup.prompt, window.setup.stop, window.setup.run)]
    wait_state(qtbot, window, "ended")
    assert [panel.geometry() for panel in window.page.panels] == places
    assert window.setup.geometry() == bar
    assert fields == [
        w.geometry() for w in (window.setup.target, window.setup.prompt, window.setup.stop, window.setup.run)
    ]


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
    qtbot.waitUntil(lambda: "real time" in window.status.share.text())
    wait_state(qtbot, window, "ended")
    assert "0.34× real time" in window.status.share.text()
    kind = type(window.controller)
    for share, shown in ((0.001, ""), (0.02, "0.02× real time")):  # no clock has moved yet; one has
        monkeypatch.setattr(kind, "real_time_fraction", property(lambda _, share=share: share))
        window.status._show_share()
        assert shown in window.status.share.text() and bool(shown) == bool(window.status.share.text())
    assert "v(" in window.status.costs.text()
    assert "2 threads" in window.status.machine.text()


def test_a_busy_machine_is_said(window, qtbot, monkeypatch):
    race = ran(qtbot, window)
    race.ended = replace(race.ended, busy="The machine is busy: others use it.")
    window._refresh_actions()
    assert window.page.note.full == "The machine is busy: others use it."
    window.run()
    wait_state(qtbot, window, "ended")
    assert "lanes share" in window.page.note.full


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


def test_drawing_makes_room_for_the_race(window, monkeypatch):
    from specview.gui.link import controller as module

    held = window.controller
    clock = {"wall": 100.0, "thread": 10.0}
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock["wall"])
    monkeypatch.setattr(module.time, "thread_time", lambda: clock["thread"])
    monkeypatch.setattr(module.os, "cpu_count", lambda: 2)
    for _ in range(12):
        held._keep_pace()
        clock["wall"] += 0.5
        clock["thread"] += 0.1
    slow = held._text_timer.interval(), held._plot_timer.interval()
    assert slow == (round(33 * 2.5), 250)
    for _ in range(20):
        clock["wall"] += 0.5
        clock["thread"] += 0.001
        held._keep_pace()
    assert (held._text_timer.interval(), held._plot_timer.interval()) == (33, 100)


def test_lanes_keep_room_for_their_figures_when_the_font_grows(window, qtbot, qapp):
    before = window.page.lanes.minimumWidth()
    try:
        window._zoom(1)
        assert window.page.lanes.minimumWidth() > before
    finally:
        window._zoom(0)
    assert window.page.lanes.minimumWidth() == before


def test_rule_that_auto_picks_is_not_cut(window, qtbot):
    window.setup.field("temperature").setText("0.8")
    qtbot.waitUntil(lambda: window.setup.rule.width() >= window.setup.rule.sizeHint().width())
    shown = window.setup.rule.fontMetrics().horizontalAdvance(window.setup.rule.currentText())
    assert shown < window.setup.rule.width() - theme.px(24)


def test_inspector_forgets_a_token_of_a_lane_or_run_that_is_gone(window, qtbot):
    race = ran(qtbot, window)
    inspector = window.page.inspector
    assert inspector.show_token(race.lanes[2], 0, 0)
    window.lanes.remove(1)
    assert inspector.inspection is not None
    window.lanes.remove(1)
    assert inspector.inspection is None
    race = ran(qtbot, window)
    assert inspector.show_token(race.lanes[0], 0, -1)
    ran(qtbot, window)
    assert inspector.inspection is None


def test_the_keyboard_is_never_left_in_the_middle_of_another_tab(window, qtbot):
    window.setup.run.setFocus()
    window.tabs.open("Runs")  # the setup bar goes with the race
    assert window.focusWidget() is window.tabs.bar  # no run is kept: nothing to be in
    window.tabs.open("Exactness")
    assert window.focusWidget() is window.tabs.bar
    window.tabs.open("Race")
    window.setup.run.setFocus()
    window.tabs.open("Race")
    assert window.focusWidget() is window.setup.run


def test_the_prompts_length_stays_known_when_the_target_is_not_in_memory(window, qtbot):
    heard = []
    window.controller.tokens_counted.connect(heard.append)
    settings = window.run_settings()
    with qtbot.waitSignal(window.controller.tokens_counted, check_params_cb=lambda count: bool(count), timeout=5000):
        window.controller.count_tokens(settings)
    known = heard[-1]
    window.controller._tell_count(None)  # asked again, after a job that freed the target
    assert heard[-1] == known
    window.controller.count_tokens(replace(settings, prompt="another one"))
    assert heard[-1] is None


def test_numbers_too_large_for_a_float_are_said_in_one_line(window):
    field = window.setup.field("max_tokens")
    field.setText("9" * 400)
    assert "Use a value from 1 to 1,000,000" in field.problem() and len(field.problem()) < 120
    window.run()
    assert "max tokens" in window.banner.message and not window.controller.racing
    window.setup.field("seed").setText("-1")
    assert "e+" not in window.setup.field("seed").problem()
