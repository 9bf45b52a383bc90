"""MlpSpeculator against plain numpy forwards written from the layouts, IBM's and Arctic's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from specview.heads.mlp_speculator import GATES, MlpSpeculator, MlpSpeculatorShape

HIDDEN, INNER, VOCAB, PREDICTS = 10, 6, 17, 4


def speculator(**changes) -> MlpSpeculator:
    torch.manual_seed(3)
    sizes = {"hidden": HIDDEN, "inner": INNER, "predicts": PREDICTS, "vocab": VOCAB, **changes}
    module = MlpSpeculator(MlpSpeculatorShape(**sizes)).eval().requires_grad_(False)
    for name, parameter in module.named_parameters():
        if "ln" in name:  # gains and biases that matter
            parameter.copy_(torch.randn(parameter.shape))
    return module


def gelu(x: np.ndarray) -> np.ndarray:
    return np.array([value * (1 + math.erf(value / math.sqrt(2))) / 2 for value in x])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def rms(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x * x).mean() + 1e-6)


def weights(module: MlpSpeculator) -> dict[str, np.ndarray]:
    return {name: value.numpy().astype(np.float64) for name, value in module.state_dict().items()}


def reference(module: MlpSpeculator, hidden: np.ndarray, tokens: list[int]) -> list[np.ndarray]:
    """Logits of every step, the token fed to step i being tokens[i]."""
    shape, state = module.shape, weights(module)
    width = shape.inner or shape.hidden
    state_weight = 0.5 ** (0.5 / shape.predicts)
    token_weight = math.sqrt((1 - state_weight**2) * width / 2) / state_weight
    s, c = hidden.astype(np.float64), np.zeros(width)
    if shape.scale_input:
        s = rms(s) / math.sqrt(2)
    rows = []
    for i, token in enumerate(tokens):
        if shape.lstm:
            a = {
                gate: state[f"{gate}_proj.{min(i, 1)}.weight"] @ s
                + token_weight * state[f"{gate}_emb.0.weight"][token]
                for gate in GATES
            }
            cell = gelu(rms(a["cell"]) * state["cell_ln.0.weight"] + state["cell_ln.0.bias"])
            c = sigmoid(a["forget"]) * c + sigmoid(a["input"]) * cell
            normed = rms(c) * state["state_ln.0.weight"] + state["state_ln.0.bias"]
            s = sigmoid(a["output"]) * gelu(normed)
        else:
            mixed = state[f"proj.{i}.weight"] @ s + token_weight * state[f"emb.{i}.weight"][token]
            s = gelu(rms(mixed) * state[f"ln.{i}.weight"] + state[f"ln.{i}.bias"])
        rows.append(state[f"head.{i}.weight"] @ s)
    return rows


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
    rng = np.random.default_rng(5)
    hidden = rng.normal(size=HIDDEN).astype(np.float32)
    tokens = rng.integers(0, VOCAB, size=module.shape.predicts).tolist()
    expected = reference(module, hidden, tokens)
    state = module.begin(torch.from_numpy(hidden)[None])
    for index, token in enumerate(tokens):
        state, logits = module.step(index, state, [token])
        assert logits.shape == (1, VOCAB)
        assert logits[0].numpy() == pytest.approx(expected[index], abs=2e-5)


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
