"""Rotary frequencies of heads: the fields of a config take precedence as in transformers' own Llama."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from specview.heads.layouts import rotary_frequencies

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {
    "type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32, "rope_theta": 900.0,
}  # fmt: skip
FIELDS: dict[str, tuple[Any, ...]] = {
    "rope_scaling": (None, {"type": "linear", "factor": 2.0}, LLAMA3),
    "rope_parameters": (None, {"rope_type": "default", "rope_theta": 500.0}, LINEAR),
    "rope_theta": (None, 70000.0),
}


@pytest.mark.parametrize("values", list(product(*FIELDS.values())), ids=str)
def test_as_transformers_reads_them(values: tuple[Any, ...]) -> None:
    config = {key: value for key, value in zip(FIELDS, values, strict=True) if value is not None}
    copied = {key: dict(value) if isinstance(value, dict) else value for key, value in config.items()}
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16, "max_position_embeddings": 128}
    llama = transformers.LlamaConfig(**sizes, **copied)
    rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(llama)
    torch.testing.assert_close(torch.tensor(rotary_frequencies(config, 16, "head")), rotary.inv_freq, rtol=1e-5, atol=1e-8)
