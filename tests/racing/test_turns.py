"""Conversations in a set of prompts: each turn after plain's answer to the one before, in compare, tune and sweep."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specview import cli
from specview.decoding.sampling import SamplingParams
from specview.errors import UsageError
from specview.experiments.prompt_set import run_prompt_set
from specview.experiments.sweep import run_sweep
from specview.experiments.sweep_file import SweepFile
from specview.experiments.sweep_grid import Grid, prompts_of_set
from specview.experiments.tuning import tune
from specview.files.reader import read_trace
from specview.library.library import RunLibrary
from specview.racing import race as race_module
from specview.racing.compare import compare
from specview.racing.pool import ModelPool
from specview.racing.turns import Turns
from specview.racing.workloads import Prompt, Workload
from specview.settings.events import Event, RaceStarted
from specview.settings.run import LaneSettings, RunSettings
from tests.racing.world import DRAFTED, World

SET = Workload(
    "talks.json",
    (
        Prompt("bcd", name="a"),
        Prompt("cde", name="a, turn 2", follows=True),
        Prompt("def", name="a, turn 3", follows=True),
        Prompt("ab", name="b"),
    ),
    "0",
)
SETTINGS = RunSettings(lanes=(LaneSettings(), DRAFTED), max_tokens=8, observe="off")


@pytest.fixture
def tokenized(monkeypatch: pytest.MonkeyPatch) -> list[RunSettings]:
    """The settings of every race, as their prompts are tokenized."""
    seen: list[RunSettings] = []
    real = race_module.tokenize_prompt

    def keep(settings: RunSettings, target: Any) -> list[int]:
        seen.append(settings)
        return real(settings, target)

    monkeypatch.setattr(race_module, "tokenize_prompt", keep)
    return seen


def plain_of(world: World, settings: RunSettings) -> str:
    return compare(replace(settings, lanes=(LaneSettings(),)), clock=world.clock).lanes[0].record.text


def told(history: Any) -> list[tuple[str, str]]:
    return [(turn["role"], turn["content"]) for turn in history]


def expected(world: World, settings: RunSettings = SETTINGS) -> list[tuple[str, str]]:
    """The turns before the third: plain's answers, found by hand."""
    first = plain_of(world, replace(settings, prompt="bcd"))
    history = ({"role": "user", "content": "bcd"}, {"role": "assistant", "content": first})
    second = plain_of(world, replace(settings, prompt="cde", history=history))
    return [("user", "bcd"), ("assistant", first), ("user", "cde"), ("assistant", second)]


def test_a_set_goes_on_from_plains_answers(world: World) -> None:
    result = run_prompt_set(SETTINGS, SET, clock=world.clock)
    wanted = expected(world)
    assert [told(one.settings.history) for one in result.requests] == [[], wanted[:2], wanted, []]
    assert all(one.lanes[1].metrics.emitted for one in result.requests)
    assert [one.name for one in result.requests] == ["a", "a, turn 2", "a, turn 3", "b"]


def test_every_repeat_has_its_own_answers(world: World) -> None:
    hot = replace(SETTINGS, sampling=SamplingParams(temperature=1.5))
    histories: list[Any] = []

    def hear(event: Event, part: str) -> None:
        if isinstance(event, RaceStarted):
            histories.append(event.facts.get("history", []))

    run_prompt_set(hot, SET, 2, clock=world.clock, on_event=hear)
    assert histories[1] != histories[5] and histories[2] != histories[6], "another seed, another answer"
    assert histories[2][:2] == histories[1] and histories[6][:2] == histories[5]


def test_after_a_turn_that_did_not_run_none_does(world: World) -> None:
    long = replace(SET, prompts=(replace(SET.prompts[0], text="b" * 5000), *SET.prompts[1:]))
    world.models["target", "bundled"] = lambda: world.make_target(context_length=100)
    result = run_prompt_set(SETTINGS, long, clock=world.clock)
    assert [one.error for one in result.requests][1:] == ["the turn before it did not run."] * 2 + [""]


def test_a_conversation_needs_the_chat_form() -> None:
    with pytest.raises(UsageError, match="several turns. They need the chat form"):
        Turns(SET.prompts, RunSettings(chat=False))
    Turns(SET.prompts[-1:], RunSettings(chat=False))


def test_a_sweep_runs_them_too(world: World, tmp_path: Path, tokenized: list[RunSettings]) -> None:
    grid = Grid(replace(SETTINGS, lanes=()), (DRAFTED,), (3,), (0.0,), prompts_of_set(SET)).checked()
    assert [prompt.follows for prompt in Grid.from_json(grid.to_json()).prompts] == [False, True, True, False]
    path = tmp_path / "s.jsonl"
    with SweepFile.begin(path, grid) as file:
        results = run_sweep(file, ModelPool(), clock=world.clock)
    assert not results.failures and len(results.runs) == 4
    seen = {(one.prompt, len(one.history)) for one in tokenized}
    assert seen == {("bcd", 0), ("cde", 2), ("def", 4), ("ab", 0)}
    third = next(one for one in tokenized if one.prompt == "def")
    assert told(third.history) == expected(world)
    tokenized.clear()
    with SweepFile.begin(tmp_path / "t.jsonl", grid) as file:
        file.results.runs.update({key: run for key, run in results.runs.items() if key[0] < 2})
        run_sweep(file, ModelPool(), clock=world.clock)
    assert told(next(one for one in tokenized if one.prompt == "def").history) == expected(world), "answers missed are decoded anew"


def test_tune_runs_them_too(world: World, tokenized: list[RunSettings]) -> None:
    result = tune(SETTINGS, SET, 400.0, methods=("draft-model",), models=ModelPool(), clock=world.clock)
    assert result.races and not result.failures
    third = [one for one in tokenized if one.prompt == "def"]
    assert third and all(told(one.history) == expected(world) for one in third)


def test_the_command_keeps_the_turns_with_each_race(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECVIEW_DATA", str(tmp_path / "data"))
    file = tmp_path / "spec_bench.jsonl"
    file.write_text(json.dumps({"question_id": 7, "category": "chat", "turns": ["bcd", "cde"]}))
    assert cli.main(["compare", "--prompts", str(file), "--method", "draft-model", "--max-tokens", "8", "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(one["name"], one["workload"]) for one in document["requests"]] == [("7", "chat"), ("7, turn 2", "chat")]
    kept = [read_trace(entry.path).run for entry in RunLibrary().scan()]
    assert sorted(len(run.get("history", [])) for run in kept) == [0, 2]
    code = cli.main(["compare", "--prompts", str(file), "--raw", "--method", "draft-model"])
    assert code == 2 and "They need the chat form" in capsys.readouterr().err
