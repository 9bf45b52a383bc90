"""Four live plots: acceptance rate, tokens per target pass, decode speed, time per round.

pyqtgraph takes half a second to import, so it is imported by a thread of its own once the window is
up; until then the cards stand empty, with words.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QPointF, QRectF, QSize, Qt, QTimer, Signal
from PySide6.QtGui import QActionGroup, QColor, QFontMetricsF, QPainter, QPaintEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import (
    QFrame,
    QGridLayout,
    QLabel,
    QMenu,
    QPushButton,
    QSizePolicy,
    QStackedWidget,
    QToolButton,
    QWidget,
)

from specview.files.figures import METRICS, MISSING, number, whole
from specview.gui.parts import layout, theme
from specview.gui.parts.lane_markers import paint_marker
from specview.gui.parts.plot_data import CurveName, PlotOptions, bars, curve, last, phases_ms, steps
from specview.gui.state import lane_words
from specview.gui.state.display_text import tooltip, visible
from specview.gui.state.view_model import LaneModel, RaceModel

if TYPE_CHECKING:
    from specview.gui.parts.plot_canvas import Canvas

WINDOWS = (8, 16, 32, 64)
X_NAMES = {"position": "output tokens", "seconds": "lane seconds (s)"}
CARD_PX = 196
_POLL_MS = 60
_SHARE = 0.06
_LONGEST_REST_S = 0.4
_VALUES_S = 0.45


def _marked(lane: LaneModel, value: str) -> str:
    """A lane's figure, called lossy where its rule is."""
    return f"{value} {lane_words.LOSSY}" if lane_words.lossy(lane.settings) else value


class Values(QWidget):
    """A plot's key: each lane's shape and colour with its last value, names where there is room."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.entries: list[tuple[int, str, str]] = []
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def show_entries(self, entries: Sequence[tuple[int, str, str]]) -> None:
        """Show (lane, name, value) entries; a lane below 0 means phase -1 - lane."""
        if list(entries) != self.entries:
            self.entries = list(entries)
            words = ", ".join(f"{name} {value}" for _, name, value in self.entries)
            self.setAccessibleName(words)
            self.setToolTip(tooltip("\n".join(f"{name}: {value}" for _, name, value in self.entries)))
            self.update()

    def sizeHint(self) -> QSize:
        """One small line."""
        return QSize(60, theme.px(16))

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paint the entries, with names if all fit."""
        now = theme.current()
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        font = theme.ui_font(10.5)
        painter.setFont(font)
        metrics = QFontMetricsF(font)
        size, gap = theme.px(8), theme.px(9)
        full = [f"{visible(name)} {value}" for _, name, value in self.entries]
        width = sum(metrics.horizontalAdvance(text) + size + theme.px(4) + gap for text in full)
        texts = full if width <= self.width() + gap else [value for _, _, value in self.entries]
        need = sum(metrics.horizontalAdvance(text) + size + theme.px(4) for text in texts)
        if need + gap * (len(texts) - 1) > self.width():
            gap = theme.px(4)
        x = 0.0
        middle = self.height() / 2
        baseline = middle + (metrics.ascent() - metrics.descent()) / 2
        for place, ((lane, _, _), text) in enumerate(zip(self.entries, texts, strict=True)):
            rest = x + size + theme.px(4) + metrics.horizontalAdvance(text)
            if rest + (0 if place == len(texts) - 1 else theme.px(10)) > self.width():
                painter.drawText(QPointF(x, baseline), "…")
                break
            if lane >= 0:
                paint_marker(painter, lane, QPointF(x + size / 2, middle), size)
            else:
                side = size * 0.9
                painter.fillRect(QRectF(x, middle - side / 2, side, side), QColor(now.phases[-1 - lane]))
            x += size + theme.px(4)
            painter.setPen(QColor(now.ink if lane < 0 else now.muted))
            painter.drawText(QPointF(x, baseline), text)
            x += metrics.horizontalAdvance(text) + gap


class Headline(QWidget):
    """A plot's title and formula; where there is no room the formula goes first."""

    def __init__(self, title: str, formula: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.title, self.formula = title, formula
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def set_formula(self, formula: str) -> None:
        """Change the words beside the title."""
        if formula != self.formula:
            self.formula = formula
            self.update()

    def sizeHint(self) -> QSize:
        """One line."""
        return QSize(60, theme.px(18))

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paint both, cut where they must be."""
        now = theme.current()
        painter = QPainter(self)
        bold, small = theme.ui_font(12, bold=True), theme.ui_font(10.5)
        metrics, small_metrics = QFontMetricsF(bold), QFontMetricsF(small)
        baseline = (self.height() + metrics.ascent() - metrics.descent()) / 2
        painter.setFont(bold)
        painter.setPen(QColor(now.ink))
        title = metrics.elidedText(self.title, Qt.TextElideMode.ElideRight, self.width())
        painter.drawText(QPointF(0, baseline), title)
        left = metrics.horizontalAdvance(title) + theme.px(7)
        if left + small_metrics.horizontalAdvance(self.formula) <= self.width():
            painter.setFont(small)
            painter.setPen(QColor(now.muted))
            painter.drawText(QPointF(left, baseline), self.formula)


class Card(QFrame):
    """A plot with its title, formula and key."""

    def __init__(self, title: str, formula: str, tip: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "panel")
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Expanding)
        self.headline = Headline(title, formula)
        self.headline.setToolTip(tooltip(tip))
        self.setAccessibleName(f"{title}: {formula}")
        self.values = Values()
        self.canvas: Canvas | None = None
        self._stack = QStackedWidget()
        self._stack.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Ignored)
        self._empty = QLabel("Fills as rounds come")
        self._empty.setProperty("kind", "small")
        self._empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._empty.setWordWrap(True)
        self._stack.addWidget(self._empty)
        self.head = layout.row((self.headline, 1), gap=theme.px(7))
        self._column = layout.column(self.head, self.values, (self._stack, 1), on=self, gap=0, margins=None)
        self.restyle()

    def set_canvas(self, canvas: Canvas) -> None:
        """Take the plot, once pyqtgraph is there."""
        self.canvas = canvas
        canvas.setAccessibleName(self.accessibleName())
        self._stack.addWidget(canvas)

    def say(self, text: str) -> None:
        """Show words in place of a plot, or the plot where the words are empty."""
        if text:
            self._empty.setText(text)
        wanted: QWidget = self._empty if text or self.canvas is None else self.canvas
        if self._stack.currentWidget() is not wanted:
            self._stack.setCurrentWidget(wanted)

    def restyle(self) -> None:
        """Take the present theme and font size."""
        self._column.setContentsMargins(theme.px(9), theme.px(5), theme.px(7), theme.px(3))
        self.headline.updateGeometry()
        self.headline.update()
        self.values.updateGeometry()
        self.values.update()
        if self.canvas is not None:
            self.canvas.restyle()


CURVES: tuple[tuple[CurveName, str, str, float | None], ...] = (
    ("acceptance_rate", "Acceptance rate α", "accepted / judged", 1.0),
    ("tokens_per_target_pass", "Tokens per target pass", "emitted / passes", 2.0),
    ("decode_tokens_per_s", "Decode speed", "tokens / s", None),
)

FOURTH = {"time": "Time per round", "k": "Draft length k, each round", "mean-k": "Draft length k, mean"}
"""What the fourth plot can show, by the names that are remembered."""
_LENGTH_TIPS = {
    "k": ("of each round", "Draft length k = drafted tokens of a round; 0 for a round without a draft.\nOf a tree "
          "all its tokens count. In the key: the last round's."),
    "mean-k": ("drafted / rounds", "Mean draft length = drafted tokens / rounds, running or over the last rounds as "
               "chosen above.\nRounds without a draft count as 0, unlike the mean k of the formulas."),
}


class PlotStrip(QWidget):
    """The four plots of a race and what they run over; `fourth_changed` tells what the fourth one shows."""

    fourth_changed = Signal(str)

    def __init__(self, race: RaceModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.race = race
        self.options = PlotOptions()
        self._lane: LaneModel | None = None
        self._drawn: dict[int, tuple[LaneModel, int, int]] = {}
        self._bars_drawn: tuple[Any, ...] = ()
        self._last: dict[tuple[str, int], float | None] = {}
        self._canvas_module: Any = None
        self._importing: threading.Thread | None = None
        self._import_error = ""
        self._late = QTimer(self)
        self._late.setSingleShot(True)
        self._late.timeout.connect(self._catch_up)
        self._late_name = QTimer(self)
        self._late_name.setSingleShot(True)
        self._late_name.setInterval(0)  # once the layout has given the card its width
        self._late_name.timeout.connect(self._name_lane)
        self._rest_until = self._values_after = self._painted_before = 0.0
        self._poll = QTimer(self)
        self._poll.setInterval(_POLL_MS)
        self._poll.timeout.connect(self._check_import)
        self.cards: dict[str, Card] = {}
        for name, title, formula, _ in CURVES:
            self.cards[name] = Card(title, formula, METRICS[name].tooltip())
        self.phases = Card("Time per round", "ms", "Time of each round on the lane's clock: the target pass (verify), "
                           "drafting, and the rest.\nMeans of several rounds where there are many.")
        self.lengths = Card("Draft length k", "", "")
        self.fourth = "time"
        self._choosers = {card: self._chooser_button() for card in (self.phases, self.lengths)}
        self._over = self._menu_button("What the plots run over")
        self._rates = self._menu_button("Running rates, or rates of the last rounds")
        self._back, self._forth = QToolButton(), QToolButton()
        self._back.setText("‹ plots")
        self._forth.setText("more plots ›")
        self._first = 0
        self._lane_button = self._menu_button("The lane whose round times are shown")
        self._lane_button.menu().aboutToShow.connect(self._fill_lanes)
        self._build()
        theme.signals.changed.connect(self._restyle)
        self._name_options()

    def _menu_button(self, tip: str) -> QToolButton:
        button = QToolButton()
        button.setProperty("kind", "caption")
        button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        button.setToolTip(tip)
        button.setMenu(QMenu(button))
        return button

    @staticmethod
    def _chooser_button() -> QPushButton:
        """A title that is a button: what the fourth plot shows."""
        button = QPushButton()
        button.setProperty("kind", "headline")
        button.setToolTip("What this plot shows: time per round, or draft length k over time")
        button.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        button.setMenu(QMenu(button))
        return button

    def _build(self) -> None:
        line = layout.row(self._over, self._rates, 1, margins=(theme.px(2), 0, theme.px(2), 0))
        for button, step in ((self._back, -1), (self._forth, 1)):
            button.setProperty("kind", "caption")
            button.clicked.connect(lambda _=False, step=step: self._turn(step))
            line.addWidget(button)
        self._grid = QGridLayout()
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setSpacing(8)
        for column, card in enumerate(self._slots()):
            self._grid.addWidget(card, 0, column)
            self._grid.setColumnStretch(column, 1)
        self._grid.addWidget(self.lengths, 0, len(CURVES))
        self.lengths.hide()
        for card, chooser in self._choosers.items():
            card.headline.title = ""
            card.head.setSpacing(theme.px(2))
            card.head.insertWidget(0, chooser)
        self._lane_button.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
        self.phases.head.addWidget(self._lane_button)
        layout.column(line, (self._grid, 1), on=self, gap=3)
        self._fill_options()

    def _all_cards(self) -> list[Card]:
        return [*self.cards.values(), self.phases, self.lengths]

    def _slots(self) -> list[Card]:
        """The four cards that are on, in order."""
        return [*self.cards.values(), self.phases if self.fourth == "time" else self.lengths]

    def _arrange(self) -> None:
        """Show as many plots as can be read beside each other; the others are a page away."""
        cards = self._slots()
        (self.lengths if self.fourth == "time" else self.phases).hide()
        count = min(max(self.width() // theme.px(CARD_PX), 1), len(cards))
        self._first = min(self._first, len(cards) - count)
        for place, card in enumerate(cards):
            shown = self._first <= place < self._first + count
            card.setVisible(shown)
            self._grid.setColumnStretch(place, int(shown))
        self._back.setVisible(count < len(cards))
        self._forth.setVisible(count < len(cards))
        self._back.setEnabled(self._first > 0)
        self._forth.setEnabled(self._first < len(cards) - count)

    def _turn(self, step: int) -> None:
        self._first = max(0, self._first + step)
        self._arrange()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Show as many plots as fit."""
        super().resizeEvent(event)
        self._arrange()
        self._late_name.start()

    def sizeHint(self) -> QSize:
        """As the mock: a strip of about 190 pixels."""
        return QSize(theme.px(900), theme.px(205))

    def minimumSizeHint(self) -> QSize:
        """Low enough for a small screen."""
        return QSize(theme.px(320), theme.px(110))

    # -- options -------------------------------------------------------------------------------------

    def _fill_options(self) -> None:
        for button, entries in (
            (self._over, [(name, {"over": over}) for over, name in X_NAMES.items()]),
            (self._rates, [("running, from the first round", {"window": None}),
                           *((f"over the last {n} rounds", {"window": n}) for n in WINDOWS)]),
        ):
            group = QActionGroup(button)
            for text, change in entries:
                action = button.menu().addAction(text)
                action.setCheckable(True)
                action.setData(change)
                action.setActionGroup(group)
                action.triggered.connect(lambda _=False, change=change: self.set_options(**change))
        for chooser in self._choosers.values():
            for name, text in FOURTH.items():
                action = chooser.menu().addAction(text)
                action.setCheckable(True)
                action.setData(name)
                action.triggered.connect(lambda _=False, name=name: self._fourth_chosen(name))
        self._name_fourth()

    def _fourth_chosen(self, name: str) -> None:
        self.set_fourth(name)
        self._name_fourth()  # choosing what is on already must not take its tick away

    def set_fourth(self, name: str) -> None:
        """Let the fourth plot show time per round ('time'), k of each round ('k') or its mean ('mean-k')."""
        if name not in FOURTH or name == self.fourth:
            return
        focused = any(chooser.hasFocus() for chooser in self._choosers.values())
        self.fourth = name
        self._name_fourth()
        self._arrange()
        if focused:
            self._chooser().setFocus()
        self._bars_drawn = ()
        if self.lengths.canvas is not None:
            self.lengths.canvas.reset()
            for index, lane in enumerate(self.race.lanes):
                self._draw_length(index, lane)
        self._draw_phases()
        self._show_values()
        self.fourth_changed.emit(name)

    def _chooser(self) -> QPushButton:
        return self._choosers[self.phases if self.fourth == "time" else self.lengths]

    def _name_fourth(self) -> None:
        for card, chooser in self._choosers.items():
            chooser.setText("Time per round ▾" if card is self.phases else "Draft length k ▾")
            for action in chooser.menu().actions():
                action.setChecked(action.data() == self.fourth)
        if self.fourth in _LENGTH_TIPS:
            formula, tip = _LENGTH_TIPS[self.fourth]
            self.lengths.headline.set_formula(formula)
            self.lengths.headline.setToolTip(tooltip(tip))
            self.lengths.setAccessibleName(f"Draft length k: {formula}")

    def set_options(self, **change: Any) -> None:
        """Change what the plots run over ('over') or the window of rates in rounds ('window')."""
        made = PlotOptions(**{"over": self.options.over, "window": self.options.window, **change})
        if made != self.options:
            self.options = made
            self._name_options()
            self._start_anew()
            self.refresh(now=True)

    def _name_options(self) -> None:
        self._over.setText(f"over {X_NAMES[self.options.over].partition(' (')[0]} ▾")
        window = self.options.window
        self._rates.setText("running rates ▾" if window is None else f"rates of the last {window} rounds ▾")
        for button in (self._over, self._rates):
            for action in button.menu().actions():
                change = action.data()
                action.setChecked(all(getattr(self.options, key) == value for key, value in change.items()))
        for card in self._all_cards():
            if card.canvas is not None:
                card.canvas.name_x(X_NAMES[self.options.over])

    def _fill_lanes(self) -> None:
        menu = self._lane_button.menu()
        menu.clear()
        for lane in self.race.lanes:
            action = menu.addAction(visible(lane.name).replace("&", "&&"))
            action.setCheckable(True)
            action.setChecked(lane is self._phase_lane())
            action.triggered.connect(lambda _=False, lane=lane: self.select_lane(lane))

    def _name_lane(self) -> None:
        """Name the lane whose times are shown, cut where the card is narrow: the title needs the room."""
        lane = self._phase_lane()
        name = "" if lane is None else visible(lane.name)
        chooser = self._choosers[self.phases]
        metrics = self._lane_button.fontMetrics()
        around = self._lane_button.sizeHint().width() - metrics.horizontalAdvance(self._lane_button.text())
        room = self.phases.width() - chooser.sizeHint().width() - around - theme.px(24)
        shown = metrics.elidedText(name, Qt.TextElideMode.ElideRight, room - metrics.horizontalAdvance(" ▾"))
        text = f"{shown} ▾"
        if text != self._lane_button.text():
            self._lane_button.setText(text)
            self._lane_button.setAccessibleName(f"Lane whose round times are shown: {name}")
            self._lane_button.setVisible(bool(name))

    def select_lane(self, lane: LaneModel | None) -> None:
        """Show this lane's round times."""
        if lane is not self._lane:
            self._lane = lane
            self._bars_drawn = ()
            self._draw_phases()

    def _phase_lane(self) -> LaneModel | None:
        lanes = self.race.lanes
        if any(lane is self._lane for lane in lanes):
            return self._lane
        return next((lane for lane in lanes if not lane.plain), lanes[0] if lanes else None)

    # -- pyqtgraph --------------------------------------------------------------------------------------

    def showEvent(self, event: QShowEvent) -> None:
        """Begin to import pyqtgraph once the window is on screen."""
        super().showEvent(event)
        if self._canvas_module is None and self._importing is None:
            QTimer.singleShot(150, self, self._begin_import)

    def _begin_import(self) -> None:
        if self._canvas_module is not None or self._importing is not None:
            return
        self._importing = threading.Thread(target=self._import, name="pyqtgraph import", daemon=True)
        self._importing.start()
        self._poll.start()

    def _import(self) -> None:
        """Import on the side: the window stays alive meanwhile. Widgets are made on the Qt thread."""
        try:
            importlib.import_module("specview.gui.parts.plot_canvas")
        except ImportError as error:
            self._import_error = str(error)

    def _check_import(self) -> None:
        if self._importing is not None and self._importing.is_alive():
            return
        self._poll.stop()
        self.load()

    def load(self) -> None:
        """Make the plots now, importing pyqtgraph if that has not happened yet."""
        if self._canvas_module is not None:
            return
        self._import()
        if self._import_error:
            for card in self._all_cards():
                card.say(f"No plots: pyqtgraph cannot be imported ({self._import_error}).")
            return
        self._canvas_module = importlib.import_module("specview.gui.parts.plot_canvas")
        for name, _, _, floor in CURVES:
            self.cards[name].set_canvas(self._canvas_module.Canvas(floor))
        self.phases.set_canvas(self._canvas_module.Canvas())
        self.lengths.set_canvas(self._canvas_module.Canvas(2.0))
        self._name_options()
        self._start_anew()
        self.refresh(now=True)

    # -- drawing ---------------------------------------------------------------------------------------

    def _start_anew(self) -> None:
        self._drawn.clear()
        self._last.clear()
        self._bars_drawn = ()
        for card in self._all_cards():
            if card.canvas is not None:
                card.canvas.reset()

    def refresh(self, *, now: bool = False) -> bool:
        """Draw what changed since the last call (about 10 times a second); True when anything did.

        Drawing shares the processor with the models, so it is put off while plots have had more than
        their share of it, unless `now`.
        """
        lanes = self.race.lanes
        marks = {index: (lane, lane.generation, len(lane.table)) for index, lane in enumerate(lanes)}
        fresh = any(key not in marks or marks[key][:2] != drawn[:2] for key, drawn in self._drawn.items())
        changed = [index for index, mark in marks.items() if self._drawn.get(index) != mark]
        clock = time.monotonic()
        if not (now or fresh) and changed and clock < self._rest_until:
            if not self._late.isActive():
                self._late.start(round((self._rest_until - clock) * 1e3) + 1)
            return False
        if changed or fresh or now:  # with nothing new the timer stays: values may still wait for it
            self._late.stop()
        start, painted = time.thread_time(), self._painted_s()
        if fresh:
            self._start_anew()  # lanes moved, or a new run: ranges start anew
            changed = list(marks)
        if self._canvas_module is not None:
            for index in changed:
                self._draw_lane(index, lanes[index])
            self._drawn = marks
        self._draw_phases()
        ended = all(lane.state in ("ended", "idle") for lane in lanes)
        if changed and (now or fresh or ended or clock >= self._values_after):
            self._values_after = clock + _VALUES_S
            self._show_values()
        if changed:
            cost = time.thread_time() - start + painted - self._painted_before
            self._painted_before = painted
            self._rest_until = clock + min(cost / _SHARE, _LONGEST_REST_S)
            if not self._late.isActive() and not ended:
                self._late.start(round(_VALUES_S * 1e3))  # the last values of a pause are shown too
        return bool(changed)

    def _painted_s(self) -> float:
        """Processor time that all plots took to paint so far, seconds."""
        return sum(card.canvas.paint_s for card in self._all_cards() if card.canvas is not None)

    def _catch_up(self) -> None:
        """Draw what was put off, and the last values."""
        if not self.refresh(now=True):
            self._show_values()

    def _draw_lane(self, index: int, lane: LaneModel) -> None:
        for name, _, _, _ in CURVES:
            canvas = self.cards[name].canvas
            if canvas is None or (name == "acceptance_rate" and lane.plain):
                continue
            x, y = curve(lane, name, self.options)
            if len(x):
                canvas.show_curve(index, x, y)
                self._last[name, index] = last(y)
        self._draw_length(index, lane)

    def _draw_length(self, index: int, lane: LaneModel) -> None:
        """Draw a lane's k, where that is what the fourth plot shows."""
        canvas = self.lengths.canvas
        if self.fourth == "time" or canvas is None or lane.plain or not len(lane.table):
            return
        x, y = steps(lane, self.options) if self.fourth == "k" else curve(lane, "draft_length", self.options)
        canvas.show_curve(index, x, y, whole=self.fourth == "k")
        self._last["draft_length", index] = last(y)

    def _show_length_values(self) -> None:
        shown = whole if self.fourth == "k" else number
        entries = [
            (index, lane.name, _marked(lane, shown(self._last.get(("draft_length", index)))))
            for index, lane in enumerate(self.race.lanes) if not lane.plain and len(lane.table)
        ]
        self.lengths.values.show_entries(entries)
        empty = "Fills as rounds come" if any(not lane.plain for lane in self.race.lanes) else "No lane drafts"
        self.lengths.say("" if entries else empty)

    def _show_values(self) -> None:
        if self.fourth == "time":
            self._show_phase_values()
        else:
            self._show_length_values()
        for name, _, _, _ in CURVES:
            entries = []
            for index, lane in enumerate(self.race.lanes):
                if name == "acceptance_rate" and lane.plain:
                    continue
                if not len(lane.table):
                    continue
                value = self._last.get((name, index))
                entries.append((index, lane.name, _marked(lane, METRICS[name].text(value))))
            self.cards[name].values.show_entries(entries)
            empty = "" if any(not value.startswith(MISSING) for _, _, value in entries) else (
                "Nothing was judged yet" if entries else "Fills as rounds come")
            self.cards[name].say(empty)

    def _draw_phases(self) -> None:
        if self.fourth != "time":
            return
        lane = self._phase_lane()
        self._name_lane()
        if lane is None or not len(lane.table):
            self.phases.values.show_entries([])
            self.phases.say("Fills as rounds come")
            return
        mark = (lane, lane.generation, len(lane.table), self.options)
        canvas = self.phases.canvas
        if canvas is None or mark == self._bars_drawn:
            return
        other_lane = self._bars_drawn[:2] != mark[:2]
        if other_lane:
            canvas.reset()
        self._bars_drawn = mark
        data = bars(lane, self.options)
        canvas.show_bars(data)
        self.phases.headline.set_formula("ms" if data.rounds == 1 else f"ms, bars of {data.rounds} rounds")
        self.phases.say("")
        if other_lane:
            self._show_phase_values()

    def _show_phase_values(self) -> None:
        """Show the mean of each phase in the key."""
        lane = self._phase_lane()
        if lane is None or not len(lane.table):
            self.phases.values.show_entries([])
            return
        means = [float(phase.mean()) for phase in phases_ms(lane.table)]
        order = (("verify", 1), ("draft", 0), ("other", 2))
        self.phases.values.show_entries([(-1 - phase, label, f"{means[phase]:.1f}") for label, phase in order])

    def _restyle(self) -> None:
        for card in self._all_cards():
            card.restyle()
        self._arrange()
        self._start_anew()
        self.refresh(now=True)
