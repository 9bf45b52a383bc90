"""Measure what a target pass costs here, by its rows: for lanes that choose lengths by it.

It runs in a throw-away session, makes no rounds and is on no lane's clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from specview.decoding.interfaces import Engine

ROWS = (1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129)
SECONDS = 1.6  # after which no further repeat begins; every count is measured once in any case
REPEATS = 7
CONTEXT = 128  # tokens of the prompt that are in the cache meanwhile

OnCount = Callable[[float], None]
"""Called with the fraction done before every pass; raises Stopped to stop."""


def counts_up_to(rows: int) -> list[int]:
    """The row counts that are measured for passes of up to `rows` rows, the largest among them."""
    return [count for count in ROWS if count < rows] + [rows]


def measure_passes(
    engine: Engine,
    prompt_ids: Sequence[int],
    rows: int,
    known: Mapping[int, float] | None = None,
    on_count: OnCount | None = None,
    clock: Callable[[], float] = time.perf_counter,
    *,
    counts: Sequence[int] | None = None,
    seconds: float = SECONDS,
) -> dict[int, float]:
    """Seconds of a target pass for some row counts up to `rows`; counts in `known` are not measured again.

    counts names the row counts (default: `counts_up_to(rows)`); after `seconds` no further repeat begins.

    The counts are interleaved, so that a noisy moment hits all alike, and repeated while there is time. Each
    is run once before it is timed: llama.cpp lays its graph out anew where the rows of a pass are not those of
    the one before, which rounds of one length do not pay (plain decoding least of all).
    Each gets its median, of an even number the lower one: what a neighbour adds is no cost of the pass.
    """
    found = dict(known or {})
    longest = engine.context_length - 1
    cached = min(len(prompt_ids), CONTEXT, max(1, longest - rows))
    most = min(rows, longest - cached + 1)
    wanted = counts_up_to(most) if counts is None else sorted({count for count in counts if 1 <= count <= most})
    counts = [count for count in wanted if count not in found]
    if not counts:
        return found
    times: dict[int, list[float]] = {count: [] for count in counts}
    fed = [prompt_ids[index % len(prompt_ids)] for index in range(max(counts))]
    session = engine.new_session(min(engine.context_length, cached + max(counts)))
    try:
        session.prefill(list(prompt_ids[:cached]))
        session.synchronize()
        begin = clock()
        for repeat in range(REPEATS):
            for index, count in enumerate(counts):
                spent = clock() - begin
                if repeat and spent > seconds:
                    break
                if on_count is not None:
                    on_count(min(1.0, spent / seconds) if repeat else (index / len(counts)) / 2)
                for timed in (False, True):
                    start = clock()
                    session.forward(fed[:count])
                    session.synchronize()
                    if timed:
                        times[count].append(clock() - start)
                    session.truncate(cached)
    finally:
        session.close()
    found |= {count: sorted(spent)[(len(spent) - 1) // 2] for count, spent in times.items()}
    return dict(sorted(found.items()))
