"""Where a window may stand: with its frame, on the screen."""

from __future__ import annotations

from PySide6.QtCore import QByteArray, QMargins, QRect
from PySide6.QtWidgets import QMainWindow

USUAL_FRAME = QMargins(8, 40, 8, 8)
"""Room for the frame of a window that has none yet, pixels: more than most window managers take."""


def margins(frame: QRect, inner: QRect) -> QMargins:
    """What a frame adds to a window on each side, pixels."""
    return QMargins(
        inner.left() - frame.left(), inner.top() - frame.top(), frame.right() - inner.right(), frame.bottom() - inner.bottom()
    )


def on_screen(inner: QRect, frame: QMargins, room: QRect) -> QRect:
    """A window's own rectangle, made smaller and moved as far as it must be for it and its frame to lie in `room`."""
    free = room.marginsRemoved(frame)
    size = inner.size().boundedTo(free.size())
    left = min(max(inner.left(), free.left()), free.right() + 1 - size.width())
    top = min(max(inner.top(), free.top()), free.bottom() + 1 - size.height())
    return QRect(left, top, size.width(), size.height())


def restore(window: QMainWindow, geometry: str) -> None:
    """Put a window where it was, as far as that is on a screen; geometry is Qt's own, in hexadecimal digits."""
    if geometry and window.restoreGeometry(QByteArray.fromHex(geometry.encode())):
        fit(window, USUAL_FRAME)
    else:  # where, the desktop decides
        window.resize(on_screen(QRect(0, 0, 1440, 900), USUAL_FRAME, window.screen().availableGeometry()).size())


def fit(window: QMainWindow, frame: QMargins) -> None:
    """Keep a window, with this frame, on the screen."""
    if not window.isMaximized() and not window.isFullScreen():
        fits = on_screen(window.geometry(), frame, window.screen().availableGeometry())
        if fits != window.geometry():
            window.setGeometry(fits)


def make_room(window: QMainWindow) -> None:
    """Make room for the frame that a window has got; one that was made larger than the screen stays so."""
    inner, room = window.geometry(), window.screen().availableGeometry()
    if inner.width() <= room.width() and inner.height() <= room.height():
        fit(window, margins(window.frameGeometry(), inner))
