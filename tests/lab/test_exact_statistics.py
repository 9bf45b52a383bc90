"""The lab's statistics against closed forms, tables and simulation. All seeds are fixed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.lab.exact_statistics import (
    LEAST_EXPECTED,
    POWER,
    SIGNIFICANCE,
    chi_square_limit,
    chi_square_tail,
    expected_variation,
    gamma_q,
    goodness_of_fit,
    least_caught,
    noncentral_tail,
    permutation_p,
    permuted_variation,
    pool,
    sampled_variation,
    two_sample_chi_square,
    uniform_p,
    variation_between,
    variation_bound,
)


@given(st.floats(0.01, 500))
def test_chi_square_of_two_degrees_is_exponential(x):
    assert chi_square_tail(x, 2) == pytest.approx(math.exp(-x / 2), rel=1e-10)


@given(st.floats(0.001, 300))
def test_chi_square_of_one_degree_is_a_squared_normal(x):
    assert chi_square_tail(x, 1) == pytest.approx(math.erfc(math.sqrt(x / 2)), rel=1e-9)


@given(st.floats(0.5, 3000), st.floats(0.01, 2))
def test_gamma_recurrence(a, share):
    """Q(a + 1, x) - Q(a, x) = x^a e^-x / Gamma(a + 1)."""
    x = a * share
    step = math.exp(a * math.log(x) - x - math.lgamma(a + 1))
    assert gamma_q(a + 1, x) - gamma_q(a, x) == pytest.approx(step, abs=1e-11)


@pytest.mark.parametrize(
    ("freedom", "significance", "limit"), [(1, 0.05, 3.841459), (10, 0.01, 23.209251), (255, 1e-4, 347.654213)]
)
def test_limits_are_those_of_the_tables(freedom, significance, limit):
    assert chi_square_limit(freedom, significance) == pytest.approx(limit, abs=1e-5)


@pytest.mark.parametrize(
    ("statistic", "freedom", "shift", "tail"),
    [(360, 255, 100, 0.42390070678), (21, 3, 20, 0.54469415906), (4500, 4095, 300, 0.13953818591)],
)
def test_noncentral_tails(statistic, freedom, shift, tail):
    assert noncentral_tail(statistic, freedom, shift) == pytest.approx(tail, abs=1e-9)


def test_without_a_shift_the_noncentral_is_the_central():
    assert noncentral_tail(12.0, 7, 0.0) == pytest.approx(chi_square_tail(12.0, 7))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 30), min_size=2, max_size=60))
def test_pooled_cells_expect_enough(values):
    expected = np.array(values)
    cell, cells = pool(expected)
    mass = np.bincount(cell[cell >= 0], weights=expected[cell >= 0], minlength=cells)
    assert np.array_equal(cell >= 0, expected > 0)
    assert len(mass) == cells
    if cells > 1:
        assert mass.min() >= LEAST_EXPECTED - 1e-9
    assert mass.sum() == pytest.approx(expected.sum())
    own = expected >= LEAST_EXPECTED
    assert len(set(cell[own].tolist())) == own.sum()  # those with enough are not put together


def draws(p: np.ndarray, n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).multinomial(n, p)


P = np.random.default_rng(1).dirichlet(np.ones(80))


def test_p_values_of_true_samples_are_uniform():
    found = [goodness_of_fit(draws(P, 3000, seed), P)[0] for seed in range(400)]
    spread = uniform_p(found)
    assert spread is not None
    assert spread > 1e-4


def test_two_sample_p_values_are_uniform_and_so_are_the_permutations():
    chi, dealt = [], []
    p = np.random.default_rng(2).dirichlet(np.ones(20))
    for seed in range(200):
        a, b = draws(p, 4000, seed), draws(p, 3000, 10_000 + seed)
        chi.append(two_sample_chi_square(a, b)[0])
        rng = np.random.default_rng(seed)
        dealt.append(permutation_p(variation_between(a, b), permuted_variation(a, b, rng, 400)))
    for found in (chi, dealt):
        spread = uniform_p(found)
        assert spread is not None
        assert spread > 1e-4


def test_uniform_p_refuses_what_is_not_uniform():
    low = uniform_p([0.3 * i / 100 for i in range(100)])
    even = uniform_p([(i + 0.5) / 100 for i in range(100)])
    assert low is not None
    assert low < 1e-9
    assert even == pytest.approx(1.0)
    assert uniform_p([0.1, 0.2]) is None


def test_an_impossible_outcome_refuses_outright():
    p = np.array([0.5, 0.5, 0.0])
    assert goodness_of_fit(np.array([50, 49, 1]), p)[0] == 0.0
    assert goodness_of_fit(np.array([0, 0, 0]), p) == (None, 0)


@pytest.mark.parametrize("bias", ["spread", "one cell"])
def test_a_bias_of_the_stated_size_is_caught_as_often_as_stated(bias):
    """The worst shape (in proportion to p) is caught with the stated power; another shape more often."""
    n, cells = 4000, 40
    p = np.full(cells, 1 / cells)
    least = least_caught(cells - 1, n)
    assert least is not None
    other = p.copy()
    if bias == "spread":
        other[::2] += 2 * least / cells
        other[1::2] -= 2 * least / cells
    else:
        other[0] += least
        other[1:] -= least / (cells - 1)
    assert np.abs(other - p).sum() / 2 == pytest.approx(least)
    tries = 300
    caught = sum((goodness_of_fit(draws(other, n, seed), p)[0] or 0) <= SIGNIFICANCE for seed in range(tries))
    error = 4 * math.sqrt(POWER * (1 - POWER) / tries)
    assert caught / tries > POWER - error
    if bias == "spread":
        assert caught / tries < POWER + error


def test_half_the_stated_bias_is_mostly_missed():
    n, cells = 4000, 40
    p = np.full(cells, 1 / cells)
    least = least_caught(cells - 1, n)
    assert least is not None
    other = p.copy()
    other[::2] += least / cells
    other[1::2] -= least / cells
    caught = sum((goodness_of_fit(draws(other, n, seed), p)[0] or 0) <= SIGNIFICANCE for seed in range(200))
    assert caught < 60


def test_least_caught_falls_with_the_square_root_of_the_samples():
    few, many = least_caught(255, 10_000), least_caught(255, 1_000_000)
    assert few is not None
    assert many is not None
    assert few / many == pytest.approx(10)
    assert least_caught(0, 100) is None
    assert least_caught(255, 20) is None  # nothing would be caught


def test_expected_variation_is_what_true_samples_show():
    shown = [sampled_variation(draws(P, 20_000, seed), P) for seed in range(200)]
    error = np.std(shown) / math.sqrt(len(shown))
    assert np.mean(shown) == pytest.approx(expected_variation(P, 20_000), abs=4 * error + 1e-4)
    assert max(shown) < variation_bound(P, 20_000)


def test_permutations_know_when_two_samples_differ():
    rng = np.random.default_rng(0)
    q = P.copy()
    q[:40] *= 1.5
    q /= q.sum()
    a, b = draws(P, 5000, 1), draws(q, 5000, 2)
    assert permutation_p(variation_between(a, b), permuted_variation(a, b, rng, 999)) == 1 / 1000
    assert (two_sample_chi_square(a, b)[0] or 0) < 1e-7
    assert two_sample_chi_square(np.array([5, 0]), np.array([7, 0])) == (None, 0)
