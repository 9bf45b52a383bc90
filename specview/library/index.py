"""The index of the runs library, in SQLite: what is known of each trace, and the text that a search looks through.

All of it follows from the files beside it, so it may be deleted at any moment. Its write lock is also the library's:
whoever changes files holds it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from specview.disk import Closing

log = logging.getLogger(__name__)

_VERSION = 3
_TRIGRAM = 3
_KEPT_OUT = {
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH,
}  # fmt: skip
"""Errors of an index that is in order and cannot be used now; all others are those of a damaged one."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Known:
    """What is remembered of a trace: size and time of change ([]: look again), what its lines and what its user say."""

    stamp: list[int]
    facts: dict[str, Any]
    about: dict[str, Any]


class RunIndex(Closing):
    """An open index; path None keeps it in memory. Methods raise sqlite3.Error; `with` closes it."""

    def __init__(self, path: Path | None, timeout_s: float) -> None:
        self._db = sqlite3.connect(path or ":memory:", timeout=timeout_s, isolation_level=None)
        try:
            if self._value("PRAGMA user_version") != _VERSION:
                self._make()
            self._fts = "fts5" in str(self._value("SELECT sql FROM sqlite_master WHERE name = 'words'"))
        except BaseException:
            self._db.close()
            raise

    def _value(self, sql: str) -> Any:
        return next(self._db.execute(sql), (None,))[0]

    def _make(self) -> None:
        with self.changing():
            if self._value("PRAGMA user_version") == _VERSION:  # another program was faster
                return
            for table in ("runs", "words"):
                self._db.execute(f"DROP TABLE IF EXISTS {table}")
            self._db.execute("CREATE TABLE runs(id INTEGER PRIMARY KEY, folder, name, known, UNIQUE(folder, name))")
            try:  # parts of words are found, as they stand; the text comes in one case
                self._db.execute("CREATE VIRTUAL TABLE words USING fts5(text, tokenize = 'trigram case_sensitive 1')")
            except sqlite3.OperationalError:  # this SQLite has no FTS5, or one without trigrams
                self._db.execute("CREATE TABLE words(text)")
            self._db.execute(f"PRAGMA user_version = {_VERSION}")

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the write lock; what the block wrote is undone where it fails."""
        if self._db.in_transaction:
            yield
            return
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        finally:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def known(self, folder: str) -> dict[str, Known]:
        """What is remembered of the traces in a folder, by their names."""
        rows = self._db.execute("SELECT name, known FROM runs WHERE folder = ?", (folder,))
        try:
            return {name: Known(*json.loads(known)) for name, known in rows}
        except (ValueError, TypeError):
            raise sqlite3.DatabaseError("it holds what no specview wrote") from None

    def keep(self, folder: str, fresh: Iterable[tuple[str, Known, str]], gone: Collection[str]) -> None:
        """Remember (name, what is known, text to search) of a folder's traces, and forget those that are gone."""
        rows = [(name, json.dumps([known.stamp, known.facts, known.about]), text) for name, known, text in fresh]
        if not rows and not gone:
            return
        with self.changing():
            for name in (*gone, *(name for name, _, _ in rows)):
                this = "WHERE folder = ? AND name = ?"
                self._db.execute(f"DELETE FROM words WHERE rowid IN (SELECT id FROM runs {this})", (folder, name))
                self._db.execute(f"DELETE FROM runs {this}", (folder, name))
            for name, known, text in rows:
                row = self._db.execute("INSERT INTO runs(folder, name, known) VALUES (?, ?, ?)", (folder, name, known))
                self._db.execute("INSERT INTO words(rowid, text) VALUES (?, ?)", (row.lastrowid, text))

    def search(self, folder: str, words: str) -> set[str]:
        """The names of the traces in a folder in whose text every one of the words occurs, whatever its case."""
        wanted = words.casefold().replace("\0", " ").encode("utf-8", "replace").decode("utf-8").split()
        long = [word for word in wanted if self._fts and len(word) >= _TRIGRAM]
        sql = "SELECT name FROM runs JOIN words ON words.rowid = runs.id WHERE folder = ?"
        sql += " AND words MATCH ?" * bool(long) + " AND instr(text, ?)" * (len(wanted) - len(long))
        phrases = " AND ".join('"' + word.replace('"', '""') + '"' for word in long)
        rest = [word for word in wanted if word not in long]
        return {name for name, in self._db.execute(sql, (folder, *([phrases] if long else []), *rest))}

    def close(self) -> None:
        """Close it."""
        self._db.close()


def with_index(path: Path, timeout_s: float, work: Callable[[RunIndex], Result]) -> Result:
    """Give `work` the index at `path`. A damaged one is made anew; for one that cannot be used now another is made in memory."""
    for _ in range(2):
        try:
            with RunIndex(path, timeout_s) as index:
                return work(index)
        except sqlite3.Error as error:
            log.warning("the index %s is not used: %s", path, error)
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in _KEPT_OUT:
                break
            with contextlib.suppress(OSError):
                path.unlink()
    with RunIndex(None, timeout_s) as index:
        return work(index)
