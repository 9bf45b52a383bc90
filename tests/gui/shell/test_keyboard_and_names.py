"""Keys and names: one mnemonic each, a name for whatever takes the focus, focus that stays where one types."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtCore import QMargins, QRect, Qt
from PySide6.QtGui import QAccessible
from PySide6.QtWidgets import QAbstractButton, QComboBox, QLabel, QMenu, QWidget

from specview.gui.link.job import Job
from specview.gui.shell.screen_fit import USUAL_FRAME, margins, on_screen
from specview.gui.state.settings_store import SettingsStore
from specview.settings.run import LaneSettings
from tests.gui.shell_fake import ran, wait_state


def everything(window) -> list[QWidget]:
    """All widgets of the window with every tab and dialog opened."""
    for title in window.tabs.titles:
        window.tabs.open(title)
    for show in (window.show_tuning, window.show_prompt_set, window.training.show):
        show()
    window.lane_menu.fill({})
    return window.findChildren(QWidget)


def mnemonics(menu: QMenu) -> list[str]:
    texts = [action.text().replace("&&", "") for action in menu.actions()]
    return [text[text.index("&") + 1].upper() for text in texts if "&" in text]


def test_no_menu_has_a_mnemonic_twice(window):
    menus = [widget for widget in everything(window) if isinstance(widget, QMenu)]
    assert len(menus) > 6
    titles = [action.text()[1] for action in window.menu.menus.actions()]
    assert len(set(titles)) == len(titles)
    for menu in menus:
        keys = mnemonics(menu)
        assert len(set(keys)) == len(keys), menu.title() or menu.accessibleName()


def test_whatever_takes_the_focus_has_a_name(window, qtbot):
    ran(qtbot, window)
    unnamed = []
    for widget in everything(window):
        if widget.focusPolicy() == Qt.FocusPolicy.NoFocus or widget.focusProxy() is not None or isinstance(widget, QLabel):
            continue
        if isinstance(widget, QAbstractButton) and not widget.text() and not widget.isVisible():
            continue  # it gets its words when it is shown
        interface = QAccessible.queryAccessibleInterface(widget)
        if not interface.text(QAccessible.Text.Name):
            unnamed.append(widget)
        if isinstance(widget, QComboBox) and not (widget.accessibleName() and widget.accessibleDescription()):
            unnamed.append(widget)
    assert [(type(one).__name__, type(one.parent()).__name__) for one in unnamed] == []


def test_rule_plots_and_lanes_are_told_apart(window, qtbot):
    ran(qtbot, window)
    assert window.setup.rule.accessibleName() == "Rule"
    assert window.setup.rule.accessibleDescription().startswith("Rule. keeps a drafted token")
    window.page.plots.refresh()
    plots = window.page.plots
    cards = [*plots.cards.values(), plots.phases, plots.lengths]
    assert len({card.accessibleName() for card in cards}) == len(cards) > 2
    names = [panel.view.accessibleName() for panel in window.page.panels]
    assert names == ["Output of plain", "Output of draft-model", "Output of eagle3"]
    assert len({panel._more.accessibleName() for panel in window.page.panels}) == 3
    window.lane_settings[1] = LaneSettings("draft-model", name="mine")
    window._settings_changed()
    window.page._on_text()
    assert window.page.panels[1].view.accessibleName() == "Output of mine"


# -- keys ------------------------------------------------------------------------------------------


def test_the_lane_menu_goes_where_one_types(window, qtbot):
    menu = window.lane_menu
    menu.fill({"suffix": "not here"})
    menu.open_under(window.setup.add_lane)
    qtbot.waitUntil(menu.filter.hasFocus)
    qtbot.keyClicks(menu.filter, "prompt")
    chosen = []
    menu.method_chosen.connect(chosen.append)
    qtbot.keyClick(menu.filter, Qt.Key.Key_Return)
    assert chosen == ["prompt-lookup"]


def test_send_keeps_the_focus_and_what_is_typed_ahead(window, qtbot, script):
    ran(qtbot, window)
    line = window.page.conversation.line
    window.activateWindow()
    line.setFocus()
    qtbot.keyClicks(line, "and then?")
    qtbot.keyClick(line, Qt.Key.Key_Return)
    assert window.controller.racing and line.hasFocus() and line.isEnabled()
    qtbot.keyClicks(window.focusWidget(), "x y")
    wait_state(qtbot, window, "ended")
    assert line.text() == "x y" and line.hasFocus()
    assert window.setup.prompt.toPlainText() == "and then?"
    qtbot.mouseClick(window.page.conversation.send, Qt.MouseButton.LeftButton)
    assert line.hasFocus()
    wait_state(qtbot, window, "ended")
    assert line.text() == ""


def test_plain_opens_nothing(window, qtbot):
    panel = window.page.panels[0]
    assert not panel._name.isEnabled() and window.page.panels[1]._name.isEnabled()
    window.lanes.edit(0)
    assert window.banner.message == "Plain decoding has nothing to set: it is the baseline, and always there."


def test_the_tables_first_arrow_takes_the_row_the_keyboard_is_on(qtbot):
    from specview.files.tables import Column
    from specview.gui.parts.results_table import ResultsTable

    table = ResultsTable((Column("a", "a"),), identity="a")
    qtbot.addWidget(table)
    table.set_rows([{"a": place} for place in range(3)])
    table.show()
    table.activateWindow()
    table.view.setFocus()
    qtbot.waitUntil(table.view.hasFocus)
    table.view.setCurrentIndex(table.view.model().index(0, 0))
    table.view.clearSelection()  # as Tab leaves it
    qtbot.keyClick(table.view, Qt.Key.Key_Down)
    assert table.selected_rows() == [0]
    qtbot.keyClick(table.view, Qt.Key.Key_Down)
    assert table.selected_rows() == [1]


def test_the_runs_table_is_the_first_stop_of_its_page(window):
    window.tabs.open("Runs")
    page = window.tabs.page("Runs")
    stop = page.runs.view
    for widget in (page.keep, page.take_in, page.runs.filter):
        before = widget
        seen = 0
        while before is not stop and seen < 200:
            before, seen = before.previousInFocusChain(), seen + 1
            assert before is not window.tabs, "the tab bar comes before the table, which comes before the rest"
        assert before is stop


def test_tab_goes_down_the_page(window, qtbot):
    ran(qtbot, window)
    window.lanes.add_method("suffix")  # a panel made last
    page, at, places = window.page, window.setup.target, {}
    while at not in places:
        places[at] = len(places)
        at = at.nextInFocusChain()
    stops = [window.setup.run, window.tour.offer_line.yes, window.recorded.bar.close_button, page.legend.findChildren(QAbstractButton)[0],
             *(panel.view for panel in page.panels), page.conversation.line, page.plots.cards["acceptance_rate"],
             page.export, window.presenting.button]  # fmt: skip
    assert [places[stop] for stop in stops] == sorted(places[stop] for stop in stops)


def test_space_on_run_runs_once_and_then_pauses(window, qtbot, script):
    window.activateWindow()
    window.setup.run.setFocus()
    qtbot.keyClick(window.setup.run, Qt.Key.Key_Space)
    text = next(panel.view for panel in window.page.panels if panel.lane is window.page.selected)
    assert window.controller.racing and window.focusWidget() is text
    qtbot.keyClick(text, Qt.Key.Key_Space)
    assert window.controller.racing and window.controller.paused
    qtbot.keyClick(text, Qt.Key.Key_Space)
    wait_state(qtbot, window, "ended")
    assert window.controller.outcome == "done" and window.focusWidget() is text


def test_what_cannot_be_remembered_does_not_keep_the_window_open(make_window, monkeypatch, caplog):
    window = make_window()
    monkeypatch.setattr(window.tabs, "kept", lambda: 1 / 0)
    window.close()
    assert window.thread_ended and "not kept" in caplog.text


def test_a_message_is_seen_over_a_presentation(window, qtbot):
    ran(qtbot, window)
    window.presenting.toggle()
    window.setup.field("max_tokens").setText("none")
    qtbot.keyClick(window.presenting.screen, Qt.Key.Key_R)
    assert "max tokens" in window.presenting.screen.stage.note.full
    window.presenting.toggle()


def test_unknown_models_are_asked_about_over_a_presentation(window, qtbot, monkeypatch):
    asked = []
    monkeypatch.setattr("specview.gui.race.foreign_models.ask", lambda parent, *_, **__: asked.append(parent) or "")
    ran(qtbot, window)
    window.presenting.toggle()
    screen = window.presenting.screen
    qtbot.waitUntil(screen.isActiveWindow)
    window.foreign.confirm(replace(window.own_settings(), target="someone/unknown"))
    assert asked == [screen]
    window.presenting.toggle()


# -- figures of the run before ------------------------------------------------------------------------


def stale(window) -> list[bool]:
    return [lane.stale for lane in window.controller.race.lanes]


def test_figures_of_the_run_before_are_marked_as_such(window, qtbot):
    ran(qtbot, window)
    panel = window.page.panels[1]
    assert stale(window) == [False] * 3 and "before" not in panel.line.shown_text()
    prompt = window.setup.prompt.toPlainText()
    window.setup.prompt.setPlainText("something else")
    assert stale(window) == [True] * 3
    window.page._on_numbers()
    assert panel.line.shown_text().endswith("run before") and panel.line.faded and panel.number.shown.muted
    assert window.page.headline.said.rest.startswith("Figures of the run before")
    window.setup.prompt.setPlainText(prompt)
    window.page._on_numbers()
    assert stale(window) == [False] * 3 and not panel.line.faded
    assert "before" not in panel.line.shown_text() + window.page.headline.said.text
    for change in (
        lambda: window.setup.target.choose("/models/other.gguf"),
        lambda: window.setup.field("temperature").setText("0.7"),
        lambda: window.setup.panel.system.setPlainText("Be brief."),
        lambda: window.lanes.add_method("suffix"),
    ):
        ran(qtbot, window)
        assert not any(stale(window))
        change()
        kept = [lane.stale for lane in window.controller.race.lanes if lane.rounds]
        assert len(kept) > 1 and all(kept)
        if window.setup.target.target != "bundled":
            window.setup.target.choose("bundled")
    ran(qtbot, window)
    window.setup.prompt.setPlainText("something else")
    assert window.page.headline.said.rest.startswith("Figures of the run before")
    window.setup.run.click()
    qtbot.waitUntil(lambda: not any(lane.rounds for lane in window.controller.race.lanes))
    assert window.controller.racing and "before" not in window.page.headline.said.text, "the figures have gone"
    wait_state(qtbot, window, "ended")
    window.setup.field("max_tokens").setText("77")
    assert not any(stale(window)), "how far to go is no other race"


def test_a_follow_up_is_no_other_run(window, qtbot):
    ran(qtbot, window)
    window.next_turn("and then?")
    wait_state(qtbot, window, "ended")
    assert not any(stale(window))


def test_the_number_format_is_that_of_what_was_loaded(window, qtbot, script):
    ran(qtbot, window)
    window.controller.race.facts = {**window.controller.race.facts, "target_dtype": "float32"}
    window._refresh_actions()
    assert window.setup.target.dtype == "float32"
    script.fail_load = "it cannot be loaded."
    window.setup.target.choose("/models/other.gguf")
    window.run()
    wait_state(qtbot, window, "ended")
    assert window.setup.target.dtype == ""


def test_failed_goes_with_the_next_job_that_works(window, qtbot, script):
    script.fail_load = "it cannot be loaded."
    window.run()
    wait_state(qtbot, window, "ended")
    assert "failed" in window.page.headline.said.sentence
    Job(window.controller, "tuning").start(lambda pool, tell, stop: 1)
    wait_state(qtbot, window, "working")
    wait_state(qtbot, window, "ended")
    assert "failed" not in window.page.headline.said.text


# -- on the screen ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(1280, 800), (1366, 768), (800, 600), (1920, 1080)])
def test_a_window_with_its_frame_fits_the_screen(size):
    room = QRect(0, 24, size[0], size[1] - 24)
    for inner in (QRect(0, 0, 1440, 900), QRect(-300, 500, 1440, 900), QRect(5000, 5000, 700, 500), QRect(100, 100, 640, 420)):
        fits = on_screen(inner, USUAL_FRAME, room)
        assert room.contains(fits.marginsAdded(USUAL_FRAME))
        assert on_screen(fits, USUAL_FRAME, room) == fits
        assert fits.width() == min(inner.width(), room.width() - 16) and fits.height() == min(inner.height(), room.height() - 48)
    inside = QRect(100, 100, 640, 420)
    assert on_screen(inside, USUAL_FRAME, room) == inside


def test_the_frame_is_what_lies_around():
    assert margins(QRect(0, 0, 110, 140), QRect(4, 30, 100, 100)) == QMargins(4, 30, 6, 10)


def test_first_start_and_remembered_sizes_fit(make_window):
    first = make_window(start=False)
    room = first.screen().availableGeometry()
    first._looks.geometry = ""
    first._restore_looks()
    assert first.width() <= room.width() - 16 and first.height() <= room.height() - 48
    first.resize(3000, 2000)
    first.close()
    assert SettingsStore().load().window.geometry
    again = make_window(start=False)
    again._restore_looks()
    assert room.contains(again.geometry().marginsAdded(USUAL_FRAME))
