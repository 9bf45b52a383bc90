"""Output files: known to be writable before a run starts, whole or untouched after it."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from specview.errors import SpecviewError


def os_reason(error: OSError) -> str:
    """Return the system's own words for an error, without its number."""
    return (error.strerror or str(error) or type(error).__name__).rstrip(".").lower()


def cannot_write(path: str | Path, what: str, error: OSError) -> SpecviewError:
    """Return the one line for a file that cannot be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    mend = "Free some space, or choose another disk." if full else "Choose a folder you may write in."
    return SpecviewError(f"cannot write the {what} {str(path)!r}: {os_reason(error)}.", mend)


class OutputFile:
    """A file to be written once, at the end: reserved now, replaced as a whole by `write`.

    Raises SpecviewError at once when `path` cannot be written. Leaving the context without `write`
    leaves an earlier file as it was. Devices and pipes are written directly.
    """

    def __init__(self, path: str | Path, what: str) -> None:
        self.path = Path(path)
        self._what = what
        self._temporary: Path | None = None
        # /dev/stdout is a link to whatever standard output is: never to be replaced
        device = str(self.path).startswith(("/dev/", "/proc/"))
        target = self.path if device else Path(os.path.realpath(self.path))
        try:
            if device or (target.exists() and not target.is_file()):
                if target.is_dir():
                    raise IsADirectoryError(21, "it is a folder")
                self._target = target
                return
            if target.exists() and not os.access(target, os.W_OK):
                raise PermissionError(13, "permission denied")
            handle, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
            os.close(handle)
        except OSError as error:
            raise cannot_write(path, what, error) from None
        self._temporary = Path(name)
        self._target = target

    def write(self, text: str) -> None:
        """Put `text` in place, in UTF-8; raise SpecviewError when the disk refuses."""
        self.write_bytes(text.encode("utf-8"))

    def write_bytes(self, data: bytes) -> None:
        """Put `data` in place; raise SpecviewError when the disk refuses."""
        try:
            if self._temporary is None:
                with self._target.open("ab") as file:
                    file.write(data)
                return
            self._temporary.write_bytes(data)
            # mkstemp makes private files; a result is as readable as any new file of the user's
            umask = os.umask(0)
            os.umask(umask)
            mode = self._target.stat().st_mode & 0o777 if self._target.exists() else 0o666 & ~umask
            self._temporary.chmod(mode)
            self._temporary.replace(self._target)
            self._temporary = None
        except OSError as error:
            raise cannot_write(self.path, self._what, error) from None

    def close(self) -> None:
        """Remove what `write` did not put in place."""
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)
            self._temporary = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
