"""A model folder's configuration as transformers reads it, what it says of folders that it cannot read, and rollback."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specview.engines.transformers_weights import read_config
from specview.errors import SpecviewError, UsageError


def resolved_config(folder: Path, trust_remote_code: bool = False) -> dict[str, Any]:
    """Return what transformers' own configuration class makes of config.json: defaults, old names, precedence.

    Raises SpecviewError, one line, where there is no such file or transformers refuses it.
    """
    read_config(folder)  # what is missing or damaged is said more clearly there
    from transformers import AutoConfig
    from transformers.utils import logging

    # What matters is raised; standard error is for the one line that says it.
    logging.set_verbosity_error()
    try:
        config = AutoConfig.from_pretrained(
            str(folder), trust_remote_code=trust_remote_code, local_files_only=True
        )
        found: dict[str, Any] = config.to_dict()
    except Exception as error:  # transformers raises OSError, ValueError, KeyError, ImportError, ... alike
        raise load_error(folder, error) from error
    return found


def resolved_llama(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what transformers makes of a Llama configuration. Raises ValueError for another and for what it refuses."""
    from transformers import LlamaConfig

    if config.get("model_type") != "llama":
        raise ValueError(f"this is no Llama model but {config.get('model_type')!r}")
    try:
        found: dict[str, Any] = LlamaConfig.from_dict(dict(config)).to_dict()
    except Exception as error:
        raise ValueError(first_line(error)) from error
    return found


def code_error(what: str) -> UsageError:
    """A model or tokenizer that runs by code of its own, which was not allowed."""
    return UsageError(
        f"{what} needs Python code from its own folder to run.",
        "Tick 'trust remote code' (--trust-remote-code) if you trust its author.",
    )


def load_error(folder: Path, error: Exception) -> SpecviewError:
    """The one line for what transformers raised on a folder."""
    line = first_line(error)
    kind = str(read_config(folder).get("model_type", "unknown"))
    lowered = line.lower()
    if "does not recognize this architecture" in lowered or "unrecognized model" in lowered:
        return SpecviewError(
            f"This transformers version does not know the architecture {kind!r} of {folder.name}.",
            "Update transformers, or use a GGUF version with llama.cpp.",
        )
    if "unrecognized configuration class" in lowered:
        return SpecviewError(
            f"{folder.name} ({kind}) is no causal language model.", "Choose a text-generation model."
        )
    if "trust_remote_code" in lowered:
        return code_error(folder.name)
    return SpecviewError(
        f"{folder.name} cannot be loaded ({line}).", "Check the folder, or choose another model."
    )


def first_line(error: Exception) -> str:
    """What an error says, in one line."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    # "Validation error for field 'x':" says nothing without the line after it.
    said = " ".join(lines[:2]) if lines and lines[0].endswith(":") else lines[0] if lines else type(error).__name__
    return said.rstrip(".")


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


def decoder_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The configuration of the language model in a configuration: its text_config, or all of it."""
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else config


def rollback_problem(config: Mapping[str, Any], model_class: type | None = None) -> str | None:
    """Say why a model's cache cannot be rolled back, told from its configuration, or None where it can.

    Speculative decoding needs to forget rejected tokens. Keys and values can be forgotten one by one; a recurrent state
    cannot. config is config.json (or a configuration's to_dict); model_class, where known, is asked for
    transformers' own `_is_stateful` mark.
    """
    decoder = decoder_part(config)
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
