"""Concurrency: passes timed right, figures by their definitions, crossings where the formula puts them."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding import theory
from specview.errors import SpecviewError, Stopped, UsageError
from specview.lab.acceptance import Acceptance, lane_acceptance, stated_acceptance, trace_acceptance
from specview.lab.batch_times import BatchTimes, Sizes, measure_batches
from specview.lab.concurrency import combine
from tests.decoding.toy import FakeClock
from tests.lab.batch_fake import BatchEngine, FakeProbe, write_lanes
from tests.lab.test_explain import PLAIN_OTHER, lane_of, make_lane, make_round, plain_lane

PROMPT = [1, 2, 3, 4, 5]


def roofed(flat: float, each: float):
    """A pass that is flat until its rows cost more: memory, then compute."""
    return lambda sequences, rows: max(flat, each * sequences * rows)


def timed(engine: BatchEngine, batches, ks, context=8, repeats=7, seconds=1e9, **more) -> BatchTimes:
    sizes = Sizes(batches, ks, context, repeats, seconds)
    return measure_batches(engine, PROMPT, sizes, **{"roofline": False, "clock": engine.clock, **more})


def measured(cost, batches=(1, 2, 4, 8), ks=(0, 2), **more) -> BatchTimes:
    return timed(BatchEngine(cost, FakeClock()), batches, ks, roofline=True, **more)


def flat(**more) -> BatchEngine:
    """Each pass takes a second."""
    return BatchEngine(lambda sequences, rows: 1.0, FakeClock(), **more)


# -- measuring -------------------------------------------------------------------------------------------


def test_each_size_is_timed_by_itself_after_a_pass_of_its_shape():
    def seconds(sequences: int, rows: int) -> float:
        return 0.5 + sequences + 0.25 * rows

    times = measured(seconds, ks=(2, 4), repeats=3)
    assert times.batches == [1, 2, 4, 8]
    assert times.rows_at(2) == [1, 3, 5]  # plain always
    for (sequences, rows), spent in times.passes.items():
        assert spent == pytest.approx((seconds(sequences, rows),) * 3)
    assert times.how == "a formula" and not times.stopped and times.skipped == ()


def test_sizes_are_interleaved_and_sequences_fed_different_tokens_after_the_same_context():
    """So that a slow moment hits all alike."""
    engine = flat()
    timed(engine, (4, 1), (0, 2), 16, 3)
    once = engine.passes[::2]
    assert once == [(1, 1), (1, 3), (4, 1), (4, 3)] * 3
    assert engine.passes[1::2] == once  # each once before it is timed
    assert not any(probe.open for probe in engine.probes)
    wide = [fed for probe in engine.probes for fed in probe.fed if len(fed) == 4 and len(fed[0]) == 3]
    assert wide and all(len({tuple(row) for row in fed}) > 1 for fed in wide)


def test_time_ends_the_repeats_but_every_size_is_measured_once():
    times = measured(lambda sequences, rows: 100.0, repeats=9, seconds=1.0)
    assert {len(spent) for spent in times.passes.values()} == {1}


def test_a_draft_model_is_timed_beside_its_target():
    clock = FakeClock()
    draft = BatchEngine(lambda sequences, rows: 0.1 * sequences, clock, vocab=3)  # ids beyond it wrap
    target = BatchEngine(lambda sequences, rows: 2.0, clock)
    times = timed(target, (1, 4), (0, 3), repeats=2, draft=draft)
    assert times.drafts == {1: (pytest.approx(0.1),) * 2, 4: (pytest.approx(0.4),) * 2}
    found = combine(times, stated_acceptance(0.5, 9.0))
    assert [point.draft_s for point in found.line(3)] == pytest.approx([0.3, 1.2])
    assert all(point.draft_source == "measured" for point in found.line(3))


@pytest.fixture
def cramped(monkeypatch):
    """An engine of 10 MiB a sequence of 8 + 2 tokens, on a machine that has as many MiB left as it is told."""
    import psutil

    def made(left: int) -> BatchEngine:
        free = psutil.virtual_memory()._replace(available=(300 << 20) + left * (1 << 20))
        monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
        engine = flat(bytes_each=1 << 20)
        engine.device = "cpu"
        return engine

    return made


def test_what_memory_does_not_hold_is_left_out_with_a_line(cramped):
    engine = cramped(50)
    times = timed(engine, (1, 2, 64), (0, 1), repeats=1)
    assert times.batches == [1, 2]
    (line,) = times.skipped
    assert line.startswith("Left out: 64 sequences of 8 tokens need 0.7 GB of memory, and 0.0 GB are left.")
    with pytest.raises(SpecviewError, match="64 sequences of 8 tokens need 0.7 GB.*Measure fewer"):
        timed(engine, (64,), (0, 1))
    engine.most = 1
    times = timed(engine, (1, 2), (0,), repeats=1)
    assert times.skipped == ("Left out: 2 sequences are too many.",)
    # all are held at once: 1 and 2 take 30 of 60 MiB, 4 would take 40 more
    times = timed(cramped(60), (1, 2, 4), (0, 1), repeats=1)
    assert times.batches == [1, 2] and "4 sequences" in times.skipped[0]


@pytest.mark.parametrize("where", ["fill", "forward"])
def test_a_size_that_the_device_refuses_on_the_way_is_left_out(monkeypatch, where):
    clock = FakeClock()
    real = getattr(FakeProbe, where)

    def refuse(self, *given):
        if self.sequences == 4 and (where == "fill" or len(given[0][0]) == 3):
            raise SpecviewError("4 sequences do not fit the memory of cuda.", "Measure fewer.")
        return real(self, *given)

    monkeypatch.setattr(FakeProbe, where, refuse)
    engine = BatchEngine(lambda sequences, rows: 1.0, clock)
    times = timed(engine, (1, 4, 2), (0, 2), repeats=2)
    assert times.batches == [1, 2] and all(sequences != 4 for sequences, _ in times.passes)
    assert times.skipped == ("Left out: 4 sequences. 4 sequences do not fit the memory of cuda.",)
    assert len(combine(times, stated_acceptance(0.5, 0.1)).points) == 4
    with pytest.raises(SpecviewError, match="do not fit the memory of cuda. Measure fewer."):
        timed(engine, (4,), (0, 2), repeats=2)
    assert not any(probe.open for probe in engine.probes)


def test_stop_keeps_what_there_is():
    engine = flat()

    def should_stop() -> bool:
        return len(engine.passes) >= 6  # three sizes, each run twice

    times = timed(engine, (1, 2), (0, 1), should_stop=should_stop)
    assert times.stopped and set(times.passes) == {(1, 1), (1, 2), (2, 1)}
    assert not any(probe.open for probe in engine.probes)
    found = combine(times, stated_acceptance(0.5, 0.1))
    assert [(point.sequences, point.k) for point in found.points] == [(1, 0), (2, 0), (1, 1)]
    with pytest.raises(Stopped):
        timed(engine, (1,), (0,), should_stop=lambda: True)


@pytest.mark.parametrize(
    ("batches", "ks", "context", "says"),
    [((), (0,), 8, "no batch sizes"), ((0,), (0,), 8, "batch size is 0"), ((5000,), (0,), 8, "batch size is 5000"),
     ((1,), (), 8, "no draft lengths"), ((1,), (-1,), 8, "k is -1"), ((1,), (65,), 8, "k is 65"),
     ((1,), (0,), 0, "context is 0")],
)  # fmt: skip
def test_sizes_that_cannot_be_are_refused(batches, ks, context, says):
    with pytest.raises(UsageError, match=says):
        Sizes(batches, ks, context)


# -- joining ---------------------------------------------------------------------------------------------


@given(alpha=st.floats(0, 1), c=st.floats(0, 2), flat=st.floats(0.01, 1), each=st.floats(0.001, 0.5), k=st.integers(1, 8))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_the_speedup_is_theorem_3_8_with_the_measured_v(alpha, c, flat, each, k):
    found = combine(measured(roofed(flat, each), ks=(0, k), repeats=1), stated_acceptance(alpha, c))
    for point in found.line(k):
        plain_s, wide_s = (roofed(flat, each)(point.sequences, rows) for rows in (1, k + 1))
        assert point.speedup == pytest.approx(theory.speedup(alpha, k, c, wide_s / plain_s), rel=1e-9)
        assert point.user_tokens_per_s == pytest.approx(theory.expected_tokens(alpha, k) / point.round_s)
        assert point.total_tokens_per_s == pytest.approx(point.sequences * point.user_tokens_per_s)
        assert (point.draft_source, point.tokens_source) == ("modelled", "modelled")
    for sequences, best in found.best_k.items():
        assert max(point.speedup for point in found.points if point.sequences == sequences) == pytest.approx(
            next(point.speedup for point in found.points if (point.sequences, point.k) == (sequences, best))
        )


def test_the_crossing_lies_where_the_gain_ends():
    # Flat to 12 rows, then every row costs: 2.44 tokens a round pay for 3 rows while 3 B < 2.44 * 12, to B 9.8.
    found = combine(measured(roofed(12.0, 1.0), batches=(1, 2, 4, 8, 16)), stated_acceptance(0.8, 0.0))
    (crossing,) = found.crossings
    assert crossing.k == 2 and crossing.falls and 8 < crossing.sequences < 16
    left, right = (next(point.speedup for point in found.line(2) if point.sequences == at) for at in (8, 16))
    place = math.log2(crossing.sequences / 8)
    assert (1 - place) * math.log(left) + place * math.log(right) == pytest.approx(0, abs=1e-9)
    assert crossing.spread == pytest.approx((crossing.sequences, crossing.sequences))
    assert f"the gain ends at about {crossing.sequences:.1f}" in found.sentence
    assert found.best_k == {1: 2, 2: 2, 4: 2, 8: 2, 16: 0}
    assert "Best of those measured: k 2, plain decoding from 16." in found.sentence


def test_a_crossing_upwards_says_so():
    def seconds(sequences: int, rows: int) -> float:  # one row is cheap with one sequence only
        return 1.0 if (sequences, rows) == (1, 1) else 2.5

    found = combine(measured(seconds, batches=(1, 4)), stated_acceptance(0.7, 0.0))
    (crossing,) = found.crossings
    assert not crossing.falls and 1 < crossing.sequences < 4
    assert "it begins to gain at about" in found.sentence


@pytest.mark.parametrize(("alpha", "side"), [(0.9, "faster"), (0.05, "slower")])
def test_no_crossing_in_range_is_stated(alpha, side):
    found = combine(measured(lambda sequences, rows: 1.0 + 0.3 * (rows - 1)), stated_acceptance(alpha, 0.1))
    assert found.crossings == ()
    assert "no crossing in range" in found.sentence
    assert f"{side} than plain at every measured number of sequences (1 to 8)" in found.sentence
    assert found.as_dict()["crossing_in_range"] is False
    one = combine(measured(lambda sequences, rows: 1.0, batches=(1,)), stated_acceptance(alpha, 0.1))
    assert "a crossing cannot be seen" in one.sentence
    none = combine(measured(lambda sequences, rows: 1.0, ks=(0,)), stated_acceptance(alpha, 0.1))
    assert "nothing to compare" in none.sentence


def test_a_copying_drafters_cost_grows_with_the_sequences_a_models_with_its_passes():
    times = measured(lambda sequences, rows: 1.0, repeats=1)
    copying = combine(times, Acceptance("lookup", 0.5, draft_cost=0.05, scaling="sequence"))
    model = combine(times, Acceptance("head", 0.5, draft_cost=0.05))
    assert [point.draft_s for point in copying.line(2)] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert [point.draft_s for point in model.line(2)] == pytest.approx([0.1] * 4)
    assert "for each sequence in turn" in copying.draft_how and "modelled" in model.draft_how
    assert "drafting is free" in combine(times, stated_acceptance(0.5, None)).draft_how


# -- the acceptance of a run -----------------------------------------------------------------------------


def test_a_lanes_acceptance_gives_its_own_tokens_per_pass_at_every_shorter_k():
    rounds, k = lane_of(0.7, 4, 0.1, 1.5, count=3000), 4
    found = lane_acceptance("draft", {"method": "draft-model", "draft": "d"}, rounds, plain_lane())
    emitted = sum(len(round_.emitted) for round_ in rounds) / len(rounds)
    assert found.tokens(k) == pytest.approx(emitted, rel=1e-9)
    for shorter in (1, 2, 3):  # what those rounds would have emitted with shorter drafts
        cut = sum(min(round_.accepted, shorter) + 1 for round_ in rounds) / len(rounds)
        assert found.tokens(shorter) == pytest.approx(cut, rel=1e-9)
        assert found.measured_to(shorter)
    assert not found.measured_to(5)
    assert found.tokens(5) == pytest.approx(found.tokens(4) + math.prod(found.by_position) * found.alpha)
    assert found.draft_cost == pytest.approx(0.1, rel=0.05)
    assert (found.other_s, found.plain_other_s) == (pytest.approx(PLAIN_OTHER), pytest.approx(PLAIN_OTHER))
    assert found.scaling == "pass" and found.run["draft"] == "d"
    assert lane_acceptance("copy", {"method": "prompt-lookup"}, rounds, plain_lane()).scaling == "sequence"


def test_lanes_that_say_nothing_about_batches_are_refused():
    with pytest.raises(SpecviewError, match="drafted nothing"):
        lane_acceptance("idle", {"method": "prompt-lookup"}, plain_lane())
    tree = [make_round(0, 0.0, 3, 1, 0.1, 0.1, 0.0, parents=(-1, -1, 0))]
    with pytest.raises(SpecviewError, match="verifies trees"):
        lane_acceptance("tree", {"method": "medusa"}, tree)
    without_plain = lane_acceptance("alone", {}, make_lane([(2, 1, 0.1, 0.2, 0.0)] * 9))
    assert without_plain.draft_cost is None and without_plain.alpha == 0.5
    for alpha, cost in ((-0.1, None), (1.1, None), (math.nan, None), (0.5, -1.0), (0.5, math.nan)):
        with pytest.raises(UsageError):
            stated_acceptance(alpha, cost)


def test_a_traces_lane_is_found_by_name_or_is_the_first_that_drafts(tmp_path):
    path = write_lanes(tmp_path / "trace.jsonl", {
        name: ({"method": method}, make_lane([(k, accepted, 0.01, 0.05, 0.001)]))
        for name, method, k, accepted in (("plain", "plain", 0, 0), ("one", "draft-model", 2, 1), ("two", "draft-model", 2, 2))
    })  # fmt: skip
    assert trace_acceptance(path).name == "one" and trace_acceptance(path).alpha == 0.5
    assert trace_acceptance(path, "two").alpha == 1.0
    with pytest.raises(SpecviewError, match="no lane 'three'.*one, two"):
        trace_acceptance(path, "three")
    path.write_text("{}\n", encoding="utf-8")
    with pytest.raises(SpecviewError, match="not the header"):
        trace_acceptance(path)


def test_a_crossings_spread_holds_the_crossing_and_widens_with_noise():
    def times(noise: float) -> BatchTimes:
        rng = random.Random(5)

        def cost(sequences: int, rows: int) -> float:
            return max(12.0, sequences * rows) * math.exp(rng.gauss(0, noise))

        return measured(cost, batches=(1, 2, 4, 8, 16), repeats=9)

    widths = []
    for noise in (0.02, 0.1):
        crossing = next(one for one in combine(times(noise), stated_acceptance(0.8, 0.0)).crossings if one.falls)
        assert crossing.spread is not None
        low, high = crossing.spread
        assert low <= crossing.sequences <= high
        widths.append(math.log2(high / low))
    assert 0 < widths[0] < widths[1]
