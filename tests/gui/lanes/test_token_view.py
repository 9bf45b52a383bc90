"""The token view: painting, selection, keyboard, replays, awkward text."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator

import pytest
from PySide6.QtCore import QEvent, QPoint, Qt
from PySide6.QtGui import QContextMenuEvent, QHelpEvent, QImage
from PySide6.QtWidgets import QApplication, QMenu, QToolTip
from pytestqt.qtbot import QtBot

from specview.decoding.ledger import DraftedToken, FinalToken, Round
from specview.gui.lanes.token_view import TokenView
from specview.gui.parts import theme
from specview.gui.race.legend import Legend
from specview.gui.state.display_text import tooltip
from specview.gui.state.playhead import Playhead
from specview.gui.state.token_looks import SWITCHED, TokenLooks
from specview.gui.state.token_words import count_words, thrown_away
from specview.gui.state.view_model import LaneModel
from tests.gui.views_data import filled_lane, make_rounds, state_of

ALL, HIDDEN = TokenLooks("all"), TokenLooks(off=frozenset({"rejected"}))
AWKWARD = (
    "<b>bold</b> & <img src=x> %s {x}\n\t\tTabs\r\n日本語のとても長いテキスト שלום עולם مرحبا 👩‍👩‍👧 👍🏽 e\u0301 "
    "a\x00b\x1b[31m\x7f\x85\u202eevil\u200b\u2028 \ufffd ok\n\n   \n" + "x" * 300
)


def view(qtbot: QtBot, lane: LaneModel, width: int = 420, height: int = 300, looks: TokenLooks = ALL) -> TokenView:
    made = TokenView(lane)
    made.set_looks(looks)
    qtbot.addWidget(made)
    made.resize(width, height)
    made.refresh()
    with qtbot.waitExposed(made):
        made.show()
    return made


def test_copy_gives_the_joined_output(qtbot: QtBot) -> None:
    lane = filled_lane(25)
    shown = view(qtbot, lane)
    shown.copy()
    assert QApplication.clipboard().text() == lane.text
    qtbot.keyClick(shown, Qt.Key.Key_A, Qt.KeyboardModifier.ControlModifier)
    assert shown.selected_text() == lane.text
    qtbot.keyClick(shown, Qt.Key.Key_C, Qt.KeyboardModifier.ControlModifier)
    assert QApplication.clipboard().text() == lane.text
    for looks in HIDDEN, ALL:
        shown.set_looks(looks)
        assert shown.selected_text() == lane.text


def test_drag_selects_characters(qtbot: QtBot) -> None:
    lane = LaneModel()
    drafted = (DraftedToken(1, "accepted", text="hello"), DraftedToken(2, "rejected", text=" nope"))
    lane.add(Round(0, 0.1, 0, 0.1, 0, drafted=drafted, final=FinalToken(3, "corrected", " world")))
    shown = view(qtbot, lane, 600)
    cell, y = shown.lines.styles.cell, 12 + shown.lines.styles.line_height // 2
    start, stop = QPoint(round(12 + 2 * cell), y), QPoint(590, y)
    qtbot.mousePress(shown.viewport(), Qt.MouseButton.LeftButton, pos=start)
    qtbot.mouseMove(shown.viewport(), stop)
    qtbot.mouseRelease(shown.viewport(), Qt.MouseButton.LeftButton, pos=stop)
    # QTest moves without a button; do what a drag does.
    shown._select(shown._anchor, shown._place_at(stop))
    assert shown.selected_text() == "llo world"


def test_click_hover_and_keys_name_tokens(qtbot: QtBot) -> None:
    lane = filled_lane(12)
    shown = view(qtbot, lane)
    shown.verticalScrollBar().setValue(0)
    shown.setFocus()
    seen: list[tuple[int, int]] = []
    shown.token_selected.connect(lambda r, t: seen.append((r, t)))
    qtbot.keyClick(shown, Qt.Key.Key_Home, Qt.KeyboardModifier.ControlModifier)
    for _ in range(6):
        qtbot.keyClick(shown, Qt.Key.Key_Right)
    assert seen == [(t.round_index, t.token_index) for t in lane.tokens[:7]]
    qtbot.keyClick(shown, Qt.Key.Key_Left)
    assert seen[-1] == (lane.tokens[5].round_index, lane.tokens[5].token_index)
    qtbot.keyClick(shown, Qt.Key.Key_End, Qt.KeyboardModifier.ControlModifier)
    assert seen[-1] == (lane.tokens[-1].round_index, lane.tokens[-1].token_index)
    assert shown.accessibleDescription()
    before = shown.current()
    for key in (Qt.Key.Key_Up, Qt.Key.Key_PageUp, Qt.Key.Key_Down, Qt.Key.Key_PageDown, Qt.Key.Key_Home, Qt.Key.Key_End):
        qtbot.keyClick(shown, key)
        assert shown.current() is not None
    assert shown.current() is not None and before is not None
    shown.verticalScrollBar().setValue(0)
    hovered: list[tuple[int, int]] = []
    shown.token_hovered.connect(lambda r, t: hovered.append((r, t)))
    fragment = next(f for f in shown.lines.layout.lines[0] if f.kind == "word")
    point = QPoint(round(12 + fragment.x + fragment.width / 2), 12 + shown.lines.styles.line_height // 2)
    qtbot.mouseMove(shown.viewport(), QPoint(1, 1))
    qtbot.mouseMove(shown.viewport(), point)
    qtbot.waitUntil(lambda: bool(hovered), timeout=1000)
    token = lane.tokens[fragment.token]
    assert hovered[-1] == (token.round_index, token.token_index)
    qtbot.mouseClick(shown.viewport(), Qt.MouseButton.LeftButton, pos=point)
    assert seen[-1] == hovered[-1] == shown.current()


def test_up_and_down_keep_moving(qtbot: QtBot) -> None:
    shown = view(qtbot, filled_lane(20))
    shown.setFocus()
    qtbot.keyClick(shown, Qt.Key.Key_Home, Qt.KeyboardModifier.ControlModifier)
    for _ in range(len(shown.lines.layout.lines) + 5):
        qtbot.keyClick(shown, Qt.Key.Key_Down)
    assert shown._current is not None
    last_line = shown.lines.layout.fragments_of(shown._current)[-1][0]
    assert last_line >= len(shown.lines.layout.lines) - 2
    for _ in range(len(shown.lines.layout.lines) + 5):
        qtbot.keyClick(shown, Qt.Key.Key_Up)
    assert shown.lines.layout.fragments_of(shown._current)[0][0] == 0


def test_there_is_nothing_below_a_text_that_ends_in_empty_lines(qtbot: QtBot) -> None:
    lane = LaneModel()
    lane.add(Round(0, 0.1, 0, 0.1, 0, final=FinalToken(3, "plain", "end\n\n")))
    shown = view(qtbot, lane)
    shown._set_current(0)
    for key in (Qt.Key.Key_Down, Qt.Key.Key_PageDown, Qt.Key.Key_Up):
        qtbot.keyClick(shown, key)
    assert shown.current() == (0, -1)


def test_hidden_ghosts_are_skipped(qtbot: QtBot) -> None:
    lane = filled_lane(12, alpha=0.3)
    shown = view(qtbot, lane)
    ghost = next(t for t in lane.tokens if t.ghost)
    assert shown.select_token(ghost.round_index, ghost.token_index)
    shown.set_looks(HIDDEN)
    assert shown.current() is None
    assert not shown.select_token(ghost.round_index, ghost.token_index)
    shown.setFocus()
    qtbot.keyClick(shown, Qt.Key.Key_Home, Qt.KeyboardModifier.ControlModifier)
    walked = [shown._current]
    for _ in range(lane.emitted - 1):
        qtbot.keyClick(shown, Qt.Key.Key_Right)
        walked.append(shown._current)
    assert walked == [i for i, t in enumerate(lane.tokens) if not t.ghost]


def test_follows_the_end_unless_scrolled_away(qtbot: QtBot) -> None:
    lane = filled_lane(60)
    shown = view(qtbot, lane)
    bar = shown.verticalScrollBar()
    assert bar.value() == bar.maximum() > 0
    for round_ in make_rounds(20, seed=3):
        lane.add(round_)
    assert shown.refresh() and bar.value() == bar.maximum()
    bar.setValue(40)
    for round_ in make_rounds(20, seed=4):
        lane.add(round_)
    shown.refresh()
    assert bar.value() == 40 and not shown.following and shown._latest.isVisible()
    qtbot.mouseClick(shown._latest, Qt.MouseButton.LeftButton)
    assert shown.following and not shown._latest.isVisible()
    assert bar.value() == bar.maximum()
    shown.resize(300, 250)
    qtbot.wait(80)
    assert bar.value() == bar.maximum()
    bar.setValue(100)
    top = shown._top_token()
    shown.resize(500, 250)
    qtbot.wait(80)
    assert top is not None and abs(shown.lines.layout.first_line[top] * shown.lines.styles.line_height - bar.value()) < 60


def test_awkward_text_is_drawn_as_text(qtbot: QtBot) -> None:
    lane = filled_lane(40, text=AWKWARD)
    shown = view(qtbot, lane)
    shown.set_looks(TokenLooks("all", whitespace=True))
    shown.setFocus()
    for index in range(0, len(lane.tokens), 3):
        shown._set_current(index)
        words = tooltip(shown._words(index))
        assert "<b>" not in words and "<img" not in words
    shown.grab()
    assert shown.selected_text() == ""
    shown.select_all()
    assert shown.selected_text() == lane.text
    shown.grab()
    for x in range(0, 420, 7):
        for y in range(0, 300, 11):
            place = shown._place_at(QPoint(x, y))
            assert place is not None and 0 <= place[1] <= len(lane.tokens[place[0]].text)


def test_new_run_clears_and_empty_view_speaks(qtbot: QtBot) -> None:
    lane = filled_lane(10)
    shown = view(qtbot, lane)
    lane.restart("again", {}, [])
    shown.set_placeholder("Press Run")
    assert not shown.refresh()
    assert len(shown.lines.layout) == 0
    assert not shown.selected_text()
    shown.copy()
    qtbot.keyClick(shown, Qt.Key.Key_Right)
    qtbot.keyClick(shown, Qt.Key.Key_End)
    assert shown.current() is None
    shown.grab()
    for round_ in make_rounds(2):
        lane.add(round_)
    assert shown.refresh()


def colours_in(image: QImage) -> set[str]:
    """Colours of an image, sparsely sampled."""
    return {image.pixelColor(x, y).name() for x in range(0, image.width(), 1) for y in range(0, image.height(), 1)}


@pytest.mark.parametrize("name", ["dark", "light"])
def test_each_state_has_its_own_look(qtbot: QtBot, name: str) -> None:
    app = QApplication.instance()
    assert isinstance(app, QApplication)
    legend = Legend()
    qtbot.addWidget(legend)
    lane = filled_lane(30)
    shown = view(qtbot, lane, 600, 600)
    try:
        theme.apply(app, name)
        now = theme.current()
        seen = colours_in(shown.grab().toImage())
        for colour in (now.accepted_tint, now.corrected_tint, now.bonus_tint, now.panel):
            assert colour in seen
        legend.resize(legend.sizeHint())
        assert {now.accepted_tint, now.corrected_tint, now.bonus_tint} <= colours_in(legend.grab().toImage())
    finally:
        theme.apply(app, "dark")


def test_states_differ_without_colour(qtbot: QtBot) -> None:
    from PySide6.QtGui import QColor, QPainter, QPen

    from specview.gui.parts.token_paint import TokenStyle, TokenStyles

    styles = TokenStyles()
    grey = QColor("#888888")
    pictures = []
    for kind, style in styles.styles.items():
        def same(pen: QPen | None) -> QPen | None:
            if pen is None:
                return None
            made = QPen(pen)
            made.setColor(grey)
            return made

        styles.styles[kind] = TokenStyle(
            grey, QColor("#222222") if style.tint else None, same(style.underline), same(style.strike), same(style.box)
        )
        image = QImage(120, 40, QImage.Format.Format_RGB32)
        image.fill(0)
        painter = QPainter(image)
        styles.paint_sample(painter, kind, 5, 5, "word")
        painter.end()
        pictures.append(bytes(image.constBits()))
    assert len(set(pictures)) == len(styles.styles)


# -- thrown-away drafts, and switched states ---------------------------------------------------------------


def lane_of(*rounds_: Round, method: str = "x") -> LaneModel:
    lane = LaneModel(method, {"method": method})
    for round_ in rounds_:
        lane.add(round_)
    return lane


def round_of(index: int, *drafts: tuple[str, str], final: str = " end") -> Round:
    drafted = tuple(DraftedToken(place, verdict, q=0.4, p=0.2, text=text) for place, (text, verdict) in enumerate(drafts))  # type: ignore[arg-type]
    rejected = any(verdict == "rejected" for _, verdict in drafts)
    kind = "corrected" if rejected else "bonus" if drafts else "plain"
    return Round(index, 0.1 * (index + 1), 0.02, 0.07, 0.01, drafted=drafted, final=FinalToken(9, kind, final))  # type: ignore[arg-type]


THROWN = round_of(0, (" a", "accepted"), (" no", "rejected"), ("\n", "ignored"))


def point_of(shown: TokenView, token: int) -> QPoint:
    return shown.lines.area_of(token).translated(0, -shown.verticalScrollBar().value()).center()


def test_the_cursor_stops_on_a_count_and_it_tells_all_it_stands_for(qtbot: QtBot) -> None:
    shown = view(qtbot, lane_of(THROWN, round_of(1, final=" then")), looks=TokenLooks())
    shown.setFocus()
    seen: list[tuple[int, int]] = []
    shown.token_selected.connect(lambda *token: seen.append(token))
    qtbot.keyClick(shown, Qt.Key.Key_Home, Qt.KeyboardModifier.ControlModifier)
    for _ in range(3):
        qtbot.keyClick(shown, Qt.Key.Key_Right)
    assert seen == [(0, 0), (0, 1), (0, -1), (1, -1)]
    qtbot.keyClick(shown, Qt.Key.Key_Left)
    words = shown.accessibleDescription().replace("\u00a0", " ")
    assert "2 drafts thrown away before it" in words and '" no" rejected · p 0.20 · q 0.40' in words and "newline never judged" in words
    qtbot.keyClick(shown, Qt.Key.Key_Left)
    assert "2 drafts thrown away · round 0" in shown.accessibleDescription()
    qtbot.waitUntil(lambda: "thrown away" in QToolTip.text(), timeout=1000)
    qtbot.keyClick(shown, Qt.Key.Key_Right)
    assert shown.token_at(point_of(shown, 1)) == 1
    assert shown.select_token(0, 2) and shown.current() == (0, 1), "a draft that is only counted has its count"


def test_the_pointer_over_a_count_shows_all_it_stands_for(qtbot: QtBot) -> None:
    shown = view(qtbot, lane_of(THROWN), looks=TokenLooks())
    for token, head in ((1, "2 drafts thrown away · round 0"), (3, "corrected by the target")):
        at = point_of(shown, token)
        QApplication.sendEvent(shown.viewport(), QHelpEvent(QEvent.Type.ToolTip, at, shown.viewport().mapToGlobal(at)))
        qtbot.waitUntil(lambda: head in QToolTip.text(), timeout=1000)  # noqa: B023
        assert "rejected · p 0.20 · q 0.40" in QToolTip.text().replace("\u00a0", " ") and "never judged" in QToolTip.text()
    QToolTip.hideText()


def test_many_drafts_are_listed_in_part() -> None:
    lane = lane_of(round_of(0, ("x", "rejected"), *((f"w{i}", "ignored") for i in range(40))))
    words = count_words(lane, lane.tokens[0])
    assert words.startswith("41 drafts thrown away") and words.endswith("and 29 more") and words.count("\n") == 13


def test_at_temperature_0_drafts_are_listed_with_the_models_own_numbers() -> None:
    draft = DraftedToken(5, "rejected", q=1.0, p=0.0, text=" no", p_top=((4, " a", 0.7), (5, " no", 0.13)), q_top=((5, " no", 0.59),))
    bare = DraftedToken(5, "ignored", q=1.0, text="")
    words = thrown_away(Round(0, 0.1, 0, 0.1, 0, drafted=(draft, bare), final=FinalToken(4, "corrected", " a")))
    assert words.replace("\u00a0", " ") == '" no" rejected · p 0.13 · q 0.59\ntoken 5 never judged · q 1.00'
    rare = DraftedToken(6, "rejected", q=0.2, p=0.0, text=" x", p_top=draft.p_top)
    assert thrown_away(Round(0, 0.1, 0, 0.1, 0, drafted=(rare,))).replace("\u00a0", " ") == '" x" rejected · p < 0.13 · q 0.20'


@pytest.mark.parametrize("kind", SWITCHED)
def test_a_state_that_is_switched_off_looks_like_plain_text(qtbot: QtBot, kind: str) -> None:
    now = theme.current()
    lane = lane_of(THROWN, round_of(1, (" b", "accepted")), round_of(2))
    shown = view(qtbot, lane, looks=TokenLooks())
    colour = now.rejected if kind == "rejected" else getattr(now, f"{kind}_tint")
    near = colours_in(shown.viewport().grab().toImage())
    assert colour in near or kind == "rejected"
    shown.set_looks(TokenLooks(off=frozenset({kind})))
    assert colour not in colours_in(shown.viewport().grab().toImage())
    text = "".join(fragment.text for line in shown.lines.layout.lines for fragment in line)
    assert ("+2" in text) == (kind != "rejected")
    shown.set_looks(TokenLooks("all", off=frozenset({kind})))
    assert ("no" in "".join(f.text for line in shown.lines.layout.lines for f in line)) == (kind != "rejected")


def test_the_text_has_the_size_that_is_asked_for(qtbot: QtBot) -> None:
    small, large = view(qtbot, lane_of(THROWN)), TokenView(lane_of(THROWN), size=42)
    qtbot.addWidget(large)
    large.refresh()
    assert large.lines.pitch > 2.5 * small.lines.pitch and large.lines.styles.cell > 2.5 * small.lines.styles.cell
    small.set_size(42)
    assert small.lines.pitch == large.lines.pitch and small.lines.styles.pad == large.lines.styles.pad
    small.grab()


# -- a race that is played again ---------------------------------------------------------------------------


def test_a_replay_shows_each_stage_and_settles(qtbot: QtBot) -> None:
    lane = lane_of(round_of(0), round_of(1, (" a", "accepted"), (" no", "rejected")))
    shown = view(qtbot, lane, looks=TokenLooks())

    def text() -> str:
        return "".join(f.text for line in shown.lines.layout.lines for f in line)

    whole = state_of(shown.lines.layout)
    head = Playhead([lane])
    head.seek(0.0)
    shown.refresh()
    assert text() == ""
    seen = []
    for _ in range(30):
        head.step_phase(1)
        shown.refresh()
        shown.viewport().grab()
        kinds = [token.kind for token in shown.lines.layout.tokens if token.round_index == 1]
        if not seen or seen[-1] != (text(), kinds):
            seen.append((text(), kinds))
    assert (" end a", ["drafted"]) in seen and (" end a no", ["drafted", "drafted"]) in seen
    assert (" end a no", ["accepted", "drafted"]) in seen and (" end a no", ["accepted", "rejected"]) in seen
    assert seen[-1] == (" end a +1end", ["accepted", "rejected", "corrected"])
    assert state_of(shown.lines.layout) == whole


def test_the_cursor_waits_for_its_token_in_a_replay(qtbot: QtBot) -> None:
    lane = filled_lane(12)
    shown = view(qtbot, lane, looks=TokenLooks())
    assert shown.select_token(8, -1)
    head = Playhead([lane])
    head.seek(lane.rounds[4].t)
    shown.refresh()
    assert shown.current() is None
    head.seek(lane.rounds[2].t)
    shown.refresh()
    for _ in range(100):
        head.step_phase(1)
        shown.refresh()
    assert shown.current() == (8, -1)
    head.to_end()
    shown.refresh()
    assert shown.current() == (8, -1)


def test_words_of_a_token_that_a_replay_has_just_taken_back(qtbot: QtBot) -> None:
    lane = filled_lane(12, alpha=0.3)
    shown = view(qtbot, lane, looks=TokenLooks())
    Playhead([lane]).seek(lane.rounds[2].t)
    for index in range(len(shown.lines.layout)):
        if shown.lines.layout.first_line[index] >= 0:
            shown._words(index)
    shown.viewport().grab()


def test_another_width_keeps_the_first_line_at_the_top(qtbot: QtBot) -> None:
    shown = view(qtbot, filled_lane(60))
    shown.verticalScrollBar().setValue(0)
    shown.resize(300, 300)
    assert shown.verticalScrollBar().value() == 0 and not shown.following


@pytest.fixture
def no_collector() -> Iterator[None]:
    """As in the window, whose collector goes through everything only when a race has ended."""
    gc.disable()
    yield
    gc.enable()


def test_twenty_thousand_tokens_scroll_and_replay_without_a_gap(qtbot: QtBot, no_collector: None) -> None:
    """No call holds the Qt thread for 100 ms; measured as the processor time of this thread, which others do not lengthen."""
    lane = filled_lane(4200)
    assert len(lane.tokens) > 20_000
    shown = view(qtbot, LaneModel(), looks=TokenLooks())
    calls: list[float] = []

    def timed(call: Callable[[], object]) -> None:
        clock = time.thread_time()
        call()
        calls.append(time.thread_time() - clock)

    timed(lambda: shown.set_lane(lane))
    while len(shown.lines.layout) < len(lane.tokens):
        timed(QApplication.processEvents)
    timed(lambda: shown.set_looks(TokenLooks("all")))
    while shown._fresh is not None:
        timed(QApplication.processEvents)
    bar = shown.verticalScrollBar()
    for value in range(0, bar.maximum(), bar.maximum() // 20):
        timed(lambda: bar.setValue(value))  # noqa: B023
        timed(shown.grab)
    head = Playhead([lane])
    for share in (0.5, 0.02, 0.97, 0.3):
        head.seek(share * head.length)
        timed(shown.refresh)
        for _ in range(20):
            head.step_phase(1)
            timed(shown.refresh)
            timed(shown.grab)
        while len(shown.lines.layout) < len(lane.tokens):
            timed(QApplication.processEvents)
    head.to_end()
    assert max(calls) < 0.1


def test_text_that_came_during_a_new_layout_is_not_lost(qtbot: QtBot) -> None:
    lane = filled_lane(600)
    shown = view(qtbot, lane)
    qtbot.waitUntil(lambda: len(shown.lines.layout) == len(lane.tokens), timeout=5000)
    shown.set_looks(TokenLooks())
    assert shown._fresh is not None
    for round_ in make_rounds(5, seed=9):
        lane.add(round_)
    shown.refresh()
    qtbot.waitUntil(lambda: shown._fresh is None and len(shown.lines.layout) == len(lane.tokens), timeout=5000)
    assert shown.lines.layout.ghosts == "count" and shown.following
    shown.set_looks(TokenLooks("all"))
    lane.restart("x", {}, [])
    shown.refresh()
    assert shown._fresh is None and not shown.lines.layout.tokens


def test_a_branch_is_asked_for_by_key_and_menu(qtbot: QtBot) -> None:
    lane = lane_of(THROWN, round_of(1))
    shown = view(qtbot, lane, looks=TokenLooks())
    asked: list[tuple[int, int, object]] = []
    shown.branch_requested.connect(lambda *what: asked.append(what))
    qtbot.keyClick(shown, Qt.Key.Key_B)
    assert [round_ for round_, _, _ in asked] == [-1]
    shown.choose(3)
    qtbot.keyClick(shown, Qt.Key.Key_B)
    assert asked[1:] == [(0, -1, None)]
    at = point_of(shown, 0)
    mouse, key = QContextMenuEvent.Reason.Mouse, QContextMenuEvent.Reason.Keyboard
    for event, token in (
        (QContextMenuEvent(mouse, at, shown.viewport().mapToGlobal(at)), (0, 0)), (QContextMenuEvent(key, QPoint(), QPoint()), (0, -1)),
    ):  # fmt: skip
        QApplication.sendEvent(shown.viewport(), event)
        menu = shown.findChild(QMenu)
        assert menu.isVisible() and menu.actions()[-1].text().startswith("C&ontinue from here with…")
        menu.actions()[-1].trigger()
        assert asked[-1] == (*token, None)
        with qtbot.waitSignal(menu.destroyed):
            menu.close()


def test_ten_thousand_tokens_stay_cheap(qtbot: QtBot) -> None:
    """Layout under 50 us a token on a machine of its own; a generous bound keeps it from flaking."""
    lane = filled_lane(2000)
    assert len(lane.tokens) >= 9000
    shown = view(qtbot, LaneModel())
    clock = time.process_time()
    shown.set_lane(lane)
    layout_s = time.process_time() - clock
    clock = time.process_time()
    for value in range(0, shown.verticalScrollBar().maximum(), shown.verticalScrollBar().maximum() // 20):
        shown.verticalScrollBar().setValue(value)
        shown.grab()
    paint_s = (time.process_time() - clock) / 20
    assert layout_s / len(lane.tokens) < 150e-6
    assert paint_s < 0.05
