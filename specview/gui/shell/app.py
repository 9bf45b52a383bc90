"""`specview`: the window up first, then everything else in the background."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path

from PySide6.QtCore import QEvent, QObject, Qt, QTimer, QtMsgType, qInstallMessageHandler
from PySide6.QtGui import QColor, QIcon, QPainter, QPixmap
from PySide6.QtWidgets import QApplication, QWidget

from specview.gui.link.engine_thread import Backend, EngineThread
from specview.gui.link.library import Library, default_workload
from specview.gui.link.open_run import Pick
from specview.gui.link.pace import every
from specview.gui.parts import theme
from specview.gui.shell.lane_setup import first_lanes
from specview.gui.shell.main_window import MainWindow
from specview.gui.state.settings_store import SettingsStore
from specview.settings.run import RunSettings

log = logging.getLogger(__name__)

GC_MS = 100
GC_MOST = 700, 3
"""Objects made, and collections of them, after which they are gone through: often and few, so that none takes long."""
SWITCH_S = 0.0002
FIRST_WORKLOAD = "code-edit"
FIRST_MAX_TOKENS = 128


def main(argv: Sequence[str] | None = None, traces: Sequence[Path] = (), present: bool = False) -> int:
    """Show the window, on recorded traces if there are any, and run until it is closed; returns the exit code.

    present: the traces are shown to a room, one after the other.
    """
    if sys.platform == "win32":
        # Importing torch after Qt is reported to fail there (WinError 1114).
        with contextlib.suppress(ImportError, OSError):
            importlib.import_module("torch")
    keep_log()
    app = make_app(list(sys.argv[:1] if argv is None else ["specview", *argv]))
    qInstallMessageHandler(_qt_message)
    store = SettingsStore()
    remembered = store.load()
    theme.apply(app, remembered.window.theme, remembered.window.font_scale)
    collector = Collector()
    engine = EngineThread(make_backend)
    window = MainWindow(engine, Library(), store, remembered, remembered.run or first_settings())
    app.setWindowIcon(icon())
    window.controller.state_changed.connect(lambda: collector.follow(window.controller.state))
    FirstPaint(window, lambda: begin(engine, window, traces, present))
    window.show()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: window.close())
    code = app.exec()
    collector.stop()
    if not window.thread_ended:
        print(
            "specview: the model library did not come back in time; the process ends without waiting for it.",
            file=sys.stderr,
            flush=True,
        )
        logging.shutdown()
        os._exit(code)
    return code


def begin(engine: EngineThread, window: MainWindow, traces: Sequence[Path] = (), present: bool = False) -> None:
    """Start the engine thread and the background work; on recorded traces no model is loaded ahead."""
    engine.start()
    window.start(preload=not traces)
    if not traces:
        window.tour.offer()
    else:
        (window.presenting.present if present else window.recorded.open)([Pick(path) for path in traces])


def make_app(argv: list[str]) -> QApplication:
    """Make the application: Fusion style, our own palettes."""
    existing = QApplication.instance()
    app = existing if isinstance(existing, QApplication) else QApplication(argv)
    app.setApplicationName("specview")
    app.setApplicationDisplayName("specview")
    app.setDesktopFileName("specview")
    app.setStyle("Fusion")
    # Between two kernels the engine thread waits for the Qt thread's Python, by default up to 5 ms each
    # time. Measured on 2 cores, race in the window over the same race without it: 0.81 at 5 ms, 0.91 at
    # 1 ms, 0.96 at 0.2 ms.
    sys.setswitchinterval(SWITCH_S)
    return app


def make_backend() -> Backend:
    """Make the real backend; called on the engine thread."""
    from specview.gui.link.local_backend import LocalBackend

    return LocalBackend()


def first_settings() -> RunSettings:
    """Return the first start's settings: the bundled pair, a prompt, three lanes."""
    workload = default_workload(FIRST_WORKLOAD)
    return RunSettings(
        prompt=workload.prompt if workload else "Explain in three sentences why the sky is blue.",
        system=workload.system if workload else "",
        workload=workload.name if workload else None,
        max_tokens=FIRST_MAX_TOKENS,
        lanes=first_lanes(),
    )


def icon() -> QIcon:
    """Draw the window's icon: three lanes that run ahead of each other."""
    picture = QPixmap(64, 64)
    picture.fill(Qt.GlobalColor.transparent)
    painter = QPainter(picture)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(QColor(theme.DARK.panel))
    painter.drawRoundedRect(0, 0, 64, 64, 14, 14)
    for row, (colour, length) in enumerate(zip(theme.DARK.lane_colors, (20, 32, 44), strict=False)):
        painter.setBrush(QColor(colour))
        painter.drawRoundedRect(10, 13 + 14 * row, length, 9, 4, 4)
    painter.end()
    return QIcon(picture)


class FirstPaint(QObject):
    """Calls `then` once a window has been painted: libraries that load must not stand between the command and the window."""

    def __init__(self, window: QWidget, then: Callable[[], object]) -> None:
        super().__init__(window)
        self._then = then
        window.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if event.type() == QEvent.Type.Paint:
            watched.removeEventFilter(self)
            QTimer.singleShot(0, self._then)
        return False


class Collector(QObject):
    """Runs Python's cycle collector on the Qt thread only.

    Left to itself it runs on whichever thread allocates, and a widget that it finds from the engine
    thread would be destroyed there, which Qt does not allow. Rounds get no collector pauses either.
    """

    def __init__(self) -> None:
        super().__init__()
        self._raced = False
        gc.disable()
        self._timer = every(self, GC_MS, self._check)
        self._timer.start()

    def follow(self, state: str) -> None:
        """Do what is slow when nobody waits for it.

        Once libraries are loaded they are never garbage: frozen, a full collection skips them, so that one
        after each race is short. So is a recorded run, which has no race to end: a long one is a million objects.
        """
        if state == "ended" and self._raced:
            gc.collect()
            self._raced = False
        elif state in ("ready", "ended"):
            gc.freeze()
        elif state == "running":
            self._raced = True

    def _check(self) -> None:
        counts = gc.get_count()
        for generation in (1, 0):
            if counts[generation] > GC_MOST[generation]:
                gc.collect(generation)
                break

    def stop(self) -> None:
        """Give the collector back to Python."""
        self._timer.stop()
        gc.enable()


def keep_log() -> None:
    """Write warnings and errors to a small file in the user's log folder, where that is possible."""
    root = logging.getLogger("specview")
    if any(isinstance(handler, RotatingFileHandler) for handler in root.handlers):
        return
    try:
        folder = log_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # names of the user's files are in it
        handler = RotatingFileHandler(folder / "specview.log", maxBytes=500_000, backupCount=1, encoding="utf-8")
    except OSError:
        return
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.setLevel(logging.WARNING)
    root.addHandler(handler)


def log_folder() -> Path:
    """Return the log folder; beside the settings where SPECVIEW_CONFIG is set."""
    if given := os.environ.get("SPECVIEW_CONFIG"):
        return Path(given)
    import platformdirs

    return Path(platformdirs.user_log_dir("specview", appauthor=False))


def _qt_message(kind: QtMsgType, context: object, text: str) -> None:
    """Send Qt's own messages to the log; what is fatal stays on standard error."""
    level = {
        QtMsgType.QtDebugMsg: logging.DEBUG,
        QtMsgType.QtInfoMsg: logging.INFO,
        QtMsgType.QtWarningMsg: logging.WARNING,
    }.get(kind, logging.ERROR)
    log.log(level, "Qt: %s", text)
    if kind == QtMsgType.QtFatalMsg:
        print(text, file=sys.stderr, flush=True)
