"""Where a window may stand: with its frame, on the screen."""

from __future__ import annotations

from PySide6.QtCore import QMargins, QRect

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
