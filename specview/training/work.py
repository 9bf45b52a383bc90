"""The work folders of trainings: data and state that stay in the cache until they are removed."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from specview.errors import SpecviewError
from specview.models.cache import cache_dir


def work_root() -> Path:
    """Where work folders are that were not named."""
    return cache_dir() / "training"


@dataclass(frozen=True, slots=True)
class WorkFolder:
    """A training's work folder: the kind of drafter, and what it takes on the disk."""

    path: Path
    kind: str
    size_bytes: int


def work_folders() -> list[WorkFolder]:
    """Those in the cache, the largest first; reads names and sizes. Folders of others are not among them."""
    found = []
    try:
        for path in work_root().iterdir():
            if not path.is_symlink() and (path / "job.json").is_file():
                size = sum(file.lstat().st_size for file in path.rglob("*") if file.is_file())
                found.append(WorkFolder(path, _kind(path), size))
    except OSError:
        pass  # there is none, or one that goes away meanwhile
    return sorted(found, key=lambda one: -one.size_bytes)


def remove(folder: WorkFolder) -> bool:
    """Remove one; False where a training is at work in it. Raises SpecviewError, one line, where it cannot be."""
    from filelock import FileLock, Timeout

    try:
        lock = FileLock(folder.path / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:  # an OSError too, so caught inside
            return False
        try:
            (folder.path / "job.json").unlink()  # first: what is half removed is no run to go on with
            for path in folder.path.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.name != ".lock":
                    path.unlink()
        finally:
            lock.release()
        shutil.rmtree(folder.path)
    except OSError as error:
        raise SpecviewError(f"{folder.path} cannot be removed ({error.strerror or error}).", "Remove it yourself.") from None
    return True


def _kind(path: Path) -> str:
    try:
        return str(json.loads((path / "job.json").read_text("utf-8"))["decides"]["kind"])
    except (OSError, ValueError, KeyError, TypeError):
        return "a drafter"
