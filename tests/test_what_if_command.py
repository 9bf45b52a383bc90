"""`specview what-if` end to end over recorded toy runs: the table, the document, lists, bad input."""

from __future__ import annotations

import json

import pytest

from specview.commands.what_if import costs_of, policy_of, real_list
from specview.decoding.metrics import fold
from specview.decoding.sampling import SamplingParams
from specview.errors import UsageError
from specview.files.schema import dumps, round_to_json
from specview.files.writer import TraceWriter, trace_header
from tests.lab.what_if_runs import PROMPT, recorded
from tests.typed import command_line

LOOP = {"order": 3, "seed": 5, "count": 60}


def written(path, records, facts=None):
    """A trace file of these lanes."""
    lanes = [(record.name, record.settings, record.prefill_s) for record in records]
    with TraceWriter(path, trace_header(facts or {"device": "cpu"}, "a b c", PROMPT, lanes)) as writer:
        for lane, record in enumerate(records):
            for round_ in record.rounds:
                writer.round(lane, round_)
            writer.end(lane, record.end, fold(record.rounds))
    return str(path)


@pytest.fixture
def trace(tmp_path):
    lanes = [recorded(method="plain", **LOOP), recorded(k=8, **LOOP), recorded(method="prompt-lookup", k=6, **LOOP)]
    return written(tmp_path / "run.jsonl", lanes)


run = command_line("what-if")


def test_the_recorded_run_comes_first_and_the_best_row_is_marked(trace, capsys):
    code, out, err = run(capsys, trace)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "lane draft-model: draft-model, 60 tokens"
    assert lines[3].startswith("recorded (k 8)") and "measured" in lines[3], out
    names = [line[:24].strip() for line in lines[4:]]
    for name in ("k 1", "k 8", "confidence 0.4, up to 8", "heuristic from 8", "adaptive up to 8", "oracle: length",
                 "oracle: method"):  # fmt: skip
        assert name in names
    marked = [line for line in lines if line.endswith("best")]
    assert len(marked) == 1 and not marked[0].startswith(("oracle", "recorded"))
    assert "exact: every guess that it needs is in the trace" in out


def test_the_document_has_every_figure(trace, tmp_path, capsys):
    code, out, err = run(capsys, trace, "--k", "1-3,8", "--json", "-")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert (document["lane"], document["method"], document["tokens"]) == (1, "draft-model", 60)
    names = [row["name"] for row in document["alternatives"]]
    assert names == ["k 1", "k 2", "k 3", "k 8", "oracle: length", "oracle: method"]
    rounds = len(recorded(k=3, **LOOP).rounds)
    three = document["alternatives"][2]
    assert three["how"] == "exact" and three["rounds"]["value"] == rounds
    assert three["tokens_per_pass"]["value"] == pytest.approx(60 / rounds)
    assert document["recorded"]["how"] == "measured" and document["best"] in names
    assert document["costs"]["plain_round_s"] == pytest.approx(0.012)
    target = tmp_path / "out.json"
    assert run(capsys, trace, "--json", str(target))[0] == 0
    assert json.loads(target.read_text())["recorded"] == document["recorded"]


def test_a_lane_by_number_or_name_and_only_what_was_asked_for(trace, capsys):
    for lane in ("2", "prompt-lookup"):
        code, out, _ = run(capsys, trace, "--lane", lane, "--threshold", "0.5", "--policy", "off-below,threshold=0.6,k=4")
        assert code == 0
        assert "lane prompt-lookup" in out
        assert "confidence 0.5, up to 6" in out and "off-below 0.6, k 4" in out
        assert "heuristic" not in out and "\nk 1 " not in out
        assert "the drafter was run again on the recorded ids" in out


def test_pass_times_that_the_trace_lacks(trace, tmp_path, capsys):
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps({"calibrated_pass_s": {"1": 0.012, "3": 0.024, "9": 0.028}}))
    assert costs_of(str(costs)) == {1: 0.012, 3: 0.024, 9: 0.028}
    _, out, _ = run(capsys, trace, "--k", "2", "--costs", str(costs), "--json", "-")
    assert json.loads(out)["costs"]["pass_s"]["3"] == pytest.approx(0.024)
    other = written(tmp_path / "other.jsonl", [recorded(method="plain", **LOOP), recorded(k=2, **LOOP)])
    _, out, _ = run(capsys, trace, "--k", "2", "--costs", other, "--json", "-")
    assert json.loads(out)["costs"]["pass_s"]["3"] == pytest.approx(0.016)
    for text in ("{}", '{"calibrated_pass_s": {"x": 1}}', '{"calibrated_pass_s": {"1": -1}}', "not json", ""):
        costs.write_text(text)
        code, out, err = run(capsys, trace, "--costs", str(costs))
        assert code == 1 and out == "" and err.count("\n") == 1


def test_a_policy_that_this_specview_does_not_know_is_one_safe_line(tmp_path, capsys):
    lane = recorded(method="prompt-lookup", k=6, **LOOP)
    lane.settings = {**lane.settings, "policy": "clever\x1b[2J"}
    path = written(tmp_path / "later.jsonl", [recorded(method="plain", **LOOP), lane])
    code, out, err = run(capsys, path, "--lane", "1")
    assert (code, out) == (1, "")
    assert "does not know" in err and "\x1b" not in err and err.count("\n") == 1


def test_a_run_that_was_interrupted_or_of_one_lane_alone(tmp_path, capsys):
    lane = recorded(k=8, **LOOP)
    lane.rounds, lane.end = lane.rounds[:-2], None
    text = [dumps(trace_header({}, "", PROMPT, [("draft", lane.settings, 0.1)]))]
    text += [dumps(round_to_json(0, round_)) for round_ in lane.rounds]
    path = tmp_path / "cut.jsonl"
    path.write_text("\n".join(text) + '\n{"lane": 0, "ind')
    code, out, err = run(capsys, str(path))
    assert (code, err) == (0, "")
    assert "no times" in out and "cut short" in out and "oracle" not in out


def test_what_cannot_be_is_one_line(trace, tmp_path, capsys):
    lossy = written(tmp_path / "lossy.jsonl", [recorded(rule="typical", sampling=SamplingParams(temperature=1.0), k=3)])
    plain = written(tmp_path / "plain.jsonl", [recorded(method="plain", count=9)])
    foreign = tmp_path / "foreign.txt"
    foreign.write_text("hello\n")
    for arguments, code, says in (
        ([str(tmp_path / "none.jsonl")], 2, "no file"),
        ([str(foreign)], 1, "not the header"),
        ([lossy], 1, "lossy"),
        ([plain], 1, "no lane of this trace drafts"),
        ([trace, "--lane", "0"], 1, "plain decoding"),
        ([trace, "--lane", "9"], 2, "its lanes: 0 plain, 1 draft-model"),
        ([trace, "--k", "0"], 2, "1 to 64"),
        ([trace, "--k", "4-2"], 2, "least first"),
        ([trace, "--k", "x"], 2, "whole numbers"),
        ([trace, "--threshold", "nan"], 2, "value from 0 to 1"),
        ([trace, "--threshold", "2"], 2, "value from 0 to 1"),
        ([trace, "--policy", "fancy"], 2, "no length policy"),
        ([trace, "--policy", "heuristic,k=1-3"], 2, "one k"),
        ([trace, "--policy", "off-below,window"], 2, "key=value"),
        ([trace, "--policy", "off-below,colour=red"], 2, "no option"),
        ([trace, "--json", str(tmp_path / "no" / "x.json")], 1, "cannot write"),
        ([], 2, "required"),
    ):
        got, out, err = run(capsys, *arguments)
        assert got == code, (arguments, err)
        assert out == "" and err.count("\n") == 1 and "Traceback" not in err
        assert says.lower() in err.lower(), (arguments, err)


def test_lists():
    assert real_list("0.5,0.2,0.5") == [0.2, 0.5]
    assert policy_of("adaptive, k=5, retry=2") == ("adaptive", {"retry": 2}, 5)
    with pytest.raises(UsageError):
        real_list(",".join(["0.5"] * 300))
