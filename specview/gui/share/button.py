"""The Export button of the race page: its menu, where files go, and how far the one under way is."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from PySide6.QtCore import QSize, QStandardPaths, QUrl, Signal
from PySide6.QtGui import QDesktopServices, QGuiApplication
from PySide6.QtWidgets import QDialog, QFileDialog, QMenu, QToolButton

from specview.gui.link.controller import Controller
from specview.gui.parts import theme
from specview.gui.parts.widgets import set_tip
from specview.gui.share.process import Ended, ExportProcess
from specview.gui.share.source import Held, Source
from specview.gui.state.display_text import clipboard, visible

FIRST = ("html", "png", "gif", "video", "svg")
DATA = ("markdown", "json", "csv", "parquet")
_REST = "Export ▾"
_TIP = "Show this race to others: a page that plays it, a picture, a GIF, a video, plots, Markdown, data (Ctrl+Shift+E)"


class ExportButton(QToolButton):
    """Exports the race on screen, each time in a process of its own; `told(words, kind)` says how it ended."""

    told = Signal(str, str)

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self.source = Source(controller, self)
        self.process = ExportProcess(self)
        self._held: Held | None = None
        self._file: Path | None = None  # the one under way; None for the clipboard
        self.written: Path | None = None
        self._folder = ""
        self.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.setAccessibleName("Export")
        self.setMenu(QMenu(self))
        self.menu().setToolTipsVisible(True)
        self.menu().aboutToShow.connect(self.fill)
        self.process.progressed.connect(self._show_progress)
        self.process.ended.connect(self._ended)
        self.source.work.failed.connect(lambda line: self.told.emit(line, "error"))
        for signal in (controller.state_changed, controller.lanes_changed, controller.recorded_changed, controller.run_kept):
            signal.connect(lambda *_: self.refresh())
        theme.signals.changed.connect(self._restyle)
        self._restyle()
        self.refresh()

    def _restyle(self) -> None:
        self.setFixedHeight(theme.px(26))

    def sizeHint(self) -> QSize:
        """One width for all its words: what stands beside it does not move."""
        wide, hint = self.fontMetrics().horizontalAdvance, super().sizeHint()
        return QSize(hint.width() - wide(self.text()) + max(wide(_REST), wide("Export 100%")), hint.height())

    def open(self) -> None:
        """Open the menu, from the keyboard too."""
        if self.isEnabled() and self.isVisible():
            self.setFocus()
            self.showMenu()
        elif self.source.why_not:
            self.told.emit(self.source.why_not, "warning")

    def refresh(self) -> None:
        """Enable it where there is something to export, and say in its tip why not."""
        why = "" if self.process.running else self.source.why_not
        self.setEnabled(not why)
        set_tip(self, why or _TIP)
        if not self.process.running:
            self.setText(_REST)

    def fill(self) -> None:
        """Make the menu anew."""
        from specview.library.exports import FORMS

        menu = self.menu()
        menu.clear()
        if self.process.running:
            what = visible(self._file.name) if self._file is not None else "the copy"
            menu.addAction(f"Stop writing {what}", self.process.stop)
            return
        for place, form in enumerate((*FIRST, *DATA)):
            if form == DATA[0]:
                menu.addSeparator()
                menu.addAction("Copy as Markdown", self.copy_markdown).setToolTip(FORMS[form].what)
            action = menu.addAction(f"&{place + 1}  {FORMS[form].menu}…", partial(self.ask, form))
            action.setToolTip(FORMS[form].what)
        if self.written is not None:
            menu.addSeparator()
            menu.addAction(f"Open {visible(self.written.name)}", partial(_open, self.written))
            menu.addAction("Open its folder", partial(_open, self.written.parent))

    # -- what is asked for ---------------------------------------------------------------------------

    def ask(self, form: str) -> None:
        """Ask how it is to look, where that can be chosen, and where it goes; then write it."""
        from specview.gui.share.looks import USUAL, LookDialog
        from specview.library.exports import FORMS

        words: list[str] = []
        if form in USUAL:
            dialog = LookDialog(form, FORMS[form].menu, self.window())
            accepted = dialog.exec() == QDialog.DialogCode.Accepted
            words = dialog.words
            dialog.deleteLater()
            if not accepted:
                return
        endings = FORMS[form].endings
        start = Path(self._folder or _documents()) / f"{self.source.name}{endings[0]}"
        kinds = ";;".join(f"{ending[1:].upper()} (*{ending})" for ending in endings)
        name, chosen = QFileDialog.getSaveFileName(self.window(), FORMS[form].menu, str(start), kinds)
        if name:
            ending = next((one for one in endings if f"*{one}" in chosen), endings[0])
            path = Path(name)
            self.write(form, path if path.suffix.lower() in endings else path.with_name(f"{path.name}{ending}"), words)

    def write(self, form: str, path: Path, words: list[str] | None = None) -> None:
        """Write the race on screen to a file."""
        self._folder = str(path.parent)
        self.source.get(lambda held: self._begin(held, path, [f"--{form}", str(path), *(words or [])]))

    def copy_markdown(self) -> None:
        """Put the race on the clipboard, as Markdown."""
        self.source.get(lambda held: self._begin(held, None, ["--markdown", "-"]))

    def _begin(self, held: Held, path: Path | None, words: list[str]) -> None:
        if self.process.running:
            held.drop()
            return
        self._held, self._file = held, path
        self.process.start([held.ref, *words], follow=path is not None)
        self._show_progress("", 0.0)
        self.refresh()

    def _show_progress(self, _: str, fraction: float) -> None:
        self.setText(f"Export {fraction:.0%}")

    def _ended(self, ended: Ended) -> None:
        held, path = self._held, self._file
        self._held = self._file = None
        if held is not None:
            held.drop()
        self.refresh()
        if ended.stopped:
            self.told.emit("The export was stopped; no file was written.", "warning")
        elif ended.problem:
            self.told.emit(ended.problem, "error")
        elif path is None:
            QGuiApplication.clipboard().setText(clipboard(ended.out))
            self.told.emit("The race is on the clipboard, as Markdown.", "note")
        else:
            self.written = path
            self.told.emit(f"Written: {path}", "note")

    def shut(self) -> None:
        """The window closes."""
        self.process.close()
        self.source.close()
        if self._held is not None:
            self._held.drop()


def _documents() -> str:
    """The user's folder of documents, where there is one."""
    found = QStandardPaths.writableLocation(QStandardPaths.StandardLocation.DocumentsLocation)
    return found if found and Path(found).is_dir() else str(Path.home())


def _open(path: Path) -> None:
    QDesktopServices.openUrl(QUrl.fromLocalFile(str(path)))
