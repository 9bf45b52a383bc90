"""Stop strings in races: every lane is cut where plain decoding is, inside an accepted block too; text, ids, ledger and end say so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specview.decoding.sampling import SamplingParams
from specview.files.reader import read_trace
from specview.files.writer import TraceRecorder, TraceWriter
from specview.library.repeat import command_line
from specview.racing.race import Race
from specview.settings.run import LaneSettings, RunSettings
from tests.decoding.test_stopping import cut
from tests.racing.world import DRAFTED, LOOKUP, SAMPLED, World, last_ends

LANES = (DRAFTED, LOOKUP, LaneSettings("cascade", k=5, options={"members": "suffix+draft-model"}), LaneSettings("draft-model", draft="self", k=7))


@pytest.mark.parametrize("observe", ["off", "light", "full"])
@pytest.mark.parametrize(("rule", "sampling"), [("auto", {}), ("match", {"sampling": SAMPLED}), ("rejection", {"sampling": SAMPLED}), ("typical", {"sampling": SAMPLED})])
def test_every_lane_is_the_beginning_of_what_it_was(world: World, rule: str, sampling: dict[str, Any], observe: str) -> None:
    lanes = tuple(LaneSettings(one.method, draft=one.draft, k=one.k, rule=rule, options=one.options) for one in LANES)
    whole, _ = world.run(*lanes, observe=observe, max_tokens=40, **sampling)
    texts = [record.text for record in whole.records]
    for stops in ((texts[0][5:7],), (texts[0][11:14], "zz"), (texts[1][17:19], texts[0][20:23]), ("zz",)):
        race, events = world.run(*lanes, observe=observe, max_tokens=40, stop=stops, **sampling)
        for record, text, before in zip(race.records, texts, whole.records, strict=True):
            wanted, found = cut(text, stops)
            ids = before.token_ids[: len(wanted) + len(found)]  # a token is a letter
            assert (record.text, record.token_ids) == (wanted, ids)
            assert record.end == (f"stop: {found!r}" if found else "limit")
            last = record.rounds[-1]
            tried = [token.verdict for token in last.drafted]
            assert tried == sorted(tried, key=["accepted", "rejected", "ignored"].index) and (last.final or "accepted" in tried)
        assert {lane: ended.metrics.emitted for lane, ended in last_ends(events).items()} == dict(enumerate(len(one.token_ids) for one in race.records))
        if rule in ("auto", "match"):
            assert len({record.text for record in race.records}) == 1


def test_a_trace_and_the_command_that_repeats_it_have_them(world: World, tmp_path: Path) -> None:
    race = world.race(DRAFTED, observe="light", stop=("ab", "-x"))
    with TraceWriter(tmp_path / "a.jsonl") as writer:
        race.run(TraceRecorder(writer).take)
    trace = read_trace(tmp_path / "a.jsonl")
    assert [record.end for record in trace.records] == [record.end for record in race.records]
    assert [record.text for record in trace.records] == [record.text for record in race.records]
    assert "--stop ab --stop=-x" in command_line(trace).command


def test_a_limit_inside_a_stop_string_gives_its_beginning_and_a_continuation_goes_on(world: World) -> None:
    whole, _ = world.run(DRAFTED, observe="light", max_tokens=24)
    text = whole.records[0].text
    race, events = world.run(DRAFTED, observe="light", max_tokens=8, stop=(text[6:10],))
    assert [(record.text, record.end) for record in race.records] == [(text[:8], "limit")] * 2
    race.continue_(16, events.append)
    assert {record.text for record in race.records} == {cut(text, (text[6:10],))[0] if text.count(text[6:10]) > 1 else text}


@pytest.mark.real_model
def test_the_bundled_model_stops_alike_with_and_without_a_draft(model_pool: Any) -> None:
    lanes = (LaneSettings(), LaneSettings("draft-model", k=4), LaneSettings("eagle3", k=3, options={"tree": "dynamic"}))
    run = RunSettings(prompt="Count from one to ten in words.", max_tokens=24, threads=1, check_mode=True, lanes=lanes, observe="light")
    whole = Race(run, 1, model_pool)
    whole.run(lambda event: None)
    text = whole.records[0].text
    stop = text[len(text) // 3 : len(text) // 3 + 9]
    race = Race(RunSettings(**{**{name: getattr(run, name) for name in RunSettings.__dataclass_fields__}, "stop": (stop, "\0")}), 2, model_pool)
    race.run(lambda event: None)
    assert {(record.text, record.end) for record in race.records} == {(text[: text.index(stop)], f"stop: {stop!r}")}
    assert len({tuple(record.token_ids) for record in race.records}) == 1


@pytest.mark.real_model
def test_a_sampled_lane_of_the_bundled_model_is_the_beginning_of_what_it_was(model_pool: Any) -> None:
    lanes = (LaneSettings(), LaneSettings("draft-model", k=4, rule="rejection"), LaneSettings("eagle3", k=3, rule="typical", options={"tree": "chain"}))
    run = RunSettings(prompt="Tell me of the sea.", max_tokens=24, threads=1, lanes=lanes, observe="light", sampling=SamplingParams(0.8, seed=5))
    whole = Race(run, 1, model_pool)
    whole.run(lambda event: None)
    texts = [record.text for record in whole.records]
    stops = tuple(text[len(text) // 2 : len(text) // 2 + 6] for text in texts)
    race = Race(replace(run, stop=stops), 2, model_pool)
    race.run(lambda event: None)
    for record, text, before in zip(race.records, texts, whole.records, strict=True):
        wanted, found = cut(text, stops)
        assert (record.text, record.end) == (wanted, f"stop: {found!r}") and len(record.token_ids) < len(before.token_ids)
        assert record.token_ids == before.token_ids[: len(record.token_ids)]
