"""Sampling: logits to decision distributions, one draw, and the keyed random streams."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from specview.decoding.sampling import (
    SamplingParams,
    as_like,
    draw,
    fit_width,
    largest,
    likeliest_ids,
    probabilities,
    softmax,
    top_entries,
    uniform,
)
from specview.errors import SpecviewError, UsageError
from tests.decoding.statistics import uniform_ks

torch = pytest.importorskip("torch")
QUICK = settings(deadline=None, derandomize=True, max_examples=60)

# Wide rows are nearly one-hot, narrow ones nearly flat: the filters' edges lie among many tokens there.
wide, narrow = st.floats(-30, 30, width=32), st.floats(-2, 2, width=32)
logit_rows = st.one_of(
    st.lists(st.one_of(numbers, st.just(-math.inf)), min_size=1, max_size=40) for numbers in (wide, narrow)
).filter(lambda row: any(math.isfinite(x) for x in row))
tied_rows = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=20)
settings_of = st.builds(
    SamplingParams,
    temperature=st.one_of(st.floats(0.05, 5), st.sampled_from([1e-30, 1e-300, 1e-6, 1.0])),
    top_k=st.one_of(st.just(0), st.integers(1, 45)),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 1)),
    min_p=st.one_of(st.just(0.0), st.floats(1e-6, 1)),
)


def array(row, namespace="numpy"):
    values = np.array(row, dtype=np.float32)
    return torch.from_numpy(values) if namespace == "torch" else values


def reference(logits: np.ndarray, sampling: SamplingParams) -> tuple[np.ndarray, float]:
    """Temperature, top-k, top-p, min-p in float64 by loops; ties at an edge kept.

    Also how near the closest decision was, relative: float32 may decide a near one otherwise.
    """
    values = logits.astype(np.float64)
    near = math.inf
    scaled = (values - values.max()) / sampling.temperature
    if sampling.top_k and sampling.top_k < len(values):
        edge = sorted(values)[-sampling.top_k]
        scaled = np.where(values >= edge, scaled, -math.inf)
    p = np.exp(scaled)
    p /= p.sum()
    if sampling.top_p < 1:
        mass, cut = 0.0, 0.0
        for value in sorted(p, reverse=True):
            near = min(near, abs(mass - sampling.top_p))
            if mass >= sampling.top_p:
                break
            mass, cut = mass + value, value
        near = min([near, *(abs(value / cut - 1) for value in p if value != cut)])
        p = np.where(p >= cut, p, 0.0)
        p /= p.sum()
    if sampling.min_p > 0:
        near = min([near, *(abs(value / p.max() - sampling.min_p) / sampling.min_p for value in p)])
        p = np.where(p >= sampling.min_p * p.max(), p, 0.0)
    return p / p.sum(), near


# -- probabilities ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
@given(row=logit_rows, sampling=settings_of)
@QUICK
def test_rows_are_distributions(namespace, row, sampling):
    logits = array(row, namespace)
    p = probabilities(logits, sampling)
    assert type(p) is type(logits)
    assert p.shape == logits.shape
    values = np.asarray(p)
    assert values.dtype == np.float32
    assert float(values.sum(dtype=np.float64)) == pytest.approx(1, abs=1e-5)
    assert (values >= 0).all()
    assert (values[np.isneginf(np.array(row))] == 0).all(), "a masked token got probability"
    assert values[int(np.argmax(row))] == values.max() > 0, "the likeliest token always survives"


@given(row=logit_rows, sampling=settings_of)
@QUICK
def test_equals_a_plain_reference(row, sampling):
    expected, near = reference(array(row), sampling)
    assume(near > 1e-4 and sampling.temperature >= 0.05)
    assert probabilities(array(row), sampling) == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
@pytest.mark.parametrize("which", ["top_k", "top_p", "min_p", "all"])
def test_every_filter_cuts_where_the_reference_does(which, namespace):
    """Many tokens near the edge: an edge moved by a hundredth shows."""
    rng = np.random.default_rng(3)
    checked = cut = 0
    for _ in range(120):
        logits = rng.normal(size=30).astype(np.float32)
        chosen = {
            "top_k": int(rng.integers(1, 30)),
            "top_p": rng.uniform(0.3, 0.99),
            "min_p": rng.uniform(0, 0.3),
        }
        given_ = chosen if which == "all" else {which: chosen[which]}
        sampling = SamplingParams(rng.uniform(0.5, 3), **given_)
        expected, near = reference(logits, sampling)
        if near > 1e-4:
            found = np.asarray(probabilities(array(logits, namespace), sampling))
            assert np.array_equal(found > 0, expected > 0)
            assert found == pytest.approx(expected, abs=2e-6)
            checked += 1
            cut += int(np.count_nonzero(expected) < 30)
    assert checked > 90
    assert cut > 60


@given(row=tied_rows, top_k=st.integers(1, 20))
@QUICK
def test_ties_at_the_edge_of_top_k_are_all_kept(row, top_k):
    kept = probabilities(array(row), SamplingParams(1.0, top_k=top_k)) > 0
    edge = sorted(row, reverse=True)[min(top_k, len(row)) - 1]
    assert kept.tolist() == [x >= edge for x in row]


@given(row=tied_rows, top_p=st.floats(0.05, 0.99), min_p=st.floats(0, 0.9))
@QUICK
def test_tied_tokens_share_their_fate(row, top_p, min_p):
    p = probabilities(array(row), SamplingParams(1.0, top_p=top_p, min_p=min_p))
    by_logit = {}
    for x, value in zip(row, p.tolist(), strict=True):
        by_logit.setdefault(x, set()).add(value)
    assert all(len(values) == 1 for values in by_logit.values())


def test_order_temperature_then_top_k_then_top_p_then_min_p():
    logits = array(np.log([0.4, 0.3, 0.2, 0.1]))
    # top-p sees the distribution after temperature: at 0.25 the first token alone holds 0.6.
    assert np.count_nonzero(probabilities(logits, SamplingParams(0.25, top_p=0.6))) == 1
    assert np.count_nonzero(probabilities(logits, SamplingParams(1.0, top_p=0.6))) == 2
    # top-p sees the distribution renormalised over top-k: 0.4 / 0.7 is above 0.5, 0.4 is not.
    assert np.count_nonzero(probabilities(logits, SamplingParams(1.0, top_k=2, top_p=0.5))) == 1
    assert np.count_nonzero(probabilities(logits, SamplingParams(1.0, top_p=0.5))) == 2
    # min-p too is relative to the likeliest token after temperature: 0.1 / 0.4 against its fourth root.
    assert np.count_nonzero(probabilities(logits, SamplingParams(4.0, min_p=0.5))) == 4
    assert np.count_nonzero(probabilities(logits, SamplingParams(1.0, min_p=0.5))) == 3


# A hundredth apart: closer logits can round to one probability, a tie that they cut and we keep.
spaced_rows = st.one_of(
    st.lists(st.integers(-reach, reach), min_size=2, max_size=40, unique=True) for reach in (3000, 200)
).map(lambda row: [x / 100 for x in row])


@given(row=spaced_rows, sampling=settings_of)
@QUICK
def test_equals_the_warpers_of_transformers(row, sampling):
    from transformers.generation.logits_process import (
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    _, near = reference(array(row), sampling)
    assume(near > 1e-4 and sampling.temperature >= 0.05)
    scores = torch.tensor([row], dtype=torch.float32)
    scores = TemperatureLogitsWarper(sampling.temperature)(None, scores)
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(None, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(None, scores)
    if sampling.min_p > 0:
        scores = MinPLogitsWarper(sampling.min_p)(None, scores)
    theirs = scores[0].softmax(-1)
    ours = probabilities(array(row, "torch"), sampling)
    assert ours.numpy() == pytest.approx(theirs.numpy(), abs=5e-6)


@given(row=logit_rows, sampling=settings_of)
@QUICK
def test_numpy_and_torch_agree(row, sampling):
    _, near = reference(array(row), sampling)
    assume(near > 1e-4)
    ours = probabilities(array(row), sampling)
    assert probabilities(array(row, "torch"), sampling).numpy() == pytest.approx(ours, abs=1e-6)


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_a_batch_is_its_rows(namespace):
    rows = np.random.default_rng(0).normal(size=(5, 700)).astype(np.float32) * 0.1  # flat: top-p needs many
    logits = array(rows, namespace)
    for sampling in (
        SamplingParams(),
        SamplingParams(0.8),
        SamplingParams(1.0, top_k=40),
        SamplingParams(1.0, top_p=0.95, min_p=0.01),
    ):
        together = np.asarray(probabilities(logits, sampling))
        for index in range(5):
            assert together[index] == pytest.approx(
                np.asarray(probabilities(logits[index], sampling)), abs=1e-7
            )
    assert np.count_nonzero(np.asarray(probabilities(logits, SamplingParams(1.0, top_p=0.95)))[0]) > 512
    assert np.asarray(softmax(logits)) == pytest.approx(
        np.asarray(probabilities(logits, SamplingParams(1.0)))
    )


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_top_p_over_a_large_flat_vocabulary_keeps_the_smallest_set(namespace):
    vocab = 50_000
    logits = np.random.default_rng(1).normal(size=vocab).astype(np.float32)
    p64 = np.exp(logits.astype(np.float64))
    p64 /= p64.sum()
    order = np.sort(p64)[::-1]
    needed = int(np.searchsorted(np.cumsum(order), 0.9)) + 1
    kept = np.count_nonzero(
        np.asarray(probabilities(array(logits, namespace), SamplingParams(1.0, top_p=0.9)))
    )
    assert abs(kept - needed) <= 0.001 * needed  # float32 sums may move the edge a little


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_temperature_zero_is_one_hot_and_the_lowest_id_wins_a_tie(namespace):
    p = probabilities(array([[1.0, 3.0, 3.0], [-math.inf, -5.0, -6.0]], namespace), SamplingParams())
    assert p.tolist() == [[0, 1, 0], [0, 1, 0]]


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-45, 5e-324])
def test_tiny_temperatures_do_not_overflow(namespace, temperature):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        p = probabilities(array([-80.0, 79.0, 80.0, 80.0, -math.inf], namespace), SamplingParams(temperature))
    assert p.tolist() == [0, 0, 0.5, 0.5, 0]


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_huge_temperature_is_uniform_over_what_is_not_masked(namespace):
    p = probabilities(array([-80.0, 80.0, -math.inf, 0.0], namespace), SamplingParams(1e30))
    assert np.asarray(p) == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "bad", [[1.0, math.nan], [math.inf, 0.0], [-math.inf, -math.inf], [math.nan, math.nan]]
)
def test_rows_that_are_not_finite_are_refused(namespace, temperature, bad):
    for logits in (bad, [[0.0, 1.0], bad], [bad, [0.0, 1.0]]):
        with pytest.raises(ValueError, match="finite"):
            probabilities(array(logits, namespace), SamplingParams(temperature))


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(0.7, top_k=3, top_p=0.9, min_p=0.05)])
def test_half_precision_is_raised_to_float32(kind, sampling):
    row = [1.5, -2.0, 0.25, 3.0, 2.75]
    logits = torch.tensor(row, dtype=getattr(torch, kind))
    p = probabilities(logits, sampling)
    assert p.dtype == (torch.float64 if kind == "float64" else torch.float32)
    assert p.numpy() == pytest.approx(probabilities(array(row), sampling), abs=1e-6)
    if kind == "float16":
        half = probabilities(np.array(row, dtype=np.float16), sampling)
        assert half.dtype == np.float32
        assert half == pytest.approx(p.numpy(), abs=1e-6)


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_top_k_of_the_whole_vocabulary_is_off_and_a_vocabulary_of_one_is_certain(namespace):
    logits = array([0.5, 1.0, -1.0], namespace)
    plain = probabilities(logits, SamplingParams(1.0)).tolist()
    for top_k in (3, 4, 10**9):
        assert probabilities(logits, SamplingParams(1.0, top_k=top_k)).tolist() == plain
    for sampling in (
        SamplingParams(),
        SamplingParams(1.0),
        SamplingParams(0.3, top_k=1, top_p=0.1, min_p=1.0),
    ):
        assert probabilities(array([-7.0], namespace), sampling).tolist() == [1]


# -- draws ------------------------------------------------------------------------------------------------

weights = st.lists(
    st.one_of(st.just(0.0), st.floats(2**-99, 1, width=32), st.floats(0.125, 1, width=32)),
    min_size=1,
    max_size=30,
).filter(lambda row: sum(row) > 0)
numbers = st.one_of(
    st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2**-53, math.nextafter(1, 0), 2**-1074])
)


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
@given(row=weights, u=numbers)
@example(row=[0.0, 0.3, 0.7, 0.0], u=1 - 2**-53)
@example(row=[0.0, 0.3, 0.7, 0.0], u=0.0)
@example(row=[0.1] * 10 + [0.0] * 5, u=1 - 2**-53)
@QUICK
def test_draw_inverts_the_cumulative_sum_and_never_draws_a_zero(namespace, row, u):
    token = draw(array(row, namespace), u)
    values = np.array(row, dtype=np.float32).astype(np.float64)
    assert values[token] > 0
    total = np.cumsum(values)
    assert (total[token] - values[token]) / total[-1] <= u * (1 + 1e-12) + 1e-12
    assert u <= total[token] / total[-1] + 1e-12


@given(row=weights, u=numbers)
@QUICK
def test_numpy_and_torch_draw_the_same(row, u):
    assert draw(array(row), u) == draw(array(row, "torch"), u)


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_draw_frequencies(namespace):
    p = array([0.5, 0.0, 0.25, 0.25], namespace)
    n = 4000
    counts = np.bincount([draw(p, (i + 0.5) / n) for i in range(n)], minlength=4)
    assert counts.tolist() == [n // 2, 0, n // 4, n // 4]


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_draw_keeps_small_entries_of_a_large_vocabulary(namespace):
    """In float32 the cumulative sum stops growing: entries after the heavy one would never be drawn."""
    vocab = 200_000
    row = np.full(vocab, 1e-8, dtype=np.float32)
    row[0] = 1.0
    total = row.astype(np.float64).sum()
    token = draw(array(row, namespace), (1.0 + 1e-8 * 150_000) / total)
    assert abs(token - 150_000) <= 2


# -- helpers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_largest_and_top_entries(namespace):
    row = array([0.1, 0.5, 0.2, 0.4, 0.3], namespace)
    assert np.asarray(largest(row, 3)) == pytest.approx([0.5, 0.4, 0.3])
    ids, values = top_entries(row, 2)
    assert (ids, values) == ([1, 3], pytest.approx([0.5, 0.4]))
    assert top_entries(row, 99)[0] == [1, 3, 4, 2, 0]
    assert all(type(token) is int for token in ids)


@pytest.mark.parametrize("namespace", ["numpy", "torch"])
def test_fit_width_cuts_and_pads_with_zeros(namespace):
    row = array([0.25, 0.75], namespace)
    assert fit_width(row, 4).tolist() == [0.25, 0.75, 0, 0]
    assert fit_width(row, 1).tolist() == [0.25]
    assert fit_width(row, 2) is row
    assert fit_width(row, 4).dtype == row.dtype


def test_as_like_brings_rows_across_namespaces():
    numbers_ = [0.25, 0.75]
    to_torch = as_like(array(numbers_), array([0.0], "torch"))
    assert isinstance(to_torch, torch.Tensor)
    assert to_torch.tolist() == numbers_
    to_numpy = as_like(torch.tensor(numbers_, dtype=torch.bfloat16), array([0.0]))
    assert isinstance(to_numpy, np.ndarray)
    assert to_numpy.dtype == np.float32
    assert to_numpy.tolist() == numbers_


# -- settings and streams ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_k": -1}, "top-k"),
        ({"top_p": 0.0}, "top-p"),
        ({"top_p": 1.1}, "top-p"),
        ({"top_p": math.nan}, "top-p"),
        ({"min_p": -0.1}, "min-p"),
        ({"min_p": 1.1}, "min-p"),
        ({"min_p": math.nan}, "min-p"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
    ],
)
def test_meaningless_settings_are_refused_by_name(values, word):
    with pytest.raises(UsageError, match=word) as caught:
        SamplingParams(**values)
    assert isinstance(caught.value, SpecviewError)
    assert caught.value.usage
    assert "\n" not in str(caught.value)


def test_settings_at_their_bounds_are_taken():
    assert SamplingParams(temperature=0.0).greedy
    assert not SamplingParams(temperature=5e-324).greedy
    SamplingParams(1.0, top_k=0, top_p=1.0, min_p=0.0, seed=2**63 - 1)
    SamplingParams(1.0, top_p=5e-324, min_p=1.0)


PURPOSES = ("target", "draft", "accept", "residual")


def test_streams_are_keyed_and_independent_of_the_order_of_asking():
    keys = [
        (seed, position, purpose)
        for seed in (0, 1, 2**63 - 1)
        for position in range(20)
        for purpose in PURPOSES
    ]
    forwards = {key: uniform(*key) for key in keys}
    backwards = {key: uniform(*key) for key in reversed(keys)}
    assert forwards == backwards
    assert len(set(forwards.values())) == len(keys), "two keys share a number"
    assert all(0 <= value < 1 for value in forwards.values())


@pytest.mark.parametrize("purpose", PURPOSES)
def test_streams_are_uniform_over_positions_and_over_seeds(purpose):
    assert uniform_ks([uniform(7, position, purpose) for position in range(1500)]) > 1e-4
    assert uniform_ks([uniform(seed, 3, purpose) for seed in range(1500)]) > 1e-4


def test_streams_are_uncorrelated_across_purposes_positions_and_seeds():
    n = 1500
    base = np.array([uniform(seed, 5, "draft") for seed in range(n)])
    others = {
        "purpose": [uniform(seed, 5, "accept") for seed in range(n)],
        "position": [uniform(seed, 6, "draft") for seed in range(n)],
        "seed": [uniform(seed + 1, 5, "draft") for seed in range(n)],
    }
    for name, values in others.items():
        assert abs(np.corrcoef(base, values)[0, 1]) < 4 / math.sqrt(n), name


@QUICK
@given(
    arrays(np.float32, (3, 7), elements=st.one_of(st.floats(-50, 50, width=32), st.sampled_from([-np.inf, np.inf, np.nan]))),
    st.sampled_from(["numpy", "torch"]),
)
def test_likeliest_ids_are_the_argmax_of_sound_rows_and_minus_one_of_others(rows, kind):
    found = likeliest_ids(rows if kind == "numpy" else torch.from_numpy(rows.copy()))
    for row, token in zip(rows, found, strict=True):
        sound = not np.isnan(row).any() and np.isfinite(row.max())
        assert token == (int(np.argmax(row)) if sound else -1)


def test_likeliest_ids_take_the_lowest_of_equals_and_rows_of_a_tensor_in_the_making():
    rows = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 0.0]])
    with torch.inference_mode():
        assert likeliest_ids(rows * 2) == [1, 0]
    assert likeliest_ids(rows.double()[:, ::2]) == [1, 0]
