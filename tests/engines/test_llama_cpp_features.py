"""Hidden states from llama.cpp: the same as transformers', by chains, trees, prefills, in check mode; the model's ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specview.engines import llama_cpp_features
from specview.engines.llama_cpp_engine import LlamaCppEngine, load
from specview.engines.llama_cpp_session import PASS_ROWS, LlamaCppSession
from specview.errors import SpecviewError, Stopped

pytest.importorskip("llama_cpp")
from tests.engines.test_llama_cpp_engine import EMBD, LAYERS, VOCAB, bundled_path, llama_tensors, write_gguf
from tests.models.conftest import make_gguf  # noqa: F401 - a fixture

ALL = (0, 1, LAYERS, "last")
INNER = (0, 1)
TOKENS = [5, 17, 120, 33, 64, 2, 9, 77, 200, 31]
CLOSE = 5e-3  # of rows whose numbers reach several: keys and values are float16


@pytest.fixture(scope="module")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tensors = llama_tensors() | {"output.weight": (VOCAB, EMBD)}
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", "llama", tensors, seed=5)


@pytest.fixture(scope="module", params=["kept", "watched"])
def tiny(request: pytest.FixtureRequest, tiny_path: Path) -> Iterator[LlamaCppEngine]:
    """One engine whose contexts keep what layers read, and one whose graph is watched."""
    engine = load(tiny_path, threads=1)
    assert engine.features_problem is None and engine.keeps_layer_inputs
    engine.keeps_layer_inputs = request.param == "kept"
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def checked(tiny_path: Path) -> Iterator[LlamaCppEngine]:
    engine = load(tiny_path, threads=1, check_mode=True)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def expected(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    """transformers' own hidden states of TOKENS, over the same float32 weights."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tiny_path.parent, gguf_file=tiny_path.name, dtype=torch.float32
    )
    raw: list[Any] = []
    model.model.layers[-1].register_forward_hook(lambda _m, _i, out: raw.append(out))
    with torch.no_grad():
        states = model(torch.tensor([TOKENS]), output_hidden_states=True).hidden_states
    last = raw[0][0] if isinstance(raw[0], tuple) else raw[0]
    found = {layer: states[layer][0].numpy() for layer in range(LAYERS)}
    return {**found, LAYERS: last.reshape(len(TOKENS), -1).numpy(), "last": states[-1][0].numpy()}


def same(
    found: Mapping[Any, Any], expected: Mapping[Any, Any], rows: Any = slice(None), close: float = CLOSE
) -> None:
    for layer, values in found.items():
        assert values.dtype == np.float32
        np.testing.assert_allclose(values, expected[layer][rows], rtol=0, atol=close, err_msg=str(layer))


def identical(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> None:
    assert one.keys() == other.keys()
    for layer in one:
        np.testing.assert_array_equal(one[layer], other[layer], err_msg=str(layer))


def prefill(session: LlamaCppSession, tokens: Sequence[int], features: Sequence[Any]) -> dict[Any, Any]:
    parts: list[Mapping[Any, Any]] = []
    session.prefill(tokens, None, features, parts.append)
    return {layer: np.concatenate([part[layer] for part in parts]) for layer in features}


# The same numbers as transformers


@pytest.mark.parametrize("features", [ALL, INNER, ("last",), (LAYERS, "last"), (1,)])
def test_a_chain_s_features_equal_transformers(
    tiny: LlamaCppEngine, expected: dict[Any, Any], features: tuple[Any, ...]
) -> None:
    session = tiny.new_session(32)
    given = session.forward(TOKENS, features=features)
    assert set(given.features) == set(features)
    same(given.features, expected)
    plain = tiny.new_session(32)
    np.testing.assert_allclose(given.logits, plain.forward(TOKENS).logits, atol=1e-5)
    session.close()
    plain.close()


def test_it_would_see_a_wrong_layer_or_row(expected: dict[Any, Any]) -> None:
    """The tolerance tells every layer and every row from every other."""
    rows = [expected[layer][row] for layer in ALL for row in range(len(TOKENS))]
    for at, one in enumerate(rows):
        assert all(np.abs(one - other).max() > 20 * CLOSE for other in rows[:at])


@pytest.mark.parametrize("features", [ALL, INNER, ("last",)])
def test_a_prefill_s_features_equal_transformers(
    tiny: LlamaCppEngine, expected: dict[Any, Any], features: tuple[Any, ...]
) -> None:
    session = tiny.new_session(32)
    same(prefill(session, TOKENS[:7], features), expected, slice(7))
    given = session.forward(TOKENS[7:], features=features).features
    same(given, expected, slice(7, None))
    session.close()


def test_features_first_asked_for_in_the_middle(tiny: LlamaCppEngine, expected: dict[Any, Any]) -> None:
    """A context that gets its callback late keeps its cells; so does one that is asked for other layers."""
    session = tiny.new_session(32)
    session.prefill(TOKENS[:3])
    session.forward(TOKENS[3:5])
    same(session.forward(TOKENS[5:6], features=(1,)).features, expected, slice(5, 6))
    same(session.forward(TOKENS[6:7], features=("last",)).features, expected, slice(6, 7))
    session.forward([1, 2, 3])
    session.truncate(7)
    same(session.forward(TOKENS[7:8], features=(0,)).features, expected, slice(7, 8))
    same(session.forward(TOKENS[8:9], features=(LAYERS, 1)).features, expected, slice(8, 9))
    same(session.forward(TOKENS[9:], features=ALL).features, expected, slice(9, None))
    session.close()


def test_a_tree_s_features_are_those_of_its_paths(tiny: LlamaCppEngine, expected: dict[Any, Any]) -> None:
    session = tiny.new_session(40, 4)
    session.prefill(TOKENS[:5])
    # The path of TOKENS among wrong turns, which come before, between and after it.
    fed = [1, TOKENS[5], 2, TOKENS[6], 3, TOKENS[7], 4]
    parents = [-1, -1, 1, 1, 3, 3, 0]
    given = session.forward(fed, parents, ALL)
    path = [1, 3, 5]
    same({layer: rows[path] for layer, rows in given.features.items()}, expected, slice(5, 8))
    other = tiny.new_session(40)
    other.prefill([*TOKENS[:6]])
    wrong = other.forward([2], features=ALL).features
    same({layer: rows[[2]] for layer, rows in given.features.items()}, wrong)
    session.keep(path)
    same(session.forward(TOKENS[8:], features=ALL).features, expected, slice(8, None))
    session.close()
    other.close()


def test_a_tree_s_cells_survive_a_late_callback(tiny: LlamaCppEngine, expected: dict[Any, Any]) -> None:
    session = tiny.new_session(40, 3)
    session.prefill(TOKENS[:5])
    session.forward([TOKENS[5], 1, TOKENS[6], 2], [-1, -1, 0, 1])
    session.keep([0, 2])
    given = session.forward([9, TOKENS[7], TOKENS[8]], [-1, -1, 1], ALL).features
    same({layer: rows[[1, 2]] for layer, rows in given.items()}, expected, slice(7, 9))
    session.keep([1, 2])
    same(session.forward(TOKENS[9:], features=ALL).features, expected, slice(9, None))
    session.close()


def test_more_rows_than_one_pass_takes(tiny: LlamaCppEngine) -> None:
    """Passes of a long chain, a long prefill and a large tree are split; their rows join in order."""
    tokens = [7 * n % 250 for n in range(2 * PASS_ROWS + 70)]
    session = tiny.new_session(400)
    whole = session.forward(tokens, features=ALL).features
    session.truncate(0)
    identical(prefill(session, tokens, ALL), whole)
    session.truncate(0)
    # Wider passes, whose attention takes a kernel that sums in float16.
    same(prefill(session, tokens, INNER), whole, close=4 * CLOSE)
    tree = tiny.new_session(400, 2)
    count = PASS_ROWS + 40  # the chain, with one wrong turn before its second token
    given = tree.forward([tokens[0], 3, *tokens[1:count]], [-1, 0, 0, *range(2, count)], ALL).features
    on_path = {layer: rows[[0, *range(2, count + 1)]] for layer, rows in given.items()}
    same(on_path, whole, slice(count), close=4 * CLOSE)
    session.close()
    tree.close()


def test_rows_stay_true_after_later_passes(tiny: LlamaCppEngine) -> None:
    session = tiny.new_session(300)
    first = session.forward(TOKENS, features=ALL).features
    kept = {layer: rows.copy() for layer, rows in first.items()}
    session.forward(list(range(200)), features=ALL)
    session.prefill([1, 2, 3], None, ALL, lambda given: None)
    identical(first, kept)
    session.close()
    identical(first, kept)


# Check mode


def test_check_mode_has_the_same_bits_in_passes_of_any_width(checked: LlamaCppEngine) -> None:
    session = checked.new_session(64, 4)
    wide = session.forward(TOKENS, features=ALL)
    for width in (1, 3):
        session.truncate(0)
        parts = [session.forward(TOKENS[at : at + width], features=ALL) for at in range(0, len(TOKENS), width)]
        for layer in ALL:
            joined = np.concatenate([part.features[layer] for part in parts])
            np.testing.assert_array_equal(joined, wide.features[layer])
    session.truncate(5)
    fed, parents = [1, TOKENS[5], 2, TOKENS[6], 3, TOKENS[7], 4], [-1, -1, 1, 1, 3, 3, 0]
    given = session.forward(fed, parents, ALL).features
    session.keep([1, 3, 5])
    rest = session.forward(TOKENS[8:], features=ALL).features
    for layer in ALL:
        np.testing.assert_array_equal(given[layer][[1, 3, 5]], wide.features[layer][5:8])
        np.testing.assert_array_equal(rest[layer], wide.features[layer][8:])
    session.close()


def test_check_mode_prefills_give_the_chain_s_features(checked: LlamaCppEngine) -> None:
    session = checked.new_session(64)
    wide = session.forward(TOKENS, features=ALL).features
    session.truncate(0)
    identical(prefill(session, TOKENS, ALL), wide)
    session.close()


def test_asking_for_features_changes_no_logit_in_check_mode(checked: LlamaCppEngine) -> None:
    plain, asking = checked.new_session(64), checked.new_session(64)
    prefill(asking, TOKENS[:6], INNER)
    plain.prefill(TOKENS[:6])
    assert (asking.forward(TOKENS[6:], features=ALL).logits == plain.forward(TOKENS[6:]).logits).all()
    plain.close()
    asking.close()


# What is not asked for costs nothing; what is refused


def test_a_session_that_never_asks_is_left_alone(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load(tiny_path, threads=1)
    calls: list[str] = []
    for name in ("watch_graph", "_read_state"):
        monkeypatch.setattr(LlamaCppSession, name, lambda self, name=name: calls.append(name))
    monkeypatch.setattr(engine._lib, "llama_set_embeddings", lambda *given: calls.append("embeddings"))
    monkeypatch.setattr(LlamaCppEngine, "_try_features", lambda self: calls.append("tried"))
    session = engine.new_session(32, 2)
    session.prefill(TOKENS)
    assert session.forward([1, 2, 3], [-1, 0, 0]).features == {}
    session.keep([0, 2])
    assert session.forward([1]).features == {}
    assert calls == []
    engine.close()


@pytest.mark.parametrize("feature", [LAYERS + 1, -1, "first", 0.5, True])
def test_unknown_features_get_one_clear_line(tiny: LlamaCppEngine, feature: Any) -> None:
    session = tiny.new_session(32)
    with pytest.raises(SpecviewError, match=f"no features {feature!r}.*0 to {LAYERS} .*'last'"):
        session.forward(TOKENS, features=("last", feature))
    with pytest.raises(SpecviewError, match="no features"):
        session.prefill(TOKENS, None, (feature,), lambda given: None)
    assert session.length == 0
    session.close()


@pytest.mark.parametrize("by", ["chunk", "features"])
def test_a_stopped_prefill_leaves_the_session_usable(tiny: LlamaCppEngine, by: str) -> None:
    tokens = [n % 200 for n in range(400)]

    def stop(*_given: Any) -> None:
        raise Stopped

    session, whole = tiny.new_session(401), tiny.new_session(401)
    with pytest.raises(Stopped):
        session.prefill(tokens, stop if by == "chunk" else None, ALL, stop if by == "features" else lambda _: None)
    assert 0 < session.length < 400
    rest = prefill(session, tokens[session.length :], ALL)
    all_rows = prefill(whole, tokens, ALL)
    count = len(rest["last"])
    same(rest, {layer: rows[-count:] for layer, rows in all_rows.items()})
    session.close()
    whole.close()


def test_chunks_are_announced_after_their_features(tiny: LlamaCppEngine) -> None:
    tokens, seen = [n % 200 for n in range(300)], []
    session = tiny.new_session(300)
    session.prefill(tokens, lambda done, total: seen.append(done), ("last",), lambda g: seen.append(g["last"].shape[0]))
    rows, ends = seen[::2], seen[1::2]
    assert np.cumsum(rows).tolist() == ends and ends[-1] == 300 and len(ends) > 1
    session.close()


def test_a_graph_without_layer_names_is_told(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp_features, "layer_node", lambda layer: b"no_such_node-%d" % layer)
    engine = load(tiny_path, threads=1)
    assert engine.features_problem is not None and "does not name" in engine.features_problem
    session = engine.new_session(32)
    with pytest.raises(SpecviewError, match="gives no features: .*does not name"):
        session.forward(TOKENS, features=(1,))
    assert session.forward(TOKENS).logits.shape == (len(TOKENS), VOCAB)
    engine.close()


def test_a_node_that_does_not_come_is_an_error_and_leaves_no_cell(tiny_path: Path) -> None:
    engine = load(tiny_path, threads=1)
    assert engine.features_problem is None
    engine.keeps_layer_inputs = False
    engine.stream_nodes[1] = b"no_such_node"
    session, clean = engine.new_session(32), engine.new_session(32)
    with pytest.raises(SpecviewError, match="gives no features"):
        session.forward(TOKENS[:4], features=(1,))
    assert session.length == 0
    np.testing.assert_allclose(session.forward(TOKENS).logits, clean.forward(TOKENS).logits, atol=1e-5)
    engine.close()


# Other architectures


def gemma2(path: Path) -> Path:
    """A model that scales its embedding, caps its logits, and whose layers' inputs llama.cpp does not keep."""

    def keys(writer: Any) -> None:
        writer.add_sliding_window(16)
        writer.add_final_logit_softcapping(3.0)
        writer.add_attn_logit_softcapping(50.0)

    return write_gguf(path, "gemma2", llama_tensors(["post_attention_norm", "post_ffw_norm"]), keys=keys)


def test_a_model_whose_layer_inputs_are_not_kept_is_watched(tmp_path: Path) -> None:
    """The trial of it would end the process: its thread is parked instead, and all else goes on."""
    engine = load(gemma2(tmp_path / "gemma2.gguf"), threads=1)
    assert engine.features_problem is None
    if llama_cpp_features.layer_inputs() is not None:
        assert not engine.keeps_layer_inputs
    session = engine.new_session(32, 2)
    given = session.forward(TOKENS, features=ALL)
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

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        llama_cpp_features.survives(fail)


# The ends


@pytest.mark.parametrize("quantization", ["F32", "F16", "Q8_0", "Q4_1", "Q5_0"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_ends_are_those_of_the_dequantized_weights(
    make_gguf: Any, quantization: str, tied: bool  # noqa: F811
) -> None:
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


def test_a_trial_that_finds_no_memory_is_made_again(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load(tiny_path, threads=1)

    def refuse(*given: Any) -> None:
        raise SpecviewError("llama.cpp could not make a cache.")

    with monkeypatch.context() as patch:
        patch.setattr(LlamaCppSession, "_open_context", refuse)
        with pytest.raises(SpecviewError, match="could not make a cache"):
            engine.features_problem  # noqa: B018 - it is a property that tries
    assert engine.features_problem is None
    engine.close()


def test_the_head_needs_memory(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    engine = load(tiny_path, threads=1)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 1000}))
    with pytest.raises(SpecviewError, match="output matrix as float32 needs"):
        engine.project(np.zeros((1, EMBD), dtype=np.float32))
    engine.close()


def test_without_torch_numpy_projects(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = np.random.default_rng(1).standard_normal((3, EMBD)).astype(np.float32)
    engine = load(tiny_path, threads=1)
    expected = engine.project(hidden)
    engine.close()
    monkeypatch.setitem(sys.modules, "torch", None)
    engine = load(tiny_path, threads=1)
    np.testing.assert_allclose(engine.project(hidden), expected, rtol=1e-4, atol=1e-4)
    engine.close()


# The bundled weights


@pytest.mark.real_model
def test_features_agree_with_transformers_on_the_bundled_weights() -> None:
    """To what quantized products round (their inputs to 8 bits): the dequantized weights are the same."""
    torch = pytest.importorskip("torch")
    from specview.engines import transformers_engine
    from specview.models import bundled, converted

    folder = converted.convert(bundled.target_gguf())
    before, own = torch.get_num_threads(), transformers_engine._own_threads
    torch.set_num_threads(1)
    transformers_engine._own_threads = 1
    try:
        ours = load(bundled_path(), threads=1)
        theirs = transformers_engine.load(folder, device="cpu", threads=1)
        assert (ours.hidden_size, ours.layers) == (theirs.hidden_size, theirs.layers) == (576, 30)
        assert ours.features_problem is None and theirs.features_problem is None
        names = (0, 2, 15, 27, 30, "last")
        text = "The lighthouse keeper counted the ships that passed, and wrote each name into a book."
        tokens = ours.tokenizer.encode_chat([{"role": "user", "content": text}])
        one, other = ours.new_session(80), theirs.new_session(80)
        found = {"prefill": prefill(one, tokens[:20], names), "forward": one.forward(tokens[20:], features=names).features}
        parts: list[Any] = []
        other.prefill(tokens[:20], None, names, parts.append)
        exact = {"prefill": parts[0], "forward": other.forward(tokens[20:], features=names).features}
        for kind, limit in (("prefill", 0.06), ("forward", 0.06)):
            for name in names:
                wanted = exact[kind][name].numpy()
                error = np.linalg.norm(found[kind][name] - wanted) / np.linalg.norm(wanted)
                assert error <= (0.0 if name == 0 else limit), (kind, name, error)
        ids = tokens[3:9]
        np.testing.assert_array_equal(ours.embed(ids), theirs.embed(ids).numpy())
        last = exact["forward"]["last"]
        np.testing.assert_allclose(ours.project(last.numpy()), theirs.project(last).numpy(), rtol=1e-4, atol=1e-3)
        ours.close()
        theirs.close()
    finally:
        transformers_engine._own_threads = own
        torch.set_num_threads(before)
