"""The streaming text of one lane: every token coloured by how it got there.

QTextEdit costs 418 us per coloured insert (FACTS.md). This view lays out only what is new, keeps what
it has laid out, and paints only the lines on screen.
"""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPoint, QPointF, QRect, QRectF, Qt, QTimer, Signal
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
    QTextCharFormat,
)
from PySide6.QtWidgets import QAbstractScrollArea, QApplication, QFrame, QMenu, QToolButton, QToolTip, QWidget

from specview.gui.lanes.token_bidi import VisualLine
from specview.gui.parts import theme
from specview.gui.parts.token_paint import KIND_WORDS, TokenStyles
from specview.gui.state.display_text import clipboard, is_plain, quoted, tooltip
from specview.gui.state.token_layout import Fragment, TokenLayout, clusters, nearest, turns
from specview.gui.state.view_model import LaneModel, ViewToken

PADDING_PX = 12
_MANY = 1500
_RELAYOUT_MS = 40
Place = tuple[int, int]
"""A place in the text: (token, character)."""


class TokenView(QAbstractScrollArea):
    """Shows a lane's tokens.

    Signals carry (round_index, token_index), token_index -1 being a round's final token:
    token_hovered while the pointer is over a token, hover_left when it is over none,
    token_selected when the cursor moves to a token, token_activated on Enter or a double click.
    """

    token_hovered = Signal(int, int)
    hover_left = Signal()
    token_selected = Signal(int, int)
    token_activated = Signal(int, int)

    def __init__(self, lane: LaneModel | None = None, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.lane = lane or LaneModel()
        self.placeholder = ""
        self._ghosts = True
        self._marks = False
        self._follow = True
        self._generation = self.lane.generation
        self._current: int | None = None
        self._hovered: int | None = None
        self._anchor: Place | None = None
        self._caret: Place | None = None
        self._pad = theme.px(PADDING_PX)
        self._styles = TokenStyles()
        self._visuals: dict[int, tuple[int, Fragment | None, VisualLine | None]] = {}
        self._layout = self._new_layout()
        self._relayout_timer = QTimer(self)
        self._relayout_timer.setSingleShot(True)
        self._relayout_timer.timeout.connect(self._relayout)
        self._latest = QToolButton(self)
        self._latest.setText("↓ latest")
        self._latest.setToolTip("Go to the newest token and stay there (Ctrl+End)")
        self._latest.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self._latest.clicked.connect(self.follow)
        self._latest.hide()
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.viewport().setMouseTracking(True)
        self.viewport().setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent)
        self.viewport().setCursor(Qt.CursorShape.IBeamCursor)
        self.verticalScrollBar().valueChanged.connect(self._scrolled)
        theme.signals.changed.connect(self.restyle)
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
        done, tokens = len(self._layout), self.lane.tokens
        if done == len(tokens):
            return False
        first = self._layout.append(tokens[done:])
        if done == 0:
            self.viewport().update()
        self._update_range()
        if self._follow:
            self._to_end()
        height = self._styles.line_height
        top = self._pad + first * height - self.verticalScrollBar().value()
        area = self.viewport().rect()
        if top < area.bottom():
            self.viewport().update(QRect(0, max(int(top), 0), area.width(), area.height()))
        return True

    def set_placeholder(self, text: str) -> None:
        """Set the words shown while there are no tokens."""
        if text != self.placeholder:
            self.placeholder = text
            self.viewport().update()

    @property
    def ghosts(self) -> bool:
        """Whether rejected and ignored drafts are shown."""
        return self._ghosts

    def set_ghosts(self, shown: bool) -> None:
        """Show or hide rejected and ignored drafts."""
        if shown != self._ghosts:
            self._ghosts = shown
            if not shown and self._current is not None and self.lane.tokens[self._current].ghost:
                self._current = None
            self._relayout()

    @property
    def marks(self) -> bool:
        """Whether spaces, tabs and newlines are drawn as marks."""
        return self._marks

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

    def select_token(self, round_index: int, token_index: int, *, reveal: bool = True) -> bool:
        """Put the cursor on a token without a signal; False where it is not there or hidden."""
        index = self.lane.index_of(round_index, token_index)
        if index is None or not self._shown(index):
            return False
        self._set_current(index, announce=False, reveal=reveal)
        return True

    def clear_current(self) -> None:
        """Take the cursor off."""
        if self._current is not None:
            self._update_token(self._current)
            self._current = None

    def _current_token(self) -> ViewToken | None:
        if self._current is None or self._current >= len(self.lane.tokens):
            return None
        return self.lane.tokens[self._current]

    def _shown(self, index: int) -> bool:
        return 0 <= index < len(self._layout) and (self._ghosts or not self.lane.tokens[index].ghost)

    def _set_current(self, index: int, *, announce: bool = True, reveal: bool = True) -> None:
        if self._current is not None:
            self._update_token(self._current)
        self._current = index
        self._update_token(index)
        if reveal:
            self._reveal(index)
        token = self.lane.tokens[index]
        self.setAccessibleDescription(self._token_words(token).replace("\n", ", "))
        if announce:
            self.token_selected.emit(token.round_index, token.token_index)

    def _token_words(self, token: ViewToken) -> str:
        place = "not in the output" if token.position is None else f"position {token.position}"
        round_ = self.lane.rounds[token.round_index].index
        if token.folded:
            return f"{token.folded} more ignored drafts, never judged · round {round_} · {place}"
        words = f"{KIND_WORDS[token.kind]} · round {round_} · {place}"
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

    def restyle(self) -> None:
        """Take the present theme and font size."""
        self._pad = theme.px(PADDING_PX)
        self._styles = TokenStyles()
        self._relayout()

    def _new_layout(self) -> TokenLayout:
        styles = self._styles
        cache: dict[tuple[str, bool], float] = {}

        def measure(text: str, ghost: bool) -> float:
            key = (text, ghost)
            width = cache.get(key)
            if width is None:
                width = cache[key] = styles.measure(text, ghost)
            return width

        room = self.viewport().width() - 2 * self._pad - styles.cell
        self._visuals.clear()
        return TokenLayout(measure, styles.cell, styles.ghost_cell, room, ghosts=self._ghosts, marks=self._marks)

    def _reset(self) -> None:
        self._generation = self.lane.generation
        self._current = self._hovered = self._anchor = self._caret = None
        self._follow = True
        self._layout = self._new_layout()
        self._describe()
        self._update_range()
        self.viewport().update()

    def _relayout(self) -> None:
        """Place all tokens anew, keeping the place in the text that was read."""
        self._relayout_timer.stop()
        kept = None if self._follow else self._top_token()
        self._layout = self._new_layout()
        self._layout.append(self.lane.tokens)
        self._update_range()
        if self._follow:
            self._to_end()
        elif kept is not None and self._layout.first_line[kept] >= 0:
            self.verticalScrollBar().setValue(self._pad + self._layout.first_line[kept] * self._styles.line_height)
        self.viewport().update()

    def _top_token(self) -> int | None:
        line = (self.verticalScrollBar().value() - self._pad) // self._styles.line_height
        for row in self._layout.lines[max(line, 0):]:
            if row:
                return row[0].token
        return None

    def _content_height(self) -> int:
        return len(self._layout.lines) * self._styles.line_height + 2 * self._pad

    def _update_range(self) -> None:
        bar = self.verticalScrollBar()
        page = self.viewport().height()
        bar.setPageStep(page)
        bar.setSingleStep(self._styles.line_height)
        # Setting the range may move the value; that is not the user scrolling away.
        follow = self._follow
        bar.setRange(0, max(0, self._content_height() - page))
        self._follow = follow
        self._place_latest()

    def _place_latest(self) -> None:
        """Offer the way back to the end while the view is elsewhere."""
        away = not self._follow and self.verticalScrollBar().maximum() > 0
        if away:
            size, area = self._latest.sizeHint(), self.viewport().geometry()
            self._latest.setGeometry(area.right() - size.width() - 8, area.bottom() - size.height() - 8,
                                     size.width(), size.height())
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

    def _line_top(self, line: int) -> int:
        return self._pad + line * self._styles.line_height - self.verticalScrollBar().value()

    def _update_token(self, index: int) -> None:
        for line, _ in self._layout.fragments_of(index):
            self.viewport().update(0, self._line_top(line) - 2, self.viewport().width(),
                                   self._styles.line_height + 4)

    def _reveal(self, index: int) -> None:
        found = self._layout.fragments_of(index)
        if not found:
            return
        bar, height = self.verticalScrollBar(), self._styles.line_height
        top, bottom = found[0][0] * height, (found[-1][0] + 1) * height + 2 * self._pad
        if top < bar.value():
            bar.setValue(top)
        elif bottom > bar.value() + self.viewport().height():
            bar.setValue(bottom - self.viewport().height())

    # -- painting -------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paint the lines that the region needs."""
        now, styles = self._styles.theme, self._styles
        painter = QPainter(self.viewport())
        region = event.rect()
        painter.fillRect(region, QColor(now.panel))
        painter.setLayoutDirection(Qt.LayoutDirection.LeftToRight)
        if not self.lane.tokens:
            self._paint_placeholder(painter)
        else:
            painter.setRenderHint(QPainter.RenderHint.Antialiasing)
            offset, height = self.verticalScrollBar().value() - self._pad, styles.line_height
            first = max((region.top() + offset) // height, 0)
            last = min((region.bottom() + offset) // height, len(self._layout.lines) - 1)
            bounds = self._bounds()
            for line in range(first, last + 1):
                self._paint_line(painter, line, line * height - offset, bounds)
        if self.hasFocus():
            pen = QPen(QColor(now.focus), 2)
            painter.setPen(pen)
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRect(self.viewport().rect().adjusted(1, 1, -1, -1))
        painter.end()

    def _paint_placeholder(self, painter: QPainter) -> None:
        painter.setFont(theme.ui_font(12))
        painter.setPen(QColor(self._styles.theme.muted))
        area = self.viewport().rect().adjusted(self._pad, self._pad, -self._pad, -self._pad)
        flags = Qt.AlignmentFlag.AlignTop | Qt.AlignmentFlag.AlignLeft | Qt.TextFlag.TextWordWrap
        painter.drawText(area, int(flags), self.placeholder)

    def _visual(self, line: int) -> VisualLine | None:
        """A line set by its directions; None where all of it runs to the right."""
        row, layout = self._layout.lines[line], self._layout
        rtl = layout.paragraphs[line] in layout.right_to_left
        key = (2 * len(row) + rtl, row[-1] if row else None)
        kept = self._visuals.get(line)
        if kept is not None and kept[:2] == key:
            return kept[2]
        made = VisualLine(row, self._styles, rtl, layout.width, self._format_of) if row and (rtl or turns(row)) else None
        self._visuals[line] = (*key, made)
        return made

    def _row(self, line: int) -> list[Fragment]:
        """A line's pieces from left to right."""
        visual = self._visual(line)
        return self._layout.lines[line] if visual is None else visual.row

    def _format_of(self, fragment: Fragment) -> QTextCharFormat | None:
        """Font and colour of a ghost or a mark in a line that is set by its directions; None of plain text."""
        ghost = fragment.kind == "ghost"
        if not ghost and (fragment.kind == "word" or not self._marks):
            return None
        styles, form = self._styles, QTextCharFormat()
        form.setFont(styles.ghost_font if ghost else styles.font)
        form.setForeground(styles.styles[self.lane.tokens[fragment.token].kind].ink if ghost else styles.faint)
        return form

    def _paint_line(self, painter: QPainter, line: int, top: int, bounds: tuple[Place, Place] | None) -> None:
        row, visual = self._row(line), self._visual(line)
        tokens, styles = self.lane.tokens, self._styles
        spans = self._spans(row)
        for token, x, width in spans:
            if tokens[token].kind != "plain":
                styles.paint_under(painter, tokens[token].kind, x + self._pad, top, width)
        if bounds is not None:
            self._paint_selection(painter, row, top, bounds)
        if visual is None:
            self._paint_text(painter, row, top)
        else:
            visual.draw(painter, self._pad, top + styles.baseline)
        for token, x, width in spans:
            if tokens[token].kind == "rejected":
                styles.paint_over(painter, "rejected", x + self._pad, top, width)
            if token == self._current or token == self._hovered:
                current = token == self._current
                ink = QColor(styles.theme.ink if current else styles.theme.muted)
                painter.setPen(QPen(ink, 1.8 if current else 1.0))
                painter.setBrush(Qt.BrushStyle.NoBrush)
                box = QRectF(x + self._pad - 1, top + 0.5, max(width, styles.cell * 0.5) + 2, styles.line_height - 1)
                painter.drawRoundedRect(box, 3, 3)

    def _spans(self, row: list[Fragment]) -> list[tuple[int, float, float]]:
        """Return (token, x, width) of what to tint: leading spaces only in marks mode or on their own."""
        spans: list[tuple[int, float, float]] = []
        held: tuple[int, float, float] | None = None
        for fragment in row:
            token, x, width = fragment.token, fragment.x, fragment.width
            if fragment.rtl and fragment.kind == "space" and not self._marks and fragment.length < self._length(token):
                continue  # the space before the word stands after it here
            if spans and spans[-1][0] == token:
                spans[-1] = (token, spans[-1][1], x + width - spans[-1][1])
                held = None
            elif fragment.kind == "space" and not self._marks and fragment.length < self._length(token):
                held = (token, x, width)
            else:
                if held is not None and held[0] == token and fragment.kind not in ("word", "ghost"):
                    x, width = held[1], width + held[2]
                spans.append((token, x, width))
                held = None
        return spans

    def _length(self, token: int) -> int:
        return len(self.lane.tokens[token].text)

    def _paint_text(self, painter: QPainter, row: list[Fragment], top: int) -> None:
        """Draw a line's text, neighbouring output tokens in one call."""
        styles, tokens = self._styles, self.lane.tokens
        ink, faint = styles.styles["plain"].ink, styles.faint
        y = top + styles.baseline
        painter.setFont(styles.font)
        painter.setPen(ink)
        run, run_x = "", 0.0
        special: list[Fragment] = []
        for fragment in row:
            if fragment.kind in ("word", "space") and is_plain(fragment.text) \
                    and tokens[fragment.token].position is not None and not (self._marks and fragment.kind == "space"):
                if not run:
                    run_x = fragment.x
                run += fragment.text
                continue
            if run.strip():
                painter.drawText(QPointF(run_x + self._pad, y), run)
            run = ""
            special.append(fragment)
        if run.strip():
            painter.drawText(QPointF(run_x + self._pad, y), run)
        for fragment in special:
            if not fragment.text:
                continue
            if fragment.kind == "ghost":
                painter.setFont(styles.ghost_font)
                painter.setPen(styles.styles[tokens[fragment.token].kind].ink)
                painter.drawText(QPointF(fragment.x + self._pad + 0.2 * styles.cell, y), fragment.text)
            elif fragment.kind == "word":
                painter.setFont(styles.font)
                painter.setPen(ink)
                painter.drawText(QPointF(fragment.x + self._pad, y), fragment.text)
            elif self._marks:
                painter.setFont(styles.font)
                painter.setPen(faint)
                text = "·" * len(fragment.text) if fragment.kind == "space" else fragment.text
                painter.drawText(QPointF(fragment.x + self._pad, y), text)

    def _paint_selection(
        self, painter: QPainter, row: list[Fragment], top: int, bounds: tuple[Place, Place]
    ) -> None:
        colour = QColor(self._styles.theme.accent)
        colour.setAlpha(110)
        low, high = bounds
        for fragment in row:
            if self.lane.tokens[fragment.token].ghost:
                continue
            start = max(fragment.start, low[1] if fragment.token == low[0] else 0)
            stop = fragment.start + fragment.length
            if fragment.token < low[0] or fragment.token > high[0]:
                continue
            if fragment.token == high[0]:
                stop = min(stop, high[1])
            if stop <= start:
                continue
            left, right = self._offset_x(fragment, start), self._offset_x(fragment, stop)
            area = QRectF(min(left, right) + self._pad, top, abs(right - left), self._styles.line_height)
            painter.fillRect(area, colour)

    def _offset_x(self, fragment: Fragment, char: int) -> float:
        """Return the x of a character of the token within one of its fragments."""
        inside = char - fragment.start
        if fragment.edges:
            return fragment.edges[min(max(inside, 0), len(fragment.edges) - 1)]
        if inside <= 0:
            return fragment.x
        if inside >= fragment.length or fragment.atomic:
            return fragment.x + fragment.width
        if is_plain(fragment.text):
            return fragment.x + inside * self._styles.cell
        return fragment.x + self._styles.measure(fragment.text[:inside], False)

    # -- places -----------------------------------------------------------------------------------

    def _fragment_at(self, point: QPoint, *, strict: bool = False) -> Fragment | None:
        """Return the fragment at a point of the viewport; strict: only one that is really under it."""
        height = self._styles.line_height
        y = point.y() + self.verticalScrollBar().value() - self._pad
        x = point.x() - self._pad
        line = y // height
        if strict:
            if not 0 <= line < len(self._layout.lines):
                return None
            found = nearest(self._row(line), x)
            return found if found is not None and found.x <= x <= found.x + found.width else None
        line = min(max(line, 0), len(self._layout.lines) - 1)
        while line > 0 and not self._layout.lines[line]:
            line -= 1
            x = 10**6
        return nearest(self._row(line), x)

    def token_at(self, point: QPoint) -> int | None:
        """Return the index of the token under a point of the viewport."""
        fragment = self._fragment_at(point, strict=True)
        return None if fragment is None else fragment.token

    def _place_at(self, point: QPoint) -> Place | None:
        fragment = self._fragment_at(point)
        if fragment is None:
            return None
        x = point.x() - self._pad - fragment.x
        if fragment.atomic:
            return fragment.token, fragment.start + (fragment.length if x > fragment.width / 2 else 0)
        if fragment.edges:
            stops = [offset for offset, _ in clusters(fragment.text)] + [len(fragment.text)]
            chars = min(stops, key=lambda stop: abs(fragment.edges[stop] - fragment.x - x))
        elif is_plain(fragment.text):
            chars = round(x / self._styles.cell)
        else:
            edges = [offset for offset, _ in clusters(fragment.text)] + [len(fragment.text)]
            chars = min(edges, key=lambda edge: abs(self._styles.measure(fragment.text[:edge], False) - x))
        return fragment.token, fragment.start + min(max(chars, 0), fragment.length)

    # -- mouse ------------------------------------------------------------------------------------

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
            bar, step = self.verticalScrollBar(), self._styles.line_height
            if point.y() < 0:
                bar.setValue(bar.value() - step)
            elif point.y() > self.viewport().height():
                bar.setValue(bar.value() + step)
            return
        self._hover(self.token_at(point))

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        """End the drag; the selection stays."""
        event.accept()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        """Select the token's text."""
        token = self.token_at(event.position().toPoint())
        if token is not None and event.button() == Qt.MouseButton.LeftButton:
            self._select((token, 0), (token, self._length(token)))
            self.token_activated.emit(self.lane.tokens[token].round_index, self.lane.tokens[token].token_index)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        """Offer to copy."""
        menu = QMenu(self)
        menu.addAction("Copy selection", self.copy).setEnabled(bool(self.selected_text()))
        menu.addAction("Copy whole output", self.copy_all).setEnabled(bool(self.lane.text))
        menu.addAction("Select all", self.select_all).setEnabled(bool(self.lane.tokens))
        menu.exec(event.globalPos())
        menu.deleteLater()

    def _hover(self, token: int | None) -> None:
        if token == self._hovered:
            return
        if self._hovered is not None:
            self._update_token(self._hovered)
        self._hovered = token
        if token is None:
            self.hover_left.emit()
            return
        self._update_token(token)
        self.token_hovered.emit(self.lane.tokens[token].round_index, self.lane.tokens[token].token_index)

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
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
            token = self._current_token()
            if token is None:
                self._step_to(self._first_in_view())
            else:
                self.token_activated.emit(token.round_index, token.token_index)
        elif not self._move(event):
            event.ignore()  # not to the scroll area, which would take Alt+Right for a scroll

    def _move(self, event: QKeyEvent) -> bool:
        key = event.key()
        extend = bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier)
        whole = bool(event.modifiers() & Qt.KeyboardModifier.ControlModifier)
        if event.modifiers() & (Qt.KeyboardModifier.AltModifier | Qt.KeyboardModifier.MetaModifier):
            return False
        here = self._current
        page = max(1, self.viewport().height() // self._styles.line_height - 1)
        target: int | None
        match key:
            case Qt.Key.Key_Right | Qt.Key.Key_Left:
                step = 1 if key == Qt.Key.Key_Right else -1
                if here is not None and self._layout.paragraphs[self._layout.first_line[here]] in self._layout.right_to_left:
                    step = -step
                target = self._first_in_view() if here is None else self._neighbour(here, step)
            case Qt.Key.Key_Down:
                target = self._first_in_view() if here is None else self._vertical(here, 1)
            case Qt.Key.Key_Up:
                target = self._first_in_view() if here is None else self._vertical(here, -1)
            case Qt.Key.Key_PageDown:
                target = self._first_in_view() if here is None else self._vertical(here, page)
            case Qt.Key.Key_PageUp:
                target = self._first_in_view() if here is None else self._vertical(here, -page)
            case Qt.Key.Key_Home:
                target = self._neighbour(-1, 1) if whole or here is None else self._line_end(here, 0)
            case Qt.Key.Key_End:
                last = len(self._layout)
                target = self._neighbour(last, -1) if whole or here is None else self._line_end(here, -1)
                if whole:
                    self.follow()
            case _:
                return False
        if target is not None:
            if extend and here is not None:
                anchor = self._anchor if self._bounds() is not None and self._anchor is not None else (here, 0)
                self._select(anchor, (target, self._length(target) if (target, 0) >= anchor else 0))
            elif not extend:
                self._select(None, None)
            self._step_to(target)
        return True

    def _step_to(self, target: int | None) -> None:
        if target is not None:
            self._set_current(target)

    def _neighbour(self, index: int, step: int) -> int | None:
        index += step
        while 0 <= index < len(self._layout):
            if self._shown(index):
                return index
            index += step
        return None

    def _first_in_view(self) -> int | None:
        return self._top_token()

    def _vertical(self, index: int, lines: int) -> int | None:
        """Return the token `lines` further down nearest to the middle of this one."""
        found = self._layout.fragments_of(index)
        if not found:
            return None
        line, fragment = found[0] if lines < 0 else found[-1]
        pieces = [piece for piece in self._row(line) if piece.token == index] or [fragment]
        fragment = next((piece for piece in pieces if piece.kind != "space"), pieces[0])
        target = min(max(line + lines, 0), len(self._layout.lines) - 1)
        step = 1 if lines > 0 else -1
        while 0 <= target < len(self._layout.lines) and not self._layout.lines[target]:
            target += step
        hit = nearest(self._row(target), fragment.x + fragment.width / 2)
        if hit is None or hit.token == index:
            return self._neighbour(index, step) if hit is not None and line != target else None
        return hit.token

    def _line_end(self, index: int, end: int) -> int | None:
        line = self._layout.first_line[index]
        row = self._layout.lines[line] if line >= 0 else []
        return row[end].token if row else None

    # -- events -----------------------------------------------------------------------------------

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Wrap anew where the width changed."""
        super().resizeEvent(event)
        if event.size().width() == event.oldSize().width():
            self._update_range()
            if self._follow:
                self._to_end()
        elif len(self._layout) > _MANY:
            self._relayout_timer.start(_RELAYOUT_MS)  # dragging an edge sends many of these
        else:
            self._relayout()

    def scrollContentsBy(self, dx: int, dy: int) -> None:
        """Move the pixels that are already drawn."""
        if self.hasFocus():
            self.viewport().update()  # the focus frame must not move along
        else:
            self.viewport().scroll(0, dy)

    def focusInEvent(self, event: QFocusEvent) -> None:
        """Show the focus frame."""
        super().focusInEvent(event)
        self.viewport().update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        """Take the focus frame away."""
        super().focusOutEvent(event)
        self.viewport().update()
