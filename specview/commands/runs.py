"""`specview runs`: the library of kept runs: list, show, export, rename, note, tag, delete, restore, import."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from specview.commands import export
from specview.commands.arguments import Parser, whole
from specview.commands.outputs import Outputs
from specview.commands.run_files import write_runs
from specview.commands.terminal import ProgressLine, print_report, safe_text
from specview.errors import SpecviewError, UsageError
from specview.files.report import Block, Figure, Figures, Report, Section, Table, Text
from specview.files.schema import Json
from specview.files.tables import Column, Row
from specview.library.beside import beside_document, lay_beside
from specview.library.exports import Recorded
from specview.library.library import TRASH_DAYS, Entry, RunLibrary
from specview.library.repeat import command_line
from specview.library.replay import trace_document
from specview.library.reports import compare_report, run_report
from specview.library.rows import run_row, when
from specview.settings.branch import known_branch

_HELP = f"""\
usage: specview runs [options] COMMAND ...

The runs library: every finished run of the window, of run and of compare, prompts included, kept in your own data
folder. A RUN is an id or the beginning of one, a name, `last`, `last~1` (the one before), ..., or a trace file.

commands:
  list [--search WORDS]         what there is, newest first; --trash: what was deleted
  show RUN [RUN ...]            figures, prompt and how to repeat it; of several runs, their lanes in one table
  export RUN [RUN ...] FORMS    as specview export
  rename RUN NAME               give it a name; '' takes it away
  note RUN TEXT                 set its note; - reads it from standard input
  tag RUN [TAG ...]             set its tags
  delete RUN [RUN ...]          to the trash, which is emptied of what is {TRASH_DAYS} days old
  restore [RUN ...]             bring back from the trash; without a name, what was deleted last
  empty-trash                   remove what was deleted, for good
  import FILE [FILE ...]        copy traces from elsewhere into the library
  keep [on|off]                 whether finished runs are kept from now on
  where                         the library's folder

SPECVIEW_DATA=FOLDER keeps the library (in its folder runs) elsewhere. Each command has its own --help.
"""


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    first, rest = (argv[0], argv[1:]) if argv else ("", [])
    if first in ("", "-h", "--help", "help"):
        sys.stdout.write(_HELP)
        return 0 if first else 2
    if first == "export":
        return export.main(rest, "specview runs export")
    command = _COMMANDS.get(first)
    if command is None:
        raise UsageError(f"specview runs has no {first!r}.", f"It has: {', '.join((*_COMMANDS, 'export'))}.")
    parser = Parser(f"specview runs {first}", command.about)
    parser.usage = f"specview runs {first} {command.operands}[options]"
    for name, how in command.arguments.items():
        parser.add_argument(name, **how)
    command.do(parser.parse_args(list(rest)), RunLibrary())
    return 0


def size_words(size: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


# -- looking -------------------------------------------------------------------------------------------------


def _list(arguments: argparse.Namespace, library: RunLibrary) -> None:
    if arguments.limit < 0:
        raise UsageError(f"limit is {arguments.limit}.", "Use 1 or more, or 0 for all.")
    progress = ProgressLine(sys.stderr)
    try:
        found = library.scan(trash=arguments.trash, search=arguments.search, tell=progress.show)
    finally:
        progress.clear()
    shown = found[: arguments.limit or None]
    with Outputs(arguments) as outputs:
        outputs.document({"folder": str(library.folder), "total": len(found), "runs": [_entry_json(entry) for entry in shown]})
    if outputs.to_stdout:
        return
    if not found:
        where = "the trash" if arguments.trash else f"the runs library ({library.folder})"
        searched = bool(arguments.search.strip()) and bool(library.scan(trash=arguments.trash))
        words = f"Nothing in {where} has these words." if searched else f"There is nothing in {where} yet."
        print_report(Report("", [Text(words)]))
        return
    notes = [f"{len(shown)} of {len(found)} runs; --limit 0 shows all."] if len(shown) < len(found) else []
    if not library.keeps and not arguments.trash:
        notes.append("Runs are not kept at present: specview runs keep on.")
    print_report(Report("", [Table(_COLUMNS, [_row(entry) for entry in shown]), *map(Text, notes)]))


_COLUMNS = (
    Column("id", "run"), Column("recorded", "recorded"), Column("name", "name"), Column("lanes", "lanes", digits=0),
    Column("target", "target"), Column("fastest", "fastest"), Column("tok_s", "tok/s", digits=2), Column("plain_tok_s", "plain", digits=2),
    Column("speedup", "speedup", digits=2, unit="×"), Column("end", "ended"), Column("size", "size", digits=0, form=size_words),
)  # fmt: skip


def _row(entry: Entry) -> Row:
    row = run_row(entry)
    return {
        **{key: row[key] for key in ("recorded", "tok_s", "plain_tok_s", "speedup")}, "id": entry.id, "name": _cut(entry.title, 48),
        "lanes": row["lanes"] or None, "target": _cut(entry.target, 24), "fastest": _cut(row["fastest"] or "", 24),
        "end": "unreadable" if entry.problem else entry.end, "size": entry.size,
    }  # fmt: skip


def _entry_json(entry: Entry) -> Json:
    return {
        "id": entry.id, "file": str(entry.path), "size_bytes": entry.size, "recorded_at": entry.recorded_at,
        "name": entry.title, "named": bool(entry.name), "note": entry.note, "tags": list(entry.tags),
        "workload": entry.workload or None, "prompt": entry.prompt, "target": entry.target, "engine": entry.engine,
        "device": entry.device, "parent": entry.parent or None, "continues": entry.continues or None, "end": entry.end or None, "problem": entry.problem or None,
        "deleted_at": entry.deleted_at or None,
        "lanes": [
            {"name": lane.name, "method": lane.method, "k": lane.k, "rule": lane.rule, "draft": lane.draft or None,
             "end": lane.end, "speedup": lane.speedup, "equal_to_plain": lane.equal, **lane.figures}
            for lane in entry.lanes
        ],
    }  # fmt: skip


def _show(arguments: argparse.Namespace, library: RunLibrary) -> None:
    runs, taken = write_runs(arguments, arguments.runs, library)
    if not taken:
        print_report(runs_report(runs))


def runs_report(runs: Sequence[Recorded]) -> Report:
    """Recorded runs for people: one with all that is known of it, several as a table of their lanes."""
    if len(runs) == 1:
        return _one_report(runs[0])
    lanes = lay_beside([(_short(run), run.trace, None) for run in runs])
    return compare_report(beside_document(lanes), [f"{_short(run)}: {run.name}" for run in runs])


def _one_report(run: Recorded) -> Report:
    trace, entry = run.trace, run.entry
    recorded, branch = trace.run.get("recorded_at"), known_branch(trace.run)
    given = len(branch.token_ids) if branch is not None else 0
    about = {
        "run": entry.id if entry is not None else str(run.path),
        "name": run.name,
        "recorded": when(recorded) if isinstance(recorded, str) else "",
        "tags": ", ".join(entry.tags) if entry is not None else "",
        "prompt": f"{_cut(trace.prompt_text, 100)}  ({len(trace.prompt_ids) - given} tokens)",
        "branch": f"{_line(branch.words)}  ({given} tokens of output are given)" if branch is not None else "",
    }
    document = trace_document(trace)
    lanes = document["lanes"]
    figures = run_report(lanes[0]) if len(lanes) == 1 else compare_report(document)
    blocks: list[Block] = [Figures([Figure(*item) for item in about.items() if item[1]]), *figures.blocks]
    unfinished = [record.name for record in trace.records if record.end is None]
    if unfinished:
        blocks.append(Section("", [Text(
            f"The recording ends early ({', '.join(unfinished)} unfinished): the figures are of what there is."
        )]))  # fmt: skip
    if entry is not None and entry.note:
        blocks.append(Section("", [Text(entry.note)]))
    try:
        repeat = command_line(trace)
    except SpecviewError as error:
        told = [Text(f"No command line of this specview repeats it: {error}")]
    else:
        where = f" ({repeat.prompt_file}: its prompt, see specview runs export --markdown)" if repeat.prompt_file else ""
        told = [Text(f"Repeat it{where}:"), Text(f"  {repeat.command}", "code"), *map(Text, repeat.notes)]
    return Report("", [*blocks, Section("", told)], document)


# -- changing ------------------------------------------------------------------------------------------------


def _describe(arguments: argparse.Namespace, library: RunLibrary) -> None:
    words = {key: value for key, value in vars(arguments).items() if key != "run"}
    if words.get("note") == "-":
        words["note"] = sys.stdin.read()
    library.describe(library.find(arguments.run).id, **words)


def _delete(arguments: argparse.Namespace, library: RunLibrary) -> None:
    entries = library.scan()
    moved = library.delete([library.find(ref, entries=entries).id for ref in arguments.runs])
    library.empty_trash(TRASH_DAYS)
    if not moved:  # another program was faster
        raise SpecviewError("these runs are gone already.", "specview runs list --trash shows what was deleted.")
    sys.stdout.write(f"{', '.join(moved)} in the trash. Back again: specview runs restore {' '.join(moved)}\n")


def _restore(arguments: argparse.Namespace, library: RunLibrary) -> None:
    entries = library.scan(trash=True)
    back = library.restore([library.find(ref, trash=True, entries=entries).id for ref in arguments.runs or ["last"]])
    if not back:
        raise SpecviewError("these runs are no longer in the trash.", "specview runs list shows what there is.")
    sys.stdout.write(f"{', '.join(back)} back in the library.\n")


def _empty_trash(_: argparse.Namespace, library: RunLibrary) -> None:
    gone = library.empty_trash()
    sys.stdout.write(f"{gone} {'run' if gone == 1 else 'runs'} removed.\n")


def _import(arguments: argparse.Namespace, library: RunLibrary) -> None:
    progress = ProgressLine(sys.stderr)
    for name in arguments.files:
        try:
            entry = library.take_in(Path(name), partial(progress.show, f"Reading {name}"))
        finally:
            progress.clear()
        sys.stdout.write(safe_text(f"{entry.id}  {_line(entry.title)}\n"))


def _keep(arguments: argparse.Namespace, library: RunLibrary) -> None:
    if arguments.choice is not None:
        library.set_keeps(arguments.choice == "on")
    sys.stdout.write(safe_text(f"Runs are {'' if library.keeps else 'not '}kept, in {library.folder}.\n"))


def _where(_: argparse.Namespace, library: RunLibrary) -> None:
    sys.stdout.write(f"{library.folder}\n")


@dataclass(frozen=True, slots=True)
class _Command:
    """What a command's --help says, its operands in words, what it does, and its arguments as argparse takes them."""

    about: str
    operands: str
    do: Callable[[argparse.Namespace, RunLibrary], None]
    arguments: Mapping[str, Mapping[str, Any]]


_RUN: Mapping[str, Any] = {"run": {"metavar": "RUN"}}
_RUNS: Mapping[str, Any] = {"runs": {"metavar": "RUN", "nargs": "+"}}
_COMMANDS: Mapping[str, _Command] = {
    "list": _Command("List the kept runs, newest first.", "", _list, {
        "--search": {"metavar": "WORDS", "default": "", "help": "only those with all these words in name, note, tags, "
                     "prompt, model or method"},
        "--limit": {"type": whole, "default": 50, "help": "at most so many (default 50); 0 is all"},
        "--trash": {"action": "store_true", "help": "what was deleted"},
        "--json": {"metavar": "FILE", "help": "write the list as JSON; - is standard output"},
    }),
    "show": _Command("Show a run's figures, or the lanes of several runs in one table.", "RUN [RUN ...] ", _show, {
        **_RUNS, "--json": {"metavar": "FILE", "help": "write the runs as documents; - is standard output"},
    }),
    "rename": _Command("Give a run a name; '' takes it away.", "RUN NAME ", _describe, {**_RUN, "name": {"metavar": "NAME"}}),
    "note": _Command("Set a run's note; '' takes it away, - reads it from standard input.", "RUN TEXT ", _describe,
                     {**_RUN, "note": {"metavar": "TEXT"}}),
    "tag": _Command("Set a run's tags; without any, it has none.", "RUN [TAG ...] ", _describe,
                    {**_RUN, "tags": {"metavar": "TAG", "nargs": "*"}}),
    "delete": _Command(f"Move runs to the trash, where they stay for {TRASH_DAYS} days.", "RUN [RUN ...] ", _delete, _RUNS),
    "restore": _Command("Bring runs back from the trash; without a name, the one deleted last.", "[RUN ...] ", _restore,
                        {"runs": {"metavar": "RUN", "nargs": "*"}}),
    "empty-trash": _Command("Remove what was deleted, for good.", "", _empty_trash, {}),
    "import": _Command("Copy traces from elsewhere into the library.", "FILE [FILE ...] ", _import,
                       {"files": {"metavar": "FILE", "nargs": "+"}}),
    "keep": _Command("Whether finished runs, prompts included, are kept from now on.", "[on|off] ", _keep,
                     {"choice": {"nargs": "?", "choices": ("on", "off")}}),
    "where": _Command("Print the library's folder.", "", _where, {}),
}  # fmt: skip


# -- words ---------------------------------------------------------------------------------------------------


def _short(run: Recorded) -> str:
    return run.entry.id.rpartition("-")[2] if run.entry is not None else run.path.stem


def _line(text: str) -> str:
    return " ".join(safe_text(text).split())


def _cut(text: str, longest: int) -> str:
    text = _line(text)
    return text if len(text) <= longest else text[: longest - 1] + "…"
