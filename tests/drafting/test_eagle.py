"""The EAGLE family: drafts against a forward without a cache, through every kind of round; exact output; limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.ledger import Draft
from specview.decoding.loop import Sequence as TokenSequence
from specview.decoding.observation import Observer
from specview.decoding.sampling import SamplingParams
from specview.drafting.cascade import Cascade
from specview.drafting.draft_tree import fixed_tree
from specview.drafting.eagle import shape_of
from specview.drafting.method import DrafterContext
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError, UsageError
from tests.decoding.toy import (
    ScriptDrafter,
    TableModel,
    constant,
    plain_reference,
)
from tests.drafting.eagle_toy import (
    AUX,
    FeatureEngine,
    NaiveHead,
    Watched,
    draft_paths,
    eagle2_tree,
    eagle3_head,
    eagle_head,
    light_head,
    log_softmax,
    make,
    run,
)

WIDE = 9
PROMPT = [1, 2, 3, 1, 2, 4, 8, 0, 5, 1, 2, 3]
IDS = (0, 2, 3, 5, 6, 8)
SWITCHES = [
    {},
    {"norm_before_residual": True},
    {"norm_output": True, "fc_norm": True},
    {"norm_before_fc": True, "qk_norm": True, "layers": 2},
    {"attention_bias": True, "own_embedding": True, "norm_before_residual": True},
]
E1_SWITCHES = [{}, {"fc_bias": False}, {"layers": 2, "attention_bias": True}, {"own_embedding": True}]


def engine(namespace="numpy", **more) -> FeatureEngine:
    return FeatureEngine(TableModel(WIDE), WIDE, namespace=namespace, **more)


def head_of(method, target, seed=0, **switches):
    if method in ("eagle", "eagle2"):
        return eagle_head(target, seed=seed, **switches)
    return eagle3_head(target, IDS, seed=seed, **switches)


def kinds(rounds) -> set[str]:
    """Which outcomes a run had: all, none or a part of a draft accepted."""
    found = set()
    for round_ in rounds:
        depth = max((len(p) for p in draft_paths([t.id for t in round_.drafted], round_.parents)), default=0)
        if depth:
            found.add("all" if round_.accepted == depth else "some" if round_.accepted else "none")
    return found


def greedy_plain(target, prompt, count):
    return plain_reference(target.model, prompt, SamplingParams(), count)


# -- chains ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "switches", "namespace"),
    [(method, switches, ("numpy", "torch")[place % 2])
     for method, every in (("eagle3", SWITCHES), ("eagle", E1_SWITCHES)) for place, switches in enumerate(every)],
)  # fmt: skip
def test_every_chain_is_that_of_a_forward_over_the_whole_context(method, switches, namespace):
    """In every round, after whatever was accepted in those before it; and the output is plain's."""
    target = engine(namespace)
    head = head_of(method, target, **switches)
    naive, lane = NaiveHead(head, target), Watched(make(method, head, target))
    output, rounds, end, _ = run(target, PROMPT, lane, max_tokens=40)
    assert output == greedy_plain(target, PROMPT, 40)
    assert end == "limit"
    assert {"none", "some"} <= kinds(rounds)
    for context, budget, draft in lane.drafts:
        assert draft.tokens == tuple(naive.chain(context, budget))
        assert draft.parents is None
        assert draft.q is None
        assert draft.drafter == method
    assert lane.drafts[0][0] == PROMPT  # the first round drafts already


def test_sampled_chains_have_the_distribution_that_they_are_drawn_from():
    """q is the head's row after temperature and filters, over the target's vocabulary: 0 for ids it has not."""
    target = engine()
    head = eagle3_head(target, IDS)
    naive, lane = NaiveHead(head, target), Watched(make("eagle3", head, target))
    sampling = SamplingParams(temperature=0.7, top_k=4, seed=5)
    run(target, PROMPT, lane, rule="rejection", sampling=sampling, max_tokens=30)
    drawn = set()
    for context, _, draft in lane.drafts:
        for place, q in enumerate(draft.q):
            row = naive.after(context, draft.tokens[:place])
            kept = np.where(row >= np.sort(row)[-4], row / 0.7, -np.inf)
            expected = np.zeros(WIDE)
            expected[list(IDS)] = np.exp(log_softmax(kept))
            assert q.numpy() == pytest.approx(expected, abs=1e-6)
            assert expected[draft.tokens[place]] > 0
            drawn.add(draft.tokens[place])
            raw = draft.raw_logits[place].numpy()
            assert raw[list(IDS)] == pytest.approx(row, abs=1e-4)
            assert np.isneginf(np.delete(raw, list(IDS))).all()
    assert drawn == set(IDS)


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_chunks_of_the_prompt_make_no_difference(method, chunk):
    target = engine(chunk=chunk)
    head = head_of(method, target)
    lane = Watched(make(method, head, target))
    run(target, PROMPT, lane, max_tokens=6)
    assert lane.drafts[0][2].tokens == tuple(NaiveHead(head, target).chain(PROMPT, 3))


def test_confidences_are_the_heads_own_probabilities_and_end_a_draft():
    target = engine()
    head = eagle3_head(target, IDS)
    naive, drafter = NaiveHead(head, target), make("eagle3", head, target)
    run(target, PROMPT, drafter, max_tokens=1)  # follows the prompt
    context = [*PROMPT, *greedy_plain(target, PROMPT, 1)]
    asked = []

    def proceed(confidence):
        asked.append(confidence)
        return len(asked) < 2

    draft = drafter.propose(context, 5, proceed)
    assert len(draft) == 2
    assert draft.confidences == tuple(asked)
    for place, confidence in enumerate(asked):
        row = np.exp(log_softmax(naive.after(context, draft.tokens[:place])))
        assert confidence == pytest.approx(row.max(), rel=1e-4)


# -- trees ---------------------------------------------------------------------------------------------------


def tree_options(method, levels, width, most):
    tree = {} if method == "eagle2" else {"tree": "dynamic"}
    return {**tree, "depth": levels - 1, "top_k": width, "total_tokens": most + 1}


@pytest.mark.parametrize(
    ("method", "levels", "width", "most", "namespace"),
    [(method, *shape, ("numpy", "torch")[(place + other) % 2]) for other, method in enumerate(("eagle2", "eagle3"))
     for place, shape in enumerate([(3, 3, 9), (1, 4, 3), (4, 2, 20), (5, 3, 6), (2, 6, 41)])],
)  # fmt: skip
def test_every_dynamic_tree_is_that_of_the_paper(method, levels, width, most, namespace):
    """Against EAGLE-2 by brute force over the numpy forward, with its order, after every kind of round."""
    target = engine(namespace)
    head = head_of(method, target, seed=3)
    naive = NaiveHead(head, target)
    lane = Watched(make(method, head, target, **tree_options(method, levels, width, most)))
    output, rounds, _, _ = run(target, PROMPT, lane, max_tokens=24, k=levels)
    assert output == greedy_plain(target, PROMPT, 24)
    assert len(kinds(rounds)) >= 2
    for context, budget, draft in lane.drafts:
        own = [naive.ids.index(token) for token in draft.tokens]
        paths = draft_paths(own, draft.parents)

        def after(path, context=context):
            return log_softmax(naive.after(context, [naive.ids[token] for token in path]))

        expected = dict(eagle2_tree(after, min(levels, budget), width, most))
        assert set(paths) == set(expected)
        assert len(paths) == len(expected)
        assert draft.q is None
        depths = [len(path) for path in paths]
        assert depths == sorted(depths)  # the draft's order: level by level, likelier paths' children first
        conditional = {path: expected[path] - expected.get(path[:-1], 0.0) for path in paths}
        for path, confidence in zip(paths, draft.confidences, strict=True):
            assert confidence == pytest.approx(np.exp(conditional[path]), rel=1e-3)
        for one, other in zip(paths, paths[1:], strict=False):
            if one[:-1] == other[:-1]:
                assert expected[one] >= expected[other]


@pytest.mark.parametrize("method", ["eagle"])
def test_fixed_trees_hold_the_tokens_of_their_ranks(method):
    target = engine()
    head = head_of(method, target)
    naive = NaiveHead(head, target)
    paths = [[0], [1], [3], [0, 0], [0, 2], [1, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0]]
    lane = Watched(make(method, head, target, tree="fixed", paths=str(paths)))
    output, rounds, _, _ = run(target, PROMPT, lane, max_tokens=30)
    assert output == greedy_plain(target, PROMPT, 30)
    assert len(kinds(rounds)) >= 2
    for context, budget, draft in lane.drafts:
        expected = []
        for ranks in paths:
            path: list[int] = []
            for rank in ranks:
                path.append(int(np.argsort(-naive.after(context, path), kind="stable")[rank]))
            if len(path) <= budget:
                expected.append(tuple(path))
        assert draft_paths(draft.tokens, draft.parents) == expected


def test_trees_stop_growing_where_the_policy_says_so():
    target = engine()
    head = eagle3_head(target, IDS)
    options = {"tree": "dynamic", "depth": 4, "top_k": 3, "total_tokens": 30}
    drafter = make("eagle3", head, target, **options)
    run(target, PROMPT, drafter, max_tokens=1)
    context = [*PROMPT, *greedy_plain(target, PROMPT, 1)]
    whole = drafter.propose(context, 5)
    asked = []

    def proceed(confidence):
        asked.append(confidence)
        return len(asked) < 2

    cut = drafter.propose(context, 5, proceed)
    assert max(map(len, draft_paths(whole.tokens, whole.parents))) == 5
    assert max(map(len, draft_paths(cut.tokens, cut.parents))) == 2
    best = max(cut.confidences[:3])
    assert asked[0] == best
    again = drafter.propose(context, 5)  # nothing of a draft stays in the head's cache
    assert (again.tokens, again.parents) == (whole.tokens, whole.parents)


# -- rounds of others ------------------------------------------------------------------------------------------


class Guesses(ScriptDrafter):
    """Drafts what plain decoding gives, spoilt after some tokens, in two rounds of three."""

    name = "guesses"
    prompt_layers = ()

    def __init__(self, target, tree):
        super().__init__(lambda context, budget: ())
        self.target, self.tree, self.round = target, tree, 0

    def learn_prompt(self, features):
        pass

    def propose(self, context, budget, proceed=None):
        self.round += 1
        if self.round % 3 == 0:
            return Draft()
        right = plain_reference(self.target.model, context, SamplingParams(), 3)
        wrong = [(token + 1) % WIDE for token in right]
        tokens = [right[0], wrong[1] if self.round % 3 == 1 else right[1], right[2]]
        if not self.tree or budget < 2:
            return Draft(tuple(tokens[:budget]), drafter=self.name)
        # A wrong sibling first: the accepted path is not the first rows.
        return Draft((wrong[0], right[0], wrong[0], right[1]), (-1, -1, 0, 1), drafter=self.name)


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("method", ["eagle", "eagle2", "eagle3"])
def test_the_head_follows_rounds_that_another_member_drafted(method, tree):
    target = engine()
    head = head_of(method, target)
    naive, own = NaiveHead(head, target), Watched(make(method, head, target))
    members = Cascade([Guesses(target, tree), own], [None, 2])
    output, rounds, _, _ = run(target, PROMPT, members, max_tokens=40, k=4)
    assert output == greedy_plain(target, PROMPT, 40)
    assert {round_.drafter for round_ in rounds} >= {"guesses", method}
    assert any(round_.drafter == "guesses" and round_.accepted for round_ in rounds)
    for context, budget, draft in own.drafts:
        assert budget <= 2
        first = draft.tokens[0]
        assert first == naive.chain(context, 1)[0]
        if method != "eagle2":
            assert draft.tokens == tuple(naive.chain(context, budget))


def test_rows_do_not_wait_without_end_for_a_head_that_never_drafts():
    target = engine()
    head = eagle3_head(target, IDS)
    drafter = make("eagle3", head, target)
    output, _, _, _ = run(target, PROMPT, drafter, max_tokens=150, policy=constant(0))
    waiting = drafter._run.known - drafter._run.length
    assert drafter._run.known == len(PROMPT) + 149
    assert waiting <= 65
    context = PROMPT + output
    assert drafter.propose(context, 3).tokens == tuple(NaiveHead(head, target).chain(context, 3))


# -- bounds -----------------------------------------------------------------------------------------------------

SHAPES = [
    ("eagle", {}),
    ("eagle", {"tree": "fixed"}),
    ("eagle2", {"depth": 2, "top_k": 3, "total_tokens": 9}),
    ("eagle3", {}),
    ("eagle3", {"tree": "dynamic", "depth": 3, "top_k": 3, "total_tokens": 12}),
]


@pytest.mark.parametrize(("method", "options"), SHAPES)
@pytest.mark.parametrize("prompt", [[3], [3, 1]])
def test_the_shortest_prompts(method, options, prompt):
    """One token has no prefill and no feature: the first round is plain, the next one drafts."""
    target = engine()
    drafter = Watched(make(method, head_of(method, target), target, **options))
    output, rounds, _, _ = run(target, prompt, drafter, max_tokens=12)
    assert output == greedy_plain(target, prompt, 12)
    assert bool(rounds[0].k) == (len(prompt) > 1)
    assert rounds[1].k


@pytest.mark.parametrize(("method", "options"), SHAPES)
def test_going_on_after_the_limit(method, options):
    """In the same caches, as Lane.extend does, and anew over the whole text, as it does where they are full."""
    target = engine()
    head = head_of(method, target)
    drafter, sequence = Watched(make(method, head, target, **options)), TokenSequence(list(PROMPT))
    first, _, _, session = run(target, PROMPT, drafter, max_tokens=9, sequence=sequence)
    more, _, _, _ = run(target, PROMPT, drafter, max_tokens=9, sequence=sequence, session=session)
    assert [*first, *more] == greedy_plain(target, PROMPT, 18)
    again = Watched(make(method, head, target, **options))
    run(target, sequence.context, again, max_tokens=4)
    context = again.drafts[0][0]
    expected = drafter.propose(context, 3)
    assert again.drafts[0][2].tokens == expected.tokens
    assert again.drafts[0][2].parents == expected.parents


@pytest.mark.parametrize("given", ["none", "late"])
def test_a_drafter_without_the_features_it_needs_drafts_nothing(given):
    target = engine()
    drafter = make("eagle3", eagle3_head(target, IDS), target)
    target.features_problem = "the toy gives none"
    drafter.start(PROMPT, SamplingParams())
    session = target.new_session(200)
    session.prefill(PROMPT[:-1], None, AUX, drafter.learn_prompt)
    target.features_problem = None if given == "late" else target.features_problem
    output, rounds, _, _ = run(target, PROMPT, drafter, max_tokens=8, session=session)
    assert output == greedy_plain(target, PROMPT, 8)
    assert not any(round_.k for round_ in rounds)


def test_the_ledger_holds_the_whole_tree_for_a_viewer():
    target = engine()
    drafter = make("eagle3", eagle3_head(target, IDS), target, tree="dynamic")
    observed = []
    sampling = SamplingParams(temperature=1.0)
    session = target.new_session(100)
    drafter.start(PROMPT, sampling)
    session.prefill(PROMPT[:-1], None, drafter.prompt_layers, drafter.learn_prompt)
    from specview.decoding.loop import decode

    for round_ in decode(
        session, TokenSequence(list(PROMPT)), rule="rejection", sampling=sampling, max_tokens=12, drafter=drafter,
        policy=constant(3), observer=Observer("full", target.tokenizer),
    ):  # fmt: skip
        observed.append(round_)
        for token in round_.drafted:
            assert token.q == 1.0
            assert token.confidence == pytest.approx(
                {i: p for i, _, p in token.q_top}.get(token.id), rel=1e-5
            )
    assert any(round_.parents for round_ in observed)


# -- exact --------------------------------------------------------------------------------------------------------


def test_siblings_drawn_without_replacement_differ_and_have_the_whole_q():
    target = engine()
    head = eagle3_head(target, IDS)
    naive = NaiveHead(head, target)
    options = {"tree": "dynamic", "depth": 2, "top_k": 3, "total_tokens": 12, "siblings": "sampled"}
    lane = Watched(make("eagle3", head, target, **options))
    shapes = set()
    for seed in range(6):
        sampling = SamplingParams(temperature=1.0, seed=seed)
        run(target, PROMPT, lane, rule="rejection", sampling=sampling, max_tokens=12)
    for context, budget, draft in lane.drafts:
        paths = draft_paths(draft.tokens, draft.parents)
        assert len(set(paths)) == len(paths)
        assert draft.siblings == "without-replacement"
        if budget >= 3:
            shapes.add(draft.parents)
        for path, q in zip(paths, draft.q, strict=True):
            expected = np.zeros(WIDE)
            expected[list(IDS)] = np.exp(log_softmax(naive.after(context, path[:-1])))
            assert q.numpy() == pytest.approx(expected, abs=2e-6)
    assert len(shapes) == 1  # whatever was drawn: nothing is pruned by its value


# -- options ---------------------------------------------------------------------------------------------------


def test_what_the_registry_says_of_them():
    for name in ("eagle", "eagle2", "eagle3", "p-eagle"):
        info = METHODS[name]
        assert info.family == "trained head"
        assert info.head in ("eagle", "eagle3", "p-eagle")
        assert info.drafts
        for option in info.options:
            assert option.help
        target = engine()
        assert info.problem(target) is None
        target.features_problem = "it gives no features."
        assert info.problem(target) == "it gives no features."


def test_presets_and_default_lengths():
    eagle3, eagle2, eagle = METHODS["eagle3"], METHODS["eagle2"], METHODS["eagle"]
    chain = eagle3.resolve({})
    assert chain["tree"] == "chain"
    assert eagle3.drafted(chain).levels is None
    assert eagle3.drafted(chain).leaves == 1
    assert eagle3.drafted(chain).rows_at(5) == 5
    large = eagle3.resolve({"preset": "gpu"})
    assert (large["tree"], large["depth"], large["top_k"], large["total_tokens"]) == ("dynamic", 5, 10, 60)
    assert eagle3.drafted(large).levels == 6
    assert eagle3.drafted(large).rows_at(6) == 59
    assert eagle3.drafted(large).rows_at(1) == 10
    assert eagle2.drafted(eagle2.resolve({"depth": 3})).levels == 4
    fixed = eagle.resolve({"tree": "fixed", "paths": "[[0,0,0],[1]]"})
    assert eagle.drafted(fixed).levels == 3
    assert eagle.drafted(fixed).rows_at(3) == 4
    assert eagle.drafted(fixed).rows_at(1) == 2
    assert eagle.drafted(fixed).leaves == 2


def made_of(options, head, target):
    return METHODS["eagle3"].make(DrafterContext(options, 4096, WIDE, target=target, heads={"eagle3": head}))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 5), st.integers(1, 6), st.integers(2, 70), st.integers(1, 7), st.booleans())
def test_no_draft_has_more_rows_or_leaves_than_announced(depth, top_k, total, budget, sampled):
    target = FeatureEngine(TableModel(WIDE), WIDE, order=1, namespace="torch")
    rows = np.random.default_rng(depth).dirichlet(np.ones(WIDE), size=WIDE)
    options = METHODS["eagle3"].resolve(
        {"tree": "dynamic", "depth": depth, "top_k": top_k, "total_tokens": total,
         "siblings": "sampled" if sampled else "top"}
    )  # fmt: skip
    drafter = made_of(options, light_head(target, rows, range(WIDE)), target)
    sampling = SamplingParams(temperature=1.0)
    session = target.new_session(500)
    drafter.start(PROMPT, sampling)
    session.prefill(PROMPT[:-1], None, drafter.prompt_layers, drafter.learn_prompt)
    draft = drafter.propose(PROMPT, budget)
    parents = draft.parents if draft.parents is not None else range(-1, len(draft) - 1)
    leaves = len(set(range(len(draft))) - set(parents))
    info = METHODS["eagle3"]
    assert 1 <= len(draft) <= info.drafted(options).rows_at(budget)
    assert leaves <= info.drafted(options).leaves <= 256
    assert max(map(len, draft_paths(draft.tokens, draft.parents))) <= min(budget, depth + 1)


@pytest.mark.parametrize(
    ("method", "given", "words"),
    [
        ("eagle2", {"total_tokens": 300}, "from 2 to 256"),
        ("eagle3", {"top_k": 0}, "from 1 to 64"),
        ("eagle3", {"tree": "fixed"}, "chain, dynamic"),
        ("eagle", {"tree": "fixed", "paths": "[[0],[1"}, "list of lists of ranks"),
        ("eagle", {"tree": "fixed", "paths": "[]"}, "list of lists of ranks"),
        ("eagle", {"tree": "fixed", "paths": "[[-1]]"}, "list of lists of ranks"),
        ("eagle", {"tree": "fixed", "paths": str([[rank] for rank in range(256)])}, "too large"),
        ("eagle", {"tree": "fixed", "paths": str([[0] * 65])}, "too large"),
    ],
)
def test_options_that_cannot_be_are_one_line(method, given, words):
    with pytest.raises(UsageError, match=words) as caught:
        METHODS[method].resolve(given)
    assert "\n" not in str(caught.value)


def test_a_missing_or_misfitting_head_is_one_line():
    target = engine()
    context = DrafterContext(METHODS["eagle3"].resolve({}), 100, WIDE, target=target)
    with pytest.raises(SpecviewError, match="eagle3 needs a trained head"):
        METHODS["eagle3"].make(context)
    head = eagle3_head(target, IDS)
    target.layers = 4
    with pytest.raises(SpecviewError, match="after 5 layers; fake has 16, and 4 layers"):
        make("eagle3", head, target)
    target.layers, target.hidden_size = 6, 32
    with pytest.raises(SpecviewError, match="trained for this target"):
        make("eagle3", head, target)
    target.hidden_size, target.vocab_size = 16, 8
    with pytest.raises(SpecviewError, match="drafts token 8, and the target has 8"):
        make("eagle3", head, target)


def test_a_padded_vocabulary_drafts_no_token_that_the_target_has_not():
    """EAGLE-1 with an embedding and outputs padded beyond the target's logits."""
    target = engine()
    head = eagle3_head(target, None)
    head.vocab_size = target.vocab_size = WIDE - 3
    drafter = make("eagle3", head, target)
    drafter.start([1, 2, 3], SamplingParams(temperature=1.0))
    session = engine().new_session(50)
    session.prefill([1, 2], None, drafter.prompt_layers, drafter.learn_prompt)
    draft = drafter.propose([1, 2, 3], 8)
    assert max(draft.tokens) < WIDE - 3
    assert all(len(q) == WIDE - 3 for q in draft.q)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", ["eagle", "eagle3", "p-eagle"])
def test_a_heads_own_smaller_embedding_serves_a_target_with_more_tokens(method, temperature):
    """The target got two tokens more than the head's table has rows; the prompt has them, and they are written."""
    target, rows = engine(), WIDE - 2
    if method == "eagle":
        head = eagle_head(target, own_embedding=True)
    else:
        head = eagle3_head(target, IDS[:5], own_embedding=True, mask_token_id=1 if method == "p-eagle" else None)
    table = head.module.embed_tokens.weight.data[:rows]
    head.module.embed_tokens = torch.nn.Embedding(rows, table.shape[1], _weight=table)
    assert torch.equal(head.embed([8, 3]), table[[0, 3]])
    naive, lane = NaiveHead(head, target), Watched(make(method, head, target))
    naive.embed = lambda ids: table.numpy()[[token if token < rows else 0 for token in ids]]
    sampling = SamplingParams(temperature, seed=5)
    prompt = [*PROMPT, 8]
    output, *_ = run(target, prompt, lane, rule="match" if temperature else "greedy", sampling=sampling, max_tokens=40)
    assert output == plain_reference(target.model, prompt, sampling, 40)
    assert max(output) >= rows
    assert sum(len(draft) for *_, draft in lane.drafts) > 20
    if not temperature:
        for context, budget, draft in lane.drafts:
            drawn = naive.parallel(context, budget).argmax(-1) if method == "p-eagle" else ()
            expected = [naive.ids[int(one)] for one in drawn] or naive.chain(context, budget)
            assert list(draft.tokens) == expected


def test_the_heads_state_dicts_have_the_published_names():
    names = set(eagle_head(engine()).module.state_dict())
    layer = {
        f"layers.0.{name}.weight"
        for name in (
            "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
            "mlp.up_proj", "mlp.down_proj", "post_attention_layernorm",
        )
    }  # fmt: skip
    assert names == {"fc.weight", "fc.bias", *layer}
    two = set(eagle_head(engine(), layers=2, fc_bias=False, own_embedding=True, attention_bias=True).module.state_dict())
    assert "layers.1.input_layernorm.weight" in two
    assert "embed_tokens.weight" in two
    assert "layers.0.input_layernorm.weight" not in two
    assert "fc.bias" not in two
    assert "layers.0.self_attn.q_proj.bias" in two
    assert "layers.0.self_attn.o_proj.bias" not in two
    assert torch.is_tensor(eagle3_head(engine(), IDS).module.state_dict()["d2t"])


def test_eagles_paths_may_be_written_as_medusas_are():
    shapes = [
        shape_of(METHODS["eagle"].resolve({"tree": "fixed", "paths": paths})) for paths in ("0 1 0.0", "[[0],[1],[0,0]]")
    ]
    assert shapes[0] == shapes[1] == fixed_tree([[0], [1], [0, 0]])
