"""What every drafter keeps, whatever it drafts: exact output, its budget, its q, its run's seed, and nothing of another run."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from specview.decoding.costs import Costs
from specview.decoding.sampling import SamplingParams, draw, probabilities, softmax, uniform
from specview.drafting import ngram_mod
from specview.drafting.cascade import Cascade
from specview.drafting.method import DrafterContext
from specview.drafting.policies import POLICIES
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError, Stopped
from specview.settings.options import resolve
from tests.decoding.statistics import chi_square_p, sampled_variation, variation_bound
from tests.decoding.toy import (
    DRAFT,
    TARGET,
    ScriptDrafter,
    TableModel,
    chain_distribution,
    constant,
    plain_reference,
    run_decode,
)
from tests.drafting.contract import CASES, FRESH, HEADS, prompt_of, toy_outcomes, wide
from tests.drafting.eagle_toy import FeatureEngine, Watched, draft_paths, light_head, run

EVERY = pytest.mark.parametrize("name", CASES)


def in_turn(*values: object) -> list[tuple]:
    """Every case with one of the values, the next case with the next one: a method's variants meet different ones."""
    return [(name, values[place % len(values)]) for place, name in enumerate(CASES)]


BOTH = [  # each case greedy and sampled, over numpy and over torch: pairwise
    (name, temperature, spaces[int(temperature)])
    for temperature in (0.0, 1.0)
    for name, spaces in in_turn(("numpy", "torch"), ("torch", "numpy"))
]
LENGTHS = [name for name in POLICIES if name != "constant"]  # which the other tests have
HONEST = 1e-4
EXACT = chain_distribution(TARGET)


@pytest.fixture(autouse=True)
def _small_and_single(monkeypatch):
    """A table of 4,096 entries, as true and quick to make; products this small wait for a second thread."""
    monkeypatch.setattr(ngram_mod, "ENTRIES", 4096)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_method_is_here():
    assert {case.method for case in CASES.values()} == {name for name, one in METHODS.items() if one.drafts}


@pytest.mark.parametrize(("name", "temperature", "namespace"), BOTH)
def test_greedy_writes_what_plain_does_and_match_what_sampled_plain_does(name, temperature, namespace):
    """From prompts of one token on, with an end of text within a draft, and up to any limit."""
    verdicts, memory = Counter(), {}
    for seed in range(6):
        memory = {} if seed % 3 == 0 else memory
        model = TableModel(vocab=5, order=1, seed=seed, scale=3.0)
        eos = [4] if seed % 3 == 1 else []
        target = FeatureEngine(model, 5, namespace=namespace, eos_ids=eos, order=1)
        sampling = SamplingParams(temperature, seed=seed)
        drafter, limit = CASES[name].make(target, seed, memory=memory), 1 + 7 * seed
        prompt = prompt_of((1, 2, 3, 9, 14, 20)[seed], 5, seed)
        output, rounds, end, _ = run(
            target, prompt, drafter, rule="match" if temperature else "greedy", sampling=sampling, max_tokens=limit, k=1 + seed % 4
        )
        drafter.close()
        plain = plain_reference(model, prompt, sampling, limit)
        ends = bool(eos) and 4 in plain
        assert output == (plain[: plain.index(4) + 1] if ends else plain)
        assert end == ("eos" if ends else "limit")
        verdicts.update(token.verdict for round_ in rounds for token in round_.drafted)
    assert verdicts["accepted"] > 1 and verdicts["rejected"] > 1


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("mtp", "eagle", "mlp-speculator lstm")])
def test_rejection_converges_to_the_target(name):
    """Of a method's variants those that draft other things."""
    outcomes, verdicts = toy_outcomes(name, "rejection", 150 if "mtp" in name else 300)  # its passes take long
    assert min(verdicts["accepted"], verdicts["rejected"]) > 30
    assert chi_square_p(outcomes, EXACT) > HONEST
    assert sampled_variation(outcomes, EXACT) < variation_bound(EXACT, sum(outcomes.values()))


def test_a_rule_that_is_not_exact_is_found_out():
    for name, rule, runs in (("eagle3", "naive", 800), ("medusa tree", "typical", 400)):
        assert chi_square_p(toy_outcomes(name, rule, runs)[0], EXACT) < 1e-6


@pytest.mark.parametrize(("name", "policy"), [*in_turn(*LENGTHS), *in_turn(*LENGTHS[2:], *LENGTHS[:2])])
def test_every_length_policy_leaves_the_output(name, policy):
    target, info = wide(), POLICIES[policy]
    made = info.make(resolve(info.options, {}, policy), Costs())
    made.start(4)
    prompt = prompt_of(12, 9)
    output, rounds, _, _ = run(target, prompt, CASES[name].make(target), max_tokens=40, policy=made)
    assert output == plain_reference(target.model, prompt, SamplingParams(), 40)
    assert any(round_.k for round_ in rounds)


@EVERY
def test_no_pass_is_longer_than_budget_and_session_allow(name):
    """The toy session refuses a token too many."""
    target = wide(context_length=30)
    drafter, prompt = Watched(CASES[name].make(target, max_length=30)), prompt_of(12, 9)
    output, rounds, _, _ = run(target, prompt, drafter, max_tokens=18, k=6, max_length=30)
    assert output == plain_reference(target.model, prompt, SamplingParams(), 18)
    assert any(round_.k for round_ in rounds)
    for context, budget, draft in drafter.drafts:
        assert len(context) + len(draft) + len(draft.riders) <= 30
        assert max(map(len, draft_paths(draft.tokens, draft.parents)), default=0) <= budget
        assert not draft or draft.drafter


@EVERY
def test_a_seed_repeats_a_run_and_its_q_is_what_was_drawn_from(name):
    sampling, prompt = SamplingParams(0.8, top_k=5, seed=3), prompt_of(10, 9)
    runs = []
    for _ in range(2):
        target = wide()
        drafter = Watched(CASES[name].make(target))
        runs.append(run(target, prompt, drafter, rule="rejection", sampling=sampling, max_tokens=30)[:2])
    ledgers = [[[(t.id, t.q, t.p, t.u, t.verdict) for t in round_.drafted] for round_ in rounds] for _, rounds in runs]
    assert runs[0][0] == runs[1][0] and ledgers[0] == ledgers[1]
    for context, _, draft in drafter.drafts:
        for place, (token, q) in enumerate(zip(draft.tokens, draft.q or (), strict=draft.q is not None)):
            assert float(np.asarray(q).sum()) == pytest.approx(1, abs=1e-5) and float(q[token]) > 0
            if draft.parents is None:
                assert np.asarray(q) == pytest.approx(np.asarray(probabilities(draft.raw_logits[place], sampling)), abs=1e-5)
                assert token == draw(q, uniform(3, len(context) - len(prompt), "draft", place))


@EVERY
def test_proceed_hears_each_confidence_and_ends_the_draft_after_its_token(name):
    """A tree is asked once a level. Where there are logits, a confidence is the drafter's own probability."""
    target, asked = wide(), []
    drafter, prompt = Watched(CASES[name].make(target)), prompt_of(12, 9)
    output, _, _, _ = run(target, prompt, drafter, max_tokens=25)
    context, budget, _ = max(drafter.drafts, key=lambda one: (one[2].longest, len(one[0])))
    drafter = CASES[name].make(target)
    place = len(context) - len(prompt)
    if place:
        run(target, prompt, drafter, max_tokens=place, policy=constant(0))
    else:
        drafter.start(prompt, SamplingParams())
        session = target.new_session(64)
        session.prefill(prompt[:-1], None, drafter.prompt_layers, drafter.learn_prompt)

    def once(confidence: float) -> bool:
        asked.append(confidence)
        return len(asked) < 2

    draft = drafter.propose(context, budget, once)
    if not draft:
        pytest.skip("what it would draft hangs on its earlier rounds")
    assert draft.longest <= 2 and 1 <= len(asked) <= 2
    assert all(0 <= confidence <= 1 + 1e-6 for confidence in draft.confidences)
    if draft.parents is None and draft.drafter not in ("lookahead",):
        assert list(draft.confidences) == asked
        for row, token, confidence in zip(draft.raw_logits or (), draft.tokens, draft.confidences, strict=False):
            assert confidence == pytest.approx(float(softmax(row)[token]), abs=1e-5)


@pytest.mark.parametrize("name", FRESH)
def test_nothing_is_kept_from_an_earlier_run(name):
    """Known fault (llama.cpp 19231): a second run drafts as the first of another drafter does. Closing twice is closing once."""
    target, prompt = wide(), prompt_of(9, 9, seed=5)
    used, fresh = Watched(CASES[name].make(target)), Watched(CASES[name].make(target))
    run(target, prompt_of(14, 9), used, max_tokens=20)
    used.drafts.clear()
    for drafter in (used, fresh):
        run(target, prompt, drafter, max_tokens=20)
        drafter.close()
        drafter.close()
    assert [draft.tokens for *_, draft in used.drafts] == [draft.tokens for *_, draft in fresh.drafts]
    CASES[name].make(target).close()  # one that never started


@pytest.mark.parametrize("name", [name for name in FRESH if CASES[name].method not in ("cascade", "auto", "lookahead")])
def test_a_member_drafts_as_if_it_were_alone_and_auto_takes_it(name):
    """It follows rounds that another one drafted: chains, and trees whose accepted path is not the first rows."""
    case, target, prompt = CASES[name], wide(), prompt_of(12, 9)
    plain = plain_reference(target.model, prompt, SamplingParams(), 40)

    def script(context, budget):
        right = plain[len(context) - len(prompt) :][:budget]
        return [*right[:1], *((token + 1) % 9 for token in right[1:2])] if len(context) % 3 == 0 else []

    own = Watched(case.make(target))
    output, rounds, _, _ = run(target, prompt, Cascade([ScriptDrafter(script), own]), max_tokens=40, k=3)
    assert output == plain and {"script", case.method} <= {round_.drafter for round_ in rounds}
    if not METHODS[case.method].copies:  # copies learn what their drafts were worth
        for context, budget, draft in [one for one in own.drafts if len(one[0]) > len(prompt)][::3]:
            alone = case.make(target)
            run(target, prompt, alone, max_tokens=len(context) - len(prompt), policy=constant(0))
            assert alone.propose(context, budget).tokens == draft.tokens
    info = METHODS["auto"]
    members = case.method if case.method == "prompt-lookup" else f"prompt-lookup+{case.method}"
    options = info.resolve({"members": members, **{f"{case.method}.{key}": value for key, value in case.options.items()}})
    for temperature in (0.0, 1.0):
        sampling = SamplingParams(temperature, seed=6)
        auto = info.make(DrafterContext(options, 4096, 9, target=target, **case.parts(target, 1)))
        output, _, _, _ = run(
            target, prompt, auto, rule="match" if temperature else "greedy", sampling=sampling, max_tokens=40, k=6
        )
        assert output == plain_reference(target.model, prompt, sampling, 40)


@pytest.mark.parametrize("name", HEADS)
def test_a_head_without_features_drafts_nothing_and_one_that_is_not_finite_is_named(name):
    case, target, prompt = CASES[name], wide(), prompt_of(8, 9)
    target.features_problem = "the toy gives none"
    output, rounds, _, _ = run(target, prompt, case.make(target), max_tokens=12)
    assert output == plain_reference(target.model, prompt, SamplingParams(), 12)
    assert not any(round_.k for round_ in rounds)
    target.features_problem = None
    parts = case.parts(target, 1)
    for parameter in parts["heads"][case.method].module.parameters():
        parameter.data.fill_(float("nan"))
    drafter = type(case)(case.method, case.options, lambda target, seed: parts).make(target)
    for sampling in (SamplingParams(), SamplingParams(1.0)):
        with pytest.raises(SpecviewError, match=f"{drafter.whose} gave logits that are not finite"):
            run(target, prompt, drafter, rule="match", sampling=sampling, max_tokens=12)


@pytest.mark.parametrize(
    ("method", "words"),
    [("medusa", "trained heads"), ("mlp-speculator", "a trained speculator"), ("mtp", "a target whose checkpoint has"),
     ("eagle3", "a trained head"), ("p-eagle", "a trained head"), ("draft-model", "a draft model"), ("pard", "a draft model")],
)  # fmt: skip
def test_what_is_missing_is_one_line(method, words):
    with pytest.raises(SpecviewError, match=f"{method} needs {words}"):
        METHODS[method].make(DrafterContext(METHODS[method].resolve({}), 64, 9))


@pytest.mark.parametrize("name", ["draft-model", "pard"])
def test_a_stop_in_the_middle_of_its_own_prefill(name):
    target = wide()
    drafter = CASES[name].make(target)
    drafter._session.engine.chunk = 2

    def on_chunk(done: int, total: int) -> None:
        assert total == 9
        if done >= 4:
            raise Stopped

    with pytest.raises(Stopped):
        drafter.start(prompt_of(10, 9), SamplingParams(), on_chunk)
    assert len(drafter._session.tokens) == 4
    drafter.close()


@pytest.mark.parametrize("name", ["eagle3", "eagle3 sampled"])
def test_a_smaller_draft_vocabulary_leaves_the_targets_distribution(name):
    """Ids that the head cannot draft come from the correction alone."""
    found, _ = toy_outcomes(name, "rejection", 300, lambda target, seed: {"heads": {"eagle3": light_head(target, DRAFT, (1, 3))}})
    assert chi_square_p(found, EXACT) > HONEST


@pytest.mark.parametrize(("name", "temperature"), in_turn(0.0, 1.0))
def test_penalties_are_on_every_position_of_a_draft(name, temperature):
    """The text is plain decoding's with the same penalties, drafted tokens being said already where they stand."""
    sampling = SamplingParams(temperature, seed=2, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2)
    rule, prompt = "match" if temperature else "greedy", prompt_of(12, 9)
    plain, *_ = run_decode(wide(), prompt, rule=rule, sampling=sampling, max_tokens=30)
    target = wide()
    output, rounds, _, _ = run(target, prompt, CASES[name].make(target), rule=rule, sampling=sampling, max_tokens=30)
    assert output == plain
    assert any(round_.k for round_ in rounds)
