"""`specview explain`: why each lane is fast or slow, from a trace or from a race that it runs itself."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from specview.commands.arguments import (
    Parser,
    add_shared_flags,
    lane_keys_help,
    settings_of,
)
from specview.commands.outputs import Outputs
from specview.commands.running import STOPPED_CODE, StopRequest, stop_on_signals
from specview.commands.terminal import ProgressLine, figure, safe_text, table
from specview.decoding.details import Bin, Details, details_of
from specview.decoding.ledger import RunRecord
from specview.decoding.metrics import Metrics, fold
from specview.decoding.speedup import speedup
from specview.drafting.plain import baseline_of
from specview.drafting.registry import FIRST_METHODS
from specview.errors import SpecviewError, UsageError
from specview.files.documents import metrics_to_json
from specview.files.schema import Json, plain
from specview.lab.advice import measured_beside
from specview.lab.explain import Explanation, explain, per_round, signed
from specview.lab.what_if import has_whole_passes, passes_of
from specview.racing.settings import RunSettings
from specview.settings.events import Event, LaneRound, Progress

_DESCRIPTION = """\
Say why each lane is fast or slow here: where its time goes on the way from plain decoding, what the formulas
predict, where it breaks even and which k would be best. From a TRACE (written with --trace), or else from a race
that it runs itself, with the flags of compare; before that race it measures what target passes of 1 to 9 rows cost."""

_EXAMPLES = """\
examples:
  specview explain --workload story --method draft-model --k 4
  specview explain run.jsonl                 # every lane of a recorded race
  specview explain run.jsonl --lane 1 --json -"""

_FOR_BOTH = {"recorded", "lanes", "json"}
"""What has a meaning beside a TRACE; all other flags are of the race."""


def make_parser() -> Parser:
    """Make the command's parser."""
    parser = Parser("specview explain", _DESCRIPTION, f"{_EXAMPLES}\n\n{lane_keys_help()}")
    parser.usage = "specview explain [options] [TRACE]"
    parser.add_argument("recorded", metavar="TRACE", nargs="?",
                        help="a trace file, or a run of the library (an id, a name, last, ..); --lane N or NAME then "
                             "chooses one of its lanes")  # fmt: skip
    add_shared_flags(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    if arguments.recorded is not None:
        _refuse_race_flags(parser, arguments)
        with Outputs(argparse.Namespace(json=arguments.json, recorded=arguments.recorded)) as outputs:
            return _explain_trace(arguments, outputs)
    arguments.observe = arguments.observe or "full"  # entropies are worth seeing, and are off the clock
    settings = settings_of(arguments, FIRST_METHODS).checked()
    with Outputs(arguments) as outputs, stop_on_signals() as should_stop:
        return _explain_race(settings, outputs, should_stop)


def _refuse_race_flags(parser: Parser, arguments: argparse.Namespace) -> None:
    usual = vars(parser.parse_args([]))
    for name, value in vars(arguments).items():
        if name not in _FOR_BOTH and value != usual[name]:
            flag = "--raw" if name == "chat" else f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} is for a race, and a TRACE is explained as it was recorded.", "Leave one of them out.")
    for whole_lane, _ in arguments.lanes or []:
        if not whole_lane:
            raise UsageError("--method is for a race, and a TRACE is explained as it was recorded.", "Use --lane N.")


def _explain_trace(arguments: argparse.Namespace, outputs: Outputs) -> int:
    from specview.commands.run_files import read_ref
    from specview.library.replay import plain_step_s

    trace = read_ref(arguments.recorded)
    chosen = _chosen([text for _, text in arguments.lanes or []], trace.records)
    document: Json = {
        "trace": arguments.recorded,
        "run": plain(trace.run),
        "prompt": trace.prompt_text,
        "calibrated_pass_s": None,
    }
    if trace.cut and not outputs.to_stdout:
        sys.stdout.write("The trace ends in the middle of a line: the run was interrupted.\n\n")
    step = plain_step_s(trace)  # the figures are those of the race, as compare and runs show have them
    metrics = [None if step is None else fold(record.rounds, record.prefill_s, step) for record in trace.records]
    _tell(document, trace.records, chosen, None, outputs, metrics)
    return 0


def _chosen(asked: Sequence[str], records: Sequence[RunRecord]) -> list[int]:
    """The lanes' indices that --lane names, by number (0 is the first) or name; all where it is not given."""
    names = [record.name for record in records]
    found = []
    for text in asked:
        if text in names:
            found.append(names.index(text))
        elif text.isdecimal() and int(text) < len(names):
            found.append(int(text))
        else:
            listed = ", ".join(f"{index} {name}" for index, name in enumerate(names)) or "none"
            raise UsageError(f"the trace has no lane {text!r}.", f"Its lanes: {listed}.")
    return found or list(range(len(names)))


def _explain_race(settings: RunSettings, outputs: Outputs, should_stop: StopRequest) -> int:
    from specview.lab.calibrate import calibrate_passes
    from specview.racing.compare import compare
    from specview.racing.pool import ModelPool

    progress = ProgressLine(sys.stderr)
    wanted = settings.max_tokens * len(settings.lanes)
    emitted = 0

    def take(event: Event) -> None:
        nonlocal emitted
        if isinstance(event, Progress):
            progress.show(event.text, event.fraction)
        elif isinstance(event, LaneRound):
            emitted += len(event.round.emitted)
            progress.show("Racing", min(1.0, emitted / wanted))
        outputs.take(event)

    models = ModelPool()
    try:
        k = max((lane.k or 0 for lane in settings.lanes), default=0)
        calibrated = calibrate_passes(models, settings, k, tell=progress.show, should_stop=should_stop)
        result = compare(settings, 1, models, take, should_stop)
    finally:
        progress.clear()
        models.close()
    if not result.lanes:
        raise KeyboardInterrupt
    records = [lane.record for lane in result.lanes]
    document: Json = {
        "trace": None,
        "run": plain(result.facts),
        "prompt": result.prompt_text,
        "calibrated_pass_s": plain({str(rows): seconds for rows, seconds in calibrated.items()}),
    }
    metrics = [lane.metrics for lane in result.lanes]
    _tell(document, records, list(range(len(records))), calibrated, outputs, metrics)
    if result.busy and not outputs.to_stdout:
        sys.stdout.write(safe_text(result.busy) + "\n")
    if result.trouble:
        raise SpecviewError(f"lane {result.trouble}")
    for lane in result.lanes:
        if lane.record.end == "error":
            raise SpecviewError(f"lane {lane.record.name}: {lane.error or 'it ended by an error'}")
    return STOPPED_CODE if result.end == "stopped" else 0


def _tell(
    document: Json,
    records: Sequence[RunRecord],
    chosen: Sequence[int],
    calibrated: Mapping[int, float] | None,
    outputs: Outputs,
    metrics: Sequence[Metrics | None],
) -> None:
    """Explain the chosen lanes: the document where it was asked for, the text unless that is on standard output."""
    baseline = baseline_of(records)
    others = passes_of(records)
    speedups = [] if baseline is None else [(record.settings, speedup(record.rounds, baseline.rounds)) for record in records]
    lanes, texts = [], []
    for index in chosen:
        record = records[index]
        beside = () if baseline is None or baseline is record else baseline.rounds
        found = explain(record.rounds, beside, record.settings, calibrated=calibrated,
                        others=others if has_whole_passes(record.settings) else None, metrics=metrics[index],
                        beside=measured_beside(record.settings, speedups))  # fmt: skip
        step = found.costs.plain_pass_s if found.costs is not None else None
        figures = metrics[index] or fold(record.rounds, record.prefill_s, step)
        details = details_of(record.rounds, record.prefill_s)
        lanes.append(_lane(index, record, found, figures, details))
        texts.append(lane_text(index, record, found, figures, details))
    document["lanes"] = lanes
    try:
        outputs.document(document)
    finally:  # a full disk does not take the text too
        if not outputs.to_stdout:
            sys.stdout.write("\n".join(texts))


def _lane(index: int, record: RunRecord, found: Explanation, metrics: Metrics, details: Details) -> Json:
    rounds = [] if found.costs is None else [
        None if fall is None else asdict(fall) for fall in per_round(record.rounds, found.costs)
    ]  # fmt: skip
    return {
        "name": record.name,
        "lane": index,
        "settings": plain(record.settings),
        "end": record.end,
        "explanation": plain(found.as_dict()),
        "round_waterfalls": plain(rounds),
        "metrics": metrics_to_json(metrics),
        "details": plain(details.as_dict()),
    }


def lane_text(index: int, record: RunRecord, found: Explanation, metrics: Metrics, details: Details) -> str:
    """Return a lane's explanation for people."""
    name = safe_text(record.name).replace("\n", " ")
    sentence = found.sentence if record.rounds or record.end is None else "It has no rounds."
    lines = [f"lane {index}: {name}", f"  {sentence}"]
    if record.error:
        lines.append(f"  ended by an error: {safe_text(record.error)}")
    lines += [f"  ! {safe_text(banner.text)}" for banner in found.banners]
    out = "\n".join(lines) + "\n"
    fall = found.waterfall
    if fall is not None:
        rows = [["  from plain to here (times plain)", "change", "at"]]
        for step in fall.steps:
            change = signed(step.change) if step.name not in ("plain", "net") else ""
            rows.append([f"    {step.label}", change, f"{step.after:.2f}"])
        out += table(rows)
    if found.predictions:
        rows = [["  speedup", "", "off by"]]
        for one in found.predictions:
            off = None
            if found.measured_speedup and not one.measured:
                off = f"{100 * (one.speedup / found.measured_speedup - 1):+.0f}%"
            rows.append([f"    {one.name}", f"{one.speedup:.2f}", off or ""])
        out += table(rows)
    facts = _facts(found)
    if facts:
        out += "".join(f"  {line}\n" for line in facts)
    if found.lengths:
        out += _length_table(found)
    if found.rule_of_thumb is not None:
        out += f"  rule of thumb: {found.rule_of_thumb.words}\n"
    out += "".join(f"  note: {safe_text(note)}\n" for note in found.notes)
    return out + _details_text(metrics, details)


def _facts(found: Explanation) -> list[str]:
    lines = []
    if found.c is not None and found.v is not None:
        rows = f"{found.rows:.0f}" if found.shape == "chain" else f"{found.rows:.1f} (mean)"
        lines.append(
            f"acceptance rate (alpha) {figure(found.alpha, 3)}; c {found.c:.3f}; a pass of {rows} rows costs "
            f"{found.v:.2f} plain passes"
        )
    if found.break_even_tokens is not None:
        words = f"break-even: {found.break_even_tokens:.2f} tokens per pass"
        if found.break_even_alpha is not None:
            words += f", an acceptance rate of {found.break_even_alpha:.2f}"
        elif found.shape in ("chain", "varying"):
            words += ", more than this k can give"
        lines.append(words)
    if found.best_k is not None:
        words = f"best at this acceptance: {found.best_words}"
        other = next((point for point in found.lengths if point.k == found.best_k_formula), None)
        if found.measured_speedup is None and other is not None and found.best_k_formula != found.best_k:
            told = f"k {other.k}, {other.by_formula:.2f}" if other.k else "plain"
            words += f"; by one alpha for all positions: {told}"
        lines.append(f"{words} ({found.best_k_note})")
    return lines


def _length_table(found: Explanation) -> str:
    rows = [["  k", "v(k)", "by alpha", "by positions", "measured", ""]]
    costs = found.costs
    for point in found.lengths:
        if not point.k or costs is None:
            continue
        marks = [word for word, on in (("best", point.k == found.best_k and not found.as_good), ("this lane", point.k == found.k)) if on]
        rows.append(
            [f"  {point.k}", f"{costs.v(point.k):.2f} {point.source}", f"{point.by_formula * point.limit:.2f}",
             figure(None if point.by_positions is None else point.predicted), figure(point.measured), ", ".join(marks)]
        )  # fmt: skip
    return table(rows)


def _details_text(metrics: Metrics, details: Details) -> str:
    """Deep figures in a few lines."""
    lines = []
    if details.ttft_s is not None and details.first_round_s is not None:
        lines.append(
            f"time to first token {_ms(details.ttft_s)}: prefill {_ms(details.prefill_s)} and the first round "
            f"{_ms(details.first_round_s)}"
        )
    if details.gap_p50_s is not None:
        sizes = ", ".join(f"{size}: {count}" for size, count in details.bursts.items())
        lines.append(
            f"gaps between bursts p50 {_ms(details.gap_p50_s)}, p95 {_ms(details.gap_p95_s)}, longest "
            f"{_ms(details.gap_max_s)}; tokens a burst: {sizes}"
        )
    if details.accepted_lengths:
        lengths = ", ".join(f"{length}: {count}" for length, count in details.accepted_lengths.items())
        count = details.empty_drafts
        empty = f"; {count} round{'' if count == 1 else 's'} without a draft" if count else ""
        lines.append(f"accepted lengths (tokens: rounds): {lengths}{empty}")
        lines.append(f"acceptance by position, unconditional: {_series(metrics.position_acceptance)}")
        lines.append(f"acceptance by position, conditional:   {_series(metrics.position_acceptance_conditional)}")
    if details.judged:
        if details.entropy_known:
            lines.append(f"acceptance by the target's entropy (nats): {_bins(details.entropy)}")
        if details.entropy_note:
            lines.append(details.entropy_note)
        lines.append(f"acceptance along the output (tokens): {_bins(details.along[:8])}"
                     + (" ..." if len(details.along) > 8 else ""))  # fmt: skip
    return "".join(f"  {line}\n" for line in lines)


def _series(values: Sequence[float | None]) -> str:
    return " ".join(figure(value) for value in values)


def _bins(bins: Sequence[Bin]) -> str:
    parts = []
    for one in bins:
        if one.judged:
            span = f"{one.low:g}-{one.high:g}" if one.high is not None else f"{one.low:g} and over"
            parts.append(f"{span}: {figure(one.rate)} of {one.judged}")
    return ", ".join(parts)


def _ms(seconds: Any) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
