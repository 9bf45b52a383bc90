"""No advice speaks against a measurement that lies beside it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.ledger import RunRecord
from specview.decoding.speedup import speedup
from specview.lab.explain import explain
from specview.lab.measured import Measured, measured_beside
from specview.lab.what_if import replay_of_lane, what_if
from tests.decoding.speedups import times
from tests.lab.test_explain import PLAIN_S, REJECTION, lane_of, make_lane, plain_lane
from tests.lab.what_if_runs import recorded

SLOPE = 0.3
DEAR = {1: PLAIN_S, 2: 1.25 * PLAIN_S, 3: 1.8 * PLAIN_S}
CALIBRATED = {rows: PLAIN_S * (1 + SLOPE * (rows - 1)) for rows in range(1, 8)}


def stretches(k: int, long: int, short: int, count: int, verify: float) -> list:
    """Rounds whose drafts are kept whole `long` times in a row, then not at all `short` times."""
    specs = []
    for index in range(count):
        kept = k if index % (long + short) < long else 0
        specs.append((k, kept, 0.02 * PLAIN_S, verify * PLAIN_S, 0.001))
    return make_lane(specs)


def lucky() -> tuple[list, list]:
    """A lane at k 2 whose median costs make it slower than it was: 1.5 times plain measured, and k 1 is modelled at less."""
    lane = stretches(2, 2, 1, 300, 1.0)
    slow = [(r.k, r.accepted, r.draft_s, r.verify_s * (1.8 if index % 5 < 3 else 1.15), r.other_s) for index, r in enumerate(lane)]
    return make_lane(slow), plain_lane(700)


def test_why_does_not_call_k_1_the_best_beside_a_measured_k_2_that_is_faster_than_it_would_be():
    """Seen: "the best k is 1" beside a measured 1.50x at k 2."""
    lane, plain = lucky()
    found = explain(lane, plain, REJECTION, calibrated=DEAR)
    assert found.measured_speedup == pytest.approx(1.5, rel=0.05)
    one = found.lengths[1]
    raw = [point.by_positions for point in found.lengths]
    assert raw.index(max(raw)) == 1 and one.predicted < found.measured_speedup, "the model alone says k 1"
    assert found.best_k == 2 and found.best_k_speedup == found.measured_speedup
    assert "best k is 1" not in found.sentence


def test_what_if_does_not_call_k_1_the_fastest_beside_a_measured_k_2():
    """Seen: "k 1 would have been fastest: 1.28x" beside a measured 1.50x."""
    lane, plain = lucky()
    records = [RunRecord("plain", {"method": "plain", "temperature": 0.0}, (1, 2), 0.1, plain, "limit"),
               RunRecord("draft-model", {"method": "draft-model", "k": 2, "policy": "constant", "rule": "greedy", "temperature": 0.0,
                                         "option_vocabulary": "other"}, (1, 2), 0.1, lane, "limit")]  # fmt: skip
    result = what_if(replay_of_lane(records, 1, None, DEAR), lengths=[1, 2], thresholds=[], policies=[])
    own, one = result.recorded.speedup, next(one for one in result.alternatives if one.k == 1)
    assert own.value == pytest.approx(1.5, rel=0.1) and own.low <= own.value <= own.high
    assert one.speedup.value < own.value and result.better is None
    assert "fastest" not in result.sentence and f"{own.value:.2f}x as measured" in result.sentence
    same = next(one for one in result.alternatives if one.k == 2)
    assert same.speedup == own and "as measured" in same.why


@given(
    alpha=st.floats(0.05, 0.95), k=st.integers(1, 6), c=st.floats(0, 0.4), v=st.floats(0.8, 3), count=st.integers(5, 200),
    plain=st.integers(5, 300), seed=st.integers(0, 1000), slow=st.floats(0.4, 3),
    others=st.dictionaries(st.integers(1, 6), st.floats(0.3, 3), max_size=3),
)  # fmt: skip
@settings(deadline=None, derandomize=True, max_examples=80)
def test_no_k_is_advised_that_is_not_told_apart_from_every_measurement(alpha, k, c, v, count, plain, seed, slow, others):
    lane = lane_of(alpha, k, c, v, count=count, seed=seed)
    uneven = [(r.k, r.accepted, r.draft_s, r.verify_s * (slow if index % 3 == 0 else 1), r.other_s) for index, r in enumerate(lane)]
    beside = {other: times(value, 0.9 * value, 1.1 * value) for other, value in others.items() if other != k}
    found = explain(make_lane(uneven), plain_lane(plain), REJECTION, calibrated=CALIBRATED, beside=beside)
    assert found.measured_speedup is not None
    if found.speedup_spread is not None:
        assert found.speedup_spread[0] <= found.measured_speedup <= found.speedup_spread[1]
    if found.best_k is None or found.best_k == found.k:
        named = re.search(r"the best k is (\d+)", found.sentence)
        assert named is None
        return
    assert found.speedup_spread is not None, "too few rounds tell nothing apart"
    best = found.lengths[found.best_k]
    value = beside[best.k].low if best.k in beside else best.speedup
    assert value > found.speedup_spread[1]
    assert all(value > one.high for length, one in beside.items() if length != best.k)
    if best.k in beside:
        assert best.speedup == beside[best.k].value
    for point in found.lengths[1:]:
        assert point.predicted <= max(point.by_formula, point.by_positions or 0.0) * (1 + 1e-9)
    own = found.lengths[int(found.k)]
    assert own.measured == found.measured_speedup


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize("method", ["draft-model", "prompt-lookup"])
def test_what_if_advises_nothing_that_is_not_told_apart(k, method):
    lanes = [recorded(method="plain", count=100), recorded(method=method, k=k, count=100)]
    result = what_if(replay_of_lane(lanes, 1))
    own = result.recorded.speedup
    better = result.better
    if better is not None:
        assert better.speedup.low > own.high and own.low <= own.value <= own.high
        assert better.name in result.sentence
    else:
        assert "fastest" not in result.sentence


def test_the_limit_and_what_is_told_apart():
    own = times(1.5, 1.4, 1.6)
    assert Measured(own, 2.0).limit == pytest.approx(0.75) and Measured(own, 1.2).limit == 1.0 == Measured().limit
    found = Measured(own, None, {3: times(1.8, 1.7, 1.9)})
    assert not found.told_apart(1.65) and not found.told_apart(1.85) and found.told_apart(1.95)
    assert found.told_apart(1.7, 3) and not found.told_apart(1.6, 3)
    assert not Measured(times(1.5)).told_apart(99.0), "without an interval nothing is"
    assert Measured().told_apart(0.5)


def test_lanes_that_draft_alike_differ_in_k_alone():
    lane, plain = lane_of(0.7, 2, 0.1, 1.2, count=50), plain_lane(80)
    faster = speedup(lane, plain)
    own = {"method": "draft-model", "k": 2, "rule": "greedy", "policy": "constant"}
    lanes = [({**own, "k": 4}, faster), (own, faster), ({**own, "k": 3, "rule": "match"}, faster), ({"method": "plain", "k": None}, None),
             ({**own, "k": 5, "policy": "adaptive"}, faster)]  # fmt: skip
    assert measured_beside(own, lanes) == {4: faster}
