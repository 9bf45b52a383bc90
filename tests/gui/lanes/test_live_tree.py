"""The live draft tree: where its nodes stand, what it paints, which round it shows."""

from __future__ import annotations

import gc
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QImage
from pytestqt.qtbot import QtBot

from specview.decoding.ledger import DraftedToken, FinalToken, Round, depths
from specview.gui.lanes.panel import LanePanel
from specview.gui.lanes.tree_view import TreePanel, TreeView, newest_draft
from specview.gui.parts import theme
from specview.gui.state.round_words import STATES, cumulative, node_tip, number_text, round_words
from specview.gui.state.tree_layout import ROOT, Sizes, lay_out, nodes_of
from specview.gui.state.view_model import FINAL, LaneModel
from specview.settings.events import LaneRound
from tests.gui.lanes.test_trees import filled, tree_rounds
from tests.gui.views_data import lookahead_round, make_race, make_rounds

ONE_ROW = 0.02


def tree_round(parents: tuple[int, ...], verdicts: str, index: int = 0, *, q: float | None = 0.5) -> Round:
    """A round whose tree has these parents; verdicts in letters: a, r, i."""
    words = {"a": "accepted", "r": "rejected", "i": "ignored"}
    drafted = tuple(
        DraftedToken(place, words[letter], q=q, p=None if letter == "i" else 0.25, text=f" w{place}",  # type: ignore[arg-type]
                     confidence=0.5)
        for place, letter in enumerate(verdicts)
    )
    return Round(index, 0.1 * (index + 1), 0.003, 0.04, 0.001, 0.0, "x", parents, drafted,
                 FinalToken(99, "corrected", " end", p=0.75))


WIDE = tuple([-1] * 8 + [place // 6 for place in range(48)] + [8 + place for place in range(8)])
"""64 nodes in three levels."""


@pytest.fixture
def view(qtbot: QtBot) -> TreeView:
    made = TreeView()
    qtbot.addWidget(made)
    made.resize(280, 170)
    made.show()
    return made


def picture(widget) -> QImage:
    return widget.grab().toImage().convertToFormat(QImage.Format.Format_RGB32)


def colours_in(image: QImage) -> set[int]:
    return {image.pixel(x, y) for x in range(0, image.width(), 2) for y in range(0, image.height(), 2)}


# -- the layout -----------------------------------------------------------------------------------------------


@given(tree_rounds(), st.floats(120, 900), st.floats(60, 700), st.booleans())
@settings(max_examples=150, deadline=None)
def test_nodes_stand_in_columns_by_depth_and_never_overlap(
    made: list[Round], width: float, height: float, full: bool
) -> None:
    for round_ in made:
        found = lay_out(round_, width, height, full=full)
        nodes = found.nodes
        assert len(nodes) == round_.k + 1
        chain = all(node.parent == place - 1 for place, node in enumerate(nodes) if node.place != FINAL)
        for place, node in enumerate(nodes):
            assert node.width > 0 and node.height > 0 and node.x >= 0 and node.y >= -1e-6
            assert node.x + node.width <= found.width + 1e-6 and node.y + node.height <= found.height + 1e-6
            if node.parent != ROOT and not chain:
                parent = nodes[node.parent]
                assert node.depth == parent.depth + 1 and node.x >= parent.x + parent.width
            for other in nodes[:place]:
                apart = (
                    node.x >= other.x + other.width - 1e-6 or other.x >= node.x + node.width - 1e-6
                    or node.y >= other.y + other.height - 1e-6 or other.y >= node.y + node.height - 1e-6
                )
                assert apart, (node, other)
        if round_.parents is not None:
            assert [node.depth for node in nodes[:-1]] == depths(round_.parents)
        path = found.path()
        assert [node.place for node in path if node.place != FINAL] == [
            place for place, token in enumerate(round_.drafted) if token.verdict == "accepted"
        ]
        assert path[-1].place == FINAL


@given(st.integers(1, 20), st.integers(0, 20), st.floats(100, 1200))
@settings(max_examples=80, deadline=None)
def test_a_chain_is_a_line_that_breaks_within_the_width(k: int, accepted: int, width: float) -> None:
    accepted = min(accepted, k)
    verdicts = "a" * accepted + ("r" + "i" * (k - accepted - 1) if accepted < k else "")
    round_ = tree_round(tuple(range(-1, k - 1)), verdicts)
    found = lay_out(round_, width, 400)
    rows = sorted({node.y for node in found.nodes if node.place != FINAL})
    assert found.lines - 1 <= len(rows) <= found.lines, "the final token may have a line of its own"
    assert all(node.x + node.width <= max(width, 24 + Sizes().narrow) + 1e-6 for node in found.nodes)
    order = [(node.y, node.x) for node in found.nodes if node.place != FINAL]
    assert order == sorted(order)
    assert lay_out(round_, 5000, 400).lines == 1


@given(tree_rounds(), st.floats(150, 900), st.floats(40, 400), st.randoms(use_true_random=False))
@settings(max_examples=120, deadline=None)
def test_what_fits_never_scrolls_and_numbers_are_whole(
    made: list[Round], width: float, height: float, chance: random.Random
) -> None:
    for round_ in made:
        needs = [(chance.uniform(20, 150), chance.uniform(30, 60)) for _ in nodes_of(round_)]
        found = lay_out(round_, width, height, needs=needs)
        assert found.width <= width + 1e-6 and found.height <= height + 1e-6
        assert all(node.width + 0.6 >= need[1] for node, need in zip(found.nodes, needs, strict=True) if node.number)
        whole = lay_out(round_, width, height, full=True, needs=needs)
        assert all(node.words and node.width >= need[0] for node, need in zip(whole.nodes, needs, strict=True))


def test_columns_are_as_wide_as_their_words_and_long_ones_are_cut_first() -> None:
    round_ = tree_round((-1, -1, 0, 0, 2), "ariri")
    needs = [(30.0, 60.0), (30.0, 60.0), (90.0, 60.0), (40.0, 60.0), (30.0, 60.0), (30.0, 60.0)]
    found = lay_out(round_, 210, 200, needs=needs)
    by_depth = {node.depth: node.width for node in found.nodes}
    assert by_depth[1] > by_depth[0] and by_depth[0] >= 30 and not any(node.number for node in found.nodes
                                                                      if node.depth == 0)
    roomy = lay_out(round_, 400, 200, needs=needs)
    assert all(node.width >= need[0] for node, need in zip(roomy.nodes, needs, strict=True))
    assert all(node.number for node in roomy.nodes if node.judged)


def test_a_chain_in_a_low_space_is_one_line_and_in_full_one_line_of_two_line_boxes() -> None:
    round_ = tree_round(tuple(range(-1, 7)), "aaaaaaaa")
    low = lay_out(round_, 250, 36)
    assert low.lines == 1 and low.height <= 36 and low.width <= 250
    assert all(node.height == Sizes().one_line for node in low.nodes)
    full = lay_out(round_, 250, 36, full=True)
    assert full.lines == 1 and full.width > 250
    assert all(node.height == Sizes().two_lines and node.number and node.width >= Sizes().usual for node in full.nodes)


def test_64_nodes_are_seen_whole_and_judged_ones_keep_their_words() -> None:
    round_ = tree_round(WIDE, "r" * 2 + "a" + "i" * 61)
    fit = lay_out(round_, 260, 150)
    assert fit.height <= 150 + 1e-6 and fit.width <= 260 + 1e-6
    for node in fit.nodes:
        assert node.words or not node.judged
    assert all(node.height >= Sizes().one_line and node.width >= Sizes().narrow for node in fit.nodes if node.judged)
    full = lay_out(round_, 260, 150, full=True)
    assert all(node.words and node.height >= Sizes().one_line and node.width >= 60 for node in full.nodes)
    assert full.height > 150


def test_a_node_tells_q_p_verdict_and_the_probability_of_its_path() -> None:
    round_ = tree_round((-1, 0, 0), "ari")
    assert number_text(round_.drafted[0]) == "q 0.50"
    assert cumulative(round_, 1) == pytest.approx(0.25)
    words = node_tip(round_, 1)
    assert '" w1" · rejected' in words and "q 0.50" in words and "p 0.25" in words and "path down to it 0.25" in words
    assert "never judged" in node_tip(round_, 2) and "p not computed" in node_tip(round_, 2)
    assert "corrected" in node_tip(round_, FINAL)
    sure = tree_round((-1,), "r", q=None)
    assert number_text(sure.drafted[0]) == "c 0.50" and "point mass" in node_tip(sure, 0)
    assert "v 2.00×" in round_words(round_, 0.02) and "40.0 ms" in round_words(round_, None)
    assert nodes_of(round_)[-1].parent == 0


# -- painting -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", theme.CHOICES[1:])
def test_a_tree_is_painted_with_its_path_bright(view: TreeView, qapp, name: str) -> None:
    theme.apply(qapp, name)
    view.show_round(None, "nothing yet")
    blank = picture(view)
    view.show_round(tree_round(WIDE, "r" * 2 + "a" + "i" * 61))
    found = picture(view)
    assert found != blank and len(colours_in(found)) > 8
    assert view.text().count("\n") == 64  # 64 drafts and the final token
    assert '✓ " w2" q 0.50' in view.text()
    accepted = next(node for node in view.layout_.nodes if node.verdict == "accepted")
    origin = view._origin()
    inside = found.pixelColor(int(origin.x() + accepted.x + accepted.width - 6), int(origin.y() + accepted.y + 4))
    assert inside.name() == theme.current().accepted_tint
    view.show_round(tree_round(WIDE, "r" * 3 + "i" * 61))
    bare = picture(view)
    found_colours = {bare.pixelColor(x, y).name() for x in range(0, 280, 3) for y in range(0, 170, 3)}
    assert theme.current().accepted_tint not in found_colours
    theme.apply(qapp, "dark")


def test_verdicts_are_told_by_marks_not_by_colour_alone(view: TreeView, qtbot: QtBot) -> None:
    assert len({state.mark for state in STATES.values()}) == len(STATES)
    view.show_round(tree_round((-1, -1, 1, 1), "raii"))
    node = view.layout_.nodes
    assert [STATES[one.verdict].mark for one in node] == ["✕", "✓", "·", "·", "↻"]


def test_zoom_scrolls_and_the_keyboard_goes_along_the_tree(view: TreeView, qtbot: QtBot) -> None:
    view.show_round(tree_round(WIDE, "r" * 2 + "a" + "i" * 61))
    assert view.verticalScrollBar().maximum() == 0
    qtbot.keyClick(view, Qt.Key.Key_Plus)
    assert view.zoom == 1.0 and view.verticalScrollBar().maximum() > 0
    chosen: list[int] = []
    view.node_selected.connect(chosen.append)
    for key in (Qt.Key.Key_Right, Qt.Key.Key_Up, Qt.Key.Key_Up, Qt.Key.Key_Down, Qt.Key.Key_Right, Qt.Key.Key_Left):
        qtbot.keyClick(view, key)
    assert chosen == [2, 1, 0, 1, 14, 1]
    qtbot.keyClick(view, Qt.Key.Key_0)
    assert view.zoom == 0.0 and view.verticalScrollBar().maximum() == 0
    node = view.layout_.nodes[0]
    origin = view._origin()
    qtbot.mouseClick(view.viewport(), Qt.MouseButton.LeftButton,
                     pos=QPoint(int(origin.x() + node.x + 5), int(origin.y() + node.y + 5)))
    assert chosen[-1] == 0 and view.accessibleDescription().startswith('" w0" · rejected')


def test_hostile_text_and_empty_rounds_are_drawn(view: TreeView) -> None:
    drafted = tuple(DraftedToken(i, "ignored", text=text) for i, text in enumerate(("<b>x</b>", "\x00\n", "", "é" * 90, " ")))
    view.show_round(Round(0, 0.1, 0, 0.1, 0, 0, "x", (-1, 0, 0, 1, -1), drafted, None))
    picture(view)
    view.show_round(lookahead_round())
    picture(view)
    view.resize(12, 12)
    picture(view)
    view.show_round(Round(0, 0.1, 0, 0.1, 0))
    picture(view)


# -- following ------------------------------------------------------------------------------------------------


@pytest.fixture
def panel(qtbot: QtBot) -> TreePanel:
    made = TreePanel()
    qtbot.addWidget(made)
    made.resize(300, 180)
    made.show()
    return made


def test_the_panel_follows_the_newest_draft_and_stays_on_a_selected_round(panel: TreePanel) -> None:
    lane = filled([tree_round((-1, 0), "ar", index) for index in range(5)])
    lane.add(Round(5, 0.9, 0, 0.1, 0, final=FinalToken(1, "plain", " a")))
    assert newest_draft(lane) == 4
    assert panel.follow(lane, lambda: ONE_ROW) and panel.shown == (lane.generation, 4)
    assert not panel.follow(lane, lambda: ONE_ROW), "nothing is drawn anew where nothing is new"
    panel.pin(lane, 1, 1, lambda: ONE_ROW)
    assert panel.paused and panel.shown == (lane.generation, 1) and not panel.live.isChecked()
    assert panel.view.layout_.nodes[panel.view.current or 0].place == 1
    lane.add(tree_round((-1,), "r", 6))
    assert not panel.follow(lane, lambda: ONE_ROW) and panel.shown == (lane.generation, 1)
    panel.resume()
    assert panel.shown == (lane.generation, 6) and panel.live.isChecked()
    panel.live.click()
    assert panel.paused
    lane.restart("x", lane.settings, [])
    panel.follow(lane, lambda: ONE_ROW)
    assert not panel.paused and panel.shown is None and panel.live.isChecked()
    lane.add(tree_round((-1,), "a", 0))
    panel.follow(lane, lambda: None)
    assert "40.0 ms" in panel.line.mark.text


def test_following_for_long_keeps_nothing(panel: TreePanel, qapp) -> None:
    """Thousands of rounds later the panel holds what one round needs."""
    rng = random.Random(1)
    rounds = [tree_round(WIDE, "".join("r" if rng.random() < 0.5 else "i" for _ in WIDE), index) for index in range(40)]
    lane = filled(rounds)

    def follow(count: int) -> None:
        for index in range(count):
            lane.rounds.append(rounds[index % len(rounds)])
            panel.follow(lane, lambda: ONE_ROW)
            panel.view.viewport().repaint()
        del lane.rounds[40:]
        gc.collect()

    follow(10)
    tracemalloc.start()
    try:
        follow(10)
        before = tracemalloc.get_traced_memory()[0]
        follow(40)
        after = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert after - before < 60_000, f"{after - before} bytes more"


def test_a_lane_panel_opens_its_tree_without_moving_anything_else(qtbot: QtBot) -> None:
    race = make_race(2)
    for round_ in make_rounds(12, 4, seed=3):
        race.apply(LaneRound(1, 1, round_))
    made = LanePanel(race, 1)
    qtbot.addWidget(made)
    made.resize(320, 620)
    with qtbot.waitExposed(made):
        made.show()
    told: list[bool] = []
    made.tree_toggled.connect(told.append)
    place = made._head.geometry()
    made._fill_menu()
    next(action for action in made.menu.actions() if action.text().startswith("Live draft tree")).trigger()
    assert told == [True] and made.tree_shown and made.tree is not None
    assert made.tree.shown == (made.lane.generation, 11)
    qtbot.waitUntil(lambda: made.tree is not None and made.tree.height() > 100)
    assert made._head.geometry() == place
    height = made.tree.height()
    race.apply(LaneRound(1, 1, tree_round(WIDE, "i" * 64, 12)))
    assert made.refresh_tree() and not made.refresh_tree()
    qtbot.wait(1)
    assert made.tree.height() == height, "the tree's size does not follow its content"
    made.view.setFocus()
    qtbot.keyClick(made.view, Qt.Key.Key_Home, Qt.KeyboardModifier.ControlModifier)
    shown: list[tuple[int, int]] = []
    made.token_selected.connect(lambda *pair: shown.append(pair))
    made.tree.view.setFocus()
    qtbot.keyClick(made.tree.view, Qt.Key.Key_Right)
    assert shown and made.tree.paused
    made.toggle_tree()
    assert told == [True, False] and not made.tree_shown and not made.refresh_tree()


def test_a_plain_lane_has_no_tree(qtbot: QtBot) -> None:
    made = LanePanel(make_race(2), 0)
    qtbot.addWidget(made)
    made.show()
    made.toggle_tree()
    made._fill_menu()
    assert not made.tree_shown and [action.text() for action in made.menu.actions()] == ["Copy output", "Command for a server…"]
    assert LaneModel().plain


def test_the_accepted_path_is_cut_last() -> None:
    round_ = tree_round((-1, -1, 0, 0), "arar")
    needs = [(80.0, 60.0), (110.0, 60.0), (70.0, 60.0), (110.0, 60.0), (30.0, 60.0)]
    found = lay_out(round_, 240, 200, needs=needs)
    assert found.width <= 240 and all(node.width >= need[0] for node, need in zip(found.nodes, needs, strict=True)
                                      if node.bright)
