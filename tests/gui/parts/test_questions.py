"""Questions with named answers, and the dialogs of the Help menu."""

import pytest
from PySide6.QtCore import Qt, QTimer
from PySide6.QtWidgets import QApplication, QDialogButtonBox, QLabel, QMessageBox, QWidget

from specview.gui.parts.questions import ask
from specview.gui.shell.help_dialogs import SHORTCUTS, show_about, show_shortcuts


def answer(words):
    """Press the button with these words in the dialog that is open, or Escape for ''."""

    def press():
        box = QApplication.activeModalWidget()
        assert isinstance(box, QMessageBox)
        assert all(shown.textFormat() == Qt.TextFormat.PlainText for shown in box.findChildren(QLabel))
        if words:
            next(button for button in box.buttons() if button.text().replace("&", "") == words).click()
        else:
            box.reject()

    QTimer.singleShot(30, press)


@pytest.fixture
def parent(qtbot):
    made = QWidget()
    qtbot.addWidget(made)
    return made


@pytest.mark.parametrize(("words", "key"), [("Target", "target"), ("Draft", "draft"), ("Cancel", ""), ("", "")])
def test_the_answer_is_the_button_pressed(parent, words, key):
    answer(words)
    assert ask(parent, "Use", "<b>x</b>?", {"target": "Target", "draft": "Draft"}, "<img src=x>") == key


@pytest.mark.parametrize(("careful", "default"), [(False, "Go"), (True, "Cancel")])
def test_enter_takes_the_first_answer_unless_it_is_to_be_careful(parent, careful, default):
    found = []

    def look():
        box = QApplication.activeModalWidget()
        found.append(box.defaultButton().text().replace("&", ""))
        box.reject()

    QTimer.singleShot(30, look)
    assert ask(parent, "t", "x", {"go": "Go"}, careful=careful) == ""
    assert found == [default]


def test_the_help_dialogs_open_and_close(parent):
    texts = []

    def look():
        dialog = QApplication.activeModalWidget()
        texts.extend(child.text() for child in dialog.findChildren(QWidget) if hasattr(child, "text"))
        if box := dialog.findChild(QDialogButtonBox):
            box.rejected.emit()
        dialog.reject()

    QTimer.singleShot(30, look)
    show_shortcuts(parent)
    assert {keys for _, keys in SHORTCUTS} <= set(texts)
    QTimer.singleShot(30, look)
    show_about(parent)
    assert any("Apache-2.0" in text for text in texts)
