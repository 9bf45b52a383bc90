"""The one thread that owns all models, sessions and races; it imports no Qt.

Commands go in through a queue, events come out through a deque that the window drains on timers.
Every command has its own stop flag, so a late Stop never hits the next command. An exception that
nobody foresaw becomes a `Failed` event and a line in the log; the thread lives on.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from specview.decoding.interfaces import Declared
from specview.errors import SpecviewError, Stopped
from specview.gui.link.messages import (
    CommandDone,
    JobEnded,
    JobNews,
    Kind,
    PreloadEnded,
    RunKept,
    SettingsTaken,
    ShouldStop,
    TargetKnown,
    Tell,
    TokensCounted,
    WindowEvent,
    Work,
    unforeseen,
)
from specview.library.keeping import RunKeeper
from specview.library.library import RunLibrary
from specview.settings.events import Event, Failed, Progress, RaceEnded
from specview.settings.run import RunSettings

log = logging.getLogger(__name__)

def keep_in_library(settings: RunSettings, on_trouble: Callable[[str], None]) -> RunKeeper | None:
    """Keep the coming race in the user's library, unless they do not want it or nothing is observed of it."""
    library = RunLibrary()
    if settings.observe == "off" or not library.keeps:
        return None
    return RunKeeper(library, {"source": "window", "history": [dict(turn) for turn in settings.history]}, on_trouble)


class RaceLike(Protocol):
    """What the thread needs of a race (`specview.racing.race.Race`)."""

    def run(self, emit: Callable[[Event], None], should_stop: ShouldStop) -> None:
        """Run all lanes to their ends."""
        ...

    def continue_(self, max_tokens: int, emit: Callable[[Event], None], should_stop: ShouldStop) -> None:
        """Go on past the limit by max_tokens, in the same sessions."""
        ...

    def follow_up(self, text: str) -> RunSettings:
        """Settings of the next turn: the conversation so far, then `text`."""
        ...

    def close(self) -> None:
        """Free the sessions."""
        ...


class Backend(Protocol):
    """Where models come from; `LocalBackend` here, a made-up one in tests."""

    def preload(
        self, settings: RunSettings, run_id: int, emit: Callable[[Progress], None], should_stop: ShouldStop
    ) -> None:
        """Import libraries and load the models of `settings`."""
        ...

    def start(self, settings: RunSettings, run_id: int) -> RaceLike:
        """Make a race; nothing is loaded before it runs."""
        ...

    def count_tokens(self, settings: RunSettings) -> int | None:
        """Count the prompt's tokens if the target's tokenizer is loaded, else None."""
        ...

    def target_facts(self, settings: RunSettings) -> tuple[str, Mapping[str, str], Declared] | None:
        """Device of the loaded target, method -> why it cannot draft with it, and what its files declare; None while
        it is not loaded."""
        ...

    @property
    def pool(self) -> Any:
        """The loaded models (`racing.pool.ModelPool`), for jobs."""
        ...

    def close(self) -> None:
        """Free all models."""
        ...


@dataclass(slots=True)
class _Command:
    """One queued wish, with its own stop flag."""

    kind: Kind
    run_id: int
    settings: RunSettings | None = None
    max_tokens: int = 0
    text: str = ""
    job: str = ""
    work: Work | None = None
    stop: threading.Event = field(default_factory=threading.Event)


class EngineThread:
    """Runs commands one after the other on a thread of its own."""

    def __init__(
        self,
        make_backend: Callable[[], Backend],
        make_keeper: Callable[[RunSettings, Callable[[str], None]], RunKeeper | None] = keep_in_library,
    ) -> None:
        self._make_backend = make_backend
        self._make_keeper = make_keeper
        self._keeper: RunKeeper | None = None
        self._backend: Backend | None = None
        self._race: RaceLike | None = None
        self._commands: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._events: deque[WindowEvent] = deque()
        self._pending: list[_Command] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._last_id = 0
        # A daemon, so that native code that does not come back cannot keep the process alive.
        self._thread = threading.Thread(target=self._work, name="specview-engine", daemon=True)

    # -- called by the window ------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def preload(self, settings: RunSettings) -> int:
        """Load libraries and models ahead of the first run."""
        return self._put("preload", settings=settings)

    def run(self, settings: RunSettings) -> int:
        """Start a race; the one before it is closed first."""
        return self._put("run", settings=settings)

    def continue_(self, run_id: int, max_tokens: int) -> int:
        """Go on with the race `run_id`; its events keep that id."""
        return self._put("continue", run_id=run_id, max_tokens=max_tokens)

    def follow_up(self, text: str, settings: RunSettings) -> int:
        """Start a race on the next turn of the conversation, with everything else from `settings`."""
        return self._put("follow-up", text=text, settings=settings)

    def count_tokens(self, settings: RunSettings) -> int:
        """Ask for the prompt's length in tokens."""
        return self._put("count", settings=settings)

    def job(self, name: str, work: Work, settings: RunSettings | None = None) -> int:
        """Do a long piece of work; of `settings`, if given, the target is told about afterwards."""
        return self._put("job", job=name, work=work, settings=settings)

    def stop(self, kinds: tuple[Kind, ...] = ("preload", "run", "continue", "follow-up", "job")) -> None:
        """Ask commands under way or waiting to stop; takes effect within one round."""
        with self._lock:
            for command in self._pending:
                if command.kind in kinds:
                    command.stop.set()

    def drain(self, limit: int = 2000) -> list[WindowEvent]:
        """Take up to `limit` events that have arrived."""
        taken: list[WindowEvent] = []
        while len(taken) < limit:
            try:
                taken.append(self._events.popleft())
            except IndexError:
                break
        return taken

    def close(self, timeout_s: float) -> bool:
        """Stop everything, free the models and end the thread; False if it has not ended in time."""
        self.request_close()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def request_close(self) -> None:
        """Ask the thread to end, without waiting for it."""
        self._closing.set()
        self.stop(("preload", "run", "continue", "follow-up", "count", "job"))
        self._commands.put(None)

    def _put(self, kind: Kind, run_id: int | None = None, **payload: Any) -> int:
        if run_id is None:
            self._last_id += 1
            run_id = self._last_id
        command = _Command(kind, run_id, **payload)
        with self._lock:
            self._pending.append(command)
        if self._closing.is_set():
            command.stop.set()
        self._commands.put(command)
        return run_id

    # -- on the thread ---------------------------------------------------------------------------

    def _work(self) -> None:
        while (command := self._commands.get()) is not None:
            if self._closing.is_set():
                break
            try:
                self._handle(command)
            except Stopped:
                self._emit_stopped(command)
            except SpecviewError as error:
                self._emit_failure(command, str(error))
            except MemoryError:
                self._emit_failure(command, "There is not enough memory. Choose a smaller model or dtype.")
            except Exception as error:
                log.exception("%s failed", command.kind)
                self._emit_failure(command, f"Something went wrong in {command.job or command.kind}: {unforeseen(error)}")
            finally:
                with self._lock:
                    self._pending.remove(command)
                self._events.append(CommandDone(command.run_id, command.kind))
        self._free()

    def _handle(self, command: _Command) -> None:
        should_stop = command.stop.is_set
        if command.kind == "count":
            if not command.stop.is_set() and command.settings is not None:
                count = self._get_backend().count_tokens(command.settings)
                self._events.append(TokensCounted(command.run_id, count))
            return
        if command.stop.is_set():
            raise Stopped
        if command.kind == "preload" and command.settings is not None:
            self._get_backend().preload(command.settings, command.run_id, self._events.append, should_stop)
            self._tell_target(command)
            self._events.append(PreloadEnded(command.run_id, ready=not command.stop.is_set()))
        elif command.kind == "job" and command.work is not None:
            tell = Tell(lambda news: self._events.append(JobNews(command.run_id, news)))
            result = command.work(self._get_backend().pool, tell, should_stop)
            self._tell_target(command)
            self._events.append(JobEnded(command.run_id, command.job, result, stopped=command.stop.is_set()))
        elif command.kind == "run" and command.settings is not None:
            self._begin(command.settings, command)
        elif command.kind == "follow-up" and self._race is not None and command.settings is not None:
            turn = self._race.follow_up(command.text)
            settings = command.settings.next_turn(turn.history, turn.prompt)
            self._events.append(SettingsTaken(command.run_id, settings))
            self._begin(settings, command)
        elif command.kind == "continue" and self._race is not None:
            self._race.continue_(command.max_tokens, self._tell_race, should_stop)

    def _begin(self, settings: RunSettings, command: _Command) -> None:
        self._close_race()
        self._keeper = self._make_keeper(settings, lambda line: self._events.append(RunKept(command.run_id, None, line)))
        self._race = self._get_backend().start(settings, command.run_id)
        self._race.run(self._tell_race, command.stop.is_set)
        self._tell_target(command, settings)

    def _tell_race(self, event: Event) -> None:
        """Pass a race's event on, and keep it: between rounds, off the lanes' clocks."""
        self._events.append(event)
        keeper = self._keeper
        if keeper is None:
            return
        try:
            keeper.take(event)
        except Exception:
            log.exception("keeping the run failed")
            self._keeper = None
            self._events.append(RunKept(event.run_id, None, "This run is not kept: writing it failed (see the log)."))
            return
        if isinstance(event, RaceEnded) and keeper.path is not None:
            self._events.append(RunKept(event.run_id, keeper.path))

    def _tell_target(self, command: _Command, settings: RunSettings | None = None) -> None:
        settings = settings or command.settings
        if settings is None:
            return
        facts = self._get_backend().target_facts(settings)
        if facts is not None:
            device, problems, declared = facts
            self._events.append(
                TargetKnown(command.run_id, settings.engine, settings.target, device, dict(problems), declared)
            )

    def _emit_stopped(self, command: _Command) -> None:
        if command.kind == "preload":
            self._events.append(PreloadEnded(command.run_id, ready=False))
        elif command.kind == "job":
            self._events.append(JobEnded(command.run_id, command.job, stopped=True))
        elif command.kind != "count":
            self._events.append(RaceEnded(command.run_id, "stopped"))

    def _emit_failure(self, command: _Command, message: str) -> None:
        if command.kind == "count":
            self._events.append(TokensCounted(command.run_id, None))
        elif command.kind == "preload":
            self._events.append(PreloadEnded(command.run_id, ready=False, message=message))
        elif command.kind == "job":
            self._events.append(JobEnded(command.run_id, command.job, None, message))
        else:
            self._events.append(Failed(command.run_id, message))

    def _get_backend(self) -> Backend:
        if self._backend is None:
            self._backend = self._make_backend()
        return self._backend

    def _close_race(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.close()
        race, self._race = self._race, None
        if race is not None:
            race.close()

    def _free(self) -> None:
        try:
            self._close_race()
            if self._backend is not None:
                self._backend.close()
        except Exception:
            log.exception("freeing the models failed")
