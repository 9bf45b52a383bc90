"""Test helpers: the two goodness-of-fit tests used here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


def chi_square_p(counts: Mapping[Any, int], expected: Mapping[Any, float]) -> float:
    """p value of Pearson's chi-square; cells with fewer than 5 expected are pooled.

    A count where the expected probability is 0 gives 0. expected holds probabilities that sum to 1.
    """
    from scipy.special import chdtrc

    assert abs(sum(expected.values()) - 1) < 1e-6
    total = sum(counts.values())
    if any(count and not expected.get(cell) for cell, count in counts.items()):
        return 0.0
    statistic, cells = 0.0, 0
    pool_seen, pool_expected = 0, 0.0
    for cell, probability in sorted(expected.items(), key=lambda item: item[1]):
        seen, hoped = counts.get(cell, 0), probability * total
        if hoped == 0:
            continue
        pool_seen, pool_expected = pool_seen + seen, pool_expected + hoped
        if pool_expected >= 5:
            statistic += (pool_seen - pool_expected) ** 2 / pool_expected
            cells += 1
            pool_seen, pool_expected = 0, 0.0
    if pool_expected > 0:
        statistic += (pool_seen - pool_expected) ** 2 / pool_expected
        cells += 1
    assert cells > 1, "nothing to test"
    return float(chdtrc(cells - 1, statistic))


def uniform_ks(values: Sequence[float]) -> float:
    """Kolmogorov-Smirnov p value against the uniform distribution on [0, 1)."""
    from scipy.stats import kstest

    return float(kstest(values, "uniform").pvalue)


def sampled_variation(counts: Counter, expected: Mapping[Any, float]) -> float:
    """Total variation between a sample and a distribution."""
    total = sum(counts.values())
    cells = counts.keys() | expected.keys()
    return sum(abs(counts.get(cell, 0) / total - expected.get(cell, 0.0)) for cell in cells) / 2


def variation_bound(expected: Mapping[Any, float], n: int) -> float:
    """What the total variation of n true samples stays under but for 1 case in 10,000 (McDiarmid)."""
    mean = sum(math.sqrt(p * (1 - p) / n) for p in expected.values()) / 2
    return mean + math.sqrt(math.log(1e4) / (2 * n))
