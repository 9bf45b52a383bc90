"""Every n-gram method and suffix through the product's loop: exact at temperature 0 and above."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pytest

from specview.decoding.loop import Sequence, decode
from specview.decoding.sampling import SamplingParams
from specview.drafting import ngram_map, ngram_mod, ngram_simple, suffix
from specview.drafting.method import DrafterContext
from tests.decoding.statistics import chi_square_p, sampled_variation, variation_bound
from tests.decoding.toy import (
    BOS,
    LENGTH,
    TARGET,
    VOCAB,
    FakeEngine,
    TableModel,
    chain_distribution,
    constant,
    plain_reference,
    run_decode,
    toy_logits,
)

HONEST = 1e-4
SIZES = {"preset": "code", "size_n": 1, "size_m": 3, "min_hits": 1, "tie": False}
TIED = {**SIZES, "tie": True}
METHODS = {
    "ngram-simple": (ngram_simple.make, SIZES),
    "ngram-map-k": (partial(ngram_map.make, ngram_map.NgramMapK), SIZES),
    "ngram-map-k4v": (partial(ngram_map.make, ngram_map.NgramMapK4V), SIZES),
    "ngram-mod": (ngram_mod.make, {"n_match": 1, "n_min": 1, "n_max": 3, "tie": False}),
    "suffix": (suffix.make, {option.name: option.default for option in suffix.OPTIONS}),
    "ngram-map-k tied": (partial(ngram_map.make, ngram_map.NgramMapK), TIED),
    "ngram-mod tied": (ngram_mod.make, {"n_match": 1, "n_min": 1, "n_max": 3, "tie": True}),
    "suffix tied": (suffix.make, {option.name: option.default for option in suffix.OPTIONS} | {"tie": True}),
}
EVERY = pytest.mark.parametrize("method", METHODS)


@pytest.fixture(autouse=True)
def _small_table(monkeypatch):
    monkeypatch.setattr(ngram_mod, "ENTRIES", 4096)


def made(method, memory, vocab=VOCAB):
    make, options = METHODS[method]
    return make(DrafterContext(options, 4096, vocab, memory=memory))


@EVERY
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_greedy_equals_plain_and_match_equals_sampled_plain(method, temperature):
    rounds, memory = [], {}
    for seed in range(12):
        if seed % 3 == 0:
            memory = {}  # tied: three runs each, as keys whose drafts failed never draft again
        model = TableModel(vocab=5, order=1 + seed % 2, seed=seed, scale=3.0)
        sampling = SamplingParams(temperature=temperature, seed=seed)
        prompt = np.random.default_rng(seed).integers(0, 5, size=30).tolist()
        eos = [4] if seed % 4 == 1 else []
        drafter = made(method, memory, 5)
        output, done, _, _ = run_decode(
            FakeEngine(model, 5, eos_ids=eos),
            prompt,
            rule="match" if temperature else "greedy",
            sampling=sampling,
            max_tokens=40,
            drafter=drafter,
            k=1 + 2 * (seed % 3),
        )
        drafter.close()
        plain = plain_reference(model, prompt, sampling, 40)
        assert output == (plain[: plain.index(4) + 1] if eos and 4 in plain else plain)
        rounds += done
    verdicts = Counter(token.verdict for round_ in rounds for token in round_.drafted)
    assert verdicts["accepted"] > 2
    assert verdicts["rejected"] > 2


@EVERY
def test_rejection_converges_to_the_target(method):
    """Four tokens of the toy after a prompt that gives the drafter something to copy."""
    engine = FakeEngine(toy_logits(TARGET), VOCAB)
    exact = chain_distribution(TARGET)
    outcomes, verdicts, memory = Counter(), Counter(), {}
    rng = np.random.default_rng(4)
    prompt = [int(token) for token in rng.integers(0, VOCAB, size=20)] + [BOS]
    for seed in range(700):
        sampling = SamplingParams(temperature=1.0, seed=seed)
        if seed % 3 == 0:
            memory = {}
        session = engine.new_session(64)
        session.prefill(prompt[:-1])
        drafter = made(method, memory)
        drafter.start(prompt, sampling)
        sequence = Sequence(list(prompt))
        steps = decode(
            session,
            sequence,
            rule="rejection",
            sampling=sampling,
            max_tokens=LENGTH + 3,  # past the four looked at, so that drafts are not cut
            drafter=drafter,
            policy=constant(3),
        )
        for round_ in steps:
            verdicts.update(token.verdict for token in round_.drafted)
            if len(sequence.output) >= LENGTH:
                break
        steps.close()
        drafter.close()
        outcomes[tuple(sequence.output[:LENGTH])] += 1
        engine.sessions.clear()
    assert verdicts["accepted"] > 50
    assert verdicts["rejected"] > 50
    assert chi_square_p(outcomes, exact) > HONEST
    assert sampled_variation(outcomes, exact) < variation_bound(exact, sum(outcomes.values()))
    for place in range(LENGTH):
        seen, hoped = Counter(), Counter()
        for outcome, count in outcomes.items():
            seen[outcome[place]] += count
        for outcome, p in exact.items():
            hoped[outcome[place]] += p
        assert chi_square_p(seen, hoped) > HONEST
