"""Draft trees under the rules: exact by enumeration, by sampling through the loop, and the ledger's bookkeeping."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.ledger import Draft, depths
from specview.decoding.loop import Sequence, decode
from specview.decoding.metrics import fold
from specview.decoding.observation import Observer
from specview.decoding.sampling import SamplingParams
from specview.decoding.verification import DecisionRows, verify
from specview.drafting.base import BaseDrafter
from tests.decoding.statistics import chi_square_p, sampled_variation, variation_bound
from tests.decoding.toy import (
    BOS,
    DRAFT,
    LENGTH,
    TARGET,
    VOCAB,
    FakeEngine,
    FakeTokenizer,
    TableModel,
    chain_distribution,
    constant,
    plain_reference,
    run_decode,
    safe_log,
    toy_logits,
)

SAMPLED = SamplingParams(temperature=1.0)
EXACT = chain_distribution(TARGET)
HONEST = 1e-4


def never(position: int, purpose: str, index: int = 0) -> float:
    """Numbers that refuse every trial which is not certain."""
    return 1 - 2**-53 if purpose == "accept" else 0.5


def outcome_distribution(p: np.ndarray, q: np.ndarray | None, tokens, siblings) -> np.ndarray:
    """The distribution of the token that follows, given which siblings were drafted: from verify's own figures."""
    rows = DecisionRows(safe_log(np.array([p] * (len(tokens) + 1))), SAMPLED)
    draft = Draft(
        tokens=tuple(tokens),
        parents=(-1,) * len(tokens),
        q=None if q is None else [q] * len(tokens),
        siblings=siblings,
    )
    decision = verify("rejection", rows, draft, never, 0)
    found, left = np.zeros(len(p)), 1.0
    for trial in decision.trials:
        if trial.verdict == "ignored":
            break
        found[trial.id] += left * trial.accept
        left *= 1 - trial.accept
        rest = trial.residual
    if left > 0 and rest is not None:
        found += left * rest / rest.sum()
    return found


@st.composite
def distributions(draw, size: int = 4):
    weights = draw(st.lists(st.sampled_from([0.0, 1.0, 2.0, 5.0, 30.0]), min_size=size, max_size=size))
    if not sum(weights):
        weights[draw(st.integers(0, size - 1))] = 1.0
    return np.array(weights) / sum(weights)


@given(p=distributions(), q=distributions(), count=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_siblings_drawn_independently_leave_the_target_distribution(p, q, count):
    total = np.zeros(4)
    for tokens in product(range(4), repeat=count):
        chance = float(np.prod(q[list(tokens)]))
        if chance:
            total += chance * outcome_distribution(p, q, tokens, "independent")
    assert total == pytest.approx(p, abs=1e-6)


@given(p=distributions(), q=distributions(), count=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_siblings_drawn_without_replacement_leave_the_target_distribution(p, q, count):
    count = min(count, int((q > 0).sum()))
    total = np.zeros(4)
    for tokens in permutations(range(4), count):
        chance, left = 1.0, 1.0
        for token in tokens:
            chance *= q[token] / left
            left -= q[token]
            if not chance:
                break
        if chance:
            total += chance * outcome_distribution(p, q, tokens, "without-replacement")
    assert total == pytest.approx(p, abs=1e-5)


@given(p=distributions(), tokens=st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_point_mass_siblings_leave_the_target_distribution(p, tokens):
    assert outcome_distribution(p, None, tokens, "point-mass") == pytest.approx(p, abs=1e-6)


def test_siblings_without_replacement_judged_as_independent_are_caught_by_the_enumeration():
    p, q = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.6, 0.2, 0.1, 0.1])
    total = np.zeros(4)
    for tokens in permutations(range(4), 2):
        chance = q[tokens[0]] * q[tokens[1]] / (1 - q[tokens[0]])
        total += chance * outcome_distribution(p, q, tokens, "independent")
    assert np.abs(total - p).max() > 0.01


# -- through the loop -----------------------------------------------------------------------------------


class TreeDrafter(BaseDrafter):
    """Trees of depth up to the budget, two or three children a node, over the toy's draft table."""

    name = "tree"

    def __init__(self, kind: str, seed: int, rows: np.ndarray = DRAFT, width: int = 2) -> None:
        self.kind, self.rows, self.width = kind, rows, width
        self.random = np.random.default_rng([seed, 77])

    def propose(self, context, budget, proceed=None):
        tokens, parents, q = [], [], []
        level = [(-1, context[-1])]
        for _ in range(min(budget, 2)):
            following = []
            for node, last in level:
                row = self.rows[last]
                if self.kind == "point-mass":
                    chosen = [(last + 1) % len(row), int(row.argmax())][: self.width]
                else:
                    chosen = self.random.choice(
                        len(row), size=self.width, p=row, replace=self.kind == "independent"
                    )
                for token in chosen:
                    tokens.append(int(token))
                    parents.append(node)
                    q.append(row)
                    following.append((len(tokens) - 1, int(token)))
            level = following
        return Draft(
            tokens=tuple(tokens),
            parents=tuple(parents),
            q=None if self.kind == "point-mass" else q,
            siblings=self.kind,
            drafter=self.name,
        )


def sampled_outcomes(rule: str, kind: str, seeds: range) -> Counter:
    target = FakeEngine(toy_logits(TARGET), VOCAB)
    outcomes: Counter = Counter()
    for seed in seeds:
        params = SamplingParams(temperature=1.0, seed=seed)
        sequence = Sequence([BOS])
        steps = decode(
            target.new_session(64), sequence, rule=rule, sampling=params, max_tokens=LENGTH,
            drafter=TreeDrafter(kind, seed), policy=constant(2),
        )  # fmt: skip
        for _ in steps:
            pass
        outcomes[tuple(sequence.output)] += 1
        target.sessions.clear()
    return outcomes


@pytest.mark.parametrize("kind", ["point-mass", "independent", "without-replacement"])
def test_rejection_is_exact_on_trees(kind):
    """`match` gives plain decoding's tokens, below."""
    outcomes = sampled_outcomes("rejection", kind, range(2500))
    assert chi_square_p(outcomes, EXACT) > HONEST
    assert sampled_variation(outcomes, EXACT) < variation_bound(EXACT, 2500)


@pytest.mark.parametrize(("rule", "seeds"), [("typical", 1000), ("naive", 2500)])
def test_lossy_rules_are_measurably_lossy_on_trees(rule, seeds):
    assert chi_square_p(sampled_outcomes(rule, "independent", range(seeds)), EXACT) < 1e-6


@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["point-mass", "independent", "without-replacement"]),
    width=st.integers(1, 3),
    k=st.integers(1, 4),
    count=st.integers(1, 17),
    eos=st.booleans(),
    rule=st.sampled_from(["greedy", "match"]),
)
@settings(max_examples=80, deadline=None)
def test_a_tree_lane_gives_what_plain_gives(seed, kind, width, k, count, eos, rule):
    vocab = 5
    model = TableModel(vocab, order=2, seed=seed)
    sampling = SamplingParams(temperature=0.0 if rule == "greedy" else 1.0, seed=seed)
    ends = {2} if eos else ()
    target = FakeEngine(model, vocab, eos_ids=ends)
    rows = np.exp(model.table[:vocab]) / np.exp(model.table[:vocab]).sum(-1, keepdims=True)
    drafter = TreeDrafter(kind, seed, rows, width)
    output, rounds, end, _ = run_decode(
        target, [0, 1], rule=rule, sampling=sampling, max_tokens=count, drafter=drafter, k=k,
        observer=Observer("full", FakeTokenizer(vocab)),
    )  # fmt: skip
    expected = plain_reference(model, [0, 1], sampling, count)
    if eos and 2 in expected:
        expected = expected[: expected.index(2) + 1]
    assert output == expected
    assert end == ("eos" if eos and expected[-1] == 2 else "limit")
    for round_ in rounds:
        check_tree_round(round_, FakeTokenizer(vocab))
    figures = fold(rounds, plain_step_s=0.01)
    assert figures.judged == sum(round_.judged for round_ in rounds)
    assert figures.expected_tokens is None or not any(round_.parents for round_ in rounds)
    depth = max((max(depths(round_.parents)) + 1 for round_ in rounds if round_.parents), default=0)
    assert len(figures.position_acceptance) == depth


def check_tree_round(round_, tokenizer) -> None:
    """The accepted nodes are a path, every tried sibling stands beside it, and texts are each node's own."""
    parents = round_.parents or ()
    at, final_row = -1, False
    tried = [index for index, token in enumerate(round_.drafted) if token.verdict != "ignored"]
    for index in tried:
        assert parents[index] == at or (parents[index] == -1 and at == -1)
        if round_.drafted[index].verdict == "accepted":
            at = index
    assert round_.emitted == (
        *(token.id for token in round_.drafted if token.verdict == "accepted"),
        *((round_.final.id,) if round_.final else ()),
    )
    for token in round_.drafted:
        assert token.text == tokenizer.token_text(token.id)
        if token.verdict != "ignored":
            assert token.accept is not None and token.p is not None and token.p_top
    if round_.final is not None and round_.drafted:
        tried_last = [index for index in tried if parents[index] == at]
        assert round_.final.kind == ("corrected" if tried_last else "bonus")
        final_row = True
    assert final_row or round_.final is None or not round_.drafted


def test_texts_of_rejected_branches_follow_their_own_path():
    class Joiner:
        """A detokenizer whose texts show what stood before."""

        def __init__(self):
            self.seen: list[int] = []

        def add(self, token):
            self.seen.append(token)
            return "".join(map(str, self.seen[-2:]))

        def peek(self, tokens):
            seen, texts = list(self.seen), []
            for token in tokens:
                texts.append(self.add(token))
            self.seen = seen
            return texts

        def flush(self):
            return ""

    tokenizer = FakeTokenizer(9)
    observer = Observer("light", tokenizer)
    observer.detokenizer = Joiner()
    observer.detokenizer.add(8)
    draft = Draft(tokens=(1, 2, 3, 4, 5), parents=(-1, -1, 1, 1, 0))
    logits = np.full((6, 9), -9.0, dtype=np.float32)
    for row, best in enumerate((2, 0, 4, 0, 7, 0)):
        logits[row, best] = 0.0
    rows = DecisionRows(logits, SamplingParams())
    decision = verify("greedy", rows, draft, never, 0)
    assert decision.path == [1, 3]
    assert decision.final[0] == 7
    drafted, final = observer.entries("greedy", decision, rows, draft)
    assert [token.text for token in drafted] == ["81", "82", "23", "24", "15"]
    assert final.text == "47"


def test_riders_ride_and_come_back_to_the_drafter():
    class Riding(BaseDrafter):
        name = "riding"
        seen: list = []

        def propose(self, context, budget, proceed=None):
            return Draft(tokens=(1,), riders=(2, 3, 1), rider_parents=(-1, 0, -1), drafter="riding")

        def observe(self, round_, features):
            if round_.k:  # the last token of a run is a plain round
                self.seen.append((round_, features["riders"]))

    model = TableModel(4, seed=3)
    target = FakeEngine(model, 4)
    drafter = Riding()
    output, rounds, _, session = run_decode(
        target, [0], rule="greedy", sampling=SamplingParams(), max_tokens=6, drafter=drafter, k=1,
        observer=Observer("light", FakeTokenizer(4)),
    )  # fmt: skip
    assert output == plain_reference(model, [0], SamplingParams(), 6)
    context = [0]
    for round_, rows in drafter.seen:
        for row, branch in zip(rows, ([2], [2, 3], [1]), strict=True):
            assert row == pytest.approx(model(context + branch))
        assert [(r.id, r.text, r.parent) for r in round_.riders] == [(2, "c", -1), (3, "d", 0), (1, "b", -1)]
        assert round_.rows == 5 and round_.k == 1
        context += round_.emitted
    assert set(session.passes) <= {5, 1}


def test_a_parent_must_come_before_its_child():
    rows = DecisionRows(np.zeros((3, 4), dtype=np.float32), SamplingParams())
    with pytest.raises(ValueError, match="parent"):
        verify("greedy", rows, Draft(tokens=(1, 2), parents=(1, -1)), never, 0)


def test_sibling_numbers_differ_and_repeat():
    first = sampled_outcomes("rejection", "independent", range(5))
    assert first == sampled_outcomes("rejection", "independent", range(5))
    sampling = replace(SAMPLED, seed=1)
    assert sampling.seed == 1
