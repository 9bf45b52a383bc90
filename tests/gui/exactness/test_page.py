"""The Exactness tab: both views from their settings to plots, tables and verdicts; Run, Stop, what is remembered."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from PySide6.QtCore import Qt

from specview.errors import UsageError
from specview.gui.exactness import pair as exactness_pair
from specview.gui.exactness.pair import findings_of, short
from specview.gui.exactness.panel import snapshot
from specview.gui.parts import theme
from specview.gui.parts.widgets import NumberEdit
from specview.lab import policy_exactness
from specview.lab.exactness import run_toy
from specview.lab.pair_results import Drift, rows_of
from specview.lab.toy import SAMPLERS, ToySettings
from specview.racing.pool import ModelPool
from specview.settings.events import Equality
from tests.gui.shell_fake import FakeBackend
from tests.racing.world import World

WAIT_MS = 60_000


@pytest.fixture
def world(monkeypatch, tmp_path):
    """Made-up engines behind the window's engine thread, and a data folder of the test's own."""
    monkeypatch.setenv("SPECVIEW_DATA", str(tmp_path / "data"))
    world = World(monkeypatch)
    pool = ModelPool()
    monkeypatch.setattr(FakeBackend, "pool", property(lambda self: pool))
    yield world
    pool.close()


@pytest.fixture
def page(world, make_window, qtbot):
    window = make_window()
    window.setup.show_settings(replace(window.run_settings(), chat=False, prompt="bcdbc", workload=None, system=""), "auto")
    window.tabs.open("Exactness")
    page = window.tabs.page("Exactness")
    qtbot.waitUntil(lambda: not window.controller.busy_with, timeout=WAIT_MS)
    return page


def run_to_end(panel, qtbot):
    panel.run.click()
    assert panel.running
    assert not panel.run.isEnabled()
    assert panel.stop.isEnabled()
    qtbot.waitUntil(lambda: not panel.running, timeout=WAIT_MS)
    qtbot.waitUntil(lambda: not panel.controller.busy_with, timeout=WAIT_MS)
    panel.show_state()


# -- the toy -----------------------------------------------------------------------------------------------


def test_the_toy_from_settings_to_verdict(page, qtbot):
    toy = page.toy
    toy.samples.set_value(30_000)
    toy.seeds.set_value(6)
    run_to_end(toy, qtbot)
    assert toy.found.samples == 30_000
    assert toy.verdict.text().startswith("✓")
    assert "30,000 samples of 256 outcomes" in toy.verdict.text()
    assert toy.run.isEnabled()
    assert not toy.stop.isEnabled()
    assert toy.chart.names == ["plain", "rejection", "match", "typical (lossy)", "naive (lossy)", "1/√N, an exact sampler"]
    samples, tv = toy.chart.values("naive (lossy)")
    assert samples[-1] == 30_000
    assert tv[-1] == pytest.approx(0.106, abs=0.02)
    assert [row["sampler"] for row in toy.table.rows] == [
        "plain", "rejection", "match", "typical (lossy)", "naive (lossy)"
    ]  # fmt: skip


def test_what_the_toys_plots_show(page, qapp):
    """The 1/sqrt(N) line, the plateau's mark, the histogram of p values, acceptance by context; any state, both themes."""
    toy = page.toy
    found = run_toy(samples=20_000, seeds=20)
    toy.take(found)
    samples, line = toy.chart.values("1/√N, an exact sampler")
    assert np.diff(np.log(line)) / np.diff(np.log(samples)) == pytest.approx(np.full(len(line) - 1, -0.5))
    marks = toy.chart.picture.marks
    assert marks["naive"].value == pytest.approx(0.1058, abs=1e-4)
    assert "0.1058" in marks["naive"].text
    assert len(toy.histogram.names) == len(SAMPLERS)
    for name in toy.histogram.names:
        _, share = toy.histogram.values(name)
        assert share.sum() == pytest.approx(1)
        assert (share[0] == 1) == ("lossy" in name)  # all below 0.1, or spread
    _, exact = toy.contexts.values("rejection, exact")
    assert exact == pytest.approx([0.672, 0.692, 0.856, 0.863], abs=5e-4)
    _, measured = toy.contexts.values("rejection, measured")
    assert measured == pytest.approx(exact, abs=0.03)
    big = run_toy(ToySettings(vocab=20, length=2), samples=1000)
    for name in ("light", "dark"):
        theme.apply(qapp, name, 1.0)
        for shown in (None, found, big):
            toy.found = shown
            toy.draw()
            for chart in (toy.chart, toy.histogram, toy.contexts):
                chart.redraw()


def test_the_toys_table_keeps_its_rows_when_the_font_grows(page, qapp):
    table = page.toy.table
    before = table.height()
    theme.apply(qapp, "dark", 1.4)
    assert table.minimumHeight() == pytest.approx(1.4 * before, abs=1)


def test_stop_keeps_the_toys_samples(page, qtbot):
    toy = page.toy
    toy.samples.set_value(10_000_000)
    toy.run.click()
    qtbot.waitUntil(lambda: toy.found is not None, timeout=WAIT_MS)
    toy.stop.click()
    qtbot.waitUntil(lambda: not toy.running, timeout=WAIT_MS)
    assert toy.found.stopped
    assert 100 <= toy.found.samples < 10_000_000
    assert "Stopped early" in toy.verdict.text()


def test_a_stopped_run_is_not_mixed_with_the_next(page, qtbot):
    """News of a job that is over changes nothing."""
    toy = page.toy
    toy.samples.set_value(1000)
    toy.seeds.set_value(0)
    run_to_end(toy, qtbot)
    held = toy.found
    from specview.gui.link.messages import JobNews

    page.context.controller._take([JobNews(-7, run_toy(samples=100))])
    assert toy.found is held


def test_a_snapshot_does_not_grow():
    taken = []
    run_toy(samples=2000, on_part=lambda part, text, fraction: taken.append(snapshot(part)))
    assert [len(one.line) for one in taken] == list(range(1, len(taken) + 1))


def test_bad_settings_are_one_line_and_start_nothing(page):
    shown = []
    page.context.show_message = lambda line, kind="error": shown.append(line)
    toy = page.toy
    for name, text in (("vocab", "1"), ("samples", "x"), ("k", ""), ("seeds", "3"), ("length", "99")):
        edit = getattr(toy, name)
        held = edit.text()
        edit.setText(text)
        toy.run.click()
        edit.setText(held)
    toy.vocab.set_value(64)
    toy.length.set_value(8)
    toy.run.click()
    assert not toy.running
    assert len(shown) == 6
    assert "outcomes" in shown[-1]
    assert not any("\n" in line for line in shown)


# -- the pair ------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(page):
    page.views.setCurrentIndex(1)
    panel = page.pair
    panel.samples.set_value(300)
    panel.tokens.set_value(2)
    panel.greedy.set_value(8)
    return panel


def test_the_pair_from_settings_to_findings(pair, qtbot):
    run_to_end(pair, qtbot)
    found = pair.found
    assert found.samples == 300
    assert found.settings.check_mode
    assert found.rule == "rejection"
    marks = [card.mark.text() for card in pair.findings]
    assert marks[0] == "✓"  # the rule
    assert marks[2:] == ["✓", "✓"]  # kernels, greedy
    assert "closed form" in pair.findings[1].words.text()
    assert pair.first.names == ["plain", "rejection", "naive (lossy)", "p, exact", "q, exact"]
    assert pair.depths.names == ["rejection", "naive (lossy)", "typical (lossy)", "chance explains (99%)"]
    assert len(pair.table.rows) == 6
    assert "Computed once per prefix" in pair.verdict.text()


def test_it_tests_the_lane_that_is_chosen(pair, qtbot):
    assert [pair.lane.itemText(at) for at in range(pair.lane.count())] == ["draft-model", "prompt-lookup"]
    pair.lane.set_value("1")
    pair.samples.set_value(100)
    run_to_end(pair, qtbot)
    assert pair.found.settings.lanes[1].method == "prompt-lookup"
    assert "prompt-lookup" in pair.verdict.text()  # why there is no closed form


def test_the_setup_bar_matters_to_the_pair_alone(page):
    assert not page.needs_setup
    page.views.setCurrentIndex(1)
    assert page.needs_setup
    page.views.setCurrentIndex(0)
    assert not page.needs_setup


def test_at_temperature_0_the_greedy_check_is_all(pair, qtbot):
    pair.temperature.set_value(0)
    run_to_end(pair, qtbot)
    assert pair.found.greedy.equal
    assert not pair.found.rules
    assert "nothing is sampled" in pair.findings[0].words.text()
    assert pair.findings[3].mark.text() == "✓"


def test_stop_keeps_the_pairs_continuations(pair, qtbot):
    pair.samples.set_value(1_000_000)
    pair.run.click()
    qtbot.waitUntil(lambda: pair.found is not None and pair.found.samples > 30, timeout=WAIT_MS)
    pair.controller.stop()
    qtbot.waitUntil(lambda: not pair.running, timeout=WAIT_MS)
    assert pair.found.stopped
    assert 30 < pair.found.samples < 1_000_000
    assert "Stopped early" in pair.verdict.text()
    assert pair.found.first


def test_findings_in_words(pair, qtbot):
    run_to_end(pair, qtbot)
    found = pair.found
    drift = Drift(40, 0.01, 0.02, 0.3, 0.06, 1.5, 3)
    outside = replace(found, drift=drift, settings=replace(found.settings, check_mode=False))
    kernels = findings_of(outside)[2]
    assert kernels.tone == "warning"
    assert "0.02 a token" in kernels.text and "at most 0.3 of 40" in kernels.text
    assert findings_of(replace(found, drift=drift))[2].tone == "bad"
    greedy = findings_of(replace(outside, greedy=Equality(False, 30, 4, 0.01, 0.2)))[3]
    assert greedy.tone == "warning" and "token 5" in greedy.text
    assert [one.tone for one in findings_of(None)] == ["note"] * 4
    rejection = found.rules["rejection"]
    wrong = replace(rejection, tests=tuple(replace(test, chi2_p=1e-9) for test in rejection.tests))
    rule = findings_of(replace(found, rules={**found.rules, "rejection": wrong}))[0]
    assert rule.tone == "bad" and "DIFFERS" in rule.text
    weak = replace(found.rules["naive"], tests=rejection.tests)
    control = findings_of(replace(found, rules={**found.rules, "naive": weak}))[1]
    assert control.tone == "warning" and "too weak" in control.text
    for test in rows_of(found):
        assert set(test) == {column.key for column in pair.table.columns}


def test_the_rule_and_the_lanes_tested_are_those_of_the_setup_bar(page, qtbot):
    page.views.setCurrentIndex(1)
    pair, window = page.pair, page.window()
    assert pair.settings()[0].lanes[1].rule == "auto"
    window.setup.rule.set_value("match")
    assert pair.settings()[0].lanes[1].rule == "match"
    pair.lane.set_value("1")
    window.add_method("suffix")
    assert [pair.lane.itemText(place) for place in range(pair.lane.count())] == ["draft-model", "prompt-lookup", "suffix"]
    assert pair.settings()[0].lanes[1].method == "prompt-lookup", "the lane chosen stays chosen"
    window.setup.seed.setText("")
    with pytest.raises(UsageError, match="seed"):
        pair.settings()


def test_trouble_with_a_model_is_one_line(pair, world, qtbot):
    from specview.errors import SpecviewError

    def gone():
        raise SpecviewError("there is no such file.", "Choose another.")

    world.models["target", "bundled"] = gone
    shown = []
    pair.context.show_message = lambda line, kind="error": shown.append(line)
    pair.run.click()
    qtbot.waitUntil(lambda: not pair.running, timeout=WAIT_MS)
    assert shown == ["there is no such file. Choose another."]


def test_one_job_at_a_time(page, pair, qtbot):
    toy = page.toy
    toy.samples.set_value(10_000_000)
    toy.run.click()
    shown = []
    page.context.show_message = lambda line, kind="error": shown.append(line)
    pair.start()
    assert not pair.running
    assert shown == ["The engine is busy with the toy proof. Stop it first (Esc), or wait for its end."]
    assert not pair.run.isEnabled()
    toy.controller.stop()
    qtbot.waitUntil(lambda: not toy.running, timeout=WAIT_MS)


def test_hostile_token_texts_are_text(pair, qtbot):
    run_to_end(pair, qtbot)
    found = pair.found
    nasty = tuple(replace(one, text=text) for one, text in zip(found.first, ("<b>x</b>", "\u202e\n\t", "a" * 500), strict=False))
    pair.take(replace(found, first=nasty))
    pair.first.redraw()
    assert len(short("a" * 500)) < 12
    assert short("<b>") == "<b>"


# -- both ------------------------------------------------------------------------------------------------------


def test_the_policies_from_settings_to_verdict(page, qtbot, monkeypatch):
    monkeypatch.setattr(policy_exactness, "cases", lambda: [("rejection", "off-below"), ("match", "auto"), ("naive", "constant")])
    page.views.setCurrentIndex(2)
    panel = page.policies
    assert "None may differ" in panel.verdict.text() and panel.table.rows == []
    panel.samples.set_value(2000)
    run_to_end(panel, qtbot)
    assert [row["case"] for row in panel.table.rows] == ["rejection, off-below", "match, auto", "naive (lossy), constant"]
    assert [row["verdict"] for row in panel.table.rows] == ["no difference from the target found"] * 2 + ["lossy, and caught"]
    assert panel.verdict.text().startswith("✓") and "2,048 sequences each" in panel.verdict.text()
    kept = page.kept()
    panel.samples.set_value(500)
    page.restore(kept)
    assert panel.samples.value() == 2000 and page.views.currentIndex() == 2


def test_what_is_set_is_remembered(page):
    page.views.setCurrentIndex(1)
    page.toy.vocab.set_value(6)
    page.toy.length.set_value(3)
    page.pair.tokens.set_value(4)
    page.pair.check_mode.setChecked(False)
    kept = page.kept()
    page.toy.vocab.set_value(4)
    page.pair.tokens.set_value(2)
    page.pair.check_mode.setChecked(True)
    page.views.setCurrentIndex(0)
    page.restore(kept)
    assert page.views.currentIndex() == 1
    assert page.toy.vocab.value() == 6
    assert page.pair.tokens.value() == 4
    assert not page.pair.check_mode.isChecked()


def test_what_does_not_fit_is_left_out(page):
    for kept in (
        {},
        {"view": 9, "toy": [], "pair": 3},
        {"toy": {"vocab": "nan", "k": 7, "length": "-1"}, "pair": {"tokens": "99", "check_mode": "yes"}},
        {"toy": {"vocab": "64", "length": "16"}},
    ):
        page.restore(kept)
        page.toy.settings()
        page.pair.settings()


def test_plots_and_table_can_be_exported(page, tmp_path):
    page.toy.take(run_toy(samples=1000))
    for ending in ("png", "svg", "csv"):
        page.toy.chart.save(tmp_path / f"plot.{ending}")
        assert (tmp_path / f"plot.{ending}").stat().st_size > 100
    assert page.toy.table.export_to("csv", tmp_path / "table.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text())))
    assert len(rows) == 5
    assert float(rows[4]["exact_tv"]) == pytest.approx(0.1058, abs=1e-4)


def test_everything_is_reached_by_keyboard(page):
    for panel in (page.toy, page.pair, page.policies):
        for widget in (panel.run, panel.stop, panel.table.view):
            assert widget.focusPolicy() & Qt.FocusPolicy.TabFocus
        for edit in panel.findChildren(NumberEdit):
            assert edit.accessibleName()
            assert edit.toolTip()
    for chart in (page.toy.chart, page.toy.histogram, page.pair.first, page.pair.depths):
        assert chart.focusPolicy() & Qt.FocusPolicy.TabFocus
        assert chart.x_name
        assert chart.y_name
    assert exactness_pair.PairPanel.run_tip
