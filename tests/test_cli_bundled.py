"""The commands end to end on the bundled pair, in both engines."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specview import cli
from specview.commands.terminal import report_text
from specview.decoding.metrics import fold
from specview.decoding.round_table import RoundTable
from specview.decoding.speedup import speedup
from specview.files.reader import read_trace
from specview.files.schema import round_from_json
from specview.library.reports import compare_report

pytestmark = [pytest.mark.real_model, pytest.mark.usefixtures("loaded_once")]
ONE_ENGINE = pytest.mark.parametrize("engine_name", ["llama.cpp"], indirect=True)
"""For what the command does whatever the engine: the one that starts sooner."""
EXACT = ("rounds", "proposed", "judged", "accepted", "ignored", "emitted")


def run_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    """Run a command with --json -; standard output must hold the document and nothing else."""
    code = cli.main([*argv, "--json", "-"])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert err == ""
    document = json.loads(out)
    assert isinstance(document, dict)
    return document


def assert_close(found: Any, told: Any, name: str) -> None:
    if isinstance(told, (list, tuple)):
        assert len(found) == len(told), name
        for one, other in zip(found, told, strict=True):
            assert_close(one, other, name)
    elif told is None or found is None:
        assert found == told, name
    elif isinstance(told, dict):
        assert found.keys() == told.keys(), name
        for key in told:
            assert_close(found[key], told[key], f"{name}.{key}")
    else:
        assert found == pytest.approx(told, rel=2e-5), name


def assert_recomputes(lanes: list[dict[str, Any]]) -> None:
    """Fold the rounds in the file and compare with the metrics in the file."""
    plain_rounds = [round_from_json(item)[1] for item in lanes[0]["rounds"]]
    step_s = RoundTable(plain_rounds).plain_step_s()
    for place, lane in enumerate(lanes):
        rounds = [round_from_json(item)[1] for item in lane["rounds"]]
        again = fold(rounds, lane["prefill_s"], step_s).as_dict()
        assert set(again) == set(lane["metrics"])
        for name, told in lane["metrics"].items():
            if name in EXACT:
                assert again[name] == told, name
            else:
                assert_close(again[name], told, name)
        assert lane["output"]["token_ids"] == [token for round_ in rounds for token in round_.emitted]
        if place:
            assert_close(speedup(rounds, plain_rounds).value, lane["speedup"], "speedup")


def test_compare_and_its_trace_agree_with_their_rounds(
    engine_name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace_file = tmp_path / "trace.jsonl"
    document = run_json(
        capsys, "compare", "--engine", engine_name, "--workload", "code-edit", "--max-tokens", "32",
        "--trace", str(trace_file), "--csv", str(tmp_path / "t.csv"), "--markdown", str(tmp_path / "t.md"),
    )  # fmt: skip
    lanes = document["lanes"]
    assert [lane["name"] for lane in lanes] == ["plain", "draft-model", "prompt-lookup"]
    assert_recomputes(lanes)
    assert lanes[0]["speedup"] is None and lanes[0]["equal_to_plain"] is None
    for lane in lanes:
        run = lane["run"]
        assert run["engine"] == engine_name and run["workload"] == "code-edit" and run["rule"] == "greedy"
        assert len(run["workload_sha256"]) == 64 and len(run["target_sha256"]) == 64
        assert run["device"] and run["version_specview"] and run["prompt_tokens"] > 10
        assert len(lane["output"]["token_ids"]) <= 32
    assert lanes[1]["run"]["draft"] == "bundled" and len(lanes[1]["run"]["draft_sha256"]) == 64
    for lane in lanes[1:]:
        equality = lane["equal_to_plain"]
        assert list(equality) == ["equal", "first_difference", "logit_margin", "kernel_margin"]
        if equality["equal"]:
            assert lane["output"]["token_ids"] == lanes[0]["output"]["token_ids"]
        else:
            assert equality["logit_margin"] <= 2 * equality["kernel_margin"]

    trace = read_trace(trace_file)
    assert not trace.cut and trace.run["workload_sha256"] == lanes[0]["run"]["workload_sha256"]
    for lane, record, told in zip(lanes, trace.records, trace.metrics, strict=True):
        assert record.name == lane["name"] and record.end == lane["output"]["end"]
        assert [round_from_json(item)[1] for item in lane["rounds"]] == record.rounds
        assert record.text == lane["output"]["text"] and told == lane["metrics"]
        assert any(token.p_top for round_ in record.rounds for token in (*round_.drafted, round_.final) if token)

    rows = list(csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text())))
    assert [row["name"] for row in rows] == ["plain", "draft-model", "prompt-lookup"]
    assert float(rows[0]["decode_tokens_per_s"]) == lanes[0]["metrics"]["decode_tokens_per_s"]
    assert (tmp_path / "t.md").read_text().count("\n") == 5


@ONE_ENGINE
def test_check_mode_gives_plain_exactly(engine_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The flag arrives; all lanes of both engines are in racing/test_equality_bundled.py."""
    document = run_json(
        capsys, "compare", "--engine", engine_name, "--workload", "extract", "--max-tokens", "8", "--check-mode",
        "--observe", "off",
    )  # fmt: skip
    for lane in document["lanes"][1:]:
        assert lane["equal_to_plain"]["equal"]
        assert lane["output"]["token_ids"] == document["lanes"][0]["output"]["token_ids"]


@ONE_ENGINE
def test_repeats_give_medians(engine_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["compare", "--engine", engine_name, "--method", "prompt-lookup", "--prompt", "Count: 1 2 3 1 2 3",
            "--max-tokens", "8", "--repeats", "3"]  # fmt: skip
    document = run_json(capsys, *argv)
    for lane in document["lanes"]:
        assert len(lane["repeats"]) == 3
        speeds = sorted(one["metrics"]["decode_tokens_per_s"] for one in lane["repeats"])
        assert lane["metrics"]["decode_tokens_per_s"] == speeds[1]
        assert lane["rounds"] in [one["rounds"] for one in lane["repeats"]]
    low, high = document["lanes"][1]["speedup_spread"]
    assert low <= document["lanes"][1]["speedup"] <= high
    out = report_text(compare_report(document))
    assert "Medians of 3 repeats" in out and "prompt-lookup" in out and "equal to plain" in out


@ONE_ENGINE
def test_a_lossy_rule_is_called_so(engine_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--engine", engine_name, "--prompt", "Hello", "--max-tokens", "8", "--temperature", "1", "--seed", "3"]
    assert cli.main(["compare", *argv, "--lane", "draft-model,rule=naive"]) == 0
    assert "naive is lossy" in capsys.readouterr().out
    assert cli.main(["run", *argv, "--rule", "typical"]) == 0
    out = capsys.readouterr().out
    assert "typical (lossy" in out and "acceptance rate (alpha)" in out and "draft acceptance" in out


def test_run_prints_text_and_figures(
    engine_name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    argv = ["run", "--engine", engine_name, "--prompt", "Name three colours.", "--max-tokens", "16"]
    assert cli.main([*argv, "--json", str(tmp_path / "out.json")]) == 0
    out, err = capsys.readouterr()
    document = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert list(document) == ["name", "run", "output", "prefill_s", "metrics", "rounds"]
    assert out.startswith(document["output"]["text"]) and "decode tok/s" in out and err == ""
    assert "\x1b" not in out
    assert document["run"]["prompt"] == "Name three colours." and document["run"]["method"] == "draft-model"
    again = run_json(capsys, *argv, "--observe", "off")
    assert again["output"] == document["output"]


@contextlib.contextmanager
def specview(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the program that hears Ctrl-C, even under tests that run in the background, and outlives no test."""
    process = subprocess.Popen(
        [sys.executable, "-m", "specview", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    try:
        with process.stderr:
            yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def long_run(engine: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that decodes and has printed something."""
    with specview("run", "--engine", engine, "--raw", "--prompt", "1 2 3 4 5 6 7 8 9",
                  "--method", "plain", "--max-tokens", "4000", *words) as process:  # fmt: skip
        os.read(process.stdout.fileno(), 1)  # type: ignore[union-attr]
        yield process


def test_a_run_stopped_by_ctrl_c_keeps_what_it_has(engine_name: str, tmp_path: Path) -> None:
    out_file, trace_file = tmp_path / "out.json", tmp_path / "trace.jsonl"
    with long_run(engine_name, "--json", str(out_file), "--trace", str(trace_file)) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"stopped" in out and err == b""
    document = json.loads(out_file.read_text(encoding="utf-8"))
    assert document["output"]["end"] == "stopped" and document["metrics"]["emitted"] >= 1
    assert read_trace(trace_file).records[0].end == "stopped"


@ONE_ENGINE
def test_a_closed_pipe_is_quiet(engine_name: str) -> None:
    with long_run(engine_name) as process:
        process.stdout.close()  # type: ignore[union-attr]
        err = process.stderr.read()  # type: ignore[union-attr]
        assert process.wait(timeout=60) == 1 and err == b""


@pytest.mark.parametrize(("engine_name", "method"), [("transformers", "plain"), ("llama.cpp", "draft-model")], indirect=["engine_name"])
def test_a_prompt_longer_than_the_context_is_one_line(
    engine_name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, method: str
) -> None:
    (tmp_path / "long.txt").write_text("word " * 9000)
    code = cli.main(
        ["run", "--engine", engine_name, "--method", method, "--prompt-file", str(tmp_path / "long.txt")]
    )
    out, err = capsys.readouterr()
    assert code == 1 and err.count("\n") == 1 and "tokens" in err and out == ""


def test_bad_models_are_one_line_each(
    engine_name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from specview.models import bundled

    whole = bundled.target_gguf().read_bytes()[: 1 << 20]
    (tmp_path / "cut.gguf").write_bytes(whole)
    (tmp_path / "not.gguf").write_bytes(b"hello")
    (tmp_path / "empty").mkdir()
    for name, says in (
        ("missing.gguf", "missing.gguf"),
        ("cut.gguf", "cut.gguf"),
        ("not.gguf", "not.gguf"),
        ("empty", "empty"),
    ):
        for flag in ("--target", "--draft"):
            code = cli.main(
                ["run", "--engine", engine_name, flag, str(tmp_path / name), "--prompt", "a", "--max-tokens", "4"]
            )
            err = capsys.readouterr().err
            assert code in (1, 2) and err.count("\n") == 1 and says in err, (name, flag, err)


def test_a_draft_with_another_tokenizer_is_translated_or_refused_on_request(
    capsys: pytest.CaptureFixture[str], tiny_llama: Path
) -> None:
    rest = ["--draft", str(tiny_llama), "--prompt", "a", "--max-tokens", "4"]
    code = cli.main(["compare", "--method", "draft-model", *rest])
    out, err = capsys.readouterr()
    assert code == 0, err
    row = next(line for line in out.splitlines() if line.startswith("draft-model"))
    assert "yes" in row  # greedy, and equal to plain whatever was drafted
    code = cli.main(["compare", "--lane", "draft-model,vocabulary=same", *rest])
    out, err = capsys.readouterr()
    assert code == 1 and err.count("\n") == 1 and "token" in err
    assert "plain" in out  # the other lane ran


@pytest.mark.parametrize(("engine_name", "delay_s"), [("transformers", 1.0), ("llama.cpp", 3.0)], indirect=["engine_name"])
def test_ctrl_c_at_any_moment_is_at_most_one_line(engine_name: str, tmp_path: Path, delay_s: float) -> None:
    with specview("compare", "--engine", engine_name, "--max-tokens", "400",
                  "--json", str(tmp_path / "out.json")) as process:  # fmt: skip
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err in (b"", b"specview: stopped.\n")
    assert bool(out) == (tmp_path / "out.json").exists()  # both or, before any round, neither
    assert not [path for path in tmp_path.iterdir() if path.name != "out.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_disk_ends_the_trace_and_not_the_run(
    engine_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["run", "--engine", engine_name, "--method", "plain", "--prompt", "Hi", "--max-tokens", "4"]
    assert cli.main([*argv, "--trace", "/dev/full"]) == 0
    out, err = capsys.readouterr()
    assert "decode tok/s" in out and err.count("\n") == 1 and "no space left" in err
    assert cli.main([*argv, "--json", "/dev/full"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "cannot write the JSON document" in err
