"""The toy proof: what it finds, that it can fail, how it stops, and its document."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from specview.errors import UsageError
from specview.lab import exactness
from specview.lab.exact_statistics import SIGNIFICANCE, expected_variation
from specview.lab.exactness import (
    ToyResult,
    check_samples,
    check_seeds,
    checkpoints,
    run_toy,
    toy_document,
)
from specview.lab.toy import SAMPLERS, ToySampler, ToySettings, rule_rows

EXACT = ("plain", "rejection", "match")


@pytest.fixture(scope="module")
def result() -> ToyResult:
    return run_toy(samples=400_000)


def test_the_literatures_toy(result):
    """Issue 5, "It must show", 3."""
    document = toy_document(result)
    assert document["samples"] == 400_000
    for name in EXACT:
        assert document["samplers"][name]["tv"] < 0.01
        assert document["samplers"][name]["chi2_p"] > SIGNIFICANCE
    assert document["samplers"]["naive"]["tv"] == pytest.approx(0.106, abs=0.01)
    assert document["exact"]["naive_tv"] == pytest.approx(0.106, abs=5e-4)
    assert document["exact"]["alpha_per_context"] == pytest.approx([0.672, 0.692, 0.856, 0.863], abs=5e-4)
    assert set(document["samplers"]) == set(SAMPLERS)
    assert json.loads(json.dumps(document)) == document


def test_lossy_rules_are_caught_and_follow_their_own_closed_form(result):
    for name in ("naive", "typical"):
        one = result.samplers[name]
        assert one.lossy
        assert one.outcome == "caught"
        assert one.own_p > SIGNIFICANCE
        assert one.tv == pytest.approx(one.bias, abs=0.01)
        assert one.chance == pytest.approx(1)
    assert result.holds
    assert result.conclusive


def test_what_it_would_have_caught_is_stated(result):
    assert 0.008 < result.least_caught < 0.01
    assert f"{result.least_caught:.4f}" in result.sentence
    assert "400,000 samples of 256 outcomes" in result.sentence


def test_exact_samplers_follow_the_line_and_the_naive_stops_at_its_bias(result):
    for name in EXACT:
        for point, (samples, line) in zip(result.curves[name], result.line, strict=True):
            assert point.samples == samples
            # within McDiarmid's bound about the mean, failed by one curve in thousands
            slack = math.sqrt(math.log(1e5) / (2 * samples))
            assert abs(point.tv - line) < slack
    plateau = [point.tv for point in result.curves["naive"] if point.samples >= 50_000]
    assert len(plateau) > 5
    assert plateau == pytest.approx([result.exact.bias["naive"]] * len(plateau), abs=0.01)


def test_the_line_is_one_over_root_n(result):
    samples, line = zip(*result.line, strict=True)
    slopes = np.diff(np.log(line)) / np.diff(np.log(samples))
    assert slopes == pytest.approx(np.full(len(slopes), -0.5), abs=1e-9)
    assert line[-1] == pytest.approx(expected_variation(result.exact.target, 400_000))


def test_measured_rates_stand_beside_the_exact_ones(result):
    for name in SAMPLERS[1:]:
        one = result.samplers[name]
        assert one.alpha == pytest.approx(one.exact_alpha, abs=0.01)
        assert one.tokens_per_pass == pytest.approx(one.exact_tokens_per_pass, abs=0.03)
    assert result.samplers["plain"].alpha is None


# -- the proof can fail -----------------------------------------------------------------------------------


def with_rule(monkeypatch, sampler: str, rule: str) -> None:
    """A build in which one sampler secretly follows another rule."""

    class Wrong(ToySampler):
        def __init__(self, toy, name, rows=None):
            super().__init__(toy, name, rule_rows(rule, toy.target, toy.draft) if name == sampler else rows)

    monkeypatch.setattr(exactness, "ToySampler", Wrong)


def test_a_rejection_rule_that_corrects_from_p_is_refused(monkeypatch):
    with_rule(monkeypatch, "rejection", "naive")
    found = run_toy(samples=20_000)
    assert found.samplers["rejection"].outcome == "differs"
    assert not found.holds
    assert "rejection differs from the target" in found.sentence


def test_a_wrong_closed_form_is_caught(monkeypatch):
    """Naive samples against a closed form that leaves out half of the bias."""
    honest = exactness.rule_distribution

    def half(toy, rows, k=None):
        right = honest(toy, rows, k)
        return (right + exactness.target_distribution(toy)) / 2

    monkeypatch.setattr(exactness, "rule_distribution", half)
    found = run_toy(samples=40_000)
    assert found.samplers["naive"].own_p <= SIGNIFICANCE
    assert not found.samplers["naive"].holds
    assert "NOT follow" in found.samplers["naive"].words
    assert "this build is wrong" in found.sentence
    assert not found.holds


def test_a_naive_rule_that_is_not_caught_is_no_proof(monkeypatch):
    with_rule(monkeypatch, "naive", "rejection")
    found = run_toy(samples=40_000)
    assert found.samplers["naive"].outcome == "not caught"
    assert not found.conclusive
    assert not found.holds  # nor does it follow its own closed form


def test_few_samples_say_that_they_catch_little():
    few = run_toy(ToySettings(model_seed=2), samples=100)
    assert few.least_caught > 0.2
    assert few.samplers["naive"].outcome == "not caught"
    assert few.holds
    assert not few.conclusive
    assert few.samplers["naive"].chance < 0.5
    assert "use more samples" in few.sentence


# -- many seeds --------------------------------------------------------------------------------------------


def test_p_values_of_exact_samplers_are_spread_and_the_naives_are_not():
    found = run_toy(samples=1000, seeds=60)
    for name in EXACT:
        one = found.seeds[name]
        assert len(one.p_values) == 60
        assert one.holds
        assert min(one.p_values) < 0.25
        assert max(one.p_values) > 0.75
        assert one.refused == 0
    naive = found.seeds["naive"]
    assert naive.refused == 60
    assert naive.spread < 1e-9
    assert found.holds


def test_p_values_that_are_not_spread_fail():
    bunched = exactness.seed_result("rejection", [0.4 + i / 1000 for i in range(60)])
    assert not bunched.holds
    assert exactness.seed_result("naive", [0.0] * 60).holds  # of a lossy rule nothing is asked


# -- running ------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_samples():
    first, again, other = run_toy(samples=3000, seed=5), run_toy(samples=3000, seed=5), run_toy(samples=3000, seed=6)
    assert first.curves == again.curves
    assert first.curves != other.curves


def test_parts_are_told_in_order():
    told = []
    run_toy(samples=10_000, on_part=lambda part: told.append(part.samples))
    assert told == checkpoints(10_000)
    assert told[0] == 100
    assert told[-1] == 10_000


def test_stop_keeps_what_there_is():
    asked = iter(range(10_000))
    found = run_toy(samples=200_000, should_stop=lambda: next(asked) > 120)
    assert found.stopped
    assert 100 <= found.samples < 200_000
    counts = {len(points) for points in found.curves.values()}
    assert counts == {len(found.line)}
    assert {one.samples for one in found.samplers.values()} == {found.samples}
    assert toy_document(found)["stopped"]


def test_a_stop_at_once_says_that_nothing_was_tested():
    found = run_toy(samples=1000, should_stop=lambda: True)
    assert found.samples == 0
    assert found.sentence == "Nothing was tested."
    assert toy_document(found)["samplers"] == {}


def test_other_sizes():
    found = run_toy(ToySettings(vocab=8, length=4, k=5, model_seed=3), samples=30_000)
    assert found.holds
    assert "cells: rare ones are pooled" in found.sentence


def test_checkpoints_are_evenly_spaced_on_a_log_axis():
    points = checkpoints(400_000)
    assert points[0] == 100
    assert points[-1] == 400_000
    ratios = [b / a for a, b in zip(points, points[1:], strict=False)]
    assert max(ratios) / min(ratios) < 1.05
    assert checkpoints(100) == [100]


@pytest.mark.parametrize("samples", [0, 99, -1, 10_000_001])
def test_numbers_of_samples_that_cannot_be(samples):
    with pytest.raises(UsageError):
        check_samples(samples)


@pytest.mark.parametrize("seeds", [-1, 1, 4, 2_001])
def test_numbers_of_seeds_that_cannot_be(seeds):
    with pytest.raises(UsageError):
        check_seeds(seeds)


def test_verdict_words(result):
    assert "no difference" in result.samplers["rejection"].words
    assert "lossy" in result.samplers["typical"].words
    wrong = replace(result.samplers["plain"], outcome="differs")
    assert "DIFFERS" in wrong.words
    assert not wrong.holds
