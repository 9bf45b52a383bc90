"""Tiny random targets with next-token-prediction modules, as published checkpoints name their tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specview.heads.mtp import MtpModules, MtpShape
from tests.engines.transformers_tiny import VOCAB, save_model

HIDDEN, LAYERS = 32, 2
_BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": 256,
    "eos_token_id": None,
    "pad_token_id": None,
    "initializer_range": 0.3,
    "rms_norm_eps": 1e-5,
}
_EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
_DEEPSEEK = {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1}
_QWEN = {"num_experts": 4, "shared_expert_intermediate_size": 16, "layer_types": ["full_attention"] * LAYERS}
CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek_v3": {
        **_BASE, **_EXPERTS, **_DEEPSEEK, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 24,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12, "num_nextn_predict_layers": 2,
    },
    "glm4_moe": {**_BASE, **_EXPERTS, **_DEEPSEEK, "n_group": 1, "num_nextn_predict_layers": 1},
    "qwen3_next": {**_BASE, **_EXPERTS, **_QWEN},
    "qwen3_5_text": {**_BASE, "layer_types": ["full_attention"] * LAYERS, "mtp_num_hidden_layers": 1},
    "mimo": {**_BASE, "num_nextn_predict_layers": 1},
}  # fmt: skip
LAYOUTS = {
    "deepseek_v3": "deepseek", "glm4_moe": "deepseek", "qwen3_next": "qwen", "qwen3_5_text": "qwen", "mimo": "mimo",
}  # fmt: skip
MIMO_CODE = """
from transformers import Qwen2Config, Qwen2ForCausalLM

class MiMoConfig(Qwen2Config):
    model_type = "mimo"

class MiMoForCausalLM(Qwen2ForCausalLM):
    config_class = MiMoConfig
    _keys_to_ignore_on_load_unexpected = ["model.mtp_layers"]
"""


def config_of(kind: str) -> dict[str, Any]:
    """config.json of a target."""
    return {**CONFIGS[kind], "model_type": kind}


def modules_of(kind: str, seed: int = 5, count: int = 0) -> MtpModules:
    """Random modules of a target: as many as its config says, or `count`."""
    count = count or CONFIGS[kind].get("num_nextn_predict_layers", 1)
    torch.manual_seed(seed)
    module = MtpModules(MtpShape(HIDDEN, count, LAYOUTS[kind], 1e-5, config_of(kind)))
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape)
        parameter.data = parameter.data + 0.2 * noise if "norm" in name else 0.3 * noise
    for name, buffer in module.named_buffers():
        if "correction_bias" in name:
            buffer.copy_(0.1 * torch.randn(buffer.shape))
    return module.eval().requires_grad_(False)


def model_of(kind: str, seed: int = 3) -> Any:
    """A random target, transformers' own class; MiMo-7B's is Qwen2's."""
    import transformers as hf

    torch.manual_seed(seed)
    config = hf.CONFIG_MAPPING["qwen2" if kind == "mimo" else kind](**CONFIGS[kind])
    return hf.AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)


def published(module: MtpModules) -> dict[str, Tensor]:
    """The modules' tensors by their published names, an expert's weights apart."""
    found: dict[str, Tensor] = {}
    for name, tensor in module.state_dict().items():
        _, number, tail = name.split(".", 2)
        for place, part, value in _experts_apart(tail, tensor):
            found[_published_name(module.shape.layout, int(number), place + part)] = value.contiguous()
    return found


def _experts_apart(tail: str, tensor: Tensor) -> list[tuple[str, str, Tensor]]:
    place, _, kind = tail.rpartition(".experts.")
    if kind == "gate_up_proj":
        return [
            (place, f".experts.{index}.{part}_proj.weight", half)
            for index, both in enumerate(tensor)
            for part, half in zip(("gate", "up"), both.chunk(2), strict=True)
        ]
    if kind == "down_proj":
        return [(place, f".experts.{index}.down_proj.weight", one) for index, one in enumerate(tensor)]
    return [(tail, "", tensor)]


def _published_name(layout: str, number: int, tail: str) -> str:
    part, _, rest = tail.partition(".")
    if layout == "deepseek":
        own = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "norm": "shared_head.norm"}
        return f"model.layers.{LAYERS + number}.{rest if part == 'block' else f'{own[part]}.{rest}'}"
    if layout == "qwen":
        own = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc", "norm": "norm"}
        return f"mtp.layers.{number}.{rest}" if part == "block" else f"mtp.{own[part]}.{rest}"
    own = {
        "enorm": "token_layernorm", "hnorm": "hidden_layernorm", "eh_proj": "input_proj", "norm": "final_layernorm",
    }  # fmt: skip
    return f"model.mtp_layers.{number}.{rest if part == 'block' else f'{own[part]}.{rest}'}"


def save_target(folder: Path, kind: str) -> Path:
    """Write a random target with its modules, as one published checkpoint."""
    from safetensors.torch import load_file, save_file

    save_model(folder, model_of(kind))
    tensors = load_file(folder / "model.safetensors")
    added = published(modules_of(kind))
    if LAYOUTS[kind] == "deepseek":  # copies of the target's own ship with each module
        for number in range(CONFIGS[kind]["num_nextn_predict_layers"]):
            place = f"model.layers.{LAYERS + number}"
            added[f"{place}.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
            added[f"{place}.shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file({**tensors, **added}, folder / "model.safetensors", metadata={"format": "pt"})
    if kind == "mimo":
        config = json.loads((folder / "config.json").read_text())
        code = {"AutoConfig": "modeling_mimo.MiMoConfig", "AutoModelForCausalLM": "modeling_mimo.MiMoForCausalLM"}
        changed = {"model_type": "mimo", "architectures": ["MiMoForCausalLM"], "auto_map": code}
        (folder / "config.json").write_text(json.dumps({**config, **changed, "num_nextn_predict_layers": 1}))
        (folder / "modeling_mimo.py").write_text(MIMO_CODE)
    return folder
