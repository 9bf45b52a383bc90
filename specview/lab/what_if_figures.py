"""The figures of a what-if: ranges, alternatives, and what to take from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from specview.decoding.speedup import Speedup
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

    @property
    def known(self) -> bool:
        """Whether there is nothing between low and high."""
        return self.low == self.high


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
    def better(self) -> Alternative | None:
        """The fastest that is told apart from every measurement beside it; None where none is."""
        if not self.timed or self.best is None:
            return None
        found = [
            one for one in self.alternatives
            if one.kind != "oracle" and one.speedup is not None and not self._is_recorded(one)
            and self.measured.told_apart(one.speedup.low, one.k if one.policy == "constant" else None)
        ]  # fmt: skip
        return max(found, key=lambda one: one.speedup.value if one.speedup else 0.0, default=None)

    @property
    def advised(self) -> Alternative | None:
        """What to use: told apart from every measurement, or, where there is none, the fastest by the costs."""
        return self.best if self.measured.own is None else self.better

    def _is_recorded(self, one: Alternative) -> bool:
        run = self.recorded
        return (one.policy, one.k, one.options) == (run.policy, run.k, run.options)

    @property
    def best(self) -> Alternative | None:
        """The fastest that is no oracle; None where times say nothing."""
        if not self.timed:
            return None
        real = [one for one in self.alternatives if one.kind != "oracle" and one.speedup is not None]
        return max(real, key=lambda one: one.speedup.value if one.speedup else 0.0, default=None)

    @property
    def sentence(self) -> str:
        """What to take from it, in plain words."""
        best, run = self.best, self.recorded
        if not self.timed:
            real = [one for one in self.alternatives if one.kind != "oracle"]
            fewest = min(real, key=lambda one: one.rounds.value, default=None)
            if fewest is None:
                return "Check mode's times say nothing, and nothing else was asked for."
            return (
                f"Check mode's times say nothing; of target passes {fewest.name} takes the fewest here, "
                f"{fewest.rounds.value:.0f} beside {run.rounds.value:.0f} as recorded."
            )
        if best is None or best.speedup is None:
            return "Times are not known: record the run beside a plain lane (specview compare --trace)."
        if self.measured.own is None:
            return self._modelled_words(best)
        now = f"{run.speedup.value:.2f}x as measured" if run.speedup else ""
        better = self.better
        if better is not None and better.speedup is not None:
            if better.speedup.value < 1:
                return f"No draft length would have paid here: the best, {better.name}, predicts {better.speedup.value:.2f}x."
            return f"{better.name} would have been fastest: {better.speedup.value:.2f}x, where the recorded choice gave {now}."
        if self.measured.own.high is not None and self.measured.own.high < 1:
            return f"No draft length would have paid here: the recorded choice gave {now}, and no other is told apart from plain."
        if self.measured.own.spread is None:
            return f"The recorded choice gave {now}; so few rounds tell no other choice apart from it."
        beside = "" if self._is_recorded(best) else f"; {best.name} comes to {best.speedup.value:.2f}x, not told apart from it"
        return f"No other choice is told apart from the recorded one, {now}{beside}."

    def _modelled_words(self, best: Alternative) -> str:
        """The same where no plain lane ran beside it: by the costs alone."""
        same = next((one for one in self.alternatives if self._is_recorded(one)), self.recorded)
        now = same.speedup
        assert best.speedup is not None
        if best.speedup.value < 1:
            return f"No draft length would have paid here: the best, {best.name}, predicts {best.speedup.value:.2f}x."
        if now is None or best.speedup.value <= 1.02 * now.value:
            beside = "" if best is same else f"; {best.name} comes to {best.speedup.value:.2f}x"
            told = "" if now is None else f", {now.value:.2f}x by the same costs"
            return f"The recorded choice is about the best of these{told}{beside}."
        return (
            f"{best.name} would have been fastest: {best.speedup.value:.2f}x, where the recorded choice comes to "
            f"{now.value:.2f}x by the same costs."
        )
