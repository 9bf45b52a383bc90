import pytest
import torch

from specview.training.evaluate import acceptance, table, walk
from specview.training.prompts import SETS, held_out
from specview.training.shards import Labelled


def test_a_draft_that_is_the_target_is_always_accepted(make_draft):
    draft = make_draft()
    tokens = [1, 4, 9]
    with torch.inference_mode():
        while len(tokens) < 23:
            tokens.append(int(draft.logits(draft(torch.tensor([tokens]))[0, -1]).argmax()))
    result = acceptance(draft, [Labelled(torch.tensor(tokens), None, None, "chat", 20)])
    for k, kinds in result.items():
        assert kinds["all"].alpha == 1.0
        assert kinds["all"].emitted == 19
        assert kinds["all"].passes == -(-19 // (k + 1))
    assert "| chat | 1.000" in table(result)


@pytest.mark.parametrize(
    ("agrees", "k", "judged", "accepted", "passes"),
    [
        ([True] * 4, 1, 2, 2, 2),
        ([False] * 4, 2, 4, 0, 4),
        ([True, False, True, True, True, False], 2, 5, 3, 3),  # TF, TT and one unjudged, F
        ([True, True, True], 4, 3, 3, 1),  # the end of the answer cuts the draft
    ],
)
def test_rounds_are_walked_as_decoding_would(agrees, k, judged, accepted, passes):
    counts = walk(agrees, k)
    assert (counts.judged, counts.accepted, counts.passes) == (judged, accepted, passes)
    assert counts.emitted == len(agrees)


def test_nothing_judged_has_no_figure():
    assert walk([], 2).alpha is None
    assert walk([], 2).tokens_per_target_pass is None


def test_held_out_sets():
    sets = {name: held_out(name) for name in SETS}
    assert all(len(prompts) >= 30 for prompts in sets.values())
    assert not {p.text for p in sets["fresh"]} & {p.text for p in sets["first-table"]}
    assert {"code", "story", "explain", "extract", "chat", "portuguese"} == {p.kind for p in sets["fresh"]}
    with pytest.raises(ValueError):
        held_out("other")
