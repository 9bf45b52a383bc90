"""The incremental detokenizer gives what decoding all bytes at once gives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specview.engines.chat import ByteDetokenizer

PIECES = st.lists(st.binary(max_size=6), max_size=20)


def detokenizer(pieces: list[bytes], silent: frozenset[int] = frozenset()) -> ByteDetokenizer:
    return ByteDetokenizer(pieces.__getitem__, silent)


@given(st.text(max_size=40), st.data())
def test_random_byte_splits_of_a_text_join_to_it(text: str, data: st.DataObject) -> None:
    raw = text.encode("utf-8", errors="replace")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=30)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    out = detokenizer(pieces)
    texts = [out.add(token) for token in range(len(pieces))]
    assert "".join(texts) == raw.decode()
    assert out.flush() == ""


@given(PIECES, st.sets(st.integers(0, 19)))
def test_any_bytes_join_to_their_decoding(pieces: list[bytes], silent: set[int]) -> None:
    out = detokenizer(pieces, frozenset(silent))
    tokens = range(len(pieces))
    text = "".join(out.add(token) for token in tokens) + out.flush()
    whole = b"".join(piece for token, piece in enumerate(pieces) if token not in silent)
    assert text == whole.decode(errors="replace")


@given(PIECES, st.integers(0, 20))
def test_peek_foretells_and_changes_nothing(pieces: list[bytes], cut: int) -> None:
    out = detokenizer(pieces)
    for token in range(min(cut, len(pieces))):
        out.add(token)
    rest = range(min(cut, len(pieces)), len(pieces))
    foretold = out.peek(rest)
    assert out.peek(rest) == foretold
    assert [out.add(token) for token in rest] == foretold


def test_a_split_emoji_comes_with_its_last_token() -> None:
    pieces = [b" ok", "🎉".encode()[:2], "🎉".encode()[2:3], "🎉".encode()[3:] + b"!"]
    out = detokenizer(pieces)
    assert [out.add(token) for token in range(4)] == [" ok", "", "", "🎉!"]


def test_flush_shows_what_is_incomplete_and_starts_anew() -> None:
    out = detokenizer(["é".encode()[:1], b"a"])
    assert out.add(0) == ""
    assert out.flush() == "�"
    assert out.flush() == ""
    assert out.add(1) == "a"


def test_silent_tokens_add_nothing_even_inside_a_character() -> None:
    out = detokenizer(["é".encode()[:1], b"<|im_end|>", "é".encode()[1:]], frozenset({1}))
    assert [out.add(token) for token in range(3)] == ["", "", "é"]
