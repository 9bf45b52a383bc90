"""Draft length policies, and the typed options of methods."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.costs import Costs, interpolate
from specview.decoding.ledger import DraftedToken, FinalToken, Rider, Round
from specview.drafting.policies import LONGEST, POLICIES
from specview.drafting.prompt_lookup import OPTIONS
from specview.drafting.registry import METHODS
from specview.errors import UsageError
from specview.settings.options import Option, idle_option, resolve


def round_of(k: int, accepted: int) -> Round:
    verdicts = (
        ["accepted"] * accepted + ["rejected"] * (k > accepted) + ["ignored"] * max(0, k - accepted - 1)
    )
    drafted = tuple(DraftedToken(0, verdict) for verdict in verdicts)
    return Round(0, 1.0, 0.0, 1.0, 0.0, drafter="d", drafted=drafted, final=FinalToken(0, "plain"))


def make(name, k, **options):
    info = POLICIES[name]
    policy = info.make(resolve(info.options, options, name))
    policy.start(k)
    return policy


def test_the_policies():
    assert list(POLICIES) == ["constant", "heuristic", "confidence", "adaptive", "off-below"]
    for name, info in POLICIES.items():
        policy = make(name, 3)
        assert info.name == name
        assert 0 <= policy.budget() <= 3
        assert info.label
        assert info.description
        assert all(option.help and option.label for option in info.options), name
    assert [name for name in POLICIES if POLICIES[name].needs_costs] == ["adaptive"]
    for name in ("constant", "heuristic", "confidence"):
        assert make(name, 3).budget() == 3


def test_heuristic_grows_a_tree_whose_longest_path_was_accepted():
    """Of a tree's tokens no more than one path can be accepted."""

    def tree(accepted):
        verdicts = ["accepted", "rejected", "accepted" if accepted == 2 else "rejected"]
        drafted = tuple(DraftedToken(0, verdict) for verdict in verdicts)
        return Round(0, 1.0, 0.0, 1.0, 0.0, drafter="t", parents=(-1, -1, 0), drafted=drafted)

    policy = make("heuristic", 3)
    policy.observe(tree(2))
    assert policy.budget() == 5
    policy.observe(tree(1))
    assert policy.budget() == 4


def test_constant_is_always_k():
    policy = make("constant", 4)
    for k, accepted in ((4, 4), (4, 0), (0, 0), (2, 2)):
        policy.observe(round_of(k, accepted))
        assert policy.budget() == 4
    assert policy.proceed is None


def test_heuristic_is_transformers_schedule():
    """+2 after a fully accepted draft, -1 otherwise, never below 1; a plain round says nothing."""
    policy = make("heuristic", 2)
    lengths = []
    for k, accepted in ((2, 2), (4, 4), (6, 3), (5, 0), (0, 0), (4, 4)):
        policy.observe(round_of(k, accepted))
        lengths.append(policy.budget())
    assert lengths == [4, 6, 5, 4, 4, 6]
    for _ in range(10):
        policy.observe(round_of(3, 1))
    assert policy.budget() == 1
    for _ in range(100):
        policy.observe(round_of(1, 1))
    assert policy.budget() == LONGEST == 64
    policy.start(5)
    assert policy.budget() == 5


def test_confidence_goes_on_at_the_threshold_and_stops_below():
    policy = make("confidence", 6, threshold=0.3)
    assert policy.budget() == 6
    assert [policy.proceed(value) for value in (0.9, 0.3, 0.2999, 0.0)] == [True, True, False, False]
    assert make("confidence", 6).proceed(0.4)
    assert not make("confidence", 6).proceed(0.39)
    with pytest.raises(UsageError, match="threshold"):
        make("confidence", 6, threshold=1.5)


# -- off-below ------------------------------------------------------------------------------------------


def drive(policy, chance, rounds, proposes=None, seed=1):
    """Rounds of a drafter whose tokens each hold with `chance`; `proposes` limits what it has to say."""
    draws, made = random.Random(seed), []
    for index in range(rounds):
        k = policy.budget() if proposes is None else min(policy.budget(), proposes(index))
        accepted = 0
        while accepted < k and draws.random() < chance:
            accepted += 1
        made.append(round_of(k, accepted))
        policy.observe(made[-1])
        costs = getattr(policy, "costs_of_test", None)
        if costs is not None:  # as a lane does
            seconds = interpolate(costs.calibrated, k + 1)
            costs.observe(replace(made[-1], verify_s=seconds, draft_s=0.0, drafter="d" if k else ""))
    return made


def test_off_below_goes_to_k_where_drafts_hold_and_stays():
    policy = make("off-below", 16)
    lengths = [round_.k for round_ in drive(policy, 1.0, 12)]
    assert lengths == [1, 2, 4, 8, 16, 16, 16, 16, 16, 16, 16, 16]


def test_off_below_costs_next_to_nothing_where_nothing_holds():
    """Over 128 rounds a drafter that is always wrong drafts one token, six times."""
    rounds = drive(make("off-below", 48), 0.0, 128)
    drafted = [index for index, round_ in enumerate(rounds) if round_.k]
    assert sum(round_.k for round_ in rounds) == len(drafted) <= 6
    gaps = [b - a for a, b in zip(drafted, drafted[1:], strict=False)]
    assert gaps == sorted(gaps)
    assert gaps[1] - 1 == 2 * (gaps[0] - 1)


def test_off_below_turns_off_after_a_window_of_bad_drafts_and_comes_back():
    policy = make("off-below", 8, window=16)
    drive(policy, 1.0, 8)
    assert policy.budget() == 8
    bad = drive(policy, 0.0, 3)
    assert [round_.k for round_ in bad][:1] == [8]
    assert policy.budget() == 0
    again = drive(policy, 1.0, 20)
    assert again[-1].k == 8
    assert sum(round_.k == 0 for round_ in again) <= 8


def test_off_below_keeps_on_at_the_threshold_and_not_below():
    for threshold, stays in ((0.5, True), (0.51, False)):
        policy = make("off-below", 4, threshold=threshold, window=16)
        drive(policy, 1.0, 6)
        for _ in range(12):
            policy.observe(round_of(policy.budget(), min(2, policy.budget())))
            if not policy.budget():
                break
        assert (policy.budget() == 4) == stays


def test_off_below_a_drafter_with_nothing_to_propose_costs_nothing_and_is_not_judged():
    policy = make("off-below", 16)
    rounds = drive(policy, 1.0, 40, proposes=lambda index: 0)
    assert all(round_.k == 0 for round_ in rounds)
    assert policy.budget() == 1  # still on its first probation


def test_off_below_one_token_drafts():
    policy = make("off-below", 1)
    assert [round_.k for round_ in drive(policy, 1.0, 3)] == [1, 1, 1]
    assert sum(round_.k for round_ in drive(make("off-below", 1), 0.0, 128)) <= 6


def test_off_below_begins_anew_with_a_run():
    policy = make("off-below", 16)
    drive(policy, 0.0, 50)
    policy.start(4)
    assert policy.budget() == 1


# -- adaptive -------------------------------------------------------------------------------------------

CHEAP = {1: 1.0, 2: 1.05, 4: 1.1, 8: 1.2, 16: 1.4, 33: 2.0}
DEAR = {1: 1.0, 2: 1.8, 3: 2.6, 4: 2.9, 5: 3.5, 17: 11.0}


def adaptive(k, passes, **options):
    info = POLICIES["adaptive"]
    costs = Costs(passes)
    policy = info.make(resolve(info.options, options, "adaptive"), costs)
    policy.start(k)
    policy.costs_of_test = costs
    return policy


def later(rounds):
    return [round_.k for round_ in rounds[len(rounds) // 2 :]]


def test_adaptive_drafts_long_where_tokens_hold_and_short_where_they_do_not():
    means = []
    for chance in (0.3, 0.6, 0.8, 0.99):
        lengths = later(drive(adaptive(32, CHEAP), chance, 200))
        means.append(sum(lengths) / len(lengths))
    assert means == sorted(means)
    assert means[0] < 4
    assert means[-1] > 16


@pytest.mark.parametrize("chance", [0.5, 0.7, 0.9])
@pytest.mark.parametrize("passes", [CHEAP, DEAR])
def test_adaptive_is_near_the_best_constant_length(chance, passes):
    """On independent tokens, where the best constant is best: within a tenth, over 400 rounds, retries included."""
    costs = Costs(passes)
    times = costs.rounds_s("", 16, copies=True)
    best = max((1 + sum(chance**i for i in range(1, k + 1))) / times[k] for k in range(17))
    rounds = drive(adaptive(16, passes), chance, 400)
    speed = sum(len(round_.emitted) for round_ in rounds) / sum(times[round_.k] for round_ in rounds)
    assert speed > 0.9 * best


def test_adaptive_leaves_drafting_where_plain_is_faster_and_retries_ever_less_often():
    rounds = drive(adaptive(16, DEAR), 0.1, 400)
    tried = [index for index, round_ in enumerate(rounds) if round_.k]
    assert len(tried) < 30
    assert sum(rounds[index].k for index in tried) < 3 * len(tried)
    gaps = [b - a for a, b in zip(tried, tried[1:], strict=False)]
    assert max(gaps) >= 32


def test_adaptive_follows_the_text():
    policy = adaptive(16, DEAR)
    drive(policy, 0.05, 60)
    assert sum(later(drive(policy, 0.98, 120, seed=2))) / 60 > 6
    assert sum(later(drive(policy, 0.05, 120, seed=3))) / 60 < 1


def test_adaptive_never_drafts_more_than_k():
    for k in (1, 2, 5):
        assert max(round_.k for round_ in drive(adaptive(k, CHEAP), 1.0, 60)) == k


def test_adaptive_lets_a_drafter_that_is_sure_go_on():
    """Once the drafter has asked, the length is settled token by token."""
    policy = adaptive(16, CHEAP)
    lengths = []
    for _ in range(60):
        most, k = policy.budget(), 0
        if most:
            go_on = policy.proceed
            while k < most:
                k += 1
                if not go_on(0.98 if k <= 4 else 0.05):
                    break
        held = min(k, 4)
        verdicts = ["accepted"] * held + ["rejected"] * (k > held) + ["ignored"] * max(0, k - held - 1)
        drafted = tuple(
            DraftedToken(0, verdict, confidence=0.98 if place < 4 else 0.05) for place, verdict in enumerate(verdicts)
        )
        policy.observe(Round(0, 1.0, 0.0, 1.1, 0.0, drafter="d", drafted=drafted, final=FinalToken(0, "bonus")))
        lengths.append(k)
    assert set(lengths[20:]) <= {4, 5, 6}


def test_adaptive_without_a_calibration_takes_passes_as_equal():
    policy = make("adaptive", 8)
    assert 1 <= policy.budget() <= 8
    assert len(drive(policy, 0.9, 50)) == 50


def test_adaptive_learns_what_a_trees_other_nodes_cost():
    """A tree of 8 leaves for every depth: rows that the length alone does not tell."""
    policy = adaptive(8, DEAR)
    drafted_rounds = 0
    for _ in range(60):
        depth = policy.budget()
        if not depth:
            policy.observe(round_of(0, 0))
            continue
        drafted_rounds += 1
        parents = tuple(-1 if node < 8 else node - 8 for node in range(8 * depth))
        verdicts = ["accepted" if node % 8 == 0 else "rejected" if depth == 1 else "ignored" for node in range(8 * depth)]
        drafted = tuple(DraftedToken(node, verdict) for node, verdict in enumerate(verdicts))
        policy.observe(Round(0, 1.0, 0.0, 4.0, 0.0, drafter="t", parents=parents, drafted=drafted))
    chain = adaptive(8, DEAR)
    assert drafted_rounds < sum(round_.k > 0 for round_ in drive(chain, 1.0, 60)) / 2


NUMBER = Option("count", 3, "How many.", 1, 32)
SHARE = Option("share", 0.5, "How much.", 0.0, 1.0)
CHOICE = Option("match", "first", "Which.", choices=("first", "last"))
FLAG = Option("on", False, "Whether.")
TEXT = Option("file", "", "Where.")


@pytest.mark.parametrize(
    ("option", "given_value", "expected"),
    [
        (NUMBER, "7", 7),
        (NUMBER, 7, 7),
        (NUMBER, " 7 ", 7),
        (NUMBER, 1, 1),
        (NUMBER, "32", 32),
        (SHARE, "0.25", 0.25),
        (SHARE, "1", 1.0),
        (SHARE, 0, 0.0),
        (CHOICE, "last", "last"),
        (FLAG, "yes", True),
        (FLAG, "ON", True),
        (FLAG, "0", False),
        (FLAG, " no ", False),
        (FLAG, True, True),
        (TEXT, "a b", "a b"),
    ],
)
def test_values_become_the_options_type(option, given_value, expected):
    found = option.parse(given_value)
    assert found == expected
    assert type(found) is type(option.default)


@pytest.mark.parametrize(
    ("option", "bad"),
    [
        (NUMBER, "seven"),
        (NUMBER, "7.5"),
        (NUMBER, 7.5),
        (NUMBER, 0),
        (NUMBER, 33),
        (NUMBER, ""),
        (NUMBER, None),
        (NUMBER, True),
        (NUMBER, "1" * 400),
        (SHARE, "nan"),
        (SHARE, math.inf),
        (SHARE, 1.01),
        (SHARE, "-0.1"),
        (SHARE, None),
        (SHARE, [1]),
        (CHOICE, "middle"),
        (CHOICE, 3),
        (FLAG, "maybe"),
        (FLAG, 2),
    ],
)
def test_values_that_do_not_fit_are_one_line_that_names_the_option(option, bad):
    with pytest.raises(UsageError, match=option.name) as caught:
        option.parse(bad)
    assert "\n" not in str(caught.value)
    assert caught.value.mend, "says what would fit"


@given(value=st.one_of(st.text(max_size=8), st.integers(), st.floats(), st.none(), st.booleans()))
@settings(deadline=None, derandomize=True, max_examples=150)
def test_parsing_gives_a_value_that_fits_or_a_usage_error(value):
    for option in (NUMBER, SHARE, CHOICE, FLAG):
        try:
            found = option.parse(value)
        except UsageError:
            continue
        assert type(found) is type(option.default)
        if option.minimum is not None:
            assert option.minimum <= found <= option.maximum
        assert option.parse(found) == found


def test_resolve_fills_in_checks_and_refuses_unknown_names():
    assert resolve(OPTIONS, {}, "prompt-lookup") == {"ngram_max": 3, "ngram_min": 1, "match": "first"}
    assert resolve(OPTIONS, {"ngram_max": "5"}, "prompt-lookup")["ngram_max"] == 5
    with pytest.raises(UsageError, match="prompt-lookup has no option 'ngram'.*ngram_max, ngram_min, match"):
        resolve(OPTIONS, {"ngram": 1}, "prompt-lookup")
    with pytest.raises(UsageError, match="plain has no option 'k'.*none"):
        resolve((), {"k": 1}, "plain")


def test_ranges_in_words():
    assert NUMBER.range_text() == "a value from 1 to 32"
    assert Option("a", 1, "", minimum=2).range_text() == "2 or more"
    assert Option("a", 1, "", maximum=2).range_text() == "2 or less"
    assert Option("a", 1, "").range_text() == "a number"


@pytest.mark.parametrize("name", ["off-below", "adaptive"])
def test_a_window_that_never_has_a_guess_is_paused(name):
    """Lookahead's riders cost a wide pass even where nothing was drafted."""
    costs = Costs({1: 0.04, 9: 0.06, 65: 0.3})
    policy = POLICIES[name].make(resolve(POLICIES[name].options, {}, name), costs)
    policy.start(2)
    wide = Round(0, 0.06, 0.0, 0.06, 0.0, riders=(Rider(1), Rider(2, "", 0)), final=FinalToken(3, "plain"))
    plain = Round(0, 0.04, 0.0, 0.04, 0.0, final=FinalToken(3, "plain"))
    drafted = 0
    for _ in range(120):
        budget = policy.budget()
        drafted += budget > 0
        policy.observe(wide if budget else plain)
    assert 1 <= drafted <= 12


def test_an_option_that_says_nothing_is_named():
    options = METHODS["eagle3"].options
    chain, tree = METHODS["eagle3"].resolve({"depth": 3}), METHODS["eagle3"].resolve({"depth": 3, "tree": "dynamic"})
    assert str(idle_option(options, {"depth": "3"}, chain)) == (
        "depth says nothing while tree is chain. Leave it out, or give tree=dynamic."
    )
    assert idle_option(options, {"depth": "3"}, tree) is None
    assert idle_option(options, {}, chain) is None
    assert idle_option(METHODS["eagle2"].options, {"depth": "3"}, METHODS["eagle2"].resolve({"depth": 3})) is None
    assert idle_option(options, {"depth": "3"}, METHODS["eagle3"].resolve({"depth": 3, "preset": "gpu"})) is None
