"""Tables as files: what a spreadsheet, a program and a reader get."""

import csv
import io
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specview.runs.tables import (
    Column,
    csv_text,
    tab_separated,
    table_csv,
    table_json,
    table_markdown,
    table_text,
)

COLUMNS = (
    Column("name", "Name", "who"),
    Column("alpha", "alpha", "accepted / judged", 3),
    Column("draft_s", "draft", "time of a draft", 1, 1000.0, " ms"),
)
ANY_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)


def _read(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


@given(st.lists(ANY_TEXT, max_size=5))
def test_text_survives_csv_and_is_never_a_formula(names):
    read = _read(table_csv(COLUMNS, [{"name": name, "alpha": 0.5} for name in names]))
    assert read[0] == ["name", "alpha", "draft_s"]
    assert len(read) == len(names) + 1
    for name, (cell, alpha, absent) in zip(names, read[1:], strict=True):
        assert not cell.startswith(tuple("=+-@\t\r\n＝＋－＠"))
        expected = name.replace("\0", "").replace("\r\n", "\n").replace("\r", "\n")
        assert cell in (expected, f"'{expected}")
        assert (alpha, absent) == ("0.5", "")


@pytest.mark.parametrize("start", list("=+-@\t\r\n＝＋－＠"))
def test_a_formula_is_data(start):
    text = f"{start}HYPERLINK(1)"
    assert _read(table_csv(COLUMNS, [{"name": text}]))[1][0] == f"'{text}".replace("\r", "\n")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_negative_number_stays_a_number(value):
    cell = _read(table_csv(COLUMNS, [{"alpha": value}]))[1][1]
    assert float(cell) == pytest.approx(value, rel=1e-6)
    document = json.loads(table_json(COLUMNS, [{"alpha": value}]))
    assert document["rows"][0]["alpha"] == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("absent", [None, math.nan, math.inf, -math.inf])
def test_a_figure_that_does_not_exist_is_empty_null_or_a_dash(absent):
    row = {"name": "x", "alpha": absent}
    assert _read(table_csv(COLUMNS, [row]))[1] == ["x", "", ""]
    assert json.loads(table_json(COLUMNS, [row]))["rows"] == [{"name": "x", "alpha": None, "draft_s": None}]
    assert table_markdown(COLUMNS, [row]).splitlines()[2] == "| x | - | - |"


def test_markdown_shows_figures_rounded_with_their_unit_and_escapes_pipes():
    text = table_markdown(COLUMNS, [{"name": "a|b\nc\\", "alpha": 0.12345, "draft_s": 0.0125}])
    assert text.splitlines() == [
        "| Name | alpha | draft |",
        "| --- | ---: | ---: |",
        "| a\\|b c\\\\ | 0.123 | 12.5 ms |",
    ]


def test_json_says_what_its_columns_mean():
    document = json.loads(table_text("json", COLUMNS, []))
    assert document["columns"][1] == {"key": "alpha", "title": "alpha", "tip": "accepted / judged"}
    assert document["rows"] == []


def test_values_that_are_no_single_figure():
    column = Column("x", "x")
    assert column.shown(True) == "yes"
    assert column.shown([0.5, None]) == "0.5 -"
    assert column.shown({"a": math.nan}) == '{"a": null}'
    assert column.shown(3) == "3"
    assert Column("x", "x", digits=0).shown(12345) == "12,345"
    assert json.loads(table_json([column], [{"x": [0.5, math.nan]}]))["rows"] == [{"x": [0.5, None]}]


def test_the_clipboard_gets_a_line_a_row():
    text = tab_separated(COLUMNS, [{"name": "a\tb\nc", "alpha": 0.25}, {"name": "=1"}])
    assert text == "Name\talpha\tdraft\na b c\t0.25\t\n'=1\t\t\n"
    assert tab_separated(COLUMNS, [], heading=False) == ""


def test_lines_of_cells_keep_their_numbers_and_no_formula():
    text = csv_text([["a", "b"], ["=HYPERLINK(1)", -0.1234567891], ["half \ud83d", True]])
    assert text == "a,b\n'=HYPERLINK(1),-0.1234567891\nhalf ?,True\n"
    text.encode("utf-8")
