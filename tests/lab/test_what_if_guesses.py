"""What a drafter says of the tokens that it caught up with: recorded free of passes, right, and only when looked at."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from specview.decoding.ledger import Guess
from specview.decoding.loop import Sequence, decode
from specview.decoding.observation import Observer
from specview.decoding.sampling import SamplingParams, draw, probabilities, softmax, uniform
from specview.drafting.policies import POLICIES
from specview.files.schema import SchemaError, round_from_json, round_to_json
from specview.settings.options import resolve
from tests.decoding.toy import FakeEngine, FakeTokenizer, TableModel, constant, draft_model, run_decode
from tests.drafting import eagle_toy

VOCAB = 6
PROMPT = [1, 2, 3, 1, 2]
NEAR = TableModel(VOCAB, noise=0.3)


def decoded(sampling, rule, *, level="light", policy=None, k=3, namespace="numpy", count=80):
    target = FakeEngine(TableModel(VOCAB), VOCAB, namespace=namespace)
    draft = FakeEngine(NEAR, VOCAB, namespace=namespace)
    drafter = draft_model(draft, VOCAB)
    output, rounds, *_ = run_decode(
        target, PROMPT, rule=rule, sampling=sampling, max_tokens=count, drafter=drafter, policy=policy, k=k,
        observer=Observer(level, FakeTokenizer(VOCAB)),
    )  # fmt: skip
    return output, rounds, draft


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("sampling", "rule"),
    [(SamplingParams(), "greedy"), (SamplingParams(temperature=0.8, seed=5), "match"),
     (SamplingParams(temperature=1.3, top_k=3, seed=9), "rejection")],
)  # fmt: skip
def test_a_guess_is_what_the_draft_would_have_drafted_there(sampling, rule, namespace):
    output, rounds, _ = decoded(sampling, rule, namespace=namespace, k=2, count=200)
    position, seen, told = 0, 0, set()
    for round_ in rounds:
        for back, guess in enumerate(reversed(round_.guesses), start=1):
            at = position - back
            row = NEAR([*PROMPT, *output[:at]])
            if sampling.greedy:
                expected = int(np.argmax(row))
            else:
                expected = draw(probabilities(row, sampling), uniform(sampling.seed, at, "draft"))
            assert guess.id == expected
            assert guess.confidence == pytest.approx(float(softmax(row)[expected]), rel=1e-5)
            told.add(at)
            seen += 1
        told |= {position + place for place, token in enumerate(round_.drafted) if token.verdict != "ignored"}
        position += len(round_.emitted)
    assert seen > 5
    # Nothing is missing but what no further pass caught up with.
    assert set(range(len(output))) - told <= {len(output) - 1, len(output) - 2}


def test_pauses_of_a_policy_leave_no_gap():
    policy = POLICIES["off-below"].make(resolve(POLICIES["off-below"].options, {"threshold": 0.9}, "off-below"), None)
    policy.start(3)
    output, rounds, _ = decoded(SamplingParams(), "greedy", policy=policy)
    assert any(not round_.k for round_ in rounds[:-1])
    told, position = set(), 0
    for round_ in rounds:
        told |= {position - back for back in range(1, len(round_.guesses) + 1)}
        told |= {position + place for place, token in enumerate(round_.drafted) if token.verdict != "ignored"}
        if round_.k:
            assert told >= set(range(position))
        position += len(round_.emitted)


def test_nobody_looking_costs_nothing_and_looking_costs_no_pass():
    output, unseen, draft = decoded(SamplingParams(), "greedy", level="off")
    assert all(not round_.guesses for round_ in unseen)
    same, seen, watched = decoded(SamplingParams(), "greedy", level="full")
    assert any(round_.guesses for round_ in seen)
    assert (same, watched.forwards) == (output, draft.forwards)
    bare = [replace(round_, guesses=()).emitted for round_ in seen]
    assert bare == [round_.emitted for round_ in unseen]


def test_a_head_tells_its_first_guess_at_every_token_that_it_caught_up_with():
    target = eagle_toy.FeatureEngine(TableModel(16), 16)
    head = eagle_toy.eagle_head(target, seed=3)
    # The random head is never right: every position is the start of a draft. One that pauses must say the same later.
    _, rounds = run_eagle(target, eagle_toy.make("eagle", head, target), constant(1))
    begun = firsts(rounds)
    options = resolve(POLICIES["off-below"].options, {"retry": 4}, "off-below")
    pausing = POLICIES["off-below"].make(options, None)
    pausing.start(2)
    _, rounds = run_eagle(target, eagle_toy.make("eagle", head, target), pausing)
    told, position = {}, 0
    for round_ in rounds:
        told |= {position - back: guess.id for back, guess in enumerate(reversed(round_.guesses), start=1)}
        position += len(round_.emitted)
    common = told.keys() & begun.keys()
    assert len(common) > 5
    assert all(told[at] == begun[at] for at in common)


def run_eagle(target, drafter, policy):
    session = target.new_session(target.context_length)
    drafter.start(PROMPT, SamplingParams())
    session.prefill(PROMPT[:-1], None, drafter.prompt_layers, drafter.learn_prompt)
    sequence = Sequence(list(PROMPT))
    rounds = list(decode(session, sequence, rule="greedy", sampling=SamplingParams(), max_tokens=40, drafter=drafter,
                         policy=policy, observer=Observer("light", FakeTokenizer(16))))  # fmt: skip
    return sequence.output, rounds


def firsts(rounds):
    """Output position -> the first token drafted there."""
    found, position = {}, 0
    for round_ in rounds:
        if round_.k:
            found[position] = round_.drafted[0].id
        position += len(round_.emitted)
    return found


def test_guesses_survive_the_file_and_bad_ones_are_named():
    _, rounds, _ = decoded(SamplingParams(), "greedy")
    told = next(round_ for round_ in rounds if round_.guesses)
    value = json.loads(json.dumps(round_to_json(1, told)))
    _, back = round_from_json(value)
    assert [guess.id for guess in back.guesses] == [guess.id for guess in told.guesses]
    assert back.guesses[0].confidence == pytest.approx(told.guesses[0].confidence, rel=1e-6)
    value["guesses"] = [[1, None]]
    assert round_from_json(value)[1].guesses == (Guess(1),)
    del value["guesses"]
    assert round_from_json(value)[1].guesses == ()  # a file of an older specview
    for bad, says in (([[1]], "length 2"), (3, "guesses"), ([["x", 0.5]], r"guesses\[0\]\[0\]"), ([[1, "x"]], r"\[1\]: .*got str")):
        with pytest.raises(SchemaError, match=says):
            round_from_json({**value, "guesses": bad})
