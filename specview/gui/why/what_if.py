"""What-if in the Why tab: sliders for k and the threshold, the length policies, and what they would have cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtWidgets import QLabel, QSlider, QStackedWidget, QWidget

from specview.decoding.ledger import RunRecord
from specview.drafting.policies import POLICIES
from specview.files.figures import MISSING, number, times
from specview.gui.link.background import Background
from specview.gui.link.pace import Later
from specview.gui.parts import layout, theme
from specview.gui.parts.charts import Chart
from specview.gui.parts.pages import PageContext
from specview.gui.parts.results_table import ResultsTable
from specview.gui.parts.widgets import Choice, ElidedLabel, Field, label, set_kind, set_tip
from specview.gui.state.display_text import tooltip, visible
from specview.gui.state.view_model import LaneModel
from specview.lab.what_if import what_if_of_race
from specview.lab.what_if_figures import COLUMNS, Alternative, Range, WhatIf, row_of
from specview.lab.what_if_lane import Replay
from specview.settings.run import MAX_K

THRESHOLDS = tuple(place / 20 for place in range(21))
"""What the slider of the threshold can be set to."""
CHART_THRESHOLDS = tuple(place / 10 for place in range(11))
WITH_THRESHOLD = {"confidence": "confidence threshold", "off-below": "acceptance threshold"}
"""Policies whose option `threshold` the slider sets, and what it is called."""
HOW = {
    "measured": "the run itself",
    "exact": "every answer is in the trace",
    "modelled": "the trace leaves something open that was answered by the drafter's record",
    "bounds": "the true figure lies within the range",
}
Form = Callable[[float | None], str]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the sliders ask for: a policy with its options, and k."""

    policy: str
    k: int
    threshold: float | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The policy's options."""
        return {} if self.threshold is None else {"threshold": self.threshold}


class Answer(QWidget):
    """One figure: what was recorded, and what would have been."""

    def __init__(self, caption: str, tip: str, form: Form) -> None:
        super().__init__()
        self._form = form
        self.value = label(MISSING, "title")
        self.recorded = label("", "small")
        layout.column(label(caption, "small"), self.value, self.recorded, on=self, gap=theme.px(1))
        set_tip(self, tip)
        self.setAccessibleName(caption)
        self.setMinimumWidth(theme.px(108))

    def show_figure(self, asked: Range | None, recorded: Range | None) -> None:
        """Show a figure with its range, and the recorded one beneath."""
        self.value.setText(range_text(asked, self._form))
        self.recorded.setText(f"recorded {self._form(None if recorded is None else recorded.value)}")


class WhatIfPanel(QWidget):
    """What other lengths and policies would have cost on the lane on screen; replays run off the Qt thread.

    answered: what the sliders ask for is shown now, or why it cannot be.
    """

    answered = Signal()

    def __init__(self, context: PageContext) -> None:
        super().__init__()
        self.context = context
        self.replay: Replay | None = None
        self.found: WhatIf | None = None
        self.answer: Alternative | None = None
        self._shown: tuple[Any, ...] = ()
        self._place = 0
        self._lengths: tuple[Alternative, ...] = ()
        self._overview, self._single, self._curve_work = (Background(self, "specview-what-if") for _ in range(3))
        self._overview.failed.connect(self._refused)
        self._overview.progressed.connect(lambda what, fraction: self.words.setText(f"{what}: {100 * fraction:.0f}%"))
        self._single.failed.connect(self._single_failed)
        self._curve_k = 0
        self._later = Later(self, 60, self._ask)
        self._build()
        theme.signals.changed.connect(self._draw)
        self._say("Run a race, or open a recorded run: this page then recomputes it with other draft lengths.")

    # -- layout ----------------------------------------------------------------------------------

    def _build(self) -> None:
        self.policy = Choice(tuple((info.name, info.label) for info in POLICIES.values()))
        self.policy.currentIndexChanged.connect(lambda _: self._changed())
        self.k, self.k_words, k = self._slider(1, 8, "Draft length k: drafted tokens a round, or the most of them")
        self.threshold, self.threshold_words, threshold = self._slider(0, len(THRESHOLDS) - 1, "The threshold of the policy")
        self.k_field, self.threshold_field = Field("draft length k", k), Field("threshold", threshold)
        self.figures = {
            "speedup": Answer("speedup", "plain's time / this one's, both by this run's measured costs", times),
            "tokens_per_pass": Answer("tokens per pass", "emitted tokens / target passes", number),
            "seconds": Answer("time", "of all rounds, by this run's measured costs: draft, pass and the rest", _seconds),
        }
        self.how = label("", "small")
        self.how.setMinimumWidth(theme.px(60))
        self.why = ElidedLabel("", "small")
        top = layout.row(
            Field("length policy", self.policy, "How many tokens each round drafts"), self.k_field, self.threshold_field,
            *self.figures.values(), 1, gap=theme.px(12)
        )
        self.over_k = Chart(
            "Predicted speedup over draft length", "plain's time / sum of (draft + pass + rest)",
            "Recomputed from the recorded rounds by this run's measured costs; the band is what the trace leaves open. The "
            "lines are oracles: always the right length, and always the right method of the race.",
            x="k, drafted tokens a round", y="times plain",
        )  # fmt: skip
        self.over_threshold = Chart(
            "Predicted speedup over the confidence threshold", "the draft ends after a token below it",
            "The confidence policy with the chosen k as its longest draft.",
            x="threshold, drafter's probability of its token", y="times plain",
        )  # fmt: skip
        self.tokens_over_k = Chart(
            "Tokens per target pass over draft length", "emitted / target passes",
            "Recomputed from the recorded rounds; no costs are in it.", x="k, drafted tokens a round", y="tokens",
        )  # fmt: skip
        for chart in (self.over_k, self.tokens_over_k):
            chart.picked.connect(self._picked_length)
        self.over_threshold.picked.connect(self._picked_threshold)
        hidden = ("speedup_low", "speedup_high", "rounds", "seconds", "cost_words", "why")
        self.table = ResultsTable(COLUMNS, identity="name", hidden=hidden, name="what-if")
        self.table.selected.connect(self._picked_row)
        self.sentence, self.notes = ElidedLabel("", ""), ElidedLabel("", "small")
        grid = layout.grid((self.over_k, self.table, self.tokens_over_k, self.over_threshold), 2, gap=theme.px(8), shares=(1, 1))
        content = QWidget()
        layout.column(
            top, layout.row(self.how, (self.why, 1), gap=theme.px(8)), self.sentence, (grid, 1), self.notes,
            on=content, gap=theme.px(5), margins=(0, theme.px(2), 0, 0)
        )
        self.words: QLabel = label("", "muted")
        self.words.setWordWrap(True)
        self.words.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.words.setAccessibleName("Why there is no what-if")
        self.stack = QStackedWidget()
        self.stack.addWidget(self.words)
        self.stack.addWidget(content)
        layout.column(self.stack, on=self)

    def _slider(self, low: int, high: int, tip: str) -> tuple[QSlider, QLabel, QWidget]:
        """A slider, its value in words, and both beside one another; the keyboard goes to the slider."""
        made, words, both = QSlider(Qt.Orientation.Horizontal), label(""), QWidget()
        made.setRange(low, high)
        made.setPageStep(1)
        made.setFixedWidth(theme.px(150))
        made.setAccessibleName(tip.split(":")[0])
        set_tip(made, f"{tip}. Arrow keys change it")
        made.valueChanged.connect(lambda _: self._changed())
        words.setMinimumWidth(theme.px(34))
        layout.row(made, words, on=both, gap=theme.px(6))
        both.setFocusProxy(made)
        return made, words, both

    # -- the lane --------------------------------------------------------------------------------

    def show_lane(
        self, lane: LaneModel, plain: LaneModel | None, calibrated: Mapping[int, float] | None = None
    ) -> None:
        """Recompute this lane; plain is its race's plain lane, calibrated {rows: seconds} of passes measured here."""
        known = tuple(sorted((calibrated or {}).items()))
        beside = -1 if plain is None else len(plain.rounds)
        state = (id(lane), lane.generation, lane.state, len(lane.rounds), beside, known)
        if state == self._shown:
            return
        self._shown = state
        for work in (self._overview, self._single, self._curve_work):
            work.drop()
        self._curve_k = 0
        self.replay = self.found = self.answer = None
        if not lane.rounds:
            self._say("This lane has no rounds yet.")
            return
        if lane.state not in ("ended", "idle"):
            self._say("The race is under way: what-if comes when it has ended.")
            return
        race = self.context.controller.race
        lanes = list(race.lanes)
        if not any(one is lane for one in lanes):
            lanes = [lane] if plain is None else [plain, lane]
        self._place = next(place for place, one in enumerate(lanes) if one is lane)
        # A lane of another run has other texts, and other costs: of it nothing but itself counts.
        records = [
            _record(one, race.prompt_ids) if one is lane or not (one.differs or lane.differs) else RunRecord(one.name, {})
            for one in lanes
        ]
        place, facts = self._place, dict(race.facts)
        measured = dict(known)
        self._say("Replaying the recorded rounds…")
        self._overview.only(
            lambda: what_if_of_race(records, place, facts, measured, tell=self._overview.tell), self._overview_done
        )

    def _say(self, text: str) -> None:
        """Words in place of the charts."""
        self.words.setText(visible(text))
        self.stack.setCurrentIndex(0)

    def _refused(self, line: str) -> None:
        self._say(line)
        self.answered.emit()

    def _overview_done(self, made: tuple[Replay, WhatIf]) -> None:
        self.replay, self.found = replay, found = made
        self._lengths = tuple(one for one in found.alternatives if one.kind == "length")
        names = [name for name in POLICIES if name != "confidence" or replay.knows_confidence]
        given = replay.settings.get("policy_threshold", 0.4)
        most = min(replay.longest, max(8, 2 * replay.k), MAX_K)
        with QSignalBlocker(self.k), QSignalBlocker(self.policy):
            self.k.setRange(1, most)
            self.policy.set_items(tuple((name, POLICIES[name].label) for name in names))
        self._set(replay.policy if replay.policy in names else "constant", min(replay.k, most),
                  float(given) if isinstance(given, (int, float)) else 0.4)  # fmt: skip
        self.stack.setCurrentIndex(1)
        self.sentence.set_full(found.sentence)
        self.notes.set_full(" ".join(found.notes))
        self.table.set_rows([row_of(one) for one in (found.recorded, *found.alternatives)])
        self._draw()
        if not replay.knows_confidence:
            self.over_threshold.begin("The run does not say how sure the drafter was: record it with observe light or full.")

    # -- the sliders -----------------------------------------------------------------------------

    @property
    def asked(self) -> Asked:
        """What the sliders stand at."""
        policy = self.policy.value() or "constant"
        return Asked(policy, self.k.value(), THRESHOLDS[self.threshold.value()] if policy in WITH_THRESHOLD else None)

    def _changed(self) -> None:
        asked = self.asked
        self.k_words.setText(str(asked.k))
        self.threshold_words.setText(f"{THRESHOLDS[self.threshold.value()]:.2f}")
        for widget in (self.threshold, self.threshold_words):
            widget.setEnabled(asked.threshold is not None)
        self.k_field.caption.setText({"heuristic": "first k", "constant": "draft length k"}.get(asked.policy, "longest k"))
        self.threshold_field.caption.setText(WITH_THRESHOLD.get(asked.policy, "threshold"))
        self._later.start()

    def _set(self, policy: str, k: int, threshold: float | None) -> None:
        """Move the sliders there, and ask once."""
        with QSignalBlocker(self.k), QSignalBlocker(self.policy), QSignalBlocker(self.threshold):
            self.policy.set_value(policy)
            self.k.setValue(k)
            if threshold is not None:
                self.threshold.setValue(min(range(len(THRESHOLDS)), key=lambda place: abs(THRESHOLDS[place] - threshold)))
        self._changed()

    def _ask(self) -> None:
        """Recompute what the sliders ask for, and the curve over thresholds at this k."""
        replay, asked = self.replay, self.asked
        if replay is None:
            return
        self._mark_asked()
        self._single.only(
            lambda: replay.policy_of(asked.policy, asked.options, asked.k, _told(self._single.tell)), self._single_done
        )
        if replay.knows_confidence and self._curve_k != asked.k:
            self._curve_k = asked.k
            self._curve_work.only(lambda: [
                replay.policy_of("confidence", {"threshold": value}, asked.k, _told(self._curve_work.tell))
                for value in CHART_THRESHOLDS
            ], self._curve_done)

    def _single_done(self, one: Alternative) -> None:
        if self.found is None:
            return
        self.answer = one
        for name, figure in self.figures.items():
            figure.show_figure(getattr(one, name), getattr(self.found.recorded, name))
        costs = f"; pass times {one.cost_words}" if one.cost_words else ""
        set_kind(self.how, "small" if one.how in ("exact", "measured") else "warning")
        self.how.setText(one.how)
        self.how.setToolTip(tooltip(f"{one.how}: {HOW[one.how]}"))
        self.why.set_full(f"{one.name}: {one.why}{costs}")
        self.answered.emit()

    def _single_failed(self, line: str) -> None:
        self.answer = None
        for figure in self.figures.values():
            figure.value.setText(MISSING)
        self.how.setText("")
        self.why.set_full(line)
        self.answered.emit()

    def _picked_length(self, name: str, index: int) -> None:
        """A point of a curve over k: ask for it."""
        if name == "recorded" and self.replay is not None:
            self._set(self.replay.policy, self.replay.k, None)
        elif index < len(self._lengths):
            self._set("constant", self._lengths[index].k, None)

    def _picked_threshold(self, name: str, index: int) -> None:
        if name != "recorded" and index < len(CHART_THRESHOLDS):
            self._set("confidence", self.k.value(), CHART_THRESHOLDS[index])

    def _picked_row(self, rows: list[int]) -> None:
        if self.found is None or len(rows) != 1:
            return
        one = (self.found.recorded, *self.found.alternatives)[rows[0]]
        if one.kind != "oracle" and one.policy in POLICIES:
            self._set(one.policy, one.k, one.options.get("threshold") if one.policy in WITH_THRESHOLD else None)

    # -- drawing ---------------------------------------------------------------------------------

    def _draw(self) -> None:
        found = self.found
        if found is None:
            return
        timeless = "" if found.costs is not None else "No times: the trace has no one-row pass."
        self._draw_lengths(self.tokens_over_k, "tokens_per_pass")
        if timeless:
            self.over_k.begin(f"{timeless} Run the method beside plain decoding.")
            self.over_threshold.begin(timeless)
            return
        oracles = {one.name: one.speedup.value for one in found.alternatives if one.kind == "oracle" and one.speedup is not None}
        others = [one.speedup.value for one in found.alternatives if one.speedup is not None]
        self._draw_lengths(self.over_k, "speedup", 1.0, *others)
        self.over_k.mark("plain", y=1.0, text="plain")
        for name, value in oracles.items():
            self.over_k.mark(name, y=value, text=f"{name} {times(value)}", colour="accepted")
        self._mark_asked()

    def _draw_lengths(self, chart: Chart, name: str, *heights: float) -> None:
        """A figure over the draft lengths and as recorded, on an axis that goes up to these heights at least."""
        assert self.found is not None
        recorded, shown = self.found.recorded, [getattr(one, name) for one in self._lengths]
        ks = [one.k for one in self._lengths]
        chart.begin()
        chart.ticks("x", [(float(k), str(k)) for k in ks])
        _curve(chart, "recomputed", ks, shown, self._lengths)
        own: Range | None = getattr(recorded, name)
        if own is not None:
            chart.curve("recorded", [recorded.k], [own.value], lane=self._place, line=False, points=True,
                        tips=[f"{recorded.name}: {number(own.value)}, measured"])  # fmt: skip
        _leave_room(chart, [*heights, *(one.high for one in (*shown, own) if one is not None)])

    def _curve_done(self, curve: list[Alternative]) -> None:
        chart, speedups = self.over_threshold, [one.speedup for one in curve if one.speedup is not None]
        if len(speedups) == len(curve):
            chart.begin()
            _curve(chart, f"up to {curve[0].k}", CHART_THRESHOLDS, speedups, curve)
            chart.mark("plain", y=1.0, text="plain")
            _leave_room(chart, [1.0, *(one.high for one in speedups)])
        self._mark_asked()

    def _mark_asked(self) -> None:
        asked = self.asked
        if self.found is None:
            return
        for chart in (self.over_k, self.tokens_over_k):
            chart.mark("asked", x=float(asked.k), text="asked", colour="focus")
        if asked.policy == "confidence" and asked.threshold is not None:
            self.over_threshold.mark("asked", x=asked.threshold, text="asked", colour="focus")
        else:
            self.over_threshold.remove("asked")

    def closeEvent(self, event: Any) -> None:
        """End what runs."""
        self.shut()
        super().closeEvent(event)

    def shut(self) -> None:
        """End what runs on threads of its own."""
        self._later.stop()
        for work in (self._overview, self._single, self._curve_work):
            work.close()


def _told(tell: Callable[[str, float], None]) -> Callable[[int, int], None]:
    """Lets a replay notice that it is no longer wanted."""

    def told(done: int, total: int) -> None:
        if done % 32 == 0:
            tell("", 0.0)

    return told


def _record(lane: LaneModel, prompt_ids: tuple[int, ...]) -> RunRecord:
    """A lane on screen as a recorded one."""
    return RunRecord(lane.name, dict(lane.settings), tuple(prompt_ids), lane.prefill_s or 0.0, list(lane.rounds), lane.end)


def range_text(figure: Range | None, form: Form) -> str:
    """A figure; with its range where there is one."""
    if figure is None:
        return MISSING
    low, high = form(figure.low), form(figure.high)
    return form(figure.value) if low == high else f"{form(figure.value)} ({low}–{high})"


def _seconds(value: float | None) -> str:
    return MISSING if value is None or not math.isfinite(value) else f"{value:.2f} s"


def _curve(chart: Chart, name: str, x: Sequence[float], figures: Sequence[Range | None], ones: Sequence[Alternative]) -> None:
    """A modelled curve with points, and a band where the trace leaves something open."""
    present = [figure or Range.of(math.nan) for figure in figures]
    spread = any(not figure.known for figure in figures if figure is not None)
    chart.curve(
        name, x, [figure.value for figure in present], colour="bonus", dashed=True, points=True,
        low=[figure.low for figure in present] if spread else None,
        high=[figure.high for figure in present] if spread else None,
        tips=[f"{one.name}: {range_text(figure, number)} ({one.how})" for one, figure in zip(ones, figures, strict=True)],
    )  # fmt: skip


def _leave_room(chart: Chart, heights: Sequence[float]) -> None:
    """Let the y axis go a little beyond what is drawn, so that the words above the highest line are seen whole."""
    chart.set_range(y=(0.0, 1.18 * max(heights)))
