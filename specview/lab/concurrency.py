"""What speculation is worth when several sequences share the device: measured passes joined with an acceptance.

All sequences go in step: a round drafts k tokens for each, one target pass verifies all of them, and each emits what
its own draft earned. Measured are the passes (lab.batch_times), and a draft model's; the acceptance is that of a run;
the rest is modelled, and every figure says which it is:

    round(B, k) = draft(B, k) + pass(B, k + 1) + B * other        plain(B) = pass(B, 1) + B * other_plain
    tokens/s of one sequence = tokens(k) / round(B, k);  of all of them B times that
    speedup(B, k) = tokens(k) * plain(B) / round(B, k), the median of the repeats' ratios

Assumed: acceptance does not depend on B; sequences are equally long and none waits for another.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

from specview.decoding.ledger import Round
from specview.decoding.metrics import fold
from specview.drafting.plain import baseline_of
from specview.drafting.registry import DEFAULT_METHOD, METHODS
from specview.errors import SpecviewError, UsageError
from specview.lab.batch_times import BatchTimes, middle
from specview.lab.measured import measured_costs

Scaling = Literal["pass", "sequence"]
"""How a draft cost grows with B: a model's with its passes, a copying drafter's with every sequence."""

RESAMPLES = 200
"""Draws of the repeats, with replacement, that a crossing's spread is over."""

ASSUMPTIONS = (
    "acceptance does not depend on the number of sequences",
    "all sequences are equally long and go in step: none waits for another",
    "a draft model's step is a pass of one row for every sequence",
)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What a run accepted, and what it paid beside passes.

    alpha         accepted / judged
    by_position   accepted at position i / judged at i, where a run measured it; () is the closed form with alpha alone
    draft_cost    c: a draft step in plain steps; None is unknown (then only a measured draft model has a cost)
    scaling       how that cost grows with B
    other_s, plain_other_s  the rest of a round of one sequence, seconds
    run           how it was run, where a run it was: engine, target; and draft, draft_engine of a draft model
    """

    name: str
    alpha: float
    by_position: tuple[float, ...] = ()
    k: int | None = None
    draft_cost: float | None = None
    scaling: Scaling = "pass"
    other_s: float = 0.0
    plain_other_s: float = 0.0
    run: Mapping[str, Any] = field(default_factory=dict)

    def tokens(self, k: int) -> float:
        """Expected tokens of a round that drafts k: 1 + a1 + a1 a2 + ... over the positions' own acceptances.

        Beyond the measured positions, or without any, alpha stands for them (Leviathan et al. 2023, equation 1).
        """
        total, reached = 1.0, 1.0
        for place in range(k):
            reached *= self.by_position[place] if place < len(self.by_position) else self.alpha
            total += reached
        return total

    def measured_to(self, k: int) -> bool:
        """Whether the run itself tried every position of a draft of k."""
        return 0 < k <= len(self.by_position)

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {
            "name": self.name,
            "acceptance_rate": self.alpha,
            "position_acceptance_conditional": list(self.by_position),
            "k": self.k,
            "draft_cost": self.draft_cost,
            "draft_cost_grows_with": self.scaling,
            "other_s": self.other_s,
            "plain_other_s": self.plain_other_s,
            "run": dict(self.run),
        }


def stated_acceptance(alpha: float, draft_cost: float | None) -> Acceptance:
    """An acceptance given as a number; raises UsageError where it is none."""
    if not 0 <= alpha <= 1:
        raise UsageError(f"acceptance is {alpha}.", "Use a number from 0 to 1.")
    if draft_cost is not None and not (math.isfinite(draft_cost) and draft_cost >= 0):
        raise UsageError(f"draft cost is {draft_cost}.", "Use 0 or more, in plain steps.")
    return Acceptance(f"acceptance {alpha:g}, as given", alpha, draft_cost=draft_cost)


def lane_acceptance(
    name: str, settings: Mapping[str, Any], rounds: Sequence[Round], plain: Sequence[Round] = ()
) -> Acceptance:
    """The acceptance of a run's lane, with its costs where the race's plain lane is there.

    Raises SpecviewError, one line, for a lane that says nothing about batches: plain, a tree, lookahead's riders, or
    nothing judged.
    """
    if any(round_.parents is not None or round_.riders for round_ in rounds):
        raise SpecviewError(f"lane {name} verifies trees, whose rows are not k + 1.", "Choose a lane that drafts chains.")
    figures = fold(rounds)
    if figures.acceptance_rate is None:
        raise SpecviewError(f"lane {name} drafted nothing, so it has no acceptance.", "Choose a lane that drafts.")
    tried: list[float] = []
    for value in figures.position_acceptance_conditional:
        if value is None:
            break
        tried.append(value)
    method = METHODS.get(str(settings.get("method")))
    copies = method is not None and method.copies
    costs = measured_costs(rounds, plain)
    longest = round(figures.mean_k or 1)
    keys = ("engine", "target", "method", *(("draft", "draft_engine") if steps_draft_model(settings) else ()))
    return Acceptance(
        name=name,
        alpha=figures.acceptance_rate,
        by_position=tuple(tried),
        k=max(round_.k for round_ in rounds),
        draft_cost=None if costs is None else costs.c_at(max(1, longest)),
        scaling="sequence" if copies else "pass",
        other_s=0.0 if costs is None else costs.other_s,
        plain_other_s=0.0 if costs is None else costs.plain_other_s,
        run={key: settings.get(key) for key in keys},
    )


def steps_draft_model(ran: Mapping[str, Any]) -> bool:
    """Whether what ran (the default method, where that is not said) drafts token by token with a draft model."""
    method = METHODS.get(str(ran.get("method", DEFAULT_METHOD)))
    return method is not None and method.steps_draft_model


def trace_acceptance(path: str | Path, lane: str | None = None) -> Acceptance:
    """The acceptance of a trace's lane: the named one, or the first that drafted a chain.

    Raises SpecviewError, one line, where the file is no trace or has no such lane.
    """
    from specview.files.reader import read_trace

    records = read_trace(path, keep="figures").records
    plain = baseline_of(records)
    baseline = plain.rounds if plain is not None else ()
    chosen = [record for record in records if record is not plain and (lane is None or record.name == lane)]
    if not chosen:
        names = ", ".join(record.name for record in records if record is not plain) or "none"
        what = "no lane that drafts" if lane is None else f"no lane {lane!r}"
        raise SpecviewError(f"the trace {str(path)!r} has {what}.", f"Its drafting lanes: {names}.")
    refused: SpecviewError | None = None
    for record in chosen:
        try:
            return lane_acceptance(record.name, record.settings, record.rounds, baseline)
        except SpecviewError as error:
            refused = refused or error
    assert refused is not None
    raise refused


@dataclass(frozen=True, slots=True)
class Point:
    """One number of sequences at one draft length; seconds, and tokens per second.

    spread is the speedup's middle half over the measured repeats. pass_source and draft_source say "measured",
    "interpolated" (between measured row counts), "modelled" or "none"; tokens_source "measured" (by position) or
    "modelled" (the closed form).
    """

    sequences: int
    k: int
    tokens: float
    pass_s: float
    draft_s: float
    other_s: float
    speedup: float
    spread: tuple[float, float] | None
    pass_source: str
    draft_source: str
    tokens_source: str

    @property
    def round_s(self) -> float:
        """Seconds of a round, which all sequences share."""
        return self.draft_s + self.pass_s + self.other_s

    @property
    def user_tokens_per_s(self) -> float:
        """What one sequence gets."""
        return self.tokens / self.round_s

    @property
    def total_tokens_per_s(self) -> float:
        """What all sequences get together."""
        return self.sequences * self.user_tokens_per_s

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {
            "sequences": self.sequences,
            "k": self.k,
            "tokens_per_round": {"value": self.tokens, "source": self.tokens_source},
            "pass_s": {"value": self.pass_s, "source": self.pass_source},
            "draft_s": {"value": self.draft_s, "source": self.draft_source},
            "other_s": {"value": self.other_s, "source": "modelled"},
            "round_s": self.round_s,
            "user_tokens_per_s": self.user_tokens_per_s,
            "total_tokens_per_s": self.total_tokens_per_s,
            "speedup": self.speedup,
            "speedup_spread": None if self.spread is None else list(self.spread),
        }


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where a draft length's speedup crosses 1, in sequences, interpolated between measured numbers of them.

    falls: speculation gains below it and loses above. spread is the middle half over repeats drawn with replacement
    (Efron's bootstrap), None where fewer than half of the draws cross there.
    """

    k: int
    sequences: float
    falls: bool
    spread: tuple[float, float] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {
            "k": self.k,
            "sequences": self.sequences,
            "speculation": "gains below, loses above" if self.falls else "loses below, gains above",
            "spread": None if self.spread is None else list(self.spread),
            "source": "interpolated",
        }


@dataclass(frozen=True, slots=True)
class Concurrency:
    """Measured passes and an acceptance, joined. points are in the order of (k, sequences), k 0 being plain."""

    times: BatchTimes
    acceptance: Acceptance
    draft_how: str
    points: tuple[Point, ...]
    crossings: tuple[Crossing, ...]
    best_k: Mapping[int, int] = field(default_factory=dict)

    @property
    def ks(self) -> list[int]:
        """Draft lengths, 0 first."""
        return sorted({point.k for point in self.points})

    def line(self, k: int) -> list[Point]:
        """The points of one draft length, by sequences."""
        return [point for point in self.points if point.k == k]

    @property
    def headline_k(self) -> int | None:
        """The draft length that the sentence is about: the best one for the fewest sequences."""
        drafting = [point for point in self.points if point.k]
        if not drafting:
            return None
        fewest = min(point.sequences for point in drafting)
        return max((point for point in drafting if point.sequences == fewest), key=lambda point: point.speedup).k

    @property
    def sentence(self) -> str:
        """What the plot says, in plain words."""
        k = self.headline_k
        if k is None:
            return "No draft length was measured, so there is nothing to compare with plain decoding."
        line = self.line(k)
        first, last = line[0], line[-1]
        start = f"With k {k} at acceptance {self.acceptance.alpha:.2f}, {_many(first.sequences)} "
        start += f"{'runs' if first.sequences == 1 else 'run'} at {first.speedup:.2f} times plain decoding"
        own = [crossing for crossing in self.crossings if crossing.k == k]
        if own:
            parts = [_crossing_words(crossing) for crossing in own]
            return f"{start}; {', '.join(parts)}; {_many(last.sequences)} at {last.speedup:.2f} times. {self._best_words}"
        if first is last:
            return f"{start}; one number of sequences was measured, so a crossing cannot be seen. {self._best_words}"
        side = "faster" if first.speedup >= 1 else "slower"
        end = f"{_many(last.sequences)} at {last.speedup:.2f} times"
        where = f"{side} than plain at every measured number of sequences ({first.sequences} to {last.sequences})"
        return f"{start}, {end}: no crossing in range, it is {where}. {self._best_words}"

    @property
    def _best_words(self) -> str:
        parts: list[str] = []
        before: int | None = None
        for sequences, k in sorted(self.best_k.items()):
            if k != before:
                name = "plain decoding" if k == 0 else f"k {k}"
                parts.append(name if not parts else f"{name} from {sequences}")
            before = k
        smallest = min(self.best_k) if self.best_k else 1
        return f"Best of those measured: {', '.join(parts)}." if len(parts) != 1 else (
            f"Best of those measured, from {_many(smallest)} on: {parts[0]}."
        )

    def as_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            **self.times.as_dict(),
            "acceptance": self.acceptance.as_dict(),
            "draft_cost": self.draft_how,
            "points": [point.as_dict() for point in self.points],
            "crossings": [crossing.as_dict() for crossing in self.crossings],
            "crossing_in_range": bool(self.crossings),
            "best_k": [{"sequences": sequences, "k": k} for sequences, k in sorted(self.best_k.items())],
            "sentence": self.sentence,
            "assumptions": list(ASSUMPTIONS),
        }


def combine(times: BatchTimes, acceptance: Acceptance) -> Concurrency:
    """Join measured passes with an acceptance: every measured (sequences, k + 1) becomes a point."""
    points: list[Point] = []
    crossings: list[Crossing] = []
    ks = sorted({rows - 1 for _, rows in times.passes})
    how = _draft_words(times, acceptance)
    for k in ks:
        line: list[Point] = []
        repeats: list[tuple[float, ...]] = []
        for sequences in times.batches:
            if (sequences, k + 1) not in times.passes:
                continue
            point, ratios = _point(times, acceptance, sequences, k)
            line.append(point)
            repeats.append(ratios)
        points += line
        if k:
            crossings += _crossings(k, line, repeats)
    best: dict[int, int] = {}
    for sequences in times.batches:
        here = [point for point in points if point.sequences == sequences]
        best[sequences] = max(here, key=lambda point: (point.speedup, -point.k)).k
    return Concurrency(times, acceptance, how, tuple(points), tuple(crossings), best)


def _point(times: BatchTimes, acceptance: Acceptance, sequences: int, k: int) -> tuple[Point, tuple[float, ...]]:
    """One point, and its speedup in each repeat that measured both passes."""
    pass_s, plain_pass_s = times.pass_s(sequences, k + 1), times.pass_s(sequences, 1)
    assert pass_s is not None and plain_pass_s is not None
    tokens = acceptance.tokens(k)
    plain_other_s = sequences * acceptance.plain_other_s
    if not k:
        source = ("measured", "none", "measured")
        return Point(sequences, 0, 1.0, pass_s, 0.0, plain_other_s, 1.0, None, *source), ()
    draft_s, draft_source = _draft_s(times, acceptance, sequences, k, plain_pass_s)
    other_s = sequences * acceptance.other_s
    own, plain = times.passes[sequences, k + 1], times.passes[sequences, 1]
    drafts = times.drafts.get(sequences, ())
    ratios = []
    for place, (mine, theirs) in enumerate(zip(own, plain, strict=False)):
        if draft_source == "measured":
            drafting = k * drafts[min(place, len(drafts) - 1)]
        else:
            drafting = draft_s * (theirs / plain_pass_s if acceptance.scaling == "pass" else 1.0)
        ratios.append(tokens * (theirs + plain_other_s) / (drafting + mine + other_s))
    speedup = median(ratios)
    spread = None
    if len(ratios) >= 3:
        low, _, high = middle(ratios)
        spread = (low, high)
    tokens_source = "measured" if acceptance.measured_to(k) else "modelled"
    point = Point(
        sequences, k, tokens, pass_s, draft_s, other_s, speedup, spread, "measured", draft_source, tokens_source
    )
    return point, tuple(ratios)


def _draft_s(
    times: BatchTimes, acceptance: Acceptance, sequences: int, k: int, plain_pass_s: float
) -> tuple[float, str]:
    """Seconds of drafting k tokens for every sequence, and whether that is measured or modelled."""
    drafts = times.drafts.get(sequences)
    if drafts:
        return k * median(drafts), "measured"
    if acceptance.draft_cost is None:
        return 0.0, "modelled"
    if acceptance.scaling == "pass":
        return k * acceptance.draft_cost * plain_pass_s, "modelled"
    fewest = times.batches[0]
    one = times.pass_s(fewest, 1) or plain_pass_s
    return sequences * k * acceptance.draft_cost * (one / fewest if fewest > 1 else one), "modelled"


def _draft_words(times: BatchTimes, acceptance: Acceptance) -> str:
    """What the draft costs rest on, in words."""
    if times.drafts:
        return f"measured: {times.draft_model}, one-row passes over B sequences, k in turn"
    if acceptance.draft_cost is None:
        return "modelled: drafting is free (no draft cost is known)"
    if acceptance.scaling == "pass":
        return f"modelled: c {acceptance.draft_cost:.2g} of a plain pass over as many sequences"
    return f"modelled: c {acceptance.draft_cost:.2g} of a single plain pass, for each sequence in turn"


def _crossings(k: int, line: Sequence[Point], repeats: Sequence[tuple[float, ...]]) -> list[Crossing]:
    """Where the medians cross 1; each with the middle half of where those of repeats drawn with replacement do."""
    at = [point.sequences for point in line]
    found = _cross(at, [point.speedup for point in line])
    count = min((len(ratios) for ratios in repeats), default=0)
    drawn: list[list[tuple[float, bool]]] = []
    rng = random.Random(0)
    for _ in range(RESAMPLES if found and count >= 3 else 0):
        chosen = rng.choices(range(count), k=count)
        drawn.append(_cross(at, [median([ratios[place] for place in chosen]) for ratios in repeats]))
    crossings = []
    for sequences, falls in found:
        near = []
        for others in drawn:
            same = [place for place, way in others if way is falls]
            if same:
                near.append(min(same, key=lambda place: abs(math.log2(place / sequences))))
        spread = None
        if 2 * len(near) > len(drawn) > 0:
            low, _, high = middle(near)
            spread = (min(low, sequences), max(high, sequences))
        crossings.append(Crossing(k, sequences, falls, spread))
    return crossings


def _cross(at: Sequence[int], speedups: Sequence[float]) -> list[tuple[float, bool]]:
    """Where the speedup crosses 1, straight between measured points over log2 of sequences and log of speedup."""
    found = []
    for left in range(len(at) - 1):
        low, high = math.log(speedups[left]), math.log(speedups[left + 1])
        if (low >= 0) == (high >= 0):
            continue
        part = low / (low - high)
        place = 2 ** (math.log2(at[left]) + part * (math.log2(at[left + 1]) - math.log2(at[left])))
        found.append((place, low >= 0))
    return found


def _crossing_words(crossing: Crossing) -> str:
    where = f"{crossing.sequences:.1f}"
    if crossing.spread is not None:
        where += f" ({crossing.spread[0]:.1f} to {crossing.spread[1]:.1f})"
    what = "the gain ends" if crossing.falls else "it begins to gain"
    return f"{what} at about {where} sequences"


def _many(sequences: int) -> str:
    return "one sequence" if sequences == 1 else f"{sequences} sequences"
