"""A lane's draft tree, live: the newest round's, or the one that was selected.

One painted widget, whatever the number of nodes. Marks and strokes say a node's verdict as well as its colour:
✓ in a filled box accepted, ✕ and a strike rejected, a dotted box ignored, ↻ over dots corrected, + over a line bonus.
"""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QEvent, QPoint, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFontMetricsF,
    QHelpEvent,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPainterPath,
    QPaintEvent,
    QPen,
    QResizeEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QAbstractScrollArea, QFrame, QSizePolicy, QToolButton, QToolTip, QWidget

from specview.decoding.ledger import Round
from specview.gui.lanes.marks import StateLine
from specview.gui.link.pace import Later
from specview.gui.parts import layout, painted, theme
from specview.gui.parts.token_paint import plain_font
from specview.gui.parts.widgets import button
from specview.gui.state.display_text import tooltip, visible
from specview.gui.state.lane_words import Mark
from specview.gui.state.round_words import STATES, name_of, node_tip, number_text, round_tip, round_words
from specview.gui.state.tree_layout import ROOT, Layout, Node, Sizes, lay_out, nodes_of, outline
from specview.gui.state.view_model import FINAL, LaneModel

OneRow = Callable[[], float | None]
"""Gives what a one-row target pass takes here, seconds."""
LOOK_BACK = 64
"""Rounds that the live view goes back for one with a draft."""
ZOOMS = (0.0, 1.0, 1.35, 1.8)
"""0 fits the space; else how large nodes are."""
PAD = 6


class TreeView(QAbstractScrollArea):
    """Paints one round's tree. `node_selected` with the place of a node that was clicked or moved to.

    outlined: in a narrow column, a line for each node; it is as high as its lines and never scrolls by itself.
    """

    node_selected = Signal(int)
    resume_asked = Signal()

    def __init__(self, parent: QWidget | None = None, *, outlined: bool = False) -> None:
        super().__init__(parent)
        self.round: Round | None = None
        self.layout_: Layout = Layout([])
        self.zoom = 0.0
        self.current: int | None = None
        self.empty = ""
        self._outlined = outlined
        self.setFrameShape(QFrame.Shape.NoFrame)
        policies = QSizePolicy.Policy
        self.setSizePolicy(policies.Ignored, policies.Fixed if outlined else policies.Ignored)
        if outlined:
            self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus if outlined else Qt.FocusPolicy.StrongFocus)
        self.viewport().setMouseTracking(True)
        self.viewport().setAutoFillBackground(False)
        self.setAccessibleName("Draft tree")
        theme.signals.changed.connect(self._refit)

    # -- what is shown ----------------------------------------------------------------------------

    def show_round(self, round_: Round | None, empty: str = "", place: int | None = None) -> None:
        """Show a round's tree, the node of this place marked; None shows the words `empty`."""
        self.empty = empty
        if round_ is not self.round:
            self.current = None
        self.round = round_
        self._refit(place)
        if place is not None:
            self.mark(place)
        if self._outlined:
            self.setAccessibleDescription(self.text())

    def mark(self, place: int) -> None:
        """Mark a node, and bring it into view."""
        self.current = next((i for i, node in enumerate(self.layout_.nodes) if node.place == place), None)
        if self.current is not None:
            self._reveal(self.layout_.nodes[self.current])
        self.viewport().update()

    def set_zoom(self, zoom: float) -> None:
        """Fit the space (0), or show nodes at a size."""
        if zoom != self.zoom:
            self.zoom = zoom
            self._refit()

    def _refit(self, place: int | None = None) -> None:
        room, pad = self.viewport().size(), theme.px(PAD)
        sizes = Sizes().times(theme.px(100) / 100 * (self.zoom or 1.0))
        width, height = max(room.width() - 2 * pad, 60), max(room.height() - 2 * pad, 30)
        if self.round is None:
            self.layout_ = Layout([])
        elif self._outlined:
            self.layout_ = outline(self.round, width, place if place is not None else self._place(), sizes)
            self.setFixedHeight(round(self.layout_.height) + 2 * pad)
            room = self.viewport().size()
        else:
            self.layout_ = lay_out(self.round, width, height, sizes, full=self.zoom > 0, needs=self._needs(self.round))
        for bar, need, have in (
            (self.horizontalScrollBar(), self.layout_.width + 2 * pad, room.width()),
            (self.verticalScrollBar(), self.layout_.height + 2 * pad, room.height()),
        ):
            bar.setPageStep(have)
            bar.setSingleStep(theme.px(20))
            bar.setRange(0, max(0, round(need - have)))
        if self.current is None and (path := self.layout_.path()):
            self._reveal(path[-1])
        self.viewport().update()

    def _place(self) -> int | None:
        """The place of the node that is marked."""
        nodes = self.layout_.nodes
        return nodes[self.current].place if self.current is not None and self.current < len(nodes) else None

    def _needs(self, round_: Round) -> list[tuple[float, float]]:
        """Pixels that the nodes' words and numbers take, edges included."""
        factor = self.zoom or 1.0
        metrics, small = QFontMetricsF(plain_font(11 * factor)), QFontMetricsF(theme.ui_font(10 * factor))
        mark = metrics.horizontalAdvance("✓") + theme.px(3)
        edges = theme.px(7) + 2
        return [
            (
                metrics.horizontalAdvance(_shown(round_, node.place)) + edges + (mark if node.judged else 0.0),
                small.horizontalAdvance(_number(round_, node)) + theme.px(9),
            )
            for node in nodes_of(round_)
        ]

    def text(self) -> str:
        """Return what is shown as text: two spaces a depth, mark, token, number."""
        if self.round is None:
            return self.empty
        lines = []
        for node in self.layout_.nodes:
            number = "" if node.place == FINAL else number_text(self.round.drafted[node.place])
            lines.append(f"{'  ' * node.depth}{mark_of(node)} {name_of(self.round, node.place)} {number}".rstrip())
        return "\n".join(lines)

    def sizeHint(self) -> QSize:
        return QSize(theme.px(220), theme.px(120))

    def minimumSizeHint(self) -> QSize:
        return QSize(10, theme.px(48))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if not self._outlined or event.size().width() != event.oldSize().width():
            self._refit()

    # -- painting ---------------------------------------------------------------------------------

    def _origin(self) -> QPointF:
        pad = theme.px(PAD)
        return QPointF(pad - self.horizontalScrollBar().value(), pad - self.verticalScrollBar().value())

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paint edges, then nodes."""
        now = theme.current()
        painter = QPainter(self.viewport())
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        if self.round is None or not self.layout_.nodes:
            area = QRectF(self.viewport().rect()).adjusted(theme.px(12), 0, -theme.px(12), 0)
            flags = int(Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap)
            painted.words_in(painter, area, self.empty, theme.ui_font(11), QColor(now.muted), flags)
            return
        origin = self._origin()
        painter.translate(origin)
        nodes = self.layout_.nodes
        root = QPointF(*self.layout_.root)
        grey = QColor(now.faint)
        grey.setAlphaF(0.55)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        for lit, pen in ((False, QPen(grey, 1.0)), (True, QPen(QColor(now.accepted), 2.0))):
            path = QPainterPath()
            for node in nodes:
                if node.bright == lit:
                    self._edge(path, node, None if node.parent == ROOT else nodes[node.parent], root)
            painter.setPen(pen)
            painter.drawPath(path)
        painter.setPen(Qt.PenStyle.NoPen)
        if not self._outlined:
            painter.setBrush(QColor(now.ink))
            painter.drawEllipse(root, theme.px(3.5), theme.px(3.5))
        wide = theme.px(16)
        for lit, ink in ((False, now.faint), (True, now.accepted)):
            painter.setBrush(QColor(ink))
            painter.drawRects([
                QRectF(node.x, node.y + max(0.0, node.height / 2 - 1), min(node.width, wide), min(2.0, node.height))
                for node in nodes if not node.words and node.bright == lit
            ])
        top, bottom = event.rect().top() - origin.y(), event.rect().bottom() - origin.y()
        for index, node in enumerate(nodes):
            box = QRectF(node.x, node.y, node.width, node.height)
            if node.words and box.bottom() >= top and box.top() <= bottom:
                self._box(painter, node, box)
                self._words(painter, node, box)
            if index == self.current:
                painted.box(painter, box.adjusted(-2, -2, 2, 2), QPen(QColor(now.focus), 1.6), None, 4)

    def _edge(self, path: QPainterPath, node: Node, parent: Node | None, root: QPointF) -> None:
        end = QPointF(node.x, node.y + node.height / 2)
        if self._outlined:
            if parent is not None:
                path.moveTo(parent.x + theme.px(5), parent.y + parent.height)
                path.lineTo(parent.x + theme.px(5), end.y())
                path.lineTo(end)
            return
        start = root if parent is None else QPointF(parent.x + parent.width, parent.y + parent.height / 2)
        path.moveTo(start)
        if end.x() <= start.x():  # a chain that is broken goes on in the next line
            gap = theme.px(5)
            level = node.y - theme.px(3)
            for point in (QPointF(start.x() + gap, start.y()), QPointF(start.x() + gap, level),
                          QPointF(end.x() - gap, level), QPointF(end.x() - gap, end.y()), end):
                path.lineTo(point)
        else:
            bend = (end.x() - start.x()) / 2
            path.cubicTo(QPointF(start.x() + bend, start.y()), QPointF(end.x() - bend, end.y()), end)

    def _box(self, painter: QPainter, node: Node, box: QRectF) -> None:
        now = theme.current()
        ink = {"ignored": "faint", "plain": "ink"}.get(node.verdict, node.verdict)
        bare = now.field if node.verdict == "plain" else now.panel
        colour, fill = painted.ink(ink), getattr(now, f"{node.verdict}_tint", bare)
        dash = painted.DASHES if node.verdict == "ignored" else ()
        inner = box.adjusted(0.5, 0.5, -0.5, -0.5)
        painted.box(painter, inner, painted.pen(colour, 1.8 if node.bright else 1.0, dash), QColor(fill), 4)
        if node.verdict in ("corrected", "bonus"):
            painter.setPen(painted.pen(colour, 2.2, painted.DOTS if node.verdict == "corrected" else ()))
            y = inner.bottom() - 1.5
            painter.drawLine(QPointF(inner.left() + 4, y), QPointF(inner.right() - 4, y))

    def _words(self, painter: QPainter, node: Node, box: QRectF) -> None:
        """Draw a node's mark and word; its number beneath, in an outline at the right."""
        assert self.round is not None
        factor = self.zoom or 1.0
        font, small, muted = plain_font(11 * factor), theme.ui_font(10 * factor), painted.ink("muted")
        metrics = QFontMetricsF(font)
        ink = muted if node.verdict == "plain" else painted.ink(node.verdict)
        left, right, two_lines = box.left() + theme.px(4), box.right(), node.number
        baseline = painted.baseline(metrics, box.top() + box.height() / (4 if two_lines else 2)) + int(two_lines)
        if node.judged:
            painted.words(painter, QPointF(left, baseline), mark_of(node), font, ink)
            left += metrics.horizontalAdvance("✓") + theme.px(3)
        if self._outlined:
            number = _number(self.round, node)
            right -= QFontMetricsF(small).horizontalAdvance(number) + theme.px(6)
            painted.words(painter, QPointF(right + theme.px(3), baseline), number, small, muted)
        room, shown = right - left - theme.px(3), _shown(self.round, node.place)
        text = metrics.elidedText(shown, Qt.TextElideMode.ElideRight, room)
        if text == "…" and node.judged:  # no letter fits: the mark says its part alone
            text = ""
        painted.words(painter, QPointF(left, baseline), text, font, painted.ink("ink") if node.bright else ink)
        if node.verdict == "rejected":
            painted.strike(painter, left, metrics.horizontalAdvance(text), baseline, metrics, ink)
        if two_lines:
            low = box.bottom() - theme.px(4) - (2 if node.place == FINAL else 0)
            painted.words(painter, QPointF(box.left() + theme.px(5), low), _number(self.round, node), small, muted)

    # -- mouse and keyboard ------------------------------------------------------------------------

    def node_at(self, point: QPoint) -> Node | None:
        """The node under a point of the viewport."""
        origin = self._origin()
        return self.layout_.at(point.x() - origin.x(), point.y() - origin.y())

    def viewportEvent(self, event: QEvent) -> bool:
        """Tell a node in full."""
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            node = self.node_at(event.pos())
            words = "" if node is None or self.round is None else node_tip(self.round, node.place)
            QToolTip.showText(event.globalPos(), tooltip(words), self)
            return True
        return super().viewportEvent(event)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Choose a node."""
        node = self.node_at(event.position().toPoint())
        if node is not None and event.button() == Qt.MouseButton.LeftButton:
            self._choose(self.layout_.nodes.index(node))

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        event.accept()  # the press was all

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Zoom with Ctrl, else scroll."""
        if event.modifiers() & Qt.KeyboardModifier.ControlModifier:
            self.step_zoom(1 if event.angleDelta().y() > 0 else -1)
            event.accept()
        else:
            super().wheelEvent(event)

    def step_zoom(self, step: int) -> None:
        """Zoom in or out by a step; out of the smallest is the fit."""
        place = ZOOMS.index(self.zoom) + step
        self.set_zoom(ZOOMS[min(max(place, 0), len(ZOOMS) - 1)])

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Arrows go along the tree, + - 0 zoom, Esc goes on live."""
        key = event.key()
        if event.modifiers() & (Qt.KeyboardModifier.AltModifier | Qt.KeyboardModifier.ControlModifier):
            event.ignore()
        elif key in (Qt.Key.Key_Plus, Qt.Key.Key_Equal):
            self.step_zoom(1)
        elif key == Qt.Key.Key_Minus:
            self.step_zoom(-1)
        elif key == Qt.Key.Key_0:
            self.set_zoom(0.0)
        elif key == Qt.Key.Key_Space:
            self.resume_asked.emit()
        elif key in (Qt.Key.Key_Left, Qt.Key.Key_Right, Qt.Key.Key_Up, Qt.Key.Key_Down):
            self._go(Qt.Key(key))
        else:
            event.ignore()

    def _go(self, key: Qt.Key) -> None:
        nodes = self.layout_.nodes
        if not nodes:
            return
        if self.current is None:
            self._choose(nodes.index(self.layout_.path()[0]) if self.layout_.path() else 0)
            return
        here = nodes[self.current]
        if key == Qt.Key.Key_Left:
            to = here.parent
        elif key == Qt.Key.Key_Right:
            below = [i for i, node in enumerate(nodes) if node.parent == self.current]
            to = next((i for i in below if nodes[i].bright), below[0] if below else ROOT)
        else:
            column = sorted((i for i, node in enumerate(nodes) if node.depth == here.depth), key=lambda i: nodes[i].y)
            place = column.index(self.current) + (1 if key == Qt.Key.Key_Down else -1)
            to = column[place] if 0 <= place < len(column) else ROOT
        if to != ROOT:
            self._choose(to)

    def _choose(self, index: int) -> None:
        self.current = index
        node = self.layout_.nodes[index]
        if self.round is not None:
            self.setAccessibleDescription(node_tip(self.round, node.place).replace("\n", ", "))
        self._reveal(node)
        self.viewport().update()
        self.node_selected.emit(node.place)

    def _reveal(self, node: Node) -> None:
        pad = theme.px(PAD)
        for bar, low, size, room in (
            (self.horizontalScrollBar(), node.x, node.width, self.viewport().width()),
            (self.verticalScrollBar(), node.y, node.height, self.viewport().height()),
        ):
            high = low + size + 2 * pad
            if low < bar.value():
                bar.setValue(round(low))
            elif high > bar.value() + room:
                bar.setValue(round(high - room))


def _shown(round_: Round, place: int) -> str:
    """A node's word as it is painted: without its leading spaces."""
    token = round_.final if place == FINAL else round_.drafted[place]
    assert token is not None
    shown = visible(token.text) if token.text else name_of(round_, place)
    return shown.lstrip(" ") or "␣" * len(shown)


def mark_of(node: Node) -> str:
    """The mark of a node's verdict."""
    return STATES[node.verdict].mark


def _number(round_: Round, node: Node) -> str:
    """What stands under a node's word: its number, the final token's verdict."""
    return node.verdict if node.place == FINAL else number_text(round_.drafted[node.place])


class TreePanel(QWidget):
    """A lane's tree with a line about its round. Follows the newest round until one is selected.

    node_selected: (round_index, token_index) of a node that was chosen.
    """

    node_selected = Signal(int, int)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.view = TreeView()
        self.line = StateLine()
        self.live = button(
            QToolButton, "live", "Follow the newest round; choosing a token or a node stays on its round (Space in the "
            "tree)", self._live_clicked, kind="caption", name="Follow the newest round",
        )  # fmt: skip
        self.live.setCheckable(True)
        self.live.setChecked(True)
        self.size_button = button(
            QToolButton, "1:1", "Fit the tree into its space, or show every node in full (+, - and 0 in the tree, "
            "Ctrl+wheel)", lambda: self._set_zoom(0.0 if self.view.zoom else 1.0), kind="caption", name="Size of the draft tree",
        )  # fmt: skip
        self._lane: LaneModel | None = None
        self._shown: tuple[int, int] | None = None
        self._round: Round | None = None
        self._one_row: OneRow = lambda: None
        self._one_row_s: float | None = None
        self._row = layout.row((self.line, 1), self.size_button, self.live)
        layout.column(self._row, (self.view, 1), on=self, gap=0)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Ignored)
        self.view.node_selected.connect(self._chosen)
        self.view.resume_asked.connect(self.resume)
        self._settle = Later(self, 0, self._name_zoom)
        self.view.verticalScrollBar().rangeChanged.connect(lambda *_: self._settle.start())
        theme.signals.changed.connect(self._restyle)
        self._restyle()
        self._say_nothing()

    def minimumSizeHint(self) -> QSize:
        return QSize(10, theme.px(70))

    def sizeHint(self) -> QSize:
        """The same whatever is in it, so that nothing jumps."""
        return QSize(theme.px(220), theme.px(150))

    @property
    def paused(self) -> bool:
        """Whether a round was selected, and newer ones wait."""
        return not self.live.isChecked()

    @property
    def shown(self) -> tuple[int, int] | None:
        """(generation, index among the lane's rounds) of the round shown."""
        return self._shown

    def follow(self, lane: LaneModel, one_row: OneRow) -> bool:
        """Show the lane's newest round with a draft, unless one is selected; True where the picture changed."""
        if lane is not self._lane or (self._shown is not None and self._shown[0] != lane.generation):
            self._lane, self._shown = lane, None
            self.live.setChecked(True)
        if self.paused and (self._shown is None or self._shown[1] < lane.known_rounds):
            if self._shown is None or lane.round_at(self._shown[1]) is self._round:
                return False
            self._show(self._shown[1], one_row)  # it went on while it was looked at
            return True
        self.live.setChecked(True)
        had, newest = self._shown, newest_draft(lane)
        if newest is None:
            self._say_nothing()
        elif (lane.generation, newest) != had or lane.round_at(newest) is not self._round:
            self._show(newest, one_row)
            return True
        return self._shown != had

    def pin(self, lane: LaneModel, round_index: int, token_index: int, one_row: OneRow) -> None:
        """Stay on a round that was selected, the token marked."""
        if not 0 <= round_index < lane.known_rounds:
            return
        self._lane = lane
        self.live.setChecked(False)
        if self._shown != (lane.generation, round_index) or lane.round_at(round_index) is not self._round:
            self._show(round_index, one_row)
        else:
            self._describe()
        self.view.mark(token_index)

    def resume(self) -> None:
        """Follow the newest round again."""
        self._shown = self.view.current = None
        self.live.setChecked(True)
        if self._lane is not None:
            self.follow(self._lane, self._one_row)

    def _live_clicked(self) -> None:
        if self.live.isChecked() or self._shown is None:
            self.resume()
        else:
            self._describe()

    def _chosen(self, place: int) -> None:
        if self._shown is not None:
            self.live.setChecked(False)
            self._describe()
            self.node_selected.emit(self._shown[1], place)

    def _show(self, index: int, one_row: OneRow) -> None:
        assert self._lane is not None
        self._one_row, self._one_row_s = one_row, one_row()
        self._shown = (self._lane.generation, index)
        self._round = round_ = self._lane.round_at(index)
        self.view.show_round(round_ if round_.drafted else None, "This round drafted nothing.")
        self._describe()

    def _describe(self) -> None:
        if self._lane is None or self._shown is None:
            return
        assert self._round is not None
        round_ = self._round
        words = round_words(round_, self._one_row_s)
        tip = round_tip(round_, self._one_row_s)
        self.line.set_mark(Mark(f"‖ {words.removeprefix('round ')}" if self.paused else words, tip=tip))

    def _say_nothing(self) -> None:
        self._shown = None
        self.view.show_round(None, "The tree of each round's draft shows here.")
        self.line.set_mark(Mark("draft tree"))

    def _set_zoom(self, zoom: float) -> None:
        self.view.set_zoom(zoom)
        self._name_zoom()

    def _name_zoom(self) -> None:
        words = "fit" if self.view.zoom else "1:1"
        if self.size_button.text() != words:
            self.size_button.setText(words)

    def _restyle(self) -> None:
        self._row.setContentsMargins(theme.px(12), theme.px(2), theme.px(7), 0)
        self._row.setSpacing(theme.px(2))
        for one in (self.live, self.size_button):
            one.setFixedHeight(theme.px(19))
        self._name_zoom()
        self.line.updateGeometry()

    def paintEvent(self, event: QPaintEvent) -> None:
        """A line that parts it from the text above."""
        painter = QPainter(self)
        painter.fillRect(QRectF(0, 0, self.width(), 1), QColor(theme.current().border))


def newest_draft(lane: LaneModel) -> int | None:
    """The newest round of a lane that drafted, among the last few; None where there is none."""
    last = lane.known_rounds - 1
    for index in range(last, max(-1, last - LOOK_BACK), -1):
        if lane.round_at(index).drafted:
            return index
    return None
