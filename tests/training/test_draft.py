"""The whole command on a tiny target: data, training, export, card."""

import json

import pytest
import torch

from specview.training import draft as pipeline
from specview.training.__main__ import parser
from specview.training.evaluate import greedy_answers
from specview.training.heldout import HeldOutPrompt
from specview.training.shards import read_shard
from specview.training.small_draft import SmallDraft, project_embedding
from specview.training.target import TargetModel

from .conftest import CONFIG
from .test_data import LetterTokenizer


def test_answers_are_the_targets_greedy_ones_and_kept(tmp_path, target_folder):
    target = TargetModel(target_folder, longest=256)
    prompts = [HeldOutPrompt("chat", "one"), HeldOutPrompt("story", "another one")]
    file = tmp_path / "held.safetensors"
    answers = greedy_answers(target, LetterTokenizer(), prompts, file)
    with torch.inference_mode():
        for answer in answers:
            best = target.logits(target.prefill(answer.tokens.tolist())[2]).argmax(-1)
            first = len(answer.tokens) - answer.written
            assert torch.equal(best[first - 1 : -1], answer.tokens[first:])
    again = greedy_answers(None, None, prompts, file)
    assert [a.kind for a in again] == ["chat", "story"]
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(answers, again, strict=True))


def test_a_start_of_another_shape_is_refused(tmp_path, target_folder):
    recipe = pipeline.Recipe(target_folder, tmp_path / "x.gguf", tmp_path, tmp_path, start=target_folder)
    with pytest.raises(RuntimeError):
        pipeline.start_draft(recipe)


def test_the_start_follows_the_target(tmp_path, target_folder, monkeypatch):
    monkeypatch.setattr(pipeline, "SHAPE", {**pipeline.SHAPE, "hidden_size": 24})
    recipe = pipeline.Recipe(target_folder, tmp_path / "x.gguf", tmp_path, tmp_path)
    draft = pipeline.start_draft(recipe)
    assert draft.shape.vocab_size == CONFIG["vocab_size"] and draft.longest == CONFIG["max_position_embeddings"]
    target = TargetModel(target_folder, longest=16)
    assert torch.equal(draft.embedding, project_embedding(target.embedding, 24))


def test_a_projected_embedding_keeps_the_main_directions():
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(300, 4, generator=generator) @ torch.randn(4, 16, generator=generator)
    projected = project_embedding(embedding, 4)
    assert abs(float(projected.std()) - 0.05) < 1e-6
    ratio = embedding @ embedding.T / (projected @ projected.T)
    assert float(ratio.std() / ratio.mean()) < 0.05


def test_stopping_early_leaves_no_asset(tmp_path, target_folder):
    recipe = pipeline.Recipe(target_folder, tmp_path / "x.gguf", tmp_path / "w", tmp_path / "out", minutes=0.0)
    assert pipeline.make(recipe, lambda: True, lambda text: None) is False
    assert not (tmp_path / "out").exists()


def test_the_bundled_asset_is_what_its_card_says():
    folder = pipeline.Path(__file__).parents[2] / "assets" / "draft"
    if not (folder / "model.safetensors").exists():
        pytest.skip("no bundled draft in this checkout")
    config = json.loads((folder / "config.json").read_text())
    draft = SmallDraft.load(folder)
    assert config["vocab_size"] == 49152 and draft.shape.layers == 4
    sizes = sum(file.stat().st_size for file in folder.iterdir())
    assert sizes < 45e6
    assert "## Measured acceptance" in (folder / "README.md").read_text("utf-8")


def test_counts_by_kind(shards):
    counts = pipeline.data_counts(shards)
    assert counts["chat"]["written"] == 60 * 16 and counts["shuffled-copy"]["written"] == 0
    assert sum(c["tokens"] for c in counts.values()) == sum(
        len(s.tokens) for file in shards.iterdir() for s in read_shard(file)
    )


def test_the_commands_options():
    options = parser().parse_args(["draft", "--out", "x", "--minutes", "3"])
    assert (options.command, options.minutes, options.start) == ("draft", 3.0, None)
