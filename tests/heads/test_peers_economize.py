"""Our reading of EAGLE-3's and Medusa's published layouts against economize's (Apache-2.0), over a small Llama of transformers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specview.heads.fast import fast_head
from specview.models.heads import load_head
from tests.heads import fabricate as make

economize = pytest.importorskip("economize")
TEXT = [3, 17, 5, 22, 8, 1]


class LlamaTarget(make.FakeTarget):
    """A small Llama as a target: features as specview's sessions name them."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(4)
        config = {**make.LLAMA, "num_hidden_layers": make.LAYERS}
        config.pop("rope_theta")
        self.model = LlamaForCausalLM(LlamaConfig(**config, tie_word_embeddings=False)).eval()
        self.embedding = self.model.get_input_embeddings().weight.detach().numpy()
        self.output = self.model.get_output_embeddings().weight.detach().numpy()
        with torch.inference_mode():
            # hidden_states[n] is what enters layer n, and the last one is normed.
            states = self.model(torch.tensor([TEXT]), output_hidden_states=True).hidden_states
        self.features: dict[Any, np.ndarray] = {n: state[0].numpy() for n, state in enumerate(states[:-1])}
        self.features["last"] = states[-1][0].numpy()


@pytest.fixture(scope="module")
def target() -> LlamaTarget:
    return LlamaTarget()



@pytest.mark.parametrize(
    ("first", "config", "aux"),
    [
        ("midlayer", make.midlayer_config(), (2, 4, 5)),
        ("midlayer", make.midlayer_config(norm_before_residual=True), (2, 4, 5)),
        ("layers.0", make.speculators_config(norm_before_residual=True), (2, 4, 5)),
        ("layers.0", make.speculators_config(eagle_aux_hidden_state_layer_ids=[1, 4, 7]), (1, 4, 7)),
    ],
)
def test_eagle3_drafts_as_economize_does(
    tmp_path: Path, target: LlamaTarget, first: str, config: dict[str, Any], aux: tuple[int, ...]
) -> None:
    folder = make.write(tmp_path, config, make.eagle3_state(first=first))
    head = load_head("eagle3", str(folder), target)  # type: ignore[arg-type]
    assert head.facts.aux_layers == aux
    theirs = economize.attach(target.model, economize.read_checkpoint(folder), check_teacher=False)
    technique = theirs.techniques["eagle3"]
    assert technique.aux_layers == aux
    rows = len(TEXT) - 1
    positions = torch.arange(rows)
    with torch.inference_mode():
        features = np.concatenate([target.features[layer][:rows] for layer in aux], -1)
        module = fast_head(head.module, "stored")
        cache = module.new_cache()
        y = module.run(head.embed(TEXT[1:]), module.fuse(head.tensor(features)), range(rows), cache)
        ours = head.spread(module.logits(y), -torch.inf)

        source = technique.fuse([torch.tensor(target.features[layer][None, :rows]) for layer in aux])
        embedded, table = technique.embed(torch.tensor([TEXT[1:]])), technique.rotary_table(positions[None])
        residual, q, keys, values = technique.layer.project(source, embedded, table)
        sees = torch.ones(rows, rows, dtype=torch.bool).tril()
        out = technique.layer.finish(residual, technique.layer.attend(q, keys, values, sees))
        torch.testing.assert_close(ours, technique.draft_logits(out)[0], rtol=1e-4, atol=1e-5)
        token = int(ours[-1].argmax())

        # The next step reads the layer's own output.
        y = module.run(head.embed([token]), module.next_hidden(y[-1:]), [rows], cache)
        ours = head.spread(module.logits(y), -torch.inf)
        at = technique.rotary_table(torch.tensor([[rows]]))
        residual, q, k, v = technique.layer.project(out[:, -1:], technique.embed(torch.tensor([[token]])), at)
        all_keys, all_values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        sees = torch.ones(1, rows + 1, dtype=torch.bool)
        out = technique.layer.finish(residual, technique.layer.attend(q, all_keys, all_values, sees))
        torch.testing.assert_close(ours, technique.draft_logits(out)[0], rtol=1e-4, atol=1e-5)


def test_medusa_drafts_as_economize_does(tmp_path: Path, target: LlamaTarget) -> None:
    config = {"base_model_name_or_path": "toy-target", "medusa_num_heads": 3, "medusa_num_layers": 2}
    folder = make.write(tmp_path, config, make.medusa_state(layers=2), "medusa_lm_head.pt")
    head = load_head("medusa", str(folder), target)  # type: ignore[arg-type]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        theirs = economize.attach(target.model, economize.read_checkpoint(folder), check_teacher=False)
    technique = theirs.techniques["medusa"]
    with torch.inference_mode():
        hidden = head.tensor(target.features["last"])
        ours = head.module.logits(head.module(hidden))
        for index in range(3):
            torch.testing.assert_close(ours[index], technique.heads[index](hidden), rtol=1e-4, atol=1e-5)
