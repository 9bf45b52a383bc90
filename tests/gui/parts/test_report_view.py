"""A report in the window."""

from __future__ import annotations

from PySide6.QtCore import Qt

from specview.files.report import Figure, Figures, Report, Section, Table, Text
from specview.files.tables import Column
from specview.gui.parts.report_view import ReportView

COLUMNS = (Column("name", "name"), Column("speedup", "speedup", "times plain", 2))


def report(count: int, *texts: str) -> Report:
    rows = [{"name": f"lane {place}", "speedup": place} for place in range(count)]
    return Report("found", [
        *map(Text, texts), Figures([Figure("rounds", str(count), "target passes")]),
        Section("lanes", [Text("slow\x1b[2J", "warning"), Table(COLUMNS, rows, identity="name")]),
    ])  # fmt: skip


def test_a_report_that_grows_keeps_what_is_selected(qtbot) -> None:
    view = ReportView("Report")
    qtbot.addWidget(view)
    view.show_report(report(3, "one"))
    (table,) = view.tables
    table.select(1)
    view.show_report(report(5, "<b>one</b>", "two"))
    assert view.tables == [table] and table.selected_rows() == [1] and len(table.rows) == 5
    assert view.texts == ["<b>one</b>", "two", "lanes", "! slow‹ESC›[2J"]
    view.show_report(Report("found", [Text("nothing")]))
    assert view.texts == ["nothing"] and not view.tables


def test_a_report_is_read_to_its_end_by_keys_and_shows_that_it_has_the_keyboard(qtbot) -> None:
    view = ReportView("Report")
    qtbot.addWidget(view)
    view.show_report(report(3, *(f"line {place}" for place in range(60))))
    view.resize(200, 100)
    view.show()
    view.activateWindow()
    bar = view.verticalScrollBar()
    qtbot.waitUntil(lambda: bar.maximum() > 0)
    view.setFocus()
    qtbot.waitUntil(view.hasFocus)
    assert view.widget().property("selected") == "true"
    qtbot.keyClick(view, Qt.Key.Key_End)
    assert bar.value() == bar.maximum()
    qtbot.keyClick(view, Qt.Key.Key_Home)
    assert bar.value() == 0
    view.clearFocus()
    assert view.widget().property("selected") == "false"
