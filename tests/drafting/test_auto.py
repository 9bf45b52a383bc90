"""`auto`: the member and the length that are predicted to be fastest, by what each has earned on this text."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.costs import Costs
from specview.decoding.ledger import Draft, DraftedToken, FinalToken, Round
from specview.decoding.sampling import SamplingParams
from specview.drafting.acceptance import LOOKED_AT, Matches
from specview.drafting.auto import Auto, shortened
from specview.drafting.registry import METHODS
from tests.decoding.toy import (
    FakeClock,
    FakeEngine,
    Named,
    run_decode,
)

VOCAB = 6
GREEDY = SamplingParams()
FLAT = Costs({1: 1.0, 2: 1.01, 65: 1.6})
STEEP = Costs({1: 1.0, 2: 4.0, 3: 8.0, 65: 200.0})


def periodic(prefix):
    """A target that counts 0..5 over and over."""
    row = np.zeros(VOCAB, dtype=np.float32)
    row[(prefix[-1] + 1) % VOCAB] = 9.0
    return row


def right(context, budget):
    return [(context[-1] + 1 + i) % VOCAB for i in range(budget)]


def wrong(context, budget):
    return [context[-1]] * budget


def decode_with(members, copying, costs=FLAT, tokens=60, k=8, row_cost=0.01):
    clock = FakeClock()
    target = FakeEngine(periodic, VOCAB, clock=clock, pass_cost=1.0 - row_cost, row_cost=row_cost)
    auto = Auto(members, copying, costs.copy())
    output, rounds, _, _ = run_decode(
        target, [0], rule="greedy", sampling=GREEDY, max_tokens=tokens, drafter=auto, k=k, clock=clock
    )
    return auto, output, rounds


def test_the_member_that_is_right_drafts_and_drafts_long():
    members = [Named("wrong", wrong), Named("right", right)]
    _, output, rounds = decode_with(members, [True, True])
    assert output == [(i + 1) % VOCAB for i in range(60)]
    later = rounds[3:-1]
    assert {round_.drafter for round_ in later} == {"right"}
    assert all(round_.k == round_.accepted == 8 for round_ in later)


def test_members_that_copy_learn_from_rounds_that_others_drafted():
    """`late` is wrong up to token 24 and right after it: it takes over without ever being tried in vain."""
    members = [
        Named("early", lambda c, b: right(c, b) if len(c) < 24 else wrong(c, b)),
        Named("late", lambda c, b: wrong(c, b) if len(c) < 24 else right(c, b)),
    ]
    auto, _, rounds = decode_with(members, [True, True], tokens=100)
    by = {name: [r for r in rounds if r.drafter == name] for name in ("early", "late")}
    assert sum(r.accepted < r.k for r in rounds) <= 4
    assert by["late"][-1].index > by["early"][-1].index
    assert auto.standings[0].acceptance.run <= 1


def test_nothing_is_drafted_where_plain_decoding_is_faster():
    members = [Named("wrong", wrong), Named("half", lambda c, b: right(c, 1) if len(c) % 2 else wrong(c, 1))]
    _, _, rounds = decode_with(members, [True, True], STEEP)
    assert sum(round_.k for round_ in rounds) == 0


def test_a_model_that_earns_nothing_is_retried_ever_less_often():
    model = Named("model", wrong)
    _, _, rounds = decode_with([model], [False], Costs({1: 1.0, 2: 1.3, 9: 3.4}), tokens=200, row_cost=0.3)
    tried = [round_.index for round_ in rounds if round_.k]
    gaps = [b - a for a, b in zip(tried, tried[1:], strict=False)]
    assert 3 <= len(tried) < 40
    assert max(gaps) >= 16
    assert max(gaps[len(gaps) // 2 :]) == max(gaps)


def test_what_could_not_pay_here_were_it_always_right_is_never_tried():
    model = Named("model", right)
    _, _, rounds = decode_with([model], [False], Costs({1: 1.0, 2: 2.1, 3: 3.2, 9: 9.8}), tokens=200, row_cost=1.0)
    assert sum(round_.k for round_ in rounds) == 0


def test_a_better_model_behind_a_good_one_is_found():
    members = [Named("fair", lambda c, b: (right(c, 3) + wrong(c, b))[:b]), Named("good", right)]
    _, _, rounds = decode_with(members, [False, False], FLAT, tokens=300)
    assert {round_.drafter for round_ in rounds[-6:-1]} == {"good"}


def test_a_model_that_comes_good_later_is_found():
    model = Named("model", lambda c, b: right(c, b) if len(c) > 60 else wrong(c, b))
    _, _, rounds = decode_with([model], [False], FLAT, tokens=300)
    assert all(round_.k == round_.accepted > 2 for round_ in rounds[-6:-1])


def test_what_was_not_timed_yet_is_no_free_lunch():
    """A model's first draft is short: its steps are taken to cost something before they were timed."""
    model = Named("model", right)
    auto = Auto([model], [False], Costs({1: 1.0, 65: 1.0}))
    auto.start([0], GREEDY)
    assert len(auto.propose([0], 48)) <= 8


def test_the_longest_draft_is_the_budget():
    _, _, rounds = decode_with([Named("right", right)], [True], k=3)
    assert max(round_.k for round_ in rounds) == 3


def test_the_choice_is_the_same_whatever_the_model_would_sample():
    """Member and length asked for depend on the text so far alone, not on the draws of q."""
    asked = set()
    for seed in range(12):
        drafts = Named("model", lambda c, b, seed=seed: [(seed + i) % VOCAB for i in range(b)])
        auto = Auto([Named("copy", lambda c, b: [2, 2]), drafts], [True, False], FLAT.copy())
        auto.start([1, 2, 1], GREEDY)
        found = auto.propose([1, 2, 1], 6)
        asked.add((found.drafter, tuple(drafts.budgets)))
    assert len(asked) == 1


def test_a_model_that_says_how_sure_it_is_is_stopped_where_it_is_not():
    class Sure(Named):
        def propose(self, context, budget, proceed=None):
            tokens = right(context, budget)
            sure = []
            for place in range(budget):
                sure.append(0.99 if place < 3 else 0.02)
                if not proceed(sure[-1]):
                    break
            return Draft(tuple(tokens[: len(sure)]), confidences=tuple(sure), drafter=self.name)

    auto = Auto([Sure("model", right)], [False], Costs({1: 1.0, 65: 3.0}))
    auto.start([0], GREEDY)
    context = [0]
    lengths = []
    for index in range(30):
        draft = auto.propose(context, 16)
        lengths.append(len(draft))
        held = min(3, len(draft))
        drafted = tuple(
            DraftedToken(t, "accepted" if i < held else "rejected" if i == held else "ignored", confidence=c)
            for i, (t, c) in enumerate(zip(draft.tokens, draft.confidences, strict=True))
        )
        auto.observe(
            Round(
                index,
                1.0,
                0.0,
                1.0,
                0.0,
                drafter=draft.drafter,
                drafted=drafted,
                final=FinalToken((context[-1] + held + 1) % VOCAB, "bonus"),
            ),
            {},
        )
        context += right(context, held + 1)
    assert max(lengths[10:]) <= 5
    assert sum(length >= 3 for length in lengths) >= 20


@given(st.lists(st.integers(0, 2), min_size=2, max_size=40), st.integers(0, 2), st.integers(1, 40))
@settings(deadline=None, derandomize=True, max_examples=300)
def test_a_match_is_the_longest_that_the_token_follows(context, token, first_part):
    matches = Matches()
    matches.extend(context[:first_part])  # extending by parts is the same
    matches.extend(context)
    places = [i for i in range(len(context) - 1) if context[i] == context[-1] and context[i + 1] == token]
    best = 0
    for place in places[-LOOKED_AT:]:
        length = 1
        while length <= place and length < 24 and context[place - length] == context[len(context) - 1 - length]:
            length += 1
        best = max(best, length)
    assert matches.length(context, token) == best


def test_a_match_costs_the_same_in_a_long_text():
    """No more places are looked at than LOOKED_AT, and no more tokens than 24 at each."""
    matches = Matches()
    context = [7, 8] * 5000
    matches.extend(context)

    class Counting(list):
        reads = 0

        def __getitem__(self, index):
            Counting.reads += 1
            return super().__getitem__(index)

    assert matches.length(Counting(context), 7) == 24
    assert Counting.reads < LOOKED_AT * 24 * 2 + 10


def test_shortening_keeps_everything_in_step():
    q = [np.eye(4)[i] for i in range(3)]
    draft = Draft((1, 2, 3), (-1, -1, 0), q, (0.9, 0.8, 0.7), "tree", q)
    short = shortened(draft, 2)
    assert (short.tokens, short.parents, short.confidences, short.drafter) == ((1, 2), (-1, -1), (0.9, 0.8), "tree")
    assert len(short.q) == len(short.raw_logits) == 2
    assert shortened(draft, 3, lambda confidence: confidence > 0.85).tokens == (1, 2)
    assert shortened(Draft((1, 2)), 5) == Draft((1, 2))


def test_a_new_run_begins_with_nothing_earned():
    auto = Auto([Named("a", right)], [True], FLAT.copy())
    auto.start([0], GREEDY)
    fresh = auto.standings[0].acceptance.rates()[:]
    auto.propose([0], 4)
    auto.propose([0, 1, 2, 3, 4], 4)
    assert auto.standings[0].acceptance.rates() != fresh
    auto.start([0], GREEDY)
    assert auto.standings[0].acceptance.rates() == fresh


def test_the_method_asks_for_a_calibration_and_drafts_long():
    method = METHODS["auto"]
    assert method.needs_costs
    assert method.combines
    assert method.drafted(method.resolve({})).levels >= 16
    assert set(method.members({})) <= set(METHODS)
