"""The layout of tokens: wrapping, counts of thrown-away drafts, going back, awkward text."""

from __future__ import annotations

import time
import unicodedata
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytestqt.qtbot import QtBot

from specview.gui.state import token_layout
from specview.gui.state.display_text import clipboard, quoted, symbol, tooltip, visible
from specview.gui.state.token_layout import TokenLayout, clusters
from specview.gui.state.token_looks import GHOST_MODES
from specview.gui.state.view_model import ViewToken
from tests.gui.views_data import state_of


def output(*texts: str, ghost: bool = False) -> list[ViewToken]:
    """Tokens of these texts."""
    kind = "rejected" if ghost else "plain"
    return [ViewToken(text, kind, i, -1, None if ghost else i) for i, text in enumerate(texts)]


def laid(tokens: list[ViewToken], width: float = 200, **options: Any) -> TokenLayout:
    """A layout with cells of 10 pixels; characters outside ASCII are 17 wide."""

    def measure(text: str, ghost: bool) -> float:
        return sum(10 if ord(c) < 128 else 0 if unicodedata.combining(c) else 17 for c in text)

    layout = TokenLayout(measure, 10, 9, width, **options)
    layout.append(tokens)
    return layout


def lines_of(layout: TokenLayout) -> list[str]:
    return ["".join(fragment.text for fragment in line) for line in layout.lines]


def test_words_wrap_at_spaces_and_long_ones_anywhere() -> None:
    layout = laid(output("hello", " wor", "ld", " again", " and"), 120)
    assert lines_of(layout) == ["hello world ", "again and"]
    assert layout.first_line == [0, 0, 0, 0, 1]
    layout = laid(output("ab", " " + "x" * 30), 120)
    assert [len(line) for line in lines_of(layout)] == [3, 12, 12, 6]
    layout = laid(output("a" * 11, "bcd"), 120)
    assert lines_of(layout) == ["a" * 11 + "b", "cd"]


def test_an_indentation_stays_with_its_text() -> None:
    """A line does not end right after the blanks that it begins with: it breaks at a token, or anywhere where it must."""
    run = ("settings", "[key", ".strip", "()]", " =", " 1")
    assert lines_of(laid(output("\n", " " * 8, *run), 200)) == ["", " " * 8 + "settings[key", ".strip()] = 1"]
    assert lines_of(laid(output("\n" + " " * 7, " settings", *run[1:]), 200)) == ["", " " * 8 + "settings[key", ".strip()] = 1"]
    assert lines_of(laid(output(" " * 4, "x" * 40), 200)) == [" " * 4 + "x" * 16, "x" * 20, "x" * 4]
    assert lines_of(laid(output("\t", "x" * 20), 200)) == ["x" * 16, "x" * 4]
    assert lines_of(laid(output(" " * 4, "return", " " + "x" * 20), 200)) == ["    return ", "x" * 20], "a later space is a place to break"
    counted = laid([*output(" " * 8), *chain(1, 1, "rejected", final="x" * 16)], 200, ghosts="count")
    assert lines_of(counted) == [" " * 8 + "+1" + "x" * 10, "x" * 6]


@pytest.mark.parametrize("before", [(), ("ab",), ("ab", " cd"), (" " * 8,), ("x" * 13,), ("x" * 19,), ("x" * 20,), ("ab " + "x" * 17,), ("x" * 19, " ")])
@pytest.mark.parametrize("draft", ["\n", "\n        ", "\n\n" + " " * 40, "):\n        ", " ", " " * 12, "foo" + " " * 30, "y" * 50, " y\x00" * 9, ""])
def test_a_draft_stays_within_the_lane(before: tuple[str, ...], draft: str) -> None:
    layout = laid(output(*before), 200)
    layout.show([*layout.tokens, ViewToken(draft, "drafted", 9, 0, None)], len(before))
    placed = [piece for _, piece in layout.fragments_of(len(before))]
    assert placed and sum(piece.length for piece in placed) == len(draft)
    assert all(piece.x + piece.width <= 200 + 17 for piece in placed), "a mark may hang over the edge, as a newline of the output does"
    if draft.startswith("\n") and sum(map(len, before)) < 20:
        assert layout.lines[-1][-1].text.startswith("↵") and len(layout.lines) == 1, "it stands where its newline will"


def test_newlines_tabs_and_marks() -> None:
    layout = laid(output("a\n\nb", "\tc"), 200)
    assert lines_of(layout) == ["a", "", "bc"]
    assert layout.lines[2][2].x == 40
    marked = laid(output("a\n\nb", "\tc"), 200, marks=True)
    assert lines_of(marked) == ["a↵", "↵", "b⇥c"]


def test_ghosts_and_tabs_keep_to_the_width() -> None:
    ghosts = [ViewToken(text, "ignored", 0, place, None) for place, text in enumerate((" customers", "-" * 40, "\n" + " " * 30, " abcdefg"))]
    for mode in ("first", "all"):
        layout = laid([*output("    ", "if"), *ghosts, *output("        ", "\t", "x"), *ghosts], 90, ghosts=mode)
        assert all(one.x + one.width <= 90 for row in layout.lines for one in row if one.kind in ("ghost", "tab", "word"))
    assert lines_of(laid([ghosts[1]], 90))[0] == "------…"
    assert laid(ghosts[1:2], 90).lines[0][0].length == 40  # cut in sight only


def test_ghosts_are_whole_and_can_be_left_out() -> None:
    tokens = [*output("one"), ViewToken(" x\ny", "rejected", 0, 0, None), ViewToken(" two", "corrected", 0, -1, 1)]
    layout = laid(tokens, 400)
    assert len(layout.lines) == 1 and "x↵y" in lines_of(layout)[0]
    hidden = laid(tokens, 400, ghosts="none")
    assert lines_of(hidden) == ["one two"]
    assert hidden.first_line[1] == -1 and hidden.fragments_of(1) == [] and hidden.holder(1) is None
    wide = laid([*output("aaaa"), ViewToken("ghostly", "ignored", 0, 0, None)], 80)
    assert lines_of(wide) == ["aaaa", "ghostly"]


def chain(round_: int, position: int, *verdicts: str, final: str | None = " end", folded: int = 0) -> list[ViewToken]:
    """A round's tokens: a draft " n" for each verdict, then the final token."""
    tokens = []
    for place, verdict in enumerate(verdicts):
        kept = verdict == "accepted"
        tokens.append(ViewToken(f" {place}", verdict, round_, place, position if kept else None))  # type: ignore[arg-type]
        position += kept
    if folded:
        tokens.append(ViewToken(f"+{folded}", "ignored", round_, len(verdicts), None, folded))
    return tokens if final is None else [*tokens, ViewToken(final, "corrected", round_, -1, position)]


def test_thrown_away_drafts_are_a_count_before_the_word_in_their_place() -> None:
    tokens = [*chain(0, 0, "accepted", "rejected", "ignored"), *chain(1, 2, "rejected", final="s")]
    assert lines_of(laid(tokens, 900, ghosts="count")) == [" 0 +2end+1s"]
    assert lines_of(laid(tokens, 900, ghosts="first")) == [" 0 1 +1end 0s"]
    assert lines_of(laid(tokens, 900, ghosts="all")) == [" 0 1 2 end 0s"]
    layout = laid(tokens, 900, ghosts="count")
    assert layout.counts == {1: [1, 2], 4: [4]} and [layout.holder(i) for i in range(6)] == [0, 1, 1, 3, 4, 5]
    assert layout.first_line == [0, 0, -1, 0, 0, 0]


def test_a_count_counts_folded_drafts_and_stands_before_the_final_token_of_a_tree() -> None:
    tokens = chain(0, 0, "rejected", "accepted", folded=56)
    assert lines_of(laid(tokens, 900, ghosts="count")) == [" 1 +57end"]
    assert lines_of(laid(tokens, 900, ghosts="first")) == ["0 1 +56end"]


def test_a_round_without_a_final_token_has_its_count_at_the_end() -> None:
    tokens = chain(0, 0, "accepted", "ignored", "ignored", final=None)
    layout = laid(tokens, 900, ghosts="count")
    assert lines_of(layout) == [" 0+2"]
    layout.append(chain(1, 1))
    assert lines_of(layout) == [" 0+2 end"]
    for final, line in (("\n", "+1"), ("  x", "  +1x"), ("   ", "+1   "), ("", "+1")):
        assert lines_of(laid(chain(0, 0, "rejected", final=final), 900, ghosts="count"))[0] == line


def test_a_count_goes_to_the_next_line_with_its_word() -> None:
    layout = laid([*output("aaaa", " bbbb"), *chain(1, 2, "rejected", final=" cccc")], 130, ghosts="count", air=5)
    assert lines_of(layout) == ["aaaa bbbb ", "+1cccc"]
    assert layout.first_line == [0, 0, 1, 0], "the space before the word stays behind"
    assert [line for line, _ in layout.fragments_of(3)] == [0, 1]


def test_words_have_air_between_them_and_code_keeps_its_columns() -> None:
    layout = laid(output("    x", " =", "  1", "\n", " y"), 900, air=5)
    spaces = [(fragment.x, fragment.width) for line in layout.lines for fragment in line if fragment.kind == "space"]
    assert spaces == [(0, 40), (50, 15), (75, 20), (0, 10)]


def test_the_round_under_way_is_shown_in_full() -> None:
    before = chain(0, 0, "rejected")
    under_way = [ViewToken(" a", "accepted", 1, 0, 1), ViewToken(" b", "rejected", 1, 1, None), ViewToken(" c\n", "drafted", 1, 2, None)]
    layout = laid(before, 900, ghosts="count")
    layout.show([*before, *under_way], len(before))
    assert lines_of(layout) == [" +1end a b c↵"]
    layout.show([*before, *chain(1, 1, "accepted", "rejected", "ignored")])
    assert lines_of(layout) == [" +1end 0 +2end"]
    layout.show(before)
    assert lines_of(layout) == [" +1end"]


TEXTS = st.one_of(st.sampled_from([" word", "\n", "  ", " a", "ing", "\t", "", " שלום", "日本", "\u202e", " " + "x" * 40]), st.text(max_size=6))


@st.composite
def rounds(draw: st.DrawFn) -> list[ViewToken]:
    """The tokens of some rounds, chains and trees, with and without a final token."""
    tokens: list[ViewToken] = []
    position = 0
    for index in range(draw(st.integers(0, 40))):
        verdicts = draw(st.lists(st.sampled_from(["accepted", "rejected", "ignored"]), max_size=4))
        for place, verdict in enumerate(verdicts):
            kept = verdict == "accepted"
            tokens.append(ViewToken(draw(TEXTS), verdict, index, place, position if kept else None))  # type: ignore[arg-type]
            position += kept
        if draw(st.integers(0, 9)):
            tokens.append(ViewToken(draw(TEXTS), "corrected" if verdicts else "plain", index, -1, position))
            position += 1
    return tokens


@given(rounds(), st.data(), st.sampled_from([50, 130, 300]), st.sampled_from([*GHOST_MODES, "none"]), st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_layout_that_went_back_is_that_of_a_fresh_one(
    tokens: list[ViewToken], data: st.DataObject, width: int, ghosts: Any, marks: bool
) -> None:
    """Wherever a replay goes, what is shown is what its tokens alone would give."""
    with mock.patch.object(token_layout, "_STOP_EVERY", data.draw(st.sampled_from([1, 5, 64]))):
        size = len(tokens)
        layout = laid([], width, ghosts=ghosts, marks=marks, air=4)
        for _ in range(data.draw(st.integers(1, 6))):
            count = data.draw(st.integers(0, size))
            settled = data.draw(st.integers(0, count))
            shown = [*tokens[:settled], *(one._replace(kind="drafted", position=None) for one in tokens[settled:count])]
            if data.draw(st.booleans()):
                layout.show(shown, settled)
            else:
                while (layout.tokens, layout.settled) != (shown, settled):
                    layout.show(shown, settled, data.draw(st.integers(1, 9)))
            fresh = laid([], width, ghosts=ghosts, marks=marks, air=4)
            fresh.show(shown, settled)
            assert state_of(layout) == state_of(fresh)
            cut = data.draw(st.integers(0, count))
            layout.truncate(cut)
            fresh = laid([], width, ghosts=ghosts, marks=marks, air=4)
            fresh.show(shown[:cut], min(settled, cut))
            assert state_of(layout) == state_of(fresh)


def test_going_back_is_quick_however_long_the_text(qtbot: QtBot) -> None:
    words = [one for index in range(5000) for one in chain(index, 2 * index, "accepted", "rejected", "ignored")]
    layout = laid(words, 300, ghosts="count")
    assert len(layout) == 20_000
    clock = time.process_time()
    for count in range(19_990, 19_890, -1):
        layout.truncate(count)
    assert (time.process_time() - clock) / 100 < 0.01


@given(st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=12), st.booleans()), max_size=25),
       st.sampled_from([50, 130, 300]), st.sampled_from(["all", "none"]), st.booleans())
@settings(max_examples=150, deadline=None)
def test_layout_loses_nothing(texts: list[tuple[str, bool]], width: int, ghosts: Any, marks: bool) -> None:
    """Every character of every output token is placed once, in order; appending one by one is the same."""
    tokens = [
        ViewToken(text, "rejected" if ghost else "plain", i, 0, None if ghost else i)
        for i, (text, ghost) in enumerate(texts)
    ]
    layout = laid(tokens, width, ghosts=ghosts, marks=marks)
    single = laid([], width, ghosts=ghosts, marks=marks)
    for token in tokens:
        single.append([token])
    assert single.lines == layout.lines and single.first_line == layout.first_line
    covered: dict[int, list[tuple[int, int]]] = {}
    previous = -1
    for line in layout.lines:
        x = 0.0
        for fragment in line:
            assert fragment.x == pytest.approx(x)
            x += fragment.width
            assert fragment.token >= previous
            previous = fragment.token
            covered.setdefault(fragment.token, []).append((fragment.start, fragment.length))
    for index, token in enumerate(tokens):
        found = layout.fragments_of(index)
        if token.ghost:
            assert bool(found) == (ghosts == "all")
            continue
        assert found and found[0][0] == layout.first_line[index]
        place = 0
        for start, length in covered[index]:
            assert start == place
            place += length
        assert place == len(token.text)


def test_control_characters_are_shown_and_joiners_kept() -> None:
    assert visible("a\x00\x1b\x7f\x85\u202e\u200b\n\t") == "a‹NUL›‹ESC›‹DEL›‹0085›‹202E›‹200B›↵⇥"
    assert symbol("\ud800") == "\ufffd"
    assert [text for _, text in clusters("e\u0301👩‍👧x")] == ["e\u0301", "👩‍👧", "x"]
    assert quoted("a" * 50, 11) == '"aaaaa…aaaaa"'
    assert "<b>" not in tooltip("<b>x</b>") and tooltip("") == ""
    assert clipboard("a\ud800") == "a?"
