"""`specview scan` end to end over a fake engine: the table, the document, stopping, errors."""

from __future__ import annotations

import json
import signal

import pytest

from specview import cli
from tests.experiments.test_exit_scan import TEXT, WRONG, engine_of

ARGUMENTS = ["scan", "--prompt", TEXT, "--raw", "--tokens", "20", "--k", "4"]


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "scan", "which exit layer pays on a prompt")


@pytest.fixture
def engine(monkeypatch):
    made = engine_of(WRONG)

    def load(ref, engine, **asked):
        made.asked = {"ref": ref, "engine": engine, **asked}
        return made

    monkeypatch.setattr("specview.racing.pool.load_engine", load)
    # The command times with the machine's clock: here with the fake's own.
    from specview.experiments import exit_scan

    real = exit_scan.scan_exits
    monkeypatch.setattr(exit_scan, "scan_exits", lambda *given: real(*given, clock=made.clock))
    return made


def test_the_table_marks_the_best_exit_and_says_so(capsys, engine):
    assert cli.main([*ARGUMENTS, "--threads", "1"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[2] == "Measured on fake, 6 layers: 20 greedy tokens after a prompt of 5; a plain step takes 1125.0 ms."
    rows = [line.split() for line in lines[5:10]]
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5"]
    assert [row[1] for row in rows] == ["0.000", "0.500", "0.850", "0.950", "1.000"]
    marked = [row for row in rows if row[-1] == "best"]
    assert len(marked) == 1
    sentence = next(line for line in lines if line.startswith("Best: leave after layer"))
    assert f"layer {marked[0][0]} of 6 with k {marked[0][3]}" in sentence
    assert "greedy agreement" in out
    assert engine.asked["threads"] == 1
    assert engine.closed


def test_no_exit_is_marked_where_plain_wins(capsys, engine):
    for layer in WRONG:
        engine.exits[layer] = lambda prefix: -engine.model(prefix)
    assert cli.main(ARGUMENTS) == 0
    out, _ = capsys.readouterr()
    assert "Plain decoding wins: the best exit, layer 1" in out
    assert not any(line.endswith("best") for line in out.splitlines())


def test_the_document_is_all_of_standard_output_or_a_file(capsys, engine, tmp_path):
    assert cli.main([*ARGUMENTS, "--json", "-"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert err == ""
    assert document["run"]["engine"] == "transformers"
    assert document["run"]["device"] == "cpu"
    assert document["prompt"] == TEXT
    assert (document["layers"], document["tokens"], document["prompt_tokens"]) == (6, 20, 5)
    assert [one["acceptance_rate"] for one in document["exits"]] == [0.0, 0.5, 0.85, 0.95, 1.0]
    assert document["best"]["pays"] is True
    file = tmp_path / "scan.json"
    assert cli.main([*ARGUMENTS, "--json", str(file)]) == 0
    assert json.loads(file.read_text())["sentence"] in capsys.readouterr().out


def test_an_engine_without_exits_fails_with_its_reason(capsys, engine):
    engine.exit_layers, engine.exit_problem = 0, "llama.cpp computes logits only at the end of the graph"
    assert cli.main([*ARGUMENTS, "--engine", "llama.cpp"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "specview: fake has no exits to scan: llama.cpp computes logits only at the end of the graph.\n"
    )
    assert engine.closed


def test_ctrl_c_stops_it(capsys, engine, monkeypatch):
    spend, passes = engine.spend, [0]

    def press(seconds):
        passes[0] += 1
        if passes[0] == 30:
            signal.raise_signal(signal.SIGINT)
        spend(seconds)

    monkeypatch.setattr(engine, "spend", press)
    assert cli.main(ARGUMENTS) == 130
    assert passes[0] <= 32, "within a pass or two"
    assert "stopped" in capsys.readouterr().err
    assert engine.closed


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--tokens", "0"], "tokens is 0. Use 1 to 4096."),
        (["--tokens", "x"], "'x' is not a whole number"),
        (["--tokens", "99999"], "tokens is 99999. Use 1 to 4096"),
        (["--k", "0"], "k is 0"),
        (["--temperature", "1"], "unrecognized arguments: --temperature"),
        (["--threads", "0"], "threads is 0"),
        (["--prompt-file", "x"], "not allowed with argument --prompt"),
    ],
)
def test_bad_flags_are_one_line(capsys, engine, flags, line):
    assert cli.main([*ARGUMENTS, *flags]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert line in err
    assert not engine.sessions, "before anything is run"
