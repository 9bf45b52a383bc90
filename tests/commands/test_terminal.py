"""Reports as a terminal shows them, and how a command ends."""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys

import pytest

from specview.commands import terminal
from specview.commands.running import running
from specview.commands.terminal import report_text
from specview.errors import Stopped
from specview.files.report import Figure, Figures, Report, Section, Table, Text, report_markdown
from specview.files.tables import Column

COLUMNS = (
    Column("lane", "lane"), Column("speedup", "speedup", "times plain", 2, unit="x", spread=("low", "high")),
    Column("low", "at least", "", 2), Column("high", "at most", "", 2), Column("note", "note"),
)  # fmt: skip
ROWS = (
    {"lane": "draft [bold]x[/]", "speedup": 1.5, "low": 1.25, "high": 2.0, "note": "a note of several words"},
    {"lane": "日本\x1b[2J", "speedup": None, "note": ""},
)
REPORT = Report(
    "What it found",
    [
        Text("It pays\x1b]0;x\x07\u202e.", "good"), Text("Few rounds.", "warning"),
        Figures([Figure("speedup", "1.50x", "tip"), Figure("acceptance rate", "0.7")]),
        Section("lane 0", [Text("inside"), Table(COLUMNS, ROWS, printed=("lane", "speedup", "note"))]),
    ],
    {"speedup": 1.5},
)  # fmt: skip


def test_a_report_as_text() -> None:
    assert report_text(REPORT).splitlines() == [
        "What it found", "",
        "✓ It pays␛]0;x␇‹202E›.", "! Few rounds.", "",
        "speedup          1.50x", "acceptance rate  0.7", "",
        "lane 0",
        "  inside", "",
        "  lane                        speedup  note",
        "  draft [bold]x[/]  1.50x (1.25-2.00)  a note of several words",
        "  日本␛[2J                          -  -",
    ]  # fmt: skip


def test_an_empty_column_folds_no_other() -> None:
    columns = Column("name", "name"), Column("mark", "")
    assert "a name of several words" in report_text(Report("", [Table(columns, [{"name": "a name of several words"}])]))


def test_a_narrow_terminal_folds_words_and_no_figure() -> None:
    lines = report_text(REPORT, width=47).splitlines()
    assert any("1.50x (1.25-2.00)" in line for line in lines) and not any("several words" in line for line in lines)
    # Where a table cannot be folded to the width its lines are whole: no column goes, no figure is cut.
    assert report_text(REPORT, width=38).splitlines()[-3:] == report_text(REPORT).splitlines()[-3:]


def test_colour_is_never_the_only_cue() -> None:
    painted = report_text(REPORT, colour=True)
    assert "\x1b[38;2;47;191;143m✓ It pays" in painted and "\x1b[2J" not in painted and "\x1b]" not in painted


def test_markdown_is_data() -> None:
    text = report_markdown(REPORT)
    assert "# What it found" in text and "## lane 0" in text and "draft \\[bold\\]x\\[/\\]" in text
    assert "| 1.50x (1.25-2.00) |" in text and "at least" not in text


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_is_drawn_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    line = terminal.ProgressLine(screen)
    line.show("Loading [red]x\x1b[2J", 0.5)
    line.show("Racing")
    line.clear()
    told = screen.getvalue()
    assert "Loading [red]x␛[2J" in told and "50%" in told and "Racing" in told and told.endswith("\x1b[2K")


@pytest.mark.parametrize("name", ["-", "document.json"])
def test_how_a_command_ends(name, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = argparse.Namespace(json=name, csv="table.csv", markdown="report.md")
    table = Report("t", [Table(COLUMNS, ROWS)], {"a": 1})
    with running(arguments) as run:
        assert run.end(table, stopped=True) == 130
    out = capsys.readouterr().out
    assert json.loads(out if name == "-" else (tmp_path / name).read_text()) == {"a": 1}
    assert (tmp_path / "table.csv").read_text().startswith("lane,speedup,low,high,note\n") and "# t" in (tmp_path / "report.md").read_text()
    assert (name == "-") != ("at least" in out)


def test_one_stopped_before_there_was_anything() -> None:
    with pytest.raises(KeyboardInterrupt), running(argparse.Namespace()) as run:
        run.should_stop.asked = True
        with pytest.raises(Stopped):
            run.show("Loading")
        run.end(None)


def test_rich_is_not_loaded_for_help() -> None:
    code = (
        "import contextlib, sys; from specview import cli\n"
        "with contextlib.suppress(SystemExit): cli.main(['what-if', '--help'])\n"
        "sys.exit('rich' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0
