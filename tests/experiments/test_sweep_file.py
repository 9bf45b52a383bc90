"""A sweep's file: never overwritten, one writer, cut anywhere it still opens, and damage is said in one line."""

from __future__ import annotations

import errno
import os
from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specview.errors import SpecviewError, UsageError
from specview.experiments.sweep_curves import CellRun
from specview.experiments.sweep_file import SweepFile, new_path, read_sweep
from tests.experiments.test_sweep import grid_of, sweep
from tests.racing.world import World


@pytest.fixture
def world(monkeypatch) -> World:
    return World(monkeypatch)


CPU = {"draft_sha256": "aa", "draft_dtype": "float32", "device": "cpu"}
GPU = {**CPU, "device": "cuda"}


@pytest.mark.parametrize(
    ("dtype", "known", "now", "words"),
    [
        (None, {**CPU, "workload_sha256": "11"}, {**CPU, "workload_sha256": "22"}, ""),  # of the prompt, which is in the grid
        (None, CPU, GPU, "device was cpu and is cuda"),
        (None, CPU, {"draft_sha256": "cc"}, "draft_sha256 was aa and is cc"),
        # An engine on a CPU may keep the same stored weights in halves at one load and in float32 at the next.
        (None, CPU, {**CPU, "draft_dtype": "float16"}, ""),
        (None, CPU, {**CPU, "draft_dtype": "Q8_0"}, "draft_dtype was float32 and is Q8_0"),
        (None, GPU, {**GPU, "draft_dtype": "float16"}, "draft_dtype was float32 and is float16"),
        ("float32", CPU, {**CPU, "draft_dtype": "float16"}, "draft_dtype was float32 and is float16"),
    ],
)
def test_other_weights_make_another_sweep(tmp_path, dtype, known, now, words):
    grid = grid_of()
    with SweepFile.begin(tmp_path / "s.jsonl", replace(grid, settings=replace(grid.settings, dtype=dtype))) as file:
        file.check_facts(0, known)
        file.check_facts(1, {"draft_sha256": "another lane's"})
        with pytest.raises(SpecviewError, match=words) if words else nullcontext():
            file.check_facts(0, now)


def test_a_sweep_s_file_is_never_overwritten(tmp_path):
    with SweepFile.begin(tmp_path / "s.jsonl", grid_of()):
        pass
    before = (tmp_path / "s.jsonl").read_bytes()
    with pytest.raises(UsageError, match="there already"):
        SweepFile.begin(tmp_path / "s.jsonl", grid_of())
    with pytest.raises(UsageError, match="another grid: max_tokens was 24 and is 30"):
        SweepFile.resume(tmp_path / "s.jsonl", grid_of(max_tokens=30))
    assert (tmp_path / "s.jsonl").read_bytes() == before


def test_a_sweep_s_file_has_one_writer(world, tmp_path):
    path, link = tmp_path / "s.jsonl", tmp_path / "link.jsonl"
    link.symlink_to(path)
    with SweepFile.begin(path, grid_of()) as file:
        file.add(CellRun(0, 0, error="x"))
        for name in (path, link):
            with pytest.raises(SpecviewError, match="is being written by another sweep. Wait"):
                SweepFile.resume(name)
        with pytest.raises(SpecviewError, match="is being written by another sweep"):
            SweepFile.begin(path, grid_of())
        file.add(CellRun(1, 0, error="y"))
        assert len(read_sweep(path).runs) == 2, "who only reads may do so meanwhile"
    with pytest.raises(UsageError, match="another grid"):
        SweepFile.resume(path, grid_of(max_tokens=30))
    with SweepFile.resume(path) as file:  # closed, or refused: the next one has it
        file.add(CellRun(2, 0, error="z"))
    assert len(read_sweep(path).runs) == 3
    assert sorted(found.name for found in tmp_path.iterdir()) == ["link.jsonl", "s.jsonl"]


def test_a_lock_that_a_crash_left_holds_nobody_up(tmp_path):
    with SweepFile.begin(tmp_path / "s.jsonl", grid_of()):
        pass
    (tmp_path / ".s.jsonl.lock").write_text("")
    with SweepFile.resume(tmp_path / "s.jsonl") as file:
        file.add(CellRun(0, 0, error="x"))


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "Permission denied"), NotImplementedError("no locks here")])
def test_a_place_without_locks_is_no_hindrance(tmp_path, monkeypatch, error):
    def refused(*_, **__):
        raise error

    monkeypatch.setattr("filelock.FileLock.acquire", refused)
    with SweepFile.begin(tmp_path / "s.jsonl", grid_of()):
        pass
    with SweepFile.resume(tmp_path / "s.jsonl") as file:
        file.add(CellRun(0, 0, error="x"))
    assert len(read_sweep(tmp_path / "s.jsonl").runs) == 1


def test_a_full_disk_stops_the_sweep_and_loses_nothing(world, tmp_path, monkeypatch):
    path = tmp_path / "s.jsonl"
    real, written = os.write, []

    def write(fd, data):
        written.append(fd)
        if len(written) > 5:
            real(fd, data[:20])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(SpecviewError, match="cannot write the sweep .* no space left on device. Free some space"):
            sweep(world, grid_of(), path)
    kept = read_sweep(path)
    assert len(kept.runs) == 3 and not kept.trouble
    again, _ = sweep(world, grid_of(), path, resume=True)
    assert len(again.runs) == again.total
    assert len(read_sweep(path).runs) == again.total


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The bytes of a finished sweep's file, and its results."""
    patch = pytest.MonkeyPatch()
    try:
        path = tmp_path_factory.mktemp("sweep") / "s.jsonl"
        results, _ = sweep(World(patch), grid_of(repeats=1), path)
    finally:
        patch.undo()
    return path.read_bytes(), results


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_file_cut_anywhere_opens_with_what_it_has_or_says_why_in_one_line(written, tmp_path_factory, data):
    whole, results = written
    cut = data.draw(st.integers(0, len(whole)))
    path = tmp_path_factory.getbasetemp() / "cut.jsonl"
    path.write_bytes(whole[:cut])
    header = whole.index(b"\n")
    if cut < header:
        with pytest.raises(SpecviewError) as caught:
            read_sweep(path)
        assert "\n" not in str(caught.value)
        return
    found = read_sweep(path)
    lines = whole[: cut + 1].count(b"\n") if whole[cut : cut + 1] == b"\n" else whole[:cut].count(b"\n")
    assert len(found.runs) in (max(0, whole[:cut].count(b"\n") - 2), max(0, lines - 2))
    for key, run in found.runs.items():
        assert run.metrics == results.runs[key].metrics
    with SweepFile.resume(path) as file:  # a resumed file continues at a whole line
        file.add(CellRun(0, 0, error="x"))
    assert read_sweep(path).runs[0, 0].error == "x"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is no sweep"),
        (b"\x89PNG\r\n", "is no sweep"),
        (b"[1]\n", "is no sweep"),
        (b'{"schema": "specview.trace/1"}\n', "specview.trace/1 file"),
        (b'{"schema": "specview.sweep/2", "grid": {}}\n', "Update specview"),
        (b'{"schema": "specview.sweep/1", "grid": {}}\n', "grid of .* is damaged"),
        (b'{"schema": "specview.sweep/1", "grid": 3}\n', "grid of .* is damaged"),
        (b"[" * 100_000, "is no sweep"),
        (None, "cannot read the sweep .*no such file"),
    ],
)
def test_a_file_that_is_no_sweep_is_one_line(tmp_path, content, words):
    path = tmp_path / "x.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SpecviewError, match=words) as caught:
        read_sweep(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("line", [b"{}", b"3", b'{"cell": 99, "repeat": 0}', b'{"cell": 0, "repeat": 0, "positions": [1]}', b"{"])
def test_a_damaged_line_is_named(written, tmp_path, line):
    whole, _ = written
    lines = whole.split(b"\n")
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join([*lines[:3], line, *lines[3:]]))
    with pytest.raises(SpecviewError, match="damaged in line 4"):
        read_sweep(path)


def test_new_sweeps_never_share_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIEW_DATA", str(tmp_path))
    paths = []
    for _ in range(3):
        path = new_path()
        with SweepFile.begin(path, grid_of()):
            paths.append(path)
    assert len(set(paths)) == 3 and {path.parent for path in paths} == {tmp_path / "sweeps"}
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECVIEW_DATA", str(tmp_path / "file"))
    with pytest.raises(SpecviewError, match="cannot write the folder"):
        new_path()
