"""Modules inside a GGUF, run by llama.cpp: the same outputs and drafts as the same weights in torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("llama_cpp")

from specview.engines.gguf_file import gguf_facts
from specview.engines.llama_cpp_engine import load
from specview.engines.llama_cpp_mtp import MtpContext, modules_in, mtp_problem
from specview.errors import SpecviewError
from specview.heads.layouts import HeadFacts
from specview.heads.loaded import LoadedHead
from specview.heads.mtp_gguf import gguf_head
from tests.heads.mtp_checkpoints import HIDDEN, LAYERS, VOCAB, model_of, modules_of
from tests.heads.mtp_gguf import write_glm
from tests.heads.test_mtp_module import PROMPT, ModelTarget


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A llama.cpp engine, and the same target and module in torch."""
    modules = 1
    engine = load(write_glm(tmp_path_factory.mktemp("glm") / "glm.gguf", modules), threads=1)
    target = ModelTarget(model_of("glm4_moe"))
    facts = HeadFacts("mtp", "", None, HIDDEN, VOCAB, VOCAB)
    yield engine, LoadedHead(facts, modules_of("glm4_moe", count=modules), target), target
    engine.close()


def test_the_file_says_what_it_has(pair, tmp_path):
    engine, head, _ = pair
    modules = head.module.shape.modules
    assert engine.mtp_modules == modules
    assert mtp_problem(engine) is None
    found = gguf_head(engine)
    assert (found.facts.most_tokens, found.weight_bytes, found.module.shape.modules) == (modules, 0, modules)
    assert modules_in(gguf_facts(write_glm(tmp_path / "a.gguf", 2, said=1))) == 0  # it names fewer than it has
    assert modules_in(gguf_facts(write_glm(tmp_path / "b.gguf", 1, said=0))) == 0


def test_modules_that_llama_cpp_would_abort_over_are_told_in_one_line(tmp_path):
    """llama.cpp 0.3.36 runs one module of this architecture; it ends the process over two."""
    engine = load(write_glm(tmp_path / "two.gguf", 2), threads=1)
    with pytest.raises(SpecviewError, match="llama.cpp does not run those of this model") as caught:
        gguf_head(engine)
    assert "\n" not in str(caught.value)
    session = engine.new_session(8)  # the model itself goes on
    assert session.forward([1, 2]).logits.shape == (2, VOCAB)
    session.close()


def test_one_module_gives_what_it_gives_in_torch(pair):
    engine, head, target = pair
    rng = np.random.default_rng(3)
    hidden = rng.normal(size=(6, HIDDEN)).astype(np.float32)
    tokens = rng.integers(0, VOCAB, size=6).tolist()
    for index in range(head.module.shape.modules):
        cache = head.module.new_cache()[index]
        expected = head.module.run(index, head.embed(tokens), torch.from_numpy(hidden), cache)
        context = MtpContext(engine, index, 32)
        parts = []
        for begin, end in ((0, 4), (4, 5), (5, 6)):
            z, logits = context.run(tokens[begin:end], hidden[begin:end])
            assert logits == pytest.approx(target.project(expected[end - 1]).numpy(), abs=2e-2)
            parts.append(z)
        assert np.concatenate(parts) == pytest.approx(expected.numpy(), abs=2e-2)  # its cache is float16
        context.truncate(2)
        z, _ = context.run(tokens[2:4], hidden[2:4])
        assert z == pytest.approx(expected[2:4].numpy(), abs=2e-2)
        assert context.length == 4
        context.close()


def test_drafts_equal_those_of_the_same_weights_in_torch(pair):
    """Over rounds of every outcome, wherever the torch logits leave no doubt about the token."""
    engine, head, target = pair
    modules = head.module.shape.modules
    mine = gguf_head(engine)
    runs = (mine.module.new_run(mine, 128), head.module.new_run(head, 128))
    session = engine.new_session(128)
    rng = np.random.default_rng(5)
    tokens = list(PROMPT)
    for run in runs:
        run.add(session.forward(tokens[:-1], features=("last",)).features["last"])
        session.truncate(0)
        run.read(tokens)
    session.prefill(tokens[:-1])
    compared = 0
    for _ in range(10):
        length = int(rng.integers(1, modules + 3))
        draft: list[int] = []
        for place in range(length):
            got, expected = (run.first(tokens) if not place else run.step(draft[-1]) for run in runs)
            assert torch.allclose(got, expected, atol=5e-2)
            best = expected[0].topk(2).values
            if float(best[0] - best[1]) > 0.1:
                assert int(got.argmax()) == int(expected.argmax())
                compared += 1
            draft.append(int(expected.argmax()))
        held = int(rng.integers(0, length + 1))
        fed = [tokens[-1], *draft[:held]]
        rows = session.forward(fed, features=("last",)).features["last"]
        tokens += [*draft[:held], int(rng.integers(0, VOCAB))]
        for run in runs:
            run.end()
            run.add(rows)
    assert compared > 10
    runs[0].close()
    session.close()


def test_a_file_without_modules_is_told_in_one_line(tmp_path):
    from tests.engines.gguf_tiny import write_gguf

    engine = load(write_gguf(tmp_path / "llama.gguf"), threads=1)
    with pytest.raises(SpecviewError, match="no next-token-prediction modules") as caught:
        gguf_head(engine)
    assert "\n" not in str(caught.value)
    engine.close()


def test_the_check_reads_the_file_alone(tmp_path):
    """specview check, and the window's question, before anything is loaded."""
    from specview.models.heads import check_before
    from specview.models.pair_check import check_head

    file = write_glm(tmp_path / "glm.gguf")
    report = check_head(file, file, kind="mtp")
    assert report.ok, report.reason
    assert report.facts is not None
    assert (report.facts.most_tokens, report.facts.hidden_size, report.facts.target_layers) == (1, HIDDEN, LAYERS)
    check_before("mtp", "bundled", str(file), "llama.cpp")
    bare = write_glm(tmp_path / "bare.gguf", 1, said=0)
    with pytest.raises(SpecviewError, match="no next-token-prediction modules"):
        check_before("mtp", "bundled", str(bare), "llama.cpp")
