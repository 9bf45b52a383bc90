"""`specview export`: runs as files to be shown: a page that plays it, Markdown, plots, a picture, an animation, a video; or as data."""

from __future__ import annotations

from collections.abc import Sequence

from specview.commands.arguments import Parser
from specview.commands.run_files import write_runs
from specview.errors import UsageError
from specview.library.exports import FORMS, WRITTEN
from specview.library.library import RunLibrary

_DESCRIPTION = """\
Write runs to files; no model is loaded and no display is needed. A RUN is an id or the beginning of one, a name, `last`,
`last~1`, ... (specview runs list), or a trace file. Several runs go into one file of Markdown or data."""

_EXAMPLES = """\
examples:
  specview export last --html race.html
  specview export last --markdown - | wl-copy
  specview runs export last last~1 --csv rounds.csv"""


def main(argv: Sequence[str], prog: str = "specview export") -> int:
    """Run the command; return its exit code."""
    parser = Parser(prog, _DESCRIPTION, _EXAMPLES)
    parser.usage = f"{prog} RUN [RUN ...] --FORM FILE [options]"
    parser.add_argument("runs", nargs="+", metavar="RUN")
    for name in WRITTEN:
        form = FORMS[name]
        dash = "; - is standard output" if form.text else ""
        parser.add_argument(f"--{name}", metavar="FILE", help=f"write {form.what}{dash}")
    parser.add_argument("--title", metavar="TEXT", default="", help="what the run is called there (default: its name)")
    arguments = parser.parse_args(argv)
    asked = [name for name in WRITTEN if getattr(arguments, name) is not None]
    if not asked:
        raise UsageError("no form is given.", f"Give one of {', '.join(f'--{name}' for name in WRITTEN)} with a file's name.")
    alone = [name for name in asked if not FORMS[name].several]
    if alone and len(arguments.runs) > 1:
        raise UsageError(f"--{alone[0]} shows one run.", "Name one, or give --markdown, --json, --csv or --parquet.")
    write_runs(arguments, arguments.runs, RunLibrary())
    return 0
