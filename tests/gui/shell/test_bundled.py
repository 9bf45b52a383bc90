"""The bundled pair in the window, end to end: preload, run, continue, a follow-up turn, closing mid-run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specview.models import bundled
from specview.models.loading import engine_available

WAIT_MS = 240_000

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        engine_available("transformers") is not None
        or bundled.find_target() is None
        or bundled.find_draft("transformers") is None,
        reason="the bundled pair or its engine is not installed",
    ),
]


def test_the_first_start_runs_on_real_weights(qtbot, qapp, config, monkeypatch):
    from specview.gui.link import library
    from specview.gui.link.engine_thread import EngineThread
    from specview.gui.parts import theme
    from specview.gui.shell import app as application
    from specview.gui.shell.main_window import MainWindow
    from specview.gui.state.settings_store import SettingsStore

    monkeypatch.setattr(library, "_models", list)
    application.make_app([])
    theme.apply(qapp, "dark", 1.0)
    engine = EngineThread(application.make_backend)
    store = SettingsStore()
    first = replace(application.first_settings(), max_tokens=12)
    window = MainWindow(engine, library.Library(), store, store.load(), first)
    try:
        window.show()
        engine.start()
        window.start()
        controller = window.controller
        qtbot.waitUntil(lambda: controller.preloaded and controller.state == "ready", timeout=WAIT_MS)
        assert window.banner.message == ""
        qtbot.waitUntil(lambda: window.setup.tokens.text().split()[0].isdigit(), timeout=WAIT_MS)

        window.setup.run.click()
        qtbot.waitUntil(lambda: controller.state == "ended", timeout=WAIT_MS)
        assert window.banner.message == ""
        lanes = controller.race.lanes
        assert [lane.name for lane in lanes] == ["plain", "draft-model", "eagle3"]
        assert [lane.error for lane in lanes] == ["", "", ""]
        assert {lane.emitted for lane in lanes} == {12}
        assert {lane.end for lane in lanes} == {"limit"}
        assert window.setup.tokens.text().split()[0] == str(len(controller.race.prompt_ids))
        assert all(lane.text for lane in lanes)

        window.page.conversation.more.click()
        qtbot.waitUntil(lambda: not controller.racing, timeout=WAIT_MS)
        assert {lane.emitted for lane in lanes} == {24}

        window.next_turn("Now in one line.")
        qtbot.waitUntil(lambda: not controller.racing, timeout=WAIT_MS)
        assert window.banner.message == ""
        assert {lane.error for lane in controller.race.lanes} == {""}
        assert len(window.run_settings().history) == 2

        window.setup.field("max_tokens").set_value(400)
        window.run()
        qtbot.waitUntil(lambda: controller.race.state == "running", timeout=WAIT_MS)  # not the run before
        qtbot.waitUntil(lambda: all(lane.rounds for lane in controller.race.lanes), timeout=WAIT_MS)
    finally:
        window.close()
    assert window.thread_ended
    assert not engine.alive
    assert all(lane.rounds for lane in controller.race.lanes)
