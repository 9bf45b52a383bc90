"""The scan of exit layers: measured on the engine thread, shown as a table, one of them taken into the form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QDialog,
    QHeaderView,
    QProgressBar,
    QPushButton,
    QTableWidget,
    QTableWidgetItem,
    QWidget,
)

from specview.drafting.method import MethodInfo
from specview.gui.link.controller import Controller
from specview.gui.link.engine_thread import JobEnded, JobNews, JobProgress
from specview.gui.parts import layout, theme
from specview.gui.parts.widgets import label, set_kind, set_tip
from specview.gui.state.display_text import tooltip
from specview.gui.state.figures import milliseconds, number, times
from specview.racing.settings import RunSettings

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


class ExitScanDialog(QDialog):
    """Runs one scan; `chosen` is the layer to use, with its best k, once the dialog was accepted."""

    def __init__(self, scans: ExitScans, parent: QWidget) -> None:
        super().__init__(parent)
        self.setWindowTitle("Scan exit layers")
        self.chosen: tuple[int, int] | None = None
        self._scans = scans
        self._running = False
        self._scan: ExitScan | None = None
        self.words = label("", "muted")
        self.words.setWordWrap(True)
        self.words.setMinimumHeight(self.words.fontMetrics().lineSpacing() * 3)
        self.words.setAlignment(Qt.AlignmentFlag.AlignTop | Qt.AlignmentFlag.AlignLeft)
        self.progress = QProgressBar()
        self.progress.setTextVisible(False)
        self.progress.setRange(0, 1000)
        self.progress.setAccessibleName("Progress of the scan")
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
        self.use = QPushButton("Use E")
        self.use.setProperty("kind", "primary")
        self.stop = QPushButton("Stop")
        self.again = QPushButton("Scan again")
        self.cancel = QPushButton("Close")
        set_tip(self.use, "Take the chosen exit layer into the lane's form")
        set_tip(self.stop, "Stop within one pass")
        layout.column(
            self.words, self.progress, (self.table, 1), layout.row(self.stop, self.again, 1, self.cancel, self.use),
            on=self, gap=10, margins=(18, 16, 18, 14)
        )
        self.resize(theme.px(600), theme.px(520))
        self.table.itemSelectionChanged.connect(self._name_use)
        self.table.itemDoubleClicked.connect(lambda _: self._take())
        self.use.clicked.connect(self._take)
        self.stop.clicked.connect(self._stop)
        self.again.clicked.connect(self.start)
        self.cancel.clicked.connect(self.reject)
        self._run_id = -1
        scans.controller.job_news.connect(self._on_progress)
        scans.controller.job_ended.connect(self._on_end)
        self.start()

    @property
    def running(self) -> bool:
        """Whether the scan is under way."""
        return self._running

    def start(self) -> None:
        """Measure, where nothing else is under way: a Stop would end that too."""
        if self._running:
            return
        busy = self._scans.controller.busy_words
        if busy:
            self._say(busy, "warning")
            self._show_state()
            return
        self._running = True
        self._say("Measuring acceptance and cost of each exit layer on this prompt…", "muted")
        self.progress.setRange(0, 0)
        self._run_id = self._scans.controller.scan_exits(self._scans.settings)
        self._show_state()

    def _stop(self) -> None:
        self._scans.controller.stop()
        self.stop.setEnabled(False)

    def _on_progress(self, event: JobNews) -> None:
        news = event.news
        if event.run_id != self._run_id or not isinstance(news, JobProgress):
            return
        if news.fraction is None:
            self.progress.setRange(0, 0)
        else:
            self.progress.setRange(0, 1000)
            self.progress.setValue(round(1000 * min(max(news.fraction, 0.0), 1.0)))
        self._say(news.text, "muted")

    def _on_end(self, event: JobEnded) -> None:
        if event.run_id != self._run_id:
            return
        self._running = False
        if event.result is not None:
            self._show_scan(event.result)
        elif event.message:
            self._say(event.message, "error")
        else:
            self._say("Stopped before the scan was done.", "warning")
        self._show_state()

    def _show_scan(self, scan: ExitScan) -> None:
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
        self._say(
            f"{scan.sentence}\nMeasured on {scan.model_name}: {scan.tokens} greedy tokens after a prompt of "
            f"{scan.prompt_tokens}; a plain step takes {milliseconds(scan.plain_step_s)}.",
            "" if scan.pays else "warning",
        )

    def _say(self, text: str, kind: str) -> None:
        set_kind(self.words, kind)
        self.words.setText(text)

    def _show_state(self) -> None:
        # The bar keeps its place when it is idle: nothing jumps.
        if not self._running:
            self.progress.setRange(0, 1000)
            self.progress.setValue(0)
        self.stop.setEnabled(self._running)
        self.again.setEnabled(not self._running)
        self._name_use()

    def _selected(self) -> ExitFigures | None:
        row = self.table.currentRow() if self.table.selectedItems() else -1
        return self._scan.exits[row] if self._scan is not None and 0 <= row < len(self._scan.exits) else None

    def _name_use(self) -> None:
        chosen = self._selected()
        self.use.setText("Use E" if chosen is None else f"Use E = {chosen.layer}, k = {chosen.best_k}")
        self.use.setEnabled(chosen is not None and not self._running)

    def _take(self) -> None:
        chosen = self._selected()
        if chosen is not None and not self._running:
            self.chosen = chosen.layer, chosen.best_k
            self.accept()

    def done(self, result: int) -> None:
        """Stop the scan when the dialog closes, whichever way."""
        if self._running:
            self._scans.controller.stop()
        self._scans.controller.job_news.disconnect(self._on_progress)
        self._scans.controller.job_ended.disconnect(self._on_end)
        super().done(result)

    def closeEvent(self, event: QCloseEvent) -> None:
        """Close as Escape does."""
        event.ignore()
        self.reject()


__all__ = ["COLUMNS", "EXIT_OPTION", "ExitScanDialog", "ExitScans", "exit_option"]
