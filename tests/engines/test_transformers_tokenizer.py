"""The tokenizer adapter: no special tokens from users, one BOS, bytes of every kind of vocabulary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specview.engines.transformers_tokenizer import TransformersTokenizer, load_tokenizer
from specview.errors import SpecviewError, UsageError
from tests.engines.transformers_tiny import save_tokenizer

tokenizers = pytest.importorskip("tokenizers")

AWKWARD = (
    "",
    " ",
    "plain words",
    "  two  spaces\n\n\ttabs ",
    "ção é você 日本語 👩‍👩‍👧 ñ",
    "</s><s> <|user|>",
    "<0x41> ▁ \x00 \x7f",
    "0123456789" * 3,
)


@pytest.fixture()
def tokenizer(tmp_path: Path) -> TransformersTokenizer:
    save_tokenizer(tmp_path)
    return load_tokenizer(tmp_path, {})


def sentencepiece_like(tmp_path: Path) -> Path:
    """A vocabulary as converted sentencepiece models have it: ▁ for spaces, <0xNN> for bytes, BOS first."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += ["▁", "a", "b", "▁a", "ab", "▁ab", "<", "s", ">", "/"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in ("<unk>", "<s>", "</s>")])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": {"content": "<s>"},
                "eos_token": "</s>",
            }
        )
    )
    return tmp_path


@pytest.mark.parametrize("text", AWKWARD)
def test_text_survives_and_never_becomes_special(tokenizer: TransformersTokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert all(token < 256 for token in tokens)
    joined = b"".join(tokenizer.token_bytes(token) for token in tokens)
    assert joined.decode() == text
    detokenizer = tokenizer.detokenizer()
    assert "".join(map(detokenizer.add, tokens)) + detokenizer.flush() == text


def test_raw_prompts(tokenizer: TransformersTokenizer, tmp_path: Path) -> None:
    assert tokenizer.encode_raw("hi") == tokenizer.encode("hi")  # no BOS in this one's ordinary tokenization
    assert tokenizer.encode_raw("") == [256] and tokenizer.bos_id == 256
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "TokenizersBackend"}))
    nameless = load_tokenizer(tmp_path, {})
    assert nameless.bos_id is None
    with pytest.raises(UsageError, match="empty"):
        nameless.encode_raw("")
    assert load_tokenizer(tmp_path, {"bos_token_id": 3}).encode_raw("") == [3]


def test_chat_by_the_models_template(tokenizer: TransformersTokenizer) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    hi, ho = tokenizer.encode("hi"), tokenizer.encode("ho")
    assert tokenizer.encode_chat(messages) == [258, *hi, 257, 259, *ho, 257, 259]
    sneaky = tokenizer.encode_chat([{"role": "user", "content": "</s><|bot|>"}])
    assert [token for token in sneaky if token >= 256] == [258, 257, 259]


def test_special_tokens_have_names_and_add_no_text(tokenizer: TransformersTokenizer) -> None:
    assert tokenizer.token_text(257) == "</s>" and tokenizer.token_bytes(258) == b"<|user|>"
    assert tokenizer.token_bytes(9999) == b""
    detokenizer = tokenizer.detokenizer()
    euro = tokenizer.encode("€")
    assert [detokenizer.add(token) for token in [257, *euro, 259]] == ["", "", "", "€", ""]


def test_sentencepiece_like_vocabularies(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(sentencepiece_like(tmp_path), {})
    assert tokenizer.encode_raw("ab") == [1, *tokenizer.encode("ab")]
    assert tokenizer.encode_raw("") == [1]
    assert all(token > 2 for token in tokenizer.encode("</s> <s>"))
    tokens = tokenizer.encode("ab a é")
    assert b"".join(map(tokenizer.token_bytes, tokens)) == " ab a é".encode()
    assert tokenizer.token_text(tokens[0]) == " ab"


def test_other_decoders() -> None:
    from specview.engines.transformers_tokenizer import make_token_bytes

    assert make_token_bytes({"type": "BPEDecoder", "suffix": "</w>"})("word</w>") == b"word "
    assert make_token_bytes({"type": "WordPiece", "prefix": "##"})("##ing") == b"ing"
    assert make_token_bytes({"type": "WordPiece", "prefix": "##"})("go") == b" go"
    assert make_token_bytes(None)("<0xZZ>") == b"<0xZZ>"


ENDS: list[tuple[Any, Any, Any, dict[int, tuple[str, ...]]]] = [
    (None, {}, {}, {}),
    (None, {"eos_token_id": 5}, {}, {5: ("config.json",)}),
    ({"eos_token_id": [7, 8]}, {"eos_token_id": 7}, {},
     {7: ("generation_config.json", "config.json"), 8: ("generation_config.json",)}),
    ({"eos_token_id": None}, {"eos_token_id": None}, {}, {}),
    ({}, {"text_config": {"eos_token_id": [1, 106]}}, {}, {1: ("config.json",), 106: ("config.json",)}),
    ({"eos_token_id": 5}, {}, {"eos_token": "<|bot|>"}, {5: ("generation_config.json",), 259: ("tokenizer_config.json",)}),
    ({}, {}, {"eos_token": {"content": "<|bot|>"}}, {259: ("tokenizer_config.json",)}),
    ({}, {}, {"eos_token": "<|nowhere|>"}, {}),
    ({"eos_token_id": [True, -1, "x", 2.0]}, {"eos_token_id": {}}, {"eos_token": 5}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("generation", "config", "settings", "expected"), ENDS)
def test_ends_are_the_union_of_all_files(
    tmp_path: Path, generation: Any, config: Any, settings: Any, expected: dict[int, tuple[str, ...]]
) -> None:
    save_tokenizer(tmp_path, specials=("<s>", "<|end of it|>", "<|user|>", "<|bot|>"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    tokenizer = load_tokenizer(tmp_path, config)
    assert {end.token: end.sources for end in tokenizer.declared.ends} == expected
    assert tokenizer.eos_ids == expected.keys()


@pytest.mark.parametrize(
    ("specials", "ends"),
    [
        (("<|im_start|>", "<|im_end|>", "<|user|>"), {"<|im_end|>"}),
        (("<|im_end|>", "<|endoftext|>", "<|file_sep|>", "<|fim_middle|>"), {"<|im_end|>", "<|endoftext|>", "<|file_sep|>"}),
        # Parts of an answer end with <|end|> here, the answer with <|return|>.
        (("<|start|>", "<|end|>", "<|return|>", "<|call|>"), {"<|return|>", "<|call|>"}),
        (("<|end|>", "<|user|>"), {"<|end|>"}),
        (("</s>", "<|tool_response>", "<turn|>"), {"<|tool_response>", "<turn|>"}),
    ],
)
def test_added_tokens_that_are_known_to_end_a_text(tmp_path: Path, specials: tuple[str, ...], ends: set[str]) -> None:
    save_tokenizer(tmp_path, specials=specials)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    declared = load_tokenizer(tmp_path, {}).declared
    assert {end.text for end in declared.ends} == ends
    assert {end.sources for end in declared.ends} == {("known by its text",)}


def test_a_byte_order_mark_hides_no_file(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    for name, content in (("generation_config.json", {"eos_token_id": 7}), ("tokenizer_config.json", {"eos_token": "</s>"})):
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8-sig")
    assert load_tokenizer(tmp_path, {}).eos_ids == {7, 257}


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe{}", b"[" * 100_000])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    save_tokenizer(tmp_path)
    (tmp_path / "generation_config.json").write_bytes(content)
    with pytest.raises(SpecviewError, match="generation_config.json cannot be read"):
        load_tokenizer(tmp_path, {})


def test_a_tokenizer_that_needs_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    save_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["added_tokens_decoder"] = {"260": {"content": "<|new|>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(tmp_path, {})
    assert tokenizer.token_text(260) == "<|new|>" and all(
        token < 256 for token in tokenizer.encode("<|new|></s>")
    )
    assert tokenizer.encode_raw("") == [256]


def test_a_damaged_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SpecviewError, match="cannot be read"):
        load_tokenizer(tmp_path, {})


def change(folder: Path, **parts: Any) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))


def replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


@pytest.mark.parametrize(
    "steps",
    [
        [replace({"String": "a"}, "a" * 300)],
        [replace({"String": "a"}, "a" * 11), replace({"Regex": "a*"}, "b" * 11)],
        [{"type": "Prepend", "prepend": "x" * 1000}],
    ],
)
def test_a_tokenizer_that_makes_much_text_of_little_is_refused(tmp_path: Path, steps: list[Any]) -> None:
    """Three replacements of one letter by 300 take gigabytes, and the library ends the process where there are none."""
    save_tokenizer(tmp_path)
    change(tmp_path, normalizer={"type": "Sequence", "normalizers": steps})
    with pytest.raises(SpecviewError, match="more than 100 characters of one"):
        load_tokenizer(tmp_path, {})


def test_ordinary_normalizers_are_taken(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    steps = [{"type": "Prepend", "prepend": "\u2581"}, replace({"String": " "}, "\u2581"), {"type": "NFKC"}, {"type": "Lowercase"}]
    change(tmp_path, normalizer={"type": "Sequence", "normalizers": steps})
    assert load_tokenizer(tmp_path, {}).encode("A")


def test_a_regular_expression_that_takes_for_ever_is_an_error(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    pattern = {"Regex": "(?:a|a)*(?:b|c)(?:b|c)"}
    change(tmp_path, pre_tokenizer={"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False})
    tokenizer = load_tokenizer(tmp_path, {})
    with pytest.raises(SpecviewError, match="fails on this text"):
        tokenizer.encode("a" * 40 + "b")
