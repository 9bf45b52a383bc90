"""The line in a lane's panel that says, once the run is over, why the lane was slower than plain."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFrame, QSizePolicy, QToolButton

from specview.gui.parts import layout, theme
from specview.gui.parts.widgets import ElidedLabel, set_tip
from specview.gui.state.view_model import LaneModel, RaceModel
from specview.lab.explain import explain_lane


class WhyLine(QFrame):
    """Hidden but for a lane that has ended slower than plain; `asked` on its button."""

    asked = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "inset")
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.words = ElidedLabel("", "warning")
        self.words.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.button = QToolButton()
        self.button.setText("Why?")
        self.button.setProperty("kind", "caption")
        self.button.clicked.connect(self.asked)
        layout.row((self.words, 1), self.button, on=self, gap=theme.px(4), margins=(theme.px(6), 0, theme.px(2), 0))
        self._looked: tuple[object, ...] = ()
        self.hide()

    def show_lane(self, lane: LaneModel, race: RaceModel) -> None:
        """Explain the lane where it ended slower than plain; what has not changed is not looked at again."""
        plain, faster = race.baseline, race.speedup(lane)
        slower = faster is not None and faster.slower and plain is not None and lane.state == "ended" and bool(lane.rounds)
        looked = (id(lane), lane.generation, lane.version, slower)
        if looked == self._looked:
            return
        self._looked = looked
        if slower:
            sentence = explain_lane(lane, race.lanes, plain, race.speedup).sentence
            self.words.set_full(sentence)
            set_tip(self.button, f"Slower than plain. {sentence}\nOpens the tab Why for this lane.")
            self.button.setAccessibleName(f"Why is {lane.name} slower than plain?")
        self.setVisible(slower)
