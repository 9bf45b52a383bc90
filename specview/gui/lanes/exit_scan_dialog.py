"""The scan of exit layers: measured on the engine thread, shown as a table, one of them taken into the form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import QWidget

from specview.drafting.method import MethodInfo
from specview.gui.link.controller import Controller
from specview.gui.link.job import JobEnded, ShouldStop, Tell, Work
from specview.gui.parts import theme
from specview.gui.parts.job_view import JobDialog
from specview.gui.parts.results_table import ResultsTable
from specview.settings.run import RunSettings

if TYPE_CHECKING:
    from specview.experiments.exit_scan import ExitScan

EXIT_OPTION = "exit_layer"


def exit_option(method: MethodInfo) -> str | None:
    """The option that holds the exit layer; None where the method has none."""
    return next((option.name for option in method.options if option.name == EXIT_OPTION), None)


@dataclass(frozen=True, slots=True)
class ExitScans:
    """What a scan needs: the controller of the engine thread, and the settings that name target and prompt."""

    controller: Controller
    settings: RunSettings


def measure(settings: RunSettings, pool: Any, tell: Tell, should_stop: ShouldStop) -> ExitScan:
    """Measure every exit layer of the target on the prompt; raises Stopped or a SpecviewError."""
    from specview.experiments.exit_scan import scan_exits

    tell.progress("Loading the target")
    return scan_exits(settings, models=pool, should_stop=should_stop, on_progress=tell.progress)


class ExitScanDialog(JobDialog):
    """Runs one scan; `chosen` is the layer to use, with its best k, once the dialog was accepted."""

    job_name = "scan of exit layers"
    run_text = "Scan again"
    stop_tip = "Stop within one pass"
    bar_name = "Progress of the scan"
    first_words = "Measuring acceptance and cost of each exit layer on this prompt…"

    def __init__(self, scans: ExitScans, parent: QWidget) -> None:
        from specview.experiments.exit_scan import COLUMNS

        super().__init__(scans.controller, "Scan exit layers", parent)
        self.chosen: tuple[int, int] | None = None
        self._scans = scans
        self.words.setMinimumHeight(self.words.fontMetrics().lineSpacing() * 3)
        self.table = ResultsTable(COLUMNS, identity="layer", name="exit layers")
        self.body.addWidget(self.table)
        self.use = self.button("Use E", "Take the chosen exit layer into the lane's form")
        self.use.setProperty("kind", "primary")
        self.run.setProperty("kind", "")
        self.buttons.addWidget(self.use)
        self.resize(theme.px(680), theme.px(520))
        self.table.selected.connect(lambda _: self.refresh())
        self.table.activated.connect(lambda _: self._accept())
        self.use.clicked.connect(self._accept)
        self.close_button.clicked.connect(self.reject)
        self.close_button.setToolTip("")
        self.follow_job()
        self.start()

    def work(self) -> tuple[Work, RunSettings | None]:
        settings = self._scans.settings
        return (lambda pool, tell, should_stop: measure(settings, pool, tell, should_stop)), settings

    def ended(self, end: JobEnded) -> None:
        if end.result is None and not end.message:
            self.say("Stopped before the scan was done.", "warning")

    def take(self, scan: ExitScan) -> None:
        """Show the scan, its best exit chosen."""
        from specview.experiments.exit_scan import exit_rows

        self.table.set_rows(exit_rows(scan))
        self.table.select(scan.exits.index(scan.best))
        self.say(f"{scan.sentence}\n{scan.about}", "" if scan.pays else "warning")

    def refresh(self) -> None:
        """Name and enable what can be used."""
        chosen = self._selected()
        self.use.setText("Use E" if chosen is None else f"Use E = {chosen[0]}, k = {chosen[1]}")
        self.use.setEnabled(chosen is not None and not self.running)

    def _selected(self) -> tuple[int, int] | None:
        rows = [self.table.rows[place] for place in self.table.selected_rows()]
        return (rows[0]["layer"], rows[0]["best_k"]) if rows else None

    def _accept(self) -> None:
        self.chosen = None if self.running else self._selected()
        if self.chosen is not None:
            self.accept()

    def done(self, result: int) -> None:
        """Stop the scan when the dialog closes, whichever way."""
        self.job.stop()
        super().done(result)

    def closeEvent(self, event: QCloseEvent) -> None:
        """Close as Escape does."""
        event.ignore()
        self.reject()


__all__ = ["EXIT_OPTION", "ExitScanDialog", "ExitScans", "exit_option"]
