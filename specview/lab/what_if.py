"""What-if: other draft lengths, policies and oracles of one recorded run; no model is loaded.

The single lane is what_if_lane.py's; here stand the oracles, and everything at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from specview.decoding.ledger import RunRecord
from specview.decoding.speedup import speedup
from specview.drafting.plain import baseline_of
from specview.drafting.policies import POLICIES
from specview.lab.measured import has_whole_passes, measured_beside, passes_of
from specview.lab.what_if_figures import Alternative, Range, WhatIf
from specview.lab.what_if_lane import Replay, never
from specview.lab.what_if_replay import OnPosition
from specview.racing.oracle import Reach, fastest_by_times

THRESHOLDS = (0.2, 0.4, 0.6, 0.8)
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64)
POLICIES_ASKED = tuple(name for name in POLICIES if name not in ("constant", "confidence"))


def best_of(replays: Sequence[Replay], k: int | None = None, tell: OnPosition = never) -> Alternative | None:
    """An oracle: the right length in every round and, of several lanes of one prompt, the right method.

    Plain steps are among its choices. Of several lanes, over the text that they have in common. None where no times
    are known.
    """
    usable = [one for one in replays if one.costs is not None]
    if not usable or any(one.text.prompt != usable[0].text.prompt for one in usable):
        return None
    common = _common([one.text.output for one in usable])
    if not common:
        return None
    first = usable[0]
    assert first.costs is not None
    longest: dict[str, int] = {}
    times: dict[str, list[float]] = {}
    reaches: list[dict[str, list[Reach]]] = [{}, {}, {}]
    for index, one in enumerate(usable):
        costs = one.costs
        assert costs is not None
        name = one.name if len({other.name for other in usable}) == len(usable) else f"{index}"
        longest[name] = min(k or max(one.k, *(round_.k for round_ in one.record.rounds)), one.longest)
        times[name] = [costs.plain_round_s, *(costs.round_s(drafted) for drafted in range(1, longest[name] + 1))]
        for found, by_place in zip(reaches, one.reaches(longest[name], tell), strict=True):
            found[name] = [_cut(reach, common - place - 1) for place, reach in enumerate(by_place[:common])]
    plain = first.costs.plain_round_s
    answers = [fastest_by_times(found, common, times, plain) for found in reaches]
    schedule, seconds = answers[1]
    slowest, fastest = answers[0][1], answers[2][1]
    counts = [len(made) for made, _ in answers]
    fixed = all(one.fixed for one in usable)
    exact = fixed and slowest == fastest and all(one.reaches_are_exact for one in usable)
    several = len(usable) > 1
    why = "plain steps, or the right length of the right lane, in every round" if several else (
        "the right length in every round, 0 (a plain step) among them"
    )
    if several and any(len(one.text.output) != common for one in usable):
        why += f"; over the first {common} tokens, where the lanes' texts agree"
    return Alternative(
        name="oracle: method" if several else "oracle: length",
        kind="oracle",
        policy="",
        k=max(longest.values()),
        tokens_per_pass=Range(common / counts[1], common / max(counts), common / min(counts)),
        rounds=Range(counts[1], min(counts), max(counts)),
        drafted=sum(choice.length for choice in schedule) / len(schedule),
        seconds=Range(seconds, fastest, slowest),
        speedup=Range(common * plain / seconds, common * plain / slowest, common * plain / fastest),
        how="exact" if exact else "bounds" if fixed and slowest != fastest else "modelled",
        why=why + "; nothing can draft so",
        cost_words=first.cost_words_of({1 + choice.length for choice in schedule}) if not several else "",
    )


def _cut(reach: Reach, most: int) -> Reach:
    return min(reach[0], most), min(reach[1], most)


def _common(texts: Sequence[Sequence[int]]) -> int:
    """Tokens that all texts begin with."""
    for place in range(min(map(len, texts))):
        if any(text[place] != texts[0][place] for text in texts):
            return place
    return min(map(len, texts))


def replay_of_lane(
    records: Sequence[RunRecord],
    lane: int,
    facts: Mapping[str, Any] | None = None,
    calibrated: Mapping[int, float] | None = None,
) -> Replay:
    """Make ready a lane of a race; its pass times come from itself, the plain lane, the other lanes, a calibration."""
    baseline = baseline_of(records)
    plain = [] if baseline is None else baseline.rounds
    own = {
        key.replace(f"draft_{lane}_", "draft_", 1): value for key, value in (facts or {}).items()
    }
    known = {**(calibrated or {}), **passes_of(records)}
    if not has_whole_passes(records[lane].settings):
        known = {}
    alike = measured_beside(records[lane].settings, [(record.settings, speedup(record.rounds, plain)) for record in records])
    return Replay(records[lane], plain, known, own, alike)


def default_lengths(replayed: Replay) -> list[int]:
    """The draft lengths to show where none are named: up to the recorded one."""
    most = min(max(replayed.k, *(round_.k for round_ in replayed.record.rounds)), replayed.longest)
    return sorted({k for k in LENGTHS if k <= most} | {min(replayed.k, replayed.longest)})


def what_if(
    replayed: Replay,
    *,
    lengths: Sequence[int] | None = None,
    thresholds: Sequence[float] | None = None,
    policies: Sequence[tuple[str, Mapping[str, Any], int | None]] | None = None,
    others: Sequence[Replay] = (),
    tell: Callable[[str, float], None] = lambda text, fraction: None,
) -> WhatIf:
    """Everything at once: lengths, thresholds of the confidence policy, the other policies, and the oracles.

    lengths, thresholds and policies (name, options, k) None are a good choice; others are further lanes of the same
    race, for the oracle of the method. tell is called with (what, fraction) and raises Stopped to stop.
    """
    k = min(replayed.k, replayed.longest)
    wanted: list[tuple[str, Mapping[str, Any], int]] = [
        ("constant", {}, one) for one in (default_lengths(replayed) if lengths is None else lengths)
    ]
    notes = list(replayed.notes)
    if thresholds is None and not replayed.knows_confidence:
        notes.append("The trace does not say how sure the drafter was: no confidence policy. Use --observe light.")
    else:
        asked = THRESHOLDS if thresholds is None else thresholds
        wanted += [("confidence", {"threshold": one}, k) for one in asked]
    chosen = [(name, {}, None) for name in POLICIES_ASKED] if policies is None else policies
    wanted += [(name, options, k if own is None else own) for name, options, own in chosen]
    found: list[Alternative] = []
    steps = len(wanted) + 2
    for index, (name, options, length) in enumerate(wanted):

        def told(done: int, total: int, index: int = index, name: str = name) -> None:
            if done % 64 == 0 or done == total:
                tell(f"Replaying {name}", (index + done / max(total, 1)) / steps)

        found.append(replayed.policy_of(name, options, length, told))
    ends: Iterable[tuple[int, Sequence[Replay]]] = enumerate(([replayed], [replayed, *others]))
    for index, lanes in ends:
        if index and len(lanes) == 1:
            continue

        def looked(done: int, total: int, index: int = index) -> None:
            if done % 64 == 0:
                tell("Looking for the best choices", (len(wanted) + index + done / max(total, 1)) / steps)

        oracle = best_of(lanes, None, looked)
        if oracle is not None:
            found.append(oracle)
        elif index:
            notes.append("No oracle of the method: the lanes have no text, or no times, in common.")
    return WhatIf(
        replayed.name,
        replayed.method.name,
        len(replayed.text.output),
        replayed.recorded(),
        tuple(found),
        replayed.costs,
        tuple(notes),
        timed=not replayed.settings.get("check_mode"),
        measured=replayed.measured,
    )
