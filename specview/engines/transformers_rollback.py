"""Can a model's cache be rolled back? Decided from its configuration, without loading weights.

Speculative decoding needs to forget rejected tokens. Keys and values can be forgotten one by one; a
recurrent state cannot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# Layer types (transformers' configuration_utils.ALLOWED_LAYER_TYPES) whose whole state is keys and
# values: our cache keeps all of them, so that not even a sliding window loses what a rollback needs.
KEY_VALUE_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_STATELESS_LAYERS = frozenset({"mlp", "moe"})

_RECURRENT_TYPES = frozenset({
    "mamba", "mamba2", "falcon_mamba", "rwkv", "rwkv5", "rwkv6", "rwkv7", "xlstm", "recurrent_gemma", "jamba",
    "bamba", "zamba", "zamba2", "falcon_h1", "nemotron_h", "granitemoehybrid", "qwen3_next", "lfm2", "lfm2_moe",
    "minimax", "olmo_hybrid", "kimi_linear", "bailing_hybrid", "zaya", "plamo2",
})  # fmt: skip

_LAYER_WORDS = {
    "linear_attention": "linear-attention or recurrent layers",
    "mamba": "Mamba layers",
    "conv": "convolution layers",
    "hybrid": "layers with a recurrent part",
    "hybrid_sliding": "layers with a recurrent part",
    "indexed_attention": "sparse-attention layers with an index of their own",
    "compressed_sparse_attention": "compressed-attention layers",
    "heavily_compressed_attention": "compressed-attention layers",
}


def rollback_problem(config: Mapping[str, Any], model_class: type | None = None) -> str | None:
    """Say why a model's cache cannot be rolled back, or None where it can.

    config is config.json (or a configuration's to_dict); model_class, where known, is asked for
    transformers' own `_is_stateful` mark.
    """
    text = config.get("text_config")
    decoder = text if isinstance(text, Mapping) else config
    name = str(config.get("model_type", "this model"))
    if config.get("is_encoder_decoder"):
        return f"{name} is an encoder-decoder model, not a causal language model"
    if decoder.get("is_causal") is False:
        return f"{name} is set to look ahead (is_causal false), and a text is written from left to right"
    if getattr(model_class, "_is_stateful", False) or decoder.get("model_type") in _RECURRENT_TYPES:
        return f"{name} keeps a recurrent state, which cannot be rolled back after a rejection"
    layer_types = decoder.get("layer_types")
    if isinstance(layer_types, Iterable) and not isinstance(layer_types, str | bytes):
        for layer_type in layer_types:
            if layer_type not in KEY_VALUE_LAYERS | _STATELESS_LAYERS and layer_type != "attention":
                words = _LAYER_WORDS.get(str(layer_type), f"{layer_type} layers")
                return f"{name} has {words}, whose state cannot be rolled back after a rejection"
    return None
