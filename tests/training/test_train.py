import pytest
import torch

from specview.training.evaluate import agreement
from specview.training.shards import Labelled, read_shard
from specview.training.small_draft import Objective, Weights, make_batch
from specview.training.train import Settings, Trainer


def settings(steps, **changes):
    values = {"steps": steps, "tokens_per_step": 256, "warmup_steps": 2, "frequent_ids": 32, "negatives": 8}
    return Settings(**{**values, **changes})


def losses_of(trainer):
    losses = []
    trainer.run(report=lambda r: losses.append(r.loss), report_every=1)
    return losses


def test_training_lowers_the_loss(tmp_path, shards, make_draft):
    trainer = Trainer(make_draft(), shards, tmp_path / "state.safetensors", settings(40, learning_rate=1e-2))
    losses = losses_of(trainer)
    assert len(losses) == 40
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


def test_a_resumed_run_gives_the_same_weights(tmp_path, shards, make_draft):
    whole = Trainer(make_draft(), shards, tmp_path / "whole.safetensors", settings(24))
    assert whole.run()
    state = tmp_path / "parts.safetensors"
    first = Trainer(make_draft(), shards, state, settings(24))
    assert not first.run(stop=lambda: first.progress.step == 15)
    second = Trainer(make_draft(3), shards, state, settings(24))
    assert second.progress.step == 15
    assert second.run()
    for name, weight in whole.draft.state_dict().items():
        assert torch.equal(weight, second.draft.state_dict()[name]), name
        assert torch.equal(whole.averaged().state_dict()[name], second.averaged().state_dict()[name]), name


def test_development_sequences_are_never_trained_on(tmp_path, shards, make_draft):
    trainer = Trainer(make_draft(), shards, tmp_path / "state.safetensors", settings(1))
    held = {id(s) for s in trainer.development()}
    trained = {id(s) for batch in trainer.epoch_batches() for s in batch}
    assert held and not held & trained


def test_a_folder_without_shards_is_an_error(tmp_path, make_draft):
    with pytest.raises(FileNotFoundError):
        Trainer(make_draft(), tmp_path, tmp_path / "state.safetensors", settings(1))


def test_one_end_must_be_set():
    with pytest.raises(ValueError):
        Settings()
    with pytest.raises(ValueError):
        Settings(steps=1, minutes=1.0)


def test_the_objective_over_every_id_is_soft_cross_entropy(shards, make_draft):
    sequences = [s for s in read_shard(sorted(shards.iterdir())[0]) if s.label_ids is not None][:3]
    draft, batch = make_draft(), make_batch(sequences, Weights(), skip=2)
    loss, _ = Objective(torch.arange(96), 96, 8, 0.0)(draft, batch, torch.Generator())
    loss.backward()
    logp = torch.log_softmax(draft.logits(draft(batch.tokens))[batch.rows, batch.columns], -1)
    p = torch.zeros_like(logp).scatter_add_(1, batch.ids, batch.probabilities)
    expected = -((p * logp).sum(-1) * batch.weights).sum() / batch.weights.sum()
    got = {n: p.grad.clone() for n, p in draft.named_parameters()}
    draft.zero_grad()
    expected.backward()
    torch.testing.assert_close(loss, expected, atol=1e-4, rtol=1e-4)
    for name, parameter in draft.named_parameters():
        torch.testing.assert_close(got[name], parameter.grad, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("kind", "before"), [("copy", []), ("framed-copy", [1, 9, 1])])
def test_guided_heads_mark_the_token_before_and_the_place_to_copy_from(kind, before):
    tokens = torch.tensor([*before, 5, 6, 7, 8, 40, 41, 5, 6, 7, 8])
    previous, matching = make_batch([Labelled(tokens, None, None, kind, 2)], Weights(), skip=3).guides
    assert all(q == k + 1 for _, q, k in previous.marks.tolist())
    assert [tokens[q] == tokens[k - 1] for _, q, k in matching.marks.tolist()] == [True] * 3


def test_a_batch_trains_only_what_has_a_label():
    labelled = Labelled(torch.arange(4), torch.zeros(4, 2).long(), torch.zeros(4, 2), "chat", 2)
    labelled.label_logp[0] = -torch.inf
    plain = Labelled(torch.arange(6), None, None, "copy", 2)
    batch = make_batch([labelled, plain], Weights(), skip=0)
    assert set(zip(batch.rows.tolist(), batch.columns.tolist(), strict=True)) == {
        (0, 1), (0, 2), (0, 3), (1, 3), (1, 4)
    }


def test_agreement_looks_at_the_answer_only(make_draft):
    draft = make_draft()
    tokens = torch.randint(0, 96, (9,), generator=torch.Generator().manual_seed(0))
    assert len(agreement(draft, Labelled(tokens, None, None, "chat", 5))) == 4
