"""The tour in the window: its entry in Help, and the quiet line that offers it once, at the first start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QFrame, QPushButton, QWidget

from specview.gui.link.controller import Controller
from specview.gui.parts import layout
from specview.gui.parts.widgets import ElidedLabel, button

if TYPE_CHECKING:
    from specview.gui.tour.dialog import TourDialog


class Remembers(Protocol):
    """Whether the offer was answered."""

    tour_answered: bool


class Offer(QWidget):
    """One line with two buttons."""

    def __init__(self, tour: GuidedTour) -> None:
        super().__init__()
        frame = QFrame()
        frame.setObjectName("banner")
        frame.setProperty("kind", "note")
        self.setAccessibleName("Guided tour")
        words = ElidedLabel("New here? Eight short steps show how speculative decoding works, on a recorded run.")
        self.yes = button(QPushButton, "Show the tour", "Opens it now; it stays in Help", lambda: tour.answer(True), kind="flat")
        self.no = button(QPushButton, "No, thanks", "It stays in Help, and is not offered again", lambda: tour.answer(False), kind="flat")
        layout.row((words, 1), self.yes, self.no, on=frame, gap=12, margins=(12, 2, 6, 2))
        layout.column(frame, on=self, margins=(10, 8, 10, 0))
        self.hide()


class GuidedTour(QObject):
    """Shows the tour; `offer_line` is to stand in the window."""

    def __init__(self, window: QWidget, remembers: Remembers, controller: Controller) -> None:
        super().__init__(window)
        self._window, self._remembers, self._controller = window, remembers, controller
        self._dialog: TourDialog | None = None
        self.offer_line = Offer(self)
        controller.state_changed.connect(self._make_room)

    def show(self) -> None:
        """Open the tour; it was found, so it is offered no more."""
        from specview.gui.tour.dialog import TourDialog  # only who takes the tour pays for it

        self._answered()
        if self._dialog is None:
            self._dialog = TourDialog(self._window)
            self._dialog.finished.connect(self._closed)
        self._dialog.show()
        self._dialog.raise_()
        self._dialog.activateWindow()

    def _closed(self) -> None:
        if self._dialog is not None:
            self._dialog.deleteLater()
            self._dialog = None

    def offer(self) -> None:
        """Offer it at the first start, until it is answered."""
        self.offer_line.setVisible(not self._remembers.tour_answered)

    def _make_room(self) -> None:
        """A race needs the room; the next start offers it again."""
        if self._controller.racing:
            self.offer_line.hide()

    def answer(self, wanted: bool) -> None:
        """Take the answer for good."""
        self._answered()
        if wanted:
            self.show()

    def _answered(self) -> None:
        self._remembers.tour_answered = True
        self.offer_line.hide()
