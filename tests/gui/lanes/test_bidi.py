"""Right-to-left output: joined, in reading order, hit and selected where it stands."""

from __future__ import annotations

import pytest
from PySide6.QtCore import QPoint, Qt
from pytestqt.qtbot import QtBot

from specview.decoding.ledger import DraftedToken, FinalToken, Round
from specview.gui.lanes.token_view import TokenView
from specview.gui.state.token_layout import TokenLayout
from specview.gui.state.token_looks import TokenLooks
from specview.gui.state.view_model import LaneModel

SALAM = "السلام عليكم ورحمة الله"
HEBREW = "שלום עולם, זה טקסט בעברית"


def lane_of(*pieces: str, ghosts: dict[int, str] | None = None) -> LaneModel:
    lane = LaneModel("plain")
    for index, piece in enumerate(pieces):
        ghost = (ghosts or {}).get(index)
        drafted = () if ghost is None else (DraftedToken(9, "rejected", text=ghost),)
        lane.add(Round(index, 0.1 * index, 0.0, 0.1, 0.0, drafted=drafted, final=FinalToken(index, "plain", piece)))
    return lane


def shown(qtbot: QtBot, lane: LaneModel, width: int = 500) -> TokenView:
    view = TokenView(lane)
    qtbot.addWidget(view)
    view.resize(width, 200)
    view.show()
    view.refresh()
    return view


def where(view: TokenView, token: int) -> list[QPoint]:
    """A point in the middle of each piece of a token, in viewport pixels."""
    height, found = view.lines.styles.line_height, []
    for line in range(len(view.lines.layout.lines)):
        for piece in view.lines.row(line):
            if piece.token == token and piece.kind != "space" and piece.width > 1:
                y = view.lines.top(line) + height // 2
                found.append(QPoint(round(view.lines.pad + piece.x + piece.width / 2), round(y)))
    return found


@pytest.mark.parametrize("text", [SALAM, HEBREW])
def test_words_stand_from_the_right(qtbot: QtBot, text: str) -> None:
    pieces = [word if not place else f" {word}" for place, word in enumerate(text.split())]
    view = shown(qtbot, lane_of(*pieces))
    points = [where(view, token) for token in range(len(pieces))]
    assert all(len(found) == 1 for found in points)
    xs = [found[0].x() for found in points]
    assert xs == sorted(xs, reverse=True), "the first word stands rightmost"
    right = max(piece.x + piece.width for piece in view.lines.row(0))
    assert right == pytest.approx(view.lines.layout.width), "flush right"
    for token, (point,) in enumerate(points):
        assert view.token_at(point) == token


def test_letters_join_across_tokens(qtbot: QtBot) -> None:
    """What is drawn is what Qt draws of the whole word, not letter by letter."""
    word = "السلام"
    view = shown(qtbot, lane_of(*word))
    visual = view.lines.visual(0)
    assert visual is not None
    whole = shown(qtbot, lane_of(word)).lines.visual(0)
    apart = [glyph for char in word for glyph in shown(qtbot, lane_of(char)).lines.visual(0).glyphs()]
    assert visual.glyphs() == whole.glyphs() and sorted(visual.glyphs()) != sorted(apart), "the letters' own forms are others"
    assert sum(piece.width for piece in visual.row) == pytest.approx(view.lines.styles.measure(word, False), abs=1.5)
    row = sorted(visual.row, key=lambda piece: piece.token)
    assert [piece.token for piece in visual.row] == list(range(len(word)))[::-1], "a ligature's letters share its width"
    assert all(before.x == pytest.approx(after.x + after.width, abs=0.1) for before, after in zip(row, row[1:], strict=False))


def test_latin_and_numbers_within_run_to_the_right(qtbot: QtBot) -> None:
    view = shown(qtbot, lane_of("שלום", " abc", " 12", " עולם"))
    x = {token: where(view, token)[0].x() for token in range(4)}
    assert x[0] > x[1] and x[2] < x[0] and x[3] < x[2]
    row = [piece for piece in view.lines.row(0) if piece.token == 1 and piece.kind == "word"]
    assert len(row) == 1 and not row[0].rtl and row[0].edges[0] < row[0].edges[-1]


def test_hebrew_within_english_keeps_the_line_left(qtbot: QtBot) -> None:
    view = shown(qtbot, lane_of("The word", " שלום", " means", " peace."))
    x = [where(view, token)[0].x() for token in range(4)]
    assert x == sorted(x) and view.lines.row(0)[0].x == pytest.approx(0, abs=0.5)
    (piece,) = [one for one in view.lines.row(0) if one.token == 1 and one.kind == "word"]
    assert piece.rtl and piece.edges[0] > piece.edges[-1]


def test_a_token_that_turns_is_two_pieces_of_one_token(qtbot: QtBot) -> None:
    view = shown(qtbot, lane_of("abc שלום def"))
    pieces = [piece for piece in view.lines.row(0) if piece.kind == "word"]
    assert "".join(piece.text for piece in sorted(pieces, key=lambda one: one.start)) == "abcשלוםdef"
    assert {view.token_at(point) for point in where(view, 0)} == {0}


def test_selecting_by_mouse_takes_what_is_under_it(qtbot: QtBot) -> None:
    view = shown(qtbot, lane_of("שלום", " עולם"))
    first = next(piece for piece in view.lines.row(0) if piece.token == 0)
    y = view.lines.top(0) + 5
    right = QPoint(round(view.lines.pad + first.edges[0]), y)
    middle = QPoint(round(view.lines.pad + first.edges[2]), y)
    qtbot.mousePress(view.viewport(), Qt.MouseButton.LeftButton, pos=right)
    view._select(view._anchor, view._place_at(middle))
    assert view.selected_text() == "של"
    view.select_all()
    assert view.selected_text() == "שלום עולם"


def test_arrow_keys_go_the_way_they_point(qtbot: QtBot) -> None:
    view = shown(qtbot, lane_of("שלום", " עולם", " טקסט"))
    view._set_current(1)
    qtbot.keyClick(view, Qt.Key.Key_Left)
    assert view._current == 2
    qtbot.keyClick(view, Qt.Key.Key_Right)
    qtbot.keyClick(view, Qt.Key.Key_Right)
    assert view._current == 0


def test_a_paragraph_keeps_its_direction_over_its_lines(qtbot: QtBot) -> None:
    words = [f" {word}" for word in (HEBREW + " 2024 abc").split() * 6]
    view = shown(qtbot, lane_of(*words, "\n", "plain English", "\n", SALAM), width=260)
    layout = view.lines.layout
    first = layout.paragraphs[1]
    assert first == 0 and layout.paragraphs.count(0) > 3 and 0 in layout.right_to_left
    for line in range(layout.paragraphs.count(0) - 1):
        assert max(piece.x + piece.width for piece in view.lines.row(line)) == pytest.approx(layout.width, abs=0.5)
    english = layout.paragraphs.count(0)
    assert view.lines.visual(english) is None and layout.paragraphs[english] not in layout.right_to_left
    assert layout.paragraphs[-1] in layout.right_to_left


def test_streamed_and_whole_are_the_same(qtbot: QtBot) -> None:
    pieces = ["  ", "1. ", "של", "ום", " abc", " ", "עולם", ".\n", "x", " ا", "لس", "لام"]
    whole = shown(qtbot, lane_of(*pieces))
    lane = lane_of(*pieces[:1])
    grown = shown(qtbot, lane)
    for place in range(1, len(pieces)):
        lane.add(lane_of(*pieces).rounds[place])
        grown.refresh()
        for line in range(len(grown.lines.layout.lines)):
            grown.lines.row(line)
    assert [grown.lines.row(line) for line in range(len(grown.lines.layout.lines))] == [
        whole.lines.row(line) for line in range(len(whole.lines.layout.lines))
    ]
    assert grown.lines.layout.right_to_left == whole.lines.layout.right_to_left


def test_plain_english_never_pays(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    from specview.gui.lanes import token_lines

    monkeypatch.setattr(token_lines, "VisualLine", None)  # would fail if it were made
    view = shown(qtbot, lane_of("Only", " English", " é ü", "\n", "日本語"))
    view.grab()


@pytest.mark.parametrize("marks", [False, True])
def test_ghosts_marks_emoji_and_stand_ins_are_drawn(qtbot: QtBot, marks: bool) -> None:
    lane = lane_of("שלום", "\t", " 👩‍🚀 ", "\u202eabc", "", "עולם\n", ghosts={2: "טעות"})
    view = shown(qtbot, lane)
    view.set_looks(TokenLooks("all", marks))
    assert not view.grab().isNull()
    assert not view.grab().isNull()
    tokens = {piece.token for line in range(len(view.lines.layout.lines)) for piece in view.lines.row(line)}
    assert tokens == set(range(len(lane.tokens)))
    ghost = next(index for index, token in enumerate(lane.tokens) if token.ghost)
    assert view.token_at(where(view, ghost)[0]) == ghost


def test_lines_with_ghosts_and_tokens_without_text_stay_within_their_width(qtbot: QtBot) -> None:
    """The room around a ghost is that which lines are broken by, whatever a thin space takes in the font."""
    pieces = [piece for word in HEBREW.split() * 3 for piece in (f" {word}", "")]
    view = shown(qtbot, lane_of(*pieces, ghosts=dict.fromkeys(range(1, len(pieces), 2), "טעות")), width=260)
    assert len(view.lines.layout.lines) > 3
    assert min(piece.x for line in range(len(view.lines.layout.lines)) for piece in view.lines.row(line)) >= -1.5


def test_the_layout_alone_knows_the_paragraphs() -> None:
    layout = TokenLayout(lambda text, ghost: 8.0 * len(text), 8.0, 7.0, 400.0)
    layout.append(lane_of("1. ", "שלום", "\n", "hello", "\n\n", "ab", "שלום").tokens)
    assert layout.right_to_left == {0}
    assert layout.paragraphs == [0, 1, 2, 3]


@pytest.mark.parametrize(("before", "after"), [("שלום", " עולם"), ("مرحبا", " السلام"), ("שלום", " 2024"), ("שלום", " abc")])
def test_a_count_stands_before_its_word_in_reading_order_and_reads_as_it_is(qtbot: QtBot, before: str, after: str) -> None:
    view = shown(qtbot, lane_of("שלום", before, after, ghosts={2: "טעות"}))
    row = view.lines.row(0)
    (count,) = (piece for piece in row if piece.kind == "count")
    (word,) = (piece for piece in row if piece.token == 3 and piece.kind == "word")
    assert count.text == "+1" and count.x >= word.x + word.width - 0.5, "right of the word that is read after it"
    assert count.width < 4 * view.lines.styles.cell
    assert view.token_at(where(view, 2)[0]) == 2 and view.token_at(where(view, 3)[0]) == 3
    assert view.select_token(2, 0) and "1 draft thrown away" in view.accessibleDescription()
    visual = view.lines.visual(0)
    assert visual is not None and "\u2066+1\u2069" in visual._text, "a number among Hebrew letters would turn its sign"


def test_a_left_to_right_count_in_hebrew_within_english(qtbot: QtBot) -> None:
    view = shown(qtbot, lane_of("The word", " שלום", " means", ghosts={1: " bad", 2: " worse"}))
    x = {piece.token: piece.x for piece in view.lines.row(0) if piece.kind in ("word", "count")}
    assert list(x) == sorted(x) and sorted(x.values()) == list(x.values())


def test_a_ghost_keeps_its_blanks_beside_it(qtbot: QtBot) -> None:
    """Latin words and numbers around it run to the left as a whole: its own room must not be torn off to their other side."""
    view = shown(qtbot, lane_of("שלום", " English", " word", " end", ghosts={3: " 15"}))
    view.set_looks(TokenLooks("all"))
    (ghost,) = (piece for piece in view.lines.row(0) if piece.kind == "ghost")
    assert ghost.width < 4 * view.lines.styles.cell


def test_states_keep_their_colours_in_right_to_left_text(qtbot: QtBot) -> None:
    from specview.gui.parts import theme

    lane = LaneModel("x", {"method": "x"})
    for index, kind in enumerate(("corrected", "bonus")):
        drafted = (DraftedToken(1, "accepted", text=" שלום"), *((DraftedToken(2, "rejected", text=" רע"),) if kind == "corrected" else ()))
        lane.add(Round(index, 0.1 * index, 0.0, 0.1, 0.0, drafted=drafted, final=FinalToken(3, kind, " עולם")))  # type: ignore[arg-type]
    view, now = shown(qtbot, lane), theme.current()
    for token, tint in enumerate((now.accepted_tint, None, now.corrected_tint, now.accepted_tint, now.bonus_tint)):
        if tint is not None:
            box = view.lines.area_of(token)
            colours = {view.viewport().grab().toImage().pixelColor(x, box.center().y()).name() for x in range(box.left(), box.right())}
            assert tint in colours
