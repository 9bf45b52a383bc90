"""`specview` without a command: the window, once a display and Qt's libraries are known to be there."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from specview.commands.qt_libraries import missing_libraries, platform_name
from specview.errors import SpecviewError, UsageError

HEADLESS = "specview compare --workload chat"


def main(argv: Sequence[str]) -> int:
    """Open the window; return its exit code.

    Raises UsageError for arguments, which the window has none of, and SpecviewError when there is no
    display or Qt cannot start here.
    """
    if argv:
        raise UsageError(f"the window takes no {argv[0]!r}.", "See specview --help; the commands take options.")
    check_display()
    return open_window()


def open_window(traces: Sequence[Path] = (), present: bool = False) -> int:
    """Open the window, on recorded traces if there are any, presented one by one if asked; return its exit code."""
    gc.disable()  # nothing of what is read now is garbage; the window has a collector of its own
    try:
        from specview.gui.shell.app import main as window_main
    except ImportError as error:
        raise SpecviewError(
            f"the window's libraries cannot be loaded ({error}).", f"{mend_missing()} Without a window: {HEADLESS}"
        ) from None
    return window_main([], traces, present)


def check_display() -> None:
    """Raise SpecviewError, one line, when Qt would find no display or abort for want of a library."""
    if not sys.platform.startswith("linux"):
        return
    platform = platform_name()
    if not platform:
        raise SpecviewError(
            "there is no display (DISPLAY and WAYLAND_DISPLAY are not set).", f"Without a window: {HEADLESS}"
        )
    missing = missing_libraries(platform)
    if missing:
        raise SpecviewError(
            f"Qt's window needs {', '.join(missing)}.",
            f"On Debian or Ubuntu: {install_line(missing)} - without a window: {HEADLESS}",
        )
    if platform == "xcb" and not display_answers():
        raise SpecviewError(
            f"the display {os.environ.get('DISPLAY', '')!r} does not answer.", f"Without a window: {HEADLESS}"
        )


def display_answers() -> bool:
    """Whether the X server of DISPLAY lets us in; Qt aborts the process where it does not."""
    try:
        xcb = ctypes.CDLL("libxcb.so.1")
    except OSError:
        return False
    xcb.xcb_connect.restype = ctypes.c_void_p
    xcb.xcb_connect.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    xcb.xcb_connection_has_error.argtypes = xcb.xcb_disconnect.argtypes = [ctypes.c_void_p]
    connection = xcb.xcb_connect(None, None)  # never null: a failed one carries its error
    answers = xcb.xcb_connection_has_error(connection) == 0
    xcb.xcb_disconnect(connection)
    return answers


def install_line(missing: dict[str, str]) -> str:
    """Return the shell command that installs the packages of missing libraries."""
    prefix = "" if hasattr(os, "geteuid") and os.geteuid() == 0 else "sudo "
    return f"{prefix}apt-get install {' '.join(dict.fromkeys(missing.values()))}"


def mend_missing() -> str:
    """Say how to get what a failed import of Qt lacks."""
    missing = missing_libraries("xcb")
    if missing:
        return f"On Debian or Ubuntu: {install_line(missing)}."
    return "Run packaging/specview again, or: pip install 'PySide6-Essentials<6.12' pyqtgraph."
