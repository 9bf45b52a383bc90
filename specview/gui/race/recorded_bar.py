"""The line over the race that says that what is on screen was recorded, and leads back to live."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFrame, QPushButton, QSizePolicy, QWidget

from specview.gui.link.open_run import Opened
from specview.gui.parts import layout
from specview.gui.parts.widgets import ElidedLabel, label, set_tip
from specview.gui.state.display_text import visible


class RecordedBar(QWidget):
    """Shown while a recorded run is on screen or being read; closed asks for the lanes as set up."""

    closed = Signal()
    play_asked = Signal()

    def __init__(self) -> None:
        super().__init__()
        frame = QFrame()
        frame.setObjectName("banner")
        frame.setProperty("kind", "note")
        self.setAccessibleName("Recorded run")
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)
        self._mark = label("", "title")
        self._words = ElidedLabel()
        self._remarks = ElidedLabel("", "warning")
        self.play = QPushButton("Play")
        self.play.setProperty("kind", "flat")
        set_tip(self.play, "Play the rounds at the speed at which they ran, each lane by its own clock; again stops")
        self.close_button = QPushButton()
        self.close_button.setProperty("kind", "flat")
        self.play.clicked.connect(self.play_asked)
        self.close_button.clicked.connect(self.closed)
        layout.row(
            self._mark, (layout.column(self._words, self._remarks, gap=1), 1), self.play, self.close_button,
            on=frame, gap=12, margins=(12, 3, 6, 3)
        )
        layout.column(frame, on=self, margins=(10, 8, 10, 0))
        self.hide()

    def show_run(self, opened: Opened | None) -> None:
        """Say what is on screen; None hides the line."""
        self.setVisible(opened is not None)
        if opened is None:
            return
        what = "Recorded runs compared" if opened.beside else "Recorded run"
        self._mark.setText(f"◷ {what}")
        self._words.set_full(visible(f"No model is loaded, Run goes back to live. {opened.words}"))
        self._say(opened.remarks)
        self.play.show()
        self._name_close("Close", "Take the recorded run off the screen; it stays where it is kept")

    def show_progress(self, name: str, fraction: float) -> None:
        """Say how far a file is read."""
        self._mark.setText("◷ Opening")
        self._words.set_full(visible(f"{name}: {fraction:.0%}"))
        self._say(())
        self.play.hide()
        self._name_close("Stop", "Read on no further")
        self.show()

    def _name_close(self, words: str, tip: str) -> None:
        if self.close_button.text() != words:
            self.close_button.setText(words)
            set_tip(self.close_button, tip)

    def show_playing(self, playing: bool) -> None:
        """Show whether the recording is being played."""
        self.play.setText("Stop playing" if playing else "Play")

    def _say(self, remarks: tuple[str, ...]) -> None:
        text = ". ".join(remark[:1].upper() + remark[1:] for remark in remarks)
        self._remarks.set_full(visible(text))
        self._remarks.setVisible(bool(text))

    @property
    def words(self) -> str:
        """All that is said."""
        return f"{self._mark.text()} {self._words.full} {self._remarks.full}".strip()
