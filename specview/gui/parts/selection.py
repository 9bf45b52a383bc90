"""The round that is looked at, shared by all views: a click on it in one selects it in the others."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal


class Selection(QObject):
    """`round_selected(lane_index, round_index, source)`: source is the view that it was picked in; skip your own."""

    round_selected = Signal(int, int, object)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.lane = self.round = -1

    def select(self, lane: int, round_index: int, source: object) -> None:
        """Look at a round of a lane (indices into the race on screen)."""
        if (lane, round_index) != (self.lane, self.round):
            self.lane, self.round = lane, round_index
            self.round_selected.emit(lane, round_index, source)

    def clear(self) -> None:
        """Look at nothing: the race on screen is another one."""
        self.lane = self.round = -1
