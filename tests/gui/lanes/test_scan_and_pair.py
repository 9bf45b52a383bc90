"""The scan of exits from the editor, what is said of the pair, looks that are kept."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QDialog, QDialogButtonBox

from specview.decoding.interfaces import Declared
from specview.gui.lanes import exit_scan_dialog
from specview.gui.lanes.editor import LaneEditor
from specview.gui.lanes.exit_scan_dialog import ExitScanDialog, ExitScans
from specview.gui.link import pair_checks
from specview.gui.link.job import Job, Tell
from specview.gui.link.pair_checks import PairChecks, check, pair_words
from specview.models.pair_check import PairReport
from specview.settings.run import LaneSettings, RunSettings
from tests.gui.methods_fake import FAKES
from tests.gui.shell_fake import fake_scan

pytestmark = pytest.mark.usefixtures("made_up")


def ok(editor: LaneEditor) -> bool:
    return editor.buttons.button(QDialogButtonBox.StandardButton.Ok).isEnabled()


def wait_ended(qtbot, window) -> None:
    window.run()
    qtbot.waitUntil(lambda: window.controller.state == "ended", timeout=10_000)


# -- the scan --------------------------------------------------------------------------------------------------------


@pytest.fixture
def scans(window, script, monkeypatch) -> ExitScans:
    monkeypatch.setattr(exit_scan_dialog, "measure", fake_scan(script))
    return ExitScans(window.controller, window.setup.settings(()))


def finish(dialog: ExitScanDialog) -> None:
    dialog.reject()
    dialog.deleteLater()


def test_a_scan_runs_on_the_engine_thread_and_marks_the_best(window, qtbot, script, scans):
    script.scan_s = 1.5
    dialog = ExitScanDialog(scans, window)
    dialog.show()
    assert dialog.running and dialog.stop.isEnabled() and not dialog.use.isEnabled()
    assert window.controller.state == "working"
    qtbot.waitUntil(lambda: dialog.progress.maximum() > 0 and dialog.progress.value() > 0)
    assert "Costs" in window.page.headline.said.text or "Costs" in dialog.words.text()
    qtbot.waitUntil(lambda: not dialog.running)
    assert script.threads == {"specview-engine"}
    assert len(dialog.table.rows) == 11
    assert "Best: leave after layer 6 of 12" in dialog.words.text() and "131" in dialog.words.text()
    assert [row["layer"] for row in dialog.table.rows if row["best"]] == [6] and dialog.table.selected_rows() == [5]
    assert [dialog.table.rows[row]["speedup"] for row in (3, 5)] == [None, 1.3]
    assert dialog.use.text() == "Use E = 6, k = 2" and dialog.use.isEnabled()
    dialog.table.select(2)
    assert dialog.use.text() == "Use E = 3, k = 2"
    dialog.use.click()
    assert dialog.chosen == (3, 2)
    qtbot.waitUntil(lambda: window.controller.state == "ready")
    dialog.deleteLater()


def test_a_scan_stops_and_can_be_run_again(window, qtbot, script, scans):
    script.scan_s = 30
    dialog = ExitScanDialog(scans, window)
    dialog.show()
    qtbot.waitUntil(lambda: script.log == ["scan"])
    qtbot.mouseClick(dialog.stop, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: not dialog.running, timeout=3000)
    assert "Stopped" in dialog.words.text() and not dialog.use.isEnabled()
    script.scan_s = 0.02
    qtbot.mouseClick(dialog.run, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: not dialog.running)
    assert len(dialog.table.rows) == 11
    finish(dialog)


def test_a_scan_that_fails_says_why(window, qtbot, script, scans):
    script.fail_scan = "fake has no exits to scan: its forward cannot be left early."
    dialog = ExitScanDialog(scans, window)
    dialog.show()
    qtbot.waitUntil(lambda: not dialog.running)
    assert dialog.words.text() == script.fail_scan and dialog.words.property("kind") == "error"
    assert not dialog.use.isEnabled()
    finish(dialog)


def test_a_scan_waits_for_no_job_and_ends_none(window, qtbot, script, scans):
    controller, stopped = window.controller, []
    job = Job(controller, "sweep")
    job.ended.connect(lambda end: stopped.append(end.job))

    def work(pool, tell, should_stop):
        while not should_stop():
            time.sleep(0.002)

    job.start(work)
    dialog = ExitScanDialog(scans, window)
    dialog.show()
    assert not dialog.running and "busy with sweep" in dialog.words.text() and dialog.words.property("kind") == "warning"
    assert not dialog.stop.isEnabled() and dialog.progress.maximum() > 0
    dialog.run.click()
    assert not dialog.running
    dialog.reject()
    assert controller.job == "sweep" and controller.can_stop, "closing the scan stops nothing else"
    dialog.deleteLater()
    again = ExitScanDialog(scans, window)
    again.show()
    controller.stop()
    qtbot.waitUntil(lambda: stopped == ["sweep"] and not controller.busy_with)
    again.run.click()
    qtbot.waitUntil(lambda: script.log == ["scan"])
    assert again.running
    qtbot.waitUntil(lambda: not again.running)
    assert len(again.table.rows) == 11
    finish(again)


def test_closing_the_dialog_or_the_window_stops_the_scan(window, qtbot, script, scans):
    script.scan_s = 60
    dialog = ExitScanDialog(scans, window)
    dialog.show()
    qtbot.waitUntil(lambda: script.log == ["scan"])
    qtbot.keyClick(dialog, Qt.Key.Key_Escape)
    qtbot.waitUntil(lambda: window.controller.state == "ready", timeout=3000)
    again = ExitScanDialog(scans, window)
    again.show()
    qtbot.waitUntil(lambda: script.log == ["scan", "scan"])
    window.close()
    assert window.thread_ended
    assert not any(thread.name == "specview-engine" for thread in threading.enumerate())
    finish(again)
    dialog.deleteLater()


def test_the_editor_takes_a_layer_and_its_k(make_editor, window, scans, monkeypatch):
    editor = make_editor(LaneSettings(method="early-exit"), scans=scans)
    assert editor.scan.isVisible()

    def accept(self) -> int:
        self.chosen = (7, 3)
        return int(QDialog.DialogCode.Accepted)

    monkeypatch.setattr(ExitScanDialog, "exec", accept)
    editor.scan.click()
    lane = editor.lane()
    assert (lane.options["exit_layer"], lane.k) == (7, 3)
    editor.method.set_value("x-simple")
    assert not editor.scan.isVisible()
    assert not make_editor(LaneSettings(method="early-exit")).scan.isVisible()  # nothing to scan with


def test_rows_of_the_real_backend(monkeypatch):
    """The real backend loads the target, reads the prompt and asks the target what it cannot do."""
    from specview.gui.link import local_backend

    asked = []

    class Engine:
        device, rollback_problem, exit_problem = "cpu", None, "not here"
        tokenizer = SimpleNamespace(declared=Declared())

    class Pool(dict):
        def get(self, key, tell=None, should_stop=None):
            return Engine

        def __contains__(self, key):
            return True

    backend = local_backend.LocalBackend()
    monkeypatch.setattr(backend, "_pool", Pool())
    monkeypatch.setattr(local_backend, "METHODS", {info.name: info for info in FAKES})
    monkeypatch.setattr("specview.experiments.exit_scan.scan_exits", lambda *a, **k: asked.append((a, set(k))) or "scan")
    assert backend.target_facts(RunSettings()) == ("cpu", {"early-exit": "not here"}, Declared())
    assert exit_scan_dialog.measure(RunSettings(), backend.pool, Tell(lambda news: None), lambda: False) == "scan"
    assert asked == [((RunSettings(),), {"models", "should_stop", "on_progress"})]
    Engine.rollback_problem = "it is recurrent"
    assert set(backend.target_facts(RunSettings())[1].values()) == {"it is recurrent"}


# -- the pair ----------------------------------------------------------------------------------------------------------


def test_words_for_pairs():
    same = pair_words(PairReport(True, shared=49152))
    assert same == "Same tokenizer as the target: 49,152 tokens agree."
    assert pair_words(PairReport(False, reason="no tokens. Choose another.")) == "no tokens. Choose another."
    foreign = PairReport(True, reason="draft a has another tokenizer than b: 5 of 9 (56%) shared.", mode="foreign",
                         notes=("Rule match: re-encoded.", "Rule rejection: shared tokens."))
    words = pair_words(foreign)
    assert words.startswith("Draft a has another tokenizer") and "56%" in words and "re-encoded" in words
    assert "\n" not in words


def test_pairs_that_cannot_be_told_from_files(tmp_path: Path):
    assert check(("bundled", "transformers", "owner/name", "transformers")) == ("small", pair_checks.LATER)
    broken = tmp_path / "x.gguf"
    broken.write_bytes(b"GGUF")
    kind, words = check(("bundled", "transformers", str(broken), "llama.cpp"))
    assert kind == "warning" and words and "\n" not in words


@pytest.mark.real_model
def test_the_bundled_pair_has_one_tokenizer():
    kind, words = check(("bundled", "transformers", "bundled", "transformers"))
    assert kind == "small" and words.startswith("Same tokenizer")


def test_pairs_are_compared_off_the_qt_thread(qtbot, monkeypatch):
    names = []

    def slow(pair):
        names.append((threading.current_thread().name, pair[2]))
        return "small", f"compared {pair[2]}"

    monkeypatch.setattr(pair_checks, "check", slow)
    checks = PairChecks()
    checks.ask("t", "transformers", "a", "transformers")
    checks.ask("t", "transformers", "b", "transformers")
    qtbot.waitUntil(lambda: checks.words("t", "transformers", "b", "transformers")[1] == "compared b")
    assert checks.words("t", "transformers", "a", "transformers")[1] == "compared a"
    assert names == [("specview-files", "a"), ("specview-files", "b")]
    checks.ask("t", "transformers", "a", "transformers")
    assert not checks.busy
    monkeypatch.setattr(pair_checks, "check", lambda pair: 1 / 0)
    checks.ask("t", "transformers", "c", "transformers")
    qtbot.waitUntil(lambda: not checks.busy)
    assert checks.words("t", "transformers", "c", "transformers") == ("small", pair_checks.LATER)
    checks.close()


def test_the_editor_says_how_the_draft_fits(make_editor, qtbot):
    editor = make_editor(LaneSettings(method="draft-model", draft="/m/x"))
    qtbot.waitUntil(lambda: editor.pair_words == "compared /m/x")
    assert editor._pair_text.isVisible() and editor._pair_text.wordWrap()
    editor.draft.set_value("bundled")
    qtbot.waitUntil(lambda: editor.pair_words == "compared bundled")
    editor.method.set_value("x-simple")
    assert not editor._pair_text.isVisible()


# -- looks that are kept ---------------------------------------------------------------------------------------------


def test_what_the_third_plot_shows_is_remembered(make_window):
    window = make_window()
    window.page.plots.set_third("mean-k")
    window.close()
    again = make_window()
    assert again.page.plots.third == "mean-k"


@pytest.mark.parametrize(("width", "height"), [(640, 420), (800, 600), (1280, 800), (1440, 900)])
def test_the_setup_bar_is_whole_in_small_windows(window, qtbot, width, height):
    window.resize(width, height)
    qtbot.wait(30)
    setup = window.setup
    assert setup.height() < 60, "one row"
    for widget in (setup.target, setup.prompt, setup.sampling, setup.add_lane, setup.run):
        assert widget.width() >= widget.minimumSizeHint().width(), widget.accessibleName()
        corner = widget.mapTo(window, widget.rect().bottomRight())
        assert corner.x() < window.width(), widget.accessibleName()


def test_an_auto_lane_shows_the_members_that_it_runs_with_and_keeps_what_it_holds(make_editor):
    lane = LaneSettings("auto")
    editor = make_editor(lane)
    assert editor.members.names() == ["prompt-lookup", "suffix", "eagle3"]
    assert ok(editor) and editor.lane() == lane
    other = make_editor(lane, RunSettings(engine="llama.cpp"))
    assert other.members.names() == ["prompt-lookup", "suffix", "draft-model"]
