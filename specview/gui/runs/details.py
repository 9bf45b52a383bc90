"""What the user says of a run: its name, tags and note, beside its prompt."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QFocusEvent
from PySide6.QtWidgets import QFrame, QLineEdit, QPlainTextEdit, QPushButton, QScrollArea, QWidget

from specview.gui.link.pace import Later
from specview.gui.parts import layout
from specview.gui.parts.widgets import Field, button, label, set_tip
from specview.gui.state.display_text import visible
from specview.library.library import LONGEST_NAME, Entry

SAVE_MS = 800
SHOWN_PROMPT = 4000


def _tall(caption: str, inner: QWidget) -> QWidget:
    """A small caption above a widget that takes all the height there is."""
    made = QWidget()
    words = label(caption, "small")
    words.setBuddy(inner)
    inner.setAccessibleName(caption)
    layout.column(words, (inner, 1), on=made, gap=2)
    return made


class NoteEdit(QPlainTextEdit):
    """A text field that tells when the keyboard leaves it."""

    left = Signal()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        super().focusOutEvent(event)
        self.left.emit()


class RunDetails(QFrame):
    """Editors for one run. `described(id, name, tags, note)` comes when something was changed and typing rests.

    `parent_asked(run)`: the run that this one goes on from is to be shown.
    """

    described = Signal(str, str, list, str)
    parent_asked = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self.setProperty("kind", "panel")
        self._entry: Entry | None = None
        self.name = QLineEdit()
        self.name.setMaxLength(LONGEST_NAME)
        self.tags = QLineEdit()
        self.tags.setPlaceholderText("words, with commas between")
        self.note = NoteEdit()
        self.note.setPlaceholderText("What you want to remember of this run")
        self.note.setTabChangesFocus(True)
        self.prompt = label("", "muted")
        self.prompt.setWordWrap(True)
        self.prompt.setAlignment(Qt.AlignmentFlag.AlignTop)
        self.problem = label("", "warning")
        self.problem.setWordWrap(True)
        self._continues = label("", "muted")
        self._continues.setWordWrap(True)
        tip = "Show the run that this one goes on from"
        self.open_parent = button(QPushButton, "Open parent", tip, self._ask_parent, kind="flat")
        self._branch = QWidget()
        layout.row((self._continues, 1), self.open_parent, on=self._branch, gap=8)
        self._several = label("", "muted")
        self._several.setWordWrap(True)
        for field in (self.name, self.tags, self.note):
            field.setAcceptDrops(False)
        scroll = QScrollArea()
        scroll.setWidgetResizable(True)
        scroll.setFrameShape(QFrame.Shape.NoFrame)
        scroll.setWidget(self.prompt)
        self.name_field = Field("Name (F2)", self.name)
        self.tags_field = Field("Tags", self.tags)
        self.note_field = _tall("Note", self.note)
        self.prompt_field = _tall("Prompt", scroll)
        set_tip(self.name, "What this run is called; empty, it is called by what was run")
        self._rest = QWidget()
        layout.column(
            self._several, self.problem, self._branch, self.name_field, self.tags_field, (self.note_field, 2),
            (self.prompt_field, 3), (self._rest, 1), on=self, gap=8, margins=(12, 10, 12, 10)
        )
        self._timer = Later(self, SAVE_MS, self.save)
        for edit in (self.name, self.tags):
            edit.textEdited.connect(self._timer.start)
            edit.editingFinished.connect(self.save)
        self.note.textChanged.connect(self._typed)
        self.note.left.connect(self.save)
        self._filling = False
        self.show_runs([])

    @property
    def entry(self) -> Entry | None:
        """The run shown, None where it is none or several."""
        return self._entry

    def show_runs(self, entries: list[Entry], *, editable: bool = True) -> None:
        """Show the run chosen; of several, how many."""
        self.save()
        entry = entries[0] if len(entries) == 1 else None
        self._several.setText(
            "" if entry is not None else f"{len(entries)} runs chosen: compare, export or delete them."
            if entries else "Choose a run to see what is known of it; several to compare them."
        )
        self._several.setVisible(entry is None)
        self._rest.setVisible(entry is None)
        same = entry is not None and self._entry is not None and entry.id == self._entry.id
        self._entry = entry
        for field in (self.name_field, self.tags_field, self.note_field, self.prompt_field):
            field.setVisible(entry is not None)
            field.setEnabled(editable)
        self.problem.setVisible(entry is not None and bool(entry.problem))
        self._branch.setVisible(entry is not None and bool(entry.continues))
        if entry is None:
            return
        self.problem.setText(entry.problem)
        self._continues.setText(visible(entry.continues[:1].upper() + entry.continues[1:]))
        self.open_parent.setVisible(bool(entry.parent))
        self._filling = True
        if not (same and self.name.hasFocus()):
            self.name.setText(entry.name)
        self.name.setPlaceholderText(entry.title if not entry.name else "")
        if not (same and self.tags.hasFocus()):
            self.tags.setText(", ".join(entry.tags))
        if not (same and self.note.hasFocus()) and self.note.toPlainText() != entry.note:
            self.note.setPlainText(entry.note)
        self._filling = False
        cut = len(entry.prompt) > SHOWN_PROMPT
        self.prompt.setText(entry.prompt[:SHOWN_PROMPT] + ("…" if cut else ""))

    def _ask_parent(self) -> None:
        if self._entry is not None:
            self.parent_asked.emit(self._entry.parent)

    def _typed(self) -> None:
        if not self._filling:
            self._timer.start()

    def save(self) -> None:
        """Tell what was changed, if anything was."""
        self._timer.stop()
        entry = self._entry
        if entry is None:
            return
        name = " ".join(self.name.text().split())
        tags = [tag for part in self.tags.text().split(",") if (tag := " ".join(part.split()))]
        note = self.note.toPlainText().strip()
        if (name, tags, note) != (entry.name, list(entry.tags), entry.note):
            self._entry = replace(entry, name=name, tags=tuple(tags), note=note)
            self.described.emit(entry.id, name, tags, note)
