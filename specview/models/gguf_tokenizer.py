"""The Hugging Face tokenizer files of a GGUF file's vocabulary.

transformers' own GGUF conversion ignores `tokenizer.ggml.pre` where it names a split it has no rule
for (SmolLM2's: digits apart, then GPT-2's regular expression), which changes the ids of every number.
So byte-level vocabularies are built here, from the splits that llama.cpp names; SentencePiece ones
go through transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specview.errors import SpecviewError
from specview.models.gguf_file import TOKEN_CONTROL, TOKEN_UNKNOWN, TOKEN_USER_DEFINED, GgufFile

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

SPLITS: Mapping[str, str] = {
    "gpt-2": "gpt2",
    "phi-2": "gpt2",
    "olmo": "gpt2",
    "smollm": "digits+gpt2",
    "starcoder": "digits+gpt2",
    "refact": "digits+gpt2",
    "command-r": "digits+gpt2",
    "codeshell": "digits+gpt2",
    "exaone": "digits+gpt2",
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "falcon3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}
"""How `tokenizer.ggml.pre` splits text before merging, as in llama.cpp's src/llama-vocab.cpp."""

_WHOLE_WORDS_FIRST = {"llama3", "llama-v3", "llama-bpe", "falcon3"}
_NFC = {"qwen2", "deepseek-r1-qwen"}


def special_ids(gguf: GgufFile) -> dict[str, int]:
    """Return the ids the metadata names: any of bos, eos, unknown, padding."""
    vocabulary = len(gguf.metadata.get("tokenizer.ggml.tokens", ()))
    found = {}
    for name in ("bos", "eos", "unknown", "padding"):
        value = gguf.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if value is not None and 0 <= int(value) < vocabulary:
            found[name] = int(value)
    return found


def adds_bos(gguf: GgufFile) -> bool:
    """Whether a prompt starts with BOS; llama.cpp's default where the file does not say."""
    said = gguf.metadata.get("tokenizer.ggml.add_bos_token")
    if said is not None:
        return bool(said) and "bos" in special_ids(gguf)
    spm = gguf.metadata.get("tokenizer.ggml.model") == "llama"
    return (spm or gguf.metadata.get("tokenizer.ggml.pre") in _WHOLE_WORDS_FIRST) and "bos" in special_ids(gguf)


def write_tokenizer(gguf: GgufFile, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json for `gguf` into `folder`.

    Raises SpecviewError for a vocabulary that has no known equivalent.
    """
    model = gguf.metadata.get("tokenizer.ggml.model")
    if model == "gpt2":
        _byte_level(gguf).save(str(folder / "tokenizer.json"))
        config = tokenizer_config(gguf)
        text = json.dumps(config, indent=1, ensure_ascii=False)
        (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
    elif model == "llama":
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(gguf.path.parent), gguf_file=gguf.path.name)
        tokenizer.save_pretrained(str(folder))
    else:
        raise SpecviewError(
            f"{gguf.path.name} has a {model or 'missing'} tokenizer, which specview cannot convert for transformers.",
            "Use the llama.cpp engine for this file, or give the model's safetensors folder.",
        )


def tokenizer_config(gguf: GgufFile) -> dict[str, Any]:
    """Return tokenizer_config.json: special tokens, chat template, context length."""
    tokens = gguf.metadata["tokenizer.ggml.tokens"]
    ids = special_ids(gguf)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(gguf.hyper("context_length", 2048)),
    }
    for key, name in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        if name in ids:
            config[key] = tokens[ids[name]]
    template = gguf.metadata.get("tokenizer.chat_template")
    if template:
        config["chat_template"] = template
    return config


def _byte_level(gguf: GgufFile) -> Any:
    """Build the `tokenizers.Tokenizer` of a byte-level BPE vocabulary."""
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
    )

    metadata = gguf.metadata
    pre = str(metadata.get("tokenizer.ggml.pre", "default"))
    split = SPLITS.get(pre)
    tokens, merges = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.merges")
    if split is None:
        raise SpecviewError(
            f"{gguf.path.name} splits text by {pre!r}, which specview cannot convert for transformers.",
            "Use the llama.cpp engine for this file, or give the model's safetensors folder.",
        )
    if not tokens or merges is None:
        raise SpecviewError(f"{gguf.path.name} holds no vocabulary.", "Use a file with its tokenizer inside.")
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=pairs, fuse_unk=False, ignore_merges=pre in _WHOLE_WORDS_FIRST)
    )
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex="gpt2" in split)
    if split == "gpt2":
        tokenizer.pre_tokenizer = byte_level
    elif split == "digits+gpt2":
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    else:
        pieces = pre_tokenizers.Split(Regex(split), behavior="isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, byte_level])
    if pre in _NFC:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    kinds = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    control = [t for t, kind in zip(tokens, kinds, strict=False) if kind in (TOKEN_CONTROL, TOKEN_UNKNOWN)]
    user = [t for t, kind in zip(tokens, kinds, strict=False) if kind == TOKEN_USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in user])
    if adds_bos(gguf):
        bos_id = special_ids(gguf)["bos"]
        bos = tokens[bos_id]
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, bos_id)]),
        ])
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer
