"""Every length policy, `auto` and `cascade` on the toy, by the product's own loop: a table that grows as it runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from specview.files.report import MARKS
from specview.gui.link.job import ShouldStop, Tell, Work
from specview.gui.link.pace import Throttle
from specview.gui.parts import layout, theme
from specview.gui.parts.job_view import LabPanel
from specview.gui.parts.pages import PageContext
from specview.gui.parts.results_table import ResultsTable
from specview.gui.parts.widgets import Field, NumberEdit
from specview.lab.exactness import MAX_SAMPLES, MIN_SAMPLES
from specview.lab.policy_exactness import COLUMNS, SAMPLES, PoliciesResult, rows_of, run_policies
from specview.lab.toy import MAX_K, ToySettings
from specview.settings.run import RunSettings


class PoliciesPanel(LabPanel):
    """Settings and a table; `found` is what is shown."""

    job_name = "the policies' proof"
    edits = ("samples", "k", "seed")
    run_tip = "Run the toy through the program's own loop with every policy; no model is loaded"

    def __init__(self, context: PageContext) -> None:
        super().__init__(context)
        self.found: PoliciesResult | None = None
        self.samples = NumberEdit(
            "samples", SAMPLES, whole=True, minimum=MIN_SAMPLES, maximum=MAX_SAMPLES, step=1000, digits=8
        )
        self.k = NumberEdit("k", 3, whole=True, minimum=1, maximum=MAX_K, digits=3)
        self.seed = NumberEdit("seed", 0, whole=True, minimum=0, maximum=2**63 - 1, digits=5)
        row = self.settings_row(
            Field("samples", self.samples, "Sequences of four tokens for each policy, about 1 ms each"),
            Field("k", self.k, "Drafted tokens a round, as the policy takes it"),
            Field("seed", self.seed, "Of the samples"),
        )
        self.table = ResultsTable(COLUMNS, identity="case", name="policies-proof")
        layout.column(
            row, self.verdict, (self.table, 1), on=self, gap=theme.px(5),
            margins=(theme.px(12), theme.px(6), theme.px(12), theme.px(8))
        )
        self.follow_job()

    def work(self) -> tuple[Work, RunSettings | None]:
        """Run the experiment; snapshots go to the window."""
        settings, samples, seed = ToySettings(k=self.k.value()), self.samples.value(), self.seed.value()

        def work(pool: Any, tell: Tell, should_stop: ShouldStop) -> PoliciesResult:
            due = Throttle()

            def on_case(part: PoliciesResult, text: str, fraction: float) -> None:
                if due():
                    tell.progress(text, fraction)
                    tell(replace(part, cases=list(part.cases)))

            return run_policies(settings, samples, seed, on_case, should_stop)

        return work, None

    def take(self, found: Any) -> None:
        """Show a result, finished or not."""
        if isinstance(found, PoliciesResult) and found.cases:
            self.found = found
            self.draw()

    def draw(self) -> None:
        """Show the table and the verdict."""
        found = self.found
        self.table.set_rows([] if found is None else rows_of(found))
        if found is None:
            self.say("Every length policy, auto and cascade draft for a target that is known exactly, with each rule that "
                     "claims to be exact. None may differ from it; naive, the control, must.")  # fmt: skip
            return
        self.say(MARKS[found.verdict.tone] + found.verdict.text)

