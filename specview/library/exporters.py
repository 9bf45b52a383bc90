"""Tables of a compare: CSV for a spreadsheet, Markdown for a note."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specview.decoding.sampling import SamplingParams
from specview.decoding.verification import is_lossy
from specview.fields import declared
from specview.files.figures import METRICS
from specview.files.tables import Column, Row, table_csv, table_markdown

_RUN_KEYS = (
    "engine", "target", "draft", "draft_engine", "method", "k", "policy", "rule",
    *declared(SamplingParams), "stop", "workload", "max_tokens", "device", "dtype", "threads", "check_mode",
)  # fmt: skip

_MARKDOWN_COLUMNS = (
    Column("name", "lane"),
    Column("k", "k", digits=0),
    Column("shown_rule", "rule"),
    Column("tokens_per_s", "tok/s", digits=2),
    Column("plain_tokens_per_s", "plain tok/s", digits=2),
    METRICS["tokens_per_target_pass"].column(title="tokens per target pass"),
    METRICS["acceptance_rate"].column(title="acceptance rate (alpha)"),
    METRICS["draft_acceptance"].column(title="draft acceptance"),
    METRICS["speedup"].column(title="speedup", unit=""),
    METRICS["predicted_speedup_measured_verify"].column(title="predicted speedup", unit=""),
    Column("equal", "equal to plain"),
)


SPEEDUP_OVER = ("tokens_per_s", "plain_tokens_per_s", "tokens", "plain_tokens", "seconds", "plain_seconds")


def shown_rates(lane: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Decode tok/s of a document's lane and of plain beside it, whose ratio its speedup is; without one the lane's own."""
    over = lane.get("speedup_over")
    if over:
        return over["tokens_per_s"], over["plain_tokens_per_s"]
    return (lane["metrics"] or {}).get("decode_tokens_per_s"), None


def compare_csv(document: Mapping[str, Any]) -> str:
    """Return a compare document as CSV, a row per lane; an absent figure is an empty cell.

    Columns: name, the settings, whether the rule is exact, every single-valued metric, speedup with its
    spread and what it is the ratio of, and equality with plain.
    """
    metrics = document["lanes"][0]["metrics"] or {}
    keys = [
        "name", *_RUN_KEYS, "exact", "end",
        *(name for name, value in metrics.items() if not isinstance(value, (list, dict))),
        "speedup", "speedup_low", "speedup_high", *(f"speedup_{key}" for key in SPEEDUP_OVER), "repeats",
        "equal_to_plain", "first_difference",
    ]  # fmt: skip
    return table_csv([Column(key, key) for key in keys], lane_rows(document))


def compare_markdown(document: Mapping[str, Any]) -> str:
    """Return a compare document as a Markdown table, a row per lane; an absent figure is a dash."""
    return table_markdown(_MARKDOWN_COLUMNS, lane_rows(document))


def lane_rows(document: Mapping[str, Any]) -> list[Row]:
    """A row per lane of a compare document: settings, metrics, speedup with what it is the ratio of, equality."""
    rows: list[Row] = []
    for lane in document["lanes"]:
        run, equality, over = lane["run"], lane.get("equal_to_plain"), lane.get("speedup_over") or {}
        rates, spread, lossy = shown_rates(lane), lane.get("speedup_spread") or (None, None), is_lossy(run.get("rule"))
        rows.append({
            **{key: run.get(key) for key in _RUN_KEYS}, **(lane["metrics"] or {}), "name": lane["name"],
            "exact": not lossy,
            "shown_rule": f"{run.get('rule')} (lossy)" if lossy else str(run.get("rule")), "end": lane["output"]["end"],
            "tokens_per_s": rates[0], "plain_tokens_per_s": rates[1], "speedup": lane.get("speedup"),
            "speedup_low": spread[0], "speedup_high": spread[1],
            **{f"speedup_{key}": over.get(key) for key in SPEEDUP_OVER},
            "repeats": len(lane.get("repeats") or [None]), "equal": equality_words(equality),
            "equal_to_plain": (equality or {}).get("equal"),
            "first_difference": (equality or {}).get("first_difference"),
        })  # fmt: skip
    return rows


def equality_words(equality: Mapping[str, Any] | None) -> str:
    """Say in a few words how a lane's output compares with plain's; a dash where nothing was compared."""
    if equality is None:
        return "-"
    if equality["equal"]:
        return "yes"
    words = f"differs at token {equality['first_difference']}"
    if equality.get("logit_margin") is not None:
        words += f", margin {equality['logit_margin']:.2g}"
    if equality.get("kernel_margin") is not None:
        words += f" (kernel margin {equality['kernel_margin']:.2g})"
    return words
