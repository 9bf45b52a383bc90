"""A pair's exactness: rule and kernels judged apart, the control caught, closed forms, stops. Seeds are fixed."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from specview.decoding import verification
from specview.decoding.sampling import SamplingParams
from specview.drafting.policies import POLICIES
from specview.errors import SpecviewError, UsageError
from specview.lab import pair_exactness
from specview.lab.pair_exactness import accepts, first_token_bias, run_pair, samplers_of
from specview.lab.pair_results import PairResult, PairSettings, greedy_sentence, pair_document, pair_report
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
REPEATING = "bcdbcdbcdb"


def run_settings(lane: LaneSettings = DRAFTED, **options) -> RunSettings:
    options = {"prompt": "bcdbc", "chat": False, "sampling": SAMPLED, "check_mode": True, **options}
    return RunSettings(lanes=(LaneSettings(), lane), **options)


@pytest.fixture(scope="module")
def world():
    with pytest.MonkeyPatch.context() as patch:
        yield World(patch)


@pytest.fixture(scope="module")
def result(world) -> PairResult:
    return run_pair(run_settings(), PairSettings(1000, 3, 30))


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
    least = f"{result.rules['rejection'].least_caught:.3f}"
    for part in ("1,000 continuations of 3 tokens", least, "same bits", "Greedy: all 30 tokens equal"):
        assert part in text
    document = pair_document(result)
    assert json.loads(json.dumps(document)) == document
    pair = document["pair"]
    assert pair["rules"]["rejection"]["differs"] is False
    assert pair["rules"]["naive"]["bias"]["agrees"] is True
    assert [test["depth"] for test in pair["rules"]["naive"]["tests"]] == [1, 2, 3]
    assert pair["kernels"]["identical"] is pair["greedy"]["equal"] is document["holds"] is True
    report = pair_report(result)
    assert [block.text for block in report.blocks[-5:]] == result.sentences
    assert {block.tone for block in report.blocks[-5:]} <= {"good", "warning"}


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
        naive = q[one.id] * min(1, p[one.id] / q[one.id]) + (1 - np.minimum(p, q).sum()) * p[one.id]
        for name, share in (("plain", one.p), ("rejection", one.p), ("naive", naive)):
            assert one.shares[name] == pytest.approx(share, abs=4.5 * math.sqrt(share / 1000))


# -- it can fail ---------------------------------------------------------------------------------------------


def test_a_rejection_rule_that_corrects_from_p_is_found_out(world, monkeypatch):
    rules = verification.RULES
    monkeypatch.setitem(rules, "rejection", replace(rules["rejection"], judge=rules["naive"].judge))
    found = run_pair(run_settings(), PairSettings(600, 2, 5))
    assert found.rules["rejection"].differs
    assert not found.holds
    assert "DIFFERS" in found.rules["rejection"].words


def test_a_wrong_closed_form_is_found_out(world, monkeypatch):
    monkeypatch.setattr(pair_exactness, "accepts", lambda name, p, q: np.ones_like(p))  # as if all were kept
    found = run_pair(run_settings(), PairSettings(600, 3, 5))
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
    found = run_pair(run_settings(replace(DRAFTED, k=K), prompt="a"), PairSettings(600, LENGTH, 5))
    target = toy_chain(TARGET)
    naive = rule_distribution(
        lambda last, x: min(1.0, float(TARGET[last][x] / DRAFT[last][x])), lambda last, x: TARGET[last], k=K
    )
    for outcome, p in target.items():
        assert kept[outcome] * p == pytest.approx(naive[outcome], rel=1e-5)
    bias = found.rules["naive"].bias
    exact = sum(abs(naive[outcome] - target[outcome]) for outcome in target) / 2
    assert exact == pytest.approx(0.100, abs=5e-4)
    assert bias.closed == pytest.approx(exact, abs=0.025)
    assert bias.agrees
    first = np.minimum(TARGET[0], DRAFT[0])
    assert bias.first_token == pytest.approx(np.abs(first - first.sum() * TARGET[0]).sum() / 2)


def test_what_lossy_rules_keep():
    p = np.array([0.2, 0.5, 0.3])
    assert first_token_bias("naive", p, p) == pytest.approx(0)
    assert first_token_bias("naive", p, np.array([0.0, 0.0, 1.0])) == pytest.approx(0.3 * 0.7)
    p = np.array([0.85, 0.1, 0.05])
    assert accepts("typical", p, p).tolist() == [1, 1, 0]  # Medusa's threshold is min(.09, .3 exp(-H))


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
    drifting(World(monkeypatch), 0.3)
    found = run_pair(run_settings(check_mode=False), PairSettings(900, 3, 40))
    assert found.rules["rejection"].differs is False  # the rule is exact on the rows that it was given
    assert found.rules["naive"].differs
    assert not found.drift.identical
    assert 0.01 < found.drift.mean_tv <= found.drift.max_tv
    assert found.drift.first_tv > 0
    assert found.holds  # drift is no fault of the rule where it is to be expected
    assert "apart by total variation" in " ".join(found.sentences)


def test_in_check_mode_drift_is_a_fault(monkeypatch):
    drifting(World(monkeypatch), 1e-4)
    found = run_pair(run_settings(), PairSettings(100, 2, 5))
    assert not found.drift.identical
    assert not found.holds
    assert "in check mode they must not be" in " ".join(found.sentences)


def test_a_greedy_difference_has_its_margin(monkeypatch):
    drifting(World(monkeypatch), 3.0)
    found = run_pair(run_settings(check_mode=False, sampling=SamplingParams()), PairSettings(100, 2, 60))
    assert not found.rules  # temperature 0: the greedy check is all there is
    assert not found.greedy.equal
    assert found.greedy.logit_margin is not None
    assert "apart" in greedy_sentence(found.greedy, check_mode=False)


@pytest.mark.parametrize(
    ("margin", "check_mode", "says"),
    [(0.01, False, "a tie that the kernels explain"), (0.9, False, "more than the kernels explain"), (0.9, True, "must not")],
)
def test_greedy_words(margin, check_mode, says):
    text = greedy_sentence(Equality(False, 40, 6, margin, 0.2), check_mode=check_mode)
    assert "token 7" in text and says in text


# -- running -----------------------------------------------------------------------------------------------------


def test_a_stop_keeps_what_there_is(world):
    parts = []
    stop = [False]

    def on_part(result, text, fraction):
        parts.append((text, fraction, result.samples))
        stop[0] = result.samples > 100

    found = run_pair(run_settings(), PairSettings(100_000, 3, 5), on_part=on_part, should_stop=lambda: stop[0])
    assert found.stopped
    assert 100 < found.samples < 100_000
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
    first, again = (run_pair(run_settings(), PairSettings(100, 2, 5)) for _ in range(2))
    other = run_pair(run_settings(sampling=replace(SAMPLED, seed=4)), PairSettings(100, 2, 5))
    assert first.rules == again.rules
    assert first.rules != other.rules


def test_ends_within_a_continuation(monkeypatch):
    """A model that often ends: outcomes are shorter, and the closed form follows."""
    world = World(monkeypatch, eos_ids=(0, 4))
    found = run_pair(run_settings(), PairSettings(500, 4, 30))
    assert world.engines["target", "bundled"].eos_ids == {0, 4}
    assert found.rules["rejection"].differs is False
    assert found.rules["naive"].bias.agrees


COMBINED = {"members": "prompt-lookup+draft-model"}


@pytest.mark.parametrize(
    ("lane", "no_bias"),
    [
        *((replace(DRAFTED, rule=rule), "") for rule in ("match", "typical", "naive")),
        (LaneSettings("prompt-lookup", k=3), "prompt-lookup"),
        (LaneSettings("suffix", k=3), "suffix"),
        (LaneSettings("early-exit", k=2, options={"exit_layer": 2}), "early-exit"),
        *(
            (replace(lane, rule=rule), lane.policy if lane.method == "draft-model" else lane.method)
            for rule in ("rejection", "match")
            for lane in (
                *(replace(DRAFTED, policy=policy) for policy in POLICIES if policy != "constant"),
                LaneSettings("auto", k=3, options=COMBINED),
                LaneSettings("cascade", k=3, options=COMBINED),
            )
        ),
    ],
    ids=lambda case: f"{case.method}-{case.policy}-{case.rule}" if isinstance(case, LaneSettings) else "",
)
def test_every_method_policy_and_rule_runs_on_cached_rows(monkeypatch, lane, no_bias):
    """Exact rules show no difference; where there is no closed form of the lossy ones' bias, it says why."""
    world = World(monkeypatch)
    honest = world.models["target", "bundled"]

    def made():
        engine = honest()
        engine.exit_layers, engine.exit_problem = 4, None
        engine.exit_model = TableModel(6, order=3, noise=0.4)
        return engine

    world.models["target", "bundled"] = made
    found = run_pair(run_settings(lane, prompt=REPEATING), PairSettings(160, 3, 12))
    rule = "rejection" if lane.rule == "auto" else lane.rule
    assert found.rule == rule
    assert tuple(found.rules) == samplers_of(rule)[1:]
    assert found.rules[rule].judged > 0
    assert not any(one.differs for one in found.rules.values() if not one.lossy)
    assert no_bias in found.no_bias and bool(found.no_bias) == bool(no_bias)
    assert all((one.bias is None) == (bool(no_bias) or not one.lossy) for one in found.rules.values())
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


def test_trouble_is_one_line(world):
    world.models["draft", "gone"] = lambda: (_ for _ in ()).throw(SpecviewError("there is no model 'gone'.", "Look."))
    with pytest.raises(SpecviewError, match="no model 'gone'"):
        run_pair(run_settings(replace(DRAFTED, draft="gone")), PairSettings(100, 2, 5))
    with pytest.raises(UsageError, match="lanes to test"):
        run_pair(RunSettings(prompt="b", chat=False, lanes=(LaneSettings(), DRAFTED, DRAFTED)))
    for sizes in ({"samples": 99}, {"samples": 2_000_000}, {"tokens": 1}, {"tokens": 9}, {"greedy_tokens": 0}):
        with pytest.raises(UsageError):
            PairSettings(**sizes)
