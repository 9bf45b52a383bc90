"""The calibration that explanations rest on, over made-up engines."""

from __future__ import annotations

import itertools

import pytest

from specview.errors import Stopped
from specview.lab.calibrate import calibrate_passes
from specview.racing.pool import ModelPool, target_key
from specview.racing.resolve import checked_run
from tests.racing.world import LOOKUP, World, rounds_of

TEXT = "Measuring the target's passes"


@pytest.fixture
def world(monkeypatch) -> World:
    return World(monkeypatch)


def test_every_k_to_8_is_measured_and_longer_ones_at_some_until_asked_for_afresh(world):
    pool = ModelPool()
    settings = checked_run(world.race().settings)
    said = []
    found = calibrate_passes(pool, settings, clock=world.clock, tell=lambda text, fraction: said.append((text, fraction)))
    assert list(found) == list(range(1, 10))
    for rows, seconds in found.items():
        assert seconds == pytest.approx(1 + 0.125 * rows)  # the world's costs
    fractions = [fraction for text, fraction in said if text == TEXT]
    assert fractions and all(0 <= fraction <= 1 for fraction in fractions)
    target = pool.get(target_key(settings))
    before = target.forwards
    assert calibrate_passes(pool, settings, clock=world.clock) == found == pool.pass_s(target_key(settings))
    assert target.forwards == before  # what was measured is kept
    assert list(calibrate_passes(pool, settings, k=16, clock=world.clock)) == [*range(1, 10), 13, 17]
    target.pass_cost = 2.0
    assert calibrate_passes(pool, settings, afresh=True, clock=world.clock)[1] == pytest.approx(2.125)
    assert all(session.closed for session in target.sessions)


def test_the_race_that_follows_uses_the_same_engine_and_leaves_no_trace_of_it(world):
    pool = ModelPool()
    race = world.race(LOOKUP, models=pool)
    calibrate_passes(pool, checked_run(race.settings), clock=world.clock)
    events = []
    race.run(events.append)
    assert world.loads == [("target", "bundled")]
    assert rounds_of(events, 1)[0].index == 0


def test_stop_ends_it(world):
    asked = itertools.count()
    with pytest.raises(Stopped):
        calibrate_passes(ModelPool(), checked_run(world.race().settings), should_stop=lambda: next(asked) > 5, clock=world.clock)
