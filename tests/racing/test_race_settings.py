"""The race over fake engines: equality with plain, settings and odd prompts, models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from specview.decoding.sampling import SamplingParams
from specview.errors import UsageError
from specview.racing.pool import ModelPool
from specview.racing.race import unique
from specview.racing.resolve import checked_run
from specview.settings.events import (
    Failed,
    LanePrefilled,
    LaneRound,
    Progress,
    RaceStarted,
)
from specview.settings.run import BUNDLED, MAX_K, MAX_LANES, LaneSettings, RunSettings
from tests.decoding.toy import TableModel, plain_reference
from tests.racing.world import (
    DRAFTED,
    LOOKUP,
    PROMPT,
    SAMPLED,
    VOCAB,
    World,
    last_ends,
    of_kind,
    race_end,
    rounds_of,
)

IDS = [ord(letter) - 97 for letter in PROMPT]


# -- equality ---------------------------------------------------------------------------------------------------------


class KernelEngineWorld(World):
    """A target whose many-row passes drift: at one place the argmax flips."""

    def make_target(self, **options):
        engine = super().make_target(**options)
        make_session = engine.new_session
        flip_at = self.flip_at

        def new_session(max_length, branches=1):
            session = make_session(max_length)
            plain_forward = session.forward

            def forward(tokens, parents=None, features=()):
                start = session.length
                result = plain_forward(tokens, parents, features)
                logits = result.logits.copy()
                if len(tokens) > 1:
                    logits[:, 0] += self.drift
                    for row in range(len(tokens)):
                        if start + row + 1 == flip_at:
                            first, second = np.argsort(-logits[row])[:2]
                            logits[row, [first, second]] = logits[row, [second, first]]
                return type(result)(logits)

            session.forward = forward
            return session

        engine.new_session = new_session
        return engine


def test_a_first_difference_is_told_with_both_margins(monkeypatch):
    world = KernelEngineWorld(monkeypatch)
    world.flip_at, world.drift = len(IDS) + 12, 0.0  # the row that decides output token 12
    certain = LaneSettings("draft-model", draft="self", k=2, name="own")
    race, events = world.run(certain, observe="light", max_tokens=30)
    equality = last_ends(events)[1].equality
    plain = race.records[0]
    ours, theirs = race.records[1].token_ids, plain.token_ids
    differs = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
    assert differs[0] == 12
    assert not equality.equal
    assert equality.first_difference == 12
    row = TableModel(VOCAB, order=3)([*IDS, *theirs[:12]])
    assert equality.logit_margin == pytest.approx(float(np.sort(row)[-1] - np.sort(row)[-2]), abs=1e-5)
    # Swapping the two at this place is a drift of twice their distance there.
    assert equality.kernel_margin == pytest.approx(2 * equality.logit_margin, abs=1e-5)


def test_the_kernel_margin_is_measured_once_per_model(monkeypatch):
    world = KernelEngineWorld(monkeypatch)
    world.flip_at, world.drift = len(IDS) + 3, 0.25
    pool = ModelPool()
    lanes = [LaneSettings("draft-model", draft="self", k=2, name=name) for name in "ab"]
    race, events = world.run(*lanes, models=pool)
    sessions = len(world.engines["target", BUNDLED].sessions)
    assert sessions == 1 + 3 + 2  # warm-up, lanes, and one measurement
    margins = {end.equality.kernel_margin for lane, end in last_ends(events).items() if lane}
    assert len(margins) == 1
    assert margins.pop() >= 0.25
    world.run(*lanes, models=pool)
    assert len(world.engines["target", BUNDLED].sessions) == sessions + 3
    race.close()
    pool.close()


def test_a_difference_at_the_end_of_the_context_can_still_be_measured(monkeypatch):
    world = KernelEngineWorld(monkeypatch, context_length=20)
    world.flip_at, world.drift = len(IDS) + 9, 0.0
    race, events = world.run(LaneSettings("draft-model", draft="self", k=2), max_tokens=100)
    assert of_kind(events, Failed) == []
    assert race_end(events).end == "done"
    assert not last_ends(events)[1].equality.equal


def test_sampled_lanes_are_not_expected_to_equal_plain(world):
    _, events = world.run(
        DRAFTED, LOOKUP, replace(DRAFTED, rule="match", name="m"), sampling=SAMPLED, max_tokens=30
    )
    ends = last_ends(events)
    assert ends[1].equality is None
    assert ends[2].equality is None
    assert ends[3].equality.equal


# -- settings and odd prompts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "lane", "words"),
    [
        ({}, LaneSettings("guess"), "there is no method 'guess'"),
        ({}, LaneSettings("prompt-lookup", k=0), "k is 0"),
        ({}, LaneSettings("prompt-lookup", k=500), "k is 500"),
        ({}, LaneSettings("prompt-lookup", rule="best"), "there is no rule 'best'"),
        ({}, LaneSettings("prompt-lookup", policy="wild"), "there is no length policy 'wild'"),
        ({}, LaneSettings("prompt-lookup", options={"n": 1}), "prompt-lookup has no option 'n'"),
        ({}, LaneSettings("prompt-lookup", options={"ngram_max": 0}), "ngram_max is 0"),
        ({}, LaneSettings("prompt-lookup", policy_options={"x": 1}), "constant has no option 'x'"),
        (
            {"sampling": SAMPLED},
            LaneSettings("prompt-lookup", rule="greedy"),
            "greedy rule needs temperature 0",
        ),
        ({"max_tokens": 0}, LOOKUP, "max tokens is 0"),
        ({"threads": 0}, LOOKUP, "threads is 0"),
        ({"engine": "abacus"}, LOOKUP, "there is no engine 'abacus'"),
    ],
)
def test_settings_that_cannot_work_are_one_line(world, options, lane, words):
    race = world.race(lane, **options)
    events = []
    race.run(events.append)
    (failed,) = of_kind(events, Failed)
    assert words in failed.message
    assert "\n" not in failed.message
    assert race_end(events).end == "error"
    assert world.loads == [], "nothing was loaded for it"
    with pytest.raises(UsageError) as caught:
        checked_run(race.settings)
    assert caught.value.usage


def test_an_n_gram_range_turned_round_is_told_before_anything_loads(world):
    race, events = world.run(replace(LOOKUP, options={"ngram_max": 1, "ngram_min": 2}), DRAFTED)
    assert race.records == []
    (failed,) = of_kind(events, Failed)
    assert failed.usage and "longer than its longest" in failed.message


def test_plain_comes_first_whatever_was_asked():
    settings = checked_run(RunSettings(prompt="a", lanes=(LOOKUP, LaneSettings(), DRAFTED)))
    assert [lane.method for lane in settings.lanes] == ["plain", "prompt-lookup", "draft-model"]
    assert [lane.method for lane in checked_run(RunSettings(prompt="a", lanes=())).lanes] == ["plain"]
    named = checked_run(RunSettings(prompt="a", lanes=(LOOKUP, LaneSettings(name="base"), LaneSettings(name="b"))))
    assert [lane.label for lane in named.lanes] == ["base", "prompt-lookup", "b"]


def test_up_to_four_lanes_beside_plain(world):
    lanes = [replace(LOOKUP, k=k, name=f"k{k}") for k in range(1, MAX_LANES)]
    race, events = world.run(*lanes)
    assert race_end(events).end == "done"
    assert len(race.records) == MAX_LANES == 5
    _, events = world.run(*lanes, LOOKUP)
    assert "A race takes plain and up to 4 others" in of_kind(events, Failed)[0].message


def test_k_at_its_bounds(world):
    race, _ = world.run(replace(LOOKUP, k=1), replace(DRAFTED, k=MAX_K), max_tokens=100)
    assert [record.token_ids for record in race.records[1:]] == [race.records[0].token_ids] * 2
    assert max(round_.k for round_ in race.records[2].rounds) == MAX_K


def test_lanes_of_one_name_are_numbered(world):
    race, events = world.run(LOOKUP, replace(LOOKUP, k=2), replace(LOOKUP, name="mine"))
    names = ("plain", "prompt-lookup", "prompt-lookup 2", "mine")
    assert of_kind(events, RaceStarted)[0].lane_names == names
    assert tuple(record.name for record in race.records) == names


@pytest.mark.parametrize(
    "names",
    [["a", "a", "a"], ["a", "a 2", "a"], ["a", "a", "a 2"], ["a 2", "a", "a", "a 2"], ["a 2", "a 2", "a"]],
)
def test_unique_names_are_unique_and_the_first_keeps_its_own(names):
    found = unique(names)
    assert len(set(found)) == len(names)
    assert found[0] == names[0]
    assert all(new.startswith(old) for new, old in zip(found, names, strict=True))


@pytest.mark.parametrize("size", [20, 21, 300])
def test_a_prompt_longer_than_the_context_is_refused(monkeypatch, size):
    world = World(monkeypatch, context_length=20)
    _, events = world.run(LOOKUP, prompt="b" * size)
    message = of_kind(events, Failed)[0].message
    assert f"the prompt has {size} tokens and fake-target takes 20" in message
    assert race_end(events).end == "error"


@pytest.mark.parametrize(("size", "room"), [(19, 1), (12, 8)])
def test_max_tokens_beyond_the_context_end_at_the_context(monkeypatch, size, room):
    world = World(monkeypatch, context_length=20)
    race, events = world.run(
        replace(DRAFTED, draft="self"), LOOKUP, prompt="bc" * (size // 2) + "b" * (size % 2)
    )
    assert race_end(events).end == "done"
    for record in race.records:
        assert len(record.token_ids) == room
        assert record.end == "context"
    assert not race.can_continue
    events = []
    race.continue_(10, events.append)  # there is no room to go on: it ends again, with no error
    assert race_end(events).end == "done"
    assert of_kind(events, (LaneRound, Failed)) == []


def test_an_empty_chat_prompt_is_refused_and_an_empty_raw_one_is_bos(world):
    for prompt in ("", "  \n"):
        _, events = world.run(prompt=prompt, chat=True)
        assert "the prompt is empty" in of_kind(events, Failed)[0].message
    race, events = world.run(DRAFTED, LOOKUP, prompt="", chat=False)
    assert race.prompt_ids == [0]
    assert {record.end for record in race.records} == {"limit"}
    world.tokenizer.bos_id = None
    _, events = world.run(prompt="", chat=False)
    assert "the prompt is empty" in of_kind(events, Failed)[0].message


def test_a_one_token_prompt_has_no_prefill(world):
    race, events = world.run(DRAFTED, LOOKUP, prompt="c")
    expected = plain_reference(TableModel(VOCAB, order=3), [2], SamplingParams(), 24)
    assert [record.token_ids for record in race.records] == [expected] * 3
    assert all(event.prefill_s == 0 for event in of_kind(events, LanePrefilled))


def test_one_token_of_output(world):
    race, events = world.run(DRAFTED, LOOKUP, max_tokens=1)
    assert [len(record.token_ids) for record in race.records] == [1, 1, 1]
    assert last_ends(events)[1].metrics.acceptance_rate is None
    assert last_ends(events)[1].metrics.tpot_s is None


# -- models -------------------------------------------------------------------------------------------------------------


def test_models_are_loaded_once_warmed_once_and_freed_when_no_longer_asked_for(world):
    pool = ModelPool()
    first, events = world.run(DRAFTED, LOOKUP, models=pool)
    assert [event.phase for event in of_kind(events, Progress)].count("warm-up") == 2
    first.close()
    second, events = world.run(DRAFTED, models=pool)
    assert world.loads == [("target", BUNDLED), ("draft", BUNDLED)]
    assert "warm-up" not in [event.phase for event in of_kind(events, Progress)]
    draft = world.engines["draft", BUNDLED]
    second.close()
    third, _ = world.run(LOOKUP, models=pool)
    assert draft.closed
    assert not world.engines["target", BUNDLED].closed
    third.close()
    assert all(session.closed for session in world.engines["target", BUNDLED].sessions)
    pool.close()
    assert world.engines["target", BUNDLED].closed


def test_two_lanes_share_a_draft_and_lanes_share_the_target(world):
    world.run(DRAFTED, replace(DRAFTED, k=2), LOOKUP)
    assert world.loads == [("target", BUNDLED), ("draft", BUNDLED)]


def test_a_race_with_its_own_models_frees_them(world):
    race, _ = world.run(DRAFTED)
    race.close()
    assert all(engine.closed for engine in world.engines.values())


def test_warm_up_makes_no_rounds_and_leaves_no_session(world):
    race, events = world.run(LOOKUP, max_tokens=5)
    warm = world.engines["target", BUNDLED].sessions[0]
    assert warm.closed
    assert warm.passes == [1, 2, 5]  # every row count in use, here k + 1
    assert sum(record.rounds[0].index for record in race.records) == 0
    assert len(rounds_of(events, 0)) == 5
