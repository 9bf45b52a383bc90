"""`specview compare`: several lanes and plain decoding on one prompt, raced; a table of their figures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specview.commands.arguments import (
    Parser,
    add_shared_flags,
    lane_keys_help,
    prompts_of,
    settings_of,
    whole,
)
from specview.commands.outputs import Outputs, add_keep_flag
from specview.commands.running import STOPPED_CODE, StopRequest, stop_on_signals
from specview.commands.summary import compare_table, prompt_set_text
from specview.commands.terminal import ProgressLine, safe_text
from specview.drafting.registry import FIRST_METHODS
from specview.errors import SpecviewError, UsageError
from specview.files.documents import compare_document
from specview.files.schema import Json
from specview.library.exporters import compare_csv, compare_markdown
from specview.library.keeping import SetParts
from specview.racing.resolve import checked_run
from specview.racing.workloads import Workload
from specview.settings.events import Event, LaneRound, Progress, RaceStarted
from specview.settings.run import RunSettings

if TYPE_CHECKING:
    from specview.experiments.prompt_set import PromptSetResult

MAX_REPEATS = 1000

_DESCRIPTION = """\
Race several methods and plain decoding on one prompt and print a table of their figures.
With --prompts every prompt of the file is a race, and the tables are by request and by workload.
Without flags: the bundled target and draft; plain, draft-model and prompt-lookup; the workload chat."""

_EXAMPLES = """\
examples:
  specview compare --workload code-edit --json out.json
  specview compare --method draft-model --lane "prompt-lookup,k=8,match=last" --repeats 5
  specview compare --lane "draft-model,rule=match" --lane draft-model --temperature 0.8 --seed 1
  specview compare --prompts mine.jsonl --lane "draft-model,k=3" --csv requests.csv   # every line a race"""


def make_parser() -> Parser:
    """Make the command's parser."""
    parser = Parser("specview compare", _DESCRIPTION, f"{_EXAMPLES}\n\n{lane_keys_help()}")
    add_shared_flags(parser, sets=True)
    parser.add_argument("--repeats", type=whole, default=1, help="run it so often, interleaved, and print medians")
    add_keep_flag(parser)
    parser.add_argument("--csv", metavar="FILE", help="write the table as CSV")
    parser.add_argument("--markdown", metavar="FILE", help="write the table as Markdown")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    arguments = make_parser().parse_args(argv)
    if not 1 <= arguments.repeats <= MAX_REPEATS:
        raise UsageError(f"repeats is {arguments.repeats}.", f"Use 1 to {MAX_REPEATS}.")
    if arguments.prompts is not None and arguments.trace is not None:
        raise UsageError("--trace holds one race, and --prompts makes many.", "Leave out --trace, or use --json.")
    settings = checked_run(settings_of(arguments, FIRST_METHODS))
    if arguments.prompts is not None:
        prompts = prompts_of(arguments)
        with Outputs(arguments) as outputs, stop_on_signals() as should_stop:
            return _compare_set(settings, prompts, arguments.repeats, outputs, should_stop)
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
        self._outputs.keep(event, f"{self._repeat} of {self._repeats}" if self._repeats > 1 else "")


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


class _SetWatcher:
    """Follows the races of a prompt set: the progress line, and each race's part in the runs library."""

    def __init__(self, outputs: Outputs, settings: RunSettings, prompts: Workload, repeats: int) -> None:
        self.progress = ProgressLine(sys.stderr)
        self._outputs = outputs
        self.parts = SetParts(prompts.prompts, repeats)
        self._total = len(prompts.prompts) * repeats
        self._done = 0
        self._wanted = settings.max_tokens * len(settings.lanes)
        self._emitted = 0

    def take(self, event: Event) -> None:
        """Handle one event of the race under way."""
        if isinstance(event, RaceStarted):
            self._emitted = 0
        elif isinstance(event, LaneRound):
            self._emitted += len(event.round.emitted)
            fraction = (self._done + min(1.0, self._emitted / self._wanted)) / self._total
            self.progress.show(self.parts.part.capitalize(), min(1.0, fraction))
        elif isinstance(event, Progress) and event.phase in ("import", "load", "convert", "load-draft", "warm-up"):
            self.progress.show(event.text, event.fraction)
        self._outputs.keep(self.parts.told(event), self.parts.part)

    def after(self, result: PromptSetResult, done: int, total: int) -> None:
        """A race is over."""
        self._done = done
        self.progress.show(self.parts.part.capitalize(), done / total)


def _compare_set(
    settings: RunSettings, prompts: Workload, repeats: int, outputs: Outputs, should_stop: StopRequest
) -> int:
    from specview.experiments.prompt_set import (
        prompt_set_csv,
        prompt_set_document,
        prompt_set_markdown,
        run_prompt_set,
    )
    from specview.racing.pool import ModelPool

    watcher = _SetWatcher(outputs, settings, prompts, repeats)
    models = ModelPool()
    try:
        result = run_prompt_set(
            settings, prompts, repeats, models, watcher.take, watcher.after, should_stop, on_begin=watcher.parts.begin
        )
    finally:
        watcher.progress.clear()
        models.close()
    if not result.requests:  # stopped before any race gave something
        raise KeyboardInterrupt
    try:
        outputs.document(prompt_set_document(result))
        if outputs.wants("csv"):
            outputs.text("csv", prompt_set_csv(result))
        if outputs.wants("markdown"):
            outputs.text("markdown", prompt_set_markdown(result))
    finally:  # a full disk does not take the table too
        if not outputs.to_stdout:
            sys.stdout.write(prompt_set_text(result))
    if len(result.failures) == len(result.requests):
        raise SpecviewError(f"no request ran. The first: {result.failures[0].error}")
    for lane in result.requests[-1].lanes[1:]:
        if lane.error and not any(one.metrics for request in result.requests for one in request.lanes if one.name == lane.name):
            raise SpecviewError(f"lane {lane.name}: {lane.error}")
    if result.end == "stopped":
        return STOPPED_CODE
    if result.failures:
        first = result.failures[0]
        raise SpecviewError(
            f"{len(result.failures)} of {len(result.requests)} requests did not run. The first, {first.number}: {first.error}"
        )
    for request in result.requests:
        for lane in request.lanes:
            if lane.error:  # in this request, or in one of its repeats
                raise SpecviewError(f"request {request.number}, lane {lane.name}: {lane.error}")
    return 0


def _exit_code(document: Json, *, stopped: bool) -> int:
    """Return 130 when the user stopped it, else 0; raise the first lane's error, of whichever repeat."""
    for lane in document["lanes"]:
        if lane["output"]["end"] == "error" or lane.get("error"):
            raise SpecviewError(f"lane {lane['name']}: {lane.get('error', 'it ended by an error')}")
    return STOPPED_CODE if stopped else 0
