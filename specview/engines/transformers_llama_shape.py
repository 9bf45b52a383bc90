"""Which model folders our own Llama forward computes: what it reads of a configuration, and the tensors it expects.

The configuration is the one that transformers makes of config.json (transformers_config), never the file's own words.
A folder is computed here only where every field of it is known to be read here or to change no logits; where one is
not, transformers' modules compute it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specview.engines.transformers_weights import StoredTensor

_TYPES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_FLOATS = {"F32", "F16", "BF16"}
_READ = frozenset({
    "model_type", "architectures", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "tie_word_embeddings",
    "rope_parameters", "attention_bias", "mlp_bias", "sliding_window", "use_sliding_window", "max_window_layers", "layer_types",
})  # fmt: skip
"""Fields that decide what is computed, each looked at here."""
_WITHOUT_EFFECT = frozenset({
    # transformers' own: how it was made, trained, labelled and called
    "transformers_version", "_name_or_path", "name_or_path", "dtype", "torch_dtype", "initializer_range", "use_cache",
    "attention_dropout", "max_position_embeddings", "output_hidden_states", "output_attentions", "return_dict",
    "chunk_size_feed_forward", "id2label", "label2id", "num_labels", "problem_type", "pretraining_tp", "torchscript",
    "is_encoder_decoder", "is_decoder", "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id",
    "decoder_start_token_id", "tokenizer_class", "task_specific_params", "finetuning_task", "prefix", "generation_config",
    "_attn_implementation_autoset", "attn_implementation", "_flash_attn_2_enabled", "gradient_checkpointing",
    "attention_probs_dropout_prob", "hidden_dropout_prob", "resid_pdrop", "embd_pdrop", "attn_pdrop", "classifier_dropout",
    # written by programs that train and convert; transformers does not know of them
    "is_llama_config", "rope_interleaved", "transformers.js_config", "unsloth_version", "unsloth_fixed", "model_name",
    "max_sequence_length", "model_max_length", "max_seq_len", "seq_length", "use_flash_attn", "use_mrope", "rope_theta",
    "neftune_noise_alpha", "tokenizer_model_max_length", "tokenizer_padding_side", "vocab_size_original", "n_ctx",
    "_unsloth_version", "quantization", "license", "pad_token", "bos_token", "eos_token", "unk_token", "auto_class",
})  # fmt: skip
"""Fields that change no logits."""
SCALINGS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
"""Kinds of rotary positions, and the numbers that each is given."""
UNTIED = (
    "config.json ties the output head to the embedding, and the weights hold another head: "
    "that one is used, as in transformers."
)
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


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

    @property
    def group(self) -> int:
        """Query heads per key-value head."""
        return self.heads // self.kv_heads


def own_forward_problem(config: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> str | None:
    """Say what of a folder this forward does not compute, or None where it computes all of it.

    config is what transformers reads (transformers_config.resolved_config).
    """
    problem = config_problem(config)
    if problem is not None:
        return problem
    shape = read_shape(config)
    expected = _expected_tensors(config, shape)
    names = {name for name in tensors if not name.endswith("rotary_emb.inv_freq")}
    if shape.tied:
        expected |= dict.fromkeys(names & {HEAD}, expected[EMBEDDING])
    if names != set(expected):
        return "its weights have other names"
    if any(tensors[name].shape != size or tensors[name].dtype not in _FLOATS for name, size in expected.items()):
        return "its weights have other sizes or types"
    return None


def config_problem(config: Mapping[str, Any]) -> str | None:
    """Say what of a resolved configuration is not computed here, or None."""
    kind = config.get("model_type")
    if kind not in _TYPES:
        return f"its type is {kind}"
    if (config.get("architectures") or [_TYPES[kind]]) != [_TYPES[kind]]:
        return "its architecture is another"
    unknown = [key for key in config if key not in _READ | _WITHOUT_EFFECT and config[key] is not None]
    if unknown:
        return f"its config.json sets {unknown[0]}"
    if config.get("hidden_act") not in ("silu", "swish"):
        return "its config.json sets another hidden_act"
    if config.get("sliding_window") is not None:
        return "its config.json sets sliding_window"
    if any(layer != "full_attention" for layer in config.get("layer_types") or ()):
        return "its config.json sets layer_types"
    try:
        rotary_frequencies(config, read_shape(config))
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        return f"its config.json sets {error.args[0] if type(error) is ValueError else 'unusual sizes'}"
    return None


def read_shape(config: Mapping[str, Any]) -> LlamaShape:
    """Return the sizes that a resolved configuration gives.

    Raises KeyError, TypeError or ValueError where they are missing or do not fit together.
    """
    heads = config["num_attention_heads"]
    # Qwen2's class has no head_dim of its own, and its modules then divide.
    width = config["head_dim"] if "head_dim" in config else config["hidden_size"] // heads
    shape = LlamaShape(
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        heads=heads,
        kv_heads=config["num_key_value_heads"],
        width=width,
        vocab=config["vocab_size"],
        eps=float(config["rms_norm_eps"]),
        tied=bool(config["tie_word_embeddings"]),
    )
    sizes = (shape.layers, shape.hidden, shape.intermediate, heads, shape.kv_heads, width, shape.vocab)
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise ValueError("unusual sizes")
    if heads % shape.kv_heads or width % 2 or shape.eps < 0:
        raise ValueError("unusual sizes")
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
        EMBEDDING: (shape.vocab, shape.hidden),
        "model.norm.weight": (shape.hidden,),
    }
    if not shape.tied:
        names[HEAD] = (shape.vocab, shape.hidden)
    products = layer_products(shape.hidden, shape.intermediate, shape.heads, shape.kv_heads, shape.width)
    biased = (*QKV,) * qkv_bias + ("self_attn.o_proj",) * out_bias + ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj") * mlp_bias
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        names |= {f"{prefix}{name}.weight": (shape.hidden,) for name in NORMS}
        names |= {f"{prefix}{name}.weight": size for name, size in products.items()}
        names |= {f"{prefix}{name}.bias": products[name][:1] for name in biased}
    return names


QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
NORMS = ("input_layernorm", "post_attention_layernorm")


def layer_products(
    hidden: int, intermediate: int, heads: int, kv_heads: int, width: int, inputs: int | None = None
) -> dict[str, tuple[int, int]]:
    """Sizes [out, in] of the products of a Llama layer, by name; inputs: what q, k and v read, where not `hidden`."""
    rows = dict(zip(QKV, (heads * width, kv_heads * width, kv_heads * width), strict=True))
    return {
        **{name: (out, inputs or hidden) for name, out in rows.items()},
        "self_attn.o_proj": (hidden, heads * width),
        "mlp.gate_proj": (intermediate, hidden),
        "mlp.up_proj": (intermediate, hidden),
        "mlp.down_proj": (hidden, intermediate),
    }


def rotary_frequencies(config: Mapping[str, Any], shape: LlamaShape) -> list[float]:
    """The rotary frequencies [width / 2] (Su et al. 2021, arXiv 2104.09864), scaled as the type says.

    Raises ValueError for what is not known here.
    """
    parameters: Mapping[str, Any] = config["rope_parameters"]
    kind = parameters["rope_type"]
    known = {"rope_type", "type", "rope_theta", *SCALINGS.get(kind, ())}
    if kind not in SCALINGS or not known >= set(parameters):
        raise ValueError(f"rope_parameters of type {kind}")
    numbers = {key: parameters[key] for key in ("rope_theta", *SCALINGS[kind])}
    if not all(isinstance(value, int | float) and 0 < value < math.inf for value in numbers.values()):
        raise ValueError("unusual rope_parameters")
    return scaled_frequencies(kind, shape.width, numbers)


def scaled_frequencies(kind: str, width: int, numbers: Mapping[str, float]) -> list[float]:
    """The rotary frequencies [width / 2] of a kind in SCALINGS; raises ValueError where low_freq_factor is not the lower."""
    base = float(numbers["rope_theta"])
    frequencies = [base ** (-index / width) for index in range(0, width, 2)]
    if kind == "linear":
        return [frequency / numbers["factor"] for frequency in frequencies]
    if kind == "llama3":
        return [_llama3(frequency, numbers) for frequency in frequencies]
    return frequencies


def _llama3(frequency: float, numbers: Mapping[str, float]) -> float:
    """Llama 3.1's scaling: slow rotations divided by `factor`, fast ones kept, a blend between."""
    factor, low, high = (numbers[key] for key in ("factor", "low_freq_factor", "high_freq_factor"))
    if low >= high:
        raise ValueError("unusual rope_parameters")
    turns = numbers["original_max_position_embeddings"] * frequency / (2 * math.pi)
    blend = min(1.0, max(0.0, (turns - low) / (high - low)))
    return frequency * (blend + (1 - blend) / factor)
