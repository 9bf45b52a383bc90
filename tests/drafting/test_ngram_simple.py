"""ngram-simple against a scan of the text, at its bounds, and its options."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.sampling import SamplingParams
from specview.drafting.ngram_index import KEY_PRESETS, RollingHashes
from specview.drafting.ngram_simple import METHOD, OPTIONS, NgramSimple, make
from specview.errors import UsageError
from specview.settings.options import overlay, resolve
from tests.drafting.ngram_helpers import context_of, replay

CHECKED = settings(deadline=None, derandomize=True, max_examples=200)
texts = st.lists(st.integers(0, 2), min_size=1, max_size=90)


def simple(n=2, m=4, hits=1) -> NgramSimple:
    return NgramSimple({"size_n": n, "size_m": m, "min_hits": hits})


def propose(tokens, budget=1000, **sizes) -> list[int]:
    drafter = simple(**sizes)
    drafter.start(tokens, SamplingParams())
    return list(drafter.propose(tokens, budget).tokens)


def scan(tokens, n, m, hits) -> list[int]:
    """llama.cpp's rule, in its own terms: a history, a sampled token, and a backward scan."""
    history, key = tokens[:-1], tokens[-n:]
    if len(history) <= n + m + 1:
        return []
    places = [place for place in range(1, len(history) - n) if history[place : place + n] == key]
    if len(places) < hits:
        return []
    after = places[-1] + n
    copied = history[after : after + m]
    return copied if len(copied) >= n else []


@given(tokens=texts, n=st.integers(1, 4), more=st.integers(0, 8), hits=st.integers(1, 3), budget=st.integers(1, 15))
@CHECKED
def test_equals_a_backward_scan(tokens, n, more, hits, budget):
    assert propose(tokens, budget, n=n, m=n + more, hits=hits) == scan(tokens, n, n + more, hits)[:budget]


@given(tokens=texts, prompt=st.integers(1, 89), n=st.integers(1, 3), hits=st.integers(1, 2))
@CHECKED
def test_an_index_grown_round_by_round_equals_a_scan(tokens, prompt, n, hits):
    for place, drafted, _ in replay(simple(n, n + 3, hits), tokens, min(prompt, len(tokens))):
        left = len(tokens) - place
        assert list(drafted) == (scan(tokens[:place], n, n + 3, hits)[: left - 1] if left > 1 else [])


def test_examples():
    text = [9, 1, 2, 3, 4, 5, 6, 1, 2]
    assert propose(text, n=2, m=4) == [3, 4, 5, 6]
    assert propose(text, n=2, m=4, budget=3) == [3, 4, 5]
    assert propose(text, n=2, m=5) == []  # size_n + size_m + 2 tokens are needed: one is missing
    assert propose(text[1:], n=2, m=3) == []  # an n-gram that begins the text is not seen
    assert propose([9, 1, 2, 3, 8, 1, 2, 7, 6, 1, 2], n=2, m=4) == [7, 6, 1]  # the last place; not the last token
    assert propose([9, 1, 2, 3, 8, 4, 1, 2, 1, 2], n=2, m=4) == []  # one token could be copied: fewer than n
    assert propose([9, 1, 2, 3, 8, 1, 2, 7, 6, 1, 2], n=2, m=4, hits=2) == [7, 6, 1]
    assert propose([9, 1, 2, 3, 8, 1, 2, 7, 6, 1, 2], n=2, m=4, hits=3) == []
    assert propose([7], n=1, m=1) == []


def test_presets_are_llama_cpps_defaults_and_the_issues_for_text():
    assert resolve(OPTIONS, overlay(OPTIONS, KEY_PRESETS, {}), "x") == {
        "preset": "code", "size_n": 12, "size_m": 48, "min_hits": 1,
    }  # fmt: skip
    text = resolve(OPTIONS, overlay(OPTIONS, KEY_PRESETS, {"preset": "text", "min_hits": 5}), "x")
    assert text == {"preset": "text", "size_n": 8, "size_m": 48, "min_hits": 5}
    assert {option.name: option.default for option in OPTIONS if option.name in KEY_PRESETS["code"]} == KEY_PRESETS["code"]
    assert METHOD.drafted(text).levels == 48
    assert METHOD.drafted({**text, "size_m": 500}).levels == 64


def test_sizes_that_never_match_are_one_clear_line():
    with pytest.raises(UsageError, match=r"^ngram-simple: size_m \(3\) is less than size_n \(4\).*\.$"):
        simple(4, 3)
    assert isinstance(make(context_of(OPTIONS, KEY_PRESETS, size_n=98, size_m=98, max_length=100)), NgramSimple)
    with pytest.raises(UsageError, match="size_n is 99, and this run's text is at most 100 tokens"):
        make(context_of(OPTIONS, KEY_PRESETS, size_n=99, size_m=99, max_length=100))
    for bad in ({"size_n": 0}, {"size_n": 1025}, {"size_m": 0}, {"min_hits": "x"}, {"preset": "prose"}):
        with pytest.raises(UsageError):
            context_of(OPTIONS, KEY_PRESETS, **bad)


def test_the_defaults_in_a_run_that_is_short_draft_nothing():
    drafter = make(context_of(OPTIONS, KEY_PRESETS, max_length=8))
    drafter.start([1, 2, 1], SamplingParams())
    assert drafter.propose([1, 2, 1], 5).tokens == ()
    drafter.close()


@given(tokens=st.lists(st.integers(0, 60_000), max_size=40), n=st.integers(1, 6), cut=st.integers(0, 40))
@CHECKED
def test_rolled_hashes_are_the_polynomials(tokens, n, cut):
    windows = RollingHashes(n, base=1_000_003, modulus=(1 << 31) - 1)
    windows.extend(tokens[:cut])
    windows.extend(tokens)
    hashes = []
    for place in range(len(tokens) - n + 1):
        value = 0
        for token in tokens[place : place + n]:
            value = (value * 1_000_003 + token) % ((1 << 31) - 1)
        hashes.append(value)
    assert list(windows.hashes) == hashes


def test_a_collision_of_hashes_never_drafts():
    drafter = simple(2, 4)
    drafter._windows = RollingHashes(2, base=1, modulus=5)  # many windows share a hash
    drafter.forget = lambda: None  # type: ignore[method-assign]
    text = [9, 1, 2, 3, 4, 5, 6, 2, 1]  # 1 2 and 2 1 collide
    drafter.start(text, SamplingParams())
    assert drafter._windows.hashes[1] == drafter._windows.hashes[-1]
    assert drafter.propose(text, 9).tokens == ()
