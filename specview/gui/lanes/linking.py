"""Lanes side by side: they scroll together, and the token under one's cursor is outlined in all of them.

By position in the output, not by pixels: each lane wraps in its own way.
"""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import QObject

from specview.gui.lanes.token_view import TokenView
from specview.gui.state.display_text import spelled
from specview.gui.state.view_model import LaneModel


class Links(QObject):
    """Links the token views of one race; `together`: they scroll together."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.together = True
        self._views: list[TokenView] = []

    def link(self, view: TokenView) -> None:
        """Take in a view, until it is destroyed."""
        self._views.append(view)
        view.scrolled.connect(lambda: self._scroll(view))
        view.pointed.connect(lambda: self._point(view))
        view.destroyed.connect(lambda: self._views.remove(view) if view in self._views else None)

    def _scroll(self, moved: TokenView) -> None:
        if not self.together:
            return
        for view in self._views:
            if view is moved:
                continue
            if moved.following:
                view.follow()
            else:
                view.go_to(moved.place())

    def _point(self, pointed: TokenView) -> None:
        position = pointed.pointed_position()
        for view in self._views:
            view.set_echo(None if view is pointed else position)

    def mark_differences(self, plain: LaneModel | None) -> None:
        """Mark in each lane the first token that differs from plain's, where they should be equal."""
        for view in self._views:
            equality = view.lane.equality
            first = None if equality is None or view.lane is plain else equality.first_difference
            view.set_difference(None if first is None else (first, f"first difference from plain: {_instead(plain, first)}"))


def _instead(plain: LaneModel | None, position: int) -> str:
    """What plain has at a position, in words."""
    tokens: Iterable = () if plain is None else plain.tokens
    found = next((token for token in tokens if token.position == position), None)
    return "plain has ended there" if found is None else f"plain has {spelled(found.text) or 'no text'} there"
