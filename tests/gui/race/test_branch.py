"""Going on from a token in the window: asked, run, said, and the way back; live and from a recorded run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QDialog

from specview.gui.lanes.token_view import TokenView
from specview.gui.link.local_backend import LocalBackend
from specview.gui.link.open_run import Pick, open_picks
from specview.gui.race.branch_dialog import BranchDialog
from specview.gui.race.branching import position_at
from specview.gui.state.set_branch import SetBranch
from specview.gui.state.view_model import FINAL, LaneModel
from specview.library.library import RunLibrary
from specview.racing.branching import Alternative
from specview.settings.branch import Branch, branch_of
from specview.settings.run import LaneSettings, RunSettings
from tests.racing.world import PROMPT, World

NONE = Qt.KeyboardModifier.NoModifier
FIRST = RunSettings(
    prompt=PROMPT, chat=False, max_tokens=24, lanes=(LaneSettings(), LaneSettings("draft-model", k=3), LaneSettings("prompt-lookup", k=4))
)


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch, make_window):
    """A window whose races are real ones, over a made-up target and draft."""
    World(monkeypatch)
    monkeypatch.setattr("tests.gui.conftest.FakeBackend", lambda script: LocalBackend())
    return make_window(first=FIRST)


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch):
    """Answer the next dialogs by what `answer.way` does with them; None cancels."""

    answer = SimpleNamespace(way=None, texts=[], choices=[])

    def take(dialog: BranchDialog) -> int:
        answer.texts.append(dialog.before.toPlainText())
        answer.choices.append(dialog.choice)
        if answer.way is None:
            return QDialog.DialogCode.Rejected
        answer.way(dialog)
        answer.choices[-1] = dialog.choice
        dialog.run.click()
        return dialog.result()

    monkeypatch.setattr(BranchDialog, "exec", take)
    return answer


def race(qtbot, window) -> None:
    window.run()
    ended(qtbot, window)


def ended(qtbot, window) -> None:
    qtbot.waitUntil(lambda: window.controller.state == "ended" and not window.controller.racing, timeout=20_000)
    qtbot.waitUntil(lambda: not window.controller._busy, timeout=20_000)


def token_at(window, lane: int, position: int) -> tuple[int, int]:
    """The round and index of an output token."""
    found = next(token for token in window.controller.race.lanes[lane].tokens if token.position == position)
    return found.round_index, found.token_index


def ids(window, lane: int) -> list[int]:
    return [token for round_ in window.controller.race.lanes[lane].rounds for token in round_.emitted]


def test_it_goes_on_from_a_token_and_ends_where_it_was(qtbot, window, answer) -> None:
    race(qtbot, window)
    before, parent = ids(window, 1), RunLibrary().scan()[0]
    setup = window.own_settings()
    answer.way = lambda dialog: None
    window.page.branch_requested.emit(1, *token_at(window, 1, 5), None)
    ended(qtbot, window)
    assert answer.texts == ["".join(chr(97 + token) for token in before[:5])]
    assert answer.choices[0].id == before[5] and answer.choices[0].what
    assert ids(window, 1)[:10] == before[6:16] and len(ids(window, 1)) == 24
    branch = window.controller.ran.branch
    assert (branch.run, branch.lane, branch.position, branch.token_ids) == (parent.id, "draft-model", 5, tuple(before[:6]))
    assert branch_of(window.controller.race.facts).token_ids == branch.token_ids
    assert window.branching.bar.isVisible() and parent.id in window.branching.bar.words and "position 5" in window.branching.bar.words
    kept = RunLibrary().scan()[0]
    assert kept.parent == parent.id and kept.continues in open_picks([Pick(kept.path)], [RunLibrary().read(kept)]).words
    assert not window.controller.stale
    # edited meanwhile: stays; the rest is as it was
    window.setup.fields["max_tokens"].set_value(12)
    assert window.controller.ran.branch is not None and window.own_settings().branch == branch
    window.branching.bar.end.click()
    assert not window.branching.bar.isVisible() and window.controller.stale
    assert window.own_settings() == replace(setup, max_tokens=12)
    race(qtbot, window)
    assert ids(window, 1) == before[:12]


def test_a_token_that_is_still_tried_in_a_replay_can_be_gone_on_from(qtbot, window, answer) -> None:
    race(qtbot, window)
    player, panel = window.page.transport, window.page.panels[1]
    player.seek(player.length / 2)
    while panel.lane.settled == len(panel.lane.tokens) and not player.at_end:
        player.step_phase()
    token = panel.lane.tokens[panel.lane.settled]
    panel.view.refresh()
    panel.view.select_token(token.round_index, token.token_index)
    qtbot.keyClick(panel.view, Qt.Key.Key_B)
    assert len(answer.texts) == 1 and window.page.transport.at_end


def test_going_on_without_a_token_under_the_cursor_says_so(qtbot, window, answer) -> None:
    race(qtbot, window)
    qtbot.keyClick(window.page.panels[1].view, Qt.Key.Key_B)
    assert not answer.texts and "Choose a token first" in window.banner.message


def test_what_was_given_stands_before_each_lane_and_is_nothing_to_point_at(qtbot, window, answer) -> None:
    race(qtbot, window)
    answer.way = lambda dialog: None
    window.page.branch_requested.emit(1, *token_at(window, 1, 11), None)
    ended(qtbot, window)
    given = window.controller.ran.branch.text + window.controller.ran.branch.token
    assert len(given) == 12
    for panel in window.page.panels:
        lane, view = panel.lane, panel.view
        assert (lane.given, lane.reply) == (given, given + lane.text) and lane.tokens[0].kind == "given" and len(lane.text) == 24
        qtbot.waitUntil(lambda view=view, lane=lane: len(view.lines.layout) == len(lane.tokens))
        area = view.lines.area_of(0)
        assert area.width() > 0 and view.token_at(area.center()) is None and view.token_at(view.lines.area_of(1).center()) == 1
        view.setFocus()
        for key, held in ((Qt.Key.Key_Down, NONE), (Qt.Key.Key_Home, Qt.KeyboardModifier.ControlModifier), (Qt.Key.Key_Left, NONE), (Qt.Key.Key_Up, NONE)):
            qtbot.keyClick(view, key, held)
            assert view.current() == (0, lane.tokens[1].token_index)
        view.copy_all()
        assert QGuiApplication.clipboard().text() == lane.reply
        view.select_all()
        assert view.selected_text() == lane.reply
    window.page.grab()
    # a branch of a ghost or a token after it counts from the lane's own output
    assert position_at(window.controller.race.lanes[0], 0, FINAL) == 0
    assert [token.text for token in LaneModel(given="a  b\n\n  " + "c" * 50).tokens] == ["a  ", "b\n\n  ", "c" * 40, "c" * 10]
    view = TokenView(LaneModel(given="שלום עולם 😀 <b>x</b>\n\ty "))
    qtbot.addWidget(view)
    view.refresh()
    view.grab()
    playhead = window.controller.playhead
    playhead.seek(0.0)
    assert [[token.kind for token in lane.tokens] for lane in window.controller.race.lanes] == [["given"]] * 3
    window.page._on_text()
    playhead.seek(playhead.length)
    window.page._on_text()
    assert all(lane.reply == given + lane.text and len(lane.text) == 24 for lane in window.controller.race.lanes)


def test_another_token_other_lanes_and_another_temperature(qtbot, window, answer) -> None:
    race(qtbot, window)
    before, setup = ids(window, 0), window.own_settings()

    def way(dialog: BranchDialog) -> None:
        dialog.tokens.setCurrentRow(2)
        dialog.lanes.set_value("prompt-lookup")
        dialog.fields["temperature"].set_value(0.7)
        dialog.fields["seed"].set_value(9)

    answer.way = way
    window.page.branch_requested.emit(0, *token_at(window, 0, 3), None)
    ended(qtbot, window)
    ran, chosen = window.controller.ran, answer.choices[0]
    assert ran.branch.token_ids == (*before[:3], chosen.id) and chosen.id != before[3] and ran.branch.token == chosen.text
    assert [lane.method for lane in ran.lanes] == ["plain", "prompt-lookup"]
    assert (ran.sampling.temperature, ran.sampling.seed) == (0.7, 9) and ran.prompt == PROMPT
    assert [lane.label for lane in window.lane_settings] == ["plain", "prompt-lookup"]
    # a branch of a branch: End leads back to the first setup
    answer.way = lambda dialog: dialog.lanes.set_value("+Suffix tree") if "+Suffix tree" in _keys(dialog) else None
    window.page.branch_requested.emit(0, *token_at(window, 0, 0), None)
    ended(qtbot, window)
    assert len(window.controller.ran.branch.token_ids) == 5 and window.controller.ran.branch.position == 0
    window.branching.bar.end.click()
    assert window.own_settings() == setup


def _keys(dialog: BranchDialog) -> set[str]:
    return {dialog.lanes.itemData(place) for place in range(dialog.lanes.count())}


def test_from_a_recorded_run_and_open_parent(qtbot, window, answer) -> None:
    race(qtbot, window)
    parent, before = RunLibrary().scan()[0], ids(window, 0)
    window.setup.prompt.setPlainText("ccc")
    window.recorded.open([Pick(parent.path)])
    qtbot.waitUntil(lambda: not window.recorded.opener.busy and window.controller.recorded is not None, timeout=10_000)
    answer.way = lambda dialog: None
    window.page.branch_requested.emit(2, *token_at(window, 2, 7), None)
    ended(qtbot, window)
    assert window.controller.recorded is None and window.controller.ran.prompt == PROMPT
    assert window.controller.ran.branch.run == parent.id and ids(window, 2)[:16] == before[8:24]
    assert window.branching.bar.isVisible()
    RunLibrary().delete([parent.id])
    window.branching.bar.open_parent.click()
    assert "not in the runs library" in window.banner.message
    RunLibrary().restore([parent.id])
    window.branching.bar.open_parent.click()
    qtbot.waitUntil(lambda: not window.recorded.opener.busy and window.controller.recorded is not None, timeout=10_000)
    assert ids(window, 0) == before


def test_another_prompt_or_target_is_no_branch_until_it_is_back(qtbot, window, answer) -> None:
    race(qtbot, window)
    answer.way = lambda dialog: None
    window.page.branch_requested.emit(0, *token_at(window, 0, 2), None)
    ended(qtbot, window)
    window.setup.prompt.setPlainText(PROMPT + "b")
    assert not window.branching.bar.isVisible() and window.run_settings().branch is None
    assert window.tabs.context.run_settings().branch is None
    window.setup.prompt.setPlainText(PROMPT)
    assert window.branching.bar.isVisible() and window.run_settings().branch is not None
    assert window.tabs.context.run_settings().branch is None, "the other tabs measure the prompt"
    window.open_race(FIRST)
    assert not window.branching.bar.isVisible() and window.own_settings().branch is None


def test_what_cannot_be_gone_on_from_is_said(qtbot, window, answer, tmp_path: Path) -> None:
    window.page.branch_requested.emit(0, 0, FINAL, None)
    assert "no finished race" in window.banner.message and not answer.texts
    race(qtbot, window)
    path = RunLibrary().scan()[0].path
    view = window.page.panels[0].view
    view.select_token(*token_at(window, 0, 2))
    view.setFocus()
    qtbot.keyClick(view, Qt.Key.Key_B)  # cancelled
    assert answer.texts == [window.controller.race.lanes[0].text[:2]] and not window.branching.bar.isVisible() and not window.controller.racing
    window.recorded.open([Pick(path), Pick(path)])
    qtbot.waitUntil(lambda: not window.recorded.opener.busy and window.controller.recorded is not None, timeout=10_000)
    window.page.branch_requested.emit(0, 0, FINAL, None)
    assert "several runs" in window.banner.message and len(answer.texts) == 1


def test_a_file_of_others_is_asked_about_first(qtbot, window, answer, monkeypatch, tmp_path: Path) -> None:
    race(qtbot, window)
    path = tmp_path / "a.jsonl"
    path.write_text(RunLibrary().scan()[0].path.read_text().replace('"target": "bundled"', '"target": "some/model"'))
    window.recorded.open([Pick(path)])
    qtbot.waitUntil(lambda: not window.recorded.opener.busy and window.controller.recorded is not None, timeout=10_000)
    asked = []
    monkeypatch.setattr("specview.gui.race.foreign_models.ask", lambda *args, **_: asked.append(args) or "")
    answer.way = lambda dialog: None
    window.page.branch_requested.emit(0, *token_at(window, 0, 2), None)
    assert len(asked) == 1 and not window.controller.racing and window.controller.recorded is not None


def test_the_token_of_a_draft_is_the_place_where_it_was_tried(window, qtbot) -> None:
    race(qtbot, window)
    lane = window.controller.race.lanes[1]
    at = 0
    for index, round_ in enumerate(lane.rounds):
        for place, token in enumerate(round_.drafted):
            wanted = at + (place if token.verdict != "ignored" else len(round_.emitted) - 1)
            assert position_at(lane, index, place) == wanted
        at += len(round_.emitted)
        assert position_at(lane, index, FINAL) == at - 1


def test_the_dialog_says_what_does_not_fit(qtbot, qapp) -> None:
    found = [Alternative(3, " dog", 0.5, "corrected"), Alternative(7, "\n", None, "rejected"), Alternative(4, " <b>cat", 0.3), Alternative(5, "", 0.01)]
    base = replace(FIRST, lanes=tuple(replace(lane, rule="greedy") if not lane.plain else lane for lane in FIRST.lanes))
    dialog = BranchDialog(base, found, 12, "x" * 5000 + "\x1b", None, chosen=7, others={"Suffix": LaneSettings("suffix")})
    qtbot.addWidget(dialog)
    dialog.show()
    rows = [dialog.tokens.item(row).text() for row in range(dialog.tokens.count())]
    assert "stands here" in rows[0] and '" dog"' in rows[0] and '" <b>cat"' in rows[1] and "token 5" in rows[2] and "newline" in rows[3]
    assert dialog.choice.id == 7 and dialog.before.toPlainText().endswith("x‹ESC›")
    dialog.fields["temperature"].set_value(0.5)
    dialog.run.click()
    assert "greedy" in dialog.problem.text() and dialog.result() == 0
    dialog.fields["temperature"].set_value("x")
    dialog.run.click()
    assert "not a number" in dialog.problem.text() or "is 'x'" in dialog.problem.text()
    dialog.fields["temperature"].set_value(0)
    dialog.lanes.set_value("+Suffix")
    qtbot.keyClick(dialog.tokens, Qt.Key.Key_Up)
    qtbot.keyClick(dialog.tokens, Qt.Key.Key_Return)
    assert dialog.result() == QDialog.DialogCode.Accepted and dialog.choice.id == 5
    assert [lane.method for lane in dialog.settings.lanes] == ["plain", "suffix"]
    few = BranchDialog(base, found[:1], 0, "", None)
    qtbot.addWidget(few)
    assert "light" in few.problem.text()


def test_a_set_branch_keeps_the_very_texts_of_its_run() -> None:
    branch, run = Branch((1,)), replace(FIRST, prompt="a\u00a0b")
    held = SetBranch()
    shown = replace(run, prompt="a b")
    held.set(replace(run, branch=branch), shown)
    assert held.on(replace(shown, max_tokens=7)) == replace(run, branch=branch, max_tokens=7)
    assert held.on(replace(shown, target="other")).branch is None and held.on(run).branch is None
    held.set(run, shown)
    assert held.on(shown) == shown

