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
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QAbstractScrollArea, QApplication, QFrame, QMenu, QToolButton, QToolTip, QWidget

from specview.gui.lanes.token_lines import Place, TokenLines
from specview.gui.link.pace import Later
from specview.gui.parts import painted, theme
from specview.gui.parts.widgets import button
from specview.gui.state.display_text import clipboard, quoted, tooltip
from specview.gui.state.round_words import STATES
from specview.gui.state.view_model import LaneModel, ViewToken

_MANY = 1500
_RELAYOUT_MS = 40


class TokenView(QAbstractScrollArea):
    """Shows a lane's tokens.

    Signals carry (round_index, token_index), token_index -1 being a round's final token:
    token_hovered when the pointer comes over a token, token_selected when the cursor moves to one, token_chosen when one
    is clicked or Enter is pressed on it.
    """

    token_hovered = Signal(int, int)
    token_selected = Signal(int, int)
    token_chosen = Signal(int, int)

    def __init__(self, lane: LaneModel | None = None, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.lane = lane or LaneModel()
        self.placeholder = ""
        self._ghosts = True
        self._marks = False
        self._follow = True
        self._generation = self.lane.generation
        self._settled = 0  # of the tokens laid out, those that stand
        self._current: int | None = None
        self._hovered: int | None = None
        self._anchor: Place | None = None
        self._caret: Place | None = None
        self.lines = self._new_lines()
        self._relayout_timer = Later(self, _RELAYOUT_MS, self._relayout)
        tip = "Go to the newest token and stay there (Ctrl+End)"
        self._latest = button(QToolButton, "↓ latest", tip, self.follow)
        self._latest.setParent(self)
        self._latest.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._latest.hide()
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.viewport().setMouseTracking(True)
        self.viewport().setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.viewport().setCursor(Qt.CursorShape.IBeamCursor)
        self.verticalScrollBar().valueChanged.connect(self._scrolled)
        theme.signals.changed.connect(self._relayout)
        self._describe()
        self._update_range()

    # -- what is shown ------------------------------------------------------------------------

    def set_lane(self, lane: LaneModel) -> None:
        """Show another lane from its start."""
        self.lane = lane
        self._reset()
        self.refresh()

    def refresh(self) -> bool:
        """Show what the lane gained since the last call; True when something changed."""
        if self.lane.generation != self._generation:
            self._reset()
        kept, self._settled = min(self._settled, self.lane.settled), self.lane.settled
        if kept < len(self.lines.layout):  # a race that is played again went back, or its round under way went on
            self._current = self._hovered = None
            self._relayout()
            return True
        done, tokens = len(self.lines.layout), self.lane.tokens
        if done == len(tokens):
            return False
        first = self.lines.layout.append(tokens[done:])
        if done == 0:
            self.viewport().update()
        self._update_range()
        if self._follow:
            self._to_end()
        top = self.lines.top(first) - self.verticalScrollBar().value()
        area = self.viewport().rect()
        if top < area.bottom():
            self.viewport().update(QRect(0, max(top, 0), area.width(), area.height()))
        return True

    def set_placeholder(self, text: str) -> None:
        """Set the words shown while there are no tokens."""
        if text != self.placeholder:
            self.placeholder = text
            self.viewport().update()

    def set_ghosts(self, shown: bool) -> None:
        """Show or hide rejected and ignored drafts."""
        if shown != self._ghosts:
            self._ghosts = shown
            if not shown and self._current is not None and self.lane.tokens[self._current].ghost:
                self._current = None
            self._relayout()

    def set_marks(self, shown: bool) -> None:
        """Draw spaces, tabs and newlines as marks, or as what they are."""
        if shown != self._marks:
            self._marks = shown
            self._relayout()

    @property
    def following(self) -> bool:
        """Whether the view stays at the end as tokens come."""
        return self._follow

    def follow(self) -> None:
        """Go to the end and stay there."""
        self._follow = True
        self._to_end()

    # -- the token under the cursor -----------------------------------------------------------

    def current(self) -> tuple[int, int] | None:
        """Return (round_index, token_index) of the token under the cursor."""
        token = self._current_token()
        return None if token is None else (token.round_index, token.token_index)

    def select_token(self, round_index: int, token_index: int) -> bool:
        """Put the cursor on a token without a signal; False where it is not there or hidden."""
        index = self.lane.index_of(round_index, token_index)
        if index is None or not self._shown(index):
            return False
        self._set_current(index, announce=False)
        return True

    def _current_token(self) -> ViewToken | None:
        if self._current is None or self._current >= len(self.lane.tokens):
            return None
        return self.lane.tokens[self._current]

    def _shown(self, index: int) -> bool:
        return 0 <= index < len(self.lines.layout) and (self._ghosts or not self.lane.tokens[index].ghost)

    def _set_current(self, index: int, *, announce: bool = True, reveal: bool = True) -> None:
        for changed in (self._current, index):
            self._update_token(changed)
        self._current = index
        if reveal:
            self._reveal(index)
        token = self.lane.tokens[index]
        self.setAccessibleDescription(self._token_words(token).replace("\n", ", "))
        if announce:
            self.token_selected.emit(token.round_index, token.token_index)

    def _token_words(self, token: ViewToken) -> str:
        place = "not in the output" if token.position is None else f"position {token.position}"
        round_ = self.lane.round_at(token.round_index).index
        if token.folded:
            return f"{token.folded} more ignored drafts, never judged · round {round_} · {place}"
        words = f"{STATES[token.kind].name} · round {round_} · {place}"
        return f"{words}\n{quoted(token.text) if token.text else 'no text of its own'}"

    # -- text -----------------------------------------------------------------------------------

    def selected_text(self) -> str:
        """Return the selected part of the output, without ghosts; empty where nothing is selected."""
        bounds = self._bounds()
        if bounds is None:
            return ""
        (first, start), (last, stop) = bounds
        parts = []
        for index in range(first, min(last + 1, len(self.lane.tokens))):
            token = self.lane.tokens[index]
            if token.position is None:
                continue
            text = token.text
            if index == last:
                text = text[:stop]
            if index == first:
                text = text[start:]
            parts.append(text)
        return "".join(parts)

    def select_all(self) -> None:
        """Select the whole output."""
        if self.lane.tokens:
            last = len(self.lane.tokens) - 1
            self._select((0, 0), (last, len(self.lane.tokens[last].text)))

    def copy_all(self) -> None:
        """Copy the whole output."""
        if self.lane.tokens:
            QApplication.clipboard().setText(clipboard(self.lane.text))

    def copy(self) -> None:
        """Copy the selected text, or the whole output where nothing is selected."""
        text = self.selected_text() or self.lane.text
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
        return TokenLines(self.lane, self.viewport().width(), ghosts=self._ghosts, marks=self._marks)

    def _reset(self) -> None:
        self._generation = self.lane.generation
        self._current = self._hovered = self._anchor = self._caret = None
        self._settled = 0
        self._follow = True
        self.lines = self._new_lines()
        self._describe()
        self._update_range()
        self.viewport().update()

    def _relayout(self) -> None:
        """Place all tokens anew in the present theme and size, keeping the place in the text that was read."""
        self._relayout_timer.stop()
        kept = None if self._follow else self._top_token()
        self.lines = self._new_lines()
        self.lines.layout.append(self.lane.tokens)
        self._settled = self.lane.settled
        self._update_range()
        if self._follow:
            self._to_end()
        elif kept is not None and self.lines.layout.first_line[kept] >= 0:
            self.verticalScrollBar().setValue(self.lines.top(self.lines.layout.first_line[kept]))
        self.viewport().update()

    def _top_token(self) -> int | None:
        """The first token in view."""
        return self.lines.from_line((self.verticalScrollBar().value() - self.lines.pad) // self.lines.pitch)

    def _update_range(self) -> None:
        bar = self.verticalScrollBar()
        page = self.viewport().height()
        bar.setPageStep(page)
        bar.setSingleStep(self.lines.pitch)
        # Setting the range may move the value; that is not the user scrolling away.
        follow = self._follow
        bar.setRange(0, max(0, self.lines.height - page))
        self._follow = follow
        self._place_latest()

    def _place_latest(self) -> None:
        """Offer the way back to the end while the view is elsewhere."""
        away = not self._follow and self.verticalScrollBar().maximum() > 0
        if away:
            size, area = self._latest.sizeHint(), self.viewport().geometry()
            self._latest.setGeometry(QRect(area.bottomRight() - QPoint(size.width() + 8, size.height() + 8), size))
        if away != self._latest.isVisibleTo(self):
            self._latest.setVisible(away)

    def _to_end(self) -> None:
        bar = self.verticalScrollBar()
        bar.setValue(bar.maximum())
        self._follow = True
        self._place_latest()

    def _scrolled(self, value: int) -> None:
        self._follow = value >= self.verticalScrollBar().maximum() - 2
        self._place_latest()

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

    def _reveal(self, index: int) -> None:
        found = self.lines.layout.fragments_of(index)
        if not found:
            return
        bar, height = self.verticalScrollBar(), self.lines.pitch
        top, bottom = found[0][0] * height, (found[-1][0] + 1) * height + 2 * self.lines.pad
        if top < bar.value():
            bar.setValue(top)
        elif bottom > bar.value() + self.viewport().height():
            bar.setValue(bottom - self.viewport().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paint the lines that the region needs."""
        painter = QPainter(self.viewport())
        area, region, scrolled = self.viewport().rect(), event.rect(), self.verticalScrollBar().value()
        painter.fillRect(region, QColor(theme.current().panel))
        painter.setLayoutDirection(Qt.LayoutDirection.LeftToRight)
        if self.lane.tokens:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            painter.translate(0, -scrolled)
            self.lines.paint(painter, region.translated(0, scrolled), self._bounds(), self._current, self._hovered)
            painter.translate(0, scrolled)
        else:
            pad = self.lines.pad
            flags = int(Qt.AlignmentFlag.AlignTop | Qt.AlignmentFlag.AlignLeft | Qt.TextFlag.TextWordWrap)
            room = area.adjusted(pad, pad, -pad, -pad).toRectF()
            painted.words_in(painter, room, self.placeholder, theme.ui_font(12), painted.ink("muted"), flags)
        if self.hasFocus():
            painter.setPen(QPen(QColor(theme.current().focus), 2))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRect(area.adjusted(1, 1, -1, -1))

    # -- mouse ------------------------------------------------------------------------------------

    def token_at(self, point: QPoint) -> int | None:
        """Return the index of the token under a point of the viewport."""
        return self.lines.token_at(point.x(), point.y() + self.verticalScrollBar().value())

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
            bar, step = self.verticalScrollBar(), self.lines.pitch
            if point.y() < 0:
                bar.setValue(bar.value() - step)
            elif point.y() > self.viewport().height():
                bar.setValue(bar.value() + step)
            return
        self._hover(self.token_at(point))

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        """A drag ends, its selection stays; without one the token was chosen."""
        event.accept()
        here = self._current_token()
        if event.button() == Qt.MouseButton.LeftButton and self._bounds() is None and here is not None \
                and self.token_at(event.position().toPoint()) == self._current:
            self.token_chosen.emit(here.round_index, here.token_index)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        """Select the token's text."""
        index = self.token_at(event.position().toPoint())
        if index is not None and event.button() == Qt.MouseButton.LeftButton:
            self._select((index, 0), (index, len(self.lane.tokens[index].text)))

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        """Offer to copy."""
        menu = QMenu(self)
        menu.addAction("Copy selection", self.copy).setEnabled(bool(self.selected_text()))
        menu.addAction("Copy whole output", self.copy_all).setEnabled(bool(self.lane.text))
        menu.addAction("Select all", self.select_all).setEnabled(bool(self.lane.tokens))
        menu.exec(event.globalPos())
        menu.deleteLater()

    def _hover(self, index: int | None) -> None:
        if index == self._hovered:
            return
        self._update_token(self._hovered)
        self._update_token(index)
        self._hovered = index
        if index is not None:
            self.token_hovered.emit(self.lane.tokens[index].round_index, self.lane.tokens[index].token_index)

    def viewportEvent(self, event: QEvent) -> bool:
        """Show a token's tool tip; forget the hovered token when the pointer leaves."""
        if event.type() == QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            token = self.token_at(event.pos())
            words = "" if token is None else tooltip(self._token_words(self.lane.tokens[token]))
            QToolTip.showText(event.globalPos(), words, self.viewport())
            return True
        if event.type() == QEvent.Type.Leave:
            self._hover(None)
        return super().viewportEvent(event)

    # -- keyboard -----------------------------------------------------------------------------------

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Move over tokens, copy, select."""
        if event.matches(QKeySequence.StandardKey.Copy):
            self.copy()
        elif event.matches(QKeySequence.StandardKey.SelectAll):
            self.select_all()
        elif event.key() == Qt.Key.Key_Escape and self._bounds() is not None:
            self._select(None, None)
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            if self._current_token() is None and (first := self._top_token()) is not None:
                self._set_current(first)
            if (token := self._current_token()) is not None:
                self.token_chosen.emit(token.round_index, token.token_index)
        elif not self._move(event):
            event.ignore()  # not to the scroll area, which would take Alt+Right for a scroll

    def _move(self, event: QKeyEvent) -> bool:
        """Move the cursor by an arrow or a page key, with Shift the selection too; False for any other key."""
        held, key, here = event.modifiers(), event.key(), self._current
        if held & (Qt.KeyboardModifier.AltModifier | Qt.KeyboardModifier.MetaModifier):
            return False
        extend, whole = bool(held & Qt.KeyboardModifier.ShiftModifier), bool(held & Qt.KeyboardModifier.ControlModifier)
        page = max(1, self.viewport().height() // self.lines.pitch - 1)
        keys = Qt.Key
        lines = {keys.Key_Down: 1, keys.Key_Up: -1, keys.Key_PageDown: page, keys.Key_PageUp: -page}.get(keys(key))
        step = {keys.Key_Right: 1, keys.Key_Left: -1}.get(keys(key))
        if key == Qt.Key.Key_Home:
            target = self._neighbour(-1, 1) if whole or here is None else self.lines.edge(here, 0)
        elif key == Qt.Key.Key_End:
            target = self._neighbour(len(self.lines.layout), -1) if whole or here is None else self.lines.edge(here, -1)
            if whole:
                self.follow()
        elif step is None and lines is None:
            return False
        elif here is None:
            target = self._top_token()
        elif step is not None:
            target = self._neighbour(here, -step if self.lines.runs_left(here) else step)
        else:
            assert lines is not None
            target = self.lines.beneath(here, lines)
            if target == here:  # it goes over several lines
                target = self._neighbour(here, 1 if lines > 0 else -1)
        if target is not None:
            if extend and here is not None:
                anchor = self._anchor if self._bounds() is not None and self._anchor is not None else (here, 0)
                self._select(anchor, (target, len(self.lane.tokens[target].text) if (target, 0) >= anchor else 0))
            elif not extend:
                self._select(None, None)
            self._set_current(target)
        return True

    def _neighbour(self, index: int, step: int) -> int | None:
        """The next token that is shown, in one direction."""
        index += step
        while 0 <= index < len(self.lines.layout):
            if self._shown(index):
                return index
            index += step
        return None

    # -- events -----------------------------------------------------------------------------------

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Wrap anew where the width changed."""
        super().resizeEvent(event)
        if event.size().width() == event.oldSize().width():
            self._update_range()
            if self._follow:
                self._to_end()
        elif len(self.lines.layout) > _MANY:
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
