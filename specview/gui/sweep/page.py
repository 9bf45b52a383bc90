"""The Sweep tab: a grid is edited, run, stopped and resumed; its plots, its table, and the files of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QFileDialog, QFrame, QPushButton, QSizePolicy

from specview.errors import SpecviewError
from specview.experiments.sweep import ASK_RUNS, Estimate, grid_words
from specview.experiments.sweep_curves import CellRun
from specview.experiments.sweep_grid import Grid
from specview.experiments.sweep_results import COLUMNS, HIDDEN, SweepResults
from specview.files.atomic import OutputFile
from specview.files.schema import dumps
from specview.gui.link.background import Background
from specview.gui.link.job import JobEnded, JobProgress, Work
from specview.gui.link.pace import Later
from specview.gui.parts import layout, theme
from specview.gui.parts.job_view import JobView, show_progress
from specview.gui.parts.pages import Page, PageContext, SetupLine
from specview.gui.parts.questions import ask
from specview.gui.parts.results_table import ResultsTable
from specview.gui.parts.widgets import (
    Banner,
    ElidedLabel,
    Scrolled,
    enable_in_turn,
    label,
    menu_button,
    set_kind,
    set_tip,
)
from specview.gui.sweep.charts import SweepCharts
from specview.gui.sweep.form import GridForm
from specview.gui.sweep.work import SweepPlan, SweepShown, folded, newest_sweeps, sweep_work
from specview.settings.run import RunSettings

_REDRAW_MS = 1000
_SHARE = 0.05
"""Of the Qt thread's time: what drawing may take while races are timed."""


class SweepPage(JobView, Page):
    """One sweep at a time: its form on the left, its progress, plots and table on the right."""

    job_name = "sweep"
    run_tip = "Race every cell of the grid, plain decoding beside each"
    stop_tip = "Stop within one round (Esc); every finished race is kept"
    bar_name = "Progress of the sweep"
    first_words = "Loading, and measuring plain decoding for an estimate of the time"

    def __init__(self, context: PageContext) -> None:
        Page.__init__(self, context)
        self.make_job(context.controller)
        self.results: SweepResults | None = None
        self.path: Path | None = None
        self.found: list[SweepShown] = []
        self._plan: SweepPlan | None = None  # what runs next, where it is not the form's grid
        self._stale = False
        self._rates: dict[Any, Estimate] = {}
        self._wanted: Path | None = None
        self._looked = False
        self.form = GridForm()
        self.charts = SweepCharts()
        self.table = ResultsTable(COLUMNS, identity="cell", hidden=HIDDEN, name="sweep")
        self.reader = Background(self)
        self._later = Later(self, _REDRAW_MS, self._redraw, _SHARE)
        self._lay_out()
        self._connect()
        self.follow_job()

    # -- making --------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        self.estimate = label("", "small")
        self.estimate.setWordWrap(True)
        self.resume = QPushButton("Resume")
        set_tip(self.resume, "Race what this sweep still lacks, and once more what failed")
        self.open, self.open_menu = menu_button("Open ▾", "Open an earlier sweep")
        self.export, self.export_menu = menu_button("Export ▾", "Save the table, the whole sweep, or a plot")
        self.as_race = QPushButton("Open as a race")
        set_tip(self.as_race, "Take the selected cell's prompt, lane and k into the Race tab (Enter in the table)")
        self.name, self.words, self.banner = ElidedLabel("", "title"), ElidedLabel("", "small"), Banner()
        self._side = side = QFrame()
        side.setProperty("kind", "panel")
        side.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Expanding)
        layout.column(
            (self.form, 1), self.estimate, layout.row(self.run, self.stop, self.resume, 1, gap=theme.px(6)),
            on=side, gap=theme.px(6), margins=(theme.px(10), theme.px(8), theme.px(10), theme.px(10))
        )
        self.split = layout.split(Qt.Orientation.Vertical, (self.charts, 3, theme.px(520)), (self.table, 1, theme.px(160)))
        self.split.setChildrenCollapsible(False)
        self.split.setHandleWidth(theme.px(7))
        self.table.export_button.hide()  # the page's own menu has all of it
        right = layout.column(
            layout.row((self.name, 1), self.as_race, self.open, self.export, gap=theme.px(8)), self.progress,
            self.words, self.banner, (Scrolled(self.split, 540), 1), gap=theme.px(6)
        )
        self.setup_line = SetupLine(self.context, ("temperature", "max_tokens", "prompt"))
        layout.column(
            self.setup_line, (layout.row(side, (right, 1), gap=theme.px(10)), 1), on=self, gap=theme.px(4),
            margins=(theme.px(10), theme.px(4), theme.px(10), theme.px(8))
        )
        self._fit()

    def _fit(self) -> None:
        self._side.setFixedWidth(theme.px(276))
        self.estimate.setFixedHeight(2 * self.estimate.fontMetrics().lineSpacing())

    def _connect(self) -> None:
        self.resume.clicked.connect(lambda: self.go_on())
        self.as_race.clicked.connect(lambda: self._open_row(*self.table.selected_rows()[:1]))
        self.form.changed.connect(self._say_estimate)
        self.table.activated.connect(self._open_row)
        self.table.selected.connect(lambda _: self.show_state())
        self.charts.cell.connect(self.open_cell)
        self.open_menu.aboutToShow.connect(self._fill_open_menu)
        self.export_menu.aboutToShow.connect(self._fill_export_menu)
        self.reader.failed.connect(self._read_failed)
        theme.signals.changed.connect(self._fit)

    # -- the page ------------------------------------------------------------------------------

    def opened(self) -> None:
        """Take the race's settings as they are now; at first, look for a sweep that was not finished."""
        self.form.show_settings(self._settings())
        if not self._looked:
            self._looked = True
            wanted = self._wanted
            self.reader.do(lambda: newest_sweeps(wanted), self._offer)
        self.show_state()

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

    # -- running -------------------------------------------------------------------------------

    def start(self) -> None:
        """Run the grid of the form as a new sweep."""
        self._plan = None
        super().start()

    def go_on(self) -> None:
        """Go on with the sweep that is shown."""
        if self.results is not None and self.path is not None:
            self._run(SweepPlan(self.results.grid, self.path))

    def _run(self, plan: SweepPlan) -> None:
        self._plan = plan
        super().start()

    def work(self) -> tuple[Work, RunSettings | None] | None:
        """The plan that is next, else the form's grid; asked about where it is known to take long."""
        now, plan = self._settings(), self._plan
        if plan is None:
            self.form.show_settings(now)
            grid = self.form.grid()
            known = self._rate(grid)
            yes = known is not None and grid.run_count > ASK_RUNS  # what is known need not be measured first
            plan = SweepPlan(grid, yes=yes, words=grid_words(grid, known))
            if yes and not self.ask(plan):
                return None
        if not self.context.confirm_models(plan.grid.shared):  # an opened file may have named them
            return None
        self.banner.clear()
        trust = now is not None and now.trust_remote_code and now.target == plan.grid.settings.target
        self._plan = replace(plan, trust=trust)
        return sweep_work(self._plan), None

    def ask(self, plan: SweepPlan) -> bool:
        """Ask whether to run what takes long."""
        text = f"{plan.words}.\nIt can be stopped and resumed at any time."
        return bool(ask(self, "A long sweep", text, {"run": "Run it"}))

    def progressed(self, news: JobProgress) -> None:
        super().progressed(news)
        self.words.set_full(news.text)

    def take(self, found: Any) -> None:
        """Show what the sweep told, or its results."""
        if isinstance(found, CellRun) and self.results is not None:
            self.results.add(found)
            self._later.ask()
        elif isinstance(found, Estimate):
            if self._plan is not None:
                self._rates[_target_of(self._plan.grid)] = found
            self._say_estimate()
        elif isinstance(found, SweepShown) and found.results is not None:
            self.show_sweep(found.results, found.path)
        elif isinstance(found, SweepResults):
            self.results = found
            self._redraw()

    def ended(self, end: JobEnded) -> None:
        self._say_end()
        if isinstance(end.result, SweepPlan) and self.ask(end.result):
            self._run(end.result)

    def complain(self, text: str, kind: str = "error") -> None:
        self.banner.show_message(text, kind)

    def _say_end(self) -> None:
        """What the bar and its words say while nothing runs."""
        if self.results is None:
            show_progress(self.progress, 0.0)
            self.words.set_full("")
            return
        results = self.results
        done, total, failures = len(results.runs), results.total, results.failures
        show_progress(self.progress, done / total)
        words = f"Done: {done} races" if done == total else f"Stopped after {done} of {total} races; Resume goes on"
        if failures:
            words += f", {len(failures)} failed: {failures[0].error}"
        busy = sum(bool(run.busy) for run in results.runs.values())
        if busy:
            words += f"; in {busy} of {done} the machine was busy with other programs"
        self.words.set_full(words)

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
            self._say_end()
        self.show_state()

    def _redraw(self) -> None:
        self._later.stop()
        self._stale = not self.isVisible()
        if self.results is None or self._stale:
            return
        self.charts.results = self.results
        self.charts.refresh()
        self.table.set_rows(self.results.rows())
        for chart in self.charts.charts:
            chart.redraw()

    def showEvent(self, event: Any) -> None:
        """Draw what came while another tab was in front."""
        super().showEvent(event)
        if self._stale:
            self._redraw()

    def show_state(self) -> None:
        """Say by the buttons what can be done."""
        pending = self.results is not None and self.path is not None and self.results.to_do
        free = not self.running and not self.controller.busy_with
        enable_in_turn(self.run, self.stop, free, self.job.can_stop)
        self.resume.setEnabled(free and pending)
        self.export.setEnabled(self.results is not None)
        self.open.setEnabled(not self.running)
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
        key = _target_of(grid)
        known = self._rates.get(key)
        if known is None and self.results is not None and _target_of(self.results.grid) == key:
            rate = self.results.plain_tokens_per_s()
            known = Estimate(rate) if rate else None
        return known

    # -- files ---------------------------------------------------------------------------------

    def _fill_open_menu(self) -> None:
        self.open_menu.clear()
        for found in self.found:
            self.open_menu.addAction(found.words).triggered.connect(lambda _=False, found=found: self._open_found(found))
        if self.found:
            self.open_menu.addSeparator()
        self.open_menu.addAction("File…", self._choose)
        self.reader.do(newest_sweeps, self._listed, "folder")

    def _listed(self, found: list[SweepShown]) -> None:
        self.found = found

    def _open_found(self, found: SweepShown) -> None:
        if found.results is None:
            self.complain(found.trouble)
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
            self.reader.do(lambda: folded(path), self._opened)

    def _read_failed(self, line: str) -> None:
        self._wanted = None
        self.complain(line)

    def _opened(self, found: SweepShown) -> None:
        self._wanted = None
        if not self.running and found.results is not None:
            self.banner.clear()
            self.form.show_grid(found.results.grid)
            self.show_sweep(found.results, found.path)

    def _offer(self, found: list[SweepShown]) -> None:
        """At the first look: show the sweep that was shown last, else offer one that was not finished."""
        self.found = found
        if self.results is not None or self.running:
            return
        wanted = next((one for one in found if one.path == self._wanted and one.results is not None), None)
        shown = wanted or next((one for one in found if one.unfinished), None)
        self._wanted = None
        if shown is None or shown.results is None:
            return
        self.show_sweep(shown.results, shown.path)
        if shown.unfinished:
            races = f"{len(shown.results.runs)} of {shown.results.total} races"
            self.banner.show_message(f"This sweep is not finished: {races}. Resume goes on with it.", "warning")

    def _fill_export_menu(self) -> None:
        menu = self.export_menu
        menu.clear()
        menu.addAction("Table as CSV…", lambda: self.table.export("csv"))
        menu.addAction("Table as Markdown…", lambda: self.table.export("markdown"))
        menu.addAction("Table as JSON…", lambda: self.table.export("json"))
        menu.addAction("Whole sweep as JSON…", lambda: self._ask_json())
        menu.addSeparator()
        for chart in self.charts.charts:
            own = chart.save_menu()
            own.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose, False)
            own.setTitle(chart.title)
            menu.addMenu(own)

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
            self.complain(str(error))
            return False
        self.words.set_full(f"Written to {path}")
        return True

    # -- cells ---------------------------------------------------------------------------------

    def _open_row(self, index: int | None = None) -> None:
        if index is not None:
            self.open_cell(int(self.table.rows[index]["cell"]))

    def open_cell(self, number: int) -> None:
        """Set a cell's race up in the Race tab: its prompt, temperature, lane and k; nothing is run."""
        if self.results is None or not 0 <= number < len(self.results.cells):
            return
        settings = self.results.grid.race(self.results.cells[number])
        now = self._settings()
        self.context.open_race(replace(settings, observe=now.observe if now is not None else "full"))


def _target_of(grid: Grid) -> Any:
    """What makes plain decoding as fast as it is."""
    return grid.settings.target, replace(grid.settings.loading, trust_remote_code=False, context=None)
