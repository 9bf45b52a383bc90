"""PARD over fake sessions: one pass a draft, mask rows that leave nothing behind, q, and its mask token."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.costs import Costs
from specview.decoding.loop import Sequence as TokenSequence
from specview.decoding.loop import decode
from specview.decoding.sampling import SamplingParams, draw, probabilities, softmax, uniform
from specview.drafting.cascade import Cascade
from specview.drafting.method import DrafterContext
from specview.drafting.pard import Pard
from specview.drafting.policies import POLICIES
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError, UsageError
from specview.settings.options import resolve
from tests.decoding.statistics import chi_square_p, sampled_variation, variation_bound
from tests.decoding.toy import (
    BOS,
    DRAFT,
    LENGTH,
    TARGET,
    VOCAB,
    FakeEngine,
    ScriptDrafter,
    TableModel,
    chain_distribution,
    constant,
    plain_reference,
    run_decode,
    toy_logits,
)

HONEST = 1e-4
WIDE, MASK = 6, 6  # the mask token is the draft's own, beyond the target's
PROMPT = [1, 2, 3, 4]


def drafter_of(engine: FakeEngine, width: int = WIDE, max_length: int = 4096, mask: int = MASK) -> Pard:
    length = min(max_length, engine.context_length)
    return Pard(engine.new_session(length), width, length, mask)


def engine_of(seed: int = 0, **more) -> FakeEngine:
    """A draft whose logits depend on all that was written, and on how many masks stand after it."""
    return FakeEngine(TableModel(WIDE + 1, seed=seed, scale=3.0), WIDE + 1, **more)


def rows_of(engine: FakeEngine, context: Sequence[int], count: int, width: int = WIDE) -> list[np.ndarray]:
    """Row j: what the draft says after the context and j mask tokens."""
    return [engine.model([*context, *[MASK] * place])[:width] for place in range(count)]


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_a_draft_is_one_pass_over_mask_tokens(namespace):
    engine = engine_of(namespace=namespace)
    drafter = drafter_of(engine)
    drafter.start(PROMPT, SamplingParams())
    session = drafter._session
    session.log.clear()
    draft = drafter.propose(PROMPT, 4)
    assert session.log == [("forward", 4), ("truncate", 4)]  # the last token and three masks; the masks go
    assert session.tokens == PROMPT
    assert draft.tokens == tuple(int(row.argmax()) for row in rows_of(engine, PROMPT, 4))
    assert draft.q is None
    assert draft.drafter == "pard"


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_each_token_has_the_q_of_its_own_row(namespace):
    engine = engine_of(namespace=namespace)
    drafter = drafter_of(engine)
    sampling = SamplingParams(0.7, top_k=4, seed=9)
    drafter.start(PROMPT, sampling)
    context = [*PROMPT, 5, 0]
    draft = drafter.propose(context, 5)
    for place, row in enumerate(rows_of(engine, context, 5)):
        assert np.asarray(draft.q[place]) == pytest.approx(probabilities(row, sampling), abs=1e-6)
        assert np.asarray(draft.raw_logits[place]) == pytest.approx(row)
        assert draft.tokens[place] == draw(draft.q[place], uniform(9, 2, "draft", place))


@given(seed=st.integers(0, 10**6), rounds=st.integers(1, 10))
@settings(deadline=None, derandomize=True, max_examples=50)
def test_the_cache_is_always_the_context(seed, rounds):
    """Whatever was accepted, the masks never stay, and each draft is that of a fresh session."""
    rng = random.Random(seed)
    engine = engine_of(seed)
    drafter = drafter_of(engine)
    context = [rng.randrange(WIDE) for _ in range(rng.randint(1, 10))]
    drafter.start(context, SamplingParams())
    for _ in range(rounds):
        budget = rng.randint(0, 5)
        draft = drafter.propose(context, budget)
        assert draft.tokens == tuple(int(row.argmax()) for row in rows_of(engine, context, budget))
        if budget:
            assert drafter._session.tokens == context
        context += draft.tokens[: rng.randint(0, len(draft))]
        context.append(rng.randrange(WIDE))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_greedy_equals_plain_and_match_equals_sampled_plain(temperature, namespace):
    verdicts = Counter()
    for seed in range(8):
        model = TableModel(vocab=5, order=1, seed=seed, scale=3.0)
        eos = [4] if seed % 4 == 1 else []
        target = FakeEngine(model, 5, namespace=namespace, eos_ids=eos)
        draft = FakeEngine(TableModel(7, order=1, seed=seed, scale=3.0), 7, namespace=namespace)
        sampling = SamplingParams(temperature, seed=seed)
        limit = 1 + 4 * seed
        output, rounds, end, _ = run_decode(
            target, [1, 2, 3], rule="match" if temperature else "greedy", sampling=sampling, max_tokens=limit,
            drafter=drafter_of(draft, 5), k=1 + seed % 4,
        )  # fmt: skip
        plain = plain_reference(model, [1, 2, 3], sampling, limit)
        ends = bool(eos) and 4 in plain
        assert output == (plain[: plain.index(4) + 1] if ends else plain)
        assert end == ("eos" if ends else "limit")
        verdicts.update(token.verdict for round_ in rounds for token in round_.drafted)
    assert verdicts["accepted"] > 2
    assert verdicts["rejected"] > 10


def test_rejection_converges_to_the_target():
    rows = np.concatenate([DRAFT, DRAFT.mean(0, keepdims=True)])  # after a mask: of no token in particular
    draft = FakeEngine(toy_logits(rows), VOCAB)
    target = FakeEngine(toy_logits(TARGET), VOCAB)
    outcomes, verdicts = Counter(), Counter()
    for seed in range(800):
        sampling = SamplingParams(1.0, seed=seed)
        drafter = drafter_of(draft, VOCAB, 64, mask=VOCAB)
        session = target.new_session(64)
        drafter.start([BOS], sampling)
        sequence = TokenSequence([BOS])
        steps = decode(
            session, sequence, rule="rejection", sampling=sampling, max_tokens=LENGTH + 3, drafter=drafter,
            policy=constant(3),
        )  # fmt: skip
        for round_ in steps:
            verdicts.update(token.verdict for token in round_.drafted)
            if len(sequence.output) >= LENGTH:
                break
        outcomes[tuple(sequence.output[:LENGTH])] += 1
        target.sessions.clear()
        draft.sessions.clear()
    exact = chain_distribution(TARGET)
    assert verdicts["accepted"] > 100
    assert verdicts["rejected"] > 100
    assert chi_square_p(outcomes, exact) > HONEST
    assert sampled_variation(outcomes, exact) < variation_bound(exact, sum(outcomes.values()))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_length_policy(policy):
    model = TableModel(vocab=5, order=1, seed=2, scale=3.0)
    info = POLICIES[policy]
    made = info.make(resolve(info.options, {}, policy), Costs())
    made.start(3)
    draft = FakeEngine(TableModel(7, order=1, seed=2, scale=3.0), 7)
    output, rounds, _, _ = run_decode(
        FakeEngine(model, 5), [1, 2, 3], rule="greedy", sampling=SamplingParams(), max_tokens=40,
        drafter=drafter_of(draft, 5), policy=made,
    )  # fmt: skip
    assert output == plain_reference(model, [1, 2, 3], SamplingParams(), 40)
    assert any(round_.k for round_ in rounds)


def test_confidence_is_its_own_probability_and_ends_the_draft():
    engine = engine_of()
    drafter = drafter_of(engine)
    drafter.start(PROMPT, SamplingParams())
    asked: list[float] = []

    def once(confidence: float) -> bool:
        asked.append(confidence)
        return len(asked) < 2

    draft = drafter.propose(PROMPT, 5, once)
    assert len(draft) == 2
    assert asked == pytest.approx([float(softmax(row).max()) for row in rows_of(engine, PROMPT, 2)], abs=1e-6)


def test_a_member_of_a_cascade():
    model = TableModel(vocab=6, order=1, seed=2, scale=3.0)
    script = ScriptDrafter(lambda context, budget: [3, 4, 5] if len(context) % 3 == 0 else [])
    script.prompt_layers = ()
    both = Cascade([script, drafter_of(engine_of(2))])
    output, rounds, _, _ = run_decode(
        FakeEngine(model, 6), PROMPT, rule="greedy", sampling=SamplingParams(), max_tokens=40, drafter=both
    )
    assert output == plain_reference(model, PROMPT, SamplingParams(), 40)
    assert {"script", "pard"} <= {round_.drafter for round_ in rounds}


# -- bounds and trouble ----------------------------------------------------------------------------------------


def test_it_keeps_within_the_drafts_context():
    engine = engine_of(context_length=8)
    drafter = drafter_of(engine)
    drafter.start(PROMPT, SamplingParams())
    assert len(drafter.propose(PROMPT, 9)) == 4
    assert not drafter.propose([*PROMPT, 0, 1, 2, 3], 3)
    assert len(drafter.propose([*PROMPT, 0, 1, 2], 3)) == 1


def make(options: dict, engine: FakeEngine | None, target: FakeEngine | None = None) -> Pard:
    info = METHODS["pard"]
    context = DrafterContext(info.resolve(options), 64, WIDE, draft_engine=engine, target=target)
    return info.make(context)


@pytest.mark.parametrize("key", ["pard_token", "ptd_token_id"])
def test_the_mask_token_is_the_configs_unless_given(key):
    engine = engine_of()
    engine.config = {key: 6}
    assert make({}, engine)._mask_token == 6
    assert make({"pard_token": 2}, engine)._mask_token == 2
    del engine.config
    assert make({"pard_token": 0}, engine)._mask_token == 0


@pytest.mark.parametrize(
    ("options", "config", "words"),
    [({}, {}, "names no mask token"), ({}, {"pard_token": 99}, "has 7 tokens"), ({"pard_token": 7}, {}, "has 7 tokens")],
)  # fmt: skip
def test_no_mask_token_is_one_clear_line(options, config, words):
    engine = engine_of()
    engine.config = config
    with pytest.raises(UsageError, match=words) as caught:
        make(options, engine)
    assert "\n" not in str(caught.value)
    assert not engine.sessions


def test_it_needs_a_draft_of_the_targets_tokenizer():
    with pytest.raises(SpecviewError, match="needs a draft model"):
        make({}, None)
    draft, target = engine_of(), FakeEngine(TableModel(9), 9)
    with pytest.raises(SpecviewError, match="another tokenizer"):
        make({"pard_token": 6}, draft, target)
    target.tokenizer = draft.tokenizer
    assert make({"pard_token": 6}, draft, target).name == "pard"
