"""What-if: other draft lengths, policies and oracles of one recorded run; no model is loaded.

The single lane is what_if_lane.py's; here stand the oracles, and everything at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specview.decoding.ledger import RunRecord
from specview.decoding.speedup import speedup
from specview.drafting.plain import baseline_of
from specview.drafting.policies import POLICIES
from specview.errors import SpecviewError
from specview.lab.measured import has_whole_passes, measured_beside, passes_of
from specview.lab.what_if_figures import Alternative, Range, WhatIf
from specview.lab.what_if_lane import Replay
from specview.lab.what_if_replay import OnPosition, never
from specview.racing.oracle import Reach, fastest_by_times

Tell = Callable[[str, float], None]
THRESHOLDS = (0.2, 0.4, 0.6, 0.8)
LENGTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64)
POLICIES_ASKED = tuple(name for name in POLICIES if name not in ("constant", "confidence"))


def best_of(replays: Sequence[Replay], tell: OnPosition = never) -> Alternative | None:
    """An oracle: the right length in every round and, of several lanes of one prompt, the right method.

    Plain steps are among its choices. Of several lanes, over the text that they have in common. None where no times
    are known.
    """
    usable = [(one, one.costs) for one in replays if one.costs is not None]
    if not usable or any(one.text.prompt != usable[0][0].text.prompt for one, _ in usable):
        return None
    texts = [one.text.output for one, _ in usable]
    common = _common(texts)
    if not common:
        return None
    several, named_apart = len(usable) > 1, len({one.name for one, _ in usable}) == len(usable)
    times: dict[str, list[float]] = {}
    reaches: list[dict[str, list[Reach]]] = [{}, {}, {}]
    for index, (one, costs) in enumerate(usable):
        name, longest = one.name if named_apart else f"{index}", one.lengths_up_to
        times[name] = [costs.plain_round_s, *(costs.round_s(drafted) for drafted in range(1, longest + 1))]
        for found, by_place in zip(reaches, one.reaches(longest, tell), strict=True):
            found[name] = [_cut(reach, common - place - 1) for place, reach in enumerate(by_place[:common])]
    first, plain = usable[0][0], usable[0][1].plain_round_s
    (low, slowest), (schedule, seconds), (high, fastest) = [fastest_by_times(found, common, times, plain) for found in reaches]
    rounds = Range(len(schedule), min(counts := [len(low), len(schedule), len(high)]), max(counts))
    spent = Range(seconds, fastest, slowest)
    fixed = all(one.fixed for one, _ in usable)
    exact = fixed and spent.known and all(one.reaches_are_exact for one, _ in usable)
    why = "plain steps, or the right length of the right lane, in every round" if several else (
        "the right length in every round, 0 (a plain step) among them"
    )
    if any(len(text) != common for text in texts):
        why += f"; over the first {common} tokens, where the lanes' texts agree"
    return Alternative(
        name="oracle: method" if several else "oracle: length",
        kind="oracle",
        policy="",
        k=max(map(len, times.values())) - 1,
        tokens_per_pass=rounds.under(common),
        rounds=rounds,
        drafted=sum(choice.length for choice in schedule) / len(schedule),
        seconds=spent,
        speedup=spent.under(common * plain),
        how="exact" if exact else "bounds" if fixed and not spent.known else "modelled",
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
    record, baseline = records[lane], baseline_of(records)
    plain = [] if baseline is None else baseline.rounds
    own = {key.replace(f"draft_{lane}_", "draft_", 1): value for key, value in (facts or {}).items()}
    known = {**(calibrated or {}), **passes_of(records)} if has_whole_passes(record.settings) else {}
    alike = measured_beside(record.settings, [(other.settings, speedup(other.rounds, plain)) for other in records])
    return Replay(record, plain, known, own, alike)


def default_lengths(replayed: Replay) -> list[int]:
    """The draft lengths to show where none are named: up to the recorded one."""
    return sorted({k for k in LENGTHS if k <= replayed.lengths_up_to} | {min(replayed.k, replayed.longest)})


def what_if_of_race(
    records: Sequence[RunRecord],
    lane: int,
    facts: Mapping[str, Any] | None = None,
    calibrated: Mapping[int, float] | None = None,
    *,
    tell: Tell = lambda text, fraction: None,
    **asked: Any,
) -> tuple[Replay, WhatIf]:
    """A lane of a race made ready, and `what_if` of it beside those of the others that can be replayed."""
    tell("Reading the rounds", 0.0)
    replayed, others = replay_of_lane(records, lane, facts, calibrated), []
    for place, record in enumerate(records):
        if place != lane and record.rounds:
            try:
                others.append(replay_of_lane(records, place, facts, calibrated))
            except SpecviewError:
                continue  # plain, trees, ...: it stays out of the oracle
    return replayed, what_if(replayed, others=others, tell=tell, **asked)


def what_if(
    replayed: Replay,
    *,
    lengths: Sequence[int] | None = None,
    thresholds: Sequence[float] | None = None,
    policies: Sequence[tuple[str, Mapping[str, Any], int | None]] | None = None,
    others: Sequence[Replay] = (),
    tell: Tell = lambda text, fraction: None,
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
        wanted += [("confidence", {"threshold": one}, k) for one in (THRESHOLDS if thresholds is None else thresholds)]
    chosen = [(name, {}, None) for name in POLICIES_ASKED] if policies is None else policies
    wanted += [(name, options, k if own is None else own) for name, options, own in chosen]
    oracles = [[replayed], [replayed, *others]] if others else [[replayed]]

    def told(what: str, step: int) -> OnPosition:
        def on_position(done: int, total: int) -> None:
            if done % 64 == 0 or done == total:
                tell(what, (step + done / max(total, 1)) / (len(wanted) + len(oracles)))

        return on_position

    found = [
        replayed.policy_of(name, options, length, told(f"Replaying {name}", step))
        for step, (name, options, length) in enumerate(wanted)
    ]
    for index, lanes in enumerate(oracles):
        oracle = best_of(lanes, told("Looking for the best choices", len(wanted) + index))
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
