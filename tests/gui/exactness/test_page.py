"""The Exactness tab: its views from their settings to plots, tables and verdicts; Run, Stop, what is remembered."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import numpy as np
import pytest
from PySide6.QtCore import Qt

from specview.drafting.registry import FIRST_METHODS
from specview.errors import SpecviewError, UsageError
from specview.gui.exactness.pair import findings_of, short
from specview.gui.exactness.panel import snapshot
from specview.gui.link.messages import JobNews
from specview.gui.parts import theme
from specview.gui.parts.widgets import NumberEdit
from specview.lab import policy_exactness
from specview.lab.exactness import run_toy
from specview.lab.pair_results import Drift, rows_of
from specview.lab.toy import SAMPLERS, ToySettings
from specview.settings.events import Equality
from specview.settings.run import LaneSettings

WAIT_MS = 60_000


@pytest.fixture
def page(world, make_window, qtbot):
    window = make_window()
    window.setup.show_settings(replace(window.run_settings(), chat=False, prompt="bcdbc", workload=None, system=""), "auto")
    window.tabs.open("Exactness")
    page = window.tabs.page("Exactness")
    qtbot.waitUntil(lambda: not window.controller.busy_with, timeout=WAIT_MS)
    return page


@pytest.fixture
def shown(page):
    """The lines of the banner."""
    lines = []
    page.context.show_message = lambda line, kind="error": lines.append(line)
    return lines


def ended(panel, qtbot):
    qtbot.waitUntil(lambda: not panel.running, timeout=WAIT_MS)
    qtbot.waitUntil(lambda: not panel.controller.busy_with, timeout=WAIT_MS)


def run_to_end(panel, qtbot):
    panel.run.click()
    assert panel.running
    assert not panel.run.isEnabled()
    assert panel.stop.isEnabled()
    ended(panel, qtbot)
    panel.show_state()


# -- the toy -----------------------------------------------------------------------------------------------


def test_the_toy_from_settings_to_verdict(page, qtbot):
    toy = page.toy
    toy.samples.set_value(5_000)
    toy.seeds.set_value(0)
    run_to_end(toy, qtbot)
    assert toy.found.samples == 5_000
    assert toy.verdict.text().startswith("✓")
    assert "5,000 samples of 256 outcomes" in toy.verdict.text()
    assert toy.run.isEnabled() and not toy.stop.isEnabled()
    assert toy.chart.names == ["plain", "rejection", "match", "typical (lossy)", "naive (lossy)", "1/√N, an exact sampler"]
    samples, tv = toy.chart.values("naive (lossy)")
    assert (samples[-1], tv[-1]) == (5_000, pytest.approx(0.12, abs=0.03))
    assert [row["sampler"] for row in toy.table.rows] == [
        "plain", "rejection", "match", "typical (lossy)", "naive (lossy)"
    ]  # fmt: skip
    held = toy.found  # news of a job that is over changes nothing
    page.context.controller._take([JobNews(-7, run_toy(samples=100))])
    assert toy.found is held


def test_what_the_toys_plots_show_and_export(page, qapp, tmp_path):
    """The 1/sqrt(N) line, the plateau's mark, the histogram of p values, acceptance by context; any state, both themes."""
    toy = page.toy
    found = run_toy(samples=20_000, seeds=12)
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
    for ending in ("png", "svg", "csv"):
        toy.chart.save(tmp_path / f"plot.{ending}")
        assert (tmp_path / f"plot.{ending}").stat().st_size > 100
    assert toy.table.export_to("csv", tmp_path / "table.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text())))
    assert (len(rows), float(rows[4]["exact_tv"])) == (5, pytest.approx(0.1058, abs=1e-4))
    big = run_toy(ToySettings(vocab=20, length=2), samples=1000)
    height = toy.table.height()
    for name, scale in (("light", 1.0), ("dark", 1.4)):
        theme.apply(qapp, name, scale)
        assert toy.table.minimumHeight() == pytest.approx(scale * height, abs=1)  # it keeps its rows when the font grows
        for one in (None, found, big):
            toy.found = one
            toy.draw()
            for chart in (toy.chart, toy.histogram, toy.contexts):
                chart.redraw()


def test_a_snapshot_does_not_grow():
    taken = []
    run_toy(samples=1000, on_part=lambda part, text, fraction: taken.append(snapshot(part)))
    assert [len(one.line) for one in taken] == list(range(1, len(taken) + 1))


def test_stop_keeps_the_toys_samples_and_one_job_runs_at_a_time(page, shown, qtbot):
    toy, pair = page.toy, page.pair
    toy.samples.set_value(10_000_000)
    toy.run.click()
    pair.start()
    assert not pair.running and not pair.run.isEnabled()
    assert shown == ["The engine is busy with the toy proof. Stop it first (Esc), or wait for its end."]
    qtbot.waitUntil(lambda: toy.found is not None, timeout=WAIT_MS)
    toy.stop.click()
    ended(toy, qtbot)
    assert toy.found.stopped
    assert 100 <= toy.found.samples < 10_000_000
    assert "Stopped early" in toy.verdict.text()


def test_bad_settings_are_one_line_and_start_nothing(page, shown):
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
    panel.samples.set_value(160)
    panel.tokens.set_value(2)
    panel.greedy.set_value(8)
    return panel


def test_the_pair_from_settings_to_findings(pair, qtbot):
    run_to_end(pair, qtbot)
    found = pair.found
    assert found.samples == 160
    assert found.settings.check_mode
    assert found.rule == "rejection"
    marks = [card.mark.text() for card in pair.findings]
    assert marks[0] == "✓"  # the rule
    assert marks[2:] == ["✓", "✓"]  # kernels, greedy
    assert "closed form" in pair.findings[1].words.text()
    assert pair.first.names == ["plain", "rejection", "naive (lossy)", "p, exact", "q, exact"]
    assert pair.depths.names == ["rejection", "naive (lossy)", "typical (lossy)", "chance explains (99%)"]
    assert len(pair.table.rows) == 6
    assert all(set(test) == {column.key for column in pair.table.columns} for test in rows_of(found))
    assert "Computed once per prefix" in pair.verdict.text()
    # what other results would say
    drift = Drift(40, 0.01, 0.02, 0.3, 0.06, 1.5, 3)
    outside = replace(found, drift=drift, settings=replace(found.settings, check_mode=False))
    unequal = replace(outside, greedy=Equality(False, 30, 4, 0.01, 0.2))
    tests = found.rules["rejection"].tests
    wrong = replace(found.rules["rejection"], tests=tuple(replace(test, chi2_p=1e-9) for test in tests))
    weak = replace(found.rules["naive"], tests=tests)
    for card, result, tone, words in (
        (2, outside, "warning", "0.02 a token on average (at most 0.3 of 40 prefixes)"),
        (2, replace(found, drift=drift), "bad", "must not be"),
        (3, unequal, "warning", "token 5"),
        (0, replace(found, rules={**found.rules, "rejection": wrong}), "bad", "DIFFERS"),
        (1, replace(found, rules={**found.rules, "naive": weak}), "warning", "too weak"),
        (0, None, "note", "on rows that both share"),
    ):
        finding = findings_of(result)[card]
        assert finding.tone == tone and words in finding.text
    # texts of tokens are text, whatever is in them
    nasty = tuple(replace(one, text=text) for one, text in zip(found.first, ("<b>x</b>", "\u202e\n\t", "a" * 500), strict=False))
    pair.take(replace(found, first=nasty))
    pair.first.redraw()
    assert len(short("a" * 500)) < 12
    assert short("<b>") == "<b>"


def test_the_lane_and_the_rule_are_those_of_the_setup_bar(page, pair, qtbot):
    window = page.window()
    window.show_setup(replace(window.own_settings(), lanes=tuple(map(LaneSettings, FIRST_METHODS))), "auto")
    assert pair.settings()[0].lanes[1].rule == "auto"
    window.setup.rule.set_value("match")
    assert pair.settings()[0].lanes[1].rule == "match"
    pair.lane.set_value("1")
    window.lanes.add_method("suffix")
    assert [pair.lane.itemText(place) for place in range(pair.lane.count())] == ["draft-model", "prompt-lookup", "suffix"]
    assert pair.settings()[0].lanes[1].method == "prompt-lookup", "the lane chosen stays chosen"
    run_to_end(pair, qtbot)
    assert pair.found.settings.lanes[1].method == "prompt-lookup"
    assert "prompt-lookup" in pair.verdict.text()  # why there is no closed form
    window.setup.field("seed").setText("")
    with pytest.raises(UsageError, match="seed"):
        pair.settings()


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
    ended(pair, qtbot)
    assert pair.found.stopped
    assert 30 < pair.found.samples < 1_000_000
    assert "Stopped early" in pair.verdict.text()
    assert pair.found.first


def test_trouble_with_a_model_is_one_line(pair, shown, world, qtbot):
    def gone():
        raise SpecviewError("there is no such file.", "Choose another.")

    world.models["target", "bundled"] = gone
    pair.run.click()
    ended(pair, qtbot)
    assert shown == ["there is no such file. Choose another."]


# -- all -------------------------------------------------------------------------------------------------------


def test_the_policies_from_settings_to_verdict(page, qtbot, monkeypatch):
    monkeypatch.setattr(policy_exactness, "cases", lambda: [("rejection", "off-below"), ("match", "auto")])
    page.views.setCurrentIndex(2)
    panel = page.policies
    assert "None may differ" in panel.verdict.text() and panel.table.rows == []
    panel.samples.set_value(200)
    run_to_end(panel, qtbot)
    assert [row["case"] for row in panel.table.rows] == ["rejection, off-below", "match, auto"]
    assert [row["verdict"] for row in panel.table.rows] == ["no difference from the target found"] * 2
    assert panel.verdict.text().startswith("!") and "256 sequences each" in panel.verdict.text()  # the control is not there


def test_what_is_set_is_remembered_and_what_does_not_fit_is_not(page):
    edits = ((page.toy.vocab, 6, 4), (page.toy.length, 3, 4), (page.pair.tokens, 4, 2), (page.policies.samples, 2000, 500))
    assert page.setup_line.isHidden()
    page.views.setCurrentIndex(1)
    assert not page.setup_line.isHidden()  # the pair alone takes something from the race
    for edit, value, _ in edits:
        edit.set_value(value)
    page.pair.check_mode.setChecked(False)
    kept = page.kept()
    for edit, _, value in edits:
        edit.set_value(value)
    page.pair.check_mode.setChecked(True)
    page.views.setCurrentIndex(0)
    assert page.setup_line.isHidden()
    page.restore(kept)
    assert page.views.currentIndex() == 1
    assert [edit.value() for edit, _, _ in edits] == [value for _, value, _ in edits]
    assert not page.pair.check_mode.isChecked()
    for kept in (
        {},
        {"view": 9, "toy": [], "pair": 3},
        {"toy": {"vocab": "nan", "k": 7, "length": "-1"}, "pair": {"tokens": "99", "check_mode": "yes"}},
        {"toy": {"vocab": "64", "length": "16"}},
    ):
        page.restore(kept)
        page.toy.settings()
        page.pair.settings()


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
