"""The legend: it says what the colours mean, and each is switched on and off."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAccessible
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from specview.gui.parts import layout
from specview.gui.race.legend import Legend
from specview.gui.state.token_looks import SWITCHED


@pytest.fixture
def legend(qtbot: QtBot) -> Legend:
    made = Legend()
    qtbot.addWidget(made)
    with qtbot.waitExposed(made):
        made.show()
    return made


def test_each_state_is_a_button_that_says_what_it_means(legend: Legend) -> None:
    assert tuple(legend.chips) == SWITCHED
    for kind, chip in legend.chips.items():
        interface = QAccessible.queryAccessibleInterface(chip)
        assert interface.text(QAccessible.Text.Name) == f"{kind} tokens"
        assert interface.state().checkable and interface.state().checked
        assert "." in chip.accessibleDescription() and chip.toolTip()
        assert chip.focusPolicy() == Qt.FocusPolicy.StrongFocus
    assert legend.chips["rejected"].text() == "+2 rejected"


def test_a_press_switches_a_state_by_pointer_and_by_key(legend: Legend, qtbot: QtBot) -> None:
    told: list[tuple[str, bool]] = []
    legend.switched.connect(lambda kind, on: told.append((kind, on)))
    qtbot.mouseClick(legend.chips["bonus"], Qt.MouseButton.LeftButton)
    legend.chips["rejected"].setFocus()
    qtbot.keyClick(legend.chips["rejected"], Qt.Key.Key_Space)
    qtbot.keyClick(legend.chips["rejected"], Qt.Key.Key_Space)
    assert told == [("bonus", False), ("rejected", False), ("rejected", True)]
    assert "plain text" in legend.chips["bonus"].accessibleDescription()
    legend.set_off(frozenset({"accepted"}))
    assert [kind for kind, chip in legend.chips.items() if not chip.isChecked()] == ["accepted"]
    assert len(told) == 3, "what is set from outside is no press"


def test_a_state_that_is_off_looks_otherwise(legend: Legend) -> None:
    for kind, chip in legend.chips.items():
        on = chip.grab().toImage()
        legend.set_off(frozenset({kind}))
        assert chip.grab().toImage() != on
        legend.set_off(frozenset())


def test_it_gives_way_in_a_narrow_window_but_all_of_it_stays(qtbot: QtBot) -> None:
    legend = Legend()
    assert legend.minimumSizeHint().width() < 0.85 * legend.sizeHint().width()
    holder = QWidget()
    qtbot.addWidget(holder)
    layout.row(legend, on=holder)
    for width in (legend.minimumSizeHint().width(), 300, 900):
        holder.resize(width, 40)
        holder.show()
        holder.grab()
        chips = list(legend.chips.values())
        assert all(chip.isVisible() and chip.width() > 20 for chip in chips)
        assert chips[-1].geometry().right() <= legend.width()
    assert [chip.width() for chip in legend.chips.values()] == [chip.sizeHint().width() for chip in legend.chips.values()]


def test_told_in_full_and_large_for_a_room(qtbot: QtBot) -> None:
    told, small = Legend(told=True, size=24), Legend(told=True)
    qtbot.addWidget(told)
    qtbot.addWidget(small)
    assert told.chips["accepted"].text() == "accepted: the draft was right"
    assert told.sizeHint().width() > 1.6 * small.sizeHint().width()
    small.set_size(24)
    assert small.sizeHint() == told.sizeHint()
