"""What tables of recorded runs show: the runs of the library, and lanes of some of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

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
    Column("fastest", "fastest", "The lane with the most tokens a second"),
    Column("tok_s", "tok/s", "Decode tokens a second of the fastest lane; beside a speedup over the time in which plain ran too", 2),
    Column("plain_tok_s", "plain tok/s", "Plain's over the same time", 2),
    Column("speedup", "speedup", "Of the fastest lane over plain decoding in the same run", 2, unit="×"),
    Column("end", "ended", "done, stopped, error, or unfinished: it still runs, or its program ended before it did"),
    Column("target", "target", "The target model"),
    Column("tags", "tags", "Your tags"),
    Column("size", "size", "On the disk", 0, 1e-3, " kB"),
    Column("engine", "engine", "Where the forward passes ran"),
    Column("device", "device", "The device it ran on"),
    Column("methods", "methods", "The drafting lanes"),
    Column("note", "note", "Your note"),
    Column("prompt", "prompt", "The prompt's text (its first 20,000 characters are searched)"),
    Column("source", "from", "window, or a command"),
    Column("id", "id", "What specview runs and specview replay call it"),
)
RUN_HIDDEN = ("engine", "device", "methods", "note", "prompt", "source", "id")

LANE_COLUMNS = (
    Column("run", "run", "The run's name"),
    Column("lane", "lane", "The lane's name"),
    Column("k", "k", "Drafted tokens a round", 0),
    Column("rule", "rule", "The acceptance rule"),
    Column("tok_s", "tok/s", "Decode tokens a second; beside a speedup over the time in which plain ran too", 2),
    Column("plain_tok_s", "plain tok/s", "Its own run's plain lane over the same time", 2),
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


def run_row(entry: Entry) -> Row:
    """One run of the library."""
    best = entry.best
    faster = entry.faster(best) if best is not None else None
    return {
        "id": entry.id,
        "recorded": when(entry.recorded_at),
        "title": entry.title,
        "target": entry.target,
        "lanes": len(entry.lanes) or None,
        "fastest": best.name if best is not None else "",
        "tok_s": faster.tokens_per_s if faster else best.figures.get("decode_tokens_per_s") if best is not None else None,
        "plain_tok_s": faster.plain_tokens_per_s if faster else None,
        "speedup": faster.value if faster else None,
        "end": f"unreadable: {entry.problem}" if entry.problem else entry.end,
        "tags": ", ".join(entry.tags),
        "size": entry.size,
        "engine": entry.engine,
        "device": entry.device,
        "methods": entry.methods,
        "note": entry.note,
        "prompt": " ".join(entry.prompt.split()),
        "source": entry.source,
    }


def lane_rows(entries: Sequence[Entry]) -> list[Row]:
    """The lanes of these runs, as far as the list knows them."""
    return [
        {
            "key": f"{entry.id}:{index}",
            "run": entry.title,
            "lane": lane.name,
            "k": lane.k,
            "rule": lane.rule,
            "tok_s": faster.tokens_per_s if faster else lane.figures.get("decode_tokens_per_s"),
            "plain_tok_s": faster.plain_tokens_per_s if faster else None,
            "tok_pass": lane.figures.get("tokens_per_target_pass"),
            "alpha": lane.figures.get("acceptance_rate"),
            "draft_acc": lane.figures.get("draft_acceptance"),
            "speedup": faster.value if faster else None,
            "over_first": None,
            "equal": lane.equal,
            "emitted": lane.figures.get("emitted"),
            "ttft_s": lane.figures.get("ttft_s"),
            "end": lane.end,
            "draft": lane.draft,
        }
        for entry in entries
        for index, lane in enumerate(entry.lanes)
        for faster in (entry.faster(lane),)
    ]


def measured_lane_rows(entries: Sequence[Entry], lanes: Sequence[Beside]) -> list[Row]:
    """The lanes of these runs with figures from their rounds, and speedups over the first run's plain lane."""
    rows: list[Row] = []
    documents = beside_document(lanes)["lanes"]
    for one, document in zip(lanes, documents, strict=True):
        run, metrics = document["run"], document["metrics"] or {}
        equal = document.get("equal_to_plain") or {}
        first_plain = one.run == 0 and is_baseline(run)
        tokens_per_s, plain_tokens_per_s = shown_rates({**document, "speedup_over": document["own_speedup_over"]})
        rows.append(
            {
                "key": f"{entries[one.run].id}:{one.lane}",
                "run": entries[one.run].title,
                "lane": one.record.name,
                "k": run.get("k"),
                "rule": run.get("rule"),
                "tok_s": tokens_per_s,
                "plain_tok_s": plain_tokens_per_s,
                "tok_pass": metrics.get("tokens_per_target_pass"),
                "alpha": metrics.get("acceptance_rate"),
                "draft_acc": metrics.get("draft_acceptance"),
                "speedup": document["own_speedup"],
                "over_first": document.get("not_comparable") or (1.0 if first_plain else document.get("speedup")),
                "equal": equal.get("equal"),
                "emitted": metrics.get("emitted"),
                "ttft_s": metrics.get("ttft_s"),
                "end": document["output"]["end"],
                "draft": run.get("draft") or "",
            }
        )
    return rows


def when(recorded_at: str) -> str:
    """An ISO 8601 time as local date and minute; its beginning as it stands where it is none."""
    try:
        return datetime.fromisoformat(recorded_at).astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return recorded_at[:20]
