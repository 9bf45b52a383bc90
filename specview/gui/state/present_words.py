"""What a presentation says: its title, its speed, its colours, its keys. Plain Python: no Qt."""

from __future__ import annotations

from collections.abc import Mapping

from specview.decoding.metrics import Metrics
from specview.gui.state import lane_words
from specview.gui.state.display_text import visible
from specview.gui.state.view_model import LaneModel, RaceModel

COLOURS: Mapping[str, str] = {
    "accepted": "accepted: the draft was right",
    "corrected": "corrected: the target's own token",
    "bonus": "bonus: one more for free",
    "+2": "drafts thrown away",
    "drafted": "not judged yet",
}
"""The colours in one line: a token's state, or the count as it is drawn, and what it means."""

KEYS: tuple[tuple[str, str], ...] = (
    ("Space", "play, pause"),
    ("← →", "back, on by one phase"),
    ("Shift ← →", "back, on by one round"),
    ("↑ ↓", "faster, slower"),
    ("Home", "from the start"),
    ("N  P", "next, previous run of the playlist"),
    ("A", "go on to the next run by itself, or not"),
    ("R", "run again (a live race)"),
    ("B", "black screen"),
    ("T", "change the title"),
    ("H", "these keys"),
    ("Esc  F11", "leave"),
)

_SPEEDS = {0.125: "one eighth of the speed", 0.25: "quarter speed", 0.5: "half speed", 1.0: "", 2.0: "twice the speed",
           4.0: "four times the speed"}  # fmt: skip
_WAYS = {1: "one way", 2: "two ways", 3: "three ways", 4: "four ways", 5: "five ways"}


def speed_words(speed: float) -> str:
    """A replay's speed in words; '' for the race's own."""
    return _SPEEDS.get(speed, f"{speed:g} times the speed")


def title(race: RaceModel) -> str:
    """A title that holds of any race: the same target in so many ways, with the same text where that is known."""
    if not race.lanes:
        return "specview"
    if any(lane.differs for lane in race.lanes):
        return "Runs compared"
    others = [lane for lane in race.lanes if not lane.plain]
    same = bool(others) and all(lane.equality is not None and lane.equality.equal for lane in others)
    return f"Same model, {'same text, ' if same else ''}{_WAYS.get(len(race.lanes), f'{len(race.lanes)} ways')}"


def line(lane: LaneModel, race: RaceModel, metrics: Metrics) -> str:
    """What stands under a lane's name: its speed, and whether its output is the target's; or what keeps it from one."""
    if lane.error:
        return visible(lane.error)
    if not lane.rounds:
        return visible(lane.progress_text) or (lane.state if lane.state in ("loading", "prefill") else "")
    speed, lossy = lane_words.line(lane, race, metrics)[0].text(brief=True), lane_words.lossy(lane.settings)
    notes = (lane_words.LOSSY if lossy else "", f"not comparable: {lane.differs}" if lane.differs else "")
    return " · ".join(filter(None, (speed, *notes)))
