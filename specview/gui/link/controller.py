"""Between the window and the engine thread: the race on screen, its lanes, what goes on, and the three clocks.

Text is redrawn about 30 times a second, plots 10 times, number labels twice, and only while something
runs. Where drawing would take more of the processor than its share from the race (two cores, say), text
and plots are redrawn less often. Events of stale runs are dropped here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from PySide6.QtCore import QObject, Signal

from specview.drafting.lanes import flat_settings
from specview.drafting.registry import METHODS
from specview.gui.link import messages
from specview.gui.link.engine_thread import EngineThread
from specview.gui.link.job import Job
from specview.gui.link.pace import Later
from specview.gui.link.redraws import Redraws
from specview.gui.state.playhead import Playhead
from specview.gui.state.view_model import LaneModel, RaceModel
from specview.settings.events import Failed, Progress, RaceStarted
from specview.settings.run import LaneSettings, RunSettings

State = Literal["ready", "preloading", "loading", "prefill", "running", "stopping", "working", "ended", "closing"]
Moment = Literal["preload", "job", "race", "load", "prefill", "rounds", "stop", "free", "close"]
RESTING: tuple[State, ...] = ("ready", "ended")
UNDER_WAY: tuple[State, ...] = ("preloading", "loading", "prefill", "running", "working")
MOVES: Mapping[Moment, tuple[tuple[State, ...], State | None]] = {
    "preload": (RESTING, "preloading"),
    "job": ((*RESTING, "preloading", "stopping"), "working"),
    "race": ((*RESTING, "preloading", "working", "stopping"), "loading"),
    "load": (("prefill",), "loading"),
    "prefill": (("loading",), "prefill"),
    "rounds": (("loading", "prefill"), "running"),
    "stop": (UNDER_WAY, "stopping"),
    "free": ((*RESTING, *UNDER_WAY, "stopping"), None),
    "close": ((*RESTING, *UNDER_WAY, "stopping"), "closing"),
}
"""Moment -> (the states in which it counts, the state that comes of it; None: at rest, as it was or with a race's figures)."""

COUNT_DELAY_MS = 350
LIVE_AFTER_S = 2.0


@dataclass(frozen=True, slots=True)
class _Live:
    """The live race while a recorded one is on screen in its place."""

    race: RaceModel
    settings: RunSettings | None
    ran: RunSettings | None
    started_id: int
    lanes_touched: bool
    live_since: tuple[float, float, float] | None


class Controller(QObject):
    """Owns the engine thread and the `RaceModel`; every method is called on the Qt thread."""

    state_changed = Signal()
    lanes_changed = Signal()
    text_tick = Signal()
    plot_tick = Signal()
    number_tick = Signal()
    failed = Signal(str)
    warned = Signal(str)
    tokens_counted = Signal(object)
    turn_started = Signal(object)
    run_kept = Signal(object)
    recorded_changed = Signal()

    def __init__(self, engine: EngineThread) -> None:
        super().__init__()
        self.engine = engine
        self.race = RaceModel()
        self.settings: RunSettings | None = None
        self.ran: RunSettings | None = None  # those of the live race whose figures are on screen, once it has started
        self.outcome = "done"  # how the last race or job ended: done, stopped or failed
        self.lanes: list[LaneSettings] = []  # as set up: the window's own list
        self._wanted: RunSettings | None = None
        self.recorded: Any = None  # what is on screen where it is no live race (`open_run.Opened`)
        self._recorded_lanes: list[LaneSettings] | None = None  # as they were set up when it was opened
        self._keeping = False
        self._live: _Live | None = None  # while a recorded race is on screen
        self._playhead: Playhead | None = None
        self.progress: Progress | None = None
        self.preloaded = False
        self._busy: dict[int, messages.Command] = {}
        self._preload: messages.Preload | None = None
        self._count: messages.Count | None = None
        self._counted: tuple[str, int | None] = ("", None)  # the last prompt whose length is known
        self._count_settings: RunSettings | None = None
        self._jobs: dict[int, Job] = {}
        self._targets: dict[tuple[str, str], messages.TargetKnown] = {}
        self._lanes_touched = False
        self._raced = False
        self._started_id = -1
        self._live_since: tuple[float, float, float] | None = None  # real time, the lead's clock, seconds waited by then
        self._state: State = "ready"
        draw = {"text": self._on_text, "plots": self.plot_tick.emit, "figures": self.number_tick.emit}
        self.redraws = Redraws(self, engine.pacer, lambda: self.race_running, draw)
        self._count_timer = Later(self, COUNT_DELAY_MS, self._ask_count)

    # -- what can be done now ----------------------------------------------------------------

    @property
    def state(self) -> State:
        """What goes on, in one word."""
        return self._state

    @property
    def racing(self) -> bool:
        """Whether a race is under way (loading included)."""
        return any(isinstance(command, messages.RACES) for command in self._busy.values())

    @property
    def race_running(self) -> bool:
        """Whether rounds are being run: loading and prefill are over."""
        return self.racing and self.race.state == "running" and any(
            lane.state in ("running", "ended") for lane in self.race.lanes
        )

    @property
    def real_time_fraction(self) -> float | None:
        """How fast the lanes' clocks advance against real time: the race's own figure once it has ended."""
        ended = self.race.ended
        if ended is not None:
            return ended.real_time_fraction
        if self._live_since is None:
            return None
        wall = time.perf_counter() - self._live_since[0] - (self.engine.pacer.waited_s - self._live_since[2])
        return (self._lead_clock() - self._live_since[1]) / wall if wall >= LIVE_AFTER_S else None

    def _lead_clock(self) -> float:
        return max((lane.clock_s for lane in self.race.lanes), default=0.0)

    @property
    def playhead(self) -> Playhead | None:
        """Plays the race on screen again; None while one runs, and where nothing was decoded."""
        if self.racing:
            return None
        if self._playhead is None or self._playhead.lanes != self.race.lanes:
            self._play_another()
            self._playhead = Playhead(self.race.lanes)
        return self._playhead if self._playhead.length > 0 else None

    def show_whole(self) -> None:
        """Let the race be the finished one, where another moment of it is on screen."""
        if self._playhead is not None and not self._playhead.at_end:
            self._playhead.to_end()
            self.redraw()

    def _play_another(self) -> None:
        """The lanes are about to be others: they are as they were in the end."""
        head, self._playhead = self._playhead, None
        if head is not None:
            head.to_end()

    @property
    def moment(self) -> str | None:
        """What happens in the moment that is on screen ('' where nothing is said of it); None for the finished race."""
        return None if self._playhead is None or self._playhead.at_end else self._playhead.words

    @property
    def paused(self) -> bool:
        """Whether the race under way waits for its viewer."""
        return self.racing and self.engine.pacer.paused

    def _end_of(self, lane: LaneModel) -> str | None:
        """How a lane ended, at whatever moment it is shown."""
        return lane.end if self._playhead is None else self._playhead.end_of(lane)

    @property
    def can_stop(self) -> bool:
        """Whether there is something to stop that has not been asked to."""
        return self._state in UNDER_WAY

    @property
    def can_continue(self) -> bool:
        """Whether lanes of the last race can go on in their sessions, now."""
        return (
            not self.busy_with
            and not self._lanes_touched
            and self.settings is not None
            and self.race.ended is not None
            and self.race.ended.end != "error"
            and self._started_id == self.race.run_id
            and any(self._end_of(lane) in ("limit", "stopped") and lane.decoded for lane in self.race.lanes)
        )

    @property
    def can_follow_up(self) -> bool:
        """Whether the plain lane gave a reply to answer to, and the engine is free to run the turn."""
        plain = self.race.baseline
        return (
            not self.busy_with
            and self.settings is not None
            and self.settings.chat
            and self._started_id == self.race.run_id
            and self.race.ended is not None
            and plain is not None
            and plain.decoded
        )

    # -- wishes --------------------------------------------------------------------------------

    def preload(self, settings: RunSettings) -> None:
        """Load libraries and models ahead of the first run."""
        self._preload = messages.Preload(settings)
        self.engine.send(self._preload)
        self._began(self._preload, "preload")

    def run(self, settings: RunSettings) -> None:
        """Start a race on checked settings."""
        if self.racing:
            return
        from specview.racing.pool import engine_keys

        if self._preload is not None and set(engine_keys(self._preload.settings)) != set(engine_keys(settings)):
            self.engine.stop(messages.Preload)
        self._leave_recorded()
        self._race(messages.Run(settings), settings)

    def continue_(self, max_tokens: int) -> None:
        """Go on past the limit, in the same sessions."""
        if self.can_continue:
            self._play_another()
            command = messages.Continue(max_tokens, run_id=self.race.run_id)
            self.engine.send(command)
            self.race.ended = None
            self._began(command, "race")

    def follow_up(self, text: str, settings: RunSettings) -> None:
        """Run the next turn of the conversation, with everything else as set now."""
        if self.can_follow_up and text.strip():
            self._race(messages.FollowUp(text, settings), settings)

    def _race(self, command: messages.Run | messages.FollowUp, settings: RunSettings) -> None:
        self._play_another()
        self.settings, self._lanes_touched = settings, False
        self.race.begin(self.engine.send(command))
        self._began(command, "race")

    def stop(self) -> None:
        """Stop what is under way; takes effect within one round."""
        if self.can_stop:
            self.engine.stop()
            self._move("stop")

    def show_lanes(self, settings: RunSettings) -> None:
        """Show the lanes as set up; `settings` are the run's, with these lanes checked.

        A lane that was not edited itself keeps what it holds until the next run, whatever else of the
        settings has changed; one that holds nothing yet shows the settings as they are now.
        """
        self._wanted = settings
        if self.racing or (self.recorded is not None and (self._keeping or self.lanes == self._recorded_lanes)):
            return  # a recorded run stays on screen until lanes are edited or a race begins
        if self.recorded is not None:
            self._leave_recorded()
        else:
            self._show_wanted(settings)

    def _show_wanted(self, settings: RunSettings) -> None:
        before, old = list(self.race.lanes), list(self.race.lanes)
        made: list[LaneModel] = []
        for wanted, checked in zip(self.lanes, settings.lanes, strict=True):
            model = next((lane for lane in old if lane.wanted == wanted), None)
            if model is None:
                model = LaneModel(wanted=wanted)
            else:
                old.remove(model)
            shown = shown_settings(settings, checked)
            if not model.decoded and (model.name, model.settings) != (checked.label, shown):
                model.name, model.settings = checked.label, shown
                model.version += 1
            made.append(model)
        if made != before:
            self._play_another()
        self.race.lanes = made
        self._mark_stale()
        if made != before:
            self._lanes_touched = True
            self.lanes_changed.emit()
            self.state_changed.emit()

    @property
    def stale(self) -> bool:
        """Whether the figures on screen are those of other settings than the ones set now."""
        return any(lane.stale for lane in self.race.lanes)

    def _mark_stale(self) -> None:
        stale = self.ran is not None and self._wanted is not None and _asked(self.ran) != _asked(self._wanted)
        changed = False
        for lane in self.race.lanes:
            if lane.stale != (stale and lane.decoded):
                lane.stale = not lane.stale
                lane.version += 1
                changed = True
        if changed:
            self.text_tick.emit()
            self.number_tick.emit()

    def show_recorded(self, race: RaceModel, opened: Any) -> None:
        """Show a recorded race until the lanes as set up change or one begins; no model and no setting is touched."""
        if self.racing:
            return
        self._play_another()
        if self._live is None:
            live = RaceModel()
            live.show(self.race)
            self._live = _Live(live, self.settings, self.ran, self._started_id, self._lanes_touched, self._live_since)
        self.race.show(race)
        self.recorded, self._recorded_lanes = opened, list(self.lanes)
        self._lanes_touched, self._started_id = False, -1
        self.settings = self.ran = self._live_since = None
        self.progress = None
        self.redraw()
        self.recorded_changed.emit()
        self._follow()
        self.state_changed.emit()

    def close_recorded(self) -> None:
        """Take a recorded run off the screen: the live race is back as it was, but for lanes that were edited since."""
        if self.recorded is not None and not self.racing:
            self._leave_recorded()

    @contextmanager
    def keeping_recorded(self) -> Iterator[None]:
        """Let the recorded run stay on screen while other lanes are set up."""
        self._keeping = True
        try:
            yield
        finally:
            self._keeping = False
            self._recorded_lanes = list(self.lanes)

    def redraw(self) -> None:
        """Let every view of the race look at it anew."""
        self.lanes_changed.emit()
        self.text_tick.emit()
        self.plot_tick.emit()
        self.number_tick.emit()

    def _leave_recorded(self) -> None:
        live, self._live = self._live, None
        if live is None:
            return
        self._play_another()
        self.race.show(live.race)
        self.settings, self.ran, self._live_since = live.settings, live.ran, live.live_since
        self._started_id, self._lanes_touched = live.started_id, live.lanes_touched
        self.recorded = self._recorded_lanes = None
        if self._wanted is not None:
            self._show_wanted(self._wanted)
        self.redraw()
        self.recorded_changed.emit()
        self._follow()
        self.state_changed.emit()

    def drop_partial_branch(self) -> None:
        """Empty all lanes, where some of those set up hold no figures of the branch that was run: a part says nothing."""
        live = self._live
        race, ran = (self.race, self.ran) if live is None else (live.race, live.ran)
        whole = all(any(lane.wanted == one and lane.decoded for lane in race.lanes) for one in self.lanes)
        if self.racing or whole or ran is None or ran.branch is None:
            return
        emptied = _Live(RaceModel(), self._wanted, None, -1, True, None)
        if live is not None:
            self._live = emptied  # it is shown when the recorded run has gone
            return
        self._live, self._raced = emptied, False
        self._leave_recorded()

    def count_tokens(self, settings: RunSettings | None) -> None:
        """Ask for the prompt's length, a moment after the last change; None tells that it is unknown."""
        self._count_settings = settings
        self._tell_count(None)
        if settings is not None:
            self._count_timer.start()

    def start_job(self, job: Job, work: messages.Work, settings: RunSettings | None) -> None:
        """Do work(pool, tell, should_stop) on the engine thread, for `Job.start`; it waits for what is under way."""
        command = messages.RunJob(job.name, work, settings)
        self._jobs[self.engine.send(command)] = job
        self._began(command, "job")

    @property
    def job(self) -> str:
        """The name of the job under way, '' where there is none."""
        return next(reversed([job.name for job in self._jobs.values()]), "")

    @property
    def busy_with(self) -> str:
        """What runs on the engine thread, in words: 'a race', a job's name, or '' where it is free."""
        return "a race" if self.racing else self.job

    @property
    def busy_words(self) -> str:
        """One line that says why nothing else can be started now; '' where it can."""
        busy = self.busy_with
        return f"The engine is busy with {busy}. Stop it first (Esc), or wait for its end." if busy else ""

    def target_known(self, engine: str, target: str) -> messages.TargetKnown | None:
        """What a target said when it was last loaded in this session; None before."""
        return self._targets.get((engine, target))

    def close(self, timeout_s: float) -> bool:
        """Stop all work, take in every finished round, end the thread; False if it did not in time."""
        self.redraws.end(race_only=False)
        self._count_timer.stop()
        self._move("close")
        ended = self.engine.close(timeout_s)
        self._take(self.engine.drain(1_000_000))
        return ended

    # -- events ----------------------------------------------------------------------------------

    def _tell_count(self, count: int | None) -> None:
        """Tell the prompt's length; where it cannot be had now (a job freed the target), what it was before."""
        key = _prompt_of(self._count_settings)
        if count is None and key == self._counted[0]:
            count = self._counted[1]
        elif count is not None:
            self._counted = key, count
        self.tokens_counted.emit(count)

    def _ask_count(self) -> None:
        if self._count_settings is not None and not self._busy:
            self._count = messages.Count(self._count_settings)
            self.engine.send(self._count)
            self._began(self._count)

    def _began(self, command: messages.Command, moment: Moment | None = None) -> None:
        self._busy[command.run_id] = command
        self.redraws.begin(moment == "race")
        if moment is None:
            return
        self.progress = None
        if moment == "race":
            self.engine.pacer.reset()
            self._live_since = None
        self._move(moment)

    def _on_text(self) -> None:
        before = self.race.run_id, len(self.race.lanes), self.race.state
        self._take(self.engine.drain())
        if (self.race.run_id, len(self.race.lanes), self.race.state) != before:
            self.lanes_changed.emit()
        self.text_tick.emit()
        self._follow()

    def _take(self, events: list[messages.WindowEvent]) -> None:
        for event in events:
            match event:
                case messages.CommandDone():
                    self._done(event)
                case messages.PreloadEnded():
                    self.preloaded = event.ready
                    if event.message and not self.racing:
                        self.warned.emit(event.message)
                case messages.TokensCounted():
                    if self._count is not None and event.run_id == self._count.run_id:
                        self._tell_count(event.count)
                case messages.TargetKnown():
                    self._targets[event.engine, event.target] = event
                case messages.JobNews() | messages.JobEnded():
                    self._heard(event)
                case messages.RunKept():
                    if event.trouble:
                        self.warned.emit(event.trouble)
                    self.run_kept.emit(event)
                case messages.SettingsTaken():
                    if event.run_id == self.race.run_id:
                        self.settings = event.settings
                        if self._started_id == event.run_id:
                            self.ran = event.settings
                        self.turn_started.emit(event.settings)
                case Progress() if self._preload is not None and event.run_id == self._preload.run_id:
                    self.progress = event
                case _:
                    if self.race.apply(event):
                        self._note(event)

    def _heard(self, event: messages.JobNews | messages.JobEnded) -> None:
        job = self._jobs.get(event.run_id)
        if job is None:
            return
        if isinstance(event, messages.JobEnded):
            del self._jobs[event.run_id]
            self.outcome = "failed" if event.message else "stopped" if event.stopped else "done"
            job.hear(event)
            return
        if isinstance(event.news, messages.JobProgress):
            self.progress = Progress(event.run_id, "decode", event.news.text, event.news.fraction)
        job.hear(event.news)

    def _note(self, event: messages.WindowEvent) -> None:
        if isinstance(event, Progress):
            self.progress = event
        elif isinstance(event, RaceStarted):
            self._started_id = event.run_id
            self.ran = self.settings
            if self.ran is not None and _prompt_of(self.ran) == _prompt_of(self._count_settings):
                self._tell_count(len(event.prompt_ids))
            self.state_changed.emit()  # the figures of the run before have gone
        elif isinstance(event, Failed):
            self.failed.emit(event.message)

    def _done(self, event: messages.CommandDone) -> None:
        self._busy.pop(event.run_id, None)
        self._jobs.pop(event.run_id, None)
        raced = isinstance(event.command, messages.RACES)
        if raced:
            self._raced = True
            ended = self.race.ended.end if self.race.ended is not None else "done"
            self.outcome = "failed" if self.race.error or ended == "error" else ended
            self._mark_stale()
            self.redraws.end(race_only=True)
        if not self.racing and not isinstance(event.command, messages.Count):
            self.progress = None
        if raced:
            self.text_tick.emit()
            self.plot_tick.emit()
            self.number_tick.emit()
        if not self._busy:
            self.redraws.end(race_only=False)
            if not isinstance(event.command, messages.Count) and self._count_settings is not None:
                self._count_timer.start()

    # -- what goes on ----------------------------------------------------------------------------

    def _move(self, moment: Moment) -> None:
        """Take the state that comes of a moment, where it counts."""
        states, after = MOVES[moment]
        rest: State = "ended" if self._raced or self.recorded is not None else "ready"
        state = after or rest
        if self._state in states and state != self._state:
            if state == "running" and self._live_since is None:
                self._live_since = time.perf_counter(), self._lead_clock(), self.engine.pacer.waited_s
            self._state = state
            self.state_changed.emit()

    def _follow(self) -> None:
        """Tell the parts of a race apart, and whether nothing is under way any more."""
        if self.racing:
            phase = self.progress.phase if self.progress else ""
            self._move("rounds" if self.race_running else "prefill" if phase == "prefill" else "load")
        elif all(isinstance(command, messages.Count) for command in self._busy.values()):
            self._move("free")


def shown_settings(settings: RunSettings, lane: LaneSettings) -> dict[str, object]:
    """What a lane's header shows before a run: its flat settings, options filled in."""
    flat = flat_settings(settings, lane)
    if METHODS[lane.method].drafts and lane.k is None:
        flat["k"] = "auto"
    return flat


def _prompt_of(settings: RunSettings | None) -> str:
    """What the length of a prompt hangs on."""
    if settings is None:
        return ""
    return repr((settings.engine, settings.target, settings.prompt, settings.system, settings.chat, settings.chat_template, settings.history))


def _asked(settings: RunSettings) -> RunSettings:
    """What the figures of a run depend on, whatever the order of its lanes; its length is none of it."""
    lanes = tuple(sorted((replace(lane, name="") for lane in settings.lanes), key=repr))
    sampling = replace(settings.sampling, seed=0) if settings.history else settings.sampling  # a turn has a seed of its own
    return replace(settings, lanes=lanes, sampling=sampling, max_tokens=1, observe="full", workload=None, trust_remote_code=False)
