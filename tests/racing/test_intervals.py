"""Intervals of speedups: Student's t is the real one, and the interval covers what it promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specview.racing.intervals import LEAST, clearly_below, interval_of


def student_mass(t: float, freedom: int) -> float:
    """P(|T| <= t), the density integrated by Simpson's rule."""
    x = np.linspace(-t, t, 20001)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    y = scale * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
    step = x[1] - x[0]
    return float(step / 3 * (y[0] + y[-1] + 4 * y[1:-1:2].sum() + 2 * y[2:-1:2].sum()))


@pytest.mark.parametrize("freedom", [*range(2, 31), 31, 40, 60, 120, 1000])
def test_the_quantile_holds_95_percent(freedom):
    logs = np.random.default_rng(freedom).normal(0, 1, freedom + 1)
    found = interval_of(list(np.exp(logs)))
    t = math.log(found.high / found.mean) / (np.std(logs, ddof=1) / math.sqrt(len(logs)))
    assert student_mass(t, freedom) == pytest.approx(0.95, abs=1e-9)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=12))
def test_the_mean_is_geometric_and_within(values):
    found = interval_of(values)
    assert found.mean == pytest.approx(float(np.exp(np.mean(np.log(values)))))
    assert found.count == len(values)
    if len(values) < LEAST:
        assert found.low is None and found.high is None
    else:
        assert 0 < found.low <= found.mean * (1 + 1e-12) and found.mean <= found.high * (1 + 1e-12)
    inverse = interval_of([1 / value for value in values])
    assert inverse.mean == pytest.approx(1 / found.mean), "plain over the lane says the same"


def test_nothing_has_no_interval():
    assert interval_of([]) is None


@pytest.mark.parametrize("count", [3, 5, 12])
def test_coverage_is_what_it_says(count):
    """4,000 samples: within 4 standard errors of 95%."""
    rng = np.random.default_rng(count)
    trials = 4000
    inside = 0
    for row in np.exp(rng.normal(math.log(1.3), 0.1, size=(trials, count))):
        found = interval_of(list(row))
        inside += found.low <= 1.3 <= found.high
    assert abs(inside / trials - 0.95) < 4 * math.sqrt(0.95 * 0.05 / trials)


def test_clearly_below_needs_pairs_and_a_gap():
    rng = np.random.default_rng(1)
    noise = list(rng.normal(0, 0.02, 8))
    best = [2 * math.exp(value) for value in noise]
    assert clearly_below([0.8 * value for value in best], best), "a paired gap without noise"
    assert not clearly_below([0.8 * value for value in best[:3]], best[:3]), "three pairs are too few"
    assert not clearly_below(best, best)
    assert not clearly_below([1.1 * value for value in best], best)
    wrong = 0
    for _ in range(500):
        one, other = np.exp(rng.normal(0, 0.05, size=(2, 8)))
        wrong += clearly_below(list(one), list(other))
    assert wrong < 15, "of equals, one in a hundred or so"
