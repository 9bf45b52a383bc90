"""The oracle: the fastest schedule by brute force, members drafting anew, and its share in a race."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.decoding.costs import Costs
from specview.decoding.ledger import Draft
from specview.decoding.sampling import SamplingParams
from specview.drafting.method import DrafterContext
from specview.drafting.registry import METHODS
from specview.racing.oracle import accepts, fastest_schedule, member_accepts, oracle_of
from specview.settings.events import LaneEnded, Progress
from specview.settings.run import LaneSettings
from tests.decoding.toy import FakeEngine, ScriptDrafter, TableModel, draft_model
from tests.racing.world import SAMPLED, last_ends, of_kind, race_end

AUTO = LaneSettings("auto", options={"members": "prompt-lookup+draft-model"}, k=6)
CASCADE = LaneSettings("cascade", options={"members": "prompt-lookup+draft-model"}, k=4)


def brute_force(reaches, tokens, k, costs):
    """The least time over every sequence of choices."""
    times = {name: costs.rounds_s(name, k, copies=METHODS[name].family == "n-gram") for name in reaches}
    plain = costs.rounds_s("", 0)[0]

    def least(position):
        if position >= tokens:
            return 0.0
        options = [plain + least(position + 1)]
        for name, by_position in reaches.items():
            proposed, held = by_position[position]
            for length in range(1, proposed + 1):
                options.append(times[name][length] + least(position + min(length, held) + 1))
        return min(options)

    return least(0)


@given(st.data(), st.integers(1, 7))
@settings(deadline=None, derandomize=True, max_examples=120)
def test_the_schedule_is_the_fastest_of_all(data, tokens):
    reaches = {}
    for name in ("prompt-lookup", "draft-model"):
        reaches[name] = []
        for position in range(tokens):
            proposed = data.draw(st.integers(0, max(0, tokens - position - 1)))
            reaches[name].append((proposed, data.draw(st.integers(0, proposed))))
    seconds = data.draw(st.lists(st.floats(0.5, 3.0), min_size=8, max_size=8))
    costs = Costs(dict(enumerate(seconds, start=1)))
    schedule, found = fastest_schedule(reaches, tokens, 7, costs)
    assert found == pytest.approx(brute_force(reaches, tokens, 7, costs))
    position, total = 0, 0.0
    for choice in schedule:
        assert choice.position == position
        copies = choice.drafter == "prompt-lookup"
        total += costs.rounds_s(choice.drafter, choice.length, copies=copies)[choice.length]
        held = reaches[choice.drafter][position][1] if choice.length else 0
        position += 1 + min(choice.length, held)
    assert position == tokens
    assert total == pytest.approx(found)


def test_a_copying_member_drafts_anew_at_every_place():
    copy = ScriptDrafter(lambda context, budget: [context[-1] + 1, 9][:budget])
    assert accepts(copy, True, [0], [1, 2, 3, 9, 9], 2) == [(2, 1), (2, 1), (2, 2), (1, 0), (0, 0)]


def test_a_tree_counts_by_its_longest_right_path():
    class Tree(ScriptDrafter):
        def propose(self, context, budget, proceed=None):
            return Draft((7, 1, 2, 8), (-1, -1, 1, 1))

    assert accepts(Tree(None), True, [0], [1, 2, 3], 5)[0] == (4, 2)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_models_chain_of_single_steps_is_its_long_draft(noise):
    """One step a position tells what drafts of any length would have done."""
    model = TableModel(6, order=3)
    prompt, output = [1, 2, 3], []
    for _ in range(30):
        row = model([*prompt, *output])
        output.append(int(row.argmax()))

    def drafter():
        made = draft_model(FakeEngine(TableModel(6, order=3, noise=noise), 6), 6)
        made.start(prompt, SamplingParams())
        return made

    found = accepts(drafter(), False, prompt, output, 5)
    honest = drafter()
    for position in range(len(output)):
        most = min(5, len(output) - position - 1)
        if not most:
            assert found[position] == (0, 0)
            continue
        tokens = honest.propose([*prompt, *output[:position]], most).tokens
        held = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(tokens, output[position:], strict=False)))
        assert found[position] == (most, held)


@pytest.mark.parametrize("lane", [AUTO, CASCADE])
@pytest.mark.parametrize("rule", ["auto", "match"])
def test_a_race_tells_the_share_of_the_oracle(world, lane, rule):
    options = {"sampling": SAMPLED} if rule == "match" else {}
    race, events = world.run(replace(lane, rule=rule), LaneSettings("prompt-lookup", k=4), max_tokens=48, **options)
    ends = last_ends(events)
    share = ends[1].metrics.oracle_share
    assert ends[0].metrics.oracle_share is None
    assert ends[2].metrics.oracle_share is None
    assert 0.3 < share <= 1.0 + 1e-6, "nobody beats the oracle on a clock without noise"
    oracle = race.oracles[1]
    assert share == pytest.approx(ends[1].metrics.decode_tokens_per_s / oracle.tokens_per_s)
    assert oracle.seconds == pytest.approx(48 / oracle.tokens_per_s)
    early = [e for e in of_kind(events, LaneEnded) if e.lane == 1][0]
    assert early.metrics.oracle_share is None, "it is only known once the race is over"
    still_open = [session for session in world.engines["draft", "bundled"].sessions if not session.closed]
    assert len(still_open) == 1, "the lane's own, for a continuation"


@pytest.mark.parametrize("policy", ["heuristic", "adaptive", "off-below", "confidence"])
def test_a_policy_that_drafts_beyond_k_is_not_ahead_of_the_oracle(world, policy):
    lane = replace(CASCADE, k=1, policy=policy)
    race, events = world.run(lane)
    share = last_ends(events)[1].metrics.oracle_share
    assert share is not None and 0 < share <= 1 + 1e-9
    race.close()


def test_the_oracle_is_off_every_clock_and_changes_no_output(world):
    race, events = world.run(AUTO, max_tokens=40)
    lane = race.lanes[1]
    clock, rounds = lane.clock, len(lane.record.rounds)
    again = oracle_of(lane)
    assert again is not None
    assert again.tokens_per_s == pytest.approx(race.oracles[1].tokens_per_s)
    assert (lane.clock, len(lane.record.rounds)) == (clock, rounds)
    assert lane.clock == pytest.approx(sum(round_.seconds for round_ in lane.record.rounds))
    race.continue_(20, events.append)
    assert lane.record.token_ids[:60] == race.lanes[0].record.token_ids[:60]
    assert last_ends(events)[1].metrics.oracle_share is not None


def test_a_text_that_depends_on_its_drafts_has_no_oracle(world):
    race, events = world.run(AUTO, sampling=SAMPLED)
    assert race.lanes[1].rule == "rejection"
    assert last_ends(events)[1].metrics.oracle_share is None
    assert race.oracles == {}


def test_members_that_need_the_targets_own_passes_have_none(world):
    race, events = world.run(LaneSettings("cascade", options={"members": "prompt-lookup+lookahead"}, k=3))
    assert race.lanes[1].record.end == "limit", race.lanes[1].record.error
    assert last_ends(events)[1].metrics.oracle_share is None


def test_a_stop_ends_the_search_and_the_race_is_done(world):
    race = world.race(AUTO, max_tokens=40)
    events = []
    race.run(events.append, lambda: len(of_kind(events, LaneEnded)) >= 2)
    assert race_end(events).end == "done"
    assert last_ends(events)[1].metrics.oracle_share is None
    assert {record.end for record in race.records} == {"limit"}


def test_a_search_that_takes_long_says_so(world, monkeypatch):
    monkeypatch.setattr("specview.racing.race.ORACLE_QUIET_S", -1.0)
    _, events = world.run(AUTO, max_tokens=20)
    told = [e for e in of_kind(events, Progress) if "fastest choices" in e.text]
    assert told
    assert {e.lane for e in told} == {1}
    assert all(0 <= e.fraction <= 1 for e in told)
    assert [e.fraction for e in told] == sorted(e.fraction for e in told)


def test_a_search_that_fails_leaves_the_lanes_figures(world, monkeypatch):
    def broken(*args):
        raise RuntimeError("no")

    monkeypatch.setattr("specview.racing.race.oracle_of", broken)
    _, events = world.run(AUTO, max_tokens=20)
    assert race_end(events).end == "done"
    assert last_ends(events)[1].metrics.oracle_share is None
    assert last_ends(events)[1].metrics.decode_tokens_per_s


def test_tied_runs_are_not_told_twice():
    """A copying member is not closed: closing hands its text to the next run, as the lane itself will."""
    options = METHODS["cascade"].resolve({"members": "ngram-map-k", "ngram-map-k.tie": True})
    memory = {}
    context = DrafterContext(options, 200, 6, memory=memory)
    text = [1, 2, 3, 4, 5] * 6
    found = member_accepts(context, "ngram-map-k", text[:10], text[10:], 4, SamplingParams())
    assert len(found) == 20
    assert memory, "it looked where earlier runs leave theirs"
    assert all(not list(kept.runs.runs) for kept in memory.values())


def test_other_methods_and_unfinished_lanes_have_none(world):
    race, _ = world.run(LaneSettings("prompt-lookup"), AUTO)
    assert oracle_of(race.lanes[0]) is None
    assert oracle_of(race.lanes[1]) is None
    assert oracle_of(race.lanes[2]) is not None
    race.lanes[2].record.end = None
    assert oracle_of(race.lanes[2]) is None
