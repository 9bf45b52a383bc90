"""What opening, keeping and listing recorded runs costs, on made-up runs of the size of real ones.

    python -m tests.benchmarks.open_trace

Opening a trace of 2,000 rounds (400 plain, 1,600 that draft 8, every token with its eight likeliest on both sides)
is to take under a second: reading, and folding it into what the window draws. Listing 1,000 runs is timed cold (each
file's first and last lines are read) and warm (from the index). Keeping is timed per round: it lies between rounds,
off the lanes' clocks, so it costs wall time only.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from specview.decoding.ledger import Candidate, Round
from specview.drafting.lanes import flat_settings
from specview.files.reader import read_trace
from specview.gui.link.open_run import Pick, open_picks
from specview.library.keeping import RunKeeper
from specview.library.library import RunLibrary
from specview.racing.resolve import checked_run
from specview.settings.events import Event, LaneRound, RaceStarted
from specview.settings.run import LaneSettings, RunSettings
from tests.gui.views_data import make_rounds
from tests.library.recorded import FACTS, write_trace


def timed(work: Callable[[], Any], repeats: int = 5) -> float:
    """Median wall time of `work`, seconds."""
    times = []
    for _ in range(repeats):
        gc.collect()
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return median(times)


def eight(top: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    """Eight candidates, as full observation keeps."""
    return top + tuple((token + 7, f"{text}x", weight / 9) for token, text, weight in top[: 8 - len(top)])


def full_rounds(count: int, k: int) -> list[Round]:
    """Rounds with all that full observation keeps."""
    return [
        replace(
            round_,
            drafted=tuple(replace(d, p_top=eight(d.p_top), q_top=eight(d.q_top)) for d in round_.drafted),
            final=None if round_.final is None else replace(round_.final, p_top=eight(round_.final.p_top)),
        )
        for round_ in make_rounds(count, k)
    ]


def big_race() -> list[Event]:
    """A race of 2,000 rounds."""
    settings = checked_run(RunSettings(prompt="Say hi.", lanes=(LaneSettings(), LaneSettings("draft-model", k=8))))
    flats = tuple(flat_settings(settings, lane) for lane in settings.lanes)
    started = RaceStarted(1, tuple(range(130)), settings.prompt, ("plain", "draft-model"), flats, FACTS)
    lanes = full_rounds(400, 0), full_rounds(1600, 8)
    return [started, *(LaneRound(1, index, round_) for index, lane in enumerate(lanes) for round_ in lane)]


_windows: list[Any] = []


def in_window(path: Path) -> float:
    """From the wish to open a trace to its first painted frame, in an offscreen window; seconds."""
    from specview.gui.link.engine_thread import EngineThread
    from specview.gui.link.library import Library
    from specview.gui.shell import app as application
    from specview.gui.shell.main_window import MainWindow
    from specview.gui.state.settings_store import Remembered, SettingsStore

    app = application.make_app([])
    if not _windows:
        store = SettingsStore(path.parent)
        window = MainWindow(EngineThread(application.make_backend), Library(), store, Remembered(), application.first_settings())
        window.resize(1280, 800)
        window.show()
        app.processEvents()
        _windows.append(window)
    window = _windows[0]
    window.recorded.close_run()
    app.processEvents()
    begin = time.perf_counter()
    window.recorded.open([Pick(path)])
    while window.controller.recorded is None:
        app.processEvents()
        time.sleep(0.002)
    window.grab()
    return time.perf_counter() - begin


def main() -> None:
    """Measure and print."""
    os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
    with tempfile.TemporaryDirectory() as name:
        library = RunLibrary(Path(name) / "runs")
        events = big_race()
        keeper = RunKeeper(library)
        begin = time.perf_counter()
        for event in events:
            keeper.take(event)
        keeper.close()
        kept = time.perf_counter() - begin
        path = keeper.path
        assert path is not None
        read = timed(lambda: read_trace(path))
        trace = read_trace(path)
        folded = timed(lambda: open_picks([Pick(path)], [trace]))
        print(f"trace of 2,000 rounds, {path.stat().st_size / 1e6:.1f} MB")
        print(f"  read {read:.3f} s, folded {folded:.3f} s, together {read + folded:.3f} s (to be under 1 s)")
        print(f"  in the window: first {in_window(path):.3f} s (plots are loaded with it), again {in_window(path):.3f} s")
        print(f"  keeping {1e3 * kept / 2000:.3f} ms a round, between rounds")
        small = write_trace(Path(name) / "small.jsonl", rounds=40)
        data = small.read_bytes()
        for number in range(1000):
            (library.folder / f"2026-01-01-{number:08x}.jsonl").write_bytes(data)
        cold = timed(lambda: ((library.folder / "index.json").unlink(missing_ok=True), library.scan()), 3)
        warm = timed(lambda: library.scan(), 3)
        print(f"list of 1,001 runs: cold {cold:.3f} s, warm {warm:.3f} s")
        print(f"load average {os.getloadavg()[0]:.1f}: quote these on a quiet machine only")


if __name__ == "__main__":
    main()
