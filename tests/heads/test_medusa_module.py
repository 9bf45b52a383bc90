"""MedusaHeads against a plain numpy forward written from the layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specview.heads.medusa import MedusaHeads, MedusaShape
from tests.heads import reference

HIDDEN, VOCAB, HEADS = 12, 20, 3


def heads(seed: int = 0, **changes) -> MedusaHeads:
    torch.manual_seed(seed)
    module = MedusaHeads(MedusaShape(HIDDEN, VOCAB, HEADS, **changes)).eval()
    return module.requires_grad_(False)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("output", ["own", "shared", "target"])
def test_equals_the_formula(layers, bias, output):
    module = heads(layers=layers, bias=bias, output=output)
    hidden = np.random.default_rng(1).normal(size=(4, HIDDEN)).astype(np.float32)
    states = module(torch.from_numpy(hidden))
    expected = np.array(reference.medusa_states(module.state_dict(), hidden, HEADS, layers, "blocks.{head}.layers.{layer}"))
    assert states.numpy() == pytest.approx(expected, abs=1e-5)
    assert module(torch.from_numpy(hidden), 2).numpy() == pytest.approx(expected[:2], abs=1e-5)
    logits = module.logits(states)
    if output == "target":
        assert logits is None
        return
    state = module.state_dict()
    for head in range(HEADS):
        name = "lm_head.weight" if output == "shared" else f"lm_heads.{head}.weight"
        assert logits[head].numpy() == pytest.approx(expected[head] @ state[name].numpy().T, abs=1e-5)
    assert module.logits(states[:1]).shape == (1, 4, VOCAB)


def test_the_state_dict_has_vllms_names():
    names = set(heads(layers=2, draft_vocab=5).state_dict())
    assert names == {
        *(f"blocks.{i}.layers.{j}.{kind}" for i in range(3) for j in range(2) for kind in ("weight", "bias")),
        *(f"lm_heads.{i}.weight" for i in range(3)),
        "token_map",
    }
    assert "lm_head.weight" in heads(output="shared").state_dict()
    assert heads().target_ids is None
    assert heads(draft_vocab=5).target_ids.tolist() == [0, 1, 2, 3, 4]


def test_a_truncated_vocabulary_needs_an_output_of_its_own():
    with pytest.raises(ValueError, match="whole vocabulary"):
        heads(draft_vocab=5, output="target")
