"""Check mode on the bundled pair: every lossless lane equals plain decoding, token for token."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specview.decoding.sampling import SamplingParams
from specview.drafting.lanes import heads_of
from specview.drafting.registry import METHODS
from specview.models.assets import asset_path
from specview.models.bundled import target_gguf
from specview.racing.race import Race
from specview.racing.workloads import list_workloads, load
from specview.settings.events import Failed, LaneEnded
from specview.settings.run import LaneSettings, RunSettings
from tests.racing.bundled_heads import MAKERS, fabricate

pytestmark = pytest.mark.real_model
MAX_TOKENS = int(os.environ.get("SPECVIEW_CHECK_TOKENS", "20"))
GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=1.0, seed=11)
ENGINES = ("transformers", "llama.cpp")


def race(settings: RunSettings, pool: Any) -> tuple[Race, dict[int, LaneEnded]]:
    """Run a race to its end; no lane may fail."""
    ends: dict[int, LaneEnded] = {}
    failures: list[str] = []

    def listen(event: object) -> None:
        if isinstance(event, LaneEnded):
            ends[event.lane] = event
        elif isinstance(event, Failed):
            failures.append(event.message)

    runner = Race(settings, 1, pool)
    runner.run(listen)
    runner.close()
    assert not failures, failures
    assert [end.error for end in ends.values()] == [""] * len(settings.lanes)
    return runner, ends


def checked(engine: str, **changes: Any) -> RunSettings:
    return replace(
        RunSettings(engine=engine, check_mode=True, max_tokens=MAX_TOKENS, observe="off", threads=2), **changes
    )


SHORT = {"size_n": 3, "size_m": 6}  # n-grams that recur within a short run
LANES: dict[str, LaneSettings] = {
    "draft-model": LaneSettings("draft-model", k=3),
    "prompt-lookup": LaneSettings("prompt-lookup", k=5),
    "ngram-simple": LaneSettings("ngram-simple", options=SHORT),
    "ngram-map-k": LaneSettings("ngram-map-k", options=SHORT),
    "ngram-map-k4v": LaneSettings("ngram-map-k4v", options=SHORT, policy="off-below"),
    "ngram-mod": LaneSettings("ngram-mod", options={"n_match": 3, "n_min": 1, "n_max": 8}),
    "suffix": LaneSettings("suffix"),
    "lookahead": LaneSettings("lookahead", options={"window_size": 3, "level": 3, "guess_set_size": 3}),
    "early-exit": LaneSettings("early-exit", k=3, options={"exit_layer": 20}),
    "pard": LaneSettings("pard", k=3, options={"pard_token": 5}),  # the bundled draft, which was not trained for it
    "medusa": LaneSettings("medusa", k=3),
    "medusa-tree": LaneSettings("medusa", name="medusa-tree", options={"tree": "fixed"}),
    "mlp-speculator": LaneSettings("mlp-speculator", k=3),
    "mtp": LaneSettings("mtp", k=3),
    "eagle": LaneSettings("eagle", k=3),
    "eagle tree": LaneSettings("eagle", name="eagle tree", options={"tree": "fixed"}),
    "eagle2": LaneSettings("eagle2"),
    "eagle3": LaneSettings("eagle3", k=3),
    "eagle3 tree": LaneSettings("eagle3", name="eagle3 tree", options={"tree": "dynamic"}),
    "p-eagle": LaneSettings("p-eagle", k=3),
    "lookup, eagle3": LaneSettings(
        "cascade", name="lookup, eagle3", k=5, options={"members": "prompt-lookup+eagle3"}
    ),
    "cascade": LaneSettings("cascade", k=5, options={"members": "ngram-simple+lookahead+draft-model"}),
    "auto": LaneSettings("auto", k=8),
    "adaptive": LaneSettings("draft-model", name="adaptive", policy="adaptive"),
}
"""One lane of every method, and of the policies that choose lengths by what they measure."""
ALL = bool(os.environ.get("SPECVIEW_CHECK_ALL"))
"""Every lane on every workload in both samplings (an hour and more); else four of them at a time, in turn."""


@pytest.fixture(scope="session")
def heads_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where heads are made for methods that have no bundled one, which random ones do as well for."""
    return tmp_path_factory.mktemp("heads")


def with_head(lane: LaneSettings, folder: Path) -> LaneSettings:
    """The lane with a head made for it, where its method needs one that does not ship."""
    kinds = [choice.kind for choice in heads_of(lane).values() if choice.kind in MAKERS]
    made = [kind for kind in kinds if not (asset_path(kind) / "config.json").is_file()]
    return replace(lane, draft=str(fabricate(made[0], folder))) if made else lane


def shared_out(engine: str) -> list[tuple[str, SamplingParams, list[LaneSettings]]]:
    """Workload, sampling and lanes of each run of an engine.

    Pairwise: every lane in both engines, and greedy in one, sampled in the other; every workload once; plain decoding once
    for four lanes.
    """
    other = ENGINES.index(engine)
    every = list(LANES.values())
    groups = [
        [lane for lane in every[begin : begin + 4] if not (other and lane.method == "early-exit")] for begin in range(0, len(every), 4)
    ]
    if ALL:
        return list(itertools.product(list_workloads(), (GREEDY, SAMPLED), groups))
    kinds = [list_workloads()[begin : begin + 2] for begin in range(0, len(list_workloads()), 2)]  # a workload and its twin
    return [
        (kinds[place % len(kinds)][(place // 2 + other) % 2], (GREEDY, SAMPLED)[(place + other) % 2], group) for place, group in enumerate(groups)
    ]


def test_every_method_has_a_lane_and_every_lane_both_engines_and_samplings() -> None:
    assert {lane.method for lane in LANES.values()} == {name for name, method in METHODS.items() if method.drafts}
    runs = {engine: shared_out(engine) for engine in ENGINES}
    assert {workload for found in runs.values() for workload, _, _ in found} == set(list_workloads())
    ways = {
        lane.label: {(engine, how.greedy) for engine, found in runs.items() for _, how, lanes in found if lane in lanes}
        for lane in LANES.values()
    }
    for label, met in ways.items():
        if label != "early-exit":  # transformers alone has it; drafting/test_early_exit.py decodes it in both samplings
            assert {engine for engine, _ in met} == set(ENGINES) and {greedy for _, greedy in met} == {True, False}, label
    assert ways["early-exit"]


@pytest.mark.parametrize("place", range(1 if ALL else -(-len(LANES) // 4)))
def test_lanes_equal_plain(engine_name: str, model_pool: Any, heads_folder: Path, place: int) -> None:
    """Greedy lanes equal greedy plain decoding; `match` at temperature 1 equals sampled plain."""
    for workload, sampling, lanes in shared_out(engine_name) if ALL else [shared_out(engine_name)[place]]:
        prompt = load(workload).prompts[0]
        rule = "greedy" if sampling.greedy else "match"
        group = [replace(with_head(lane, heads_folder), rule=rule) for lane in lanes]
        settings = checked(
            engine_name,
            prompt=prompt.text,
            system=prompt.system,
            sampling=sampling,
            lanes=(LaneSettings(), *group),
        )
        runner, ends = race(settings, model_pool)
        plain, *others = [record.token_ids for record in runner.records]
        assert plain
        assert {lane.label: ids for lane, ids in zip(group, others, strict=True)} == {
            lane.label: plain for lane in group
        }
        for index in range(1, len(others) + 1):
            equality = ends[index].equality
            assert equality is not None and equality.equal


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "rejection"])
def test_a_model_drafting_for_itself_is_always_accepted(
    engine_name: str, model_pool: Any, sampling: SamplingParams
) -> None:
    """Self-draft: alpha exactly 1 under greedy, p / q within 1e-6 of 1 under rejection."""
    prompt = load("story").prompts[0]
    settings = checked(
        engine_name,
        prompt=prompt.text,
        sampling=sampling,
        lanes=(LaneSettings("draft-model", draft=str(target_gguf()), k=4),),
        baseline=False,
    )
    runner, ends = race(settings, model_pool)
    drafted = [token for round_ in runner.records[0].rounds for token in round_.drafted]
    judged = [token for token in drafted if token.verdict != "ignored"]
    assert len(judged) >= MAX_TOKENS // 2
    assert all(token.accept == pytest.approx(1.0, abs=1e-6) for token in judged)
    if sampling.greedy:
        assert ends[0].metrics.acceptance_rate == 1.0
