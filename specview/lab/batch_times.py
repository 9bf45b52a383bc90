"""Measure target passes over several sequences at once: the real cost of B times k + 1 tokens on this device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specview.decoding.interfaces import BatchProbe, Engine
from specview.decoding.metrics import percentile
from specview.errors import SpecviewError, Stopped, UsageError
from specview.lab.roofline import Roofline, measure_roofline
from specview.racing.load_meter import LoadMeter
from specview.racing.settings import MAX_K

BATCHES = (1, 2, 4, 8, 16)
CONTEXT = 256
REPEATS = 7
SECONDS = 60.0
"""After which no further repeat begins; everything is measured once in any case."""
MAX_SEQUENCES = 1024
_SPARE_BYTES = 300 << 20

Cell = tuple[int, int]
"""Sequences, and rows of each of them in one pass."""

OnProgress = Callable[[str, float | None], None]
ShouldStop = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """What was measured, in seconds.

    passes   target passes by (sequences, rows): one time per repeat, in the order of the repeats
    drafts   draft passes of one row by sequences, likewise; empty where no draft model was measured
    skipped  a line for every size that was left out, and why
    """

    engine: str
    model: str
    device: str
    dtype: str
    threads: int | None
    context: int
    how: str
    passes: Mapping[Cell, tuple[float, ...]]
    drafts: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    draft_model: str = ""
    draft_how: str = ""
    roofline: Roofline | None = None
    skipped: tuple[str, ...] = ()
    stopped: bool = False
    busy: str = ""

    @property
    def batches(self) -> list[int]:
        """The numbers of sequences that a one-row pass was measured for, in order."""
        return sorted({sequences for sequences, rows in self.passes if rows == 1})

    def rows_at(self, sequences: int) -> list[int]:
        """The row counts measured with so many sequences, in order."""
        return sorted(rows for at, rows in self.passes if at == sequences)

    def pass_s(self, sequences: int, rows: int) -> float | None:
        """Median seconds of a pass; None where it was not measured."""
        times = self.passes.get((sequences, rows))
        return None if not times else middle(times)[1]

    def as_dict(self) -> dict[str, Any]:
        """The measurements as JSON values; the roofline's bounds stand beside each pass."""
        roof = self.roofline
        rows = []
        for (sequences, each), times in sorted(self.passes.items()):
            low, median, high = middle(times)
            rows.append({
                "sequences": sequences, "rows_each": each, "rows": sequences * each, "source": "measured",
                "median_s": median, "low_s": low, "high_s": high, "repeats_s": list(times),
                "roofline": None if roof is None else {
                    "source": "modelled", "memory_s": roof.memory_s(sequences),
                    "compute_s": roof.compute_s(sequences * each), "bound": roof.bound(sequences, each),
                },
            })  # fmt: skip
        drafts = []
        for sequences, times in sorted(self.drafts.items()):
            low, median, high = middle(times)
            drafts.append({
                "sequences": sequences, "rows_each": 1, "source": "measured", "median_s": median, "low_s": low,
                "high_s": high, "repeats_s": list(times),
            })  # fmt: skip
        return {
            "engine": self.engine,
            "target": self.model,
            "device": self.device,
            "dtype": self.dtype,
            "threads": self.threads,
            "context": self.context,
            "timed": self.how,
            "passes": rows,
            "draft_model": self.draft_model or None,
            "draft_timed": self.draft_how or None,
            "draft_passes": drafts,
            "roofline": None if roof is None else roof.as_dict(),
            "skipped": list(self.skipped),
            "stopped": self.stopped,
            "busy": self.busy,
        }


def middle(times: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median and third quartile."""
    quartiles = [percentile(times, percent) for percent in (25, 50, 75)]
    return (quartiles[0] or 0.0, quartiles[1] or 0.0, quartiles[2] or 0.0)


def require_plan(batches: Sequence[int], ks: Sequence[int], context: int) -> None:
    """Raise UsageError, one line, for sizes that cannot be measured."""
    if not batches:
        raise UsageError("there are no batch sizes.", "Give some, as in --batch 1,2,4,8.")
    for size in batches:
        if not 1 <= size <= MAX_SEQUENCES:
            raise UsageError(f"a batch size is {size}.", f"Use 1 to {MAX_SEQUENCES} sequences.")
    if not ks:
        raise UsageError("there are no draft lengths.", "Give some, as in --k 0,2,4.")
    for k in ks:
        if not 0 <= k <= MAX_K:
            raise UsageError(f"a draft length k is {k}.", f"Use 0 (plain) to {MAX_K}.")
    if context < 1:
        raise UsageError(f"context is {context}.", "Use 1 token or more.")


def measure_batches(
    engine: Engine,
    prompt_ids: Sequence[int],
    batches: Sequence[int] = BATCHES,
    ks: Sequence[int] = (0, 2, 4),
    context: int = CONTEXT,
    *,
    draft: Engine | None = None,
    repeats: int = REPEATS,
    seconds: float = SECONDS,
    roofline: bool = True,
    should_stop: ShouldStop = lambda: False,
    on_progress: OnProgress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> BatchTimes:
    """Time target passes of k + 1 rows, k in ks and 0, of each of B sequences that hold `context` tokens.

    Sizes are interleaved, so that a noisy moment hits all alike; each pass is run once before it is timed (a pass of
    another shape went before it). The context is prompt_ids, repeated to length; every sequence is fed other tokens.
    draft: its one-row passes are timed in the same order. Sizes that do not fit the memory at hand are left out, with
    a line. Stopping keeps what there is, once the smallest size was measured. Raises SpecviewError where no size
    fits, UsageError for sizes that cannot be, Stopped where it was stopped before there was anything.
    """
    require_plan(batches, ks, context)
    plan = _Measurement(engine, draft, prompt_ids, context, should_stop, on_progress, clock)
    try:
        return plan.run(sorted(set(batches)), sorted({1, *(k + 1 for k in ks)}), repeats, seconds, roofline)
    finally:
        plan.close()


class _Measurement:
    """The probes of one measurement, one per number of sequences."""

    def __init__(
        self,
        engine: Engine,
        draft: Engine | None,
        prompt_ids: Sequence[int],
        context: int,
        should_stop: ShouldStop,
        on_progress: OnProgress | None,
        clock: Callable[[], float],
    ) -> None:
        self.engine, self.draft, self.context = engine, draft, context
        self.should_stop, self.clock = should_stop, clock
        self.on_progress = on_progress or (lambda text, fraction: None)
        if not prompt_ids:
            raise UsageError("the prompt is empty.", "Give one that has a token.")
        self.tokens = [prompt_ids[place % len(prompt_ids)] for place in range(context)]
        self.targets: dict[int, BatchProbe] = {}
        self.drafts: dict[int, BatchProbe] = {}
        self.skipped: list[str] = []

    def run(self, batches: list[int], rows: list[int], repeats: int, seconds: float, roofline: bool) -> BatchTimes:
        """Do all of it."""
        meter = LoadMeter()
        stopped = False
        passes: dict[Cell, list[float]] = {}
        drafts: dict[int, list[float]] = {}
        roof: Roofline | None = None
        try:
            self.make_probes(batches, max(rows))
            if roofline:
                roof = self.measure_roofline(max(rows))
            self.fill()
            self.repeat(rows, repeats, seconds, passes, drafts)
        except Stopped:
            stopped = True
            if not any(each == 1 for _, each in passes):
                raise
        some = next(iter(self.targets.values()))
        left = set(self.targets)  # a size that failed on the way is left out wholly
        engine, draft = self.engine, self.draft
        return BatchTimes(
            engine=engine.name,
            model=engine.model_name,
            device=engine.device,
            dtype=engine.dtype,
            threads=getattr(engine, "threads", None),
            context=self.context,
            how=some.how,
            passes={cell: tuple(times) for cell, times in sorted(passes.items()) if cell[0] in left},
            drafts={sequences: tuple(times) for sequences, times in sorted(drafts.items()) if sequences in left},
            draft_model="" if draft is None or not drafts else draft.model_name,
            draft_how=next((probe.how for probe in self.drafts.values()), ""),
            roofline=roof,
            skipped=tuple(self.skipped),
            stopped=stopped,
            busy=meter.busy_text(),
        )

    def make_probes(self, batches: list[int], rows: int) -> None:
        """Make the probes that fit the memory at hand, the smaller ones first."""
        import psutil

        refused: SpecviewError | None = None
        free = int(psutil.virtual_memory().available) - _SPARE_BYTES
        for sequences in batches:
            self.proceed("Making caches", None)
            needed = self.engine.batch_bytes(sequences, self.context, rows)
            if self.draft is not None:
                needed += self.draft.batch_bytes(sequences, self.context, 1)
            if self.engine.device == "cpu" and needed > free:
                line = (
                    f"{sequences} sequences of {self.context:,} tokens need {needed / 1e9:.1f} GB of memory, "
                    f"and {max(free, 0) / 1e9:.1f} GB are left."
                )
                refused = SpecviewError(line, "Measure fewer sequences or a shorter context, or close other programs.")
                self.skipped.append(f"Left out: {line}")
                continue
            try:
                target = self.engine.batch_probe(sequences, self.context, rows)
            except SpecviewError as error:
                if error.usage or not self.targets:
                    raise
                self.skipped.append(f"Left out: {error.cause}")
                continue
            self.targets[sequences] = target
            free -= needed  # all are held at once, and not every engine takes its memory at once
            if self.draft is not None:
                try:
                    self.drafts[sequences] = self.draft.batch_probe(sequences, self.context, 1)
                except SpecviewError as error:
                    self.skipped.append(f"The draft model's passes are modelled: {error.cause}")
                    self.draft = None
        if not self.targets:
            assert refused is not None
            raise refused

    def measure_roofline(self, rows: int) -> Roofline:
        """Measure what the machine can do at best, before the caches are filled."""
        self.proceed("Measuring memory and matrix products", None)
        wide = min(self.engine.context_length - 1, 256)
        probe = self.engine.batch_probe(1, max(1, wide - 1), 1)
        try:
            return measure_roofline(self.engine, probe, self.context)
        finally:
            probe.close()

    def fill(self) -> None:
        """Prefill every probe; one whose device has no room for it after all is left out."""
        probes = [*self.targets.items(), *self.drafts.items()]
        for place, (sequences, probe) in enumerate(probes):

            def on_chunk(done: int, total: int, place: int = place) -> None:
                self.proceed("Prefill", (place + done / total) / len(probes))

            self.proceed("Prefill", place / len(probes))
            if sequences in self.targets:
                try:
                    probe.fill(self.tokens_of(probe), on_chunk)
                except SpecviewError as error:
                    self.leave_out(sequences, error)

    def leave_out(self, sequences: int, error: SpecviewError) -> None:
        """Give up a size, with a line; raises the error where it was the last."""
        self.targets.pop(sequences).close()
        if sequences in self.drafts:
            self.drafts.pop(sequences).close()
        if not self.targets:
            raise error
        self.skipped.append(f"Left out: {sequences} sequences. {error.cause}")

    def repeat(
        self, rows: list[int], repeats: int, seconds: float, passes: dict[Cell, list[float]], drafts: dict[int, list[float]]
    ) -> None:
        """Time every size in turn, again and again."""
        cells = [(sequences, each) for sequences in self.targets for each in rows]
        work = sum(sequences * each for sequences, each in cells)
        begin = self.clock()
        for repeat in range(repeats):
            if repeat and self.clock() - begin > seconds:
                break
            done = 0
            for sequences, each in cells:
                if sequences not in self.targets:
                    continue
                self.proceed(f"Passes {repeat + 1}/{repeats}", (repeat + done / work) / repeats)
                try:
                    spent = self.time(self.targets[sequences], each, repeat)
                    drafting = each == 1 and sequences in self.drafts
                    draft_s = self.time(self.drafts[sequences], 1, repeat) if drafting else None
                except SpecviewError as error:
                    self.leave_out(sequences, error)
                    continue
                passes.setdefault((sequences, each), []).append(spent)
                if draft_s is not None:
                    drafts.setdefault(sequences, []).append(draft_s)
                done += sequences * each

    def time(self, probe: BatchProbe, each: int, repeat: int) -> float:
        """Seconds of a pass of `each` rows of every sequence, run once before it is timed."""
        tokens = self.tokens_of(probe)
        fed = [
            [tokens[(7 * sequence + 3 * repeat + place) % self.context] for place in range(each)]
            for sequence in range(probe.sequences)
        ]
        spent = 0.0
        for _ in range(2):
            begin = self.clock()
            probe.forward(fed)
            probe.synchronize()
            spent = self.clock() - begin
            probe.truncate(self.context)
        return spent

    def tokens_of(self, probe: BatchProbe) -> list[int]:
        """The context's ids; those that a draft of another vocabulary does not have wrap around."""
        if self.draft is None or probe not in self.drafts.values():
            return self.tokens
        return [token % self.draft.vocab_size for token in self.tokens]

    def proceed(self, text: str, fraction: float | None) -> None:
        """Say what is under way; raise Stopped where the user asked for it."""
        if self.should_stop():
            raise Stopped
        self.on_progress(text, fraction)

    def close(self) -> None:
        """Free every probe."""
        for probe in [*self.targets.values(), *self.drafts.values()]:
            probe.close()
        self.targets, self.drafts = {}, {}
