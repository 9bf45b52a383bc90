"""The bundled target with a draft of another tokenizer: a SentencePiece vocabulary with byte fallback, made here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from specview.decoding.loop import Sequence, decode
from specview.decoding.sampling import SamplingParams
from specview.drafting.method import DrafterContext
from specview.drafting.registry import METHODS
from specview.drafting.universal_text import Mirror, TextCoder, prefix_of
from specview.drafting.universal_vocabulary import pairing_of, vocabulary_of
from specview.models.loading import load_engine
from specview.racing.pool import target_key
from specview.settings.run import RunSettings
from tests.decoding.toy import constant
from tests.models.conftest import cache, make_gguf  # noqa: F401 - fixtures

pytestmark = pytest.mark.real_model

TEXTS = [
    "def main():\n    print('héllo wörld', 12345)\n\n\nNaïve façade; ação, coração.\n",
    "  two spaces\ttabs \n \n\n   and 日本語 😀👩‍👩‍👧 the end ",
    "<|im_end|> is text here, and so is </s> <0x0A>",
]
KINDS = {"<unk>": 2, "<s>": 3, "</s>": 3}


def pieces() -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and types: special ones, byte fallback, letters, a few words by merges."""
    letters = list("▁abcdefghijklmnopqrstuvwxyz.,:()'\"=é")
    words = ["th", "▁th", "▁the", "in", "ing", "er", "▁a", "▁▁", "re", "▁re", "on", "ion", "▁de", "▁def", "llo"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *words]
    kinds = [KINDS.get(token, 6 if token.startswith("<0x") else 1) for token in tokens]
    scores = [-float(index) for index in range(len(tokens))]
    return tokens, scores, kinds


@pytest.fixture
def pair(make_gguf: Callable[..., Path], model_pool: Any) -> Iterator[tuple[Any, Any]]:  # noqa: F811
    pytest.importorskip("torch")
    target = model_pool.get(target_key(RunSettings(engine="transformers", check_mode=True, threads=2)))
    draft = load_engine(str(make_gguf("spm.gguf", sentencepiece=pieces())), "transformers", role="draft", threads=2)
    yield target, draft
    draft.close()


def test_two_real_tokenizers_keep_every_byte(pair: tuple[Any, Any]) -> None:
    for first, second in (pair, pair[::-1]):
        pairing = pairing_of(first, second)
        assert not pairing.same
        coder = TextCoder(second.tokenizer, vocabulary_of(second))
        mirror = Mirror(pairing, coder, prefix_of(second.tokenizer))
        for text in TEXTS:
            mirror.start()
            ids = first.tokenizer.encode(text)
            wanted = b"".join(pairing.target.texts[token] for token in ids)  # with the space a prompt begins with
            assert wanted in (text.encode(), b" " + text.encode())
            for length in range(1, len(ids) + 1):  # token by token, in the midst of characters too
                own = mirror.follow(ids[:length])
                assert own is not None
                spelled = b"".join(pairing.draft.texts.get(token, b"") for token in own)
                assert wanted.startswith(spelled)
            assert spelled == wanted
        odd = "a▁b".encode()  # SentencePiece's own sign for a space, which it cannot tell from one
        assert b"".join(pairing.draft.texts[token] for token in coder.encode(odd) or ()) == odd


def test_shared_tokens_stand_for_the_same_text_in_both_tokenizers(pair: tuple[Any, Any]) -> None:
    target, draft = pair
    pairing = pairing_of(target, draft)
    theirs = {pairing.draft.texts[own] for own in pairing.counterparts.values() if own in pairing.draft.texts}
    assert {b" the", b"ing", b"\n", b"a", b" ", "é".encode()} <= theirs
    for token, own in pairing.counterparts.items():
        assert target.tokenizer.token_bytes(token) == draft.tokenizer.token_bytes(own)
    newline = pairing.counterparts[target.tokenizer.encode("\n")[0]]
    assert draft.tokenizer.token_bytes(newline) == b"\n", "a byte-fallback token"


def test_the_output_is_the_targets_own(pair: tuple[Any, Any]) -> None:
    target, draft = pair
    prompt = target.tokenizer.encode_chat([{"role": "user", "content": "Say ação."}])
    make = METHODS["draft-model"].make
    assert make is not None

    def output(rule: str, sampling: SamplingParams, vocabulary: str | None) -> list[int]:
        session = target.new_session(len(prompt) + 40)
        session.prefill(prompt[:-1])
        sequence = Sequence(list(prompt))
        drafter = policy = None
        if vocabulary is not None:
            options = {"vocabulary": vocabulary}
            context = DrafterContext(options, len(prompt) + 40, target.vocab_size, draft, target, rule=rule)
            drafter, policy = make(context), constant(3)
            drafter.start(prompt, sampling)
        rounds = list(
            decode(
                session, sequence, rule=rule, sampling=sampling, max_tokens=10, eos_ids=target.eos_ids,
                drafter=drafter, policy=policy,
            )
        )  # fmt: skip
        if drafter is not None:
            assert sum(round_.k for round_ in rounds) > 0, "it drafted"
            drafter.close()
        session.close()
        return sequence.output

    sampled = SamplingParams(1.0, seed=3)
    greedy, drawn = output("greedy", SamplingParams(), None), output("match", sampled, None)
    assert greedy != drawn
    assert output("greedy", SamplingParams(), "re-encode") == greedy
    assert output("rejection", SamplingParams(), "intersection") == greedy
    assert output("match", sampled, "re-encode") == drawn
    assert output("match", sampled, "intersection") == drawn
