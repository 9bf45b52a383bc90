"""Keeping a race costs its lanes nothing, and a real race reads back as it was told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from specview.files.reader import read_trace
from specview.library.keeping import RunKeeper
from specview.library.library import RunLibrary
from specview.library.repeat import settings_of_trace
from specview.library.replay import lane_end, race_end
from specview.settings.events import LaneEnded, LaneRound, RaceEnded
from tests.racing.world import DRAFTED, LOOKUP, World, last_ends, rounds_of


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_writing_is_on_no_lanes_clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A disk that takes a minute for every line changes no round's time: neither a phase nor what observing took."""
    _, alone = World(monkeypatch).run(DRAFTED, LOOKUP, observe="full")
    world = World(monkeypatch)
    real = os.write

    def slow(fd: int, data: bytes) -> int:
        world.clock.now += 60.0
        return real(fd, data)

    monkeypatch.setattr(os, "write", slow)
    keeper = RunKeeper(RunLibrary(tmp_path))
    race = world.race(DRAFTED, LOOKUP, observe="full")
    kept: list[Any] = []
    race.run(lambda event: (kept.append(event), keeper.take(event)))
    assert world.clock.now > 60 * 20
    for lane in range(3):
        assert rounds_of(kept, lane) == rounds_of(alone, lane)
        assert last_ends(kept)[lane].metrics == last_ends(alone)[lane].metrics


def test_a_real_race_reads_back_as_it_was_told(world: World, tmp_path: Path) -> None:
    keeper = RunKeeper(RunLibrary(tmp_path))
    race = world.race(DRAFTED, LOOKUP, observe="full")
    told: list[Any] = []
    race.run(lambda event: (told.append(event), keeper.take(event)))
    assert keeper.path is not None
    trace = read_trace(keeper.path)
    for lane, record in enumerate(trace.records):
        rounds = rounds_of(told, lane)
        assert record.token_ids == race.records[lane].token_ids and record.text == race.records[lane].text
        assert [(r.k, r.accepted, r.judged, r.rows) for r in record.rounds] == [(r.k, r.accepted, r.judged, r.rows) for r in rounds]
        read, ended = lane_end(trace, lane), last_ends(told)[lane]
        assert read is not None and (read.end, read.equality) == (ended.end, ended.equality)
        assert read.metrics.accepted == ended.metrics.accepted
        assert read.metrics.decode_tokens_per_s == pytest.approx(ended.metrics.decode_tokens_per_s, rel=1e-6)
        assert (read.speedup and read.speedup.value) == (ended.speedup and pytest.approx(ended.speedup.value, rel=1e-6))
    assert race_end(trace).end == "done"
    assert [lane.method for lane in settings_of_trace(trace).lanes] == ["plain", "draft-model", "prompt-lookup"]


def test_a_race_stopped_in_the_middle_is_kept(world: World, tmp_path: Path) -> None:
    keeper = RunKeeper(RunLibrary(tmp_path))
    told: list[Any] = []
    race = world.race(DRAFTED, LOOKUP)
    race.run(lambda event: (told.append(event), keeper.take(event)), lambda: sum(isinstance(e, LaneRound) for e in told) >= 7)
    (entry,) = RunLibrary(tmp_path).scan()
    assert entry.end == "stopped" and [lane.end for lane in entry.lanes] == ["stopped"] * 3
    assert sum(len(record.rounds) for record in read_trace(entry.path).records) == 7
    assert isinstance(told[-1], RaceEnded) and any(isinstance(event, LaneEnded) for event in told)
