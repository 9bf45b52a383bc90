"""specview's own cache folder: where it is, file hashes that cost once, errors of a full or closed disk."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specview.disk import write_whole
from specview.errors import SpecviewError, check_stop
from specview.reading import read_json

ProgressFn = Callable[[str, "float | None"], None]
ShouldStop = Callable[[], bool]

ENVIRONMENT = "SPECVIEW_CACHE"
_CHUNK = 4 << 20
_SAMPLE = 16 << 10
_MEND_PLACE = f"Set {ENVIRONMENT} to a folder you may write to."
_MEND_ROOM = f"Free some space, or set {ENVIRONMENT} to a folder on another disk."


def cache_dir() -> Path:
    """Return the cache folder (not created): $SPECVIEW_CACHE, else the platform's user cache."""
    chosen = os.environ.get(ENVIRONMENT)
    if chosen:
        return Path(os.path.expanduser(chosen))
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("specview", appauthor=False))


@dataclass(frozen=True, slots=True)
class Watch:
    """Who waits for a long piece of work: hears how it gets on, and may stop it."""

    progress: ProgressFn | None = None
    should_stop: ShouldStop | None = None

    def tell(self, text: str, fraction: float | None = None) -> None:
        """Say what is being done, and how much of it is."""
        if self.progress is not None:
            self.progress(text, fraction)

    def check(self) -> None:
        """Raise Stopped when the user asked to stop."""
        check_stop(self.should_stop)


@contextlib.contextmanager
def clear_write_errors(folder: Path, what: str) -> Iterator[None]:
    """Turn a full disk, a missing permission or another OSError into one line with a mend."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise SpecviewError(f"the disk is full: {what} could not be written to {folder}.", _MEND_ROOM) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise SpecviewError(f"no permission to write {what} to {folder}.", _MEND_PLACE) from error
        reason = error.strerror or str(error)
        raise SpecviewError(f"{what} could not be written to {folder} ({reason}).", _MEND_PLACE) from error


def size_words(count: int) -> str:
    """Bytes as people read them: in GB from one on, else in MB."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def check_room(folder: Path, needed: int, what: str) -> None:
    """Raise SpecviewError when the disk of `folder` has fewer than `needed` bytes free."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    try:
        free = shutil.disk_usage(existing).free
    except OSError:
        return
    if free < needed:
        raise SpecviewError(
            f"{what} needs {size_words(needed)} in {folder}, where {size_words(free)} are free.", _MEND_ROOM
        )


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that readers see the old file or the whole new one; it is for the user alone."""
    write_whole(path, json.dumps(value, indent=1).encode(), private=True)


def sync_folder(folder: Path) -> None:
    """Make a rename inside `folder` durable where the system can."""
    with contextlib.suppress(OSError):  # Windows cannot open folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class Remembered:
    """A JSON object in the cache folder that keeps so many newest entries; one that cannot be read or written costs nothing."""

    def __init__(self, name: str, most: int = 500) -> None:
        self._name, self._most = name, most

    def load(self) -> dict[str, Any]:
        """Return what is kept, oldest first."""
        try:
            value = read_json(cache_dir() / self._name)
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}

    def keep(self, key: str, value: Any) -> None:
        """Note an entry as the newest."""
        with contextlib.suppress(OSError):
            cache_dir().mkdir(parents=True, exist_ok=True)
            known = self.load()
            known.pop(key, None)
            known[key] = value
            write_json(cache_dir() / self._name, dict(list(known.items())[-self._most :]))


_hashes = Remembered("file_hashes.json")


def sha256_of(path: Path, watch: Watch | None = None) -> str:
    """Return a file's SHA-256, remembered in the cache folder for this very file (`_identity`).

    Raises OSError when the file cannot be read, Stopped when asked to stop.
    """
    known = remembered_sha256(path)
    if known is not None:
        return known
    watch = watch or Watch()
    before = _identity(path)
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            watch.check()
            digest.update(chunk)
            done += len(chunk)
            watch.tell(f"Checking {path.name}", done / max(1, before["size"]))
    _hashes.keep(str(path.resolve()), {**before, "sha256": digest.hexdigest()})
    return digest.hexdigest()


def remember_sha256(path: Path, sha256: str) -> None:
    """Note the hash of a file that was just written, so that it need not be read for it."""
    with contextlib.suppress(OSError):
        _hashes.keep(str(path.resolve()), {**_identity(path), "sha256": sha256})


def remembered_sha256(path: Path) -> str | None:
    """Return the SHA-256 found earlier for this very file, or None; reads a few kilobytes."""
    try:
        facts = _identity(path)
        entry = _hashes.load().get(str(path.resolve()))
    except OSError:
        return None
    if isinstance(entry, dict) and all(entry.get(key) == value for key, value in facts.items()):
        value = entry.get("sha256")
        return value if isinstance(value, str) else None
    return None


def _identity(path: Path) -> dict[str, Any]:
    """What tells a file from another one that came to its place, with its size and change time too.

    The inode's own time cannot be set by whoever copies or unpacks a file; where a disk keeps none, parts of the content
    tell.
    """
    found = path.stat()
    sample = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        for place in (0, found.st_size // 3, 2 * found.st_size // 3, max(0, found.st_size - _SAMPLE)):
            file.seek(place)
            sample.update(file.read(_SAMPLE))
    return {
        "size": found.st_size, "mtime_ns": found.st_mtime_ns, "ctime_ns": found.st_ctime_ns, "inode": found.st_ino,
        "sample": sample.hexdigest(),
    }  # fmt: skip
