"""A real pair's exactness: rule and kernels judged apart, first tokens, distances by depth, greedy decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFrame, QSizePolicy

from specview.drafting.registry import DEFAULT_METHOD
from specview.errors import UsageError
from specview.files.report import MARKS, Text, Tone
from specview.gui.exactness.panel import ExactnessPanel, Experiment, begin
from specview.gui.parts import layout, theme
from specview.gui.parts.charts import Chart
from specview.gui.parts.pages import PageContext
from specview.gui.parts.results_table import ResultsTable
from specview.gui.parts.widgets import Check, Choice, label
from specview.gui.state.display_text import tooltip, visible
from specview.lab import pair_results
from specview.lab.exact_statistics import labelled, p_text
from specview.lab.pair_exactness import run_pair
from specview.lab.toy import SAMPLERS
from specview.racing.resolve import checked_run
from specview.settings.run import LaneSettings, RunSettings

_TEMPERATURE, _TOP_K = 1.0, 8
_EMPTY = (
    "Run draws thousands of short continuations of the prompt by plain decoding and by the lane chosen, and compares "
    "them. Every prefix is computed once, so that they cost few passes."
)


class PairPanel(ExactnessPanel):
    """Settings, two plots, four findings and a table."""

    job_name = "the pair's exactness"
    run_text = "Run the test"
    run_tip = "Load the models, compare greedy decoding token for token, then sample; takes up to some minutes"

    def __init__(self, context: PageContext) -> None:
        super().__init__(context)
        self._lanes: tuple[LaneSettings, ...] = ()
        self.lane = self.field("lane", Choice(), "Which of the race's lanes is compared with plain decoding")
        self.lane.setMinimumContentsLength(14)
        self.samples = self.number("samples", pair_results.SAMPLES, "Of each: plain, the lane's rule, and the lossy rules as controls",
                                   caption="continuations", minimum=pair_results.MIN_SAMPLES, maximum=pair_results.MAX_SAMPLES, step=500, digits=7)  # fmt: skip
        self.tokens = self.number("tokens", pair_results.TOKENS, "Of a continuation; drafts end with it",
                                  minimum=pair_results.MIN_TOKENS, maximum=pair_results.MAX_TOKENS, digits=3)  # fmt: skip
        self.temperature = self.number("temperature", _TEMPERATURE, "0 runs only the greedy token-for-token check",
                                       whole=False, step=0.1, digits=4)  # fmt: skip
        self.top_k = self.number("top_k", _TOP_K, "Fewer tokens make fewer prefixes, each of which is computed once; 0 is off",
                                 caption="top-k", digits=4)  # fmt: skip
        self.greedy = self.number("greedy", pair_results.GREEDY_TOKENS, "Length of the token-for-token check at temperature 0",
                                  caption="greedy tokens", minimum=1, maximum=pair_results.MAX_GREEDY_TOKENS, digits=4)  # fmt: skip
        self.seed = self.number("seed", 0, "Of the continuations", maximum=2**63 - 1, digits=4)
        self.check_mode = self.field(
            " ", Check("check mode"), "Pad one-row passes: rows then have the same bits in every pass, and a correct loop must "
                                      "equal plain decoding. Off, the drift of the kernels is measured."
        )  # fmt: skip
        self.check_mode.setChecked(True)
        self.check_mode.setMinimumHeight(self.lane.sizeHint().height())
        self.first = Chart("First token", "share of continuations; p and q exactly",
                           "The likeliest first tokens. p and q: exact, from the models' rows after the filters.",
                           x="token", y="probability")  # fmt: skip
        self.depths = Chart("Distance from plain decoding", "½ Σ |share − plain's share|",
                            "Total variation over the first tokens, by rule. Dashed: what two samples of one distribution "
                            "stay under 99 times in 100. An exact rule lies under it.",
                            x="first tokens compared", y="total variation")  # fmt: skip
        self.findings = tuple(Finding(title, tip) for title, tip in _FINDINGS)
        self.table = ResultsTable(pair_results.COLUMNS, name="pair-exactness")
        self.table.setMaximumHeight(theme.px(330))
        cards = layout.grid(self.findings, len(self.findings), gap=theme.px(8), shares=(1, 0))
        charts = layout.row((self.first, 3), (self.depths, 2), gap=theme.px(8))
        self.lay_out(cards, self.verdict, (charts, 3), (self.table, 2))
        self.show_lanes()
        self.controller.lanes_changed.connect(self._lanes_changed)

    # -- settings --------------------------------------------------------------------------------------

    def show_lanes(self) -> None:
        """Offer the drafting lanes that are set up; a draft model where there is none."""
        try:
            lanes = tuple(lane for lane in self.context.run_settings().lanes if not lane.plain)
        except UsageError:  # the setup bar says why
            lanes = self._lanes
        lanes = lanes or (LaneSettings(DEFAULT_METHOD),)
        if lanes != self._lanes:
            self._lanes = lanes
            self.lane.set_items(tuple((str(place), visible(lane.label)) for place, lane in enumerate(lanes)))

    def _lanes_changed(self) -> None:
        if self.isVisible():  # shown again, it asks for itself
            self.show_lanes()

    def settings(self) -> tuple[RunSettings, pair_results.PairSettings]:
        """What Run would test; raises UsageError."""
        settings = self.context.run_settings()
        self.show_lanes()  # the setup bar's rule may be another one by now
        sampling = replace(
            settings.sampling, temperature=self.temperature.value(), top_k=self.top_k.value(), seed=self.seed.value()
        )
        lane = self._lanes[int(self.lane.value() or 0)]
        if sampling.greedy is False and lane.rule == "greedy":
            lane = replace(lane, rule="auto")
        settings = replace(
            settings, lanes=(LaneSettings(), lane), sampling=sampling, check_mode=self.check_mode.isChecked()
        )
        return checked_run(settings), pair_results.PairSettings(self.samples.value(), self.tokens.value(), self.greedy.value())

    def experiment(self) -> tuple[Experiment, RunSettings]:
        settings, pair = self.settings()
        return lambda pool, on_part, should_stop: run_pair(settings, pair, pool, on_part, should_stop), settings

    def kept(self) -> dict[str, Any]:
        """What is remembered."""
        return super().kept() | {"check_mode": self.check_mode.isChecked()}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Take what `kept` returned."""
        super().restore(kept)
        if isinstance(kept.get("check_mode"), bool):
            self.check_mode.setChecked(bool(kept["check_mode"]))

    # -- drawing -----------------------------------------------------------------------------------------

    def take(self, found: pair_results.PairResult) -> None:
        """Show a result, finished or not, even before the first continuation."""
        self.found = found
        self.draw()

    def draw(self) -> None:
        """Draw what is shown."""
        found: pair_results.PairResult | None = self.found
        self._draw_first(found)
        self._draw_depths(found)
        self.table.set_rows([] if found is None else pair_results.rows_of(found))
        for card, finding in zip(self.findings, findings_of(found), strict=True):
            card.show_finding(finding)
        if found is None:
            self.say("")
            return
        words = [f"{found.samples:,} continuations of {found.asked.tokens} tokens of each sampler."]
        words += [pair_results.cached_words(found)] if found.cached else []
        words += [f"{found.no_bias[:1].upper()}{found.no_bias[1:]}."] if found.no_bias else []
        self.say(" ".join((["Stopped early."] if found.stopped else []) + words))

    def _draw_first(self, found: pair_results.PairResult | None) -> None:
        chart = self.first
        words = _EMPTY
        if found:
            words = "" if found.first else "At temperature 0 nothing is sampled." if found.greedy else "Not yet."
        if not begin(chart, words) or found is None:
            return
        names = [name for name in found.first[0].shares if name != "typical"]
        width = 0.8 / len(names)
        for number, name in enumerate(names):
            at = [place - 0.4 + (number + 0.5) * width for place in range(len(found.first))]
            tips = [f"{visible(one.text)!r}: {name} {one.shares[name]:.4f} of {found.samples:,}; p {one.p:.4f}" for one in found.first]
            chart.bars(labelled(name), at, [one.shares[name] for one in found.first],
                       width=width * 0.92, lane=SAMPLERS.index(name), tips=tips)  # fmt: skip
        places = np.arange(len(found.first), dtype=float)
        chart.curve("p, exact", places, [one.p for one in found.first], colour="p_ink", line=False, points=True, shape=0,
                    tips=[f"{visible(one.text)!r}: p {one.p:.4f}" for one in found.first])  # fmt: skip
        if any(one.q is not None for one in found.first):
            chart.curve("q, exact", places, [np.nan if one.q is None else one.q for one in found.first],
                        colour="q_grey", line=False, points=True, shape=2,
                        tips=[f"{visible(one.text)!r}: q {one.q or 0:.4f}" for one in found.first])  # fmt: skip
        chart.ticks("x", [(float(place), short(one.text)) for place, one in enumerate(found.first)])
        top = max(max(one.p, one.q or 0.0, *one.shares.values()) for one in found.first)
        chart.set_range(x=(-0.6, len(found.first) - 0.4), y=(0, top * 1.08))

    def _draw_depths(self, found: pair_results.PairResult | None) -> None:
        chart, rules = self.depths, found.rules if found else {}
        words = "" if rules else "The distance of each rule from plain decoding, with what chance alone explains."
        if not begin(chart, words) or found is None:
            return
        for name, one in rules.items():
            tips = [
                f"{name}, first {test.depth}: total variation {test.tv:.4f}, chi-square p {p_text(test.chi2_p)}"
                for test in one.tests
            ]
            at, tv = [test.depth for test in one.tests], [test.tv for test in one.tests]
            chart.curve(labelled(name), at, tv, lane=SAMPLERS.index(name), points=True, tips=tips)
        tests = next((one.tests for one in rules.values() if not one.lossy), ())
        bounds = {test.depth: test.bound for test in tests if test.bound is not None}
        if bounds and len(bounds) == len(tests):
            chart.curve("chance explains (99%)", list(bounds), list(bounds.values()), colour="muted", dashed=True)
        top = max(0.05, *bounds.values(), *(test.tv for one in rules.values() for test in one.tests))
        chart.ticks("x", [(float(depth), str(depth)) for depth in range(1, found.asked.tokens + 1)])
        chart.set_range(x=(0.8, found.asked.tokens + 0.2), y=(0, top * 1.1))


_FINDINGS = (
    ("Rule", "Whether the lane's rule gives plain decoding's distribution, on rows that both share"),
    ("Control: the naive rule", "A rule known to be wrong: a test that misses it shows nothing"),
    ("Kernels", "How far the target's rows are apart between passes of one row and of several, whatever the rule"),
    ("Greedy", "Token for token at temperature 0, in the engine itself"),
)


class Finding(QFrame):
    """A card: a title, a mark and a sentence."""

    def __init__(self, title: str, tip: str) -> None:
        super().__init__()
        self.setProperty("kind", "panel")
        self.setToolTip(tooltip(tip))
        self.setAccessibleName(title)
        self.mark = label("", "title")
        self.title = label(title, "title")
        self.words = label("", "small")
        self.words.setWordWrap(True)
        self.words.setAlignment(Qt.AlignmentFlag.AlignTop)
        self.words.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.words.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.MinimumExpanding)
        layout.column(
            layout.row(self.mark, (self.title, 1), gap=theme.px(6)), (self.words, 1), on=self, gap=theme.px(2),
            margins=(theme.px(9), theme.px(5), theme.px(9), theme.px(6))
        )

    def show_finding(self, finding: Text) -> None:
        """A note has no mark."""
        mark = MARKS[finding.tone].strip()
        self.mark.setText(mark)
        self.mark.setVisible(bool(mark))
        self.words.setText(finding.text)
        self.setAccessibleDescription(f"{_HEARD.get(finding.tone, '')} {finding.text}".strip())


_HEARD: dict[Tone, str] = {"good": "passed:", "bad": "failed:", "warning": "open:"}


def findings_of(found: pair_results.PairResult | None) -> list[Text]:
    """The four cards' words: what was found so far, or why there is nothing."""
    cards = []
    for title, tip in _FINDINGS:
        parts = [] if found is None else [text for what, text in found.findings if what and title.startswith(what)]
        if parts:
            tone: Tone = "bad" if any(part.tone == "bad" for part in parts) else parts[0].tone
            words = " ".join(part.text for part in parts).removeprefix(f"{title}: ")
            cards.append(Text(words[:1].upper() + words[1:], tone))
        elif found is None:
            cards.append(Text(tip, "note"))
        else:
            sampled = title == "Greedy" or not found.settings.sampling.greedy
            cards.append(Text("not yet" if sampled else "at temperature 0 nothing is sampled", "note"))
    return cards


def short(text: str) -> str:
    """A token for an axis."""
    shown = visible(text)
    return f"{shown[:8]}…" if len(shown) > 9 else shown
