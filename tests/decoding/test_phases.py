"""Phases of a round: every state that a round went through, in order, on ledgers that the loop itself made."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.ledger import DraftedToken, FinalToken, Round
from specview.decoding.observation import Observer
from specview.decoding.phases import Stage, stages
from specview.decoding.sampling import SamplingParams
from tests.decoding.test_trees import TreeDrafter
from tests.decoding.toy import (
    DRAFT,
    TARGET,
    VOCAB,
    FakeClock,
    FakeEngine,
    FakeTokenizer,
    PointMassDrafter,
    run_decode,
    toy_logits,
)

RULES = ("greedy", "rejection", "match", "typical", "naive")
SHAPES = ("chain", "point-mass", "independent", "without-replacement")


def ledger(rule: str, shape: str, seed: int, count: int = 40, eos: bool = False) -> list[Round]:
    """Rounds of the product's loop over the toy, under a clock that its passes move."""
    clock = FakeClock()
    target = FakeEngine(toy_logits(TARGET), VOCAB, clock=clock, pass_cost=0.01, row_cost=0.001, eos_ids=(2,) if eos else ())
    drafter = PointMassDrafter(DRAFT, seed) if shape == "chain" else TreeDrafter(shape, seed)
    propose = drafter.propose

    def timed(*args):
        clock.now += 0.003
        return propose(*args)

    drafter.propose = timed
    sampling = SamplingParams(temperature=0.0 if rule == "greedy" else 1.0, seed=seed)
    observer = Observer("full", FakeTokenizer(VOCAB))
    return run_decode(target, [0], rule=rule, sampling=sampling, max_tokens=count, drafter=drafter, observer=observer, clock=clock)[1]


def check(round_: Round) -> tuple[Stage, ...]:
    """All that holds of the phases of any round."""
    made = stages(round_)
    assert made[-1].t == round_.t
    assert all(before.t <= after.t for before, after in itertools.pairwise(made))
    assert made[-1].states == tuple(token.verdict for token in round_.drafted)
    assert made[-1].final == (round_.final is not None)
    seen: tuple = ("unseen",) * round_.k
    for stage in made:
        differs = tuple(place for place in range(round_.k) if stage.states[place] != seen[place])
        assert differs == tuple(sorted(stage.changed)) and stage.words
        seen = stage.states
    drafts = [stage for stage in made if stage.name == "draft"]
    assert [stage.name for stage in made[:len(drafts) + 1]] == ["draft"] * len(drafts) + ["verify"]
    assert sum(len(stage.changed) for stage in drafts) == round_.k and len(drafts) == round_.longest
    tried = [stage.changed[0] for stage in made if stage.name in ("accepted", "rejected")]
    assert sorted(tried) == [place for place, token in enumerate(round_.drafted) if token.verdict != "ignored"]
    parents = round_.parents if round_.parents is not None else tuple(range(-1, round_.k - 1))
    node = -1
    for place in tried:  # each is a child of the last one accepted, siblings in the draft's order
        assert parents[place] == node
        if round_.drafted[place].verdict == "accepted":
            node = place
    rest = [stage.name for stage in made[len(drafts) + 1 + len(tried):]]
    assert rest == ["ignored"] * (round_.judged < round_.k) + ([round_.final.kind] if round_.final is not None else [])
    return made


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", RULES)
def test_every_state_of_a_round_comes_in_order(rule, shape):
    kinds = set()
    for seed in range(6):
        for round_ in ledger(rule, shape, seed):
            made = check(round_)
            kinds |= {stage.name for stage in made}
            begin = round_.t - round_.seconds
            verify = next(stage for stage in made if stage.name == "verify")
            assert verify.t == pytest.approx(begin + round_.draft_s)
            assert verify.states == ("drafted",) * round_.k and not verify.final
            judged = [stage for stage in made if stage.name not in ("draft", "verify")]
            assert all(stage.t >= begin + round_.draft_s + round_.verify_s - 1e-12 for stage in judged)
    assert kinds >= {"draft", "verify", "accepted", "rejected", "bonus"}
    assert "corrected" in kinds or (rule, shape) == ("typical", "point-mass")  # of two siblings it takes one


def test_an_accepted_end_of_text_has_no_final_token():
    rounds = [round_ for seed in range(30) for round_ in ledger("match", "independent", seed, eos=True)]
    last = [check(round_)[-1] for round_ in rounds if round_.final is None]
    assert last and {stage.name for stage in last} <= {"accepted", "ignored"}


def test_a_plain_round_is_a_pass_and_a_token():
    made = check(Round(0, 0.5, 0.0, 0.4, 0.1, final=FinalToken(1, "plain", "a")))
    assert [(stage.name, stage.t, stage.final) for stage in made] == [("verify", 0.0, False), ("plain", 0.5, True)]


def test_what_was_compared_is_said():
    def words(token: DraftedToken) -> str:
        return stages(Round(0, 1.0, 0.1, 0.8, 0.1, drafted=(token,), final=FinalToken(1, "corrected", "a")))[2].words

    assert "0.31 was drawn, under 0.87" in words(DraftedToken(1, "accepted", q=0.5, p=0.4, accept=0.87, u=0.31))
    assert "threshold 0.09" in words(DraftedToken(1, "rejected", p=0.04, accept=0.0, threshold=0.09))
    assert "drew another" in words(DraftedToken(1, "rejected", p=0.04, accept=0.04, draw=7))
    assert "likeliest" in words(DraftedToken(1, "accepted", p=1.0, accept=1.0))
    assert words(DraftedToken(1, "accepted")) == "token 1 is accepted"


VERDICTS = st.sampled_from(["accepted", "rejected", "ignored"])


@given(st.lists(st.tuples(VERDICTS, st.floats(0, 1)), max_size=9), st.booleans(), st.booleans(),
       st.lists(st.floats(0, 1e300), min_size=4, max_size=4))  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_whatever_a_file_says_has_phases(tokens, tree, final, times):
    """A file's verdicts may be none that a rule gives, and its times need not add up."""
    drafted = tuple(DraftedToken(1, verdict) for verdict, _ in tokens)
    parents = tuple(int(share * (place + 1)) - 1 for place, (_, share) in enumerate(tokens)) if tree else None
    parents = None if parents is None else tuple(min(parent, place - 1) for place, parent in enumerate(parents))
    round_ = Round(0, *times, parents=parents, drafted=drafted, final=FinalToken(1, "bonus") if final else None)
    made = stages(round_)
    assert made[-1].t == round_.t and all(before.t <= after.t for before, after in itertools.pairwise(made))
    assert made[-1].states == tuple(verdict for verdict, _ in tokens) and made[-1].final == final
    assert np.isfinite([stage.t for stage in made]).all()
