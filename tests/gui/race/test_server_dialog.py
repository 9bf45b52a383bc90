"""Add a server…: what it says of itself, by keyboard, off the Qt thread, with a key that nothing shows."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from specview.decoding.ledger import DraftedToken, FinalToken, Round
from specview.drafting.lanes import flat_settings
from specview.gui.race.server_dialog import ServerDialog
from specview.gui.state.lane_words import about
from specview.gui.state.token_words import token_words
from specview.gui.state.view_model import LaneModel
from specview.remote import keys
from specview.remote.address import Secret, parse
from specview.settings.run import LaneSettings, RunSettings
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


def test_a_servers_lane_says_where_it_is_and_how_it_is_timed() -> None:
    url = "http://box:8000"
    told = about(flat_settings(RunSettings(target=url), LaneSettings("server", options={"url": url})))
    assert "wall-clock" in told and "box:8000" in told


def test_an_inferred_round_says_so() -> None:
    burst = Round(0, 0.1, 0.0, 0.0, 0.1, drafted=(DraftedToken(5, "accepted", text="a"),), final=FinalToken(6, "corrected", "b"), inferred=True)
    lane = LaneModel("server", {"method": "server"})
    lane.add(burst)
    assert "Inferred" in token_words(lane, lane.tokens[0])
