"""The small painted parts of a lane's header: chips, badge, figures.

Painted rather than labelled: they never ask for a new layout when a number changes, so nothing jumps.
"""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import QPointF, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPen
from PySide6.QtWidgets import QWidget

from specview.files.figures import MISSING
from specview.gui.parts import theme
from specview.gui.parts.painted import CENTRE, LEFT, RIGHT, Painted, box, ink, words, words_in
from specview.gui.state.display_text import tooltip, visible
from specview.gui.state.lane_words import Mark

SMALL, BIG = 11, 17
_PILL_PAD, _NARROW_PAD, _NOTES_GAP = 9, 6, 6
_RIGHT_END = Qt.TextElideMode.ElideRight


def _small() -> QFontMetricsF:
    return QFontMetricsF(theme.ui_font(SMALL))


def _big() -> QFontMetricsF:
    return QFontMetricsF(theme.ui_font(BIG, bold=True))


def _outline(tone: str) -> QPen:
    return QPen(ink("border" if tone == "neutral" else tone), 1)


class ChipRow(Painted):
    """One row of chips; those that do not fit are counted, and named in the tool tip."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.marks: list[Mark] = []
        self._places: list[tuple[QRectF, str]] = []

    def set_marks(self, marks: Sequence[Mark]) -> None:
        """Show these chips."""
        if list(marks) != self.marks:
            self.marks = list(marks)
            self.setAccessibleName(", ".join(mark.text for mark in self.marks))
            self.update()

    def paint(self, painter: QPainter, region: QRect) -> None:
        font, metrics = theme.ui_font(SMALL), _small()
        pad, gap = theme.px(6), theme.px(5)
        more_width = metrics.horizontalAdvance("+9") + 2 * pad
        self._places = []
        x = 0.0
        for place, mark in enumerate(self.marks):
            rest = self.marks[place:]
            room = self.width() - 1 - x - (more_width + gap if len(rest) > 1 else 0)
            text, tone, tips, last = visible(mark.text), mark.tone, mark.tip or mark.text, False
            width = metrics.horizontalAdvance(text) + 2 * pad
            if width > room and room > theme.px(46) and place == 0:
                text = metrics.elidedText(text, Qt.TextElideMode.ElideMiddle, room - 2 * pad)
                width = room
            elif width > room:
                text, last = f"+{len(rest)}", True
                width = metrics.horizontalAdvance(text) + 2 * pad
                tips = "\n".join(one.text for one in rest)
                tone = "warning" if any(one.tone == "warning" for one in rest) else "neutral"
            area = QRectF(x + 0.5, 0.5, width, self.height() - 1.5)
            box(painter, area, _outline(tone), QColor(theme.current().field), 4)
            words_in(painter, area, text, font, ink(tone), CENTRE)
            self._places.append((area, tips))
            x += width + gap
            if last:
                break

    def tip_at(self, at: QPointF) -> str:
        return next((tip for area, tip in self._places if area.contains(at)), "")


class Badge(Painted):
    """The verdict on a lane's output, in a pill; at the right, figures that have no room elsewhere."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.mark = Mark("")
        self.notes: tuple[str, ...] = ()
        self._notes_tip, self._leading = "", False

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

    def shown_notes(self) -> str:
        """The notes that fit beside the pill."""
        return self._laid_out(_small())[2]

    def _laid_out(self, metrics: QFontMetricsF) -> tuple[str, int, str]:
        """The pill's words, the space at each end of them, the notes beside it.

        For notes the pill is made narrower; its words are cut to the verdict itself where that makes room for all of
        them, or for the leading one, which is then cut to its figure; others without room are left to the tool tip.
        """
        text = visible(self.mark.text)
        short = self.mark.short or (text.partition(" · ")[0] if self._leading else "")
        usual, narrow = theme.px(_PILL_PAD), theme.px(_NARROW_PAD)
        pills = [(text, usual), (text, narrow), *([(short, narrow)] if short else [])]
        tried = [(*pill, self._fitting_notes(metrics, self._room(metrics, *pill))) for pill in pills]
        whole = " · ".join(self.notes)
        for chosen in [one for one in tried if one[2] == whole] + [one for one in tried if one[2]]:
            if chosen[2]:
                return chosen
        if self.notes and self._leading:
            cut = metrics.elidedText(self.notes[0], _RIGHT_END, self._room(metrics, text, narrow))
            if cut.startswith(self.notes[0].split(" ")[0]):
                return text, narrow, cut
        return text, usual, ""

    def _room(self, metrics: QFontMetricsF, text: str, pad: int) -> float:
        pill = metrics.horizontalAdvance(text) + 2 * pad if text else 0
        return self.width() - pill - theme.px(_NOTES_GAP)

    def _fitting_notes(self, metrics: QFontMetricsF, room: float) -> str:
        shown = ""
        for note in self.notes:
            longer = f"{shown} · {note}" if shown else note
            if metrics.horizontalAdvance(longer) > room:
                break
            shown = longer
        return shown

    def paint(self, painter: QPainter, region: QRect) -> None:
        font, metrics = theme.ui_font(SMALL), _small()
        text, pad, notes = self._laid_out(metrics)
        if notes:
            words_in(painter, QRectF(self.rect()).adjusted(0, 0, -1, 0), notes, font, ink("muted"), RIGHT)
        if text:
            text = metrics.elidedText(text, _RIGHT_END, self.width() - 2 * pad - 1)
            area = QRectF(0.5, 0.5, metrics.horizontalAdvance(text) + 2 * pad, self.height() - 1)
            box(painter, area, _outline(self.mark.tone), None, area.height() / 2)
            words_in(painter, area, text, font, ink(self.mark.tone), CENTRE)


class StateLine(Painted):
    """What a lane is doing or how it ended, in one small line that is cut where there is no room."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.mark = Mark("")
        self.count = ""

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
        metrics = _small()
        room = self.width() - (metrics.horizontalAdvance(self.count) + theme.px(10) if self.count else 0)
        text = visible(self.mark.text)
        if self.mark.short and metrics.horizontalAdvance(text) > room:
            text = self.mark.short
        return metrics.elidedText(text, _RIGHT_END, room)

    def high(self) -> int:
        return round(_small().height()) + 2

    def paint(self, painter: QPainter, region: QRect) -> None:
        font, area = theme.ui_font(SMALL), QRectF(self.rect())
        words_in(painter, area, self.count, font, ink("muted"), RIGHT)
        words_in(painter, area, self.shown_text(), font, ink(self.mark.tone), LEFT)


class FigureCell(Painted):
    """One figure: a large value over a small label, and a remark beside the value where it fits."""

    def __init__(self, label: str, widest: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.value, self.label, self.remark, self.faded = MISSING, label, "", False
        self._widest = widest

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
        label = self._fitting_label(_small())
        missing = [self.remark] if self.remark and not self._remark_fits() else []
        if label != self.label:
            missing += self.label[len(label):].removeprefix(" · ").split(" · ")
        return missing

    def _remark_left(self) -> float:
        return _big().horizontalAdvance(self.value) + theme.px(5)

    def _remark_fits(self) -> bool:
        return self._remark_left() + _small().horizontalAdvance(self.remark) <= self.width()

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
        return metrics.elidedText(label, _RIGHT_END, self.width())

    def natural_width(self) -> int:
        """Width that holds the widest value and the label, pixels; what a lane adds to its label does not count."""
        value = _big().horizontalAdvance(self._widest)
        label = _small().horizontalAdvance(self.label.split(" · ")[0].split(", ")[0])
        return round(max(value, label)) + theme.px(12)

    def high(self) -> int:
        return round(_big().height() * 0.96 + _small().height())

    def sizeHint(self) -> QSize:
        return QSize(self.natural_width(), self.high())

    def paint(self, painter: QPainter, region: QRect) -> None:
        big, small, font = _big(), _small(), theme.ui_font(SMALL)
        baseline, muted = big.ascent() * 0.96, ink("muted")
        weak = self.faded or self.value == MISSING
        words(painter, QPointF(0, baseline), self.value, theme.ui_font(BIG, bold=True), muted if weak else ink("ink"))
        if self.remark and self._remark_fits():
            words(painter, QPointF(self._remark_left(), baseline), self.remark, font, muted)
        words(painter, QPointF(0, big.height() * 0.96 + small.ascent()), self._painted_label(small), font, muted)


class ProgressLine(Painted):
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

    def paint(self, painter: QPainter, region: QRect) -> None:
        painter.fillRect(QRectF(0, 0, self.width(), 1), ink("border"))
        if self.active:
            part = 0.33 if self.fraction is None else min(max(self.fraction, 0.0), 1.0)
            painter.fillRect(QRectF(0, 0, self.width() * part, self.height()), QColor(theme.current().focus))
