"""What is set up in the window: lanes, prompt and its length, files that come in."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from PySide6.QtCore import QMimeData, QPointF, Qt, QUrl
from PySide6.QtGui import QDropEvent, QGuiApplication

from specview.gui.shell.app import first_settings
from specview.settings.run import LaneSettings
from tests.gui.shell_fake import ran, wait_state


def test_lanes_move_and_go_but_plain_stays(window, qtbot):
    race = ran(qtbot, window)
    lookup = race.lanes[2]
    window.page.panels[2].move_requested.emit(-1)
    assert [lane.name for lane in race.lanes] == ["plain", "eagle3", "draft-model"]
    assert race.lanes[1] is lookup
    assert lookup.rounds
    assert not window.controller.can_continue
    window.lanes.move(1, -1)
    window.lanes.remove(0)
    assert [lane.name for lane in race.lanes] == ["plain", "eagle3", "draft-model"]
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
    assert [lane.method for lane in window.lane_settings] == ["plain", "draft-model", "eagle3"]
    window.controller.stop()
    wait_state(qtbot, window, "ended")


def test_a_lanes_rule_follows_the_race_unless_it_has_its_own(window):
    window.setup.field("temperature").set_value(0.8)
    window.setup.rule.set_value("match")
    window.lane_settings[2] = replace(window.lane_settings[2], rule="typical")
    rules = [lane.rule for lane in window.run_settings().lanes]
    assert rules == ["match", "match", "typical"]


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


def test_copy_takes_the_text_without_ghosts(window, qtbot):
    race = ran(qtbot, window)
    window.page.focus_lane(1)
    window.lanes.copy()
    assert QGuiApplication.clipboard().text() == race.lanes[1].text


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
