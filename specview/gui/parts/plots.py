"""Four live plots: acceptance rate, tokens per target pass, decode speed, and time per round or draft length.

pyqtgraph takes half a second to import, so it is imported off the Qt thread once the window is up; until then the cards
stand empty, with words.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

from PySide6 import QtCore, QtGui, QtWidgets
from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import QGridLayout, QMenu, QPushButton, QSizePolicy, QToolButton, QWidget

from specview.errors import SpecviewError
from specview.files.figures import METRICS, MISSING, number, whole
from specview.gui.link.background import Background
from specview.gui.link.pace import Later
from specview.gui.parts import layout, theme
from specview.gui.parts.charts import Chart
from specview.gui.parts.plot_data import CurveName, PlotOptions, bars, curve, last, phases_ms, steps, thinned
from specview.gui.parts.widgets import button, menu_button
from specview.gui.state import lane_words
from specview.gui.state.display_text import tooltip, visible
from specview.gui.state.view_model import LaneModel, RaceModel

WINDOWS = (8, 16, 32, 64)
X_NAMES = {"position": "output tokens", "seconds": "lane seconds (s)"}
CARD_PX = 196
_IMPORT_AFTER_MS = 50
_SHARE = 0.06
_LONGEST_REST_S = 0.4
_VALUES_S = 0.45
_EMPTY = "Fills as rounds come"

CURVES: tuple[tuple[CurveName, str, str, float], ...] = (
    ("acceptance_rate", "Acceptance rate α", "accepted / judged", 1.0),
    ("tokens_per_target_pass", "Tokens per target pass", "emitted / passes", 2.0),
    ("decode_tokens_per_s", "Decode speed", "tokens / s", 0.0),
)
PHASES = (("verify", 1), ("draft", 0), ("other", 2))
"""As they are stacked, with their places among the phases of a round."""
FOURTH = {"time": "Time per round", "k": "Draft length k, each round", "mean-k": "Draft length k, mean"}
"""What the fourth plot can show, by the names that are remembered."""
_LENGTH_TIPS = {
    "k": ("of each round", "Draft length k = drafted tokens of a round; 0 for a round without a draft.\nOf a tree "
          "all its tokens count. In the key: the last round's."),
    "mean-k": ("drafted / rounds", "Mean draft length = drafted tokens / rounds, running or over the last rounds as "
               "chosen above.\nRounds without a draft count as 0, unlike the mean k of the formulas."),
}


def line_width() -> float:
    """Width of live curves: 1, which is drawn three times faster than 2, unless all is scaled up."""
    return 1.0 if theme.font_scale() < 1.5 else 1.6


class PlotStrip(QWidget):
    """The four plots of a race and what they run over; `fourth_changed` tells what the fourth one shows."""

    fourth_changed = Signal(str)

    def __init__(self, race: RaceModel, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.race = race
        self.options = PlotOptions()
        self.loaded = False
        self._lane: LaneModel | None = None
        self._drawn: dict[int, tuple[LaneModel, int, int]] = {}
        self._bars_drawn: tuple[Any, ...] = ()
        self._last: dict[tuple[str, int], float | None] = {}
        self._import = Background(self, "pyqtgraph import")
        self._import.failed.connect(self._not_imported)
        self._importing = Later(self, _IMPORT_AFTER_MS, self._begin_import)
        self._unmade = [QtCore, QtGui, QtWidgets]
        self._late = Later(self, 0, self._catch_up)
        self._late_name = Later(self, 0, self._name_lane)  # once the layout has given the card its width
        self._rest_until = self._values_after = self._painted_before = 0.0
        self.cards = {
            name: Chart(title, formula, METRICS[name].tooltip(), live=True, floor=floor)
            for name, title, formula, floor in CURVES
        }
        self.phases = Chart("Time per round", "ms", "Time of each round on the lane's clock: the target pass (verify), "
                            "drafting, and the rest.\nMeans of several rounds where there are many.", live=True)
        self.lengths = Chart("Draft length k", live=True, floor=2.0)
        self.fourth = "time"
        self._choosers = {card: self._chooser_button() for card in (self.phases, self.lengths)}
        self._over = self._menu_button("What the plots run over")
        self._rates = self._menu_button("Running rates, or rates of the last rounds")
        self._back = button(QToolButton, "‹ plots", slot=lambda: self._turn(-1), kind="caption")
        self._forth = button(QToolButton, "more plots ›", slot=lambda: self._turn(1), kind="caption")
        self._first = 0
        self._lane_button = self._menu_button("The lane whose round times are shown")
        self._lane_button.menu().aboutToShow.connect(self._fill_lanes)
        self._build()
        theme.signals.changed.connect(self._restyle)
        self._name_options()

    def _menu_button(self, tip: str) -> QToolButton:
        made, _ = menu_button("", tip)
        made.setProperty("kind", "caption")
        return made

    @staticmethod
    def _chooser_button() -> QPushButton:
        """A title that is a button: what the fourth plot shows."""
        made = button(QPushButton, "", "What this plot shows: time per round, or draft length k over time", kind="headline")
        made.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)
        made.setMenu(QMenu(made))
        return made

    def _build(self) -> None:
        line = layout.row(self._over, self._rates, 1, self._back, self._forth, margins=(theme.px(2), 0, theme.px(2), 0))
        self._grid = QGridLayout()
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setSpacing(8)
        for card in self._all_cards():
            card.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Expanding)
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

    def _all_cards(self) -> list[Chart]:
        return [*self.cards.values(), self.phases, self.lengths]

    def _slots(self) -> list[Chart]:
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
        for turn, can in ((self._back, self._first > 0), (self._forth, self._first < len(cards) - count)):
            turn.setVisible(count < len(cards))
            turn.setEnabled(can)

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
        menus: list[tuple[QToolButton | QPushButton, list[tuple[str, Any]], Callable[[Any], None]]] = [
            (self._over, [(name, {"over": over}) for over, name in X_NAMES.items()], self._option_chosen),
            (self._rates, [("running, from the first round", {"window": None}),
                           *((f"over the last {n} rounds", {"window": n}) for n in WINDOWS)], self._option_chosen),
            *((chooser, [(text, name) for name, text in FOURTH.items()], self._fourth_chosen)
              for chooser in self._choosers.values()),
        ]  # fmt: skip
        for chooser, entries, choose in menus:
            for text, value in entries:
                action = chooser.menu().addAction(text)
                action.setCheckable(True)
                action.setData(value)
                action.triggered.connect(lambda _=False, choose=choose, value=value: choose(value))
        self._name_fourth()

    def _option_chosen(self, change: dict[str, Any]) -> None:
        self.set_options(**change)
        self._name_options()  # choosing what is on already must not take its tick away

    def _fourth_chosen(self, name: str) -> None:
        self.set_fourth(name)
        self._name_fourth()  # likewise

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
        self.lengths.clear()
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
        for chooser in (self._over, self._rates):
            for action in chooser.menu().actions():
                change = action.data()
                action.setChecked(all(getattr(self.options, key) == value for key, value in change.items()))
        for card in self._all_cards():
            card.name_axes(x=X_NAMES[self.options.over])

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

    # -- pyqtgraph -----------------------------------------------------------------------------------

    def showEvent(self, event: QShowEvent) -> None:
        """Begin to import pyqtgraph once the window is on screen."""
        super().showEvent(event)
        if not self.loaded and not self._import.busy:
            self._importing.start()

    def _begin_import(self) -> None:
        """Import pyqtgraph off the Qt thread. It asks for all of Qt's types: they are made on this thread first, some at a
        time, since a type that another thread makes while Qt uses it has ended the process.
        """
        if self._unmade:
            module = self._unmade.pop()
            for name in dir(module):
                getattr(module, name)
            self._importing.start()
        else:
            self._import.only(_import_plots, lambda _: self.load())

    def load(self) -> None:
        """Make the plots now, importing pyqtgraph if that has not happened yet."""
        if self.loaded:
            return
        try:
            _import_plots()
        except SpecviewError as error:
            self._not_imported(str(error))
            return
        self.loaded = True
        for card in self._all_cards():
            card.attach()
        self._start_anew()
        self.refresh(now=True)

    def _not_imported(self, line: str) -> None:
        for card in self._all_cards():
            card.say(line)

    # -- drawing -------------------------------------------------------------------------------------

    def _start_anew(self) -> None:
        self._drawn.clear()
        self._last.clear()
        self._bars_drawn = ()
        for card in self._all_cards():
            card.clear()

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
        if self.loaded:
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
        return sum(card.plot.paint_s for card in self._all_cards() if card.plot is not None)

    def _catch_up(self) -> None:
        """Draw what was put off, and the last values."""
        if not self.refresh(now=True):
            self._show_values()

    def _curve(self, card: Chart, kind: str, index: int, x: Any, y: Any) -> None:
        if len(x):
            name = self.race.lanes[index].name
            card.curve(str(index), x, y, title=name, lane=index, head=True, width_px=line_width())
            self._last[kind, index] = last(y)

    def _draw_lane(self, index: int, lane: LaneModel) -> None:
        for name, card in self.cards.items():
            if not (name == "acceptance_rate" and lane.plain):
                x, y = curve(lane, name, self.options)
                self._curve(card, name, index, *thinned(x, y))
        self._draw_length(index, lane)

    def _draw_length(self, index: int, lane: LaneModel) -> None:
        """Draw a lane's k, where that is what the fourth plot shows."""
        if self.fourth != "time" and self.loaded and not lane.plain and len(lane.table):
            mean = self.fourth != "k"
            points = thinned(*curve(lane, "draft_length", self.options)) if mean else steps(lane, self.options)
            self._curve(self.lengths, "draft_length", index, *points)

    def _show_values(self) -> None:
        """Show each lane's last figures in the keys, a little more rarely than curves."""
        for name, card in self.cards.items():
            lanes = [lane for lane in self.race.lanes if not (name == "acceptance_rate" and lane.plain)]
            said = self._show_lanes(card, name, METRICS[name].text, lanes)
            empty = "Nothing was judged yet" if said else _EMPTY
            card.say("" if any(not value.startswith(MISSING) for value in said) else empty)
        if self.fourth == "time":
            self._show_phase_values()
            return
        drafting = [lane for lane in self.race.lanes if not lane.plain]
        said = self._show_lanes(self.lengths, "draft_length", whole if self.fourth == "k" else number, drafting)
        self.lengths.say("" if said else _EMPTY if drafting else "No lane drafts")

    def _show_lanes(self, card: Chart, kind: str, form: Any, lanes: list[LaneModel]) -> list[str]:
        """Say the last figure of each of these lanes that has rounds; called lossy where its rule is."""
        said = {}
        for index, lane in enumerate(self.race.lanes):
            if len(lane.table) and any(lane is one for one in lanes):
                lossy = f" {lane_words.LOSSY}" if lane_words.lossy(lane.settings) else ""
                said[str(index)] = f"{form(self._last.get((kind, index)))}{lossy}"
        card.set_values(said)
        return list(said.values())

    def _draw_phases(self) -> None:
        if self.fourth != "time":
            return
        lane = self._phase_lane()
        self._name_lane()
        if lane is None or not len(lane.table):
            self.phases.clear()
            self.phases.say(_EMPTY)
            return
        mark = (lane, lane.generation, len(lane.table), self.options)
        if not self.loaded or mark == self._bars_drawn:
            return
        other_lane = self._bars_drawn[:2] != mark[:2]
        if other_lane:
            self.phases.clear()
        self._bars_drawn = mark
        data = bars(lane, self.options)
        below = 0.0 * data.left
        for name, _ in PHASES:
            height = getattr(data, name)
            self.phases.bars(name, (data.left + data.right) / 2, height, bottom=below, width=data.right - data.left,
                             colour=f"phase {dict(PHASES)[name]}")  # fmt: skip
            below = below + height
        self.phases.headline.set_formula("ms" if data.rounds == 1 else f"ms, bars of {data.rounds} rounds")
        self.phases.say("")
        if other_lane:
            self._show_phase_values()

    def _show_phase_values(self) -> None:
        """Show the mean of each phase in the key."""
        lane = self._phase_lane()
        if lane is not None and len(lane.table):
            means = [float(phase.mean()) for phase in phases_ms(lane.table)]
            self.phases.set_values({name: f"{means[place]:.1f}" for name, place in PHASES})

    def _restyle(self) -> None:
        self._arrange()
        self._start_anew()
        self.refresh(now=True)


def _import_plots() -> None:
    """Import on the side: the window stays alive meanwhile. Widgets are made on the Qt thread."""
    try:
        importlib.import_module("specview.gui.parts.chart_plot")
    except ImportError as error:
        raise SpecviewError(f"No plots: pyqtgraph cannot be imported ({error}).") from error
