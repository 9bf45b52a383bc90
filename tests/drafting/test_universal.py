"""Drafts with another tokenizer: the output is the target's own, q is what was sampled from."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.sampling import SamplingParams, draw, probabilities, softmax, uniform
from specview.drafting.draft_model import DraftModel
from specview.drafting.universal import IntersectionDraft, ReencodingDraft
from specview.errors import SpecviewError, Stopped, UsageError
from tests.decoding.statistics import chi_square_p
from tests.decoding.toy import (
    LENGTH,
    TARGET,
    FakeEngine,
    chain_distribution,
    plain_reference,
    run_decode,
    toy_logits,
)
from tests.drafting.universal_toy import Pieces, engine_of, foreign_drafter, letters_model

HONEST = 1e-4
LETTERS = [b"a", b"b", b"c", b"d"]
# The two share a, b, c, d and "ab", under other ids; each has groups that the other has not.
TARGET_PIECES = ["<s>", *LETTERS, b"ab", b"cd", b"bc", b"dab"]
DRAFT_PIECES = [b"d", b"ab", b"c", b"abc", b"b", b"a", b"da", "<start>"]


def pair(seed: int = 16, namespace: str = "numpy", **options) -> tuple[FakeEngine, FakeEngine]:
    """A target and a draft of different tokenizers that agree on most text."""
    target, draft = Pieces(TARGET_PIECES, bos="<s>"), Pieces(DRAFT_PIECES, bos="<start>")
    return (
        engine_of(target, letters_model(target, seed), "target", namespace=namespace),
        engine_of(draft, letters_model(draft, seed, noise=0.4), "draft", namespace=namespace, **options),
    )


# -- which approach applies ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        ("greedy", ReencodingDraft),
        ("match", ReencodingDraft),
        ("typical", ReencodingDraft),
        ("rejection", IntersectionDraft),
        ("naive", IntersectionDraft),
    ],
)
def test_the_rule_decides_for_a_foreign_pair(rule, kind):
    assert type(foreign_drafter(*pair(), rule=rule)) is kind


def test_the_option_decides_over_the_rule():
    assert type(foreign_drafter(*pair(), "intersection", "greedy")) is IntersectionDraft
    assert type(foreign_drafter(*pair(), "re-encode", "rejection")) is ReencodingDraft


def test_the_same_tokenizer_needs_no_translation():
    target, _ = pair()
    other = engine_of(Pieces(TARGET_PIECES, bos="<s>"))
    for vocabulary in ("auto", "same"):
        assert type(foreign_drafter(target, other, vocabulary)) is DraftModel
    assert type(foreign_drafter(target, other, "re-encode")) is ReencodingDraft


def test_same_refuses_another_tokenizer_in_one_line():
    with pytest.raises(UsageError, match="draft has another tokenizer than target, and vocabulary is same"):
        foreign_drafter(*pair(), "same")


def test_an_empty_intersection_is_one_clear_line():
    target, draft = engine_of(Pieces([b"a", b"b"]), name="T"), engine_of(Pieces([b"aa", b"bb"]), name="D")
    with pytest.raises(SpecviewError) as caught:
        foreign_drafter(target, draft, rule="rejection")
    assert str(caught.value) == (
        "the vocabularies of D and T share no token, so there is nothing to draft with q. "
        "Use rule match, vocabulary re-encode, or a draft of the same family."
    )
    foreign_drafter(target, draft, rule="match").close()


# -- exactness ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("rule", "sampling"),
    [
        ("greedy", SamplingParams()),
        ("match", SamplingParams(1.0, seed=5)),
        ("match", SamplingParams(0.7, top_k=3, top_p=0.9, seed=6)),
        ("rejection", SamplingParams()),
    ],
)
@pytest.mark.parametrize("vocabulary", ["re-encode", "intersection"])
def test_output_equals_plain_and_drafts_are_taken(rule, sampling, vocabulary, namespace):
    target, draft = pair(namespace=namespace)
    prompt = [0, 1, 2, 5]
    output, rounds, _, _ = run_decode(
        target, prompt, rule=rule, sampling=sampling, max_tokens=80, k=4,
        drafter=foreign_drafter(target, draft, vocabulary, rule),
    )  # fmt: skip
    assert output == plain_reference(target.model, prompt, sampling, 80)
    assert sum(round_.accepted for round_ in rounds) > 30, "the models agree, so a draft must be worth something"
    assert all(round_.k <= 4 for round_ in rounds)
    if vocabulary == "re-encode":
        assert all(token.q == 1.0 for round_ in rounds for token in round_.drafted)


ALPHABET = "abé "


def random_vocabulary(rng: random.Random) -> Pieces:
    """Pieces over a few letters: single bytes (or whole letters only), groups, special tokens, an end."""
    groups = {"".join(rng.choices(ALPHABET, k=rng.randint(2, 4))).encode() for _ in range(rng.randint(0, 8))}
    if rng.random() < 0.7:
        singles = {bytes([byte]) for byte in ALPHABET.encode()}
    else:
        singles = {letter.encode() for letter in ALPHABET}
    pieces = [*(groups | singles), "<s>", f"</{rng.randrange(2)}>"]
    rng.shuffle(pieces)
    ends = [piece for piece in pieces if isinstance(piece, str) and piece.startswith("</")]
    return Pieces(pieces, ends=ends, bos="<s>", adds_space=rng.random() < 0.2)


@given(seed=st.integers(0, 10**6), vocabulary=st.sampled_from(["re-encode", "intersection"]))
@settings(deadline=None, derandomize=True, max_examples=80)
def test_any_two_vocabularies(seed, vocabulary):
    """Greedy equals plain and match equals sampled plain; the draft's cache is its text and what it drafted."""
    rng = random.Random(seed)
    target_tokens, draft_tokens = random_vocabulary(rng), random_vocabulary(rng)
    target = engine_of(target_tokens, letters_model(target_tokens, seed), "target")
    draft = engine_of(draft_tokens, letters_model(draft_tokens, seed, noise=rng.random()), "draft")
    rule, sampling = rng.choice([("greedy", SamplingParams()), ("match", SamplingParams(1.0, seed=seed))])
    prompt = [rng.randrange(target_tokens.vocab_size) for _ in range(rng.randint(1, 12))]
    drafter = foreign_drafter(target, draft, vocabulary, rule)
    output, rounds, end, _ = run_decode(
        target, prompt, rule=rule, sampling=sampling, max_tokens=25, k=rng.randint(1, 6), drafter=drafter
    )
    expected = plain_reference(target.model, prompt, sampling, 25)
    stop = next((at + 1 for at, token in enumerate(expected) if token in target.eos_ids), 25)
    assert output == expected[:stop]
    assert end == ("eos" if output[-1] in target.eos_ids else "limit")


@given(seed=st.integers(0, 10**6), vocabulary=st.sampled_from(["re-encode", "intersection"]))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_the_drafts_cache_is_the_text_so_far(seed, vocabulary):
    rng = random.Random(seed)
    singles = [bytes([byte]) for byte in ALPHABET.encode()]
    words = [b"ab", b" a", b"ba b", "é ".encode(), b"a b"]
    target_tokens = Pieces([*singles, *words])
    draft_tokens = Pieces(["<s>", *reversed([*singles, b" b", b"bab", "éa".encode()])], bos="<s>")
    target = engine_of(target_tokens, name="target")
    draft = engine_of(draft_tokens, name="draft")
    drafter = foreign_drafter(target, draft, vocabulary)
    sampling = SamplingParams(1.0, seed=seed)
    context = [rng.randrange(target_tokens.vocab_size) for _ in range(rng.randint(1, 30))]
    drafter.start(context, sampling)
    session = draft.sessions[0]
    for _ in range(12):
        proposed = drafter.propose(context, rng.randint(1, 5))
        # What is cached: BOS, the context's text, and drafted text but for the last token's.
        cached = draft_tokens.text(session.tokens)
        written = target_tokens.text(context)
        assert session.tokens[0] == 0
        assert cached.startswith(written)
        rest, text = cached[len(written) :], target_tokens.text(proposed.tokens)
        assert rest.startswith(text) or text.startswith(rest)
        context += proposed.tokens[: rng.randint(0, len(proposed))]
        context += [rng.randrange(target_tokens.vocab_size)]


# -- rejection with the intersection -------------------------------------------------------------------

# Of the target's four tokens the draft has two, under other ids, and others besides.
TOY_TARGET = Pieces([b"a", b"b", b"ab", b"c"])
TOY_DRAFT = Pieces([b"ba", b"b", b"x", b"a", b"aa"])
TOY_ROWS = np.random.default_rng(4).dirichlet(np.ones(5), size=5)


@pytest.mark.parametrize("vocabulary", ["intersection", "re-encode"])
def test_rejection_converges_to_the_target(vocabulary):
    target = engine_of(TOY_TARGET, toy_logits(TARGET))
    draft = engine_of(TOY_DRAFT, toy_logits(TOY_ROWS))
    # "c" is what the draft has no token for: after it there is no draft, and the loop goes on.
    outcomes: Counter = Counter()
    drafter = foreign_drafter(target, draft, vocabulary, "rejection")
    accepted = 0
    for seed in range(2500):
        output, rounds, _, session = run_decode(
            target, [0], rule="rejection", sampling=SamplingParams(1.0, seed=seed), max_tokens=LENGTH, drafter=drafter
        )
        session.close()
        drafter._session.truncate(0)
        drafter._cached, drafter._certain = [], 0
        outcomes[tuple(output)] += 1
        accepted += sum(round_.accepted for round_ in rounds)
    assert chi_square_p(outcomes, chain_distribution(TARGET)) > HONEST
    assert accepted > 300


def test_a_q_that_is_not_restricted_would_be_found_out():
    """The check above can fail: with the draft's mass outside the intersection left in q, the rule bends."""
    target = engine_of(TOY_TARGET, toy_logits(TARGET))
    draft = engine_of(TOY_DRAFT, toy_logits(TOY_ROWS))
    outcomes: Counter = Counter()
    for seed in range(2500):
        drafter = foreign_drafter(target, draft, "intersection", "rejection")
        honest = drafter.propose

        def lie(context, budget, proceed=None, honest=honest):
            found = honest(context, budget, proceed)
            return replace(found, q=None if found.q is None else tuple(row * 0.4 for row in found.q))

        drafter.propose = lie
        output, *_ = run_decode(
            target, [0], rule="rejection", sampling=SamplingParams(1.0, seed=seed), max_tokens=LENGTH, drafter=drafter
        )
        outcomes[tuple(output)] += 1
        draft.sessions.clear()
    assert chi_square_p(outcomes, chain_distribution(TARGET)) < HONEST


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
@pytest.mark.parametrize("sampling", [SamplingParams(1.0, seed=3), SamplingParams(0.6, top_k=2, top_p=0.95, seed=3)])
def test_q_is_the_drafts_distribution_over_the_shared_tokens(sampling, namespace):
    target, draft = pair(namespace=namespace)
    drafter = foreign_drafter(target, draft, rule="rejection")
    prompt = [0, 1, 2, 8, 6]  # a b dab cd
    drafter.start(prompt, sampling)
    found = drafter.propose(prompt, 5)
    shared = {1: 5, 2: 4, 3: 2, 4: 0, 5: 1}  # target id -> draft id: a, b, c, d, ab
    own = drafter._mirror.follow(prompt)[:]
    assert draft.tokenizer.text(own) == b"abdabcd"
    assert len(found) == len(found.q) == len(found.raw_logits) == 5
    for step, token in enumerate(found.tokens):
        restricted = draft.model([*own, *(shared[token] for token in found.tokens[:step])])[list(shared.values())]
        expected = np.zeros(target.vocab_size)
        expected[list(shared)] = probabilities(restricted, sampling)
        row = np.asarray(found.q[step])
        assert row == pytest.approx(expected, abs=1e-6)
        assert row.sum() == pytest.approx(1, abs=1e-6)
        assert set(np.nonzero(row)[0]) <= set(shared)
        assert token == draw(found.q[step], uniform(3, 0, "draft", step))


def test_confidence_of_the_intersection_is_of_the_drafts_whole_vocabulary():
    target, draft = pair()
    drafter = foreign_drafter(target, draft, rule="rejection")
    drafter.start([0, 1], SamplingParams(1.0, seed=1))
    heard: list[float] = []
    found = drafter.propose([0, 1], 4, lambda confidence: heard.append(confidence) or len(heard) < 3)
    assert len(found) == 3
    assert list(found.confidences) == heard
    shared = {1: 5, 2: 4, 3: 2, 4: 0, 5: 1}
    own = drafter._mirror.follow([0, 1])[:]
    for step, token in enumerate(found.tokens):
        raw = softmax(draft.model([*own, *(shared[token] for token in found.tokens[:step])]))
        assert heard[step] == pytest.approx(float(raw[shared[token]]), rel=1e-5)


def test_rows_of_other_widths():
    target, draft = Pieces(TARGET_PIECES), Pieces([*DRAFT_PIECES, None, b"<unused1>"])
    wide = engine_of(target, letters_model(target), "target")
    wide.vocab_size = 32  # padded rows
    narrow = engine_of(draft, letters_model(draft), "draft")
    sampling = SamplingParams(1.0, seed=2)
    drafter = foreign_drafter(wide, narrow, rule="rejection")
    output, rounds, _, _ = run_decode(
        wide, [1, 2], rule="rejection", sampling=sampling, max_tokens=40, drafter=drafter, k=3
    )
    assert len(output) == 40
    assert sum(round_.accepted for round_ in rounds) > 5
    assert all(token < target.vocab_size for token in output)


# -- re-encoding ---------------------------------------------------------------------------------------


def scripted(tokenizer: Pieces, text: bytes, pieces: list[bytes], name: str = "draft", **options) -> FakeEngine:
    """A draft that writes `pieces` after the prompt's text, one token at a time, and then the end of text."""
    ids = [tokenizer.pieces.index(piece) for piece in pieces]

    def model(prefix):
        row = np.zeros(tokenizer.vocab_size, dtype=np.float32)
        written = tokenizer.text(prefix)
        done = next((n for n in range(len(pieces) + 1) if text + b"".join(pieces[:n]) == written), None)
        nxt = min(tokenizer.eos_ids, default=0) if done is None or done == len(ids) else ids[done]
        row[nxt] = 4.0
        return row

    return engine_of(tokenizer, model, name, **options)


def drafted(target: Pieces, draft: FakeEngine, prompt: list[int], budget: int) -> list:
    drafter = foreign_drafter(engine_of(target, name="target"), draft, "re-encode")
    drafter.start(prompt, SamplingParams())
    return [target.pieces[token] for token in drafter.propose(prompt, budget).tokens]


def test_text_is_proposed_in_the_targets_own_tokens():
    target = Pieces([b"t", b"h", b"e", b" ", b"the", b" cat", b" c"])
    draft = scripted(
        Pieces(["</s>", b"th", b"e", b" c", b"at", b" ", b"t"], ends=["</s>"]), b"the", [b" c", b"at", b" ", b"th", b"e"]
    )
    assert drafted(target, draft, [4], 5) == [b" cat", b" ", b"the"]
    assert drafted(target, draft, [4], 2) == [b" cat", b" "], "no more than the budget"
    # The budget is reached within a word: what the draft has of it is proposed.
    assert drafted(target, draft, [4], 3) == [b" cat", b" ", b"t"]


def test_the_rest_of_a_word_that_the_context_began():
    target = Pieces([b"h", b"e", b"l", b"o", b"hello", b"lo", b" ", b"hel", b" you"])
    draft = scripted(Pieces(["</s>", b"h", b"e", b"l", b"o", b" you"], ends=["</s>"]), b"hel", [b"l", b"o", b" you"])
    # "hello" is the target's token for the whole word, but "hel" stands already.
    assert drafted(target, draft, [7], 4) == [b"lo", b" you"]


def test_characters_split_over_the_drafts_tokens_and_over_the_targets():
    smile = "😀".encode()
    target = Pieces([smile[:2], smile[2:], b"a", b"\xc3", b"\xa9", b"!"])
    draft_tokens = Pieces(["</s>", *(smile[i : i + 1] for i in range(4)), b"a", "é".encode(), b"!"], ends=["</s>"])
    draft = scripted(draft_tokens, b"a", [smile[i : i + 1] for i in range(4)] + ["é".encode(), b"!"])
    assert drafted(target, draft, [2], 5) == [smile[:2], smile[2:], b"\xc3", b"\xa9", b"!"]
    # The context ends within the character: the draft reads its bytes, and goes on with the rest.
    half = scripted(draft_tokens, b"a" + smile[:2], [smile[2:3], smile[3:], b"!"])
    assert drafted(target, half, [2, 0], 5) == [smile[2:], b"!"]


def test_half_a_character_at_the_end_is_not_proposed():
    smile = "😀".encode()
    target = Pieces([b"a", smile, *(smile[i : i + 1] for i in range(4))])
    draft = scripted(Pieces(["</s>", *(smile[i : i + 1] for i in range(4)), b"a"], ends=["</s>"]), b"a", [smile[:1], smile[1:2]])
    # It ends its text there: neither the half nor an end after it is a continuation.
    assert drafted(target, draft, [0], 4) == []


def test_a_draft_that_cannot_spell_the_context_drafts_nothing_until_it_can():
    target = Pieces([b"a", b"\xc3", b"\xa9"])
    tokens = Pieces([b"a", "é".encode(), "<unk>"])
    draft = engine_of(tokens, lambda prefix: np.array([1.0, 0.5, 0.0], np.float32), "draft")
    for vocabulary in ("re-encode", "intersection"):
        drafter = foreign_drafter(engine_of(target, name="target"), draft, vocabulary)
        drafter.start([0, 1], SamplingParams())
        assert len(drafter.propose([0, 1], 3)) == 0
        assert len(drafter.propose([0, 1, 2], 3)) > 0
        assert draft.sessions[-1].tokens[:2] == [0, 1]


@pytest.mark.parametrize("vocabulary", ["re-encode", "intersection"])
def test_the_drafts_end_is_the_targets(vocabulary):
    target = Pieces([b"a", "<eot>", b"b", "<turn>"], ends=["<eot>", "<turn>"])
    draft = scripted(Pieces(["</s>", b"a", b"b"], ends=["</s>"]), b"ab", [b"a", b"b"])
    drafter = foreign_drafter(engine_of(target, name="target"), draft, vocabulary)
    for prompt, end in (([0, 2], 1), ([3, 0, 2], 3)):
        drafter.start(prompt, SamplingParams())
        assert drafter.propose(prompt, 6).tokens == (0, 2, end), "and nothing is drafted after it"
        drafter._session.truncate(0)
        drafter._cached, drafter._certain = [], 0


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_confidence_of_an_end_is_that_of_the_drafts_likeliest_end(temperature, namespace):
    """Of its ends, <|endoftext|> and <|im_end|>, a draft is sure of the second: it ends a chat's turn."""
    target = Pieces([b"a", "<eot>", b"b"], ends=["<eot>"])
    draft = Pieces(["<|endoftext|>", b"a", "<|im_end|>", b"b"], ends=["<|endoftext|>", "<|im_end|>"])
    logits = np.array([-9.0, 0.0, 8.0, 1.0], dtype=np.float32)
    drafter = foreign_drafter(
        engine_of(target, name="target"), engine_of(draft, lambda prefix: logits, namespace=namespace), "intersection"
    )
    drafter.start([0, 2], SamplingParams(temperature, seed=1))
    found = drafter.propose([0, 2], 4, lambda confidence: True)
    assert found.tokens == (1,)
    assert found.confidences == (pytest.approx(float(softmax(logits)[2])),)


def test_an_unusual_segmentation_costs_acceptance_only():
    """The target would write "ab" as two tokens, the re-encoded draft proposes the one: still exact."""
    target_tokens = Pieces([b"ab", b"a", b"b"])

    def model(prefix):
        return np.array([0.0, 2.0 if prefix[-1] != 1 else 0.0, 1.0], dtype=np.float32)

    target = engine_of(target_tokens, model, "target")
    draft_tokens = Pieces([b"b", b"a"])
    draft = engine_of(draft_tokens, lambda prefix: np.array([1.0, 0.0][:: 1 if prefix[-1] else -1], np.float32), "draft")
    output, rounds, _, _ = run_decode(
        target, [2], rule="greedy", sampling=SamplingParams(), max_tokens=20,
        drafter=foreign_drafter(target, draft, "re-encode"), k=3,
    )  # fmt: skip
    assert output == [1, 2] * 10
    whole = [token.verdict for round_ in rounds for token in round_.drafted if token.id == 0]
    assert len(whole) > 5
    assert "accepted" not in whole


def test_confidence_is_the_product_over_the_drafts_tokens_of_a_token():
    target = Pieces([b"abc", b"d", b"e", b" "])
    pieces = [b"a", b"bc", b"de", b" "]
    draft = scripted(Pieces(["</s>", *pieces], ends=["</s>"]), b" ", pieces)
    p = float(softmax(np.array([4.0, 0, 0, 0, 0]))[0])
    drafter = foreign_drafter(engine_of(target, name="target"), draft, "re-encode")
    heard: list[float] = []

    def propose(limit: int):
        heard.clear()
        drafter.start([3], SamplingParams())
        drafter._session.truncate(0)
        drafter._cached, drafter._certain = [], 0
        return drafter.propose([3], 4, lambda confidence: heard.append(confidence) or len(heard) < limit)

    found = propose(9)
    assert found.tokens == (0, 1, 2, 3)
    # "abc" needs two of the draft's tokens; "d" and "e" are one: the second comes with the first.
    assert list(found.confidences) == pytest.approx([p * p, p, 1.0, p])
    assert heard == pytest.approx(list(found.confidences))
    assert propose(1).tokens == (0,)
    assert len(heard) == 1
    assert propose(2).tokens == (0, 1), "the token that fell short stays, what came with it goes"


def test_a_draft_of_letters_writes_several_for_a_token():
    word = b"abcdef"
    target = Pieces([word, b"ab", b"cd", *(word[i : i + 1] for i in range(6))])
    singles = [word[i : i + 1] for i in range(6)]
    draft = scripted(Pieces(["</s>", *singles], ends=["</s>"]), word, singles * 3)
    assert drafted(target, draft, [0], 2) == [b"ab", b"c"]
    assert drafted(target, draft, [0], 4) == [word, b"ab", b"cd", b"e"]


# -- limits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocabulary", ["re-encode", "intersection"])
def test_beyond_its_own_context_it_drafts_nothing(vocabulary):
    target, draft = pair(context_length=12)
    drafter = foreign_drafter(target, draft, vocabulary)
    prompt = [0, 1, 2, 3]
    output, rounds, _, _ = run_decode(
        target, prompt, rule="greedy", sampling=SamplingParams(), max_tokens=40, drafter=drafter, k=4
    )
    assert output == plain_reference(target.model, prompt, SamplingParams(), 40)
    assert rounds[0].k > 0
    assert rounds[-2].k == 0
    assert max(len(session.tokens) for session in draft.sessions) <= 12


@pytest.mark.parametrize("vocabulary", ["re-encode", "intersection"])
def test_a_prompt_beyond_its_own_context(vocabulary):
    target, draft = pair(context_length=8)
    output, rounds, _, _ = run_decode(
        target, [0, *([1, 2] * 12)], rule="greedy", sampling=SamplingParams(), max_tokens=6,
        drafter=foreign_drafter(target, draft, vocabulary),
    )  # fmt: skip
    assert len(output) == 6
    assert all(round_.k == 0 for round_ in rounds)


def test_a_prompt_of_special_tokens_only():
    """A draft without BOS has nothing to begin with: it drafts from the second token on."""
    target = Pieces(["<s>", *LETTERS], bos="<s>")
    draft = Pieces(list(reversed(LETTERS)))
    engines = engine_of(target, letters_model(target), "target"), engine_of(draft, letters_model(draft), "draft")
    for vocabulary in ("re-encode", "intersection"):
        output, rounds, _, _ = run_decode(
            engines[0], [0], rule="greedy", sampling=SamplingParams(), max_tokens=20,
            drafter=foreign_drafter(*engines, vocabulary),
        )  # fmt: skip
        assert output == plain_reference(engines[0].model, [0], SamplingParams(), 20)
        assert rounds[0].k == 0 or rounds[0].emitted
        assert sum(round_.k for round_ in rounds) > 0


def test_a_draft_that_is_not_finite_says_so():
    target, _ = pair()
    broken = engine_of(Pieces(DRAFT_PIECES), lambda prefix: np.full(8, np.nan, np.float32), "draft")
    for vocabulary in ("re-encode", "intersection"):
        drafter = foreign_drafter(target, broken, vocabulary)
        drafter.start([1, 2], SamplingParams())
        with pytest.raises(SpecviewError, match="the draft model gave logits that are not finite"):
            drafter.propose([1, 2], 3)


def test_stop_during_its_prefill_and_close():
    target, draft = pair()
    draft.chunk = 2
    drafter = foreign_drafter(target, draft)

    def on_chunk(done, total):
        if done >= 4:
            raise Stopped

    with pytest.raises(Stopped):
        drafter.start([1, 2, 3, 4] * 4, SamplingParams(), on_chunk)
    drafter.close()
    assert draft.sessions[0].closed


@pytest.mark.parametrize("vocabulary", ["re-encode", "intersection"])
def test_a_round_at_a_long_context_feeds_and_reads_as_little_as_at_a_short_one(vocabulary):
    target, draft = pair()
    drafter = foreign_drafter(target, draft, vocabulary, max_length=2000)
    prompt = [1, 2, 3, 4, 5] * 2
    run_decode(
        target, prompt, rule="match", sampling=SamplingParams(1.0, seed=1), max_tokens=600, drafter=drafter, k=3
    )
    session = draft.sessions[0]
    fed = [count for kind, count in session.log if kind == "forward"]
    assert max(fed) < 80
    late = fed[len(fed) // 2 :]
    assert sum(late) / len(late) < 1.5 * sum(fed[: len(fed) // 2]) / (len(fed) // 2)
    for engine in (target, draft):
        assert max(map(len, engine.tokenizer.encoded[-200:]), default=0) < 200
