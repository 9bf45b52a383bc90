"""Stop strings: the one that is complete first ends the text, however it is split into tokens; nothing of it or behind it stays."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.stopping import Stops, StopText


class Pieces:
    """A tokenizer whose tokens are pieces of bytes, given beforehand: token n is the n-th."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def detokenizer(self) -> Pieces:
        return Pieces(self.pieces)

    def add(self, token: int) -> str:
        return self._decoder.decode(self.pieces[token])

    def peek(self, tokens: Sequence[int]) -> list[str]:
        return ["" for _ in tokens]

    def flush(self) -> str:
        return self._decoder.decode(b"", final=True)


def cut(text: str, stops: Sequence[str]) -> tuple[str, str]:
    """The text before the stop string that is complete first (the longer of two), and that string."""
    for end in range(1, len(text) + 1):
        found = sorted((one for one in stops if text[:end].endswith(one)), key=len)
        if found:
            return text[: end - len(found[-1])], found[-1]
    return text, ""


LETTERS = st.text("ab\n€😀", max_size=14)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(LETTERS, st.lists(LETTERS.filter(bool), min_size=1, max_size=3, unique=True), st.lists(st.integers(1, 3), max_size=60), st.data())
def test_the_split_into_tokens_and_rounds_makes_no_difference(text: str, stops: list[str], lengths: list[int], data: st.DataObject) -> None:
    data_, pieces = text.encode(), []
    for length in [*lengths, *[1] * 60]:
        if data_:
            pieces.append(data_[:length])
            data_ = data_[length:]
    wanted, found = cut(text, stops)
    shown, texts = StopText(Pieces(pieces), stops), []
    watch, kept = Stops(stops, Pieces(pieces)), None  # type: ignore[arg-type]
    tokens = list(range(len(pieces)))
    while tokens and kept is None:
        size = data.draw(st.integers(1, 4))
        fed, tokens = tokens[:size], tokens[size:]
        kept = watch.kept(fed)
        texts += [shown.add(token) for token in fed[:kept]]
    assert (kept is not None) == bool(found) == bool(shown.found)
    assert "".join(texts) + shown.release() == wanted and watch.text() == wanted
    if found:
        assert watch.end == f"stop: {found!r}"
        # The last token is the one with which the string is complete.
        ids = fed[:kept]
        until = b"".join(pieces[: ids[-1] + 1]).decode(errors="ignore")
        before = b"".join(pieces[: ids[-1]]).decode(errors="ignore")
        assert cut(until, stops)[1] == found and not cut(before, stops)[1]


def test_what_may_be_the_beginning_of_a_stop_string_is_held_back_and_given_at_the_end() -> None:
    shown = StopText(Pieces([b"x#", b"#", b" y##"]), ["###"])
    assert [shown.add(token) for token in range(3)] == ["x", "", "## y"]
    assert shown.flush() == "##" and shown.flush() == ""


@pytest.mark.parametrize(("stops", "kept", "text"), [(["cd"], 2, "ab"), (["abcd", "bc"], 2, "a"), (["f", "de"], 3, "abc"), (["x"], None, "abcdef")])
def test_the_one_that_is_complete_first_counts(stops: list[str], kept: int | None, text: str) -> None:
    watch = Stops(stops, Pieces([b"ab", b"cd", b"ef"]))  # type: ignore[arg-type]
    assert (watch.kept([0, 1, 2]), watch.text()) == (kept, text)
