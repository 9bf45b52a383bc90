"""The counting suffix tree against counts made by hand, in its size, and against ArcticInference's drafts."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.drafting.suffix import BYTES_PER_TOKEN
from specview.drafting.suffix_tree import ROOT, SuffixTree

CHECKED = settings(deadline=None, derandomize=True, max_examples=150)
DATA = Path(__file__).parent / "data"
texts = st.lists(st.integers(0, 3), min_size=1, max_size=50)
depths = st.sampled_from([1, 2, 3, 5, 24])


def memory_bytes(tree: SuffixTree) -> int:
    """Bytes held, counted object by object."""
    lists = (tree._next, tree._link, tree._length, tree._count, tree._best)
    numbers = {id(one): one for part in lists[1:] for one in part} | {id(one): one for part in tree._next for pair in part.items() for one in pair}
    return sum(map(sys.getsizeof, (*lists, *tree._next, *numbers.values())))


def grown(text, depth) -> SuffixTree:
    tree = SuffixTree(depth)
    tree.extend(text)
    return tree


def runs(text, depth) -> Counter:
    return Counter(
        tuple(text[at : at + size]) for at in range(len(text)) for size in range(1, depth + 1) if at + size <= len(text)
    )


def state_of(tree, run) -> int:
    state = ROOT
    for token in run:
        state = tree._next[state][token]
    return state


@given(text=texts, depth=depths)
@CHECKED
def test_counts_every_run_and_knows_what_followed_most_often(text, depth):
    tree, counts = grown(text, depth), runs(text, depth)
    for run, count in counts.items():
        state = state_of(tree, run)
        assert tree._count[state] == count
        if len(run) < depth:
            after = {token: counts[*run, token] for token in range(4) if counts[*run, token]}
            best = tree._best[state]
            assert after.get(best, 0) == max(after.values(), default=0)
    assert tree.end_length == min(depth, len(text))
    assert tree.end == state_of(tree, text[len(text) - tree.end_length :])


@given(several=st.lists(texts, min_size=1, max_size=5), depth=depths)
@CHECKED
def test_several_texts_count_together_and_nothing_spans_two(several, depth):
    tree, counts = SuffixTree(depth), Counter()
    for text in several:
        tree.extend(text)
        tree.extend((-1,))
        counts += runs(text, depth)
    for run, count in counts.items():
        state = state_of(tree, run)
        assert tree._count[state] == count
        if len(run) < depth:
            after = {token: counts[*run, token] for token in range(4) if counts[*run, token]}
            assert after.get(tree._best[state], 0) == max(after.values(), default=0)
            assert tree._best[state] >= 0 or not after


def test_of_equals_the_last_to_get_there_is_likeliest_but_the_first_of_single_ones():
    assert grown([1, 2, 1, 3, 1], 4)._best[state_of(grown([1, 2, 1, 3, 1], 4), [1])] == 2
    text = [1, 2, 1, 3, 1, 2, 1, 3]
    assert grown(text, 4)._best[state_of(grown(text, 4), [1])] == 3


@given(text=texts, pattern=st.lists(st.integers(0, 4), min_size=1, max_size=30), depth=depths)
@CHECKED
def test_matching_token_by_token_finds_the_longest_suffix(text, pattern, depth):
    tree = grown(text, depth)
    match = (ROOT, 0)
    for size, token in enumerate(pattern, 1):
        match = tree.step(*match, token)
        done = pattern[:size]
        known = runs(text, depth)
        longest = max((n for n in range(1, min(depth, size) + 1) if tuple(done[-n:]) in known), default=0)
        assert match == (state_of(tree, done[size - longest :]), longest)


def best_score(text, depth, budget, factor, offset, least):
    """The rule in its own terms, over counts; None where the likeliest token is not one alone."""
    counts = runs(text, depth)
    best, tokens = 0.0, ()
    for match in range(1, min(depth, len(text) + 1)):
        pattern = tuple(text[len(text) - match :])
        path, score = pattern, 0.0
        while len(path) - match < min(budget, int(match * factor + offset + 1e-6)) and len(path) < depth:
            after = {token: counts[(*path, token)] for token in range(4) if counts[(*path, token)]}
            if not after:
                break
            likeliest = [token for token, count in after.items() if count == max(after.values())]
            if len(likeliest) > 1:
                return None
            if after[likeliest[0]] / counts[pattern] < least:
                break
            path = (*path, likeliest[0])
            score += counts[path] / counts[pattern]
        if score >= best and score > 0:
            best, tokens = score, path[match:]
    return best, tokens


@given(
    text=st.lists(st.sampled_from([0, 0, 0, 1, 1, 2]), min_size=1, max_size=40),
    depth=st.sampled_from([2, 4, 24]),
    budget=st.integers(1, 12),
    factor=st.sampled_from([0.5, 1.0, 2.0]),
    offset=st.sampled_from([0.0, 1.0]),
    least=st.sampled_from([0.0, 0.1, 0.4]),
)
@settings(CHECKED, max_examples=400)
def test_the_continuation_is_the_best_scoring_one(text, depth, budget, factor, offset, least):
    tree = grown(text, depth)
    found = tree.continuation(tree.end, tree.end_length, budget, factor, offset, least)
    product, total = 1.0, 0.0
    for share in found.shares:
        product *= share
        total += product
    assert found.score == pytest.approx(total)
    assert len(found.tokens) <= min(budget, int(found.match * factor + offset + 1e-6))
    assert len(found.tokens) + found.match <= depth or not found.tokens
    expected = best_score(text, depth, budget, factor, offset, least)
    if expected is not None:
        assert found.score == pytest.approx(expected[0])
        assert found.tokens == expected[1]


def test_the_reference_is_asked_often_enough():
    """Where likeliest tokens tie the reference says nothing: on a text of words it does speak."""
    text = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2]
    assert best_score(text, 24, 9, 1.0, 0.0, 0.1)[1] == (3, 0, 1, 2)
    tree = grown(text, 24)
    assert tree.continuation(tree.end, tree.end_length, 9).tokens == (3, 0, 1, 2)


def test_equals_arctic_inference_token_for_token():
    record = json.loads((DATA / "arctic_suffix_drafts.json").read_text())
    texts = json.loads((DATA / "llama_cpp_ngram_drafts.json").read_text())["texts"]
    drafted = 0
    for case in record["cases"]:
        tree = SuffixTree(case["depth"])
        for token, (tokens, probabilities) in zip(texts[case["text"]], case["rows"], strict=True):
            tree.extend([token])
            found = tree.continuation(tree.end, tree.end_length, 24, case["factor"], case["offset"], case["least"])
            assert list(found.tokens) == tokens
            product = 1.0
            for share, probability in zip(found.shares, probabilities, strict=True):
                product *= share
                assert product == pytest.approx(probability, abs=2e-6)
            drafted += len(tokens)
    assert drafted > 1500


@pytest.mark.parametrize(
    "text",
    [
        [5] * 4000,
        list(range(10)) * 400,
        [(place * place) % 257 for place in range(4000)],
        [*range(2000), *range(2000)],
        [*([1] * 2000), 2, *([1] * 1999)],
    ],
    ids=["one", "period", "squares", "twice", "runs"],
)
def test_size_and_memory_are_linear_whatever_the_text(text):
    """Two states a token at most, where a tree of 24 levels without compression has 24."""
    tree = grown(text, 24)
    assert len(tree) <= 2 * len(text)
    assert memory_bytes(tree) <= BYTES_PER_TOKEN * len(text) * 1.6  # the worst; ordinary text is within it
    assert tree.tokens == len(text)


@pytest.mark.parametrize("period", [1, 7, 40])
def test_the_end_of_a_long_repetition_is_no_long_step(period):
    """A suffix automaton without a depth walks back over the whole repetition here."""
    tree = grown(list(range(period)) * (4000 // period), 24)
    states = len(tree)
    walked = 0

    class Links(list):
        def __getitem__(self, place):
            nonlocal walked
            walked += 1
            return list.__getitem__(self, place)

    tree._link = Links(tree._link)
    tree.extend([999])
    assert len(tree) <= states + 2
    assert walked <= 3 * 24 + 5


def test_memory_of_ordinary_text():
    text = [(place * 7919 + place // 50 * 31) % 300 if place % 5 else place // 10 % 200 for place in range(8192)]
    assert memory_bytes(grown(text, 24)) <= BYTES_PER_TOKEN * len(text)
