"""The Why tab over a made-up backend: what it says, draws, selects, measures, and how little it costs."""

from __future__ import annotations

import html
import threading
import time
from dataclasses import replace

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QGuiApplication

from specview.decoding.details import details_of
from specview.errors import SpecviewError, Stopped
from specview.files.figures import METRICS, MISSING
from specview.gui.parts import theme
from specview.gui.parts.charts import Chart
from specview.gui.parts.pages import RACE, WHY
from specview.gui.parts.pass_times import MEASURE
from specview.gui.parts.serve_dialog import ServeDialog
from specview.gui.state.view_model import target_of
from specview.gui.why.page import WhyPage
from specview.lab import calibrate
from specview.lab.explain import explain_lane
from specview.lab.explanation import Banner
from specview.settings.events import RaceEnded
from tests.gui.lanes_fake import DRAFT, PASS_S, PLAIN, feed, lane_rounds, settle, standard

TWO = {**DRAFT, "k": 2}


@pytest.fixture
def bench(make_bench):
    return make_bench(WhyPage)


@pytest.fixture
def page(bench) -> WhyPage:
    return bench.page


def test_before_a_race_it_says_what_to_do_and_leads_there(bench, page, qapp):
    assert page.whole.currentIndex() == 0
    words = page.empty_words
    assert "Run a race" in words.text()
    for scale in (1.0, 1.4):
        theme.apply(qapp, "dark", scale)
        settle()
        assert words.isVisible() and words.height() >= words.heightForWidth(words.width()) > 2 * words.fontMetrics().lineSpacing()
    theme.apply(qapp, "dark", 1.0)
    page.empty_button.click()
    assert bench.opened == [RACE]


def test_it_says_why_in_one_sentence_and_draws_the_waterfall_of_the_lane_that_is_chosen(bench, page, tmp_path):
    feed(bench, [*standard(), ("other", TWO, lane_rounds(60, k=2, alpha=0.8, v=1.1))])
    settle()
    assert page.whole.currentIndex() == 1
    assert page.sentence.text().startswith("Verifying 5 tokens costs 1.6 plain passes here; at acceptance rate ")
    fall = page.explanation.waterfall
    x, heights = page.waterfall.median.values("steps")
    assert list(x) == list(range(7))
    assert heights[0] == 1 and heights[-1] == pytest.approx(fall.net)
    assert heights[:-1].sum() == pytest.approx(fall.net)
    assert list(page.lengths.names) == ["by α", "by positions", "measured"]
    ticks = page.lengths.picture.ticks["x"]
    assert ticks[0] == (0.0, "0") and all(value == int(value) for value, _ in ticks) and len(ticks) <= 13
    _, bars = page.predictions.values("speedup")
    assert bars[-1] == pytest.approx(page.explanation.measured_speedup) and len(bars) == 4
    for name in ("a.png", "a.svg", "a.csv"):
        page.waterfall.median.save(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 100
    assert [page.lanes.itemText(i) for i in range(page.lanes.count())] == ["plain", "draft-model", "other"]
    page.lanes.setCurrentIndex(2)
    assert page.lane.name == "other" and page.explanation.k == 2
    page.lanes.setCurrentIndex(0)
    assert "baseline" in page.sentence.text()


def test_a_round_picked_here_is_selected_in_the_race_and_the_other_way_round(bench, page):
    feed(bench, [*standard(), ("other", TWO, lane_rounds(60, k=2))])
    page.set_per_round(True)
    settle()
    seen = []
    bench.selection.round_selected.connect(lambda *told: seen.append(told))
    page.waterfall.rounds.picked.emit("speed", 7)
    assert seen == [(1, 7, page)]
    assert page.waterfall.rounds.picture.marks["selected"].value == 7
    bench.selection.select(1, 12, object())
    assert page.waterfall.rounds.picture.marks["selected"].value == 12
    page.views.setCurrentIndex(1)
    assert page.details.timeline.bars.selected == 12
    bench.selection.select(2, 3, object())  # one of another lane brings that lane
    assert page.lane.name == page.lanes.currentText() == "other" and page.details.timeline.bars.selected == 3


def test_the_timelines_rounds_are_where_they_are_drawn(bench, page, qtbot):
    feed(bench, standard(30))
    page.views.setCurrentIndex(1)
    settle()
    bars = page.details.timeline.bars
    spans = details_of(page.lane.rounds).timeline
    for place in (0, 11, 29):
        assert bars.round_at(bars._x(spans[place].start_s + spans[place].seconds / 2)) == place
    assert bars.round_at(1) == -1 and bars.round_at(bars.width() + 50) == -1
    x = round(bars._x(spans[5].start_s + spans[5].seconds / 2))
    qtbot.mouseClick(bars, Qt.MouseButton.LeftButton, pos=QPoint(x, bars.height() // 2))
    assert bench.selection.round == 5 and bars.selected == 5
    for key, place in ((Qt.Key.Key_Right, 6), (Qt.Key.Key_End, 29)):
        qtbot.keyClick(bars, key)
        assert bench.selection.round == place
    assert "round 29" in page.details.timeline.words.full


def test_over_a_long_run_the_timeline_and_the_bars_of_rounds_scroll(bench, page):
    feed(bench, standard(500))
    page.views.setCurrentIndex(1)
    settle()
    timeline, total = page.details.timeline, page.lane.rounds[-1].t
    assert timeline.along.maximum() > 0
    assert timeline.bars.start_s + timeline.bars.length_s == pytest.approx(total, abs=0.01)  # it follows the end
    timeline.select(3)
    assert timeline.bars.start_s <= page.lane.rounds[3].t <= timeline.bars.start_s + timeline.bars.length_s
    before = timeline.bars.length_s
    timeline.wider.click()
    assert timeline.bars.length_s == pytest.approx(2 * before)
    page.views.setCurrentIndex(0)
    page.set_per_round(True)
    settle()
    view, picked = page.waterfall, []
    assert view.along.value() == view.along.maximum() > 0
    view.picked.connect(picked.append)
    view.rounds.picked.emit("speed", 0)
    assert picked == [view.along.maximum()]
    bench.selection.select(1, 10, object())
    assert view.along.value() <= 10 < view.along.value() + 96


def test_banners_are_shown_explained_and_dismissed_until_the_next_run(bench, page):
    feed(bench, standard(alpha=0.1, c=0.4))
    row = page.banners

    def kinds():
        return [banner.kind for banner in row.banners]

    assert kinds()[0] == "slower" and "draft-share" in kinds() and "draft-acceptance" in kinds()
    height = row.height()
    assert "Slower than plain" in row.words.full
    row.choose("draft-share")
    assert "Drafting takes" in row.words.full
    row.dismiss("slower")
    assert "slower" not in kinds()
    bench.controller.number_tick.emit()
    assert "slower" not in kinds()
    row.show_banners(())
    assert row.height() == height and row.words.full == "No warnings."  # nothing jumps
    feed(bench, standard(alpha=0.1, c=0.4), run_id=1001)
    assert "slower" in kinds()
    row.show_banners((Banner("few-rounds", "only 3 rounds", "Only 3 rounds."),))
    chip = row._chips[0][0]
    row.show_banners((Banner("few-rounds", "only 4 rounds", "Only 4 rounds."),))  # a figure changes: its chip stays
    assert row._chips[0][0] is chip and "4" in row._chips[0][1].text() and "4" in row.words.full


def test_the_table_has_every_figure_of_the_design_with_its_formula(bench, page):
    name = "a lane with an exceedingly long name, longer than anybody should call it"
    feed(bench, [standard()[0], (name, DRAFT, lane_rounds(60))])
    page.views.setCurrentIndex(2)
    settle()
    table = page.figures
    named = (
        "acceptance_rate draft_acceptance tokens_per_target_pass mean_accepted_length position_acceptance "
        "position_acceptance_conditional decode_tokens_per_s total_s ttft_s itl_p50_s itl_p95_s tpot_s draft_share "
        "verify_share other_share draft_cost verify_cost expected_tokens predicted_speedup "
        "predicted_speedup_measured_verify rounds proposed judged accepted ignored emitted speedup"
    )
    assert set(named.split()) <= set(METRICS) and len(METRICS) == table.rowCount()
    for place, metric in enumerate(METRICS.values()):
        assert metric.formula in html.unescape(table.item(place, 1).toolTip())
        assert table.item(place, 3).text() == metric.formula
    plain, own = ({name: table.item(place, column).text() for place, name in enumerate(METRICS)} for column in (1, 2))
    metrics = bench.controller.race.metrics(page.lane)
    assert own["acceptance_rate"] == f"{metrics.acceptance_rate:.2f}" and own["position_acceptance"].count("·") == 3
    assert own["weights"] == "98 MB" and own["kv_cache"] == "12 MB"
    assert plain["acceptance_rate"] == MISSING == plain["speedup"]
    table.copy()
    copied = QGuiApplication.clipboard().text().splitlines()
    assert len(copied) == len(METRICS) + 1 and copied[0].split("\t") == ["figure", "plain", name, "formula"]
    assert table.columnWidth(2) < 0.3 * page.width()  # there is room for other lanes


def test_the_lane_explained_can_be_taken_to_a_server(bench, page):
    assert page.serve.isEnabled() and page.serve.toolTip()
    page.serve.click()
    asked = page.findChildren(ServeDialog)
    assert len(asked) == (page.lane is not None)
    for one in asked:
        one.reject()


def test_without_entropies_it_says_how_to_get_them(bench, page):
    bare = [replace(r, drafted=tuple(replace(t, entropy=None) for t in r.drafted)) for r in lane_rounds(30)]
    feed(bench, [("plain", PLAIN, lane_rounds(60, k=0)), ("draft-model", DRAFT, bare)])
    page.views.setCurrentIndex(1)
    settle()
    assert "not recorded" in page.details.entropy.said
    assert page.details.positions.names == ["unconditional", "conditional"]


def test_v_of_k_is_measured_on_the_engine_thread_and_refines_the_best_k(bench, page, qtbot, monkeypatch):
    asked = []

    def measured(pool, settings, k, *, tell, should_stop, afresh):
        asked.append((threading.current_thread().name, settings.target, k, afresh))
        tell("Measuring the target's passes", 0.5)
        return {rows: PASS_S * (1 + 0.15 * (rows - 1)) for rows in range(1, 10)}

    def broken(*_, **__):
        raise SpecviewError("the target's file is gone.", "Choose another target.")

    def stopped(*_, should_stop, **__):
        raise Stopped

    feed(bench, standard())
    before = page.sentence.text()
    monkeypatch.setattr(calibrate, "calibrate_passes", broken)
    page.measure.click()
    qtbot.waitUntil(lambda: "is gone" in "".join(bench.messages))
    assert page.sentence.text() == before and page.calibrated is None
    monkeypatch.setattr(calibrate, "calibrate_passes", stopped)
    qtbot.waitUntil(page.measure.isEnabled)
    page.measure.click()
    qtbot.waitUntil(lambda: "stopped" in page.measured_words.full)
    assert page.calibrated is None
    monkeypatch.setattr(calibrate, "calibrate_passes", measured)
    qtbot.waitUntil(page.measure.isEnabled)
    assert [point.k for point in page.explanation.lengths] == [0, 1, 2, 3, 4]
    page.measure.click()
    assert not page.measure.isEnabled() and bench.controller.busy_with == MEASURE
    qtbot.waitUntil(lambda: page.calibrated is not None)
    assert asked[0][1:] == ("bundled", 4, True) and asked[0][0] != "MainThread"
    assert [point.k for point in page.explanation.lengths] == list(range(9))
    assert page.explanation.lengths[8].source == "calibrated"
    assert "1 to 9 rows" in page.measured_words.full
    qtbot.waitUntil(page.measure.isEnabled)


def test_what_if_gets_the_lane_and_what_was_measured_of_its_target(bench, page, monkeypatch):
    feed(bench, standard())
    shown = []

    def show_lane(self, lane, plain, calibrated=None):
        shown.append((lane.name, None if plain is None else plain.name, calibrated))

    monkeypatch.setattr("specview.gui.why.what_if.WhatIfPanel.show_lane", show_lane)
    known = page._measuring.known
    known[target_of({**DRAFT, "engine": "llama.cpp"})] = {1: 1.0, 2: 9.0}
    page.views.setCurrentIndex(3)
    assert shown[-1] == ("draft-model", "plain", None) and page.calibrated is None
    known[target_of(page.lane.settings)] = {1: 0.05, 5: 0.08}
    page._shown = ()
    page.refresh()
    assert shown[-1][2] == {1: 0.05, 5: 0.08}
    page.show_lane(0)
    assert shown[-1][:2] == ("plain", None)


def test_while_hidden_it_draws_nothing(bench, page, monkeypatch):
    feed(bench, standard(20))
    page.left()
    calls = []
    monkeypatch.setattr("specview.gui.why.page.explain_lane", lambda *a, **k: calls.append(a) or explain_lane(*a, **k))
    feed(bench, standard(40), run_id=1001)
    assert calls == []
    page.opened()
    assert len(calls) >= 1 and page.explanation.rounds == 40
    count = len(calls)
    bench.controller.number_tick.emit()
    assert len(calls) == count  # nothing new, nothing drawn


def test_while_a_race_runs_it_rests_in_proportion_to_what_it_took(bench, page, monkeypatch):
    feed(bench, standard(20), end=False)
    monkeypatch.setattr(type(bench.controller), "racing", property(lambda self: True))
    page._began, page._rest_until = time.perf_counter() - 0.5, 0.0  # as if a redraw had taken half a second
    page._rest()
    looks = []
    monkeypatch.setattr(page, "refresh", lambda: looks.append(True))
    page._tick()
    assert looks == []
    page._rest_until = 0.0
    page._tick()
    assert looks == [True]
    page._rest_until = time.perf_counter() + 1000.0
    monkeypatch.setattr(type(bench.controller), "racing", property(lambda self: False))
    page._tick()  # the race's end is always drawn
    assert looks == [True, True]


def test_both_themes_and_a_larger_font_draw_without_a_word_cut_and_low_windows_scroll(bench, page, qapp):
    feed(bench, standard())
    page.show_lane(1)
    for name, scale, height in (("light", 1.0, 700), ("dark", 1.4, 560)):
        theme.apply(qapp, name, scale)
        page.resize(1280 if height == 700 else 1000, height)
        for view in range(page.views.count()):
            page.views.setCurrentIndex(view)
            settle()
            for chart in page.stack.currentWidget().findChildren(Chart):
                if chart.isVisible():
                    assert chart.plot.height() >= theme.px(45), (view, chart.title, chart.plot.height())
        assert page.sentence.height() >= 2 * page.sentence.fontMetrics().lineSpacing()
        assert not page.grab().isNull()
    theme.apply(qapp, "dark", 1.0)


def test_what_was_looked_at_is_remembered(bench, page):
    page.views.setCurrentIndex(1)
    page.set_per_round(True)
    assert page.kept() == {"view": "Rounds and tokens", "per_round": True}
    page.restore({"view": "All figures", "per_round": False})
    assert page.kept() == {"view": "All figures", "per_round": False}
    page.restore({"view": "no such view", "per_round": "yes", "more": 1})
    assert page.kept() == {"view": "All figures", "per_round": False}


def test_in_the_window_a_slow_lane_says_so_leads_here_and_rounds_are_picked_both_ways(window):
    feed(window, standard(alpha=0.1, c=0.4), end=False)
    assert window.page.panels[1].why.isHidden()  # a lane under way is not yet called slow
    lanes = [*standard(alpha=0.1, c=0.4), ("fast", TWO, lane_rounds(90, k=2, alpha=0.9, v=1.05))]
    feed(window, lanes, run_id=1001)
    plain, slow, fast = window.page.panels
    assert not slow.why.isHidden() and "plain passes here" in slow.why.sentence
    assert plain.why.isHidden() and fast.why.isHidden()
    slow.why.click()
    page = window.tabs.page(WHY)
    assert window.tabs.current == WHY and isinstance(page, WhyPage) and page.lane.name == "draft-model"
    assert slow.why.sentence == page.sentence.text()
    page.set_per_round(True)
    page.waterfall.rounds.picked.emit("speed", 7)
    assert slow.view.current()[0] == 7  # the race's own text has it selected
    slow.view.select_token(9, -1)
    window.page._token_selected(slow, 9, -1)
    assert page.waterfall.rounds.picture.marks["selected"].value == 9


def test_in_the_window_a_round_picked_while_a_race_runs_stays_picked_when_it_ends(window):
    feed(window, standard(), end=False)
    window.tabs.open("Why")
    page = window.tabs.page("Why")
    page.views.setCurrentIndex(1)
    settle()
    page.details.timeline.picked.emit(9)
    assert (window.selection.lane, window.selection.round) == (1, 9)
    race = window.controller.race
    window.controller.engine._events.append(RaceEnded(race.run_id, "done", 0.9))
    window.controller._on_text()
    assert race.state == "ended"
    assert (window.selection.lane, window.selection.round) == (1, 9) and page.details.timeline.bars.selected == 9
    feed(window, standard(), run_id=1001)  # another race has other rounds
    assert (window.selection.lane, window.selection.round) == (-1, -1)
    assert page.details.timeline.bars.selected == -1
