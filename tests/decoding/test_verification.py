"""The acceptance rules, row by row of DESIGN section 4's table, and the ledger fields of section 9's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.ledger import EMPTY_DRAFT, Draft
from specview.decoding.observation import Observer
from specview.decoding.sampling import SamplingParams, draw, probabilities
from specview.decoding.verification import (
    RULES,
    DecisionRows,
    NotFiniteError,
    draft_row,
    entropy_of,
    is_lossy,
    residual,
    resolve_rule,
    verify,
)
from specview.errors import UsageError
from tests.decoding.toy import FakeTokenizer, entropy, safe_log

torch = pytest.importorskip("torch")
SAMPLED = SamplingParams(temperature=1.0)
NAMESPACES = pytest.mark.parametrize("namespace", ["numpy", "torch"])


class Numbers:
    """Random numbers by (position, purpose), and a record of which were asked for."""

    def __init__(self, values: dict[tuple[int, str], float]) -> None:
        self.values = values
        self.asked: list[tuple[int, str]] = []

    def __call__(self, position: int, purpose: str, index: int = 0) -> float:
        key = (position, purpose, index) if index else (position, purpose)
        self.asked.append(key)
        return self.values[key]


def rows_of(p: Sequence[Sequence[float]], namespace: str = "numpy", sampling: SamplingParams = SAMPLED):
    logits = safe_log(p).astype(np.float32)
    return DecisionRows(torch.from_numpy(logits) if namespace == "torch" else logits, sampling)


def draft_of(tokens: Sequence[int], q: Any = None, namespace: str = "numpy") -> Draft:
    if q is not None:
        q = [np.array(row, dtype=np.float32) for row in q]
        q = [torch.from_numpy(row) for row in q] if namespace == "torch" else q
    return Draft(tuple(tokens), q=q)


P = [0.5, 0.3, 0.2, 0.0]
Q = [0.2, 0.6, 0.1, 0.1]
NEXT = [0.1, 0.2, 0.3, 0.4]


def test_the_rules_and_which_are_exact():
    assert {name: rule.exact for name, rule in RULES.items()} == {
        "greedy": True, "rejection": True, "match": True, "typical": False, "naive": False,
    }
    assert all(rule.tip and rule.name == name for name, rule in RULES.items())
    assert [is_lossy(rule) for rule in ("match", "naive", "auto", "plain", None)] == [False, True, False, False, False]


def test_auto_is_greedy_at_temperature_zero_and_rejection_above():
    assert resolve_rule("auto", SamplingParams()) == "greedy"
    assert resolve_rule("auto", SAMPLED) == "rejection"
    for rule in RULES:
        assert resolve_rule(rule, SamplingParams()) == rule
        if rule != "greedy":
            assert resolve_rule(rule, SAMPLED) == rule


def test_greedy_above_temperature_zero_and_unknown_rules_are_refused():
    with pytest.raises(UsageError, match="temperature 0, not 0.5"):
        resolve_rule("greedy", SamplingParams(temperature=0.5))
    with pytest.raises(UsageError, match="no rule 'best'"):
        resolve_rule("best", SAMPLED)


# -- rejection and naive --------------------------------------------------------------------------------


@NAMESPACES
@pytest.mark.parametrize("rule", ["rejection", "naive"])
def test_ratio_rules_accept_below_p_over_q(rule, namespace):
    rows, draft = rows_of([P, NEXT], namespace), draft_of([1], [Q], namespace)
    numbers = Numbers({(5, "accept"): 0.499, (6, "target"): 0.35})
    decision = verify(rule, rows, draft, numbers, 5)
    trial = decision.trials[0]
    assert (trial.id, trial.verdict, trial.u) == (1, "accepted", 0.499)
    assert (trial.p, trial.q, trial.accept) == pytest.approx((0.3, 0.6, 0.5))
    assert trial.draw is None and trial.threshold is None
    # The bonus is drawn from the last row: 0.35 lies in the third token's part.
    assert decision.final == (2, "bonus", pytest.approx(0.3))
    assert numbers.asked == [(5, "accept"), (6, "target")]


@NAMESPACES
def test_rejection_corrects_from_the_residual(namespace):
    rows, draft = rows_of([P, NEXT], namespace), draft_of([1], [Q], namespace)
    rest = np.array([0.3, 0.0, 0.1, 0.0])  # max(0, p - q)
    for u, expected in ((0.0, 0), (0.74, 0), (0.76, 2), (0.999, 2)):
        numbers = Numbers({(5, "accept"): 0.501, (5, "residual"): u})
        decision = verify("rejection", rows, draft, numbers, 5)
        assert decision.trials[0].verdict == "rejected"
        assert decision.final is not None
        assert decision.final[:2] == (expected, "corrected")
        assert decision.final[2] == pytest.approx(P[expected])  # the target's own p, not the residual's
        assert rest[expected] > 0


@NAMESPACES
def test_naive_corrects_from_p_itself(namespace):
    rows, draft = rows_of([P, NEXT], namespace), draft_of([1], [Q], namespace)
    numbers = Numbers({(5, "accept"): 0.501, (5, "residual"): 0.6})
    assert verify("naive", rows, draft, numbers, 5).final == (1, "corrected", pytest.approx(0.3))


@NAMESPACES
@pytest.mark.parametrize("rule", ["rejection", "naive"])
def test_p_above_q_is_always_accepted(rule, namespace):
    rows, draft = rows_of([P, NEXT], namespace), draft_of([0], [Q], namespace)
    decision = verify(rule, rows, draft, Numbers({(0, "accept"): 1 - 2**-53, (1, "target"): 0.0}), 0)
    assert decision.trials[0].accept == 1.0
    assert decision.trials[0].verdict == "accepted"


@NAMESPACES
@pytest.mark.parametrize("rule", ["rejection", "naive"])
def test_a_token_the_target_never_gives_is_never_accepted(rule, namespace):
    rows, draft = rows_of([P, NEXT], namespace), draft_of([3], [Q], namespace)
    decision = verify(rule, rows, draft, Numbers({(0, "accept"): 0.0, (0, "residual"): 0.9}), 0)
    assert (decision.trials[0].accept, decision.trials[0].verdict) == (0.0, "rejected")
    assert decision.final is not None
    assert P[decision.final[0]] > 0


@NAMESPACES
@pytest.mark.parametrize(("token", "accepted"), [(0, True), (3, False)])
def test_q_of_zero_divides_nothing(token, accepted, namespace):
    q = [0.0, 0.5, 0.5, 0.0]
    rows, draft = rows_of([P, NEXT], namespace), draft_of([token], [q], namespace)
    numbers = Numbers({(0, "accept"): 0.3, (0, "residual"): 0.5, (1, "target"): 0.5})
    trial = verify("rejection", rows, draft, numbers, 0).trials[0]
    assert trial.q == 0.0
    assert (trial.verdict == "accepted") is accepted


@NAMESPACES
def test_point_mass_is_accepted_with_p_and_zeroed_in_the_residual(namespace):
    rows = rows_of([P, NEXT], namespace)
    accepted = verify("rejection", rows, draft_of([1]), Numbers({(0, "accept"): 0.29, (1, "target"): 0.0}), 0)
    assert accepted.trials[0].q == 1.0
    assert accepted.trials[0].accept == pytest.approx(0.3)
    assert accepted.trials[0].verdict == "accepted"
    for u, expected in ((0.71, 0), (0.72, 2)):  # 0.5 of 0.7
        numbers = Numbers({(0, "accept"): 0.31, (0, "residual"): u})
        assert verify("rejection", rows, draft_of([1]), numbers, 0).final[:2] == (expected, "corrected")


@NAMESPACES
def test_residual_is_p_where_it_sums_to_zero(namespace):
    p = rows_of([P], namespace).p(0)
    assert np.asarray(residual(p, p, 1)) == pytest.approx(P)
    tiny = p * (1 + 1e-6)  # q above p everywhere, by rounding
    assert np.asarray(residual(p, tiny, 1)) == pytest.approx(P)
    certain = rows_of([[0.0, 1.0, 0.0, 0.0]], namespace).p(0)
    assert residual(certain, None, 1).tolist() == [0, 1, 0, 0]


@NAMESPACES
def test_rejected_by_rounding_still_gives_a_token(namespace):
    """Known fault: the residual is all zeros when p equals q, and is divided by its sum."""
    q = [0.5000001, 0.3000001, 0.2000001, 0.0]
    rows, draft = rows_of([P, NEXT], namespace), draft_of([0], [q], namespace)
    decision = verify("rejection", rows, draft, Numbers({(0, "accept"): 1 - 2**-53, (0, "residual"): 0.7}), 0)
    assert decision.trials[0].verdict == "rejected", "the case the test is about"
    assert decision.final == (1, "corrected", pytest.approx(0.3))


@NAMESPACES
@given(
    p=st.lists(st.integers(0, 20), min_size=3, max_size=8).filter(any),
    q=st.lists(st.integers(0, 20), min_size=3, max_size=8).filter(any),
    token=st.integers(0, 2),
)
@settings(deadline=None, derandomize=True, max_examples=50)
def test_residual_is_what_the_paper_says(namespace, p, q, token):
    size = min(len(p), len(q))
    p, q = np.array(p[:size], dtype=float), np.array(q[:size], dtype=float)
    if not p.sum() or not q.sum():
        return
    p, q = p / p.sum(), q / q.sum()
    row = rows_of([p], namespace).p(0)
    rest = np.asarray(residual(row, draft_row(draft_of([token], [q], namespace), 0, row), token), dtype=float)
    expected = np.maximum(0, p - q)
    if expected.sum() < 1e-6:
        return
    assert rest / rest.sum() == pytest.approx(expected / expected.sum(), abs=1e-5)
    # Accepting and correcting together give back p: min(p, q) + (1 - alpha) * residual.
    assert np.minimum(p, q) + (1 - np.minimum(p, q).sum()) * rest / rest.sum() == pytest.approx(p, abs=1e-5)


# -- match, typical, greedy ------------------------------------------------------------------------------


@NAMESPACES
def test_match_draws_y_from_p_and_compares(namespace):
    rows, draft = rows_of([P, NEXT], namespace), draft_of([1], [Q], namespace)
    numbers = Numbers({(5, "target"): 0.6, (6, "target"): 0.99})
    decision = verify("match", rows, draft, numbers, 5)
    trial = decision.trials[0]
    assert (trial.verdict, trial.draw, trial.u) == ("accepted", 1, None)
    assert (trial.p, trial.accept, trial.q) == pytest.approx((0.3, 0.3, 0.6))
    assert decision.final == (3, "bonus", pytest.approx(0.4))
    decision = verify("match", rows, draft, Numbers({(5, "target"): 0.81}), 5)
    assert (decision.trials[0].verdict, decision.trials[0].draw) == ("rejected", 2)
    assert decision.trials[0].accept == pytest.approx(0.3)  # p(x) of the drafted one
    assert decision.final == (2, "corrected", pytest.approx(0.2))


@NAMESPACES
def test_typical_threshold_is_medusas(namespace):
    peaked, flat = [0.94, 0.03, 0.02, 0.01], [0.25] * 4
    below, above = [0.6, 0.3, 0.085, 0.015], [0.6, 0.3, 0.095, 0.005]  # a token just at either side of 0.09
    for p, threshold in ((peaked, 0.09), (flat, 0.3 * 0.25), (below, 0.09), (above, 0.09)):
        expected = min(0.09, 0.3 * math.exp(-entropy(np.array(p))))
        assert expected == pytest.approx(threshold)
        for token in range(4):
            rows, draft = rows_of([p, NEXT], namespace), draft_of([token], [Q], namespace)
            decision = verify("typical", rows, draft, Numbers({(0, "residual"): 0.5, (1, "target"): 0.0}), 0)
            trial = decision.trials[0]
            assert trial.threshold == pytest.approx(expected)
            assert trial.accept == float(p[token] > expected)
            assert trial.verdict == ("accepted" if p[token] > expected else "rejected")
            assert trial.u is None and trial.draw is None
            if trial.verdict == "rejected":  # a draw from p at 0.5
                assert decision.final[:2] == (draw(np.array(p), 0.5), "corrected")


@NAMESPACES
def test_greedy_accepts_the_argmax_and_emits_it(namespace):
    rows = rows_of([P, NEXT], namespace, SamplingParams())
    decision = verify("greedy", rows, draft_of([0]), Numbers({}), 3)
    trial = decision.trials[0]
    assert (trial.verdict, trial.accept, trial.p, trial.q, trial.u) == ("accepted", 1.0, 1.0, 1.0, None)
    assert decision.final == (3, "bonus", 1.0)
    decision = verify("greedy", rows, draft_of([1]), Numbers({}), 3)
    assert (decision.trials[0].verdict, decision.trials[0].accept) == ("rejected", 0.0)
    assert decision.final == (0, "corrected", 1.0)


@NAMESPACES
def test_greedy_margin_is_top1_minus_top2_logit(namespace):
    logits = np.array([[2.0, 5.0, 4.25], [1.0, 0.0, -3.0]], dtype=np.float32)
    logits = torch.from_numpy(logits) if namespace == "torch" else logits
    rows = DecisionRows(logits, SamplingParams())
    draft = draft_of([1])
    drafted, final = Observer("light", FakeTokenizer(3)).entries(
        "greedy", verify("greedy", rows, draft, Numbers({}), 0), rows, draft
    )
    assert drafted[0].margin == pytest.approx(0.75)
    assert final.margin == pytest.approx(1.0)


@NAMESPACES
def test_ties_go_to_the_lowest_id(namespace):
    rows = rows_of([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4]], namespace, SamplingParams())
    assert verify("greedy", rows, draft_of([0]), Numbers({}), 0).final[0] == 1
    assert verify("greedy", rows, draft_of([1]), Numbers({}), 0).trials[0].verdict == "rejected"


@NAMESPACES
@pytest.mark.parametrize("rule", list(RULES))
def test_at_temperature_zero_every_rule_decides_by_the_argmax(rule, namespace):
    rows = rows_of([P, NEXT, P], namespace, SamplingParams())
    any_number = Numbers(
        {(i, purpose): 0.5 for i in range(4) for purpose in ("accept", "residual", "target")}
    )
    right = verify(rule, rows, draft_of([0, 3]), any_number, 0)
    assert [trial.verdict for trial in right.trials] == ["accepted", "accepted"]
    assert right.final == (0, "bonus", 1.0)
    wrong = verify(rule, rows, draft_of([0, 1]), any_number, 0)
    assert [trial.verdict for trial in wrong.trials] == ["accepted", "rejected"]
    assert wrong.final == (3, "corrected", 1.0)


# -- the chain ----------------------------------------------------------------------------------------------


@NAMESPACES
@pytest.mark.parametrize("rule", ["rejection", "match", "typical", "naive"])
def test_after_a_rejection_the_rest_is_ignored_and_costs_no_number(rule, namespace):
    p = [0.0, 1.0, 0.0, 0.0]
    rows = rows_of([p, p, p, p], namespace)
    numbers = Numbers({(i, w): 0.5 for i in range(9, 13) for w in ("accept", "target", "residual")})
    decision = verify(rule, rows, draft_of([1, 2, 1], [Q] * 3, namespace), numbers, 9)
    assert [trial.verdict for trial in decision.trials] == ["accepted", "rejected", "ignored"]
    ignored = decision.trials[2]
    assert (ignored.p, ignored.accept, ignored.u, ignored.draw) == (None, None, None, None)
    assert ignored.q == pytest.approx(0.6)
    assert decision.final == (1, "corrected", pytest.approx(1.0))
    assert all(position < 11 for position, _ in numbers.asked)


@pytest.mark.parametrize("rule", list(RULES))
def test_accepted_eos_ends_the_draft_without_a_final_token(rule):
    sampling = SamplingParams() if rule == "greedy" else SAMPLED
    p = [0.0, 1.0, 0.0]
    numbers = Numbers({(i, w): 0.5 for i in range(4) for w in ("accept", "target", "residual")})
    decision = verify(rule, rows_of([p] * 4, sampling=sampling), draft_of([1, 1, 1]), numbers, 0, {1})
    assert [trial.verdict for trial in decision.trials] == ["accepted", "ignored", "ignored"]
    assert decision.final is None


@pytest.mark.parametrize("rule", list(RULES))
def test_rejected_eos_ends_nothing(rule):
    sampling = SamplingParams() if rule == "greedy" else SAMPLED
    p = [1.0, 0.0, 0.0]
    numbers = Numbers({(i, w): 0.5 for i in range(4) for w in ("accept", "target", "residual")})
    decision = verify(rule, rows_of([p] * 3, sampling=sampling), draft_of([1, 0]), numbers, 0, {1})
    assert [trial.verdict for trial in decision.trials] == ["rejected", "ignored"]
    assert decision.final == (0, "corrected", pytest.approx(1.0))


@NAMESPACES
@pytest.mark.parametrize("rule", list(RULES))
def test_an_empty_draft_is_a_plain_step(rule, namespace):
    sampling = SamplingParams() if rule == "greedy" else SAMPLED
    numbers = Numbers({(4, "target"): 0.55})
    decision = verify(rule, rows_of([P], namespace, sampling), EMPTY_DRAFT, numbers, 4)
    assert decision.trials == []
    expected = (0, "plain", 1.0) if rule == "greedy" else (1, "plain", pytest.approx(0.3))
    assert decision.final == expected


# -- widths and bad rows --------------------------------------------------------------------------------------


@NAMESPACES
def test_a_wider_draft_vocabulary_is_cut_and_a_narrower_one_padded(namespace):
    p = rows_of([P], namespace).p(0)
    wide = draft_row(draft_of([1], [[*Q, 0.0, 0.0]], namespace), 0, p)
    narrow = draft_row(draft_of([1], [[0.4, 0.6]], namespace), 0, p)
    assert np.asarray(wide) == pytest.approx(Q)
    assert np.asarray(narrow) == pytest.approx([0.4, 0.6, 0, 0])
    assert draft_row(draft_of([1]), 0, p) is None
    numbers = Numbers({(0, "accept"): 0.51, (0, "residual"): 0.9})
    rejected = verify(
        "rejection", rows_of([P, P], namespace), draft_of([1], [[0.4, 0.6]], namespace), numbers, 0
    )
    assert rejected.final[0] == 2  # beyond the draft's vocabulary: all of p(2) is in the residual
    other = "torch" if namespace == "numpy" else "numpy"  # the draft may sit in another engine
    mixed = verify("rejection", rows_of([P, P], namespace), draft_of([1], [[0.4, 0.6]], other), numbers, 0)
    assert mixed.final == rejected.final


def test_masked_tokens_are_never_emitted():
    masked = [0.0, 0.5, 0.0, 0.5]
    for u in (0.0, 0.25, 0.75, 1 - 2**-53):
        numbers = Numbers({(0, "accept"): 0.999, (0, "residual"): u, (0, "target"): u, (1, "target"): u})
        for rule in ("rejection", "match", "naive", "typical"):
            for token in range(4):
                decision = verify(
                    rule, rows_of([masked, masked]), draft_of([token], [[0.25] * 4]), numbers, 0
                )
                assert decision.final[0] in (1, 3)
                assert decision.trials[0].verdict == "rejected" or token in (1, 3)


@NAMESPACES
@pytest.mark.parametrize("bad", [[math.nan, 0.0], [math.inf, 0.0], [-math.inf, -math.inf]])
@pytest.mark.parametrize("rule", list(RULES))
def test_a_row_that_is_not_finite_is_an_error_that_names_it(rule, bad, namespace):
    sampling = SamplingParams() if rule == "greedy" else SAMPLED
    logits = np.array([[0.0, -math.inf], bad, [0.0, 0.0]], dtype=np.float32)
    logits = torch.from_numpy(logits) if namespace == "torch" else logits
    numbers = Numbers({(i, w): 0.5 for i in range(4) for w in ("accept", "target", "residual")})
    with pytest.raises(NotFiniteError) as caught:
        verify(rule, DecisionRows(logits, sampling), draft_of([0, 0]), numbers, 0)
    assert caught.value.row == 1


@NAMESPACES
def test_decision_rows_are_the_filtered_distributions(namespace):
    sampling = SamplingParams(temperature=0.5, top_k=2)
    rows = rows_of([P, NEXT], namespace, sampling)
    assert len(rows) == 2
    for index, p in enumerate((P, NEXT)):
        expected = probabilities(safe_log(p), sampling)
        assert np.asarray(rows.p(index)) == pytest.approx(expected, abs=1e-6)
        assert rows.probability(index, 1) == pytest.approx(expected[1], abs=1e-6)
    assert rows.p(0) is rows.p(0)  # computed once


@NAMESPACES
def test_entropy(namespace):
    for p in (P, NEXT, [1.0, 0.0, 0.0, 0.0], [0.25] * 4):
        assert entropy_of(rows_of([p], namespace).p(0)) == pytest.approx(entropy(np.array(p)), abs=1e-6)
