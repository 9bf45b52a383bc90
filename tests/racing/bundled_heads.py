"""Test helper: random heads of a size that fits the bundled target, for methods that have no bundled one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

HIDDEN, VOCAB, LAYERS = 576, 49152, 30
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": 1536, "num_hidden_layers": LAYERS,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": VOCAB, "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0, "max_position_embeddings": 8192, "tie_word_embeddings": True,
}  # fmt: skip
Made = tuple[dict[str, Any], dict[str, Tensor]]


def _matrix(generator: torch.Generator, rows: int, columns: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(rows, columns, generator=generator) / columns**0.5


def _medusa(generator: torch.Generator) -> Made:
    """Three heads with the target's output: near enough to it to be right now and then."""
    tensors = {}
    for head in range(3):
        tensors[f"{head}.0.linear.weight"] = _matrix(generator, HIDDEN, HIDDEN, 0.3)
        tensors[f"{head}.0.linear.bias"] = torch.zeros(HIDDEN)
    return {"medusa_num_heads": 3, "medusa_num_layers": 1, "version": "2"}, tensors


def _speculator(generator: torch.Generator) -> Made:
    inner = 32
    tensors = {
        "speculator.emb.0.weight": _matrix(generator, VOCAB, inner, inner**0.5),
        "speculator.head.0.weight": _matrix(generator, VOCAB, inner, 4.0),
        "speculator.ln.0.weight": torch.ones(inner),
        "speculator.ln.0.bias": torch.zeros(inner),
        "speculator.proj.0.weight": _matrix(generator, inner, HIDDEN),
        "speculator.proj.1.weight": _matrix(generator, inner, inner),
    }
    config = {
        "model_type": "mlp_speculator", "architectures": ["MLPSpeculatorPreTrainedModel"], "emb_dim": HIDDEN,
        "inner_dim": inner, "n_predict": 3, "tie_weights": True, "scale_input": True, "vocab_size": VOCAB,
    }  # fmt: skip
    return config, tensors


def _mtp(generator: torch.Generator) -> Made:
    """Two modules that let the target's state through beside some noise."""
    tensors = {}
    for number in range(2):
        at = f"model.layers.{LAYERS + number}"
        shapes = {
            "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (192, HIDDEN), "self_attn.v_proj": (192, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (1536, HIDDEN), "mlp.up_proj": (1536, HIDDEN),
            "mlp.down_proj": (HIDDEN, 1536),
        }  # fmt: skip
        tensors |= {f"{at}.{name}.weight": _matrix(generator, *shape, 0.3) for name, shape in shapes.items()}
        for name in ("enorm", "hnorm", "shared_head.norm", "input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}.{name}.weight"] = torch.ones(HIDDEN)
        through = torch.cat([torch.zeros(HIDDEN, HIDDEN), torch.eye(HIDDEN)], 1)
        tensors[f"{at}.eh_proj.weight"] = through + _matrix(generator, HIDDEN, 2 * HIDDEN, 0.3)
    return {**CONFIG, "num_nextn_predict_layers": 2}, tensors


def _layer(generator: torch.Generator, inputs: int, at: str) -> dict[str, Tensor]:
    shapes = {
        "self_attn.q_proj": (HIDDEN, inputs), "self_attn.k_proj": (192, inputs), "self_attn.v_proj": (192, inputs),
        "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (1536, HIDDEN), "mlp.up_proj": (1536, HIDDEN),
        "mlp.down_proj": (HIDDEN, 1536),
    }  # fmt: skip
    return {f"{at}.{name}.weight": _matrix(generator, *shape, 0.3) for name, shape in shapes.items()}


def _eagle(generator: torch.Generator) -> Made:
    """Lets the target's state through beside some noise."""
    tensors = _layer(generator, HIDDEN, "layers.0")
    tensors["layers.0.post_attention_layernorm.weight"] = torch.ones(HIDDEN)
    through = torch.cat([torch.zeros(HIDDEN, HIDDEN), torch.eye(HIDDEN)], 1)
    tensors["fc.weight"] = through + _matrix(generator, HIDDEN, 2 * HIDDEN, 0.3)
    tensors["fc.bias"] = torch.zeros(HIDDEN)
    return {**CONFIG, "num_hidden_layers": 1, "architectures": ["LlamaForCausalLM"]}, tensors


def _eagle3(generator: torch.Generator, kind: str = "eagle3") -> Made:
    """Lets the highest layer's state through; its vocabulary is every tenth of the target's first ids."""
    tensors = _layer(generator, 2 * HIDDEN, "layers.0")
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        tensors[f"layers.0.{name}.weight"] = torch.ones(HIDDEN)
    through = torch.cat([torch.zeros(HIDDEN, 2 * HIDDEN), torch.eye(HIDDEN)], 1)
    tensors["fc.weight"] = through + _matrix(generator, HIDDEN, 3 * HIDDEN, 0.3)
    tensors["norm.weight"] = torch.ones(HIDDEN)
    ids = torch.arange(0, 20480, 10)
    tensors["lm_head.weight"] = _matrix(generator, len(ids), HIDDEN, 10.0)
    tensors["d2t"] = ids - torch.arange(len(ids))
    tensors["t2d"] = torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True)
    config = {
        "speculators_model_type": kind, "architectures": ["Eagle3Speculator"], "draft_vocab_size": len(ids),
        "norm_before_residual": False, "eagle_aux_hidden_state_layer_ids": [2, 15, 27],
        "transformer_layer_config": {**CONFIG, "num_hidden_layers": 1},
    }  # fmt: skip
    return config, tensors


def _p_eagle(generator: torch.Generator) -> Made:
    config, tensors = _eagle3(generator, "peagle")
    tensors["mask_hidden"] = torch.randn(1, 1, 3 * HIDDEN, generator=generator)
    return {**config, "architectures": ["PEagleSpeculator"], "mask_token_id": 0}, tensors


MAKERS: dict[str, Callable[[torch.Generator], Made]] = {
    "eagle": _eagle, "eagle3": _eagle3, "p-eagle": _p_eagle, "medusa": _medusa, "mlp-speculator": _speculator, "mtp": _mtp,
}  # fmt: skip


def fabricate(kind: str, folder: Path) -> Path:
    """Write the random head of a kind, once; return its folder."""
    place = folder / kind
    if not place.exists():
        config, tensors = MAKERS[kind](torch.Generator().manual_seed(8))
        place.mkdir(parents=True)
        (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
        save_file(tensors, place / "model.safetensors")
    return place
