"""`specview runs`: the library of kept runs: list, show, export, rename, note, tag, delete, restore, import."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from specview.commands.arguments import Parser, whole
from specview.commands.run_files import add_export_flags, read_all, wanted_forms, write_forms
from specview.commands.summary import compare_table, run_summary
from specview.commands.terminal import ProgressLine, figure, pairs, safe_text, table, write_document
from specview.errors import SpecviewError, UsageError
from specview.files.atomic import OutputFile
from specview.files.schema import Json, dumps
from specview.library.beside import beside_document, lay_beside
from specview.library.exports import Recorded
from specview.library.library import TRASH_DAYS, Entry, RunLibrary
from specview.library.repeat import command_line
from specview.library.replay import trace_document

_HELP = f"""\
usage: specview runs [options] COMMAND ...

The runs library: every finished run of the window, of run and of compare, prompts included, kept in your own data
folder. A RUN is an id or the beginning of one, a name, `last`, `last~1` (the one before), ..., or a trace file.

commands:
  list [--search WORDS]         what there is, newest first; --trash: what was deleted
  show RUN [RUN ...]            figures, prompt and how to repeat it; of several runs, their lanes in one table
  export RUN [RUN ...] FORMS    --json, --csv (a row per round), --parquet, --markdown (with the protocol) FILE
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
    command = _COMMANDS.get(first)
    if command is None:
        raise UsageError(f"specview runs has no {first!r}.", f"It has: {', '.join(_COMMANDS)}.")
    return command(list(rest), RunLibrary())


def _parser(name: str, description: str, operands: str = "") -> Parser:
    parser = Parser(f"specview runs {name}", description)
    parser.usage = f"specview runs {name} {operands}[options]".replace("  ", " ")
    return parser


# -- looking -------------------------------------------------------------------------------------------------


def _list(argv: Sequence[str], library: RunLibrary) -> int:
    parser = _parser("list", "List the kept runs, newest first.")
    parser.add_argument("--search", metavar="WORDS", default="", help="only those with all these words in name, note, tags, "
                        "prompt, model or method")  # fmt: skip
    parser.add_argument("--limit", type=whole, default=50, help="at most so many (default 50); 0 is all")
    parser.add_argument("--trash", action="store_true", help="what was deleted")
    parser.add_argument("--json", metavar="FILE", help="write the list as JSON; - is standard output")
    arguments = parser.parse_args(argv)
    if arguments.limit < 0:
        raise UsageError(f"limit is {arguments.limit}.", "Use 1 or more, or 0 for all.")
    progress = ProgressLine(sys.stderr)
    try:
        entries = library.scan(trash=arguments.trash, tell=progress.show)
    finally:
        progress.clear()
    found = [entry for entry in entries if entry.matches(arguments.search)]
    shown = found[: arguments.limit or None]
    if arguments.json is not None:
        _write_json(arguments.json, {"folder": str(library.folder), "total": len(found), "runs": [_entry_json(e) for e in shown]})
        if arguments.json == "-":
            return 0
    if not found:
        where = "the trash" if arguments.trash else f"the runs library ({library.folder})"
        words = f"Nothing in {where} has these words." if entries else f"There is nothing in {where} yet."
        sys.stdout.write(safe_text(f"{words}\n"))
        return 0
    rows = [["run", "recorded", "name", "lanes", "target", "fastest", "tok/s", "plain", "speedup", "ended", "size"]]
    rows += [_row(entry) for entry in shown]
    sys.stdout.write(table(rows, left=3))
    if len(shown) < len(found):
        sys.stdout.write(f"{len(shown)} of {len(found)} runs; --limit 0 shows all.\n")
    if not library.keeps and not arguments.trash:
        sys.stdout.write("Runs are not kept at present: specview runs keep on.\n")
    return 0


def _row(entry: Entry) -> list[str]:
    best = entry.best
    faster = entry.faster(best) if best is not None else None
    return [
        entry.id,
        when(entry.recorded_at),
        _cut(entry.title, 48),
        str(len(entry.lanes)) if entry.lanes else "-",
        _cut(entry.target, 24),
        _cut(best.name, 24) if best is not None else "-",
        figure(faster.tokens_per_s if faster else best.figures.get("decode_tokens_per_s")) if best is not None else "-",
        figure(faster.plain_tokens_per_s if faster else None),
        figure(faster.value if faster else None, 2, "x"),
        "unreadable" if entry.problem else entry.end,
        size_words(entry.size),
    ]


def _entry_json(entry: Entry) -> Json:
    return {
        "id": entry.id, "file": str(entry.path), "size_bytes": entry.size, "recorded_at": entry.recorded_at,
        "name": entry.title, "named": bool(entry.name), "note": entry.note, "tags": list(entry.tags),
        "workload": entry.workload or None, "prompt": entry.prompt, "target": entry.target, "engine": entry.engine,
        "device": entry.device, "end": entry.end or None, "problem": entry.problem or None,
        "deleted_at": entry.deleted_at or None,
        "lanes": [
            {"name": lane.name, "method": lane.method, "k": lane.k, "rule": lane.rule, "draft": lane.draft or None,
             "end": lane.end, "speedup": lane.speedup, "equal_to_plain": lane.equal, **lane.figures}
            for lane in entry.lanes
        ],
    }  # fmt: skip


def _show(argv: Sequence[str], library: RunLibrary) -> int:
    parser = _parser("show", "Show a run's figures, or the lanes of several runs in one table.", "RUN [RUN ...] ")
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--json", metavar="FILE", help="write the runs as documents; - is standard output")
    arguments = parser.parse_args(argv)
    forms = {"json": arguments.json} if arguments.json is not None else {}
    if forms:
        runs = write_forms(forms, lambda: read_all(arguments.runs, library, forms))
    else:
        runs = read_all(arguments.runs, library)
    if arguments.json != "-":
        sys.stdout.write(runs_text(runs))
    return 0


def runs_text(runs: Sequence[Recorded]) -> str:
    """Return recorded runs for a terminal: one with all that is known of it, several as a table of their lanes."""
    if len(runs) == 1:
        return _one_text(runs[0])
    lanes = lay_beside([(_short(run), run.trace, None) for run in runs])
    names = "".join(f"{_short(run)}: {_line(run.name)}\n" for run in runs)
    return compare_table(beside_document(lanes)) + names


def _one_text(run: Recorded) -> str:
    trace, entry = run.trace, run.entry
    about: dict[str, str] = {"run": _line(entry.id if entry is not None else str(run.path)), "name": _line(run.name)}
    recorded = trace.run.get("recorded_at")
    if isinstance(recorded, str):
        about["recorded"] = _line(when(recorded))
    if entry is not None and entry.tags:
        about["tags"] = _line(", ".join(entry.tags))
    about["prompt"] = _cut(_line(trace.prompt_text), 100) + f"  ({len(trace.prompt_ids)} tokens)"
    document = trace_document(trace)
    lanes: list[Mapping[str, Any]] = document["lanes"]
    parts = [pairs(about), run_summary(lanes[0]) if len(lanes) == 1 else compare_table(document)]
    unfinished = [record.name for record in trace.records if record.end is None]
    if unfinished:
        parts.append(
            f"The recording ends early ({_line(', '.join(unfinished))} unfinished): the figures are of what there is.\n"
        )
    if entry is not None and entry.note:
        parts.append(f"{safe_text(entry.note)}\n")
    try:
        repeat = command_line(trace)
    except SpecviewError as error:
        parts.append(f"No command line of this specview repeats it: {_line(str(error))}\n")
    else:
        where = f" ({repeat.prompt_file}: its prompt, see specview runs export --markdown)" if repeat.prompt_file else ""
        parts.append(f"Repeat it{where}:\n  {safe_text(repeat.command)}\n")
        parts += [f"{_line(note)}\n" for note in repeat.notes]
    return "\n".join(parts)


def _export(argv: Sequence[str], library: RunLibrary) -> int:
    parser = _parser("export", "Write runs to files.", "RUN [RUN ...] ")
    parser.add_argument("runs", nargs="+", metavar="RUN")
    add_export_flags(parser)
    arguments = parser.parse_args(argv)
    forms = wanted_forms(arguments)
    if not forms:
        raise UsageError("no form is given.", "Give --json, --csv, --parquet or --markdown FILE.")
    write_forms(forms, lambda: read_all(arguments.runs, library, forms))
    return 0


# -- changing ------------------------------------------------------------------------------------------------


def _rename(argv: Sequence[str], library: RunLibrary) -> int:
    parser = _parser("rename", "Give a run a name; '' takes it away.", "RUN NAME ")
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("name", metavar="NAME")
    arguments = parser.parse_args(argv)
    library.describe(library.find(arguments.run).id, name=arguments.name)
    return 0


def _note(argv: Sequence[str], library: RunLibrary) -> int:
    parser = _parser("note", "Set a run's note; '' takes it away, - reads it from standard input.", "RUN TEXT ")
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("text", metavar="TEXT")
    arguments = parser.parse_args(argv)
    text = sys.stdin.read() if arguments.text == "-" else arguments.text
    library.describe(library.find(arguments.run).id, note=text)
    return 0


def _tag(argv: Sequence[str], library: RunLibrary) -> int:
    parser = _parser("tag", "Set a run's tags; without any, it has none.", "RUN [TAG ...] ")
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("tags", metavar="TAG", nargs="*")
    arguments = parser.parse_args(argv)
    library.describe(library.find(arguments.run).id, tags=arguments.tags)
    return 0


def _delete(argv: Sequence[str], library: RunLibrary) -> int:
    parser = _parser("delete", f"Move runs to the trash, where they stay for {TRASH_DAYS} days.", "RUN [RUN ...] ")
    parser.add_argument("runs", nargs="+", metavar="RUN")
    arguments = parser.parse_args(argv)
    entries = library.scan()
    found = [library.find(ref, entries=entries) for ref in arguments.runs]
    moved = library.delete([entry.id for entry in found])
    library.empty_trash(TRASH_DAYS)
    if not moved:  # another program was faster
        raise SpecviewError("these runs are gone already.", "specview runs list --trash shows what was deleted.")
    sys.stdout.write(f"{', '.join(moved)} in the trash. Back again: specview runs restore {' '.join(moved)}\n")
    return 0


def _restore(argv: Sequence[str], library: RunLibrary) -> int:
    parser = _parser("restore", "Bring runs back from the trash; without a name, the one deleted last.", "[RUN ...] ")
    parser.add_argument("runs", nargs="*", metavar="RUN")
    arguments = parser.parse_args(argv)
    entries = library.scan(trash=True)
    found = [library.find(ref, trash=True, entries=entries) for ref in arguments.runs or ["last"]]
    back = library.restore([entry.id for entry in found])
    if not back:
        raise SpecviewError("these runs are no longer in the trash.", "specview runs list shows what there is.")
    sys.stdout.write(f"{', '.join(back)} back in the library.\n")
    return 0


def _empty_trash(argv: Sequence[str], library: RunLibrary) -> int:
    _parser("empty-trash", "Remove what was deleted, for good.").parse_args(argv)
    gone = library.empty_trash()
    sys.stdout.write(f"{gone} {'run' if gone == 1 else 'runs'} removed.\n")
    return 0


def _import(argv: Sequence[str], library: RunLibrary) -> int:
    parser = _parser("import", "Copy traces from elsewhere into the library.", "FILE [FILE ...] ")
    parser.add_argument("files", nargs="+", metavar="FILE")
    progress = ProgressLine(sys.stderr)
    for name in parser.parse_args(argv).files:
        try:
            entry = library.take_in(Path(name), partial(progress.show, f"Reading {name}"))
        finally:
            progress.clear()
        sys.stdout.write(safe_text(f"{entry.id}  {_line(entry.title)}\n"))
    return 0


def _keep(argv: Sequence[str], library: RunLibrary) -> int:
    parser = _parser("keep", "Whether finished runs, prompts included, are kept from now on.", "[on|off] ")
    parser.add_argument("choice", nargs="?", choices=("on", "off"))
    choice = parser.parse_args(argv).choice
    if choice is not None:
        library.set_keeps(choice == "on")
    sys.stdout.write(safe_text(f"Runs are {'' if library.keeps else 'not '}kept, in {library.folder}.\n"))
    return 0


def _where(argv: Sequence[str], library: RunLibrary) -> int:
    _parser("where", "Print the library's folder.").parse_args(argv)
    sys.stdout.write(f"{library.folder}\n")
    return 0


_COMMANDS: Mapping[str, Callable[[Sequence[str], RunLibrary], int]] = {
    "list": _list, "show": _show, "export": _export, "rename": _rename, "note": _note, "tag": _tag, "delete": _delete,
    "restore": _restore, "empty-trash": _empty_trash, "import": _import, "keep": _keep, "where": _where,
}  # fmt: skip


# -- words ---------------------------------------------------------------------------------------------------


def when(recorded_at: str) -> str:
    """An ISO 8601 time as local date and minute; as it stands where it is none."""
    try:
        return datetime.fromisoformat(recorded_at).astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return _cut(recorded_at, 20)


def size_words(size: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _short(run: Recorded) -> str:
    return run.entry.id.rpartition("-")[2] if run.entry is not None else run.path.stem


def _line(text: str) -> str:
    return " ".join(safe_text(text).split())


def _cut(text: str, longest: int) -> str:
    text = _line(text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _write_json(name: str, document: Json) -> None:
    text = dumps(document, indent=1) + "\n"
    if name == "-":
        write_document(text)
        return
    with OutputFile(name, "JSON document") as file:
        file.write(text)
