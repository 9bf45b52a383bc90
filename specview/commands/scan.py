"""`specview scan`: which of the target's layers is worth drafting from on this prompt."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from specview.commands.arguments import Parser, add_prompt_flags, add_target_flags, settings_of, whole
from specview.commands.outputs import Outputs
from specview.commands.running import StopRequest, stop_on_signals
from specview.commands.terminal import ProgressLine, figure, safe_text, table
from specview.drafting.lanes import flat_settings
from specview.drafting.plain import BASELINE
from specview.errors import UsageError
from specview.experiments.exit_scan import MAX_TOKENS, ExitFigures, ExitScan
from specview.files.schema import Json, plain
from specview.racing.resolve import checked_run
from specview.settings.run import RunSettings

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

_IDLE = {
    "draft": None,
    "draft_engine": None,
    "lanes": None,
    "policy": None,
    "rule": None,
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "seed": 0,
    "observe": "off",
    "trace": None,
    "check_mode": False,
}
"""What the shared settings need and a scan has no flag for: it drafts greedily with the target itself."""


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
    parser.set_defaults(**_IDLE)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    arguments = make_parser().parse_args(argv)
    if not 1 <= arguments.max_tokens <= MAX_TOKENS:
        raise UsageError(f"tokens is {arguments.max_tokens}.", f"Use 1 to {MAX_TOKENS}.")
    settings = checked_run(settings_of(arguments, (BASELINE,)))
    with Outputs(arguments) as outputs, stop_on_signals() as should_stop:
        return _scan(settings, arguments.k, outputs, should_stop)


def _scan(settings: RunSettings, k: int, outputs: Outputs, should_stop: StopRequest) -> int:
    from specview.experiments.exit_scan import scan_exits
    from specview.models.loading import facts
    from specview.racing.pool import ModelPool, target_key
    from specview.racing.race import tokenize_prompt

    progress = ProgressLine(sys.stderr)
    models = ModelPool()
    try:
        target = models.get(target_key(settings), progress.show, should_stop)
        prompt_ids = tokenize_prompt(settings, target)
        found = scan_exits(target, prompt_ids, settings.max_tokens, k, should_stop, progress.show)
        known = facts(target)
    finally:
        progress.clear()
        models.close()
    outputs.document(_document(settings, known, found))
    if not outputs.to_stdout:
        sys.stdout.write(scan_table(found))
    return 0


def _document(settings: RunSettings, known: Json, found: ExitScan) -> Json:
    flat = flat_settings(settings, settings.lanes[0])
    asked = {key: flat[key] for key in ("engine", "target", "threads", "workload", "chat", "chat_template", "system")}
    return {"run": plain({**asked, **known}), "prompt": settings.prompt, **plain(found.as_dict())}


def scan_table(found: ExitScan) -> str:
    """Return the scan for people: a line per exit, the best one marked, and what it says in a sentence."""
    heading = ["layer", "acceptance", "c", "best k", "v(k)", "predicted", "measured", ""]
    rows = [heading, *(_row(one, one is found.best and found.pays) for one in found.exits)]
    about = (
        f"{safe_text(found.model_name)}, {found.layers} layers; {found.exits[0].judged} tokens after a prompt of "
        f"{found.prompt_tokens}; a plain step takes {1000 * found.plain_step_s:.1f} ms"
    )
    words = (
        "acceptance: greedy agreement with the target's own text; c: a draft step, v(k): a verifying pass, in "
        "plain steps; predicted, measured: times plain decoding"
    )
    lines = [found.sentence, *([safe_text(found.busy)] if found.busy else [])]
    return f"{about}\n\n{table(rows, left=0)}\n{words}\n\n" + "\n".join(lines) + "\n"


def _row(one: ExitFigures, best: bool) -> list[str]:
    run = one.confirmed
    return [
        str(one.layer),
        figure(one.acceptance_rate, 3),
        figure(one.draft_cost, 3),
        str(one.best_k),
        figure(one.verify_cost[one.best_k - 1]),
        figure(one.predicted_speedup),
        figure(None if run is None else run.speedup),
        "best" if best else "",
    ]
