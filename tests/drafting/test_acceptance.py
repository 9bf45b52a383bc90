"""The running acceptance: priors, learning, forgetting, confidence, and when to go on drafting."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.ledger import DraftedToken, FinalToken, Round
from specview.drafting.acceptance import (
    COPIES,
    RUNS,
    UNKNOWN,
    Acceptance,
    GoOn,
    fastest,
    learn_round,
)


def test_before_anything_was_learned_the_prior_stands():
    for prior in (UNKNOWN, COPIES):
        acceptance = Acceptance(prior)
        assert acceptance.rates() == pytest.approx(prior)
        assert [acceptance.after(run) for run in RUNS] == pytest.approx(prior)
        assert acceptance.after(10_000) == pytest.approx(prior[-1])


@given(st.lists(st.tuples(st.booleans(), st.none() | st.floats(0, 1)), max_size=200))
@settings(deadline=None, derandomize=True, max_examples=150)
def test_estimates_stay_probabilities_and_reaches_fall(trials):
    acceptance = Acceptance()
    for held, confidence in trials:
        acceptance.learn(confidence, held)
        assert acceptance.run >= 0
    assert all(0 < rate < 1 for rate in acceptance.rates())
    assert all(0 < acceptance.sure(c) < 1 for c in (0.0, 0.3, 0.5, 1.0))
    assert 0 <= acceptance.trust <= 1
    reaches = acceptance.reaches(20, (0.9, None, 0.1))
    assert reaches == sorted(reaches, reverse=True)


@pytest.mark.parametrize("truth", [0.1, 0.5, 0.9])
def test_the_truth_is_found(truth):
    """Independent trials of one chance: the estimate of the first place settles around it."""
    draws, acceptance, found = random.Random(3), Acceptance(), []
    for trial in range(600):
        acceptance.run = 0
        acceptance.learn(None, draws.random() < truth)
        if trial > 100:
            found.append(acceptance.after(0))
    assert sum(found) / len(found) == pytest.approx(truth, abs=0.06)


def test_a_change_of_text_is_followed():
    acceptance = Acceptance()
    for held in (True, False):
        for _ in range(80):
            acceptance.run = 0
            acceptance.learn(None, held)
        assert (acceptance.after(0) > 0.85) == held
        assert (acceptance.after(0) < 0.15) != held


def test_a_bucket_without_trials_goes_along_with_the_one_before():
    acceptance = Acceptance()
    for _ in range(40):
        acceptance.run = 0
        acceptance.learn(None, False)
    assert all(now < before for now, before in zip(acceptance.rates(), UNKNOWN, strict=True))


def test_the_run_counts_over_drafts_and_ends_with_a_miss():
    acceptance = Acceptance()
    for held, run in ((True, 1), (True, 2), (True, 3), (False, 0), (True, 1)):
        acceptance.learn(None, held)
        assert acceptance.run == run


def test_a_confidence_that_tells_is_trusted_and_one_that_does_not_is_not():
    draws = random.Random(7)
    telling, idle = Acceptance(), Acceptance()
    for _ in range(300):
        confidence = draws.choice((0.1, 0.99))
        held = draws.random() < confidence
        for acceptance, said in ((telling, confidence), (idle, draws.choice((0.1, 0.99)))):
            acceptance.run = 0
            acceptance.learn(said, held)
    assert telling.trust > 0.9
    assert idle.trust < 0.5
    assert telling.chance(0, 0.99) > 0.85
    assert telling.chance(0, 0.1) < 0.3
    assert idle.chance(0, 0.99) == pytest.approx(idle.chance(0, 0.1), abs=0.2)


def test_fading_goes_back_to_the_prior():
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.learn(0.5, True)
    for _ in range(2000):
        acceptance.fade(0.99)
    assert acceptance.rates() == pytest.approx(UNKNOWN, abs=1e-3)


@given(
    st.lists(st.floats(0.02, 0.999), min_size=1, max_size=20),
    st.lists(st.floats(0.01, 5.0), min_size=21, max_size=21),
)
@settings(deadline=None, derandomize=True, max_examples=200)
def test_the_fastest_length_has_the_best_ratio(chances, steps):
    times = [1.0]
    for step in steps:
        times.append(times[-1] + step)
    reaches, reached = [], 1.0
    for chance in chances:
        reached *= chance
        reaches.append(reached)
    length, speed = fastest(reaches, times)
    ratios = [(1 + sum(reaches[:k])) / times[k] for k in range(1, len(reaches) + 1)]
    assert speed == pytest.approx(ratios[length - 1])
    assert speed == pytest.approx(max(ratios))


@pytest.mark.parametrize(("confidence", "goes_on"), [(0.99, True), (0.01, False)])
def test_going_on_is_worth_it_after_a_sure_token(confidence, goes_on):
    acceptance = Acceptance()
    ask = GoOn(acceptance, [1.0, 1.1, 1.2, 1.3, 1.4], speed=1.5)
    assert ask(confidence) == goes_on
    assert ask.asked


def test_going_on_ends_at_the_longest_draft():
    ask = GoOn(Acceptance(), [1.0, 1.0, 1.0], speed=1.0)
    assert ask(1.0)
    assert not ask(1.0)


def test_going_on_looks_past_a_step_in_the_cost():
    """One more token costs much, four more no more than that: the look is over all further lengths."""
    acceptance = Acceptance([0.95] * len(RUNS))
    assert GoOn(acceptance, [1.0, 1.0, 1.5, 1.5, 1.5, 1.5], speed=2.0)(0.95)
    assert not GoOn(acceptance, [1.0, 1.0, 1.5], speed=2.0)(0.95)


def finished(verdicts, parents=None):
    drafted = tuple(DraftedToken(i, verdict) for i, verdict in enumerate(verdicts))
    return Round(0, 1.0, 0.0, 1.0, 0.0, drafted=drafted, parents=parents, final=FinalToken(0, "bonus"))


def test_a_round_of_a_chain_counts_its_trials():
    acceptance = Acceptance()
    learn_round(acceptance, finished(["accepted", "accepted", "rejected", "ignored"]))
    assert acceptance.run == 0
    learn_round(acceptance, finished(["accepted", "accepted"]))
    assert acceptance.run == 2
    assert finished(["accepted"] * 3).longest == 3
    assert finished([]).longest == 0


def test_a_round_of_a_tree_counts_the_path():
    """Root children 0 and 1, and 2 below 1: a rejected sibling of an accepted one is no miss."""
    acceptance = Acceptance()
    learn_round(acceptance, finished(["rejected", "accepted", "accepted"], (-1, -1, 1)))
    assert acceptance.run == 2
    learn_round(acceptance, finished(["rejected", "rejected", "ignored"], (-1, -1, 1)))
    assert acceptance.run == 0
    assert finished(["rejected", "accepted", "accepted"], (-1, -1, 1)).longest == 2
