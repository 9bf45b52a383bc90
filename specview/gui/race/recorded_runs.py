"""What ties recorded runs to the window: opening them, the line that says so, playing them, going back to live."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QFileDialog, QFrame, QPushButton, QSizePolicy, QWidget

from specview.decoding.round_table import RoundTable
from specview.gui.link.open_run import Opened, Pick, RunOpener
from specview.gui.link.pace import every
from specview.gui.parts import layout
from specview.gui.parts.pages import RACE
from specview.gui.parts.widgets import ElidedLabel, button, label, set_tip
from specview.gui.race.foreign_models import SetupWindow
from specview.gui.state.display_text import visible
from specview.gui.state.view_model import LaneModel, RaceModel
from specview.settings.run import LaneSettings, RunSettings

PLAY_MS = 33
NUMBERS_EVERY = 8
"""Figures are written this many times more rarely than text while a recording is played."""


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
        self.play = button(QPushButton, "Play", "Play the rounds at the speed at which they ran, each lane by its own "
                           "clock; again stops", self.play_asked, kind="flat")  # fmt: skip
        self.close_button = button(QPushButton, "", "", self.closed, kind="flat")
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


class RecordedRuns(QObject):
    """Opens recorded runs in a window's race page."""

    def __init__(self, window: SetupWindow, open_page: Callable[[str], None]) -> None:
        super().__init__(window.page)
        self._window = window
        self._open_page = open_page
        self._controller = window.controller
        self.opener = RunOpener(self, "specview-open")
        self.bar = RecordedBar()
        self.player = Player(self)
        rows = window.page.layout()
        assert rows is not None
        rows.insertWidget(0, self.bar)  # type: ignore[attr-defined]
        self._opening = ""
        self._before: tuple[RunSettings, str] | None = None  # the setup and its rule, as they were before
        self._taken: RunSettings | None = None  # the setup as opening made it
        self.opener.opened.connect(self._show)
        self.opener.failed.connect(self._failed)
        self.opener.progressed.connect(lambda _, fraction: self.bar.show_progress(self._opening, fraction))
        self.opener.changed.connect(self._read)
        self.bar.closed.connect(self._close_or_stop)
        self.bar.play_asked.connect(self.toggle_play)
        self._controller.recorded_changed.connect(self._changed)

    # -- opening -------------------------------------------------------------------------------

    def ask(self) -> None:
        """Ask for a trace file, or several, and open it."""
        from specview.library.library import runs_folder

        folder = runs_folder()
        start = str(folder) if folder.is_dir() else ""
        names, _ = QFileDialog.getOpenFileNames(
            self._window.page.window(), "Open a trace", start, "Traces (*.jsonl);;All files (*)"
        )
        if names:
            self.open([Pick(Path(name)) for name in names])

    def open(self, picks: Sequence[Pick]) -> None:
        """Open a recorded run, or several compared; refused while a race runs."""
        if self._controller.racing:
            self._window.show_message("A race is running. Stop it before opening a recorded run.", "warning")
            return
        self._window.clear_message()
        self._opening = ", ".join(pick.title for pick in picks)
        self.opener.open(picks)

    def close_run(self) -> None:
        """Take the recorded run off the screen: the setup is as it was before, what was changed in it since stays."""
        window, before, taken = self._window, self._before, self._taken
        self._controller.close_recorded()
        if before is None or taken is None:
            window.show_lanes()
            return
        settings, rule = before
        now = window.own_settings()
        edited = {item.name: value for item in fields(now) if (value := getattr(now, item.name)) != getattr(taken, item.name)}
        window.show_setup(replace(settings, **edited), rule)

    def _close_or_stop(self) -> None:
        if self.opener.busy:
            self.opener.drop()
        else:
            self.close_run()

    def shut(self) -> None:
        """The window closes."""
        self.player.stop()
        self.opener.close()

    def _show(self, opened: Opened) -> None:
        window, controller = self._window, self._controller
        if controller.racing:  # it was started meanwhile
            window.show_message("A race has started: the recorded run was not opened.", "warning")
            return
        before = self._before or (window.own_settings(), window.setup.rule.value() or "auto")
        shown: list[LaneSettings] = []
        if opened.settings is not None and not opened.beside:
            window.take_settings(opened.settings)
            shown = [window.lane_settings[opened.settings.lanes.index(lane)] for lane in opened.own]
            opened.remarks += (window.foreign.words,) if window.foreign.words else ()
        self._open_page(RACE)
        controller.show_recorded(opened.race, opened, shown)
        self._before, self._taken = before, window.own_settings()

    def _failed(self, line: str) -> None:
        self._window.show_message(line)

    def _read(self) -> None:
        if not self.opener.busy:  # nothing is read any more
            self.player.stop()
            self.bar.show_run(self._controller.recorded)

    def _changed(self) -> None:
        """Follow what is on screen: a recorded run or a live race."""
        self.player.stop()
        if self._controller.recorded is None:
            self._before = self._taken = None
        if not self.opener.busy:
            self.bar.show_run(self._controller.recorded)

    # -- playing -------------------------------------------------------------------------------

    def toggle_play(self) -> None:
        """Play the recording from its start; while it plays, show the whole of it again."""
        if self.player.playing:
            self.player.stop()
        elif self._controller.recorded is not None:
            self.player.play(self._controller.recorded.race)
        self.bar.show_playing(self.player.playing)


class Player(QObject):
    """Plays a recorded race on the controller's race: every lane's rounds come when its own clock says."""

    def __init__(self, runs: RecordedRuns) -> None:
        super().__init__(runs)
        self._runs = runs
        self._controller = runs._controller
        self._whole: RaceModel | None = None
        self._pairs: list[tuple[LaneModel, LaneModel]] = []
        self._began = 0.0
        self._ticks = 0
        self._timer = every(self, PLAY_MS, self._tick)

    @property
    def playing(self) -> bool:
        """Whether a recording is being played."""
        return self._whole is not None

    def play(self, whole: RaceModel) -> None:
        """Start at the beginning."""
        self._whole = whole
        self._pairs = []
        for done in whole.lanes:
            lane = LaneModel(name=done.name, settings=done.settings, state="running", table=RoundTable(prefill_s=done.prefill_s),
                             kv_bytes=done.kv_bytes, draft_weight_bytes=done.draft_weight_bytes, differs=done.differs)  # fmt: skip
            self._pairs.append((done, lane))
        self._controller.race.lanes = [lane for _, lane in self._pairs]
        self._began, self._ticks = time.perf_counter(), 0
        self._controller.redraw()
        self._timer.start()

    def stop(self) -> None:
        """Show the whole recording again, if one is being played."""
        whole, self._whole = self._whole, None
        self._timer.stop()
        if whole is not None:
            if self._controller.recorded is not None and self._controller.recorded.race is whole:
                self._controller.race.show(whole)
                self._controller.redraw()
            self._runs.bar.show_playing(False)

    def _tick(self) -> None:
        self.advance(time.perf_counter() - self._began)

    def advance(self, seconds: float) -> None:
        """Show every round that had ended by this time of the lanes' clocks."""
        left = False
        for done, lane in self._pairs:
            while len(lane.rounds) < len(done.rounds) and done.rounds[len(lane.rounds)].t <= seconds:
                lane.add(done.rounds[len(lane.rounds)])
            if len(lane.rounds) < len(done.rounds):
                left = True
            elif lane.state != "ended":
                lane.state, lane.end, lane.error = "ended", done.end, done.error
                lane.final_metrics, lane.final_speedup, lane.equality = done.final_metrics, done.final_speedup, done.equality
                lane.version += 1
        self._ticks += 1
        self._controller.text_tick.emit()
        if self._ticks % 3 == 0:
            self._controller.plot_tick.emit()
        if self._ticks % NUMBERS_EVERY == 0:
            self._controller.number_tick.emit()
        if not left:
            self.stop()
