"""Fifty random races on a fake clock: wherever a speedup is shown, it is the quotient of the two tok/s shown beside it."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from specview.commands.terminal import report_text
from specview.decoding.sampling import SamplingParams
from specview.files.figures import rate, times, times_short
from specview.files.reader import read_trace
from specview.files.verdict import standings, verdict
from specview.gui.link.open_run import recorded_race
from specview.gui.state.figures import beside, shown_rate
from specview.gui.state.race_words import standing
from specview.gui.state.view_model import RaceModel
from specview.lab.explain import explain
from specview.library.exporters import compare_markdown
from specview.library.keeping import RunKeeper
from specview.library.library import RunLibrary
from specview.library.replay import trace_document
from specview.library.reports import compare_report
from specview.library.rows import lane_rows
from specview.settings.events import LaneRound
from specview.settings.run import LaneSettings
from tests.racing.world import DRAFTED, LOOKUP, SAMPLED, World

SLOW = LaneSettings("draft-model", k=6, name="slow")  # ends after plain


def unit(text: str) -> float:
    """Half of the last digit that a figure is shown with."""
    return 0.5 * 10.0 ** -len(text.partition(".")[2])


def shown_divides(ratio: str, above: str, below: str) -> bool:
    """Whether a ratio as it is shown may be the quotient of two figures as they are shown."""
    r, a, b = (float(text.rstrip("x×").replace(",", "")) for text in (ratio, above, below))
    low = (a - unit(above)) / (b + unit(below))
    high = (a + unit(above)) / max(b - unit(below), 1e-12)
    half = unit(ratio.rstrip("x×"))
    return low - half - 1e-9 <= r <= high + half + 1e-9


def random_race(monkeypatch, tmp_path, seed):
    """A race of random lanes at random speeds, as it was told and as it was kept; some stop, some end early."""
    draw = random.Random(seed)
    sampled = draw.random() < 0.5
    world = World(monkeypatch, row_cost=draw.choice((0.02, 0.2, 0.9)), eos_ids=(5,) if draw.random() < 0.4 else ())
    rule = draw.choice(("rejection", "match", "typical")) if sampled else "auto"
    lanes = [DRAFTED, replace(LOOKUP, rule=rule if rule != "auto" else "auto"), replace(SLOW, rule="match" if sampled else "auto")]
    lanes = draw.sample(lanes, draw.randint(1, 3))
    sampling = replace(SAMPLED, seed=seed) if sampled else SamplingParams()
    race = world.race(*lanes, max_tokens=draw.choice((3, 24, 97, 160)), sampling=sampling, observe="light")
    library, model = RunLibrary(tmp_path), RaceModel()
    keeper = RunKeeper(library)
    stop_after = draw.choice((None, None, None, 40))
    told, shown, speeds = [], [], draw.choice(((1.0,), (0.3, 1.0, 1.0, 4.0)))  # a machine that is steady, or is not

    def take(event):
        told.append(event)
        keeper.take(event)
        model.apply(event)
        for engine in world.engines.values():
            engine.pass_cost = draw.choice(speeds)
        if isinstance(event, LaneRound):  # while it runs the two figures on screen divide to the number on screen too
            plain = model.baseline
            for lane in model.lanes:
                found = model.speedup(lane)
                if found is not None:
                    below = beside(found).split()[1] if beside(found) else rate(model.metrics(plain).decode_tokens_per_s)
                    shown.append((times(found.value), rate(shown_rate(found, model.metrics(lane))), below))

    race.run(take, lambda: stop_after is not None and len(told) > stop_after)
    keeper.close()
    assert all(shown_divides(*one) for one in shown)
    return race, model, keeper.path, library


@pytest.mark.parametrize("seed", range(50))
def test_in_random_races_the_speedup_is_the_quotient_of_the_figures_shown(monkeypatch, tmp_path, seed):
    race, model, path, library = random_race(monkeypatch, tmp_path, seed)
    trace = read_trace(path)
    document = trace_document(trace)
    plain = model.lanes[0]
    plain_rate = rate(model.metrics(plain).decode_tokens_per_s)
    printed = [line.split() for line in report_text(compare_report(document)).splitlines()[1:]]
    markdown = [row.split(" | ") for row in compare_markdown(document).splitlines()[2:]]
    (entry,) = library.scan()
    kept = lane_rows([entry])
    opened = recorded_race(trace)
    said = (verdict([standing(model, lane) for lane in model.lanes]), verdict(standings(document["lanes"])),
            verdict([standing(opened, lane) for lane in opened.lanes]))  # fmt: skip
    assert len({(one.sentence, one.rest) for one in said}) == 1, "window, command, file and what is opened again say the same"
    for index, lane in enumerate(model.lanes[1:], 1):
        found = model.speedup(lane)
        if found is None:
            continue
        # the window: the big number, the lane's tok/s and plain's, beside it where the lane's line says so
        held = plain_rate if found.whole else beside(found).split()[1]
        for number in (times(found.value), times_short(found.value)):
            assert shown_divides(number, rate(shown_rate(found, model.metrics(lane))), held)
        assert bool(beside(found)) != found.whole and (not found.whole or lane.emitted == plain.emitted)
        assert found.spread is None or found.low <= found.value <= found.high
        # the command's table and Markdown
        row = next(row for row in printed if row[:1] == [lane.name])
        at = next(place for place, word in enumerate(row) if re.fullmatch(r"[\d.]+x", word))
        above, below, ratio = row[at - 2 : at + 1]
        assert shown_divides(ratio, above, below)
        assert shown_divides(markdown[index][8], markdown[index][3], markdown[index][4])
        # files: the document, the list of kept runs, the run opened again
        one = document["lanes"][index]
        assert one["speedup"] == pytest.approx(found.value, rel=1e-5)
        over = one["speedup_over"]
        assert one["speedup"] == pytest.approx(over["tokens_per_s"] / over["plain_tokens_per_s"], rel=1e-6)
        assert one["speedup_spread"] is None or one["speedup_spread"][0] <= one["speedup"] <= one["speedup_spread"][1]
        if found.whole:
            rates = [document["lanes"][place]["metrics"]["decode_tokens_per_s"] for place in (index, 0)]
            assert one["speedup"] == pytest.approx(rates[0] / rates[1], rel=1e-5)
        assert kept[index]["speedup"] == pytest.approx(kept[index]["tok_s"] / kept[index]["plain_tok_s"], rel=1e-5)
        assert kept[index]["speedup"] == pytest.approx(found.value, rel=1e-5)
        again = opened.speedup(opened.lanes[index])
        assert (again.value, again.spread) == (pytest.approx(found.value, rel=1e-5), found.spread and pytest.approx(found.spread, rel=1e-4))
        explained = explain(race.records[index].rounds, race.records[0].rounds, race.records[index].settings)
        assert (explained.measured_speedup, explained.speedup_spread) == (found.value, found.spread)
    numbers = re.findall(r"([\d.,]+) against ([\d.,]+) tok/s", said[0].rest)
    for above, below in numbers:
        best = max((one for lane in model.lanes if (one := model.speedup(lane)) is not None), key=lambda one: one.value)
        assert shown_divides(times_short(best.value), above, below)
