"""Every turn, prompt and repeat draws random numbers of its own, by a seed that repeats it when given alone."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from specview.decoding.sampling import SamplingParams
from specview.experiments.prompt_set import prompt_set_document, run_prompt_set
from specview.experiments.sweep_grid import Grid, GridPrompt
from specview.files.documents import compare_document
from specview.racing.compare import compare
from specview.racing.workloads import Prompt, Workload
from specview.settings.run import LaneSettings, RunSettings
from tests.racing.world import DRAFTED, PROMPT, SAMPLED, World

SAME = Workload("same.jsonl", tuple(Prompt("bcdbc", name=f"{place}") for place in range(4)), "0123")


def settings_of(**options) -> RunSettings:
    options = {"prompt": PROMPT, "max_tokens": 24, "chat": False, "observe": "off", "sampling": SAMPLED, **options}
    return RunSettings(lanes=(LaneSettings(), DRAFTED), **options)


@given(st.integers(0, 2**63 - 1), st.floats(0.1, 2))
def test_parts_have_seeds_of_their_own_and_the_first_has_the_run_s(seed, temperature):
    sampling = SamplingParams(temperature, top_k=3, seed=seed)
    parts = [
        sampling.part(prompt=prompt, repeat=repeat) for prompt in range(5) for repeat in range(3)
    ] + [sampling.part(prompt=prompt).later(turns) for prompt in (0, 1) for turns in (1, 2, 3)]
    assert parts[0] == sampling
    assert len({one.seed for one in parts}) == len(parts)
    assert all(replace(one, seed=seed) == sampling for one in parts)
    assert sampling.later(3) == sampling.later(1).later(2)
    cold = replace(sampling, temperature=0.0)
    assert cold.part(prompt=3, repeat=1) == cold == cold.later(4)


def test_a_turn_draws_other_numbers_than_the_turn_before(monkeypatch):
    world = World(monkeypatch)
    race, _ = world.run(DRAFTED, chat=True, observe="light", sampling=SAMPLED)
    turn = race.follow_up("cd")
    assert turn.sampling.seed not in (SAMPLED.seed, turn.next_turn((*turn.history, {}, {}), "e").sampling.seed)
    again = world.race()
    again.settings = replace(turn, lanes=race.settings.lanes)
    again.run(lambda event: None)
    assert {record.settings["seed"] for record in again.records} == {turn.sampling.seed}  # lanes share it
    once_more = world.race()
    once_more.settings = again.settings
    once_more.run(lambda event: None)
    assert [one.token_ids for one in once_more.records] == [one.token_ids for one in again.records]


def test_requests_of_a_set_share_no_numbers_and_one_is_repeated_by_its_seed(monkeypatch):
    world = World(monkeypatch)
    found = run_prompt_set(settings_of(), SAME, 2, clock=world.clock)
    texts = {tuple(compare(one.settings, clock=world.clock).lanes[1].record.token_ids) for one in found.requests}
    assert len(texts) == len(SAME.prompts)
    document = prompt_set_document(found)
    seeds = [one["seed"] for one in document["requests"]]
    assert seeds == [one.settings.sampling.seed for one in found.requests] and len(set(seeds)) == 4
    assert document["run"]["seed"] == SAMPLED.seed
    assert prompt_set_document(run_prompt_set(settings_of(), SAME, 2, clock=world.clock))["requests"] == document["requests"]


def test_a_request_s_race_is_what_its_seed_gives_alone(monkeypatch):
    world = World(monkeypatch)
    found = run_prompt_set(settings_of(), SAME, 1, clock=world.clock)
    for one in found.requests:
        alone = compare(one.settings, 1, clock=world.clock)
        assert [lane.metrics.emitted for lane in alone.lanes] == [lane.metrics.emitted for lane in one.lanes]
        assert alone.lanes[1].metrics.accepted == one.lanes[1].metrics.accepted
        assert alone.lanes[1].metrics.rounds == one.lanes[1].metrics.rounds


def test_repeats_of_a_race_have_their_seeds_in_the_document(monkeypatch):
    World(monkeypatch)
    found = compare(settings_of(), 3)
    lane = compare_document(found)["lanes"][1]
    seeds = [one["seed"] for one in lane["repeats"]]
    assert seeds == [SAMPLED.part(repeat=repeat).seed for repeat in range(3)] and len(set(seeds)) == 3
    assert len({tuple(one["output"]["token_ids"]) for one in lane["repeats"]}) == 3
    for repeat, seed in enumerate(seeds):
        alone = compare(settings_of(sampling=replace(SAMPLED, seed=seed)))
        assert list(alone.lanes[1].record.token_ids) == lane["repeats"][repeat]["output"]["token_ids"]
    cold = compare(settings_of(sampling=SamplingParams(seed=3)), 2)
    assert {record.settings["seed"] for one in cold.lanes for record, _ in one.repeats} == {3}


def test_cells_share_numbers_over_lanes_and_lengths_but_not_over_prompts_and_repeats():
    prompts = tuple(GridPrompt(f"p{place}", "bcd") for place in range(3))
    grid = Grid(settings_of(), (DRAFTED,), ks=(1, 2), temperatures=(0.0, 0.7), prompts=prompts, repeats=2)
    grid = replace(grid, lanes=(LaneSettings("draft-model"),))
    seeds: dict[tuple[float, int, int], set[int]] = {}
    for cell in grid.cells():
        for repeat in range(2):
            seeds.setdefault((cell.temperature, cell.prompt, repeat), set()).add(grid.race(cell, repeat).sampling.seed)
    assert all(len(own) == 1 for own in seeds.values())
    warm = [own for (temperature, _, _), own in seeds.items() if temperature]
    assert len(set.union(*warm)) == len(warm) == 6
    assert {seed for (temperature, _, _), own in seeds.items() if not temperature for seed in own} == {SAMPLED.seed}
