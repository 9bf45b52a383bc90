"""The rules' output distribution on the toy, through the product's own loop: exact, or wrong by a known bias.

FACTS.md gives the toy's closed-form values. All seeds are fixed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from specview.decoding.loop import Sequence, decode
from specview.decoding.sampling import SamplingParams
from tests.decoding.statistics import chi_square_p, sampled_variation, uniform_ks, variation_bound
from tests.decoding.toy import (
    BOS,
    DRAFT,
    LENGTH,
    OUTCOMES,
    TARGET,
    VOCAB,
    FakeEngine,
    K,
    PointMassDrafter,
    chain_distribution,
    constant,
    draft_model,
    entropy,
    filtered,
    rule_distribution,
    total_variation,
    toy_logits,
)

EXACT = chain_distribution(TARGET)
HONEST = 1e-4  # a correct implementation fails one such check in ten thousand seeds


def ratio(p: np.ndarray, q: np.ndarray):
    return lambda last, x: min(1.0, float(p[last][x] / q[last][x])) if q[last][x] else 0.0


def norm_residual(p: np.ndarray, q: np.ndarray):
    def row(last: int, x: int) -> np.ndarray:
        rest = np.maximum(0.0, p[last] - q[last])
        return rest / rest.sum() if rest.sum() else p[last]

    return row


# -- closed forms ------------------------------------------------------------------------------------


def test_facts_closed_forms():
    overlap = np.minimum(TARGET, DRAFT).sum(axis=1)
    assert overlap == pytest.approx([0.672, 0.692, 0.856, 0.863], abs=5e-4)
    agreement = (TARGET * DRAFT).sum(axis=1)
    assert min(agreement) == pytest.approx(0.245, abs=5e-4)
    assert max(agreement) == pytest.approx(0.321, abs=5e-4)
    assert 1 - np.abs(TARGET - DRAFT).sum(axis=1) / 2 == pytest.approx(overlap)
    assert sum(EXACT.values()) == pytest.approx(1)
    assert len(OUTCOMES) == 256


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("beyond", [False, True])
def test_rejection_is_exact_by_enumeration(k, beyond):
    found = rule_distribution(ratio(TARGET, DRAFT), norm_residual(TARGET, DRAFT), k=k, beyond=beyond)
    assert sum(found.values()) == pytest.approx(1)
    assert total_variation(found, EXACT) < 1e-12


def test_naive_bias_by_enumeration():
    def naive(**how):
        return rule_distribution(ratio(TARGET, DRAFT), lambda last, x: TARGET[last], **how)

    # FACTS: 0.106 where every draft has k tokens; 0.100 where the token limit shortens the last ones.
    assert total_variation(naive(beyond=True), EXACT) == pytest.approx(0.106, abs=5e-4)
    assert total_variation(naive(), EXACT) == pytest.approx(0.100, abs=5e-4)


# -- sampling through decode ---------------------------------------------------------------------------


@dataclass
class Sample:
    outcomes: Counter = field(default_factory=Counter)
    judged: Counter = field(default_factory=Counter)  # by context token
    accepted: Counter = field(default_factory=Counter)
    drafted: dict = field(default_factory=lambda: defaultdict(Counter))  # judged ids by context token
    u: list = field(default_factory=list)

    @property
    def n(self) -> int:
        return sum(self.outcomes.values())


def sample(
    rule: str,
    seeds: range,
    sampling: SamplingParams | None = None,
    *,
    k: int = K,
    beyond: bool = False,
    point_mass: bool = False,
    namespace: str = "numpy",
    draft_width: int | None = None,
    target_width: int | None = None,
) -> Sample:
    """Run the loop once per seed; `beyond` lets it draft past the four tokens that are looked at."""
    sampling = sampling or SamplingParams(temperature=1.0)
    target = FakeEngine(toy_logits(TARGET), VOCAB, namespace=namespace, width=target_width)
    draft = FakeEngine(toy_logits(DRAFT), VOCAB, namespace=namespace, width=draft_width)
    result = Sample()
    for seed in seeds:
        params = replace(sampling, seed=seed)
        session = target.new_session(16)
        drafter = (
            PointMassDrafter(DRAFT, seed)
            if point_mass
            else draft_model(draft, target.vocab_size, max_length=16)
        )
        drafter.start([BOS], params)
        sequence = Sequence([BOS])
        steps = decode(
            session,
            sequence,
            rule=rule,
            sampling=params,
            max_tokens=LENGTH + k if beyond else LENGTH,
            drafter=drafter,
            policy=constant(k),
        )
        for round_ in steps:
            before = sequence.context[len(sequence.context) - len(round_.emitted) - 1]
            for token in round_.drafted:
                if token.verdict == "ignored":
                    continue
                result.judged[before] += 1
                result.drafted[before][token.id] += 1
                result.accepted[before] += token.verdict == "accepted"
                if token.u is not None:
                    result.u.append(token.u)
                before = token.id
            if len(sequence.output) >= LENGTH:
                break
        steps.close()
        assert len(sequence.output) >= LENGTH
        result.outcomes[tuple(sequence.output[:LENGTH])] += 1
        target.sessions.clear()
        draft.sessions.clear()
    return result


def assert_exact(result: Sample, expected: dict) -> None:
    assert chi_square_p(result.outcomes, expected) > HONEST
    assert sampled_variation(result.outcomes, expected) < variation_bound(expected, result.n)
    for place in range(LENGTH):  # margins have more power against a bias that one position has
        seen, hoped = Counter(), Counter()
        for outcome, count in result.outcomes.items():
            seen[outcome[place]] += count
        for outcome, p in expected.items():
            hoped[outcome[place]] += p
        assert chi_square_p(seen, hoped) > HONEST


def assert_rate(result: Sample, expected: np.ndarray) -> None:
    """The acceptance rate after each context token is within 4 standard errors of its closed form."""
    for last in range(VOCAB):
        n, alpha = result.judged[last], float(expected[last])
        assert n > 200
        error = math.sqrt(alpha * (1 - alpha) / n)
        assert abs(result.accepted[last] / n - alpha) <= 4 * error


def assert_drafts_follow_q(result: Sample, rows: np.ndarray) -> None:
    """The ids drafted are distributed as q, the distribution the rule was told."""
    for last in range(VOCAB):
        expected = {token: float(rows[last][token]) for token in range(VOCAB)}
        assert chi_square_p(result.drafted[last], expected) > HONEST


@pytest.fixture(scope="module")
def rejection() -> Sample:
    return sample("rejection", range(3500))


@pytest.fixture(scope="module")
def naive() -> Sample:
    return sample("naive", range(3500), beyond=True)


def test_rejection_converges_to_the_target(rejection):
    assert_exact(rejection, EXACT)


def test_rejection_acceptance_rate_is_the_overlap(rejection):
    assert_rate(rejection, np.minimum(TARGET, DRAFT).sum(axis=1))


def test_drafted_tokens_follow_q_and_u_is_uniform(rejection):
    assert_drafts_follow_q(rejection, DRAFT)
    assert uniform_ks(rejection.u) > HONEST


def test_match_converges_to_the_target_and_its_rate_is_sum_pq():
    """Few samples: that each token is plain decoding's is in test_loop.py."""
    result = sample("match", range(10_000, 11_500))
    assert_exact(result, EXACT)
    assert_rate(result, (TARGET * DRAFT).sum(axis=1))


def test_naive_converges_to_its_own_bias(naive):
    own = rule_distribution(ratio(TARGET, DRAFT), lambda last, x: TARGET[last], beyond=True)
    assert_exact(naive, own)
    bias = sampled_variation(naive.outcomes, EXACT)
    assert abs(bias - 0.106) < variation_bound(own, naive.n)


def test_naive_is_rejected_as_the_target(naive):
    """The same test that `rejection` passes at this sample size refuses a wrong rule."""
    assert chi_square_p(naive.outcomes, EXACT) < 1e-9
    bias = 0.1058  # the sample shows it well clear of what chance explains
    assert sampled_variation(naive.outcomes, EXACT) > bias


def test_naive_accepts_as_often_as_rejection(naive):
    assert_rate(naive, np.minimum(TARGET, DRAFT).sum(axis=1))


def test_typical_is_measurably_not_exact():
    thresholds = [min(0.09, 0.3 * math.exp(-entropy(TARGET[last]))) for last in range(VOCAB)]
    own = rule_distribution(
        lambda last, x: float(TARGET[last][x] > thresholds[last]), lambda last, x: TARGET[last]
    )
    result = sample("typical", range(20_000, 21_500))
    assert total_variation(own, EXACT) > 0.1
    assert_exact(result, own)
    assert chi_square_p(result.outcomes, EXACT) < 1e-9


def test_point_mass_drafts_are_exact():
    """Drafts without probabilities: accepted with p(x), else p with x left out."""
    result = sample("rejection", range(30_000, 32_000), point_mass=True, beyond=True)
    assert_exact(result, EXACT)
    assert_rate(result, (TARGET * DRAFT).sum(axis=1))


FILTERS = [
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.0, top_k=2),
    SamplingParams(temperature=1.3, top_p=0.8),
    SamplingParams(temperature=0.7, top_k=3, top_p=0.9, min_p=0.15),
]


@pytest.mark.parametrize("sampling", FILTERS, ids=["temperature", "top-k", "top-p", "all"])
def test_filters_are_applied_alike_to_target_and_draft(sampling):
    p, q = filtered(TARGET, sampling), filtered(DRAFT, sampling)
    assert total_variation(chain_distribution(p), EXACT) > 0.05  # the filter does change something
    result = sample("rejection", range(40_000, 41_000), sampling)
    assert_exact(result, chain_distribution(p))
    for last in range(VOCAB):
        if result.judged[last] < 200:  # a filter may make a context rare
            continue
        alpha = float(np.minimum(p[last], q[last]).sum())
        error = math.sqrt(max(alpha * (1 - alpha), 1e-9) / result.judged[last])
        assert abs(result.accepted[last] / result.judged[last] - alpha) <= 4 * error + 1e-9
        if np.count_nonzero(q[last]) > 1:
            assert chi_square_p(result.drafted[last], dict(enumerate(q[last].tolist()))) > HONEST


@pytest.mark.parametrize("k", [1, 6])
def test_other_draft_lengths_are_exact(k):
    assert_exact(sample("rejection", range(60_000, 61_000), k=k, beyond=True), EXACT)


@pytest.mark.parametrize(("target_width", "draft_width"), [(7, 4), (6, 9)])
def test_padded_vocabularies_are_exact(target_width, draft_width):
    result = sample("rejection", range(70_000, 71_000), target_width=target_width, draft_width=draft_width)
    assert_exact(result, EXACT)


@pytest.mark.parametrize("rule", ["rejection", "match"])
def test_torch_gives_what_numpy_gives(rule):
    seeds = range(150)
    assert sample(rule, seeds, namespace="torch").outcomes == sample(rule, seeds).outcomes


def test_the_checks_refuse_a_draft_that_lies_about_q():
    """Known fault (transformers 32867): what is called q is not what was sampled from."""
    sharp = DRAFT**2 / (DRAFT**2).sum(axis=1, keepdims=True)
    lied = rule_distribution(ratio(TARGET, DRAFT), norm_residual(TARGET, DRAFT), draft=sharp)
    rng = np.random.default_rng(0)
    picks = rng.choice(
        len(OUTCOMES), size=5000, p=[lied[outcome] / sum(lied.values()) for outcome in OUTCOMES]
    )
    counts = Counter(OUTCOMES[i] for i in picks)
    assert chi_square_p(counts, EXACT) < 1e-9
