"""The plots of the Why page: the waterfall, predictions, draft lengths, and a lane's deep figures.

A new one of the deep figures is a series of decoding/details and a Chart in DetailView.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QScrollBar, QStackedWidget, QWidget

from specview.decoding.details import Bin, Details
from specview.decoding.metrics import Metrics
from specview.files.figures import number, percent, times
from specview.gui.parts import layout, theme
from specview.gui.parts.charts import Chart
from specview.gui.parts.widgets import ElidedLabel
from specview.gui.why.timeline import RoundTimeline
from specview.lab.explain_report import arrival_words
from specview.lab.explanation import Explanation, Step, Waterfall, length_words, signed

ROUNDS_SHOWN = 96
"""Rounds that the bars of single rounds show at once."""

STEP_TIPS = {
    "plain": "plain decoding: one token a round, 1 by definition",
    "tokens": "tokens per target pass: what the rounds would give if drafting and verifying were free",
    "draft": "drafting: S d, where d is the draft's time in plain rounds",
    "verify": "verify surplus: S (v - 1), what a pass of many rows costs above a one-row pass",
    "other": "other time: what a round's rest costs above a plain round's rest",
    "uneven": "uneven rounds: what the medians leave out, slow rounds of this lane (or, where it gains, of plain)",
    "net": "the measured speedup: tok/s / plain's",
}
_PARTS = {"speed": "net", "drafting": "draft", "verify surplus": "verify", "other time": "other"}
"""What a round's bar is made of, from below, and the step of that colour."""


def _own_colour(lane: int) -> str:
    colours = theme.current().lane_colors
    return colours[lane % len(colours)]


def _step_colours(lane: int) -> dict[str, str]:
    now = theme.current()
    draft, verify, other = now.phases[:3]
    return {"plain": now.lane_colors[0], "tokens": now.accepted, "draft": draft, "verify": verify, "other": other,
            "uneven": now.rejected, "net": _own_colour(lane)}  # fmt: skip


def _signed(step: Step) -> str:
    return number(step.after) if step.name in ("plain", "net") else signed(step.change)


class WaterfallView(QWidget):
    """Bars from plain to the speedup, of the medians or round by round; `picked(round)` where a round's bar was."""

    picked = Signal(int)

    def __init__(self) -> None:
        super().__init__()
        self.median = Chart(
            "From plain to speculative", "medians of rounds",
            "Everything in times plain. A round of T tokens that costs C = 1 + d + s + o plain rounds gives S = T / C.\n"
            "It gains T - 1 and pays S d for drafting, S s for verifying more rows, S o for the rest: the steps add up "
            "exactly, in any order.",
            x="", y="speed (× plain)",
        )  # fmt: skip
        self.rounds = Chart(
            "From plain to speculative", "round by round",
            "Each bar is as tall as the round's tokens: the lower part is what is left of them as speed, above it what "
            "drafting, the verify surplus and other time took. A click selects the round.",
            x="round", y="tokens = speed + what was paid",
        )  # fmt: skip
        self.along = QScrollBar(Qt.Orientation.Horizontal)
        self.along.setAccessibleName("Which rounds are shown")
        self.along.setRange(0, 0)
        self.along.valueChanged.connect(self._draw_rounds)
        self.rounds.picked.connect(lambda _, place: self.picked.emit(self.along.value() + place))
        holder = QWidget()
        layout.column((self.rounds, 1), self.along, on=holder, gap=2)
        self.stack = QStackedWidget()
        self.stack.addWidget(self.median)
        self.stack.addWidget(holder)
        layout.column(self.stack, on=self)
        self._falls: Sequence[Waterfall | None] = ()
        self._lane = 0
        self._selected = -1

    def set_per_round(self, on: bool) -> None:
        """Show single rounds, or their medians."""
        self.stack.setCurrentIndex(int(on))

    @property
    def per_round(self) -> bool:
        """Whether single rounds are shown."""
        return self.stack.currentIndex() == 1

    def show_fall(self, fall: Waterfall | None, lane: int, why: str = "") -> None:
        """Show the lane's waterfall; why says why there is none."""
        self._lane = lane
        chart = self.median
        if not chart.begin("" if fall is not None else why or "There is no plain lane to start from.") or fall is None:
            return
        steps, colours = fall.steps, _step_colours(lane)
        chart.bars(
            "steps", range(len(steps)), [step.change for step in steps], bottom=[step.before for step in steps],
            width=0.72, colours=[colours[step.name] for step in steps], texts=[_signed(step) for step in steps],
            tips=[f"{_signed(step)} · {STEP_TIPS[step.name]}" for step in steps], in_key=False,
        )  # fmt: skip
        for place, step in enumerate(steps[:-1]):  # from bar to bar
            chart.curve(f"level {place}", [place + 0.36, place + 0.64], [step.after] * 2, colour="muted", in_key=False,
                        width_px=1, quiet=True)  # fmt: skip
        chart.ticks("x", [(float(place), step.label) for place, step in enumerate(steps)])
        chart.mark("plain", y=1.0, colour="muted")

    def show_rounds(self, falls: Sequence[Waterfall | None], lane: int) -> None:
        """Show one bar a round."""
        self._falls, self._lane = falls, lane
        at_end = self.along.value() >= self.along.maximum()
        self.along.blockSignals(True)
        self.along.setRange(0, max(0, len(falls) - ROUNDS_SHOWN))
        self.along.setPageStep(ROUNDS_SHOWN)
        if at_end:
            self.along.setValue(self.along.maximum())
        self.along.blockSignals(False)
        self.along.setVisible(self.along.maximum() > 0)
        self._draw_rounds()

    def select(self, place: int) -> None:
        """Mark a round, and bring it into view."""
        self._selected = place
        start = self.along.value()
        if place >= 0 and not start <= place < start + ROUNDS_SHOWN:
            self.along.setValue(place - ROUNDS_SHOWN // 2)
        self._draw_rounds()

    def _draw_rounds(self) -> None:
        chart, start = self.rounds, self.along.value()
        shown = self._falls[start : start + ROUNDS_SHOWN]
        if not chart.begin("" if shown else "No rounds with a cost to show."):
            return
        colours = _step_colours(self._lane)
        heights = np.full((len(_PARTS), len(shown)), math.nan)
        tips: list[str] = []
        for place, fall in enumerate(shown):
            if fall is None:
                tips.append(f"round {start + place}: it took no time")
                continue
            draft, verify, other = (fall.losses[name] for name in ("draft", "verify", "other"))
            heights[:, place] = np.maximum(0.0, [min(fall.net, fall.tokens), draft, verify, other])
            tips.append(
                f"round {start + place}: {fall.tokens:.0f} tokens for {fall.cost:.2f} plain rounds = {times(fall.net)}; paid: "
                f"drafting {draft:.2f}, verify {verify:.2f}, other {other:.2f}"
            )
        bottom = np.zeros(len(shown))
        for (name, step), height in zip(_PARTS.items(), heights, strict=True):
            chart.bars(name, range(start, start + len(shown)), height, bottom=bottom, width=0.9, colour=colours[step], tips=tips)
            bottom = bottom + np.nan_to_num(height)
        chart.mark("plain", y=1.0, text="plain", colour="muted")
        if start <= self._selected < start + len(shown):
            chart.mark("selected", x=float(self._selected), text=f"round {self._selected}", colour="focus")


class PredictionChart(Chart):
    """What the formulas predict beside what was measured."""

    def __init__(self) -> None:
        super().__init__(
            "Predicted and measured", "speedup",
            "The closed form with the draft's cost c alone (a verifying pass taken to cost one plain pass), with the "
            "measured v(k) too, with all a round's time, and the measurement. What is modelled is grey.",
            x="", y="speed (× plain)",
        )  # fmt: skip

    def show_predictions(self, found: Explanation, lane: int) -> None:
        """Show a lane's."""
        shown, measured = found.predictions, found.measured_speedup
        if not self.begin("" if shown else "Predictions need judged drafts and a plain lane."):
            return
        tips = []
        for one in shown:
            off = f" ({100 * (one.speedup / measured - 1):+.0f}% off)" if measured and not one.measured else ""
            tips.append(f"{times(one.speedup)}{off} · {one.formula} · {one.parts}")
        self.bars(
            "speedup", range(len(shown)), [one.speedup for one in shown], width=0.62, tips=tips, in_key=False,
            colours=[_own_colour(lane) if one.measured else theme.current().q_grey for one in shown],
            texts=[number(one.speedup) for one in shown],
        )  # fmt: skip
        names = {"c, v(k) and other time": "c, v(k), other"}
        self.ticks("x", [(float(i), names.get(one.name, one.name)) for i, one in enumerate(shown)])
        self.mark("plain", y=1.0, colour="muted")


class LengthChart(Chart):
    """Predicted speedup over the draft length, with the lane's own length and the best one."""

    def __init__(self) -> None:
        super().__init__(
            "Which k would be best", "by this lane's costs",
            "By α: the closed form with one acceptance rate for all positions. By positions: this lane's drafts cut at k, "
            "and beyond its own k continued with α. Both are modelled; the costs are measured or calibrated. Where they make "
            "too much of the lane itself, both are scaled down to what it measured.",
            x="k (drafted tokens)", y="speed (× plain)",
        )  # fmt: skip

    def show_lengths(self, found: Explanation, lane: int) -> None:
        """Show a lane's."""
        points, costs = found.lengths, found.costs
        why = "No closed form for trees: only the measurement speaks." if found.shape == "tree" else (
            "This needs judged drafts and the cost of a plain pass.")  # fmt: skip
        if not self.begin("" if points else why):
            return
        k = [point.k for point in points]
        words = [
            "k 0: plain decoding, 1 by definition" if not point.k or costs is None else
            f"k {point.k}: predicted {times(point.predicted)}; v({point.k}) = {costs.v(point.k):.2f}, {point.source}; "
            f"c = {costs.c_at(point.k):.3f}" for point in points
        ]  # fmt: skip
        self.curve("by α", k, [point.by_formula * point.limit for point in points], colour="muted", dashed=True, tips=words)
        if points[-1].by_positions is not None:
            cut = [math.nan if point.by_positions is None else point.predicted for point in points]
            self.curve("by positions", k, cut, lane=lane, dashed=True, points=True, tips=words)
        if found.measured_speedup is not None and found.k is not None:
            self.curve("measured", [found.k], [found.measured_speedup], colour="bonus", line=False, points=True,
                       tips=[f"measured at k {found.k:g}: {times(found.measured_speedup)}"])  # fmt: skip
        self.ticks("x", [(float(place), str(place)) for place in range(0, k[-1] + 1, max(1, math.ceil(k[-1] / 12)))])
        self.mark("plain", y=1.0, text="plain", colour="muted")
        if found.best_k is not None:
            others = [length_words(k) for k in found.as_good]
            best = [f"best: {length_words(found.best_k)}", *(others if len(others) < 3 else [f"{len(others)} others"])]
            self.mark("best", x=float(found.best_k), text=" or ".join(best), colour="accepted")


class DetailView(QWidget):
    """A lane's deep figures: lengths, positions, entropy, along the output, gaps, bursts, and the timeline."""

    def __init__(self) -> None:
        super().__init__()
        self.line = ElidedLabel("", "muted")
        self.lengths = Chart("Accepted lengths", "rounds by accepted tokens", "How many drafted tokens a round's draft kept. "
                             "Rounds without a draft are not in it.", x="accepted tokens", y="rounds")  # fmt: skip
        self.positions = Chart("Acceptance by position", "i = 1 is the first drafted token",
                               "Unconditional: rounds with i or more accepted / rounds with a draft.\nConditional: accepted at "
                               "i / judged at i, given that all before it stood. In trees i is a depth.",
                               x="position in the draft", y="acceptance")  # fmt: skip
        self.entropy = Chart("Entropy against acceptance", "accepted / judged by H(p)",
                             "H(p) is the entropy of the target's own distribution where the token was judged, at temperature 1 "
                             "without filters. Lines: Wilson's 95% interval; numbers: trials.", x="entropy of p (nats)", y="acceptance rate")  # fmt: skip
        self.output = Chart("Acceptance along the output", "accepted / judged",
                            "By the output position that a drafted token was judged for. Band: Wilson's 95% interval.",
                            x="output position (tokens)", y="acceptance rate")  # fmt: skip
        self.gaps = Chart("Gaps between bursts", "rounds by their time",
                          "Tokens of one round arrive together; the gap is the time to the next burst. The slowest 1% is "
                          "counted in the last bar.", x="gap (ms)", y="rounds")  # fmt: skip
        self.bursts = Chart("Bursts", "rounds by emitted tokens", "How many tokens arrive together at the end of a round.",
                            x="tokens that arrive together", y="rounds")  # fmt: skip
        self.timeline = RoundTimeline()
        self.charts = (self.lengths, self.positions, self.entropy, self.bursts, self.gaps, self.output)
        grid = layout.grid(self.charts, 3, gap=8, shares=(1, 0))
        layout.column(layout.row(self.line), (grid, 5), (self.timeline, 2), on=self, gap=6)

    def show_details(self, details: Details, metrics: Metrics, lane: int) -> None:
        """Show a lane's."""
        self.line.set_full(arrival_words(details))
        _show_counts(self.lengths, details.accepted_lengths, lane, "accepted", "Nothing was drafted.")
        _show_counts(self.bursts, details.bursts, lane, "emitted", "No rounds yet.")
        _show_positions(self.positions, metrics, lane)
        _show_entropy(self.entropy, details, lane)
        _show_output(self.output, details, lane)
        _show_gaps(self.gaps, details, lane)
        self.timeline.show_spans(details.timeline)


def _show_counts(chart: Chart, counts: Mapping[int, int], lane: int, what: str, why: str) -> None:
    """Bars of how many rounds had 0, 1, 2, ... of something."""
    if not chart.begin("" if counts else why):
        return
    x = range(max(counts) + 1)
    heights = [counts.get(value, 0) for value in x]
    total = sum(heights)
    chart.bars("rounds", x, heights, lane=lane,
               texts=[str(n) if n and len(x) <= 16 else "" for n in heights],
               tips=[f"{value} {what}: {n} rounds, {percent(n / total)}" for value, n in zip(x, heights, strict=True)])  # fmt: skip
    chart.ticks("x", [(float(value), str(value)) for value in x if len(x) <= 16 or value % 4 == 0])


def _show_positions(chart: Chart, metrics: Metrics, lane: int) -> None:
    if not chart.begin("" if metrics.position_acceptance else "Nothing was drafted."):
        return
    x = range(1, len(metrics.position_acceptance) + 1)
    chart.curve("unconditional", x, metrics.position_acceptance, lane=lane, points=True)
    chart.curve("conditional", x, [math.nan if v is None else v for v in metrics.position_acceptance_conditional],
                colour="muted", points=True)  # fmt: skip
    chart.ticks("x", [(float(i), str(i)) for i in x if len(x) <= 12 or i % 2])
    chart.set_range(y=(0.0, 1.05))


def _show_entropy(chart: Chart, details: Details, lane: int) -> None:
    if not chart.begin("" if details.entropy_known else details.entropy_note):
        return
    x = [place for place, one in enumerate(details.entropy) if one.judged]
    shown = [details.entropy[place] for place in x]
    tips, rates = list(map(_bin_words, shown)), [one.rate or 0.0 for one in shown]
    low, high = _ends(shown)
    chart.bars("acceptance", x, rates, width=0.8, lane=lane, tips=tips, in_key=False)
    chart.curve("interval", x, rates, colour="focus", line=False, low=low, high=high, spread="bars", tips=tips, in_key=False)
    chart.bars("trials", x, high, width=0.8, colours=["#00000000"] * len(x), texts=[str(one.judged) for one in shown], tips=tips,
               in_key=False)  # fmt: skip
    chart.ticks("x", [(place - 0.5, f"{one.low:g}") for place, one in enumerate(details.entropy)])  # the bins' edges
    chart.set_range(x=(-0.6, len(details.entropy) - 0.4), y=(0.0, 1.2))


def _show_output(chart: Chart, details: Details, lane: int) -> None:
    if not chart.begin("" if details.judged else "Nothing was judged."):
        return
    shown = [one for one in details.along if one.judged]
    low, high = _ends(shown)
    chart.curve("acceptance", [(one.low + (one.high or one.low)) / 2 for one in shown], [one.rate or 0.0 for one in shown], lane=lane,
                points=True, low=low, high=high, tips=list(map(_bin_words, shown)), in_key=False)  # fmt: skip
    chart.set_range(y=(0.0, 1.05))


def _show_gaps(chart: Chart, details: Details, lane: int) -> None:
    if not chart.begin("" if details.gaps_s else "One round has no gap yet."):
        return
    ms = np.array(details.gaps_s) * 1e3
    low, high = float(ms.min()), float(np.percentile(ms, 99))
    if high <= low:
        high = low + max(1e-3, low * 0.01)
    counts, edges = np.histogram(np.minimum(ms, high), bins=min(24, max(6, len(ms) // 4)), range=(low, high))
    chart.bars("gaps", (edges[:-1] + edges[1:]) / 2, counts, width=float(edges[1] - edges[0]) * 0.95, lane=lane,
               tips=[f"{a:.1f} to {b:.1f} ms: {n} rounds" for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True)])  # fmt: skip
    for name, value in (("p50", details.gap_p50_s), ("p95", details.gap_p95_s)):
        if value is not None:
            chart.mark(name, x=min(value * 1e3, high), text=name, colour="muted")


def _bin_words(one: Bin) -> str:
    end = "and over" if one.high is None else f"to {one.high:g}"
    return f"{one.low:g} {end}: {number(one.rate)}, {one.accepted} of {one.judged}"


def _ends(bins: Sequence[Bin]) -> tuple[list[float], list[float]]:
    """The lower and the upper ends of the rates' intervals."""
    ends = [one.interval or (math.nan, math.nan) for one in bins]
    return [low for low, _ in ends], [high for _, high in ends]
