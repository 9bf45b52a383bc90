"""Made-up races for the tests of recorded runs: the events that a race of these settings would tell, no models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from specview.decoding.ledger import Round
from specview.decoding.metrics import fold
from specview.decoding.round_table import RoundTable
from specview.decoding.speedup import speedup
from specview.drafting.lanes import flat_settings
from specview.drafting.registry import METHODS
from specview.files.writer import TraceRecorder, TraceWriter
from specview.library.keeping import RunKeeper
from specview.library.library import RunLibrary
from specview.racing.resolve import checked_run
from specview.settings.events import (
    Equality,
    Event,
    LaneEnded,
    LanePrefilled,
    LaneRound,
    RaceEnded,
    RaceStarted,
)
from specview.settings.run import LaneSettings, RunSettings
from tests.gui.views_data import make_rounds

FACTS = {
    "engine": "transformers", "device": "cpu", "device_name": "a processor", "cpu": "a processor", "threads": 2,
    "target_model_name": "SmolLM2-135M-Instruct", "target_file": "target-float32", "target_sha256": "ab" * 32,
    "target_source_file": "target.gguf", "target_source_sha256": "cd" * 32, "target_dtype": "float32",
    "target_weight_bytes": 651165696, "version_specview": "0.1.0", "version_torch": "2.13.0", "version_llama_cpp_python": None,
    "draft_1_model_name": "small draft", "draft_1_sha256": "ef" * 32, "platform": "Linux",
}  # fmt: skip
SETTINGS = RunSettings(
    prompt="Say hi, and nothing more.", max_tokens=64, observe="full",
    lanes=(LaneSettings(), LaneSettings("draft-model", k=4), LaneSettings("prompt-lookup", k=3)),
)  # fmt: skip


def lane_rounds(settings: RunSettings, index: int, count: int, seed: int) -> list[Round]:
    """The rounds of one lane."""
    lane = settings.lanes[index]
    rule = "greedy" if settings.sampling.greedy else "rejection"
    k = (lane.k or 2) if METHODS[lane.method].drafts else 0
    return make_rounds(count, k, rule=rule, seed=seed + index, drafters=(lane.method,))


def race_events(
    settings: RunSettings = SETTINGS, *, rounds: int = 12, seed: int = 0, run_id: int = 1,
    prompt_ids: tuple[int, ...] = (1, 9690, 198), facts: dict | None = None, end: str | None = "done",
) -> Iterator[Event]:
    """Tell a race; end None leaves it unfinished (the program died), 'stopped' is the user's."""
    settings = checked_run(settings)
    flats = [{**flat_settings(settings, lane), "k": (lane.k or 2) if METHODS[lane.method].drafts else None} for lane in settings.lanes]
    yield RaceStarted(run_id, prompt_ids, settings.prompt, tuple(lane.label for lane in settings.lanes), tuple(flats),
                      FACTS if facts is None else facts)  # fmt: skip
    made = [lane_rounds(settings, index, rounds, seed) for index in range(len(flats))]
    for index in range(len(made)):
        yield LanePrefilled(run_id, index, 0.25, 1000 + index, 9 * index)
    for place in range(rounds):
        for index, lane in enumerate(made):
            yield LaneRound(run_id, index, lane[place])
    if end is None:
        return
    step_s = fold_step(made[0])
    for final in (False, True):
        for index, lane in enumerate(made):
            metrics = fold(lane, 0.25, step_s)
            against = (
                (speedup(lane, made[0]), Equality(index == 1, 20, None if index == 1 else 7, 0.25, 0.5)) if index else (None, None)
            )
            yield LaneEnded(run_id, index, "limit" if end == "done" else "stopped", metrics, "", *against[: 2 if final else 1])
    yield RaceEnded(run_id, end, 0.34, "")  # type: ignore[arg-type]


def fold_step(rounds: list[Round]) -> float | None:
    """The plain step's time, as the race measures it."""
    return RoundTable(rounds).plain_step_s()


def write_trace(path: Path, **options: object) -> Path:
    """Write a made-up race as --trace does."""
    with TraceWriter(path) as writer:
        recorder = TraceRecorder(writer)
        for event in race_events(**options):  # type: ignore[arg-type]
            recorder.take(event)
    return path


def keep(library: RunLibrary, **options: object) -> str:
    """Keep a made-up race in a library; returns its id."""
    keeper = RunKeeper(library, {"source": "window"})
    for event in race_events(**options):  # type: ignore[arg-type]
        keeper.take(event)
    keeper.close()
    assert keeper.path is not None
    return keeper.path.name.removesuffix(".jsonl")
