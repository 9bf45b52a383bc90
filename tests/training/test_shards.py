import torch

from specview.training.shards import Labelled, ShardWriter, read_shard, top_labels


def test_a_shard_gives_back_what_was_written(tmp_path):
    logits = torch.randn(5, 60)
    ids, logp = top_labels(logits)
    labelled = Labelled(torch.arange(5), ids, logp, "story", 3)
    plain = Labelled(torch.arange(7), None, None, "plain", 6)
    writer = ShardWriter(tmp_path, "a")
    writer.add(plain)
    writer.add(labelled)
    writer.flush()
    first, second = read_shard(tmp_path / "a-00000.safetensors")
    assert (first.kind, first.written, second.kind, second.written) == ("story", 3, "plain", 6)
    assert torch.equal(first.tokens, labelled.tokens) and torch.equal(second.tokens, plain.tokens)
    assert torch.equal(first.label_ids.long(), ids) and second.label_ids is None
    assert torch.allclose(first.label_logp.float(), logp, atol=1e-2)


def test_labels_are_log_probabilities_of_the_whole_vocabulary():
    logits = torch.randn(4, 200)
    ids, logp = top_labels(logits)
    expected = torch.log_softmax(logits, -1)
    assert torch.equal(ids[:, 0], logits.argmax(-1))
    assert torch.allclose(logp, expected.gather(1, ids), atol=1e-5)


def test_a_writer_goes_on_after_the_shards_that_are_there(tmp_path):
    for _ in range(2):
        writer = ShardWriter(tmp_path, "a", tokens_per_shard=4)
        writer.add(Labelled(torch.arange(5), None, None, "plain", 4))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a-00000.safetensors", "a-00001.safetensors"]
