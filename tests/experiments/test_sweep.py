"""Sweeps: the grid, the order of its races, stop and resume, the file, and what is folded out of them."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding import theory
from specview.decoding.sampling import SamplingParams
from specview.errors import SpecviewError, Stopped, UsageError
from specview.experiments import sweep as sweep_module
from specview.experiments.runner import Pace, SeriesProgress, duration
from specview.experiments.sweep import Estimate, estimate, grid_words, run_sweep
from specview.experiments.sweep_curves import CellRun, SeriesKey, pooled_counts
from specview.experiments.sweep_file import SweepFile, read_sweep
from specview.experiments.sweep_grid import (
    MAX_RUNS,
    Grid,
    GridPrompt,
    difference,
    grid_prompts,
    parse_ks,
    parse_temperatures,
    prompts_of_set,
)
from specview.experiments.sweep_results import COLUMNS, SweepResults
from specview.files.tables import table_csv, table_json, table_markdown
from specview.racing import workloads
from specview.racing.pool import ModelPool
from specview.racing.race import Race
from specview.racing.resolve import checked_run
from specview.settings.events import RaceStarted
from specview.settings.run import BUNDLED, MAX_K, LaneSettings, RunSettings
from tests.racing.world import PROMPT, World

SETTINGS = RunSettings(max_tokens=24, chat=False)
PROMPTS = (GridPrompt("one", PROMPT), GridPrompt("two", "ddcba"))


def grid_of(*lanes: LaneSettings, ks=(1, 2, 3), temperatures=(0.0,), prompts=PROMPTS, repeats=2, **shared) -> Grid:
    lanes = lanes or (LaneSettings("draft-model"),)
    return Grid(replace(SETTINGS, **shared), lanes, tuple(ks), tuple(temperatures), tuple(prompts), repeats).checked()


@pytest.fixture
def world(monkeypatch) -> World:
    return World(monkeypatch)


def sweep(world, grid, path, *, should_stop=lambda: False, resume=False, pool=None):
    """Run a sweep on the fake clock; return its results and everything it told."""
    news = []
    own = pool or ModelPool()
    opened = SweepFile.resume(path, grid) if resume else SweepFile.begin(path, grid)
    with opened as file:
        try:
            results = run_sweep(file, own, news.append, should_stop, world.clock)
        finally:
            if pool is None:
                own.close()
    return results, news


# -- the grid ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (parse_ks, "1..8", tuple(range(1, 9))),
        (parse_ks, "1..16:5", (1, 6, 11, 16)),
        (parse_ks, "4, 1,2", (4, 1, 2)),
        (parse_ks, "2", (2,)),
        (parse_ks, "1..3,3,5", (1, 2, 3, 5)),
        (parse_ks, "1-3, 5", (1, 2, 3, 5)),
        (parse_temperatures, "0,0.7", (0.0, 0.7)),
        (parse_temperatures, "0..1:0.25", (0, 0.25, 0.5, 0.75, 1.0)),
        (parse_temperatures, "0..0.3:0.1", (0, 0.1, 0.2, 0.3)),
    ],
)
def test_values_are_read(read, text, expected):
    assert read(text) == expected


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (parse_ks, "", "grid is empty"),
        (parse_ks, " , ", "grid is empty"),
        (parse_ks, "8..1", "holds nothing"),
        (parse_ks, "1..8:0", "holds nothing"),
        (parse_ks, "0..3", "k is 0"),
        (parse_ks, f"1..{MAX_K + 1}", f"k is {MAX_K + 1}"),
        (parse_ks, "1..1000000000", "1,000,000,000 values"),
        (parse_ks, "nan", "whole numbers"),
        (parse_ks, "1.5", "whole numbers"),
        (parse_temperatures, "nan", "Use numbers"),
        (parse_temperatures, "0,inf", "Use numbers"),
        (parse_temperatures, "-1", "temperature is -1"),
        (parse_temperatures, "0..1", "names no step"),
        (parse_temperatures, "0..1:1e-9", "values"),
        (parse_temperatures, "", "grid is empty"),
    ],
)
def test_what_cannot_be_read_is_one_line(read, text, words):
    with pytest.raises(UsageError, match=words) as caught:
        read(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ks": ()}, "the grid is empty: no k"),
        ({"temperatures": ()}, "the grid is empty: no temperature"),
        ({"prompts": ()}, "the grid is empty: no prompt"),
        ({"lanes": ()}, "the grid is empty: no lane drafts"),
        ({"lanes": (LaneSettings(),)}, "the grid is empty: no lane drafts"),
        ({"lanes": (LaneSettings("no-such"),)}, "no method"),
        ({"repeats": 0}, "repeats is 0"),
        ({"ks": (0, 1)}, "k is 0"),
        ({"ks": (1, MAX_K + 1)}, "k is"),
        ({"temperatures": (-1.0,)}, "temperature is -1"),
        ({"temperatures": (math.nan,)}, "temperature is nan"),
        ({"lanes": (LaneSettings("draft-model", rule="greedy"),), "temperatures": (0.0, 0.5)}, "greedy"),
        ({"ks": tuple(range(1, 65)), "temperatures": tuple(i / 100 for i in range(100)), "repeats": 1000}, "races"),
    ],
)
def test_a_grid_that_cannot_run_is_one_line(change, words):
    base = {"lanes": (LaneSettings("draft-model"),), "ks": (1,), "temperatures": (0.0,), "prompts": PROMPTS, "repeats": 1}
    with pytest.raises(UsageError, match=words) as caught:
        Grid(settings=SETTINGS, **{**base, **change}).checked()
    assert "\n" not in str(caught.value)


@settings(max_examples=50, deadline=None)
@given(
    ks=st.sets(st.integers(1, 12), min_size=1, max_size=5),
    temperatures=st.sets(st.floats(0, 2), min_size=1, max_size=3),
    prompts=st.integers(1, 3),
    fixed=st.booleans(),
    repeats=st.integers(1, 4),
)
def test_the_cells_are_every_combination_once(ks, temperatures, prompts, fixed, repeats):
    lanes = (LaneSettings("draft-model"), LaneSettings("prompt-lookup", k=9 if fixed else None))
    grid = grid_of(*lanes, ks=ks, temperatures=temperatures, prompts=[GridPrompt(str(i), "b") for i in range(prompts)], repeats=repeats)
    cells = list(grid.cells())
    assert len(cells) == grid.cell_count
    assert grid.run_count == grid.cell_count * repeats
    assert [cell.number for cell in cells] == list(range(len(cells)))
    found = {(cell.lane, cell.k, cell.temperature, cell.prompt) for cell in cells}
    assert len(found) == len(cells)
    assert {k for lane, k, _, _ in found if lane == 0} == ks
    assert {k for lane, k, _, _ in found if lane == 1} == ({9} if fixed else ks)
    assert [cell.lane for cell in cells] == sorted(cell.lane for cell in cells), "a lane's weights are used in one go"


def test_a_huge_grid_is_counted_without_being_made():
    grid = Grid(SETTINGS, (LaneSettings("draft-model"),), tuple(range(1, 65)), tuple(i / 1e6 for i in range(1000)), PROMPTS, 1)
    assert grid.cell_count == 128_000 <= MAX_RUNS
    assert Estimate(24.0).seconds(grid) == pytest.approx(128_000 * 2)


@settings(max_examples=40, deadline=None)
@given(
    rule=st.sampled_from(["auto", "match"]),
    k=st.none() | st.integers(1, MAX_K),
    seed=st.integers(0, 2**40),
    top_p=st.floats(0.1, 1),
    text=st.text(st.characters(exclude_categories=("Cs",)), min_size=1),
)
def test_a_grid_survives_its_file(rule, k, seed, top_p, text):
    sampling = SamplingParams(seed=seed, top_p=round(top_p, 3))
    prompts = (GridPrompt("g", text, "system", "name", ({"role": "user", "content": "x"}, {"role": "assistant", "content": text})),)
    grid = grid_of(LaneSettings("prompt-lookup", rule=rule, k=k), prompts=prompts, sampling=sampling)
    again = Grid.from_json(json.loads(json.dumps(grid.to_json())))
    assert difference(again, grid) == ""
    assert list(again.cells()) == list(grid.cells())
    assert again.race(next(again.cells())) == grid.race(next(grid.cells()))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"max_tokens": 25}, "max_tokens was 24 and is 25"),
        ({"engine": "llama.cpp"}, "engine was 'transformers'"),
        ({"sampling": SamplingParams(seed=4)}, "seed was 0 and is 4"),
        ({"ks": (1, 2)}, "k were 1, 2, 3 and are 1, 2"),
        ({"temperatures": (0.5,)}, "the temperatures were 0 and are 0.5"),
        ({"repeats": 3}, "the repeats were 2 and are 3"),
        ({"prompts": PROMPTS[:1]}, "the prompts are others"),
    ],
)
def test_what_sets_two_grids_apart_is_said(other, words):
    assert words in difference(grid_of(**other), grid_of())
    assert difference(grid_of(LaneSettings("draft-model", rule="match")), grid_of()) == "the lanes are others"


def test_a_cell_s_race_is_plain_and_its_lane_on_its_prompt():
    grid = grid_of(LaneSettings("draft-model", name="mine"), temperatures=(0.0, 0.7), sampling=SamplingParams(seed=5, top_k=3))
    for cell in grid.cells():
        race = grid.race(cell, 3)
        assert [lane.method for lane in checked_run(race).lanes] == ["plain", "draft-model"]
        assert race.lanes[1].k == cell.k
        assert race.prompt == PROMPTS[cell.prompt].text
        assert race.sampling == SamplingParams(cell.temperature, 3, seed=race.sampling.seed)
        assert (race.sampling.seed == 5) == (cell.temperature == 0)


def test_prompts_of_workloads_and_files(tmp_path):
    bundled = grid_prompts(["story", "extract", "story"])
    assert [prompt.group for prompt in bundled] == ["story", "extract"]
    assert bundled[0].text == workloads.load("story").prompt
    assert all(prompt.bundled for prompt in bundled)
    with pytest.raises(UsageError, match="no workload 'poem'"):
        grid_prompts(["poem"])
    file = tmp_path / "set.jsonl"
    file.write_text('{"prompt": "a", "workload": "w"}\n{"prompt": "b", "name": "mine"}\n')
    assert [(prompt.group, prompt.name) for prompt in prompts_of_set(workloads.load_prompts_file(file))] == [
        ("w", "#1"), ("set.jsonl", "mine"),
    ]  # fmt: skip


# -- the races -----------------------------------------------------------------------------------


def test_repeats_go_round_and_models_are_loaded_once(world, tmp_path, monkeypatch):
    grid = grid_of(LaneSettings("draft-model"), LaneSettings("draft-model", draft="other", name="other"), repeats=3)
    order, started = [], []
    real, take = sweep_module._race, Pace.take
    monkeypatch.setattr(sweep_module, "_race", lambda runner, file, cell, repeat, *more: (
        order.append((repeat, cell.number)), real(runner, file, cell, repeat, *more))[1])  # fmt: skip
    monkeypatch.setattr(Pace, "take", lambda self, event: (
        started.append(event) if isinstance(event, RaceStarted) else None, take(self, event))[1])  # fmt: skip
    pool = ModelPool()
    results, _ = sweep(world, grid, tmp_path / "s.jsonl", pool=pool)
    assert order == [(repeat, cell) for repeat in range(3) for cell in range(grid.cell_count)]
    assert {event.lane_names for event in started} == {("plain", "draft-model"), ("plain", "other")} and len(started) == 36
    assert sorted(world.loads) == [("draft", BUNDLED), ("draft", "other"), ("target", BUNDLED)]
    assert pool.held == set() and not any(engine.closed for engine in world.engines.values()), "a window's pool keeps what it held"
    pool.close()
    assert len(results.runs) == results.total == 36
    assert not results.pending(failed=True)


def test_figures_are_those_of_the_race(world, tmp_path):
    grid = grid_of(ks=(3,), repeats=1, prompts=PROMPTS[:1])
    results, _ = sweep(world, grid, tmp_path / "s.jsonl")
    run = results.runs[0, 0]
    race, events = world.run(LaneSettings("draft-model", k=3))
    rounds, plain_rounds = race.records[1].rounds, race.records[0].rounds
    end = [event for event in events if getattr(event, "lane", None) == 1 and hasattr(event, "speedup")][-1]
    assert run.speedup == pytest.approx(end.speedup.value) and run.spread == pytest.approx(end.speedup.spread)
    assert run.faster.as_dict() == pytest.approx(end.speedup.as_dict(), rel=1e-5)
    assert run.metrics["acceptance_rate"] == pytest.approx(end.metrics.acceptance_rate)
    assert run.metrics["verify_cost"] == pytest.approx(end.metrics.verify_cost)
    assert run.equality["equal"] is True
    assert run.k == 3 and run.rule == "greedy"
    assert sum(hit for hit, _ in run.positions) == sum(hit for hit, _ in run.eighths) == end.metrics.accepted
    assert sum(tried for _, tried in run.positions) == sum(tried for _, tried in run.eighths) == end.metrics.judged
    assert run.draft_rounds == sum(round_.k > 0 for round_ in rounds)
    assert sum(run.pass_counts.values()) == len(rounds) + len(plain_rounds)
    (row,) = results.rows()
    assert row["position_acceptance"] == pytest.approx(list(end.metrics.position_acceptance), rel=1e-6)
    assert row["position_acceptance_conditional"] == pytest.approx(list(end.metrics.position_acceptance_conditional), rel=1e-6)
    assert row["tokens_per_target_pass"] == pytest.approx(end.metrics.tokens_per_target_pass, rel=1e-6)


def without_time(results: SweepResults) -> dict:
    return {key: replace(run, seconds=0.0, costs=None, busy="") for key, run in results.runs.items()}


@pytest.mark.parametrize("after", [0, 40, 200])
def test_stop_and_resume_give_what_one_go_gives(world, tmp_path, after):
    grid = grid_of(temperatures=(0.0, 0.8))
    whole, _ = sweep(world, grid, tmp_path / "whole.jsonl")
    asked = iter(range(10**9))
    path = tmp_path / "parts.jsonl"
    first, news = sweep(world, grid, path, should_stop=lambda: next(asked) >= after)
    assert len(first.runs) < whole.total
    assert len([one for one in news if isinstance(one, CellRun)]) == len(first.runs)
    assert without_time(read_sweep(path)) == without_time(first)
    again, more = sweep(world, grid, path, resume=True)
    assert len([one for one in more if isinstance(one, CellRun)]) == whole.total - len(first.runs)
    for name in ("acceptance_rate", "accepted", "speedup"):
        assert [row[name] for row in again.rows()] == pytest.approx([row[name] for row in whole.rows()], rel=1e-5)
    loads = len(world.loads)
    done, news = sweep(world, grid, path, resume=True)
    assert news == [] and len(world.loads) == loads and len(done.runs) == done.total, "what is done is not raced again"


def test_progress_never_goes_back_and_says_what_is_left(world, tmp_path):
    times = []
    with SweepFile.begin(tmp_path / "s.jsonl", grid_of(repeats=4)) as file:
        run_sweep(file, ModelPool(), lambda one: times.append((world.clock(), one)), clock=world.clock)
    told = [one for _, one in times if isinstance(one, SeriesProgress)]
    assert all(0 <= one.fraction <= 1 for one in told)
    assert [one.done for one in told] == sorted(one.done for one in told)
    assert (told[-1].done, told[-1].left_s) == (24, 0) and told[0].left_s is None
    assert all(one.left_s is not None for one in told if one.done)
    assert any("k 2, two, temperature 0 (repeat 2 of 4)" in one.text for one in told)
    half = next((at, one) for at, one in times if isinstance(one, SeriesProgress) and one.done == one.total // 2)
    assert half[1].left_s == pytest.approx(times[-1][0] - half[0], rel=0.25)


def broken(*words):
    """A model that does not load."""

    def load():
        raise SpecviewError(*words)

    return load


def test_a_cell_that_fails_is_told_and_the_sweep_goes_on(world, tmp_path):
    world.models["draft", "other"] = broken("draft.gguf is cut short.", "Download it again.")
    lanes = LaneSettings("draft-model", draft="other", name="bad"), LaneSettings("prompt-lookup")
    grid = grid_of(*lanes, ks=(2,), prompts=[*PROMPTS, GridPrompt("long", "b" * 5000)])
    path = tmp_path / "s.jsonl"
    results, _ = sweep(world, grid, path)
    assert len(results.runs) == results.total
    told = [{run.error for run in results.runs.values() if run.cell == cell.number} for cell in results.cells]
    assert told[:2] == [{"draft.gguf is cut short. Download it again."}] * 2 and told[3:5] == [{""}, {""}]
    assert all("5000 tokens" in "".join(told[place]) for place in (2, 5)), "a prompt that is too long fails its own cells only"
    rows = read_sweep(path).rows()
    assert [row["note"].startswith("failed: ") for row in rows] == [True, True, True, False, False, True]
    assert rows[0]["speedup"] is None and rows[3]["speedup"] > 0
    world.models["draft", "other"] = lambda: world.make_draft()
    again, _ = sweep(world, grid, path, resume=True)
    assert len(again.failures) == 4 and len(read_sweep(path).runs) == again.total


def test_a_target_that_cannot_be_loaded_ends_the_sweep(world, tmp_path):
    world.models["target", BUNDLED] = broken("There is no file x.", "Check the path.")
    with pytest.raises(SpecviewError, match=r"There is no file x\. Check the path\."):
        sweep(world, grid_of(), tmp_path / "s.jsonl")
    assert read_sweep(tmp_path / "s.jsonl").runs == {}


def test_other_weights_are_refused_on_resume(world, tmp_path, monkeypatch):
    real = Race._facts
    sha = ["aa" * 32]
    monkeypatch.setattr(Race, "_facts", lambda self, *more: {**real(self, *more), "target_sha256": sha[0]})
    path = tmp_path / "s.jsonl"
    count = iter(range(10**9))
    first, _ = sweep(world, grid_of(), path, should_stop=lambda: next(count) > 100)
    assert first.runs
    sha[0] = "bb" * 32
    with pytest.raises(SpecviewError, match="target_sha256 was aaaaaaaaaaaa… and is bbbbbbbbbbbb…"):
        sweep(world, grid_of(), path, resume=True)
    assert without_time(read_sweep(path)) == without_time(first)


def test_an_estimate_is_what_the_sweep_takes(world, tmp_path):
    """It is measured on the longest prompt that runs."""
    long = GridPrompt("long", "ab" * 100_000)
    grid, pool = grid_of(LaneSettings("prompt-lookup"), ks=(1, 2)), ModelPool()
    told = estimate(replace(grid, prompts=(*grid.prompts, long)), pool, clock=world.clock)
    before = world.clock()
    with SweepFile.begin(tmp_path / "s.jsonl", grid) as file:
        run_sweep(file, pool, clock=world.clock)
    spent = world.clock() - before
    assert 0.5 * spent < told.seconds(grid) < 2 * spent
    with pytest.raises(SpecviewError, match="tokens"):
        estimate(replace(grid, prompts=(long,)), pool, clock=world.clock)
    with pytest.raises(Stopped):
        estimate(grid, pool, should_stop=lambda: True, clock=world.clock)
    pool.close()


# -- what is folded out of it --------------------------------------------------------------------


def made(grid: Grid, speedup, alpha=0.8, c=0.1, v=1.5, rounds=1000) -> SweepResults:
    """Results made by hand: speedup(k, repeat), every judged token accepted with `alpha`."""
    results = SweepResults(grid)
    for cell in results.cells:
        for repeat in range(grid.repeats):
            judged, accepted, reached = 0, 0, float(rounds)
            positions = []
            for _ in range(cell.k):
                hit = reached * alpha
                positions.append((round(hit), round(reached)))
                judged, accepted, reached = judged + round(reached), accepted + round(hit), hit
            results.add(
                CellRun(
                    cell.number, repeat, 1.0, cell.k, "greedy",
                    metrics={"rounds": rounds, "proposed": cell.k * rounds, "judged": judged, "accepted": accepted,
                             "emitted": rounds + accepted, "decode_tokens_per_s": 20.0, "expected_tokens": 1.0, "mean_k": cell.k},
                    plain={"emitted": rounds + accepted, "decode_tokens_per_s": 10.0},
                    speedup=speedup(cell.k, repeat),
                    costs={"passes": {"1": 0.1, str(cell.k + 1): 0.1 * v}, "draft_start_s": 0.0, "draft_step_s": 0.1 * c,
                           "other_s": 0.0, "plain_other_s": 0.0},
                    pass_counts={1: 1000, cell.k + 1: 1000},
                    positions=tuple(positions),
                    eighths=((round(100 * alpha), 100),) * 8,
                    draft_rounds=rounds,
                )
            )  # fmt: skip
    return results


@pytest.mark.parametrize(("alpha", "c", "v"), [(0.8, 0.1, 1.5), (0.5, 0.3, 1.0), (0.95, 0.02, 2.0)])
def test_the_prediction_is_the_closed_form_with_measured_costs(alpha, c, v):
    results = made(grid_of(ks=range(1, 9), prompts=PROMPTS[:1]), lambda k, repeat: 1.0, alpha, c, v, rounds=100_000)
    series = results.series(results.curves()[0])
    assert series.alpha == pytest.approx(alpha, abs=1e-3)
    assert series.costs.c == pytest.approx(c)
    assert [one.k for one in series.predicted] == list(range(1, 9))
    for one in series.predicted:
        assert one.speedup == pytest.approx(theory.speedup(alpha, one.k, c, v), rel=5e-3)
        assert one.c_alone == pytest.approx(theory.speedup(alpha, one.k, c), rel=5e-3)
    best = max(range(1, 9), key=lambda k: theory.speedup(alpha, k, c, v))
    assert series.best_predicted.k == best
    few = made(grid_of(ks=(1, 4, 8), prompts=PROMPTS[:1]), lambda k, repeat: 1.0, alpha, c, v)
    assert [one.k for one in few.series(few.curves()[0]).predicted] == list(range(1, 9)), "between measured k too"


def test_the_prediction_of_a_perfect_draft_is_what_is_measured(world, tmp_path):
    """alpha 1: no model in it but the costs, which the fake clock has exactly."""
    grid = grid_of(LaneSettings("draft-model", draft="self"), ks=range(1, 7), prompts=PROMPTS[:1], repeats=1, max_tokens=210)
    results, _ = sweep(world, grid, tmp_path / "s.jsonl")
    series = results.series(results.curves()[0])
    assert series.alpha == 1.0
    for point, told in zip(series.points, series.predicted, strict=True):
        assert point.k == told.k
        assert told.speedup == pytest.approx(point.speedup, rel=0.04)
        assert told.c_alone > told.speedup, "verifying more rows costs more here"


def test_of_two_repeats_the_pooled_pass_lies_half_way():
    results = made(grid_of(ks=(2,), prompts=PROMPTS[:1], repeats=2), lambda k, repeat: 1.0)
    for (cell, repeat), run in list(results.runs.items()):
        passes = {"1": 0.1, "3": (0.08, 0.2)[repeat]}  # one of them timed at a noisy moment
        results.add(replace(run, cell=cell, costs={**run.costs, "passes": passes}))
    assert results.all_series()[0].costs.v(2) == pytest.approx(1.4)


def test_words_say_what_the_rows_show():
    several = (GridPrompt("set", "a", name="#1"), GridPrompt("set", "b", name="#2"))
    results = made(grid_of(ks=(1, 3), prompts=several, repeats=1), lambda k, repeat: 2.0 if k == 3 else 1.5)
    notes = [row["note"] for row in results.rows()]
    assert sorted(notes) == ["", "", "best k over all set", "best k over all set"]
    left = results.cells[-1]
    del results.runs[left.number, 0]
    results._rows.clear()
    assert results.rows()[left.number]["note"] == "", "a cell that was not raced is not the best"
    dear = made(grid_of(ks=(1, 3), prompts=PROMPTS[:1], repeats=1), lambda k, repeat: 0.5, alpha=0.6, c=0.01, v=3.0)
    assert "no faster than plain" in dear.all_series()[0].sentence()
    told = made(grid_of(ks=(1, 8), prompts=PROMPTS[:1], repeats=1), lambda k, repeat: 1.2, alpha=0.6, c=0.2, v=1.0)
    series = told.all_series()[0]
    best = series.best_predicted
    assert best.k not in (1, 8) and f"k {best.k}, which was not raced, is predicted at {series.limited(best):.2f}x" in series.sentence()
    slow = made(grid_of(ks=(1, 8), prompts=PROMPTS[:1], repeats=1), lambda k, repeat: 1.2 if k == 1 else 1.9, alpha=0.6, c=0.2, v=1.0)
    assert "not raced" not in slow.all_series()[0].sentence(), "a prediction under what was measured is no advice"


@settings(max_examples=60, deadline=None)
@given(ratios=st.lists(st.lists(st.floats(0.2, 4), min_size=3, max_size=3), min_size=1, max_size=8))
def test_the_best_k_has_the_highest_median(ratios):
    grid = grid_of(ks=range(1, len(ratios) + 1), prompts=PROMPTS[:1], repeats=3)
    results = made(grid, lambda k, repeat: ratios[k - 1][repeat])
    series = results.series(results.curves()[0])
    medians = [sorted(three)[1] for three in ratios]
    assert [point.speedup for point in series.points] == pytest.approx(medians)
    assert [point.low for point in series.points] == pytest.approx([min(three) for three in ratios])
    assert [point.high for point in series.points] == pytest.approx([max(three) for three in ratios])
    assert series.best.k == 1 + medians.index(max(medians))
    assert not series.plain_wins or max(medians) <= 1
    assert ("plain wins" in series.sentence()) == series.plain_wins
    marks = [row["note"] for row in results.rows()]
    assert [place + 1 for place, note in enumerate(marks) if note in ("best k", "plain wins")] == [series.best.k]
    assert all(max(ratios[k - 1]) >= series.best.low * (1 - 1e-9) for k in series.as_good())
    told = series.best_predicted
    if told is not None and "is predicted at" in series.sentence():
        assert all(series.limited(told) > point.high for point in series.points if point.k == series.best.k)


def test_a_curve_is_cached_until_a_race_is_added_to_it():
    grid = grid_of(repeats=1)
    results = made(grid, lambda k, repeat: float(k))
    first, other = results.curves()
    rows = results.rows()
    assert all(a is b for a, b in zip(rows, results.rows(), strict=True))
    kept = results.series(other)
    results.add(replace(results.runs[0, 0], speedup=9.0))
    assert results.series(first).best.speedup == 9.0
    assert results.series(other) is kept
    changed = [a is b for a, b in zip(rows, results.rows(), strict=True)]
    assert changed == [False] * 3 + [True] * 3


def test_curves_have_names_that_tell_them_apart():
    lanes = (LaneSettings("draft-model"), LaneSettings("draft-model", rule="match"), LaneSettings("prompt-lookup"))
    results = SweepResults(grid_of(*lanes, temperatures=(0.0, 0.5)))
    names = [results.series_name(key) for key in results.curves()]
    assert len(set(names)) == len(names) == 3 * 2 * 2
    assert results.curves()[0] == SeriesKey(0, "one", 0.0)


def test_no_closed_form_where_a_policy_chooses_the_length():
    results = made(grid_of(LaneSettings("draft-model", policy="heuristic")), lambda k, repeat: 1.0)
    assert results.series(results.curves()[0]).predicted == ()
    assert results.rows()[0]["predicted"] is None


@given(st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=5), max_size=5))
def test_pooling_adds_up(counts):
    pooled = pooled_counts(counts)
    for side in (0, 1):
        assert sum(pair[side] for pair in pooled) == sum(pair[side] for one in counts for pair in one)


def test_rows_have_every_column_and_every_format_takes_them(world, tmp_path):
    grid = grid_of(temperatures=(0.0, 1.0))
    results, _ = sweep(world, grid, tmp_path / "s.jsonl")
    rows = results.rows()
    keys = {column.key for column in COLUMNS}
    assert all(keys <= set(row) for row in rows)
    assert len(table_csv(COLUMNS, rows).splitlines()) == len(rows) + 1
    assert len(table_markdown(COLUMNS, rows).splitlines()) == len(rows) + 2
    assert len(json.loads(table_json(COLUMNS, rows))["rows"]) == len(rows)
    document = json.loads(json.dumps(results.document()))
    assert document["done"] == document["total"] == len(document["races"]) == 24
    assert len(document["series"]) == 4
    assert document["series"][0]["predicted_is"].startswith("modelled")
    greedy = [row for row in rows if row["temperature"] == 0]
    assert {row["equal_to_plain"] for row in greedy} == {"yes"}
    assert {row["equal_to_plain"] for row in rows if row["temperature"]} == {None}


def test_what_a_grid_takes_is_said_in_words():
    grid = grid_of(ks=(1, 2), prompts=PROMPTS[:1], repeats=3, max_tokens=60)
    assert grid_words(grid, None) == "2 cells × 3 = 6 races; the time is measured at the start"
    assert grid_words(grid, Estimate(10.0, 4.0)) == "2 cells × 3 = 6 races, about 2 min at 10.0 plain tok/s"
    assert grid_words(grid, Estimate(10.0, 4.0), 3) == "2 cells × 3 = 6 races, 3 left, about 60 s at 10.0 plain tok/s"
    assert grid_words(grid_of(ks=(1,), prompts=PROMPTS[:1], repeats=1), None).startswith("1 cell, one race each; ")


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "1 s"), (40, "40 s"), (89.4, "89 s"), (600, "10 min"), (7200, "2 h"), (12_000, "3 h 20 min"), (9e5, "10 days")]
)
def test_durations(seconds, words):
    assert duration(seconds) == words
