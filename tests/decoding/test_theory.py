"""Closed forms against the papers' figures, a simulation and a plain sum."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding import theory
from specview.decoding.theory import best_k, break_even_alpha, expected_tokens, speedup

ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9)
LENGTHS = range(1, 9)


def summed(alpha: float, k: int) -> float:
    """Expected tokens as the sum over how many survive: 1 + alpha + ... + alpha^k."""
    return sum(alpha**i for i in range(k + 1))


# Leviathan et al. 2023, table 1: the speed factor at c = 0.
@pytest.mark.parametrize(
    ("alpha", "k", "factor"),
    [(0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 2, 2.44), (0.8, 5, 3.69), (0.9, 2, 2.71), (0.9, 10, 6.86)],
)
def test_leviathans_table_at_no_draft_cost(alpha, k, factor):
    assert speedup(alpha, k, 0.0) == pytest.approx(factor, abs=0.005)
    assert expected_tokens(alpha, k) == pytest.approx(factor, abs=0.005)


# Theorem 3.8 typed out by hand: rows alpha, columns k = 1..8.
TABLES = {
    0.05: {
        0.5: (1.43, 1.59, 1.63, 1.61, 1.57, 1.53, 1.48, 1.43),
        0.6: (1.52, 1.78, 1.89, 1.92, 1.91, 1.87, 1.82, 1.77),
        0.7: (1.62, 1.99, 2.20, 2.31, 2.35, 2.35, 2.33, 2.28),
        0.8: (1.71, 2.22, 2.57, 2.80, 2.95, 3.04, 3.08, 3.09),
        0.9: (1.81, 2.46, 2.99, 3.41, 3.75, 4.01, 4.22, 4.38),
    },
    0.2: {
        0.5: (1.25, 1.25, 1.17, 1.08, 0.98, 0.90, 0.83, 0.77),
        0.6: (1.33, 1.40, 1.36, 1.28, 1.19, 1.10, 1.02, 0.95),
        0.7: (1.42, 1.56, 1.58, 1.54, 1.47, 1.39, 1.31, 1.23),
        0.8: (1.50, 1.74, 1.85, 1.87, 1.84, 1.80, 1.73, 1.66),
        0.9: (1.58, 1.94, 2.15, 2.28, 2.34, 2.37, 2.37, 2.36),
    },
}


@pytest.mark.parametrize("c", sorted(TABLES))
@pytest.mark.parametrize("alpha", ALPHAS)
def test_speedup_tables(c, alpha):
    for k, expected in zip(LENGTHS, TABLES[c][alpha], strict=True):
        assert speedup(alpha, k, c) == pytest.approx(expected, abs=0.00501)
        assert summed(alpha, k) / (k * c + 1) == pytest.approx(expected, abs=0.00501)


@pytest.mark.parametrize("alpha", [0.3, 0.7, 0.95])
@pytest.mark.parametrize("k", [1, 4])
def test_expected_tokens_is_what_a_simulation_gives(alpha, k):
    rng = random.Random(1)
    n = 40_000
    total = 0
    for _ in range(n):
        accepted = 0
        while accepted < k and rng.random() < alpha:
            accepted += 1
        total += accepted + 1
    assert total / n == pytest.approx(expected_tokens(alpha, k), abs=4 * k / 2 / n**0.5)


@given(alpha=st.floats(0, 1), k=st.integers(0, 64))
@settings(deadline=None, derandomize=True)
def test_expected_tokens_is_the_sum(alpha, k):
    assert expected_tokens(alpha, k) == pytest.approx(summed(alpha, k), rel=1e-6)


def test_the_ends():
    assert expected_tokens(1.0, 5) == 6
    assert expected_tokens(0.0, 5) == 1
    assert expected_tokens(0.7, 0) == 1
    assert speedup(1.0, 4, 0.25) == 2.5
    assert speedup(0.8, 3, 0.1, v=2.5) == pytest.approx(summed(0.8, 3) / 2.8)


@given(alpha=st.floats(0, 1), c=st.floats(0, 1), slope=st.floats(0, 0.5))
@settings(deadline=None, derandomize=True)
def test_best_k_is_the_best_of_all(alpha, c, slope):
    def v(k):
        return 1 + slope * k

    found = best_k(alpha, c, v, limit=20)
    value = speedup(alpha, found, c, v(found)) if found else 1.0
    assert 0 <= found <= 20
    assert value >= 1 - 1e-12
    for k in range(1, 21):
        assert speedup(alpha, k, c, v(k)) <= value + 1e-12


def test_best_k_of_the_tables_and_plain_where_nothing_pays():
    for c, table in TABLES.items():
        for alpha, row in table.items():
            best = best_k(alpha, c, limit=8)
            assert row[best - 1] == max(row)
    assert best_k(0.1, 0.5) == 0
    assert best_k(0.9, 0.0, limit=12) == 12


@given(k=st.integers(1, 20), c=st.floats(0, 1.2), v=st.floats(0.5, 5))
@settings(deadline=None, derandomize=True)
def test_break_even_is_where_the_speedup_is_one(k, c, v):
    alpha = break_even_alpha(k, c, v)
    if alpha is None:
        assert speedup(1.0, k, c, v) < 1
    else:
        assert 0 <= alpha <= 1
        if k * c + v >= 1:  # cheaper than one plain step pays at any alpha
            assert speedup(alpha, k, c, v) == pytest.approx(1, rel=1e-6)
        else:
            assert alpha == pytest.approx(0, abs=1e-9)


# -- tables, verify costs, the rule of thumb ---------------------------------------------------------


def test_the_two_tables_of_the_literature_to_two_decimals():
    assert tuple(sorted(TABLES)) == theory.TABLE_COSTS
    for c in theory.TABLE_COSTS:
        rows = theory.table(c)
        assert [[f"{value:.2f}" for value in row] for row in rows] == [
            [f"{value:.2f}" for value in TABLES[c][alpha]] for alpha in theory.TABLE_ALPHAS
        ]


def test_leviathans_table_one_operations_and_speed():
    for alpha, k, operations, factor in theory.FREE_DRAFTS:
        assert f"{theory.operations(alpha, k):.2f}" == f"{operations:.2f}"
        assert f"{speedup(alpha, k, 0.0):.2f}" == f"{factor:.2f}"


@given(alpha=st.floats(0, 1), k=st.integers(0, 64))
@settings(deadline=None, derandomize=True)
def test_the_rule_of_thumb_is_never_too_low_and_right_at_k_1_and_at_the_ends(alpha, k):
    error = theory.rule_of_thumb_error(alpha, k)
    assert error >= -1e-9 * max(1, k)
    assert error == pytest.approx(alpha * k - sum(alpha**i for i in range(1, k + 1)), abs=1e-9 * max(1, k))
    assert theory.rule_of_thumb_error(alpha, 1) == pytest.approx(0, abs=1e-12)
    assert theory.rule_of_thumb_error(1.0, k) == theory.rule_of_thumb_error(0.0, k) == 0


def test_verify_costs():
    assert [theory.constant_v(1.4)(k) for k in (0, 3)] == [1.4, 1.4]
    assert [theory.line_v(0.25)(k) for k in (0, 1, 4)] == [1.0, 1.25, 2.0]
    measured = theory.measured_v({5: 0.3, 1: 0.1, 3: 0.2})
    assert [measured(k) for k in (0, 1, 2, 3, 4)] == pytest.approx([1.0, 1.5, 2.0, 2.5, 3.0])
    assert theory.table(0.1, (0.6,), (2,), measured)[0][0] == pytest.approx(summed(0.6, 2) / 2.2)
