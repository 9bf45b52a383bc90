"""A tiny GLM-4.5 with its next-token-prediction modules as a GGUF file: the weights of the tiny checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType

from tests.engines.gguf_tiny import add_bytes_vocabulary, finish, writer_of
from tests.heads.mtp_checkpoints import CONFIGS, HIDDEN, LAYERS, model_of, modules_of

NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_experts.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
}


def _layer(state: dict[str, torch.Tensor], number: int) -> dict[str, torch.Tensor]:
    found = {}
    for name, tensor in state.items():
        if name == "mlp.experts.gate_up_proj":
            gate, up = tensor.chunk(2, 1)
            found |= {f"blk.{number}.ffn_gate_exps.weight": gate, f"blk.{number}.ffn_up_exps.weight": up}
        else:
            found[f"blk.{number}.{NAMES[name]}"] = tensor
    return found


def glm_tensors(modules: int = 1) -> dict[str, torch.Tensor]:
    """The tensors of the tiny glm4_moe checkpoint, by GGUF's names."""
    state = model_of("glm4_moe").state_dict()
    tensors = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
        "output.weight": state["lm_head.weight"],
    }
    for number in range(LAYERS):
        at = f"model.layers.{number}."
        tensors |= _layer({k.removeprefix(at): v for k, v in state.items() if k.startswith(at)}, number)
    for index in range(modules):
        prefix, number = f"layers.{index}.", LAYERS + index
        given = modules_of("glm4_moe", count=modules).state_dict()
        own = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
        block = {name.removeprefix("block."): value for name, value in own.items() if name.startswith("block.")}
        at = f"blk.{number}.nextn"
        tensors |= {
            **_layer(block, number),
            f"{at}.eh_proj.weight": own["eh_proj.weight"],
            f"{at}.enorm.weight": own["enorm.weight"],
            f"{at}.hnorm.weight": own["hnorm.weight"],
            f"{at}.shared_head_norm.weight": own["norm.weight"],
        }
    return tensors


def write_glm(path: Path, modules: int = 1, said: int | None = None) -> Path:
    """Write the model in float32; its tokens are the 256 bytes and four special ones.

    said is the number of modules that the file names, where it is not the number that it has.
    """
    said = modules if said is None else said
    config = CONFIGS["glm4_moe"]
    sizes = (config["num_attention_heads"], config["num_key_value_heads"], config["rms_norm_eps"])
    writer = writer_of(path, "glm4moe", 256, HIDDEN, LAYERS + said, config["intermediate_size"], *sizes)
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"] // 2)
    writer.add_rope_freq_base(10000.0)
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(1.0)
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_nextn_predict_layers(said)
    add_bytes_vocabulary(writer)
    for name, tensor in glm_tensors(modules).items():
        writer.add_tensor(name, np.ascontiguousarray(tensor.float().numpy()), raw_dtype=GGMLQuantizationType.F32)
    finish(writer)
    return path
