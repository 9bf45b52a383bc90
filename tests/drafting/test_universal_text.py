"""Bytes between two tokenizers: nothing is lost, and a context is read in a time that does not grow."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.drafting.universal_text import LONGEST_TAIL, Mirror, TextCoder, complete, prefix_of
from specview.drafting.universal_vocabulary import pairing_of, vocabulary_of
from tests.drafting.universal_toy import Pieces, engine_of

BYTES = [bytes([byte]) for byte in range(256)]


def coder(tokenizer: Pieces) -> TextCoder:
    return TextCoder(tokenizer, vocabulary_of(engine_of(tokenizer)))


def spelled(tokenizer: Pieces, ids: list[int] | None) -> list[bytes]:
    assert ids is not None
    return [tokenizer.token_bytes(token) for token in ids]


def test_it_splits_as_the_tokenizer_does():
    tokenizer = Pieces([b"a", b"b", b"ab", b"abc", b"c", b" "])
    assert spelled(tokenizer, coder(tokenizer).encode(b"abc ab")) == [b"abc", b" ", b"ab"]


def test_what_follows_a_text_is_split_as_in_it_from_the_boundary_on():
    tokenizer = Pieces([b"h", b"e", b"l", b"o", b"hello", b"lo", b" ", b" you", b"y", b"u"])
    own = coder(tokenizer)
    # "hello" spans the boundary: what is left of it is "lo", and the rest is as the tokenizer has it.
    assert spelled(tokenizer, own.encode(b"lo you", b"hel")) == [b"lo", b" you"]
    assert spelled(tokenizer, own.encode(b" you", b"hello")) == [b" you"]
    assert own.encode(b"", b"hello") == []


@pytest.mark.parametrize("adds_space", [False, True])
def test_a_space_put_before_a_text_is_taken_off_again(adds_space):
    tokenizer = Pieces([b"a", b"b", b" ", b" a", b" ab", b"  "], adds_space=adds_space)
    own = coder(tokenizer)
    assert spelled(tokenizer, own.encode(b"ab")) == [b"a", b"b"]
    assert spelled(tokenizer, own.encode(b" ab")) == [b" ab"]
    assert spelled(tokenizer, own.encode(b" ")) == [b" "]
    assert b"".join(spelled(tokenizer, own.encode(b"  ab"))) == b"  ab"
    assert spelled(tokenizer, own.encode(b" a", b"b")) == [b" a"]


def test_characters_split_over_tokens():
    text = "né😀".encode()
    tokenizer = Pieces([*BYTES, "é".encode()])
    own = coder(tokenizer)
    assert spelled(tokenizer, own.encode(text)) == [b"n", "é".encode(), b"\xf0", b"\x9f", b"\x98", b"\x80"]
    assert spelled(tokenizer, own.encode(text[2:], text[:2])) == [b"\xa9", b"\xf0", b"\x9f", b"\x98", b"\x80"]
    assert spelled(tokenizer, own.encode(text[:-1])) == [b"n", "é".encode(), b"\xf0", b"\x9f", b"\x98"]
    without = Pieces([b"n", "é".encode(), "<unk>"])
    assert coder(without).encode(text[:2]) is None, "half a character, and no token for a byte"
    assert coder(without).encode(b"nx") is None
    assert spelled(without, coder(without).encode("né".encode())) == [b"n", "é".encode()]


class Lowering(Pieces):
    """A tokenizer that changes its text (an uncased vocabulary)."""

    def encode(self, text):
        return super().encode(text.lower())


def test_a_tokenizer_that_changes_its_text_is_not_believed():
    tokenizer = Lowering([b"a", b"b", b"A", b"aa"])
    assert spelled(tokenizer, coder(tokenizer).encode(b"Aab")) == [b"A", b"a", b"b"]
    assert spelled(tokenizer, coder(tokenizer).encode(b"aab")) == [b"aa", b"b"]


@given(data=st.binary(max_size=24), before=st.binary(max_size=8), seed=st.integers(0, 99), adds_space=st.booleans())
@settings(deadline=None, derandomize=True, max_examples=100)
def test_bytes_are_kept_whatever_they_are(data, before, seed, adds_space):
    rng = random.Random(seed)
    pieces = {bytes(rng.choices(data + before + b" e\xc3\xa9", k=rng.randint(2, 4))) for _ in range(20)}
    singles = {bytes([byte]) for byte in data + before + b" "}
    tokenizer = Pieces(sorted(pieces | singles), adds_space=adds_space)
    ids = coder(tokenizer).encode(data, before)
    assert ids is not None
    assert tokenizer.text(ids) == data


@given(text=st.text(max_size=12), cut=st.integers(0, 4))
@settings(deadline=None, derandomize=True)
def test_complete_cuts_exactly_the_last_half_character(text, cut):
    data = text.encode()
    short = data[: len(data) - min(cut, len(data))]
    assert complete(short) == short.decode(errors="ignore").encode()


def test_prefix_is_what_the_tokenizer_puts_before_a_prompt():
    assert prefix_of(Pieces(["<s>", b"a"], bos="<s>")) == [0]
    assert prefix_of(Pieces([b"a"])) == []


def mirror_of(target: Pieces, draft: Pieces) -> Mirror:
    pairing = pairing_of(engine_of(target), engine_of(draft))
    return Mirror(pairing, TextCoder(draft, pairing.draft), prefix_of(draft))


def test_special_tokens_meet_by_name_and_others_are_left_out():
    target = Pieces(["<s>", b"a", b"b", "<turn>", "<only here>"], bos="<s>")
    draft = Pieces([b"b", b"ab", "<turn>", b"a", "<bos>"], bos="<bos>")
    mirror = mirror_of(target, draft)
    mirror.start()
    assert mirror.follow([0, 1, 2, 3, 1, 4, 2]) == [4, 1, 2, 3, 0]
    # Text on both sides of a special token is never joined over it: "a" and "b" are not "ab".


def test_bos_stands_once():
    target, draft = Pieces(["<s>", b"a"], bos="<s>"), Pieces([b"a", "<s>"], bos="<s>")
    mirror = mirror_of(target, draft)
    mirror.start()
    assert mirror.follow([0, 1, 1]) == [1, 0, 0]
    assert mirror.follow([0, 1, 1, 0, 1]) == [1, 0, 0, 1, 0], "one in the text stays"


def test_what_the_draft_cannot_spell():
    mirror = mirror_of(Pieces([b"a", b"\xc3", b"\xa9"]), Pieces([b"a", "é".encode(), "<unk>"]))
    mirror.start()
    assert mirror.follow([0, 1]) is None, "half a character"
    assert mirror.follow([0, 1, 2]) == [0, 1], "whole again"


@given(seed=st.integers(0, 10**6))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_a_mirror_keeps_every_byte_and_what_is_settled(seed):
    rng = random.Random(seed)
    alphabet = "ab é "

    def vocabulary(adds_space: bool) -> Pieces:
        words = {"".join(rng.choices(alphabet, k=rng.randint(1, 4))).encode() for _ in range(12)}
        singles = {bytes([byte]) for byte in alphabet.encode()}
        pieces = list(words | singles)
        pieces.sort(key=lambda piece: rng.random())
        return Pieces(["<x>", *pieces], adds_space=adds_space)

    target, draft = vocabulary(False), vocabulary(rng.random() < 0.3)
    mirror = mirror_of(target, draft)
    mirror.start()
    context: list[int] = []
    settled: list[int] = []
    for _ in range(30):
        context += [rng.randrange(target.vocab_size) for _ in range(rng.randint(1, 6))]
        ids = mirror.follow(context)
        assert ids is not None
        assert draft.text(ids) == target.text(context)
        assert [token for token in ids if token == 0] == [0] * context.count(0)
        assert ids[: len(settled)] == settled, "what was settled does not change"
        assert mirror.settled <= len(ids)
        settled = ids[: mirror.settled]


@pytest.mark.parametrize("spaces", [True, False])
def test_a_round_reads_a_tail_only(spaces):
    """Chinese has no spaces: any common boundary does where no word begins for long."""
    rng = random.Random(1)
    target = Pieces([b"a", b"b", b"ab", *([b" ", b" a"] if spaces else [])])
    draft = Pieces([b"b", b"a", b"ba", b"bab", *([b" a", b" "] if spaces else [])])
    mirror = mirror_of(target, draft)
    mirror.start()
    context = [rng.randrange(target.vocab_size) for _ in range(3000)]
    mirror.follow(context)
    draft.encoded.clear()
    for _ in range(500):
        context += [rng.randrange(target.vocab_size) for _ in range(3)]
        ids = mirror.follow(context)
        assert draft.text(ids[-20:]) == target.text(context)[-len(draft.text(ids[-20:])) :]
    assert draft.text(ids) == target.text(context)
    assert max(map(len, draft.encoded)) <= 2 * (LONGEST_TAIL + 3)
