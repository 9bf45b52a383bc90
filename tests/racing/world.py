"""Test helper: fake engines on a fake clock, put where the race loads its models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specview.decoding.ledger import Round
from specview.decoding.sampling import SamplingParams
from specview.errors import Stopped
from specview.racing.pool import ModelPool
from specview.racing.race import Race
from specview.settings.events import Event, LaneEnded, LaneRound, RaceEnded
from specview.settings.run import LaneSettings, RunSettings
from tests.decoding.toy import FakeClock, FakeEngine, FakeTokenizer, TableModel

VOCAB = 6
PROMPT = "bcdbc"
DRAFTED = LaneSettings("draft-model", k=3)
LOOKUP = LaneSettings("prompt-lookup", k=4)


class World:
    """A target and drafts by name, their clock, and what was loaded.

    Times on the clock: a target pass 1 s and 0.125 s a row, a draft step 0.25 s, prefill 0.0625 s a token.
    """

    def __init__(self, monkeypatch: Any, *, eos_ids: tuple[int, ...] = (), **target: Any) -> None:
        self.clock = FakeClock()
        self.tokenizer = FakeTokenizer(VOCAB, eos_ids)
        self.models: dict[tuple[str, str], Callable[[], FakeEngine]] = {
            ("target", "bundled"): lambda: self.make_target(**target),
            ("draft", "bundled"): lambda: self.make_draft(),
            ("draft", "other"): lambda: self.make_draft(noise=0.6),
            ("draft", "self"): lambda: self.make_draft(noise=0.0),
        }
        self.eos_ids = eos_ids
        self.loads: list[tuple[str, str]] = []
        self.engines: dict[tuple[str, str], FakeEngine] = {}
        self.load_steps = 1
        monkeypatch.setattr("specview.racing.pool.load_engine", self.load)

    def make_target(self, **options: Any) -> FakeEngine:
        options = {"pass_cost": 1.0, "row_cost": 0.125, "prefill_cost": 0.0625, "chunk": 2, **options}
        model = options.pop("model", None) or TableModel(VOCAB, order=3)
        return FakeEngine(
            model,
            VOCAB,
            clock=self.clock,
            tokenizer=self.tokenizer,
            eos_ids=self.eos_ids,
            model_name="fake-target",
            **options,
        )

    def make_draft(self, noise: float = 0.35, **options: Any) -> FakeEngine:
        options = {"pass_cost": 0.25, "prefill_cost": 0.03125, "chunk": 2, **options}
        return FakeEngine(
            TableModel(VOCAB, order=3, noise=noise),
            VOCAB,
            clock=self.clock,
            tokenizer=self.tokenizer,
            model_name="fake-draft",
            **options,
        )

    def load(
        self, ref: str, engine: str, *, role: str, progress: Any = None, should_stop: Any = None, **_: Any
    ) -> FakeEngine:
        self.loads.append((role, ref))
        for step in range(self.load_steps):
            if progress is not None:
                progress(f"Loading {ref}", step / self.load_steps)
            if should_stop is not None and should_stop():
                raise Stopped
        made = self.engines[role, ref] = self.models[role, ref]()
        return made

    def race(
        self, *lanes: LaneSettings, models: ModelPool | None = None, run_id: int = 0, **options: Any
    ) -> Race:
        """A race that is not yet run; plain is its first lane."""
        options = {"prompt": PROMPT, "max_tokens": 24, "chat": False, "observe": "off", **options}
        settings = RunSettings(lanes=(LaneSettings(), *lanes), **options)
        return Race(settings, run_id, models, clock=self.clock)

    def run(self, *lanes: LaneSettings, **options: Any) -> tuple[Race, list[Event]]:
        """A race run to its end, and its events."""
        race = self.race(*lanes, **options)
        events: list[Event] = []
        race.run(events.append)
        return race, events


def of_kind(events: list[Event], kind: type) -> list:
    """Events of one class."""
    return [event for event in events if isinstance(event, kind)]


def rounds_of(events: list[Event], lane: int) -> list[Round]:
    """The rounds of a lane as they were told."""
    return [event.round for event in of_kind(events, LaneRound) if event.lane == lane]


def last_ends(events: list[Event]) -> dict[int, LaneEnded]:
    """The last LaneEnded of each lane."""
    return {event.lane: event for event in of_kind(events, LaneEnded)}


def race_end(events: list[Event]) -> RaceEnded:
    """The one RaceEnded, which is the last event."""
    (end,) = of_kind(events, RaceEnded)
    assert events[-1] is end
    return end


SAMPLED = SamplingParams(temperature=1.0, seed=11)
