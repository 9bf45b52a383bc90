"""Every public layout loads, and its draft logits are those of an independent forward pass (reference.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specview.heads.fast import fast_head
from specview.heads.loaded import LoadedHead
from specview.heads.read import read_head
from specview.models.heads import load_head
from tests.heads import fabricate as make
from tests.heads import reference

ROWS = 5
TOLERANCE = {"rtol": 2e-4, "atol": 2e-5}
rng = np.random.default_rng(5)
TOKENS = rng.integers(make.VOCAB, size=ROWS).tolist()
DRAFTED = [3, 17, 8]


def features(target_hidden: int = make.HIDDEN, count: int = 3) -> list[np.ndarray]:
    """Hidden states of ROWS positions."""
    return [rng.normal(size=(ROWS, target_hidden)).astype(np.float32) for _ in range(count)]


def load(kind: str, folder: Path, target: make.FakeTarget | None = None, **answers: str) -> LoadedHead:
    """The head of a folder for the fake target."""
    return load_head(kind, str(folder), target or make.FakeTarget(), answers)  # type: ignore[arg-type]


def close(ours: Any, theirs: np.ndarray) -> None:
    """Assert that logits agree to rounding, and are no zeros."""
    ours = np.asarray(ours, dtype=np.float64)
    assert ours.shape == theirs.shape
    assert np.abs(theirs).max() > 0.05
    np.testing.assert_allclose(ours, theirs, **TOLERANCE)


@torch.inference_mode()
def compare_chain(head: LoadedHead, twin: Any, parts: list[np.ndarray], output: np.ndarray | None = None) -> None:
    """Feed the context's rows, then draft steps on the head's own outputs; compare every row's logits."""
    module = fast_head(head.module, "stored")
    embedding = reference.array(twin.state, "embed_tokens.weight") if "embed_tokens.weight" in twin.state else None
    cache = module.new_cache()
    fused = module.fuse(head.tensor(np.concatenate(parts, -1)))
    double = [part.astype(np.float64) for part in parts]
    theirs = twin.fuse(double) if hasattr(twin, "fuse") else double[0]
    embedded = head.embed(TOKENS)
    own = embedding if embedding is not None else np.asarray(head._target.embedding, dtype=np.float64)  # type: ignore[attr-defined]
    y = module.run(embedded, fused, range(ROWS), cache)
    z = twin.rows(own[TOKENS], theirs, range(ROWS))
    for step, token in enumerate([*DRAFTED, None]):
        ours = module.logits(y) if hasattr(module, "logits") else head.project(y)
        close(ours, twin.logits(z, output) if hasattr(twin, "logits") else z @ output.T)  # type: ignore[union-attr]
        if token is None:
            return
        at = ROWS + step
        y = module.run(head.embed([token]), module.next_hidden(y[-1:]), [at], cache)
        following = twin.next_g(z[-1:]) if hasattr(twin, "next_g") else z[-1:]
        z = twin.rows(own[[token]], following, [at])


@pytest.mark.parametrize(
    ("state", "config", "file"),
    [
        ({}, {}, "pytorch_model.bin"),
        ({"bias": False, "own_embedding": False}, {"bias": False}, "model.safetensors"),
        ({"qkv_bias": True}, {"qkv_bias": True}, "model.safetensors"),
        ({"layers": 2}, {"num_hidden_layers": 2}, "pytorch_model.bin"),
    ],
)
def test_eagle_1_and_2(tmp_path: Path, state: dict[str, Any], config: dict[str, Any], file: str) -> None:
    tensors = make.eagle1_state(**state)
    folder = make.write(tmp_path, {**make.LLAMA, "architectures": ["LlamaForCausalLM"], **config}, tensors, file)
    head = load("eagle", folder)
    target = head._target
    twin = reference.Eagle1(tensors, make.LLAMA, state.get("layers", 1))
    compare_chain(head, twin, features(count=1), target.output.astype(np.float64))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("state", "config"),
    [
        ({}, {}),
        ({"own_embedding": True}, {"architectures": ["LlamaForCausalLM"]}),
        ({"target_hidden": 24, "own_embedding": True}, {"target_hidden_size": 24}),
        ({"draft_vocab": make.VOCAB}, {"draft_vocab_size": make.VOCAB}),
        ({"aux": 2}, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3]}}),
        ({}, {"architectures": ["Eagle3LlamaForCausalLM"], "norm_before_residual": True}),
        ({}, {"eagle_config": {"norm_before_residual": True}}),
    ],
)
def test_eagle3_midlayer(tmp_path: Path, state: dict[str, Any], config: dict[str, Any]) -> None:
    tensors = make.eagle3_state(**state)
    folder = make.write(tmp_path, make.midlayer_config(**config), tensors)
    hidden = state.get("target_hidden", make.HIDDEN)
    head = load("eagle3", folder, make.FakeTarget(hidden=hidden))
    before = config.get("norm_before_residual", config.get("eagle_config", {}).get("norm_before_residual", False))
    twin = reference.Eagle3(tensors, make.LLAMA, norm_before_residual=before)
    compare_chain(head, twin, features(hidden, state.get("aux", 3)))
    if "d2t" in tensors:
        assert tuple(head.module.target_ids.tolist()) == make.DRAFT_IDS


QWEN = {"model_type": "qwen3", "rms_norm_eps": 1e-6, "head_dim": make.WIDTH, "rope_theta": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}  # fmt: skip


@pytest.mark.parametrize(
    ("state", "config", "layer"),
    [
        ({}, {}, {}),
        ({"layers": 3}, {"norm_before_residual": True}, {"num_hidden_layers": 3}),
        ({"qk_norm": True, "fc_norm": True}, {"fc_norm": True}, QWEN),
        ({"input_norm": True}, {"norm_before_fc": True, "norm_output": True}, {}),
        ({"own_embedding": True, "draft_vocab": make.VOCAB}, {"draft_vocab_size": make.VOCAB}, {}),
        ({"aux": 4}, {"eagle_aux_hidden_state_layer_ids": [1, 2, 4, 8]}, {}),
    ],
)
def test_eagle3_speculators(
    tmp_path: Path, state: dict[str, Any], config: dict[str, Any], layer: dict[str, Any]
) -> None:
    tensors = make.eagle3_state(first="layers.0", **state)
    folder = make.write(tmp_path, make.speculators_config(layer=layer, **config), tensors)
    head = load("eagle3", folder)
    own = {**make.LLAMA, **{key: value for key, value in layer.items() if value is not None}}
    twin = reference.Eagle3(
        tensors, own, "layers.0", state.get("layers", 1), config.get("norm_before_residual", False),
        config.get("norm_output", False),
    )  # fmt: skip
    compare_chain(head, twin, features(count=state.get("aux", 3)))


def test_an_eagle3_head_without_output_takes_the_targets_rows(tmp_path: Path) -> None:
    tensors = make.eagle3_state(lm_head=False)
    head = load("eagle3", make.write(tmp_path, make.midlayer_config(), tensors))
    rows = head._target.output[list(make.DRAFT_IDS)].astype(np.float64)  # type: ignore[attr-defined]
    compare_chain(head, reference.Eagle3(tensors, make.LLAMA), features(), rows)


@pytest.mark.parametrize(
    ("prefix", "first", "config"),
    [
        ("", "layers.0", make.speculators_config("peagle", mask_token_id=7)),
        ("model.", "layers.0", make.midlayer_config(ptd_token_id="7", parallel_drafting=True)),
        ("", "midlayer", make.midlayer_config(pard_token=7)),
    ],
)
def test_p_eagle(tmp_path: Path, prefix: str, first: str, config: dict[str, Any]) -> None:
    tensors = make.eagle3_state(first=first, mask_hidden=True, own_embedding=True)
    stored = {name if name in ("lm_head.weight", "d2t", "t2d") else prefix + name: t for name, t in tensors.items()}
    head = load("p-eagle", make.write(tmp_path, config, stored))
    twin = reference.Eagle3(tensors, make.LLAMA, first)
    assert head.module.shape.mask_token_id == 7
    module = fast_head(head.module, "stored")
    parts, cache = features(), module.new_cache()
    masked = tensors["mask_hidden"].numpy().reshape(3, make.HIDDEN)
    embedding = tensors["embed_tokens.weight"].double().numpy()
    with torch.inference_mode():
        g = torch.cat([module.fuse(head.tensor(np.concatenate(parts, -1))), *[module.fuse(module.mask_hidden[0])] * 2])
        y = module.run(head.embed([*TOKENS, 7, 7]), g, range(ROWS + 2), cache)
        ours = module.logits(y)
    fused = twin.fuse([part.astype(np.float64) for part in parts])
    mask = twin.fuse([masked[i : i + 1].astype(np.float64) for i in range(3)])
    z = twin.rows(embedding[[*TOKENS, 7, 7]], np.concatenate([fused, mask, mask]), range(ROWS + 2))
    close(ours, twin.logits(z))


@pytest.mark.parametrize("file", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])
@pytest.mark.parametrize(("layers", "prefix"), [(1, ""), (2, "medusa_head.")])
def test_medusa(tmp_path: Path, file: str, layers: int, prefix: str) -> None:
    tensors = make.medusa_state(layers=layers, prefix=prefix)
    config = {"base_model_name_or_path": "lab/toy-target", "medusa_num_heads": 2, "medusa_num_layers": layers}
    head = load("medusa", make.write(tmp_path, config, tensors, file))
    assert head.facts.most_tokens == 3
    assert "says 2 heads" in " ".join(head.facts.notes)
    (hidden,) = features(count=1)
    states = reference.medusa_states(tensors, hidden.astype(np.float64), 3, layers, prefix + "{head}.{layer}.linear")
    with torch.inference_mode():
        ours = head.module.logits(head.module(head.tensor(hidden)))
    for index, state in enumerate(states):
        close(ours[index], state @ reference.array(tensors, f"{prefix}{index}.{layers}.weight").T)


def test_medusa_version_2_uses_the_targets_output(tmp_path: Path) -> None:
    tensors = make.medusa_state(outputs=False)
    config = {"base_model_name_or_path": "toy-target", "medusa_num_heads": 3, "medusa_num_layers": 1, "version": "2"}
    head = load("medusa", make.write(tmp_path, config, tensors, "medusa_lm_head.safetensors"))
    (hidden,) = features(count=1)
    states = reference.medusa_states(tensors, hidden.astype(np.float64), 3, 1, "{head}.{layer}.linear")
    with torch.inference_mode():
        found = head.module(head.tensor(hidden))
        assert head.module.logits(found) is None
        for ours, state in zip(found, states, strict=True):
            close(head.project(ours), state @ head._target.output.astype(np.float64).T)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("state", "config"),
    [
        ({}, {}),
        ({"bias": True}, {"medusa_fc_bias": True}),
        ({"shared": True}, {"original_lm_head": True}),
        ({"some": True}, {"truncated_vocab_size": make.DRAFT_VOCAB}),
    ],
)
def test_medusa_of_vllm(tmp_path: Path, state: dict[str, Any], config: dict[str, Any]) -> None:
    tensors = make.medusa_vllm_state(**state)
    head = load("medusa", make.write(tmp_path, make.medusa_vllm_config(**config), tensors))
    (hidden,) = features(count=1)
    states = reference.medusa_states(tensors, hidden.astype(np.float64), 3, 2, "blocks.{head}.layers.{layer}")
    with torch.inference_mode():
        ours = head.module.logits(head.module(head.tensor(hidden)))
    for index, one in enumerate(states):
        name = "lm_head.weight" if state.get("shared") else f"lm_heads.{index}.weight"
        close(ours[index], one @ reference.array(tensors, name).T)
    if state.get("some"):
        assert tuple(head.module.target_ids.tolist()) == make.DRAFT_IDS


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("scale_input", [False, True])
def test_mlp_speculator(tmp_path: Path, tied: bool, scale_input: bool) -> None:
    tensors = make.mlp_speculator_state(tied=tied)
    config = make.mlp_speculator_config(tie_weights=tied, scale_input=scale_input)
    head = load("mlp-speculator", make.write(tmp_path, config, tensors))
    assert head.facts.most_tokens == 3
    (hidden,) = features(count=1)
    wanted = reference.speculator(tensors, hidden.astype(np.float64), DRAFTED, tied=tied, scale_input=scale_input)
    compare_speculator(head, hidden, wanted)


def test_arctic_lstm_speculator(tmp_path: Path) -> None:
    tensors = make.arctic_state()
    config = {"method": "sum_lstm", "input_hidden_dim": make.HIDDEN, "inner_dim": 20, "proj_dim": 20, "emb_dim": 20,
              "tie_weights": True, "n_predict": 3, "vocab_size": make.VOCAB}  # fmt: skip
    head = load("mlp-speculator", make.write(tmp_path, config, tensors))
    (hidden,) = features(count=1)
    wanted = reference.speculator(tensors, hidden.astype(np.float64), DRAFTED, lstm=True, prefix="")
    compare_speculator(head, hidden, wanted)


@torch.inference_mode()
def compare_speculator(head: LoadedHead, hidden: np.ndarray, wanted: list[np.ndarray]) -> None:
    """Feed every row the same drafted tokens and compare each step's logits."""
    state = head.module.begin(head.tensor(hidden))
    for step, token in enumerate(DRAFTED):
        state, ours = head.module.step(step, state, torch.full((ROWS,), token))
        close(ours, wanted[step])


def test_mtp_of_mimo(tmp_path: Path) -> None:
    tensors = make.mimo_state()
    config = {**make.LLAMA, "model_type": "mimo", "num_hidden_layers": make.LAYERS, "num_nextn_predict_layers": 1}
    head = load("mtp", make.write(tmp_path, config, tensors))
    assert (head.facts.most_tokens, head.facts.layout) == (1, "MTP in the target's checkpoint, MiMo layout")
    (hidden,) = features(count=1)
    embedding = head._target.embedding.astype(np.float64)  # type: ignore[attr-defined]
    z = reference.module("mimo", tensors, config, embedding[TOKENS], hidden.astype(np.float64), range(1, ROWS + 1))
    (cache,) = head.module.new_cache()
    with torch.inference_mode():
        ours = head.module.run(0, head.embed(TOKENS), head.tensor(hidden), cache)
        close(head.project(ours), z @ head._target.output.astype(np.float64).T)  # type: ignore[attr-defined]


def test_llama3_rope_scaling_is_that_of_transformers(tmp_path: Path) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64}  # fmt: skip
    config = make.midlayer_config(rope_scaling=scaling, head_dim=16, num_attention_heads=1, num_key_value_heads=1)
    tensors = make.eagle3_state()
    folder = make.write(tmp_path, {**config, "rope_theta": 500.0}, tensors)
    facts_frequencies = None
    for name, shape in (("q", (16, 32)), ("k", (16, 32)), ("v", (16, 32))):
        tensors[f"midlayer.self_attn.{name}_proj.weight"] = torch.randn(*shape)
    make.write(tmp_path, {**config, "rope_theta": 500.0}, tensors)
    facts_frequencies = read_head(folder).sizes["frequencies"]
    theirs, factor = ROPE_INIT_FUNCTIONS["llama3"](
        LlamaConfig(head_dim=16, rope_parameters={**scaling, "rope_theta": 500.0}, max_position_embeddings=512), "cpu"
    )
    assert factor == 1.0
    np.testing.assert_allclose(facts_frequencies, theirs.numpy(), rtol=1e-6)
    assert len(set(np.round(np.array(facts_frequencies) / 500.0 ** (-np.arange(8) / 8), 6))) > 2  # it is scaled
