import numpy as np
import pytest
import torch

from specview.training.export import (
    gguf_tensors,
    interleave_rope,
    load_gguf_weights,
    save_checkpoint,
    save_gguf,
)
from specview.training.small_draft import SmallDraft

gguf = pytest.importorskip("gguf")


@pytest.fixture
def tokenizer_gguf(tmp_path):
    """A GGUF with a vocabulary and no weights."""
    file = tmp_path / "vocabulary.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([f"t{i}" for i in range(96)])
    writer.add_token_types([3] * 3 + [1] * 93)
    writer.add_token_merges(["t 1", "t 2"])
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{{ messages }}")
    writer.add_tensor("token_embd.weight", np.zeros((1, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_the_checkpoint_loads_in_transformers_with_equal_logits(tmp_path, make_draft):
    transformers = pytest.importorskip("transformers")
    save_checkpoint(make_draft(), tmp_path / "out")
    ours = SmallDraft.load(tmp_path / "out")
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    tokens = torch.randint(0, 96, (2, 40), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(ours.logits(ours(tokens)), theirs(tokens).logits, atol=1e-5, rtol=1e-5)


def test_the_gguf_holds_the_weights_and_the_vocabulary(tmp_path, make_draft, tokenizer_gguf):
    draft = make_draft()
    save_gguf(draft, tmp_path / "f16.gguf", tokenizer_gguf, "test", quantized=False)
    reader = gguf.GGUFReader(tmp_path / "f16.gguf")
    source = gguf.GGUFReader(tokenizer_gguf)
    for key in (k for k in source.fields if k.startswith("tokenizer.")):
        assert reader.fields[key].contents() == source.fields[key].contents(), key
    stored = {t.name: t for t in reader.tensors}
    expected = gguf_tensors(draft)
    assert stored.keys() == expected.keys() and "output.weight" not in stored
    for name, tensor in expected.items():
        half = tensor.half().float() if tensor.dim() == 2 else tensor
        assert np.array_equal(np.array(stored[name].data, dtype=np.float32), half.numpy()), name
    loaded = load_gguf_weights(draft, tmp_path / "f16.gguf").state_dict()
    for name, weight in draft.state_dict().items():
        torch.testing.assert_close(loaded[name], weight, atol=1e-3, rtol=1e-3)


def test_a_quantized_gguf_is_close(tmp_path, make_draft, tokenizer_gguf):
    draft = make_draft()
    save_gguf(draft, tmp_path / "q8.gguf", tokenizer_gguf, "test", quantized=True)
    loaded = load_gguf_weights(draft, tmp_path / "q8.gguf").state_dict()
    for name, weight in draft.state_dict().items():
        torch.testing.assert_close(loaded[name], weight, atol=float(weight.abs().max()) / 200, rtol=0)


def test_rotated_pairs_become_neighbours():
    weight = torch.arange(8.0)[:, None]  # two heads of four rows
    assert interleave_rope(weight, 2).flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_another_vocabulary_size_is_an_error(tmp_path, tokenizer_gguf, make_draft):
    draft = SmallDraft({**make_draft().config, "vocab_size": 64})
    with pytest.raises(ValueError):
        save_gguf(draft, tmp_path / "x.gguf", tokenizer_gguf, "test", quantized=False)
