"""Medusa over a toy target with features: its heads against a numpy forward, its trees, and what the rules make of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.sampling import SamplingParams, draw, probabilities, uniform
from specview.drafting.medusa import tree_of
from specview.drafting.registry import METHODS
from specview.errors import UsageError
from specview.heads.layouts import HeadFacts
from specview.heads.loaded import LoadedHead
from specview.heads.medusa import MedusaHeads, MedusaShape
from tests.decoding.toy import (
    TableModel,
)
from tests.drafting.eagle_toy import (
    HIDDEN,
    FeatureEngine,
    Watched,
    draft_paths,
    feature,
    make,
    randomised,
    run,
)

WIDE = 12
MAP = [7, 1, 4, 10, 3]
TREE = "0 1 2 0.0 0.1 1.0 0.0.0"
SHAPES = {
    "chain": {},
    "small": {"tree": "fixed"},
    "own": {"tree": "fixed", "choices": TREE},
    "63": {"tree": "fixed", "choices": "mc_sim_7b_63"},
}


def heads_for(target: FeatureEngine, *, heads: int = 3, mapped: Sequence[int] = (), seed: int = 1, **more) -> LoadedHead:
    """Random float64 heads."""
    shape = MedusaShape(HIDDEN, target.vocab_size, heads, draft_vocab=len(mapped), **more)
    module = MedusaHeads(shape).double()
    if mapped:
        module.token_map.copy_(torch.tensor(mapped))
    facts = HeadFacts("medusa", "toy", Path("toy"), HIDDEN, target.vocab_size, len(mapped) or target.vocab_size)
    return LoadedHead(facts, randomised(module, seed), target)


def naive(head: LoadedHead, target: FeatureEngine, context: Sequence[int]) -> np.ndarray:
    """Logits [heads, vocab] after a context, by LAYOUTS.md, from the state that gave its last token."""
    w = {name: tensor.numpy() for name, tensor in head.module.state_dict().items()}
    shape = head.module.shape
    rows = np.full((shape.heads, target.vocab_size), -np.inf)
    for i in range(shape.heads):
        x = feature("last", context[:-1])
        for j in range(shape.layers):
            y = w[f"blocks.{i}.layers.{j}.weight"] @ x + w.get(f"blocks.{i}.layers.{j}.bias", 0.0)
            x = x + y / (1 + np.exp(-y))
        if shape.output == "target":
            rows[i] = target.output @ x
        else:
            own = w["lm_head.weight" if shape.output == "shared" else f"lm_heads.{i}.weight"] @ x
            rows[i, w.get("token_map", slice(None))] = own
    return rows


def wide(namespace: str = "numpy", seed: int = 0, **more) -> FeatureEngine:
    return FeatureEngine(TableModel(WIDE, order=2, seed=seed, scale=3.0), WIDE, namespace=namespace, **more)


KINDS = pytest.mark.parametrize(
    "more",
    [{}, {"layers": 2, "bias": False}, {"output": "target"}, {"output": "shared"}, {"mapped": MAP},
     {"mapped": MAP, "output": "shared"}],
    ids=str,
)  # fmt: skip


# -- what is drafted -------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_a_greedy_chain_is_the_best_of_each_head(more, namespace):
    target = wide(namespace)
    head = heads_for(target, **more)
    drafter = Watched(make("medusa", head, target))
    _, rounds, _, _ = run(target, [1, 2, 3], drafter, max_tokens=30, k=3)
    assert rounds[0].k == 0  # nothing is known of the target's state yet
    assert not drafter.drafts[0][2]
    for context, budget, draft in drafter.drafts[1:]:
        expected = naive(head, target, context)
        assert draft.tokens == tuple(expected.argmax(-1)[:budget].tolist())
        assert draft.q is None
        assert draft.parents is None
        assert draft.drafter == "medusa"
        for row, raw in zip(expected, draft.raw_logits, strict=False):
            assert np.asarray(raw) == pytest.approx(row, abs=1e-9)
    assert len(drafter.drafts) > 10


@pytest.mark.parametrize("more", [{}, {"mapped": MAP}, {"output": "target"}], ids=str)
def test_a_sampled_chain_has_the_q_that_it_was_drawn_from(more):
    target = wide()
    sampling = SamplingParams(0.8, top_k=4, seed=3)
    head = heads_for(target, **more)
    drafter = Watched(make("medusa", head, target))
    run(target, [1, 2, 3], drafter, rule="rejection", sampling=sampling, max_tokens=30)
    drawn = 0
    for context, _, draft in drafter.drafts[1:]:
        rows = naive(head, target, context)
        assert len(draft.q) == len(draft)
        for place, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
            assert np.asarray(q) == pytest.approx(probabilities(rows[place], sampling), abs=1e-6)
            own = more.get("mapped", range(WIDE))  # drawn in the order of the heads' own columns
            u = uniform(3, len(context) - 3, "draft", place)
            assert token == own[draw(np.asarray(q)[list(own)], u)]
            drawn += 1
    assert drawn > 20


@pytest.mark.parametrize("shape", ["small", "own", "63"])
@pytest.mark.parametrize("more", [{}, {"mapped": MAP}, {"output": "target"}], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_tree_has_the_likeliest_tokens_by_rank(shape, more, temperature):
    target = wide("torch")
    head = heads_for(target, **more)
    drafter = Watched(make("medusa", head, target, **SHAPES[shape]))
    sampling = SamplingParams(temperature, seed=2)
    run(target, [1, 2, 3], drafter, rule="match", sampling=sampling, max_tokens=30, k=4)
    places = tree_of(SHAPES[shape].get("choices", "small")).paths
    for context, budget, draft in drafter.drafts[1:]:
        rows = naive(head, target, context)
        order = np.argsort(-rows, axis=-1, kind="stable")
        known = np.isfinite(rows).sum(-1)
        shares = np.exp(rows) / np.exp(rows).sum(-1, keepdims=True)
        kept = [path for path in places if len(path) <= min(budget, 3) and all(r < known[d] for d, r in enumerate(path))]
        expected = [tuple(int(order[depth][rank]) for depth, rank in enumerate(path)) for path in kept]
        assert draft_paths(draft.tokens, draft.parents) == expected
        assert draft.q is None
        assert draft.siblings == "point-mass"
        sure = [shares[len(path) - 1][order[len(path) - 1][path[-1]]] for path in kept]
        assert draft.confidences == pytest.approx(sure, abs=1e-9)
    assert len(drafter.drafts) > 5


def test_the_usual_tree():
    """LAYOUTS.md: 63 paths, 10, 28, 23 and 2 at depths 1 to 4, ranks 0 to 9; closed under ancestors."""
    tree = tree_of("mc_sim_7b_63")
    assert Counter(map(len, tree.paths)) == {1: 10, 2: 28, 3: 23, 4: 2}
    assert len(set(tree.paths)) == 63
    assert {rank for path in tree.paths for rank in path} == set(range(10))
    assert all(len(path) == 1 or path[:-1] in tree.paths for path in tree.paths)
    for known in ((0, 0, 9), (9, 0), (1, 6), (3, 1), (0, 2, 1), (2, 0, 0), (0, 0, 0, 1)):
        assert known in tree.paths
    for other in ((3, 2), (1, 1, 0), (0, 8, 0), (0, 0, 1, 0)):
        assert other not in tree.paths


@given(
    paths=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), min_size=1, max_size=8),
    budget=st.integers(1, 5),
    room=st.integers(1, 9),
)
@settings(deadline=None, derandomize=True, max_examples=40)
def test_any_tree_within_any_budget_and_room(paths, budget, room):
    target = wide()
    head = heads_for(target)
    context = [1, 2, 3, 4]
    info = METHODS["medusa"]
    given_options = {"tree": "fixed", "choices": json.dumps(paths)}
    options = info.resolve(given_options)
    drafter = make("medusa", head, target, len(context) + room, **given_options)
    drafter.start(context[:-1], SamplingParams())
    drafter._hidden = torch.from_numpy(feature("last", context[:-1]))[None]
    draft = drafter.propose(context, budget)
    nodes = draft_paths(draft.tokens, draft.parents)
    assert 0 < len(nodes) <= min(room, info.drafted(options).rows_at(budget))
    assert max(map(len, nodes)) <= min(budget, 3, info.drafted(options).levels)
    assert len(set(nodes)) == len(nodes)
    assert len(set(nodes) - {node[:-1] for node in nodes}) <= info.drafted(options).leaves
    if room >= info.drafted(options).rows_at(budget):
        closed = {tuple(path[: end + 1]) for path in paths for end in range(len(path))}
        assert len(nodes) == sum(len(path) <= budget for path in closed)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_policy_ends_the_draft(shape):
    target = wide()
    asked: list[float] = []

    def once(confidence: float) -> bool:
        asked.append(confidence)
        return len(asked) < 2

    context = [1, 2, 3]
    drafter = make("medusa", heads_for(target), target, **SHAPES[shape])
    drafter.start(context, SamplingParams())
    drafter._hidden = torch.from_numpy(feature("last", context))[None]
    draft = drafter.propose([*context, 4], 3, once)
    depths = [len(path) for path in draft_paths(draft.tokens, draft.parents)]
    assert max(depths) == 2
    rows = naive(drafter._head, target, [*context, 4])
    best = (np.exp(rows) / np.exp(rows).sum(-1, keepdims=True)).max(-1)
    assert asked == pytest.approx(best[:2], abs=1e-6)


# -- what becomes of it ------------------------------------------------------------------------------------


# -- bounds and trouble --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "choices", ["nowhere", "", "0 x", "0..1", "[[0", "[[]]", "{}", "[[-1]]", "[[true]]", "[0]", "-1", "0 " * 2 + "0.9999"]
)  # fmt: skip
def test_a_tree_that_is_none_is_refused_in_one_line(choices):
    with pytest.raises(UsageError) as caught:
        METHODS["medusa"].resolve({"tree": "fixed", "choices": choices})
    assert "\n" not in str(caught.value)
    assert METHODS["medusa"].resolve({"tree": "chain", "choices": choices})  # not looked at


def test_a_tree_larger_than_a_pass_is_refused():
    many = json.dumps([[rank] for rank in range(300)])
    with pytest.raises(UsageError, match="too large"):
        METHODS["medusa"].resolve({"tree": "fixed", "choices": many})


def test_a_tree_from_a_file(tmp_path):
    file = tmp_path / "tree.json"
    file.write_text("[[0], [1], [0, 0]]", encoding="utf-8")
    options = METHODS["medusa"].resolve({"tree": "fixed", "choices": str(file)})
    assert METHODS["medusa"].drafted(options).rows_at(4) == 3
    assert tree_of(str(file)) == tree_of("0 1 0.0") == tree_of("[[0],[1],[0,0]]")


def test_a_file_that_holds_no_tree_is_named_and_not_quoted(tmp_path):
    for name, content in (("list.json", '{"secret": 1}'), ("words", "secret:x:0:0"), ("bad.json", "[[secret")):
        file = tmp_path / name
        file.write_text(content, encoding="utf-8")
        with pytest.raises(UsageError) as caught:
            tree_of(str(file))
        assert str(file) in str(caught.value) and "secret" not in str(caught.value)
    (tmp_path / "long").write_text("0 " * 100_000, encoding="utf-8")
    for unread in (tmp_path / "long", tmp_path, "/dev/zero"):  # neither read nor waited for
        with pytest.raises(UsageError, match="no file of paths that can be read"):
            tree_of(str(unread))
