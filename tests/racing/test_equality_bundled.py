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
"""Every lane on every workload (half an hour and more); else each workload has four of them, in turn."""


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

    Workloads alternate between greedy and sampled, and the engines differ in which is which, so that every lane is
    decoded under both, every workload by both engines, and plain decoding once for four lanes.
    """
    lanes = [lane for name, lane in LANES.items() if engine == "transformers" or name != "early-exit"]
    if ALL:
        groups = [lanes[begin : begin + 4] for begin in range(0, len(lanes), 4)]
        return list(itertools.product(list_workloads(), (GREEDY, SAMPLED), groups))
    shift = int(engine == "llama.cpp")
    return [
        (workload, (GREEDY, SAMPLED)[(place + shift) % 2], lanes[place // 2 * 4 :][:4])
        for place, workload in enumerate(list_workloads())
    ]


@pytest.mark.parametrize("engine", ["transformers", "llama.cpp"])
def test_every_method_has_a_lane_and_every_lane_both_samplings(engine: str) -> None:
    assert {lane.method for lane in LANES.values()} == {name for name, method in METHODS.items() if method.drafts}
    runs = shared_out(engine)
    assert {workload for workload, _, _ in runs} == set(list_workloads())
    for sampling in (GREEDY, SAMPLED):
        met = {lane.label for _, how, lanes in runs if how == sampling for lane in lanes}
        assert {lane.label for lane in LANES.values()} - met <= ({"early-exit"} if engine == "llama.cpp" else set())


@pytest.mark.parametrize("workload", list_workloads())
def test_lanes_equal_plain(engine_name: str, model_pool: Any, heads_folder: Path, workload: str) -> None:
    """Greedy lanes equal greedy plain decoding; `match` at temperature 1 equals sampled plain."""
    prompt = load(workload).prompts[0]
    for _, sampling, lanes in [run for run in shared_out(engine_name) if run[0] == workload]:
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
        lanes=(LaneSettings(), LaneSettings("draft-model", draft=str(target_gguf()), k=4)),
    )
    runner, ends = race(settings, model_pool)
    drafted = [token for round_ in runner.records[1].rounds for token in round_.drafted]
    judged = [token for token in drafted if token.verdict != "ignored"]
    assert len(judged) >= MAX_TOKENS // 2
    assert all(token.accept == pytest.approx(1.0, abs=1e-6) for token in judged)
    if sampling.greedy:
        assert ends[1].metrics.acceptance_rate == 1.0
