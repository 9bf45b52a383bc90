"""Round objects: to JSON and back."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specview.decoding.ledger import DraftedToken, FinalToken, Rider, Round
from specview.files.schema import SchemaError, dumps, number, round_from_json, round_to_json

# text with everything but lone surrogates, the line separators of str.splitlines among it
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(["\n", "\u2028", "\x85", "🦊"])
ids = st.integers(0, 200_000)
reals = st.floats(-1e9, 1e9, allow_nan=False)
maybe = st.none() | reals
candidates = st.lists(st.tuples(ids, texts, st.floats(0, 1)), max_size=3).map(tuple)
drafted_tokens = st.builds(
    DraftedToken,
    id=ids,
    verdict=st.sampled_from(["accepted", "rejected", "ignored"]),
    q=maybe, p=maybe, accept=maybe, u=maybe, text=texts, confidence=maybe, margin=maybe, draw=st.none() | ids,
    threshold=maybe, p_top=candidates, q_top=candidates, residual_top=candidates, entropy=maybe,
)  # fmt: skip
final_tokens = st.builds(
    FinalToken, id=ids, kind=st.sampled_from(["corrected", "bonus", "plain"]), text=texts, p=maybe, margin=maybe,
    p_top=candidates, entropy=maybe,
)  # fmt: skip


@st.composite
def rounds(draw: st.DrawFn, index: int | None = None) -> Round:
    drafted = draw(st.lists(drafted_tokens, max_size=4).map(tuple))
    tree = draw(st.booleans())
    count = draw(st.integers(0, 3))
    riders = tuple(Rider(draw(ids), draw(texts), draw(st.integers(-1, i - 1))) for i in range(count))
    parents = tuple(draw(st.integers(-1, i - 1)) for i in range(len(drafted)))
    return Round(
        index=draw(st.integers(0, 9999)) if index is None else index,
        t=draw(st.floats(0, 1e5)), draft_s=draw(st.floats(0, 10)), verify_s=draw(st.floats(0, 10)),
        other_s=draw(st.floats(0, 1)), observe_s=draw(st.floats(0, 1)), drafter=draw(texts),
        parents=parents if tree else None, riders=riders,
        drafted=drafted, final=draw(st.none() | final_tokens), full_context=draw(st.integers(0, 4096)),
    )  # fmt: skip


@given(rounds(), st.integers(0, 4))
def test_a_round_survives_the_file_to_seven_digits(round_: Round, lane: int) -> None:
    text = dumps(round_to_json(lane, round_))
    assert "\n" not in text
    back_lane, back = round_from_json(json.loads(text))
    assert back_lane == lane
    assert back.emitted == round_.emitted
    assert back.riders == round_.riders
    assert back.full_context == round_.full_context
    assert back.k == round_.k and back.parents == round_.parents and back.drafter == round_.drafter
    assert back.t == pytest.approx(round_.t, rel=1e-6)
    for ours, theirs in zip(back.drafted, round_.drafted, strict=True):
        assert (ours.id, ours.text, ours.verdict, ours.draw) == (theirs.id, theirs.text, theirs.verdict, theirs.draw)
        assert (ours.p is None) == (theirs.p is None)
        assert [c[:2] for c in ours.p_top] == [c[:2] for c in theirs.p_top]
    # what was once written is written the same again
    assert dumps(round_to_json(lane, back)) == text


@given(reals.filter(bool))
def test_numbers_keep_seven_significant_digits(value: float) -> None:
    assert number(value) == pytest.approx(value, rel=5e-7)
    digits = f"{number(value):e}".split("e")[0].replace(".", "").lstrip("-").rstrip("0")
    assert len(digits) <= 7


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_what_does_not_exist_is_null(value: float | None) -> None:
    assert number(value) is None


def test_whole_numbers_stay_exact() -> None:
    assert number(2**53 + 1) == 2**53 + 1


def test_the_keys_are_those_of_the_design() -> None:
    round_ = Round(0, 0.1, 0.0, 0.1, 0.0, drafted=(DraftedToken(1, "accepted"),), final=FinalToken(2, "bonus"))
    value = round_to_json(1, round_)
    assert list(value) == [
        "lane", "index", "t", "draft_s", "verify_s", "other_s", "observe_s", "k", "drafter", "parents", "drafted",
        "final",
    ]  # fmt: skip
    assert list(value["drafted"][0]) == [
        "id", "text", "q", "p", "accept", "u", "verdict", "confidence", "q_top", "p_top", "entropy",
    ]  # fmt: skip
    assert list(value["final"]) == ["id", "text", "kind", "p", "p_top", "entropy"]


def test_lone_surrogates_still_make_utf8() -> None:
    text = dumps({"text": "a\udcff"})
    assert text.encode("utf-8") and json.loads(text) == {"text": "a\udcff"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"t": "soon"}, "t: expected float, got str"),
        ({"verify_s": -0.1}, "verify_s: expected float >= 0.0"), ({"t": math.nan}, "t: "), ({"t": math.inf}, "t: "),
        ({"index": 1.5}, "index: expected int, got float"), ({"index": True}, "index: "),
        ({"k": 3}, "k is 3"),
        ({"drafted": [{"id": 1, "verdict": "may\nbe"}]}, r"drafted\[0\].verdict: .*'may\\nbe'"),
        ({"final": {"id": 1, "kind": "odd"}}, "kind"),
        ({"parents": [0, 1]}, "parents"),
        ({"drafted": {}}, "drafted: expected array"),
        ({"riders": [[1]]}, r"riders\[0\]: expected array of length 3"),
        ({"riders": [[1, "a", 0]]}, "rider 0 has parent 0"),
        ({"parents": [1], "drafted": [{"id": 1, "verdict": "ignored"}], "k": 1}, "node 0 has parent 1"),
    ],
)
def test_what_does_not_fit_is_named(change: dict, says: str) -> None:
    value = {**round_to_json(0, Round(0, 0.1, 0.0, 0.1, 0.0)), **change}
    with pytest.raises(SchemaError, match=says):
        round_from_json(value)
