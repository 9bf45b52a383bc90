"""The Runs tab: the library listed, searched, described, deleted and brought back, exported, opened."""

from __future__ import annotations

import contextlib
import csv
import json
import shutil
import sqlite3
import threading

import pytest
from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFileDialog

from specview.errors import SpecviewError, Stopped
from specview.gui.parts.pages import PageContext
from specview.gui.runs import page as runs_page_module
from specview.gui.runs.page import RunsPage
from specview.library import library as library_module
from specview.library.library import RunLibrary
from tests.library.recorded import FACTS, SETTINGS, keep, write_trace

ALL = {"first", "second", "third"}


class Controller(QObject):
    run_kept = Signal(object)
    state_changed = Signal()
    racing = False


def settled(qtbot, page):
    qtbot.waitUntil(lambda: not page.work.busy and not page._stale, timeout=10_000)


@pytest.fixture
def bare(qtbot, own_data):
    """The opened tab without a window; `told` and `opened` hold what it asked of one."""
    told, opened = [], []
    context = PageContext(Controller(), None, None, lambda line, kind="error": told.append(line), None, None, None, None)
    context.extra["open_runs"] = opened.append
    page = RunsPage(context)
    page.told, page.asked = told, opened
    qtbot.addWidget(page)
    page.resize(1200, 700)
    page.show()
    yield page
    page.shut()


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A library of three runs, to be copied."""
    library = RunLibrary(tmp_path_factory.mktemp("kept") / "runs")
    for seed, name in enumerate(("first", "second", "third")):
        library.describe(keep(library, seed=seed, rounds=4), name=name)
    return library.folder


@pytest.fixture
def page(bare, kept, qtbot):
    """The tab over three kept runs."""
    shutil.copytree(kept, RunLibrary().folder)
    bare.opened()
    settled(qtbot, bare)
    return bare


@pytest.fixture
def in_window(kept, window, qtbot):
    """The tab of a window over three kept runs."""
    shutil.copytree(kept, RunLibrary().folder)
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
            select(page.runs, page.runs._model.place(place))


def select(table, *rows):
    model = table.view.selectionModel()
    for row in rows:
        model.select(table._model.index(row, 0), model.SelectionFlag.Select | model.SelectionFlag.Rows)


def names(page):
    return {row["title"] for row in page.runs.shown_rows}


def notes():
    return {entry.name: entry.note for entry in RunLibrary().scan()}


def kept_too(page, qtbot, **options):
    """Another run, found by a look at the disk; its place in the list."""
    run_id = keep(RunLibrary(), **options)
    page.rescan()
    settled(qtbot, page)
    return next(place for place, entry in enumerate(page.entries) if entry.id == run_id)


# -- listing -------------------------------------------------------------------------------------------------


def test_an_empty_library_says_what_will_stand_there(bare, qtbot):
    bare.opened()
    settled(qtbot, bare)
    assert bare.listing.currentWidget() is bare.empty and "No run is kept yet" in bare.empty.text()
    assert bare.keep.isChecked() and "prompts included" in bare.summary.full
    assert not bare.open_button.isEnabled() and not bare.delete_button.isEnabled() and not bare.export_button.isEnabled()


def test_runs_are_listed_with_their_figures_and_searched_in_all_that_is_known(page):
    assert names(page) == ALL
    row, entry = page.runs.rows[0], page.entries[0]
    best, clearly = entry.best()
    assert row["fastest"] == best.name + ("" if clearly else ", not clearly")
    assert row["speedup"] == pytest.approx(best.speedup) == pytest.approx(row["tok_s"] / row["plain_tok_s"])
    assert row["target"] == "SmolLM2-135M-Instruct" and row["lanes"] == 3 and row["end"] == "done"
    assert "3 runs" in page.summary.full and str(RunLibrary().folder) in page.summary.full
    for text, found in (("second", {"second"}), ("nothing more", ALL), ("greedy-not-there", set()), ("draft-model", ALL),
                        ("GREEDY secon", {"second"}), ("lanes=3 third", {"third"}), ("lanes>3", set())):  # fmt: skip
        page.runs.filter.setText(text)
        assert names(page) == found, text


def test_a_finished_race_appears_by_itself_unless_runs_are_not_kept(in_window, window, qtbot):
    page = in_window
    window.run()
    window.tabs.open("Runs")
    qtbot.waitUntil(lambda: window.controller.state == "ended" and len(page.entries) == 4, timeout=10_000)
    assert page.entries[0].source == "window"
    page.keep.click()
    settled(qtbot, page)
    assert not RunLibrary().keeps
    window.run()
    qtbot.waitUntil(lambda: window.controller.state == "ended", timeout=10_000)
    assert len(RunLibrary().scan()) == 4
    page.keep.click()
    settled(qtbot, page)
    assert RunLibrary().keeps


def test_files_are_read_on_another_thread(page, qtbot, monkeypatch):
    threads, real = set(), library_module.look_at
    monkeypatch.setattr(library_module, "look_at", lambda path: (threads.add(threading.current_thread().name), real(path))[1])
    kept_too(page, qtbot, seed=9)
    assert len(page.entries) == 4 and threads == {"specview-files"}


def test_an_unreadable_file_is_listed_and_says_why(page, qtbot):
    (RunLibrary().folder / "2026-01-01-00000000.jsonl").write_bytes(b"nonsense")
    page.rescan()
    settled(qtbot, page)
    place = next(place for place, entry in enumerate(page.entries) if entry.problem)
    page.runs.select(place)
    assert "not the header" in page.details.problem.text() and not page.open_button.isEnabled()
    assert page.delete_button.isEnabled() and not page.export_button.isEnabled()
    page.runs.activated.emit(place)
    assert "not the header" in page.told[-1] and page.asked == []


def test_figures_of_an_interrupted_run_come_from_its_rounds_unless_they_are_many(page, qtbot, monkeypatch):
    place = kept_too(page, qtbot, end=None)
    read, real = [], runs_page_module.read_trace
    monkeypatch.setattr(runs_page_module, "read_trace", lambda path, **how: (read.append(path), real(path, **how))[1])
    monkeypatch.setattr(runs_page_module, "MOST_COMPARED_BYTES", page.entries[place].size - 1)
    page.runs.select(place)
    settled(qtbot, page)
    assert not read and len(page.lanes.rows) == 3 and not any(row["tok_s"] for row in page.lanes.rows)
    monkeypatch.setattr(runs_page_module, "MOST_COMPARED_BYTES", page.entries[place].size)
    page._chosen()
    settled(qtbot, page)
    assert read == [page.entries[place].path] and all(row["tok_s"] for row in page.lanes.rows)
    assert [row["end"] for row in page.lanes.rows] == [None] * 3


def test_a_library_that_cannot_be_read_says_so_once(bare, qtbot, monkeypatch):
    folder = RunLibrary().folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("a file where the folder should be")
    scans, real = [], RunLibrary.scan
    monkeypatch.setattr(RunLibrary, "scan", lambda self, **how: (scans.append(1), real(self, **how))[1])
    bare.opened()
    settled(qtbot, bare)
    qtbot.wait(60)
    assert len(scans) == 1 and len(bare.told) == 1 and "cannot read the runs library" in bare.told[0]
    assert bare.listing.currentWidget() is bare.empty and bare.empty.text() == bare.summary.full == bare.told[0]
    bare.keep.click()  # a change that fails looks again, once
    qtbot.waitUntil(lambda: len(scans) == 2 and not bare.work.busy, timeout=5000)
    qtbot.wait(60)
    assert len(scans) == 2 and len(bare.told) == 3
    folder.unlink()
    kept_too(bare, qtbot)
    assert "1 run " in bare.summary.full and bare.listing.currentWidget() is bare.runs


def test_a_comparison_that_fails_is_told_once(page, qtbot, monkeypatch):
    asked = []

    def broken(runs):
        asked.append(runs)
        raise RuntimeError("no figures")

    monkeypatch.setattr("specview.gui.runs.page.lay_beside", broken)
    choose(page, "first", "second")
    qtbot.waitUntil(lambda: any("no figures" in line for line in page.told) and not page.work.busy, timeout=5000)
    asked.clear()
    qtbot.wait(60)
    assert not asked


def test_old_runs_that_cannot_be_removed_keep_no_list_away(bare, qtbot, monkeypatch):
    def locked(self, days=0):
        raise SpecviewError("another specview is changing the runs library.", "Try again.")

    library = RunLibrary()
    library.delete([keep(library, seed=1)])
    keep(library)
    monkeypatch.setattr(RunLibrary, "empty_trash", locked)
    bare.opened()
    settled(qtbot, bare)
    assert len(bare.entries) == 1 and bare.told == []


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


def test_what_is_typed_is_kept_when_another_run_is_chosen_the_tab_left_or_the_list_read_anew(page, qtbot):
    choose(page, "first")
    page.details.note.setPlainText("typed for first")
    choose(page, "second")
    assert page.details.note.toPlainText() == ""
    page.details.note.setPlainText("typed for second")
    page.left()
    settled(qtbot, page)
    assert notes() == {"first": "typed for first", "second": "typed for second", "third": ""}
    page.details.note.setPlainText("half a senten")
    page.rescan()
    settled(qtbot, page)
    assert page.details.note.toPlainText() == "half a senten"


def test_a_note_that_is_too_long_stays_to_be_shortened(page, qtbot):
    long = "word " * 5000
    choose(page, "first")
    page.details.note.setPlainText(long)
    choose(page, "second")
    page.details.note.setPlainText("of the second")
    page.details.save()
    qtbot.waitUntil(lambda: any("Use up to 20,000" in line for line in page.told), timeout=5000)
    settled(qtbot, page)
    assert page.details.note.toPlainText() == "of the second" and notes()["second"] == "of the second"
    choose(page, "first")
    assert page.details.note.toPlainText() == long.strip() and notes()["first"] == ""
    page.details.note.setPlainText(long[:1000])
    page.details.save()
    settled(qtbot, page)
    assert notes()["first"] == long[:1000].strip() and not page._unwritten


def test_what_could_not_be_written_is_written_when_the_tab_is_opened_again(page, qtbot, monkeypatch):
    monkeypatch.setattr(library_module, "LOCK_TIMEOUT_S", 0.05)
    with contextlib.closing(sqlite3.connect(RunLibrary().folder / "index.sqlite3", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        choose(page, "first")
        page.details.note.setPlainText("typed under a lock")
        page.details.save()
        qtbot.waitUntil(lambda: any("another specview is changing" in line for line in page.told), timeout=5000)
        settled(qtbot, page)
        assert page.details.note.toPlainText() == "typed under a lock" and page.entries
    page.left()
    page.opened()
    qtbot.waitUntil(lambda: not page._unwritten, timeout=5000)
    assert notes()["first"] == "typed under a lock"


def test_what_is_typed_while_files_are_read_is_kept_by_a_window_that_closes(page, qtbot, monkeypatch):
    reading = threading.Event()

    def slow(path, should_stop, keep):
        reading.set()
        while not should_stop():
            threading.Event().wait(0.002)
        raise Stopped

    monkeypatch.setattr("specview.gui.runs.page.read_trace", slow)
    choose(page, "first", "second")
    qtbot.waitUntil(reading.is_set, timeout=5000)
    choose(page, "third")
    page.details.note.setPlainText("typed meanwhile")
    page.shut()
    assert notes() == {"first": "", "second": "", "third": "typed meanwhile"} and not page.work.busy


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
    qtbot.waitUntil(lambda: names(page) == ALL, timeout=5000)
    assert not page.undo_bar.isVisible() and RunLibrary().scan(trash=True) == []


def test_the_trash_restores_and_is_emptied_once_asked(page, qtbot, monkeypatch):
    for name, left in (("first", 2), ("second", 1)):
        choose(page, name)
        page.delete_or_restore()
        qtbot.waitUntil(lambda left=left: len(page.entries) == left, timeout=5000)
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


def test_enter_opens_a_run_in_the_race_page_and_the_tabs_key_goes_to_the_list(in_window, window, qtbot):
    window.tabs.open("Race")
    window.setup.prompt.setFocus()
    window.tabs.enter("Runs")
    assert window.focusWidget() is in_window.runs.view
    choose(in_window, "second")
    qtbot.keyClick(in_window.runs.view, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: window.controller.recorded is not None, timeout=5000)
    assert window.tabs.current == "Race" and "second" in window.recorded.bar.words
    assert [len(lane.rounds) for lane in window.controller.race.lanes] == [4, 4, 4]


def test_lanes_of_several_runs_are_compared_and_those_chosen_opened(page, qtbot):
    choose(page, "first", "third")
    settled(qtbot, page)
    rows = page.lanes.rows
    assert len(rows) == 6 and {row["run"] for row in rows} == {"first", "third"}
    assert [row["over_first"] is not None for row in rows] == [True] * 6
    page.lanes.view.clearSelection()
    select(page.lanes, *(place for place, row in enumerate(rows) if row["lane"] == "prompt-lookup"))
    page.lay_beside()
    assert [pick.lanes for pick in page.asked[-1]] == [(2,), (2,)]
    RunLibrary().describe(keep(RunLibrary(), prompt_ids=(5, 6), rounds=4), name="elsewhere")
    page.rescan()
    qtbot.waitUntil(lambda: len(page.entries) == 4, timeout=5000)
    choose(page, "first", "elsewhere")
    settled(qtbot, page)
    said = {name: {row["over_first"] for row in page.lanes.rows if row["run"] == name} for name in ("first", "elsewhere")}
    assert list(said.values()).count({"other prompt"}) == 1


# -- files ---------------------------------------------------------------------------------------------------


def test_export_writes_in_the_background_and_one_that_fails_is_one_line(page, qtbot, tmp_path, monkeypatch):
    choose(page, "first", "second")
    for form, ending in (("json", "json"), ("csv", "csv"), ("markdown", "md")):
        path = tmp_path / f"out.{ending}"
        monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_, path=path: (str(path), ""))
        page.ask_export(form)
        qtbot.waitUntil(lambda path=path: f"2 runs written to {path}" in page.summary.full, timeout=5000)
    assert len(json.loads((tmp_path / "out.json").read_text())["runs"]) == 2
    assert len(list(csv.reader((tmp_path / "out.csv").open()))) == 1 + 2 * 3 * 4
    assert (tmp_path / "out.md").read_text().count("# ") > 2
    page.export_to("csv", tmp_path / "no" / "folder.csv", page.entries[:1])
    qtbot.waitUntil(lambda: any("cannot write the csv export" in line for line in page.told), timeout=5000)


def test_import_copies_a_trace_in_and_chooses_it(page, qtbot, tmp_path):
    page.import_files([write_trace(tmp_path / "from a friend.jsonl")])
    qtbot.waitUntil(lambda: len(page.entries) == 4 and not page.work.busy, timeout=5000)
    assert [entry.name for entry in page.chosen] == ["from a friend"]
    (tmp_path / "no.jsonl").write_text("{}\n")
    page.import_files([tmp_path / "no.jsonl"])
    qtbot.waitUntil(lambda: any("not the header" in line for line in page.told), timeout=5000)


def test_the_command_that_repeats_a_run_is_copied(page, qtbot):
    choose(page, "first")
    page.copy_command()
    qtbot.waitUntil(lambda: "clipboard" in page.summary.full, timeout=5000)
    assert QGuiApplication.clipboard().text().startswith("specview compare ")


def test_looks_are_remembered_and_nothing_of_the_runs(page):
    page.runs.restore({"sort": "tok_s", "descending": True})
    choose(page, "first")
    held = page.kept()
    assert held["runs"]["sort"] == "tok_s"
    assert "first" not in json.dumps(held) and SETTINGS.prompt not in json.dumps(held)
    page.restore({"runs": 3, "upper": ["x"], "rows": [0, 5], "lanes": {"sort": 9}})


def test_a_branch_says_what_it_goes_on_from_and_opens_it(bare, qtbot):
    library = RunLibrary()
    parent = keep(library, rounds=4)
    branch = {"token_ids": [5, 6], "run": parent, "lane": "draft-model", "position": 1, "token": " cat"}
    keep(library, rounds=4, facts={**FACTS, "branch": branch})
    bare.rescan()
    settled(qtbot, bare)
    bare.runs.select(0)
    words = f"Continues {parent} from position 1 of lane draft-model with ' cat'"
    assert bare.details._continues.text() == words and bare.details.open_parent.isVisible()
    assert "a branch" in bare.entries[0].title and library.search("position 1") == {bare.entries[0].id}
    bare.details.open_parent.click()
    assert [pick.path.stem for pick in bare.asked[-1]] == [parent]
    library.delete([parent])
    bare.details.open_parent.click()
    assert "not in the runs library" in bare.told[-1] and len(bare.asked) == 1
    bare.rescan()
    settled(qtbot, bare)
    keep(library, rounds=4)
    bare.rescan()
    settled(qtbot, bare)
    bare.runs.select(0)
    assert not bare.details._branch.isVisible()


def test_the_chosen_runs_are_presented_from_top_to_bottom(page):
    playlists: list = []
    page.context.extra["present_runs"] = playlists.append
    page.runs.view.selectAll()
    assert page.present_button.isEnabled()
    page.present_button.click()
    assert [pick.name for pick in playlists[0]] == [entry.name for entry in page.chosen] and len(playlists[0]) == 3
    page.runs.view.clearSelection()
    assert not page.present_button.isEnabled()
