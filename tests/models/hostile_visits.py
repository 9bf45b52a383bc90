"""A child process that shows files to one surface of specview, one after the other, and says what each cost.

`python -m tests.models.hostile_visits SURFACE LIST`: LIST is a JSON file of {name: path}; a JSON line per file goes to
standard output: its name, then name, megabytes by which the memory grew at its peak, seconds of this process's CPU (of
the command that took longest, where there are several), and what came of it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from specview import cli

Visit = Callable[[Path], str]
_seconds: list[float] = []  # of the commands of this visit


def peak_mb() -> float:
    """The largest resident size so far, MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmHWM")


def forget_peak() -> None:
    """Let the peak be what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def command(*arguments: str) -> str:
    """Run a command; its exit code and what it said."""
    out, err = io.StringIO(), io.StringIO()
    began = time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(list(arguments))
        except SystemExit as ended:
            code = int(ended.code or 0)
    _seconds.append(time.process_time() - began)
    return f"{code}: {err.getvalue().strip() or out.getvalue().strip()}"


def search(path: Path) -> str:
    """Look for models and heads in the folder that the file is in."""
    from specview.gui.link.head_checks import find_heads
    from specview.models.catalog import list_models

    os.environ["LLAMA_CACHE"] = str(path.parent)
    found = [ref.spec for ref in list_models() if ref.origin == "found"] + [head.ref for head in find_heads()]
    return " ".join(found)


def check(path: Path) -> str:
    """Ask whether it can draft for itself, and for a sound model."""
    sound = os.environ["SOUND"]
    return " | ".join((command("check", str(path), str(path)), command("check", sound, str(path))))


def run(path: Path) -> str:
    """Run it as the target of both engines, and as the prompt of one that is not there.

    A pipe as the prompt is what a shell's <(command) is: it is waited for, so it is none here.
    """
    given = ["run", "--method", "plain", "--raw", "--max-tokens", "2", "--target"]
    said = [command(*given, str(path), "--prompt", "a", "--engine", engine) for engine in ("transformers", "llama.cpp")]
    if not path.is_fifo():
        said.append(command(*given, "/no/such.gguf", "--prompt-file", str(path)))
    return " | ".join(said)


def replay(path: Path) -> str:
    """Show it as a recorded run, take it into the library, and read it as a set of prompts (a pipe: see `run`)."""
    said = [command("replay", str(path), "--text"), command("runs", "import", str(path)), command("runs", "list")]
    if not path.is_fifo():
        said.append(command("compare", "--prompts", str(path), "--target", "/no/such.gguf"))
    return " | ".join(said)


def window() -> Visit:
    """Drop a file on a window, and wait until it has looked at it."""
    from PySide6.QtCore import QMimeData, QPointF, Qt, QUrl
    from PySide6.QtGui import QDropEvent
    from PySide6.QtWidgets import QApplication

    from specview.gui.link.engine_thread import EngineThread
    from specview.gui.link.library import Library
    from specview.gui.shell import app as application
    from specview.gui.shell.main_window import MainWindow
    from specview.gui.state.settings_store import SettingsStore
    from tests.gui.shell_fake import FakeBackend, Script

    application.make_app([])
    store = SettingsStore()
    engine = EngineThread(lambda: FakeBackend(Script()))
    shown = MainWindow(engine, Library(), store, store.load(), application.first_settings())
    shown.intake.ask_role = lambda path: "target"  # type: ignore[method-assign]
    shown.lanes.ask = lambda lane, title: None  # type: ignore[method-assign]
    shown.show()

    def drop(path: Path) -> str:
        shown.show_message("")
        data = QMimeData()
        data.setUrls([QUrl.fromLocalFile(os.fspath(path))])
        event = QDropEvent(
            QPointF(9, 9), Qt.DropAction.CopyAction, data, Qt.MouseButton.LeftButton, Qt.KeyboardModifier.NoModifier
        )
        began = time.monotonic()
        shown.dropEvent(event)
        held = time.monotonic() - began
        while shown._files.busy or shown.recorded.opener.busy:
            QApplication.processEvents()
            time.sleep(0.005)
        QApplication.processEvents()
        return f"held the window for {held:.2f} s: {shown.banner.message}"

    return drop


def main(surface: str, listing: str) -> None:
    """Visit all."""
    visits: dict[str, Visit] = {"search": search, "check": check, "run": run, "replay": replay}
    visit = window() if surface == "drop" else visits[surface]
    if surface in ("check", "run"):  # what a load imports is nobody's cost
        run(Path(os.environ["SOUND"]))
        run(Path(os.environ["SOUND_FOLDER"]))
    visit(Path(os.environ["SOUND"]))
    for name, path in json.loads(Path(listing).read_text()).items():
        sys.stdout.write(json.dumps(name) + "\n")
        sys.stdout.flush()
        forget_peak()
        _seconds.clear()
        before, began = peak_mb(), time.process_time()
        said = visit(Path(path))
        cost = {"name": name, "mb": peak_mb() - before, "s": max(_seconds, default=time.process_time() - began), "said": said[:2000]}
        sys.stdout.write(json.dumps(cost) + "\n")
        sys.stdout.flush()
    os._exit(0)  # a window's threads are not waited for


if __name__ == "__main__":
    main(*sys.argv[1:])
