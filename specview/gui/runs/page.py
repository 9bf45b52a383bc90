"""The Runs tab: the library of kept runs, what the user says of them, and their lanes compared."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication, QKeySequence, QShortcut
from PySide6.QtWidgets import (
    QFileDialog,
    QFrame,
    QMenu,
    QPushButton,
    QStackedWidget,
    QToolButton,
    QWidget,
)

from specview.errors import SpecviewError
from specview.files.reader import Trace, read_trace
from specview.files.tables import Row
from specview.gui.link.background import Background
from specview.gui.link.messages import RunKept
from specview.gui.link.open_run import Pick, pick_of
from specview.gui.parts import layout
from specview.gui.parts.pages import Page, PageContext
from specview.gui.parts.questions import ask
from specview.gui.parts.results_table import ResultsTable
from specview.gui.parts.widgets import Check, ElidedLabel, button, label, set_tip
from specview.gui.runs.details import RunDetails
from specview.gui.state.display_text import clipboard
from specview.library.beside import lay_beside
from specview.library.exports import FORMS, WRITTEN, Recorded, export_runs, kept_for
from specview.library.library import TRASH_DAYS, Entry, RunLibrary
from specview.library.repeat import Repeat, command_line
from specview.library.rows import (
    LANE_COLUMNS,
    LANE_HIDDEN,
    RUN_COLUMNS,
    RUN_HIDDEN,
    lane_rows,
    measured_lane_rows,
    run_row,
)

log = logging.getLogger(__name__)

SHUT_S = 2.0
"""A window that closes tries no further to write what was typed once a failure came after this long."""
MOST_COMPARED, MOST_COMPARED_BYTES = 8, 64 << 20
"""Runs, and the size of their files, whose lanes are compared from their rounds; of more the list's own figures are shown."""


class RunsPage(Page):
    """Lists the runs and does what is asked with them; all files are read and written on a thread of its own."""

    def __init__(self, context: PageContext) -> None:
        super().__init__(context)
        self.library = RunLibrary()
        self.work = Background(self)
        self.entries: list[Entry] = []
        self._keyboard_due = False  # it was to come here before the list was read
        self._traces: dict[tuple[Path, int], Trace] = {}
        self._undo: list[str] = []
        self._unwritten: dict[str, tuple[str, list[str], str]] = {}  # what was typed and is not on the disk (yet)
        self._write_again = False
        self._unreadable = ""
        self._told = ""
        self._size = 0
        self._stale = True
        self._cleaned = False
        self._wanted = ""
        self._make_widgets()
        self._lay_out()
        self._connect()
        self._refresh()

    # -- making --------------------------------------------------------------------------------

    def _make_widgets(self) -> None:
        self.summary = ElidedLabel("", "small")
        self.keep = Check("Keep finished runs")
        set_tip(self.keep, "Every finished run, its prompt included, is kept in your own data folder until you delete it")
        self.show_trash = Check("Show trash")
        set_tip(self.show_trash, f"What was deleted; it is removed for good after {TRASH_DAYS} days")
        self.empty_trash = button(QPushButton, "Empty trash…", "Remove for good what was deleted", self.ask_empty)
        self.empty_trash.hide()
        tip = "Copy trace files from elsewhere into the library"
        self.take_in = button(QPushButton, "Import…", tip, self.ask_import)
        self.runs = ResultsTable(RUN_COLUMNS, identity="id", hidden=RUN_HIDDEN, name="runs", search=self._found)
        self.runs.filter.setPlaceholderText("Search name, note, tags, prompt, model, method; or tok_s>20")
        self.lanes = ResultsTable(LANE_COLUMNS, identity="key", hidden=LANE_HIDDEN, name="lanes")
        self.lanes.filter.setPlaceholderText("Filter lanes")
        self.details = RunDetails()
        tip = "Show this run in the race page as it was; no model is loaded (Enter)"
        self.open_button = button(QPushButton, "Open", tip, lambda: self.open_runs(self.chosen))
        tip = (
            "Show lanes of the chosen runs side by side: those selected in the lower table, else all that fit. "
            "The first run's plain lane is the baseline."
        )
        self.beside = button(QPushButton, "Compare", tip, self.lay_beside)
        tip = "Show the chosen runs to a room, one after the other: full screen, big tokens, played by keys (F11)"
        self.present_button = button(QPushButton, "Present", tip, self.present)
        self.export_button = button(QToolButton, "Export runs ▾", name="Export runs")
        self.export_button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        menu = QMenu(self.export_button)
        menu.setToolTipsVisible(True)
        for form in WRITTEN:
            action = menu.addAction(f"{FORMS[form].menu}…", partial(self.ask_export, form))
            action.setToolTip(FORMS[form].what)
        menu.addSeparator()
        menu.addAction("Copy the command that repeats it", self.copy_command)
        self.export_button.setMenu(menu)
        tip = "Move the chosen runs to the trash (Del); Undo brings them back"
        self.delete_button = button(QPushButton, "Delete", tip, self.delete_or_restore)
        self.undo_bar = QFrame()
        self.undo_bar.setObjectName("banner")
        self.undo_bar.setProperty("kind", "note")
        self.undo_words = label("")
        self.undo_button = button(QPushButton, "Undo", "Bring them back (Ctrl+Z)", self.undo)
        self.dismiss = button(QPushButton, "×", "", self._forget_undo, kind="flat", name="Dismiss")
        self.undo_bar.hide()
        self.empty = label("", "muted")
        self.empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self.empty.setWordWrap(True)

    def _lay_out(self) -> None:
        top = layout.row((self.summary, 1), self.keep, self.show_trash, self.empty_trash, self.take_in, gap=12)
        layout.row((self.undo_words, 1), self.undo_button, self.dismiss, on=self.undo_bar, margins=(12, 4, 6, 4))
        self.listing = QStackedWidget()
        self.listing.addWidget(self.runs)
        self.listing.addWidget(self.empty)
        actions = layout.row(self.open_button, self.beside, self.present_button, self.export_button, self.delete_button, 1, gap=8)
        lower = QWidget()
        self.lanes_title = label("Lanes of the chosen runs", "small")
        layout.column(actions, self.lanes_title, (self.lanes, 1), on=lower, gap=6, margins=(0, 6, 0, 0))
        self.upper = layout.split(Qt.Orientation.Horizontal, (self.listing, 1, 900), (self.details, 0, 300))
        self.rows = layout.split(Qt.Orientation.Vertical, (self.upper, 3, 420), (lower, 2, 260))
        layout.column(top, self.undo_bar, (self.rows, 1), on=self, gap=8, margins=(14, 12, 14, 12))
        # To the list first: the keys that matter are there.
        layout.tab_order(
            self.runs.view, self.runs.filter, *self.runs.buttons, self.keep, self.show_trash, self.empty_trash, self.take_in
        )

    def _connect(self) -> None:
        self.work.failed.connect(self.context.show_message)
        self.work.changed.connect(self._say)
        self.runs.activated.connect(lambda index: self.open_runs([self.entries[index]]))
        self.runs.selected.connect(self._selected)
        self.lanes.selected.connect(lambda _: self._refresh())
        self.lanes.activated.connect(lambda _: self.lay_beside())
        self.details.described.connect(self._describe)
        self.details.parent_asked.connect(self.open_parent)
        self.keep.clicked.connect(self._keep_clicked)
        self.show_trash.toggled.connect(self._show_trash)
        self.context.controller.run_kept.connect(self._kept)
        self.context.controller.state_changed.connect(self._refresh)
        for keys, widget, slot in (
            ("F2", self, self.rename),
            ("Del", self.runs.view, self.delete_or_restore),
            ("Ctrl+Z", self.runs.view, self.undo),
            ("Ctrl+F", self, self.runs.filter.setFocus),
        ):
            shortcut = QShortcut(QKeySequence(keys), widget)
            shortcut.setContext(Qt.ShortcutContext.WidgetWithChildrenShortcut)
            shortcut.activated.connect(slot)

    def _found(self, word: str) -> set[str]:
        """The listed runs in whose text a word occurs, its lanes' rules and drafts included."""
        return self.library.search(word, trash=self.show_trash.isChecked())

    # -- the tab -------------------------------------------------------------------------------

    def opened(self) -> None:
        """Look for what is new, and try again to write what could not be written."""
        self._write_again = True
        self.rescan()

    def take_focus(self) -> bool:
        """To the list: arrow keys, Enter, F2 and Del work at once."""
        self._keyboard_due = not self.entries or not self.runs.isVisible()
        if self._keyboard_due:
            return False
        self.runs.view.setFocus()
        return True

    def left(self) -> None:
        """Keep what was typed."""
        self._keyboard_due = False
        self.details.save()

    def shut(self) -> None:
        """The window closes: wait briefly for what is under way, and keep what was typed."""
        self.details.save()
        self.work.close()
        began = time.monotonic()
        for run_id, (name, tags, note) in self._unwritten.items():  # what waited, and what failed before
            try:
                self.library.describe(run_id, name=name, tags=tags, note=note)
            except SpecviewError as error:
                log.warning("what was typed of the run %s is not kept: %s", run_id, error)
                if time.monotonic() - began > SHUT_S:
                    break

    def kept(self) -> dict[str, Any]:
        """Sort and columns; nothing of the runs themselves."""
        return {"runs": self.runs.kept(), "lanes": self.lanes.kept(),
                "upper": self.upper.sizes(), "rows": self.rows.sizes()}  # fmt: skip

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Take what `kept` gave."""
        for table, name in ((self.runs, "runs"), (self.lanes, "lanes")):
            if isinstance(kept.get(name), Mapping):
                table.restore(kept[name])
        for splitter, name in ((self.upper, "upper"), (self.rows, "rows")):
            sizes = kept.get(name)
            if isinstance(sizes, list) and len(sizes) == 2 and all(type(size) is int and size > 0 for size in sizes):
                splitter.setSizes(sizes)

    # -- listing -------------------------------------------------------------------------------

    def rescan(self) -> None:
        """Read the library anew, in the background."""
        trash, clean = self.show_trash.isChecked(), not self._cleaned
        self._cleaned = True
        library, stop = self.library, self.work.should_stop

        def look() -> tuple[list[Entry], bool, int, bool]:
            try:
                if clean and library.trash.is_dir():
                    library.empty_trash(TRASH_DAYS)
            except (SpecviewError, OSError) as error:
                log.warning("old runs stay in the trash: %s", error)
            return library.scan(trash=trash, should_stop=stop), library.keeps, library.size_bytes(), trash

        self.work.do(look, self._listed, "scan", otherwise=self._not_listed)

    def _listed(self, found: tuple[list[Entry], bool, int, bool]) -> None:
        entries, keeps, self._size, trash = found
        if trash != self.show_trash.isChecked():
            return
        self.details.save()  # what was typed meanwhile is newer than what was read
        typed = self.details.entry
        self.entries = [_described(entry, self._unwritten.get(entry.id)) for entry in entries]
        self._stale, self._unreadable = False, ""
        self.keep.setChecked(keeps)
        self.runs.set_rows([run_row(entry) for entry in self.entries])
        if self._wanted:
            place = next((place for place, entry in enumerate(entries) if entry.id == self._wanted), None)
            self._wanted = ""
            if place is not None:
                self.runs.select(place)
        if typed is not None and typed.id not in {entry.id for entry in entries}:
            self.details.show_runs([])
        self._chosen()
        self._say()
        if self._keyboard_due and self.entries and not self.isAncestorOf(self.window().focusWidget() or self.window()):
            self.take_focus()
        if self._write_again and not trash:
            self._write_again = False
            for entry in self.entries:
                if entry.id in self._unwritten:
                    self._write(entry.id)

    def _not_listed(self, problem: str) -> None:
        """The library cannot be read: say so once. Looking again at once would find the same."""
        self.context.show_message(problem)
        self._stale, self._unreadable = False, problem
        self._say()

    def _say(self) -> None:
        """Say how much there is and where, and what an empty list means."""
        trash = self.show_trash.isChecked()
        if self._stale and self.work.busy:
            self.summary.set_full("Reading the runs library…")
        elif self._unreadable:
            self.summary.set_full(self._unreadable)
        else:
            what = f"{_runs(len(self.entries))}{' in the trash' if trash else ''}"
            about = f"{what} · {self._size / 1e6:,.1f} MB, prompts included, in {self.library.folder}"
            self.summary.set_full(f"{self._told} · {what}" if self._told else about)
        self.listing.setCurrentWidget(self.runs if self.entries or self._stale else self.empty)
        self.empty.setText(
            self._unreadable if self._unreadable
            else "The trash is empty." if trash
            else "No run is kept yet. Run a race: when it ends it stands here, with its prompt, until you delete it."
            if self.keep.isChecked()
            else "Runs are not kept. Tick “Keep finished runs”, or import a trace file."
        )
        self._refresh()

    @property
    def readable(self) -> list[Entry]:
        """Those of the chosen runs whose files are traces."""
        return [entry for entry in self.chosen if not entry.problem]

    @property
    def chosen(self) -> list[Entry]:
        """The runs that are selected, from top to bottom."""
        return [self.entries[index] for index in self.runs.selected_rows() if index < len(self.entries)]

    def _change(self, work: Callable[[], Any], then: Callable[[Any], None] | None = None) -> None:
        """Change the library in the background."""
        self.work.do(work, then, otherwise=self._not_changed)

    def _not_changed(self, problem: str) -> None:
        """Say why, and show what the disk has; what was typed stays where it stands."""
        self.context.show_message(problem)
        self.rescan()

    def _selected(self, _: list[int]) -> None:
        self._told = ""
        self._say()
        self._chosen()

    def _tell(self, words: str) -> None:
        """Say what was done, until something else is chosen."""
        self._told = words
        self._say()

    def _chosen(self) -> None:
        """Show what is known of the runs chosen, at once what the list says, then what their rounds say."""
        self.details.save()
        self.details.show_runs(self.chosen, editable=not self.show_trash.isChecked())
        readable = self.readable
        self.lanes.set_rows(lane_rows(readable))
        self._refresh()
        unfinished = any(entry.end == "unfinished" or lane.speedup is None for entry in readable for lane in entry.lanes)
        few = len(readable) <= MOST_COMPARED and sum(entry.size for entry in readable) <= MOST_COMPARED_BYTES
        if readable and few and (len(readable) > 1 or unfinished):
            self.work.do(lambda: self._compare(readable), self._compared, "compare")

    def _compare(self, entries: list[Entry]) -> tuple[list[str], list[Row]]:
        """On the thread: the lanes of these runs from their rounds."""
        held, self._traces = self._traces, {}
        picks = []
        for entry in entries:
            key = (entry.path, entry.size)
            trace = held.get(key)
            if trace is None:
                try:
                    trace = read_trace(entry.path, should_stop=self.work.should_stop, keep="figures")
                except SpecviewError:
                    continue  # opening it will say why
            self._traces[key] = trace
            picks.append((entry, trace))
        lanes = lay_beside([(entry.title, trace, range(len(trace.records))) for entry, trace in picks])
        rows = measured_lane_rows([entry for entry, _ in picks], lanes) if lanes else []
        return [entry.id for entry in entries], rows

    def _compared(self, found: tuple[list[str], list[Row]]) -> None:
        ids, rows = found
        if ids == [entry.id for entry in self.readable] and rows:
            self.lanes.set_rows(rows)

    def _refresh(self) -> None:
        """Enable what can be done with what is chosen."""
        readable, racing, trash = self.readable, self.context.controller.racing, self.show_trash.isChecked()
        self.open_button.setEnabled(bool(readable) and not racing)
        self.present_button.setEnabled(bool(readable) and not racing)
        self.beside.setEnabled((len(readable) > 1 or bool(self.lanes.selected_rows())) and not racing)
        self.export_button.setEnabled(bool(readable))
        self.delete_button.setEnabled(bool(self.chosen))
        self.delete_button.setText("Restore" if trash else "Delete")
        many = len(readable) != 1
        several, one = "Lanes of the chosen runs; select some to compare just those", "Lanes of the chosen run"
        self.lanes_title.setText(several if many else one)

    def _kept(self, event: RunKept) -> None:
        """A race was kept: list it, at once if the tab is in front."""
        if event.path is not None:
            self._stale = True
            if self.isVisible():
                self.rescan()

    # -- opening -------------------------------------------------------------------------------

    def open_runs(self, entries: Sequence[Entry]) -> None:
        """Show a run in the race page; of several, their lanes side by side."""
        self.details.save()
        broken = [entry for entry in entries if entry.problem]
        if broken and len(broken) == len(entries):
            self.context.show_message(broken[0].problem)
            return
        picks = [Pick(entry.path, entry.title) for entry in entries if not entry.problem]
        if picks:
            self.context.extra["open_runs"](picks)

    def open_parent(self, run: str) -> None:
        """Show the run that another goes on from."""
        try:
            self.context.extra["open_runs"]([pick_of(run)])
        except SpecviewError as error:
            self.context.show_message(str(error), "warning")

    def present(self) -> None:
        """Make the chosen runs the playlist of a presentation, from top to bottom."""
        self.details.save()
        self.context.extra["present_runs"]([Pick(entry.path, entry.name) for entry in self.readable])

    def lay_beside(self) -> None:
        """Show the lanes selected below, else all lanes of the runs chosen, side by side."""
        wanted: dict[str, list[int]] = {}
        for index in self.lanes.selected_rows():
            run_id, _, lane = str(self.lanes.rows[index]["key"]).rpartition(":")
            wanted.setdefault(run_id, []).append(int(lane))
        if not wanted:
            self.open_runs(self.readable)
            return
        picks = [Pick(one.path, one.title, tuple(sorted(wanted[one.id]))) for one in self.readable if one.id in wanted]
        if picks:
            self.context.extra["open_runs"](picks)

    # -- describing ----------------------------------------------------------------------------

    def rename(self) -> None:
        """Put the keyboard on the name of the run chosen."""
        if self.details.entry is not None and self.details.name_field.isEnabled():
            self.details.name.setFocus()
            self.details.name.selectAll()

    def _describe(self, run_id: str, name: str, tags: list[str], note: str) -> None:
        if self.show_trash.isChecked():
            return
        words = name, tags, note
        self._unwritten[run_id] = words
        self.entries = [_described(entry, words if entry.id == run_id else None) for entry in self.entries]
        self.runs.set_rows([run_row(entry) for entry in self.entries])
        self._write(run_id)

    def _write(self, run_id: str) -> None:
        """Write what was typed of a run. Where that fails it stays typed, for another try."""
        words = name, tags, note = self._unwritten[run_id]

        def written(_: None) -> None:
            if self._unwritten.get(run_id) is words:
                del self._unwritten[run_id]

        self._change(lambda: self.library.describe(run_id, name=name, tags=tags, note=note), written)

    def _keep_clicked(self, on: bool) -> None:
        self._change(lambda: self.library.set_keeps(on))
        self._say()

    # -- deleting ------------------------------------------------------------------------------

    def delete_or_restore(self) -> None:
        """Move the runs chosen to the trash; in the trash, bring them back."""
        ids = [entry.id for entry in self.chosen]
        if not ids:
            return
        if self.show_trash.isChecked():
            self._change(lambda: self.library.restore(ids))
        else:
            self.details.save()
            self._change(lambda: self.library.delete(ids), self._deleted)
        self.rescan()

    def _deleted(self, ids: list[str]) -> None:
        if ids:
            self._undo = ids
            self.undo_words.setText(f"{_runs(len(ids))} in the trash.")
            self.undo_bar.show()

    def undo(self) -> None:
        """Bring back what was deleted last."""
        ids, self._undo = self._undo, []
        self.undo_bar.hide()
        if ids:
            self._wanted = ids[0]
            self._change(lambda: self.library.restore(ids))
            self.rescan()

    def _show_trash(self, on: bool) -> None:
        self.details.save()
        self.empty_trash.setVisible(on)
        self._stale = True
        self.entries = []
        self.runs.set_rows([])
        self._chosen()
        self.rescan()

    def ask_empty(self) -> None:
        """Remove what was deleted, once the user has said yes."""
        if self.entries and self.sure(len(self.entries)):
            self._forget_undo()
            self._change(self.library.empty_trash)
            self.rescan()

    def sure(self, count: int) -> bool:
        """Ask whether runs are to be removed for good."""
        text = f"Remove {_runs(count)} for good?"
        return bool(ask(self, "Empty the trash", text, {"remove": "Remove"}, careful=True))

    def _forget_undo(self) -> None:
        self._undo = []
        self.undo_bar.hide()

    # -- files ---------------------------------------------------------------------------------

    def ask_import(self) -> None:
        """Ask for trace files and copy them into the library."""
        names, _ = QFileDialog.getOpenFileNames(self, "Import traces", "", "Traces (*.jsonl);;All files (*)")
        self.import_files([Path(name) for name in names])

    def import_files(self, paths: Sequence[Path]) -> None:
        """Copy these traces into the library; the first that is none is told."""
        for path in paths:
            self._change(partial(self.library.take_in, path, should_stop=self.work.should_stop), self._imported)
        if paths:
            self.show_trash.setChecked(False)
            self.rescan()

    def _imported(self, entry: Entry) -> None:
        self._wanted = entry.id

    def ask_export(self, form: str) -> None:
        """Ask where to, and write the runs chosen."""
        entries, ending = self.readable if FORMS[form].several else self.readable[:1], FORMS[form].endings[0]
        if not entries:
            return
        stem = entries[0].id if len(entries) == 1 else f"{len(entries)} runs"
        path, _ = QFileDialog.getSaveFileName(self, "Export runs", f"{stem}{ending}", f"*{ending};;All files (*)")
        if path:
            self.export_to(form, Path(path if Path(path).suffix else f"{path}{ending}"), entries)

    def export_to(self, form: str, path: Path, entries: Sequence[Entry]) -> None:
        """Write runs in one form, in the background."""
        stop = self.work.should_stop

        def write() -> str:
            runs = [
                Recorded(entry.id, entry.path, read_trace(entry.path, should_stop=stop, keep=kept_for((form,))), entry)
                for entry in entries
            ]
            export_runs(form, path, runs)
            return f"{_runs(len(runs))} written to {path}"

        self.work.do(write, self._tell)

    def copy_command(self) -> None:
        """Copy the command line that repeats the run chosen."""
        if self.readable:
            path = self.readable[0].path
            self.work.do(lambda: command_line(read_trace(path, keep="nothing")), self._copied)

    def _copied(self, repeat: Repeat) -> None:
        QGuiApplication.clipboard().setText(clipboard(repeat.command))
        file = repeat.prompt_file
        self._tell("The command is on the clipboard" + (f"; save the prompt as {file} first" if file else ""))


def _runs(count: int) -> str:
    return f"{count} {'run' if count == 1 else 'runs'}"


def _described(entry: Entry, words: tuple[str, list[str], str] | None) -> Entry:
    """An entry with a name, tags and a note that are not on the disk yet."""
    if words is None:
        return entry
    name, tags, note = words
    return replace(entry, name=name, tags=tuple(tags), note=note)
