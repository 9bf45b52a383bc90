"""Measure target passes over several sequences at once: the real cost of B times k + 1 tokens on this device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specview.decoding.interfaces import BatchProbe, Engine
from specview.decoding.metrics import percentile
from specview.errors import SpecviewError, Stopped, require
from specview.lab.roofline import Roofline, measure_roofline
from specview.racing.load_meter import LoadMeter
from specview.settings.run import MAX_K

BATCHES = (1, 2, 4, 8, 16)
KS = (0, 2, 4)
CONTEXT = 256
REPEATS = 7
SECONDS = 60.0
MAX_SEQUENCES = 1024
_SPARE_BYTES = 300 << 20

Cell = tuple[int, int]
"""Sequences, and rows of each of them in one pass."""

OnProgress = Callable[[str, float | None], None]
ShouldStop = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is timed: passes of k + 1 rows, k in ks and 0, of each of B sequences that hold `context` tokens.

    After `seconds` no further repeat begins; everything is measured once in any case.
    """

    batches: tuple[int, ...] = BATCHES
    ks: tuple[int, ...] = KS
    context: int = CONTEXT
    repeats: int = REPEATS
    seconds: float = SECONDS

    def __post_init__(self) -> None:
        """Refuse, in one line, what cannot be measured."""
        require(bool(self.batches), "there are no batch sizes.", "Give some, as in --batch 1,2,4,8.")
        for size in self.batches:
            require(1 <= size <= MAX_SEQUENCES, f"a batch size is {size}.", f"Use 1 to {MAX_SEQUENCES} sequences.")
        require(bool(self.ks), "there are no draft lengths.", "Give some, as in --k 0,2,4.")
        for k in self.ks:
            require(0 <= k <= MAX_K, f"a draft length k is {k}.", f"Use 0 (plain) to {MAX_K}.")
        require(self.context >= 1, f"context is {self.context}.", "Use 1 token or more.")
        require(1 <= self.repeats <= 1000, f"repeats is {self.repeats}.", "Use 1 to 1000.")
        require(self.seconds > 0, f"seconds is {self.seconds:g}.", "Use more than 0.")

    @property
    def rows(self) -> list[int]:
        """Row counts of a pass, in order; plain decoding's always."""
        return sorted({1, *(k + 1 for k in self.ks)})


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

        def timed(sequences: int, each: int, times: Sequence[float]) -> dict[str, Any]:
            low, median, high = middle(times)
            return {"sequences": sequences, "rows_each": each, "source": "measured", "median_s": median, "low_s": low,
                    "high_s": high, "repeats_s": list(times)}  # fmt: skip

        def bounds(sequences: int, each: int) -> dict[str, Any] | None:
            return None if roof is None else {
                "source": "modelled", "memory_s": roof.memory_s(sequences),
                "compute_s": roof.compute_s(sequences * each), "bound": roof.bound(sequences, each),
            }  # fmt: skip

        return {
            "engine": self.engine,
            "target": self.model,
            "device": self.device,
            "dtype": self.dtype,
            "threads": self.threads,
            "context": self.context,
            "timed": self.how,
            "passes": [
                timed(*cell, times) | {"rows": cell[0] * cell[1], "roofline": bounds(*cell)}
                for cell, times in sorted(self.passes.items())
            ],
            "draft_model": self.draft_model or None,
            "draft_timed": self.draft_how or None,
            "draft_passes": [timed(sequences, 1, times) for sequences, times in sorted(self.drafts.items())],
            "roofline": None if roof is None else roof.as_dict(),
            "skipped": list(self.skipped),
            "stopped": self.stopped,
            "busy": self.busy,
        }


def middle(times: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median and third quartile."""
    low, median, high = (percentile(times, percent) or 0.0 for percent in (25, 50, 75))
    return low, median, high


def measure_batches(
    engine: Engine,
    prompt_ids: Sequence[int],
    sizes: Sizes,
    *,
    draft: Engine | None = None,
    roofline: bool = True,
    should_stop: ShouldStop = lambda: False,
    on_progress: OnProgress = lambda text, fraction: None,
    clock: Callable[[], float] = time.perf_counter,
) -> BatchTimes:
    """Time target passes of the sizes, each for every number of sequences.

    Sizes are interleaved, so that a noisy moment hits all alike; each pass is run once before it is timed (a pass of
    another shape went before it). The context is prompt_ids, repeated to length; every sequence is fed other tokens.
    draft: its one-row passes are timed in the same order. Sizes that do not fit the memory at hand are left out, with
    a line. Stopping keeps what there is, once the smallest size was measured. Raises SpecviewError where no size
    fits, Stopped where it was stopped before there was anything.
    """
    require(bool(prompt_ids), "the prompt is empty.", "Give one that has a token.")
    tokens = [prompt_ids[place % len(prompt_ids)] for place in range(sizes.context)]
    work = _Measurement(engine, draft, tokens, sizes, should_stop, on_progress, clock)
    try:
        return work.run(roofline)
    finally:
        work.close()


@dataclass(slots=True)
class _Measurement:
    """The probes of one measurement, one per number of sequences, and what they took so far."""

    engine: Engine
    draft: Engine | None
    tokens: list[int]
    sizes: Sizes
    should_stop: ShouldStop
    on_progress: OnProgress
    clock: Callable[[], float]
    targets: dict[int, BatchProbe] = field(default_factory=dict)
    drafts: dict[int, BatchProbe] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    pass_s: dict[Cell, list[float]] = field(default_factory=dict)
    draft_s: dict[int, list[float]] = field(default_factory=dict)

    def run(self, roofline: bool) -> BatchTimes:
        """Do all of it."""
        meter = LoadMeter()
        stopped = False
        roof: Roofline | None = None
        try:
            self.make_probes()
            if roofline:
                roof = self.measure_roofline()
            self.fill()
            self.repeat()
        except Stopped:
            stopped = True
            if not any(each == 1 for _, each in self.pass_s):
                raise
        left = self.targets  # a size that failed on the way is left out wholly
        engine, draft = self.engine, self.draft
        return BatchTimes(
            engine=engine.name,
            model=engine.model_name,
            device=engine.device,
            dtype=engine.dtype,
            threads=getattr(engine, "threads", None),
            context=self.sizes.context,
            how=next(iter(left.values())).how,
            passes={cell: tuple(times) for cell, times in sorted(self.pass_s.items()) if cell[0] in left},
            drafts={sequences: tuple(times) for sequences, times in sorted(self.draft_s.items()) if sequences in left},
            draft_model="" if draft is None or not self.draft_s else draft.model_name,
            draft_how=next((probe.how for probe in self.drafts.values()), ""),
            roofline=roof,
            skipped=tuple(self.skipped),
            stopped=stopped,
            busy=meter.busy_text(),
        )

    def make_probes(self) -> None:
        """Make the probes that fit the memory at hand, the smaller ones first."""
        import psutil

        refused: SpecviewError | None = None
        context, rows = self.sizes.context, self.sizes.rows[-1]
        free = int(psutil.virtual_memory().available) - _SPARE_BYTES
        for sequences in sorted(set(self.sizes.batches)):
            self.proceed("Making caches", None)
            needed = self.engine.batch_bytes(sequences, context, rows)
            if self.draft is not None:
                needed += self.draft.batch_bytes(sequences, context, 1)
            if self.engine.device == "cpu" and needed > free:
                line = (
                    f"{sequences} sequences of {context:,} tokens need {needed / 1e9:.1f} GB of memory, "
                    f"and {max(free, 0) / 1e9:.1f} GB are left."
                )
                refused = SpecviewError(line, "Measure fewer sequences or a shorter context, or close other programs.")
                self.skipped.append(f"Left out: {line}")
                continue
            try:
                self.targets[sequences] = self.engine.batch_probe(sequences, context, rows)
            except SpecviewError as error:
                if error.usage or not self.targets:
                    raise
                self.skipped.append(f"Left out: {error.cause}")
                continue
            free -= needed  # all are held at once, and not every engine takes its memory at once
            if self.draft is not None:
                try:
                    self.drafts[sequences] = self.draft.batch_probe(sequences, context, 1)
                except SpecviewError as error:
                    self.skipped.append(f"The draft model's passes are modelled: {error.cause}")
                    self.draft = None
        if not self.targets:
            assert refused is not None
            raise refused

    def measure_roofline(self) -> Roofline:
        """Measure what the machine can do at best, before the caches are filled."""
        self.proceed("Measuring memory and matrix products", None)
        wide = min(self.engine.context_length - 1, 256)
        probe = self.engine.batch_probe(1, max(1, wide - 1), 1)
        try:
            return measure_roofline(self.engine, probe, self.sizes.context)
        finally:
            probe.close()

    def fill(self) -> None:
        """Prefill every probe; one whose device has no room for it after all is left out."""
        probes = [*self.targets.items(), *self.drafts.items()]
        for place, (sequences, probe) in enumerate(probes):

            def on_chunk(done: int, total: int, place: int = place) -> None:
                self.proceed("Prefill", (place + done / total) / len(probes))

            on_chunk(0, 1)
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

    def repeat(self) -> None:
        """Time every size in turn, again and again."""
        cells = [(sequences, each) for sequences in self.targets for each in self.sizes.rows]
        work = sum(sequences * each for sequences, each in cells)
        repeats = self.sizes.repeats
        begin = self.clock()
        for repeat in range(repeats):
            if repeat and self.clock() - begin > self.sizes.seconds:
                break
            done = 0
            for sequences, each in cells:
                if sequences not in self.targets:
                    continue
                self.proceed(f"Passes {repeat + 1}/{repeats}", (repeat + done / work) / repeats)
                try:
                    spent = self.time(self.targets[sequences], each, repeat)
                    if each == 1 and sequences in self.drafts:
                        self.draft_s.setdefault(sequences, []).append(self.time(self.drafts[sequences], 1, repeat))
                except SpecviewError as error:
                    self.leave_out(sequences, error)
                    continue
                self.pass_s.setdefault((sequences, each), []).append(spent)
                done += sequences * each

    def time(self, probe: BatchProbe, each: int, repeat: int) -> float:
        """Seconds of a pass of `each` rows of every sequence, run once before it is timed."""
        tokens, context = self.tokens_of(probe), self.sizes.context
        fed = [
            [tokens[(7 * sequence + 3 * repeat + place) % context] for place in range(each)]
            for sequence in range(probe.sequences)
        ]
        spent = 0.0
        for _ in range(2):
            begin = self.clock()
            probe.forward(fed)
            probe.synchronize()
            spent = self.clock() - begin
            probe.truncate(context)
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
