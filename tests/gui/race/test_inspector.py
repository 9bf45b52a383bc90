"""The inspector: each rule's formula with its numbers, and words for what is missing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PySide6.QtCore import QPoint, Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from specview.decoding.ledger import DraftedToken, FinalToken, Round
from specview.gui.parts import theme
from specview.gui.race.inspector import GONE, HINT, Inspector
from specview.gui.state.display_text import quoted, spelled
from specview.gui.state.inspection import inspect
from specview.gui.state.playhead import Playhead
from specview.gui.state.view_model import FINAL, LaneModel, RaceModel
from tests.gui.views_data import filled_lane, lookahead_round

P_TOP = ((1, " path", 0.58), (2, " file", 0.16), (3, " None", 0.07))
Q_TOP = ((3, " None", 0.31), (1, " path", 0.22), (4, " the", 0.1))


def lane_of(rule: str, *drafted: DraftedToken, final: FinalToken | None = None, **sampling: object) -> LaneModel:
    """One round of one rule."""
    lane = LaneModel("draft-model", {"method": "draft-model", "rule": rule, "temperature": 0.7, **sampling})
    final = final or FinalToken(1, "corrected", " path", p=0.6, margin=1.25, p_top=P_TOP, entropy=1.5)
    lane.add(Round(7, 0.5, 0.0074, 0.0552, 0.0004, drafted=drafted, final=final))
    return lane


def rejected(**fields: object) -> DraftedToken:
    """The mock's rejected token."""
    given_: dict[str, object] = {"q": 0.31, "p": 0.07, "text": " None", "p_top": P_TOP, "q_top": Q_TOP, "entropy": 1.5}
    return DraftedToken(3, "rejected", **{**given_, **fields})  # type: ignore[arg-type]


@pytest.fixture
def inspector(qtbot: QtBot) -> Iterator[Inspector]:
    """An inspector on screen."""
    made = Inspector()
    qtbot.addWidget(made)
    made.resize(290, 700)
    with qtbot.waitExposed(made):
        made.show()
    yield made
    made.grab()


def test_empty_inspector_has_a_hint(inspector: Inspector) -> None:
    assert HINT in inspector.text()
    assert not inspector.show_token(LaneModel(), 0, 0)
    lane = lane_of("greedy", rejected(accept=0.0))
    assert inspector.show_token(lane, 0, 0)
    inspector.clear()
    assert HINT in inspector.text()


def test_rejection_shows_ratio_draw_and_residual(inspector: Inspector) -> None:
    ignored = DraftedToken(5, "ignored", q=0.4, text=" x")
    token = rejected(accept=0.07 / 0.31, u=0.61, residual_top=((1, " path", 0.36), (2, " file", 0.1)))
    lane = lane_of("rejection", token, ignored, ignored)
    assert inspector.show_token(lane, 0, 0)
    text = inspector.text()
    for part in ("Round 7 · position 0", "draft 1 of 3", "verify 55.2 ms", "draft 7.4 ms", "min(1, 0.07 / 0.31) = 0.23",
                 "u = 0.61 → rejected", "left of 0.23", "max(0, p - q)", '" path" 0.36', '" path" corrected',
                 "2 later drafts ignored: never judged", "temperature 0.7", "temperature 1, no filters"):
        assert part in text, part
    found = inspector.inspection
    assert found is not None and found.bar is not None
    assert found.bar.accept == pytest.approx(0.07 / 0.31) and found.bar.mark == 0.61
    rows = {row.id: row for row in found.rows}
    assert set(rows) == {1, 2, 3, 4}
    assert (rows[3].p, rows[3].q, rows[3].role) == (0.07, 0.31, "rejected")
    assert rows[1].role == "corrected" and rows[4].p is None and rows[2].q is None
    assert inspector.show_token(lane, 0, 1)
    assert "never judged" in inspector.text() and not inspector._draw.isVisible()


NO_FILTERS = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
FILTERED = {"temperature": 1.0, "top_k": 40, "top_p": 0.9, "min_p": 0.05}


@pytest.mark.parametrize(("rule", "fields", "sampling", "parts", "mark"), [
    # what the mock-up's rejected token says under each rule; mark: where the draw is drawn, False where nothing is
    ("rejection", {"accept": 0.2, "u": 0.5}, FILTERED, ["temperature 1, top-k 40, top-p 0.9, min-p 0.05"], 0.5),
    ("rejection", {"q": 1.0, "accept": 0.07, "u": 0.5, "q_top": ()}, {}, ["q = 1", "without probabilities"], 0.5),
    ("rejection", {"accept": 0.2, "u": 0.5, "p_top": (), "q_top": (), "entropy": None}, {},
     ["observation was light", "not recorded"], 0.5),
    ("greedy", {"accept": 0.0, "margin": 0.44}, {"temperature": 0.0},
     ["x is the argmax of p", 'x = " None"', 'argmax p = " path"', "= 0.44", "→ rejected", "temperature 0"], False),
    ("match", {"accept": 0.07, "draw": 1}, {}, ['y = " path"', "the draw y stands instead"], None),
    ("match", {"accept": 0.07, "draw": 999}, {}, ["y = token 999"], None),
    ("typical", {"accept": 0.0, "threshold": 0.08}, {},
     ["min(ε, δ exp(-H(p)))", "threshold 0.08", "p(x) = 0.07", "not exact", "drawn from p instead"], 0.08),
    ("naive", {"accept": 0.2, "u": 0.9}, {}, ["teaching bug", "not from max(0, p - q)"], 0.9),
])  # fmt: skip
def test_each_rule_has_its_formula_with_the_tokens_numbers(
    inspector: Inspector, rule: str, fields: dict, sampling: dict, parts: list[str], mark: float | bool | None
) -> None:
    inspector.show_token(lane_of(rule, rejected(**fields), **sampling), 0, 0)
    text, bar = inspector.text(), inspector.inspection.bar  # type: ignore[union-attr]
    for part in parts:
        assert part in text, part
    assert (bar.mark if bar is not None else False) == mark and inspector._draw.isVisible() == (mark is not False)


def test_at_temperature_one_without_filters_the_bars_are_the_decisions_own(inspector: Inspector) -> None:
    inspector.show_token(lane_of("rejection", rejected(accept=0.2, u=0.5), **NO_FILTERS), 0, 0)
    assert "no filters" not in inspector.text()


@pytest.mark.parametrize(
    ("kind", "words"),
    [("corrected", "corrects the rejected"), ("bonus", "after all 1 drafts were accepted"),
     ("plain", "from the target alone")],
)
def test_final_tokens(inspector: Inspector, kind: str, words: str) -> None:
    drafted = {"corrected": (rejected(accept=0.2, u=0.9),), "bonus": (DraftedToken(3, "accepted", text=" None"),),
               "plain": ()}[kind]
    final = FinalToken(1, kind, " path", p=0.6, margin=1.25, p_top=P_TOP, entropy=1.5)  # type: ignore[arg-type]
    inspector.show_token(lane_of("rejection", *drafted, final=final), 0, FINAL)
    text = inspector.text()
    assert words in text and "p = 0.60" in text and "= 1.25" in text and "1.50 nats" in text


def test_model_text_is_never_markup(inspector: Inspector) -> None:
    token = rejected(text="<b>\n\x00", accept=0.2, u=0.9, p_top=((3, "<b>\n\x00", 0.5),))
    inspector.show_token(lane_of("match", token), 0, 0)
    assert "<b>↵‹NUL›" in inspector.text()


@given(st.sampled_from(["greedy", "rejection", "match", "typical", "naive", "auto", "unheard-of"]),
       st.integers(0, 99), st.booleans())
@settings(max_examples=40, deadline=None)
def test_every_token_can_be_inspected(rule: str, seed: int, light: bool) -> None:
    lane = filled_lane(6, rule=rule, seed=seed)
    if light:
        bare = LaneModel("x", lane.settings)
        for round_ in lane.rounds:
            drafted = tuple(DraftedToken(t.id, t.verdict) for t in round_.drafted)
            final = None if round_.final is None else FinalToken(round_.final.id, round_.final.kind)
            bare.add(Round(round_.index, round_.t, 0, 0, 0, drafted=drafted, final=final))
        lane = bare
    for token in lane.tokens:
        found = inspect(lane, token.round_index, token.token_index)
        assert found is not None and found.accept
        ids = [row.id for row in found.rows]
        assert len(ids) == len(set(ids)) <= 8
        assert any(row.role for row in found.rows)
        position = f"position {token.position}"
        assert token.position is None or found.title.endswith(position)


def test_both_themes_and_sizes(inspector: Inspector) -> None:
    app = QApplication.instance()
    assert isinstance(app, QApplication)
    deep = tuple(DraftedToken(i, "accepted", text=f" word{i}") for i in range(30))
    trees = LaneModel("x", {"method": "x", "rule": "greedy", "temperature": 0.0})
    trees.add(lookahead_round(wide=15, levels=6, guesses=15))
    trees.add(Round(1, 0.2, 0, 0.1, 0, drafter="t", parents=tuple(range(-1, 29)), drafted=deep, final=FinalToken(1, "bonus", "x")))
    chains = filled_lane(10)
    try:
        for name, scale in (("light", 1.0), ("dark", 2.0), ("light", 0.8)):
            theme.apply(app, name, scale)
            shown = [(chains, token.round_index, token.token_index) for token in chains.tokens[:8]]
            for lane, round_index, place in (*shown, (trees, 0, 0), (trees, 1, 20), (trees, 1, FINAL)):
                assert inspector.show_token(lane, round_index, place)
                for width in (180, 290, 600) if lane is trees else ():
                    inspector.resize(width, 900)
                    inspector._area.widget().grab()
            inspector.grab()
    finally:
        theme.apply(app, "dark", 1.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [("\n", "newline"), ("    ", "4 spaces"), ("\t", "tab"), (" ", "space"), ("\n\n  ", "2 newlines, 2 spaces"), ("\r\n", "carriage return, newline"),
     ("\u00a0", "no-break space"), ("\x85", "next line"), ("\u2028", "line separator"), ("\x0b\x0c", "vertical tab, form feed"), ("", '""'), (" a", '" a"'), ("\n" * 1000, "1000 newlines"), (" \n" * 500, "space, newline, spa…ine, space, newline")],
)  # fmt: skip
def test_blank_tokens_are_named(text: str, words: str) -> None:
    assert quoted(text) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [("\n", "newline"), ("\n    return x", 'newline, 4 spaces, "return x"'), (" word", '" word"'), ("  a b ", '2 spaces, "a b", space'),
     ("\x00a\x1b[0m", 'null, "a", escape, "[0m"'), ("\u202eevil\u200b", 'right-to-left override, "evil", zero width space'),
     ("\x01\x01", "2 SOH control characters"), ("a\u00a0b", '"a", no-break space, "b"'), ("\ud800", "U+D800"), ("", ""), ("     ", "5 spaces")],
)  # fmt: skip
def test_what_cannot_be_seen_is_spelled_out(text: str, words: str) -> None:
    assert spelled(text) == words


@given(st.text(st.characters(codec="utf-8")))
@settings(max_examples=100, deadline=None)
def test_whatever_is_spelled_out_can_be_seen(text: str) -> None:
    assert all(char.isprintable() or char in "\u200c\u200d" for char in spelled(text, 10**6))


def test_a_blank_token_is_named_where_it_is_inspected(qtbot: QtBot) -> None:
    lane = LaneModel("draft-model", {"method": "draft-model", "rule": "greedy"})
    top = ((5, "\n", 0.7), (6, "    ", 0.2), (7, "x", 0.1))
    lane.add(Round(0, 0.1, 0, 0.1, 0, drafted=(DraftedToken(6, "rejected", text="    ", p=0.2, p_top=top),),
                   final=FinalToken(5, "corrected", "\n", p=0.7, p_top=top)))  # fmt: skip
    shown = Inspector()
    qtbot.addWidget(shown)
    shown.show_token(lane, 0, 0)
    words = shown._bars.accessibleName() + shown.accessibleDescription()
    assert "4 spaces" in words and "newline" in words


# -- opened beside the text --------------------------------------------------------------------------------


def test_it_closes_by_its_button_and_by_escape(inspector: Inspector, qtbot: QtBot) -> None:
    with qtbot.waitSignal(inspector.closed):
        qtbot.mouseClick(inspector._close, Qt.MouseButton.LeftButton)
    assert inspector._close.accessibleName() == "Close the inspector"
    inspector.show_token(lane_of("rejection", rejected(accept=0.2, u=0.9)), 0, 0)
    inspector._bars.setFocus()
    with qtbot.waitSignal(inspector.closed):
        qtbot.keyClick(inspector._bars, Qt.Key.Key_Escape)


def test_a_branch_is_asked_for_with_the_candidate_picked(inspector: Inspector, qtbot: QtBot) -> None:
    lane = lane_of("rejection", rejected(accept=0.2, u=0.9))
    asked: list[tuple[int, int, object]] = []
    inspector.branch_requested.connect(lambda *what: asked.append(what))
    assert inspector._branch.isHidden(), "nothing to go on from yet"
    inspector.branch()
    inspector.show_token(lane, 0, 0)
    qtbot.mouseClick(inspector._branch, Qt.MouseButton.LeftButton)
    assert asked == [(0, 0, None)] and inspector.lane is lane
    bars = inspector._bars
    bars.setFocus()
    qtbot.keyClick(bars, Qt.Key.Key_Down)
    qtbot.keyClick(bars, Qt.Key.Key_Down)
    second = bars.rows[1]
    assert quoted(second.text) in bars.accessibleDescription() and second.text in inspector._branch.text()
    for press in (Qt.Key.Key_Return, Qt.Key.Key_B):
        qtbot.keyClick(bars, press)
        assert asked.pop() == (0, 0, second.id)
    qtbot.keyClick(bars, Qt.Key.Key_Up)
    qtbot.mouseClick(bars, Qt.MouseButton.LeftButton, pos=QPoint(5, bars._row_height() * 3 + 4))
    assert bars.chosen is bars.rows[3]
    inspector.grab()
    inspector.show_token(lane, 0, FINAL)
    assert bars.chosen is None and inspector._branch.text().startswith("Continue from here")


def test_a_token_that_was_chosen_stays_while_the_pointer_goes_over_others(inspector: Inspector) -> None:
    lane = lane_of("rejection", rejected(accept=0.2, u=0.9))
    assert inspector.show_token(lane, 0, FINAL, passing=True) and "corrected token" in inspector.text()
    assert inspector.show_token(lane, 0, 0, passing=True) and "draft 1 of 1" in inspector.text()
    assert inspector.show_token(lane, 0, 0)
    assert not inspector.show_token(lane, 0, FINAL, passing=True) and "draft 1 of 1" in inspector.text()
    inspector.follow()
    assert not inspector.show_token(lane, 0, FINAL, passing=True)
    assert inspector.show_token(lane, 0, FINAL) and "corrected token" in inspector.text()


def test_it_follows_a_replay(inspector: Inspector) -> None:
    race = RaceModel()
    lane = filled_lane(6, alpha=0.4)
    race.lanes = [lane]
    place = next(i for i, round_ in enumerate(lane.rounds) if i > 1 and any(t.verdict == "rejected" for t in round_.drafted))
    token = next(i for i, t in enumerate(lane.rounds[place].drafted) if t.verdict == "rejected")
    inspector.show_token(lane, place, token)
    whole, width = inspector.text(), inspector.sizeHint().width()
    head = Playhead(race.lanes)
    head.seek(lane.rounds[place - 1].t)
    inspector.follow()
    assert GONE in inspector.text() and inspector.text().startswith(f"Round {place} ")
    assert inspector.sizeHint().width() == width and inspector._branch.isHidden()
    seen = []
    while GONE in inspector.text() or "not judged yet" in inspector.text():
        head.step_phase(1)
        inspector.follow()
        seen.append("not judged yet" in inspector.text())
    assert any(seen), "proposed, and the target has not come to it"
    head.to_end()
    inspector.follow()
    assert inspector.text() == whole and not inspector._branch.isHidden()
    lane.restart("x", {}, [])
    inspector.follow()
    assert HINT in inspector.text()
