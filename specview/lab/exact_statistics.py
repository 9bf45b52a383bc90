"""The statistics of the exactness lab: goodness of fit, two samples, and the smallest bias that a test catches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

SIGNIFICANCE = 1e-4
"""A correct sampler is refused once in so many tests (1 in 10,000)."""

POWER = 0.9
"""A bias counts as caught where the test refuses it so often."""

LEAST_EXPECTED = 5.0
"""Cells with fewer expected counts are pooled: below it Pearson's statistic is not chi-square distributed."""


def chi_square_tail(statistic: float, freedom: int) -> float:
    """P(chi-square with `freedom` degrees of freedom >= statistic)."""
    from scipy.special import chdtrc

    return float(chdtrc(freedom, statistic))


def chance_of_refusal(freedom: int, shift: float, significance: float = SIGNIFICANCE) -> float:
    """How often a chi-square test at `significance` refuses where its statistic has the non-centrality `shift`."""
    from scipy.special import chdtri, chndtr

    return 1.0 - float(chndtr(chdtri(freedom, significance), freedom, shift))


def least_caught(
    freedom: int, size: float, significance: float = SIGNIFICANCE, power: float = POWER
) -> float | None:
    """The smallest total variation, over the cells tested, that is caught whatever its shape; None where none is.

    size is the number of samples; of two samples n m / (n + m). By Cauchy and Schwarz the non-centrality
    size * sum (r - p)^2 / p of a bias is at least 4 size TV^2, so one of this total variation or more is refused with
    at least this power. (Of two samples p is the mixture of both, and the same holds.)
    """
    from scipy.special import chdtri, chndtrinc

    if freedom < 1 or size <= 0:
        return None
    shift = float(chndtrinc(chdtri(freedom, significance), freedom, 1 - power))
    found = math.sqrt(shift / (4 * size))
    return found if found < 1 else None


def pool(expected: Floats) -> tuple[NDArray[np.intp], int]:
    """Cells for Pearson's test: per outcome the cell it counts in, and how many cells there are.

    expected: counts [outcomes] that are expected. Outcomes with LEAST_EXPECTED or more are cells of their own; the
    rarer ones are put together, rarest first, into cells that reach it. What is not expected at all gets cell -1.
    There may be one cell that does not reach it where all outcomes together do not.
    """
    cell = np.full(len(expected), -1, dtype=np.intp)
    own = np.flatnonzero(expected >= LEAST_EXPECTED)
    cell[own] = np.arange(len(own))
    cells = len(own)
    rare = np.flatnonzero((expected > 0) & (expected < LEAST_EXPECTED))
    if len(rare):
        rare = rare[np.argsort(expected[rare], kind="stable")]
        before = np.cumsum(expected[rare]) - expected[rare]
        # Each is under LEAST_EXPECTED, so what falls into a stretch of twice that holds at least that, but for the last.
        stretch = (before / (2 * LEAST_EXPECTED)).astype(np.intp)
        last = int(stretch[-1])
        left = float(expected[rare[stretch == last]].sum()) < LEAST_EXPECTED
        if left and (last or cells):  # too few for a cell: they join the one before
            stretch[stretch == last] = last - 1
        cell[rare] = cells + stretch
        cells += int(stretch[-1]) + 1
    return cell, cells


def goodness_of_fit(counts: Counts, p: Floats) -> tuple[float | None, int]:
    """Pearson's chi-square p of counts [outcomes] against a distribution p, and its degrees of freedom.

    Rare outcomes are pooled (`pool`). An outcome that p cannot give makes p 0; None where there is nothing to test.
    """
    total = int(counts.sum())
    if total == 0:
        return None, 0
    if bool(np.any(counts[p <= 0] > 0)):
        return 0.0, max(int(np.count_nonzero(p)) - 1, 1)
    cell, cells = pool(p * total)
    if cells < 2:
        return None, 0
    known = cell >= 0
    seen = np.bincount(cell[known], weights=counts[known], minlength=cells)
    hoped = np.bincount(cell[known], weights=(p * total)[known], minlength=cells)
    statistic = float(np.sum((seen - hoped) ** 2 / hoped))
    return chi_square_tail(statistic, cells - 1), cells - 1


def sampled_variation(counts: Counts, p: Floats) -> float:
    """Total variation between a sample's frequencies and a distribution."""
    return float(np.abs(counts / counts.sum() - p).sum()) / 2


def expected_variation(p: Floats, samples: float) -> float:
    """Total variation that `samples` true samples of p show on average: the 1/sqrt(N) line.

    sqrt(2 / (pi N)) * sum sqrt(p (1 - p)) / 2, by the normal approximation of each count.
    """
    return math.sqrt(2 / (math.pi * samples)) * float(np.sqrt(p * (1 - p)).sum()) / 2


def variation_bound(p: Floats, samples: float, significance: float = SIGNIFICANCE) -> float:
    """What the total variation of true samples exceeds with at most this probability (McDiarmid's inequality).

    The mean in it is bounded by sum sqrt(p (1 - p) / N) / 2 (Jensen), so it holds for rare outcomes too.
    """
    mean = float(np.sqrt(p * (1 - p) / samples).sum()) / 2
    return min(1.0, mean + math.sqrt(math.log(1 / significance) / (2 * samples)))


def two_sample_chi_square(a: Counts, b: Counts) -> tuple[float | None, int]:
    """Chi-square p of two samples' counts [cells] having one distribution, and its degrees of freedom.

    Every cell should expect LEAST_EXPECTED of each; empty ones are left out. None where one cell is left.
    """
    both = a + b
    known = both > 0
    if int(np.count_nonzero(known)) < 2 or not a.sum() or not b.sum():
        return None, 0
    share = float(a.sum() / both.sum())
    hoped_a, hoped_b = both[known] * share, both[known] * (1 - share)
    statistic = float(np.sum((a[known] - hoped_a) ** 2 / hoped_a) + np.sum((b[known] - hoped_b) ** 2 / hoped_b))
    freedom = int(np.count_nonzero(known)) - 1
    return chi_square_tail(statistic, freedom), freedom


def variation_between(a: Counts, b: Counts) -> float:
    """Total variation between two samples' frequencies [cells]."""
    return float(np.abs(a / a.sum() - b / b.sum()).sum()) / 2


def permuted_variation(a: Counts, b: Counts, rng: np.random.Generator, times: int) -> Floats:
    """Total variations [times] of two samples made by dealing the two given ones anew at random.

    Dealing them is a multivariate hypergeometric draw of the counts together.
    """
    found = []
    step = max(1, 1_000_000 // len(a))
    for start in range(0, times, step):  # in parts, which fit the memory whatever the cells
        size = min(step, times - start)
        dealt = rng.multivariate_hypergeometric(a + b, int(a.sum()), size=size, method="marginals")
        found.append(np.abs(dealt / a.sum() - ((a + b) - dealt) / b.sum()).sum(axis=1) / 2)
    return np.concatenate(found)


def permutation_p(observed: float, permuted: Floats) -> float:
    """The share of permutations (the observed one among them) that are at least as far apart."""
    return float((1 + np.count_nonzero(permuted >= observed - 1e-12)) / (1 + len(permuted)))


def uniform_p(values: Sequence[float]) -> float | None:
    """Kolmogorov and Smirnov's p of values being uniform on 0..1 (asymptotic series); None of fewer than 5."""
    from scipy.special import kolmogorov

    n = len(values)
    if n < 5:
        return None
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    steps = np.arange(n + 1) / n
    distance = float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))
    x = distance * (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n))
    return float(kolmogorov(x))


def normal_tails(z: float) -> float:
    """Two-sided p of a standard normal value."""
    return math.erfc(abs(z) / math.sqrt(2))


def p_text(p: float | None) -> str:
    """A p value for people."""
    if p is None:
        return "-"
    return "< 1e-12" if p < 1e-12 else f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"
