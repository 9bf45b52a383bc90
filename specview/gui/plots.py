"""Four live plots: acceptance rate, tokens per target pass, decode speed, time per round.

pyqtgraph takes half a second to import, so it is imported by a thread of its own once the window is
up; until then the cards stand empty, with words.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QPointF, QRectF, QSize, Qt, QTimer
from PySide6.QtGui import QActionGroup, QColor, QFontMetricsF, QPainter, QPaintEvent, QShowEvent
from PySide6.QtWidgets import (
    QFrame,
    QGridLayout,
    QHBoxLayout,
    QLabel,
    QMenu,
    QSizePolicy,
    QStackedWidget,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from specview.gui import figures, theme
from specview.gui.display_text import tooltip, visible
from specview.gui.lane_markers import lane_colour, paint_marker
from specview.gui.plot_data import CurveName, PlotOptions, bars, curve, last
from specview.gui.view_model import LaneModel, RaceModel

if TYPE_CHECKING:
    from specview.gui.plot_canvas import Canvas

WINDOWS = (8, 16, 32, 64)
X_NAMES = {"position": "output tokens", "seconds": "lane seconds (s)"}
_POLL_MS = 60


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
        x = 0.0
        middle = self.height() / 2
        baseline = middle + (metrics.ascent() - metrics.descent()) / 2
        for (lane, _, _), text in zip(self.entries, texts, strict=True):
            if lane >= 0:
                paint_marker(painter, lane, QPointF(x + size / 2, middle), size)
            else:
                side = size * 0.9
                painter.fillRect(QRectF(x, middle - side / 2, side, side), QColor(now.phases[-1 - lane]))
            x += size + theme.px(4)
            painter.setPen(QColor(now.ink if lane < 0 else now.muted))
            painter.drawText(QPointF(x, baseline), text)
            x += metrics.horizontalAdvance(text) + gap


class Card(QFrame):
    """A plot with its title, formula and key."""

    def __init__(self, title: str, formula: str, tip: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("kind", "panel")
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Expanding)
        self.title = QLabel(title)
        self.title.setTextFormat(Qt.TextFormat.PlainText)
        self.formula = QLabel(formula)
        self.formula.setTextFormat(Qt.TextFormat.PlainText)
        self.formula.setProperty("kind", "small")
        self.formula.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        self.title.setToolTip(tooltip(tip))
        self.formula.setToolTip(tooltip(tip))
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
        self.head = QHBoxLayout()
        self.head.setSpacing(theme.px(7))
        self.head.addWidget(self.title)
        self.head.addWidget(self.formula, 1)
        self._column = QVBoxLayout(self)
        self._column.setSpacing(0)
        self._column.addLayout(self.head)
        self._column.addWidget(self.values)
        self._column.addWidget(self._stack, 1)
        self.restyle()

    def set_canvas(self, canvas: Canvas) -> None:
        """Take the plot, once pyqtgraph is there."""
        self.canvas = canvas
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
        self.title.setFont(theme.ui_font(12, bold=True))
        self.values.updateGeometry()
        self.values.update()
        if self.canvas is not None:
            self.canvas.restyle()


CURVES: tuple[tuple[CurveName, str, str, float | None], ...] = (
    ("acceptance_rate", "Acceptance rate α", "accepted / judged", 1.0),
    ("tokens_per_target_pass", "Tokens per target pass", "emitted / passes", 2.0),
    ("decode_tokens_per_s", "Decode speed", "tokens / s", None),
)


class PlotStrip(QWidget):
    """The four plots of a race and what they run over."""

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
        self._poll = QTimer(self)
        self._poll.setInterval(_POLL_MS)
        self._poll.timeout.connect(self._check_import)
        self.cards: dict[str, Card] = {}
        for name, title, formula, _ in CURVES:
            self.cards[name] = Card(title, formula, figures.FIGURES[name].tooltip())
        self.phases = Card("Time per round", "ms", "Time of each round on the lane's clock: the target pass (verify), "
                           "drafting, and the rest.\nMeans of several rounds where there are many.")
        self._over = self._menu_button("What the plots run over")
        self._rates = self._menu_button("Running rates, or rates of the last rounds")
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

    def _build(self) -> None:
        line = QHBoxLayout()
        line.setContentsMargins(theme.px(2), 0, theme.px(2), 0)
        line.addWidget(self._over)
        line.addWidget(self._rates)
        line.addStretch(1)
        self._grid = QGridLayout()
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setSpacing(8)
        for column, card in enumerate((*self.cards.values(), self.phases)):
            self._grid.addWidget(card, 0, column)
            self._grid.setColumnStretch(column, 1)
        self.phases.head.addWidget(self._lane_button)
        whole = QVBoxLayout(self)
        whole.setContentsMargins(0, 0, 0, 0)
        whole.setSpacing(3)
        whole.addLayout(line)
        whole.addLayout(self._grid, 1)
        self._fill_options()

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

    def set_options(self, **change: Any) -> None:
        """Change what the plots run over ('over') or the window of rates in rounds ('window')."""
        made = PlotOptions(**{"over": self.options.over, "window": self.options.window, **change})
        if made != self.options:
            self.options = made
            self._name_options()
            self._start_anew()
            self.refresh()

    def _name_options(self) -> None:
        self._over.setText(f"over {X_NAMES[self.options.over].partition(' (')[0]} ▾")
        window = self.options.window
        self._rates.setText("running rates ▾" if window is None else f"rates of the last {window} rounds ▾")
        for button in (self._over, self._rates):
            for action in button.menu().actions():
                change = action.data()
                action.setChecked(all(getattr(self.options, key) == value for key, value in change.items()))
        for card in (*self.cards.values(), self.phases):
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

    def select_lane(self, lane: LaneModel | None) -> None:
        """Show this lane's round times."""
        if lane is not self._lane:
            self._lane = lane
            self._bars_drawn = ()
            self.refresh()

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
            importlib.import_module("specview.gui.plot_canvas")
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
            for card in (*self.cards.values(), self.phases):
                card.say(f"No plots: pyqtgraph cannot be imported ({self._import_error}).")
            return
        self._canvas_module = importlib.import_module("specview.gui.plot_canvas")
        for name, _, _, floor in CURVES:
            self.cards[name].set_canvas(self._canvas_module.Canvas(floor))
        self.phases.set_canvas(self._canvas_module.Canvas())
        self._name_options()
        self._start_anew()
        self.refresh()

    # -- drawing ---------------------------------------------------------------------------------------

    def _start_anew(self) -> None:
        self._drawn.clear()
        self._last.clear()
        self._bars_drawn = ()
        for card in (*self.cards.values(), self.phases):
            if card.canvas is not None:
                card.canvas.reset()

    def refresh(self) -> bool:
        """Draw what changed since the last call (about 10 times a second); True when anything did."""
        lanes = self.race.lanes
        marks = {index: (lane, lane.generation, lane.series.length) for index, lane in enumerate(lanes)}
        if any(key not in marks or marks[key][:2] != drawn[:2] for key, drawn in self._drawn.items()):
            self._start_anew()  # lanes moved, or a new run: ranges start anew
        changed = [index for index, mark in marks.items() if self._drawn.get(index) != mark]
        if self._canvas_module is not None:
            for index in changed:
                self._draw_lane(index, lanes[index])
            if changed or self._drawn.keys() != marks.keys():
                self._show_values()
        self._draw_phases()
        if self._canvas_module is not None:
            self._drawn = marks
        return bool(changed)

    def _draw_lane(self, index: int, lane: LaneModel) -> None:
        for name, _, _, _ in CURVES:
            canvas = self.cards[name].canvas
            if canvas is None or (name == "acceptance_rate" and lane.plain):
                continue
            x, y = curve(lane, name, self.options)
            if len(x):
                canvas.show_curve(index, x, y)
                self._last[name, index] = last(y)

    def _show_values(self) -> None:
        for name, _, _, _ in CURVES:
            entries = []
            for index, lane in enumerate(self.race.lanes):
                if name == "acceptance_rate" and lane.plain:
                    continue
                if not lane.series.length:
                    continue
                value = self._last.get((name, index))
                entries.append((index, lane.name, figures.FIGURES[name].text(value)))
            self.cards[name].values.show_entries(entries)
            empty = "" if any(value != figures.MISSING for _, _, value in entries) else (
                "Nothing was judged yet" if entries else "Fills as rounds come")
            self.cards[name].say(empty)

    def _draw_phases(self) -> None:
        lane = self._phase_lane()
        name = "" if lane is None else visible(lane.name)
        text = f"{name} ▾"
        if text != self._lane_button.text():
            self._lane_button.setText(text)
            self._lane_button.setVisible(bool(name))
        if lane is None or not lane.series.length:
            self.phases.values.show_entries([])
            self.phases.say("Fills as rounds come")
            return
        mark = (lane, lane.generation, lane.series.length, self.options)
        canvas = self.phases.canvas
        if canvas is None or mark == self._bars_drawn:
            return
        if self._bars_drawn[:2] != mark[:2]:
            canvas.reset()
        self._bars_drawn = mark
        data = bars(lane, self.options)
        canvas.show_bars(data)
        metrics = lane.series
        means = [float(phase.mean()) for phase in metrics.phases_ms()]
        order = (("verify", 1), ("draft", 0), ("other", 2))
        entries = [(-1 - phase, label, f"{means[phase]:.1f}") for label, phase in order]
        self.phases.values.show_entries(entries)
        each = "ms, means in key" if data.rounds == 1 else f"ms, bars of {data.rounds} rounds"
        self.phases.formula.setText(each)
        self.phases.say("")

    def _restyle(self) -> None:
        for card in (*self.cards.values(), self.phases):
            card.restyle()
        if self._canvas_module is not None:
            self.phases.canvas.restyle() if self.phases.canvas is not None else None
        self._start_anew()
        self.refresh()


__all__ = ["PlotStrip", "lane_colour"]
