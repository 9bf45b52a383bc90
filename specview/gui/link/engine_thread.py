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
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from specview.decoding.interfaces import Declared
from specview.errors import SpecviewError, Stopped
from specview.gui.link import messages
from specview.racing.pacer import Pacer
from specview.settings.events import Event, Failed, Progress, RaceEnded
from specview.settings.run import RunSettings

if TYPE_CHECKING:
    from specview.library.keeping import RunKeeper

log = logging.getLogger(__name__)


def keep_in_library(settings: RunSettings, on_trouble: Callable[[str], None]) -> RunKeeper | None:
    """Keep the coming race in the user's library, unless they do not want it or nothing is observed of it."""
    from specview.library.keeping import RunKeeper
    from specview.library.library import RunLibrary

    library = RunLibrary()
    if settings.observe == "off" or not library.keeps:
        return None
    return RunKeeper(library, {"source": "window"}, on_trouble)


class RaceLike(Protocol):
    """What the thread needs of a race (`specview.racing.race.Race`)."""

    pacer: Pacer | None

    def run(self, emit: Callable[[Event], None], should_stop: messages.ShouldStop) -> None:
        """Run all lanes to their ends."""

    def continue_(self, max_tokens: int, emit: Callable[[Event], None], should_stop: messages.ShouldStop) -> None:
        """Go on past the limit by max_tokens, in the same sessions."""

    def follow_up(self, text: str) -> RunSettings:
        """Settings of the next turn: the conversation so far, then `text`."""

    def close(self) -> None:
        """Free the sessions."""


class Backend(Protocol):
    """Where models come from; `LocalBackend` here, a made-up one in tests."""

    def preload(
        self, settings: RunSettings, run_id: int, emit: Callable[[Progress], None], should_stop: messages.ShouldStop
    ) -> None:
        """Import libraries and load the models of `settings`."""

    def start(self, settings: RunSettings, run_id: int) -> RaceLike:
        """Make a race; nothing is loaded before it runs."""

    def count_tokens(self, settings: RunSettings) -> int | None:
        """Count the prompt's tokens if the target's tokenizer is loaded, else None."""

    def target_facts(self, settings: RunSettings) -> tuple[str, Mapping[str, str], Declared] | None:
        """Device of the loaded target, method -> why it cannot draft with it, and what its files declare; None while
        it is not loaded."""

    @property
    def pool(self) -> Any:
        """The loaded models (`racing.pool.ModelPool`), for jobs."""

    def close(self) -> None:
        """Free all models."""


class EngineThread:
    """Runs commands one after the other on a thread of its own; `pacer` slows and holds the race under way."""

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
        self._commands: queue.SimpleQueue[messages.Command | None] = queue.SimpleQueue()
        self._events: deque[messages.WindowEvent] = deque()
        self._pending: list[messages.Command] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._last_id = 0
        self.pacer = Pacer()
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

    def send(self, command: messages.Command) -> int:
        """Do this after what waits already; return its run id."""
        if command.run_id < 0:
            self._last_id += 1
            command.run_id = self._last_id
        with self._lock:
            self._pending.append(command)
        if self._closing.is_set():
            command.stop.set()
        self._commands.put(command)
        return command.run_id

    def stop(self, *kinds: type[messages.Command]) -> None:
        """Ask commands under way or waiting to stop, of these kinds or all but counts; takes effect within one round."""
        with self._lock:
            for command in self._pending:
                if isinstance(command, kinds) if kinds else not isinstance(command, messages.Count):
                    command.stop.set()
        self.pacer.wake()

    def drain(self, limit: int = 2000) -> list[messages.WindowEvent]:
        """Take up to `limit` events that have arrived."""
        taken: list[messages.WindowEvent] = []
        while self._events and len(taken) < limit:
            taken.append(self._events.popleft())  # this alone takes from it
        return taken

    def close(self, timeout_s: float) -> bool:
        """Stop everything, free the models and end the thread; False if it has not ended in time."""
        self._closing.set()
        self.stop(messages.Command)
        self._commands.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # -- on the thread ---------------------------------------------------------------------------

    def _work(self) -> None:
        while (command := self._commands.get()) is not None:
            if self._closing.is_set():
                break
            try:
                if command.stop.is_set():
                    raise Stopped
                self._do(command)
            except Stopped:
                self._end(command, "", stopped=True)
            except SpecviewError as error:
                self._end(command, str(error))
            except MemoryError:
                self._end(command, "There is not enough memory. Choose a smaller model or dtype.")
            except Exception as error:
                log.exception("%s failed", command.words)
                self._end(command, f"Something went wrong in {command.words}: {messages.unforeseen(error)}")
            finally:
                with self._lock:
                    self._pending.remove(command)
                self._events.append(messages.CommandDone(command.run_id, command))
        self._free()

    def _do(self, command: messages.Command) -> None:
        run_id, should_stop, emit = command.run_id, command.stop.is_set, self._events.append
        match command:
            case messages.Count(settings):
                emit(messages.TokensCounted(run_id, self._get_backend().count_tokens(settings)))
            case messages.Preload(settings):
                self._get_backend().preload(settings, run_id, emit, should_stop)
                self._tell_target(run_id, settings)
                emit(messages.PreloadEnded(run_id, ready=not should_stop()))
            case messages.RunJob(name, work, settings):
                tell = messages.Tell(lambda news: emit(messages.JobNews(run_id, news)))
                result = work(self._get_backend().pool, tell, should_stop)
                if settings is not None:
                    self._tell_target(run_id, settings)
                emit(messages.JobEnded(run_id, name, result, stopped=should_stop()))
            case messages.Run(settings):
                self._begin(settings, command)
            case messages.FollowUp(text, settings) if self._race is not None:
                turn = self._race.follow_up(text)
                taken = settings.next_turn(turn.history, turn.prompt)
                emit(messages.SettingsTaken(run_id, taken))
                self._begin(taken, command)
            case messages.Continue(max_tokens) if self._race is not None:
                self._race.continue_(max_tokens, self._tell_race, should_stop)

    def _end(self, command: messages.Command, message: str, stopped: bool = False) -> None:
        """Tell of a command that was stopped, or failed for this reason."""
        run_id = command.run_id
        match command:
            case messages.Count():
                self._events.append(messages.TokensCounted(run_id, None))
            case messages.Preload():
                self._events.append(messages.PreloadEnded(run_id, ready=False, message=message))
            case messages.RunJob():
                self._events.append(messages.JobEnded(run_id, command.name, None, message, stopped))
            case _:
                self._events.append(RaceEnded(run_id, "stopped") if stopped else Failed(run_id, message))

    def _begin(self, settings: RunSettings, command: messages.Command) -> None:
        self._close_race()
        kept = partial(messages.RunKept, command.run_id, None)
        self._keeper = self._make_keeper(settings, lambda line: self._events.append(kept(line)))
        self._race = self._get_backend().start(settings, command.run_id)
        self._race.pacer = self.pacer
        self._race.run(self._tell_race, command.stop.is_set)
        self._tell_target(command.run_id, settings)

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
            line = "This run is not kept: writing it failed (see the log)."
            self._events.append(messages.RunKept(event.run_id, None, line))
            return
        if isinstance(event, RaceEnded) and keeper.path is not None:
            self._events.append(messages.RunKept(event.run_id, keeper.path))

    def _tell_target(self, run_id: int, settings: RunSettings) -> None:
        facts = self._get_backend().target_facts(settings)
        if facts is not None:
            self._events.append(messages.TargetKnown(run_id, settings.engine, settings.target, *facts))

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
