"""The calibration of a target's passes: counts, medians, stopping, and what a race does with it."""

from __future__ import annotations

import pytest

from specview.decoding.interfaces import Forward
from specview.errors import Stopped
from specview.racing.calibration import ROWS, counts_up_to, measure_passes
from specview.racing.pool import ModelPool, target_key
from specview.settings.events import LaneRound, Progress
from specview.settings.run import LaneSettings
from tests.decoding.toy import FakeClock, FakeEngine, TableModel
from tests.racing.world import of_kind, race_end, rounds_of

ADAPTIVE = LaneSettings("prompt-lookup", policy="adaptive", k=6)
LOOKUP = LaneSettings("prompt-lookup", k=3)


def engine(clock: FakeClock, **options) -> FakeEngine:
    return FakeEngine(TableModel(6), 6, clock=clock, pass_cost=0.01, row_cost=0.001, **options)


def test_the_counts_reach_the_rows_that_are_needed():
    assert counts_up_to(1) == [1]
    assert counts_up_to(7) == [1, 2, 3, 4, 5, 7]
    assert counts_up_to(50) == [1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 50]
    assert counts_up_to(1000)[-1] == 1000
    assert list(ROWS) == sorted(set(ROWS))


def test_what_passes_take_is_found():
    clock = FakeClock()
    found = measure_passes(engine(clock), [1, 2, 3], 9, clock=clock)
    assert list(found) == counts_up_to(9)
    for rows, seconds in found.items():
        assert seconds == pytest.approx(0.01 + 0.001 * rows)


def test_hiccups_do_not_count():
    clock = FakeClock()
    target = engine(clock)
    made = target.new_session

    def hiccuping(*args):
        session = made(*args)
        forward = session.forward

        def slow(tokens, *rest) -> Forward:
            if target.forwards in (0, 9, 20):
                clock.now += 0.4
            return forward(tokens, *rest)

        session.forward = slow
        return session

    target.new_session = hiccuping
    found = measure_passes(target, [1, 2, 3], 4, clock=clock)
    for rows, seconds in found.items():
        assert seconds == pytest.approx(0.01 + 0.001 * rows)


def test_it_ends_when_its_time_is_over_but_measures_every_count_once():
    clock = FakeClock()
    target = FakeEngine(TableModel(6), 6, clock=clock, pass_cost=3.0)
    found = measure_passes(target, [1], 17, clock=clock)
    assert list(found) == counts_up_to(17)
    assert target.forwards == 2 * len(counts_up_to(17)), "each once before it is timed"


def test_what_is_known_is_not_measured_again():
    clock = FakeClock()
    target = engine(clock)
    known = measure_passes(target, [1, 2], 5, clock=clock)
    before = target.forwards
    assert measure_passes(target, [1, 2], 4, known, clock=clock) == known
    assert target.forwards == before
    more = measure_passes(target, [1, 2], 9, known, clock=clock)
    assert set(more) - set(known) == {7, 9}
    assert {rows: more[rows] for rows in known} == known
    assert list(more) == sorted(more)


def test_the_session_is_thrown_away_even_after_a_stop():
    clock = FakeClock()
    target = engine(clock)

    def stop(fraction: float) -> None:
        assert 0 <= fraction <= 1
        if target.forwards == 4:
            raise Stopped

    with pytest.raises(Stopped):
        measure_passes(target, [1, 2], 9, on_count=stop, clock=clock)
    assert target.forwards == 4
    assert all(session.closed for session in target.sessions)


@pytest.mark.parametrize("longest", [2, 3, 8, 20])
def test_a_short_context_limits_the_rows(longest):
    clock = FakeClock()
    found = measure_passes(engine(clock, context_length=longest), [1] * 50, 65, clock=clock)
    assert 1 in found
    assert max(found) < longest


def test_a_race_calibrates_once_and_only_where_a_lane_asks(world):
    _, events = world.run(LOOKUP)
    assert not [e for e in of_kind(events, Progress) if "Measuring" in e.text]
    pool = ModelPool()
    race = world.race(ADAPTIVE, LOOKUP, models=pool)
    events = []
    race.run(events.append)
    told = [e for e in of_kind(events, Progress) if "Measuring" in e.text]
    assert told
    assert {e.phase for e in told} == {"warm-up"}
    begins = events.index(of_kind(events, LaneRound)[0])
    assert all(events.index(e) < begins for e in told)
    key = target_key(race.settings)
    assert pool.pass_s(key)[1] == pytest.approx(1.125)
    assert max(pool.pass_s(key)) == 7
    assert race.lanes[1].costs.calibrated == pool.pass_s(key)
    assert race.lanes[0].costs.calibrated == race.lanes[2].costs.calibrated == {}
    race.close()
    again = world.race(ADAPTIVE, models=pool)
    events = []
    again.run(events.append)
    assert not [e for e in of_kind(events, Progress) if "Measuring" in e.text]
    assert again.lanes[1].costs.calibrated
    assert again.lanes[1].costs is not race.lanes[1].costs, "each lane learns for itself"
    again.close()
    pool.close()


def test_it_is_on_no_lanes_clock_and_makes_no_rounds(world):
    race, events = world.run(ADAPTIVE)
    rounds = rounds_of(events, 1)
    assert rounds[0].index == 0
    assert race.lanes[1].clock == pytest.approx(sum(round_.seconds for round_ in rounds))
    assert race.lanes[1].record.token_ids == race.lanes[0].record.token_ids


def test_a_stop_while_it_measures_ends_the_race(world):
    race = world.race(ADAPTIVE)
    events = []
    race.run(events.append, lambda: any("Measuring" in e.text for e in of_kind(events, Progress)))
    assert race_end(events).end == "stopped"
    assert not of_kind(events, LaneRound)
