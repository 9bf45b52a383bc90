"""The transformers engine against transformers itself, on tiny random models."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specview.errors import SpecviewError
from tests.engines.conftest import CONTEXT, Models, greedy, path_to
from tests.engines.test_sessions import random_tree, tokens_of
from tests.engines.transformers_tiny import KINDS, OWN_FORWARD, save_model, tiny

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from specview.engines import transformers_engine, transformers_linear  # noqa: E402

PROMPT = [256, 72, 101, 108, 108, 111, 44, 32, 119, 111, 114, 108, 100]


def need(product: str) -> Any:
    """A kind of product; skips where this build of torch has it not."""
    kind = getattr(transformers_linear, product)
    return kind if transformers_linear._works(kind) else pytest.skip(f"no {product} in this build of torch")


def chosen(monkeypatch: pytest.MonkeyPatch, product: str) -> None:
    """All weights are multiplied so, without timing."""
    monkeypatch.setattr(transformers_linear._Chooser, "_fastest", lambda self, weight: getattr(transformers_linear, product))


def reference(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_equals_generate(kind: str, models: Models) -> None:
    with torch.no_grad():
        expected = models.reference(kind).generate(
            torch.tensor([PROMPT]), max_new_tokens=40, do_sample=False, pad_token_id=0
        )
    got = greedy(models.engine(kind).new_session(80), PROMPT, 40)
    assert got == expected[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_which_forward_runs(kind: str, models: Models) -> None:
    own = type(models.engine(kind)._runner).__name__ == "LlamaRunner"
    assert own == (kind in OWN_FORWARD)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers_up_to_rounding(
    kind: str, models: Models
) -> None:
    tokens = [(7 * index) % 256 for index in range(60)]
    with torch.no_grad():
        expected = models.reference(kind)(torch.tensor([tokens])).logits[0]
    session = models.engine(kind).new_session(60)
    session.prefill(tokens[:20])
    rows = [session.forward(tokens[20:21]).logits]
    rows += [session.forward(tokens[21:25]).logits, session.forward(tokens[25:]).logits]
    torch.testing.assert_close(torch.cat(rows), expected[20:], atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("kind", ("llama", "qwen3"))
def test_check_mode_has_the_same_bits_over_the_end_of_a_block(kind: str, tmp_path: Path) -> None:
    """A pass whose padding reaches into the next block of 512 keys sees more keys than one that does not."""
    model = tiny(kind)
    model.config.max_position_embeddings = 1024
    engine = transformers_engine.load(save_model(tmp_path / kind, model), device="cpu", check_mode=True)
    tokens = [(29 * index + 3) % 256 for index in range(24)]
    session = engine.new_session(640)
    session.prefill([(7 * index) % 256 for index in range(500)])
    rows_of: dict[int, Any] = {}
    for rows in (1, 3, 24):
        rows_of[rows] = torch.cat(
            [session.forward(tokens[at : at + rows]).logits for at in range(0, 24, rows)]
        )
        session.truncate(500)
    assert torch.equal(rows_of[3], rows_of[1]) and torch.equal(rows_of[24], rows_of[1])


def test_padded_vocabulary_and_facts(models: Models) -> None:
    engine = models.engine("llama-padded")
    assert engine.vocab_size == 320 and engine.tokenizer.vocab_size == 260
    assert engine.new_session(8).forward([1]).logits.shape == (1, 320)
    assert engine.tokenizer.token_bytes(300) == b""
    assert engine.context_length == 256 and engine.dtype == "float32" and engine.device == "cpu"
    assert engine.kv_bytes(10) == 10 * 2 * 2 * 2 * 8 * 4
    assert engine.rollback_problem is None and engine.name == "transformers"


@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
def test_half_precision_runs(dtype: str, models: Models) -> None:
    for kind in ("llama", "qwen3", "gpt2"):
        engine = transformers_engine.load(models.path(kind), device="cpu", dtype=dtype)
        logits = engine.new_session(32).forward(PROMPT).logits
        exact = models.engine(kind).new_session(32).forward(PROMPT).logits
        assert engine.dtype == dtype and logits.dtype == torch.float32
        assert float((logits - exact).abs().max()) < (0.02 if dtype == "float16" else 0.2) * float(
            exact.abs().max()
        )


@pytest.mark.parametrize("product", ("HalfLinear", "PackedLinear", "MklLinear", "TwiceKeptLinear", "PlainLinear"))
def test_products(product: str) -> None:
    kind = need(product)
    torch.manual_seed(1)
    weight, bias = torch.randn(24, 16).half().float(), torch.randn(24)
    for rows in (1, 2, 3, 4, 7, 40):
        x, other = torch.randn(rows, 16), torch.randn(rows, 24)
        for given in (None, bias):
            linear = kind(weight, given)
            y = torch.nn.functional.linear(x, weight, given)
            close = {"atol": 1e-4, "rtol": 1e-4}
            torch.testing.assert_close(linear(x), y, **close)
            halves = y.chunk(2, -1)
            torch.testing.assert_close(
                transformers_linear.gated(linear, x), torch.nn.functional.silu(halves[0]) * halves[1], **close
            )
            torch.testing.assert_close(linear.plus(x, other), y + other, **close)


def test_a_packed_weight_serves_any_number_of_rows_and_threads() -> None:
    """MKL is told of one number of rows when it packs, and of others when it multiplies."""
    need("MklLinear")
    torch.manual_seed(2)
    threads = torch.get_num_threads()
    try:
        for outputs, inputs in ((33, 7), (577, 131), (64, 960)):
            weight = torch.randn(outputs, inputs)
            torch.set_num_threads(2)
            product = transformers_linear.MklLinear(weight.t().contiguous().t(), None)  # not contiguous, as a transposed one is
            for used in (1, 2, 3):
                torch.set_num_threads(used)
                for rows in range(1, 35):
                    x = torch.randn(rows, inputs)
                    exact = (x.double() @ weight.double().T).float()
                    torch.testing.assert_close(product(x), exact, atol=1e-4, rtol=1e-4)
    finally:
        torch.set_num_threads(threads)


def test_weights_are_kept_twice_only_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is what is said, and both ways give the same logits."""
    need("TwiceKeptLinear")
    monkeypatch.setattr(transformers_linear, "_ADVANTAGE", 0.0)  # no timing: the first of the kinds is taken
    folder = save_model(tmp_path / "model", tiny("llama-tied"))
    needed = transformers_engine.weight_bytes(folder, "float32")
    found = {}
    for free in (4 * needed + 1, 4 * needed - 1):
        monkeypatch.setattr(transformers_engine.memory, "free", lambda place, free=free: free)
        monkeypatch.setattr(transformers_engine, "_MARGIN", 0)
        engine = transformers_engine.load(folder, device="cpu")
        found[free > 4 * needed] = engine.weight_bytes, engine.new_session(20).forward(list(range(9))).logits
    assert found[True][0] > 1.5 * needed  # the embedding, which is the head, and a copy of every product's weight
    assert found[True][0] <= 2 * needed
    torch.testing.assert_close(found[True][1], found[False][1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ("llama", "gpt2"))
def test_a_small_weight_is_kept_alike_at_every_load(kind: str, models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which product of it is faster is noise; what a trace says of the bytes would be too."""
    timed: list[int] = []
    monkeypatch.setattr(transformers_linear, "time", SimpleNamespace(perf_counter=lambda: timed.append(1) or float(len(timed))))
    assert len({transformers_engine.load(models.path(kind), device="cpu").weight_bytes for _ in range(3)}) == 1 and not timed


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("kind", ("llama", "llama-tied", "llama-biased", "qwen2", "gpt2"))
def test_weights_to_be_rounded_are_rounded_as_transformers_does(
    kind: str, dtype: str, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows, keys, values and sums are float32: the logits are those of the rounded weights in float32."""
    from transformers import AutoModelForCausalLM

    need("HalfLinear")
    chosen(monkeypatch, "PlainLinear")
    monkeypatch.setattr(transformers_engine.memory, "free", lambda place: 1 << 40)
    engine = transformers_engine.load(models.path(kind), device="cpu", dtype=dtype)
    model = AutoModelForCausalLM.from_pretrained(str(models.path(kind)), dtype=getattr(torch, dtype)).float().eval()
    with torch.no_grad():
        expected = model(torch.tensor([PROMPT])).logits[0]
    got = engine.new_session(32).forward(PROMPT).logits
    torch.testing.assert_close(got, expected, atol=3e-4, rtol=3e-4)
    assert (engine.dtype, got.dtype) == (dtype, torch.float32)
    wide = transformers_engine.load(models.path(kind), device="cpu", dtype="float32")
    if kind not in ("llama-tied", "gpt2"):  # what is looked up in rows and multiplied by is kept twice
        assert engine.weight_bytes < 0.55 * wide.weight_bytes


def test_both_layouts_of_a_general_model_are_counted(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    need("TwiceKeptLinear")
    needed = transformers_engine.weight_bytes(models.path("gpt2"), "float32")
    kept = {}
    for kind in ("PlainLinear", "TwiceKeptLinear"):
        chosen(monkeypatch, kind)
        engine = transformers_engine.load(models.path("gpt2"), device="cpu")
        kept[kind] = engine.weight_bytes
        assert engine._runner.product_bytes < needed
    assert kept["PlainLinear"] == pytest.approx(needed, rel=0.1)
    copied = engine._runner.product_bytes
    assert kept["TwiceKeptLinear"] == kept["PlainLinear"] + copied


@pytest.mark.parametrize("check_mode", (False, True))
@pytest.mark.parametrize("kind", ("llama", "llama-tied", "gpt2"))
@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_checkpoints_stored_in_halves_keep_them(
    dtype: str, kind: str, check_mode: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that is fastest: float32 rows and sums over the very weights in the file, whoever asks for what."""
    need("HalfLinear")
    monkeypatch.setattr(transformers_linear._Chooser, "_fastest", lambda self, weight: self._kinds[0])
    folder = save_model(tmp_path / "half", tiny(kind).to(getattr(torch, dtype)))
    tokens = list(range(20))
    with torch.no_grad():
        expected = reference(folder)(torch.tensor([tokens])).logits[0]
    for asked in (None, "float32", dtype):
        engine = transformers_engine.load(folder, device="cpu", dtype=asked, check_mode=check_mode)
        got = engine.new_session(20).forward(tokens).logits
        torch.testing.assert_close(got, expected, atol=2e-4, rtol=2e-4)
        assert engine.dtype == asked or (asked is None and engine.dtype == dtype)


def test_what_is_stored_in_float32_is_not_rounded_by_itself(models: Models) -> None:
    """Automatic keeps every digit: on a CPU, and by the rule for any other device."""
    from specview.engines.transformers_weights import StoredTensor, stored_dtype

    assert transformers_engine.load(models.path("llama"), device="cpu").dtype == "float32"

    def stored(*dtypes: str) -> list[StoredTensor]:
        return [StoredTensor((2, 2), dtype, Path()) for dtype in dtypes]

    assert stored_dtype(stored("F32")) == stored_dtype(stored("F32", "BF16")) == stored_dtype(stored("F16", "BF16")) == "float32"
    assert stored_dtype(stored("BF16", "I64")) == "bfloat16" and stored_dtype(stored("F16", "F16")) == "float16"


def test_halves_are_kept_where_float32_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("HalfLinear")
    folder = save_model(tmp_path / "half", tiny("llama").bfloat16())
    needed = transformers_engine.weight_bytes(folder, "float32")
    monkeypatch.setattr(transformers_engine, "_MARGIN", 0)
    monkeypatch.setattr(transformers_engine.memory, "free", lambda place: needed - 1)
    chosen(monkeypatch, "PlainLinear")
    engine = transformers_engine.load(folder, device="cpu")
    assert engine.dtype == "bfloat16" and engine.weight_bytes < 0.6 * needed
    with pytest.raises(SpecviewError, match="needs"):
        monkeypatch.setattr(transformers_engine.memory, "free", lambda place: needed // 2 - 1)
        transformers_engine.load(folder, device="cpu")


@pytest.mark.parametrize("largest", (1e-30, 1.0, 3e38))
def test_a_bfloat16_weight_is_kept_whole_in_a_half_product(largest: float) -> None:
    """float16 has its digits, and by a power of 2 its range; what it cannot keep is refused, never rounded."""
    need("HalfLinear")
    torch.manual_seed(3)
    sizes = largest / 8 * 2.0 ** -torch.arange(24).float()
    weight = (torch.randn(32, 24).clamp(-4, 4) * sizes).bfloat16().float()
    bias, x = torch.randn(32) * largest / 8, torch.randn(5, 24)
    exact = (x.double() @ weight.double().T + bias.double()).float()
    product = transformers_linear.HalfLinear(weight, bias)
    close = {"atol": largest * 1e-6, "rtol": 1e-5}
    torch.testing.assert_close(product(x), exact, **close)
    torch.testing.assert_close(product.plus(x, exact), 2 * exact, **close)
    assert product.nbytes == 2 * weight.numel()
    for row in (torch.full((24,), largest / 3), torch.full((24,), largest * 1e-12) if largest > 1e-20 else torch.full((24,), torch.inf)):
        with pytest.raises(ValueError, match="neither"):
            transformers_linear.HalfLinear(torch.cat([weight, row[None] * 1.0001]), None)


def test_rotation_by_real_numbers_equals_the_complex_product() -> None:
    from specview.engines.transformers_llama import _turn_complex, _turn_real

    pairs, angles = torch.randn(3, 2, 4, 2), torch.randn(3, 4)
    rotation = torch.polar(torch.ones_like(angles), angles)
    torch.testing.assert_close(_turn_real(pairs, rotation), _turn_complex(pairs, rotation))


def test_threads_are_set_and_given_back(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(transformers_engine, "_own_threads", None)
    transformers_engine.load(models.path("llama"), device="cpu", threads=3)
    assert torch.get_num_threads() == 3
    transformers_engine.load(models.path("llama"), device="cpu")
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("kind", ("llama", "qwen3", "gemma2"))
def test_half_precision(kind: str, models: Models) -> None:
    """The dtype of a GPU: rounding aside, the tree of float32."""
    engine = transformers_engine.load(models.path(kind), device="cpu", dtype="bfloat16")
    parents, tokens = random_tree(24, 5), tokens_of(24)
    rows = []
    for each in (engine, models.engine(kind)):
        session = each.new_session(80)
        session.prefill(CONTEXT)
        rows.append(session.forward(tokens, parents).logits)
        session.keep(path_to(parents, 23))
        rows[-1] = torch.cat([rows[-1], session.forward([3, 4]).logits])
    got, expected = rows
    assert float((got - expected).abs().max()) < 0.2 * float(expected.abs().max())


def test_models_that_cannot_take_a_tree_say_so(models: Models) -> None:
    """Bloom reads positions from a mask of two dimensions; check mode computes chains, on any model."""
    engine = models.engine("bloom")
    with pytest.raises(SpecviewError, match="cannot verify draft trees") as refusal:
        engine.new_session(40, branches=2)
    assert "\n" not in str(refusal.value)
    session = engine.new_session(40)
    session.prefill(CONTEXT[:4])
    with pytest.raises(SpecviewError, match="cannot verify draft trees"):
        session.forward([1, 2, 3], (-1, 0, 0))
    before = session.forward([1, 2, 3]).logits
    session.keep([0])
    torch.testing.assert_close(session.forward([2, 3]).logits, before[1:], atol=2e-4, rtol=2e-4)
    own = models.engine("bloom", True).new_session(40, branches=2)
    assert own.forward([1, 2, 3], (-1, 0, 0)).logits.shape == (3, engine.vocab_size)
    for kind in ("llama", "gemma2"):
        models.engine(kind).new_session(40, branches=16)


def test_an_attention_window_of_an_unknown_kind_is_refused(models: Models) -> None:
    from specview.engines.transformers_module import ModuleRunner

    model = models.engine("gpt2")._runner._model
    model.config.window_size = 8
    try:
        problem = ModuleRunner(model).tree_problem
    finally:
        del model.config.window_size
    assert problem is not None and "window_size" in problem
    assert ModuleRunner(model).tree_problem is None
