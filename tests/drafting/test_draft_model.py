"""The draft-model drafter over a fake session: its cache, its q, its widths and limits."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.sampling import SamplingParams, draw, probabilities, uniform
from specview.drafting.draft_model import DraftModel
from specview.drafting.lanes import checked_lane
from specview.drafting.method import DrafterContext
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError
from tests.decoding.toy import FakeEngine, TableModel, draft_model, plain_reference, run_decode

VOCAB = 6
PROMPT = [1, 2, 3, 4]


class BufferEngine(FakeEngine):
    """An engine that reuses its logit buffer, as llama.cpp does."""

    def wrap(self, rows):
        if not hasattr(self, "buffer"):
            self.buffer = np.zeros((64, self.vocab_size), dtype=np.float32)
        self.buffer[:] = -1e9
        self.buffer[: len(rows)] = rows
        return super().wrap(self.buffer[: len(rows)])


def session_of(drafter: DraftModel):
    return drafter._session


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
@pytest.mark.parametrize(
    "sampling", [SamplingParams(1.0, seed=3), SamplingParams(0.6, top_k=3, top_p=0.95, seed=3)]
)
def test_q_is_what_each_token_was_sampled_from(sampling, namespace):
    engine = BufferEngine(TableModel(VOCAB), VOCAB, namespace=namespace)
    drafter = draft_model(engine, VOCAB)
    drafter.start(PROMPT, sampling)
    context = [*PROMPT, 5, 0]  # two tokens of output
    draft = drafter.propose(context, 5)
    assert (len(draft), len(draft.q), len(draft.raw_logits)) == (5, 5, 5)
    assert draft.drafter == "draft-model"
    for step, token in enumerate(draft.tokens):
        logits = engine.model([*context, *draft.tokens[:step]])
        expected = probabilities(logits, sampling)
        assert np.asarray(draft.q[step]) == pytest.approx(expected, abs=1e-6)
        assert np.asarray(draft.raw_logits[step]) == pytest.approx(logits)
        assert token == draw(draft.q[step], uniform(3, 2, "draft", step))
        assert float(draft.q[step][token]) > 0


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_greedy_drafts_are_point_masses_of_the_argmax(namespace):
    engine = BufferEngine(TableModel(VOCAB), VOCAB, namespace=namespace)
    drafter = draft_model(engine, VOCAB)
    drafter.start(PROMPT, SamplingParams())
    draft = drafter.propose(PROMPT, 6)
    assert draft.q is None
    assert draft.confidences == ()
    prefix = list(PROMPT)
    for token in draft.tokens:
        assert token == int(np.argmax(engine.model(prefix)))
        prefix.append(token)


@given(seed=st.integers(0, 10**6), rounds=st.integers(1, 12))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_the_cache_is_always_the_context(seed, rounds):
    """After every kind of round: nothing drafted, all rejected, some accepted, all accepted, a bonus."""
    rng = random.Random(seed)
    engine = FakeEngine(TableModel(VOCAB), VOCAB)
    drafter = draft_model(engine, VOCAB)
    sampling = SamplingParams(1.0, seed=seed)
    context = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 12))]
    drafter.start(context, sampling)
    session = session_of(drafter)
    assert session.tokens == context[:-1]
    for _ in range(rounds):
        budget = rng.randint(0, 5)
        draft = drafter.propose(context, budget)
        assert len(draft) == budget
        if budget:
            # All that was fed: the context and the draft but its last token.
            assert session.tokens == [*context, *draft.tokens[:-1]]
            expected = [
                probabilities(engine.model([*context, *draft.tokens[:i]]), sampling) for i in range(budget)
            ]
            assert all(np.array_equal(a, b) for a, b in zip(draft.q, expected, strict=True))
        context += draft.tokens[: rng.randint(0, len(draft))]
        context.append(rng.randrange(VOCAB))


def test_rollback_feeds_only_what_is_new():
    engine = FakeEngine(TableModel(VOCAB), VOCAB)
    drafter = draft_model(engine, VOCAB)
    drafter.start(PROMPT, SamplingParams())
    session = session_of(drafter)
    first = drafter.propose(PROMPT, 3).tokens
    session.log.clear()
    wrong = (first[1] + 1) % VOCAB
    drafter.propose([*PROMPT, first[0], wrong], 2)  # the second was rejected
    # The cache keeps the prompt and the accepted token, and is fed the correction.
    assert session.log == [("truncate", 5), ("forward", 1), ("forward", 1)]
    second = drafter.propose([*PROMPT, first[0], wrong], 2).tokens
    session.log.clear()
    drafter.propose([*PROMPT, first[0], wrong, *second, 0], 1)  # all accepted, and a bonus
    assert session.log == [("forward", 2)]  # the last drafted one was never fed, and the bonus


def test_a_wider_draft_never_drafts_what_the_target_has_not():
    """Known fault: vocabularies padded differently (152064 against 151936) crash (transformers 45307)."""

    def model(prefix):
        return np.array([0.0, 0.5, 0.25, 1.0, 50.0, 60.0], dtype=np.float32)

    engine = FakeEngine(model, 6)
    for sampling in (SamplingParams(), SamplingParams(1.0)):
        drafter = DraftModel(engine.new_session(100), 4, 100)
        drafter.start([0], sampling)
        draft = drafter.propose([0], 20)
        assert set(draft.tokens) <= {0, 1, 2, 3}
        if draft.q is not None:
            for row in draft.q:
                assert row.shape == (4,)
                assert row == pytest.approx(probabilities(model([0])[:4], sampling))


def test_a_narrower_draft_serves_a_wider_target():
    target = FakeEngine(TableModel(9), 9)
    draft = FakeEngine(TableModel(5), 5)
    output, rounds, _, _ = run_decode(
        target,
        [1, 2],
        rule="rejection",
        sampling=SamplingParams(1.0, seed=1),
        max_tokens=60,
        drafter=draft_model(draft, 9),
    )
    # Here the draft takes ids that it has not as they are; one that cannot is told its own number of ids.
    assert len(output) == 60
    assert any(token >= 5 for token in output)
    assert all(token.id < 5 for round_ in rounds for token in round_.drafted)


def strict(size: int, **more) -> FakeEngine:
    """An engine whose embedding has `size` rows, as a real one's."""
    table = TableModel(size, **more)

    def model(prefix):
        if max(prefix) >= size:
            raise IndexError("index out of range in self")
        return table(prefix)

    return FakeEngine(model, size)


@pytest.mark.parametrize("method", ["draft-model", "pard"])
@pytest.mark.parametrize("rule", ["greedy", "match", "rejection"])
def test_a_text_with_ids_that_the_draft_lacks_is_drafted_for(method, rule):
    """A ChatML fine-tune has <|im_start|>, its base model's small sibling has not; the tokenizer is the same."""
    sampling = SamplingParams(0.0 if rule == "greedy" else 1.0, seed=4)
    prompt = [20, 1, 2, 21, 3, 4]
    target, draft = FakeEngine(TableModel(22, scale=3.0), 22), strict(20, scale=3.0)
    options = METHODS[method].resolve({"pard_token": 19} if method == "pard" else {})
    drafter = METHODS[method].make(DrafterContext(options, 200, 22, draft, target, rule=rule))
    drafts = []
    propose = drafter.propose
    drafter.propose = lambda context, *more: drafts.append((list(context), propose(context, *more))) or drafts[-1][1]
    output, *_ = run_decode(target, prompt, rule=rule, sampling=sampling, max_tokens=80, drafter=drafter)
    if rule != "rejection":
        assert output == plain_reference(target.model, prompt, sampling, 80)
    assert max(output) >= 20, "one of them was written too, and drafting went on"
    assert all(token < 20 for _, made in drafts for token in made.tokens)
    if method == "draft-model":
        for context, made in drafts:
            known = [token if token < 20 else 0 for token in context]
            for step, token in enumerate(made.tokens):
                row = draft.model([*known, *made.tokens[:step]])
                if sampling.greedy:
                    assert token == int(np.argmax(row))
                else:  # q is what was drawn from, whatever was read
                    assert made.q[step] == pytest.approx(probabilities(row, sampling))
                    assert token == draw(made.q[step], uniform(4, len(context) - len(prompt), "draft", step))


def test_a_real_draft_with_fewer_ids(tmp_path):
    """transformers: two more tokens of the target stand in the prompt."""
    torch = pytest.importorskip("torch")
    hf = pytest.importorskip("transformers")
    from tokenizers import AddedToken, Tokenizer

    from specview.engines import transformers_engine
    from specview.models.pair_check import check_pair
    from specview.racing.lane import Lane
    from specview.settings.run import LaneSettings, RunSettings
    from tests.engines.transformers_tiny import VOCAB as SMALL
    from tests.engines.transformers_tiny import save_model, tiny

    small = tiny("llama")
    folders = [save_model(tmp_path / "draft", small), tmp_path / "target"]
    torch.manual_seed(8)
    wide = hf.LlamaForCausalLM(hf.LlamaConfig(**{**small.config.to_dict(), "vocab_size": SMALL + 2}))
    save_model(folders[1], wide)
    file = str(folders[1] / "tokenizer.json")
    tokenizer = Tokenizer.from_file(file)
    tokenizer.add_special_tokens([AddedToken("<|im_end|>"), AddedToken("<|im_start|>")])
    tokenizer.save(file)
    draft, target = map(transformers_engine.load, folders)
    try:
        report = check_pair(target, draft)
        assert report.mode == "same"
        assert any(note.startswith("The draft lacks 2 of the target's tokens") for note in report.notes)
        prompt = [SMALL, 70, 71, SMALL + 1, 72, 73]
        outputs = []
        for settings in (LaneSettings(), checked_lane(LaneSettings("draft-model", k=3), SamplingParams())):
            lane = Lane(settings, RunSettings(observe="off"), prompt, target, draft)
            lane.prefill(20)
            while lane.step() is not None:
                pass
            lane.close()
            outputs.append(lane.sequence.output)
        assert outputs[0] == outputs[1]
        assert any(round_.k for round_ in lane.record.rounds)
    finally:
        target.close(), draft.close()


def test_beyond_its_own_context_it_drafts_nothing():
    engine = FakeEngine(TableModel(VOCAB), VOCAB, context_length=8)
    drafter = draft_model(engine, VOCAB)
    drafter.start(PROMPT, SamplingParams())
    context = list(PROMPT)
    lengths, full = [], []
    while len(context) < 12:
        draft = drafter.propose(context, 3)
        lengths.append(len(draft))
        full.append(drafter.full_context)
        context.append(0)
        assert len(session_of(drafter).tokens) <= 8
    assert lengths == [3, 3, 2, 1, 0, 0, 0, 0]
    assert full == [0, 0, 0, 0, 8, 8, 8, 8]


def test_a_prompt_beyond_its_own_context_drafts_nothing_ever():
    engine = FakeEngine(TableModel(VOCAB), VOCAB, context_length=8)
    target = FakeEngine(TableModel(VOCAB), VOCAB)
    prompt = [i % VOCAB for i in range(12)]
    output, rounds, _, _ = run_decode(
        target,
        prompt,
        rule="greedy",
        sampling=SamplingParams(),
        max_tokens=6,
        drafter=draft_model(engine, VOCAB),
    )
    assert len(output) == 6
    assert all(round_.k == 0 and round_.full_context == 8 for round_ in rounds)
    assert engine.sessions[0].tokens == []


def test_made_by_the_registry_over_the_lanes_draft_engine():
    method = METHODS["draft-model"]
    assert method.needs_draft_model
    engine = FakeEngine(TableModel(VOCAB), VOCAB, context_length=50)
    drafter = method.make(DrafterContext({}, 1000, 4, engine))
    assert engine.sessions[0].max_length == 50
    drafter.start([1, 2], SamplingParams())
    assert all(token < 4 for token in drafter.propose([1, 2], 20).tokens)
    drafter.close()
    assert engine.sessions[0].closed
    with pytest.raises(SpecviewError, match="needs a draft model"):
        method.make(DrafterContext({}, 1000, 4))


def test_plain_drafts_nothing():
    assert METHODS["plain"].make is None
    assert not METHODS["plain"].drafts
    assert next(iter(METHODS)) == "plain"
