"""The view model: invariants over random rounds, states, speedup."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.ledger import DraftedToken, FinalToken, Round, RunRecord
from specview.decoding.metrics import fold
from specview.decoding.round_table import PHASES
from specview.gui.state.view_model import FINAL, LaneModel, RaceModel
from specview.settings.events import (
    Equality,
    Failed,
    LaneEnded,
    LanePrefilled,
    LaneRound,
    Progress,
    RaceEnded,
    RaceStarted,
)
from tests.decoding.speedups import times
from tests.gui.views_data import lane_rounds, make_race, make_rounds, stream

TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)


@st.composite
def rounds(draw: st.DrawFn) -> list[Round]:
    """Chains of drafts with any verdicts that a rule can give, EOS endings among them."""
    out = []
    clock = 0.0
    for index in range(draw(st.integers(0, 12))):
        k = draw(st.integers(0, 5))
        accepted = draw(st.integers(0, k))
        eos = draw(st.booleans()) and accepted > 0
        drafted = []
        for place in range(k):
            verdict = "accepted" if place < accepted else "rejected" if place == accepted and not eos else "ignored"
            drafted.append(DraftedToken(draw(st.integers(0, 99)), verdict, text=draw(TEXTS)))
        kind = "plain" if not k else "bonus" if accepted == k else "corrected"
        final = None if eos else FinalToken(draw(st.integers(0, 99)), kind, draw(TEXTS))
        times = [draw(st.floats(1e-4, 0.1)) for _ in range(3)]
        clock += sum(times)
        out.append(Round(index, clock, *times, drafted=tuple(drafted), final=final))
    return out


@given(rounds())
@settings(max_examples=150, deadline=None)
def test_lane_is_a_fold_of_its_rounds(made: list[Round]) -> None:
    lane = LaneModel()
    for round_ in made:
        lane.add(round_)
    record = RunRecord("x", {}, rounds=made)
    assert lane.text == record.text
    assert lane.emitted == len(record.token_ids)
    assert [t.position for t in lane.tokens if not t.ghost] == list(range(lane.emitted))
    assert len(lane.tokens) == sum(r.k + (r.final is not None) for r in made)
    for index, token in enumerate(lane.tokens):
        assert lane.index_of(token.round_index, token.token_index) == index
        assert token.ghost == (token.kind in ("rejected", "ignored"))
        source = made[token.round_index]
        assert token.text == (source.final if token.token_index == FINAL else source.drafted[token.token_index]).text
    metrics = fold(made)
    assert lane.metrics() == metrics
    assert len(lane.table) == len(made)
    if made:
        rate = lane.table.rate("accepted", "judged")[-1]
        assert math.isnan(rate) if metrics.acceptance_rate is None else rate == pytest.approx(metrics.acceptance_rate)
        assert lane.table.rate("emitted", "rounds")[-1] == pytest.approx(metrics.tokens_per_target_pass)
        assert lane.table.rate("emitted", "seconds")[-1] == pytest.approx(metrics.decode_tokens_per_s or 0.0)
        phases = [lane.table.total(name) for name in PHASES]
        assert phases == pytest.approx([sum(getattr(r, name) for r in made) for name in PHASES])


@given(rounds(), st.integers(1, 15))
@settings(max_examples=80, deadline=None)
def test_windowed_rates_are_those_of_the_last_rounds(made: list[Round], window: int) -> None:
    lane = LaneModel()
    for round_ in made:
        lane.add(round_)
    rates, passes, speeds = (
        lane.table.rate(*names, window) for names in (("accepted", "judged"), ("emitted", "rounds"), ("emitted", "seconds"))
    )
    for index in range(len(made)):
        part = fold(made[max(0, index + 1 - window):index + 1])
        assert math.isnan(rates[index]) == (part.acceptance_rate is None)
        if part.acceptance_rate is not None:
            assert rates[index] == pytest.approx(part.acceptance_rate)
        expected = part.emitted / min(window, index + 1)
        assert passes[index] == pytest.approx(expected)
        assert speeds[index] == pytest.approx(part.decode_tokens_per_s or 0.0, rel=1e-6, abs=1e-9)


def test_states_from_loading_to_end() -> None:
    race = RaceModel()
    race.lanes = [LaneModel("plain", {"method": "plain"}), LaneModel("fast", {"method": "draft-model", "k": 2})]
    race.begin(5)
    assert race.state == "loading" and {lane.state for lane in race.lanes} == {"loading"}
    assert race.apply(Progress(5, "load", "Loading weights", 0.4))
    assert race.lanes[0].progress_text == "Loading weights"
    assert not race.apply(Progress(4, "load", "old"))
    race.apply(RaceStarted(5, (1,), "p", ("plain", "fast"), ({"method": "plain"}, {"method": "draft-model"})))
    race.apply(Progress(5, "prefill", "Prefill 3 of 9", 0.3, lane=1))
    assert race.lanes[1].state == "prefill"
    race.apply(LanePrefilled(5, 1, 0.25, 100, 200))
    assert race.lanes[1].state == "running" and race.lanes[1].kv_bytes == 100
    made = make_rounds(3)
    for round_ in made:
        race.apply(LaneRound(5, 1, round_))
    assert race.lanes[1].metrics().ttft_s == pytest.approx(0.25 + made[0].seconds)
    assert not race.apply(LaneRound(4, 1, made[0]))
    assert len(race.lanes[1].rounds) == 3
    race.apply(LaneEnded(5, 1, "limit", fold(made), speedup=times(1.5), equality=Equality(True, 9)))
    assert (race.lanes[1].state, race.lanes[1].end) == ("ended", "limit")
    race.apply(RaceEnded(5, "stopped"))
    assert race.state == "ended"
    assert race.lanes[0].end == "stopped"
    assert race.lanes[1].end == "limit" and race.lanes[1].text


def test_lanes_keep_what_they_had() -> None:
    race = make_race(3)
    stream(race, 1.0)
    before = [lane.text for lane in race.lanes]
    race.apply(RaceEnded(1, "stopped"))
    race.begin(2)
    race.apply(Failed(2, "The file is cut short."))
    assert race.error == "The file is cut short."
    assert [lane.text for lane in race.lanes] == before
    again = make_race(3)
    generation = again.lanes[0].generation
    stream(again, 0.5)
    again.apply(RaceStarted(2, (9,), "q", ("plain",), ({"method": "plain"},)))
    assert len(again.lanes) == 1 and again.lanes[0].generation == generation + 1 and not again.lanes[0].tokens


def test_round_after_the_end_continues_the_lane() -> None:
    race = make_race(2)
    first, second = make_rounds(2, alpha=1.0)
    race.apply(LaneRound(1, 1, first))
    race.apply(LaneEnded(1, 1, "limit", fold([first])))
    race.apply(LaneRound(1, 1, second))
    lane = race.lanes[1]
    assert lane.state == "running" and lane.end is None
    assert lane.metrics().rounds == 2


def test_speedup_is_over_the_time_both_were_running() -> None:
    race = make_race(2)
    for index in range(100):
        t = (index + 1) * 0.1
        plain = Round(index, t, 0.0, 0.1, 0.0, final=FinalToken(1, "plain", "a"))
        race.apply(LaneRound(1, 0, plain))
        if index < 50:
            drafted = (DraftedToken(1, "accepted", text="a"),)
            race.apply(LaneRound(1, 1, Round(index, t, 0.0, 0.1, 0.0, drafted=drafted, final=FinalToken(1, "bonus", "a"))))
    found = race.speedup(race.lanes[1])
    assert found is not None
    assert found.value == pytest.approx(2.0)
    assert found.low == pytest.approx(2.0, abs=0.1) and found.high == pytest.approx(2.0, abs=0.1)
    assert race.speedup(race.lanes[0]) is None
    predicted = race.metrics(race.lanes[1])
    assert predicted.predicted_speedup_measured_verify == pytest.approx(2.0)


def test_a_run_again_has_the_range_of_all_runs_around_its_own_speedup() -> None:
    """The same settings and prompt again: the figures shown are the last run's, so its speedup is too."""
    race = RaceModel()
    for run_id, value in enumerate((1.5, 1.9, 1.6), start=1):
        lanes = ({"method": "plain"}, {"method": "draft-model"})
        race.apply(RaceStarted(run_id, (1, 2), "p", ("plain", "fast"), lanes))
        made = lane_rounds(1, 4)
        for round_ in made:
            race.apply(LaneRound(run_id, 1, round_))
        race.apply(LaneEnded(run_id, 0, "limit", fold([])))
        race.apply(LaneEnded(run_id, 1, "limit", fold(made), speedup=times(value - 0.3)))
        race.apply(LaneEnded(run_id, 1, "limit", fold(made), speedup=times(value)))  # told again at the race's end
        assert race.lanes[1].past_speedups[-1] == times(value) and len(race.lanes[1].past_speedups) == run_id
    found = race.speedup(race.lanes[1])
    assert found is not None
    assert (found.value, found.low, found.high, found.repeats) == pytest.approx((1.6, 1.5, 1.9, 3))


def test_a_run_that_goes_on_counts_once() -> None:
    race = RaceModel()
    same = {"method": "draft-model"}
    race.apply(RaceStarted(1, (1,), "p", ("plain", "a", "b"), ({"method": "plain"}, same, same)))
    first, second = make_rounds(2)
    for lane in (1, 2):
        race.apply(LaneRound(1, lane, first))
        race.apply(LaneEnded(1, lane, "limit", fold([first]), speedup=times(1.5)))
    race.apply(LaneRound(1, 1, second))
    race.apply(LaneEnded(1, 0, "limit", fold([])))
    race.apply(LaneEnded(1, 1, "limit", fold([first, second]), speedup=times(1.7)))
    assert race.lanes[1].past_speedups == [times(1.7)] and race.lanes[2].past_speedups == [times(1.5)]
    found = race.speedup(race.lanes[1])
    assert found is not None and (found.value, found.repeats) == (1.7, 1)
