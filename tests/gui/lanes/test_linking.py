"""Lanes side by side: they scroll together, one's token is outlined in the others, differences are marked, text is spoken."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from PySide6.QtCore import QPoint
from PySide6.QtGui import QAccessible
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from specview.decoding.ledger import DraftedToken, FinalToken, Round
from specview.gui.lanes.linking import Links
from specview.gui.lanes.token_view import TokenView
from specview.gui.state.token_looks import TokenLooks
from specview.gui.state.view_model import LaneModel
from specview.settings.events import Equality
from tests.gui.views_data import make_rounds

WORDS = [f" word{place}" for place in range(400)]


def plain_lane(words: list[str] = WORDS) -> LaneModel:
    lane = LaneModel("plain", {"method": "plain"})
    for place, word in enumerate(words):
        lane.add(Round(place, 0.1 * place, 0.0, 0.1, 0.0, final=FinalToken(place, "plain", word)))
    return lane


def drafting_lane(words: list[str] = WORDS) -> LaneModel:
    """The same text, with drafts thrown away."""
    lane = LaneModel("x", {"method": "x"})
    for place in range(0, len(words) - 1, 2):
        drafted = (DraftedToken(place, "accepted", text=words[place]), DraftedToken(9, "rejected", text=" other"))
        lane.add(Round(place, 0.1 * place, 0.0, 0.1, 0.0, drafted=drafted, final=FinalToken(7, "corrected", words[place + 1])))
    return lane


@pytest.fixture
def pair(qtbot: QtBot) -> Iterator[tuple[Links, TokenView, TokenView]]:
    holder = QWidget()
    qtbot.addWidget(holder)
    links = Links(holder)
    views = [TokenView(lane, holder) for lane in (plain_lane(), drafting_lane())]
    for view, left, wide in zip(views, (0, 310), (300, 420), strict=True):
        view.setGeometry(left, 0, wide, 220)
        links.link(view)
    with qtbot.waitExposed(holder):
        holder.resize(740, 220)
        holder.show()
    for view in views:
        view.refresh()
    yield links, *views
    del holder


def top_position(view: TokenView) -> int:
    return int(view.place())


def test_lanes_scroll_together_by_position(pair: tuple[Links, TokenView, TokenView]) -> None:
    links, one, two = pair
    assert one.following and two.following
    for share in (0.1, 0.5, 0.52, 0.9):
        one.verticalScrollBar().setValue(round(share * one.verticalScrollBar().maximum()))
        assert not two.following and abs(two.place() - one.place()) < 3, "within a line"
    one.verticalScrollBar().setValue(0)
    assert two.verticalScrollBar().value() == 0
    two.verticalScrollBar().setValue(two.verticalScrollBar().maximum() // 3)
    assert abs(two.place() - one.place()) < 3
    two.verticalScrollBar().setValue(two.verticalScrollBar().maximum())
    assert one.following and one.verticalScrollBar().value() == one.verticalScrollBar().maximum()
    links.together = False
    one.verticalScrollBar().setValue(0)
    assert two.following


def test_text_that_comes_moves_nobody_else(pair: tuple[Links, TokenView, TokenView]) -> None:
    _, one, two = pair
    one.verticalScrollBar().setValue(100)
    here = two.verticalScrollBar().value()
    for round_ in make_rounds(20):
        two.lane.add(round_)
    two.refresh()
    assert two.verticalScrollBar().value() == here and one.verticalScrollBar().value() == 100


def test_a_lane_that_is_not_there_yet_waits_at_its_end(pair: tuple[Links, TokenView, TokenView]) -> None:
    _, one, two = pair
    short = drafting_lane(WORDS[:60])
    two.set_lane(short)
    one.verticalScrollBar().setValue(one.verticalScrollBar().maximum() // 2)
    assert two.verticalScrollBar().value() == two.verticalScrollBar().maximum()
    one.follow()
    one.scrolled.emit()
    assert two.following


def test_the_same_token_is_outlined_in_the_other_lanes(pair: tuple[Links, TokenView, TokenView], qtbot: QtBot) -> None:
    _, one, two = pair
    one.verticalScrollBar().setValue(0)
    bare = two.viewport().grab().toImage()
    one.choose(4)
    token = two.lines.layout.at_position(4)
    assert token is not None and two.lines.layout.tokens[token].text == " word4" and two._at(two._echo) == token
    assert two.viewport().grab().toImage() != bare and one._echo is None
    two.choose(2)  # a count: the position of the token in the drafts' place
    assert one._echo == two.pointed_position()
    at = one.lines.area_of(10).translated(0, -one.verticalScrollBar().value()).center()
    qtbot.mouseMove(one.viewport(), QPoint(1, 1))
    qtbot.mouseMove(one.viewport(), at)
    qtbot.waitUntil(lambda: two._echo == 10, timeout=1000)
    one.lane.restart("plain", {}, [])
    one.refresh()
    assert two._echo is None, "what was pointed at is gone"


def test_the_first_difference_from_plain_is_marked_and_told(pair: tuple[Links, TokenView, TokenView]) -> None:
    links, one, two = pair
    two.lane.equality = Equality(False, 400, 6, 0.1)
    before = two.viewport().grab().toImage()
    one.verticalScrollBar().setValue(0)
    links.mark_differences(one.lane)
    token = two.lines.layout.at_position(6)
    assert token is not None
    assert two._words(token).endswith('first difference from plain: plain has " word6" there')
    assert two.viewport().grab().toImage() != before and one._differs is None
    two.lane.equality = Equality(False, 400, 4000)
    links.mark_differences(one.lane)
    two.viewport().grab()
    two.lane.equality = None
    links.mark_differences(one.lane)
    assert two._differs is None


def test_a_view_that_is_gone_is_linked_no_more(pair: tuple[Links, TokenView, TokenView], qtbot: QtBot) -> None:
    links, one, two = pair
    two.setParent(None)
    two.deleteLater()
    qtbot.waitUntil(lambda: len(links._views) == 1, timeout=2000)
    one.verticalScrollBar().setValue(30)
    one.choose(1)


# -- for screen readers ------------------------------------------------------------------------------------


def test_the_text_is_read_by_screen_readers(qtbot: QtBot) -> None:
    lane = drafting_lane(["One", " two", "\n", "😀", " שלום", " end"])
    view = TokenView(lane)
    view.set_looks(TokenLooks("all"))
    qtbot.addWidget(view)
    view.resize(400, 200)
    with qtbot.waitExposed(view):
        view.show()
    view.refresh()
    view.name()
    interface = QAccessible.queryAccessibleInterface(view)
    assert interface.text(QAccessible.Text.Name) == "Output of x" and interface.role() == QAccessible.Role.EditableText
    assert interface.state().readOnly and interface.state().multiLine
    text = interface.textInterface()
    length = text.characterCount()
    assert text.text(0, length) == lane.text == interface.text(QAccessible.Text.Value)
    assert length == len(lane.text) + 1, "an emoji is two units"
    assert text.text(3, 7) == " two"
    assert text.cursorPosition() == 0
    view.choose(2)  # the draft thrown away before " two"
    assert text.cursorPosition() == 3
    text.setCursorPosition(lane.text.index(" שלום") + 1)
    assert view.current() == (2, 0)
    area = text.characterRect(0)
    assert area.isValid() and text.offsetAtPoint(area.center()) == 0 and text.offsetAtPoint(QPoint(-50, -50)) == -1
    text.scrollToSubstring(0, 1)
    lane.add(Round(9, 1.0, 0, 0.1, 0, final=FinalToken(1, "plain", " more")))
    assert text.text(0, text.characterCount()) + " more" == lane.text, "what is on screen"
    view.refresh()
    assert text.text(0, text.characterCount()) == lane.text
    assert interface.valueInterface() is None and interface.selectionInterface() is None
    assert text.selectionCount() == 0


def test_a_view_that_is_gone_has_no_text(qtbot: QtBot) -> None:
    view = TokenView(drafting_lane(WORDS[:6]))
    interface = QAccessible.queryAccessibleInterface(view)
    text = interface.spoken
    view.refresh()
    assert text.characterCount() > 0
    with qtbot.waitSignal(view.destroyed):
        view.deleteLater()
    del view
    gc.collect()
    assert text.characterCount() == 0 and text.text(0, 5) == "" and text.cursorPosition() == 0
    text.setCursorPosition(3)
    assert text.characterRect(0).isNull()
