"""MlpSpeculator against plain numpy forwards written from the layouts, IBM's and Arctic's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from specview.heads.mlp_speculator import MlpSpeculator, MlpSpeculatorShape
from tests.heads import reference

HIDDEN, INNER, VOCAB, PREDICTS = 10, 6, 17, 4


def speculator(**changes) -> MlpSpeculator:
    torch.manual_seed(3)
    sizes = {"hidden": HIDDEN, "inner": INNER, "predicts": PREDICTS, "vocab": VOCAB, **changes}
    module = MlpSpeculator(MlpSpeculatorShape(**sizes)).eval().requires_grad_(False)
    for name, parameter in module.named_parameters():
        if "ln" in name:  # gains and biases that matter
            parameter.copy_(torch.randn(parameter.shape))
    return module


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"inner": 0},
        {"scale_input": True},
        {"tie_weights": True},
        {"tie_weights": True, "scale_input": True, "predicts": 1},
        {"lstm": True},
        {"lstm": True, "scale_input": True},
        {"lstm": True, "predicts": 1},
    ],
    ids=str,
)
def test_equals_the_formula(changes):
    module = speculator(**changes)
    shape, state = module.shape, module.state_dict()
    rng = np.random.default_rng(5)
    hidden = rng.normal(size=(1, HIDDEN)).astype(np.float32)
    tokens = rng.integers(0, VOCAB, size=shape.predicts).tolist()
    expected = reference.speculator(
        state, hidden, tokens, lstm=shape.lstm, tied=shape.tie_weights, scale_input=shape.scale_input, prefix=""
    )
    made = module.begin(torch.from_numpy(hidden))
    for index, token in enumerate(tokens):
        made, logits = module.step(index, made, [token])
        assert logits.shape == (1, VOCAB)
        assert logits.numpy() == pytest.approx(expected[index], abs=2e-5)


def test_tied_weights_may_be_stored_once():
    module = speculator(tie_weights=True)
    stored = {
        name: value
        for name, value in module.state_dict().items()
        if int(name.split(".")[1]) == 0 or name == "proj.1.weight"
    }
    assert set(stored) == {
        "emb.0.weight", "head.0.weight", "ln.0.weight", "ln.0.bias", "proj.0.weight", "proj.1.weight"
    }  # fmt: skip
    torch.manual_seed(9)
    other = MlpSpeculator(module.shape)
    other.load_state_dict(stored)
    for name, value in module.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
    untied = MlpSpeculator(MlpSpeculatorShape(HIDDEN, INNER, PREDICTS, VOCAB))
    with pytest.raises(RuntimeError, match=r"emb\.1\.weight"):
        untied.load_state_dict(stored)


def test_a_checkpoint_without_a_first_step_is_refused():
    module = speculator(tie_weights=True)
    stored = {name: value for name, value in module.state_dict().items() if not name.startswith("emb.")}
    with pytest.raises(RuntimeError, match=r"emb\.0\.weight"):
        MlpSpeculator(module.shape).load_state_dict(stored)
