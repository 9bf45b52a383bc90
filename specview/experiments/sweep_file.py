"""The file of a sweep (JSON Lines, schema specview.sweep/1): every race is on disk before the next one begins.

First line: {"schema", "made", "version", "grid"}. Then {"lane", "facts"} at each lane's first race, and a line per race
(`CellRun`). A crash or a full disk loses at most the last line; a file that was cut short still opens.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specview import __version__
from specview.disk import Closing
from specview.errors import SpecviewError, UsageError
from specview.experiments.sweep_curves import CellRun
from specview.experiments.sweep_grid import Grid, difference
from specview.experiments.sweep_results import SweepResults
from specview.files.atomic import cannot_write, os_reason
from specview.files.folders import data_folder
from specview.files.schema import dumps, plain
from specview.reading import read_bytes

SCHEMA = "specview.sweep/1"
MAX_FILE_BYTES = 1 << 30


class SweepFile(Closing):
    """A sweep's file being written; `results` is what is in it.

    Use `begin` for a new one and `resume` to go on with one. Until it is closed no other SweepFile can be made of the
    path, in this process or another: two writers would write over one another. Every method raises SpecviewError, one line.
    """

    def __init__(self, path: Path, results: SweepResults, length: int) -> None:
        self.path = path
        self.results = results
        self._length = length
        self._held = contextlib.ExitStack()
        try:
            mode = 0o666 & path.parent.stat().st_mode  # the prompts in it are no more open than its folder
            self._fd: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0), mode)
            with contextlib.suppress(OSError):  # a device: nothing to cut
                os.ftruncate(self._fd, length)
            if length:  # the last line that is kept may lack its line break alone
                os.lseek(self._fd, length - 1, os.SEEK_SET)
                os.write(self._fd, b"\n")
        except OSError as error:
            raise cannot_write(path, "sweep", error) from None

    @classmethod
    def begin(cls, path: str | Path, grid: Grid) -> SweepFile:
        """Make a new file; one that is there already is never overwritten."""
        path = Path(path)
        with contextlib.ExitStack() as stack:
            stack.callback(_lock(path))
            refuse_taken(path)
            made = datetime.now(UTC).isoformat(timespec="seconds")
            file = cls(path, SweepResults(grid, made=made), 0)
            file._line({"schema": SCHEMA, "made": made, "version": __version__, "grid": grid.to_json()})
            file._held = stack.pop_all()
        return file

    @classmethod
    def resume(cls, path: str | Path, grid: Grid | None = None, *, trust: bool = False) -> SweepFile:
        """Open a file to go on with it; a grid that is not the file's is refused, with what sets them apart.

        Without a grid the file's own is run: what names another file is left out of it (`racing.resolve`). Trust in code
        that comes with the target is in no file, and given anew.
        """
        path = Path(path)
        with contextlib.ExitStack() as stack:
            stack.callback(_lock(path))
            results, length = _read(path, own=grid is not None)  # with the lock held: nobody adds a line behind it
            if grid is not None and (other := difference(grid, results.grid)):
                raise UsageError(
                    f"{str(path)!r} is a sweep of another grid: {other}.", "Give the same settings, or another file."
                )
            if trust:
                results.grid = replace(results.grid, settings=replace(results.grid.settings, trust_remote_code=True))
            file = cls(path, results, length)
            file._held = stack.pop_all()
        return file

    def check_facts(self, lane: int, facts: Mapping[str, Any]) -> None:
        """Write a lane's facts, or compare them with the file's: other weights make other results.

        What is of the prompt is left out: it is in the grid. So is the number format that an engine on a CPU chose by timing
        its products at load: every one of them keeps the stored weights whole.
        """
        facts = {key: value for key, value in facts.items() if not key.startswith("workload")}
        known = self.results.facts.get(lane)
        if known is None:
            self.results.facts[lane] = plain(facts)
            self._line({"lane": lane, "facts": facts})
            return
        chosen = self.results.grid.settings.dtype is None and facts.get("device") == "cpu"
        for key in sorted(set(known) & set(facts)):
            if chosen and key.endswith("_dtype") and {known[key], facts[key]} <= {"float32", "float16", "bfloat16"}:
                continue
            if key.endswith(("sha256", "_dtype")) or key in ("device", "device_name", "engine", "threads"):
                now = plain(facts[key])
                if known[key] != now:
                    raise SpecviewError(
                        f"the sweep cannot go on: {key} was {_short(known[key])} and is {_short(now)}.",
                        "Begin a new sweep.",
                    )

    def add(self, run: CellRun) -> CellRun:
        """Write one race and take it into the results; return it as the file has it."""
        line = run.to_json()
        self._line(line)
        kept = CellRun.from_json(line)
        self.results.add(kept)
        return kept

    def close(self) -> None:
        """Close the file, and let others have it."""
        fd, self._fd = self._fd, None
        try:
            if fd is not None:
                os.close(fd)
        finally:
            self._held.close()

    def _line(self, value: Mapping[str, Any]) -> None:
        assert self._fd is not None
        data = (dumps(plain(value)) + "\n").encode("utf-8")
        done = 0
        try:
            while done < len(data):
                done += os.write(self._fd, data[done:])
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._length)  # no half line
                os.lseek(self._fd, self._length, os.SEEK_SET)
            raise cannot_write(self.path, "sweep", error) from None
        self._length += len(data)


def refuse_taken(path: Path) -> None:
    """Raise UsageError where a file of this name holds something."""
    if path.is_file() and path.stat().st_size:
        raise UsageError(f"{str(path)!r} is there already.", "Resume it (--resume), or choose another name.")


def _lock(path: Path) -> Callable[[], None]:
    """Keep others off a sweep's file; returns what lets it go. Raises SpecviewError where another sweep writes it.

    The lock is a file beside it, removed when let go; after a crash the next writer takes it over.
    """
    from filelock import FileLock, Timeout

    real = Path(os.path.realpath(path))
    if not real.parent.is_dir() or (real.exists() and not real.is_file()):  # nothing to lock, or a device
        return lambda: None
    name = real.with_name(f".{real.name}.lock")
    lock = FileLock(name, thread_local=False)
    try:
        lock.acquire(timeout=0)
        if not name.exists():  # its holder removed it in between: others would lock another file
            lock.release()
            lock.acquire(timeout=0)
    except Timeout:  # an OSError too, so caught first
        raise SpecviewError(
            f"{str(path)!r} is being written by another sweep.", "Wait until that one is done, or stop it."
        ) from None
    except (OSError, NotImplementedError):  # a folder that takes no new file, a disk without locks
        return lambda: None

    def let_go() -> None:
        with contextlib.suppress(OSError):  # Windows: not while it is open; filelock removes it there
            name.unlink()
        lock.release()

    return let_go


def new_path() -> Path:
    """A new sweep's place in the data folder, named by the time; raises SpecviewError where the folder cannot be made."""
    folder = data_folder("sweeps", make=True)
    name = f"{datetime.now():%Y-%m-%d %H.%M.%S}"
    path, number = folder / f"{name}.jsonl", 1
    while path.exists():
        number += 1
        path = folder / f"{name} ({number}).jsonl"
    return path


def read_sweep(path: str | Path) -> SweepResults:
    """Return what a sweep's file holds; raises SpecviewError, one line, for a file that is none or is damaged."""
    return _read(Path(path))[0]


def _read(path: Path, *, own: bool = False) -> tuple[SweepResults, int]:
    """The results and how many bytes of the file are whole lines, the last one's line break counted."""
    try:
        data = read_bytes(path, MAX_FILE_BYTES)
    except OSError as error:
        raise SpecviewError(f"cannot read the sweep {str(path)!r}: {os_reason(error)}.", "Check the file's name.") from None
    except ValueError:
        raise SpecviewError(f"{str(path)!r} is larger than {MAX_FILE_BYTES >> 30} GB.", "Choose a sweep's file.") from None
    header, *lines = data.split(b"\n")
    results = _read_header(path, header, own)
    rest = lines.pop() if lines else b""
    length = len(header) + 1
    for number, line in enumerate(lines, start=2):
        try:
            _take(results, json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if number == len(lines) + 1 and not rest:
                rest = line  # a last line that was overwritten or half flushed
                break
            raise SpecviewError(
                f"the sweep {str(path)!r} is damaged in line {number} ({_why(error)}).", "Take that line out, or begin a new sweep."
            ) from None
        length += len(line) + 1
    if rest:
        results.trouble = "its last line was cut short: that race is left out"
    return results, length


def _read_header(path: Path, line: bytes, own: bool) -> SweepResults:
    try:
        header = json.loads(line)
        schema = header["schema"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise SpecviewError(f"{str(path)!r} is no sweep.", "Choose a file that specview sweep wrote.") from None
    if schema != SCHEMA:
        newer = str(schema).startswith("specview.sweep/")
        raise SpecviewError(
            f"{str(path)!r} is a {schema} file; this specview reads {SCHEMA}.",
            "Update specview." if newer else "Choose a file that specview sweep wrote.",
        )
    try:
        return SweepResults(Grid.from_json(header["grid"], own=own), made=str(header.get("made") or ""))
    except SpecviewError as error:
        raise SpecviewError(f"the grid of {str(path)!r} cannot run here: {error.cause}", error.mend) from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SpecviewError(f"the grid of {str(path)!r} is damaged ({_why(error)}).", "Begin a new sweep.") from None


def _take(results: SweepResults, found: Any) -> None:
    if not isinstance(found, dict):
        raise TypeError("it is no object")
    if "facts" in found:
        results.facts[int(found["lane"])] = dict(found["facts"])
    else:
        results.add(CellRun.from_json(found))


def _why(error: Exception) -> str:
    return " ".join(str(error).split())[:120]


def _short(value: Any) -> str:
    text = str(value)
    return f"{text[:12]}…" if len(text) > 24 else text
