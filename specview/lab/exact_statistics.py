"""The statistics of the exactness lab: a sample against a distribution, two samples, and the least bias that is caught."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from specview.decoding.verification import is_lossy
from specview.files.report import Text, Tone

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Continuation = tuple[int, ...]
Sample = Mapping[Continuation, int]
"""How often each continuation came."""

Outcome = Literal["no difference", "differs", "caught", "not caught", "untested"]
"""What a test says: of rules that should be exact the first two, of lossy ones the next two."""

SIGNIFICANCE = 1e-4
"""A correct sampler is refused once in so many tests (1 in 10,000)."""

POWER = 0.9
"""A bias counts as caught where the test refuses it so often."""

LEAST_EXPECTED = 5.0
"""Cells with fewer expected counts are pooled: below it Pearson's statistic is not chi-square distributed."""

FIRST_PERMUTATIONS, PERMUTATIONS = 999, 9_999
"""Dealings of two samples at random; all of them where the first ones look suspicious."""
BOUND_SHARE = 0.99
_ENDED = -1
"""Stands after a continuation that ended early, so that it is no beginning of another."""

TV_TIP = "Total variation: half the summed difference of the sampled frequencies from the target's exact probabilities"
CHI2_TIP = "Of the samples being the target's; a correct sampler is refused once in 10,000 tests"

_WORDS: dict[Outcome, str] = {
    "no difference": "no difference from the target found",
    "differs": "DIFFERS from the target",
    "caught": "lossy, and caught",
    "not caught": "lossy, not caught",
    "untested": "too few samples to test",
}


def labelled(rule: str) -> str:
    """A rule's name, and that it is lossy."""
    return f"{rule} (lossy)" if is_lossy(rule) else rule


def refused(p: float | None) -> bool:
    """Whether a test's p speaks against what was tested."""
    return p is not None and p <= SIGNIFICANCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Samples by a rule, against the distribution that they should have.

    expected_tv is the total variation that as many true samples show on average, tv_bound what theirs exceeds once in
    10,000 tests; freedom is the degrees of freedom of the chi-square test.
    """

    rule: str
    samples: int
    tv: float
    expected_tv: float
    tv_bound: float
    chi2_p: float | None
    freedom: int

    @classmethod
    def of(cls, rule: str, counts: Counts, p: Floats, **more: Any) -> Self:
        """Test counts [outcomes] against p [outcomes]; more is what a subclass adds."""
        samples = int(counts.sum())
        chi2_p, freedom = goodness_of_fit(counts, p)
        return cls(rule=rule, samples=samples, tv=total_variation(counts, p), expected_tv=expected_variation(p, samples),
                   tv_bound=variation_bound(p, samples), chi2_p=chi2_p, freedom=freedom, **more)  # fmt: skip

    @property
    def lossy(self) -> bool:
        """Whether the rule does not claim to be exact."""
        return is_lossy(self.rule)

    @property
    def differs(self) -> bool:
        """Whether the samples are not the target's."""
        return self.chi2_p is not None and (refused(self.chi2_p) or self.tv > self.tv_bound)

    @property
    def outcome(self) -> Outcome:
        """What the test says, given what the rule claims."""
        if self.chi2_p is None:
            return "untested"
        if self.lossy:
            return "caught" if self.differs else "not caught"
        return "differs" if self.differs else "no difference"

    @property
    def words(self) -> str:
        """The verdict in words."""
        return _WORDS[self.outcome] + self.detail

    @property
    def detail(self) -> str:
        """What more there is to say of it."""
        return ""


def verdict(sentence: str, holds: bool, conclusive: bool, stopped: bool) -> Text:
    """A sentence with its mark: a proof, a proof that failed, or one that shows nothing either way."""
    tone: Tone = "bad" if not holds else "good" if conclusive else "warning"
    return Text(f"{'Stopped early. ' if stopped else ''}{sentence}", tone)


# -- one sample --------------------------------------------------------------------------------------------


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


def total_variation(a: Floats | Counts, b: Floats | Counts) -> float:
    """Half the summed absolute difference of two distributions, or of the frequencies of counts."""
    return float(np.abs(a / a.sum() - b / b.sum()).sum()) / 2


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


def uniform_p(values: Sequence[float]) -> float | None:
    """Kolmogorov and Smirnov's p of values being uniform on 0..1 (asymptotic series); None of fewer than 5."""
    from scipy.special import kolmogorov

    n = len(values)
    if n < 5:
        return None
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    steps = np.arange(n + 1) / n
    distance = float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))
    return float(kolmogorov(distance * (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n))))


def p_text(p: float | None) -> str:
    """A p value for people."""
    if p is None:
        return "-"
    return "< 1e-12" if p < 1e-12 else f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"


# -- two samples -------------------------------------------------------------------------------------------


def two_sample_chi_square(a: Counts, b: Counts) -> tuple[float | None, int]:
    """Chi-square p of two samples' counts [cells] having one distribution, and its degrees of freedom.

    Every cell should expect LEAST_EXPECTED of each; empty ones are left out. None where one cell is left.
    """
    known = a + b > 0
    cells = int(np.count_nonzero(known))
    if cells < 2 or not a.sum() or not b.sum():
        return None, 0
    seen = np.stack([a[known], b[known]])
    hoped = np.outer(seen.sum(axis=1), seen.sum(axis=0)) / seen.sum()
    return chi_square_tail(float(np.sum((seen - hoped) ** 2 / hoped)), cells - 1), cells - 1


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


@dataclass(frozen=True, slots=True)
class DepthTest:
    """Two samples of continuations compared over their first `depth` tokens.

    cells are outcomes (rare ones pooled with their siblings); permutation_p and bound are of the total variation: the
    share of random dealings as far apart, and what 99 in 100 of them stay under. least_caught is the smallest total
    variation over the cells that the chi-square test would have caught.
    """

    depth: int
    cells: int
    tv: float
    chi2_p: float | None
    permutation_p: float | None
    bound: float | None
    least_caught: float | None


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
    n, m = int(a.sum()), int(b.sum())
    tv = total_variation(a, b)
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
    nothing = np.zeros(2, dtype=np.int64)
    counts: dict[Continuation, Counts] = defaultdict(nothing.copy)
    for side, sample in enumerate((plain, other)):
        for outcome, count in sample.items():
            cut = outcome[:depth] if len(outcome) >= depth else (*outcome, _ENDED)
            for length in range(len(cut) + 1):
                counts[cut[:length]][side] += count
    children: dict[Continuation, list[Continuation]] = defaultdict(list)
    for prefix in sorted(counts):
        if prefix:
            children[prefix[:-1]].append(prefix)
    cells: list[Counts] = []

    def walk(prefix: Continuation) -> Counts:
        """Make the cells beneath a prefix; return what is left for its parent."""
        left = counts[prefix]
        if prefix in children:
            left = sum((walk(one) if counts[one].sum() >= least else counts[one] for one in children[prefix]), nothing)
            if left.sum() < least:
                return left
        cells.append(left)
        return nothing

    left = walk(())
    if left.any():  # too few for a cell of their own: with the smallest
        smallest = min(range(len(cells)), key=lambda cell: int(cells[cell].sum()), default=None)
        if smallest is None:
            cells.append(left)
        else:
            cells[smallest] = cells[smallest] + left
    table = np.array(cells, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]
