"""The contract of a session, for both engines: chains, rollback, prefill, draft trees, check mode, and misuse."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.ledger import Draft, depths
from specview.decoding.loop import Sequence as TokenSequence
from specview.decoding.loop import decode
from specview.decoding.sampling import SamplingParams
from specview.drafting.base import BaseDrafter
from specview.engines import llama_cpp_session, transformers_cache, transformers_llama, transformers_session
from specview.engines.tree import Tree, read_tree
from specview.errors import SpecviewError, Stopped
from tests.decoding.toy import constant
from tests.engines.conftest import (
    CONTEXT,
    Models,
    array,
    chain_row,
    greedy,
    join,
    leaves,
    path_to,
    same,
    started,
)
from tests.engines.transformers_tiny import VOCAB

OWN = ("llama", "llama-tied", "llama-biased", "llama-deep", "llama3-rope", "qwen2")
MODULE = ("llama-yarn", "mistral-sliding", "qwen3", "gpt2", "gemma2", "gpt-neox")
FEW = ("llama", "gpt2", "gguf")  # one of each forward
FED = (0, 1, "last")


@pytest.fixture(scope="module", params=FEW)
def engine(request: pytest.FixtureRequest, models: Models) -> Any:
    return models.engine(request.param)


@pytest.fixture(scope="module", params=[(kind, check) for kind in FEW for check in (False, True)], ids=str)
def either(request: pytest.FixtureRequest, models: Models) -> Any:
    """Engines in their usual way and in check mode."""
    return models.engine(*request.param)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches that grow early."""
    monkeypatch.setattr(transformers_llama, "_FIRST_BLOCK", 8)
    monkeypatch.setattr(transformers_cache, "_FIRST_BLOCK", 8)


def tokens_of(size: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng([seed, size]).integers(0, 256, size)]


# -- chains --------------------------------------------------------------------------------------------------


def test_rollback_equals_never_having_fed(either: Any) -> None:
    clean, used = started(either), started(either)
    used.forward([50, 60, 70])
    used.truncate(len(CONTEXT) + 1)
    used.forward([80])
    used.truncate(len(CONTEXT))
    assert used.length == clean.length == len(CONTEXT)
    same(either, used.forward([5, 6]).logits, clean.forward([5, 6]).logits)
    used.truncate(0)
    assert used.length == 0
    same(either, used.forward([9, 8, 7]).logits, started(either, []).forward([9, 8, 7]).logits)


@pytest.mark.parametrize("rows", (2, 3, 5, 9, 25))
def test_check_mode_has_the_same_bits_in_passes_of_any_width(models: Models, rows: int) -> None:
    tokens = tokens_of(30)
    for kind in ("llama-biased", "qwen3", "mistral-sliding", *FEW):
        engine = models.engine(kind, True)
        single, wide = started(engine, tokens[:5]), started(engine, tokens[:5])
        ones = [single.forward([token], features=FED) for token in tokens[5:]]
        parts = [wide.forward(tokens[at : at + rows], features=FED) for at in range(5, 30, rows)]
        same(engine, join([part.logits for part in parts]), join([one.logits for one in ones]))
        for layer in FED:
            same(engine, join([part.features[layer] for part in parts]), join([one.features[layer] for one in ones]))


def test_a_pass_of_many_rows_equals_many_of_one(engine: Any) -> None:
    wide, narrow = started(engine), started(engine)
    rows = array(wide.forward(tokens_of(40)).logits)
    assert rows.shape == (40, VOCAB) and rows.dtype == np.float32
    same(engine, rows, join([narrow.forward([token]).logits for token in tokens_of(40)]))


def test_rows_stay_true_and_are_the_caller_s(engine: Any) -> None:
    session = started(engine, CONTEXT[:20], 220)
    first = session.forward([1, 2], features=FED)
    kept = {"logits": array(first.logits).copy(), **{layer: array(rows).copy() for layer, rows in first.features.items()}}
    session.forward(tokens_of(200), features=FED)  # makes llama.cpp move its buffer
    session.truncate(20)
    again = session.forward([1, 2], features=FED)
    for rows in (again.logits, *again.features.values()):
        rows += 1.0
    session.truncate(20)
    last = session.forward([1, 2], features=FED)
    session.close()
    for name, rows in {"logits": first.logits, **first.features}.items():
        np.testing.assert_array_equal(array(rows), kept[name])
    same(engine, last.logits, kept["logits"])


def test_sessions_are_independent(engine: Any) -> None:
    alone = greedy(engine.new_session(64), CONTEXT[:5], 20)
    one, two = started(engine, CONTEXT[:4]), started(engine, [7] * 5)
    token, out = CONTEXT[4], []
    for _ in range(20):
        two.forward([token, 9])
        two.truncate(two.length - 1)
        token = int(one.forward([token]).logits[-1].argmax())
        out.append(token)
    two.close()
    assert out == alone


def test_the_cache_grows(engine: Any, small_blocks: None) -> None:
    grown, whole = engine.new_session(100), started(engine, CONTEXT)
    for at in range(0, len(CONTEXT), 5):
        grown.forward(CONTEXT[at : at + 5])
    same(engine, grown.forward([1]).logits, whole.forward([1]).logits)


# -- prefill -------------------------------------------------------------------------------------------------


@pytest.fixture
def chunks_of_64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_session, "PREFILL_CHUNK", 64)
    monkeypatch.setattr(llama_cpp_session, "PASS_TOKENS", 96)  # the rows of a pass


@pytest.mark.parametrize("by", ["chunk", "features"])
def test_a_prefill_reports_and_a_stopped_one_leaves_the_session_usable(engine: Any, chunks_of_64: None, by: str) -> None:
    tokens = tokens_of(220)
    whole, session = engine.new_session(240), engine.new_session(240)
    order: list[Any] = []
    whole.prefill(tokens, lambda done, total: order.append((done, total)), FED, lambda found: order.append(len(found["last"])))
    rows, ends = order[::2], order[1::2]
    assert np.cumsum(rows).tolist() == [done for done, _ in ends] and ends[-1] == (220, 220) and len(ends) > 2

    def stop(*_given: Any) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        session.prefill(tokens, stop if by == "chunk" else None, FED, stop if by == "features" else lambda _: None)
    assert session.length == rows[0]
    session.prefill(tokens[session.length :])
    same(engine, session.forward([1]).logits, whole.forward([1]).logits)


def test_a_full_session_says_so(either: Any) -> None:
    session = either.new_session(4)
    session.prefill([])
    session.prefill([1, 2, 3])
    session.forward([4])
    with pytest.raises(SpecviewError, match="5 tokens do not fit into a cache of 4"):
        session.forward([5])
    session.truncate(3)
    session.forward([4])
    with pytest.raises(SpecviewError, match=r"1,000 tokens do not fit the context of [\w-]+ \(\d+\)"):
        either.new_session(1000)


# -- trees ---------------------------------------------------------------------------------------------------


@st.composite
def trees(draw: Any, least: int = 2, most: int = 20) -> list[int]:
    """Parents: bushy, long, with several roots, in any order that puts parents first."""
    size = draw(st.integers(least, most))
    return [draw(st.integers(max(-1, index - draw(st.integers(1, 8))), index - 1)) for index in range(size)]


def random_tree(size: int, seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    return [-1, *(int(rng.integers(max(-1, index - 12), index)) for index in range(1, size))]


@given(trees(most=60))
@settings(max_examples=100)
def test_the_shape_of_a_tree(parents: list[int]) -> None:
    tree = Tree(tuple(parents))
    paths = [path_to(parents, index) for index in range(len(parents))]
    first, count = tree.spans
    assert tree.depths == depths(parents) == [len(path) - 1 for path in paths]
    assert sorted(tree.branches) == sorted(tuple(paths[leaf]) for leaf in leaves(parents))
    assert sorted(sum(tree.chains, ())) == list(range(len(parents)))
    done: list[int] = []
    for chain, branch in zip(tree.chains, tree.branches, strict=True):
        done[tree.depths[chain[0]] :] = chain
        assert done == list(branch)
    for index, path in enumerate(paths):
        assert tree.sees[index].nonzero()[0].tolist() == path
        run = range(first[index], first[index] + count[index])
        assert [at for at, nodes in enumerate(tree.branches) if index in nodes] == list(run)
    assert tree.height == max(map(len, tree.branches))


def test_chains_are_no_trees_and_wrong_parents_are_refused() -> None:
    assert read_tree(None, 3) is None and read_tree([-1, 0, 1], 3) is None and read_tree([-1], 1) is None
    for parents, size in (([-1, 0], 3), ([0, -1], 2), ([-1, -2], 2), ([-1, 1], 2)):
        with pytest.raises(ValueError, match="no tree"):
            read_tree(parents, size)


def compare_tree(engine: Any, context: Sequence[int], parents: list[int], kept: int) -> None:
    """Logits and features of a tree pass against plain passes of its paths; then the path to `kept` continued."""
    tokens, features = tokens_of(len(parents)), FED
    session = started(engine, context, len(parents) + 8, len(leaves(parents)))
    plain = started(engine, context, len(parents) + 8)
    given_ = session.forward(tokens, parents, features)
    assert session.length == len(context) + len(parents)
    for leaf in leaves(parents):
        path = path_to(parents, leaf)
        chain = plain.forward([tokens[index] for index in path], features=features)
        same(engine, given_.logits[path], chain.logits)
        for layer in features:
            same(engine, given_.features[layer][path], chain.features[layer])
        plain.truncate(len(context))
    path = path_to(parents, kept)
    session.keep(path)
    assert session.length == len(context) + len(path)
    if path:
        plain.forward([tokens[index] for index in path])
    same(engine, session.forward([7, 8, 9]).logits, plain.forward([7, 8, 9]).logits)
    session.close()
    plain.close()


@pytest.mark.parametrize("kind", (*OWN, *MODULE, "gguf"))
@given(parents=trees(), held=st.integers(0, len(CONTEXT)), data=st.data())
@settings(max_examples=8)
def test_each_path_is_a_chain(kind: str, parents: list[int], held: int, data: st.DataObject, models: Models) -> None:
    compare_tree(models.engine(kind), CONTEXT[:held], parents, data.draw(st.integers(-1, len(parents) - 1)))


@pytest.mark.parametrize("kind", ("llama-deep", "mistral-sliding", "gpt2", "bloom", "gguf"))
@given(parents=trees(), data=st.data())
@settings(max_examples=6)
def test_check_mode_has_the_bits_of_chains(kind: str, parents: list[int], data: st.DataObject, models: Models) -> None:
    compare_tree(models.engine(kind, True), CONTEXT, parents, data.draw(st.integers(-1, len(parents) - 1)))


@pytest.mark.parametrize("size", (32, 33, 96, 97, 205))
@pytest.mark.parametrize("kind", ("llama", "llama-deep", "gemma2", "gguf"))
def test_large_trees(kind: str, size: int, models: Models) -> None:
    """On both sides of the border between the passes of few and of many rows, and of more than one pass."""
    compare_tree(models.engine(kind), CONTEXT, random_tree(size, size), size - 1)


@pytest.mark.parametrize("kind", OWN)
def test_the_general_way_equals_the_short_one(kind: str, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU runs, on the CPU; an empty cache too, where a chain would take torch's own mask."""
    engine, parents = models.engine(kind), random_tree(24, 1)
    tokens = tokens_of(24)
    for context in ([], CONTEXT):
        rows = []
        for few_rows in (engine._runner._few_rows, None):
            monkeypatch.setattr(engine._runner, "_few_rows", few_rows)
            session = started(engine, context)
            parts = [session.forward(tokens, parents).logits]
            session.truncate(len(context))
            rows.append(join([*parts, *(session.forward(tokens[a:b]).logits for a, b in ((0, 7), (7, 8), (8, 24)))]))
        monkeypatch.undo()
        same(engine, rows[1], rows[0])


def test_the_comparison_would_see_a_wrong_cell(engine: Any) -> None:
    """A token too many, too few, or at another position is far from what rounding does."""
    right = array(chain_row(engine, CONTEXT[:7], [1, 2]))
    first, second, *rest = CONTEXT[:7]
    for context, chain in (([*CONTEXT[:7], 77], [1, 2]), (CONTEXT[:6], [1, 2]), (CONTEXT[:7], [77, 2]), ([second, first, *rest], [1, 2])):
        assert abs(right - array(chain_row(engine, context, chain))).max() > (0.75 if engine.name == "llama.cpp" else 0.01)


@given(rounds=st.lists(st.tuples(trees(1, 14), st.floats(0, 1), st.sampled_from(["keep", "drop", "chain", "back"])),
                       min_size=1, max_size=6))  # fmt: skip
@settings(max_examples=8)
def test_a_session_of_many_trees_is_one_of_the_kept_tokens(either: Any, rounds: list[tuple[list[int], float, str]]) -> None:
    """Whatever went before, a pass sees the kept tokens and nothing else."""
    held, context = 7, CONTEXT[:7]
    session = started(either, context, 200, 14)
    for place, (parents, share, what) in enumerate(rounds):
        tokens = tokens_of(len(parents), place)
        if what == "chain":
            session.forward(tokens)
            session.keep(range(len(tokens) // 2))
            context = context + tokens[: len(tokens) // 2]
        elif what == "back":
            context = context[: held + int(share * (len(context) - held))]
            session.forward(tokens, parents)
            session.truncate(len(context))
        else:
            session.forward(tokens, parents)
            if what == "drop":
                session.truncate(len(context))
                session.forward(tokens, parents)
            path = path_to(parents, int(share * (len(parents) - 0.001))) if share else []
            session.keep(path)
            context = context + [tokens[index] for index in path]
        assert session.length == len(context)
    last = session.forward([7, 8, 9], [-1, -1, 1]).logits
    session.keep([1, 2])
    for row, chain in zip(last, ([7], [8], [8, 9]), strict=True):
        same(either, row, chain_row(either, context, chain, held))
    same(either, session.forward([1]).logits[0], chain_row(either, [*context, 8, 9], [1], held))
    session.close()


def test_the_cache_grows_in_a_tree_pass(engine: Any, small_blocks: None) -> None:
    parents = random_tree(20, 3)
    compare_tree(engine, CONTEXT[:6], parents, max(leaves(parents), key=lambda leaf: len(path_to(parents, leaf))))


def test_what_may_follow_a_tree(either: Any) -> None:
    session = started(either, CONTEXT[:5], 35, 3)
    with pytest.raises(ValueError, match="follows a forward"):
        session.keep([])
    for parents in ([-1, 1], [-1, -2], [0, 0], [-1]):
        with pytest.raises(ValueError, match="no tree"):
            session.forward([1, 2], parents)
    rows = session.forward([1, 2, 3, 4], (-1, 0, 0, 2)).logits
    for call in (lambda: session.forward([1]), lambda: session.prefill([1]), lambda: session.truncate(6)):
        with pytest.raises(ValueError, match="after a tree only keep, or truncate to 5 or less"):
            call()
    for path in ([1], [0, 3], [0, 2, 2], [0, 2, 3, 3], [0, 4], [-1]):
        with pytest.raises(ValueError, match="no path"):
            session.keep(path)
    session.keep([0, 2, 3])
    assert session.length == 8
    with pytest.raises(ValueError, match="follows a forward"):
        session.keep([0])
    same(either, session.forward([4]).logits[0], chain_row(either, [*CONTEXT[:5], 1, 3, 4], [4], 5))
    session.truncate(5)
    same(either, session.forward([1, 2, 3, 4], (-1, 0, 0, 2)).logits, rows)
    session.keep([])
    session.forward([1, 2, 3], (-1, 0, 1))  # a chain is kept by a path of its own, too
    session.keep([0, 1])
    same(either, session.forward([6]).logits[0], chain_row(either, [*CONTEXT[:5], 1, 2], [6], 5))
    with pytest.raises(SpecviewError, match="do not fit"):
        session.forward([1] * 40, [-1, *[0] * 39])
    assert session.length == 8  # a refused pass changes nothing


def test_misuse_is_refused(either: Any) -> None:
    session = either.new_session(8)
    for bad in (lambda: session.truncate(3), lambda: session.truncate(-1), lambda: session.forward([])):
        with pytest.raises(ValueError):
            bad()
    session.forward([1])
    session.close()
    session.close()
    for use in (lambda: session.forward([1]), lambda: session.prefill([1]), lambda: session.truncate(0), lambda: session.keep([])):
        with pytest.raises(ValueError, match="closed"):
            use()


# -- the loop ------------------------------------------------------------------------------------------------


class RandomTrees(BaseDrafter):
    """Drafts random trees, some of whose paths are the target's own greedy tokens, and riders beside them."""

    name = "random-trees"

    def __init__(self, right: Sequence[int], begin: int) -> None:
        self.right, self.begin, self.rng = list(right), begin, random.Random(5)
        self.accepted: list[int] = []
        self.riders = 0

    def propose(self, context: Sequence[int], budget: int, proceed: Any = None) -> Draft:
        rng, done = self.rng, len(context) - self.begin
        tokens: list[int] = []
        parents: list[int] = []
        levels: list[int] = []
        for _ in range(rng.randrange(1, 14)):
            parent = rng.randrange(-1, len(tokens))
            depth = levels[parent] + 1 if parent >= 0 else 0
            good = rng.random() < 0.7 and done + depth < len(self.right)
            token = self.right[done + depth] if good else rng.randrange(256)
            if depth >= budget or (parent, token) in zip(parents, tokens, strict=True):
                continue
            tokens.append(token)
            parents.append(parent)
            levels.append(depth)
        riders = tuple(rng.randrange(256) for _ in range(rng.randrange(4)))
        self.riders += len(riders)
        follows = tuple(range(-1, len(riders) - 1))
        return Draft(tuple(tokens), parents=tuple(parents), drafter=self.name, riders=riders, rider_parents=follows)

    def observe(self, round_: Any, features: Any) -> None:
        self.accepted.append(round_.accepted)


def run(engine: Any, prompt: Sequence[int], count: int, drafter: Any = None) -> list[int]:
    session = engine.new_session(len(prompt) + count + 40, 14)
    session.prefill(prompt[:-1])
    sequence = TokenSequence(list(prompt))
    steps = decode(session, sequence, rule="greedy", sampling=SamplingParams(temperature=0), max_tokens=count, drafter=drafter,
                   policy=constant(6) if drafter is not None else None)  # fmt: skip
    for _ in steps:
        assert session.length == len(sequence.context) - 1
    session.close()
    return sequence.output


@pytest.fixture(params=[("llama-deep", False), ("gpt2", False), *((kind, True) for kind in ("llama-deep", "gpt2", "gguf"))], ids=str)
def exact(request: pytest.FixtureRequest, models: Models) -> Iterator[Any]:
    """Engines in which other rows beside a row leave its likeliest token as it is."""
    yield models.engine(*request.param)


def test_greedy_decoding_with_trees_equals_plain(exact: Any) -> None:
    plain = run(exact, CONTEXT[:12], 60)
    drafter = RandomTrees(plain, 12)
    assert run(exact, CONTEXT[:12], 60, drafter) == plain
    assert max(drafter.accepted) >= 2 and 0 in drafter.accepted and drafter.riders
