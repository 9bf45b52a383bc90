"""Every figure of DESIGN section 6, recomputed from random ledgers by formulas written here."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.ledger import DraftedToken, FinalToken, Round
from specview.decoding.metrics import Metrics, fold, percentile
from specview.decoding.round_table import RoundTable


def ledger(seed: int, count: int, longest: int = 6, eos: bool = False) -> list[Round]:
    """A random run: drafts of 0..longest tokens, a random prefix accepted, times of any size."""
    rng = random.Random(seed)
    rounds, t = [], 0.0
    for index in range(count):
        k = rng.randint(0, longest)
        accepted = rng.randint(0, k)
        ended = eos and index == count - 1 and accepted > 0
        verdicts = ["accepted"] * accepted
        if accepted < k:
            verdicts += ["ignored" if ended else "rejected"] + ["ignored"] * (k - accepted - 1)
        kind = "plain" if not k else "bonus" if accepted == k else "corrected"
        draft_s = rng.uniform(0.001, 0.01) * k
        verify_s, other_s = rng.uniform(0.01, 0.1), rng.uniform(0.0001, 0.01)
        t += draft_s + verify_s + other_s
        rounds.append(
            Round(
                index=index,
                t=t,
                draft_s=draft_s,
                verify_s=verify_s,
                other_s=other_s,
                observe_s=rng.uniform(0, 1),
                drafted=tuple(DraftedToken(id=rng.randrange(99), verdict=verdict) for verdict in verdicts),
                final=None if ended else FinalToken(id=rng.randrange(99), kind=kind),
            )
        )
    return rounds


ledgers = st.builds(
    ledger, seed=st.integers(0, 10**6), count=st.integers(1, 40), longest=st.integers(0, 8), eos=st.booleans()
)
CHECKED = settings(deadline=None, derandomize=True, max_examples=60)


def verdicts_of(round_: Round) -> list[str]:
    return [token.verdict for token in round_.drafted]


@given(rounds=ledgers)
@CHECKED
def test_counts(rounds):
    found = fold(rounds)
    flat = [verdict for round_ in rounds for verdict in verdicts_of(round_)]
    assert found.rounds == len(rounds)
    assert found.proposed == len(flat)
    assert found.accepted == flat.count("accepted")
    assert found.judged == flat.count("accepted") + flat.count("rejected")
    assert found.ignored == flat.count("ignored")
    assert found.emitted == flat.count("accepted") + sum(round_.final is not None for round_ in rounds)


@given(rounds=ledgers)
@CHECKED
def test_acceptance_figures(rounds):
    found = fold(rounds)
    flat = [verdict for round_ in rounds for verdict in verdicts_of(round_)]
    drafting = [verdicts_of(round_) for round_ in rounds if round_.drafted]
    emitted = sum(len(round_.emitted) for round_ in rounds)
    if flat:
        judged = [verdict for verdict in flat if verdict != "ignored"]
        assert found.acceptance_rate == pytest.approx(judged.count("accepted") / len(judged))
        assert found.draft_acceptance == pytest.approx(flat.count("accepted") / len(flat))
        assert found.mean_accepted_length == pytest.approx(1 + flat.count("accepted") / len(drafting))
    else:
        assert found.acceptance_rate is None
        assert found.draft_acceptance is None
        assert found.mean_accepted_length is None
    assert found.tokens_per_target_pass == pytest.approx(emitted / len(rounds))
    longest = max((len(verdicts) for verdicts in drafting), default=0)
    assert len(found.position_acceptance) == len(found.position_acceptance_conditional) == longest
    for i in range(longest):
        reached = sum(verdicts.count("accepted") >= i + 1 for verdicts in drafting)
        assert found.position_acceptance[i] == pytest.approx(reached / len(drafting))
        here = [verdicts[i] for verdicts in drafting if len(verdicts) > i and verdicts[i] != "ignored"]
        expected = here.count("accepted") / len(here) if here else None
        assert found.position_acceptance_conditional[i] == (
            None if expected is None else pytest.approx(expected)
        )


@given(rounds=ledgers, prefill_s=st.floats(0, 10))
@CHECKED
def test_times(rounds, prefill_s):
    found = fold(rounds, prefill_s)
    seconds = [round_.draft_s + round_.verify_s + round_.other_s for round_ in rounds]
    emitted = sum(len(round_.emitted) for round_ in rounds)
    decode = sum(seconds)
    assert found.decode_tokens_per_s == pytest.approx(emitted / decode)
    assert found.total_s == pytest.approx(prefill_s + decode)
    assert found.ttft_s == pytest.approx(prefill_s + seconds[0])
    assert found.draft_share == pytest.approx(sum(round_.draft_s for round_ in rounds) / decode)
    assert found.verify_share == pytest.approx(sum(round_.verify_s for round_ in rounds) / decode)
    assert found.draft_share + found.verify_share + found.other_share == pytest.approx(1)
    arrivals = []  # when each token came: all of a round at its end
    for round_ in rounds:
        arrivals += [round_.t] * len(round_.emitted)
    bursts = sorted(set(arrivals))
    gaps = [b - a for a, b in zip(bursts, bursts[1:], strict=False)]
    if gaps:
        assert found.tpot_s == pytest.approx((arrivals[-1] - arrivals[0]) / (len(arrivals) - 1))
        assert found.itl_p50_s == pytest.approx(statistics.median(gaps))
        hundred = statistics.quantiles(gaps, n=100, method="inclusive") if len(gaps) > 1 else [gaps[0]] * 99
        assert found.itl_p95_s == pytest.approx(hundred[94])
    else:
        assert (found.tpot_s, found.itl_p50_s, found.itl_p95_s) == (None, None, None)


@given(rounds=ledgers, step=st.floats(0.001, 0.1))
@CHECKED
def test_costs_and_predictions(rounds, step):
    found = fold(rounds, plain_step_s=step)
    lengths = [len(round_.drafted) for round_ in rounds]
    if not sum(lengths):
        assert (found.draft_cost, found.verify_cost, found.expected_tokens) == (None, None, None)
        assert (found.predicted_speedup, found.predicted_speedup_measured_verify) == (None, None)
        return
    k = sum(lengths) / len(lengths)
    alpha = found.acceptance_rate
    expected = k + 1 if alpha == 1 else (1 - alpha ** (k + 1)) / (1 - alpha)
    c = sum(round_.draft_s for round_ in rounds) / sum(lengths) / step
    medians = {
        length: statistics.median(round_.verify_s for round_ in rounds if round_.k == length)
        for length in set(lengths)
    }
    v = sum(medians[length] for length in lengths) / len(lengths) / step
    assert found.expected_tokens == pytest.approx(expected)
    assert found.draft_cost == pytest.approx(c)
    assert found.verify_cost == pytest.approx(v)
    assert found.predicted_speedup == pytest.approx(expected / (k * c + 1))
    assert found.predicted_speedup_measured_verify == pytest.approx(expected / (k * c + v))
    alone = fold(rounds)  # no plain lane: what needs one does not exist
    assert alone.expected_tokens == found.expected_tokens
    assert (alone.draft_cost, alone.verify_cost) == (None, None)
    assert (alone.predicted_speedup, alone.predicted_speedup_measured_verify) == (None, None)


@given(rounds=ledgers)
@CHECKED
def test_folding_round_by_round_is_folding_at_once(rounds):
    table = RoundTable(prefill_s=0.5)
    for index, round_ in enumerate(rounds):
        table.add(round_)
        if index in (0, len(rounds) // 2):
            assert fold(table, plain_step_s=0.01) == fold(rounds[: index + 1], 0.5, 0.01)
    plain = [round_.verify_s for round_ in rounds if not round_.drafted]
    assert table.plain_step_s() == (statistics.median(plain) if plain else None)
    assert table.total("seconds") == pytest.approx(sum(round_.seconds for round_ in rounds))
    assert list(table.pass_times()) == sorted({round_.rows for round_ in rounds})


def test_nothing_is_null_never_zero_or_nan():
    found = fold([])
    counts = {"rounds", "proposed", "judged", "accepted", "ignored", "emitted"}
    for item in fields(Metrics):
        value = getattr(found, item.name)
        if item.name in counts:
            assert value == 0
        elif item.name.startswith("position_"):
            assert value == ()
        elif item.name in ("by_drafter", "server"):
            assert value == {}
        else:
            assert value is None, item.name
    with_prefill = fold([], prefill_s=2.0)
    assert (with_prefill.total_s, with_prefill.ttft_s) == (2.0, None)


@given(rounds=ledgers)
@CHECKED
def test_no_figure_is_ever_nan_or_infinite(rounds):
    def numbers(value):
        if isinstance(value, dict):
            value = tuple(value.values())
        return [x for item in value for x in numbers(item)] if isinstance(value, tuple) else [value]

    for value in fold(rounds, 0.1, 0.01).as_dict().values():
        assert all(x is None or math.isfinite(x) for x in numbers(value))


def test_as_dict_has_the_names_of_the_design():
    names = """
        acceptance_rate draft_acceptance draft_full_at draft_context mean_k distinct_4grams by_drafter
        oracle_share tokens_per_target_pass mean_accepted_length position_acceptance
        position_acceptance_conditional decode_tokens_per_s total_s ttft_s itl_p50_s itl_p95_s tpot_s
        draft_share verify_share other_share draft_cost verify_cost expected_tokens predicted_speedup
        predicted_speedup_measured_verify server rounds proposed judged accepted ignored emitted
    """
    assert set(fold([]).as_dict()) == set(names.split())


def test_acceptance_is_not_counted_over_drafts_never_tested():
    """Known fault (llama.cpp 14104)."""
    tokens = [DraftedToken(1, "accepted"), DraftedToken(2, "rejected"), *[DraftedToken(3, "ignored")] * 6]
    found = fold([Round(0, 1.0, 0.5, 0.4, 0.1, drafted=tuple(tokens), final=FinalToken(4, "corrected"))])
    assert (found.acceptance_rate, found.draft_acceptance) == (0.5, 0.125)


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50))
@CHECKED
def test_percentile_is_linear_interpolation(values):
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    for percent in (1, 25, 50, 95, 99):
        assert percentile(values, percent) == pytest.approx(cuts[percent - 1], rel=1e-9, abs=1e-6)
    assert percentile(values, 0) == min(values)
    assert percentile(values, 100) == max(values)
    assert percentile([], 50) is None
    assert percentile([3.0], 95) == 3.0


def test_before_the_first_round_there_is_nothing_but_the_prefill():
    """No library is loaded for it: the window shows it before numpy is there."""
    for prefill_s in (None, 0.25):
        figures = fold(RoundTable(prefill_s=prefill_s), plain_step_s=0.1).as_dict()
        assert figures.pop("total_s") == prefill_s
        assert not any(value for value in figures.values()) and figures["rounds"] == 0
        assert figures["position_acceptance"] == () and figures["acceptance_rate"] is None
