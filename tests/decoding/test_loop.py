"""The draft-verify loop: equality with plain decoding, ends, limits, rollback, clocks, errors."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.ledger import Draft
from specview.decoding.loop import Sequence, decode
from specview.decoding.observation import Observer
from specview.decoding.sampling import SamplingParams, probabilities
from specview.decoding.verification import RULES
from specview.drafting.policies import POLICIES
from specview.drafting.prompt_lookup import PromptLookup
from specview.errors import SpecviewError
from specview.settings.options import resolve
from tests.decoding.toy import (
    FakeClock,
    FakeEngine,
    FakeTokenizer,
    ScriptDrafter,
    TableModel,
    constant,
    draft_model,
    plain_reference,
    run_decode,
)

VOCAB = 6
PROMPT = [1, 2, 3, 1, 2]
LOOKUP = {"ngram_max": 3, "ngram_min": 1, "match": "first"}


def engine(order=None, **options) -> FakeEngine:
    return FakeEngine(TableModel(VOCAB, order=order), VOCAB, **options)


def near_draft(**options) -> FakeEngine:
    return FakeEngine(TableModel(VOCAB, noise=0.35), VOCAB, **options)


def half_right(model, seed=0):
    """Drafts the target's argmax, or now and then something else."""
    rng = random.Random(seed)

    def script(context, budget):
        tokens = []
        for _ in range(rng.randint(0, budget)):
            tokens.append(
                int(np.argmax(model([*context, *tokens]))) if rng.random() < 0.7 else rng.randrange(VOCAB)
            )
        return tokens

    return ScriptDrafter(script)


def make_drafter(kind, target, seed=0):
    if kind == "draft-model":
        return draft_model(near_draft(), target.vocab_size)
    if kind == "prompt-lookup":
        return PromptLookup(LOOKUP)
    return half_right(target.model, seed)


# -- plain decoding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(0.8, top_k=4, seed=5)])
def test_plain_is_the_loop_with_an_empty_draft(sampling, namespace):
    target = engine(namespace=namespace)
    output, rounds, end, session = run_decode(
        target, PROMPT, rule="greedy" if sampling.greedy else "rejection", sampling=sampling, max_tokens=20
    )
    assert output == plain_reference(target.model, PROMPT, sampling, 20)
    assert end == "limit"
    assert session.passes == [1] * 20
    assert [round_.index for round_ in rounds] == list(range(20))
    assert all(round_.k == 0 and round_.final.kind == "plain" for round_ in rounds)
    assert all(not round_.drafter for round_ in rounds)


# -- equality with plain ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize("kind", ["draft-model", "prompt-lookup", "script"])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_at_temperature_zero_every_rule_equals_plain_greedy(rule, kind, k):
    target = engine(order=None if kind == "draft-model" else 2)
    output, rounds, _, _ = run_decode(
        target,
        PROMPT,
        rule=rule,
        sampling=SamplingParams(),
        max_tokens=40,
        drafter=make_drafter(kind, target),
        k=k,
    )
    assert output == plain_reference(target.model, PROMPT, SamplingParams(), 40)
    assert sum(round_.k for round_ in rounds) > 10, "nothing was drafted"
    verdicts = {token.verdict for round_ in rounds for token in round_.drafted}
    assert {"accepted", "rejected"} <= verdicts, "the case needs both"


@given(
    seed=st.integers(0, 2**63 - 1),
    k=st.integers(1, 9),
    policy=st.sampled_from(sorted(POLICIES)),
    kind=st.sampled_from(["draft-model", "prompt-lookup", "script"]),
    sampling=st.sampled_from(
        [{"temperature": 1.0}, {"temperature": 0.6, "top_p": 0.9}, {"temperature": 1.5, "top_k": 3}]
    ),
    count=st.integers(1, 30),
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12),
    namespace=st.sampled_from(["numpy", "torch"]),
)
@settings(deadline=None, derandomize=True, max_examples=50)
def test_match_equals_sampled_plain_token_for_token(
    seed, k, policy, kind, sampling, count, prompt, namespace
):
    params = SamplingParams(**sampling, seed=seed)
    target = engine(order=3, namespace=namespace)
    lengths = POLICIES[policy].make(resolve(POLICIES[policy].options, {}, policy))
    lengths.start(k)
    output, rounds, end, _ = run_decode(
        target,
        prompt,
        rule="match",
        sampling=params,
        max_tokens=count,
        drafter=make_drafter(kind, target, seed),
        policy=lengths,
    )
    assert output == plain_reference(target.model, prompt, params, count)
    assert end == "limit"
    for round_ in rounds:
        for token in round_.drafted:
            assert (token.draw == token.id) == (token.verdict == "accepted") or token.verdict == "ignored"


def test_a_seed_reproduces_a_run_and_another_seed_does_not():
    def run(seed, rule):
        target = engine()
        return run_decode(
            target,
            PROMPT,
            rule=rule,
            sampling=SamplingParams(1.0, seed=seed),
            max_tokens=30,
            drafter=draft_model(near_draft(), VOCAB),
        )[:2]

    for rule in ("rejection", "match", "typical", "naive"):
        first, again, other = run(3, rule), run(3, rule), run(4, rule)
        assert first[0] == again[0] != other[0]
        assert [r.drafted for r in first[1]] == [r.drafted for r in again[1]]


# -- a model drafting for itself --------------------------------------------------------------------------


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("rule", "sampling"),
    [
        ("greedy", SamplingParams()),
        ("rejection", SamplingParams(1.0, seed=9)),
        ("rejection", SamplingParams(0.7, top_k=3, top_p=0.9, min_p=0.02, seed=9)),
        ("naive", SamplingParams(1.0, seed=9)),
    ],
)
def test_a_model_drafting_for_itself_is_accepted_everywhere(rule, sampling, namespace):
    target = engine(namespace=namespace)
    _, rounds, _, _ = run_decode(
        target, PROMPT, rule=rule, sampling=sampling, max_tokens=60, drafter=draft_model(target, VOCAB), k=4
    )
    tokens = [token for round_ in rounds for token in round_.drafted]
    assert len(tokens) == 48  # 12 rounds of 4 + a bonus
    assert all(token.verdict == "accepted" for token in tokens)
    assert all(token.accept == pytest.approx(1, abs=1e-6) for token in tokens)
    assert all(token.p == pytest.approx(token.q, rel=1e-6) for token in tokens)
    assert all(round_.final.kind == "bonus" for round_ in rounds)


# -- the token limit --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(1, 10))
@pytest.mark.parametrize("k", [1, 2, 3, 5, 9, 64])
def test_the_limit_is_met_exactly_whatever_k(count, k):
    target = engine()
    drafter = ScriptDrafter(
        lambda context, budget: plain_reference(target.model, context, SamplingParams(), budget)
    )
    session = target.new_session(len(PROMPT) + count - 1)  # not one cell more than needed
    output, rounds, end, _ = run_decode(
        target,
        PROMPT,
        rule="greedy",
        sampling=SamplingParams(),
        max_tokens=count,
        drafter=drafter,
        k=k,
        session=session,
    )
    assert (len(output), end) == (count, "limit")
    left = count
    for round_ in rounds:
        assert round_.k == min(k, left - 1)  # every draft is as long as may be: nothing is cut
        left -= len(round_.emitted)
    assert all(round_.final is not None for round_ in rounds)


def test_no_budget_asks_the_drafter_nothing():
    drafter = ScriptDrafter(lambda context, budget: [0])
    _, rounds, _, _ = run_decode(
        engine(), PROMPT, rule="greedy", sampling=SamplingParams(), max_tokens=1, drafter=drafter
    )
    assert drafter.budgets == []
    assert (rounds[0].k, rounds[0].final.kind) == (0, "plain")


def test_max_tokens_counts_from_where_the_sequence_is():
    target = engine()
    session = target.new_session(100)
    session.prefill(PROMPT[:-1])
    sequence = Sequence(list(PROMPT))
    for upto in (5, 12):
        list(
            decode(
                session,
                sequence,
                rule="greedy",
                sampling=SamplingParams(),
                max_tokens=upto - len(sequence.output),
            )
        )
        assert len(sequence.output) == upto
    assert sequence.output == plain_reference(target.model, PROMPT, SamplingParams(), 12)
    assert sequence.rounds == 12


# -- EOS ------------------------------------------------------------------------------------------------------


def counting(prefix):
    """Certain logits: after token n comes n + 1."""
    row = np.full(10, -5.0, dtype=np.float32)
    row[(prefix[-1] + 1) % 10] = 20.0
    return row


@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize("with_q", [False, True])
def test_eos_accepted_inside_a_draft_ends_the_run_there(rule, with_q):
    """Known fault: goes on past an EOS accepted inside a draft (transformers 47912)."""
    sampling = SamplingParams(0.0 if rule == "greedy" else 0.2)
    target = FakeEngine(counting, 10, eos_ids=[5])
    drafter = ScriptDrafter(
        lambda context, budget: [(context[-1] + 1 + i) % 10 for i in range(budget)],
        q=(lambda prefix: probabilities(counting(prefix), sampling)) if with_q else None,
    )
    output, rounds, end, session = run_decode(
        target, [0, 1], rule=rule, sampling=sampling, max_tokens=50, drafter=drafter, k=6
    )
    assert (output, end) == ([2, 3, 4, 5], "eos")
    (round_,) = rounds
    assert [token.verdict for token in round_.drafted] == ["accepted"] * 4 + ["ignored"] * 2
    assert (round_.k, round_.judged, round_.accepted, round_.final) == (6, 4, 4, None)
    assert session.tokens == [0, 1, 2, 3, 4, 5]


def test_eos_as_the_last_drafted_token_gives_no_bonus():
    target = FakeEngine(counting, 10, eos_ids=[4])
    drafter = ScriptDrafter(lambda context, budget: [(context[-1] + 1 + i) % 10 for i in range(budget)])
    output, rounds, end, _ = run_decode(
        target, [1], rule="greedy", sampling=SamplingParams(), max_tokens=50, drafter=drafter, k=3
    )
    assert (output, end) == ([2, 3, 4], "eos")
    assert rounds[-1].final is None


@pytest.mark.parametrize(("drafted", "kind"), [([], "plain"), ([2], "bonus"), ([7], "corrected")])
def test_eos_as_the_final_token_ends_the_run(drafted, kind):
    target = FakeEngine(counting, 10, eos_ids=[2 + (kind == "bonus")])
    drafter = ScriptDrafter(lambda context, budget: drafted)
    output, rounds, end, session = run_decode(
        target, [1], rule="greedy", sampling=SamplingParams(), max_tokens=50, drafter=drafter, k=3
    )
    assert end == "eos"
    assert rounds[-1].final.kind == kind
    assert output[-1] in target.eos_ids
    assert session.tokens == [1, *output[:-1]]


def test_a_rejected_eos_and_an_ignored_one_end_nothing():
    target = FakeEngine(counting, 10, eos_ids=[9])
    drafter = ScriptDrafter(lambda context, budget: [9, 9, 9])
    output, rounds, end, _ = run_decode(
        target, [1], rule="greedy", sampling=SamplingParams(), max_tokens=6, drafter=drafter, k=3
    )
    assert (output, end) == ([2, 3, 4, 5, 6, 7], "limit")
    assert [token.verdict for token in rounds[0].drafted] == ["rejected", "ignored", "ignored"]


def test_eos_that_also_meets_the_limit_is_eos():
    target = FakeEngine(counting, 10, eos_ids=[3])
    assert run_decode(target, [1], rule="greedy", sampling=SamplingParams(), max_tokens=2)[2] == "eos"


# -- cache and abandonment -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["greedy", "match"])
@pytest.mark.parametrize("after", [1, 2, 5])
def test_an_abandoned_generator_leaves_a_session_that_can_go_on(rule, after):
    sampling = SamplingParams(0.0 if rule == "greedy" else 1.0, seed=2)
    target, policy = engine(), constant(3)
    session = target.new_session(200)
    session.prefill(PROMPT[:-1])
    drafter = draft_model(near_draft(), VOCAB)
    drafter.start(PROMPT, sampling)
    sequence = Sequence(list(PROMPT))

    def rounds(count):
        return decode(
            session, sequence, rule=rule, sampling=sampling, max_tokens=count, drafter=drafter, policy=policy
        )

    steps = rounds(50)
    for _ in range(after):
        next(steps)
    steps.close()
    assert session.tokens == sequence.context[:-1]
    assert len(sequence.output) >= after
    list(rounds(40 - len(sequence.output)))
    assert sequence.output == plain_reference(target.model, PROMPT, sampling, 40)


def test_an_error_while_drafting_leaves_the_session_as_it_was():
    target = engine()
    calls = iter([[1, 2], RuntimeError("no"), [3]])

    def script(context, budget):
        item = next(calls)
        if isinstance(item, Exception):
            raise item
        return item

    session = target.new_session(100)
    session.prefill(PROMPT[:-1])
    sequence = Sequence(list(PROMPT))
    steps = decode(
        session,
        sequence,
        rule="greedy",
        sampling=SamplingParams(),
        max_tokens=20,
        drafter=ScriptDrafter(script),
        policy=constant(3),
    )
    next(steps)
    with pytest.raises(RuntimeError, match="no"):
        next(steps)
    assert session.tokens == sequence.context[:-1]
    assert sequence.rounds == 1


def test_rollback_is_a_truncation_to_what_was_kept():
    target = FakeEngine(counting, 10)
    drafts = iter([[2, 3, 9, 9], [9], [6, 7]])
    drafter = ScriptDrafter(lambda context, budget: next(drafts))
    _, rounds, _, session = run_decode(
        target, [0, 1], rule="greedy", sampling=SamplingParams(), max_tokens=7, drafter=drafter, k=4
    )
    assert [round_.emitted for round_ in rounds] == [(2, 3, 4), (5,), (6, 7, 8)]
    assert [entry for entry in session.log if entry[0] != "prefill"] == [
        ("forward", 5),
        ("truncate", 4),
        ("forward", 2),
        ("truncate", 5),
        ("forward", 3),
        ("truncate", 8),
    ]
    assert session.passes == [round_.k + 1 for round_ in rounds]


def test_the_drafter_and_the_policy_hear_of_every_round():
    class Listening(POLICIES["constant"].make):
        heard: list

        def observe(self, round_):
            self.heard.append(round_.index)

    policy = Listening({})
    policy.heard = []
    policy.start(2)
    target = engine()
    drafter = half_right(target.model)
    _, rounds, _, _ = run_decode(
        target,
        PROMPT,
        rule="greedy",
        sampling=SamplingParams(),
        max_tokens=20,
        drafter=drafter,
        policy=policy,
    )
    assert [round_.index for round_ in drafter.seen] == [round_.index for round_ in rounds] == policy.heard
    assert [round_.drafted for round_ in drafter.seen] == [round_.drafted for round_ in rounds]


# -- clocks -----------------------------------------------------------------------------------------------------


def test_phases_fill_the_round_and_looking_is_off_the_clock():
    clock = FakeClock()
    tokenizer = FakeTokenizer(VOCAB)
    tokenizer.clock, tokenizer.text_cost = clock, 10.0
    target = engine(clock=clock, pass_cost=2.0, row_cost=0.5, tokenizer=tokenizer)
    draft = near_draft(clock=clock, pass_cost=0.25)

    class Learning(POLICIES["constant"].make):
        def observe(self, round_):
            clock.now += 0.125

    policy = Learning({})
    policy.start(3)
    _, rounds, _, _ = run_decode(
        target,
        PROMPT,
        rule="greedy",
        sampling=SamplingParams(),
        max_tokens=30,
        drafter=draft_model(draft, VOCAB),
        policy=policy,
        observer=Observer("full", tokenizer),
        clock=clock,
    )
    t = 0.0
    assert any(round_.k for round_ in rounds)
    for round_ in rounds:
        assert round_.draft_s == pytest.approx(0.25 * round_.k)
        assert round_.verify_s == pytest.approx(2 + 0.5 * (round_.k + 1))
        assert round_.other_s == pytest.approx(0.125)
        assert round_.observe_s >= 10
        t += round_.seconds
        assert round_.t == pytest.approx(t)
    assert clock.now > t + 10 * len(rounds)


# -- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.parametrize("level", ["off", "full"])
def test_logits_that_are_not_finite_name_the_model_and_the_position(bad, temperature, drafted, level):
    def model(prefix):
        row = counting(prefix)
        if len(prefix) == 2 + 4:  # the row that decides output token 4
            row = np.full(10, bad, dtype=np.float32) if bad == -math.inf else row
            row[3] = bad
        return row

    target = FakeEngine(model, 10, model_name="poor-model")
    drafter = ScriptDrafter(lambda context, budget: [(context[-1] + 1 + i) % 10 for i in range(budget)])
    with pytest.raises(
        SpecviewError, match=r"poor-model gave logits that are not finite .* at output token 4\b"
    ):
        run_decode(
            target,
            [0, 1],
            rule="greedy" if temperature == 0 else "rejection",
            sampling=SamplingParams(temperature),
            max_tokens=20,
            drafter=drafter if drafted else None,
            k=3,
            observer=Observer(level, FakeTokenizer(10)),
        )


@pytest.mark.parametrize("rule", ["greedy", "match"])
@pytest.mark.parametrize(("bad", "ahead"), [((5,), 1), ((4, 9), 2), ((2, 3), 2), ((), 0)])
def test_in_a_tree_the_position_is_the_depth_and_not_the_node(rule, bad, ahead):
    """The bad row is the one after a path of the tree, which has it at any place."""

    def model(prefix):
        row = np.zeros(10, dtype=np.float32)
        row[bad[len(prefix) - 2] if len(prefix) - 2 < len(bad) else 0] = 50.0  # the path is what the target wants
        return np.full(10, math.nan, dtype=np.float32) if tuple(prefix[2:]) == bad else row

    target = FakeEngine(model, 10, model_name="poor-model")
    drafter = ScriptDrafter(lambda context, budget: [])
    tree = Draft((2, 3, 4, 7, 9, 5), parents=(-1, 0, -1, 2, 2, -1), drafter="tree", siblings="point-mass")
    drafter.propose = lambda *_: tree
    with pytest.raises(SpecviewError, match=rf"poor-model gave logits .* at output token {ahead}\b"):
        run_decode(
            target, [0, 1], rule=rule, sampling=SamplingParams(float(rule == "match")), max_tokens=9, drafter=drafter, k=3
        )


@pytest.mark.parametrize("level", ["light", "full"])
def test_a_bad_row_that_only_the_viewer_reads_is_reported_alike(level):
    """A row after the rejection decides nothing, but the observer reads it: no bare ValueError."""

    def model(prefix):
        row = counting(prefix)
        if prefix[-1] == 8 and prefix[-2] == 7:
            row = np.full(10, math.nan, dtype=np.float32)
        return row

    target = FakeEngine(model, 10, model_name="poor-model")
    # 7 is rejected at once; the row after (7, 8) is then never judged.
    drafter = ScriptDrafter(lambda context, budget: [7, 8, 9])
    with pytest.raises(SpecviewError, match=r"poor-model gave logits .* at output token 2\b"):
        run_decode(
            target,
            [0, 1],
            rule="rejection",
            sampling=SamplingParams(0.2),
            max_tokens=4,
            drafter=drafter,
            k=3,
            observer=Observer(level, FakeTokenizer(10)),
        )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_that_is_not_finite_is_named_as_the_draft(temperature):
    bad = FakeEngine(lambda prefix: np.full(VOCAB, math.nan, dtype=np.float32), VOCAB)
    with pytest.raises(SpecviewError, match="the draft model gave logits that are not finite"):
        run_decode(
            engine(),
            PROMPT,
            rule="greedy" if temperature == 0 else "rejection",
            sampling=SamplingParams(temperature),
            max_tokens=5,
            drafter=draft_model(bad, VOCAB),
        )
