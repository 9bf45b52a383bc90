"""Every length policy, auto and cascade on the toy, by the product's own loop, with each rule that claims exactness."""

from __future__ import annotations

import pytest

from specview.decoding.sampling import uniform
from specview.drafting.policies import POLICIES
from specview.lab import policy_exactness
from specview.lab.exact_statistics import SIGNIFICANCE
from specview.lab.policy_exactness import (
    NOSY,
    RUN,
    PoliciesResult,
    PolicyResult,
    cases,
    policies_document,
    run_policies,
)


@pytest.fixture(scope="module")
def found() -> PoliciesResult:
    return run_policies(samples=1500)


def test_what_is_tested():
    tested = cases()
    assert tested == [
        *((rule, name) for rule in ("rejection", "match") for name in (*POLICIES, "auto", "cascade", NOSY)),
        ("naive", "constant"),
    ]


def test_no_policy_bends_an_exact_rule_and_the_control_is_caught(found):
    assert [(one.rule, one.policy) for one in found.cases] == cases()
    for one in found.cases:
        assert one.samples == found.samples == 24 * RUN
        assert one.differs == one.lossy, one
        if not one.lossy:
            assert one.words == "no difference from the target found"
            assert one.tv < one.bound
            assert one.tokens_per_pass > 1
    assert found.holds
    assert found.sentence.endswith("naive with constant, the control, was caught.")


def test_policies_came_into_their_states(found):
    """Drafts were judged in part, and those that stop drafting did so now and then."""
    by = {(one.rule, one.policy): one for one in found.cases}
    for name in ("constant", "heuristic", "confidence", "off-below", "auto", "cascade", NOSY):
        assert by["rejection", name].behind > 50
    assert by["rejection", "off-below"].tokens_per_pass < by["rejection", "constant"].tokens_per_pass


def test_numbers_that_are_used_twice_are_found(monkeypatch):
    """Keyed by output position, a token that was not judged is drafted by the number of the next round's own."""

    def by_position(seed, position, purpose, index=0):
        return uniform(seed, position + index, purpose)

    monkeypatch.setattr("specview.drafting.sampled.uniform", by_position)
    result = run_policies(samples=1000, chosen=[("rejection", NOSY)])
    (nosy,) = result.cases
    assert nosy.behind_p is not None and nosy.behind_p < SIGNIFICANCE
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


def test_the_document(found):
    document = policies_document(found)
    assert len(document["cases"]) == len(cases())
    assert document["holds"] is True
    assert document["samples"] == found.samples
    first = document["cases"][0]
    assert (first["rule"], first["policy"], first["differs"]) == ("rejection", "constant", False)


def test_too_few_samples_say_so():
    one = PolicyResult("match", "auto", 64, 0.5, 0.5, 1.0, None, 0, None, 1.0)
    assert one.words == "too few samples to test"


@pytest.mark.parametrize("name", [*policy_exactness.POLICIES, *policy_exactness.COMBINED, policy_exactness.NOSY])
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
        for _ in policy_exactness.decode(target, plain, rule="match", sampling=sampling, max_tokens=case._length, clock=clock):
            pass
        assert written[-2].output == plain.output
