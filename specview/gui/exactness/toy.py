"""The toy proof, live: total variation over samples for five samplers, and p values over many seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from specview.errors import UsageError
from specview.files.report import MARKS
from specview.gui.link.job import ShouldStop, Tell, Work
from specview.gui.link.pace import Throttle
from specview.gui.parts import layout, theme
from specview.gui.parts.charts import Chart
from specview.gui.parts.job_view import LabPanel
from specview.gui.parts.pages import PageContext
from specview.gui.parts.results_table import ResultsTable
from specview.gui.parts.widgets import Field, NumberEdit
from specview.lab.exact_statistics import labelled, p_text
from specview.lab.exactness import (
    COLUMNS,
    MAX_SAMPLES,
    MAX_SEEDS,
    MIN_SAMPLES,
    SAMPLES,
    ToyResult,
    check_seeds,
    rows_of,
    run_toy,
)
from specview.lab.toy import BOS, MAX_K, MODEL_SEED, SAMPLERS, ToySettings
from specview.settings.run import RunSettings

SEEDS = 100
BINS = 10
_EMPTY = (
    "Run draws hundreds of thousands of sequences from a target small enough to be known exactly. A correct sampler's "
    "distance falls along the 1/√N line for ever; a biased one's stops at its bias."
)


class ToyPanel(LabPanel):
    """Settings, the live log-log plot, the many-seed histogram and a table; `found` is what is shown."""

    job_name = "the toy proof"
    edits = ("vocab", "length", "k", "samples", "seed", "model_seed", "seeds")
    run_tip = "Sample with all five samplers on this machine; no model is loaded"

    def __init__(self, context: PageContext) -> None:
        super().__init__(context)
        self.found: ToyResult | None = None
        self.vocab = NumberEdit("tokens", 4, whole=True, minimum=2, maximum=64, digits=3)
        self.length = NumberEdit("length", 4, whole=True, minimum=1, maximum=16, digits=3)
        self.k = NumberEdit("k", 3, whole=True, minimum=1, maximum=MAX_K, digits=3)
        self.samples = NumberEdit(
            "samples", SAMPLES, whole=True, minimum=MIN_SAMPLES, maximum=MAX_SAMPLES, step=100_000, digits=8
        )
        self.seed = NumberEdit("seed", 0, whole=True, minimum=0, maximum=2**63 - 1, digits=5)
        self.model_seed = NumberEdit("model seed", MODEL_SEED, whole=True, minimum=0, maximum=2**63 - 1, digits=5)
        self.seeds = NumberEdit("seeds", SEEDS, whole=True, minimum=0, maximum=MAX_SEEDS, step=10, digits=5,
                                check=check_seeds)  # fmt: skip
        row = self.settings_row(
            Field("tokens", self.vocab, "Size of the toy's vocabulary"),
            Field("length", self.length, "Tokens of a sequence: tokens to the power of length outcomes, each counted"),
            Field("k", self.k, "Drafted tokens a round; every draft is that long"),
            Field("samples", self.samples, "Sequences of each sampler"),
            Field("seed", self.seed, "Of the samples"),
            Field("model seed", self.model_seed, "Of the random tables; 2 is the literature's toy"),
            Field("seeds", self.seeds, "Many-seed view: p values over so many seeds, 20,000 samples each; 0 leaves it out"),
        )
        self.chart = Chart("Total variation from the target", "½ Σ |frequency − p|",
                           "Over all outcomes. Dashed: what an exact sampler shows on average, √(2/πN) ½ Σ √(p(1−p)). "
                           "Dotted: the exact biases of the lossy rules, by enumeration.",
                           x="N, samples", y="total variation", log_x=True, log_y=True)  # fmt: skip
        self.histogram = Chart("Chi-square p over many seeds", "share of seeds in each tenth",
                               "A correct sampler's p values are spread evenly over 0..1 (dotted); a biased one's are near 0.",
                               x="p", y="share of seeds")  # fmt: skip
        self.contexts = Chart("Acceptance rate by context", "Σ min(p, q); match: Σ p q",
                              "By the last token. Bars: closed form; points: measured.",
                              x="last token", y="α")  # fmt: skip
        self.table = ResultsTable(COLUMNS, identity="sampler", name="toy-proof")
        self._fit()
        theme.signals.changed.connect(self._fit)
        plots = layout.row(
            (self.chart, 3), (layout.column((self.histogram, 1), (self.contexts, 1), gap=theme.px(8)), 2),
            gap=theme.px(8)
        )
        layout.column(
            row, self.verdict, (plots, 1), self.table, on=self, gap=theme.px(5),
            margins=(theme.px(12), theme.px(6), theme.px(12), theme.px(8))
        )
        self.follow_job()

    def _fit(self) -> None:
        """Follow the font: the table keeps its rows."""
        self.table.setFixedHeight(theme.px(210))

    # -- settings --------------------------------------------------------------------------------------

    def settings(self) -> ToySettings:
        """The toy as set; raises UsageError."""
        return ToySettings(self.vocab.value(), self.length.value(), self.k.value(), self.model_seed.value())

    def work(self) -> tuple[Work, RunSettings | None]:
        """Run the experiment; snapshots go to the window."""
        settings, samples, seed, seeds = self.settings(), self.samples.value(), self.seed.value(), self.seeds.value()

        def work(pool: Any, tell: Tell, should_stop: ShouldStop) -> ToyResult:
            due = Throttle()

            def on_part(part: ToyResult, text: str, fraction: float) -> None:
                if due():
                    tell.progress(text, fraction)
                    tell(snapshot(part))

            return run_toy(settings, samples, seed, seeds, on_part, should_stop)

        return work, None

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Take what `kept` returned."""
        super().restore(kept)
        try:
            self.settings()
        except UsageError:  # each fits, and all together do not
            for edit, value in ((self.vocab, 4), (self.length, 4)):
                edit.set_value(value)

    # -- drawing -----------------------------------------------------------------------------------------

    def take(self, found: Any) -> None:
        """Show a result, finished or not."""
        if isinstance(found, ToyResult) and found.samplers:
            self.found = found
            self.draw()

    def draw(self) -> None:
        """Draw what is shown."""
        found = self.found
        self._draw_line(found)
        self._draw_seeds(found)
        self._draw_contexts(found)
        self.table.set_rows([] if found is None else rows_of(found))
        self.say("" if found is None else MARKS[found.verdict.tone] + found.verdict.text)

    def _draw_line(self, found: ToyResult | None) -> None:
        chart = self.chart
        chart.clear()
        chart.say(_EMPTY if found is None else "")
        if found is None:
            return
        for lane, name in enumerate(SAMPLERS):
            points = found.curves.get(name, ())
            tips = [
                f"{name}, {point.samples:,} samples: total variation {point.tv:.4f}, chi-square p {p_text(point.chi2_p)}"
                for point in points
            ]
            title = labelled(name)
            chart.curve(title, [point.samples for point in points], [point.tv for point in points], lane=lane,
                        points=True, tips=tips)  # fmt: skip
        samples, line = zip(*found.line, strict=True)
        chart.curve("1/√N, an exact sampler", samples, line, colour="muted", dashed=True)
        for name in ("naive", "typical"):
            if found.exact.bias[name] > 0:
                bias = found.exact.bias[name]
                chart.mark(name, y=bias, text=f"{name}: exact bias {bias:.4f}")
        top = max(point.tv for points in found.curves.values() for point in points)
        least = min(min(line), *(point.tv for points in found.curves.values() for point in points if point.tv > 0))
        chart.set_range(x=(90, max(1000, found.asked) * 1.1), y=(least / 1.4, max(top, *found.exact.bias.values()) * 1.4))
        chart.ticks("x", [(10.0**power, f"{10**power:,}") for power in range(2, 8)])
        chart.ticks("y", [(m * 10.0**e, f"{m * 10.0**e:g}") for e in range(-6, 1) for m in (1, 2, 5)])

    def _draw_seeds(self, found: ToyResult | None) -> None:
        chart = self.histogram
        chart.clear()
        seeds = {} if found is None else found.seeds
        if not seeds:
            chart.say("The p values of many seeds: set seeds to 5 or more, and Run.")
            return
        chart.say("")
        edges = np.linspace(0, 1, BINS + 1)
        width = 1 / BINS / (len(seeds) + 1)
        most = 0.0
        for lane, (name, one) in enumerate(seeds.items()):
            if not one.p_values:
                continue
            counts, _ = np.histogram(np.clip(one.p_values, 0, 1), bins=edges)
            share = counts / len(one.p_values)
            most = max(most, float(share.max()))
            at = edges[:-1] + (lane + 1) * width
            tips = [
                f"{name}: {count} of {len(one.p_values)} seeds with p {low:.1f} to {high:.1f}; uniform: p {p_text(one.uniform_p)}"
                for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True)
            ]
            title = labelled(name)
            chart.bars(title, at, share, width=width, colour=theme.current().lane_colors[lane % 5], tips=tips)
        chart.mark("even", y=1 / BINS, text="evenly spread")
        chart.ticks("x", [(edge, f"{edge:.1f}") for edge in edges[::2]])
        chart.set_range(x=(0, 1), y=(0, max(most * 1.05, 0.3)))

    def _draw_contexts(self, found: ToyResult | None) -> None:
        chart = self.contexts
        chart.clear()
        if found is None or found.settings.vocab > 16:
            few = "By the last token: what the rules accept, by closed form and as measured."
            chart.say(few if found is None else "Too many tokens to show one by one: the command's document has them.")
            return
        chart.say("")
        places = np.arange(found.settings.vocab, dtype=float)
        for shift, name in ((-0.2, "rejection"), (0.2, "match")):
            lane = SAMPLERS.index(name)
            values, measured = found.exact.alphas[name], found.samplers[name].alpha_per_context
            tips = [f"{name} after token {int(place)}: {value:.4f} exactly" for place, value in zip(places, values, strict=True)]
            chart.bars(f"{name}, exact", places + shift, values, width=0.36, lane=lane, tips=tips)
            chart.curve(f"{name}, measured", places + shift, [np.nan if one is None else one for one in measured],
                        colour="ink", shape=lane, line=False, points=True,
                        tips=[f"{name} after token {at}: {'-' if one is None else f'{one:.4f}'} measured"
                              for at, one in enumerate(measured)])  # fmt: skip
        chart.ticks("x", [(place, f"{int(place)}{' (start)' if place == BOS else ''}") for place in places])
        chart.set_range(x=(-0.6, found.settings.vocab - 0.4), y=(0, 1.02))


def snapshot(result: ToyResult) -> ToyResult:
    """A copy that stays as it is while the run goes on."""
    return replace(
        result,
        curves=dict(result.curves),
        samplers=dict(result.samplers),
        seeds=dict(result.seeds),
    )

