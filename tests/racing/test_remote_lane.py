"""Lanes that a server decodes, against recorded engines and faulty ones: rounds, figures, ends, and no key anywhere."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from specview.commands.arguments import settings_of
from specview.commands.compare import make_parser
from specview.decoding.ledger import UNKNOWN
from specview.drafting.lanes import run_of_flat
from specview.errors import UsageError
from specview.files.documents import compare_document
from specview.files.reader import read_trace
from specview.files.writer import TraceRecorder, TraceWriter
from specview.library.reports import compare_report
from specview.racing.compare import compare
from specview.racing.race import Race
from specview.racing.resolve import checked_run, harmless, served_lanes
from specview.remote import keys
from specview.settings.events import Event, Failed, LaneEnded, LaneRound, RaceEnded, RaceStarted
from specview.settings.run import LaneSettings, RunSettings
from tests.remote.server import Call, llama, objects, recorded, serving, vllm


def settings_for(*urls: str, **more: object) -> RunSettings:
    lanes = [lane for url in urls for lane in served_lanes(url)]
    return RunSettings(target=urls[0], prompt="Hello", lanes=tuple(lanes), observe=more.pop("observe", "full"), baseline=False, **more)


def raced(settings: RunSettings, should_stop: object = lambda: False) -> tuple[Race, list[Event]]:
    events: list[Event] = []
    race = Race(settings)
    try:
        race.run(events.append, should_stop)
    finally:
        race.close()
    return race, events


def last(events: list[Event], lane: int = 0) -> LaneEnded:
    return [event for event in events if isinstance(event, LaneEnded) and event.lane == lane][-1]


def test_vllms_bursts_are_rounds_and_its_counters_the_figures() -> None:
    with serving(vllm) as server:
        race, events = raced(settings_for(server.url))
    record, end = race.records[0], last(events)
    assert end.end == "eos" and record.text.startswith("1. Red\n2. Green") and record.token_ids[-1] == 2
    assert sum(len(event.round.emitted) for event in events if isinstance(event, LaneRound)) == 53
    (burst,) = [round_ for round_ in record.rounds if len(round_.emitted) > 1]
    assert burst.inferred and burst.accepted == 4 and burst.final.kind == "bonus" and all(token.text for token in burst.drafted)
    metrics = end.metrics
    assert (metrics.proposed, metrics.accepted, metrics.judged, metrics.acceptance_rate) == (8, 4, 0, None)
    assert (metrics.draft_acceptance, metrics.mean_accepted_length, metrics.verify_share) == (0.5, 3.0, None)
    assert metrics.server["mixed"] is False and metrics.server["source"] == "counters"
    assert metrics.tokens_per_target_pass == pytest.approx(53 / 49)
    facts = next(event.facts for event in events if isinstance(event, RaceStarted))
    assert facts["server_0_engine"] == "vLLM 0.32.0" and facts["target_model_name"] == "smol"
    assert record.prompt_ids[:2] == (1, 9690) and burst.drafted[0].p_top


def test_llama_servers_counts_fill_the_ledger() -> None:
    with serving(llama("plain")) as plain, serving(llama("draft-simple")) as drafts:
        race, events = raced(settings_for(plain.url, drafts.url))
    one, other = race.records
    assert one.settings["method"] == "plain"  # a server that decodes plainly is the baseline
    assert one.token_ids == other.token_ids == [token for chunk in objects("llama-plain.completion.sse") for token in chunk["tokens"]]
    end = last(events, 1)
    assert end.equality.equal and end.equality.compared == 32 and end.speedup is not None
    assert (end.metrics.proposed, end.metrics.accepted) == (61, 14) and end.metrics.acceptance_rate == 0.5
    lost = [token for round_ in other.rounds for token in round_.drafted if token.verdict != "accepted"]
    assert len(lost) == 61 - 14 and {token.id for token in lost} == {UNKNOWN}
    assert other.text == "".join(chunk["content"] for chunk in objects("llama-draft-simple.completion.sse"))


def test_a_server_that_drafts_is_nobodys_baseline() -> None:
    with serving(llama("draft-simple")) as one, serving(llama("ngram-simple")) as other:
        race, events = raced(settings_for(one.url, other.url))
    assert race.records[0].settings["method"] == "server"
    assert last(events, 1).speedup is None and last(events, 1).equality is None


def test_a_trace_holds_it_and_gives_it_back(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with serving(vllm) as server:
        file = TraceWriter(path)
        recorder = TraceRecorder(file)
        race = Race(settings_for(server.url))
        try:
            race.run(recorder.take)
        finally:
            race.close()
            file.close()
    found = read_trace(path)
    assert found.records[0].token_ids == race.records[0].token_ids
    assert [round_.inferred for round_ in found.records[0].rounds] == [round_.inferred for round_ in race.records[0].rounds]
    assert found.metrics[0]["server"]["drafted"] == 8
    again = run_of_flat({record.name: record.settings for record in found.records})
    assert again.lanes[0].options == {"url": server.url} and again.target == server.url
    assert not harmless(again).lanes[0].options  # somebody else's file sends nothing anywhere
    with pytest.raises(UsageError):
        checked_run(run_of_flat({"x": {**found.records[0].settings, "option_url": "http://"}}))


def test_a_server_lost_in_mid_stream_ends_its_lane_with_what_it_had() -> None:
    def breaking(call: Call) -> None:
        if call.path != "/completion":
            llama("plain")(call)
            return
        call.begin(Content_Length="1000000")
        call.write(b"\n\n".join(recorded("llama-plain.completion.sse").encode().split(b"\n\n")[:5]) + b"\n\n")

    with serving(llama("plain")) as whole, serving(breaking) as broken:
        race, events = raced(settings_for(whole.url, broken.url))
    assert [len(record.token_ids) for record in race.records] == [32, 5]
    assert [record.end for record in race.records] == ["limit", "error"] and "cut" in race.records[1].error
    assert isinstance(events[-1], RaceEnded) and events[-1].end == "done"


def test_a_stream_without_its_end_is_said() -> None:
    def short(call: Call) -> None:
        if call.path == "/completion":
            call.begin()
            call.write(b"\n\n".join(recorded("llama-plain.completion.sse").encode().split(b"\n\n")[:3]) + b"\n\n")
        else:
            llama("plain")(call)

    with serving(short) as server:
        race, _ = raced(settings_for(server.url))
    assert race.records[0].end == "error" and len(race.records[0].token_ids) == 3 and "middle of its answer" in race.records[0].error


def test_a_server_that_is_not_there_ends_its_lane_alone() -> None:
    with serving(llama("plain")) as server:
        race, events = raced(settings_for(server.url, "http://127.0.0.1:1"))
    assert race.records[0].end == "limit" and "refused" in race.records[1].error
    race, events = raced(settings_for("http://127.0.0.1:1"))
    assert any(isinstance(event, Failed) and "refused" in event.message for event in events)


def test_a_stop_ends_it_at_once_with_what_it_had() -> None:
    came = threading.Event()

    def slow(call: Call) -> None:
        if call.path == "/completion":
            call.begin()
            call.write(b"\n\n".join(recorded("llama-plain.completion.sse").encode().split(b"\n\n")[:4]) + b"\n\n")
            call.stall()
        else:
            llama("plain")(call)

    events: list[Event] = []
    with serving(slow) as server:
        race = Race(settings_for(server.url))

        def hear(event: Event) -> None:
            events.append(event)
            if isinstance(event, LaneRound) and event.round.index == 3:
                came.set()

        try:
            race.run(hear, came.is_set)
            assert not server.ending.is_set()
        finally:
            race.close()
    assert race.records[0].end == "stopped" and len(race.records[0].token_ids) == 4
    assert not race.can_continue  # a server keeps nothing of it


def test_other_traffic_is_said_and_counts_for_nothing() -> None:
    def shared(call: Call) -> None:
        if call.path == "/metrics" and call._server.asked("/v1/chat/completions"):
            call.send(recorded("vllm-metrics-after.txt").replace('generation_tokens_total{engine="0",model_name="smol"} 53.0', 'generation_tokens_total{engine="0",model_name="smol"} 530.0'), "text/plain")
        else:
            vllm(call)

    with serving(shared) as server:
        _, events = raced(settings_for(server.url))
    metrics = last(events).metrics
    assert metrics.server["mixed"] is True and metrics.draft_acceptance is None


def test_without_counters_the_lane_runs_and_knows_less() -> None:
    def bare(call: Call) -> None:
        if call.path == "/metrics":
            call.json({"detail": "Not Found"}, 404)
        else:
            vllm(call)

    with serving(bare) as server:
        _, events = raced(settings_for(server.url, observe="light"))
    metrics = last(events).metrics
    assert metrics.emitted == 53 and metrics.draft_acceptance is None and metrics.server == {}


def test_a_lane_that_decodes_here_has_no_server_as_its_target() -> None:
    with pytest.raises(UsageError, match="drafts here"):
        checked_run(RunSettings(target="http://127.0.0.1:1", prompt="x", lanes=(LaneSettings("draft-model"),)))
    with pytest.raises(UsageError):
        checked_run(RunSettings(target="http://127.0.0.1:1", prompt="x"))


def test_a_key_goes_to_the_server_and_into_no_record(tmp_path: Path) -> None:
    keys.forget()
    with serving(vllm) as server:
        typed = server.url.replace("//", "//sk-secret-7@")
        race, events = raced(settings_for(typed))
        assert {call.headers.get("Authorization") for call in server.calls} == {"Bearer sk-secret-7"}
    keys.forget()
    said = json.dumps([race.records[0].settings, race.settings.target]) + repr(events) + repr(race.settings)
    assert race.records[0].end == "eos" and "sk-secret" not in said


def test_a_stop_ends_the_asking_too() -> None:
    asked = threading.Event()

    def silent(call: Call) -> None:
        asked.set()
        call.stall()

    with serving(silent) as server:
        _, events = raced(settings_for(server.url), asked.is_set)
        assert not server.ending.is_set()
    assert isinstance(events[-1], RaceEnded) and events[-1].end == "stopped"


def test_the_command_line_of_a_race_of_servers_means_the_same_race() -> None:
    first, other = "http://127.0.0.1:8080", "http://127.0.0.1:8081"
    for words in (["--target", first], ["--target", first, "--lane", f"server,url={first}"], ["--target", first, "--method", "server"]):
        settings = settings_of(make_parser().parse_args([*words, "--lane", f"server,url={other}"]), ())
        assert [lane.options["url"] for lane in checked_run(settings).lanes] == [first, other]
    with pytest.raises(UsageError, match="no lane here"):
        checked_run(RunSettings(target=first, prompt="x"))


def test_repeats_of_a_server_fold() -> None:
    with serving(vllm) as server:
        result = compare(settings_for(server.url), 2)
    (lane,) = result.lanes
    assert len(lane.repeats) == 2 and not lane.error and lane.metrics.emitted == 53
    assert lane.metrics.server["source"] == "counters"
    document = compare_document(result)
    assert document["lanes"][0]["run"]["server_engine"] == "vLLM 0.32.0"
    assert any("wall-clock" in str(block) for block in compare_report(document).blocks)
