"""PARD over fake sessions: one pass a draft, mask rows that leave nothing behind, q, and its mask token."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.sampling import SamplingParams, draw, probabilities, uniform
from specview.drafting.method import DrafterContext
from specview.drafting.pard import Pard
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError, UsageError
from tests.decoding.toy import (
    FakeEngine,
    TableModel,
)

WIDE, MASK = 6, 6  # the mask token is the draft's own, beyond the target's
PROMPT = [1, 2, 3, 4]


def drafter_of(engine: FakeEngine, width: int = WIDE, max_length: int = 4096, mask: int = MASK) -> Pard:
    length = min(max_length, engine.context_length)
    return Pard(engine.new_session(length), width, length, mask)


def engine_of(seed: int = 0, **more) -> FakeEngine:
    """A draft whose logits depend on all that was written, and on how many masks stand after it."""
    return FakeEngine(TableModel(WIDE + 1, seed=seed, scale=3.0), WIDE + 1, **more)


def rows_of(engine: FakeEngine, context: Sequence[int], count: int, width: int = WIDE) -> list[np.ndarray]:
    """Row j: what the draft says after the context and j mask tokens."""
    return [engine.model([*context, *[MASK] * place])[:width] for place in range(count)]


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_a_draft_is_one_pass_over_mask_tokens(namespace):
    engine = engine_of(namespace=namespace)
    drafter = drafter_of(engine)
    drafter.start(PROMPT, SamplingParams())
    session = drafter._session
    session.log.clear()
    draft = drafter.propose(PROMPT, 4)
    assert session.log == [("forward", 4), ("truncate", 4)]  # the last token and three masks; the masks go
    assert session.tokens == PROMPT
    assert draft.tokens == tuple(int(row.argmax()) for row in rows_of(engine, PROMPT, 4))
    assert draft.q is None
    assert draft.drafter == "pard"


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_each_token_has_the_q_of_its_own_row(namespace):
    engine = engine_of(namespace=namespace)
    drafter = drafter_of(engine)
    sampling = SamplingParams(0.7, top_k=4, seed=9)
    drafter.start(PROMPT, sampling)
    context = [*PROMPT, 5, 0]
    draft = drafter.propose(context, 5)
    for place, row in enumerate(rows_of(engine, context, 5)):
        assert np.asarray(draft.q[place]) == pytest.approx(probabilities(row, sampling), abs=1e-6)
        assert np.asarray(draft.raw_logits[place]) == pytest.approx(row)
        assert draft.tokens[place] == draw(draft.q[place], uniform(9, 2, "draft", place))


@given(seed=st.integers(0, 10**6), rounds=st.integers(1, 10))
@settings(deadline=None, derandomize=True, max_examples=50)
def test_the_cache_is_always_the_context(seed, rounds):
    """Whatever was accepted, the masks never stay, and each draft is that of a fresh session."""
    rng = random.Random(seed)
    engine = engine_of(seed)
    drafter = drafter_of(engine)
    context = [rng.randrange(WIDE) for _ in range(rng.randint(1, 10))]
    drafter.start(context, SamplingParams())
    for _ in range(rounds):
        budget = rng.randint(0, 5)
        draft = drafter.propose(context, budget)
        assert draft.tokens == tuple(int(row.argmax()) for row in rows_of(engine, context, budget))
        if budget:
            assert drafter._session.tokens == context
        context += draft.tokens[: rng.randint(0, len(draft))]
        context.append(rng.randrange(WIDE))


# -- bounds and trouble ----------------------------------------------------------------------------------------


def test_it_keeps_within_the_drafts_context():
    engine = engine_of(context_length=8)
    drafter = drafter_of(engine)
    drafter.start(PROMPT, SamplingParams())
    assert len(drafter.propose(PROMPT, 9)) == 4
    assert not drafter.propose([*PROMPT, 0, 1, 2, 3], 3)
    assert len(drafter.propose([*PROMPT, 0, 1, 2], 3)) == 1


def make(options: dict, engine: FakeEngine | None, target: FakeEngine | None = None) -> Pard:
    info = METHODS["pard"]
    context = DrafterContext(info.resolve(options), 64, WIDE, draft_engine=engine, target=target)
    return info.make(context)


@pytest.mark.parametrize("key", ["pard_token", "ptd_token_id"])
def test_the_mask_token_is_the_configs_unless_given(key):
    engine = engine_of()
    engine.config = {key: 6}
    assert make({}, engine)._mask_token == 6
    assert make({"pard_token": 2}, engine)._mask_token == 2
    del engine.config
    assert make({"pard_token": 0}, engine)._mask_token == 0


@pytest.mark.parametrize(
    ("options", "config", "words"),
    [({}, {}, "names no mask token"), ({}, {"pard_token": 99}, "has 7 tokens"), ({"pard_token": 7}, {}, "has 7 tokens")],
)  # fmt: skip
def test_no_mask_token_is_one_clear_line(options, config, words):
    engine = engine_of()
    engine.config = config
    with pytest.raises(UsageError, match=words) as caught:
        make(options, engine)
    assert "\n" not in str(caught.value)
    assert not engine.sessions


def test_it_needs_a_draft_of_the_targets_tokenizer():
    with pytest.raises(SpecviewError, match="needs a draft model"):
        make({}, None)
    draft, target = engine_of(), FakeEngine(TableModel(9), 9)
    with pytest.raises(SpecviewError, match="another tokenizer"):
        make({"pard_token": 6}, draft, target)
    target.tokenizer = draft.tokenizer
    assert make({"pard_token": 6}, draft, target).name == "pard"
