"""The race on screen as a room sees it: a title, the lanes, the colours explained in one line."""

from __future__ import annotations

from PySide6.QtCore import QPointF, QRect, Qt, Signal
from PySide6.QtGui import QColor, QFontMetricsF, QKeyEvent, QPainter, QPaintEvent, QResizeEvent
from PySide6.QtWidgets import QLineEdit, QSizePolicy, QWidget

from specview.gui.parts import layout, theme
from specview.gui.parts.painted import Painted, ink, words
from specview.gui.parts.token_paint import TokenStyles
from specview.gui.parts.widgets import ElidedLabel
from specview.gui.present.lane import PresentLane
from specview.gui.present.sizes import GAP, LEAST, MARGIN, NOTE, TITLE, Sizes
from specview.gui.state import present_words
from specview.gui.state.view_model import RaceModel


class Colours(Painted):
    """The token states in one line, each in its own look with what it means; what has no room is left out from the end."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = Sizes(720)
        self.setAccessibleName("Colours: " + "; ".join(
            what if kind[0] != "+" else f"{kind} {what}" for kind, what in present_words.COLOURS.items()))  # fmt: skip

    def fit(self, sizes: Sizes) -> None:
        """Take other sizes."""
        self.sizes = sizes
        self.changed()

    def high(self) -> int:
        return self.sizes.px(LEAST * 1.9)

    def paint(self, painter: QPainter, region: QRect) -> None:
        styles = TokenStyles(self.sizes.px(LEAST) / theme.font_scale())
        styles.font = self.sizes.font(LEAST)  # the words are the interface's, the strokes the tokens'
        styles.metrics = QFontMetricsF(styles.font)
        counts = TokenStyles(self.sizes.token).count_font
        x, gap, top = 1.0, self.sizes.px(LEAST) * 1.2, (self.height() - styles.line_height) / 2
        for kind, what in present_words.COLOURS.items():
            wide = styles.measure(what, False) + 2 * styles.pad
            if x + wide > self.width():
                break
            if kind in styles.styles:
                x += styles.paint_sample(painter, kind, x, top, what) + gap
                continue
            level = top + styles.baseline
            words(painter, QPointF(x, level - styles.metrics.ascent() * 0.25), kind, counts, styles.styles["rejected"].ink)
            x += QFontMetricsF(counts).horizontalAdvance(kind) + styles.pad * 2
            words(painter, QPointF(x, level), what, styles.font, ink("muted"))
            x += wide + gap


class Title(QLineEdit):
    """The title; it can be edited once it was clicked or asked to. Enter or Escape ends that."""

    edited = Signal(str)
    done = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setAccessibleName("Title")
        self.setToolTip("Change the title (T)")
        self.setFocusPolicy(Qt.FocusPolicy.ClickFocus)
        self.setMaxLength(200)
        self.setFrame(False)
        self.setMouseTracking(True)
        self.textEdited.connect(self.edited)
        self.textChanged.connect(self._fit)
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        theme.signals.changed.connect(self.restyle)
        self.restyle()

    def restyle(self) -> None:
        """Words on the ground, a line under them while they are edited."""
        now = theme.current()
        self.setStyleSheet(
            f"QLineEdit, QLineEdit:hover {{ background: transparent; border: none; padding: 0; color: {now.ink}; }}"
            f"QLineEdit:focus {{ border: none; border-bottom: 2px solid {now.focus}; padding: 0; }}"
        )

    def fit(self, sizes: Sizes) -> None:
        """Take other sizes."""
        self.setFont(sizes.font(TITLE, bold=True))
        self._fit()

    def _fit(self) -> None:
        metrics, stage = QFontMetricsF(self.font()), self.parentWidget()
        most = 600 if stage is None else stage.width() * 0.62
        self.setFixedSize(round(min(metrics.horizontalAdvance(self.text() or "Title") + metrics.averageCharWidth() * 1.5, most)),
                          round(metrics.height() * 1.2))  # fmt: skip
        self.setCursorPosition(self.cursorPosition() if self.hasFocus() or self.isModified() else 0)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Enter and Escape give the keys back."""
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Escape):
            self.done.emit()
        else:
            super().keyPressEvent(event)


class Stage(QWidget):
    """Title, lanes and colours of a race, in sizes that follow its own height.

    top is the row of the title: what is put at its end stands at the right.
    """

    def __init__(self, race: RaceModel) -> None:
        super().__init__()
        self.setObjectName("page")
        self.setAccessibleName("Race")
        self.setMouseTracking(True)
        self.race = race
        self.sizes = Sizes(720)
        self.lanes: list[PresentLane] = []
        self.title = Title()
        self.note = ElidedLabel("", "muted")
        self.colours = Colours()
        for part in (self.note, self.colours):
            part.setAttribute(Qt.WidgetAttribute.WA_TransparentForMouseEvents)
        self.top = layout.row(self.title, (self.note, 1))
        self._row = layout.row()
        self._whole = layout.column(self.top, (self._row, 1), self.colours, on=self)
        theme.signals.changed.connect(self.fit)
        self.rebuild()

    # -- what is shown -----------------------------------------------------------------------------

    def rebuild(self) -> None:
        """Make the lanes agree with the race's."""
        while len(self.lanes) > len(self.race.lanes):
            lane = self.lanes.pop()
            self._row.removeWidget(lane)
            lane.hide()
            lane.deleteLater()
        while len(self.lanes) < len(self.race.lanes):
            lane = PresentLane(self.race, len(self.lanes), self.sizes)
            self.lanes.append(lane)
            self._row.addWidget(lane, 1)
        self.refresh()
        self.refresh_figures()
        self.fit()

    def refresh(self) -> None:
        """Show new tokens (about 30 times a second)."""
        for lane in self.lanes:
            lane.refresh()

    def refresh_figures(self) -> None:
        """Show the figures as they stand (about twice a second)."""
        for lane in self.lanes:
            lane.refresh_figures()

    def say(self, text: str) -> None:
        """Words beside the title."""
        if text != self.note.full:
            self.note.set_full(text)

    # -- sizes -------------------------------------------------------------------------------------

    def fit(self) -> None:
        """Take the sizes of the present height."""
        self.sizes = sizes = Sizes(max(self.height(), 240))
        gap, side = sizes.px(GAP), sizes.px(MARGIN)
        self._whole.setContentsMargins(side, sizes.px(0.014), side, sizes.px(0.014))
        self._whole.setSpacing(gap)
        self._row.setSpacing(gap)
        self.top.setSpacing(gap)
        self.title.fit(sizes)
        self.note.setFont(sizes.font(NOTE))
        self.colours.fit(sizes)
        for lane in self.lanes:
            lane.head.sizes = sizes  # what a head wants is in these
        room = (self.width() - 2 * side + gap) / max(len(self.lanes), 1) - gap
        stacked = any(lane.head.wants() > room for lane in self.lanes)
        for lane in self.lanes:
            lane.fit(sizes, stacked)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.fit()

    def paintEvent(self, event: QPaintEvent) -> None:
        """The ground."""
        QPainter(self).fillRect(event.rect(), QColor(theme.current().ground))
