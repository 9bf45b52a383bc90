"""The sentence on a race: who won, by how much, and whether the text is the same; beside it, muted, the rest.

One function for the window, `compare` and every export: it knows nothing but what a summary holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specview.decoding.speedup import Speedup
from specview.decoding.verification import is_lossy
from specview.drafting.plain import is_baseline
from specview.drafting.registry import title
from specview.files.figures import rate, times_short
from specview.files.report import Tone
from specview.settings.events import Equality

PLAIN = "plain decoding"
NEAR_TIE = 2.0
"""Kernels explain a difference up to this many times their margin: either of the two logits may move by it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A lane at the end of a race.

    rate      decode tok/s as shown: of a lane with a speedup, what that is made of
    speedup   over plain; None of plain itself and where there is nothing to hold it against
    equality  how its text compares with plain's; None where that is not to be expected to be the same
    end       as in the ledger; '' while it runs
    differs   what keeps it from being compared ("other prompt"), of a lane laid beside another run's
    """

    name: str
    tokens: int
    rate: float | None
    speedup: Speedup | None = None
    plain: bool = False
    lossy: bool = False
    equality: Equality | None = None
    end: str = ""
    error: str = ""
    differs: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One sentence, and what stands beside it in smaller print."""

    sentence: str
    rest: str = ""
    tone: Tone = "normal"

    @property
    def text(self) -> str:
        """Both in one line."""
        between = " " if self.sentence.endswith((".", "…")) else " · "
        return between.join(filter(None, (self.sentence, self.rest)))


def standings(lanes: Iterable[Mapping[str, Any]]) -> list[Standing]:
    """The lanes of a compare document."""
    return [_standing(lane) for lane in lanes]


def verdict(lanes: Sequence[Standing]) -> Verdict:
    """The sentence on lanes that have ended."""
    plain = next((lane for lane in lanes if lane.plain and not lane.differs), None)
    ran = [lane for lane in lanes if lane.tokens]
    failed = [lane for lane in lanes if lane.end == "error"]
    if not ran:
        why = next((lane.error for lane in failed if lane.error), "")
        words = "No lane could run." if failed else "Stopped before the first token." if lanes else ""
        return Verdict(words, why, "bad" if failed else "normal")
    rated = sorted((lane for lane in ran if lane.speedup is not None), key=lambda lane: -round(_ratio(lane), 4))
    stopped = any(lane.end == "stopped" for lane in ran)
    if not rated:
        found = _alone(ran, plain, len(lanes) == 1)
    else:
        found = _won(rated, stopped, _tokens(ran))
    notes = [*(_failed(lane) for lane in failed), *found.rest]
    tone: Tone = "warning" if failed and found.tone in ("good", "normal") else found.tone
    return Verdict(found.sentence, " · ".join(filter(None, notes)), tone)


def overlap(one: Speedup, other: Speedup) -> bool:
    """Whether the ranges of two speedups have something in common; without ranges, whether they are shown alike."""
    a, b = one.spread, other.spread
    if a is None or b is None:
        return times_short(one.value) == times_short(other.value)
    return a[0] <= b[1] and b[0] <= a[1]


def fastest(speedups: Sequence[Speedup | None], plain: int | None) -> int | None:
    """The place of the lane that is clearly ahead of plain and of all others, by the ranges; plain's own where all are slower.

    None where nothing is clear. plain is its place; a lane without a speedup has None.
    """
    rated = sorted(((one, place) for place, one in enumerate(speedups) if one is not None), key=lambda pair: -pair[0].value)
    if not rated:
        return None
    (best, place), *others = rated
    low, high = best.spread or (best.value, best.value)
    if round(high, 2) < 1:
        return plain
    return None if round(low, 2) <= 1 or any(overlap(best, other) for other, _ in others) else place


def difference(equality: Equality) -> str:
    """Whether kernels explain where a text leaves plain's: how near plain's two best logits are there."""
    margin, kernel = equality.logit_margin, equality.kernel_margin
    if margin is None:
        return ""
    if kernel is None:
        return f"logits {margin:.2g} apart there"
    if explained(equality):
        return f"a near tie: logits {margin:.2g} apart, kernels move {kernel:.2g}"
    return f"no near tie: logits {margin:.2g} apart, kernels move {kernel:.2g}"


def explained(equality: Equality) -> bool:
    """Whether what kernels move explains that a text leaves plain's."""
    margin, kernel = equality.logit_margin, equality.kernel_margin
    return margin is not None and kernel is not None and margin <= NEAR_TIE * kernel


@dataclass(frozen=True, slots=True)
class _Found:
    sentence: str
    rest: tuple[str, ...]
    tone: Tone


def _won(rated: Sequence[Standing], stopped: bool, tokens: str) -> _Found:
    """Of lanes with a speedup, the fastest first."""
    best, others = rated[0], rated[1:]
    assert best.speedup is not None
    low, high = best.speedup.spread or (best.speedup.value, best.speedup.value)
    until, number = "Stopped: " if stopped else "", times_short(best.speedup.value)
    facts = (tokens, _rates(best))
    unsure = "" if best.speedup.spread else "too few rounds for a range"
    if round(high, 2) < 1:
        words = f"{until}{PLAIN} is fastest here: {best.name}{_lossy(best)} {number}."
        return _Found(_capital(words), (*facts, _each(others), unsure, _unlike(rated)), "normal")
    if round(low, 2) <= 1:
        span = f" ({low:.2f} to {high:.2f})" if best.speedup.spread else ""
        words = f"{until}no lane is clearly faster than {PLAIN}: {best.name}{_lossy(best)} {number}{span}."
        return _Found(_capital(words), (*facts, _each(others), unsure, _unlike(rated)), "normal")
    close = [lane.name for lane in others if lane.speedup is not None and overlap(best.speedup, lane.speedup)]
    beside = f", not clearly ahead of {_listed(close)}" if close else ""
    text, note, tone = _text(best)
    words = f"{until}{best.name} {'was' if stopped else 'is'} {number} faster than {PLAIN}{beside}{text}."
    near = f"{_each(others)} (ranges overlap)" if close else _each(others)
    return _Found(_capital(words), (note, *facts, near, unsure, _unlike(others)), tone)


def _alone(ran: Sequence[Standing], plain: Standing | None, single: bool) -> _Found:
    """Where nothing can be held against plain."""
    best = max(ran, key=lambda lane: lane.rate or 0.0)
    name = PLAIN if best.plain else best.name
    words = f"{name} gave {_count(best.tokens)} at {rate(best.rate)} tok/s."
    differ = next((lane.differs for lane in ran if lane.differs), "")
    why = (f"{differ}: no speedup between these runs" if differ else "" if single
           else f"{PLAIN} did not run, so there is no speedup" if plain is None or not plain.tokens
           else "no other lane ran to hold against it")  # fmt: skip
    return _Found(_capital(words), (why,), "normal")


def _text(best: Standing) -> tuple[str, str, Tone]:
    """Whether the winner's text is plain's, as the sentence goes on; what explains it where it is not."""
    equality = best.equality
    if best.lossy:
        alike = equality is not None and equality.equal
        return ", but lossy, though the text is the same here" if alike else ", but lossy: its rule changes the text", "", "warning"
    if equality is None:
        return ", by an exact rule", "", "good"
    if equality.equal:
        return ", and the text is the same", "", "good"
    where = "" if equality.first_difference is None else f" from token {equality.first_difference} on"
    return f", but its text differs{where}", difference(equality), "normal" if explained(equality) else "warning"


def _unlike(lanes: Sequence[Standing]) -> str:
    """The texts that differ from plain's, of lanes that the sentence does not say it of."""
    return " · ".join(
        f"the text of {lane.name} differs from token {lane.equality.first_difference} on" for lane in lanes
        if lane.equality is not None and lane.equality.first_difference is not None and not lane.lossy
    )


def _rates(best: Standing) -> str:
    assert best.speedup is not None
    over = "" if best.speedup.whole else f" over the {best.speedup.seconds:.1f} s that both ran"
    return f"{rate(best.speedup.tokens_per_s)} against {rate(best.speedup.plain_tokens_per_s)} tok/s{over}"


def _tokens(lanes: Sequence[Standing]) -> str:
    counts = sorted({lane.tokens for lane in lanes})
    return _count(counts[0]) if len(counts) == 1 else f"{counts[0]:,} to {_count(counts[-1])}"


def _count(tokens: int) -> str:
    return "1 token" if tokens == 1 else f"{tokens:,} tokens"


def _each(lanes: Sequence[Standing]) -> str:
    return ", ".join(f"{lane.name}{_lossy(lane)} {times_short(_ratio(lane))}" for lane in lanes)


def _failed(lane: Standing) -> str:
    return f"{lane.name} failed: {lane.error}" if lane.error else f"{lane.name} failed"


def _lossy(lane: Standing) -> str:
    return " (lossy)" if lane.lossy else ""


def _ratio(lane: Standing) -> float:
    assert lane.speedup is not None
    return lane.speedup.value


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _standing(lane: Mapping[str, Any]) -> Standing:
    run, metrics, over = lane.get("run") or {}, lane.get("metrics") or {}, lane.get("speedup_over")
    equality = lane.get("equal_to_plain")
    faster = None
    if over:
        faster = Speedup.from_dict(over, lane.get("speedup_spread"), len(lane.get("repeats") or [None]))
    tokens = int(metrics.get("emitted") or 0)
    alike = None
    if equality is not None:
        alike = Equality(bool(equality["equal"]), tokens, equality.get("first_difference"),
                         equality.get("logit_margin"), equality.get("kernel_margin"))  # fmt: skip
    return Standing(
        title(str(lane.get("name")), str(run.get("method"))), tokens,
        faster.tokens_per_s if faster else metrics.get("decode_tokens_per_s"), faster, is_baseline(run),
        is_lossy(run.get("rule")), alike, str((lane.get("output") or {}).get("end") or ""), str(lane.get("error") or ""),
        str(lane.get("not_comparable") or ""),
    )

