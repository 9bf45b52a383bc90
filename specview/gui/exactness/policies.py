"""Every length policy, `auto` and `cascade` on the toy, by the product's own loop: a table that grows as it runs."""

from __future__ import annotations

from specview.gui.exactness.panel import ExactnessPanel, Experiment
from specview.gui.parts.pages import PageContext
from specview.gui.parts.results_table import ResultsTable
from specview.lab.exactness import MAX_SAMPLES, MIN_SAMPLES
from specview.lab.policy_exactness import COLUMNS, SAMPLES, rows_of, run_policies
from specview.lab.toy import MAX_K, ToySettings


class PoliciesPanel(ExactnessPanel):
    """Settings and a table."""

    job_name = "the policies' proof"
    run_tip = "Run the toy through the program's own loop with every policy; no model is loaded"
    empty = (
        "Every length policy, auto and cascade draft for a target that is known exactly, with each rule that claims to be "
        "exact. None may differ from it; naive, the control, must."
    )

    def __init__(self, context: PageContext) -> None:
        super().__init__(context)
        self.samples = self.number("samples", SAMPLES, "Sequences of four tokens for each policy, about 1 ms each",
                                   minimum=MIN_SAMPLES, maximum=MAX_SAMPLES, step=1000, digits=8)  # fmt: skip
        self.k = self.number("k", 3, "Drafted tokens a round, as the policy takes it", minimum=1, maximum=MAX_K, digits=3)
        self.seed = self.number("seed", 0, "Of the samples", maximum=2**63 - 1)
        self.table = ResultsTable(COLUMNS, identity="case", name="policies-proof")
        self.lay_out(self.verdict, (self.table, 1))

    def experiment(self) -> tuple[Experiment, None]:
        settings, samples, seed = ToySettings(k=self.k.value()), self.samples.value(), self.seed.value()
        return lambda pool, on_part, should_stop: run_policies(settings, samples, seed, on_part, should_stop), None

    def draw(self) -> None:
        """Show the table and the verdict."""
        super().draw()
        self.table.set_rows([] if self.found is None else rows_of(self.found))
