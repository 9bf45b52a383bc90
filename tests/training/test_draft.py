"""The small draft: its start, its data, what it is measured by, and the bundled asset."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from specview.errors import SpecviewError, Stopped
from specview.training import draft as pipeline
from specview.training.evaluate import greedy_continuations
from specview.training.small_draft import SmallDraft, project_embedding
from specview.training.target import TargetModel
from specview.training.teacher import TargetFiles
from specview.training.texts import HeldOutText, answer_held_out

from .conftest import CONFIG


@pytest.fixture
def target_files(target_folder):
    ref = SimpleNamespace(name="target", path=target_folder, origin="path", repo_id=None)
    return TargetFiles(ref, target_folder, CONFIG, 32, 3, 96, "", "cpu", True, True)


def test_answers_are_the_targets_greedy_ones_and_kept(tmp_path, target_folder):
    target = TargetModel(target_folder, longest=256)
    held = [
        HeldOutText("a", "chat", [1, 20, 21, 2]),
        HeldOutText("a", "story", [1, 50, 2, 1, 9]),
        HeldOutText("b", "x", [7]),
    ]
    answers = answer_held_out(held, lambda texts: greedy_continuations(target, texts, 2, 30), tmp_path)
    with torch.inference_mode():
        for answer in answers["a"]:
            best = target.next_logits(target.prefill(answer.tokens.tolist())[2]).argmax(-1)
            first = len(answer.tokens) - answer.written
            assert torch.equal(best[first - 1 : -1], answer.tokens[first:])
            assert answer.written == 30 or answer.tokens[-1] == 2
    again = answer_held_out(held, lambda texts: pytest.fail("asked again"), tmp_path)
    assert [a.kind for a in again["a"]] == ["chat", "story"] and len(again["b"]) == 1
    for name in "ab":
        assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(answers[name], again[name], strict=True))


def test_answering_can_be_stopped(target_folder):
    target = TargetModel(target_folder, longest=256)
    calls = iter(range(5))
    with pytest.raises(Stopped):
        greedy_continuations(target, [[1, 2], [3]], None, 50, lambda: next(calls, None) is None)


def test_a_start_of_another_shape_is_refused(target_files, target_folder):
    with pytest.raises(SpecviewError, match="no draft of the shape"):
        pipeline.start_draft(target_files, torch.zeros(96, 32), target_folder, 0)


def test_the_start_follows_the_target(target_files, target_folder, monkeypatch):
    monkeypatch.setattr(pipeline, "SHAPE", {**pipeline.SHAPE, "hidden_size": 24})
    embedding = TargetModel(target_folder, longest=16).embedding()
    draft = pipeline.start_draft(target_files, embedding, None, 0)
    assert (
        draft.shape.vocab == CONFIG["vocab_size"] and draft.longest == CONFIG["max_position_embeddings"]
    )
    assert torch.equal(draft.embedding, project_embedding(embedding, 24))


def test_a_projected_embedding_keeps_the_main_directions():
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(300, 4, generator=generator) @ torch.randn(4, 16, generator=generator)
    projected = project_embedding(embedding, 4)
    assert abs(float(projected.std()) - 0.05) < 1e-6
    ratio = embedding @ embedding.T / (projected @ projected.T)
    assert float(ratio.std() / ratio.mean()) < 0.05


def test_the_bundled_asset_is_what_its_card_says():
    folder = Path(__file__).parents[2] / "assets" / "draft"
    if not (folder / "model.safetensors").exists():
        pytest.skip("no bundled draft in this checkout")
    config = json.loads((folder / "config.json").read_text())
    draft = SmallDraft.load(folder)
    assert config["vocab_size"] == 49152 and draft.shape.layers == 4
    sizes = sum(file.stat().st_size for file in folder.iterdir())
    assert sizes < 45e6
    assert "## Measured acceptance" in (folder / "README.md").read_text("utf-8")
