"""Closed forms of speculative decoding: expected tokens, speedup, best k, break-even.

alpha is the acceptance rate per judged token, k the draft length, c the cost of one draft step and
v the cost of the verifying pass, both in plain target steps. Source: Leviathan et al. 2023 (arXiv
2211.17192), equation 1 and theorem 3.8, where v is 1.

All of it assumes that every drafted token is accepted with the same chance alpha, whatever came before it
(the paper's i.i.d. assumption).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from specview.decoding.costs import interpolate

V = Callable[[int], float]

TABLE_ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9)
TABLE_KS = tuple(range(1, 9))
TABLE_COSTS = (0.05, 0.2)
"""The two tables that the literature prints of theorem 3.8: a row per alpha, a column per k, one table per c."""

FREE_DRAFTS = ((0.6, 2, 1.53, 1.96), (0.7, 3, 1.58, 2.53), (0.8, 2, 1.23, 2.44), (0.8, 5, 1.63, 3.69),
               (0.9, 2, 1.11, 2.71), (0.9, 10, 1.60, 6.86))  # fmt: skip
"""Leviathan et al. 2023, table 1 (c = 0): alpha, k, operations and speed, both in those of plain decoding."""


def expected_tokens(alpha: float, k: float) -> float:
    """Tokens per target pass: (1 - alpha^(k+1)) / (1 - alpha), and k + 1 at alpha 1."""
    if alpha >= 1:
        return k + 1
    return (1 - alpha ** (k + 1)) / (1 - alpha)


def speedup(alpha: float, k: float, c: float, v: float = 1.0) -> float:
    """Predicted speedup over plain decoding: expected tokens / (k c + v)."""
    return expected_tokens(alpha, k) / (k * c + v)


def best_k(alpha: float, c: float, v: V = lambda k: 1.0, limit: int = 64) -> int:
    """The draft length from 0 (plain) to `limit` with the highest predicted speedup."""
    return max(range(limit + 1), key=lambda k: speedup(alpha, k, c, v(k)) if k else 1.0)


def break_even_alpha(k: int, c: float, v: float = 1.0) -> float | None:
    """The acceptance rate at which drafting k tokens just pays; None if even alpha 1 does not."""
    return break_even([k], k * c + v)


def break_even(lengths: Sequence[int], cost: float) -> float | None:
    """The alpha at which drafts of these lengths give `cost` tokens a round on average; None if even alpha 1 does not."""
    counts = Counter(lengths)

    def tokens(alpha: float) -> float:
        return sum(n * expected_tokens(alpha, k) for k, n in counts.items()) / len(lengths)

    if tokens(1.0) < cost:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens(middle) < cost else (low, middle)
    return high


def table(c: float, alphas: Sequence[float] = TABLE_ALPHAS, ks: Sequence[int] = TABLE_KS, v: V = lambda k: 1.0) -> list[list[float]]:
    """Speedups, a row per alpha, a column per k."""
    return [[speedup(alpha, k, c, v(k)) for k in ks] for alpha in alphas]


def operations(alpha: float, k: float, draft_operations: float = 0.0) -> float:
    """Arithmetic operations per token in those of plain decoding (Leviathan et al. 2023, theorem 3.11).

    draft_operations is the draft's per token over the target's.
    """
    return (k * draft_operations + k + 1) / expected_tokens(alpha, k)


def rule_of_thumb_error(alpha: float, k: float) -> float:
    """What alpha * k, often quoted for the accepted tokens of a round, is beyond the right number of them.

    Tokens behind a rejection are not accepted: alpha + ... + alpha^k = (expected tokens) - 1 are.
    """
    return alpha * k - (expected_tokens(alpha, k) - 1)


def constant_v(value: float) -> V:
    """Verifying costs the same for every k."""
    return lambda k: value


def line_v(per_row: float) -> V:
    """Every row beyond the first costs `per_row` of a plain step: 1 + per_row k."""
    return lambda k: 1 + per_row * k


def measured_v(passes: Mapping[int, float]) -> V:
    """Verify cost from seconds of passes by rows, interpolated; rows 1 among them."""
    ordered = dict(sorted(passes.items()))
    return lambda k: interpolate(ordered, k + 1) / interpolate(ordered, 1)
