"""Whatever is learned from tokens that were drafted and not judged, the target's distribution stands."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from specview.decoding.ledger import Round
from specview.decoding.loop import Sequence, decode
from specview.decoding.sampling import SamplingParams
from specview.drafting.policies import POLICIES
from specview.settings.options import resolve
from tests.decoding.statistics import chi_square_p
from tests.decoding.toy import BOS, DRAFT, TARGET, VOCAB, FakeEngine, draft_model, toy_logits
from tests.drafting.universal_toy import Pieces, engine_of, foreign_drafter

HONEST = 1e-4

END = 3
P = np.log(np.array([0.35, 0.25, 0.20, 0.20], dtype=np.float32))  # after any token: a, b, c, the end
Q = np.log(np.array([0.19, 0.33, 0.05, 0.22, 0.21], dtype=np.float32))  # the end, c, x, a, b


def rounds_of(policy: Any, seed: int, tokens: int = 250) -> list[Round]:
    """A run over two tokenizers, the intersection drafting: the end is a token like another here."""
    target = engine_of(Pieces([b"a", b"b", b"c", "<end>"], ends=["<end>"]), lambda prefix: P)
    draft = engine_of(Pieces(["</s>", b"c", b"x", b"a", b"b"], ends=["</s>"]), lambda prefix: Q)
    sampling = SamplingParams(1.0, seed=seed)
    drafter = foreign_drafter(target, draft, "intersection", "rejection")
    drafter.start([0], sampling)
    return list(
        decode(
            target.new_session(500), Sequence([0]), rule="rejection", sampling=sampling, max_tokens=tokens,
            drafter=drafter, policy=policy,
        )
    )  # fmt: skip


def share_of_ends(name: str, runs: int, **options: float) -> tuple[int, float]:
    """Of rounds behind one that accepted a token and refused the next of a longer draft: how many, and how often they begin with the end."""
    events = ends = 0
    for seed in range(runs):
        policy = POLICIES[name].make(resolve(POLICIES[name].options, options, name), None)
        policy.start(4)
        rounds = rounds_of(policy, seed)
        for before, after in zip(rounds, rounds[1:], strict=False):
            if before.accepted == 1 and before.judged == 2 and before.k > 2:
                events += 1
                ends += after.emitted[0] == END
    return events, ends / events


@pytest.mark.parametrize(
    ("name", "options"), [("off-below", {"threshold": 0.3, "window": 1, "retry": 1}), ("constant", {})]
)
def test_an_end_drafted_behind_a_refusal_makes_no_end_likelier(name, options):
    """It once was: the end cut the draft short, the policy drafted on for it, and the next draft used its number again."""
    events, share = share_of_ends(name, 60, **options)
    assert events > 200
    assert abs(share - 0.2) < 4 * math.sqrt(0.2 * 0.8 / events)


class Nosy:
    """Drafts on where the first token behind a refusal was likely, else not: the most that can be learned from it."""

    name = "nosy"
    proceed = None

    def __init__(self) -> None:
        self.next = 3

    def start(self, k: int) -> None:
        pass

    def budget(self) -> int:
        return self.next

    def observe(self, round_: Round) -> None:
        ignored = [token.id for token in round_.drafted if token.verdict == "ignored"]
        self.next = 3 if not ignored or ignored[0] < VOCAB / 2 else 0


def test_a_policy_may_look_at_tokens_that_were_not_judged():
    target, draft = FakeEngine(toy_logits(TARGET), VOCAB), FakeEngine(toy_logits(DRAFT), VOCAB)
    after: dict[int, Counter[int]] = {last: Counter() for last in range(VOCAB)}
    for seed in range(30):
        sampling = SamplingParams(1.0, seed=seed)
        drafter, policy = draft_model(draft, VOCAB), Nosy()
        drafter.start([BOS], sampling)
        last = None
        for round_ in decode(
            target.new_session(500), Sequence([BOS]), rule="rejection", sampling=sampling, max_tokens=400,
            drafter=drafter, policy=policy,
        ):  # fmt: skip
            if last is not None:
                after[last][round_.emitted[0]] += 1
            last = round_.emitted[-1] if round_.judged < round_.k else None
    for last in range(VOCAB):
        assert sum(after[last].values()) > 100
        assert chi_square_p(after[last], {token: float(TARGET[last][token]) for token in range(VOCAB)}) > HONEST
