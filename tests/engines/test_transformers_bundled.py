"""The bundled target in the transformers engine against transformers' own generate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from specview.engines import transformers_engine  # noqa: E402
from specview.racing.workloads import load as load_workload  # noqa: E402

pytestmark = pytest.mark.real_model

TOKENS = 24


@pytest.fixture(scope="module")
def folder() -> Path:
    from specview.models import bundled, converted

    return converted.convert(bundled.target_gguf())


@pytest.fixture(scope="module")
def engine(folder: Path) -> Any:
    return transformers_engine.load(folder, device="cpu")


@pytest.fixture(scope="module")
def prompt(engine: Any) -> list[int]:
    text = load_workload("chat").prompts[0].text
    return list(engine.tokenizer.encode_chat([{"role": "user", "content": text}]))


@pytest.fixture(scope="module")
def generated(folder: Path, prompt: list[int]) -> list[int]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32).eval()
    output = model.generate(torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False)
    return list(output[0, len(prompt) :].tolist())


def greedy(engine: Any, prompt: list[int], tokens: int) -> list[int]:
    session = engine.new_session(len(prompt) + tokens + 16)
    session.prefill(prompt[:-1])
    output, last = [], prompt[-1]
    for _ in range(tokens):
        last = int(session.forward([last]).logits[-1].argmax())
        output.append(last)
    return output


def test_greedy_equals_generate(engine: Any, prompt: list[int], generated: list[int]) -> None:
    assert greedy(engine, prompt, len(generated)) == generated


def test_tokenizer_equals_transformers(folder: Path, engine: Any) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(str(folder))
    texts = [
        prompt.text
        for name in ("chat", "code-edit", "translate-pt")
        for prompt in load_workload(name).prompts
    ]
    for text in [*texts, " leading", "tabs\t\t\n\n\n", "日本語 👩‍👩‍👧", "x" * 300, "1234567890"]:
        tokens = engine.tokenizer.encode(text)
        assert tokens == theirs.encode(text, add_special_tokens=False)
        assert b"".join(map(engine.tokenizer.token_bytes, tokens)).decode() == text
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
        expected = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert engine.tokenizer.encode_chat(messages) == expected


def test_check_mode_gives_the_same_bits_for_any_number_of_rows(
    folder: Path, prompt: list[int], generated: list[int]
) -> None:
    engine = transformers_engine.load(folder, device="cpu", check_mode=True)
    tokens = [prompt[-1], *generated[:19]]
    rows_of: dict[int, Any] = {}
    for rows in (1, 2, 5, 9):
        session = engine.new_session(len(prompt) + 32 + rows)
        session.prefill(prompt[:-1])
        parts = [session.forward(tokens[at : at + rows]).logits for at in range(0, 20, rows)]
        rows_of[rows] = torch.cat(parts)
    for rows in (2, 5, 9):
        assert torch.equal(rows_of[rows], rows_of[1]), rows


def test_a_tree_and_early_exit_equal_plain_passes(
    engine: Any, prompt: list[int], generated: list[int]
) -> None:
    """Greedy paths with wrong turns beside them, in passes of few and of many rows; then the path kept."""
    for turns in (1, 3):
        path_tokens = [prompt[-1], *generated[:11]]
        tokens, parents, path = [path_tokens[0]], [-1], [0]
        for token in path_tokens[1:]:
            wrong = [(token + 1000 * turn) % engine.tokenizer.vocab_size for turn in range(1, turns + 1)]
            tokens += [*wrong, token]
            parents += [path[-1]] * (turns + 1)
            path.append(len(tokens) - 1)
        session, plain = (engine.new_session(len(prompt) + len(tokens) + 16) for _ in range(2))
        for each in (session, plain):
            each.prefill(prompt[:-1])
        tree = session.forward(tokens, parents).logits
        chain = plain.forward(path_tokens).logits
        torch.testing.assert_close(tree[path], chain, atol=2e-3, rtol=2e-3)
        assert tree[path].argmax(-1).tolist() == generated[: len(path)]
        session.keep(path)
        rest = generated[11:16]
        session.forward_exit(rest[:3], engine.exit_layers // 2)
        torch.testing.assert_close(
            session.forward(rest).logits, plain.forward(rest).logits, atol=2e-3, rtol=2e-3
        )
