"""The grid of a sweep: draft lengths x temperatures x prompts x lanes, each cell a race with plain beside it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from specview.decoding.sampling import SamplingParams
from specview.drafting.lanes import checked_lane
from specview.drafting.registry import METHODS
from specview.errors import UsageError
from specview.files.schema import plain
from specview.racing import workloads
from specview.racing.resolve import checked_run, harmless_lane
from specview.settings.run import MAX_K, LaneSettings, RunSettings, from_json, to_json

Number = TypeVar("Number", int, float)

MAX_REPEATS = 1000
MAX_RUNS = 1_000_000

_NOT_IN_GRID = (
    "prompt", "system", "history", "branch", "workload", "lanes", "sampling", "trust_remote_code", "observe", "baseline",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GridPrompt:
    """One prompt of the grid. group is what figures are pooled by: the workload; bundled: it came with specview.

    follows: it is the turn after the prompt before it.
    """

    group: str
    text: str
    system: str = ""
    name: str = ""
    history: tuple[Mapping[str, str], ...] = ()
    bundled: bool = False
    follows: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the grid: its number, lane (index into the grid's), k (None: the method's own), temperature, prompt."""

    number: int
    lane: int
    k: int | None
    temperature: float
    prompt: int


@dataclass(frozen=True, slots=True)
class Grid:
    """What a sweep measures.

    settings  what all cells share; its prompt, lanes and temperature are not used
    lanes     the methods, plain left out: it runs beside every cell; a lane that names its k keeps it
    """

    settings: RunSettings
    lanes: tuple[LaneSettings, ...]
    ks: tuple[int, ...]
    temperatures: tuple[float, ...]
    prompts: tuple[GridPrompt, ...]
    repeats: int = 1

    @property
    def cell_count(self) -> int:
        """Number of cells, without making them."""
        lengths = sum(1 if lane.k is not None else len(self.ks) for lane in self.lanes)
        return lengths * len(self.temperatures) * len(self.prompts)

    @property
    def run_count(self) -> int:
        """Number of races: every cell as often as it is repeated."""
        return self.cell_count * self.repeats

    def checked(self) -> Grid:
        """Return the grid with every lane's options filled in, k and temperatures in order, none twice.

        Raises UsageError, one line, for an empty grid, one too large, and settings that cannot work.
        """
        lanes = tuple(lane for lane in self.lanes if not lane.plain)
        if not lanes:
            raise UsageError("the grid is empty: no lane drafts.", "Name a method; plain runs beside every cell.")
        for lane in lanes:
            if lane.method not in METHODS:
                checked_lane(lane, self.settings.sampling)  # says which there are
        if not self.ks and any(lane.k is None for lane in lanes):
            raise UsageError("the grid is empty: no k.", "Give draft lengths, for example 1..8.")
        if not self.temperatures:
            raise UsageError("the grid is empty: no temperature.", "Give one or more, for example 0 or 0,0.7.")
        if not self.prompts:
            raise UsageError("the grid is empty: no prompt.", "Choose a workload, or give a file of prompts.")
        if not 1 <= self.repeats <= MAX_REPEATS:
            raise UsageError(f"repeats is {self.repeats}.", f"Use 1 to {MAX_REPEATS}.")
        ks = tuple(sorted(set(self.ks)))
        for k in (ks[0], ks[-1]) if ks else ():
            if not 1 <= k <= MAX_K:
                raise UsageError(f"k is {k}.", f"Use 1 to {MAX_K} drafted tokens a round.")
        temperatures = tuple(sorted(set(self.temperatures)))
        if self.run_count > MAX_RUNS:
            raise UsageError(f"the grid has {self.run_count:,} races.", f"Use {MAX_RUNS:,} or fewer.")
        sampling = replace(self.settings.sampling, temperature=0.0)  # each cell has its own
        settings = checked_run(replace(self.settings, sampling=sampling, lanes=(), baseline=False))
        full = [[checked_lane(lane, self._sampling(temperature)) for temperature in temperatures][0] for lane in lanes]
        return replace(self, settings=settings, lanes=tuple(full), ks=ks, temperatures=temperatures)

    @property
    def shared(self) -> RunSettings:
        """The settings with all lanes: what the races load, whichever comes first."""
        return replace(self.settings, lanes=self.lanes)

    def cells(self) -> Iterator[Cell]:
        """All cells in the order of a repeat: by lane (its weights stay loaded), temperature, prompt, then k."""
        number = 0
        for lane, one in enumerate(self.lanes):
            for temperature in self.temperatures:
                for prompt in range(len(self.prompts)):
                    for k in (one.k,) if one.k is not None else self.ks:
                        yield Cell(number, lane, k, temperature, prompt)
                        number += 1

    def race(self, cell: Cell, repeat: int = 0, lane_name: str = "") -> RunSettings:
        """The settings of a cell's race: plain and the cell's lane.

        Above temperature 0 each prompt and repeat has a seed of its own; lanes and lengths share it, as lanes of a race.
        """
        prompt = self.prompts[cell.prompt]
        lane = replace(self.lanes[cell.lane], k=cell.k)
        return replace(
            self.settings,
            prompt=prompt.text,
            system=prompt.system,
            history=prompt.history,
            workload=prompt.group if prompt.bundled else None,
            sampling=self._sampling(cell.temperature).part(prompt=cell.prompt, repeat=repeat),
            lanes=(LaneSettings(), replace(lane, name=lane_name) if lane_name else lane),
            observe="off",
            baseline=True,
        )

    def _sampling(self, temperature: float) -> SamplingParams:
        return replace(self.settings.sampling, temperature=temperature)

    def to_json(self) -> dict[str, Any]:
        """The grid as JSON values, as it stands in a sweep file."""
        found = plain(to_json(self))
        sampling = found["settings"]["sampling"]
        return {
            "settings": {key: value for key, value in found["settings"].items() if key not in _NOT_IN_GRID},
            "sampling": {key: value for key, value in sampling.items() if key != "temperature"},
            "lanes": found["lanes"],
            "k": found["ks"],
            "temperatures": found["temperatures"],
            "prompts": found["prompts"],
            "repeats": found["repeats"],
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any], *, own: bool = False) -> Grid:
        """The checked grid of a sweep file; raises SpecviewError, TypeError, KeyError or ValueError where it is none.

        What may name another file is left out of it (`racing.resolve`), unless it is the user's `own`: to be compared
        with the grid that he named.
        """
        settings = {key: value for key, value in found["settings"].items() if key not in _NOT_IN_GRID}
        named = {key: found[key] for key in ("lanes", "temperatures", "prompts", "repeats")}
        grid = from_json(cls, {"settings": {**settings, "sampling": found["sampling"]}, "ks": found["k"], **named})
        return (grid if own else replace(grid, lanes=tuple(map(harmless_lane, grid.lanes)))).checked()

    def lane_name(self, lane: int) -> str:
        """A lane's name in the results: its own, numbered where another has the same."""
        own = self.lanes[lane].label
        same = [place for place, other in enumerate(self.lanes) if other.label == own]
        return own if len(same) == 1 else f"{own} ({same.index(lane) + 1})"


def difference(ours: Grid, theirs: Grid) -> str:
    """What sets two grids apart, in a few words that name both values; '' where they are one."""
    mine, other = ours.to_json(), theirs.to_json()
    for section in ("settings", "sampling"):
        for key, value in mine[section].items():
            if value != other[section].get(key):
                return f"{key} was {other[section].get(key)!r} and is {value!r}"
    for key, name in (("k", "k"), ("temperatures", "the temperatures"), ("repeats", "the repeats")):
        if mine[key] != other[key]:
            return f"{name} were {_listed(other[key])} and are {_listed(mine[key])}"
    for key in ("lanes", "prompts"):
        if mine[key] != other[key]:
            return f"the {key} are others"
    return ""


def grid_prompts(names: Sequence[str]) -> tuple[GridPrompt, ...]:
    """The default prompt of each bundled workload, by name; raises UsageError for an unknown one."""
    found = []
    for name in dict.fromkeys(names):
        loaded = workloads.load(name)
        first = loaded.prompts[0]
        found.append(GridPrompt(name, first.text, first.system, first.name, first.history, bundled=True))
    return tuple(found)


def prompts_of_set(loaded: workloads.Workload) -> tuple[GridPrompt, ...]:
    """Every prompt of a set, grouped by the workload each names, else by the set's name."""
    return tuple(
        GridPrompt(
            prompt.workload or loaded.name, prompt.text, prompt.system, prompt.name or f"#{place}", prompt.history,
            follows=prompt.follows,
        )
        for place, prompt in enumerate(loaded.prompts, start=1)
    )


def parse_ks(text: str) -> tuple[int, ...]:
    """Draft lengths of "1..8" (or "1-8"), "1..16:3" (from 1 by steps of 3) or "1,2,4"; raises UsageError, one line."""
    text = re.sub(r"(\d)\s*-\s*(\d)", r"\1..\2", text)  # as what-if and people write it
    return _parse(text, "k", int, "whole numbers, for example 1..8 or 1,2,4", 1, 1, MAX_K)


def parse_temperatures(text: str) -> tuple[float, ...]:
    """Temperatures of "0,0.7" or "0..1:0.25"; raises UsageError, one line."""
    return _parse(text, "temperature", float, "numbers, for example 0,0.7", None, 0.0, None)


_RANGE = re.compile(r"(.+?)\.\.(.+?)(?::(.+))?")
_MOST_VALUES = 1000


def _parse(
    text: str, name: str, kind: type[Number], fits: str, usual_step: Number | None, low: Number, high: Number | None
) -> tuple[Number, ...]:
    def read(word: str) -> Number:
        try:
            value = kind(word.strip())
            if math.isfinite(value):
                return value
        except (ValueError, OverflowError):
            pass
        raise UsageError(f"{name} is {word.strip()!r}.", f"Use {fits}.")

    found: list[Number] = []
    for item in filter(None, map(str.strip, text.split(","))):
        span = _RANGE.fullmatch(item)
        if span is None:
            found.append(read(item))
            continue
        first, last = read(span[1]), read(span[2])
        step = read(span[3]) if span[3] is not None else usual_step
        if step is None:
            raise UsageError(f"{name} {item!r} names no step.", "Write first..last:step, for example 0..1:0.25.")
        if step <= 0 or last < first:
            raise UsageError(f"{name} {item!r} holds nothing.", "Write first..last, the least first, or first..last:step.")
        count = math.floor((last - first) / step + 1e-9) + 1
        if count > _MOST_VALUES:
            raise UsageError(f"{name} {item!r} holds {count:,} values.", f"Use {_MOST_VALUES} or fewer.")
        found += [first + place * step for place in range(count)]
    if not found:
        raise UsageError(f"the grid is empty: no {name}.", "Give one value or more, with commas between.")
    for value in found:
        if value < low or (high is not None and value > high):
            bounds = f"{low:g} to {high:g}" if high is not None else f"{low:g} or more"
            raise UsageError(f"{name} is {value:g}.", f"Use {bounds}.")
    return tuple(dict.fromkeys(round(value, 10) if isinstance(value, float) else value for value in found))


def _listed(values: Any) -> str:
    return ", ".join(f"{value:g}" for value in values) if isinstance(values, list) else str(values)
