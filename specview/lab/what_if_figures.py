"""The figures of a what-if: ranges, alternatives, what to take from them, and all of it as a Report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from specview.decoding.speedup import Speedup
from specview.files.report import Report, Section, Table, Text
from specview.files.schema import plain
from specview.files.tables import Column, Row
from specview.lab.measured import Measured, MeasuredCosts

How = Literal["measured", "exact", "modelled", "bounds"]
Kind = Literal["recorded", "length", "policy", "oracle"]


@dataclass(frozen=True, slots=True)
class Range:
    """A figure: its value, and the least and the greatest that it can be."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float) -> Range:
        """A figure that is known."""
        return cls(value, value, value)

    def under(self, total: float) -> Range:
        """What `total` is over this."""
        return Range(total / self.value, total / self.high, total / self.low)

    @property
    def known(self) -> bool:
        """Whether there is nothing between low and high."""
        return self.low == self.high


def policy_words(name: str, values: Mapping[str, Any], k: int) -> str:
    """A length policy with its options and k, in short."""
    if name == "constant":
        return f"k {k}"
    if name == "confidence":
        return f"confidence {values['threshold']:g}, up to {k}"
    if name == "off-below":
        return f"off-below {values['threshold']:g}, k {k}"
    return f"{name} {'from' if name == 'heuristic' else 'up to'} {k}"


def range_of(faster: Speedup) -> Range:
    """A measured speedup with its spread."""
    low, high = faster.spread or (faster.value, faster.value)
    return Range(faster.value, low, high)


@dataclass(frozen=True, slots=True)
class Alternative:
    """What one way to choose the draft length would have cost.

    tokens_per_pass  emitted / target passes;  drafted  tokens drafted a round
    seconds, speedup  by measured costs, over plain decoding, the speedup scaled down where these costs make too much of
    the recorded run; None where the costs are not known. Of what was measured the measurement, with its spread
    how  measured (the run itself), exact, modelled, or bounds (the true figure lies between low and high)
    why  what that rests on;  cost_words  where the passes' times come from
    """

    name: str
    kind: Kind
    policy: str
    k: int
    tokens_per_pass: Range
    rounds: Range
    drafted: float
    seconds: Range | None
    speedup: Range | None
    how: How
    why: str
    options: Mapping[str, Any] = field(default_factory=dict)
    cost_words: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The figures by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A lane's recorded run, what else it could have been, and the lane's costs.

    best is the fastest alternative that can be had (no oracle), None where no times are known.
    """

    lane: str
    method: str
    tokens: int
    recorded: Alternative
    alternatives: tuple[Alternative, ...]
    costs: MeasuredCosts | None
    notes: tuple[str, ...] = ()
    timed: bool = True  # False: recorded in check mode, whose times say nothing
    measured: Measured = field(default_factory=Measured)

    @property
    def real(self) -> list[Alternative]:
        """What can be had: no oracles."""
        return [one for one in self.alternatives if one.kind != "oracle"]

    @property
    def best(self) -> Alternative | None:
        """The fastest that is no oracle; None where times say nothing."""
        return _fastest(self.real) if self.timed else None

    @property
    def better(self) -> Alternative | None:
        """The fastest that is told apart from every measurement beside it; None where none is."""
        if self.best is None:
            return None
        return _fastest(
            one for one in self.real if one.speedup is not None and not self._is_recorded(one)
            and self.measured.told_apart(one.speedup.low, one.k if one.policy == "constant" else None)
        )  # fmt: skip

    @property
    def advised(self) -> Alternative | None:
        """What to use: told apart from every measurement, or, where there is none, the fastest by the costs."""
        return self.best if self.measured.own is None else self.better

    def _is_recorded(self, one: Alternative) -> bool:
        run = self.recorded
        return (one.policy, one.k, one.options) == (run.policy, run.k, run.options)

    @property
    def sentence(self) -> str:
        """What to take from it, in plain words."""
        best, run, own = self.best, self.recorded, self.measured.own
        if not self.timed:
            fewest = min(self.real, key=lambda one: one.rounds.value, default=None)
            return "Check mode's times say nothing" + (
                ", and nothing else was asked for." if fewest is None
                else f"; of target passes {fewest.name} takes the fewest here, {fewest.rounds.value:.0f} beside "
                     f"{run.rounds.value:.0f} as recorded."
            )  # fmt: skip
        if best is None or best.speedup is None:
            return "Times are not known: record the run beside a plain lane (specview compare --trace)."
        speed = f"{best.name} comes to {best.speedup.value:.2f}x"
        if own is None:
            same = next((one for one in self.alternatives if self._is_recorded(one)), run)
            now, top = same.speedup, best.speedup.value
            if top >= 1 and (now is None or top <= 1.02 * now.value):
                told = "" if now is None else f", {now.value:.2f}x by the same costs"
                return f"The recorded choice is about the best of these{told}{'' if best is same else f'; {speed}'}."
            return _fastest_words(best, "" if now is None else f"comes to {now.value:.2f}x by the same costs")
        now_words = f"{run.speedup.value:.2f}x as measured" if run.speedup else ""
        if self.better is not None:
            return _fastest_words(self.better, f"gave {now_words}")
        if own.high is not None and own.high < 1:
            return f"No draft length would have paid here: the recorded choice gave {now_words}, and no other is clearly faster than plain."
        if own.spread is None:
            return f"The recorded choice gave {now_words}; there are too few rounds to say that another is better."
        beside = "" if self._is_recorded(best) else f"; {speed}, no clear difference"
        return f"No other choice is clearly faster than the recorded one, {now_words}{beside}."


def _fastest(ones: Iterable[Alternative]) -> Alternative | None:
    timed = [(one.speedup.value, one) for one in ones if one.speedup is not None]
    return max(timed, key=lambda item: item[0])[1] if timed else None


def _fastest_words(best: Alternative, recorded: str) -> str:
    assert best.speedup is not None
    if best.speedup.value < 1:
        return f"No draft length would have paid here: the best, {best.name}, predicts {best.speedup.value:.2f}x."
    return f"{best.name} would have been fastest: {best.speedup.value:.2f}x, where the recorded choice {recorded}."


# -- the report -------------------------------------------------------------------------------------------

COLUMNS = (
    Column("name", "what if", "The length policy, its threshold and k; the oracles choose knowing the text"),
    Column("speedup", "speedup", "plain's time / this one's, both by the measured costs of this run", 2, unit="×",
           spread=("speedup_low", "speedup_high")),
    Column("speedup_low", "at least", "The least that the speedup can be, where the trace leaves something open", 2, unit="×"),
    Column("speedup_high", "at most", "The most that the speedup can be", 2, unit="×"),
    Column("tokens_per_pass", "tok/pass", "emitted tokens / target passes", 2, spread=("tokens_per_pass_low", "tokens_per_pass_high")),
    Column("rounds", "passes", "target passes", 0, spread=("rounds_low", "rounds_high")),
    Column("drafted", "drafted", "tokens drafted a round, on average", 2),
    Column("seconds", "time", "of all rounds, by the measured costs", 2, unit=" s", spread=("seconds_low", "seconds_high")),
    Column("how", "figures", "measured; exact; modelled; bounds (the true figure lies within)"),
    Column("cost_words", "pass times", "where the costs of its passes come from"),
    Column("why", "rests on"),
)  # fmt: skip
BEST = Column("mark", "")
PRINTED = ("name", "tokens_per_pass", "rounds", "drafted", "seconds", "speedup", "how", "cost_words", "mark")


def row_of(one: Alternative) -> Row:
    """An alternative as a row of the table: of ranges the ends too, where something is open."""
    row = {name: getattr(one, name) for name in ("name", "drafted", "how", "cost_words", "why")}
    for name in ("speedup", "tokens_per_pass", "rounds", "seconds"):
        found: Range | None = getattr(one, name)
        row[name] = None if found is None else found.value
        if found is not None and not found.known:
            row |= {f"{name}_low": found.low, f"{name}_high": found.high}
    return row


def what_if_report(found: WhatIf, document: Mapping[str, Any] | None = None) -> Report:
    """The recorded run first, the best row marked, and what the figures rest on; document is what the file says of the run."""
    best, costs = found.advised, found.costs
    rows = [{**row_of(one), "mark": "best" if one is best else None} for one in (found.recorded, *found.alternatives)]
    whys: dict[tuple[str, str], list[str]] = {}
    for one in found.alternatives:
        whys.setdefault((one.how, one.why), []).append(one.name)
    notes = [f"{how}: {why} ({_names(names)})" for (how, why), names in whys.items()]
    if costs is not None:
        notes.append(
            f"by this run's costs: c {costs.c:.3f}, a plain round {1000 * costs.plain_round_s:.1f} ms; pass times: measured "
            "in this lane, calibrated (another lane, or --costs), interpolated between, extrapolated beyond"
        )
    table = Table((*COLUMNS, BEST), rows, name="what-if", identity="name", printed=PRINTED)
    title = f"lane {found.lane}: {found.method}, {found.tokens} tokens"
    return Report(title, [table, Text(found.sentence), Section("", [Text(note) for note in (*notes, *found.notes)])], {
        **(document or {}),
        "name": found.lane,
        "method": found.method,
        "tokens": found.tokens,
        "recorded": plain(found.recorded.as_dict()),
        "alternatives": [plain(one.as_dict()) for one in found.alternatives],
        "best": None if best is None else best.name,
        "sentence": found.sentence,
        "notes": list(found.notes),
        "costs": None if costs is None else plain(costs.as_dict()),
    })  # fmt: skip


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])}, and {len(names) - 3} more"
