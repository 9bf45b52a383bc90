"""The exit scan against a fake target whose agreement and costs are known, on a fake clock."""

from __future__ import annotations

import json

import numpy as np
import pytest

from specview.decoding import theory
from specview.decoding.sampling import SamplingParams
from specview.errors import SpecviewError, Stopped, UsageError
from specview.experiments.exit_scan import ConfirmedRun, ExitFigures, ExitScan, between, scan_exits
from specview.racing.pool import ModelPool, target_key
from specview.settings.run import RunSettings
from tests.decoding.toy import FakeClock, FakeEngine, FakeSession, TableModel, plain_reference

VOCAB = 6
PROMPT = [1, 2, 3, 4, 2]
LAYERS = 6
PASS, ROW, LAYER = 1.0, 0.125, 0.0625  # seconds: a pass, each row of it, a layer of one drafted row


class LayeredSession(FakeSession):
    """Every layer exits with a model of its own; a taken-up row saves the time its layers took."""

    def forward_exit(self, tokens, layer):
        self.layer = layer
        self.engine.exit_model = self.engine.exits[layer]
        self.engine.exit_steps.append(layer)
        return super().forward_exit(tokens, layer)

    def forward(self, tokens, parents=None, features=()):
        before = self.taken_up
        forward = super().forward(tokens, parents, features)
        self.engine.spend(-LAYER * self.layer * (self.taken_up - before) if self.taken_up > before else 0.0)
        return forward


class LayeredEngine(FakeEngine):
    exit_layers = LAYERS
    exit_problem = None
    exit_cost = LAYER

    def __init__(self, model, exits, **given):
        self.exits, self.exit_steps = exits, []
        given = {"pass_cost": PASS, "row_cost": ROW, **given}
        super().__init__(model, VOCAB, clock=FakeClock(), **given)

    def new_session(self, max_length, branches=1):
        assert max_length <= self.context_length
        session = LayeredSession(self, max_length)
        self.sessions.append(session)
        return session


def wrong_at(model, places, start):
    """The target, but wrong after so many tokens beyond `start` as `places` says."""

    def row(prefix):
        logits = np.array(model(prefix))
        if len(prefix) - start in places:
            logits[int(np.argmax(logits))] = -50.0
        return logits

    return row


def engine_of(wrong, model=None, **given):
    """An engine whose exit after layer l is wrong at places wrong[l] of the text, and right elsewhere."""
    model = model or TableModel(VOCAB)
    exits = {layer: wrong_at(model, wrong.get(layer, set()), len(PROMPT)) for layer in range(1, LAYERS)}
    return LayeredEngine(model, exits, **given)


TEXT = "".join(chr(ord("a") + token) for token in PROMPT)


def scan(engine, tokens=20, k=4, **given):
    settings, pool = RunSettings(prompt=TEXT, chat=False), ModelPool()
    pool._engines[target_key(settings)] = engine
    return scan_exits(settings, tokens, k, pool, clock=engine.clock, **given)


WRONG = {1: set(range(20)), 2: set(range(0, 20, 2)), 3: {1, 6, 11}, 4: {7}, 5: set()}


def test_every_figure_is_what_the_engine_was_made_to_do():
    engine = engine_of(WRONG)
    found = scan(engine)
    plain_s = PASS + ROW
    assert found.plain_step_s == pytest.approx(plain_s)
    assert (found.layers, found.prompt_tokens, found.tokens) == (LAYERS, len(PROMPT), 20)
    assert [one.layer for one in found.exits] == [1, 2, 3, 4, 5]
    for one in found.exits:
        assert one.judged == 20
        assert one.agreed == 20 - len(WRONG[one.layer])
        assert one.acceptance_rate == pytest.approx(1 - len(WRONG[one.layer]) / 20)
        assert one.draft_cost == pytest.approx(LAYER * one.layer / plain_s)
        # Linear in the layer, so that what is put between the measured ones is exact.
        v = [(PASS + ROW * (1 + k) - LAYER * one.layer * k) / plain_s for k in range(1, 5)]
        assert one.verify_cost == pytest.approx(v)
        predicted = [theory.speedup(one.acceptance_rate, k, one.draft_cost, v[k - 1]) for k in range(1, 5)]
        assert one.predicted == pytest.approx(predicted)
        assert one.predicted_speedup == pytest.approx(max(predicted))
        assert one.predicted[one.best_k - 1] == max(one.predicted)
    assert all(session.closed for session in engine.sessions)


@pytest.mark.parametrize(
    ("layer", "seconds"), [(1, 4.0), (2, 3.75), (4, 3.25), (5, 3.0), (6, 3.5), (8, 4.5), (9, 5.0)]
)
def test_layers_between_those_measured_are_linear(layer, seconds):
    assert between({1: {2: 4.0}, 5: {2: 3.0}, 9: {2: 5.0}}, layer, 2) == pytest.approx(seconds)


def test_the_best_three_are_run_for_real_and_the_fastest_is_marked():
    found = scan(engine_of(WRONG))
    confirmed = [one for one in found.exits if one.confirmed is not None]
    by_prediction = sorted(found.exits, key=lambda one: -one.predicted_speedup)
    assert {one.layer for one in confirmed} == {one.layer for one in by_prediction[:3]} == {3, 4, 5}
    perfect = found.exits[4].confirmed
    assert perfect.acceptance_rate == 1.0
    assert len(perfect.speedups) == 2
    assert found.best.worth == max(one.confirmed.speedup for one in confirmed)
    assert found.pays
    assert found.sentence.startswith(f"Best: leave after layer {found.best.layer} of 6 with k ")
    assert f"{found.best.confirmed.speedup:.2f} times plain decoding (measured)" in found.sentence
    for one in confirmed:
        # The run's own figures agree with the scan's: the same text, the same exit.
        assert one.confirmed.k == one.best_k
        assert one.confirmed.speedup == pytest.approx(one.predicted_speedup, rel=0.25)


def test_exits_that_never_agree_leave_plain_the_winner():
    nothing = {layer: set(range(50)) for layer in range(1, LAYERS)}
    found = scan(engine_of(nothing))
    assert [one.agreed for one in found.exits] == [0] * 5
    assert not found.pays
    assert found.best.best_k == 1, "the shortest draft loses least"
    assert found.best.confirmed.acceptance_rate == 0.0
    assert found.sentence.startswith("Plain decoding wins: the best exit, layer 1 of 6 with k 1, runs at 0.")


def test_an_end_of_text_shortens_the_scan():
    model = TableModel(VOCAB)
    text = plain_reference(model, PROMPT, SamplingParams(), 20)
    eos = next(token for token in text if text.index(token) >= 2)
    engine = engine_of({}, eos_ids=[eos])
    found = scan(engine, k=8)
    assert found.tokens == text.index(eos) + 1 < 20
    assert {one.agreed for one in found.exits} == {found.tokens}
    assert len(found.exits[0].verify_cost) == 8


@pytest.mark.parametrize("room", [1, 5])
def test_a_short_context_shortens_the_scan(room):
    engine = engine_of({}, context_length=len(PROMPT) + room)
    found = scan(engine)
    assert found.tokens == room
    assert len(found.exits[0].predicted) == min(room, 4)


def test_a_long_text_goes_through_in_chunks():
    wrong = {3: {63, 64, 65, 130}}
    found = scan(engine_of(wrong), tokens=150, confirm=0)
    assert [one.agreed for one in found.exits] == [150, 150, 146, 150, 150]
    assert all(one.confirmed is None for one in found.exits) and "(predicted)" in found.sentence
    assert found.best.predicted_speedup == max(one.predicted_speedup for one in found.exits)


@pytest.mark.parametrize("at", [0, 30, 150])
def test_a_stop_is_heeded_and_frees_the_session(at):
    engine = engine_of(WRONG)
    asked = [0]

    def should_stop():
        asked[0] += 1
        return asked[0] > at

    with pytest.raises(Stopped):
        scan(engine, should_stop=should_stop)
    assert asked[0] == at + 1
    assert all(session.closed for session in engine.sessions)


def test_progress_names_every_stage():
    told = []
    scan(engine_of(WRONG), on_progress=lambda text, fraction: told.append((text, fraction)))
    texts = list(dict.fromkeys(text for text, _ in told))
    assert texts[:4] == ["Prefill", "The target's own text", "Acceptance by exit", "Costs, interleaved"]
    for run in (1, 2):
        assert f"Exits 5, 4, 3 beside plain decoding, run {run} of 2" in texts
    assert all(0 <= fraction <= 1 for _, fraction in told)


def test_costs_are_medians_of_interleaved_repeats():
    """Every exit is timed once before any is timed twice; a hiccup does not move the median."""
    engine = engine_of({})
    slow = [0]
    spend = engine.spend

    def hiccup(seconds):
        slow[0] += 1
        spend(seconds + (50.0 if slow[0] % 23 == 0 else 0.0))

    engine.spend = hiccup
    found = scan(engine, confirm=0, repeats=5)
    assert found.plain_step_s == pytest.approx(PASS + ROW)
    for one in found.exits:
        assert one.draft_cost == pytest.approx(LAYER * one.layer / (PASS + ROW))
    steps = engine_of({})
    scan(steps, confirm=0, repeats=3)
    timed = steps.exit_steps
    sweeps = sum(timed[place : place + 5] == [1, 2, 3, 4, 5] for place in range(len(timed)))
    assert sweeps == 1 + 3, "acceptance once, costs three times, exit by exit"


def test_a_busy_spell_slows_plain_and_exits_alike():
    """Real runs are interleaved: a machine ten times slower for a while leaves the speedups about as they are."""
    quiet = scan(engine_of(WRONG), tokens=400)
    engine = engine_of(WRONG)
    spend, racing, spent = engine.spend, [False], [0]

    def spell(seconds):
        spent[0] += racing[0]
        spend(seconds * (10 if 400 < spent[0] < 800 else 1))

    engine.spend = spell
    busy = scan(engine, tokens=400, on_progress=lambda text, _: racing.__setitem__(0, "beside plain" in text))
    assert spent[0] > 2000, "the spell lies within the first run"
    for one, other in zip(quiet.exits, busy.exits, strict=True):
        if one.confirmed is not None:
            assert other.confirmed.speedups[0] == pytest.approx(one.confirmed.speedups[0], rel=0.2)


def test_the_document_is_json():
    found = scan(engine_of(WRONG))
    again = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    best = found.best
    assert again["best"] == {"layer": best.layer, "k": best.best_k, "speedup": best.worth, "pays": True}
    assert again["exits"][1]["acceptance_rate"] == 0.5
    assert again["exits"][1]["verify_cost"] == list(found.exits[1].verify_cost)
    assert [one["layer"] for one in again["exits"]] == [1, 2, 3, 4, 5]
    assert again["exits"][0]["confirmed"] is None
    assert len(again["exits"][4]["confirmed"]["speedups"]) == 2


@pytest.mark.parametrize(
    ("engine", "given", "line"),
    [
        ({}, {"tokens": 0}, r"tokens is 0\. Use 1 to 4096"),
        ({}, {"tokens": 5000}, r"tokens is 5000"),
        ({}, {"k": 0}, r"k is 0\. Use 1 to 64"),
        ({}, {"k": 65}, r"k is 65"),
        ({"rollback_problem": "it is recurrent."}, {}, r"^fake has no exits to scan: it is recurrent\.$"),
        ({"context_length": len(PROMPT)}, {}, "the prompt has 5 tokens and fake takes 5"),
        (None, {}, r"^fake has no exits to scan: its graph has no exits\.$"),
    ],
)
def test_what_cannot_be_scanned_is_one_line(engine, given, line):
    made = engine_of({}, **engine or {})
    if engine is None:
        made.exit_layers, made.exit_problem = 0, "its graph has no exits"
    with pytest.raises(UsageError if given else SpecviewError, match=line):
        scan(made, **given)


def test_an_exit_that_is_never_right_is_not_the_best_whatever_a_noisy_clock_says():
    lucky = ExitFigures(1, 0, 20, 0.1, (1.0,), (0.9,), ConfirmedRun(1, (1.3, 1.1), 0.0, 1.0))
    mixed = ExitFigures(5, 15, 20, 0.3, (1.0,), (1.2,), ConfirmedRun(1, (0.98, 1.3), 0.75, 1.7))
    sure = ExitFigures(5, 15, 20, 0.3, (1.0,), (1.2,), ConfirmedRun(1, (1.05, 1.2), 0.75, 1.7))
    assert not ExitScan("m", 8, 9, 20, 0.1, (lucky,)).pays
    scan = ExitScan("m", 8, 9, 20, 0.1, (lucky, mixed))
    assert scan.best is mixed and not scan.pays and "Plain decoding wins" in scan.sentence
    assert ExitScan("m", 8, 9, 20, 0.1, (lucky, sure)).pays
