"""Files on the user's disk: written whole or not at all, private where they hold the user's texts, never over a model.

A file or folder is made under a name of its own beside its place and renamed there. Its maker holds a lock on it, so
that the next one who writes to the same place can tell what a killed program left behind, and removes that.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Self

if sys.platform != "win32":
    import fcntl

ABANDONED_S = 60.0
"""A younger file may be another program's that has not locked it yet."""
_PART, _OLD = ".specview-part", ".specview-old"
_WEIGHTS = frozenset({".safetensors", ".gguf", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".h5", ".msgpack", ".tflite"})
_OF_MODELS = frozenset({
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "chat_template.json", "chat_template.jinja", "preprocessor_config.json",
    "processor_config.json", "params.json", "hf_quant_config.json", "quantize_config.json", "README.md",
})  # fmt: skip
_OWN = re.compile(rb'\s*\{\s*"schema"\s*:\s*"specview\.(trace|sweep)/')
_OWN_WORDS = {b"trace": "a recorded run", b"sweep": "a sweep"}


def held_there(path: Path) -> str:
    """What must not be overwritten at `path`: 'a model's weights file', 'a model's config.json', 'a recorded run', 'a sweep'.

    '' where there is nothing, or something else. A link is what it leads to.
    """
    real = Path(os.path.realpath(path))
    try:
        if not stat.S_ISREG(os.stat(real).st_mode) or not os.path.getsize(real):
            return ""
        with real.open("rb") as file:
            start = file.read(200)
    except OSError:
        return ""  # it cannot be looked into: writing says why
    header = int.from_bytes(start[:8], "little")
    if start[:4] == b"GGUF" or (start[8:9] == b"{" and 2 <= header < 1 << 30):
        return "a model's weights file"
    for one in (path, real):
        if one.suffix.lower() in _WEIGHTS:
            return "a model's weights file"
        if (one.name in _OF_MODELS or one.name.endswith(".index.json")) and (one.parent / "config.json").exists():
            return f"a model's {one.name}"
    own = _OWN.match(start)
    return "" if own is None else _OWN_WORDS[own[1]]


def same_place(first: Path, second: Path) -> bool:
    """Whether two paths are one file or folder, there or not yet: links, hard links and letter case count as the disk does."""
    return _place(first) == _place(second)


def within(inner: Path, outer: Path) -> bool:
    """Whether `inner` is `outer` or lies in it at any depth; neither need be there."""
    place, known = Path(os.path.realpath(inner)), _place(outer)
    return any(_place(folder) == known for folder in (place, *place.parents))


def _place(path: Path) -> tuple[object, ...]:
    real = Path(os.path.realpath(path))
    for there in (real, *real.parents):
        if (identity := _identity(there)) is not None:
            rest = real.parts[len(there.parts) :]
            folds = sys.platform in ("win32", "darwin")  # names that are not there yet cannot be asked
            return (*identity, *(part.casefold() if folds else part for part in rest))
    return (str(real),)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def private_folder(folder: Path) -> None:
    """Make a folder of ours that nobody else looks into; one of the user's that others may read is closed to them."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if sys.platform != "win32" and (found := folder.stat()).st_mode & 0o077 and found.st_uid == os.getuid():
        folder.chmod(0o700)


class Closing:
    """What `with` closes."""

    def close(self) -> None:
        """Let go of what is held."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PartFile(Closing):
    """A file being written; `put` puts it at `target`, which is replaced as a whole. Closing it before removes it.

    private: for the user alone; otherwise it is as readable as the file that it replaces, or as any new file is.
    Methods raise OSError.
    """

    def __init__(self, target: Path, private: bool = False) -> None:
        self._target = target = Path(os.path.realpath(target))
        sweep(target)
        self.path = _beside(target, _PART)
        self.file: IO[bytes] = os.fdopen(os.open(self.path, _NEW, 0o600 if private else 0o666), "wb")
        try:
            _lock(self.file.fileno())
            if not private and target.exists():
                self.path.chmod(target.stat().st_mode & 0o777)
        except BaseException:
            self.close()
            raise

    def put(self) -> None:
        """Make what was written durable, and put it in place."""
        self.file.flush()
        os.fsync(self.file.fileno())
        if sys.platform == "win32":  # no open file can be renamed there
            self.file.close()
        os.replace(self.path, self._target)
        self.file.close()

    def close(self) -> None:
        """Remove it, unless it was put in place."""
        with contextlib.suppress(OSError):
            self.file.close()
        self.path.unlink(missing_ok=True)


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def write_whole(target: Path, data: bytes, private: bool = False) -> None:
    """Put `data` at `target`: a reader finds the old file or the whole new one. Raises OSError."""
    with PartFile(target, private) as part:
        part.file.write(data)
        part.put()


@contextlib.contextmanager
def new_folder(target: Path, check: Callable[[Path], None]) -> Iterator[Path]:
    """A folder to be filled, which takes the place of `target` when the block ends well; else it is removed.

    An earlier folder there goes when the new one is in place, and stays, or is brought back, where that fails. Right
    before, `check` is given it, and raises where it must not go. Raises OSError.
    """
    real = Path(os.path.realpath(target))
    real.parent.mkdir(parents=True, exist_ok=True)
    sweep(real)
    part, old = _beside(real, _PART), _beside(real, _OLD)
    part.mkdir()
    lock = _lock_folder(part)
    try:
        yield part
        for path in part.iterdir():
            with path.open("rb+") as file:
                os.fsync(file.fileno())
        there = real.exists()
        if there:
            check(real)
            part.chmod(stat.S_IMODE(real.stat().st_mode))
            os.rename(real, old)
        try:
            os.rename(part, real)
        except BaseException:
            if there:
                os.rename(old, real)
            raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        if lock is not None:
            os.close(lock)
        shutil.rmtree(part, ignore_errors=True)


def sweep(target: Path) -> None:
    """Remove what killed writers left beside `target`; a folder that one had moved aside is brought back."""
    try:
        names = [entry.name for entry in os.scandir(target.parent)]
    except OSError:
        return
    start = f".{_stem(target.name)}."
    for name in names:
        middle, dot, ending = name.removeprefix(start).partition(".")
        if not name.startswith(start) or f"{dot}{ending}" not in (_PART, _OLD) or not re.fullmatch("[0-9a-f]{8}", middle):
            continue
        path = target.with_name(name)
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_ctime < ABANDONED_S or not _abandoned(path):
                continue
            if ending == _OLD[1:] and not target.exists():
                os.rename(path, target)
            elif path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _stem(name: str) -> str:
    """A name's beginning, short enough for a longer one."""
    return name.encode("utf-8", "surrogateescape")[:100].decode("utf-8", "ignore")


def _beside(target: Path, ending: str) -> Path:
    return target.with_name(f".{_stem(target.name)}.{secrets.token_hex(4)}{ending}")


def _lock(handle: int) -> None:
    """Hold an open file until it is closed, where its disk knows locks. Windows lets nobody remove an open file."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _lock_folder(folder: Path) -> int | None:
    if sys.platform == "win32":
        return None
    handle = os.open(folder, os.O_RDONLY)
    _lock(handle)
    return handle


def _abandoned(path: Path) -> bool:
    """Whether nobody holds a file or folder any more."""
    if sys.platform == "win32":
        return path.is_file() or time.time() - path.lstat().st_mtime > 86_400
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
