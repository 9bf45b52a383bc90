"""Tuning: the best lane is found, plain wins where it does, the budget holds, and the interval covers the truth.

The end-to-end tests race fake engines on a fake clock (`World`). The statistical ones put a simulated race in place of
the real one: lanes of known speed under multiplicative noise, so that a hundred tunings take seconds.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from specview.commands.arguments import Parser, add_shared_flags, settings_of
from specview.decoding.ledger import DraftedToken, FinalToken, Round, RunRecord
from specview.decoding.metrics import fold
from specview.drafting.lanes import checked_lane
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError, UsageError
from specview.experiments.arms import candidates
from specview.experiments.screening import positions_of, replay_copies
from specview.experiments.tune_result import ranking_rows, tune_document
from specview.experiments.tuning import LEAST_TOKENS, split_prompts, tune
from specview.library.repeat import lane_text
from specview.racing.compare import CompareResult, LaneResult, compare
from specview.racing.pool import ModelPool
from specview.racing.workloads import Prompt, Workload
from specview.settings.run import BUNDLED, LaneSettings, RunSettings
from tests.decoding.speedups import times
from tests.racing.world import World

COPY = "bcdbcdbcdbcd"
METHODS_HERE = ("draft-model", "prompt-lookup", "suffix")


@pytest.fixture
def world(monkeypatch) -> World:
    return World(monkeypatch, row_cost=0.05)


def settings(**options) -> RunSettings:
    return RunSettings(**{"prompt": "b", "max_tokens": 32, "chat": False, "observe": "off", **options})


def a_set(*texts: str) -> Workload:
    return Workload("mine", tuple(Prompt(text, name=text[:6]) for text in texts), "0")


ONE = a_set(COPY)


def run(world, seconds=1500.0, prompts=ONE, methods=METHODS_HERE, base=None, **options):
    return tune(base or settings(), prompts, seconds, methods=methods, clock=world.clock, **options)


def true_speedups(world, result, prompt=COPY):
    """The noise-free speedup of every lane that was considered, on one prompt."""
    found = {}
    for arm in result.arms:
        run = compare(replace(settings(max_tokens=result.tokens), prompt=prompt, lanes=(LaneSettings(), arm.lane)),
                      clock=world.clock)  # fmt: skip
        found[arm.name] = run.lanes[1].speedup.value
    return found


# -- end to end on fake engines ----------------------------------------------------------------------


def test_it_finds_the_fastest_lane_and_says_its_true_speed(world):
    result = run(world)
    assert result.verdict == "faster" and result.end == "done"
    truth = true_speedups(world, result)
    assert truth[result.winner.name] >= 0.98 * max(truth.values()), "a lane next to it may be as fast"
    assert result.interval.mean == pytest.approx(truth[result.winner.name])
    assert result.winner.stage == "confirmed" and result.best is result.winner
    assert result.ranking[0] is result.winner
    assert result.winner.name in result.sentence and "fresh repeats of the same prompt" in result.sentence


def test_replays_predict_copying_lanes_exactly_where_costs_are_exact(world):
    """On the fake clock a search costs nothing and passes are exact: the race must give what the replay said."""
    result = run(world, 6000.0, base=settings(max_tokens=40), methods=("prompt-lookup", "suffix"))
    raced = [arm for arm in result.arms if arm.predicted is not None and arm.speedups]
    assert len(raced) >= 2
    for arm in raced:
        assert arm.predicted == pytest.approx(arm.chosen_by.mean, rel=1e-6), arm.name


def test_predictions_of_a_draft_model_are_near(world):
    """An order-3 table model has a few dozen contexts: positions are not independent, so near is all there is."""
    result = run(world, methods=("draft-model",), base=settings(max_tokens=64))
    truth = true_speedups(world, result)
    for arm in result.arms:
        if arm.predicted is not None and arm.lane.k <= 4:
            assert arm.predicted == pytest.approx(truth[arm.name], rel=0.25), arm.name


def test_plain_wins_where_nothing_pays(monkeypatch):
    world = World(monkeypatch, row_cost=0.9, pass_cost=0.1)  # every row costs what a pass does
    result = run(world, methods=("draft-model",))
    assert result.verdict == "plain" and result.best is None
    assert result.interval.high < 1
    assert result.sentence.startswith("Plain decoding wins: the best other lane, draft-model")
    assert "plain rounds" in result.sentence, "the reason is from the costs"
    assert tune_document(result)["best"]["pays"] is False


def test_a_budget_that_was_over_is_the_reason_not_what_was_refused_before(world):
    result = run(world, methods=("eagle",))
    assert "no bundled head" in result.sentence
    assert "before the first race ended" in replace(result, spent_s=result.seconds).sentence


def test_unusable_methods_are_listed_with_their_reason(world):
    """Those that cannot run on this target, and one that fails only when it is tried."""

    def broken():
        raise SpecviewError("there is no such draft.")

    world.models["draft", BUNDLED] = broken
    result = run(world, methods=("draft-model", "early-exit", "eagle", "prompt-lookup"))
    reasons = {one.method: one.reason for one in result.unusable}
    assert set(reasons) == {"early-exit", "eagle", "draft-model"}
    assert "no bundled head" in reasons["eagle"] and reasons["draft-model"] == "there is no such draft."
    assert all("\n" not in reason for reason in reasons.values())
    assert result.winner.lane.method == "prompt-lookup"


def test_a_target_without_rollback_has_nothing_to_choose_among(monkeypatch):
    world = World(monkeypatch, rollback_problem="its state cannot be rolled back.")
    result = run(world)
    assert result.verdict == "nothing" and result.winner is None
    assert "cannot be rolled back" in result.sentence
    assert len(result.unusable) == 3


def test_a_stop_before_the_first_race_is_not_blamed_on_a_method_that_cannot_run(world):
    result = run(world, methods=("draft-model", "early-exit"), should_stop=lambda: True)
    assert result.end == "stopped" and not result.arms
    assert "it was stopped" in result.sentence and "early-exit" not in result.sentence


def test_combined_methods_take_the_members_that_showed_best(world):
    result = run(world, methods=("draft-model", "prompt-lookup", "auto", "cascade"), seconds=4000.0)
    mixed = [arm.name for arm in result.arms if METHODS[arm.lane.method].combines]
    assert any(name.startswith("auto,members=prompt-lookup+draft-model") for name in mixed)
    assert any(name.startswith("cascade") for name in mixed)


def test_models_load_once_and_are_let_go_and_snapshots_do_not_change(world):
    pool, news, shots = ModelPool(), [], []
    run(world, models=pool, on_progress=news.append, on_result=lambda found: shots.append((found.snapshot(), tune_document(found))))
    assert sorted(world.loads) == [("draft", BUNDLED), ("target", BUNDLED)]
    assert not pool.held
    assert not world.engines["target", BUNDLED].closed
    pool.close()
    assert [one.fraction for one in news] == sorted(one.fraction for one in news)
    assert news[0].fraction >= 0 and news[-1].fraction <= 1
    texts = " ".join(one.text for one in news)
    for words in ("Loading", "Measuring the target's passes", "Trying draft-model", "Replaying suffix", "Racing", "Confirming"):
        assert words in texts
    assert news[-1].best and news[-1].best_speedup > 1
    assert len(shots) > 3
    for shot, document in shots:
        assert tune_document(shot) == document


# -- the budget ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [5.0, 60.0])
def test_what_cannot_count_any_more_ends_with_the_budget(world, seconds):
    """Measuring passes, and the short races that lanes are predicted from: nothing is raced behind them."""
    result = run(world, seconds)
    assert seconds <= result.spent_s <= seconds + 5, "within two passes or a round"
    assert (result.end, result.races, result.verdict) == ("done", 0, "nothing")
    assert f"the budget of {seconds:.0f} s was over before the first race ended" in result.sentence


@pytest.mark.parametrize("seconds", [150.0, 600.0, 2500.0])
def test_the_budget_is_kept_within_one_race(world, seconds):
    result = run(world, seconds)
    assert result.spent_s == world.clock.now
    # The longest race at the settled length: plain and four lanes at 1.05 s and less a token.
    race = 5 * max(result.tokens, LEAST_TOKENS) * 1.3
    assert result.spent_s <= seconds + race
    if seconds >= 300:
        assert result.spent_s <= seconds, "with room to plan, nothing runs over"
    assert result.races >= 1
    assert LEAST_TOKENS <= result.tokens <= 32
    if result.interval is None or result.interval.low is None:
        assert result.verdict in ("undecided", "nothing")


def test_more_time_gives_longer_races_and_an_interval(world):
    short, long = run(world, 250.0), run(world, 4000.0)
    assert short.tokens < long.tokens == 32
    assert long.interval.count > 3


@pytest.mark.parametrize("after", [1, 120, 700])
def test_a_stop_keeps_what_there_is(world, after):
    asked = [0]

    def stop():
        asked[0] += 1
        return asked[0] > after

    result = run(world, should_stop=stop)
    assert result.end == "stopped"
    assert result.verdict in ("undecided", "nothing", "faster")
    if result.winner is not None:
        assert result.winner.speedups and result.sentence
    tune_document(result)


# -- prompts -------------------------------------------------------------------------------------------


def test_prompts_are_split_by_workload_and_held_out():
    prompts = [Prompt(str(place), workload="ab"[place >= 5]) for place in range(10)]
    choose, confirm, over = split_prompts(prompts)
    assert over == "prompts" and not set(choose) & set(confirm) and set(choose) | set(confirm) == set(range(10))
    for part in (choose, confirm):
        assert {prompts[place].workload for place in part} == {"a", "b"}
    assert split_prompts(prompts[:3]) == ([0, 1, 2], [0, 1, 2], "repeats")
    assert split_prompts(prompts[:7]) == (split_prompts(prompts[:7])[1], split_prompts(prompts[:7])[0], "repeats")
    for count in (8, 9, 10):
        choose, confirm, over = split_prompts(prompts[:count])
        assert len(choose) >= 3 and len(confirm) >= 5 and over == "prompts"


SEVERAL = (COPY, "cdecdecde", "abcabcabc", "bdbdbdbd", "dedededede", "ecececec", "bcbcbcbc", "cdcdcdcd")


@pytest.mark.parametrize(
    ("texts", "over", "words"),
    [
        (SEVERAL, "prompts", "5 prompts not used for choosing"),
        # Each fresh repeat goes round all of them: the interval is of their mean, not of their difference.
        ((COPY, "edcba"), "repeats", "fresh repeats of the same prompts"),
    ],
)
def test_the_interval_is_over_prompts_not_chosen_by_or_over_fresh_repeats_of_a_few(world, texts, over, words):
    result = run(world, 4000.0, a_set(*texts), methods=("draft-model", "prompt-lookup"))
    assert result.over == over and words in result.sentence
    names = [text[:6] for text in texts]
    if over == "prompts":
        assert (result.chosen_on, result.confirmed_on, result.interval.count) == (names[:3], names[3:], 5)
    else:
        assert result.chosen_on == result.confirmed_on == names
        assert result.interval.high - result.interval.low < 1e-6, "no noise on the fake clock, however different the prompts"
    arm = result.winner
    result.arms = [arm]
    truth = [true_speedups(world, result, text)[arm.name] for text in (texts[3:] if over == "prompts" else texts)]
    assert result.interval.mean == pytest.approx(math.exp(np.mean(np.log(truth))))


def test_a_prompt_that_does_not_fit_is_left_out_with_a_line(monkeypatch):
    world = World(monkeypatch, context_length=120, row_cost=0.05)
    result = run(world, prompts=a_set(COPY, "b" * 200))
    assert len(result.failures) == 1 and "200 tokens" in result.failures[0]
    assert result.winner is not None
    with pytest.raises(SpecviewError, match="no prompt can run"):
        run(world, prompts=a_set("b" * 200))


# -- statistics: a simulated race ------------------------------------------------------------------------


class Simulated:
    """Stands in for `compare`: lanes of known speed, each race with lognormal noise of its own for every lane.

    A lane's rounds give tokens at the known rate; `speed_of` says how fast by the lane string.
    """

    def __init__(self, world, speed_of, noise, seed):
        self.world, self.speed_of, self.noise = world, speed_of, noise
        self.rng = np.random.default_rng(seed)
        self.output = [2 + place % 3 for place in range(64)]

    def __call__(self, settings, repeats, pool, on_event, should_stop, *, clock, oracles):
        rates = []
        result = CompareResult(prompt_ids=(1, 2, 3))
        for lane in settings.lanes:
            speed = 1.0 if lane.method == "plain" else self.speed_of(replace(lane, name=""))
            rates.append(speed * math.exp(self.rng.normal(0, self.noise)))
            rounds = self.rounds(lane, settings.max_tokens, rates[-1])
            record = RunRecord(lane.name, {}, rounds=rounds, end="limit")
            self.world.clock.now += rounds[-1].t
            result.lanes.append(LaneResult(record, fold(rounds, 0.0), [], times(rates[-1] / rates[0])))
        return result

    def rounds(self, lane, tokens, rate):
        drafts = lane.method != "plain"
        found, at = [], 0.0
        while tokens > 0:
            emitted = min(tokens, 2 if drafts else 1)
            drafted = (DraftedToken(3, "accepted"),) if drafts and emitted == 2 else ()
            seconds = emitted / rate
            at += seconds
            found.append(Round(len(found), at, 0.0, seconds, 0.0, drafted=drafted, drafter=lane.method if drafted else "",
                               final=FinalToken(2, "bonus" if drafted else "plain")))  # fmt: skip
            tokens -= emitted
        return found


def simulated(world, monkeypatch, speed_of, seed, noise=0.03, seconds=2500.0, prompts=ONE):
    monkeypatch.setattr("specview.experiments.runner.compare", Simulated(world, speed_of, noise, seed))
    world.clock.now = 0.0
    return run(world, seconds, prompts, methods=("draft-model", "prompt-lookup"))


def by_k(best, peak):
    """Speed falls on both sides of the best draft length; the draft model is the faster method."""

    def speed(lane):
        k = lane.k or 4
        own = peak if lane.method == "draft-model" else 0.9 * peak
        return own * (0.97 if lane.policy != "constant" else 1.0) / (1 + 0.08 * abs(math.log2(k / best)))

    return speed


def test_the_best_lane_is_found_with_high_probability(world, monkeypatch):
    """Screening by simulated rounds says little here, so finding it is the races' work: near the best in 9 of 10."""
    near, runs = 0, 20
    for seed in range(runs):
        speed = by_k(2, 1.5)
        result = simulated(world, monkeypatch, speed, seed)
        truth = max(speed(arm.lane) for arm in result.arms if arm.speedups)
        near += speed(result.winner.lane) >= 0.96 * truth
    assert near >= 0.85 * runs


@pytest.mark.parametrize(("true", "seeds", "most"), [(1.2, 1000, 5), (1.0, 2000, 4)])
def test_the_interval_covers_the_chosen_lanes_true_speed_and_choosing_alone_would_not(world, monkeypatch, true, seeds, most):
    """Every lane is as fast as the others: what is chosen looks faster than it is, and the fresh races must not.

    30 tunings at 95%: more than 5 misses an honest interval has once in 300. Where there is nothing to gain a one-sided
    2.5% may claim a gain: more than 4 have a chance of 1 in 1000.
    """
    misses, claims, flattered, runs = 0, 0, 0.0, 30
    for seed in range(runs):
        result = simulated(world, monkeypatch, lambda lane: true, seeds + seed, noise=0.05, seconds=1500.0)
        misses += not result.interval.low <= true <= result.interval.high
        flattered += math.log(result.winner.chosen_by.mean / true) / runs
        claims += result.verdict == "faster"
        assert result.verdict in ("faster", "plain", "unclear")
        assert result.verdict == "faster" or result.best is None
    assert misses <= 5
    assert flattered > 0.005, "the choice flatters: that is why it is measured anew"
    assert true > 1 or claims <= most


# -- parts -----------------------------------------------------------------------------------------------


def parsed(text: str) -> LaneSettings:
    parser = Parser("specview compare", "")
    add_shared_flags(parser)
    (lane,) = settings_of(parser.parse_args(["--lane", text, "--prompt", "x"]), ()).lanes
    return lane


@pytest.mark.parametrize(
    "lane",
    [
        LaneSettings("draft-model", k=3),
        LaneSettings("draft-model", draft="/models/a, b", k=2, policy="confidence", policy_options={"threshold": 0.7}),
        LaneSettings("prompt-lookup", k=8, policy="off-below", options={"ngram_max": 5}),
        LaneSettings("auto", options={"members": "prompt-lookup+draft-model", "prompt-lookup.ngram_max": 4}),
        LaneSettings("cascade", options={"members": "suffix+draft-model", "model_k": 3}),
        LaneSettings("medusa", k=4, options={"tree": "fixed", "choices": "[[0],[1],[0,0]]"}),
        LaneSettings("eagle3", k=2, rule="match"),
        LaneSettings("eagle3", options={"preset": "gpu"}),
    ],
    ids=lambda lane: lane.method,
)
def test_a_lane_string_gives_the_lane_back(lane):
    sampling = settings().sampling
    lane = checked_lane(lane, sampling)
    text = lane_text(lane)
    back = replace(checked_lane(parsed(text), sampling), name="")
    assert back == lane
    assert lane_text(back) == text


def test_every_method_is_a_candidate_or_has_a_reason(world):
    target = world.make_target()
    found, cannot = candidates(settings(), target)
    named = {one.method.name for one in found} | {one.method for one in cannot}
    assert named == {name for name, method in METHODS.items() if method.drafts and not method.combines}
    for one in found:
        assert checked_lane(one.lane, settings().sampling) == one.lane, "options are filled in"
        back = replace(checked_lane(parsed(lane_text(one.lane)), settings().sampling), name="")
        assert back == one.lane
        assert bool(one.lengths) != (one.tree or one.method.name == "lookahead")
    assert {one.method.name for one in found if one.tree} == {"medusa", "eagle3"}, "of those with a bundled head"
    target.device = "cuda"
    wide, _ = candidates(settings(), target, ["eagle3", "medusa"])
    assert [one.lane.options.get("preset") for one in wide if one.tree] == [None, "gpu"]
    assert [one.lane.options.get("choices") for one in wide if one.tree] == ["mc_sim_7b_63", None]
    with pytest.raises(UsageError, match="no method 'x'"):
        candidates(settings(), target, ["x"])


def test_positions_count_trials_and_tokens_follow(world):
    rounds = [
        Round(at, at, 0.0, 1.0, 0.0, drafted=tuple(DraftedToken(1, verdict) for verdict in verdicts),
              final=FinalToken(1, "bonus"))
        for at, verdicts in enumerate([["accepted", "accepted"], ["accepted", "rejected"], ["rejected", "ignored"], []])
    ]  # fmt: skip
    counted = positions_of(rounds, skip=0)
    assert counted.accepted == (2, 1) and counted.judged == (3, 2)
    assert (counted.empty, counted.rounds) == (1, 4)
    assert counted.tokens(1) > 1 and counted.tokens(2) > counted.tokens(1)
    assert counted.tokens(0) == 1


@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_replay_takes_the_rounds_of_the_real_loop(world, k):
    lane = checked_lane(LaneSettings("prompt-lookup", k=k), settings().sampling)
    found = compare(replace(settings(max_tokens=40), prompt=COPY, lanes=(LaneSettings(), lane)), clock=world.clock)
    plain, copied = (one.record for one in found.lanes)
    replay = replay_copies(lane, (k,), plain.prompt_ids, plain.token_ids, 6)
    lengths: dict[int, int] = {}
    for round_ in copied.rounds:
        lengths[round_.k] = lengths.get(round_.k, 0) + 1
    assert replay.rounds[k] == lengths
    assert replay.copied[k] == sum(round_.accepted for round_ in copied.rounds)


@pytest.mark.parametrize(
    ("seconds", "options", "line"),
    [
        (1.0, {}, "the time budget is 1 s"),
        (1e9, {}, "the time budget is"),
        (60.0, {"check_mode": True}, "check mode pads passes"),
        (60.0, {"max_tokens": 0}, "max tokens is 0"),
    ],
)
def test_settings_that_cannot_work_are_one_line(world, seconds, options, line):
    with pytest.raises(UsageError, match=line):
        run(world, seconds, base=settings(**options))
    assert not world.loads


def test_a_target_that_does_not_load_is_one_line(world):
    def broken():
        raise SpecviewError("there is no such model.")

    world.models["target", BUNDLED] = broken
    with pytest.raises(SpecviewError, match="no such model"):
        run(world)


def test_rows_and_document_agree(world):
    result = run(world)
    document, rows = tune_document(result), ranking_rows(result.ranking)
    assert [row["lane"] for row in document["ranking"]] == [row["lane"] for row in rows] == [arm.name for arm in result.ranking]
    assert document["verdict"] == "faster" and document["best"]["lane"] == result.winner.name
    low, high = document["best"]["interval"]
    assert low == pytest.approx(result.interval.low) and high == pytest.approx(result.interval.high)
    assert document["budget"]["races"] == result.races
    assert document["costs"]["c"]["draft-model"] == pytest.approx(0.25 / 1.05, rel=1e-3)
    assert document["costs"]["v"]["4"] == pytest.approx(1.25 / 1.05, rel=1e-3)


def test_named_drafts_are_tried_beside_one_another(world):
    result = run(world, 3000.0, methods=("draft-model",), drafts=("other", "self"))
    assert {arm.lane.draft for arm in result.arms} == {"other", "self"}
    assert result.winner.lane.draft == "self" and "draft=self" in result.winner.name
    assert world.loads.count(("draft", "self")) == world.loads.count(("draft", "other")) == 1


def test_methods_that_seldom_pay_are_left_out_where_time_is_short(world):
    made = world.make_target
    world.models["target", BUNDLED] = lambda: _with_exits(made(row_cost=0.05))
    methods = ("draft-model", "lookahead", "early-exit", "prompt-lookup")
    long = run(world, 4000.0, methods=methods)
    assert {arm.lane.method for arm in long.arms} == set(methods) and not long.untried
    short = run(world, 130.0, methods=methods)
    assert short.races >= 2


def _with_exits(engine):
    engine.exit_layers, engine.exit_problem, engine.exit_cost = 8, None, 0.1
    return engine
