"""What the window shows of a race, folded from its events. Plain Python: no Qt.

`RaceModel.apply(event)` is the only way in. Views keep a reference to a `LaneModel` and redraw what
changed since they last looked: `generation` counts fresh starts, `version` every change. Within one generation `tokens`
only grow, but for a race that is played again (`playhead`): the first `settled` of them stand.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from specview.decoding.ledger import End, Round, finished
from specview.decoding.metrics import Metrics, fold
from specview.decoding.phases import Stage, TokenState
from specview.decoding.round_table import RoundTable
from specview.decoding.speedup import Speedup, speedup
from specview.drafting.plain import BASELINE
from specview.settings.branch import known_branch
from specview.settings.events import (
    Equality,
    Event,
    Failed,
    LaneEnded,
    LanePrefilled,
    LaneRound,
    Progress,
    RaceEnded,
    RaceStarted,
)
from specview.settings.run import TARGET_FIELDS, LaneSettings

TokenKind = Literal["accepted", "corrected", "bonus", "plain", "rejected", "ignored", "drafted", "given"]
"""drafted: proposed in the round under way and not judged yet. given: a piece of what the output goes on from, before it all."""
LaneState = Literal["idle", "loading", "prefill", "running", "ended"]
RaceState = Literal["idle", "loading", "running", "ended"]
_PIECES = re.compile(r"\S{1,40}\s*|\s+")
FINAL = -1
"""The token index of a round's final token."""

GHOSTS: frozenset[str] = frozenset({"rejected", "ignored"})
SHOWN_IGNORED = 6
"""Ignored drafts of a chain that are drawn one by one; the others, and all those of a tree, are counted."""


class ViewToken(NamedTuple):
    """One token to draw.

    round_index counts within `LaneModel.rounds`, the round under way being the one after them (`round_at`); token_index
    within that round's draft, FINAL (-1) for its final token; position is the place in the output, None for a ghost and
    for one that is not judged yet. folded is how many such drafts this one stands for, token_index being the first of
    them; 0 for a token itself. What was given is of no round (-1), and nothing to point at.
    """

    text: str
    kind: TokenKind
    round_index: int
    token_index: int
    position: int | None
    folded: int = 0

    @property
    def ghost(self) -> bool:
        """Whether this token was drafted and thrown away: it is not part of the output."""
        return self.kind in GHOSTS


def drawn(round_: Round, states: Sequence[TokenState] | None = None) -> tuple[list[int], list[int]]:
    """Which of a round's drafted tokens are drawn one by one, and which are folded into one count, by index.

    Of a chain the first ignored drafts are drawn, of a tree none: a lookahead round has dozens. states are those of the
    drafted tokens in a round under way, where what is not judged yet is folded alike.
    """
    if states is None:
        states = [token.verdict for token in round_.drafted]
    seen = [place for place, state in enumerate(states) if state != "unseen"]
    if round_.parents is None and round_.k <= SHOWN_IGNORED + 1:
        return seen, []
    room = SHOWN_IGNORED if round_.parents is None else 0
    shown: list[int] = []
    folded: list[int] = []
    for place in seen:
        if states[place] not in ("ignored", "drafted"):
            shown.append(place)
        elif room > 0:
            shown.append(place)
            room -= 1
        else:
            folded.append(place)
    if len(folded) == 1 and round_.parents is None:  # a count of one takes as much room as the token
        return shown + folded, []
    return shown, folded


def view_tokens(
    round_: Round, index: int, emitted: int, states: Sequence[TokenState] | None = None, final: bool = True
) -> Iterator[ViewToken]:
    """What is drawn of round `index`, which begins at output position `emitted`: all of it, or what states and final say."""
    shown, folded = drawn(round_, states)
    for place in shown:
        token = round_.drafted[place]
        kind: Any = token.verdict if states is None else states[place]
        yield ViewToken(token.text, kind, index, place, emitted if kind == "accepted" else None)
        emitted += kind == "accepted"
    if folded:
        kind = "ignored" if states is None else states[folded[0]]
        yield ViewToken(f"+{len(folded)}", kind, index, folded[0], None, len(folded))
    if round_.final is not None and final:
        yield ViewToken(round_.final.text, round_.final.kind, index, FINAL, emitted)


class UnderWay(NamedTuple):
    """A round of which not all has happened: as far as it has come, and the stage it is in."""

    round: Round
    stage: Stage


@dataclass(slots=True, eq=False)
class LaneModel:
    """One lane: its settings, state, tokens and figures."""

    name: str = BASELINE
    settings: Mapping[str, Any] = field(default_factory=dict)
    state: LaneState = "idle"
    progress_text: str = ""
    progress: float | None = None
    kv_bytes: int = 0
    draft_weight_bytes: int = 0
    end: End | None = None
    error: str = ""
    rounds: list[Round] = field(default_factory=list)  # whole ones
    under_way: UnderWay | None = None  # of a race that is played again: the round after them
    tokens: list[ViewToken] = field(default_factory=list)
    table: RoundTable = field(default_factory=RoundTable)
    final_metrics: Metrics | None = None
    final_speedup: Speedup | None = None
    equality: Equality | None = None
    past_speedups: list[Speedup] = field(default_factory=list)
    differs: str = ""  # of a lane laid beside another run's: what keeps it from being compared ("other prompt")
    wanted: LaneSettings | None = None  # the lane set up that it stands for
    stale: bool = False  # of a run with other settings than those set now
    given: str = ""  # of a branch: the output that it goes on from
    generation: int = 0
    version: int = 0
    _starts: list[int] = field(default_factory=list)
    _counted: bool = False
    _folded: tuple[Any, Metrics] | None = None
    _compared: tuple[Any, Speedup | None] | None = None

    def __post_init__(self) -> None:
        """What was given stands first, in pieces that are laid out as tokens are."""
        self.tokens += (ViewToken(piece, "given", -1, 0, None) for piece in _PIECES.findall(self.given))

    @property
    def method(self) -> str:
        """The drafting method; 'plain' for plain decoding."""
        return str(self.settings.get("method") or self.name)

    @property
    def plain(self) -> bool:
        """Whether this is plain decoding, the baseline."""
        return self.method == BASELINE

    @property
    def text(self) -> str:
        """The output text so far, without ghosts."""
        return "".join(token.text for token in self.tokens if token.position is not None)

    @property
    def reply(self) -> str:
        """What was given and the output so far."""
        return self.given + self.text

    @property
    def decoded(self) -> bool:
        """Whether it has rounds, at whatever moment it is shown."""
        return bool(self._starts)

    @property
    def settled(self) -> int:
        """How many of `tokens` stand for good: those after them are of the round under way."""
        return len(self.tokens) if self.under_way is None else self._starts[len(self.rounds)]

    def round_at(self, index: int) -> Round:
        """A round that tokens belong to: a whole one, or the one under way, in which what is not judged yet is `ignored`."""
        return self.under_way.round if self.under_way is not None and index == len(self.rounds) else self.rounds[index]

    def metrics(self, plain_step_s: float | None = None) -> Metrics:
        """The figures so far; after the end those the race computed.

        plain_step_s, the plain lane's, brings costs and predictions: see `RaceModel.metrics`.
        """
        if self.final_metrics is not None:
            return self.final_metrics
        key = self.table, len(self.table), self.table.prefill_s, plain_step_s
        if self._folded is None or self._folded[0] != key:  # several views ask for them, and 20,000 rounds take 20 ms
            self._folded = key, fold(self.table, plain_step_s=plain_step_s)
        return self._folded[1]

    @property
    def prefill_s(self) -> float | None:
        """Time of the prefill, seconds; None before its end."""
        return self.table.prefill_s

    @property
    def emitted(self) -> int:
        """Tokens of the output so far."""
        return self.table.emitted

    @property
    def clock_s(self) -> float:
        """The lane's own clock, seconds since the end of prefill."""
        return self.table.end_s

    @property
    def known_rounds(self) -> int:
        """Rounds that tokens belong to: the whole ones, and the one under way."""
        return len(self.rounds) + (self.under_way is not None)

    def index_of(self, round_index: int, token_index: int) -> int | None:
        """Return where a round's token stands in `tokens`; one that is folded has its count's place."""
        known = self.known_rounds
        if not 0 <= round_index < known:
            return None
        end = self._starts[round_index + 1] if round_index + 1 < known else len(self.tokens)
        places = range(self._starts[round_index], end)
        found = next((place for place in places if self.tokens[place].token_index == token_index), None)
        if found is None and self.state_of(round_index, token_index) not in (None, "unseen"):
            return next((place for place in places if self.tokens[place].folded), None)
        return found

    def state_of(self, round_index: int, token_index: int) -> TokenState | None:
        """What is known of a round's drafted token at this moment; None for no such one, and for the final one."""
        if not 0 <= token_index < self.round_at(round_index).k:
            return None
        if round_index == len(self.rounds) and self.under_way is not None:
            return self.under_way.stage.states[token_index]
        return self.rounds[round_index].drafted[token_index].verdict

    def position_of(self, round_index: int, token_index: int) -> int:
        """Return the output position that a round's token has, or was tried for: in a tree by its depth."""
        round_ = self.round_at(round_index)
        first = int(self.table["emitted"][:round_index].sum())
        return first + (round_.accepted if token_index == FINAL else round_.depths[token_index])

    def add(self, round_: Round) -> None:
        """Append one finished round."""
        self._starts.append(len(self.tokens))
        self.tokens += view_tokens(round_, len(self.rounds), self.emitted)
        self.rounds.append(round_)
        self.table.add(round_)
        self.final_metrics = None
        if self._counted:  # it goes on after an end: that end's speedup was not yet this run's
            self.past_speedups.pop()
            self._counted = False
        self.final_speedup = None
        self.equality = None
        self.end = None
        self.error = ""
        self.state = "running"
        self.version += 1

    def restart(self, name: str, settings: Mapping[str, Any], past_speedups: list[Speedup], given: str = "") -> None:
        """Forget the run before; the lane is idle again."""
        generation, version = self.generation + 1, self.version + 1
        self.__init__(  # type: ignore[misc]
            name=name, settings=settings, past_speedups=past_speedups, generation=generation, version=version, wanted=self.wanted,
            given=given,
        )


class RaceModel:
    """All lanes of the race on screen, and the run's own state."""

    def __init__(self) -> None:
        self.run_id = -1
        self.lanes: list[LaneModel] = []
        self.state: RaceState = "idle"
        self.progress: Progress | None = None
        self.prompt_text = ""
        self.prompt_ids: tuple[int, ...] = ()
        self.facts: Mapping[str, Any] = {}
        self.error = ""
        self.ended: RaceEnded | None = None
        self._history: dict[tuple[Any, ...], list[Speedup]] = {}

    # -- between runs ------------------------------------------------------------------------

    def begin(self, run_id: int) -> None:
        """Follow the events of a new run; the lanes keep what they hold until it has loaded."""
        self.run_id = run_id
        self.state = "loading"
        self.progress = None
        self.error = ""
        self.ended = None
        for lane in self.lanes:
            lane.state = "loading"
            lane.progress_text, lane.progress = "", None
            lane.version += 1

    def show(self, other: RaceModel) -> None:
        """Show another race in place of this one (a recorded run); the number of the run stays, for stale events."""
        self.lanes = list(other.lanes)
        self.state, self.progress, self.error, self.ended = other.state, None, other.error, other.ended
        self.prompt_text, self.prompt_ids, self.facts = other.prompt_text, other.prompt_ids, other.facts

    # -- events -------------------------------------------------------------------------------

    def apply(self, event: Event) -> bool:
        """Fold one event in; False when it belongs to a stale run."""
        if event.run_id < self.run_id:
            return False
        if event.run_id > self.run_id:
            self.begin(event.run_id)
        match event:
            case Progress():
                self._progress(event)
            case RaceStarted():
                self._started(event)
            case LanePrefilled():
                if lane := self.lane(event.lane):
                    lane.table.prefill_s, lane.kv_bytes = event.prefill_s, event.kv_bytes
                    lane.draft_weight_bytes = event.draft_weight_bytes
                    lane.state, lane.progress_text, lane.progress = "running", "", None
                    lane.version += 1
            case LaneRound():
                if lane := self.lane(event.lane):
                    lane.add(event.round)
                    self.state = "running"
            case LaneEnded():
                self._lane_ended(event)
            case RaceEnded():
                self._finish(event.end)
                self.ended = event
            case Failed():
                self.error = event.message
                self._finish("error")
        return True

    def lane(self, index: int) -> LaneModel | None:
        """Return a lane by its index in the race, None where there is none."""
        return self.lanes[index] if 0 <= index < len(self.lanes) else None

    def _progress(self, event: Progress) -> None:
        self.progress = event
        if event.lane is None:
            targets = [lane for lane in self.lanes if lane.state == "loading"]
        else:
            lane = self.lane(event.lane)
            targets = [] if lane is None else [lane]
        for lane in targets:
            if event.phase != "decode" and lane.state not in ("running", "ended"):
                lane.state = "prefill" if event.phase == "prefill" else "loading"
            lane.progress_text, lane.progress = event.text, event.fraction
            lane.version += 1

    def _started(self, event: RaceStarted) -> None:
        self.state = "running"
        self.prompt_ids, self.prompt_text, self.facts = event.prompt_ids, event.prompt_text, event.facts
        names, settings = event.lane_names, event.lane_settings
        del self.lanes[len(names):]
        while len(self.lanes) < len(names):
            self.lanes.append(LaneModel())
        branch = known_branch(event.facts)
        given = branch.given if branch is not None else ""
        seen: Counter[tuple[Any, ...]] = Counter()
        for lane, name, flat in zip(self.lanes, names, settings, strict=True):
            same: tuple[Any, ...] = (event.prompt_ids, *sorted((k, repr(v)) for k, v in flat.items()))
            seen[same] += 1  # two lanes may have the same settings
            key = (seen[same], *same)
            lane.restart(name, flat, self._history.setdefault(key, []), given)
            lane.state = "loading"

    def _lane_ended(self, event: LaneEnded) -> None:
        lane = self.lane(event.lane)
        if lane is None:
            return
        lane.state, lane.end, lane.error = "ended", event.end, event.error
        lane.progress_text, lane.progress = "", None
        lane.final_metrics, lane.final_speedup, lane.equality = event.metrics, event.speedup, event.equality
        if event.speedup is not None and finished(event.end):
            if lane._counted:  # the race's end tells it again, with all lanes done
                lane.past_speedups.pop()
            lane.past_speedups.append(event.speedup)
            lane._counted = True
        lane.version += 1

    def _finish(self, end: str) -> None:
        self.state = "ended"
        self.progress = None
        for lane in self.lanes:
            if lane.state in ("ended", "idle"):
                continue
            lane.progress_text, lane.progress = "", None
            lane.version += 1
            if lane.rounds or end == "stopped":
                lane.state = "ended"
                lane.end = lane.end or ("stopped" if end == "stopped" else "error")
            else:
                lane.state = "idle"

    # -- against plain --------------------------------------------------------------------------

    @property
    def baseline(self) -> LaneModel | None:
        """The plain lane."""
        return next((lane for lane in self.lanes if lane.plain and not lane.differs), None)

    def metrics(self, lane: LaneModel) -> Metrics:
        """The lane's figures so far, costs and predictions measured against the plain lane."""
        plain = None if lane.differs else self.baseline
        return lane.metrics(None if plain is None or plain is lane else plain.table.plain_step_s())

    def speedup(self, lane: LaneModel) -> Speedup | None:
        """Decode tok/s as shown over plain's as shown; None while unknown.

        Where the two are not alike in length, or the longer one's rest drifted, over the time in which both were running. The
        spread of a finished run that had the same settings as others before it is over all of them.
        """
        plain = self.baseline
        if plain is None or lane is plain or lane.differs:
            return None
        if lane.final_speedup is None or plain.state == "running":  # a replay that has not come to plain's end
            running = sum(one.state != "ended" for one in (lane, plain))
            key = lane.table, len(lane.table), plain.table, len(plain.table), running
            if lane._compared is None or lane._compared[0] != key:
                lane._compared = key, speedup(lane.table, plain.table, running)
            return lane._compared[1]
        return lane.final_speedup.beside(lane.past_speedups if lane._counted else [])


def target_of(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes the measured passes of one lane those of another: the same target on the same engine and device."""
    return tuple(settings.get(key) for key in TARGET_FIELDS)
