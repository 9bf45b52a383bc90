"""The dialog with commands for servers: one section a server, copied by a button, nothing left of it once closed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QLabel, QWidget
from pytestqt.qtbot import QtBot

from specview.drafting.lanes import checked_lane, flat_settings
from specview.gui.lanes.panel import LanePanel
from specview.gui.parts.serve_dialog import ServeDialog, made_for
from specview.remote.launch_check import check_command
from specview.remote.launch_table import ENGINES
from specview.settings.run import LaneSettings, RunSettings
from tests.gui.views_data import make_race


def flat(lane: LaneSettings) -> Mapping[str, Any]:
    run = RunSettings()
    return flat_settings(run, checked_lane(lane, run.sampling))


@pytest.fixture
def opened(qtbot: QtBot):
    made = []

    def make(lane: LaneSettings, **more: Any) -> ServeDialog:
        parent = QWidget()
        qtbot.addWidget(parent)
        dialog = ServeDialog(lane.label, {**flat(lane), **more}, parent)
        made.append((dialog, parent))
        dialog.open()
        return dialog

    yield make
    for dialog, _ in made:
        dialog.reject()


def test_each_server_has_its_command_and_a_button_that_copies_it(qtbot: QtBot, opened) -> None:
    dialog = opened(LaneSettings("eagle3", k=4))
    qtbot.waitUntil(lambda: len(dialog.copies) == len(ENGINES))
    assert dialog.copies[0].hasFocus() or not dialog.isActiveWindow()
    for copy, made in zip(dialog.copies, dialog.launches, strict=True):
        assert made.engine.label in copy.accessibleName() and copy.toolTip()
        copy.click()
        assert QGuiApplication.clipboard().text() == made.command
        back = check_command(made.command)
        assert back.lane is not None and (back.lane.method, back.lane.k) == ("eagle3", 4)
    assert dialog.said.text().startswith("The command for")


def test_a_server_that_lacks_the_method_says_so_and_has_no_button(qtbot: QtBot, opened) -> None:
    dialog = opened(LaneSettings("ngram-simple"), k="auto")
    qtbot.waitUntil(lambda: bool(dialog.launches))
    assert len(dialog.copies) == len(dialog.commands) == 1
    assert sum("Nearest" in found.text() for found in dialog.findChildren(QLabel)) == 3


def test_settings_that_cannot_be_are_one_line(qtbot: QtBot, opened) -> None:
    dialog = opened(LaneSettings("eagle3"), method="telepathy")
    qtbot.waitUntil(lambda: "telepathy" in dialog.said.text())
    assert not dialog.copies


def test_model_names_are_text() -> None:
    settings = {**flat(replace(LaneSettings("draft-model"), draft="<b>x</b>.gguf")), "target": "$(boom).gguf"}
    assert "'$(boom).gguf'" in made_for("x", settings)[0].command


def test_the_lanes_menu_opens_it(qtbot: QtBot, monkeypatch) -> None:
    race = make_race()
    panel = LanePanel(race, 1)
    qtbot.addWidget(panel)
    opened = []
    monkeypatch.setattr(ServeDialog, "open", lambda self: opened.append(self))
    panel.menu.aboutToShow.emit()
    action = next(one for one in panel.menu.actions() if "server" in one.text())
    assert action.isEnabled()
    action.trigger()
    assert len(opened) == 1
    opened[0].reject()
    opened[0].deleteLater()
