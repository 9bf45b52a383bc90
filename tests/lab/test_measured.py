from __future__ import annotations

from dataclasses import replace

import pytest

from specview.decoding.ledger import DraftedToken, FinalToken, Round
from specview.lab.measured import measured_costs


def spec(index: int, k: int, draft_s: float, verify_s: float, other_s: float = 0.001) -> Round:
    drafted = tuple(DraftedToken(id=place, verdict="ignored") for place in range(k))
    return Round(index=index, t=0.0, draft_s=draft_s, verify_s=verify_s, other_s=other_s, drafted=drafted,
                 final=FinalToken(id=9, kind="plain" if not k else "bonus"))  # fmt: skip


def test_costs_are_medians_of_the_lanes_own_rounds():
    plain = [spec(i, 0, 0.0, 0.05, 0.0005) for i in range(12)]
    lane = [spec(i, 2 + 2 * (i % 2), 0.002 + 0.003 * (2 + 2 * (i % 2)), (0.06, 0.08)[i % 2]) for i in range(12)]
    costs = measured_costs(lane, plain)
    assert costs is not None
    assert costs.plain_pass_s == pytest.approx(0.05)
    assert costs.v(2) == pytest.approx(1.2) and costs.v(4) == pytest.approx(1.6)
    assert costs.v(3) == pytest.approx(1.4)  # between the two that were measured
    assert costs.draft_s(3) == pytest.approx(0.011, rel=0.1)
    assert costs.measured == {1, 3, 5}
    assert costs.round_s(2) == pytest.approx(0.008 + 0.06 + 0.001, rel=0.05)
    assert costs.speedup(2.0, 2) == pytest.approx(2 * 0.0505 / costs.round_s(2))


def test_a_calibration_gives_the_shape_and_the_rounds_the_level():
    plain = [spec(i, 0, 0.0, 0.10) for i in range(4)]  # the machine is twice as slow as when it was calibrated
    costs = measured_costs([], plain, {1: 0.05, 3: 0.06, 5: 0.10})
    assert costs is not None
    assert costs.pass_s(1) == pytest.approx(0.10)
    assert costs.pass_s(3) == pytest.approx(0.12)
    assert costs.v(4) == pytest.approx(2.0)
    assert costs.measured == {1}


def test_the_plain_lanes_one_row_passes_count_and_a_drafting_lanes_do_not():
    lane = [spec(i, 0, 0.0, 0.5) for i in range(3)] + [spec(i, 1, 0.01, 0.06) for i in range(3, 6)]
    costs = measured_costs(lane, [spec(i, 0, 0.0, 0.05) for i in range(5)])
    assert costs is not None and costs.plain_pass_s == pytest.approx(0.05)


def test_without_a_one_row_pass_there_is_nothing_to_compare_with():
    assert measured_costs([spec(0, 2, 0.01, 0.06)]) is None
    assert measured_costs([]) is None


def test_the_scale_of_a_calibration_is_that_of_counts_with_enough_rounds():
    plain = [spec(i, 0, 0.0, 0.05) for i in range(5)]
    odd = [spec(0, 1, 0.01, 0.02), spec(1, 2, 0.01, 0.02)]  # one quick round of each count
    costs = measured_costs(odd, plain, {1: 0.05, 2: 0.06, 3: 0.07})
    assert costs is not None and costs.v(1) == pytest.approx(1.2) and costs.v(2) == pytest.approx(1.4)


def test_passes_that_cannot_be_so_short_are_spoken_of():
    plain = [spec(i, 0, 0.0, 0.05) for i in range(5)]
    lane = [spec(i, 1, 0.01, 0.024) for i in range(5)] + [spec(i, 3, 0.01, 0.047) for i in range(5)]
    costs = measured_costs(lane, plain)
    assert costs is not None
    assert "A pass of 2 rows comes to 0.48 plain passes here" in costs.doubt(range(1, 5))
    assert costs.doubt([1, 4]) == "", "a little less is noise"


def test_a_members_drafts_alone():
    lane = [replace(spec(0, 2, 0.02, 0.06), drafter="model"), replace(spec(1, 2, 0.0002, 0.06), drafter="lookup")]
    costs = measured_costs(lane, [spec(0, 0, 0, 0.05)], drafter="lookup")
    assert costs is not None and costs.draft_s(2) == pytest.approx(0.0002, rel=0.01)


def test_a_count_that_few_rounds_had_keeps_its_calibration_and_says_where_each_cost_comes_from():
    plain = [spec(i, 0, 0.0, 0.05) for i in range(5)]
    lane = [spec(i, 4, 0.01, 0.08) for i in range(5)] + [spec(5, 2, 0.01, 9.0)]  # one slow round of three rows
    costs = measured_costs(lane, plain, {1: 0.05, 3: 0.06, 5: 0.08, 9: 0.12})
    assert costs is not None
    assert costs.pass_s(3) == pytest.approx(0.06) and costs.measured == {1, 5}
    assert [costs.source(rows) for rows in (1, 3, 4, 5, 9, 10)] == [
        "measured", "calibrated", "interpolated", "measured", "calibrated", "extrapolated",
    ]  # fmt: skip
    bare = measured_costs(lane, plain)
    assert bare is not None and bare.source(3) == "interpolated" and bare.source(5) == "measured"


def test_a_count_that_one_or_two_rounds_had_is_left_out_where_others_are_known():
    plain = [spec(i, 0, 0.0, 0.05) for i in range(5)]
    lane = [spec(i, 4, 0.01, 0.08) for i in range(6)] + [spec(6, 2, 0.01, 0.30)]  # the limit's last round, disturbed
    costs = measured_costs(lane, plain)
    assert costs is not None and costs.measured == {1, 5}
    assert costs.v(2) == pytest.approx(1.3)
    alone = measured_costs([spec(0, 2, 0.01, 0.06)], [spec(0, 0, 0.0, 0.05)])
    assert alone is not None and alone.measured == {1, 3}  # there is nothing better
