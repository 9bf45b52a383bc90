"""Rounds and records: counts, emitted ids, joined text, and what the observer puts there."""

from __future__ import annotations

import numpy as np
import pytest

from specview.decoding.ledger import EMPTY_DRAFT, Draft, DraftedToken, FinalToken, Round, RunRecord
from specview.decoding.observation import Observer, join_text, top_margin
from specview.decoding.sampling import SamplingParams, probabilities
from specview.drafting.policies import POLICIES
from specview.settings.options import resolve
from tests.decoding.toy import FakeEngine, FakeTokenizer, TableModel, draft_model, entropy, run_decode

VOCAB = 6


def test_a_round_counts_and_emits_what_was_accepted_and_the_final_token():
    drafted = (DraftedToken(7, "accepted"), DraftedToken(8, "rejected"), DraftedToken(9, "ignored"))
    round_ = Round(0, 1.0, 0.25, 0.5, 0.125, drafted=drafted, final=FinalToken(5, "corrected"))
    assert (round_.k, round_.judged, round_.accepted, round_.emitted) == (3, 2, 1, (7, 5))
    assert round_.seconds == 0.875
    ended = Round(0, 1.0, 0, 1, 0, drafted=(DraftedToken(7, "accepted"),), final=None)
    assert ended.emitted == (7,)
    plain = Round(0, 1.0, 0, 1, 0, final=FinalToken(3, "plain"))
    assert (plain.k, plain.judged, plain.emitted) == (0, 0, (3,))
    assert len(EMPTY_DRAFT) == 0
    assert len(Draft((1, 2))) == 2


def test_a_record_joins_only_what_was_emitted():
    rounds = [
        Round(
            0,
            1.0,
            0,
            1,
            0,
            drafted=(DraftedToken(1, "accepted", text="a"), DraftedToken(2, "rejected", text="X")),
            final=FinalToken(3, "corrected", text="b"),
        ),
        Round(1, 2.0, 0, 1, 0, drafted=(DraftedToken(4, "accepted", text="c"),), final=None),
    ]
    record = RunRecord("lane", {}, rounds=rounds)
    assert record.token_ids == [1, 3, 4]
    assert record.text == "abc"


def observed(level, rule="rejection", namespace="numpy", policy="constant", temperature=1.0):
    tokenizer = FakeTokenizer(VOCAB, eos_ids=[5])
    target = FakeEngine(TableModel(VOCAB), VOCAB, namespace=namespace, tokenizer=tokenizer)
    draft = FakeEngine(TableModel(VOCAB, noise=0.35), VOCAB, namespace=namespace)
    lengths = POLICIES[policy].make(resolve(POLICIES[policy].options, {}, policy))
    lengths.start(4)
    sampling = SamplingParams(temperature, seed=4, top_k=4 if temperature else 0)
    output, rounds, _, _ = run_decode(
        target,
        [1, 2],
        rule=rule,
        sampling=sampling,
        max_tokens=40,
        drafter=draft_model(draft, VOCAB),
        policy=lengths,
        observer=Observer(level, tokenizer),
    )
    return target, draft, sampling, output, rounds, tokenizer


@pytest.mark.parametrize("rule", ["rejection", "match", "typical", "naive", "greedy"])
def test_looking_changes_nothing_that_is_looked_at(rule):
    temperature = 0.0 if rule == "greedy" else 1.0
    bare = observed("off", rule, temperature=temperature)
    for level in ("light", "full"):
        seen = observed(level, rule, temperature=temperature)
        assert seen[3] == bare[3]
        for a, b in zip(bare[4], seen[4], strict=True):
            for x, y in zip(a.drafted, b.drafted, strict=True):
                assert (x.id, x.verdict, x.q, x.accept, x.u, x.draw, x.threshold) == (
                    y.id,
                    y.verdict,
                    y.q,
                    y.accept,
                    y.u,
                    y.draw,
                    y.threshold,
                )
                assert x.p is None or x.p == y.p


def test_off_keeps_the_bare_numbers():
    *_, rounds, _ = observed("off")
    for round_ in rounds:
        for token in round_.drafted:
            assert (token.text, token.p_top, token.q_top, token.residual_top) == ("", (), (), ())
            assert (token.entropy, token.margin) == (None, None)
            assert (token.p is None) == (token.verdict == "ignored")
        assert round_.final.text == ""


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
@pytest.mark.parametrize("level", ["light", "full"])
def test_texts_join_to_the_output(level, namespace):
    *_, output, rounds, tokenizer = observed(level, namespace=namespace)
    assert RunRecord("lane", {}, rounds=rounds).text == join_text(tokenizer, output) != ""
    for round_ in rounds:
        for token in round_.drafted:
            assert token.text == ("" if token.id == 5 else chr(97 + token.id))
            assert token.p is not None, "p of ignored tokens is there where the pass computed it"


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_full_shows_raw_distributions_at_temperature_one(namespace):
    target, draft, sampling, _, rounds, tokenizer = observed("full", namespace=namespace)
    context, seen_residual = [1, 2], 0
    for round_ in rounds:
        prefix = list(context)
        for token in round_.drafted:
            raw_p = probabilities(target.model(prefix), SamplingParams(1.0))
            raw_q = probabilities(draft.model(prefix), SamplingParams(1.0))
            p, q = probabilities(target.model(prefix), sampling), probabilities(draft.model(prefix), sampling)
            assert [c[0] for c in token.p_top] == np.argsort(-raw_p, kind="stable").tolist()
            assert [c[2] for c in token.p_top] == pytest.approx(np.sort(raw_p)[::-1], abs=1e-6)
            assert [c[2] for c in token.q_top] == pytest.approx(np.sort(raw_q)[::-1], abs=1e-6)
            assert all(text == tokenizer.token_text(token_id) for token_id, text, _ in token.p_top)
            assert token.entropy == pytest.approx(entropy(raw_p), abs=1e-5)
            assert token.confidence == pytest.approx(raw_q[token.id], abs=1e-6)
            assert token.p == pytest.approx(p[token.id], abs=1e-6)
            assert token.q == pytest.approx(q[token.id], abs=1e-6)
            if token.verdict == "rejected":
                rest = np.maximum(0, p - q)
                rest /= rest.sum()
                shown = {c[0]: c[2] for c in token.residual_top}
                assert shown == pytest.approx({i: x for i, x in enumerate(rest) if x > 0}, abs=1e-5)
                assert round_.final.id in shown
                seen_residual += 1
            else:
                assert token.residual_top == ()
            prefix.append(token.id)
        context += round_.emitted
        final_row = target.model(context[:-1])
        raw = probabilities(final_row, SamplingParams(1.0))
        assert round_.final.entropy == pytest.approx(entropy(raw), abs=1e-5)
        assert round_.final.margin == pytest.approx(
            float(np.sort(final_row)[-1] - np.sort(final_row)[-2]), abs=1e-5
        )
        assert round_.final.p == pytest.approx(probabilities(final_row, sampling)[round_.final.id], abs=1e-6)
    assert seen_residual > 2


def test_naive_shows_that_it_corrects_from_p():
    target, _, sampling, _, rounds, _ = observed("full", "naive")
    context, checked = [1, 2], 0
    for round_ in rounds:
        prefix = list(context)
        for token in round_.drafted:
            if token.verdict == "rejected":
                p = probabilities(target.model(prefix), sampling)
                assert {c[0]: c[2] for c in token.residual_top} == pytest.approx(
                    {i: x for i, x in enumerate(p.tolist()) if x > 0}, abs=1e-6
                )
                checked += 1
            prefix.append(token.id)
        context += round_.emitted
    assert checked


def test_confidence_is_the_drafters_own_even_when_the_policy_asked_for_it():
    for policy in ("constant", "confidence"):
        _, draft, _, _, rounds, _ = observed("light", policy=policy)
        context = [1, 2]
        for round_ in rounds:
            prefix = list(context)
            for token in round_.drafted:
                raw = probabilities(draft.model(prefix), SamplingParams(1.0))
                assert token.confidence == pytest.approx(raw[token.id], abs=1e-6)
                prefix.append(token.id)
            context += round_.emitted


def test_without_a_tokenizer_the_observer_is_off():
    assert Observer("full", None).level == "off"


def test_margin_of_a_vocabulary_of_one_is_infinite():
    assert top_margin(np.array([3.0], dtype=np.float32)) == float("inf")
    assert top_margin(np.array([3.0, 1.0, 2.5], dtype=np.float32)) == 0.5
