"""Agreement with other engines on the same text: transformers' own candidates, llama.cpp's recorded drafts.

data/llama_server_ngram_simple.json is what a llama-server told of its rounds, data/llama_cpp_ngram_drafts.json what
llama.cpp's own functions drafted; each file says where it is from. The texts of every workload and the
bundled target's greedy outputs are those of tests/racing/data/ledger.json.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from specview.drafting.ngram_map import NgramMapK, NgramMapK4V
from specview.drafting.ngram_mod import NgramMod
from specview.drafting.ngram_simple import NgramSimple
from specview.drafting.prompt_lookup import PromptLookup
from tests.drafting.ngram_helpers import replay

DATA = Path(__file__).parent / "data"
LEDGER = Path(__file__).parents[1] / "racing" / "data" / "ledger.json"
SERVER = json.loads((DATA / "llama_server_ngram_simple.json").read_text())
RECORD = json.loads((DATA / "llama_cpp_ngram_drafts.json").read_text())
KINDS = {kind.name: kind for kind in (NgramSimple, NgramMapK, NgramMapK4V, NgramMod)}


# -- llama-server's rounds ------------------------------------------------------------------------------


def server_rounds(part: dict, size_n: int, size_m: int) -> list[list[int]]:
    """[drafted, accepted] of our rounds over the recorded text.

    The server's first token is the prompt pass's own: rounds begin after it. Its draft is cut so that
    the token limit is never passed, as ours is.
    """
    text = part["prompt_ids"] + part["output_ids"]
    drafter = NgramSimple({"size_n": size_n, "size_m": size_m, "min_hits": 1})
    rounds = replay(drafter, text, len(part["prompt_ids"]), first=len(part["prompt_ids"]) + 1)
    return [[len(tokens), held] for _, tokens, held in rounds]


def test_ngram_simple_equals_llama_server_round_by_round():
    stream = SERVER["stream"]
    rounds = server_rounds(stream, SERVER["size_n"], SERVER["size_m"])
    assert rounds == stream["rounds"]
    assert [sum(column) for column in zip(*rounds, strict=True)] == [23, 6]


def test_the_recordings_totals_without_a_stream():
    whole = SERVER["whole"]
    rounds = server_rounds(whole, SERVER["size_n"], SERVER["size_m"])
    assert [sum(column) for column in zip(*rounds, strict=True)] == [whole["drafted"], whole["accepted"]]


def test_no_other_sizes_give_the_recorded_rounds():
    """The server does not say its sizes: these alone fit, so the agreement is no accident of choice."""
    fits = [
        (n, m)
        for n, m in product(range(1, 13), range(1, 17))
        if m >= n and server_rounds(SERVER["stream"], n, m) == SERVER["stream"]["rounds"]
    ]
    assert fits == [(SERVER["size_n"], SERVER["size_m"])]


# -- llama.cpp's own functions --------------------------------------------------------------------------


def our_drafts(case: dict) -> list[tuple[int, list[int]]]:
    text = RECORD["texts"][case["text"]]
    drafter = KINDS[case["method"]](case["options"])
    found = []
    # There the whole draft is compared with the text; the budget of a real run would cut it at the end.
    padded = text + [-2] * 80
    for place, tokens, _ in replay(drafter, padded, case["prompt"], first=case["prompt"] + 1):
        if tokens and place < len(text):
            found.append((place, list(tokens)))
    return found


def accepted(text: list[int], place: int, draft: list[int]) -> int:
    held = 0
    while held < len(draft) and place + held < len(text) - 1 and draft[held] == text[place + held]:
        held += 1
    return held


@pytest.mark.parametrize("method", ["ngram-simple", "ngram-map-k", "ngram-mod"])
def test_drafts_equal_llama_cpps_token_for_token(method):
    drafted = 0
    for case in RECORD["cases"]:
        if case["method"] == method:
            assert our_drafts(case) == [tuple(one) for one in case["drafts"]], (case["text"], case["options"])
            drafted += len(case["drafts"])
    assert drafted > 150


def test_k4v_drafts_equal_llama_cpps_but_for_which_continuation_is_copied():
    """Where one continuation dominates and another stands at the key's place, llama.cpp copies the latter.

    Up to a run's first such round ours drafts the same; there it drafts as many tokens, those seen most.
    """
    same = others = 0
    for case in RECORD["cases"]:
        if case["method"] != "ngram-map-k4v":
            continue
        text, n, m = RECORD["texts"][case["text"]], case["options"]["size_n"], case["options"]["size_m"]
        for (place, ours), (their_place, theirs) in zip(our_drafts(case), case["drafts"], strict=False):
            assert place == their_place
            if ours == theirs:
                same += 1
                continue
            others += 1
            assert len(ours) == len(theirs)
            key = text[place - n : place]
            followed = [
                text[at + n : at + n + m] for at in range(place - n - m) if text[at : at + n] == key
            ]
            times = {tuple(run[: len(ours)]): followed.count(run) for run in followed}
            assert times[tuple(ours)] > times[tuple(theirs)]
            break  # from here on the two have accepted different lengths
    assert same > 100
    assert others <= 3


# -- transformers' candidates ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def texts() -> dict[str, dict[str, list[int]]]:
    return json.loads(LEDGER.read_text())["texts"]


def test_prompt_lookup_equals_transformers_on_every_workload(texts):
    """At every token of the twelve prompts and greedy outputs, for its sizes 2 (its default) and 3 (ours)."""
    torch = pytest.importorskip("torch")
    from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

    assert len(texts) == 12
    compared = drafted = 0
    for text in texts.values():
        prompt, ids = text["prompt"], text["prompt"] + text["output"]
        for longest in (2, 3):
            theirs = PromptLookupCandidateGenerator(
                num_output_tokens=10, max_matching_ngram_size=longest, max_length=100_000
            )
            tensor = torch.tensor([ids])
            drafter = PromptLookup({"ngram_max": longest, "ngram_min": 1, "match": "first"})
            for place, tokens, _ in replay(drafter, ids, 20, budget=10):
                if place + 10 >= len(ids):
                    break  # at the end of the text the budget is what is left
                candidates, _ = theirs.get_candidates(tensor[:, :place])
                assert list(tokens) == candidates[0, place:].tolist(), (place, longest)
                compared += 1
                drafted += len(tokens)
        assert len(prompt) > 50
    assert compared > 3000
    assert drafted > 10_000
