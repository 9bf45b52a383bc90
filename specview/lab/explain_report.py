"""The explanation of lanes as a Report: what the command prints and the page Why shows beside its plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from specview.decoding.details import Bin, Details, details_of
from specview.decoding.ledger import RunRecord
from specview.decoding.metrics import Metrics, fold
from specview.decoding.speedup import Speedup, speedup
from specview.drafting.plain import baseline_of
from specview.files.documents import metrics_to_json
from specview.files.report import Block, Figure, Figures, Report, Section, Table, Text
from specview.files.schema import plain
from specview.files.tables import ABSENT, Column
from specview.lab.explain import explain_lane, per_round
from specview.lab.explanation import Explanation, signed

_STEPS = (
    Column("step", "from plain to here (times plain)"), Column("change", "change", "", 2, form=signed), Column("after", "at", "", 2)
)  # fmt: skip
_PREDICTIONS = (
    Column("name", "speedup"), Column("speedup", "", "", 2), Column("off", "off by", "", 0, form=lambda share: f"{100 * share:+.0f}%")
)  # fmt: skip
_LENGTHS = (
    Column("k", "k", "", 0), Column("v", "v(k)", "", 2), Column("source", "", "Where v(k) comes from"),
    Column("by_formula", "by α", "", 2), Column("by_positions", "by positions", "", 2), Column("measured", "measured", "", 2),
    Column("note", ""),
)  # fmt: skip


def explain_report(
    document: Mapping[str, Any], records: Sequence[RunRecord], chosen: Sequence[int], calibrated: Mapping[int, float] | None,
    metrics: Sequence[Metrics | None],
) -> Report:  # fmt: skip
    """Explain the chosen lanes of a race; document is what the file says of the race itself.

    calibrated ({rows: seconds}) are passes measured by themselves, metrics the lanes' figures where they are there already.
    """
    baseline = baseline_of(records)

    def faster(record: RunRecord) -> Speedup | None:
        return None if baseline is None or record is baseline else speedup(record.rounds, baseline.rounds)

    sections, lanes = [], []
    for index in chosen:
        record = records[index]
        found = explain_lane(record, records, baseline, faster, calibrated=calibrated, metrics=metrics[index])
        step = found.costs.plain_pass_s if found.costs is not None else None
        figures = metrics[index] or fold(record.rounds, record.prefill_s, step)
        details = details_of(record.rounds, record.prefill_s)
        falls = () if found.costs is None else per_round(record.rounds, found.costs)
        sections.append(Section(f"lane {index}: {record.name}", list(_lane_blocks(record, found, figures, details))))
        lanes.append({
            "name": record.name,
            "lane": index,
            "settings": plain(record.settings),
            "end": record.end,
            "explanation": plain(found.as_dict()),
            "round_waterfalls": plain([None if fall is None else asdict(fall) for fall in falls]),
            "metrics": metrics_to_json(figures),
            "details": plain(details.as_dict()),
        })  # fmt: skip
    return Report("", sections, {**document, "lanes": lanes})


def _lane_blocks(record: RunRecord, found: Explanation, metrics: Metrics, details: Details) -> Iterator[Block]:
    yield Text(found.sentence if record.rounds or record.end is None else "It has no rounds.")
    if record.error:
        yield Text(f"ended by an error: {record.error}", "bad")
    for banner in found.banners:
        yield Text(banner.text, "warning")
    if found.waterfall is not None:
        steps = found.waterfall.steps
        rows = [{"step": one.label, "change": one.change if one.name not in ("plain", "net") else None, "after": one.after} for one in steps]
        yield Table(_STEPS, rows)
    if found.predictions:
        measured = found.measured_speedup
        yield Table(_PREDICTIONS, [
            {"name": one.name, "speedup": one.speedup, "off": one.speedup / measured - 1 if measured and not one.measured else None}
            for one in found.predictions
        ])  # fmt: skip
    yield from explanation_blocks(found)
    if len(found.lengths) > 1:
        yield _length_table(found)
    yield from _detail_blocks(metrics, details)


def explanation_blocks(found: Explanation) -> Iterator[Block]:
    """The figures of an explanation, and its notes."""
    if figures := list(_figures(found)):
        yield Figures(figures)
    for note in found.notes:
        yield Text(note)
    if found.rule_of_thumb is not None:
        yield Text(found.rule_of_thumb.words)
    if found.best_k_note:
        yield Text(f"Best k: {found.best_k_note}.")


def _figures(found: Explanation) -> Iterator[Figure]:
    if found.measured_speedup is not None:
        ends = found.speedup_spread
        spread = f" ({ends[0]:.2f}-{ends[1]:.2f})" if ends else ""
        yield Figure("speedup", f"{found.measured_speedup:.2f}×{spread}",
                     "tok/s / plain's; behind it its spread, as in the race")  # fmt: skip
    if found.alpha is not None:
        yield Figure("acceptance rate α", f"{found.alpha:.3f}", "accepted / judged")
    if found.tokens_per_pass is not None:
        yield Figure("tokens per pass", f"{found.tokens_per_pass:.2f}", "emitted / target passes")
    if found.c is not None:
        yield Figure("c, of medians", f"{found.c:.3f}", "a drafted token's time / a plain target pass's, both medians; the race and All "
                     "figures have the mean, which slow rounds raise")  # fmt: skip
    if found.v is not None and found.rows is not None:
        rows = f"{found.rows:.0f}" if found.shape == "chain" else f"{found.rows:.1f}"
        yield Figure(f"v, {rows} rows", f"{found.v:.2f} {found.v_source or ''}".strip(), "a verifying pass's time / a one-row pass's")
    if found.break_even_tokens is not None:
        words = f"{found.break_even_tokens:.2f} tokens per pass"
        if found.break_even_alpha is not None:
            words += f", α {found.break_even_alpha:.2f}"
        elif found.shape in ("chain", "varying"):
            words += ", more than this k can give"
        yield Figure("break-even", words, "where a round gives just as many tokens as it costs plain rounds; α: where the closed form does")
    if found.best_k is not None:
        by = f" (by one α for all positions: k {found.best_k_formula})"
        other = found.measured_speedup is None and found.best_k_formula not in (None, found.best_k)
        yield Figure("best at this acceptance", found.best_words + (by if other else ""), found.best_k_note)
    if (rule := found.rule_of_thumb) is not None:
        yield Figure("rule of thumb α k", f"{rule.value:.2f}; the formula says {rule.right:.2f}×", rule.words)


def _length_table(found: Explanation) -> Table:
    costs = found.costs
    assert costs is not None
    rows = []
    for point in found.lengths[1:]:
        marks = (("best", point.k == found.best_k and not found.as_good), ("this lane", point.k == found.k))
        rows.append({
            "k": point.k, "v": costs.v(point.k), "source": point.source, "by_formula": point.by_formula * point.limit,
            "by_positions": None if point.by_positions is None else point.predicted, "measured": point.measured,
            "note": ", ".join(word for word, on in marks if on) or None,
        })  # fmt: skip
    return Table(_LENGTHS, rows)


def _detail_blocks(metrics: Metrics, details: Details) -> Iterator[Block]:
    """Deep figures in a few lines."""
    if words := arrival_words(details):
        yield Text(words)
    figures = []
    if details.gap_p50_s is not None:
        figures.append(("tokens that arrive together: rounds", _counts(details.bursts)))
    if details.accepted_lengths:
        figures += [
            ("accepted tokens: rounds", _counts(details.accepted_lengths)),
            ("acceptance by position, unconditional", _series(metrics.position_acceptance)),
            ("acceptance by position, conditional", _series(metrics.position_acceptance_conditional)),
        ]
    if details.judged:
        if details.entropy_known:
            figures.append(("acceptance by the target's entropy (nats)", _bins(details.entropy)))
        along = _bins(details.along[:8]) + (" ..." if len(details.along) > 8 else "")
        figures.append(("acceptance along the output (tokens)", along))
    if figures:
        yield Figures([Figure(*one) for one in figures])
    if details.judged and details.entropy_note:
        yield Text(details.entropy_note)


def arrival_words(details: Details) -> str:
    """How the first token and the others arrive, in a line."""
    parts = []
    if details.ttft_s is not None:
        parts.append(f"First token after {_ms(details.ttft_s)}: prefill {_ms(details.prefill_s)} + first round {_ms(details.first_round_s)}")
    elif details.first_round_s is not None:
        parts.append(f"First round {_ms(details.first_round_s)} (the prefill was not recorded)")
    if details.gap_p50_s is not None:
        parts.append(f"gaps between bursts p50 {_ms(details.gap_p50_s)}, p95 {_ms(details.gap_p95_s)}, longest {_ms(details.gap_max_s)}")
    if details.together_share:
        parts.append(f"{details.together_share:.0%} of tokens come together with the one before")
    if details.empty_drafts and details.accepted_lengths:
        parts.append(f"{details.empty_drafts} round{'s' * (details.empty_drafts != 1)} without a draft")
    return " · ".join(parts)


def _counts(counts: Mapping[int, int]) -> str:
    return ", ".join(f"{value}: {count}" for value, count in counts.items())


def _series(values: Sequence[float | None]) -> str:
    return " ".join(ABSENT if value is None else f"{value:.2f}" for value in values)


def _bins(bins: Sequence[Bin]) -> str:
    return ", ".join(
        f"{one.low:g}{f'-{one.high:g}' if one.high is not None else ' and over'}: {one.rate:.2f} of {one.judged}" for one in bins if one.judged
    )


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return ABSENT
    ms = 1000 * seconds
    return f"{ms:.2f} ms" if ms < 0.995 else f"{ms:.1f} ms" if ms < 999.5 else f"{seconds:.2f} s"
