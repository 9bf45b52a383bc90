"""Fixtures of the shell's tests: a window over a made-up backend, with settings of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QEvent

from tests.gui.shell_fake import FakeBackend, Script, dress


@pytest.fixture
def script() -> Script:
    """What the made-up backend does; change it before the window runs something."""
    return Script()


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A config folder of the test's own."""
    folder = tmp_path / "config"
    monkeypatch.setenv("SPECVIEW_CONFIG", str(folder))
    return folder


@pytest.fixture
def dressed(qapp):
    """The application, dark at scale 1."""
    dress(qapp)


@pytest.fixture
def make_window(qtbot, qapp, dressed, config, script, monkeypatch):
    """Make windows over the made-up backend; each is closed at the end of the test."""
    from specview.gui.link import library
    from specview.gui.link.engine_thread import EngineThread
    from specview.gui.shell import app as application
    from specview.gui.shell.main_window import MainWindow
    from specview.gui.state.settings_store import SettingsStore

    monkeypatch.setattr(library, "_models", list)
    monkeypatch.setattr(library, "_heads", list)
    made = []

    def make(*, preload: bool = False, start: bool = True, first=None):
        engine = EngineThread(lambda: FakeBackend(script))
        store = SettingsStore()
        remembered = store.load()
        window = MainWindow(engine, library.Library(), store, remembered, first or application.first_settings())
        window.resize(1280, 800)
        window.show()
        engine.start()
        if start:
            window.start(preload)
        made.append(window)
        return window

    yield make
    for window in made:
        window.close()
        window.deleteLater()
    made.clear()
    # Now, not when an event loop next runs: every window that is alive slows down a change of theme.
    qapp.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)


@pytest.fixture
def window(make_window):
    """One window, nothing preloaded."""
    return make_window()


@pytest.fixture
def make_bench(qtbot, qapp, dressed, script):
    """Make a page over a controller and a made-up backend, without the rest of the window.

    What is made has `page`, `controller`, `context`, the `messages` of the banner and the tabs that were `opened`.
    """
    from types import SimpleNamespace

    from specview.gui.link.controller import Controller
    from specview.gui.link.engine_thread import EngineThread
    from specview.gui.parts.pages import PageContext
    from specview.gui.parts.selection import Selection
    from specview.racing.resolve import checked_run
    from specview.settings.run import RunSettings

    made = []

    def make(page):
        bench = SimpleNamespace(engine=EngineThread(lambda: FakeBackend(script)), messages=[], opened=[], selection=Selection())
        bench.controller = Controller(bench.engine)
        bench.context = PageContext(
            bench.controller, bench.selection, lambda: checked_run(RunSettings(prompt="hello")),
            lambda text, kind="error": bench.messages.append(text), lambda settings: None, lambda lane: True,
            bench.opened.append, lambda settings: True,
        )  # fmt: skip
        bench.page = page(bench.context)
        bench.page.resize(1280, 700)
        bench.page.show()
        bench.engine.start()
        bench.page.opened()
        made.append(bench)
        return bench

    yield make
    for bench in made:
        bench.page.shut()
        bench.controller.close(5.0)
        bench.page.close()
        bench.page.deleteLater()
    qapp.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)


@pytest.fixture
def world(monkeypatch, tmp_path):
    """Made-up engines behind the window's engine thread, and a data folder of the test's own."""
    from specview.racing.pool import ModelPool
    from tests.racing.world import World

    monkeypatch.setenv("SPECVIEW_DATA", str(tmp_path / "data"))
    world = World(monkeypatch)
    pool = ModelPool()
    monkeypatch.setattr(FakeBackend, "pool", property(lambda self: pool))
    yield world
    pool.close()


class Desk:
    """What a page or a dialog asks of the window, without one: a controller over the made-up backend, and what was asked."""

    def __init__(self, script: Script) -> None:
        from specview.gui.link.controller import Controller
        from specview.gui.link.engine_thread import EngineThread
        from specview.gui.parts.pages import PageContext
        from specview.gui.parts.selection import Selection
        from specview.racing.resolve import checked_run
        from specview.settings.run import LaneSettings, RunSettings

        lanes = (LaneSettings(), LaneSettings("draft-model"), LaneSettings("prompt-lookup"))
        self.settings = RunSettings(prompt="Say something.", lanes=lanes)
        self.controller = Controller(EngineThread(lambda: FakeBackend(script)))
        self.races: list = []  # settings that were opened as a race
        self.lanes: list = []  # lanes that were added to the race
        self.tabs: list[str] = []
        self.full = False
        self.context = PageContext(
            self.controller, Selection(), lambda: checked_run(self.settings), lambda text, kind="error": None,
            self.races.append, lambda lane: not self.full and self.lanes.append(lane) is None, self.tabs.append,
            lambda settings: True,
        )  # fmt: skip


@pytest.fixture
def desk(qtbot, qapp, dressed, config, script):
    """A desk whose engine thread runs."""
    made = Desk(script)
    made.controller.engine.start()
    yield made
    made.controller.close(5.0)
    qapp.sendPostedEvents(None, QEvent.Type.DeferredDelete.value)
