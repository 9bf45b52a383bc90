"""The playhead: at any moment a lane is what a live race would have shown then, and the round under way by its stage."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.ledger import Round
from specview.decoding.metrics import fold
from specview.decoding.phases import stages
from specview.decoding.round_table import RoundTable
from specview.decoding.sampling import SamplingParams
from specview.gui.state import lane_words
from specview.gui.state.inspection import inspect
from specview.gui.state.playhead import Playhead
from specview.gui.state.view_model import LaneModel, RaceModel
from specview.racing.race import Race
from specview.settings.run import LaneSettings, RunSettings
from tests.decoding.test_phases import RULES, SHAPES, ledger
from tests.gui.state.test_view_model import rounds
from tests.gui.views_data import make_rounds
from tests.library.recorded import race_events

KEPT = ("state", "end", "error", "rounds", "tokens", "final_metrics", "final_speedup", "equality", "settled", "text", "under_way")


def finished(**options: Any) -> RaceModel:
    race = RaceModel()
    for event in race_events(**options):
        race.apply(event)
    return race


def kept(race: RaceModel) -> list:
    return [(*(getattr(lane, name) for name in KEPT), lane.metrics(), lane.table["t"].tolist()) for lane in race.lanes]


def lane_of(made: list[Round]) -> LaneModel:
    lane = LaneModel("a", {"method": "draft-model"})
    for round_ in made:
        lane.add(round_)
    lane.state = "ended"
    return lane


def check(lane: LaneModel, made: list[Round], seconds: float) -> None:
    """The lane at this moment, against one that was told only what was over by then."""
    whole = [round_ for round_ in made if round_.t <= seconds]
    told = lane_of(whole)
    assert lane.rounds == whole and lane.tokens[:lane.settled] == told.tokens
    assert fold(lane.table) == fold(told.table) and lane.emitted == told.emitted
    assert lane.table.distinct_4grams == told.table.distinct_4grams and lane.table.trees == told.table.trees
    rest = lane.tokens[lane.settled:]
    assert all(token.round_index == len(whole) for token in rest)
    if len(whole) < len(made):
        there = [stage for stage in stages(made[len(whole)]) if stage.t <= seconds]
        assert (lane.under_way is None) == (not there)
        if there:
            shown = {token.token_index: token.kind for token in rest if not token.folded and token.token_index >= 0}
            states = there[-1].states
            assert shown.items() <= dict(enumerate(states)).items()
            assert len(shown) + sum(token.folded for token in rest) == sum(state != "unseen" for state in states)
            assert (rest[-1].token_index == -1 if rest else False) == there[-1].final


@given(rounds(), st.lists(st.floats(-0.1, 4.0), min_size=1, max_size=8))
@settings(max_examples=120, deadline=None)
def test_back_and_forth_a_lane_is_what_was_known_then(made, moments):
    lane = lane_of(made)
    before = lane.tokens, lane.table, lane.rounds
    head = Playhead([lane])
    for moment in moments:
        head.seek(moment)
        check(lane, made, min(max(moment, 0.0), head.length))
        for index, token in enumerate(lane.tokens):
            assert lane.index_of(token.round_index, token.token_index) == index
            assert inspect(lane, token.round_index, token.token_index) is not None
    head.seek(1e9)
    assert (lane.tokens, lane.table, lane.rounds) == before and lane.state == "ended" and head.at_end


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", RULES)
def test_steps_show_every_state_of_every_round_and_back(rule, shape):
    """What is seen when one steps through a real ledger, chain or tree, under each rule."""
    made = ledger(rule, shape, 3)
    lane = lane_of(made)
    head = Playhead([lane])
    head.seek(0.0)
    expected = [(index, stage) for index, round_ in enumerate(made) for stage in stages(round_)]
    seen = []
    while not head.at_end:
        head.step_phase(1)
        if head.at_end or lane.under_way is None:  # the last stage of a round makes it a whole one
            index = len(lane.rounds) - 1
            assert lane.settled == len(lane.tokens)
            seen.append((index, stages(made[index])[-1]))
        else:
            index, stage = len(lane.rounds), lane.under_way.stage
            assert lane.under_way.round.final == (made[index].final if stage.final else None)
            kinds = {token.kind for token in lane.tokens[lane.settled:]}
            assert kinds >= {state for state in stage.states if state != "unseen"} - {"ignored"}
            seen.append((index, stage))
    assert [(index, stage.name) for index, stage in seen] == [(index, stage.name) for index, stage in expected]
    assert [stage.states for _, stage in seen] == [stage.states for _, stage in expected]
    count = 0
    while head.seconds > 0 or lane.tokens:
        head.step_phase(-1)
        count += 1
    assert count == len(expected) and not lane.rounds


def test_all_lanes_go_by_their_own_clocks_and_the_end_is_the_finished_race():
    race = finished(rounds=15)
    whole, objects = kept(race), list(race.lanes)
    ends = [[round_.t for round_ in lane.rounds] for lane in race.lanes]
    head = Playhead(race.lanes)
    assert head.length == max(map(max, ends))
    for moment in (0.0, ends[1][3], ends[0][9], ends[2][1], min(map(max, ends))):
        head.seek(moment)
        assert [len(lane.rounds) for lane in race.lanes] == [sum(end <= moment for end in lane) for lane in ends]
        over = [len(lane.rounds) == 15 for lane in race.lanes]
        assert [lane.state for lane in race.lanes] == ["ended" if one else "running" for one in over]
        assert all(lane.equality is None for lane in race.lanes)
        for lane in race.lanes[1:]:
            assert (race.speedup(lane) is not None) == (len(lane.rounds) > 0 and len(race.lanes[0].rounds) > 0)
    head.seek(head.length)
    assert kept(race) == whole and race.lanes == objects


def test_steps_go_through_all_lanes_in_the_order_of_time_and_back_the_same_way():
    race = finished(rounds=6)
    head = Playhead(race.lanes)
    head.seek(0.0)

    def now():
        return [(len(lane.rounds), lane.under_way and lane.under_way.stage) for lane in race.lanes]

    way, moments = [now()], [0.0]
    for _ in range(60):
        head.step_phase(1)
        assert head.words.partition(":")[0] in {lane_words.title(lane) for lane in race.lanes}
        way.append(now())
        moments.append(head.seconds)
    assert moments == sorted(moments)
    for before in reversed(way[:-1]):
        head.step_phase(-1)
        assert now() == before


def test_rounds_and_the_leaders_pages():
    race = finished(rounds=6)
    ends = sorted({round_.t for lane in race.lanes for round_ in lane.rounds})
    head = Playhead(race.lanes)
    head.seek(0.0)
    for end in ends[:-1]:
        head.step_round(1)
        assert head.seconds == end
    head.step_phase(1)
    head.step_round(-1)
    assert head.seconds in ends[-3:-1]
    for _ in ends:
        head.step_round(-1)
    assert head.seconds == 0.0
    head.page(1)
    assert head.seconds == ends[0]
    head.seek(head.length / 2)
    leader = max(race.lanes, key=lambda lane: lane.emitted)
    count = len(leader.rounds)
    head.page(1)
    assert len(leader.rounds) == count + 1 and leader.under_way is None
    later = head.seconds
    head.page(-1)
    assert head.seconds < later and head.seconds in ends


def test_a_lane_without_rounds_and_a_clock_that_falls_are_played_too():
    made = [Round(index, t, 0.1, 0.1, 0.1) for index, t in enumerate((0.5, 0.2, 0.9))]  # as a file may say
    lanes = [lane_of(made), LaneModel("broken", state="ended", end="error", error="it did not load")]
    head = Playhead(lanes)
    assert head.length == 0.9
    head.seek(0.3)
    assert not lanes[0].rounds and lanes[1].error == "it did not load"
    head.seek(0.5)
    assert len(lanes[0].rounds) == 2
    while not head.at_end:
        head.step_phase(1)
    while head.seconds > 0:
        head.step_phase(-1)
    assert Playhead([]).length == 0.0


@given(rounds(), st.integers(0, 12))
@settings(max_examples=60, deadline=None)
def test_a_part_of_a_table_is_the_table_of_those_rounds(made, count):
    part, own = RoundTable(made, 0.25).until(count), RoundTable(made[:count], 0.25)
    assert fold(part) == fold(own) and len(part) == len(own) and part.end_s == own.end_s
    assert part.by_part(3) == own.by_part(3) and part.draft_full == own.draft_full
    for name in ("t", "emitted", "seconds"):
        assert part[name].tolist() == own[name].tolist() and part.sums(name).tolist() == own.sums(name).tolist()


def test_seeking_in_a_long_race_is_quick():
    """20,000 tokens: what the Qt thread does for one movement of the scrubber, views aside."""
    rng = random.Random(0)
    lane = lane_of(make_rounds(7000))
    assert lane.emitted > 18_000
    head = Playhead([lane])
    spent = []
    for _ in range(40):
        moment = rng.random() * head.length
        begin = time.perf_counter()
        head.seek(moment)
        spent.append(time.perf_counter() - begin)
    assert sorted(spent)[20] < 0.05


@pytest.mark.real_model
@pytest.mark.timeout(600)
def test_the_bundled_models_rounds_are_stepped_through_in_every_lane(model_pool):
    """A chain and a tree of the bundled models, sampled: phase by phase to the end, and back."""
    from specview.models import bundled
    from specview.models.loading import engine_available

    if engine_available("transformers") is not None or bundled.find_target() is None:
        pytest.skip("the bundled models or their engine are not installed")
    lanes = (LaneSettings(), LaneSettings("draft-model", k=3), LaneSettings("eagle3", k=2, options={"tree": "dynamic"}))
    run = RunSettings(prompt="Why is the sky blue?", max_tokens=10, lanes=lanes, sampling=SamplingParams(0.8, seed=3))
    shown = RaceModel()
    race = Race(run, 1, model_pool)
    race.run(lambda event: shown.apply(event) and None)
    race.close()
    assert [lane.error for lane in shown.lanes] == [""] * 3 and any(round_.parents for round_ in shown.lanes[2].rounds)
    whole = kept(shown)
    head = Playhead(shown.lanes)
    head.seek(0.0)
    steps, seen = 0, {lane.name: set() for lane in shown.lanes}
    while not head.at_end:
        head.step_phase(1)
        steps += 1
        for lane in shown.lanes:
            seen[lane.name] |= {token.kind for token in lane.tokens}
    assert steps == sum(len(stages(round_)) for lane in shown.lanes for round_ in lane.rounds) and kept(shown) == whole
    assert seen["plain"] == {"plain"} and all(seen[lane.name] >= {"drafted", "accepted"} for lane in shown.lanes[1:])
    for _ in range(steps):
        head.step_phase(-1)
    assert head.seconds == 0.0 and not any(lane.tokens for lane in shown.lanes)
