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
    chance_of_refusal,
    chi_square_tail,
    expected_variation,
    goodness_of_fit,
    least_caught,
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


@pytest.mark.parametrize(
    ("freedom", "statistic", "p"),
    [(1, 1e-9, 0.999974768674784), (1, 300.0, 3.2943623833139784e-67), (2, 1e-12, 0.9999999999995), (255, 0.0, 1.0),
     (3, 21.0, 0.00010527618177149754), (7, 1400.0, 3.859963181237519e-298), (255, 347.7, 9.93476931201147e-05),
     (4095, 4500.0, 7.0292031355678666e-06), (50000, 50300.0, 0.17133581874774606)],
)  # fmt: skip
def test_chi_square_tails(freedom, statistic, p):
    """As by the series of Numerical Recipes, section 6.2."""
    assert chi_square_tail(statistic, freedom) == pytest.approx(p, rel=1e-9, abs=0)


@pytest.mark.parametrize(
    ("freedom", "significance", "limit"), [(1, 0.05, 3.841459), (10, 0.01, 23.209251), (255, 1e-4, 347.654213)]
)
def test_limits_are_those_of_the_tables(freedom, significance, limit):
    assert chi_square_tail(limit, freedom) == pytest.approx(significance, rel=1e-5)
    assert chance_of_refusal(freedom, 0.0, significance) == pytest.approx(significance, rel=1e-9)


@pytest.mark.parametrize(
    ("freedom", "shift", "chance"),
    [(3, 20.0, 0.5399310731492578), (255, 100.0, 0.5863157816248262), (255, 0.0, 1e-4), (1, 12.5, 0.36127307753651394),
     (4095, 300.0, 0.31858080676535805), (50000, 1500.0, 0.8336177721523462)],
)  # fmt: skip
def test_chances_of_refusal(freedom, shift, chance):
    """As by the Poisson mixture of central chi-squares."""
    assert chance_of_refusal(freedom, shift) == pytest.approx(chance, abs=1e-9)


@pytest.mark.parametrize("freedom", [1, 3, 255, 4095, 250_000])
def test_what_is_least_caught_is_refused_with_the_stated_power(freedom):
    least = least_caught(freedom, 1e6)
    assert chance_of_refusal(freedom, 4 * 1e6 * least**2) == pytest.approx(POWER, abs=1e-9)


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
    assert low == pytest.approx(1.7480027859062787e-44, rel=1e-9, abs=0)
    assert uniform_p([0.01, 0.02, 0.03, 0.5, 0.9, 0.95, 0.97]) == pytest.approx(0.16343079490207013, abs=1e-9)
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
