"""Playing a race again: play, pause, step, seek and speed, and the row at the page's foot that drives them.

A race under way is paused, stepped and slowed by the same controls, between its rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from PySide6.QtCore import QObject, QPointF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QIcon, QKeyEvent, QMouseEvent, QPainter, QPixmap, QPolygonF, QResizeEvent
from PySide6.QtWidgets import (
    QApplication,
    QButtonGroup,
    QLayout,
    QSizePolicy,
    QSlider,
    QStyle,
    QStyleOptionSlider,
    QToolButton,
    QWidget,
)

from specview.gui.link.controller import Controller
from specview.gui.link.pace import Later, every
from specview.gui.parts import layout, theme
from specview.gui.parts.widgets import button, label, set_tip
from specview.gui.state.playhead import Playhead

FRAME_MS = 16
LEAST_MS = 4
PLOTS_MS, NUMBERS_MS = 100, 250
SHARE = 0.3
"""Of the Qt thread's time: what plots, and what figures may take while a race is played."""
READABLE = 1 / 4
"""Up to this speed what happens is said in words too."""


@dataclass(frozen=True, slots=True)
class Speed:
    """A speed: its sign on a button, and in words."""

    sign: str
    words: str


SPEEDS = {
    1 / 8: Speed("⅛×", "⅛ of true speed"), 1 / 4: Speed("¼×", "¼ of true speed"), 1 / 2: Speed("½×", "½ of true speed"),
    1.0: Speed("1×", "true speed"), 2.0: Speed("2×", "twice true speed"), 4.0: Speed("4×", "4 times true speed"),
}  # fmt: skip
"""Against the lanes' own clocks."""


class Transport(QObject):
    """Plays the race on screen, finished or recorded, at the true relative speeds of its lanes.

    While a race runs it holds that one back instead. changed: of anything that can be read here.
    """

    changed = Signal()

    def __init__(
        self, controller: Controller, parent: QObject | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        super().__init__(parent)
        self._controller, self._clock = controller, clock
        self._pacer = controller.engine.pacer
        self._head: Playhead | None = None
        self._playing = False
        self._speed = 1.0
        self._since = 0.0, 0.0  # (this clock, the lanes' clocks) that it has played from
        self._timer = every(self, FRAME_MS, self.advance)
        self._timer.setTimerType(Qt.TimerType.PreciseTimer)
        self._plots = Later(self, PLOTS_MS, controller.plot_tick.emit, SHARE)
        self._numbers = Later(self, NUMBERS_MS, controller.number_tick.emit, SHARE)
        for signal in (controller.state_changed, controller.lanes_changed, controller.recorded_changed):
            signal.connect(self._follow)
        self._follow()

    # -- how it stands ---------------------------------------------------------------------------

    @property
    def live(self) -> bool:
        """Whether a race is under way: it can be held back, not played."""
        return self._controller.racing

    @property
    def available(self) -> bool:
        """Whether there is anything to play, or to hold back."""
        return self.live or self._head is not None

    @property
    def playing(self) -> bool:
        """Whether time goes on."""
        return not self._pacer.paused if self.live else self._playing

    @property
    def speed(self) -> float:
        """One of SPEEDS."""
        return self._pacer.speed if self.live else self._speed

    @property
    def seconds(self) -> float:
        """The moment on screen, of the lanes' own clocks."""
        return 0.0 if self._head is None else self._head.seconds

    @property
    def length(self) -> float:
        """Seconds of the slowest lane."""
        return 0.0 if self._head is None else self._head.length

    @property
    def at_end(self) -> bool:
        """Whether the finished race is on screen."""
        return self._head is None or self._head.at_end

    @property
    def words(self) -> str:
        """What happens at this moment, in one plain sentence; '' where nothing does or it goes too fast to be read."""
        return "" if self._head is None else self._head.words

    # -- wishes ----------------------------------------------------------------------------------

    def play(self) -> None:
        """Go on; from the start where the race is at its end."""
        if self.live:
            self._pacer.go_on()
        elif self._head is not None:
            if self._head.at_end:
                self._head.seek(0.0)
            self._playing = True
            self._anchor()
            self._timer.start(FRAME_MS)
            self._show()
        self.changed.emit()

    def pause(self) -> None:
        """Stand still."""
        if self.live:
            self._pacer.pause()
        elif self._playing:
            self.advance()
            self._stand()
            self._show()
        self.changed.emit()

    def toggle(self) -> None:
        """Play, or pause."""
        if self.playing:
            self.pause()
        else:
            self.play()

    def step_phase(self, by: int = 1) -> None:
        """Stand, one phase on or back: the next thing that happens in any lane. A race under way does a round."""
        self._step(by, Playhead.step_phase)

    def step_round(self, by: int = 1) -> None:
        """Stand, where the next round of any lane is over, or back where the one before was."""
        self._step(by, Playhead.step_round)

    def page(self, by: int = 1) -> None:
        """Stand, a round of the leading lane on or back."""
        self._step(by, Playhead.page)

    def _step(self, by: int, step: Callable[[Playhead, int], None]) -> None:
        if self.live:
            if by > 0:
                self._pacer.step(by)
        elif self._head is not None:
            self._stand()
            step(self._head, by)
            self._show()
        self.changed.emit()

    def seek(self, seconds: float) -> None:
        """Show this moment; what was played goes on from there."""
        if self._head is not None and not self.live:
            self._head.seek(seconds)
            self._anchor()
            self._show()

    def set_speed(self, speed: float) -> None:
        """Play at one of SPEEDS; a race under way is slowed, never hastened."""
        if self.live:
            self._pacer.set_speed(speed)
        else:
            if self._playing:
                self.advance()
            self._speed = speed
            self._anchor()
        self.changed.emit()

    def slower(self) -> None:
        """The next lower of SPEEDS."""
        self.set_speed(max((speed for speed in SPEEDS if speed < self.speed), default=self.speed))

    def faster(self) -> None:
        """The next higher of SPEEDS."""
        self.set_speed(min((speed for speed in SPEEDS if speed > self.speed), default=self.speed))

    def take_key(self, event: QKeyEvent) -> bool:
        """Do what a key stands for; False where it is none of ours."""
        held = event.modifiers() & (Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.AltModifier | Qt.KeyboardModifier.MetaModifier)
        alone = held == Qt.KeyboardModifier.NoModifier or held == Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.AltModifier
        act = ACTS.get(event.text()) if alone and self.available else None
        if act is not None:
            act[1](self)
        return act is not None

    @property
    def entries(self) -> list[tuple[str, Callable[[], None]]]:
        """Entries of a menu: words, the key behind a tab, and what they do."""
        return [(f"{words}\t{'Space' if key == ' ' else key}", partial(act, self)) for key, (words, act) in ACTS.items()]

    # -- time ------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Show all that has happened by now; the timer calls it while a race is played."""
        head = self._head
        if head is None or not self._playing:
            return
        now, (since, began) = self._clock(), self._since
        head.seek(began + (now - since) * self._speed)
        if head.at_end:
            self._stand()
        else:
            self._timer.setInterval(self._until_next(head))
        self._show()

    def _until_next(self, head: Playhead) -> int:
        """Milliseconds until something happens, within a frame."""
        due = ((head.next_s or 0.0) - head.seconds) / self._speed * 1e3
        return round(min(max(due, LEAST_MS), FRAME_MS))

    def _anchor(self) -> None:
        self._since = self._clock(), self.seconds

    def _stand(self) -> None:
        self._playing = False
        self._timer.stop()

    def _show(self) -> None:
        """Let the views follow: text now, plots and figures a little later, the end of the race at once."""
        controller = self._controller
        if self._head is not None:
            self._head.quiet = self._playing and self._speed > READABLE
        controller.text_tick.emit()
        if self.at_end:
            self._plots.stop()
            self._numbers.stop()
            controller.plot_tick.emit()
            controller.number_tick.emit()
        else:
            self._plots.ask()
            self._numbers.ask()
        self.changed.emit()

    def _follow(self) -> None:
        """Another race is on screen, or one runs."""
        head = self._controller.playhead
        if head is not self._head:
            self._stand()
            self._head = head
        self.changed.emit()


ACTS: dict[str, tuple[str, Callable[[Transport], None]]] = {
    " ": ("&Play or pause", Transport.toggle),
    ".": ("&On by a phase", Transport.step_phase),
    ",": ("&Back by a phase", lambda transport: transport.step_phase(-1)),
    ">": ("On by a &round", Transport.step_round),
    "<": ("Back by a ro&und", lambda transport: transport.step_round(-1)),
    "[": ("&Slower", Transport.slower),
    "]": ("&Faster", Transport.faster),
}
"""What the keys of the race page do, where the keyboard is in no text, and its words in a menu."""


def time_text(seconds: float, length: float) -> str:
    """'1.1 of 1.8 s'."""
    digits = 2 if length < 1 else 1 if length < 100 else 0
    return f"{seconds:.{digits}f} of {length:.{digits}f} s"


# -- the row -------------------------------------------------------------------------------------------------

_SHAPES: dict[str, tuple[tuple[tuple[float, float], ...], ...]] = {
    "play": (((3, 1), (11, 6), (3, 11)),),
    "pause": (((2, 1), (5, 1), (5, 11), (2, 11)), ((7, 1), (10, 1), (10, 11), (7, 11))),
    "start": (((1, 1), (3, 1), (3, 11), (1, 11)), ((11, 1), (4, 6), (11, 11))),
    "back": (((9, 2), (3, 6), (9, 10)),),
}
"""Signs on a square of 12: fonts do not have them, or have them as coloured pictures."""


def _icon(name: str) -> QIcon:
    """A sign in the present theme's inks."""
    found = QIcon()
    side, now = theme.px(12), theme.current()
    for mode, ink in ((QIcon.Mode.Normal, now.ink), (QIcon.Mode.Disabled, now.faint)):
        sharp = 2
        picture = QPixmap(side * sharp, side * sharp)
        picture.setDevicePixelRatio(sharp)
        picture.fill(Qt.GlobalColor.transparent)
        painter = QPainter(picture)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(ink))
        painter.scale(side / 12, side / 12)
        for shape in _SHAPES[name]:
            painter.drawPolygon(QPolygonF([QPointF(x, y) for x, y in shape]))
        painter.end()
        found.addPixmap(picture, mode)
    return found


_SCRUBBER = 150
"""The scrubber keeps so many pixels, at font scale 1, before words, speeds and the step by rounds are shown."""


class Scrubber(QSlider):
    """The moment of the race: arrows go by phases, Page Up and Down by a round of the leader, Home and End to the ends."""

    STEPS = 10_000

    def __init__(self, transport: Transport) -> None:
        super().__init__(Qt.Orientation.Horizontal)
        self._transport = transport
        self.setRange(0, self.STEPS)
        self.setAccessibleName("Moment of the race")
        self.valueChanged.connect(self._moved)
        self.setMinimumWidth(theme.px(40))

    def follow(self) -> None:
        """Stand where the race does."""
        transport = self._transport
        part = 1.0 if transport.at_end or not transport.length else transport.seconds / transport.length
        self.blockSignals(True)
        self.setValue(round(part * self.STEPS))
        self.blockSignals(False)

    def _moved(self, value: int) -> None:
        self._transport.seek(self._transport.length * value / self.STEPS)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Take the handle along to where the groove is clicked, as players do; Qt would only go there by tiny pages."""
        option = QStyleOptionSlider()
        self.initStyleOption(option)
        style, kind = self.style(), QStyle.ComplexControl.CC_Slider
        handle = style.subControlRect(kind, option, QStyle.SubControl.SC_SliderHandle, self)
        if event.button() == Qt.MouseButton.LeftButton and not handle.contains(event.position().toPoint()):
            groove = style.subControlRect(kind, option, QStyle.SubControl.SC_SliderGroove, self)
            room = groove.width() - handle.width()
            self.setValue(QStyle.sliderValueFromPosition(0, self.STEPS, round(event.position().x()) - groove.x() - handle.width() // 2, room))
        super().mousePressEvent(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Go by what happens, not by pixels."""
        transport, keys = self._transport, Qt.Key
        by = {keys.Key_Right: 1, keys.Key_Up: 1, keys.Key_Left: -1, keys.Key_Down: -1}.get(keys(event.key()))
        page = {keys.Key_PageUp: 1, keys.Key_PageDown: -1}.get(keys(event.key()))
        if event.key() == Qt.Key.Key_Home:
            transport.seek(0.0)
        elif event.key() == Qt.Key.Key_End:
            transport.seek(transport.length)
        elif by is not None:
            transport.step_phase(by)
        elif page is not None:
            transport.page(page)
        else:
            event.ignore()


class TransportBar(QWidget):
    """The row that drives a Transport: to the start, back, play, step, round, speeds, the scrubber, and where it is."""

    def __init__(self, transport: Transport) -> None:
        super().__init__()
        self._transport = transport
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.start = button(QToolButton, "", "To the start", lambda: transport.seek(0.0), name="To the start")
        self.back = button(QToolButton, "", "Back by one phase (,); with Shift by a round (<)", lambda: self._step(-1), name="Step back")
        self.play = button(QToolButton, "", "", transport.toggle)
        self.step = button(QToolButton, "step ▸", "On by one phase: a draft, the target's pass, a judgement, the final token (.); with "
                           "Shift by a round. A race under way runs one round", lambda: self._step(1), name="Step")  # fmt: skip
        self.round = button(QToolButton, "round ▸", "On to where the next round of any lane is over (>)", lambda: transport.step_round(1),
                            name="Step by a round")  # fmt: skip
        self.speeds: dict[float, QToolButton] = {}
        self._group = QButtonGroup(self)
        for speed, words in SPEEDS.items():
            one = button(QToolButton, words.sign, f"At {words.words} ([ and ] go slower and faster)",
                         lambda _=False, speed=speed: transport.set_speed(speed), kind="caption", name=f"At {words.words}")  # fmt: skip
            one.setCheckable(True)
            self._group.addButton(one)
            self.speeds[speed] = one
        self.scrubber = Scrubber(transport)
        self.where = label("", "small")
        self.where.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self._shown = QWidget()
        self._choices = QWidget()
        layout.row(*self.speeds.values(), on=self._choices, gap=0)
        layout.row(
            self.start, self.back, self.play, self.step, self.round, self._choices, (self.scrubber, 1), self.where, on=self._shown,
            gap=theme.px(6)
        )
        layout.row((self._shown, 1), on=self).setSizeConstraint(QLayout.SizeConstraint.SetNoConstraint)
        theme.signals.changed.connect(self._restyle)
        transport.changed.connect(self.refresh)
        self._sign = ""
        self._restyle()

    def minimumSizeHint(self) -> QSize:
        """Narrow enough for a small window: what has no room goes, by `_fit`."""
        return QSize(theme.px(160), theme.px(28))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        """In a narrow row the words go first, then the speeds and the step by rounds: the keys still do all of it."""
        room = self.width() - theme.px(_SCRUBBER) - sum(
            one.sizeHint().width() + theme.px(6) for one in (self.start, self.back, self.play, self.step)
        )
        for part, wide in ((self.round, 0), (self._choices, 0), (self.where, self.where.minimumWidth())):
            room -= (wide or part.sizeHint().width()) + theme.px(6)
            part.setVisible(room >= 0)

    def _step(self, by: int) -> None:
        held = QApplication.keyboardModifiers() & Qt.KeyboardModifier.ShiftModifier
        (self._transport.step_round if held else self._transport.step_phase)(by)

    def _restyle(self) -> None:
        self._sign = ""
        for one in (self.start, self.back, self.play, self.step, self.round):
            one.setIconSize(QSize(theme.px(12), theme.px(12)))
            one.setFixedHeight(theme.px(26))
        self.start.setIcon(_icon("start"))
        self.back.setIcon(_icon("back"))
        self.where.setFixedWidth(self.where.fontMetrics().horizontalAdvance("188.8 of 188.8 s, at 4 times true speed"))
        self.refresh()
        self._fit()

    @property
    def words(self) -> str:
        """Where the race is, and how fast it goes."""
        transport = self._transport
        if transport.live:
            pace = "" if transport.speed == 1 else f"slowed to {SPEEDS[transport.speed].sign}"
            return "paused" if not transport.playing else pace or "live"
        return f"{time_text(transport.seconds, transport.length)}, at {SPEEDS[transport.speed].words}"

    def refresh(self) -> None:
        """Show how it stands."""
        transport = self._transport
        if self._shown.isHidden() == transport.available:
            self._shown.setVisible(transport.available)
        if not transport.available:
            return
        sign = "pause" if transport.playing else "play"
        if sign != self._sign:
            self._sign = sign
            self.play.setIcon(_icon(sign))
            self.play.setAccessibleName(sign.capitalize())
            set_tip(self.play, "Stand still (Space)" if sign == "pause" else "Play at the true relative speeds of the lanes (Space)")
        live = transport.live
        for one in (self.start, self.back, self.scrubber):
            one.setEnabled(not live)
        for speed, chosen in self.speeds.items():
            chosen.setEnabled(not live or speed <= 1)
            chosen.setChecked(speed == transport.speed)
        self.scrubber.follow()
        if self.words != self.where.text():
            self.where.setText(self.words)
            self.scrubber.setAccessibleDescription(self.words)
