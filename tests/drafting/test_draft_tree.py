"""Draft trees by themselves: EAGLE-2's growth and rerank by brute force, fixed shapes, drawing without replacement."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.sampling import SamplingParams
from specview.drafting.draft_tree import (
    MOST_NODES,
    FixedTree,
    Growth,
    fill,
    fixed_tree,
    grow,
    likeliest,
    read_paths,
    spread_tree,
)
from specview.errors import SpecviewError, UsageError
from tests.decoding.statistics import chi_square_p
from tests.drafting.eagle_toy import draft_paths, eagle2_tree, log_softmax

VOCAB = 7


class Head:
    """Logits that depend on the whole drafted path; rows are numbered as they are fed."""

    def __init__(self, seed: int, *, peaked: bool = False, namespace: str = "numpy") -> None:
        self.seed, self.peaked, self.namespace = seed, peaked, namespace
        self.fed: list[tuple[int, ...]] = []
        self.calls: list[int] = []

    def row(self, path) -> np.ndarray:
        row = np.random.default_rng([self.seed, 5, *path]).normal(size=VOCAB) * 2
        if self.peaked:  # one sure token: log probabilities of exactly 0
            row = np.full(VOCAB, -np.inf)
            row[(sum(path) + self.seed) % VOCAB] = 3.0
        return row

    def wrap(self, rows):
        return torch.from_numpy(rows) if self.namespace == "torch" else rows

    @property
    def first(self):
        return self.wrap(self.row(()))

    def level(self, tokens, parents):
        self.calls.append(len(tokens))
        known = len(self.fed)
        for token, parent in zip(tokens, parents, strict=True):
            assert parent < known  # of an earlier call
            self.fed.append((*(self.fed[parent] if parent >= 0 else ()), token))
        return self.wrap(np.array([self.row(path) for path in self.fed[known:]]))


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    levels=st.integers(1, 5),
    width=st.integers(1, VOCAB),
    most=st.integers(1, 60),
    namespace=st.sampled_from(["numpy", "torch"]),
)
def test_growth_is_eagle2s_by_brute_force(seed, levels, width, most, namespace):
    head = Head(seed, namespace=namespace)
    limits = Growth(levels, width, most)
    drawn = grow(head.first, head.level, limits, "a head")
    paths = draft_paths(drawn.tokens, drawn.parents)
    expected = eagle2_tree(lambda path: log_softmax(head.row(path)), levels, min(width, VOCAB), most)
    assert sorted(paths) == sorted(path for path, _ in expected)
    assert len(head.calls) == levels - 1
    assert all(count == min(width, VOCAB) for count in head.calls[:1])
    values = dict(expected)
    for path, confidence, made_by in zip(paths, drawn.confidences, drawn.made_by, strict=True):
        assert confidence == pytest.approx(np.exp(values[path] - values.get(path[:-1], 0.0)))
        assert np.asarray(made_by) == pytest.approx(head.row(path[:-1]))
    assert drawn.q == [None] * len(drawn)
    assert len(drawn) <= limits.rows
    leaves = len(drawn) - len({parent for parent in drawn.parents if parent >= 0})
    assert leaves <= limits.leaves


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), levels=st.integers(1, 6), width=st.integers(1, 4), most=st.integers(1, 8))
def test_ancestors_come_before_descendants_even_where_all_are_certain(seed, levels, width, most):
    """Probability 1 at every step: a child is as likely as its parent, and must not push it out."""
    head = Head(seed, peaked=True)
    drawn = grow(head.first, head.level, Growth(levels, width, most), "a head")
    assert all(parent < index for index, parent in enumerate(drawn.parents))
    assert len(drawn) == min(levels, most)
    assert drawn.is_chain
    assert drawn.confidences == [1.0] * len(drawn)


def test_ties_between_siblings_keep_a_closed_tree():
    def level(tokens, parents):
        return np.zeros((len(tokens), VOCAB))

    drawn = grow(np.zeros(VOCAB), level, Growth(3, 3, 10), "a head")
    assert len(drawn) == 10
    assert all(-1 <= parent < index for index, parent in enumerate(drawn.parents))
    paths = draft_paths(drawn.tokens, drawn.parents)
    assert len(set(paths)) == 10
    assert all(path[:-1] in paths for path in paths if len(path) > 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("drawing", ["grow", "fill", "sampled"])
@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_logits_that_are_not_finite_are_an_error(bad, deep, drawing, namespace):
    head = Head(1, namespace=namespace)
    broken = head.wrap(np.full(VOCAB, bad))

    def level(tokens, parents):
        return head.wrap(np.full((len(tokens), VOCAB), bad))

    first = head.first if deep else broken
    with pytest.raises(SpecviewError, match="a head gave logits that are not finite"), np.errstate(all="ignore"):
        if drawing == "grow":
            grow(first, level, Growth(3, 2, 9), "a head")
        else:
            sampling = SamplingParams(temperature=1.0) if drawing == "sampled" else None
            fill(fixed_tree([[0, 0, 0], [1]]), first, level, "a head", sampling)


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_likeliest_are_log_probabilities_in_order(namespace):
    rows = np.random.default_rng(0).normal(size=(5, VOCAB))
    rows[2, 3:] = -np.inf
    ids, values = likeliest(torch.from_numpy(rows) if namespace == "torch" else rows, 4)
    for row, at, logs in zip(rows, ids, values, strict=True):
        assert at[:3] == np.argsort(-row)[:3].tolist()
        assert logs == pytest.approx(log_softmax(row)[at])
    assert values[2][3] == -np.inf
    assert len(likeliest(rows, 99)[0][0]) == VOCAB


def test_half_precision_rows_are_summed_in_float32():
    rows = torch.randn(2, 4000, generator=torch.Generator().manual_seed(0)).bfloat16()
    _, values = likeliest(rows, 3)
    exact = torch.log_softmax(rows.double(), -1).topk(3).values
    assert np.array(values) == pytest.approx(exact.numpy(), abs=1e-4)


# -- fixed shapes ------------------------------------------------------------------------------------------


PATHS = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=5), min_size=1, max_size=12)


@settings(max_examples=80, deadline=None)
@given(paths=PATHS, seed=st.integers(0, 1000), levels=st.integers(1, 6), most=st.integers(1, 30))
def test_a_fixed_tree_holds_the_tokens_of_its_ranks(paths, seed, levels, most):
    tree = fixed_tree(paths).cut(levels, most)
    head = Head(seed)
    drawn = fill(tree, head.first, head.level, "a head")

    def tokens(ranks):
        path: tuple[int, ...] = ()
        for rank in ranks:
            path = (*path, int(np.argsort(-head.row(path))[rank]))
        return path

    assert draft_paths(drawn.tokens, drawn.parents) == [tokens(ranks) for ranks in tree.paths]
    assert len(head.calls) == tree.levels - 1  # leaves are not fed
    inner = {path[:-1] for path in tree.paths} - {()}
    assert sum(head.calls) == len(inner)


@given(paths=PATHS, levels=st.integers(0, 6), most=st.integers(0, 30))
def test_a_cut_tree_is_closed_and_no_larger(paths, levels, most):
    whole = fixed_tree(paths)
    assert set(map(tuple, paths)) <= set(whole.paths)
    tree = whole.cut(levels, most)
    assert set(tree.paths) <= set(whole.paths)
    assert len(tree.paths) <= most
    assert tree.levels <= levels
    assert all(path[:-1] in tree.paths for path in tree.paths if len(path) > 1)
    parents = {path[:-1] for path in tree.paths}
    assert tree.leaves == sum(path not in parents for path in tree.paths)


def test_children_that_the_head_has_no_token_for_are_left_out_with_what_follows_them():
    first = np.array([0.0, 1.0, *[-np.inf] * 5])
    head = Head(3)
    drawn = fill(fixed_tree([[0, 0], [1], [2, 0], [6, 1]]), first, head.level, "a head")
    assert drawn.parents == [-1, -1, 0]
    assert drawn.tokens[:2] == [1, 0]
    wide = fill(fixed_tree([[0], [99, 0]]), head.first, head.level, "a head")
    assert wide.parents == [-1]


def test_the_spread_tree_accepts_most_by_rank_alone():
    """Against every closed tree of that size, for small sizes."""
    from specview.drafting.draft_tree import RANKS

    places = [path for depth in (1, 2, 3) for path in product(range(2), repeat=depth)]
    chance = {path: float(np.prod([RANKS[rank] for rank in path])) for path in places}
    for most in (1, 2, 3, 4, 5):
        best = max(
            sum(chance[path] for path in tree)
            for tree in _closed_trees(places, most)
        )
        tree = spread_tree(3, 2, most)
        assert len(tree.paths) == most
        assert sum(chance[path] for path in tree.paths) == pytest.approx(best)
    assert len(spread_tree(3, 2, 100).paths) == 2 + 4 + 8
    assert spread_tree(5, 1, 100).paths == ((0,), (0,) * 2, (0,) * 3, (0,) * 4, (0,) * 5)


def _closed_trees(places, most):
    from itertools import combinations

    for chosen in combinations(places, most):
        if all(len(path) == 1 or path[:-1] in chosen for path in chosen):
            yield chosen


# -- drawing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_siblings_are_drawn_without_replacement_in_order(namespace):
    """The pair of children of the root, and that of the first child, each have their exact distribution."""
    head = Head(8, namespace=namespace)
    tree = fixed_tree([[0, 0], [0, 1], [1]])
    temperature = 1.3
    pairs: Counter = Counter()
    deeper: Counter = Counter()
    runs = 1200

    def q_of(path):
        return np.exp(log_softmax(head.row(path) / temperature))

    usual = int(q_of(()).argmax())
    for seed in range(runs):
        head.fed.clear()
        drawn = fill(tree, head.first, head.level, "a head", SamplingParams(temperature, seed=seed), position=3)
        pairs[drawn.tokens[0], drawn.tokens[1]] += 1
        if drawn.tokens[0] == usual:
            deeper[drawn.tokens[2], drawn.tokens[3]] += 1
        assert drawn.parents == [-1, -1, 0, 0]

    def exact(q):
        return {
            (a, b): float(q[a] * q[b] / (1 - q[a])) for a in range(VOCAB) for b in range(VOCAB) if a != b
        }

    assert chi_square_p(pairs, exact(q_of(()))) > 1e-4
    assert chi_square_p(deeper, exact(q_of((usual,)))) > 1e-4


def test_draws_of_cousins_are_independent():
    """Nodes of one level share an output position, and must not share its random numbers."""
    def level(tokens, parents):
        return np.zeros((len(tokens), VOCAB))

    tree = fixed_tree([[0, 0], [1, 0]])
    same = sum(
        one.tokens[2] == one.tokens[3]
        for seed in range(700)
        for one in [fill(tree, np.zeros(VOCAB), level, "a head", SamplingParams(1.0, seed=seed))]
    )
    assert 60 < same < 145  # a seventh of them: 100, five standard deviations


def test_filters_leave_fewer_children():
    head = Head(4)
    drawn = fill(
        fixed_tree([[0], [1], [2], [0, 0], [0, 1]]), head.first, head.level, "a head", SamplingParams(1.0, top_k=2)
    )
    assert drawn.parents == [-1, -1, 0, 0]
    assert sorted(drawn.tokens[:2]) == sorted(np.argsort(-head.row(()))[:2].tolist())
    for path, q in zip(draft_paths(drawn.tokens, drawn.parents), drawn.q, strict=True):
        assert (q > 0).sum() == 2
        assert q.sum() == pytest.approx(1.0)
        assert q[path[-1]] > 0


def test_proceed_is_asked_once_a_level():
    head = Head(2)
    for stop_after in (1, 2, 3):
        asked: list[float] = []

        def proceed(confidence, asked=asked, stop_after=stop_after):
            asked.append(confidence)
            return len(asked) < stop_after

        head.fed.clear()
        drawn = fill(fixed_tree([[0, 0, 0, 0], [1, 0], [2]]), head.first, head.level, "a head", proceed=proceed)
        paths = draft_paths(drawn.tokens, drawn.parents)
        assert max(map(len, paths)) == stop_after == len(asked)
        for depth, confidence in enumerate(asked, 1):
            at = [c for c, path in zip(drawn.confidences, paths, strict=True) if len(path) == depth]
            assert confidence == max(at)


# -- reading -----------------------------------------------------------------------------------------------------


def test_paths_are_read_and_completed():
    assert read_paths("[[0, 1, 0], [2]]") == FixedTree(((0,), (2,), (0, 1), (0, 1, 0)))
    assert read_paths("0.1.0 2") == read_paths(" [[0, 1, 0], [2]] ")  # Medusa's short form
    assert len(read_paths(str([[rank] for rank in range(MOST_NODES)])).paths) == MOST_NODES


@pytest.mark.parametrize("text", ["", "1..0", "-1", "0 x", "[" * 100_000, "{}", "[]", "[[]]", "[0]", "[[true]]", "[[0.5]]", "[[-1]]", '[["0"]]', "[[1e9]]"])
def test_other_paths_are_one_line(text):
    with pytest.raises(UsageError, match=r"list of lists of ranks") as caught:
        read_paths(text)
    assert "\n" not in str(caught.value)
