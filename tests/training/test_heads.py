"""The training forward against inference step by step, and measuring without a model in the loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specview.heads.eagle3 import Eagle3Head, Eagle3Shape
from specview.training.evaluate import walk
from specview.training.heads import HeadBatch, chain_outputs

HIDDEN, VOCAB, ROWS, DEPTH = 16, 40, 9, 4


def make_head(**more: Any) -> Eagle3Head:
    torch.manual_seed(1)
    frequencies = tuple(100.0 ** (-2 * i / 4) for i in range(2))
    head = Eagle3Head(
        Eagle3Shape(HIDDEN, HIDDEN, 24, 4, 2, 4, VOCAB, VOCAB, 1e-5, frequencies, (1, 3, 5), **more)
    )
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return head.eval()


@pytest.mark.parametrize("mask", [None, 7], ids=["eagle3", "p-eagle"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"layers": 2},
        {"norm_before_residual": True},
        {"norm_output": True},
        {"fc_norm": True, "qk_norm": True},
    ],
    ids=lambda more: "-".join(more) or "plain",
)
@torch.inference_mode()
def test_chains_in_training_are_those_of_drafting(more: dict[str, Any], mask: int | None) -> None:
    head = make_head(**more, mask_token_id=mask)
    embedding = torch.randn(VOCAB, HIDDEN)
    states = torch.randn(1, ROWS, 3 * HIDDEN)
    following = torch.randint(0, VOCAB, (1, ROWS))
    batch = HeadBatch(following, states, torch.zeros(1, ROWS + 1, HIDDEN), torch.ones(1, ROWS))
    trained = chain_outputs(head, embedding, batch, DEPTH)
    assert len(trained) == DEPTH
    for start in range(ROWS):
        steps = min(DEPTH, ROWS - start)
        cache = head.new_cache()
        begin = torch.arange(start + 1)
        y = head.run(embedding[following[0, : start + 1]], head.fuse(states[0, : start + 1]), begin, cache)[
            -1:
        ]
        torch.testing.assert_close(trained[0][0, start], y[0], atol=1e-4, rtol=1e-4)
        if mask is not None and steps > 1:
            masked = head.fuse(head.mask_hidden[0, 0])[None].expand(steps - 1, -1)
            tokens = embedding[mask][None].expand(steps - 1, -1)
            later = head.run(tokens, masked, torch.arange(start + 1, start + steps), cache)
            for step in range(1, steps):
                torch.testing.assert_close(
                    trained[step][0, start + step], later[step - 1], atol=1e-4, rtol=1e-4
                )
        elif mask is None:
            for step in range(1, steps):
                at = start + step
                y = head.run(
                    embedding[following[0, at]][None], head.next_hidden(y), torch.tensor([at]), cache
                )
                torch.testing.assert_close(trained[step][0, at], y[0], atol=1e-4, rtol=1e-4)


def test_a_chain_is_walked_by_what_each_of_its_drafts_was() -> None:
    # hits[d][i]: the draft d of the chain after answer token i is right
    hits = [[True, False, True, True], [False, False, True, False]]
    found = walk(hits[0], 2, hits)
    # after token 0: right, wrong; after token 2: right, right (and no token follows)
    assert (found.passes, found.judged, found.accepted, found.emitted) == (2, 4, 3, 4)
