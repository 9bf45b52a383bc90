"""The what-if panel over toy runs: what it shows, its sliders, what it refuses; and the thread that it works on."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from specview.decoding.metrics import fold
from specview.decoding.sampling import SamplingParams
from specview.files.figures import MISSING, number, times
from specview.gui.parts import theme
from specview.gui.state.view_model import RaceModel
from specview.gui.why.what_if import THRESHOLDS, WhatIfPanel, range_text
from specview.lab.what_if_figures import Range
from specview.settings.events import LaneEnded, LanePrefilled, LaneRound, RaceEnded, RaceStarted
from tests.lab.what_if_runs import PROMPT, recorded

LOOP = {"order": 3, "seed": 5, "count": 60}


def race_of(records, *, ended=True):
    """A race on screen with these lanes."""
    race = RaceModel()
    race.begin(1)
    race.apply(RaceStarted(1, tuple(PROMPT), "a b", tuple(record.name for record in records),
                           tuple(record.settings for record in records), {}))  # fmt: skip
    for lane, record in enumerate(records):
        race.apply(LanePrefilled(1, lane, 0.1))
        for round_ in record.rounds:
            race.apply(LaneRound(1, lane, round_))
        if ended:
            race.apply(LaneEnded(1, lane, record.end, fold(record.rounds)))
    if ended:
        race.apply(RaceEnded(1, "done"))
    return race


@pytest.fixture
def show(qtbot, qapp):
    """Show a lane of a race of these records in a panel; waits for its answer."""
    theme.apply(qapp, "dark", 1.0)
    made = []

    def make(records, lane=1, *, ended=True, wait=True):
        race = race_of(records, ended=ended)
        panel = WhatIfPanel(SimpleNamespace(controller=SimpleNamespace(race=race)))
        qtbot.addWidget(panel)
        panel.resize(1240, 560)
        made.append(panel)
        plain = race.baseline
        with qtbot.waitSignal(panel.answered, timeout=20_000, raising=wait) if wait else nullcontext():
            panel.show_lane(race.lanes[lane], None if plain is race.lanes[lane] else plain)
        return panel, race

    yield make
    for panel in made:
        panel.shut()


def asked(qtbot, panel, change):
    """Move something and wait for the answer."""
    with qtbot.waitSignal(panel.answered, timeout=20_000):
        change()
    return panel.answer


def standard(**more):
    return [recorded(method="plain", **LOOP), recorded(k=8, **LOOP, **more), recorded(method="prompt-lookup", k=6, **LOOP)]


def test_it_opens_on_the_recorded_run_with_every_alternative(show):
    panel, _ = show(standard())
    assert panel.stack.currentIndex() == 1
    assert (panel.policy.value(), panel.k.value()) == ("constant", 8)
    run = recorded(k=8, **LOOP)
    tokens = 60 / len(run.rounds)
    assert panel.answer.rounds.value == len(run.rounds)
    assert panel.figures["tokens_per_pass"].value.text() == number(tokens)
    assert panel.figures["tokens_per_pass"].recorded.text() == f"recorded {number(tokens)}"
    assert panel.how.text() == "exact"
    x, y = panel.tokens_over_k.values("recomputed")
    assert list(x) == [1, 2, 3, 4, 5, 6, 7, 8]
    for k, value in zip(x, y, strict=True):
        assert value == pytest.approx(60 / len(recorded(k=int(k), **LOOP).rounds))
    assert panel.over_k.values("recorded")[0][0] == 8
    names = [row["name"] for row in panel.table.rows]
    assert names[0] == "recorded (k 8)" and "oracle: method" in names and "adaptive up to 8" in names
    assert panel.sentence.full == panel.found.sentence


def test_the_sliders_recompute(show, qtbot):
    panel, _ = show(standard())
    answer = asked(qtbot, panel, lambda: panel.k.setValue(2))
    real = recorded(k=2, **LOOP)
    assert answer.k == 2 and answer.rounds.value == len(real.rounds)
    assert panel.figures["tokens_per_pass"].value.text() == number(60 / len(real.rounds))
    assert panel.figures["speedup"].value.text() == times(answer.speedup.value)
    assert not panel.threshold.isEnabled()
    asked(qtbot, panel, lambda: panel.policy.set_value("confidence"))
    assert panel.threshold.isEnabled()
    place = THRESHOLDS.index(0.6)
    answer = asked(qtbot, panel, lambda: panel.threshold.setValue(place))
    assert (answer.policy, answer.options["threshold"]) == ("confidence", 0.6)
    assert panel.threshold_words.text() == "0.60"
    assert "confidence 0.6" in panel.why.full
    answer = asked(qtbot, panel, lambda: panel.policy.set_value("heuristic"))
    assert answer.rounds.value == len(recorded(k=2, policy="heuristic", **LOOP).rounds)
    asked(qtbot, panel, lambda: panel.policy.set_value("constant"))
    assert panel.k.maximum() == 16  # longer drafts than the recorded ones can be asked of a draft model
    answer = asked(qtbot, panel, lambda: panel.k.setValue(12))
    assert answer.rounds.value == len(recorded(k=12, **LOOP).rounds)


def test_a_click_on_a_point_or_a_row_asks_for_it(show, qtbot):
    panel, _ = show(standard())
    answer = asked(qtbot, panel, lambda: panel.over_k.picked.emit("recomputed", 2))
    assert (answer.policy, answer.k) == ("constant", 3)
    answer = asked(qtbot, panel, lambda: panel.over_threshold.picked.emit("up to 3", 5))
    assert (answer.policy, answer.options["threshold"], answer.k) == ("confidence", 0.5, 3)
    names = [row["name"] for row in panel.table.rows]
    answer = asked(qtbot, panel, lambda: panel.table.select(names.index("off-below 0.4, k 8")))
    assert (answer.policy, answer.k) == ("off-below", 8)


def test_drafters_without_a_model_and_both_themes(show, qapp):
    panel, _ = show(standard(), lane=2)
    assert panel.answer.how == "exact" and "run again" in panel.why.full
    theme.apply(qapp, "light", 1.0)
    assert panel.over_k.names == ["recomputed", "recorded"]
    theme.apply(qapp, "dark", 1.0)


def test_what_the_trace_leaves_open_is_a_band(show):
    lanes = standard(observe="off")
    panel, _ = show(lanes)
    assert "confidence" not in [panel.policy.itemData(place) for place in range(panel.policy.count())]
    open_ = [one for one in panel.found.alternatives if one.kind == "length" and not one.rounds.known]
    assert open_
    series = panel.tokens_over_k.picture.series["recomputed"]
    assert series.low is not None and series.high is not None
    assert (series.low <= series.y + 1e-9).all() and (series.y <= series.high + 1e-9).all()


def test_without_times_it_shows_tokens_alone(show):
    run = recorded(k=8, **LOOP)
    run.rounds = run.rounds[:-1]
    run.end = "stopped"
    panel, _ = show([run], lane=0)
    assert panel.figures["speedup"].value.text() == MISSING
    assert panel.figures["tokens_per_pass"].value.text() != MISSING
    assert panel.tokens_over_k.names == ["recomputed", "recorded"]
    assert panel.over_k.names == []


def test_what_cannot_be_replayed_is_said(show):
    panel, _ = show(standard(), lane=0)
    assert "plain decoding" in panel.words.text() and panel.stack.currentIndex() == 0
    lossy = recorded(k=3, count=20, rule="typical", sampling=SamplingParams(temperature=1.0))
    panel, _ = show([lossy], lane=0)
    assert "lossy" in panel.words.text()
    panel, _ = show(standard(), ended=False, wait=False)
    assert "under way" in panel.words.text() and not panel._overview.busy


def test_a_lane_that_changes_is_replayed_anew_and_one_that_does_not_is_not(show, qtbot):
    panel, race = show(standard())
    found = panel.found
    panel.show_lane(race.lanes[1], race.lanes[0])
    assert panel.found is found and not panel._overview.busy
    with qtbot.waitSignal(panel.answered, timeout=20_000):
        panel.show_lane(race.lanes[2], race.lanes[0])
    assert panel.found.method == "prompt-lookup" and panel.k.value() == 6
    with qtbot.waitSignal(panel.answered, timeout=20_000):
        panel.show_lane(race.lanes[2], race.lanes[0], {1: 0.012, 3: 0.1})
    assert panel.found.costs.pass_s(3) != pytest.approx(found.costs.pass_s(3))


def test_a_lane_of_another_run_counts_alone(show, qtbot):
    panel, race = show(standard())
    race.lanes[2].differs = "other prompt"
    with qtbot.waitSignal(panel.answered, timeout=20_000):
        panel.show_lane(race.lanes[2], None)
    assert not any(one.name == "oracle: method" for one in panel.found.alternatives)


def test_ranges_in_words():
    assert range_text(None, number) == MISSING
    assert range_text(Range.of(1.5), number) == "1.50"
    assert range_text(Range(1.5, 1.25, 2.0), times) == "1.50× (1.25×–2.00×)"
