"""A made-up backend for the shell's tests: races that emit rounds at a chosen pace, no models."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field, replace

from specview.decoding.interfaces import Declared
from specview.decoding.ledger import DraftedToken, FinalToken, Round
from specview.decoding.metrics import fold
from specview.decoding.round_table import RoundTable
from specview.decoding.speedup import speedup
from specview.drafting.lanes import flat_settings
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError, Stopped
from specview.experiments.exit_scan import ConfirmedRun, ExitFigures, ExitScan
from specview.settings.events import (
    Equality,
    Failed,
    LaneEnded,
    LanePrefilled,
    LaneRound,
    Progress,
    RaceEnded,
    RaceStarted,
)
from tests.gui.views_data import make_rounds


@dataclass
class Script:
    """What the fake does: durations, failures, and what it recorded."""

    load_s: float = 0.05
    prefill_s: float = 0.02
    round_s: float = 0.001
    rounds: int = 20
    preload_s: float = 0.02
    eos: bool = False
    fail_load: str = ""
    crash: str = ""
    fail_lane: int | None = None
    count: int | None = 131
    ignore_stop_s: float = 0.0
    scan_s: float = 0.1
    fail_scan: str = ""
    facts: tuple[str, dict[str, str], Declared] | None = ("cpu", {}, Declared())
    log: list[str] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)
    emitted_rounds: int = 0
    closed: bool = False


class FakeRace:
    """Events like those of `specview.racing.race.Race`."""

    def __init__(self, settings, run_id, script):
        self.settings, self.run_id, self.script = settings, run_id, script
        self.tables = []
        self.made = []
        self.pacer = None
        self.next = []

    def _wait(self, seconds, should_stop):
        end = time.perf_counter() + seconds
        while True:
            self.script.threads.add(threading.current_thread().name)
            if should_stop():
                raise Stopped
            left = end - time.perf_counter()
            if left <= 0:
                return
            time.sleep(min(left, 0.002))

    def run(self, emit, should_stop):
        self.script.log.append(f"run {self.run_id}")
        self._guarded(self._run, emit, should_stop)

    def continue_(self, max_tokens, emit, should_stop):
        self.script.log.append(f"continue {self.run_id} {max_tokens}")
        self._guarded(lambda e, s: self._race(e, s, self.script.rounds), emit, should_stop)

    def _guarded(self, work, emit, should_stop):
        if self.script.crash:
            raise RuntimeError(self.script.crash)
        try:
            work(emit, should_stop)
        except Stopped:
            for index, table in enumerate(self.tables):
                emit(LaneEnded(self.run_id, index, "stopped", fold(table)))
            emit(RaceEnded(self.run_id, "stopped"))
        except SpecviewError as error:
            emit(Failed(self.run_id, str(error)))
            emit(RaceEnded(self.run_id, "error"))

    def _run(self, emit, should_stop):
        script, lanes = self.script, self.settings.lanes
        for step in range(10):
            emit(Progress(self.run_id, "load", "Loading SmolLM2-135M-Instruct", step / 10))
            self._wait(script.load_s / 10, should_stop)
        if script.fail_load:
            raise SpecviewError(script.fail_load)
        emit(
            RaceStarted(
                self.run_id,
                tuple(range(131)),
                self.settings.prompt,
                tuple(lane.label for lane in lanes),
                tuple(flat_settings(self.settings, lane) for lane in lanes),
                {"threads": 2, "target_dtype": "float32", "device": "cpu", "history": [dict(turn) for turn in self.settings.history]},
            )
        )
        for index, lane in enumerate(lanes):
            for done in (0, 64, 131):
                emit(Progress(self.run_id, "prefill", f"Prefill of {lane.label}: {done} of 131 tokens", done / 131, index))
                self._wait(script.prefill_s / 3, should_stop)
            if index == script.fail_lane:
                continue
            emit(LanePrefilled(self.run_id, index, 0.31, 12_000_000, 9_000_000))
        self.tables = [RoundTable(prefill_s=0.31) for _ in lanes]
        self.made = [
            iter(make_rounds(300, 0 if lane.method == "plain" else lane.k or 4, seed=i,
                             alpha=0.65 if lane.method == "draft-model" else 0.8,
                             rule="greedy" if self.settings.sampling.greedy else "rejection",
                             drafters=METHODS[lane.method].members(lane.options) or (lane.method,)))
            for i, lane in enumerate(lanes)
        ]
        self._race(emit, should_stop, script.rounds)

    def _race(self, emit, should_stop, rounds):
        script = self.script
        if script.fail_lane is not None and self.made:
            emit(
                LaneEnded(self.run_id, script.fail_lane, "error", fold(self.tables[script.fail_lane]),
                          "The draft has another tokenizer: token 17 is 'x' there and 'y' here. Choose a draft "
                          "of the same family.")
            )
        for _ in range(rounds):
            for index, made in enumerate(self.made):
                if index == script.fail_lane:
                    continue
                if self.pacer is not None and self.pacer.holds:
                    self.pacer.wait(should_stop)
                self._wait(script.round_s, should_stop)
                if script.ignore_stop_s:
                    script.log.append("deaf")
                    time.sleep(script.ignore_stop_s)
                round_ = next(made)
                self.tables[index].add(round_)
                script.emitted_rounds += 1
                emit(LaneRound(self.run_id, index, round_))
        plain = self.tables[0].plain_step_s()
        for index, table in enumerate(self.tables):
            if index == script.fail_lane:
                continue
            metrics = fold(table, plain_step_s=plain)
            if METHODS[self.settings.lanes[index].method].combines:
                metrics = replace(metrics, oracle_share=0.93)
            equal = Equality(index != 2, 128, None if index != 2 else 57, 0.11, 0.2) if index else None
            emit(
                LaneEnded(self.run_id, index, "eos" if script.eos else "limit", metrics, "",
                          speedup(table, self.tables[0]) if index else None, equal)
            )
        emit(RaceEnded(self.run_id, "done", 0.34))

    def follow_up(self, text):
        turn = ({"role": "user", "content": self.settings.prompt}, {"role": "assistant", "content": "reply"})
        return self.settings.next_turn((*self.settings.history, *turn), text)

    def close(self):
        self.script.log.append(f"close {self.run_id}")


def exit_scan(layers=12):
    """A scan whose sixth exit is best, and pays."""
    exits = []
    for layer in range(1, layers):
        alpha, cost = layer / layers, layer / layers
        worth = 1.3 - abs(layer - 6) * 0.1
        run = ConfirmedRun(2, (worth, worth + 0.02), alpha, 1.8) if 5 <= layer <= 7 else None
        predicted = (worth - 0.1, worth, worth - 0.2)
        exits.append(ExitFigures(layer, int(alpha * 64), 64, cost, (1.1, 1.2, 1.3), predicted, run))
    return ExitScan("fake", layers, 131, 64, 0.045, tuple(exits))


def fake_scan(script):
    """In place of measuring exit layers."""

    def measure(settings, pool, tell, should_stop):
        script.log.append("scan")
        script.threads.add(threading.current_thread().name)
        tell.progress("Loading the target")
        if script.fail_scan:
            raise SpecviewError(script.fail_scan)
        for step in range(10):
            end = time.perf_counter() + script.scan_s / 10
            while time.perf_counter() < end:
                if should_stop():
                    raise Stopped
                time.sleep(0.002)
            tell.progress("Costs, interleaved", step / 10)
        return exit_scan()

    return measure


class FakeBackend:
    """Models that are never loaded."""

    def __init__(self, script):
        self.script = script

    def preload(self, settings, run_id, emit, should_stop):
        self.script.log.append("preload")
        for step in range(10):
            if should_stop():
                raise Stopped
            emit(Progress(run_id, "load", "Loading SmolLM2-135M-Instruct", step / 10))
            time.sleep(self.script.preload_s / 10)

    def start(self, settings, run_id):
        return FakeRace(settings, run_id, self.script)

    def count_tokens(self, settings):
        return self.script.count

    def target_facts(self, settings):
        return self.script.facts

    @property
    def pool(self):
        return self.script

    def close(self):
        self.script.closed = True


def round_of(text="a", index=0):
    """One plain round, for events made by hand."""
    return Round(index, 0.1 * (index + 1), 0.0, 0.1, 0.0, final=FinalToken(random.randrange(1000), "plain", text))


def drafted(text, verdict):
    """One drafted token."""
    return DraftedToken(1, verdict, q=0.5, p=0.5, accept=1.0, u=0.1, text=text)


def dress(app):
    """The application, dark at scale 1: made and dressed only where a test left it otherwise, as that takes 0.1 s and more."""
    from specview.gui.parts import theme
    from specview.gui.shell.app import make_app

    if app.applicationDisplayName() != "specview":
        make_app([])
    if (theme.choice(), theme.current(), theme.font_scale()) != ("dark", theme.DARK, 1.0) or not app.styleSheet():
        theme.apply(app, "dark", 1.0)


def wait_state(qtbot, window, *states, timeout=10_000):
    """Wait until the window's controller is in one of these states."""
    qtbot.waitUntil(lambda: window.controller.state in states, timeout=timeout)


def ran(qtbot, window):
    """Run a race to its end."""
    window.run()
    wait_state(qtbot, window, "ended")
    return window.controller.race
