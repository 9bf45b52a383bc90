import pytest
import torch

from specview.training.target import SlotCache, TargetModel, computed_shape

from .conftest import CONFIG


@pytest.fixture
def reference(target_folder):
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaForCausalLM.from_pretrained(target_folder, dtype=torch.float32).eval()


def test_prefill_and_steps_equal_transformers(target_folder, reference):
    target = TargetModel(target_folder, longest=64)
    tokens = torch.randint(0, 96, (12,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        expected = reference(torch.tensor([tokens])).logits[0]
        whole = target.next_logits(target.prefill(tokens)[2])
        prefix = target.prefix(tokens[:5])
        keys, values, hidden = target.prefill(tokens[5:9], prefix)
        rest = target.next_logits(hidden)
        # The sequence under test in one slot, other lengths in the others and in a second cache.
        caches = [SlotCache(target.shape, 3, 16), SlotCache(target.shape, 2, 32)]
        caches[0].put(1, 0, prefix.keys, prefix.values)
        caches[0].put(1, 5, keys, values)
        stepped = []
        for position in range(9, 12):
            fed = torch.tensor([4, tokens[position], 5, 6, 7])
            hidden = target.step(caches, fed, torch.tensor([0, position, 3, 20, 1]))
            stepped.append(target.next_logits(hidden)[1])
    torch.testing.assert_close(whole, expected, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(rest, expected[5:9], atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(torch.stack(stepped), expected[9:], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "change", [{"model_type": "qwen2"}, {"attention_bias": True}, {"rope_parameters": {"rope_type": "yarn"}}]
)
def test_what_is_not_computed_is_refused(change):
    with pytest.raises(ValueError):
        computed_shape({**CONFIG, **change})
