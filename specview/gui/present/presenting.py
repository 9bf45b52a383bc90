"""What ties a presentation to the window: the button, F11, the playlist, what rests beneath it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from PySide6.QtCore import QObject, Qt
from PySide6.QtWidgets import QPushButton, QWidget

from specview.gui.link.controller import Controller
from specview.gui.link.open_run import Opened, Pick
from specview.gui.link.pace import Later
from specview.gui.parts.widgets import button
from specview.gui.race.page import RacePage
from specview.gui.race.recorded_runs import RecordedRuns
from specview.gui.state import present_words

if TYPE_CHECKING:  # who presents pays for it, not every start
    from specview.gui.present.window import PresentWindow

ADVANCE_MS = 5000
"""How long the end of a run stays before the playlist goes on by itself."""


class PresentedWindow(Protocol):
    """What a presentation needs of the window whose race it shows."""

    page: RacePage
    controller: Controller
    recorded: RecordedRuns

    def run(self) -> None: ...
    def show_message(self, text: str, kind: str = "error") -> None: ...


class Presenting(QObject):
    """Opens and closes the presentation of a window's race."""

    def __init__(self, window: PresentedWindow) -> None:
        super().__init__(window.page)
        self._window = window
        self.player = window.page.transport
        self.screen: PresentWindow | None = None
        self.playlist: list[Pick] = []
        self.at = 0
        self.auto = False
        self.titles: dict[str, str] = {}  # as changed, of each run and of the live race; for this session
        self._title_of: tuple[str, int] | None = None
        self._wanted = False  # a run that is being opened is to be presented
        self._ended = False
        self._on = Later(self, ADVANCE_MS, self._go_on)
        self.button = button(QPushButton, "Present  F11", "Show this race to a room: full screen, big tokens, played by keys (F11)",
                             self.toggle, name="Present")  # fmt: skip
        window.page.foot.addWidget(self.button, 0, Qt.AlignmentFlag.AlignRight)
        window.recorded.opener.opened.connect(self._opened)
        window.recorded.opener.failed.connect(self._failed)
        self.player.changed.connect(self._played)

    # -- opening and leaving -----------------------------------------------------------------------

    def toggle(self) -> None:
        """Present the race on screen, or leave."""
        if self.screen is not None:
            self.screen.close()
        else:
            self.playlist, self.at = [], 0
            self.open()

    def present(self, picks: Sequence[Pick]) -> None:
        """Present recorded runs in order; the first is opened, then the screen is taken."""
        if picks and self._free():
            self.playlist, self.at, self._wanted = list(picks), 0, True
            self._open_run()

    def _free(self) -> bool:
        """Whether a run can be opened; says why not."""
        racing = self._window.controller.racing
        if racing:
            words = "A race is running. Stop it before presenting a recorded run."
            (self.tell if self.screen is not None else partial(self._window.show_message, kind="warning"))(words)
        return not racing

    def open(self) -> None:
        """Take the whole screen that the window is on."""
        from specview.gui.present.window import PresentWindow

        owner = self._window.page.window()
        self.screen = screen = PresentWindow(self._window.controller, self.player, owner)
        screen.left.connect(self._left)
        screen.turned.connect(self.turn)
        screen.again.connect(self._again)
        screen.titled.connect(self._titled)
        screen.advance_toggled.connect(self.toggle_advance)
        screen.dropped.connect(lambda paths: self.present([Pick(path) for path in paths]))
        self._window.controller.lanes_changed.connect(self._show_title)
        self._title_of = None
        self._show_title()
        self._show_place()
        self._rest_page(True)
        screen.setScreen(owner.screen())
        screen.setGeometry(owner.screen().geometry())
        screen.showFullScreen()
        screen.activateWindow()

    def _left(self) -> None:
        screen, self.screen = self.screen, None
        self._on.stop()
        if screen is not None:
            self._window.controller.lanes_changed.disconnect(self._show_title)
            self._rest_page(False)
            screen.deleteLater()
            self._window.page.window().activateWindow()

    def shut(self) -> None:
        """The window closes."""
        self._on.stop()
        if self.screen is not None:
            self.screen.close()

    def _rest_page(self, on: bool) -> None:
        """Nobody sees the window beneath: it draws nothing meanwhile, and looks anew at the race afterwards."""
        page: QWidget = self._window.page.window()
        page.setUpdatesEnabled(not on)
        self._window.page.rest(on)

    # -- the playlist ------------------------------------------------------------------------------

    def turn(self, by: int) -> None:
        """Go to the next run of the playlist, or to the one before."""
        place = self.at + by
        if not self.playlist:
            self.tell("No playlist: choose runs in the Runs tab, then Present")
        elif not 0 <= place < len(self.playlist):
            self.tell("This is the last run" if by > 0 else "This is the first run")
        elif self._free():
            self.at = place
            self._open_run()

    def toggle_advance(self) -> None:
        """Go on by itself after each run, or not."""
        self.auto = not self.auto
        self.tell("Goes on to the next run by itself" if self.auto else "Stays at the end of a run")
        if not self.auto:
            self._on.stop()
        elif self._ended:
            self._on.start()

    def _open_run(self) -> None:
        self._on.stop()
        self.tell(f"Opening {self.playlist[self.at].title}")
        self._window.recorded.open([self.playlist[self.at]])

    def _opened(self, opened: Opened) -> None:
        """A run is on the screen: of the playlist it is played from its start."""
        if self._window.controller.recorded is not opened:
            self._wanted = False  # a race has begun meanwhile
            return
        if self._wanted and self.screen is None:
            self.open()
        self._wanted = False
        if self.screen is None:
            return
        self.tell("")
        self._show_place()
        self.player.seek(0.0)
        self.player.play()

    def _failed(self, line: str) -> None:
        self._wanted = False
        self.tell(line)

    def _played(self) -> None:
        """Notice the end of a run."""
        player = self.player
        ended = player.available and not player.playing and player.at_end
        if ended and not self._ended and self.auto and self.screen is not None and self.at + 1 < len(self.playlist):
            self._on.start()
        elif not ended:
            self._on.stop()
        self._ended = ended

    def _go_on(self) -> None:
        if self.screen is not None and self.auto:
            self.turn(1)

    # -- words -------------------------------------------------------------------------------------

    def tell(self, text: str) -> None:
        """Say something on the screen of a presentation; nothing without one."""
        if self.screen is not None:
            self.screen.tell(text)

    def _show_place(self) -> None:
        if self.screen is not None:
            self.screen.place = f"{self.at + 1} of {len(self.playlist)}" if len(self.playlist) > 1 else ""
            self.screen.say()

    def _key(self) -> str:
        """By which a title is kept: a run's files, or the live race."""
        recorded = self._window.controller.recorded
        return "" if recorded is None else "\n".join(str(pick.path) for pick in recorded.picks)

    def _show_title(self) -> None:
        """The run's own title, or one that holds of any race; what was typed stays until another run comes."""
        if self.screen is None:
            return
        race = self._window.controller.race
        of = self._key(), len(race.lanes)
        if of != self._title_of:
            self._title_of = of
            self.screen.stage.title.setText(self.titles.get(of[0]) or self._given() or present_words.title(race))

    def _given(self) -> str:
        """The name that its user gave a recorded run; '' of others."""
        recorded = self._window.controller.recorded
        names = [pick.name for pick in recorded.picks if pick.name] if recorded is not None else []
        return names[0] if len(names) == 1 else ""

    def _titled(self, text: str) -> None:
        self.titles[self._key()] = text

    def _again(self) -> None:
        """Run the live race again; a recorded one is played again."""
        if self._window.controller.recorded is None:
            self._window.run()
        else:
            self.player.seek(0.0)
            self.player.play()
