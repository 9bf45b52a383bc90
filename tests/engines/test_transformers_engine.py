"""The transformers engine against transformers itself, on tiny random models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specview.errors import SpecviewError, Stopped
from tests.engines.transformers_tiny import KINDS, OWN_FORWARD, save_model, tiny

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from specview.engines import transformers_engine  # noqa: E402

PROMPT = [256, 72, 101, 108, 108, 111, 44, 32, 119, 111, 114, 108, 100]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tiny")
    return {kind: save_model(root / kind, tiny(kind)) for kind in KINDS}


@pytest.fixture(scope="module")
def engines(folders: dict[str, Path]) -> dict[str, Any]:
    return {kind: transformers_engine.load(folder, device="cpu") for kind, folder in folders.items()}


def reference(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()


def greedy(session: Any, prompt: list[int], tokens: int) -> list[int]:
    session.prefill(prompt[:-1])
    output, last = [], prompt[-1]
    for _ in range(tokens):
        last = int(session.forward([last]).logits[-1].argmax())
        output.append(last)
    return output


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_equals_generate(kind: str, folders: dict[str, Path], engines: dict[str, Any]) -> None:
    with torch.no_grad():
        expected = reference(folders[kind]).generate(
            torch.tensor([PROMPT]), max_new_tokens=40, do_sample=False, pad_token_id=0
        )
    got = greedy(engines[kind].new_session(80), PROMPT, 40)
    assert got == expected[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_which_forward_runs(kind: str, engines: dict[str, Any]) -> None:
    own = type(engines[kind]._runner).__name__ == "LlamaRunner"
    assert own == (kind in OWN_FORWARD)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers_up_to_rounding(kind: str, folders: dict[str, Path], engines: dict[str, Any]) -> None:
    tokens = [(7 * index) % 256 for index in range(60)]
    with torch.no_grad():
        expected = reference(folders[kind])(torch.tensor([tokens])).logits[0]
    session = engines[kind].new_session(60)
    session.prefill(tokens[:20])
    rows = [session.forward(tokens[20:21]).logits]
    rows += [session.forward(tokens[21:25]).logits, session.forward(tokens[25:]).logits]
    torch.testing.assert_close(torch.cat(rows), expected[20:], atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_truncation_equals_a_fresh_prefill(kind: str, engines: dict[str, Any]) -> None:
    engine = engines[kind]
    rolled, fresh = engine.new_session(64), engine.new_session(64)
    rolled.prefill(PROMPT)
    rolled.forward([1, 2, 3, 4, 5])
    rolled.truncate(len(PROMPT) + 2)
    rolled.forward([9])
    rolled.truncate(len(PROMPT))
    fresh.prefill(PROMPT)
    assert rolled.length == fresh.length == len(PROMPT)
    torch.testing.assert_close(rolled.forward([6, 7]).logits, fresh.forward([6, 7]).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ("llama", "gpt2"))
def test_sessions_are_independent(kind: str, engines: dict[str, Any]) -> None:
    engine = engines[kind]
    alone = greedy(engine.new_session(64), PROMPT, 12)
    first, second = engine.new_session(64), engine.new_session(64)
    first.prefill(PROMPT[:-1])
    second.prefill([3, 2, 1])
    output, last, other = [], PROMPT[-1], 5
    for _ in range(12):
        last = int(first.forward([last]).logits[-1].argmax())
        other = int(second.forward([other]).logits[-1].argmax())
        output.append(last)
    second.close()
    assert output == alone


def test_the_cache_grows(engines: dict[str, Any], folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from specview.engines import transformers_cache, transformers_llama

    monkeypatch.setattr(transformers_llama, "_FIRST_BLOCK", 8)
    monkeypatch.setattr(transformers_cache, "_FIRST_BLOCK", 8)
    for kind in ("llama", "gpt2"):
        expected = reference(folders[kind]).generate(
            torch.tensor([PROMPT]), max_new_tokens=30, do_sample=False, pad_token_id=0
        )
        assert greedy(engines[kind].new_session(100), PROMPT, 30) == expected[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("kind", ("llama", "qwen3"))
def test_prefill_reports_and_stops_between_chunks(kind: str, engines: dict[str, Any]) -> None:
    from specview.engines import transformers_session

    tokens = [index % 256 for index in range(200)]
    chunk = transformers_session.PREFILL_CHUNK
    transformers_session.PREFILL_CHUNK = 64
    try:
        session = engines[kind].new_session(256)
        seen: list[tuple[int, int]] = []

        def stop(done: int, total: int) -> None:
            seen.append((done, total))
            if done >= 128:
                raise Stopped

        with pytest.raises(Stopped):
            session.prefill(tokens, stop)
        assert seen == [(64, 200), (128, 200)] and session.length == 128
        session.prefill(tokens[128:])
        whole = engines[kind].new_session(256)
        whole.prefill(tokens)
        torch.testing.assert_close(session.forward([5]).logits, whole.forward([5]).logits, atol=1e-5, rtol=1e-5)
    finally:
        transformers_session.PREFILL_CHUNK = chunk


@pytest.mark.parametrize("kind", KINDS)
def test_check_mode_gives_the_same_bits_for_any_number_of_rows(kind: str, folders: dict[str, Path]) -> None:
    engine = transformers_engine.load(folders[kind], device="cpu", check_mode=True)
    tokens = [(11 * index + 3) % 256 for index in range(30)]
    single = engine.new_session(64)
    single.prefill(tokens[:5])
    expected = torch.cat([single.forward([token]).logits for token in tokens[5:]])
    for rows in (2, 3, 5, 9, 25):
        session = engine.new_session(100 + rows)
        session.prefill(tokens[:5])
        got = [session.forward(tokens[at : at + rows]).logits for at in range(5, 30, rows)]
        assert torch.equal(torch.cat(got), expected), rows
        assert session.length == 30


def test_padded_vocabulary_and_facts(engines: dict[str, Any]) -> None:
    engine = engines["llama-padded"]
    assert engine.vocab_size == 320 and engine.tokenizer.vocab_size == 260
    assert engine.new_session(8).forward([1]).logits.shape == (1, 320)
    assert engine.tokenizer.token_bytes(300) == b""
    assert engine.context_length == 256 and engine.dtype == "float32" and engine.device == "cpu"
    assert engine.kv_bytes(10) == 10 * 2 * 2 * 2 * 8 * 4
    assert engine.rollback_problem is None and engine.name == "transformers"


@pytest.mark.parametrize("kind", ("llama", "gpt2"))
def test_features(kind: str, folders: dict[str, Path], engines: dict[str, Any]) -> None:
    with torch.no_grad():
        states = reference(folders[kind])(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states
    session = engines[kind].new_session(64)
    session.prefill(PROMPT[:4])
    given = session.forward(PROMPT[4:], features=(0, 1, "last")).features
    torch.testing.assert_close(given[0], states[0][0, 4:], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(given[1], states[1][0, 4:], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(given["last"], states[-1][0, 4:], atol=1e-4, rtol=1e-4)


def test_limits_and_trees_are_refused_in_one_line(engines: dict[str, Any]) -> None:
    engine = engines["llama"]
    with pytest.raises(SpecviewError, match="do not fit the context"):
        engine.new_session(1000)
    session = engine.new_session(4)
    with pytest.raises(SpecviewError, match="do not fit the 4"):
        session.forward([1, 2, 3, 4, 5])
    with pytest.raises(SpecviewError, match="trees"):
        session.forward([1, 2, 3], parents=(-1, -1, 0))
    session.forward([1, 2, 3], parents=(-1, 0, 1))
    session.close()
    with pytest.raises(ValueError, match="closed"):
        session.forward([1])


def test_half_precision_runs(folders: dict[str, Path]) -> None:
    for kind in ("llama", "gpt2"):
        engine = transformers_engine.load(folders[kind], device="cpu", dtype="bfloat16")
        logits = engine.new_session(32).forward(PROMPT).logits
        assert logits.dtype == torch.float32 and bool(torch.isfinite(logits).all())
