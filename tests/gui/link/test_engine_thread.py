"""The engine thread without a window: order, stopping, failures, closing."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import pytest

from specview.engines import templates
from specview.engines.chat import render_chat
from specview.errors import SpecviewError, Stopped
from specview.gui.link.engine_thread import EngineThread
from specview.gui.link.messages import (
    CommandDone,
    Continue,
    Count,
    FollowUp,
    JobEnded,
    JobNews,
    JobProgress,
    Preload,
    PreloadEnded,
    Run,
    RunJob,
    SettingsTaken,
    TokensCounted,
)
from specview.racing.resolve import checked_run
from specview.settings.events import Failed, LaneRound, RaceEnded
from specview.settings.run import LaneSettings, RunSettings
from tests.gui.shell_fake import FakeBackend, Script

CHAT = [{"role": "user", "content": "hi"}]
CODES = {"encode_text": lambda text: [ord(letter) for letter in text], "bos_token": None, "eos_token": None}
SETTINGS = checked_run(RunSettings(prompt="x", lanes=(LaneSettings(), LaneSettings(method="prompt-lookup"))))


KINDS = {"run": Run, "preload": Preload, "continue": Continue, "follow-up": FollowUp, "job": RunJob}


class Harness:
    """A thread and what it said."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.thread = EngineThread(lambda: FakeBackend(script))
        self.thread.start()
        self.events: list = []

    def until(self, found, timeout_s: float = 60.0):
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            self.events += self.thread.drain()
            for event in self.events:
                if found(event):
                    return event
            time.sleep(0.002)
        raise AssertionError(f"not seen in {timeout_s} s; last: {self.events[-3:]}")

    def done(self, run_id: int, kind: str):
        return self.until(lambda e: isinstance(e, CommandDone) and (e.run_id, type(e.command)) == (run_id, KINDS[kind]))


@pytest.fixture
def harness():
    made = []

    def make(**options):
        made.append(Harness(Script(**options)))
        return made[-1]

    yield make
    for one in made:
        assert one.thread.close(5)


def test_commands_run_in_order_on_one_thread(harness):
    h = harness()
    preload = h.thread.send(Preload(SETTINGS))
    run = h.thread.send(Run(SETTINGS))
    h.done(run, "run")
    assert h.script.log[:2] == ["preload", f"run {run}"]
    assert preload < run
    assert h.script.threads == {"specview-engine"}
    rounds = [e for e in h.events if isinstance(e, LaneRound)]
    assert len(rounds) == h.script.rounds * 2
    ended = [e for e in h.events if isinstance(e, RaceEnded)]
    assert [e.end for e in ended] == ["done"]


@pytest.mark.parametrize("phase", ["load", "prefill", "rounds"])
def test_stop_takes_effect_at_once(harness, phase):
    h = harness(load_s=20 if phase == "load" else 0.01, prefill_s=20 if phase == "prefill" else 0.01, rounds=90,
                round_s=0.05)
    run = h.thread.send(Run(SETTINGS))
    if phase == "rounds":
        h.until(lambda e: isinstance(e, LaneRound))
    else:
        h.until(lambda e: getattr(e, "phase", "") == phase)
    began = time.monotonic()
    h.thread.stop()
    h.done(run, "run")
    assert time.monotonic() - began < 1.0
    assert [e.end for e in h.events if isinstance(e, RaceEnded)] == ["stopped"]
    kept = sum(isinstance(e, LaneRound) for e in h.events)
    assert kept == h.script.emitted_rounds


def test_stop_does_not_touch_the_next_command(harness):
    h = harness(rounds=5)
    first = h.thread.send(Run(SETTINGS))
    h.thread.stop()
    second = h.thread.send(Run(SETTINGS))
    h.done(second, "run")
    ends = {e.run_id: e.end for e in h.events if isinstance(e, RaceEnded)}
    assert ends[first] == "stopped"
    assert ends[second] == "done"


def test_an_unforeseen_error_is_one_line_and_the_thread_lives(harness, caplog):
    h = harness(crash="weights\nare <b>odd</b>")
    with caplog.at_level(logging.ERROR):
        run = h.thread.send(Run(SETTINGS))
        h.done(run, "run")
    failed = next(e for e in h.events if isinstance(e, Failed))
    assert "\n" not in failed.message
    assert "weights are <b>odd</b>" in failed.message
    assert "Traceback" in caplog.text
    h.script.crash = ""
    again = h.thread.send(Run(SETTINGS))
    h.done(again, "run")
    assert any(isinstance(e, RaceEnded) and e.run_id == again for e in h.events)


def test_a_backend_that_cannot_be_made_is_said(harness):
    h = harness()

    def broken():
        raise ImportError("no module named torch")

    h.thread._make_backend = broken
    run = h.thread.send(Run(SETTINGS))
    assert "torch" in h.until(lambda e: isinstance(e, Failed)).message
    preload = h.thread.send(Preload(SETTINGS))
    ended = h.until(lambda e: isinstance(e, PreloadEnded) and e.run_id == preload)
    assert not ended.ready
    assert "torch" in ended.message
    count = h.thread.send(Count(SETTINGS))
    assert h.until(lambda e: isinstance(e, TokensCounted) and e.run_id == count).count is None
    assert run < preload < count


@pytest.mark.parametrize("template", ["{{ 9**(9**9) }}", '{{ "x"*2000000000 }}'])
def test_a_count_ends_whatever_the_template_asks_for(harness, monkeypatch, template):
    """The count starts by itself: the run behind it is not kept waiting, and nothing goes on after it."""
    h = harness()
    monkeypatch.setattr(
        FakeBackend, "count_tokens", lambda *_: len(render_chat({"default": template}, CHAT, special_tokens={}, **CODES))
    )
    counts = [h.thread.send(Count(SETTINGS)) for _ in range(2)]
    h.done(h.thread.send(Run(SETTINGS)), "run")
    told = {event.run_id: event.count for event in h.events if isinstance(event, TokensCounted)}
    assert told == dict.fromkeys(counts)
    assert templates._process is None  # what exceeded its limits was ended


def test_continue_and_follow_up(harness):
    h = harness(rounds=3)
    run = h.thread.send(Run(SETTINGS))
    h.done(run, "run")
    h.events.clear()
    assert h.thread.send(Continue(64, run_id=run)) == run
    h.done(run, "continue")
    assert {e.run_id for e in h.events if isinstance(e, LaneRound)} == {run}
    turn = h.thread.send(FollowUp("and now?", SETTINGS))
    h.done(turn, "follow-up")
    taken = next(e for e in h.events if isinstance(e, SettingsTaken))
    assert taken.settings.prompt == "and now?"
    assert [t["role"] for t in taken.settings.history] == ["user", "assistant"]
    assert f"close {run}" in h.script.log


@pytest.mark.parametrize("moment", ["idle", "preload", "load", "rounds"])
def test_closing_frees_everything(moment):
    script = Script(preload_s=5 if moment == "preload" else 0.01, load_s=20 if moment == "load" else 0.01, rounds=500)
    h = Harness(script)
    if moment == "preload":
        h.thread.send(Preload(SETTINGS))
        h.until(lambda e: getattr(e, "phase", "") == "load")
    elif moment != "idle":
        h.thread.send(Run(SETTINGS))
        h.until(lambda e: getattr(e, "phase", "") == "load" if moment == "load" else isinstance(e, LaneRound))
    assert h.thread.close(3)
    h.events += h.thread.drain(1_000_000)
    assert not h.thread.alive
    assert script.closed == (moment != "idle")
    assert sum(isinstance(e, LaneRound) for e in h.events) == script.emitted_rounds


def test_closing_is_bounded():
    h = Harness(Script(ignore_stop_s=2.5, rounds=3))
    h.thread.send(Run(SETTINGS))
    h.until(lambda e: isinstance(e, LaneRound))
    time.sleep(0.05)  # the next round is under way: it does not look at the stop flag
    began = time.monotonic()
    assert not h.thread.close(0.2)
    assert time.monotonic() - began < 1
    assert h.thread.close(5)


def keeps(pool, tell, should_stop):
    tell("begun")
    while not should_stop():
        time.sleep(0.001)
    return "so far"


def stops(pool, tell, should_stop):
    keeps(pool, tell, should_stop)
    raise Stopped


def broken(pool, tell, should_stop):
    raise SpecviewError("the grid is empty.", "Choose a k.")


def crashes(pool, tell, should_stop):
    raise KeyError("cell\n7")


def tells(pool, tell, should_stop):
    tell.progress("half", 0.5)
    tell("begun")
    return isinstance(pool, Script)


@pytest.mark.parametrize(
    ("work", "result", "message"),
    [
        (tells, True, ""), (keeps, "so far", ""), (stops, None, ""), (broken, None, "the grid is empty. Choose a k."),
        (crashes, None, "Something went wrong in sweep: KeyError: 'cell\\n7'"),
    ],
)
def test_a_job_tells_its_news_and_how_it_ended_and_the_thread_lives_on(harness, work, result, message):
    h = harness()
    run_id, stopped = h.thread.send(RunJob("sweep", work)), work in (keeps, stops)
    if stopped:
        assert h.until(lambda e: isinstance(e, JobNews)).news == "begun"
        h.thread.stop()
    h.done(run_id, "job")
    assert [e for e in h.events if isinstance(e, JobEnded)] == [JobEnded(run_id, "sweep", result, message, stopped)]
    if work is tells:
        assert [e.news for e in h.events if isinstance(e, JobNews)] == [JobProgress("half", 0.5), "begun"]
    h.done(h.thread.send(Run(SETTINGS)), "run")


def test_continue_goes_on_after_a_sweep_of_another_target(monkeypatch, tmp_path):
    """As the window does it: a race, then the Sweep tab's job, then Continue."""
    from specview.experiments.sweep_grid import Grid, GridPrompt
    from specview.gui.link.local_backend import LocalBackend
    from specview.gui.sweep.work import SweepPlan, sweep_work
    from tests.racing.world import DRAFTED, PROMPT, World

    monkeypatch.setenv("SPECVIEW_DATA", str(tmp_path))
    world = World(monkeypatch)
    world.models["target", "elsewhere"] = world.make_target
    shared = RunSettings(prompt=PROMPT, max_tokens=12, chat=False, observe="off")
    elsewhere, lane = replace(shared, target="elsewhere"), LaneSettings("prompt-lookup")
    grid = Grid(elsewhere, (lane,), (2,), (0.0,), (GridPrompt("one", PROMPT),), 1)
    h = Harness(Script())
    h.thread.close(5)
    h.thread = EngineThread(LocalBackend, lambda settings, on_trouble: None)
    h.thread.start()
    try:
        race = h.thread.send(Run(replace(shared, lanes=(LaneSettings(), DRAFTED))))
        h.done(race, "run")
        job = h.thread.send(RunJob("sweep", sweep_work(SweepPlan(grid.checked(), yes=True)), grid.settings))
        assert h.until(lambda e: isinstance(e, JobEnded) and e.run_id == job).message == ""
        h.events.clear()
        h.thread.send(Continue(8, run_id=race))
        h.done(race, "continue")
        assert not [e for e in h.events if isinstance(e, Failed)]
        assert any(isinstance(e, LaneRound) for e in h.events) and not world.engines["target", "bundled"].closed
    finally:
        assert h.thread.close(5)
    assert all(engine.closed for engine in world.engines.values())
