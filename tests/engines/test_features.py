"""Hidden states of both engines against transformers' own: chains, prefills, trees; and the models' two ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specview.engines import llama_cpp_features, transformers_engine
from specview.engines.llama_cpp_engine import LlamaCppEngine, load
from specview.engines.llama_cpp_session import PASS_ROWS, LlamaCppSession
from specview.errors import SpecviewError
from tests.engines.conftest import Models, array, join
from tests.engines.gguf_tiny import EMBD, gemma2
from tests.models.conftest import make_gguf  # noqa: F401 - a fixture

torch = pytest.importorskip("torch")
pytest.importorskip("llama_cpp")

MODULES = ("llama", "llama-tied", "llama-biased", "qwen2", "mistral-sliding", "qwen3", "gpt2", "gemma2", "gpt-neox")
TREES = ("llama", "llama-tied", "qwen3", "gemma2")
LAYERS = 2
ALL, INNER = (0, 1, LAYERS, "last"), (0, 1)
TOKENS = [5, 17, 120, 33, 64, 2, 9, 77, 200, 31, 90, 101, 7]
CLOSE = {"transformers": 2e-4, "llama.cpp": 5e-3}  # of rows whose numbers reach several; llama.cpp's keys are float16
TREE = [1, TOKENS[6], 2, TOKENS[7], 3, TOKENS[8], 4], [-1, -1, 1, 1, 3, 3, 0], [1, 3, 5]
"""Tokens, parents and the path of TOKENS among wrong turns, which come before, between and after it."""


@pytest.fixture(scope="module", params=[*MODULES, "gguf", "watched"])
def pair(request: pytest.FixtureRequest, models: Models) -> Iterator[tuple[Any, Any]]:
    """An engine, and the same weights in transformers. Of llama.cpp one keeps what layers read, and one's graph is watched."""
    kind = request.param
    engine = models.engine("gguf" if kind == "watched" else kind)
    if engine.name == "llama.cpp":
        assert engine.features_problem is None and engine.keeps_layer_inputs
        engine.keeps_layer_inputs = kind == "gguf"
    yield engine, models.reference("gguf" if kind == "watched" else kind)
    if engine.name == "llama.cpp":
        engine.keeps_layer_inputs = True


def expected(model: Any, tokens: Sequence[int] = TOKENS) -> dict[Any, Any]:
    """transformers' own hidden states; the last layer's is what enters the final norm."""
    norms = ("norm", "ln_f", "final_layer_norm")
    norm = next(found for name in norms if (found := getattr(model.base_model, name, None)) is not None)
    raw: list[Any] = []
    handle = norm.register_forward_pre_hook(lambda _module, given: raw.append(given[0]))
    with torch.no_grad():
        states = model(torch.tensor([list(tokens)]), output_hidden_states=True).hidden_states
    handle.remove()
    found = {0: states[0][0], 1: states[1][0], LAYERS: raw[0][0], "last": states[-1][0]}
    return {layer: rows.numpy() for layer, rows in found.items()}


def same(engine: Any, found: Mapping[Any, Any], wanted: Mapping[Any, Any], rows: Any = slice(None), more: float = 1) -> None:
    for layer, values in found.items():
        close = more * CLOSE[engine.name]
        np.testing.assert_allclose(array(values), array(wanted[layer])[rows], rtol=close, atol=close, err_msg=str(layer))


def prefill(session: Any, tokens: Sequence[int], features: Sequence[Any]) -> dict[Any, Any]:
    parts: list[Mapping[Any, Any]] = []
    session.prefill(tokens, None, features, parts.append)
    return {layer: join([part[layer] for part in parts]) for layer in features}


# -- the same numbers as transformers ------------------------------------------------------------------------


@pytest.mark.parametrize("features", [ALL, INNER, ("last",), (LAYERS, "last"), (1,)], ids=str)
def test_chains_and_prefills_equal_transformers(pair: tuple[Any, Any], features: tuple[Any, ...]) -> None:
    engine, model = pair
    wanted = expected(model)
    assert engine.features_problem is None and (engine.layers, engine.hidden_size) == (LAYERS, len(wanted[0][0]))
    session, plain = engine.new_session(64), engine.new_session(64)
    given = session.forward(TOKENS, features=features)
    assert set(given.features) == set(features)
    same(engine, given.features, wanted)
    np.testing.assert_allclose(array(given.logits), array(plain.forward(TOKENS).logits), rtol=1e-5, atol=1e-4)
    session.truncate(0)
    same(engine, prefill(session, TOKENS[:8], features), wanted, slice(8))
    same(engine, session.forward(TOKENS[8:], features=features).features, wanted, slice(8, None))
    session.close()
    plain.close()


def test_features_first_asked_for_in_the_middle(pair: tuple[Any, Any]) -> None:
    """A llama.cpp context that gets its callback late keeps its cells; so does one that is asked for other layers."""
    engine, model = pair
    wanted, session = expected(model), engine.new_session(64)
    session.prefill(TOKENS[:3])
    session.forward(TOKENS[3:5])
    for at, features in ((5, (1,)), (6, ("last",))):
        same(engine, session.forward(TOKENS[at : at + 1], features=features).features, wanted, slice(at, at + 1))
    session.forward([1, 2, 3])
    session.truncate(7)
    for at, features in ((7, (0,)), (8, (LAYERS, 1))):
        same(engine, session.forward(TOKENS[at : at + 1], features=features).features, wanted, slice(at, at + 1))
    same(engine, session.forward(TOKENS[9:], features=ALL).features, wanted, slice(9, None))
    session.close()


@pytest.mark.parametrize("check_mode", (False, True))
@pytest.mark.parametrize("kind", (*TREES, "gguf"))
def test_a_tree_s_features_are_those_of_its_paths(kind: str, check_mode: bool, models: Models) -> None:
    engine, wanted = models.engine(kind, check_mode), expected(models.reference(kind))
    session = engine.new_session(64, 4)
    session.prefill(TOKENS[:6])
    fed, parents, path = TREE
    given = session.forward(fed, parents, ALL).features
    same(engine, {layer: rows[path] for layer, rows in given.items()}, wanted, slice(6, 9))
    wrong = expected(models.reference(kind), [*TOKENS[:6], 1, 4])
    same(engine, {layer: rows[[0, 6]] for layer, rows in given.items()}, wrong, slice(6, 8))
    session.keep(path)
    same(engine, session.forward(TOKENS[9:], features=ALL).features, wanted, slice(9, None))
    session.close()


def test_a_tree_s_cells_survive_a_late_callback(pair: tuple[Any, Any]) -> None:
    engine, model = pair
    session, wanted = engine.new_session(40, 3), expected(model)
    session.prefill(TOKENS[:5])
    session.forward([TOKENS[5], 1, TOKENS[6], 2], [-1, -1, 0, 1])
    session.keep([0, 2])
    given = session.forward([9, TOKENS[7], TOKENS[8]], [-1, -1, 1], ALL).features
    same(engine, {layer: rows[[1, 2]] for layer, rows in given.items()}, wanted, slice(7, 9))
    session.keep([1, 2])
    same(engine, session.forward(TOKENS[9:], features=ALL).features, wanted, slice(9, None))
    session.close()


@pytest.mark.parametrize("kind", ("llama", "gpt2", "gguf"))
def test_it_would_see_a_wrong_layer_or_row(kind: str, models: Models) -> None:
    wanted = expected(models.reference(kind))
    rows = [wanted[layer][row] for layer in ALL for row in range(len(TOKENS))]
    for at, one in enumerate(rows):
        assert all(np.abs(one - other).max() > (0.1 if kind == "gguf" else 2e-3) for other in rows[:at])


@pytest.mark.parametrize("kind", ("llama", "qwen3", "gguf"))
def test_many_rows_and_a_few_go_the_same_way(kind: str, models: Models) -> None:
    """Passes of a long chain, a long prefill and a large tree are split in llama.cpp; their rows join in order."""
    engine = models.engine(kind)
    count = 2 * PASS_ROWS + 20
    tokens = [7 * n % 250 for n in range(count)]
    wanted, session = expected(models.reference(kind), tokens), engine.new_session(250, 2)
    for features, more in ((ALL, 4), (INNER, 4)):  # wider passes sum in float16 in llama.cpp
        same(engine, session.forward(tokens, features=features).features, wanted, more=more)
        session.truncate(0)
        same(engine, prefill(session, tokens, features), wanted, more=more)
        session.truncate(40)
        same(engine, session.forward(tokens[40:45], features=features).features, wanted, slice(40, 45), more=more)
        session.truncate(0)
    size = PASS_ROWS + 40  # the chain, with one wrong turn before its second token
    given = session.forward([tokens[0], 3, *tokens[1:size]], [-1, 0, 0, *range(2, size)], ALL).features
    on_path = {layer: rows[[0, *range(2, size + 1)]] for layer, rows in given.items()}
    same(engine, on_path, wanted, slice(size), more=4)
    session.close()


def test_check_mode_gives_the_chain_s_features_and_changes_no_logit(models: Models) -> None:
    engine = models.engine("gguf", True)
    session, plain = engine.new_session(64), engine.new_session(64)
    wide = session.forward(TOKENS, features=ALL)
    session.truncate(0)
    for layer, rows in prefill(session, TOKENS, ALL).items():
        np.testing.assert_array_equal(rows, wide.features[layer])
    assert (plain.forward(TOKENS).logits == wide.logits).all()
    session.close()
    plain.close()


# -- what is refused, and costs nothing ----------------------------------------------------------------------


@pytest.mark.parametrize("feature", (LAYERS + 1, -1, "first", 0.5, True))
@pytest.mark.parametrize("kind", ("llama", "gpt2", "gguf"))
def test_unknown_features_get_one_clear_line(kind: str, feature: Any, models: Models) -> None:
    session = models.engine(kind).new_session(32)
    with pytest.raises(SpecviewError, match=f"no features {feature!r}.*0 to {LAYERS} .*'last'"):
        session.forward(TOKENS, features=("last", feature))
    with pytest.raises(SpecviewError, match="no features"):
        session.prefill(TOKENS, None, (feature,), lambda given: None)
    assert session.length == 0
    session.close()


def test_a_session_that_never_asks_is_left_alone(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    from specview.engines.transformers_module import ModuleRunner

    tried: list[str] = []
    for engine in (load(models.path("gguf"), threads=1), transformers_engine.load(models.path("qwen3"), device="cpu")):
        with monkeypatch.context() as patch:
            for name in ("watch_graph", "_read_state"):
                patch.setattr(LlamaCppSession, name, lambda self, name=name: tried.append(name))
            patch.setattr(LlamaCppEngine, "_try_features", lambda self: tried.append("tried"))
            patch.setattr(ModuleRunner, "features_problem", property(lambda self: tried.append("tried")))
            if engine.name == "llama.cpp":
                patch.setattr(engine._lib, "llama_set_embeddings", lambda *given: tried.append("embeddings"))
            session = engine.new_session(32, 2)
            session.prefill(TOKENS)
            assert session.forward([1, 2, 3], [-1, 0, 0]).features == {}
            session.keep([0, 2])
            assert session.forward([1]).features == {} and tried == []
        engine.close()


def test_a_model_that_gives_none_says_so(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    from specview.engines.transformers_module import ModuleRunner

    def refuse(self: Any, hidden_states: Any, layer: Any) -> Any:
        raise TypeError

    monkeypatch.setattr(ModuleRunner, "_feature", refuse)
    monkeypatch.setattr(llama_cpp_features, "layer_node", lambda layer: b"no_such_node-%d" % layer)
    other = transformers_engine.load(models.path("gpt2"), device="cpu")
    for engine, said in ((other, "gives no hidden states"), (load(models.path("gguf"), threads=1), "does not name")):
        assert said in str(engine.features_problem)
        session = engine.new_session(32)
        with pytest.raises(SpecviewError, match=f"gives no features: .*{said}"):
            session.forward(TOKENS, features=("last",))
        assert session.forward(TOKENS).logits.shape[0] == len(TOKENS)
        session.close()
    with pytest.raises(SpecviewError, match="gives no features"):
        other.project(torch.zeros(1, 32))


def test_a_node_that_does_not_come_is_an_error_and_leaves_no_cell(models: Models) -> None:
    engine = load(models.path("gguf"), threads=1)
    assert engine.features_problem is None
    engine.keeps_layer_inputs = False
    engine.stream_nodes[1] = b"no_such_node"
    session, clean = engine.new_session(32), engine.new_session(32)
    with pytest.raises(SpecviewError, match="gives no features"):
        session.forward(TOKENS[:4], features=(1,))
    assert session.length == 0
    np.testing.assert_allclose(session.forward(TOKENS).logits, clean.forward(TOKENS).logits, atol=1e-5)
    engine.close()


# -- a model whose layer inputs llama.cpp does not keep ------------------------------------------------------


def test_a_model_whose_layer_inputs_are_not_kept_is_watched(tmp_path: Path) -> None:
    """The trial of it would end the process: its thread is parked instead, and all else goes on."""
    engine = load(gemma2(tmp_path / "gemma2.gguf"), threads=1)
    assert engine.features_problem is None
    if llama_cpp_features.layer_inputs() is not None:
        assert not engine.keeps_layer_inputs
    given = engine.new_session(32, 2).forward(TOKENS, features=ALL)
    # The first layer reads the embedding times sqrt(hidden).
    np.testing.assert_allclose(given.features[0], engine.embed(TOKENS), rtol=1e-5)
    np.testing.assert_allclose(given.logits, engine.project(given.features["last"]), atol=2e-2)
    assert np.abs(given.logits).max() <= 3.0
    assert engine._ends._scale == pytest.approx(EMBD**0.5, rel=1e-5)
    engine.close()


def test_a_process_ends_well_with_a_parked_thread(tmp_path: Path) -> None:
    path = gemma2(tmp_path / "gemma2.gguf")
    code = (
        "import sys; from specview.engines.llama_cpp_engine import load\n"
        "engine = load(sys.argv[1], threads=2); print(engine.features_problem, engine.keeps_layer_inputs)\n"
        "session = engine.new_session(8); print(session.forward([4], features=(1,)).features[1].shape)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"None False\n(1, {EMBD})\n", "")


def test_survives_tells_an_abort_from_an_error() -> None:
    from specview.engines.llama_cpp_library import ggml

    if ggml().set_abort_callback is None:
        pytest.skip("this ggml has no abort callback")
    assert llama_cpp_features.survives(lambda: None)
    with pytest.raises(ZeroDivisionError):
        llama_cpp_features.survives(lambda: 1 / 0)


# -- the ends ------------------------------------------------------------------------------------------------


def test_the_ends_are_the_model_s(pair: tuple[Any, Any]) -> None:
    """Head and embedding used alone join the hidden states to what the whole pass gives."""
    engine, model = pair
    given = engine.new_session(64).forward(TOKENS, features=(0, "last"))
    close = {"rtol": CLOSE[engine.name], "atol": 4 * CLOSE[engine.name]}
    for rows in (given.features["last"], array(given.features["last"])):
        np.testing.assert_allclose(array(engine.project(rows)), array(given.logits), **close)
    rows = array(engine.embed(TOKENS))
    if hasattr(model, "transformer"):  # GPT-2 adds positions, which stay outside
        rows = rows + model.transformer.wpe(torch.arange(len(TOKENS))).detach().numpy()
    np.testing.assert_allclose(rows, array(given.features[0]), rtol=1e-5, atol=1e-5)


def test_capped_and_scaled_ends(models: Models) -> None:
    engine, gemma = models.engine("gemma2"), models.reference("gemma2")
    assert gemma.config.final_logit_softcapping
    unscaled = gemma.get_input_embeddings().weight[TOKENS].detach()
    torch.testing.assert_close(engine.embed(TOKENS), unscaled * 32**0.5, rtol=1e-4, atol=1e-4)
    far = engine.project(1000 * torch.ones(1, 32))
    assert float(far.abs().max()) <= gemma.config.final_logit_softcapping


@pytest.mark.parametrize("kind", ("llama", "llama-tied"))
@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
def test_ends_in_half_precision(kind: str, dtype: str, models: Models) -> None:
    engine = transformers_engine.load(models.path(kind), device="cpu", dtype=dtype)
    given = engine.new_session(32).forward(TOKENS, features=("last",))
    logits = engine.project(given.features["last"].float())
    assert logits.dtype == torch.float32
    assert float((logits - given.logits).abs().max()) <= 0.02 * float(given.logits.abs().max())
    assert engine.embed([1, 2]).shape == (2, 32)


def test_ends_of_a_closed_engine_are_refused(models: Models) -> None:
    engine = transformers_engine.load(models.path("llama"), device="cpu")
    engine.close()
    for use in (lambda: engine.embed([1]), lambda: engine.project(torch.zeros(1, 32)), lambda: engine.features_problem):
        with pytest.raises(ValueError, match="closed"):
            use()


@pytest.mark.parametrize("quantization", ["F32", "F16", "Q8_0", "Q4_1", "Q5_0"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_gguf_s_ends_are_those_of_the_dequantized_weights(make_gguf: Any, quantization: str, tied: bool) -> None:  # noqa: F811
    from gguf import GGUFReader
    from gguf.quants import dequantize

    path = make_gguf(quantization=quantization, tied=tied)
    tensors = {tensor.name: dequantize(tensor.data, tensor.tensor_type) for tensor in GGUFReader(path).tensors}
    engine = load(path, threads=1)
    ids = [0, 3, 250, 3, 17]
    np.testing.assert_array_equal(engine.embed(ids), tensors["token_embd.weight"][ids])
    with pytest.raises(IndexError):
        engine.embed([100_000])
    hidden = np.random.default_rng(1).standard_normal((5, engine.hidden_size)).astype(np.float32)
    head = tensors["token_embd.weight" if tied else "output.weight"]
    np.testing.assert_allclose(engine.project(hidden), hidden @ head.T, rtol=1e-4, atol=1e-4)
    given = engine.new_session(16).forward(ids, features=("last",))
    error = np.abs(engine.project(given.features["last"]) - given.logits).max()
    assert error <= (1e-3 if quantization in ("F32", "F16") else 0.05) * np.abs(given.logits).max()
    engine.close()


def test_what_memory_lacks_is_said_and_tried_again(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    engine = load(models.path("gguf"), threads=1)

    def refuse(*given: Any) -> None:
        raise SpecviewError("llama.cpp could not make a cache.")

    with monkeypatch.context() as patch:
        patch.setattr(LlamaCppSession, "_open_context", refuse)
        with pytest.raises(SpecviewError, match="could not make a cache"):
            engine.features_problem  # noqa: B018 - it is a property that tries
    assert engine.features_problem is None
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 1000}))
    with pytest.raises(SpecviewError, match="output matrix as float32 needs"):
        engine.project(np.zeros((1, EMBD), dtype=np.float32))
    engine.close()


def test_without_torch_numpy_projects(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = np.random.default_rng(1).standard_normal((3, EMBD)).astype(np.float32)
    expected_ = models.engine("gguf").project(hidden)
    engine = load(models.path("gguf"), threads=1)
    monkeypatch.setitem(sys.modules, "torch", None)
    np.testing.assert_allclose(engine.project(hidden), expected_, rtol=1e-4, atol=1e-4)
    engine.close()


# -- the bundled weights -------------------------------------------------------------------------------------


@pytest.mark.real_model
def test_features_agree_on_the_bundled_weights() -> None:
    """To what quantized products round (their inputs to 8 bits): the dequantized weights are the same."""
    from specview.models import bundled, converted

    ours = load(bundled.target_gguf(), threads=1)
    theirs = transformers_engine.load(converted.convert(bundled.target_gguf()), device="cpu", threads=1)
    assert (ours.hidden_size, ours.layers) == (theirs.hidden_size, theirs.layers) == (576, 30)
    assert ours.features_problem is None and theirs.features_problem is None
    names = (0, 2, 15, 27, 30, "last")
    text = "The lighthouse keeper counted the ships that passed, and wrote each name into a book."
    tokens = ours.tokenizer.encode_chat([{"role": "user", "content": text}])
    found = []
    for engine in (ours, theirs):
        session = engine.new_session(80)
        found.append((prefill(session, tokens[:20], names), session.forward(tokens[20:], features=names).features))
        session.close()
    for mine, exact in zip(*found, strict=True):
        for name in names:
            wanted = array(exact[name])
            error = np.linalg.norm(mine[name] - wanted) / np.linalg.norm(wanted)
            assert error <= (0.0 if name == 0 else 0.06), (name, error)
    np.testing.assert_array_equal(ours.embed(tokens[3:9]), array(theirs.embed(tokens[3:9])))
    last = array(found[1][1]["last"])
    np.testing.assert_allclose(ours.project(last), array(theirs.project(last)), rtol=1e-4, atol=1e-3)
    ours.close()
    theirs.close()
