"""What tables of recorded runs show: the runs of the library, and lanes of some of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from specview.drafting.plain import is_baseline
from specview.files.figures import METRICS
from specview.files.tables import Column, Row
from specview.library.beside import Beside, beside_document
from specview.library.exporters import shown_rates
from specview.library.library import Entry

RUN_COLUMNS = (
    Column("recorded", "recorded", "When the run began, on this machine's clock"),
    Column("title", "name", "The name you gave it; else what was run: workload or prompt, and methods"),
    Column("lanes", "lanes", "How many lanes, plain decoding included", 0),
    Column("fastest", "fastest", "The lane ahead, as the sentence on the run has it; not clearly: its range and that of plain or another lane overlap"),
    Column("tok_s", "tok/s", "Decode tokens a second of that lane, as its speedup is made of", 2),
    Column("plain_tok_s", "plain tok/s", "Plain's that it is held against", 2),
    Column("speedup", "speedup", "Of that lane over plain decoding in the same run", 2, unit="×"),
    Column("end", "ended", "done, stopped, error, or unfinished: it still runs, or its program ended before it did"),
    Column("target", "target", "The target model"),
    Column("tags", "tags", "Your tags"),
    Column("size", "size", "On the disk", 0, 1e-3, " kB"),
    Column("engine", "engine", "Where the forward passes ran"),
    Column("device", "device", "The device it ran on"),
    Column("methods", "methods", "The drafting lanes"),
    Column("note", "note", "Your note"),
    Column("prompt", "prompt", "The prompt's text (its first 20,000 characters are searched)"),
    Column("continues", "continues", "Of a branch: the run that it goes on from, and where"),
    Column("source", "from", "window, or a command"),
    Column("id", "id", "What specview runs and specview replay call it"),
)
RUN_HIDDEN = ("engine", "device", "methods", "note", "prompt", "continues", "source", "id")

LANE_COLUMNS = (
    Column("run", "run", "The run's name"),
    Column("lane", "lane", "The lane's name"),
    Column("k", "k", "Drafted tokens a round", 0),
    Column("rule", "rule", "The acceptance rule"),
    Column("tok_s", "tok/s", "Decode tokens a second, as its speedup is made of", 2),
    Column("plain_tok_s", "plain tok/s", "Its own run's plain lane's that it is held against", 2),
    METRICS["tokens_per_target_pass"].column(key="tok_pass"),
    METRICS["acceptance_rate"].column(key="alpha"),
    METRICS["draft_acceptance"].column(key="draft_acc"),
    Column("speedup", "speedup", "Over plain decoding in the lane's own run", 2, unit="×"),
    Column("over_first", "vs run 1", "Speedup over the plain lane of the first run chosen; where the runs differ in prompt, "
           "target, settings or device, what differs stands here in place of a speedup", 2, unit="×"),
    Column("equal", "= plain", "Whether its output was its own plain lane's"),
    METRICS["emitted"].column(title="tokens"),
    METRICS["ttft_s"].column(digits=2, scale=1, unit=" s"),
    Column("end", "ended", "eos, limit, stopped or error; nothing where the recording ends early"),
    Column("draft", "draft", "What it drafted with"),
    Column("key", "id", "The run's id and the lane's number in it"),
)  # fmt: skip
LANE_HIDDEN = ("draft", "key")


Rates = tuple[float | None, float | None]
"""Decode tokens a second of a lane, and of plain that it is held against."""


def run_row(entry: Entry) -> Row:
    """One run of the library."""
    best, clearly = entry.best()
    faster = entry.faster(best) if best is not None else None
    return {
        "id": entry.id, "recorded": when(entry.recorded_at), "title": entry.title, "target": entry.target,
        "lanes": len(entry.lanes) or None, "fastest": "" if best is None else best.name if clearly else f"{best.name}, not clearly",
        "tok_s": faster.tokens_per_s if faster else best.figures.get("decode_tokens_per_s") if best is not None else None,
        "plain_tok_s": faster.plain_tokens_per_s if faster else None, "speedup": faster.value if faster else None,
        "end": f"unreadable: {entry.problem}" if entry.problem else entry.end, "tags": ", ".join(entry.tags),
        "size": entry.size, "engine": entry.engine, "device": entry.device, "methods": entry.methods,
        "note": entry.note, "prompt": " ".join(entry.prompt.split()),
        "continues": entry.continues, "source": entry.source,
    }  # fmt: skip


def lane_rows(entries: Sequence[Entry]) -> list[Row]:
    """The lanes of these runs, as far as the list knows them."""
    rows = []
    for entry in entries:
        for index, lane in enumerate(entry.lanes):
            faster, settings = entry.faster(lane), {"k": lane.k, "rule": lane.rule, "draft": lane.draft}
            rates: Rates = (lane.figures.get("decode_tokens_per_s"), None)
            if faster is not None:
                rates = faster.tokens_per_s, faster.plain_tokens_per_s
            rows.append(_lane_row(
                entry, index, lane.name, settings, lane.figures, rates, speedup=faster.value if faster else None,
                over_first=None, equal=lane.equal, end=lane.end,
            ))  # fmt: skip
    return rows


def measured_lane_rows(entries: Sequence[Entry], lanes: Sequence[Beside]) -> list[Row]:
    """The lanes of these runs with figures from their rounds, and speedups over the first run's plain lane."""
    rows = []
    for one, document in zip(lanes, beside_document(lanes)["lanes"], strict=True):
        run, equal = document["run"], document.get("equal_to_plain") or {}
        over_first = 1.0 if one.run == 0 and is_baseline(run) else document.get("speedup")
        over_first = document.get("not_comparable") or over_first
        rates = shown_rates({**document, "speedup_over": document["own_speedup_over"]})
        rows.append(_lane_row(entries[one.run], one.lane, one.record.name, run, document["metrics"] or {}, rates,
                              speedup=document["own_speedup"], over_first=over_first, equal=equal.get("equal"),
                              end=document["output"]["end"]))  # fmt: skip
    return rows


def _lane_row(
    entry: Entry, index: int, name: str, settings: Row, figures: Row, rates: Rates, **more: Any
) -> Row:
    return {
        "key": f"{entry.id}:{index}", "run": entry.title, "lane": name,
        "k": settings.get("k"), "rule": settings.get("rule"), "draft": settings.get("draft") or "",
        "tok_s": rates[0], "plain_tok_s": rates[1], "tok_pass": figures.get("tokens_per_target_pass"),
        "alpha": figures.get("acceptance_rate"), "draft_acc": figures.get("draft_acceptance"),
        "emitted": figures.get("emitted"), "ttft_s": figures.get("ttft_s"), **more,
    }  # fmt: skip


def when(recorded_at: str) -> str:
    """An ISO 8601 time as local date and minute; its beginning as it stands where it is none."""
    try:
        return datetime.fromisoformat(recorded_at).astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return recorded_at[:20]
