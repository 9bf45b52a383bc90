"""A tiny target and a tiny draft, made here; nothing is downloaded or loaded from elsewhere."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from specview.training.shards import LABELS_PER_TOKEN, Labelled, ShardWriter
from specview.training.small_draft import SmallDraft

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_draft():
    def make(seed=0):
        torch.manual_seed(seed)
        return SmallDraft(CONFIG)

    return make


@pytest.fixture
def target_folder(tmp_path, make_draft):
    """A random target in the layout that a converted GGUF has."""
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file({k: v.contiguous() for k, v in make_draft(7).state_dict().items()}, folder / "model.safetensors")
    return folder


@pytest.fixture
def shards(tmp_path):
    """Labelled sequences that count upwards, and copies without labels."""
    generator = torch.Generator().manual_seed(0)
    writer = ShardWriter(tmp_path / "shards", "made", tokens_per_shard=400)
    for _ in range(60):
        start = int(torch.randint(3, 40, (1,), generator=generator))
        tokens = torch.arange(start, start + 24)
        ids = torch.zeros(24, LABELS_PER_TOKEN, dtype=torch.long)
        ids[:, 0] = tokens + 1
        ids[:, 1:] = torch.arange(1, LABELS_PER_TOKEN)
        logp = torch.full((24, LABELS_PER_TOKEN), -8.0)
        logp[:, 0] = -0.05
        writer.add(Labelled(tokens, ids, logp, "chat", 16))
        piece = torch.randint(3, 96, (10,), generator=generator)
        writer.add(Labelled(torch.cat([piece, tokens[:4], piece]), None, None, "shuffled-copy", 8))
    writer.flush()
    return tmp_path / "shards"


@pytest.fixture(scope="module")
def tiny_target(tmp_path_factory):
    """A whole tiny Llama on disk, with an output matrix of its own."""
    from tests.training.tiny import make_target

    return make_target(tmp_path_factory.mktemp("llama") / "tiny")


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """A cache of the test's own, few held-out prompts, little built-in text."""
    from tests.training.tiny import quicken

    monkeypatch.setenv("SPECVIEW_CACHE", str(tmp_path / "cache"))
    quicken(monkeypatch)


@pytest.fixture
def story(tmp_path):
    """A text of the user's."""
    file = tmp_path / "story.txt"
    file.write_text("the cat sat on the mat and looked at the moon. " * 60)
    return file
