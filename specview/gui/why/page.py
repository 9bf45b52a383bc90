"""The Why tab: for each lane of the race on screen, why it is as fast as it is, and what would be faster."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtGui import QFont
from PySide6.QtWidgets import (
    QFrame,
    QPushButton,
    QSizePolicy,
    QStackedWidget,
    QToolButton,
    QWidget,
)

from specview.decoding.details import details_of
from specview.errors import SpecviewError
from specview.files.report import Report
from specview.gui.link.job import JobEnded, JobProgress
from specview.gui.link.pace import Later
from specview.gui.parts import layout, theme
from specview.gui.parts.pages import RACE, Page, PageContext, tabs_over
from specview.gui.parts.pass_times import PassMeasuring
from specview.gui.parts.report_view import ReportView
from specview.gui.parts.serve_dialog import ServeDialog
from specview.gui.parts.widgets import Choice, ElidedLabel, Scrolled, button, label, set_kind, set_tip
from specview.gui.state import lane_words
from specview.gui.state.display_text import visible
from specview.gui.state.view_model import LaneModel, target_of
from specview.gui.why.charts import DetailView, LengthChart, PredictionChart, WaterfallView
from specview.gui.why.figures import FigureTable
from specview.gui.why.what_if import WhatIfPanel
from specview.lab.explain import explain_lane, per_round
from specview.lab.explain_report import explanation_blocks
from specview.lab.explanation import Banner, Explanation
from specview.racing.resolve import checked_run
from specview.settings.run import TARGET_FIELDS, RunSettings

VIEWS = ("Explanation", "Rounds and tokens", "All figures", "What-if")
_SHARE = 0.05
"""Of the Qt thread's time: what this page may take while a race runs."""


class BannerRow(QWidget):
    """Warnings as chips in one row, the chosen one's words beneath; the room is kept, so nothing jumps."""

    def __init__(self, before: QWidget) -> None:
        """`before` is what Tab stops at before the chips."""
        super().__init__()
        self._before = before
        self.banners: tuple[Banner, ...] = ()
        self.dismissed: set[str] = set()
        self._chosen = ""
        self._row = layout.row(1, gap=theme.px(6))
        self.words = ElidedLabel("", "small")
        layout.column(self._row, self.words, on=self, gap=theme.px(2))
        self._chips: list[tuple[QFrame, QToolButton]] = []
        self._fit()
        theme.signals.changed.connect(self._fit)

    def _fit(self) -> None:
        self.setFixedHeight(theme.px(46))

    def show_banners(self, banners: Sequence[Banner]) -> None:
        """Show these, but for the kinds that were dismissed."""
        shown = tuple(banner for banner in banners if banner.kind not in self.dismissed)
        if shown == self.banners and self._chips:
            return
        kinds = [banner.kind for banner in shown]
        if [banner.kind for banner in self.banners] != kinds or not self._chips:
            self._rebuild(shown)
        self.banners = shown
        for banner, (_, chip) in zip(shown, self._chips, strict=True):
            chip.setText(f"! {banner.short}")
            set_tip(chip, banner.text)
        if self._chosen not in kinds:
            self._chosen = kinds[0] if kinds else ""
        self._say()

    def _rebuild(self, banners: Sequence[Banner]) -> None:
        for chip, _ in self._chips:
            self._row.removeWidget(chip)
            chip.hide()
            chip.deleteLater()
        self._chips = []
        for place, banner in enumerate(banners):
            chip = QFrame()
            chip.setObjectName("banner")
            chip.setProperty("kind", "warning")
            words = button(QToolButton, "", "", partial(self.choose, banner.kind), kind="caption")
            close = button(QToolButton, "×", "Dismiss this warning for this lane's run", partial(self.dismiss, banner.kind),
                           kind="caption", name="Dismiss")  # fmt: skip
            layout.row(words, close, on=chip, gap=0, margins=(theme.px(6), 0, theme.px(2), 0))
            self._row.insertWidget(place, chip)
            self._chips.append((chip, words))
        layout.tab_order(self._before, *layout.stops(*(chip for chip, _ in self._chips)))

    def choose(self, kind: str, _: bool = False) -> None:
        """Show a banner's words."""
        self._chosen = kind
        self._say()

    def dismiss(self, kind: str, _: bool = False) -> None:
        """Take a banner away until the lane's next run."""
        self.dismissed.add(kind)
        self.show_banners(self.banners)

    def _say(self) -> None:
        chosen = next((banner.text for banner in self.banners if banner.kind == self._chosen), "")
        self.words.set_full(chosen or "No warnings.")


class WhyPage(Page):
    """Lane chooser, sentence, warnings, and four views: the explanation, rounds and tokens, all figures, what-if."""

    def __init__(self, context: PageContext) -> None:
        super().__init__(context)
        self.controller = context.controller
        self._shown: tuple[Any, ...] = ()
        self._open = False
        self._lane_place = -1
        self._followed: tuple[int, int] = (-1, -1)
        self._measuring = PassMeasuring(context)
        self._not_measured = ""
        self._rest_until = self._began = 0.0
        self._drawn = Later(self, 0, self._rest)  # once the charts have drawn, which they do in timers of their own
        self.explanation: Explanation | None = None
        self._build()
        controller = self.controller
        controller.number_tick.connect(self._tick)
        controller.lanes_changed.connect(self._lanes_changed)
        controller.state_changed.connect(self._state_changed)
        self._measuring.progressed.connect(self._progressed)
        self._measuring.ended.connect(self._measured)
        context.selection.round_selected.connect(self._round_selected)
        theme.signals.changed.connect(self._restyle)
        self._restyle()
        self._lanes_changed()

    # -- layout ----------------------------------------------------------------------------------

    def _build(self) -> None:
        self.lanes = Choice()
        self.lanes.setAccessibleName("Lane to explain")
        self.lanes.setMinimumContentsLength(18)
        set_tip(self.lanes, "The lane that is explained")
        self.lanes.currentIndexChanged.connect(lambda _: self._lane_chosen())
        self.measure = button(QPushButton, "Measure v(k)", "", self.measure_v)
        self.measured_words = ElidedLabel("", "small")
        self.median = button(QPushButton, "Median", "The lane's median rounds as one waterfall", lambda: self.set_per_round(False))
        self.per_round = button(QPushButton, "Per round", "One bar a round; a click selects it in the race",
                                lambda: self.set_per_round(True))  # fmt: skip
        for one in (self.median, self.per_round):
            one.setCheckable(True)
            one.setAutoExclusive(True)
        self.median.setChecked(True)
        self.serve = button(QPushButton, "Command for a server…", "What starts a serving engine with this lane", self.serve_lane, kind="flat")
        top = layout.row(
            label("Lane", "muted"), self.lanes, self.measure, (self.measured_words, 1), self.serve, gap=theme.px(8)
        )
        self.sentence = label("")
        self.sentence.setWordWrap(True)
        self.sentence.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.sentence.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        self.sentence.setAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        self.banners = BannerRow(self.measure)
        self.waterfall = WaterfallView()
        self.predictions = PredictionChart()
        self.lengths = LengthChart()
        self.facts = ReportView("Figures of the explanation")
        self.details = DetailView()
        self.figures = FigureTable()
        self.waterfall.picked.connect(self._picked)
        self.details.timeline.picked.connect(self._picked)
        explained, what_if = QWidget(), QWidget()
        grid = layout.grid((self.waterfall, self.predictions, self.lengths, self.facts), 2, on=explained, gap=8, shares=(2, 1))
        grid.setColumnStretch(0, 3)
        self.what_if: WhatIfPanel | None = None  # made when it is first looked at
        self._what_if_slot = layout.column(on=what_if)
        shown = Scrolled(explained, 360), Scrolled(self.details, 400), self.figures, Scrolled(what_if, 420)
        self.views, self.stack = tabs_over("Views of the explanation", dict(zip(VIEWS, shown, strict=True)))
        self.views.currentChanged.connect(self._view_changed)
        content = QWidget()
        layout.column(
            top, self.sentence, self.banners,
            layout.row((self.views, 1), self.median, self.per_round, gap=theme.px(6)), (self.stack, 1), on=content,
            gap=theme.px(5), margins=(12, 8, 12, 10)
        )
        self.whole = QStackedWidget()
        self.whole.addWidget(self._empty_view())
        self.whole.addWidget(content)
        layout.column(self.whole, on=self)

    def serve_lane(self) -> None:
        """Show what starts a serving engine with the lane that is explained."""
        if self.lane is not None:
            ServeDialog(self.lane.name, self.lane.settings, self).open()

    def _empty_view(self) -> QWidget:
        view = QWidget()
        self.empty_words = label(
            "Run a race, or open a recorded run from Runs. This page then says for each lane why it is fast or slow here, "
            "what the formulas predict, where it breaks even and which draft length would be best.", "muted",
        )  # fmt: skip
        self.empty_words.setWordWrap(True)
        self.empty_words.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.empty_button = button(QPushButton, "Go to the race", "", lambda: self.context.goto(RACE))
        centre = Qt.AlignmentFlag.AlignHCenter
        layout.column(2, (self.empty_words, 0, centre), (self.empty_button, 0, centre), 3, on=view, gap=theme.px(16), margins=None)
        return view

    def _restyle(self) -> None:
        # Wrapped words that are centred in a column get the height of fewer lines: both are given.
        self.empty_words.setFixedWidth(min(theme.px(560), 600))
        self.empty_words.setFixedHeight(self.empty_words.heightForWidth(self.empty_words.width()))
        font = QFont(theme.ui_font(18, bold=True))
        self.sentence.setFont(font)
        self.sentence.setFixedHeight(2 * self.sentence.fontMetrics().lineSpacing() + theme.px(4))
        self._again()

    # -- the page --------------------------------------------------------------------------------

    def opened(self) -> None:
        """Show what there is now."""
        self._open = True
        self._shown = ()
        self.refresh()

    def left(self) -> None:
        """Stop drawing."""
        self._open = False

    def shut(self) -> None:
        """End what what-if runs on threads of its own."""
        if self.what_if is not None:
            self.what_if.shut()

    def kept(self) -> dict[str, Any]:
        """The view and how the waterfall is shown."""
        return {"view": VIEWS[self.views.currentIndex()], "per_round": self.waterfall.per_round}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Take the view and how the waterfall is shown."""
        if kept.get("view") in VIEWS:
            self.views.setCurrentIndex(VIEWS.index(kept["view"]))
        if isinstance(kept.get("per_round"), bool):
            self.set_per_round(kept["per_round"])

    @property
    def lane(self) -> LaneModel | None:
        """The lane that is explained."""
        return self.controller.race.lane(self._lane_place)

    @property
    def calibrated(self) -> Mapping[int, float] | None:
        """Seconds of the target's passes by rows, where they were measured for the lane's target."""
        return None if self.lane is None else self._measuring.known.get(target_of(self.lane.settings))

    def show_lane(self, place: int) -> None:
        """Explain this lane of the race."""
        if 0 <= place < len(self.controller.race.lanes):
            self._lane_place = place
            self._name_lanes()
            self._shown = ()
            self.refresh()

    def _again(self) -> None:
        """What is shown is stale: show it anew, now or when the page is opened."""
        self._shown = ()
        if self._open:
            self.refresh()

    def set_per_round(self, on: bool) -> None:
        """Show single rounds in the waterfall, or their medians."""
        (self.per_round if on else self.median).setChecked(True)
        self.waterfall.set_per_round(on)
        self._again()

    def _view_changed(self, place: int) -> None:
        self.stack.setCurrentIndex(place)
        for one in (self.median, self.per_round):
            one.setVisible(place == 0)
        self._again()

    def _lanes_changed(self) -> None:
        lanes = self.controller.race.lanes
        if not 0 <= self._lane_place < len(lanes) or lanes[self._lane_place].plain:
            self._lane_place = next((place for place, lane in enumerate(lanes) if not lane.plain), 0 if lanes else -1)
        self._name_lanes()
        self._again()

    def _name_lanes(self) -> None:
        items = tuple(
            (str(place), f"{visible(lane.name)}{f' ({lane_words.LOSSY})' if lane_words.lossy(lane.settings) else ''}")
            for place, lane in enumerate(self.controller.race.lanes)
        )
        self.lanes.blockSignals(True)
        self.lanes.set_items(items)
        self.lanes.set_value(str(self._lane_place))
        self.lanes.blockSignals(False)

    def _lane_chosen(self) -> None:
        value = self.lanes.value()
        if value and int(value) != self._lane_place:
            self._not_measured = ""
            self._lane_place = int(value)
            self._shown = ()
            self.refresh()

    # -- drawing ---------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = time.perf_counter()
        if self._open and (now >= self._rest_until or not self.controller.racing):
            self._began = now
            self.refresh()
            self._drawn.start()

    def _rest(self) -> None:
        """Rest after a refresh, the longer the more it took with the charts' redraws."""
        now = time.perf_counter()
        self._rest_until = now + (now - self._began) / _SHARE

    def refresh(self) -> None:
        """Show the chosen lane as it stands; only what is in front is drawn."""
        lane, race = self.lane, self.controller.race
        if lane is None or not any(other.rounds for other in race.lanes):
            self.whole.setCurrentIndex(0)
            return
        self.whole.setCurrentIndex(1)
        plain = race.baseline
        beside = plain.version if plain is not None else -1
        state = (id(lane), lane.generation, lane.version, beside, self.views.currentIndex(), self.waterfall.per_round,
                 len(self.calibrated or ()), len(race.lanes))  # fmt: skip
        if state == self._shown:
            return
        self._shown = state
        if self._followed != (id(lane), lane.generation):
            self._followed = id(lane), lane.generation
            self.banners.dismissed.clear()
        metrics = race.metrics(lane)
        apart = plain is None or plain is lane or bool(lane.differs)  # a lane of another run has no plain one here
        together = [] if apart else [one for one in race.lanes if not one.differs]
        found = explain_lane(lane, together, None if apart else plain, race.speedup, calibrated=self.calibrated, metrics=metrics)
        self.explanation = found
        self.sentence.setText(found.sentence)
        self.banners.show_banners(found.banners)
        self._name_measure()
        view = self.views.currentIndex()
        if view == 0:
            self._show_explanation(found, lane)
        elif view == 1:
            self.details.show_details(details_of(lane.table), metrics, self._lane_place)
        elif view == 2:
            self.figures.show_race(race)
        else:
            self._show_what_if(lane, None if apart else plain)
        self._mark_selected()

    def _show_explanation(self, found: Explanation, lane: LaneModel) -> None:
        place = self._lane_place
        if self.waterfall.per_round:
            falls = () if found.costs is None else per_round(lane.rounds, found.costs)
            self.waterfall.show_rounds(falls, place)
        else:
            why = "This lane is plain decoding itself." if lane.plain else ""
            self.waterfall.show_fall(found.waterfall, place, why)
        self.predictions.show_predictions(found, place)
        self.lengths.show_lengths(found, place)
        self.facts.show_report(Report("", list(explanation_blocks(found))))

    def _show_what_if(self, lane: LaneModel, plain: LaneModel | None) -> None:
        if self.what_if is None:
            self.what_if = WhatIfPanel(self.context)
            self._what_if_slot.addWidget(self.what_if)
        self.what_if.show_lane(lane, plain, self.calibrated)

    # -- the selected round ----------------------------------------------------------------------

    def _picked(self, round_index: int) -> None:
        lane = self.lane
        if lane is not None and 0 <= round_index < len(lane.rounds):
            self.context.selection.select(self._lane_place, round_index, self)
            self._mark_selected()

    def _round_selected(self, lane: int, round_index: int, source: object) -> None:
        if source is self:
            return
        if lane != self._lane_place and 0 <= lane < len(self.controller.race.lanes):
            self._lane_place = lane
            self._name_lanes()
            self._shown = ()
        if self._open:
            self.refresh()
            self._mark_selected()

    def _mark_selected(self) -> None:
        selection = self.context.selection
        place = selection.round if selection.lane == self._lane_place else -1
        if self.waterfall.per_round:
            self.waterfall.select(place)
        self.details.timeline.select(place)

    # -- measuring v(k) --------------------------------------------------------------------------

    def _state_changed(self) -> None:
        self._name_measure()
        if self._open and not self.controller.racing:
            self.refresh()

    def _name_measure(self) -> None:
        busy = self.controller.busy_with
        running = self._measuring.running
        self.measure.setEnabled(not busy and self.lane is not None)
        set_tip(self.measure, "The target's passes are being measured (Esc stops it)" if running
                else f"Wait: {busy} is under way" if busy
                else "Measure what target passes of 1 to 9 rows cost here (some seconds), so that the best k rests on measured v(k)")  # fmt: skip
        if running:
            return
        known = self.calibrated
        set_kind(self.measured_words, "warning" if self._not_measured else "small")
        words = (
            f"v(k) measured here for passes of {min(known)} to {max(known)} rows" if known
            else "v(k) is known for the lengths that ran; others lie between them"
        )
        self.measured_words.set_full(self._not_measured or words)

    def measure_v(self) -> None:
        """Measure the target's passes for the lane on screen, on the engine thread."""
        lane, controller = self.lane, self.controller
        if lane is None or controller.busy_with:
            return
        try:
            settings = self._settings_for(lane)
        except SpecviewError as error:
            self.context.show_message(str(error))
            return
        if not self.context.confirm_models(settings):
            return
        k = max((round_.k for round_ in lane.rounds), default=0)
        self._measuring.measure(settings, target_of(lane.settings), k, afresh=True)
        self._not_measured = ""
        set_kind(self.measured_words, "small")
        self.measured_words.set_full("Measuring the target's passes…")
        self._name_measure()

    def _settings_for(self, lane: LaneModel) -> RunSettings:
        """The run's settings with the lane's own target: a lane on screen may be of an opened run."""
        base = self.controller.settings or self.context.run_settings()
        own = {name: lane.settings[name] for name in TARGET_FIELDS if name in lane.settings}
        same = own.get("target", base.target) == base.target and own.get("engine", base.engine) == base.engine
        return checked_run(replace(base, **own, trust_remote_code=base.trust_remote_code and same))

    def _progressed(self, news: JobProgress) -> None:
        self.measured_words.set_full(news.words)

    def _measured(self, ended: JobEnded) -> None:
        if not ended.result:
            self._not_measured = "v(k) was not measured: stopped." if ended.stopped else "v(k) was not measured."
        if ended.message:
            self.context.show_message(ended.message)
        self._name_measure()
        self._again()
