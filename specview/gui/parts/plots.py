"""Three live plots: acceptance rate, tokens per target pass, and decode speed, time per round or draft length.

What they run over is in their menus, on the right button (or the menu key); the third's title chooses what it shows.

pyqtgraph takes half a second to import, so it is imported off the Qt thread once the window is up; until then the cards
stand empty, with words.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from PySide6 import QtCore, QtGui, QtWidgets
from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QResizeEvent, QShowEvent
from PySide6.QtWidgets import QMenu, QSizePolicy, QToolButton, QWidget

from specview.errors import SpecviewError
from specview.files.figures import METRICS, MISSING, number, whole
from specview.gui.link.background import Background
from specview.gui.link.pace import Later
from specview.gui.parts import layout, theme
from specview.gui.parts.charts import Chart
from specview.gui.parts.plot_data import CurveName, PlotOptions, bars, curve, last, phases_ms, steps, thinned
from specview.gui.parts.widgets import menu_button
from specview.gui.state import lane_words
from specview.gui.state.display_text import tooltip, visible
from specview.gui.state.view_model import LaneModel, RaceModel

WINDOWS = (8, 16, 32, 64)
X_NAMES = {"position": "output tokens", "seconds": "lane seconds (s)"}
_IMPORT_AFTER_MS = 50
_SHARE = 0.06
_LONGEST_REST_S = 0.4
_VALUES_S = 0.45
_EMPTY = "Fills as rounds come"

CURVES: tuple[tuple[CurveName, str, str, float], ...] = (
    ("acceptance_rate", "Acceptance rate", "accepted / judged", 1.0),
    ("tokens_per_target_pass", "Tokens per target pass", "emitted / passes", 2.0),
    ("decode_tokens_per_s", "Speed", "tokens/s", 0.0),
)
PHASES = (("verify", 1), ("draft", 0), ("other", 2))
"""As they are stacked, with their places among the phases of a round."""
THIRD = {"speed": "Speed, tokens/s", "time": "Time per round", "k": "Draft length k, each round", "mean-k": "Draft length k, mean"}
"""What the third plot can show, by the names that are remembered."""
_LENGTH_TIPS = {
    "k": ("of each round", "Draft length k = drafted tokens of a round; 0 for a round without a draft.\nOf a tree "
          "all its tokens count. Beside the title: the last round's."),
    "mean-k": ("drafted / rounds", "Mean draft length = drafted tokens / rounds, running or over the last rounds as "
               "chosen in the plot's menu.\nRounds without a draft count as 0, unlike the mean k of the formulas."),
}


def line_width() -> float:
    """Width of live curves: 1, which is drawn three times faster than 2, unless all is scaled up."""
    return 1.0 if theme.font_scale() < 1.5 else 1.6


class PlotStrip(QWidget):
    """The three plots of a race; `third_changed` tells what the third one shows."""

    third_changed = Signal(str)

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
        self.asked_again: Callable[[], bool] = lambda: False  # whether refresh will be called again without a change
        self._late = Later(self, 0, self._catch_up)
        self._late_name = Later(self, 0, self._name_lane)  # once the layout has given the card its width
        self._values_due = False  # curves were drawn, and their last figures not told yet
        self._rest_until = self._values_after = self._painted_before = 0.0
        self.cards = {
            name: Chart(title, formula, METRICS[name].tooltip(), live=True, floor=floor)
            for name, title, formula, floor in CURVES
        }
        self.phases = Chart("Time per round", "ms", "Time of each round on the lane's clock: the target pass (verify), "
                            "drafting, and the rest.\nMeans of several rounds where there are many.", live=True)
        self.lengths = Chart("Draft length k", live=True, floor=2.0)
        self.third = "speed"
        self._thirds = (self.cards["decode_tokens_per_s"], self.phases, self.lengths)
        self._choosers = {card: self._chooser_button() for card in self._thirds}
        self._build()
        theme.signals.changed.connect(self._restyle)
        self._name_options()

    def _chooser_button(self) -> QToolButton:
        """Stands in the title of the third plot, and chooses what it shows."""
        made, menu = menu_button("", "What this plot shows: speed, time per round of a lane, or draft length k over time")
        made.setProperty("kind", "caption")
        menu.aboutToShow.connect(lambda: self._fill_chooser(menu))
        return made

    def _fill_chooser(self, menu: QMenu) -> None:
        menu.clear()
        for name, text in THIRD.items():
            self._add_choice(menu, text, name == self.third, partial(self.set_third, name))
        menu.addSeparator()
        for lane in self.race.lanes if self.third == "time" else ():
            text = visible(lane_words.title(lane)).replace("&", "&&")
            self._add_choice(menu, f"Round times of {text}", lane is self._phase_lane(), partial(self.select_lane, lane))

    @staticmethod
    def _add_choice(menu: QMenu, text: str, on: bool, choose: Callable[[], object]) -> None:
        action = menu.addAction(text)
        action.setCheckable(True)
        action.setChecked(on)
        action.triggered.connect(lambda: choose())

    def _build(self) -> None:
        row = layout.row(on=self, gap=8)
        for card in self._all_cards():
            card.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Expanding)
            card.more_actions = self._add_options
            row.addWidget(card, 1)
        for card, chooser in self._choosers.items():
            card.head.insertWidget(1, chooser)
        self._name_third()
        self._arrange()
        self._fit()

    def _fit(self) -> None:
        """Follow the font: what stands in a title makes it no higher."""
        for chooser in self._choosers.values():
            chooser.setFixedHeight(theme.px(18))

    def _all_cards(self) -> list[Chart]:
        return [*self.cards.values(), self.phases, self.lengths]

    def _third_card(self) -> Chart:
        """The card of what the third plot shows."""
        return self._thirds[("speed", "time").index(self.third) if self.third in ("speed", "time") else 2]

    def _arrange(self) -> None:
        for card in self._thirds:
            card.setVisible(card is self._third_card())

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Cut the lane's name to the new room."""
        super().resizeEvent(event)
        self._late_name.start()

    def sizeHint(self) -> QSize:
        """As the mock: a strip of about 140 pixels."""
        return QSize(theme.px(900), theme.px(140))

    def minimumSizeHint(self) -> QSize:
        """Low enough for a small screen."""
        return QSize(theme.px(320), theme.px(90))

    # -- options -------------------------------------------------------------------------------------

    def _add_options(self, menu: QMenu) -> None:
        """Put what the plots run over into a plot's menu."""
        menu.addSeparator()
        for over, name in X_NAMES.items():
            self._add_option(menu, f"All plots over {name.partition(' (')[0]}", over=over)
        menu.addSeparator()
        self._add_option(menu, "Running rates, from the first round", window=None)
        for rounds in WINDOWS:
            self._add_option(menu, f"Rates of the last {rounds} rounds", window=rounds)

    def _add_option(self, menu: QMenu, text: str, **change: Any) -> None:
        on = all(getattr(self.options, key) == value for key, value in change.items())
        self._add_choice(menu, text, on, lambda: self.set_options(**change))

    def set_third(self, name: str) -> None:
        """Let the third plot show tokens/s ('speed'), time per round ('time'), k of each round ('k') or its mean ('mean-k')."""
        if name not in THIRD or name == self.third:
            return
        focused = any(chooser.hasFocus() for chooser in self._choosers.values())
        self.third = name
        self._name_third()
        self._arrange()
        if focused:
            self._chooser().setFocus()
        self._bars_drawn = ()
        self.lengths.clear()
        for index, lane in enumerate(self.race.lanes):
            self._draw_length(index, lane)
        self._draw_phases()
        self._show_values()
        self.third_changed.emit(name)

    def _chooser(self) -> QToolButton:
        return self._choosers[self._third_card()]

    def _name_third(self) -> None:
        for card, chooser in self._choosers.items():
            if card is not self.phases:
                chooser.setText("· time per round ▾" if card is self._thirds[0] else "· speed ▾")
            chooser.setAccessibleName(f"What the third plot shows: {THIRD[self.third]}")
        if self.third in _LENGTH_TIPS:
            formula, tip = _LENGTH_TIPS[self.third]
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
        for card in self._all_cards():
            card.name_axes(x=X_NAMES[self.options.over])

    def _name_lane(self) -> None:
        """Name the lane whose times are shown, cut where the card is narrow: the title needs the room."""
        lane, chooser = self._phase_lane(), self._choosers[self.phases]
        name = "speed" if lane is None else visible(lane_words.title(lane))
        room = max((self.phases.width() - self.phases.headline.title_width()) // 2 - theme.px(30), theme.px(24))
        shown = chooser.fontMetrics().elidedText(name, Qt.TextElideMode.ElideRight, room)
        if chooser.text() != f"· {shown} ▾":
            chooser.setText(f"· {shown} ▾")
            chooser.setAccessibleName(f"What the third plot shows: {THIRD['time']} of {name}")
            self.phases.give_room()

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
            if not (self.asked_again() or self._late.isActive()):
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
        self._values_due |= bool(changed)
        if self._values_due and (now or fresh or ended or clock >= self._values_after):
            self._values_after, self._values_due = clock + _VALUES_S, False
            self._show_values()
        if changed:
            cost = time.thread_time() - start + painted - self._painted_before
            self._painted_before = painted
            self._rest_until = clock + min(cost / _SHARE, _LONGEST_REST_S)
            if not (ended or self.asked_again() or self._late.isActive()):
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
            name = lane_words.title(self.race.lanes[index])
            card.curve(str(index), x, y, title=name, lane=index, head=True, width_px=line_width())
            self._last[kind, index] = last(y)
        elif self._last.pop((kind, index), None) is not None:
            card.remove(str(index))  # a replay went back before the lane's first round

    def _draw_lane(self, index: int, lane: LaneModel) -> None:
        for name, card in self.cards.items():
            if not (name == "acceptance_rate" and lane.plain):
                x, y = curve(lane, name, self.options)
                self._curve(card, name, index, *thinned(x, y))
        self._draw_length(index, lane)

    def _draw_length(self, index: int, lane: LaneModel) -> None:
        """Draw a lane's k, where that is what the third plot shows."""
        if self.third in _LENGTH_TIPS and self.loaded and not lane.plain and len(lane.table):
            mean = self.third != "k"
            points = thinned(*curve(lane, "draft_length", self.options)) if mean else steps(lane, self.options)
            self._curve(self.lengths, "draft_length", index, *points)

    def _show_values(self) -> None:
        """Show each lane's last figures in the keys, a little more rarely than curves."""
        for name, card in self.cards.items():
            lanes = [lane for lane in self.race.lanes if not (name == "acceptance_rate" and lane.plain)]
            said = self._show_lanes(card, name, METRICS[name].text, lanes)
            empty = "Nothing was judged yet" if said else _EMPTY
            card.say("" if any(not value.startswith(MISSING) for value in said) else empty)
        if self.third == "time":
            self._show_phase_values()
        if self.third not in _LENGTH_TIPS:
            return
        drafting = [lane for lane in self.race.lanes if not lane.plain]
        said = self._show_lanes(self.lengths, "draft_length", whole if self.third == "k" else number, drafting)
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
        if self.third != "time":
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
        self._fit()
        self._start_anew()
        self.refresh(now=True)


def _import_plots() -> None:
    """Import on the side: the window stays alive meanwhile. Widgets are made on the Qt thread."""
    try:
        importlib.import_module("specview.gui.parts.chart_plot")
    except ImportError as error:
        raise SpecviewError(f"No plots: pyqtgraph cannot be imported ({error}).") from error
