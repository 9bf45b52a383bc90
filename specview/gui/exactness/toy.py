"""The toy proof, live: total variation over samples for five samplers, and p values over many seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from specview.errors import UsageError
from specview.gui.exactness.panel import ExactnessPanel, Experiment, begin
from specview.gui.parts import layout, theme
from specview.gui.parts.charts import Chart
from specview.gui.parts.pages import PageContext
from specview.gui.parts.results_table import ResultsTable
from specview.lab import exactness
from specview.lab import toy as toys
from specview.lab.exact_statistics import labelled, p_text

SEEDS = 100
BINS = 10
_EMPTY = (
    "Run draws hundreds of thousands of sequences from a target small enough to be known exactly. A correct sampler's "
    "distance falls along the 1/√N line for ever; a biased one's stops at its bias."
)


class ToyPanel(ExactnessPanel):
    """Settings, the live log-log plot, the many-seed histogram and a table."""

    job_name = "the toy proof"
    run_tip = "Sample with all five samplers on this machine; no model is loaded"

    def __init__(self, context: PageContext) -> None:
        super().__init__(context)
        self.vocab = self.number("vocab", 4, "Size of the toy's vocabulary", caption="tokens", minimum=2, maximum=64, digits=3)
        self.length = self.number("length", 4, "Tokens of a sequence: tokens to the power of length outcomes, each counted",
                                  minimum=1, maximum=16, digits=3)  # fmt: skip
        self.k = self.number("k", 3, "Drafted tokens a round; every draft is that long", minimum=1, maximum=toys.MAX_K, digits=3)
        self.samples = self.number("samples", exactness.SAMPLES, "Sequences of each sampler",
                                   minimum=exactness.MIN_SAMPLES, maximum=exactness.MAX_SAMPLES, step=100_000, digits=8)  # fmt: skip
        self.seed = self.number("seed", 0, "Of the samples", maximum=2**63 - 1)
        self.model_seed = self.number("model_seed", toys.MODEL_SEED, "Of the random tables; 2 is the literature's toy", maximum=2**63 - 1)
        self.seeds = self.number("seeds", SEEDS, "Many-seed view: p values over this many seeds, 20,000 samples each; 0 omits it",
                                 maximum=exactness.MAX_SEEDS, step=10, check=exactness.check_seeds)  # fmt: skip
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
        self.table = ResultsTable(exactness.COLUMNS, identity="sampler", name="toy-proof")
        right = layout.column((self.histogram, 1), (self.contexts, 1), gap=theme.px(8))
        self.lay_out(self.verdict, (layout.row((self.chart, 3), (right, 2), gap=theme.px(8)), 1), self.table)

    def settings(self) -> toys.ToySettings:
        """The toy as set; raises UsageError."""
        return toys.ToySettings(self.vocab.value(), self.length.value(), self.k.value(), self.model_seed.value())

    def experiment(self) -> tuple[Experiment, None]:
        settings, samples, seed, seeds = self.settings(), self.samples.value(), self.seed.value(), self.seeds.value()
        return lambda pool, on_part, should_stop: exactness.run_toy(settings, samples, seed, seeds, on_part, should_stop), None

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Take what `kept` returned."""
        super().restore(kept)
        try:
            self.settings()
        except UsageError:  # each fits, and all together do not
            for edit in (self.vocab, self.length):
                edit.set_value(4)

    # -- drawing -----------------------------------------------------------------------------------------

    def draw(self) -> None:
        """Draw what is shown."""
        super().draw()
        found: exactness.ToyResult | None = self.found
        self._draw_line(found)
        self._draw_seeds(found)
        self._draw_contexts(found)
        self.table.set_rows([] if found is None else exactness.rows_of(found))
        self.table.setFixedHeight(theme.px(210))  # it keeps its rows, whatever the font

    def _draw_line(self, found: exactness.ToyResult | None) -> None:
        chart = self.chart
        if not begin(chart, "" if found else _EMPTY) or found is None:
            return
        for lane, name in enumerate(toys.SAMPLERS):
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

    def _draw_seeds(self, found: exactness.ToyResult | None) -> None:
        chart, seeds = self.histogram, found.seeds if found else {}
        if not begin(chart, "" if seeds else "The p values of many seeds: set seeds to 5 or more, and Run."):
            return
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
            chart.bars(title, at, share, width=width, lane=lane, tips=tips)
        chart.mark("even", y=1 / BINS, text="evenly spread")
        chart.ticks("x", [(edge, f"{edge:.1f}") for edge in edges[::2]])
        chart.set_range(x=(0, 1), y=(0, max(most * 1.05, 0.3)))

    def _draw_contexts(self, found: exactness.ToyResult | None) -> None:
        chart = self.contexts
        words = "By the last token: what the rules accept, by closed form and as measured."
        if found:
            words = "Too many tokens to show one by one: the command's document has them." if found.settings.vocab > 16 else ""
        if not begin(chart, words) or found is None:
            return
        places = np.arange(found.settings.vocab, dtype=float)
        for shift, name in ((-0.2, "rejection"), (0.2, "match")):
            lane = toys.SAMPLERS.index(name)
            values, measured = found.exact.alphas[name], found.samplers[name].alpha_per_context
            tips = [f"{name} after token {int(place)}: {value:.4f} exactly" for place, value in zip(places, values, strict=True)]
            chart.bars(f"{name}, exact", places + shift, values, width=0.36, lane=lane, tips=tips)
            chart.curve(f"{name}, measured", places + shift, [np.nan if one is None else one for one in measured],
                        colour="ink", shape=lane, line=False, points=True,
                        tips=[f"{name} after token {at}: {'-' if one is None else f'{one:.4f}'} measured"
                              for at, one in enumerate(measured)])  # fmt: skip
        chart.ticks("x", [(place, f"{int(place)}{' (start)' if place == toys.BOS else ''}") for place in places])
        chart.set_range(x=(-0.6, found.settings.vocab - 0.4), y=(0, 1.02))
