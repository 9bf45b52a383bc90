"""Tiny random models as GGUF files, for tests of llama.cpp and of what reads its files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType

VOCAB = 260
EMBD, HEADS, KV_HEADS, FFN, LAYERS = 64, 4, 2, 128, 2
SIZES = (
    "context_length", "embedding_length", "block_count", "feed_forward_length", "head_count", "head_count_kv", "layer_norm_rms_eps",
)  # fmt: skip


def byte_level_alphabet() -> list[str]:
    """GPT-2's printable stand-in for every byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (chr(256 + n) for n in range(256))
    return [chr(byte) if byte in plain else next(others) for byte in range(256)]


def writer_of(path: Path, architecture: str, *sizes: Any) -> GGUFWriter:
    """A writer with the values of SIZES."""
    writer = GGUFWriter(path, architecture)
    for name, value in zip(SIZES, sizes, strict=True):
        getattr(writer, f"add_{name}")(value)
    return writer


def add_bytes_vocabulary(writer: GGUFWriter) -> None:
    """Tokens for the 256 bytes, and four special ones."""
    writer.add_vocab_size(VOCAB)
    writer.add_file_type(0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*byte_level_alphabet(), "<bos>", "<eos>", "<|im_start|>", "<|im_end|>"])
    writer.add_token_types([TokenType.NORMAL] * 256 + [TokenType.CONTROL] * 4)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)


def finish(writer: GGUFWriter) -> None:
    """Write the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_gguf(path: Path, architecture: str = "llama", tensors: dict[str, tuple[int, ...]] | None = None, *, seed: int = 0,
               context: int = 512, keys: Callable[[GGUFWriter], Any] = lambda writer: None) -> Path:  # fmt: skip
    """A random model, of these tensors or a small Llama, whose tokens are the 256 bytes and four special ones."""
    writer = writer_of(path, architecture, context, EMBD, LAYERS, FFN, HEADS, KV_HEADS, 1e-5)
    add_bytes_vocabulary(writer)
    writer.add_add_bos_token(True)
    keys(writer)
    rng = np.random.default_rng(seed)
    for name, shape in (llama_tensors(output=True) if tensors is None else tensors).items():
        scale = 1.0 / math.sqrt(shape[-1]) if len(shape) > 1 else 0.1
        value = rng.normal(0 if len(shape) > 1 else 1, scale, size=shape).astype(np.float32)
        writer.add_tensor(name, value * (20 if name.startswith("output.") else 1), raw_dtype=GGMLQuantizationType.F32)
    finish(writer)
    return path


def llama_tensors(extra: Sequence[str] = (), output: bool = False) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a small Llama's tensors; extra names norms per layer."""
    half = EMBD * KV_HEADS // HEADS
    inside = {
        "attn_norm": (EMBD,), "attn_q": (EMBD, EMBD), "attn_k": (half, EMBD), "attn_v": (half, EMBD),
        "attn_output": (EMBD, EMBD), "ffn_norm": (EMBD,), "ffn_gate": (FFN, EMBD), "ffn_up": (FFN, EMBD),
        "ffn_down": (EMBD, FFN), **dict.fromkeys(extra, (EMBD,)),
    }  # fmt: skip
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, EMBD), "output_norm.weight": (EMBD,)}
    for layer in range(LAYERS):
        tensors |= {f"blk.{layer}.{name}.weight": shape for name, shape in inside.items()}
    return tensors | ({"output.weight": (VOCAB, EMBD)} if output else {})


def gemma2(path: Path) -> Path:
    """A model that scales its embedding, caps its logits, has a window, and whose layers' inputs llama.cpp does not keep."""

    def keys(writer: GGUFWriter) -> None:
        writer.add_sliding_window(16)
        writer.add_final_logit_softcapping(3.0)
        writer.add_attn_logit_softcapping(50.0)

    return write_gguf(path, "gemma2", llama_tensors(["post_attention_norm", "post_ffw_norm"]), keys=keys)


def sentencepiece_gguf(path: Path, *, bos: bool) -> Path:
    """A vocabulary of sentencepiece's kind with a tiny random model around it."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"helowrd", "▁h",
              "▁he", "▁hel", "▁hell", "▁hello"]  # fmt: skip
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.BYTE] * 256
    types += [TokenType.NORMAL] * (len(pieces) - len(types))
    writer = writer_of(path, "llama", 64, 32, 1, 32, 1, 1, 1e-5)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores([0.0] * 259 + [-float(len(pieces) - n) for n in range(259, len(pieces))])
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    if bos:
        writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(bos)
    writer.add_chat_template("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
    rng = np.random.default_rng(0)
    shapes = {"token_embd.weight": (len(pieces), 32), **dict.fromkeys(("output_norm.weight", "blk.0.attn_norm.weight"), (32,)),
              "blk.0.ffn_norm.weight": (32,)}  # fmt: skip
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    for name, shape in (shapes | {f"blk.0.{name}.weight": (32, 32) for name in names}).items():
        writer.add_tensor(name, rng.normal(size=shape).astype(np.float32))
    finish(writer)
    return path
