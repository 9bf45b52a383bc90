"""Trained heads in a race: which lane gets which, what is shared, freed and told, and whose trouble it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from specview.drafting.base import ModelFreeDrafter
from specview.drafting.lanes import HeadChoice, flat_settings, heads_of
from specview.drafting.method import DrafterContext, MethodInfo
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError, UsageError
from specview.racing.pool import ModelPool
from specview.racing.resolve import checked_run
from specview.settings.events import LanePrefilled, Progress, RaceStarted
from specview.settings.options import Option
from specview.settings.run import LaneSettings, RunSettings
from tests.racing.world import World, last_ends, of_kind, race_end

TEN, HUNDRED = 10, 100


class Quiet(ModelFreeDrafter):
    """Drafts nothing and keeps the heads it was given."""

    made: list[DrafterContext] = []

    def guess(self, context: Any, budget: int) -> list[int]:
        return []


def make(context: DrafterContext) -> Quiet:
    Quiet.made.append(context)
    return Quiet()


def method(name: str, kind: str) -> MethodInfo:
    own = (Option("depth", 3, "a method's own option"),)
    return MethodInfo(name, name, "test", make, own, head=kind, family="trained head")


@pytest.fixture(autouse=True)
def toy_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    Quiet.made.clear()
    monkeypatch.setitem(METHODS, "low", method("low", "medusa"))
    monkeypatch.setitem(METHODS, "high", method("high", "eagle3"))


class Heads:
    """Stands where heads are loaded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loads: list[tuple[Any, ...]] = []
        self.before: list[tuple[Any, ...]] = []
        self.trouble: dict[str, str] = {}
        self.trouble_before: dict[str, str] = {}
        monkeypatch.setattr("specview.racing.pool.load_head", self.load)
        monkeypatch.setattr("specview.racing.race.check_before", self.check)
        monkeypatch.setattr("specview.racing.race.head_facts", lambda head: {"head": head.ref})

    def check(self, kind: str, ref: str, target: str, engine: str, answers: dict[str, str]) -> None:
        self.before.append((kind, ref, target, engine, answers))
        if ref in self.trouble_before:
            raise SpecviewError(self.trouble_before[ref])

    def load(self, kind: str, ref: str, target: Any, answers: dict[str, str], *, progress: Any, should_stop: Any) -> Any:
        progress(f"Loading {ref}", None)
        if ref in self.trouble:
            raise SpecviewError(self.trouble[ref])
        self.loads.append((kind, ref, target, answers))
        return SimpleNamespace(kind=kind, ref=ref, weight_bytes=TEN if kind == "medusa" else HUNDRED)


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Heads]:
    yield Heads(monkeypatch)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, heads: Heads) -> World:
    return World(monkeypatch)


# -- which head ----------------------------------------------------------------------------------------


def chosen(method: str, draft: str = "bundled", **options: Any) -> dict[str, HeadChoice]:
    options = {key.replace("__", "."): value for key, value in options.items()}
    return heads_of(LaneSettings(method, draft=draft, options=options))


def test_a_lanes_draft_names_its_head() -> None:
    assert chosen("low") == {"low": HeadChoice("medusa", "bundled")}
    assert chosen("low", "folder") == {"low": HeadChoice("medusa", "folder")}
    assert chosen("low", "folder", head="other") == {"low": HeadChoice("medusa", "other")}
    assert chosen("plain", "folder") == {} == chosen("prompt-lookup", "folder")


def test_members_share_the_draft_unless_a_model_takes_it_or_they_name_their_own() -> None:
    assert chosen("cascade", "folder", members="suffix+high") == {"high": HeadChoice("eagle3", "folder")}
    both = chosen("cascade", "folder", members="low+high", low__head="mine")
    assert both == {"low": HeadChoice("medusa", "mine"), "high": HeadChoice("eagle3", "folder")}
    beside = chosen("cascade", "small-model", members="high+draft-model")
    assert beside == {"high": HeadChoice("eagle3", "bundled")}
    beside = chosen("auto", "small-model", members="high+draft-model", high__head="mine")
    assert beside == {"high": HeadChoice("eagle3", "mine")}


def test_answers_go_along_where_they_are_given() -> None:
    found = chosen("high", aux_ids="output", norm_before_residual="auto")
    assert found["high"].answers == (("aux_ids", "output"),)
    found = chosen("cascade", members="suffix+high", high__norm_before_residual="true")
    assert found["high"].answers == (("norm_before_residual", "true"),)


def test_every_method_with_a_head_has_the_options_that_name_it() -> None:
    for info in METHODS.values():
        names = [option.name for option in info.options]
        assert len(names) == len(set(names)), info.name
        assert ("head" in names) == (info.head is not None)
        assert ("aux_ids" in names) == ("norm_before_residual" in names) == (info.head in ("eagle3", "p-eagle"))
    assert METHODS["low"].resolve({})["head"] == ""
    assert METHODS["cascade"].resolve({"members": "suffix+high", "high.aux_ids": "output"})["high.aux_ids"] == "output"
    with pytest.raises(UsageError, match="aux_ids is 'both'. Choose one of auto, entering, output"):
        METHODS["high"].resolve({"aux_ids": "both"})


def test_files_record_which_head(world: World) -> None:
    run = checked_run(RunSettings(lanes=(LaneSettings("high", draft="folder"),)))
    flat = flat_settings(run, run.lanes[1])
    assert (flat["draft"], flat["draft_engine"], flat["option_head"]) == ("folder", None, "")
    assert flat_settings(run, LaneSettings("suffix", draft="folder"))["draft"] is None


def test_the_command_line_takes_them() -> None:
    from specview.commands import arguments as flags

    def lanes(*argv: str) -> tuple[LaneSettings, ...]:
        parser = flags.Parser("specview run", "")
        flags.add_shared_flags(parser)
        return flags.settings_of(parser.parse_args([*argv, "--prompt", "x"]), ("plain",)).lanes

    (lane,) = lanes("--method", "high", "--draft", "folder")
    assert heads_of(lane) == {"high": HeadChoice("eagle3", "folder")}
    (lane,) = lanes("--lane", "high,draft=mine,aux_ids=output")
    assert heads_of(lane) == {"high": HeadChoice("eagle3", "mine", (("aux_ids", "output"),))}
    with pytest.raises(UsageError, match="--draft says nothing"):
        lanes("--lane", "high,draft=mine", "--draft", "folder")
    (lane,) = lanes("--lane", "cascade,members=low+high,low.head=a,draft=b")
    assert {name: choice.ref for name, choice in heads_of(lane).items()} == {"low": "a", "high": "b"}


# -- loading -------------------------------------------------------------------------------------------


def test_drafters_get_the_heads_of_their_methods(world: World, heads: Heads) -> None:
    members = LaneSettings("cascade", name="both", draft="a", options={"members": "low+high", "low.head": "b"})
    race, events = world.run(LaneSettings("low", draft="a"), members, LaneSettings("prompt-lookup"))
    target = world.engines["target", "bundled"]
    assert [load[:2] for load in heads.loads] == [("medusa", "a"), ("medusa", "b"), ("eagle3", "a")]
    assert all(load[2] is target for load in heads.loads)
    given = [{name: head.ref for name, head in context.heads.items()} for context in Quiet.made]
    both = {"low": "b", "high": "a"}
    # The first is warmed up before its lane; the last two run anew over the finished text.
    assert given == [{"low": "a"}, {"low": "a"}, both, both, both, both]
    assert set(race.oracles) == {2}
    weights = {event.lane: event.draft_weight_bytes for event in of_kind(events, LanePrefilled)}
    assert weights == {0: 0, 1: TEN, 2: TEN + HUNDRED, 3: 0}
    told = [event.text for event in of_kind(events, Progress) if event.phase == "load-draft"]
    assert told == ["Loading a", "Loading b", "Loading a"]
    (started,) = of_kind(events, RaceStarted)
    assert started.facts["draft_1_low_head"] == "a" and started.facts["draft_2_high_head"] == "a"
    assert race_end(events).end == "done"
    race.close()


def test_lanes_share_a_head_and_runs_keep_it(world: World, heads: Heads) -> None:
    pool = ModelPool()
    lane = LaneSettings("low", draft="a")
    for _ in range(2):
        race, events = world.run(lane, replace(lane, name="again", k=5), models=pool)
        weights = {event.lane: event.draft_weight_bytes for event in of_kind(events, LanePrefilled)}
        assert weights == {0: 0, 1: TEN, 2: TEN}
        race.close()
    assert len(heads.loads) == 1
    first, second = Quiet.made[0].heads["low"], Quiet.made[-1].heads["low"]
    assert first is second
    # Read otherwise, it is another one.
    for options in ({"aux_ids": "output"}, {"aux_ids": "entering"}):
        world.run(LaneSettings("high", draft="a", options=options), models=pool)[0].close()
    assert [load[3] for load in heads.loads[1:]] == [{"aux_ids": "output"}, {"aux_ids": "entering"}]
    # What no lane wants any more is freed, with its target what was loaded for it.
    world.run(LaneSettings("prompt-lookup"), models=pool)[0].close()
    assert not pool._heads
    world.run(lane, models=pool)[0].close()
    assert len(pool._heads) == 1
    pool.close()
    assert not pool._heads


def test_a_combined_method_of_one_head_twice_counts_its_weights_once(world: World, heads: Heads, monkeypatch: Any) -> None:
    monkeypatch.setitem(METHODS, "low-too", replace(method("x", "medusa"), name="low-too"))
    lane = LaneSettings("cascade", draft="a", options={"members": "low+low-too"})
    race, events = world.run(lane)
    assert [event.draft_weight_bytes for event in of_kind(events, LanePrefilled)] == [0, TEN]
    assert len(heads.loads) == 1
    race.close()


# -- trouble -------------------------------------------------------------------------------------------


def test_a_head_that_does_not_fit_is_its_lanes_trouble_before_the_target_loads(world: World, heads: Heads) -> None:
    heads.trouble_before["bad"] = "it is for another target. Choose another."
    race, events = world.run(LaneSettings("low", draft="bad"), LaneSettings("high", draft="good"))
    ends = last_ends(events)
    assert (ends[1].end, ends[1].error) == ("error", "it is for another target. Choose another.")
    assert ends[0].end == ends[2].end == "limit"
    assert heads.before == [
        ("medusa", "bad", "bundled", "transformers", {}),
        ("eagle3", "good", "bundled", "transformers", {}),
    ]
    assert [load[1] for load in heads.loads] == ["good"]
    race.close()


def test_the_check_comes_before_the_target(world: World, heads: Heads, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    check, load = heads.check, world.load
    monkeypatch.setattr("specview.racing.race.check_before", lambda *a: order.append("check") or check(*a))
    monkeypatch.setattr("specview.racing.pool.load_engine", lambda *a, **k: order.append("target") or load(*a, **k))
    world.run(LaneSettings("low", draft="a"))[0].close()
    assert order == ["check", "target"]


def test_a_head_that_does_not_load_is_its_lanes_trouble(world: World, heads: Heads) -> None:
    heads.trouble["bad"] = "it is cut short. Download it again."
    lanes = (LaneSettings("cascade", draft="bad", options={"members": "low+high", "low.head": "good"}), LaneSettings("low"))
    race, events = world.run(*lanes)
    ends = last_ends(events)
    assert (ends[1].end, ends[1].error) == ("error", "it is cut short. Download it again.")
    assert ends[0].end == ends[2].end == "limit"
    race.close()


def test_stop_while_a_head_loads(world: World, heads: Heads) -> None:
    race = world.race(LaneSettings("low"), LaneSettings("high"))
    events: list[Any] = []
    race.run(events.append, lambda: bool(heads.loads))
    assert race_end(events).end == "stopped"
    assert len(heads.loads) == 1
    race.close()


def test_a_head_is_warmed_up_once_in_sessions_that_are_thrown_away(world: World, heads: Heads) -> None:
    pool = ModelPool()
    lanes = (LaneSettings("low"), LaneSettings("high"))
    first, _ = world.run(*lanes, models=pool, max_tokens=4)
    assert len(Quiet.made) == 4 and len(pool.warm_heads) == 2  # each head's lane, and its warm-up
    assert all(len(lane.record.rounds) == 4 for lane in first.lanes)
    assert {context.max_length for context in Quiet.made[:2]} == {len(first.prompt_ids) + 2 * first.lanes[1].k + 2}
    first.close()
    world.run(*lanes, models=pool, max_tokens=4)[0].close()
    assert len(Quiet.made) == 6
    pool.close()
    assert not pool.warm_heads


def test_a_warm_up_that_fails_is_no_races_trouble(world: World, heads: Heads, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr("specview.racing.lane.Lane.warm_up", broken)
    race, events = world.run(LaneSettings("low"), max_tokens=4)
    assert race_end(events).end == "done" and len(race.lanes[1].record.rounds) == 4
    race.close()
