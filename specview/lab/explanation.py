"""What an explanation says: the way from plain decoding to a lane's speed, predictions, draft lengths, warnings.

Everything is in plain rounds (a one-row target pass and what belongs to it). A round that gives T tokens and costs
C plain rounds makes the lane S = T / C times as fast as plain decoding. With C = 1 + d + s + o (drafting, the verify
surplus v(k) - 1, the surplus of the rest) the way from plain to S has exact, order-free steps: it gains T - 1 and
pays S d, S s and S o, since T - S (d + s + o) = S.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from specview.lab.measured import MeasuredCosts, Source


def length_words(k: int) -> str:
    """A draft length in words; 0 is plain decoding."""
    return f"k {k}" if k else "plain"


def signed(change: float) -> str:
    """A step's change in two decimals with its sign; what rounds to nothing has none."""
    return f"{change:+.2f}" if abs(change) >= 0.005 else "0.00"


Shape = Literal["chain", "varying", "tree", "none"]
StepName = Literal["plain", "tokens", "draft", "verify", "other", "uneven", "net"]
Loss = Literal["draft", "verify", "other", "uneven"]
BannerKind = Literal[
    "slower", "draft-acceptance", "draft-share", "lossy", "other-large", "few-rounds", "check-mode", "no-plain",
    "draft-full",
]


@dataclass(frozen=True, slots=True)
class Step:
    """One bar of a waterfall: from `before` to `after`, in times plain; plain and net stand on the ground."""

    name: StepName
    label: str
    before: float
    after: float

    @property
    def change(self) -> float:
        """What this step adds (a cost is negative); the height of the bar for plain and net."""
        return self.after - self.before


LABELS: Mapping[StepName, str] = {
    "plain": "plain",
    "tokens": "tokens per pass",
    "draft": "drafting",
    "verify": "verify surplus",
    "other": "other time",
    "uneven": "uneven rounds",
    "net": "speedup",
}


@dataclass(frozen=True, slots=True)
class Waterfall:
    """The way from plain (1) to the speedup, in times plain.

    tokens is T, emitted tokens a round; draft, verify and other are what a round pays above a plain one, in plain
    rounds; net the speedup. What the medians of the phases leave unsaid (slow rounds) is `uneven`: of one round it is 0.
    """

    tokens: float
    draft: float
    verify: float
    other: float
    net: float

    @property
    def cost(self) -> float:
        """A round in plain rounds, by its phases."""
        return 1 + self.draft + self.verify + self.other

    @property
    def uneven(self) -> float:
        """Speedup beyond (or short of) tokens / cost."""
        return self.net - self.tokens / self.cost

    @property
    def losses(self) -> dict[Loss, float]:
        """What each step takes from the speedup, in times plain; negative where it gives."""
        even = self.tokens / self.cost
        return {"draft": even * self.draft, "verify": even * self.verify, "other": even * self.other, "uneven": -self.uneven}

    @property
    def steps(self) -> tuple[Step, ...]:
        """The bars in order; each begins where the one before ends, the last ends at net."""
        found, at = [Step("plain", LABELS["plain"], 0.0, 1.0)], 1.0
        changes: dict[StepName, float] = {"tokens": self.tokens - 1, **{name: -loss for name, loss in self.losses.items()}}
        for name, change in changes.items():
            found.append(Step(name, LABELS[name], at, at + change))
            at += change
        return (*found, Step("net", LABELS["net"], 0.0, self.net))

    def as_dict(self) -> dict[str, Any]:
        """The figures and the steps by name."""
        return {
            **asdict(self),
            "cost": self.cost,
            "steps": [{**asdict(step), "change": step.change} for step in self.steps],
        }


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a formula says the speedup is; formula in signs, parts what it rests on in words."""

    name: str
    speedup: float
    formula: str
    parts: str
    measured: bool = False


@dataclass(frozen=True, slots=True)
class LengthPoint:
    """One draft length and the speedup that it would have by this lane's costs.

    by_formula takes one alpha for every position. by_positions cuts the lane's own drafts, so it has the acceptance of
    each position, and goes on from the last with alpha; of drafters that guess from the text alone it walks along this
    text, as acceptance that comes in stretches gives short drafts more. None where lengths vary. source is the pass's.
    limit scales both where the same costs make too much of the lane itself; measured is of a lane that drafts so.
    """

    k: int
    by_formula: float
    by_positions: float | None
    source: Source
    limit: float = 1.0
    measured: float | None = None

    @property
    def predicted(self) -> float:
        """The better founded of the two predictions, limited."""
        return (self.by_formula if self.by_positions is None else self.by_positions) * self.limit

    @property
    def speedup(self) -> float:
        """As measured, else as predicted."""
        return self.predicted if self.measured is None else self.measured


@dataclass(frozen=True, slots=True)
class RuleOfThumb:
    """alpha k, as guides quote it for the speedup, beside the right formula; words say what it gets wrong here."""

    value: float
    expected_tokens: float
    cost: float
    right: float
    words: str


@dataclass(frozen=True, slots=True)
class Banner:
    """Something that the reader must know; the kind tells banners apart when one is dismissed, short is it in a few words."""

    kind: BannerKind
    short: str
    text: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """A lane's explanation; what cannot be known is None.

    shape           chain (one draft length), varying (lengths differ from round to round), tree, or none (no drafts)
    k               the draft length of a chain, the mean of the others (over rounds, empty ones too)
    rows            rows of the verifying pass, on average
    alpha           accepted / judged
    c, v            a drafted token and the verifying pass, in one-row passes (medians of the rounds)
    plain_source    where a plain round's time comes from: plain lane, own one-row rounds, calibration, or '' (unknown)
    break_even_tokens   tokens per pass at which this lane's rounds just pay;  break_even_alpha that of the formula
    best_k          the length to use, 0 for plain: the lane's own unless another is told apart from all that was measured
                    beside it; None where the lengths vary and no fixed one is
    best_k_formula  the length with the highest prediction by one alpha for all positions
    best_k_note     what they rest on;  lengths the whole curve;  as_good those that are not told apart from the best
    main_loss       the step that takes the most
    """

    shape: Shape
    sentence: str
    banners: tuple[Banner, ...]
    rounds: int
    k: float | None = None
    rows: float | None = None
    alpha: float | None = None
    tokens_per_pass: float | None = None
    c: float | None = None
    v: float | None = None
    v_source: Source | None = None
    plain_source: str = ""
    measured_speedup: float | None = None
    speedup_spread: tuple[float, float] | None = None
    waterfall: Waterfall | None = None
    main_loss: Loss | None = None
    predictions: tuple[Prediction, ...] = ()
    break_even_tokens: float | None = None
    break_even_alpha: float | None = None
    best_k: int | None = None
    best_k_speedup: float | None = None
    best_k_formula: int | None = None
    best_k_note: str = ""
    as_good: tuple[int, ...] = ()
    lengths: tuple[LengthPoint, ...] = ()
    rule_of_thumb: RuleOfThumb | None = None
    notes: tuple[str, ...] = ()
    costs: MeasuredCosts | None = None

    @property
    def best_words(self) -> str:
        """The length to use with its speedup, or those that are not told apart; '' where there is none."""
        if self.best_k is None:
            return ""
        best = f"k {self.best_k}, {self.best_k_speedup:.2f} times plain" if self.best_k and self.best_k_speedup is not None else "plain"
        return best if not self.as_good else f"no clear winner: {best}; {', '.join(map(length_words, self.as_good))}"

    def as_dict(self) -> dict[str, Any]:
        """The figures by name, as they stand in files."""
        return {
            **asdict(replace(self, costs=None)),
            "waterfall": None if self.waterfall is None else self.waterfall.as_dict(),
            "costs": None if self.costs is None else self.costs.as_dict(),
        }
