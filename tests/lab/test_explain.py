"""The explanation of a lane: its waterfall adds up, its sentence names the largest loss, its best k is the best."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding import theory
from specview.decoding.ledger import DraftedToken, FinalToken, Round
from specview.decoding.metrics import fold
from specview.decoding.speedup import Speedup, speedup
from specview.files.schema import dumps, plain
from specview.lab.explain import FEW_ROUNDS, explain, per_round
from specview.lab.explain_report import explanation_blocks
from specview.lab.measured import measured_costs

REJECTION = {"method": "draft-model", "rule": "rejection"}
PLAIN_S, PLAIN_OTHER = 0.05, 0.001


def make_round(index: int, t: float, k: int, accepted: int, draft_s: float, verify_s: float, other_s: float,
               parents: tuple[int, ...] | None = None) -> Round:  # fmt: skip
    """A round at the lane's clock t (its start); of a tree the accepted nodes are the first ones."""
    verdicts = ["accepted"] * accepted + ["rejected"] * (accepted < k) + ["ignored"] * (k - accepted - 1)
    drafted = tuple(DraftedToken(id=place, verdict=verdict) for place, verdict in enumerate(verdicts))
    kind = "plain" if not k else "bonus" if accepted == k else "corrected"
    return Round(index=index, t=t + draft_s + verify_s + other_s, draft_s=draft_s, verify_s=verify_s, other_s=other_s,
                 drafter="model" if k else "", parents=parents, drafted=drafted,
                 final=FinalToken(id=9, kind=kind))  # fmt: skip


def make_lane(specs: list[tuple[int, int, float, float, float]]) -> list[Round]:
    """Rounds of (k, accepted, draft_s, verify_s, other_s)."""
    rounds: list[Round] = []
    for index, spec in enumerate(specs):
        rounds.append(make_round(index, rounds[-1].t if rounds else 0.0, *spec))
    return rounds


def plain_lane(count: int = 60, verify_s: float = PLAIN_S, other_s: float = PLAIN_OTHER) -> list[Round]:
    return make_lane([(0, 0, 0.0, verify_s, other_s)] * count)


def lane_of(alpha: float, k: int, c: float, v: float, other: float = 0.0, count: int = 400, seed: int = 1) -> list[Round]:
    """A lane that accepts each token with alpha; costs in plain passes of PLAIN_S."""
    rng = random.Random(seed)
    specs = []
    for _ in range(count):
        accepted = 0
        while accepted < k and rng.random() < alpha:
            accepted += 1
        specs.append((k, accepted, k * c * PLAIN_S, v * PLAIN_S, PLAIN_OTHER + other * PLAIN_S))
    return make_lane(specs)


seconds = st.floats(1e-5, 0.2)
round_specs = st.integers(0, 8).flatmap(
    lambda k: st.tuples(st.just(k), st.integers(0, k), seconds if k else st.just(0.0), seconds, seconds)
)


@given(specs=st.lists(round_specs, min_size=1, max_size=40),
       plain_s=st.lists(st.tuples(seconds, seconds), min_size=1, max_size=30))  # fmt: skip
@settings(deadline=None, derandomize=True, max_examples=150)
def test_the_waterfall_runs_from_plain_to_the_measured_speedup(specs, plain_s):
    lane = make_lane(specs)
    plain = make_lane([(0, 0, 0.0, verify, other) for verify, other in plain_s])
    found = explain(lane, plain, REJECTION)
    assert found.measured_speedup == speedup(lane, plain).value
    assert found.speedup_spread == speedup(lane, plain).spread
    fall = found.waterfall
    if fall is None:  # rounds that cost nothing beside plain ones, by their medians
        return
    steps = fall.steps
    assert [step.name for step in steps] == ["plain", "tokens", "draft", "verify", "other", "uneven", "net"]
    for before, after in zip(steps[:-2], steps[1:-1], strict=True):
        assert after.before == pytest.approx(before.after, abs=1e-9)
    assert steps[0].after == 1 and steps[-1].after == found.measured_speedup
    assert steps[-2].after == pytest.approx(found.measured_speedup, rel=1e-9, abs=1e-9)
    assert 1 + sum(step.change for step in steps[1:-1]) == pytest.approx(found.measured_speedup, rel=1e-9, abs=1e-9)
    if any(round_.k for round_ in lane):
        worst = max(fall.losses.values())
        assert found.main_loss is None if worst <= 0 else fall.losses[found.main_loss] == worst


@given(specs=st.lists(round_specs, min_size=1, max_size=30))
@settings(deadline=None, derandomize=True, max_examples=80)
def test_every_rounds_waterfall_ends_at_its_own_speedup(specs):
    lane, plain = make_lane(specs), plain_lane(9)
    costs = measured_costs(lane, plain)
    assert costs is not None
    for round_, fall in zip(lane, per_round(lane, costs), strict=True):
        assert fall is not None
        own = len(round_.emitted) * costs.plain_round_s / round_.seconds
        assert fall.net == pytest.approx(own, rel=1e-9)
        assert fall.steps[-2].after == pytest.approx(own, rel=1e-9)
        assert fall.uneven == pytest.approx(0, abs=1e-9)
    assert per_round([make_round(0, 0.0, 0, 0, 0.0, 0.0, 0.0)], costs) == (None,), "it took no time"


@pytest.mark.parametrize(
    ("name", "lane", "words"),
    [
        ("verify", lane_of(0.6, 4, 0.05, 1.6), "Verifying 5 tokens costs 1.6 plain passes here"),
        ("draft", lane_of(0.6, 4, 0.3, 1.1), "Drafting 4 tokens costs 1.2 plain passes here"),
        ("other", lane_of(0.6, 4, 0.05, 1.1, other=0.7), "neither drafting nor a target pass costs 0.7 plain passes"),
    ],
)
def test_the_sentence_names_the_largest_loss(name, lane, words):
    found = explain(lane, plain_lane(), REJECTION)
    assert found.main_loss == name
    assert words in found.sentence
    assert len(re.findall(r"\.(?!\d)", found.sentence)) == 1  # one sentence


def test_slow_rounds_are_told_apart_from_dear_ones():
    lane = lane_of(0.7, 4, 0.02, 1.1, count=60)
    lane = make_lane([(r.k, r.accepted, r.draft_s, r.verify_s * (20 if r.index % 10 == 5 else 1), r.other_s) for r in lane])
    found = explain(lane, plain_lane(500), REJECTION)
    assert found.main_loss == "uneven" and "Slow rounds" in found.sentence
    assert found.v == pytest.approx(1.1, rel=0.01)  # the median verifying pass is what it always was


@pytest.mark.parametrize("alpha", [0.3, 0.62, 0.9])
@pytest.mark.parametrize(("c", "slope"), [(0.02, 0.15), (0.2, 0.02), (0.05, 0.0)])
def test_best_k_is_that_of_a_brute_force_over_the_costs(alpha, c, slope):
    k = 4
    lane = lane_of(alpha, k, c, 1 + slope * k)
    calibrated = {rows: PLAIN_S * (1 + slope * (rows - 1)) for rows in range(1, 10)}
    found = explain(lane, plain_lane(2000), REJECTION, calibrated=calibrated)
    assert found.alpha is not None

    def by_formula(length: int) -> float:
        cost = length * c * PLAIN_S + PLAIN_S * (1 + slope * length) + PLAIN_OTHER
        tokens = sum(found.alpha**i for i in range(length + 1))
        return tokens * (PLAIN_S + PLAIN_OTHER) / cost if length else 1.0

    assert [point.k for point in found.lengths] == list(range(9))
    for point in found.lengths:
        assert point.by_formula == pytest.approx(by_formula(point.k), rel=1e-6)
    assert found.best_k_formula == max(range(9), key=by_formula)
    by_positions = [point.by_positions for point in found.lengths]
    assert found.best_k == by_positions.index(max(by_positions)) and found.best_k_speedup == pytest.approx(max(by_positions))
    # at the lane's own length, cutting nothing, it is what the lane's rounds did
    assert by_positions[k] == pytest.approx(found.waterfall.tokens / found.waterfall.cost, rel=0.02)
    for length, value in enumerate(by_positions):  # draws with one alpha: both agree but for chance
        assert value == pytest.approx(by_formula(length), rel=0.12)


def lane_along(right: list[bool], k: int) -> list[Round]:
    """The lane that drafts k over a text whose tokens the drafter guesses right or wrong."""
    specs, place = [], 0
    while place < len(right):
        drafted = min(k, len(right) - place - 1)
        accepted = 0
        while accepted < drafted and right[place + accepted]:
            accepted += 1
        specs.append((drafted, accepted, drafted * 0.1 * PLAIN_S, (1 + 0.15 * drafted) * PLAIN_S, PLAIN_OTHER))
        place += accepted + 1
    return make_lane(specs)


def test_acceptance_in_stretches_gives_short_drafts_more_than_cut_drafts_say():
    right = ([True] * 7 + [False] * 4) * 60
    calibrated = {rows: PLAIN_S * (1 + 0.15 * (rows - 1)) for rows in range(1, 10)}
    long = explain(lane_along(right, 8), plain_lane(900), REJECTION, calibrated=calibrated)
    assert long.shape == "chain" and long.k == 8
    for k in (1, 2, 3, 4, 6):
        real = explain(lane_along(right, k), plain_lane(900), REJECTION, calibrated=calibrated)
        assert long.lengths[k].by_positions == pytest.approx(real.waterfall.tokens / real.waterfall.cost, rel=0.02)
    head = explain(lane_along(right, 8), plain_lane(900), {**REJECTION, "method": "eagle3"}, calibrated=calibrated)
    assert head.lengths[2].by_positions < 0.9 * long.lengths[2].by_positions, "its guesses hang on where the draft began"


def test_where_the_two_ways_to_reckon_disagree_on_whether_drafting_pays_it_is_said():
    right = ([True] * 12 + [False] * 9) * 40
    lane, dear = lane_along(right, 4), {rows: PLAIN_S * (1 + 0.3 * (rows - 1)) for rows in range(1, 6)}
    for slope in (0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65):
        dear = {rows: PLAIN_S * (1 + slope * (rows - 1)) for rows in range(1, 6)}
        slow = [replace(r, verify_s=dear[r.rows], t=r.t) for r in lane]
        found = explain(slow, (), REJECTION, calibrated=dear)  # with a plain lane the measurement says it
        if bool(found.best_k) != bool(found.best_k_formula):
            assert "what-if replays it" in found.sentence and "at each position" in found.sentence
            break
    else:
        pytest.fail("no slope at which they disagree")


def test_passes_of_other_lanes_stand_in_for_what_this_one_did_not_measure():
    found = explain(lane_of(0.7, 4, 0.1, 1.5), plain_lane(400), REJECTION, others={1: PLAIN_S, 2: 1.2 * PLAIN_S})
    assert found.costs.v(1) == pytest.approx(1.2, rel=0.01) and found.lengths[1].source == "calibrated"
    assert "1 from other lanes" in found.best_k_note and "measure v(k) to be sure" in found.best_k_note


@given(alpha=st.floats(0.05, 0.95), k=st.integers(1, 8), c=st.floats(0, 0.5), v=st.floats(0.8, 4), other=st.floats(0, 0.5))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_at_break_even_the_formula_gives_plain_speed(alpha, k, c, v, other):
    found = explain(lane_of(alpha, k, c, v, other, count=40), plain_lane(30), REJECTION)
    cost = (k * c * PLAIN_S + v * PLAIN_S + PLAIN_OTHER + other * PLAIN_S) / (PLAIN_S + PLAIN_OTHER)
    assert found.break_even_tokens == pytest.approx(cost, rel=1e-6)
    if found.break_even_alpha is None:
        assert cost > k + 1
    else:
        expected = theory.expected_tokens(found.break_even_alpha, k)
        assert expected == pytest.approx(max(cost, 1.0), rel=1e-6)


def test_predictions_stand_beside_the_measurement_and_each_says_what_it_rests_on():
    lane, plain = lane_of(0.7, 4, 0.1, 1.5, other=0.2), plain_lane(400)
    found = explain(lane, plain, REJECTION)
    names = [one.name for one in found.predictions]
    assert names == ["c alone", "c and v(k)", "c, v(k) and other time", "measured"]
    values = [one.speedup for one in found.predictions]
    alpha = fold(lane).acceptance_rate
    tokens = theory.expected_tokens(alpha, 4)
    assert values[0] == pytest.approx(tokens / 1.4, rel=1e-6)
    assert values[1] == pytest.approx(tokens / 1.9, rel=1e-6)
    assert values[2] == pytest.approx(tokens * 0.051 / (0.02 + 0.075 + 0.011), rel=1e-6)
    assert values[3] == pytest.approx(values[2], rel=0.1) and found.predictions[3].measured
    assert abs(values[2] - values[3]) < abs(values[1] - values[3]) < abs(values[0] - values[3])
    assert "measured in this lane's passes of 5 rows" in found.predictions[1].parts
    assert (found.c, found.v, found.v_source) == (pytest.approx(0.1), pytest.approx(1.5), "measured")


def test_the_rule_of_thumb_says_in_numbers_what_it_gets_wrong():
    found = explain(lane_of(0.5, 4, 0.1, 1.5), plain_lane(), REJECTION)
    rule = found.rule_of_thumb
    assert rule is not None
    assert rule.value == pytest.approx(found.alpha * 4)
    assert rule.right == pytest.approx(theory.expected_tokens(found.alpha, 4) / rule.cost)
    for part in (f"{rule.value:.2f}", f"{rule.expected_tokens - 1:.2f}", f"{rule.cost:.2f}", f"{rule.right:.2f}"):
        assert part in rule.words


def test_figures_name_what_is_measured_and_what_it_rests_on():
    figures, *texts = explanation_blocks(explain(lane_of(0.6, 4, 0.05, 1.6), plain_lane(), REJECTION))
    assert [one.title for one in figures.figures] == [
        "speedup", "acceptance rate α", "tokens per pass", "c, of medians", "v, 5 rows", "break-even", "best at this acceptance", "rule of thumb α k",
    ]  # fmt: skip
    assert figures.figures[4].text == "1.60 measured"
    assert any("It counts drafted tokens behind a rejection" in one.text for one in texts)
    assert not list(explanation_blocks(explain([], (), REJECTION)))


def kinds(found):
    return {banner.kind for banner in found.banners}


def test_nothing_is_both_as_fast_as_plain_and_slower():
    """A speedup of 0.997 is shown as 1.00."""
    assert not Speedup(997, 1000, 10.0).slower and Speedup(994, 1000, 10.0).slower
    # nor is what is not told apart from plain
    assert not Speedup(990, 1000, 10.0, 0.77, 1.15).slower and Speedup(900, 1000, 10.0, 0.85, 0.95).slower
    for tokens, told in ((997, False), (994, True), (1000, False)):
        found = explain(lane_of(0.8, 4, 0.05, 1.1), plain_lane(), REJECTION, faster=Speedup(tokens, 1000, 10.0))
        assert ("slower" in kinds(found)) is told


def test_what_is_not_told_apart_is_not_called_best():
    few = Speedup(66, 100, 10.0)  # too few rounds for a spread: the lane stands at 0.66 of plain, which is at 1
    found = explain(lane_of(0.3, 3, 0.2, 1.2, count=8), plain_lane(8), REJECTION, faster=few)
    assert found.best_k == 3 and 0 in found.as_good
    assert found.best_words == f"no clear winner: k 3, 0.66 times plain; {', '.join('plain' if not k else f'k {k}' for k in found.as_good)}"
    assert replace(found, as_good=()).best_words == "k 3, 0.66 times plain"


def test_banners_come_at_their_bounds_and_not_before():
    good = explain(lane_of(0.8, 4, 0.05, 1.1), plain_lane(), REJECTION)
    assert kinds(good) == set()
    slow = explain(lane_of(0.2, 4, 0.3, 2.0), plain_lane(), {"method": "draft-model", "rule": "typical"})
    assert kinds(slow) == {"slower", "lossy", "draft-acceptance", "draft-share"}
    assert [banner.kind for banner in slow.banners][0] == "slower"
    told = next(banner.text for banner in slow.banners if banner.kind == "draft-acceptance")
    figures = fold(lane_of(0.2, 4, 0.3, 2.0))
    assert f"of {figures.proposed} drafted tokens {figures.accepted} were kept" in told
    other = explain(lane_of(0.8, 4, 0.05, 1.1, other=0.5), plain_lane(), REJECTION)
    assert kinds(other) == {"other-large"}
    few = explain(lane_of(0.8, 4, 0.05, 1.1, count=FEW_ROUNDS - 1), plain_lane(), REJECTION)
    assert kinds(few) == {"few-rounds"} and str(FEW_ROUNDS - 1) in few.banners[0].text
    assert kinds(explain(lane_of(0.8, 4, 0.05, 1.1, count=FEW_ROUNDS), plain_lane(), REJECTION)) == set()
    check = explain(lane_of(0.8, 4, 0.05, 1.1), plain_lane(), {**REJECTION, "check_mode": True})
    assert kinds(check) == {"check-mode"}
    assert "times say nothing" in check.sentence and "best" not in check.sentence
    for rule in ("greedy", "rejection", "match", "auto", None):
        assert "lossy" not in kinds(explain(lane_of(0.8, 4, 0.05, 1.1), plain_lane(), {"rule": rule}))


def test_where_no_k_pays_it_says_plain():
    found = explain(lane_of(0.05, 2, 0.4, 1.5), plain_lane(), REJECTION)
    assert found.best_k == 0 and found.sentence.endswith("no k pays, plain decoding is the fastest.")
    assert found.measured_speedup < 1


def test_it_does_not_call_plain_faster_than_a_lane_that_measured_faster():
    lane = make_lane([(4, 3, 0.01, 0.05 * (4.5 if index % 5 < 3 else 0.3), 0.001) for index in range(60)])
    dear = {1: 0.05, **dict.fromkeys(range(2, 6), 0.21)}
    found = explain(lane, plain_lane(200), REJECTION, calibrated=dear)
    assert found.measured_speedup > 1 and found.best_k == 4  # the median pass is dear, the mean one is not
    assert "vary too much to say which k is best" in found.sentence and "fastest" not in found.sentence


def test_a_lane_without_a_plain_one_uses_its_own_one_row_passes_or_a_calibration_or_says_that_it_cannot():
    lane = lane_of(0.7, 4, 0.1, 1.5, count=50)
    unknown = explain(lane, (), REJECTION)
    assert unknown.waterfall is None and unknown.costs is None and "nothing says" in unknown.sentence
    assert "no-plain" in kinds(unknown)
    calibrated = explain(lane, (), REJECTION, calibrated={1: 0.05, 5: 0.075})
    assert calibrated.plain_source == "calibration" and calibrated.measured_speedup is None
    assert calibrated.waterfall.net == pytest.approx(calibrated.waterfall.tokens / calibrated.waterfall.cost)
    assert "no-plain" in kinds(calibrated) and any("calibration" in note for note in calibrated.notes)
    mixed = make_lane([(0, 0, 0.0, 0.05, 0.001)] * 4 + [(r.k, r.accepted, r.draft_s, r.verify_s, r.other_s) for r in lane])
    assert explain(mixed, (), REJECTION).plain_source == "own one-row rounds"


def test_trees_get_no_closed_form_and_say_so():
    plain = plain_lane()
    rounds: list[Round] = []
    for index in range(30):
        start = rounds[-1].t if rounds else 0.0
        made = make_round(index, start, 6, 1, 0.01, 0.09, 0.001, parents=(-1, -1, 0, 0, 1, 2))
        rounds.append(made)
    found = explain(rounds, plain, REJECTION)
    assert found.shape == "tree" and found.rows == 7
    assert found.best_k is None and found.break_even_alpha is None and found.rule_of_thumb is None
    assert [one.name for one in found.predictions] == ["measured"]
    assert found.break_even_tokens == pytest.approx(found.waterfall.cost)
    assert f"give {found.waterfall.tokens:.2f}" in found.sentence
    assert any("trees" in note for note in found.notes)


def test_varying_lengths_are_averaged_over_and_said_to_be():
    rng = random.Random(3)
    specs = []
    for index in range(300):
        k = index % 5
        accepted = 0
        while accepted < k and rng.random() < 0.6:
            accepted += 1
        specs.append((k, accepted, k * 0.005, 0.05 * (1 + 0.1 * k), 0.001))
    found = explain(make_lane(specs), plain_lane(), REJECTION)
    assert found.shape == "varying" and found.k == pytest.approx(2.0) and found.best_k is not None
    expected = sum(theory.expected_tokens(found.alpha, k) for k in range(5)) / 5
    cost = sum(k * 0.005 + 0.05 * (1 + 0.1 * k) + 0.001 for k in range(5)) / 5 / 0.051
    assert found.predictions[2].speedup == pytest.approx(expected / cost, rel=1e-6)
    assert found.rule_of_thumb is None and all(point.by_positions is None for point in found.lengths)
    assert "vary from 0 to 4" in found.notes[0]


    # the short drafts at a run's end do not make its length vary
    lane = lane_of(0.6, 4, 0.05, 1.2, count=30)
    tail = make_lane([(r.k, r.accepted, r.draft_s, r.verify_s, r.other_s) for r in lane]
                     + [(2, 1, 0.005, 0.055, 0.001), (0, 0, 0.0, 0.05, 0.001)])  # fmt: skip
    found = explain(tail, plain_lane(), REJECTION)
    assert found.shape == "chain" and found.k == 4


def test_acceptance_in_runs_is_told_from_one_alpha_in_numbers():
    lane = make_lane([(8, 8 * (index % 2), 0.0, 0.06, 0.001) for index in range(40)])  # all or nothing
    found = explain(lane, plain_lane(), {"method": "prompt-lookup", "rule": "greedy"})
    note = next(note for note in found.notes if "tokens came per pass" in note)
    assert "5.00 tokens" in note and "more" not in note.split("than")[0] or "fewer" in note
    assert "0.50 at the first drafted token and 1.00 at a later one" in note
    assert found.lengths[-1].by_positions == pytest.approx(5 * 0.051 / 0.061, rel=1e-6)


def test_nothing_drafted_nothing_run_and_plain_itself():
    plain = plain_lane(10)
    idle = explain(plain_lane(12), plain, {"method": "suffix", "rule": "greedy"})
    assert idle.shape == "none" and "Nothing was drafted in 12 rounds" in idle.sentence and idle.best_k is None
    empty = explain([], plain, REJECTION)
    assert empty.rounds == 0 and empty.waterfall is None and "run a race" in empty.sentence
    own = explain(plain, plain, {"method": "plain"})
    assert "baseline" in own.sentence and own.banners == ()
    one = explain(make_lane([(4, 2, 0.01, 0.06, 0.001)]), plain, REJECTION)
    assert one.waterfall is not None and "few-rounds" in kinds(one)


def test_riders_rows_are_in_the_cost_of_every_length():
    from specview.decoding.ledger import Rider

    lane = [replace(r, riders=(Rider(1), Rider(2))) for r in lane_of(0.6, 4, 0.0, 1.6)]
    calibrated = {rows: PLAIN_S * (1 + 0.1 * (rows - 1)) for rows in range(1, 12)}
    found = explain(lane, plain_lane(), {"method": "lookahead", "rule": "greedy"}, calibrated=calibrated)
    assert found.rows == 7 and found.lengths[-1].k == 8
    assert any("2 more tokens ride" in note for note in found.notes)
    cost = (found.costs.draft_s(2) + PLAIN_S * 1.4 + PLAIN_OTHER) / (PLAIN_S + PLAIN_OTHER)
    assert found.lengths[2].by_formula == pytest.approx(theory.expected_tokens(found.alpha, 2) / cost, rel=1e-6)


@given(specs=st.lists(round_specs, max_size=25), count=st.integers(0, 12), known=st.booleans())
@settings(deadline=None, derandomize=True, max_examples=80)
def test_any_ledger_gives_a_sentence_and_a_document_without_holes(specs, count, known):
    calibrated = {rows: 0.01 * rows for rows in range(1, 10)} if known else None
    found = explain(make_lane(specs), plain_lane(count) if count else (), REJECTION, calibrated=calibrated)
    assert found.sentence.endswith(".") and "nan" not in found.sentence and "inf" not in found.sentence
    text = dumps(plain(found.as_dict()))
    assert json.loads(text)["sentence"] == found.sentence
    for value in (found.measured_speedup, found.break_even_tokens, found.best_k_speedup, found.c, found.v):
        assert value is None or math.isfinite(value)
