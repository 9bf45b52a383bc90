"""Which tokens of two vocabularies stand for the same text."""

from __future__ import annotations

import gc
import weakref

import pytest

from specview.drafting.universal_vocabulary import Pairing, Vocabulary, pairing_of, vocabulary_of
from tests.drafting.universal_toy import Piece, Pieces, engine_of


def pairing(target: list[Piece], draft: list[Piece], ends: tuple[list[str], list[str]] = ([], [])) -> Pairing:
    return pairing_of(
        engine_of(Pieces(target, ends=ends[0])),
        engine_of(Pieces(draft, ends=ends[1])),
    )


def test_texts_specials_and_padding_are_told_apart():
    tokenizer = Pieces(["<s>", b"a", b"\xc3", None, b"<unused3>", b"[PAD7]", "</s>"], ends=["</s>"], bos="<s>")
    found = vocabulary_of(engine_of(tokenizer))
    assert found.texts == {1: b"a", 2: b"\xc3"}, "part of a character is text; padding is nothing"
    assert found.specials == {0: b"<s>", 6: b"</s>"}
    assert found.ends == {6}


def test_ids_beyond_the_rows_of_logits_are_left_out():
    engine = engine_of(Pieces([b"a", b"b", b"c"]))
    engine.vocab_size = 2
    assert vocabulary_of(engine).texts == {0: b"a", 1: b"b"}


def test_the_same_tokenizer_with_other_padding():
    words = [b"%d." % index for index in range(40)]
    same = pairing(words, [*words, b"<unused40>", None])
    assert same.same and same.different == [] and same.compared == 40
    assert same.counterparts == {index: index for index in range(40)}
    assert same.shared_share == 1.0
    assert pairing(words, [*words, b"more"]).same
    assert not pairing(words, words[:30]).same, "a quarter of the ids is missing"


def test_another_order_is_another_tokenizer():
    other = pairing([b"a", b"b", b"ab"], [b"b", b"a", b"ab"])
    assert not other.same
    assert other.different == [0, 1]
    assert other.counterparts == {0: 1, 1: 0, 2: 2}, "one to one, by what they stand for"


def test_counterparts_are_one_to_one_and_count_texts():
    found = pairing([b"a", b"b", b"ab", "<x>", b"\n"], [b"\n", b"b", b"bb", b"\n", "<x>"])
    # "\n" is twice in the draft: the one that its tokenizer uses for a text counts.
    assert found.counterparts == {1: 1, 4: 3, 3: 4}
    assert found.shared_texts == 2
    assert found.shared_share == pytest.approx(2 / 4)


def test_of_tokens_with_the_same_bytes_without_a_tokenizer_the_lowest_counts():
    assert Vocabulary({5: b"a", 2: b"a", 3: b"\xff", 9: b"\xff"}).ids == {b"a": 2, b"\xff": 3}
    # One that is in no encoding of its text is no more used than another.
    assert Vocabulary({5: b"a", 2: b"a"}, encode=lambda text: [7]).ids == {b"a": 2}
    assert Vocabulary({5: b"a", 2: b"a"}, encode=lambda text: [5]).ids == {b"a": 5}


def test_which_end_an_end_stands_for():
    both = pairing(["<eot>", b"a", "<turn>"], [b"a", "</s>"], (["<eot>", "<turn>"], ["</s>"]))
    assert both.end_for([2, 1, 1]) == 2, "a chat: the one in the prompt"
    assert both.end_for([1, 2, 0, 1]) == 0, "the last of them"
    assert both.end_for([1, 1]) == 0, "none there: the lowest"
    assert pairing([b"a"], [b"a", "</s>"], ([], ["</s>"])).end_for([0]) is None
    assert pairing([b"a", "</s>"], [b"a"], (["</s>"], [])).end_for([0]) is None


def test_it_is_read_once_and_dies_with_its_engines():
    target, draft = engine_of(Pieces([b"a"])), engine_of(Pieces([b"a", b"b"]))
    first = pairing_of(target, draft)
    assert pairing_of(target, draft) is first
    assert pairing_of(draft, target) is not first
    gone = weakref.ref(draft)
    del draft, first
    gc.collect()
    assert gone() is None
