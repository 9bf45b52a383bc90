"""The early-exit drafter: exact output, honest q, the shared cache taken up, its limits and errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.sampling import SamplingParams
from specview.drafting import early_exit
from specview.drafting.early_exit import OPTIONS, EarlyExit
from specview.drafting.method import DrafterContext
from specview.errors import SpecviewError, UsageError
from specview.settings.options import resolve
from specview.settings.run import LaneSettings
from tests.decoding.toy import (
    FakeEngine,
    TableModel,
    constant,
    plain_reference,
    run_decode,
)
from tests.racing.world import World

PROMPT = [1, 2, 3, 4]
WIDE = 6
LAYERS = 8


def engine_of(seed=0, noise=0.4, layers=LAYERS, **given) -> FakeEngine:
    """A target whose exit is like it, but not the same."""
    engine = FakeEngine(TableModel(WIDE, seed=seed), WIDE, **given)
    engine.exit_layers = layers
    engine.exit_model = TableModel(WIDE, seed=seed, noise=noise)
    return engine


def lane_of(engine, layer=2, max_length=4096):
    session = engine.new_session(min(max_length, engine.context_length))
    return session, EarlyExit(session, layer, session.max_length)


@given(
    seed=st.integers(0, 99),
    k=st.integers(1, 6),
    noise=st.sampled_from([0.0, 0.3, 1.0]),
    rule=st.sampled_from(["greedy", "match"]),
)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_output_equals_plain_decoding_and_the_cache_is_taken_up(seed, k, noise, rule):
    """Token for token; every fed token's first layers are run once, those of a rejected one included."""
    sampling = SamplingParams(0.0 if rule == "greedy" else 1.0, seed=seed)
    engine = engine_of(seed, noise)
    session, drafter = lane_of(engine)
    output, rounds, _, _ = run_decode(
        engine, PROMPT, rule=rule, sampling=sampling, max_tokens=30, drafter=drafter, k=k, session=session
    )
    assert output == plain_reference(engine.model, PROMPT, sampling, 30)
    assert session.taken_up == sum(
        round_.k for round_ in rounds
    )  # the last token, and all drafts but the last
    assert session.taken_up > 0
    if noise == 0 and rule == "greedy":
        assert all(round_.accepted == round_.k for round_ in rounds), "a target that drafts for itself"
    assert {round_.drafter for round_ in rounds if round_.k} == {"early-exit"}


def test_a_reused_logit_buffer_does_not_change_q():
    engine = engine_of()
    session, drafter = lane_of(engine)
    buffer = np.zeros((1, WIDE), dtype=np.float32)
    fed = session.forward_exit

    def into_buffer(tokens, layer):
        buffer[:] = fed(tokens, layer)
        return buffer

    session.forward_exit = into_buffer
    session.prefill(PROMPT[:-1])
    drafter.start(PROMPT, SamplingParams())
    draft = drafter.propose(PROMPT, 3)
    for step in range(3):
        expected = engine.exit_model([*PROMPT, *draft.tokens[:step]])
        assert np.array_equal(draft.raw_logits[step], expected)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_exit_that_is_not_finite_is_one_line(temperature):
    engine = engine_of()
    engine.exit_model = lambda prefix: np.full(WIDE, np.nan, dtype=np.float32)
    session, drafter = lane_of(engine, layer=5)
    session.prefill(PROMPT[:-1])
    drafter.start(PROMPT, SamplingParams(temperature))
    with pytest.raises(
        SpecviewError, match="the target, left after layer 5, gave logits that are not finite"
    ):
        drafter.propose(PROMPT, 2)


# -- declarations and errors ------------------------------------------------------------------------------


def make(engine, **given):
    chosen = resolve(OPTIONS, given, "early-exit")
    session = engine.new_session(64)
    return early_exit.make(DrafterContext(chosen, 64, WIDE, target=engine, session=session))


@pytest.mark.parametrize(("layers", "layer"), [(2, 1), (3, 1), (4, 1), (8, 2), (30, 8), (32, 8), (80, 20)])
def test_the_default_is_a_quarter_of_the_layers(layers, layer):
    assert make(engine_of(layers=layers)).layer == layer


@pytest.mark.parametrize("layer", [1, 7])
def test_the_exit_layer_is_the_user_s(layer):
    assert make(engine_of(), exit_layer=layer).layer == layer


@pytest.mark.parametrize("layer", [8, 99])
def test_a_layer_out_of_range_is_one_line(layer):
    with pytest.raises(UsageError, match=rf"exit_layer is {layer}, and fake has 8 layers\. Use 1 to 7, or 0"):
        make(engine_of(), exit_layer=layer)
    with pytest.raises(UsageError, match=r"exit_layer is -1\. Use 0 or more"):
        make(engine_of(), exit_layer=-1)


def test_an_engine_that_cannot_is_told_with_its_reason():
    engine = engine_of(layers=0)
    engine.exit_problem = "its graph has no exits"
    assert early_exit.problem(engine) == "its graph has no exits"
    with pytest.raises(SpecviewError, match="early-exit cannot draft here: its graph has no exits"):
        make(engine)
    assert early_exit.problem(engine_of(layers=2)) is None
    assert "one layer" in early_exit.problem(engine_of(layers=1))


# -- in a race --------------------------------------------------------------------------------------------


@pytest.fixture
def registered(monkeypatch):
    """The method as the registry declares it."""
    from specview.drafting.method import MethodInfo
    from specview.drafting.registry import METHODS

    info = MethodInfo(
        "early-exit", "early exit", "", early_exit.make, OPTIONS, family="self", problem=early_exit.problem
    )
    monkeypatch.setitem(METHODS, "early-exit", info)


@pytest.mark.parametrize("problem", [None, "its graph has no exits"])
def test_a_lane_of_a_race(registered, monkeypatch, problem):
    """The lane drafts with its own session, or says why not while the others go on."""
    world = World(monkeypatch)
    make_target = world.make_target

    def with_exits(**given):
        engine = make_target(**given)
        engine.exit_layers = 0 if problem else LAYERS
        engine.exit_problem = problem
        engine.exit_model = TableModel(WIDE, order=3, noise=0.3)
        return engine

    world.make_target = with_exits
    race, _ = world.run(LaneSettings("early-exit", k=2, options={"exit_layer": 3}), max_tokens=30)
    plain, lane = race.records
    assert plain.end == "limit"
    if problem:
        assert lane.end == "error"
        assert lane.error == f"early-exit cannot draft for fake-target: {problem}"
    else:
        assert lane.token_ids == plain.token_ids
        assert sum(round_.accepted for round_ in lane.rounds) > 0
        assert lane.settings["option_exit_layer"] == 3


# -- the bundled target -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundled(model_pool):
    from specview.models import bundled
    from specview.models.loading import engine_available
    from specview.racing.pool import target_key
    from specview.settings.run import RunSettings

    if engine_available("transformers") is not None or bundled.find_target() is None:
        pytest.skip("the bundled target is not installed")
    return model_pool.get(target_key(RunSettings(engine="transformers", check_mode=True, threads=1)))


@pytest.mark.real_model
@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "match"])
def test_the_bundled_target_gives_what_plain_decoding_gives(bundled, temperature):
    """Check mode; a late exit, so that drafts are accepted, and an early one, so that they are not."""
    from specview.decoding.loop import Sequence, decode

    prompt = bundled.tokenizer.encode_raw("one two three four five six\none two three four five six\none two")
    sampling = SamplingParams(temperature, seed=2)
    outputs, accepted = [], []
    for layer in (None, 29, 3):
        session = bundled.new_session(len(prompt) + 16)
        session.prefill(prompt[:-1])
        made = None
        if layer is not None:
            chosen = resolve(OPTIONS, {"exit_layer": layer}, "early-exit")
            made = early_exit.make(
                DrafterContext(chosen, len(prompt) + 16, bundled.vocab_size, target=bundled, session=session)
            )
            made.start(prompt, sampling)
        sequence = Sequence(list(prompt))
        rounds = list(
            decode(
                session,
                sequence,
                rule="match" if temperature else "greedy",
                sampling=sampling,
                max_tokens=10,
                drafter=made,
                policy=constant(3),
                eos_ids=bundled.eos_ids,
            )
        )
        session.close()
        outputs.append(sequence.output)
        accepted.append(sum(round_.accepted for round_ in rounds))
    assert outputs[1] == outputs[2] == outputs[0]
    assert accepted[1] > accepted[2]


def test_llama_cpp_says_why_not():
    pytest.importorskip("llama_cpp")
    from specview.engines.llama_cpp_engine import LlamaCppEngine

    reason = early_exit.problem(LlamaCppEngine)
    assert reason
    assert "llama.cpp" in reason
