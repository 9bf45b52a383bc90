"""`specview concurrency`: what speculation is worth as more sequences share the device, from measured passes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from specview.commands.arguments import (
    Parser,
    add_prompt_flags,
    add_target_flags,
    real,
    settings_of,
    whole,
    wholes,
)
from specview.commands.outputs import Outputs
from specview.commands.running import STOPPED_CODE, StopRequest, stop_on_signals
from specview.commands.terminal import ProgressLine, figure, safe_text, table
from specview.drafting.plain import BASELINE
from specview.errors import UsageError
from specview.files.schema import Json, plain
from specview.lab.batch_times import BATCHES, CONTEXT, REPEATS, SECONDS, require_plan
from specview.lab.concurrency import (
    Acceptance,
    Concurrency,
    Point,
    stated_acceptance,
    steps_draft_model,
    trace_acceptance,
)
from specview.lab.concurrency_run import RACE_TOKENS, Plan, run_concurrency
from specview.models.catalog import Role, resolve
from specview.racing.settings import BUNDLED

_DESCRIPTION = """\
Time real target passes over B sequences of k + 1 tokens, join them with a run's acceptance, and say for how many
sequences sharing the device speculation still pays. The draft model's passes are timed too.
Without flags: the bundled pair, B 1 to 16, k 2 and 4, an acceptance recorded in a short race on the workload chat."""

_EXAMPLES = """\
examples:
  specview concurrency --batch 1,2,4,8 --k 0,2,4 --context 256
  specview concurrency --engine llama.cpp --trace run.jsonl --json concurrency.json
  specview concurrency --acceptance 0.6 --draft-cost 0.1"""

_IDLE = {
    "lanes": None,
    "k": None,
    "policy": None,
    "rule": None,
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "seed": 0,
    "observe": "off",
    "check_mode": False,
    "max_tokens": RACE_TOKENS,
}
"""What the shared settings need and this command has no flag for."""


def make_parser() -> Parser:
    """Make the command's parser."""
    parser = Parser("specview concurrency", _DESCRIPTION, _EXAMPLES)
    model = add_target_flags(parser)
    model.conflict_handler = "resolve"
    model.add_argument("--draft", help="the draft model whose passes are timed (default: the trace's, else bundled)")
    model.add_argument("--draft-engine", help="the draft's engine (default: the target's)")
    add_prompt_flags(parser)
    sizes = parser.add_argument_group("sizes", conflict_handler="resolve")
    sizes.add_argument("--batch", type=wholes, default=BATCHES, metavar="B,B,..",
                       help="numbers of sequences (default: 1,2,4,8,16); those that memory does not hold are left out")  # fmt: skip
    sizes.add_argument("--k", dest="ks", type=wholes, default=(0, 2, 4), metavar="K,K,..",
                       help="draft lengths, 0 being plain (default: 0,2,4)")  # fmt: skip
    sizes.add_argument("--context", dest="tokens_each", type=whole, default=CONTEXT,
                       help=f"tokens that each sequence holds (default: {CONTEXT})")  # fmt: skip
    sizes.add_argument("--repeats", type=whole, default=REPEATS, help=f"timings of each size (default: {REPEATS})")
    sizes.add_argument("--seconds", type=real, default=SECONDS,
                       help=f"after which no further repeat begins (default: {SECONDS:g})")  # fmt: skip
    accepted = parser.add_argument_group("acceptance (default: a short race of the draft model on the prompt)")
    source = accepted.add_mutually_exclusive_group()
    source.add_argument("--trace", dest="recorded", metavar="FILE", help="that of a trace's lane (or of a run of the library: last, an id, ..)")
    source.add_argument("--acceptance", type=real, metavar="ALPHA", help="a number from 0 to 1")
    accepted.add_argument("--trace-lane", metavar="NAME", help="the trace's lane (default: the first that drafts a chain)")
    accepted.add_argument("--draft-cost", type=real, metavar="C",
                          help="a draft step in plain steps, in place of timing a draft model")  # fmt: skip
    output = parser.add_argument_group("output")
    output.add_argument("--json", metavar="FILE", help="write a JSON document; - is standard output, and nothing else")
    parser.set_defaults(**_IDLE, engine=None, target=None, context=None)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    arguments = make_parser().parse_args(argv)
    plan = _plan(arguments)
    with Outputs(arguments) as outputs, stop_on_signals() as should_stop:
        return _measure(plan, outputs, should_stop)


def _plan(arguments: argparse.Namespace) -> Plan:
    """Return what to measure; raise UsageError or SpecviewError, one line."""
    require_plan(arguments.batch, arguments.ks, arguments.tokens_each)
    if not 1 <= arguments.repeats <= 1000:
        raise UsageError(f"repeats is {arguments.repeats}.", "Use 1 to 1000.")
    if arguments.seconds <= 0:
        raise UsageError(f"seconds is {arguments.seconds:g}.", "Use more than 0.")
    if arguments.trace_lane is not None and arguments.recorded is None:
        raise UsageError("--trace-lane names a lane of --trace.", "Give the trace too.")
    cost = arguments.draft_cost
    if cost is not None and cost < 0:
        raise UsageError(f"draft cost is {cost:g}.", "Use 0 or more, in plain steps.")
    if cost is not None and (arguments.draft is not None or arguments.draft_engine is not None):
        raise UsageError("--draft-cost stands in place of a draft model.", "Give one of the two.")
    acceptance = _acceptance(arguments)
    ran: dict[str, Any] = dict(acceptance.run) if acceptance is not None else {}
    arguments.engine = arguments.engine or ran.get("engine") or "transformers"
    if arguments.target is None and ran.get("target"):
        _require_here(str(ran["target"]), arguments.engine, "target")
    arguments.target = arguments.target or ran.get("target") or BUNDLED
    if cost is not None and acceptance is None:
        raise UsageError("--draft-cost needs an acceptance.", "Give --acceptance ALPHA or --trace FILE.")
    draft, draft_engine = arguments.draft, arguments.draft_engine
    if draft is None and cost is None:
        own_draft = steps_draft_model(ran)
        draft = (ran.get("draft") or BUNDLED) if own_draft else ""
        if own_draft and ran.get("draft"):
            _require_here(str(draft), draft_engine or ran.get("draft_engine") or arguments.engine, "draft")
        draft_engine = draft_engine or (ran.get("draft_engine") if own_draft else None)
    if draft == BUNDLED and arguments.draft is None and arguments.target != BUNDLED and not ran and acceptance is not None:
        raise UsageError("what a draft step costs is not known.", "Give --draft MODEL or --draft-cost C.")
    settings = settings_of(arguments, (BASELINE,)).checked()
    return Plan(
        settings, arguments.batch, arguments.ks, arguments.tokens_each, acceptance, draft or "", draft_engine,
        arguments.repeats, arguments.seconds,
    )  # fmt: skip


def _require_here(name: str, engine: str, role: Role) -> None:
    """Refuse a model that only the trace names, where it would have to be downloaded."""
    if resolve(name, engine, role).path is None:
        raise UsageError(
            f"the trace's {role} {name} is not on this machine.", f"To download it name it yourself: --{role} {name}."
        )


def _acceptance(arguments: argparse.Namespace) -> Acceptance | None:
    """The acceptance that was asked for; None is to be recorded."""
    from dataclasses import replace

    from specview.commands.run_files import locate
    from specview.library.library import RunLibrary

    if arguments.acceptance is not None:
        return stated_acceptance(arguments.acceptance, arguments.draft_cost)
    if arguments.recorded is None:
        return None
    path, _ = locate(arguments.recorded, RunLibrary())
    found = trace_acceptance(path, arguments.trace_lane)
    return found if arguments.draft_cost is None else replace(found, draft_cost=arguments.draft_cost, scaling="pass")


def _measure(plan: Plan, outputs: Outputs, should_stop: StopRequest) -> int:
    from specview.models.loading import facts
    from specview.racing.pool import ModelPool, target_key

    progress = ProgressLine(sys.stderr)
    models = ModelPool()
    try:
        found = run_concurrency(plan, models, should_stop, progress.show)
        known = facts(models.get(target_key(plan.settings)))
    finally:
        progress.clear()
        models.close()
    outputs.document(_document(plan, known, found))
    if not outputs.to_stdout:
        sys.stdout.write(concurrency_table(found))
    return STOPPED_CODE if found.times.stopped else 0


def _document(plan: Plan, known: Json, found: Concurrency) -> Json:
    return {"name": "concurrency", "run": plain(dict(known)), "prompt": plan.settings.prompt, **plain(found.as_dict())}


def concurrency_table(found: Concurrency) -> str:
    """Return the figures for people: a line per number of sequences and draft length, notes, the verdict."""
    times, roof = found.times, found.times.roofline
    heading = ["B", "k", "pass", "draft", "round", "tok/s each", "tok/s all", "speedup", "middle half", "bound", ""]
    rows = [heading]
    for sequences in times.batches:
        for point in [point for point in found.points if point.sequences == sequences]:
            bound = None if roof is None else roof.bound(sequences, point.k + 1)
            rows.append(_row(point, bound or "-", best=found.best_k.get(sequences) == point.k))
    about = (
        f"{safe_text(times.model)} in {times.engine} on {times.device}, {times.context} tokens in each cache; "
        f"timed: {times.how}"
    )
    lines = [
        f"acceptance: {safe_text(found.acceptance.name)}, {found.acceptance.alpha:.3f} per judged token; draft cost "
        f"{safe_text(found.draft_how)}",
        "pass: measured, milliseconds; draft: measured unless it says modelled; round = draft + pass + the rest, modelled",
    ]
    if roof is not None and roof.bytes_per_s and roof.operations_per_s:
        lines.append(
            f"roofline (modelled from measured rates): {roof.bytes_per_s / 1e9:.1f} GB/s ({roof.bytes_how}), "
            f"{roof.operations_per_s / 1e9:.0f} Gop/s ({roof.operations_how}); products rule in passes of more than "
            f"{roof.ridge_rows:.1f} rows"
        )
    lines += [safe_text(line) for line in times.skipped]
    lines += ["Stopped: what was measured so far."] if times.stopped else []
    lines += [safe_text(times.busy)] if times.busy else []
    notes = "\n".join(lines)
    return f"{about}\n\n{table(rows, left=0)}\n{notes}\n\n{safe_text(found.sentence)}\n"


def _row(point: Point, bound: str, *, best: bool) -> list[str]:
    spread = "-" if point.spread is None else f"{point.spread[0]:.2f} to {point.spread[1]:.2f}"
    return [
        str(point.sequences),
        str(point.k),
        figure(1000 * point.pass_s, 1),
        figure(1000 * point.draft_s, 1) if point.k else "-",
        figure(1000 * point.round_s, 1),
        figure(point.user_tokens_per_s, 1),
        figure(point.total_tokens_per_s, 1),
        figure(point.speedup),
        spread,
        bound,
        "best" if best else "",
    ]
