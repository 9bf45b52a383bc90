"""Exports of recorded runs: whole, readable by others, and never at an earlier file's cost."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specview.decoding.ledger import FinalToken, Round
from specview.errors import SpecviewError
from specview.files.reader import read_trace
from specview.library import export_rounds
from specview.library.exports import FORMS, WRITTEN, Recorded, export_data, export_runs
from specview.library.library import Entry, RunLibrary
from specview.library.repeat import command_line
from tests.library.recorded import FACTS, SETTINGS, keep, write_trace

TEXTS = [form for form in WRITTEN if FORMS[form].text]


@pytest.fixture
def run(tmp_path: Path) -> Recorded:
    library = RunLibrary(tmp_path / "runs")
    run_id = keep(library)
    library.describe(run_id, name="warm | machine", note="two\nlines", tags=["a"])
    entry = library.find(run_id)
    return Recorded(run_id, entry.path, read_trace(entry.path), entry)


def test_json_holds_each_lane_as_compare_does(run: Recorded) -> None:
    document = json.loads(export_data("json", [run]))
    assert (document["id"], document["name"], document["note"], document["tags"]) == (run.ref, "warm | machine", "two\nlines", ["a"])
    assert [lane["name"] for lane in document["lanes"]] == ["plain", "draft-model", "prompt-lookup"]
    lane = document["lanes"][1]
    assert set(lane) >= {"name", "run", "output", "prefill_s", "metrics", "rounds", "speedup", "speedup_spread", "equal_to_plain"}
    assert lane["output"]["token_ids"] == run.trace.records[1].token_ids and len(lane["rounds"]) == 12
    assert lane["run"]["draft_sha256"] == "ef" * 32 and "draft_sha256" not in document["lanes"][2]["run"]
    several = json.loads(export_data("json", [run, run]))
    assert [one["id"] for one in several["runs"]] == [run.ref, run.ref]


def test_csv_has_a_row_per_round_that_adds_up(run: Recorded) -> None:
    rows = list(csv.DictReader(io.StringIO(export_data("csv", [run]))))
    assert len(rows) == 36
    for index, record in enumerate(run.trace.records):
        mine = [row for row in rows if row["lane"] == str(index)]
        assert " ".join(row["token_ids"] for row in mine).split() == [str(token) for token in record.token_ids]
        assert "".join(row["text"] for row in mine) == record.text
        assert [int(row["round"]) for row in mine] == list(range(12))
        for row, round_ in zip(mine, record.rounds, strict=True):
            assert int(row["judged"]) + int(row["ignored"]) == int(row["k"]) == round_.k
            assert float(row["t_s"]) == round_.t and int(row["rows"]) == round_.rows
        assert int(mine[-1]["emitted_before"]) + int(mine[-1]["emitted"]) == len(record.token_ids)


def test_half_a_character_does_not_break_an_export(tmp_path: Path) -> None:
    trace = read_trace(write_trace(tmp_path / "a.jsonl"))
    trace.records[0].rounds.append(Round(12, 9.0, 0, 0.1, 0, final=FinalToken(3, "plain", "\ud83d", p=1.0)))
    trace.records[0].name = trace.prompt_text = "\ud83d|`"
    odd = Recorded("r", tmp_path / "a.jsonl", trace)
    for form in TEXTS:
        export_runs(form, tmp_path / f"out.{form}", [odd])
        (tmp_path / f"out.{form}").read_text(encoding="utf-8")


def test_the_protocol_says_what_another_needs_to_repeat_it(run: Recorded) -> None:
    page = export_data("markdown", [run])
    trace = run.trace
    for wanted in (
        "# warm | machine", run.ref, "two\nlines", "Tags: a", FACTS["target_sha256"], FACTS["target_source_sha256"], "target.gguf",
        "ef" * 32, "small draft", "2.13.0", "not installed", "a processor", "Linux", command_line(trace).command,
        hashlib.sha256(trace.prompt_text.encode()).hexdigest(), trace.prompt_text, "| seed | 0 |", "| temperature | 0.0 |",
        "option_ngram_max=3", "The seed is 0",
    ):  # fmt: skip
        assert wanted in page, wanted
    first, _, folded = page.partition("<details>")
    assert "faster than plain" in first and "| draft-model |" in first and "SHA-256" not in first and "SHA-256" in folded
    tables = [line for line in page.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)


@pytest.mark.parametrize("source", ["/evil.png", "http://evil/x.png"])
@pytest.mark.parametrize("form", TEXTS)
def test_what_a_strangers_trace_names_is_data_in_every_form(tmp_path: Path, form: str, source: str) -> None:
    evil = f"<img src={source}>![x]({source})\x1b]0;owned\x07\x9b2J|`"
    path = write_trace(tmp_path / "a.jsonl", end=None, settings=replace(SETTINGS, prompt=f"say {evil}\r\n"))
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    value = json.loads(header)
    keys = ("recorded_at", "target_model_name", "platform", f"version_{evil}", "draft_1_model_name", f"draft_1_{evil}_reads_layers")
    value["run"] |= dict.fromkeys((*keys, "workload_sha256"), evil)
    for lane in value["lanes"]:
        lane["name"] = lane["settings"]["target"] = lane["settings"]["option_" + evil] = evil
    ends = [{"lane": 1, "end": "error", "error": evil, "metrics": None, "race": {"end": "error", "busy": evil}}]
    path.write_text("\n".join([json.dumps(value), *lines, *map(json.dumps, ends)]) + "\n", encoding="utf-8")
    entry = Entry("2026-01-01-00000000", path, 1, evil, name=evil, tags=(evil,))
    text = str(export_data(form, [Recorded("r", path, read_trace(path), entry)]))
    assert not set(text) & set(map(chr, (*range(9), *range(11, 32), *range(127, 160))))
    if form != "markdown":
        return
    before, fold, inside = text.partition("<details>\n<summary>How it was measured, and how to repeat it</summary>\n")
    assert fold and inside.endswith("\n</details>\n")
    text = before + inside.removesuffix("</details>\n")
    outside = re.sub(r"(?s)^(`{3,})\w+\n.*?\n\1$", "", text, flags=re.MULTILINE)  # code blocks and code are what they are
    outside = re.sub(r"(?<!\\)`[^`]*`", "", outside)
    assert not re.search(r"(?<!\\)[<!\[]|://", outside)


def test_a_prompt_with_fences_stays_in_its_block(tmp_path: Path) -> None:
    prompt = "```python\nx\n```\n`````\nend"
    trace = read_trace(write_trace(tmp_path / "a.jsonl", settings=replace(SETTINGS, prompt=prompt)))
    page = export_data("markdown", [Recorded("r", tmp_path / "a.jsonl", trace)])
    fence = "``````"
    assert f"{fence}text\n{prompt}\n{fence}\n" in page and "prompt.txt" in page


def test_the_protocol_of_an_interrupted_run_says_so(tmp_path: Path) -> None:
    trace = read_trace(write_trace(tmp_path / "a.jsonl", end=None))
    assert "the recording ends early" in export_data("markdown", [Recorded("r", tmp_path / "a.jsonl", trace)])


@pytest.mark.parametrize("form", TEXTS)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_in_the_middle_leaves_the_old_file(
    run: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, code: int
) -> None:
    old = tmp_path / "old"
    old.write_bytes(b"the old file")

    def full(handle: int) -> None:
        os.ftruncate(handle, os.fstat(handle).st_size // 2)
        raise OSError(code, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SpecviewError, match="cannot write"):
        export_runs(form, old, [run])
    monkeypatch.undo()
    assert old.read_bytes() == b"the old file"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".old")] == []


def test_parquet_without_pyarrow_is_one_line_before_anything_is_touched(
    run: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib

    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(SpecviewError, match=r"pyarrow, which is not installed.* pip install pyarrow") as caught:
        export_runs("parquet", tmp_path / "a.parquet", [run])
    assert "\n" not in str(caught.value) and not (tmp_path / "a.parquet").exists()


def test_parquet_has_the_rows_of_the_csv(run: Recorded, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    export_runs("parquet", tmp_path / "a.parquet", [run, run])
    table = pyarrow.parquet.read_table(tmp_path / "a.parquet")
    rows = list(export_rounds.round_rows([(run.ref, run.trace)] * 2))
    assert table.column_names == [name for name, _ in export_rounds.COLUMNS]
    assert [tuple(row.values()) for row in table.to_pylist()] == rows


def test_an_unknown_form_is_one_line(run: Recorded, tmp_path: Path) -> None:
    with pytest.raises(SpecviewError, match="no export 'xlsx'"):
        export_runs("xlsx", tmp_path / "a.xlsx", [run])
