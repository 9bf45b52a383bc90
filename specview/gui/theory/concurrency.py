"""The concurrency plots: tokens/s per sequence and in total over the number of sequences, the crossing, the roofline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QLineEdit

from specview.errors import SpecviewError, UsageError, require
from specview.files.figures import rate, times
from specview.gui.link.job import ShouldStop, Tell, Work
from specview.gui.parts import layout, theme
from specview.gui.parts.charts import Chart
from specview.gui.parts.job_view import LabPanel
from specview.gui.parts.pages import PageContext
from specview.gui.parts.widgets import Choice, ElidedLabel, NumberEdit
from specview.lab.acceptance import Acceptance, lane_acceptance, stated_acceptance, steps_draft_model
from specview.lab.batch_times import BATCHES, CONTEXT, KS, Sizes
from specview.lab.concurrency import Concurrency, Plan, Point, combine, concurrency_notes, run_concurrency
from specview.settings.run import BUNDLED, RunSettings

RACE, NUMBER = "race", "number"
_SOURCES = ((RACE, "of a short race, run first"), (NUMBER, "a number"))
_FINE_DECADES = 1.5
"""Of an axis: more powers of ten have marks at the powers alone, as more would not stand apart."""
_EMPTY = (
    "Measure times target passes over B sequences at once, with k + 1 tokens each, and joins them with an acceptance. "
    "The plots then say for how many sequences sharing this device speculation still pays."
)


class NumbersEdit(NumberEdit):
    """Whole numbers with commas between them."""

    def __init__(self, name: str, values: Sequence[int]) -> None:
        super().__init__(name, ",".join(map(str, values)), whole=True, digits=11)

    def value(self) -> tuple[int, ...]:
        """The numbers; raises UsageError."""
        mend = "Use whole numbers with commas between them."
        try:
            found = tuple(int(part) for part in self.text().replace(" ", ",").split(",") if part)
        except ValueError:
            raise UsageError(f"{self.name} is {self.text()!r}.", mend) from None
        require(bool(found), f"{self.name} is empty.", mend)
        return found

    def keyPressEvent(self, event: QKeyEvent) -> None:
        QLineEdit.keyPressEvent(self, event)  # there is no one number to step


class ConcurrencyPanel(LabPanel):
    """Settings, four plots and a sentence; `found` is what is shown."""

    job_name = "concurrency"
    run_text = "Measure"
    run_tip = "Time the passes on this device; takes up to some minutes"
    stop_tip = "Stop and keep what was measured (Esc)"

    def __init__(self, context: PageContext) -> None:
        super().__init__(context)
        self.found: Concurrency | None = None
        self._lanes: dict[str, tuple[Any, Any]] = {}
        self._filling = False
        self._chosen = False  # by the user: which acceptance
        self.batches = self.edit("batches", "sequences B", NumbersEdit("sequences B", BATCHES),
                                 "How many share the device; those that do not fit in memory are left out")  # fmt: skip
        self.ks = self.edit("ks", "draft lengths k", NumbersEdit("draft lengths k", KS),
                            "0 is plain decoding, which is measured in any case")  # fmt: skip
        self.tokens = self.number("tokens", CONTEXT, "Tokens that each sequence holds already: attention over them is in every pass",
                                  caption="context", name="context of each sequence", minimum=1)  # fmt: skip
        self.source = self.field("acceptance", Choice(_SOURCES),
                                 "Joined with the measured passes; changing it afterwards measures nothing anew")  # fmt: skip
        self.source.setMinimumContentsLength(17)
        self.alpha = self.field("α", NumberEdit("acceptance", 0.6, minimum=0, maximum=1, step=0.05, digits=4),
                                "Accepted / judged tokens")  # fmt: skip
        self.cost = self.field(
            "c", NumberEdit("draft cost c", None, minimum=0, maximum=1000, step=0.05, optional=True, placeholder="timed"),
            "A draft step in plain steps, in place of timing the draft model; empty times it"
        )  # fmt: skip
        self.source.activated.connect(lambda _: setattr(self, "_chosen", True))
        self.source.currentIndexChanged.connect(lambda _: self._acceptance_changed())
        for edit in (self.alpha, self.cost):
            edit.edited.connect(self._acceptance_changed)
        self.each = Chart("Tokens/s of one sequence", "tokens(k) / round(B, k)",
                          "round = draft + pass over B (k + 1) tokens + the rest. Bars: middle half of the repeats. "
                          "Solid: passes and drafts measured; dashed: the draft's cost is modelled.",
                          x="B, sequences that share the device", y="tokens/s", log_x=True)  # fmt: skip
        self.total = Chart("Tokens/s of all sequences", "B tokens(k) / round(B, k)",
                           "Solid: passes and drafts measured; dashed: the draft's cost is modelled.",
                           x="B, sequences that share the device", y="tokens/s", log_x=True)  # fmt: skip
        self.speedup = Chart("Speedup over B", "tokens(k) plain(B) / round(B, k)",
                             "Median of the repeats' ratios, with their middle half. Dotted: where a draft length crosses "
                             "plain decoding, interpolated between measured B.",
                             x="B, sequences that share the device", y="times plain decoding", log_x=True)  # fmt: skip
        self.roofline = Chart("A target pass and its bounds", "max(bytes / bandwidth, operations / rate)",
                              "Points: measured passes, by rows over all sequences. Dashed lines, modelled from measured "
                              "rates: reading the weights, and computing the products; above the ridge products rule.",
                              x="rows of a pass, B (k + 1)", y="milliseconds", log_x=True, log_y=True)  # fmt: skip
        self.charts = (self.each, self.total, self.speedup, self.roofline)
        self.notes = ElidedLabel("", "small")
        self.lay_out(self.verdict, (layout.grid(self.charts, 2, gap=theme.px(8)), 1), self.notes)
        self.show_lanes()

    def heightForWidth(self, width: int) -> int:
        """The least height at any width: where the verdict wraps, the plots give way."""
        return self.minimumHeight()

    # -- settings --------------------------------------------------------------------------------

    def show_lanes(self) -> None:
        """Offer the lanes of the race on screen as acceptances."""
        race = self.controller.race
        plain = race.baseline
        self._lanes = {
            f"lane {place}": (lane, None if lane.differs else plain)
            for place, lane in enumerate(race.lanes)
            if not lane.plain and any(round_.k for round_ in lane.rounds)
        }
        names = tuple((key, f"of lane {lane.name}") for key, (lane, _) in self._lanes.items())
        items = (_SOURCES[0], *names, _SOURCES[1])
        if items != tuple((self.source.itemData(at), self.source.itemText(at)) for at in range(self.source.count())):
            self._filling = True
            self.source.set_items(items)
            if not self._chosen and names:  # what ran already need not be run again
                self.source.set_value(names[0][0])
            self._filling = False
        self.show_state()

    def acceptance(self) -> Acceptance | None:
        """The acceptance as set; None is to be recorded. Raises SpecviewError, one line."""
        source = self.source.value()
        cost = self.cost.value()
        if source == NUMBER:
            return stated_acceptance(self.alpha.value(), cost)
        if source == RACE:
            return None
        lane, plain = self._lanes[source]
        found = lane_acceptance(lane.name, lane.settings, lane.rounds, () if plain is None else plain.rounds)
        return found if cost is None else replace(found, draft_cost=cost, scaling="pass")

    def plan(self) -> Plan:
        """What Measure would measure; raises SpecviewError, one line."""
        sizes = Sizes(self.batches.value(), self.ks.value(), self.tokens.value())
        acceptance = self.acceptance()
        settings: RunSettings = self.context.run_settings()
        draft, draft_engine = "", None
        if self.cost.value() is None:
            ran: Mapping[str, Any] = {} if acceptance is None else acceptance.run
            own = next((lane for lane in settings.lanes if steps_draft_model({"method": lane.method})), None)
            if steps_draft_model(ran):
                draft = str(ran.get("draft") or (own.draft if own is not None else BUNDLED))
                draft_engine = ran.get("draft_engine") or (own.draft_engine if own is not None else None)
        else:
            require(acceptance is not None, "a draft cost c was given, and no acceptance to go with it.",
                    "Leave c empty, or choose a number or a lane.")  # fmt: skip
        return Plan(settings, sizes, acceptance, draft, draft_engine)

    def _acceptance_changed(self) -> None:
        """Join what was measured with the acceptance as it is set now."""
        self.show_state()
        if self._filling or self.found is None:
            return
        try:
            chosen = self.acceptance()
        except SpecviewError as error:
            self.status.set_full(str(error))
            return
        if chosen is not None:
            self.found = combine(self.found.times, chosen)
            self.draw()

    # -- the job ---------------------------------------------------------------------------------

    def work(self) -> tuple[Work, RunSettings | None]:
        """Time the passes, and record an acceptance where none is there."""
        plan = self.plan()

        def work(pool: Any, tell: Tell, should_stop: ShouldStop) -> Concurrency:
            return run_concurrency(plan, pool, should_stop, tell.progress)

        return work, plan.settings

    def take(self, found: Any) -> None:
        """Show what was measured."""
        if isinstance(found, Concurrency):
            self.found = found
            self.draw()

    def show_state(self) -> None:
        """Say by the buttons what can be done."""
        super().show_state()
        self.alpha.setEnabled(self.source.value() == NUMBER)

    # -- drawing ---------------------------------------------------------------------------------

    def draw(self) -> None:
        """Draw what was found, or say what would be."""
        found = self.found
        for chart in self.charts:
            chart.clear()
            chart.say("" if found is not None else _EMPTY if chart is self.each else "Nothing measured yet.")
        if found is None:
            self.say("How many sequences can share this device before speculation stops paying?")
            self.notes.set_full("")
            return
        self.say(found.sentence)
        self.notes.set_full(" ".join(concurrency_notes(found)))
        batches = found.times.batches
        for place, k in enumerate(found.ks):
            line = found.line(k)
            dashed = any(point.draft_source == "modelled" for point in line)
            for chart, figure in (
                (self.each, "user_tokens_per_s"), (self.total, "total_tokens_per_s"), (self.speedup, "speedup")
            ):  # fmt: skip
                if chart is self.speedup and not k:
                    continue
                values = [getattr(point, figure) for point in line]
                low, high = _spread(line, values)
                chart.curve(
                    f"k {k}" if k else "plain", [point.sequences for point in line], values, low=low, high=high,
                    spread="band" if chart is self.speedup else "bars", tips=[point_words(point) for point in line],
                    colour=_colour(place), shape=place % 5, points=True, dashed=dashed, width_px=2.0,
                )  # fmt: skip
        for number, crossing in enumerate(found.crossings):
            what = f"k {crossing.k} {'pays up to' if crossing.falls else 'pays from'} B {crossing.sequences:.1f}"
            height = 0.94 - 0.12 * (number % 6)  # words of near crossings stand beneath one another
            self.speedup.mark(f"crossing {number}", x=crossing.sequences, text=what, colour="ink", at=height)
            if crossing.k == found.headline_k:
                for chart in (self.each, self.total):
                    chart.mark(f"crossing {number}", x=crossing.sequences, text=what, colour="ink")
        self.speedup.mark("plain", y=1.0, text="" if found.crossings else "no crossing in range")
        for chart in (self.each, self.total, self.speedup):
            chart.ticks("x", [(float(size), str(size)) for size in batches])
            chart.set_range(x=(batches[0] / 1.15, batches[-1] * 1.15))
        self._draw_roofline(found)

    def _draw_roofline(self, found: Concurrency) -> None:
        chart, roof = self.roofline, found.times.roofline
        most = 1
        drawn_ms: list[float] = []
        for place, sequences in enumerate(found.times.batches):
            rows = found.times.rows_at(sequences)
            taken_ms = [1000 * (found.times.pass_s(sequences, each) or math.nan) for each in rows]
            most = max(most, sequences * rows[-1])
            drawn_ms += taken_ms
            tips = []
            for each, ms in zip(rows, taken_ms, strict=True):
                bound = None if roof is None else roof.bound(sequences, each)
                rules = "" if bound is None else f"; {'reading memory' if bound == 'memory' else 'products'} rules here"
                tips.append(f"B {sequences}, {each} rows each: {ms:.1f} ms measured{rules}")
            chart.curve(f"B {sequences}", [sequences * each for each in rows], taken_ms, colour=_colour(place),
                        shape=place % 5, line=False, points=True, tips=tips)  # fmt: skip
        places = [2.0**power for power in range(math.ceil(math.log2(most)) + 1)]
        chart.ticks("x", [(tick, f"{tick:.0f}") for tick in places])
        chart.set_range(x=(0.85, 1.2 * places[-1]))
        if roof is not None and roof.ridge_rows is not None:
            memory = [1000 * (roof.memory_s() or math.nan)] * len(places)
            compute = [1000 * (roof.compute_s(rows) or math.nan) for rows in places]
            chart.curve("reading the weights", places, memory, colour="bonus", dashed=True)
            chart.curve("computing the products", places, compute, colour="corrected", dashed=True)
            drawn_ms += [*memory, *compute]
            if 1 <= roof.ridge_rows <= places[-1]:
                chart.mark("ridge", x=roof.ridge_rows, text=f"ridge: {roof.ridge_rows:.1f} rows")
        chart.ticks("y", _milliseconds([ms for ms in drawn_ms if ms > 0]))


def _milliseconds(drawn_ms: Sequence[float]) -> list[tuple[float, str]]:
    """The marks of a logarithmic axis: 1, 2, 5 of each power of ten, or the powers alone where those are many."""
    decades = math.log10(max(drawn_ms) / min(drawn_ms)) if drawn_ms else 0.0
    steps = (1, 2, 5) if decades <= _FINE_DECADES else (1,)
    return [(step * 10.0**power, f"{step * 10.0**power:g}") for power in range(-3, 6) for step in steps]


def point_words(point: Point) -> str:
    """A point in a line."""
    words = f"{f'k {point.k}' if point.k else 'plain'}, B {point.sequences}: {rate(point.user_tokens_per_s)} tok/s each, "
    words += f"{rate(point.total_tokens_per_s)} in all"
    return words + (f", {times(point.speedup)}; draft {point.draft_source}" if point.k else "")


def _spread(line: Sequence[Point], values: Sequence[float]) -> tuple[list[float], list[float]] | tuple[None, None]:
    """The speedup's middle half, in the values' own unit."""
    if not any(point.spread for point in line):
        return None, None
    edges = [point.spread or (point.speedup, point.speedup) for point in line]
    shares = [(min(1.0, low / point.speedup), max(1.0, high / point.speedup)) for point, (low, high) in zip(line, edges, strict=True)]
    return ([value * low for value, (low, _) in zip(values, shares, strict=True)],
            [value * high for value, (_, high) in zip(values, shares, strict=True)])  # fmt: skip


def _colour(place: int) -> str:
    """A line's colour, '#rrggbb': grey for plain, then the lanes' hues."""
    colours = theme.current().lane_colors
    return colours[place % len(colours)]
