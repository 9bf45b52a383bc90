"""ngram-mod: the table, its hash, the length rule, forgetting, ties between runs, options."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.sampling import SamplingParams
from specview.drafting import ngram_mod
from specview.drafting.ngram_mod import EMPTY, ENTRIES, METHOD, OPTIONS, PRESETS, NgramMod, make
from specview.errors import UsageError
from specview.settings.options import overlay, resolve
from tests.drafting.ngram_helpers import context_of, finished, replay

CHECKED = settings(deadline=None, derandomize=True, max_examples=120)


@pytest.fixture
def small(monkeypatch):
    """A table of 4,096 entries: as true, and quick to make."""
    monkeypatch.setattr(ngram_mod, "ENTRIES", 4096)


def mod(n=2, shortest=1, longest=8, **more) -> NgramMod:
    return NgramMod({"n_match": n, "n_min": shortest, "n_max": longest, **more})


def proposed(tokens, budget=1000, **sizes):
    drafter = mod(**sizes)
    drafter.start(tokens[:-1], SamplingParams())
    return list(drafter.propose(tokens, budget).tokens)


def test_the_table_is_of_constant_size():
    drafter = mod()
    for size in (10, 5000):
        drafter.start(list(range(size)), SamplingParams())
        assert len(drafter._table) == ENTRIES
        assert drafter._table.itemsize == 4  # 16.8 MB
    drafter.close()
    assert not drafter._table


def test_the_hash_is_llama_cpps():
    """Its low 22 bits: the table has 2^22 entries."""
    drafter = mod(3)
    text = [49_151, 7, 123, 4_000, 5]
    drafter.start(text, SamplingParams())
    for place in range(2):
        value = 0
        for token in text[place : place + 3]:
            value = (value * 6364136223846793005 + token) % 2**64
        assert drafter._table[value % (4 * 1024 * 1024)] == text[place + 3]


@pytest.mark.usefixtures("small")
@given(tokens=st.lists(st.integers(0, 3), min_size=4, max_size=80), n=st.integers(1, 4), shortest=st.integers(0, 5))
@CHECKED
def test_follows_the_last_successor_of_every_n_gram(tokens, n, shortest):
    """A dict of n-grams in place of the table: with few ids no two of them collide in 4,096 entries... checked."""
    longest = shortest + 4
    drafter = mod(n, shortest, longest)
    drafter.start(tokens[:-1], SamplingParams())
    history = tokens[:-1]
    after = {tuple(history[at : at + n]): history[at + n] for at in range(len(history) - n)}
    entries = {drafter._windows.hashes[at] for at in range(len(history) - n)}
    if len(entries) < len(after):
        return  # a collision after all: another test's matter
    run, draft = list(tokens[-n:]), []
    while len(draft) < longest:
        known = after.get(tuple(run[-n:]))
        if known is None:
            break
        draft.append(known)
        run.append(known)
    if len(draft) < shortest or len(history) < n:
        draft = []
    found = list(drafter.propose(tokens, 1000).tokens)
    assert found[: len(draft)] == draft
    assert len(found) == len(draft) or n > 1  # beyond it only a collision of an unseen n-gram leads on


@pytest.mark.usefixtures("small")
def test_examples():
    text = [1, 2, 3, 4, 5, 6, 9, 9, 1, 2]
    assert proposed(text, longest=4) == [3, 4, 5, 6]
    assert proposed(text, longest=6) == [3, 4, 5, 6, 9, 9]
    assert proposed(text, budget=2) == [3, 4]
    assert proposed(text, longest=20, shortest=9) == []  # seven is as far as the table leads
    assert proposed(text, budget=2, longest=20, shortest=7) == [3, 4]  # n_min is asked of the table, not of k
    assert proposed(text, budget=2, longest=20, shortest=8) == []
    assert proposed([1, 1, 1, 1], n=1, longest=5) == [1] * 5
    assert proposed([1, 2, 3], n=3) == []
    assert proposed([1, 2], n=3) == []


@pytest.mark.usefixtures("small")
def test_new_n_grams_enter_in_chunks():
    drafter = mod(2, 1, 3)
    drafter.start([9, 9], SamplingParams())
    context = [9, 9, 1, 2, 3, 4, 1, 2]
    assert drafter.propose(context, 9).tokens == ()  # not entered yet
    context += list(range(10, 60))
    assert drafter.propose([*context, 1, 2], 9).tokens == (10, 11, 12)


POOR = [1, 2, 3, 4, 5, 6, 7, 8, 9] * 6  # longer than a chunk


def poor_rounds(drafter, context, count):
    for _ in range(count):
        draft = drafter.propose(context, 8)
        assert len(draft) == 8
        drafter.observe(finished(draft, 1, 0), {})


@pytest.mark.usefixtures("small")
def test_five_poor_drafts_in_a_row_forget_earlier_runs():
    memory = {}
    tied = context_of(OPTIONS, PRESETS, memory, tie=True, n_match=2, n_min=1, n_max=8)
    first = make(tied)
    first.start(POOR, SamplingParams())
    first.close()
    second = make(tied)
    prompt = [*range(100, 150), 1]
    second.start(prompt, SamplingParams())
    context = [*prompt, 2]
    poor_rounds(second, context, 4)
    good = second.propose(context, 8)
    second.observe(finished(good, 2, 0), {})  # a quarter is not poor: the count begins anew
    poor_rounds(second, context, 5)
    assert second.propose(context, 8).tokens == ()
    assert second.propose([*context, 100, 101], 3).tokens == (102, 103, 104)  # this run's own are kept
    (kept,) = memory.values()
    assert kept.used == 0
    second.close()
    assert kept.used > 40


@pytest.mark.usefixtures("small")
def test_forgetting_enters_what_was_due_and_empties_a_short_text():
    drafter = mod(2, 1, 8)
    prompt = POOR[:40]
    drafter.start(prompt, SamplingParams())
    context = [*prompt, 21, 22, 23, 24, 1, 2]
    poor_rounds(drafter, context, 5)
    assert drafter.propose([*context, 21, 22], 2).tokens == (23, 24)
    short = mod(2, 1, 8)
    short.start(POOR[:12], SamplingParams())
    poor_rounds(short, [*POOR[:12], 1, 2], 5)
    assert short.propose([*POOR[:12], 1, 2, 3], 8).tokens == ()  # as llama.cpp: until a chunk is full
    long = [*POOR[:12], 1, 2, 3, *range(30, 60), 1, 2]
    assert short.propose(long, 2).tokens == (3, 30)


@pytest.mark.usefixtures("small")
def test_rounds_without_a_draft_or_of_another_drafter_are_not_poor():
    drafter = mod(2, 1, 8)
    drafter.start(POOR, SamplingParams())
    context = [*POOR, 1, 2]
    draft = drafter.propose(context, 8)
    for _ in range(9):
        drafter.observe(finished(type(draft)(), 0, 1), {})
        drafter.observe(finished(type(draft)(tokens=draft.tokens, drafter="other"), 0, 1), {})
    assert drafter._poor == 0


@pytest.mark.usefixtures("small")
def test_a_full_table_is_emptied_before_the_next_run():
    memory = {}
    tied = context_of(OPTIONS, PRESETS, memory, tie=True, n_match=2, n_min=1, n_max=8)
    first = make(tied)
    first.start([*range(3000)], SamplingParams())
    first.close()
    (kept,) = memory.values()
    assert kept.used > ngram_mod.FULL * 4096
    second = make(tied)
    second.start([5, 6], SamplingParams())
    assert kept.used == 0
    assert set(kept.table) == {EMPTY}
    assert second.propose([5, 6, 7], 3).tokens == ()


@pytest.mark.usefixtures("small")
def test_nothing_is_kept_from_an_earlier_request_unless_tied():
    """Known fault (llama.cpp 19231)."""
    drafter = mod(2, 1, 3)
    drafter.start([1, 2, 3, 4, 5], SamplingParams())
    assert drafter.propose([1, 2, 3, 4, 5, 1, 2], 3).tokens == (3, 4, 5)
    drafter.start([7, 8, 9], SamplingParams())
    assert drafter.propose([7, 8, 9, 1, 2], 3).tokens == ()
    drafter.start([1, 2, 3, 4, 5], SamplingParams())
    assert drafter.propose([1, 2, 3, 4, 5, 1, 2], 3).tokens == (3, 4, 5)
    memory = {}
    options = {"n_match": 2, "n_min": 1, "n_max": 3}
    tied = context_of(OPTIONS, PRESETS, memory, tie=True, **options)
    first, lane = make(tied), make(tied)
    replay(first, [7, 7, 1, 2, 3, 4, 5, 6], 2)
    lane.start([0], SamplingParams())
    assert lane.propose([0, 1, 2], 3).tokens == ()  # lanes of one race do not learn from each other
    first.close()
    second = make(tied)
    second.start([0], SamplingParams())
    assert second.propose([0, 1, 2], 3).tokens == (3, 4, 5)
    for other in ({"tie": False}, {"tie": True, "n_match": 3}):
        drafter = make(context_of(OPTIONS, PRESETS, memory, **{**options, **other}))
        drafter.start([8, 0, 1], SamplingParams())
        assert drafter.propose([8, 0, 1, 2], 3).tokens == ()


@pytest.mark.usefixtures("small")
def test_this_runs_n_grams_come_before_the_earlier_ones():
    tied = context_of(OPTIONS, PRESETS, {}, tie=True, n_match=2, n_min=1, n_max=1)
    first = make(tied)
    first.start([1, 2, 3, 4], SamplingParams())
    first.close()
    second = make(tied)
    second.start([1, 2, 8, 9], SamplingParams())
    assert second.propose([1, 2, 8, 9, 1, 2], 1).tokens == (8,)


def test_presets_and_bad_sizes():
    code = resolve(OPTIONS, overlay(OPTIONS, PRESETS, {}), "x")
    assert code == {"preset": "code", "n_match": 24, "n_min": 48, "n_max": 64, "tie": False}
    assert METHOD.drafted(code).levels == 64
    assert METHOD.drafted(METHOD.resolve({"preset": "text"})).levels == 32
    with pytest.raises(UsageError, match=r"n_min \(9\), is longer than its longest, n_max \(8\)"):
        mod(2, 9, 8)
    with pytest.raises(UsageError, match="n_match is 64, and this run's text is at most 50 tokens"):
        make(context_of(OPTIONS, PRESETS, n_match=64, max_length=50))
    make(context_of(OPTIONS, PRESETS, max_length=8)).close()  # defaults in a run that is simply short
