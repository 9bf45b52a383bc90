"""Whether a greedy lane's output equals plain decoding's, and if not, whether kernels explain it.

Kernels for one row and for several rows differ, so a correct loop can leave plain decoding where
two tokens are nearly tied. The margin there is shown beside the drift that this model file's
kernels were measured to have.
"""

from __future__ import annotations

from collections.abc import Hashable, MutableMapping
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from specview.decoding.interfaces import Engine
from specview.decoding.ledger import Array, RunRecord, finished
from specview.decoding.sampling import as_like, top_entries
from specview.settings.events import Equality

if TYPE_CHECKING:
    from specview.racing.lane import Lane
    from specview.racing.remote_lane import RemoteLane

ROWS = 4
POSITIONS = 64


def compare_outputs(
    lane: Lane | RemoteLane,
    plain: Lane | RemoteLane,
    margins: MutableMapping[Hashable, float] | dict,
    key: Hashable,
    measure: bool = True,
) -> Equality | None:
    """Compare a lane's ids with plain's; None where equality is not to be expected.

    Greedy lanes, and `match` lanes of the same seed, should equal plain. `margins` remembers the
    kernel margins, in logits, measured for a model (`key`) at a difference. A lane that was stopped
    is compared as far as both go. measure False leaves the kernel margin out unless it is known.
    """
    found = compare_records(lane.record, plain.record)
    if found is None or found.first_difference is None or not hasattr(lane, "target") or not hasattr(plain, "target"):
        return found  # a server's kernels cannot be measured
    prompt_ids, first = plain.record.prompt_ids, found.first_difference
    place = (key, prompt_ids, first)
    if place not in margins and measure:
        # Measured around the difference: the drift depends on how many tokens the cache holds.
        begin = len(prompt_ids) + max(0, first - POSITIONS * 3 // 4)
        margins[place] = kernel_margin(plain.target, [*prompt_ids, *plain.record.token_ids], begin)
    return replace(found, kernel_margin=margins.get(place))


def compare_records(lane: RunRecord, plain: RunRecord) -> Equality | None:
    """As `compare_outputs`, of recorded lanes: the kernels' margin is not known."""
    settings = lane.settings
    exact = settings.get("temperature") == 0 or settings.get("rule") in ("greedy", "match")
    if not plain.rounds or not lane.rounds or not exact:
        return None
    ours, theirs = _tokens(lane, plain), _tokens(plain, lane)
    ended = all(finished(one.end) for one in (lane, plain))
    pairs = zip_longest(ours, theirs) if ended else zip(ours, theirs, strict=False)
    first = next((place for place, (a, b) in enumerate(pairs) if a != b), None)
    compared = min(len(ours), len(theirs))
    if first is None:
        return Equality(True, compared)
    final = plain.rounds[first].final if first < len(plain.rounds) else None
    return Equality(False, compared, first, None if final is None else final.margin)


def _tokens(record: RunRecord, other: RunRecord) -> list[int] | list[str]:
    """The ids of a record's output, or the texts where a server did not show the ids of either."""
    if min([0, *record.token_ids, *other.token_ids]) < 0:
        return [token.text for round_ in record.rounds for token in round_.output if token.text]
    return record.token_ids


def kernel_margin(engine: Engine, tokens: list[int], start: int) -> float:
    """Largest drift, in logits, of top-1 minus top-2 between one-row and many-row passes.

    Feeds up to 64 of `tokens` from position `start` on, once row by row and once in passes of four
    rows, in throw-away sessions.
    """
    end = min(len(tokens), start + POSITIONS)
    fed = tokens[start - 1 : end]
    longest = min(end + ROWS, engine.context_length)
    one, many = engine.new_session(longest), engine.new_session(longest)
    drift = 0.0
    try:
        one.prefill(tokens[: start - 1])
        many.prefill(tokens[: start - 1])
        for begin in range(0, len(fed), ROWS):
            chunk = fed[begin : begin + ROWS]
            singles = [_row(one.forward([token]).logits[0]) for token in chunk]
            several = many.forward(chunk).logits
            for row, single in enumerate(singles):
                (a, b), (high, low) = top_entries(single, 2)
                other = _row(several[row])
                drift = max(drift, abs((high - low) - float(other[a] - other[b])))
    finally:
        one.close()
        many.close()
    return drift


def _row(logits: Array) -> np.ndarray:
    return np.array(as_like(logits, np.empty(0)), dtype=np.float32)
