"""GGUF files written byte by byte, so that anything can be wrong with them: a tiny Llama, and what is to be changed in it."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.engines.gguf_tiny import byte_level_alphabet

U32, I32, F32, BOOL, TEXT, LIST, U64 = 4, 5, 6, 7, 8, 9, 10
_SCALARS = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q", 0: "<B"}
EMBD, HEADS, KV_HEADS, FFN, LAYERS, WIDTH = 64, 4, 2, 128, 2, 16
VOCAB = 260
F32_TENSOR, Q4_1_TENSOR, F16_TENSOR = 0, 3, 1

Value = tuple[int, Any]
"""(type, value); of a list (LIST, (item type, values))."""
Tensor = tuple[Sequence[int], int]
"""(shape in row-major order, type)."""


def pairs(**changes: Value | None) -> dict[str, Value]:
    """The metadata of the tiny Llama; changes by key, "__" for a dot, None to leave one out."""
    found: dict[str, Value] = {
        "general.architecture": (TEXT, "llama"),
        "llama.context_length": (U32, 256), "llama.embedding_length": (U32, EMBD), "llama.block_count": (U32, LAYERS),
        "llama.feed_forward_length": (U32, FFN), "llama.attention.head_count": (U32, HEADS),
        "llama.attention.head_count_kv": (U32, KV_HEADS), "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
        "llama.rope.dimension_count": (U32, WIDTH), "llama.vocab_size": (U32, VOCAB),
        "tokenizer.ggml.model": (TEXT, "gpt2"), "tokenizer.ggml.pre": (TEXT, "smollm"),
        "tokenizer.ggml.tokens": (LIST, (TEXT, [*byte_level_alphabet(), "<bos>", "<eos>", "ab", "<b>"])),
        "tokenizer.ggml.token_type": (LIST, (I32, [1] * 256 + [3, 3, 1, 3])),
        "tokenizer.ggml.merges": (LIST, (TEXT, ["a b"])),
        "tokenizer.ggml.bos_token_id": (U32, 256), "tokenizer.ggml.eos_token_id": (U32, 257),
    }  # fmt: skip
    for name, change in changes.items():
        key = name.replace("__", ".")
        if change is None:
            found.pop(key)
        else:
            found[key] = change
    return found


def tensors(**changes: Tensor | None) -> dict[str, Tensor]:
    """The tensors of the tiny Llama; changes as in `pairs`."""
    kv = KV_HEADS * WIDTH
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, EMBD), "output_norm.weight": (EMBD,)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.{name}.weight": shape
            for name, shape in {
                "attn_norm": (EMBD,), "attn_q": (EMBD, EMBD), "attn_k": (kv, EMBD), "attn_v": (kv, EMBD),
                "attn_output": (EMBD, EMBD), "ffn_norm": (EMBD,), "ffn_gate": (FFN, EMBD), "ffn_up": (FFN, EMBD),
                "ffn_down": (EMBD, FFN),
            }.items()
        }  # fmt: skip
    found: dict[str, Tensor] = {name: (shape, F32_TENSOR) for name, shape in shapes.items()}
    for name, change in changes.items():
        key = name.replace("__", ".")
        if change is None:
            found.pop(key)
        else:
            found[key] = change
    return found


def text(value: str | bytes) -> bytes:
    """A string as GGUF writes it."""
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value_bytes(kind: int, value: Any) -> bytes:
    """A value without the type in front of it."""
    if kind == TEXT:
        return text(value)
    if kind == LIST:
        item, values = value
        return struct.pack("<IQ", item, len(values)) + b"".join(value_bytes(item, one) for one in values)
    return struct.pack(_SCALARS[kind], value)


@dataclass
class Crafted:
    """A file to be written; alignment is what the data is laid out by, whatever the metadata says."""

    metadata: Mapping[str, Value] | None = None
    tensors: Mapping[str, Tensor] | None = None
    alignment: int = 32
    version: int = 3
    tensor_count: int | None = None
    pair_count: int | None = None
    more_pairs: bytes = b""
    more_tensors: bytes = b""
    offsets: Callable[[str, int], int] = lambda name, offset: offset
    fill: Callable[[str, np.ndarray], np.ndarray] = lambda name, values: values
    data: bool = True
    trailing: bytes = b""

    def bytes(self) -> bytes:
        """The file's content."""
        metadata = pairs() if self.metadata is None else self.metadata
        table = tensors() if self.tensors is None else self.tensors
        head = b"".join(text(key) + struct.pack("<I", kind) + value_bytes(kind, one) for key, (kind, one) in metadata.items())
        infos, parts, at = b"", [], 0
        rng = np.random.default_rng(0)
        for name, (shape, kind) in table.items():
            count = math.prod(shape)
            size = {F32_TENSOR: 4 * count, F16_TENSOR: 2 * count, Q4_1_TENSOR: count // 32 * 20}.get(kind, 4 * count)
            infos += text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
            infos += struct.pack("<IQ", kind, self.offsets(name, at))
            if self.data:
                scale = 1 / math.sqrt(shape[-1] or 1) if len(shape) > 1 else 0.1
                values = (rng.standard_normal(count) * scale + (len(shape) == 1)).astype(np.float32)
                raw = self.fill(name, values).astype(np.float16 if kind == F16_TENSOR else np.float32).tobytes()[:size]
                parts.append(raw.ljust(-(-size // self.alignment) * self.alignment, b"\0"))
            at += -(-size // self.alignment) * self.alignment
        count, many = len(metadata), len(table)
        start = struct.pack(
            "<4sIQQ", b"GGUF", self.version, many if self.tensor_count is None else self.tensor_count,
            count if self.pair_count is None else self.pair_count,
        )  # fmt: skip
        header = start + head + self.more_pairs + infos + self.more_tensors
        return header + bytes(-len(header) % self.alignment) + b"".join(parts) + self.trailing
