"""The MLP speculator over a toy target with features: its chain against a numpy forward, and exactness."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from specview.decoding.costs import Costs
from specview.decoding.loop import Sequence as TokenSequence
from specview.decoding.loop import decode
from specview.decoding.sampling import SamplingParams, draw, probabilities, uniform
from specview.drafting.cascade import Cascade
from specview.drafting.method import DrafterContext
from specview.drafting.policies import POLICIES
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError
from specview.heads.layouts import HeadFacts
from specview.heads.loaded import LoadedHead
from specview.heads.mlp_speculator import MlpSpeculator, MlpSpeculatorShape
from specview.settings.options import resolve
from tests.decoding.statistics import chi_square_p, sampled_variation, variation_bound
from tests.decoding.toy import (
    BOS,
    LENGTH,
    TARGET,
    VOCAB,
    ScriptDrafter,
    TableModel,
    chain_distribution,
    constant,
    plain_reference,
    toy_logits,
)
from tests.drafting.eagle_toy import HIDDEN, FeatureEngine, Watched, feature, make, randomised, run

HONEST = 1e-4
WIDE, INNER, PREDICTS = 12, 8, 4
METHOD = "mlp-speculator"
KINDS = pytest.mark.parametrize(
    "more", [{}, {"tie_weights": True}, {"scale_input": True}, {"lstm": True}, {"vocab": WIDE + 3}], ids=str
)


def speculator_for(target: FeatureEngine, *, seed: int = 1, **more) -> LoadedHead:
    """A random float64 speculator."""
    sizes = {"hidden": HIDDEN, "inner": INNER, "predicts": PREDICTS, "vocab": target.vocab_size, **more}
    module = MlpSpeculator(MlpSpeculatorShape(**sizes)).double()
    facts = HeadFacts(
        METHOD, "toy", Path("toy"), HIDDEN, sizes["vocab"], sizes["vocab"], own_embedding=True, own_output=True
    )
    return LoadedHead(facts, randomised(module, seed), target)


def gelu(x: np.ndarray) -> np.ndarray:
    return np.array([value * (1 + math.erf(value / math.sqrt(2))) / 2 for value in x])


def naive(head: LoadedHead, context: Sequence[int], drafted: Sequence[int]) -> np.ndarray:
    """Logits of what follows a context and drafted tokens, by LAYOUTS.md (IBM's formulas)."""
    w = {name: tensor.numpy() for name, tensor in head.module.state_dict().items()}
    shape = head.module.shape
    sw = 0.5 ** (0.5 / shape.predicts)
    ew = math.sqrt((1 - sw * sw) * INNER / 2)
    s = feature("last", context[:-1])
    if shape.scale_input:
        s = s / np.sqrt((s * s).mean() + 1e-6) / math.sqrt(2)
    for i, token in enumerate([context[-1], *drafted]):
        x = w[f"proj.{i}.weight"] @ s + ew / sw * w[f"emb.{i}.weight"][token]
        x = x / np.sqrt((x * x).mean() + 1e-6) * w[f"ln.{i}.weight"] + w[f"ln.{i}.bias"]
        s = gelu(x)
    return w[f"head.{i}.weight"] @ s


def wide(namespace: str = "numpy", seed: int = 0, **more) -> FeatureEngine:
    return FeatureEngine(TableModel(WIDE, order=2, seed=seed, scale=3.0), WIDE, namespace=namespace, **more)


@pytest.mark.parametrize("more", [{}, {"tie_weights": True}, {"scale_input": True}, {"vocab": WIDE + 3}], ids=str)
@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_a_greedy_chain_feeds_back_what_it_drafted(more, namespace):
    target = wide(namespace)
    head = speculator_for(target, **more)
    drafter = Watched(make(METHOD, head, target))
    _, rounds, _, _ = run(target, [1, 2, 3], drafter, max_tokens=30, k=6)
    assert rounds[0].k == 0  # nothing is known of the target's state yet
    longest = 0
    for context, budget, draft in drafter.drafts[1:]:
        assert len(draft) == min(budget, PREDICTS)
        for place, token in enumerate(draft.tokens):
            row = naive(head, context, draft.tokens[:place])[:WIDE]
            assert token == int(row.argmax())
            assert np.asarray(draft.raw_logits[place]) == pytest.approx(row, abs=1e-9)
        assert draft.q is None
        longest = max(longest, len(draft))
    assert longest == PREDICTS


@pytest.mark.parametrize("lstm", [False, True])
def test_a_token_that_the_speculator_lacks_is_read_as_another(lstm):
    """The target got two tokens later; they are in the prompt and are written."""
    target, rows = wide(), WIDE - 2
    head = speculator_for(target, vocab=rows, lstm=lstm)
    drafter = Watched(make(METHOD, head, target))
    output, *_ = run(target, [1, 2, WIDE - 1], drafter, max_tokens=60)
    assert output == plain_reference(target.model, [1, 2, WIDE - 1], SamplingParams(), 60)
    after = [context[-1] for context, _, draft in drafter.drafts if draft]
    assert max(after) >= rows, "it drafts after one of them"
    if not lstm:
        for context, _, draft in drafter.drafts:
            read = [*context[:-1], context[-1] if context[-1] < rows else 0]
            for place, token in enumerate(draft.tokens):
                assert token == int(naive(head, read, draft.tokens[:place]).argmax())


def test_a_sampled_chain_has_the_q_that_it_was_drawn_from():
    target = wide()
    sampling = SamplingParams(0.8, top_k=5, seed=3)
    head = speculator_for(target)
    drafter = Watched(make(METHOD, head, target))
    run(target, [1, 2, 3], drafter, rule="rejection", sampling=sampling, max_tokens=30)
    drawn = 0
    for context, _, draft in drafter.drafts[1:]:
        for place, (token, q) in enumerate(zip(draft.tokens, draft.q or (), strict=True)):
            expected = probabilities(naive(head, context, draft.tokens[:place]), sampling)
            assert np.asarray(q) == pytest.approx(expected, abs=1e-6)
            assert token == draw(q, uniform(3, len(context) - 3, "draft", place))
            drawn += 1
    assert drawn > 20


@KINDS
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_greedy_equals_plain_and_match_equals_sampled_plain(more, temperature, namespace):
    verdicts = Counter()
    for seed in range(6):
        model = TableModel(vocab=5, order=1, seed=seed, scale=3.0)
        eos = [4] if seed % 3 == 1 else []
        target = FeatureEngine(model, 5, namespace=namespace, eos_ids=eos, order=1)
        sampling = SamplingParams(temperature, seed=seed)
        drafter = make(METHOD, speculator_for(target, seed=seed, **more), target)
        limit = 1 + 5 * seed
        output, rounds, end, _ = run(
            target, [1, 2, 3], drafter, rule="match" if temperature else "greedy", sampling=sampling,
            max_tokens=limit, k=1 + seed % 5,
        )  # fmt: skip
        plain = plain_reference(model, [1, 2, 3], sampling, limit)
        ends = bool(eos) and 4 in plain
        assert output == (plain[: plain.index(4) + 1] if ends else plain)
        assert end == ("eos" if ends else "limit")
        verdicts.update(token.verdict for round_ in rounds for token in round_.drafted)
    assert verdicts["accepted"] > 1
    assert verdicts["rejected"] > 10


@pytest.mark.parametrize("more", [{}, {"lstm": True}], ids=str)
def test_rejection_converges_to_the_target(more):
    target = FeatureEngine(toy_logits(TARGET), VOCAB, order=1)
    head = speculator_for(target, seed=5, **more)
    outcomes, verdicts = Counter(), Counter()
    prompt = [1, 2, BOS]
    for seed in range(500):
        sampling = SamplingParams(1.0, seed=seed)
        drafter = make(METHOD, head, target, 64)
        session = target.new_session(64)
        drafter.start(prompt, sampling)
        session.prefill(prompt[:-1])
        sequence = TokenSequence(list(prompt))
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
    exact = chain_distribution(TARGET)
    assert verdicts["accepted"] > 100
    assert verdicts["rejected"] > 100
    assert chi_square_p(outcomes, exact) > HONEST
    assert sampled_variation(outcomes, exact) < variation_bound(exact, sum(outcomes.values()))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_length_policy(policy):
    model = TableModel(vocab=5, order=1, seed=2, scale=3.0)
    target = FeatureEngine(model, 5, order=1)
    info = POLICIES[policy]
    made = info.make(resolve(info.options, {}, policy), Costs())
    made.start(3)
    drafter = make(METHOD, speculator_for(target), target)
    output, rounds, _, _ = run(target, [1, 2, 3], drafter, max_tokens=40, policy=made)
    assert output == plain_reference(model, [1, 2, 3], SamplingParams(), 40)
    assert any(round_.k for round_ in rounds)


def test_confidence_is_its_own_probability_and_ends_the_draft():
    target = wide()
    head = speculator_for(target)
    drafter = make(METHOD, head, target)
    output, _, _, _ = run(target, [1, 2, 3], drafter, max_tokens=3)
    asked: list[float] = []

    def once(confidence: float) -> bool:
        asked.append(confidence)
        return len(asked) < 2

    context = [1, 2, 3, *output]
    draft = drafter.propose(context, 4, once)
    assert len(draft) == 2
    for place, confidence in enumerate(draft.confidences):
        row = naive(head, context, draft.tokens[:place])
        assert confidence == pytest.approx((np.exp(row) / np.exp(row).sum()).max(), abs=1e-6)
    assert list(draft.confidences) == asked


def test_a_member_of_a_cascade_drafts_from_the_same_state_as_alone():
    target = wide()
    head = speculator_for(target)
    drafter = Watched(make(METHOD, head, target))
    script = ScriptDrafter(lambda context, budget: [3, 4, 5] if len(context) % 3 == 0 else [])
    script.prompt_layers = ()
    output, rounds, _, _ = run(target, [1, 2, 3], Cascade([script, drafter]), max_tokens=40, k=3)
    assert output == plain_reference(target.model, [1, 2, 3], SamplingParams(), 40)
    assert {"script", METHOD} <= {round_.drafter for round_ in rounds}
    for context, _, draft in drafter.drafts:
        if draft:
            assert draft.tokens[0] == int(naive(head, context, []).argmax())


@pytest.mark.parametrize(("members", "more"), [("prompt-lookup+mlp-speculator", {}), ("mlp-speculator", {})])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_member_of_auto(members, more, temperature):
    """Exact whoever drafts: greedy equals plain, `match` equals sampled plain."""
    model = TableModel(vocab=5, order=1, seed=2, scale=3.0)
    target = FeatureEngine(model, 5, order=1)
    info = METHODS["auto"]
    options = info.resolve({"members": members, **more})
    context = DrafterContext(options, 4096, 5, target=target, heads={METHOD: speculator_for(target)})
    sampling = SamplingParams(temperature, seed=6)
    rule = "match" if temperature else "greedy"
    output, rounds, _, _ = run(
        target, [1, 2, 3], info.make(context), rule=rule, sampling=sampling, max_tokens=60, k=6
    )
    assert output == plain_reference(model, [1, 2, 3], sampling, 60)
    assert any(round_.drafter == "mlp-speculator" for round_ in rounds)


def test_without_features_it_drafts_nothing():
    target = wide()
    target.features_problem = "told to"
    drafter = make(METHOD, speculator_for(target), target)
    output, rounds, _, _ = run(target, [1, 2, 3], drafter, max_tokens=12)
    assert output == plain_reference(target.model, [1, 2, 3], SamplingParams(), 12)
    assert not any(round_.k for round_ in rounds)


def test_it_keeps_within_the_session():
    target = wide()
    drafter = make(METHOD, speculator_for(target), target, 12)
    output, rounds, _, _ = run(target, [1, 2, 3], drafter, max_tokens=9, max_length=12, k=4)
    assert len(output) == 9
    assert any(round_.k for round_ in rounds)


def test_logits_that_are_not_finite_are_an_error():
    target = wide()
    head = speculator_for(target)
    head.module.head[1].weight[0, 0] = float("nan")
    with pytest.raises(SpecviewError, match="the speculator gave logits that are not finite"):
        run(target, [1, 2, 3], make(METHOD, head, target), max_tokens=12)


def test_it_says_what_is_missing():
    context = DrafterContext(METHODS[METHOD].resolve({}), 64, WIDE)
    with pytest.raises(SpecviewError, match="needs a trained speculator"):
        METHODS[METHOD].make(context)
