"""An engine's counters: Prometheus text in, sums and differences out. A server that began anew counts from 0 again."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

Labels = tuple[tuple[str, str], ...]
Samples = dict[str, dict[Labels, float]]
"""Name -> labels -> value."""

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+([^\s]+)(?:\s+-?\d+)?$")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


@dataclass(frozen=True, slots=True)
class Names:
    """What an engine calls its counters; "" where it has none such.

    drafts counts passes that judged a draft, drafted and accepted tokens, generated output tokens; per_position has a label `position`.
    path is where they are read.
    """

    drafts: str = ""
    drafted: str = ""
    accepted: str = ""
    per_position: str = ""
    generated: str = ""
    running: str = ""
    waiting: str = ""
    path: str = "/metrics"

    @property
    def counted(self) -> dict[str, str]:
        """Those that only grow, by what they count."""
        found = {"drafts": self.drafts, "drafted": self.drafted, "accepted": self.accepted, "generated": self.generated}
        return {what: name for what, name in found.items() if name}


@dataclass(frozen=True, slots=True)
class Counted:
    """What counters say of the time between two readings, or since the server's start: None where they are absent.

    positions are accepted tokens by place in the draft; running and waiting are requests at the second reading. began_anew: the server
    counted from 0 in between, and what it counted before that is lost. absent: names that should be there.
    """

    drafts: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    generated: int | None = None
    positions: tuple[int, ...] = ()
    running: int | None = None
    waiting: int | None = None
    began_anew: bool = False
    absent: tuple[str, ...] = field(default=())

    @property
    def draft_acceptance(self) -> float | None:
        """accepted / drafted."""
        return self.accepted / self.drafted if self.drafted and self.accepted is not None else None

    @property
    def mean_accepted_length(self) -> float | None:
        """1 + accepted / passes with a draft."""
        return 1 + self.accepted / self.drafts if self.drafts and self.accepted is not None else None


def samples(text: str) -> Samples:
    """The samples of a Prometheus page; lines that are none are passed over."""
    found: Samples = {}
    for line in text.splitlines():
        if not line or line.startswith("#") or (match := _SAMPLE.match(line.strip())) is None:
            continue
        name, labels, value = match.groups()
        try:
            number = float(value)
        except ValueError:
            continue
        pairs = tuple(sorted((key, re.sub(r"\\[\\\"n]", lambda one: _ESCAPES[one[0]], text)) for key, text in _LABEL.findall(labels or "")))
        found.setdefault(name, {})[pairs] = number
    return found


def counted(names: Names, now: Samples, before: Samples | None = None) -> Counted:
    """What was counted between `before` (None: the server's start) and `now`, all engines and models of the server together."""
    growth = {what: _grown(name, now, before) for what, name in names.counted.items()}
    begun = any(anew for _, anew in growth.values())
    return Counted(
        **{what: None if value is None else round(value) for what, (value, _) in growth.items()},
        positions=_positions(names.per_position, now, before),
        running=_total(names.running, now),
        waiting=_total(names.waiting, now),
        began_anew=begun,
        absent=tuple(name for name in names.counted.values() if name not in now),
    )


def _grown(name: str, now: Samples, before: Samples | None) -> tuple[float | None, bool]:
    """How much a counter grew, each of its series by itself, and whether one began anew."""
    if name not in now:
        return None, False
    total, anew = 0.0, False
    for labels, value in now[name].items():
        old = (before or {}).get(name, {}).get(labels, 0.0)
        if not math.isfinite(value):
            continue
        anew |= value < old
        total += value if value < old else value - old
    return total, anew


def _positions(name: str, now: Samples, before: Samples | None) -> tuple[int, ...]:
    places: dict[int, float] = {}
    for labels, value in now.get(name, {}).items():
        place = dict(labels).get("position", "")
        old = (before or {}).get(name, {}).get(labels, 0.0)
        if place.isdigit() and math.isfinite(value):
            places[int(place)] = places.get(int(place), 0.0) + (value if value < old else value - old)
    return tuple(round(places.get(place, 0.0)) for place in range(max(places) + 1)) if places and max(places) < 4096 else ()


def _total(name: str, now: Samples) -> int | None:
    values: Mapping[Labels, float] = now.get(name, {})
    return round(sum(value for value in values.values() if math.isfinite(value))) if values else None
