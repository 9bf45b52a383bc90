"""The window: time to its first paint, event-loop gaps while a race streams, its cost for the race.

    python -m tests.benchmarks.window --repeats 5 --max-tokens 96 --engine transformers

Needs a display (Xvfb will do). The race is run in the window and without it in turn, on the same loaded
models, so that a noisy neighbour slows both alike. Prints medians, and writes JSON with --json.
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
from pathlib import Path
from statistics import median
from typing import Any

FIRST_PAINT = """
import os, sys, time
import psutil
from specview.gui.shell import app
def begin(engine, window, *rest):
    print(time.time() - psutil.Process().create_time())
    print(sorted({'torch', 'transformers', 'llama_cpp'} & set(sys.modules)))
    window.close()
app.begin = begin
sys.exit(app.main([]))
"""


def first_paint(repeats: int) -> dict[str, Any]:
    """Seconds from the start of the process to the window painted, and what it had imported by then."""
    seconds, imported = [], ""
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats + 1):
            done = subprocess.run(
                [sys.executable, "-c", FIRST_PAINT], env={**_environment(), "SPECVIEW_CONFIG": folder},
                capture_output=True, text=True, check=True,
            )
            first, imported = done.stdout.strip().splitlines()[:2]
            seconds.append(float(first))
    return {"median_s": median(seconds[1:]), "all_s": seconds[1:], "imported": imported}


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
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = {"first_paint": first_paint(arguments.repeats)}
    for name in arguments.engine or ["transformers"]:
        found[name] = race(name, arguments.repeats, arguments.max_tokens, arguments.present)
    text = json.dumps(found, indent=1)
    print(text)
    if arguments.json:
        arguments.json.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
