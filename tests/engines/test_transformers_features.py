"""Hidden states from the transformers engine against transformers' own; the model's two ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from specview.errors import SpecviewError, Stopped
from tests.engines.transformers_tiny import OWN_FORWARD, save_model, tiny

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from specview.engines import transformers_engine, transformers_session  # noqa: E402

KINDS = ("llama", "llama-tied", "llama-biased", "qwen2", "mistral-sliding", "qwen3", "gpt2", "gemma2", "gpt-neox")
TREES = ("llama", "llama-tied", "qwen3", "gemma2")
LAYERS = 2
ALL = (0, 1, LAYERS, "last")
TOKENS = [256, 72, 101, 108, 111, 44, 32, 119, 114, 100, 33, 7, 90]


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
    root = tmp_path_factory.mktemp("features")
    return {kind: save_model(root / kind, tiny(kind)) for kind in KINDS}


@pytest.fixture(scope="module")
def engines(folders: dict[str, Path]) -> dict[str, Any]:
    return {kind: transformers_engine.load(folder, device="cpu") for kind, folder in folders.items()}


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM

    return {
        kind: AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()
        for kind, folder in folders.items()
    }


def expected(model: Any, tokens: Sequence[int] = TOKENS) -> dict[Any, Any]:
    """transformers' own hidden states; the last layer's is what enters the final norm."""
    norms = ("norm", "ln_f", "final_layer_norm")
    norm = next(found for name in norms if (found := getattr(model.base_model, name, None)) is not None)
    raw: list[Any] = []
    handle = norm.register_forward_pre_hook(lambda _module, given: raw.append(given[0]))
    with torch.no_grad():
        states = model(torch.tensor([list(tokens)]), output_hidden_states=True).hidden_states
    handle.remove()
    return {0: states[0][0], 1: states[1][0], LAYERS: raw[0][0], "last": states[-1][0]}


def same(found: Mapping[Any, Any], wanted: Mapping[Any, Any], rows: Any = slice(None)) -> None:
    for layer, values in found.items():
        torch.testing.assert_close(values, wanted[layer][rows], atol=2e-4, rtol=2e-4, msg=lambda m, n=layer: f"{n}: {m}")


def prefill(session: Any, tokens: Sequence[int], features: Sequence[Any]) -> dict[Any, Any]:
    parts: list[Mapping[Any, Any]] = []
    session.prefill(tokens, None, features, parts.append)
    return {layer: torch.cat([part[layer] for part in parts]) for layer in features}


@pytest.mark.parametrize("kind", KINDS)
def test_chains_and_prefills_equal_transformers(
    kind: str, engines: dict[str, Any], models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers_session, "PREFILL_CHUNK", 3)
    engine, wanted = engines[kind], expected(models[kind])
    assert engine.features_problem is None and (engine.layers, engine.hidden_size) == (LAYERS, 32)
    session = engine.new_session(64)
    same(session.forward(TOKENS, features=ALL).features, wanted)
    session.truncate(0)
    same(prefill(session, TOKENS[:8], ALL), wanted, slice(8))
    same(session.forward(TOKENS[8:9], features=("last", 1)).features, wanted, slice(8, 9))
    session.forward(TOKENS[9:10])
    same(session.forward(TOKENS[10:], features=(LAYERS,)).features, wanted, slice(10, None))


@pytest.mark.parametrize("kind", ("llama", "gpt2"))
def test_it_would_see_a_wrong_layer_or_row(kind: str, models: dict[str, Any]) -> None:
    wanted = expected(models[kind])
    rows = [wanted[layer][row] for layer in ALL for row in range(len(TOKENS))]
    for at, one in enumerate(rows):
        assert all(float((one - other).abs().max()) > 2e-3 for other in rows[:at])


def test_many_rows_and_a_few_go_the_same_way(engines: dict[str, Any], models: dict[str, Any]) -> None:
    tokens = [(7 * n) % 256 for n in range(90)]
    for kind in ("llama", "qwen3"):
        session = engines[kind].new_session(100)
        wanted = expected(models[kind], tokens)
        same(session.forward(tokens, features=ALL).features, wanted)
        session.truncate(40)
        same(session.forward(tokens[40:45], features=ALL).features, wanted, slice(40, 45))


@pytest.mark.parametrize("kind", TREES)
@pytest.mark.parametrize("check_mode", (False, True))
def test_a_tree_s_features_are_those_of_its_paths(
    kind: str, check_mode: bool, folders: dict[str, Path], models: dict[str, Any]
) -> None:
    engine = transformers_engine.load(folders[kind], device="cpu", check_mode=check_mode)
    wanted = expected(models[kind])
    session = engine.new_session(64, 4)
    session.prefill(TOKENS[:6])
    fed, parents, path = [1, TOKENS[6], 2, TOKENS[7], 3, TOKENS[8], 4], [-1, -1, 1, 1, 3, 3, 0], [1, 3, 5]
    given = session.forward(fed, parents, ALL).features
    same({layer: rows[path] for layer, rows in given.items()}, wanted, slice(6, 9))
    wrong = expected(models[kind], [*TOKENS[:6], 1, 4])
    same({layer: rows[[0, 6]] for layer, rows in given.items()}, wrong, slice(6, 8))
    session.keep(path)
    same(session.forward(TOKENS[9:], features=ALL).features, wanted, slice(9, None))


@pytest.mark.parametrize("kind", ("llama", "qwen3", "gpt2"))
def test_check_mode_has_the_same_bits_in_passes_of_any_width(kind: str, folders: dict[str, Path]) -> None:
    engine = transformers_engine.load(folders[kind], device="cpu", check_mode=True)
    session = engine.new_session(64)
    session.prefill(TOKENS[:2])
    wide = session.forward(TOKENS[2:], features=ALL)
    for width in (1, 3):
        session.truncate(2)
        parts = [
            session.forward(TOKENS[at : at + width], features=ALL).features
            for at in range(2, len(TOKENS), width)
        ]
        for layer in ALL:
            assert torch.equal(torch.cat([part[layer] for part in parts]), wide.features[layer])
    session.truncate(2)
    assert torch.equal(session.forward(TOKENS[2:]).logits, wide.logits)


@pytest.mark.parametrize("kind", ("llama", "gpt2"))
def test_rows_stay_true_and_may_be_changed(kind: str, engines: dict[str, Any]) -> None:
    session = engines[kind].new_session(64)
    first = session.forward(TOKENS, features=ALL).features
    kept = {layer: rows.clone() for layer, rows in first.items()}
    session.truncate(0)
    again = session.forward(TOKENS, features=ALL).features
    for layer in ALL:
        again[layer] += 1.0
    session.forward([1, 2, 3], features=ALL)
    session.truncate(0)
    last = session.forward(TOKENS, features=ALL).features
    for layer in ALL:
        assert torch.equal(first[layer], kept[layer])
        torch.testing.assert_close(last[layer], kept[layer], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ("llama", "gpt2"))
@pytest.mark.parametrize("feature", (LAYERS + 1, -1, "first", 0.5, True))
def test_unknown_features_get_one_clear_line(kind: str, feature: Any, engines: dict[str, Any]) -> None:
    session = engines[kind].new_session(32)
    with pytest.raises(SpecviewError, match=f"no features {feature!r}.*0 to {LAYERS} .*'last'"):
        session.forward(TOKENS, features=("last", feature))
    with pytest.raises(SpecviewError, match="no features"):
        session.prefill(TOKENS, None, (feature,), lambda given: None)
    assert session.length == 0


@pytest.mark.parametrize("kind", ("llama", "qwen3"))
@pytest.mark.parametrize("by", ("chunk", "features"))
def test_a_stopped_prefill_leaves_the_session_usable(
    kind: str, by: str, engines: dict[str, Any], models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers_session, "PREFILL_CHUNK", 4)

    def stop(*_given: Any) -> None:
        raise Stopped

    session, wanted = engines[kind].new_session(64), expected(models[kind])
    with pytest.raises(Stopped):
        session.prefill(
            TOKENS, stop if by == "chunk" else None, ALL, stop if by == "features" else lambda given: None
        )
    assert session.length == 4
    same(prefill(session, TOKENS[4:], ALL), wanted, slice(4, None))


def test_chunks_are_announced_after_their_features(
    engines: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers_session, "PREFILL_CHUNK", 5)
    seen: list[Any] = []
    session = engines["llama"].new_session(64)
    session.prefill(
        TOKENS, lambda done, total: seen.append(done), (1,), lambda given: seen.append(tuple(given[1].shape))
    )
    assert seen == [(5, 32), 5, (5, 32), 10, (3, 32), 13]


def test_a_model_that_gives_none_says_so(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from specview.engines.transformers_module import ModuleRunner

    def refuse(self: Any, hidden_states: Any, layer: Any) -> Any:
        raise TypeError

    engine = transformers_engine.load(folders["gpt2"], device="cpu")
    monkeypatch.setattr(ModuleRunner, "_feature", refuse)
    assert "gives no hidden states" in str(engine.features_problem)
    session = engine.new_session(32)
    with pytest.raises(SpecviewError, match="gives no features: .*gives no hidden states"):
        session.forward(TOKENS, features=("last",))
    with pytest.raises(SpecviewError, match="gives no features"):
        engine.project(torch.zeros(1, 32))
    assert session.forward(TOKENS).logits.shape[0] == len(TOKENS)


def test_nothing_is_tried_where_nothing_is_asked(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from specview.engines.transformers_module import ModuleRunner

    engine = transformers_engine.load(folders["qwen3"], device="cpu")
    monkeypatch.setattr(ModuleRunner, "_try_features", lambda self: pytest.fail("tried"))
    session = engine.new_session(32)
    session.prefill(TOKENS[:4])
    assert session.forward(TOKENS[4:]).features == {}


# The ends


@pytest.mark.parametrize("kind", KINDS)
def test_the_ends_are_the_model_s(kind: str, engines: dict[str, Any], models: dict[str, Any]) -> None:
    """Head and embedding used alone join the hidden states to what the whole pass gives."""
    engine, model = engines[kind], models[kind]
    given = engine.new_session(64).forward(TOKENS, features=(0, "last"))
    torch.testing.assert_close(engine.project(given.features["last"]), given.logits, atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(
        engine.project(given.features["last"][:2].numpy()), given.logits[:2], atol=2e-4, rtol=2e-4
    )
    rows = engine.embed(TOKENS)
    if kind == "gpt2":  # adds positions, which stay outside
        torch.testing.assert_close(rows, model.get_input_embeddings()(torch.tensor(TOKENS)).detach())
        rows = rows + model.transformer.wpe(torch.arange(len(TOKENS))).detach()
    torch.testing.assert_close(rows, given.features[0], atol=1e-5, rtol=1e-5)


def test_capped_and_scaled_ends(engines: dict[str, Any], models: dict[str, Any]) -> None:
    gemma = models["gemma2"]
    assert gemma.config.final_logit_softcapping
    unscaled = gemma.get_input_embeddings().weight[TOKENS].detach()
    torch.testing.assert_close(engines["gemma2"].embed(TOKENS), unscaled * 32**0.5, rtol=1e-4, atol=1e-4)
    far = engines["gemma2"].project(1000 * torch.ones(1, 32))
    assert float(far.abs().max()) <= gemma.config.final_logit_softcapping


@pytest.mark.parametrize("kind", ("llama", "llama-tied"))
@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
def test_ends_in_half_precision(kind: str, dtype: str, folders: dict[str, Path]) -> None:
    engine = transformers_engine.load(folders[kind], device="cpu", dtype=dtype)
    given = engine.new_session(32).forward(TOKENS, features=("last",))
    logits = engine.project(given.features["last"].float())
    assert logits.dtype == torch.float32
    assert float((logits - given.logits).abs().max()) <= 0.02 * float(given.logits.abs().max())
    assert engine.embed([1, 2]).shape == (2, 32)


def test_ends_of_a_closed_engine_are_refused(folders: dict[str, Path]) -> None:
    engine = transformers_engine.load(folders["llama"], device="cpu")
    engine.close()
    for use in (lambda: engine.embed([1]), lambda: engine.project(torch.zeros(1, 32)), lambda: engine.features_problem):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_which_kinds_go_which_way() -> None:
    assert {kind for kind in KINDS if kind in OWN_FORWARD} == {"llama", "llama-tied", "llama-biased", "qwen2"}
