"""The lab's toy: its closed forms, and its vectorised samplers against the product's own rule and loop."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.loop import Sequence, decode
from specview.decoding.sampling import SamplingParams, uniform
from specview.errors import UsageError
from specview.lab import toy as toys
from specview.lab.exact_statistics import total_variation
from tests.decoding import toy as reference
from tests.decoding.toy import FakeEngine, constant, draft_model, toy_logits

LITERATURE = toys.make_toy()
RULES = toys.SAMPLERS[1:]


def rows_of(rule: str, toy: toys.Toy = LITERATURE):
    return toys.rule_rows(rule, toy.target, toy.draft)


def test_it_is_the_literatures_toy():
    assert np.array_equal(LITERATURE.target, reference.TARGET)
    assert np.array_equal(LITERATURE.draft, reference.DRAFT)
    assert toys.alpha_per_context(rows_of("rejection")) == pytest.approx([0.672, 0.692, 0.856, 0.863], abs=5e-4)
    agreement = toys.alpha_per_context(rows_of("match"))
    assert (min(agreement), max(agreement)) == pytest.approx((0.245, 0.321), abs=5e-4)
    target = toys.target_distribution(LITERATURE)
    assert target == pytest.approx(list(reference.chain_distribution(reference.TARGET).values()), abs=1e-15)
    assert total_variation(toys.rule_distribution(LITERATURE, rows_of("naive")), target) == pytest.approx(0.106, abs=5e-4)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.integers(1, 3), st.integers(1, 5), st.integers(0, 10_000), st.sampled_from(RULES))
def test_every_rule_on_any_toy(vocab, length, k, seed, rule):
    """Distributions are distributions, exact rules give the target's, and alphas are what the papers say."""
    toy = toys.make_toy(toys.ToySettings(vocab=vocab, length=length, k=k, model_seed=seed))
    rows = rows_of(rule, toy)
    found = toys.rule_distribution(toy, rows)
    assert found.sum() == pytest.approx(1)
    assert rows.correction.sum(axis=2) == pytest.approx(np.ones((vocab, vocab)))
    if rule in ("rejection", "match"):
        assert total_variation(found, toys.target_distribution(toy)) < 1e-13
    paper = {"rejection": np.minimum(toy.target, toy.draft), "match": toy.target * toy.draft}
    paper["naive"] = paper["rejection"]
    if rule in paper:
        assert toys.alpha_per_context(rows) == pytest.approx(paper[rule].sum(axis=1), abs=1e-12)


@pytest.mark.parametrize("k", [1, 3])
def test_naive_distribution_is_the_reference_enumeration(k):
    """Two enumerations, written apart: weights over prefixes here, a recursion over trials there."""
    there = reference.rule_distribution(
        lambda last, x: min(1.0, float(reference.TARGET[last][x] / reference.DRAFT[last][x])),
        lambda last, x: reference.TARGET[last],
        k=k,
        beyond=True,
    )
    found = toys.rule_distribution(toys.make_toy(toys.ToySettings(k=k)), rows_of("naive"))
    assert found == pytest.approx(list(there.values()), abs=1e-14)


@pytest.mark.parametrize(
    ("k", "tokens"), [(1, 1.785), (2, 2.39), (3, 2.88), (4, 3.25), (6, 3.77), (8, 4.06)]
)
def test_tokens_per_pass_are_the_literatures(k, tokens):
    rates = toys.exact_rates(rows_of("rejection"), k)
    assert rates.tokens_per_pass == pytest.approx(tokens, rel=0.006)  # those were measured
    assert rates.alpha == pytest.approx(0.78, abs=0.005)
    assert rates.tokens_per_pass == pytest.approx((1 - rates.alpha ** (k + 1)) / (1 - rates.alpha), rel=0.01)


def test_a_draft_that_is_the_target_is_always_kept():
    toy = toys.Toy(LITERATURE.target, LITERATURE.target, toys.ToySettings(k=3))
    for rule in ("rejection", "naive"):
        rows = rows_of(rule, toy)
        assert rows.accept == pytest.approx(np.ones((4, 4)))
        assert toys.exact_rates(rows, 3).tokens_per_pass == pytest.approx(4)
        assert total_variation(toys.rule_distribution(toy, rows), toys.target_distribution(toy)) < 1e-12


def test_zeros_in_the_tables():
    """Tokens that the target never gives, or the draft never proposes."""
    target = np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0], [0.3, 0.3, 0.4]])
    draft = np.array([[0.0, 0.5, 0.5], [0.2, 0.8, 0.0], [0.3, 0.3, 0.4]])
    toy = toys.Toy(target, draft, toys.ToySettings(vocab=3, length=3, k=2))
    expected = toys.target_distribution(toy)
    for rule in ("rejection", "match"):
        assert total_variation(toys.rule_distribution(toy, rows_of(rule, toy)), expected) < 1e-12
    found = toys.ToySampler(toy, "rejection").outcomes(5000, toys.random_numbers(np.random.default_rng(0)))
    assert expected[found].min() > 0


# -- the vectorised samplers are the product's loop ------------------------------------------------------


def product_numbers(sequences, positions, purpose, index):
    """The product's own numbers: sequence n has seed n."""
    return np.array(
        [uniform(int(seed), int(place), purpose, index) for seed, place in zip(sequences, positions, strict=True)]
    )


def looped(sampler: str, toy: toys.Toy, count: int) -> np.ndarray:
    """The same sequences from the product's loop and its draft-model drafter, one seed each."""
    vocab, length, k = toy.vocab, toy.length, toy.settings.k
    target = FakeEngine(toy_logits(toy.target), vocab)
    draft = FakeEngine(toy_logits(toy.draft), vocab)
    plain = sampler == "plain"
    found = []
    for seed in range(count):
        sampling = SamplingParams(temperature=1.0, seed=seed)
        drafter = None if plain else draft_model(draft, vocab, max_length=64)
        if drafter is not None:
            drafter.start([toys.BOS], sampling)
        sequence = Sequence([toys.BOS])
        steps = decode(
            target.new_session(64),
            sequence,
            rule="rejection" if plain else sampler,
            sampling=sampling,
            max_tokens=length + k,
            drafter=drafter,
            policy=None if plain else constant(k),
        )
        while len(sequence.output) < length:
            next(steps)
        found.append(sequence.output[:length])
        target.sessions.clear()
        draft.sessions.clear()
    return np.array(found)


@pytest.mark.parametrize(
    ("sizes", "count"), [({}, 200), ({"vocab": 7, "length": 5, "k": 2, "model_seed": 5}, 60)], ids=["literature", "another"]
)
@pytest.mark.parametrize("sampler", toys.SAMPLERS)
def test_the_same_numbers_give_the_loops_own_tokens(sampler, sizes, count):
    """The proof that the fast samplers are the product's rule: token for token, on the product's own draws."""
    toy = toys.make_toy(toys.ToySettings(**sizes))
    mine = toys.ToySampler(toy, sampler).sample(count, product_numbers)
    assert np.array_equal(mine, looped(sampler, toy, count))


def test_samplers_differ_where_rules_do():
    """The token-for-token test can fail: on the same numbers another rule gives other tokens."""
    found = {name: toys.ToySampler(LITERATURE, name).sample(60, product_numbers) for name in toys.SAMPLERS}
    for one, other in itertools.combinations(toys.SAMPLERS, 2):
        # match draws the target's own token at every position
        assert np.array_equal(found[one], found[other]) == ({one, other} == {"plain", "match"})


@pytest.mark.parametrize("sampler", RULES)
def test_rates_follow_their_closed_forms(sampler):
    """Acceptance in every context, over sequences; acceptance and tokens per pass, over endless runs."""
    drafted = toys.ToySampler(LITERATURE, sampler)
    tally = toys.Tally.empty(4)
    drafted.outcomes(40_000, toys.random_numbers(np.random.default_rng(4)), tally)
    alpha = toys.alpha_per_context(drafted.rows)
    error = np.sqrt(np.maximum(alpha * (1 - alpha), 1e-12) / tally.judged)
    assert np.all(np.abs(tally.accepted / tally.judged - alpha) <= 4.5 * error + 1e-9)
    rates = toys.exact_rates(drafted.rows, drafted.k)
    tally = drafted.run_rounds(rates.starts, 20_000, 5, np.random.default_rng(8))
    # rounds of one chain hang together, so the error is taken as if each chain gave one round
    assert tally.emitted / tally.rounds == pytest.approx(rates.tokens_per_pass, abs=4.5 * 1.5 / 20_000**0.5)
    assert tally.accepted.sum() / tally.judged.sum() == pytest.approx(rates.alpha, abs=4.5 * 0.5 / 20_000**0.5)
    assert tally.emitted == tally.rounds + tally.accepted.sum()


# -- bounds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes",
    [{"vocab": 1}, {"vocab": 0}, {"vocab": 17, "length": 4}, {"vocab": 2, "length": 17}, {"vocab": 10, "length": 10**9},
     {"vocab": 65, "length": 1}, {"length": 0}, {"k": 0}, {"k": 17}, {"model_seed": -1}],
)  # fmt: skip
def test_sizes_that_cannot_be_are_refused_in_one_line(sizes):
    with pytest.raises(UsageError) as caught:
        toys.ToySettings(**sizes)
    assert "\n" not in str(caught.value)
    assert caught.value.mend


@pytest.mark.parametrize("sizes", [{"vocab": 16, "length": 4}, {"vocab": 2, "length": 16}, {"vocab": 64, "length": 2}])
def test_the_largest_sizes_are_taken(sizes):
    toy = toys.make_toy(toys.ToySettings(k=16, **sizes))
    assert toys.target_distribution(toy).sum() == pytest.approx(1)
