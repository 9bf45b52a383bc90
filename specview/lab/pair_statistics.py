"""Two samples of short continuations compared by depth, and what a lossy rule does to a first token exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from specview.decoding.verification import TYPICAL_DELTA, TYPICAL_EPSILON, entropy_of
from specview.lab.exact_statistics import (
    LEAST_EXPECTED,
    SIGNIFICANCE,
    Counts,
    Floats,
    least_caught,
    permutation_p,
    permuted_variation,
    two_sample_chi_square,
    variation_between,
)
from specview.lab.pair_results import DepthTest

Outcome = tuple[int, ...]
Sample = Mapping[Outcome, int]
"""How often each continuation came."""

FIRST_PERMUTATIONS, PERMUTATIONS = 999, 9_999
"""Dealings of two samples at random; all of them where the first ones look suspicious."""
BOUND_SHARE = 0.99
_ENDED = -1
"""Stands after an outcome that ended early, so that it is no beginning of another."""


def accepts(name: str, p: Floats, q: Floats) -> Floats:
    """The chance [vocab] that a lossy rule keeps each drafted token: Leviathan's ratio, or Medusa's threshold."""
    if name == "typical":
        threshold = min(TYPICAL_EPSILON, TYPICAL_DELTA * math.exp(-entropy_of(p)))
        return (p > threshold).astype(np.float64)
    return np.minimum(1.0, np.divide(p, q, out=(p > 0).astype(np.float64), where=q > 0))


def first_token_bias(name: str, p: Floats, q: Floats) -> float:
    """Exact total variation between p and a lossy rule's first token: half of sum |q a + (1 - sum q a) p - p|."""
    kept = q * accepts(name, p, q)
    return float(np.abs(kept - float(kept.sum()) * p).sum()) / 2


def compare_depth(
    plain: Sample,
    other: Sample,
    depth: int,
    depths: int,
    rng: np.random.Generator | None = None,
    permutations: int = PERMUTATIONS,
) -> DepthTest:
    """Compare two samples over their first `depth` tokens, one of `depths` such tests.

    rng makes the permutations, all of them where the first ones look suspicious.
    """
    a, b = cells_of(plain, other, depth)
    p, freedom = two_sample_chi_square(a, b)
    n, m = sum(plain.values()), sum(other.values())
    tv = variation_between(a, b)
    dealt_p = bound = None
    if rng is not None and len(a) > 1:
        dealt = permuted_variation(a, b, rng, FIRST_PERMUTATIONS)
        dealt_p = permutation_p(tv, dealt)
        if dealt_p < 0.02 and permutations > FIRST_PERMUTATIONS:
            more = permuted_variation(a, b, rng, permutations - FIRST_PERMUTATIONS)
            dealt = np.concatenate([dealt, more])
            dealt_p = permutation_p(tv, dealt)
        bound = float(np.quantile(dealt, BOUND_SHARE))
    least = least_caught(freedom, n * m / (n + m), SIGNIFICANCE / depths) if freedom else None
    return DepthTest(depth, len(a), tv, p, dealt_p, bound, least)


def cells_of(plain: Sample, other: Sample, depth: int) -> tuple[Counts, Counts]:
    """Counts [cells] of two samples' first `depth` tokens, in cells that expect enough of each.

    Outcomes that are too rare are put together with their siblings, then with their parents' siblings; by their counts
    in both samples together, which says nothing of a difference.
    """
    n, m = sum(plain.values()), sum(other.values())
    least = LEAST_EXPECTED * (n + m) / max(min(n, m), 1)
    counts: dict[Outcome, list[int]] = {}
    for side, sample in enumerate((plain, other)):
        for outcome, count in sample.items():
            cut = outcome[:depth] if len(outcome) >= depth else (*outcome, _ENDED)
            for length in range(len(cut) + 1):
                counts.setdefault(cut[:length], [0, 0])[side] += count
    children: dict[Outcome, list[Outcome]] = {}
    for prefix in sorted(counts):
        if prefix:
            children.setdefault(prefix[:-1], []).append(prefix)
    cells: list[tuple[int, int]] = []

    def walk(prefix: Outcome) -> tuple[int, int]:
        """Make the cells beneath a prefix; return what is left for its parent."""
        below = children.get(prefix)
        if not below:
            mine = counts[prefix]
            cells.append((mine[0], mine[1]))
            return 0, 0
        a = b = 0
        for child in below:
            both = counts[child]
            left = walk(child) if sum(both) >= least else (both[0], both[1])
            a, b = a + left[0], b + left[1]
        if a + b >= least:
            cells.append((a, b))
            return 0, 0
        return a, b

    a, b = walk(())
    if a + b:  # too few for a cell of their own: with the smallest
        if cells:
            place = min(range(len(cells)), key=lambda cell: sum(cells[cell]))
            cells[place] = cells[place][0] + a, cells[place][1] + b
        else:
            cells.append((a, b))
    table = np.array(cells, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]
