"""The one table of figures: name, label, formula and format (DESIGN section 6).

A figure that does not exist is an en dash, never 0. alpha and draft acceptance have labels of their
own, so that no two things are called 'acceptance rate'.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from specview.decoding.metrics import Metrics
from specview.decoding.speedup import Speedup

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


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: its name in files, its label in the window, its formula and its format."""

    name: str
    label: str
    title: str
    formula: str
    format: Callable[[float | None], str] = number
    note: str = ""

    def text(self, value: float | None) -> str:
        """Format a value."""
        return self.format(value)

    def tooltip(self, detail: str = "") -> str:
        """Say what the figure is, its formula, and (detail) the numbers in it."""
        lines = [f"{self.title} = {self.formula}"]
        if detail:
            lines.append(detail)
        if self.note:
            lines.append(self.note)
        return "\n".join(lines)


FIGURES: dict[str, Figure] = {
    figure.name: figure
    for figure in (
        Figure("decode_tokens_per_s", "tok/s", "decode speed", "emitted tokens / sum of round times", rate,
               "Load and prefill are not in it; the lane's clock counts its own compute only. Beside a speedup it is that "
               "over the time in which plain was running too."),
        Figure("tokens_per_target_pass", "tok/pass", "tokens per target pass", "emitted tokens / target passes",
               number, "Prefill is not in it. Plain decoding gives exactly 1."),
        Figure("acceptance_rate", "α", "acceptance rate α", "accepted / judged", number,
               "Judged: drafted tokens up to and including the first rejection. Later ones do not count."),
        Figure("draft_acceptance", "accepted/proposed", "draft acceptance", "accepted / proposed", number,
               "llama.cpp and vLLM call this the acceptance rate; drafts never judged count against it."),
        Figure("mean_accepted_length", "mean length", "mean accepted length",
               "1 + accepted / rounds with a draft", number),
        Figure("speedup", "vs plain", "speedup", "decode tok/s / plain's, over the time both were running", times,
               "Plain is measured beside it: same prompt, target, sampling and device."),
        Figure("predicted_speedup", "pred.", "predicted speedup", "(1 - α^(k+1)) / ((1 - α)(k c + 1))", times,
               "Leviathan 2023, theorem 3.8: verifying is taken to cost one plain step."),
        Figure("predicted_speedup_measured_verify", "pred. with v(k)", "predicted speedup, measured verify",
               "(1 - α^(k+1)) / ((1 - α)(k c + v(k)))", times, "With the target pass as slow as it was here."),
        Figure("expected_tokens", "expected", "expected tokens per pass", "(1 - α^(k+1)) / (1 - α)", number,
               "Leviathan 2023, equation 1; mean k where k varies."),
        Figure("draft_cost", "c", "draft cost c", "time of one draft step / of one plain target step", number),
        Figure("verify_cost", "v(k)", "verify cost v(k)", "time of a (k+1)-row target pass / of a one-row pass",
               number),
        Figure("draft_share", "draft", "draft share", "draft time / decode time", percent),
        Figure("verify_share", "verify", "verify share", "target pass time / decode time", percent),
        Figure("other_share", "other", "other share", "time outside both / decode time", percent),
        Figure("oracle_share", "of the oracle", "share of the oracle",
               "decode tok/s / that of an oracle which always picks the right member and length", percent,
               "Told once the lane has ended."),
        Figure("ttft_s", "first token", "time to first token", "prefill + first round", milliseconds,
               "Loading is not in it."),
        Figure("total_s", "total", "total time", "prefill + all rounds", milliseconds, "Loading is not in it."),
    )
}


def details(metrics: Metrics) -> dict[str, str]:
    """Return, for the figures of the lane panel, the numbers that stand in their formula."""
    out: dict[str, str] = {}
    speed, per_pass, alpha = metrics.decode_tokens_per_s, metrics.tokens_per_target_pass, metrics.acceptance_rate
    if speed:
        out["decode_tokens_per_s"] = f"{metrics.emitted} / {metrics.emitted / speed:.2f} s = {rate(speed)}"
    if per_pass is not None:
        out["tokens_per_target_pass"] = f"{metrics.emitted} / {metrics.rounds} = {number(per_pass)}"
    if alpha is not None:
        out["acceptance_rate"] = (
            f"{metrics.accepted} / {metrics.judged} = {number(alpha)}\n"
            f"draft acceptance, accepted / proposed: {metrics.accepted} / {metrics.proposed} = "
            f"{number(metrics.draft_acceptance)}"
        )
    else:
        out["acceptance_rate"] = "Nothing was judged yet." if metrics.proposed == 0 else ""
    return out


def shown_rate(speedup: Speedup | None, metrics: Metrics) -> float | None:
    """Decode tok/s as a lane shows it: that which its speedup is made of, over the time in which plain ran too."""
    return metrics.decode_tokens_per_s if speedup is None else speedup.tokens_per_s


def beside(speedup: Speedup | None) -> str:
    """Plain's decode tok/s that a lane is held against, and the time that both are over; '' while there is none."""
    if speedup is None:
        return ""
    seconds = speedup.seconds
    over = f"{seconds:.0f} s" if seconds >= 100 else f"{seconds:.1f} s" if seconds >= 1 else milliseconds(seconds)
    return f"plain {rate(speedup.plain_tokens_per_s)} in {over}"


def spread(speedup: Speedup | None) -> str:
    """Format the range of a speedup, '1.7–1.9'; empty while there is none."""
    if speedup is None or speedup.low is None or speedup.high is None:
        return ""
    return f"{speedup.low:.2f}–{speedup.high:.2f}"


def speedup_details(speedup: Speedup | None, metrics: Metrics) -> str:
    """Say what the speedup's range is a range of, and both predictions beside it."""
    lines: list[str] = []
    if speedup is not None:
        lines.append(
            f"measured: {rate(speedup.tokens_per_s)} / {rate(speedup.plain_tokens_per_s)} tok/s = {times(speedup.value)}, "
            f"{speedup.tokens:.0f} tokens beside plain's {speedup.plain_tokens:.0f} in {speedup.seconds:.2f} s"
        )
        if spread(speedup):
            lines.append(f"spread: {spread(speedup)}, {speedup.over}")
    if metrics.predicted_speedup is not None:
        lines.append(
            f"{FIGURES['predicted_speedup'].formula} predicts {times(metrics.predicted_speedup)} "
            f"(α {number(metrics.acceptance_rate)}, c {number(metrics.draft_cost)})"
        )
    if metrics.predicted_speedup_measured_verify is not None:
        lines.append(
            f"with the measured verify cost v = {number(metrics.verify_cost)} in place of 1: "
            f"{times(metrics.predicted_speedup_measured_verify)}"
        )
    return "\n".join(lines)
