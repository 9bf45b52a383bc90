"""The toy proof: what it finds, that it can fail, how it stops, its document and its report."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from specview.errors import UsageError
from specview.lab import exactness
from specview.lab import toy as toys
from specview.lab.exact_statistics import SIGNIFICANCE, expected_variation
from specview.lab.exactness import (
    SeedResult,
    ToyResult,
    check_samples,
    check_seeds,
    checkpoints,
    run_toy,
    toy_document,
    toy_report,
)
from specview.lab.toy import SAMPLERS, ToySampler, ToySettings, rule_rows

EXACT = ("plain", "rejection", "match")


@pytest.fixture(scope="module")
def result() -> ToyResult:
    return run_toy(samples=400_000)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Of runs but the one above, rates over few rounds."""
    monkeypatch.setattr(exactness, "RATE_CHAINS", 50)


def test_the_literatures_toy(result):
    """Issue 5, "It must show", 3: exact rules show no difference; lossy ones are caught, and follow their own closed form."""
    document = toy_document(result)
    assert json.loads(json.dumps(document)) == document
    assert document["samples"] == 400_000
    assert set(document["samplers"]) == set(SAMPLERS)
    for name, one in document["samplers"].items():
        assert one["lossy"] == (name not in EXACT)
        assert one["tv"] == pytest.approx(one["exact_tv"], abs=0.01)
        assert one["own_chi2_p"] > SIGNIFICANCE
        assert one["outcome"] == ("no difference" if name in EXACT else "caught")
        if name in EXACT:
            assert one["chi2_p"] > SIGNIFICANCE
        else:
            assert one["power"] == pytest.approx(1)
        if name == "plain":
            assert one["alpha"] is None
        else:
            assert one["alpha"] == pytest.approx(one["exact_alpha"], abs=0.01)
            assert one["tokens_per_pass"] == pytest.approx(one["exact_tokens_per_pass"], abs=0.03)
    assert document["exact"]["naive_tv"] == pytest.approx(0.106, abs=5e-4)
    assert document["exact"]["alpha_per_context"] == pytest.approx([0.672, 0.692, 0.856, 0.863], abs=5e-4)
    assert result.holds
    assert result.conclusive


def test_the_verdict_says_what_was_tested_and_would_have_been_caught(result):
    assert 0.008 < result.least_caught < 0.01
    for part in (f"{result.least_caught:.4f}", "400,000 samples of 256 outcomes", "lossy typical, naive were caught"):
        assert part in result.sentence
    report = toy_report(result)
    assert report.blocks[-1].tone == "good"
    assert [row["sampler"] for row in report.blocks[1].rows][2:] == ["match", "typical (lossy)", "naive (lossy)"]


def test_exact_samplers_follow_the_line_and_the_naive_stops_at_its_bias(result):
    samples, line = map(np.array, zip(*result.line, strict=True))
    assert np.diff(np.log(line)) / np.diff(np.log(samples)) == pytest.approx(np.full(len(line) - 1, -0.5))
    assert line[-1] == pytest.approx(expected_variation(result.exact.target, 400_000))
    for name in EXACT:
        assert [point.samples for point in result.curves[name]] == samples.tolist()
        # within McDiarmid's bound about the mean, failed by one curve in thousands
        assert np.all(np.abs([point.tv for point in result.curves[name]] - line) < np.sqrt(math.log(1e5) / (2 * samples)))
    plateau = [point.tv for point in result.curves["naive"] if point.samples >= 50_000]
    assert len(plateau) > 5
    assert plateau == pytest.approx([result.exact.bias["naive"]] * len(plateau), abs=0.01)


# -- the proof can fail -----------------------------------------------------------------------------------


def with_rule(monkeypatch, sampler: str, rule: str) -> None:
    """A build in which one sampler secretly follows another rule."""

    class Wrong(ToySampler):
        def __init__(self, toy, name, rows=None):
            super().__init__(toy, name, rule_rows(rule, toy.target, toy.draft) if name == sampler else rows)

    monkeypatch.setattr(toys, "ToySampler", Wrong)


def half_the_bias(monkeypatch) -> None:
    """A build whose closed forms leave out half of each bias."""
    honest = toys.rule_distribution
    monkeypatch.setattr(toys, "rule_distribution", lambda toy, rows: (honest(toy, rows) + toys.target_distribution(toy)) / 2)


@pytest.mark.parametrize(
    ("wrong", "name", "outcome", "says"),
    [
        (lambda patch: with_rule(patch, "rejection", "naive"), "rejection", "differs", "rejection differs from the target"),
        (half_the_bias, "naive", "caught", "NOT follow their closed form: this build is wrong"),
        # a naive rule that is not caught is no proof, nor does it follow its own closed form
        (lambda patch: with_rule(patch, "naive", "rejection"), "naive", "not caught", "NOT follow"),
    ],
    ids=["a rule that corrects from p", "a closed form with half the bias", "a control that is exact"],
)
def test_a_wrong_build_is_caught(monkeypatch, wrong, name, outcome, says):
    wrong(monkeypatch)
    found = run_toy(samples=40_000)
    assert found.samplers[name].outcome == outcome
    assert not found.samplers[name].holds
    assert not found.holds
    assert says in found.sentence
    assert found.verdict.tone == "bad"


def test_few_samples_say_that_they_catch_little():
    few = run_toy(samples=100)
    assert few.least_caught > 0.2
    assert few.samplers["naive"].outcome == "not caught"
    assert few.samplers["naive"].power < 0.5
    assert few.holds
    assert few.verdict.tone == "warning"
    assert "use more samples" in few.sentence


# -- many seeds --------------------------------------------------------------------------------------------


def test_p_values_of_exact_samplers_are_spread_and_the_naives_are_not():
    found = run_toy(samples=1000, seeds=20)
    for name in EXACT:
        one = found.seeds[name]
        assert len(one.p_values) == 20
        assert one.holds
        assert min(one.p_values) < 0.25  # else one in 300
        assert max(one.p_values) > 0.75
        assert one.refused == 0
    naive = found.seeds["naive"]
    assert naive.refused == 20
    assert naive.uniform_p < 1e-9
    assert found.holds
    bunched = SeedResult.of("rejection", [0.4 + i / 1000 for i in range(60)])
    assert not bunched.holds
    found.seeds["rejection"] = bunched
    assert "rejection differs" in found.sentence
    assert SeedResult.of("naive", [0.0] * 60).holds  # of a lossy rule nothing is asked


# -- running ------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_samples_and_parts_are_told_in_order():
    told = []
    first = run_toy(samples=3000, seed=5, on_part=lambda part, text, fraction: told.append((part.samples, fraction)))
    assert told == [(samples, samples / 3000) for samples in checkpoints(3000)]
    assert first.curves == run_toy(samples=3000, seed=5).curves
    assert first.curves != run_toy(samples=3000, seed=6).curves


def test_stop_keeps_what_there_is():
    asked = iter(range(10_000))
    found = run_toy(samples=200_000, should_stop=lambda: next(asked) > 120)
    assert found.stopped
    assert 100 <= found.samples < 200_000
    assert {len(points) for points in found.curves.values()} == {len(found.line)}
    assert {one.samples for one in found.samplers.values()} == {found.samples}
    assert toy_document(found)["stopped"]
    assert "Stopped early." in found.verdict.text


def test_a_stop_at_once_says_that_nothing_was_tested():
    found = run_toy(samples=1000, should_stop=lambda: True)
    assert found.samples == 0
    assert found.sentence == "Nothing was tested."
    assert toy_document(found)["samplers"] == {}


def test_other_sizes():
    found = run_toy(ToySettings(vocab=8, length=4, k=5, model_seed=3), samples=8_000)
    assert found.holds
    assert "cells: rare ones are pooled" in found.sentence


def test_checkpoints_are_evenly_spaced_on_a_log_axis():
    points = checkpoints(400_000)
    assert (points[0], points[-1]) == (100, 400_000)
    ratios = [b / a for a, b in zip(points, points[1:], strict=False)]
    assert max(ratios) / min(ratios) < 1.05
    assert checkpoints(100) == [100]


@pytest.mark.parametrize(
    ("check", "numbers"), [(check_samples, (0, 99, -1, 10_000_001)), (check_seeds, (-1, 1, 4, 2_001))], ids=["samples", "seeds"]
)
def test_numbers_that_cannot_be(check, numbers):
    for number in numbers:
        with pytest.raises(UsageError):
            check(number)
