"""What-if on the bundled pair in check mode: other lengths of one k = 8 trace against real runs, in both engines."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from specview.lab.what_if_lane import Replay
from specview.racing.race import Race
from specview.racing.workloads import load
from specview.settings.events import Failed, LaneEnded
from specview.settings.run import LaneSettings, RunSettings

pytestmark = pytest.mark.real_model
MAX_TOKENS = int(os.environ.get("SPECVIEW_CHECK_TOKENS", "24"))
LENGTHS = (8, 1, 3)


@pytest.mark.parametrize(
    ("engine_name", "method"),
    [("transformers", "draft-model"), ("transformers", "eagle3"), ("llama.cpp", "prompt-lookup"), ("llama.cpp", "eagle3")],
    indirect=["engine_name"],
)
def test_smaller_k_from_one_trace_equals_real_runs(engine_name, model_pool, method):
    prompt = load("code-edit").prompts[0]
    settings = RunSettings(
        engine=engine_name, check_mode=True, threads=2, max_tokens=MAX_TOKENS, observe="light", baseline=False,
        prompt=prompt.text, system=prompt.system,
        lanes=tuple(LaneSettings(method, name=f"k {k}", k=k) for k in LENGTHS),
    )  # fmt: skip
    records = run(settings, model_pool)
    longest, *shorter = records
    assert len({tuple(record.token_ids) for record in records}) == 1  # check mode: one text
    replayed = Replay(longest)
    for record, k in zip(shorter, LENGTHS[1:], strict=True):
        asked, count = replayed.length(k), len(record.rounds)
        assert asked.rounds.low <= count <= asked.rounds.high
        if asked.how == "exact":
            assert asked.rounds.value == count
        if method != "eagle3":  # whose later guesses depend on where its draft began: bounds, and a guess within
            # 2%, or less than a pass where so few tokens make one pass more than that.
            assert abs(asked.rounds.value - count) <= max(0.02 * count, 0.999)
            assert asked.how == "exact" or asked.rounds.high - asked.rounds.low <= 1


def run(settings, pool):
    """A race's records; no lane may fail."""
    problems = []

    def listen(event):
        if isinstance(event, Failed):
            problems.append(event.message)
        elif isinstance(event, LaneEnded) and event.error:
            problems.append(event.error)

    race = Race(replace(settings), 1, pool)
    race.run(listen)
    race.close()
    assert not problems, problems
    return race.records
