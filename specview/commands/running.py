"""How a command does something long: its files, its progress line, Ctrl-C, the models, and the report at its end."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING

from specview.commands.outputs import Outputs
from specview.commands.terminal import ProgressLine, print_report
from specview.errors import Stopped
from specview.files.report import Report, report_markdown
from specview.settings.events import Event, LaneRound, Progress, RaceStarted

if TYPE_CHECKING:
    from specview.racing.pool import ModelPool

STOPPED_CODE = 130
"""Exit code of a run that the user stopped (128 + SIGINT)."""


class StopRequest:
    """Whether the user asked to stop; call it as `should_stop`."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        """Whether to stop now."""
        return self.asked


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a StopRequest; a second one raises KeyboardInterrupt at once."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # only the main thread may set handlers
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if request.asked:
            raise KeyboardInterrupt
        request.asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Running:
    """One command at work, made by `running`.

    outputs      the files that it was asked to write
    should_stop  whether the user asked to stop: to be looked at between rounds
    progress     the line on standard error
    """

    def __init__(self, outputs: Outputs, should_stop: StopRequest) -> None:
        self.outputs, self.should_stop = outputs, should_stop
        self.progress = ProgressLine(sys.stderr)

    @cached_property
    def models(self) -> ModelPool:
        """The models that it loads: closed with it."""
        from specview.racing.pool import ModelPool

        return ModelPool()

    def show(self, text: str, fraction: float | None = None) -> None:
        """Show what is under way; raises Stopped where the user asked to stop."""
        if self.should_stop():
            raise Stopped
        self.progress.show(text, fraction)

    def watch(self, wanted: int, repeats: int = 1) -> Callable[[Event], None]:
        """Follow a race that asks for so many tokens in all: its progress, the trace (of the first repeat), the runs library."""
        emitted = repeat = 0

        def take(event: Event) -> None:
            nonlocal emitted, repeat
            if isinstance(event, Progress):
                self.progress.show(event.text, event.fraction)
            elif isinstance(event, RaceStarted):
                repeat += 1
                emitted = 0
            elif isinstance(event, LaneRound):
                emitted += len(event.round.emitted)
                which = f" {repeat}/{repeats}" if repeats > 1 else ""
                self.progress.show(f"Racing{which}", min(1.0, emitted / wanted))
            if repeat <= 1:
                self.outputs.take(event)
            self.outputs.keep(event, f"{repeat} of {repeats}" if repeats > 1 else "")

        return take

    def close(self) -> None:
        """Take the progress line away and free the models."""
        self.progress.clear()
        if models := self.__dict__.pop("models", None):
            models.close()

    def end(
        self, report: Report | None, *, stopped: bool = False, files: Mapping[str, Callable[[], str]] | None = None
    ) -> int:
        """Write and print what there is; return the exit code. None, when it was stopped before there was anything, raises.

        files: what --csv and --markdown get in place of the report's first table and its Markdown.
        """
        self.close()
        if report is None:
            raise KeyboardInterrupt
        texts: dict[str, Callable[[], str]] = {"csv": lambda: report.csv, "markdown": lambda: report_markdown(report)}
        try:
            self.outputs.document(report.data)
            for what, text in (texts | dict(files or {})).items():
                if self.outputs.wants(what):
                    self.outputs.write(what, text())
        finally:  # a full disk does not take the text too
            if not self.outputs.to_stdout:
                print_report(report)
        return STOPPED_CODE if stopped else 0


@contextmanager
def running(arguments: argparse.Namespace) -> Iterator[Running]:
    """Open the files that the arguments ask for and listen for Ctrl-C while a command is at work."""
    with Outputs(arguments) as outputs, stop_on_signals() as should_stop:
        run = Running(outputs, should_stop)
        try:
            yield run
        finally:
            run.close()
