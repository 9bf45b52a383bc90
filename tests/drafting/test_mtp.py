"""MTP drafting: over a toy target with features, and end to end on tiny checkpoints that ship their own modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from specview.decoding.costs import Costs
from specview.decoding.loop import Sequence as TokenSequence
from specview.decoding.loop import decode
from specview.decoding.sampling import SamplingParams, draw, probabilities, uniform
from specview.drafting.cascade import Cascade
from specview.drafting.method import DrafterContext
from specview.drafting.policies import POLICIES
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError
from specview.heads.layouts import HeadFacts
from specview.heads.loaded import LoadedHead
from specview.heads.mtp import MtpModules, MtpShape
from specview.settings.options import resolve
from tests.decoding.statistics import chi_square_p, sampled_variation, variation_bound
from tests.decoding.toy import (
    BOS,
    LENGTH,
    TARGET,
    VOCAB,
    ScriptDrafter,
    TableModel,
    chain_distribution,
    constant,
    plain_reference,
    toy_logits,
)
from tests.drafting.eagle_toy import HIDDEN, FeatureEngine, Watched, feature, make, randomised, run
from tests.heads.mtp_checkpoints import save_target

HONEST = 1e-4
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


def test_a_sampled_chain_has_the_q_that_it_was_drawn_from():
    target = wide()
    sampling = SamplingParams(0.8, top_k=5, seed=3)
    head = modules_for(target, modules=2)
    drafter = Watched(make("mtp", head, target))
    run(target, PROMPT, drafter, rule="rejection", sampling=sampling, max_tokens=30)
    drawn = 0
    for context, _, draft in drafter.drafts:
        for place, (token, q) in enumerate(zip(draft.tokens, draft.q or (), strict=True)):
            expected = probabilities(naive(head, target, context, draft.tokens[:place]), sampling)
            assert np.asarray(q) == pytest.approx(expected, abs=1e-6)
            assert token == draw(q, uniform(3, len(context) - len(PROMPT), "draft", place))
            drawn += 1
    assert drawn > 20


@pytest.mark.parametrize("modules", [1, 2])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_greedy_equals_plain_and_match_equals_sampled_plain(modules, temperature, namespace):
    verdicts = Counter()
    for seed in range(9):
        model = TableModel(vocab=5, order=1, seed=seed, scale=3.0)
        eos = [4] if seed % 3 == 1 else []
        target = FeatureEngine(model, 5, namespace=namespace, eos_ids=eos, order=1)
        sampling = SamplingParams(temperature, seed=seed)
        drafter = make("mtp", modules_for(target, modules=modules, seed=seed), target)
        limit = 1 + 4 * seed
        prompt = [1, 2, 3][: 1 + seed % 3]
        output, rounds, end, _ = run(
            target, prompt, drafter, rule="match" if temperature else "greedy", sampling=sampling,
            max_tokens=limit, k=1 + seed % 5,
        )  # fmt: skip
        plain = plain_reference(model, prompt, sampling, limit)
        ends = bool(eos) and 4 in plain
        assert output == (plain[: plain.index(4) + 1] if ends else plain)
        assert end == ("eos" if ends else "limit")
        assert len(prompt) > 1 or not rounds[0].k  # a prompt of one token has no state to draft from
        verdicts.update(token.verdict for round_ in rounds for token in round_.drafted)
    assert verdicts["accepted"] > 2
    assert verdicts["rejected"] > 10


def test_rejection_converges_to_the_target():
    target = FeatureEngine(toy_logits(TARGET), VOCAB, order=1)
    head = modules_for(target, modules=2, seed=5)
    outcomes, verdicts = Counter(), Counter()
    prompt = [1, BOS]
    for seed in range(300):
        sampling = SamplingParams(1.0, seed=seed)
        drafter = make("mtp", head, target, 64)
        session = target.new_session(64)
        drafter.start(prompt, sampling)
        session.prefill(prompt[:-1], None, drafter.prompt_layers, drafter.learn_prompt)
        sequence = TokenSequence(list(prompt))
        steps = decode(
            session, sequence, rule="rejection", sampling=sampling, max_tokens=LENGTH + 3, drafter=drafter,
            policy=constant(3),
        )  # fmt: skip
        for round_ in steps:
            verdicts.update(token.verdict for token in round_.drafted)
            if len(sequence.output) >= LENGTH:
                break
        outcomes[tuple(sequence.output[:LENGTH])] += 1
        target.sessions.clear()
    exact = chain_distribution(TARGET)
    assert verdicts["accepted"] > 50
    assert verdicts["rejected"] > 50
    assert chi_square_p(outcomes, exact) > HONEST
    assert sampled_variation(outcomes, exact) < variation_bound(exact, sum(outcomes.values()))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_length_policy(policy):
    model = TableModel(vocab=5, order=1, seed=2, scale=3.0)
    target = FeatureEngine(model, 5, order=1)
    info = POLICIES[policy]
    made = info.make(resolve(info.options, {}, policy), Costs())
    made.start(3)
    drafter = make("mtp", modules_for(target), target)
    output, rounds, _, _ = run(target, [1, 2, 3], drafter, max_tokens=40, policy=made)
    assert output == plain_reference(model, [1, 2, 3], SamplingParams(), 40)
    assert any(round_.k for round_ in rounds)


def test_confidence_is_its_own_probability_and_ends_the_draft():
    target = wide()
    head = modules_for(target, modules=2)
    drafter = make("mtp", head, target)
    output, _, _, _ = run(target, PROMPT, drafter, max_tokens=3)
    asked: list[float] = []

    def once(confidence: float) -> bool:
        asked.append(confidence)
        return len(asked) < 2

    context = [*PROMPT, *output]
    draft = drafter.propose(context, 4, once)
    assert len(draft) == 2
    for place, confidence in enumerate(draft.confidences):
        row = naive(head, target, context, draft.tokens[:place])
        assert confidence == pytest.approx((np.exp(row) / np.exp(row).sum()).max(), abs=1e-6)


@pytest.mark.parametrize(("members", "more"), [("prompt-lookup+mtp", {}), ("mtp", {"mtp.reuse": False})])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_member_of_auto(members, more, temperature):
    """Exact whoever drafts: greedy equals plain, `match` equals sampled plain."""
    model = TableModel(vocab=5, order=1, seed=2, scale=3.0)
    target = FeatureEngine(model, 5, order=1)
    info = METHODS["auto"]
    options = info.resolve({"members": members, **more})
    context = DrafterContext(options, 4096, 5, target=target, heads={"mtp": modules_for(target, modules=2)})
    sampling = SamplingParams(temperature, seed=6)
    rule = "match" if temperature else "greedy"
    output, rounds, _, _ = run(
        target, [1, 2, 3], info.make(context), rule=rule, sampling=sampling, max_tokens=60, k=6
    )
    assert output == plain_reference(model, [1, 2, 3], sampling, 60)
    assert any(round_.drafter == "mtp" for round_ in rounds)


def test_without_features_it_drafts_nothing():
    target = wide()
    target.features_problem = "told to"
    drafter = make("mtp", modules_for(target), target)
    output, rounds, _, _ = run(target, PROMPT, drafter, max_tokens=12)
    assert output == plain_reference(target.model, PROMPT, SamplingParams(), 12)
    assert not any(round_.k for round_ in rounds)


def test_it_keeps_within_the_session():
    target = wide()
    drafter = make("mtp", modules_for(target), target, 12)
    output, rounds, _, _ = run(target, [1, 2, 3], drafter, max_tokens=9, max_length=12, k=5)
    assert len(output) == 9
    assert any(round_.k for round_ in rounds)


def test_it_says_what_is_missing():
    context = DrafterContext(METHODS["mtp"].resolve({}), 64, WIDE)
    with pytest.raises(SpecviewError, match="next-token-prediction modules"):
        METHODS["mtp"].make(context)


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
