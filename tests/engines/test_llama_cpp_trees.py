"""Draft trees in llama.cpp: one pass against the chain of every path, what keep and rollback leave, errors."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.ledger import Draft
from specview.decoding.loop import Sequence as TokenSequence
from specview.decoding.loop import decode
from specview.decoding.sampling import SamplingParams
from specview.drafting.base import BaseDrafter
from specview.engines.llama_cpp_engine import LlamaCppEngine, load
from specview.engines.llama_cpp_session import CHECKED_PASS_TOKENS, PASS_ROWS, LlamaCppSession
from specview.engines.tree import Tree as TreeShape
from specview.errors import SpecviewError
from tests.decoding.toy import constant

pytest.importorskip("llama_cpp")
from tests.engines.test_llama_cpp_engine import EMBD, VOCAB, bundled_path, llama_tensors, write_gguf

BRANCHES = 12
CLOSE = 0.15  # of logits that reach 40: keys and values are float16, and passes of other widths round otherwise
PROMPT = [5, 17, 120, 33, 64, 2, 9]

Tree = tuple[list[int], list[int]]
"""Tokens and parents."""


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tensors = llama_tensors() | {"output.weight": (VOCAB, EMBD)}
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", "llama", tensors, seed=3)


@pytest.fixture(scope="module", params=[False, True], ids=["timed", "checked"])
def tiny(request: pytest.FixtureRequest, tiny_path: Path) -> Iterator[LlamaCppEngine]:
    engine = load(tiny_path, threads=1, check_mode=request.param)
    yield engine
    engine.close()


@pytest.fixture(scope="module", params=[False, True], ids=["timed", "checked"])
def bundled(request: pytest.FixtureRequest) -> Iterator[LlamaCppEngine]:
    engine = load(bundled_path(), threads=1, check_mode=request.param)
    yield engine
    engine.close()


def path_to(parents: Sequence[int], index: int) -> list[int]:
    """Indices from the root to a node."""
    path = []
    while index >= 0:
        path.append(index)
        index = parents[index]
    return path[::-1]


def leaves(parents: Sequence[int]) -> list[int]:
    return [index for index in range(len(parents)) if index not in parents]


def same(one: Any, other: Any, engine: LlamaCppEngine, close: float = CLOSE) -> None:
    """Equal to the last bit in check mode; else close."""
    if engine.check_mode:
        assert (one == other).all()
        return
    np.testing.assert_allclose(one, other, atol=close)


def chain_row(engine: LlamaCppEngine, context: Sequence[int], chain: Sequence[int]) -> Any:
    """The last row of one chain pass in a session that never saw a tree."""
    session = engine.new_session(len(context) + len(chain))
    session.prefill(context)
    row = session.forward(chain).logits[-1]
    session.close()
    return row


@st.composite
def trees(draw: st.DrawFn, most: int = 24) -> Tree:
    """Any shape: chains, stars, forests, combs; children need not be siblings' neighbours."""
    count = draw(st.integers(1, most))
    deep = draw(st.floats(0, 1))
    rng = random.Random(draw(st.integers(0, 2**32)))
    parents = [-1]
    for index in range(1, count):
        parents.append(index - 1 if rng.random() < deep else rng.randrange(-1, index))
    return [rng.randrange(VOCAB - 4) for _ in range(count)], parents


# The shape alone


@given(trees(60))
def test_branches_are_the_root_to_leaf_paths_and_tokens_know_theirs(tree: Tree) -> None:
    parents = tree[1]
    shape = TreeShape(tuple(parents))
    first, count = shape.spans
    assert sorted(shape.branches) == sorted(tuple(path_to(parents, leaf)) for leaf in leaves(parents))
    for index in range(len(parents)):
        run = range(first[index], first[index] + count[index])
        assert [branch for branch, nodes in enumerate(shape.branches) if index in nodes] == list(run)
        assert shape.depths[index] == len(path_to(parents, index)) - 1
    assert shape.height == max(map(len, shape.branches))


# One pass against chains


def test_close_is_far_nearer_than_a_wrong_cell(tiny: LlamaCppEngine) -> None:
    """What the comparisons below would miss: a token too many, too few, or at another position."""
    right = chain_row(tiny, PROMPT, [1, 2])
    for context, chain in (([*PROMPT, 77], [1, 2]), (PROMPT[:-1], [1, 2]), (PROMPT, [77, 2]),
                           ([*PROMPT[:3], 77, *PROMPT[4:]], [1, 2]), ([PROMPT[1], PROMPT[0], *PROMPT[2:]], [1, 2])):
        assert abs(right - chain_row(tiny, context, chain)).max() > 5 * CLOSE


@settings(max_examples=40, deadline=None)
@given(tree=trees())
def test_every_row_is_that_of_the_chain_of_its_path(tiny: LlamaCppEngine, tree: Tree) -> None:
    tokens, parents = tree
    session = tiny.new_session(len(PROMPT) + len(tokens), len(leaves(parents)))
    session.prefill(PROMPT)
    rows = session.forward(tokens, parents).logits
    assert rows.shape == (len(tokens), VOCAB) and rows.dtype == np.float32
    assert session.length == len(PROMPT) + len(tokens)
    for leaf in leaves(parents):
        path = path_to(parents, leaf)
        session.truncate(len(PROMPT))
        same(rows[path], session.forward([tokens[index] for index in path]).logits, tiny)
    session.close()


@settings(max_examples=40, deadline=None)
@given(rounds=st.lists(st.tuples(trees(14), st.floats(0, 1), st.sampled_from(["keep", "drop", "chain", "back"])),
                       min_size=1, max_size=8))
def test_a_session_of_many_trees_is_one_of_the_kept_tokens(
    tiny: LlamaCppEngine, rounds: list[tuple[Tree, float, str]]
) -> None:
    """Whatever went before, a pass sees the kept tokens and nothing else."""
    session = tiny.new_session(400, 14)
    session.prefill(PROMPT)
    context = list(PROMPT)
    for (tokens, parents), share, what in rounds:
        if what == "chain":
            session.forward(tokens)
            session.keep(range(len(tokens) // 2))
            context += tokens[: len(tokens) // 2]
        elif what == "back":
            context = context[: 1 + int(share * (len(context) - 1))]
            session.forward(tokens, parents)
            session.truncate(len(context))
        else:
            session.forward(tokens, parents)
            if what == "drop":
                session.truncate(len(context))
                session.forward(tokens, parents)
            path = path_to(parents, int(share * (len(parents) - 0.001))) if share else []
            session.keep(path)
            context += [tokens[index] for index in path]
        assert session.length == len(context)
    last = session.forward([7, 8, 9], [-1, -1, 1]).logits
    session.keep([1, 2])
    for row, chain in zip(last, ([7], [8], [8, 9]), strict=True):
        same(row, chain_row(tiny, context, chain), tiny)
    same(session.forward([1]).logits[0], chain_row(tiny, [*context, 8, 9], [1]), tiny)
    session.close()


@pytest.mark.parametrize("shape", ["wide", "deep", "comb"])
def test_more_tokens_than_a_pass_has_rows(tiny: LlamaCppEngine, shape: str) -> None:
    count = 2 * PASS_ROWS + 5
    parents = {"wide": [-1] + [0] * (count - 1), "deep": [-1, 0, 0, *range(1, count - 2)],
               "comb": [-1 if n < 2 else n - 2 if n % 2 else n - 2 - (n % 4 == 2) for n in range(count)]}[shape]
    tokens = [(7 * n + n // 13) % 250 for n in range(count)]
    session = tiny.new_session(500, len(leaves(parents)))
    session.prefill(PROMPT)
    rows = session.forward(tokens, parents).logits
    for index in (0, 1, CHECKED_PASS_TOKENS + 1, PASS_ROWS, count - 2, count - 1):
        chain = [tokens[at] for at in path_to(parents, index)]
        same(rows[index], chain_row(tiny, PROMPT, chain), tiny)
    path = path_to(parents, count - 1)
    session.keep(path)
    same(session.forward([3]).logits[0], chain_row(tiny, [*PROMPT, *(tokens[at] for at in path)], [3]), tiny)
    session.close()


def test_as_many_branches_as_the_library_has_sequences(tiny: LlamaCppEngine) -> None:
    most = tiny._lib.llama_max_parallel_sequences()
    session = tiny.new_session(most + 8, most)
    rows = session.forward([9, *(n % 250 for n in range(most))], [-1] + [0] * most).logits
    same(rows[most], chain_row(tiny, [], [9, (most - 1) % 250]), tiny)
    session.keep([0, most])
    same(session.forward([4]).logits[0], chain_row(tiny, [9, (most - 1) % 250], [4]), tiny)
    session.close()
    with pytest.raises(SpecviewError, match=rf"{most + 1} leaves is too wide for llama.cpp, which takes {most}"):
        tiny.new_session(64, most + 1)


def test_a_tree_into_an_empty_cache(tiny: LlamaCppEngine) -> None:
    session = tiny.new_session(16, 4)
    rows = session.forward([1, 2, 3], [-1, -1, 0]).logits
    for row, chain in zip(rows, ([1], [2], [1, 3]), strict=True):
        same(row, chain_row(tiny, [], chain), tiny)
    session.keep([])
    assert session.length == 0
    same(session.forward([8, 9]).logits[1], chain_row(tiny, [], [8, 9]), tiny)
    session.close()


def test_a_tree_fills_the_cache_to_its_last_cell(tiny: LlamaCppEngine) -> None:
    session = tiny.new_session(256, 3)  # llama.cpp's own rounding leaves no spare cell here
    session.prefill([1] * 250)
    tokens, parents = [2, 3, 4, 5, 6, 7], [-1, 0, 0, 1, 2, -1]
    rows = session.forward(tokens, parents).logits
    assert session.length == 256
    same(rows[3], chain_row(tiny, [1] * 250, [2, 3, 5]), tiny)
    session.keep([0, 2, 4])
    with pytest.raises(SpecviewError, match="257 tokens do not fit into a cache of 256"):
        session.forward([1, 2, 3, 4], [-1, 0, 0, -1])
    assert session.length == 253  # a refused pass changes nothing
    same(session.forward([9, 10], [-1, -1]).logits[1], chain_row(tiny, [*[1] * 250, 2, 4, 6], [10]), tiny)
    session.close()


def test_in_check_mode_keep_leaves_the_cells_of_the_chain(tiny_path: Path) -> None:
    """Later passes are bit-equal however long they go on: what one cell differed in would show."""
    engine = load(tiny_path, threads=1, check_mode=True)
    treed, plain = engine.new_session(300, 4), engine.new_session(300)
    rng = random.Random(1)
    for session in (treed, plain):
        session.prefill(PROMPT)
    for _ in range(12):
        tokens = [rng.randrange(250) for _ in range(7)]
        treed.forward(tokens, [-1, 0, 0, 1, 2, 2, 4])
        path = rng.choice([[0], [0, 1], [0, 1, 3], [0, 2, 4, 6], [0, 2, 5]])
        treed.keep(path)
        chain = [tokens[index] for index in path]
        plain.forward(chain)
        assert treed.length == plain.length
        assert (treed.forward([5, 6]).logits == plain.forward([5, 6]).logits).all()
        treed.truncate(treed.length - 2)
        plain.truncate(plain.length - 2)
    engine.close()


# Errors


def test_misuse_is_refused_and_changes_nothing(tiny: LlamaCppEngine) -> None:
    session = tiny.new_session(32, 2)
    session.prefill(PROMPT)
    with pytest.raises(SpecviewError, match="tree of 3 leaves does not fit a cache made for 2"):
        session.forward([1, 2, 3], [-1, -1, -1])
    for parents in ([-1, 1], [-1, -2], [0, 0], [-1]):
        with pytest.raises(ValueError, match="parent"):
            session.forward([1, 2], parents)
    with pytest.raises(ValueError, match="follows a forward"):
        session.keep([])
    assert session.length == len(PROMPT)
    rows = session.forward([1, 2, 3], [-1, 0, 0]).logits
    for bad in ([1], [0, 0], [0, 1, 2], [0, 3], [-1], [2, 0]):
        with pytest.raises(ValueError, match="no path from the root"):
            session.keep(bad)
    for use in (lambda: session.forward([1]), lambda: session.prefill([1]), lambda: session.truncate(len(PROMPT) + 1)):
        with pytest.raises(ValueError, match="after a tree"):
            use()
    session.keep([0, 2])
    with pytest.raises(ValueError, match="follows a forward"):
        session.keep([0])
    same(session.forward([4]).logits[0], chain_row(tiny, [*PROMPT, 1, 3], [4]), tiny)
    with pytest.raises(ValueError, match="no path from the root"):
        session.keep([0, 1])
    session.truncate(len(PROMPT))
    same(session.forward([1, 2, 3], [-1, 0, 0]).logits, rows, tiny)
    session.close()
    with pytest.raises(ValueError, match="closed"):
        session.keep([0])
    with pytest.raises(ValueError):
        tiny.new_session(8, 0)


def test_a_chain_may_be_kept_in_part(tiny: LlamaCppEngine) -> None:
    session = tiny.new_session(32)
    session.prefill(PROMPT)
    session.forward([1, 2, 3], [-1, 0, 1])
    session.keep([0, 1])
    session.forward([4, 5])
    session.keep([])
    same(session.forward([6]).logits[0], chain_row(tiny, [*PROMPT, 1, 2], [6]), tiny)
    session.close()


@pytest.mark.parametrize("failing", [1, 2])
def test_a_failed_pass_leaves_the_context_as_it_was(
    tiny: LlamaCppEngine, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    tokens = [n % 200 for n in range(PASS_ROWS + 20)]
    parents = [-1, 0, 0, *range(1, len(tokens) - 2)]
    session = tiny.new_session(300, 3)
    session.prefill(PROMPT)
    real, calls = LlamaCppSession._decode, 0

    def decode_some(self: LlamaCppSession, batch: Any, fed: int, logits: Any, found: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise SpecviewError("llama.cpp could not run a pass.")
        real(self, batch, fed, logits, found)

    with monkeypatch.context() as patch:
        patch.setattr(LlamaCppSession, "_decode", decode_some)
        with pytest.raises(SpecviewError, match="could not run a pass"):
            session.forward(tokens, parents)
    assert session.length == len(PROMPT)
    same(session.forward([1, 2], [-1, -1]).logits[1], chain_row(tiny, PROMPT, [2]), tiny)
    session.close()


def test_a_failed_rollback_is_an_error(tiny: LlamaCppEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    session = tiny.new_session(32, 3)
    session.prefill(PROMPT)
    session.forward([1, 2, 3, 4], [-1, 0, 0, 1])
    with monkeypatch.context() as patch:
        patch.setattr(session._lib, "llama_memory_seq_rm", lambda *arguments: False)
        with pytest.raises(SpecviewError, match="cannot roll its cache back"):
            session.keep([0, 1])
    session.close()


# The loop


class RandomTrees(BaseDrafter):
    """Drafts a random tree whose first branch is right, so that much of it is accepted."""

    name = "random-trees"

    def __init__(self, right: Sequence[int], vocab: int) -> None:
        self.right, self.vocab, self.rng = list(right), vocab, random.Random(5)
        self.accepted: list[int] = []
        self.riders = 0

    def start(self, prompt_tokens: Sequence[int], sampling: SamplingParams, on_chunk: Any = None) -> None:
        self.begin = len(prompt_tokens)

    def propose(self, context: Sequence[int], budget: int, proceed: Any = None) -> Draft:
        rng, done = self.rng, len(context) - self.begin
        tokens, parents, depths = [], [], []
        for _ in range(rng.randrange(1, 10)):
            parent = rng.randrange(-1, len(tokens))
            depth = depths[parent] + 1 if parent >= 0 else 0
            if depth >= budget:
                continue
            good = rng.random() < 0.7 and done + depth < len(self.right)
            token = self.right[done + depth] if good else rng.randrange(self.vocab)
            siblings = [tokens[at] for at in range(len(tokens)) if parents[at] == parent]
            if token in siblings:
                continue
            tokens.append(token)
            parents.append(parent)
            depths.append(depth)
        riders = tuple(rng.randrange(self.vocab) for _ in range(rng.randrange(3)))
        self.riders += len(riders)
        return Draft(tuple(tokens), parents=tuple(parents), drafter=self.name, riders=riders,
                     rider_parents=tuple(range(-1, len(riders) - 1)))

    def observe(self, round_: Any, features: Any) -> None:
        self.accepted.append(round_.accepted)


def run(engine: LlamaCppEngine, prompt: Sequence[int], count: int, drafter: Any = None) -> list[int]:
    session = engine.new_session(len(prompt) + count + 16, BRANCHES)
    session.prefill(prompt[:-1])
    sampling = SamplingParams(temperature=0)
    if drafter is not None:
        drafter.start(prompt, sampling)
    sequence = TokenSequence(list(prompt))
    for _ in decode(session, sequence, rule="greedy", sampling=sampling, max_tokens=count, drafter=drafter,
                    policy=constant(5) if drafter is not None else None):
        assert session.length == len(sequence.context) - 1
    session.close()
    return sequence.output


def test_greedy_trees_equal_plain_decoding_in_check_mode(tiny_path: Path) -> None:
    engine = load(tiny_path, threads=1, check_mode=True)
    plain = run(engine, PROMPT, 60)
    drafter = RandomTrees(plain, VOCAB - 4)
    assert run(engine, PROMPT, 60, drafter) == plain
    assert max(drafter.accepted) > 1 and sum(drafter.accepted) > 15 and drafter.riders
    engine.close()


# The bundled model


@pytest.mark.real_model
def test_trees_of_the_bundled_model(bundled: LlamaCppEngine) -> None:
    prompt = bundled.tokenizer.encode_chat([{"role": "user", "content": "List three rivers of Portugal."}])
    words = bundled.tokenizer.encode("The Tagus, the Douro and the Minho flow through")
    tokens = [*words[:6], *words[2:8], 28, 30]
    parents = [-1, 0, 1, 2, 3, 4, 1, 6, 7, 0, 9, 10, -1, 12]
    session = bundled.new_session(len(prompt) + 64, len(leaves(parents)))
    session.prefill(prompt)
    rows = session.forward(tokens, parents).logits
    for leaf in leaves(parents):
        path = path_to(parents, leaf)
        session.truncate(len(prompt))
        chain = session.forward([tokens[index] for index in path]).logits
        same(rows[path], chain, bundled, close=3.0)  # quantized: other rows in a pass, other rounding
        for one, other in zip(rows[path], chain, strict=True):
            best = int(one.argmax())
            assert other.max() - other[best] < 0.75, "the likeliest token of one is far from it in the other"
        np.testing.assert_allclose(rows[path].mean(), chain.mean(), atol=0.2)
        session.truncate(len(prompt))
    session.forward(tokens, parents)
    session.keep([0, 9, 10])
    same(session.forward([28]).logits[0], chain_row(bundled, [*prompt, *(tokens[i] for i in (0, 9, 10))], [28]),
         bundled, close=3.0)
    session.close()


@pytest.mark.real_model
def test_greedy_trees_of_the_bundled_model_equal_plain_in_check_mode(bundled: LlamaCppEngine) -> None:
    if not bundled.check_mode:
        pytest.skip("a quantized model's rows depend on the rows beside them")
    prompt = bundled.tokenizer.encode_chat([{"role": "user", "content": "Name a colour."}])
    plain = run(bundled, prompt, 20)
    drafter = RandomTrees(plain, bundled.tokenizer.vocab_size)
    assert run(bundled, prompt, 20, drafter) == plain
    assert sum(drafter.accepted) > 3
