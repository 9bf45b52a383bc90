"""MTP drafting: over a toy target with features, and end to end on tiny checkpoints that ship their own modules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from specview.decoding.sampling import SamplingParams
from specview.drafting.cascade import Cascade
from specview.heads.layouts import HeadFacts
from specview.heads.loaded import LoadedHead
from specview.heads.mtp import MtpModules, MtpShape
from tests.decoding.toy import (
    ScriptDrafter,
    TableModel,
    plain_reference,
)
from tests.drafting.eagle_toy import HIDDEN, FeatureEngine, Watched, feature, make, randomised, run
from tests.heads.mtp_checkpoints import save_target

WIDE = 12
PROMPT = [1, 2, 3, 4, 5]
CONFIG = {
    "model_type": "mimo", "hidden_size": HIDDEN, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": WIDE, "rms_norm_eps": 1e-5,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread():
    """Products this small wait for a second thread longer than they take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def modules_for(target: FeatureEngine, *, modules: int = 1, seed: int = 1) -> LoadedHead:
    """Random float64 modules over a toy target."""
    module = MtpModules(MtpShape(HIDDEN, modules, "mimo", 1e-5, CONFIG)).double()
    facts = HeadFacts("mtp", "toy", Path("toy"), HIDDEN, target.vocab_size, target.vocab_size)
    return LoadedHead(facts, randomised(module, seed), target)


def naive(head: LoadedHead, target: FeatureEngine, context: Sequence[int], drafted: Sequence[int]) -> np.ndarray:
    """Logits of what follows a context and drafted tokens, every module over the whole context, without a cache kept.

    LAYOUTS.md: row t of module k reads what module k - 1 gave at t and the token at t + k + 1; past the modules
    there are the last one goes on from its own output, a position further.
    """
    module, count = head.module, head.module.shape.modules
    tokens = [*context, *drafted]
    z = torch.from_numpy(np.array([feature("last", tokens[: t + 1]) for t in range(len(context) - 1)]))
    caches = module.new_cache()
    for step in range(len(drafted) + 1):
        if step < count:
            fed = tokens[step + 1 : step + len(context)]
            z = module.run(step, head.embed(fed), z, caches[step])
        else:
            z = module.run(count - 1, head.embed([drafted[step - 1]]), z[-1:], caches[count - 1])
    return target.output @ z[-1].numpy()


def wide(namespace: str = "numpy", seed: int = 0, **more) -> FeatureEngine:
    return FeatureEngine(TableModel(WIDE, order=2, seed=seed, scale=3.0), WIDE, namespace=namespace, **more)


@pytest.mark.parametrize("modules", [1, 2, 3])
@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_a_greedy_chain_is_that_of_the_whole_context_anew(modules, namespace):
    target = wide(namespace, chunk=2)
    head = modules_for(target, modules=modules)
    drafter = Watched(make("mtp", head, target))
    _, rounds, _, _ = run(target, PROMPT, drafter, max_tokens=30, k=4)
    assert rounds[0].k == 4  # the prompt's own states are known
    for context, budget, draft in drafter.drafts:
        assert len(draft) == budget
        for place, token in enumerate(draft.tokens):
            row = naive(head, target, context, draft.tokens[:place])
            assert token == int(row.argmax())
            assert np.asarray(draft.raw_logits[place]) == pytest.approx(row, abs=1e-8)
    assert len({round_.accepted for round_ in rounds}) > 1


def test_drafts_of_any_length_and_rounds_of_others_leave_it_right():
    """Modules that a short draft did not reach, and rounds that another member drafted, chain or nothing."""
    target = wide()
    head = modules_for(target, modules=3)
    drafter = Watched(make("mtp", head, target))
    script = ScriptDrafter(lambda context, budget: [3, 4, 5][: len(context) % 4] if len(context) % 3 == 0 else [])
    script.prompt_layers = ()
    both = Cascade([script, drafter])

    class Lengths:
        name, proceed = "lengths", None
        number = 0

        def budget(self):
            self.number += 1
            return self.number % 5

        def observe(self, round_):
            pass

    output, rounds, _, _ = run(target, PROMPT, both, max_tokens=50, policy=Lengths())
    assert output == plain_reference(target.model, PROMPT, SamplingParams(), 50)
    assert {"script", "mtp", ""} == {round_.drafter for round_ in rounds}
    for context, _, draft in drafter.drafts:
        for place, token in enumerate(draft.tokens):
            assert token == int(naive(head, target, context, draft.tokens[:place]).argmax())
    assert {1, 2, 3, 4} <= {len(draft) for _, _, draft in drafter.drafts}


def test_without_reuse_a_draft_ends_with_the_modules():
    target = wide()
    drafter = Watched(make("mtp", modules_for(target, modules=2), target, reuse=False))
    run(target, PROMPT, drafter, max_tokens=20, k=4)
    assert max(len(draft) for _, _, draft in drafter.drafts) == 2


# -- end to end ------------------------------------------------------------------------------------------------


def raced(target: Path, lanes: Sequence, engine: str = "transformers", **changes):
    """Race lanes on a target in check mode; returns the records, plain first, and what failed."""
    from specview.racing.race import Race
    from specview.settings.events import Failed, LaneEnded
    from specview.settings.run import LaneSettings, RunSettings

    settings = RunSettings(
        engine=engine, target=str(target), check_mode=True, max_tokens=24, observe="off", threads=2,
        prompt="abc abc abc", chat=False, trust_remote_code=True, lanes=(LaneSettings(), *lanes), **changes,
    )  # fmt: skip
    trouble: list[str] = []

    def listen(event: object) -> None:
        if isinstance(event, Failed):
            trouble.append(event.message)
        elif isinstance(event, LaneEnded) and event.error:
            trouble.append(event.error)

    race = Race(settings, 1)
    race.run(listen)
    records = list(race.records)
    race.close()
    return records, trouble


@pytest.mark.parametrize("kind", ["deepseek_v3", "glm4_moe", "mimo"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_checkpoints_own_modules_draft_end_to_end(kind, temperature, tmp_path):
    exact_end_to_end(save_target(tmp_path, kind), "transformers", temperature)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_gguf_files_own_module_drafts_end_to_end(temperature, tmp_path):
    """llama.cpp runs the module that is in the file."""
    pytest.importorskip("llama_cpp")
    from tests.heads.mtp_gguf import write_glm

    exact_end_to_end(write_glm(tmp_path / "glm.gguf"), "llama.cpp", temperature)


def exact_end_to_end(target: Path, engine: str, temperature: float) -> None:
    """Check mode: greedy lanes equal plain, `match` at temperature 1 equals sampled plain."""
    from specview.settings.run import LaneSettings

    rule = "match" if temperature else "greedy"
    lanes = [
        LaneSettings("mtp", k=3, rule=rule),
        LaneSettings("cascade", k=4, rule=rule, options={"members": "ngram-simple+mtp", "ngram-simple.size_n": 2}),
    ]
    records, trouble = raced(target, lanes, engine, sampling=SamplingParams(temperature, seed=4))
    assert not trouble
    plain, *others = [record.token_ids for record in records]
    assert len(plain) == 24 or (len(plain) > 12 and plain[-1] == 257)  # the tokenizer's </s> is an end
    assert others == [plain, plain]
    assert all(any(round_.drafter == "mtp" for round_ in record.rounds) for record in records[1:])


@pytest.mark.parametrize("kind", ["qwen3_next", "qwen3_5_text"])
def test_a_recurrent_target_says_why_it_cannot_be_drafted_for(kind, tmp_path):
    from specview.settings.run import LaneSettings

    _, trouble = raced(save_target(tmp_path, kind), [LaneSettings("mtp", k=3)])
    assert trouble
    assert all("cannot be rolled back" in line and "\n" not in line for line in trouble)


def test_a_target_without_modules_is_told_in_one_line(tmp_path):
    from specview.settings.run import LaneSettings
    from tests.engines.transformers_tiny import save_model, tiny

    _, trouble = raced(save_model(tmp_path, tiny("llama")), [LaneSettings("mtp", k=3)])
    assert trouble
    assert all("\n" not in line for line in trouble)
