"""Deep figures of a lane: counts that add up, bins that lose nothing, arrivals that are the rounds' own."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.details import (
    ENTROPY_EDGES,
    MOST_POSITION_BINS,
    POSITION_BIN,
    details_of,
    wilson,
)
from specview.decoding.ledger import DraftedToken, FinalToken, Round
from specview.decoding.metrics import fold
from specview.decoding.round_table import RoundTable
from specview.files.schema import dumps, plain

seconds = st.floats(1e-5, 0.2)
entropies = st.one_of(st.none(), st.floats(0, 8))


@st.composite
def drafts(draw) -> tuple[tuple[DraftedToken, ...], tuple[int, ...] | None]:
    """A judged draft: a chain, or a tree of which one path is accepted."""
    k = draw(st.integers(0, 6))
    known = [draw(entropies) for _ in range(k)]
    if draw(st.booleans()):
        accepted = draw(st.integers(0, k))
        verdicts = ["accepted"] * accepted + ["rejected"] * (accepted < k) + ["ignored"] * (k - accepted - 1)
        return tuple(DraftedToken(i, v, entropy=e) for i, (v, e) in enumerate(zip(verdicts, known, strict=True))), None
    parents = tuple(draw(st.integers(-1, place - 1)) for place in range(k))
    path, at = set(), -1
    for place in range(k):
        if parents[place] == at and draw(st.booleans()):
            path.add(place)
            at = place
    verdicts = ["accepted" if i in path else draw(st.sampled_from(["rejected", "ignored"])) for i in range(k)]
    return tuple(DraftedToken(i, v, entropy=e) for i, (v, e) in enumerate(zip(verdicts, known, strict=True))), parents


@st.composite
def lanes(draw, most: int = 25) -> list[Round]:
    rounds: list[Round] = []
    for index in range(draw(st.integers(0, most))):
        drafted, parents = draw(drafts())
        times = [draw(seconds) for _ in range(3)]
        t = (rounds[-1].t if rounds else 0.0) + sum(times)
        final = FinalToken(1, "plain") if draw(st.integers(0, 9)) else None  # now and then an accepted EOS ends it
        rounds.append(Round(index, t, *times, parents=parents, drafted=drafted, final=final))
    return rounds


@given(rounds=lanes(), prefill=st.one_of(st.none(), seconds))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_the_counts_are_those_of_the_ledger_and_of_the_metrics(rounds, prefill):
    found, figures = details_of(rounds, prefill), fold(rounds, prefill)
    assert sum(found.accepted_lengths.values()) + found.empty_drafts == len(rounds)
    assert sum(length * count for length, count in found.accepted_lengths.items()) == figures.accepted
    assert sum(size * count for size, count in found.bursts.items()) == figures.emitted
    assert sum(found.bursts.values()) == len(rounds)
    assert found.judged == figures.judged
    assert sum(one.judged for one in found.along) == figures.judged
    assert sum(one.accepted for one in found.along) == figures.accepted
    known = [token for round_ in rounds for token in round_.drafted
             if token.verdict != "ignored" and token.entropy is not None]  # fmt: skip
    assert found.entropy_known == sum(one.judged for one in found.entropy) == len(known)
    assert (found.ttft_s, found.gap_p50_s, found.gap_p95_s) == (figures.ttft_s, figures.itl_p50_s, figures.itl_p95_s)
    for one in (*found.entropy, *found.along):
        assert 0 <= one.accepted <= one.judged
        assert (one.rate is None) == (one.judged == 0) == (one.interval is None)


@given(rounds=lanes())
@settings(deadline=None, derandomize=True, max_examples=40)
def test_the_timeline_has_no_gap_and_no_overlap(rounds):
    found = details_of(rounds)
    assert [span.index for span in found.timeline] == list(range(len(rounds)))
    end = 0.0
    for span, round_ in zip(found.timeline, rounds, strict=True):
        assert span.start_s == pytest.approx(end, abs=1e-9)
        end = span.start_s + span.seconds
        assert end == pytest.approx(round_.t)
        assert (span.k, span.accepted, span.emitted) == (round_.k, round_.accepted, len(round_.emitted))
    assert list(found.gaps_s) == [round_.seconds for round_ in rounds[1:]]


@given(rounds=lanes(most=12))
@settings(deadline=None, derandomize=True, max_examples=20)
def test_a_fold_while_it_runs_is_the_fold_of_what_there_is(rounds):
    running = RoundTable(prefill_s=0.5)
    for count, round_ in enumerate(rounds, start=1):
        running.add(round_)
        assert details_of(running) == details_of(rounds[:count], 0.5)


def drafted(verdicts: str, entropy: float | None = None) -> tuple[DraftedToken, ...]:
    names = {"a": "accepted", "r": "rejected", "i": "ignored"}
    return tuple(DraftedToken(i, names[v], entropy=entropy) for i, v in enumerate(verdicts))


def lane(*verdicts: str, entropy: float | None = None) -> list[Round]:
    return [
        Round(i, 0.1 * (i + 1), 0.02, 0.07, 0.01, drafted=drafted(v, entropy), final=FinalToken(9, "bonus"))
        for i, v in enumerate(verdicts)
    ]


def test_figures_by_hand():
    found = details_of(lane("aaa", "ari", "", "rii"), prefill_s=0.3)
    assert found.accepted_lengths == {0: 1, 1: 1, 3: 1} and found.empty_drafts == 1
    assert found.bursts == {1: 2, 2: 1, 4: 1}
    assert found.ttft_s == pytest.approx(0.4) and found.first_round_s == pytest.approx(0.1)
    assert found.together_share == pytest.approx(4 / 7)  # 8 tokens, 7 gaps, 3 between bursts
    assert len(found.gaps_s) == 3 and found.gap_max_s == pytest.approx(0.1)


def test_entropy_tells_easy_tokens_from_hard_ones_or_that_it_was_not_recorded():
    easy, hard = lane("aaaa", "aaar", entropy=0.01), lane("r", "ar", entropy=2.5)
    found = details_of([*easy, *hard])
    assert found.entropy[0].rate == pytest.approx(7 / 8) and found.entropy[0].judged == 8
    tall = next(one for one in found.entropy if one.low <= 2.5 and (one.high is None or one.high > 2.5))
    assert (tall.judged, tall.accepted) == (3, 1)
    assert found.entropy_note == ""
    assert "not recorded" in details_of(lane("ar")).entropy_note
    assert details_of([*lane("ar"), *easy]).entropy_note == "Entropies of 8 of 10 trials were recorded."
    assert details_of(lane("", "")).entropy_note == "Nothing was judged."


@given(entropy=st.floats(0, 1e6))
@settings(deadline=None, derandomize=True)
def test_every_entropy_has_one_bin(entropy):
    found = details_of(lane("a", entropy=entropy))
    (only,) = [one for one in found.entropy if one.judged]
    assert only.low <= entropy and (only.high is None or entropy < only.high)
    assert len(found.entropy) == len(ENTROPY_EDGES)


def test_along_the_output_counts_where_a_token_stands_and_widens_its_bins():
    first = details_of(lane(*["ar"] * 10))  # two tokens a round: trial positions 0, 1, 2, ... 19
    assert [(one.low, one.high, one.judged, one.accepted) for one in first.along] == [(0, 16, 16, 8), (16, 32, 4, 2)]
    long = details_of(lane(*["ar"] * 3000))
    assert len(long.along) <= MOST_POSITION_BINS
    widths = {one.high - one.low for one in long.along}
    assert len(widths) == 1 and widths.pop() % POSITION_BIN == 0
    assert long.along[-1].high >= 6000 and sum(one.judged for one in long.along) == 6000


def test_trees_count_trials_at_their_depth():
    tokens = drafted("raia")  # two roots, the second accepted; its child accepted
    round_ = Round(0, 0.1, 0.02, 0.07, 0.01, parents=(-1, -1, 0, 1), drafted=tokens, final=FinalToken(9, "bonus"))
    found = details_of([round_])
    assert found.accepted_lengths == {2: 1} and found.bursts == {3: 1} and found.judged == 3


def test_nothing_and_one_round():
    nothing = details_of([])
    assert nothing.ttft_s is None and nothing.gaps_s == () and nothing.together_share is None
    assert nothing.along == () and nothing.timeline == () and nothing.entropy_note == "Nothing was judged."
    one = details_of(lane("ar"), prefill_s=1.0)
    assert one.gaps_s == () and one.gap_p50_s is None and one.gap_max_s is None and one.ttft_s == pytest.approx(1.1)


@pytest.mark.parametrize(("hits", "trials", "low", "high"), [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0)])
def test_wilsons_interval_is_the_tables(hits, trials, low, high):
    found = wilson(hits, trials)
    assert found == (pytest.approx(low, abs=2e-4), pytest.approx(high, abs=2e-4))
    assert wilson(0, 0) is None


@given(rounds=lanes(most=8))
@settings(deadline=None, derandomize=True, max_examples=30)
def test_the_document_holds_no_number_that_is_none(rounds):
    text = dumps(plain(details_of(rounds, 0.1).as_dict()))
    assert "NaN" not in text and "Infinity" not in text
    assert math.isfinite(len(text))
