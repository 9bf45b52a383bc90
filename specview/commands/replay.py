"""`specview replay`: the window on recorded traces, no model loaded; or their figures as text."""

from __future__ import annotations

from collections.abc import Sequence

from specview.commands.arguments import Parser
from specview.commands.run_files import locate, write_runs
from specview.commands.runs import runs_report
from specview.commands.terminal import print_report
from specview.errors import SpecviewError
from specview.library.library import RunLibrary, look_at

_DESCRIPTION = """\
Open recorded runs in the window, as they were when they ran; no model is loaded. Several are compared side by side.
A TRACE is a file written with --trace, or a run of the library (specview runs list): an id, a name, last, last~1, ..."""

_EXAMPLES = """\
examples:
  specview replay trace.jsonl
  specview replay last last~1
  specview replay --present last~2 last~1 last
  specview replay last --text"""


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    parser = Parser("specview replay", _DESCRIPTION, _EXAMPLES)
    parser.usage = "specview replay [options] TRACE [TRACE ...]"
    parser.add_argument("traces", nargs="+", metavar="TRACE")
    parser.add_argument("--present", action="store_true", help="show them to a room, one after the other, full screen (F11)")
    parser.add_argument("--text", action="store_true", help="print the figures instead of opening the window")
    parser.add_argument("--json", metavar="FILE", help="write the runs as documents instead; - is standard output")
    arguments = parser.parse_args(argv)
    library = RunLibrary()
    if arguments.text or arguments.json is not None:
        runs, taken = write_runs(arguments, arguments.traces, library)
        if arguments.text and not taken:
            print_report(runs_report(runs))
        return 0
    from specview.commands import window

    paths = []
    for ref in arguments.traces:
        path, _ = locate(ref, library)
        problem = look_at(path).get("problem")
        if problem:
            raise SpecviewError(str(problem))
        paths.append(path)
    try:
        window.check_display()
    except SpecviewError as error:
        raise SpecviewError(error.cause, f"As text: specview replay {arguments.traces[0]} --text.") from None
    return window.open_window(paths, present=arguments.present)
