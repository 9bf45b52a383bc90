"""The inspector: why one token was accepted, corrected or rejected."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFont, QFontMetricsF, QHelpEvent, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QFrame, QLabel, QScrollArea, QSizePolicy, QToolTip, QWidget

from specview.gui.parts import layout, theme
from specview.gui.parts.token_paint import plain_font
from specview.gui.race.draft_views import DraftTree, WindowGrid
from specview.gui.state.display_text import quoted, tooltip, visible
from specview.gui.state.figures import MISSING, probability
from specview.gui.state.inspection import Bar, Inspection, Line, Row, inspect
from specview.gui.state.view_model import LaneModel

HINT = (
    "Point at a token, or move over tokens with the arrow keys, to see why it is there: "
    "target and draft probabilities, the rule's formula with its numbers, the draw, the residual."
)

WINDOW_NOTE = (
    "Guesses that rode in the same target pass. A row is an n-gram in the making, which begins that many "
    "tokens ahead; the pass gives the token after it, and a row of all levels then goes into the pool."
)


def piece_colour(tone: str) -> QColor:
    """Return the colour of a piece of a formula."""
    now = theme.current()
    return QColor({
        "muted": now.muted, "ignored": now.muted, "accepted": now.accepted, "rejected": now.rejected,
        "corrected": now.corrected, "bonus": now.bonus, "warning": now.warning,
    }.get(tone, now.ink))


class CandidateBars(QWidget):
    """Rows of candidate tokens, each with a bar for p (ink) over one for q (grey)."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.rows: list[Row] = []
        self.has_q = False
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def show_rows(self, rows: Sequence[Row], has_q: bool) -> None:
        """Show these candidates."""
        self.rows, self.has_q = list(rows), has_q
        self.setAccessibleName("; ".join(
            f"{quoted(row.text)} {row.role} p {probability(row.p)} q {probability(row.q)}" for row in self.rows
        ))
        self.updateGeometry()
        self.update()

    def _row_height(self) -> int:
        return theme.px(30 if self.has_q else 22)

    def sizeHint(self) -> QSize:
        """Rows and the key below them."""
        key = theme.px(20) if self.rows else 0
        return QSize(theme.px(220), len(self.rows) * self._row_height() + key)

    def minimumSizeHint(self) -> QSize:
        """As high as the rows."""
        return QSize(10, self.sizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paint the rows."""
        if not self.rows:
            return
        now = theme.current()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        text_font, small_font = plain_font(12), theme.ui_font(10.5)
        text_metrics, small = QFontMetricsF(text_font), QFontMetricsF(small_font)
        height, width = self._row_height(), self.width()
        name_width = min(width * 0.32, theme.px(110))
        value_width = small.horizontalAdvance("0.000") + theme.px(4)
        left, right = name_width + theme.px(8), width - value_width
        thick = theme.px(6)
        for place, row in enumerate(self.rows):
            top = place * height
            middle = top + height / 2
            painter.setFont(text_font)
            painter.setPen(piece_colour(row.role) if row.role else QColor(now.ink))
            shown = quoted(row.text, 24) if row.text else f"token {row.id}"
            name = text_metrics.elidedText(shown, Qt.TextElideMode.ElideMiddle, name_width)
            baseline = middle + (text_metrics.ascent() - text_metrics.descent()) / 2
            painter.drawText(QPointF(0, baseline), name)
            self._mark(painter, row, text_metrics.horizontalAdvance(name), baseline, text_metrics)
            painter.setFont(small_font)
            lines = [(row.p, now.p_ink)] + ([(row.q, now.q_grey)] if self.has_q else [])
            for line, (value, colour) in enumerate(lines):
                y = middle + (line - (len(lines) - 1) / 2) * theme.px(11)
                painter.setPen(Qt.PenStyle.NoPen)
                painter.setBrush(QColor(now.field))
                painter.drawRoundedRect(QRectF(left, y - thick / 2, right - left - theme.px(6), thick), 3, 3)
                if value is not None:
                    painter.setBrush(QColor(colour))
                    span = max((right - left - theme.px(6)) * min(value, 1.0), 2.0)
                    painter.drawRoundedRect(QRectF(left, y - thick / 2, span, thick), 3, 3)
                painter.setPen(QColor(now.muted))
                area = QRectF(right, y - small.height() / 2, value_width, small.height())
                painter.drawText(area, int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter),
                                 probability(value))
        self._key(painter, len(self.rows) * height, small_font, small)

    def _mark(self, painter: QPainter, row: Row, width: float, baseline: float, metrics: QFontMetricsF) -> None:
        """Strike, underline or box a name as the token view does, so that colour is not the only cue."""
        now = theme.current()
        if row.role == "rejected":
            painter.setPen(QPen(QColor(now.rejected), 1.2))
            y = baseline - metrics.xHeight() / 2
            painter.drawLine(QPointF(0, y), QPointF(width, y))
        elif row.role in ("corrected", "bonus"):
            pen = QPen(piece_colour(row.role), 1.5)
            if row.role == "corrected":
                pen.setDashPattern([1.0, 1.4])
            painter.setPen(pen)
            painter.drawLine(QPointF(0, baseline + 3), QPointF(width, baseline + 3))
        elif row.role in ("accepted", "ignored"):
            pen = QPen(piece_colour(row.role), 1.0)
            if row.role == "ignored":
                pen.setDashPattern([1.5, 2.0])
            painter.setPen(pen)
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(
                QRectF(0.5, baseline - metrics.ascent(), width, metrics.height()), 2.5, 2.5
            )

    def _key(self, painter: QPainter, top: int, font: QFont, metrics: QFontMetricsF) -> None:
        now = theme.current()
        painter.setFont(font)
        x, side = 0.0, theme.px(8)
        for colour, text in ((now.p_ink, "p target"), (now.q_grey, "q draft"))[: 2 if self.has_q else 1]:
            painter.fillRect(QRectF(x, top + (theme.px(18) - side) / 2, side, side), QColor(colour))
            painter.setPen(QColor(now.muted))
            x += side + theme.px(5)
            painter.drawText(QPointF(x, top + (theme.px(18) + metrics.ascent() - metrics.descent()) / 2), text)
            x += metrics.horizontalAdvance(text) + theme.px(14)

    def event(self, event: QEvent) -> bool:
        """Tell a row's numbers in full."""
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            place = event.pos().y() // self._row_height()
            words = ""
            if 0 <= place < len(self.rows):
                row = self.rows[place]
                p = "not among the recorded likeliest" if row.p is None else f"{row.p:.7g}"
                q = "not recorded" if row.q is None else f"{row.q:.7g}"
                words = f"{quoted(row.text, 80)} · id {row.id}\np {p}\nq {q}"
                words = f"{row.role} · {words}" if row.role else words
            QToolTip.showText(event.globalPos(), tooltip(words), self)
            return True
        return super().event(event)


class FormulaBox(QWidget):
    """Lines of a formula in the fixed-width font, on a field; long lines wrap between words."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.lines: list[Line] = []
        policy = QSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)

    def show_lines(self, lines: Sequence[Line]) -> None:
        """Show these lines; hidden where there are none."""
        self.lines = [list(line) for line in lines]
        self.setAccessibleName(self.text())
        self.setVisible(bool(self.lines))
        self.updateGeometry()
        self.update()

    def text(self) -> str:
        """Return what is shown, as text."""
        return "\n".join("".join(piece for piece, _ in line) for line in self.lines)

    def _placed(self, width: float) -> list[list[tuple[float, str, str]]]:
        """Wrap the lines: rows of (x, text, tone)."""
        regular, bold = QFontMetricsF(plain_font(12)), QFontMetricsF(theme.mono_font(12, bold=True))
        room = max(width - 2 * theme.px(10), 40)
        rows: list[list[tuple[float, str, str]]] = []
        for line in self.lines:
            row: list[tuple[float, str, str]] = []
            x = 0.0
            for text, tone in line:
                metrics = bold if tone == "strong" else regular
                for word in _words(visible(text)):
                    size = metrics.horizontalAdvance(word)
                    if x + metrics.horizontalAdvance(word.rstrip()) > room and row:
                        rows.append(row)
                        row, x = [], float(theme.px(12))
                    while x + size > room and len(word) > 1:
                        take = max(1, int((room - x) / metrics.horizontalAdvance("n")))
                        row.append((x, word[:take], tone))
                        rows.append(row)
                        row, x, word = [], float(theme.px(12)), word[take:]
                        size = metrics.horizontalAdvance(word)
                        if size <= metrics.horizontalAdvance("n"):
                            break
                    row.append((x, word, tone))
                    x += size
            rows.append(row)
        return rows

    def _pitch(self) -> int:
        return round(QFontMetricsF(plain_font(12)).height() * 1.2)

    def hasHeightForWidth(self) -> bool:
        """It wraps."""
        return True

    def heightForWidth(self, width: int) -> int:
        """Return the height that all rows need, pixels."""
        return len(self._placed(width)) * self._pitch() + 2 * theme.px(8) if self.lines else 0

    def sizeHint(self) -> QSize:
        """For the present width."""
        return QSize(theme.px(220), self.heightForWidth(max(self.width(), theme.px(160))))

    def minimumSizeHint(self) -> QSize:
        """As high as the rows."""
        return QSize(10, self.sizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Wrap anew."""
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self.updateGeometry()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paint the rows."""
        now = theme.current()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(QColor(now.field))
        painter.drawRoundedRect(QRectF(self.rect()), 6, 6)
        regular, bold = plain_font(12), theme.mono_font(12, bold=True)
        metrics = QFontMetricsF(regular)
        pitch = self._pitch()
        y = theme.px(8) + (pitch - metrics.height()) / 2 + metrics.ascent()
        for row in self._placed(self.width()):
            for x, text, tone in row:
                strong = tone not in ("ink", "muted", "warning", "ignored")
                painter.setFont(bold if strong else regular)
                painter.setPen(piece_colour(tone))
                painter.drawText(QPointF(theme.px(10) + x, y), text)
            y += pitch


class DrawBar(QWidget):
    """The unit interval: filled up to the acceptance probability, a mark where the draw fell."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.bar: Bar | None = None
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def show_bar(self, bar: Bar | None) -> None:
        """Show a draw; hidden where the rule draws nothing."""
        self.bar = bar
        self.setVisible(bar is not None)
        if bar is not None:
            self.setAccessibleName(bar.caption)
        self.update()

    def sizeHint(self) -> QSize:
        """A bar and the mark that stands out of it."""
        return QSize(theme.px(220), theme.px(18))

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paint bar and mark."""
        if self.bar is None:
            return
        now = theme.current()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(Qt.PenStyle.NoPen)
        thick, width, middle = theme.px(7), self.width(), self.height() / 2
        painter.setBrush(QColor(now.border))
        painter.drawRoundedRect(QRectF(0, middle - thick / 2, width, thick), thick / 2, thick / 2)
        painter.setBrush(QColor(now.accepted))
        filled = min(max(self.bar.accept, 0.0), 1.0) * width
        painter.drawRoundedRect(QRectF(0, middle - thick / 2, max(filled, 2.0), thick), thick / 2, thick / 2)
        if self.bar.mark is not None:
            x = min(max(self.bar.mark, 0.0), 1.0) * (width - 3) + 1.5
            painter.fillRect(QRectF(x - 1.25, 0, 2.5, self.height()), QColor(now.ink))


class Inspector(QScrollArea):
    """Shows one token of one lane, or a hint."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.inspection: Inspection | None = None
        self._shown: tuple[LaneModel, int, int, int] | None = None
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setAccessibleName("Inspector")
        body = QWidget()
        body.setObjectName("scrolled")
        self._title = self._label("title")
        self._subtitle = self._label("small")
        self._bars = CandidateBars()
        self._rows_note = self._label("small")
        self._accept = FormulaBox()
        self._draw = DrawBar()
        self._caption = self._label("small")
        self._correction = FormulaBox()
        self._notes = self._label("small")
        self._tree_title = self._label("title")
        self._tree = DraftTree()
        self._window_title = self._label("title")
        self._window = WindowGrid()
        self._window_note = self._label("small")
        self._column = layout.column(
            self._title, self._subtitle, self._bars, self._rows_note, self._accept, self._draw, self._caption,
            self._correction, self._notes, self._tree_title, self._tree, self._window_title, self._window,
            self._window_note, 1, on=body, margins=None
        )
        self.setWidget(body)
        theme.signals.changed.connect(self._restyle)
        self._restyle()
        self.clear()

    def _label(self, kind: str) -> QLabel:
        label = QLabel()
        label.setTextFormat(Qt.TextFormat.PlainText)
        label.setWordWrap(True)
        label.setProperty("kind", kind)
        label.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
        return label

    def sizeHint(self) -> QSize:
        """As the mock: a column of 290 pixels."""
        return QSize(theme.px(290), theme.px(500))

    def minimumSizeHint(self) -> QSize:
        """Narrow, but not too narrow for bars."""
        return QSize(theme.px(180), theme.px(80))

    def clear(self) -> None:
        """Show the hint."""
        self._shown = None
        self._show(Inspection("Inspector", HINT))
        self.inspection = None

    def keep_to(self, lanes: Sequence[LaneModel]) -> None:
        """Clear where the token shown is of a lane that is gone, or of a run that another has replaced."""
        if self._shown is not None and not any(
            lane is self._shown[0] and lane.generation == self._shown[1] for lane in lanes
        ):
            self.clear()

    def show_token(self, lane: LaneModel, round_index: int, token_index: int) -> bool:
        """Show a token; False (and the view stays) where there is none."""
        key = (lane, lane.generation, round_index, token_index)
        if key == self._shown:
            return True
        found = inspect(lane, round_index, token_index)
        if found is None:
            return False
        self._shown = key
        self._show(found)
        return True

    def _show(self, found: Inspection) -> None:
        self.inspection = found
        self._title.setText(found.title)
        self._subtitle.setText(visible(found.subtitle))
        self._bars.show_rows(found.rows, found.has_q)
        self._bars.setVisible(bool(found.rows))
        self._text(self._rows_note, found.rows_note)
        self._accept.show_lines(found.accept)
        self._draw.show_bar(found.bar)
        self._text(self._caption, "" if found.bar is None else found.bar.caption)
        self._correction.show_lines(found.correction)
        self._text(self._notes, "\n".join(visible(note) for note in found.notes))
        self._text(self._tree_title, "Draft tree of this round" if found.drafts else "")
        self._tree.show_drafts(found.drafts)
        self._text(self._window_title, "Window of guesses" if found.window else "")
        self._window.show_rows(found.window)
        self._text(self._window_note, WINDOW_NOTE if found.window else "")
        self.setAccessibleDescription(f"{found.title}. {found.subtitle}. {self._accept.text()}")

    def text(self) -> str:
        """Return everything shown, as text."""
        parts = [self._title.text(), self._subtitle.text(), self._bars.accessibleName(), self._rows_note.text(),
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
        self._column.setContentsMargins(side, side, side, side)
        self._column.setSpacing(theme.px(8))
        for part in (self._bars, self._accept, self._draw, self._correction, self._tree, self._window):
            part.updateGeometry()
            part.update()


def _words(text: str) -> list[str]:
    """Cut into words that keep the spaces after them."""
    words: list[str] = []
    for piece in text.split(" "):
        words.append(piece + " ")
    if words:
        words[-1] = words[-1][:-1]
    return [word for word in words if word]


__all__ = ["HINT", "MISSING", "CandidateBars", "DrawBar", "FormulaBox", "Inspector", "piece_colour"]
