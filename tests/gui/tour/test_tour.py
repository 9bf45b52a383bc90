"""The guided tour: its eight steps on the bundled run, its keys, the offer that is made once."""

from __future__ import annotations

import json

import pytest
from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QImage, QPainter
from PySide6.QtTest import QTest

from specview.gui.parts import theme
from specview.gui.state.settings_store import SettingsStore
from specview.gui.tour import story
from specview.gui.tour.dialog import TourDialog
from specview.gui.tour.figures import FIGURES, HOLD_S
from specview.models.assets import asset_path

Key = Qt.Key


@pytest.fixture(scope="module")
def run() -> story.TourRun:
    return story.load()


@pytest.fixture
def tour(qtbot, desk):
    made = TourDialog()
    qtbot.addWidget(made)
    made.show()
    qtbot.waitUntil(lambda: made.run is not None, timeout=10_000)
    yield made
    made.close()


# -- the run -------------------------------------------------------------------------------------------------


def test_the_bundled_run_is_small_and_tells_all_that_the_tour_says(run):
    path = asset_path(story.RUN)
    assert path.stat().st_size < 300_000
    head = json.loads(path.open(encoding="utf-8").readline())
    assert "/home" not in str(head) and "/work" not in str(head)
    lanes = [lane["settings"] for lane in head["lanes"]]
    # At temperature 1 without filters the likeliest tokens that are recorded are those of the distributions that decided.
    assert all((one["temperature"], one["top_k"], one["top_p"], one["min_p"], one["rule"]) == (1.0, 0, 1.0, 0.0, "rejection") for one in lanes)
    verdicts = [token.verdict for token in run.judged.drafted]
    assert verdicts[0] == "accepted" and {"rejected", "ignored"} <= set(verdicts)
    assert run.judged.final.kind == "corrected" and run.full.final.kind == "bonus"
    assert run.race.speedup(run.good).value > 1 > run.race.speedup(run.bad).value


def test_the_rule_that_is_told_is_the_rule_that_judged(run):
    for token in run.judged.drafted:
        if token.verdict != "ignored":
            assert token.accept == pytest.approx(min(1.0, token.p / token.q), rel=1e-5)
            assert (token.u < token.accept) == (token.verdict == "accepted")


def test_the_bars_add_up_to_p_and_agree_with_the_recorded_residual(run):
    assert len(run.bars) >= 3
    assert run.rejected.text in {bars.text for bars in run.bars}
    for bars in run.bars:
        assert bars.kept + bars.left == pytest.approx(bars.p)
        assert 0 <= bars.q <= 1 and 0 < bars.p <= 1
    left = {text: share for _, text, share in run.rejected.residual_top}
    shares = [bars.left / left[bars.text] for bars in run.bars if bars.left > 1e-4 and left.get(bars.text, 0) > 1e-4]
    assert shares and max(shares) == pytest.approx(min(shares), rel=1e-3)  # one scale makes it sum to 1
    assert max(shares) < 1
    assert next(bars for bars in run.bars if bars.text == run.judged.final.text).left > 0


def test_a_missing_run_is_one_line(tmp_path):
    from specview.errors import SpecviewError

    with pytest.raises(SpecviewError):
        story.load(tmp_path / "none.jsonl")


# -- the steps -----------------------------------------------------------------------------------------------


def test_eight_steps_in_the_order_in_which_a_round_happens(run):
    assert [step.picture for step in story.STEPS] == ["plain", "draft", "verify", "judge", "rule", "residual", "bonus", "cost"]
    for step in story.STEPS:
        words = step.words(run)
        assert 40 < len(words) < 330 and words.endswith(".")
        assert FIGURES[step.picture](run).said


@pytest.mark.parametrize("name", ["dark", "light"])
@pytest.mark.parametrize("picture", list(FIGURES))
def test_pictures_move(qtbot, qapp, desk, run, picture, name):
    theme.apply(qapp, name)
    try:
        figure = FIGURES[picture](run)

        def at(t: float) -> QImage:
            image = QImage(840, 320, QImage.Format.Format_RGB32)
            image.fill(theme.current().ground)
            painter = QPainter(image)
            figure.paint(painter, QRectF(10, 10, 820, 300), t)
            painter.end()
            return image

        pictures = [at(figure.length * place / 6) for place in range(7)]
        changed = sum(one != other for one, other in zip(pictures, pictures[1:], strict=False))
        assert changed >= 3
        assert at(figure.length + HOLD_S) == at(figure.length + HOLD_S / 2)
    finally:
        theme.apply(qapp, "dark")


def test_a_round_is_told_by_its_recorded_phases(run):
    judged = FIGURES["judge"](run)
    stage, _, _ = judged.at(judged.length + 1)
    assert stage.final and list(stage.states) == [token.verdict for token in run.judged.drafted]
    drafted = FIGURES["draft"](run)
    assert drafted.at(0.0)[0] is None
    assert set(drafted.at(drafted.length + 1)[0].states) == {"drafted"}


# -- the dialog ----------------------------------------------------------------------------------------------


def test_keys_go_through_it(tour):
    seen = []
    for _ in story.STEPS:
        seen.append((tour.count.text(), tour.title.text()))
        assert tour.picture.figure is not None and tour.picture.accessibleName() and tour.words.text()
        QTest.keyClick(tour.focusWidget() or tour, Key.Key_Right)
    assert [count for count, _ in seen] == [f"{place} of 8" for place in range(1, 9)]
    assert [title for _, title in seen] == [step.title for step in story.STEPS]
    assert not tour.isVisible()  # Right at the last step ends it


def test_back_and_escape(tour):
    assert not tour.back.isEnabled()
    QTest.keyClick(tour.focusWidget(), Key.Key_Return)
    assert tour.at == 1
    tour.end.setFocus()
    QTest.keyClick(tour.end, Key.Key_Left)
    assert tour.at == 0 and tour.end.hasFocus()
    QTest.keyClick(tour, Key.Key_Escape)
    assert not tour.isVisible()


@pytest.mark.parametrize("scale", [1.0, 1.4])
def test_it_fits_and_no_words_are_cut(qapp, tour, scale):
    theme.apply(qapp, "dark", scale)
    try:
        tour.resize(880, 600)
        for place in range(len(story.STEPS)):
            tour.go(place)
            qapp.processEvents()
            assert tour.words.heightForWidth(tour.words.width()) <= tour.words.height()
            assert tour.sizeHint().width() <= 1240 and tour.minimumSizeHint().height() <= 700
    finally:
        theme.apply(qapp, "dark", 1.0)


def test_the_picture_rests_while_it_is_not_seen(tour):
    assert tour.picture._timer.isActive()
    tour.hide()
    assert not tour.picture._timer.isActive()


# -- in the window -------------------------------------------------------------------------------------------


def test_it_is_offered_until_it_is_answered(qtbot, make_window):
    window = make_window()
    assert window.tour.offer_line.isHidden()
    window.tour.offer()
    assert window.tour.offer_line.isVisible()
    window.close()
    again = make_window()
    again.tour.offer()
    assert again.tour.offer_line.isVisible()
    again.tour.offer_line.no.click()
    assert again.tour.offer_line.isHidden()
    again.close()
    assert SettingsStore().load().window.tour_answered
    third = make_window()
    third.tour.offer()
    assert third.tour.offer_line.isHidden()


def test_yes_opens_it_and_so_does_help(qtbot, window):
    window.tour.offer()
    window.tour.offer_line.yes.click()
    dialogs = window.findChildren(TourDialog)
    assert len(dialogs) == 1 and dialogs[0].isVisible() and window.tour.offer_line.isHidden()
    qtbot.waitUntil(lambda: dialogs[0].run is not None, timeout=10_000)
    dialogs[0].close()
    assert dialogs[0].isHidden()
    window.actions_by_name["tour"].trigger()
    assert any(dialog.isVisible() for dialog in window.findChildren(TourDialog))
    for dialog in window.findChildren(TourDialog):
        dialog.close()


def test_a_race_takes_the_offer_away_for_now(qtbot, window):
    window.tour.offer()
    window.run()
    assert window.tour.offer_line.isHidden()
    qtbot.waitUntil(lambda: window.controller.state == "ended", timeout=10_000)
    window.close()
    assert not SettingsStore().load().window.tour_answered
