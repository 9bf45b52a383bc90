"""Reading traces that are damaged, foreign, huge or strange: a trace or one clear line, never anything else."""

from __future__ import annotations

import gc
import json
import os
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specview.errors import SpecviewError, Stopped
from specview.files import reader
from specview.files.documents import metrics_to_json
from specview.files.reader import read_trace
from specview.files.schema import dumps, round_to_json
from specview.library.exports import WRITTEN, Recorded, export_data, recorded_document
from specview.library.library import look_at
from specview.library.repeat import command_line, settings_of_trace
from specview.library.replay import events, recorded_metrics, trace_document
from specview.settings.events import LaneEnded, LaneRound
from tests.library.recorded import race_events, write_trace

FUZZ = settings(max_examples=120, deadline=None, derandomize=True,
                suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_trace(tmp_path_factory.mktemp("trace") / "whole.jsonl", rounds=3)


def opened(path: Path) -> bool:
    """Read a file and do with it all that is ever done with one; False where it was refused in one line."""
    try:
        trace = read_trace(path)
    except SpecviewError as error:
        assert "\n" not in str(error) and 10 < len(str(error)) < 1000
        return False
    list(events(trace))
    run = Recorded("r", path, trace)
    recorded_document(run)
    for form in WRITTEN:
        if form != "parquet":
            str(export_data(form, [run])).encode("utf-8")
    for ask in (settings_of_trace, command_line):
        try:
            ask(trace)
        except SpecviewError as error:
            assert "\n" not in str(error)
    return True


def test_a_whole_trace_gives_all_its_events_back(whole: Path) -> None:
    """Event for event: real numbers with the seven digits of a file, equality over the rounds that are there."""
    told, read = list(race_events(rounds=3)), list(events(read_trace(whole), 1))
    ends = [event for event in told if isinstance(event, LaneEnded)][-3:]
    for ours, theirs in zip([event for event in read if isinstance(event, LaneEnded)], ends, strict=True):
        assert (ours.speedup and ours.speedup.as_dict()) == (theirs.speedup and pytest.approx(theirs.speedup.as_dict(), rel=1e-5))
        compared = min(sum(len(event.round.emitted) for event in told if isinstance(event, LaneRound) and event.lane == lane)
                       for lane in (0, theirs.lane))  # fmt: skip
        equality = theirs.equality and replace(theirs.equality, compared=compared)
        metrics = recorded_metrics(metrics_to_json(theirs.metrics))
        assert replace(ours, speedup=None) == replace(theirs, speedup=None, equality=equality, metrics=metrics)
    assert read[-1] == told[-1]
    lines = [sorted(dumps(round_to_json(event.lane, event.round)) for event in all_ if isinstance(event, LaneRound))
             for all_ in (read, told)]  # fmt: skip
    assert lines[0] == lines[1] and len(lines[0]) == 9


# -- what is no trace ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\n\n", "not the header"),
        (b"\x7fELF\x02\x01\x01" + bytes(1000), "not the header"),
        (b"PK\x03\x04", "not the header"),
        (b"\xef\xbb\xbf{}", "not the header"),
        (b"hello\n", "not the header"),
        (b"{" * 100_000, "not the header"),
        (b'{"a":' * 50_000, "not the header"),
        (b"[" * 100_000 + b"]" * 100_000, "not the header"),
        (b'{\n "name": "plain",\n "run": {}\n}\n', "not the header"),
        (b'{"schema": 3}\n', "not the header"),
        (b'{"schema": "specview.trace/2", "run": {}}\n', "'specview.trace/2', and this specview reads 'specview.trace/1'"),
        (b'{"schema": "specview.trace/1"}\n', "lacks run, prompt or lanes"),
        (b'{"schema": "specview.trace/1", "run": {}, "prompt": {"text": "", "token_ids": []}, "lanes": []}\n', "no lanes"),
        (b'{"schema": "specview.trace/1", "run": {}, "prompt": {"text": "", "token_ids": [1e999]}, "lanes": []}\n', "lacks"),
        (b'{"schema": "specview.trace/1", "run": {}, "prompt": {"text": "", "token_ids": [null]}, "lanes": []}\n', "lacks"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(SpecviewError) as caught:
        read_trace(path)
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert says in look_at(path)["problem"]


def test_folders_pipes_devices_and_missing_files_are_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, says in ((tmp_path, "it is a folder"), (pipe, "a pipe or a device"), (Path("/dev/zero"), "a pipe or a device"),
                       (tmp_path / "missing", "no such file"), (tmp_path / ("x" * 300), "name too long")):  # fmt: skip
        with pytest.raises(SpecviewError, match=says):
            read_trace(path)
        assert says in look_at(path)["problem"]


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_trace(tmp_path / "a.jsonl")
    with path.open("ab") as file:
        file.truncate(reader.MAX_BYTES + 1)  # sparse: it takes no room
    with pytest.raises(SpecviewError, match=r"has 268 MB, and up to 268 MB are read"):
        read_trace(path)
    foreign = tmp_path / "b.jsonl"
    foreign.write_bytes(b'{"a": ')
    with foreign.open("ab") as file:
        file.truncate(reader.MAX_LINE_BYTES * 4)
    with pytest.raises(SpecviewError, match="not the header"):
        read_trace(foreign)


# -- damage --------------------------------------------------------------------------------------------------


@FUZZ
@given(cut=st.floats(0, 1))
def test_a_file_cut_anywhere_opens_with_what_it_has(whole: Path, tmp_path: Path, cut: float) -> None:
    data = whole.read_bytes()
    path = tmp_path / "cut.jsonl"
    path.write_bytes(data[: round(cut * len(data))])
    complete = path.read_bytes().count(b"\n")
    if opened(path):
        trace = read_trace(path)
        rounds = sum(len(record.rounds) for record in trace.records)
        assert rounds >= min(complete - 1, 9)
    else:
        assert complete == 0  # not even the header is whole


@FUZZ
@given(place=st.floats(0, 1), new=st.binary(min_size=1, max_size=6), over=st.integers(0, 40))
def test_bytes_that_were_overwritten_give_a_trace_or_one_line(
    whole: Path, tmp_path: Path, place: float, new: bytes, over: int
) -> None:
    data = bytearray(whole.read_bytes())
    start = round(place * (len(data) - 1))
    data[start : start + over] = new
    path = tmp_path / "damaged.jsonl"
    path.write_bytes(data)
    opened(path)
    assert isinstance(look_at(path), dict)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(
        [10**400, -1, 2**63, "\ud800", "\x00", "plain", "greedy", "auto", 1e300]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=5,
)  # fmt: skip


def places(value: Any, at: tuple = ()) -> list[tuple]:
    """The paths of everything in a JSON value."""
    found = [at] if at else []
    if isinstance(value, dict):
        for key, item in value.items():
            found += places(item, (*at, key))
    elif isinstance(value, list):
        for index, item in enumerate(value[:3]):
            found += places(item, (*at, index))
    return found


@settings(FUZZ, max_examples=200)
@given(line=st.floats(0, 0.999), place=st.floats(0, 0.999), value=VALUES, drop=st.booleans())
def test_any_value_in_any_place_gives_a_trace_or_one_line(
    whole: Path, tmp_path: Path, line: float, place: float, value: Any, drop: bool
) -> None:
    lines = [json.loads(text) for text in whole.read_text(encoding="utf-8").splitlines()]
    which = 0 if line < 0.3 else int(line * len(lines))
    paths = places(lines[which])
    *way, last = paths[int(place * len(paths))]
    inside = lines[which]
    for step in way:
        inside = inside[step]
    if drop and isinstance(inside, dict):
        del inside[last]
    else:
        inside[last] = value
    path = tmp_path / "odd.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    opened(path)
    facts = look_at(path)
    json.dumps(facts).encode("utf-8")


@settings(FUZZ, max_examples=60)
@given(rest=st.lists(VALUES, max_size=4))
def test_any_json_lines_after_a_header_give_a_trace_or_one_line(whole: Path, tmp_path: Path, rest: list[Any]) -> None:
    header = whole.read_bytes().split(b"\n")[0]
    path = tmp_path / "odd.jsonl"
    path.write_bytes(header + b"\n" + "".join(json.dumps(one) + "\n" for one in rest).encode())
    opened(path)


# -- how much work it is ---------------------------------------------------------------------------------------


def test_reading_tells_how_far_it_is_and_can_be_stopped(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.jsonl", rounds=200)
    told: list[float] = []
    read_trace(path, told.append)
    assert told == sorted(told) and len(told) > 3 and told[-1] == 1.0
    with pytest.raises(Stopped):
        read_trace(path, should_stop=lambda: True)


def peak_of(work: Callable[[], object]) -> int:
    """The most that Python objects took while this worked, bytes."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_trace_takes_little_more_memory_than_its_file_and_a_check_of_it_none(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "a.jsonl", rounds=200)
    size = path.stat().st_size
    assert size > 500_000
    most = peak_of(lambda: read_trace(path))
    assert most < 2.5 * size  # its bytes are never held whole, and tokens recur
    assert peak_of(lambda: read_trace(path, keep="figures")) < 0.75 * most
    whole, figures = read_trace(path), read_trace(path, keep="figures")
    assert [[round_.emitted for round_ in record.rounds] for record in figures.records] == [
        [round_.emitted for round_ in record.rounds] for record in whole.records
    ]
    assert trace_document(figures) == trace_document(whole)
    run = Recorded("r", path, figures)
    assert [export_data(form, [run]) for form in ("csv", "markdown")] == [export_data(form, [replace(run, trace=whole)]) for form in ("csv", "markdown")]
    kept: list[reader.Trace] = []
    assert peak_of(lambda: kept.append(read_trace(path, keep="nothing"))) < 0.25 * size
    assert all(record.end and not record.rounds for record in kept[0].records)


@pytest.mark.parametrize("inside", ["[],", "{},", '{"":0},', "0,"])
def test_a_line_of_values_that_take_far_more_memory_than_bytes_is_refused_before_they_are_made(
    whole: Path, tmp_path: Path, inside: str
) -> None:
    header = whole.read_bytes().split(b"\n")[0]
    many = inside * (8_000_000 // len(inside))
    path = tmp_path / "a.jsonl"
    path.write_bytes(header + b'\n{"lane": 0, "riders": [' + many.encode() + b"0]}\n")
    told: list[str] = []

    def read() -> None:
        with pytest.raises(SpecviewError) as caught:
            read_trace(path)
        told.append(str(caught.value))

    assert peak_of(read) < 40_000_000
    assert "line 2" in told[0] and "\n" not in told[0]
    path.write_bytes(b'{"schema": "specview.trace/1", "run": [' + many.encode() + b"0]}\n")
    assert peak_of(lambda: told.append(look_at(path)["problem"])) < 40_000_000
    assert "not the header" in told[1]
    path.write_bytes(header + b"\n" + b" " * (reader.MAX_LINE_BYTES + 9) + b"\n")
    with pytest.raises(SpecviewError, match="line 2 .* longer than 16 MB"):
        read_trace(path)


def test_the_cycle_collector_rests_while_a_trace_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_trace(tmp_path / "a.jsonl", rounds=5)
    bad = tmp_path / "b.jsonl"
    bad.write_bytes(path.read_bytes() + b"x\n")
    seen: list[bool] = []
    real = reader.round_from_json
    monkeypatch.setattr(reader, "round_from_json", lambda *given, **how: (seen.append(gc.isenabled()), real(*given, **how))[1])
    for was in (True, False):
        (gc.enable if was else gc.disable)()
        try:
            read_trace(path)
            with pytest.raises(SpecviewError):
                read_trace(bad)
            assert gc.isenabled() is was
        finally:
            gc.enable()
    assert not any(seen) and seen


def test_a_trace_is_read_in_a_bounded_number_of_calls(tmp_path: Path) -> None:
    """What opening costs grows with the rounds and no faster: calls of Python functions, which no other load changes."""
    import sys

    def calls(rounds: int) -> int:
        path = write_trace(tmp_path / f"{rounds}.jsonl", rounds=rounds)
        count = 0

        def profile(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(profile)
        try:
            read_trace(path)
        finally:
            sys.setprofile(None)
        return count

    few, many = calls(40), calls(160)
    assert many < 4.4 * few
    assert many / (160 * 3) < 110  # a round of up to 5 tokens with three lists of candidates each
