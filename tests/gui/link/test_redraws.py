"""Lanes and drawing take turns: the race stands until what is due has been painted, and no longer than it must."""

from __future__ import annotations

import threading

import pytest
from PySide6.QtCore import QObject, Qt, QTimer
from PySide6.QtWidgets import QWidget

from specview.gui.link import redraws as module
from specview.gui.link.redraws import Redraws
from specview.racing.pacer import TURN_S, Pacer


class Canvas(QWidget):
    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def paintEvent(self, event) -> None:  # noqa: N802
        self.log.append("painted")


@pytest.fixture
def drawn():
    return []


@pytest.fixture
def made(qapp, drawn, monkeypatch):
    owner, pacer = QObject(), Pacer()
    kinds = {kind: lambda kind=kind: drawn.append(kind) for kind in ("text", "plots", "figures")}
    made = Redraws(owner, pacer, lambda: True, kinds)
    made.owner, made.pacer = owner, pacer
    yield made
    made.end(race_only=False)


def rounds(made: Redraws, log: list[str], count: int) -> threading.Thread:
    def race() -> None:
        for _ in range(count):
            if made.pacer.holds:
                log.append("stands")
                made.pacer.wait(lambda: False)
                log.append("goes on")

    thread = threading.Thread(target=race)
    thread.start()
    return thread


def test_the_race_stands_until_all_is_painted_what_a_timer_put_off_too(made, drawn, qtbot):
    canvas = Canvas(drawn)
    qtbot.addWidget(canvas)
    canvas.show()
    qtbot.waitExposed(canvas)
    qtbot.wait(50)
    drawn.clear()
    late = QTimer(made)
    late.setSingleShot(True)
    late.timeout.connect(canvas.update)
    made._draw = {"text": lambda: late.start(0)}
    made._ask("text")
    assert made.pacer.holds and not drawn  # nothing is drawn beside the round under way
    thread = rounds(made, drawn, 1)
    qtbot.waitUntil(lambda: not thread.is_alive(), timeout=3000)
    assert drawn == ["stands", "painted", "goes on"]


def test_all_that_is_due_is_drawn_in_one_turn(made, drawn, qtbot):
    for kind in ("figures", "text", "text", "plots"):
        made._ask(kind)
    thread = rounds(made, [], 3)
    qtbot.waitUntil(lambda: not thread.is_alive(), timeout=3000)
    assert drawn == ["text", "plots", "figures"] and not made.pacer.holds


def test_a_long_round_is_not_waited_for(made, drawn, monkeypatch):
    clock = [10.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    made._ask("text")
    clock[0] += module.PATIENCE_S / 2
    made._ask("text")
    assert drawn == []
    clock[0] += module.PATIENCE_S
    made._ask("text")
    assert drawn == ["text"]


def test_outside_of_rounds_and_while_it_is_paused_drawing_waits_for_nobody(made, drawn):
    made.pacer.pause()
    made._ask("text")
    made.pacer.go_on()
    made._in_rounds = lambda: False
    made._ask("plots")
    assert drawn == ["text", "plots"] and not made.pacer.holds


def test_a_window_that_does_not_answer_does_not_hold_the_race():
    pacer = Pacer()
    given = []
    pacer.on_turn = lambda: given.append("turn")
    pacer.ask_turn()
    pacer.wait(lambda: False)
    assert given == ["turn"] and not pacer.holds and TURN_S <= pacer.waited_s < 5


def test_drawing_makes_room_for_the_race(made, monkeypatch):
    clock = {"wall": 100.0, "thread": 10.0}
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock["wall"])
    monkeypatch.setattr(module.time, "thread_time", lambda: clock["thread"])
    monkeypatch.setattr(module.os, "cpu_count", lambda: 2)
    for _ in range(12):
        made._keep_pace()
        clock["wall"] += 0.5
        clock["thread"] += 0.1
    assert (made.timers["text"].interval(), made.timers["plots"].interval()) == (round(33 * 2.5), 250)
    for _ in range(20):
        clock["wall"] += 0.5
        clock["thread"] += 0.001
        made._keep_pace()
    assert (made.timers["text"].interval(), made.timers["plots"].interval()) == (33, 100)
    assert made.timers["text"].timerType() == Qt.TimerType.CoarseTimer
