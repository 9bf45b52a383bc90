"""Trace files: written as a race runs, read back whole, cut or broken."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from specview.decoding.ledger import DraftedToken, FinalToken, Round
from specview.decoding.metrics import fold
from specview.errors import SpecviewError
from specview.files.reader import read_trace
from specview.files.writer import TraceRecorder, TraceWriter, trace_header
from specview.settings.events import LaneEnded, LanePrefilled, LaneRound, RaceEnded, RaceStarted

HEADER = trace_header({"engine": "transformers"}, "Say hi.", [1, 2], [("plain", {"method": "plain"}, 0.25)])


def plain_round(index: int, text: str = "x") -> Round:
    return Round(index, 0.1 * (index + 1), 0.0, 0.09, 0.01, final=FinalToken(7 + index, "plain", text, p=1.0))


def write(path: Path, rounds: int = 3, end: bool = True) -> Path:
    with TraceWriter(path, HEADER) as writer:
        for index in range(rounds):
            writer.round(0, plain_round(index, f"t{index}\u2028"))
        if end:
            writer.end(0, "limit", fold([plain_round(index) for index in range(rounds)], 0.25))
    return path


def test_a_trace_comes_back(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "a.jsonl"))
    record = trace.records[0]
    assert (trace.prompt_text, trace.prompt_ids, trace.run) == ("Say hi.", (1, 2), {"engine": "transformers"})
    assert (record.name, record.end, record.prefill_s) == ("plain", "limit", 0.25)
    assert record.token_ids == [7, 8, 9]
    assert record.text == "t0\u2028t1\u2028t2\u2028"
    metrics = trace.metrics[0]
    assert metrics is not None
    assert metrics["decode_tokens_per_s"] == pytest.approx(fold(record.rounds).decode_tokens_per_s, rel=1e-6)


def test_a_file_without_end_lines_opens(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "a.jsonl", end=False))
    assert trace.records[0].end is None and len(trace.records[0].rounds) == 3 and not trace.cut


def test_a_cut_last_line_costs_that_line_only(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", end=False)
    whole = path.read_bytes()
    for cut in range(whole.rstrip(b"\n").rfind(b"\n") + 2, len(whole) - 1, 17):
        path.write_bytes(whole[:cut])
        trace = read_trace(path)
        assert trace.cut and len(trace.records[0].rounds) == 2


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{not json}\n", "line 3 .*not JSON"),
        (b'{"lane": 4, "index": 0}\n', "line 3 .*lane is 4"),
        (b'{"lane": 0, "index": 9}\n', "line 3 .*it lacks t"),
        (b'{"lane": 0, "end": "tired"}\n', "line 3 .*end is 'tired'"),
        (b"\xff\xfe\n", "line 3 .*not JSON"),
        (b"17\n", "line 3 .*lane is None"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, says: str) -> None:
    path = write(tmp_path / "a.jsonl", rounds=1, end=False)
    path.write_bytes(path.read_bytes() + line + b'{"lane": 0, "end": "eos", "metrics": {}}\n')
    with pytest.raises(SpecviewError, match=says) as caught:
        read_trace(path)
    assert "\n" not in str(caught.value)


def test_a_closed_door_is_known_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecviewError, match="cannot write the trace"):
        TraceWriter(tmp_path)
    with pytest.raises(SpecviewError, match="cannot write the trace .* no such file"):
        TraceWriter(tmp_path / "no" / "a.jsonl")

    def refuse(*arguments: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(SpecviewError, match="permission denied"):
        TraceWriter(tmp_path / "a.jsonl")


def test_a_run_that_never_began_leaves_files_as_they_were(tmp_path: Path) -> None:
    TraceWriter(tmp_path / "new.jsonl").close()
    assert not (tmp_path / "new.jsonl").exists()
    old = write(tmp_path / "old.jsonl")
    before = old.read_bytes()
    TraceWriter(old).close()
    assert old.read_bytes() == before


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_full_disk_ends_the_trace_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    said: list[str] = []
    path = tmp_path / "a.jsonl"
    writer = TraceWriter(path, HEADER, said.append)
    writer.round(0, plain_round(0))
    real_write, room = os.write, [40]

    def full(fd: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(code, os.strerror(code))
        written = real_write(fd, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", full)
    writer.round(0, plain_round(1))
    monkeypatch.undo()
    writer.round(0, plain_round(2))
    writer.end(0, "limit", fold([]))
    writer.close()
    assert len(said) == 1 and "\n" not in said[0] and os.strerror(code).lower() in said[0]
    trace = read_trace(path)
    assert len(trace.records[0].rounds) == 1 and not trace.cut and path.read_bytes().endswith(b"}\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_device_that_is_always_full(tmp_path: Path) -> None:
    said: list[str] = []
    with TraceWriter("/dev/full", HEADER, said.append) as writer:
        assert not writer.writing
        writer.round(0, plain_round(0))
    assert len(said) == 1 and "no space left" in said[0]


def test_the_recorder_writes_a_race(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    drafted = (DraftedToken(5, "accepted", q=0.5, p=0.75, accept=1.0, u=0.2, text="a"),)
    second = Round(0, 0.2, 0.05, 0.1, 0.05, 0.0, "draft-model", None, drafted, FinalToken(6, "bonus", "b"))
    with TraceWriter(path) as writer:
        recorder = TraceRecorder(writer)
        recorder.take(RaceStarted(1, (1, 2), "hi", ("plain", "fast"), ({"k": None}, {"k": 1}), {"cpu": "x"}))
        recorder.take(LanePrefilled(1, 0, 0.5))
        recorder.take(LanePrefilled(1, 1, 0.75))
        assert path.stat().st_size == 0
        recorder.take(LaneRound(1, 0, plain_round(0)))
        recorder.take(LaneRound(1, 1, second))
        recorder.take(LaneEnded(1, 0, "stopped", fold([plain_round(0)])))
        recorder.take(LaneEnded(1, 1, "limit", fold([second])))
        recorder.take(LaneEnded(1, 1, "limit", fold([second], 0.75)))
        recorder.take(RaceEnded(1, "stopped"))
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [line.get("end") for line in lines] == [None, None, None, "stopped", "limit"]
    trace = read_trace(path)
    assert [record.prefill_s for record in trace.records] == [0.5, 0.75]
    assert trace.records[1].rounds == [second]
    assert trace.metrics[1] is not None and trace.metrics[1]["acceptance_rate"] == 1.0
