"""`specview explain`: why each lane is fast or slow, from a trace or from a race that it runs itself."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from specview.commands.arguments import Parser, add_shared_flags, lane_keys_help, settings_of
from specview.commands.run_files import lane_of, read_ref
from specview.commands.running import Running, running
from specview.commands.terminal import safe_text
from specview.decoding.metrics import fold
from specview.drafting.registry import FIRST_METHODS
from specview.errors import SpecviewError, UsageError
from specview.files.schema import plain
from specview.racing.resolve import checked_run
from specview.settings.run import RunSettings

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
        with running(arguments) as run:
            return _explain_trace(arguments, run)
    arguments.observe = arguments.observe or "full"  # entropies are worth seeing, and are off the clock
    settings = checked_run(settings_of(arguments, FIRST_METHODS))
    with running(arguments) as run:
        return _explain_race(settings, run)


def _refuse_race_flags(parser: Parser, arguments: argparse.Namespace) -> None:
    usual = vars(parser.parse_args([]))
    for name, value in vars(arguments).items():
        if name not in _FOR_BOTH and value != usual[name]:
            flag = "--raw" if name == "chat" else f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} is for a race, and a TRACE is explained as it was recorded.", "Leave one of them out.")
    for whole_lane, _ in arguments.lanes or []:
        if not whole_lane:
            raise UsageError("--method is for a race, and a TRACE is explained as it was recorded.", "Use --lane N.")


def _explain_trace(arguments: argparse.Namespace, run: Running) -> int:
    from specview.lab.explain_report import explain_report
    from specview.library.replay import plain_step_s

    trace = read_ref(arguments.recorded)
    chosen = [lane_of(text, trace.records) for _, text in arguments.lanes or []]
    document = {"trace": arguments.recorded, "run": plain(trace.run), "prompt": trace.prompt_text, "calibrated_pass_s": None}
    if trace.cut and not run.outputs.to_stdout:
        sys.stdout.write("The trace ends in the middle of a line: the run was interrupted.\n\n")
    step = plain_step_s(trace)  # the figures are those of the race, as compare and runs show have them
    metrics = [None if step is None else fold(record.rounds, record.prefill_s, step) for record in trace.records]
    return run.end(explain_report(document, trace.records, chosen or range(len(trace.records)), None, metrics))


def _explain_race(settings: RunSettings, run: Running) -> int:
    from specview.lab.calibrate import calibrate_passes
    from specview.lab.explain_report import explain_report
    from specview.racing.compare import compare

    k = max((lane.k or 0 for lane in settings.lanes), default=0)
    calibrated = calibrate_passes(run.models, settings, k, tell=run.progress.show, should_stop=run.should_stop)
    result = compare(settings, 1, run.models, run.watch(settings.max_tokens * len(settings.lanes)), run.should_stop)
    if not result.lanes:
        return run.end(None)
    records = [lane.record for lane in result.lanes]
    document = {
        "trace": None,
        "run": plain(result.facts),
        "prompt": result.prompt_text,
        "calibrated_pass_s": plain({str(rows): seconds for rows, seconds in calibrated.items()}),
    }
    metrics = [lane.metrics for lane in result.lanes]
    code = run.end(explain_report(document, records, range(len(records)), calibrated, metrics), stopped=result.end == "stopped")
    if result.busy and not run.outputs.to_stdout:
        sys.stdout.write(safe_text(result.busy) + "\n")
    if result.trouble:
        raise SpecviewError(f"lane {result.trouble}")
    for lane in result.lanes:
        if lane.record.end == "error":
            raise SpecviewError(f"lane {lane.record.name}: {lane.error or 'it ended by an error'}")
    return code
