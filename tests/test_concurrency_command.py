"""`specview concurrency` end to end over fake engines: the table, the document, stopping, errors; then for real."""

from __future__ import annotations

import json
import signal
from types import SimpleNamespace

import pytest

from specview import cli
from tests.decoding.toy import FakeClock
from tests.lab.batch_fake import BatchEngine, FakeProbe, write_lanes
from tests.lab.test_explain import make_lane

ARGUMENTS = ["concurrency", "--prompt", "abcde", "--raw", "--batch", "1,2,4,8", "--k", "0,2", "--context", "8",
             "--repeats", "3", "--seconds", "1e9"]  # fmt: skip
STATED = ["--acceptance", "0.8", "--draft-cost", "0"]


@pytest.fixture
def engines(monkeypatch):
    """A target whose passes are flat to 6 rows and a draft; the command's clock is theirs."""
    clock = FakeClock()
    made = {
        "target": BatchEngine(lambda sequences, rows: max(6.0, sequences * rows), clock),
        "draft": BatchEngine(lambda sequences, rows: 0.5 * sequences, clock),
    }
    made["draft"].model_name = "fake draft"
    asked = []

    def load(ref, engine, **more):
        asked.append((more["role"], ref, engine))
        return made[more["role"]]

    monkeypatch.setattr("specview.racing.pool.load_engine", load)
    from specview.lab import concurrency

    real = concurrency.measure_batches
    monkeypatch.setattr(concurrency, "measure_batches", lambda *a, **more: real(*a, **{**more, "clock": clock}))
    return made | {"asked": asked}


def test_the_table_the_verdict_and_the_best_of_each_number(capsys, engines):
    assert cli.main([*ARGUMENTS, *STATED]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "fake in transformers on fake, 8 tokens in each cache; timed: a formula" in out
    rows = {(line.split()[0], line.split()[1]): line.split() for line in out.splitlines() if line[:1].isdigit()}
    assert set(rows) == {(size, k) for size in "1248" for k in "02"}
    # 2.44 tokens in 6 s against 1 in 6 s; with 4 sequences 12 rows take 12 s, with 8 24 against 8.
    assert [rows[size, "2"][7] for size in "1248"] == ["2.44", "2.44", "1.22", "0.81"]
    assert [rows[size, k][-1] for size in "1248" for k in "02"] == ["no", "yes"] * 3 + ["yes", "no"]
    assert "the gain ends at about" in out and "modelled: c 0 of a plain pass" in out
    assert [role for role, _, _ in engines["asked"]] == ["target"]
    assert engines["target"].closed


def test_the_document_tells_measured_from_modelled(capsys, engines):
    assert cli.main([*ARGUMENTS, "--acceptance", "0.8", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    document = json.loads(out)
    assert document["name"] == "concurrency" and document["run"]["engine"] == "transformers"
    assert {one["source"] for one in document["passes"]} == {"measured"}
    drafted = [one for one in document["points"] if one["k"] == 2]
    assert [one["draft_s"] for one in drafted] == [{"value": size, "source": "measured"} for size in (1, 2, 4, 8)]
    assert document["draft_model"] == "fake draft"
    assert {one["roofline"]["source"] for one in document["passes"]} == {"modelled"}
    assert {one["pass_s"]["source"] for one in document["points"]} == {"measured"}
    assert document["roofline"]["ridge_rows"]["source"] == "modelled"
    assert document["roofline"]["bytes_per_s"]["source"] == "measured"
    assert document["assumptions"] and document["sentence"]
    assert document["crossings"][0]["k"] == 2 and document["crossing_in_range"] is True
    assert [role for role, _, _ in engines["asked"]] == ["target", "draft"]


def test_without_an_acceptance_a_race_records_one(capsys, engines):
    assert cli.main([*ARGUMENTS, "--json", "-"]) == 0
    document = json.loads(capsys.readouterr()[0])
    found = document["acceptance"]
    assert found["name"] == "draft-model" and 0 <= found["acceptance_rate"] <= 1
    assert len(found["position_acceptance_conditional"]) == 2
    assert found["run"]["draft"] == "bundled"


def recording(path, **models):
    """A trace file of one lane with these models."""
    settings = {"engine": "llama.cpp", "method": "draft-model", "draft_engine": "llama.cpp"} | models
    return write_lanes(path, {"fast": (settings, make_lane([(2, 1, 0.01, 0.05, 0.0), (2, 2, 0.01, 0.05, 0.0)]))})


def test_a_trace_brings_its_engine_and_its_draft(tmp_path, capsys, engines, monkeypatch):
    monkeypatch.setattr("specview.commands.concurrency.resolve", lambda name, engine, role: SimpleNamespace(path=tmp_path))
    path = recording(tmp_path / "trace.jsonl", target="some.gguf", draft="small.gguf")
    assert cli.main([*ARGUMENTS, "--trace", str(path)]) == 0
    assert "Acceptance: fast, 0.750 per judged token" in capsys.readouterr()[0]
    assert engines["asked"] == [("target", "some.gguf", "llama.cpp"), ("draft", "small.gguf", "llama.cpp")]
    engines["asked"].clear()
    assert cli.main([*ARGUMENTS, "--trace", str(path), "--engine", "transformers", "--draft-cost", "0.1"]) == 0
    assert "The acceptance is of a run in llama.cpp" in capsys.readouterr()[0]
    assert engines["asked"] == [("target", "some.gguf", "transformers")]


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_model_that_only_a_trace_names_is_never_downloaded(tmp_path, capsys, engines, monkeypatch, role):
    monkeypatch.setattr("specview.models.hub.fetch", lambda *given, **more: pytest.fail("asked the Hub"))
    models = {"target": "bundled", "draft": "bundled", "engine": "transformers", "draft_engine": "transformers"}
    path = recording(tmp_path / "trace.jsonl", **models | {role: "somebody/their-model"})
    assert cli.main([*ARGUMENTS, "--trace", str(path)]) == 2
    assert f"--{role} somebody/their-model" in capsys.readouterr().err
    assert not engines["asked"]
    assert cli.main([*ARGUMENTS, "--trace", str(path), f"--{role}", "somebody/their-model"]) == 0


def test_ctrl_c_keeps_what_was_measured(capsys, engines, monkeypatch):
    real = FakeProbe.forward

    def forward(self, tokens):
        if len(engines["target"].passes) == 6:
            signal.raise_signal(signal.SIGINT)
        return real(self, tokens)

    monkeypatch.setattr(FakeProbe, "forward", forward)
    assert cli.main([*ARGUMENTS, *STATED]) == 130
    out, _ = capsys.readouterr()
    assert "Stopped: what was measured so far." in out
    assert any(line.startswith("1  2") for line in out.splitlines())
    assert not any(probe.open for probe in engines["target"].probes)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--batch", ""], "there are no batch sizes"),
        (["--batch", "1,x"], "'x' is not a whole number"),
        (["--batch", "0"], "a batch size is 0"),
        (["--k", "99"], "a draft length k is 99"),
        (["--context", "0"], "context is 0"),
        (["--acceptance", "nan"], "'nan' is not a number"),
        (["--acceptance", "1.5"], "acceptance is 1.5"),
        (["--draft-cost", "-1", "--acceptance", "0.5"], "draft cost is -1"),
        (["--draft-cost", "0.1"], "--draft-cost needs an acceptance"),
        (["--draft-cost", "0.1", "--acceptance", "0.5", "--draft", "x"], "stands in place of a draft model"),
        (["--acceptance", "0.5", "--trace", "x"], "not allowed with"),
        (["--trace", "missing.jsonl"], "there is no file 'missing.jsonl'"),
        (["--k", "4..2"], "write the least first"),
        (["--trace-lane", "x"], "--trace-lane names a lane of --trace"),
        (["--acceptance", "0.5", "--target", "my.gguf"], "what a draft step costs is not known"),
        (["--repeats", "0"], "repeats is 0"),
        (["--seconds", "0"], "seconds is 0"),
    ],
)
def test_bad_input_is_one_line(capsys, engines, given, says):
    code = cli.main([*ARGUMENTS, *given])
    out, err = capsys.readouterr()
    assert code in (1, 2) and out == ""
    assert says in err and err.count("\n") == 1
    assert engines["asked"] == []


@pytest.mark.real_model
def test_the_bundled_pair(capsys, engine_name, monkeypatch):
    """Real passes in both engines: every figure is there, and the verdict states a crossing or that there is none."""
    from specview.models import bundled

    assert bundled.find_target() is not None
    code = cli.main(["concurrency", "--engine", engine_name, "--batch", "1,2", "--k", "0,2", "--context", "32",
                     "--repeats", "1", "--acceptance", "0.6", "--threads", "1", "--json", "-"])  # fmt: skip
    out, _ = capsys.readouterr()
    assert code == 0
    document = json.loads(out)
    assert {(one["sequences"], one["rows_each"]) for one in document["passes"]} == {(1, 1), (1, 3), (2, 1), (2, 3)}
    assert all(one["median_s"] > 0 and one["roofline"]["bound"] in ("memory", "compute") for one in document["passes"])
    assert {one["draft_s"]["source"] for one in document["points"] if one["k"]} == {"measured"}
    sentence = document["sentence"]
    assert "at about" in sentence if document["crossing_in_range"] else "no crossing in range" in sentence
