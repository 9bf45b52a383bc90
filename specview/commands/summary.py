"""Figures for people: the summary of a run, the table of a compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specview.commands.terminal import figure, pairs, safe_text, table
from specview.decoding.metrics import draft_full_words
from specview.drafting.plain import is_baseline
from specview.drafting.registry import METHODS
from specview.library.exporters import equality_words, is_lossy, shown_rates


def run_summary(document: Mapping[str, Any]) -> str:
    """Return the figures of a `run` document by name, an absent one as a dash."""
    run, metrics = document["run"], document["metrics"] or {}
    rule = run.get("rule")
    words: dict[str, str] = {
        "target": safe_text(f"{run.get('target_model_name') or run.get('target')} ({_where(run)})"),
        "method": safe_text(_method(run)),
    }
    if run.get("k") is not None:
        words["rule"] = f"{rule} (lossy: the output may differ from the target's own)" if is_lossy(rule) else str(rule)
    words |= {
        "output": f"{metrics.get('emitted', 0)} tokens in {metrics.get('rounds', 0)} target passes, "
        f"{_ending(document['output']['end'])}",
        "decode tok/s": figure(metrics.get("decode_tokens_per_s"), 1),
        "time to first token": _seconds(metrics.get("ttft_s")),
        "total time (prefill and rounds)": _seconds(metrics.get("total_s")),
        "gap between bursts, p50 / p95": f"{_seconds(metrics.get('itl_p50_s'))} / {_seconds(metrics.get('itl_p95_s'))}",
    }
    if metrics.get("proposed"):
        words |= {
            "acceptance rate (alpha)": f"{figure(metrics.get('acceptance_rate'), 3)}"
            f"  ({metrics['accepted']} accepted / {metrics['judged']} judged)",
            "draft acceptance": f"{figure(metrics.get('draft_acceptance'), 3)}"
            f"  ({metrics['accepted']} accepted / {metrics['proposed']} proposed)",
            "tokens per target pass": f"{figure(metrics.get('tokens_per_target_pass'))}"
            f"  (expected at this alpha: {figure(metrics.get('expected_tokens'))})",
            "draft / verify / other": _shares(metrics),
        }
        shares = member_words(run, metrics)
        if shares:
            words["drafted by"] = shares
    if silent := draft_full_words(metrics.get("draft_full_at"), metrics.get("draft_context")):
        words["drafting ended"] = silent
    return pairs(words) + "".join(f"{note}\n" for note in _left_out(run))


def _left_out(run: Mapping[str, Any]) -> list[str]:
    """What the target's files ask that no lane does, and where they disagree, a line each."""
    said = (run.get(key) for key in ("target_left_out", "target_weights_note"))
    return [safe_text(line) for line in said if isinstance(line, str)]


def member_words(run: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
    """Say who drafted what in a combined lane, and how far it is from its oracle; '' for other lanes."""
    method = METHODS.get(str(run.get("method")))
    if method is None or not method.combines:
        return ""
    parts = [
        f"{safe_text(name)} {figure(100 * (member.get('share') or 0), 0)}% (alpha {figure(member.get('acceptance_rate'))})"
        for name, member in sorted(
            (metrics.get("by_drafter") or {}).items(), key=lambda item: -(item[1].get("share") or 0)
        )
    ] or ["no member"]
    if metrics.get("oracle_share") is not None:
        parts.append(f"{figure(100 * metrics['oracle_share'], 0)}% of an oracle's speed")
    return ", ".join(parts)


def compare_table(document: Mapping[str, Any]) -> str:
    """Return a compare's lanes as a table, with notes on what the reader must know beneath it."""
    lanes: Sequence[Mapping[str, Any]] = document["lanes"]
    header = [
        "lane", "k", "rule", "tok/s", "plain", "speedup", "over tokens", "tok/pass", "alpha", "draft acc.", "predicted",
        "draft/verify/other", "equal to plain",
    ]  # fmt: skip
    rows = [header, *(_row(lane, plain=index == 0) for index, lane in enumerate(lanes))]
    return table(rows) + "".join(f"{note}\n" for note in _notes(lanes))


def _row(lane: Mapping[str, Any], *, plain: bool) -> list[str]:
    run, metrics = lane["run"], lane["metrics"] or {}
    rule = str(run.get("rule"))
    tokens_per_s, plain_tokens_per_s = shown_rates(lane)
    over = lane.get("speedup_over")
    return [
        safe_text(lane["name"]).replace("\n", " "),
        figure(run.get("k"), 0),
        f"{rule} (lossy)" if is_lossy(rule) else rule,
        figure(tokens_per_s),
        figure(plain_tokens_per_s),
        "not comparable" if lane.get("not_comparable")
        else "1 (baseline)" if plain and is_baseline(run)
        else _spread(lane.get("speedup"), lane.get("speedup_spread")),
        f"{over['tokens']:.0f} / {over['plain_tokens']:.0f}" if over else "-",
        figure(metrics.get("tokens_per_target_pass")),
        figure(metrics.get("acceptance_rate")),
        figure(metrics.get("draft_acceptance")),
        figure(metrics.get("predicted_speedup_measured_verify"), 2, "x"),
        _shares(metrics),
        equality_words(lane.get("equal_to_plain")),
    ]


def _notes(lanes: Sequence[Mapping[str, Any]]) -> list[str]:
    notes = _left_out(lanes[0]["run"])
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
            "speedup: tok/s / plain, both over the time in which both were running; over tokens: what the lane and plain gave in it."
        )
    for lane in lanes:
        name = safe_text(lane["name"]).replace("\n", " ")
        shares = member_words(lane["run"], lane["metrics"] or {})
        if shares:
            notes.append(f"{name}: drafted by {shares}.")
        if lane.get("not_comparable"):
            notes.append(f"{name}: {lane['not_comparable']} than the first run's, so there is no speedup over its plain lane.")
        if is_lossy(lane["run"].get("rule")):
            notes.append(f"{name}: rule {safe_text(str(lane['run']['rule']))} is lossy, its output may differ from the target's own.")
        if lane["run"].get("check_mode") and lane is lanes[0]:
            notes.append("Check mode pads one-row passes: the outputs are comparable, the times are not.")
        metrics = lane["metrics"] or {}
        if silent := draft_full_words(metrics.get("draft_full_at"), metrics.get("draft_context")):
            notes.append(f"{name}: {silent}")
        if lane["output"]["end"] in ("error", "stopped", "context"):
            reason = safe_text(lane.get("error") or "")
            notes.append(f"{name}: {_ending(lane['output']['end'])}{f': {reason}' if reason else ''}")
    notes.append(
        "tok/pass: emitted / target passes. alpha: accepted / judged. draft acc.: accepted / proposed. "
        "predicted: from alpha and the measured costs."
    )
    return notes


def _method(run: Mapping[str, Any]) -> str:
    parts = [str(run.get("method"))]
    if run.get("k") is not None:
        parts.append(f"k {run['k']}")
        parts.append(str(run.get("policy")))
    if run.get("draft") is not None:
        parts.append(f"draft {run.get('draft_model_name') or run['draft']}")
    return ", ".join(parts)


def _where(run: Mapping[str, Any]) -> str:
    parts = [run.get("engine"), run.get("device"), run.get("target_dtype")]
    return ", ".join(str(part) for part in parts if part)


def _ending(end: str | None) -> str:
    return {
        "eos": "ended by the model",
        "limit": "ended by the token limit",
        "context": "ended where the target's context was full",
        "stopped": "stopped",
        "error": "ended by an error",
    }.get(end or "", "not finished")


def _shares(metrics: Mapping[str, Any]) -> str:
    shares = [metrics.get(f"{phase}_share") for phase in ("draft", "verify", "other")]
    if any(share is None for share in shares):
        return "-"
    return " / ".join(f"{100 * share:.0f}%" for share in shares if share is not None)


def _spread(value: float | None, spread: Sequence[float] | None) -> str:
    text = figure(value, 2, "x")
    if value is None or not spread or spread[0] == spread[1]:
        return text
    return f"{text} ({spread[0]:.2f}-{spread[1]:.2f})"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.2f} s"
