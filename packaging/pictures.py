"""The README's pictures, from one race: the animation, a still, and the window in both themes; see `pictures`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "assets" / "pictures"
RACE = ("--workload", "story", "--max-tokens", "96", "--lane", "draft-model", "--lane", "eagle3", "--no-keep")
SIZE = (1280, 800)
MOST_BYTES = 3_000_000
PATIENCE_S = 120.0
_WINDOW = "--window"


def specview(*words: str) -> None:
    """Run a command of this checkout."""
    subprocess.run([sys.executable, "-P", "-m", "specview", *words], check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})


def window_pictures(trace: Path, folder: Path) -> None:
    """The window on the recorded race, in both themes."""
    os.environ |= {"QT_QPA_PLATFORM": "offscreen", "SPECVIEW_DATA": str(folder / "data"), "SPECVIEW_CONFIG": str(folder / "config")}
    sys.path.insert(0, str(ROOT))
    from specview.files.reader import read_trace
    from specview.gui.link.engine_thread import EngineThread
    from specview.gui.link.library import Library
    from specview.gui.link.open_run import Pick
    from specview.gui.parts import theme
    from specview.gui.shell import app as application
    from specview.gui.shell.main_window import MainWindow
    from specview.gui.state.settings_store import SettingsStore
    from specview.library.repeat import settings_of_trace

    app = application.make_app(["specview"])
    theme.apply(app, "dark", 1.0)
    store = SettingsStore()
    settings = settings_of_trace(read_trace(trace))  # the setup is that of the race
    window = MainWindow(EngineThread(application.make_backend), Library(), store, store.load(), settings)
    window.resize(*SIZE)
    window.show()

    def wait(until: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not until():
            if time.monotonic() > end:
                raise SystemExit("the window did not come so far in time")
            app.processEvents()
            time.sleep(0.01)

    window.recorded.open([Pick(trace)])
    wait(lambda: window.controller.recorded is not None and window.page.plots.loaded)
    for name in ("dark", "light"):
        theme.apply(app, name, 1.0)
        settled = time.monotonic() + 1.0
        wait(lambda settled=settled: time.monotonic() > settled)  # type: ignore[misc]
        window.grab().save(str(PICTURES / f"window-{name}.png"))
    os._exit(0)  # no engine thread was started, and nothing is to be kept


def main() -> None:
    """Race, export, and picture the window."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="specview-pictures-") as made:
        folder = Path(made)
        trace = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else folder / "story.jsonl"
        if len(sys.argv) < 2:
            specview("compare", *RACE, "--trace", str(trace))
        gif = PICTURES / "race.gif"
        title = "The same model, the same text, three ways"
        specview("export", str(trace), "--gif", str(gif), "--speed", "0.5", "--size", "960x540", "--title", title)
        if gif.stat().st_size > MOST_BYTES:
            raise SystemExit(f"{gif} has {gif.stat().st_size:,} bytes, more than {MOST_BYTES:,}: race fewer tokens")
        specview("export", str(trace), "--png", str(PICTURES / "race.png"))
        subprocess.run([sys.executable, "-P", __file__, _WINDOW, str(trace), str(folder)], check=True)
        for path in sorted(PICTURES.iterdir()):
            print(f"{path.stat().st_size:>10,}  {path.relative_to(ROOT)}")


if __name__ == "__main__":
    if sys.argv[1:2] == [_WINDOW]:
        window_pictures(*map(Path, sys.argv[2:]))
    main()
