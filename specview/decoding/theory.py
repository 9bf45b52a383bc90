"""Closed forms of speculative decoding: expected tokens, speedup, best k, break-even.

alpha is the acceptance rate per judged token, k the draft length, c the cost of one draft step and
v the cost of the verifying pass, both in plain target steps. Source: Leviathan et al. 2023 (arXiv
2211.17192), equation 1 and theorem 3.8, where v is 1.
"""

from __future__ import annotations

from collections.abc import Callable

V = Callable[[int], float]


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
    cost = k * c + v
    if cost > k + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, k) < cost else (low, middle)
    return high
