"""The training dialog and its child process: a made-up `specview train` prints the protocol."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from filelock import FileLock
from PySide6.QtCore import Qt
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import QApplication

from specview.gui.link.background import Background
from specview.gui.parts import theme
from specview.gui.train import process as training_process
from specview.gui.train.dialog import TrainDialog, duration, state_words
from specview.gui.train.process import MOST_POINTS, Curve, TrainingRun
from specview.settings.run import LaneSettings
from specview.training.asked import TrainSettings

FAKE = Path(__file__).with_name("train_fake.py")
WAIT_MS = 60_000


@pytest.fixture
def mode() -> list[str]:
    """What the made-up command does; change it before it starts."""
    return ["done"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "fake"
    made.mkdir()
    return made


@pytest.fixture(autouse=True)
def _fake(monkeypatch, mode, folder, tmp_path) -> None:
    monkeypatch.setattr(training_process, "program", lambda: [sys.executable, str(FAKE), mode[0], str(folder)])
    monkeypatch.setattr("specview.gui.train.dialog.heads_folder", lambda: tmp_path / "heads")
    monkeypatch.setattr(training_process, "POLL_MS", 20)


@pytest.fixture
def run(qtbot) -> Iterator[TrainingRun]:
    made = TrainingRun()
    yield made
    if made._process is not None:
        made._process.kill()
        made._process.wait(20)
        made.poll()


def request(kind: str = "eagle3", **more: str) -> TrainSettings:
    paths = {name: Path(value) for name, value in more.items()}
    return TrainSettings(kind=kind, out=Path("/tmp/out"), minutes=10, feature_budget_gb=2.5, **paths)


def wait_end(qtbot, run: TrainingRun) -> None:
    qtbot.waitUntil(lambda: not run.running, timeout=WAIT_MS)


def wait_working(qtbot, folder: Path, run: TrainingRun) -> None:
    qtbot.waitUntil(lambda: (folder / "working").exists() and run.step == 40, timeout=WAIT_MS)


# -- the process ------------------------------------------------------------------------------------------------


def test_a_run_is_followed_to_its_end(qtbot, run, folder):
    assert run.start(request(prompts="/p.txt", work="/w"))
    assert not run.start(request()), "one at a time"
    wait_end(qtbot, run)
    assert run.state == "done" and run.folder == str(folder / "out") and run.fraction == 1.0
    assert run.loss.x == list(range(1, 41)) and run.loss.y[-1] == pytest.approx(9 / 40)
    assert {k: curve.y[-1] for k, curve in run.held_out.items()} == {1: pytest.approx(0.5), 2: pytest.approx(0.4)}
    assert run.tokens_per_pass == {1: 1.4, 2: 1.6} and run.message == ""
    given = json.loads((folder / "arguments.json").read_text())
    assert given == ["train", "eagle3", "--target", "bundled", "--out", "/tmp/out", "--minutes", "10",
                     "--prompts", "/p.txt", "--feature-budget", "2.5", "--work", "/w", "--progress", "-"]
    assert run._folder is None and run.pid is None


@pytest.mark.parametrize(("which", "words"), [
    ("die", "MemoryError: no memory left"),
    ("silent", "The training ended by itself (exit code 0)."),
    ("error", "there is no file prompts.txt. Check the path."),
])
def test_a_child_that_ends_badly_gives_one_line(qtbot, run, mode, which, words):
    mode[0] = which
    run.start(request())
    wait_end(qtbot, run)
    assert run.state == "failed" and run.message == words


def test_a_stop_is_gentle_and_keeps_the_curves_for_the_next_start(qtbot, run, mode, folder):
    mode[0] = "wait"
    run.start(request())
    wait_working(qtbot, folder, run)
    if sys.platform != "win32":
        assert os.getpriority(os.PRIO_PROCESS, run.pid) == 19
    run.stop()
    assert run.state == "stopping"
    wait_end(qtbot, run)
    assert run.state == "stopped" and run.work == str(folder / "work") and len(run.loss.x) == 40
    mode[0] = "done"
    run.start(request(work=run.work))
    assert len(run.loss.x) == 40 and run.state == "running"
    wait_end(qtbot, run)
    assert run.state == "done" and run.loss.x == list(range(1, 41)), "steps done again take the place of the old ones"
    run.start(request("medusa"))
    assert not run.loss.x, "another run starts with empty plots"
    wait_end(qtbot, run)


def test_a_deaf_child_is_ended_when_asked_twice(qtbot, run, mode, folder):
    mode[0] = "deaf"
    run.start(request())
    wait_working(qtbot, folder, run)
    run.stop()
    run.stop()
    wait_end(qtbot, run)
    assert run.state == "stopped" and "Resume" in run.message


def test_a_run_that_is_left_goes_on(qtbot, run, mode, folder):
    mode[0] = "deaf"
    run.start(request())
    wait_working(qtbot, folder, run)
    pid = run.pid
    assert pid is not None
    run.leave()
    assert not run.running and run.state == "idle"
    assert psutil.pid_exists(pid)
    (folder / "go").touch()
    qtbot.waitUntil(lambda: (folder / "eof").exists(), timeout=WAIT_MS)
    if sys.platform != "win32":
        assert os.waitpid(pid, 0)[1] == 0


def test_a_command_that_is_not_there_is_one_line(run, tmp_path):
    assert not run.start(request(), command=[str(tmp_path / "nothing")])
    assert run.state == "failed" and run.message.startswith("The training cannot start") and not run.running


def test_curves_stay_small():
    curve = Curve()
    for step in range(20_000):
        curve.add(step, step * 2.0)
    assert len(curve.x) <= MOST_POINTS and curve.x[-1] == 19_999 and curve.x == sorted(curve.x)
    curve.add(100, 1.0)
    assert curve.x[-1] == 100 and max(curve.x) == 100
    assert [duration(s) for s in (-3, 40, 700, 11_100)] == ["0 s", "40 s", "12 min", "3 h 05 min"]


# -- the dialog ---------------------------------------------------------------------------------------------------


@pytest.fixture
def files(monkeypatch, tmp_path) -> Iterator[Background]:
    monkeypatch.setenv("SPECVIEW_CACHE", str(tmp_path / "cache"))
    made = Background()
    yield made
    made.close()


@pytest.fixture
def dialog(qtbot, run, files) -> TrainDialog:
    made = TrainDialog(run, lambda: ("transformers", "bundled", "SmolLM2-135M-Instruct"), files)
    qtbot.addWidget(made)
    with qtbot.waitExposed(made):
        made.show()
    return made


def test_the_dialog_plots_a_run_and_offers_its_result(qtbot, dialog, run, folder, tmp_path):
    assert dialog.out.text() == str(tmp_path / "heads" / "eagle3-smollm2-135m")
    assert not dialog.isModal() and not dialog.stop.isEnabled() and not dialog.use.isEnabled()
    qtbot.mouseClick(dialog.start, Qt.MouseButton.LeftButton)
    assert run.running and not dialog.start.isEnabled() and not dialog.kind.isEnabled() and dialog.stop.isEnabled()
    wait_end(qtbot, run)
    assert dialog.state.full.startswith("Done") and dialog.bar.value() == 1000
    assert "agreement with the target 0.50" in dialog.figures.full
    assert dialog.loss.names == ["loss"] and dialog.alpha.names == ["k 1", "k 2"]
    assert [series.value for series in dialog.alpha.picture.series.values()] == ["0.50", "0.40"]
    with qtbot.waitSignal(dialog.use_asked) as asked:
        qtbot.mouseClick(dialog.use, Qt.MouseButton.LeftButton)
    assert asked.args == ["eagle3", str(folder / "out")]


def test_stop_and_resume_from_the_dialog(qtbot, dialog, run, mode, folder):
    mode[0] = "wait"
    dialog.begin()
    wait_working(qtbot, folder, run)
    assert "90%" in state_words(run) and "60 s left" in dialog.state.full
    qtbot.mouseClick(dialog.stop, Qt.MouseButton.LeftButton)
    assert not dialog.stop.isEnabled()
    wait_end(qtbot, run)
    assert dialog.start.text() == "Resume" and dialog.start.isEnabled()
    assert dialog.work.text() == str(folder / "work")
    mode[0] = "done"
    qtbot.mouseClick(dialog.start, Qt.MouseButton.LeftButton)
    wait_end(qtbot, run)
    assert json.loads((folder / "arguments.json").read_text())[-4:] == ["--work", str(folder / "work"), "--progress", "-"]


def test_what_cannot_work_is_said_before_it_starts(qtbot, dialog, tmp_path):
    def says(words: str) -> bool:
        return words in dialog.problem.text() and not dialog.start.isEnabled()

    dialog.minutes.setText("0")
    assert says("minutes is 0")
    dialog.minutes.setText("10")
    assert dialog.start.isEnabled() and not dialog.problem.text()
    assert not dialog.file.isVisible()
    dialog.source.set_value("prompts")
    assert dialog.file.isVisible() and says("no data file")
    dialog.file.setText(str(tmp_path / "none.txt"))
    assert says("there is no file")
    (tmp_path / "some.txt").write_text("a prompt\n")
    dialog.file.setText(str(tmp_path / "some.txt"))
    assert dialog.request().prompts == tmp_path / "some.txt" and dialog.request().text is None
    dialog.source.set_value("text")
    assert dialog.request().text and not dialog.request().prompts
    dialog.out.setText("")
    assert says("no folder for the result")
    dialog.out.setText("/somewhere")
    work = tmp_path / "work"
    work.mkdir()
    (work / "job.json").write_text("{}")
    dialog.work.setText(str(work))
    assert dialog.start.text() == "Resume"


def test_a_failed_child_is_one_line_in_the_dialog(qtbot, dialog, run, mode):
    mode[0] = "die"
    dialog.begin()
    wait_end(qtbot, run)
    assert dialog.problem.text() == "MemoryError: no memory left" and dialog.start.isEnabled()


def test_the_present_problem_comes_before_an_old_failure(qtbot, dialog, run, mode):
    mode[0] = "die"
    dialog.begin()
    wait_end(qtbot, run)
    dialog.source.set_value("prompts")
    assert "no data file" in dialog.problem.text() and not dialog.start.isEnabled()
    dialog.source.set_value("")
    assert dialog.problem.text() == "MemoryError: no memory left", "the same would be tried again"
    assert dialog.start.text() == "Start", "it failed before there was anything to go on with"
    dialog.minutes.setText("11")
    assert not dialog.problem.text() and dialog.start.isEnabled()


def test_another_kind_or_data_is_no_resume_and_forgets_the_work_folder(qtbot, dialog, run, mode, folder, tmp_path):
    mode[0] = "wait"
    dialog.begin()
    wait_working(qtbot, folder, run)
    run.stop()
    wait_end(qtbot, run)
    assert dialog.start.text() == "Resume"
    (tmp_path / "some.txt").write_text("a prompt\n")

    def data() -> None:
        dialog.source.set_value("text")
        dialog.file.setText(str(tmp_path / "some.txt"))

    for change, back in ((lambda: dialog.kind.set_value("medusa"), lambda: dialog.kind.set_value("eagle3")),
                         (data, lambda: dialog.source.set_value(""))):
        change()
        assert dialog.start.text() == "Start" and dialog.start.isEnabled() and dialog.work.text() == ""
        assert dialog.request().work is None
        back()
        assert dialog.start.text() == "Resume" and dialog.work.text() == str(folder / "work")
    dialog.work.setText(str(tmp_path / "mine"))
    assert dialog.start.text() == "Start", "nothing lies there"
    dialog.kind.set_value("medusa")
    assert dialog.work.text() == str(tmp_path / "mine"), "what the user named stays"


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_the_dialog_fits_a_small_screen_at_any_font(qtbot, run, files, scale):
    theme.apply(QApplication.instance(), "dark", scale)
    try:
        made = TrainDialog(run, lambda: ("llama.cpp", "bundled", "SmolLM2"), files)
        qtbot.addWidget(made)
        made.show()
        assert made.minimumSizeHint().height() < 560 and made.minimumSizeHint().width() <= 1280
        made.resize(1280, 760)
        assert made.height() == 760 and made.rect().contains(made.start.geometry())
        made.close()
    finally:
        theme.apply(QApplication.instance(), "dark", 1.0)


def test_what_trainings_keep_is_told_and_can_be_removed(qtbot, dialog, files, tmp_path, monkeypatch):
    row = dialog.remove_button.parentWidget()
    qtbot.waitUntil(lambda: not files.busy)
    assert not row.isVisible(), "there is nothing yet"
    for name, size in (("medusa-a", 3_000_000), ("draft-b", 2_000_000)):
        (tmp_path / "cache" / "training" / name / "texts").mkdir(parents=True)
        (tmp_path / "cache" / "training" / name / "job.json").write_text("{}")
        (tmp_path / "cache" / "training" / name / "texts" / "data").write_bytes(bytes(size))
    (tmp_path / "cache" / "training" / "of the user").mkdir()
    dialog.hide()
    dialog.show()
    qtbot.waitUntil(lambda: row.isVisible() and not files.busy)
    assert "5 MB" in dialog.kept.full
    answers = ["", "remove", "remove"]
    monkeypatch.setattr("specview.gui.train.dialog.ask", lambda *words, **more: answers.pop(0))
    qtbot.mouseClick(dialog.remove_button, Qt.MouseButton.LeftButton)
    assert not files.busy
    with FileLock(tmp_path / "cache" / "training" / "medusa-a" / ".lock"):  # a training is at work in it
        qtbot.mouseClick(dialog.remove_button, Qt.MouseButton.LeftButton)
        qtbot.waitUntil(lambda: "3 MB" in dialog.kept.full and not files.busy)
    qtbot.mouseClick(dialog.remove_button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: not row.isVisible() and not files.busy)
    assert [path.name for path in (tmp_path / "cache" / "training").iterdir()] == ["of the user"]


# -- the window ---------------------------------------------------------------------------------------------------


def test_a_race_beside_a_training_is_warned_of_and_the_result_becomes_a_lane(window, qtbot, mode, folder, script):
    mode[0] = "wait"
    script.rounds = 3
    window.actions_by_name["train"].trigger()
    assert window.training.dialog is not None and window.training.dialog.isVisible()
    assert window.training.dialog.target.full == "SmolLM2-135M-Instruct"
    window.run()
    assert window.banner.message == ""
    window.training.dialog.begin()
    assert "runs beside this race" in window.banner.message
    wait_working(qtbot, folder, window.training.run)
    qtbot.waitUntil(lambda: window.controller.state == "ended", timeout=WAIT_MS)
    assert window.training.button.text() == "training eagle3 90%" and not window.training.button.isHidden()
    window.run()
    assert "share the processor" in window.banner.message
    qtbot.waitUntil(lambda: window.controller.state == "ended", timeout=WAIT_MS)
    (folder / "go").touch()
    wait_end(qtbot, window.training.run)
    assert window.training.button.text() == "eagle3 trained"
    before = list(window.lane_settings)
    window.training.dialog.use.click()
    assert window.lane_settings == [*before, LaneSettings(method="eagle3", draft=str(folder / "out"))]
    window.run()
    assert window.banner.message == ""
    window.training.dialog.close()


@pytest.mark.parametrize("answer", ["stop", "leave", ""])
def test_closing_the_window_asks_what_becomes_of_a_training(window, qtbot, mode, folder, monkeypatch, answer):
    mode[0] = "wait"
    window.training.show()
    window.training.dialog.begin()
    wait_working(qtbot, folder, window.training.run)
    process = window.training.run._process
    asked: list[int] = []
    monkeypatch.setattr(window.training, "ask", lambda: asked.append(1) or answer)
    event = QCloseEvent()
    window.closeEvent(event)
    assert asked == [1] and event.isAccepted() == bool(answer)
    assert window._closing == bool(answer)
    if answer == "":
        assert window.training.run.running
        window.training.run.stop()
        wait_end(qtbot, window.training.run)
    else:
        if process.returncode != 130:
            process.returncode = None  # it was let go: here it is waited for
        if answer == "leave":
            assert process.poll() is None
            (folder / "go").touch()
        end = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < end:
            qtbot.wait(20)
        assert process.poll() == (130 if answer == "stop" else 0)


def test_closing_without_a_training_asks_nothing(window, monkeypatch):
    monkeypatch.setattr(window.training, "ask", lambda: pytest.fail("asked"))
    window.close()
    assert window._closing


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_in_the_terminal_does_not_reach_the_child(qtbot, run, mode, folder):
    mode[0] = "deaf"
    run.start(request())
    wait_working(qtbot, folder, run)
    assert os.getpgid(run.pid) != os.getpgid(0)
    os.kill(run.pid, signal.SIGKILL)
    wait_end(qtbot, run)
    assert run.state == "failed" and run.message
