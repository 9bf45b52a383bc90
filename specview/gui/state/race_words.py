"""What the headline of a race says while it loads, runs and rests. Plain Python: no Qt."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specview.files.figures import times_short
from specview.files.verdict import Standing, Verdict, verdict
from specview.gui.state import lane_words
from specview.gui.state.figures import shown_rate
from specview.gui.state.view_model import LaneModel, RaceModel
from specview.settings.events import Progress

SHARE_FROM = 0.005
"""Below it no clock has moved yet."""
STALE = "Figures of the run before: target, prompt, lanes or sampling have changed since."
_STARTING = {
    "preloading": ("Loading libraries", "so that Run starts at once"),
    "loading": ("Loading libraries", ""),
    "prefill": ("Reading the prompt", ""),
    "stopping": ("Stopping", ""),
    "closing": ("Closing", ""),
}
"""What is said before something tells more: a sentence, and what stands beside it."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What goes on around a race: the controller's state and outcome, the job under way, whether models are loaded.

    moment: what happens in the moment that is played again, None where the race is the finished one.
    """

    state: str
    job: str = ""
    outcome: str = "done"
    progress: Progress | None = None
    real_time_fraction: float | None = None
    recorded: bool = False
    stale: bool = False
    preloaded: bool = False
    race_running: bool = False
    paused: bool = False
    moment: str | None = None


def headline(race: RaceModel, now: Situation) -> Verdict:
    """The sentence over the lanes, and what stands beside it."""
    if now.state == "running" or (now.state == "stopping" and now.race_running):
        return _running(race, now)
    if now.state in _STARTING or now.state == "working":
        return _waiting(now)
    if now.moment is not None:
        return Verdict(_running(race, now).sentence, now.moment)
    if any(lane.rounds for lane in race.lanes) or race.ended is not None:
        return _ended(race, now)
    rest = "the models are loaded" if now.preloaded else "the first run loads the models"
    return Verdict("Press Run to race these lanes on the prompt.", rest) if race.lanes else Verdict("")


def detail(race: RaceModel, now: Situation) -> str:
    """What the tool tip has besides: rounds of each lane, and how fast the clocks advanced against real time."""
    counts = " · ".join(f"{lane_words.title(lane)} {len(lane.rounds)}" for lane in race.lanes if lane.rounds)
    share = _share(race, now)
    return "\n".join(filter(None, (race.error, f"rounds: {counts}" if counts else "", share)))


def _share(race: RaceModel, now: Situation) -> str:
    share = now.real_time_fraction
    if share is None or share < SHARE_FROM or now.recorded:
        return ""
    return f"shown at {share:.2f}× real time{', lanes take turns' if len(race.lanes) > 1 else ''}"


def waiting(now: Situation) -> bool:
    """Whether something is under way whose progress can be shown."""
    if now.state == "stopping":
        return now.progress is not None and now.progress.phase != "decode" and not now.race_running
    return now.state in ("preloading", "loading", "prefill", "working")


def standing(race: RaceModel, lane: LaneModel) -> Standing:
    """A lane as the sentence takes it."""
    faster = race.speedup(lane)
    rate = shown_rate(faster, race.metrics(lane)) if faster is None else faster.tokens_per_s
    return Standing(
        lane_words.title(lane), lane.emitted, rate, faster, lane.plain,
        bool(lane_words.lossy(lane.settings)), lane.equality, lane.end or "", lane.error, lane.differs,
    )


def _waiting(now: Situation) -> Verdict:
    progress, done = now.progress, ""
    if progress is not None and progress.fraction is not None:
        done = f"{progress.fraction:.0%}"
    if now.state in _STARTING:
        sentence, rest = _STARTING[now.state]
        sentence = progress.text if progress is not None and progress.text and now.state != "stopping" else sentence
    else:
        sentence, rest = now.job[:1].upper() + now.job[1:] or "Working", progress.text if progress is not None else ""
    return Verdict(f"{sentence.rstrip('.…')}…", " · ".join(filter(None, (done, rest))))


def _running(race: RaceModel, now: Situation) -> Verdict:
    if not any(lane.rounds for lane in race.lanes):
        reads = next((lane for lane in race.lanes if lane.state == "prefill"), None)
        if reads is not None:
            done = "" if reads.progress is None else f"{reads.progress:.0%} of {lane_words.title(reads)}'s"
            return Verdict(f"{lane_words.title(reads)} reads the prompt…", done)
        return Verdict("The first round is under way.")
    sentence = "Stopping, round" if now.state == "stopping" else "Paused at round" if now.paused else "Round"
    sentence += f" {max(len(lane.rounds) for lane in race.lanes)}"
    rated = [(found.value, lane) for lane in race.lanes if lane.rounds and (found := race.speedup(lane)) is not None]
    if rated:
        value, best = max(rated, key=lambda pair: pair[0])
        name = lane_words.title(best)
        leads = f"{name} leads," if value > 1 else f"plain decoding leads, {name}"
        sentence += f": {leads} {times_short(value)} so far"
    return Verdict(sentence, _share(race, now))


def _ended(race: RaceModel, now: Situation) -> Verdict:
    found = verdict([replace(standing(race, lane), error="") for lane in race.lanes])  # why one failed, its panel says
    if race.error and now.outcome == "failed" and not now.recorded:
        return Verdict("The race failed.", tone="bad")  # the line over the page says why
    if now.stale:
        return Verdict(found.sentence, STALE, "warning")
    busy = race.ended.busy if race.ended is not None and not now.recorded else ""
    if busy:
        return Verdict(found.sentence, " · ".join(filter(None, (busy.rstrip("."), found.rest))), "warning")
    return Verdict(f"Recorded: {found.sentence}" if now.recorded else found.sentence, found.rest, found.tone)
