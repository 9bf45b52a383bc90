"""The Runs tab: the library listed, searched, described, deleted and brought back, exported, opened."""

from __future__ import annotations

import contextlib
import csv
import json
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFileDialog

from specview.errors import SpecviewError, Stopped
from specview.gui.runs import page as runs_page_module
from specview.library import library as library_module
from specview.library.library import RunLibrary
from tests.library.recorded import SETTINGS, keep, write_trace


def settled(qtbot, page):
    qtbot.waitUntil(lambda: not page.work.busy and not page._stale, timeout=10_000)


@pytest.fixture
def page(window, qtbot):
    """The opened tab over three kept runs."""
    library = RunLibrary()
    ids = [keep(library, seed=seed, rounds=16) for seed in range(3)]
    for name, run_id in zip(("first", "second", "third"), ids, strict=True):
        library.describe(run_id, name=name)
    window.tabs.open("Runs")
    page = window.tabs.page("Runs")
    settled(qtbot, page)
    return page


def choose(page, *names):
    page.runs.view.clearSelection()
    for name in names:
        place = next(place for place, entry in enumerate(page.entries) if entry.name == name)
        if len(names) == 1:
            page.runs.select(place)
        else:
            row = page.runs._model.place(place)
            model = page.runs.view.selectionModel()
            model.select(page.runs._model.index(row, 0), model.SelectionFlag.Select | model.SelectionFlag.Rows)


def names(page):
    return {row["title"] for row in page.runs.shown_rows}


# -- listing -------------------------------------------------------------------------------------------------


def test_an_empty_library_says_what_will_stand_there(window, qtbot):
    window.tabs.open("Runs")
    page = window.tabs.page("Runs")
    settled(qtbot, page)
    assert page.listing.currentWidget() is page.empty and "No run is kept yet" in page.empty.text()
    assert page.keep.isChecked() and "prompts included" in page.summary.full
    assert not page.open_button.isEnabled() and not page.delete_button.isEnabled() and not page.export_button.isEnabled()


def test_runs_are_listed_with_their_figures(page):
    assert names(page) == {"first", "second", "third"}
    row = page.runs.rows[0]
    entry = page.entries[0]
    assert row["fastest"] == max(entry.lanes, key=lambda lane: lane.figures["decode_tokens_per_s"]).name
    assert row["speedup"] == pytest.approx(entry.best.speedup) == pytest.approx(row["tok_s"] / row["plain_tok_s"])
    assert row["target"] == "SmolLM2-135M-Instruct" and row["lanes"] == 3 and row["end"] == "done"
    assert "3 runs" in page.summary.full and str(RunLibrary().folder) in page.summary.full


@pytest.mark.parametrize(("text", "found"), [
    ("second", {"second"}), ("nothing more", {"first", "second", "third"}), ("greedy-not-there", set()),
    ("draft-model", {"first", "second", "third"}), ("GREEDY secon", {"second"}), ("lanes=3 third", {"third"}), ("lanes>3", set()),
])  # fmt: skip
def test_search_looks_at_names_prompts_and_methods(page, text, found):
    page.runs.filter.setText(text)
    assert names(page) == found


def test_a_finished_race_appears_by_itself(page, window, qtbot):
    window.run()
    window.tabs.open("Runs")
    qtbot.waitUntil(lambda: window.controller.state == "ended", timeout=10_000)
    qtbot.waitUntil(lambda: len(page.entries) == 4, timeout=5000)
    assert page.entries[0].source == "window"


def test_files_are_read_on_another_thread(page, qtbot, monkeypatch):
    threads = set()
    real = library_module.look_at
    monkeypatch.setattr(library_module, "look_at", lambda path: (threads.add(threading.current_thread().name), real(path))[1])
    keep(RunLibrary(), seed=9)
    page.rescan()
    settled(qtbot, page)
    assert len(page.entries) == 4 and threads == {"specview-files"}


def test_an_unreadable_file_is_listed_and_says_why(page, window, qtbot):
    (RunLibrary().folder / "2026-01-01-00000000.jsonl").write_bytes(b"nonsense")
    page.rescan()
    settled(qtbot, page)
    place = next(place for place, entry in enumerate(page.entries) if entry.problem)
    page.runs.select(place)
    assert "not the header" in page.details.problem.text() and not page.open_button.isEnabled()
    assert page.delete_button.isEnabled() and not page.export_button.isEnabled()
    page.runs.activated.emit(place)
    assert "not the header" in window.banner.message


def test_long_traces_are_not_read_whole_because_they_were_selected(page, window, qtbot, monkeypatch):
    keep(RunLibrary(), end=None)
    page.rescan()
    settled(qtbot, page)
    read, real = [], runs_page_module.read_trace
    monkeypatch.setattr(runs_page_module, "read_trace", lambda path, **how: (read.append(path), real(path, **how))[1])
    place = next(place for place, entry in enumerate(page.entries) if entry.end == "unfinished")
    monkeypatch.setattr(runs_page_module, "MOST_COMPARED_BYTES", page.entries[place].size - 1)
    page.runs.select(place)
    settled(qtbot, page)
    assert not read and len(page.lanes.rows) == 3
    monkeypatch.setattr(runs_page_module, "MOST_COMPARED_BYTES", page.entries[place].size)
    page._chosen()
    settled(qtbot, page)
    assert read == [page.entries[place].path]


def test_a_library_that_cannot_be_read_says_so_once(window, qtbot, monkeypatch):
    folder = RunLibrary().folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("a file where the folder should be")
    scans, told, real = [], [], RunLibrary.scan
    monkeypatch.setattr(RunLibrary, "scan", lambda self, **how: (scans.append(1), real(self, **how))[1])
    monkeypatch.setattr(window.tabs.context, "show_message", lambda line, kind="error": told.append(line))
    window.tabs.open("Runs")
    page = window.tabs.page("Runs")
    settled(qtbot, page)
    qtbot.wait(300)
    assert len(scans) == 1 and len(told) == 1 and "cannot read the runs library" in told[0]
    assert page.listing.currentWidget() is page.empty and page.empty.text() == page.summary.full == told[0]
    page.keep.click()  # a change that fails looks again, once
    qtbot.waitUntil(lambda: len(scans) == 2 and not page.work.busy, timeout=5000)
    qtbot.wait(300)
    assert len(scans) == 2 and len(told) == 3
    folder.unlink()
    keep(RunLibrary())
    page.rescan()
    qtbot.waitUntil(lambda: len(page.entries) == 1, timeout=5000)
    assert "1 run " in page.summary.full and page.listing.currentWidget() is page.runs


def test_a_comparison_that_fails_is_told_once(page, window, qtbot, monkeypatch):
    asked = []

    def broken(runs):
        asked.append(runs)
        raise RuntimeError("no figures")

    monkeypatch.setattr("specview.gui.runs.page.lay_beside", broken)
    choose(page, "first", "second")
    qtbot.waitUntil(lambda: "no figures" in window.banner.message and not page.work.busy, timeout=5000)
    asked.clear()
    qtbot.wait(300)
    assert not asked


def test_old_runs_that_cannot_be_removed_keep_no_list_away(window, qtbot, monkeypatch):
    def locked(self, days=0):
        raise SpecviewError("another specview is changing the runs library.", "Try again.")

    library = RunLibrary()
    library.delete([keep(library, seed=1)])
    keep(library)
    monkeypatch.setattr(RunLibrary, "empty_trash", locked)
    window.tabs.open("Runs")
    page = window.tabs.page("Runs")
    settled(qtbot, page)
    assert len(page.entries) == 1 and window.banner.message == ""


# -- describing ----------------------------------------------------------------------------------------------


def test_name_tags_and_note_are_kept(page, qtbot):
    choose(page, "second")
    page.window().activateWindow()
    page.runs.view.setFocus()
    qtbot.waitUntil(page.runs.view.hasFocus, timeout=5000)
    qtbot.keyClick(page.runs.view, Qt.Key.Key_F2)
    assert page.details.name.hasFocus()
    page.details.name.setText("new name")
    page.details.tags.setText("a, b c ,, a")
    page.details.note.setPlainText("a note\nof two lines")
    page.details.save()
    settled(qtbot, page)
    found = {entry.name: entry for entry in RunLibrary().scan()}
    assert found["new name"].note == "a note\nof two lines" and found["new name"].tags == ("a", "b c")
    assert "new name" in names(page) and "second" not in names(page)


def test_the_tabs_key_goes_to_the_list(page, window):
    window.tabs.open("Race")
    window.setup.prompt.setFocus()
    window.tabs.enter("Runs")
    assert window.focusWidget() is page.runs.view


def test_what_is_typed_is_kept_when_another_run_is_chosen_or_the_tab_left(page, window, qtbot):
    choose(page, "first")
    page.details.note.setPlainText("typed for first")
    choose(page, "second")
    assert page.details.note.toPlainText() == ""
    page.details.note.setPlainText("typed for second")
    window.tabs.open("Race")
    settled(qtbot, page)
    notes = {entry.name: entry.note for entry in RunLibrary().scan()}
    assert notes == {"first": "typed for first", "second": "typed for second", "third": ""}


def test_a_rescan_leaves_what_is_being_typed(page, qtbot):
    choose(page, "first")
    page.details.note.setPlainText("half a senten")
    page.rescan()
    settled(qtbot, page)
    assert page.details.note.toPlainText() == "half a senten"


def notes():
    return {entry.name: entry.note for entry in RunLibrary().scan()}


def test_a_note_that_is_too_long_stays_to_be_shortened(page, window, qtbot):
    long = "word " * 5000
    choose(page, "first")
    page.details.note.setPlainText(long)
    choose(page, "second")
    page.details.note.setPlainText("of the second")
    page.details.save()
    qtbot.waitUntil(lambda: "Use up to 20,000" in window.banner.message, timeout=5000)
    settled(qtbot, page)
    assert page.details.note.toPlainText() == "of the second" and notes()["second"] == "of the second"
    choose(page, "first")
    assert page.details.note.toPlainText() == long.strip() and notes()["first"] == ""
    page.details.note.setPlainText(long[:1000])
    page.details.save()
    settled(qtbot, page)
    assert notes()["first"] == long[:1000].strip() and not page._unwritten


def test_what_could_not_be_written_is_written_when_the_tab_is_opened_again(page, window, qtbot, monkeypatch):
    monkeypatch.setattr(library_module, "LOCK_TIMEOUT_S", 0.05)
    with contextlib.closing(sqlite3.connect(RunLibrary().folder / "index.sqlite3", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        choose(page, "first")
        page.details.note.setPlainText("typed under a lock")
        page.details.save()
        qtbot.waitUntil(lambda: "another specview is changing" in window.banner.message, timeout=5000)
        settled(qtbot, page)
        assert page.details.note.toPlainText() == "typed under a lock" and page.entries
    window.tabs.open("Race")
    window.tabs.open("Runs")
    qtbot.waitUntil(lambda: not page._unwritten, timeout=5000)
    assert notes()["first"] == "typed under a lock"


def test_what_is_typed_while_files_are_read_is_kept_by_a_window_that_closes(page, window, qtbot, monkeypatch):
    reading = threading.Event()

    def slow(path, should_stop, keep):
        reading.set()
        while not should_stop():
            time.sleep(0.002)
        raise Stopped

    monkeypatch.setattr("specview.gui.runs.page.read_trace", slow)
    choose(page, "first", "second")
    qtbot.waitUntil(reading.is_set, timeout=5000)
    choose(page, "third")
    page.details.note.setPlainText("typed meanwhile")
    window.close()
    assert notes() == {"first": "", "second": "", "third": "typed meanwhile"}


# -- deleting ------------------------------------------------------------------------------------------------


def test_delete_undo_and_trash(page, qtbot):
    choose(page, "first", "third")
    page.window().activateWindow()
    page.runs.view.setFocus()
    qtbot.waitUntil(page.runs.view.hasFocus, timeout=5000)
    qtbot.keyClick(page.runs.view, Qt.Key.Key_Delete)
    qtbot.waitUntil(lambda: names(page) == {"second"}, timeout=5000)
    assert page.undo_bar.isVisible() and "2 runs in the trash" in page.undo_words.text()
    assert {entry.name for entry in RunLibrary().scan(trash=True)} == {"first", "third"}
    qtbot.mouseClick(page.undo_button, Qt.MouseButton.LeftButton)
    qtbot.waitUntil(lambda: names(page) == {"first", "second", "third"}, timeout=5000)
    assert not page.undo_bar.isVisible() and RunLibrary().scan(trash=True) == []


def test_the_trash_restores_and_is_emptied_once_asked(page, qtbot, monkeypatch):
    choose(page, "first")
    page.delete_or_restore()
    qtbot.waitUntil(lambda: len(page.entries) == 2, timeout=5000)
    choose(page, "second")
    page.delete_or_restore()
    qtbot.waitUntil(lambda: len(page.entries) == 1, timeout=5000)
    page.show_trash.setChecked(True)
    qtbot.waitUntil(lambda: names(page) == {"first", "second"}, timeout=5000)
    assert page.empty_trash.isVisible()
    choose(page, "first")
    assert page.delete_button.text() == "Restore" and not page.details.name_field.isEnabled()
    page.delete_or_restore()
    qtbot.waitUntil(lambda: names(page) == {"second"}, timeout=5000)
    asked = []
    monkeypatch.setattr(page, "sure", lambda count: (asked.append(count), False)[1])
    page.ask_empty()
    settled(qtbot, page)
    assert asked == [1] and len(page.entries) == 1
    monkeypatch.setattr(page, "sure", lambda count: True)
    page.ask_empty()
    qtbot.waitUntil(lambda: not page.entries and not page.work.busy, timeout=5000)
    assert {entry.name for entry in RunLibrary().scan()} == {"first", "third"}


# -- opening -------------------------------------------------------------------------------------------------


def test_enter_opens_a_run_in_the_race_page(page, window, qtbot):
    choose(page, "second")
    qtbot.keyClick(page.runs.view, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: window.controller.recorded is not None, timeout=5000)
    assert window.tabs.current == "Race" and "second" in window.recorded.bar.words
    assert [len(lane.rounds) for lane in window.controller.race.lanes] == [16, 16, 16]


def test_lanes_of_several_runs_are_compared_and_laid_beside_one_another(page, window, qtbot):
    choose(page, "first", "third")
    settled(qtbot, page)
    rows = page.lanes.rows
    assert len(rows) == 6 and {row["run"] for row in rows} == {"first", "third"}
    assert [row["over_first"] is not None for row in rows] == [True] * 6
    picked = [place for place, row in enumerate(rows) if row["lane"] == "prompt-lookup"]
    page.lanes.view.clearSelection()
    model = page.lanes.view.selectionModel()
    for place in picked:
        model.select(page.lanes._model.index(place, 0), model.SelectionFlag.Select | model.SelectionFlag.Rows)
    page.lay_beside()
    qtbot.waitUntil(lambda: window.controller.recorded is not None, timeout=5000)
    assert [lane.method for lane in window.controller.race.lanes] == ["plain", "prompt-lookup", "prompt-lookup"]


def test_runs_that_differ_say_so_in_the_table(page, qtbot):
    other = keep(RunLibrary(), prompt_ids=(5, 6), rounds=4)
    RunLibrary().describe(other, name="elsewhere")
    page.rescan()
    qtbot.waitUntil(lambda: len(page.entries) == 4, timeout=5000)
    choose(page, "first", "elsewhere")
    settled(qtbot, page)
    marks = {row["run"]: {row2["over_first"] for row2 in page.lanes.rows if row2["run"] == row["run"]} for row in page.lanes.rows}
    odd = [found for found in marks.values() if found == {"other prompt"}]
    assert len(odd) == 1 and len(marks) == 2


def test_figures_of_an_interrupted_run_come_from_its_rounds(page, qtbot):
    RunLibrary().describe(keep(RunLibrary(), end=None), name="crashed")
    page.rescan()
    qtbot.waitUntil(lambda: len(page.entries) == 4, timeout=5000)
    choose(page, "crashed")
    qtbot.waitUntil(lambda: all(row["tok_s"] for row in page.lanes.rows), timeout=5000)
    assert [row["end"] for row in page.lanes.rows] == [None] * 3


# -- files ---------------------------------------------------------------------------------------------------


def test_export_writes_in_the_background(page, qtbot, tmp_path, monkeypatch):
    choose(page, "first", "second")
    for form, ending in (("json", "json"), ("csv", "csv"), ("markdown", "md")):
        path = tmp_path / f"out.{ending}"
        monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_, path=path: (str(path), ""))
        page.ask_export(form)
        qtbot.waitUntil(lambda path=path: f"2 runs written to {path}" in page.summary.full, timeout=5000)
    assert len(json.loads((tmp_path / "out.json").read_text())["runs"]) == 2
    assert len(list(csv.reader((tmp_path / "out.csv").open()))) == 1 + 2 * 3 * 16
    assert (tmp_path / "out.md").read_text().count("# ") > 2


def test_an_export_that_fails_is_one_line(page, window, qtbot, tmp_path):
    page.export_to("csv", tmp_path / "no" / "folder.csv", page.entries[:1])
    qtbot.waitUntil(lambda: window.banner.message != "", timeout=5000)
    assert "cannot write the csv export" in window.banner.message


def test_import_copies_a_trace_in_and_chooses_it(page, window, qtbot, tmp_path):
    page.import_files([write_trace(tmp_path / "from a friend.jsonl")])
    qtbot.waitUntil(lambda: len(page.entries) == 4 and not page.work.busy, timeout=5000)
    assert [entry.name for entry in page.chosen] == ["from a friend"]
    (tmp_path / "no.jsonl").write_text("{}\n")
    page.import_files([tmp_path / "no.jsonl"])
    qtbot.waitUntil(lambda: "not the header" in window.banner.message, timeout=5000)


def test_the_command_that_repeats_a_run_is_copied(page, qtbot):
    choose(page, "first")
    page.copy_command()
    qtbot.waitUntil(lambda: "clipboard" in page.summary.full, timeout=5000)
    assert QGuiApplication.clipboard().text().startswith("specview compare ")


def test_the_switch_keeps_or_does_not(page, window, qtbot):
    page.keep.click()
    settled(qtbot, page)
    assert not RunLibrary().keeps
    window.run()
    qtbot.waitUntil(lambda: window.controller.state == "ended", timeout=10_000)
    assert len(RunLibrary().scan()) == 3
    page.keep.click()
    settled(qtbot, page)
    assert RunLibrary().keeps


def test_looks_are_remembered_and_nothing_of_the_runs(page, make_window, window):
    page.runs.restore({"sort": "tok_s", "descending": True})
    choose(page, "first")
    kept = page.kept()
    assert kept["runs"]["sort"] == "tok_s"
    text = json.dumps(kept)
    assert "first" not in text and SETTINGS.prompt not in text
    page.restore({"runs": 3, "upper": ["x"], "rows": [0, 5], "lanes": {"sort": 9}})


def test_a_window_closed_while_the_library_is_read_ends(make_window, qtbot, tmp_path):
    for seed in range(3):
        keep(RunLibrary(), seed=seed, rounds=2)
    window = make_window()
    window.tabs.open("Runs")
    page = window.tabs.page("Runs")
    assert page.work.busy
    window.close()
    assert not page.work.busy and isinstance(tmp_path, Path)
