"""A speedup is what its two tok/s divide to, over whole runs or the time both ran; its spread lies around it."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specview.decoding.ledger import DraftedToken, FinalToken, Round
from specview.decoding.metrics import fold
from specview.decoding.speedup import DRIFT, LEAST_ROUNDS, Speedup, median_speedup, speedup
from tests.decoding.test_metrics import CHECKED, ledger

SEEDS = st.integers(0, 10**6)
COUNTS = st.integers(1, 60)


def steady(count: int, seconds: float, tokens: int, start: float = 0.0) -> list[Round]:
    """`count` rounds of `seconds`, each emitting `tokens`."""
    drafted = tuple(DraftedToken(1, "accepted") for _ in range(tokens - 1))
    final = FinalToken(2, "bonus")
    return [
        Round(i, start + (i + 1) * seconds, 0.0, seconds, 0.0, drafted=drafted, final=final) for i in range(count)
    ]


def tokens_until(rounds: list[Round], t: float) -> float:
    """Tokens by time t if each round gave its own evenly over its time."""
    total, begin = 0.0, 0.0
    for round_ in rounds:
        share = min(max((t - begin) / (round_.t - begin), 0.0), 1.0)
        total += share * len(round_.emitted)
        begin = round_.t
    return total


def test_of_steady_lanes():
    assert speedup(steady(50, 0.2, 4), steady(200, 0.1, 1)).value == pytest.approx(2.0)
    assert speedup(steady(5, 0.2, 4), steady(5, 0.2, 4)).value == pytest.approx(1)


def test_runs_of_one_length_are_held_against_each_other_whole():
    fast = steady(10, 0.2, 4)  # 20 tokens/s for 2 s
    plain = steady(20, 0.1, 1) + steady(20, 0.104, 1, start=2.0)  # 40 tokens in 4.08 s
    found = speedup(fast, plain)
    assert found.whole and (found.tokens, found.plain_tokens, found.seconds) == (40, 40, pytest.approx(2))
    assert found.plain_seconds == pytest.approx(4.08)
    for rounds, rate in ((fast, found.tokens_per_s), (plain, found.plain_tokens_per_s)):
        assert rate == fold(rounds).decode_tokens_per_s  # the very figures that stand beside it


def test_a_machine_that_slows_down_when_the_lane_has_ended_makes_it_no_faster():
    """Plain's rest is alone with it: "5.04 against 1.86" were 2.7x, and 1.9x while both ran."""
    fast, plain = steady(10, 0.2, 4), steady(20, 0.1, 1) + steady(20, 0.4, 1, start=2.0)
    found = speedup(fast, plain)
    assert not found.whole and (found.tokens, found.plain_tokens, found.seconds) == (40, pytest.approx(20), 2.0)
    assert (found.tokens_per_s, found.plain_tokens_per_s, found.value) == pytest.approx((20, 10, 2))
    assert speedup(fast, plain[:35], running=1) == speedup(fast, plain[:35]) == found, "while plain runs on, too"


def test_of_runs_of_other_lengths_it_counts_only_the_time_both_were_running():
    fast = steady(10, 0.2, 4)  # 20 tokens/s for 2 s
    plain = steady(20, 0.1, 1) + steady(50, 1.0, 1, start=2.0)  # 10 tokens/s while both run, then ten times slower
    found = speedup(fast, plain)
    assert not found.whole and (found.tokens, found.plain_tokens, found.seconds) == (40, pytest.approx(20), 2.0)
    assert (found.tokens_per_s, found.plain_tokens_per_s, found.value) == pytest.approx((20, 10, 2))
    assert speedup(plain, fast).value == pytest.approx(0.5)
    going_on = speedup(fast, plain[:25], running=1)  # plain still runs: it may yet give as many
    assert not going_on.whole and speedup(fast, steady(25, 0.1, 1), running=1).whole
    assert speedup(fast, plain, running=2).whole, "so far, what is shown of both"


@given(seeds=st.tuples(SEEDS, SEEDS), counts=st.tuples(COUNTS, COUNTS), longest=st.integers(0, 6))
@CHECKED
def test_of_any_ledgers_it_is_the_ratio_of_its_rates_and_lies_in_its_spread(seeds, counts, longest):
    lane, plain = ledger(seeds[0], counts[0], longest), ledger(seeds[1], counts[1], longest=0)
    found, so_far = speedup(lane, plain), speedup(lane, plain, running=2)
    both = min(lane[-1].t, plain[-1].t)
    assert so_far.whole and so_far.value == pytest.approx(fold(lane).decode_tokens_per_s / fold(plain).decode_tokens_per_s)
    for one in (found, so_far):
        assert one.value == pytest.approx(one.tokens_per_s / one.plain_tokens_per_s)
        assert one.spread is None or one.low <= one.value <= one.high
        assert Speedup.from_dict(one.as_dict(), one.spread).value == pytest.approx(one.value)
    assert speedup(plain, lane).value == pytest.approx(1 / found.value)
    if found.whole:
        assert fold(lane).emitted == fold(plain).emitted
        assert found == so_far and found.value == pytest.approx(tokens_until(lane, both) / tokens_until(plain, both), rel=DRIFT)
        return
    assert found.seconds == both
    assert found.value == pytest.approx(tokens_until(lane, both) / tokens_until(plain, both))
    first, rate = (lane, found.tokens_per_s) if lane[-1].t <= plain[-1].t else (plain, found.plain_tokens_per_s)
    assert rate == pytest.approx(fold(first).decode_tokens_per_s)  # of the lane that ended first the whole run
    if min(sum(round_.t <= both * (1 + 1e-9) for round_ in rounds) for rounds in (lane, plain)) < LEAST_ROUNDS:
        assert found.spread is None
        return
    ratios = []
    for i in range(8):
        begin, end = both * i / 8, both * (i + 1) / 8
        gained = [tokens_until(rounds, end) - tokens_until(rounds, begin) for rounds in (lane, plain)]
        ratios.append(gained[0] / gained[1])
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    assert found.spread == (pytest.approx(min(low, found.value)), pytest.approx(max(high, found.value)))


def test_a_burst_leaves_no_point_outside_its_spread():
    """"1.30x (1.02-1.24)" was shown: the eighth with the burst was in the mean and not in the middle half."""
    slow, burst = steady(35, 1.0, 1), steady(5, 1.0, 13, start=35.0)
    found = speedup(slow + burst, steady(40, 1.0, 1))
    assert found.value == pytest.approx(2.5)
    assert found.spread == (pytest.approx(1), found.value)


@given(repeats=st.lists(st.tuples(SEEDS, COUNTS), min_size=1, max_size=7))
@CHECKED
def test_of_repeats_it_is_the_median_one_s_own_with_least_and_greatest(repeats):
    ran = [speedup(ledger(seed, count), ledger(seed + 1, count + 5, longest=0)) for seed, count in repeats]
    found = median_speedup(ran)
    ratios = [one.value for one in ran]
    assert found.value == statistics.median_low(ratios)
    assert found.value == pytest.approx(found.tokens_per_s / found.plain_tokens_per_s)
    assert any((one.tokens, one.plain_tokens) == (found.tokens, found.plain_tokens) for one in ran)
    if len(ran) > 1:
        assert found.spread == (min(ratios), max(ratios)) and found.repeats == len(ran)
    assert found.spread is None or found.low <= found.value <= found.high


@given(seeds=st.tuples(SEEDS, SEEDS), counts=st.tuples(COUNTS, COUNTS))
@CHECKED
def test_what_a_file_without_rounds_keeps_gives_the_same_rates(seeds, counts):
    lane, plain = ledger(seeds[0], counts[0]), ledger(seeds[1], counts[1], longest=0)
    found = speedup(lane, plain)
    again = Speedup.recorded(found.value, found.spread, fold(lane).as_dict(), fold(plain).as_dict())
    assert (again.value, again.seconds) == (pytest.approx(found.value), pytest.approx(found.seconds))
    assert again.as_dict() == pytest.approx(found.as_dict())
    assert again.spread is None or again.low <= again.value <= again.high


def test_there_is_none_without_a_lane_or_without_time():
    for lane, plain in (([], steady(3, 1, 1)), (steady(3, 1, 1), []), (steady(3, 0.0, 1), steady(3, 0.0, 1))):
        assert speedup(lane, plain) is None
    assert median_speedup([None]) is None
    figures = {"emitted": 5, "decode_tokens_per_s": 2.0}
    for value, lane in ((None, figures), (1.5, {}), (1.5, {"emitted": "x", "decode_tokens_per_s": []}), (math.nan, figures)):
        assert Speedup.recorded(value, None, lane, figures) is None


def test_the_spread_of_steady_lanes_is_narrow():
    found = speedup(steady(80, 0.2, 4), steady(160, 0.1, 1))
    assert found.spread == (pytest.approx(2), pytest.approx(2))
