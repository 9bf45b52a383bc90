"""The system libraries that Qt needs on Linux, by name, and the Debian packages that hold them.

Qt aborts the whole process when its platform plugin cannot be loaded, so they are looked for before
Qt is. `python -m specview.commands.qt_libraries [PLATFORM]` prints the missing packages on one line.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping

_BASE = {
    "libEGL.so.1": "libegl1",
    "libGL.so.1": "libgl1",
    "libfontconfig.so.1": "libfontconfig1",
    "libfreetype.so.6": "libfreetype6",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libdbus-1.so.3": "libdbus-1-3",
    "libxkbcommon.so.0": "libxkbcommon0",
    "libX11.so.6": "libx11-6",
}
_XCB = {
    "libxkbcommon-x11.so.0": "libxkbcommon-x11-0",
    "libxcb-cursor.so.0": "libxcb-cursor0",
    "libX11-xcb.so.1": "libx11-xcb1",
    "libxcb.so.1": "libxcb1",
    "libxcb-icccm.so.4": "libxcb-icccm4",
    "libxcb-image.so.0": "libxcb-image0",
    "libxcb-keysyms.so.1": "libxcb-keysyms1",
    "libxcb-randr.so.0": "libxcb-randr0",
    "libxcb-render.so.0": "libxcb-render0",
    "libxcb-render-util.so.0": "libxcb-render-util0",
    "libxcb-shape.so.0": "libxcb-shape0",
    "libxcb-shm.so.0": "libxcb-shm0",
    "libxcb-sync.so.1": "libxcb-sync1",
    "libxcb-util.so.1": "libxcb-util1",
    "libxcb-xfixes.so.0": "libxcb-xfixes0",
    "libxcb-xkb.so.1": "libxcb-xkb1",
}
_WAYLAND = {
    "libwayland-client.so.0": "libwayland-client0",
    "libwayland-cursor.so.0": "libwayland-cursor0",
    "libwayland-egl.so.1": "libwayland-egl1",
}


def platform_name() -> str:
    """Return the Qt platform that would be used here: QT_QPA_PLATFORM, wayland, xcb, or "" without a display."""
    chosen = os.environ.get("QT_QPA_PLATFORM", "").split(";")[0].split(":")[0]
    if chosen:
        return chosen
    if os.environ.get("WAYLAND_DISPLAY") and not _missing(_WAYLAND):
        return "wayland"
    return "xcb" if os.environ.get("DISPLAY") else "wayland" if os.environ.get("WAYLAND_DISPLAY") else ""


def missing_libraries(platform: str) -> dict[str, str]:
    """Return the missing libraries of a Qt platform as {library: Debian package}; none outside Linux."""
    if not sys.platform.startswith("linux"):
        return {}
    wanted = dict(_BASE)
    if platform.startswith("wayland"):
        wanted |= _WAYLAND
    elif platform == "xcb":
        wanted |= _XCB
    return _missing(wanted)


def _missing(libraries: Mapping[str, str]) -> dict[str, str]:
    missing = {}
    for library, package in libraries.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            missing[library] = package
    return missing


if __name__ == "__main__":
    print(" ".join(missing_libraries(sys.argv[1] if len(sys.argv) > 1 else platform_name()).values()))
