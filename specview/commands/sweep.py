"""`specview sweep`: methods over a grid of k, temperatures and prompts; a table, curves with their best k, a file to resume."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from specview.commands.arguments import (
    Parser,
    add_shared_flags,
    lane_keys_help,
    prompts_of,
    settings_of,
    whole,
)
from specview.commands.running import Running, running
from specview.commands.terminal import is_terminal, safe_text
from specview.drafting.registry import DEFAULT_METHOD
from specview.errors import SpecviewError, UsageError
from specview.experiments import sweep as experiment
from specview.experiments.sweep import ASK_RUNS, ASK_SECONDS
from specview.experiments.sweep_curves import CellRun
from specview.experiments.sweep_file import SweepFile, new_path, refuse_taken
from specview.experiments.sweep_grid import (
    Grid,
    GridPrompt,
    grid_prompts,
    parse_ks,
    parse_temperatures,
    prompts_of_set,
)
from specview.experiments.sweep_results import SweepResults, sweep_report
from specview.racing import workloads
from specview.racing.resolve import models_named

DEFAULT_KS = "1..8"

_DESCRIPTION = """\
Race methods over a grid of draft lengths, temperatures and prompts, each cell with plain decoding beside it, and
print the measured speedups, what the closed form predicts, and the best k of every curve. Repeats go round: all cells
once, then all again, so that a noisy moment hits all alike. Every race is in a file before the next begins: Ctrl-C
stops within a round, --resume goes on.
Without flags: the bundled pair, draft-model, k 1..8, greedy, the workload chat."""

_EXAMPLES = """\
examples:
  specview sweep --k 1..8 --workload story,extract,code-edit --repeats 3 --out sweep.jsonl
  specview sweep --resume --out sweep.jsonl           # go on after a stop, with the grid of the file
  specview sweep --temperature 0,0.7,1 --lane "draft-model,rule=match" --csv sweep.csv
  specview sweep --k 1,2,4 --prompts mine.jsonl --json -

A lane that names its k keeps it, whatever --k says. Above temperature 0 each prompt and repeat has a seed of its own.
The prediction is modelled: one alpha for a whole curve, pooled over k and repeats, in (1 - alpha^(k+1)) / (1 - alpha),
with the costs of drafts and target passes as measured."""

_GRID_HELP = {
    "k": f"draft lengths: 1..8, 1..16:3 or 1,2,4 (default: {DEFAULT_KS})",
    "temperature": "temperatures: 0,0.7 or 0..1:0.25 (default: 0, greedy)",
    "workload": f"workloads, with commas between (default: {workloads.DEFAULT}); the first prompt of each",
    "prompts": f"a set of prompts, each a cell, grouped by its workload: {workloads.FORMATS}",
}

_NO_GRID = ("out", "resume", "yes", "json", "csv", "markdown", "trust_remote_code")
"""Flags that name no grid; trust in a model's own code is given anew each time, and in no file."""


def make_parser() -> Parser:
    """Make the command's parser."""
    parser = Parser("specview sweep", _DESCRIPTION, f"{_EXAMPLES}\n\n{lane_keys_help()}")
    add_shared_flags(parser, sets=True)
    for action in parser._actions:  # the shared flags, over a grid
        if action.dest in _GRID_HELP:
            action.type, action.help = str, _GRID_HELP[action.dest]
        elif action.dest in ("trace", "observe"):  # a sweep keeps figures, no rounds
            action.help = argparse.SUPPRESS
    parser.set_defaults(k=None, temperature="0")
    parser.add_argument("--repeats", type=whole, default=1, help="races of every cell, in rounds (default: 1)")
    output = parser.add_argument_group("the sweep's file")
    output.add_argument("--out", metavar="FILE.jsonl", help="where the races are kept (default: in the data folder)")
    output.add_argument("--resume", action="store_true",
                        help="go on with the sweep in --out; grid flags may be left out, others than its own are refused")  # fmt: skip
    output.add_argument("--yes", action="store_true",
                        help=f"do not ask before more than {ASK_RUNS:,} races or {ASK_SECONDS / 3600:.0f} h, nor before models "
                        "that the file of --resume names are loaded")  # fmt: skip
    parser.add_argument("--csv", metavar="FILE", help="write the table as CSV")
    parser.add_argument("--markdown", metavar="FILE", help="write the table as Markdown")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    for name in ("trace", "observe"):
        if getattr(arguments, name) is not None:
            raise UsageError(f"--{name} is for one race, and a sweep keeps no rounds.", "Leave it out, or use compare.")
    if arguments.resume and not arguments.out:
        raise UsageError("--resume needs the sweep's file.", "Give it with --out FILE.")
    from_file = arguments.resume and _names_no_grid(parser, arguments)
    grid = None if from_file else grid_of(arguments)
    with running(arguments) as run:
        return _sweep(arguments, grid, run)


def _names_no_grid(parser: Parser, arguments: argparse.Namespace) -> bool:
    """Whether no flag names a grid: a resumed sweep then has that of its file."""
    usual = vars(parser.parse_args([]))
    return all(value == usual[name] for name, value in vars(arguments).items() if name not in _NO_GRID)


def grid_of(arguments: argparse.Namespace) -> Grid:
    """Return the checked grid of parsed flags; raise UsageError or SpecviewError, one line."""
    temperatures = parse_temperatures(arguments.temperature)
    prompts = _prompts(arguments)
    one = argparse.Namespace(**vars(arguments))
    one.k, one.temperature, one.workload, one.prompts = None, max(temperatures), None, None
    settings = settings_of(one, (DEFAULT_METHOD,), most_lanes=None)
    lanes = tuple(lane for lane in settings.lanes if not lane.plain)
    if arguments.k is not None and lanes and all(lane.k is not None for lane in lanes):
        raise UsageError("--k has no effect: every lane names its own k.", "Leave one of them out.")
    ks = parse_ks(DEFAULT_KS if arguments.k is None else arguments.k)
    settings = replace(settings, prompt="", system="", workload=None, lanes=())
    return Grid(settings, lanes, ks, temperatures, prompts, arguments.repeats).checked()


def _prompts(arguments: argparse.Namespace) -> tuple[GridPrompt, ...]:
    given = [name for name in ("prompt", "prompt_file", "prompts") if getattr(arguments, name) is not None]
    if arguments.workload is not None:
        found = grid_prompts([name.strip() for name in arguments.workload.split(",") if name.strip()])
    elif given:
        found = prompts_of_set(prompts_of(arguments))
        if given != ["prompts"]:
            found = tuple(replace(prompt, name="") for prompt in found)
    else:
        found = grid_prompts([workloads.DEFAULT])
    if arguments.system is None:
        return found
    return tuple(replace(prompt, system=arguments.system, bundled=False) for prompt in found)


def _sweep(arguments: argparse.Namespace, grid: Grid | None, run: Running) -> int:
    if grid is not None and not arguments.resume:
        path = _new_path(arguments.out)
        _ask(grid, grid.run_count, run, arguments.yes)
        file = SweepFile.begin(path, grid)
    else:
        file = SweepFile.resume(arguments.out, grid, trust=arguments.trust_remote_code)
    with file:
        results = file.results
        if arguments.resume:
            _resume(file, arguments, run, own=grid is not None)

        def show(news: experiment.News) -> None:
            if not isinstance(news, CellRun):
                run.progress.show(news.words, news.fraction)
            elif news.error:
                _say(f"{results.words(results.cells[news.cell])}: {news.error}", run)

        experiment.run_sweep(file, run.models, show, run.should_stop)
    # A race that failed before is in the file already, and is still to be run again.
    left = len(results.pending(failed=True))
    stopped = len(results.runs) < results.total or (left > 0 and run.should_stop())
    code = run.end(sweep_report(results), stopped=stopped)
    if stopped:
        words = ["specview", "sweep", "--resume", "--out", str(file.path)]
        words += ["--trust-remote-code"] if arguments.trust_remote_code else []
        _say(f"stopped after {results.total - left} of {results.total} races; go on with: {shlex.join(words)}", run)
    else:
        _say(f"kept in {file.path}", run)
    if results.runs and len(results.failures) == len(results.runs) and not stopped:
        raise SpecviewError(f"no race ran: {results.failures[0].error}")
    return code


def _resume(file: SweepFile, arguments: argparse.Namespace, run: Running, *, own: bool) -> None:
    """Ask what is to be asked before a sweep goes on; own: its grid was given by flags too."""
    results: SweepResults = file.results
    left = len(results.pending(failed=True))
    if not left:
        return
    named = {} if own else models_named(results.grid.shared)
    if named and not arguments.yes:
        words = "the sweep's file names models: " + ", ".join(f"{name} ({role})" for name, role in named.items())
        _need_yes(f"{words}. An id of the Hub is downloaded. Load them?", words, "Give the sweep's own flags again, or --yes.")
    if results.trouble:
        _say(f"{file.path}: {results.trouble}.", run)
    _ask(results.grid, left, run, arguments.yes)


def _new_path(given: str | None) -> Path:
    """Where a new sweep goes; refused before anything runs where it cannot."""
    if given is None:
        return new_path()
    path = Path(given)
    if path.is_dir() or path.is_fifo():
        raise UsageError(f"{given!r} is a {'folder' if path.is_dir() else 'pipe'}.", "Give a file's name.")
    refuse_taken(path)
    if not path.parent.is_dir():
        raise SpecviewError(f"there is no folder {str(path.parent)!r}.", "Make it, or choose another.")
    return path


def _ask(grid: Grid, races: int, run: Running, yes: bool) -> None:
    """Say how long it will take, measured here; ask where that is long. Raises SpecviewError where the answer is no."""
    known = experiment.estimate(grid, run.models, run.should_stop, run.progress.show)
    run.progress.clear()
    words = experiment.grid_words(grid, known, races)
    if yes or not experiment.is_long(grid, known, races):
        _say(f"{words}.", run)
    else:
        _need_yes(f"{words}. Run them?", words, "Give --yes to run it, or a smaller grid.")


def _need_yes(question: str, words: str, otherwise: str) -> None:
    """Ask; raises SpecviewError where the answer is no, UsageError where nobody can be asked."""
    if not is_terminal(sys.stdin):
        raise UsageError(f"{words}; and nobody is here to be asked.", otherwise)
    sys.stderr.write(f"specview: {safe_text(question)} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().casefold() not in ("y", "yes"):
        raise SpecviewError("not run.", "Choose a smaller grid, or begin a sweep of your own.")


def _say(line: str, run: Running) -> None:
    run.progress.clear()
    sys.stderr.write(f"specview: {safe_text(line)}\n")
