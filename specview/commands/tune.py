"""`specview tune`: the method, draft length and policy that are fastest here, for a prompt or a set of prompts."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specview.commands.arguments import (
    Parser,
    add_prompt_flags,
    add_sampling_flags,
    add_settings,
    add_target_flags,
    prompts_of,
    real,
    settings_of,
)
from specview.commands.running import Running, running
from specview.decoding.verification import RULES, idle_rule_note
from specview.drafting.plain import BASELINE
from specview.drafting.registry import METHODS
from specview.errors import SpecviewError, UsageError
from specview.models.catalog import path_of
from specview.racing import workloads
from specview.racing.resolve import checked_run
from specview.racing.workloads import Workload
from specview.settings.run import BUNDLED, RunSettings, flag_word, flag_words

if TYPE_CHECKING:
    from specview.experiments.tune_result import ArmResult

DEFAULT_MINUTES = 3.0

_DESCRIPTION = """\
Find the method, draft length and policy that are fastest here, on this prompt or this set of prompts, within a time
budget: cheap predictions first, then races of the promising lanes beside plain decoding, and last the chosen one anew.
Races are shorter than --max-tokens where the budget is.
Only these last races make the interval that is reported; where plain decoding wins, it says so.
Without flags: the bundled target, draft and heads; the workload chat; 3 minutes, loading included."""

_EXAMPLES = """\
examples:
  specview tune --workload code-edit
  specview tune --prompts mine.jsonl --minutes 10 --json tuned.json
  specview tune --prompt-file notes.txt --engine llama.cpp --seconds 60 --methods prompt-lookup,suffix,draft-model"""

_IDLE = {
    "draft": None,
    "draft_engine": None,
    "lanes": None,
    "policy": None,
    "k": None,
    "observe": "off",
    "trace": None,
    "check_mode": False,
}
"""What the shared settings need and tuning has no flag for: it settles the lanes itself."""


def make_parser() -> Parser:
    """Make the command's parser."""
    parser = Parser("specview tune", _DESCRIPTION, _EXAMPLES)
    model = add_target_flags(parser)
    model.add_argument("--draft", dest="drafts", action="append", metavar="DRAFT",
                       help="a draft model or a trained head of your own, tried with the methods that it fits (repeatable)")  # fmt: skip
    search = parser.add_argument_group("tuning")
    budget = search.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=real, help=f"time budget, loading included (default: {DEFAULT_MINUTES:g})")
    budget.add_argument("--seconds", type=real, help="the same in seconds")
    search.add_argument("--methods", metavar="LIST", help=f"only these, with commas: {', '.join(n for n, method in METHODS.items() if method.drafts)}")
    search.add_argument("--rule", default="auto", help=f"acceptance rule of every lane: auto (default), {', '.join(RULES)}")
    add_sampling_flags(parser)
    add_settings(add_prompt_flags(parser, sets=True), "output")
    output = parser.add_argument_group("output")
    output.add_argument("--json", metavar="FILE", help="write a JSON document; - is standard output, and nothing else")
    output.add_argument("--csv", metavar="FILE", help="write the ranking as CSV")
    output.add_argument("--markdown", metavar="FILE", help="write the ranking as Markdown")
    parser.set_defaults(**_IDLE)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    from specview.experiments.tuning import check_seconds

    arguments = make_parser().parse_args(argv)
    minutes = DEFAULT_MINUTES if arguments.minutes is None else arguments.minutes
    seconds = arguments.seconds if arguments.seconds is not None else 60 * minutes
    check_seconds(seconds)
    methods = [name.strip() for name in (arguments.methods or "").split(",") if name.strip()]
    if arguments.methods is not None and not methods:
        raise UsageError("--methods names none.", "Give some, with commas between, or leave it out to try all.")
    for name in methods:
        if name not in METHODS or not METHODS[name].drafts:
            known = ", ".join(one.name for one in METHODS.values() if one.drafts)
            raise UsageError(f"there is no method {name!r} to try.", f"Methods: {known}.")
    for draft in arguments.drafts or ():
        _require_draft(draft)
    settings = checked_run(settings_of(arguments, (BASELINE,)))
    if note := idle_rule_note(arguments.rule, settings.sampling):
        sys.stderr.write(f"specview: {note}\n")
    prompts = prompts_of(arguments)
    with running(arguments) as run:
        return _tune(settings, prompts, seconds, methods, arguments.drafts or (), arguments.rule, run)


def _require_draft(draft: str) -> None:
    """Refuse a draft that is neither here nor a hub id: every method would otherwise go on with the bundled one."""
    from specview.models import hub

    text = draft.strip()
    try:
        there = text == BUNDLED or path_of(text).exists()
    except OSError:
        there = True  # it is there and cannot be looked at: loading says why
    named = not Path(text).is_absolute() and (hub.is_repo_id(text) or hub.split_gguf_id(text) is not None)
    if not text or not (there or named):
        raise SpecviewError(f"--draft: there is no file or folder {text!r}.", "Check the path, or give a hub id (owner/name).")


def _tune(
    settings: RunSettings, prompts: Workload, seconds: float, methods: Sequence[str], drafts: Sequence[str], rule: str,
    run: Running,
) -> int:  # fmt: skip
    from specview.experiments import tuning
    from specview.experiments.guide import tune_report
    from specview.experiments.tune_result import RANKING_COLUMNS, ranking_rows
    from specview.files.tables import table_csv

    result = tuning.tune(
        settings, prompts, seconds, methods=methods, drafts=drafts, rule=rule, models=run.models,
        on_progress=lambda news: run.progress.show(news.words, news.fraction), should_stop=run.should_stop,
    )  # fmt: skip
    stopped = result.end == "stopped"
    if stopped and not result.races:
        raise KeyboardInterrupt
    command = None if result.best is None else command_of(settings, prompts, result.best)
    report = tune_report(result, command)
    whole = {"csv": lambda: table_csv(RANKING_COLUMNS, ranking_rows(result.ranking))}
    code = run.end(report, stopped=stopped, files=whole)
    if not result.races and result.failures:
        raise SpecviewError(result.failures[0])
    return code


def command_of(settings: RunSettings, prompts: Workload, arm: ArmResult) -> str:
    """The command line that runs a lane on this target, its prompt left to the user where it was a set or a long text."""
    template = flag_words(replace(settings, system=""), "prompt") if settings.chat else []
    sampling = flag_words(replace(settings.sampling, seed=0), "sampling")
    words = ["specview", "run", *flag_words(settings, "models"), *template, *sampling, *flag_words(settings, "output")]
    if not settings.chat:
        words.append("--raw")
    words += ["--lane", arm.name]
    return shlex.join([*words, *_prompt_words(settings, prompts)])


def _prompt_words(settings: RunSettings, prompts: Workload) -> list[str]:
    """The flags of the prompt, and of the system text where all prompts have one that does not come by itself."""
    first, usual = prompts.prompts[0], ""
    systems = {prompt.system for prompt in prompts.prompts}
    if settings.workload is not None:
        words = ["--workload", settings.workload]
        usual, systems = workloads.load(settings.workload).system, {settings.system}
    elif len(prompts.prompts) == 1 and len(first.text) <= 80 and not first.history:
        words = flag_word("--prompt", first.text)
    else:
        words = ["--prompt-file", "FILE"]
    system = systems.pop()
    if settings.chat and not systems and system != usual:
        words += flag_word("--system", system)
    return words
