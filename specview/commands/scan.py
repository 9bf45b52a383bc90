"""`specview scan`: which of the target's layers is worth drafting from on this prompt."""

from __future__ import annotations

from collections.abc import Sequence

from specview.commands.arguments import IDLE, Parser, add_prompt_flags, add_target_flags, settings_of, whole
from specview.commands.running import running
from specview.drafting.plain import BASELINE
from specview.errors import UsageError
from specview.experiments import exit_scan
from specview.experiments.exit_scan import MAX_TOKENS
from specview.racing.resolve import checked_run

_DESCRIPTION = """\
For every layer that early-exit could draft from: how often it is right on this prompt, what drafting and
verifying cost there, which k is best and what that is worth; the best few are run for real.
Acceptance is greedy agreement with the target's own continuation: at a temperature it differs.
Without flags: the bundled target, the workload chat."""

_EXAMPLES = """\
examples:
  specview scan --workload code-edit
  specview scan --prompt-file notes.txt --tokens 128 --json scan.json
  specview run --lane "early-exit,exit_layer=12,k=3"   # with what it found"""

def make_parser() -> Parser:
    """Make the command's parser."""
    parser = Parser("specview scan", _DESCRIPTION, _EXAMPLES)
    add_target_flags(parser)
    add_prompt_flags(parser)
    scan = parser.add_argument_group("scan")
    scan.add_argument("--tokens", dest="max_tokens", type=whole, default=64,
                      help="tokens of the target's own text that every exit is asked about (default: 64)")  # fmt: skip
    scan.add_argument("--k", type=whole, default=8, help="longest draft that is considered (default: 8)")
    output = parser.add_argument_group("output")
    output.add_argument(
        "--json", metavar="FILE", help="write a JSON document; - is standard output, and nothing else"
    )
    parser.set_defaults(**IDLE)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    arguments = make_parser().parse_args(argv)
    if not 1 <= arguments.max_tokens <= MAX_TOKENS:
        raise UsageError(f"tokens is {arguments.max_tokens}.", f"Use 1 to {MAX_TOKENS}.")
    settings = checked_run(settings_of(arguments, (BASELINE,)))
    with running(arguments) as run:
        found = exit_scan.scan_exits(
            settings, settings.max_tokens, arguments.k, run.models, run.should_stop, run.progress.show
        )
        return run.end(exit_scan.scan_report(found))
