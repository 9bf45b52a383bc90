"""The scan of exit layers: measured on the engine thread, shown as a table, one of them taken into the form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import Qt
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTableWidget, QTableWidgetItem, QWidget

from specview.drafting.method import MethodInfo
from specview.files.figures import milliseconds, number, times
from specview.gui.link.controller import Controller
from specview.gui.link.job import JobEnded, ShouldStop, Tell, Work
from specview.gui.parts import theme
from specview.gui.parts.job_view import JobDialog
from specview.gui.state.display_text import tooltip
from specview.racing.pool import target_key
from specview.racing.race import tokenize_prompt
from specview.settings.run import RunSettings

if TYPE_CHECKING:
    from specview.experiments.exit_scan import ExitFigures, ExitScan

EXIT_OPTION = "exit_layer"

COLUMNS = (
    ("E", "Exit layer: the target's first E layers draft."),
    ("acceptance α", "Share of the target's own greedy tokens, on this prompt, that the exit drafts right."),
    ("cost c", "Time of one draft step / of one plain target step, measured."),
    ("best k", "The draft length with the highest predicted speedup."),
    ("predicted", "Speedup (1 - α^(k+1)) / ((1 - α)(k c + v)) at the best k: below 1 it is slower than plain."),
    ("measured", "Speedup of real runs with this exit and its best k over plain runs beside them: median. Only the "
     "exits with the best predictions are run."),
)


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
    target = pool.get(target_key(settings), tell.progress, should_stop)
    return scan_exits(target, tokenize_prompt(settings, target), should_stop=should_stop, on_progress=tell.progress)


class ExitScanDialog(JobDialog):
    """Runs one scan; `chosen` is the layer to use, with its best k, once the dialog was accepted."""

    job_name = "scan of exit layers"
    run_text = "Scan again"
    stop_tip = "Stop within one pass"
    bar_name = "Progress of the scan"
    first_words = "Measuring acceptance and cost of each exit layer on this prompt…"

    def __init__(self, scans: ExitScans, parent: QWidget) -> None:
        super().__init__(scans.controller, "Scan exit layers", parent)
        self.chosen: tuple[int, int] | None = None
        self._scans = scans
        self._scan: ExitScan | None = None
        self.words.setMinimumHeight(self.words.fontMetrics().lineSpacing() * 3)
        self.table = QTableWidget(0, len(COLUMNS))
        self.table.setAccessibleName("Exit layers")
        self.table.setHorizontalHeaderLabels([name for name, _ in COLUMNS])
        for place, (_, words) in enumerate(COLUMNS):
            heading = self.table.horizontalHeaderItem(place)
            assert heading is not None
            heading.setToolTip(tooltip(words))
        self.table.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.Stretch)
        self.table.horizontalHeader().setHighlightSections(False)
        self.table.verticalHeader().hide()
        self.table.setShowGrid(False)
        self.table.setTabKeyNavigation(False)
        self.table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.table.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.body.addWidget(self.table)
        self.use = self.button("Use E", "Take the chosen exit layer into the lane's form")
        self.use.setProperty("kind", "primary")
        self.run.setProperty("kind", "")
        self.buttons.addWidget(self.use)
        self.resize(theme.px(600), theme.px(520))
        self.table.itemSelectionChanged.connect(self.refresh)
        self.table.itemDoubleClicked.connect(lambda _: self._accept())
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
        self._scan = scan
        best = scan.best
        self.table.setRowCount(len(scan.exits))
        for place, one in enumerate(scan.exits):
            measured = "" if one.confirmed is None else times(one.confirmed.speedup)
            cells = (f"{one.layer}", number(one.acceptance_rate), number(one.draft_cost, 3), str(one.best_k),
                     times(one.predicted_speedup), measured)
            for column, text in enumerate(cells):
                item = QTableWidgetItem(f"best → {text}" if one is best and column == 0 else text)
                item.setTextAlignment(Qt.AlignmentFlag.AlignCenter)
                if one is best:
                    font = item.font()
                    font.setBold(True)
                    item.setFont(font)
                if one.confirmed is not None and column == len(cells) - 1:
                    each = ", ".join(times(value) for value in one.confirmed.speedups)
                    item.setToolTip(tooltip(f"each run: {each}"))
                self.table.setItem(place, column, item)
        place = scan.exits.index(best)
        self.table.selectRow(place)
        self.table.scrollTo(self.table.model().index(place, 0), QAbstractItemView.ScrollHint.PositionAtCenter)
        self.say(
            f"{scan.sentence}\nMeasured on {scan.model_name}: {scan.tokens} greedy tokens after a prompt of "
            f"{scan.prompt_tokens}; a plain step takes {milliseconds(scan.plain_step_s)}.",
            "" if scan.pays else "warning",
        )

    def _selected(self) -> ExitFigures | None:
        row = self.table.currentRow() if self.table.selectedItems() else -1
        return self._scan.exits[row] if self._scan is not None and 0 <= row < len(self._scan.exits) else None

    def refresh(self) -> None:
        """Name and enable what can be used."""
        chosen = self._selected()
        self.use.setText("Use E" if chosen is None else f"Use E = {chosen.layer}, k = {chosen.best_k}")
        self.use.setEnabled(chosen is not None and not self.running)

    def _accept(self) -> None:
        chosen = self._selected()
        if chosen is not None and not self.running:
            self.chosen = chosen.layer, chosen.best_k
            self.accept()

    def done(self, result: int) -> None:
        """Stop the scan when the dialog closes, whichever way."""
        self.job.stop()
        super().done(result)

    def closeEvent(self, event: QCloseEvent) -> None:
        """Close as Escape does."""
        event.ignore()
        self.reject()


__all__ = ["COLUMNS", "EXIT_OPTION", "ExitScanDialog", "ExitScans", "exit_option"]
