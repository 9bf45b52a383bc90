"""`specview compare`: several lanes and plain decoding on one prompt, raced; a table of their figures."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from specview.commands.arguments import (
    DEFAULT_METHODS,
    Parser,
    add_shared_flags,
    lane_keys_help,
    settings_of,
    whole,
)
from specview.commands.outputs import Outputs
from specview.commands.stopping import STOPPED_CODE, StopRequest, stop_on_signals
from specview.commands.summary import compare_table
from specview.commands.terminal import ProgressLine, safe_text
from specview.errors import SpecviewError, UsageError
from specview.racing.events import Event, LaneRound, Progress, RaceStarted
from specview.racing.settings import RunSettings
from specview.runs.documents import compare_document
from specview.runs.exporters import compare_csv, compare_markdown
from specview.runs.schema import Json

MAX_REPEATS = 1000

_DESCRIPTION = """\
Race several methods and plain decoding on one prompt and print a table of their figures.
Without flags: the bundled target and draft; plain, draft-model and prompt-lookup; the workload chat."""

_EXAMPLES = """\
examples:
  specview compare --workload code-edit --json out.json
  specview compare --method draft-model --lane "prompt-lookup,k=8,match=last" --repeats 5
  specview compare --lane "draft-model,rule=match" --lane draft-model --temperature 0.8 --seed 1"""


def make_parser() -> Parser:
    """Make the command's parser."""
    parser = Parser("specview compare", _DESCRIPTION, f"{_EXAMPLES}\n\n{lane_keys_help()}")
    add_shared_flags(parser)
    parser.add_argument("--repeats", type=whole, default=1, help="run it so often, interleaved, and print medians")
    parser.add_argument("--csv", metavar="FILE", help="write the table as CSV")
    parser.add_argument("--markdown", metavar="FILE", help="write the table as Markdown")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    arguments = make_parser().parse_args(argv)
    if not 1 <= arguments.repeats <= MAX_REPEATS:
        raise UsageError(f"repeats is {arguments.repeats}.", f"Use 1 to {MAX_REPEATS}.")
    settings = settings_of(arguments, DEFAULT_METHODS).checked()
    with Outputs(arguments) as outputs, stop_on_signals() as should_stop:
        return _compare(settings, arguments.repeats, outputs, should_stop)


class _Watcher:
    """Follows the events of a compare: the trace and the progress line."""

    def __init__(self, outputs: Outputs, settings: RunSettings, repeats: int) -> None:
        self.progress = ProgressLine(sys.stderr)
        self._outputs = outputs
        self._repeats = repeats
        self._repeat = 0
        self._wanted = settings.max_tokens * len(settings.lanes)
        self._emitted = 0

    def take(self, event: Event) -> None:
        """Handle one event."""
        if isinstance(event, Progress):
            self.progress.show(event.text, event.fraction)
        elif isinstance(event, RaceStarted):
            self._repeat += 1
            self._emitted = 0
        elif isinstance(event, LaneRound):
            self._emitted += len(event.round.emitted)
            which = f" {self._repeat}/{self._repeats}" if self._repeats > 1 else ""
            self.progress.show(f"Racing{which}", min(1.0, self._emitted / self._wanted))
        if self._repeat <= 1:  # a trace holds one race: the first
            self._outputs.take(event)


def _compare(settings: RunSettings, repeats: int, outputs: Outputs, should_stop: StopRequest) -> int:
    from specview.racing.compare import compare
    from specview.racing.pool import ModelPool

    watcher = _Watcher(outputs, settings, repeats)
    models = ModelPool()
    try:
        result = compare(settings, repeats, models, watcher.take, should_stop)
    finally:
        watcher.progress.clear()
        models.close()
    if not result.lanes:  # stopped before any lane began
        raise KeyboardInterrupt
    document = compare_document(result)
    try:
        outputs.document(document)
        if outputs.wants("csv"):
            outputs.text("csv", compare_csv(document))
        if outputs.wants("markdown"):
            outputs.text("markdown", compare_markdown(document))
    finally:  # a full disk does not take the table too
        if not outputs.to_stdout:
            sys.stdout.write(compare_table(document))
            if result.busy:
                sys.stdout.write(safe_text(result.busy) + "\n")
    if result.trouble:
        raise SpecviewError(f"lane {result.trouble}")
    return _exit_code(document, stopped=result.end == "stopped")


def _exit_code(document: Json, *, stopped: bool) -> int:
    """Return 130 when the user stopped it, else 0; raise the first lane's error."""
    for lane in document["lanes"]:
        if lane["output"]["end"] == "error":
            raise SpecviewError(f"lane {lane['name']}: {lane.get('error', 'it ended by an error')}")
    return STOPPED_CODE if stopped else 0
