"""Prompt lookup against transformers' generator, a naive search, and itself grown step by step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.sampling import SamplingParams
from specview.drafting.acceptance import COPIES
from specview.drafting.prompt_lookup import PromptLookup
from specview.errors import UsageError
from tests.drafting.ngram_helpers import finished

torch = pytest.importorskip("torch")
CHECKED = settings(deadline=None, derandomize=True, max_examples=150)
ids = st.lists(st.integers(0, 3), min_size=1, max_size=60)  # a small alphabet: much repeats


def lookup(ngram_max=3, ngram_min=1, match="first") -> PromptLookup:
    return PromptLookup({"ngram_max": ngram_max, "ngram_min": ngram_min, "match": match})


def propose(tokens, budget, **options) -> list[int]:
    drafter = lookup(**options)
    drafter.start(tokens, SamplingParams())
    return list(drafter.propose(tokens, budget).tokens)


def naive(tokens, budget, longest, shortest, match) -> list[int]:
    """Scan for the longest n-gram that occurs before the end, first or last place; copy what follows."""
    size = len(tokens)
    for n in range(min(longest, size - 1), shortest - 1, -1):
        tail = tokens[size - n :]
        places = [start for start in range(size - n) if tokens[start : start + n] == tail]
        if places:
            after = (places[0] if match == "first" else places[-1]) + n
            return tokens[after : after + budget]
    return []


def theirs(tokens, budget, longest, eos=None) -> list[int]:
    from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

    generator = PromptLookupCandidateGenerator(
        eos_token_id=None if eos is None else torch.tensor([eos]),
        num_output_tokens=budget,
        max_matching_ngram_size=longest,
        max_length=10_000,
    )
    candidates, logits = generator.get_candidates(torch.tensor([tokens]))
    assert logits is None
    return candidates[0, len(tokens) :].tolist()


@given(tokens=ids, budget=st.integers(1, 12), longest=st.integers(1, 6))
@CHECKED
def test_equals_transformers_token_for_token(tokens, budget, longest):
    assert propose(tokens, budget, ngram_max=longest) == theirs(tokens, budget, longest)


@given(tokens=ids, budget=st.integers(1, 12), longest=st.integers(1, 6))
@CHECKED
def test_differs_from_transformers_only_after_an_eos(tokens, budget, longest):
    """They cut a draft before an EOS, as their loop would run past one; ours ends there by itself, so the
    EOS is drafted and can be accepted in the round."""
    ours, cut = propose(tokens, budget, ngram_max=longest), theirs(tokens, budget, longest, eos=3)
    assert cut == (ours[: ours.index(3)] if 3 in ours else ours)


@given(
    tokens=ids,
    budget=st.integers(1, 12),
    longest=st.integers(1, 6),
    shortest=st.integers(1, 6),
    match=st.sampled_from(["first", "last"]),
)
@CHECKED
def test_equals_a_naive_search(tokens, budget, longest, shortest, match):
    if shortest > longest:
        with pytest.raises(UsageError, match="longer than its longest"):
            lookup(longest, shortest, match)
        return
    found = propose(tokens, budget, ngram_max=longest, ngram_min=shortest, match=match)
    assert found == naive(tokens, budget, longest, shortest, match)
    assert len(found) <= budget


@given(
    tokens=st.lists(st.integers(0, 2), min_size=2, max_size=60),
    cuts=st.lists(st.integers(1, 59), max_size=8),
    match=st.sampled_from(["first", "last"]),
    longest=st.integers(1, 4),
)
@CHECKED
def test_an_index_grown_round_by_round_equals_a_fresh_one(tokens, cuts, match, longest):
    grown = lookup(longest, 1, match)
    steps = sorted({min(cut, len(tokens)) for cut in cuts} | {len(tokens)})
    grown.start(tokens[: steps[0]], SamplingParams())
    for size in steps:
        context = tokens[:size]
        assert list(grown.propose(context, 7).tokens) == propose(context, 7, ngram_max=longest, match=match)


def test_examples():
    text = [1, 2, 3, 9, 1, 2, 4, 8, 1, 2]
    assert propose(text, 3, match="first") == [3, 9, 1]
    assert propose(text, 3, match="last") == [4, 8, 1]
    assert propose(text, 20, match="last") == [4, 8, 1, 2]  # what there is
    assert propose([5, 1, 2, 7, 6, 2, 8, 1, 2], 2, match="last") == [7, 6]  # longest beats latest
    assert propose([5, 1, 2, 7, 6, 2, 8, 1, 2], 2, match="last", ngram_max=1) == [8, 1]
    assert propose([1, 2, 3], 4) == []
    assert propose([1, 2, 3, 2], 4, ngram_min=2) == []  # only one token repeats
    assert propose([7], 4) == []
    assert propose([7, 7], 4) == [7]  # overlapping with itself


def test_its_drafts_are_point_masses_and_carry_its_name():
    drafter = lookup()
    drafter.start([1, 2, 1], SamplingParams())
    draft = drafter.propose([1, 2, 1], 2)
    assert (draft.tokens, draft.q, draft.parents, draft.drafter) == ((2, 1), None, None, "prompt-lookup")
    assert drafter.exact_q


def test_its_confidence_follows_the_match_and_what_held_after_one():
    drafter = lookup()
    drafter.start([1, 2, 1], SamplingParams())
    draft = drafter.propose([1, 2, 1], 2)  # a match of one token, then of two
    assert draft.confidences == pytest.approx(COPIES[1:3])
    long = lookup()
    text = [5, 6, 7, 8, 9, 5, 6, 7, 8]
    long.start(text, SamplingParams())
    assert long.propose(text, 1).confidences == pytest.approx(COPIES[4:5])
    drafter.observe(finished(draft, 1, 3), {})
    second = drafter.propose([1, 2, 1], 2).confidences
    assert second[0] > draft.confidences[0]  # held after one
    assert second[1] < draft.confidences[1]  # and not after two
    assert drafter.propose([1, 2, 1], 2, lambda confidence: confidence > 0.7).tokens == (2,)
    drafter.observe(replace(finished(draft, 0, 3), drafter="another"), {})  # a cascade tells everyone
    assert drafter.propose([1, 2, 1], 2).confidences == second
    drafter.start([1, 2, 1], SamplingParams())
    assert drafter.propose([1, 2, 1], 2).confidences == draft.confidences
