"""Tiny models made here: GGUF files and safetensors folders with random weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines.gguf_tiny import finish, writer_of

SPECIAL = ["<|end|>", "<|user|>", "<|stop|>"]
MERGES = ["h e", "he l", "hel l", "hell o", "Ġ w", "1 2", "i n"]


def byte_alphabet() -> list[str]:
    """GPT-2's 256 printable stand-ins for bytes."""
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def tokens() -> list[str]:
    """A vocabulary: special tokens, bytes, the results of the merges."""
    return [*SPECIAL, *byte_alphabet(), *[merge.replace(" ", "") for merge in MERGES]]


@pytest.fixture
def make_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Write a random Llama as GGUF: hidden 64, 2 layers, 4 heads of 16, 2 key-value heads."""

    def make(
        name: str = "tiny.gguf",
        *,
        seed: int = 0,
        quantization: str = "F32",
        architecture: str = "llama",
        vocabulary: list[str] | None = None,
        pre: str = "smollm",
        tied: bool = True,
        extra: dict[str, Any] | None = None,
        tensors: dict[str, np.ndarray] | None = None,
        sentencepiece: tuple[list[str], list[float], list[int]] | None = None,
        prefix: bool | None = None,
    ) -> Path:
        import gguf

        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        words = tokens() if vocabulary is None else vocabulary
        if sentencepiece is not None:
            words, scores, kinds = sentencepiece
        writer = writer_of(path, architecture, 256, 64, 2, 96, 4, 2, 1e-5)
        writer.add_rope_dimension_count(16)
        writer.add_rope_freq_base(50000.0)
        writer.add_vocab_size(len(words))
        writer.add_token_list(words)
        if sentencepiece is None:
            writer.add_tokenizer_model("gpt2")
            writer.add_tokenizer_pre(pre)
            writer.add_token_types([3 if word in SPECIAL else 1 for word in words])
            writer.add_token_merges(MERGES)
        else:
            writer.add_tokenizer_model("llama")
            writer.add_token_scores(scores)
            writer.add_token_types(kinds)
            writer.add_unk_token_id(0)
            if prefix is not None:
                writer.add_add_space_prefix(prefix)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_chat_template("{% for m in messages %}<|user|>{{ m['content'] }}<|stop|>{% endfor %}")
        for key, value in (extra or {}).items():
            add_value = {int: writer.add_uint32, float: writer.add_float32}.get(type(value), writer.add_string)
            add_value(key, value)
        rng = np.random.default_rng(seed)
        kind = gguf.GGMLQuantizationType[quantization]

        def add(tensor_name: str, *shape: int) -> None:
            scale = 0.1 if len(shape) > 1 else 1.0
            values = (rng.standard_normal(shape) * scale + (len(shape) == 1)).astype(np.float32)
            if len(shape) > 1 and quantization not in ("F32",):
                writer.add_tensor(tensor_name, gguf.quants.quantize(values, kind), raw_dtype=kind)
            else:
                writer.add_tensor(tensor_name, values)

        inside = {"attn_norm": (64,), "attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64),
                  "ffn_norm": (64,), "ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96)}  # fmt: skip
        add("token_embd.weight", len(words), 64)
        for layer in range(2):
            for part, shape in inside.items():
                add(f"blk.{layer}.{part}.weight", *shape)
        add("output_norm.weight", 64)
        if not tied:
            add("output.weight", len(words), 64)
        for tensor_name, values in (tensors or {}).items():
            writer.add_tensor(tensor_name, values)
        finish(writer)
        return path

    return make


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """Write a folder that looks like a model: one small tensor, a tokenizer.json with `vocabulary`."""

    def make(name: str = "model", *, vocabulary: dict[str, int] | None = None, tokenizer: bool = True) -> Path:
        from safetensors.numpy import save_file

        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 8}))
        save_file({"w": np.ones((4, 4), dtype=np.float32)}, folder / "model.safetensors")
        if tokenizer:
            words = {"a": 0, "b": 1, "c": 2} if vocabulary is None else vocabulary
            document = {"model": {"type": "BPE", "vocab": words, "merges": []}, "added_tokens": []}
            (folder / "tokenizer.json").write_text(json.dumps(document))
        return folder

    return make


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder and an empty Hugging Face cache of this test's own."""
    folder = tmp_path / "specview-cache"
    monkeypatch.setenv("SPECVIEW_CACHE", str(folder))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf-cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return folder
