"""Draft trees in the transformers engine: each path against a plain pass of it, on tiny random models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.ledger import Draft, Round, depths
from specview.decoding.loop import Sequence as TokenSequence
from specview.decoding.loop import decode
from specview.decoding.sampling import SamplingParams
from specview.drafting.base import BaseDrafter
from specview.errors import SpecviewError
from tests.decoding.toy import constant
from tests.engines.transformers_tiny import save_model, tiny

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from specview.engines import transformers_engine  # noqa: E402
from specview.engines.tree import Tree, read_tree  # noqa: E402

OWN = ("llama", "llama-tied", "llama-biased", "llama-deep", "llama3-rope", "qwen2")
MODULE = ("llama-yarn", "mistral-sliding", "qwen3", "gpt2", "gemma2", "gpt-neox")
CONTEXT = [(13 * index + 5) % 256 for index in range(40)]  # longer than the sliding windows (16)
CLOSE = {"atol": 2e-4, "rtol": 2e-4}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Two threads on a busy machine wait for each other."""
    before, own = torch.get_num_threads(), transformers_engine._own_threads
    torch.set_num_threads(1)
    transformers_engine._own_threads = 1
    yield
    transformers_engine._own_threads = own
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tiny")
    return {kind: save_model(root / kind, tiny(kind)) for kind in (*OWN, *MODULE, "bloom")}


@pytest.fixture(scope="module")
def engines(folders: dict[str, Path]) -> dict[str, Any]:
    return {kind: transformers_engine.load(folder, device="cpu") for kind, folder in folders.items()}


@pytest.fixture(scope="module")
def checked(folders: dict[str, Path]) -> dict[str, Any]:
    return {
        kind: transformers_engine.load(folders[kind], device="cpu", check_mode=True)
        for kind in ("llama", "llama-deep", "mistral-sliding", "gpt2", "bloom")
    }


@st.composite
def trees(draw: Any, least: int = 2, most: int = 20) -> list[int]:
    """Parents: bushy, long, with several roots, in any order that puts parents first."""
    size = draw(st.integers(least, most))
    return [draw(st.integers(max(-1, index - draw(st.integers(1, 8))), index - 1)) for index in range(size)]


def random_tree(size: int, seed: int) -> list[int]:
    random = np.random.default_rng(seed)
    return [-1, *(int(random.integers(max(-1, index - 12), index)) for index in range(1, size))]


def tokens_of(size: int, seed: int = 0) -> list[int]:
    return [int(token) for token in np.random.default_rng([seed, size]).integers(0, 256, size)]


def path_to(parents: Sequence[int], index: int) -> list[int]:
    path: list[int] = []
    while index >= 0:
        path.insert(0, index)
        index = parents[index]
    return path


def leaves(parents: Sequence[int]) -> list[int]:
    return [index for index in range(len(parents)) if index not in parents]


def chain_rows(engine: Any, context: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> Any:
    """Logits of every node by plain passes of the paths to the leaves."""
    session = engine.new_session(len(context) + len(tokens))
    session.prefill(context)
    rows: dict[int, Any] = {}
    for leaf in leaves(parents):
        path = path_to(parents, leaf)
        logits = session.forward([tokens[index] for index in path]).logits
        rows.update(zip(path, logits, strict=True))
        session.truncate(len(context))
    return torch.stack([rows[index] for index in range(len(parents))])


@given(trees())
@settings(deadline=None, max_examples=100)
def test_the_shape_of_a_tree(parents: list[int]) -> None:
    tree = Tree(tuple(parents))
    paths = [path_to(parents, index) for index in range(len(parents))]
    assert tree.depths == depths(parents) == [len(path) - 1 for path in paths]
    for index, path in enumerate(paths):
        assert tree.sees[index].nonzero()[0].tolist() == path
    chains = [list(chain) for chain in tree.chains]
    assert sorted(sum(chains, [])) == list(range(len(parents)))
    assert [chain[-1] for chain in chains] == sorted(leaves(parents), key=[*sum(chains, [])].index)
    done: list[int] = []
    for chain in chains:
        done[tree.depths[chain[0]] :] = chain
        assert done == paths[chain[-1]]


def test_chains_are_no_trees_and_wrong_parents_are_refused() -> None:
    assert read_tree(None, 3) is None and read_tree([-1, 0, 1], 3) is None and read_tree([-1], 1) is None
    for parents, size in (([-1, 0], 3), ([0, -1], 2), ([-1, -2], 2), ([-1, 1], 2)):
        with pytest.raises(ValueError, match="no tree"):
            read_tree(parents, size)


@pytest.mark.parametrize("kind", (*OWN, *MODULE))
@given(parents=trees(), held=st.integers(0, len(CONTEXT)), data=st.data())
@settings(deadline=None, max_examples=8)
def test_each_path_is_a_chain(
    kind: str, parents: list[int], held: int, data: st.DataObject, engines: dict[str, Any]
) -> None:
    """Logits and features of the tree pass; then the kept path continued as if there had been no tree."""
    engine = engines[kind]
    context, tokens = CONTEXT[:held], tokens_of(len(parents))
    session = engine.new_session(held + len(parents) + 8)
    session.prefill(context)
    forward = session.forward(tokens, parents, features=(0, 1, "last"))
    assert session.length == held + len(parents)
    torch.testing.assert_close(forward.logits, chain_rows(engine, context, tokens, parents), **CLOSE)
    index = data.draw(st.integers(-1, len(parents) - 1))
    path = path_to(parents, index)
    session.keep(path)
    fresh = engine.new_session(held + len(parents) + 8)
    fresh.prefill(context)
    if path:
        plain = fresh.forward([tokens[index] for index in path], features=(0, 1, "last")).features
        for layer, values in plain.items():
            torch.testing.assert_close(forward.features[layer][path], values, **CLOSE)
    assert session.length == fresh.length == held + len(path)
    torch.testing.assert_close(session.forward([7, 8, 9]).logits, fresh.forward([7, 8, 9]).logits, **CLOSE)


@pytest.mark.parametrize("kind", ("llama", "llama-biased", "llama-deep", "gemma2"))
@pytest.mark.parametrize("size", (32, 33, 70, 130))
def test_large_trees(kind: str, size: int, engines: dict[str, Any]) -> None:
    """On both sides of the border between the passes of few and of many rows."""
    engine, parents, tokens = engines[kind], random_tree(size, size), tokens_of(size)
    session = engine.new_session(len(CONTEXT) + size + 8)
    session.prefill(CONTEXT)
    got = session.forward(tokens, parents).logits
    torch.testing.assert_close(got, chain_rows(engine, CONTEXT, tokens, parents), **CLOSE)


@pytest.mark.parametrize("kind", OWN)
def test_the_general_way_equals_the_short_one(kind: str, engines: dict[str, Any]) -> None:
    """What a GPU runs, on the CPU; an empty cache too, where a chain would take torch's own mask."""
    runner, parents, tokens = engines[kind]._runner, random_tree(24, 1), tokens_of(24)
    for context in ([], CONTEXT):
        expected = chain_rows(engines[kind], context, tokens, parents)
        few_rows, runner._few_rows = runner._few_rows, None
        try:
            session = engines[kind].new_session(80)
            session.prefill(context)
            got = session.forward(tokens, parents).logits
        finally:
            runner._few_rows = few_rows
        torch.testing.assert_close(got, expected, **CLOSE)


@pytest.mark.parametrize("kind", ("llama", "qwen3", "gemma2"))
def test_half_precision(kind: str, folders: dict[str, Path], engines: dict[str, Any]) -> None:
    """The dtype of a GPU: rounding aside, the tree of float32."""
    engine = transformers_engine.load(folders[kind], device="cpu", dtype="bfloat16")
    parents, tokens = random_tree(24, 5), tokens_of(24)
    rows = []
    for each in (engine, engines[kind]):
        session = each.new_session(80)
        session.prefill(CONTEXT)
        rows.append(session.forward(tokens, parents).logits)
        session.keep(path_to(parents, 23))
        rows[-1] = torch.cat([rows[-1], session.forward([3, 4]).logits])
    got, expected = rows
    assert float((got - expected).abs().max()) < 0.2 * float(expected.abs().max())


@pytest.mark.parametrize("kind", ("llama", "gpt2", "gemma2"))
def test_the_cache_grows_in_a_tree_pass(
    kind: str, engines: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from specview.engines import transformers_cache, transformers_llama

    parents, tokens = random_tree(20, 3), tokens_of(20)
    path = path_to(parents, max(leaves(parents), key=lambda leaf: len(path_to(parents, leaf))))
    expected = chain_rows(engines[kind], CONTEXT[:6], tokens, parents)
    fresh = engines[kind].new_session(64)
    fresh.prefill([*CONTEXT[:6], *(tokens[index] for index in path)])
    monkeypatch.setattr(transformers_llama, "_FIRST_BLOCK", 8)
    monkeypatch.setattr(transformers_cache, "_FIRST_BLOCK", 8)
    session = engines[kind].new_session(64)
    session.prefill(CONTEXT[:6])
    torch.testing.assert_close(session.forward(tokens, parents).logits, expected, **CLOSE)
    session.keep(path)
    torch.testing.assert_close(session.forward([3, 4]).logits, fresh.forward([3, 4]).logits, **CLOSE)


@pytest.mark.parametrize("kind", ("llama-deep", "mistral-sliding"))
def test_truncation_after_a_tree(kind: str, engines: dict[str, Any]) -> None:
    session, fresh = engines[kind].new_session(100), engines[kind].new_session(100)
    for length in (len(CONTEXT), 10):
        session.truncate(0)
        session.prefill(CONTEXT)
        session.forward([1, 2, 3, 4], (-1, 0, 0, 2))
        session.truncate(length)
        fresh.truncate(0)
        fresh.prefill(CONTEXT[:length])
        assert session.length == length
        torch.testing.assert_close(session.forward([5, 6]).logits, fresh.forward([5, 6]).logits, **CLOSE)


@pytest.mark.parametrize("check_mode", (False, True))
def test_what_may_follow_a_tree(check_mode: bool, engines: dict[str, Any], checked: dict[str, Any]) -> None:
    session = (checked if check_mode else engines)["llama"].new_session(40)
    with pytest.raises(ValueError, match="follows a forward"):
        session.keep([])
    session.prefill(CONTEXT[:5])
    session.forward([1, 2, 3, 4], (-1, 0, 0, 2))
    for call in (
        lambda: session.forward([1]),
        lambda: session.prefill([1]),
        lambda: session.forward_exit([1], 1),
        lambda: session.truncate(6),
    ):
        with pytest.raises(ValueError, match="tree"):
            call()
    for path in ([1], [0, 3], [0, 2, 2], [0, 2, 3, 3], [0, 4], [-1]):
        with pytest.raises(ValueError, match="no path"):
            session.keep(path)
    session.keep([0, 2, 3])
    assert session.length == 8
    with pytest.raises(ValueError, match="follows a forward"):
        session.keep([0])
    session.forward([1, 2, 3], (-1, 0, 1))  # a chain is kept by a path of its own, too
    session.keep([0, 1])
    assert session.length == 10
    with pytest.raises(SpecviewError, match="do not fit"):
        session.forward([1] * 31, [-1] * 31)


def test_models_that_cannot_take_a_tree_say_so(engines: dict[str, Any], checked: dict[str, Any]) -> None:
    """Bloom reads positions from a mask of two dimensions; check mode computes chains, on any model."""
    engine = engines["bloom"]
    with pytest.raises(SpecviewError, match="cannot verify draft trees") as refusal:
        engine.new_session(40, branches=2)
    assert "\n" not in str(refusal.value)
    session = engine.new_session(40)
    session.prefill(CONTEXT[:4])
    with pytest.raises(SpecviewError, match="cannot verify draft trees"):
        session.forward([1, 2, 3], (-1, 0, 0))
    before = session.forward([1, 2, 3]).logits
    session.keep([0])
    torch.testing.assert_close(session.forward([2, 3]).logits, before[1:], **CLOSE)
    own = checked["bloom"].new_session(40, branches=2)
    assert own.forward([1, 2, 3], (-1, 0, 0)).logits.shape == (3, engine.vocab_size)
    for kind in ("llama", "gemma2"):
        engines[kind].new_session(40, branches=16)


def test_an_attention_window_of_an_unknown_kind_is_refused(engines: dict[str, Any]) -> None:
    from specview.engines.transformers_module import ModuleRunner

    model = engines["gpt2"]._runner._model
    model.config.window_size = 8
    try:
        problem = ModuleRunner(model).tree_problem
    finally:
        del model.config.window_size
    assert problem is not None and "window_size" in problem
    assert ModuleRunner(model).tree_problem is None


@pytest.mark.parametrize("kind", ("llama", "llama-deep", "mistral-sliding", "gpt2"))
@given(parents=trees(), data=st.data())
@settings(deadline=None, max_examples=6)
def test_check_mode_has_the_bits_of_chains(
    kind: str, parents: list[int], data: st.DataObject, checked: dict[str, Any]
) -> None:
    engine, tokens = checked[kind], tokens_of(len(parents))
    session = engine.new_session(100)
    session.prefill(CONTEXT)
    forward = session.forward(tokens, parents, features=(1, "last"))
    assert session.length == len(CONTEXT) + len(parents)
    assert torch.equal(forward.logits, chain_rows(engine, CONTEXT, tokens, parents))
    path = path_to(parents, data.draw(st.integers(-1, len(parents) - 1)))
    session.keep(path)
    fresh = engine.new_session(100)
    fresh.prefill(CONTEXT)
    if path:
        plain = fresh.forward([tokens[index] for index in path], features=(1, "last")).features
        assert all(torch.equal(forward.features[layer][path], plain[layer]) for layer in plain)
    assert session.length == fresh.length
    assert torch.equal(session.forward([7, 8, 9]).logits, fresh.forward([7, 8, 9]).logits)


class RandomTrees(BaseDrafter):
    """Drafts random trees, some of whose paths are the target's own greedy tokens."""

    name = "random-trees"

    def __init__(self, greedy: Sequence[int], prompt: int) -> None:
        self.greedy, self.prompt = list(greedy), prompt
        self.random = np.random.default_rng(4)
        self.accepted: list[int] = []
        self.ridden = 0

    def propose(self, context: Sequence[int], budget: int, proceed: Any = None) -> Draft:
        ahead = self.greedy[len(context) - self.prompt :][:budget]
        parents: list[int] = []
        tokens: list[int] = []
        levels: list[int] = []
        taken: set[tuple[int, int]] = set()
        for index in range(int(self.random.integers(1, 14))):
            parent = int(self.random.integers(-1, index))
            depth = 0 if parent < 0 else levels[parent] + 1
            token = ahead[depth] if depth < len(ahead) and self.random.random() < 0.7 else None
            token = int(self.random.integers(0, 256)) if token is None else token
            if depth >= budget or (parent, token) in taken:
                parent = next((at for at in range(len(tokens)) if (at, token) not in taken), -1)
                depth = 0 if parent < 0 else levels[parent] + 1
                if depth >= budget or (parent, token) in taken:
                    break
            taken.add((parent, token))
            parents.append(parent)
            tokens.append(token)
            levels.append(depth)
        riders = tuple(int(token) for token in self.random.integers(0, 256, int(self.random.integers(0, 4))))
        return Draft(
            tuple(tokens),
            parents=tuple(parents),
            drafter=self.name,
            riders=riders,
            rider_parents=tuple(range(-1, len(riders) - 1)),
        )

    def observe(self, round_: Round, features: Any) -> None:
        self.accepted.append(len(round_.emitted) - (round_.final is not None))
        self.ridden += len(features.get("riders", ()))


@pytest.mark.parametrize("check_mode", (True, False))
@pytest.mark.parametrize("kind", ("llama-deep", "gpt2"))
def test_greedy_decoding_with_trees_equals_plain(
    kind: str, check_mode: bool, engines: dict[str, Any], checked: dict[str, Any]
) -> None:
    engine = (checked if check_mode else engines)[kind]
    prompt, count = CONTEXT[:12], 60

    def run(drafter: Any) -> list[int]:
        session = engine.new_session(len(prompt) + count + 40, branches=14)
        session.prefill(prompt[:-1])
        sequence = TokenSequence(list(prompt))
        steps = decode(
            session,
            sequence,
            rule="greedy",
            sampling=SamplingParams(temperature=0.0),
            max_tokens=count,
            drafter=drafter,
            policy=constant(6) if drafter is not None else None,
        )
        assert len(list(steps)) > 0
        # The last token given by the target alone has not been fed.
        assert session.length in (len(sequence.context) - 1, len(sequence.context))
        return sequence.output

    plain = run(None)
    drafter = RandomTrees(plain, len(prompt))
    assert run(drafter) == plain
    assert max(drafter.accepted) >= 2 and 0 in drafter.accepted and drafter.ridden > 0
