"""A recorded run is what the live one was: figures as recorded, else folded; lanes of several runs beside one another."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from specview.decoding.metrics import fold
from specview.decoding.sampling import SamplingParams
from specview.decoding.speedup import speedup
from specview.files.reader import Trace, read_trace
from specview.library.beside import beside_document, difference, lay_beside
from specview.library.replay import events, lane_end, plain_step_s, recorded_metrics, trace_document
from specview.settings.events import LaneEnded, LaneRound, RaceEnded
from specview.settings.run import LaneSettings
from tests.library.recorded import FACTS, SETTINGS, write_trace


def trace_of(path: Path, **options: object) -> Trace:
    return read_trace(write_trace(path / "a.jsonl", **options))


def without_ends(path: Path) -> Path:
    """The same trace as its program left it when it died."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    cut = path.with_name("cut.jsonl")
    cut.write_text("".join(line for line in lines if '"end": ' not in line[:30]), encoding="utf-8")
    return cut


def test_figures_are_those_of_the_end_lines(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.jsonl")
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    end = json.loads(lines[-1])
    measured = end["speedup"]
    end["metrics"]["decode_tokens_per_s"], end["speedup"], end["equal_to_plain"]["first_difference"] = 123.0, 9.5, 3
    path.write_text("\n".join([*lines[:-1], json.dumps(end)]) + "\n", encoding="utf-8")
    lane = lane_end(read_trace(path), 2)
    assert lane is not None and lane.metrics.decode_tokens_per_s == 123.0
    assert lane.speedup is not None and lane.speedup.value == pytest.approx(measured, rel=1e-5)  # what its rounds say
    assert lane.equality is not None and not lane.equality.equal and lane.equality.first_difference == 3
    document = trace_document(read_trace(path))["lanes"][2]
    assert document["metrics"]["decode_tokens_per_s"] == 123.0 and document["speedup"] == pytest.approx(measured, rel=1e-5)


def test_a_crashed_runs_figures_are_folded_from_its_rounds(tmp_path: Path) -> None:
    whole, crashed = read_trace(write_trace(tmp_path / "a.jsonl")), read_trace(without_ends(tmp_path / "a.jsonl"))
    assert [record.end for record in crashed.records] == [None] * 3
    step_s = plain_step_s(crashed)
    told = list(events(crashed))
    assert not any(isinstance(event, LaneEnded) for event in told)
    assert told[-1] == RaceEnded(0, "stopped") and sum(isinstance(event, LaneRound) for event in told) == 36
    for index, (lane, full) in enumerate(zip(trace_document(crashed)["lanes"], trace_document(whole)["lanes"], strict=True)):
        record = crashed.records[index]
        expected = fold(record.rounds, record.prefill_s, step_s if index else None)
        alpha = expected.acceptance_rate
        assert lane["metrics"]["acceptance_rate"] == (None if alpha is None else pytest.approx(alpha, rel=1e-6))
        assert lane["metrics"]["decode_tokens_per_s"] == pytest.approx(full["metrics"]["decode_tokens_per_s"], rel=1e-5)
        assert (lane["speedup"] is None) == (index == 0)
        if index:
            assert lane["speedup"] == pytest.approx(speedup(record.rounds, crashed.records[0].rounds).value, rel=1e-6)


def test_an_older_file_without_speedups_has_them_from_its_rounds(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.jsonl")
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        value = json.loads(line)
        if "end" in value:
            value = {key: value[key] for key in ("lane", "end", "metrics")}
        lines.append(json.dumps(value))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    trace = read_trace(path)
    lane = lane_end(trace, 1)
    assert lane is not None and lane.speedup == speedup(trace.records[1].rounds, trace.records[0].rounds)
    ours, theirs = trace.records[1].token_ids, trace.records[0].token_ids
    first = next(place for place, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    assert lane.equality is not None and lane.equality.first_difference == first and lane.equality.kernel_margin is None


def test_figures_that_are_no_figures_are_folded_anew() -> None:
    good = {"rounds": 1, "proposed": 0, "judged": 0, "accepted": 0, "ignored": 0, "emitted": 1, "position_acceptance": [],
            "position_acceptance_conditional": [], "decode_tokens_per_s": 2.5}  # fmt: skip
    names = ("acceptance_rate", "draft_acceptance", "tokens_per_target_pass", "mean_accepted_length", "total_s", "ttft_s",
             "itl_p50_s", "itl_p95_s", "tpot_s", "draft_share", "verify_share", "other_share")  # fmt: skip
    whole = good | dict.fromkeys(names)
    metrics = recorded_metrics(whole)
    assert metrics is not None and metrics.decode_tokens_per_s == 2.5
    for change in ({"rounds": -1}, {"rounds": 1.5}, {"rounds": True}, {"ttft_s": "1"}, {"ttft_s": float("nan")},
                   {"position_acceptance": "x"}, {"position_acceptance": [[]]}, {"by_drafter": 3, "judged": None}):  # fmt: skip
        assert recorded_metrics(whole | change) is None
    assert recorded_metrics(None) is None and recorded_metrics({}) is None
    assert recorded_metrics({key: value for key, value in whole.items() if key != "tpot_s"}) is None
    member = {"rounds": 2, "share": None, "proposed": 4, "judged": 3, "accepted": 1, "acceptance_rate": 0.3,
              "draft_acceptance": 0.25, "draft_s": 0.1}  # fmt: skip
    for change, kept in (({}, True), ({"share": "x"}, False), ({"rounds": None}, False), ({"draft_s": float("inf")}, False)):
        metrics = recorded_metrics(whole | {"by_drafter": {"a": member | change, "b": 3}})
        assert metrics is not None and metrics.by_drafter == ({"a": member} if kept else {})


# -- beside one another ----------------------------------------------------------------------------------------


def other(tmp_path: Path, **options: object) -> Trace:
    (tmp_path / "other").mkdir(exist_ok=True)
    return trace_of(tmp_path / "other", **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"seed": 5}, ""),
        ({"settings": replace(SETTINGS, max_tokens=32)}, ""),
        ({"prompt_ids": (1, 2)}, "other prompt"),
        ({"prompt_ids": (1, 9690, 198, 7), "facts": FACTS | {"branch": {"token_ids": [7]}}}, "other beginning"),
        ({"facts": FACTS | {"branch": {"token_ids": [198]}}}, "other prompt"),
        ({"facts": {**FACTS, "target_source_sha256": "00" * 32}}, "other target"),
        ({"facts": {**FACTS, "target_source_sha256": None, "target_sha256": "00" * 32}}, "other target"),
        ({"settings": replace(SETTINGS, sampling=SamplingParams(0.7))}, "other temperature"),
        ({"settings": replace(SETTINGS, sampling=SamplingParams(top_k=5))}, "other top-k"),
        ({"settings": replace(SETTINGS, check_mode=True)}, "other check mode"),
        ({"facts": {**FACTS, "engine": "llama.cpp"}}, "other engine"),
        ({"facts": {**FACTS, "device": "cuda"}}, "other device"),
        ({"facts": {**FACTS, "device_name": "another", "cpu": "another"}}, "other machine"),
        ({"facts": {**FACTS, "threads": 8}}, "other thread count"),
        ({"facts": {**FACTS, "target_dtype": "bfloat16"}}, "other dtype"),
    ],
)  # fmt: skip
def test_what_keeps_runs_from_being_compared_is_named(tmp_path: Path, options: dict, says: str) -> None:
    first, second = trace_of(tmp_path), other(tmp_path, **options)
    assert difference(first, second) == says and difference(first, first) == ""
    lanes = lay_beside([("1", first, None), ("2", second, None)])
    assert lanes[0].record is first.records[0]
    document = beside_document(lanes)
    base = first.records[0].rounds
    for one, lane in zip(lanes, document["lanes"], strict=True):
        if one.run == 0:
            continue
        assert lane.get("not_comparable", "") == says
        expected = None if says else speedup(one.record.rounds, base).value
        assert lane["speedup"] == (None if expected is None else pytest.approx(expected, rel=1e-6))
    # the other run's plain lane is left out where it is the same baseline once more
    assert [one.name for one in lanes if one.run == 1][0] == ("draft-model · 2" if not says else "plain · 2")


def test_lanes_may_be_picked_and_the_baseline_is_always_there(tmp_path: Path) -> None:
    first, second = trace_of(tmp_path), other(tmp_path, seed=3)
    lanes = lay_beside([("1", first, (2,)), ("2", second, (0, 2, 9))])
    assert [(one.run, one.lane) for one in lanes] == [(0, 0), (0, 2), (1, 0), (1, 2)]
    assert lay_beside([("1", first, None), ("2", second, None)], 3)[-1].lane == 2
    assert lay_beside([]) == []
    twice = lay_beside([("1", first, None), ("1", first, None)])
    assert len({one.name for one in twice}) == len(twice)


def test_without_a_plain_lane_there_is_no_baseline(tmp_path: Path) -> None:
    single = replace(SETTINGS, lanes=(LaneSettings("draft-model", k=2),), baseline=False)
    first, second = trace_of(tmp_path, settings=single), other(tmp_path, settings=single, seed=4)
    document = beside_document(lay_beside([("1", first, None), ("2", second, None)]))
    assert [lane["speedup"] for lane in document["lanes"]] == [None, None]
    assert trace_document(first)["lanes"][0]["equal_to_plain"] is None
