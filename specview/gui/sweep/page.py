"""The Sweep tab: a grid is edited, run, stopped and resumed; its plots, its table, and the files of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QFileDialog,
    QFrame,
    QMenu,
    QProgressBar,
    QPushButton,
    QSizePolicy,
    QSplitter,
    QToolButton,
    QWidget,
)

from specview.errors import SpecviewError
from specview.experiments.runner import SeriesProgress
from specview.experiments.sweep import ASK_RUNS, Estimate, grid_words
from specview.experiments.sweep_curves import CellRun
from specview.experiments.sweep_file import read_sweep
from specview.experiments.sweep_grid import Grid
from specview.experiments.sweep_results import COLUMNS, FEW, SweepResults
from specview.files.atomic import OutputFile
from specview.files.schema import dumps
from specview.gui.link.background import Background
from specview.gui.link.job import Job, JobEnded
from specview.gui.link.pace import Later
from specview.gui.parts import layout, theme
from specview.gui.parts.pages import Page, PageContext
from specview.gui.parts.questions import ask
from specview.gui.parts.results_table import ResultsTable
from specview.gui.parts.widgets import Banner, ElidedLabel, Scrolled, enable_in_turn, label, set_kind, set_tip
from specview.gui.sweep.charts import SweepCharts
from specview.gui.sweep.form import GridForm
from specview.gui.sweep.work import (
    JOB,
    FoundSweep,
    NeedsYes,
    SweepBegun,
    newest_sweeps,
    sweep_work,
)
from specview.settings.run import RunSettings

_REDRAW_MS = 1000
_SHARE = 0.05
"""Of the Qt thread's time: what drawing may take while races are timed."""


class SweepPage(Page):
    """One sweep at a time: its form on the left, its progress, plots and table on the right."""

    def __init__(self, context: PageContext) -> None:
        super().__init__(context)
        self.results: SweepResults | None = None
        self.path: Path | None = None
        self.found: list[FoundSweep] = []
        self.job = Job(context.controller, JOB)
        self._under_way: Grid | None = None
        self._stale = False
        self._rates: dict[tuple[Any, ...], Estimate] = {}
        self._wanted: Path | None = None
        self._looked = self._offered = False
        self.form = GridForm()
        self.charts = SweepCharts()
        self.table = ResultsTable(
            COLUMNS, identity="cell", hidden={column.key for column in COLUMNS} - set(FEW), name="sweep"
        )
        self.reader = Background(self)
        self._make_controls()
        self._lay_out()
        self._connect()
        self._show_state()

    # -- making --------------------------------------------------------------------------------

    def _make_controls(self) -> None:
        self.estimate = label("", "small")
        self.estimate.setWordWrap(True)
        self.run = QPushButton("Run")
        self.run.setProperty("kind", "primary")
        self.stop = QPushButton("Stop")
        self.resume = QPushButton("Resume")
        set_tip(self.run, "Race every cell of the grid, plain decoding beside each")
        set_tip(self.stop, "Stop within one round (Esc); every finished race is kept")
        set_tip(self.resume, "Race what this sweep still lacks, and once more what failed")
        self.open, self.open_menu = self._menu_button("Open ▾", "Open an earlier sweep")
        self.export, self.export_menu = self._menu_button("Export ▾", "Save the table, the whole sweep, or a plot")
        self.as_race = QPushButton("Open as a race")
        set_tip(self.as_race, "Take the selected cell's prompt, lane and k into the Race tab (Enter in the table)")
        self.name = ElidedLabel("", "title")
        self.progress = QProgressBar()
        self.progress.setRange(0, 1000)
        self.progress.setTextVisible(False)
        self.progress.setAccessibleName("Progress of the sweep")
        self.words = ElidedLabel("", "small")
        self.banner = Banner()
        self._later = Later(self, _REDRAW_MS, self._redraw, _SHARE)

    def _menu_button(self, text: str, tip: str) -> tuple[QToolButton, QMenu]:
        button = QToolButton()
        button.setText(text)
        button.setAccessibleName(text.rstrip(" ▾"))
        button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        set_tip(button, tip)
        menu = QMenu(button)
        button.setMenu(menu)
        return button, menu

    def _lay_out(self) -> None:
        side = QFrame()
        side.setProperty("kind", "panel")
        side.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Expanding)
        layout.column(
            (self.form, 1), self.estimate, layout.row(self.run, self.stop, self.resume, 1, gap=theme.px(6)),
            on=side, gap=theme.px(6), margins=(theme.px(10), theme.px(8), theme.px(10), theme.px(10))
        )
        self.split = QSplitter(Qt.Orientation.Vertical)
        self.split.setChildrenCollapsible(False)
        self.split.setHandleWidth(theme.px(7))
        self.split.addWidget(self.charts)
        self.split.addWidget(self.table)
        self.split.setStretchFactor(0, 3)
        self.split.setStretchFactor(1, 1)
        self.split.setSizes([theme.px(520), theme.px(160)])
        self.table.export_button.hide()  # the page's own menu has all of it
        right = layout.column(
            layout.row((self.name, 1), self.as_race, self.open, self.export, gap=theme.px(8)), self.progress,
            self.words, self.banner, (Scrolled(self.split, 540), 1), gap=theme.px(6)
        )
        layout.row(
            side, (right, 1), on=self, gap=theme.px(10),
            margins=(theme.px(10), theme.px(8), theme.px(10), theme.px(8))
        )
        self._side: QWidget = side
        self._fit()

    def _fit(self) -> None:
        self._side.setFixedWidth(theme.px(276))
        self.estimate.setFixedHeight(2 * self.estimate.fontMetrics().lineSpacing())

    def _connect(self) -> None:
        controller = self.context.controller
        self.run.clicked.connect(lambda: self.start())
        self.stop.clicked.connect(lambda: self._stop())
        self.resume.clicked.connect(lambda: self.go_on())
        self.as_race.clicked.connect(lambda: self._open_selected())
        self.form.changed.connect(self._say_estimate)
        self.table.activated.connect(self._open_row)
        self.table.selected.connect(lambda _: self._show_state())
        self.charts.cell.connect(self.open_cell)
        self.open_menu.aboutToShow.connect(self._fill_open_menu)
        self.export_menu.aboutToShow.connect(self._fill_export_menu)
        self.reader.failed.connect(self._read_failed)
        self.job.told.connect(self._on_news)
        self.job.ended.connect(self._on_end)
        controller.state_changed.connect(self._show_state)
        theme.signals.changed.connect(self._fit)

    # -- the page ------------------------------------------------------------------------------

    def opened(self) -> None:
        """Take the race's settings as they are now; at first, look for a sweep that was not finished."""
        self.form.show_settings(self._settings())
        if not self._looked:
            self._looked = True
            wanted = self._wanted
            self.reader.do(lambda: newest_sweeps(wanted), self._listed, "folder")
        self._show_state()

    def kept(self) -> dict[str, Any]:
        """The form, the table's looks, and which sweep is shown."""
        path = self.path or self._wanted  # it may still be read
        return {"form": self.form.kept(), "table": self.table.kept(), "path": str(path) if path else ""}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Take up what `kept` gave."""
        for key, take in (("form", self.form.restore), ("table", self.table.restore)):
            if isinstance(kept.get(key), Mapping):
                take(kept[key])
        if isinstance(kept.get("path"), str) and kept["path"]:
            self._wanted = Path(kept["path"])

    def _settings(self) -> RunSettings | None:
        try:
            return self.context.run_settings()
        except SpecviewError:
            return None

    @property
    def running(self) -> bool:
        """Whether a sweep of this page is under way."""
        return self.job.running

    # -- running -------------------------------------------------------------------------------

    def start(self, *, yes: bool = False) -> None:
        """Run the grid of the form as a new sweep."""
        try:
            self.form.show_settings(self._settings())
            grid = self.form.grid()
        except SpecviewError as error:
            self.banner.show_message(str(error))
            return
        known = self._rate(grid)
        if not yes and known is not None and grid.run_count > ASK_RUNS:  # what is known need not be measured first
            if not self.ask(NeedsYes(grid, None, grid_words(grid, known))):
                return
            yes = True
        self._begin(grid, None, yes)

    def go_on(self, *, yes: bool = False) -> None:
        """Go on with the sweep that is shown."""
        if self.results is not None and self.path is not None:
            self._begin(self.results.grid, self.path, yes)

    def _begin(self, grid: Grid, path: Path | None, yes: bool) -> None:
        controller = self.context.controller
        if controller.busy_with:
            self.banner.show_message(controller.busy_words, "warning")
            return
        if not self.context.confirm_models(grid.shared):  # an opened file may have named them
            return
        self.banner.clear()
        now = self._settings()
        trust = now is not None and now.trust_remote_code and now.target == grid.settings.target
        if path is None and trust:
            grid = replace(grid, settings=replace(grid.settings, trust_remote_code=True))
        self._under_way = grid
        self.words.set_full("Loading, and measuring plain decoding for an estimate of the time")
        self.progress.setRange(0, 0)
        self.job.start(sweep_work(grid, path, yes, trust))
        self._show_state()

    def ask(self, what: NeedsYes) -> bool:
        """Ask whether to run what takes long."""
        text = f"{what.words}.\nIt can be stopped and resumed at any time."
        return bool(ask(self, "A long sweep", text, {"run": "Run it"}))

    def _stop(self) -> None:
        self.job.stop()
        self._show_state()

    def _on_news(self, news: Any) -> None:
        if isinstance(news, SeriesProgress):
            self.progress.setRange(0, 1000)
            self.progress.setValue(round(1000 * news.fraction))
            self.words.set_full(news.words)
        elif isinstance(news, CellRun) and self.results is not None:
            self.results.add(news)
            self._later.ask()
        elif isinstance(news, Estimate):
            if self._under_way is not None:
                self._rates[_target_of(self._under_way.settings)] = news
            self._say_estimate()
        elif isinstance(news, SweepBegun):
            self.show_sweep(news.results, news.path)

    def _on_end(self, event: JobEnded) -> None:
        self.progress.setRange(0, 1000)
        if isinstance(event.result, SweepResults):
            self.results = event.result
            self._redraw()
            self._say_end(event.result)
        elif isinstance(event.result, NeedsYes):
            self._idle()
            if self.ask(event.result):
                self._begin(event.result.grid, event.result.path, True)
        else:
            self._idle()
            if event.message:
                self.banner.show_message(event.message)
        self._show_state()

    def _say_end(self, results: SweepResults) -> None:
        done, failed = len(results.runs), len(results.failures)
        self.progress.setValue(round(1000 * done / results.total))
        if done < results.total:
            words = f"Stopped after {done} of {results.total} races; Resume goes on"
        else:
            words = f"Done: {done} races"
        if failed:
            words += f", {failed} failed: {results.failures[0].error}"
        busy = sum(bool(run.busy) for run in results.runs.values())
        if busy:
            words += f"; in {busy} of {done} the machine was busy with other programs"
        self.words.set_full(words)

    def _idle(self) -> None:
        """What the bar and its words say while nothing runs."""
        if self.results is None:
            self.progress.setValue(0)
            self.words.set_full("")
        else:
            self._say_end(self.results)

    # -- showing -------------------------------------------------------------------------------

    def show_sweep(self, results: SweepResults, path: Path | None) -> None:
        """Show a sweep: one that begins, or one that was opened."""
        self.results, self.path = results, path
        grid = results.grid
        lanes = ", ".join(grid.lane_name(lane) for lane in range(len(grid.lanes)))
        name = path.stem if path is not None else "sweep"
        self.name.set_full(f"{name} · {lanes} · {grid.settings.target} · {grid.settings.engine}")
        self.charts.show_results(results)
        self.table.set_rows(results.rows())
        if results.trouble:
            self.banner.show_message(f"{name}: {results.trouble}.", "warning")
        if not self.running:
            self._idle()
        self._show_state()

    def _redraw(self) -> None:
        self._later.stop()
        if self.results is not None:
            if self.charts.results is not self.results:
                self.charts.results = self.results
            if self.isVisible():
                self.charts.refresh()
                self.table.set_rows(self.results.rows())
                for chart in self.charts.charts:
                    chart.redraw()
            else:
                self._stale = True

    def showEvent(self, event: Any) -> None:
        """Draw what came while another tab was in front."""
        super().showEvent(event)
        if self._stale:
            self._stale = False
            self._redraw()

    def _show_state(self) -> None:
        running = self.running
        pending = self.results is not None and self.path is not None and self.results.to_do
        free = not running and not self.context.controller.busy_with
        enable_in_turn(self.run, self.stop, free, self.job.can_stop)
        self.resume.setEnabled(free and pending)
        self.export.setEnabled(self.results is not None)
        self.open.setEnabled(not running)
        self.as_race.setEnabled(bool(self.table.selected_rows()))

    def _say_estimate(self) -> None:
        try:
            grid = self.form.grid()
        except SpecviewError as error:
            set_kind(self.estimate, "error")
            self.estimate.setText(str(error))
            return
        set_kind(self.estimate, "small")
        self.estimate.setText(grid_words(grid, self._rate(grid)))

    def _rate(self, grid: Grid) -> Estimate | None:
        """How fast plain decoding is on this target here: measured for a sweep, or in the races of the one shown."""
        key = _target_of(grid.settings)
        known = self._rates.get(key)
        if known is None and self.results is not None and _target_of(self.results.grid.settings) == key:
            rate = self.results.plain_tokens_per_s()
            known = Estimate(rate) if rate else None
        return known

    # -- files ---------------------------------------------------------------------------------

    def _fill_open_menu(self) -> None:
        self.open_menu.clear()
        for found in self.found:
            action = self.open_menu.addAction(found.words)
            action.triggered.connect(lambda _=False, found=found: self._open_found(found))
        if self.found:
            self.open_menu.addSeparator()
        self.open_menu.addAction("File…", self._choose)
        self.reader.do(newest_sweeps, self._listed, "folder")

    def _open_found(self, found: FoundSweep) -> None:
        if found.results is None:
            self.banner.show_message(found.trouble)
        else:
            self.open_file(found.path)

    def _choose(self) -> None:
        path, _ = QFileDialog.getOpenFileName(self, "Open a sweep", "", "Sweeps (*.jsonl);;All files (*)")
        if path:
            self.open_file(Path(path))

    def open_file(self, path: Path) -> None:
        """Open a sweep's file; it is read in the background."""
        if not self.running:
            self._wanted = path
            self.reader.do(lambda: (path, _folded(path)), self._opened)

    def _listed(self, found: list[FoundSweep]) -> None:
        self.found = found
        self._offer()

    def _read_failed(self, line: str) -> None:
        self._wanted = None
        self.banner.show_message(line)

    def _opened(self, result: tuple[Path, SweepResults]) -> None:
        self._wanted = None
        if not self.running:
            path, results = result
            self.banner.clear()
            self.form.show_grid(results.grid)
            self.show_sweep(results, path)

    def _offer(self) -> None:
        """At the first look: show the sweep that was shown last, else offer one that was not finished."""
        if self._offered or self.results is not None or self.running:
            return
        self._offered = True
        wanted = next((one for one in self.found if one.path == self._wanted and one.results is not None), None)
        shown = wanted or next((one for one in self.found if one.unfinished), None)
        self._wanted = None
        if shown is None or shown.results is None:
            return
        self.show_sweep(shown.results, shown.path)
        if shown.unfinished:
            done = len(shown.results.runs)
            self.banner.show_message(
                f"This sweep is not finished: {done} of {shown.results.total} races. Resume goes on with it.", "warning"
            )

    def _fill_export_menu(self) -> None:
        menu = self.export_menu
        menu.clear()
        menu.addAction("Table as CSV…", lambda: self.table.export("csv"))
        menu.addAction("Table as Markdown…", lambda: self.table.export("markdown"))
        menu.addAction("Table as JSON…", lambda: self.table.export("json"))
        menu.addAction("Whole sweep as JSON…", lambda: self._ask_json())
        menu.addSeparator()
        for chart in self.charts.charts:
            own = menu.addMenu(chart.title)
            for ending in ("png", "svg", "csv"):
                own.addAction(f"{ending.upper()}…").triggered.connect(
                    lambda _=False, chart=chart, ending=ending: self._ask_plot(chart, ending)
                )

    def _ask_json(self) -> None:
        path, _ = QFileDialog.getSaveFileName(self, "Save the sweep", "sweep.json", "JSON (*.json);;All files (*)")
        if path:
            self.save_json(path if Path(path).suffix else f"{path}.json")

    def save_json(self, path: str | Path) -> bool:
        """Write the whole sweep as one JSON document; an earlier file stays as it was where that fails."""
        if self.results is None:
            return False
        try:
            with OutputFile(path, "sweep") as file:
                file.write(dumps(self.results.document(), indent=1) + "\n")
        except SpecviewError as error:
            self.banner.show_message(str(error))
            return False
        self.words.set_full(f"Written to {path}")
        return True

    def _ask_plot(self, chart: Any, ending: str) -> None:
        start = "-".join(chart.title.lower().split())
        path, _ = QFileDialog.getSaveFileName(self, "Save the plot", f"{start}.{ending}", f"{ending.upper()} (*.{ending})")
        if path:
            self.save_plot(chart, path if Path(path).suffix else f"{path}.{ending}")

    def save_plot(self, chart: Any, path: str | Path) -> bool:
        """Write a plot; whether it worked."""
        try:
            chart.save(path)
        except SpecviewError as error:
            self.banner.show_message(str(error))
            return False
        self.words.set_full(f"Written to {path}")
        return True

    # -- cells ---------------------------------------------------------------------------------

    def _open_selected(self) -> None:
        chosen = self.table.selected_rows()
        if chosen:
            self._open_row(chosen[0])

    def _open_row(self, index: int) -> None:
        self.open_cell(int(self.table.rows[index]["cell"]))

    def open_cell(self, number: int) -> None:
        """Set a cell's race up in the Race tab: its prompt, temperature, lane and k; nothing is run."""
        if self.results is None or not 0 <= number < len(self.results.cells):
            return
        settings = self.results.grid.race(self.results.cells[number])
        now = self._settings()
        observe = now.observe if now is not None else "full"
        self.context.open_race(replace(settings, observe=observe))


def _folded(path: Path) -> SweepResults:
    """A sweep's results with their rows made: of ten thousand cells that takes a second or two."""
    results = read_sweep(path)
    results.rows()
    return results


def _target_of(settings: RunSettings) -> tuple[Any, ...]:
    """What makes plain decoding as fast as it is."""
    return (settings.engine, settings.target, settings.device, settings.dtype, settings.threads, settings.gpu_layers, settings.check_mode)
