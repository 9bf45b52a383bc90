"""Lookahead in races: stop, going on, the bundled target."""

from __future__ import annotations

import pytest

from specview.decoding.loop import Sequence as TokenSequence
from specview.decoding.loop import decode
from specview.decoding.sampling import SamplingParams
from specview.drafting import lookahead
from specview.drafting.lookahead import OPTIONS, window_grid
from specview.drafting.method import DrafterContext
from specview.settings.options import resolve
from specview.settings.run import LaneSettings
from tests.decoding.toy import (
    constant,
)
from tests.racing.world import World, last_ends


def options(**given):
    return resolve(OPTIONS, given, "lookahead")


# -- in a race --------------------------------------------------------------------------------------------


@pytest.fixture
def registered(monkeypatch):
    """The method as the registry declares it."""
    from specview.drafting.method import MethodInfo
    from specview.drafting.registry import METHODS

    info = MethodInfo(
        "lookahead",
        "lookahead",
        "",
        lookahead.make,
        OPTIONS,
        family="self",
        shape=lookahead.shape_of,
    )
    monkeypatch.setitem(METHODS, "lookahead", info)


def test_a_lane_of_a_race(registered, monkeypatch):
    """The lane makes room for the window, warms its passes up and gets the plain lane's text."""
    world = World(monkeypatch)
    race, events = world.run(LaneSettings("lookahead", options={"window_size": 4, "level": 4}), max_tokens=60)
    plain, lane = race.records
    assert lane.end == plain.end == "limit"
    assert lane.token_ids == plain.token_ids
    assert lane.settings["k"] == 3
    assert lane.settings["option_window_size"] == 4
    assert sum(round_.accepted for round_ in lane.rounds) > 0
    assert max(round_.rows for round_ in lane.rounds) > 8
    assert last_ends(events)[1].metrics.tokens_per_target_pass > 1


def test_a_lane_whose_window_the_context_cannot_take_fails_alone(registered, monkeypatch):
    world = World(monkeypatch, context_length=60)
    race, _ = world.run(LaneSettings("lookahead", options={"window_size": 100}), max_tokens=8)
    plain, lane = race.records
    assert (plain.end, lane.end) == ("limit", "error")
    assert lane.error.startswith("lookahead's window of W 100, N ")
    assert "this sequence holds 60" in lane.error


# -- the bundled target -----------------------------------------------------------------------------------


@pytest.mark.real_model
@pytest.mark.parametrize(("engine_name", "temperature"), [("transformers", 0.0), ("llama.cpp", 1.0)], indirect=["engine_name"])
def test_the_bundled_target_gives_what_plain_decoding_gives(engine_name, model_pool, temperature):
    """Check mode, both engines (the other samplings are in racing/test_equality_bundled.py): text that repeats, so that guesses are accepted, and the window rides."""
    from specview.racing.pool import target_key
    from specview.settings.run import RunSettings

    engine = model_pool.get(target_key(RunSettings(engine=engine_name, check_mode=True, threads=1)))
    prompt = engine.tokenizer.encode_raw("one two three four five six\none two three four five six\none two")
    sampling = SamplingParams(temperature, seed=2)
    rule = "match" if temperature else "greedy"
    chosen = options(window_size=2, level=4, guess_set_size=2)
    made, outputs, rounds = None, [], []
    for _ in range(2):
        session = engine.new_session(len(prompt) + 40, lookahead.shape_of(chosen).leaves)
        if outputs:
            made = lookahead.make(
                DrafterContext(chosen, len(prompt) + 40, engine.vocab_size, target=engine, session=session)
            )
            made.start(prompt, sampling)
        session.prefill(prompt[:-1])
        policy = constant(3)
        sequence = TokenSequence(list(prompt))
        rounds = list(
            decode(
                session,
                sequence,
                rule=rule,
                sampling=sampling,
                max_tokens=10,
                drafter=made,
                policy=policy,
                eos_ids=engine.eos_ids,
            )
        )
        session.close()
        outputs.append(sequence.output)
    assert outputs[0] == outputs[1]
    assert sum(round_.accepted for round_ in rounds) > 0
    assert all(round_.riders for round_ in rounds[:2])
    assert [len(row) for row in window_grid(rounds[0].riders)] == [3]
