"""`specview sweep`: methods over a grid of k, temperatures and prompts; a table, curves with their best k, a file to resume."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specview.commands.arguments import (
    Parser,
    add_shared_flags,
    lane_keys_help,
    prompts_of,
    settings_of,
    whole,
)
from specview.commands.outputs import Outputs
from specview.commands.running import STOPPED_CODE, StopRequest, stop_on_signals
from specview.commands.terminal import ProgressLine, figure, is_terminal, safe_text, table
from specview.drafting.registry import DEFAULT_METHOD
from specview.errors import SpecviewError, UsageError
from specview.experiments.sweep_curves import CellRun
from specview.experiments.sweep_file import SweepFile, new_path
from specview.experiments.sweep_grid import (
    ASK_RUNS,
    ASK_SECONDS,
    Grid,
    GridPrompt,
    grid_prompts,
    parse_ks,
    parse_temperatures,
    prompts_of_set,
)
from specview.experiments.sweep_results import COLUMNS, FEW, SweepResults
from specview.files.tables import table_csv, table_markdown
from specview.racing import workloads
from specview.racing.foreign import models_named

if TYPE_CHECKING:
    from specview.racing.pool import ModelPool

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

_LONGEST_NOTE = 60


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
    with Outputs(arguments) as outputs, stop_on_signals() as should_stop:
        return _sweep(arguments, grid, outputs, should_stop)


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


def _sweep(arguments: argparse.Namespace, grid: Grid | None, outputs: Outputs, should_stop: StopRequest) -> int:
    from specview.racing.pool import ModelPool

    progress = ProgressLine(sys.stderr)
    models = ModelPool()
    stopped, left = False, 0
    try:
        if arguments.resume:
            file = SweepFile.resume(arguments.out, grid)
            if arguments.trust_remote_code:
                own = file.results.grid
                file.results.grid = replace(own, settings=replace(own.settings, trust_remote_code=True))
        else:
            assert grid is not None
            path = _new_path(arguments.out)
            _ask(grid, grid.run_count, models, arguments.yes, progress, should_stop)
            file = SweepFile.begin(path, grid)
        with file:
            if arguments.resume and (left := len(file.results.pending(failed=True))):
                if grid is None:
                    _ask_models(models_named(file.results.grid.shared), arguments.yes)
                if file.results.trouble:
                    _say(f"{file.path}: {file.results.trouble}.")
                _ask(file.results.grid, left, models, arguments.yes, progress, should_stop)
            _run(file, models, progress, should_stop)
            results, path = file.results, file.path
            # A race that failed before is in the file already, and is still to be run again.
            left = len(results.pending(failed=True))
            stopped = len(results.runs) < results.total or (left > 0 and should_stop())
    finally:
        progress.clear()
        models.close()
    try:
        if outputs.to_stdout or outputs.wants("json"):
            outputs.document(results.document())
        rows = results.rows()
        if outputs.wants("csv"):
            outputs.text("csv", table_csv(COLUMNS, rows))
        if outputs.wants("markdown"):
            outputs.text("markdown", table_markdown([column for column in COLUMNS if column.key in FEW], rows))
    finally:  # a full disk does not take the table too
        if not outputs.to_stdout:
            sys.stdout.write(sweep_table(results))
            sys.stdout.flush()
        if stopped:
            words = ["specview", "sweep", "--resume", "--out", str(path)]
            words += ["--trust-remote-code"] if arguments.trust_remote_code else []
            _say(f"stopped after {results.total - left} of {results.total} races; go on with: {shlex.join(words)}")
        else:
            _say(f"kept in {safe_text(str(path))}")
    if results.runs and len(results.failures) == len(results.runs) and not stopped:
        raise SpecviewError(f"no race ran: {results.failures[0].error}")
    return STOPPED_CODE if stopped else 0


def _new_path(given: str | None) -> Path:
    """Where a new sweep goes; refused before anything runs where it cannot."""
    if given is None:
        return new_path()
    path = Path(given)
    if path.is_dir() or path.is_fifo():
        raise UsageError(f"{given!r} is a {'folder' if path.is_dir() else 'pipe'}.", "Give a file's name.")
    if path.is_file() and path.stat().st_size:
        raise UsageError(f"{given!r} is there already.", "Resume it (--resume), or choose another name.")
    if not path.parent.is_dir():
        raise SpecviewError(f"there is no folder {str(path.parent)!r}.", "Make it, or choose another.")
    return path


def _ask(
    grid: Grid, races: int, models: ModelPool, yes: bool, progress: ProgressLine, should_stop: StopRequest
) -> None:
    """Say how long it will take, measured here; ask where that is long. Raises SpecviewError where the answer is no."""
    from specview.experiments.runner import duration
    from specview.experiments.sweep import estimate

    told = estimate(grid, models, should_stop, progress.show)
    progress.clear()
    seconds = told.seconds * races / grid.run_count
    words = f"{grid.cell_count:,} cell{'' if grid.cell_count == 1 else 's'}"
    if grid.repeats > 1:
        words += f" x {grid.repeats} repeats"
    words += f", {races:,} race{'' if races == 1 else 's'}" + (" left" if races != grid.run_count else "")
    words += f": about {duration(seconds)} here (plain decoding: {told.plain_tokens_per_s:.1f} tok/s)"
    if races <= ASK_RUNS and seconds <= ASK_SECONDS or yes:
        _say(f"{words}.")
        return
    if not is_terminal(sys.stdin):
        raise UsageError(f"{words}, and nobody is here to be asked.", "Give --yes to run it, or a smaller grid.")
    if not _says_yes(f"{words}. Run them?"):
        raise SpecviewError("not run.", "Choose a smaller grid.")


def _ask_models(named: Mapping[str, str], yes: bool) -> None:
    """Ask whether models are meant that the file names and no flag; raises SpecviewError where the answer is no."""
    words = "the sweep's file names models: " + ", ".join(f"{name} ({role})" for name, role in named.items())
    if not named or yes:
        return
    if not is_terminal(sys.stdin):
        raise UsageError(f"{words}; and nobody is here to be asked.", "Give the sweep's own flags again, or --yes.")
    if not _says_yes(f"{words}. An id of the Hub is downloaded. Load them?"):
        raise SpecviewError("not run.", "Begin a sweep of your own.")


def _says_yes(question: str) -> bool:
    sys.stderr.write(f"specview: {safe_text(question)} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().casefold() in ("y", "yes")


def _run(file: SweepFile, models: ModelPool, progress: ProgressLine, should_stop: StopRequest) -> None:
    from specview.experiments.runner import duration
    from specview.experiments.sweep import News, run_sweep

    def show(news: News) -> None:
        if isinstance(news, CellRun):
            if news.error:
                progress.clear()
                _say(f"{file.results.words(file.results.cells[news.cell])}: {news.error}")
            return
        left = f", {duration(news.left_s)} left" if news.left_s else ""
        progress.show(f"{100 * news.fraction:.0f}% {news.done}/{news.total}{left}  {news.text}")

    run_sweep(file, models, show, should_stop)


def _say(line: str) -> None:
    sys.stderr.write(f"specview: {safe_text(line)}\n")


def sweep_table(results: SweepResults) -> str:
    """Return a sweep for people: a line per cell, the best k of every curve marked, and what each curve says."""
    grid = results.grid
    prompts = len({prompt.name for prompt in grid.prompts}) > 1 and any(not prompt.bundled for prompt in grid.prompts)
    header = ["lane", "workload", *(["prompt"] if prompts else []), "T", "k", "speedup", "predicted", "c alone", "tok/s",
              "plain", "tok/pass", "alpha", "c", "v(k)", "equal to plain", "note"]  # fmt: skip
    rows = [header]
    for row in results.rows():
        spread = ""
        if row["speedup_low"] is not None and row["speedup_low"] != row["speedup_high"]:
            spread = f" ({row['speedup_low']:.2f}-{row['speedup_high']:.2f})"
        rows.append(
            [
                _one(row["lane"]),
                _one(row["workload"]),
                *([_one(row["prompt"])] if prompts else []),
                f"{row['temperature']:g}",
                figure(row["k"], 0),
                figure(row["speedup"], 2, "x") + spread,
                figure(row["predicted"], 2, "x"),
                figure(row["predicted_c_alone"], 2, "x"),
                figure(row["tokens_per_s"]),
                figure(row["plain_tokens_per_s"]),
                figure(row["tokens_per_target_pass"]),
                figure(row["acceptance_rate"], 3),
                figure(row["draft_cost"], 3),
                figure(row["verify_cost"]),
                row["equal_to_plain"] or "-",
                _short(_one(row["note"])),
            ]
        )
    shown = table(rows, left=3 if prompts else 2)
    lines = [safe_text(series.sentence()) for series in results.all_series()]
    lines += ["", *_notes(results)]
    return shown + "\n" + "\n".join(lines) + "\n"


def _notes(results: SweepResults) -> list[str]:
    notes = []
    if results.grid.repeats > 1:
        notes.append("Speedup: tok/s / plain of the repeat with the median ratio, with least and greatest; each against plain in its own race.")
    else:
        notes.append("Speedup: tok/s / plain, over the time both were running; behind it the middle half of the run's eighths.")
    notes.append(
        "predicted: modelled, one alpha per curve pooled over k, c and v(k) as measured; c alone: v(k) taken as 1."
    )
    if results.grid.settings.check_mode:
        notes.append("Check mode pads one-row passes: the outputs are comparable, the times are not.")
    busy = [run.busy for run in results.runs.values() if run.busy]
    if busy:
        notes.append(f"In {len(busy)} of {len(results.runs)} races the machine was busy; the last: {safe_text(busy[-1])}")
    return notes


def _one(text: str) -> str:
    return safe_text(text).replace("\n", " ")


def _short(note: str) -> str:
    """A note that does not push the table off the screen; why a cell failed stands in full on standard error."""
    return note if len(note) <= _LONGEST_NOTE else f"{note[: _LONGEST_NOTE - 1]}…"
