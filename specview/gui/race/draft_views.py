"""The inspector's pictures of one round's draft: a tree of drafts, a window of guesses.

Painted, and plain text only: a lookahead round has dozens of tokens, far too many for a widget each.
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QHelpEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from specview.gui.parts import theme
from specview.gui.parts.token_paint import plain_font
from specview.gui.state.display_text import quoted, tooltip, visible
from specview.gui.state.inspection import Draft

DEEPEST = 8
"""Depths beyond this are indented no further: the column is narrow."""
LAST = "last token"
_MARKS = {"accepted": "✓", "rejected": "✕", "ignored": "·"}


class DraftTree(QWidget):
    """A round's draft tree, one line a draft: indented by depth, siblings in the order they were tried."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.drafts: list[Draft] = []
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def show_drafts(self, drafts: Sequence[Draft]) -> None:
        """Show these drafts; hidden where there are none."""
        self.drafts = list(drafts)
        self.setAccessibleName(self.text())
        self.setVisible(bool(self.drafts))
        self.updateGeometry()
        self.update()

    def text(self) -> str:
        """Return what is shown, as text: two spaces a depth, then the draft and its verdict."""
        return "\n".join(f"{'  ' * draft.depth}{draft.text} {draft.verdict}".rstrip() for draft in self.drafts)

    def _pitch(self) -> int:
        return theme.px(18)

    def sizeHint(self) -> QSize:
        """All lines."""
        return QSize(theme.px(220), len(self.drafts) * self._pitch())

    def minimumSizeHint(self) -> QSize:
        """As high as the lines."""
        return QSize(10, self.sizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paint the lines that the region needs."""
        now = theme.current()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        font, small_font = plain_font(12), theme.ui_font(10.5)
        metrics, small = QFontMetricsF(font), QFontMetricsF(small_font)
        pitch, step = self._pitch(), theme.px(12)
        colours = {"accepted": now.accepted, "rejected": now.rejected, "ignored": now.muted}
        first = max(event.rect().top() // pitch, 0)
        for place, draft in enumerate(self.drafts[first : event.rect().bottom() // pitch + 1], start=first):
            top = place * pitch
            middle = top + pitch / 2
            baseline = middle + (metrics.ascent() - metrics.descent()) / 2
            x = float(min(draft.depth, DEEPEST) * step)
            if draft.current:
                painter.setPen(Qt.PenStyle.NoPen)
                painter.setBrush(QColor(now.field))
                painter.drawRoundedRect(QRectF(0, top + 0.5, self.width(), pitch - 1), 3, 3)
            painter.setPen(QPen(QColor(now.border), 1))
            for depth in range(min(draft.depth, DEEPEST)):
                line = depth * step + theme.px(4) + 0.5
                painter.drawLine(QPointF(line, top), QPointF(line, top + pitch))
            if not draft.verdict:
                painter.setFont(small_font)
                painter.setPen(QColor(now.muted))
                painter.drawText(QPointF(x, middle + (small.ascent() - small.descent()) / 2), draft.text)
                continue
            colour = QColor(colours.get(draft.verdict, now.ink))
            painter.setFont(font)
            painter.setPen(colour)
            painter.drawText(QPointF(x, baseline), _MARKS.get(draft.verdict, ""))
            x += theme.px(14)
            word = small.horizontalAdvance(draft.verdict)
            room = self.width() - x - word - theme.px(8)
            text = metrics.elidedText(visible(draft.text), Qt.TextElideMode.ElideMiddle, max(room, theme.px(30)))
            painter.setPen(colour if draft.verdict != "ignored" else QColor(now.muted))
            painter.drawText(QPointF(x, baseline), text)
            if draft.verdict == "rejected":
                painter.setPen(QPen(colour, 1.2))
                y = baseline - metrics.xHeight() / 2
                painter.drawLine(QPointF(x, y), QPointF(x + metrics.horizontalAdvance(text), y))
            painter.setFont(small_font)
            painter.setPen(QColor(now.muted))
            painter.drawText(
                QPointF(self.width() - word - theme.px(4), middle + (small.ascent() - small.descent()) / 2),
                draft.verdict,
            )

    def event(self, event: QEvent) -> bool:
        """Tell a line in full."""
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            place = event.pos().y() // self._pitch()
            words = ""
            if 0 <= place < len(self.drafts):
                draft = self.drafts[place]
                words = f"{draft.text} {draft.verdict}\ndepth {draft.depth + 1}" if draft.verdict else draft.text
            QToolTip.showText(event.globalPos(), tooltip(words), self)
            return True
        return super().event(event)


class WindowGrid(QWidget):
    """Lookahead's window of guesses: a row for each of its columns, in it the levels, first level first."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.rows: list[list[str]] = []
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def show_rows(self, rows: Sequence[Sequence[str]]) -> None:
        """Show this window; hidden where there is none."""
        self.rows = [list(row) for row in rows]
        self.setAccessibleName(self.text())
        self.setVisible(bool(self.rows))
        self.updateGeometry()
        self.update()

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

    def sizeHint(self) -> QSize:
        """A heading and all rows."""
        return QSize(theme.px(220), (len(self.rows) + 1) * self._pitch() if self.rows else 0)

    def minimumSizeHint(self) -> QSize:
        """As high as the rows."""
        return QSize(10, self.sizeHint().height())

    def _cells(self) -> tuple[float, float]:
        """Width of the rows' names, and of a level's cells."""
        left = QFontMetricsF(theme.ui_font(10.5)).horizontalAdvance("+88") + theme.px(6)
        return left, (self.width() - left) / max(self.levels, 1)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paint heading and cells."""
        if not self.rows:
            return
        now = theme.current()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        font, small_font = plain_font(11), theme.ui_font(10.5)
        metrics = QFontMetricsF(font)
        pitch = self._pitch()
        left, wide = self._cells()
        flags = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter | Qt.TextFlag.TextSingleLine)
        painter.setFont(small_font)
        painter.setPen(QColor(now.muted))
        for level in range(self.levels):
            name = f"level {level}" if wide > theme.px(44) else str(level)
            painter.drawText(QRectF(left + level * wide + theme.px(4), 0, wide, pitch), flags, name)
        for place, row in enumerate(self.rows):
            top = (place + 1) * pitch
            painter.setFont(small_font)
            painter.setPen(QColor(now.muted))
            painter.drawText(QRectF(0, top, left, pitch), flags, f"+{place}")
            for level, text in enumerate(row):
                box = QRectF(left + level * wide, top + 1, wide - theme.px(3), pitch - 2)
                inner = box.adjusted(theme.px(4), 0, -theme.px(2), 0)
                if not text:
                    if place == 0 and level == 0:
                        painter.setFont(small_font)
                        painter.setPen(QColor(now.muted))
                        painter.drawText(inner, flags, LAST)
                    continue
                painter.setFont(font)
                painter.setPen(QPen(QColor(now.border), 1))
                painter.setBrush(QColor(now.field))
                painter.drawRoundedRect(box, 3, 3)
                painter.setPen(QColor(now.ink))
                shown = visible(text)
                if shown.startswith(" "):  # without quotes it would not be seen
                    shown = f"␣{shown[1:]}"
                painter.drawText(inner, flags, metrics.elidedText(shown, Qt.TextElideMode.ElideRight, inner.width()))

    def event(self, event: QEvent) -> bool:
        """Tell a cell in full."""
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            left, wide = self._cells()
            place, level = event.pos().y() // self._pitch() - 1, int((event.pos().x() - left) // max(wide, 1))
            words = ""
            if 0 <= place < len(self.rows) and 0 <= level < len(self.rows[place]) and self.rows[place][level]:
                words = f"{quoted(self.rows[place][level], 80)}\nrow +{place}, level {level}"
            QToolTip.showText(event.globalPos(), tooltip(words), self)
            return True
        return super().event(event)
