"""Result documents, their tables, and the files they go to."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path

import pytest

from specview.commands.terminal import report_text
from specview.decoding.ledger import DraftedToken, FinalToken, Round, RunRecord
from specview.decoding.metrics import fold
from specview.errors import SpecviewError
from specview.files.atomic import OutputFile
from specview.files.documents import compare_document, lane_facts, run_document
from specview.files.schema import dumps
from specview.library.exporters import SPEEDUP_OVER, compare_csv, compare_markdown
from specview.library.reports import compare_report, run_report
from specview.racing.compare import CompareResult, LaneResult
from specview.settings.events import Equality
from tests.decoding.speedups import times


def record(name: str, rule: str = "greedy", drafted: bool = True) -> RunRecord:
    draft = (DraftedToken(5, "accepted", text="a"), DraftedToken(6, "rejected", text="x")) if drafted else ()
    rounds = [
        Round(index, 0.1 * (index + 1), 0.02, 0.07, 0.01, drafted=draft, final=FinalToken(7, "corrected" if drafted else "plain", "b"))
        for index in range(3)
    ]  # fmt: skip
    settings = {"method": name, "rule": rule, "k": 2 if drafted else None, "device": None, "engine": "transformers",
                "check_mode": False}  # fmt: skip
    return RunRecord(name, settings, (1, 2), 0.25, rounds, "limit")


def result(names: tuple[str, ...] = ("plain", "a|b\nc")) -> CompareResult:
    lanes = []
    for place, name in enumerate(names):
        one = record(name, "naive" if place else "greedy", drafted=bool(place))
        metrics = fold(one.rounds, one.prefill_s, 0.09)
        equality = Equality(False, 6, 2, 0.05, 0.2) if place else None
        lanes.append(LaneResult(one, metrics, [(one, metrics)], times(1.5, 1.4, 1.6) if place else None, equality))
    facts = {"device": "cpu", "target_model_name": "tiny", "draft_0_sha256": "p", "draft_1_sha256": "q"}
    return CompareResult(lanes, facts, "Say | hi", (1, 2))


def test_a_run_document_has_the_keys_of_the_design() -> None:
    one = record("draft-model")
    document = run_document(one, {"device": "cpu", "draft_0_sha256": "d"}, fold(one.rounds, 0.25), prompt="hi")
    assert list(document) == ["name", "run", "output", "prefill_s", "metrics", "rounds"]
    assert document["output"] == {"text": "ababab", "token_ids": [5, 7] * 3, "end": "limit"}
    # a fact fills a setting that was left open, and a draft's facts lose the lane's number
    assert document["run"]["device"] == "cpu" and document["run"]["draft_sha256"] == "d"
    assert document["run"]["prompt"] == "hi" and document["run"]["prompt_tokens"] == 2
    assert document["metrics"]["draft_cost"] is None
    json.loads(dumps(document))
    assert "draft acceptance" in report_text(run_report(document))


def test_a_lane_has_its_own_drafts_facts_only() -> None:
    facts = {"cpu": "x", "draft_1_sha256": "one", "draft_2_sha256": "two"}
    assert lane_facts(facts, 2) == {"cpu": "x", "draft_sha256": "two"}


def test_compare_has_plain_first_and_says_what_differs() -> None:
    document = compare_document(result())
    plain, other = document["lanes"]
    assert plain["equal_to_plain"] is None and plain["speedup"] is None and "repeats" not in plain
    assert other["equal_to_plain"] == {
        "equal": False, "first_difference": 2, "logit_margin": 0.05, "kernel_margin": 0.2,
    }  # fmt: skip
    assert other["run"]["draft_sha256"] == "q"


def test_tables_keep_their_shape_whatever_a_lane_is_called() -> None:
    document = compare_document(result())
    markdown = compare_markdown(document)
    assert len(markdown.splitlines()) == 4
    assert "a\\|b c" in markdown and "naive (lossy)" in markdown and "differs at token 2" in markdown
    rows = list(csv.reader(io.StringIO(compare_csv(document))))
    assert len({len(row) for row in rows}) == 1 and rows[2][0] == "a|b\nc"
    by_name = dict(zip(rows[0], rows[1], strict=True))
    assert by_name["exact"] == "yes" and by_name["acceptance_rate"] == "" and by_name["speedup"] == ""
    with_speedup = dict(zip(rows[0], rows[2], strict=True))
    lane = document["lanes"][1]
    assert [with_speedup[f"speedup_{key}"] for key in SPEEDUP_OVER] == [str(lane["speedup_over"][key]) for key in SPEEDUP_OVER]
    table = report_text(compare_report(document))
    assert "a|b c" in table and "naive is lossy" in table and "1 (baseline)" in table


def test_an_output_file_is_whole_or_untouched(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    path.chmod(0o640)
    with OutputFile(path, "JSON document"):
        pass
    assert path.read_text() == "old"
    link = tmp_path / "link.json"
    link.symlink_to(path)
    with OutputFile(link, "JSON document") as file:
        file.write("maçã\n")
    assert path.read_text(encoding="utf-8") == "maçã\n" and link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link.json", "out.json"]


def test_a_new_file_is_as_readable_as_others(tmp_path: Path) -> None:
    with OutputFile(tmp_path / "out.json", "JSON document") as file:
        file.write("x")
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "out.json").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_read_only_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out.json").write_text("old")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anything
    with pytest.raises(SpecviewError, match="permission denied"):
        OutputFile(tmp_path / "out.json", "JSON document")
