"""P-EAGLE: all drafts of one pass against a forward without a cache; its mask rows leave nothing behind."""

from __future__ import annotations

import numpy as np
import pytest

from specview.decoding.sampling import SamplingParams
from specview.drafting.cascade import Cascade
from specview.drafting.registry import METHODS
from tests.decoding.toy import TableModel, constant, plain_reference
from tests.drafting.eagle_toy import FeatureEngine, NaiveHead, Watched, eagle3_head, log_softmax, make, run
from tests.drafting.test_eagle import Guesses

WIDE = 9
PROMPT = [1, 2, 3, 1, 2, 4, 8, 0, 5, 1, 2, 3]
IDS = (0, 2, 3, 5, 6, 8)
SWITCHES = [{}, {"norm_before_residual": True, "layers": 2}, {"fc_norm": True, "own_embedding": True}]


def engine(namespace="numpy", **more) -> FeatureEngine:
    return FeatureEngine(TableModel(WIDE), WIDE, namespace=namespace, **more)


def greedy(naive, context, count):
    return tuple(naive.ids[int(row.argmax())] for row in naive.parallel(context, count))


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
@pytest.mark.parametrize("switches", SWITCHES)
def test_every_draft_is_that_of_a_forward_over_the_whole_context(switches, namespace):
    target = engine(namespace)
    head = eagle3_head(target, IDS, seed=2, mask_token_id=7, **switches)
    naive, lane = NaiveHead(head, target), Watched(make("p-eagle", head, target))
    output, rounds, _, _ = run(target, PROMPT, lane, max_tokens=50, k=4)
    assert output == plain_reference(target.model, PROMPT, SamplingParams(), 50)
    assert {0, 1} <= {round_.accepted for round_ in rounds}
    for context, budget, draft in lane.drafts:
        assert draft.tokens == greedy(naive, context, budget)
        assert draft.parents is None
        assert draft.q is None
    assert {len(draft) for _, _, draft in lane.drafts} >= {4}


@pytest.mark.parametrize("tree", [False, True])
def test_the_head_follows_rounds_that_another_member_drafted(tree):
    target = engine()
    head = eagle3_head(target, IDS, mask_token_id=7)
    naive, own = NaiveHead(head, target), Watched(make("p-eagle", head, target))
    output, rounds, _, _ = run(target, PROMPT, Cascade([Guesses(target, tree), own], [None, 3]), max_tokens=40, k=4)
    assert output == plain_reference(target.model, PROMPT, SamplingParams(), 40)
    assert {round_.drafter for round_ in rounds} >= {"guesses", "p-eagle"}
    for context, budget, draft in own.drafts:
        assert draft.tokens == greedy(naive, context, budget)


def test_sampled_tokens_have_the_distribution_of_their_own_rows():
    """q of a row does not depend on the tokens drafted before it."""
    target = engine()
    head = eagle3_head(target, IDS, mask_token_id=7)
    naive, lane = NaiveHead(head, target), Watched(make("p-eagle", head, target))
    sampling = SamplingParams(temperature=1.5, seed=1)
    run(target, PROMPT, lane, rule="rejection", sampling=sampling, max_tokens=25, k=3)
    for context, budget, draft in lane.drafts:
        for row, q, token in zip(naive.parallel(context, budget), draft.q, draft.tokens, strict=True):
            expected = np.zeros(WIDE)
            expected[list(IDS)] = np.exp(log_softmax(row / 1.5))
            assert q.numpy() == pytest.approx(expected, abs=1e-5)
            assert expected[token] > 0


def test_drafting_twice_gives_the_same_and_leaves_nothing():
    """The second time no row of the context is new: only mask rows are fed."""
    target = engine()
    head = eagle3_head(target, IDS, mask_token_id=7)
    drafter = make("p-eagle", head, target)
    output, _, _, _ = run(target, PROMPT, drafter, max_tokens=5, policy=constant(0))
    context = PROMPT + output
    naive = NaiveHead(head, target)
    for count in (3, 1, 4, 2, 1):
        assert drafter.propose(context, count).tokens == greedy(naive, context, count)


def test_its_options_are_those_of_every_head():
    info = METHODS["p-eagle"]
    assert {"head", "aux_ids", "norm_before_residual", "weights"} == {option.name for option in info.options}
    assert info.drafted({}).leaves == 1
