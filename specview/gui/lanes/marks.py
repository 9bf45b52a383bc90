"""The small painted parts of a lane's header: chips, badge, figures.

Painted rather than labelled: they never ask for a new layout when a number changes, so nothing jumps.
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QHelpEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from specview.gui.parts import theme
from specview.gui.state.display_text import tooltip, visible
from specview.gui.state.figures import MISSING
from specview.gui.state.lane_words import Mark

SMALL = 11
BIG = 17
_PILL_PAD, _NARROW_PAD, _NOTES_GAP = 9, 6, 6


def tone_colours(tone: str) -> tuple[str, str]:
    """Return (text, border) of a tone."""
    now = theme.current()
    return {
        "good": (now.accepted, now.accepted),
        "warning": (now.warning, now.warning),
        "bad": (now.error, now.error),
    }.get(tone, (now.muted, now.border))


class ChipRow(QWidget):
    """One row of chips; those that do not fit are counted, and named in the tool tip."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.marks: list[Mark] = []
        self._places: list[tuple[QRectF, str]] = []
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def set_marks(self, marks: Sequence[Mark]) -> None:
        """Show these chips."""
        if list(marks) != self.marks:
            self.marks = list(marks)
            self.setAccessibleName(", ".join(mark.text for mark in self.marks))
            self.update()

    def sizeHint(self) -> QSize:
        """One chip high."""
        return QSize(60, theme.px(21))

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paint as many chips as fit."""
        now = theme.current()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        font = theme.ui_font(SMALL)
        painter.setFont(font)
        metrics = QFontMetricsF(font)
        pad, gap, height = theme.px(6), theme.px(5), self.height() - 1
        more_width = metrics.horizontalAdvance("+9") + 2 * pad
        self._places = []
        x = 0.0
        for place, mark in enumerate(self.marks):
            rest = self.marks[place:]
            room = self.width() - 1 - x - (more_width + gap if len(rest) > 1 else 0)
            text = visible(mark.text)
            width = metrics.horizontalAdvance(text) + 2 * pad
            tone, tips = mark.tone, mark.tip or mark.text
            last = False
            if width > room and room > theme.px(46) and place == 0:
                text = metrics.elidedText(text, Qt.TextElideMode.ElideMiddle, room - 2 * pad)
                width = room
            elif width > room:
                text, last = f"+{len(rest)}", True
                width = metrics.horizontalAdvance(text) + 2 * pad
                tips = "\n".join(one.text for one in rest)
                tone = "warning" if any(one.tone == "warning" for one in rest) else "neutral"
            box = QRectF(x + 0.5, 0.5, width, height - 0.5)
            ink, border = tone_colours(tone)
            painter.setPen(QPen(QColor(border), 1))
            painter.setBrush(QColor(now.field))
            painter.drawRoundedRect(box, 4, 4)
            painter.setPen(QColor(ink))
            painter.drawText(box, int(Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextSingleLine), text)
            self._places.append((box, tips))
            x += width + gap
            if last:
                break

    def event(self, event: QEvent) -> bool:
        """Show a chip's tool tip."""
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            tip = next((tip for box, tip in self._places if box.contains(QPointF(event.pos()))), "")
            QToolTip.showText(event.globalPos(), tooltip(tip), self)
            return True
        return super().event(event)


class Badge(QWidget):
    """The verdict on a lane's output, in a pill; at the right, figures that have no room elsewhere."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.mark = Mark("")
        self.notes: tuple[str, ...] = ()
        self._notes_tip, self._leading = "", False
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def set_mark(self, mark: Mark) -> None:
        """Show this verdict."""
        if mark != self.mark:
            self.mark = mark
            self._describe()

    def set_notes(self, notes: Sequence[str], tip: str = "", *, leading: bool = False) -> None:
        """Show these at the right, as many as fit, the first ones first; tip says what they are.

        leading: the first one goes before the end of the pill's words.
        """
        if (tuple(notes), tip, leading) != (self.notes, self._notes_tip, self._leading):
            self.notes, self._notes_tip, self._leading = tuple(notes), tip, leading
            self._describe()

    def _describe(self) -> None:
        parts = (self.mark.tip, " · ".join(self.notes), self._notes_tip)
        self.setToolTip(tooltip("\n\n".join(part for part in parts if part)))
        self.setAccessibleName(" · ".join((self.mark.text, *self.notes)))
        self.setAccessibleDescription(self.mark.tip)
        self.update()

    def sizeHint(self) -> QSize:
        """One pill high."""
        return QSize(60, theme.px(21))

    def shown_notes(self) -> str:
        """The notes that fit beside the pill."""
        return self._laid_out(QFontMetricsF(theme.ui_font(SMALL)))[2]

    def _laid_out(self, metrics: QFontMetricsF) -> tuple[str, int, str]:
        """The pill's words, the space at each end of them, the notes beside it.

        For notes the pill is made narrower; its words are cut to the verdict itself where that makes room for all of
        them, or for the leading one, which is then cut to its figure; others without room are left to the tool tip.
        """
        words = visible(self.mark.text)
        pads = theme.px(_PILL_PAD), theme.px(_NARROW_PAD)
        tried = [(words, pad, self._fitting_notes(metrics, self._room(metrics, words, pad))) for pad in pads]
        short = self.mark.short or (words.partition(" · ")[0] if self._leading else "")
        if short:
            tried.append((short, pads[-1], self._fitting_notes(metrics, self._room(metrics, short, pads[-1]))))
        whole = " · ".join(self.notes)
        for chosen in [one for one in tried if one[2] == whole] + [one for one in tried if one[2]]:
            if chosen[2]:
                return chosen
        if self.notes and self._leading:
            cut = metrics.elidedText(
                self.notes[0], Qt.TextElideMode.ElideRight, self._room(metrics, words, pads[-1])
            )
            if cut.startswith(self.notes[0].split(" ")[0]):
                return words, pads[-1], cut
        return words, pads[0], ""

    def _room(self, metrics: QFontMetricsF, words: str, pad: int) -> float:
        pill = metrics.horizontalAdvance(words) + 2 * pad if words else 0
        return self.width() - pill - theme.px(_NOTES_GAP)

    def _fitting_notes(self, metrics: QFontMetricsF, room: float) -> str:
        shown = ""
        for note in self.notes:
            longer = f"{shown} · {note}" if shown else note
            if metrics.horizontalAdvance(longer) > room:
                break
            shown = longer
        return shown

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paint the pill, its words cut where there is no room, and the notes that fit beside it."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        font = theme.ui_font(SMALL)
        painter.setFont(font)
        metrics = QFontMetricsF(font)
        words, pad, notes = self._laid_out(metrics)
        if notes:
            painter.setPen(QColor(theme.current().muted))
            area = QRectF(self.rect()).adjusted(0, 0, -1, 0)
            painter.drawText(area, int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter), notes)
        if not words:
            return
        text = metrics.elidedText(words, Qt.TextElideMode.ElideRight, self.width() - 2 * pad - 1)
        box = QRectF(0.5, 0.5, metrics.horizontalAdvance(text) + 2 * pad, self.height() - 1)
        ink, border = tone_colours(self.mark.tone)
        painter.setPen(QPen(QColor(border), 1))
        painter.drawRoundedRect(box, box.height() / 2, box.height() / 2)
        painter.setPen(QColor(ink))
        painter.drawText(box, int(Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextSingleLine), text)


class StateLine(QWidget):
    """What a lane is doing or how it ended, in one small line that is cut where there is no room."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.mark = Mark("")
        self.count = ""
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def set_count(self, count: str) -> None:
        """Show how many tokens there are, at the right."""
        if count != self.count:
            self.count = count
            self.setAccessibleDescription(count)
            self.update()

    def set_mark(self, mark: Mark) -> None:
        """Show this state."""
        if mark != self.mark:
            self.mark = mark
            self.setToolTip(tooltip(f"{mark.text}\n{mark.tip}" if mark.short else mark.tip))
            self.setAccessibleName(mark.text)
            self.update()

    def shown_text(self) -> str:
        """The words as they are painted at the present width: whole, the short ones, or cut."""
        metrics = QFontMetricsF(theme.ui_font(SMALL))
        room = self.width() - (metrics.horizontalAdvance(self.count) + theme.px(10) if self.count else 0)
        text = visible(self.mark.text)
        if self.mark.short and metrics.horizontalAdvance(text) > room:
            text = self.mark.short
        return metrics.elidedText(text, Qt.TextElideMode.ElideRight, room)

    def sizeHint(self) -> QSize:
        """One small line."""
        return QSize(60, round(QFontMetricsF(theme.ui_font(SMALL)).height()) + 2)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paint the words in their tone."""
        painter = QPainter(self)
        font = theme.ui_font(SMALL)
        painter.setFont(font)
        now = theme.current()
        area = QRectF(self.rect())
        painter.setPen(QColor(now.muted))
        painter.drawText(area, int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter), self.count)
        painter.setPen(QColor(now.muted if self.mark.tone == "neutral" else tone_colours(self.mark.tone)[0]))
        painter.drawText(area, int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter), self.shown_text())


class FigureCell(QWidget):
    """One figure: a large value over a small label, and a remark beside the value where it fits."""

    def __init__(self, label: str, widest: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.value = MISSING
        self.label = label
        self.remark = ""
        self.faded = False
        self._widest = widest
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def set_value(self, value: str, *, label: str | None = None, remark: str = "", tip: str = "") -> None:
        """Show a value; tip is plain text."""
        label = self.label if label is None else label
        if (value, label, remark) != (self.value, self.label, self.remark):
            self.value, self.label, self.remark = value, label, remark
            self.setAccessibleName(f"{label}: {'none yet' if value == MISSING else value} {remark}".strip())
            self.update()
        self.setToolTip(tooltip(tip))
        self.setAccessibleDescription(tip)

    def set_faded(self, faded: bool) -> None:
        """Show the value as one of before, in a weaker colour."""
        if faded != self.faded:
            self.faded = faded
            self.update()

    def left_out(self) -> list[str]:
        """What has no room at the present width: the remark, the end of the label."""
        big, small = QFontMetricsF(theme.ui_font(BIG, bold=True)), QFontMetricsF(theme.ui_font(SMALL))
        missing = []
        left = big.horizontalAdvance(self.value) + theme.px(5)
        if self.remark and left + small.horizontalAdvance(self.remark) > self.width():
            missing.append(self.remark)
        label = self._fitting_label(small)
        if label != self.label:
            missing += self.label[len(label):].removeprefix(" · ").split(" · ")
        return missing

    def _fitting_label(self, metrics: QFontMetricsF) -> str:
        label = self.label
        while " · " in label and metrics.horizontalAdvance(label) > self.width():
            label = label.rpartition(" · ")[0]
        return label

    def _painted_label(self, metrics: QFontMetricsF) -> str:
        """The label that fits; of "vs plain, lossy" the warning stays where there is room for one of them."""
        label = self._fitting_label(metrics)
        if metrics.horizontalAdvance(label) > self.width():
            label = label.rpartition(", ")[2]
        return metrics.elidedText(label, Qt.TextElideMode.ElideRight, self.width())

    def natural_width(self) -> int:
        """Width that holds the widest value and the label, pixels; what a lane adds to its label does not count."""
        value = QFontMetricsF(theme.ui_font(BIG, bold=True)).horizontalAdvance(self._widest)
        label = QFontMetricsF(theme.ui_font(SMALL)).horizontalAdvance(self.label.split(" · ")[0].split(", ")[0])
        return round(max(value, label)) + theme.px(12)

    def sizeHint(self) -> QSize:
        """Value and label."""
        big, small = QFontMetricsF(theme.ui_font(BIG, bold=True)), QFontMetricsF(theme.ui_font(SMALL))
        return QSize(self.natural_width(), round(big.height() * 0.96 + small.height()))

    def minimumSizeHint(self) -> QSize:
        """As high as it is, as narrow as it must."""
        return QSize(10, self.sizeHint().height())

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paint value, remark and label."""
        now = theme.current()
        painter = QPainter(self)
        big_font, small_font = theme.ui_font(BIG, bold=True), theme.ui_font(SMALL)
        big, small = QFontMetricsF(big_font), QFontMetricsF(small_font)
        baseline = big.ascent() * 0.96
        painter.setFont(big_font)
        painter.setPen(QColor(now.muted if self.faded or self.value == MISSING else now.ink))
        painter.drawText(QPointF(0, baseline), self.value)
        painter.setFont(small_font)
        painter.setPen(QColor(now.muted))
        left = big.horizontalAdvance(self.value) + theme.px(5)
        if self.remark and left + small.horizontalAdvance(self.remark) <= self.width():
            painter.drawText(QPointF(left, baseline), self.remark)
        painter.drawText(QPointF(0, big.height() * 0.96 + small.ascent()), self._painted_label(small))


class ProgressLine(QWidget):
    """A thin line: part filled, or a third of it while the part is not known; empty when idle."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.active = False
        self.fraction: float | None = None
        self.setFixedHeight(2)

    def set_progress(self, active: bool, fraction: float | None) -> None:
        """Show a fraction 0..1, or None for unknown."""
        if (active, fraction) != (self.active, self.fraction):
            self.active, self.fraction = active, fraction
            self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paint the line."""
        now = theme.current()
        painter = QPainter(self)
        painter.fillRect(QRectF(0, 0, self.width(), 1), QColor(now.border))
        if self.active:
            part = 0.33 if self.fraction is None else min(max(self.fraction, 0.0), 1.0)
            painter.fillRect(QRectF(0, 0, self.width() * part, self.height()), QColor(now.focus))
