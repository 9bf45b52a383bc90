"""`compare`: the same race several times, and the medians."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from statistics import median
from typing import Any

from specview.decoding.ledger import RunRecord
from specview.decoding.metrics import Metrics
from specview.decoding.speedup import Speedup, median_speedup
from specview.errors import SpecviewError
from specview.racing.pool import ModelPool, ShouldStop
from specview.racing.race import Race, one_line
from specview.settings.events import Equality, Event, Failed, LaneEnded, RaceEnded, RaceStarted
from specview.settings.run import RunSettings


@dataclass(slots=True)
class LaneResult:
    """One lane over all repeats.

    metrics are medians figure by figure; record is the repeat with the median speedup (of plain: decode tok/s), and
    speedup that repeat's, with the spread over all. A repeat that ended with an error is in repeats and
    in no median, unless all did; error is one line where any did.
    """

    record: RunRecord
    metrics: Metrics
    repeats: list[tuple[RunRecord, Metrics]]
    speedup: Speedup | None = None
    equality: Equality | None = None
    error: str = ""


@dataclass(slots=True)
class CompareResult:
    """All lanes, plain first; facts of the run; how it ended ('done', 'stopped' or 'error').

    trouble says what a lane could not keep for its user.
    """

    lanes: list[LaneResult] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    prompt_text: str = ""
    prompt_ids: tuple[int, ...] = ()
    end: str = "done"
    busy: str = ""
    real_time_fraction: float | None = None
    trouble: str = ""


def compare(
    settings: RunSettings,
    repeats: int = 1,
    models: ModelPool | None = None,
    on_event: Callable[[Event], None] = lambda event: None,
    should_stop: ShouldStop = lambda: False,
    *,
    clock: Callable[[], float] = time.perf_counter,
    oracles: bool = True,
) -> CompareResult:
    """Race the lanes `repeats` times and fold the repeats; clock and oracles as in `Race`.

    Above temperature 0 each repeat has a seed of its own, which its records name. Lanes of one race are interleaved round by round, so a noisy neighbour slows all alike. Raises
    SpecviewError where the run fails before its lanes; a stop keeps what there is.
    """
    pool = models or ModelPool()
    result = CompareResult()
    ends: list[dict[int, LaneEnded]] = []
    records: list[list[RunRecord]] = []
    try:
        for repeat in range(repeats):
            last: dict[int, LaneEnded] = {}
            failures: list[Failed] = []

            def listen(
                event: Event, last: dict[int, LaneEnded] = last, failures: list[Failed] = failures
            ) -> None:
                if isinstance(event, RaceStarted):
                    result.facts = dict(event.facts)
                    result.prompt_text, result.prompt_ids = event.prompt_text, event.prompt_ids
                elif isinstance(event, LaneEnded):
                    last[event.lane] = event
                elif isinstance(event, Failed):
                    failures.append(event)
                elif isinstance(event, RaceEnded):
                    result.end, result.busy = event.end, event.busy or result.busy
                    result.real_time_fraction = event.real_time_fraction
                on_event(event)

            again = replace(settings, sampling=settings.sampling.part(repeat=repeat))
            race = Race(again, repeat, pool, clock, oracles)
            try:
                race.run(listen, should_stop)
                if failures:
                    raise SpecviewError(failures[0].message, usage=failures[0].usage)
                if result.end != "stopped" or not records:
                    ends.append(last)
                    records.append(race.records)
            finally:
                try:
                    race.close()
                except Exception as error:  # noqa: BLE001 - caches that cannot be freed: what was measured stands
                    race.trouble = race.trouble or f"caches: {one_line(error)}"
                result.trouble = result.trouble or race.trouble
            if result.end == "stopped":
                break
    finally:
        if models is None:
            pool.close()
    if records and records[0]:
        result.lanes = [_fold_lane(index, records, ends) for index in range(len(records[0]))]
    return result


def _fold_lane(index: int, records: list[list[RunRecord]], ends: list[dict[int, LaneEnded]]) -> LaneResult:
    there = [repeat for repeat, end in enumerate(ends) if index in end]
    failed = [repeat for repeat in there if ends[repeat][index].end == "error"]
    good = [repeat for repeat in there if repeat not in failed] or there
    # Plain that failed was cut short: so was the time that a ratio to it is over.
    timed = [repeat for repeat in good if 0 not in ends[repeat] or ends[repeat][0].end != "error"] or good

    def speed(repeat: int) -> float:
        found = ends[repeat][index].speedup
        return found.value if found is not None else ends[repeat][index].metrics.decode_tokens_per_s or 0.0

    middle = sorted(timed, key=speed)[(len(timed) - 1) // 2]
    unequal = [found for repeat in good if (found := ends[repeat][index].equality) is not None and not found.equal]
    error = ends[failed[0]][index].error if failed else ""
    if failed and len(failed) < len(there):
        error = f"repeat {failed[0] + 1} of {len(ends)} failed and is in no median: {error}"
    return LaneResult(
        record=records[middle][index],
        metrics=median_metrics([ends[repeat][index].metrics for repeat in good]),
        repeats=[(records[repeat][index], ends[repeat][index].metrics) for repeat in there],
        speedup=median_speedup(ends[repeat][index].speedup for repeat in timed),
        equality=unequal[0] if unequal else ends[middle][index].equality,
        error=error,
    )


def median_metrics(all_metrics: list[Metrics]) -> Metrics:
    """Figure by figure the median over repeats; counts stay whole; None where none has the figure."""
    if len(all_metrics) == 1:
        return all_metrics[0]
    return Metrics(**{item.name: _middle([getattr(one, item.name) for one in all_metrics]) for item in fields(Metrics)})


def _middle(values: Sequence[Any]) -> Any:
    """The median of those that are there: of series place by place, of mappings key by key; of words the first."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    if isinstance(present[0], (str, list)):
        return present[0]
    if isinstance(present[0], Mapping):
        keys = dict.fromkeys(key for value in present for key in value)
        return {key: _middle([value.get(key) for value in present]) for key in keys}
    if isinstance(present[0], tuple):
        places = range(max(map(len, present)))
        return tuple(_middle([value[at] for value in present if at < len(value)]) for at in places)
    if all(isinstance(value, int) for value in present):
        return sorted(present)[(len(present) - 1) // 2]
    return median(present)
