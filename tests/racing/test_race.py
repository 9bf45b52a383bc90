"""The race over fake engines and a fake clock: scheduling, clocks, stop, errors, continuation, equality."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specview.decoding.metrics import fold
from specview.decoding.sampling import SamplingParams
from specview.decoding.speedup import speedup
from specview.errors import SpecviewError, UsageError
from specview.racing.race import one_line
from specview.settings.events import (
    Failed,
    LaneEnded,
    LanePrefilled,
    LaneRound,
    Progress,
    RaceEnded,
    RaceStarted,
)
from specview.settings.run import BUNDLED, LaneSettings
from tests.decoding.toy import TableModel, plain_reference
from tests.racing.world import (
    DRAFTED,
    LOOKUP,
    PROMPT,
    SAMPLED,
    VOCAB,
    World,
    last_ends,
    of_kind,
    race_end,
    rounds_of,
)

IDS = [ord(letter) - 97 for letter in PROMPT]


# -- scheduling and clocks ---------------------------------------------------------------------------------


def test_the_lane_furthest_behind_always_runs_next(world):
    _, events = world.run(DRAFTED, LOOKUP, max_tokens=40)
    clocks, running, switches = [0.0] * 3, {0, 1, 2}, 0
    previous = None
    for event in events:
        if isinstance(event, LaneRound):
            assert event.lane in running
            assert clocks[event.lane] == min(clocks[lane] for lane in running)
            assert event.round.t > clocks[event.lane]
            clocks[event.lane] = event.round.t
            switches += previous not in (None, event.lane)
            previous = event.lane
        elif isinstance(event, LaneEnded):
            running.discard(event.lane)
    assert running == set()
    assert switches > 20, "the lanes were interleaved"


def test_a_lanes_clock_counts_only_its_own_compute(world):
    race, events = world.run(DRAFTED, LOOKUP)
    for index, lane in enumerate(race.lanes):
        rounds = rounds_of(events, index)
        t = 0.0
        for round_ in rounds:
            assert round_.verify_s == pytest.approx(1 + 0.125 * (round_.k + 1))
            expected = 0.25 * round_.k if index == 1 else 0
            assert round_.draft_s == pytest.approx(expected)
            t += round_.draft_s + round_.verify_s
            assert round_.t == pytest.approx(t)
        assert lane.clock == pytest.approx(t)
    prefills = [event.prefill_s for event in of_kind(events, LanePrefilled)]
    assert prefills == pytest.approx([4 * 0.0625, 4 * 0.0625 + 4 * 0.03125, 4 * 0.0625])


def test_a_lanes_figures_equal_those_of_the_lane_alone(world):
    together, together_events = world.run(DRAFTED, LOOKUP, replace(DRAFTED, draft="other", name="other"))
    alone = [
        world.run()[0].records[0],
        world.run(DRAFTED)[0].records[1],
        world.run(LOOKUP)[0].records[1],
        world.run(replace(DRAFTED, draft="other", name="other"))[0].records[1],
    ]
    for lane, single in zip(together.records, alone, strict=True):
        assert lane.name == single.name
        assert lane.token_ids == single.token_ids
        assert len(lane.rounds) == len(single.rounds)
        for a, b in zip(lane.rounds, single.rounds, strict=True):
            assert (a.index, a.drafted, a.final) == (b.index, b.drafted, b.final)
            assert (a.t, a.draft_s, a.verify_s) == pytest.approx((b.t, b.draft_s, b.verify_s))
    for index, end in last_ends(together_events).items():
        mine = fold(alone[index].rounds, alone[index].prefill_s)
        assert end.metrics.decode_tokens_per_s == pytest.approx(mine.decode_tokens_per_s)


def test_looking_is_off_every_clock(world):
    _, bare = world.run(DRAFTED, LOOKUP)
    world.tokenizer.clock, world.tokenizer.text_cost = world.clock, 5.0
    _, seen = world.run(DRAFTED, LOOKUP, observe="full")
    for lane in range(3):
        assert [round_.t for round_ in rounds_of(seen, lane)] == pytest.approx(
            [round_.t for round_ in rounds_of(bare, lane)]
        )
        assert all(round_.observe_s >= 5 for round_ in rounds_of(seen, lane))
        assert all(round_.observe_s == 0 for round_ in rounds_of(bare, lane))
    assert race_end(seen).real_time_fraction < 0.1


def test_real_time_fraction_is_virtual_over_wall(world):
    race, events = world.run(DRAFTED, LOOKUP)
    clocks = [lane.clock for lane in race.lanes]
    assert race_end(events).real_time_fraction == pytest.approx(max(clocks) / sum(clocks))
    _, alone = world.run()
    assert race_end(alone).real_time_fraction == pytest.approx(1)


# -- events ---------------------------------------------------------------------------------------------------


def test_every_event_carries_the_run_id_and_they_come_in_order(world):
    _, events = world.run(DRAFTED, LOOKUP, run_id=42)
    assert {event.run_id for event in events} == {42}
    kinds = [type(event) for event in events]
    started = kinds.index(RaceStarted)
    assert set(kinds[:started]) == {Progress}
    phases = [event.phase for event in of_kind(events, Progress)]
    assert list(dict.fromkeys(phases)) == ["load", "tokenize", "load-draft", "warm-up", "prefill"]
    assert kinds.index(LanePrefilled) > started
    assert kinds.index(LaneRound) > max(i for i, kind in enumerate(kinds) if kind is LanePrefilled)
    assert kinds[-4:] == [LaneEnded, LaneEnded, LaneEnded, RaceEnded]  # the final figures
    assert kinds.count(LaneEnded) == 6
    fractions = [event.fraction for event in of_kind(events, Progress) if event.fraction is not None]
    assert all(0 <= fraction <= 1 for fraction in fractions)


def test_race_started_tells_the_run(world):
    race, events = world.run(DRAFTED, LOOKUP)
    (started,) = of_kind(events, RaceStarted)
    assert started.prompt_ids == tuple(IDS)
    assert started.prompt_text == PROMPT
    assert started.lane_names == ("plain", "draft-model", "prompt-lookup")
    assert [settings["method"] for settings in started.lane_settings] == [
        "plain",
        "draft-model",
        "prompt-lookup",
    ]
    assert [settings["k"] for settings in started.lane_settings] == [None, 3, 4]
    assert {settings["rule"] for settings in started.lane_settings} == {"greedy"}
    assert started.lane_settings[2]["option_match"] == "first"
    assert started.facts["target_model_name"] == "fake-target"
    assert started.facts["draft_1_model_name"] == "fake-draft"
    assert [record.name for record in race.records] == list(started.lane_names)
    prefilled = of_kind(events, LanePrefilled)
    assert [event.draft_weight_bytes for event in prefilled] == [0, 1000, 0]
    assert all(event.kv_bytes > 0 for event in prefilled)
    assert prefilled[1].kv_bytes == 2 * (len(IDS) + 2 * 24 + 3 + 1) * 10  # target and draft


def test_final_figures_are_folds_of_the_rounds(world):
    race, events = world.run(DRAFTED, LOOKUP, max_tokens=60)
    plain = race.records[0]
    step = sorted(round_.verify_s for round_ in plain.rounds)[len(plain.rounds) // 2]
    for index, end in last_ends(events).items():
        record = race.records[index]
        assert record.rounds == rounds_of(events, index)
        assert end.metrics == fold(record.rounds, record.prefill_s, step)
        assert end.end == record.end == "limit"
        if index:
            assert end.speedup == speedup(record.rounds, plain.rounds)
            assert end.equality.equal
            assert end.equality.compared == 60
            assert end.speedup.low <= end.speedup.value <= end.speedup.high
        else:
            assert (end.speedup, end.equality) == (None, None)


def test_default_k_is_the_engines(world):
    _, events = world.run(LaneSettings("prompt-lookup"))
    assert of_kind(events, RaceStarted)[0].lane_settings[1]["k"] == 2  # CPU
    world.models["target", "bundled"] = lambda: gpu(world)
    race, events = world.run(LaneSettings("prompt-lookup"))
    assert race.lanes[1].k == 4
    race.close()


def gpu(world):
    engine = world.make_target()
    engine.device = "cuda"
    return engine


# -- the output ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["constant", "heuristic", "confidence"])
def test_greedy_lanes_give_the_plain_output(world, policy):
    race, _ = world.run(*(replace(lane, policy=policy) for lane in (DRAFTED, LOOKUP)), max_tokens=50)
    expected = plain_reference(TableModel(VOCAB, order=3), IDS, SamplingParams(), 50)
    assert [record.token_ids for record in race.records] == [expected] * 3
    assert all(any(round_.accepted for round_ in record.rounds) for record in race.records[1:])


def test_match_lanes_give_the_sampled_plain_output(world):
    lanes = [replace(lane, rule="match") for lane in (DRAFTED, LOOKUP)]
    race, events = world.run(*lanes, sampling=SAMPLED, max_tokens=50)
    expected = plain_reference(TableModel(VOCAB, order=3), IDS, SAMPLED, 50)
    assert [record.token_ids for record in race.records] == [expected] * 3
    assert all(end.equality.equal for lane, end in last_ends(events).items() if lane)


def test_a_model_drafting_for_itself(world):
    own = replace(DRAFTED, draft="self")
    for sampling in (SamplingParams(), SAMPLED):
        _, events = world.run(own, sampling=sampling, max_tokens=40)
        metrics = last_ends(events)[1].metrics
        assert metrics.acceptance_rate == 1.0
        assert metrics.tokens_per_target_pass == 4.0
        assert last_ends(events)[1].speedup.value > 1


def test_texts_and_eos(monkeypatch):
    world = World(monkeypatch, eos_ids=(4,))
    race, events = world.run(DRAFTED, LOOKUP, observe="light", max_tokens=200)
    expected = plain_reference(TableModel(VOCAB, order=3), IDS, SamplingParams(), 200)
    assert 4 in expected, "the case needs an EOS"
    expected = expected[: expected.index(4) + 1]
    for record in race.records:
        assert record.end == "eos"
        assert record.token_ids == expected  # EOS counts and stands in the ids,
        assert record.text == "".join(chr(97 + token) for token in expected[:-1])  # not in the text
    assert {end.end for end in last_ends(events).values()} == {"eos"}
    assert not race.can_continue


# -- stop ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [1, 7, 30])
def test_stop_while_decoding_takes_effect_within_one_round(world, after):
    race = world.race(DRAFTED, LOOKUP, max_tokens=100)
    events = []
    race.run(events.append, lambda: len(of_kind(events, LaneRound)) >= after)
    assert len(of_kind(events, LaneRound)) == after
    assert race_end(events).end == "stopped"
    ends = last_ends(events)
    assert {lane: end.end for lane, end in ends.items()} == {0: "stopped", 1: "stopped", 2: "stopped"}
    for index, record in enumerate(race.records):  # no finished round is lost
        assert record.rounds == rounds_of(events, index)
        assert ends[index].metrics.emitted == len(record.token_ids)
    assert race.can_continue


def test_stop_keeps_lanes_that_had_ended_as_they_were(world):
    race = world.race(replace(DRAFTED, draft="self"), max_tokens=30)
    events = []
    race.run(events.append, lambda: bool(of_kind(events, LaneEnded)))
    assert race_end(events).end == "stopped"
    assert sorted(record.end for record in race.records) == ["limit", "stopped"]


@pytest.mark.parametrize("load", [0, 1])
def test_stop_while_loading(world, load):
    world.load_steps = 5
    race = world.race(DRAFTED)
    events = []
    race.run(events.append, lambda: len(world.loads) == load + 1 and events[-1].fraction == 0.6)
    assert race_end(events).end == "stopped"
    assert of_kind(events, (RaceStarted, Failed)) == []
    assert len(world.loads) == load + 1
    assert max(event.fraction for event in of_kind(events, Progress)[-1:]) == 0.6


@pytest.mark.parametrize("lane", [0, 1, 2])
def test_stop_during_prefill(world, lane):
    race = world.race(DRAFTED, LOOKUP, prompt=PROMPT * 4)
    events = []

    def stop():
        chunks = [
            event for event in of_kind(events, Progress) if event.phase == "prefill" and event.lane == lane
        ]
        return len(chunks) >= 3

    race.run(events.append, stop)
    assert race_end(events).end == "stopped"
    assert of_kind(events, LaneRound) == []
    assert [event.lane for event in of_kind(events, LanePrefilled)] == list(range(lane))
    assert {end.end for end in last_ends(events).values()} == {"stopped"}
    race.close()
    assert all(session.closed for engine in world.engines.values() for session in engine.sessions)


# -- errors -------------------------------------------------------------------------------------------------------


def test_a_lane_that_fails_while_decoding_does_not_stop_the_others(world):
    world.models["draft", "bundled"] = lambda: failing(world.make_draft(), 12)
    race, events = world.run(DRAFTED, LOOKUP, max_tokens=40)
    assert race_end(events).end == "done"
    assert [record.end for record in race.records] == ["limit", "error", "limit"]
    assert len(race.records[0].token_ids) == len(race.records[2].token_ids) == 40
    failed = race.records[1]
    assert 0 < len(failed.token_ids) < 40, "it keeps what it had"
    assert "the device fell off" in failed.error
    assert "\n" not in failed.error
    assert last_ends(events)[1].error == failed.error
    assert last_ends(events)[1].metrics.rounds == len(failed.rounds)


def failing(engine, after):
    engine.fail_after = after
    return engine


def test_a_lane_whose_draft_cannot_be_loaded(world):
    def broken():
        raise SpecviewError("draft.gguf is cut short.", "Download it again.")

    world.models["draft", "bundled"] = broken
    race, events = world.run(DRAFTED, LOOKUP)
    assert [record.end for record in race.records] == ["limit", "error", "limit"]
    assert race.records[1].error == "draft.gguf is cut short. Download it again."
    assert race_end(events).end == "done"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory."), ValueError("odd")])
def test_a_draft_that_fails_to_load_in_any_way_ends_its_lane_only(world, error):
    def broken():
        raise error

    world.models["draft", "bundled"] = broken
    race, events = world.run(DRAFTED, LOOKUP)
    assert [record.end for record in race.records] == ["limit", "error", "limit"]
    assert race.records[1].error == one_line(error)
    assert race_end(events).end == "done"


def test_a_lane_whose_draft_does_not_fit_says_why_and_what_to_do(world, monkeypatch):
    from specview.models.pair_check import PairReport

    report = PairReport(False, "Token 7 is 'a' here and 'b' there. Choose a draft of the same family.")
    monkeypatch.setattr("specview.racing.race.check_pair", lambda target, draft: report)
    race, events = world.run(DRAFTED, LOOKUP)
    assert race.records[1].error == "Token 7 is 'a' here and 'b' there. Choose a draft of the same family."
    assert [record.end for record in race.records] == ["limit", "error", "limit"]
    assert of_kind(events, Failed) == []


def test_a_draft_that_does_not_fit_is_not_warmed_with_tokens_it_does_not_have(world, monkeypatch):
    from specview.models.pair_check import PairReport

    def small():
        draft = world.make_draft()
        draft.new_session = lambda length: (_ for _ in ()).throw(IndexError("index out of range in self"))
        return draft

    world.models["draft", "bundled"] = small
    monkeypatch.setattr("specview.racing.race.check_pair", lambda *pair: PairReport(False, "Another tokenizer."))
    race, events = world.run(DRAFTED, LOOKUP)
    assert race.records[1].error == "Another tokenizer."
    assert [record.end for record in race.records] == ["limit", "error", "limit"]
    assert of_kind(events, Failed) == []


def test_a_target_that_cannot_be_rolled_back_runs_plain_only(monkeypatch):
    world = World(monkeypatch, rollback_problem="its state is recurrent.")
    race, events = world.run(DRAFTED, LOOKUP)
    assert [record.end for record in race.records] == ["limit", "error", "error"]
    assert "fake-target cannot be drafted for: its state is recurrent." in race.records[1].error
    assert race_end(events).end == "done"


def test_a_target_that_cannot_be_loaded_fails_the_run(world):
    def broken():
        raise SpecviewError("There is no file x.", "Check the path.")

    world.models["target", "bundled"] = broken
    race, events = world.run(DRAFTED)
    assert [event.message for event in of_kind(events, Failed)] == ["There is no file x. Check the path."]
    assert race_end(events).end == "error"
    assert race.records == []


def test_unexpected_errors_and_no_memory_become_one_line(world):
    assert one_line(UsageError("k is 0.", "Use 1.")) == "k is 0. Use 1."
    assert "not enough memory" in one_line(MemoryError())
    assert "not enough memory" in one_line(RuntimeError("CUDA out of memory. Tried to allocate"))
    text = one_line(KeyError("a\nb" * 500))
    assert text.startswith("Unexpected KeyError")
    assert "\n" not in text
    assert len(text) < 500
    world.models["target", "bundled"] = lambda: (_ for _ in ()).throw(MemoryError())
    _, events = world.run()
    assert "not enough memory" in of_kind(events, Failed)[0].message


def test_when_no_lane_can_run_the_race_fails(world):
    world.models["target", "bundled"] = lambda: failing(world.make_target(), 3)  # warm-up takes 3
    race, events = world.run(LOOKUP)
    assert {record.end for record in race.records} == {"error"}
    assert race_end(events).end in ("done", "error")
    assert all(record.error for record in race.records)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_end_the_lane_with_the_model_named(world, bad):
    table = TableModel(VOCAB, order=3)

    def model(prefix):
        return np.full(VOCAB, bad, dtype=np.float32) if len(prefix) == 10 else table(prefix)

    world.models["target", "bundled"] = lambda: world.make_target(model=model)
    race, events = world.run(LOOKUP)
    for record in race.records:
        assert record.end == "error"
        assert "fake-target gave logits that are not finite" in record.error
        assert "output token 5" in record.error


def test_a_target_that_is_never_finite_is_told_as_such_not_by_the_warm_up(world):
    model = lambda prefix: np.full(VOCAB, float("nan"), dtype=np.float32)  # noqa: E731
    world.models["target", "bundled"] = lambda: world.make_target(model=model)
    race, events = world.run(LOOKUP)
    for record in race.records:
        assert "fake-target gave logits that are not finite (NaN or infinite) at output token 0" in record.error


# -- going on -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["auto", "match"])
@pytest.mark.parametrize("steps", [(10, 15), (3, 50), (5, 5, 5, 5, 5, 25)])
def test_going_on_past_the_limit_equals_one_longer_run(world, rule, steps):
    sampling = SAMPLED if rule == "match" else SamplingParams()
    lanes = [replace(lane, rule=rule) for lane in (DRAFTED, LOOKUP)]
    longer, _ = world.run(*lanes, sampling=sampling, max_tokens=sum(steps))
    race, events = world.run(*lanes, sampling=sampling, max_tokens=steps[0])
    for more in steps[1:]:
        assert race.can_continue
        events.clear()
        race.continue_(more, events.append)
        assert race_end(events).end == "done"
    for record, single in zip(race.records, longer.records, strict=True):
        assert record.token_ids == single.token_ids
        assert record.end == "limit"
        assert [round_.index for round_ in record.rounds] == list(range(len(record.rounds)))
        times = [round_.t for round_ in record.rounds]
        assert times == sorted(times)
        assert times[-1] == pytest.approx(sum(round_.seconds for round_ in record.rounds))
    assert all(end.equality.equal for lane, end in last_ends(events).items() if lane)


def test_going_on_after_a_stop_while_decoding(world):
    expected = plain_reference(TableModel(VOCAB, order=3), IDS, SamplingParams(), 200)
    race = world.race(DRAFTED, LOOKUP, max_tokens=60)
    events = []
    race.run(events.append, lambda: len(of_kind(events, LaneRound)) >= 9)
    had = [len(record.token_ids) for record in race.records]
    race.continue_(20, lambda event: None)
    for record, before in zip(race.records, had, strict=True):
        assert len(record.token_ids) == before + 20
        assert record.token_ids == expected[: before + 20]


@pytest.mark.parametrize("stopped_lane", [0, 1, 2])
def test_going_on_after_a_stop_during_prefill(world, stopped_lane):
    """A prefill cut short leaves half a prompt in a cache: it must be made anew."""
    prompt = PROMPT * 4
    race = world.race(DRAFTED, LOOKUP, prompt=prompt)
    events = []

    def stop():
        mine = [event for event in of_kind(events, Progress) if event.lane == stopped_lane]
        return sum(event.phase == "prefill" for event in mine) >= 3

    race.run(events.append, stop)
    assert race_end(events).end == "stopped"
    race.continue_(24, lambda event: None)
    ids = [ord(letter) - 97 for letter in prompt]
    expected = plain_reference(TableModel(VOCAB, order=3), ids, SamplingParams(), 24)
    assert [record.token_ids for record in race.records] == [expected] * 3


def test_going_on_after_a_stop_in_the_drafts_own_prefill(world):
    prompt = PROMPT * 4
    # Logits that depend on the whole cache, alike in both: any stale entry would show in what is drafted.
    whole = TableModel(VOCAB)
    world.models["target", "bundled"] = lambda: world.make_target(model=whole)
    world.models["draft", "bundled"] = lambda: draft_like(world, whole)
    race = world.race(DRAFTED, prompt=prompt)
    events = []
    race.run(
        events.append,
        lambda: (
            ("draft", "bundled") in world.engines
            and any(
                len(s.tokens) == 4
                for s in world.engines["draft", "bundled"].sessions
                if s.log[:1] == [("prefill", 2)]
            )
        ),
    )
    assert race_end(events).end == "stopped"
    assert [event.lane for event in of_kind(events, LanePrefilled)] == [0]
    race.continue_(24, lambda event: None)
    ids = [ord(letter) - 97 for letter in prompt]
    expected = plain_reference(whole, ids, SamplingParams(), 24)
    assert [record.token_ids for record in race.records] == [expected] * 2
    for round_ in race.records[1].rounds:
        assert round_.accepted == round_.k, "a wrong cache would draft noise"


def draft_like(world, model):
    engine = world.make_draft()
    engine.model = model
    return engine


def test_a_lane_that_cannot_go_on_does_not_stop_the_others(world):
    race, _ = world.run(DRAFTED, LOOKUP, max_tokens=10)

    def full(max_length):
        raise MemoryError

    world.engines["draft", BUNDLED].new_session = full
    events = []
    race.continue_(40, events.append)  # more than the caches have room for: they are made anew
    assert race_end(events).end == "done"
    assert of_kind(events, Failed) == []
    assert [len(record.token_ids) for record in race.records] == [50, 10, 50]
    assert "not enough memory" in race.records[1].error


def test_going_on_leaves_failed_and_ended_lanes_alone(world):
    world.models["draft", "bundled"] = lambda: failing(world.make_draft(), 12)
    race, _ = world.run(DRAFTED, LOOKUP, max_tokens=30)
    before = list(race.records[1].rounds)
    events = []
    race.continue_(10, events.append)
    assert race.records[1].rounds == before
    assert race.records[1].end == "error"
    assert [len(race.records[lane].token_ids) for lane in (0, 2)] == [40, 40]


def test_stop_and_go_on_again_and_again_loses_nothing(world):
    expected = plain_reference(TableModel(VOCAB, order=3), IDS, SamplingParams(), 400)
    race = world.race(DRAFTED, LOOKUP, max_tokens=40)
    events = []
    race.run(events.append, lambda: len(of_kind(events, LaneRound)) >= 4)
    for count in (5, 6, 7):
        events = []
        race.continue_(
            40, events.append, lambda events=events, count=count: len(of_kind(events, LaneRound)) >= count
        )
        assert race_end(events).end == "stopped"
        assert len(of_kind(events, LaneRound)) == count
    for record in race.records:
        assert record.token_ids == expected[: len(record.token_ids)]


def test_a_follow_up_carries_the_plain_lanes_reply(world):
    race, _ = world.run(DRAFTED, chat=True, observe="light", workload="chat", system="a")
    reply = race.records[0].text
    assert reply
    following = race.follow_up("cd")
    assert following.prompt == "cd"
    assert following.workload is None
    assert following.history == (
        {"role": "user", "content": PROMPT},
        {"role": "assistant", "content": reply},
    )
    next_race = world.race()
    next_race.settings = following
    next_race.run(lambda event: None)
    assert next_race.prompt_ids == world.tokenizer.encode("a" + PROMPT + reply + "cd")
    assert len(next_race.follow_up("e").history) == 4
    race.close()
    next_race.close()
