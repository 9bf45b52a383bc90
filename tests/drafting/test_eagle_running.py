"""A head's fast form against its module: the same rows in every type, in chains, trees and parallel drafts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from specview.engines.transformers_linear import Int8Linear, PlainLinear, has_int8_products, int8_maker
from specview.errors import UsageError
from specview.heads.fast import FastHead, fast_head
from specview.heads.loaded import LoadedHead
from specview.heads.running import HeadRun
from tests.decoding.toy import TableModel
from tests.drafting.eagle_toy import AUX, HIDDEN, FeatureEngine, eagle3_head, eagle_head, make
from tests.heads.slow_head import module_logits

WIDE = 9
TOKENS = [1, 2, 3, 1, 2, 4, 8, 0, 5, 1, 2, 3]
IDS = (0, 2, 3, 5, 6, 8)


def engine() -> FeatureEngine:
    return FeatureEngine(TableModel(WIDE), WIDE)


def as_type(head, dtype, rounded=None):
    """The head in another type, its weights rounded to `rounded` before."""
    module = head.module
    for parameter in module.parameters():
        parameter.data = parameter.data.to(rounded or dtype).to(dtype)
    return LoadedHead(replace(head.facts), module, head._target)


def whole(head, tokens, features):
    """Logits of every row by the module itself, all at once."""
    return module_logits(head, tokens[1:], head.tensor(features))


@pytest.mark.parametrize(
    ("dtype", "rounded", "bound"),
    [
        (torch.float64, None, 1e-6),  # rotary tables are float32
        (torch.float32, None, 1e-3),
        (torch.float32, torch.float16, 1e-3),  # the products read float16 weights where this machine can
        (torch.bfloat16, None, 0.6),
    ],
)
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_the_fast_form_gives_the_modules_rows(kind, dtype, rounded, bound):
    target = engine()
    target.output = target.output.astype(np.float32) if dtype != torch.float64 else target.output
    made = eagle_head(target) if kind == "eagle" else eagle3_head(target, IDS, fc_norm=True, qk_norm=True)
    head = as_type(made, dtype, rounded)
    layers = ("last",) if kind == "eagle" else AUX
    rng = np.random.default_rng(0)
    features = {layer: rng.normal(size=(len(TOKENS) - 1, HIDDEN)) for layer in layers}
    with torch.inference_mode():
        if kind == "eagle":  # logits are the target's
            target.project = lambda hidden: hidden.double() @ torch.from_numpy(target.output).double().T
        expected = whole(head, TOKENS, np.concatenate(list(features.values()), -1))
    run = HeadRun(head, layers)
    run.add(features)
    for end in (4, 5, 11):  # chunk by chunk
        run.feed(TOKENS, end)
        assert run.length == end
        assert torch.allclose(run.first().double(), expected[end - 1].double(), atol=bound, rtol=bound)


@pytest.mark.parametrize("rows", [3, 63, 64, 130])
def test_few_rows_and_many_take_different_ways_to_the_same(rows):
    target = engine()
    head = eagle3_head(target, IDS)
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, WIDE, rows + 1).tolist()
    features = {layer: rng.normal(size=(rows, HIDDEN)) for layer in AUX}
    expected = whole(head, tokens, np.concatenate(list(features.values()), -1))[-1]
    run = HeadRun(head, AUX)
    run.add(features)
    run.feed(tokens, rows)
    assert torch.allclose(run.first(), expected, atol=1e-5)


def test_levels_of_a_tree_see_their_ancestors_alone():
    """Whatever is fed beside a row, and in whatever order, its logits are those of its own path."""
    target = engine()
    head = eagle3_head(target, IDS)
    rng = np.random.default_rng(2)
    features = {layer: rng.normal(size=(len(TOKENS) - 1, HIDDEN)) for layer in AUX}

    def fresh():
        run = HeadRun(head, AUX)
        run.add(features)
        run.feed(TOKENS, len(TOKENS) - 1)
        return run

    def alone(path):
        run = fresh()
        return [run.step(token) for token in path][-1]

    run = fresh()
    first = run.level([3, 5, 0], [-1, -1, -1])
    second = run.level([2, 2, 8, 6], [1, 0, 1, 2])
    mixed = run.level([6, 3], [5, 0])  # parents of different depths
    paths = [(3,), (5,), (0,), (5, 2), (3, 2), (5, 8), (0, 6), (5, 8, 6), (3, 3)]
    for row, path in zip(torch.cat([first, second, mixed]), paths, strict=True):
        assert torch.allclose(row, alone(path), atol=1e-9), path
    run.feed(TOKENS, len(TOKENS) - 1)  # the draft is dropped
    assert torch.allclose(run.level([3], [-1])[0], first[0], atol=1e-9)


def test_a_head_that_is_trained_on_is_made_anew():
    target = engine()
    module = eagle3_head(target, IDS).module
    made = fast_head(module)
    assert isinstance(made, FastHead)
    assert fast_head(module) is made
    with torch.no_grad():
        module.lm_head.weight.mul_(2.0)
    assert fast_head(module) is not made
    other = torch.nn.Linear(2, 2)
    assert fast_head(other) is other
    assert not any(name.startswith("_fast") for name in module.state_dict())


def test_features_are_copied():
    """An engine may reuse the buffers that it gives its features in."""
    target = engine()
    head = eagle3_head(target, IDS)
    rng = np.random.default_rng(3)
    features = {layer: rng.normal(size=(len(TOKENS) - 1, HIDDEN)) for layer in AUX}
    one, other = HeadRun(head, AUX), HeadRun(head, AUX)
    one.add(features)
    other.add({layer: values.copy() for layer, values in features.items()})
    for values in features.values():
        values[:] = 0.0
    for run in (one, other):
        run.feed(TOKENS, len(TOKENS) - 1)
    assert torch.equal(one.first(), other.first())


needs_int8 = pytest.mark.skipif(not has_int8_products(), reason="this processor has no quick 8-bit products")


@needs_int8
def test_int8_products_are_the_weights_to_half_a_step():
    rng = torch.Generator().manual_seed(5)
    weight, bias = torch.randn(96, 64, generator=rng), torch.randn(96, generator=rng)
    weight[7] = 0.0
    made = int8_maker(PlainLinear)(weight, bias)
    for rows in (1, 2, 4, 5, 40):
        x = torch.randn(rows, 64, generator=rng)
        exact = x @ weight.T + bias
        step = weight.abs().amax(1) / 127
        bound = step / 2 * x.abs().sum(1, keepdim=True) + 2**-7 * (x.abs() @ weight.abs().T) + 2**-7 * exact.abs() + 1e-5
        assert ((made(x) - exact).abs() <= bound).all()
    assert torch.equal(made(torch.zeros(5, 64)), bias.expand(5, -1))  # of many rows the usual product
    assert torch.allclose(made.plus(x, exact), made(x) + exact)


@needs_int8
def test_a_small_head_drafts_with_its_weights_as_stored_and_int8_can_be_asked_for():
    head = eagle3_head(engine(), IDS)
    head.module.float()
    kinds = {weights: type(fast_head(head.module, weights)._head) for weights in ("auto", "stored", "int8")}
    assert kinds["int8"] is Int8Linear and Int8Linear not in (kinds["auto"], kinds["stored"])
    assert fast_head(head.module, "int8") is fast_head(head.module, "int8")


@pytest.mark.parametrize("method", ["eagle", "eagle2", "eagle3", "p-eagle"])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_int8_is_refused_in_one_line_where_it_cannot_be(method, device, monkeypatch):
    """Nothing else is told: auto takes what is there."""
    target = engine()
    kind = {"mask_token_id": 1} if method == "p-eagle" else {}
    head = eagle_head(target) if method in ("eagle", "eagle2") else eagle3_head(target, IDS, **kind)
    head.dtype, head.device = torch.float32, torch.device(device)
    monkeypatch.setattr("specview.heads.fast.has_int8_products", lambda: device != "cpu")
    for weights in ("auto", "stored"):
        assert make(method, head, target, weights=weights)._weights == weights
    with pytest.raises(UsageError) as caught:
        make(method, head, target, weights="int8")
    here = "this one is not quick at them" if device == "cpu" else "the head runs on cuda:0"
    assert str(caught.value) == (
        f"weights is int8, which takes a CPU that is quick at 8-bit weights, and {here}. Use auto or stored."
    )
    head.device = torch.device("cpu")
    monkeypatch.setattr("specview.heads.fast.has_int8_products", lambda: True)
    assert make(method, head, target, weights="int8")._weights == "int8"
