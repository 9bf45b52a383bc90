"""Check mode on the bundled pair: every lossless lane equals plain decoding, token for token."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from specview.decoding.sampling import SamplingParams
from specview.models.bundled import target_gguf
from specview.racing.events import Failed, LaneEnded
from specview.racing.race import Race
from specview.racing.settings import LaneSettings, RunSettings
from specview.racing.workloads import list_workloads, load

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


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "match"])
@pytest.mark.parametrize("workload", list_workloads())
def test_lanes_equal_plain(engine_name: str, model_pool: Any, workload: str, sampling: SamplingParams) -> None:
    """Greedy lanes equal greedy plain decoding; `match` at temperature 1 equals sampled plain."""
    prompt = load(workload).prompts[0]
    rule = "greedy" if sampling.greedy else "match"
    settings = checked(
        engine_name,
        prompt=prompt.text,
        system=prompt.system,
        sampling=sampling,
        lanes=(
            LaneSettings(),
            LaneSettings("draft-model", k=3, rule=rule),
            LaneSettings("prompt-lookup", k=5, rule=rule),
        ),
    )
    runner, ends = race(settings, model_pool)
    plain, *others = [record.token_ids for record in runner.records]
    assert plain
    assert others == [plain] * len(others)
    assert all(ends[lane].equality is not None and ends[lane].equality.equal for lane in (1, 2))


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
