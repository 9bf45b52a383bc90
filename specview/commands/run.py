"""`specview run`: one prompt, one method, headless. The text as it comes, then its figures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specview.commands.arguments import Parser, add_shared_flags, lane_keys_help
from specview.commands.branching import add_branch_flag, parsed
from specview.commands.outputs import add_keep_flag
from specview.commands.running import STOPPED_CODE, Running, running
from specview.commands.terminal import legend, paint, print_report, round_text, safe_text, wants_colour
from specview.drafting.registry import DEFAULT_METHOD
from specview.errors import SpecviewError, UsageError
from specview.files.documents import run_document
from specview.library.reports import run_report
from specview.racing.resolve import checked_run
from specview.settings.branch import known_branch
from specview.settings.events import Event, Failed, LaneEnded, LaneRound, Progress, RaceStarted
from specview.settings.run import RunSettings

_DESCRIPTION = """\
Decode one prompt with one method and print the text and its figures.
Without flags: the bundled target and draft, the method draft-model, the workload chat."""

_EXAMPLES = """\
examples:
  specview run --prompt "Why is the sky blue?"
  specview run --method prompt-lookup --k 8 --workload extract --json out.json
  cat notes.txt | specview run --prompt-file - --method plain --max-tokens 256
  specview run --branch "last:draft-model@12= cat" --temperature 0.8   # from there, with another token"""


def make_parser() -> Parser:
    """Make the command's parser."""
    parser = Parser("specview run", _DESCRIPTION, f"{_EXAMPLES}\n\n{lane_keys_help()}")
    add_shared_flags(parser)
    add_branch_flag(parser)
    add_keep_flag(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit code."""
    arguments, settings = parsed(make_parser(), argv, (DEFAULT_METHOD,))
    if len(settings.lanes) != 1:
        raise UsageError(f"{len(settings.lanes)} methods.", "run takes one; specview compare takes several.")
    settings = checked_run(replace(settings, baseline=False))
    with running(arguments) as run:
        return _run(settings, run)


class _Screen:
    """Follows the events of a run: text, progress, the trace, how it ended."""

    def __init__(self, run: Running) -> None:
        self.colour = wants_colour(sys.stdout) and not run.outputs.to_stdout
        self.facts: dict[str, Any] = {}
        self.ended: LaneEnded | None = None
        self.failure: Failed | None = None
        self.gone: OSError | None = None
        self._run = run

    def take(self, event: Event) -> None:
        """Handle one event."""
        self._run.outputs.take(event)
        self._run.outputs.keep(event)
        if isinstance(event, Progress):
            self._run.progress.show(event.text, event.fraction)
        elif isinstance(event, RaceStarted):
            self.facts = dict(event.facts)
            branch = known_branch(event.facts)
            if branch is not None and self.colour:
                self._run.progress.clear()
                self.write(paint(safe_text(branch.given), "given"))
        elif isinstance(event, LaneRound):
            self._run.progress.clear()
            self.write(round_text(event.round, colour=self.colour))
        elif isinstance(event, LaneEnded):
            self.ended = event
        elif isinstance(event, Failed):
            self.failure = event

    def write(self, text: str) -> None:
        """Write text as it comes, unless the document has the stage; a reader who left or a full disk stops the run."""
        if self.gone or self._run.outputs.to_stdout:
            return
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as error:
            self.gone = error
            self._run.should_stop.asked = True


def _run(settings: RunSettings, run: Running) -> int:
    from specview.racing.race import Race

    screen = _Screen(run)
    race = Race(settings, 1, run.models)
    try:
        race.run(screen.take, run.should_stop)
        record = race.records[0] if race.records else None
        text = record.text if record is not None else ""
        if settings.observe == "off":
            screen.write(safe_text(text))  # no round had its text
    finally:
        race.close()
        run.close()
    ended = screen.ended
    if record is None or ended is None:
        if screen.gone:
            raise screen.gone
        if screen.failure:
            raise SpecviewError(screen.failure.message, usage=screen.failure.usage)
        raise KeyboardInterrupt  # stopped before the lane began
    document = run_document(record, screen.facts, ended.metrics, prompt=settings.prompt)
    document["output"]["text"] = text
    run.outputs.document(document)
    if screen.gone:
        raise screen.gone
    if ended.end == "stopped" and not record.rounds:
        raise KeyboardInterrupt  # in prefill: nothing to print but that
    if not run.outputs.to_stdout and record.rounds:
        sys.stdout.write("\n" if text.endswith("\n") or not text else "\n\n")
        if screen.colour and ended.metrics.proposed:
            sys.stdout.write(legend() + "\n\n")
        print_report(run_report(document))
    if ended.end == "error" or race.trouble:
        raise SpecviewError(safe_text(ended.error or race.trouble))
    return STOPPED_CODE if ended.end == "stopped" else 0
