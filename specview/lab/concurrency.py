"""What speculation is worth when several sequences share the device: measured passes joined with an acceptance.

All sequences go in step: a round drafts k tokens for each, one target pass verifies all of them, and each emits what
its own draft earned. Measured are the passes (lab.batch_times), and a draft model's; the acceptance is that of a run;
the rest is modelled, and every figure says which it is:

    round(B, k) = draft(B, k) + pass(B, k + 1) + B * other        plain(B) = pass(B, 1) + B * other_plain
    tokens/s of one sequence = tokens(k) / round(B, k);  of all of them B times that
    speedup(B, k) = tokens(k) * plain(B) / round(B, k), the median of the repeats' ratios

Assumed: acceptance does not depend on B; sequences are equally long and none waits for another. `run_concurrency` does
all of it from settings; where no acceptance is given a short race records one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

from specview.drafting.registry import DEFAULT_METHOD
from specview.errors import SpecviewError
from specview.files.report import Report, Table, Text
from specview.files.schema import Json, plain
from specview.files.tables import Column
from specview.lab.acceptance import Acceptance, raced_acceptance
from specview.lab.batch_times import BatchTimes, OnProgress, ShouldStop, Sizes, measure_batches, middle
from specview.racing.pool import ModelPool, draft_key, target_key
from specview.racing.race import tokenize_prompt
from specview.racing.resolve import checked_run
from specview.settings.run import BUNDLED, LaneSettings, RunSettings

RESAMPLES = 200
"""Draws of the repeats, with replacement, that a crossing's spread is over."""

ASSUMPTIONS = (
    "acceptance does not depend on the number of sequences",
    "all sequences are equally long and go in step: none waits for another",
    "a draft model's step is a pass of one row for every sequence",
)


@dataclass(frozen=True, slots=True)
class Point:
    """One number of sequences at one draft length; seconds, and tokens per second.

    pass_s is measured; draft_source says "measured", "modelled" or "none" (plain decoding), tokens_source "measured"
    (by position) or "modelled" (the closed form). ratios are the speedups of the repeats that measured both passes.
    """

    sequences: int
    k: int
    tokens: float
    pass_s: float
    draft_s: float
    other_s: float
    draft_source: str
    tokens_source: str
    ratios: tuple[float, ...] = (1.0,)

    @property
    def speedup(self) -> float:
        """The median of the repeats'."""
        return median(self.ratios)

    @property
    def spread(self) -> tuple[float, float] | None:
        """The middle half of the repeats' speedups."""
        low, _, high = middle(self.ratios)
        return (low, high) if len(self.ratios) >= 3 else None

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
            "pass_s": {"value": self.pass_s, "source": "measured"},
            "draft_s": {"value": self.draft_s, "source": self.draft_source},
            "other_s": {"value": self.other_s, "source": "modelled"},
            **self.rates,
            "speedup_spread": None if self.spread is None else list(self.spread),
        }

    @property
    def rates(self) -> dict[str, float]:
        """What follows from the figures."""
        names = ("round_s", "user_tokens_per_s", "total_tokens_per_s", "speedup")
        return {name: getattr(self, name) for name in names}


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
                parts.append((f"k {k}" if k else "plain decoding") + (f" from {sequences}" if parts else ""))
            before = k
        if len(parts) == 1:
            return f"Best of those measured, from {_many(min(self.best_k))} on: {parts[0]}."
        return f"Best of those measured: {', '.join(parts)}."

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
    batches = times.batches
    cells = sorted((rows - 1, sequences) for sequences, rows in times.passes if sequences in batches)
    points = tuple(_point(times, acceptance, sequences, k) for k, sequences in cells)
    crossings = [
        crossing
        for k in sorted({k for k, _ in cells if k})
        for crossing in _crossings([point for point in points if point.k == k])
    ]
    best = {
        sequences: max((point for point in points if point.sequences == sequences), key=lambda point: (point.speedup, -point.k)).k
        for sequences in batches
    }
    return Concurrency(times, acceptance, _draft_words(times, acceptance), points, tuple(crossings), best)


def _point(times: BatchTimes, acceptance: Acceptance, sequences: int, k: int) -> Point:
    pass_s, plain_pass_s = times.pass_s(sequences, k + 1), times.pass_s(sequences, 1)
    assert pass_s is not None and plain_pass_s is not None
    plain_other_s = sequences * acceptance.plain_other_s
    if not k:
        return Point(sequences, 0, 1.0, pass_s, 0.0, plain_other_s, "none", "measured")
    tokens, other_s = acceptance.tokens(k), sequences * acceptance.other_s
    draft_s, draft_source = _draft_s(times, acceptance, sequences, k, plain_pass_s)
    drafts = times.drafts.get(sequences, ())
    ratios = []
    for place, (own_s, plain_s) in enumerate(zip(times.passes[sequences, k + 1], times.passes[sequences, 1], strict=False)):
        if draft_source == "measured":
            drafting_s = k * drafts[min(place, len(drafts) - 1)]
        else:
            drafting_s = draft_s * (plain_s / plain_pass_s if acceptance.scaling == "pass" else 1.0)
        ratios.append(tokens * (plain_s + plain_other_s) / (drafting_s + own_s + other_s))
    tokens_source = "measured" if acceptance.measured_to(k) else "modelled"
    return Point(sequences, k, tokens, pass_s, draft_s, other_s, draft_source, tokens_source, tuple(ratios))


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


def _crossings(line: Sequence[Point]) -> list[Crossing]:
    """Where the medians cross 1; each with the middle half of where those of repeats drawn with replacement do."""
    at = [point.sequences for point in line]
    found = _cross(at, [point.speedup for point in line])
    count = min(len(point.ratios) for point in line)
    drawn: list[list[tuple[float, bool]]] = []
    rng = random.Random(0)
    for _ in range(RESAMPLES if found and count >= 3 else 0):
        chosen = rng.choices(range(count), k=count)
        drawn.append(_cross(at, [median([point.ratios[place] for place in chosen]) for point in line]))
    crossings = []
    for sequences, falls in found:
        same = [[place for place, way in others if way is falls] for others in drawn]
        near = [min(places, key=lambda place: abs(math.log2(place / sequences))) for places in same if places]
        spread = None
        if 2 * len(near) > len(drawn) > 0:
            low, _, high = middle(near)
            spread = (min(low, sequences), max(high, sequences))
        crossings.append(Crossing(line[0].k, sequences, falls, spread))
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


# -- running ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure.

    settings     target, engine, device, prompt: the context's tokens are the prompt's
    acceptance   of a run, or a number; None races plain and the draft model on the prompt first
    draft        the draft model whose passes are timed, "" for none; draft_engine None is the target's
    """

    settings: RunSettings
    sizes: Sizes = field(default_factory=Sizes)
    acceptance: Acceptance | None = None
    draft: str = BUNDLED
    draft_engine: str | None = None


def run_concurrency(
    plan: Plan, pool: ModelPool, should_stop: ShouldStop = lambda: False, on_progress: OnProgress = lambda text, fraction: None
) -> Concurrency:
    """Do all of it on the calling thread; the models stay in the pool.

    Raises SpecviewError, one line, where it cannot be, and Stopped where it was stopped before there was anything.
    """
    acceptance = plan.acceptance
    if acceptance is None:
        lane = LaneSettings(
            DEFAULT_METHOD, draft=plan.draft or BUNDLED, draft_engine=plan.draft_engine, k=max(plan.sizes.ks) or 1
        )
        acceptance = raced_acceptance(plan.settings, lane, pool, should_stop, on_progress)
    settings = checked_run(plan.settings)
    target = pool.get(target_key(settings), on_progress, should_stop)
    notes: list[str] = []
    draft = None
    if plan.draft:
        try:
            draft = pool.get(draft_key(settings, plan.draft, plan.draft_engine), on_progress, should_stop)
        except SpecviewError as error:
            if acceptance.draft_cost is None:
                raise
            notes.append(f"The draft model's passes are modelled: {error}")
    ran = acceptance.run
    if ran.get("engine") not in (None, settings.engine) or ran.get("target") not in (None, settings.target):
        notes.append(
            f"The acceptance is of a run in {ran.get('engine')} with target {ran.get('target')}; the passes are not."
        )
    times = measure_batches(
        target, tokenize_prompt(settings, target), plan.sizes, draft=draft, should_stop=should_stop, on_progress=on_progress
    )
    return combine(replace(times, skipped=(*notes, *times.skipped)), acceptance)


# -- the report ------------------------------------------------------------------------------------------


_COLUMNS = (
    Column("sequences", "B", "Sequences that share the device", 0),
    Column("k", "k", "Drafted tokens a round; 0 is plain decoding", 0),
    Column("pass_s", "pass ms", "Measured", 1, 1000),
    Column("draft_s", "draft ms", "Measured, or modelled", 1, 1000),
    Column("round_s", "round ms", "draft + pass + the rest, modelled", 1, 1000),
    Column("user_tokens_per_s", "tok/s each", "Of one sequence", 1),
    Column("total_tokens_per_s", "tok/s all", "Of all sequences", 1),
    Column("speedup", "speedup", "Median of the repeats' ratios; in brackets their middle half", 2, spread=("low", "high")),
    Column("bound", "bound", "Which of the roofline's bounds rules the pass"),
    Column("best", "best", "Whether this draft length is the best of those measured for as many sequences"),
)


def concurrency_notes(found: Concurrency) -> list[str]:
    """What the figures rest on, a line each."""
    times, roof = found.times, found.times.roofline
    lines = [*times.skipped]
    lines += ["Stopped: what was measured so far."] if times.stopped else []
    lines += [times.busy] if times.busy else []
    lines.append(
        f"{times.model} in {times.engine} on {times.device}, {times.context} tokens in each cache; timed: {times.how}."
    )
    lines.append(
        f"Acceptance: {found.acceptance.name}, {found.acceptance.alpha:.3f} per judged token; draft cost {found.draft_how}."
    )
    if roof is not None and roof.ridge_rows is not None:
        lines.append(
            f"Roofline (modelled from measured rates): {(roof.bytes_per_s or 0) / 1e9:.1f} GB/s ({roof.bytes_how}), "
            f"{(roof.operations_per_s or 0) / 1e9:.0f} Gop/s ({roof.operations_how}); products rule in passes of more than "
            f"{roof.ridge_rows:.1f} rows."
        )
    return lines


def concurrency_report(found: Concurrency, facts: Json, prompt: str) -> Report:
    """The figures for people, by number of sequences and draft length, and the document; facts are the run's."""
    roof = found.times.roofline
    rows = [
        {**asdict(point), **point.rates, "draft_s": point.draft_s if point.k else None, "low": point.spread and point.spread[0],
         "high": point.spread and point.spread[1], "bound": roof and roof.bound(point.sequences, point.k + 1),
         "best": found.best_k.get(point.sequences) == point.k}
        for point in sorted(found.points, key=lambda point: (point.sequences, point.k))
    ]  # fmt: skip
    note = "pass: measured; draft: measured unless it says modelled; round = draft + pass + the rest, modelled"
    return Report(
        "",
        [Table(_COLUMNS, rows, name="concurrency"), Text(note, "note"),
         *(Text(line, "note") for line in concurrency_notes(found)), Text(found.sentence)],
        {"name": "concurrency", "run": plain(facts), "prompt": prompt, **plain(found.as_dict())},
    )  # fmt: skip
