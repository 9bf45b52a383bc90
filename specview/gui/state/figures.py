"""What the window says of a lane's metrics: the numbers behind them, and its speedup over plain in words."""

from __future__ import annotations

from specview.decoding.metrics import Metrics
from specview.decoding.speedup import Speedup
from specview.files.figures import METRICS, milliseconds, number, rate, speedup_over, times


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
    """Decode tok/s as a lane shows it: that which its speedup is made of."""
    return metrics.decode_tokens_per_s if speedup is None else speedup.tokens_per_s


def beside(speedup: Speedup | None) -> str:
    """Plain's decode tok/s that a lane is held against and the time of both, where it is not that of whole runs; else ''."""
    if speedup is None or speedup.whole:
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
        over = speedup_over(speedup)
        lines.append(
            f"measured: {rate(speedup.tokens_per_s)} / {rate(speedup.plain_tokens_per_s)} tok/s = {times(speedup.value)}, {over}"
        )
        if spread(speedup):
            lines.append(f"spread: {spread(speedup)}, {speedup.over}")
    if metrics.predicted_speedup is not None:
        lines.append(
            f"{METRICS['predicted_speedup'].formula} predicts {times(metrics.predicted_speedup)} "
            f"(α {number(metrics.acceptance_rate)}, c {number(metrics.draft_cost)})"
        )
    if metrics.predicted_speedup_measured_verify is not None:
        lines.append(
            f"with the measured verify cost v = {number(metrics.verify_cost)} in place of 1: "
            f"{times(metrics.predicted_speedup_measured_verify)}"
        )
    return "\n".join(lines)
