"""`specview concurrency`: what speculation is worth as more sequences share the device, from measured passes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from specview.commands.arguments import (
    IDLE,
    Parser,
    add_prompt_flags,
    add_target_flags,
    real,
    settings_of,
    whole,
    wholes,
)
from specview.commands.running import running
from specview.drafting.plain import BASELINE
from specview.errors import require
from specview.lab.acceptance import (
    RACE_TOKENS,
    Acceptance,
    stated_acceptance,
    steps_draft_model,
    trace_acceptance,
)
from specview.lab.batch_times import BATCHES, CONTEXT, KS, REPEATS, SECONDS, Sizes
from specview.lab.concurrency import Plan, concurrency_report, run_concurrency
from specview.models.catalog import Role, resolve
from specview.racing.resolve import checked_run
from specview.settings.run import BUNDLED

_DESCRIPTION = """\
Time real target passes over B sequences of k + 1 tokens, join them with a run's acceptance, and say for how many
sequences sharing the device speculation still pays. The draft model's passes are timed too.
Without flags: the bundled pair, B 1 to 16, k 2 and 4, an acceptance recorded in a short race on the workload chat."""

_EXAMPLES = """\
examples:
  specview concurrency --batch 1,2,4,8 --k 0,2,4 --context 256
  specview concurrency --engine llama.cpp --trace run.jsonl --json concurrency.json
  specview concurrency --acceptance 0.6 --draft-cost 0.1"""

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
                       help="numbers of sequences (default: 1,2,4,8,16); those that do not fit in memory are left out")  # fmt: skip
    sizes.add_argument("--k", dest="ks", type=wholes, default=KS, metavar="K,K,..",
                       help="draft lengths, 0 being plain (default: 0,2,4)")  # fmt: skip
    sizes.add_argument("--context", dest="tokens_each", type=whole, default=CONTEXT,
                       help=f"tokens that each sequence holds (default: {CONTEXT})")  # fmt: skip
    sizes.add_argument("--repeats", type=whole, default=REPEATS, help=f"timings of each size (default: {REPEATS})")
    sizes.add_argument("--seconds", type=real, default=SECONDS,
                       help=f"start no further repeat after this many seconds (default: {SECONDS:g})")  # fmt: skip
    accepted = parser.add_argument_group("acceptance (default: a short race of the draft model on the prompt)")
    source = accepted.add_mutually_exclusive_group()
    source.add_argument("--trace", dest="recorded", metavar="FILE", help="take it from a trace's lane (or from a run of the library: last, an id, ..)")
    source.add_argument("--acceptance", type=real, metavar="ALPHA", help="a number from 0 to 1")
    accepted.add_argument("--trace-lane", metavar="NAME", help="the trace's lane (default: the first that drafts a chain)")
    accepted.add_argument("--draft-cost", type=real, metavar="C",
                          help="a draft step in plain steps, in place of timing a draft model")  # fmt: skip
    output = parser.add_argument_group("output")
    output.add_argument("--json", metavar="FILE", help="write a JSON document; - is standard output, and nothing else")
    parser.set_defaults(**IDLE, k=None, max_tokens=RACE_TOKENS, engine=None, target=None, context=None)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    arguments = make_parser().parse_args(argv)
    plan = _plan(arguments)
    with running(arguments) as run:
        from specview.models.loading import facts
        from specview.racing.pool import target_key

        found = run_concurrency(plan, run.models, run.should_stop, run.progress.show)
        known = facts(run.models.get(target_key(plan.settings)))
        return run.end(concurrency_report(found, known, plan.settings.prompt), stopped=found.times.stopped)


def _plan(arguments: argparse.Namespace) -> Plan:
    """Return what to measure; raise UsageError or SpecviewError, one line."""
    sizes = Sizes(arguments.batch, arguments.ks, arguments.tokens_each, arguments.repeats, arguments.seconds)
    require(arguments.trace_lane is None or arguments.recorded is not None, "--trace-lane names a lane of --trace.", "Give the trace too.")
    cost, draft, draft_engine = arguments.draft_cost, arguments.draft, arguments.draft_engine
    if cost is not None:
        require(cost >= 0, f"draft cost is {cost:g}.", "Use 0 or more, in plain steps.")
        require(draft is None and draft_engine is None, "--draft-cost stands in place of a draft model.", "Give one of the two.")
    acceptance = _acceptance(arguments)
    ran: dict[str, Any] = dict(acceptance.run) if acceptance is not None else {}
    arguments.engine = arguments.engine or ran.get("engine") or "transformers"
    if arguments.target is None and ran.get("target"):
        _require_here(str(ran["target"]), arguments.engine, "target")
    arguments.target = arguments.target or ran.get("target") or BUNDLED
    require(cost is None or acceptance is not None, "--draft-cost needs an acceptance.", "Give --acceptance ALPHA or --trace FILE.")
    if draft is None and cost is None:
        own_draft = steps_draft_model(ran)
        draft = (ran.get("draft") or BUNDLED) if own_draft else ""
        if own_draft and ran.get("draft"):
            _require_here(str(draft), draft_engine or ran.get("draft_engine") or arguments.engine, "draft")
        draft_engine = draft_engine or (ran.get("draft_engine") if own_draft else None)
    guessed = draft == BUNDLED and arguments.draft is None and not ran and acceptance is not None
    require(not guessed or arguments.target == BUNDLED, "what a draft step costs is not known.",
            "Give --draft MODEL or --draft-cost C.")  # fmt: skip
    return Plan(checked_run(settings_of(arguments, (BASELINE,))), sizes, acceptance, draft or "", draft_engine)


def _require_here(name: str, engine: str, role: Role) -> None:
    """Refuse a model that only the trace names, where it would have to be downloaded."""
    require(resolve(name, engine, role).path is not None, f"the trace's {role} {name} is not on this machine.",
            f"To download it name it yourself: --{role} {name}.")  # fmt: skip


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
