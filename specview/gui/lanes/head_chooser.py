"""Chooses a trained head: the bundled one, one found here, a folder, a hub id; says what it is before it is loaded."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QFileDialog,
    QInputDialog,
    QPushButton,
    QSizePolicy,
    QWidget,
)

from specview.gui.link.head_checks import HeadChecks, HeadQuestion, has_bundled, no_head
from specview.gui.link.library import Library
from specview.gui.parts import layout
from specview.gui.parts.widgets import Choice, label, set_kind, set_tip
from specview.gui.state.display_text import tooltip
from specview.gui.state.lane_words import short_model
from specview.settings.options import INSIDE
from specview.settings.run import BUNDLED


@dataclass(frozen=True, slots=True)
class HeadPlace:
    """What a choice of heads is made for: the heads found here, the target and its engine."""

    library: Library
    target: str
    engine: str


class HeadChooser(QWidget):
    """`value` is 'bundled', a folder or a hub id; `changed` fires on every choice, `noted` when the note has changed."""

    changed = Signal()

    noted = Signal()

    def __init__(self, place: HeadPlace, parent: QWidget | None = None, *, own_note: bool = True) -> None:
        """own_note: the note stands beneath the choice; else the caller places it and follows `noted`."""
        super().__init__(parent)
        self._own_note = own_note
        self._place = place
        self._kind = ""
        self._answers: tuple[tuple[str, str], ...] = ()
        self.choice = Choice()
        self.choice.setSizeAdjustPolicy(Choice.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.choice.setMinimumContentsLength(20)
        self.choice.setAccessibleName("Head")
        self.open_folder = QPushButton("Folder…")
        self.open_hub = QPushButton("Hub id…")
        set_tip(self.open_folder, "Choose a folder with a head: its config.json and weights")
        set_tip(self.open_hub, "Name a head on the Hugging Face Hub (owner/name); the race fetches it")
        self.note = label("", "small")
        self.note.setWordWrap(True)
        self.note.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Minimum)
        self.checks = HeadChecks(self)
        column = layout.column(layout.row((self.choice, 1), self.open_folder, self.open_hub), on=self, gap=4)
        if own_note:
            column.addWidget(self.note)
        self.setFocusProxy(self.choice)
        self.choice.currentIndexChanged.connect(self._chosen)
        self.open_folder.clicked.connect(self._open_folder)
        self.open_hub.clicked.connect(self._open_hub)
        self.checks.changed.connect(self._show_note)

    def fields(self) -> list[QWidget]:
        """What takes the keyboard, in order."""
        return [self.choice, self.open_folder, self.open_hub]

    def fill(self, kind: str, ref: str) -> None:
        """Offer the heads of a kind, with this one chosen; '' is the bundled one."""
        self._kind = kind
        self._offer(ref or BUNDLED)
        self._ask()

    def _offer(self, ref: str) -> None:
        bundled = self.problem_of(BUNDLED) == ""
        words = "inside the target" if self._kind == INSIDE else "bundled with specview"
        items = [(BUNDLED, words if bundled else "none bundled: choose one")]
        found = [head for head in self._place.library.found.heads if head.kind == self._kind]
        names = [head.name for head in found]
        items += [(head.ref, head.name if names.count(head.name) == 1 else f"{head.name} · {head.ref}") for head in found]
        if ref not in {value for value, _ in items}:
            items.append((ref, short_model(ref)))
        self.choice.set_items(tuple(items))
        for row, head in enumerate(found, start=1):
            self.choice.setItemData(row, tooltip(f"{head.ref}\n{head.detail}"), Qt.ItemDataRole.ToolTipRole)
        self.choice.blockSignals(True)
        self.choice.set_value(ref)
        self.choice.blockSignals(False)
        set_tip(self.choice, "" if ref == BUNDLED else ref)

    def value(self) -> str:
        """The head chosen."""
        return self.choice.value() or BUNDLED

    def set_value(self, ref: str) -> None:
        """Choose a head; '' is the bundled one."""
        self._offer(ref or BUNDLED)
        self._chosen()

    def set_answers(self, answers: tuple[tuple[str, str], ...]) -> None:
        """Take the lane's answers to what a layout leaves open."""
        if answers != self._answers:
            self._answers = answers
            self._ask()

    def problem(self) -> str:
        """Why nothing can be drafted with what is chosen, as far as is known at once; '' else."""
        return self.problem_of(self.value())

    def refusal(self) -> str:
        """Why the head chosen cannot draft, once its files have told that; '' while nothing is known."""
        kind, words = ("small", "") if self.problem() else self.checks.answer(self._question())
        return words if kind == "warning" else ""

    def problem_of(self, ref: str) -> str:
        """As `problem`, of another choice."""
        if ref not in (BUNDLED, "") or self._kind == INSIDE or has_bundled(self._kind):
            return ""
        return no_head(self._kind, "this method")

    @property
    def words(self) -> str:
        """What is said of the head chosen."""
        return self.note.text()

    def _question(self) -> HeadQuestion:
        return HeadQuestion(self._kind, self.value(), self._place.target, self._place.engine, self._answers)

    def _ask(self) -> None:
        if self._kind and not self.problem():
            self.checks.want(self._question())
        self._show_note()

    def _show_note(self) -> None:
        kind, words = ("small", "") if self.problem() else self.checks.answer(self._question())
        set_kind(self.note, kind)
        self.note.setText(words)
        if self._own_note:
            self.note.setVisible(bool(words))
            self.note.updateGeometry()
        self.noted.emit()

    def _chosen(self) -> None:
        set_tip(self.choice, "" if self.value() == BUNDLED else self.value())
        self._ask()
        self.changed.emit()

    def _open_folder(self) -> None:
        path = QFileDialog.getExistingDirectory(self, "Open a head's folder")
        if path:
            self.set_value(path)

    def _open_hub(self) -> None:
        text, given = QInputDialog.getText(self, "Head on the Hub", "Hub id (owner/name)")
        if given and text.strip():
            self.set_value(text.strip())

    def close_checks(self) -> None:
        """Tell nothing any more."""
        self.checks.close()
