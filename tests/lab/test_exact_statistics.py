"""The lab's statistics against closed forms, tables and simulation. All seeds are fixed."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.lab import exact_statistics as statistics

P = np.random.default_rng(1).dirichlet(np.ones(80))


def draws(p: np.ndarray, n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).multinomial(n, p)


@pytest.mark.parametrize(
    ("freedom", "statistic", "p"),
    [(1, 9.0, math.erfc(math.sqrt(4.5))), (2, 31.0, math.exp(-15.5)), (7, 1400.0, 3.859963181237519e-298), (255, 0.0, 1.0),
     (255, 347.7, 9.93476931201147e-05), (50000, 50300.0, 0.17133581874774606)],
)  # fmt: skip
def test_chi_square_tails(freedom, statistic, p):
    """A squared normal, an exponential, and the series of Numerical Recipes, section 6.2."""
    assert statistics.chi_square_tail(statistic, freedom) == pytest.approx(p, rel=1e-9, abs=0)


@pytest.mark.parametrize(
    ("freedom", "shift", "significance", "chance"),
    [(3, 20.0, 1e-4, 0.5399310731492578), (255, 100.0, 1e-4, 0.5863157816248262), (4095, 300.0, 1e-4, 0.31858080676535805),
     (50000, 1500.0, 1e-4, 0.8336177721523462), (1, 0.0, 0.05, 0.05)],
)  # fmt: skip
def test_chances_of_refusal(freedom, shift, significance, chance):
    """As by the Poisson mixture of central chi-squares."""
    assert statistics.chance_of_refusal(freedom, shift, significance) == pytest.approx(chance, abs=1e-9)


@pytest.mark.parametrize("freedom", [1, 3, 255, 250_000])
def test_what_is_least_caught_is_refused_with_the_stated_power_and_falls_with_the_root_of_the_samples(freedom):
    least = statistics.least_caught(freedom, 1e6)
    assert statistics.chance_of_refusal(freedom, 4 * 1e6 * least**2) == pytest.approx(statistics.POWER, abs=1e-9)
    assert statistics.least_caught(freedom, 1e8) == pytest.approx(least / 10)
    assert statistics.least_caught(0, 100) is None
    assert statistics.least_caught(255, 20) is None  # nothing would be caught


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 30), min_size=2, max_size=60))
def test_pooled_cells_expect_enough(values):
    expected = np.array(values)
    cell, cells = statistics.pool(expected)
    mass = np.bincount(cell[cell >= 0], weights=expected[cell >= 0], minlength=cells)
    assert np.array_equal(cell >= 0, expected > 0)
    assert len(mass) == cells
    if cells > 1:
        assert mass.min() >= statistics.LEAST_EXPECTED - 1e-9
    assert mass.sum() == pytest.approx(expected.sum())
    own = expected >= statistics.LEAST_EXPECTED
    assert len(set(cell[own].tolist())) == own.sum()  # those with enough are not put together


# -- honest: true samples are refused as rarely as stated ---------------------------------------------------------


def fit_p(seed: int) -> float | None:
    return statistics.goodness_of_fit(draws(P, 3000, seed), P)[0]


def two_samples(seed: int) -> tuple[np.ndarray, np.ndarray]:
    p = np.random.default_rng(2).dirichlet(np.ones(20))
    return draws(p, 4000, seed), draws(p, 3000, 10_000 + seed)


def dealt_p(seed: int) -> float:
    a, b = two_samples(seed)
    return statistics.permutation_p(statistics.total_variation(a, b), statistics.permuted_variation(a, b, np.random.default_rng(seed), 400))


@pytest.mark.parametrize(
    ("p_of", "count"), [(fit_p, 400), (lambda seed: statistics.two_sample_chi_square(*two_samples(seed))[0], 200), (dealt_p, 120)],
    ids=["one sample", "two samples", "permutations"],
)  # fmt: skip
def test_p_values_of_true_samples_are_uniform(p_of, count):
    assert statistics.uniform_p([p_of(seed) for seed in range(count)]) > 1e-4


def test_uniform_p_refuses_what_is_not_uniform():
    assert statistics.uniform_p([(i + 0.5) / 100 for i in range(100)]) == pytest.approx(1.0)
    assert statistics.uniform_p([0.3 * i / 100 for i in range(100)]) == pytest.approx(1.7480027859062787e-44, rel=1e-9, abs=0)
    assert statistics.uniform_p([0.01, 0.02, 0.03, 0.5, 0.9, 0.95, 0.97]) == pytest.approx(0.16343079490207013, abs=1e-9)
    assert statistics.uniform_p([0.1, 0.2]) is None


def test_expected_variation_is_what_true_samples_show():
    shown = [statistics.total_variation(draws(P, 20_000, seed), P) for seed in range(200)]
    error = np.std(shown) / math.sqrt(len(shown))
    assert np.mean(shown) == pytest.approx(statistics.expected_variation(P, 20_000), abs=4 * error + 1e-4)
    assert max(shown) < statistics.variation_bound(P, 20_000)


# -- awake: what differs is caught as often as stated ----------------------------------------------------------------


@pytest.mark.parametrize(("shape", "size"), [("spread", 1.0), ("one cell", 1.0), ("spread", 0.5)])
def test_a_bias_of_the_stated_size_is_caught_as_often_as_stated(shape, size):
    """The worst shape (in proportion to p) is caught with the stated power, another more often; of half the size mostly not."""
    n, cells, tries = 4000, 40, 300
    p = np.full(cells, 1 / cells)
    bias = size * statistics.least_caught(cells - 1, n)
    other = p.copy()
    if shape == "spread":
        other[::2] += 2 * bias / cells
        other[1::2] -= 2 * bias / cells
    else:
        other[0] += bias
        other[1:] -= bias / (cells - 1)
    assert statistics.total_variation(other, p) == pytest.approx(bias)
    caught = sum((statistics.goodness_of_fit(draws(other, n, seed), p)[0] or 0) <= statistics.SIGNIFICANCE for seed in range(tries)) / tries
    error = 4 * math.sqrt(statistics.POWER * (1 - statistics.POWER) / tries)
    if size < 1:
        assert caught < 0.3
    else:
        assert caught > statistics.POWER - error
        assert shape != "spread" or caught < statistics.POWER + error


def test_what_cannot_be_refuses_outright_and_nothing_is_no_test():
    p = np.array([0.5, 0.5, 0.0])
    assert statistics.goodness_of_fit(np.array([50, 49, 1]), p)[0] == 0.0
    assert statistics.goodness_of_fit(np.array([0, 0, 0]), p) == (None, 0)
    assert statistics.two_sample_chi_square(np.array([5, 0]), np.array([7, 0])) == (None, 0)


@pytest.mark.parametrize(
    ("rule", "chi2_p", "tv", "outcome", "words"),
    [("match", 0.4, 0.01, "no difference", "no difference from the target found"), ("rejection", 1e-5, 0.01, "differs", "DIFFERS"),
     ("plain", 0.4, 0.3, "differs", "DIFFERS"), ("naive", 1e-5, 0.01, "caught", "lossy, and caught"),
     ("typical", 0.4, 0.01, "not caught", "lossy, not caught"), ("match", None, 0.3, "untested", "too few samples to test")],
)  # fmt: skip
def test_verdicts(rule, chi2_p, tv, outcome, words):
    one = statistics.Fit(rule=rule, samples=100, tv=tv, expected_tv=0.1, tv_bound=0.2, chi2_p=chi2_p, freedom=3)
    assert one.outcome == outcome
    assert one.words.startswith(words)
    assert one.differs == (outcome in ("differs", "caught"))


# -- continuations -------------------------------------------------------------------------------------------------------


def continued(p: np.ndarray, n: int, seed: int) -> Counter:
    rng = np.random.default_rng(seed)
    return Counter(tuple(row) for row in rng.choice(len(p), size=(n, 3), p=p).tolist())


def test_cells_have_enough_and_lose_nothing():
    p = np.random.default_rng(0).dirichlet(np.full(40, 0.3))
    plain, other = continued(p, 900, 1), continued(p, 700, 2)
    for depth in (1, 2, 3):
        a, b = statistics.cells_of(plain, other, depth)
        assert (a.sum(), b.sum()) == (900, 700)
        assert ((a + b) * 700 / 1600).min() >= statistics.LEAST_EXPECTED - 1e-9
    # what ends early is a cell of its own beside those that go on from it
    plain = Counter({(1,): 50, (1, 2): 50})
    assert sorted(statistics.cells_of(plain, plain, 2)[0].tolist()) == [50, 50]


def test_depth_tests_are_honest_and_awake():
    p = np.random.default_rng(5).dirichlet(np.ones(12))
    found = [statistics.compare_depth(continued(p, 600, seed), continued(p, 600, 1000 + seed), 2, 1).chi2_p for seed in range(60)]
    assert sum(one <= 0.05 for one in found) <= 11  # 3 expected; as many in one of 10,000 seeds
    q = p.copy()
    q[np.argmax(p)] += 0.3
    test = statistics.compare_depth(continued(p, 600, 1), continued(q / q.sum(), 600, 2), 1, 1, np.random.default_rng(0))
    assert test.chi2_p < statistics.SIGNIFICANCE
    assert test.permutation_p < 0.001
    assert test.tv > test.bound
