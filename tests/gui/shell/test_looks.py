"""Keys, themes, folding, and what the machine label says."""

from __future__ import annotations

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QKeySequence
from PySide6.QtWidgets import QAbstractButton, QApplication, QWidget

from specview.gui.parts import theme
from specview.gui.shell.help_dialogs import SHORTCUTS
from tests.gui.shell_fake import ran, wait_state


def test_shortcuts_are_unambiguous_and_none_is_a_text_fields_own(window):
    """On X11 and on macOS a line of text takes some before any action: Ctrl+U empties it, Ctrl+E goes to its end."""
    taken = {"Ctrl+A", "Ctrl+C", "Ctrl+E", "Ctrl+K", "Ctrl+U", "Ctrl+V", "Ctrl+X", "Ctrl+Z", "Ctrl+Shift+Z"}
    keys = [
        (key.toString(QKeySequence.SequenceFormat.PortableText), action.text())
        for menu in window.menu.menus.actions() for action in menu.menu().actions() for key in action.shortcuts()
    ]  # fmt: skip
    seen = dict(keys)
    assert len(seen) == len(keys) and not taken & set(seen)
    assert {"Ctrl+Return", "F5", "Esc", "Ctrl+I", "Ctrl++", "Ctrl+0"} <= set(seen)
    told = "\n".join(words for _, words in SHORTCUTS)
    for title, key in (("&Edit lane…", "Ctrl+Shift+L"), ("&Follow-up line", "Ctrl+Shift+M")):
        assert seen[key] == title and key in told


def test_everything_is_reached_by_tab(window, qtbot):
    ran(qtbot, window)
    window.setup.target.setFocus()
    reached: list[QWidget] = []
    for _ in range(200):
        widget = QApplication.focusWidget()
        assert widget is not None
        if widget in reached:
            break
        reached.append(widget)
        window.focusNextChild()
    wanted = [
        window.tabs.bar, window.menu, window.setup.target, window.setup.prompt, window.setup.caption, window.setup.sampling,
        window.setup.add_lane, window.setup.run,
        window.page.conversation.line, window.page.conversation.more, *(panel.view for panel in window.page.panels),
    ]
    missing = [widget.accessibleName() or repr(widget) for widget in wanted if widget not in reached]
    assert not missing
    unnamed = [
        type(w).__name__ for w in reached
        if not (w.accessibleName() or (isinstance(w, QAbstractButton) and w.text()))
    ]
    assert not unnamed


def test_follow_up_and_edit_keys_work_in_a_field(window, qtbot, monkeypatch):
    ran(qtbot, window)
    both = Qt.KeyboardModifier.ControlModifier | Qt.KeyboardModifier.ShiftModifier
    edited = []
    monkeypatch.setattr(window.lanes, "edit", edited.append)
    for field in (window.setup.prompt, window.page.conversation.line):
        window.activateWindow()
        field.setFocus()
        qtbot.waitUntil(field.hasFocus, timeout=5000)
        qtbot.keyClick(field, Qt.Key.Key_L, both)
        assert edited.pop() == 1 and not edited, "the lane selected: the first that drafts"
        qtbot.keyClick(field, Qt.Key.Key_M, both)
        assert window.focusWidget() is window.page.conversation.line
    assert window.page.conversation.line.text() == ""


def test_focus_can_be_seen(window):
    sheet = QApplication.instance().styleSheet()
    for kind in ("QPushButton:focus", "QLineEdit:focus", "QComboBox:focus", "QToolButton:focus", "QPlainTextEdit:focus"):
        assert kind in sheet


def test_themes_and_fonts_switch_live(window, qtbot):
    ran(qtbot, window)
    window._set_theme("light")
    assert theme.current().name == "light"
    for direction in (1, 1, -1, 0, -1, -1, -1, -1):
        window._zoom(direction)
    assert theme.font_scale() == theme.SCALES[0]
    window._zoom(0)
    assert theme.font_scale() == 1.0
    window._set_theme("dark")
    ran(qtbot, window)


@pytest.mark.parametrize(("width", "height", "plots"), [(1440, 900, True), (1280, 800, True), (800, 500, False)])
def test_small_windows_fold_what_has_no_room(window, qtbot, width, height, plots):
    window.resize(width, height)
    qtbot.wait(20)
    assert (window.width(), window.height()) == (width, height)
    assert window.page.shown("plots") == plots
    # the inspector opens when it is asked for, whatever the room
    inspector = window.actions_by_name["inspector"]
    assert not window.page.shown("inspector") and not inspector.isChecked()
    inspector.trigger()
    assert window.page.shown("inspector") and inspector.isChecked()
    inspector.trigger()
    assert not window.page.shown("inspector")


@pytest.mark.parametrize(("asked", "other"), [("plots", "inspector"), ("inspector", "plots")])
def test_in_a_small_window_only_what_was_asked_for_opens(window, qtbot, asked, other):
    window.resize(640, 420)
    qtbot.waitUntil(lambda: not window.page.shown("plots") and not window.page.shown("inspector"))
    window.actions_by_name["ghosts"].trigger()
    assert not window.page.shown(asked) and not window.page.shown(other)
    window.actions_by_name[asked].trigger()
    assert window.page.shown(asked) and window.actions_by_name[asked].isChecked()
    assert not window.page.shown(other) and not window.actions_by_name[other].isChecked()
    window.actions_by_name[other].trigger()
    assert window.page.shown(asked) and window.page.shown(other)
    window.actions_by_name[asked].trigger()
    assert not window.page.shown(asked) and window.page.shown(other)


@pytest.mark.parametrize(("part", "splitter"), [("plots", "rows"), ("inspector", "columns")])
def test_a_part_dragged_shut_opens_when_asked_for(window, qtbot, part, splitter):
    edge = getattr(window.page, splitter)
    if not window.page.shown(part):
        window.actions_by_name[part].trigger()
    qtbot.waitUntil(lambda: all(edge.sizes()))
    whole = sum(edge.sizes())
    edge.setSizes([whole - 260, 260])
    held = edge.sizes()
    window.actions_by_name[part].trigger()
    window.actions_by_name[part].trigger()
    qtbot.waitUntil(lambda: edge.sizes() == held)  # folded and shown: as it was
    edge.setSizes([whole, 0])
    qtbot.waitUntil(lambda: edge.sizes()[1] == 0)
    window.actions_by_name[part].trigger()
    window.actions_by_name[part].trigger()
    qtbot.waitUntil(lambda: edge.sizes()[1] >= 90)


def test_nothing_jumps_while_figures_change(window, qtbot, script):
    script.rounds, script.round_s = 60, 0.004
    window.run()
    wait_state(qtbot, window, "running")
    qtbot.waitUntil(lambda: script.emitted_rounds > 10)
    places = [(panel.x(), panel.y(), panel.width()) for panel in window.page.panels]
    bar = window.setup.geometry()
    fields = [w.geometry() for w in (window.setup.target, window.setup.prompt, window.setup.sampling, window.setup.run)]
    wait_state(qtbot, window, "ended")
    assert [(panel.x(), panel.y(), panel.width()) for panel in window.page.panels] == places
    assert window.setup.geometry() == bar
    assert fields == [
        w.geometry() for w in (window.setup.target, window.setup.prompt, window.setup.sampling, window.setup.run)
    ]


def test_lanes_keep_room_for_their_figures_when_the_font_grows(window, qtbot, qapp):
    before = window.page.lanes.minimumWidth()
    try:
        window._zoom(1)
        assert window.page.lanes.minimumWidth() > before
    finally:
        window._zoom(0)
    assert window.page.lanes.minimumWidth() == before


def test_rule_that_auto_picks_is_not_cut(window, qtbot):
    window.setup.field("temperature").setText("0.8")
    window.setup.open_panel()
    qtbot.waitUntil(lambda: window.setup.rule.width() >= window.setup.rule.sizeHint().width())
    shown = window.setup.rule.fontMetrics().horizontalAdvance(window.setup.rule.currentText())
    assert shown < window.setup.rule.width() - theme.px(24)


def test_the_keyboard_is_never_left_in_the_middle_of_another_tab(window, qtbot):
    window.setup.run.setFocus()
    window.tabs.open("Runs")  # the setup bar goes with the race
    assert window.focusWidget() is window.tabs.bar  # no run is kept: nothing to be in
    window.tabs.open("Exactness")
    assert window.focusWidget() is window.tabs.bar
    window.tabs.open("Race")
    window.setup.run.setFocus()
    window.tabs.open("Race")
    assert window.focusWidget() is window.setup.run


@pytest.mark.parametrize(("threads", "words"), [(1, "1 thread · "), (2, "2 threads · ")])
def test_the_machine_label_counts_threads_in_words(window, threads, words):
    window.controller.race.facts["threads"] = threads
    window.machine.refresh()
    assert window.machine.text().startswith(words) and window.machine.text() in window.machine.accessibleName()
