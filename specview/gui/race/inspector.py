"""The inspector: why one token was accepted, corrected or rejected.

Its pictures are painted, and plain text only: a lookahead round has dozens of tokens, far too many for a widget each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from PySide6.QtCore import QPointF, QRect, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QColor, QFocusEvent, QFontMetricsF, QKeyEvent, QMouseEvent, QPainter, QResizeEvent
from PySide6.QtWidgets import QFrame, QLabel, QPushButton, QScrollArea, QSizePolicy, QToolButton, QWidget

from specview.files.figures import probability
from specview.gui.lanes.token_view import BRANCH
from specview.gui.lanes.tree_view import TreeView
from specview.gui.parts import layout, painted, theme
from specview.gui.parts.painted import Painted, ink
from specview.gui.parts.token_paint import plain_font
from specview.gui.parts.widgets import button, label
from specview.gui.state.display_text import quoted, visible
from specview.gui.state.inspection import Bar, Inspection, Line, Row, inspect
from specview.gui.state.view_model import LaneModel

HINT = (
    "Click a token, or move over tokens with the arrow keys, to see why it is there: "
    "target and draft probabilities, the rule's formula with its numbers, the draw, the residual."
)

WINDOW_NOTE = (
    "Guesses that rode in the same target pass. A row is an n-gram in the making, which begins that many "
    "tokens ahead; the pass gives the token after it, and a row of all levels then goes into the pool."
)
LAST = "last token"
GONE = "The replay is before this token: it is not there yet."
_INSET = 4


class CandidateBars(Painted):
    """Rows of candidate tokens, each with a bar for p (ink) over one for q (grey).

    One may be picked, by the pointer or by the arrow keys: picked tells of it, asked that it was pressed twice, or Enter.
    """

    picked = Signal()
    asked = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.rows: list[Row] = []
        self.has_q = False
        self._place: int | None = None
        self.setAccessibleName("Candidates")
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)

    def show_rows(self, rows: Sequence[Row], has_q: bool) -> None:
        """Show these candidates."""
        held = self.chosen
        self.rows, self.has_q = list(rows), has_q
        self._place = next((place for place, row in enumerate(self.rows) if held is not None and row.id == held.id), None)
        self.setAccessibleName(f"Candidates: {self.text()}")
        self.changed()

    def text(self) -> str:
        """Return what is shown, as text."""
        return "; ".join(f"{quoted(row.text)} {row.role} p {probability(row.p)} q {probability(row.q)}" for row in self.rows)

    @property
    def chosen(self) -> Row | None:
        """The row that is picked."""
        return None if self._place is None else self.rows[self._place]

    def choose(self, place: int | None) -> None:
        """Pick a row; None for none of them."""
        if place is not None and not 0 <= place < len(self.rows):
            return
        if place != self._place:
            self._place = place
            row = self.chosen
            self.setAccessibleDescription("" if row is None else f"{quoted(row.text)} is picked")
            self.update()
            self.picked.emit()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        step = {Qt.Key.Key_Down: 1, Qt.Key.Key_Up: -1}.get(Qt.Key(event.key()))
        if step is not None and self.rows:
            here = -1 if self._place is None and step > 0 else len(self.rows) if self._place is None else self._place
            self.choose(min(max(here + step, 0), len(self.rows) - 1))
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.asked.emit()
        else:
            event.ignore()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton:
            self.choose(int(event.position().y() // self._row_height()))

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton and self.chosen is not None:
            self.asked.emit()

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        self.update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.update()

    def _row_height(self) -> int:
        return theme.px(27 if self.has_q else 22)

    def high(self) -> int:
        """Rows and the key below them."""
        return len(self.rows) * self._row_height() + (theme.px(20) if self.rows else 0)

    def paint(self, painter: QPainter, region: QRect) -> None:
        now = theme.current()
        text_font, small_font = plain_font(12), theme.ui_font(10.5)
        metrics, small = QFontMetricsF(text_font), QFontMetricsF(small_font)
        height, width, thick = self._row_height(), self.width(), theme.px(6)
        name_width = min(width * 0.32, theme.px(110))
        value_width = small.horizontalAdvance("0.000") + theme.px(4)
        left, right = _INSET + name_width + theme.px(8), width - value_width - 2
        room = right - left - theme.px(6)
        colours = [(QColor(now.p_ink), "p target"), (QColor(now.q_grey), "q draft")][: 2 if self.has_q else 1]
        for place, row in enumerate(self.rows):
            middle = place * height + height / 2
            if place == self._place:
                outline = painted.pen(ink("focus" if self.hasFocus() else "border"), 1.2)
                painted.box(painter, QRectF(0.5, place * height + 1, width - 1, height - 2), outline, None)
            shown = quoted(row.text, 24) if row.text else f"token {row.id}"
            name = metrics.elidedText(shown, Qt.TextElideMode.ElideMiddle, name_width)
            baseline = painted.baseline(metrics, middle)
            painted.words(painter, QPointF(_INSET, baseline), name, text_font, ink(row.role))
            self._mark(painter, row, metrics.horizontalAdvance(name), baseline, metrics)
            for line, ((colour, _), value) in enumerate(zip(colours, (row.p, row.q), strict=False)):
                y = middle + (line - (len(colours) - 1) / 2) * theme.px(11)
                painted.box(painter, QRectF(left, y - thick / 2, room, thick), None, QColor(now.field))
                if value is not None:
                    span = max(room * min(value, 1.0), 2.0)
                    painted.box(painter, QRectF(left, y - thick / 2, span, thick), None, colour)
                area = QRectF(right, y - small.height() / 2, value_width, small.height())
                painted.words_in(painter, area, probability(value), small_font, ink("muted"), painted.RIGHT)
        x, side, top = 0.0, theme.px(8), len(self.rows) * height
        for colour, what in colours if self.rows else ():
            painter.fillRect(QRectF(x, top + (theme.px(18) - side) / 2, side, side), colour)
            x += side + theme.px(5)
            at = QPointF(x, painted.baseline(small, top + theme.px(9)))
            painted.words(painter, at, what, small_font, ink("muted"))
            x += small.horizontalAdvance(what) + theme.px(14)

    def _mark(self, painter: QPainter, row: Row, width: float, baseline: float, metrics: QFontMetricsF) -> None:
        """Strike, underline or box a name as the token view does, so that colour is not the only cue."""
        colour = ink(row.role)
        if row.role == "rejected":
            painted.strike(painter, _INSET, width, baseline, metrics, colour)
        elif row.role in ("corrected", "bonus"):
            painter.setPen(painted.pen(colour, 1.5, painted.DOTS if row.role == "corrected" else ()))
            painter.drawLine(QPointF(_INSET, baseline + 3), QPointF(_INSET + width, baseline + 3))
        elif row.role in ("accepted", "ignored"):
            outline = painted.pen(colour, 1.0, painted.DASHES if row.role == "ignored" else ())
            painted.box(painter, QRectF(_INSET - 1.5, baseline - metrics.ascent(), width + 3, metrics.height()), outline, None, 2.5)

    def tip_at(self, at: QPointF) -> str:
        """A row's numbers in full."""
        place = int(at.y() // self._row_height())
        if not 0 <= place < len(self.rows):
            return ""
        row = self.rows[place]
        p = "not among the recorded likeliest" if row.p is None else f"{row.p:.7g}"
        q = "not recorded" if row.q is None else f"{row.q:.7g}"
        words = f"{quoted(row.text, 80)} · id {row.id}\np {p}\nq {q}"
        return f"{row.role} · {words}" if row.role else words


class FormulaBox(Painted):
    """Lines of a formula in the fixed-width font, on a field; long lines wrap between words."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.lines: list[Line] = []
        policy = self.sizePolicy()
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)

    def show_lines(self, lines: Sequence[Line]) -> None:
        """Show these lines; hidden where there are none."""
        self.lines = [list(line) for line in lines]
        self.setAccessibleName(self.text())
        self.setVisible(bool(self.lines))
        self.changed()

    def text(self) -> str:
        """Return what is shown, as text."""
        return "\n".join("".join(piece for piece, _ in line) for line in self.lines)

    def _placed(self, width: float) -> Iterator[list[tuple[float, str, str]]]:
        """Wrap the lines: rows of (x, text, tone)."""
        regular, bold = QFontMetricsF(plain_font(12)), QFontMetricsF(theme.mono_font(12, bold=True))
        room, indent = max(width - 2 * theme.px(10), 40), float(theme.px(12))
        for line in self.lines:
            row: list[tuple[float, str, str]] = []
            x = 0.0
            for text, tone in line:
                metrics = bold if tone == "strong" else regular
                for word in _words(visible(text)):
                    if x + metrics.horizontalAdvance(word.rstrip()) > room and row:
                        yield row
                        row, x = [], indent
                    cell = metrics.horizontalAdvance("n")
                    while x + metrics.horizontalAdvance(word) > room and len(word) > 1:
                        take = max(1, int((room - x) / cell))
                        yield [*row, (x, word[:take], tone)]
                        row, x, word = [], indent, word[take:]
                        if metrics.horizontalAdvance(word) <= cell:
                            break
                    row.append((x, word, tone))
                    x += metrics.horizontalAdvance(word)
            yield row

    def _pitch(self) -> int:
        return round(QFontMetricsF(plain_font(12)).height() * 1.2)

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        """Return the height that all rows need, pixels."""
        return len(list(self._placed(width))) * self._pitch() + 2 * theme.px(8) if self.lines else 0

    def high(self) -> int:
        """For the present width."""
        return self.heightForWidth(max(self.width(), theme.px(160)))

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self.updateGeometry()

    def paint(self, painter: QPainter, region: QRect) -> None:
        painted.box(painter, QRectF(self.rect()), None, QColor(theme.current().field), 6)
        regular, bold = plain_font(12), theme.mono_font(12, bold=True)
        metrics, pitch = QFontMetricsF(regular), self._pitch()
        y = theme.px(8) + (pitch - metrics.height()) / 2 + metrics.ascent()
        for row in self._placed(self.width()):
            for x, text, tone in row:
                strong = tone not in ("ink", "muted", "warning", "ignored")
                painted.words(painter, QPointF(theme.px(10) + x, y), text, bold if strong else regular, ink(tone))
            y += pitch


class DrawBar(Painted):
    """The unit interval: filled up to the acceptance probability, a mark where the draw fell."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.bar: Bar | None = None

    def show_bar(self, bar: Bar | None) -> None:
        """Show a draw; hidden where the rule draws nothing."""
        self.bar = bar
        self.setVisible(bar is not None)
        if bar is not None:
            self.setAccessibleName(bar.caption)
        self.update()

    def high(self) -> int:
        """A bar and the mark that stands out of it."""
        return theme.px(18)

    def paint(self, painter: QPainter, region: QRect) -> None:
        if self.bar is None:
            return
        thick, width = theme.px(7), self.width()
        top = (self.height() - thick) / 2
        painted.box(painter, QRectF(0, top, width, thick), None, ink("border"), thick / 2)
        filled = min(max(self.bar.accept, 0.0), 1.0) * width
        painted.box(painter, QRectF(0, top, max(filled, 2.0), thick), None, ink("accepted"), thick / 2)
        if self.bar.mark is not None:
            x = min(max(self.bar.mark, 0.0), 1.0) * (width - 3) + 1.5
            painter.fillRect(QRectF(x - 1.25, 0, 2.5, self.height()), ink("ink"))


class WindowGrid(Painted):
    """Lookahead's window of guesses: a row for each of its columns, in it the levels, first level first."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.rows: list[list[str]] = []

    def show_rows(self, rows: Sequence[Sequence[str]]) -> None:
        """Show this window; hidden where there is none."""
        self.rows = [list(row) for row in rows]
        self.setAccessibleName(self.text())
        self.setVisible(bool(self.rows))
        self.changed()

    def text(self) -> str:
        """Return what is shown, as text: a line per row."""
        return "\n".join(
            f"+{place}: {' · '.join(quoted(text) if text else LAST for text in row)}" for place, row in enumerate(self.rows)
        )

    @property
    def levels(self) -> int:
        """Levels of the window."""
        return max((len(row) for row in self.rows), default=0)

    def _pitch(self) -> int:
        return theme.px(19)

    def high(self) -> int:
        """A heading and all rows."""
        return (len(self.rows) + 1) * self._pitch() if self.rows else 0

    def _cells(self) -> tuple[float, float]:
        """Width of the rows' names, and of a level's cells."""
        left = QFontMetricsF(theme.ui_font(10.5)).horizontalAdvance("+88") + theme.px(6)
        return left, (self.width() - left) / max(self.levels, 1)

    def paint(self, painter: QPainter, region: QRect) -> None:
        font, small, muted = plain_font(11), theme.ui_font(10.5), ink("muted")
        metrics, pitch = QFontMetricsF(font), self._pitch()
        left, wide = self._cells()
        for level in range(self.levels):
            name = f"level {level}" if wide > theme.px(44) else str(level)
            painted.words_in(painter, QRectF(left + level * wide + theme.px(4), 0, wide, pitch), name, small, muted)
        for place, row in enumerate(self.rows):
            top = (place + 1) * pitch
            painted.words_in(painter, QRectF(0, top, left, pitch), f"+{place}", small, muted)
            for level, text in enumerate(row):
                box = QRectF(left + level * wide, top + 1, wide - theme.px(3), pitch - 2)
                inner = box.adjusted(theme.px(4), 0, -theme.px(2), 0)
                if text:
                    painted.box(painter, box, painted.pen(ink("border"), 1), QColor(theme.current().field))
                    shown = visible(text)
                    shown = f"␣{shown[1:]}" if shown.startswith(" ") else shown  # without quotes it would not be seen
                    shown = metrics.elidedText(shown, Qt.TextElideMode.ElideRight, inner.width())
                    painted.words_in(painter, inner, shown, font, ink("ink"))
                elif place == level == 0:
                    painted.words_in(painter, inner, LAST, small, muted)

    def tip_at(self, at: QPointF) -> str:
        """A cell in full."""
        left, wide = self._cells()
        place, level = int(at.y() // self._pitch()) - 1, int((at.x() - left) // max(wide, 1))
        if 0 <= place < len(self.rows) and 0 <= level < len(self.rows[place]) and self.rows[place][level]:
            return f"{quoted(self.rows[place][level], 80)}\nrow +{place}, level {level}"
        return ""


class Inspector(QFrame):
    """Shows one token of one lane, or a hint; closed asks that it be closed, branch_requested(round_index, token_index,
    id of another token or None) that the text goes on from the token in another way.
    """

    closed = Signal()
    branch_requested = Signal(int, int, object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.inspection: Inspection | None = None
        self._shown: tuple[LaneModel, int, int, int] | None = None
        self._moment: object = None  # of a replay: the stage of the round under way that is shown
        self._gone = self._chosen_one = False
        self._area = QScrollArea()
        self._area.setWidgetResizable(True)
        self._area.setFrameShape(QFrame.Shape.NoFrame)
        self._area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self._area.setAccessibleName("Inspector")
        self.setAccessibleName("Inspector")
        body = QWidget()
        body.setObjectName("scrolled")
        self._title, self._tree_title, self._window_title = (_label("title") for _ in range(3))
        self._token = _label("")
        self._subtitle, self._rows_note, self._caption = (_label("small") for _ in range(3))
        self._notes, self._window_note = _label("small"), _label("small")
        self._close = button(QToolButton, "×", "Close the inspector (Esc)", self.closed, kind="flat", name="Close the inspector")
        self._bars = CandidateBars()
        self._bars.picked.connect(self._name_branch)
        self._bars.asked.connect(self.branch)
        self._branch = button(QPushButton, BRANCH, "Choose another token here, another method or temperature: the race goes on "
                              "from this place as a new run (B)", self.branch)  # fmt: skip
        self._branch.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self._accept, self._correction = FormulaBox(), FormulaBox()
        self._draw = DrawBar()
        self._tree = TreeView(outlined=True)
        self._tree.node_selected.connect(self._chosen)
        self._window = WindowGrid()
        self._column = layout.column(
            self._token, self._subtitle, self._bars, self._rows_note, self._branch, self._accept, self._draw, self._caption,
            self._correction, self._notes, self._tree_title, self._tree, self._window_title, self._window, self._window_note, 1,
            on=body, margins=None
        )  # fmt: skip
        self._area.setWidget(body)
        self._head = layout.row((self._title, 1), (self._close, 0, Qt.AlignmentFlag.AlignTop), gap=4)
        layout.column(self._head, (self._area, 1), on=self, gap=0)
        theme.signals.changed.connect(self._restyle)
        self._restyle()
        self.clear()

    def sizeHint(self) -> QSize:
        return QSize(theme.px(290), theme.px(500))

    def minimumSizeHint(self) -> QSize:
        """Narrow, but not too narrow for bars."""
        return QSize(theme.px(180), theme.px(80))

    @property
    def lane(self) -> LaneModel | None:
        """The lane whose token is shown."""
        return None if self._shown is None else self._shown[0]

    def clear(self) -> None:
        """Show the hint."""
        self._shown, self._moment, self._gone = None, None, False
        self._show(Inspection("Inspector", HINT))
        self.inspection = None

    def keep_to(self, lanes: Sequence[LaneModel]) -> None:
        """Clear where the token shown is of a lane that is gone, or of a run that another has replaced."""
        if self._shown is not None and not any(
            lane is self._shown[0] and lane.generation == self._shown[1] for lane in lanes
        ):
            self.clear()

    def show_token(self, lane: LaneModel, round_index: int, token_index: int, passing: bool = False) -> bool:
        """Show a token; False (and the view stays) where there is none.

        passing: the pointer only goes over it. One that was chosen stays then.
        """
        if passing and self._chosen_one and self._shown is not None:
            return False
        key = (lane, lane.generation, round_index, token_index)
        moment = _moment(lane, round_index)
        there = lane.index_of(round_index, token_index) is not None
        if there and key == self._shown and moment is self._moment and not self._gone:
            self._chosen_one = not passing
            return True
        found = inspect(lane, round_index, token_index)
        if found is None:
            return False
        if key != self._shown:
            self._bars.choose(None)
        self._shown, self._moment, self._gone, self._chosen_one = key, moment, False, not passing
        self._show(found)
        return True

    def follow(self) -> None:
        """Show the token as it is at another moment of a replay; say where it is not there yet."""
        if self._shown is None or self.inspection is None:
            return
        if self._shown[0].generation != self._shown[1]:
            self.clear()
            return
        (lane, _, round_index, token_index), chosen = self._shown, self._chosen_one
        self._chosen_one = False
        there = self.show_token(lane, round_index, token_index, passing=not chosen)
        self._chosen_one = chosen
        if not there and not self._gone:
            self._gone = True
            self._show(Inspection(self.inspection.title, GONE))

    def branch(self) -> None:
        """Ask that the text goes on from the token shown, with the candidate that is picked if one is."""
        if self._shown is not None and not self._branch.isHidden():
            row = self._bars.chosen
            self.branch_requested.emit(self._shown[2], self._shown[3], None if row is None else row.id)

    def _name_branch(self) -> None:
        row = self._bars.chosen
        self._branch.setText(BRANCH if row is None else f"{BRANCH[:-1]} {quoted(row.text, 16)}…".replace("&", "&&"))

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Escape closes, B goes on from here in another way."""
        if event.key() == Qt.Key.Key_Escape:
            self.closed.emit()
        elif event.key() == Qt.Key.Key_B and event.modifiers() == Qt.KeyboardModifier.NoModifier:
            self.branch()
        else:
            super().keyPressEvent(event)

    def _show(self, found: Inspection) -> None:
        self.inspection = found
        self._title.setText(found.title)
        self._text(self._token, found.token)
        self._subtitle.setText(visible(found.subtitle))
        self._bars.show_rows(found.rows, found.has_q)
        self._bars.setVisible(bool(found.rows))
        self._branch.setVisible(bool(found.token) and self._moment is None)
        self._name_branch()
        self._text(self._rows_note, found.rows_note)
        self._accept.show_lines(found.accept)
        self._draw.show_bar(found.bar)
        self._text(self._caption, "" if found.bar is None else found.bar.caption)
        self._correction.show_lines(found.correction)
        self._text(self._notes, "\n".join(visible(note) for note in found.notes))
        round_, place = found.tree or (None, None)
        self._tree.show_round(round_, place=place)
        self._tree.setVisible(round_ is not None)
        left = 0 if round_ is None else round_.k + (round_.final is not None) - len(self._tree.layout_.nodes)
        title = f"Draft tree of this round, without {left} ignored drafts" if left else "Draft tree of this round"
        self._text(self._tree_title, "" if round_ is None else title)
        self._text(self._window_title, "Window of guesses" if found.window else "")
        self._window.show_rows(found.window)
        self._text(self._window_note, WINDOW_NOTE if found.window else "")
        self.setAccessibleDescription(f"{found.title}. {found.token}. {found.subtitle}. {self._accept.text()}")

    def _chosen(self, place: int) -> None:
        """Show the draft that was clicked in the tree."""
        if self._shown is not None:
            self.show_token(self._shown[0], self._shown[2], place)

    def text(self) -> str:
        """Return everything shown, as text."""
        parts = [self._title.text(), self._token.text(), self._subtitle.text(), self._bars.text(), self._rows_note.text(),
                 self._accept.text(), self._caption.text(), self._correction.text(), self._notes.text(),
                 self._tree_title.text(), self._tree.text(), self._window_title.text(), self._window.text(),
                 self._window_note.text()]
        return "\n".join(part for part in parts if part)

    @staticmethod
    def _text(label: QLabel, text: str) -> None:
        label.setText(text)
        label.setVisible(bool(text))

    def _restyle(self) -> None:
        side = theme.px(14)
        self._head.setContentsMargins(side, theme.px(8), theme.px(6), theme.px(4))
        self._column.setContentsMargins(side, 0, side, side)
        self._column.setSpacing(theme.px(8))
        for part in (self._bars, self._accept, self._draw, self._correction, self._window):
            part.changed()


def _moment(lane: LaneModel, round_index: int) -> object:
    """The stage that a round is in, of one under way; None of a whole one."""
    return lane.under_way.stage if lane.under_way is not None and round_index == len(lane.rounds) else None


def _label(kind: str) -> QLabel:
    made = label("", kind)
    made.setWordWrap(True)
    made.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
    return made


def _words(text: str) -> list[str]:
    """Cut into words that keep the spaces after them."""
    return re.findall(r"[^ ]* |[^ ]+", text)
