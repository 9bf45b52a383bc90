"""Add a server…: what it says of itself, by keyboard, off the Qt thread, with a key that nothing shows."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from specview.gui.race.server_dialog import ServerDialog
from specview.remote import keys
from specview.remote.address import Secret, parse
from tests.remote.server import Call, serving, vllm


@pytest.fixture
def dialog(qtbot: QtBot) -> ServerDialog:
    keys.forget()
    window = QWidget()
    qtbot.addWidget(window)
    made = ServerDialog(window)
    made.show()
    yield made
    made.reject()
    keys.forget()


def test_a_server_is_looked_at_and_its_lane_added_by_keyboard(qtbot: QtBot, dialog: ServerDialog) -> None:
    assert not dialog.add.isEnabled()
    with serving(vllm) as server:
        qtbot.keyClicks(dialog.address, server.url)
        qtbot.keyClick(dialog.address, Qt.Key.Key_Return)
        qtbot.waitUntil(dialog.add.isEnabled)
    assert "vLLM 0.32.0" in dialog.said.text() and "\n" in dialog.said.text()
    qtbot.keyClick(dialog.add, Qt.Key.Key_Return)
    assert dialog.lane is not None and dialog.lane.options == {"url": server.url} and dialog.lane.label == "vLLM"


def test_what_is_wrong_is_said_and_another_address_starts_over(qtbot: QtBot, dialog: ServerDialog) -> None:
    dialog.address.setText("127.0.0.1:1")
    dialog.look_now()
    qtbot.waitUntil(lambda: "refused" in dialog.said.text())
    assert not dialog.add.isEnabled() and dialog.look.isEnabled()
    with serving(vllm) as server:
        dialog.address.setText(server.url)
        dialog.look_now()
        qtbot.waitUntil(dialog.add.isEnabled)
        dialog.address.setText("http://other:1")
        assert not dialog.add.isEnabled() and "vLLM" not in dialog.said.text().split(",")[0]


def test_a_key_is_sent_and_shown_nowhere(qtbot: QtBot, dialog: ServerDialog) -> None:
    def wanting(call: Call) -> None:
        if call.headers.get("Authorization") != "Bearer sk-secret-7":
            call.json({"error": {"message": "no"}}, 401)
        else:
            vllm(call)

    with serving(wanting) as server:
        dialog.address.setText(server.url)
        dialog.look_now()
        qtbot.waitUntil(lambda: "wants a key" in dialog.said.text())
        dialog.key.setText("sk-secret-7")
        dialog.look_now()
        qtbot.waitUntil(dialog.add.isEnabled)
    assert dialog.key.displayText() != "sk-secret-7"
    dialog.add.click()
    assert "sk-secret" not in repr(dialog.lane) + dialog.said.text()
    assert keys.key_for(parse(server.url)) == Secret("sk-secret-7")
