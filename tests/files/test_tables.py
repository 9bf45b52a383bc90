"""Tables as files: what a spreadsheet, a program and a reader get."""

import csv
import io
import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specview.files.tables import (
    Column,
    csv_text,
    markdown_text,
    printable,
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


FORMULA_STARTS = tuple("=+-@\t\r\n＝＋－＠")
SPICED = st.lists(st.sampled_from([*";,\t\n=+-@＝'\"x 1.e", "\x1b", "\x9b", "\r"]), max_size=12).map("".join)


def _is_number(cell: str) -> bool:
    """Whether what stands up to any program's separator is a number."""
    try:
        float(re.split("[;,\t\n]", cell)[0])
    except ValueError:
        return False
    return True


@given(st.lists(ANY_TEXT | SPICED, max_size=5))
def test_text_survives_csv_and_is_never_a_formula(names):
    text = table_csv(COLUMNS, [{"name": name, "alpha": 0.5} for name in names])
    read = _read(text)
    assert read[0] == ["name", "alpha", "draft_s"]
    assert len(read) == len(names) + 1
    for name, (cell, alpha, absent) in zip(names, read[1:], strict=True):
        assert not cell.startswith(FORMULA_STARTS) or _is_number(cell)
        expected = printable(name.replace("\0", "").replace("\r\n", "\n").replace("\r", "\n"))
        assert cell.replace("'", "") == expected.replace("'", "")
        assert (alpha, absent) == ("0.5", "")
    for separator in ";\t":  # as a spreadsheet of another country reads the same file
        for line in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
            for cell in line:
                assert not cell.startswith(tuple("=+-@＝＋－＠")) or _is_number(cell)


def test_a_formula_behind_another_programs_separator_is_data_and_numbers_stay_numbers():
    text = csv_text([["a;=HYPERLINK(1)", "b\t@SUM(1)", "c\n+cmd", "d,=1", "-5", "x;-1.5e3;+2", "-", "-1+1"]])
    assert _read(text) == [["a;'=HYPERLINK(1)", "b\t'@SUM(1)", "c\n'+cmd", "d,'=1", "-5", "x;-1.5e3;+2", "'-", "'-1+1"]]


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


HOSTILE = [
    "<img src=x onerror=alert(1)>", "![x](http://evil/x.png)", "[click](javascript:alert(1))", "a|b\n| c", "&lt;b&gt; & &#33;",
    "<http://evil>", "www.evil.example", "HTTPS://evil.example/?a|b`c", "me@evil.example", "@somebody", "`code` *b* __i__ ~~s~~ _x_",
    "# head", "- list", "$x$", "\\", "tail\\", "a\x1b[31m\x9b2J\x1b]0;title\x07", "snake_case_name", "\ud83d",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_whatever_a_name_holds_is_text_in_markdown(text):
    from html.parser import HTMLParser

    page = table_markdown(COLUMNS, [{"name": text}]) + f"\n- {markdown_text(text)}\n"
    assert len(page.splitlines()) == 5 and not set(page) & set(map(chr, (*range(10), *range(11, 32), *range(127, 160))))
    shown = " ".join(printable(text).split())
    markdown = pytest.importorskip("markdown_it")
    tags, texts = [], []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: tags.append(tag)
    parser.handle_data = texts.append
    parser.feed(markdown.MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(page))
    parser.close()
    assert set(tags) <= {"table", "thead", "tbody", "tr", "th", "td", "ul", "li", "code"}
    assert "".join(texts).count(shown.replace("`", "'") if "code" in tags else shown) == 2
    if "://" in text or "www" in text or "@" in text:
        assert tags.count("code") == 2  # what some renderers make links and mentions of without any mark


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
