"""The decision guide: every line stands on a measured number, and says the right thing at the bounds."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from specview.decoding import theory
from specview.decoding.sampling import SamplingParams
from specview.experiments.arms import Unusable
from specview.experiments.guide import COPIES_BADLY, COPIES_WELL, DEAR_DRAFT, FLAT, STEEP, Advice, guide
from specview.experiments.tune_result import ArmResult, Observation, TuneResult
from specview.experiments.tuning import tune
from specview.racing.workloads import Prompt, Workload
from specview.settings.run import LaneSettings, RunSettings
from tests.racing.world import World

PROMPTS = Workload("mine", (Prompt("x"),), "0")


def measured(**options) -> TuneResult:
    options = {
        "races": 5,
        "v": {1: 1.1, 2: 1.2, 3: 1.3, 4: 1.35, 8: 1.9},
        "c": {"draft-model": 0.2},
        "plain_pass_s": 0.05,
        "copied": {"all": {"prompt-lookup": 0.02, "suffix": 0.01}},
        **options,
    }
    return TuneResult(RunSettings(), PROMPTS, 60.0, **options)


def seen(method: str, speedup: float, workload: str = "all", alpha: float | None = 0.6, lane: str | None = None) -> Observation:
    return Observation(workload, method, lane or f"{method},k=2", speedup, alpha, 1.5)


def thrice(method: str, speedup: float, workload: str = "all") -> list[Observation]:
    """Three races that lie close together: their interval is about 5% wide."""
    return [seen(method, speedup * factor, workload) for factor in (0.99, 1.0, 1.01)]


def line(result: TuneResult, topic: str) -> Advice:
    return next(one for one in guide(result) if one.topic == topic)


def test_nothing_measured_gives_no_advice():
    assert guide(measured(races=0)) == ()


@pytest.mark.parametrize(
    ("share", "words"),
    [(COPIES_WELL, "try prompt-lookup and suffix first"), (COPIES_BADLY, "now and then"), (0.0, "little to copy")],
)
def test_copying_goes_by_the_share_that_can_be_copied(share, words):
    result = measured(copied={"extract": {"prompt-lookup": share, "suffix": share / 2}}, observations=[seen("suffix", 1.7, "extract")])
    found = line(result, "copying")
    assert found.figure == share and words in found.text
    assert f"{share:.0%}" in found.text and "prompt-lookup, replayed" in found.text
    assert found.text.startswith("extract: ") and "suffix ran at 1.70 times plain" in found.text


def test_free_text_names_the_best_drafter_with_its_numbers():
    observations = [
        seen("draft-model", 1.2, alpha=0.5), seen("draft-model", 1.3, alpha=0.7), seen("eagle3", 0.9), seen("suffix", 3.0),
    ]  # fmt: skip
    found = line(measured(observations=observations), "running")
    assert found.figure == pytest.approx(math.sqrt(1.2 * 1.3)), "a lane's races average geometrically"
    for words in ("draft-model", "1.25 times plain", "acceptance 0.60", "0.20 plain passes"):
        assert words in found.text
    slow = line(measured(observations=[seen("draft-model", 0.8)]), "running")
    assert "not worth drafting" in slow.text and "specview train" in slow.text
    assert "no faster than plain" in line(measured(observations=[seen("draft-model", 1.01)]), "running").text


def test_a_winner_that_is_not_sure_is_not_called_the_one_to_use():
    arm = ArmResult(LaneSettings("draft-model", k=2))
    unsure = measured(observations=[seen("draft-model", 1.3)], arms=[arm], winner=arm, verdict="unclear")
    assert "not faster than plain with confidence" in line(unsure, "running").text
    sure = measured(observations=[seen("draft-model", 1.3)], arms=[arm], winner=arm, verdict="faster")
    assert "the one to use here" in line(sure, "running").text


def test_copying_that_was_raced_is_told_by_the_race_and_not_by_the_share():
    def told(share, observations):
        return line(measured(copied={"all": {"prompt-lookup": share}}, observations=observations), "copying").text

    assert "will not pay" not in told(0.02, thrice("suffix", 1.4)) and "and yet it paid" in told(0.02, thrice("suffix", 1.4))
    assert "not told apart from plain" in told(0.02, thrice("suffix", 1.01))
    for share in (COPIES_BADLY, COPIES_WELL):
        assert "did not pay here" in told(share, thrice("suffix", 0.7)) and "try" not in told(share, thrice("suffix", 0.7))


def test_advice_on_k_by_costs_alone_gives_way_to_a_confirmed_lane_of_another_k():
    arm = ArmResult(LaneSettings("draft-model", k=6))
    won = {"arms": [arm], "winner": arm, "verdict": "faster", "c": {"draft-model": DEAR_DRAFT + 0.1}}
    for topic, v4 in (("verify", STEEP), ("verify", (STEEP + FLAT) / 2), ("draft", STEEP)):
        result = measured(v={1: 1.05, 2: 1.1, 4: v4, 8: 2 * v4}, **won)
        assert "k 6 was the fastest" in line(result, topic).text and "1 or 2" not in line(result, topic).text
        assert "k 6" not in line(replace(result, verdict="unclear"), topic).text


def test_workloads_have_lines_of_their_own():
    observations = [seen("draft-model", 1.4, "chat"), seen("draft-model", 0.7, "code")]
    texts = [one.text for one in guide(measured(observations=observations)) if one.topic == "running"]
    assert [text.split(":")[0] for text in texts] == ["chat", "code"]


def test_a_combination_is_safe_only_where_it_beats_the_single_ones():
    singles = [*thrice("suffix", 1.5), *thrice("draft-model", 1.3)]
    assert "safe choice" in line(measured(observations=[*singles, *thrice("auto", 1.8)]), "combined").text
    assert "one method is enough" in line(measured(observations=[*singles, *thrice("auto", 1.2)]), "combined").text
    for near in (1.48, 1.52):
        assert "do not tell them apart" in line(measured(observations=[*singles, *thrice("auto", near)]), "combined").text
    assert "do not tell them apart" in line(measured(observations=[*singles, seen("auto", 1.9)]), "combined").text, "one race is none"
    assert not [one for one in guide(measured(observations=singles)) if one.topic == "combined"]


@pytest.mark.parametrize(("v4", "words"), [(STEEP, "keep k small"), (FLAT, "nearly free"), ((STEEP + FLAT) / 2, "middling")])
def test_verify_cost_settles_k(v4, words):
    found = line(measured(v={1: 1.05, 2: 1.1, 4: v4, 8: 2 * v4}), "verify")
    assert found.figure == v4 and words in found.text and f"4 tokens {v4:.2f}" in found.text
    if v4 == STEEP:
        assert f"{theory.break_even_alpha(4, 0.0, v4):.2f}" in found.text


def test_verifying_that_can_never_pay_is_said():
    assert "cannot pay" in line(measured(v={4: 5.5}), "verify").text


@pytest.mark.parametrize(
    ("c", "words"),
    [
        ({"draft-model": 0.1}, "drafting is cheap here"),
        ({"draft-model": DEAR_DRAFT + 0.1, "eagle3": 0.1}, "draft-model must be right most of the time"),
        ({"draft-model": DEAR_DRAFT + 0.1}, "dear here"),
    ],
)
def test_draft_costs(c, words):
    found = line(measured(c=c), "draft")
    assert words in found.text and found.figure == min(c.values())


def test_temperature_says_what_was_measured_and_what_not():
    assert line(measured(), "temperature").measured is False
    warm = replace(measured(observations=[seen("suffix", 1.1, alpha=0.4)]), settings=RunSettings(sampling=SamplingParams(temperature=0.8)))
    found = line(warm, "temperature")
    assert found.measured and "temperature 0.8" in found.text and "0.40" in found.text


@pytest.mark.parametrize(("v8", "words"), [(2.6, "computing rules"), (1.4, "some room"), (1.1, "passes wait for memory")])
def test_the_machine_by_the_price_of_a_row(v8, words):
    found = line(measured(v={4: 1.3, 8: v8}), "machine")
    assert words in found.text and "50.0 ms" in found.text and found.figure == pytest.approx((v8 - 1) / 8)


def test_what_was_not_tried_is_said():
    result = measured(
        arms=[ArmResult(LaneSettings("suffix", k=2), 1.1), ArmResult(LaneSettings("ngram-mod", k=2), 1.0)],
        unusable=[Unusable("eagle", "it has no bundled head.")],
        untried=["lookahead"],
        idle=["ngram-mod"],
    )
    text = line(result, "untried").text
    for words in ("predicted only, others promised more: suffix", "no time was left for lookahead", "cannot run here: eagle",
                  "nothing to copy for ngram-mod"):  # fmt: skip
        assert words in text


def test_a_real_tunings_guide_stands_on_its_numbers(monkeypatch):
    world = World(monkeypatch, row_cost=0.05)
    settings = RunSettings(prompt="b", max_tokens=32, chat=False, observe="off")
    result = tune(settings, Workload("x", (Prompt("bcdbcdbcdbcd"),), "0"), 1200.0,
                  methods=("draft-model", "prompt-lookup", "suffix"), clock=world.clock)  # fmt: skip
    topics = [one.topic for one in guide(result)]
    assert topics[:2] == ["copying", "running"] and {"verify", "draft", "machine"} <= set(topics)
    assert line(result, "verify").figure == pytest.approx(1.25 / 1.05)
    for one in guide(result):
        assert one.text.endswith(".") and "\n" not in one.text and set(one.as_dict()) == {"topic", "text", "figure", "measured"}
