"""Lane panels: name, number, line of figures, verdict, state words, menu."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from specview.decoding.metrics import fold
from specview.decoding.speedup import speedup
from specview.files.figures import METRICS, MISSING, number, probability, rate
from specview.gui.lanes.panel import LanePanel
from specview.gui.parts import theme
from specview.gui.race.page import MIN_LANE_PX
from specview.gui.state import figures, lane_words
from specview.gui.state.lane_words import Piece
from specview.gui.state.view_model import LaneModel, RaceModel
from specview.settings.events import Equality, LaneEnded, LaneRound, Progress, RaceEnded
from tests.decoding.speedups import times
from tests.gui.methods_fake import made_up_methods
from tests.gui.views_data import LANES, lane_rounds, make_race, make_rounds, stream


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


def test_a_lanes_name_says_what_it_is_set_up_as() -> None:
    texts = [[mark.text for mark in lane_words.setup(settings)] for _, settings, _ in LANES]
    assert texts[0] == ["one token a pass"]
    assert texts[1] == ["smol-draft", "k 4", "constant", "rejection"]
    assert texts[2] == ["n 3–1", "k 8", "constant", "rejection"]
    assert "lossy" in texts[3] and "lossy" not in texts[4]
    assert texts[4][0] == "a-draft" and "/home/someone/models/a-draft.gguf" in lane_words.about(LANES[4][1])
    changed = lane_words.setup({"method": "prompt-lookup", "k": 4, "option_match": "last"})
    assert [mark.text for mark in changed] == ["k 4", "match last"]
    tips = {name: lane_words.setup({"method": name, "k": 4})[0].tip for name in ("suffix", "lookahead", "auto")}
    assert tips["suffix"] == "Tokens drafted in a round, at most."
    assert tips["lookahead"].startswith("The longest path") and "a member" in tips["auto"]
    shapes = [lane_words.setup({"method": "eagle3", "k": 4, "option_tree": shape})[0] for shape in ("chain", "dynamic")]
    assert shapes[0].tip == tips["suffix"] and shapes[1].tip == tips["lookahead"]


@pytest.mark.parametrize(("name", "method", "title"), [
    ("eagle3", "eagle3", "EAGLE-3"), ("prompt-lookup k=2", "prompt-lookup", "prompt lookup k=2"), ("mine", "eagle3", "mine"),
    ("draft-modelling", "draft-model", "draft-modelling"), ("gone", "gone", "gone"),
])  # fmt: skip
def test_lanes_are_called_by_their_methods_labels(name: str, method: str, title: str) -> None:
    assert lane_words.title(LaneModel(name, {"method": method})) == title


def test_verdicts() -> None:
    lane = LaneModel("x", {"method": "draft-model", "rule": "greedy"})
    assert lane_words.verdict(LaneModel()).text == ""
    assert lane_words.verdict(lane).text == "✓ exact"
    lane.equality = Equality(True, 128)
    mark = lane_words.verdict(lane)
    assert mark.text == "✓ same text" and mark.tone == "good" and "128 tokens" in mark.tip
    lane.equality = Equality(False, 60, 43, 0.12, 0.2)
    mark = lane_words.verdict(lane)
    assert mark.text == "≠ differs at 43" and mark.tone == "neutral" and "rounding" in mark.tip
    lane.equality = Equality(False, 60, 43, 1.2, 0.2)
    assert lane_words.verdict(lane).tone == "bad"
    lane.equality = Equality(False, 60, 43, 1.2, None)
    assert lane_words.verdict(lane).tone == "warning" and "not measured" in lane_words.verdict(lane).tip
    lane.stale = True
    assert lane_words.verdict(lane).text == "run before"
    typical = LaneModel("x", {"method": "draft-model", "rule": "typical"})
    assert lane_words.verdict(typical).text == "lossy"
    auto = LaneModel("x", {"method": "draft-model", "rule": "auto"})
    assert lane_words.verdict(auto).text == ""


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
    assert "no drafts from token" in shown.notice.accessibleName() and shown.notice.isVisible()
    lane.state, lane.end = "ended", "limit"
    mark = lane_words.state(lane)
    assert mark.text == f"token limit reached · no drafts from token {before + 1}"


def ended(race: RaceModel) -> RaceModel:
    """The race as it ended: lane 2 with another text than plain's."""
    plain = race.lanes[0].table
    for index, lane in enumerate(race.lanes):
        metrics = fold(lane.table, plain_step_s=plain.plain_step_s())
        equality = Equality(index != 2, 128, None if index != 2 else 12) if index else None
        race.apply(LaneEnded(race.run_id, index, "limit", metrics, "", speedup(lane.table, plain) if index else None, equality))
    race.apply(RaceEnded(race.run_id, "done", 0.4))
    return race


def pieces(shown: LanePanel) -> dict[str, Piece]:
    """A panel's figures by their names."""
    return {piece.name: piece for piece in shown.line.pieces}


def test_panel_shows_the_metrics(qtbot: QtBot) -> None:
    race = make_race(3)
    stream(race, 3.0)
    shown = panel(qtbot, race, 1)
    metrics = fold(race.lanes[1].rounds)
    found = pieces(shown)
    faster = race.speedup(race.lanes[1])
    assert faster is not None and found["decode_tokens_per_s"].value == rate(faster.tokens_per_s)
    assert faster.whole and "plain" not in found["decode_tokens_per_s"].text(), "the plain lane beside it shows its tok/s"
    assert found["tokens_per_target_pass"].text() == f"{number(metrics.tokens_per_target_pass)} tokens a pass"
    assert found["acceptance_rate"].text() == f"accepts {number(metrics.acceptance_rate)}"
    assert "accepted / judged" in found["acceptance_rate"].tip
    assert f"{metrics.accepted} / {metrics.judged}" in found["acceptance_rate"].tip
    assert found["k"].text() == "k 4" and found["verdict"].value == "✓ exact"
    assert shown.number.shown.text == f"{faster.value:.1f}×" and "predicts" in shown.number.toolTip()
    assert "middle half of its eighths" in shown.number.toolTip() and "–" in shown.number.shown.spread
    assert shown.bar.fraction == 0 or shown.bar.fraction is None
    assert shown.accessibleName() == "Lane draft-model" and shown._name.accessibleName() == "draft model"
    plain = panel(qtbot, race, 0)
    assert plain.line.shown_text().endswith("tok/s") and len(plain.line.pieces) == 1
    assert plain.number.shown.text == "1×" and plain.number.shown.muted
    race.lanes[1].differs = "other prompt"
    shown.refresh_figures()
    assert shown.number.shown.text == MISSING and "other prompt" in shown.number.toolTip()


def test_the_number_is_what_the_rates_shown_divide_to(qtbot: QtBot) -> None:
    """5.61 beside 2.39 tok/s reads as their quotient, whatever each lane's end was."""
    race = ended_after(33)
    shown = panel(qtbot, race, 1)
    faster = race.speedup(race.lanes[1])
    assert faster is not None
    value = float(pieces(shown)["decode_tokens_per_s"].value)
    assert abs(value / faster.plain_tokens_per_s - float(shown.number.shown.text[:-1])) < 0.06
    assert f"over {faster.tokens:.0f} tokens" in pieces(shown)["decode_tokens_per_s"].text(), "it ended at another length"


def ended_after(rounds: int) -> RaceModel:
    """A race whose second lane ended early."""
    race = make_race(2)
    for index, count in ((0, 60), (1, rounds)):
        for round_ in make_rounds(count, 4 * index):
            race.apply(LaneRound(1, index, round_))
    return ended(race)


def test_the_fastest_lane_has_an_edge_once_all_have_ended(qtbot: QtBot) -> None:
    race = make_race(3)
    stream(race, 3.0)
    panels = [panel(qtbot, race, index) for index in range(3)]
    assert not any(one.winner for one in panels)
    ended(race)
    for one in panels:
        one.refresh()
        one.refresh_figures()
    assert [one.winner for one in panels] == [False, False, True] and panels[2].accessibleDescription()
    race.lanes[2].stale = True
    panels[2].refresh_figures()
    assert not panels[2].winner


def test_where_nothing_was_faster_plain_is(qtbot: QtBot) -> None:
    race = make_race(2)
    for index, count in ((0, 60), (1, 60)):
        for round_ in make_rounds(count, 4 * index, alpha=0.0, step_s=0.04 * (1 + index)):
            race.apply(LaneRound(1, index, round_))
    assert lane_words.winner(race) is None
    assert lane_words.winner(ended(race)) is race.lanes[0]


def test_nothing_jumps_as_numbers_change(qtbot: QtBot) -> None:
    race = make_race(2)
    shown = panel(qtbot, race, 1)
    race.lanes[1].state = "loading"
    race.apply(Progress(1, "prefill", "Prefill 9 of 131 tokens", 0.1, lane=1))
    shown.refresh()
    shown.refresh_figures()
    assert shown.bar.fraction == 0.1 and "Prefill" in shown.bar.accessibleDescription()
    stream(race, 0.5)
    shown.refresh()
    shown.refresh_figures()
    before = shown.view.geometry(), shown.number.geometry()
    places = {one.piece.name: one.area.left() for one in shown.line._placed()}
    for index, lane in enumerate(race.lanes):
        for round_ in lane_rounds(index, 60)[len(lane.rounds):]:
            race.apply(LaneRound(1, index, round_))
            shown.refresh()
            shown.refresh_figures()
            now = {one.piece.name: one.area.left() for one in shown.line._placed()}
            assert all(now[name] >= places[name] - 1 for name in places), "a figure's room does not shrink"
            places = now
    assert (shown.view.geometry(), shown.number.geometry()) == before


def test_an_error_is_told_in_full_beneath_the_text(qtbot: QtBot) -> None:
    race = make_race(2)
    stream(race, 1.0)
    shown = panel(qtbot, race, 1, width=262)
    top = shown.view.geometry().top()
    assert not shown.notice.isVisible()
    error = "The target gave NaN logits at position 17. " * 4
    race.apply(LaneEnded(1, 1, "error", fold(race.lanes[1].rounds), error))
    shown.refresh()
    assert shown.notice.isVisible() and " ".join(shown.notice.lines) == error.strip() and shown.notice.mark.tone == "bad"
    qtbot.waitUntil(lambda: shown.notice.geometry().bottom() < shown.height() and shown.notice.width() > 200)
    assert shown.view.geometry().top() == top
    race.apply(LaneEnded(1, 1, "limit", fold(race.lanes[1].rounds)))
    shown.refresh()
    shown.refresh_figures()
    assert not shown.notice.isVisible() and "token limit reached" in shown.bar.accessibleDescription()


@pytest.mark.parametrize(("width", "rows"), [(410, 1), (262, 2), (MIN_LANE_PX, 2)])
def test_every_figure_has_its_label_in_every_width(qtbot: QtBot, width: int, rows: int) -> None:
    race = make_race(5)
    stream(race, 3.0)
    ended(race)
    for index in range(1, 5):
        shown = panel(qtbot, race, index, width, 400)
        assert shown.line.rows == rows
        text = shown.line.shown_text()
        assert "tok/s" in text and "pass" in text and "accepts" in text and f"k {race.lanes[index].settings['k']}" in text
        verdict = lane_words.verdict(race.lanes[index])
        assert text.endswith((verdict.text, verdict.short))
        for one in shown.line._placed():
            assert one.area.right() <= shown.line.width() + 1
        areas = [one.area for one in shown.line._placed()]
        assert not any(a.adjusted(1, 1, -1, -1).intersects(b) for a in areas for b in areas if a is not b)


@pytest.mark.parametrize(("width", "height", "most"), [(410, 480, 90), (262, 420, 108), (262, 220, 70)])
def test_the_head_leaves_the_room_to_the_text(qtbot: QtBot, width: int, height: int, most: int) -> None:
    race = make_race(3)
    stream(race, 1.0)
    panels = [panel(qtbot, race, index, width, height) for index in range(3)]
    heads = {one.view.geometry().top() for one in panels}
    assert len(heads) == 1 and heads.pop() <= most, "texts of all lanes begin at one height"


def test_a_panel_is_shown_larger_to_a_room(qtbot: QtBot) -> None:
    race = make_race(2)
    stream(race, 1.0)
    usual = panel(qtbot, race, 1, 410, 480)
    large = LanePanel(race, 1, scale=2.0, number_px=60)
    qtbot.addWidget(large)
    large.resize(820, 960)
    with qtbot.waitExposed(large):
        large.show()
    assert large.line.height() > 1.8 * usual.line.height() and large.number.height() > 3 * usual.number.height()
    assert large.line.shown_text() == usual.line.shown_text()


@pytest.mark.parametrize("width", [244, 258])  # of five at 1280 and at 1366
def test_the_name_of_one_of_five_lanes_on_a_small_screen_is_whole(qtbot: QtBot, width: int) -> None:
    race = make_race(3)
    stream(race, 1.0)
    assert panel(qtbot, race, 2, width, 434)._name.text() in ("prompt-lookup", "prompt lookup")


def test_a_figures_tip_is_under_the_mouse(qtbot: QtBot) -> None:
    race = make_race(2)
    stream(race, 3.0)
    shown = panel(qtbot, race, 1, 420)
    for one in shown.line._placed():
        assert shown.line.tip_at(one.area.center()) == one.piece.tip != ""


def choose(shown: LanePanel, text: str) -> None:
    """Take an entry of a panel's menu."""
    shown._fill_menu()
    next(action for action in shown.menu.actions() if action.text().startswith(text)).trigger()


def test_name_menu_and_keys_ask(qtbot: QtBot) -> None:
    race = make_race(4)
    stream(race, 1.0)
    shown = panel(qtbot, race, 2)
    with qtbot.waitSignal(shown.edit_requested):
        qtbot.mouseClick(shown._name, Qt.MouseButton.LeftButton)
    for text, signal in (("Change", shown.edit_requested), ("Remove", shown.remove_requested)):
        with qtbot.waitSignal(signal):
            choose(shown, text)
    with qtbot.waitSignal(shown.move_requested, check_params_cb=lambda step: step == -1):
        choose(shown, "Move left")
    with qtbot.waitSignal(shown.move_requested, check_params_cb=lambda step: step == 1):
        qtbot.keyClick(shown.view, Qt.Key.Key_Right, Qt.KeyboardModifier.AltModifier)
    with qtbot.waitSignal(shown.remove_requested):
        qtbot.keyClick(shown.view, Qt.Key.Key_Delete, Qt.KeyboardModifier.AltModifier)
    choose(shown, "Copy output")
    assert QApplication.clipboard().text() == race.lanes[2].text
    shown.set_editable(False)
    with qtbot.assertNotEmitted(shown.move_requested):
        qtbot.keyClick(shown.view, Qt.Key.Key_Right, Qt.KeyboardModifier.AltModifier)
        choose(shown, "Move left")


def test_a_long_name_is_cut_and_the_number_is_not(qtbot: QtBot) -> None:
    race = make_race(2)
    stream(race, 1.0)
    race.lanes[1].name = "a name that somebody gave his lane and that goes on"
    shown = panel(qtbot, race, 1, 262)
    assert shown._name.text().endswith("…") and race.lanes[1].name in shown._name.accessibleDescription()
    assert shown._more.geometry().right() < shown.number.geometry().left() + 1
    assert shown.number.width() >= shown.number.least_width() - 2


def test_tokens_pass_through_and_new_lane_replaces(qtbot: QtBot) -> None:
    race = make_race(3)
    stream(race, 1.0)
    shown = panel(qtbot, race, 1)
    shown.view.setFocus()
    with qtbot.waitSignal(shown.token_selected):
        qtbot.keyClick(shown.view, Qt.Key.Key_Right)
    race.lanes[1], race.lanes[2] = race.lanes[2], race.lanes[1]
    shown.set_index(1)
    assert shown._name.text().startswith("prompt lookup")
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
        assert shown.shares.isVisible()
        parts = shown.shares.mark.text.split(" · ")
        assert [part.split(" ")[0] for part in parts] == ["x-simple", "draft-model"]
        for part, name in zip(parts, ("x-simple", "draft-model"), strict=True):
            own = [round_ for round_ in rounds if round_.drafter == name]
            alpha = sum(r.accepted for r in own) / sum(r.judged for r in own)
            assert part == f"{name} {len(own) / len(rounds):.0%} α {alpha:.2f}"
            assert f"{sum(r.accepted for r in own)} / {sum(r.judged for r in own)}" in shown.shares.mark.tip
        assert not panel(qtbot, race, 1, width=262).shares.isVisible() and not panel(qtbot, race, 0).shares.isVisible()
        # live: another round moves the shares
        before = shown.shares.mark
        for round_ in make_rounds(9, seed=5, drafters=("draft-model",)):
            race.lanes[1].add(round_)
        shown.refresh_figures()
        assert shown.shares.mark != before


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
        assert "oracle" not in shown.shares.mark.text
        metrics = replace(fold(race.lanes[1].rounds), oracle_share=0.934)
        race.apply(LaneEnded(race.run_id, 1, "limit", metrics, speedup=times(1.5)))
        shown.refresh()
        shown.refresh_figures()
        assert shown.shares.mark.text.startswith("93% of oracle · ")
        assert "oracle which always picks" in shown.shares.mark.tip
        shown.grab()


@pytest.mark.parametrize(("end", "error", "tone"), [("error", "No room.", "bad"), ("stopped", "", "neutral")])
def test_a_lane_without_a_round_has_no_verdict_on_its_output(end: str, error: str, tone: str) -> None:
    lane = LaneModel("x", {"method": "draft-model", "rule": "greedy"}, state="ended", end=end, error=error)
    mark = lane_words.verdict(lane)
    assert (mark.text, mark.tone) == ("did not run", tone) and error in mark.tip
    for round_ in make_rounds(1):
        lane.add(round_)
    lane.state, lane.end = "ended", end
    assert "exact" in lane_words.verdict(lane).text


def test_the_name_says_what_differs_from_the_preset_chosen() -> None:
    def texts(**options: object) -> list[str]:
        flat = {"method": "x-simple", **{f"option_{name}": value for name, value in options.items()}}
        return [mark.text for mark in lane_words.setup(flat)]

    with made_up_methods():
        assert texts(preset="code", size_n=12, size_m=48, min_hits=1) == []
        assert texts(preset="text", size_n=8, size_m=48, min_hits=2) == ["preset text"]
        assert texts(preset="text", size_n=9, size_m=48, min_hits=2) == ["preset text", "size n 9"]
        flat = {"method": "x-cascade", "option_members": "x-suffix+x-simple", "option_patience": 2,
                "option_x-suffix.shared": True, "option_x-simple.preset": "text", "option_x-simple.size_n": 8,
                "option_x-simple.min_hits": 2, "option_x-simple.size_m": 48}
        assert [mark.text for mark in lane_words.setup(flat)] == [
            "x-suffix → x-simple", "x-suffix shared on", "x-simple preset text"]
