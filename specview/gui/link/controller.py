"""Between the window and the engine thread: the race on screen, its state, and the three clocks.

Text is redrawn about 30 times a second, plots 10 times, number labels twice, and only while something
runs. Where drawing would take more of the processor than its share from the race (two cores, say), text
and plots are redrawn less often. Events of stale runs are dropped here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from PySide6.QtCore import QObject, Signal

from specview.drafting.lanes import flat_settings
from specview.drafting.registry import METHODS
from specview.gui.link.engine_thread import EngineThread
from specview.gui.link.job import Job
from specview.gui.link.messages import (
    CommandDone,
    JobEnded,
    JobNews,
    JobProgress,
    Kind,
    PreloadEnded,
    RunKept,
    SettingsTaken,
    TargetKnown,
    TokensCounted,
    WindowEvent,
    Work,
)
from specview.gui.link.pace import Later, every
from specview.gui.state.view_model import LaneModel, RaceModel
from specview.racing.pool import engine_keys
from specview.settings.events import Failed, Progress, RaceStarted
from specview.settings.run import LaneSettings, RunSettings

State = Literal["ready", "preloading", "loading", "prefill", "running", "stopping", "working", "ended"]

TEXT_MS, PLOT_MS, NUMBER_MS = 33, 100, 500
COUNT_DELAY_MS = 350
LIVE_AFTER_S = 2.0
DRAWING_SHARE = 0.025
"""Of the machine's processor time: what the Qt thread may take from a race before it draws less often."""
SLOWEST = 2.5
"""Redraws are put off by this factor at most: text 12 times a second, plots 4 times."""
_RACE_KINDS: tuple[Kind, ...] = ("run", "continue", "follow-up")


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
        self._wanted: RunSettings | None = None
        self.recorded: Any = None  # what is on screen where it is no live race (`open_run.Opened`)
        self._recorded_lanes: list[LaneSettings] | None = None
        self.progress: Progress | None = None
        self.preloaded = False
        self._lanes: list[LaneSettings] = []
        self._busy: dict[int, Kind] = {}
        self._preload_id = -1
        self._preload_settings: RunSettings | None = None
        self._count_id = -1
        self._counted: tuple[str, int | None] = ("", None)  # the last prompt whose length is known
        self._jobs: dict[int, Job] = {}
        self._targets: dict[tuple[str, str], TargetKnown] = {}
        self._count_settings: RunSettings | None = None
        self._stopping = False
        self._lanes_touched = False
        self._ended_once = False
        self._started_id = -1
        self._live_since: tuple[float, float] | None = None
        self._pace_mark: tuple[float, float] | None = None
        self._slower = 1.0
        self._state: State = "ready"
        self._text_timer = every(self, TEXT_MS, self._on_text)
        self._plot_timer = every(self, PLOT_MS, self.plot_tick.emit)
        self._number_timer = every(self, NUMBER_MS, self._on_numbers)
        self._count_timer = Later(self, COUNT_DELAY_MS, self._ask_count)

    # -- what can be done now ----------------------------------------------------------------

    @property
    def state(self) -> State:
        """What goes on, in one word."""
        return self._state

    @property
    def racing(self) -> bool:
        """Whether a race is under way (loading included)."""
        return any(kind in _RACE_KINDS for kind in self._busy.values())

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
        wall = time.perf_counter() - self._live_since[0]
        return (self._lead_clock() - self._live_since[1]) / wall if wall >= LIVE_AFTER_S else None

    def _lead_clock(self) -> float:
        return max((lane.clock_s for lane in self.race.lanes), default=0.0)

    @property
    def can_stop(self) -> bool:
        """Whether there is something to stop that has not been asked to."""
        return bool(self._busy) and not self._stopping and any(kind != "count" for kind in self._busy.values())

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
            and any(lane.end in ("limit", "stopped") and lane.rounds for lane in self.race.lanes)
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
            and bool(plain.rounds)
        )

    # -- wishes --------------------------------------------------------------------------------

    def preload(self, settings: RunSettings) -> None:
        """Load libraries and models ahead of the first run."""
        self._preload_settings = settings
        self._preload_id = self.engine.preload(settings)
        self._begin(self._preload_id, "preload")

    def run(self, settings: RunSettings) -> None:
        """Start a race on checked settings."""
        if self.racing:
            return
        if self._preload_settings is not None and not _same_models(self._preload_settings, settings):
            self.engine.stop(("preload",))
        self.settings = settings
        self._lanes_touched = False
        self._leave_recorded()
        run_id = self.engine.run(settings)
        self.race.begin(run_id)
        self._begin(run_id, "run")

    def continue_(self, max_tokens: int) -> None:
        """Go on past the limit, in the same sessions."""
        if self.can_continue:
            self.engine.continue_(self.race.run_id, max_tokens)
            self.race.ended = None
            self._begin(self.race.run_id, "continue")

    def follow_up(self, text: str, settings: RunSettings) -> None:
        """Run the next turn of the conversation, with everything else as set now."""
        if self.can_follow_up and text.strip():
            run_id = self.engine.follow_up(text, settings)
            self.settings = settings
            self.race.begin(run_id)
            self._lanes_touched = False
            self._begin(run_id, "follow-up")

    def stop(self) -> None:
        """Stop what is under way; takes effect within one round."""
        if self.can_stop:
            self._stopping = True
            self.engine.stop()
            self._update_state()

    def show_lanes(self, settings: RunSettings, raw: Sequence[LaneSettings]) -> None:
        """Show the lanes `raw`, which are `settings.lanes` before checking.

        A lane that was not edited itself keeps what it holds until the next run, whatever else of the
        settings has changed; one that holds nothing yet shows the settings as they are now.
        """
        self._wanted = settings
        if self.racing:
            return
        if self.recorded is not None and list(raw) == self._recorded_lanes:
            return  # a recorded run stays on screen until lanes are edited or a race begins
        self._leave_recorded()
        before = [id(lane) for lane in self.race.lanes]
        old = list(zip(self._lanes, self.race.lanes, strict=False))
        made: list[LaneModel] = []
        for lane, checked in zip(raw, settings.lanes, strict=True):
            place = next((i for i, (held, _) in enumerate(old) if held == lane), None)
            model = LaneModel() if place is None else old.pop(place)[1]
            shown = shown_settings(settings, checked)
            if not model.rounds and (model.name, model.settings) != (lane.label, shown):
                model.name, model.settings = lane.label, shown
                model.version += 1
            made.append(model)
        self._lanes, self.race.lanes = list(raw), made
        self._mark_stale()
        if [id(lane) for lane in made] != before:
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
            if lane.stale != (stale and bool(lane.rounds)):
                lane.stale = not lane.stale
                lane.version += 1
                changed = True
        if changed:
            self.text_tick.emit()
            self.number_tick.emit()

    def show_recorded(self, race: RaceModel, opened: Any, raw: Sequence[LaneSettings], shown: Sequence[LaneSettings]) -> None:
        """Show a recorded race; no model is touched, and Run goes back to live.

        raw are the lanes as set up now: the recording stays on screen while they stay. shown are those of them that
        the race's own lanes stand for, in order, as far as they do.
        """
        if self.racing:
            return
        self.race.show(race)
        self.recorded, self._recorded_lanes = opened, list(raw)
        self._lanes, self._lanes_touched, self._started_id = list(shown), False, -1
        self.settings = self.ran = None
        self.progress = None
        self.redraw()
        self.recorded_changed.emit()
        self._update_state()
        self.state_changed.emit()

    def close_recorded(self) -> None:
        """Forget a recorded run that is on screen; the next `show_lanes` shows lanes anew."""
        if self.recorded is not None and not self.racing:
            empty = RaceModel()
            empty.lanes = [LaneModel(name=lane.name, settings=lane.settings) for lane in self.race.lanes]
            self.race.show(empty)
            self._lanes, self._live_since = [], None
            self._leave_recorded()
            self._update_state()

    def redraw(self) -> None:
        """Let every view of the race look at it anew."""
        self.lanes_changed.emit()
        self.text_tick.emit()
        self.plot_tick.emit()
        self.number_tick.emit()

    def _leave_recorded(self) -> None:
        if self.recorded is not None:
            self.recorded = self._recorded_lanes = None
            self.recorded_changed.emit()

    def count_tokens(self, settings: RunSettings | None) -> None:
        """Ask for the prompt's length, a moment after the last change; None tells that it is unknown."""
        self._count_settings = settings
        self._tell_count(None)
        if settings is not None:
            self._count_timer.start()

    def start_job(self, job: Job, work: Work, settings: RunSettings | None) -> None:
        """Do work(pool, tell, should_stop) on the engine thread, for `Job.start`; it waits for what is under way."""
        run_id = self.engine.job(job.name, work, settings)
        self._jobs[run_id] = job
        self._begin(run_id, "job")

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

    def target_known(self, engine: str, target: str) -> TargetKnown | None:
        """What a target said when it was last loaded in this session; None before."""
        return self._targets.get((engine, target))

    def close(self, timeout_s: float) -> bool:
        """Stop all work, take in every finished round, end the thread; False if it did not in time."""
        for timer in (self._text_timer, self._plot_timer, self._number_timer, self._count_timer):
            timer.stop()
        ended = self.engine.close(timeout_s)
        self._take(self.engine.drain(1_000_000))
        return ended

    # -- events ----------------------------------------------------------------------------------

    def _tell_count(self, count: int | None) -> None:
        """Tell the prompt's length; where it cannot be had now (a job freed the target), what it was before."""
        asked = self._count_settings
        key = "" if asked is None else repr((asked.engine, asked.target, asked.prompt, asked.system, asked.chat, asked.chat_template, asked.history))
        if count is None and key == self._counted[0]:
            count = self._counted[1]
        elif count is not None:
            self._counted = key, count
        self.tokens_counted.emit(count)

    def _ask_count(self) -> None:
        if self._count_settings is not None and not self._busy:
            self._count_id = self.engine.count_tokens(self._count_settings)
            self._begin(self._count_id, "count")

    def _begin(self, run_id: int, kind: Kind) -> None:
        self._busy[run_id] = kind
        if kind != "count":
            self._stopping = False
            self.progress = None
        self._text_timer.start()
        if kind in _RACE_KINDS:
            self._live_since = None
            self._pace_mark = None
            self._plot_timer.start()
            self._number_timer.start()
        self._update_state()

    def _on_numbers(self) -> None:
        self._keep_pace()
        self.number_tick.emit()

    def _keep_pace(self) -> None:
        """Measure what drawing takes, and draw less often where that is more than its share."""
        mark = time.perf_counter(), time.thread_time()
        before, self._pace_mark = self._pace_mark, mark
        if before is None or mark[0] - before[0] < 0.8 * NUMBER_MS / 1e3:
            return
        share = (mark[1] - before[1]) / (mark[0] - before[0]) / (os.cpu_count() or 1)
        if share > DRAWING_SHARE:
            self._slower = min(self._slower * 1.3, SLOWEST)
        elif share < 0.6 * DRAWING_SHARE:
            self._slower = max(self._slower / 1.15, 1.0)
        self._text_timer.setInterval(round(TEXT_MS * self._slower))
        self._plot_timer.setInterval(round(PLOT_MS * self._slower))

    def _on_text(self) -> None:
        before = self.race.run_id, len(self.race.lanes), self.race.state
        self._take(self.engine.drain())
        if (self.race.run_id, len(self.race.lanes), self.race.state) != before:
            self.lanes_changed.emit()
        self.text_tick.emit()
        self._update_state()

    def _take(self, events: list[WindowEvent]) -> None:
        for event in events:
            match event:
                case CommandDone():
                    self._done(event)
                case PreloadEnded():
                    self.preloaded = event.ready
                    if event.message and not self.racing:
                        self.warned.emit(event.message)
                case TokensCounted():
                    if event.run_id == self._count_id:
                        self._tell_count(event.count)
                case TargetKnown():
                    self._targets[event.engine, event.target] = event
                case JobNews() | JobEnded():
                    self._heard(event)
                case RunKept():
                    if event.trouble:
                        self.warned.emit(event.trouble)
                    self.run_kept.emit(event)
                case SettingsTaken():
                    if event.run_id == self.race.run_id:
                        self.settings = event.settings
                        if self._started_id == event.run_id:
                            self.ran = event.settings
                        self.turn_started.emit(event.settings)
                case Progress() if event.run_id == self._preload_id:
                    self.progress = event
                case _:
                    if self.race.apply(event):
                        self._note(event)

    def _heard(self, event: JobNews | JobEnded) -> None:
        job = self._jobs.get(event.run_id)
        if job is None:
            return
        if isinstance(event, JobEnded):
            del self._jobs[event.run_id]
            self.outcome = "failed" if event.message else "stopped" if event.stopped else "done"
            job.hear(event)
            return
        if isinstance(event.news, JobProgress):
            self.progress = Progress(event.run_id, "decode", event.news.text, event.news.fraction)
        job.hear(event.news)

    def _note(self, event: WindowEvent) -> None:
        if isinstance(event, Progress):
            self.progress = event
        elif isinstance(event, RaceStarted):
            self._started_id = event.run_id
            self.ran = self.settings
            self.state_changed.emit()  # the figures of the run before have gone
        elif isinstance(event, Failed):
            self.failed.emit(event.message)

    def _done(self, event: CommandDone) -> None:
        kind = self._busy.pop(event.run_id, None)
        if kind in _RACE_KINDS:
            self._ended_once = True
            self._stopping = False
            self.progress = None
            ended = self.race.ended.end if self.race.ended is not None else "done"
            self.outcome = "failed" if self.race.error or ended == "error" else ended
            self._mark_stale()
            self._plot_timer.stop()
            self._number_timer.stop()
            self.text_tick.emit()
            self.plot_tick.emit()
            self.number_tick.emit()
        elif kind in ("preload", "job"):
            self._jobs.pop(event.run_id, None)
            self._stopping = self._stopping and self.racing
            if not self.racing:
                self.progress = None
        if not self._busy:
            self._text_timer.stop()
            if kind != "count" and self._count_settings is not None:
                self._count_timer.start()

    def _update_state(self) -> None:
        state = self._find_state()
        if state != self._state:
            if state == "running" and self._live_since is None:
                self._live_since = time.perf_counter(), self._lead_clock()
            self._state = state
            self.state_changed.emit()

    def _find_state(self) -> State:
        if self._stopping:
            return "stopping"
        if self.racing:
            if self.race_running:
                return "running"
            phase = self.progress.phase if self.progress else ""
            return "prefill" if phase == "prefill" else "loading"
        if "job" in self._busy.values():
            return "working"
        if "preload" in self._busy.values():
            return "preloading"
        return "ended" if self._ended_once or self.recorded is not None else "ready"


def shown_settings(settings: RunSettings, lane: LaneSettings) -> dict[str, object]:
    """What a lane's header shows before a run: its flat settings, options filled in."""
    flat = flat_settings(settings, lane)
    if METHODS[lane.method].drafts and lane.k is None:
        flat["k"] = "auto"
    return flat


def _asked(settings: RunSettings) -> RunSettings:
    """What the figures of a run depend on, whatever the order of its lanes; its length is none of it."""
    lanes = tuple(sorted((replace(lane, name="") for lane in settings.lanes), key=repr))
    sampling = replace(settings.sampling, seed=0) if settings.history else settings.sampling  # a turn has a seed of its own
    return replace(settings, lanes=lanes, sampling=sampling, max_tokens=1, observe="full", workload=None, trust_remote_code=False)


def _same_models(first: RunSettings, second: RunSettings) -> bool:
    """Whether two runs use the same loaded models."""
    return set(engine_keys(first)) == set(engine_keys(second))

