"""A set of prompts: every one a race, spread by request and by workload, and its files; `compare --prompts`."""

from __future__ import annotations

import csv
import io
import json
import math
import signal
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specview import cli
from specview.decoding.sampling import SamplingParams
from specview.errors import SpecviewError
from specview.experiments import prompt_set as sets
from specview.experiments.prompt_set import (
    ALL,
    prompt_set_document,
    prompt_set_report,
    run_prompt_set,
    spread_of,
)
from specview.experiments.runner import SeriesProgress
from specview.files.reader import read_trace
from specview.files.report import report_markdown
from specview.library.library import RunLibrary
from specview.racing.compare import compare
from specview.racing.pool import ModelPool
from specview.racing.workloads import Prompt, Workload
from specview.settings.events import LaneEnded, LaneRound, RaceStarted
from specview.settings.run import BUNDLED, LaneSettings, RunSettings
from tests.racing.world import DRAFTED, LOOKUP, World, of_kind

PROMPTS = Workload(
    "mine.jsonl",
    (
        Prompt("bcdbcdbcd", name="first", workload="copy"),
        Prompt("abcde", workload="talk"),
        Prompt("bbbcccbbb", workload="copy"),
        Prompt("edcba", name="last", workload="talk"),
    ),
    "0123",
)


@pytest.fixture
def world(monkeypatch) -> World:
    return World(monkeypatch)


def settings_of(*lanes: LaneSettings, **options) -> RunSettings:
    options = {"prompt": "b", "max_tokens": 20, "chat": False, "observe": "off", **options}
    return RunSettings(lanes=(LaneSettings(), *(lanes or (DRAFTED, LOOKUP))), **options)


def run(world, prompts=PROMPTS, repeats=1, **options):
    return run_prompt_set(settings_of(), prompts, repeats, clock=world.clock, **options)


@given(st.lists(st.one_of(st.none(), st.floats(-1e6, 1e6)), max_size=30))
def test_the_spread_is_numpys_over_what_is_there(values):
    known = [value for value in values if value is not None]
    spread = spread_of(values)
    if not known:
        assert spread is None
        return
    expected = np.percentile(known, [0, 25, 50, 75, 100])
    found = [spread.least, spread.quartile_1, spread.median, spread.quartile_3, spread.greatest]
    assert found == pytest.approx(list(expected), rel=1e-9, abs=1e-9)
    assert spread.count == len(known)


def test_every_prompt_is_a_race_like_one_run_alone(world):
    result = run(world)
    assert (result.end, result.prompts, len(result.requests)) == ("done", 4, 4)
    assert result.lane_names == ("plain", "draft-model", "prompt-lookup")
    for one, prompt in zip(result.requests, PROMPTS.prompts, strict=True):
        alone = compare(settings_of(prompt=prompt.text), clock=world.clock)
        assert one.prompt_tokens == len(prompt.text)
        assert one.settings.prompt == prompt.text
        assert not one.error
        for lane, other in zip(one.lanes, alone.lanes, strict=True):
            assert lane.speedup == other.speedup
            assert lane.metrics.emitted == other.metrics.emitted
            assert lane.metrics.acceptance_rate == other.metrics.acceptance_rate
            assert lane.metrics.decode_tokens_per_s == pytest.approx(other.metrics.decode_tokens_per_s)
    assert world.loads.count(("target", BUNDLED)) == 1 + len(PROMPTS.prompts), "one load for the set, one for each race alone"


def over_all(ratios):
    """All tokens a second of these lanes over all of plain's."""
    every = [one.as_dict() for one in ratios]
    tokens, plain_tokens, seconds, plain_seconds = (sum(one[key] for one in every) for key in ("tokens", "plain_tokens", "seconds", "plain_seconds"))
    return tokens / seconds / (plain_tokens / plain_seconds)


def test_groups_hold_their_own_requests_and_pooled_figures_count_tokens(world):
    result = run(world)
    groups = {(group.workload, group.lane): group for group in result.summary()}
    assert list(groups) == [(name, lane) for name in ("copy", "talk", ALL) for lane in ("draft-model", "prompt-lookup")]
    for (name, lane), group in groups.items():
        own = [one for one in result.requests if name in (ALL, one.workload)]
        index = result.lane_names.index(lane)
        speeds = {one.number: one.lanes[index].speedup.value for one in own}
        assert group.requests == len(own) == group.speedup.count
        assert group.speedup.median == pytest.approx(float(np.median(list(speeds.values()))))
        assert (group.slowest, group.fastest) == (min(speeds, key=speeds.get), max(speeds, key=speeds.get))
        assert group.slower == sum(speed < 1 for speed in speeds.values())
        metrics = [one.lanes[index].metrics for one in own]
        judged = sum(one.judged for one in metrics)
        assert group.pooled_acceptance == (sum(one.accepted for one in metrics) / judged if judged else None)
        pairs = [one.lanes[index].speedup for one in own]
        assert group.pooled_speedup == pytest.approx(over_all(pairs))


def test_the_slowest_and_the_fastest_are_named(world):
    one = replace(PROMPTS, prompts=PROMPTS.prompts[::2])
    assert {group.workload for group in run(world, one).summary()} == {"copy"}, "one group needs no total"
    result = run(world)
    for lane, (slowest, fastest) in result.notable().items():
        index = result.lane_names.index(lane)
        speeds = [one.lanes[index].speedup.value for one in result.requests]
        assert slowest.lanes[index].speedup.value == min(speeds)
        assert fastest.lanes[index].speedup.value == max(speeds)


def test_repeats_go_round_the_set_and_fold_to_medians(world):
    seen: list = []
    costs = iter([1.0] * 4 + [2.0] * 4 + [1.5] * 4)

    def on_event(event, part):
        if isinstance(event, RaceStarted):
            seen.append(event.prompt_text)
            world.engines["target", BUNDLED].pass_cost = next(costs)

    told: list = []
    result = run(world, repeats=3, on_event=on_event, on_news=told.append)
    texts = [prompt.text for prompt in PROMPTS.prompts]
    assert seen == texts * 3
    progress = [one for one in told if isinstance(one, SeriesProgress)]
    assert len(told) - len(progress) == 12 and progress[-1].done == progress[-1].total == 12 and progress[-1].left_s == 0
    fractions = [one.fraction for one in progress]
    assert fractions == sorted(fractions) and len(fractions) > 50
    assert progress[0].text == "Request 1 of 4, repeat 1 of 3"
    for one in result.requests:
        assert len(one.lanes[0].runs) == 3
        # the middle of passes of 1, 2 and 1.5 s, and 0.125 s for the row
        assert one.lanes[0].metrics.decode_tokens_per_s == pytest.approx(1 / 1.625)
        assert sorted(ratio.value for ratio in one.lanes[1].ratios)[1] == one.lanes[1].speedup.value


def test_pooled_figures_of_repeats_are_over_all_their_tokens(world):
    """Sampled repeats differ: the medians' counts are no sums."""
    prompts = replace(PROMPTS, prompts=PROMPTS.prompts[:1])
    sampled = replace(settings_of(DRAFTED), sampling=SamplingParams(temperature=1.0, seed=5))
    races: list = []

    def on_event(event, part):
        if isinstance(event, RaceStarted):
            races.append({})
            world.engines["target", BUNDLED].pass_cost = float(len(races))
        elif isinstance(event, LaneEnded):
            races[-1][event.lane] = event

    result = run_prompt_set(sampled, prompts, 3, clock=world.clock, on_event=on_event)
    (group,) = result.summary()
    own, ratios = [race[1].metrics for race in races], [race[1].speedup for race in races]
    assert len(own) == 3 and len({one.acceptance_rate for one in own}) == 3
    assert group.pooled_acceptance == sum(one.accepted for one in own) / sum(one.judged for one in own)
    assert group.pooled_speedup == pytest.approx(over_all(ratios))


def test_a_repeat_in_which_a_lane_failed_is_told_and_is_in_no_figure(world):
    whole = run(world)

    def on_event(event, part):
        if isinstance(event, RaceStarted):
            races.append(event)
            draft = world.engines["draft", BUNDLED]
            draft.fail_after = draft.forwards + 4 if len(races) == 6 else None  # request 2 in the second round

    races: list = []
    result = run(world, repeats=2, on_event=on_event)
    for one, other in zip(result.requests, whole.requests, strict=True):
        assert one.lanes[1].metrics == other.lanes[1].metrics and not one.error
    troubles = [one.lanes[1].error for one in result.requests]
    assert [bool(trouble) for trouble in troubles] == [False, True, False, False]
    assert troubles[1].startswith("repeat 2 of 2 failed and is in no figure: ") and "fell off" in troubles[1]
    assert [len(one.lanes[1].runs) for one in result.requests] == [2, 1, 2, 2]


def test_what_cannot_run_is_one_line_and_the_rest_go_on(monkeypatch):
    world = World(monkeypatch, context_length=64)
    long = Prompt("bcd" * 40, name="long", workload="copy")
    prompts = replace(PROMPTS, prompts=(PROMPTS.prompts[0], long, *PROMPTS.prompts[1:]))
    result = run(world, prompts, repeats=2)
    assert [bool(one.error) for one in result.requests] == [False, True, False, False, False]
    (failure,) = result.failures
    assert "120 tokens" in failure.error and "\n" not in failure.error
    groups = {(group.workload, group.lane): group for group in result.summary()}
    assert (groups["copy", "draft-model"].requests, groups["copy", "draft-model"].failed) == (2, 1)
    rows = list(csv.DictReader(io.StringIO(prompt_set_report(result).csv)))
    assert [row["error"] for row in rows if row["request"] == "2"] == [failure.error]
    assert len(rows) == 4 * 3 + 1


def test_a_lane_that_fails_leaves_the_others(world):
    def broken():
        raise SpecviewError("there is no such draft.")

    world.models["draft", BUNDLED] = broken
    result = run(world)
    for one in result.requests:
        assert not one.error
        assert one.lanes[1].error == "there is no such draft." and one.lanes[1].metrics is None
        assert one.lanes[2].speedup is not None
    groups = {(group.workload, group.lane): group for group in result.summary()}
    assert (groups[ALL, "draft-model"].requests, groups[ALL, "draft-model"].failed) == (0, 4)
    assert groups[ALL, "draft-model"].speedup is None
    assert list(result.notable()) == ["prompt-lookup"]


@pytest.mark.parametrize("races", [0, 1, 2])
def test_a_stop_keeps_what_is_done(world, races):
    events: list = []

    def stop():
        started = len(of_kind(events, RaceStarted))
        return started > races and len(of_kind(events, LaneRound)) > 30 * races

    result = run(world, on_event=lambda event, part: events.append(event), should_stop=stop)
    assert result.end == "stopped"
    finished = [one for one in result.requests if all(lane.end != "stopped" for lane in one.lanes)]
    assert len(finished) == races
    assert len(result.requests) <= races + 1
    document = prompt_set_document(result)
    assert document["set"]["end"] == "stopped" and document["set"]["prompts"] == 4


def test_a_target_that_does_not_load_fails_the_set_and_a_pool_of_the_callers_stays_open(world):
    pool = ModelPool()
    run(world, models=pool)
    assert not world.engines["target", BUNDLED].closed and not pool.held
    pool.close()
    assert world.engines["target", BUNDLED].closed

    def broken():
        raise SpecviewError("there is no such model.")

    world.models["target", BUNDLED] = broken
    with pytest.raises(SpecviewError, match="no such model"):
        run(world)


def test_the_document_holds_every_figure(world):
    result = run(world)
    text = report_markdown(prompt_set_report(result))
    assert text.count("\n| workload |") == 1 and text.count("\n| request |") == 1 and "each request counts once" in text
    document = json.loads(json.dumps(prompt_set_document(result), allow_nan=False))
    assert document["set"]["weighting"] == sets.SPREAD_WORDS
    assert [one["name"] for one in document["requests"]] == ["first", "abcde", "bbbcccbbb", "last"]
    assert [one["workload"] for one in document["requests"]] == ["copy", "talk", "copy", "talk"]
    assert document["run"]["target_model_name"] == "fake-target"
    assert [lane["method"] for lane in document["lanes"]] == ["plain", "draft-model", "prompt-lookup"]
    for one, request in zip(result.requests, document["requests"], strict=True):
        for lane, told in zip(one.lanes, request["lanes"], strict=True):
            assert told["speedup"] == (None if lane.speedup is None else pytest.approx(lane.speedup.value, rel=1e-6))
            assert told["metrics"]["emitted"] == lane.metrics.emitted
    whole = [row for row in document["summary"] if row["workload"] == ALL]
    assert {row["lane"] for row in whole} == {"draft-model", "prompt-lookup"}
    for row in whole:
        assert row["speedup_least"] <= row["speedup_quartile_1"] <= row["speedup_median"] <= row["speedup_greatest"]
        assert math.isfinite(row["pooled_speedup"])


# -- the command -------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.jsonl"
    lines = [{"prompt": one.text, "name": one.name, "workload": one.workload} for one in PROMPTS.prompts]
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    return path


ARGUMENTS = ["--raw", "--max-tokens", "12", "--lane", "draft-model,k=3", "--lane", "prompt-lookup,k=4"]


def test_compare_prompts_prints_and_writes_tables(world, capsys, file, tmp_path):
    out_csv, out_md = tmp_path / "r.csv", tmp_path / "r.md"
    words = ["compare", "--prompts", str(file), *ARGUMENTS]
    code = cli.main([*words, "--csv", str(out_csv), "--markdown", str(out_md)])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert "draft-model: slowest request " in out and "each request counts once" in out
    assert len(list(csv.DictReader(out_csv.open(encoding="utf-8")))) == 12
    assert "mine.jsonl: 4 of 4 requests" in out_md.read_text(encoding="utf-8")
    assert cli.main([*words, "--json", "-"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)  # and nothing else
    assert document["set"]["name"] == "mine.jsonl" and len(document["requests"]) == 4 and err == ""


def test_every_race_is_kept_in_the_runs_library(world, capsys, file):
    turns = [{"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}]
    file.write_text(json.dumps({"prompt": "bcdb"}) + "\n" + json.dumps({"messages": turns}) + "\n")
    flags = ["compare", "--prompts", str(file), *ARGUMENTS]
    assert cli.main(flags) == 0
    library = RunLibrary()
    kept = {entry.part: read_trace(entry.path) for entry in library.scan()}
    assert sorted(kept) == ["request 1 of 2", "request 2 of 2"]
    first, second = kept["request 1 of 2"], kept["request 2 of 2"]
    assert (first.prompt_text, first.run["source"], first.run.get("history")) == ("bcdb", "command", None)
    assert (second.prompt_text, second.run["history"]) == ("d", turns[:2])
    assert [record.name for record in first.records] == ["plain", "draft-model", "prompt-lookup"]
    assert cli.main([*flags, "--repeats", "2"]) == 0
    parts = {f"request {number} of 2, repeat {repeat} of 2" for number in (1, 2) for repeat in (1, 2)}
    assert {entry.part for entry in library.scan()} == {*kept, *parts}


def test_a_request_that_does_not_run_shifts_no_number(monkeypatch, capsys, file):
    World(monkeypatch, context_length=32)
    file.write_text("\n".join(json.dumps({"prompt": text}) for text in ("b" * 50, "bcdb", "dcb")))
    assert cli.main(["compare", "--prompts", str(file), *ARGUMENTS, "--repeats", "2"]) == 1
    found = {entry.part for entry in RunLibrary().scan()}
    assert found == {f"request {number} of 3, repeat {repeat} of 2" for number in (2, 3) for repeat in (1, 2)}


@pytest.mark.parametrize("flags", [["--no-keep"], ["--observe", "off"]])
def test_a_set_that_is_not_to_be_kept_is_not(world, capsys, file, flags):
    assert cli.main(["compare", "--prompts", str(file), *ARGUMENTS, *flags]) == 0
    assert not RunLibrary().folder.exists()


def test_requests_that_fail_are_named_and_the_exit_code_says_so(monkeypatch, capsys, file):
    World(monkeypatch, context_length=32)
    file.write_text(file.read_text() + "\n" + json.dumps({"prompt": "b" * 50, "name": "long"}))
    assert cli.main(["compare", "--prompts", str(file), *ARGUMENTS]) == 1
    out, err = capsys.readouterr()
    assert "request 5 (long): the prompt has 50 tokens" in out
    assert "1 of 5 requests did not run. The first, 5: the prompt has 50 tokens" in err
    file.write_text(json.dumps({"prompt": "b" * 50, "name": "long"}))
    assert cli.main(["compare", "--prompts", str(file), *ARGUMENTS]) == 1
    assert "no request ran. The first: the prompt has 50 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(("repeats", "race", "words"), [(1, 2, "Unexpected"), (2, 6, "repeat 2 of 2 failed")])
def test_a_lane_that_fails_in_one_request_fails_the_command(world, capsys, file, monkeypatch, repeats, race, words):
    real, races = sets.run_prompt_set, []

    def failing(*given, on_event, **options):
        def take(event, part):
            if isinstance(event, RaceStarted):
                races.append(event)
                draft = world.engines["draft", BUNDLED]
                draft.fail_after = draft.forwards + 4 if len(races) == race else None
            on_event(event, part)

        return real(*given, on_event=take, **options)

    monkeypatch.setattr(sets, "run_prompt_set", failing)
    assert cli.main(["compare", "--prompts", str(file), *ARGUMENTS, "--repeats", str(repeats)]) == 1
    out, err = capsys.readouterr()
    assert f"request 2 (abcde), lane draft-model: {words}" in out
    line = err.splitlines()[-1]
    assert line.startswith(f"specview: request 2, lane draft-model: {words}")


def test_ctrl_c_keeps_what_there_is(world, capsys, file, monkeypatch):
    made = world.load
    rounds = [0]

    def load(*given, **options):
        engine = made(*given, **options)
        spend = engine.spend

        def press(seconds):
            rounds[0] += 1
            if rounds[0] == 120:
                signal.raise_signal(signal.SIGINT)
            spend(seconds)

        engine.spend = press
        return engine

    monkeypatch.setattr("specview.racing.pool.load_engine", load)
    assert cli.main(["compare", "--prompts", str(file), *ARGUMENTS]) == 130
    assert ", stopped" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["compare", "--trace", "x.jsonl"], "--trace holds one race"),
        (["compare", "--prompt", "b"], "not allowed with argument"),
        (["compare", "--workload", "chat"], "not allowed with argument"),
        (["run"], "this command takes one prompt, not a set. specview compare and tune take --prompts."),
        (["scan"], "this command takes one prompt"),
    ],
)
def test_flags_that_make_no_sense_are_one_line(world, capsys, file, flags, line):
    assert cli.main([flags[0], "--prompts", str(file), *flags[1:]]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and line in err
    assert not world.loads


def test_a_bad_line_is_told_with_its_number(world, capsys, file):
    file.write_text('{"prompt": "b"}\n{"prompt": 3}\n')
    assert cli.main(["compare", "--prompts", str(file)]) == 2
    assert "mine.jsonl, line 2: prompt is no text" in capsys.readouterr().err
    assert cli.main(["compare", "--prompts", str(file.parent / "none.jsonl")]) == 1
    assert "cannot read the prompts" in capsys.readouterr().err
