"""The streaming text of one lane: every token coloured by how it got there.

QTextEdit costs 418 us per coloured insert (FACTS.md). This view lays out only what is new, keeps what
it has laid out, and paints only the lines on screen.
"""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPoint, QRect, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QContextMenuEvent,
    QFocusEvent,
    QHelpEvent,
    QKeyEvent,
    QKeySequence,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QResizeEvent,
)
from PySide6.QtWidgets import QAbstractScrollArea, QApplication, QFrame, QMenu, QToolButton, QToolTip, QWidget

from specview.gui.lanes import spoken
from specview.gui.lanes.token_lines import AT_ONCE, SLICE_S, Place, Pointed, TokenLines
from specview.gui.link.pace import Later, Throttle
from specview.gui.parts import painted, theme
from specview.gui.parts.token_paint import TOKEN_PX
from specview.gui.parts.widgets import button
from specview.gui.state.display_text import clipboard, tooltip
from specview.gui.state.token_looks import TokenLooks
from specview.gui.state.token_words import count_words, token_words
from specview.gui.state.view_model import LaneModel, ViewToken

_RELAYOUT_MS = 40
BRANCH = "Continue from here with…"


class TokenView(QAbstractScrollArea):
    """Shows a lane's tokens.

    Signals carry (round_index, token_index), token_index -1 being a round's final token:
    token_hovered when the pointer comes over a token, token_selected when the cursor moves to one, token_chosen when one
    is clicked or Enter is pressed on it, branch_requested (besides, the id of another token or None) when the text is to
    go on from one in another way (a round of -1: none is under the cursor). scrolled: by hand, not by text that came. pointed: the cursor or the pointer is on
    another token.
    """

    token_hovered = Signal(int, int)
    token_selected = Signal(int, int)
    token_chosen = Signal(int, int)
    branch_requested = Signal(int, int, object)
    scrolled = Signal()
    pointed = Signal()

    def __init__(self, lane: LaneModel | None = None, parent: QWidget | None = None, size: float = TOKEN_PX) -> None:
        """`size` is that of the text in pixels, before the user's font scale."""
        super().__init__(parent)
        spoken.install(TokenView)
        self.lane = lane or LaneModel()
        self.placeholder = ""
        self._looks, self._size = TokenLooks(), size
        self._follow, self._by_hand = True, True
        self._generation = self.lane.generation
        self._current: int | None = None
        self._chosen: tuple[int, int] | None = None  # the current token, even while a replay is before it
        self._hovered: int | None = None
        self._echo: int | None = None  # positions of the output
        self._differs: tuple[int, str] | None = None
        self._anchor: Place | None = None
        self._caret: Place | None = None
        self.lines = self._new_lines()
        self._fresh: TokenLines | None = None  # lines in another width or look, until all is laid out
        self._more = Later(self, 0, self._go_on)
        self._due, self._unshown = Throttle(), 10**9  # the first line that is not painted as it is now
        self._relayout_timer = Later(self, _RELAYOUT_MS, self._relayout)
        tip = "Go to the newest token and stay there (Ctrl+End)"
        self._latest = button(QToolButton, "↓ latest", tip, self._to_latest)
        self._latest.setParent(self)
        self._latest.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._latest.hide()
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.viewport().setMouseTracking(True)
        self.viewport().setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.viewport().setCursor(Qt.CursorShape.IBeamCursor)
        self.verticalScrollBar().valueChanged.connect(self._on_scroll)
        theme.signals.changed.connect(self._relayout)
        self._describe()
        self._update_range()

    # -- what is shown ------------------------------------------------------------------------

    def set_lane(self, lane: LaneModel) -> None:
        """Show another lane from its start."""
        self.lane = lane
        self._reset()
        self.refresh()

    def refresh(self, seconds: float | None = None) -> bool:
        """Show what the lane gained since the last call, or lost (a replay that goes back); True when something changed.

        seconds: of layout; without them all of what is little.
        """
        if self.lane.generation != self._generation:
            self._reset()
        tokens, settled, layout = self.lane.tokens, self.lane.settled, self.lines.layout
        if self._fresh is not None or (layout.settled == settled and layout.tokens[settled:] == tokens[settled:]):
            return False
        empty, kept = not len(layout), min(layout.settled, settled)
        first = self.lines.show(self.lane, self.lines.slice_s(self.lane) if seconds is None else seconds)
        self._find_again(kept)
        first = self._unshown = min(self._unshown, first)
        if len(layout) < len(tokens):
            self._more.ask()
            if seconds is not None and not self._due():
                return True  # shown ten times a second
        self._unshown = 10**9
        if empty or not len(layout):
            self.viewport().update()
        self._update_range()
        if self._follow:
            self._to_end()
        top = self.lines.top(first) - self.verticalScrollBar().value()
        area = self.viewport().rect()
        if top < area.bottom():
            self.viewport().update(QRect(0, max(top, 0), area.width(), area.height()))
        return True

    def _go_on(self) -> None:
        """Lay out what was too much for one go."""
        if self._fresh is not None:
            self._lay_fresh()
        else:
            self.refresh(SLICE_S)

    def _find_again(self, kept: int) -> None:
        """Find the tokens pointed at among those after the first `kept`, which may be others now."""
        layout = self.lines.layout
        if self._hovered is not None and self._hovered >= kept:
            self._hovered = None
        if self._anchor is not None and self._caret is not None and max(self._anchor, self._caret)[0] >= kept:
            self._anchor = self._caret = None
        if self._chosen is not None and (self._current is None or self._current >= kept):
            fresh = range(kept, len(layout))
            same = (i for i in fresh if (layout.tokens[i].round_index, layout.tokens[i].token_index) == self._chosen)
            before, self._current = self._current, layout.holder(next(same, -1))
            if self._current != before:
                self.pointed.emit()

    def set_placeholder(self, text: str) -> None:
        """Set the words shown while there are no tokens."""
        if text != self.placeholder:
            self.placeholder = text
            self.viewport().update()

    def set_looks(self, looks: TokenLooks) -> None:
        """Show thrown-away drafts, blanks and states in this way."""
        before, self._looks = self._looks, looks
        if (before.ghosts, before.whitespace) != (looks.ghosts, looks.whitespace) or "rejected" in before.off ^ looks.off:
            self._relayout()
        elif looks != before:
            self.lines.looks = looks
            self.viewport().update()

    def set_size(self, size: float) -> None:
        """Show the text in another size, pixels before the user's font scale."""
        if size != self._size:
            self._size = size
            self._relayout()

    @property
    def following(self) -> bool:
        """Whether the view stays at the end as tokens come."""
        return self._follow

    def follow(self) -> None:
        """Go to the end and stay there."""
        self._follow = True
        self._to_end()

    def _to_latest(self) -> None:
        self.follow()
        self.scrolled.emit()

    # -- beside other lanes -------------------------------------------------------------------

    def place(self) -> float:
        """Where the view is scrolled to: the position of the output at its top, with the part of its line that is above."""
        value = self.verticalScrollBar().value()
        return self.lines.position_at(value) if value else 0.0

    def go_to(self, place: float) -> None:
        """Scroll to where another view is (`place`), and stay there; to the end where the text is not that long."""
        height = self.lines.height_of(place) if place > 0 else 0
        self._scroll(self.verticalScrollBar().maximum() if height is None else height)
        self._follow = False
        self._place_latest()

    def pointed_position(self) -> int | None:
        """The position of the output that the pointer is on, else the cursor; for a draft the next one that was kept."""
        token = self._current if self._hovered is None else self._hovered
        return None if token is None else self.lines.layout.position_at(token)

    def set_echo(self, position: int | None) -> None:
        """Outline the token at a position of the output: another lane's cursor is on it."""
        if position != self._echo:
            for one in (self._echo, position):
                self._update_token(self._at(one))
            self._echo = position

    def set_difference(self, found: tuple[int, str] | None) -> None:
        """Mark the token at a position as the first that differs from plain's; the words say what plain has."""
        if found != self._differs:
            self._differs = found
            self.viewport().update()

    def _at(self, position: int | None) -> int | None:
        return None if position is None else self.lines.layout.at_position(position)

    # -- the token under the cursor -----------------------------------------------------------

    @property
    def current_index(self) -> int | None:
        """Which of the tokens shown is under the cursor."""
        return self._current

    def current(self) -> tuple[int, int] | None:
        """Return (round_index, token_index) of the token under the cursor."""
        token = self._token(self._current)
        return None if token is None else (token.round_index, token.token_index)

    def select_token(self, round_index: int, token_index: int) -> bool:
        """Put the cursor on a token without a signal, or on the count it is in; False where it is not there or hidden."""
        index = self.lane.index_of(round_index, token_index)
        held = None if index is None else self.lines.layout.holder(index)
        if held is None:
            return False
        self._set_current(held, announce=False)
        return True

    def choose(self, index: int) -> None:
        """Put the cursor on a token."""
        self._set_current(index)

    def _token(self, index: int | None) -> ViewToken | None:
        return self.lines.layout.tokens[index] if index is not None and index < len(self.lines.layout) else None

    def _set_current(self, index: int, *, announce: bool = True, reveal: bool = True) -> None:
        for changed in (self._current, index):
            self._update_token(changed)
        token = self.lines.layout.tokens[index]
        self._current, self._chosen = index, (token.round_index, token.token_index)
        if reveal:
            self.reveal(index)
        self.setAccessibleDescription(self._words(index).replace("\n", ", "))
        spoken.caret_moved(self)
        self.pointed.emit()
        if announce:
            self.token_selected.emit(token.round_index, token.token_index)

    def _words(self, index: int) -> str:
        """All about a token, or about what a count stands for, in lines."""
        token = self.lines.layout.tokens[index]
        if index in self.lines.layout.counts:
            return count_words(self.lane, token)
        words = token_words(self.lane, token)
        if self._differs is not None and token.position == self._differs[0]:
            return f"{words}\n{self._differs[1]}"
        return words

    # -- text -----------------------------------------------------------------------------------

    def selected_text(self) -> str:
        """Return the selected part of the output, without ghosts; empty where nothing is selected."""
        bounds = self._bounds()
        return "" if bounds is None else self.lines.text(bounds)

    def select_all(self) -> None:
        """Select the whole output."""
        if tokens := self.lines.layout.tokens:
            self._select((0, 0), (len(tokens) - 1, len(tokens[-1].text)))

    def copy_all(self) -> None:
        """Copy the whole output."""
        if self.lane.tokens:
            QApplication.clipboard().setText(clipboard(self.lane.reply))

    def copy(self) -> None:
        """Copy the selected text, or the whole output where nothing is selected."""
        text = self.selected_text() or self.lane.reply
        if text:
            QApplication.clipboard().setText(clipboard(text))

    def _bounds(self) -> tuple[Place, Place] | None:
        if self._anchor is None or self._caret is None or self._anchor == self._caret:
            return None
        return min(self._anchor, self._caret), max(self._anchor, self._caret)

    def _select(self, anchor: Place | None, caret: Place | None) -> None:
        if (anchor, caret) != (self._anchor, self._caret):
            self._anchor, self._caret = anchor, caret
            self.viewport().update()

    # -- layout -----------------------------------------------------------------------------------

    def _new_lines(self) -> TokenLines:
        return TokenLines(self.viewport().width(), self._looks, self._size)

    def _reset(self) -> None:
        self._generation = self.lane.generation
        self._current = self._chosen = self._hovered = self._anchor = self._caret = None
        self._follow, self._fresh, self._differs = True, None, None
        self._more.stop()
        self.lines = self._new_lines()
        self.pointed.emit()
        self._describe()
        self._update_range()
        self.viewport().update()

    def _relayout(self) -> None:
        """Place all tokens anew in the present theme, look and size, keeping the place in the text that was read."""
        self._relayout_timer.stop()
        self._fresh = self._new_lines()
        self._lay_fresh(self._fresh.slice_s(self.lane))

    def _lay_fresh(self, seconds: float = SLICE_S) -> None:
        """Lay out more of the new lines; they are shown when they have as much as the old ones."""
        fresh = self._fresh
        assert fresh is not None
        fresh.show(self.lane, seconds)
        if fresh.layout.settled < min(self.lines.layout.settled, self.lane.settled):
            self._more.ask()
            return
        kept = None if self._follow else self._top_token()
        self.lines, self._fresh = fresh, None
        layout = fresh.layout
        self._current = None if self._current is None else layout.holder(self._current)
        self._hovered = None
        self._update_range()
        if self._follow:
            self._to_end()
        elif kept is not None and (held := layout.holder(kept)) is not None:
            line = layout.first_line[held]
            self._scroll(fresh.top(line) if line else 0)
        self.viewport().update()
        self.refresh()

    def _top_token(self) -> int | None:
        """The first token in view."""
        return self.lines.from_line((self.verticalScrollBar().value() - self.lines.pad) // self.lines.pitch)

    def _update_range(self) -> None:
        bar = self.verticalScrollBar()
        page = self.viewport().height()
        bar.setPageStep(page)
        bar.setSingleStep(self.lines.pitch)
        # Setting the range may move the value; that is not the user scrolling away.
        self._by_hand = False
        bar.setRange(0, max(0, self.lines.height - page))
        self._by_hand = True
        self._place_latest()

    def _place_latest(self) -> None:
        """Offer the way back to the end while the view is elsewhere."""
        away = not self._follow and self.verticalScrollBar().maximum() > 0
        if away:
            size, area = self._latest.sizeHint(), self.viewport().geometry()
            self._latest.setGeometry(QRect(area.bottomRight() - QPoint(size.width() + 8, size.height() + 8), size))
        if away != self._latest.isVisibleTo(self):
            self._latest.setVisible(away)

    def _scroll(self, value: int) -> None:
        """Scroll, not by hand."""
        self._by_hand = False
        self.verticalScrollBar().setValue(value)
        self._by_hand = True

    def _to_end(self) -> None:
        self._scroll(self.verticalScrollBar().maximum())
        self._follow = True
        self._place_latest()

    def _on_scroll(self, value: int) -> None:
        if self._by_hand:
            self._follow = value >= self.verticalScrollBar().maximum() - 2
            self._place_latest()
            self.scrolled.emit()

    def name(self) -> None:
        """Tell a screen reader whose output this is."""
        self.setAccessibleName(f"Output of {self.lane.name}")

    def _describe(self) -> None:
        self.name()
        self.setAccessibleDescription("Arrow keys move over tokens")

    def _update_token(self, index: int | None) -> None:
        """Paint a token's lines anew."""
        for line, _ in self.lines.layout.fragments_of(-1 if index is None else index):
            top = self.lines.top(line) - self.verticalScrollBar().value()
            self.viewport().update(0, top - 2, self.viewport().width(), self.lines.pitch + 4)

    def reveal(self, index: int) -> None:
        """Scroll to a token where it is out of sight."""
        found = self.lines.layout.fragments_of(index)
        if not found:
            return
        bar, height = self.verticalScrollBar(), self.lines.pitch
        top, bottom = found[0][0] * height, (found[-1][0] + 1) * height + 2 * self.lines.pad
        bar.setValue(min(max(bar.value(), bottom - self.viewport().height()), top))

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paint the lines that the region needs."""
        painter = QPainter(self.viewport())
        area, region, scrolled = self.viewport().rect(), event.rect(), self.verticalScrollBar().value()
        painter.fillRect(region, QColor(theme.current().panel))
        painter.setLayoutDirection(Qt.LayoutDirection.LeftToRight)
        if self.lines.layout.tokens:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.translate(0, -scrolled)
            differs = None if self._differs is None else self._differs[0]
            pointed = Pointed(self._current, self._hovered, self._at(self._echo), self._at(differs))
            self.lines.paint(painter, region.translated(0, scrolled), self._bounds(), pointed)
            painter.translate(0, scrolled)
        else:
            pad = self.lines.pad
            flags = int(Qt.AlignmentFlag.AlignTop | Qt.AlignmentFlag.AlignLeft | Qt.TextFlag.TextWordWrap)
            room = area.adjusted(pad, pad, -pad, -pad).toRectF()
            painted.words_in(painter, room, self.placeholder, theme.ui_font(12), painted.ink("muted"), flags)
        if self.hasFocus():
            painted.box(painter, area.adjusted(1, 1, -1, -1).toRectF(), painted.pen(painted.ink("focus"), 2), None, 0)

    # -- mouse ------------------------------------------------------------------------------------

    def token_at(self, point: QPoint) -> int | None:
        """Return the index of the token under a point of the viewport."""
        return self.lines.token_at(point.x(), point.y() + self.verticalScrollBar().value())

    def place_of(self, index: int) -> QRect:
        """Where a token's first piece stands on the screen."""
        area = self.lines.area_of(index).translated(0, -self.verticalScrollBar().value())
        return QRect(self.viewport().mapToGlobal(area.topLeft()), area.size())

    def _place_at(self, point: QPoint) -> Place | None:
        return self.lines.place_at(point.x(), point.y() + self.verticalScrollBar().value())

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Put the cursor on a token and begin a selection."""
        if event.button() != Qt.MouseButton.LeftButton:
            return
        point = event.position().toPoint()
        place = self._place_at(point)
        extend = bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier) and self._anchor is not None
        self._select(self._anchor if extend else place, place)
        token = self.token_at(point)
        if token is not None and not extend:
            self._set_current(token, reveal=False)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """Extend the selection, or tell which token the pointer is over."""
        point = event.position().toPoint()
        if event.buttons() & Qt.MouseButton.LeftButton and self._anchor is not None:
            self._select(self._anchor, self._place_at(point))
            bar, beyond = self.verticalScrollBar(), (point.y() > self.viewport().height()) - (point.y() < 0)
            bar.setValue(bar.value() + beyond * self.lines.pitch)
            return
        self._hover(self.token_at(point))

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        """A drag ends, its selection stays; without one the token was chosen."""
        event.accept()
        here = self._token(self._current)
        if event.button() == Qt.MouseButton.LeftButton and self._bounds() is None and here is not None \
                and self.token_at(event.position().toPoint()) == self._current:
            self.token_chosen.emit(here.round_index, here.token_index)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        """Select the token's text."""
        index = self.token_at(event.position().toPoint())
        if index is not None and event.button() == Qt.MouseButton.LeftButton:
            self._select((index, 0), (index, len(self.lines.layout.tokens[index].text)))

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        """Offer to copy, and to go on from the token there in another way."""
        by_key = event.reason() == QContextMenuEvent.Reason.Keyboard
        token = self._current if by_key else self.token_at(event.pos())
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.addAction("&Copy selection", self.copy).setEnabled(bool(self.selected_text()))
        menu.addAction("Copy &whole output", self.copy_all).setEnabled(bool(self.lane.text))
        menu.addAction("Select &all", self.select_all).setEnabled(bool(self.lane.tokens))
        menu.addSeparator()
        menu.addAction(f"C&ontinue{BRANCH[8:]}\tB", lambda: self._branch(token)).setEnabled(token is not None)
        menu.popup(self.place_of(token).bottomLeft() if by_key and token is not None else event.globalPos())

    def _branch(self, index: int | None) -> None:
        """Ask that the text goes on from a token in another way."""
        token = self._token(index)
        self.branch_requested.emit(-1 if token is None else token.round_index, 0 if token is None else token.token_index, None)

    def _hover(self, index: int | None) -> None:
        if index == self._hovered:
            return
        self._update_token(self._hovered)
        self._update_token(index)
        self._hovered = index
        self.pointed.emit()
        if (token := self._token(index)) is not None:
            self.token_hovered.emit(token.round_index, token.token_index)

    def viewportEvent(self, event: QEvent) -> bool:
        """Show a token's tool tip; forget the hovered token when the pointer leaves."""
        if event.type() == QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            token = self.token_at(event.pos())
            QToolTip.showText(event.globalPos(), "" if token is None else tooltip(self._words(token)), self.viewport())
            return True
        if event.type() == QEvent.Type.Leave:
            self._hover(None)
        return super().viewportEvent(event)

    # -- keyboard -----------------------------------------------------------------------------------

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Move over tokens, copy, select, branch."""
        if event.matches(QKeySequence.StandardKey.Copy):
            self.copy()
        elif event.matches(QKeySequence.StandardKey.SelectAll):
            self.select_all()
        elif event.key() == Qt.Key.Key_Escape and self._bounds() is not None:
            self._select(None, None)
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            if self._current is None and (first := self._top_token()) is not None:
                self._set_current(first)
            if (token := self._token(self._current)) is not None:
                self.token_chosen.emit(token.round_index, token.token_index)
        elif event.key() == Qt.Key.Key_B and event.modifiers() == Qt.KeyboardModifier.NoModifier:
            self._branch(self._current)
        elif not self._move(event):
            event.ignore()  # not to the scroll area, which would take Alt+Right for a scroll

    def _move(self, event: QKeyEvent) -> bool:
        """Move the cursor by an arrow or a page key, with Shift the selection too; False for any other key."""
        held, key, here = event.modifiers(), Qt.Key(event.key()), self._current
        if held & (Qt.KeyboardModifier.AltModifier | Qt.KeyboardModifier.MetaModifier):
            return False
        extend, whole = bool(held & Qt.KeyboardModifier.ShiftModifier), bool(held & Qt.KeyboardModifier.ControlModifier)
        page = max(1, self.viewport().height() // self.lines.pitch - 1)
        found = self.lines.moved(here, key, whole, page, self._top_token())
        if found is None:
            return False
        if key == Qt.Key.Key_End and whole:
            self._to_latest()
        target = found[0]
        if target is None:
            return True
        if extend and here is not None:
            anchor = self._anchor if self._bounds() is not None and self._anchor is not None else (here, 0)
            length = len(self.lines.layout.tokens[target].text)
            self._select(anchor, (target, length if (target, 0) >= anchor else 0))
        elif not extend:
            self._select(None, None)
        self._set_current(target)
        if target in self.lines.layout.counts:  # as the pointer would show it
            QToolTip.showText(self.place_of(target).bottomLeft(), tooltip(self._words(target)), self.viewport())
        return True

    # -- events -----------------------------------------------------------------------------------

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Wrap anew where the width changed."""
        super().resizeEvent(event)
        if event.size().width() == event.oldSize().width():
            self._update_range()
            if self._follow:
                self._to_end()
        elif len(self.lines.layout) > AT_ONCE:
            self._relayout_timer.start()  # dragging an edge sends many of these
        else:
            self._relayout()

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        """Move the pixels that are already drawn."""
        if self.hasFocus():
            self.viewport().update()  # the focus frame must not move along
        else:
            self.viewport().scroll(0, dy)

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.viewport().update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.viewport().update()
