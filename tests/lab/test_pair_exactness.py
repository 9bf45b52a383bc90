"""A pair's exactness: rule and kernels judged apart, the control caught, closed forms, stops. Seeds are fixed."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from specview.decoding import verification
from specview.decoding.sampling import SamplingParams
from specview.drafting.policies import POLICIES
from specview.errors import SpecviewError, UsageError
from specview.lab import pair_exactness
from specview.lab.exact_statistics import SIGNIFICANCE, cells_of, compare_depth
from specview.lab.pair_exactness import accepts, first_token_bias, run_pair, samplers_of
from specview.lab.pair_results import PairResult, PairSettings, greedy_sentence, pair_document
from specview.racing.pool import ModelPool
from specview.settings.events import Equality, Failed
from specview.settings.run import LaneSettings, RunSettings
from tests.decoding.toy import (
    DRAFT,
    LENGTH,
    TARGET,
    VOCAB,
    FakeEngine,
    K,
    TableModel,
    rule_distribution,
    toy_logits,
)
from tests.decoding.toy import chain_distribution as toy_chain
from tests.racing.world import World

SAMPLED = SamplingParams(temperature=1.0, seed=3)
DRAFTED = LaneSettings("draft-model", k=3)


def run_settings(lane: LaneSettings = DRAFTED, **options) -> RunSettings:
    options = {"prompt": "bcdbc", "chat": False, "sampling": SAMPLED, "check_mode": True, **options}
    return RunSettings(lanes=(LaneSettings(), lane), **options)


@pytest.fixture(scope="module")
def world():
    with pytest.MonkeyPatch.context() as patch:
        yield World(patch)


@pytest.fixture(scope="module")
def result(world) -> PairResult:
    return run_pair(run_settings(), PairSettings(1500, 3, 30))


def test_rejection_passes_and_the_naive_rule_is_caught(result):
    """Issue 5, "It must show", 3, on a pair small enough to be quick."""
    assert result.holds
    assert result.conclusive
    rejection, naive = result.rules["rejection"], result.rules["naive"]
    assert rejection.differs is False
    assert naive.differs is True
    assert "caught" in naive.words
    assert naive.bias.agrees
    assert naive.bias.closed > 0.03
    assert naive.bias.measured == pytest.approx(naive.bias.closed, abs=4 * naive.bias.error)
    assert result.rules["typical"].lossy
    assert result.greedy.equal
    assert result.drift.identical


def test_it_names_what_it_tested_and_what_it_would_have_caught(result):
    text = " ".join(result.sentences)
    assert "1,500 continuations of 3 tokens" in text
    assert f"{result.rules['rejection'].least_caught:.3f}" in text
    assert "same bits" in text
    assert "Greedy: all 30 tokens equal" in text


def test_repeated_prefixes_are_computed_once(result):
    cached = result.cached
    assert cached["target_rows_computed"] <= 1 + 6 + 36  # prefixes of up to two tokens
    assert cached["target_rows_asked"] > 50 * cached["target_rows_computed"]
    assert cached["draft_rows_computed"] <= 1 + 6 + 36
    assert cached["target_passes"] < 120


def test_first_tokens_are_the_models(result):
    model, draft = TableModel(6, order=3), TableModel(6, order=3, noise=0.35)
    prompt = [1, 2, 3, 1, 2]
    p, q = (np.exp(one(prompt).astype(float)) for one in (model, draft))
    p, q = p / p.sum(), q / q.sum()
    assert len(result.first) == 6
    assert [one.p for one in result.first] == pytest.approx(sorted(p.tolist(), reverse=True))
    for one in result.first:
        assert one.q == pytest.approx(q[one.id], rel=1e-5)
        for name in ("plain", "rejection"):
            assert one.shares[name] == pytest.approx(one.p, abs=4.5 * math.sqrt(one.p / 1500))
        naive = q[one.id] * min(1, p[one.id] / q[one.id]) + (1 - np.minimum(p, q).sum()) * p[one.id]
        assert one.shares["naive"] == pytest.approx(naive, abs=4.5 * math.sqrt(naive / 1500))


def test_the_document(result):
    document = pair_document(result)
    assert json.loads(json.dumps(document)) == document
    pair = document["pair"]
    assert pair["rules"]["rejection"]["differs"] is False
    assert pair["rules"]["naive"]["bias"]["agrees"] is True
    assert [test["depth"] for test in pair["rules"]["naive"]["tests"]] == [1, 2, 3]
    assert pair["kernels"]["identical"] is True
    assert pair["greedy"]["equal"] is True
    assert pair["cache"]["target_rows_asked"] > 0
    assert document["holds"] is True


# -- it can fail ---------------------------------------------------------------------------------------------


def test_a_rejection_rule_that_corrects_from_p_is_found_out(world, monkeypatch):
    monkeypatch.setitem(verification._JUDGES, "rejection", verification._naive)
    found = run_pair(run_settings(), PairSettings(900, 2, 5))
    assert found.rules["rejection"].differs
    assert not found.holds
    assert "DIFFERS" in found.rules["rejection"].words


def test_a_wrong_closed_form_is_found_out(world, monkeypatch):
    def half(name, p, q):
        return np.sqrt(accepts(name, p, q))

    monkeypatch.setattr(pair_exactness, "accepts", half)
    found = run_pair(run_settings(), PairSettings(2000, 3, 5))
    assert not found.rules["naive"].bias.agrees
    assert not found.holds
    assert "NOT agreeing" in found.rules["naive"].words


def test_few_continuations_are_not_conclusive(world):
    found = run_pair(run_settings(), PairSettings(100, 2, 5))
    assert found.holds
    assert not found.conclusive
    assert "too weak" in " ".join(found.sentences)


# -- the closed form -----------------------------------------------------------------------------------------


def test_the_closed_form_is_the_enumeration(monkeypatch):
    """Over the literature's toy as a pair: rule by rule, each outcome's probability ratio, and the naive's 0.100."""
    world = World(monkeypatch)
    world.models["target", "bundled"] = lambda: FakeEngine(toy_logits(TARGET), VOCAB)
    world.models["draft", "bundled"] = lambda: FakeEngine(toy_logits(DRAFT), VOCAB)
    kept = {}
    honest = pair_exactness._Continuations.biases

    def biases(self):
        honest(self)
        if not kept:
            self.keep_steps(list(itertools.product(range(VOCAB), repeat=LENGTH)))
            kept.update({outcome: self.ratio("naive", outcome) for outcome in toy_chain(TARGET)})

    monkeypatch.setattr(pair_exactness._Continuations, "biases", biases)
    found = run_pair(run_settings(replace(DRAFTED, k=K), prompt="a"), PairSettings(1000, LENGTH, 5))
    target = toy_chain(TARGET)
    naive = rule_distribution(
        lambda last, x: min(1.0, float(TARGET[last][x] / DRAFT[last][x])), lambda last, x: TARGET[last], k=K
    )
    for outcome, p in target.items():
        assert kept[outcome] * p == pytest.approx(naive[outcome], rel=1e-5)
    bias = found.rules["naive"].bias
    exact = sum(abs(naive[outcome] - target[outcome]) for outcome in target) / 2
    assert exact == pytest.approx(0.100, abs=5e-4)
    assert bias.closed == pytest.approx(exact, abs=0.02)
    assert bias.agrees
    first = np.minimum(TARGET[0], DRAFT[0])
    assert bias.first_token == pytest.approx(np.abs(first - first.sum() * TARGET[0]).sum() / 2)


def test_first_token_bias_is_zero_where_p_is_q():
    p = np.array([0.2, 0.5, 0.3])
    assert first_token_bias("naive", p, p) == pytest.approx(0)
    assert first_token_bias("naive", p, np.array([0.0, 0.0, 1.0])) == pytest.approx(0.3 * 0.7)


def test_typical_accepts_by_medusas_threshold():
    p = np.array([0.85, 0.1, 0.05])
    assert accepts("typical", p, p).tolist() == [1, 1, 0]  # the threshold is min(.09, .3 exp(-H))


@pytest.mark.parametrize(
    ("lane", "reason"),
    [
        (LaneSettings("prompt-lookup", k=3), "prompt-lookup"),
        (LaneSettings("draft-model", k=3, policy="heuristic"), "heuristic"),
    ],
)
def test_methods_without_a_closed_form_say_so(world, lane, reason):
    found = run_pair(run_settings(lane, prompt="bcdbcdbcdb"), PairSettings(400, 3, 5))
    assert reason in found.no_bias
    assert all(one.bias is None for one in found.rules.values())
    assert found.rules["rejection"].differs is False
    assert found.no_bias in " ".join(found.sentences)


# -- kernels ---------------------------------------------------------------------------------------------------


class DriftingSession:
    """Rows of one-row passes differ from those of several rows, as real kernels' do."""

    def __init__(self, session, size: float) -> None:
        self._session, self._size = session, size

    def __getattr__(self, name):
        return getattr(self._session, name)

    def forward(self, tokens, parents=None, features=()):
        found = self._session.forward(tokens, parents, features)
        if len(tokens) == 1:
            noise = np.random.default_rng(self._session.tokens).normal(size=found.logits.shape) * self._size
            return replace(found, logits=(found.logits + noise).astype(np.float32))
        return found


def drifting(world: World, size: float) -> None:
    honest = world.models["target", "bundled"]

    def made():
        engine = honest()
        new_session = engine.new_session
        engine.new_session = lambda *args: DriftingSession(new_session(*args), size)
        return engine

    world.models["target", "bundled"] = made


def test_kernels_that_drift_are_told_apart_from_the_rule(monkeypatch):
    world = World(monkeypatch)
    drifting(world, 0.3)
    found = run_pair(run_settings(check_mode=False), PairSettings(900, 3, 40))
    assert found.rules["rejection"].differs is False  # the rule is exact on the rows that it was given
    assert found.rules["naive"].differs
    assert not found.drift.identical
    assert 0.01 < found.drift.mean_tv <= found.drift.max_tv
    assert found.drift.first_tv > 0
    assert found.holds  # drift is no fault of the rule where it is to be expected
    assert "apart by total variation" in " ".join(found.sentences)


def test_in_check_mode_drift_is_a_fault(monkeypatch):
    world = World(monkeypatch)
    drifting(world, 1e-4)
    found = run_pair(run_settings(check_mode=True), PairSettings(100, 2, 5))
    assert not found.drift.identical
    assert not found.holds
    assert "in check mode they must not be" in " ".join(found.sentences)


def test_a_greedy_difference_has_its_margin(monkeypatch):
    world = World(monkeypatch)
    drifting(world, 3.0)
    found = run_pair(run_settings(check_mode=False, sampling=SamplingParams()), PairSettings(100, 2, 60))
    assert not found.rules  # temperature 0: the greedy check is all there is
    assert found.greedy is not None
    assert not found.greedy.equal
    assert found.greedy.logit_margin is not None
    assert "apart" in greedy_sentence(found.greedy, check_mode=False)


def test_greedy_words():
    tie = Equality(False, 40, 6, 0.01, 0.2)
    far = Equality(False, 40, 6, 0.9, 0.2)
    assert "token 7" in greedy_sentence(tie, check_mode=False)
    assert "a tie that the kernels explain" in greedy_sentence(tie, check_mode=False)
    assert "more than the kernels explain" in greedy_sentence(far, check_mode=False)
    assert "must not" in greedy_sentence(far, check_mode=True)


# -- running -----------------------------------------------------------------------------------------------------


def test_a_stop_keeps_what_there_is(world):
    parts = []
    stop = [False]

    def on_part(result, text, fraction):
        parts.append((text, fraction, result.samples))
        stop[0] = result.samples > 300

    found = run_pair(run_settings(), PairSettings(100_000, 3, 5), on_part=on_part, should_stop=lambda: stop[0])
    assert found.stopped
    assert 300 < found.samples < 100_000
    assert found.rules["rejection"].samples == found.samples
    assert found.greedy.equal
    assert any(text == "Continuations" and fraction for text, fraction, _ in parts)
    assert pair_document(found)["stopped"]


def test_a_stop_while_loading_gives_an_empty_result(world):
    found = run_pair(run_settings(), PairSettings(100, 2, 5), should_stop=lambda: True)
    assert found.stopped
    assert not found.rules
    assert found.sentences == ["Nothing was tested."]


def test_the_same_seed_gives_the_same_figures(world):
    first, again = (run_pair(run_settings(), PairSettings(200, 2, 5)) for _ in range(2))
    other = run_pair(run_settings(sampling=replace(SAMPLED, seed=4)), PairSettings(200, 2, 5))
    assert first.rules == again.rules
    assert first.rules != other.rules


def test_ends_within_a_continuation(monkeypatch):
    """A model that often ends: outcomes are shorter, and the closed form follows."""
    world = World(monkeypatch, eos_ids=(0, 4))
    found = run_pair(run_settings(), PairSettings(800, 4, 30))
    assert world.engines["target", "bundled"].eos_ids == {0, 4}
    assert found.rules["rejection"].differs is False
    assert found.rules["naive"].bias.agrees


@pytest.mark.parametrize("rule", ["match", "typical", "naive"])
def test_other_rules_of_the_lane(world, rule):
    found = run_pair(run_settings(replace(DRAFTED, rule=rule)), PairSettings(300, 2, 5))
    assert tuple(found.rules) == samplers_of(rule)[1:]
    assert found.rule == rule
    assert found.holds


@pytest.mark.parametrize(
    "method",
    [LaneSettings("early-exit", k=2, options={"exit_layer": 2}), LaneSettings("suffix", k=3)],
    ids=lambda lane: lane.method,
)
def test_other_methods_run_on_cached_rows(monkeypatch, method):
    world = World(monkeypatch)
    honest = world.models["target", "bundled"]

    def made():
        engine = honest()
        engine.exit_layers, engine.exit_problem = 4, None
        engine.exit_model = TableModel(6, order=3, noise=0.4)
        return engine

    world.models["target", "bundled"] = made
    found = run_pair(run_settings(method), PairSettings(400, 3, 10))
    assert found.rules["rejection"].differs is False
    assert found.greedy.equal


@pytest.mark.parametrize("rule", ["rejection", "match"])
@pytest.mark.parametrize(
    "lane",
    [*(LaneSettings("draft-model", k=3, policy=policy) for policy in POLICIES if policy != "constant"),
     LaneSettings("auto", k=3, options={"members": "prompt-lookup+draft-model"}),
     LaneSettings("cascade", k=3, options={"members": "prompt-lookup+draft-model"})],
    ids=lambda lane: lane.policy if lane.method == "draft-model" else lane.method,
)  # fmt: skip
def test_a_pair_is_tested_with_every_policy_auto_and_cascade(world, lane, rule):
    found = run_pair(run_settings(replace(lane, rule=rule), prompt="bcdbcdbcdb"), PairSettings(250, 4, 12))
    assert found.rules[rule].differs is False
    assert found.rules[rule].judged > 0
    assert found.greedy.equal
    assert found.holds


def test_a_race_goes_on_after_a_test_of_its_pair(monkeypatch):
    """The check mode's engines stand beside a race's in the pool, which holds its own."""
    world = World(monkeypatch)
    pool = ModelPool()
    race = world.race(DRAFTED, models=pool, max_tokens=4)
    race.run(lambda event: None)
    assert race.can_continue
    run_pair(run_settings(), PairSettings(100, 2, 5), pool)
    events: list = []
    race.continue_(4, events.append)
    assert not any(isinstance(event, Failed) for event in events)
    assert race.records[1].token_ids[4:]
    race.close()
    pool.close()


def test_trouble_is_one_line(world, monkeypatch):
    world.models["draft", "gone"] = lambda: (_ for _ in ()).throw(SpecviewError("there is no model 'gone'.", "Look."))
    with pytest.raises(SpecviewError, match="no model 'gone'"):
        run_pair(run_settings(replace(DRAFTED, draft="gone")), PairSettings(100, 2, 5))
    with pytest.raises(UsageError, match="lanes to test"):
        run_pair(RunSettings(prompt="b", chat=False, lanes=(LaneSettings(), DRAFTED, DRAFTED)))


@pytest.mark.parametrize(
    "sizes", [{"samples": 99}, {"samples": 2_000_000}, {"tokens": 1}, {"tokens": 9}, {"greedy_tokens": 0}]
)
def test_sizes_that_cannot_be(sizes):
    with pytest.raises(UsageError):
        PairSettings(**sizes)


# -- comparing ---------------------------------------------------------------------------------------------------


def draws(p: np.ndarray, n: int, seed: int) -> Counter:
    rng = np.random.default_rng(seed)
    return Counter(tuple(row) for row in rng.choice(len(p), size=(n, 3), p=p).tolist())


def test_cells_have_enough_and_lose_nothing():
    p = np.random.default_rng(0).dirichlet(np.full(40, 0.3))
    plain, other = draws(p, 900, 1), draws(p, 700, 2)
    for depth in (1, 2, 3):
        a, b = cells_of(plain, other, depth)
        assert (a.sum(), b.sum()) == (900, 700)
        assert ((a + b) * 700 / 1600).min() >= 5 - 1e-9


def test_a_prefix_of_another_outcome_is_a_cell_of_its_own():
    """Outcomes that end early stand beside those that go on from them."""
    plain = Counter({(1,): 50, (1, 2): 50})
    a, _ = cells_of(plain, plain, 2)
    assert sorted(a.tolist()) == [50, 50]


def test_depth_tests_are_honest_and_awake():
    p = np.random.default_rng(5).dirichlet(np.ones(12))
    refused = 0
    for seed in range(60):
        test = compare_depth(draws(p, 600, seed), draws(p, 600, 1000 + seed), 2, 1)
        refused += test.chi2_p is not None and test.chi2_p <= 0.05
    assert refused <= 11  # 3 expected; as many in one of 10,000 seeds
    q = p.copy()
    q[np.argmax(p)] += 0.3
    q /= q.sum()
    test = compare_depth(draws(p, 600, 1), draws(q, 600, 2), 1, 1, np.random.default_rng(0))
    assert test.chi2_p < SIGNIFICANCE
    assert test.permutation_p < 0.001
    assert test.tv > test.bound
