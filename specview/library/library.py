"""The runs library: every kept run is a trace file in the user's data folder, with what the user says of it beside it.

`<date>-<id>.jsonl` is the trace and never changed after its run; `<date>-<id>.about.json` holds name, note and
tags, once there are any. `index.sqlite3` remembers what both say, by size and time of change: it may be deleted at any
moment. Deleted runs wait in `trash/`. Every change is made under the index's lock and by replacing whole files, so
several specviews may use one library.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

from specview.decoding.speedup import Speedup
from specview.disk import ABANDONED_S, PartFile, private_folder, write_whole
from specview.drafting.plain import BASELINE
from specview.errors import SpecviewError, Stopped, UsageError
from specview.files.atomic import cannot_write
from specview.files.folders import data_folder
from specview.files.reader import Trace, cannot_read, first_line, parse_header, read_trace
from specview.files.verdict import fastest
from specview.library.index import Known, RunIndex, with_index
from specview.reading import open_regular
from specview.settings.branch import known_branch

log = logging.getLogger(__name__)

ENVIRONMENT = "SPECVIEW_DATA"
_LEFT = re.compile(r"\.[0-9a-f]{8}\.specview-part$|\.\d+(-[0-9a-f]{4})?\.tmp$|^index\.json$")
"""What killed writers left, and what older versions did."""
SUFFIX = ".jsonl"
ABOUT = ".about.json"
TRASH = "trash"
INDEX = "index.sqlite3"
TRASH_DAYS = 30
SEARCHED_CHARS = 20_000
"""Of each prompt: what a search looks through."""
LONGEST_NAME, LONGEST_NOTE = 200, 20_000
LOCK_TIMEOUT_S, READ_TIMEOUT_S = 10.0, 1.0
_TAIL_BYTES = 128 << 10
_ABOUT_BYTES = 1 << 20
_FIGURES = (
    "rounds", "emitted", "decode_tokens_per_s", "tokens_per_target_pass", "acceptance_rate", "draft_acceptance",
    "total_s", "ttft_s", "draft_share",
)  # fmt: skip
_ROUND_LINE = re.compile(rb'\{"lane": ?(\d+), ?"index"')

Tell = Callable[[str, "float | None"], None]
ShouldStop = Callable[[], bool]


def runs_folder() -> Path:
    """Return the library's folder (not created), `runs` in the user's data folder ($SPECVIEW_DATA, or the platform's)."""
    return data_folder("runs")


@dataclass(frozen=True, slots=True)
class LaneFacts:
    """What the list shows of one lane; figures are those of its end line, absent where there is none."""

    name: str
    method: str = ""
    k: int | None = None
    rule: str = ""
    draft: str = ""
    end: str | None = None
    speedup: float | None = None
    spread: Sequence[float] | None = None
    equal: bool | None = None
    figures: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def plain(self) -> bool:
        """Whether this is plain decoding."""
        return self.method == BASELINE


@dataclass(frozen=True, slots=True)
class Entry:
    """One run of the library, as its file's first and last lines and the user tell it.

    name, note and tags are the user's; `problem` says in one line why the file is no readable trace. size is in
    bytes, recorded_at an ISO 8601 time. Of a branch, parent is the run that it goes on from ('' where that was not kept),
    continues where, in words. deleted_at is set for what is in the trash.
    """

    id: str
    path: Path
    size: int
    recorded_at: str
    name: str = ""
    note: str = ""
    tags: tuple[str, ...] = ()
    prompt: str = ""
    workload: str = ""
    target: str = ""
    engine: str = ""
    device: str = ""
    source: str = ""
    part: str = ""
    parent: str = ""
    continues: str = ""
    end: str = ""
    lanes: tuple[LaneFacts, ...] = ()
    problem: str = ""
    deleted_at: str = ""

    @property
    def methods(self) -> str:
        """The lanes' names but plain's; plain's where it is the only one."""
        names = [lane.name for lane in self.lanes if not lane.plain] or [lane.name for lane in self.lanes]
        return ", ".join(names)

    @property
    def title(self) -> str:
        """The user's name of it, else what was run: workload or the prompt's first words, and the methods."""
        if self.name:
            return self.name
        if self.problem:
            return self.path.name
        words = " ".join(self.prompt[:400].split())
        what = self.workload or (f"{words[:40]}…" if len(words) > 40 else words) or "(empty prompt)"
        parts = ", ".join(filter(None, ("a branch" if self.continues else "", self.part)))
        return f"{what}: {self.methods}" + (f" ({parts})" if parts else "")

    def best(self) -> tuple[LaneFacts | None, bool]:
        """The lane ahead, as the sentence on the run has it, and whether clearly; without speedups that with the most tok/s."""
        found = [self.faster(lane) for lane in self.lanes]
        known = {place: one.value for place, one in enumerate(found) if one is not None}
        if known:
            ahead = fastest(found, next((place for place, lane in enumerate(self.lanes) if lane.plain), None))
            return self.lanes[max(known, key=known.__getitem__) if ahead is None else ahead], ahead is not None
        rated = [(rate, lane) for lane in self.lanes if (rate := lane.figures.get("decode_tokens_per_s"))]
        return (max(rated, key=lambda pair: pair[0])[1], True) if rated else (None, False)

    def faster(self, lane: LaneFacts) -> Speedup | None:
        """A lane's recorded speedup with what it is the ratio of; None of plain, and where it was not recorded."""
        plain = next((one.figures for one in self.lanes if one.plain), {})
        return Speedup.recorded(lane.speedup, lane.spread, lane.figures, plain)

    @property
    def searched(self) -> str:
        """What a search looks through: all that is known of the run, in one case."""
        lanes = (f"{lane.name} {lane.method} {lane.rule} {lane.draft}" for lane in self.lanes)
        known = (
            self.id, self.title, self.note, *self.tags, self.workload, self.target, self.engine, self.device,
            self.prompt, self.recorded_at, self.continues, self.end, self.problem, *lanes,
        )  # fmt: skip
        return "\n".join(known).casefold()


class RunLibrary:
    """The runs of one folder. Cheap to make; nothing is read or created before it is asked for."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or runs_folder()
        self.trash = self.folder / TRASH

    # -- keeping ---------------------------------------------------------------------------------

    @property
    def keeps(self) -> bool:
        """Whether finished runs are kept: the user's standing choice, yes at first."""
        return _read_json(self.folder / "settings.json").get("keep") is not False

    def set_keeps(self, on: bool) -> None:
        """Choose whether finished runs are kept from now on."""
        with self._changing():
            _replace(self.folder / "settings.json", {"keep": bool(on)})

    def new_path(self, when: datetime | None = None) -> Path:
        """Return the path of a run that begins now; makes the folder. Raises SpecviewError."""
        self._make(self.folder)
        self._make(self.trash)  # while there is room for a folder: on a full disk a run can still be moved there
        day = (when or datetime.now()).strftime("%Y-%m-%d")
        while True:
            path = self.folder / f"{day}-{secrets.token_hex(4)}{SUFFIX}"
            if not path.exists() and not (self.trash / path.name).exists():
                return path

    # -- reading ---------------------------------------------------------------------------------

    def scan(
        self,
        *,
        trash: bool = False,
        search: str = "",
        tell: Tell = lambda text, fraction: None,
        should_stop: ShouldStop = lambda: False,
    ) -> list[Entry]:
        """List the runs, newest first, or those in which all words of `search` occur (parts of words, in any case).

        Of each file only the first and last lines are read, and those only once. Raises SpecviewError where the folder
        cannot be read, Stopped.
        """
        folder = self.trash if trash else self.folder
        try:
            with os.scandir(folder) as found:
                files = dict(_stats(found))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SpecviewError(
                f"cannot read the runs library {str(folder)!r}: {error.strerror}.", f"Set {ENVIRONMENT} to another folder."
            ) from None
        for name, status in files.items():
            if _LEFT.search(name) and time.time() - status.st_ctime > ABANDONED_S:
                with contextlib.suppress(OSError):
                    (folder / name).unlink()

        def listed(index: RunIndex) -> list[Entry]:
            entries = self._entries(index, folder, files, tell, should_stop)
            found = index.search(folder.name, search) if search.strip() else None
            return [entry for entry in entries if found is None or entry.path.name in found]

        entries = with_index(self.folder / INDEX, READ_TIMEOUT_S, listed)
        return sorted(entries, key=lambda entry: (_instant(entry.deleted_at or entry.recorded_at), entry.id), reverse=True)

    def _entries(
        self, index: RunIndex, folder: Path, files: Mapping[str, os.stat_result], tell: Tell, should_stop: ShouldStop
    ) -> list[Entry]:
        """The runs among these files; the index then knows them, and no others of the folder."""
        known = index.known(folder.name)
        entries: list[Entry] = []
        fresh: list[tuple[str, Known, str]] = []
        traces = [name for name in files if name.endswith(SUFFIX)]
        for done, name in enumerate(traces):
            if should_stop():
                raise Stopped
            if done % 50 == 0:
                tell("Reading the runs library", done / len(traces))
            status, path = files[name], folder / name
            about_name = name.removesuffix(SUFFIX) + ABOUT
            about = _read_json(folder / about_name) if about_name in files else {}
            if folder != self.trash:
                about.pop("deleted_at", None)  # it came back while nothing could be written
            stamp, held = [status.st_size, status.st_mtime_ns], known.get(name)
            try:
                facts = held.facts if held is not None and held.stamp == stamp else look_at(path)
                entry = _entry(path, status, facts, about)
            except Exception as error:  # a strange file costs itself alone, not the list
                log.exception("%s cannot be listed", path)
                why = f"{name} cannot be listed: {' '.join(f'{type(error).__name__}: {error}'.split())[:200]}."
                stamp, facts, about = [], {"problem": why}, {}
                entry = _entry(path, status, facts, about)
            entries.append(entry)
            if (now := Known(stamp, facts, about)) != held:
                fresh.append((name, now, entry.searched))
        index.keep(folder.name, fresh, known.keys() - traces)
        return entries

    def search(self, words: str, *, trash: bool = False) -> set[str]:
        """The ids of the runs listed last in which every one of the words occurs."""
        folder = self.trash if trash else self.folder
        if not folder.is_dir():
            return set()
        found = with_index(self.folder / INDEX, READ_TIMEOUT_S / 10, lambda index: index.search(folder.name, words))
        return {name.removesuffix(SUFFIX) for name in found}

    def find(self, ref: str, *, trash: bool = False, entries: Sequence[Entry] | None = None) -> Entry:
        """Return the run that `ref` names: an id, its beginning or end, a name, `last` or `last~N`.

        Raises UsageError where none or several are meant.
        """
        found = self.scan(trash=trash) if entries is None else list(entries)
        where = "the trash" if trash else "the runs library"
        if (back := re.fullmatch(r"last(?:~(\d+))?", ref)) is not None:
            place = int(back[1] or 0)
            if place >= len(found):
                raise UsageError(f"{where} holds {len(found)} run{'' if len(found) == 1 else 's'}.", "specview runs list shows them.")
            return found[place]
        exact = [entry for entry in found if ref in (entry.id, entry.path.name, entry.name)]
        close = exact or [entry for entry in found if entry.id.startswith(ref) or entry.id.rpartition("-")[2].startswith(ref)]
        if not ref or not close:
            raise UsageError(f"{where} holds no run {ref!r}.", f"specview runs list{' --trash' if trash else ''} shows them.")
        if len(close) > 1:
            some = ", ".join(entry.id for entry in close[:4])
            raise UsageError(f"{ref!r} means {len(close)} runs ({some}{', ...' if len(close) > 4 else ''}).", "Give a whole id.")
        return close[0]

    def read(self, entry: Entry) -> Trace:
        """Read a run's whole trace."""
        return read_trace(entry.path)

    # -- changing --------------------------------------------------------------------------------

    def describe(
        self, run_id: str, *, name: str | None = None, note: str | None = None, tags: Sequence[str] | None = None
    ) -> None:
        """Set a run's name, note or tags; None leaves one as it is. Raises SpecviewError."""
        if name is not None and len(name) > LONGEST_NAME:
            raise UsageError(f"the name has {len(name):,} characters.", f"Use up to {LONGEST_NAME}, and a note for more.")
        if note is not None and len(note) > LONGEST_NOTE:
            raise UsageError(f"the note has {len(note):,} characters.", f"Use up to {LONGEST_NOTE:,}.")
        with self._changing():
            if not _plain_id(run_id) or not (self.folder / f"{run_id}{SUFFIX}").exists():
                line = f"the run {run_id!r} is not in the library any more."
                raise SpecviewError(line, "specview runs list shows what is.")
            about = _read_json(self.folder / f"{run_id}{ABOUT}")
            if name is not None:
                about["name"] = " ".join(name.split())
            if note is not None:
                about["note"] = note.strip()
            if tags is not None:
                about["tags"] = list(dict.fromkeys(" ".join(tag.split()) for tag in tags if tag.strip()))
            self._set_about(self.folder, run_id, about)

    def delete(self, run_ids: Sequence[str]) -> list[str]:
        """Move runs to the trash; returns the ids moved. Those that are gone already are no error."""
        return self._move(run_ids, self.folder, self.trash)

    def restore(self, run_ids: Sequence[str]) -> list[str]:
        """Bring runs back from the trash; returns the ids that are back."""
        return self._move(run_ids, self.trash, self.folder)

    def _move(self, run_ids: Sequence[str], folder: Path, to: Path) -> list[str]:
        """Move runs' files by their names alone: that takes no room, which a full disk has not."""
        moved: list[str] = []
        with self._changing():
            self._make(to)
            for run_id in run_ids:
                path = folder / f"{run_id}{SUFFIX}"
                if not _plain_id(run_id) or not path.exists():
                    continue
                if to == self.folder:
                    if (to / path.name).exists():
                        line = f"the library holds a run {run_id} already."
                        raise SpecviewError(line, "Delete or rename that one first.")
                    self._note_deleted(run_id, "")
                os.replace(path, to / path.name)
                with contextlib.suppress(FileNotFoundError):
                    os.replace(folder / f"{run_id}{ABOUT}", to / f"{run_id}{ABOUT}")
                if to == self.trash:
                    self._note_deleted(run_id, _now())
                moved.append(run_id)
        return moved

    def empty_trash(self, older_than_days: float = 0) -> int:
        """Remove what was deleted longer ago than that, for good; returns how many runs."""
        if not self.trash.is_dir():
            return 0
        limit = (datetime.now() - timedelta(days=older_than_days)).timestamp()
        gone = 0
        with self._changing():
            for path in self.trash.glob(f"*{SUFFIX}"):
                run_id = path.name.removesuffix(SUFFIX)
                since = _text(_read_json(self.trash / f"{run_id}{ABOUT}").get("deleted_at"))
                if older_than_days and not since:
                    self._note_deleted(run_id, _now())  # its days begin once that can be written
                    continue
                if older_than_days and _instant(since) > limit:
                    continue
                path.unlink(missing_ok=True)
                (self.trash / f"{run_id}{ABOUT}").unlink(missing_ok=True)
                gone += 1
        return gone

    def take_in(
        self, path: Path, tell: Callable[[float], None] = lambda fraction: None, should_stop: ShouldStop = lambda: False
    ) -> Entry:
        """Copy a trace from elsewhere into the library, its lines checked; raises SpecviewError where it is none, Stopped."""
        trace = read_trace(path, tell, should_stop, keep="nothing")
        recorded = trace.run.get("recorded_at")
        when = _instant(recorded) if isinstance(recorded, str) else 0.0
        with self._changing():
            to = self.new_path(_local(when or path.stat().st_mtime))
            try:
                with open_regular(path) as file, PartFile(to, private=True) as part:
                    shutil.copyfileobj(file, part.file)
                    shutil.copystat(path, part.path)
                    part.put()
            except OSError as error:
                raise cannot_write(to, "run", error) from None
            run_id = to.name.removesuffix(SUFFIX)
            self._set_about(self.folder, run_id, {"name": " ".join(path.stem.split())[:LONGEST_NAME]})
        return self.find(run_id)

    def size_bytes(self) -> int:
        """What library and trash take on the disk."""
        total = 0
        for folder in (self.folder, self.trash):
            with contextlib.suppress(OSError), os.scandir(folder) as found:
                total += sum(item.stat().st_size for item in found if item.is_file(follow_symlinks=False))
        return total

    # -- files -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the library's lock; an OSError meanwhile becomes one line."""
        self._make(self.folder)
        with contextlib.ExitStack() as held:
            try:
                index = held.enter_context(RunIndex(self.folder / INDEX, LOCK_TIMEOUT_S))
                held.enter_context(index.changing())
            except sqlite3.Error as error:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                    raise SpecviewError("another specview is changing the runs library.", "Try again.") from None
                # What cannot be written says so itself.
                log.warning("the runs library is changed without a lock: %s", error)
            try:
                yield
            except OSError as error:
                raise cannot_write(error.filename or self.folder, "runs library", error) from None

    def _make(self, folder: Path) -> None:
        try:
            private_folder(folder)  # prompts are nobody else's
        except OSError as error:
            raise SpecviewError(
                f"cannot make the folder {str(folder)!r} for kept runs: {error.strerror}.",
                f"Set {ENVIRONMENT} to another folder, or keep no runs (--no-keep; in the window: Runs).",
            ) from None

    def _note_deleted(self, run_id: str, when: str) -> None:
        """Write down since when a run is in the trash ('' where it leaves it), if the disk takes it."""
        about = _read_json(self.trash / f"{run_id}{ABOUT}")
        try:
            self._set_about(self.trash, run_id, {**about, "deleted_at": when})
        except OSError as error:
            log.warning("when %s was deleted is not written down: %s", run_id, error)

    def _set_about(self, folder: Path, run_id: str, about: Mapping[str, Any]) -> None:
        path = folder / f"{run_id}{ABOUT}"
        kept = {key: value for key, value in about.items() if value}
        if kept:
            _replace(path, kept)
        else:
            path.unlink(missing_ok=True)


def look_at(path: Path) -> dict[str, Any]:
    """What the first and the last lines of a trace say, as JSON values; {"problem": one line} where it is none."""
    try:
        with open_regular(path) as file:
            first, _ = first_line(file, path.name)
            trace = parse_header(first, path.name)
            ends = _last_ends(file, len(first))
    except OSError as error:
        return {"problem": str(cannot_read(path.name, error))}
    except SpecviewError as error:
        return {"problem": str(error)}
    run = trace.run
    first_lane = trace.records[0].settings
    race: Mapping[str, Any] = next((end["race"] for end in ends.values() if isinstance(end.get("race"), dict)), {})
    return {
        "recorded_at": _text(run.get("recorded_at")),
        "prompt": trace.prompt_text[:SEARCHED_CHARS].encode("utf-8", "replace").decode("utf-8"),
        "workload": _text(first_lane.get("workload")),
        "target": _text(run.get("target_model_name")) or _text(first_lane.get("target")),
        "engine": _text(run.get("engine")) or _text(first_lane.get("engine")),
        "device": _text(run.get("device_name")) or _text(run.get("device")),
        "source": _text(run.get("source")),
        "part": _text(run.get("part")),
        **_branch_facts(run),
        "end": _text(race.get("end")) or ("done" if len(ends) == len(trace.records) else "unfinished"),
        "lanes": [
            _lane_facts(record.name, record.settings, ends.get(index, {})) for index, record in enumerate(trace.records)
        ],
    }


def _branch_facts(run: Mapping[str, Any]) -> dict[str, str]:
    branch = known_branch(run)
    return {} if branch is None else {"parent": _text(branch.run), "continues": _text(branch.words)}


def _lane_facts(name: str, settings: Mapping[str, Any], end: Mapping[str, Any]) -> dict[str, Any]:
    metrics = end.get("metrics") if isinstance(end.get("metrics"), dict) else {}
    equal, spread = end.get("equal_to_plain"), end.get("speedup_spread")
    k = settings.get("k")
    return {
        "name": _text(name),
        "method": _text(settings.get("method")),
        "k": k if type(k) is int else None,
        "rule": _text(settings.get("rule")),
        "draft": _text(settings.get("draft")),
        "end": _text(end.get("end")) or None,
        "speedup": _real(end.get("speedup")),
        "spread": spread if isinstance(spread, list) and len(spread) == 2 and None not in map(_real, spread) else None,
        "equal": equal.get("equal") if isinstance(equal, dict) and isinstance(equal.get("equal"), bool) else None,
        "figures": {key: _real(metrics.get(key)) for key in _FIGURES} if metrics else {},
    }


def _last_ends(file: BinaryIO, header_bytes: int) -> dict[int, dict[str, Any]]:
    """The end lines among the last lines, by lane; one that more rounds followed is none any more."""
    size = os.fstat(file.fileno()).st_size
    start = max(header_bytes, size - _TAIL_BYTES)
    file.seek(start)
    lines = file.read(_TAIL_BYTES).split(b"\n")[1:]  # the first is the header's end or a part of a line
    found: dict[int, dict[str, Any]] = {}
    for line in lines:
        if (begun := _ROUND_LINE.match(line)) is not None:
            found.pop(int(begun[1]), None)
            continue
        if b'"end"' not in line:
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and type(value.get("lane")) is int and "end" in value:
            found[value["lane"]] = value
    return found


def _entry(path: Path, status: os.stat_result, facts: Mapping[str, Any], about: Mapping[str, Any]) -> Entry:
    tags = about.get("tags")
    changed = _local(status.st_mtime)
    return Entry(
        **{
            **facts,
            "id": path.name.removesuffix(SUFFIX),
            "path": path,
            "size": status.st_size,
            "recorded_at": facts.get("recorded_at") or ("" if changed is None else changed.isoformat(timespec="seconds")),
            "name": _text(about.get("name")),
            "note": _text(about.get("note")),
            "tags": tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else (),
            "deleted_at": _text(about.get("deleted_at")),
            "lanes": tuple(LaneFacts(**lane) for lane in facts.get("lanes", ())),
        }
    )


def _stats(found: Iterable[os.DirEntry[str]]) -> Iterator[tuple[str, os.stat_result]]:
    for item in found:
        if item.name.endswith((SUFFIX, ABOUT)) or _LEFT.search(item.name):
            try:
                yield item.name, item.stat()
            except FileNotFoundError:
                continue  # deleted by another specview since the folder was listed
            except OSError:
                yield item.name, item.stat(follow_symlinks=False)  # a link in a circle: reading it will say so


def _read_json(path: Path) -> dict[str, Any]:
    """A small JSON object; {} where there is none that can be read."""
    try:
        with open_regular(path) as file:
            found = json.loads(file.read(_ABOUT_BYTES))
    except (OSError, ValueError, RecursionError, MemoryError):
        return {}
    return found if isinstance(found, dict) else {}


def _replace(path: Path, value: Mapping[str, Any]) -> None:
    """Put a JSON file in place as a whole; raises OSError, leaving an earlier one as it was."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    write_whole(path, text.encode("utf-8", "replace"), private=True)


def _plain_id(run_id: str) -> bool:
    """Whether this is the name of a file in the folder itself."""
    return bool(run_id) and Path(run_id).name == run_id and run_id not in (".", "..")


def _text(value: Any) -> str:
    """A string that can be written as UTF-8; '' for anything else."""
    return value.encode("utf-8", "replace").decode("utf-8") if isinstance(value, str) else ""


def _real(value: Any) -> float | None:
    return value if type(value) in (int, float) and abs(value) < 1e300 else None


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="milliseconds")


def _local(seconds: float) -> datetime | None:
    """The local time of so many seconds since the epoch; None for a year that no calendar here has."""
    try:
        return datetime.fromtimestamp(seconds).astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def _instant(text: str) -> float:
    """Seconds since the epoch of an ISO 8601 time; 0 for what is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return 0.0
