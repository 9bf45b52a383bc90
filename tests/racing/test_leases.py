"""Models that a race stands on stay loaded while other work runs, so that Continue goes on with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specview.experiments.sweep import estimate, run_sweep
from specview.experiments.sweep_file import SweepFile
from specview.experiments.sweep_grid import Grid, GridPrompt
from specview.experiments.tuning import tune
from specview.lab.pair_exactness import PairSettings, run_pair
from specview.racing.compare import compare
from specview.racing.pool import ModelPool, draft_key, target_key
from specview.racing.workloads import Prompt, Workload
from specview.settings.events import Event, Failed
from specview.settings.run import BUNDLED, LaneSettings, RunSettings
from tests.racing.world import DRAFTED, PROMPT, World, of_kind, race_end

OTHER = RunSettings(target="elsewhere", prompt=PROMPT, max_tokens=24, chat=False, observe="off")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(monkeypatch)
    made.models["target", "elsewhere"] = made.make_target
    return made


def a_sweep(world: World, pool: ModelPool, folder: Path) -> None:
    grid = Grid(OTHER, (LaneSettings("draft-model", draft="other"),), (1, 2), (0.0,), (GridPrompt("one", PROMPT),), 1).checked()
    estimate(grid, pool, clock=world.clock)
    with SweepFile.begin(folder / "sweep.jsonl", grid) as file:
        assert not run_sweep(file, pool, clock=world.clock).failures


def a_tuning(world: World, pool: ModelPool, folder: Path) -> None:
    prompts = Workload("mine", (Prompt(PROMPT, name="one"),), "0")
    assert tune(OTHER, prompts, 300.0, models=pool, methods=("draft-model",), clock=world.clock).arms


def a_comparison(world: World, pool: ModelPool, folder: Path) -> None:
    assert compare(OTHER, 2, pool, clock=world.clock).lanes


def a_pair_test(world: World, pool: ModelPool, folder: Path) -> None:
    run_pair(RunSettings(lanes=(LaneSettings(), LaneSettings("prompt-lookup", k=2)), target="elsewhere", prompt=PROMPT, chat=False,
                         observe="off"), PairSettings(greedy_tokens=8), pool)  # fmt: skip


@pytest.mark.parametrize("work", [a_sweep, a_tuning, a_comparison, a_pair_test])
def test_a_race_goes_on_after_other_work(world: World, tmp_path: Path, work: Callable[..., None]) -> None:
    pool = ModelPool()
    race = world.race(DRAFTED, models=pool)
    race.run(lambda event: None)
    assert race.can_continue
    work(world, pool, tmp_path)
    events: list[Event] = []
    race.continue_(16, events.append)
    assert not of_kind(events, Failed) and race_end(events).end == "done"
    assert [len(record.token_ids) for record in race.records] == [40, 40]
    for key in (("target", BUNDLED), ("draft", BUNDLED)):
        assert world.loads.count(key) == 1 and not world.engines[key].closed  # the very models
    race.close()
    assert not pool.held
    pool.keep_only({target_key(OTHER)})
    assert world.engines["draft", BUNDLED].closed and world.engines["target", BUNDLED].closed
    pool.close()


def test_what_nobody_holds_is_freed_for_the_next_race(world: World) -> None:
    pool = ModelPool()
    first = world.race(DRAFTED, models=pool)
    first.run(lambda event: None)
    first.close()
    second = world.race(LaneSettings("draft-model", k=2, draft="other"), models=pool, target="elsewhere")
    second.run(lambda event: None)
    assert world.engines["target", BUNDLED].closed and world.engines["draft", BUNDLED].closed
    assert not world.engines["target", "elsewhere"].closed
    second.close()
    pool.close()


def test_leases_count(world: World) -> None:
    """Two that hold the same, and one that names what is loaded later."""
    pool = ModelPool()
    settings = RunSettings()
    target, draft = target_key(settings), draft_key(settings, BUNDLED, None)
    first, second = pool.lease([target]), pool.lease()
    second.add([target, draft])
    loaded: list[Any] = [pool.get(target), pool.get(draft)]
    pool.keep_only(set())
    first.close()
    first.close()
    pool.keep_only(set())
    assert not any(engine.closed for engine in loaded) and pool.held == {target, draft}
    with pool.lease([draft]):
        second.close()
        pool.keep_only(set())
        assert [engine.closed for engine in loaded] == [True, False]
    pool.close()
    assert loaded[1].closed and not pool.held
