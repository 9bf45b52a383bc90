"""Tables of a compare: CSV for a spreadsheet, Markdown for a note."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specview.decoding.verification import RULES
from specview.files.figures import METRICS
from specview.files.tables import Column, csv_text, table_markdown

_RUN_KEYS = (
    "engine", "target", "draft", "draft_engine", "method", "k", "policy", "rule",
    "temperature", "top_k", "top_p", "min_p", "seed", "workload", "max_tokens", "device", "dtype", "threads",
    "check_mode",
)  # fmt: skip

_MARKDOWN_COLUMNS = (
    Column("lane", "lane"),
    Column("k", "k", digits=0),
    Column("rule", "rule"),
    Column("tokens_per_s", "tok/s", digits=2),
    Column("plain_tokens_per_s", "plain tok/s", digits=2),
    METRICS["tokens_per_target_pass"].column(title="tokens per target pass"),
    METRICS["acceptance_rate"].column(title="acceptance rate (alpha)"),
    METRICS["draft_acceptance"].column(title="draft acceptance"),
    METRICS["speedup"].column(title="speedup", unit=""),
    METRICS["predicted_speedup_measured_verify"].column(title="predicted speedup", unit=""),
    Column("equal", "equal to plain"),
)


SPEEDUP_OVER = ("tokens_per_s", "plain_tokens_per_s", "tokens", "plain_tokens", "seconds")


def shown_rates(lane: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Decode tok/s of a document's lane and of plain beside it, whose ratio its speedup is; without one the lane's own."""
    over = lane.get("speedup_over")
    if over:
        return over["tokens_per_s"], over["plain_tokens_per_s"]
    return (lane["metrics"] or {}).get("decode_tokens_per_s"), None


def is_lossy(rule: Any) -> bool:
    """Whether a lane under this rule may give other output than the target alone would."""
    return not RULES.get(rule, True)


def compare_csv(document: Mapping[str, Any]) -> str:
    """Return a compare document as CSV, a row per lane; an absent figure is an empty cell.

    Columns: name, the settings, whether the rule is exact, every single-valued metric, speedup with its
    spread and what it is the ratio of, and equality with plain.
    """
    lanes = document["lanes"]
    metric_names = [
        name for name, value in (lanes[0]["metrics"] or {}).items() if not isinstance(value, (list, dict))
    ]
    header = [
        "name", *_RUN_KEYS, "exact", "end", *metric_names,
        "speedup", "speedup_low", "speedup_high", *(f"speedup_{key}" for key in SPEEDUP_OVER), "repeats",
        "equal_to_plain", "first_difference",
    ]  # fmt: skip
    lines = [header]
    for lane in lanes:
        run, metrics = lane["run"], lane["metrics"] or {}
        low, high = lane.get("speedup_spread") or (None, None)
        equality = lane.get("equal_to_plain") or {}
        lines.append(
            [
                lane["name"],
                *(_cell(run.get(key)) for key in _RUN_KEYS),
                _cell(not is_lossy(run.get("rule"))),
                lane["output"]["end"],
                *(_cell(metrics.get(name)) for name in metric_names),
                *(_cell(value) for value in (lane.get("speedup"), low, high)),
                *(_cell((lane.get("speedup_over") or {}).get(key)) for key in SPEEDUP_OVER),
                len(lane.get("repeats") or [None]),
                _cell(equality.get("equal")),
                _cell(equality.get("first_difference")),
            ]
        )
    return csv_text(lines)


def compare_markdown(document: Mapping[str, Any]) -> str:
    """Return a compare document as a Markdown table, a row per lane; an absent figure is a dash."""
    rows = []
    for lane in document["lanes"]:
        run = lane["run"]
        tokens_per_s, plain_tokens_per_s = shown_rates(lane)
        rows.append({
            **(lane["metrics"] or {}), "lane": lane["name"], "k": run.get("k"),
            "rule": f"{run.get('rule')} (lossy)" if is_lossy(run.get("rule")) else str(run.get("rule")),
            "tokens_per_s": tokens_per_s, "plain_tokens_per_s": plain_tokens_per_s, "speedup": lane.get("speedup"),
            "equal": equality_words(lane.get("equal_to_plain")),
        })  # fmt: skip
    return table_markdown(_MARKDOWN_COLUMNS, rows)


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


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value
