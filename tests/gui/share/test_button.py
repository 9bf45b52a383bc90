"""Exports from the race page: every form in a process of its own, told in the banner, stopped, copied."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import pytest
from PySide6.QtCore import Qt, QTimer
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication, QDialog, QFileDialog

from specview.gui.link.open_run import Pick
from specview.gui.share.looks import LookDialog
from specview.gui.share.source import NOTHING, RUNNING
from specview.gui.state.playhead import Playhead
from specview.library.library import RunLibrary
from tests.gui.shell_fake import ran, wait_state
from tests.library.recorded import write_trace

PATIENCE_MS = 60_000


@pytest.fixture(autouse=True)
def own_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def written(qtbot, window, form: str, path: Path, *words: str) -> str:
    """Export the race and wait; returns what the banner says."""
    with qtbot.waitSignal(window.page.export.told, timeout=PATIENCE_MS) as told:
        window.page.export.write(form, path, list(words))
    assert window.banner.message == " ".join(told.args[0].split())
    return told.args[0]


def test_it_waits_for_the_end_of_a_race(window, qtbot, script) -> None:
    button = window.page.export
    assert not button.isEnabled() and button.accessibleDescription() == NOTHING
    script.round_s = 0.02
    window.run()
    wait_state(qtbot, window, "running")
    assert not button.isEnabled() and button.accessibleDescription() == RUNNING
    button.open()
    assert window.banner.message == RUNNING
    wait_state(qtbot, window, "ended")
    assert button.isEnabled() and "Ctrl+Shift+E" in button.accessibleDescription()


def test_a_kept_race_becomes_a_page_and_the_banner_says_where(window, qtbot, tmp_path) -> None:
    ran(qtbot, window)
    said = written(qtbot, window, "html", tmp_path / "race.html")
    assert said == f"Written: {tmp_path / 'race.html'}" and window.banner.property("kind") == "note"
    page = (tmp_path / "race.html").read_text(encoding="utf-8")
    entry = RunLibrary().find("last")
    assert entry.title in page and window.page.export.text() == "Export ▾"
    window.page.export.fill()
    texts = [action.text() for action in window.page.export.menu().actions()]
    assert "Open race.html" in texts and "Copy as Markdown" in texts and len(texts) > 10


def test_a_race_that_is_not_kept_and_is_being_played_is_exported_whole(window, qtbot, tmp_path, own_temporary) -> None:
    RunLibrary().set_keeps(False)
    ran(qtbot, window)
    lanes = window.controller.race.lanes
    counts = [len(lane.rounds) for lane in lanes]
    Playhead(lanes).seek(0.2)
    window.controller.redraw()
    assert sum(len(lane.rounds) for lane in lanes) < sum(counts)
    written(qtbot, window, "csv", tmp_path / "race.csv")
    with (tmp_path / "race.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [sum(row["lane"] == str(index) for row in rows) for index in range(len(lanes))] == counts
    assert list(own_temporary.iterdir()) == []


def test_a_recorded_run_is_exported_from_its_file(window, qtbot, tmp_path) -> None:
    window.recorded.open([Pick(write_trace(tmp_path / "mine.jsonl"))])
    qtbot.waitUntil(lambda: window.controller.recorded is not None)
    assert window.page.export.source.name == "mine"
    with qtbot.waitSignal(window.page.export.told, timeout=PATIENCE_MS) as told:
        window.page.export.copy_markdown()
    assert told.args[1] == "note" and QGuiApplication.clipboard().text().startswith("# mine\n\n**")


def test_what_cannot_be_written_is_one_line(window, qtbot, tmp_path) -> None:
    ran(qtbot, window)
    said = written(qtbot, window, "png", tmp_path / "no" / "such" / "a.png")
    assert said.startswith("Cannot write the picture") and said.count("\n") == 0 and window.banner.property("kind") == "error"


def test_an_animation_tells_how_far_it_is_and_can_be_stopped(window, qtbot, tmp_path) -> None:
    ran(qtbot, window)
    button = window.page.export
    width = button.sizeHint().width()
    button.write("gif", tmp_path / "a.gif", ["--speed", "0.02", "--size", "320x180"])
    qtbot.waitUntil(lambda: "%" in button.text(), timeout=PATIENCE_MS)
    assert button.sizeHint().width() == width  # what stands beside it does not move
    assert button.isEnabled()
    button.fill()
    (stop,) = button.menu().actions()
    assert stop.text() == "Stop writing a.gif"
    with qtbot.waitSignal(button.told, timeout=PATIENCE_MS) as told:
        stop.trigger()
    assert told.args[1] == "warning" and not list(tmp_path.glob("*.gif")) and not list(tmp_path.glob(".a.gif*"))


def test_a_window_that_closes_ends_its_export(make_window, qtbot, tmp_path) -> None:
    window = make_window()
    ran(qtbot, window)
    window.page.export.write("gif", tmp_path / "a.gif", ["--speed", "0.02"])
    qtbot.waitUntil(lambda: window.page.export.process.running, timeout=PATIENCE_MS)
    window.close()
    assert not window.page.export.process.running and not list(tmp_path.glob("*.gif"))


def test_by_keyboard_alone(window, qtbot, tmp_path, monkeypatch) -> None:
    ran(qtbot, window)
    asked = []
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *words: (asked.append(words), (str(tmp_path / "mine"), "MP4 (*.mp4)"))[1])
    monkeypatch.setattr(LookDialog, "exec", lambda self: QDialog.DialogCode.Accepted)
    wrote = []
    monkeypatch.setattr(window.page.export, "write", lambda *words: wrote.append(words))

    def choose() -> None:
        menu = QApplication.activePopupWidget()
        assert menu is window.page.export.menu()
        qtbot.keyClick(menu, Qt.Key.Key_4)

    QTimer.singleShot(50, choose)
    both = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier
    qtbot.keyClick(window.page.panels[0].view, Qt.Key.Key_E, both)
    ((form, path, words),) = wrote
    assert form == "video" and path == tmp_path / "mine.mp4" and words == ["--theme", "dark", "--size", "1280x720", "--speed", "1"]
    start = Path(asked[0][2])
    assert start.name == "code-edit.webm" and start.parent.is_dir()


def test_a_look_is_given_as_options(window, qtbot) -> None:
    dialog = LookDialog("gif", "Animated GIF", window)
    dialog.title.setText("  -- mine  ")
    dialog.theme.set_value("light")
    dialog.speed.set_value("0.25")
    assert dialog.words == ["--theme", "light", "--size", "960x540", "--speed", "0.25", "--title=-- mine"]
    assert LookDialog("png", "Picture", window).words == ["--theme", "dark", "--size", "1280x720"]
