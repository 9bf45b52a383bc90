"""Costs: interpolation between calibrated passes, learning from rounds, and hiccups that change nothing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.costs import RECENT, Costs, interpolate
from specview.decoding.ledger import DraftedToken, FinalToken, Round

TABLE = {1: 0.040, 2: 0.042, 4: 0.052, 8: 0.060, 16: 0.078}


def round_of(k: int, verify_s: float, draft_s: float = 0.0, other_s: float = 0.001, drafter: str = "d") -> Round:
    drafted = tuple(DraftedToken(0, "accepted") for _ in range(k))
    return Round(
        0, 1.0, draft_s, verify_s, other_s, drafter=drafter if k else "", drafted=drafted, final=FinalToken(0, "bonus")
    )


def test_nothing_is_known_before_anything_was_seen():
    costs = Costs()
    assert costs.pass_s(3) is None
    assert costs.draft_s("d", 3) is None
    assert costs.draft_s("d", 0) == 0.0
    assert costs.other_s() == 0.0
    assert costs.rounds_s("d", 3, copies=True) == [1.0, 1.0, 1.0, 1.0]  # passes taken as equal
    assert costs.rounds_s("d", 3) == pytest.approx([1.0, 1.1, 1.2, 1.3])  # and a model's step as a tenth


def test_calibrated_counts_come_out_as_measured_and_between_them_straight():
    costs = Costs(TABLE)
    for rows, seconds in TABLE.items():
        assert costs.pass_s(rows) == pytest.approx(seconds)
    assert costs.pass_s(3) == pytest.approx(0.047)
    assert costs.pass_s(12) == pytest.approx(0.069)
    assert costs.pass_s(20) > costs.pass_s(16)
    assert interpolate({4: 2.0}, 1) == interpolate({4: 2.0}, 9) == 2.0


@given(
    st.dictionaries(st.integers(1, 64), st.floats(1e-3, 10), min_size=1, max_size=8),
    st.integers(1, 80),
)
@settings(deadline=None, derandomize=True, max_examples=200)
def test_interpolation_stays_between_its_neighbours(table, rows):
    table = dict(sorted(table.items()))
    found = interpolate(table, rows)
    below = [seconds for count, seconds in table.items() if count <= rows]
    above = [seconds for count, seconds in table.items() if count >= rows]
    if not above:
        assert found >= below[-1] * (1 - 1e-12)
    elif not below:
        assert found == above[0]
    else:
        low, high = sorted((below[-1], above[0]))
        assert low * (1 - 1e-9) <= found <= high * (1 + 1e-9)


@given(st.integers(0, 40), st.integers(1, 20), st.floats(0, 3), st.lists(st.integers(0, 9), max_size=30))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_the_table_of_rounds_is_the_sum_of_its_parts(most, k, extra, seen):
    costs = Costs(TABLE)
    for index, drafted in enumerate(seen):
        costs.observe(round_of(drafted, costs.pass_s(drafted + 1) * (1 + 0.1 * (index % 3)), 0.002 * drafted))
    times = costs.rounds_s("d", most, extra)
    assert len(times) == most + 1
    assert times[0] == pytest.approx(costs.pass_s(1) + costs.other_s())
    if extra == int(extra) and 1 <= k <= most:
        draft = costs.draft_s("d", k)
        if draft is None:
            draft = 0.1 * costs.pass_s(1) * k
        assert times[k] == pytest.approx(costs.pass_s(k + 1 + int(extra)) + costs.other_s() + draft)


def test_a_whole_rows_extra_moves_along_the_table():
    costs = Costs(TABLE)
    assert costs.rounds_s("d", 3, 4.0, copies=True)[2] == pytest.approx(costs.pass_s(7))
    between = (costs.pass_s(3) + costs.pass_s(4)) / 2
    assert costs.rounds_s("d", 3, 0.5, copies=True)[2] == pytest.approx(between)


@pytest.mark.parametrize("hiccups", [1, 2, 4])
def test_hiccups_of_seconds_change_next_to_nothing(hiccups):
    costs = Costs(TABLE)
    noise = random.Random(5)
    for number in range(40):
        k = number % 5
        seconds = costs.calibrated.get(k + 1) or interpolate(costs.calibrated, k + 1)
        costs.observe(round_of(k, seconds * noise.uniform(0.98, 1.02), 0.001 * k))
    before = costs.rounds_s("d", 12)
    for _ in range(hiccups):
        costs.observe(round_of(2, 2.0, 2.0, 2.0))
    for now, then in zip(costs.rounds_s("d", 12), before, strict=True):
        assert now == pytest.approx(then, rel=0.1)


def test_the_very_first_round_may_be_a_hiccup():
    costs = Costs(TABLE)
    costs.observe(round_of(2, 2.0))
    for rows in range(1, 17):
        assert costs.pass_s(rows) < 2.4 * interpolate(TABLE, rows)
    for _ in range(3):
        costs.observe(round_of(0, TABLE[1]))
    assert costs.pass_s(1) == pytest.approx(TABLE[1], rel=0.05)
    assert costs.pass_s(8) == pytest.approx(TABLE[8], rel=0.05)


def test_a_machine_that_becomes_busy_is_followed_and_so_is_its_rest():
    costs = Costs(TABLE)
    for factor in (3.0, 1.0):
        for number in range(4 * RECENT):
            k = (0, 1, 3)[number % 3]
            costs.observe(round_of(k, factor * interpolate(TABLE, k + 1)))
        for rows in (1, 2, 4, 8, 16):  # 8 and 16 were never run: the drift is the machine's
            assert costs.pass_s(rows) == pytest.approx(factor * TABLE[rows], rel=0.1)


def test_one_row_count_that_costs_more_than_measured_is_learned_for_itself():
    costs = Costs(TABLE)
    for number in range(60):
        k = (0, 1, 3)[number % 3]
        costs.observe(round_of(k, interpolate(TABLE, k + 1) * (1.3 if k == 3 else 1.0)))
    assert costs.pass_s(4) == pytest.approx(1.3 * TABLE[4], rel=0.08)
    assert costs.pass_s(1) == pytest.approx(TABLE[1], rel=0.03)
    assert costs.pass_s(8) == pytest.approx(TABLE[8], rel=0.03)


def test_without_a_calibration_the_rounds_tell():
    costs = Costs()
    for _ in range(5):
        costs.observe(round_of(0, 0.04))
        costs.observe(round_of(4, 0.06))
    assert costs.pass_s(1) == pytest.approx(0.04)
    assert costs.pass_s(3) == pytest.approx(0.05)
    assert costs.pass_s(9) >= 0.06


def test_draft_time_is_a_line_in_k():
    costs = Costs(TABLE)
    for k in (1, 2, 4, 8, 2, 4):
        costs.observe(round_of(k, 0.05, 0.003 + 0.002 * k))
    for k in (1, 3, 16):
        assert costs.draft_s("d", k) == pytest.approx(0.003 + 0.002 * k, rel=0.15)
    assert costs.draft_s("other", 3) is None


def test_one_length_alone_is_taken_as_proportional():
    costs = Costs(TABLE)
    for _ in range(3):
        costs.observe(round_of(4, 0.05, 0.008))
    assert costs.draft_s("d", 2) == pytest.approx(0.004, rel=0.05)


@given(st.lists(st.tuples(st.integers(1, 48), st.floats(0, 1)), min_size=1, max_size=40))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_draft_time_is_never_negative_and_never_falls_with_k(seen):
    costs = Costs(TABLE)
    for k, seconds in seen:
        costs.observe(round_of(k, 0.05, seconds))
    times = [costs.draft_s("d", k) for k in range(1, 65)]
    assert times[0] >= 0
    assert times == sorted(times)


def test_a_copy_has_the_calibration_and_nothing_learned():
    costs = Costs(TABLE)
    for _ in range(9):
        costs.observe(round_of(1, 1.0, 0.5))
    fresh = costs.copy()
    assert fresh.pass_s(2) == pytest.approx(TABLE[2])
    assert fresh.draft_s("d", 1) is None
    costs.observe(round_of(1, 5.0))
    assert fresh.pass_s(2) == pytest.approx(TABLE[2])


def test_a_calibration_of_nothing_useful_is_none():
    assert Costs({1: 0.0, 2: -1.0}).pass_s(1) is None
