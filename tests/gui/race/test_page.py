"""The race page: the sentence over the lanes, the inspector, the conversation, and where things stand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QAccessible, QFontMetricsF, QGuiApplication
from PySide6.QtWidgets import QWidget

from specview.gui.parts import theme
from specview.gui.race.headline import fitting
from specview.gui.race.page import INSPECTOR_PX
from specview.gui.shell.app import first_settings
from specview.gui.state import conversation
from specview.gui.state.race_words import Situation, headline
from specview.gui.state.view_model import RaceModel
from specview.settings.branch import Branch
from specview.settings.run import LaneSettings, RunSettings
from tests.gui.shell_fake import ran, wait_state
from tests.gui.views_data import make_race, stream


def top(window, widget: QWidget) -> int:
    return widget.mapTo(window, QPoint(0, 0)).y()


# -- where things stand ----------------------------------------------------------------------------


def test_from_top_to_bottom(window, qtbot):
    page = window.page
    ran(qtbot, window)
    parts = (window.tabs, window.setup, page.headline, page.panels[0], page.conversation.line, page.plots)
    places = [top(window, part) for part in parts]
    assert places == sorted(places) and len(set(places)) == len(places)
    assert page.legend.mapTo(window, QPoint(0, 0)).x() > window.width() // 2 and abs(top(window, page.legend) - top(window, page.headline)) < 12
    assert window.findChildren(QWidget, "qt_statusbar") == [] and 110 <= page.plots.height() <= 145
    assert [card.isVisible() for card in (*page.plots.cards.values(), page.plots.phases)] == [True, True, True, False]


def test_the_foot_has_room_for_others(window, qtbot):
    from PySide6.QtWidgets import QPushButton

    page, before = window.page, window.page.foot.count()
    page.foot.addWidget(QPushButton("Export ▾"))
    assert page.foot.count() == before + 1
    qtbot.waitUntil(lambda: page.foot.itemAt(before).widget().isVisible())
    assert top(window, page.foot.itemAt(before).widget()) > top(window, page.plots)


@pytest.mark.parametrize(("size", "share"), [((1270, 760), 0.45), ((1356, 728), 0.42)])
def test_tokens_have_the_stage(window, qtbot, size, share):
    """With three lanes, the plots, the line for a follow-up and the row at the foot."""
    window.resize(*size)
    ran(qtbot, window)
    area = sum(panel.view.width() * panel.view.height() for panel in window.page.panels)
    assert area >= share * window.width() * window.height()


# -- the sentence ----------------------------------------------------------------------------------


def test_the_sentence_follows_a_race(make_window, qtbot, script):
    script.load_s, script.prefill_s, script.round_s, script.rounds = 0.5, 1.5, 0.005, 40
    window = make_window()
    told, line = [], window.page.headline
    line.announce = told.append
    assert line.said.sentence == "Press Run to race these lanes on the prompt."
    window.run()
    seen: dict[str, str] = {}
    while window.controller.state != "ended":
        qtbot.wait(10)
        seen[window.controller.state] = line.said.text
        if window.controller.state == "loading" and window.controller.progress is not None:
            assert line.waiting
    assert seen["loading"].startswith("Loading SmolLM2-135M-Instruct… ") and "%" in seen["loading"]
    assert seen["prefill"].startswith("Prefill of ") and "131 tokens… " in seen["prefill"]
    assert seen["running"].startswith("Round ") and "leads, " in seen["running"] and "so far" in seen["running"]
    assert not line.waiting and "faster than plain decoding" in line.said.sentence
    assert told[0].startswith("The race has begun.") and told[-1] == line.said.text
    interface = QAccessible.queryAccessibleInterface(line.sentence)
    assert interface.text(QAccessible.Text.Name) == f"Race: {line.said.text}"


def test_a_lane_that_failed_is_named(window, qtbot, script):
    script.fail_lane = 1
    ran(qtbot, window)
    said = window.page.headline.said
    assert "EAGLE-3" in said.sentence and "draft model failed" in said.rest and "tokenizer" not in said.rest  # its panel says why
    assert said.tone == "warning"


def test_words_for_what_goes_on():
    race = make_race(3)
    for lane in race.lanes:
        lane.state = "idle"
    assert headline(RaceModel(), Situation("ready")).text == ""
    assert headline(race, Situation("ready", preloaded=True)).rest == "the models are loaded"
    assert headline(race, Situation("preloading")).sentence == "Loading libraries…"
    assert headline(race, Situation("working", job="sweep")).sentence == "Sweep…"
    stream(race, 2.0)
    now = Situation("running", real_time_fraction=0.34, race_running=True)
    assert headline(race, now).rest == "shown at 0.34× real time, lanes take turns"
    assert headline(race, Situation("stopping", race_running=True)).sentence.startswith("Stopping, round ")
    again = headline(race, Situation("ended", recorded=True, moment="draft model drafts"))  # a replay
    assert again.sentence.startswith("Round ") and again.rest == "draft model drafts"
    for lane in race.lanes:
        lane.state, lane.end = "ended", "limit"
    assert headline(race, Situation("ended", recorded=True)).sentence.startswith("Recorded: ")
    assert headline(race, Situation("ended", stale=True)).rest.startswith("Figures of the run before")


def test_a_long_sentence_is_cut_and_the_tip_has_it_whole(window, qtbot):
    line = window.page.headline.sentence
    line.say(replace(line.said, sentence="A lane with <b>a very long</b> name " * 12, rest="and more"))
    line.grab()
    assert "<b>" in line.tip_at(QPoint(1, 1).toPointF()) and "and more" in line.tip_at(QPoint(1, 1).toPointF())
    assert line.width() < window.width()


def test_what_stands_beside_the_sentence_loses_whole_parts(qtbot):
    metrics = QFontMetricsF(theme.ui_font(12))
    text = "19 to 72 tokens · 64.9 against 23.9 tok/s · draft model 1.6×"
    assert fitting(text, metrics, 2000) == text
    shown = fitting(text, metrics, metrics.horizontalAdvance(text) - 4)
    assert shown == "19 to 72 tokens · 64.9 against 23.9 tok/s · …"
    least = fitting(text, metrics, 50)
    assert least.endswith("…") and text.startswith(least[:-1]) and metrics.horizontalAdvance(least) <= 50


# -- the inspector ---------------------------------------------------------------------------------


def test_the_inspector_opens_when_a_token_is_chosen(window, qtbot):
    ran(qtbot, window)
    page, view = window.page, window.page.panels[1].view
    window.activateWindow()
    view.setFocus()
    qtbot.waitUntil(view.hasFocus)
    qtbot.keyClick(view, Qt.Key.Key_Home)
    qtbot.keyClick(view, Qt.Key.Key_Right)
    assert not page.shown("inspector"), "moving over tokens chooses none"
    qtbot.keyClick(view, Qt.Key.Key_Return)
    assert page.shown("inspector") and page.inspector.inspection is not None
    assert window.actions_by_name["inspector"].isChecked()
    qtbot.keyClick(view, Qt.Key.Key_Escape)
    assert not page.shown("inspector") and view.hasFocus()
    qtbot.mouseClick(view.viewport(), Qt.MouseButton.LeftButton, pos=QPoint(24, 14))
    assert page.shown("inspector")
    window.actions_by_name["ghosts"].trigger()
    assert page.shown("inspector"), "what else is ticked leaves it alone"
    window.actions_by_name["inspector"].trigger()
    assert not page.shown("inspector")
    page.open_inspector(2)
    assert page.shown("inspector") and page.selected is page.panels[2].lane


def test_escape_closes_the_inspector_before_it_stops_a_race(window, qtbot, script):
    script.rounds, script.round_s = 200, 0.01
    window.run()
    wait_state(qtbot, window, "running")
    window.page.open_inspector()
    window.activateWindow()
    qtbot.waitUntil(window.isActiveWindow)
    qtbot.keyClick(window, Qt.Key.Key_Escape)
    assert not window.page.shown("inspector") and window.controller.racing
    qtbot.keyClick(window, Qt.Key.Key_Escape)
    wait_state(qtbot, window, "ended")
    assert window.controller.race.ended.end == "stopped"


def test_an_inspector_that_a_token_opened_is_not_open_at_the_next_start(make_window):
    first = make_window(start=False)
    first.page.open_inspector()
    first.close()
    second = make_window(start=False)
    assert not second.page.shown("inspector")
    second.actions_by_name["inspector"].trigger()  # asked for, it is
    second.close()
    assert make_window(start=False).page.shown("inspector")


def test_the_inspector_lies_over_the_page_where_the_lanes_would_scroll_beside_it(make_window, qtbot):
    lanes = (LaneSettings(), *(LaneSettings("draft-model", k=k) for k in (1, 2, 3, 4)))
    window = make_window(first=replace(first_settings(), lanes=lanes))
    page = window.page
    window.resize(1280, 760)
    qtbot.waitUntil(lambda: 1240 <= page.width() <= 1280)
    ran(qtbot, window)
    page.open_inspector(0)
    assert page.overlaid and page.shown("inspector") and page.side.width() == INSPECTOR_PX
    qtbot.waitUntil(lambda: page.side.geometry().right() == page.width() - 1 and not page.lane_scroll.horizontalScrollBar().isVisible())
    page.open_inspector(4)
    assert page.side.x() == 0, "the lane looked at is not covered"
    for _ in range(2):
        window.lanes.remove(1)
    assert not page.overlaid and page.shown("inspector") and page.columns.sizes()[1] > 0
    page.close_inspector()
    assert not page.shown("inspector")


# -- the conversation ------------------------------------------------------------------------------


def test_the_line_comes_after_a_run_and_the_turns_stay_above_it(window, qtbot):
    talk = window.page.conversation
    assert talk.isHidden()
    prompt = window.setup.prompt.toPlainText()
    ran(qtbot, window)
    assert talk.isVisible() and talk.past.isHidden()
    window.activateWindow()
    talk.line.setFocus()
    qtbot.keyClicks(talk.line, "and why?")
    qtbot.keyClick(talk.line, Qt.Key.Key_Return)
    wait_state(qtbot, window, "loading", "running", "prefill")
    assert talk.isVisible() and talk.line.hasFocus()
    wait_state(qtbot, window, "ended")
    assert talk.line.hasFocus() and talk.line.text() == ""
    assert [one.who for one in talk.turns.said] == ["You", "Plain's reply"] and talk.turns.said[0].text == prompt
    assert talk.past.isVisible() and "You: " in talk.turns.toPlainText() and "1 earlier turn" in talk.fold.text()
    talk.fold.click()
    assert talk.turns.isHidden() and talk.fold.accessibleName() == "Show 1 earlier turn"
    talk.fold.click()
    assert talk.turns.isVisible()
    talk.copy()
    copied = QGuiApplication.clipboard().text()
    assert copied.count("**You**") == 2 and "and why?" in copied and window.controller.race.lanes[0].text in copied


def test_a_new_conversation_forgets_the_turns(window, qtbot):
    ran(qtbot, window)
    window.next_turn("and why?")
    wait_state(qtbot, window, "ended")
    talk = window.page.conversation
    assert talk.new.isVisible() and len(window.run_settings().history) == 2
    talk.new.click()
    assert window.run_settings().history == () and talk.isHidden()
    ran(qtbot, window)
    assert talk.isVisible() and talk.past.isHidden()


def test_a_new_conversation_makes_the_figures_those_of_the_run_before(window, qtbot):
    ran(qtbot, window)
    window.page.conversation.forget()
    assert not window.controller.stale, "the prompt is what it was"
    window.next_turn("and why?")
    wait_state(qtbot, window, "ended")
    assert not window.controller.stale
    window.page.conversation.forget()
    assert [lane.stale for lane in window.controller.race.lanes] == [True] * 3
    assert "run before" in window.page.headline.said.rest


@pytest.mark.parametrize("part", (False, True))
@pytest.mark.parametrize("cleared", (False, True))
def test_the_end_of_a_branch_brings_the_conversation_back_and_no_part_of_its_figures(window, qtbot, script, part, cleared):
    ran(qtbot, window)
    window.next_turn("and why?")
    wait_state(qtbot, window, "ended")
    controller, talk = window.controller, window.page.conversation
    if cleared:
        talk.forget()
        window.setup.prompt.setPlainText("why not?")
    before, turns = window.own_settings(), talk.turns.said
    script.fail_lane = 1 if part else None
    window.branching.go_on(replace(controller.ran, branch=Branch((1, 2))))
    wait_state(qtbot, window, "loading", "running", "prefill")
    window.branching.end()
    assert "Stop it" in window.banner.message and window.own_settings().branch is not None
    wait_state(qtbot, window, "ended")
    assert window.branching.bar.isVisible() and talk.isVisible()
    window.branching.end()
    assert window.own_settings() == before and not window.branching.bar.isVisible()
    lanes = controller.race.lanes
    assert [bool(lane.rounds) for lane in lanes] == [not part] * 3 and [lane.stale for lane in lanes] == [not part] * 3
    assert talk.isVisible() is not cleared and (cleared or (talk.turns.said == turns and talk.past.isVisible()))
    assert not part or ("Press Run" in window.page.headline.said.sentence and not controller.can_follow_up)
    script.fail_lane = None
    ran(qtbot, window)
    assert all(lane.rounds and not lane.stale for lane in controller.race.lanes) and talk.past.isVisible() is not cleared


def test_what_was_said_is_text(window, qtbot):
    talk = window.page.conversation
    settings = RunSettings(prompt="p", history=({"role": "user", "content": "<b>bold</b>\u202ex"}, {"role": "assistant", "content": "```\n<script>\n```"}))
    said = conversation.earlier(settings)
    talk.turns.show_turns(said)
    assert "<b>bold</b>‹202E›x" in talk.turns.toPlainText() and "<script>" in talk.turns.toPlainText()
    assert talk.turns.sizeHint().height() < 110
    pasted = conversation.markdown(said)
    assert pasted.startswith("**You**\n\n```text\n<b>bold</b>") and "````text\n```\n<script>\n```\n````" in pasted


def test_continue_stays(window, qtbot, script):
    ran(qtbot, window)
    more = window.page.conversation.more
    assert more.isVisible() and more.isEnabled()
    more.setFocus()
    more.click()
    wait_state(qtbot, window, "ended")
    assert "continue" in script.log[-1]
