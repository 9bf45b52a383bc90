"""Which model folders our own Llama forward computes: sizes, tensors and rotary types that it knows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specview.engines.transformers_weights import StoredTensor

_TYPES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_FLOATS = {"F32", "F16", "BF16"}


@dataclass(frozen=True, slots=True)
class LlamaShape:
    """Sizes of a Llama-shaped model."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    width: int  # of a head
    vocab: int
    eps: float
    tied: bool
    max_positions: int

    @property
    def group(self) -> int:
        """Query heads per key-value head."""
        return self.heads // self.kv_heads


def supports(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> bool:
    """Whether this forward computes the model that a folder holds: every detail must be known."""
    try:
        shape = read_shape(config)
        expected = _expected_tensors(config, shape)
        rotary_frequencies(config, shape)
    except (KeyError, TypeError, ValueError):
        return False
    if config.get("model_type") not in _TYPES or config.get("quantization_config") is not None:
        return False
    if (config.get("architectures") or [_TYPES[config["model_type"]]]) != [_TYPES[config["model_type"]]]:
        return False
    if (
        config.get("hidden_act", "silu") != "silu"
        or config.get("pretraining_tp", 1) != 1
        or config.get("auto_map")
    ):
        return False
    if _slides(config) or any(layer != "full_attention" for layer in config.get("layer_types") or ()):
        return False
    ignored = {"lm_head.weight"} if shape.tied else set()
    names = {name for name in tensors if not name.endswith("rotary_emb.inv_freq")} - ignored
    return names == set(expected) and all(
        tensors[name].shape == size and tensors[name].dtype in _FLOATS for name, size in expected.items()
    )


def _slides(config: Mapping[str, Any]) -> bool:
    window = config.get("sliding_window")
    if config["model_type"] == "qwen2":
        return bool(config.get("use_sliding_window", False))
    return config["model_type"] == "mistral" and ("sliding_window" not in config or window is not None)


def read_shape(config: Mapping[str, Any]) -> LlamaShape:
    """Return the sizes that config.json gives, with the defaults of transformers' configuration.

    Raises KeyError, TypeError or ValueError where they are missing or do not fit together.
    """
    heads = int(config["num_attention_heads"])
    hidden = int(config["hidden_size"])
    shape = LlamaShape(
        layers=int(config["num_hidden_layers"]),
        hidden=hidden,
        intermediate=int(config["intermediate_size"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        width=int(config.get("head_dim") or hidden // heads),
        vocab=int(config["vocab_size"]),
        eps=float(config.get("rms_norm_eps", 1e-6)),
        tied=bool(config.get("tie_word_embeddings", False)),
        max_positions=int(config["max_position_embeddings"]),
    )
    if shape.heads % shape.kv_heads or shape.width % 2:
        raise ValueError("head counts do not divide")
    return shape


def _biases(config: Mapping[str, Any]) -> tuple[bool, bool, bool]:
    """Whether the q, k, v products, the output product and the MLP have biases."""
    if config["model_type"] == "qwen2":
        return True, False, False
    if config["model_type"] == "mistral":
        return False, False, False
    attention = bool(config.get("attention_bias", False))
    return attention, attention, bool(config.get("mlp_bias", False))


def _expected_tensors(config: Mapping[str, Any], shape: LlamaShape) -> dict[str, tuple[int, ...]]:
    qkv_bias, out_bias, mlp_bias = _biases(config)
    names: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (shape.vocab, shape.hidden),
        "model.norm.weight": (shape.hidden,),
    }
    if not shape.tied:
        names["lm_head.weight"] = (shape.vocab, shape.hidden)
    products = {
        "self_attn.q_proj": (shape.heads * shape.width, shape.hidden, qkv_bias),
        "self_attn.k_proj": (shape.kv_heads * shape.width, shape.hidden, qkv_bias),
        "self_attn.v_proj": (shape.kv_heads * shape.width, shape.hidden, qkv_bias),
        "self_attn.o_proj": (shape.hidden, shape.heads * shape.width, out_bias),
        "mlp.gate_proj": (shape.intermediate, shape.hidden, mlp_bias),
        "mlp.up_proj": (shape.intermediate, shape.hidden, mlp_bias),
        "mlp.down_proj": (shape.hidden, shape.intermediate, mlp_bias),
    }
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        names[prefix + "input_layernorm.weight"] = (shape.hidden,)
        names[prefix + "post_attention_layernorm.weight"] = (shape.hidden,)
        for name, (rows, columns, bias) in products.items():
            names[prefix + name + ".weight"] = (rows, columns)
            if bias:
                names[prefix + name + ".bias"] = (rows,)
    return names


def rotary_frequencies(config: Mapping[str, Any], shape: LlamaShape) -> list[float]:
    """The rotary frequencies [width / 2] (Su et al. 2021, arXiv 2104.09864), scaled as the type says.

    Raises ValueError for a type that is not known here.
    """
    new = config.get("rope_parameters")
    parameters: dict[str, Any] = dict(new if isinstance(new, Mapping) else config.get("rope_scaling") or {})
    base = float(parameters.get("rope_theta", config.get("rope_theta", 10000.0)))
    frequencies = [base ** (-index / shape.width) for index in range(0, shape.width, 2)]
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind == "default":
        return frequencies
    if kind == "linear":
        return [frequency / float(parameters["factor"]) for frequency in frequencies]
    if kind == "llama3":
        return [_llama3(frequency, parameters) for frequency in frequencies]
    raise ValueError(f"rotary type {kind}")


def _llama3(frequency: float, parameters: Mapping[str, Any]) -> float:
    """Llama 3.1's scaling: slow rotations divided by `factor`, fast ones kept, a blend between."""
    factor, low, high = (float(parameters[key]) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = float(parameters["original_max_position_embeddings"]) * frequency / (2 * math.pi)
    blend = min(1.0, max(0.0, (turns - low) / (high - low)))
    return frequency * (blend + (1 - blend) / factor)
