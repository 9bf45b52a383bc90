"""`specview theory`: the tables for people and as a document, a trace's lanes, bad input."""

from __future__ import annotations

import json
import os

import pytest

from specview import cli
from specview.decoding import theory
from specview.lab.theory_points import lane_passes, lane_point
from tests.decoding.test_theory import TABLES
from tests.lab.batch_fake import write_lanes
from tests.lab.test_explain import PLAIN_S, lane_of, make_round, plain_lane
from tests.typed import command_line

run = command_line("theory")


def test_without_flags_the_literatures_tables(capsys):
    code, out, err = run(capsys)
    assert (code, err) == (0, "")
    for c, rows in TABLES.items():
        part = out[out.index(f"speedup at c {c:g}") :]
        lines = [line.split() for line in part.splitlines()[2:7]]
        for line, (alpha, row) in zip(lines, rows.items(), strict=True):
            assert line[:-1] == [f"{alpha:g}", *(f"{value:.2f}" for value in row)]
            assert int(line[-1]) == theory.best_k(alpha, c)
    assert "i.i.d." in out and "2211.17192" in out


def test_the_document_and_its_verify_cost(capsys):
    code, out, _ = run(capsys, "--alpha", "0.62", "--k", "1,4", "--c", "0.1", "--v-per-row", "0.2", "--json", "-")
    document = json.loads(out)
    assert code == 0 and document["verify_cost"]["v"] == pytest.approx([1.2, 1.8])
    (one,) = document["tables"]
    expected = [theory.speedup(0.62, k, 0.1, 1 + 0.2 * k) for k in (1, 4)]
    assert one["speedup"][0] == pytest.approx(expected, rel=1e-6)
    assert one["best_k"] == [theory.best_k(0.62, 0.1, theory.line_v(0.2))]
    assert one["break_even_alpha"][0] == pytest.approx(0.3, abs=1e-6)  # 1 + alpha = 0.1 + 1.2
    assert document["rule_of_thumb_error"][0][0] == pytest.approx(0, abs=1e-9)
    assert run(capsys, "--c", "5", "--k", "1")[1].count("never") == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full")
@pytest.mark.parametrize("command", [("theory",), ("doctor",), ("check", "bundled", "bundled")])
def test_a_full_disk_does_not_take_what_a_command_found(capsys, command):
    """So it was with what tune and concurrency had measured for minutes."""
    code = cli.main([*command])
    plain = capsys.readouterr()
    full = cli.main([*command, "--json", "/dev/full"])
    out, err = capsys.readouterr()
    assert (code, full) == (0, 1)
    assert len(out.splitlines()) == len(plain.out.splitlines())
    assert err.count("\n") == 1 and "cannot write the JSON document '/dev/full': no space left" in err


def test_ranges_of_draft_lengths(capsys):
    for text in ("1..4", "1-4", "1,2,3,4", "1-2,3..4"):
        assert json.loads(run(capsys, "--k", text, "--json", "-")[1])["k"] == [1, 2, 3, 4]


def test_a_traces_lanes_stand_beside_what_predicts_them(tmp_path, capsys):
    path = write_lanes(tmp_path / "trace.jsonl", {
        "plain": ({"method": "plain"}, plain_lane(400)),
        "drafting": ({"method": "draft-model"}, lane_of(0.7, 3, 0.1, 1.5, count=2000)),
    })  # fmt: skip
    code, out, _ = run(capsys, "--trace", str(path), "--json", "-")
    document = json.loads(out)
    (lane,) = document["lanes"]
    assert code == 0 and lane["name"] == "drafting"
    assert lane["alpha"] == pytest.approx(0.7, abs=0.03) and lane["k"] == 3
    assert lane["c"] == pytest.approx(0.1, rel=0.01) and lane["v"] == pytest.approx(1.5, rel=0.01)
    assert lane["predicted"] == pytest.approx(theory.speedup(lane["alpha"], 3, lane["c"], lane["v"]), rel=1e-6)
    assert lane["measured"] == pytest.approx(lane["predicted"], rel=0.05)
    assert lane["predicted_by_c"] > lane["predicted"]
    assert document["verify_cost"]["v"][2] == pytest.approx(1.5, rel=0.01)  # as measured there
    assert "drafting" in run(capsys, "--trace", str(path))[1]
    # v(k) is known up to k 3: a longer best k would rest on nothing that was measured
    found = json.loads(run(capsys, "--trace", str(path), "--alpha", "1", "--k", "1,2", "--json", "-")[1])
    assert [one["best_k"] for one in found["tables"]] == [[3], [3]] and found["tables"][0]["best_k_of"] == [0, 3]


def test_lanes_that_the_closed_forms_do_not_speak_of_have_no_point():
    assert lane_point("tree", [make_round(0, 0.0, 3, 1, 0.1, 0.1, 0.0, parents=(-1, -1, 0))]) is None
    assert lane_point("idle", plain_lane()) is None
    alone = lane_point("alone", lane_of(0.7, 3, 0.1, 1.5, count=20))
    assert alone is not None and alone.c is None and alone.predicted is None and alone.measured is None
    assert lane_passes([lane_of(0.7, 3, 0.1, 1.5, count=20)], ()) is None
    passes = lane_passes([lane_of(0.7, 3, 0.1, 1.5, count=20)], plain_lane())
    assert passes == {1: pytest.approx(PLAIN_S), 4: pytest.approx(1.5 * PLAIN_S)}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--alpha", "1.2"], "alpha is 1.2"),
        (["--alpha", ""], "--alpha is empty"),
        (["--alpha", "nan"], "'nan' is not a number"),
        (["--k", "0"], "k is 0"),
        (["--k", "4..1"], "write the least first"),
        (["--k", "1.5"], "'1.5' is not a whole number"),
        (["--c", "-1"], "c is -1"),
        (["--v", "0"], "v is 0"),
        (["--v-per-row", "-1"], "v-per-row is -1"),
        (["--v", "1", "--v-per-row", "1"], "not allowed with"),
        (["--alpha", ",".join(["0.5"] * 700), "--k", "1,2,3,4,5,6,7,8"], "11,200 cells"),
        (["--trace", "missing.jsonl"], "there is no file 'missing.jsonl'"),
    ],
)
def test_bad_input_is_one_line(capsys, given, says):
    code, out, err = run(capsys, *given)
    assert code in (1, 2) and out == ""
    assert says in err and err.count("\n") == 1
