"""The Theory tab over a made-up backend: live figures, handles, lanes as points; concurrency measured as a job."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from PySide6.QtCore import Qt

from specview.decoding import theory
from specview.errors import SpecviewError, Stopped
from specview.gui.parts import theme
from specview.gui.theory import concurrency as concurrency_panel
from specview.gui.theory.explorer import Point
from specview.gui.theory.page import TheoryPage
from specview.lab.acceptance import stated_acceptance
from specview.lab.concurrency import combine
from specview.settings.events import LaneRound
from tests.decoding.test_theory import TABLES
from tests.gui.lanes_fake import PASS_S, feed, settle, standard
from tests.lab.test_concurrency import measured, roofed


@pytest.fixture
def bench(make_bench):
    return make_bench(TheoryPage)


@pytest.fixture
def panel(bench):
    return bench.page.theory


@pytest.fixture
def shared(bench):
    bench.page.views.setCurrentIndex(1)
    return bench.page.concurrency



# -- the explorer ------------------------------------------------------------------------------------


def test_the_facts_are_the_formulas_at_the_fields(panel, qtbot):
    panel.alpha.set_value(0.62)
    panel.k.set_value(3)
    panel.c.set_value(0.2)
    panel.v.set_value(1.5)
    settle()
    assert panel.point.speedup() == pytest.approx(theory.speedup(0.62, 3, 0.2, 1.5))
    facts = {name: fact.value.text() for name, fact in panel.facts.items()}
    assert facts["speedup"] == f"{theory.speedup(0.62, 3, 0.2, 1.5):.2f}×"
    assert facts["tokens per pass"] == f"{theory.expected_tokens(0.62, 3):.2f}"
    assert facts["breaks even at α"] == f"{theory.break_even_alpha(3, 0.2, 1.5):.2f}"
    best = theory.best_k(0.62, 0.2, theory.constant_v(1.5), 64)
    assert facts["best k"].startswith("plain" if best == 0 else str(best))
    assert facts["α k says"] == f"{0.62 * 3:.2f} accepted, {theory.rule_of_thumb_error(0.62, 3):.2f} too many"
    assert "i.i.d." in panel.assumption.full
    places = [fact.pos() for fact in panel.facts.values()]
    for edit, step in ((panel.alpha, 0.01), (panel.k, 1), (panel.c, 0.01), (panel.v, 0.05)):  # the keyboard moves everything
        before = edit.value()
        edit.setFocus()
        qtbot.keyClick(edit, Qt.Key.Key_Up)
        assert edit.value() == pytest.approx(before + step)
    settle()
    assert (panel.point.alpha, panel.point.k) == (pytest.approx(0.63), 4)
    for text in ("", "x", "nan", "1.5", "-1"):  # what does not fit is marked, and changes nothing
        panel.alpha.setText(text)
        settle()
        assert panel.alpha.problem() and panel.alpha.property("invalid") == "true", text
        assert panel.point.alpha == pytest.approx(0.63), text
    panel.set_point(Point(0.99, 64, 0.0))
    settle()
    assert panel.facts["best k"].value.text().startswith("64 (")
    assert [fact.pos() for fact in panel.facts.values()] == places  # they stand still while their figures change


def test_curves_and_heat_map_follow(panel):
    panel.set_point(Point(0.8, 5, 0.05, value=1.2))
    settle()
    x, y = panel.over_k.values("α 0.80, as set")
    assert list(x) == list(range(13)) and y[0] == 1
    assert y[5] == pytest.approx(theory.speedup(0.8, 5, 0.05, 1.2))
    x, y = panel.over_alpha.values("k 5, as set")
    assert y[80] == pytest.approx(theory.speedup(0.8, 5, 0.05, 1.2)) and y[-1] == pytest.approx(6 / 1.45)
    heat = panel.heat.picture.heat
    assert heat.z[0, 0] == pytest.approx(theory.speedup(heat.x[0], 5, heat.y[0], 1.2))
    assert heat.x[0] == pytest.approx(0.0125) and heat.x[-1] == pytest.approx(0.9875)
    x, y = panel.heat.values("speedup 1")  # the line where nothing is gained or lost
    alpha, c = x[10], y[10]
    assert theory.speedup(alpha, 5, c, 1.2) == pytest.approx(1)
    _, tokens = panel.tokens.values("expected tokens")
    _, rough = panel.tokens.values("1 + α k, the rule of thumb")
    assert rough[5] - tokens[5] == pytest.approx(theory.rule_of_thumb_error(0.8, 5))


def test_handles_drag_alpha_k_c_and_v(panel):
    settle()
    for chart, name, to, field, expected in (
        (panel.over_alpha, "α", 0.55, panel.alpha, 0.55),
        (panel.over_k, "k", 6.4, panel.k, 6),
        (panel.heat, "c", 0.3, panel.c, 0.3),
        (panel.over_cost, "v", 1.7, panel.v, 1.7),
    ):
        chart.plot.lines[name].setValue(to)
        settle()
        assert field.value() == pytest.approx(expected)
    assert panel.facts["speedup"].value.text() == f"{theory.speedup(0.55, 6, 0.3, 1.7):.2f}×"
    # The other chart's handle of the same figure went along.
    assert panel.heat.plot.lines["α"].value() == pytest.approx(0.55)
    panel.heat.plot.lines["α"].setValue(3.0)  # bounded
    settle()
    assert panel.point.alpha == 1
    for name, value in (("α", 0.8023456789), ("c", 1.60474747), ("v", 2.718281828)):  # it fits into its field
        panel._moved(name, value)
    settle()
    assert (panel.alpha.text(), panel.c.text(), panel.v.text()) == ("0.802", "1.605", "2.718")
    panel.mode.setCurrentIndex(1)
    panel.k.set_value(4)
    panel.v.set_value(0.25)
    settle()
    assert panel.point.v(4) == 2.0 and panel.v_field.caption.text() == "r"
    panel.over_cost.plot.lines["v"].setValue(1.8)  # v at this k; r follows
    settle()
    assert panel.point.per_row == pytest.approx(0.2) and panel.v.value() == pytest.approx(0.2)


def test_the_chart_under_the_hand_is_drawn_when_it_is_let_go(panel):
    settle()
    line = panel.over_cost.plot.lines["v"]
    line.moving = True
    line.setValue(2.0)
    settle()
    assert panel.over_cost.plot.lines["v"] is line  # not taken out of the hand
    assert panel.v.value() == pytest.approx(2.0)
    line.moving = False
    line.sigPositionChangeFinished.emit(line)
    settle()
    assert "over c, at v 2.00" in panel.over_cost.names


def test_the_literatures_tables_stand_there_to_two_decimals(panel):
    for place, c in enumerate(theory.TABLE_COSTS):
        panel.which.setCurrentIndex(place)
        for row, alpha in enumerate(theory.TABLE_ALPHAS):
            texts = [panel.table.item(row, column).text() for column in range(8)]
            assert texts == [f"{value:.2f}" for value in TABLES[c][alpha]]
            bold = [column for column in range(8) if panel.table.item(row, column).font().bold()]
            assert bold == [theory.best_k(alpha, c, limit=8) - 1]
    panel.which.set_value("free")
    panel._fill_table()
    for row, (alpha, k, operations, factor) in enumerate(theory.FREE_DRAFTS):
        texts = [panel.table.item(row, column).text() for column in range(4)]
        assert texts == [f"{alpha:g}", str(k), f"{operations:.2f}×", f"{factor:.2f}×"]


def test_the_races_lanes_are_points_and_their_figures_can_be_taken(bench, panel):
    feed(bench, standard(count=400))
    settle()
    ((place, lane),) = panel.lanes
    assert place == 1 and lane.name == "draft-model"
    x, y = panel.over_alpha.values("draft-model")
    assert (x[0], y[0]) == (pytest.approx(lane.alpha), pytest.approx(lane.measured))
    x, y = panel.heat.values("draft-model")
    assert (x[0], y[0]) == (pytest.approx(lane.alpha), pytest.approx(0.05, rel=0.02))
    assert "measured" in panel.over_alpha.picture.series["draft-model"].tips[0]
    panel.lane.setCurrentIndex(1)
    settle()
    assert panel.point.k == 4 and panel.point.value == pytest.approx(1.6, rel=0.02)
    assert panel.point.speedup() == pytest.approx(lane.predicted, rel=0.02)
    # v(k) as measured there: rows 1 and 5.
    assert [panel.mode.itemData(place) for place in range(panel.mode.count())][2:] == ["measured", "measure"]
    panel.mode.setCurrentIndex(2)
    settle()
    assert panel.point.v(4) == pytest.approx(1.6) and panel.point.v(2) == pytest.approx(1.3)
    assert not panel.v.isEnabled() and PASS_S > 0
    panel.alpha.set_value(0.5)  # own figures again
    assert panel.lane.value() == ""


def test_while_a_race_runs_what_is_typed_or_chosen_stays(bench, panel):
    feed(bench, standard(count=20), end=False)
    for edit in (panel.alpha, panel.k, panel.c, panel.v):
        edit.clear()  # to type another figure
    for choice in (panel.mode, panel.lane):  # open lists: the line under the pointer
        choice.view().setCurrentIndex(choice.model().index(1, 0))
    race = bench.controller.race
    for round_ in standard(count=40)[1][2][20:]:
        race.apply(LaneRound(race.run_id, 1, round_))
    bench.controller.number_tick.emit()
    settle()
    ((_, lane),) = panel.lanes
    assert lane.alpha == pytest.approx(race.metrics(race.lanes[1]).acceptance_rate)  # it followed
    assert [choice.view().currentIndex().row() for choice in (panel.mode, panel.lane)] == [1, 1]
    assert [edit.text() for edit in (panel.alpha, panel.k, panel.c, panel.v)] == ["", "", "", ""]
    assert (panel.point.alpha, panel.point.k, panel.point.c) == (0.7, 4, 0.1)  # what held before


def test_v_of_this_machine_is_measured_as_a_job(bench, panel, qtbot, monkeypatch):
    asked = []

    def calibrate(pool, settings, k, *, tell, should_stop, afresh):
        asked.append((settings.prompt, k))
        tell("Measuring the target's passes", 0.5)
        return {1: 0.1, 3: 0.2, 9: 0.5}

    monkeypatch.setattr("specview.lab.calibrate.calibrate_passes", calibrate)
    panel.mode.setCurrentIndex(panel.mode.findData("measure"))
    assert panel.mode.value() == "constant"  # until there is something
    qtbot.waitUntil(lambda: panel.mode.value() == "measured")
    settle()
    assert asked == [("hello", 8)]
    assert [panel.point.v(k) for k in (1, 2, 8)] == pytest.approx([1.5, 2.0, 5.0])
    assert panel.assumption.full.startswith("Assumed")
    assert panel.facts["speedup"].value.text() == f"{theory.speedup(0.7, 4, 0.1, panel.point.v(4)):.2f}×"
    feed(bench, standard())  # this machine's stands before the lanes' two row counts
    assert panel.point.v(8) == pytest.approx(5.0)
    for place, change in enumerate(({"target": "other.gguf"}, {"dtype": "float16"}, {"threads": 1}, {"check_mode": True})):
        other = [(name, {**flat, **change}, rounds) for name, flat, rounds in standard()]
        feed(bench, other, run_id=1001 + 2 * place)  # but not before those of another target, number format, ...
        assert panel.point.v(4) == pytest.approx(1.6), change
        feed(bench, standard(), run_id=1002 + 2 * place)
        assert panel.point.v(8) == pytest.approx(5.0), change

    def fail(*_, **__):
        raise SpecviewError("the target is gone.", "Choose another.")

    monkeypatch.setattr("specview.lab.calibrate.calibrate_passes", fail)
    bench.page.measure_v()
    qtbot.waitUntil(lambda: bool(bench.messages))
    assert bench.messages == ["the target is gone. Choose another."] and panel.mode.value() == "measured"


def test_what_was_set_is_remembered_and_what_does_not_fit_is_not(bench):
    page = bench.page
    page.theory.set_point(Point(0.33, 7, 0.25, "line", 1.0, 0.4))
    page.theory.which.set_value("own")
    page.views.setCurrentIndex(1)
    page.concurrency.batches.setText("1,3")
    other = TheoryPage(bench.context)
    other.restore(page.kept())
    point = other.theory.point
    assert (point.alpha, point.k, point.c, point.mode, point.per_row) == (0.33, 7, 0.25, "line", 0.4)
    assert other.views.currentIndex() == 1 and other.theory.which.value() == "own"
    assert other.concurrency.batches.value() == (1, 3)
    other.restore({"view": 9, "point": {"alpha": "x", "k": True, "c": -1, "mode": "measured", "value": float("nan")},
                   "concurrency": {"batches": "a,b", "ks": 3}})  # fmt: skip
    point = other.theory.point
    assert (point.alpha, point.k, point.c, point.mode, point.value) == (0.7, 4, 0.1, "constant", 1.0)
    assert other.concurrency.batches.value() == (1, 3)
    other.deleteLater()
    page.views.setCurrentIndex(0)


@pytest.mark.parametrize(("scale", "look"), [(1.0, "dark"), (1.1, "light"), (1.4, "dark"), (1.6, "light")])
def test_no_word_of_the_row_is_cut_whatever_the_font(bench, panel, qapp, scale, look):
    feed(bench, [*standard(), ("a lane with a name of its own that is long", *standard()[1][1:])])
    theme.apply(qapp, look, scale)
    settle()
    image = bench.page.grab().toImage()
    ground = image.pixelColor(image.width() // 2, image.height() - 3).name()
    assert scale > 1.1 or ground in (theme.current().ground, theme.current().panel)  # either theme draws it
    scroll = panel.parent().parent()
    if scale == 1:
        assert not scroll.horizontalScrollBar().maximum() and not scroll.verticalScrollBar().maximum()
    for choice in (panel.mode, panel.lane):
        assert choice.width() >= choice.sizeHint().width()
    for fact in panel.facts.values():
        assert fact.caption.height() >= fact.caption.fontMetrics().height()
        for words in (fact.caption, fact.value):
            assert words.width() >= words.sizeHint().width(), words.text()
        assert panel.rect().contains(fact.value.mapTo(panel, fact.value.rect().bottomRight()))


# -- concurrency -------------------------------------------------------------------------------------


def found_of(alpha=0.8, cost=0.0, batches=(1, 2, 4, 8, 16)):
    return combine(measured(roofed(12.0, 1.0), batches=batches, repeats=3), stated_acceptance(alpha, cost))


@pytest.fixture
def job(monkeypatch):
    """What the job does in place of measuring; `asked` are the plans."""

    made = SimpleNamespace(asked=[], go=threading.Event())

    def run(plan, pool, should_stop, on_progress):
        made.asked.append(plan)
        on_progress("Passes 1/7", 0.25)
        assert made.go.wait(10)
        if should_stop():
            raise Stopped
        return found_of()

    monkeypatch.setattr(concurrency_panel, "run_concurrency", run)
    return made


def test_measuring_is_a_job_with_progress_whose_result_is_drawn(bench, shared, job, qtbot):
    assert "sequences" in shared.verdict.text()
    assert not shared.stop.isEnabled() and shared.run.isEnabled()
    shared.source.set_value("number")
    shared.batches.setText("1, 2 4")
    shared.run.click()
    qtbot.waitUntil(lambda: shared.status.full == "Passes 1/7")
    assert shared.progress.value() == 250 and shared.stop.isEnabled() and not shared.run.isEnabled()
    job.go.set()
    qtbot.waitUntil(lambda: not shared.running)
    settle()
    (plan,) = job.asked
    assert plan.sizes.batches == (1, 2, 4) and plan.sizes.ks == (0, 2, 4) and plan.acceptance.alpha == 0.6 and plan.draft == "bundled"
    assert shared.verdict.text() == shared.found.sentence and "the gain ends at about" in shared.verdict.text()
    x, y = shared.each.values("k 2")
    assert list(x) == [1, 2, 4, 8, 16]
    assert y[0] == pytest.approx(theory.expected_tokens(0.8, 2) / 12)
    _, total = shared.total.values("plain")
    assert total[-1] == pytest.approx(16 / 16)
    (mark,) = [mark for name, mark in shared.speedup.picture.marks.items() if name.startswith("crossing")]
    assert mark.value == pytest.approx(shared.found.crossings[0].sequences)
    assert f"{mark.value:.1f}" in mark.text and "crossing 0" in shared.each.picture.marks
    series = shared.roofline.picture.series
    assert shared.each.picture.series["k 2"].dashed and not shared.each.picture.series["plain"].dashed  # c was stated, not timed
    assert series["reading the weights"].dashed and series["computing the products"].dashed
    assert not any(series[f"B {size}"].line for size in (1, 16))
    assert "ridge" in shared.roofline.picture.marks
    shared.cost.set_value(0.5)  # another acceptance needs no new measurement
    shared.alpha.set_value(0.1)
    assert len(job.asked) == 1
    assert shared.found.acceptance.alpha == 0.1 and "no crossing in range, it is slower" in shared.verdict.text()
    assert shared.speedup.picture.marks["plain"].text == "no crossing in range"


def test_the_marks_of_the_roofline_stand_apart():
    for drawn_ms, expected in (
        ([20.0, 90.0], [20, 50]),
        ([2.0, 90.0, 50_000.0], [10, 100, 1000, 10_000]),
    ):
        marks = [value for value, _ in concurrency_panel._milliseconds(drawn_ms) if drawn_ms[0] <= value <= drawn_ms[-1]]
        assert marks == pytest.approx(expected)
    assert concurrency_panel._milliseconds([])


@pytest.mark.parametrize("scale", [1.0, 1.4])
def test_in_a_small_window_the_plots_scroll_and_are_not_crushed(bench, shared, qapp, scale):
    shared.found = found_of()
    bench.page.resize(1280, 560)
    theme.apply(qapp, "dark", scale)
    shared.draw()
    settle()
    scroll = shared.parent().parent()
    assert (scroll.horizontalScrollBar().maximum() > 0) == (scroll.verticalScrollBar().maximum() > 0) == (scale > 1)
    assert all(chart.height() >= theme.px(140) for chart in shared.charts)
    assert shared.source.width() >= shared.source.sizeHint().width()
    assert shared.batches.fontMetrics().horizontalAdvance(shared.batches.text()) < shared.batches.width() - theme.px(12)


def test_the_lane_that_ran_is_taken_unless_another_was_chosen(bench, shared):
    feed(bench, standard(count=400))
    assert shared.source.value() == "lane 1"
    found = shared.acceptance()
    assert found.name == "draft-model" and found.alpha == pytest.approx(0.5, abs=0.05)
    plan = shared.plan()
    assert plan.draft == "bundled"
    shared.cost.set_value(0.3)
    assert shared.acceptance().draft_cost == 0.3 and shared.plan().draft == ""
    shared.source.activated.emit(0)
    shared.source.set_value("race")
    feed(bench, standard(count=30), run_id=1001)
    assert shared.source.value() == "race"


def test_bad_settings_are_one_line_and_nothing_starts(bench, shared, job):
    shared.source.set_value("number")
    for name, text, says in (
        ("batches", "", "sequences B is empty"),
        ("batches", "1,x", "Use whole numbers"),
        ("ks", "0,99", "draft length k is 99"),
        ("batches", "0", "batch size is 0"),
        ("tokens", "0", "context of each sequence is 0"),
        ("alpha", "2", "acceptance is 2"),
    ):
        edit = getattr(shared, name)
        before = edit.text()
        edit.setText(text)
        shared.start()
        assert says in bench.messages[-1] and "\n" not in bench.messages[-1]
        assert not job.asked and not shared.running
        edit.setText(before)
    for edit, tip in ((shared.batches, "share the device"), (shared.ks, "0 is plain")):
        edit.setText("1,2,x")
        assert edit.property("invalid") == "true" and "with commas between them" in edit.toolTip()
        assert edit.name in edit.toolTip()
        edit.setText("1,2")
        assert edit.property("invalid") == "false" and tip in edit.toolTip()


def test_stop_and_failure_are_said(bench, shared, job, qtbot, monkeypatch):
    shared.source.set_value("number")
    shared.start()
    qtbot.waitUntil(lambda: bool(job.asked))
    shared.stop.click()
    job.go.set()
    qtbot.waitUntil(lambda: not shared.running)
    assert "Stopped" in shared.status.full and shared.found is None

    def fail(*_):
        raise SpecviewError("64 sequences need 9 GB.", "Measure fewer.")

    monkeypatch.setattr(concurrency_panel, "run_concurrency", fail)
    shared.start()
    qtbot.waitUntil(lambda: not shared.running)
    assert bench.messages[-1] == "64 sequences need 9 GB. Measure fewer."
    assert shared.run.isEnabled()
