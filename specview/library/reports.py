"""Reports of a run and of a compare, from their documents: figures, one table of lanes, what a reader must know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specview.decoding.ledger import end_words
from specview.decoding.metrics import draft_full_words
from specview.decoding.verification import is_lossy
from specview.drafting.plain import is_baseline
from specview.drafting.registry import METHODS
from specview.files.figures import METRICS
from specview.files.report import Figure, Figures, Report, Table, Text
from specview.files.tables import ABSENT, Column
from specview.files.verdict import standings, verdict
from specview.library.exporters import lane_rows

_COLUMNS = (
    Column("name", "lane"),
    Column("k", "k", digits=0),
    Column("shown_rule", "rule"),
    Column("tokens_per_s", "tok/s", digits=2),
    Column("plain_tokens_per_s", "plain", digits=2),
    METRICS["speedup"].column(title="speedup", unit="x", spread=("speedup_low", "speedup_high")),
    Column("over", "over tokens"),
    METRICS["tokens_per_target_pass"].column(),
    METRICS["acceptance_rate"].column(title="alpha", digits=2),
    METRICS["draft_acceptance"].column(title="draft acc.", digits=2),
    METRICS["predicted_speedup_measured_verify"].column(title="predicted", unit="x"),
    Column("shares", "draft/verify/other"),
    Column("equal", "equal to plain"),
)


def run_report(document: Mapping[str, Any]) -> Report:
    """The figures of a `run` document by name, an absent one as a dash."""
    run, metrics = document["run"], document["metrics"] or {}
    rule, end = run.get("rule"), end_words(document["output"]["end"])
    target = run.get("target_model_name") or run.get("target")
    there = run.get("server_engine"), run.get("server_address")
    here = run.get("engine"), run.get("device"), run.get("target_dtype")
    where = ", ".join(str(part) for part in (there if there[0] else here) if part)
    words = {"target": f"{target} ({where})", "method": _method(run)}
    if run.get("k") is not None:
        words["rule"] = f"{rule} (lossy: the output may differ from the target's own)" if is_lossy(rule) else str(rule)
    words |= {
        **({"speculation": str(run.get("server_speculation"))} if there[0] else {}),
        "output": f"{metrics.get('emitted', 0)} tokens in {metrics.get('rounds', 0)} target passes, {end}",
        "decode tok/s": _figure(metrics, "decode_tokens_per_s", 1),
        "time to first token": _seconds(metrics.get("ttft_s")),
        "total time (prefill and rounds)": _seconds(metrics.get("total_s")),
        "gap between bursts, p50 / p95": f"{_seconds(metrics.get('itl_p50_s'))} / {_seconds(metrics.get('itl_p95_s'))}",
    }
    if metrics.get("proposed") and not metrics.get("judged"):  # a server that counts drafts, and shows none
        words |= {
            "draft acceptance": f"{_figure(metrics, 'draft_acceptance', 3)}"
            f"  ({metrics['accepted']} accepted / {metrics['proposed']} proposed, by the server's counters)",
            "tokens per target pass": _figure(metrics, "tokens_per_target_pass", 2),
        }
    elif metrics.get("proposed"):
        counts = {name: metrics[name] for name in ("accepted", "judged", "proposed")}
        words |= {
            "acceptance rate (alpha)": f"{_figure(metrics, 'acceptance_rate', 3)}"
            f"  ({counts['accepted']} accepted / {counts['judged']} judged)",
            "draft acceptance": f"{_figure(metrics, 'draft_acceptance', 3)}"
            f"  ({counts['accepted']} accepted / {counts['proposed']} proposed)",
            "tokens per target pass": f"{_figure(metrics, 'tokens_per_target_pass', 2)}"
            f"  (expected at this alpha: {_figure(metrics, 'expected_tokens', 2)})",
            "draft / verify / other": _shares(metrics),
        }
        if shares := member_words(run, metrics):
            words["drafted by"] = shares
    if silent := draft_full_words(metrics.get("draft_full_at"), metrics.get("draft_context")):
        words["drafting ended"] = silent
    figures = Figures([Figure(name, text) for name, text in words.items()])
    return Report("", [figures, *(Text(note) for note in (*left_out(run), *server_notes(run, metrics)))], document)


def compare_report(document: Mapping[str, Any], more: Sequence[str] = ()) -> Report:
    """Who won in a sentence, a compare's lanes as a table, and what the reader must know beneath it; `more` are further lines."""
    lanes, rows = document["lanes"], []
    for place, (lane, row) in enumerate(zip(lanes, lane_rows(document), strict=True)):
        over = lane.get("speedup_over")
        known = "not comparable" if lane.get("not_comparable") else "1 (baseline)" if not place and is_baseline(lane["run"]) else None
        rows.append({
            **row, "speedup": known or row["speedup"], "shares": _shares(lane["metrics"] or {}),
            "over": f"{over['tokens']:.0f} / {over['plain_tokens']:.0f}" if over else None,
        })  # fmt: skip
    said = verdict(standings(lanes))
    first = [Text(said.text, "normal" if said.tone == "good" else said.tone)] if said.text else []
    return Report("", [*first, Table(_COLUMNS, rows), *(Text(note) for note in (*_notes(lanes), *more))], document)


def left_out(run: Mapping[str, Any]) -> list[str]:
    """What the target's files ask that no lane does, and where they disagree, a line each."""
    return [line for key in ("target_left_out", "target_weights_note") if isinstance(line := run.get(key), str)]


def server_notes(run: Mapping[str, Any], metrics: Mapping[str, Any]) -> list[str]:
    """What a reader must know of a lane that a server decoded, a line each."""
    if not run.get("server_engine"):
        return []
    counted = metrics.get("server") or {}
    found = [f"Times are {run.get('server_clock')}.", *(str(note) for note in run.get("server_notes") or ())]
    if counted.get("drafted") is not None:
        found.append(f"Drafted {counted['drafted']}, accepted {counted.get('accepted')}: {counted.get('source')}.")
    if counted.get("absent"):
        found.append(f"Its counters lack {', '.join(map(str, counted['absent']))}.")
    if counted.get("mixed"):
        found.append("Other requests ran at the same time: the counters hold theirs too, and the times are of a shared server.")
    if counted.get("began_anew"):
        found.append("The server began anew meanwhile: its counters hold less than the whole.")
    if counted.get("ignored"):
        found.append(f"The engine has no field for {', '.join(map(str, counted['ignored']))}: it was left out.")
    if counted.get("at_once"):
        found.append(f"{counted['at_once'][0].upper()}{counted['at_once'][1:]}.")
    return found


def member_words(run: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
    """Say who drafted what in a combined lane, and how far it is from its oracle; '' for other lanes."""
    method = METHODS.get(str(run.get("method")))
    if method is None or not method.combines:
        return ""
    members = sorted((metrics.get("by_drafter") or {}).items(), key=lambda item: -(item[1].get("share") or 0))
    parts = [f"{name} {100 * (own.get('share') or 0):.0f}% (alpha {_figure(own, 'acceptance_rate', 2)})" for name, own in members]
    if metrics.get("oracle_share") is not None:
        parts = [*(parts or ["no member"]), f"{100 * metrics['oracle_share']:.0f}% of an oracle's speed"]
    return ", ".join(parts or ["no member"])


def _notes(lanes: Sequence[Mapping[str, Any]]) -> list[str]:
    notes = left_out(lanes[0]["run"])
    repeats = len(lanes[0].get("repeats") or [])
    if repeats > 1:
        notes.append(
            f"Medians of {repeats} repeats. speedup: that of the repeat with the median ratio (tok/s, plain and over tokens are "
            "its own), with least and greatest."
        )
    elif any(lane.get("speedup_spread") for lane in lanes):
        notes.append("Behind a speedup: the middle half of the run's eighths, stretched to the speedup where a burst leaves it outside.")
    if any(lane.get("speedup_over") for lane in lanes):
        notes.append(
            "speedup: tok/s / plain; where the two ended at different lengths, or the longer one's rest ran at another speed, both "
            "over the time in which both were running. over tokens: what the lane and plain gave in it."
        )
    if lanes[0]["run"].get("check_mode"):
        notes.append("Check mode pads one-row passes: the outputs are comparable, the times are not.")
    for lane in lanes:
        name, run, metrics = lane["name"], lane["run"], lane["metrics"] or {}
        if shares := member_words(run, metrics):
            notes.append(f"{name}: drafted by {shares}.")
        if run.get("server_engine"):
            notes.append(f"{name}: {run['server_engine']} at {run.get('server_address')}, {run.get('server_model')}, {run.get('server_speculation')}.")
            notes += [f"{name}: {note}" for note in server_notes(run, metrics)]
            if not lanes[0]["run"].get("server_engine"):
                notes.append(f"{name}: its speedup is over plain decoding here: another engine, and perhaps another machine.")
        if lane.get("not_comparable"):
            notes.append(f"{name}: {lane['not_comparable']} than the first run's, so there is no speedup over its plain lane.")
        if is_lossy(run.get("rule")):
            notes.append(f"{name}: rule {run['rule']} is lossy, its output may differ from the target's own.")
        if silent := draft_full_words(metrics.get("draft_full_at"), metrics.get("draft_context")):
            notes.append(f"{name}: {silent}")
        if (end := lane["output"]["end"]) in ("error", "stopped", "context"):
            notes.append(f"{name}: {': '.join(filter(None, (end_words(end), lane.get('error'))))}")
    notes.append(
        "tok/pass: emitted / target passes. alpha: accepted / judged. draft acc.: accepted / proposed. "
        "predicted: from alpha and the measured costs."
    )
    return notes


def _method(run: Mapping[str, Any]) -> str:
    parts = [str(run.get("method"))]
    if run.get("k") is not None:
        parts += [f"k {run['k']}", str(run.get("policy"))]
    if run.get("draft") is not None:
        parts.append(f"draft {run.get('draft_model_name') or run['draft']}")
    return ", ".join(parts)


def _figure(metrics: Mapping[str, Any], name: str, digits: int) -> str:
    return METRICS[name].column(digits=digits).shown(metrics.get(name))


def _shares(metrics: Mapping[str, Any]) -> str:
    shares = [metrics.get(f"{phase}_share") for phase in ("draft", "verify", "other")]
    return ABSENT if None in shares else " / ".join(f"{share:.0%}" for share in shares)


def _seconds(value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.2f} s"
