"""ngram-map-k and ngram-map-k4v: their rules one by one, ties between runs, options."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.sampling import SamplingParams
from specview.drafting import ngram_map
from specview.drafting.ngram_index import KEY_PRESETS, EarlierRuns
from specview.drafting.ngram_map import (
    NgramMapK,
    NgramMapK4V,
)
from specview.drafting.ngram_map import (
    make as make_kind,
)
from specview.errors import UsageError
from tests.drafting.ngram_helpers import context_of, finished, replay

CHECKED = settings(deadline=None, derandomize=True, max_examples=150)
BOTH = pytest.mark.parametrize("kind", [NgramMapK, NgramMapK4V])


def drafts(drafter, context, budget=1000):
    return drafter.propose(context, budget).tokens


def started(kind, prompt, **options):
    drafter = kind({"size_n": 2, "size_m": 3, "min_hits": 1, **options})
    drafter.start(prompt, SamplingParams())
    return drafter


FIRST = [9, 1, 2, 3, 4, 5, 6, 7, 8, 0, 7, 7, 1]


@BOTH
def test_a_key_drafts_what_followed_it(kind):
    drafter = started(kind, FIRST)
    assert drafts(drafter, [*FIRST, 2]) == (3, 4, 5)
    assert drafts(drafter, [*FIRST, 2], 2) == (3, 4)


@BOTH
def test_keys_that_the_prompts_end_may_lose_are_left_out(kind):
    """llama.cpp: none that begins in the prompt's last n + m tokens, nor right after it."""
    late = [9, 9, 9, 8, 8, 8, 1, 2, 3, 4, 5]  # the key begins 5 tokens before the end
    assert drafts(started(kind, late), [*late, 6, 7, 1, 2]) == ()
    early = [9, 9, 9, 8, 8, 1, 2, 3, 4, 5, 6]  # 6 before
    assert drafts(started(kind, early), [*early, 7, 1, 2]) == (3, 4, 5)
    prompt = [9, 9, 9, 8, 8]
    for gap, found in (([], ()), ([7], (3, 4, 5))):  # right after the prompt, and one later
        context = [*prompt, *gap, 1, 2, 3, 4, 5, 6, 6, 1, 2]
        assert drafts(started(kind, prompt), context) == found


@BOTH
def test_the_accepted_length_is_remembered_for_the_key_and_never_grows(kind):
    drafter = started(kind, FIRST)
    draft = drafter.propose([*FIRST, 2], 9)
    drafter.observe(finished(draft, 2, 8), {})
    context = [*FIRST, 2, 3, 4, 8, 0, 1, 2]
    assert drafts(drafter, context) == (3, 4)
    draft = drafter.propose(context, 9)
    drafter.observe(finished(draft, 2, 5), {})
    assert drafts(drafter, [*context, 3, 4, 5, 1, 2]) == (3, 4)
    draft = drafter.propose([*context, 3, 4, 5, 1, 2], 9)
    drafter.observe(finished(draft, 0, 5), {})
    assert drafts(drafter, [*context, 3, 4, 5, 1, 2, 5, 1, 2]) == ()


@BOTH
def test_a_round_that_another_drafter_drafted_teaches_nothing(kind):
    drafter = started(kind, FIRST)
    draft = drafter.propose([*FIRST, 2], 9)
    other = finished(type(draft)(tokens=(5, 6), drafter="other"), 0, 7)
    drafter.observe(other, {})
    assert drafts(drafter, [*FIRST, 2, 7, 1, 2]) == (3, 4, 5)


@BOTH
def test_hits_are_lookups_of_the_key(kind):
    drafter = started(kind, FIRST, min_hits=3)
    context = [*FIRST, 2]
    assert [drafts(drafter, context) for _ in range(4)] == [(), (), (3, 4, 5), (3, 4, 5)]


def test_k_copies_the_last_place_of_the_prompt_and_stays_with_it():
    prompt = [9, 1, 2, 3, 4, 5, 1, 2, 6, 7, 8, 0, 0, 0, 0, 0]
    drafter = started(NgramMapK, prompt)
    assert drafts(drafter, [*prompt, 1, 2]) == (6, 7, 8)
    longer = [*prompt, 1, 2, 7, 1, 2, 5, 5, 5, 5, 5, 5, 1, 2]
    assert drafts(drafter, longer) == (6, 7, 8)


def test_k4v_drafts_only_where_one_continuation_dominates():
    def prompt(*tails):
        parts = [token for tail in tails for token in (1, 2, *tail)]
        return [9, *parts, 0, 0, 0, 0, 0]

    a, b, c = (3, 3, 3), (4, 4, 4), (5, 5, 5)
    assert drafts(started(NgramMapK4V, prompt(a, b)), [*prompt(a, b), 1, 2]) == ()
    assert drafts(started(NgramMapK4V, prompt(a, a, b)), [*prompt(a, a, b), 1, 2]) == a  # though b is the last
    assert drafts(started(NgramMapK4V, prompt(a, a, a, b, c)), [*prompt(a, a, a, b, c), 1, 2]) == ()
    assert drafts(started(NgramMapK4V, prompt(a, a, a, a, b, c)), [*prompt(a, a, a, a, b, c), 1, 2]) == a
    others = [(6 + i, 6 + i, 6 + i) for i in range(4)]
    crowd = prompt(*others, a, a, a, a, a, a, a, a)  # four others hold the places: a is not seen
    assert drafts(started(NgramMapK4V, crowd), [*crowd, 1, 2]) == ()


def test_k4v_counts_the_continuation_at_the_keys_place_with_every_lookup():
    prompt = [9, 1, 2, 3, 3, 3, 1, 2, 4, 4, 4, 0, 0, 0, 0, 0]
    drafter = started(NgramMapK4V, prompt)
    assert [drafts(drafter, [*prompt, 1, 2]) for _ in range(3)] == [(), (4, 4, 4), (4, 4, 4)]


@given(tokens=st.lists(st.integers(0, 3), min_size=10, max_size=120), prompt=st.integers(1, 119))
@CHECKED
def test_every_draft_followed_its_key_before(tokens, prompt):
    for kind in (NgramMapK, NgramMapK4V):
        drafter = kind({"size_n": 2, "size_m": 3, "min_hits": 1})
        for place, drafted, _ in replay(drafter, tokens, min(prompt, len(tokens) - 1)):
            if drafted:
                run = [*tokens[place - 2 : place], *drafted]
                assert any(tokens[at : at + len(run)] == run for at in range(place - len(run)))


MAKERS = pytest.mark.parametrize(("make", "options"), [(partial(make_kind, kind), kind.OPTIONS) for kind in (NgramMapK, NgramMapK4V)])
SIZES = {"size_n": 2, "size_m": 3}


@MAKERS
def test_tied_runs_learn_from_the_one_before(make, options):
    memory = {}
    tied = context_of(options, KEY_PRESETS, memory, tie=True, **SIZES)
    first = make(tied)
    replay(first, [*FIRST, 2, 3, 4, 5, 6, 7], len(FIRST))
    first.close()
    first.close()  # closing twice adds nothing
    second = make(tied)
    second.start([8, 1], SamplingParams())
    assert drafts(second, [8, 1, 2]) == (3, 4, 5)
    other = make(context_of(options, KEY_PRESETS, memory, tie=True, size_n=2, size_m=4))
    untied = make(context_of(options, KEY_PRESETS, memory, **SIZES))
    for drafter in (other, untied):
        drafter.start([8, 1], SamplingParams())
        assert drafts(drafter, [8, 1, 2]) == ()
        drafter.close()
    assert sum(len(one.runs.runs) for one in memory.values()) == 2  # first's, and that of another size


@MAKERS
def test_lanes_of_one_race_do_not_learn_from_each_other(make, options):
    tied = context_of(options, KEY_PRESETS, {}, tie=True, **SIZES)
    one, two = make(tied), make(tied)
    one.start(FIRST, SamplingParams())
    two.start([8, 1], SamplingParams())
    assert drafts(one, [*FIRST, 2]) == (3, 4, 5)
    assert drafts(two, [8, 1, 2]) == ()
    one.close()
    assert drafts(two, [8, 1, 2]) == ()


@MAKERS
def test_tied_runs_remember_accepted_lengths(make, options):
    tied = context_of(options, KEY_PRESETS, {}, tie=True, **SIZES)
    first = make(tied)
    first.start(FIRST, SamplingParams())
    first.observe(finished(first.propose([*FIRST, 2], 9), 1, 7), {})
    first.close()
    second = make(tied)
    second.start([8, 1], SamplingParams())
    assert drafts(second, [8, 1, 2]) == (3,)


@MAKERS
def test_a_draft_never_crosses_from_one_run_into_another(make, options):
    tied = context_of(options, KEY_PRESETS, {}, tie=True, **SIZES)
    for run in ([9, 9, 7, 1, 2, 3], [4, 4, 4, 4, 4, 4]):
        drafter = make(tied)
        drafter.start(run, SamplingParams())
        drafter.propose(run, 9)
        drafter.close()
    third = make(tied)
    third.start([8, 1], SamplingParams())
    assert drafts(third, [8, 1, 2]) in ((), (3,))
    assert drafts(third, [8, 3, 4, 4]) in ((), (4, 4), (4, 4, 4))


def test_earlier_runs_are_bounded_and_the_oldest_go_first():
    runs = EarlierRuns(max_tokens=80, max_runs=3)
    for first in range(0, 100, 10):
        runs.add(list(range(first, first + 10)))
        assert len(runs.runs) <= 3
    assert [run[0] for run in runs.runs] == [70, 80, 90]
    runs = EarlierRuns(max_tokens=80)
    for first in range(0, 1000, 10):
        before = runs.version
        runs.add(list(range(first, first + 10)))
        assert runs.version > before
        assert runs.tokens == sum(map(len, runs.runs)) <= 80
    assert runs.runs[-1][0] == 990
    runs.add(list(range(500)))
    assert [len(run) for run in runs.runs] == [80]
    assert list(runs.runs[0]) == list(range(420, 500))
    runs.max_runs = 0
    runs.evict()
    assert not runs.runs


def test_tied_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(ngram_map, "EARLIER_TOKENS", 50)
    memory = {}
    tied = context_of(NgramMapK.OPTIONS, KEY_PRESETS, memory, tie=True, **SIZES)
    for run in range(20):
        drafter = make_kind(NgramMapK, tied)
        drafter.start([100 + run, *FIRST, 2, 3, 4, 5], SamplingParams())
        drafter.propose([100 + run, *FIRST, 2, 3, 4, 5, run, 200 + run, 1, 2], 9)
        drafter.close()
    (kept,) = memory.values()
    assert kept.runs.tokens <= 50
    assert len(kept.hits) <= 50


@MAKERS
def test_a_key_larger_than_the_run_is_one_clear_line(make, options):
    with pytest.raises(UsageError, match="size_n is 300"):
        make(context_of(options, KEY_PRESETS, size_n=300, max_length=300))
    make(context_of(options, KEY_PRESETS, max_length=5)).close()  # defaults in a run that is simply short
