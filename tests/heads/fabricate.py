"""Test helper: small checkpoints in the public layouts of trained heads, with random weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, WIDTH = 16, 24, 4, 2, 4
VOCAB, DRAFT_VOCAB, LAYERS = 40, 12, 8
"""Of the target that the heads are for."""
DRAFT_IDS = (1, 2, 5, 8, 9, 13, 17, 20, 26, 30, 33, 39)

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": 1,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
}

State = dict[str, torch.Tensor]


class Weights:
    """Random tensors, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def matrix(self, *shape: int) -> torch.Tensor:
        """Values around 0 whose products keep their size."""
        return torch.randn(*shape, generator=self._generator) * 0.7 / shape[-1] ** 0.5

    def gain(self, size: int) -> torch.Tensor:
        """Values around 1."""
        return 1 + 0.3 * torch.randn(size, generator=self._generator)


def write(folder: Path, config: Mapping[str, Any], state: State, file: str = "model.safetensors") -> Path:
    """Write config.json and a weights file: safetensors, or torch's own for another ending."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    state = {name: tensor.contiguous() for name, tensor in state.items()}
    if file.endswith(".safetensors"):
        save_file(state, folder / file)
    else:
        torch.save(state, folder / file)
    return folder


def llama_layer(
    weights: Weights, prefix: str, inputs: int, *, qkv_bias: bool = False, qk_norm: bool = False
) -> State:
    """A decoder layer's attention, MLP and second norm."""
    q, kv = HEADS * WIDTH, KV_HEADS * WIDTH
    state: State = {f"{prefix}.self_attn.o_proj.weight": weights.matrix(HIDDEN, q)}
    for name, rows in (("q", q), ("k", kv), ("v", kv)):
        state[f"{prefix}.self_attn.{name}_proj.weight"] = weights.matrix(rows, inputs)
        if qkv_bias:
            state[f"{prefix}.self_attn.{name}_proj.bias"] = weights.matrix(rows)
    if qk_norm:
        state |= {f"{prefix}.self_attn.{name}_norm.weight": weights.gain(WIDTH) for name in "qk"}
    for name in ("gate", "up"):
        state[f"{prefix}.mlp.{name}_proj.weight"] = weights.matrix(INTERMEDIATE, HIDDEN)
    state[f"{prefix}.mlp.down_proj.weight"] = weights.matrix(HIDDEN, INTERMEDIATE)
    state[f"{prefix}.post_attention_layernorm.weight"] = weights.gain(HIDDEN)
    return state


def vocabulary_maps() -> State:
    """d2t and t2d of DRAFT_IDS."""
    ids = torch.tensor(DRAFT_IDS)
    chosen = torch.zeros(VOCAB, dtype=torch.bool)
    chosen[ids] = True
    return {"d2t": ids - torch.arange(DRAFT_VOCAB), "t2d": chosen}


def eagle1_state(
    seed: int = 0,
    *,
    bias: bool = True,
    qkv_bias: bool = False,
    own_embedding: bool = True,
    layers: int = 1,
) -> State:
    """EAGLE-1 and 2 (SafeAILab)."""
    weights = Weights(seed)
    state: State = {"fc.weight": weights.matrix(HIDDEN, 2 * HIDDEN)}
    if bias:
        state["fc.bias"] = weights.matrix(HIDDEN)
    if own_embedding:
        state["embed_tokens.weight"] = weights.matrix(VOCAB, HIDDEN)
    for index in range(layers):
        state |= llama_layer(weights, f"layers.{index}", HIDDEN, qkv_bias=qkv_bias)
        if index:
            state[f"layers.{index}.input_layernorm.weight"] = weights.gain(HIDDEN)
    return state


def eagle3_state(
    seed: int = 0,
    *,
    first: str = "midlayer",
    aux: int = 3,
    target_hidden: int = HIDDEN,
    layers: int = 1,
    draft_vocab: int = DRAFT_VOCAB,
    own_embedding: bool = False,
    qk_norm: bool = False,
    input_norm: bool = False,
    fc_norm: bool = False,
    lm_head: bool = True,
    mask_hidden: bool = False,
) -> State:
    """EAGLE-3 and P-EAGLE, in either layout (first is "midlayer" or "layers.0")."""
    weights = Weights(seed)
    wide = aux * target_hidden
    state: State = {"fc.weight": weights.matrix(HIDDEN, wide), "norm.weight": weights.gain(HIDDEN)}
    if lm_head:
        state["lm_head.weight"] = weights.matrix(draft_vocab, HIDDEN)
    if draft_vocab != VOCAB:
        state |= vocabulary_maps()
    if own_embedding:
        state["embed_tokens.weight"] = weights.matrix(VOCAB, HIDDEN)
    if input_norm:
        state["input_norm.weight"] = weights.gain(wide)
    if fc_norm:
        state |= {f"fc_norm.{index}.weight": weights.gain(target_hidden) for index in range(aux)}
    if mask_hidden:
        state["mask_hidden"] = weights.matrix(1, 1, wide)
    for index in range(layers):
        prefix = f"layers.{index}" if index else first
        state |= llama_layer(weights, prefix, HIDDEN if index else 2 * HIDDEN, qk_norm=qk_norm)
        state[f"{prefix}.input_layernorm.weight"] = weights.gain(HIDDEN)
    state[f"{first}.hidden_norm.weight"] = weights.gain(HIDDEN)
    return state


def midlayer_config(**more: Any) -> dict[str, Any]:
    """The config of SafeAILab's, SpecForge's and AngelSlim's EAGLE-3 heads."""
    return {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": DRAFT_VOCAB, **more}


def speculators_config(kind: str = "eagle3", layer: Mapping[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The config of a head of the speculators library; a key given as None is left out."""
    config = {
        "speculators_model_type": kind,
        "architectures": ["Eagle3Speculator" if kind == "eagle3" else "PEagleSpeculator"],
        "draft_vocab_size": DRAFT_VOCAB,
        "norm_before_residual": False,
        "transformer_layer_config": {**LLAMA, **(layer or {})},
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": "lab/toy-target", "architectures": ["LlamaForCausalLM"]},
        },
        **more,
    }
    return {key: value for key, value in config.items() if value is not None}


def medusa_state(
    seed: int = 0, *, heads: int = 3, layers: int = 1, outputs: bool = True, prefix: str = ""
) -> State:
    """Medusa's own layout."""
    weights = Weights(seed)
    state: State = {}
    for head in range(heads):
        for layer in range(layers):
            state[f"{prefix}{head}.{layer}.linear.weight"] = weights.matrix(HIDDEN, HIDDEN)
            state[f"{prefix}{head}.{layer}.linear.bias"] = weights.matrix(HIDDEN)
        if outputs:
            state[f"{prefix}{head}.{layers}.weight"] = weights.matrix(VOCAB, HIDDEN)
    return state


def medusa_vllm_state(
    seed: int = 0, *, heads: int = 3, layers: int = 2, bias: bool = False, shared: bool = False, some: bool = False
) -> State:
    """vLLM's layout of Medusa heads; some gives outputs for DRAFT_IDS alone."""
    weights = Weights(seed)
    rows = DRAFT_VOCAB if some else VOCAB
    state: State = {}
    for head in range(heads):
        for layer in range(layers):
            state[f"blocks.{head}.layers.{layer}.weight"] = weights.matrix(HIDDEN, HIDDEN)
            if bias:
                state[f"blocks.{head}.layers.{layer}.bias"] = weights.matrix(HIDDEN)
        if not shared:
            state[f"lm_heads.{head}.weight"] = weights.matrix(rows, HIDDEN)
    if shared:
        state["lm_head.weight"] = weights.matrix(rows, HIDDEN)
    if some:
        state["token_map"] = torch.tensor(DRAFT_IDS)
    return state


def medusa_vllm_config(**more: Any) -> dict[str, Any]:
    """The config of vLLM's Medusa heads."""
    config = {"model_type": "medusa", "architectures": ["MedusaModel"], "hidden_size": HIDDEN, "vocab_size": VOCAB}
    return {**config, "num_heads": 3, "num_hidden_layers": 2, **more}


def mlp_speculator_state(seed: int = 0, *, predicts: int = 3, inner: int = 20, tied: bool = False) -> State:
    """IBM's MLP speculator; tied leaves out what the steps share."""
    weights = Weights(seed)
    state: State = {}
    for step in range(predicts):
        if tied and step > 1:
            break
        if not tied or step == 0:
            state[f"speculator.emb.{step}.weight"] = weights.matrix(VOCAB, inner)
            state[f"speculator.head.{step}.weight"] = weights.matrix(VOCAB, inner)
            state[f"speculator.ln.{step}.weight"] = weights.gain(inner)
            state[f"speculator.ln.{step}.bias"] = weights.matrix(inner)
        state[f"speculator.proj.{step}.weight"] = weights.matrix(inner, inner if step else HIDDEN)
    return state


def mlp_speculator_config(**more: Any) -> dict[str, Any]:
    """The config of IBM's speculators."""
    return {
        "model_type": "mlp_speculator", "architectures": ["MLPSpeculatorPreTrainedModel"], "emb_dim": HIDDEN,
        "inner_dim": 20, "n_predict": 3, "tie_weights": False, "scale_input": False, "vocab_size": VOCAB,
        "top_k_tokens_per_head": [4, 3, 2], "n_candidates": 5, **more,
    }  # fmt: skip


def arctic_state(seed: int = 0, *, inner: int = 20) -> State:
    """Arctic's LSTM speculator."""
    weights = Weights(seed)
    state: State = {"head.0.weight": weights.matrix(VOCAB, inner)}
    for gate in ("forget", "input", "output", "cell"):
        state[f"{gate}_emb.0.weight"] = weights.matrix(VOCAB, inner)
        state[f"{gate}_proj.0.weight"] = weights.matrix(inner, HIDDEN)
        state[f"{gate}_proj.1.weight"] = weights.matrix(inner, inner)
    for name in ("cell_ln", "state_ln"):
        state[f"{name}.0.weight"], state[f"{name}.0.bias"] = weights.gain(inner), weights.matrix(inner)
    return state


def mimo_state(seed: int = 0) -> State:
    """A MiMo target's checkpoint: its module, and what of the rest a reader might trip over."""
    weights = Weights(seed)
    place = "model.mtp_layers.0"
    return {
        "model.embed_tokens.weight": weights.matrix(VOCAB, HIDDEN),
        "lm_head.weight": weights.matrix(VOCAB, HIDDEN),
        "model.layers.0.self_attn.q_proj.weight": weights.matrix(HIDDEN, HIDDEN),
        "model.layers.1.self_attn.q_proj.weight": weights.matrix(HIDDEN, HIDDEN),
        **llama_layer(weights, place, HIDDEN, qkv_bias=True),
        f"{place}.input_layernorm.weight": weights.gain(HIDDEN),
        f"{place}.token_layernorm.weight": weights.gain(HIDDEN),
        f"{place}.hidden_layernorm.weight": weights.gain(HIDDEN),
        f"{place}.final_layernorm.weight": weights.gain(HIDDEN),
        f"{place}.input_proj.weight": weights.matrix(HIDDEN, 2 * HIDDEN),
    }


class FakeTarget:
    """A target as far as a head asks: sizes, embedding and output. numpy out, as llama.cpp gives it."""

    def __init__(self, hidden: int = HIDDEN, vocab: int = VOCAB, layers: int = LAYERS, name: str = "toy-target") -> None:
        rng = np.random.default_rng(99)
        self.name, self.device, self.dtype = "llama.cpp", "cpu", "float32"
        self.model_name, self.hidden_size, self.vocab_size, self.layers = name, hidden, vocab, layers
        self.features_problem: str | None = None
        self.embedding = (rng.normal(size=(vocab, hidden)) / 4).astype(np.float32)
        self.output = (rng.normal(size=(vocab, hidden)) / 4).astype(np.float32)

    def embed(self, ids: Any) -> np.ndarray:
        """Rows of the embedding."""
        return self.embedding[list(ids)]

    def project(self, hidden: Any) -> np.ndarray:
        """The output matrix alone."""
        return np.asarray(hidden) @ self.output.T
