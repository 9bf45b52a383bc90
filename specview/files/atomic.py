"""Output files: known to be writable before a run starts, whole or untouched after it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from specview.disk import Closing, PartFile, held_there
from specview.errors import SpecviewError


def os_reason(error: OSError) -> str:
    """Return the system's own words for an error, without its number."""
    return (error.strerror or str(error) or type(error).__name__).rstrip(".").lower()


def cannot_write(path: str | Path, what: str, error: OSError) -> SpecviewError:
    """Return the one line for a file that cannot be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    mend = "Free some space, or choose another disk." if full else "Choose a folder you may write in."
    if error.errno == errno.EISDIR:
        mend = "Name a file in it."
    return SpecviewError(f"cannot write the {what} {str(path)!r}: {os_reason(error)}.", mend)


def refuse_held(path: str | Path, what: str, own: str = "") -> None:
    """Raise SpecviewError where writing `what` to `path` would take a model's file or a recorded run away.

    own: what may be there all the same, as `held_there` calls it.
    """
    held = held_there(Path(path))
    if held not in ("", own):
        raise SpecviewError(f"the {what} cannot go to {str(path)!r}: that is {held}.", "Name another file.")


class OutputFile(Closing):
    """A file to be written once, at the end: reserved now, replaced as a whole by `write`.

    Raises SpecviewError at once when `path` cannot be written, or holds what is never overwritten. Leaving the context
    without `write` leaves an earlier file as it was. Devices and pipes are written directly.
    """

    def __init__(self, path: str | Path, what: str) -> None:
        self.path = Path(path)
        self._what = what
        self._part: PartFile | None = None
        # /dev/stdout is a link to whatever standard output is: never to be replaced
        device = str(self.path).startswith(("/dev/", "/proc/"))
        target = self.path if device else Path(os.path.realpath(self.path))
        try:
            if device or (target.exists() and not target.is_file()):
                if target.is_dir():
                    raise IsADirectoryError(21, "it is a folder")
                self._target = target
                return
            refuse_held(path, what)
            if target.exists() and not os.access(target, os.W_OK):
                raise PermissionError(13, "permission denied")
            self._part = PartFile(target)
        except OSError as error:
            raise cannot_write(path, what, error) from None
        self._target = target

    def write(self, content: str | bytes) -> None:
        """Put `content` in place, text in UTF-8; raise SpecviewError when the disk refuses."""
        data = content.encode("utf-8") if isinstance(content, str) else content
        try:
            if self._part is None:
                with self._target.open("ab") as file:
                    file.write(data)
                return
            self._part.file.write(data)
            self._part.put()
        except OSError as error:
            raise cannot_write(self.path, self._what, error) from None

    def close(self) -> None:
        """Remove what `write` did not put in place."""
        if self._part is not None:
            self._part.close()
