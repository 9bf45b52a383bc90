"""Command for a server…: what starts llama-server, vLLM, SGLang and TensorRT-LLM with a lane, each to be copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtGui import QFontMetrics, QGuiApplication, QTextCursor
from PySide6.QtWidgets import (
    QDialog,
    QDialogButtonBox,
    QFrame,
    QPlainTextEdit,
    QPushButton,
    QScrollArea,
    QWidget,
)

from specview.drafting.lanes import run_of_flat
from specview.errors import SpecviewError
from specview.files.report import MARKS
from specview.gui.link.background import Background
from specview.gui.parts import layout, theme
from specview.gui.parts.widgets import button, label, set_kind
from specview.gui.state.display_text import clipboard, visible
from specview.remote.launch import Launch, launches

_MOST_LINES = 12


def made_for(name: str, settings: Mapping[str, Any]) -> list[Launch]:
    """Every engine's launch of a lane by its flat settings (k may be "auto"); looks for models on the disk. Raises SpecviewError."""
    try:
        run = run_of_flat({name: {key: value for key, value in settings.items() if key != "k" or isinstance(value, int)}})
    except TypeError as error:
        raise SpecviewError(f"these settings are not those of a lane: {error}.") from None
    return launches(run, run.lanes[0], run.device or str(settings.get("device") or "cpu"))


class ServeDialog(QDialog):
    """The commands for one lane, one under the other, each with a button that copies it. Nothing is started."""

    def __init__(self, name: str, settings: Mapping[str, Any], parent: QWidget) -> None:
        super().__init__(parent)
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.setWindowTitle(f"Command for a server: {visible(name)}")
        self.launches: Sequence[Launch] = ()
        self.copies: list[QPushButton] = []
        self.commands: list[QPlainTextEdit] = []
        self.said = label("Looking for the models on this machine…", "small")
        self.said.setAccessibleName("What was done")
        inner = QFrame()
        inner.setObjectName("scrolled")
        self._column = layout.column(1, on=inner, gap=theme.px(8), margins=(0, 0, theme.px(8), 0))
        self.area = QScrollArea()
        self.area.setAccessibleName("Commands by server")
        self.area.setWidgetResizable(True)
        self.area.setFrameShape(QFrame.Shape.NoFrame)
        self.area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.area.setWidget(inner)
        buttons = QDialogButtonBox(QDialogButtonBox.StandardButton.Close)
        buttons.rejected.connect(self.reject)
        layout.column((self.area, 1), layout.row((self.said, 1), buttons, gap=10), on=self, gap=10, margins=None)
        self.resize(theme.px(760), theme.px(600))
        self._work = Background(self, "specview-serve")
        self._work.do(lambda: made_for(name, settings), self._show, otherwise=self._fail)

    def _fail(self, words: str) -> None:
        set_kind(self.said, "error")
        self.said.setText(visible(words))

    def _show(self, found: Sequence[Launch]) -> None:
        self.launches = found
        for place, made in enumerate(found):
            self._column.insertWidget(place, self._section(made))
        self.said.setText("Nothing is started: copy a command to where the server runs.")
        if self.copies:
            self.copies[0].setFocus()

    def _section(self, made: Launch) -> QWidget:
        """One engine: its name and Copy, the command, what must be heeded and what it does otherwise."""
        section = QFrame()
        section.setProperty("kind", "panel")
        name = label(made.engine.label, "title")
        head = layout.row((name, 1), gap=8)
        column = layout.column(head, on=section, gap=theme.px(5), margins=(theme.px(10), theme.px(8), theme.px(10), theme.px(8)))
        if made.lacks:
            column.addWidget(_words(f"{MARKS['warning']}{made.lacks}", "warning"))
            return section
        copy = button(QPushButton, "Copy", f"Copy the command for {made.engine.label}", partial(self._copy, made))
        copy.setAccessibleName(f"Copy the command for {made.engine.label}")
        copy.setAutoDefault(False)
        head.addWidget(copy)
        self.copies.append(copy)
        self.commands.append(_command(made))
        column.addWidget(self.commands[-1])
        for line in sorted(made.lines, key=lambda line: not line.must):
            column.addWidget(_words(f"{MARKS['warning'] if line.must else ''}{line.text}", "small warning" if line.must else "small"))
        return section

    def _copy(self, made: Launch) -> None:
        QGuiApplication.clipboard().setText(clipboard(made.command))
        self.said.setText(f"The command for {made.engine.label} is on the clipboard.")

    def done(self, result: int) -> None:
        """End the search for models with the dialog."""
        self._work.close()
        super().done(result)


def _words(text: str, kind: str) -> QWidget:
    made = label(visible(text), kind)
    made.setWordWrap(True)
    made.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
    return made


def _command(made: Launch) -> QPlainTextEdit:
    """The command in a field that is as high as its lines, up to a dozen."""
    text = "\n".join(map(visible, made.command.split("\n")))
    field = QPlainTextEdit(text)
    field.setReadOnly(True)
    field.setTabChangesFocus(True)
    field.setFont(theme.mono_font(12))
    field.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
    field.setAccessibleName(f"Command for {made.engine.label}")
    lines = min(text.count("\n") + 1, _MOST_LINES)
    field.setFixedHeight(lines * QFontMetrics(theme.mono_font(12)).lineSpacing() + theme.px(34))
    field.moveCursor(QTextCursor.MoveOperation.Start)
    return field
