"""A race at its viewer's pace: paused, stepped and slowed between rounds, and no lane's clock knows of it."""

from __future__ import annotations

import threading
import time

import pytest

from specview.racing.load_meter import LoadMeter
from specview.racing.pacer import Pacer
from specview.settings.events import LaneRound
from tests.racing.world import DRAFTED, LOOKUP, of_kind, race_end, rounds_of

LANES = (DRAFTED, LOOKUP)


class Raced:
    """A race on a thread of its own."""

    def __init__(self, world, pacer: Pacer | None, **options) -> None:
        self.race = world.race(*LANES, **options)
        self.race.pacer = pacer
        self.events: list = []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=lambda: self.race.run(self.events.append, self.stop.is_set))
        self.thread.start()

    @property
    def count(self) -> int:
        return len(of_kind(self.events, LaneRound))

    def until(self, found, timeout_s: float = 20.0) -> None:
        end = time.monotonic() + timeout_s
        while not found():
            assert time.monotonic() < end, "not seen in time"
            time.sleep(0.002)

    def ended(self):
        self.thread.join(20)
        assert not self.thread.is_alive()
        return race_end(self.events)


def standing(raced: Raced) -> bool:
    """Whether no round comes any more."""
    before = raced.count
    time.sleep(0.05)
    return raced.count == before


def times(events) -> list:
    return [[(round_.t, round_.draft_s, round_.verify_s, round_.other_s, round_.emitted) for round_ in rounds_of(events, lane)] for lane in range(3)]


def test_the_ledger_of_a_race_that_was_held_back_is_that_of_one_that_was_not(world):
    _, alone = world.run(*LANES)
    pacer = Pacer()
    pacer.pause()
    raced = Raced(world, pacer)
    raced.until(lambda: pacer.waited_s > 0.01)
    assert raced.count == 0 and standing(raced)
    pacer.step()
    raced.until(lambda: raced.count == 1)
    pacer.step(3)
    raced.until(lambda: raced.count == 4)
    assert standing(raced)
    pacer.set_speed(1 / 4)
    pacer.go_on()
    raced.until(lambda: raced.count > 6)
    pacer.set_speed(1.0)
    end = raced.ended()
    assert times(raced.events) == times(alone) and end.end == "done"
    assert end.real_time_fraction == race_end(alone).real_time_fraction
    assert pacer.waited_s > 0.1


@pytest.mark.parametrize("held", ["paused", "slowed"])
def test_a_stop_ends_the_wait_at_once(world, held):
    pacer = Pacer()
    raced = Raced(world, pacer)
    pacer.set_speed(1e-9) if held == "slowed" else pacer.pause()
    raced.until(lambda: pacer.waited_s > 0)
    count = raced.count
    raced.stop.set()
    pacer.wake()
    began = time.monotonic()
    assert raced.ended().end == "stopped" and time.monotonic() - began < 1
    assert raced.count == count


def test_slowed_rounds_take_so_many_times_as_long():
    class Clock:
        now = 0.0

        def __call__(self) -> float:
            return self.now

    clock = Clock()
    pacer = Pacer(clock)
    waits: list[float] = []

    class Waiting(threading.Condition):
        def wait(self, timeout=None):
            waits.append(timeout)
            clock.now += timeout
            return True

    pacer._changed = Waiting()
    clock.now = 50.0  # a long time at full speed counts for nothing
    pacer.set_speed(1 / 4)
    for _ in range(3):
        clock.now += 0.5  # a round
        pacer.wait(lambda: False)
    assert waits == pytest.approx([1.5] * 3) and pacer.waited_s == pytest.approx(4.5)
    pacer.set_speed(4.0)
    assert pacer.speed == 1.0 and not pacer.holds
    pacer.pause()
    pacer.reset()
    assert not pacer.holds and pacer.waited_s == 0


def test_what_others_do_while_a_race_waits_is_not_held_against_it(monkeypatch):
    readings = iter([(100.0, 50.0, 10.0), (110.0, 55.0, 15.0), (210.0, 150.0, 15.0), (220.0, 155.0, 20.0)])
    monkeypatch.setattr(LoadMeter, "_times", lambda self: next(readings))
    meter = LoadMeter()
    with meter.left_out():
        pass
    assert meter.others_share() == 0.0
