"""What the window and the engine thread tell each other, beside a race's own events. No Qt."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specview.decoding.interfaces import Declared
from specview.settings.events import Event
from specview.settings.run import RunSettings

ShouldStop = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class JobProgress:
    """How far a job has come: what a job tells of itself in words, with a fraction 0..1 (None while unknown)."""

    text: str
    fraction: float | None = None

    @property
    def words(self) -> str:
        """In one line."""
        return self.text if self.fraction is None else f"{self.text} {100 * self.fraction:.0f}%"


@dataclass(frozen=True, slots=True)
class Tell:
    """What a job's work tells with: tell(anything its view understands), or tell.progress(words, fraction)."""

    put: Callable[[Any], None]

    def __call__(self, news: Any) -> None:
        """Tell the view something."""
        self.put(news)

    def progress(self, text: str, fraction: float | None = None) -> None:
        """Tell how far it is."""
        self.put(JobProgress(text, fraction))


Work = Callable[[Any, Tell, ShouldStop], Any]
"""A long piece of work on the engine thread: (pool of loaded models, tell, should_stop) -> result; may raise Stopped."""


# -- what the window wants -------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Command:
    """A wish, with its own stop flag; `EngineThread.send` gives it its run id, but for one that goes on with a run."""

    run_id: int = -1
    stop: threading.Event = field(default_factory=threading.Event)

    @property
    def words(self) -> str:
        """What it is called."""
        return type(self).__name__.lower()


@dataclass(slots=True)
class Preload(Command):
    """Load libraries and models ahead of the first run."""

    settings: RunSettings


@dataclass(slots=True)
class Count(Command):
    """Tell the prompt's length in tokens."""

    settings: RunSettings


@dataclass(slots=True)
class Run(Command):
    """Run a race; the one before it is closed first."""

    settings: RunSettings


@dataclass(slots=True)
class Continue(Command):
    """Go on with the race `run_id` past its limit; its events keep that id."""

    max_tokens: int


@dataclass(slots=True)
class FollowUp(Command):
    """Run a race on the next turn of the conversation, with everything else from `settings`."""

    text: str
    settings: RunSettings


@dataclass(slots=True)
class RunJob(Command):
    """Do a long piece of work; of `settings`, if given, the target is told about afterwards."""

    name: str
    work: Work
    settings: RunSettings | None = None

    @property
    def words(self) -> str:
        """What it is called."""
        return self.name


RACES = (Run, Continue, FollowUp)
"""The commands that race."""


# -- what the engine thread tells ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommandDone:
    """A command is over, however it ended; the thread is free for the next one."""

    run_id: int
    command: Command


@dataclass(frozen=True, slots=True)
class PreloadEnded:
    """Libraries and models are in memory, or message says in one line why not ('' when stopped)."""

    run_id: int
    ready: bool
    message: str = ""


@dataclass(frozen=True, slots=True)
class TokensCounted:
    """Prompt length in tokens with the chat template around it; None where it cannot be told now."""

    run_id: int
    count: int | None


@dataclass(frozen=True, slots=True)
class SettingsTaken:
    """A follow-up turn runs with these settings: the conversation so far is in them."""

    run_id: int
    settings: RunSettings


@dataclass(frozen=True, slots=True)
class TargetKnown:
    """What a loaded target says: the device it is on, method -> why it cannot draft here, and what its files declare."""

    run_id: int
    engine: str
    target: str
    device: str
    problems: Mapping[str, str]
    declared: Declared = Declared()


@dataclass(frozen=True, slots=True)
class JobNews:
    """Something that a job told: a JobProgress, or whatever its view understands."""

    run_id: int
    news: Any


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job is over: its result, or message says in one line why there is none.

    stopped: it was stopped; the result may then be what there was by then.
    """

    run_id: int
    job: str
    result: Any = None
    message: str = ""
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class RunKept:
    """A race is over and kept at `path`; or trouble says in one line why it is not, or not whole."""

    run_id: int
    path: Path | None = None
    trouble: str = ""


WindowEvent = (
    Event | CommandDone | PreloadEnded | TokensCounted | SettingsTaken | TargetKnown | JobNews | JobEnded | RunKept
)


def unforeseen(error: Exception) -> str:
    """Name an error that nobody foresaw, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
