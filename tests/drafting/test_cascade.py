"""`cascade`: the first member with a proposal drafts; members stay in step; options, chains, trees, errors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specview.decoding.ledger import EMPTY_DRAFT, Draft
from specview.decoding.sampling import SamplingParams
from specview.drafting.cascade import Cascade
from specview.drafting.method import DrafterContext
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError, UsageError
from tests.decoding.toy import (
    FakeEngine,
    Named,
    TableModel,
    run_decode,
)

VOCAB = 6
GREEDY = SamplingParams()
PROMPT = [1, 2, 3, 1, 2]


def target(**options):
    return FakeEngine(TableModel(VOCAB, order=3), VOCAB, **options)


def context(options, **given):
    method = METHODS["cascade"]
    given = {"max_length": 256, "vocab_size": VOCAB, **given}
    return DrafterContext(options=method.resolve(options), **given)


def test_the_first_with_a_proposal_drafts_under_its_own_name():
    first = Named("first", lambda context, budget: [0] if len(context) % 2 else [])
    second = Named("second", lambda context, budget: [1, 1])
    cascade = Cascade([first, second])
    cascade.start([1], GREEDY)
    assert cascade.propose([1, 2, 3], 4).drafter == "first"
    assert cascade.propose([1, 2], 4) == Draft((1, 1), drafter="second")
    assert second.budgets == [4], "a member is asked only where those before it are silent"


def test_nothing_where_no_member_has_a_proposal():
    cascade = Cascade([Named("a", lambda c, b: []), Named("b", lambda c, b: [])])
    assert cascade.propose([1, 2], 3) == EMPTY_DRAFT


def test_each_member_has_its_longest_draft():
    members = [Named("a", lambda c, b: []), Named("b", lambda c, b: [2] * b)]
    cascade = Cascade(members, [None, 2])
    assert len(cascade.propose([1, 2], 9)) == 2
    assert members[0].budgets == [9]
    assert members[1].budgets == [2]
    assert len(cascade.propose([1, 2], 1)) == 1


def test_trees_and_riders_pass_unchanged():
    tree = Draft((3, 4, 5), parents=(-1, -1, 0), drafter="tree", siblings="point-mass")
    ridden = Draft((), riders=(1, 2), rider_parents=(-1, 0), drafter="window")

    class Fixed(Named):
        def __init__(self, draft):
            super().__init__(draft.drafter, lambda c, b: [])
            self.draft = draft

        def propose(self, context, budget, proceed=None):
            return self.draft

    assert Cascade([Fixed(tree), Named("b", lambda c, b: [1])]).propose([1], 3) is tree
    assert Cascade([Fixed(ridden), Named("b", lambda c, b: [1])]).propose([1], 3) is ridden


def test_every_member_sees_every_round():
    members = [Named("a", lambda c, b: [0] if len(c) % 3 else []), Named("b", lambda c, b: [1, 2])]
    _, rounds, _, _ = run_decode(
        target(), PROMPT, rule="greedy", sampling=GREEDY, max_tokens=25, drafter=Cascade(members), k=3
    )
    for member in members:
        assert [(round_.index, round_.drafter, round_.k) for round_ in member.seen] == [
            (round_.index, round_.drafter, round_.k) for round_ in rounds
        ]
    assert {round_.drafter for round_ in rounds if round_.k} == {"a", "b"}


def test_layers_are_joined_and_exactness_is_that_of_all():
    a, b = Named("a", lambda c, b: []), Named("b", lambda c, b: [])
    a.feature_layers, b.feature_layers, b.exact_q = ("last", 2), (2, 5), False
    cascade = Cascade([a, b])
    assert cascade.feature_layers == ("last", 2, 5)
    assert not cascade.exact_q
    cascade.close()
    assert a.closed
    assert b.closed


def test_options_of_members_are_resolved_and_reach_them():
    options = METHODS["cascade"].resolve(
        {"members": "prompt-lookup+ngram-simple", "prompt-lookup.ngram_max": "7", "ngram-simple.size_n": "5"}
    )
    assert options["prompt-lookup.ngram_max"] == 7
    assert options["ngram-simple.size_n"] == 5
    made = METHODS["cascade"].make(DrafterContext(options, 256, VOCAB))
    assert [member.name for member in made.members] == ["prompt-lookup", "ngram-simple"]
    assert made.members[1].options["size_n"] == 5


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"members": "nothing"}, "cannot combine 'nothing'"),
        ({"members": "plain+draft-model"}, "cannot combine 'plain'"),
        ({"members": "cascade"}, "cannot combine 'cascade'"),
        ({"members": "auto+prompt-lookup"}, "cannot combine 'auto'"),
        ({"members": "prompt-lookup+prompt-lookup"}, "names prompt-lookup twice"),
        ({"members": ""}, "cannot combine ''"),
        ({"members": "prompt-lookup+"}, "cannot combine ''"),
        ({"members": "prompt-lookup", "suffix.max_tree_depth": 3}, "has no option 'suffix.max_tree_depth'"),
        ({"model_k": 0}, "model_k is 0"),
    ],
)
def test_bad_members_are_one_line(given, line):
    with pytest.raises(UsageError, match=line.replace("(", r"\(")):
        METHODS["cascade"].resolve(given)


def test_a_member_that_cannot_be_made_is_an_error_and_leaves_nothing_open():
    engine = FakeEngine(TableModel(VOCAB), VOCAB)
    with pytest.raises(SpecviewError, match="needs a draft model"):
        METHODS["cascade"].make(context({"members": "prompt-lookup+draft-model"}))
    made = METHODS["cascade"].make(context({"members": "draft-model+prompt-lookup"}, draft_engine=engine))
    made.close()
    assert all(session.closed for session in engine.sessions)


def test_a_member_that_fails_fails_the_round():
    def broken(context, budget):
        raise SpecviewError("the draft broke.", "Mend it.")

    with pytest.raises(SpecviewError, match="the draft broke"):
        run_decode(
            target(),
            PROMPT,
            rule="greedy",
            sampling=GREEDY,
            max_tokens=5,
            drafter=Cascade([Named("a", lambda c, b: []), Named("b", broken)]),
        )


def test_all_members_get_the_prompt_with_progress():
    seen = []

    class Starting(Named):
        def start(self, prompt_tokens, sampling, on_chunk=None):
            on_chunk(1, 1)
            seen.append((self.name, list(prompt_tokens)))

    told = []
    Cascade([Starting("a", None), Starting("b", None)]).start(
        [1, 2], GREEDY, lambda done, total: told.append((done, total))
    )
    assert seen == [("a", [1, 2]), ("b", [1, 2])]
    assert told == [(1, 1)] * 2


def test_rows_and_lengths_come_from_the_members():
    method = METHODS["cascade"]
    long = method.resolve({"members": "ngram-simple+draft-model"})
    assert method.drafted(long).levels == METHODS["ngram-simple"].drafted(METHODS["ngram-simple"].resolve({})).levels
    window = method.resolve({"members": "ngram-simple+lookahead"})
    own = METHODS["lookahead"].resolve({})
    assert method.drafted(window).rows_at(4) >= METHODS["lookahead"].drafted(own).rows_at(4)
    assert method.drafted(window).leaves == METHODS["lookahead"].drafted(own).leaves
    assert method.drafted(long).leaves == 1
    assert replace(method, name="x").members({}) == ("suffix", "draft-model")
