"""GGUF weights as Hugging Face weights: names, shapes, the rotary permutation, the configuration.

llama.cpp stores query and key rows of "llama" files with each head's rotary halves interleaved;
Hugging Face keeps the halves apart, so the rows are put back. Names follow llama.cpp's
gguf-py/gguf/tensor_mapping.py. Values are dequantized by the `gguf` package, exactly.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from specview.engines.declared import of_gguf
from specview.engines.gguf_file import GgufFile, TensorInfo, dequantized
from specview.engines.transformers_llama_shape import NORMS, layer_products
from specview.models.gguf_tokenizer import special_ids, tokenizer_problem

MODEL_TYPES: Mapping[str, tuple[str, str]] = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
}
"""GGUF architectures that can be converted -> (model_type, class) in transformers."""

MAX_FLOAT32_PARAMETERS = 1_000_000_000
"""Larger models are written as bfloat16, half the size: float32 would not fit most machines."""

_ROWS_AT_ONCE = 8 << 20  # numbers dequantized in one go, so that Stop and progress come often
_OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_INNER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_IGNORED = {"rope_freqs.weight"}
_BLOCK = re.compile(r"blk\.(\d{1,4})\.([a-z_]+)\.(weight|bias)")


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One tensor to write: its Hugging Face name, source, and heads to un-permute (0 for none)."""

    name: str
    source: TensorInfo
    heads: int


def conversion_problem(gguf: GgufFile) -> str | None:
    """Say why this file cannot be dequantized for transformers, or None when it can."""
    if gguf.architecture not in MODEL_TYPES:
        return f"its architecture is {gguf.architecture!r} (these can be: {', '.join(MODEL_TYPES)})"
    if gguf.hyper("expert_count", 0):
        return "it is a mixture of experts"
    if gguf.metadata.get("split.count", 1) not in (0, 1):
        return "it is split over several files"
    for key in (*_NEEDED, *_OPTIONAL):
        value = gguf.hyper(key, None if key in _NEEDED else 1)
        if not isinstance(value, int) or value < 1:
            return f"its metadata has no usable {gguf.architecture}.{key}"
    try:
        _check_shapes(gguf)
        plan(gguf)
        _rope(gguf, head_dim(gguf))
    except _UnknownError as problem:
        return str(problem)
    return tokenizer_problem(gguf)


_NEEDED = ("block_count", "embedding_length", "feed_forward_length", "attention.head_count")
_OPTIONAL = ("attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count")
_ROPE_KEYS = frozenset({
    "rope.dimension_count", "rope.freq_base", "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.attn_factor", "rope.scaling.original_context_length", "rope.scaling.finetuned",
})  # fmt: skip
_WIDEST = 1 << 12  # of one attention head


def _check_shapes(gguf: GgufFile) -> None:
    """Raise _UnknownError where a tensor that the model needs is missing, or one has another shape than its sizes say."""
    hidden, inner = gguf.hyper("embedding_length"), gguf.hyper("feed_forward_length")
    (heads, kv_heads), width = _heads(gguf), head_dim(gguf)
    if width % 2 or not 0 < width <= _WIDEST or heads % kv_heads:
        raise _UnknownError(f"it has {heads} attention heads of {width} numbers, {kv_heads} of them with keys")
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None:
        raise _UnknownError("it has no token embedding")
    vocabulary = embedding.shape[0] if embedding.shape else 0
    if vocabulary < len(gguf.metadata.get("tokenizer.ggml.tokens", ())):
        raise _UnknownError("it has more tokens than rows of token embedding")
    sizes: dict[str, tuple[int, ...]] = {**layer_products(hidden, inner, heads, kv_heads, width), **dict.fromkeys(NORMS, (hidden,))}
    inside = {f"{name}.weight": sizes[theirs] for name, theirs in _INNER.items() if theirs in sizes}
    layers = gguf.hyper("block_count")
    if layers * len(inside) > len(gguf.tensors):
        raise _UnknownError(f"it has {len(gguf.tensors)} tensors, too few for {layers} layers")
    expected: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocabulary, hidden), "output_norm.weight": (hidden,)}
    expected |= {f"blk.{layer}.{name}": shape for layer in range(layers) for name, shape in inside.items()}
    missing = expected.keys() - gguf.tensors.keys()
    if missing:
        raise _UnknownError(f"it has no tensor {min(missing)}")
    if "output.weight" in gguf.tensors:
        expected["output.weight"] = (vocabulary, hidden)
    if "rope_freqs.weight" in gguf.tensors:
        expected["rope_freqs.weight"] = (width // 2,)
    for name, info in gguf.tensors.items():
        match = _BLOCK.fullmatch(name)
        if match and match[3] == "bias" and f"{match[2]}.weight" in inside:
            expected[name] = inside[f"{match[2]}.weight"][:1]
        elif match and match[2] in ("attn_q_norm", "attn_k_norm"):
            expected[name] = (width,)
        if match and not int(match[1]) < layers:
            raise _UnknownError(f"it has a tensor {name} beyond its {layers} layers")
        if name in expected and info.shape != expected[name]:
            shapes = (" x ".join(map(str, shape)) for shape in (info.shape, expected[name]))
            raise _UnknownError(f"its tensor {name} is {' instead of '.join(shapes)}")


class _UnknownError(Exception):
    """Something in the file has no equivalent."""


def head_dim(gguf: GgufFile) -> int:
    """Numbers per attention head."""
    given = gguf.hyper("attention.key_length")
    return int(given or gguf.hyper("embedding_length") // gguf.hyper("attention.head_count"))


def _heads(gguf: GgufFile) -> tuple[int, int]:
    """Attention heads, and those of them with keys."""
    heads = int(gguf.hyper("attention.head_count"))
    return heads, int(gguf.hyper("attention.head_count_kv") or heads)


def target_dtype(gguf: GgufFile) -> str:
    """Return "float32", or "bfloat16" for a model above MAX_FLOAT32_PARAMETERS."""
    return "float32" if gguf.parameters <= MAX_FLOAT32_PARAMETERS else "bfloat16"


def written_bytes(gguf: GgufFile) -> int:
    """Bytes of weights that `weight_pieces` gives."""
    return gguf.parameters * (4 if target_dtype(gguf) == "float32" else 2)


def plan(gguf: GgufFile) -> list[PlannedTensor]:
    """List the tensors to write, in file order; raises for one without an equivalent."""
    permuted = gguf.architecture == "llama"
    heads, kv_heads = _heads(gguf)
    planned = []
    for info in gguf.tensors.values():
        if info.name in _IGNORED:
            continue
        match = _BLOCK.fullmatch(info.name)
        if match and match[2] in _INNER:
            swap = {"attn_q": heads, "attn_k": kv_heads}.get(match[2], 0) if permuted else 0
            planned.append(PlannedTensor(f"model.layers.{match[1]}.{_INNER[match[2]]}.{match[3]}", info, swap))
            continue
        stem, _, kind = info.name.rpartition(".")
        if stem not in _OUTER or kind != "weight":
            raise _UnknownError(f"its tensor {info.name!r} has no place in transformers' model")
        planned.append(PlannedTensor(f"{_OUTER[stem]}.{kind}", info, 0))
    return planned


def hf_config(gguf: GgufFile) -> dict[str, Any]:
    """Return config.json for a convertible file, read from its metadata alone."""
    model_type, class_name = MODEL_TYPES[gguf.architecture]
    width = head_dim(gguf)
    heads, kv_heads = _heads(gguf)
    ids = special_ids(gguf)
    rope = _rope(gguf, width)
    config: dict[str, Any] = {
        "architectures": [class_name],
        "model_type": model_type,
        "hidden_size": int(gguf.hyper("embedding_length")),
        "intermediate_size": int(gguf.hyper("feed_forward_length")),
        "num_hidden_layers": int(gguf.hyper("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": width,
        "vocab_size": gguf.tensors["token_embd.weight"].shape[0],
        "max_position_embeddings": gguf.context_length or 2048,
        # the shortest decimal that gives the same float32: 1e-05, not 9.999999747378752e-06
        "rms_norm_eps": float(str(np.float32(gguf.hyper("attention.layer_norm_rms_epsilon", 1e-6)))),
        "rope_theta": rope["rope_theta"],
        "rope_parameters": rope,
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in gguf.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in gguf.tensors,
        "dtype": target_dtype(gguf),
    }
    for key, name in (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding")):
        config[key] = ids.get(name)
    return config


def generation_config(gguf: GgufFile) -> dict[str, Any]:
    """Return generation_config.json: the ids that begin, end and pad a text."""
    ids = special_ids(gguf)
    first = ids.get("eos")  # transformers pads with the first of several
    ends = sorted(of_gguf(gguf, adds_bos=False).eos_ids, key=lambda token: (token != first, token))
    found = {
        "bos_token_id": ids.get("bos"),
        "eos_token_id": ends if len(ends) > 1 else next(iter(ends), None),
        "pad_token_id": ids.get("padding"),
    }
    return {key: value for key, value in found.items() if value is not None}


def _rope(gguf: GgufFile, width: int) -> dict[str, Any]:
    """Return transformers' rope_parameters for what llama.cpp makes of the file (llama-model.cpp); raises where there are none."""
    prefix = f"{gguf.architecture}."
    keys = {key.removeprefix(prefix) for key in gguf.metadata if key.startswith(f"{prefix}rope.")}
    if keys - _ROPE_KEYS:
        raise _UnknownError(f"its rotary positions depend on {prefix}{min(keys - _ROPE_KEYS)}")
    turned = {gguf.hyper(key, width) for key in ("rope.dimension_count", "attention.value_length")}
    if turned != {width}:
        raise _UnknownError(f"not all {width} numbers of its attention heads are turned, or its values are of another width")
    if _number(gguf, "rope.scaling.attn_factor", 1.0) != 1.0:
        raise _UnknownError("its rotary positions scale attention")
    theta = _number(gguf, "rope.freq_base", 10000.0)
    kind = str(gguf.hyper("rope.scaling.type", "linear"))  # what no type means there
    if kind not in ("none", "linear"):
        raise _UnknownError(f"its rotary scaling is {kind!r}")
    factor = _number(gguf, "rope.scaling.factor", _number(gguf, "rope.scale_linear", 1.0)) if kind == "linear" else 1.0
    if "rope_freqs.weight" in gguf.tensors:
        if factor != 1.0:
            raise _UnknownError("its rotary positions are scaled twice")
        return _llama3_rope(gguf, width, theta)
    if factor != 1.0:
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    return {"rope_type": "default", "rope_theta": theta}


def _number(gguf: GgufFile, key: str, default: float) -> float:
    """A number above 0 of the metadata, as the shortest decimal of its float32."""
    value = gguf.hyper(key, default)
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise _UnknownError(f"its metadata has no usable {gguf.architecture}.{key}")
    return float(str(np.float32(value)))


def _llama3_rope(gguf: GgufFile, width: int, theta: float) -> dict[str, Any]:
    """Recover Llama 3's scaling from the per-frequency divisors that llama.cpp's converter stored."""
    stored = dequantized(gguf, gguf.tensors["rope_freqs.weight"]).reshape(-1)
    factor = float(stored.max())
    if not 0 < stored.min() <= factor < math.inf:
        raise _UnknownError("its rotary frequencies are divided by numbers that are none above 0")
    parameters = {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    wavelengths = 2 * math.pi * theta ** (np.arange(0, width, 2) / width)
    turns = 8192 / wavelengths
    smooth = np.clip((turns - 1.0) / 3.0, 0.0, 1.0)
    divisors = 1 / ((1 - smooth) / factor + smooth)
    if not np.allclose(stored, divisors, rtol=1e-3):
        raise _UnknownError("its rotary frequencies follow no known scaling")
    return parameters


def halves_apart(values: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's rotary permutation of query or key rows [heads * head_dim, ...].

    Within a head, llama.cpp's row 2i + j is Hugging Face's row j * head_dim / 2 + i.
    """
    pairs = values.shape[0] // heads // 2
    split = values.reshape(heads, pairs, 2, *values.shape[1:])
    return split.swapaxes(1, 2).reshape(values.shape)


def _parts(gguf: GgufFile, tensor: PlannedTensor) -> Iterator[np.ndarray]:
    """The tensor's values as float32, in order, in pieces."""
    info = tensor.source
    if tensor.heads or len(info.shape) < 2:
        values = dequantized(gguf, info)
        yield halves_apart(values, tensor.heads) if tensor.heads else values
        return
    step = max(1, _ROWS_AT_ONCE // max(1, math.prod(info.shape[1:])))
    for first in range(0, info.shape[0], step):
        yield dequantized(gguf, info, first, min(first + step, info.shape[0]))


def _bfloat16(values: np.ndarray) -> np.ndarray:
    """Round float32 to bfloat16 (to nearest, ties to even), as uint16."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def weight_pieces(gguf: GgufFile) -> Iterator[bytes | memoryview]:
    """A safetensors file of all weights, piece by piece, never all in memory.

    Format: the safetensors README: header length, JSON header, raw little-endian data.
    """
    wide = target_dtype(gguf) == "float32"
    tensors = plan(gguf)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in tensors:
        size = tensor.source.elements * (4 if wide else 2)
        header[tensor.name] = {
            "dtype": "F32" if wide else "BF16",
            "shape": list(tensor.source.shape),
            "data_offsets": [at, at + size],
        }
        at += size
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    yield len(encoded).to_bytes(8, "little") + encoded
    for tensor in tensors:
        for part in _parts(gguf, tensor):
            values = np.ascontiguousarray(part, dtype="<f4") if wide else _bfloat16(part)
            yield values.reshape(-1).view(np.uint8).data
