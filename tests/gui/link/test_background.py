"""Work off the Qt thread, and how often things are done."""

from __future__ import annotations

import threading

import pytest
from PySide6.QtCore import QObject

from specview.errors import SpecviewError
from specview.gui.link.background import Background, BackgroundAnswers
from specview.gui.link.pace import Later, Throttle


@pytest.fixture
def work(qtbot):
    made = Background()
    yield made
    made.close()


def test_things_are_done_in_order_and_of_one_kind_the_last(work, qtbot):
    said, threads, begun, go = [], set(), threading.Event(), threading.Event()

    def slow():
        threads.add(threading.current_thread().name)
        begun.set()
        return go.wait(10)

    work.do(slow, said.append)
    assert work.busy and begun.wait(10)
    work.do(lambda: "skipped", said.append, "scan")
    work.do(lambda: "between", said.append)
    work.do(lambda: "scanned", said.append, "scan")
    go.set()
    qtbot.waitUntil(lambda: not work.busy)
    assert said == [True, "between", "scanned"] and threads == {"specview-files"}


def test_only_the_newest_is_heard_of(work, qtbot):
    said, progress, begun, go = [], [], threading.Event(), threading.Event()
    work.progressed.connect(lambda *news: progress.append(news))

    def slow():
        work.tell("half", 0.5)
        begun.set()
        go.wait(10)
        work.tell()  # told to stop here
        said.append("never")

    work.only(slow, said.append)
    assert begun.wait(10)
    qtbot.waitUntil(lambda: progress == [("half", 0.5)])
    work.only(lambda: "skipped", said.append)
    work.only(lambda: "heard", said.append)
    go.set()
    qtbot.waitUntil(lambda: not work.busy)
    assert said == ["heard"]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (SpecviewError("no.", "Yes."), "no. Yes."),
        (KeyError("a\nb"), "Something went wrong: KeyError: 'a\\nb'. The log has more."),
        (MemoryError(), "There is not enough memory for this. Close other programs."),
    ],
)
def test_what_fails_says_why_in_one_line(work, qtbot, error, line):
    def refuse():
        raise error

    own = []
    with qtbot.waitSignal(work.failed, timeout=10_000) as caught:
        work.do(refuse)
    assert caught.args == [line]
    work.do(refuse, otherwise=own.append)
    qtbot.waitUntil(lambda: own == [line])


def test_what_is_dropped_is_not_heard_of_and_closing_waits_for_it(work, qtbot):
    said, go = [], threading.Event()
    work.do(lambda: go.wait(10), said.append)
    work.drop()
    assert not work.busy and work.should_stop()
    thread = work._thread
    go.set()
    work.close()
    assert not thread.is_alive() and said == []
    work.do(lambda: 1, said.append)
    assert not work.busy


def test_an_answer_is_found_once_and_kept(qtbot):
    asked = []
    answers = BackgroundAnswers(lambda question: asked.append(question) or ("small", f"about {question}"), "busy…", "later")
    with qtbot.waitSignal(answers.changed, timeout=10_000):
        answers.want("a")
        assert answers.answer("a") == ("small", "busy…")
    answers.want("a")
    assert answers.answer("a") == ("small", "about a") and asked == ["a"] and not answers.busy
    answers.close(2.0)


def test_a_throttle_lets_ten_a_second_through():
    now = [0.0]
    due = Throttle(0.1, lambda: now[0])
    passed = 0
    for step in range(1000):
        now[0] = step / 1000
        passed += due()
    assert 9 <= passed <= 10


def test_what_takes_long_is_followed_by_a_rest(qtbot, monkeypatch):
    clock, called = [0.0], []
    monkeypatch.setattr("specview.gui.link.pace.time.perf_counter", lambda: clock[0])

    def slow():
        called.append(1)
        clock[0] += 0.01

    owner = QObject()
    later = Later(owner, 0, slow, share=0.5)
    later.ask()
    later.ask()
    qtbot.waitUntil(lambda: called == [1])
    assert later.interval() == 10 and not later.isActive()
