"""A question with named answers and Cancel, in plain text."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QMessageBox, QWidget


def ask(parent: QWidget, title: str, text: str, answers: Mapping[str, str], more: str = "", *, careful: bool = False) -> str:
    """Ask; return the key of the answer chosen, '' when it was cancelled or closed.

    answers: key -> a button's text; Enter takes the first, or Cancel where it is `careful`. more stands below in smaller letters.
    """
    box = QMessageBox(parent)
    box.setWindowTitle(title)
    box.setTextFormat(Qt.TextFormat.PlainText)
    box.setText(text)
    box.setInformativeText(more)
    for shown in box.findChildren(QLabel):  # setTextFormat is of the first text alone
        shown.setTextFormat(Qt.TextFormat.PlainText)
    buttons = {key: box.addButton(words, QMessageBox.ButtonRole.AcceptRole) for key, words in answers.items()}
    cancel = box.addButton(QMessageBox.StandardButton.Cancel)
    box.setDefaultButton(cancel if careful else next(iter(buttons.values())))
    box.exec()
    clicked = box.clickedButton()
    chosen = next((key for key, button in buttons.items() if button is clicked), "")
    box.deleteLater()
    return chosen
