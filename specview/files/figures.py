"""The one table of metrics: name in files, label, title, formula, format and note (DESIGN section 6), and how they are shown.

alpha and draft acceptance have labels of their own, so that no two things are called "acceptance rate". In the window a
metric that does not exist is an en dash, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from specview.decoding.speedup import Speedup
from specview.files.tables import Column

MISSING = "–"


def number(value: float | None, digits: int = 2) -> str:
    """Format with a fixed number of decimals; an en dash for what does not exist."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def whole(value: float | None) -> str:
    """Format a count; an en dash for what does not exist."""
    return number(value, 0)


def rate(value: float | None) -> str:
    """Format a per-second figure to three digits or so: 4.13, 41.3, 413."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 999.5 else f"{value:,.0f}"


def times(value: float | None) -> str:
    """Format a ratio: 1.79×."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:.2f}×"


def times_short(value: float | None) -> str:
    """Format a ratio for a headline: 1.9×, and 1.04× near 1, where one decimal would say too little."""
    if value is None or not math.isfinite(value):
        return MISSING
    return f"{value:.2f}×" if 0.895 <= value < 1.095 else f"{value:.1f}×"


def speedup_over(found: Speedup) -> str:
    """Say what a speedup is over: both whole runs, or the time in which both were running."""
    if found.whole:
        return f"{found.tokens:.0f} tokens each" if found.tokens == found.plain_tokens else "of both so far"
    return f"{found.tokens:.0f} tokens beside plain's {found.plain_tokens:.0f} in the {found.seconds:.2f} s in which both were running"


def percent(value: float | None) -> str:
    """Format a share: 12%."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:.0%}"


def milliseconds(value: float | None) -> str:
    """Format seconds as milliseconds: 7.4 ms."""
    if value is None or not math.isfinite(value):
        return f"{MISSING} ms"
    ms = value * 1e3
    return f"{ms:.2f} ms" if ms < 0.995 else f"{ms:.1f} ms" if ms < 999.5 else f"{value:.2f} s"


def probability(value: float | None) -> str:
    """Format a probability to two decimals, small ones in words a reader cannot take for 0."""
    if value is None or not math.isfinite(value):
        return MISSING
    if 0 < value < 0.005:
        return f"{value:.0e}".replace("e-0", "e-")
    if 0.995 <= value < 1:
        return ">0.99"
    return f"{value:.2f}"


def size(value: float | None) -> str:
    """Format bytes: 12.3 MB."""
    if not value:
        return MISSING
    for unit in ("B", "kB", "MB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def series(values: Sequence[float | None] | None) -> str:
    """Format a metric by position: 0.71 · 0.64 · 0.52."""
    return " · ".join(number(value) for value in values or ()) or MISSING


Kind = Literal["number", "count", "rate", "times", "share", "time", "bytes", "series"]

_KINDS: dict[Kind, tuple[Callable[[Any], str], Column]] = {
    "number": (number, Column("", "", digits=2)),
    "count": (whole, Column("", "", digits=0)),
    "rate": (rate, Column("", "", digits=2)),
    "times": (times, Column("", "", digits=2, unit="×")),
    "share": (percent, Column("", "", digits=0, scale=100.0, unit="%")),
    "time": (milliseconds, Column("", "", digits=1, scale=1000.0, unit=" ms")),
    "bytes": (size, Column("", "", digits=0)),
    "series": (series, Column("", "")),
}
"""How each kind is written in the window, and in tables."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name in files, its label, title and formula, its kind, and what else to know of it.

    digits: decimals in tables, where they are not those of its kind.
    """

    name: str
    label: str
    title: str
    formula: str
    kind: Kind = "number"
    note: str = ""
    digits: int | None = None

    def text(self, value: Any) -> str:
        """Format a value for the window."""
        return _KINDS[self.kind][0](value)

    def tooltip(self, detail: str = "") -> str:
        """Say what the metric is, its formula, and (detail) the numbers in it."""
        return "\n".join(part for part in (f"{self.title} = {self.formula}", detail, self.note) if part)

    def column(self, **changes: Any) -> Column:
        """Its column in a table, under its label; `changes` say what is otherwise there."""
        own = replace(_KINDS[self.kind][1], key=self.name, title=self.label, tip=f"{self.title}: {self.formula}")
        return replace(own, **{"digits": own.digits if self.digits is None else self.digits, **changes})


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("decode_tokens_per_s", "tok/s", "decode speed", "emitted tokens / sum of round times", "rate",
               "Load and prefill are not in it; the lane's clock counts its own compute only. Where a lane and plain ended at "
               "different lengths, or the longer one's rest ran at another speed, the one beside a speedup is over the time in which "
               "both were running."),
        Metric("plain_tokens_per_s", "beside it", "beside it", "plain's decode tok/s", "rate",
               "What the speedup is held against: of the whole run, or over the same time as the lane's."),
        Metric("speedup", "vs plain", "speedup", "decode tok/s / plain's", "times",
               "Plain is measured beside it: same prompt, target, sampling and device. Where the two ended at different lengths, "
               "or the longer one's rest ran at another speed, both over the time in which both were running."),
        Metric("acceptance_rate", "α", "acceptance rate α", "accepted / judged",
               note="Judged: drafted tokens up to and including the first rejection. Later ones do not count.", digits=3),
        Metric("draft_acceptance", "accepted/proposed", "draft acceptance", "accepted / proposed",
               note="llama.cpp and vLLM call this the acceptance rate; drafts never judged count against it.", digits=3),
        Metric("tokens_per_target_pass", "tok/pass", "tokens per target pass", "emitted tokens / target passes",
               note="Prefill is not in it. Plain decoding gives exactly 1."),
        Metric("mean_accepted_length", "mean length", "mean accepted length", "1 + accepted / rounds with a draft"),
        Metric("expected_tokens", "expected", "expected tokens per pass", "(1 - α^(k+1)) / (1 - α)",
               note="Leviathan 2023, equation 1; mean k where k varies."),
        Metric("draft_cost", "c", "draft cost c", "time of one draft step / of one plain target step", digits=3),
        Metric("verify_cost", "v(k)", "verify cost v(k)", "time of a (k+1)-row target pass / of a one-row pass"),
        Metric("predicted_speedup", "pred.", "predicted speedup", "(1 - α^(k+1)) / ((1 - α)(k c + 1))", "times",
               "Leviathan 2023, theorem 3.8: verifying is taken to cost one plain step."),
        Metric("predicted_speedup_measured_verify", "pred. with v(k)", "predicted speedup, measured verify",
               "(1 - α^(k+1)) / ((1 - α)(k c + v(k)))", "times", "With the target pass as slow as it was here."),
        Metric("draft_share", "draft", "draft share", "draft time / decode time", "share"),
        Metric("verify_share", "verify", "verify share", "target pass time / decode time", "share"),
        Metric("other_share", "other", "other share", "time outside both / decode time", "share"),
        Metric("ttft_s", "first token", "time to first token", "prefill + first round", "time", "Loading is not in it."),
        Metric("total_s", "total", "total time", "prefill + all rounds", "time", "Loading is not in it."),
        Metric("itl_p50_s", "gap p50", "gap between bursts, median", "median of the round times but the first", "time",
               "Tokens of one round arrive together."),
        Metric("itl_p95_s", "gap p95", "gap between bursts, 95th percentile", "95th percentile of the round times but the first",
               "time", "Tokens of one round arrive together."),
        Metric("tpot_s", "time per token", "time per output token", "(last - first arrival) / (tokens - 1)", "time"),
        Metric("position_acceptance", "by position", "acceptance by position", "rounds with i or more accepted / rounds with a draft",
               "series", "Unconditional: what llama.cpp and vLLM show. i runs from 1; in trees it is a depth."),
        Metric("position_acceptance_conditional", "by pos., cond.", "acceptance by position, conditional",
               "accepted at i / judged at i", "series", "Given that all before it were accepted."),
        Metric("rounds", "rounds", "rounds", "target passes, prefill excluded", "count", "A plain step is a round with an empty draft."),
        Metric("proposed", "proposed", "proposed", "drafted tokens", "count"),
        Metric("judged", "judged", "judged", "drafted tokens that the rule tried", "count",
               "Up to and including the first rejection of a round; of a tree every trial."),
        Metric("accepted", "accepted", "accepted", "drafted tokens that were kept", "count"),
        Metric("ignored", "ignored", "ignored", "proposed - judged", "count"),
        Metric("emitted", "emitted", "emitted", "tokens of the output", "count", "The end-of-sequence token counts."),
        Metric("mean_k", "mean k", "mean draft length", "proposed / rounds with a draft"),
        Metric("distinct_4grams", "distinct 4-grams", "distinct 4-grams", "distinct ones / all 4-grams of the output", "share",
               "A text that loops has few, and flatters drafters that copy."),
        Metric("oracle_share", "of the oracle", "share of the oracle",
               "decode tok/s / that of an oracle which always picks the right member and length", "share",
               "Told once the lane has ended."),
        Metric("weights", "target weights", "target weights", "bytes of the target's weights", "bytes", "Loaded once for all lanes."),
        Metric("draft_weights", "draft weights", "draft weights", "bytes of the weights that draft", "bytes",
               "A draft model's, or a head's."),
        Metric("kv_cache", "KV cache", "KV cache", "bytes that this lane's caches may take, target and draft", "bytes"),
    )
}  # fmt: skip
"""Every metric by its name, in the order in which all of them are shown."""


def columns(*names: str) -> list[Column]:
    """The columns of these metrics."""
    return [METRICS[name].column() for name in names]
