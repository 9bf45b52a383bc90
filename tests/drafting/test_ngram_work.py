"""The work of a round does not grow with the context: counted in lines run and tokens read, not in time.

tests/benchmarks/drafter_time.py measures the time itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from specview.decoding.sampling import SamplingParams
from specview.drafting import ngram_map, ngram_mod, ngram_simple, prompt_lookup, suffix
from tests.drafting.ngram_helpers import finished

SHORT, LONG, TAIL = 500, 8000, 120
DRAFTERS = {
    "prompt-lookup": (prompt_lookup.PromptLookup, {}),
    "ngram-simple": (ngram_simple.NgramSimple, {"size_n": 4, "size_m": 16}),
    "ngram-simple hits": (ngram_simple.NgramSimple, {"size_n": 4, "size_m": 16, "min_hits": 2}),
    "ngram-map-k": (ngram_map.NgramMapK, {"size_n": 4, "size_m": 16}),
    "ngram-map-k4v": (ngram_map.NgramMapK4V, {"size_n": 4, "size_m": 16}),
    "ngram-mod": (ngram_mod.NgramMod, {"n_match": 4, "n_min": 2, "n_max": 16}),
    "suffix": (suffix.Suffix, {}),
}


class Read(list):
    """A context that counts the tokens read from it."""

    tokens = 0

    def __getitem__(self, key: Any) -> Any:
        found = list.__getitem__(self, key)
        self.tokens += len(found) if isinstance(key, slice) else 1
        return found

    def __iter__(self) -> Any:
        self.tokens += len(self)
        return list.__iter__(self)


def text(count: int, seed: int) -> list[int]:
    """Words with returning phrases, by a linear congruence: the same everywhere."""
    state, made = seed, []
    while len(made) < count:
        state = (state * 1_103_515_245 + 12_345) % 2**31
        if made and state % 4 == 0:
            at = state // 8 % len(made)
            made += made[at : at + 12]
        else:
            made.append(state // 16 % 300)
    return made[:count]


def lines_of(call: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
    """A call's result and how many lines of Python it ran."""
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return call(*arguments), count
    finally:
        sys.settrace(before)


def work(kind: Any, options: Any, context: list[int], tail: list[int]) -> tuple[list[tuple[int, int, int]], int]:
    """Per round (drafted, lines run, tokens read), and how many tokens were accepted."""
    drafter = kind(options)
    drafter.start(context, SamplingParams())
    done, held_in_all, rounds = 0, 0, []
    context = Read(context)
    while done < len(tail):
        context.tokens = 0
        budget = max(1, min(24, len(tail) - done - 1))
        draft, proposing = lines_of(drafter.propose, context, budget)
        held = 0
        while held < len(draft) and done + held < len(tail) - 1 and draft.tokens[held] == tail[done + held]:
            held += 1
        round_ = finished(draft, held, tail[done + held])
        read = context.tokens
        done += held + 1
        held_in_all += held
        context += round_.emitted
        _, observing = lines_of(drafter.observe, round_, {})
        rounds.append((len(draft), proposing + observing, read))
    drafter.close()
    return rounds, held_in_all


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_round_after_8000_tokens_is_no_more_work_than_after_500(name, monkeypatch):
    """The far past has ids of its own, so that the drafts are the same and only the length differs."""
    monkeypatch.setattr(ngram_mod, "ENTRIES", 1 << 18)  # no collision in so few n-grams
    kind, options = DRAFTERS[name]
    near = text(SHORT, 7)
    far = [1000 + token for token in text(LONG - SHORT, 8)]
    tail = [*near[200 : 200 + TAIL // 2], 900, *near[300 : 300 + TAIL // 2]]
    short, held = work(kind, options, near, tail)
    long, held_long = work(kind, options, far + near, tail)
    assert [drafted for drafted, _, _ in long] == [drafted for drafted, _, _ in short]
    assert held_long == held > 20  # it does draft
    for (_, lines, read), (_, lines_long, read_long) in zip(short, long, strict=True):
        assert lines_long <= 1.1 * lines + 20
        assert read_long <= read + 20
        assert read_long < 300
    assert sum(lines for _, lines, _ in long) <= 1.05 * sum(lines for _, lines, _ in short)


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("period", [1, 7])
def test_nor_after_a_text_that_does_nothing_but_repeat(name, period, monkeypatch):
    monkeypatch.setattr(ngram_mod, "ENTRIES", 1 << 18)
    kind, options = DRAFTERS[name]
    endless = list(range(period)) * 4000
    tail = endless[:100]
    short, _ = work(kind, options, endless[:700], tail)
    long, _ = work(kind, options, endless[:3500], tail)
    assert max(lines for _, lines, _ in long) <= 1.1 * max(lines for _, lines, _ in short) + 20
    assert max(read for _, _, read in long) < 600
