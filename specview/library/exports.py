"""Exports of recorded runs, one or several, in every form: JSON, CSV, Parquet, Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specview.errors import SpecviewError
from specview.files.atomic import OutputFile
from specview.files.reader import Keep, Trace
from specview.files.schema import Json, dumps
from specview.library.export_protocol import protocol_markdown
from specview.library.export_rounds import load_arrow, rounds_csv, rounds_parquet
from specview.library.library import Entry
from specview.library.replay import trace_document

FORMS: Mapping[str, str] = {
    "json": "the runs as documents, as run --json and compare --json have them",
    "csv": "a row per round",
    "parquet": "a row per round, typed; needs pyarrow",
    "markdown": "results and a protocol that lets somebody else repeat it",
}
"""Form of an export -> what it holds."""


def kept_for(forms: Iterable[str]) -> Keep:
    """What these forms need of a trace's rounds; without any, figures and texts are shown."""
    return "all" if "json" in forms else "figures"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run to be shown or exported: its trace, and what the library knows of it (None for a file from elsewhere)."""

    ref: str
    path: Path
    trace: Trace
    entry: Entry | None = None

    @property
    def name(self) -> str:
        """What it is called in tables: its title, else the file's name."""
        return self.entry.title if self.entry is not None else self.path.stem

    @property
    def key(self) -> str:
        """What tells it from others: its id, else the file's name."""
        return self.entry.id if self.entry is not None else self.path.stem


def recorded_document(run: Recorded) -> Json:
    """Return a run as a document: what the library says of it, and its lanes."""
    about: Json = {}
    if run.entry is not None:
        entry = run.entry
        about = {"id": entry.id, "name": entry.title, "note": entry.note, "tags": list(entry.tags)}
    recorded_at = run.trace.run.get("recorded_at")
    return {**about, "recorded_at": recorded_at if isinstance(recorded_at, str) else None, **trace_document(run.trace, rounds=True)}


def export_data(form: str, runs: Sequence[Recorded]) -> str | bytes:
    """Runs in one of the forms; several are {"runs": [...]} in JSON, pages one after the other in Markdown."""
    rounds = [(run.key, run.trace) for run in runs]
    if form == "json":
        documents = [recorded_document(run) for run in runs]
        return dumps(documents[0] if len(documents) == 1 else {"runs": documents}, indent=1) + "\n"
    if form == "csv":
        return rounds_csv(rounds)
    if form == "parquet":
        return rounds_parquet(rounds)
    return "\n---\n\n".join(
        protocol_markdown(run.trace, title=run.name, run_id=run.key, note=run.entry.note, tags=run.entry.tags)
        if run.entry is not None else protocol_markdown(run.trace, title=run.name, run_id=run.key)
        for run in runs
    )


def export_runs(form: str, path: Path, runs: Sequence[Recorded]) -> None:
    """Write runs in one form; raises SpecviewError, leaving an earlier file as it was."""
    if form not in FORMS:
        raise SpecviewError(f"there is no export {form!r}.", f"Exports: {', '.join(FORMS)}.")
    if form == "parquet":
        load_arrow()
    with OutputFile(path, f"{form} export") as file:
        file.write(export_data(form, runs))
