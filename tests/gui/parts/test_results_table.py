"""The results table: order, filter, copy, export, and rows that come while it is looked at."""

import csv
import errno
import io
import json
import math
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PySide6.QtCore import QModelIndex, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFileDialog

from specview.files.tables import Column
from specview.gui.parts import results_table
from specview.gui.parts.results_model import ResultsModel
from specview.gui.parts.results_table import ResultsTable

COLUMNS = (
    Column("name", "name", "what it is"),
    Column("k", "k", "drafted", 0),
    Column("alpha", "accept. α", "accepted / judged", 2),
    Column("seconds", "time", "seconds", 1, 1000.0, " ms"),
)


def rows(count: int) -> list[dict]:
    return [{"name": f"row {i}", "k": (i * 7) % 13, "alpha": i / 100, "seconds": i / 1000} for i in range(count)]


def make(qtbot):
    made = ResultsTable(COLUMNS, name="cells")
    qtbot.addWidget(made)
    made.resize(700, 300)
    made.show()
    return made


@pytest.fixture
def table(qtbot):
    return make(qtbot)


def shown(table, key="name"):
    return [row[key] for row in table.shown_rows]


def test_the_model_keeps_qt_s_rules(qtmodeltester):
    model = ResultsModel(COLUMNS)
    qtmodeltester.check(model)
    model.set_rows(rows(20))
    model.sort(1, Qt.SortOrder.DescendingOrder)
    model.set_rows(rows(30))
    model.set_filter("k>3")
    model.set_rows(rows(40))
    model.set_rows(rows(3))
    qtmodeltester.check(model)


NUMBERS = st.one_of(st.none(), st.integers(-50, 50), st.floats(-50, 50), st.just(math.nan))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(values=st.lists(NUMBERS, max_size=12), descending=st.booleans(), split=st.integers(0, 12))
def test_sorting_is_by_number_with_the_absent_last(qapp, values, descending, split):
    """However the rows came: at once or in two parts, sorted before or after."""
    model = ResultsModel(COLUMNS)
    order = Qt.SortOrder.DescendingOrder if descending else Qt.SortOrder.AscendingOrder
    given_rows = [{"name": str(i), "alpha": value} for i, value in enumerate(values)]
    model.set_rows(given_rows[:split])
    model.sort(2, order)
    model.set_rows(given_rows)
    found = [row["alpha"] for row in model.shown_rows]
    there = [value for value in values if value is not None and not math.isnan(value)]
    assert found[: len(there)] == sorted(there, reverse=descending)
    assert all(value is None or math.isnan(value) for value in found[len(there) :])
    model.sort(-1)
    assert model.shown_rows == given_rows


def test_text_is_sorted_by_letters_and_numbers_not_by_their_text(table):
    table.set_rows([{"name": "b", "k": 9}, {"name": "A", "k": 10}, {"name": "c", "k": 2}])
    table.view.sortByColumn(1, Qt.SortOrder.AscendingOrder)
    assert shown(table, "k") == [2, 9, 10]
    table.view.sortByColumn(0, Qt.SortOrder.AscendingOrder)
    assert shown(table) == ["A", "b", "c"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("row 1", ["row 1", *(f"row {i}" for i in range(10, 20))]),
        ("ROW 19", ["row 19"]),
        ("k=0", ["row 0", "row 13"]),
        ("k>=11 name!=row", ["row 9", "row 11"]),
        ("accept.α<0.02", ["row 0", "row 1"]),
        ("alpha>0.17", ["row 18", "row 19"]),
        ("time>18", ["row 19"]),  # in the unit that is shown: milliseconds
        ("nothing=like", []),
        ("k=", []),
        ("", [f"row {i}" for i in range(20)]),
    ],
)
def test_the_filter(table, text, expected):
    table.set_rows([{**row, "name": row["name"]} for row in rows(20)])
    table.filter.setText(text)
    if text == "row 1":
        assert [name for name in shown(table) if "1" in name] == expected
    else:
        assert shown(table) == expected
    total = len(expected) if text != "row 1" else len(shown(table))
    assert table.count.text() == ("20 rows" if total == 20 else f"{total} of 20 rows")


def test_rows_that_come_keep_selection_scroll_sort_and_filter(table, qtbot):
    table.set_rows(rows(200))
    table.view.sortByColumn(2, Qt.SortOrder.DescendingOrder)
    table.select(120)
    assert table.selected_rows() == [120]
    bar = table.view.verticalScrollBar()
    bar.setValue(40)
    before = bar.value()
    assert before > 0
    with qtbot.assertNotEmitted(table.view.model().modelReset):
        table.set_rows(rows(260))
    assert table.selected_rows() == [120]
    assert bar.value() == before
    assert shown(table)[0] == "row 259"
    table.filter.setText("k<12")
    assert table.selected_rows() == ([120] if (120 * 7) % 13 < 12 else [])
    table.filter.setText("")
    assert shown(table)[0] == "row 259"


def test_a_row_that_changes_is_shown_changed_and_stays_selected(table):
    given_rows = rows(5)
    table.set_rows(given_rows)
    table.select(2)
    table.set_rows([*given_rows[:2], {**given_rows[2], "alpha": 0.75}, *given_rows[3:]])
    assert table.view.model().index(2, 2).data() == "0.75"
    assert table.selected_rows() == [2]


def test_selection_follows_identity_where_rows_are_removed(qtbot):
    table = ResultsTable(COLUMNS, identity="name")
    qtbot.addWidget(table)
    table.set_rows(rows(10))
    table.select(7)
    table.set_rows(rows(10)[3:])
    assert [table.rows[index]["name"] for index in table.selected_rows()] == ["row 7"]
    table.set_rows(rows(3))
    assert table.selected_rows() == []


def test_enter_activates_the_row_as_given_not_as_shown(table, qtbot):
    table.set_rows(rows(5))
    table.view.sortByColumn(2, Qt.SortOrder.DescendingOrder)
    table.view.setFocus()
    table.view.selectRow(0)
    with qtbot.waitSignal(table.activated) as caught:
        qtbot.keyClick(table.view, Qt.Key.Key_Return)
    assert caught.args == [4]


def test_everything_is_reached_by_keyboard(table, qtbot):
    table.set_rows(rows(5))
    for widget in (table.filter, table.export_button, table.view):
        assert widget.focusPolicy() & Qt.FocusPolicy.TabFocus
        assert widget.accessibleName()
    table.view.setFocus()
    qtbot.keyClick(table.view, Qt.Key.Key_Tab)
    assert not table.view.hasFocus()  # Tab leaves the table instead of walking its cells


def test_copy_gives_a_spreadsheet_the_selected_rows(table, qtbot):
    table.set_rows(rows(5))
    table.select(3)
    table.view.setFocus()
    qtbot.keyClick(table.view, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QGuiApplication.clipboard().text() == "name\tk\taccept. α\ttime\nrow 3\t8\t0.03\t0.003\n"
    assert "copied" in table.count.text()


def test_exports_hold_the_rows_shown(table, tmp_path):
    table.set_rows([{"name": "=1+1", "k": 1, "alpha": -0.5}, {"name": "x", "k": 2, "alpha": math.nan}])
    table.columns_menu.actions()[1].setChecked(False)
    table.view.sortByColumn(1, Qt.SortOrder.DescendingOrder)
    assert table.export_to("csv", tmp_path / "t.csv")
    read = list(csv.reader(io.StringIO((tmp_path / "t.csv").read_text())))
    assert read == [["name", "k", "alpha", "seconds"], ["x", "2", "", ""], ["'=1+1", "1", "-0.5", ""]]
    assert table.export_to("json", tmp_path / "t.json")
    assert [row["k"] for row in json.loads((tmp_path / "t.json").read_text())["rows"]] == [2, 1]
    assert table.export_to("markdown", tmp_path / "t.md")
    assert (tmp_path / "t.md").read_text().splitlines()[0] == "| name | accept. α | time |"


def test_the_dialog_gives_the_ending_and_may_be_cancelled(table, tmp_path, monkeypatch):
    table.set_rows(rows(2))
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_, **__: (str(tmp_path / "mine"), ""))
    table.export_menu.actions()[2].trigger()
    assert (tmp_path / "mine.md").is_file()
    monkeypatch.setattr(QFileDialog, "getSaveFileName", lambda *_, **__: ("", ""))
    table.export_menu.actions()[0].trigger()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.md"]


def test_a_full_disk_is_one_line_and_leaves_the_old_file(table, tmp_path, monkeypatch):
    table.set_rows(rows(3))
    path = tmp_path / "t.csv"
    path.write_text("old")

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert not table.export_to("csv", path)
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["t.csv"]
    assert "no space left" in table.banner.message and "Free some space" in table.banner.message
    assert table.export_to("csv", path)
    assert not table.banner.message


def test_a_folder_is_refused_in_one_line(table, tmp_path):
    table.set_rows(rows(1))
    assert not table.export_to("json", tmp_path)
    assert table.banner.message.count("\n") == 0 and "cannot write" in table.banner.message


def test_ten_thousand_rows_are_rendered_only_where_they_are_seen(qtbot, qapp, monkeypatch):
    asked = set()

    class Counted(ResultsModel):  # not a patched method: PySide keeps calling a model's first one
        def data(self, index, role=Qt.ItemDataRole.DisplayRole):
            asked.add(index.row())
            return super().data(index, role)

    monkeypatch.setattr(results_table, "ResultsModel", Counted)
    table = make(qtbot)
    table.set_rows(rows(10_000))
    table.view.sortByColumn(2, Qt.SortOrder.DescendingOrder)
    table.set_rows([*rows(10_000), {"name": "last", "alpha": 1e9}])
    table.grab()
    assert shown(table)[0] == "last"
    assert len(asked) < 600


def test_what_is_remembered_comes_back(table, qtbot):
    table.set_rows(rows(3))
    table.view.sortByColumn(2, Qt.SortOrder.DescendingOrder)
    table.columns_menu.actions()[3].setChecked(False)
    other = ResultsTable(COLUMNS)
    qtbot.addWidget(other)
    other.restore(json.loads(json.dumps(table.kept())))
    other.set_rows(rows(3))
    assert other.kept() == table.kept()
    assert shown(other) == ["row 2", "row 1", "row 0"]
    other.restore({"hidden": 3, "sort": ["x"]})
    assert other.kept() == table.kept()


def test_an_empty_table_and_a_text_that_is_no_html(table):
    table.set_rows([])
    assert table.count.text() == "0 rows"
    table.copy()
    table.set_rows([{"name": "<b>bold</b>\n\x1b"}])
    index = table.view.model().index(0, 0, QModelIndex())
    assert index.data(Qt.ItemDataRole.ToolTipRole).startswith("<qt>&lt;b&gt;")
    assert "\n" not in index.data()


@pytest.mark.parametrize("held", [Qt.KeyboardModifier.ShiftModifier, Qt.KeyboardModifier.ControlModifier])
def test_a_row_selected_by_the_program_is_alone_whatever_key_is_held(qtbot, qapp, held):
    table = ResultsTable((Column("a", "a"),), name="held")
    qtbot.addWidget(table)
    table.set_rows([{"a": str(number)} for number in range(6)])
    table.show()
    key = Qt.Key.Key_Shift if held == Qt.KeyboardModifier.ShiftModifier else Qt.Key.Key_Control
    qtbot.keyPress(table, key, held)
    try:
        assert QGuiApplication.keyboardModifiers() == held
        told = []
        table.selected.connect(told.append)
        table.select(1)
        table.select(4)
        assert told == [[1], [4]] and table.selected_rows() == [4]
    finally:
        qtbot.keyRelease(table, key)
