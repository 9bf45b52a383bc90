"""Draft trees and lookahead windows: text, ghosts, places, and what the inspector says of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytestqt.qtbot import QtBot

from specview.decoding.ledger import DraftedToken, FinalToken, Rider, Round, RunRecord, depths
from specview.decoding.metrics import fold
from specview.gui.lanes.token_view import TokenView
from specview.gui.race.inspector import Inspector
from specview.gui.state.inspection import inspect, last_rejected, siblings, standing, window_rows
from specview.gui.state.token_looks import TokenLooks
from specview.gui.state.tree_layout import MAX_IGNORED, ROOT, outline
from specview.gui.state.view_model import FINAL, SHOWN_IGNORED, LaneModel, drawn
from tests.gui.views_data import lookahead_round, make_rounds


@st.composite
def tree_rounds(draw: st.DrawFn) -> list[Round]:
    """Trees whose siblings are tried in turn: one path is accepted, rejected siblings before it, the rest ignored."""
    out = []
    for index in range(draw(st.integers(1, 6))):
        count = draw(st.integers(0, 30))
        parents = tuple(draw(st.integers(-1, place - 1)) for place in range(count))
        verdicts = ["ignored"] * count
        at, ended = -1, False
        while not ended:
            ended = True
            for place in (p for p in range(count) if parents[p] == at):
                if draw(st.booleans()):
                    verdicts[place], at, ended = "accepted", place, False
                    break
                verdicts[place] = "rejected"
        kind = "plain" if not count else "corrected" if "rejected" in verdicts and any(
            verdicts[p] == "rejected" for p in range(count) if parents[p] == at) else "bonus"
        drafted = tuple(DraftedToken(place, verdict, text=f" {place}") for place, verdict in enumerate(verdicts))
        out.append(Round(index, 0.1 * (index + 1), 0.01, 0.08, 0.01, drafter="tree", parents=parents if count else None,
                         drafted=drafted, final=FinalToken(99, kind, " end")))  # type: ignore[arg-type]
    return out


def filled(rounds: list[Round], method: str = "x", rule: str = "greedy") -> LaneModel:
    lane = LaneModel(method, {"method": method, "rule": rule, "temperature": 0.0})
    for round_ in rounds:
        lane.add(round_)
    return lane


@given(tree_rounds())
@settings(max_examples=120, deadline=None)
def test_a_lane_of_trees_is_a_fold_of_its_rounds(made: list[Round]) -> None:
    lane = filled(made)
    record = RunRecord("x", {}, rounds=made)
    assert lane.text == record.text and lane.emitted == len(record.token_ids)
    assert [t.position for t in lane.tokens if not t.ghost] == list(range(lane.emitted))
    assert lane.metrics() == fold(made)
    first = 0
    for index, round_ in enumerate(made):
        shown, folded = drawn(round_)
        assert sorted(shown + folded) == list(range(round_.k))
        assert all(round_.drafted[place].verdict == "ignored" for place in folded)
        mine = [token for token in lane.tokens if token.round_index == index]
        assert len(mine) == len(shown) + bool(folded) + 1
        assert sum(token.folded for token in mine) == len(folded)
        if round_.parents is not None:
            assert not any(token.kind == "ignored" and not token.folded for token in mine)
        deep = depths(round_.parents or ())
        for place, token in enumerate(round_.drafted):
            at = lane.index_of(index, place)
            assert at is not None
            assert lane.tokens[at].token_index == (folded[0] if place in folded else place)
            assert lane.position_of(index, place) == first + deep[place]
            if token.verdict == "accepted":
                assert lane.tokens[at].position == first + deep[place]
        at = lane.index_of(index, FINAL)
        assert at is not None and lane.tokens[at].position == lane.position_of(index, FINAL)
        assert lane.index_of(index, round_.k) is None
        first += len(round_.emitted)


@given(tree_rounds(), st.sampled_from(["greedy", "rejection", "match", "typical", "naive"]))
@settings(max_examples=80, deadline=None)
def test_every_draft_of_a_tree_can_be_inspected(made: list[Round], rule: str) -> None:
    lane = filled(made, rule=rule)
    for index, round_ in enumerate(made):
        for place, token in enumerate(round_.drafted):
            found = inspect(lane, index, place)
            assert found is not None and found.accept and found.title.endswith(f"position {lane.position_of(index, place)}")
            if token.verdict == "rejected":
                stands = standing(round_, place)
                assert stands is not None
                accepted = [i for i in siblings(round_, place) if round_.drafted[i].verdict == "accepted"]
                assert stands is (round_.drafted[accepted[0]] if accepted else round_.final)
                words = "".join(piece for line in found.correction for piece, _ in line)
                assert ("a later sibling" in words) == bool(accepted)
        found = inspect(lane, index, FINAL)
        assert found is not None
        said = "".join(piece for line in found.accept for piece, _ in line)
        for token in last_rejected(round_):
            assert f'"{token.text}"' in said
        made_ = outline(round_, 240.0, 0)
        lines = [node for node in made_.nodes if node.place != FINAL]
        assert [node.y for node in made_.nodes] == sorted({node.y for node in made_.nodes}) and made_.nodes[-1].y < made_.height
        assert sorted(n.verdict for n in lines if n.judged) == sorted(t.verdict for t in round_.drafted if t.verdict != "ignored")
        ignored = sum(t.verdict == "ignored" for t in round_.drafted)
        assert len(lines) == round_.k or ignored > MAX_IGNORED
        for node in lines:
            assert node.parent == ROOT or made_.nodes[node.parent].depth == node.depth - 1
            assert node.parent != ROOT or node.depth == 0 or not node.judged


def test_a_long_chain_folds_what_was_never_judged() -> None:
    drafted = [DraftedToken(1, "accepted", text="a"), DraftedToken(2, "rejected", text="b")]
    drafted += [DraftedToken(3, "ignored", text="c")] * 46
    lane = filled([Round(0, 0.1, 0, 0.1, 0, drafter="n", drafted=tuple(drafted), final=FinalToken(1, "corrected", "d"))])
    assert len(lane.tokens) == 2 + SHOWN_IGNORED + 1 + 1
    marker = lane.tokens[-2]
    assert (marker.text, marker.folded, marker.position) == ("+40", 40, None)
    assert lane.index_of(0, 30) == len(lane.tokens) - 2
    assert lane.text == "ad"
    # one more than is shown is shown too: its count would take as much room
    drafted = drafted[: 2 + SHOWN_IGNORED + 1]
    lane = filled([Round(0, 0.1, 0, 0.1, 0, drafter="n", drafted=tuple(drafted), final=FinalToken(1, "corrected", "d"))])
    assert not any(token.folded for token in lane.tokens)


def test_a_lookahead_round_is_readable_in_the_text(qtbot: QtBot) -> None:
    lane = filled([lookahead_round(0, guesses=15, levels=4)], "lookahead")
    ghosts = [token for token in lane.tokens if token.ghost]
    assert [token.kind for token in ghosts] == ["rejected", "rejected", "ignored"]
    assert ghosts[-1].folded == 60 - 4
    view = TokenView(lane)
    view.set_looks(TokenLooks("all"))
    qtbot.addWidget(view)
    view.resize(400, 200)
    with qtbot.waitExposed(view):
        view.show()
    view.refresh()
    assert view.select_token(0, ghosts[-1].token_index)
    assert "56 more ignored drafts" in view.accessibleDescription()
    assert view.selected_text() == ""
    view.set_looks(TokenLooks(off=frozenset({"rejected"})))
    assert not view.select_token(0, ghosts[-1].token_index)
    view.grab()


def test_the_window_is_a_grid_by_its_parents() -> None:
    """Level 0 is the chain after the last token; every further level hangs on the one below in its column."""
    round_ = lookahead_round(wide=5, levels=3)
    rows = window_rows(round_.riders)
    assert len(rows) == 5 and all(len(row) == 3 for row in rows)
    assert rows[0][0] == ""  # the context's last token is no rider
    texts = [rider.text for rider in round_.riders]
    assert [row[0] for row in rows[1:]] == texts[:4]
    assert [row[1] for row in rows] == texts[4:9]
    assert [row[2] for row in rows] == texts[9:]
    assert window_rows(()) == []
    short = window_rows((Rider(5, "a"), Rider(6, "", 0)))  # level 0 alone, while the window fills
    assert short == [[""], ["a"], ["token 6"]]


@pytest.fixture
def inspector(qtbot: QtBot) -> Inspector:
    made = Inspector()
    qtbot.addWidget(made)
    made.resize(290, 700)
    with qtbot.waitExposed(made):
        made.show()
    return made


def test_inspector_shows_tree_window_and_drafter(inspector: Inspector) -> None:
    lane = filled([lookahead_round(guesses=15, levels=4)], "x-cascade")
    assert inspector.show_token(lane, 0, 0)
    text = inspector.text()
    for part in ("drafted by lookahead", "draft 1 of 60 · depth 1, sibling 1 of 15", "Draft tree of this round",
                 "without 56 ignored drafts", "accepted: a later sibling", "Window of guesses", "+0: last token",
                 "56 drafts of the tree ignored"):
        assert part in text, part
    assert [node.depth for node in inspector._tree.layout_.nodes[:4]] == [0, 0, 1, 2]
    assert inspector._tree.layout_.nodes[inspector._tree.current or 0].place == 0
    assert inspector._window.levels == 4 and len(inspector._window.rows) == 7
    inspector.grab()
    assert inspector.show_token(lane, 0, FINAL)
    assert "corrects the rejected" in inspector.text()
    chain = filled(make_rounds(2))
    assert inspector.show_token(chain, 0, 0)
    assert "tree" not in inspector.text() and "Window" not in inspector.text()
    assert not inspector._tree.isVisible() and not inspector._window.isVisible()


def test_a_whole_path_gives_a_bonus(inspector: Inspector) -> None:
    lane = filled([lookahead_round(levels=3, accepted=3)], "lookahead")
    assert inspector.show_token(lane, 0, FINAL)
    assert "after a path of 3 accepted drafts to its end" in inspector.text()
    assert "drafted by" not in inspector.text()  # the lane's own method drafted


def test_ignored_drafts_of_a_tree_say_why(inspector: Inspector) -> None:
    lane = filled([lookahead_round()], "lookahead")
    assert inspector.show_token(lane, 0, 1)
    assert "never judged" in inspector.text() and "went another way" in inspector.text()


def test_model_text_in_trees_and_windows_is_never_markup(inspector: Inspector) -> None:
    bad = "<b>\n\x00"
    drafted = (DraftedToken(1, "rejected", text=bad), DraftedToken(2, "accepted", text=bad))
    round_ = Round(0, 0.1, 0, 0.1, 0, drafter="t", parents=(-1, -1), drafted=drafted,
                   final=FinalToken(3, "bonus", bad), riders=(Rider(4, bad, -1),))
    assert inspector.show_token(filled([round_]), 0, 0)
    assert inspector.text().count("<b>↵‹NUL›") >= 4
    inspector.grab()
