"""Every length policy, auto and cascade on the toy, by the product's own loop, with each rule that claims exactness."""

from __future__ import annotations

import pytest

from specview.decoding.sampling import uniform
from specview.drafting.policies import POLICIES
from specview.lab import policy_exactness
from specview.lab.exact_statistics import SIGNIFICANCE
from specview.lab.policy_exactness import (
    CONTROL,
    NOSY,
    RUN,
    PoliciesResult,
    cases,
    policies_document,
    policies_report,
    run_policies,
)

NAMES = (*POLICIES, "auto", "cascade", NOSY)


@pytest.fixture(scope="module")
def found() -> PoliciesResult:
    """All but match, of which each token is compared below; the control with samples enough to be caught at any seed."""
    found = run_policies(samples=1000, chosen=[case for case in cases() if case[0] == "rejection"])
    found.cases += run_policies(samples=2500, chosen=[CONTROL]).cases
    return found


def test_no_policy_bends_an_exact_rule_and_the_control_is_caught(found):
    assert cases() == [*((rule, name) for rule in ("rejection", "match") for name in NAMES), ("naive", "constant")]
    assert [(one.rule, one.policy) for one in found.cases] == [*(("rejection", name) for name in NAMES), ("naive", "constant")]
    for one in found.cases:
        assert one.samples == (40 if one.lossy else 16) * RUN
        assert one.differs == one.lossy, one
        if not one.lossy:
            assert one.words == "no difference from the target found"
            assert one.tv < one.tv_bound
            assert one.tokens_per_pass > 1
    assert found.holds
    assert found.sentence.endswith("naive with constant, the control, was caught.")
    report = policies_report(found)
    assert report.blocks[-1] == found.verdict and found.verdict.tone == "good"
    assert [row["case"] for row in report.blocks[1].rows][-2:] == ["rejection, nosy", "naive (lossy), constant"]
    document = policies_document(found)
    assert (document["holds"], document["samples"], len(document["cases"])) == (True, 16 * RUN, 9)
    first = document["cases"][0]
    assert (first["rule"], first["policy"], first["differs"]) == ("rejection", "constant", False)


def test_policies_came_into_their_states(found):
    """Drafts were judged in part, and those that stop drafting did so now and then."""
    by = {one.policy: one for one in found.cases if not one.lossy}
    for name in ("constant", "heuristic", "confidence", "off-below", "auto", "cascade", NOSY):
        assert by[name].behind_unjudged > 30
    assert by["off-below"].tokens_per_pass < by["constant"].tokens_per_pass


def test_numbers_that_are_used_twice_are_found(monkeypatch):
    """Keyed by output position, a token that was not judged is drafted by the number of the next round's own."""

    def by_position(seed, position, purpose, index=0):
        return uniform(seed, position + index, purpose)

    monkeypatch.setattr("specview.drafting.base.uniform", by_position)
    result = run_policies(samples=1000, chosen=[("rejection", NOSY)])
    (nosy,) = result.cases
    assert nosy.behind_unjudged_p is not None and nosy.behind_unjudged_p < SIGNIFICANCE
    assert nosy.words == "DIFFERS from the target"
    assert not result.holds
    assert result.sentence.endswith("rejection with nosy differs from the target: this build is NOT exact.")


def test_a_stop_keeps_what_is_whole():
    asked = []
    result = run_policies(samples=100, on_case=lambda part, text, fraction: asked.append((text, fraction)), should_stop=lambda: len(asked) > 4)
    assert result.stopped
    assert [(one.rule, one.policy) for one in result.cases] == cases()[:2]
    names = [text.removeprefix("rejection with ") for text, _ in asked]
    assert names == ["constant", "constant", "heuristic", "heuristic", "confidence"]
    assert [fraction * len(cases()) for _, fraction in asked] == pytest.approx([0, 0.64, 1, 1.64, 2])


@pytest.mark.parametrize("name", NAMES)
def test_match_gives_the_tokens_of_plain_decoding_whatever_the_lengths(name, monkeypatch):
    """Stronger than statistics: the target's numbers are keyed by output position, and match emits what they draw."""
    written = []

    class Kept(policy_exactness.TokenSequence):
        def __init__(self, prompt):
            super().__init__(prompt)
            written.append(self)

    monkeypatch.setattr(policy_exactness, "TokenSequence", Kept)
    toy = policy_exactness.make_toy(None)
    case = policy_exactness._Case(toy, "match", name)
    for seed in range(8):
        case.run(seed)
        plain, clock = Kept([policy_exactness.BOS]), policy_exactness._Clock()
        target = policy_exactness._TableSession(policy_exactness.logits_of(toy.target), clock, 0.5, 0.5)
        sampling = policy_exactness.SamplingParams(temperature=1.0, seed=seed)
        for _ in policy_exactness.decode(target, plain, rule="match", sampling=sampling, max_tokens=case.length, clock=clock):
            pass
        assert written[-2].output == plain.output
