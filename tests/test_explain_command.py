"""`specview explain` end to end over fake engines: a race of its own, a trace, stopping, bad input."""

from __future__ import annotations

import json
import statistics
from functools import partial
from pathlib import Path

import pytest

from specview import cli
from specview.commands import running
from tests.racing.world import PROMPT, World

RACE = ["explain", "--prompt", PROMPT, "--raw", "--max-tokens", "40"]


@pytest.fixture
def world(monkeypatch) -> World:
    """Fake engines, timed by their own clock."""
    from specview.lab import calibrate
    from specview.racing import compare

    made = World(monkeypatch)
    monkeypatch.setattr(compare, "compare", partial(compare.compare, clock=made.clock))
    monkeypatch.setattr(calibrate, "calibrate_passes", partial(calibrate.calibrate_passes, clock=made.clock))
    return made


@pytest.fixture
def trace(world, tmp_path, capsys) -> str:
    path = tmp_path / "race.jsonl"
    assert cli.main([*RACE, "--method", "draft-model", "--k", "3", "--trace", str(path)]) == 0
    capsys.readouterr()
    return str(path)


def test_a_race_of_its_own_explains_every_lane(world, capsys):
    assert cli.main([*RACE, "--method", "draft-model", "--method", "prompt-lookup", "--k", "3"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [line for line in out.splitlines() if line.startswith("lane ")] == [
        "lane 0: plain", "lane 1: draft-model", "lane 2: prompt-lookup",
    ]  # fmt: skip
    own = out.split("lane 1: ")[1].split("lane 2: ")[0]
    # the world's costs: a pass 1 + 0.125 a row, a draft step 0.25: c = 0.25 / 1.125, v(3) = 1.5 / 1.125
    assert "c, of medians            0.222" in own and "v, 4 rows                1.33 measured" in own
    assert "Drafting 3 tokens costs 0.7 plain passes here" in own
    for words in ("from plain to here", "c alone", "c and v(k)", "measured", "break-even", "rule of thumb", "accepted tokens: rounds"):
        assert words in own
    assert "8  1.89  calibrated" in own  # v(8) = 2.125 / 1.125, from the calibration before the race
    assert ("target", "bundled") in world.loads and world.loads.count(("target", "bundled")) == 1
    assert all(engine.closed for engine in world.engines.values())


def test_the_document_adds_up(world, capsys):
    assert cli.main([*RACE, "--method", "draft-model", "--k", "3", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    document = json.loads(out)
    assert [int(rows) for rows in document["calibrated_pass_s"]] == list(range(1, 10))
    lane = document["lanes"][1]
    fall = lane["explanation"]["waterfall"]
    assert 1 + sum(step["change"] for step in fall["steps"][1:-1]) == pytest.approx(fall["net"], rel=1e-5)
    assert fall["net"] == pytest.approx(lane["explanation"]["measured_speedup"], rel=1e-6)
    assert len(lane["round_waterfalls"]) == lane["metrics"]["rounds"] == len(lane["details"]["timeline"])
    assert sum(int(n) * c for n, c in lane["details"]["accepted_lengths"].items()) == lane["metrics"]["accepted"]
    assert lane["details"]["entropy_known"] == lane["metrics"]["judged"]  # full observation is the default here
    assert document["lanes"][0]["explanation"]["waterfall"] is None


def test_a_trace_says_the_same_without_a_model(world, trace, capsys):
    loads = list(world.loads)
    assert cli.main(["explain", trace, "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert world.loads == loads
    assert document["calibrated_pass_s"] is None and document["trace"] == trace
    lane = document["lanes"][1]
    assert lane["explanation"]["c"] == pytest.approx(0.25 / 1.125, rel=1e-4)
    assert lane["metrics"]["predicted_speedup"] is not None
    assert cli.main(["explain", trace]) == 0
    assert "lane 1: draft-model" in capsys.readouterr().out


def test_a_trace_has_the_figures_that_the_race_had(world, trace, tmp_path, capsys):
    copy = tmp_path / "uneven.jsonl"  # the first passes are slow: medians with and without them differ
    records = [json.loads(line) for line in Path(trace).read_text().splitlines()]
    plain = [record for record in records if record.get("lane") == 0 and "verify_s" in record]
    for place, record in enumerate(plain):
        record["verify_s"] *= 1 + place
    copy.write_text("".join(json.dumps(record) + "\n" for record in records if record.get("lane") != 0 or record in plain))
    assert cli.main(["explain", str(copy), "--json", "-"]) == 0
    (lane,) = [one for one in json.loads(capsys.readouterr().out)["lanes"] if one["lane"] == 1]
    step = statistics.median(record["verify_s"] for record in plain)
    rounds = [record for record in records if record.get("lane") == 1 and "verify_s" in record]
    c = sum(one["draft_s"] for one in rounds) / sum(len(one["drafted"]) for one in rounds) / step
    assert lane["metrics"]["draft_cost"] == pytest.approx(c, rel=1e-5)
    (alone,) = [one for one in lane["explanation"]["predictions"] if one["name"] == "c alone"]
    assert alone["speedup"] == pytest.approx(lane["metrics"]["predicted_speedup"], rel=1e-6)


def test_a_run_of_the_library_is_explained_by_its_name(trace, capsys):
    assert cli.main(["runs", "import", trace]) == 0
    capsys.readouterr()
    for given in (["explain", "last", "--lane", "1"], ["theory", "--trace", "last"], ["what-if", "last", "--k", "1..2"]):
        assert cli.main(given) == 0
        assert "draft-model" in capsys.readouterr().out


def test_passes_that_took_no_time_are_no_fault(trace, tmp_path, capsys):
    records = [json.loads(line) for line in Path(trace).read_text().splitlines()]
    for record in records:
        record.update({key: 0.0 for key in ("t", "draft_s", "verify_s", "other_s") if key in record})
    path = tmp_path / "zero.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    for given in (["explain"], ["what-if"], ["theory", "--trace"], ["replay", "--text"]):
        assert cli.main([*given, str(path)]) == 0
        out, err = capsys.readouterr()
        assert err == "" and "nan" not in out and "inf" not in out.replace("info", "")


def test_one_lane_of_a_trace_by_number_or_name_and_as_far_as_a_cut_one_goes(trace, capsys, tmp_path):
    for lane in ("1", "draft-model"):
        assert cli.main(["explain", trace, "--lane", lane]) == 0
        out = capsys.readouterr().out
        assert "lane 1: draft-model" in out and "lane 0" not in out
    data, cut = Path(trace).read_bytes(), tmp_path / "cut.jsonl"
    cut.write_bytes(data[: len(data) // 2])
    assert cli.main(["explain", str(cut)]) == 0
    assert "interrupted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--lane", "7"], "the trace has no lane '7'. Its lanes: 0 plain, 1 draft-model."),
        (["--lane", "nobody"], "the trace has no lane 'nobody'"),
        (["--method", "suffix"], "--method is for a race"),
        (["--k", "3"], "--k is for a race"),
        (["--raw"], "--raw is for a race"),
        (["--trace", "x.jsonl"], "--trace is for a race"),
    ],
)
def test_flags_that_do_not_fit_a_trace_are_refused_in_one_line(trace, capsys, extra, words):
    assert cli.main(["explain", trace, *extra]) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1


def test_bad_files_are_one_line(capsys, tmp_path):
    foreign = tmp_path / "foreign.jsonl"
    foreign.write_text('{"a": 1}\n')
    assert cli.main(["explain", str(foreign)]) == 1
    assert "not the header of a specview trace" in capsys.readouterr().err
    assert cli.main(["explain", str(tmp_path / "none.jsonl")]) == 2
    assert "there is no file" in capsys.readouterr().err
    assert cli.main(["explain", "last"]) == 2
    assert "the runs library holds" in capsys.readouterr().err


def test_a_lane_that_fails_leaves_the_others_explained(world, capsys):
    def broken():
        raise MemoryError

    world.models["draft", "bundled"] = broken
    assert cli.main([*RACE, "--method", "draft-model", "--method", "prompt-lookup"]) == 1
    out, err = capsys.readouterr()
    assert "lane 2: prompt-lookup" in out and "ended by an error" in out
    assert "draft-model" in err and err.count("\n") == 1


def test_stopped_in_the_calibration_nothing_is_said(world, capsys, monkeypatch):
    from contextlib import contextmanager

    @contextmanager
    def stopped():
        request = running.StopRequest()
        request.asked = True
        yield request

    monkeypatch.setattr(running, "stop_on_signals", stopped)
    assert cli.main([*RACE, "--method", "draft-model"]) == 130
    out, err = capsys.readouterr()
    assert out == "" and err.strip() == "specview: stopped."


def test_model_text_in_a_lanes_name_cannot_drive_the_terminal(world, capsys):
    assert cli.main([*RACE, "--lane", "draft-model,name=\x1b[31mred"]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.real_model
@pytest.mark.parametrize("engine", ["transformers", "llama.cpp"])
def test_the_bundled_pair_is_explained_in_both_engines(capsys, engine, loaded_once):
    flags = ["--engine", engine, "--workload", "repeat", "--method", "draft-model", "--k", "2", "--max-tokens", "12"]
    assert cli.main(["explain", *flags, "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [int(rows) for rows in document["calibrated_pass_s"]] == list(range(1, 10))
    assert all(seconds > 0 for seconds in document["calibrated_pass_s"].values())
    lane = document["lanes"][1]
    told = lane["explanation"]
    assert told["shape"] == "chain" and told["k"] == 2 and told["plain_source"] == "plain lane"
    fall = told["waterfall"]
    assert 1 + sum(step["change"] for step in fall["steps"][1:-1]) == pytest.approx(told["measured_speedup"], rel=1e-4)
    assert [one["name"] for one in told["predictions"]] == ["c alone", "c and v(k)", "c, v(k) and other time", "measured"]
    assert [point["k"] for point in told["lengths"]] == list(range(9))
    assert lane["details"]["entropy_known"] == lane["metrics"]["judged"] > 0
