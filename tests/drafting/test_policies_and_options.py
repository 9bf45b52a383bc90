"""Draft length policies, and the typed options of methods."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.ledger import DraftedToken, FinalToken, Round
from specview.drafting.options import Option, resolve
from specview.drafting.policies import LONGEST, POLICIES
from specview.drafting.prompt_lookup import OPTIONS
from specview.errors import UsageError


def round_of(k: int, accepted: int) -> Round:
    verdicts = (
        ["accepted"] * accepted + ["rejected"] * (k > accepted) + ["ignored"] * max(0, k - accepted - 1)
    )
    drafted = tuple(DraftedToken(0, verdict) for verdict in verdicts)
    return Round(0, 1.0, 0.0, 1.0, 0.0, drafted=drafted, final=FinalToken(0, "plain"))


def make(name, k, **options):
    info = POLICIES[name]
    policy = info.make(resolve(info.options, options, name))
    policy.start(k)
    return policy


def test_the_policies():
    assert list(POLICIES) == ["constant", "heuristic", "confidence"]
    for name, info in POLICIES.items():
        policy = make(name, 3)
        assert policy.name == info.name == name
        assert policy.budget() == 3
        assert info.label
        assert info.description


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
