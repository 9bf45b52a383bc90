"""Lane panels: chips, badge, state words, figures and their tool tips."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QFontMetricsF
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from specview.decoding.metrics import fold
from specview.files.figures import METRICS, MISSING, number, probability, rate
from specview.gui.lanes.marks import FigureCell, StateLine
from specview.gui.lanes.panel import LanePanel
from specview.gui.parts import theme
from specview.gui.race.page import MIN_LANE_PX
from specview.gui.state import figures, lane_words
from specview.gui.state.view_model import LaneModel, RaceModel
from specview.settings.events import Equality, LaneEnded, LaneRound, Progress
from tests.decoding.speedups import times
from tests.gui.methods_fake import made_up_methods
from tests.gui.views_data import LANES, make_race, make_rounds, stream


def panel(qtbot: QtBot, race: RaceModel, index: int, width: int = 380, height: int = 480) -> LanePanel:
    made = LanePanel(race, index)
    qtbot.addWidget(made)
    made.resize(width, height)
    with qtbot.waitExposed(made):
        made.show()
    return made


def test_figures_have_one_name_each() -> None:
    titles = [figure.title for figure in METRICS.values()]
    assert len(set(titles)) == len(titles)
    assert [title for title in titles if "acceptance rate" in title] == ["acceptance rate α"]
    for figure in METRICS.values():
        assert figure.formula in figure.tooltip()
        assert MISSING in figure.text(None)
        assert figure.kind in ("series", "bytes") or MISSING in figure.text(float("nan"))


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (4.126, "4.13"), (41.32, "41.3"), (9.996, "10.0"), (999.6, "1,000"), (float("inf"), "–")],
)
def test_rate_format(value: float | None, text: str) -> None:
    assert rate(value) == text


def test_spread_and_probability_formats() -> None:
    assert figures.spread(None) == figures.spread(times(1.5)) == ""
    assert figures.spread(times(1.5, 1.4, 1.7)) == "1.40–1.70"
    assert probability(0.0) == "0.00" and probability(0.0004) == "4e-4"
    assert probability(0.999) == ">0.99" and probability(1.0) == "1.00"


def test_chips_say_draft_k_policy_and_rule() -> None:
    texts = [[mark.text for mark in lane_words.chips(settings)] for _, settings, _ in LANES]
    assert texts[0] == ["one token a pass"]
    assert texts[1] == ["smol-draft", "k 4", "constant", "rejection"]
    assert texts[2] == ["n 3–1", "k 8", "constant", "rejection"]
    assert "lossy" in texts[3] and "lossy" not in texts[4]
    assert texts[4][0] == "a-draft"
    changed = lane_words.chips({"method": "prompt-lookup", "k": 4, "option_match": "last"})
    assert [mark.text for mark in changed] == ["k 4", "match last"]
    tips = {name: lane_words.chips({"method": name, "k": 4})[0].tip for name in ("suffix", "lookahead", "auto")}
    assert tips["suffix"] == "Tokens drafted in a round, at most."
    assert tips["lookahead"].startswith("The longest path") and "a member" in tips["auto"]
    shapes = [lane_words.chips({"method": "eagle3", "k": 4, "option_tree": shape})[0] for shape in ("chain", "dynamic")]
    assert shapes[0].tip == tips["suffix"] and shapes[1].tip == tips["lookahead"]


def test_badges() -> None:
    lane = LaneModel("x", {"method": "draft-model", "rule": "greedy"})
    assert lane_words.badge(LaneModel()).text == "baseline, measured"
    assert lane_words.badge(lane).text == "✓ exact rule"
    lane.equality = Equality(True, 128)
    assert lane_words.badge(lane).text == "= plain, 128 tokens" and lane_words.badge(lane).tone == "good"
    lane.equality = Equality(False, 60, 43, 0.12, 0.2)
    mark = lane_words.badge(lane)
    assert mark.text == "≠ plain at 43 · margin 0.12" and mark.tone == "neutral" and "rounding" in mark.tip
    lane.equality = Equality(False, 60, 43, 1.2, 0.2)
    assert lane_words.badge(lane).tone == "bad"
    lane.equality = Equality(False, 60, 43, 1.2, None)
    assert lane_words.badge(lane).tone == "warning" and "not measured" in lane_words.badge(lane).tip
    typical = LaneModel("x", {"method": "draft-model", "rule": "typical"})
    assert lane_words.badge(typical).text == "lossy rule"
    auto = LaneModel("x", {"method": "draft-model", "rule": "auto"})
    assert lane_words.badge(auto).text == "rule auto"


@pytest.mark.parametrize(
    ("end", "error", "words", "tone"),
    [("eos", "", "EOS", "neutral"), ("limit", "", "limit", "neutral"), ("stopped", "", "stopped", "warning"),
     ("context", "", "context full", "warning"),
     ("error", "Out of memory.", "Out of memory.", "bad"), ("error", "", "error", "bad")],
)
def test_state_words(end: str, error: str, words: str, tone: str) -> None:
    lane = LaneModel(state="ended", end=end, error=error)  # type: ignore[arg-type]
    mark = lane_words.state(lane)
    assert words in mark.text and mark.tone == tone
    assert lane_words.placeholder(lane)


def test_a_draft_that_went_silent_is_told_where_and_why(qtbot: QtBot) -> None:
    race = make_race(3)
    stream(race, 1.0)
    lane = race.lanes[1]
    before = lane.emitted
    race.apply(LaneRound(race.run_id, 1, replace(lane.rounds[-1], index=len(lane.rounds), full_context=128)))
    mark = lane_words.state(lane)
    assert mark.text.endswith(f" · no drafts from token {before + 1}") and mark.tone == "warning"
    assert f"The draft's own context of 128 tokens is full: from output token {before + 1} on it drafts nothing." in mark.tip
    shown = panel(qtbot, race, 1)
    assert "no drafts from token" in shown._state.accessibleName()
    lane.state, lane.end = "ended", "limit"
    mark = lane_words.state(lane)
    assert mark.text == f"token limit reached · no drafts from token {before + 1}" and mark.short == "limit · no drafts"


def test_panel_shows_the_metrics(qtbot: QtBot) -> None:
    race = make_race(3)
    stream(race, 3.0)
    shown = panel(qtbot, race, 1)
    metrics = fold(race.lanes[1].rounds)
    cells = shown._cells
    faster = race.speedup(race.lanes[1])
    assert faster is not None and cells["decode_tokens_per_s"].value == rate(faster.tokens_per_s)
    assert f"plain {rate(faster.plain_tokens_per_s)} in {faster.seconds:.1f} s" in cells["speedup"].label
    assert cells["tokens_per_target_pass"].value == number(metrics.tokens_per_target_pass)
    assert cells["acceptance_rate"].value == number(metrics.acceptance_rate)
    assert "accepted / judged" in cells["acceptance_rate"].toolTip()
    assert f"{metrics.accepted} / {metrics.judged}" in cells["acceptance_rate"].toolTip()
    assert cells["speedup"].value.endswith("×") and "pred." in cells["speedup"].label
    assert "middle half of its eighths" in cells["speedup"].toolTip()
    assert shown._state.count == f"{race.lanes[1].emitted} tokens"
    assert shown.accessibleName() == "Lane draft-model"
    qtbot.mouseClick(shown._copy, Qt.MouseButton.LeftButton)
    assert QApplication.clipboard().text() == race.lanes[1].text
    plain = panel(qtbot, race, 0)
    assert plain._cells["acceptance_rate"].value == MISSING
    assert plain._cells["speedup"].value == "1.00×"
    assert not plain._remove.isVisible() and shown._remove.isVisible()


def test_nothing_jumps_as_numbers_change(qtbot: QtBot) -> None:
    race = make_race(2)
    shown = panel(qtbot, race, 1)
    before = shown.view.geometry(), shown._cells["speedup"].geometry()
    race.apply(Progress(1, "prefill", "Prefill 9 of 131 tokens", 0.1, lane=1))
    shown.refresh()
    stream(race, 2.0)
    shown.refresh()
    shown.refresh_figures()
    race.apply(LaneEnded(1, 1, "error", fold(race.lanes[1].rounds), "The target gave NaN logits at position 17. " * 4))
    shown.refresh()
    qtbot.wait(10)
    assert (shown.view.geometry(), shown._cells["speedup"].geometry()) == before
    assert shown._state.mark.tone == "bad"


def test_buttons_and_keys_ask(qtbot: QtBot) -> None:
    race = make_race(4)
    shown = panel(qtbot, race, 2)
    with qtbot.waitSignal(shown.edit_requested):
        qtbot.mouseClick(shown._name, Qt.MouseButton.LeftButton)
    with qtbot.waitSignal(shown.remove_requested):
        qtbot.mouseClick(shown._remove, Qt.MouseButton.LeftButton)
    with qtbot.waitSignal(shown.move_requested, check_params_cb=lambda step: step == -1):
        qtbot.mouseClick(shown._left, Qt.MouseButton.LeftButton)
    with qtbot.waitSignal(shown.move_requested, check_params_cb=lambda step: step == 1):
        qtbot.keyClick(shown.view, Qt.Key.Key_Right, Qt.KeyboardModifier.AltModifier)
    with qtbot.waitSignal(shown.remove_requested):
        qtbot.keyClick(shown.view, Qt.Key.Key_Delete, Qt.KeyboardModifier.AltModifier)
    shown.set_editable(False)
    with qtbot.assertNotEmitted(shown.move_requested):
        qtbot.keyClick(shown.view, Qt.Key.Key_Right, Qt.KeyboardModifier.AltModifier)
        qtbot.mouseClick(shown._left, Qt.MouseButton.LeftButton)


def test_tokens_pass_through_and_new_lane_replaces(qtbot: QtBot) -> None:
    race = make_race(3)
    stream(race, 1.0)
    shown = panel(qtbot, race, 1)
    shown.view.setFocus()
    with qtbot.waitSignal(shown.token_selected):
        qtbot.keyClick(shown.view, Qt.Key.Key_Right)
    race.lanes[1], race.lanes[2] = race.lanes[2], race.lanes[1]
    shown.set_index(1)
    assert shown._name.text().startswith("prompt-lookup")
    assert len(shown.view.lines.layout) == len(race.lanes[1].tokens)
    for round_ in make_rounds(3):
        race.lanes[1].add(round_)
    assert shown.refresh() and not shown.refresh()


def test_names_are_text(qtbot: QtBot) -> None:
    race = RaceModel()
    race.lanes = [LaneModel("plain", {"method": "plain"}), LaneModel("<b>R&D</b>", {"method": "draft-model", "draft": "<i>x</i>"})]
    shown = panel(qtbot, race, 1)
    assert shown._name.text().startswith("<b>R&&D</b>")
    shown.grab()


def test_all_sizes_and_themes_are_drawn(qtbot: QtBot) -> None:
    app = QApplication.instance()
    assert isinstance(app, QApplication)
    race = make_race(5)
    stream(race, 2.0)
    panels = [panel(qtbot, race, index) for index in range(5)]
    try:
        for name, scale in (("light", 1.0), ("dark", 2.0), ("dark", 1.0)):
            theme.apply(app, name, scale)
            for shown in panels:
                for width, height in ((190, 220), (240, 400), (420, 560)):
                    shown.resize(width, height)
                    shown.refresh_figures()
                    shown.grab()
                    assert shown.view.height() > 0
    finally:
        theme.apply(app, "dark", 1.0)


# -- combined methods ----------------------------------------------------------------------------------


def combined_race(rounds: int = 30) -> RaceModel:
    """A race whose second lane combines two drafters."""
    race = RaceModel()
    race.lanes = [LaneModel("plain", {"method": "plain"}), LaneModel(
        "x-cascade", {"method": "x-cascade", "rule": "greedy", "k": 4, "option_members": "x-simple+draft-model"})]
    for round_ in make_rounds(rounds, drafters=("x-simple", "draft-model")):
        race.lanes[1].add(round_)
    for round_ in make_rounds(rounds, 0):
        race.lanes[0].add(round_)
    return race


def test_shares_of_a_combined_lane_are_those_of_its_rounds(qtbot: QtBot) -> None:
    with made_up_methods():
        race = combined_race()
        shown = panel(qtbot, race, 1)
        rounds = race.lanes[1].rounds
        assert shown._shares.isVisible()
        parts = shown._shares.mark.text.split(" · ")
        assert [part.split(" ")[0] for part in parts] == ["x-simple", "draft-model"]
        for part, name in zip(parts, ("x-simple", "draft-model"), strict=True):
            own = [round_ for round_ in rounds if round_.drafter == name]
            alpha = sum(r.accepted for r in own) / sum(r.judged for r in own)
            assert part == f"{name} {len(own) / len(rounds):.0%} α {alpha:.2f}"
            assert f"{sum(r.accepted for r in own)} / {sum(r.judged for r in own)}" in shown._shares.mark.tip
        assert not panel(qtbot, race, 0)._shares.isVisible()
        # live: another round moves the shares
        before = shown._shares.mark
        for round_ in make_rounds(9, seed=5, drafters=("draft-model",)):
            race.lanes[1].add(round_)
        shown.refresh_figures()
        assert shown._shares.mark != before


def test_members_without_a_draft_and_unexpected_ones_are_named() -> None:
    with made_up_methods():
        metrics = fold(make_rounds(3, drafters=("draft-model",)))
        mark = lane_words.shares(("x-simple", "suffix"), metrics)
        assert mark.text.startswith("x-simple 0% · suffix 0% · draft-model 100% α")
        assert lane_words.shares(("x-simple", "suffix"), fold([])).text == "x-simple → suffix"
        assert lane_words.members({"method": "x-cascade"}) == ("x-simple", "draft-model")
        assert lane_words.members({"method": "draft-model"}) == ()
        assert lane_words.members({"method": "gone"}) == ()


def test_distance_to_the_oracle_once_it_is_known(qtbot: QtBot) -> None:
    with made_up_methods():
        race = combined_race()
        shown = panel(qtbot, race, 1, width=420)
        assert not any("oracle" in note for note in shown._badge.notes)
        metrics = replace(fold(race.lanes[1].rounds), oracle_share=0.934)
        race.apply(LaneEnded(race.run_id, 1, "limit", metrics, speedup=times(1.5)))
        shown.refresh()
        shown.refresh_figures()
        assert shown._badge.notes[0] == "93% of oracle"
        assert "93% of oracle" in shown._badge.shown_notes()
        assert "oracle which always picks" in shown._shares.mark.tip
        shown.grab()


def test_distance_to_the_oracle_has_room_in_the_narrowest_lane(qtbot: QtBot) -> None:
    """Beside every verdict, at the width of five lanes in a small window; cut only below it, then whole in the tip."""
    with made_up_methods():
        race = combined_race()
        shown = panel(qtbot, race, 1, width=MIN_LANE_PX)
        metrics = replace(fold(race.lanes[1].rounds), oracle_share=0.934)
        for equality, words in ((None, "✓ exact rule"), (Equality(True, 128), "= plain, 128 tokens"),
                                (Equality(False, 128, 57, 0.11, 0.2), "≠ plain at 57")):
            race.apply(LaneEnded(race.run_id, 1, "limit", metrics, speedup=times(1.5), equality=equality))
            shown.refresh()
            shown.refresh_figures()
            badge = shown._badge
            text, pad, notes = badge._laid_out(QFontMetricsF(theme.ui_font(11)))
            assert text == words and notes == "93% of oracle" == badge.shown_notes()
            advance = QFontMetricsF(theme.ui_font(11)).horizontalAdvance
            assert advance(text) + 2 * pad + advance(notes) < badge.width()  # they do not touch
            badge.grab()
        shown.resize(160, 480)
        assert shown._badge.shown_notes() in ("", "93%…", "93% …") and "93% of oracle" in shown._badge.toolTip()
        assert shown._badge._laid_out(QFontMetricsF(theme.ui_font(11)))[0].startswith("≠ plain at 57")


def test_what_the_figures_have_no_room_for_stands_beside_the_badge(qtbot: QtBot) -> None:
    """In a narrow panel what it is held against and the prediction move beside the badge; in a wide one they stand with the speedup."""
    race = make_race(3)
    stream(race, 3.0)
    shown = panel(qtbot, race, 1, width=310)
    qtbot.waitUntil(lambda: len(shown._badge.notes) == 2)
    beside, predicted = shown._badge.notes
    assert beside.startswith("plain ") and predicted.startswith("pred. ")
    assert shown._badge.shown_notes() == f"{beside} · {predicted}"
    assert "–" in shown._cells["speedup"].remark
    metrics = race.metrics(race.lanes[1])
    race.apply(LaneEnded(race.run_id, 1, "limit", metrics, speedup=times(1.5), equality=Equality(True, 128)))
    shown.refresh()
    shown.refresh_figures()
    seen = set()
    for width in range(400, 150, -10):
        shown.resize(width, 480)
        qtbot.wait(5)
        words, _, notes = shown._badge._laid_out(QFontMetricsF(theme.ui_font(11)))
        whole = shown._badge.notes
        assert notes in {" · ".join(whole[:count]) for count in range(len(whole) + 1)}, "none is cut in its middle"
        seen.add((words, len(whole), notes.count(" · ") + 1 if notes else 0))
    assert ("= plain", 2, 2) in seen and any(count < all_ for _, all_, count in seen)
    shown.resize(700, 480)
    qtbot.waitUntil(lambda: shown._badge.notes == ())


def test_the_foot_says_the_end_in_few_words_where_room_is_short(qtbot: QtBot) -> None:
    line = StateLine()
    qtbot.addWidget(line)
    line.set_mark(lane_words.state(LaneModel("x", {}, state="ended", end="limit")))
    line.set_count("128 tokens")
    line.resize(300, 20)
    assert line.shown_text() == "token limit reached"
    line.resize(120, 20)
    assert line.shown_text() == "limit" and "token limit reached" in line.toolTip()
    line.grab()


def test_a_lossy_label_takes_no_room_from_the_other_figures(qtbot: QtBot) -> None:
    cell = FigureCell("vs plain", "88.88×")
    qtbot.addWidget(cell)
    plain = cell.natural_width()
    cell.set_value("2.00×", label="vs plain, lossy")
    assert cell.natural_width() == plain
    metrics = QFontMetricsF(theme.ui_font(11))
    cell.resize(round(metrics.horizontalAdvance("vs plain, l")), 40)
    assert cell._painted_label(metrics) == "lossy"
    cell.resize(300, 40)
    assert cell._painted_label(metrics) == "vs plain, lossy"


@pytest.mark.parametrize(("end", "error", "tone"), [("error", "No room.", "bad"), ("stopped", "", "neutral")])
def test_a_lane_without_a_round_has_no_verdict_on_its_output(end: str, error: str, tone: str) -> None:
    lane = LaneModel("x", {"method": "draft-model", "rule": "greedy"}, state="ended", end=end, error=error)
    mark = lane_words.badge(lane)
    assert (mark.text, mark.tone) == ("did not run", tone) and error in mark.tip
    for round_ in make_rounds(1):
        lane.add(round_)
    lane.state, lane.end = "ended", end
    assert "exact rule" in lane_words.badge(lane).text


def test_chips_name_what_differs_from_the_preset_chosen() -> None:
    def texts(**options: object) -> list[str]:
        flat = {"method": "x-simple", **{f"option_{name}": value for name, value in options.items()}}
        return [mark.text for mark in lane_words.chips(flat)]

    with made_up_methods():
        assert texts(preset="code", size_n=12, size_m=48, min_hits=1) == []
        assert texts(preset="text", size_n=8, size_m=48, min_hits=2) == ["preset text"]
        assert texts(preset="text", size_n=9, size_m=48, min_hits=2) == ["preset text", "size n 9"]
        flat = {"method": "x-cascade", "option_members": "x-suffix+x-simple", "option_patience": 2,
                "option_x-suffix.shared": True, "option_x-simple.preset": "text", "option_x-simple.size_n": 8,
                "option_x-simple.min_hits": 2, "option_x-simple.size_m": 48}
        assert [mark.text for mark in lane_words.chips(flat)] == [
            "x-suffix → x-simple", "x-suffix shared on", "x-simple preset text"]
