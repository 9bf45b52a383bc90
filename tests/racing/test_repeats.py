"""`compare`: repeats of a race and the medians over them; the load meter."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median

import pytest

from specview import cli
from specview.decoding.metrics import fold
from specview.decoding.speedup import speedup
from specview.errors import SpecviewError
from specview.racing import compare as compare_module
from specview.racing import race as race_module
from specview.racing.compare import compare, median_metrics
from specview.racing.load_meter import LoadMeter
from specview.racing.pool import ModelPool
from specview.settings.events import LaneEnded, LaneRound, RaceStarted
from specview.settings.run import BUNDLED, LaneSettings, RunSettings
from tests.racing.world import DRAFTED, LOOKUP, PROMPT, World, of_kind


@pytest.fixture
def world(monkeypatch) -> World:
    world = World(monkeypatch)
    real = race_module.Race
    # `compare` makes its races itself: give them the fake clock.
    monkeypatch.setattr(
        "specview.racing.compare.Race",
        lambda settings, run_id, models, *more: real(settings, run_id, models, clock=world.clock),
    )
    return world


def settings_of(*lanes: LaneSettings, **options) -> RunSettings:
    options = {"prompt": PROMPT, "max_tokens": 30, "chat": False, "observe": "off", **options}
    return RunSettings(lanes=(LaneSettings(), *lanes), **options)


def slower_each_time(world, factors):
    """The target's pass takes 1 s times the next factor in every repeat."""
    costs = iter(factors)

    def on_event(event):
        if isinstance(event, RaceStarted):
            world.engines["target", BUNDLED].pass_cost = next(costs)

    return on_event


def test_one_repeat(world):
    found = compare(settings_of(DRAFTED, LOOKUP))
    assert found.end == "done"
    assert [lane.record.name for lane in found.lanes] == ["plain", "draft-model", "prompt-lookup"]
    assert found.prompt_text == PROMPT
    assert found.prompt_ids == tuple(world.tokenizer.encode(PROMPT))
    assert found.facts["target_model_name"] == "fake-target"
    plain = found.lanes[0]
    assert (plain.speedup, plain.equality) == (None, None)
    for lane in found.lanes:
        assert len(lane.repeats) == 1
        assert lane.repeats[0] == (lane.record, lane.metrics)
        assert lane.record.end == "limit"
        assert lane.error == ""
    for lane in found.lanes[1:]:
        rate = lane.metrics.decode_tokens_per_s / plain.metrics.decode_tokens_per_s
        assert lane.speedup.value == pytest.approx(rate, rel=0.25)  # over the common time, not all of it
        assert lane.equality.equal


def test_figures_are_medians_over_the_repeats(world):
    factors = [1.0, 4.0, 2.0, 8.0, 3.0]
    found = compare(settings_of(DRAFTED, LOOKUP), 5, on_event=slower_each_time(world, factors))
    assert [len(lane.repeats) for lane in found.lanes] == [5, 5, 5]
    for index, lane in enumerate(found.lanes):
        rates = [metrics.decode_tokens_per_s for _, metrics in lane.repeats]
        assert len(set(rates)) == 5
        assert lane.metrics.decode_tokens_per_s == pytest.approx(median(rates))
        assert lane.metrics.verify_share == pytest.approx(median(m.verify_share for _, m in lane.repeats))
        assert lane.metrics.rounds == lane.repeats[0][1].rounds
        assert isinstance(lane.metrics.rounds, int)
        assert lane.metrics.acceptance_rate == lane.repeats[0][1].acceptance_rate
        # The median repeat, whose rounds go into files, is the one with the median rate: factor 3, the last.
        assert lane.record is lane.repeats[4][0]
        own = fold(lane.record.rounds, lane.record.prefill_s)
        assert own.decode_tokens_per_s == pytest.approx(lane.metrics.decode_tokens_per_s)
        if index == 0:
            assert lane.speedup is None


def test_speedup_is_the_median_of_the_ratios_and_the_spread_their_ends(world):
    ends: list[LaneEnded] = []
    slower = slower_each_time(world, [1.0, 4.0, 2.0])

    def on_event(event):
        slower(event)
        if isinstance(event, LaneEnded) and event.lane and event.equality is not None:
            ends.append(event)

    found = compare(settings_of(DRAFTED, LOOKUP), 3, on_event=on_event)
    for index in (1, 2):
        ratios = [end.speedup.value for end in ends if end.lane == index]
        assert len(set(ratios)) == 3 if index == 1 else len(ratios) == 3
        lane = found.lanes[index]
        assert lane.speedup.value == sorted(ratios)[1]
        assert lane.speedup.spread == (min(ratios), max(ratios))
        # The record, whose rounds go into files, is that repeat's.
        repeat = next(at for at, (record, _) in enumerate(lane.repeats) if record is lane.record)
        assert speedup(lane.record.rounds, found.lanes[0].repeats[repeat][0].rounds).value == lane.speedup.value


def test_repeats_load_once_and_give_the_same_tokens_at_temperature_0(world):
    found = compare(settings_of(DRAFTED), 3)
    assert world.loads == [("target", BUNDLED), ("draft", BUNDLED)]
    for lane in found.lanes:
        assert len({tuple(record.token_ids) for record, _ in lane.repeats}) == 1
    assert all(engine.closed for engine in world.engines.values())
    assert all(session.closed for engine in world.engines.values() for session in engine.sessions)


def test_a_given_pool_is_kept(world):
    pool = ModelPool()
    compare(settings_of(DRAFTED), 2, pool)
    assert not world.engines["target", BUNDLED].closed
    compare(settings_of(DRAFTED), 1, pool)
    assert len(world.loads) == 2
    pool.close()
    assert world.engines["target", BUNDLED].closed


def test_run_ids_count_the_repeats(world):
    events = []
    compare(settings_of(LOOKUP), 3, on_event=events.append)
    ids = [event.run_id for event in events]
    assert ids == sorted(ids)
    assert set(ids) == {0, 1, 2}


def test_a_stop_in_the_first_repeat_keeps_what_there_is(world):
    events = []
    found = compare(
        settings_of(DRAFTED),
        3,
        on_event=events.append,
        should_stop=lambda: len(of_kind(events, LaneRound)) >= 7,
    )
    assert found.end == "stopped"
    assert sum(len(lane.record.rounds) for lane in found.lanes) == 7
    assert [len(lane.repeats) for lane in found.lanes] == [1, 1]
    assert {lane.record.end for lane in found.lanes} == {"stopped"}


def test_a_stop_in_a_later_repeat_keeps_the_finished_ones(world):
    events = []

    def stop():
        return any(event.run_id == 2 for event in of_kind(events, LaneRound))

    found = compare(settings_of(DRAFTED), 5, on_event=events.append, should_stop=stop)
    assert found.end == "stopped"
    assert [len(lane.repeats) for lane in found.lanes] == [2, 2]
    assert {lane.record.end for lane in found.lanes} == {"limit"}


def test_a_stop_before_anything_gives_no_lanes(world):
    found = compare(settings_of(DRAFTED), 2, should_stop=lambda: True)
    assert (found.end, found.lanes) == ("stopped", [])


def test_a_run_that_fails_raises_its_line_and_frees_everything(world):
    def broken():
        raise SpecviewError("There is no file x.", "Check the path.")

    world.models["target", "bundled"] = broken
    with pytest.raises(SpecviewError, match="There is no file x. Check the path."):
        compare(settings_of(DRAFTED), 3)


def test_bad_settings_raise_their_line(world):
    with pytest.raises(SpecviewError, match="k is 0"):
        compare(settings_of(replace(LOOKUP, k=0)))
    assert world.loads == []


def test_a_lane_error_is_kept_beside_the_others(world):
    def broken():
        raise SpecviewError("draft.gguf is cut short.", "Download it again.")

    world.models["draft", "bundled"] = broken
    found = compare(settings_of(DRAFTED, LOOKUP), 2)
    assert found.end == "done"
    assert found.lanes[1].error == "draft.gguf is cut short. Download it again."
    assert found.lanes[1].metrics.rounds == 0
    assert found.lanes[1].metrics.decode_tokens_per_s is None
    assert found.lanes[1].speedup is None
    assert found.lanes[2].error == ""


def failing_in(world, repeat, role="draft", passes=6):
    """In this repeat (0-based) the engine of the role fails after so many passes."""

    def on_event(event):
        if isinstance(event, RaceStarted):
            engine = world.engines[role, BUNDLED]
            engine.fail_after = engine.forwards + passes if event.run_id == repeat else None

    return on_event


def test_a_repeat_that_failed_is_told_and_is_in_no_median(world):
    whole = compare(settings_of(DRAFTED, LOOKUP)).lanes
    found = compare(settings_of(DRAFTED, LOOKUP), 3, on_event=failing_in(world, 1))
    lane = found.lanes[1]
    assert "the device fell off" in lane.error
    assert lane.error.startswith("repeat 2 of 3 failed and is in no median: ")
    assert [record.end for record, _ in lane.repeats] == ["limit", "error", "limit"]
    assert 0 < lane.repeats[1][1].emitted < 30, "the repeat as far as it came is in the list"
    assert (lane.record.end, lane.metrics) == ("limit", whole[1].metrics)
    assert lane.speedup.value == pytest.approx(whole[1].speedup.value)
    assert lane.speedup.spread == pytest.approx((lane.speedup.value, lane.speedup.value))
    for other in (0, 2):
        assert (found.lanes[other].error, found.lanes[other].metrics) == ("", whole[other].metrics)


def test_a_repeat_whose_plain_lane_failed_gives_no_ratio(world):
    whole = compare(settings_of(LOOKUP)).lanes[1]
    engine = failing_in(world, 0, "target", passes=3)

    def once(event):
        engine(event)
        if isinstance(event, LaneEnded) and event.end == "error":
            world.engines["target", BUNDLED].fail_after = None  # the other lane goes on

    found = compare(settings_of(LOOKUP), 2, on_event=once)
    assert [record.end for record, _ in found.lanes[0].repeats] == ["error", "limit"]
    assert found.lanes[0].error.startswith("repeat 1 of 2 failed")
    assert (found.lanes[1].error, found.lanes[1].speedup.value) == ("", pytest.approx(whole.speedup.value))


def test_a_lane_that_failed_in_every_repeat_has_what_it_gave(world):
    def on_event(event):
        if isinstance(event, RaceStarted):
            engine = world.engines["draft", BUNDLED]
            engine.fail_after = engine.forwards + 6

    lane = compare(settings_of(DRAFTED), 2, on_event=on_event).lanes[1]
    assert (lane.record.end, len(lane.repeats)) == ("error", 2)
    assert lane.metrics.emitted and lane.error.startswith("Unexpected RuntimeError: the device fell off")


def test_the_command_fails_where_a_repeat_did(world, monkeypatch, capsys):
    real = compare_module.compare

    def failing(settings, repeats, models, take, should_stop):
        fail = failing_in(world, 1)
        return real(settings, repeats, models, lambda event: (fail(event), take(event)), should_stop)

    monkeypatch.setattr(compare_module, "compare", failing)
    flags = ["--prompt", PROMPT, "--raw", "--max-tokens", "30", "--method", "draft-model", "--no-keep", "--observe", "off"]
    assert cli.main(["compare", *flags, "--repeats", "3"]) == 1
    out, err = capsys.readouterr()
    assert "draft-model" in out and err.count("\n") == 1
    assert err.startswith("specview: lane draft-model: repeat 2 of 3 failed and is in no median: ")


def test_median_metrics_figure_by_figure():
    from tests.decoding.test_metrics import ledger

    all_metrics = [fold(ledger(seed, 10 + seed), 0.5, 0.02) for seed in (1, 2, 3)]
    found = median_metrics(all_metrics)
    for name, value in found.as_dict().items():
        values = [getattr(metrics, name) for metrics in all_metrics]
        if name.startswith("position_"):
            for at in range(max(map(len, values))):
                there = [one[at] for one in values if at < len(one) and one[at] is not None]
                assert value[at] == (pytest.approx(median(there)) if there else None), name
        elif name == "by_drafter":
            for key, share in value.items():
                for figure, middle in share.items():
                    there = sorted(one[key][figure] for one in values if key in one and one[key][figure] is not None)
                    whole = there and isinstance(there[0], int)
                    expected = (there[(len(there) - 1) // 2] if whole else pytest.approx(median(there))) if there else None
                    assert middle == expected, (key, figure)
        elif name == "server":
            assert value == {}  # no lane of a server: see test_remote_lane
        elif value is None:
            assert values == [None] * 3
        else:
            assert value == pytest.approx(median(values)), name
    nothing = fold([])
    mixed = median_metrics([nothing, all_metrics[0], nothing])
    assert mixed.acceptance_rate == all_metrics[0].acceptance_rate  # the median of those that exist
    assert median_metrics([nothing, nothing]).acceptance_rate is None
    even = median_metrics(all_metrics[:2])
    assert isinstance(even.rounds, int), "a count stays whole"
    assert even.decode_tokens_per_s == pytest.approx(
        (all_metrics[0].decode_tokens_per_s + all_metrics[1].decode_tokens_per_s) / 2
    )


# -- the load meter ---------------------------------------------------------------------------------------------


class FixedTimes(LoadMeter):
    """A meter over given (total, busy, own) seconds."""

    def __init__(self, *times):
        self.given = list(times)
        super().__init__()

    def _times(self):
        return self.given.pop(0)


@pytest.mark.parametrize(
    ("later", "share"),
    [
        ((110.0, 60.0, 15.0), 0.5),  # of 10 s 10 busy, 5 ours
        ((110.0, 52.0, 12.0), 0.0),
        ((110.0, 55.0, 15.0), 0.0),
        ((110.0, 55.0, 17.0), 0.0),  # clocks of two sources: never negative
        ((100.4, 50.4, 10.0), None),  # too short to tell
    ],
)
def test_the_share_of_other_programs(later, share):
    meter = FixedTimes((100.0, 50.0, 10.0), later)
    assert meter.others_share() == (None if share is None else pytest.approx(share))


def test_busy_is_said_only_when_it_is():
    assert "used 50% of the processor" in FixedTimes((100, 50, 10), (110, 60, 15)).busy_text()
    assert FixedTimes((100, 50, 10), (110, 51, 10)).busy_text() == ""
    assert FixedTimes((100, 50, 10), (100.1, 50.1, 10)).busy_text() == ""


def test_the_real_meter_reads_this_machine():
    meter = LoadMeter()
    begin = time.perf_counter()
    while time.perf_counter() - begin < 0.6:
        sum(range(1000))
    share = meter.others_share()
    assert share is None or 0 <= share <= 1
