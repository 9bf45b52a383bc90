"""What-if replay against real runs of the same loop: equal where it says exact, within where it gives bounds."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specview.decoding.sampling import SamplingParams
from specview.errors import SpecviewError, Stopped, UsageError
from specview.lab.measured import passes_of
from specview.lab.what_if import best_of, default_lengths, replay_of_lane, what_if
from specview.lab.what_if_lane import Replay
from tests.lab.what_if_runs import recorded

MATCH = SamplingParams(temperature=0.9, seed=4)
COPYING = ("prompt-lookup", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "suffix")
ENDLESS_LOOP = {"order": 3, "seed": 5}  # a text that comes to repeat itself, for the drafters that copy
SMALL_N = {
    "ngram-simple": {"size_n": 2, "size_m": 8},
    "ngram-map-k": {"size_n": 2, "size_m": 8},
    "ngram-map-k4v": {"size_n": 2, "size_m": 8},
    "ngram-mod": {"n_match": 2, "n_min": 1},
}


def agrees(asked, real):
    """The alternative says of a real run what is true of it."""
    count, tokens = len(real.rounds), len(real.token_ids)
    assert asked.rounds.low <= asked.rounds.value <= asked.rounds.high
    if asked.how == "exact":
        assert asked.rounds.known and asked.rounds.value == count
        assert asked.tokens_per_pass.value == pytest.approx(tokens / count)
        assert asked.drafted == pytest.approx(sum(round_.k for round_ in real.rounds) / count)
    else:
        assert asked.rounds.low <= count <= asked.rounds.high
        assert asked.tokens_per_pass.low <= tokens / count + 1e-9
        assert tokens / count <= asked.tokens_per_pass.high + 1e-9


@pytest.mark.parametrize(("rule", "sampling"), [("greedy", SamplingParams()), ("match", MATCH)])
@settings(max_examples=12, deadline=None)
@example(seed=0, order=None, noise=0.0, k=1, recorded_k=3, end=False, count=21)
@given(
    seed=st.integers(0, 5), order=st.sampled_from([None, 2, 3]), noise=st.sampled_from([0.0, 0.2, 0.4, 0.9]),
    k=st.integers(1, 12), recorded_k=st.sampled_from([1, 3, 8]), end=st.booleans(), count=st.integers(1, 90),
)  # fmt: skip
def test_other_lengths_of_a_draft_model_are_those_of_real_runs(
    rule, sampling, seed, order, noise, k, recorded_k, end, count
):
    world = {"rule": rule, "sampling": sampling, "seed": seed, "order": order, "noise": noise, "count": count,
             "eos_ids": (5,) if end else ()}  # fmt: skip
    run = recorded(k=recorded_k, **world)
    if not any(round_.k for round_ in run.rounds):
        return
    replay = Replay(run)
    k = min(k, replay.longest)
    asked = replay.length(k)
    real = recorded(k=k, **world)
    assert real.token_ids == run.token_ids
    agrees(asked, real)
    width = asked.rounds.high - asked.rounds.low
    if rule == "greedy":  # what no later pass caught up with is a place or two at the end
        assert width <= 2
    elif k == 1:
        # Drafts are drawn by where they begin: of a place inside a judged draft it is not known what one from there would
        # have begun with. Each such place is a round more or less: R(s) is 1 + R(s + 1) or 1 + R(s + 2), within 1 of R(s + 1).
        assert width <= len(run.token_ids) - len(replay.table.first)


@pytest.mark.parametrize(
    ("policy", "options"),
    [("heuristic", {}), ("off-below", {"threshold": 0.5, "window": 4, "retry": 2}), ("confidence", {"threshold": 0.3}),
     ("confidence", {"threshold": 0.6}), ("confidence", {"threshold": 1.0})],
)  # fmt: skip
@pytest.mark.parametrize("seed", [0, 1])
def test_length_policies_make_the_rounds_of_real_runs(policy, options, seed):
    world = {"seed": seed, "noise": 0.3, "count": 100}
    asked = Replay(recorded(k=8, **world)).policy_of(policy, options, 8)
    real = recorded(k=8, policy=policy, policy_options=options, **world)
    if policy == "confidence":  # what follows a wrong token is not always known: only what it costs is open
        assert asked.rounds.low <= len(real.rounds) <= asked.rounds.high
        assert asked.rounds.value == pytest.approx(len(real.rounds), abs=1)
        assert asked.seconds is None or asked.seconds.low <= asked.seconds.value <= asked.seconds.high
    else:
        agrees(asked, real)


def test_any_recorded_policy_tells_of_the_others():
    world = {"noise": 0.25, "count": 100}
    for policy, options in (("confidence", {"threshold": 0.5}), ("off-below", {"window": 4, "retry": 2})):
        run = recorded(k=6, policy=policy, policy_options=options, **world)
        for k in (1, 2, 5, 9):
            agrees(Replay(run).length(k), recorded(k=k, **world))


@pytest.mark.parametrize("method", COPYING)
def test_drafters_without_a_model_are_run_again(method):
    world = {"method": method, "options": SMALL_N.get(method, {}), "count": 120, **ENDLESS_LOOP}
    run = recorded(k=8, **world)
    assert any(round_.k for round_ in run.rounds)
    replayed = Replay(run)
    for k in (1, 2, 5, 12):
        asked = replayed.length(k)
        assert asked.how == "exact"
        agrees(asked, recorded(k=k, **world))
    agrees(replayed.policy_of("heuristic", {}, 4), recorded(k=4, policy="heuristic", **world))
    confident = {"threshold": 0.5}
    asked = replayed.policy_of("confidence", confident, 8)
    agrees(asked, recorded(k=8, policy="confidence", policy_options=confident, **world))
    # The trace keeps nothing of the drafter that the replay needs: without it the answer is the same.
    blind = replace_rounds(run, [replace(round_, guesses=()) for round_ in run.rounds])
    assert Replay(blind).length(3) == replayed.length(3)


def test_a_cascade_of_copying_members_is_run_again_and_one_with_a_model_is_not():
    options = {"members": "ngram-simple+prompt-lookup", "ngram-simple.size_n": 4}
    world = {"method": "cascade", "options": options, "count": 90, **ENDLESS_LOOP}
    agrees(Replay(recorded(k=8, **world)).length(3), recorded(k=3, **world))
    with pytest.raises(SpecviewError, match="lane of its own"):
        Replay(recorded(method="cascade", options={"members": "prompt-lookup+draft-model"}, count=20))


def test_memory_of_earlier_runs_is_noticed():
    run = recorded(method="prompt-lookup", k=4, **ENDLESS_LOOP)
    drafting = [place for place, round_ in enumerate(run.rounds) if round_.k > 1]
    place = drafting[0]
    shorter = replace(run.rounds[place], drafted=run.rounds[place].drafted[:1], final=run.rounds[place].final)
    asked = Replay(replace_rounds(run, [*run.rounds[:place], shorter, *run.rounds[place + 1 :]])).length(2)
    assert asked.how == "modelled" and "otherwise than recorded" in asked.why


def replace_rounds(run, rounds):
    from specview.decoding.ledger import RunRecord

    return RunRecord(run.name, run.settings, run.prompt_ids, run.prefill_s, list(rounds), run.end)


@pytest.mark.parametrize("lacks", ["guesses", "other depths"])
@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 4), k=st.integers(1, 8), noise=st.sampled_from([0.1, 0.3, 0.6]))
def test_the_bounds_hold_without_guesses_and_of_a_drafter_that_says_other_things_at_other_depths(lacks, seed, k, noise):
    """A draft with another tokenizer counts as the latter: here it is the plain draft model, which the bounds must hold for."""
    world = {"seed": seed, "noise": noise, "count": 80}
    run = recorded(k=8, observe="off" if lacks == "guesses" else "light", **world)
    if lacks == "guesses":
        assert all(not round_.guesses for round_ in run.rounds)
    else:
        run.settings["option_vocabulary"] = "re-encode"
    replayed, real = Replay(run), recorded(k=k, **world)
    asked = replayed.length(k)
    agrees(asked, real)
    assert asked.how in ("exact", "bounds")
    if lacks == "other depths":
        assert replayed.table is not None and not replayed.table.follows_text
        # Approximated by what was drafted at other depths, which for this drafter is no approximation.
        assert asked.rounds.value == pytest.approx(len(real.rounds), abs=1)


def test_the_recorded_length_is_always_exact_even_where_the_rest_is_not():
    run = recorded(k=5, observe="off", noise=0.4)
    run.settings["option_vocabulary"] = "intersection"
    asked = Replay(run).length(5)
    assert asked.how == "exact" and asked.rounds.value == len(run.rounds)


def test_rejection_above_temperature_0_is_a_model_near_the_mean_of_real_runs():
    real = {1: [], 3: []}
    asked = {1: [], 3: []}
    for seed in range(20):
        sampling = SamplingParams(temperature=1.0, seed=seed)
        world = {"rule": "rejection", "sampling": sampling, "noise": 0.3, "count": 100}
        replayed = Replay(recorded(k=6, **world))
        for k in real:
            one = replayed.length(k)
            assert one.how == "modelled"
            asked[k].append(one.tokens_per_pass.value)
            real[k].append(100 / len(recorded(k=k, **world).rounds))
    for k in real:
        mean = sum(real[k]) / 20
        spread = math.sqrt(sum((value - mean) ** 2 for value in real[k]) / 19 / 20)
        # 4 standard errors of the difference of two means, and 2% for what the model leaves out.
        assert sum(asked[k]) / 20 == pytest.approx(mean, abs=4 * math.sqrt(2) * spread + 0.02 * mean)


def test_seconds_are_those_of_the_measured_costs():
    plain = recorded(method="plain", count=60)
    run = recorded(k=8, count=60)
    lanes = [plain, run, recorded(k=2, count=60)]
    replayed = replay_of_lane(lanes, 1)
    asked = replayed.length(2)
    # A pass costs 10 ms and 2 ms a row; a draft step 1 ms. The other lane tells the pass of three rows.
    costs = replayed.costs
    assert costs is not None and asked.cost_words == "calibrated"
    assert costs.pass_s(3) == pytest.approx(0.016) and costs.plain_round_s == pytest.approx(0.012)
    real = lanes[2]
    spent = sum(round_.seconds for round_ in real.rounds)
    assert asked.seconds is not None and asked.speedup is not None
    assert asked.seconds.value == pytest.approx(spent, rel=0.03)  # a step of catching up is on its clock too
    assert asked.speedup.value == pytest.approx(60 * 0.012 / spent, rel=0.03)
    first = replayed.recorded()
    assert first.how == "measured"
    assert first.seconds is not None and first.seconds.value == pytest.approx(sum(r.seconds for r in run.rounds))


def test_the_oracles_are_never_beaten():
    plain = recorded(method="plain", count=100, **ENDLESS_LOOP)
    lanes = [plain, recorded(k=8, count=100, **ENDLESS_LOOP),
             recorded(method="prompt-lookup", k=8, count=100, **ENDLESS_LOOP)]  # fmt: skip
    replays = [replay_of_lane(lanes, index) for index in (1, 2)]
    result = what_if(replays[0], others=replays[1:])
    oracles = [one for one in result.alternatives if one.kind == "oracle"]
    assert [one.name for one in oracles] == ["oracle: length", "oracle: method"]
    fastest = max(one.speedup.low for one in result.alternatives if one.kind != "oracle")
    assert oracles[0].speedup.high >= max(1.0, fastest) - 1e-9
    assert oracles[1].speedup.high >= oracles[0].speedup.high - 1e-9
    other = best_of(replays[1:])
    assert oracles[1].speedup.high >= other.speedup.high - 1e-9
    assert result.best is not None and result.best.kind != "oracle"


def test_the_sentence_compares_like_with_like_or_says_that_it_does_not():
    lanes = [recorded(method="plain", count=100), recorded(k=8, count=100)]
    replayed = replay_of_lane(lanes, 1)
    for found in (what_if(replayed), what_if(replayed, lengths=[1, 2], thresholds=[], policies=[])):
        assert "as measured" in found.sentence and "by the same costs" not in found.sentence
    alone = what_if(Replay(lanes[1], (), {1: 0.01, 9: 0.03}))
    assert alone.measured.own is None and ("by the same costs" in alone.sentence or "predicts" in alone.sentence)
    lanes[1].settings = {**lanes[1].settings, "check_mode": True}
    checked = what_if(replay_of_lane(lanes, 1), lengths=[1, 4], thresholds=[], policies=[])
    assert checked.best is None and "times say nothing" in checked.sentence and "k 4 takes the fewest" in checked.sentence
    assert "x" not in checked.sentence.replace("exact", "")


def test_the_oracle_of_several_lanes_stops_where_their_texts_part():
    lanes = [recorded(k=4, count=50, seed=1), recorded(k=4, count=50, seed=1)]
    lanes[1].rounds[-1] = replace(lanes[1].rounds[-1], final=replace(lanes[1].rounds[-1].final, id=3 - 0)) \
        if lanes[1].rounds[-1].final.id != 3 else replace(lanes[1].rounds[-1], final=replace(lanes[1].rounds[-1].final, id=2))  # fmt: skip
    replays = [Replay(lane, (), {1: 0.01, 9: 0.03}) for lane in lanes]
    found = best_of(replays)
    assert found is not None and "over the first 49 tokens" in found.why


def test_figures_without_times():
    run = recorded(k=8, count=60)
    run.rounds = run.rounds[:-1]  # no one-row pass left
    run.end = "stopped"
    replayed = Replay(run)
    assert replayed.costs is None
    result = what_if(replayed)
    assert all(one.speedup is None and one.seconds is None for one in result.alternatives)
    assert all(one.kind != "oracle" for one in result.alternatives)
    assert result.best is None and "Times are not known" in result.sentence
    assert any("cut short" in note for note in result.notes)


def test_a_draft_whose_context_is_full_drafts_nothing_more():
    world = {"count": 60, "draft_length": 40}
    run = recorded(k=8, **world)
    for k in (1, 3):
        agrees(Replay(run).length(k), recorded(k=k, **world))


@pytest.mark.parametrize("k", [3, 8, 9])
def test_default_lengths_go_up_to_the_recorded_one(k):
    assert default_lengths(Replay(recorded(k=k, count=40))) == list(range(1, k + 1))


def test_what_cannot_be_replayed_says_why_in_one_line():
    greedy = recorded(k=3, count=20)
    lossy = recorded(k=3, count=20, rule="typical", sampling=SamplingParams(temperature=1.0))
    tree = replace_rounds(greedy, [replace(r, parents=tuple(range(-1, r.k - 1))) for r in greedy.rounds])
    old = replace_rounds(greedy, greedy.rounds)
    old.settings = {**greedy.settings, "option_vocabulary": "re-encode"}
    for make, says in (
        (lambda: Replay(recorded(method="plain", count=10)), "plain decoding"),
        (lambda: Replay(lossy), "lossy"),
        (lambda: Replay(tree), "trees"),
        (lambda: Replay(replace_rounds(greedy, [])), "no rounds"),
        (lambda: Replay(old).length(5), "up to 3"),
        (lambda: Replay(recorded(k=3, count=20, observe="off")).policy_of("confidence", {}, 3), "--observe"),
    ):
        with pytest.raises(SpecviewError, match=says) as caught:
            make()
        assert "\n" not in str(caught.value)
    for name, options, k in (("fancy", {}, 3), ("confidence", {"threshold": 2}, 3), ("constant", {}, 0),
                             ("constant", {}, 65), ("constant", {"threshold": 1}, 3)):  # fmt: skip
        with pytest.raises(UsageError):
            Replay(greedy).policy_of(name, options, k)


def test_it_stops_when_told():
    replayed = Replay(recorded(k=4, count=100))

    def stop(text, fraction):
        raise Stopped

    with pytest.raises(Stopped):
        what_if(replayed, tell=stop)


def test_passes_of_early_exit_are_not_taken_for_whole_ones():
    rounds = [SimpleNamespace(rows=2, verify_s=1.0)] * 3
    lanes = [SimpleNamespace(settings={"method": "early-exit"}, rounds=rounds),
             SimpleNamespace(settings={"method": "draft-model"},
                             rounds=[*[SimpleNamespace(rows=2, verify_s=3.0)] * 3, SimpleNamespace(rows=4, verify_s=9.0)])]  # fmt: skip
    assert passes_of(lanes) == {2: 3.0}


def test_the_recorded_choice_takes_the_time_that_it_took():
    """One round that took long counts in what was recorded and not in medians: both say the same of the same choice."""
    run = recorded(k=8, count=60)
    late = [replace(round_, t=round_.t + 0.5 * (index > 3), other_s=round_.other_s + 0.5 * (index == 4))
            for index, round_ in enumerate(run.rounds)]  # fmt: skip
    replayed = replay_of_lane([recorded(method="plain", count=60), replace(run, rounds=late)], 1)
    same, first = replayed.length(8), replayed.recorded()
    assert same.seconds is not None and first.seconds is not None and same.speedup == first.speedup
    assert same.seconds.value == pytest.approx(first.seconds.value)
    assert same.seconds.low <= same.seconds.value <= same.seconds.high
