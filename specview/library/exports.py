"""Exports of recorded runs in every form: data and texts are made here, what is drawn by gui/share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specview.errors import SpecviewError
from specview.files.atomic import OutputFile
from specview.files.reader import Keep, Trace
from specview.files.schema import Json, dumps
from specview.library.export_protocol import run_markdown
from specview.library.export_rounds import load_arrow, rounds_csv, rounds_parquet
from specview.library.library import Entry
from specview.library.replay import trace_document
from specview.library.share_page import share_page


@dataclass(frozen=True, slots=True)
class Form:
    """A form of an export: what it holds, its names in menus and files.

    endings   of its files, the usual one first
    likely    it shows the likeliest tokens of each place
    several   several runs go into one file
    text      it can go to standard output
    drawn     gui/share draws it
    """

    what: str
    menu: str
    endings: tuple[str, ...]
    likely: bool = False
    several: bool = True
    text: bool = True
    drawn: bool = False


FORMS: Mapping[str, Form] = {
    "html": Form("one page that plays the race: tokens, figures, plots; no network", "HTML page that plays it", (".html",),
                 likely=True, several=False),
    "markdown": Form("the result in a sentence and a table, and a protocol that lets somebody else repeat it",
                     "Markdown with protocol", (".md",)),
    "svg": Form("the plots as drawings", "Plots as SVG", (".svg",), several=False, text=False, drawn=True),
    "png": Form("a picture of the finished race", "Picture", (".png",), several=False, text=False, drawn=True),
    "gif": Form("the race as it runs, to be shown anywhere", "Animated GIF", (".gif",), several=False, text=False, drawn=True),
    "video": Form("the race as it runs; needs OpenCV", "Video", (".webm", ".mp4"), several=False, text=False, drawn=True),
    "json": Form("the runs as documents, as run --json and compare --json have them", "JSON", (".json",), likely=True),
    "csv": Form("a row per round", "CSV, a row per round", (".csv",)),
    "parquet": Form("a row per round, typed; needs pyarrow", "Parquet, a row per round", (".parquet",), text=False),
}  # fmt: skip
"""Every form of an export by its name."""
WRITTEN = tuple(name for name, form in FORMS.items() if not form.drawn)
"""Those that are made here."""


def kept_for(forms: Iterable[str]) -> Keep:
    """What these forms need of a trace's rounds; without any, figures and texts are shown."""
    return "all" if any(FORMS[form].likely for form in forms) else "figures"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run to be shown or exported: its trace, what the library knows of it (None for a file from elsewhere), and what it is
    to be called there, where that is not its name.
    """

    ref: str
    path: Path
    trace: Trace
    entry: Entry | None = None
    called: str = ""

    @property
    def name(self) -> str:
        """What it is called in tables: its title, else the file's name."""
        return self.called or (self.entry.title if self.entry is not None else self.path.stem)

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
    """Runs in one of the forms WRITTEN, a page of one run alone; several are {"runs": [...]} in JSON, pages one after the other in Markdown."""
    rounds = [(run.key, run.trace) for run in runs]
    if form == "json":
        documents = [recorded_document(run) for run in runs]
        return dumps(documents[0] if len(documents) == 1 else {"runs": documents}, indent=1) + "\n"
    if form == "csv":
        return rounds_csv(rounds)
    if form == "parquet":
        return rounds_parquet(rounds)
    if form == "html":
        (run,) = runs
        return share_page(run.trace, **_said(run))
    return "\n---\n\n".join(run_markdown(run.trace, **_said(run)) for run in runs)


def _said(run: Recorded) -> dict[str, Any]:
    """What the user said of a run, for its pages."""
    entry = run.entry
    said = {} if entry is None else {"note": entry.note, "tags": entry.tags}
    return {"title": run.name, "run_id": run.key, **said}


def export_runs(form: str, path: Path, runs: Sequence[Recorded]) -> None:
    """Write runs in one form; raises SpecviewError, leaving an earlier file as it was."""
    if form not in WRITTEN:
        raise SpecviewError(f"there is no export {form!r}.", f"Exports: {', '.join(WRITTEN)}.")
    if form == "parquet":
        load_arrow()
    with OutputFile(path, f"{form} export") as file:
        file.write(export_data(form, runs))
