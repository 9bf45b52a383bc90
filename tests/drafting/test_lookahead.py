"""The lookahead drafter: its window against a slow Jacobi iteration, its pool, its limits, exact output."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.ledger import Rider, Round, depths
from specview.decoding.observation import Observer
from specview.decoding.sampling import SamplingParams
from specview.drafting import lookahead
from specview.drafting.lookahead import OPTIONS, Lookahead, Pool, Window, window_grid, window_rows
from specview.drafting.method import DrafterContext
from specview.errors import SpecviewError, UsageError
from specview.settings.options import resolve
from tests.decoding.toy import (
    VOCAB,
    FakeEngine,
    TableModel,
    plain_reference,
    run_decode,
)

PROMPT = [1, 2, 3, 1, 2, 4]
WIDE = 6  # vocabulary of the table models


def options(**given):
    return resolve(OPTIONS, given, "lookahead")


def drafter(max_length=4096, eos_ids=(), **given) -> Lookahead:
    return Lookahead(options(**given), max_length, frozenset(eos_ids))


class Watched(Lookahead):
    """Keeps every draft with its context."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.drafts = []

    def propose(self, context, budget, proceed=None):
        draft = super().propose(context, budget, proceed)
        self.drafts.append((list(context), budget, draft))
        return draft


def watched(max_length=4096, eos_ids=(), **given) -> Watched:
    return Watched(options(**given), max_length, frozenset(eos_ids))


def greedy_of(model, tokens) -> int:
    return int(np.argmax(model(tokens)))


# -- the window: an independent, slow Jacobi iteration -------------------------------------------------


class SlowJacobi:
    """The window as the paper draws it: {(level, place): token}, place counted from the last token.

    Each guess is computed by itself from its whole prefix: the trajectory of its n-gram upwards, and on
    level 0 everything to the left of it. No tree, no shared pass.
    """

    def __init__(self, model, window_size, level, first):
        self.model, self.window_size, self.level = model, window_size, level
        self.guess = {(0, place): token for place, token in enumerate(first, 1)}
        self.depth = 0  # the deepest level there is

    def prefix(self, level, place):
        """Tokens between the context and the guess at (level, place), that guess included."""
        if level == 0:
            return [self.guess[0, left] for left in range(1, place + 1)]
        diagonal = [self.guess[above, place - level + above] for above in range(1, level + 1)]
        return [self.guess[0, left] for left in range(1, place - level + 1)] + diagonal

    def places(self, level):
        return sorted(place for at, place in self.guess if at == level)

    def tokens(self):
        return [self.guess[level, place] for level in range(self.depth + 1) for place in self.places(level)]

    def step(self, context):
        """One iteration over the context as it was; returns the n-grams completed, from the nearest on."""
        found, ngrams = {}, []
        for place in self.places(self.depth):
            seen = self.prefix(self.depth, place)
            found[place + 1] = greedy_of(self.model, context + seen)
            if self.depth == self.level - 2:
                column = place - self.depth
                head = context[-1] if column == 0 else self.guess[0, column]
                path = [self.guess[at, column + at] for at in range(1, self.depth + 1)]
                ngrams.append((head, *path, found[place + 1]))
        # One token on, every place is one nearer; what is not ahead any more falls off.
        levels = [{place: self.guess[at, place] for place in self.places(at)} for at in range(self.depth + 1)]
        if self.depth == self.level - 2:
            levels = levels[1:]  # full: the oldest trajectory goes
        levels.append(found)
        self.guess = {
            (at, place - 1): token
            for at, row in enumerate(levels)
            for place, token in row.items()
            if place - 1 >= max(1, at)
        }
        self.depth = len(levels) - 1
        return ngrams


@pytest.mark.parametrize(("window_size", "level"), [(2, 3), (5, 3), (4, 4), (3, 5), (2, 6), (7, 5)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_window_is_a_jacobi_iteration(window_size, level, temperature):
    """Every token of every pass, and every n-gram, against guesses computed one by one."""
    model = TableModel(WIDE)
    lane = watched(window_size=window_size, level=level, guess_set_size=4, pool_from_prompt=False)
    sampling = SamplingParams(temperature, seed=window_size)
    rule = "match" if temperature else "greedy"
    run_decode(FakeEngine(model, WIDE), PROMPT, rule=rule, sampling=sampling, max_tokens=30, drafter=lane)
    first = lane.drafts[0][2].riders
    assert len(first) == window_size + level - 3
    assert set(first) <= set(PROMPT)
    slow = SlowJacobi(model, window_size, level, first)
    pool = Pool(4)
    for context, budget, draft in lane.drafts:
        assert list(draft.riders) == slow.tokens()
        expected = {guess[:budget] for guess in pool.after(context[-1])}
        assert leaves(draft) == without_prefixes(expected)
        for ngram in slow.step(context):
            assert len(ngram) == level
            pool.add(ngram)
    # After N - 2 passes the window is full and stays so.
    assert len(lane.drafts[-1][2].riders) == window_size - 1 + (level - 2) * window_size


def leaves(draft) -> set[tuple[int, ...]]:
    """The paths of a draft from the root to its leaves."""
    parents = draft.parents if draft.parents is not None else range(-1, len(draft) - 1)
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens, parents, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return {path for index, path in enumerate(paths) if index not in set(parents)}


def without_prefixes(paths: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    return {
        path for path in paths if not any(other != path and other[: len(path)] == path for other in paths)
    }


def test_a_converged_window_is_the_greedy_continuation():
    """On text that the model goes on with, whatever the guesses before were, every n-gram is its own."""
    model = TableModel(WIDE, order=1, seed=5)  # the next token depends on the last one alone
    lane = drafter(window_size=4, level=4, pool_from_prompt=False)
    run_decode(
        FakeEngine(model, WIDE), PROMPT, rule="greedy", sampling=SamplingParams(), max_tokens=20, drafter=lane
    )
    for first in range(WIDE):
        for guess in lane.pool.after(first):
            assert guess == tuple(plain_reference(model, [first], SamplingParams(), 3))
    assert len(lane.pool)


@given(
    window_size=st.integers(2, 9),
    level=st.integers(3, 7),
    passes=st.integers(0, 9),
    room=st.integers(0, 80),
)
@settings(deadline=None, derandomize=True)
def test_forest_and_grid_agree(window_size, level, passes, room):
    """The mask is a forest that the grid can be read from, while it fills, full, and cut short."""
    counter = iter(range(10_000))
    window = Window(level, [next(counter) for _ in range(window_size + level - 3)])
    for _ in range(passes):
        window.advance(0, [next(counter) for _ in window.levels[-1]], lambda token: token)
    before = [list(row) for row in window.levels]
    assert len(window) <= window_rows(window_size, level)
    window.shrink(room)
    tokens, parents = window.forest()
    assert len(tokens) == len(parents) == len(window) <= room
    for row, whole in zip(window.levels, before, strict=False):
        assert row == whole[: len(row)]  # the nearest columns stay
    riders = [Rider(token, parent=parent) for token, parent in zip(tokens, parents, strict=True)]
    grid = window_grid(riders)
    assert [[rider.id for rider in row] for row in grid] == window.levels
    if not window.levels:
        return
    assert all(len(row) == len(grid[0]) + 1 for row in grid[1:])
    at = depths(parents)
    for level_number, row in enumerate(grid):
        for column, rider in enumerate(row):
            place = at[riders.index(rider)]
            assert place == (column if level_number == 0 else level_number - 1 + column)
            above = None if rider.parent < 0 else riders[rider.parent]
            if level_number == 0:
                assert above is (row[column - 1] if column else None)
            elif level_number == 1:
                assert above is (grid[0][column - 1] if column else None)
            else:
                assert above is grid[level_number - 1][column]


def test_the_grid_of_no_riders_is_empty():
    assert window_grid(()) == []


def test_the_paper_s_window():
    """Figure 2 of the paper: W 5, N 4; which token sees which."""
    window = Window(4, [0])
    window.levels = [[1, 2, 3, 4], [10, 11, 12, 13, 14], [20, 21, 22, 23, 24]]
    tokens, parents = window.forest()
    seen = {}
    for token, parent in zip(tokens, parents, strict=True):
        seen[token] = [*(seen[tokens[parent]] if parent >= 0 else []), token]
    assert seen[4] == [1, 2, 3, 4]
    assert seen[10] == [10]
    assert seen[20] == [10, 20]
    assert seen[24] == [1, 2, 3, 4, 14, 24]
    ngrams = window.advance(0, [30, 31, 32, 33, 34], lambda token: token)
    assert ngrams == [(0, 10, 20, 30), (1, 11, 21, 31), (2, 12, 22, 32), (3, 13, 23, 33), (4, 14, 24, 34)]
    assert window.levels == [[11, 12, 13, 14], [20, 21, 22, 23, 24], [30, 31, 32, 33, 34]]


# -- exact output ---------------------------------------------------------------------------------------

shapes = st.fixed_dictionaries(
    {
        "window_size": st.integers(2, 7),
        "level": st.integers(3, 6),
        "guess_set_size": st.integers(1, 5),
        "pool_from_prompt": st.booleans(),
    }
)


@given(shape=shapes, k=st.integers(1, 7), seed=st.integers(0, 99), rule=st.sampled_from(["greedy", "match"]))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_output_equals_plain_decoding(shape, k, seed, rule):
    """Token for token: greedy plain, and sampled plain under match."""
    sampling = SamplingParams(0.0 if rule == "greedy" else 1.0, seed=seed)
    model = TableModel(WIDE, order=2, seed=seed)
    lane = watched(**shape)
    output, rounds, end, _ = run_decode(
        FakeEngine(model, WIDE), PROMPT, rule=rule, sampling=sampling, max_tokens=40, drafter=lane, k=k
    )
    assert end == "limit"
    assert output == plain_reference(model, PROMPT, sampling, 40)
    drafting = [round_ for round_ in rounds if round_.riders]
    for round_, (_, budget, draft) in zip(drafting, lane.drafts, strict=True):
        assert max(depths(draft.parents or ()), default=-1) < min(budget, shape["level"] - 1)
        assert len(draft) + len(draft.riders) <= lookahead.shape_of(shape).rows_at(k)
        assert round_.rows == 1 + len(draft) + len(draft.riders)
        assert [rider.id for rider in round_.riders] == list(draft.riders)
        leaf_count = len(leaves(draft)) + len(leaves(window_of(draft)))
        assert leaf_count <= lookahead.shape_of(shape).leaves


def window_of(draft):
    return replace(draft, tokens=draft.riders, parents=draft.rider_parents, confidences=())


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
@pytest.mark.parametrize("width", [VOCAB, VOCAB + 3])
def test_guesses_pay_on_text_that_repeats(namespace, width):
    model = TableModel(VOCAB, order=1, seed=3)
    target = FakeEngine(model, VOCAB, namespace=namespace, width=width)
    lane = drafter(window_size=4, level=4)
    output, rounds, _, session = run_decode(
        target, [1, 2], rule="greedy", sampling=SamplingParams(), max_tokens=60, drafter=lane
    )
    assert output == plain_reference(model, [1, 2], SamplingParams(), 60)
    assert len(rounds) < 25  # four tokens a pass once the pool has them
    assert max(session.passes) > 4


# -- the pool ---------------------------------------------------------------------------------------------


@given(
    ngrams=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3)), max_size=40),
    size=st.integers(1, 4),
)
@settings(deadline=None, derandomize=True)
def test_the_pool_keeps_the_latest(ngrams, size):
    pool = Pool(size)
    for ngram in ngrams:
        pool.add(ngram)
    for first in range(3):
        latest: list[tuple[int, ...]] = []
        for ngram in reversed(ngrams):
            if ngram[0] == first and ngram[1:] not in latest:
                latest.append(ngram[1:])
        assert pool.after(first) == latest[:size]
    assert len(pool) == sum(len(pool.after(first)) for first in range(3)) <= 3 * size
    assert pool.after(9) == []


def test_the_text_is_pooled_once_and_only_when_asked():
    lane = drafter(level=3, guess_set_size=8)
    lane.start(PROMPT, SamplingParams())
    draft = lane.propose([*PROMPT, 5, 1], 2)
    assert leaves(draft) == {(2, 3), (2, 4)}  # what followed the 1s of the prompt
    assert draft.tokens[0] == 2, "the latest n-gram stands first, and a shared prefix once"
    assert len(draft) == 3
    assert len(lane.pool) == 6
    assert leaves(lane.propose([*PROMPT, 5, 1, 5], 2)) == {(1, 5)}
    off = drafter(level=3, pool_from_prompt=False)
    off.start(PROMPT, SamplingParams())
    draft = off.propose([*PROMPT, 5, 1], 2)
    assert draft.tokens == ()
    assert draft.riders, "a draft without a guess rides all the same"


# -- limits -----------------------------------------------------------------------------------------------


@given(shape=shapes, spare=st.integers(1, 40), prompt_length=st.integers(1, 12), seed=st.integers(0, 9))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_a_pass_never_overflows_the_session(shape, spare, prompt_length, seed):
    """Up to the last token that fits; the fake session fails when it is fed more."""
    prompt = [(seed + 3 * place) % WIDE for place in range(prompt_length)]
    capacity = prompt_length + spare
    model = TableModel(WIDE, order=2, seed=seed)
    target = FakeEngine(model, WIDE, context_length=capacity)
    lane = watched(max_length=capacity, **shape)
    output, _, _, _ = run_decode(
        target,
        prompt,
        rule="greedy",
        sampling=SamplingParams(),
        max_tokens=spare,
        drafter=lane,
        k=shape["level"],
    )
    assert output == plain_reference(model, prompt, SamplingParams(), spare)
    for context, _, draft in lane.drafts:
        assert len(context) + len(draft) + len(draft.riders) <= capacity


def test_guesses_go_before_the_window_where_room_is_short():
    lane = drafter(max_length=len(PROMPT) + 2 + 5, window_size=3, level=3, guess_set_size=8)
    lane.start(PROMPT, SamplingParams())
    draft = lane.propose([*PROMPT, 5, 1], 2)
    assert len(draft) == 3
    assert len(draft.riders) == 2
    full = drafter(max_length=len(PROMPT) + 2 + 2, window_size=3, level=3, guess_set_size=8)
    full.start(PROMPT, SamplingParams())
    draft = full.propose([*PROMPT, 5, 1], 2)
    assert len(draft) == 2, "the oldest guess gives way"
    assert draft.riders == ()
    assert draft.parents is None, "a chain, which needs no tree"
    assert len(full.propose([*PROMPT, 5, 1, 0, 0], 2)) == 0


def test_an_eos_inside_a_guess_ends_the_text():
    model = TableModel(WIDE, order=1, seed=11)
    plain = plain_reference(model, [0, 1], SamplingParams(), 40)
    eos = plain[-1]  # part of the cycle that the model falls into
    assert plain.count(eos) > 2
    at = plain.index(eos)
    prompt = [0, 1, *plain[: at + 1], *plain[: at + 1], 0, 1]
    expected = plain_reference(model, prompt, SamplingParams(), 40)
    expected = expected[: expected.index(eos) + 1]
    target = FakeEngine(model, WIDE, eos_ids=[eos])
    lane = watched(eos_ids=[eos], window_size=3, level=5)
    output, rounds, end, _ = run_decode(
        target, prompt, rule="greedy", sampling=SamplingParams(), max_tokens=40, drafter=lane, k=4
    )
    assert (output, end) == (expected, "eos")
    assert any(token.id == eos for round_ in rounds for token in round_.drafted)
    for _, _, draft in lane.drafts:
        assert eos not in draft.riders, "an end of text in the window is replaced"
        parents = draft.parents if draft.parents is not None else range(-1, len(draft) - 1)
        for parent in parents:
            assert parent < 0 or draft.tokens[parent] != eos, "nothing is guessed after it"


def test_an_all_eos_prompt_still_fills_the_window():
    lane = drafter(eos_ids=[1], window_size=3, level=3)
    lane.start([1], SamplingParams())
    assert lane.propose([1], 2).riders == (1, 1, 1)


def test_rounds_without_riders_leave_the_window_alone():
    """A policy that drafts nothing for a while, or another member of a cascade, makes such rounds."""
    lane = drafter(window_size=3, level=3)
    lane.start(PROMPT, SamplingParams())
    before = lane.propose(PROMPT, 2).riders
    lane.observe(Round(0, 0.0, 0.0, 0.0, 0.0), {})
    assert lane.propose([*PROMPT, 0], 2).riders == before
    lane.observe(Round(0, 0.0, 0.0, 0.0, 0.0), {"riders": np.zeros((2, WIDE))})  # not of this window
    assert lane.propose([*PROMPT, 0, 0], 2).riders == before
    lane.observe(Round(0, 0.0, 0.0, 0.0, 0.0), {"riders": np.eye(3, WIDE)})
    assert lane.window.levels == [list(before[1:]), [0, 1, 2]]
    lane.observe(Round(0, 0.0, 0.0, 0.0, 0.0), {"riders": np.zeros((3, WIDE))})  # nothing rode since
    assert lane.window.levels == [list(before[1:]), [0, 1, 2]]


def test_proceed_ends_the_tree_by_depth_and_confidence_is_the_share_that_held():
    lane = drafter(window_size=3, level=5)
    text = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1]
    lane.start(text, SamplingParams())
    assert lane.propose(text, 4).tokens == (2, 3, 4, 5)
    asked: list[float] = []
    assert lane.propose(text, 4, lambda share: not asked.append(share) and len(asked) < 2).tokens == (2, 3)
    assert asked == [0.5, 0.5]
    target = FakeEngine(TableModel(WIDE, order=1, seed=3), WIDE)
    lane = drafter(window_size=3, level=4)
    _, rounds, _, _ = run_decode(
        target, [1, 2], rule="greedy", sampling=SamplingParams(), max_tokens=40, drafter=lane
    )
    held, tried = [0] * 3, [0] * 3
    for round_ in rounds:
        parents = round_.parents if round_.parents is not None else range(-1, round_.k - 1)
        at = depths(parents)
        for place in range(3):
            here = [token.verdict for token, depth in zip(round_.drafted, at, strict=True) if depth == place]
            tried[place] += any(verdict != "ignored" for verdict in here)
            held[place] += "accepted" in here
    draft = lane.propose([1, 2, 1, 2], 3)
    assert tried[0] > 3
    for place, share in zip(
        depths(draft.parents or range(-1, len(draft) - 1)), draft.confidences, strict=True
    ):
        assert share == pytest.approx((held[place] + 1) / (tried[place] + 2))


def test_the_ledger_has_the_window():
    target = FakeEngine(TableModel(WIDE), WIDE)
    lane = drafter(window_size=4, level=4)
    _, rounds, _, _ = run_decode(
        target,
        PROMPT,
        rule="greedy",
        sampling=SamplingParams(),
        max_tokens=20,
        drafter=lane,
        observer=Observer("light", target.tokenizer),
    )
    grid = window_grid(next(round_ for round_ in rounds[6:] if round_.riders).riders)
    assert [len(row) for row in grid] == [3, 4, 4]
    assert all(rider.text == target.tokenizer.token_text(rider.id) for row in grid for rider in row)


# -- declarations and errors ------------------------------------------------------------------------------


def context_of(max_length=4096, target=None, **given) -> DrafterContext:
    return DrafterContext(options(**given), max_length, WIDE, target=target)


@given(window_size=st.integers(2, 40), level=st.integers(3, 16), k=st.integers(1, 20))
@settings(deadline=None, derandomize=True)
def test_pass_rows_is_the_most_there_can_be(window_size, level, k):
    chosen = options(window_size=window_size, level=level, guess_set_size=3)
    window = Window(level, [0] * (window_size + level - 3))
    most = widest = 0
    for _ in range(level + 2):
        most = max(most, len(window))
        widest = max(widest, window.columns if len(window.levels) > 1 else 1)
        window.advance(0, [0] * len(window.levels[-1]), lambda token: token)
    assert most == window_rows(window_size, level)
    assert lookahead.shape_of(chosen).rows_at(k) == most + 3 * min(k, level - 1)
    assert lookahead.shape_of(chosen).leaves >= 3 + widest
    assert lookahead.shape_of(chosen).levels == level - 1


def test_make_takes_the_target_s_eos_and_the_lane_s_room():
    target = FakeEngine(TableModel(WIDE), WIDE, eos_ids=[3])
    made = lookahead.make(context_of(target=target))
    made.start([3, 1], SamplingParams())
    assert set(made.propose([3, 1], 3).riders) == {1}


def test_a_window_that_does_not_fit_is_one_line(monkeypatch):
    with pytest.raises(
        SpecviewError, match=r"W 40, N 5 needs \d+ tokens a pass, .* holds 100\. Use a smaller"
    ):
        lookahead.make(context_of(max_length=100, window_size=40, level=5))
    rows = window_rows(40, 5) + 4 + 1
    lookahead.make(context_of(max_length=rows, window_size=40, level=5))  # just fits
    import psutil

    class Low:
        available = 100

    monkeypatch.setattr(psutil, "virtual_memory", lambda: Low)
    target = FakeEngine(TableModel(WIDE), WIDE)
    with pytest.raises(SpecviewError, match=r"needs .* GB for its logits, and 0\.0 GB are free\."):
        lookahead.make(context_of(target=target))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window_size", 1),
        ("window_size", 129),
        ("level", 2),
        ("level", 17),
        ("guess_set_size", 0),
        ("level", "x"),
    ],
)
def test_values_out_of_range_are_one_line(name, value):
    with pytest.raises(UsageError, match=name):
        options(**{name: value})


def test_the_widest_window_stays_under_llama_cpp_s_sequences():
    most = options(window_size=128, level=16, guess_set_size=64)
    assert lookahead.shape_of(most).leaves < 256
