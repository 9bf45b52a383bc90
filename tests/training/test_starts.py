"""What heads begin with: their vocabulary, the target's last layer, Medusa's identity."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specview.training.shards import Labelled
from specview.training.starts import choose_vocabulary, default_rows, eagle3_shape, start_eagle3, start_medusa
from specview.training.target import TargetModel
from specview.training.teacher import find_target
from tests.training.tiny import make_target


def text(tokens: list[int], written: int) -> Labelled:
    return Labelled(torch.tensor(tokens), None, None, "chat", written)


def test_what_the_target_wrote_counts_most() -> None:
    found = choose_vocabulary([text([5, 5, 5, 7, 9], 2)], 2, 12, (1, 2))
    assert found.ids.tolist() == [7, 9] and found.mask_token_id == 1
    assert choose_vocabulary([text([1, 2, 3], 1)], 12, 12, (1, 2)).ids.tolist() == list(range(12))
    assert choose_vocabulary([text([0, 1, 2, 3], 1)], 2, 5, ()).mask_token_id == 4


@pytest.mark.parametrize(
    ("hidden", "vocab", "rows"), [(576, 49152, 5120), (32, 112, 112), (2048, 128256, 18432)]
)
def test_the_output_is_a_part_of_the_file(hidden: int, vocab: int, rows: int) -> None:
    assert default_rows(hidden, vocab) == rows


def test_a_head_starts_from_the_targets_last_layer(tmp_path: Path) -> None:
    target = find_target(str(make_target(tmp_path / "tiny")))
    teacher = TargetModel(target.folder)
    assert target.fast and target.llama_like
    ids = torch.arange(10, 60)
    shape = eagle3_shape(target, (2, 3, 4), 50)
    assert (shape.hidden, shape.heads, shape.kv_heads, shape.width, shape.intermediate) == (32, 4, 2, 8, 64)
    head = start_eagle3(shape, target, teacher.output_rows(ids), ids, None, 0)
    qkv, o, gate_up, down = teacher.layers[-1]
    torch.testing.assert_close(head.layers[0].self_attn.o_proj.weight.data, 0.1 * o)
    torch.testing.assert_close(head.layers[0].mlp.down_proj.weight.data, 0.1 * down)
    assert torch.equal(head.target_ids, ids)
    # The newest features pass through fc, give or take a fifth of a random product.
    x = torch.randn(6, 3 * 32)
    share = torch.nn.functional.cosine_similarity(head.fc(x), x[:, 64:], dim=-1)
    assert float(share.detach().min()) > 0.8
    again = start_eagle3(shape, target, teacher.output_rows(ids), ids, None, 0)
    assert all(torch.equal(a, b) for a, b in zip(head.parameters(), again.parameters(), strict=True))


def test_medusa_starts_as_the_target_itself() -> None:
    output = torch.randn(30, 16)
    heads = start_medusa(16, 90, output, torch.arange(0, 90, 3))
    hidden = torch.randn(5, 16)
    logits = heads.logits(heads(hidden))
    assert logits is not None and logits.shape == (4, 5, 30)
    torch.testing.assert_close(logits[2], hidden @ output.T)
    assert heads.target_ids is not None and heads.target_ids.tolist() == list(range(0, 90, 3))
