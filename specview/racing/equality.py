"""Whether a greedy lane's output equals plain decoding's, and if not, whether kernels explain it.

Kernels for one row and for several rows differ, so a correct loop can leave plain decoding where
two tokens are nearly tied. The margin there is shown beside the drift that this model file's
kernels were measured to have.
"""

from __future__ import annotations

from collections.abc import Hashable, MutableMapping
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from specview.decoding.interfaces import Engine
from specview.decoding.ledger import FINISHED, Array
from specview.decoding.sampling import as_like, top_entries
from specview.settings.events import Equality

if TYPE_CHECKING:
    from specview.racing.lane import Lane

ROWS = 4
POSITIONS = 64


def compare_outputs(
    lane: Lane,
    plain: Lane,
    margins: MutableMapping[Hashable, float] | dict,
    key: Hashable,
    measure: bool = True,
) -> Equality | None:
    """Compare a lane's ids with plain's; None where equality is not to be expected.

    Greedy lanes, and `match` lanes of the same seed, should equal plain. `margins` remembers the
    kernel margins, in logits, measured for a model (`key`) at a difference. A lane that was stopped
    is compared as far as both go. measure False leaves the kernel margin out unless it is known.
    """
    if not plain.record.rounds or not lane.record.rounds:
        return None
    if lane.rule not in ("greedy", "match") and not lane.run.sampling.greedy:
        return None
    ours, theirs = lane.record.token_ids, plain.record.token_ids
    compared = min(len(ours), len(theirs))
    both_ended = all(one.record.end in FINISHED for one in (lane, plain))
    pairs = zip_longest(ours, theirs) if both_ended else zip(ours, theirs, strict=False)
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if first is None:
        return Equality(True, compared)
    final = plain.record.rounds[first].final if first < len(plain.record.rounds) else None
    prompt_ids = plain.record.prompt_ids
    place = (key, prompt_ids, first)
    if place not in margins and measure:
        # Measured around the difference: the drift depends on how many tokens the cache holds.
        begin = len(prompt_ids) + max(0, first - POSITIONS * 3 // 4)
        margins[place] = kernel_margin(plain.target, [*prompt_ids, *theirs], begin)
    return Equality(False, compared, first, final.margin if final is not None else None, margins.get(place))


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
