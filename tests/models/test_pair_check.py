"""Whether a draft can serve a target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specview.errors import SpecviewError
from specview.models.pair_check import check_pair, pair_from_files

Make = Callable[..., Path]


class Words:
    """A tokenizer of a fixed list; None is an id that stands for nothing."""

    def __init__(self, words: list[str | None]) -> None:
        self.words = words
        self.vocab_size = len(words)

    def token_bytes(self, token: int) -> bytes:
        word = self.words[token]
        if word is None:
            raise IndexError(token)
        return word.encode("utf-8", "surrogateescape")


class Made:
    """What the check reads of an engine."""

    model_name: str
    tokenizer: Words
    vocab_size: int
    eos_ids: frozenset[int]


def engine(name: str, words: list[str | None], *, padded: int = 0, eos: int = 0) -> Any:
    made = Made()
    made.model_name, made.tokenizer, made.vocab_size, made.eos_ids = (
        name, Words(words), padded or len(words), frozenset({eos}),
    )  # fmt: skip
    return made


WORDS: list[str | None] = [f"w{index}" for index in range(40)]


def test_the_same() -> None:
    report = check_pair(engine("T", WORDS), engine("D", WORDS))
    assert report.ok
    assert report.reason == ""
    assert report.shared == 40
    assert report.notes == ()
    report.raise_if_not_ok()


def test_the_first_differing_token_is_named() -> None:
    other = list(WORDS)
    other[17], other[30] = "a\n", "z"
    report = check_pair(engine("Y", WORDS), engine("X", other))
    assert not report.ok
    assert report.first_difference == (17, "'w17'", "'a\\n'")
    with pytest.raises(SpecviewError) as caught:
        report.raise_if_not_ok()
    assert str(caught.value) == (
        "draft X has another tokenizer than Y: token 17 is 'a\\n' there and 'w17' here (2 of 40 differ). "
        "Choose a draft of the same family."
    )


def test_padding_does_not_matter() -> None:
    padded: list[str | None] = [*WORDS, "[PAD40]", "<unused1>", None]
    report = check_pair(engine("T", WORDS, padded=152064), engine("D", padded, padded=151936))
    assert report.ok
    assert "152064 and 151936" in " ".join(report.notes)


def test_rows_narrower_than_the_tokenizer() -> None:
    assert check_pair(engine("T", WORDS, padded=38), engine("D", WORDS)).ok


def test_a_few_more_tokens_are_a_note() -> None:
    report = check_pair(engine("T", [*WORDS, "<tool>"]), engine("D", WORDS))
    assert report.ok
    assert "40 tokens agree" in report.notes[0]


def test_a_vocabulary_half_as_long_is_another() -> None:
    report = check_pair(engine("T", WORDS), engine("D", WORDS[:20]))
    assert not report.ok
    assert "20 tokens there and 40 here, 20 of them the same" in report.reason


def test_other_end_tokens_are_a_note() -> None:
    report = check_pair(engine("T", WORDS, eos=2), engine("D", WORDS, eos=0))
    assert report.ok
    assert "(2 and 0)" in report.notes[0]


def test_text_that_is_no_utf8_and_long_text() -> None:
    target: list[str | None] = [*WORDS, "\udcff"]
    draft: list[str | None] = [*WORDS, "x" * 5000]
    report = check_pair(engine("T", target), engine("D", draft))
    assert not report.ok
    assert "\\xff" in report.reason
    assert len(report.reason) < 300


def test_files(make_gguf: Make, make_folder: Make, cache: Path) -> None:
    from specview.models.converted import convert

    path = make_gguf("a.gguf", seed=0)
    words = list(range(5))
    report = pair_from_files(path, make_gguf("b.gguf", seed=1))
    assert report is not None and report.ok
    report = pair_from_files(path, convert(path))
    assert report is not None and report.ok, "a GGUF and the tokenizer.json made of it agree"
    folder = make_folder("other", vocabulary={f"v{word}": word for word in words})
    report = pair_from_files(path, folder)
    assert report is not None and not report.ok
    assert "draft other has another tokenizer than a: token 0 is 'v0' there and '<|end|>' here" in report.reason
    assert pair_from_files(path, make_folder("bare", tokenizer=False)) is None


def test_special_tokens_of_tokenizer_json_count(make_folder: Make) -> None:
    import json

    first, second = make_folder("first"), make_folder("second")
    for folder, name in ((first, "<end>"), (second, "<stop>")):
        document = json.loads((folder / "tokenizer.json").read_text())
        document["added_tokens"] = [{"id": 3, "content": name}]
        (folder / "tokenizer.json").write_text(json.dumps(document))
    report = pair_from_files(first, second)
    assert report is not None
    assert report.first_difference == (3, "'<end>'", "'<stop>'")
