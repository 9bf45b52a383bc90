"""The runs library: kept runs are found, described, deleted and brought back, whoever else uses the same folder."""

from __future__ import annotations

import contextlib
import errno
import json
import multiprocessing
import os
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specview.errors import SpecviewError, UsageError
from specview.files.reader import read_trace
from specview.library import library as library_module
from specview.library.keeping import RunKeeper
from specview.library.library import Entry, LaneFacts, RunLibrary, runs_folder
from tests.library.changing import change
from tests.library.recorded import SETTINGS, keep, race_events, write_trace


@pytest.fixture
def library(tmp_path: Path) -> RunLibrary:
    return RunLibrary(tmp_path / "runs")


def test_an_empty_library_is_no_error_and_that_of_tests_not_the_users(library: RunLibrary, own_data: Path) -> None:
    assert runs_folder() == own_data / "runs" and not own_data.exists()
    assert library.scan() == [] and library.scan(trash=True) == [] and library.size_bytes() == 0
    assert library.keeps and not library.folder.exists()


def test_what_a_killed_writer_left_goes_at_the_next_listing(library: RunLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = keep(library)
    library.describe(run_id, note="mine")
    left = [f".{run_id}.jsonl.1234abcd.specview-part", f"{run_id}.about.json.99-0f0f.tmp", f"{run_id}.4711.tmp", "index.json"]
    for name in [*left, "of the user.tmp"]:
        (library.folder / name).write_text("half")
    library.scan()
    assert all((library.folder / name).exists() for name in left), "they may be another program's, at work"
    monkeypatch.setattr(library_module, "ABANDONED_S", -1.0)
    (entry,) = library.scan()
    assert entry.note == "mine" and not any((library.folder / name).exists() for name in left)
    assert (library.folder / "of the user.tmp").exists()


# -- keeping -------------------------------------------------------------------------------------------------


def test_a_kept_run_is_listed_with_what_its_first_and_last_lines_say(library: RunLibrary) -> None:
    run_id = keep(library)
    (entry,) = library.scan()
    assert entry.id == run_id and entry.end == "done" and entry.source == "window" and not entry.problem
    assert entry.prompt == SETTINGS.prompt and entry.target == "SmolLM2-135M-Instruct" and entry.device == "a processor"
    assert [lane.name for lane in entry.lanes] == ["plain", "draft-model", "prompt-lookup"]
    assert [lane.k for lane in entry.lanes] == [None, 4, 3] and [lane.equal for lane in entry.lanes] == [None, True, False]
    trace = library.read(entry)
    for lane, metrics, end in zip(entry.lanes, trace.metrics, trace.ends, strict=True):
        assert metrics is not None and lane.figures["decode_tokens_per_s"] == metrics["decode_tokens_per_s"]
        assert lane.speedup == end["speedup"]
    assert [lane.spread for lane in entry.lanes] == [end.get("speedup_spread") for end in trace.ends]
    assert entry.title == "Say hi, and nothing more.: draft-model, prompt-lookup"


def lanes_of(*speedups: tuple[float, list[float] | None]) -> Entry:
    """A run of plain at 10 tok/s and lanes with these speedups and ranges."""
    figures = {"emitted": 100.0, "decode_tokens_per_s": 10.0}
    lanes = [LaneFacts("plain", "plain", figures=figures)]
    for place, (value, spread) in enumerate(speedups):
        lanes.append(LaneFacts(f"lane {place}", "suffix", speedup=value, spread=spread, figures=figures | {"decode_tokens_per_s": 10 * value}))
    return Entry("a", Path("a"), 1, "", lanes=tuple(lanes))


@pytest.mark.parametrize(("speedups", "name", "clearly"), [
    ([(1.5, [1.4, 1.6]), (1.2, [1.1, 1.3])], "lane 0", True),
    ([(1.5, [1.2, 1.8]), (1.6, [1.1, 1.7])], "lane 1", False),
    ([(1.05, [0.9, 1.2]), (0.8, [0.7, 0.9])], "lane 0", False),
    ([(0.9, [0.85, 0.95]), (0.8, [0.7, 0.82])], "plain", True),
])  # fmt: skip
def test_the_lane_ahead_is_that_of_the_sentence(speedups, name, clearly) -> None:
    best, known = lanes_of(*speedups).best()
    assert best is not None and (best.name, known) == (name, clearly)


def test_every_round_is_on_disk_before_the_next(library: RunLibrary) -> None:
    keeper = RunKeeper(library)
    seen = 0
    for event in race_events(rounds=5):
        keeper.take(event)
        if type(event).__name__ == "LaneRound":
            seen += 1
            assert keeper.path is not None
            assert sum(len(record.rounds) for record in read_trace(keeper.path).records) == seen
    assert seen == 15


@pytest.mark.parametrize("end", [None, "stopped"])
def test_a_run_that_was_stopped_or_crashed_is_kept_with_what_it_has(library: RunLibrary, end: str | None) -> None:
    keep(library, end=end)
    (entry,) = library.scan()
    assert entry.end == ("stopped" if end else "unfinished") and not entry.problem
    assert [len(record.rounds) for record in library.read(entry).records] == [12, 12, 12]


def test_a_continued_race_goes_on_in_its_file_and_a_deleted_one_is_not_made_again(library: RunLibrary) -> None:
    events = list(race_events(rounds=6))
    rounds = [event for event in events if type(event).__name__ == "LaneRound"]
    ends = [event for event in events if type(event).__name__ in ("LaneEnded", "RaceEnded")]
    keeper = RunKeeper(library)
    for event in [*events[:4], *rounds[:9], *ends, *rounds[9:], *ends]:
        keeper.take(event)
    assert keeper.path is not None
    trace = read_trace(keeper.path)
    assert [len(record.rounds) for record in trace.records] == [6, 6, 6]
    assert [record.end for record in trace.records] == ["limit"] * 3 and all(trace.metrics)
    assert [entry.end for entry in library.scan()] == ["done"]
    library.delete([library.scan()[0].id])
    keeper.take(rounds[0])
    assert library.scan() == []


def test_each_race_of_a_keeper_has_its_own_file_and_one_without_a_round_none(library: RunLibrary) -> None:
    keeper = RunKeeper(library)
    for event in race_events(rounds=0):
        keeper.take(event)
    keeper.close()
    assert keeper.path is None and library.scan() == [] and not library.folder.exists()
    for part in ("1 of 2", "2 of 2"):
        keeper.facts["part"] = part
        for event in race_events(rounds=3):
            keeper.take(event)
    assert {entry.part for entry in library.scan()} == {"1 of 2", "2 of 2"}
    assert all(entry.title.endswith(f"({entry.part})") for entry in library.scan())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_is_told_once_and_leaves_a_readable_file(
    library: RunLibrary, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    said: list[str] = []
    keeper = RunKeeper(library, on_trouble=said.append)
    real, room = os.write, [9000]

    def full(fd: int, data: bytes) -> int:
        if room[0] <= 0:
            raise OSError(code, os.strerror(code))
        written = real(fd, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", full)
    for event in [*race_events(), *race_events()]:
        keeper.take(event)
    assert len(said) == 1 and "stops here" in said[0] and "The run goes on" in said[0] and "\n" not in said[0]
    assert os.strerror(code).lower() in said[0]
    (entry,) = library.scan()
    trace = library.read(entry)
    assert not trace.cut and 0 < sum(len(record.rounds) for record in trace.records) < 36


def test_a_folder_that_cannot_be_made_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    said: list[str] = []
    keeper = RunKeeper(RunLibrary(tmp_path / "file" / "runs"), on_trouble=said.append)
    for event in [*race_events(rounds=3), *race_events(rounds=3)]:
        keeper.take(event)
    assert len(said) == 1 and "not kept" in said[0] and "\n" not in said[0]


def test_the_choice_not_to_keep_is_remembered(library: RunLibrary) -> None:
    for on in (False, True):
        library.set_keeps(on)
        assert RunLibrary(library.folder).keeps is on


# -- describing and searching --------------------------------------------------------------------------------


def test_names_notes_and_tags_stand_beside_the_trace_which_is_never_touched(library: RunLibrary) -> None:
    run_id = keep(library)
    path = library.folder / f"{run_id}.jsonl"
    before = path.read_bytes(), path.stat().st_mtime_ns
    library.describe(run_id, name="  my\n run ", note=" two\nlines ", tags=["a", "a", "  b  c ", ""])
    (entry,) = library.scan()
    assert (entry.name, entry.note, entry.tags) == ("my run", "two\nlines", ("a", "b c"))
    library.describe(run_id, note="")
    (entry,) = library.scan()
    assert (entry.name, entry.note, entry.tags) == ("my run", "", ("a", "b c"))
    library.describe(run_id, name="", tags=[])
    assert not list(library.folder.glob("*.about.json"))
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_names_and_notes_have_a_limit(library: RunLibrary) -> None:
    run_id = keep(library)
    with pytest.raises(UsageError, match="201 characters"):
        library.describe(run_id, name="x" * 201)
    with pytest.raises(UsageError, match="20,001 characters"):
        library.describe(run_id, note="x" * 20_001)
    with pytest.raises(SpecviewError, match="not in the library"):
        library.describe("2026-01-01-00000000", name="x")
    with pytest.raises(SpecviewError, match="not in the library"):
        library.describe("../outside", name="x")


def test_search_looks_at_all_that_is_known_of_a_run(library: RunLibrary) -> None:
    run_id = keep(library, settings=replace(SETTINGS, workload="extract"), rounds=2)
    library.describe(run_id, name="warm machine", note="again at night", tags=["tagged"])
    (entry,) = library.scan()
    assert entry.workload == "extract"
    for search in ("", "HI", "hi nothing", "prompt-lookup", "smollm2", "warm", "night", "tagged", "greedy", "processor", "extract transformers"):
        assert library.scan(search=search) == [entry], search
    for search in ("hi missing", "window-not"):
        assert not library.scan(search=search)


def test_a_run_is_found_by_id_beginning_end_name_and_place(library: RunLibrary) -> None:
    ids = [keep(library) for _ in range(3)]
    library.describe(ids[1], name="the middle one")
    for ref in (ids[1], ids[1].rpartition("-")[2], ids[1].rpartition("-")[2][:6], "the middle one", f"{ids[1]}.jsonl"):
        assert library.find(ref).id == ids[1]
    order = [entry.id for entry in library.scan()]
    assert [library.find(ref).id for ref in ("last", "last~1", "last~2")] == order
    for ref, says in (("last~3", "3 runs"), ("nothing", "no run 'nothing'"), ("", "no run"), (ids[0][:4], "means 3 runs")):
        with pytest.raises(UsageError, match=says):
            library.find(ref)


# -- deleting ------------------------------------------------------------------------------------------------


def test_delete_and_restore_are_each_others_undo(library: RunLibrary) -> None:
    ids = [keep(library) for _ in range(3)]
    library.describe(ids[0], name="kept name", tags=["t"])
    before = {entry.id: entry for entry in library.scan()}
    assert library.delete(ids[:2]) == ids[:2]
    assert [entry.id for entry in library.scan()] == [ids[2]]
    trash = {entry.id: entry for entry in library.scan(trash=True)}
    assert set(trash) == set(ids[:2]) and trash[ids[0]].name == "kept name" and trash[ids[0]].deleted_at
    assert library.delete(ids[:2]) == []  # gone already
    assert library.restore(ids[:2]) == ids[:2]
    assert {entry.id: entry for entry in library.scan()} == before
    assert library.scan(trash=True) == [] and library.restore(ids) == []


def test_restore_never_overwrites(library: RunLibrary) -> None:
    run_id = keep(library)
    library.delete([run_id])
    other = library.folder / f"{run_id}.jsonl"
    other.write_bytes(b"another")
    with pytest.raises(SpecviewError, match="holds a run"):
        library.restore([run_id])
    assert other.read_bytes() == b"another" and library.scan(trash=True)[0].id == run_id


def test_the_trash_is_emptied_of_what_is_old(library: RunLibrary) -> None:
    old, new = keep(library), keep(library)
    library.delete([old, new])
    about = library.trash / f"{old}.about.json"
    about.write_text(json.dumps({"deleted_at": "2020-01-01T00:00:00+00:00"}))
    assert library.empty_trash(30) == 1
    assert [entry.id for entry in library.scan(trash=True)] == [new]
    assert library.empty_trash() == 1
    assert not [path for path in library.trash.iterdir() if path.name != "index.json"]


def test_ids_never_name_a_file_elsewhere(library: RunLibrary, tmp_path: Path) -> None:
    keep(library)
    outside = write_trace(tmp_path / "outside.jsonl")
    assert library.delete(["../outside", str(outside), "", ".."]) == []
    assert library.restore(["../../outside"]) == [] and outside.exists()


def test_on_a_full_disk_runs_go_to_the_trash_and_come_back(library: RunLibrary) -> None:
    resource = pytest.importorskip("resource")
    first, second = keep(library), keep(library)
    library.describe(first, name="mine", note="a note")
    held, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # no byte can be written to any file
    try:
        with pytest.raises(SpecviewError, match="cannot write"):
            library.describe(second, name="other")
        assert library.delete([first, second]) == [first, second] and library.scan() == []
        gone = {entry.id: entry for entry in library.scan(trash=True)}
        assert gone[first].name == "mine" and gone[first].note == "a note" and not gone[first].deleted_at
        assert library.empty_trash(30) == 0  # nobody knows how long they are there
        assert library.restore([first]) == [first]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (held, hard))
    assert [(entry.id, entry.name) for entry in library.scan()] == [(first, "mine")]
    assert library.empty_trash(30) == 0
    assert library.scan(trash=True)[0].deleted_at  # there is room again: its days begin


# -- strange files -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recorded", ["0001-01-01T00:00:00+14:00", "0001-01-01", "9999-12-31T23:59:59-14:00", "99999-01-01", "\x1b"])
def test_a_run_of_no_possible_time_is_taken_in_listed_and_deleted(library: RunLibrary, tmp_path: Path, recorded: str) -> None:
    from specview.library.rows import run_row, when

    run_id = keep(library)
    path = write_trace(tmp_path / "a.jsonl", facts={"recorded_at": recorded})
    os.utime(path, (2.6e11, 2.6e11))  # in the year 10209
    entry = library.take_in(path)
    assert {one.id for one in library.scan()} == {run_id, entry.id}
    assert run_row(entry)["recorded"] is not None and isinstance(when(entry.recorded_at), str)
    assert library.delete([entry.id]) and library.empty_trash(30) == 0 and library.empty_trash() == 1


def test_one_strange_file_costs_itself_alone(library: RunLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    good, late, odd = keep(library), keep(library), keep(library)
    path = library.folder / f"{late}.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"recorded_at"', b'"recorded_to"'))
    os.utime(path, (2.6e11, 2.6e11))
    os.symlink("circle.jsonl", library.folder / "circle.jsonl")
    os.mkfifo(library.folder / "pipe.jsonl")
    os.mkfifo(library.folder / f"{good}.about.json")
    real = library_module.look_at

    def strange(path: Path) -> dict:
        if odd in path.name:
            raise ZeroDivisionError("of a kind\nnobody thought of")
        return real(path)

    monkeypatch.setattr(library_module, "look_at", strange)
    problems = {entry.id: entry.problem for entry in library.scan()}
    assert problems.pop(good) == problems.pop(late) == ""
    assert problems.pop(odd) == f"{odd}.jsonl cannot be listed: ZeroDivisionError: of a kind nobody thought of."
    assert set(problems) == {"circle", "pipe"} and all(problems.values())
    monkeypatch.setattr(library_module, "look_at", real)
    assert {entry.id: entry.problem for entry in library.scan()}[odd] == ""  # what failed is not remembered


# -- taking in -----------------------------------------------------------------------------------------------


def test_a_trace_from_elsewhere_is_copied_in(library: RunLibrary, tmp_path: Path) -> None:
    path = write_trace(tmp_path / "from elsewhere.jsonl")
    entry = library.take_in(path)
    assert entry.title == "from elsewhere" and entry.path.read_bytes() == path.read_bytes() and path.exists()
    (tmp_path / "other.json").write_text('{"a": 1}\n')
    with pytest.raises(SpecviewError, match="not the header"):
        library.take_in(tmp_path / "other.json")
    assert len(library.scan()) == 1 and not list(library.folder.glob("*.tmp"))


# -- the index -----------------------------------------------------------------------------------------------


def test_files_that_did_not_change_are_not_read_again(library: RunLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(4):
        keep(library)
    read: list[str] = []
    real = library_module.look_at
    monkeypatch.setattr(library_module, "look_at", lambda path: (read.append(path.name), real(path))[1])
    first = library.scan()
    assert len(read) == 4
    assert library.scan() == first and len(read) == 4
    run_id = keep(library)
    assert len(library.scan()) == 5 and read[4:] == [f"{run_id}.jsonl"]
    library.describe(run_id, name="new")
    assert library.scan() and len(read) == 5


def test_of_a_long_file_only_the_first_and_last_lines_are_read(library: RunLibrary) -> None:
    run_id = keep(library, rounds=400)
    path = library.folder / f"{run_id}.jsonl"
    whole = library_module.look_at(path)
    data = bytearray(path.read_bytes())
    middle = slice(data.index(b"\n") + 5000, len(data) - (140 << 10))
    assert middle.stop - middle.start > 100_000
    data[middle] = b"?" * (middle.stop - middle.start)
    path.write_bytes(data)
    assert library_module.look_at(path) == whole


def _sqlite(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)


@pytest.mark.parametrize("damage", [
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(b"no database, long enough to be one" * 100),
    lambda path: path.write_bytes(path.read_bytes()[:3000]),
    lambda path: path.write_bytes(path.read_bytes()[:4096] + b"?" * (path.stat().st_size - 4096)),
    lambda path: _sqlite(path, "DROP TABLE runs"),
    lambda path: _sqlite(path, "DROP TABLE words"),
    lambda path: _sqlite(path, "PRAGMA user_version = 99"),
    lambda path: _sqlite(path, "UPDATE runs SET known = '{}'"),
    lambda path: _sqlite(path, "UPDATE runs SET known = '[[1, 2], {\"nme\": 1}, {}]'"),
    lambda path: path.unlink(),
    lambda path: (path.unlink(), path.mkdir()),
    lambda path: path.with_name("index.json").write_text('{"schema": "specview.runs-index/2", "files": {}}'),
])  # fmt: skip
def test_a_damaged_index_is_made_anew(library: RunLibrary, damage: Callable[[Path], object]) -> None:
    library.describe(keep(library), name="mine")
    before = library.scan()
    damage(library.folder / "index.sqlite3")
    for _ in range(2):
        assert library.scan() == before == library.scan(search="MINE smollm2") and not library.scan(search="mine absent")


@pytest.mark.parametrize("lock", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_an_index_that_another_program_holds_delays_nothing_but_changes(
    library: RunLibrary, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    for name in ("READ_TIMEOUT_S", "LOCK_TIMEOUT_S"):
        monkeypatch.setattr(library_module, name, 0.02)
    library.describe(keep(library), name="listed")
    library.scan()
    new = keep(library)
    with contextlib.closing(sqlite3.connect(library.folder / "index.sqlite3", isolation_level=None)) as other:
        other.execute(lock)
        assert len(library.scan()) == 2 and [entry.name for entry in library.scan(search="liste")] == ["listed"]
        with pytest.raises(SpecviewError, match="another specview is changing"):
            library.describe(new, name="x")
    library.describe(new, name="x")
    library.scan()
    assert library.search("x\0") == {new} and library.search("is") == library.search("LISTED") != {new}


def test_without_full_text_search_the_same_is_found(library: RunLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    class Old(sqlite3.Connection):
        def execute(self, sql: str, *rest: object) -> sqlite3.Cursor:
            return super().execute(sql.replace("fts5", "fts99"), *rest)

    real = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **how: real(path, factory=Old, **how))
    library.describe(keep(library), note='a "quoted" Straße')
    assert [bool(library.scan(search=words)) for words in ('"quo', "STRASSE a", "d\" s", "quotes")] == [True, True, True, False]


def test_a_damaged_sidecar_costs_its_words_only(library: RunLibrary) -> None:
    run_id = keep(library)
    for content in ('{"name": 3, "note": [], "tags": "x"}', "nonsense", "[]", '{"tags": [1, "a"]}'):
        (library.folder / f"{run_id}.about.json").write_text(content)
        (entry,) = library.scan()
        assert entry.name == "" and entry.note == "" and entry.tags in ((), ("a",))


def test_unreadable_files_are_listed_with_one_line(library: RunLibrary) -> None:
    keep(library)
    (library.folder / "2026-01-01-0000000a.jsonl").write_bytes(b"\x00\x01 binary")
    (library.folder / "2026-01-01-0000000b.jsonl").write_bytes(b"")
    (library.folder / "2026-01-01-0000000c.jsonl").mkdir()
    (library.folder / "2026-01-01-0000000d.jsonl").write_text('{"schema": "specview.trace/9"}\n')
    problems = {entry.id[-1]: entry.problem for entry in library.scan() if entry.problem}
    assert {key: words in problems[key] for key, words in
            (("a", "not the header"), ("b", "empty"), ("c", "folder"), ("d", "specview.trace/9"))} == dict.fromkeys("abcd", True)  # fmt: skip
    assert not any("\n" in problem for problem in problems.values())
    assert library.delete(["2026-01-01-0000000a"]) and len(library.scan()) == 4


def test_a_folder_that_only_can_be_read_still_lists(library: RunLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(library)

    def refuse(*arguments: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    assert len(library.scan()) == 1
    with pytest.raises(SpecviewError, match="cannot write .*permission denied"):
        library.describe(library.scan()[0].id, name="x")
    assert library.scan()[0].name == ""


# -- two specviews at once -----------------------------------------------------------------------------------


def test_two_processes_that_change_the_same_runs_lose_none(library: RunLibrary) -> None:
    ids = [keep(library, rounds=2) for _ in range(3)]
    before = {run_id: (library.folder / f"{run_id}.jsonl").read_bytes() for run_id in ids}
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=change, args=(str(library.folder), ids, seed)) for seed in (1, 2)]
    for other in others:
        other.start()
    for other in others:
        other.join(60)
    assert [other.exitcode for other in others] == [0, 0]
    library.restore(ids)
    assert {run_id: (library.folder / f"{run_id}.jsonl").read_bytes() for run_id in ids} == before
    assert {entry.note for entry in library.scan()} <= {"1 2", "2 2"} and not list(library.folder.glob("*.tmp"))
