"""The Hugging Face tokenizer files of a GGUF file's vocabulary.

transformers' own GGUF conversion ignores `tokenizer.ggml.pre` where it names a split it has no rule
for (SmolLM2's: digits apart, then GPT-2's regular expression), which changes the ids of every number,
and the space that a SentencePiece text begins with. So both kinds are built here, as llama.cpp reads
them (its src/llama-vocab.cpp).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specview.engines.declared import of_gguf
from specview.engines.gguf_file import TOKEN_CONTROL, TOKEN_UNKNOWN, TOKEN_USER_DEFINED, GgufFile
from specview.engines.templates import DEFAULT
from specview.errors import SpecviewError

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
_LONGEST_PIECE = 1 << 10
_SPACE = "\u2581"  # how SentencePiece writes a space


def special_ids(gguf: GgufFile) -> dict[str, int]:
    """Return the ids the metadata names: any of bos, eos, unknown, padding."""
    vocabulary = len(gguf.metadata.get("tokenizer.ggml.tokens", ()))
    found = {}
    for name in ("bos", "eos", "unknown", "padding"):
        value = gguf.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if value is not None and value < vocabulary:
            found[name] = value
    return found


def adds_bos(gguf: GgufFile) -> bool:
    """Whether a prompt starts with BOS; llama.cpp's default where the file does not say."""
    said = gguf.metadata.get("tokenizer.ggml.add_bos_token")
    if said is not None:
        return bool(said) and "bos" in special_ids(gguf)
    spm = gguf.metadata.get("tokenizer.ggml.model") == "llama"
    return (spm or gguf.metadata.get("tokenizer.ggml.pre") in _WHOLE_WORDS_FIRST) and "bos" in special_ids(gguf)


def tokenizer_problem(gguf: GgufFile) -> str | None:
    """Say why this file's vocabulary has no known equivalent, or None when it has one."""
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    model = gguf.metadata.get("tokenizer.ggml.model")
    if not tokens:
        return "it holds no vocabulary"
    if model == "gpt2":
        pre = gguf.metadata.get("tokenizer.ggml.pre", "default")
        return None if pre in SPLITS else f"it splits text by {pre!r}, which specview does not know"
    if model == "llama":
        scores = gguf.metadata.get("tokenizer.ggml.scores") or ()
        return None if len(scores) == len(tokens) else "it holds no scores of its tokens"
    return f"its tokenizer is {model!r}, which specview does not know"


def write_tokenizer(gguf: GgufFile, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json for `gguf` into `folder`.

    Raises SpecviewError for a vocabulary that has no known equivalent.
    """
    problem = tokenizer_problem(gguf)
    if problem is not None:
        raise SpecviewError(
            f"{gguf.path.name} cannot be used in transformers: {problem}.", "Use the llama.cpp engine for it."
        )
    is_byte_level = gguf.metadata["tokenizer.ggml.model"] == "gpt2"
    try:
        tokenizer = _byte_level(gguf) if is_byte_level else _sentencepiece(gguf)
        _add_special(gguf, tokenizer)
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception
        raise SpecviewError(
            f"{gguf.path.name} cannot be used in transformers: its vocabulary is unsound ({str(error)[:200]}).",
            "Choose another GGUF file.",
        ) from None
    tokenizer.save(str(folder / "tokenizer.json"))
    text = json.dumps(tokenizer_config(gguf), indent=1, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def tokenizer_config(gguf: GgufFile) -> dict[str, Any]:
    """Return tokenizer_config.json: special tokens, chat template, context length."""
    tokens = gguf.metadata["tokenizer.ggml.tokens"]
    ids = special_ids(gguf)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": gguf.context_length or 2048,
    }
    for key, name in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        if name in ids:
            config[key] = tokens[ids[name]]
    named = of_gguf(gguf, adds_bos=False).templates
    if named:
        single = set(named) == {DEFAULT}
        config["chat_template"] = (
            named[DEFAULT] if single else [{"name": name, "template": text} for name, text in named.items()]
        )
    return config


def _byte_level(gguf: GgufFile) -> Any:
    """Build the `tokenizers.Tokenizer` of a byte-level BPE vocabulary."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    metadata = gguf.metadata
    pre = metadata["tokenizer.ggml.pre"]
    split = SPLITS[pre]
    vocabulary = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.get("tokenizer.ggml.merges") or ()]
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, fuse_unk=False, ignore_merges=pre in _WHOLE_WORDS_FIRST)
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
    return tokenizer


def _sentencepiece(gguf: GgufFile) -> Any:
    """Build the `tokenizers.Tokenizer` of a SentencePiece BPE vocabulary, whose scores order its merges."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    tokens = gguf.metadata["tokenizer.ggml.tokens"]
    scores = gguf.metadata["tokenizer.ggml.scores"]
    kinds = _kinds(gguf)
    pieces = {token for token, kind in zip(tokens, kinds, strict=False) if kind == 1}
    ranked = sorted(range(len(tokens)), key=lambda index: -scores[index])
    merges = [
        (tokens[index][:cut], tokens[index][cut:])
        for index in ranked
        if tokens[index] in pieces and len(tokens[index]) <= _LONGEST_PIECE
        for cut in range(1, len(tokens[index]))
        if tokens[index][:cut] in pieces and tokens[index][cut:] in pieces
    ]
    ids = special_ids(gguf)
    unknown = tokens[ids["unknown"]] if "unknown" in ids else None
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefixed = bool(gguf.metadata.get("tokenizer.ggml.add_space_prefix", True))
    spaces = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if prefixed else spaces
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps)
    return tokenizer


def _kinds(gguf: GgufFile) -> Sequence[int]:
    """Each token's type; 1, a normal token, where the file does not say."""
    kinds: Sequence[int] | None = gguf.metadata.get("tokenizer.ggml.token_type")
    return kinds or [1] * len(gguf.metadata["tokenizer.ggml.tokens"])


def _add_special(gguf: GgufFile, tokenizer: Any) -> None:
    """Tell the tokenizer its control and user-defined tokens, and BOS where a prompt starts with it."""
    from tokenizers import AddedToken, processors

    tokens = gguf.metadata["tokenizer.ggml.tokens"]
    named = list(zip(tokens, _kinds(gguf), strict=False))
    control = [token for token, kind in named if kind in (TOKEN_CONTROL, TOKEN_UNKNOWN)]
    user = [token for token, kind in named if kind == TOKEN_USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in user])
    steps: list[Any] = []
    if gguf.metadata.get("tokenizer.ggml.model") == "gpt2":
        steps.append(processors.ByteLevel(trim_offsets=False))
    if adds_bos(gguf):
        bos_id = special_ids(gguf)["bos"]
        bos = tokens[bos_id]
        steps.append(
            processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, bos_id)])
        )
    if steps:
        tokenizer.post_processor = processors.Sequence(steps)
