"""One speedup, one spread: every place that shows them says the same, and they are what the figures beside them divide to."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import pytest

from specview.commands.terminal import report_text
from specview.decoding.speedup import speedup
from specview.experiments.prompt_set import prompt_set_report, request_rows, run_prompt_set
from specview.files.documents import compare_document
from specview.files.figures import METRICS
from specview.files.reader import read_trace
from specview.gui.state.view_model import RaceModel
from specview.gui.why.figures import cell
from specview.lab.explain import explain
from specview.lab.theory_points import lane_point
from specview.lab.what_if import replay_of_lane
from specview.library.beside import beside_document, lay_beside
from specview.library.exporters import compare_csv, compare_markdown
from specview.library.keeping import RunKeeper
from specview.library.library import RunLibrary
from specview.library.replay import trace_document
from specview.library.reports import compare_report
from specview.library.rows import lane_rows, measured_lane_rows, run_row
from specview.racing.compare import compare
from specview.racing.workloads import Prompt, Workload
from specview.settings.run import LaneSettings
from tests.experiments.test_sweep import grid_of, sweep
from tests.racing.world import DRAFTED, LOOKUP, SAMPLED, World, last_ends

SLOW = LaneSettings("draft-model", k=6, rule="match", name="slow")  # ends after plain


def divides(ratio: float, above: float, below: float) -> bool:
    """Whether figures shown with two decimals divide to a ratio shown with two."""
    low, high = (above - 0.005) / (below + 0.005), (above + 0.005) / max(below - 0.005, 1e-9)
    return low - 0.005 <= ratio <= high + 0.005


@pytest.mark.parametrize("seed", range(6))
def test_every_view_of_a_race_shows_the_same(monkeypatch, tmp_path, seed):
    world = World(monkeypatch, row_cost=0.4)
    race = world.race(DRAFTED, LOOKUP, SLOW, max_tokens=140, sampling=replace(SAMPLED, seed=seed), observe="light")
    library, events, model = RunLibrary(tmp_path), [], RaceModel()
    keeper = RunKeeper(library)
    race.run(lambda event: (events.append(event), keeper.take(event), model.apply(event)))
    keeper.close()
    ends, records = last_ends(events), race.records
    trace = read_trace(keeper.path)
    replayed, besides = trace_document(trace)["lanes"], beside_document(lay_beside([("1", trace, None)]))["lanes"]
    (entry,) = library.scan()
    kept, measured = lane_rows([entry]), measured_lane_rows([entry], lay_beside([("1", trace, None)]))
    shown = [line.split() for line in report_text(compare_report({"lanes": replayed})).splitlines()[3:7]]
    markdown = [row.split(" | ") for row in compare_markdown({"lanes": replayed}).splitlines()[2:]]
    table = list(csv.DictReader(io.StringIO(compare_csv({"lanes": replayed}))))
    for index in (1, 2, 3):
        found = ends[index].speedup
        assert found is not None and found == speedup(records[index].rounds, records[0].rounds)
        assert found.low is not None and found.low <= found.value <= found.high
        explained = explain(records[index].rounds, records[0].rounds, records[index].settings)
        assert (explained.measured_speedup, explained.speedup_spread) == (found.value, found.spread)
        assert model.speedup(model.lanes[index]) == found
        assert lane_point("x", records[index].rounds, records[0].rounds).measured == found.value
        recorded = replay_of_lane(records, index).recorded().speedup
        assert (recorded.value, recorded.low, recorded.high) == (found.value, found.low, found.high)
        for document in (replayed[index], besides[index]):
            assert document["speedup"] == pytest.approx(found.value, rel=1e-5)
            assert document["speedup_spread"] == pytest.approx(found.spread, rel=1e-5)
            assert document["speedup_over"] == pytest.approx(found.as_dict(), rel=1e-5)
        for row in (kept[index], measured[index]):
            assert row["speedup"] == pytest.approx(found.value, rel=1e-5)
            assert row["speedup"] == pytest.approx(row["tok_s"] / row["plain_tok_s"], rel=1e-5)
        rate, plain, ratio = (float(table[index][key]) for key in ("speedup_tokens_per_s", "speedup_plain_tokens_per_s", "speedup"))
        assert ratio == pytest.approx(rate / plain, rel=1e-5) and ratio == pytest.approx(found.value, rel=1e-5)
        rate, plain, ratio = (float(text.rstrip("x")) for text in _cells(shown[index]))
        assert divides(ratio, rate, plain) and ratio == pytest.approx(found.value, abs=0.006)
        rate, plain = float(markdown[index][3]), float(markdown[index][4])
        assert divides(float(markdown[index][8]), rate, plain)
        lane = model.lanes[index]
        assert cell("decode_tokens_per_s", model, lane, model.metrics(lane)) == METRICS["decode_tokens_per_s"].text(found.tokens_per_s)
        assert METRICS["decode_tokens_per_s"].text(found.plain_tokens_per_s) in cell("plain_tokens_per_s", model, lane, model.metrics(lane))
    best = run_row(entry)
    assert best["speedup"] == pytest.approx(best["tok_s"] / best["plain_tok_s"], rel=1e-9)


def _cells(words: list[str]) -> tuple[str, str, str]:
    """tok/s, plain and speedup of a table's line: the speedup is the first cell with an x, the two before it its parts."""
    at = next(place for place, word in enumerate(words) if re.fullmatch(r"[\d.]+x", word))
    return words[at - 2], words[at - 1], words[at]


@pytest.mark.parametrize("repeats", [1, 2, 3])
def test_tables_of_repeats_sets_and_sweeps_divide_too(monkeypatch, tmp_path, repeats):
    world = World(monkeypatch, row_cost=0.4)
    sampled = {"prompt": "bcd", "chat": False, "observe": "off", "sampling": SAMPLED, "max_tokens": 40}
    settings = world.race(DRAFTED, LOOKUP, **sampled).settings
    found = compare_document(compare(settings, repeats, clock=world.clock))
    for line in report_text(compare_report(found)).splitlines()[4:6]:
        rate, plain, ratio = (float(text.rstrip("x")) for text in _cells(line.split()))
        assert divides(ratio, rate, plain)
    for lane in found["lanes"][1:]:
        over = lane["speedup_over"]
        assert lane["speedup"] == pytest.approx(over["tokens_per_s"] / over["plain_tokens_per_s"], rel=1e-5)
        if repeats > 1:
            assert lane["speedup_spread"][0] <= lane["speedup"] <= lane["speedup_spread"][1]
    prompts = Workload("x.jsonl", (Prompt("bcdbcd", workload="a"), Prompt("edc", workload="a")), "0")
    result = run_prompt_set(settings, prompts, repeats, clock=world.clock)
    report = prompt_set_report(result)
    rows = [row for row in request_rows(result) if "speedup" in row]
    assert len(rows) == 4
    for row in [*rows, *(one for one in csv.DictReader(io.StringIO(report.csv)) if one["speedup"])]:
        assert float(row["speedup"]) == pytest.approx(float(row["tokens_per_s"]) / float(row["plain_tokens_per_s"]), rel=1e-4)
    assert "plain tok/s" in report_text(report).splitlines()[2]
    results, _ = sweep(world, grid_of(ks=(1, 3), repeats=repeats).checked(), tmp_path / "s.jsonl")
    for row in results.rows():
        assert row["speedup"] == pytest.approx(row["tokens_per_s"] / row["plain_tokens_per_s"])
        assert row["speedup_low"] is None or row["speedup_low"] <= row["speedup"] <= row["speedup_high"]
