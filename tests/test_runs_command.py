"""`specview runs` as a user types it; and that run and compare keep their runs."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from specview.commands import outputs as outputs_module
from specview.library.library import RunLibrary
from tests.library.recorded import SETTINGS, keep, race_events, write_trace
from tests.typed import typed


@pytest.fixture
def library() -> RunLibrary:
    return RunLibrary()


def test_list_says_what_there_is(capsys: pytest.CaptureFixture[str], library: RunLibrary) -> None:
    code, out, _ = typed(capsys, "runs", "list")
    assert code == 0 and "There is nothing in the runs library" in out and str(library.folder) in out
    ids = [keep(library, seed=seed) for seed in range(3)]
    library.describe(ids[0], name="the first")
    _, out, _ = typed(capsys, "runs", "list")
    assert all(run_id in out for run_id in ids) and "the first" in out and "SmolLM2" in out and "done" in out
    _, out, _ = typed(capsys, "runs", "list", "--search", "first the")
    assert ids[0] in out and ids[1] not in out
    _, out, _ = typed(capsys, "runs", "list", "--search", "absent")
    assert "Nothing in the runs library" in out
    _, out, _ = typed(capsys, "runs", "list", "--limit", "1")
    assert "1 of 3 runs" in out
    code, out, _ = typed(capsys, "runs", "list", "--json", "-")
    document = json.loads(out)
    assert document["total"] == 3 and {run["id"] for run in document["runs"]} == set(ids)
    assert document["runs"][0]["lanes"][1]["speedup"] > 0 and document["runs"][0]["end"] == "done"


def test_show_prints_figures_prompt_and_how_to_repeat(capsys: pytest.CaptureFixture[str], library: RunLibrary) -> None:
    run_id = keep(library)
    library.describe(run_id, note="a note")
    code, out, _ = typed(capsys, "runs", "show", "last")
    assert code == 0 and run_id in out and "Say hi, and nothing more." in out and "a note" in out
    assert "specview compare " in out and "1 (baseline)" in out and "prompt-lookup" in out
    keep(library, end=None)
    assert "The recording ends early" in typed(capsys, "runs", "show", "last")[1]


def test_show_of_several_compares_their_lanes(capsys: pytest.CaptureFixture[str], library: RunLibrary, tmp_path: Path) -> None:
    run_id = keep(library)
    other = write_trace(tmp_path / "elsewhere.jsonl", prompt_ids=(4, 5))
    code, out, _ = typed(capsys, "runs", "show", run_id, str(other))
    assert code == 0 and out.count("not comparable") == 3 and "other prompt than the first run's" in out
    assert out.count("1 (baseline)") == 1 and f"draft-model · {run_id.rpartition('-')[2]}" in out


def test_export_writes_every_form(capsys: pytest.CaptureFixture[str], library: RunLibrary, tmp_path: Path) -> None:
    keep(library)
    names = {form: str(tmp_path / f"out.{form}") for form in ("json", "csv", "markdown")}
    code, out, err = typed(capsys, "runs", "export", "last", *(w for form, name in names.items() for w in (f"--{form}", name)))
    assert (code, out, err) == (0, "", "")
    assert json.loads(Path(names["json"]).read_text())["lanes"]
    assert len(list(csv.reader(io.StringIO(Path(names["csv"]).read_text())))) == 37
    assert Path(names["markdown"]).read_text().startswith("# ")
    _, out, _ = typed(capsys, "runs", "export", "last", "--json", "-")
    assert out == Path(names["json"]).read_text()


@pytest.mark.parametrize(("words", "says"), [
    (("export", "last"), "no form is given"),
    (("export", "last", "--json", ""), "--json is ''"),
    (("export", "last", "--json", "a", "--csv", "a"), "same file"),
    (("export", "last", "--parquet", "-"), "--parquet is '-'"),
    (("export", "last", "--csv", "/no/such/folder/a.csv"), "cannot write the csv export"),
    (("show", "nothing"), "no run 'nothing'"),
    (("show", "a/b.jsonl"), "no file 'a/b.jsonl'"),
    (("show",), "the following arguments are required"),
    (("delete", "nothing"), "no run"),
    (("restore",), "the trash holds 0 runs"),
    (("rename", "last"), "the following arguments are required"),
    (("rename", "last", "x" * 300), "300 characters"),
    (("keep", "maybe"), "invalid choice"),
    (("list", "--limit", "-1"), "limit is -1"),
    (("nonsense",), "has no 'nonsense'"),
    (("import", "/no/such"), "cannot read the trace"),
])  # fmt: skip
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], library: RunLibrary, words: tuple[str, ...], says: str) -> None:
    keep(library)
    code, out, err = typed(capsys, "runs", *words)
    assert code in (1, 2) and says in err and err.count("\n") == 1 and out == ""
    assert len(library.scan()) == 1


def test_what_another_program_deleted_first_is_said(
    capsys: pytest.CaptureFixture[str], library: RunLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(library)
    monkeypatch.setattr(RunLibrary, "delete", lambda self, ids: [])
    code, out, err = typed(capsys, "runs", "delete", "last")
    assert code == 1 and out == "" and "gone already" in err


def test_rename_note_tag_delete_restore(
    capsys: pytest.CaptureFixture[str], library: RunLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = keep(library)
    assert typed(capsys, "runs", "rename", "last", "new name")[0] == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO("from standard\ninput\n"))
    assert typed(capsys, "runs", "note", "new name", "-")[0] == 0
    assert typed(capsys, "runs", "tag", run_id[:14], "x", "y")[0] == 0
    (entry,) = library.scan()
    assert (entry.name, entry.note, entry.tags) == ("new name", "from standard\ninput", ("x", "y"))
    _, out, _ = typed(capsys, "runs", "delete", "new name")
    assert f"specview runs restore {run_id}" in out and library.scan() == []
    assert run_id in typed(capsys, "runs", "list", "--trash")[1]
    assert typed(capsys, "runs", "restore")[0] == 0
    assert library.scan()[0].name == "new name"
    typed(capsys, "runs", "delete", run_id)
    assert "1 run removed" in typed(capsys, "runs", "empty-trash")[1]
    assert typed(capsys, "runs", "restore", run_id)[0] == 2


def test_import_keep_and_where(capsys: pytest.CaptureFixture[str], library: RunLibrary, tmp_path: Path) -> None:
    _, out, _ = typed(capsys, "runs", "import", str(write_trace(tmp_path / "mine.jsonl")))
    assert "mine" in out and len(library.scan()) == 1
    assert "are kept" in typed(capsys, "runs", "keep")[1]
    assert "are not kept" in typed(capsys, "runs", "keep", "off")[1] and not library.keeps
    assert "specview runs keep on" in typed(capsys, "runs", "list")[1]
    assert typed(capsys, "runs", "where")[1].strip() == str(library.folder)


def test_each_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    from specview.commands import runs

    for name in runs._COMMANDS:
        with pytest.raises(SystemExit) as ended:
            runs.main([name, "--help"])
        assert ended.value.code == 0 and f"usage: specview runs {name}" in capsys.readouterr().out
    assert runs.main([]) == 2 and runs.main(["--help"]) == 0


def test_control_characters_of_a_file_never_reach_the_terminal(
    capsys: pytest.CaptureFixture[str], library: RunLibrary, tmp_path: Path
) -> None:
    bad = replace(SETTINGS, prompt="\x1b[31mred\x07")
    path = write_trace(tmp_path / "a.jsonl", settings=bad)
    library.take_in(path)
    for words in (("list",), ("show", "last"), ("show", "last", str(path))):
        _, out, _ = typed(capsys, "runs", *words)
        assert "\x1b" not in out and "\x07" not in out


# -- keeping what commands run -------------------------------------------------------------------------------


def arguments(*words: str) -> object:
    from specview.commands.run import make_parser

    return make_parser().parse_args(list(words))


def fed(words: tuple[str, ...], part: str = "") -> None:
    with outputs_module.Outputs(arguments(*words)) as outputs:  # type: ignore[arg-type]
        for event in race_events():
            outputs.keep(event, part)


def test_run_and_compare_keep_their_races(library: RunLibrary) -> None:
    fed(())
    fed((), "2 of 3")
    assert {(entry.source, entry.part, entry.end) for entry in library.scan()} == {("command", "", "done"), ("command", "2 of 3", "done")}


@pytest.mark.parametrize("words", [("--no-keep",), ("--observe", "off")])
def test_what_is_not_to_be_kept_is_not(library: RunLibrary, words: tuple[str, ...]) -> None:
    fed(words)
    assert not library.folder.exists()


def test_the_standing_choice_holds_for_commands(library: RunLibrary) -> None:
    library.set_keeps(False)
    fed(())
    assert library.scan() == []


def test_a_library_that_cannot_be_written_is_one_warning(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECVIEW_DATA", str(tmp_path / "file"))
    fed(())
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "this run is not kept" in err


@pytest.mark.real_model
def test_a_real_compare_is_kept_and_shown(
    capsys: pytest.CaptureFixture[str], library: RunLibrary, engine_name: str, loaded_once: None
) -> None:
    code, out, _ = typed(capsys, "compare", "--engine", engine_name, "--max-tokens", "8", "--method", "prompt-lookup", "--json", "-")
    assert code == 0
    document = json.loads(out)
    (entry,) = library.scan()
    assert [lane.name for lane in entry.lanes] == ["plain", "prompt-lookup"] and entry.workload == "chat"
    shown = json.loads(typed(capsys, "replay", "last", "--json", "-")[1])
    for told, read in zip(document["lanes"], shown["lanes"], strict=True):
        assert read["output"] == told["output"] and read["metrics"] == told["metrics"] and read["speedup"] == (told["speedup"] and pytest.approx(told["speedup"], rel=1e-5))
        assert read["equal_to_plain"] == told["equal_to_plain"]
    page = typed(capsys, "runs", "export", "last", "--markdown", "-")[1]
    assert str(document["lanes"][0]["run"]["target_sha256"]) in page and f"--engine {engine_name}" in page or engine_name == "transformers"
