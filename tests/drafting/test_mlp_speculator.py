"""The MLP speculator over a toy target with features: its chain against a numpy forward, and exactness."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from specview.decoding.sampling import SamplingParams, draw, probabilities, uniform
from specview.heads.layouts import HeadFacts
from specview.heads.loaded import LoadedHead
from specview.heads.mlp_speculator import MlpSpeculator, MlpSpeculatorShape
from tests.decoding.toy import (
    TableModel,
    plain_reference,
)
from tests.drafting.eagle_toy import HIDDEN, FeatureEngine, Watched, feature, make, randomised, run

WIDE, INNER, PREDICTS = 12, 8, 4
METHOD = "mlp-speculator"


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
