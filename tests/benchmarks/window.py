"""The window: time to its first paint, event-loop gaps while a race streams, its cost for the race.

    python -m tests.benchmarks.window --repeats 5 --max-tokens 96 --engine transformers
    python -m tests.benchmarks.window --paint --repeats 5
    python -m tests.benchmarks.window --scroll

Needs a display (Xvfb will do). The race is run in the window and without it in turn, on the same loaded
models, so that a noisy neighbour slows both alike. --paint measures the first paint alone. --scroll plays a
recorded race of 20,000 tokens a lane, scrubs, steps and scrolls it, and gives the Qt thread's processor time in
each turn of its event loop. Prints medians, and writes JSON with --json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

FIRST_PAINT = """
import os, sys, time
from specview.gui.shell import app
def begin(engine, window, *rest):
    print(time.perf_counter(), time.process_time())
    print(sorted({'torch', 'transformers', 'llama_cpp', 'numpy'} & set(sys.modules)))
    window.close()
app.begin = begin
sys.exit(app.main([]))
"""


def first_paint(repeats: int) -> dict[str, Any]:
    """Seconds from the start of the process to the window painted, processor time of it, and what it had imported by then."""
    seconds, processor, imported = [], [], ""
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats + 1):
            begin = time.perf_counter()  # of the machine, so the same in both processes; a start time by the wall clock was .85 s off
            done = subprocess.run(
                [sys.executable, "-c", FIRST_PAINT], env={**_environment(), "SPECVIEW_CONFIG": folder},
                capture_output=True, text=True, check=True,
            )
            first, imported = done.stdout.strip().splitlines()[:2]
            wall, spent = map(float, first.split())
            seconds.append(wall - begin)
            processor.append(spent)
    return {"median_s": median(seconds[1:]), "processor_s": median(processor[1:]), "all_s": seconds[1:], "imported": imported}


def _environment() -> dict[str, str]:
    import os

    return dict(os.environ)


def race(engine_name: str, repeats: int, max_tokens: int, present: bool = False) -> dict[str, Any]:
    """Gaps of the event loop during races in the window (or presented), and lane speeds there against those without it."""
    from specview.gui.link.engine_thread import EngineThread
    from specview.gui.link.library import Library
    from specview.gui.link.messages import CommandDone, Run
    from specview.gui.link.pace import every
    from specview.gui.parts import theme
    from specview.gui.shell import app as application
    from specview.gui.shell.main_window import MainWindow
    from specview.gui.state.settings_store import Remembered, SettingsStore
    from specview.settings.events import LaneEnded

    app = application.make_app(["specview"])
    theme.apply(app, "dark", 1.0)
    collector = application.Collector()
    settings = replace(application.first_settings(), engine=engine_name, max_tokens=max_tokens)
    engine = EngineThread(application.make_backend)
    with tempfile.TemporaryDirectory() as folder:
        store = SettingsStore(Path(folder))
        window = MainWindow(engine, Library(), store, Remembered(), settings)
        window.resize(1440, 900)
        window.show()
        engine.start()
        window.start()
        began = time.perf_counter()
        while window.controller._busy or window.controller.state != "ready":
            app.processEvents()
            time.sleep(0.005)
        load_s = time.perf_counter() - began
        if present:
            window.presenting.toggle()
        gaps: list[float] = []
        last = [0.0]

        def tick() -> None:
            now = time.perf_counter()
            if window.controller.state == "running":
                gaps.append(now - last[0])
            last[0] = now

        beat = every(window, 5, tick)
        speeds: dict[str, list[dict[str, float]]] = {"window": [], "headless": []}
        walls: dict[str, list[float]] = {"window": [], "headless": []}

        def in_window() -> None:
            window.run()
            until(lambda: not window.controller.racing)

        def headless() -> dict[str, float]:
            run_id, found = engine.send(Run(window.run_settings())), {}

            def over() -> bool:
                ended = False
                for event in engine.drain(100_000):
                    if isinstance(event, LaneEnded):
                        found[window.controller.race.lanes[event.lane].name] = _speed(event.metrics)
                    ended = ended or (isinstance(event, CommandDone) and event.run_id == run_id)
                return ended

            while not over():
                time.sleep(0.05)
            return found

        for _ in range(repeats + 1):  # the beat costs a share of a core: not in the races whose speed is compared
            began = time.perf_counter()
            in_window()
            walls["window"].append(time.perf_counter() - began)
            speeds["window"].append({lane.name: _speed(lane.final_metrics) for lane in window.controller.race.lanes})
            began = time.perf_counter()
            speeds["headless"].append(headless())
            walls["headless"].append(time.perf_counter() - began)
        for _ in range(2):
            last[0] = time.perf_counter()
            beat.start()
            in_window()
            beat.stop()
        window.close()
    collector.stop()
    names = list(speeds["headless"][0])
    ratios = {
        name: median(
            inside[name] / outside[name]
            for inside, outside in zip(speeds["window"][1:], speeds["headless"][1:], strict=True)
        )
        for name in names
    }
    ordered = sorted(gaps)
    return {
        "engine": engine_name,
        "load_s": load_s,
        "gap_p95_ms": 1e3 * ordered[int(len(ordered) * 0.95)],
        "gap_max_ms": 1e3 * ordered[-1],
        "beats": len(ordered),
        "window_over_headless": ratios,
        "wall_ratio": median(walls["headless"][1:]) / median(walls["window"][1:]),
        "tokens_per_s": {kind: {name: median(one[name] for one in runs[1:]) for name in names}
                         for kind, runs in speeds.items()},
    }


class Turns:
    """Processor time of the Qt thread in each turn of its event loop, by what was done."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def run(self, name: str, over: Callable[[], bool], do: Callable[[], object] | None = None, at_most_s: float = 60.0) -> None:
        """Do something in a turn, and turn on until it is over."""
        from PySide6.QtCore import QAbstractEventDispatcher, QEventLoop, QTimer

        if do is not None:
            QTimer.singleShot(0, do)
        dispatcher, spent = QAbstractEventDispatcher.instance(), self.seconds.setdefault(name, [])
        end = time.monotonic() + at_most_s
        while True:
            begin = time.thread_time()
            busy = dispatcher.processEvents(QEventLoop.ProcessEventsFlag.AllEvents)
            spent.append(time.thread_time() - begin)
            if over() or time.monotonic() > end:
                return
            if not busy:
                time.sleep(0.001)

    def rest(self, name: str, seconds: float, do: Callable[[], object] | None = None) -> None:
        """Do something in a turn, and turn on for so long."""
        end = time.monotonic() + seconds
        self.run(name, lambda: time.monotonic() > end, do)

    def worst_ms(self) -> dict[str, float]:
        """The longest turn of each."""
        return {name: 1e3 * max(spent) for name, spent in self.seconds.items()}


def long_trace(folder: Path, tokens: int) -> Path:
    """A recorded race of plain and two drafting lanes, so many tokens each."""
    from specview.drafting.lanes import flat_settings
    from specview.library.keeping import RunKeeper
    from specview.library.library import RunLibrary
    from specview.racing.resolve import checked_run
    from specview.settings.events import LaneRound, RaceStarted
    from specview.settings.run import LaneSettings, RunSettings
    from tests.gui.views_data import make_rounds
    from tests.library.recorded import FACTS

    lanes = LaneSettings(), LaneSettings("draft-model", k=4), LaneSettings("draft-model", k=8)
    settings = checked_run(RunSettings(prompt="Say hi.", lanes=lanes))
    flats = tuple(flat_settings(settings, lane) for lane in settings.lanes)
    keeper = RunKeeper(RunLibrary(folder))
    keeper.take(RaceStarted(1, (1, 2, 3), settings.prompt, ("plain", "draft-model", "k 8"), flats, FACTS))
    for index, k in enumerate((0, 4, 8)):
        left = tokens
        for round_ in make_rounds(tokens if not k else tokens // 2, k, seed=index, step_s=0.03):
            keeper.take(LaneRound(1, index, round_))
            left -= len(round_.emitted)
            if left <= 0:
                break
    keeper.close()
    assert keeper.path is not None
    return keeper.path


def replay(tokens: int = 20_000) -> dict[str, Any]:
    """A long recorded race in the window: opened, played, scrubbed, stepped and scrolled; the turns of the event loop."""
    from random import Random

    from specview.gui.link.engine_thread import EngineThread
    from specview.gui.link.library import Library
    from specview.gui.link.open_run import Pick
    from specview.gui.parts import theme
    from specview.gui.shell import app as application
    from specview.gui.shell.main_window import MainWindow
    from specview.gui.state.settings_store import Remembered, SettingsStore

    app = application.make_app(["specview"])
    theme.apply(app, "dark", 1.0)
    collector, rng, turns = application.Collector(), Random(1), Turns()
    with tempfile.TemporaryDirectory() as folder:
        path = long_trace(Path(folder) / "runs", tokens)
        window = MainWindow(
            EngineThread(application.make_backend), Library(), SettingsStore(Path(folder)), Remembered(), application.first_settings()
        )
        window.controller.state_changed.connect(lambda: collector.follow(window.controller.state))
        window.resize(1280, 800)
        window.show()
        turns.run("first turns", lambda: window.page.plots.loaded)
        page, controller = window.page, window.controller
        transport = page.transport
        turns.run("open", lambda: controller.recorded is not None, lambda: window.recorded.open([Pick(path)]))
        turns.rest("opened", 3.0)
        views, scrubber = [panel.view for panel in page.panels], page.foot.itemAt(0).widget().scrubber

        def play(name: str, begin: float, seconds: float) -> None:
            transport.seek(begin * transport.length)
            turns.rest(name, 1.0)
            turns.rest(name, seconds, transport.play)
            turns.rest(name, 0.2, transport.pause)

        transport.set_speed(4.0)
        for begin in (0.0, 0.5, 0.9):
            play("play at 4x", begin, 4.0)
        turns.rest("opened inspector", 0.3, lambda: (page.open_inspector(1), views[1].choose(100)))
        for name in ("", ", inspector open"):
            for _ in range(40):
                turns.rest(f"scrub to a place{name}", 0.3, lambda: scrubber.setValue(rng.randrange(scrubber.STEPS)))
            for _ in range(3):
                place, way = rng.randrange(scrubber.STEPS), rng.choice((-90, 90))
                for _ in range(60):
                    place = min(max(place + way, 0), scrubber.STEPS)
                    turns.rest(f"drag the scrubber{name}", 0.016, lambda place=place: scrubber.setValue(place))
            for by in (1, -1):
                for step in (transport.step_phase, transport.step_round, transport.page):
                    scrubber.setValue(rng.randrange(scrubber.STEPS))
                    turns.rest(f"step{name}", 0.5)
                    for _ in range(30):
                        turns.rest(f"step{name}", 0.02, lambda step=step, by=by: step(by))
            window.page.close_inspector() if name else page.open_inspector(1)
        for where in (0.6, 1.0):
            turns.rest("scroll", 1.0, lambda where=where: transport.seek(where * transport.length))
            for _ in range(60):
                bar = rng.choice(views).verticalScrollBar()
                turns.rest("scroll", 0.03, lambda bar=bar: bar.setValue(rng.randrange(bar.maximum() + 1)))
            bar = views[0].verticalScrollBar()
            for _ in range(100):
                turns.rest("scroll", 0.005, partial(bar.triggerAction, bar.SliderAction.SliderPageStepSub))
        turns.rest("widen", 2.0, lambda: window.resize(1366, 768))
        turns.rest("larger font", 3.0, lambda: window._zoom(1))
        lengths = {lane.name: lane.emitted for lane in controller.race.lanes}
        turns.rest("closed", 1.0, window.recorded.close_run)
        window.close()
    collector.stop()
    worst = turns.worst_ms()
    return {"lanes": lengths, "turns": sum(map(len, turns.seconds.values())), "worst_ms": worst}


def until(over: Callable[[], bool]) -> None:
    """Turn the event loop as the program does until it is over."""
    from PySide6.QtCore import QEventLoop

    from specview.gui.link.pace import every

    loop = QEventLoop()
    watch = every(loop, 50, lambda: loop.quit() if over() else None)
    watch.start()
    loop.exec()
    watch.stop()


def _speed(metrics: Any) -> float:
    return float(metrics.decode_tokens_per_s) if metrics is not None else float("nan")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--engine", action="append", choices=("transformers", "llama.cpp"))
    parser.add_argument("--present", action="store_true", help="with the presentation (F11) on")
    parser.add_argument("--paint", action="store_true", help="the first paint alone")
    parser.add_argument("--scroll", action="store_true", help="a long recorded race, played, scrubbed and scrolled")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = {"replay": replay()} if arguments.scroll else {"first_paint": first_paint(arguments.repeats)}
    for name in [] if arguments.scroll or arguments.paint else arguments.engine or ["transformers"]:
        found[name] = race(name, arguments.repeats, arguments.max_tokens, arguments.present)
    text = json.dumps(found, indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
