"""MtpModules: published names, and outputs equal to transformers' own MtpModel or to a plain numpy forward."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from specview.heads.layout_mtp import module_names
from specview.heads.layouts import HeadFacts
from specview.heads.loaded import LoadedHead
from specview.heads.mtp import MtpModules, MtpRun
from tests.heads import reference
from tests.heads.mtp_checkpoints import (
    CONFIGS,
    HIDDEN,
    LAYERS,
    VOCAB,
    config_of,
    model_of,
    modules_of,
    published,
)

PROMPT = [5, 200, 17, 90, 3, 44, 101]


class ModelTarget:
    """A transformers model as far as a head needs its target."""

    name = "transformers"
    vocab_size = VOCAB

    def __init__(self, model: Any) -> None:
        self.model = model

    def embed(self, ids: Any) -> Any:
        return self.model.get_input_embeddings()(torch.tensor(list(ids)))

    def project(self, hidden: Any) -> Any:
        return self.model.lm_head(hidden)

    def hidden(self, tokens: list[int]) -> torch.Tensor:
        """After the final norm, [n, hidden]."""
        with torch.inference_mode():
            return self.model.model(torch.tensor([tokens])).last_hidden_state[0]


def head_of(kind: str) -> tuple[LoadedHead, ModelTarget]:
    target = ModelTarget(model_of(kind))
    facts = HeadFacts("mtp", "", None, HIDDEN, VOCAB, VOCAB)
    return LoadedHead(facts, modules_of(kind), target), target


def by_module_names(module: MtpModules, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A checkpoint's tensors as read_mtp names them."""
    shape = module.shape
    return {ours: t for name, t in tensors.items() for ours in module_names(name, shape.layout, shape.modules, LAYERS)}


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_published_checkpoint_loads_whole(kind):
    module = modules_of(kind)
    other = MtpModules(module.shape)
    tensors = by_module_names(module, {**published(module), "model.layers.0.input_layernorm.weight": torch.zeros(HIDDEN)})
    other.load(tensors)
    for name, value in module.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name
    missing = dict(tensors)
    gone = next(name for name in missing if "q_" in name and "self_attn" in name)
    del missing[gone]
    with pytest.raises(RuntimeError, match="Missing key"):
        MtpModules(module.shape).load(missing)


def test_the_module_can_be_made_without_memory():
    with torch.device("meta"):
        module = MtpModules(modules_of("glm4_moe").shape)
    module.load(by_module_names(module, published(modules_of("glm4_moe"))))
    assert not any(tensor.is_meta for tensor in module.state_dict().values())
    expected = modules_of("glm4_moe")
    e, h = torch.randn(2, 3, HIDDEN)
    got = module.run(0, e, h, module.new_cache()[0])
    assert torch.equal(got, expected.run(0, e, h, expected.new_cache()[0]))


def test_copies_of_the_targets_own_are_left_out():
    names = [f"model.layers.{LAYERS}.{name}" for name in ("embed_tokens.weight", "shared_head.head.weight")]
    for name in (*names, "model.layers.1.mlp.gate.weight"):
        assert module_names(name, "deepseek", 2, LAYERS) == []


# -- transformers' own ---------------------------------------------------------------------------------


def transformers_draft(model: Any, module: MtpModules, tokens: list[int], hidden: torch.Tensor) -> tuple:
    """Greedy draft and logits of transformers' MtpModel over a whole context, one token for each module."""
    from transformers.cache_utils import MtpCache
    from transformers.modeling_layers import MtpModel

    count = module.shape.modules
    theirs = MtpModel(model, count).eval()
    renamed = {
        name.replace(".block.", ".mtp_block.").replace(".norm.", ".post_norm."): value
        for name, value in module.state_dict().items()
    }
    missing, unexpected = theirs.load_state_dict(renamed, strict=False)
    assert not unexpected
    assert not [name for name in missing if "layers." in name]
    positions = torch.arange(1, len(tokens))[None]
    with torch.inference_mode():
        ids, logits, _ = theirs(
            input_ids=torch.tensor([tokens[1:]]),
            last_hidden_states=hidden[None, : len(tokens) - 1],
            attention_mask=None,
            position_ids=positions,
            mtp_cache=MtpCache(config=model.config.get_mtp_config()),
        )
    return ids[0].tolist(), logits[0]


@pytest.mark.parametrize("kind", ["deepseek_v3", "glm4_moe"])
def test_drafts_equal_transformers_over_many_rounds(kind):
    """Whatever was accepted, and however short drafts were: each draft is that of the whole context anew."""
    head, target = head_of(kind)
    modules = head.module.shape.modules
    rng = np.random.default_rng(4)
    tokens = list(PROMPT)
    run = MtpRun(head)
    hidden = target.hidden(tokens)
    run.add(hidden[:3])
    run.read(tokens)
    run.add(hidden[3 : len(tokens) - 1])
    run.read(tokens)
    lengths, accepted = [], []
    for _ in range(12):
        known = target.hidden(tokens)
        ids, logits = transformers_draft(target.model, head.module, tokens, known)
        length = int(rng.integers(0, modules + 1))
        draft: list[int] = []
        if length:
            for place in range(length):
                row = run.first(tokens) if not place else run.step(draft[-1])
                assert torch.allclose(row[0], logits[place], atol=1e-4)
                draft.append(int(row[0].argmax()))
            run.end()
            assert draft == ids[:length]
        held = int(rng.integers(0, length + 1))
        lengths.append(length)
        accepted.append(held)
        tokens += [*draft[:held], int(rng.integers(0, VOCAB))]
        run.add(target.hidden(tokens)[run.known : len(tokens) - 1])
    assert {0, modules} <= set(lengths)
    assert len(set(accepted)) == modules + 1


# -- plain numpy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mimo", "qwen3_5_text"])
def test_equals_the_formula(kind):
    module = modules_of(kind)
    rng = np.random.default_rng(2)
    embedded, hidden = rng.normal(size=(2, 6, HIDDEN)).astype(np.float32)
    expected = reference.module(kind, published(module), config_of(kind), embedded, hidden, range(1, 7))
    whole = module.run(0, torch.from_numpy(embedded), torch.from_numpy(hidden), module.new_cache()[0])
    assert whole.numpy() == pytest.approx(expected, abs=1e-4)
    cache = module.new_cache()[0]
    parts = [
        module.run(0, torch.from_numpy(embedded[a:b]), torch.from_numpy(hidden[a:b]), cache)
        for a, b in ((0, 1), (1, 4), (4, 6))
    ]
    assert torch.cat(parts).numpy() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("kind", ["mimo", "qwen3_5_text", "qwen3_next", "glm4_moe", "deepseek_v3"])
def test_the_last_module_goes_on_from_its_own_output(kind):
    """Past the modules there are, each step feeds the last one's z back, at the next position."""
    head, target = head_of(kind)
    module = head.module
    last = module.shape.modules - 1
    hidden = target.hidden(PROMPT)
    run = MtpRun(head)
    run.add(hidden[:-1])
    drafted = [int(run.first(PROMPT)[0].argmax())]
    for _ in range(4):
        drafted.append(int(run.step(drafted[-1])[0].argmax()))
    # The same by hand: every module over all rows, then the last one on.
    tokens, inputs, z = [*PROMPT, *drafted], hidden[:-1], hidden
    caches = module.new_cache()
    expected = []
    with torch.inference_mode():
        for index in range(last + 1):
            fed = tokens[index + 1 : index + len(PROMPT)]
            inputs = z = module.run(index, head.embed(fed), inputs, caches[index])
            expected.append(int(target.project(z[-1:]).argmax()))
        for step in range(last + 1, len(drafted)):
            z = module.run(last, head.embed([drafted[step - 1]]), z[-1:], caches[last])
            expected.append(int(target.project(z).argmax()))
    assert drafted == expected


def test_a_run_forgets_its_draft():
    head, target = head_of("deepseek_v3")
    hidden = target.hidden(PROMPT)
    first, second = MtpRun(head), MtpRun(head)
    for run in (first, second):
        run.add(hidden[:-1])
    for token in (7, 8, 9, 10):  # any draft at all
        _ = first.first(PROMPT) if token == 7 else first.step(token)
    first.end()
    state = SimpleNamespace(length=[cache.length for cache in first._caches])
    assert state.length == [len(PROMPT) - 1, len(PROMPT) - 2]
    tokens = [*PROMPT, 60, 61]
    more = target.hidden(tokens)[len(PROMPT) - 1 : -1]
    for run in (first, second):
        run.add(more)
    got, expected = first.first(tokens), second.first(tokens)
    assert torch.allclose(got, expected, atol=1e-5)
    assert torch.allclose(first.step(3), second.step(3), atol=1e-5)
