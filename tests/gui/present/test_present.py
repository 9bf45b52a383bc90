"""The presentation: what a room sees of a race, its keys, the playlist, what rests beneath it."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtCore import QMimeData, QObject, QPointF, Qt, QUrl, Signal
from PySide6.QtGui import QDropEvent, QFontInfo
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLabel, QLineEdit, QToolButton

from specview.gui.link.open_run import Pick
from specview.gui.parts import theme
from specview.gui.parts.token_paint import TokenStyles
from specview.gui.present import sizes
from specview.gui.present.stage import Stage
from specview.gui.present.window import PresentWindow
from specview.gui.state import lane_words, present_words
from tests.gui.lanes_fake import DRAFT, feed, lane_rounds, standard
from tests.library.recorded import write_trace

Key, NONE, SHIFT = Qt.Key, Qt.KeyboardModifier.NoModifier, Qt.KeyboardModifier.ShiftModifier
WISHES = ("play", "pause", "toggle", "step_round", "step_phase", "seek", "slower", "faster")


class FakePlayer(QObject):
    """A Transport that writes down what it is asked."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple] = []
        self.length, self.speed, self.playing, self.available, self.at_end, self.words = 10.0, 0.5, False, True, True, ""
        for name in WISHES:
            setattr(self, name, lambda *values, name=name: self._ask(name, *values))

    def _ask(self, name: str, *values) -> None:
        self.asked.append((name, *values))
        if name in ("play", "pause"):
            self.playing = name == "play"
        self.changed.emit()


@pytest.fixture
def player(qtbot) -> FakePlayer:
    return FakePlayer()


@pytest.fixture
def screen(qtbot, desk, player):
    """A presentation of the desk's race, in a window of its own."""
    feed(desk, standard())
    made = PresentWindow(desk.controller, player)
    qtbot.addWidget(made)
    made.resize(1280, 720)
    made.show()
    qtbot.waitExposed(made)
    yield made
    made.close()


def press(screen: PresentWindow, key, modifier=NONE) -> None:
    QTest.keyClick(screen.focusWidget() or screen, key, modifier)


# -- what a room sees ------------------------------------------------------------------------------------


def test_lanes_say_what_the_race_page_says(screen, desk):
    race = desk.controller.race
    assert len(screen.stage.lanes) == len(race.lanes) == 2
    for lane, model in zip(screen.stage.lanes, race.lanes, strict=True):
        assert lane.head.number == lane_words.headline(model, race, race.metrics(model)).text
        assert "tok/s" in lane.head.line
        assert lane.view.lane is model and lane.view.lines.layout.tokens == model.tokens
        assert lane_words.title(model) in lane.accessibleName()
        assert lane.head.number in lane.head.accessibleName()
        assert lane.head.fraction == lane_words.progress(model)[0]


def test_a_lossy_lane_is_called_so(qtbot, desk):
    plain, draft = standard()
    feed(desk, [plain, (draft[0], {**DRAFT, "rule": "typical"}, draft[2])])
    stage = Stage(desk.controller.race)
    qtbot.addWidget(stage)
    assert "lossy" in stage.lanes[1].head.line and "lossy" not in stage.lanes[0].head.line


def test_whether_names_stand_beside_numbers_goes_by_the_present_sizes(desk, qtbot):
    feed(desk, standard())
    stage = Stage(desk.controller.race)
    qtbot.addWidget(stage)
    stage.resize(700, 300)
    stage.fit()
    small = stage.lanes[0].head.wants()
    stage.resize(round(3 * small), 1500)
    stage.fit()
    assert stage.lanes[0].head.wants() > 1.5 * small and stage.lanes[0].head.stacked


@pytest.mark.parametrize("high", [720, 1080])
@pytest.mark.parametrize("scale", [0.8, 1.0, 1.4])
def test_no_text_is_smaller_than_the_least(screen, qapp, high, scale):
    theme.apply(qapp, "dark", scale)
    try:
        screen.setFixedSize(high * 16 // 9, high)
        qapp.processEvents()
        screen.wake()
        screen.keys.toggle()
        found = [(type(one).__name__, QFontInfo(one.font()).pixelSize()) for kind in (QLabel, QLineEdit, QToolButton)
                 for one in screen.findChildren(kind) if one.isVisibleTo(screen)]  # fmt: skip
        for lane in screen.stage.lanes:
            styles = lane.view.lines.styles
            found += [("token", QFontInfo(font).pixelSize()) for font in (styles.font, styles.ghost_font, styles.count_font)]
            assert lane.head.sizes.height == high and lane.head.number_px >= 3 * screen.stage.sizes.px(sizes.NAME)
        for share in (sizes.TITLE, sizes.NAME, sizes.LINE, sizes.NUMBER, sizes.NOTE, sizes.LEAST):
            found.append((f"share {share}", screen.stage.sizes.font(share).pixelSize()))
        found.append(("count", QFontInfo(TokenStyles(screen.stage.sizes.token).count_font).pixelSize()))
        assert len(found) >= 15
        assert not [one for one in found if one[1] < 0.022 * high]
    finally:
        theme.apply(qapp, "dark", 1.0)


def test_five_lanes_fit_and_stay_level(qtbot, desk):
    feed(desk, [*standard(), *((f"draft-model k={k}", DRAFT, lane_rounds(60, k=k)) for k in (2, 6, 8))])
    stage = Stage(desk.controller.race)
    qtbot.addWidget(stage)
    stage.resize(1280, 720)
    stage.show()
    assert len(stage.lanes) == 5
    assert len({lane.view.geometry().top() for lane in stage.lanes}) == 1
    for lane in stage.lanes:
        assert lane.width() >= 1280 / 5 - 40 and lane.geometry().right() < 1280
        assert lane.view.height() > 0.5 * stage.height()


@pytest.mark.parametrize("high", [640, 700, 720, 777])
def test_a_text_that_is_scrolled_begins_with_a_whole_line(screen, qapp, high):
    screen.resize(700, high)
    qapp.processEvents()
    for lane in screen.stage.lanes:
        bar, lines = lane.view.verticalScrollBar(), lane.view.lines
        assert bar.maximum() > 0 and bar.value() == bar.maximum()
        assert (bar.value() - lines.pad) % lines.pitch == 0


def test_nothing_is_painted_where_nothing_changed(screen, qapp):
    painted = []
    for lane in screen.stage.lanes:
        lane.head.paint = lambda painter, region: painted.append(region)
    qapp.processEvents()
    painted.clear()
    screen.stage.refresh()
    screen.stage.refresh_figures()
    qapp.processEvents()
    assert not painted


# -- keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "modifier", "asked"), [
    (Key.Key_Space, NONE, ("toggle",)), (Key.Key_Right, NONE, ("step_phase", 1)), (Key.Key_Left, NONE, ("step_phase", -1)),
    (Key.Key_Right, SHIFT, ("step_round", 1)), (Key.Key_Left, SHIFT, ("step_round", -1)), (Key.Key_Up, NONE, ("faster",)),
    (Key.Key_Plus, NONE, ("faster",)), (Key.Key_Down, NONE, ("slower",)), (Key.Key_Minus, NONE, ("slower",)),
    (Key.Key_Home, NONE, ("seek", 0.0)),
])  # fmt: skip
def test_keys_play_and_step(screen, player, key, modifier, asked):
    press(screen, key, modifier)
    assert player.asked == [asked]


def test_keys_ask_for_another_run_and_for_this_one_again(qtbot, screen):
    for key, signal, values in (
        (Key.Key_N, screen.turned, [1]), (Key.Key_P, screen.turned, [-1]), (Key.Key_R, screen.again, []),
        (Key.Key_A, screen.advance_toggled, []),
    ):  # fmt: skip
        with qtbot.waitSignal(signal, timeout=1000) as heard:
            press(screen, key)
        assert heard.args == values


@pytest.mark.parametrize("key", [Key.Key_Escape, Key.Key_F11])
def test_keys_leave(qtbot, screen, key):
    with qtbot.waitSignal(screen.left, timeout=1000):
        press(screen, key)
    assert not screen.isVisible()


def test_a_black_screen_holds_what_plays_and_any_key_goes_back(screen, player):
    player.playing = True
    press(screen, Key.Key_B)
    assert screen.black.isVisible() and not player.playing
    assert screen.black.geometry() == screen.rect()
    press(screen, Key.Key_Escape)
    assert screen.isVisible() and not screen.black.isVisible() and player.playing


def test_keys_are_listed_for_some_seconds(screen):
    press(screen, Key.Key_H)
    assert screen.keys.isVisible() and screen.rect().contains(screen.keys.geometry())
    press(screen, Key.Key_Question)
    assert not screen.keys.isVisible()
    said = " ".join(keys for keys, _ in present_words.KEYS)
    assert all(word in said for word in ("Space", "Home", "N", "P", "A", "B", "T", "R", "H", "Esc", "F11"))


def test_the_title_is_edited_by_key_and_its_keys_are_its_own(screen, player):
    titled = []
    screen.titled.connect(titled.append)
    press(screen, Key.Key_T)
    QTest.keyClicks(screen.stage.title, "No bar")
    assert screen.stage.title.text() == "No bar" and titled[-1] == "No bar"
    assert not player.asked and not screen.black.isVisible()
    QTest.keyClick(screen.stage.title, Key.Key_Escape)
    assert screen.isVisible() and not screen.stage.title.hasFocus()
    press(screen, Key.Key_Space)
    assert player.asked == [("toggle",)]


def test_pointer_and_chrome_hide_at_rest_and_come_back(screen):
    screen.wake()
    assert screen.chrome.isVisible()
    screen.rest()
    assert not screen.chrome.isVisible() and screen.cursor().shape() == Qt.CursorShape.BlankCursor
    QTest.mouseMove(screen.stage.lanes[0], screen.stage.lanes[0].rect().center())
    QTest.mouseMove(screen.stage.lanes[1], screen.stage.lanes[1].rect().center())
    assert screen.chrome.isVisible() and screen.cursor().shape() != Qt.CursorShape.BlankCursor


def test_speed_is_said_in_words(screen, player):
    assert "half speed" in screen.stage.note.full
    player.speed = 0.125
    player.changed.emit()
    assert "one eighth" in screen.stage.note.full
    player.speed, player.at_end = 1.0, False
    player.changed.emit()
    assert screen.stage.note.full == "paused"
    player.words = "EAGLE-3: the target verifies 3 drafted tokens in one pass"
    player.changed.emit()
    assert screen.stage.note.full == player.words


# -- in the window -------------------------------------------------------------------------------------------


@pytest.fixture
def shown(window, tmp_path):
    """A window, and two recorded runs."""
    window.paths = [write_trace(tmp_path / f"{name}.jsonl") for name in ("first", "second")]
    return window


def opened(qtbot, window, path: Path) -> None:
    def there() -> bool:
        recorded = window.controller.recorded
        return not window.recorded.opener.busy and recorded is not None and recorded.picks[0].path == path

    qtbot.waitUntil(there, timeout=10_000)


def test_f11_presents_the_race_and_the_page_rests(shown):
    shown.actions_by_name["present"].trigger()
    screen = shown.presenting.screen
    assert screen is not None and screen.isVisible() and screen.isFullScreen() and screen.isWindow()
    assert not shown.updatesEnabled()
    screen.close()
    assert shown.presenting.screen is None and shown.updatesEnabled()
    shown.presenting.button.click()
    assert shown.presenting.screen is not None
    shown.presenting.toggle()


def test_a_race_runs_while_it_is_presented(qtbot, shown, monkeypatch):
    plotted = []
    monkeypatch.setattr(shown.page.plots, "refresh", lambda **_: plotted.append(1))
    shown.presenting.toggle()
    screen = shown.presenting.screen
    press(screen, Key.Key_R)
    qtbot.waitUntil(lambda: shown.controller.state == "ended", timeout=10_000)
    lanes, panels = screen.stage.lanes, shown.page.panels
    qtbot.waitUntil(lambda: all(lane.view.lines.layout.tokens == lane.lane.tokens for lane in lanes), timeout=5000)
    assert all(lane.lane.emitted for lane in lanes)
    assert len(plotted) <= 1  # once as the library for it is there
    seen = len(plotted)
    screen.close()
    assert len(plotted) > seen
    assert all(panel.view.lines.layout.tokens == panel.lane.tokens for panel in panels)


def test_a_playlist_goes_forth_and_back(qtbot, shown):
    first, second = shown.paths
    shown.presenting.present([Pick(first, "One"), Pick(second, "Two")])
    opened(qtbot, shown, first)
    screen = shown.presenting.screen
    assert screen.stage.title.text() == "One" and screen.place == "1 of 2"
    press(screen, Key.Key_T)
    QTest.keyClicks(screen.stage.title, "Mine")
    QTest.keyClick(screen.stage.title, Key.Key_Return)
    press(screen, Key.Key_N)
    opened(qtbot, shown, second)
    assert screen.stage.title.text() == "Two" and screen.place == "2 of 2"
    press(screen, Key.Key_N)
    assert "last" in screen.stage.note.full and shown.presenting.at == 1
    press(screen, Key.Key_P)
    opened(qtbot, shown, first)
    assert screen.stage.title.text() == "Mine"


def test_a_run_that_cannot_be_read_is_said_and_the_playlist_goes_on(qtbot, shown, tmp_path):
    first, broken = shown.paths[0], tmp_path / "broken.jsonl"
    broken.write_text("nothing")
    shown.presenting.present([Pick(first), Pick(broken)])
    opened(qtbot, shown, first)
    note = shown.presenting.screen.stage.note
    press(shown.presenting.screen, Key.Key_N)
    qtbot.waitUntil(lambda: not shown.recorded.opener.busy and "Opening" not in note.full, timeout=5000)
    assert "broken" in note.full
    press(shown.presenting.screen, Key.Key_P)
    opened(qtbot, shown, first)


def test_files_that_are_dropped_become_the_playlist(qtbot, shown):
    shown.presenting.toggle()
    screen, mime = shown.presenting.screen, QMimeData()
    mime.setUrls([QUrl.fromLocalFile(str(path)) for path in shown.paths])
    screen.dropEvent(QDropEvent(QPointF(5, 5), Qt.DropAction.CopyAction, mime, Qt.MouseButton.LeftButton, NONE))
    opened(qtbot, shown, shown.paths[0])
    assert len(shown.presenting.playlist) == 2 and screen.place == "1 of 2"


def test_the_playlist_goes_on_by_itself_when_asked(qtbot, shown, player):
    shown.presenting.player = player
    player.changed.connect(shown.presenting._played)
    shown.presenting._on.setInterval(10)
    first, second = shown.paths
    shown.presenting.present([Pick(first), Pick(second)])
    opened(qtbot, shown, first)
    assert player.asked[-2:] == [("seek", 0.0), ("play",)]
    player.playing = False
    player.changed.emit()
    qtbot.wait(40)
    assert shown.presenting.at == 0  # it stays
    press(shown.presenting.screen, Key.Key_A)
    opened(qtbot, shown, second)
    assert shown.presenting.at == 1


def test_a_recorded_run_is_stepped_by_phases_and_said_in_words(qtbot, shown):
    shown.presenting.present([Pick(shown.paths[0])])
    opened(qtbot, shown, shown.paths[0])
    screen, transport = shown.presenting.screen, shown.page.transport
    assert transport.playing
    press(screen, Key.Key_Space)
    press(screen, Key.Key_Home)
    assert not transport.playing and all(not lane.view.lines.layout.tokens for lane in screen.stage.lanes)
    for _ in range(6):
        press(screen, Key.Key_Right)
        assert screen.stage.note.full == transport.words != ""
        for lane in screen.stage.lanes:
            assert lane.view.lines.layout.tokens == lane.lane.tokens
    there = transport.seconds
    press(screen, Key.Key_Left)
    assert transport.seconds <= there
    press(screen, Key.Key_Right, SHIFT)
    assert any(lane.lane.rounds for lane in screen.stage.lanes)
    press(screen, Key.Key_Down)
    assert "half speed" in screen.stage.note.full


def test_a_window_that_closes_takes_its_presentation_along(shown):
    shown.presenting.toggle()
    screen = shown.presenting.screen
    shown.close()
    assert not screen.isVisible()


def test_while_a_race_runs_no_run_is_opened(qtbot, shown):
    shown.run()
    assert shown.controller.racing
    shown.presenting.present([Pick(shown.paths[0])])
    assert "race is running" in shown.banner.message and shown.presenting.screen is None
    qtbot.waitUntil(lambda: shown.controller.state == "ended", timeout=10_000)
    shown.presenting.toggle()
    assert shown.presenting.playlist == []
