"""Calibrate v(k) of a run's target: every draft length that an explanation speaks of, measured before or after a race."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from specview.errors import Stopped
from specview.racing.calibration import counts_up_to
from specview.racing.pool import ModelPool, OnProgress, ShouldStop, target_key
from specview.racing.race import tokenize_prompt
from specview.settings.run import RunSettings

MOST_K = 8
"""Draft lengths 1 to this are measured one by one; beyond, some."""
SECONDS = 6.0
"""After which no further repeat begins."""


def calibrate_passes(
    pool: ModelPool,
    settings: RunSettings,
    k: int = MOST_K,
    *,
    tell: OnProgress | None = None,
    should_stop: ShouldStop = lambda: False,
    afresh: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> Mapping[int, float]:
    """Seconds of the target's passes by rows, for drafts of 1 to k (at least 8) tokens after the run's prompt.

    The pool keeps them, so the race that follows does not measure again; afresh forgets what it kept. Loads the
    target where it is not loaded. Raises SpecviewError where that fails, Stopped where should_stop said so.
    """
    key = target_key(settings)
    target = pool.get(key, tell, should_stop)
    if should_stop():
        raise Stopped
    prompt = tokenize_prompt(settings, target)

    def on_count(fraction: float) -> None:
        if should_stop():
            raise Stopped
        if tell is not None:
            tell("Measuring the target's passes", fraction)

    rows = max(k, MOST_K) + 1
    counts = sorted({*range(1, MOST_K + 2), *counts_up_to(rows)})
    return pool.measure_passes(key, prompt, rows, on_count, clock, afresh=afresh, counts=counts, seconds=SECONDS)
