"""The errors that a user sees: one line that names the cause and the mend."""

from __future__ import annotations

from collections.abc import Callable


class SpecviewError(Exception):
    """Something the user can mend; `str()` is one line: the cause, then what to do.

    `usage` marks bad settings (exit code 2 on the command line) as against a run that failed (1).
    """

    def __init__(self, cause: str, mend: str = "", *, usage: bool = False) -> None:
        self.cause = " ".join(str(cause).split())
        self.mend = " ".join(str(mend).split())
        self.usage = usage
        super().__init__(f"{self.cause} {self.mend}".strip())


class UsageError(SpecviewError):
    """A setting that cannot work as given."""

    def __init__(self, cause: str, mend: str = "") -> None:
        super().__init__(cause, mend, usage=True)


class EngineMissing(SpecviewError):
    """The library of an engine is not installed here; the rest works without it."""


class Stopped(Exception):
    """Raised inside long work (loading, prefill) when the user pressed Stop."""


def check_stop(should_stop: Callable[[], bool] | None) -> None:
    """Raise Stopped when the user asked to stop."""
    if should_stop is not None and should_stop():
        raise Stopped


def require(fits: bool, cause: str, mend: str) -> None:
    """Raise a UsageError of this cause and mend where a setting does not fit."""
    if not fits:
        raise UsageError(cause, mend)
