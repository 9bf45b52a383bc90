"""A branch goes on from another run's output: what it decodes is what that run would have, where the same token stands."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from specview.decoding.ledger import DraftedToken, FinalToken, Round
from specview.decoding.sampling import SamplingParams
from specview.drafting.registry import METHODS
from specview.errors import UsageError
from specview.racing.branching import Alternative, alternatives, branch_at, spelled
from specview.racing.race import Race
from specview.settings.branch import Branch, branch_of
from specview.settings.events import Failed, RaceStarted
from specview.settings.run import LaneSettings, RunSettings, run_to_json
from tests.decoding.test_stopping import Pieces
from tests.racing.test_continue import HEADS, lane_of
from tests.racing.world import DRAFTED, LOOKUP, SAMPLED, World, of_kind

LANES = (
    DRAFTED, LOOKUP, LaneSettings("suffix", k=4), LaneSettings("ngram-simple", k=4, options={"size_n": 2, "size_m": 4}),
    LaneSettings("cascade", k=5, options={"members": "suffix+draft-model"}),
)  # fmt: skip


def branched(race: Race, lane: int, position: int, choice: Alternative | int | None = None) -> Branch:
    """The branch from a place of a lane that has run, with the token that stands there unless another is chosen."""
    record = race.records[lane]
    if choice is None:
        choice = record.token_ids[position]
    return branch_at(record.rounds, position, choice, before=race.settings.branch, run="parent", lane=record.name)


# -- the same token: the same continuation --------------------------------------------------------------


@pytest.mark.parametrize("observe", ["off", "light", "full"])
def test_with_its_own_token_a_greedy_run_goes_on_as_it_did(world: World, observe: str) -> None:
    whole, _ = world.run(*LANES[:4], observe=observe, max_tokens=32)
    for position in (0, 1, 7, 30):
        branch = branched(whole, 0, position)
        race, events = world.run(*LANES[:4], observe=observe, max_tokens=32 - position - 1, branch=branch)
        assert not of_kind(events, Failed)
        for record, before in zip(race.records, whole.records, strict=True):
            assert record.token_ids == before.token_ids[position + 1 :]
            assert race.settings.branch.given + record.text == before.text
            assert record.prompt_ids == (*whole.prompt_ids, *before.token_ids[: position + 1])
        assert all(record.end == "limit" for record in race.records)


@pytest.mark.parametrize("rule", ["match", "auto"])
@pytest.mark.parametrize("penalties", [{}, {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3}])
def test_with_its_own_token_a_sampled_run_goes_on_as_it_did(world: World, rule: str, penalties: dict[str, float]) -> None:
    """Plain decoding and `match` draw by seed and place in the output: penalties count what was given as output."""
    sampling = replace(SAMPLED, **penalties)
    lanes = tuple(replace(lane, rule=rule) for lane in LANES[:4]) if rule == "match" else ()
    whole, _ = world.run(*lanes, sampling=sampling, max_tokens=32)
    race, _ = world.run(*lanes, sampling=sampling, max_tokens=20, branch=branched(whole, 0, 11))
    for record, before in zip(race.records, whole.records, strict=True):
        assert record.token_ids == before.token_ids[12:]
    other, _ = world.run(*lanes, sampling=replace(sampling, seed=12), max_tokens=20, branch=branched(whole, 0, 11))
    assert other.records[0].token_ids != whole.records[0].token_ids[12:]


def test_under_rejection_it_does_from_where_a_round_ended(world: World) -> None:
    """Drafts are drawn by the place where their round begins: a branch that begins inside a round of its parent drafts others."""
    whole, _ = world.run(DRAFTED, sampling=SAMPLED, max_tokens=48)
    record, ends, same = whole.records[1], [], []
    for round_ in record.rounds:
        ends.append((ends[-1] if ends else 0) + len(round_.emitted))
    for position in range(40):
        branch = branched(whole, 1, position)
        race, _ = world.run(DRAFTED, sampling=SAMPLED, max_tokens=48 - position - 1, branch=branch)
        same.append(race.records[1].token_ids == record.token_ids[position + 1 :])
    at_ends = [same[end - 1] for end in ends if end <= 40]
    assert len(at_ends) > 5 and all(at_ends)
    assert not all(same), "elsewhere other numbers are drawn"


@pytest.mark.parametrize("method", [name for name in METHODS if name in {*HEADS, "draft-model", "pard", "early-exit"}])
@pytest.mark.parametrize("rule", ["match", "greedy"])
def test_every_model_and_head_goes_on_alike(method: str, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if rule == "greedy":
        monkeypatch.setattr("tests.racing.test_continue.SAMPLED", SamplingParams())
    whole = lane_of(method, rule=rule)
    _to_end(whole, 30)
    for given in (1, 6, 17):
        lane = lane_of(method, rule=rule)
        ids = whole.record.token_ids
        run = replace(lane.run, branch=Branch(tuple(ids[:given])))
        lane = type(lane)(lane.settings, run, [*whole.record.prompt_ids, *ids[:given]], lane.target, lane.draft, heads=lane.heads)
        _to_end(lane, 30 - given)
        assert lane.record.token_ids == ids[given:]
        place = 0
        for round_ in lane.record.rounds:
            assert len(round_.guesses) <= place, "none of a token that was given"
            place += len(round_.emitted)


def _to_end(lane: Any, limit: int) -> None:
    lane.prefill(limit)
    while lane.step() is not None:
        pass


# -- another token ---------------------------------------------------------------------------------------


def test_another_token_leads_elsewhere_and_a_branch_of_a_branch_has_both(world: World) -> None:
    whole, _ = world.run(DRAFTED, observe="full")
    chosen = next(one for one in alternatives(whole.records[1].rounds, 5) if not one.what)
    branch = branched(whole, 1, 5, chosen)
    race, events = world.run(DRAFTED, observe="full", branch=branch)
    before = tuple(whole.records[1].token_ids[:5])
    assert branch.token_ids == (*before, chosen.id) and chosen.id != whole.records[1].token_ids[5]
    assert race.records[0].token_ids == race.records[1].token_ids and len(race.records[0].token_ids) == 24
    plain, _ = world.run(prompt=whole.settings.prompt + race.settings.branch.given)
    assert race.records[0].token_ids == plain.records[0].token_ids, "as if the text had been in the prompt"
    (started,) = of_kind(events, RaceStarted)
    told = branch_of(started.facts)
    assert told == race.settings.branch and (told.run, told.lane, told.position) == ("parent", "draft-model", 5)
    second = branched(race, 0, 3)
    assert second.token_ids == (*branch.token_ids, *race.records[0].token_ids[:4]) and second.position == 3
    again, _ = world.run(DRAFTED, branch=second, max_tokens=20)
    assert again.records[1].token_ids == race.records[1].token_ids[4:]
    assert again.settings.branch.given == race.settings.branch.given + race.records[0].text[:4]


def test_alternatives_are_what_stands_there_the_rejected_and_the_likeliest(world: World) -> None:
    whole, _ = world.run(replace(DRAFTED, draft="other"), LaneSettings("draft-model", k=3, draft="other", rule="match"), observe="full",
                         sampling=SAMPLED)  # fmt: skip
    rejected = 0
    for record in whole.records:
        place = 0
        for round_ in record.rounds:
            for token in round_.output:
                found = alternatives(record.rounds, place)
                assert (found[0].id, found[0].text) == (token.id, token.text) and found[0].what
                assert {one.id for one in found} >= {id_ for id_, _, _ in token.p_top}
                assert len({one.id for one in found}) == len(found)
                wrong = [one.id for one in found if one.what == "rejected"]
                tried = [one.id for one in round_.drafted if one.verdict == "rejected"] if token is round_.final else []
                assert wrong == [one for one in tried if one != token.id]
                rejected += len(wrong)
                place += 1
        assert alternatives(record.rounds, place) == []
    assert rejected > 3


def test_the_rejected_of_a_tree_stand_at_their_own_depth() -> None:
    def draft(token: int, verdict: str) -> DraftedToken:
        return DraftedToken(token, verdict, text=str(token), p_top=((token, str(token), 0.5),))  # type: ignore[arg-type]

    drafted = (draft(1, "rejected"), draft(2, "accepted"), draft(3, "rejected"), draft(4, "rejected"), draft(5, "ignored"))
    round_ = Round(0, 1.0, 0.1, 0.1, 0.1, parents=(-1, -1, 1, 1, 0), drafted=drafted, final=FinalToken(6, "corrected", "6"))
    assert [(one.id, one.what) for one in alternatives([round_], 0)] == [(2, "accepted"), (1, "rejected")]
    assert [(one.id, one.what) for one in alternatives([round_], 1)] == [(6, "corrected"), (3, "rejected"), (4, "rejected")]


# -- stop strings, turns, limits -------------------------------------------------------------------------


@pytest.mark.parametrize("observe", ["off", "light"])
def test_a_stop_string_that_begins_in_what_was_given_ends_the_output(world: World, observe: str) -> None:
    whole, _ = world.run(DRAFTED, observe=observe, max_tokens=30)
    text = whole.records[0].text
    stop = next(text[at : at + 3] for at in range(8, 20) if text.index(text[at : at + 3]) == at)
    at = text.index(stop)
    for given in range(at + 3):
        race, _ = world.run(DRAFTED, observe=observe, max_tokens=30, stop=(stop,), branch=branched(whole, 0, given))
        for record in race.records:
            if given < at + 2:
                assert record.end == f"stop: {stop!r}" and record.text == text[given + 1 : at]
                assert record.token_ids == whole.records[0].token_ids[given + 1 : at + 3]
            else:  # the stop string itself was given: the run was asked to go on behind it
                assert record.end != f"stop: {stop!r}" or stop in text[given + 1 :]


def test_the_next_turn_answers_to_the_whole_reply(world: World) -> None:
    whole, _ = world.run(DRAFTED, observe="light", chat=True)
    race, events = world.run(DRAFTED, observe="light", chat=True, branch=branched(whole, 0, 5))
    later = race.follow_up("b")
    assert later.branch is None and later.history[-1]["content"] == whole.records[0].text[:6] + race.records[0].text
    race.continue_(8, events.append)
    assert len(race.records[0].token_ids) == len(race.records[1].token_ids) == 32
    assert race.follow_up("b").history[-1]["content"].endswith(race.records[0].text)


def test_what_cannot_be_gone_on_from_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, eos_ids=(0,), context_length=40)
    whole, _ = world.run(DRAFTED, observe="light", max_tokens=8)

    def failure(branch: Branch, **options: Any) -> str:
        _, events = world.run(DRAFTED, branch=branch, **options)
        return of_kind(events, Failed)[0].message

    ids = tuple(whole.records[0].token_ids[:3])
    assert "has not" in failure(Branch((*ids, 99)))
    assert "ends the text" in failure(Branch((*ids, 0)))
    assert "another target's" in failure(Branch(ids, text="quite other text"))
    assert "another target's" in failure(Branch(ids[:1], token="x"))
    assert "the prompt and the 40 tokens that the branch gives have 45 tokens" in failure(Branch((1,) * 40))
    with pytest.raises(UsageError, match="no position 8 in the output of plain.*positions 0 to 7"):
        branched(whole, 0, 8, 1)
    with pytest.raises(UsageError, match="no tokens"):
        branch_at([], 0, 1)


def test_a_character_that_is_given_in_part_is_whole_in_the_output() -> None:
    pieces: Any = Pieces([bytes([value]) for value in range(256)])
    pieces.vocab_size = 256
    target: Any = SimpleNamespace(tokenizer=pieces, vocab_size=256, eos_ids=(), model_name="bytes")
    data = "né€".encode()
    found = spelled(Branch(tuple(data[:2])), target)
    assert (found.text, found.token, found.given) == ("n", "", "n")
    assert "with token 195" in found.words
    assert spelled(Branch(tuple(data[:3]), text="n"), target).given == "né"


def test_a_branch_is_never_remembered_and_files_of_others_are_read_with_care() -> None:
    branch = Branch((1, 2), "a run", "eagle3", 1, "b", " cat")
    assert branch.words == "continues a run from position 1 of lane eagle3 with ' cat'"
    run = RunSettings(prompt="x", branch=branch)
    assert "branch" not in run_to_json(run) and run.given_ids == (1, 2) and run.next_turn((), "y").branch is None
    assert branch_of({}) is None and branch_of({"branch": {"token_ids": [3], "more": 1}}) == Branch((3,))
    for bad in ({"token_ids": []}, {"token_ids": [-1]}, {"token_ids": ["1"]}, {"text": "x"}, 7):
        with pytest.raises(TypeError):
            branch_of({"branch": bad})


@pytest.mark.real_model
def test_the_bundled_model_goes_on_from_every_lane_alike(model_pool: Any) -> None:
    """Greedy and `match`, in check mode: with the same token each lane's continuation is its own, through the chat template."""
    drafts = LaneSettings("draft-model", k=4), LaneSettings("eagle3", k=3, options={"tree": "dynamic"})
    others = LaneSettings("medusa", k=2, rule="match"), LaneSettings("lookahead", rule="match")
    for sampling, lanes in ((SamplingParams(), drafts), (SamplingParams(0.7, seed=4, repetition_penalty=1.2), others)):
        run = RunSettings(prompt="Say é and 😀 thrice.", max_tokens=18, threads=1, check_mode=True, lanes=(LaneSettings(), *lanes),
                          observe="light", sampling=sampling)  # fmt: skip
        whole = Race(run, 1, model_pool)
        whole.run(lambda event: None)
        ids = whole.records[0].token_ids
        assert all(record.token_ids == ids for record in whole.records)
        race = Race(replace(run, branch=branched(whole, 2, 9), max_tokens=len(ids) - 10), 2, model_pool)
        race.run(lambda event: None)
        assert race.trouble == "" and race.settings.branch is not None
        for record in race.records:
            assert record.token_ids == ids[10:] and race.settings.branch.given + record.text == whole.records[0].text
