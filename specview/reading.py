"""Reading files that strangers wrote: plain files only, and nothing that takes much more memory than a good one does.

Whatever lies in a folder of models may be a pipe, a device, a file of a terabyte of zeros, or JSON that is small on the
disk and huge in memory. A caller catches OSError and ValueError, and nothing else comes.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

MAX_CONFIG, MAX_TABLE = 4 << 20, 16 << 20
"""Bytes of a JSON file of settings, and of a table of tensors: those of the largest models known have 2 and 15 MB."""
_ROOM = 4  # times its size that a file's values may take as Python's, by the estimate below


def open_regular(path: str | Path) -> BinaryIO:
    """Open a plain file for reading; a folder, a pipe or a device is an OSError at once, never a wait."""
    _require_regular(os.stat(path))
    # Another file may have taken its place since: opening a pipe must not wait for its other end.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        _require_regular(os.fstat(handle))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def _require_regular(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(21, "it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise OSError(22, "it is a pipe or a device, not a file")


def read_bytes(path: str | Path, most: int = MAX_CONFIG) -> bytes:
    """Return a plain file's content. Raises OSError, ValueError where it has more than `most` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"it has {size:,} bytes")
        data = file.read(most + 1) or b""  # files of /proc have no size, and may have nothing to read yet
    if len(data) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return data


def read_text(path: str | Path, most: int = MAX_CONFIG) -> str:
    """Return a plain file's content as UTF-8 text. Raises OSError, and ValueError where it is none or too large."""
    return read_bytes(path, most).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: str | Path, most: int = MAX_CONFIG) -> Any:
    """Return the value in a JSON file of up to `most` bytes. Raises OSError, and ValueError where it is none."""
    return parse_json(read_bytes(path, most), most)


def parse_json(data: bytes, most: int) -> Any:
    """Return the value that JSON writes; raises ValueError where it is none, or one too large for `most` bytes."""
    require_light(data, most)
    try:
        return json.loads(data.removeprefix(b"\xef\xbb\xbf"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def require_light(data: bytes, most: int) -> None:
    """Raise ValueError where JSON has more values than belong into `most` bytes: "[]," takes 27 times its size."""
    values = 200 * (data.count(b"[") + data.count(b"{")) + 150 * data.count(b":") + 60 * data.count(b",")
    if values > _ROOM * most:
        raise ValueError("it has too many values")
