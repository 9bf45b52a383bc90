"""Cached engines: every row once, and always the row that the engine itself gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.errors import Stopped
from specview.lab.exact_cache import CachedEngine
from tests.decoding.toy import FakeEngine, TableModel

VOCAB = 6
PROMPT = [1, 2, 3, 1]


def cache(**options) -> CachedEngine:
    return CachedEngine(FakeEngine(TableModel(VOCAB), VOCAB, context_length=64), **options)


def opened(cached: CachedEngine, prompt=PROMPT):
    session = cached.new_session(32, 4)
    session.prefill(prompt[:-1])
    return session


def test_rows_are_the_engines_own_computed_once_and_only_where_they_are_read():
    cached = cache()
    model = cached.engine.model
    rows = opened(cached).forward([PROMPT[-1], 4, 5]).logits
    assert rows.shape == (3, VOCAB) and len(rows[:2]) == 2
    assert cached.statistics.passes == 0
    assert np.asarray(rows[1:]).shape == (2, VOCAB)
    assert cached.statistics.computed == 2
    for _ in range(2):
        session = opened(cached)
        rows = session.forward([PROMPT[-1], 4, 5]).logits
        for place in range(3):
            assert np.array_equal(rows[place], model([*PROMPT, 4, 5][: len(PROMPT) + place]))
        session.truncate(len(PROMPT) + 1)
        assert np.array_equal(session.forward([2]).logits[-1], model([*PROMPT, 4, 2]))
        session.close()
    assert (cached.statistics.asked, cached.statistics.computed) == (2 + 8, 4)
    assert len(cached.engine.sessions) == 1
    assert cached.engine.sessions[0].log.count(("truncate", 0)) <= 1
    # everything else is the engine's own
    assert cached.vocab_size == VOCAB and cached.tokenizer is cached.engine.tokenizer
    with pytest.raises(AttributeError):
        _ = cached.no_such_thing


@pytest.mark.parametrize(("single", "rows"), [(False, 2), (True, 1)])
def test_passes_have_two_rows_or_more_and_single_ones_have_one(single, rows):
    cached = cache(single=single)
    list(opened(cached).forward([PROMPT[-1], 4, 5]).logits)
    assert set(cached.engine.sessions[0].passes) == {rows}


def test_trees_have_the_rows_of_their_branches():
    cached = cache()
    session = opened(cached)
    tokens, parents = [PROMPT[-1], 4, 5, 2, 0], [-1, 0, 0, 1, 3]
    rows = session.forward(tokens, parents).logits
    real = cached.engine.new_session(32)
    real.prefill(PROMPT[:-1])
    assert np.array_equal(rows, real.forward(tokens, parents).logits)
    session.keep([0, 1, 3])
    assert session.length == len(PROMPT) + 2
    assert np.array_equal(session.forward([3]).logits[0], cached.engine.model([*PROMPT, 4, 2, 3]))


def test_features_come_with_the_rows_and_the_prompts_are_given_again():
    cached = cache()
    chunks = []
    for _ in range(2):
        session = cached.new_session(32)
        chunks.append([])
        session.prefill(PROMPT[:-1], None, ("last",), lambda found: chunks[-1].extend(found["last"]))
        found = session.forward([PROMPT[-1], 4], None, ("last",))
        assert np.array_equal(found.features["last"], found.logits)
    assert np.array_equal(chunks[0], chunks[1])
    assert len(chunks[0]) == len(PROMPT) - 1
    assert cached.statistics.passes == 1


def test_early_exit_rows_are_cached_too():
    cached = cache()
    fake = cached.engine
    fake.exit_layers, fake.exit_model = 4, TableModel(VOCAB, seed=9)
    for _ in range(2):
        session = opened(cached)
        first = session.forward_exit([PROMPT[-1]], 2)
        second = session.forward_exit([4], 2)
        assert np.array_equal(first[0], fake.exit_model(PROMPT))
        assert np.array_equal(second[0], fake.exit_model([*PROMPT, 4]))
        assert np.array_equal(session.forward([PROMPT[-1], 4]).logits[1], fake.model([*PROMPT, 4]))
    assert cached.statistics.computed == 3


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_full_cache_drops_rows_and_computes_them_again(rows):
    cached = cache(max_bytes=rows * VOCAB * 4)
    for token in (0, 1, 2, 0, 4, 5, 0, 1):
        found = opened(cached).forward([PROMPT[-1], token]).logits
        assert np.array_equal(found[1], cached.engine.model([*PROMPT, token]))
        assert np.array_equal(found[0], cached.engine.model(PROMPT))
    assert cached.statistics.dropped > 0
    assert len(cached._rows) <= rows


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4), st.integers(0, 4)), max_size=12))
def test_any_walk_gives_the_models_rows(steps):
    """Feeding, rolling back and feeding again, over many sessions, never mixes prefixes up."""
    cached = cache()
    for _ in range(2):
        session, held = opened(cached), PROMPT[:-1]
        for tokens, back in steps:
            if len(held) + len(tokens) > 28:
                break
            rows = session.forward(tokens).logits
            for place in range(len(tokens)):
                assert np.array_equal(rows[place], cached.engine.model([*held, *tokens[: place + 1]]))
            held = [*held, *tokens]
            held = held[: max(len(PROMPT) - 1, len(held) - back)]
            session.truncate(len(held))


def test_a_stop_comes_through_and_leaves_the_cache_right():
    stop = [False]

    def on_pass():
        if stop[0]:
            raise Stopped

    cached = cache(on_pass=on_pass)
    assert np.array_equal(opened(cached).forward([1]).logits[0], cached.engine.model(PROMPT))
    stop[0] = True
    with pytest.raises(Stopped):
        _ = opened(cached).forward([1, 5]).logits[1]
    stop[0] = False
    assert np.array_equal(opened(cached).forward([1, 5]).logits[1], cached.engine.model([*PROMPT, 5]))
    cached.close()
    assert cached.engine.sessions[0].closed
    assert not cached.engine.closed
