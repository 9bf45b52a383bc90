"""The training forward against inference step by step, and measuring without a model in the loop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from specview.heads.eagle import Eagle3Head, Eagle3Shape
from specview.heads.fast import FastHead
from specview.training.evaluate import walk
from specview.training.features import FeatureStore, FeatureWriter, Text
from specview.training.heads import Eagle3Training, HeadBatch, HeadSettings, HeadTrainer, chain_outputs

HIDDEN, VOCAB, ROWS, DEPTH = 16, 40, 9, 4


def make_head(**more: Any) -> Eagle3Head:
    torch.manual_seed(1)
    frequencies = tuple(100.0 ** (-2 * i / 4) for i in range(2))
    head = Eagle3Head(
        Eagle3Shape(
            hidden=HIDDEN, target_hidden=HIDDEN, intermediate=24, heads=4, kv_heads=2, width=4, vocab=VOCAB, draft_vocab=VOCAB,
            eps=1e-5, frequencies=frequencies, aux_layers=(1, 3, 5), **more,
        )  # fmt: skip
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
    drafting = FastHead(head)
    embedding = torch.randn(VOCAB, HIDDEN)
    states = torch.randn(1, ROWS, 3 * HIDDEN)
    following = torch.randint(0, VOCAB, (1, ROWS))
    batch = HeadBatch(following, states, torch.zeros(1, ROWS + 1, HIDDEN), torch.ones(1, ROWS))
    trained = chain_outputs(head, embedding, batch, DEPTH)
    assert len(trained) == DEPTH
    for start in range(ROWS):
        steps = min(DEPTH, ROWS - start)
        cache, begin = drafting.new_cache(), slice(start + 1)
        y = drafting.run(embedding[following[0, begin]], head.fuse(states[0, begin]), range(start + 1), cache)[-1:]
        torch.testing.assert_close(trained[0][0, start], y[0], atol=1e-4, rtol=1e-4)
        if mask is not None and steps > 1:
            masked = head.fuse(head.mask_hidden[0, 0])[None].expand(steps - 1, -1)
            tokens = embedding[mask][None].expand(steps - 1, -1)
            later = drafting.run(tokens, masked, range(start + 1, start + steps), cache)
            for step in range(1, steps):
                torch.testing.assert_close(
                    trained[step][0, start + step], later[step - 1], atol=1e-4, rtol=1e-4
                )
        elif mask is None:
            for step in range(1, steps):
                at = start + step
                y = drafting.run(embedding[following[0, at]][None], head.next_hidden(y), [at], cache)
                torch.testing.assert_close(trained[step][0, at], y[0], atol=1e-4, rtol=1e-4)


class RandomSource:
    """A target whose hidden states are random."""

    def features(self, tokens: list[int], layers: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """States [n, layers, hidden] and last ones [n, hidden]."""
        made = torch.Generator().manual_seed(sum(tokens))
        states = torch.randn(len(tokens), len(layers), HIDDEN, generator=made)
        return states, torch.randn(len(tokens), HIDDEN, generator=made)


class Spy(Eagle3Training):
    """Notes how far training looks ahead."""

    def __init__(self, head: Eagle3Head, embedding: torch.Tensor) -> None:
        super().__init__(head, embedding)
        self.depths: list[int] = []

    def hidden(self, batch: HeadBatch, depth: int) -> list[torch.Tensor]:
        """The normed outputs of each step."""
        self.depths.append(depth)
        return super().hidden(batch, depth)


def test_a_short_run_first_looks_one_token_ahead(tmp_path: Path) -> None:
    writer = FeatureWriter(RandomSource(), (1, 3, 5), tmp_path / "features")
    for start in range(6):
        writer.add(Text(list(range(start, start + 12)), "chat", 8))
    writer.flush()
    embedding, output = torch.randn(VOCAB, HIDDEN), torch.randn(VOCAB, HIDDEN)
    settings = HeadSettings(steps=4, depth=3, shallow=0.5, tokens_per_step=24)
    kind = Spy(make_head().train(), embedding)
    trainer = HeadTrainer(kind, FeatureStore(tmp_path / "features"), output, tmp_path / "state", settings)
    assert trainer.run()
    assert kind.depths == [1, 1, 3, 3]


def test_the_loss_is_that_of_the_targets_distributions(tmp_path: Path) -> None:
    writer = FeatureWriter(RandomSource(), (1, 3, 5), tmp_path / "features")
    for start in range(3):
        writer.add(Text(list(range(start, start + 10)), "chat", 6))
    writer.flush()
    store = FeatureStore(tmp_path / "features")
    embedding, output = torch.randn(VOCAB, HIDDEN), torch.randn(VOCAB, HIDDEN)
    head = make_head()
    settings = HeadSettings(steps=4, depth=2, decay=0.5, read=0.0)
    trainer = HeadTrainer(Eagle3Training(head, embedding), store, output, tmp_path / "state", settings)
    one = store.sequences[1]
    loss, _, trained = trainer.batch_loss([one], torch.Generator())
    tokens, states, last = store.read(one)
    batch = HeadBatch(
        tokens[None, 1:], states[None, :-1].float().flatten(2), last[None].float(), torch.ones(1, 9)
    )
    expected = torch.zeros(())
    for step, y in enumerate(chain_outputs(head, embedding, batch, 2)):
        logp = (head.norm(y[0]) @ head.lm_head.weight.T).log_softmax(-1)
        labels = (last[1:].float() @ output.T).softmax(-1)
        rows = -(labels * logp).sum(-1)[2:]  # position 2 predicts token 4, the first that was written
        expected = expected + rows.mean() * 0.5**step / 1.5
    assert trained == 7
    torch.testing.assert_close(loss, expected, atol=1e-4, rtol=1e-4)


def test_a_chain_is_walked_by_what_each_of_its_drafts_was() -> None:
    # hits[d][i]: the draft d of the chain after answer token i is right
    hits = [[True, False, True, True], [False, False, True, False]]
    found = walk(hits[0], 2, hits)
    # after token 0: right, wrong; after token 2: right, right (and no token follows)
    assert (found.passes, found.judged, found.accepted, found.emitted) == (2, 4, 3, 4)
