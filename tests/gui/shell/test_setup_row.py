"""The row of tabs and menus, and the setup row: one row each, at every width; words, panel, prompt, Run and Stop."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication, QMenu, QPlainTextEdit

from specview.decoding.sampling import SamplingParams
from specview.gui.state.setup_words import SETTINGS, setup_parts, taken_words
from specview.settings.run import RunSettings, run_to_json
from tests.gui.shell_fake import ran, wait_state

# -- in words -------------------------------------------------------------------------------------


def test_the_sampling_in_words_says_what_differs_from_the_usual():
    run = RunSettings(prompt="x")
    assert setup_parts(run, "auto") == ["greedy", "128 tokens"]
    assert setup_parts(replace(run, sampling=SamplingParams(top_p=0.9, seed=7)), "auto") == ["greedy", "128 tokens"], "idle at 0"
    sampled = replace(run, sampling=SamplingParams(0.7, top_p=0.9, seed=7), max_tokens=192)
    assert setup_parts(sampled, "match") == ["temperature 0.7", "rule match", "top-p 0.9", "192 tokens", "seed 7"]
    other = replace(run, max_tokens=1, threads=2, check_mode=True, stop=("a", "b"), chat=False, system="s")
    assert set(setup_parts(other, "auto")) == {
        "greedy", "1 token", "threads 2", "check mode", "2 stop strings", "raw", "system text"
    }  # fmt: skip


def test_every_setting_that_declares_a_form_is_in_the_panel_and_in_the_words(window):
    assert set(window.setup.fields) == set(SETTINGS)
    window.setup.open_panel()
    for name, field in window.setup.fields.items():
        assert window.setup.panel.isAncestorOf(field.widget), name
    for name in ("threads", "repetition_penalty"):
        window.setup.fields[name].set_value(3)
        assert f"{SETTINGS[name].words} 3" in window.setup.sampling.words


def test_what_a_page_takes_from_the_race(window):
    run = RunSettings(prompt="Say\nsomething that is rather long to read in one line", workload=None)
    assert taken_words(run) == (
        "with SmolLM2-135M-Instruct (transformers) · greedy · 128 tokens · the prompt “Say something that is rather lon…”"
    )
    assert taken_words(replace(run, workload="story"), ("temperature", "max_tokens")).endswith("(transformers) · the prompt 'story'")
    assert not window.setup.isHidden()
    window.tabs.open("Sweep")
    line = window.tabs.page("Sweep").setup_line
    assert line.isVisible() and "SmolLM2" in line.words.full and window.setup.isHidden()
    window.setup.target.choose("/models/other.gguf")  # dropped onto the window, say
    assert "other" in line.words.full
    window.setup.field("temperature").setText("-1")
    line.refresh()
    assert "temperature is -1" in line.words.full
    line.change.click()
    assert window.tabs.current == "Race" and not window.setup.isHidden()


@pytest.mark.parametrize("title", ["Why", "Sweep", "Exactness", "Theory", "Runs"])
def test_no_other_tab_shows_the_races_setup(window, title):
    window.setup.prompt.setFocus()
    window.tabs.open(title)
    assert not window.setup.isVisible() and not window.setup.prompt.isVisible()
    window.tabs.open("Race")
    assert window.setup.isVisible() and window.setup.prompt.isVisible()


# -- one row ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [640, 800, 1000, 1280, 1366, 1920])
@pytest.mark.parametrize("sampled", [False, True])
def test_the_setup_is_one_row_at_every_width(window, qtbot, width, sampled):
    if sampled:
        for name, value in (("temperature", 0.7), ("top_p", 0.9), ("seed", 7), ("max_tokens", 192), ("threads", 2)):
            window.setup.fields[name].set_value(value)
    window.resize(width, 600)
    qtbot.wait(20)
    setup = window.setup
    row = (setup.target, setup.line, setup.sampling, setup.add_lane, setup.run)
    assert setup.height() < 52
    for left, right in zip(row, row[1:], strict=False):
        assert left.geometry().right() < right.x() and left.width() >= left.minimumSizeHint().width()
    assert setup.run.geometry().right() < width and setup.line.width() >= 100
    for words in (setup.target, setup.sampling):
        assert words.fontMetrics().horizontalAdvance(words.text()) <= words.width(), "no word is cut by the edge"
    assert setup.prompt.geometry().topLeft() == setup.line.mapTo(window, QPoint())
    if sampled and width < 1000:
        assert "+" in setup.sampling.text()
    if width >= 1280:
        assert setup.sampling.text().startswith(f"{'temperature 0.7' if sampled else 'greedy'} · ")


@pytest.mark.parametrize("scale", [5, -3])
def test_the_row_follows_the_font(window, qtbot, scale):
    try:
        for _ in range(abs(scale)):
            window._zoom(1 if scale > 0 else -1)
        window.resize(1280, 700)
        qtbot.wait(20)
        assert window.setup.prompt.height() == window.setup.line.height()
        assert window.setup.run.geometry().right() < window.width()
    finally:
        window._zoom(0)


# -- the prompt --------------------------------------------------------------------------------------


def test_the_prompt_opens_while_one_types_and_folds_after(window, qtbot):
    prompt = window.setup.prompt
    window.activateWindow()
    window.setup.run.setFocus()
    assert prompt.folded and prompt.height() == window.setup.line.height()
    window.actions_by_name["run"].setEnabled(True)
    window.go_to_prompt()
    qtbot.waitUntil(lambda: not prompt.folded)
    assert prompt.height() > 3 * window.setup.line.height() and window.setup.height() < 52, "over the page, not in the row"
    assert prompt.geometry().bottom() < window.height()
    qtbot.keyClick(prompt, Qt.Key.Key_Escape)
    assert prompt.folded and prompt.hasFocus()
    before = prompt.toPlainText()
    qtbot.keyClick(prompt, Qt.Key.Key_Return)
    assert not prompt.folded and prompt.toPlainText() == before, "it opens first"
    qtbot.keyClick(prompt, Qt.Key.Key_Tab)
    assert prompt.folded and window.focusWidget() is window.setup.caption
    qtbot.mouseClick(prompt.viewport(), Qt.MouseButton.LeftButton)
    assert not prompt.folded
    qtbot.mouseClick(window.page.lanes, Qt.MouseButton.LeftButton, pos=QPoint(2, 2))
    assert prompt.folded, "a press beside it leaves it"


def test_escape_in_the_open_prompt_stops_no_race(window, qtbot, script):
    script.rounds, script.round_s = 200, 0.01
    window.run()
    wait_state(qtbot, window, "running")
    window.activateWindow()
    window.go_to_prompt()
    qtbot.keyClick(window.setup.prompt, Qt.Key.Key_Escape)
    assert window.setup.prompt.folded and window.controller.state == "running"
    qtbot.keyClick(window.setup.prompt, Qt.Key.Key_Escape)
    wait_state(qtbot, window, "ended")


def test_run_from_the_prompt_folds_it(window, qtbot):
    window.activateWindow()
    window.go_to_prompt()
    qtbot.keyClick(window.setup.prompt, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    assert window.controller.racing and window.setup.prompt.folded
    wait_state(qtbot, window, "ended")


def test_the_prompts_text_is_only_text(window):
    window.setup.set_prompt("<b>x</b>\u202e\n\x07")
    assert not window.setup.prompt.grab().isNull()
    assert window.setup.prompt.toPlainText().startswith("<b>x</b>")


# -- the panel ---------------------------------------------------------------------------------------


def test_an_invalid_value_shows_on_the_button_and_run_opens_the_panel_there(window, qtbot):
    setup = window.setup
    setup.field("top_p").setText("7")
    assert setup.sampling.words == "✕ Top-p" and setup.sampling.property("invalid") == "true"
    assert "top-p is 7" in setup.sampling.accessibleDescription()
    window.run()
    assert "top-p is 7" in window.banner.message and setup.panel.isVisible() and setup.field("top_p").hasFocus()
    setup.panel.hide()
    setup.field("top_p").setText("0.9")
    setup.field("temperature").setText("0.5")
    assert setup.sampling.words.startswith("temperature 0.5 · top-p 0.9") and setup.sampling.property("invalid") == "false"
    setup.rule.set_value("greedy")
    assert setup.sampling.words == "✕ Rule"
    setup.open_panel()
    assert setup.rule.hasFocus()


def test_the_panel_goes_through_its_fields_by_tab_and_runs_by_its_keys(window, qtbot):
    panel = window.setup.panel
    window.show_settings()
    assert panel.isVisible() and window.setup.field("temperature").hasFocus()
    seen = []
    for _ in range(40):
        widget = QApplication.focusWidget()
        if widget in seen:
            break
        seen.append(widget)
        panel.focusNextChild()
    assert {id(field.widget) for field in window.setup.fields.values()} <= {id(widget) for widget in seen}
    assert all(widget.accessibleName() or widget.text() for widget in seen)
    wide = [widget for widget in seen if isinstance(widget, QPlainTextEdit)]
    assert len(wide) == 2
    content = panel._body.widget()
    assert content.minimumSizeHint().width() <= panel._body.viewport().width(), "nothing of it is cut"
    qtbot.keyClick(panel, Qt.Key.Key_Return, Qt.KeyboardModifier.ControlModifier)
    assert not panel.isVisible() and window.controller.racing
    wait_state(qtbot, window, "ended")


# -- run and stop ---------------------------------------------------------------------------------------


def test_run_and_stop_are_one_button_and_a_double_click_is_one_press(window, qtbot, script):
    script.rounds, script.round_s = 300, 0.01
    button = window.setup.run
    place = button.geometry()
    assert button.text() == "Run"
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    qtbot.mouseDClick(button, Qt.MouseButton.LeftButton)
    assert button.text() == "Stop" and window.controller.racing, "the second press of a double click stops nothing"
    wait_state(qtbot, window, "running")
    button.setFocus()
    qtbot.keyClick(button, Qt.Key.Key_Space)
    assert button.text() in ("Stopping", "Run") and button.isEnabled() and button.hasFocus()
    wait_state(qtbot, window, "ended")
    assert button.text() == "Run" and button.geometry() == place and button.hasFocus()


def test_a_window_file_of_before_the_rows_still_opens(make_window, config):
    config.mkdir(parents=True)
    old = {
        "version": 1,
        "window": {"splitters": {"rows": [369, 200]}, "theme": "dark", "font_scale": 1.0, "ghosts": True, "whitespace": True,
                   "inspector": True, "rule": "match", "plots": True, "fourth_plot": "time", "trees": [],
                   "pages": {"Exactness": {"view": 1}}},
        "run": run_to_json(RunSettings(prompt="kept", sampling=SamplingParams(0.7), max_tokens=77)),
    }  # fmt: skip
    (config / "window.json").write_text(json.dumps(old), encoding="utf-8")
    window = make_window(start=False)
    assert window.setup.sampling.words == "temperature 0.7 · rule match · 77 tokens"
    assert window.setup.prompt.toPlainText() == "kept" and window.actions_by_name["whitespace"].isChecked()
    window.tabs.open("Exactness")
    assert not window.tabs.page("Exactness").setup_line.isHidden()


# -- the menus -----------------------------------------------------------------------------------------


def test_all_menus_open_by_f10_and_every_entry_has_its_keys_with_them_closed(window, qtbot):
    ran(qtbot, window)
    window.activateWindow()
    window.setup.run.setFocus()
    qtbot.keyClick(window.setup.run, Qt.Key.Key_F10)
    menus = window.menu.menus
    assert menus.isVisible() and menus.activeAction() is menus.actions()[0]
    menus.hide()
    own = window.actions()
    entries = [entry for menu in menus.findChildren(QMenu) for entry in menu.actions() if entry.shortcut().toString()]
    assert len(entries) > 25 and all(entry in own for entry in entries)
    window.menu.hide()
    qtbot.keyClick(window.setup.run, Qt.Key.Key_2, Qt.KeyboardModifier.AltModifier)
    assert window.tabs.current == "Why"


def test_the_old_menu_bar_takes_no_room(window):
    assert window.menuWidget() is None or not window.menuWidget().isVisible()
    assert window.tabs.bar.mapTo(window, QPoint()).y() < 4
    right = [window.menu.mapTo(window, QPoint()).x(), window.machine.mapTo(window, QPoint()).x()]
    assert right[0] > right[1] > window.tabs.bar.width(), "tabs left, machine and menu right"
