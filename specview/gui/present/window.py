"""The full-screen window of a presentation: its keys, what shows while the pointer moves, the black screen."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, QObject, QPointF, Qt, Signal
from PySide6.QtGui import (
    QCloseEvent,
    QColor,
    QDragEnterEvent,
    QDropEvent,
    QFontMetricsF,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QResizeEvent,
)
from PySide6.QtWidgets import QToolButton, QWidget

from specview.gui.link.controller import Controller
from specview.gui.link.pace import Later
from specview.gui.parts import layout, theme
from specview.gui.parts.painted import box, ink, pen, words
from specview.gui.parts.widgets import button, dropped_paths
from specview.gui.present.sizes import NAME, NOTE, PAD, Sizes
from specview.gui.present.stage import Stage
from specview.gui.race.transport import Transport
from specview.gui.state import present_words

REST_MS, KEYS_MS, NOTE_MS = 2000, 8000, 4000
Keys = Qt.Key


class KeyList(QWidget):
    """What the keys do, over the middle of the screen; it goes by itself."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.sizes, self._left = Sizes(720), 0.0
        self.setAccessibleName("Keys: " + "; ".join(f"{keys}: {what}" for keys, what in present_words.KEYS))
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self._later = Later(self, KEYS_MS, self.hide)
        self.hide()

    def toggle(self) -> None:
        """Show them for some seconds, or hide them."""
        self._later.stop()
        self.setVisible(not self.isVisible())
        if self.isVisible():
            self.raise_()
            self._later.start()

    def fit(self, sizes: Sizes, width: int) -> None:
        """Stand in the middle of a window."""
        self.sizes = sizes
        metrics, row = QFontMetricsF(sizes.font(NAME)), sizes.px(NAME * 1.6)
        self._left = max(metrics.horizontalAdvance(keys) for keys, _ in present_words.KEYS)
        wide = self._left + max(metrics.horizontalAdvance(what) for _, what in present_words.KEYS) + 5 * sizes.px(PAD)
        high = len(present_words.KEYS) * row + 2 * sizes.px(PAD)
        self.setGeometry(round((width - wide) / 2), (sizes.height - high) // 2, round(wide), high)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        box(painter, self.rect().toRectF().adjusted(1, 1, -1, -1), pen(ink("muted"), 2), QColor(theme.current().panel), 10)
        pad, row = self.sizes.px(PAD), self.sizes.px(NAME * 1.6)
        keys_font, font = self.sizes.font(NAME, bold=True), self.sizes.font(NAME)
        for place, (keys, what) in enumerate(present_words.KEYS):
            level = pad + place * row + row * 0.7
            words(painter, QPointF(pad, level), keys, keys_font, ink("ink"))
            words(painter, QPointF(3 * pad + self._left, level), what, font, ink("muted"))


class Black(QWidget):
    """A black screen."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setAccessibleName("Black screen: any key goes back")
        self.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.hide()

    def paintEvent(self, event: QPaintEvent) -> None:
        QPainter(self).fillRect(event.rect(), Qt.GlobalColor.black)


class PresentWindow(QWidget):
    """Shows a controller's race over the whole screen and plays it by keys.

    signals: turned(-1 or 1: another run of the playlist is wanted), again (run the live race anew), advance_toggled,
    titled(text), dropped(paths), left (it is closed).
    """

    turned = Signal(int)
    again = Signal()
    advance_toggled = Signal()
    titled = Signal(str)
    dropped = Signal(list)
    left = Signal()

    def __init__(self, controller: Controller, player: Transport, parent: QWidget | None = None) -> None:
        super().__init__(parent, Qt.WindowType.Window)
        self.setWindowTitle("specview: presentation")
        self.setAccessibleName("Presentation")
        self.setMouseTracking(True)
        self.setAcceptDrops(True)
        self.controller, self.player = controller, player
        self.stage = Stage(controller.race)
        self.stage.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.black, self.keys = Black(self), KeyList(self)
        self.place = ""  # of the playlist, in words
        self._note, self._was_playing = "", False
        self._unsay = Later(self, NOTE_MS, lambda: self.tell(""))
        self._rest = Later(self, REST_MS, self.rest)
        self.chrome = QWidget()
        self.buttons = {
            text: button(QToolButton, text, f"{tip} ({key})", slot, name=tip)
            for text, tip, key, slot in (
                ("Play", "Play or pause", "Space", self.toggle),
                ("Keys", "Show what the keys do", "H", self.keys.toggle),
                ("Leave", "Leave the presentation", "Esc", self.close),
            )
        }
        for one in self.buttons.values():
            one.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # the keys are the window's
        layout.row(*self.buttons.values(), on=self.chrome, gap=6)
        self.stage.top.addWidget(self.chrome)
        layout.column((self.stage, 1), on=self)
        for part in (self.stage.title, self.chrome, *self.buttons.values()):
            part.installEventFilter(self)
            part.setMouseTracking(True)
        self._actions: dict[int, Callable[[], object]] = {
            Keys.Key_Space: self.toggle,
            Keys.Key_Right: lambda: self._play(lambda player: player.step_phase(1)),
            Keys.Key_Left: lambda: self._play(lambda player: player.step_phase(-1)),
            Keys.Key_Period: lambda: self._play(lambda player: player.step_phase(1)),  # as in the window
            Keys.Key_Comma: lambda: self._play(lambda player: player.step_phase(-1)),
            Keys.Key_Greater: lambda: self._play(lambda player: player.step_round(1)),
            Keys.Key_Less: lambda: self._play(lambda player: player.step_round(-1)),
            Keys.Key_BracketRight: lambda: self._play(lambda player: player.faster()),
            Keys.Key_BracketLeft: lambda: self._play(lambda player: player.slower()),
            Keys.Key_Up: lambda: self._play(lambda player: player.faster()),
            Keys.Key_Plus: lambda: self._play(lambda player: player.faster()),
            Keys.Key_Equal: lambda: self._play(lambda player: player.faster()),
            Keys.Key_Down: lambda: self._play(lambda player: player.slower()),
            Keys.Key_Minus: lambda: self._play(lambda player: player.slower()),
            Keys.Key_Home: lambda: self._play(lambda player: player.seek(0.0)),
            Keys.Key_End: lambda: self._play(lambda player: player.seek(player.length)),
            Keys.Key_N: lambda: self.turned.emit(1),
            Keys.Key_PageDown: lambda: self.turned.emit(1),
            Keys.Key_P: lambda: self.turned.emit(-1),
            Keys.Key_PageUp: lambda: self.turned.emit(-1),
            Keys.Key_A: self.advance_toggled.emit,
            Keys.Key_R: self.again.emit,
            Keys.Key_B: lambda: self.set_black(True),
            Keys.Key_T: self.edit_title,
            Keys.Key_H: self.keys.toggle,
            Keys.Key_Question: self.keys.toggle,
            Keys.Key_Escape: self.close,
            Keys.Key_F11: self.close,
        }
        self.stage.title.edited.connect(self.titled)
        self.stage.title.done.connect(self.stage.setFocus)
        controller.lanes_changed.connect(self.stage.rebuild)
        controller.text_tick.connect(self.stage.refresh)
        controller.number_tick.connect(self.stage.refresh_figures)
        controller.failed.connect(self.tell)
        controller.state_changed.connect(self.say)
        player.changed.connect(self.say)
        theme.signals.changed.connect(self.fit)
        self.say()
        self.stage.setFocus()
        self.wake()

    # -- words -------------------------------------------------------------------------------------

    def tell(self, text: str) -> None:
        """Say something for some seconds in place of the speed."""
        self._note = text
        if text:
            self._unsay.start()
        self.say()

    def say(self) -> None:
        """Say beside the title which one of the playlist it is, how fast it is played, and what happens where that can be read."""
        player = self.player
        parts = [self._note]
        if not self._note:
            parts = [self.place]
            if self.controller.racing:
                progress = self.controller.progress
                parts.append("live" if self.controller.race_running else "loading" if progress is None else progress.text)
            elif player.available:
                paused = not player.playing and not player.at_end
                parts += [present_words.speed_words(player.speed), player.words or ("paused" if paused else "")]
        self.stage.say(" · ".join(filter(None, parts)))
        self.buttons["Play"].setText("Pause" if player.available and player.playing else "Play")

    # -- wishes ------------------------------------------------------------------------------------

    def _play(self, wish: Callable[[Transport], object]) -> None:
        if self.player.available:
            wish(self.player)
            self.stage.refresh()
            self.stage.refresh_figures()
            self.say()

    def toggle(self) -> None:
        """Play, or pause."""
        self._play(lambda player: player.toggle())

    def edit_title(self) -> None:
        """Put the keyboard into the title."""
        self.stage.title.setFocus()
        self.stage.title.selectAll()

    def set_black(self, on: bool) -> None:
        """Black screen, and back; what plays waits meanwhile."""
        player = self.player
        if on:
            self._was_playing = player.available and player.playing
            if self._was_playing:
                player.pause()
            self.black.raise_()
        self.black.setVisible(on)
        if not on and self._was_playing:
            player.play()

    # -- keys and pointer --------------------------------------------------------------------------

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Do what a key stands for; on a black screen any key goes back."""
        if self.black.isVisible():
            self.set_black(False)
            return
        shift = bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier)
        if shift and event.key() in (Keys.Key_Left, Keys.Key_Right):
            self._play(lambda player: player.step_round(1 if event.key() == Keys.Key_Right else -1))
        elif event.modifiers() & (Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.AltModifier):
            super().keyPressEvent(event)
        elif event.key() in self._actions:
            self._actions[event.key()]()
        else:
            super().keyPressEvent(event)

    def wake(self) -> None:
        """Show pointer and chrome until they rest."""
        if self.chrome.isHidden():
            self.chrome.show()
        self.unsetCursor()
        self.stage.title.setCursor(Qt.CursorShape.IBeamCursor)
        self._rest.start()

    def rest(self) -> None:
        """Hide pointer and chrome, unless the title is being edited."""
        if not self.stage.title.hasFocus():
            self.chrome.hide()
            self.setCursor(Qt.CursorShape.BlankCursor)
            self.stage.title.setCursor(Qt.CursorShape.BlankCursor)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        self.wake()
        super().mouseMoveEvent(event)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """A click beside the title ends editing it."""
        self.stage.setFocus()
        self.wake()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.MouseMove:
            self.wake()
        return super().eventFilter(watched, event)

    # -- drops -------------------------------------------------------------------------------------

    def dragEnterEvent(self, event: QDragEnterEvent) -> None:
        """Take files: they become the playlist."""
        if dropped_paths(event.mimeData()):
            event.acceptProposedAction()

    def dropEvent(self, event: QDropEvent) -> None:
        if found := dropped_paths(event.mimeData()):
            event.acceptProposedAction()
            self.dropped.emit(found)

    # -- the window --------------------------------------------------------------------------------

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.fit()

    def fit(self) -> None:
        """Take the sizes of the present height."""
        self.black.setGeometry(self.rect())
        self.keys.fit(Sizes(self.height()), self.width())
        for one in self.buttons.values():
            one.setFont(Sizes(self.height()).font(NOTE))

    def closeEvent(self, event: QCloseEvent) -> None:
        """Leave: nothing of it goes on."""
        for later in (self._rest, self._unsay):
            later.stop()
        super().closeEvent(event)
        self.left.emit()
