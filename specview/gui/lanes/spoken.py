"""A lane's text for screen readers: the output without ghosts, with a caret on the token under the cursor.

Qt makes such an interface for its own text widgets only. PySide hands on what `factory` returns; offsets are UTF-16
units, as Qt counts them.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from itertools import accumulate
from typing import Any, Protocol

import shiboken6
from PySide6.QtCore import QPoint, QRect
from PySide6.QtGui import QAccessible, QAccessibleTextCursorEvent, QAccessibleTextInterface
from PySide6.QtWidgets import QAccessibleWidget, QWidget

from specview.gui.lanes.token_lines import TokenLines
from specview.gui.state.view_model import LaneModel

_KINDS = QAccessible.InterfaceType
_installed = False


class Readable(Protocol):
    """What is read of a view of tokens."""

    lane: LaneModel
    lines: TokenLines

    @property
    def current_index(self) -> int | None: ...
    def choose(self, index: int) -> None: ...
    def reveal(self, index: int) -> None: ...
    def place_of(self, index: int) -> QRect: ...
    def token_at(self, point: QPoint) -> int | None: ...
    def viewport(self) -> QWidget: ...


def install(kind: type[QWidget]) -> None:
    """Let Qt find the text of every view of a kind, from now on."""
    global _installed
    if not _installed:
        _installed = True
        QAccessible.installFactory(lambda key, widget: SpokenView(widget) if isinstance(widget, kind) else None)


def caret_moved(view: QWidget) -> None:
    """Tell a screen reader, if there is one, that the cursor is on another token."""
    if QAccessible.isActive():
        interface = QAccessible.queryAccessibleInterface(view)
        if isinstance(interface, SpokenView):
            QAccessible.updateAccessibility(QAccessibleTextCursorEvent(view, interface.spoken.cursorPosition()))


class SpokenText(QAccessibleTextInterface):
    """The text of a view that may be gone."""

    def __init__(self, view: Readable) -> None:
        super().__init__()
        self._view = weakref.ref(view)
        self._key: tuple[int, int] | None = None
        self._text = b""
        self._starts: list[int] = []  # of the output's tokens, and which they are
        self._tokens: list[int] = []

    def _read(self) -> Readable | None:
        """The view, with its text as it is now."""
        view = self._view()
        if view is None or not shiboken6.isValid(view):
            self._text, self._starts, self._tokens = b"", [], []
            return None
        tokens = view.lines.layout.tokens
        key = (view.lane.generation, len(tokens))
        if key != self._key:
            self._key = key
            self._tokens = [index for index, token in enumerate(tokens) if token.position is not None]
            pieces = [tokens[index].text.encode("utf-16-le", "surrogatepass") for index in self._tokens]
            self._text = b"".join(pieces)
            self._starts = [0, *accumulate(len(piece) // 2 for piece in pieces)][:-1]
        return view

    def _token(self, offset: int) -> int | None:
        """The token in which an offset lies."""
        place = bisect_right(self._starts, offset) - 1
        return self._tokens[place] if place >= 0 else None

    def text(self, start: int, end: int) -> str:
        """A part of the text."""
        self._read()
        return self._text[2 * max(start, 0) : 2 * max(end, 0)].decode("utf-16-le", "replace")

    def characterCount(self) -> int:
        """Length of the text."""
        self._read()
        return len(self._text) // 2

    def cursorPosition(self) -> int:
        """Where the token under the cursor begins; of a draft, the token after it."""
        view = self._read()
        current = None if view is None else view.current_index
        if current is None or not self._tokens:
            return 0
        place = bisect_right(self._tokens, current - 1)
        return self._starts[place] if place < len(self._starts) else len(self._text) // 2

    def setCursorPosition(self, position: int) -> None:
        """Put the cursor on the token there."""
        view = self._read()
        token = self._token(position)
        if view is not None and token is not None:
            view.choose(token)

    def characterRect(self, offset: int) -> QRect:
        """Where a character's token stands on the screen."""
        view = self._read()
        token = self._token(offset)
        return QRect() if view is None or token is None else view.place_of(token)

    def offsetAtPoint(self, point: QPoint) -> int:
        """The beginning of the token under a point of the screen; -1 for none."""
        view = self._read()
        token = None if view is None else view.token_at(view.viewport().mapFromGlobal(point))
        return self._starts[self._tokens.index(token)] if token in self._tokens and token is not None else -1

    def scrollToSubstring(self, start: int, end: int) -> None:
        """Scroll to a part of the text."""
        view = self._read()
        token = self._token(start)
        if view is not None and token is not None:
            view.reveal(token)

    def selectionCount(self) -> int:
        """None: PySide cannot hand out a selection's bounds."""
        return 0

    def addSelection(self, start: int, end: int) -> None:
        """Nothing can be selected by this way."""

    def removeSelection(self, selection: int) -> None:
        """Nothing is selected."""

    def setSelection(self, selection: int, start: int, end: int) -> None:
        """Nothing can be selected by this way."""


class SpokenView(QAccessibleWidget):
    """A token view as a text that is read only."""

    def __init__(self, view: Any) -> None:
        super().__init__(view, QAccessible.Role.EditableText)
        self.spoken = SpokenText(view)

    def interface_cast(self, kind: QAccessible.InterfaceType) -> Any:
        """The text for whoever asks for it; nothing is an address of 0 here, PySide makes no null of None."""
        if kind == _KINDS.TextInterface:
            return self.spoken
        found = super().interface_cast(kind)
        return shiboken6.Shiboken.VoidPtr(0) if found is None else found

    def state(self) -> QAccessible.State:
        """Read only, of several lines."""
        found = super().state()
        found.readOnly = found.multiLine = found.selectableText = True
        return found

    def text(self, kind: QAccessible.Text) -> str:
        """The value is the text itself."""
        return self.spoken.text(0, self.spoken.characterCount()) if kind == QAccessible.Text.Value else super().text(kind)


