"""Whether a draft can serve a target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specview.decoding.verification import RULES
from specview.engines.chat import ByteDetokenizer
from specview.errors import SpecviewError
from specview.models.pair_check import check_pair, pair_from_files, percent

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

    def encode(self, text: str) -> list[int]:
        return [self.words.index(text)] if text in self.words else []

    def detokenizer(self) -> ByteDetokenizer:
        silent = [token for token, word in enumerate(self.words) if word and word.startswith("<s")]
        return ByteDetokenizer(self.token_bytes, frozenset(silent))


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
    assert (report.mode, report.shared, report.share) == ("same", 40, 1.0)
    assert report.approach == dict.fromkeys(RULES, "same")
    report.raise_if_not_ok()


def test_a_foreign_draft_serves_and_is_told() -> None:
    other = list(WORDS)
    other[17], other[30] = "a\n", "z"
    report = check_pair(engine("Y", WORDS), engine("X", other))
    assert report.ok
    report.raise_if_not_ok()
    assert report.mode == "foreign"
    assert report.differences == ((17, "'w17'", "'a\\n'"), (30, "'w30'", "'z'"))
    # Token 0 ends a text in both: it is no text.
    assert (report.shared, report.share) == (37, pytest.approx(37 / 39))
    assert report.reason == (
        "draft X has another tokenizer than Y: 37 of the target's 39 texts (95%) are one token of the draft too. "
        "2 of 40 ids differ: 17 ('w17' in the target, 'a\\n' in the draft) and 30 ('w30' in the target, 'z' in the draft)."
    )
    assert report.approach == {
        "greedy": "re-encode",
        "match": "re-encode",
        "typical": "re-encode",
        "rejection": "intersection",
        "naive": "intersection",
    }
    assert report.notes == (
        "Rules greedy, match and typical: its text is re-encoded in the target's tokens (vocabulary re-encode).",
        "Rules rejection and naive: it drafts the tokens that both have (vocabulary intersection).",
    )


def test_one_renamed_or_two_swapped_are_named() -> None:
    many: list[str | None] = [f"w{index}" for index in range(2000)]
    renamed, swapped = list(many), list(many)
    renamed[7] = "W7"
    swapped[5], swapped[9] = many[9], many[5]
    report = check_pair(engine("T", many), engine("D", renamed))
    assert report.reason == (
        "draft D has another tokenizer than T: 1,998 of the target's 1,999 texts (over 99%) are one token of the draft too. "
        "1 of 2,000 ids differs: 7 ('w7' in the target, 'W7' in the draft)."
    )
    report = check_pair(engine("T", many), engine("D", swapped))
    assert report.reason == (
        "draft D has another tokenizer than T: 1,999 of the target's 1,999 texts (100%) are one token of the draft too. "
        "2 of 2,000 ids differ: 5 ('w5' in the target, 'w9' in the draft) and 9 ('w9' in the target, 'w5' in the draft)."
    )
    shifted: list[str | None] = [many[0], *many[2:], many[1]]
    reason = check_pair(engine("T", many), engine("D", shifted)).reason
    assert "1,999 of 2,000 ids differ, first 1 ('w1' in the target, 'w2' in the draft) and 2 (" in reason


def test_a_share_is_all_or_none_only_where_it_is() -> None:
    assert [percent(share) for share in (0, 0.004, 0.5, 0.996, 1)] == ["0%", "under 1%", "50%", "over 99%", "100%"]
    assert [percent(share, 1) for share in (0.0004, 0.9996)] == ["under 0.1%", "over 99.9%"]


def test_no_token_in_common_serves_the_rules_without_q() -> None:
    report = check_pair(engine("T", WORDS), engine("D", [f"v{index}" for index in range(40)]))
    assert report.ok
    assert report.shared == 0
    assert set(report.approach) == {"greedy", "match", "typical"}
    assert report.notes[1] == "Rules rejection and naive: not with this draft, for no token is shared; use match."


def test_a_draft_without_text_serves_nothing() -> None:
    report = check_pair(engine("T", WORDS), engine("D", ["<s>", "<s2>"]))
    assert not report.ok
    assert report.approach == {}
    with pytest.raises(SpecviewError) as caught:
        report.raise_if_not_ok()
    assert str(caught.value) == (
        "draft D has another tokenizer than T, and D has no tokens for text. Choose a draft of the same family."
    )


def test_what_the_check_says_is_what_the_drafter_does() -> None:
    """The report's approach and the class that the method makes, for every rule."""
    from specview.drafting import universal

    target, same, foreign = engine("T", WORDS), engine("S", WORDS), engine("F", WORDS[::-1])
    for rule in RULES:
        for draft in (same, foreign):
            assert check_pair(target, draft).approach[rule] == universal.approach("auto", rule, target, draft)


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
    assert report.notes == (
        "40 tokens agree, of 41 and 40 in all.",
        "The draft lacks 1 of the target's tokens: it drafts none of those, and guesses worse where the text has one.",
        "Their rows of logits are padded to 41 and 40.",
    )
    more = check_pair(engine("T", WORDS), engine("D", [*WORDS, "<tool>"]))
    assert more.ok and "lacks" not in " ".join(more.notes)


def test_a_draft_as_large_may_lack_tokens_too() -> None:
    report = check_pair(engine("T", [*WORDS, "<tool>", None]), engine("D", [*WORDS, None, "<think>"]))
    assert report.ok and report.mode == "same"
    assert report.notes[0].startswith("The draft lacks 1 of the target's tokens: ")


def test_a_vocabulary_half_as_long_is_another() -> None:
    report = check_pair(engine("T", WORDS), engine("D", WORDS[:20]))
    assert report.mode == "foreign"
    assert report.different == 0 and report.differences == ()
    assert report.shared == 19
    assert "19 of the target's 39 texts (49%)" in report.reason


def test_other_end_tokens_are_a_note() -> None:
    report = check_pair(engine("T", WORDS, eos=2), engine("D", WORDS, eos=0))
    assert report.ok
    assert "(2 and 0)" in report.notes[0]


def test_text_that_is_no_utf8_and_long_text() -> None:
    target: list[str | None] = [*WORDS, "\udcff"]
    draft: list[str | None] = [*WORDS, "x" * 5000]
    report = check_pair(engine("T", target), engine("D", draft))
    ((token, ours, theirs),) = report.differences
    assert (token, ours) == (40, "'\\\\xff'")
    assert len(theirs) < 60


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
    assert report is not None and report.ok and report.mode == "foreign"
    assert report.differences[0] == (0, "'<|end|>'", "'v0'")
    assert report.reason.startswith("draft other has another tokenizer than a: 0 of the target's 263 texts (0%)")
    named = pair_from_files(path, folder, ("the target", "a draft"))
    assert named is not None and named.reason.startswith("draft a draft has another tokenizer than the target: ")
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
    assert report.differences == ((3, "'<end>'", "'<stop>'"),)


def test_kinds_of_vocabulary_meet_by_their_bytes(make_gguf: Make, make_folder: Make, cache: Path) -> None:
    """Byte-level BPE ("Ġthe"), metaspace ("▁the") and byte fallback ("<0x0A>") spell the same texts."""
    byte_level = make_gguf("byte.gguf", vocabulary=["<|end|>", "Ġthe", "Ċ", "é", "Ã©", "▁a"])
    pieces = ["<unk>", "<s>", "</s>", "▁the", "<0x0A>", "é", "▁a", "<0xC3>", "[PAD9]"]
    kinds = [2, 3, 3, 1, 6, 1, 4, 6, 1]  # unknown, control, control, normal, byte, normal, user-defined, byte
    metaspace = make_gguf("spm.gguf", sentencepiece=(pieces, [0.0] * len(pieces), kinds))
    report = pair_from_files(byte_level, metaspace)
    assert report is not None
    # " the", "\n" and "é" (its two bytes are one token in GPT-2's alphabet) are in both; so is "▁a" as it is
    # spelled, for a user-defined token is its own text, and GPT-2's alphabet has no such character.
    assert report.shared == 4
    folder = make_folder("folder", vocabulary={"▁the": 0, "<0x0A>": 1, "x": 2})
    report = pair_from_files(byte_level, folder)
    assert report is not None and report.shared == 2


@pytest.mark.parametrize("kind", ["gguf", "folder"])
def test_files_and_loaded_engines_agree(make_gguf: Make, cache: Path, kind: str) -> None:
    pytest.importorskip("llama_cpp")
    pytest.importorskip("torch")
    from specview.models.loading import load_engine

    path, other = make_gguf("a.gguf", seed=0), make_gguf("b.gguf", seed=1, vocabulary=_other_vocabulary())
    engines = [load_engine(str(file), "transformers") for file in (path, other)]
    try:
        loaded = check_pair(*engines)
    finally:
        for one in engines:
            one.close()
    from specview.models.converted import convert

    files = pair_from_files(path, other) if kind == "gguf" else pair_from_files(convert(path), convert(other))
    assert files is not None
    assert (files.mode, files.shared, files.share) == ("foreign", loaded.shared, loaded.share)
    assert (files.different, files.differences) == (loaded.different, loaded.differences)


def _other_vocabulary() -> list[str]:
    from tests.models.conftest import SPECIAL, byte_alphabet, tokens

    rest = [token for token in tokens() if token not in (*SPECIAL, *byte_alphabet())]
    return [*SPECIAL, *reversed(byte_alphabet()), *rest]
