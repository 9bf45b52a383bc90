"""Recorded runs on the command line: which one is meant, and the files that exports go to."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from specview.commands.outputs import Outputs
from specview.decoding.ledger import RunRecord
from specview.errors import UsageError
from specview.files.reader import Trace, read_trace
from specview.library.export_rounds import load_arrow
from specview.library.exports import FORMS, WRITTEN, Recorded, export_data, kept_for
from specview.library.library import Entry, RunLibrary


def locate(ref: str, library: RunLibrary, entries: Sequence[Entry] | None = None) -> tuple[Path, Entry | None]:
    """Return the file that `ref` names, and its entry: a path first, else a run of the library.

    Raises UsageError where it is neither.
    """
    path = Path(ref)
    try:
        there = os.path.lexists(path)
    except (OSError, ValueError):
        there = False
    if there and not (path.is_dir() and os.sep not in ref):
        return path, None
    try:
        entry = library.find(ref, entries=entries)
    except UsageError as error:
        if os.sep in ref or ref.endswith(".jsonl"):
            raise UsageError(f"there is no file {ref!r}.", "Give a trace file, or a run that specview runs list shows.") from None
        raise error
    return entry.path, entry


def read_ref(ref: str) -> Trace:
    """Read the trace file or the run of the library that `ref` names, for its figures; raises SpecviewError, one line."""
    path, _ = locate(ref, RunLibrary())
    return read_trace(path, keep="figures")


def lane_of(asked: str, records: Sequence[RunRecord]) -> int:
    """The index of the lane that is named, by its name or its number (0 is the first); raises UsageError."""
    names = [record.name for record in records]
    if asked in names:
        return names.index(asked)
    if asked.isdecimal() and int(asked) < len(names):
        return int(asked)
    listed = ", ".join(f"{index} {name}" for index, name in enumerate(names)) or "none"
    raise UsageError(f"the trace has no lane {asked!r}.", f"Its lanes: {listed}.")


def read_all(refs: Sequence[str], library: RunLibrary, forms: Iterable[str] = ()) -> list[Recorded]:
    """Read the runs that are named, for these forms; raises SpecviewError, one line, for the first that cannot be."""
    entries: list[Entry] | None = None
    found: list[Recorded] = []
    for ref in refs:
        if entries is None and not os.path.lexists(ref):
            entries = library.scan()
        path, entry = locate(ref, library, entries)
        found.append(Recorded(ref, path, read_trace(path, keep=kept_for(forms)), entry))
    return found


def write_runs(arguments: argparse.Namespace, refs: Sequence[str], library: RunLibrary) -> tuple[list[Recorded], bool]:
    """Read the runs and write them in every form that was asked for; also whether standard output is taken by one.

    Files are known to be writable before anything is read. Raises SpecviewError; a file that could not be written whole is
    left as it was.
    """
    with Outputs(arguments, WRITTEN, [form for form in WRITTEN if FORMS[form].text], {}) as outputs:
        wanted = [form for form in WRITTEN if outputs.wants(form)]
        if "parquet" in wanted:
            load_arrow()
        runs = [replace(run, called=getattr(arguments, "title", "")) for run in read_all(refs, library, wanted)]
        for form in wanted:
            outputs.write(form, export_data(form, runs))
    return runs, outputs.to_stdout
