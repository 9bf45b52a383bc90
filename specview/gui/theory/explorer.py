"""The theory explorer: expected tokens and speedup over alpha, k, c and v as live curves, measured lanes among them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from PySide6.QtCore import QEvent, Qt, Signal
from PySide6.QtGui import QFontMetrics
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFrame,
    QHeaderView,
    QLabel,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from specview.decoding import theory
from specview.errors import UsageError
from specview.files.figures import MISSING, number, times
from specview.gui.link.pace import Later
from specview.gui.parts import layout, theme
from specview.gui.parts.charts import Chart
from specview.gui.parts.widgets import Choice, ElidedLabel, Field, NumberEdit, caption_height, label, set_tip
from specview.gui.state.display_text import brief
from specview.lab.theory_points import LanePoint
from specview.settings.run import MAX_K

ASSUMPTION = (
    "Assumed (i.i.d.): every drafted token is accepted with the same chance α, whatever came before it. Real text is not so: "
    "easy stretches come together, which makes long drafts worth a little more than this says."
)
MODES = (("constant", "the same for every k"), ("line", "1 + r per row"), ("measured", "as measured"))
MEASURE = ("measure", "measure it here…")
_FAMILY = (0.5, 0.6, 0.7, 0.8, 0.9)
_LENGTHS = (1, 2, 4, 8)
_LEAST_K_SHOWN = 12
_LEAST_COST_SHOWN = 2.0
_HEAT_COLUMNS, _HEAT_ROWS = 40, 26
_MARGIN_PX = 12
_FACTS = (
    ("speedup", "64.00×", "(expected tokens) / (k c + v), Leviathan et al. 2023, theorem 3.8; v is 1 there"),
    ("tokens per pass", "65.00", "expected tokens = (1 - α^(k+1)) / (1 - α), Leviathan et al. 2023, equation 1"),
    ("best k", "64 (64.00×)", f"the k from 0 (plain) to {MAX_K} with the highest speedup at this α, c and v(k)"),
    ("breaks even at α", "never", "the acceptance at which drafting k tokens just pays: speedup 1"),
    ("α k says", "60.00 accepted, 60.00 too many",
     "α k is often quoted for the accepted tokens of a round. It counts tokens behind a rejection too: (expected tokens) - 1 "
     "are accepted"),
)  # fmt: skip
"""Caption, longest text and formula of the figures in a row."""
_RANGES: dict[str, tuple[Any, Any]] = {
    "alpha": (0.0, 1.0), "k": (1, MAX_K), "c": (0.0, 1000.0), "value": (0.01, 1000.0), "per_row": (0.01, 1000.0)
}  # fmt: skip
"""What the figures of a Point may be."""


@dataclass(slots=True)
class Point:
    """Where the explorer stands. value is v, per_row is r of 1 + r k, passes are measured seconds by rows."""

    alpha: float = 0.7
    k: int = 4
    c: float = 0.1
    mode: str = "constant"
    value: float = 1.0
    per_row: float = 0.1
    passes: Mapping[int, float] = field(default_factory=dict)

    def v(self, k: int) -> float:
        """Verify cost at k."""
        if self.mode == "measured" and self.passes:
            return theory.measured_v(self.passes)(k)
        if self.mode == "line":
            return theory.line_v(self.per_row)(k)
        return self.value

    @property
    def typed(self) -> str:
        """The figure that v(k) is set by: none where it is measured."""
        return {"constant": "value", "line": "per_row"}.get(self.mode, "")

    def speedup(self, alpha: float | None = None, k: int | None = None) -> float:
        """Speedup here, or with one of the figures another; k 0 is plain decoding."""
        length = self.k if k is None else k
        return 1.0 if not length else theory.speedup(self.alpha if alpha is None else alpha, length, self.c, self.v(length))


class Fact(QWidget):
    """A figure with its caption above, and room for its longest text; the tooltip has the formula."""

    def __init__(self, caption: str, longest: str, tip: str) -> None:
        super().__init__()
        self.value = label(MISSING, "title")
        self.caption = label(caption, "small")
        self._longest = longest
        self._column = layout.column(self.caption, self.value, 1, on=self)
        set_tip(self, tip)
        self.setAccessibleName(caption)
        theme.signals.changed.connect(self._fit)
        self._fit()

    def _fit(self) -> None:
        """Follow the font."""
        self.caption.setFixedHeight(caption_height())
        self._column.setSpacing(theme.px(7))
        self.value.setMinimumWidth(QFontMetrics(theme.ui_font(bold=True)).horizontalAdvance(self._longest) + theme.px(2))


class TheoryPanel(QWidget):
    """Fields, facts, five charts and the literature's tables; `point` is where it stands.

    `measure_asked`: the user wants v(k) measured on this machine.
    """

    measure_asked = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.point = Point()
        self.lanes: tuple[tuple[int, LanePoint], ...] = ()
        self._filling = False
        self._later = Later(self, 0, self.draw)
        self._build_fields()
        self._build_charts()
        self._lay_out()
        theme.signals.changed.connect(self._later.start)
        self._fill()
        self.draw()

    # -- layout ----------------------------------------------------------------------------------

    def _build_fields(self) -> None:
        self.alpha = NumberEdit("acceptance α", 0.7, minimum=0, maximum=1, step=0.01)
        self.k = NumberEdit("draft length k", 4, whole=True, minimum=1, maximum=MAX_K, digits=3)
        self.c = NumberEdit("draft cost c", 0.1, minimum=0, maximum=1000, step=0.01)
        self.v = NumberEdit("verify cost", 1.0, minimum=0.01, maximum=1000, step=0.05)
        self.mode = Choice((*MODES[:2], MEASURE))
        self.lane = Choice((("", "own figures"),))
        self.lane.setMinimumContentsLength(14)
        for choice in (self.mode, self.lane):  # what they offer changes, and must not be cut
            choice.setSizeAdjustPolicy(Choice.SizeAdjustPolicy.AdjustToContents)
        for edit in (self.alpha, self.k, self.c, self.v):
            edit.edited.connect(self._edited)
        self.mode.currentIndexChanged.connect(lambda _: self._mode_chosen())
        self.lane.currentIndexChanged.connect(lambda _: self._lane_chosen())
        self.facts = {caption: Fact(caption, longest, tip) for caption, longest, tip in _FACTS}

    def _build_charts(self) -> None:
        self.over_k = Chart("Speedup over draft length", "E(α, k) / (k c + v(k))",
                            "Each curve is an acceptance. Points are measured lanes, at their mean k.",
                            x="k, drafted tokens a round", y="times plain decoding")  # fmt: skip
        self.over_alpha = Chart("Speedup over acceptance", "E(α, k) / (k c + v(k))",
                                "Each curve is a draft length. Points are measured lanes.",
                                x="α, accepted / judged", y="times plain decoding")  # fmt: skip
        self.tokens = Chart("Tokens per target pass", "E = (1 - α^(k+1)) / (1 - α)",
                            "The target's own token is in it. Dashed: 1 + α k, the rule of thumb, which also counts tokens "
                            "behind a rejection. The shaded gap is its error.",
                            x="k, drafted tokens a round", y="tokens")  # fmt: skip
        self.heat = Chart("Speedup over α and c", "blue gains, orange loses",
                          "At this k and v. The neutral colour is 1, plain decoding's speed.",
                          x="α, accepted / judged", y="c, draft step / plain step", zero=False)  # fmt: skip
        self.over_cost = Chart("Speedup over costs", "E / (k c + v)",
                               "One cost varies, the other stays where it is set.",
                               x="cost, in plain steps", y="times plain decoding")  # fmt: skip
        self.charts = {
            self.over_k: self._draw_over_k, self.over_alpha: self._draw_over_alpha, self.tokens: self._draw_tokens,
            self.heat: self._draw_heat, self.over_cost: self._draw_over_cost,
        }  # fmt: skip
        for chart in self.charts:
            chart.moved.connect(self._moved)
            chart.released.connect(self._later.start)  # a handle was let go: its own chart is drawn too

    def _lay_out(self) -> None:
        self._fields, self._figures = QWidget(), QWidget()
        self.v_field = Field("v", self.v)
        layout.row(
            Field("α", self.alpha, "Acceptance rate: accepted / judged tokens, 0 to 1"),
            Field("k", self.k, "Drafted tokens a round"),
            Field("c", self.c, "A draft step in plain target steps"),
            Field("verify cost v(k)", self.mode,
                  "What a pass of k + 1 rows costs, in one-row passes; as measured: by "
                  "the race's lanes, or by timing the target's passes here, lines between the measured rows"),
            self.v_field,
            Field("figures of", self.lane, "Take α, k, c and v as a lane of the race on screen measured them"),
            1, on=self._fields, gap=theme.px(10)
        )
        layout.row(*self.facts.values(), 1, on=self._figures, gap=theme.px(10))
        self._first = layout.row(self._fields, (self._figures, 1), gap=theme.px(14))
        self._second = layout.row(gap=theme.px(10))
        grid = layout.grid((*self.charts, self._tables()), 3, gap=theme.px(8), shares=(1, 1))
        self.assumption = ElidedLabel(ASSUMPTION, "small")
        layout.column(
            self._first, self._second, (grid, 1), self.assumption, on=self, gap=theme.px(6),
            margins=(theme.px(_MARGIN_PX), theme.px(6), theme.px(_MARGIN_PX), theme.px(8))
        )

    def _fold(self) -> None:
        """Put the figures behind the fields where both have room, else beneath them."""
        room = self.width() - 2 * theme.px(_MARGIN_PX)
        whole = self._fields.sizeHint().width() + self._first.spacing() + self._figures.sizeHint().width()
        line, other = (self._first, self._second) if room >= whole else (self._second, self._first)
        if line.indexOf(self._figures) < 0:
            other.removeWidget(self._figures)
            line.addWidget(self._figures, 1)

    def event(self, event: QEvent) -> bool:
        """Fold anew where the room, or what it has to hold, has changed."""
        done = super().event(event)
        if event.type() in (QEvent.Type.Resize, QEvent.Type.LayoutRequest):
            self._fold()
        return done

    def _tables(self) -> QWidget:
        card = QFrame()
        card.setProperty("kind", "panel")
        self.which = Choice((*((f"{c:g}", f"c {c:g}, v 1 (literature)") for c in theory.TABLE_COSTS),
                             ("own", "c and v as set"), ("free", "c 0: Leviathan 2023, table 1")))  # fmt: skip
        self.which.setAccessibleName("Which table")
        set_tip(self.which, "Theorem 3.8 for α 0.5 to 0.9 and k 1 to 8; table 1 of the paper has no draft cost")
        self.which.currentIndexChanged.connect(lambda _: self._fill_table())
        self.table = QTableWidget()
        self.table.setAccessibleName("Speedups by α and k")
        self.table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.table.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Stretch)
        self.table.verticalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Stretch)
        self.table.horizontalHeader().setMinimumSectionSize(theme.px(24))
        self.table.verticalHeader().setMinimumSectionSize(theme.px(16))
        self.table.setTextElideMode(Qt.TextElideMode.ElideNone)
        self.table.setStyleSheet("QTableView::item { padding: 0; }")
        self.table.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        title: QLabel = label("Tables of the formula", "title")
        self.table_words = ElidedLabel("", "small")
        layout.column(
            layout.row(title, 1, self.which), (self.table, 1), self.table_words, on=card, gap=theme.px(4),
            margins=(theme.px(9), theme.px(5), theme.px(9), theme.px(6))
        )
        return card

    # -- what is set -----------------------------------------------------------------------------

    def set_point(self, point: Point) -> None:
        """Stand there."""
        self.point = point
        self._stand()

    def _stand(self) -> None:
        """The point is another: show it."""
        self._fill()
        self._later.start()

    def kept(self) -> dict[str, Any]:
        """Where it stands, and which table."""
        point = {name: getattr(self.point, name) for name in (*_RANGES, "mode")}
        return {"point": point, "table": self.which.value()}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Take what `kept` returned, figure by figure where it fits."""
        point, stood = Point(), kept.get("point")
        if isinstance(stood, Mapping):
            for name, (low, high) in _RANGES.items():
                value = stood.get(name)
                if isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high:
                    setattr(point, name, type(low)(value))
            if stood.get("mode") in {mode for mode, _ in MODES[:2]}:  # measured costs are those of a race, and not kept
                point.mode = stood["mode"]
            self.set_point(point)
        if isinstance(kept.get("table"), str):
            self.which.set_value(str(kept["table"]))

    def show_lanes(self, lanes: Sequence[tuple[int, LanePoint]], passes: Mapping[int, float] | None) -> None:
        """Show measured lanes, (place in the race, point), and offer their v(k): passes are seconds by rows.

        Comes twice a second while a race runs: what is being typed or chosen stays.
        """
        self.lanes = tuple(lanes)
        usable = dict(passes) if passes and len(passes) > 1 else {}
        self.point.passes = usable
        was_measured = self.point.mode == "measured"
        if not usable and self.point.mode == "measured":
            self.point.mode = "constant"
        self._filling = True
        self.mode.set_items((*(MODES if usable else MODES[:2]), MEASURE))
        self.mode.set_value(self.point.mode)
        self.lane.set_items((("", "own figures"), *((str(place), brief(point.name)) for place, point in self.lanes)))
        self._filling = False
        if was_measured:
            self._fill(typed=False)
        self._later.start()

    def _fill(self, *, typed: bool = True) -> None:
        """Show where it stands: how v(k) is set, and, if typed, α, k and c too."""
        self._filling = True
        point = self.point
        v = getattr(point, point.typed) if point.typed else point.v(point.k)
        values = {self.alpha: point.alpha, self.k: point.k, self.c: point.c} if typed else {}
        for edit, value in (values | {self.v: v}).items():
            if edit.problem() or edit.value() != value:
                edit.set_value(value if isinstance(value, int) else round(value, 4))
        self.mode.set_value(point.mode)
        self.v_field.caption.setText({"value": "v", "per_row": "r"}.get(point.typed, f"v({point.k})"))
        self.v.setEnabled(bool(point.typed))
        self._filling = False

    def _edited(self) -> None:
        if self._filling:
            return
        point = self.point
        try:
            point.alpha, point.k, point.c = self.alpha.value(), self.k.value(), self.c.value()
            if point.typed:
                setattr(point, point.typed, self.v.value())
        except UsageError:
            return  # the field itself says what is wrong
        self._own_figures()
        self._later.start()

    def _mode_chosen(self) -> None:
        if self._filling:
            return
        if self.mode.value() == MEASURE[0]:
            self._fill()  # back to what holds until it is measured
            self.measure_asked.emit()
            return
        self.point.mode = self.mode.value()
        self._stand()

    def show_measured(self) -> None:
        """Take v(k) as measured, where it is there."""
        if self.point.passes:
            self.point.mode = "measured"
            self._stand()

    def _lane_chosen(self) -> None:
        chosen = next((point for place, point in self.lanes if str(place) == self.lane.value()), None)
        if self._filling or chosen is None:
            return
        point = self.point
        point.alpha, point.k = chosen.alpha, max(1, min(MAX_K, round(chosen.k)))
        point.c = point.c if chosen.c is None else chosen.c
        if chosen.v is not None:
            point.mode, point.value = "constant", chosen.v
        self._stand()

    def _own_figures(self) -> None:
        self._filling = True
        self.lane.set_value("")
        self._filling = False

    def _moved(self, name: str, value: float) -> None:
        point = self.point
        figure = {"α": "alpha", "v": point.typed}.get(name, name)
        if figure == "per_row":
            value = (value - 1) / point.k
        low, high = _RANGES[figure]
        value = round(value) if figure == "k" else round(value, 3)  # a hand is no finer, and the fields show it whole
        setattr(point, figure, min(max(value, low), high))
        self._own_figures()
        self._stand()

    # -- drawing ---------------------------------------------------------------------------------

    def draw(self) -> None:
        """Draw everything for where it stands; not the chart whose handle is being dragged."""
        self._show_facts()
        for chart, draw in self.charts.items():
            if not chart.is_dragging():
                chart.clear()
                draw(chart)
        self._fill_table()

    def _show_facts(self) -> None:
        point = self.point
        best = theory.best_k(point.alpha, point.c, point.v, MAX_K)
        even = theory.break_even_alpha(point.k, point.c, point.v(point.k))
        error = theory.rule_of_thumb_error(point.alpha, point.k)
        texts = (
            times(point.speedup()),
            number(theory.expected_tokens(point.alpha, point.k)),
            f"{best} ({times(point.speedup(k=best))})" if best else "plain",
            "never" if even is None else number(even),
            f"{point.alpha * point.k:.2f} accepted, {error:.2f} too many",
        )
        for fact, text in zip(self.facts.values(), texts, strict=True):
            fact.value.setText(text)

    @property
    def _most_k(self) -> int:
        return min(MAX_K, max(_LEAST_K_SHOWN, round(1.5 * self.point.k)))

    def _draw_over_k(self, chart: Chart) -> None:
        point, most = self.point, self._most_k
        lengths = list(range(most + 1))
        family = {f"α {alpha:g}": [point.speedup(alpha, k) for k in lengths] for alpha in _FAMILY}
        _draw_family(chart, lengths, family, f"α {point.alpha:.2f}", [point.speedup(k=k) for k in lengths])
        best = theory.best_k(point.alpha, point.c, point.v, MAX_K)
        if best <= most:
            chart.mark("best", x=best, text=f"best k {best}" if best else "plain is best", colour="accepted")
        self._draw_lanes(chart, lambda lane: (lane.k, lane.measured))
        chart.mark("plain", y=1.0)
        chart.handle("k", x=point.k, text=f"k {point.k}", bounds=(1, most))
        chart.set_range(x=(0, most))

    def _draw_over_alpha(self, chart: Chart) -> None:
        point = self.point
        alphas = [step / 100 for step in range(101)]
        family = {f"k {k}": [point.speedup(alpha, k) for alpha in alphas] for k in _LENGTHS}
        _draw_family(chart, alphas, family, f"k {point.k}", [point.speedup(alpha) for alpha in alphas])
        even = theory.break_even_alpha(point.k, point.c, point.v(point.k))
        if even is not None:
            chart.mark("even", x=even, text=f"breaks even at {even:.2f}", colour="corrected")
        self._draw_lanes(chart, lambda lane: (lane.alpha, lane.measured))
        chart.mark("plain", y=1.0)
        chart.handle("α", x=point.alpha, text=f"α {point.alpha:.2f}", bounds=(0, 1))
        chart.set_range(x=(0, 1))

    def _draw_tokens(self, chart: Chart) -> None:
        point, most = self.point, self._most_k
        lengths = list(range(most + 1))
        right = [theory.expected_tokens(point.alpha, k) for k in lengths]
        rough = [1 + point.alpha * k for k in lengths]
        chart.curve("expected tokens", lengths, right, colour="focus", width_px=2.4, low=right, high=rough)
        chart.curve("1 + α k, the rule of thumb", lengths, rough, colour="corrected", dashed=True)
        chart.mark("k", x=point.k, text=f"α k is {theory.rule_of_thumb_error(point.alpha, point.k):.2f} too high")
        chart.set_range(x=(0, most))

    def _draw_heat(self, chart: Chart) -> None:
        point = self.point
        most = max(0.5, 1.25 * point.c)
        alphas = [(place + 0.5) / _HEAT_COLUMNS for place in range(_HEAT_COLUMNS)]
        costs = [most * (place + 0.5) / _HEAT_ROWS for place in range(_HEAT_ROWS)]
        v = point.v(point.k)
        grid = [[theory.speedup(alpha, point.k, c, v) for alpha in alphas] for c in costs]
        chart.heat(alphas, costs, grid, centre=1.0, form=times)
        evens = [theory.break_even_alpha(point.k, c, v) for c in costs]
        chart.curve("speedup 1", [math.nan if even is None else even for even in evens], costs, colour="ink", dashed=True)
        self._draw_lanes(chart, lambda lane: (lane.alpha, lane.c))
        chart.handle("α", x=point.alpha, text=f"α {point.alpha:.2f}", bounds=(0, 1))
        chart.handle("c", y=point.c, text=f"c {point.c:.2f}", bounds=(0, most))
        chart.set_range(x=(0, 1), y=(0, most))

    def _draw_over_cost(self, chart: Chart) -> None:
        point = self.point
        v = point.v(point.k)
        most = max(_LEAST_COST_SHOWN, 1.4 * v, 1.25 * point.c)
        places = [most * step / 100 for step in range(101)]
        over_c = [theory.speedup(point.alpha, point.k, cost, v) for cost in places]
        over_v = [theory.speedup(point.alpha, point.k, point.c, cost) if cost >= 0.1 else math.nan for cost in places]
        chart.curve(f"over c, at v {v:.2f}", places, over_c, colour="focus", width_px=2.4)
        chart.curve(f"over v, at c {point.c:.2f}", places, over_v, colour="rejected", width_px=2.4)
        self._draw_lanes(chart, lambda lane: (lane.c, lane.measured))
        chart.mark("plain", y=1.0)
        chart.handle("c", x=point.c, text=f"c {point.c:.2f}", bounds=(0, most))
        if point.mode == "measured":
            chart.mark("v", x=v, text=f"v {v:.2f}, measured")
        else:
            chart.handle("v", x=v, text=f"v {v:.2f}", bounds=(0.1 if point.mode == "constant" else 1.0, most))
        chart.set_range(x=(0, most), y=(0, max(1.2, 1.3 * max(point.speedup(), theory.speedup(point.alpha, point.k, 0, v)))))

    def _draw_lanes(self, chart: Chart, where: Any) -> None:
        """The measured lanes as points with their names."""
        for place, lane in self.lanes:
            x, y = where(lane)
            if x is not None and y is not None:
                chart.curve(lane.name, [x], [y], lane=place, line=False, points=True, tips=[lane_words(lane)])

    def _fill_table(self) -> None:
        which, point = self.which.value(), self.point
        if which == "free":
            names, heads = [""] * len(theory.FREE_DRAFTS), ["α", "k", "operations", "speedup"]
            texts = [[f"{alpha:g}", str(k), f"{theory.operations(alpha, k):.2f}×", f"{theory.speedup(alpha, k, 0.0):.2f}×"]
                     for alpha, k, _, _ in theory.FREE_DRAFTS]  # fmt: skip
            bold: set[tuple[int, int]] = set()
            words = "Drafts that cost nothing: arithmetic operations and speed, both of plain decoding's."
        else:
            c = point.c if which == "own" else float(which)
            grid = theory.table(c, theory.TABLE_ALPHAS, theory.TABLE_KS, point.v if which == "own" else theory.constant_v(1.0))
            names, heads = [f"α {alpha:g}" for alpha in theory.TABLE_ALPHAS], [f"k {k}" for k in theory.TABLE_KS]
            texts = [[f"{value:.2f}" for value in row] for row in grid]
            bold = {(place, row.index(max(row))) for place, row in enumerate(grid) if max(row) > 1}
            words = f"Times plain decoding at c {c:.3g}; the best k of each α is bold."
        self.table_words.set_full(words)
        self.table.setRowCount(len(names))
        self.table.setColumnCount(len(heads))
        self.table.setVerticalHeaderLabels(names)
        self.table.setHorizontalHeaderLabels(heads)
        self.table.verticalHeader().setVisible(any(names))
        for row, line in enumerate(texts):
            for column, text in enumerate(line):
                item = QTableWidgetItem(text)
                item.setTextAlignment(Qt.AlignmentFlag.AlignCenter)
                item.setFont(theme.ui_font(11.5, bold=(row, column) in bold))
                self.table.setItem(row, column, item)


def lane_words(lane: LanePoint) -> str:
    """A measured lane in a line."""
    return (
        f"{lane.name}: α {lane.alpha:.2f}, k {lane.k:.1f}, c {number(lane.c)}, v {number(lane.v)}; "
        f"measured {times(lane.measured)}, formula {times(lane.predicted)}"
    )


def _draw_family(chart: Chart, x: Sequence[float], family: Mapping[str, Sequence[float]], own: str, values: Sequence[float]) -> None:
    """Draw curves in greys from faint to ink, so that they recede behind the one that is set."""
    low, high = _rgb(theme.current().border), _rgb(theme.current().muted)
    for place, (name, speedups) in enumerate(family.items()):
        share = 0.45 + 0.55 * place / (len(family) - 1)
        colour = "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(low, high, strict=True))
        chart.curve(name, x, speedups, colour=colour, width_px=1.0, in_key=False, end=name)
    chart.curve(f"{own}, as set", x, values, colour="focus", width_px=2.4)


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
